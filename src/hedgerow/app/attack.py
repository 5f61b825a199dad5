"""``hedgerow attack`` on a model: whose rows are attacked, and what was found as tables, a page, JSON and text."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from hedgerow.app.document import render_document, render_figures, render_section, render_text
from hedgerow.app.output import PRIVATE, PRIVATE_MARK, alarm, note, number, print_facts, width, wrap_text
from hedgerow.app.progress import follow_steps
from hedgerow.app.statistics import Sheet, print_sheet, render_sheet
from hedgerow.attacks.measures import Figure
from hedgerow.data.site_data import read_site_rows, site_rows_from_records
from hedgerow.data.sources import Location
from hedgerow.data.units import MOST_LEFT_OUT, RowCount
from hedgerow.local.attacks import AttackReport, Target, run_attacks
from hedgerow.local.simulation import simulate_records
from hedgerow.models.model import Model

MOST_MADE = 1_000
MADE = "Rows made from the plan, like no one's: these figures are not private."


def attack_model(model: Model, table: Location | None, *, allowed: float | None) -> AttackReport:
    """Attack runs of a model's plan over a table of its owner, or over made-up rows; how far it is stands on stderr.

    Args:
        table: None for made-up rows.
        allowed: the largest share of its rows that may be left out; None for the usual one.

    Raises:
        DataError, LostRowsError: as `read_sites`.
    """
    plan = model.plan
    if table is None:
        rows = site_rows_from_records([simulate_records(plan, min(plan.privacy.n_records, MOST_MADE), seed=0)], plan)
    else:
        rows = read_site_rows(table, plan)
        count = RowCount(rows.data.n_records, rows.unfit, rows.lines)
        count.require("The table", MOST_LEFT_OUT if allowed is None else allowed)
        if count.has_gaps:
            note(f"Private: {count.text()}")
    note("Some 80 trainings, and what each row adds to eight of them: a minute or two. Fewer rows take less.")
    with follow_steps() as progress:
        return run_attacks(Target(plan, rows), np.random.default_rng(), progress)


def describe_attack(found: AttackReport, *, is_private: bool) -> dict[str, Any]:
    """For a program; whoever passes it on is told whether it is of private rows."""
    return {**(PRIVATE_MARK if is_private else {"private": False, "note": MADE}), **found.to_dict()}


def build_attack_sheets(found: AttackReport) -> list[Sheet]:
    """The tables of what was found."""

    def of(figure: Figure, scale: float = 1.0, digits: int = 3) -> str:
        if math.isnan(figure.value):
            return "too few"
        return f"{figure.value * scale:.{digits}f} ± {figure.error * scale:.{digits}f}"

    bound = found.bound
    allowed = ("what the ledger allows", f"{bound.auc:.3f}", *(f"{100 * bound.rate(at):.2f}" for at in (0.01, 0.001)))
    names = {"scores": "the model's scores", "releases": "all releases"}
    members = tuple(
        (
            f"{names[one.attack]}, {one.targets}",
            of(one.found.auc),
            *(of(rate, 100, 2) for rate in one.found.rates.values()),
        )
        for one in found.membership
    )
    rebuilt = tuple(
        (f"from {'all releases' if one.source == 'releases' else 'the model file'}",
         of(Figure(one.share, one.share_error, 1)), of(Figure(one.unique, one.unique_error, 1)),
         f"{one.chance:.3f}", f"{one.unique_chance:.3f}")
        for one in found.reconstruction
    )  # fmt: skip
    signal = found.signal
    kinds = tuple(
        (kind.kind, str(kind.n_releases), f"{kind.charged:.3f}", f"{kind.mean:.3f}", f"{kind.largest:.3f}",
         f"{kind.planted:.3f}", of(Figure(kind.noise, kind.noise_error, 1)))
        for kind in signal.kinds
    )  # fmt: skip
    every = ("all", "", "1", f"{signal.mean:.3f}", f"{signal.largest:.3f}", f"{signal.planted:.3f}", "")
    cells = tuple(
        (one.column, str(one.n_cells), of(one.right), f"{one.mean:.3f}", f"{one.largest:.3f}")
        for one in found.attributes
    )
    return [
        Sheet("Who was in the data", ("attack", "AUC", "TPR, %, at FPR 1 %", "at 0.1 %"), (*members, allowed)),
        Sheet("What of the table is found again", ("", "rows", "unique rows", "by chance", "unique"), rebuilt),
        Sheet(
            "What one unit adds, as a share of the ledger's mu²",
            ("release", "number", "charged", "mean", "largest", "planted", "noise's variance"), (*kinds, every),
        ),
        Sheet(
            "Which of two values a cell has",
            ("column", "cells", "right", "expected", "easiest"),
            (*cells, ("what the ledger allows", "", f"{bound.accuracy:.3f}", "", "")),
        ),
    ]  # fmt: skip


EXPLANATION = (
    "An AUC of .5 is a coin's; ± are standard errors. Members were drawn by a coin for each unit. Who attacks knows "
    "the plan, all units that may be members, and what each would add. Outliers are the twentieth that releases tell "
    "best. A table is found again from a list that holds it and as many other units. Values of cells are told by who "
    "knows all other cells and rows."
)


def _list_facts(found: AttackReport) -> list[tuple[str, str]]:
    bound = found.bound
    unit = "rows" if found.rows_per_unit == 1 else f"units of up to {found.rows_per_unit} rows"
    facts = [("table", f"{found.n_units:,} {unit}"), ("ledger", f"epsilon {number(bound.epsilon)} at {bound.delta:g}")]
    return facts if math.isinf(bound.mu) else [*facts, ("mu", number(bound.mu))]


def render_attack(found: AttackReport, subject: str, *, is_private: bool) -> str:
    """The page of a report: figures, findings, a table for each attack; with a warning where rows are private."""
    body = [
        render_text(PRIVATE, "void") if is_private else render_text(MADE),
        render_figures(_list_facts(found)),
        *(render_text(f"Against the ledger: {finding}.", "void") for finding in found.findings),
        *(render_section(sheet.title, [render_sheet(sheet)]) for sheet in build_attack_sheets(found)),
        render_text(EXPLANATION, "muted"),
    ]
    return render_document("Attacks on a model's own runs", subject, body)


def print_attack(found: AttackReport, *, is_private: bool) -> None:
    """Print a report on the terminal, with a warning where rows are private; findings come last."""
    print(f"{wrap_text(PRIVATE if is_private else MADE, hanging=0)}\n")
    print_facts(_list_facts(found))
    console = Console(width=width())
    for sheet in build_attack_sheets(found):
        print_sheet(console, sheet, widest=40)
    console.print(Text(EXPLANATION, style="dim"))
    for finding in found.findings:
        alarm(f"Against the ledger: {finding}.")
    if not found.findings:
        print("\nNothing contradicts the ledger.")
