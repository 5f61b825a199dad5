# SPDX-License-Identifier: Apache-2.0
"""Private boosted trees behind scikit-learn's interface.

    model = DPGBDTClassifier(epsilon=1).fit(X, y, sites=hospital_of_each_row)
    print(model.privacy_report_.text())

They run the real protocol in this process: each site is a node that sees its own rows only. What a plan calls public
(bounds, classes, the number of records) may be declared: ``bounds=[(0, 100), (18, 90)], classes=["no", "yes"],
n_records=10_000``. What is not, is found by noisy counts, which cost a small share of the same epsilon and stand in
the report. ``bounds="data"`` reads it off the data instead, and the report then says that the guarantee is void. What a
column of a table is (numbers, dates, truth values, texts) is found so as well: its type in pandas or polars may follow
from one cell. A matrix is of numbers.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length

from hedgerow.client.node import count_threads, use_threads
from hedgerow.data.arrow import collect, to_arrow
from hedgerow.data.columns import Place, category_indices, quote_cell, quote_names, read_texts
from hedgerow.data.columns import numbers as numbers_of
from hedgerow.data.raw_cells import RawColumn
from hedgerow.errors import DataError, UsageError, warn_caller, warn_owner
from hedgerow.estimators import base
from hedgerow.local.training import evaluate_federated
from hedgerow.losses.censored import concordance
from hedgerow.losses.survival import doubt_times, survival_codes
from hedgerow.plan.fields import as_text, ascending_numbers
from hedgerow.plan.names import looks_like_identifier
from hedgerow.plan.plan import Feature, Label, Plan
from hedgerow.plan.registry import label_kinds, named_losses
from hedgerow.privacy.statement import PROCESS
from hedgerow.survey.kinds import DATE, TRUTH


class DPGBDTClassifier(ClassifierMixin, base.PrivateTrees):
    """Boosted trees for two classes or more, with differential privacy for each record.

    Args:
        epsilon: the promise, > 0; infinity trains without noise, and the report says so.
        delta: a small probability that is added to what epsilon allows, in (0, 1); None takes 1e-6.
        n_trees, max_depth, learning_rate, joint_clip: "auto" decides from public numbers only (docs/defaults.md), and
            more than the number: with enough signal values are expected by their spread, which a rate turns off.
        n_candidates: split candidates per feature.
        split_method, weight_update, split_candidates, interaction, interaction_size, batch_size: as in a plan.
        accountant: "gdp", which is exact. "pld" and "rdp" say the same or more, to compare with other work.
        bounds: "private" finds by noisy counts what a column is and its bounds, for about 6 % of the budget. Or (min,
            max) per feature in order, or a dictionary by name or position (what it does not name is found), or one pair
            for all without categories: bounds=(0, 1). A pair says that a column is of numbers, or of dates. Values
            beyond are clamped; wide bounds cost little from about 10,000 rows at epsilon 1 on. Public: take pairs from
            knowledge, for a minimum or maximum of these rows shows one row to whoever sees the model, outside the
            guarantee, and nothing can notice. "data" reads bounds, categories and classes off the data: the guarantee
            is void.
        categories: dictionary from a feature's name or position to the list of its public categories. "from type", for
            one of them or for all, **takes as public** those that a column's type lists (pandas' `category`, polars'
            `Enum`): only for types from a code book, for `astype("category")` lists what stands in the rows. Text
            without categories is hashed into public buckets, 32 or as many as the signal carries.
        classes: the public list of classes; None finds a usual pair such as 0 and 1, false and true, or no and yes, by
            noisy counts, for 2 % of the budget, or else whole numbers from -128 to 1023, or texts of up to 16 bytes,
            for 2 % more. Rows of a class that is not found are left out.
        class_weight: dictionary from a class to how much a record of it counts (1 where it is not named), public: from
            a published rate, never counted from `y`. Only their ratios matter. All noise is for the largest, so what
            the others say is learned with less, and predicted chances are of classes that are weighed so.
        n_records: the public or declared number of records, best of those that are used: `max_rows_per_unit` of a unit
            at most. None counts them, with noise.
        monotonic_cst: what is known of how the chance of classes_[1] (or the number) goes with features: 1 where it
            never falls with a feature, -1 where it never rises, 0 where nothing is said. One per feature in order, or
            a dictionary by name or position. Only for numbers and dates, and not for three classes or more.
        interaction_cst: which features may meet in a tree: groups of names or positions, "pairwise" or
            "no_interactions"; features in no group are one more group.
        random_state: None takes structure and noise from the operating system. An integer seeds both: the same fit
            again, for experiments; anyone who knows it can remove the noise, so the report calls the guarantee void.
        n_jobs: threads; None means 1, -1 all.
        max_rows_per_unit: with `units` in `fit`: rows of one unit that are used at most, at all sites together. All
            noise grows with it.
        secure_sums: True adds up masked vectors of the sites, as a network would carry them, for the same trees. Sites
            without rows make up the three that masks want. False (the default) sums all rows at once, many times
            faster: they are all in this process anyway.
            The plan and the report say which it was.
        data_set: whose rows these are, as their owner calls them: the budget account that fits are charged to. None
            charges the one account of this process, whatever rows it is given.
        verbose: 1 shows on stderr how far a fit is that takes more than a second.

    Attributes:
        columns_: by a feature's name what it was read as, and where that is from: "declared", "found" by noisy counts,
            from its "type", or read off the "data".
        classes_: sorted. model_: the `Model`. privacy_report_, ledger_: what was promised and released.
        n_features_in_, feature_names_in_: as in scikit-learn; the model's features have these names, also behind a
            `ColumnTransformer` or `Pipeline` with `set_output(transform="pandas")`.

    Each fit spends its epsilon again, so a `GridSearchCV` over 10 settings with 5 folds is 51 fits. The report of its
    best estimator speaks of one of them, and its line "account" of all. `hedgerow.budget` sets a limit, and
    `hedgerow.tune` chooses among settings within one epsilon.
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
        bounds: Any = base.PRIVATE,
        categories: Mapping[Any, Any] | str | None = None,
        classes: Sequence[Any] | None = None,
        class_weight: Mapping[Any, float] | None = None,
        n_records: int | None = None,
        joint_clip: float | str = "auto",
        monotonic_cst: Any = None,
        interaction_cst: Any = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        max_rows_per_unit: int = 1,
        secure_sums: bool = False,
        data_set: str | None = None,
        verbose: int = 0,
    ) -> None:
        base.store_parameters(self, locals())

    def _prepare(self, X: Any, y: Any, sites: Any, units: Any) -> base.TrainingInputs:
        y, given = _take_one_column(y, X), getattr(self, "class_weight", None)
        # The classes may be unknown until the survey, so the weights are checked without them.
        weights: dict[Any, Any] = dict(given) if isinstance(given, Mapping) else {} if given is None else {None: None}
        if not all(isinstance(weight, numbers.Real) and float(weight) > 0 for weight in weights.values()):
            raise self._refuse_weights()
        cells = _read_values(y)
        if self._finds_classes and cells is not None:
            # Classify labels cell by cell, as a feature: one odd label may have decided the type of the whole array.
            table = self._read_table(X, cells)
            labels = RawColumn([to_arrow(cells, "y", "y")], Place("y", "y", 0))
            start = self._begin(table, len(cells), sites, units, Feature(name="y", type=""), labels)
            # The labels' type follows from the released findings, never from the type of y.
            if start.findings.label_kind == DATE:
                expected = "the dates: noisy counts find classes of whole numbers and texts only"
                raise UsageError("argument", code="classes", name="classes", value=None, expected=expected)
            is_truth = start.findings.label_kind == TRUTH
            self.classes_ = np.array([False, True]) if is_truth else np.array(start.findings.classes)
            own = labels.chunks[0]
            values = own.unique().to_pylist() if isinstance(own, pa.Array) else own
            indices = self._find_indices(values).tolist()
            classes = [*self.classes_.tolist(), None]
            matched = ((base.to_python(value), at) for value, at in zip(values, indices, strict=True) if at >= 0)
            if any(value != classes[index] for value, index in matched):
                self._warn_of_spelling()
            if others := list(weights.keys() - set(classes[:-1])):
                # This reveals nothing: the classes are released, and the weights are declared.
                warn_caller(_NO_CLASS.format(others=quote_names(others), classes=quote_names(classes[:-1])))
        elif self._leaves_out and cells is not None:
            kind = _PLAIN[cells.dtype.kind] if isinstance(cells, np.ndarray) else ""
            self.classes_ = self._read_declared_classes(cells, kind)
            if not set(weights) <= set(self.classes_.tolist()):
                raise self._refuse_weights()
            table, y = self._read_table(X, cells), cells
            listed = self._find_indices(cells) >= 0
            base.warn_about_left_out(listed, "data-label-outside")
            own = [cell for cell, is_listed in zip(cells, listed.tolist(), strict=True) if is_listed]
            declared = self.classes_.tolist()
            # Not every cell can be hashed, so only cells of a known kind go into the set.
            known = {cell for cell in own if _classify_value(cell)}
            if kind in ("", "text") and any(_is_written_otherwise(cell, declared) for cell in known):
                self._warn_of_spelling()
            start = self._begin(table, len(cells), sites, units, fits=listed)
        else:
            y, kind = _read_labels(y)
            table = self._read_table(X, y)
            y = column_or_1d(y, warn=True)
            if kind == "number":
                _require_finite(numbers_of(y, Place("y", "y", 0)).require())
            check_classification_targets(y)
            self.classes_ = self._read_declared_classes(y, kind)
            if kind == "text" and (others := list(set(y.tolist()) - set(self.classes_.tolist()))):
                # A label of no declared class is an error.
                if (_index_classes(others, self.classes_, may_be_others=True) >= 0).any():
                    self._warn_of_spelling()
            if not set(weights) <= set(self.classes_.tolist()):
                raise self._refuse_weights()
            start = self._begin(table, len(y), sites, units)
        texts = [as_text(value) for value in self.classes_.tolist()]
        label = {"type": "binary" if len(texts) == 2 else "multiclass", "classes": texts}
        label |= {"origin": self._find_origin_of_label(self.classes)}
        if weights:
            label["class_weights"] = [base.to_python(weights.get(name, 1)) for name in self.classes_.tolist()]
        # Pass the labels as given: numpy rounds whole numbers above 2^53 if one label is a float.
        return base.TrainingInputs(table, y if cells is None else cells, label, start)

    def _encode(self, y: Any, plan: Plan) -> NDArray[np.int32]:
        return self._find_indices(y)

    def _find_indices(self, y: Any) -> NDArray[np.int32]:
        may_be_others = self._finds_classes or self._leaves_out
        return _index_classes(y, self.classes_, may_be_others=may_be_others, are_found=self._finds_classes)

    def _choose_kept(self, labels: NDArray[np.int32]) -> NDArray[np.bool_] | None:
        # Keeping a row depends only on that row and on released classes.
        return labels >= 0 if self._finds_classes else None

    def _warn_of_spelling(self) -> None:
        warn_owner(_WRITTEN_OTHERWISE.format(classes=quote_names(self.classes_.tolist())), DataConversionWarning)

    def _refuse_weights(self) -> UsageError:
        expected = (
            "a dictionary from classes of y to public numbers above 0, such as {0: 1, 1: 9} where one record in ten is "
            'known to be of class 1. "balanced" would count the classes of private rows'
        )
        given: Any = getattr(self, "class_weight", None)
        return UsageError("argument", code="class-weight", name="class_weight", value=given, expected=expected)

    @property
    def _finds_classes(self) -> bool:
        return self.classes is None and not self._reads_data

    def _read_declared_classes(self, y: Any, kind: str) -> NDArray[Any]:
        if self.classes is None:
            classes = np.unique(y)
        else:
            classes, declared = _read_classes(self.classes)
            if kind and declared != kind:
                expected = f"classes of the same type as y, which holds {kind}s: nothing is converted"
                raise UsageError("argument", code="classes", name="classes", value=self.classes, expected=expected)
        if len(classes) < 2:
            raise DataError("data-one-class", n_classes=len(classes))
        return classes

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores: log-odds of classes_[1], float64 [n]; for three classes or more log-weights [n, n_classes]."""
        codes = self._read_codes(X)
        ensemble = self.model_.ensemble
        return ensemble.link.decision(ensemble.scores(codes))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of classes_, float64 [n, n_classes]."""
        codes = self._read_codes(X)
        return self.model_.ensemble.probabilities(codes)

    def staged_predict_proba(self, X: Any) -> Iterator[NDArray[np.float64]]:
        """Yield `predict_proba` of the first tree, of the first two, and so on; it is free.

        To choose a number of trees by private rows is a release that is not: see `score`.
        """
        codes = self._read_codes(X)
        return self.model_.ensemble.staged_probabilities(codes)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the exact accuracy on rows that you may show.

        Of private rows it is a release without noise, which no guarantee covers and no report counts. So are the scores
        by which a `GridSearchCV` chooses. `hedgerow.local.training.evaluate_federated` measures with noise that is
        accounted for, and `hedgerow.tune` chooses by such measurements.
        """
        return float(super().score(X, y, sample_weight))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row."""
        scores = self.decision_function(X)
        chosen = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[chosen])


