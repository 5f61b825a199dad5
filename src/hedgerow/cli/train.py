"""Training where all sites are on this machine: ``hedgerow train``, ``simulate`` and ``demo``."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import math
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
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

from hedgerow.app.cost import outlook, trees_text
from hedgerow.app.environments import train_with_progress
from hedgerow.app.evaluation import Sites, evaluate, read_sites
from hedgerow.app.inputs import adapt_sites, check_can_write, join_names, output_folder, parse_sites, read_plan
from hedgerow.app.output import (
    WIDEST,
    format_command,
    note,
    number,
    print_facts,
    print_json,
    today,
    warn,
    warn_seeded,
    wrap_text,
)
from hedgerow.app.progress import status
from hedgerow.data.datasets import SiteFiles, write_rand_hie
from hedgerow.data.site_data import SiteData, bound_sites, read_site_rows, site_data_from_records
from hedgerow.data.sources import read_records
from hedgerow.data.units import ContributionReport, FeatureColumn, Records, concatenate
from hedgerow.local.training import check_sites, without_secure_aggregation
from hedgerow.losses.kinds import roc_auc
from hedgerow.losses.labels import EFFECT
from hedgerow.methods.registry import resolve
from hedgerow.models.model import Model, require_room, save_unless_kept
from hedgerow.plan.plan import Feature, Plan
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.privacy.outlook import doubt_of


def run(arguments: argparse.Namespace) -> None:
    """Train, write the model, print what it promises."""
    plan = read_plan(arguments.plan)
    out = check_can_write(arguments.out or "model.json")
    require_room(out)
    files = adapt_sites(parse_sites(arguments.sites), arguments.adapters)
    check_sites(plan, len(files))
    noise: NoiseSource = SystemNoise(os.urandom) if arguments.seed is None else SeededNoise(arguments.seed)
    allowed = arguments.allow_loss
    sites = read_sites(files, plan, quiet=arguments.json, strict=arguments.strict, allowed=allowed)
    if arguments.no_secagg:
        # After reading: which rows of a person are used follows from the plan's digest, and is to stay the same.
        plan = without_secure_aggregation(plan)
    if not arguments.json and (doubt := doubt_of(plan)):
        warn(f"{doubt}.")
    quiet, seed = arguments.json, arguments.seed
    model = train_with_progress(plan, sites, noise, n_threads=arguments.threads, quiet=quiet, seed=seed)
    save_unless_kept(model, out)
    if arguments.json:
        print_json(
            {
                "model": str(out),
                "plan_digest": plan.digest,
                "sites": list(files),
                "settings": dataclasses.asdict(resolve(plan)),
                "report": model.report.to_dict(),
            }
        )
        return
    if noise.seeded:
        warn_seeded()
    bounds = [("bounds", model.bounds_text)] if model.bounds_text else []
    trees = f"{trees_text(model.plan, model.ensemble)}, written to {out}"
    print_facts([("sites", f"{len(sites)}: {join_names(sites)}"), ("model", trees), *bounds])
    print("\n" + wrap_text(model.report_text(today())))


# A rehearsal ----------------------------------------------------------------------------------------------------------
# ``hedgerow simulate``: a plan's run on made-up rows, from the sites' tables to a score, before anyone shows a row.

FACTORS = (0.1, 0.3, 1.0, 3.0)
"""Of the plan's epsilon, at which a model is made; without noise as well."""
N_HELD_OUT = 20_000
_BAR = 24
"""Columns of the longest bar."""
_SCORES = {"auc": "AUC", "concordance": "concordance", "r2": "R2", "mae": "MAE"}
"""What is shown of a model, the first of these that it has, and how it is written."""


