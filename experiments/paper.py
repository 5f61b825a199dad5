"""Runs the tables and figures of Maddock et al., CCS'22, and writes reports: our numbers beside the paper's.

Runs are written down one by one, so that any can be taken up again. A line of the CSV is one run: what ran, on which
data set, how it was prepared, at which epsilon, with which seed; its test AUC, and what it took. The digest of the plan
is part of a line's key: a run is repeated when its settings have changed, and only then. A digest of the code that
decides results stands in each line as well; lines of other code are used, and the report says how many there are,
unless `--fresh` asks for new ones.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from experiments import harness
from experiments.catalogue import DATA, EXPERIMENTS, PREPARATIONS, RANKED, REFERENCES, Cell, Experiment, Panel
from experiments.datasets import load
from experiments.harness import Lines, Prepared, code_digest, deviation_of, heading, mean_and_deviation, row
from hedgerow.plan.plan import Plan
from hedgerow.training.presets import PRESETS

SPLITS = 5
"""Different 70/30 splits; further runs repeat them with other trees and other noise (section 6.1)."""
WANTED_SHARE = 0.9
"""Of a table's cells: within two of the paper's standard deviations."""
OURS = "hedgerow"
EPSILONS = (0.1, 0.5, 1.0)
FULL_REPEATS = 15
WANTED_MINUTES = 30
WANTED_RANKS = {0.1: 1.0, 0.5: 1.0, 1.0: 1.5}
MARKERS = "osD^v<>PX*ph"
CROWD = 6
"""More lines than this are drawn twice, the second time magnified."""
ZOOM = 0.07
"""Of AUC, what the magnified part shows."""
Line = dict[str, str]
Key = tuple[str, str, float, float]
Results = dict[Key, list[Line]]
"""The lines of every cell, by its key."""


def run(name: str, argv: list[str]) -> int:
    """Run what the CSV does not hold yet and write Markdown and PNG; 1 when the paper's claim does not come out."""
    options = _options(name, argv)
    experiment = EXPERIMENTS[name].prepared_as(options.preparation)
    repeats = options.repeats or experiment.repeats
    store = Store(options.out / "runs.csv", options.data, options.jobs, options.fresh)
    cells = [*experiment.cells, *(cell for panel in experiment.panels for cell in panel.cells)]
    results = run_cells(cells, repeats, store, experiment.title)
    suffix = "" if options.preparation == PREPARATIONS[0] else f"-{options.preparation}"
    report = report_of(experiment, results, options.preparation, image=f"{name}{suffix}.png")
    (options.out / f"{name}{suffix}.md").write_text(report, encoding="utf-8")
    draw(experiment, results, options.out / f"{name}{suffix}.png")
    print(report)
    return 0 if holds(experiment, results) else 1


def _options(name: str, argv: list[str]) -> argparse.Namespace:
    experiment: Experiment = EXPERIMENTS[name]
    parser = harness.arguments(name, experiment.title, out="CSV and report", jobs=(1, "processes"))
    parser.add_argument("--repeats", type=int, help=f"runs per cell, on 5 splits (default {experiment.repeats})")
    parser.add_argument("--fresh", action="store_true", help="repeat the runs of other code than this")
    parser.add_argument(
        "--preparation", choices=PREPARATIONS, default=PREPARATIONS[0],
        help='"authors": bounds from the data and Adult and Bank as ranks, as the paper\'s code; "declared": by public '
        "schemas (default authors)",
    )  # fmt: skip
    return parser.parse_args(argv)


@dataclass(frozen=True)
class Store:
    """Where results are kept.

    Attributes:
        path: the CSV file.
        folder: the folder with the data sets, or None for the default.
        jobs: processes.
        fresh: whether runs of other code are repeated.
    """

    path: Path
    folder: str | None = None
    jobs: int = 1
    fresh: bool = False


