"""Reports on the tables and figures of the catalogue, in Markdown."""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr

from experiments import published
from experiments.catalogue import DATA, RANKED, REFERENCES, Experiment
from experiments.cells import Cell, Line, Results, aucs, average_ranks, code_digest, mean_and_deviation
from hedgerow.training.presets import PRESETS

WANTED_SHARE = 0.9
"""Of a table's cells: within two of the paper's standard deviations."""
OURS = "hedgerow"
EPSILONS = (0.1, 0.5, 1.0)
FULL_REPEATS = 15
WANTED_MINUTES = 30
WANTED_RANKS = {0.1: 1.0, 0.5: 1.0, 1.0: 1.5}


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
    lines += ["| method | " + " | ".join(DATA) + " |", "|---" * (1 + len(DATA)) + "|"]
    by_cell = {(cell.method.name, cell.data): rest for cell, *rest in agreement(experiment, results)}
    lines_of = {cell.key[:2]: results[cell.key] for cell in experiment.cells}
    for name in dict.fromkeys(name for name, _ in by_cell):
        row = [_beside(by_cell[name, data], lines_of[name, data]) for data in DATA]
        lines.append(f"| {name} | " + " | ".join(row) + " |")
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
    lines = ["The paper ranks over six data sets, we over four of them."]
    lines[0] += " Each cell: the paper's rank, ours among the paper's methods, ours with hedgerow."
    lines += ["", "| method | " + " | ".join(f"epsilon {e:g}" for e in EPSILONS) + " |"]
    lines += ["|---" * (1 + len(EPSILONS)) + "|"]
    for name in RANKED:
        row = []
        for index, epsilon in enumerate(EPSILONS):
            paper = f"{published.TABLE_6[name][index]:.2f}" if name != OURS else "-"
            own = f"{among[epsilon][name]:.2f}" if name != OURS else "-"
            row.append(f"{paper}, {own}, {with_ours[epsilon][name]:.2f}")
        lines.append(f"| {PRESETS[name].title} | " + " | ".join(row) + " |")
    correlations = ", ".join(f"{_order_agreement(papers, among[e], i):.2f}" for i, e in enumerate(EPSILONS))
    lines += ["", f"Spearman's correlation of our order with the paper's, by epsilon: {correlations}."]
    lines += ["", *(f"- {'holds' if good else 'MISSED'}: {claim}" for claim, good in _claims_of_table_6(results))]
    for epsilon in EPSILONS:
        lines += ["", f"## Test AUC at epsilon {epsilon:g}", ""]
        lines += ["| method | " + " | ".join(DATA) + " |", "|---" * (1 + len(DATA)) + "|"]
        for name in (*RANKED, *REFERENCES):
            cells = [mean_and_deviation(aucs(results[name, data, epsilon, 0.0])) for data in DATA]
            lines.append(f"| {PRESETS[name].title} | " + " | ".join(cells) + " |")
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


def _order_agreement(names: list[str], ranks: dict[str, float], index: int) -> float:
    return float(spearmanr([published.TABLE_6[name][index] for name in names], [ranks[n] for n in names]).statistic)


def _figure(experiment: Experiment, results: Results) -> list[str]:
    lines = ["The paper prints this as a picture without numbers; ours, mean ± standard deviation of the test AUC:"]
    for panel in experiment.panels:
        xs = sorted({cell.x for cell in panel.cells})
        names = list(dict.fromkeys(cell.method.name for cell in panel.cells))
        keys = {(cell.method.name, cell.x): cell.key for cell in panel.cells}
        lines += ["", f"## {panel.title}", "", f"| {panel.x_label} | " + " | ".join(names) + " |"]
        lines += ["|---" * (1 + len(names)) + "|"]
        for x in xs:
            row = [mean_and_deviation(aucs(results[keys[n, x]])) if (n, x) in keys else "" for n in names]
            lines.append(f"| {x:g} | " + " | ".join(row) + " |")
    return lines