def simulate(arguments: argparse.Namespace) -> None:
    """Print how well models of made-up rows predict others, by epsilon."""
    plan = read_plan(arguments.plan)
    n_rows = arguments.rows or plan.privacy.n_records
    plan = replace(
        plan,
        privacy=replace(plan.privacy, n_records=n_rows),
        federation=replace(plan.federation, min_sites=min(plan.federation.min_sites, arguments.sites)),
    ).with_structure_seed(arguments.seed)
    rows = made_records(plan, n_rows, arguments.seed)
    tables = split_evenly(rows, arguments.sites)
    sites = {name: site_data_from_records([table], plan)[0] for name, table in tables.items()}
    together = {"all": site_data_from_records([rows], plan)[0]}
    held_out = made_records(plan, N_HELD_OUT, arguments.seed, part=1)
    found: dict[float, dict[str, float]] = {}
    seconds = 0.0
    for epsilon in _epsilons(plan):
        own = replace(plan, privacy=replace(plan.privacy, epsilon=epsilon))
        is_plans = epsilon == plan.privacy.epsilon
        if not is_plans:
            # What was released before is a share of the plan's own epsilon, and may be more than all of a smaller one.
            own = replace(own, prepared=())
        start = time.monotonic()
        # Sums are the same however the rows are spread, so masks are shown once; noise of the sites is not.
        is_spread = is_plans or plan.privacy.noise == "distributed"
        model = train_with_progress(
            own if is_spread else replace(own, federation=replace(own.federation, min_sites=1)),
            sites if is_spread else together,
            SystemNoise(os.urandom),
            n_threads=arguments.threads,
            quiet=arguments.json,
            title="Without noise" if math.isinf(epsilon) else f"At epsilon {epsilon:g}",
        )
        seconds = time.monotonic() - start if is_plans else seconds
        found[epsilon] = evaluate(model, [held_out])
    if arguments.json:
        scores: list[dict[str, Any]] = [{"epsilon": epsilon, **own} for epsilon, own in found.items()]
        print_json({"plan": plan.name, "rows": n_rows, "sites": arguments.sites, "seconds": seconds, "scores": scores})
        return
    _print(plan, found, seconds, arguments.sites)


def _epsilons(plan: Plan) -> list[float]:
    """The plan's and others around it, the smallest first; without noise at the end."""
    promised = plan.privacy.epsilon
    if math.isinf(promised):
        return [math.inf]
    return [promised if factor == 1 else float(f"{factor * promised:.3g}") for factor in FACTORS] + [math.inf]


def _print(plan: Plan, found: dict[float, dict[str, float]], seconds: float, n_sites: int) -> None:
    name = next(each for each in _SCORES if each in next(iter(found.values())))
    least = 0.5 if name in ("auc", "concordance") else 0.0
    where = f"{n_sites} site{'s' * (n_sites > 1)}"
    print(f"\n{plan.privacy.n_records:,} made-up rows over {where}, {N_HELD_OUT:,} others held out")
    print(f"\n  {'epsilon':>9}  {_SCORES[name]}")
    largest = max(scores[name] for scores in found.values())
    for epsilon, scores in found.items():
        bar = "█" * round(_BAR * max(0.0, scores[name] - least) / max(largest - least, 1e-9))
        who = "no noise" if math.isinf(epsilon) else f"{epsilon:g}"
        mark = "  the plan's" if epsilon == plan.privacy.epsilon else ""
        print(f"  {who:>9}  {scores[name]:.4f}  {bar}{mark}")
    print()
    time_taken = f"{number(seconds, 2)} s for the plan's model, all sites on this machine"
    print_facts([*outlook(plan), ("time", time_taken)])
    note(
        "These rows are easier than real ones: nothing is missing, features are independent and a third of them "
        "matter. Compare the lines with each other, not with what your own data will give."
    )


# Made-up rows ---------------------------------------------------------------------------------------------------------
# The rows follow from the plan and a seed alone. Features are independent and even over their bounds or categories; a
# third of them, two at least, move the label, each by a straight line, a step or a bump, and one product of two does.
# How strongly is fixed: trees without noise reach an AUC of about .85 for two classes.

Floats = NDArray[np.float64]

_SHAPES: tuple[Callable[[Floats], Floats], ...] = (
    lambda x: 2 * x - 1,
    lambda x: np.sign(x - 0.4),
    lambda x: 1 - 4 * (2 * x - 1) ** 2 / 3,
)
"""Of a feature's place between its bounds, 0 to 1: a straight line, a step, a bump."""


