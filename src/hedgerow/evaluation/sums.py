# SPDX-License-Identifier: Apache-2.0
"""The statistics of a record in an evaluation, and the public bins that count it.

Statistics are integers only, so that the same record counts the same on every machine.

    position      of a record                                              model
    score         its score, in units of 2**-16                            binary
    risk          the same                                                 times to an event
    probability   per class, its predicted probability, in units of 2**-30 three classes or more
    residual      |prediction - label|, in units of 2**-16, label scaled   numbers

docs/proofs/queries.md, section "Evaluation", says what one record can add at most.

Noise falls on every bin, needed or not. So few bins that each hold a like share of the records measure best. They
have to be placed without a look at the records. What is public is the model: its released leaf weights say roughly
where scores lie. The outline covers that range finely; its noisy counts then place the few bins of the release that
counts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.errors import PrivacyError
from hedgerow.losses.kinds import Link
from hedgerow.losses.registry import loss_kind
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.plan.fields import format_day
from hedgerow.plan.plan import Feature, Label, Plan
from hedgerow.protocol.queries import IntVector, Query, SiteQuery
from hedgerow.trees.binning import FeatureGrid
from hedgerow.trees.ensemble import Ensemble, find_link
from hedgerow.trees.importances import find_importances
from hedgerow.trees.leaf_sums import ScoredSite, SiteRecords
from hedgerow.trees.plausibility import ReleaseChecks, SumFacts

PROBABILITY_UNIT = 2**30
N_OUTLINE = 64
"""Bins of the outline."""
MIN_BINS, MAX_BINS = 8, N_OUTLINE
"""Bins of the release that is evaluated, see `choose_bin_count`."""
REACH = 5.0
"""The outline covers the model's mean score and this many of its standard deviations to either side."""
LOGIT_REACH = 6.0
"""With three classes or more it covers these log-odds of each class against the rest."""
ERROR_EDGES = np.rint(np.sqrt(np.ldexp(1.0, np.arange(10, 34)))).astype(np.int64)
"""Regression: borders of the outline of errors, in units of 2**-16 of the scaled label, a factor sqrt(2) apart."""
MAX_ERROR = 2**17
VISIBLE = 2.0
"""A count of the outline below this many standard deviations of its noise counts as an empty bin."""
_NEAREST = 1e-6
"""Probabilities stay this far from 0 and 1."""

