"""Training time from raw array to model beside XGBoost's hist, in one run: ratios on 1,000,000 x 28 floats.

Both start from the same float32 array and end with a model; XGBoost's clock includes its own binning (max_bin 32, same
number of trees and depth). The privacy side draws exact noise from the operating system. Memory is what training
allocates beyond the input, as the allocator counts it.
"""

from __future__ import annotations

import os
import time
import tracemalloc
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

from experiments.datasets import BINARY, number
from experiments.harness import arguments, run_plainly
from hedgerow.data.site_data import SiteData
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SystemNoise
from hedgerow.trees.binning import build_grid

N_FEATURES = 28


def main(argv: list[str]) -> int:
    """Print seconds and ratios for one thread, then our own scaling to more threads."""
    parser = arguments(
        "speed", __doc__, data="unused: the array is made here", rows=(1_000_000, "of the array"),
        trees=(100, "of a model"), repeats=(3, "runs of each; the fastest counts"),
    )  # fmt: skip
    options = parser.parse_args(argv)
    random = np.random.default_rng(0)
    rows = random.normal(size=(options.rows, N_FEATURES)).astype(np.float32)
    log_odds = rows[:, 0] + np.sin(2 * rows[:, 1]) + rows[:, 2] * rows[:, 3]
    labels = (random.random(options.rows) < 1 / (1 + np.exp(-log_odds))).astype(np.int32)
    kinds: dict[str, int | str] = {"k = 1": 1, "all features": "all"}
    for size in kinds.values():  # compile before the clock starts
        _ours(rows[:4096], labels[:4096], 2, size, 1)
    extra = max(_extra_memory(rows, labels, options.trees, size) for size in kinds.values())
    ours = {name: _best(options.repeats, _ours, rows, labels, options.trees, size, 1) for name, size in kinds.items()}
    theirs = _best(options.repeats, _xgboost, rows, labels, options.trees)
    print(f"{options.rows:,} x {N_FEATURES} float32, T={options.trees}, depth 4, raw array to model, one thread")
    print(f"{'XGBoost hist, max_bin 32':<28} {theirs:>7.2f} s")
    for name, seconds in ours.items():
        print(f"{'Hedgerow, ' + name:<28} {seconds:>7.2f} s   {theirs / seconds:>5.1f} times faster")
    print(f"memory beyond the input: {extra / rows.size:.2f} bytes per value")
    for threads in range(2, (os.cpu_count() or 1) + 1):
        for name, size in kinds.items():
            seconds = _best(options.repeats, _ours, rows, labels, options.trees, size, threads)
            print(f"Hedgerow, {name}, {threads} threads: {seconds:.2f} s, {ours[name] / seconds:.2f} times one thread")
    return 0


def _best(repeats: int, run: Any, *arguments: Any) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run(*arguments)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _ours(rows: NDArray[np.float32], labels: NDArray[np.int32], n_trees: int, size: int | str, n_threads: int) -> None:
    plan = Plan.from_dict(
        {
            "version": 1,
            "name": "speed",
            "privacy": {"epsilon": 1.0, "delta": 1e-6, "n_records": len(rows)},
            "label": BINARY,
            "features": [number(f"x{index}", -6, 6) for index in range(N_FEATURES)],
            "model": {"n_trees": n_trees, "max_depth": 4, "interaction": "cyclical", "interaction_size": size},
        }
    )
    data = SiteData(build_grid(plan).encode_matrix(rows, n_threads), labels)
    run_plainly(plan, data, SystemNoise(os.urandom), n_threads=n_threads)


def _xgboost(rows: NDArray[np.float32], labels: NDArray[np.int32], n_trees: int) -> None:
    settings = {"tree_method": "hist", "max_bin": 32, "max_depth": 4, "objective": "binary:logistic", "nthread": 1}
    matrix = xgboost.QuantileDMatrix(rows, labels, max_bin=32, nthread=1)
    xgboost.train(settings, matrix, num_boost_round=n_trees)


def _extra_memory(rows: NDArray[np.float32], labels: NDArray[np.int32], n_trees: int, size: int | str) -> int:
    """Largest number of bytes that one training run holds at once, beyond its input."""
    tracemalloc.start()
    _ours(rows, labels, n_trees, size, 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak
