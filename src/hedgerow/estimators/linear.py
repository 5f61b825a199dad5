# SPDX-License-Identifier: Apache-2.0
"""Private linear models behind scikit-learn's interface: boosted AdaSSP, over the same sites, noise and report.

    model = DPLinearClassifier(epsilon=1).fit(X, y, sites=hospital_of_each_row)

Numeric features count as the number of their public grid cell (half linear, half logarithmic) or its middle, categories
as one column each. Bounds, categories, classes and the number of records are declared or found, as for trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hedgerow.errors import UsageError
from hedgerow.estimators.base import PRIVATE, TrainingInputs, store_parameters, to_python
from hedgerow.estimators.boosted import DPGBDTClassifier, DPGBDTRegressor

_OWN_PARAMETERS = ("loss", "rounds", "scale", "row_norm", "gram_share", "ridge", "learning_rate")


class _LinearSections:
    """The plan of a linear model."""

    def _write_model_sections(self, structure_seed: int) -> dict[str, dict[str, Any]]:
        own = {name: to_python(getattr(self, name)) for name in _OWN_PARAMETERS if hasattr(self, name)}
        return {"model": {"algorithm": "adassp"}, "adassp": own}


class DPLinearClassifier(_LinearSections, DPGBDTClassifier):
    """A boosted linear model for two classes, with differential privacy for each record.

    Args:
        epsilon, delta, accountant, bounds, categories, classes, n_records: as in `DPGBDTClassifier`.
        monotonic_cst, random_state, n_jobs, max_rows_per_unit, secure_sums, verbose: as in `DPGBDTClassifier`.
        data_set: as in `DPGBDTClassifier`.
        loss: "auto" (which is "logistic"), "squared" or "hinge". Probabilities are calibrated for the first only.
        rounds, scale, row_norm, gram_share, ridge, learning_rate: as in a plan's [adassp].

    Its attributes are those of `DPGBDTClassifier`.
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        loss: str = "auto",
        rounds: int | str = "auto",
        scale: str = "grid",
        row_norm: float | str = "auto",
        gram_share: float = 0.6,
        ridge: float | None = None,
        learning_rate: float = 1.0,
        accountant: str = "gdp",
        bounds: Any = PRIVATE,
        categories: Mapping[Any, Any] | str | None = None,
        classes: Sequence[Any] | None = None,
        n_records: int | None = None,
        monotonic_cst: Any = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        max_rows_per_unit: int = 1,
        secure_sums: bool = False,
        data_set: str | None = None,
        verbose: int = 0,
    ) -> None:
        store_parameters(self, locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _train(self, ready: TrainingInputs) -> None:
        if ready.label["type"] == "multiclass":
            raise UsageError("classes-binary", count=len(ready.label["classes"]))
        super()._train(ready)


class DPLinearRegressor(_LinearSections, DPGBDTRegressor):
    """A boosted linear model for a bounded number, with differential privacy for each record.

    Parameters are those of `DPLinearClassifier`, but for `loss` (the squared one) and `classes`:
        label_bounds: as in `DPGBDTRegressor`.
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        rounds: int | str = "auto",
        scale: str = "grid",
        row_norm: float | str = "auto",
        gram_share: float = 0.6,
        ridge: float | None = None,
        learning_rate: float = 1.0,
        accountant: str = "gdp",
        bounds: Any = PRIVATE,
        categories: Mapping[Any, Any] | str | None = None,
        label_bounds: tuple[float, float] | None = None,
        n_records: int | None = None,
        monotonic_cst: Any = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        max_rows_per_unit: int = 1,
        secure_sums: bool = False,
        data_set: str | None = None,
        verbose: int = 0,
    ) -> None:
        store_parameters(self, locals())
