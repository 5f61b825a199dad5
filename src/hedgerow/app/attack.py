# SPDX-License-Identifier: Apache-2.0
"""``hedgerow attack`` on a model: whose rows are attacked; what was found as JSON, and of that tables, page, text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from hedgerow.app.document import render_document, render_figures, render_text
from hedgerow.app.output import PRIVATE, PRIVATE_MARK, alarm, json_text, note, print_facts, width, wrap_text
from hedgerow.app.progress import follow_steps
from hedgerow.app.statistics import Sheet, print_sheet, render_sheet
from hedgerow.data.site_data import read_site_rows, site_rows_from_records
from hedgerow.data.sources import Location
from hedgerow.data.units import MAX_LEFT_OUT, RowCount
from hedgerow.local.attacks import AttackReport, Target, run_attacks
from hedgerow.local.simulation import simulate_records
from hedgerow.models.model import Model
from hedgerow.privacy.rounding import format_cost, format_up

MAX_MADE = 1_000
MADE = "Rows made from the plan, like no one's: these figures are not private."


def attack_model(model: Model, table: Location | None, *, allowed: float | None) -> AttackReport:
    """Attack runs of a model's plan over its owner's table, or over made-up rows, with progress on stderr.

    Args:
        table: None for made-up rows.
        allowed: the largest share of its rows that may be left out; None for the usual one.

    Raises:
        DataError, LostRowsError: as `read_sites`.
    """
    plan = model.plan
    if table is None:
        rows = site_rows_from_records([simulate_records(plan, min(plan.privacy.n_records, MAX_MADE), seed=0)], plan)
    else:
        rows = read_site_rows(table, plan)
        count = RowCount(rows.data.n_records, rows.unfit, rows.lines)
        count.require("The table", MAX_LEFT_OUT if allowed is None else allowed)
        if count.has_gaps:
            note(f"Private: {count.text()}")
    note("Some 80 trainings, and what each row adds to eight of them: a minute or two. Fewer rows take less.")
    with follow_steps() as progress:
        return run_attacks(Target(plan, rows), np.random.default_rng(), progress)


def describe_attack(found: AttackReport, *, is_private: bool) -> dict[str, Any]:
    """Return the content printed with --json, including whether rows are private; pages use it alone."""
    mark = PRIVATE_MARK if is_private else {"private": False, "note": MADE}
    content: dict[str, Any] = json.loads(json_text({**mark, **found.to_dict()}))
    return content


def build_attack_sheets(found: Mapping[str, Any]) -> list[Sheet]:
    """Build the tables of an attack's results.

    Raises:
        KeyError, TypeError, ValueError, IndexError: it is not what `describe_attack` gives.
    """

    def show(value: float | None, error: float | None, scale: float = 1.0, digits: int = 3) -> str:
        if value is None:
            return "too few"
        beside = "" if error is None else f" ± {error * scale:.{digits}f}"
        return f"{value * scale:.{digits}f}{beside}"

    def figure(one: Mapping[str, Any], scale: float = 1.0, digits: int = 3) -> str:
        return show(one["value"], one["error"], scale, digits)

    bound, signal, told = found["bound"], found["signal"], found["membership"]
    allowed = [f"{100 * rate['bound']:.2f}" for rate in told[0]["found"]["rates"].values()]
    names = {"scores": "the model's scores", "releases": "all releases"}
    members = tuple(
        (f"{names[one['attack']]}, {one['targets']}", figure(one["found"]["auc"]),
         *(figure(rate, 100, 2) for rate in one["found"]["rates"].values()))
        for one in told
    )  # fmt: skip
    rebuilt = tuple(
        ("all releases" if one["source"] == "releases" else "the model file",
         show(one["share"], one["share_error"]), show(one["unique"], one["unique_error"]),
         show(one["chance"], None), show(one["unique_chance"], None))
        for one in found["reconstruction"]
    )  # fmt: skip
    spent = "mean", "largest", "planted"
    kinds = tuple(
        (kind["kind"], str(kind["n_releases"]), f"{kind['charged']:.3f}", *(f"{kind[name]:.3f}" for name in spent),
         show(kind["noise"], kind["noise_error"]))
        for kind in signal["kinds"]
    )  # fmt: skip
    every = ("all", "", "1", *(f"{signal[name]:.3f}" for name in spent), "")
    cells = tuple((one["column"], str(one["n_cells"]), figure(one["right"])) for one in found["attributes"])
    may = "what the ledger allows"
    return [
        Sheet("Who was in the data", ("attack", "AUC", "TPR, %, at FPR 1 %", "at 0.1 %"),
              (*members, (may, f"{bound['auc']:.3f}", *allowed))),
        Sheet("What of the table is found again", ("from", "rows", "unique rows", "by chance", "unique"), rebuilt),
        Sheet("What one unit adds, as a share of the ledger's mu²",
              ("release", "number", "charged", *spent, "noise's variance"), (*kinds, every)),
        Sheet("Which of two values a cell has", ("column", "cells", "right"),
              (*cells, (may, "", f"{bound['accuracy']:.3f}"))),
    ]  # fmt: skip


EXPLANATION = (
    "An AUC of .5 is a coin's; ± are standard errors. Members were drawn by a coin for each unit. Who attacks knows "
    "the plan, all units that may be members, and what each would add. Outliers are the twentieth that releases tell "
    "best. A table is found again from a list that holds it and as many other units. Values of cells are told by who "
    "knows all other cells and rows."
)


def list_attack_facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe the attacked table and the ledger of one training, without evaluations of the model."""
    bound, n_rows = found["bound"], found["rows_per_unit"]
    unit = "rows" if n_rows == 1 else f"units of up to {n_rows} rows"
    epsilon, mu = (float("inf") if bound[name] == "infinite" else bound[name] for name in ("epsilon", "mu"))
    # Files of earlier versions lack this field.
    n_groups = found.get("n_groups", 0)
    facts = [("table", f"{found['n_units']:,} {unit}"), ("each training", format_cost(epsilon, bound["delta"], 4))]
    facts += [] if bound["mu"] == "infinite" else [("mu", format_up(mu, 4))]
    return [*facts, ("attacked", f"one sum, of the plan's {n_groups} groups of sites")] if n_groups else facts


