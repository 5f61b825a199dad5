"""What experiments share: arguments, splits, plans, seeded runs in process, scores that are kept, tables, pictures."""

from __future__ import annotations

import argparse
import csv
import functools
import hashlib
import multiprocessing
import sys
import time
import tomllib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import r2_score, roc_auc_score

import hedgerow
from experiments import ENDING
from experiments.datasets import Table
from hedgerow.client.budget import BOOK
from hedgerow.client.node import Node, SamplingSource, SeededSampling
from hedgerow.data.binned import HeldValues, SiteData
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource, SeededNoise
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.server.release import UNCOUNTED, Outcome, PlainAggregation, run_program
from hedgerow.trees.binning import build_grid, cuts_again

HERE = Path(__file__).resolve().parent
CODE = (
    "trees", "losses", "methods", "training", "privacy", "client/node.py", "server/release.py", "datasets.py",
    "harness.py",
)  # fmt: skip
"""What decides a result: rooms of the package, and files here."""
CCS22_RECIPE: dict[str, Any] = {
    "split_candidates": "iterative_hessian", "candidate_rounds": 5, "n_trees": 100, "max_depth": 4, "n_candidates": 32,
    "interaction": "cyclical", "interaction_size": 1, "batch_size": 1, "learning_rate": 0.3, "leaf_ridge": 1.0,
    "noise_ridge": 0.0, "leaf_clip": 2.0, "joint_clip": "none", "hessian_scale": 1.0,
}  # fmt: skip
"""TR Newton IH EBM of Maddock et al., CCS'22, as a plan of ours (accountant "rdp")."""


T = TypeVar("T")
Line = dict[str, str]
Number = tuple[float, float]
"""A published value, and its standard deviation (0 where none is published)."""


class Arguments(argparse.ArgumentParser):
    """Options of an experiment, whose output folder keeps the budget book of its runs until it ends."""

    def parse_args(self, *given: Any, **named: Any) -> argparse.Namespace:  # type: ignore[override]
        """Read the options; the account of `hedgerow.budget` is then the folder's."""
        options: argparse.Namespace = super().parse_args(*given, **named)
        if ENDING and "out" in options:
            options.out.mkdir(parents=True, exist_ok=True)
            ENDING[-1].enter_context(hedgerow.budget(book=options.out / BOOK))
        return options


def arguments(
    name: str, about: str | None, *, data: str = "folder with the data sets", out: str = "", **counts: tuple[int, str]
) -> Arguments:
    """The options that experiments have in common.

    Args:
        data: what `--data` means.
        out: what `--out` is the folder for; "" for an experiment that writes no files.
        counts: options that are whole numbers, each with its default and its help.
    """
    parser = Arguments(prog=f"python -m experiments {name}", description=about)
    parser.add_argument("--data", help=data)
    for option, (default, text) in counts.items():
        flag = f"--{option.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=default, help=f"{text} (default {default:,})")
    if out:
        parser.add_argument("--out", type=Path, default=Path("results"), help=f"folder for {out} (default results)")
    return parser


def options_of(argv: list[str], main: Callable[[list[str]], int], **named: Any) -> argparse.Namespace:
    """What a command line says to a `main_NAME` that has only the options of `arguments`."""
    return arguments(main.__name__.removeprefix("main_"), main.__doc__, **named).parse_args(argv)


def settings_of(name: str) -> dict[str, Any]:
    """What `settings/NAME.toml` holds."""
    return tomllib.loads((HERE / "settings" / f"{name}.toml").read_text(encoding="utf-8"))


@functools.cache
def published(table: str, file: str = "others") -> Mapping[str, Mapping[str, Number]]:
    """What a paper prints, by row and column of one of its tables; from `published/FILE.csv`."""
    found: dict[str, dict[str, Number]] = {}
    with (HERE / "published" / f"{file}.csv").open(newline="", encoding="utf-8") as stream:
        for line in csv.DictReader(stream):
            if line["table"] == table:
                number = float(line["value"]), float(line["deviation"] or 0)
                found.setdefault(line["row"], {})[line["column"]] = number
    return found


