"""What is said of a model's accuracy before its run, beside what runs measured: eleven public sets of two classes.

The share of a run is its AUC - 1/2, over that of the default without noise (epsilon infinite) on the same rows; both
are tested on the same other rows. Sets are trained on 1,000, 3,000 and all rows (20,000 at most) at several epsilons,
with noise of the coordinator, of six sites and of records, and in three groups of nine sites. The demonstration is run
with its first three to six sites. Persons have two rows in the demonstration and among the visits.

The curves' constants are fitted to all sets. Each line's range is by those fitted without its own set, which is what a
new set would meet; where that range would be wide, nothing is said. Single runs are kept in a CSV and taken up again.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments import harness
from experiments.datasets import BINARY, BINARY_NAMES, Table, folder_of, load
from experiments.harness import Line, Lines, Prepared, plan_for, rows_of, stratified_split
from hedgerow.app.evaluation import evaluate
from hedgerow.client.node import Node
from hedgerow.client.node_session import WORSE_TREES
from hedgerow.data.binned import SiteData
from hedgerow.data.datasets import write_rand_hie
from hedgerow.data.site_data import bound_sites, read_site_rows
from hedgerow.data.sources import read_records
from hedgerow.data.units import Records
from hedgerow.local.forecast import share_noise_factor
from hedgerow.local.training import train
from hedgerow.losses.kinds import roc_auc
from hedgerow.methods.registry import program_for, resolve
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan, parse_plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.privacy.outlook import order_shares, outlook_of
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.server.release import UNCOUNTED, PlainAggregation, run_program
from hedgerow.trees.binning import build_grid

Floats = NDArray[np.float64]
DELTA, MAX_ROWS, DEMO = 1e-5, 20_000, "demo"
ABOVE = {"abalone": 9.5, "bike": 142.0, "diamonds": 2400.0, "visits": 0.5, "nhefs": 2.0}
"""Sets whose label is a number, and above which number it is the second class."""
SETS = (*BINARY_NAMES, "thyroid", *ABOVE, DEMO)
PERSONS = {"visits": ("rwm5yr.csv.gz", "id")}
"""Sets with several rows of a person: the file, and the column that says whose a row is."""
ROWS_OF_PERSON = 2


class Cell(NamedTuple):
    """One run: the set, how many rows (0 for all), epsilon, who adds the noise, over how many sites and groups."""

    data: str
    rows: int
    epsilon: float
    noise: str
    sites: int
    groups: int
    split: int


class Case(NamedTuple):
    """What a cell trains on, with its plan, and the rows that are tested on."""

    plan: Plan
    sites: Mapping[str, SiteData]
    test: SiteData | list[Records]

    def area(self, epsilon: float, split: int) -> float:
        """The test AUC of one seeded run."""
        plan = replace(self.plan, privacy=replace(self.plan.privacy, epsilon=epsilon))
        if math.isinf(epsilon):
            server = replace(plan.privacy, noise="server")
            plan = replace(plan, privacy=server, federation=replace(plan.federation, groups=0))
        if plan.privacy.noise != "distributed":
            plan = replace(plan, federation=replace(plan.federation, secure_aggregation=False))
        own = plan.with_structure_seed(split)
        return self._test(train(own, self.sites, noise=SeededNoise(split, exact=False)))

    def _test(self, model: Model) -> float:
        if not isinstance(self.test, SiteData):
            return evaluate(model, self.test)["auc"]
        codes = self.test.codes_in(build_grid(model.plan), model.ensemble.grid.new_edges)
        return roc_auc(self.test.labels == 1, model.ensemble.scores(codes)[0])


def cells(n_splits: int) -> list[Cell]:
    """All runs, set by set."""
    found = []
    for split in range(n_splits):
        for name in SETS[:-1]:
            for rows in (1_000, 3_000, 0):
                found += [Cell(name, rows, epsilon, "server", 1, 0, split) for epsilon in (0.3, 1.0, 3.0)]
            found += [Cell(name, 0, 1.0, "distributed", 6, 0, split)]
            found += [Cell(name, 0, epsilon, "local", 1, 0, split) for epsilon in (1.0, 4.0)]
            found += [Cell(name, 0, 1.0, "server", 9, 3, split)]
        for sites in (3, 4, 5, 6):
            modes = (("server", (0.5, 1.0, 3.0)), ("distributed", (1.0, 3.0)), ("local", (1.0, 4.0)))
            found += [
                Cell(DEMO, 0, epsilon, noise, sites, 0, split) for noise, epsilons in modes for epsilon in epsilons
            ]
    return sorted(found, key=lambda cell: (SETS.index(cell.data), cell.split))


@functools.lru_cache(maxsize=1)
def _prepared(name: str, folder: str | None) -> Prepared:
    table = load(name, folder)
    if name in ABOVE:
        label = (table.label > ABOVE[name]).astype(np.int64)
        table = replace(table, label=label, label_section={**BINARY, "name": "above"})
    return Prepared(table)


@functools.lru_cache(maxsize=1)
def _person_of_rows(name: str, folder: str | None) -> NDArray[np.int64] | None:
    if name not in PERSONS:
        return None
    file, column = PERSONS[name]
    return np.asarray(pd.read_csv(folder_of(folder) / file, usecols=[column])[column], dtype=np.int64)


def _chosen(table: Table, person: NDArray[np.int64] | None, cell: Cell) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The rows to train on, in random order, and those to test on: other people's."""
    random = np.random.default_rng(cell.split)
    if person is None:
        is_train = stratified_split(table.label, cell.split)
        rows = random.permutation(np.flatnonzero(is_train))
    else:
        distinct, codes = np.unique(person, return_inverse=True)
        is_train = (random.random(len(distinct)) < 0.7)[codes]
        rows = random.permutation(np.flatnonzero(is_train))
        rows = rows[pd.Series(codes[rows]).groupby(codes[rows]).cumcount().to_numpy() < ROWS_OF_PERSON]
    return rows[: cell.rows or MAX_ROWS], ~is_train


