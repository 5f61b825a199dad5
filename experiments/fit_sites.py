"""How much longer a fit over sites takes than one without: rows summed at once, and under masks.

Made-up rows: 20 even features, of which three decide the class. Bounds, classes and the number of rows are declared,
and all other parameters are the defaults. Seconds are the least of several fits; of masked sums, of one.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from experiments import harness
from hedgerow import DPGBDTClassifier

ROWS = (5_000, 50_000)
SITES = (1, 3, 10, 50)
N_FEATURES = 20


def main(argv: list[str]) -> int:
    """Print seconds, and their ratio to those without sites."""
    options = harness.arguments("fit_sites", __doc__, fits=(3, "fits of each kind")).parse_args(argv)
    print(f"{'rows':>6} {'sites':>5}  {'at once s':>9} {'ratio':>5}  {'masked s':>8} {'ratio':>5}")
    for n_rows in ROWS:
        draws = np.random.default_rng(0)
        X = draws.uniform(-1, 1, (n_rows, N_FEATURES))
        y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
        without = _seconds(X, y, None, False, options.fits)
        print(f"{n_rows:>6,} {'none':>5}  {without:>9.2f}", flush=True)
        for n_sites in SITES:
            sites = np.arange(n_rows) % n_sites
            clear = _seconds(X, y, sites, False, options.fits)
            line = f"{n_rows:>6,} {n_sites:>5}  {clear:>9.2f} {clear / without:>5.1f}"
            if n_sites in (3, 10):
                masked = _seconds(X, y, sites, True, 1)
                line += f"  {masked:>8.2f} {masked / without:>5.1f}"
            print(line, flush=True)
    return 0


def _seconds(X: Any, y: Any, sites: Any, is_masked: bool, n_fits: int) -> float:
    model = DPGBDTClassifier(bounds=(-1, 1), classes=[0, 1], n_records=len(y), secure_sums=is_masked)
    model.set_params(n_trees=2).fit(X, y, sites)
    model.set_params(n_trees="auto")
    took = []
    for _ in range(n_fits):
        begin = time.perf_counter()
        model.fit(X, y, sites)
        took.append(time.perf_counter() - begin)
    return min(took)
