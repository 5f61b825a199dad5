# SPDX-License-Identifier: Apache-2.0
"""The model, which is the result of a run, in memory and as a file.

A file is one JSON object in a fixed order of keys, so equal models are equal bytes. It is read, checked and written
whole or not at all. Its `checksum` is the SHA-256 of everything else in that canonical form: it catches accidents and
edits, not a forger, who can compute it as well.
"""

from __future__ import annotations

import errno
import hashlib
import html
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.data.cells import CellsWarning, describe_cells
from hedgerow.data.units import records_from_columns
from hedgerow.errors import EnvironmentFault, ModelError, PlanError, PrivacyError, UsageError, warn_caller, warn_owner
from hedgerow.evaluation.estimates import ErrorHistogram
from hedgerow.methods.registry import find_method
from hedgerow.models.exports import to_xgboost
from hedgerow.models.formats import FORMATS
from hedgerow.plan.fields import require_plain
from hedgerow.plan.plan import DEFAULT_ALGORITHM, MAX_NAMED, PLAN_VERSION, Plan
from hedgerow.plan.registry import (
    AbsentLoss,
    AbsentMethod,
    label_kinds,
    list_foreign_parts,
    named_losses,
    rules_by_method,
    section_name,
)
from hedgerow.privacy.accounts import AccountState
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    GaussianEvent,
    LocalGaussianEvent,
    UnnoisedEvent,
)
from hedgerow.privacy.ledger import EVALUATION_KINDS, Ledger, read_prepared_ledger
from hedgerow.privacy.outlook import count_at_most, find_noise_factor, outlook_of, replace_count
from hedgerow.privacy.report import PrivacyContext, PrivacyReport, build_lazy_report, check_claims
from hedgerow.privacy.statement import Depth, Topic
from hedgerow.protocol.refusals import Salvage
from hedgerow.protocol.votes import MAX_VOTES, Tally
from hedgerow.trees.binning import CodeArray
from hedgerow.trees.contributions import contributions
from hedgerow.trees.ensemble import Ensemble, ensemble_from_dict, ensemble_to_dict
from hedgerow.version import __version__

if TYPE_CHECKING:
    from hedgerow.models.bands import ShapeBands

Columns = Mapping[str, Any]
"""Column name -> numpy array [n]: numbers (NaN where missing), or text for categories (None or "" where missing)."""

_GAUSSIAN = (
    GaussianEvent, DiscreteGaussianEvent, DiscreteGaussianSumEvent, LocalGaussianEvent, UnnoisedEvent,
)  # fmt: skip
"""The costs that releases of any method can have, evaluations among them."""


# JSON has no infinity, and a plan without privacy has an infinite epsilon.
_INFINITE = "infinite"


_MANY = 2**32
"""Sites and drawings of a run are fewer."""


