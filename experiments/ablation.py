"""What each part of the default earns: the default less the default without it, on the same splits, noise and trees.

A part is turned off by a field of the plan or of its settings where there is one, and else by replacing one function or
constant of the package while a run lasts. Noise is calibrated anew, so every run keeps the same promise.

Natural sets count for a kind of labels as their mean over sets and epsilons. A made set counts alone, since its
structure is what the part is for. A part earns its place by .002, or two paired standard errors if those are more, on
the natural sets, or by .01 on a made set.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import d2_tweedie_score, log_loss, r2_score

from experiments import datasets, harness, survival
from experiments.datasets import Table, few, load, made_up, make, make_classes, make_numbers, skewed_numbers
from experiments.harness import Lines, Prepared, error_of, plan_for, stratified_split
from experiments.utility import TASKS as UTILITY
from hedgerow.client.node import Node
from hedgerow.losses.censored import concordance, integrated_brier_score
from hedgerow.losses.kinds import roc_auc
from hedgerow.losses.survival import survival_codes
from hedgerow.methods.boosting import calibration, program, settings, start
from hedgerow.methods.boosting.schedule import BoostingSettings, weigh_trees
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.release import UNCOUNTED, Outcome, PlainAggregation, run_program
from hedgerow.training import features
from hedgerow.training.candidates import CandidateSource
from hedgerow.training.settings import calibrate_noise
from hedgerow.trees import leaves

Floats = NDArray[np.float64]
EPSILONS = (0.2, 1.0, 3.0)
MIN_EARNED, MIN_EARNED_MADE = 0.002, 0.01
MAX_ROWS, FEW_ROWS = 20_000, 2_000
KINDS = {
    "binary": ("AUC", "share of the deviance explained"),
    "regression": ("R2", "less the share by which the mean is missed"),
    "count": ("share of the Poisson deviance explained", "less the share by which the mean is missed"),
    "multiclass": ("mean AUC of a class against the rest", "share of the deviance explained"),
    "survival": ("concordance", "less the integrated Brier score"),
}
"""By the type of the label: what parts are judged by, and what else is printed."""

# Parts ----------------------------------------------------------------------------------------------------------------

Changes = Mapping[str, Any]
CLASSES, NUMBERS = ("binary", "multiclass"), ("regression", "count")


@dataclass(frozen=True, eq=False)
class Part:
    """How a part is turned off, or a constant changed.

    Attributes:
        kinds: types of labels that have it.
        model: fields of the plan's [model].
        change: other values of settings, by the settings of the default.
        patches: what is replaced while a run lasts: an object, the name of its attribute, and what is there then.
    """

    kinds: tuple[str, ...] = tuple(KINDS)
    model: Changes | None = None
    change: Callable[[BoostingSettings], Changes] | None = None
    patches: tuple[tuple[Any, str, Any], ...] = ()


def _smooth(pools: bool, shrinks: bool) -> tuple[tuple[Any, str, Any], ...]:
    smooth = leaves.smooth_ratios

    def without(g: Any, h: Any, reachable: Any, is_pooled: Any, noise: Any, ridge: Any, shares: Any, mix: Any) -> Any:
        return smooth(g, h, reachable, is_pooled & pools, noise, ridge, shares * shrinks, mix)

    return ((leaves, "smooth_ratios", without),)


def _even_turns(order: Any, released: Any, ridge: float) -> None:
    """In place of `_AdaptiveOrder.learn`: single features take turns, and subsets are tried once."""
    for number in order._latest:
        order._note_root(number, float(len(order._subsets[number]) == 1))


def _fixed(**values: Any) -> Callable[[BoostingSettings], Changes]:
    return lambda _: values


def _times(**factors: float) -> Callable[[BoostingSettings], Changes]:
    def changed(own: BoostingSettings) -> Changes:
        values = {name: getattr(own, name) for name in factors}
        return {
            name: type(value)(round(value * factors[name]) if isinstance(value, int) else value * factors[name])
            for name, value in values.items()
            if value
        }

    return changed


_USUAL_CLIP = _fixed(joint_clip=0.25, hessian_scale=None)
PARTS: Mapping[str, Part] = {
    "start": Part(("regression", "survival"), model={"start": "none"}),
    "start: level of counts": Part(("count",), change=_fixed(start="none", start_share=0.0)),
    "start: its linear model": Part(
        ("regression",), change=lambda own: {"start": "mean", "start_share": own.start_share * 0.15}
    ),
    "doubled residuals": Part(NUMBERS, patches=((start, "choose_doublings", lambda *_: 0),)),
    "calibration": Part(
        ("binary", "regression", "count", "survival"), change=_fixed(calibration="none", calibration_share=0.0)
    ),
    "calibration cut less": Part(("regression",), patches=((calibration, "reduce_for_line", lambda own: own),)),
    # As if distances were spread over all of their range.
    "calibration: spread": Part(("regression",), patches=((calibration, "MAX_DOUBLED", 2.0),)),
    "pooling": Part(patches=_smooth(pools=False, shrinks=True)),
    "James-Stein": Part(patches=_smooth(pools=True, shrinks=False)),
    "pooling and James-Stein": Part(patches=_smooth(pools=False, shrinks=False)),
    "expected values": Part(("binary", *NUMBERS), change=_fixed(shape_rate=0.0, subset_rate=0.0, subset_levels=0)),
    "expected values of triples": Part(("binary",), change=_fixed(subset_rate=0.0, subset_levels=0)),
    "central splits": Part(("binary", *NUMBERS), change=_fixed(central_subsets=False)),
    "joint clip": Part(model={"joint_clip": "none"}),
    "noise ridge": Part(change=lambda own: {"noise_ridge": 0.0, "learning_rate": min(0.25, own.learning_rate)}),
    "interactions": Part(change=_fixed(interaction_size=1)),
    "turns by gain": Part(patches=((features._AdaptiveOrder, "learn", _even_turns),)),
    "candidates by releases": Part(patches=((CandidateSource, "take_leaves", lambda *_: None),)),
    "cells cut again": Part(CLASSES, patches=((CandidateSource, "find_crowded", lambda _: []),)),
    "little signal": Part(
        ("binary",), patches=((settings, "_with_little_signal", lambda _plan, _signal, rule: rule),)
    ),
    "filter of classes": Part(("multiclass",), patches=((program, "ClassCovariance", lambda *_: None),)),
    "filter by feature": Part(
        ("multiclass",),
        patches=((program, "ClassCovariance", lambda n_classes, _: leaves.ClassCovariance(n_classes, False)),),
    ),
    "long exploring": Part(("regression",), change=_fixed(interaction_share=0.5)),
    "deeper trees": Part(("regression",), change=_fixed(max_depth=4)),
    "own clip": Part(("regression", "count", "multiclass"), change=_USUAL_CLIP),
    "own trees": Part(
        ("regression",),
        patches=(
            (settings, "COLUMNS", {label: {name: value for name, value in own.items() if name != "n_trees"}
                                   for label, own in settings.COLUMNS.items()}),
        ),
    ),
    "own James-Stein": Part(("regression", "survival"), change=_fixed(shrinkage=0.4)),
    "own rate": Part(("multiclass", "count"), change=_fixed(learning_rate=0.25)),
    "own ridge": Part(
        ("count", "survival"), change=lambda own: {"noise_ridge": 8.0 if own.start == "level" else 1.5}
    ),
    "own ridge and James-Stein": Part(("survival",), change=_fixed(noise_ridge=1.5, shrinkage=0.4)),
    "own rate of expected values": Part(
        ("binary",), change=lambda own: {"shape_rate": 0.5 if own.shape_rate else 0.0}
    ),
}  # fmt: skip
"""A part of which only one kind of labels has its own value is replaced by what is usual."""


_RATES = ("learning_rate", "shape_rate", "subset_rate")
CONSTANTS: Mapping[str, Part] = {
    "half the trees": Part(change=_times(n_trees=0.5)),
    "twice the trees": Part(change=_times(n_trees=2)),
    "a level less": Part(change=lambda own: {"max_depth": own.max_depth - 1}),
    "a level more": Part(change=lambda own: {"max_depth": own.max_depth + 1}),
    "rate x 1/2": Part(change=_times(**dict.fromkeys(_RATES, 0.5))),
    "rate x 3/2": Part(change=_times(**dict.fromkeys(_RATES, 1.5))),
    "noise ridge x 1/2": Part(change=_times(noise_ridge=0.5)),
    "noise ridge x 2": Part(change=_times(noise_ridge=2)),
    "clip x 1/2": Part(change=_times(joint_clip=0.5)),
    "clip x 2": Part(change=_times(joint_clip=2)),
    "c x 1/2": Part(("regression", "count", "multiclass", "survival"), change=_times(hessian_scale=0.5)),
    "c x 2": Part(("regression", "count", "multiclass", "survival"), change=_times(hessian_scale=2)),
    "start x 1/2": Part((*NUMBERS, "survival"), change=_times(start_share=0.5)),
    "start x 1.5": Part(("regression", "count"), change=_times(start_share=1.5)),
    "calibration x 2": Part(("binary", *NUMBERS, "survival"), change=_times(calibration_share=2)),
    "all of James-Stein": Part(("binary", "count", "multiclass"), change=_fixed(shrinkage=1.0)),
    "exploring in 1/4": Part(change=_fixed(interaction_share=0.25)),
    "even share 0": Part(patches=((features, "EVEN_SHARE", 0.0),)),
    "even share .3": Part(patches=((features, "EVEN_SHARE", 0.3),)),
    "leaf clip 4": Part(model={"leaf_clip": 4.0}),
    "16 candidates": Part(model={"n_candidates": 16}),
}
DEFAULT = "default"


@contextmanager
def _replaced(patches: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    before = [getattr(where, name) for where, name, _ in patches]
    try:
        for where, name, value in patches:
            setattr(where, name, value)
        yield
    finally:
        for (where, name, _), value in zip(patches, before, strict=True):
            setattr(where, name, value)


def _settings(plan: Plan, part: Part) -> BoostingSettings:
    own = resolve(plan)
    assert isinstance(own, BoostingSettings)
    changes = part.change(own) if part.change else {}
    if all(getattr(own, name) == value for name, value in changes.items()):
        return own
    changed = replace(own, **changes)
    weight = weigh_trees(plan, changed) / (1 - changed.start_share - changed.calibration_share)
    return replace(changed, noise_multiplier=calibrate_noise(plan, changed, weight))


# Tasks ----------------------------------------------------------------------------------------------------------------

T = TypeVar("T")
Load = Callable[[str | None], Prepared | survival.Cohort]
"""Of the folder with the data sets."""


def _cut(load_it: Callable[[str | None], Table], most: int = MAX_ROWS) -> Load:
    return lambda folder: Prepared(few(load_it(folder), most))


def _made_by(maker: Callable[[Any], T], setting: Any) -> Callable[[str | None], T]:
    return lambda _: maker(setting)


def _counts_of(name: str) -> Table:
    """Poisson draws about the exponential of half the log-odds of a synthetic task."""
    x, log_odds, random = datasets._features_and_log_odds(name, MAX_ROWS)
    drawn = np.minimum(random.poisson(np.exp(np.minimum(log_odds / 2, 3))), 60)
    return made_up(f"{name}, counts", x, drawn.astype(np.float64), 4, {"name": "y", "type": "count", "max": 60})


def _visits(folder: str | None) -> Table:
    table = load("visits", folder)
    return replace(table, label_section={"name": "docvis", "type": "count", "max": 121})


def _rare_levels(kind: str) -> Table:
    """Eighty categories, the commonest of a tenth of the records and the rarest of one in 600, and three numbers."""
    random = np.random.default_rng(80)
    shares = 1 / np.arange(1, 81) ** 0.8
    level = random.choice(80, MAX_ROWS, p=shares / shares.sum())
    x = random.normal(size=(MAX_ROWS, 3)).clip(-4, 4)
    log_odds = 1.2 * random.normal(size=80)[level] + 0.7 * x[:, 0] - 0.5 * x[:, 1] ** 2
    named = [datasets.number(f"x{place}", -4, 4) for place in range(3)]
    columns = (level.astype(np.int16), *x.T.astype(np.float32))
    own = (datasets.category("level", " ".join(f"k{place}" for place in range(80))), *named)
    label: NDArray[Any] = (random.random(MAX_ROWS) < 1 / (1 + np.exp(-log_odds))).astype(np.int64)
    section: dict[str, Any] = datasets.BINARY
    if kind == "regression":
        section = {"name": "y", "type": "regression", "min": -12.0, "max": 12.0}
        label = np.clip(log_odds + random.normal(size=MAX_ROWS), -12, 12)
    if kind == "count":
        section = {"name": "y", "type": "count", "max": 60}
        label = np.minimum(random.poisson(np.exp(np.minimum(log_odds / 2, 3))), 60).astype(np.float64)
    return Table("rare levels", own, columns, label, section)


def _widened(table: Table) -> Table:
    """With values about 100, in bounds 10,000 times as wide as they are spread, as where nobody knows the unit."""
    wide = tuple(datasets.number(own["name"], -40_000, 40_000) for own in table.features)
    return replace(table, name="wide bounds", features=wide, columns=tuple(own + 100 for own in table.columns))


def _times_of(name: str) -> survival.Cohort:
    """Exponential times whose rates follow a synthetic task, a third of them censored."""
    x, log_odds, random = datasets._features_and_log_odds(name, 10_000)
    rates = np.exp(np.clip(log_odds * 0.7, -3, 3) - 2)
    until, censored = random.exponential(1 / rates), random.exponential(15, len(rates))
    times, events, ends = np.minimum(until, censored), until <= censored, (1.0, 2.0, 4.0, 6.0, 9.0, 12.0)
    label = {"name": "time", "type": "survival", "event": "event", "intervals": list(ends)}
    table = made_up(name, x, np.asarray(survival_codes(times, events, ends), dtype=np.int64), 4, label)
    return survival.Cohort(Prepared(table), times, events, ends, np.empty((len(times), 0)))


NATURAL: Mapping[str, Mapping[str, Load]] = {
    "binary": {
        **{name: _cut(UTILITY[name]) for name in ("adult", "bank", "credit2", "credit1")},
        "thyroid": _cut(partial(load, "thyroid")),
        **{f"{name}, 2,000 rows": _cut(UTILITY[name], FEW_ROWS) for name in ("adult", "bank", "credit2", "credit1")},
    },
    "regression": {
        **{name: _cut(UTILITY[name]) for name in ("bike", "abalone", "diamonds", "age", "hours", "limit", "balance")},
        "nhefs": _cut(partial(load, "nhefs")),
        **{f"{name}, 2,000 rows": _cut(UTILITY[name], FEW_ROWS) for name in ("bike", "diamonds")},
    },
    "count": {
        "visits": _cut(_visits),
        **{name: _cut(UTILITY[name]) for name in ("rentals", "rings", "calls")},
        "visits, 2,000 rows": _cut(_visits, FEW_ROWS),
    },
    "multiclass": {
        name: _cut(UTILITY[name])
        for name in ("marital", "occupation", "education", "bank-marital", "bank-education", "job")
    },
    "survival": {name: _made_by(survival.load, name) for name in ("flchain", "support2", "rhc", "Framingham", "rott2")},
}
MADE: Mapping[str, Mapping[str, Load]] = {
    "binary": {
        **{
            f"made: {name}": _cut(_made_by(make, name))
            for name in ("product", "fifty_features", "mixed", "two_features")
        },
        "made: rare levels": _cut(lambda _: _rare_levels("binary")),
        "made: wide bounds": _cut(lambda _: _widened(make("mixed"))),
    },
    "regression": {
        **{f"made: {name}": _cut(_made_by(make_numbers, name)) for name in ("product", "fifty_features", "mixed")},
        "made: rare levels": _cut(lambda _: _rare_levels("regression")),
        "made: fares": _cut(lambda _: skewed_numbers()),
    },
    "count": {
        **{f"made: {name}": _cut(_made_by(_counts_of, name)) for name in ("product", "fifty_features", "mixed")},
        "made: rare levels": _cut(lambda _: _rare_levels("count")),
    },
    "multiclass": {f"made: {number} classes": _cut(_made_by(make_classes, number)) for number in (3, 14)},
    "survival": {f"made: {name}": _made_by(_times_of, name) for name in ("product", "fifty_features", "mixed")},
}


@functools.cache
def _task(kind: str, name: str, folder: str | None) -> Prepared | survival.Cohort:
    return {**NATURAL[kind], **MADE[kind]}[name](folder)


def _scores(task: Prepared | survival.Cohort, outcome: Outcome, test: NDArray[np.bool_]) -> tuple[float, float]:
    prepared = task if isinstance(task, Prepared) else task.prepared
    ensemble, table = outcome.ensemble, prepared.table
    rows = harness.rows_of(prepared, outcome.plan, test)
    found = harness.scores_of(outcome, rows)
    if isinstance(task, survival.Cohort):
        times, events = task.times[test], task.events[test]
        brier = integrated_brier_score(times, events, ensemble.survival(rows.codes), np.array(task.ends))
        return concordance(times, events, found[0]), -brier
    label = table.label[test]
    if table.kind in ("regression", "count"):
        numbers = ensemble.link.values(found[0], outcome.plan.label)
        fit = r2_score if table.kind == "regression" else partial(d2_tweedie_score, power=1)
        return float(fit(label, numbers)), -abs(float(numbers.mean() / label.mean()) - 1)
    chances = ensemble.link.probabilities(found)
    every = np.arange(chances.shape[1])
    rates = np.bincount(label, minlength=len(every)) / len(label)
    least = log_loss(label, np.tile(rates, (len(label), 1)), labels=every)
    deviance = 1 - log_loss(label, chances, labels=every) / least
    if table.kind == "binary":
        return roc_auc(label, found[0]), float(deviance)
    areas = [roc_auc(label == own, chances[:, own]) for own in every]
    return float(np.nanmean(areas)), float(deviance)


# Runs -----------------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """The default without a part, on one split of a task."""

    kind: str
    task: str
    part: str
    epsilon: float
    split: int


SAME = "as the default"


def _run(run: Run, folder: str | None, code: str) -> dict[str, str]:
    """A line of the CSV: the scores, or that the part has nothing to say there."""
    task = _task(run.kind, run.task, folder)
    prepared = task if isinstance(task, Prepared) else task.prepared
    train = stratified_split(prepared.table.label, run.split)
    part = {DEFAULT: Part(), **PARTS, **CONSTANTS}[run.part]

    def plan_with(model: Changes) -> Plan:
        own = {"structure_seed": run.split, **model}
        return plan_for(prepared.table, run.epsilon, int(train.sum()), own)

    plan, usual = plan_with(part.model or {}), resolve(plan_with({}))
    with _replaced(part.patches):
        decided = _settings(plan, part)
        places = {where for where, *_ in part.patches}
        if run.part != DEFAULT and not part.model and decided == usual and places <= {settings}:
            scores = SAME
        else:
            data, noise = harness.rows_of(prepared, plan, train), SeededNoise(run.split, exact=False)
            node = Node("one", data, plan, decided)
            outcome = run_program(plan, program_for(plan, decided), PlainAggregation([node]), noise, UNCOUNTED)
            scores = " ".join(map(repr, _scores(task, outcome, ~train)))
    return {**{name: str(value) for name, value in run._asdict().items()}, "code": code, "scores": scores}


Found = dict[tuple[str, str, str, float], dict[int, tuple[float, float]]]
"""By kind, task, part and epsilon: scores by split."""


def main(argv: list[str]) -> int:
    """Run what is not in the CSV, and print what each part earns."""
    parser = harness.arguments(
        "ablation", __doc__, out="the scores of single runs", splits=(5, "paired splits per cell"),
        first_split=(0, "number of the first split"), most_splits=(0, "so many where it is close; 0 for no more"),
    )  # fmt: skip
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS), metavar="KIND")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=[*PARTS, *CONSTANTS], metavar="PART")
    parser.add_argument("--sets", nargs="+", metavar="SET", help="only these")
    parser.add_argument("--constants", action="store_true", help="change constants in place of turning parts off")
    parser.add_argument("--print", action="store_true", help="only print what the CSV holds already")
    options = parser.parse_args(argv)
    parts = {name: {**PARTS, **CONSTANTS}[name] for name in (CONSTANTS if options.constants else options.parts)}
    code = harness.code_digest("ablation.py", "survival.py")
    book = Lines(options.out / "ablation_scores.csv")
    fields = {name: partial(lambda name, run: str(getattr(run, name)), name) for name in Run._fields}

    def fill(kind: str, task: str, own: Sequence[str], splits: range) -> None:
        wanted = [
            Run(kind, task, part, epsilon, split)
            for part in (DEFAULT, *own) for epsilon in EPSILONS for split in splits
        ]  # fmt: skip
        book.fill(wanted, fields, partial(_run, folder=options.data, code=code), task,
                  accepts=lambda line: line["code"] == code)  # fmt: skip

    if not options.print:
        every = range(options.first_split, options.first_split + max(options.splits, options.most_splits))
        at_first = every[: options.splits]
        for splits in (at_first[:2], at_first[2:]):
            for kind, task in _queue(options.kinds):
                if options.sets and task not in options.sets:
                    continue
                fill(kind, task, [name for name, part in parts.items() if kind in part.kinds], splits)
        for kind in options.kinds if options.most_splits > options.splits else ():
            found = _read(book, code)
            close = [name for name, part in parts.items() if kind in part.kinds and _is_close(found, kind, name)]
            for task in NATURAL[kind]:
                fill(kind, task, close, every[options.splits :])
    found = _read(book, code)
    for kind in options.kinds:
        print("\n".join(_report(found, kind, [name for name, part in parts.items() if kind in part.kinds])), flush=True)
    return 0


def _queue(kinds: Sequence[str]) -> list[tuple[str, str]]:
    """Tasks of all kinds in turn, natural ones first."""
    queue: list[tuple[str, str]] = []
    for sets in (NATURAL, MADE):
        rest = {kind: list(sets[kind]) for kind in kinds}
        while any(rest.values()):
            queue += [(kind, rest[kind].pop(0)) for kind in kinds if rest[kind]]
    return queue


def _read(book: Lines, code: str) -> Found:
    found: Found = defaultdict(dict)
    lines = [line for line in book.read() if line["code"] == code]
    for line in sorted(lines, key=lambda line: line["part"] != DEFAULT):
        kind, task, epsilon, split = line["kind"], line["task"], float(line["epsilon"]), int(line["split"])
        if line["scores"] == SAME:
            scores = found[kind, task, DEFAULT, epsilon].get(split)
        else:
            first, second = map(float, line["scores"].split())
            scores = first, second
        if scores is not None:
            found[kind, task, line["part"], epsilon][split] = scores
    return found


def _earned(
    found: Found, kind: str, tasks: Sequence[str], part: str, which: int = 0, epsilons: Sequence[float] = EPSILONS
) -> tuple[float, float, int]:
    """What a part earns as a mean over tasks and epsilons, its standard error, and the fewest splits."""
    means, errors, fewest = [], [], 10**6
    for task in tasks:
        for epsilon in epsilons:
            default, own = found.get((kind, task, DEFAULT, epsilon), {}), found.get((kind, task, part, epsilon), {})
            shared = sorted(default.keys() & own.keys())
            if not shared:
                continue
            gains = np.array([default[split][which] - own[split][which] for split in shared])
            means.append(float(gains.mean()))
            errors.append(error_of(gains))
            fewest = min(fewest, len(shared))
    if not means:
        return math.nan, math.nan, 0
    return float(np.mean(means)), math.sqrt(math.fsum(error * error for error in errors)) / len(means), fewest


def _is_close(found: Found, kind: str, part: str) -> bool:
    mean, error, _ = _earned(found, kind, list(NATURAL[kind]), part)
    return abs(mean - MIN_EARNED) < 2 * error


def _report(found: Found, kind: str, parts: Sequence[str]) -> list[str]:
    first, second = KINDS[kind]
    natural, made = list(NATURAL[kind]), list(MADE[kind])
    rows, single = [], []
    for part in parts:
        mean, error, _ = _earned(found, kind, natural, part)
        n_splits = _earned(found, kind, [*natural, *made], part)[2]
        if not n_splits:
            continue
        cells = [_cell(*_earned(found, kind, natural, part, 0, [epsilon])[:2]) for epsilon in EPSILONS]
        earned = {task: _earned(found, kind, [task], part)[:2] for task in (*natural, *made)}
        where = max(made, key=lambda task: -math.inf if math.isnan(earned[task][0]) else earned[task][0])
        most = earned[where][0]
        best = "" if math.isnan(most) else f"{_cell(*earned[where])} {where.removeprefix('made: ')}"
        other, doubt, _ = _earned(found, kind, natural, part, 1)
        measured = [task for task in natural if found.get((kind, task, part, EPSILONS[0]))]
        stays = mean >= max(MIN_EARNED, 2 * error) or most >= MIN_EARNED_MADE
        remark = "" if stays or part in CONSTANTS else "earns less than asked"
        remark = remark if len(measured) == len(natural) else f"{len(measured)} of {len(natural)} natural sets"
        rows.append([part, *cells, _cell(mean, error), _cell(other, doubt), best, str(n_splits), remark])
        single.append([part, *(_short(*own) for own in earned.values())])
        single.append([second, *(_short(*_earned(found, kind, [task], part, 1)[:2]) for task in earned)])
    at = [f"epsilon {epsilon:g}" for epsilon in EPSILONS]
    head = ["less", *at, "all natural sets", second, "most on a made set", "splits", ""]
    title = f"# {kind}: what parts earn in {first}, the default less the default without it"
    levels = [
        [name, *(" ".join(f"{mean:.4f}" for mean in np.mean(list(own.values()), axis=0))
                 if (own := found.get((kind, name, DEFAULT, epsilon))) else "" for epsilon in EPSILONS)]
        for name in (*natural, *made)
    ]  # fmt: skip
    return [title, "", *harness.table(head, rows), "", "The default itself", "",
            *harness.table(["set", *at], levels), "",
            "Set by set, in ten-thousandths, means over the epsilons", "",
            *harness.table(["less", *natural, *made], single), ""]  # fmt: skip


def _cell(mean: float, error: float) -> str:
    return "" if math.isnan(mean) else f"{mean:+.4f} ± {error:.4f}"


def _short(mean: float, error: float) -> str:
    return "" if math.isnan(mean) else f"{10_000 * mean:+.0f}±{10_000 * error:.0f}"
