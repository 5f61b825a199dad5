# SPDX-License-Identifier: Apache-2.0
"""The demonstration: six sites of a real study train one private model, in this process, from files to a report.

Beside it, for comparison: a model whose promise is for a row alone, the same trees without noise, and XGBoost on pooled
data where it is installed. None of these is written anywhere, and the last two are not private.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hedgerow.app.environments import train_with_progress
from hedgerow.app.evaluation import Sites, evaluate
from hedgerow.app.inputs import output_folder, read_plan
from hedgerow.app.output import WIDEST, format_command, note, number, print_json, today, wrap_text
from hedgerow.app.progress import status
from hedgerow.client.budget import BOOK
from hedgerow.data.binned import SiteData
from hedgerow.data.datasets import SiteFiles, write_rand_hie
from hedgerow.data.site_data import bound_sites, read_site_rows
from hedgerow.data.sources import read_records
from hedgerow.data.units import ContributionReport, Records, concatenate
from hedgerow.errors import name_to_install
from hedgerow.local.accounts import Account, BookStore
from hedgerow.local.training import without_secure_aggregation
from hedgerow.losses.kinds import roc_auc
from hedgerow.models.model import Model, require_room, save_unless_kept
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SystemNoise

_BAR = 24
"""Columns of the longest bar."""
_QUESTION = (
    "Will this person see a doctor this year? Six sites of the RAND Health Insurance Experiment hold 20,190 real "
    "person-years and train one model together. Each site sends totals only; they are added up, and noise is added "
    "before anything is published. The promise is for a person, with all years together, not for a row."
)
_DEFAULT_FOLDER, _MODEL = "hedgerow-demo", "model.json"
_REMEDY = "Give another folder, --out FOLDER, or move the file away first."


def demonstrate(out: str | None, *, as_json: bool) -> None:
    """Train, test, write model.json, report.txt and shapes.png, and show all of it.

    Args:
        out: a folder without a model; None for the usual one, where an earlier model is set aside.
    """
    folder = output_folder(out or _DEFAULT_FOLDER)
    if out is not None:
        require_room(folder / _MODEL, remedy=_REMEDY)
    console = Console(width=min(WIDEST, Console().width), quiet=as_json, highlight=False)
    console.print(Text("\nHedgerow", style="bold green") + Text("  six sites, one private model\n", style="bold"))
    console.print(Text(_QUESTION))
    data = write_rand_hie(folder / "data")
    plan = read_plan(str(data.plan))
    bounded = _bound_rows(data, plan, quiet=as_json)
    sites = {name: own for name, (own, _) in bounded.items()}
    _print_sites(console, {name: report for name, (_, report) in bounded.items()})
    noise, book = SystemNoise(os.urandom), BookStore(folder / BOOK)
    account = Account([book], "demonstration")
    model = train_with_progress(plan, sites, noise, quiet=as_json, account=account)
    model = model.with_account(account.read_state(plan.privacy.unit, plan.privacy.delta))
    model = model.with_sites(tuple(sites))
    scores = evaluate(model, read_records(data.test, plan))
    others = _compare(plan, sites, data, Account([book], "comparisons, of which one has no noise"), as_json)
    if out is None and (aside := _set_aside(folder / _MODEL)) is not None and not as_json:
        note(f"The model of an earlier demonstration, and what it has cost, is kept as {aside}.")
    files = _write(folder, data, model, scores, quiet=as_json)
    if as_json:
        print_json(
            {
                "note": _PUBLIC,
                "sites": {name: site.n_records for name, site in sites.items()},
                "test": scores,
                "compared": {name: float(number(area, 6)) for name, area in others.items()},
                "files": {name: str(path) for name, path in files.items()},
                "report": model.report.to_dict(),
            }
        )
        return
    _print_result(console, model, scores, others)
    _print_files(console, files)


def _bound_rows(data: SiteFiles, plan: Plan, *, quiet: bool) -> dict[str, tuple[SiteData, ContributionReport]]:
    """Read each site's rows as the plan uses them, with counts that may be shown: these rows are public."""
    with status("Reading", quiet=quiet):
        return bound_sites({name: read_site_rows(path, plan) for name, path in data.train.items()}, plan)


def _set_aside(path: Path) -> Path | None:
    """Rename an existing model, so that the demonstration can be repeated; return its new path, or None."""
    if not path.is_file():
        return None
    names = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
    return path.rename(next(name for name in names if not name.exists()))


def _write(folder: Path, data: SiteFiles, model: Model, scores: Mapping[str, float], *, quiet: bool) -> dict[str, Path]:
    files = {"model": folder / _MODEL, "report": folder / "report.txt"}
    save_unless_kept(model, files["model"], _REMEDY)
    opening = f"Hedgerow demo: {len(model.sites)} sites, test AUC {scores['auc']:.4f} (chance 0.5)\n\n"
    files["report"].write_text(opening + wrap_text(model.report_text(today()), columns=WIDEST) + "\n", encoding="utf-8")
    shapes = folder / "shapes.png"
    if _draw_shapes(model, shapes, quiet):
        files["shapes"] = shapes
    return {**files, "plan": data.plan, "test data": data.test}


def _draw_shapes(model: Model, path: Path, quiet: bool) -> bool:
    """Draw each feature's effect; return False if matplotlib, an extra, is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from hedgerow.models.plots import plot_shapes

    with status("Drawing", quiet=quiet):
        plot_shapes(model, path)
    return True


def _make_table(what: str, number: str) -> Table:
    """Make a table of names, numbers and bars."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(what)
    table.add_column(number, justify="right")
    table.add_column("")
    return table


def _print_sites(console: Console, sites: Mapping[str, ContributionReport]) -> None:
    table = _make_table("takes part with", "rows")
    used = {name: (site.n_rows - site.n_dropped, site.n_rows) for name, site in sites.items()}
    largest = max(n_used for n_used, _ in used.values())
    for name, (n_used, n_rows) in used.items():
        table.add_row(name, f"{n_used:,} of {n_rows:,}", Text("█" * round(_BAR * n_used / largest), style="green"))
    together = (sum(numbers) for numbers in zip(*used.values(), strict=True))
    table.add_row("together", " of ".join(f"{number:,}" for number in together), "", style="bold")
    console.print(Padding(table, (0, 0, 0, 2)))


def _print_result(console: Console, model: Model, scores: Mapping[str, float], others: Mapping[str, float]) -> None:
    console.print()
    console.print(
        Panel(
            Text(wrap_text(model.report_text(today()), columns=console.width - 6)),
            title="what the model promises",
            title_align="left",
            border_style="green" if model.report.guarantee == "holds" else "red",
            padding=(0, 2),
        )
    )
    table = _make_table(f"test AUC on {scores['n_records']:,} held-out rows", "")
    rows = {"private for a person": scores["auc"], **others, "chance": 0.5}
    above_chance = max(rows.values()) - 0.5
    for name, area in rows.items():
        style = "bold" if area == scores["auc"] else ""
        bar = "█" * round(_BAR * max(0.0, area - 0.5) / above_chance)
        table.add_row(Text(name, style=style), Text(f"{area:.4f}", style=style), Text(bar, style="green"))
    console.print(Padding(table, (0, 0, 1, 2)))
    console.print(Text(f"{_PUBLIC}\n"))


def _print_files(console: Console, files: Mapping[str, Path]) -> None:
    console.print(Text("Written", style="bold"))
    for name, path in files.items():
        console.print(Text(f"  {name:<10} {path}", overflow="fold"))
    if "shapes" not in files:
        line = f"  (for shapes.png: {format_command('pip install ' + name_to_install('plots'))})"
        console.print(Text(line, style="dim"), soft_wrap=True)
    console.print()
    console.print(Text("Next", style="bold"))
    model, plan = files["model"], files["plan"]
    commands: tuple[tuple[str | Path, ...], ...] = (
        ("hedgerow predict", model, files["test data"], "--proba"),
        ("hedgerow privacy", plan),
        ("hedgerow plan init", plan.parent / "site-1.csv", "--label visited"),
    )
    for command in commands:
        words = [shlex.quote(str(word)) if isinstance(word, Path) else word for word in command]
        # Do not break the line, so that it can be copied.
        console.print(Text(f"  {format_command(' '.join(words))}"), soft_wrap=True)
    console.print()


_PUBLIC = (
    "These rows are public. Of private rows such counts and scores are exact, and no guarantee covers them: `hedgerow "
    "evaluate --federated` measures with noise."
)


def _compare(
    plan: Plan, sites: Sites, data: SiteFiles, account: Account, quiet: bool
) -> dict[str, float]:
    """Return the test AUC of models with a weaker promise or none, by a description of each."""

    def area(title: str, sites: Sites, **privacy: Any) -> float:
        # Train without masks, which change no tree.
        own = without_secure_aggregation(replace(plan, privacy=replace(plan.privacy, **privacy)))
        noise = SystemNoise(os.urandom)
        model = train_with_progress(
            own, sites, noise, quiet=quiet, account=account, title=title
        )
        return evaluate(model, read_records(data.test, plan))["auc"]

    row: dict[str, Any] = {"unit": "record", "max_rows_per_unit": 1}
    bounded = _bound_rows(data, replace(plan, privacy=replace(plan.privacy, **row)), quiet=True)
    rows = {name: own for name, (own, _) in bounded.items()}
    # These rows are public, so their number may be declared.
    row["n_records"] = sum(own.n_records for own in rows.values())
    areas = {
        "private for a row, not a person": area("Private for a row", rows, **row),
        "the same trees without privacy": area("Without privacy", sites, epsilon=float("inf")),
    }
    if importlib.util.find_spec("xgboost") is not None:
        with status("Training XGBoost on pooled data", quiet=quiet):
            areas["XGBoost, pooled, without privacy"] = score_xgboost(plan, data)
    return areas


def score_xgboost(plan: Plan, data: SiteFiles) -> float:
    """Test AUC of XGBoost on the training rows of all sites in one place, without privacy."""
    import xgboost

    train = concatenate(chunk for path in data.train.values() for chunk in read_records(path, plan))
    test = concatenate(read_records(data.test, plan))
    booster = xgboost.train(
        {"objective": "binary:logistic", "max_depth": 4, "eta": 0.1, "tree_method": "hist", "verbosity": 0},
        xgboost.DMatrix(_make_matrix(train), label=train.label),
        num_boost_round=100,
    )
    return roc_auc(np.asarray(test.label) == 1, booster.predict(xgboost.DMatrix(_make_matrix(test))))


def _make_matrix(records: Records) -> NDArray[np.float32]:
    """Features as numbers; categories by their index, missing ones as NaN."""
    columns = [np.where(column == -2, np.nan, column) if column.dtype.kind == "i" else column
               for column in records.features]  # fmt: skip
    return np.stack(columns, axis=1).astype(np.float32)
