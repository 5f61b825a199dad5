"""Private boosted trees behind scikit-learn's interface.

    model = DPGBDTClassifier(
        epsilon=1, delta=1e-6, bounds=[(0, 100), (18, 90)], classes=["no", "yes"], n_records=10_000
    )
    model.fit(X, y, sites=hospital_of_each_row)
    print(model.privacy_report_.text())

They run the real protocol in this process: each site is a node that sees its own rows only. What a plan calls public
(bounds, categories, classes, the number of records) is a parameter here, because reading it off private data would
leak it; ``bounds="data"`` reads it off nevertheless, and the report then says that the guarantee is void.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets

from hedgerow.estimator_base import PrivateTrees, keep_parameters
from hedgerow.estimator_tables import FROM_DATA, finite_range
from hedgerow.protocol.errors import DataError, UsageError
from hedgerow.protocol.plan import Plan
from hedgerow.protocol.plan_fields import as_text
from hedgerow.site_data import scaled_label
from hedgerow.trees.ensemble import LOGISTIC, SOFTMAX


class DPGBDTClassifier(ClassifierMixin, PrivateTrees):
    """Boosted trees for two classes or more, with differential privacy for each record.

    Parameters:
        epsilon: the promise, > 0; infinity trains without noise, and the report says so.
        delta: the chance that the promise fails, in (0, 1); None takes 1e-6.
        n_trees, max_depth, learning_rate, joint_clip: "auto" decides from public numbers only (docs/defaults.md).
        n_candidates: split candidates per feature.
        split_method, weight_update, split_candidates, interaction, interaction_size, batch_size: as in a plan.
        accountant: "gdp" (exact) or "rdp".
        bounds: (min, max) per feature in order, or a dictionary by name or position; values beyond are clamped. Public.
            "data" reads bounds, categories and classes off the data, which voids the guarantee.
        categories: dictionary from a feature's name or position to the list of its public categories.
        classes: the public list of classes; None reads them off y, which is allowed with bounds="data" only.
        n_records: the public or declared number of records; None takes len(X), which is
            allowed with bounds="data" only.
        random_state: None takes structure and noise from the operating system. An integer seeds both: the same fit
            again, for experiments; whoever knows it can remove the noise, so the report calls the guarantee void.
        n_jobs: threads; None means 1, -1 all.

    Attributes:
        classes_: sorted. model_: the `Model`. privacy_report_, ledger_: what was promised and released.
        n_features_in_, feature_names_in_: as in scikit-learn.
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        n_trees: int | str = "auto",
        max_depth: int | str = "auto",
        n_candidates: int = 32,
        split_method: str = "totally_random",
        weight_update: str = "newton",
        split_candidates: str = "adaptive",
        interaction: str = "auto",
        interaction_size: int | str = "auto",
        batch_size: int | str = 1,
        learning_rate: float | str = "auto",
        accountant: str = "gdp",
        bounds: Any = None,
        categories: Mapping[Any, Sequence[Any]] | None = None,
        classes: Sequence[Any] | None = None,
        n_records: int | None = None,
        joint_clip: float | str = "auto",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        keep_parameters(self, locals())

    def fit(self, X: Any, y: Any, sites: Any = None) -> DPGBDTClassifier:
        """Train over the sites that hold the rows.

        Args:
            X: matrix or data frame [n, n_features]; NaN is missing.
            y: classes [n].
            sites: the name of each row's site [n]; None for one site.

        Raises:
            UsageError: bounds, categories or classes are missing or do not fit X.
            DataError: y holds a class that is not listed.
            PlanError: a parameter is out of its range.
        """
        table, y = self._table_and_label(X, y)
        y = np.asarray(y)
        check_classification_targets(y)
        classes = self._declared_classes(y)
        texts = [as_text(value) for value in classes.tolist()]
        self.classes_ = classes
        self._train(table, y, {"type": "binary" if len(texts) == 2 else "multiclass", "classes": texts}, sites)
        return self

    def _encoded(self, y: NDArray[Any], plan: Plan) -> NDArray[np.int32]:
        return _class_indices(y, self.classes_)

    def _declared_classes(self, y: NDArray[Any]) -> NDArray[Any]:
        if self.classes is not None:
            classes = np.unique(np.asarray(self.classes))
        elif isinstance(self.bounds, str) and self.bounds == FROM_DATA:
            classes = np.unique(y)
        else:
            raise UsageError(
                "classes is not given.",
                cause="Which classes exist is a public input: a rare one, read off private labels, tells of somebody.",
                remedy='Give classes=[...], or bounds="data" for a model without a guarantee.',
                code="classes",
            )
        if len(classes) < 2:
            raise DataError(
                f"There must be at least two classes, and there is {len(classes)} class.",
                cause="Every label is the same." if self.classes is None else "",
                remedy="Give all the classes that may occur as classes=[...].",
                code="data-one-class",
            )
        return classes

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores: log-odds of classes_[1], float64 [n]; for three classes or more log-weights [n, n_classes]."""
        codes = self._codes(X)
        ensemble = self.model_.ensemble
        if ensemble.link == LOGISTIC:
            return np.asarray(ensemble.scores(codes)[0])
        if ensemble.link == SOFTMAX:
            return np.asarray(ensemble.scores(codes).T)
        logs = np.log(np.clip(ensemble.probabilities(codes), 1e-12, 1))
        return np.asarray(logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of classes_, float64 [n, n_classes]."""
        codes = self._codes(X)
        return self.model_.ensemble.probabilities(codes)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        scores = self.decision_function(X)
        chosen = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[chosen])


