"""How many cells of the tables of CCS'22 agree with the paper, over all tables, from the runs that are recorded.

Reads `runs.csv` and runs what it does not hold. A cell agrees when our mean lies within two of the paper's standard
deviations; the exit code is 1 when fewer than nine in ten do.
"""

from __future__ import annotations

from experiments.catalogue import EXPERIMENTS
from experiments.harness import arguments
from experiments.paper import WANTED_SHARE, Store, agreeing, agreement, run_cells

TABLES = tuple(name for name, experiment in EXPERIMENTS.items() if experiment.published is not None)


def main(argv: list[str]) -> int:
    """Print the count of every table, the cells that do not agree, and the total."""
    parser = arguments(
        "tables", __doc__, out="the CSV", repeats=(15, "runs per cell, on 5 splits"), jobs=(1, "processes")
    )
    options = parser.parse_args(argv)
    store = Store(options.out / "runs.csv", options.data, options.jobs)
    good, total = 0, 0
    outside = []
    for name in TABLES:
        experiment = EXPERIMENTS[name]
        results = run_cells(experiment.cells, options.repeats, store, experiment.title)
        of_table = agreeing(experiment, results)
        good, total = good + of_table[0], total + of_table[1]
        print(f"{name:<8} {of_table[0]:>3} of {of_table[1]:>2}   {experiment.title}")
        for cell, mean, deviation, ours in agreement(experiment, results):
            if abs(ours - mean) > 2 * deviation:
                distance = (ours - mean) / deviation
                outside.append(
                    f"{name:<8} {cell.data:<8} {cell.method.name:<28} "
                    f"{mean:.4f} ± {deviation:.4f}   {ours:.4f}   {distance:+.1f}"
                )
    print(f"\n{'not in agreement':<46} {'the paper':>15}   {'ours':>6}   {'distance in its standard deviations'}")
    print("\n".join(outside))
    verdict = "holds " if good >= WANTED_SHARE * total else "MISSED"
    print(f"\n{verdict}  {good} of {total} cells agree, {good / total:.1%}; wanted are {WANTED_SHARE:.0%}")
    return 0 if good >= WANTED_SHARE * total else 1