Counts = NDArray[np.float64]
Edges = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationQuery(Query, ABC):
    """A question about held-out records.

    Attributes:
        unit: integer units per 1.0 of a statistic, or for each record in a cell.
    """

    unit: int

    @abstractmethod
    def norm_squared(self) -> int:
        """Return the largest squared norm of one record's contribution, in squared units."""

    @abstractmethod
    def fits(self, plan: Plan) -> bool:
        """Return whether its numbers suit an evaluation of a model of this plan."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreHistogram(EvaluationQuery):
    """Counts of held-out records per bin of score, chance or error: int64, `shape` flattened, then hits.

    The whole model comes as the `update` of the first such query. A record adds `unit` to one cell of every curve, and
    to one of the two hits. So its contribution has the squared L2 norm unit**2 (n_curves + with_hits), exactly.

    Attributes:
        position: what is binned, an integer (see above): "score" (one curve, binary), "risk" (one curve, times to an
            event), "probability" (one curve per class against the rest) or "residual" (one curve, regression).
        edges: int64 [n_curves, n_edges], ascending per curve, repeats allowed; bin b holds the positions above
            edges[b-1] and up to edges[b].
        by_label: whether each curve has one row of bins per outcome (not this class, this class; of times to an event
            one for each of their codes), else one row in all.
        with_hits: whether two counts follow: records whose class is not predicted, and those whose class is.
    """

    position: str
    edges: NDArray[np.int64]
    by_label: bool
    with_hits: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of curves, of rows of bins per curve, and of bins."""
        n_curves, n_bins = len(self.edges), self.edges.shape[1] + 1
        return n_curves, (self.length - 2 * self.with_hits) // (n_curves * n_bins), n_bins

    def answer(self, site: ScoredSite) -> IntVector:
        site.take_in(self.update)
        link, records, (n_curves, n_rows, n_bins) = find_link(site.plan), site.records, self.shape
        places = positions(records, self.position, link, site.plan.label)
        counts = np.zeros((n_curves, n_rows, n_bins), dtype=np.int64)
        for curve in range(n_curves):
            bins = np.searchsorted(self.edges[curve], places[curve], side="left")
            if self.by_label:
                # One curve is about the last class; several are about each class against the rest.
                about = 1 if n_curves == 1 else curve
                rows = records.labels if self.position == "risk" else records.labels == about
                bins = bins + n_bins * rows
            counts[curve] = np.bincount(bins, minlength=n_rows * n_bins).reshape(n_rows, n_bins)
        parts = [counts.ravel()]
        if self.with_hits:
            hit = link.choose(records.scores.astype(np.int64)) == records.labels
            parts.append(np.bincount(hit.astype(np.int64), minlength=2).astype(np.int64))
        return np.asarray(np.concatenate(parts) * self.unit, dtype=np.int64)

    def norm_squared(self) -> int:
        return len(self.edges) + self.with_hits

    def fits(self, plan: Plan) -> bool:
        label, (n_curves, n_rows, n_bins) = plan.label, self.shape
        is_plain = self.position != "residual" or not (self.by_label or self.with_hits)
        return (
            self.position == label.kind.position
            and n_rows == (count_label_rows(label) if self.by_label else 1)
            and n_curves == label.n_outputs
            and is_plain
            and self.length == n_curves * n_rows * n_bins + 2 * self.with_hits
            and bool((np.diff(self.edges, axis=1) >= 0).all())
        )

    def left_open(self) -> bytes:
        """Return the bytes of the edges, because bins are placed with exponentials."""
        return self.edges.astype("<i8").tobytes()

    def faults(self, released: Counts, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        """Yield why the release cannot be counts of records.

        Each curve, and the hits, hold all records.
        """
        n_curves, n_rows, n_bins = self.shape
        n_cells = n_curves * n_rows * n_bins
        totals = released[:n_cells].reshape(n_curves, -1).sum(axis=1)
        if self.with_hits:
            totals = np.append(totals, released[n_cells:].sum())
        reach = facts.reach(max(2, n_rows * n_bins))
        if released.min() < -facts.reach(1):
            yield "a count is below zero"
        if totals.max() > facts.n_rows * self.unit + reach:
            yield "a total is larger than the rows allow"
        if np.ptp(totals) > 2 * reach + 2 * facts.bound_clipping(self, float(released.max()) + 2 * reach):
            yield "the totals of curves over the same rows differ"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Moments(EvaluationQuery):
    """Sums of several numbers over held-out records; the first is 1 for each, and none is larger.

    No statistic exceeds `unit`, so a record's contribution has a squared L2 norm of at most unit**2 for each of them.

    Attributes:
        error_clip: in units of 2**-16 of the scaled label, from 1 to 2**17.
    """

    error_clip: int

    n_statistics: ClassVar[int]
    has_deviance: ClassVar[bool] = False
    signed: ClassVar[tuple[int, ...]] = ()
    """Statistics that may be below zero."""

    def norm_squared(self) -> int:
        return self.n_statistics

    def fits(self, plan: Plan) -> bool:
        has_errors = plan.label.kind.position == "residual"
        is_for_label = has_errors and not (self.has_deviance and loss_kind(plan).deviance is None)
        return is_for_label and 1 <= self.error_clip <= MAX_ERROR and self.length == self.n_statistics

    def left_open(self) -> bytes:
        return self.error_clip.to_bytes(8, "little")

    def faults(self, released: Counts, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        """Yield a fault if a sum of numbers from 0 on is negative, or a sum is larger than its records allow."""
        reach = facts.reach(1)
        if np.delete(released, self.signed).min() < -reach:
            yield "a count or a sum of what is never negative is below zero"
        if np.abs(released[1:]).max() > released[0] + 2 * reach + facts.bound_clipping(self) + 1:
            yield "a sum is larger than its records allow"


@dataclass(frozen=True, kw_only=True, eq=False)
class ErrorMoments(_Moments):
    """Sums for the size of a regression's errors and for the spread of its labels: int64 [4].

    They are the sums of (1, y, y**2, min(e, clip)**2 / clip**2): y is the label scaled to [-1, 1] and e
    the error of the (clipped) prediction.
    """

    n_statistics: ClassVar[int] = 4
    signed: ClassVar[tuple[int, ...]] = (1,)

    def answer(self, site: ScoredSite) -> IntVector:
        """Take in the update, then add up products, each rounded to the nearest unit."""
        site.take_in(self.update)
        labels, clip, unit = site.records.labels.astype(np.int64), self.error_clip, self.unit
        errors = np.minimum(np.abs(_errors(site.records, find_link(site.plan), site.plan.label)), clip)
        first = (labels * unit + SCORE_UNIT // 2) // SCORE_UNIT
        second = (labels * labels * unit + SCORE_UNIT**2 // 2) // SCORE_UNIT**2
        squared = (errors * errors * unit + clip * clip // 2) // (clip * clip)
        return np.array([unit * len(labels), first.sum(), second.sum(), squared.sum()], dtype=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class DevianceMoments(_Moments):
    """Sums for the size of errors, and for the deviance of counts or of the plan's [loss]: int64 [3].

    They are the sums of (1, min(e, clip) / clip, min(d, limit) / limit): e is the error of the prediction and d its
    deviance. See `hedgerow.losses.kinds.Deviance`, which has the limit for a clip.
    """

    n_statistics: ClassVar[int] = 3
    has_deviance: ClassVar[bool] = True

    def answer(self, site: ScoredSite) -> IntVector:
        """Take in the update, then add up quotients, each rounded to the nearest unit.

        Deviances have logarithms, so the same record may count one unit more on another machine; its bound holds on
        all.
        """
        site.take_in(self.update)
        records, label, kind = site.records, site.plan.label, loss_kind(site.plan)
        if kind.deviance is None:
            raise ValueError(f"the loss for {label.type} labels has no deviance")
        (low, high), clip = label.bounds, self.error_clip
        half = (high - low) / 2
        errors = np.minimum(np.abs(_errors(records, kind.link, label)), clip)
        labels = low + half * (1 + records.labels / SCORE_UNIT)
        values = kind.link.values(records.scores[0] / SCORE_UNIT, label)
        limit = kind.deviance.per_error * half * clip / SCORE_UNIT
        shares = np.minimum(kind.deviance.of(labels, values, label) / limit, 1.0)
        first = (errors * self.unit + clip // 2) // clip
        second = np.rint(shares * self.unit).astype(np.int64)
        return np.array([self.unit * len(labels), first.sum(), second.sum()], dtype=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class _PartedSums(EvaluationQuery, ABC):
    """The sums of an evaluation's detail, for each part of the records by itself.

    What a record adds at most is what it adds to `one`. A unit with rows in several parts adds to several blocks,
    together no more than all its rows to one.

    Attributes:
        one: the question about all records; without an update.
    """

    one: EvaluationQuery

    def norm_squared(self) -> int:
        return self.one.norm_squared()

    def fits(self, plan: Plan) -> bool:
        return self.length % self.one.length == 0 < self.length and self.one.fits(plan)

    def left_open(self) -> bytes:
        return self.one.left_open()

    def faults(self, released: Counts, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        """Yield the faults of each part, as of all records."""
        for part in released.reshape(-1, self.one.length):
            yield from self.one.faults(part, facts, checks)


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupedSums(_PartedSums):
    """Sums for the quality of predictions, by public group of one column.

    Attributes:
        one: see `_PartedSums`.
        feature: the column's place among the plan's features.
        group_of: int64 [n_codes], the group of each of its codes, from 0 on.
    """

    feature: int
    group_of: NDArray[np.int64]

    def answer(self, site: ScoredSite) -> IntVector:
        site.take_in(self.update)
        groups = self.group_of[site.records.codes[self.feature]]
        own = (site.records.only(groups == group) for group in range(self.length // self.one.length))
        return np.concatenate([self.one.answer(replace(site, records=records, kept=None)) for records in own])

    def fits(self, plan: Plan) -> bool:
        last = self.length // self.one.length - 1
        is_within = 0 <= self.group_of.min() and self.group_of.max() <= last and self.feature < len(plan.features)
        return bool(is_within) and super().fits(plan)

    def left_open(self) -> bytes:
        """Return also the bytes of the groups, whose borders are those of the grid."""
        return super().left_open() + self.group_of.astype("<i8").tobytes()


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteSums(SiteQuery, _PartedSums):
    """Sums for the quality of predictions at each site that allows it, with noise of that site alone.

    Attributes:
        one: see `_PartedSums`.
    """

    def answer_alone(self, site: ScoredSite) -> IntVector:
        site.take_in(self.update)
        return self.one.answer(site)

    def fits(self, plan: Plan) -> bool:
        n_sites = len(set(self.sites))
        return n_sites == len(self.sites) and self.length == n_sites * self.one.length and super().fits(plan)


BY_SITE = "site"
"""The name for an evaluation by site, unless the plan has such a column."""
MAX_GROUPS = 64
"""Most groups of a column in an evaluation."""
_FEW_VALUES, _PARTS = 8, 4
"""A column of at most the first number of whole numbers has a group for each; others are cut into four parts."""


def names_sites(plan: Plan, column: str) -> bool:
    """Return whether an evaluation by `column` gives figures by site: "site", where no column has that name."""
    return column == BY_SITE and BY_SITE not in plan.feature_names


def count_groups(plan: Plan, column: str, sites: Sequence[str] = ()) -> int:
    """Return the most groups that a column of the plan has.

    The last one is for cells that are missing or not listed.

    Args:
        column: or "site".
        sites: how many of them there are.

    Raises:
        PrivacyError: code "unknown-name"; the plan has no such column, or it has too many categories or hashed ones.
            Code "noise-mode-unsupported" for sites where records have noise of their own.
    """
    if names_sites(plan, column) and sites:
        if plan.privacy.noise == "local":
            subject, others = "An evaluation by site", '"distributed" or "server"'
            raise PrivacyError("noise-mode-unsupported", subject=subject, noise="local", others=others)
        return len(sites)
    counts = {feature.name: 1 + _count_values(feature) for feature in plan.features if not feature.is_hashed}
    if counts.get(column, MAX_GROUPS + 1) > MAX_GROUPS:
        known = [name for name, count in counts.items() if count <= MAX_GROUPS] + [BY_SITE] * bool(sites)
        raise PrivacyError("unknown-name", kind="column of public groups", name=column, known=", ".join(known))
    return counts[column]


def _count_values(feature: Feature) -> int:
    if feature.is_categorical:
        return len(feature.categories)
    low, high = _read_bounds(feature)
    return int(high - low) + 1 if feature.integer and high - low < _FEW_VALUES else _PARTS


def list_groups(feature: Feature, grid: FeatureGrid) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the names of a column's groups, and the group of each code of its grid: int64 [n_codes].

    Numbers are cut at those borders of the grid that lie nearest to the wanted ones.
    """
    codes = np.arange(grid.n_codes)
    if feature.is_categorical:
        return (*feature.categories, "other or missing"), np.minimum(codes, len(feature.categories))
    low, high = _read_bounds(feature)
    n_values, edges = _count_values(feature), grid.edges.astype(np.float64)
    is_each = feature.integer and high - low < _FEW_VALUES
    wanted = low + 0.5 + np.arange(n_values - 1) if is_each else np.linspace(low, high, n_values + 1)[1:-1]
    cuts = np.unique([int(np.abs(edges - border).argmin()) for border in wanted]) if len(edges) else np.empty(0, int)
    groups = np.searchsorted(cuts, codes - 1, side="right")
    groups[grid.missing_code] = len(cuts) + 1
    ends = [low, *edges[cuts].tolist(), high]
    return (*(_name_range(feature, *pair, high) for pair in pairwise(ends)), "missing"), groups


def _read_bounds(feature: Feature) -> tuple[float, float]:
    if feature.min is None or feature.max is None:  # a validated plan has both
        raise ValueError(f"feature {feature.name} has no bounds")
    return feature.min, feature.max


def _name_range(feature: Feature, start: float, end: float, last: float) -> str:
    if feature.is_date:
        return f"{format_day(round(start))} to {format_day(round(end))}"
    if not feature.integer:
        return f"{start:g} to {end:g}"
    first, final = math.ceil(start), math.ceil(end) - (end < last)
    return f"{first}" if first == final else f"{first} to {final}"


def count_label_rows(label: Label) -> int:
    """Return the rows of bins by label.

    A time to an event has one for each code, another label one for a class and one for the rest.
    """
    return label.n_codes if label.kind.position == "risk" else 2


def positions(records: SiteRecords, position: str, link: Link, label: Label) -> NDArray[np.int64]:
    """Return the position of each record on each curve: int64 [n_curves, n].

    Args:
        records: with the whole model in their scores.
        position: "score", "risk", "probability" or "residual".
        link: what the scores mean.
    """
    scores = records.scores.astype(np.int64)
    if position in ("score", "risk"):
        return scores
    if position == "residual":
        return np.abs(_errors(records, link, label))[None, :]
    weights = link.weights(scores)
    total = np.maximum(weights.sum(axis=0), 1)
    return np.asarray(weights * PROBABILITY_UNIT // total)


def _errors(records: SiteRecords, link: Link, label: Label) -> NDArray[np.int64]:
    return np.asarray(link.units(records.scores[0].astype(np.int64), label) - records.labels)


@dataclass(frozen=True, eq=False)
class Scale:
    """The places of an outline's bins, and the probabilities at these places.

    Attributes:
        position: as in `ScoreHistogram`.
        edges: int64 [n_curves, N_OUTLINE - 1], strictly ascending.
        link: of the ensemble.
    """

    position: str
    edges: Edges
    link: Link

    @property
    def threshold(self) -> int | None:
        """The largest position for which the first of two classes is predicted; else None.

        It is one of the edges.
        """
        if self.position != "score":
            return None
        return self.link.threshold

    def probabilities(self, places: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the predicted probabilities of the curve's class at some positions.

        For times to an event they are the scores.
        """
        if self.position == "risk":
            return places / SCORE_UNIT
        chance = places / PROBABILITY_UNIT if self.position == "probability" else self.link.chance(places)
        return np.asarray(np.clip(chance, _NEAREST, 1 - _NEAREST))

    def middles(self, curve: int) -> NDArray[np.float64]:
        """Return `probabilities` at the middle of each bin of the outline: float64 [N_OUTLINE]."""
        edges = self.edges[curve].astype(np.float64)
        inner = (edges[1:] + edges[:-1]) / 2
        low, high = edges[0] - (edges[1] - edges[0]) / 2, edges[-1] + (edges[-1] - edges[-2]) / 2
        return self.probabilities(np.concatenate([[low], inner, [high]]))


def outline_scale(ensemble: Ensemble, position: str) -> Scale:
    """Return the outline of scores, or of probabilities of several classes, from the model alone."""
    if position == "probability":
        steps = np.arange(1 - N_OUTLINE // 2, N_OUTLINE // 2) * (2 * LOGIT_REACH / N_OUTLINE)
        edges = np.rint(PROBABILITY_UNIT / (1 + elementary.exp(-steps))).astype(np.int64)
        return Scale("probability", np.tile(edges, (ensemble.n_outputs, 1)), ensemble.link)
    middle, spread = centre_and_spread(ensemble)
    # A bin is at least one unit wide, whatever the model.
    width = max(1.0, 2 * REACH * spread * SCORE_UNIT / N_OUTLINE)
    edges = np.rint(middle * SCORE_UNIT + np.arange(1 - N_OUTLINE // 2, N_OUTLINE // 2) * width).astype(np.int64)
    scale = Scale(position, edges[None, :], ensemble.link)
    if scale.threshold is not None:
        # The threshold of the decision becomes one of the borders, so that the accuracy can be read off exactly.
        edges[int(np.abs(edges - scale.threshold).argmin())] = scale.threshold
    return scale


def centre_and_spread(ensemble: Ensemble) -> tuple[float, float]:
    """Return the mean of a model's scores over its released leaf weights, and their deviation.

    The deviation is that of independent features.
    """
    if ensemble.fitted is None:
        return 0.0, 0.0
    values = ensemble.fitted.values[:, :, 0] / SCORE_UNIT
    weights = np.ones(values.shape) if ensemble.leaf_weights is None else ensemble.leaf_weights.astype(np.float64)
    totals = weights.sum(axis=1)
    means = (weights * values).sum(axis=1) / np.where(totals > 0, totals, 1)
    return math.fsum(means.tolist()), elementary.norm(find_importances(ensemble).values)


def visible(counts: Counts, noise: float) -> Counts:
    """Return the counts that stand out of the noise, and 0 for the others.

    If none does, return the non-negative ones, and even ones if all are 0.
    """
    kept = np.where(counts > VISIBLE * noise, counts, 0.0)
    if not kept.any():
        kept = np.maximum(counts, 0.0)
    return kept if kept.any() else np.ones_like(counts)


def choose_bin_count(n_records: float, noise: float) -> int:
    """Return the number of bins to evaluate.

    The error of the noise grows with their root, and that of ties falls with their square.

    Both are equal in an area under a curve at (n_records / noise)**0.4 or so bins. A quarter more keeps the error that
    no error bar shows, that of the ties, below the other.

    Args:
        noise: standard deviation of the noise of one count, in records.
    """
    if noise <= 0:
        return MAX_BINS
    wanted = 1.25 * float(elementary.exp(0.4 * elementary.log(max(n_records, 0.0) / noise)))
    return max(MIN_BINS, min(MAX_BINS, round(wanted)))


def even_edges(scale: Scale, outline: Counts, n_bins: int) -> Edges:
    """Return borders that leave about even shares of the outline in the bins.

    They are int64 [n_curves, n_bins - 1], ascending.

    They are borders of the outline; one that repeats its neighbour leaves an empty bin. Binary: the threshold is one.

    Args:
        outline: float64 [n_curves, N_OUTLINE], counts >= 0 (see `visible`).
    """
    rows = []
    n_quantiles = n_bins - (scale.threshold is not None)
    for edges, counts in zip(scale.edges, outline, strict=True):
        shares = np.cumsum(counts)[:-1] / counts.sum()
        wanted = np.arange(1, n_quantiles) / n_quantiles
        chosen = edges[np.abs(shares[None, :] - wanted[:, None]).argmin(axis=1)]
        extra = [] if scale.threshold is None else [scale.threshold]
        rows.append(np.sort(np.concatenate([chosen, np.array(extra, dtype=np.int64)])))
    return np.array(rows)


def in_bins(
    scale: Scale, curve: int, outline: Counts, edges: Edges, values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the mean of the values of the outline's bins in each bin: [n_bins, m], NaN if empty.

    Args:
        values: float64 [N_OUTLINE, m].
    """
    n_bins = len(edges) + 1
    # A bin of the outline lies in the bin of its upper border.
    bin_of_fine = np.searchsorted(edges, np.append(scale.edges[curve], np.iinfo(np.int64).max), side="left")
    # A little of every bin, so that one without visible records has its middle.
    weights = outline[curve] + 1e-9 * outline[curve].sum()
    mass = np.bincount(bin_of_fine, weights=weights, minlength=n_bins)
    sums = [np.bincount(bin_of_fine, weights=weights * column, minlength=n_bins) for column in values.T]
    return np.array([np.divide(total, mass, out=np.full(n_bins, np.nan), where=mass > 0) for total in sums]).T


def error_clip(outline: Counts, noise: float) -> int:
    """Return the upper border of the last visible bin of errors, in units of 2**-16.

    Only a regression has one.
    """
    uppers = np.append(ERROR_EDGES, MAX_ERROR)
    return int(uppers[np.flatnonzero(visible(outline, noise))[-1]])
