"""Figure 20 of CCS'22: bytes, rounds and processor time measured over the engine `grpc`, and accuracy by clients.

Every named method trains over real sockets, TLS and masks on loopback (`experiments.federation`); what the
coordinator's hub counted stands beside the formulas of the paper's Appendix B. Runs are kept in a CSV and taken up
again.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from experiments.figure20_report import draw, report_of
from experiments.figure20_runs import (
    CLIENTS,
    TREES,
    Accuracy,
    Measurement,
    accuracies,
    measure_all,
)
from experiments.harness import Lines
from hedgerow.training.presets import PRESETS


def main(argv: list[str]) -> int:
    """Measure what the CSV files do not hold; write Markdown and PNG; 1 if rounds are not as Appendix B has them."""
    parser = argparse.ArgumentParser(prog="python -m experiments figure20", description=__doc__)
    parser.add_argument("--data", help="not used: the records are made up, as in the paper")
    parser.add_argument("--jobs", type=int, default=1, help="not used: processes would disturb each other's times")
    parser.add_argument("--repeats", type=int, default=3, help="trainings per point of the accuracy (default 3)")
    parser.add_argument("--trees", type=int, nargs="+", default=list(TREES), help="numbers of trees")
    parser.add_argument("--clients", type=int, nargs="+", default=list(CLIENTS), help="numbers of clients, >= 3")
    parser.add_argument("--rows", type=int, default=10_000, help="rows of each client (default 10,000, as the paper)")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for CSV and report (default results)")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    fewest = min(options.clients)
    wanted = [Measurement(name, fewest, trees, options.rows) for trees in options.trees for name in PRESETS]
    wanted += [
        Measurement(name, clients, min(options.trees), options.rows)
        for clients in sorted(options.clients)[1:] for name in PRESETS
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        lines = measure_all(wanted, Lines(options.out / "figure20.csv"), Path(folder))
    points = accuracies(Accuracy.all(options.repeats), Lines(options.out / "figure20_accuracy.csv"))
    report, holds = report_of(lines, points)
    (options.out / "figure20.md").write_text(report, encoding="utf-8")
    draw(lines, points, options.out / "figure20.png")
    print(report)
    return 0 if holds else 1
