"""What bounds cost that are too wide or too narrow: test AUC of Bank at one epsilon, over the widths of all bounds.

A width of 1 is the declared bounds of the data set. Others have the same lower ends and are so many times as wide: what
is beyond them counts as the bound.
"""

from __future__ import annotations

import dataclasses
import statistics

from sklearn.metrics import roc_auc_score

from experiments import harness
from experiments.datasets import Feature, load
from experiments.harness import Prepared, plan_for, rows_of, run_plainly, stratified_split
from hedgerow.privacy.noise import SeededNoise

WIDTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
DELTA = 1e-6


def main(argv: list[str]) -> int:
    """Print a line for each width."""
    parser = harness.arguments("bounds", __doc__, splits=(3, "random splits per width"))
    options = parser.parse_args(argv)
    table = load("bank", options.data)
    print("width  test AUC at epsilon 1, mean over splits")
    for width in WIDTHS:
        features = tuple(_widened(feature, width) for feature in table.features)
        prepared = Prepared(dataclasses.replace(table, features=features))
        areas = []
        for seed in range(options.splits):
            train = stratified_split(table.label, seed)
            plan = plan_for(prepared.table, 1.0, int(train.sum()), {"structure_seed": seed}, delta=DELTA)
            outcome = run_plainly(plan, rows_of(prepared, plan, train), SeededNoise(seed, exact=False))
            held_out = rows_of(prepared, plan, ~train)
            areas.append(float(roc_auc_score(held_out.labels, outcome.ensemble.scores(held_out.codes)[0])))
        print(f"{width:>5g}  {statistics.mean(areas):.3f}", flush=True)
    return 0


def _widened(feature: Feature, width: float) -> Feature:
    """The feature with bounds so many times as far apart; a categorical one as it is."""
    if "max" not in feature:
        return feature
    low, high = feature["min"], feature["max"]
    return {**feature, "max": low + width * (high - low)}