class DPGBDTRegressor(RegressorMixin, base.PrivateTrees):
    """Boosted trees for a bounded number, with differential privacy for each record.

    Parameters are those of `DPGBDTClassifier`, but for `classes`:
        loss: "squared_error"; "poisson" for counts from 0 to a maximum: it models the logarithm of their mean;
            "quantile", "expectile" or "huber"; or one of these with its parameters, as a plan's [loss] has them:
            {"name": "huber", "delta": 0.1}.
        quantile: with loss="quantile" or "expectile", which one, between 0 and 1.
        label_bounds: the public (min, max) of y; labels beyond are clamped, and so are predictions. None finds it by
            noisy counts, rather too wide than too narrow, for 4 % of the budget, or refuses where too few records are
            seen.
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
        bounds: Any = base.PRIVATE,
        categories: Mapping[Any, Any] | str | None = None,
        label_bounds: tuple[float, float] | None = None,
        n_records: int | None = None,
        joint_clip: float | str = "auto",
        monotonic_cst: Any = None,
        interaction_cst: Any = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        max_rows_per_unit: int = 1,
        secure_sums: bool = False,
        data_set: str | None = None,
        verbose: int = 0,
        loss: str | Mapping[str, Any] = "squared_error",
        quantile: float | None = None,
    ) -> None:
        base.store_parameters(self, locals())

    def _prepare(self, X: Any, y: Any, sites: Any, units: Any) -> base.TrainingInputs:
        values = self._read_values_of_label(_take_one_column(y, X))
        table = self._read_table(X, values)
        is_known = self.label_bounds is not None or self._reads_data
        is_count = getattr(self, "loss", "") == "poisson"
        asked = None if is_known else Feature(name="y", type="numeric", integer=is_count)
        start = self._begin(table, len(values), sites, units, asked, values, np.isfinite(values))
        label = {**self._write_label(values, start), "origin": self._find_origin_of_label(self.label_bounds)}
        return base.TrainingInputs(table, values, label, start)

    def _read_values_of_label(self, y: Any) -> NDArray[np.float64]:
        """Read the labels as numbers; NaN for a row that is left out.

        Raises:
            DataError: a wrong type; or a row that does not fit, unless such rows are left out.
        """
        is_count, cells = getattr(self, "loss", "") == "poisson", _read_values(y)
        if self._leaves_out and cells is not None:
            if isinstance(cells, np.ndarray) and _PLAIN[cells.dtype.kind] != "number":
                raise DataError("data-label-not-number", kind=_PLAIN[cells.dtype.kind])
            values = np.array(numbers_of(cells, Place("y", "y", 0)).values, dtype=np.float64)
            values[~np.isfinite(values) | (is_count & (values < 0))] = np.nan
            base.warn_about_left_out(np.isfinite(values), "data-label-missing")
            return values
        values = _require_finite(column_or_1d(_read_numbers(y), warn=True))
        if is_count and (values < 0).any():
            raise DataError("data-label-outside", place="y", value=f"{values.min():g}")
        return values

    def _write_label(self, y: NDArray[np.float64], start: base.FitInputs) -> dict[str, Any]:
        """Return the plan's [label] without its name."""
        low, high = self._read_label_bounds(y, start)
        loss = getattr(self, "loss", "squared_error")
        if not self._named_loss and (quantile := getattr(self, "quantile", None)) is not None:
            expected = 'none, or loss="quantile" or "expectile" beside it'
            raise UsageError("argument", code="loss", name="quantile", value=quantile, expected=expected)
        if loss == "poisson":
            # Bounds read off the labels may miss 0, the smallest possible count.
            return {"type": "count", "min": 0.0 if self.label_bounds is None else low, "max": float(math.ceil(high))}
        if loss == "squared_error" or self._named_loss:
            return {"type": "regression", "min": low, "max": high}
        if loss not in label_kinds():
            expected = f'"squared_error", "poisson" for counts, or one of {", ".join(named_losses())}'
            raise UsageError("argument", code="loss", name="loss", value=loss, expected=expected)
        return {"type": loss, "min": low, "max": high}

    @property
    def _named_loss(self) -> dict[str, Any]:
        """The plan's [loss]; empty where the parameter `loss` names none."""
        loss, quantile = getattr(self, "loss", ""), getattr(self, "quantile", None)
        if isinstance(loss, str) and loss not in named_losses():
            return {}
        given: dict[str, Any] = {"name": loss} if isinstance(loss, str) else dict(loss)
        return given if quantile is None else {**given, "tau": base.to_python(quantile)}

    def _write_model_sections(self, structure_seed: int) -> dict[str, dict[str, Any]]:
        sections = super()._write_model_sections(structure_seed)
        return {**sections, "loss": self._named_loss} if self._named_loss else sections

    def _read_label_bounds(self, y: NDArray[np.float64], start: base.FitInputs) -> tuple[float, float]:
        if self.label_bounds is not None:
            try:
                low, high = (float(bound) for bound in self.label_bounds)
            except (TypeError, ValueError):
                raise UsageError(
                    "argument", code="bounds", name="label_bounds", value=self.label_bounds,
                    expected="two numbers, (min, max), or leave it out to find them by noisy counts",
                ) from None  # fmt: skip
            return low, high
        return base.finite_range(y) if start.findings.label is None else start.findings.label.bounds

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R² on rows that you may show; for private rows it is a release without noise.

        See `DPGBDTClassifier.score`.
        """
        return float(super().score(X, y, sample_weight))

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predicted values, float64 [n]."""
        codes = self._read_codes(X)
        return np.asarray(self.model_.predict_codes(codes), dtype=np.float64)

    def calibrate(
        self, X: Any, y: Any, epsilon: float, *, delta: float | None = None, sites: Any = None, units: Any = None
    ) -> DPGBDTRegressor:
        """Measure the errors with noise, on rows kept out of the training, for `predict_interval`.

        It is a federated evaluation (`hedgerow.local.training`); what it costs is added to `model_`,
        `privacy_report_` and `ledger_`. Calling it again costs again, and the last one counts.

        Args:
            X, y, sites, units: as in `fit`; `units` are needed where the model was fitted with them.
            epsilon: what it may cost, > 0; infinity for no noise, which voids the guarantee.
            delta: None takes the model's.

        Raises:
            UsageError: units or sites are missing.
            DataError: as `fit`.
            PrivacyError: for epsilon or delta out of range.
        """
        model, X = self._require_model(), collect(X)
        table, values = self._read_table(X), self._read_values_of_label(_take_one_column(y, X))
        check_consistent_length(X, values)
        rows: base.Rows = base.rows_by_site(sites, len(values), may_be_missing=self._leaves_out)
        plan, fits = model.plan, np.isfinite(values)
        if units is not None:
            rows = base.only_rows(rows, self._choose_within_bound(units, len(values), plan, fits))
        elif not fits.all():
            rows = base.only_rows(rows, fits)
        if units is None and plan.privacy.unit != "record":
            raise UsageError("units-missing", caller="calibrate")
        with use_threads(count_threads(self.n_jobs)) as n_threads:
            held_out = self._make_site_data(plan, table, values, rows)
            with self._open_run(units, epsilon, plan.privacy.delta if delta is None else delta) as run:
                found = evaluate_federated(
                    model, held_out, epsilon=epsilon, delta=delta, noise=self._randomness()[1], n_threads=n_threads
                )
        self.model_, self.ledger_ = found.model.evaluated(PROCESS, model), found.model.ledger
        self._note_account(run)
        return self

    def predict_interval(self, X: Any, coverage: float = 0.9) -> NDArray[np.float64]:
        """Predict intervals of the labels: float64 [n, 2], lower and upper end, within the label's bounds.

        Args:
            coverage: the share of labels that are to lie within, in (0, 1).

        Raises:
            UsageError: code "interval-coverage".
            ModelError: code "no-interval", before `calibrate`.
        """
        codes = self._read_codes(X)
        return self.model_.predict_interval_codes(codes, coverage)


class DPGBDTSurvival(base.PrivateTrees):
    """Boosted trees for the time to an event, with censoring, with differential privacy for each record.

    Time is cut into public intervals, and the trees say how a record raises the chance of the event in every interval
    (docs/how-to/time-to-event.md). The other parameters are those of `DPGBDTClassifier`:
        intervals: the ends of the intervals, above 0 and ascending; 8 to 16 suit most. Follow-up beyond the last counts
            as censored there. Public, and never found from the rows.
        event_codes: what `y` says of a censored record, and then of an event that was seen: (0, 1), or (1, 2) as in R.

    For `fit`, `y` is a structured array of two fields, whether the event was seen and when, as scikit-survival's `Surv`
    makes it; or two columns, event (0 or 1) and time (from 0 on).
    """

    _y_is_numeric = True

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        intervals: Sequence[float] | None = None,
        event_codes: Sequence[float] = (0, 1),
        delta: float | None = None,
        n_trees: int | str = "auto",
        max_depth: int | str = "auto",
        n_candidates: int = 32,
        interaction: str = "auto",
        interaction_size: int | str = "auto",
        learning_rate: float | str = "auto",
        accountant: str = "gdp",
        bounds: Any = base.PRIVATE,
        categories: Mapping[Any, Any] | str | None = None,
        n_records: int | None = None,
        joint_clip: float | str = "auto",
        monotonic_cst: Any = None,
        interaction_cst: Any = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        max_rows_per_unit: int = 1,
        secure_sums: bool = False,
        data_set: str | None = None,
        verbose: int = 0,
    ) -> None:
        base.store_parameters(self, locals())

    def _prepare(self, X: Any, y: Any, sites: Any, units: Any) -> base.TrainingInputs:
        if self.intervals is None:
            expected = "the public ends of 8 to 16 intervals of time, by what a study is about and never from the rows"
            raise UsageError("argument", code="intervals-missing", name="intervals", value=None, expected=expected)
        ends = ascending_numbers([base.to_python(end) for end in self.intervals], "intervals")
        codes = tuple(as_text(base.to_python(code)) for code in self.event_codes)
        about: dict[str, Any] = {"type": "survival", "event_codes": codes, "intervals": ends}
        label_kinds()["survival"].check(Label(name="label", event="event", **about))
        event, time, fits = _read_events_and_times(y, self.event_codes, may_be_missing=self._leaves_out)
        base.warn_about_left_out(fits, "data-label-outside")
        fates = survival_codes(time, event, ends)
        if doubt := doubt_times(np.bincount(fates[fits], minlength=2 * len(ends) + 1), ends, "time"):
            warn_owner(f"{doubt}.")
        table = self._read_table(X, fates)
        about["event"] = base.unused_name("event", self._list_features())
        if codes == ("0", "1"):
            # These are the plan's defaults.
            del about["event_codes"]
        return base.TrainingInputs(table, fates, about, self._begin(table, len(fates), sites, units, fits=fits))

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predict the risk of each row: its addition to the log-odds of the event in each interval.

        Returns:
            float64 [n].
        """
        codes = self._read_codes(X)
        return np.asarray(self.model_.predict_codes(codes), dtype=np.float64)

    def predict_survival_function(self, X: Any) -> NDArray[np.float64]:
        """Predict the chance of no event by the end of each interval: float64 [n, n_intervals], not ascending."""
        codes = self._read_codes(X)
        return self.model_.predict_survival_codes(codes)

    def score(self, X: Any, y: Any) -> float:
        """Return Harrell's concordance on rows that you may show.

        For private rows see `DPGBDTClassifier.score`.
        """
        event, time, _ = _read_events_and_times(y, self.event_codes)
        return concordance(time, event, self.predict(X))


def _read_events_and_times(
    y: Any, codes: Sequence[float], *, may_be_missing: bool = False
) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.bool_]]:
    """Return event bool [n], time float64 [n], and the rows that fit, bool [n], from two columns of `y`.

    Raises:
        UsageError: other labels; or a row that does not fit, unless `may_be_missing`.

    Args:
        may_be_missing: whether a row that does not fit is no error.
    """
    lost, seen = codes
    names = getattr(getattr(y, "dtype", None), "names", None)
    if names is not None and len(names) == 2:
        columns = [np.asarray(base.unmask(y[name])) for name in names]
    else:
        matrix = np.asarray(base.unmask(y))
        if matrix.ndim != 2 or matrix.shape[1] != 2:
            raise UsageError("survival-label", found=f"it has the shape {matrix.shape}")
        columns = [matrix[:, 0], matrix[:, 1]]
    try:
        event, time = (column.astype(np.float64) for column in columns)
    except (TypeError, ValueError, ArithmeticError):
        if not may_be_missing:
            raise UsageError("survival-label", found="it holds other things than numbers") from None
        event, time = (numbers_of(list(column), Place("y", "y", 0)).values for column in columns)
    fits = np.isin(event, (lost, seen)) & (time >= 0)
    if not may_be_missing and not np.isin(event, (lost, seen)).all():
        raise UsageError("survival-label", found=f"its first column has other values than {lost:g} and {seen:g}")
    if not may_be_missing and not fits.all():
        raise UsageError("survival-label", found="a time is missing or below 0")
    return event == seen, np.where(fits, time, 0.0), fits


def _take_one_column(y: Any, X: Any) -> Any:
    """Return `y`; for a table or matrix of one column return that column, with scikit-learn's warning.

    Warns also if `X` has a column with the name of `y`, or with an identifier's name.
    """
    y = base.unmask(collect(y))
    shape: tuple[int, ...] = getattr(y, "shape", ())
    if len(shape) == 2 and shape[1] == 1:
        warn_caller(_ONE_COLUMN, DataConversionWarning)
        if isinstance(y, pa.Table):
            y = y.column(0)
        else:
            y = y[y.columns[0]] if base.is_dataframe(y) else np.asarray(y).ravel()
    name, names = getattr(y, "name", None), list(getattr(X, "column_names", X.columns)) if base.is_dataframe(X) else []
    # polars names a series without a name "".
    if name not in (None, "") and name in names:
        warn_caller(_LABEL_IN_X.format(name=name), LabelInFeaturesWarning)
    if identifiers := [name for name in names if looks_like_identifier(str(name))]:
        warn_caller(_IDENTIFIERS.format(names=identifiers))
    return y


_WRITTEN_OTHERWISE = (
    "y writes classes otherwise than they are found or declared, {classes}: as texts where these are numbers or true "
    "and false, or with spaces around. Predictions are as they are found or declared, so a score that compares them "
    "with y fails. Give y in this way, or list its own values as classes=[...]."
)
_NO_CLASS = (
    "class_weight names {others}, and the classes that were found are {classes}: those weights are not used. Name "
    "classes as they were found, or declare them as classes=[...]."
)
_ONE_COLUMN = (
    "A column-vector y was passed when a 1d array was expected: its one column is taken. Give the column itself, such "
    'as table["outcome"].'
)
_LABEL_IN_X = (
    "X has a column {name!r}, and y is called so as well. If it is the label, the model predicts it from itself, and "
    "is worth nothing on rows without it. Take it out: X.drop(columns=[{name!r}])."
)
_IDENTIFIERS = (
    "X has {names}, which by their names tell people or rows apart: a model learns nothing general from it. Take them "
    "out: X.drop(columns={names}). If a person may have several rows, give the column of the person to fit, as units."
)


class LabelInFeaturesWarning(UserWarning):
    """A feature has the label's name."""


