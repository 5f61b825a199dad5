"""How often bands of what the noise could have drawn hold: the same rows are trained on again with other noise.

A cell counts as held where the mean shape over all noise seeds lies within one (two) standard deviations, as a single
model states them, of that model's shape; nominal are 68.3 % and 95.4 %. Each feature counts alike, whatever the number
of its cells; "by records" weighs a feature's cells by the records in them instead. Adult, Bank and the made set "mixed"
had no part in the choice of the constants in `hedgerow.models.bands`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments import harness
from experiments.datasets import load, make
from experiments.harness import Prepared, plan_for, rows_of, run_plainly
from hedgerow.models.bands import shape_bands
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.training.presets import PRESETS
from hedgerow.trees.importances import shape_function

SETS, MADE = ("adult", "bank"), ("mixed",)
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "dp-ebm-newton": PRESETS["dp-ebm-newton"].model,
}
EPSILONS = (0.5, 1.0, 3.0)
DELTA = 1e-6
NOMINAL = np.array([math.erf(1 / math.sqrt(2)), math.erf(2 / math.sqrt(2))])
TOLERANCE = 0.03


def main(argv: list[str]) -> int:
    """Print the coverage of every set, setting and epsilon, and that over all sets; fail where the latter is off."""
    options = harness.arguments("bands", __doc__, splits=(16, "noise seeds per cell")).parse_args(argv)
    found: dict[str, list[NDArray[np.float64]]] = {name: [] for name in SETTINGS}
    print(f"{'data set':<8} {'setting':<14} {'epsilon':>7}  {'1 sd':>6} {'2 sd':>6}   by records")
    for name in (*SETS, *MADE):
        prepared = Prepared(make(name) if name in MADE else load(name, options.data))
        for setting, model in SETTINGS.items():
            for epsilon in EPSILONS:
                plan = _plan(prepared, setting, model, epsilon)
                held, by_records = _held(prepared, plan, options.splits)
                found[setting].append(held)
                shown = " ".join(f"{share:6.1%}" for share in held)
                weighed = " ".join(f"{share:6.1%}" for share in by_records)
                print(f"{name:<8} {setting:<14} {epsilon:>7g}  {shown}   {weighed}", flush=True)
    print(f"\n{'all sets':<24}  {'1 sd':>6} {'2 sd':>6}   furthest of one cell from nominal")
    gates = {}
    for setting, held_by_cell in found.items():
        mean, off = np.mean(held_by_cell, axis=0), np.abs(np.array(held_by_cell) - NOMINAL).max()
        gates[f"{setting}: the mean is within {TOLERANCE:.0%} of nominal"] = bool(
            (np.abs(mean - NOMINAL) <= TOLERANCE).all()
        )
        print(f"{setting:<24}  {' '.join(f'{share:6.1%}' for share in mean)}   {off:.1%}")
    print(f"\nnominal {NOMINAL[0]:.1%} and {NOMINAL[1]:.1%}; {options.splits} noise seeds a cell, delta {DELTA:g}")
    return harness.verdict(gates)


def _plan(prepared: Prepared, setting: str, model: Mapping[str, Any], epsilon: float) -> Plan:
    privacy: dict[str, Any] = {"delta": DELTA}
    if setting in PRESETS:
        privacy["accountant"] = PRESETS[setting].accountant
    return plan_for(prepared.table, epsilon, prepared.table.n_records, {**model, "structure_seed": 1}, **privacy)


def _held(prepared: Prepared, plan: Plan, n_seeds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares of cells whose mean shape lies within one and two deviations: by features, and by records; float64 [2]."""
    everything = np.ones(prepared.table.n_records, dtype=bool)
    # Training moves a site's scores, so each run has rows of its own.
    outcomes = [
        run_plainly(plan, rows_of(prepared, plan, everything), SeededNoise(seed, exact=False))
        for seed in range(n_seeds)
    ]
    bands = [shape_bands(plan, outcome.ensemble, outcome.ledger) for outcome in outcomes]
    plain, weighed = [], []
    for feature in range(len(plan.features)):
        mean = np.mean([band[feature].scores for band in bands], axis=0)
        for outcome, band in zip(outcomes, bands, strict=True):
            deviations = band[feature].deviations
            if not deviations.any():
                continue
            # The mean holds the model itself: the distance to it is short by a factor that is known.
            away = np.abs(band[feature].scores - mean) * math.sqrt(n_seeds / (n_seeds - 1))
            density = shape_function(outcome.ensemble, feature).density
            within = [away <= count * deviations for count in (1, 2)]
            plain.append([held.mean() for held in within])
            weighed.append([(density @ held).mean() for held in within])
    return np.mean(plain, axis=0), np.mean(weighed, axis=0)