def run_cells(cells: Iterable[Cell], repeats: int, store: Store, title: str) -> Results:
    """Run what the CSV does not hold yet; the lines of every cell, by its key.

    Raises:
        DataError: a data set is not there.
    """
    lines = Lines(store.path)
    known = _known(lines, fresh=store.fresh)
    tasks = [(cell, seed, store.folder) for cell in cells for seed in range(repeats)]
    # Runs of one data set follow each other, so that a process seldom loads another one.
    tasks.sort(key=lambda task: (task[0].data, task[0].preparation, task[1]))
    digests = {id(task): _identity(task[0], task[1], _prepared(task[0].data, task[0].preparation, store.folder))
               for task in tasks}  # fmt: skip
    missing = [task for task in tasks if digests[id(task)] not in known]
    steps = iter(harness.progress(len(missing), title))
    for line in _run_all(missing, store.jobs):
        known[line["method"], line["plan"], int(line["seed"])] = line
        lines.append(line)
        next(steps, None)
    results: Results = {}
    for task in tasks:
        results.setdefault(task[0].key, []).append(known[digests[id(task)]])
    return results


Task = tuple[Cell, int, str | None]


def _run_all(tasks: list[Task], jobs: int) -> Iterator[Line]:
    if jobs == 1:
        yield from map(_run, tasks)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(_run, tasks, chunksize=4)


@functools.lru_cache(maxsize=2)
def _prepared(data: str, preparation: str, folder: str | None) -> Prepared:
    return Prepared(load(data, folder, preparation))