def made_records(plan: Plan, n_records: int, seed: int, part: int = 0) -> Records:
    """Rows that are like no one's.

    Args:
        plan: what their columns are.
        n_records: how many, >= 1; each is a unit of its own.
        seed: >= 0; what moves the label follows from it.
        part: >= 0; parts of one seed hold other rows, whose label follows the same rule.
    """
    places = np.random.default_rng([seed, 1, part]).random((len(plan.features), n_records))
    rule = np.random.default_rng([seed, 0])
    noise = np.random.default_rng([seed, 2, part])
    effects = np.stack([_effect(places, rule) for _ in range(plan.label.n_outputs)])
    columns = tuple(_column(feature, place) for feature, place in zip(plan.features, places, strict=True))
    is_record = plan.privacy.unit == "record"
    unit = None if is_record else np.char.add(f"{part}-", np.arange(n_records).astype(np.str_))
    return Records(columns, plan.label.kind.made(effects, plan.label, noise), unit, n_records)


def split_evenly(records: Records, n_sites: int) -> dict[str, Records]:
    """The rows over sites of the same size, to within one row."""
    parts: Sequence[NDArray[np.intp]] = np.array_split(np.arange(records.n_records), n_sites)
    return {f"site-{number}": records.take(rows) for number, rows in enumerate(parts, start=1)}