def _read_numbers(y: Any) -> Any:
    """Read `y` as an array of numbers, as `_read_labels` does; raise DataError for other labels."""
    y, kind = _read_labels(y)
    if kind not in ("", "number"):
        raise DataError("data-label-not-number", kind=kind)
    return numbers_of(y, Place("y", "y", 0)).require() if kind else y


def _require_finite(y: Any) -> NDArray[np.float64]:
    values = np.asarray(y, dtype=np.float64)
    if not np.isfinite(values).all():
        raise DataError("data-label-missing", place="y, which has NaN or infinity")
    return values


_PLAIN = {"b": "number", "i": "number", "u": "number", "f": "number", "U": "text", "M": "date"}
"""Kinds of labels by NumPy's kinds of types."""


def _read_labels(y: Any) -> tuple[Any, str]:
    """Read `y` as an array of one type, with the kind of its values: "number", "text" or "date".

    A `y` of another shape is returned unchanged with "", for scikit-learn to refuse.

    Raises:
        DataError: a value is missing, or values are of several types, or of one that no label can have.
    """
    values = _read_values(y)
    if values is None or not len(values):
        return y, ""
    if isinstance(values, np.ndarray):
        missing = np.flatnonzero(values != values)
        kinds: dict[str | None, Any] = {_PLAIN[values.dtype.kind]: values[0]}
    else:
        missing = np.flatnonzero([base.is_missing(value) for value in values])
        kinds = {_classify_value(value): value for value in values}
    if len(missing):
        raise DataError("data-label-missing", place=f"y[{missing[0]}]")
    if len(kinds) > 1 or None in kinds:
        names = sorted({type(value).__name__ for value in kinds.values()})
        raise DataError("data-label-type", types=", ".join(names))
    return values if isinstance(values, np.ndarray) else np.asarray(values), next(iter(kinds)) or ""


