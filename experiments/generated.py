"""Tasks from scikit-learn's generators, as the papers use them, with bounds declared beforehand."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import make_classification, make_regression

from experiments.datasets import Table, number

N_RECORDS = 50_000
BOUND = 10.0
LABEL_BOUND = 600.0


def generated_classes(n_records: int = N_RECORDS) -> Table:
    """Two classes, 30 % positive, 20 features of which 8 inform."""
    x, y = make_classification(n_records, 20, n_informative=8, n_redundant=4, weights=[0.7], random_state=0)
    label = {"name": "y", "type": "binary", "classes": ["0", "1"]}
    return Table("generated classes", _features(20), _columns(x), y.astype(np.int64), label)


def generated_numbers(n_records: int = N_RECORDS) -> Table:
    """A regression: 20 features of which 8 inform, linearly, with noise of standard deviation 20."""
    x, y = make_regression(n_records, 20, n_informative=8, noise=20.0, random_state=0)
    label = {"name": "y", "type": "regression", "min": -LABEL_BOUND, "max": LABEL_BOUND}
    return Table("generated numbers", _features(20), _columns(x), np.clip(y, -LABEL_BOUND, LABEL_BOUND), label)


def _features(count: int) -> tuple[dict[str, object], ...]:
    return tuple(number(f"x{index}", -BOUND, BOUND) for index in range(count))


def _columns(x: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(x.astype(np.float32).T)
