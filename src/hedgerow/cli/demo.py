"""``hedgerow demo``: six sites of a real study train one private model, in this process, from files to a report.

Beside it, for comparison: the same trees without noise, and XGBoost on pooled data where it is installed. Neither of
these is written anywhere, and neither is private.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
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

from hedgerow.cli.evaluate import evaluate
from hedgerow.cli.inputs import output_folder, read_plan
from hedgerow.cli.output import WIDEST, note, number, print_json, typed, wrapped
from hedgerow.cli.progress import status
from hedgerow.cli.train import Sites, read_sites, train_with_progress
from hedgerow.data.datasets import SiteFiles, write_rand_hie
from hedgerow.data.sources import read_records
from hedgerow.data.units import Records, concatenate
from hedgerow.local.training import without_secure_aggregation
from hedgerow.losses.kinds import roc_auc
from hedgerow.models.model import Model, require_room, save_unless_kept
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SystemNoise

_QUESTION = (
    "Will this person see a doctor this year? Six sites of the RAND Health Insurance Experiment hold 20,190 real "
    "person-years and train one model together. No site shows a row to anyone: what leaves a site is summed with the "
    "others, and what leaves the sum is noised."
)
_DEFAULT_FOLDER, _MODEL = "hedgerow-demo", "model.json"
_REMEDY = "Give another folder, --out FOLDER, or move the file away first."
_BAR = 24
"""Columns of the longest bar of rows."""


@dataclass(frozen=True, eq=False)
class _Result:
    model: Model
    sites: Sites
    scores: dict[str, float]
    others: Mapping[str, float]
    files: dict[str, Path]


def run(arguments: argparse.Namespace) -> None:
    """Train, test, write model.json, report.txt and shapes.png, and show all of it."""
    folder = output_folder(arguments.out or _DEFAULT_FOLDER)
    if arguments.out is not None:
        require_room(folder / _MODEL, remedy=_REMEDY)
    console = Console(width=min(WIDEST, Console().width), quiet=arguments.json, highlight=False)
    console.print(Text("\nHedgerow", style="bold green") + Text("  six sites, one private model\n", style="bold"))
    console.print(Text(_QUESTION))
    data = write_rand_hie(folder / "data")
    plan = read_plan(str(data.plan))
    sites = read_sites(data.train, plan, quiet=arguments.json)
    _print_sites(console, sites)
    noise = SystemNoise(os.urandom)
    model = train_with_progress(plan, sites, noise, n_threads=arguments.threads, quiet=arguments.json)
    model = model.with_sites(tuple(sites))
    scores = evaluate(model, read_records(data.test, plan, with_unit=False))
    others = compare(plan, sites, data, arguments)
    if arguments.out is None and (aside := _set_aside(folder / _MODEL)) is not None and not arguments.json:
        note(f"The model of an earlier demonstration, and what it has cost, is kept as {aside}.")
    result = _Result(model, sites, scores, others, _write(folder, data, model, scores, quiet=arguments.json))
    if arguments.json:
        print_json(_content(result))
    else:
        _print_result(console, result, folder)


def _set_aside(path: Path) -> Path | None:
    """Rename a model that is there, so that the demonstration can be repeated; where it is now, None for none."""
    if not path.is_file():
        return None
    names = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
    return path.rename(next(name for name in names if not name.exists()))


def _write(folder: Path, data: SiteFiles, model: Model, scores: Mapping[str, float], *, quiet: bool) -> dict[str, Path]:
    files = {"model": folder / _MODEL, "report": folder / "report.txt"}
    save_unless_kept(model, files["model"], _REMEDY)
    opening = f"Hedgerow demo: {len(model.sites)} sites, test AUC {scores['auc']:.4f} (chance 0.5)\n\n"
    files["report"].write_text(opening + wrapped(model.report.text(), columns=WIDEST) + "\n", encoding="utf-8")
    shapes = folder / "shapes.png"
    if _draw_shapes(model, shapes, quiet):
        files["shapes"] = shapes
    return {**files, "plan": data.plan, "test data": data.test}


def _draw_shapes(model: Model, path: Path, quiet: bool) -> bool:
    """Draw what each feature does; False when matplotlib, an extra, is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from hedgerow.models.plots import plot_shapes

    with status("Drawing", quiet=quiet):
        plot_shapes(model, path)
    return True