def _read_classes(classes: Any) -> tuple[NDArray[Any], str]:
    """Return the declared classes, sorted and distinct, and their kind as in `_read_labels`.

    Raises:
        UsageError: no list, several kinds, or a missing value.
    """
    values = None if isinstance(classes, str | bytes) or not isinstance(classes, Iterable) else list(classes)
    kinds = {_classify_value(value) for value in values or [None]}
    kind = kinds.pop()
    if values is None or kinds or kind is None or any(base.is_missing(value) for value in values):
        expected = 'the list of all classes that may occur, of one kind and none missing, such as ["no", "yes"]'
        raise UsageError("argument", code="classes", name="classes", value=classes, expected=expected)
    return np.unique(np.asarray(values)), kind


def _read_values(y: Any) -> NDArray[Any] | list[Any] | None:
    """Return the labels as an array of one plain type, or as a list; None if they are no column.

    In a list they keep their types, of which numpy would make one.
    """
    if isinstance(y, list | tuple):
        return list(y)
    try:
        array = np.asarray(y)
    except (TypeError, ValueError):
        return None
    if array.ndim != 1:
        return None
    declared = str(getattr(y, "type" if isinstance(y, pa.Array | pa.ChunkedArray) else "dtype", "")).lower()
    if array.dtype.kind == "f" and declared.startswith(("int", "uint")):
        # With a missing value numpy would use floats, and round whole numbers above 2^53 in all other rows.
        return list(y.to_pylist() if isinstance(y, pa.Array | pa.ChunkedArray) else y)
    return array if array.dtype.kind in _PLAIN else list(array)