def _effect(places: Floats, rule: np.random.Generator) -> Floats:
    """What moves one output: float64 [n], of mean 0 and standard deviation `EFFECT` over many rows."""
    n_features = len(places)
    chosen = rule.permutation(n_features)[: max(2, n_features // 3)]
    weights = rule.uniform(0.5, 1.5, size=len(chosen))
    shapes = rule.integers(len(_SHAPES), size=len(chosen))

    def total(places: Floats) -> Floats:
        product = (2 * places[chosen[0]] - 1) * (2 * places[chosen[-1]] - 1)
        found: Floats = 1.5 * product
        for feature, weight, shape in zip(chosen, weights, shapes, strict=True):
            found += weight * _SHAPES[shape](places[feature])
        return found

    # Measured on rows that follow from the rule alone: all parts are to have one scale.
    reference = total(rule.random((n_features, 4_000)))
    effect: Floats = (total(places) - reference.mean()) / reference.std() * EFFECT
    return effect


def _column(feature: Feature, places: Floats) -> FeatureColumn:
    if feature.is_categorical:
        return np.asarray(places * len(feature.categories), dtype=np.int16)
    low, high = feature.min, feature.max
    assert low is not None and high is not None
    values = low + places * (high - low)
    return np.asarray(np.rint(values) if feature.integer else values, dtype=np.float32)


# The demonstration ----------------------------------------------------------------------------------------------------
# ``hedgerow demo``: six sites of a real study train one private model, in this process, from files to a report.
# Beside it, for comparison: a model whose promise is for a row alone, the same trees without noise, and XGBoost on
# pooled data where it is installed. None of these is written anywhere, and the last two are not private.

_QUESTION = (
    "Will this person see a doctor this year? Six sites of the RAND Health Insurance Experiment hold 20,190 real "
    "person-years and train one model together. Each site sends totals only; they are added up, and noise is added "
    "before anything is published. The promise is for a person, with all years together, not for a row."
)
_DEFAULT_FOLDER, _MODEL = "hedgerow-demo", "model.json"
_REMEDY = "Give another folder, --out FOLDER, or move the file away first."


@dataclass(frozen=True, eq=False)
class _Result:
    model: Model
    sites: Sites
    scores: dict[str, float]
    others: Mapping[str, float]
    files: dict[str, Path]


def demo(arguments: argparse.Namespace) -> None:
    """Train, test, write model.json, report.txt and shapes.png, and show all of it."""
    folder = output_folder(arguments.out or _DEFAULT_FOLDER)
    if arguments.out is not None:
        require_room(folder / _MODEL, remedy=_REMEDY)
    console = Console(width=min(WIDEST, Console().width), quiet=arguments.json, highlight=False)
    console.print(Text("\nHedgerow", style="bold green") + Text("  six sites, one private model\n", style="bold"))
    console.print(Text(_QUESTION))
    data = write_rand_hie(folder / "data")
    plan = read_plan(str(data.plan))
    bounded = _bound_rows(data, plan, quiet=arguments.json)
    sites = {name: own for name, (own, _) in bounded.items()}
    _print_sites(console, {name: report for name, (_, report) in bounded.items()})
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


def _bound_rows(data: SiteFiles, plan: Plan, *, quiet: bool) -> dict[str, tuple[SiteData, ContributionReport]]:
    """The rows of each site that a plan uses, and how many of how many they are: these rows are public."""
    with status("Reading", quiet=quiet):
        return bound_sites({name: read_site_rows(path, plan) for name, path in data.train.items()}, plan)


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
    files["report"].write_text(opening + wrap_text(model.report_text(today()), columns=WIDEST) + "\n", encoding="utf-8")
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


def _print_sites(console: Console, sites: Mapping[str, ContributionReport]) -> None:
    table = _table("takes part with", "rows")
    used = {name: (site.n_rows - site.n_dropped, site.n_rows) for name, site in sites.items()}
    largest = max(n_used for n_used, _ in used.values())
    for name, (n_used, n_rows) in used.items():
        table.add_row(name, f"{n_used:,} of {n_rows:,}", Text("█" * round(_BAR * n_used / largest), style="green"))
    together = (sum(numbers) for numbers in zip(*used.values(), strict=True))
    table.add_row("together", " of ".join(f"{number:,}" for number in together), "", style="bold")
    console.print(Padding(table, (0, 0, 0, 2)))


def _print_result(console: Console, result: _Result, folder: Path) -> None:
    report, scores = result.model.report, result.scores
    console.print()
    console.print(
        Panel(
            Text(wrap_text(result.model.report_text(today()), columns=console.width - 6)),
            title="what the model promises",
            title_align="left",
            border_style="green" if report.guarantee == "holds" else "red",
            padding=(0, 2),
        )
    )
    table = _table(f"test AUC on {scores['n_records']:,} held-out rows", "")
    rows = {"private for a person": scores["auc"], **result.others, "chance": 0.5}
    above_chance = max(rows.values()) - 0.5
    for name, area in rows.items():
        style = "bold" if area == scores["auc"] else ""
        bar = "█" * round(_BAR * max(0.0, area - 0.5) / above_chance)
        table.add_row(Text(name, style=style), Text(f"{area:.4f}", style=style), Text(bar, style="green"))
    console.print(Padding(table, (0, 0, 1, 2)))
    console.print(Text(f"{_PUBLIC}\n"))
    _print_files(console, result, folder)


def _print_files(console: Console, result: _Result, folder: Path) -> None:
    console.print(Text("Written", style="bold"))
    for name, path in result.files.items():
        console.print(Text(f"  {name:<10} {path}", overflow="fold"))
    if "shapes" not in result.files:
        line = f"""  (for shapes.png: {format_command('pip install "hedgerow[plots]"')})"""
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
        console.print(Text(f"  {format_command(' '.join(words))}"), soft_wrap=True)
    console.print()


_PUBLIC = (
    "These rows are public. Of private rows such counts and scores are exact, and no guarantee covers them: `hedgerow "
    "evaluate --federated` measures with noise."
)


def _content(result: _Result) -> dict[str, Any]:
    return {
        "note": _PUBLIC,
        "sites": {name: site.n_records for name, site in result.sites.items()},
        "test": result.scores,
        "compared": {name: float(number(area, 6)) for name, area in result.others.items()},
        "files": {name: str(path) for name, path in result.files.items()},
        "report": result.model.report.to_dict(),
    }


def compare(plan: Plan, sites: Sites, data: SiteFiles, arguments: argparse.Namespace) -> dict[str, float]:
    """Test AUC of models that promise less, or nothing, by what they are."""

    def area(title: str, sites: Sites, **privacy: Any) -> float:
        # Masks would change no tree.
        own = without_secure_aggregation(replace(plan, privacy=replace(plan.privacy, **privacy)))
        noise, n_threads = SystemNoise(os.urandom), arguments.threads
        model = train_with_progress(own, sites, noise, n_threads=n_threads, quiet=arguments.json, title=title)
        return evaluate(model, read_records(data.test, plan, with_unit=False))["auc"]

    row: dict[str, Any] = {"unit": "record", "max_rows_per_unit": 1}
    bounded = _bound_rows(data, replace(plan, privacy=replace(plan.privacy, **row)), quiet=True)
    rows = {name: own for name, (own, _) in bounded.items()}
    areas = {
        "private for a row, not a person": area("Private for a row", rows, **row),
        "the same trees without privacy": area("Without privacy", sites, epsilon=float("inf")),
    }
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