def _table(what: str, number: str) -> Table:
    """A table of names, numbers, and bars for them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(what)
    table.add_column(number, justify="right")
    table.add_column("")
    return table


def _print_sites(console: Console, sites: Sites) -> None:
    table = _table("takes part", "rows")
    largest = max(site.n_records for site in sites.values())
    for name, site in sites.items():
        bar = "█" * round(_BAR * site.n_records / largest)
        table.add_row(name, f"{site.n_records:,}", Text(bar, style="green"))
    table.add_row("together", f"{sum(site.n_records for site in sites.values()):,}", "", style="bold")
    console.print(Padding(table, (0, 0, 0, 2)))


def _print_result(console: Console, result: _Result, folder: Path) -> None:
    report, scores = result.model.report, result.scores
    console.print()
    console.print(
        Panel(
            Text(wrapped(report.text(), columns=console.width - 6)),
            title="what the model promises",
            title_align="left",
            border_style="green" if report.guarantee == "holds" else "red",
            padding=(0, 2),
        )
    )
    table = _table(f"test AUC on {scores['n_records']:,} held-out rows", "")
    rows = {"private, over six sites": scores["auc"], **result.others, "chance": 0.5}
    above_chance = max(rows.values()) - 0.5
    for name, area in rows.items():
        style = "bold" if area == scores["auc"] else ""
        bar = "█" * round(_BAR * max(0.0, area - 0.5) / above_chance)
        table.add_row(Text(name, style=style), Text(f"{area:.4f}", style=style), Text(bar, style="green"))
    console.print(Padding(table, (0, 0, 0, 2)))
    _print_files(console, result, folder)


def _print_files(console: Console, result: _Result, folder: Path) -> None:
    console.print(Text("Written", style="bold"))
    for name, path in result.files.items():
        console.print(Text(f"  {name:<10} {path}", overflow="fold"))
    if "shapes" not in result.files:
        line = f"""  (for shapes.png: {typed('pip install "hedgerow[plots]"')})"""
        console.print(Text(line, style="dim"), soft_wrap=True)
    console.print()
    console.print(Text("Next", style="bold"))
    model, plan = result.files["model"], result.files["plan"]
    commands: tuple[tuple[str | Path, ...], ...] = (
        ("hedgerow predict", model, result.files["test data"], "--proba"),
        ("hedgerow privacy", plan),
        ("hedgerow plan init", plan.parent / "site-1.csv", "--label visited"),
    )
    for command in commands:
        words = [shlex.quote(str(word)) if isinstance(word, Path) else word for word in command]
        # Broken by us, a line could not be copied and typed.
        console.print(Text(f"  {typed(' '.join(words))}"), soft_wrap=True)
    console.print()


def _content(result: _Result) -> dict[str, Any]:
    return {
        "sites": {name: site.n_records for name, site in result.sites.items()},
        "test": result.scores,
        "compared": {name: float(number(area, 6)) for name, area in result.others.items()},
        "files": {name: str(path) for name, path in result.files.items()},
        "report": result.model.report.to_dict(),
    }


def compare(plan: Plan, sites: Sites, data: SiteFiles, arguments: argparse.Namespace) -> dict[str, float]:
    """Test AUC of models without privacy, by what they are."""
    # Masks would change no tree.
    open_plan = without_secure_aggregation(replace(plan, privacy=replace(plan.privacy, epsilon=float("inf"))))
    model = train_with_progress(
        open_plan, sites, SystemNoise(os.urandom),
        n_threads=arguments.threads, quiet=arguments.json, title="Without privacy",
    )  # fmt: skip
    scores = evaluate(model, read_records(data.test, plan, with_unit=False))
    areas = {"the same trees without privacy": scores["auc"]}
    try:
        import xgboost
    except ImportError:
        return areas
    with status("Training XGBoost on pooled data", quiet=arguments.json):
        areas["XGBoost, pooled, without privacy"] = _xgboost_auc(xgboost, plan, data)
    return areas


def _xgboost_auc(xgboost: Any, plan: Plan, data: SiteFiles) -> float:
    train = concatenate(chunk for path in data.train.values() for chunk in read_records(path, plan, with_unit=False))
    test = concatenate(read_records(data.test, plan, with_unit=False))
    booster = xgboost.train(
        {"objective": "binary:logistic", "max_depth": 4, "eta": 0.1, "tree_method": "hist", "verbosity": 0},
        xgboost.DMatrix(_matrix(train), label=train.label),
        num_boost_round=100,
    )
    return roc_auc(np.asarray(test.label) == 1, booster.predict(xgboost.DMatrix(_matrix(test))))


def _matrix(records: Records) -> NDArray[np.float32]:
    """Features as numbers; categories by their index, missing ones as NaN."""
    columns = [np.where(column == -2, np.nan, column) if column.dtype.kind == "i" else column
               for column in records.features]  # fmt: skip
    return np.stack(columns, axis=1).astype(np.float32)