class DPGBDTRegressor(RegressorMixin, PrivateTrees):
    """Boosted trees for a bounded number, with differential privacy for each record.

    Parameters are those of `DPGBDTClassifier`, but for `classes`:
        label_bounds: the public (min, max) of y; labels beyond are clamped, and so are predictions. None reads it
            off y, which is allowed with bounds="data" only.
    """

    _y_is_numeric = True

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        n_trees: int | str = "auto",
        max_depth: int | str = "auto",
        n_candidates: int = 32,
        split_method: str = "totally_random",
        weight_update: str = "newton",
        split_candidates: str = "adaptive",
        interaction: str = "auto",
        interaction_size: int | str = "auto",
        batch_size: int | str = 1,
        learning_rate: float | str = "auto",
        accountant: str = "gdp",
        bounds: Any = None,
        categories: Mapping[Any, Sequence[Any]] | None = None,
        label_bounds: tuple[float, float] | None = None,
        n_records: int | None = None,
        joint_clip: float | str = "auto",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        keep_parameters(self, locals())

    def fit(self, X: Any, y: Any, sites: Any = None) -> DPGBDTRegressor:
        """Train over the sites that hold the rows; arguments and errors as in `DPGBDTClassifier.fit`."""
        table, y = self._table_and_label(X, y)
        values = np.asarray(y, dtype=np.float64)
        if not np.isfinite(values).all():
            raise DataError(
                "y contains NaN or infinity.", remedy="Remove rows without a label.", code="data-label-missing"
            )
        low, high = self._declared_label_bounds(values)
        self._train(table, values, {"type": "regression", "min": low, "max": high}, sites)
        return self

    def _encoded(self, y: NDArray[Any], plan: Plan) -> NDArray[np.int32]:
        return scaled_label(y, plan.label)

    def _declared_label_bounds(self, y: NDArray[np.float64]) -> tuple[float, float]:
        if self.label_bounds is not None:
            low, high = self.label_bounds
            return float(low), float(high)
        if isinstance(self.bounds, str) and self.bounds == FROM_DATA:
            return finite_range(y)
        raise UsageError(
            "label_bounds is not given.",
            cause="The range of the label is a public input: reading it off private labels would leak the extremes.",
            remedy='Give label_bounds=(min, max), or bounds="data" for a model without a guarantee.',
            code="label-bounds",
        )

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predicted values, float64 [n]."""
        codes = self._codes(X)
        return np.asarray(self.model_.predict_codes(codes), dtype=np.float64)


def _class_indices(y: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int32]:
    """The index of each label in the sorted `classes`."""
    index = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
    outside = classes[index] != y
    if np.any(outside):
        first = int(np.argmax(outside))
        raise DataError(
            f"y[{first}] is none of the declared classes.",
            cause=f"The value is {y[first]!r}.",
            remedy="Remove or correct such rows, or list the class in classes=[...].",
            code="data-label-outside",
        )
    return index.astype(np.int32)