def plan_of(cell: Cell, seed: int, prepared: Prepared) -> tuple[Plan, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The plan of one run, and True for the rows that it trains on."""
    train = harness.stratified_split(prepared.table.label, seed % SPLITS)
    model = {**cell.method.model, "structure_seed": seed}
    if cell.method.trees_per_feature:
        model["n_trees"] = cell.method.trees_per_feature * len(prepared.table.features)
    privacy = {"accountant": "rdp", **cell.method.privacy}
    return harness.plan_for(prepared.table, cell.epsilon, int(train.sum()), model, **privacy), train


def _identity(cell: Cell, seed: int, prepared: Prepared) -> tuple[str, str, int]:
    return cell.method.name, plan_of(cell, seed, prepared)[0].digest, seed


def _run(task: Task) -> Line:
    cell, seed, folder = task
    prepared = _prepared(cell.data, cell.preparation, folder)
    plan, train = plan_of(cell, seed, prepared)
    prepared.codes_for(plan)
    start, cpu_start = time.perf_counter(), time.process_time()
    auc, outcome = harness.train_and_score(prepared, plan, train, seed)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    releases = list(outcome.ledger)
    return {
        "method": cell.method.name, "data": cell.data, "preparation": cell.preparation, "epsilon": f"{cell.epsilon:g}",
        "seed": str(seed), "plan": plan.digest, "code": code_digest(), "auc": f"{auc:.6f}",
        "seconds": f"{seconds:.3f}", "cpu_seconds": f"{cpu_seconds:.3f}", "exchanges": str(len(releases)),
        "numbers_per_node": str(sum(release.length for release in releases)),
    }  # fmt: skip


def _known(lines: Lines, *, fresh: bool) -> dict[tuple[str, str, int], Line]:
    """The lines of the file by method, plan and seed; if `fresh`, only those of this code."""
    used = [line for line in lines.read() if not fresh or line["code"] == code_digest()]
    return {(line["method"], line["plan"], int(line["seed"])): line for line in used}


def aucs(lines: list[Line]) -> list[float]:
    """The test AUCs of a cell."""
    return [float(line["auc"]) for line in lines]


def average_ranks(results: Results, methods: list[str], epsilon: float) -> dict[str, float]:
    """Rank of each method by its mean AUC, 1 for the highest, averaged over the data sets; ties share their ranks."""
    data = sorted({name for _, name, at, _ in results if at == epsilon})
    total = dict.fromkeys(methods, 0.0)
    for name in data:
        means = {method: float(np.mean(aucs(results[method, name, epsilon, 0.0]))) for method in methods}
        for method, mean in means.items():
            above = sum(other > mean for other in means.values())
            equal = sum(other == mean for other in means.values())
            total[method] += above + (equal + 1) / 2
    return {method: total[method] / len(data) for method in methods}


def report_of(experiment: Experiment, results: Results, preparation: str, image: str) -> str:
    """The report, in Markdown."""
    lines = [f"# {experiment.title}", "", f"{_of_the_runs(results)} Data prepared: {preparation}.", ""]
    if experiment.remark:
        lines += [experiment.remark, ""]
    if experiment.name == "table6":
        lines += _ranks(results)
    elif experiment.published is not None:
        lines += _table(experiment, results)
    else:
        lines += _figure(experiment, results)
    lines += ["", f"![{experiment.title}]({image})"]
    return "\n".join(lines) + "\n"


def _of_the_runs(results: Results) -> str:
    lines = [line for cell in results.values() for line in cell]
    counts = sorted({len(cell) for cell in results.values()})
    per_cell = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    cpu = sum(float(line["cpu_seconds"]) for line in lines)
    seeds = sorted({int(line["seed"]) for line in lines})
    other = sum(line["code"] != code_digest() for line in lines)
    text = f"{per_cell} runs a cell (seeds {seeds[0]} to {seeds[-1]}), {len(lines)} in all, {cpu:.0f} s of CPU time."
    return text + (f" {other} of them by other code than {code_digest()}." if other else f" Code {code_digest()}.")


def agreement(experiment: Experiment, results: Results) -> list[tuple[Cell, float, float, float]]:
    """Per cell that the paper prints: the cell, the paper's mean and deviation, our mean."""
    found = []
    for cell in experiment.cells:
        numbers = (experiment.published or {}).get(cell.method.name, {})
        if cell.data in numbers:
            mean, deviation = numbers[cell.data]
            found.append((cell, mean, deviation, float(np.mean(aucs(results[cell.key])))))
    return found


def agreeing(experiment: Experiment, results: Results) -> tuple[int, int]:
    """How many cells are within two of the paper's standard deviations, and of how many."""
    found = agreement(experiment, results)
    return sum(abs(ours - mean) <= 2 * deviation for _, mean, deviation, ours in found), len(found)


def holds(experiment: Experiment, results: Results) -> bool:
    """Whether nine cells in ten agree with the paper; for table 6, whether our default has the ranks it is to have."""
    if experiment.name == "table6":
        return all(good for _, good in _claims_of_table_6(results))
    if experiment.published is None:
        return True
    good, total = agreeing(experiment, results)
    return good >= WANTED_SHARE * total


def _table(experiment: Experiment, results: Results) -> list[str]:
    lines = ["Each cell: paper, ours, distance in the paper's standard deviations; bold where beyond two.", ""]
    lines += heading("method", *DATA)
    by_cell = {(cell.method.name, cell.data): rest for cell, *rest in agreement(experiment, results)}
    lines_of = {cell.key[:2]: results[cell.key] for cell in experiment.cells}
    for name in dict.fromkeys(name for name, _ in by_cell):
        lines.append(row([name, *(_beside(by_cell[name, data], lines_of[name, data]) for data in DATA)]))
    good, total = agreeing(experiment, results)
    return [*lines, "", f"{good} of {total} cells are within two of the paper's standard deviations."]


def _beside(numbers: list[float], lines: list[Line]) -> str:
    mean, deviation, ours = numbers
    distance = (ours - mean) / deviation
    mark = "**" if abs(distance) > 2 else ""
    return f"{mean:.4f} ± {deviation:.4f}, {mean_and_deviation(aucs(lines))}, {mark}{distance:+.1f}{mark}"


def _ranks(results: Results) -> list[str]:
    papers = [name for name in RANKED if name != OURS]
    among = {epsilon: average_ranks(results, papers, epsilon) for epsilon in EPSILONS}
    with_ours = {epsilon: average_ranks(results, list(RANKED), epsilon) for epsilon in EPSILONS}
    lines = [
        "The paper ranks over six data sets, we over four of them. "
        "Each cell: the paper's rank, ours among the paper's methods, ours with hedgerow.", "",
        *heading("method", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)),
    ]  # fmt: skip
    for name in RANKED:
        cells = []
        for epsilon in EPSILONS:
            paper = f"{_paper_rank(name, epsilon):.2f}" if name != OURS else "-"
            own = f"{among[epsilon][name]:.2f}" if name != OURS else "-"
            cells.append(f"{paper}, {own}, {with_ours[epsilon][name]:.2f}")
        lines.append(row([PRESETS[name].title, *cells]))
    correlations = ", ".join(f"{_order_agreement(papers, among[epsilon], epsilon):.2f}" for epsilon in EPSILONS)
    lines += ["", f"Spearman's correlation of our order with the paper's, by epsilon: {correlations}."]
    lines += ["", *(f"- {'holds' if good else 'MISSED'}: {claim}" for claim, good in _claims_of_table_6(results))]
    for epsilon in EPSILONS:
        lines += ["", f"## Test AUC at epsilon {epsilon:g}", "", *heading("method", *DATA)]
        for name in (*RANKED, *REFERENCES):
            cells = [mean_and_deviation(aucs(results[name, data, epsilon, 0.0])) for data in DATA]
            lines.append(row([PRESETS[name].title, *cells]))
    return lines


