"""Runs a table or figure of the catalogue, and writes its report: our numbers beside the paper's."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.catalogue import EXPERIMENTS, PREPARATIONS, Experiment
from experiments.cells import Store, run_cells
from experiments.paper_report import holds, report_of
from experiments.plots import draw


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
    parser = argparse.ArgumentParser(prog=f"python -m experiments {name}", description=experiment.title)
    parser.add_argument("--data", help="folder with the data sets")
    parser.add_argument("--repeats", type=int, help=f"runs per cell, on 5 splits (default {experiment.repeats})")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for CSV and report (default results)")
    parser.add_argument("--fresh", action="store_true", help="repeat the runs of other code than this")
    parser.add_argument(
        "--preparation", choices=PREPARATIONS, default=PREPARATIONS[0],
        help='"authors": bounds from the data and Adult and Bank as ranks, as the paper\'s code; "declared": by public '
        "schemas (default authors)",
    )  # fmt: skip
    return parser.parse_args(argv)