@functools.lru_cache(maxsize=4)
def _case(cell: Cell, folder: str | None) -> Case:
    if cell.data == DEMO:
        return _demo_case(cell)
    prepared, person = _prepared(cell.data, folder), _person_of_rows(cell.data, folder)
    rows, is_test = _chosen(prepared.table, person, cell)
    plan = plan_for(prepared.table, 1.0, len(rows), {}, delta=DELTA)
    privacy = replace(plan.privacy, noise=cell.noise)
    if person is not None:
        privacy = replace(privacy, unit=PERSONS[cell.data][1], max_rows_per_unit=ROWS_OF_PERSON)
    federation = replace(plan.federation, groups=cell.groups, min_sites=max(1, cell.sites // max(1, cell.groups)))
    plan = replace(plan, privacy=privacy, federation=federation)
    parts = np.array_split(rows, cell.sites)
    held = prepared.rows_for(plan)
    sites = {f"site-{number}": held.only(part) for number, part in enumerate(parts)}
    return Case(plan, sites, rows_of(prepared, plan, is_test))


def _demo_case(cell: Cell) -> Case:
    with tempfile.TemporaryDirectory() as folder:
        files = write_rand_hie(folder, seed=cell.split)
        plan = parse_plan(files.plan.read_text(encoding="utf-8"))
        first = list(files.train.items())[: cell.sites]
        bounded = bound_sites({name: read_site_rows(path, plan) for name, path in first}, plan)
        sites = {name: rows for name, (rows, _) in bounded.items()}
        n_used = sum(rows.n_records for rows in sites.values())
        privacy = replace(plan.privacy, noise=cell.noise, n_records=n_used)
        federation = replace(plan.federation, min_sites=cell.sites)
        plan = replace(plan, privacy=privacy, federation=federation)
        return Case(plan, sites, list(read_records(files.test, plan)))


@functools.lru_cache(maxsize=64)
def _without_noise(cell: Cell, folder: str | None) -> float:
    return _case(cell, folder).area(math.inf, cell.split)


def _run(cell: Cell, folder: str | None) -> Line:
    case = _case(cell._replace(epsilon=1.0), folder)
    # The trees without noise are the same whoever would have added it.
    sites = cell.sites if cell.data == DEMO else 1
    bare = _without_noise(cell._replace(epsilon=math.inf, noise="server", sites=sites, groups=0), folder)
    used = case.plan.privacy.n_records
    area = case.area(cell.epsilon, cell.split)
    found = {"used": used, "auc": repr(float(area)), "without": repr(float(bare))}
    return {name: str(value) for name, value in (cell._asdict() | found).items()}


# What is said ---------------------------------------------------------------------------------------------------------

QUANTILES = (0.25, 0.5)
MIN_SIGNAL = 500.0
"""Runs with less differ too much for any range, and would bend the curves."""
SLOPES, HALVES = np.arange(6, 31) / 10, np.geomspace(2, 800, 80)
STEPS = (0, 50, 150, 500, 1_000, 1_500, 3_000, math.inf)
"""Signals between which runs are counted."""


class Runs(NamedTuple):
    """All runs: the signal of each, the share that was measured, cut to 0 to 1, and the number of its set."""

    signal: Floats
    share: Floats
    data: NDArray[np.intp]

    def only(self, chosen: NDArray[np.bool_]) -> Runs:
        return Runs(self.signal[chosen], self.share[chosen], self.data[chosen])


def signal_of_line(line: Line) -> float:
    """Return the signal as the package says it, by public numbers alone."""
    cell = {name: int(line[name]) for name in ("used", "sites", "groups")}
    has_persons = line["data"] in {DEMO, *PERSONS}
    privacy = {"unit": "person", "max_rows_per_unit": ROWS_OF_PERSON} if has_persons else {}
    columns = {"features": [{"name": "x", "type": "numeric", "min": 0, "max": 1}], "label": BINARY}
    section = {"epsilon": float(line["epsilon"]), "delta": DELTA, "n_records": cell["used"], "noise": line["noise"]}
    federation = {"groups": cell["groups"], "min_sites": max(1, cell["sites"] // max(1, cell["groups"]))}
    table = {"version": 1, "name": "any", "privacy": section | privacy, "federation": federation, **columns}
    plan = Plan.from_dict(table)
    # In one process no site drops out, and sums have the shares of a cohort without an echo.
    factor = share_noise_factor(cell["sites"], has_echo=False) if line["noise"] == "distributed" else None
    return outlook_of(plan, noise_factor=factor).signal


def fit_curves(runs: Runs) -> list[tuple[float, float]]:
    """Return (h, k) of each quantile's curve: quantile regression, each set with the same weight.

    Source: Koenker and Bassett 1978, "Regression quantiles": the loss is q e for a run above the curve by e, and
    (1 - q) e for one below. The least over a grid, 8 % apart in h and .1 in k, is taken.
    """
    runs = runs.only(runs.signal >= MIN_SIGNAL)
    weight = 1 / np.bincount(runs.data)[runs.data]
    above = runs.share - 1 / (1 + (HALVES[:, None, None] / runs.signal) ** SLOPES[:, None])
    found = []
    for quantile in QUANTILES:
        loss = (weight * np.where(above >= 0, quantile * above, (quantile - 1) * above)).sum(axis=-1)
        half, slope = np.unravel_index(loss.argmin(), loss.shape)
        found.append((round(float(HALVES[half]), 1), float(SLOPES[slope])))
    return found


def ranges_of(runs: Runs, curves: list[tuple[float, float]]) -> tuple[Floats, Floats, Floats]:
    """Return what is said of each run: lower end, middle and upper end; NaN where nothing is said."""
    nothing = (math.nan,) * 3
    low, middle, high = np.array([order_shares(signal, curves) or nothing for signal in runs.signal.tolist()]).T
    return low, middle, high


def main(argv: list[str]) -> int:
    """Run what is not in the CSV; print said against measured, the coverage, and the constants of all sets."""
    parser = harness.arguments(
        "forecast", __doc__, out="the scores of single runs", splits=(2, "random splits per cell"),
    )  # fmt: skip
    options = parser.parse_args(argv)
    fields = {name: functools.partial(_text_of, name) for name in Cell._fields}
    wanted, book = cells(options.splits), Lines(options.out / "forecast.csv")
    lines = book.fill(wanted, fields, functools.partial(_run, folder=options.data), "runs")
    share = np.array([(float(line["auc"]) - 0.5) / (float(line["without"]) - 0.5) for line in lines])
    runs = Runs(
        np.array([signal_of_line(line) for line in lines]), np.clip(share, 0, 1),
        np.array([SETS.index(line["data"]) for line in lines]),
    )  # fmt: skip
    low, middle, high = (np.zeros(len(lines)) for _ in range(3))
    for number in range(len(SETS)):
        own = runs.data == number
        low[own], middle[own], high[own] = ranges_of(runs.only(own), fit_curves(runs.only(~own)))
    # Where nothing is said, ends are NaN, and no run is inside.
    inside, is_said = (low <= runs.share) & (runs.share <= high), ~np.isnan(low)
    _print_cells(wanted, lines, runs, (low, middle, high), inside)
    width = (high - low) / 2
    for title, groups in (
        ("set", [(name, runs.data == number) for number, name in enumerate(SETS)]),
        ("signal", [(f"{low:,.0f} to {high:,.0f}", (low <= runs.signal) & (runs.signal < high))
                    for low, high in pairwise(STEPS)]),
        ("noise", [(noise, np.array([line["noise"] == noise for line in lines]))
                   for noise in ("server", "distributed", "local")]),
    ):  # fmt: skip
        print(f"\n{title:<14} {'runs':>5} {'said':>5}  inside the range of the others  half-width: mean, largest")
        for name, among in groups:
            if (chosen := among & is_said).any():
                share_inside, mean, most = inside[chosen].mean(), width[chosen].mean(), width[chosen].max()
                print(f"{name:<14} {among.sum():>5} {chosen.sum():>5}  "
                      f"{share_inside:>29.0%}  {mean:>16.2f}  {most:.2f}")  # fmt: skip
            elif among.any():
                print(f"{name:<14} {among.sum():>5} {0:>5}  {'nothing is said':>29}")
    print(f"\nAll: {inside[is_said].mean():.1%} of {is_said.sum():,} runs lie inside the range that the other sets "
          f"give. Of {(~is_said).sum():,} runs nothing is said: they differ too much.")  # fmt: skip
    curves = fit_curves(runs)
    print("Curves of all sets, share = 1 / (1 + (h / s) ** k):")
    for name, (half, slope) in zip(("lower", "median"), curves, strict=True):
        print(f"  {name:<9} h = {half:6.1f}, k = {slope:.1f}")
    own = np.array(ranges_of(runs, curves))
    is_said, inside = ~np.isnan(own[0]), (own[0] <= runs.share) & (runs.share <= own[2])
    print(f"By these curves: {inside[is_said].mean():.1%} of {is_said.sum():,} runs inside, from s = "
          f"{runs.signal[is_said].min():,.0f} on.")  # fmt: skip
    return 0


def _text_of(name: str, cell: Cell) -> str:
    return str(getattr(cell, name))


def _print_cells(
    wanted: list[Cell], lines: list[Line], runs: Runs, said: tuple[Floats, Floats, Floats], inside: NDArray[np.bool_]
) -> None:
    """Print a line for each kind of run, over its splits."""
    kinds: dict[Cell, list[int]] = {}
    for place, cell in enumerate(wanted):
        kinds.setdefault(cell._replace(split=0), []).append(place)
    print(f"{'set':<9} {'rows':>6} {'epsilon':>7} {'noise':<12} {'sites':>5} {'groups':>6} {'s':>6}  "
          f"{'AUC':>5} {'bare':>5}  measured: mean, range   said: typical, range  inside")  # fmt: skip
    for cell, places in kinds.items():
        auc, bare = (np.mean([float(lines[place][name]) for place in places]) for name in ("auc", "without"))
        rows = np.mean([int(lines[place]["used"]) for place in places])
        share = runs.share[places]
        low, middle, high = (part[places].mean() for part in said)
        forecast = "nothing" if math.isnan(low) else f"{middle:>11.2f}  {low:.2f} to {high:.2f}"
        print(f"{cell.data:<9} {rows:>6,.0f} {cell.epsilon:>7g} {cell.noise:<12} {cell.sites:>5} {cell.groups:>6} "
              f"{runs.signal[places].mean():>6,.0f}  {auc:>5.3f} {bare:>5.3f}  "
              f"{share.mean():>8.2f}  {share.min():.2f} to {share.max():.2f}  "
              f"{forecast:<25}  {f'{inside[places].sum()} of {len(places)}' * (not math.isnan(low))}")  # fmt: skip


# Sites that a model fails at ------------------------------------------------------------------------------------------

SITE_STEPS = (0, 50, 100, 200, 300, 500, 700, 1_000, 2_000, math.inf)


class _Watched:
    """A node that notes for how many trees in a row the model was worse at its rows than a constant."""

    def __init__(self, node: Node) -> None:
        self._node, self.site, self.most = node, node.site, 0

    def answer(self, query: Query) -> IntVector:
        answered = self._node.answer(query)
        self.most = max(self.most, self._node.n_worse)
        return answered


def main_forecast_sites(argv: list[str]) -> int:
    """How often honest sites find that a model fails at their rows, by signal: where that says nothing of other sites.

    The sets over three sites of like rows, and the demonstration's own first three to six. An owner would be told after
    `WORSE_TREES` trees in a row.
    """
    options = harness.options_of(argv, main_forecast_sites, splits=(1, "random splits per cell"))
    found = []
    print(f"{'set':<9} {'rows':>6} {'epsilon':>7} {'sites':>5} {'s':>6}  trees in a row  sites told")
    for split in range(options.splits):
        for name in SETS:
            usual = [(rows, 3) for rows in (1_000, 3_000, 0)]
            sizes = [(0, sites) for sites in (3, 4, 5, 6)] if name == DEMO else usual
            for (rows, n_sites), epsilon in product(sizes, (0.3, 1.0, 3.0)):
                case = _case(Cell(name, rows, 1.0, "server", n_sites, 0, split), options.data)
                plan = replace(case.plan, privacy=replace(case.plan.privacy, epsilon=epsilon))
                plan = replace(plan, federation=replace(plan.federation, secure_aggregation=False))
                most, signal = _watch(plan.with_structure_seed(split), case.sites, split), outlook_of(plan).signal
                told = sum(number >= WORSE_TREES for number in most)
                found.append((signal, told))
                print(f"{name:<9} {plan.privacy.n_records:>6,} {epsilon:>7g} {n_sites:>5} {signal:>6,.0f}  "
                      f"{max(most):>14}  {told}", flush=True)  # fmt: skip
    print(f"\n{'s':>16}  {'runs':>5}  runs with an owner who would be told")
    for low, high in pairwise(SITE_STEPS):
        own = [told for signal, told in found if low <= signal < high]
        print(f"{low:>6,.0f} to {high:>6,.0f}  {len(own):>5}  {sum(told > 0 for told in own)}")
    return 0


def _watch(plan: Plan, sites: Mapping[str, SiteData], seed: int) -> list[int]:
    settings = resolve(plan)
    nodes = [_Watched(Node(name, rows, plan, settings)) for name, rows in sites.items()]
    run_program(plan, program_for(plan, settings), PlainAggregation(nodes), SeededNoise(seed, exact=False), UNCOUNTED)
    return [node.most for node in nodes]