@dataclass
class Prepared:
    """A data set whose rows have been binned once for each kind of grid."""

    table: Table
    rows: dict[str, SiteData] = field(default_factory=dict)

    def rows_for(self, plan: Plan) -> SiteData:
        """All rows as a node holds them."""
        model = plan.model
        key = f"{model.split_candidates}/{model.n_candidates}/{model.candidate_rounds}/{cuts_again(plan)}"
        if key not in self.rows:
            grid, columns = build_grid(plan), self.table.columns
            held = HeldValues(grid, columns.__getitem__)
            self.rows[key] = SiteData(grid.encode(columns), labels_of(self.table), held)
        return self.rows[key]


def stratified_split(label: NDArray[Any], seed: int, share: float = 0.7) -> NDArray[np.bool_]:
    """True for the rows of the training part; class shares are kept (plain random for a regression)."""
    random = np.random.default_rng(1000 + seed)
    chosen = np.zeros(len(label), dtype=bool)
    groups = [np.arange(len(label))]
    if label.dtype.kind == "i":
        groups = [np.flatnonzero(label == value) for value in np.unique(label)]
    for rows in groups:
        chosen[random.permutation(rows)[: round(share * len(rows))]] = True
    return chosen


def plan_for(table: Table, promised: float, n_train: int, model: Mapping[str, Any], **privacy: Any) -> Plan:
    """A plan over a table's schema, for the promised epsilon; delta = 1 / n_train, as the papers have it."""
    section = {"epsilon": promised, "delta": 1 / n_train, "n_records": n_train, **privacy}
    return Plan.from_dict(
        {
            "version": 1,
            "name": table.name,
            "privacy": section,
            "label": table.label_section,
            "features": list(table.features),
            "model": dict(model),
        }
    )


def algorithm_plan(
    table: Table, epsilon: float, n_train: int, algorithm: str, own: Mapping[str, Any], **privacy: Any
) -> Plan:
    """As `plan_for`, for another algorithm than boosted trees; `own` is its section, `own["model"]` more of [model]."""
    section = {name: value for name, value in own.items() if name != "model"}
    content = plan_for(table, epsilon, n_train, {}).to_dict()
    model = {"algorithm": algorithm, **own.get("model", {})}
    promise = {**content["privacy"], **privacy}
    return Plan.from_dict({**content, "privacy": promise, "model": model, algorithm.replace("-", "_"): section})


def labels_of(table: Table) -> NDArray[np.int32]:
    """Labels as nodes hold them."""
    if table.kind not in ("regression", "count"):
        return np.asarray(table.label, dtype=np.int32)
    low, high = table.label_section.get("min", 0), table.label_section["max"]
    scaled = np.clip((table.label - low) / (high - low) * 2 - 1, -1, 1)
    return np.asarray(np.rint(scaled * SCORE_UNIT), dtype=np.int32)


def run_plainly(
    plan: Plan,
    data: SiteData,
    noise: NoiseSource,
    *,
    node_noise: NoiseSource | None = None,
    sampling: SamplingSource | None = None,
    n_threads: int = 1,
) -> Outcome:
    """Train over one site that holds all rows, its sums in the clear.

    Args:
        node_noise: what the node draws from, where the plan has it add noise.
        sampling: what the node draws its samples from; the operating system unless given.
    """
    settings = resolve(plan)
    node = Node("one", data, plan, settings, n_threads, sampling=sampling, noise=node_noise)
    return run_program(plan, program_for(plan, settings), PlainAggregation([node]), noise, UNCOUNTED)


def carried_out(program: Generator[Query, IntVector, T], release: Callable[[Query], IntVector]) -> T:
    """The result of a program that is given what `release` makes of its queries; nothing looks whether that may be."""
    try:
        query = next(program)
        while True:
            query = program.send(release(query))
    except StopIteration as finished:
        result: T = finished.value
        return result


def rows_of(prepared: Prepared, plan: Plan, chosen: NDArray[np.bool_]) -> SiteData:
    """Some rows as a node holds them."""
    return prepared.rows_for(plan).only(chosen)


def scores_of(outcome: Outcome, rows: SiteData) -> NDArray[np.float64]:
    """The model's scores of rows: float64 [n_outputs, n]."""
    return outcome.ensemble.scores(rows.codes_in(build_grid(outcome.plan), outcome.ensemble.grid.new_edges))


def trained(prepared: Prepared, plan: Plan, train: NDArray[np.bool_], seed: int) -> Outcome:
    """The outcome of one seeded run on these rows."""
    data, noise = rows_of(prepared, plan, train), SeededNoise(seed, exact=False)
    # Samples from the operating system would make every run of an experiment another one.
    sampling = SeededSampling(seed, np.arange(data.n_records))
    return run_plainly(plan, data, noise, node_noise=noise, sampling=sampling)