def _claims_of_table_6(results: Results) -> list[tuple[str, bool]]:
    """What table 6 is to show, and whether it does."""
    claims = []
    for epsilon, wanted in WANTED_RANKS.items():
        rank = average_ranks(results, list(RANKED), epsilon)[OURS]
        claims.append((f"rank of hedgerow at epsilon {epsilon:g}: {rank:.2f}, at most {wanted}", rank <= wanted))
    lines = [line for cell in results.values() for line in cell]
    seconds = sum(float(line["cpu_seconds"]) for line in lines) * FULL_REPEATS * len(results) / len(lines)
    minutes = seconds / 60 / 2
    claim = f"{FULL_REPEATS} runs a cell: {seconds:.0f} s of CPU time, {minutes:.0f} minutes on 2 cores"
    return [*claims, (f"{claim}, under {WANTED_MINUTES}", minutes < WANTED_MINUTES)]


def _paper_rank(name: str, epsilon: float) -> float:
    return harness.published("table6", "ccs22")[name][f"{epsilon:g}"][0]


def _order_agreement(names: list[str], ranks: dict[str, float], epsilon: float) -> float:
    return float(spearmanr([_paper_rank(name, epsilon) for name in names], [ranks[name] for name in names]).statistic)


def _figure(experiment: Experiment, results: Results) -> list[str]:
    lines = ["The paper prints this as a picture without numbers; ours, mean ± standard deviation of the test AUC:"]
    for panel in experiment.panels:
        xs = sorted({cell.x for cell in panel.cells})
        names = list(dict.fromkeys(cell.method.name for cell in panel.cells))
        keys = {(cell.method.name, cell.x): cell.key for cell in panel.cells}
        lines += ["", f"## {panel.title}", "", *heading(panel.x_label, *names)]
        for x in xs:
            cells = [mean_and_deviation(aucs(results[keys[n, x]])) if (n, x) in keys else "" for n in names]
            lines.append(row([f"{x:g}", *cells]))
    return lines


def draw(experiment: Experiment, results: Results, path: Path) -> None:
    """Write the PNG."""
    if experiment.name == "table6":
        _draw_ranked(results, path)
    elif experiment.published is not None:
        _draw_beside_the_paper(experiment, results, path)
    else:
        _draw_lines(experiment, results, path)


