"""What bounds cost that are too wide or too narrow: test AUC over the widths of all numeric features' bounds.

First of Bank at one epsilon: a width of 1 is the declared bounds of the data set, others have the same lower ends and
are so many times as wide; what is beyond them counts as the bound. Then of all sets, with all bounds far wider than the
rows above, below or on both sides: the difference from the declared bounds on the same splits and seeds, and its
standard error.
"""

from __future__ import annotations

import dataclasses
import statistics
from math import sqrt

from experiments import harness
from experiments.datasets import BINARY_NAMES, Feature, Table, load
from experiments.harness import Prepared, over_splits, plan_for

WIDTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
WAYS = (("above", 1000.0), ("below", 1000.0), ("both", 10.0), ("both", 1000.0))
EPSILONS = (0.5, 1.0)
DELTA = 1e-6


def main(argv: list[str]) -> int:
    """Print a line for each width, then one for each set, epsilon and way."""
    parser = harness.arguments(
        "bounds", __doc__, splits=(3, "random splits per width"), wide_splits=(4, "random splits per way")
    )
    options = parser.parse_args(argv)
    bank = load("bank", options.data)
    print("width  test AUC at epsilon 1, mean over splits")
    for width in WIDTHS:
        print(
            f"{width:>5g}  {statistics.mean(_areas(_widened(bank, width, 'above'), 1.0, options.splits)):.3f}",
            flush=True,
        )
    print("\nset      epsilon  declared  wider            difference, standard error")
    for name in BINARY_NAMES:
        table = load(name, options.data)
        for epsilon in EPSILONS:
            declared = _areas(table, epsilon, options.wide_splits)
            for way, width in WAYS:
                found = _areas(_widened(table, width, way), epsilon, options.wide_splits)
                gains = [own - other for own, other in zip(found, declared, strict=True)]
                error = harness.deviation_of(gains) / sqrt(len(gains))
                row = f"{name:<8} {epsilon:>7g}  {statistics.mean(declared):>8.4f}  {way:<5} x {width:<8g}"
                print(f"{row} {statistics.mean(gains):+.4f} ± {error:.4f}", flush=True)
    return 0


def _areas(table: Table, epsilon: float, n_splits: int) -> list[float]:
    """The test AUC of each split."""
    found = over_splits(
        Prepared(table),
        lambda table, n_train, seed: plan_for(table, epsilon, n_train, {"structure_seed": seed}, delta=DELTA),
        range(n_splits),
    )
    return [float(area) for area in found]


def _widened(table: Table, width: float, way: str) -> Table:
    """The table with all numeric bounds so many times as far apart: raised above, lowered below, or both."""
    return dataclasses.replace(table, features=tuple(_wider(feature, width, way) for feature in table.features))


def _wider(feature: Feature, width: float, way: str) -> Feature:
    if "max" not in feature:
        return feature
    low, high = feature["min"], feature["max"]
    more = (width - 1) * (high - low) / (2 if way == "both" else 1)
    return {
        **feature,
        "min": low - (0 if way == "above" else more),
        "max": high + (0 if way == "below" else more),
    }