def train_and_score(prepared: Prepared, plan: Plan, train: NDArray[np.bool_], seed: int) -> tuple[float, Outcome]:
    """One seeded run, tested on all other rows: the AUC (R2 for a regression), and the run's outcome."""
    labels, scores, outcome = held_out_scores(prepared, plan, train, seed, ~train)
    return auc_or_r2(prepared.table, labels, scores), outcome


def held_out_scores(
    prepared: Prepared, plan: Plan, train: NDArray[np.bool_], seed: int, tested: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64], Outcome]:
    """One seeded run: labels of the test part (in a regression scaled to [-1, 1]), its scores, the outcome."""
    outcome, test = trained(prepared, plan, train, seed), rows_of(prepared, plan, tested)
    scores = scores_of(outcome, test)[0]
    return test.labels / (SCORE_UNIT if prepared.table.is_regression else 1), scores, outcome


MakePlan = Callable[[Table, int, int], Plan]
"""A plan for a table, with so many training rows, and this seed."""
Measure = Callable[[Table, NDArray[np.float64], NDArray[np.float64]], Any]
"""What is measured on a table's test part, of its labels and their scores."""


def auc_or_r2(table: Table, labels: NDArray[np.float64], scores: NDArray[np.float64]) -> float:
    """The test AUC, R2 for a regression."""
    return float((r2_score if table.is_regression else roc_auc_score)(labels, scores))


def over_splits(
    prepared: Prepared, make: MakePlan, seeds: range, measure: Measure = auc_or_r2, book: ScoreBook | None = None, *,
    share: float = 0.7, most: int = 0,
) -> NDArray[np.float64]:  # fmt: skip
    """What is measured over random splits: float64 [len(seeds), ...]; single numbers if a book keeps them.

    Args:
        share: of the rows, for training.
        most: train on so many of them, drawn at random, and test on the same rows; 0 for all of them.
    """
    found = []
    for seed in seeds:
        tested = ~stratified_split(prepared.table.label, seed, share)
        rows = np.flatnonzero(~tested)
        train = np.zeros_like(tested)
        train[np.random.default_rng(seed).permutation(rows)[: most or len(rows)]] = True
        plan = make(prepared.table, int(train.sum()), seed)

        def run(plan: Plan = plan, parts: tuple[Any, ...] = (train, seed, tested)) -> Any:
            return measure(prepared.table, *held_out_scores(prepared, plan, *parts)[:2])

        found.append(run() if book is None else book.score((prepared.table.name, plan.digest, seed), run))
    return np.array(found)


@functools.cache
def code_digest(*modules: str, own: bool = True) -> str:
    """Twelve hexadecimal digits over the code that decides results (unless not `own`), and further modules here."""
    digest = hashlib.sha256()
    for part in (*(CODE if own else ("datasets.py",)), *modules):
        place = next(root / part for root in (HERE, Path(hedgerow.__file__).parent) if (root / part).exists())
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