def _draw_beside_the_paper(experiment: Experiment, results: Results, path: Path) -> None:
    """For each data set, a row per method: the paper's mean with two standard deviations, and ours with as many."""
    names = list(dict.fromkeys(cell.method.name for cell, *_ in agreement(experiment, results)))
    found = {(cell.method.name, cell.data): (cell, mean, sd) for cell, mean, sd, _ in agreement(experiment, results)}
    with _picture(path, len(DATA), (13, 0.42 * len(names) + 1.6), sharey=True) as (figure, axes):
        for axis, data in zip(axes[0], DATA, strict=True):
            for place, name in enumerate(names):
                cell, mean, deviation = found[name, data]
                ours = aucs(results[cell.key])
                theirs = {"xerr": 2 * deviation, "fmt": "s", "color": "0.45"}
                own = {"xerr": 2 * deviation_of(ours), "fmt": "o", "color": "C0"}
                axis.errorbar(mean, place - 0.13, capsize=3, markersize=4, **theirs)
                axis.errorbar(np.mean(ours), place + 0.13, capsize=3, markersize=4, **own)
            axis.set(title=data, xlabel="test AUC")
            axis.grid(axis="x", alpha=0.3)
            axis.locator_params(axis="x", nbins=4)
        axes[0, 0].set_yticks(range(len(names)), names)
        axes[0, 0].invert_yaxis()
        words = "grey squares: the paper, blue circles: ours; bars: two standard deviations"
        figure.suptitle(f"{experiment.title}\n{words}")
        figure.tight_layout()


def _draw_ranked(results: Results, path: Path) -> None:
    """For each epsilon the AUC of every method on every data set, ours in colour."""
    with _picture(path, len(EPSILONS), (13, 4.6), sharey=True) as (figure, axes):
        for axis, epsilon in zip(axes[0], EPSILONS, strict=True):
            for index, name in enumerate(RANKED):
                means = [float(np.mean(aucs(results[name, data, epsilon, 0.0]))) for data in DATA]
                style = {"color": "C3", "markersize": 10, "zorder": 3} if name == OURS else {"alpha": 0.8}
                title = PRESETS[name].title
                axis.plot(range(len(DATA)), means, MARKERS[index], linestyle="none", label=title, **style)
            axis.set_xticks(range(len(DATA)), DATA)
            axis.set_title(f"epsilon {epsilon:g}")
            axis.grid(axis="y", alpha=0.3)
        axes[0, 0].set_ylabel("test AUC")
        axes[0, -1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
        figure.suptitle("All methods, T = 100")


def _draw_lines(experiment: Experiment, results: Results, path: Path) -> None:
    panels = list(experiment.panels)
    crowded = len({cell.method.name for cell in panels[0].cells}) > CROWD
    if crowded:  # once more, from near the top
        panels.append(panels[0])
    with _picture(path, len(panels), (5.2 * len(panels) + 1.5, 4.2)) as (figure, axes):
        for axis, panel in zip(axes[0], panels, strict=True):
            _draw_panel(axis, panel, results)
        if crowded:
            top = max(float(np.mean(aucs(results[cell.key]))) for cell in panels[0].cells)
            axes[0, -1].set_ylim(top - ZOOM, top + ZOOM / 8)
            axes[0, 0].get_legend().remove()
            axes[0, -1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
        axes[0, 0].set_ylabel("test AUC")
        figure.suptitle(experiment.title)
        figure.tight_layout()


def _picture(path: Path, n_panels: int, size: tuple[float, float], **options: Any) -> Any:
    return harness.picture(path, 1, n_panels, size, dpi=90, bbox_inches="tight", **options)


def _draw_panel(axis: Any, panel: Panel, results: Results) -> None:
    names = list(dict.fromkeys(cell.method.name for cell in panel.cells))
    for index, name in enumerate(names):
        cells = sorted((cell for cell in panel.cells if cell.method.name == name), key=lambda cell: cell.x)
        values = [aucs(results[cell.key]) for cell in cells]
        xs, means = [cell.x for cell in cells], np.array([np.mean(value) for value in values])
        deviations = np.array([deviation_of(value) for value in values])
        marker = MARKERS[index % len(MARKERS)]
        line = axis.plot(xs, means, marker=marker, markersize=4, label=name, color=f"C{index % 10}",
                         linestyle="-" if index < 10 else "--")[0]  # fmt: skip
        axis.fill_between(xs, means - deviations, means + deviations, color=line.get_color(), alpha=0.12, linewidth=0)
    axis.set_title(panel.title)
    axis.set_xlabel(panel.x_label)
    if panel.log_x:
        axis.set_xscale("log", base=2)
        places = sorted({cell.x for cell in panel.cells})
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