class RenamedWarning(UserWarning):
    """An export has other names than the plan."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """Predictions as exact Shapley values, which add up with the base to the margin.

    The margin of two classes is the log-odds of the last one; of several classes, each one's log-weight. Of a number it
    is the value in units of the label before it is clipped to the bounds; of a count, the logarithm of the mean.
    Averaging methods have averaged shares.

    Attributes:
        base: the margin of a record of which nothing is known; float64 [n_classes] with three classes or more.
        values: float64 [n, n_features], or [n, n_features, n_classes].
        feature_names: in the plan's order.
    """

    base: float | NDArray[np.float64]
    values: NDArray[np.float64]
    feature_names: tuple[str, ...]

    def _repr_html_(self) -> str:
        """Return how large each feature's contributions are on average, the largest first, as a table for notebooks."""
        n_each = max(1, self.values.size // max(1, len(self.feature_names)))
        sizes = np.abs(self.values).sum(axis=(0, *range(2, self.values.ndim))) / n_each
        rows = "".join(
            f"<tr><th>{html.escape(self.feature_names[each])}</th><td>{sizes[each]:.3g}</td></tr>"
            for each in np.argsort(-sizes, kind="stable")
        )
        return f"<table><caption>Mean size of contributions to {len(self.values)} predictions</caption>{rows}</table>"


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model with everything that was promised about it.

    It holds what was released and nothing else: no record, no count of records, no site's share. Two models are equal
    when their files are (`to_bytes`).

    Attributes:
        plan: the plan that all parties had agreed on.
        ensemble: the trees.
        ledger: every release that went into them.
        report: the cost of the releases.
        sites: the names of those who took part, when they agreed to be named.
        created_with: the version of Hedgerow that trained it.
        salvaged: when its run could not go on: why, and of how many rounds it is. What the ledger holds beyond these
            was paid for all the same.
        errors: for numbers, the histogram of errors that the last evaluation on its account released; prediction
            intervals follow from it. None without such an evaluation, and in files of older versions.
    """

    plan: Plan
    ensemble: Ensemble
    ledger: Ledger
    report: PrivacyReport
    sites: tuple[str, ...] = ()
    created_with: str = __version__
    salvaged: Salvage | None = None
    errors: ErrorHistogram | None = None

    def __post_init__(self) -> None:
        # A plan may declare more records than a run uses; what was released says so, whatever made the report.
        object.__setattr__(self, "report", self.report.counted(self.plan, self._count_at_most()))

    def _count_at_most(self) -> int | None:
        weights = self.ensemble.leaf_weights
        # The count rests on this version's largest Hessian and gradient; another version's default may have had others.
        if weights is None or not len(weights) or self.created_with != __version__:
            return None
        return count_at_most(self.plan, self.ledger, weights[0].tolist())

    @property
    def next_round(self) -> int:
        """The number of the next release on its account, counted from the first of its training."""
        return self.ledger.n_rounds - len(self.plan.prepared)

    @property
    def bounds_text(self) -> str:
        """The bounds of predicted numbers, and the fate of labels beyond; "" for other labels."""
        label = self.plan.label
        if not label.kind.is_number:
            return ""
        return f"{label.kind.describe(label)}; labels beyond counted as the bound, and no prediction is beyond"

    @property
    def level_text(self) -> str:
        """The reach of the noise on mean predictions; "" for a model whose level was not released."""
        label, levels = self.plan.label, self.ensemble.levels
        if not levels:
            return ""
        names = label.classes[-len(levels) :] if label.classes else (label.event or label.name,)
        of = "chance of" if label.classes else "number of events" if label.event else "predicted"
        said = [
            f"mean {of} {name} about {level.mean:.3g}, off by {level.reach:.2g} at most"
            + " (open)" * level.is_open(self._least_label)
            for name, level in list(zip(names, levels, strict=True))[:MAX_NAMED]
        ]
        doubt = "; the noise leaves the level open: such predictions may all be wrong by one factor of more than 1.5"
        return "; ".join(said) + ", at 95 % of the noise" + doubt * self.has_open_level

    @property
    def has_open_level(self) -> bool:
        """Whether the noise may move a mean prediction by more than a factor of 1.5."""
        return any(level.is_open(self._least_label) for level in self.ensemble.levels)

    @property
    def _least_label(self) -> float:
        return self.plan.label.bounds[0] if self.plan.label.kind.is_number else 0.0

    def __repr__(self) -> str:
        """Return a summary of the model and its promise, in a few lines."""
        return "\n".join([f"Model of {self.plan.name!r}", *(f"  {name:9} {text}" for name, text in self._summary())])

    def _repr_html_(self) -> str:
        """Return a summary of the model, its promise and its run, as a table for notebooks."""
        facts = [*self._summary(), *self._statement()]
        rows = "".join(f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in facts)
        return f"<table><caption>Model of {html.escape(self.plan.name)}</caption>{rows}</table>"

    def _summary(self) -> list[tuple[str, str]]:
        label, ensemble = self.plan.label, self.ensemble
        salvaged = [] if self.salvaged is None else [("salvaged", self.salvaged.text())]
        values, bounds = label.kind.describe(label), self.bounds_text
        return [
            ("predicts", f"{label.name} ({label.type}, {values}) from {len(self.plan.features)} features"),
            *([("loss", self.plan.loss_text)] if self.plan.loss else []),
            *([("bounds", bounds)] if bounds else []),
            ("trees", f"{ensemble.n_trees}, start and calibration included, from {len(self.ledger)} releases"),
            *([("known", "; ".join(self.plan.known))] if self.plan.known else []),
            *([("level", self.level_text)] if self.level_text else []),
            ("privacy", self.report.headline.removeprefix("Privacy guarantee: ").replace("below", "in its report")),
            *salvaged,
        ]

    def _statement(self) -> list[tuple[str, str]]:
        """Return the facts about its run for a person, by topic."""
        statement = self.report.statement
        told = ((topic, statement.list_texts(topic, depth=Depth.PERSON)) for topic in Topic)
        return [(topic.value, "; ".join(texts)) for topic, texts in told if texts]

    def report_text(self, date: str) -> str:
        """Return the model's report as text to file, with sites, outcome, version and the day of printing.

        Args:
            date: of that day, as ISO 8601. No file of a model has one: equal runs are equal bytes.
        """
        filed = self.filing(date)
        outcome = "complete" if self.salvaged is None else self.salvaged.text()
        level = f"  level             {self.level_text}\n" if self.level_text else ""
        return (
            f"{self.report.text(sites=self.sites)}\n"
            '  agreed plan       compare this digest with `hedgerow privacy` if the agreed plan has structure_seed = '
            '"joint", otherwise the digest of plan:\n'
            f"    {filed['agreed_digest']}\n  outcome           {outcome}\n{level}"
            f"  version           Hedgerow {filed['created_with']}\n  printed on        {date}"
        )

    def filing(self, date: str) -> dict[str, Any]:
        """Return the facts that `report_text` prints beside the report itself, as JSON values."""
        salvaged = {} if self.salvaged is None else {"salvaged": asdict(self.salvaged)}
        return {
            "plan_name": self.plan.name,
            "plan_digest": self.plan.digest,
            "agreed_digest": self.plan.with_joint_structure().digest,
            "sites": list(self.sites),
            "created_with": self.created_with,
            "outcome": "complete" if self.salvaged is None else "salvaged",
            "printed_on": date,
            "outlook": None
            if math.isinf(self.plan.privacy.epsilon)
            else asdict(
                outlook_of(replace_count(self.plan, self._count_at_most()), noise_factor=find_noise_factor(self.ledger))
            ),
            **salvaged,
        }

    def to_bytes(self) -> bytes:
        """Return the model file.

        It has the same bytes for the same plan, releases and sites, whichever site held which row.
        """
        extras: dict[str, Any] = {} if self.salvaged is None else {"salvaged": asdict(self.salvaged)}
        if self.errors is not None:
            extras["errors"] = self.errors.to_dict()
        if foreign := list_foreign_parts(self.plan):
            extras["made_by"] = foreign
        plan = self.plan.to_dict()
        if math.isinf(self.plan.privacy.epsilon):
            plan["privacy"]["epsilon"] = _INFINITE
        return to_bytes(
            {
                **extras,
                "created_with": self.created_with,
                "plan": plan,
                "ensemble": ensemble_to_dict(self.ensemble),
                "ledger": json.loads(self.ledger.to_json()),
                "report": self.report.claims(),
                "sites": list(self.sites),
            }
        )

    def save(self, path: str | Path) -> None:
        """Write the model file, whole or not at all.

        An older file of that name stays until the new one is complete.

        Raises:
            EnvironmentFault: the disk is full or the folder cannot be written to.
        """
        write_atomically(Path(path), self.to_bytes())

    @classmethod
    def load(cls, path: str | Path, *, exact: bool = False) -> Model:
        """Read a model file and check all of it.

        The report is computed from the ledger; the one in the file is compared with it, and refused if it says less.

        Args:
            path: the file.
            exact: whether to compare the stored figure of the accountant `pld` as well, which takes seconds. `report`
                never repeats it: it computes that figure too, when it is asked for it.

        Raises:
            ModelError: with one of the codes of docs/errors.md: "model-not-found", "model-not-json",
                "model-truncated", "model-wrong-kind", "model-newer-version", "model-grid-changed",
                "model-leaf-range", "model-invalid", "model-report-untrue", "model-checksum".
            EnvironmentFault: the file is there but cannot be read.
        """
        content = read_content(Path(path))
        model = _from_content(content, exact=exact)
        check_checksum(content)
        return model

    def encode(self, columns: Columns) -> CodeArray:
        """Return grid codes of raw columns: uint8 or uint16 [n_features, n].

        Warns (`CellsWarning`) of odd columns, such as those without values or beyond their bounds.

        Args:
            columns: by name, or a table of pandas, polars, Arrow or DuckDB.

        Raises:
            DataError: a column is missing, of another length, or of the wrong type.
        """
        records = records_from_columns(columns, self.plan, with_label=False)
        if odd := describe_cells(records.cells, self.plan):
            warn_owner(odd, CellsWarning)
        return self.ensemble.grid.encode(records.features)

    def predict(self, columns: Columns) -> NDArray[Any]:
        """Return class labels as text [n], or values in units of the label, float64 [n].

        Values are within the label's bounds.

        Of a time to an event it is the risk, float64 [n]: what a record adds to the log-odds of the event in every
        interval. The larger, the sooner; `predict_survival` has chances.

        Raises:
            DataError: as `encode`.
        """
        return self.predict_codes(self.encode(columns))

    def predict_interval(self, columns: Columns, coverage: float = 0.9) -> NDArray[np.float64]:
        """Return prediction intervals: float64 [n, 2], lower and upper ends, within the label's bounds.

        Args:
            coverage: the share of labels to lie within, in (0, 1); docs/reading-a-model.md says what is promised.

        Raises:
            DataError: as `encode`.
            UsageError: code "interval-coverage".
            ModelError: code "no-interval", for classes, or for a model of which no evaluation is known.
        """
        return self.predict_interval_codes(self.encode(columns), coverage)

    def predict_proba(self, columns: Columns) -> NDArray[np.float64]:
        """Return class probabilities: float64 [n, n_classes], in the order of the plan's classes.

        Raises:
            DataError: as `encode`.
            ModelError: code "no-probabilities", for a regression.
        """
        return self.predict_proba_codes(self.encode(columns))

    def predict_survival(self, columns: Columns) -> NDArray[np.float64]:
        """Return chances to be without the event at the end of each interval: float64 [n, K].

        The intervals are the plan's, and chances do not ascend.

        Raises:
            DataError: as `encode`.
            ModelError: code "no-survival", for another label.
        """
        return self.predict_survival_codes(self.encode(columns))

    def decision_scores(self, columns: Columns) -> NDArray[np.float64]:
        """Return sums of leaf values: float64 [n], or [n, n_classes] with three classes or more.

        The sums are log-odds of the last class (binary), log-weights per class (multiclass), the label scaled to
        [-1, 1] before clipping (regression), or averaged class shares when the plan averages.
        """
        return self.decision_scores_codes(self.encode(columns))

    def predict_codes(self, codes: CodeArray) -> NDArray[Any]:
        """Return the result of `predict` from grid codes [n_features, n]."""
        return self.ensemble.link.predict(self.ensemble.scores(codes), self.plan.label)

    def predict_interval_codes(self, codes: CodeArray, coverage: float = 0.9) -> NDArray[np.float64]:
        """Return the result of `predict_interval` from grid codes [n_features, n]."""
        half = self.half_width(coverage)
        middle = self.predict_codes(codes)
        return np.asarray(np.clip(np.stack([middle - half, middle + half], axis=1), *self.plan.label.bounds))

    def half_width(self, coverage: float) -> float:
        """Return half the width of prediction intervals, see `predict_interval`.

        It is the width before they are held to the label's bounds.
        """
        if not 0 < coverage < 1:
            expected = "a share above 0 and below 1, such as 0.9"
            raise UsageError("argument", code="interval-coverage", name="coverage", value=coverage, expected=expected)
        self._require("interval")
        if self.errors is None:
            raise ModelError("no-interval")
        return self.errors.half_width(coverage)

    def predict_proba_codes(self, codes: CodeArray) -> NDArray[np.float64]:
        """Return the result of `predict_proba` from grid codes [n_features, n]."""
        self._require("probabilities")
        return self.ensemble.probabilities(codes)

    def predict_survival_codes(self, codes: CodeArray) -> NDArray[np.float64]:
        """Return the result of `predict_survival` from grid codes [n_features, n]."""
        self._require("survival")
        return self.ensemble.survival(codes)

    def outputs_codes(self, codes: CodeArray) -> NDArray[np.float64]:
        """Return all predictions of records, as `LossKind.scores` takes them.

        They are chances where there are some, else values.
        """
        predict = {
            "probabilities": self.predict_proba_codes,
            "survival": self.predict_survival_codes,
            "values": self.predict_codes,
        }
        return predict[self.plan.label.kind.predicts](codes)

    def _require(self, what: str) -> None:
        """Raise ModelError if labels of this kind have no such predictions, see `LabelKind.refusals`."""
        if (refusal := self.plan.label.kind.refusals.get(what)) is not None:
            raise refusal()

    def header(self, *, chances: bool, coverage: float | None) -> list[str]:
        """Return the names of the columns of `predict_rows`; arguments as there.

        Raises:
            ModelError, UsageError: it has no such predictions.
        """
        label = self.plan.label
        if coverage is not None:
            self.half_width(coverage)
        if chances:
            self._require("probability columns")
            return [f"probability_{name}" for name in label.classes]
        return label.kind.header(label) + ([] if coverage is None else [f"lower_{label.name}", f"upper_{label.name}"])

    def predict_rows(self, codes: CodeArray, *, chances: bool, coverage: float | None) -> list[list[Any]]:
        """Return predictions as a table has them, a list a record.

        Args:
            codes: [n_features, n].
            chances: whether to give the probabilities of classes, and nothing else.
            coverage: of prediction intervals beside values; None for none.
        """
        if chances:
            rows: list[list[Any]] = self.predict_proba_codes(codes).tolist()
            return rows
        columns = [self.predict_codes(codes)]
        if self.plan.label.kind.predicts == "survival":
            columns.append(self.predict_survival_codes(codes))
        if coverage is not None:
            columns.append(self.predict_interval_codes(codes, coverage))
        return [[value] for value in columns[0].tolist()] if len(columns) == 1 else np.column_stack(columns).tolist()

    def decision_scores_codes(self, codes: CodeArray) -> NDArray[np.float64]:
        """Return the result of `decision_scores` from grid codes [n_features, n]."""
        scores = self.ensemble.scores(codes)
        return scores[0] if self.ensemble.n_outputs == 1 else np.ascontiguousarray(scores.T)

    def explain(self, columns: Columns) -> Explanation:
        """Return what each feature adds to each record's prediction; see `hedgerow.trees.contributions`.

        Raises:
            DataError: as `encode`.
        """
        return self.explain_codes(self.encode(columns))

    def explain_codes(self, codes: CodeArray) -> Explanation:
        """Return the result of `explain` from grid codes [n_features, n]."""
        found = contributions(self.ensemble, codes)
        objective = self.ensemble.link.objective(self.plan.label)
        base, values = objective.middle + objective.half * found.base, objective.half * found.values
        names = self.plan.feature_names
        if self.ensemble.n_outputs == 1:
            return Explanation(float(base[0]), np.ascontiguousarray(values[0]), names)
        return Explanation(base, np.ascontiguousarray(values.transpose(1, 2, 0)), names)

    def shape_bands(self, feature: str) -> ShapeBands:
        """Return the sum of the trees on a feature alone, and how far the noise may have moved it.

        Returns:
            Scores and their standard deviations by the noise, float64 [n_codes, n_outputs] each, in units of
            `decision_scores` (before a regression's label is scaled back); see `hedgerow.models.bands`.

        Raises:
            UsageError: code "unknown-feature".
            ModelError: code "bands-unknown", for a model whose noise cannot be carried over to its shapes.
        """
        if feature not in self.plan.feature_names:
            raise UsageError(
                "unknown-name", code="unknown-feature", kind="feature of the model", name=feature,
                known=", ".join(self.plan.feature_names),
            )  # fmt: skip
        from hedgerow.models.bands import shape_bands

        return shape_bands(self.plan, self.ensemble, self.ledger)[self.plan.feature_names.index(feature)]

    def to_xgboost(self) -> dict[str, Any]:
        """Return the model as XGBoost's JSON; see `hedgerow.models.exports` for its inputs.

        Its predictions of numbers and counts go beyond the label's bounds: cut them off at the booster's attributes
        "clip_min" and "clip_max".

        Of a column that must have another name there, `RenamedWarning` tells. XGBoost reads UTF-8 and no escapes, so
        write it as `export` does, by ``json.dumps(..., ensure_ascii=False)``.

        Raises:
            ModelError: XGBoost cannot compute this model's predictions.
        """
        found = to_xgboost(self.plan, self.ensemble)
        renamed = json.loads(found["learner"]["attributes"].get("renamed", "{}"))
        if renamed:
            named = ", ".join(f"{name!r} is {other!r}" for name, other in renamed.items())
            text = (
                f'XGBoost forbids "[", "]" and "<" in names, so in its file {named}. Rename these columns before you '
                'predict: `frame.rename(columns=json.loads(booster.attr("renamed")))` (docs/models.md).'
            )
            warn_caller(text, RenamedWarning)
        return found

    def export(self, path: str | Path, form: str) -> None:
        """Write the model in a form of `models.formats.FORMATS`.

        Raises:
            ModelError, EnvironmentFault: it cannot have this form, or the file cannot be written.
        """
        write_atomically(Path(path), FORMATS[form].encode(self))

    def to_ebm(self) -> dict[str, Any]:
        """Return an additive model as InterpretML's JSON; see `hedgerow.models.exports`.

        Raises:
            ModelError: code "export-unsupported", when a tree asks for several features, or classes are averaged.
        """
        from hedgerow.models.bands import shape_bands, why_unknown
        from hedgerow.models.exports import to_ebm

        is_unknown = bool(why_unknown(self.plan, self.ensemble, self.ledger))
        bands = () if is_unknown else shape_bands(self.plan, self.ensemble, self.ledger)
        return to_ebm(self.plan, self.ensemble, [band.deviations for band in bands] or None)

    def to_onnx(self, classes: Sequence[int] | None = None) -> Any:
        """Return the model as an `onnx.ModelProto`; see `hedgerow.models.exports` for inputs and outputs.

        Args:
            classes: whole numbers in place of the plan's classes, in their order; None for their names.

        Raises:
            ModelError: code "export-unsupported", for a loss of another package.
            EnvironmentFault: code "missing-extra", when onnx is not installed.
        """
        from hedgerow.models.exports import to_onnx

        return to_onnx(self.plan, self.ensemble, classes)

    def made(self, place: str, n_sites: int = 0, n_drawings: int = 0) -> Model:
        """Return this model with the place of its training, as `PrivacyContext` has it.

        Its file keeps the place.
        """
        return replace(self, report=self.report.made(place, n_sites, n_drawings))

    def voted(self, tallies: Sequence[Tally], power: float) -> Model:
        """Return this model with the votes of sites in its report."""
        return replace(self, report=self.report.voted(tallies, power)) if tallies else self

    def evaluated(self, place: str, before: Model) -> Model:
        """Return this model, just evaluated by all sites together, with the place of that.

        Args:
            before: the model until then.
        """
        return replace(self, report=self.report.evaluated(place, before.report))

    def with_account(self, account: AccountState) -> Model:
        """Return this model with a report that has the account of its rows when it was made."""
        return replace(self, report=self.report.with_account(account))

    def with_sites(self, sites: tuple[str, ...]) -> Model:
        """Return this model with the names of those who took part."""
        return replace(self, sites=sites)

    def holds(self, other: Model) -> bool:
        """Return whether this is the same model, with the other one's whole account on this one's."""
        own, others = self.ledger.releases, other.ledger.releases
        if self.plan.digest != other.plan.digest or own[: len(others)] != others:
            return False
        # Two runs of one plan have equal ledgers; their noise, and so their trees, are not equal.
        return ensemble_to_dict(self.ensemble) == ensemble_to_dict(other.ensemble)


def require_room(path: Path, heir: Model | None = None, remedy: str = "") -> None:
    """Raise unless a model may be written to a file; call it before anything is released.

    Args:
        path: the file; one that is not there, or empty, has room.
        heir: a model that will be written with more on its account, or None for a new one.
        remedy: what to do instead; usually to give another --out.

    Raises:
        UsageError: code "model-exists"; the file has what no other file may have: the account of a model's releases.
        EnvironmentFault: the file is there but cannot be read.
    """
    kept = _model_at(path, remedy)
    if kept is not None and (heir is None or not heir.holds(kept)):
        raise _in_the_way(path, remedy)


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Keep others from writing between the question whether a file has room and the writing.

    A process that waits here asks again afterwards. The folder is locked, because a file that is written has another
    one put in its place. A system that knows no such locks is written to without one.
    """
    with ExitStack() as stack:
        with suppress(OSError, ImportError):
            # Windows has no such module; predicting there must not need it.
            import fcntl

            folder = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY)
            stack.callback(os.close, folder)
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield


def save_unless_kept(model: Model, path: Path, remedy: str = "") -> bool:
    """Write a model, unless the file has it with more on its account; return whether it was written.

    Raises:
        UsageError, EnvironmentFault: as `writes_over`; also when the file cannot be written.
    """
    with sole_writer(path):
        if not writes_over(model, path, remedy):
            return False
        model.save(path)
    return True


def writes_over(model: Model, path: Path, remedy: str = "") -> bool:
    """Return whether `save_unless_kept` would write the file.

    Raises:
        UsageError: code "model-exists"; the file is of another model, or counts what this one does not.
        EnvironmentFault: the file is there but cannot be read.
    """
    kept = _model_at(path, remedy)
    if kept is None or model.holds(kept):
        return True
    if kept.holds(model):
        return False
    raise _in_the_way(path, remedy)


def _model_at(path: Path, remedy: str) -> Model | None:
    if not path.is_file() or not path.stat().st_size:
        return None
    try:
        return Model.load(path)
    except ModelError as fault:
        # Its cost cannot be read, so it must not be lost.
        raise _in_the_way(path, remedy) from fault


def _in_the_way(path: Path, remedy: str) -> UsageError:
    remedy = remedy or "Give another name, --out MODEL, or move the file away first."
    return UsageError("model-exists", path=path, remedy=remedy)


def _from_content(content: dict[str, Any], *, exact: bool) -> Model:
    sites, created_with = content.get("sites"), content.get("created_with")
    if not isinstance(sites, list) or not all(isinstance(site, str) for site in sites):
        raise _invalid("its sites are not a list of names")
    if not isinstance(created_with, str):
        raise _invalid("it does not say which version wrote it")
    table = content.get("plan")
    if not isinstance(table, dict):
        raise _invalid("it has no plan")
    privacy = table.get("privacy")
    if isinstance(privacy, dict) and privacy.get("epsilon") == _INFINITE:
        table = {**table, "privacy": {**privacy, "epsilon": math.inf}}
    try:
        plan = _read_plan(table, content)
        ledger = Ledger.from_json(json.dumps(content.get("ledger")))
        report = _read_report(content.get("report"), plan, ledger, exact=exact)
    except (PlanError, PrivacyError) as fault:
        # A fault of a part is a fault of the file, in the part's own words.
        what = fault.what.rstrip(".")
        if fault.code == "plan-newer-version":
            version = table["version"]
            raise ModelError("model-newer-version", part="model's plan", found=version, newest=PLAN_VERSION) from fault
        if fault.code == "report-untrue":
            raise ModelError("model-report-untrue", fault=what) from fault
        raise _invalid(what) from fault
    ensemble = ensemble_from_dict(content.get("ensemble", {}), plan)
    trained = ledger.releases[len(plan.prepared) :]
    if ensemble.n_trees and all(release.is_later for release in trained):
        raise _invalid("it has trees, and its ledger no release that they could be made from")
    salvaged = _read_salvage(content.get("salvaged"), ledger)
    errors = _read_errors(content.get("errors"), plan, ledger)
    return Model(plan, ensemble, ledger, report, tuple(sites), created_with, salvaged, errors)


def _read_plan(table: dict[str, Any], content: dict[str, Any]) -> Plan:
    """Read a model's plan, also if the package of its method or loss is not installed.

    Predictions need no method, and of the loss only the meaning of scores. So the plan's values of an absent method or
    loss are kept unread.

    Args:
        table: the plan.
        content: the model file, which names the packages (`made_by`) and the scores' link.

    Raises:
        PlanError: the table is no plan.
        ModelError: code "method-absent": the package of its type of label is not installed, or that of its loss, and
            the file does not say what scores mean.
    """
    said = content.get("made_by")
    listed = said if isinstance(said, list) else []
    makers = {str(maker.get("what")): maker for maker in listed if isinstance(maker, dict)}
    missing, known = {}, {"type of label": label_kinds(), "loss": named_losses(), "method": rules_by_method()}
    places = {"type of label": ("label", "type"), "loss": ("loss", "name"), "method": ("model", "algorithm")}
    for what, (section, field) in places.items():
        name = table[section].get(field) if isinstance(table.get(section), dict) else None
        if what in makers and isinstance(name, str) and name not in known[what]:
            missing[what] = name
    if "type of label" in missing:
        version = makers["type of label"].get("version", "")
        raise ModelError("method-absent", what=f"the type of label {missing['type of label']} {version}".strip())
    whose = {what: {key: str(makers[what].get(key, "")) for key in ("module", "version")} for what in missing}
    read, absent = dict(table), dict[str, Any]()
    if "loss" in missing:
        values = read.pop("loss")
        link = content["ensemble"].get("link") if isinstance(content.get("ensemble"), dict) else None
        others = {name: value for name, value in values.items() if name != "name"}
        absent["loss"] = AbsentLoss(name=missing["loss"], values=others, link=str(link), **whose["loss"])
    if "method" in missing:
        absent["own"] = AbsentMethod(read.pop(section_name(missing["method"]), None), **whose["method"])
        read["model"] = {**table["model"], "algorithm": DEFAULT_ALGORITHM}
    plan = Plan.from_dict(read, is_stored=True)
    return replace(plan, model=replace(plan.model, algorithm=missing.get("method", plan.model.algorithm)), **absent)


def _read_errors(stored: Any, plan: Plan, ledger: Ledger) -> ErrorHistogram | None:
    """Read an evaluation's errors from the file; ModelError if the ledger has no such evaluation."""
    if stored is None:
        return None
    if not plan.label.kind.is_number or not any(release.kind in EVALUATION_KINDS for release in ledger):
        raise _invalid("it has errors of an evaluation that is not in its ledger")
    try:
        return ErrorHistogram.from_dict(stored)
    except ValueError as fault:
        raise _invalid(str(fault)) from fault


def _read_salvage(stored: Any, ledger: Ledger) -> Salvage | None:
    """Read how a run ended early from the file; ModelError if the ledger cannot be of such a run."""
    if stored is None:
        return None
    if not isinstance(stored, dict) or {part.name for part in fields(Salvage)} != stored.keys():
        raise _invalid("it does not say how much of its run was salvaged")
    code, used, planned = stored["code"], stored["n_used"], stored["n_planned"]
    if not isinstance(code, str) or type(used) is not int or type(planned) is not int or not 1 <= used <= planned:
        raise _invalid("it does not say how much of its run was salvaged")
    if used > len(ledger):
        raise _invalid(f"it is said to be of {used} releases, and its ledger has {len(ledger)}")
    return Salvage(code, used, planned)


def _invalid(fault: str) -> ModelError:
    return ModelError("model-invalid", fault=fault)


def _read_report(stored: Any, plan: Plan, ledger: Ledger, *, exact: bool) -> PrivacyReport:
    """Build the report of plan and ledger; PrivacyError or ModelError if `stored` does not fit it."""
    if not isinstance(stored, dict):
        raise _invalid("it has no privacy report")
    if stored.get("n_releases") != len(ledger):
        raise _invalid(
            f"its privacy report speaks of {stored.get('n_releases')} releases and its ledger of {len(ledger)}"
        )
    before = read_prepared_ledger(plan).releases
    if ledger.releases[: len(before)] != before:
        raise _invalid("its ledger does not begin with what its plan was prepared by")
    own = [release for release in ledger.releases[len(before) :] if not release.is_vote]
    if [release.round for release in own] != list(range(len(own))):
        raise _invalid("its ledger's releases are not numbered from 0 to the last: some are missing, or out of order")
    for release in ledger:
        if release.purpose.split("/")[:2] != [str(release.round), release.kind]:
            raise _invalid(f"its ledger's release {release.purpose!r} is entered as another round or kind")
        # The possible costs of an absent method are not known here; its releases are accounted for all the same.
        known = isinstance(plan.own, AbsentMethod) or (*_GAUSSIAN, *find_method(plan).parts().events)
        if known is not True and not isinstance(release.event, known):
            raise _invalid(f"its ledger's release {release.purpose!r} has a cost that its plan's algorithm cannot have")
    context = PrivacyContext.from_plan(plan, ledger=ledger)
    is_evaluated = any(release.kind in EVALUATION_KINDS for release in ledger)
    value, planned = stored.get("epsilon_requested"), plan.privacy.epsilon
    if not is_evaluated and value != (_INFINITE if math.isinf(planned) else planned):
        raise _invalid(f"its privacy report says that epsilon {value!r} was requested, and its plan {planned!r}")
    # Flags that old ledgers do not have, and that the plan does not know either.
    context = replace(
        context,
        seeded=stored.get("seeded") is True,
        approximate_noise=stored.get("approximate_noise") is True,
        bounds_from_data=context.bounds_from_data or stored.get("bounds_from_data") is True,
        candidates_from_data=context.candidates_from_data or stored.get("candidates_from_data") is True,
        **_read_place(stored),
        account=AccountState.from_dict(stored["account"]) if isinstance(stored.get("account"), dict) else None,
    )
    report = build_lazy_report(ledger, context)
    check_claims(stored, report, exact=exact)
    return report


def _read_place(stored: dict[str, Any]) -> dict[str, Any]:
    """Read where the model was made from a file's report.

    Files of older versions record nothing.
    """
    place, places = stored.get("made_in", ""), stored.get("evaluated_in", [])
    counts = {name: stored.get(name, 0) for name in ("n_sites", "n_drawings")}
    tallies, power = stored.get("tallies", []), stored.get("vote_power", 0.0)
    if not _are_tallies(tallies) or type(power) not in (int, float) or not 0 <= power <= 1:
        raise _invalid("its report does not say how its sites voted")
    is_text = isinstance(places, list) and all(isinstance(each, str) for each in (place, *places))
    if not is_text or not all(type(count) is int and 0 <= count < _MANY for count in counts.values()):
        raise _invalid("its report does not say where it was made")
    votes = {"tallies": tuple(map(tuple, tallies)), "vote_power": float(power)}
    return {"made_in": place, "evaluated_in": tuple(places), **counts, **votes}


def _are_tallies(stored: Any) -> bool:
    """Return whether each of a few tallies counts no more objections than votes, and no more votes than sites."""
    return isinstance(stored, list) and len(stored) <= MAX_VOTES and all(
        isinstance(each, list)
        and len(each) == 3
        and all(type(count) is int for count in each)
        and _MANY > each[0] >= each[1] >= each[2] >= 0
        for each in stored
    )


FORMAT = "hedgerow-model"
FILE_VERSION = 2
"""Version 1 had another report, and is read; its ledger says what the report is compared with."""


def canonical_bytes(content: dict[str, Any]) -> bytes:
    """Return JSON with sorted keys, no blanks, ASCII only and finite numbers only."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def to_bytes(content: dict[str, Any]) -> bytes:
    """Return a model file's bytes: `content` with its format, version and checksum."""
    whole = {**content, "format": FORMAT, "version": FILE_VERSION}
    whole["checksum"] = hashlib.sha256(canonical_bytes(whole)).hexdigest()
    return canonical_bytes(whole) + b"\n"


def read_content(path: Path) -> dict[str, Any]:
    """Read the JSON object in a model file of the right format and a readable version.

    The checksum is left to `check_checksum`, so that damage is named as precisely as possible.

    Raises:
        ModelError: code "model-not-found", "model-not-json", "model-truncated", "model-wrong-kind" or
            "model-newer-version".
        EnvironmentFault: the file is there but cannot be read.
    """
    content = _parse(_read(path), path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ModelError("model-wrong-kind", path=path, detail="it is other JSON")
    try:
        require_plain(content)
    except ValueError as fault:
        raise _invalid(str(fault)) from None
    version = content.get("version")
    if type(version) is not int or version < 1:
        raise _invalid("its version is not a whole number above 0")
    if version > FILE_VERSION:
        raise ModelError("model-newer-version", part=f"model file {path}", found=version, newest=FILE_VERSION)
    return content


def check_checksum(content: dict[str, Any]) -> None:
    """Raise ModelError unless the content is as it was written.

    Raises:
        ModelError: code "model-checksum".
    """
    rest = {name: value for name, value in content.items() if name != "checksum"}
    if content.get("checksum") != hashlib.sha256(canonical_bytes(rest)).hexdigest():
        fault = "its content does not match its checksum"
        raise ModelError("model-invalid", code="model-checksum", fault=fault)


def write_atomically(path: Path, data: bytes, *, replaces: bool = False, mode: int = 0o644) -> None:
    """Write `data` to `path`; afterwards the file holds either all of it or its old content.

    A device or a pipe is written to as it is: no file takes its place. A link is followed, unless another user has made
    it in a folder that others may write to.

    Args:
        replaces: whatever has this name is replaced, in a folder of others': a link there would have another file
            written over, and a pipe would be waited for.
        mode: of the new file.

    Raises:
        EnvironmentFault: code "disk-full" or "file-not-written".
    """
    replaces = replaces or _is_others_link(path)
    target = Path(os.path.realpath(path)) if path.is_symlink() and not replaces else path
    draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        if not replaces and target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        try:
            # No group may write it, whatever a user lets new files be: a roster or a policy is refused then.
            with open(draft, "xb", opener=lambda path, flags: os.open(path, flags, mode)) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as fault:
        full = fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise EnvironmentFault(
            "disk-full" if full else "file-not-written", path=path, fault=fault.strerror or fault
        ) from fault


def _is_others_link(path: Path) -> bool:
    """Return whether Linux refuses to follow this link when it is opened (fs.protected_symlinks).

    `realpath` does not ask.
    """
    if not path.is_symlink():
        return False
    link, folder = path.lstat(), path.parent.stat()
    is_shared = bool(folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    return is_shared and link.st_uid != folder.st_uid and link.st_uid != os.geteuid()


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError as fault:
        raise ModelError("model-not-found", path=path) from fault
    except OSError as fault:
        raise EnvironmentFault("file-not-read", path=path, fault=fault.strerror or fault) from fault
    if not data:
        raise ModelError("model-truncated", path=path, n_bytes=0)
    return data


def _parse(data: bytes, path: Path) -> Any:
    text = data.decode("utf-8", errors="replace")
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as fault:
        if text.startswith("{") and (fault.pos >= len(text) or fault.msg.startswith("Unterminated")):
            raise ModelError("model-truncated", path=path, n_bytes=len(data)) from fault
        raise ModelError("model-wrong-kind", code="model-not-json", path=path, detail=str(fault)) from fault
    except (ValueError, RecursionError) as fault:
        raise ModelError("model-wrong-kind", code="model-not-json", path=path, detail=str(fault)) from fault


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
