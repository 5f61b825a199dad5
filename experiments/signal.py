"""How much of a model is left at how much signal: test AUC by n and epsilon, against the same trees without noise.

Signal is s = n mu, n records at the Gaussian-DP parameter mu of (epsilon, delta): roughly, how many standard deviations
of noise the data amount to. What is left is (AUC - 1/2) over that of the same trees trained without noise on all
training rows, so it counts both what noise takes and what fewer rows take. Random parts of each data set, one default.
"""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from experiments import harness
from experiments.datasets import BINARY_NAMES, load
from experiments.harness import Prepared, plan_for, rows_of, run_plainly, scores_of, stratified_split
from hedgerow.privacy.accountants import mu_of
from hedgerow.privacy.noise import SeededNoise

ROWS = (500, 1_000, 2_000, 5_000, 10_000, 20_000)
EPSILONS = (0.1, 0.3, 1.0, 3.0)
STEPS = (30, 100, 300, 1_000, 3_000, 10_000, 30_000)
"""Bounds of the ranges of s that are summed up."""
DELTA = 1e-6


def main(argv: list[str]) -> int:
    """Print every cell, then what is left by ranges of s: the smallest, the median, the largest."""
    options = harness.arguments("signal", __doc__, splits=(3, "random splits per cell")).parse_args(argv)
    found: dict[int, list[float]] = defaultdict(list)
    steps = harness.progress(len(BINARY_NAMES) * len(ROWS) * len(EPSILONS), "cells")
    print(f"{'data set':<9} {'records':>7} {'epsilon':>7} {'s':>7}  {'AUC':>6}  left")
    for name in BINARY_NAMES:
        prepared = Prepared(load(name, options.data))
        parts = [stratified_split(prepared.table.label, seed) for seed in range(options.splits)]
        whole = [_score(prepared, train, ~train, seed, math.inf) for seed, train in enumerate(parts)]
        for n_rows in ROWS:
            for epsilon in EPSILONS:
                next(steps, None)
                areas = np.array([_part(prepared, seed, n_rows, epsilon) for seed in range(options.splits)])
                left = float(np.mean((areas - 0.5) / (np.array(whole) - 0.5)))
                signal = n_rows * mu_of(epsilon, DELTA)
                found[int(np.searchsorted(STEPS, signal))].append(left)
                line = f"{name:<9} {n_rows:>7,} {epsilon:>7g} {signal:>7,.0f}  {areas.mean():.4f}  {left:.2f}"
                print(line, flush=True)
    print(f"\n{'s':>16}  cells  left: smallest, median, largest")
    for step, shares in sorted(found.items()):
        low, high = (0, *STEPS)[step], (*STEPS, math.inf)[step]
        spread = f"{min(shares):.2f}  {np.median(shares):.2f}  {max(shares):.2f}"
        print(f"{low:>7,} to {high:>6,}  {len(shares):>5}  {spread}")
    print(f"\n{options.splits} splits a cell, delta {DELTA:g}; 1 is the same trees without noise on all training rows")
    return 0


def _part(prepared: Prepared, seed: int, n_rows: int, epsilon: float) -> float:
    """The test AUC of a model of so many of a split's training rows, on all of its test rows."""
    train = stratified_split(prepared.table.label, seed)
    chosen = np.zeros_like(train)
    chosen[np.random.default_rng(seed).permutation(np.flatnonzero(train))[:n_rows]] = True
    return _score(prepared, chosen, ~train, seed, epsilon)


def _score(prepared: Prepared, chosen: NDArray[np.bool_], test: NDArray[np.bool_], seed: int, epsilon: float) -> float:
    """The AUC over the rows in `test`, of a model of those in `chosen`."""
    plan = plan_for(prepared.table, epsilon, int(chosen.sum()), {"structure_seed": seed}, delta=DELTA)
    outcome = run_plainly(plan, rows_of(prepared, plan, chosen), SeededNoise(seed, exact=False))
    held_out = rows_of(prepared, plan, test)
    return float(roc_auc_score(held_out.labels, scores_of(outcome, held_out)[0]))


GUESSES = (0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0)
"""Epsilons of the table in docs/how-to/choose-epsilon.md."""


def main_epsilons(argv: list[str]) -> int:
    """What an epsilon means: how often an attacker guesses right, and how many records a good model needs.

    The attacker knows all records but one, sees everything that was released, and is asked whether the one was among
    them. Exact for Gaussian noise (Dong, Roth and Su 2022, section 2): right with a chance of at most Phi(mu / 2) when
    both answers are as likely; of those who are in, at most Phi(Phi^-1(.01) + mu) are found at 1 % of false alarms.
    """
    harness.arguments("epsilons", main_epsilons.__doc__, data="unused").parse_args(argv)
    normal = NormalDist()
    print(f"delta {DELTA:g}\n")
    print("| epsilon | mu | guesses right | found at 1 % false alarms | records for s = 1,000 | for s = 3,000 |")
    print("| --- | --- | --- | --- | --- | --- |")
    for epsilon in GUESSES:
        mu = mu_of(epsilon, DELTA)
        right, found = normal.cdf(mu / 2), normal.cdf(normal.inv_cdf(0.01) + mu)
        needed = " | ".join(f"{math.ceil(signal / mu / 100) * 100:,}" for signal in (1_000, 3_000))
        print(f"| {epsilon:g} | {mu:.3f} | {right:.1%} | {found:.1%} | {needed} |")
    return 0