def _is_written_otherwise(cell: Any, declared: Sequence[Any]) -> bool:
    """Return whether a label differs in type or spaces from the listed class that it was matched to."""
    kind, value = _classify_value(cell), base.to_python(cell)
    return kind in ("text", "number") and not any(_classify_value(own) == kind and own == value for own in declared)


def _classify_value(value: Any) -> str | None:
    """Classify a label as "number", "text" or "date"; None for any other type."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, numbers.Real | np.bool_ | Decimal):
        return "number"
    if isinstance(value, date | np.datetime64):
        return "date"
    return None


def _index_classes(
    y: Any, classes: NDArray[Any], *, may_be_others: bool = False, are_found: bool = False
) -> NDArray[np.int32]:
    """Return the index of each label in `classes`, by the rules of `hedgerow.data.columns`.

    A label of no class is below 0 with `may_be_others`, otherwise an error. Found whole numbers are compared as
    numbers, as they were counted: 01 is 1, which is how pandas reads it unless another label is text.
    """
    if are_found and classes.dtype.kind == "i":
        values = numbers_of(y, Place("y", "y", 0)).values
        places = np.minimum(np.searchsorted(classes, values), len(classes) - 1)
        return np.where(classes[places] == values, places, -1).astype(np.int32)
    texts = read_texts(classes, Place("classes", "classes", 0))
    read = category_indices(y, [str(text) for text in texts], Place("y", "y", 0))
    indices = read.values if may_be_others else read.require()
    outside = indices < 0
    if np.any(outside) and not may_be_others:
        first = int(np.argmax(outside))
        raise DataError("data-label-outside", place=f"y[{first}]", value=quote_cell(y[first]))
    return indices.astype(np.int32)