def explain_attack(found: Mapping[str, Any]) -> str:
    """Explain how to read the figures and, if the plan has groups of sites, which single sum is attacked."""
    n_groups = found.get("n_groups", 0)
    if not n_groups:
        return EXPLANATION
    return (
        f"{EXPLANATION} A run of this plan keeps the sums of {n_groups} groups of sites apart, each with the whole "
        "noise of one. One sum is attacked, as if all rows here were those of one group. What the ledger allows holds "
        "for both."
    )


def render_attack(found: Mapping[str, Any], subject: str) -> str:
    """Write the page of an attack, with a warning if it is private."""
    note = render_text(PRIVATE, "void") if found["private"] else render_text(MADE)
    return render_document("Attacks on a model's own runs", subject, [note, *render_figures_of_attack(found)])


def render_figures_of_attack(found: Mapping[str, Any]) -> list[str]:
    """Parts of a page about attacks, without the warning: figures, findings, a table for each attack."""
    return [
        render_figures(list_attack_facts(found)),
        *(render_text(f"Against the ledger: {finding}.", "void") for finding in found["findings"]),
        *(part for sheet in build_attack_sheets(found) for part in (render_text(sheet.title), render_sheet(sheet))),
        render_text(explain_attack(found), "muted"),
    ]


def print_attack(found: Mapping[str, Any]) -> None:
    """Print an attack on the terminal, with a warning if rows are private; the findings come last."""
    print(f"{wrap_text(PRIVATE if found['private'] else MADE, hanging=0)}\n")
    print_facts(list_attack_facts(found))
    console = Console(width=width())
    for sheet in build_attack_sheets(found):
        print_sheet(console, sheet, widest=40)
    console.print(Text(explain_attack(found), style="dim"))
    for finding in found["findings"]:
        alarm(f"Against the ledger: {finding}.")
    if not found["findings"]:
        print("\nNothing contradicts the ledger.")