class Lines:
    """A CSV file that is written line by line, so that what was stopped can go on; its folder need not be there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Line]:
        """All whole lines; the rest of one that was cut off while it was written is removed."""
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.path.write_text(whole, encoding="utf-8")
        return [line for line in csv.DictReader(whole.splitlines()) if all(line.values())]

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self.path.exists() or not self.path.stat().st_size
        with self.path.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(line), lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(line)

    def fill(
        self, wanted: Sequence[T], fields: Mapping[str, Callable[[T], str]], run: Callable[[T], Line], title: str, *,
        jobs: int = 1, accepts: Callable[[Line], bool] = lambda _: True,
    ) -> list[Line]:  # fmt: skip
        """The lines of all that is wanted, in its order; what the file does not hold is run, and added.

        Args:
            wanted: what is to be there.
            fields: what tells lines apart: the columns, and what is wanted in them.
            run: makes a line; in another process if there are several `jobs`.
            title: for the progress bar.
            accepts: whether a line of the file may be used.
        """
        known = {tuple(line[field] for field in fields): line for line in self.read() if accepts(line)}
        keys = [tuple(value(each) for value in fields.values()) for each in wanted]
        missing = {key: each for key, each in zip(keys, wanted, strict=True) if key not in known}
        steps = progress(len(missing), title)
        for line in _each(run, list(missing.values()), jobs):
            known[tuple(line[field] for field in fields)] = line
            self.append(line)
            next(steps, None)
        return [known[key] for key in keys]


def _each(run: Callable[[T], Line], tasks: list[T], jobs: int) -> Iterator[Line]:
    if jobs == 1:
        yield from map(run, tasks)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(run, tasks, chunksize=4)


class ScoreBook:
    """Scores of single runs, kept on the disk so that an experiment which was stopped can go on.

    A score's key is a digest of everything that decides it: the run's plan, its rows, its seed, and the code.

    Args:
        path: a CSV file of key and score, or None to keep scores for this process only.
        modules: of this folder, the experiment's own files that decide scores, besides the library.
    """

    def __init__(self, path: Path | None = None, modules: Sequence[str] = ()) -> None:
        self._lines = None if path is None else Lines(path)
        self._code = code_digest(*modules)
        known = [] if self._lines is None else self._lines.read()
        self._scores = {line["key"]: float(line["score"]) for line in known}

    def score(self, key: object, run: Callable[[], float]) -> float:
        """What was written down for this key, or what `run` gives; `repr(key)` tells runs apart."""
        digest = hashlib.sha256(f"{self._code} {key!r}".encode()).hexdigest()[:32]
        if digest not in self._scores:
            self._scores[digest] = run()
            if self._lines is not None:
                self._lines.append({"key": digest, "score": repr(self._scores[digest])})
        return self._scores[digest]


def deviation_of(scores: Sequence[float] | NDArray[np.float64]) -> float:
    """The standard deviation of a sample; 0 for a single score."""
    return float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0


def error_of(scores: Sequence[float] | NDArray[np.float64]) -> float:
    """The standard error of a mean; 0 for a single score."""
    return deviation_of(scores) / float(np.sqrt(len(scores)))


def mean_and_deviation(scores: Sequence[float] | NDArray[np.float64]) -> str:
    """For a table: the mean, and the standard deviation over runs."""
    return f"{np.mean(scores):.4f} ± {deviation_of(scores):.4f}"


def mean_and_error(scores: Sequence[float] | NDArray[np.float64], digits: int = 4, sign: str = "-") -> str:
    """For a table: the mean, with a plus where `sign` is "+", and its standard error."""
    return f"{np.mean(scores):{sign}.{digits}f} ± {error_of(scores):.{digits}f}"


def row(cells: Iterable[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a Markdown table."""
    names = list(head)
    return [row(names), "|---" * len(names) + "|", *map(row, rows)]


def verdict(gates: Mapping[str, bool], failed: str = "MISSED") -> int:
    """Print what must hold, with the word for whether it does; 1, an exit code, if something does not."""
    for gate, holds in gates.items():
        print(f"{'holds ' if holds else failed}  {gate}")
    return 0 if all(gates.values()) else 1


@contextmanager
def picture(path: Path, n_rows: int, n_columns: int, size: tuple[float, float], **options: Any) -> Iterator[Any]:
    """A figure and its axes [n_rows, n_columns], written to a PNG at the end; `options` are those of `subplots`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style = {"dpi": options.pop("dpi", 110), "bbox_inches": options.pop("bbox_inches", None)}
    figure, axes = pyplot.subplots(n_rows, n_columns, figsize=size, squeeze=False, **options)
    yield figure, axes
    figure.savefig(path, **style)
    pyplot.close(figure)


def mark(axis: Any, places: Sequence[float]) -> None:
    """Only these places of the horizontal axis, as they are."""
    axis.set_xticks(places, [f"{place:g}" for place in places])
    axis.minorticks_off()


def least_seconds(act: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Seconds of this process's processors, and of the clock: each the least of several runs."""
    took = []
    for _ in range(repeats):
        processor, clock = time.process_time(), time.perf_counter()
        act()
        took.append((time.process_time() - processor, time.perf_counter() - clock))
    processors, clocks = zip(*took, strict=True)
    return min(processors), min(clocks)


def progress(total: int, what: str) -> Iterator[int]:
    """Count to `total`, with a bar on a terminal."""
    if not sys.stderr.isatty():
        yield from range(total)
        return
    from rich.progress import track

    yield from track(range(total), description=what)
