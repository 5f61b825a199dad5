# SPDX-License-Identifier: Apache-2.0
"""Releases about a time to an event besides trees: the baseline before, and a slope after them.

Before the first tree, `FateCounts`: how many records have each code. An actuary reads the life table off them: e_j
events among the n_j at risk in interval j, and p_j = e_j / n_j, whose log-odds are the baseline of a model without
trees.

After the last tree, `ScoreBins`: by bin of the finished score, how many records there are, and how many events. Joint
clipping biases what is learned, ridges shorten it, and steps may go too far, so that scores are no log-odds of hazards,
but s times them are. The slope s is the likeliest for the events of the bins,

    sum over bins  f (events - expected events at slope s) = 0

and for any slope the baseline follows from the life table. Among those at risk in an interval the hazards of the bins,
each logistic in b_j + s f, must have the mean p_j. Who is at risk follows from the hazards before, and from how many
were censored before, which is taken to be alike in all bins. So b_j rises against the life table as those of high risk
are gone.

Between the two, trees may begin with a linear model of all features. With few records it ranks better than such
noisy trees, and trees then learn what it has left. It is five releases: the moments of the columns; X^T X of rows that
these have centred and scaled, z; and three times the gradients g z of the hazards at the coefficients so far, w. With
H = n h Z^T Z / n for the curvature, each of them estimates H w*, by Z^T g + H w. Their mean b has noise of a known
deviation s; coefficients have a normal prior whose variance t is what b shows beyond its noise:

    w = (H H + s^2 / t I)^-1 H b          t = max(0, b'b - p s^2) / tr(H H)

So where nothing stands out of the noise all are 0, and the start costs what was paid for it and no more. What releases
say of moments and products gives way in the same manner to what is likely of any column.

Arithmetic is elementary, the logistic function a table, and sums are exact: all parties have the same model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.losses.survival import BASELINE_LIMIT, Baseline, linear_hazard_loss
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT, STEP_BITS, STEPS, Loss, logistic
from hedgerow.methods import linear
from hedgerow.methods.linear import LinearBasis, Matrix
from hedgerow.methods.linear_start import MAX_LINEAR_START, AskedModel
from hedgerow.methods.score_bins import Bin, KnownBins
from hedgerow.plan.plan import Plan
from hedgerow.privacy.schedule import AlikeRounds
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.training.steps import NodeTrees, Run
from hedgerow.trees.binning import build_grid
from hedgerow.trees.leaf_sums import RecordCounts, ScoredSite, TrainingSite
from hedgerow.trees.plausibility import FLOAT_TOLERANCE, Reals, ReleaseChecks, SumFacts

_STEPS_PER_UNIT = SCORE_UNIT >> STEP_BITS


@dataclass(frozen=True, kw_only=True, eq=False)
class FateCounts(RecordCounts):
    """Numbers of records with each code of a time to an event: int64 [2K + 1], 2**14 to a record."""

    def answer(self, site: ScoredSite) -> IntVector:
        """Take in the update, then count records by code; each record is in one entry."""
        site.take_in(self.update)
        return self.count(site.records.labels)


PRIOR_HAZARD = 0.7
"""If noise covers all, half have the event by the end of the last of K intervals: a chance of 0.7 / K in each."""
BASELINE_DOUBT = 1.0
"""Prior standard deviation of an interval's chance, as a share of the chance of all intervals."""
SLOPE, SLOPE_DOUBT = 0.7, 0.25
"""Prior mean and standard deviation of the slope of scores, from made and real sets."""
MIN_SLOPE, MAX_SLOPE = 0.2, 2.0
_HALVINGS = 16


@dataclass(frozen=True)
class LifeTable:
    """The life table that `FateCounts` tells, each float [K].

    Attributes:
        chances: p_j, of the event in an interval for those at risk in it.
        followed: the share of those without the event that are at risk in an interval, not ascending.
    """

    chances: tuple[float, ...]
    followed: tuple[float, ...]

    @classmethod
    def of(cls, released: IntVector, sigma: float) -> LifeTable:
        """Read the life table of a release, int64 [2K + 1] with noise `sigma`.

        If the noise outweighs an interval's records, the interval's probability is drawn towards that of all intervals.
        If it outweighs all records, that one is drawn to `PRIOR_HAZARD`. Both are normal priors whose deviation is
        their mean.
        """
        counts, noise = (released / RECORD_NORM).tolist(), elementary.square(sigma / RECORD_NORM)
        # An event in it, or later, or censored at its end or later.
        at_risk = [max(math.fsum(counts[first:]), 1.0) for first in range(1, len(counts), 2)]
        events = counts[1::2]
        total = math.fsum(at_risk)
        usual = PRIOR_HAZARD / len(events)
        kept = elementary.square(total * usual) / (elementary.square(total * usual) + len(events) * noise)
        overall = min(max(usual + (math.fsum(events) / total - usual) * kept, 1 / (total + 1)), 0.5)
        chances: list[float] = []
        followed: list[float] = []
        without = 1.0
        for n_events, n in zip(events, at_risk, strict=True):
            expected = n * overall
            spread = elementary.square(expected * BASELINE_DOUBT)
            kept = spread / (spread + noise + expected)
            chance = min(max((expected + (n_events - expected) * kept) / n, 1e-4), 1 - 1e-4)
            share = n / max(at_risk[0] * without, 1e-9)
            followed.append(min(share, followed[-1] if followed else 1.0))
            chances.append(chance)
            without *= 1 - chance
        return cls(tuple(chances), tuple(followed))

    @property
    def share_of_events(self) -> float:
        """The chance of an event in any interval, for those who are followed through all of them."""
        return 1 - math.prod(1 - chance for chance in self.chances)

    @property
    def baseline(self) -> Baseline:
        """Log-odds of the chances, in steps of 1/256.

        They are read off a table, because a library's logarithm may round otherwise on another machine.
        """
        return tuple(int(np.searchsorted(_logistic(), chance)) - STEPS // 2 for chance in self.chances)


@lru_cache(maxsize=1)
def _logistic() -> Reals:
    return logistic(STEPS, _STEPS_PER_UNIT)


def _chance(place: float) -> float:
    """Return the logistic function of log-odds in steps of 1/256."""
    return float(_logistic()[min(max(math.floor(place) + STEPS // 2, 0), STEPS - 1)])


@dataclass(frozen=True)
class _HazardLine:
    """The baseline at a slope, and each bin's expected events and their information."""

    baseline: Baseline
    expected: tuple[float, ...]
    information: tuple[float, ...]


def fit_hazards(table: LifeTable, known: KnownBins, usual_slope: float = SLOPE) -> tuple[Baseline, float]:
    """Fit the baseline and the slope of a finished model's scores.

    Where noise covers all, they are the table's own and the usual.

    Args:
        known: of an answer to `ScoreBins` of classes: events and others.
        usual_slope: before anything is known.

    Returns:
        K integers within `BASELINE_LIMIT`, and the slope, from `MIN_SLOPE` to `MAX_SLOPE`.
    """
    noise, bins = known.noise_of_labels, known.bins
    if len(bins) < 2:
        return table.baseline, usual_slope
    low, high = MIN_SLOPE, MAX_SLOPE
    for _ in range(_HALVINGS):
        slope = (low + high) / 2
        pull = _pull(_line(table, bins, slope), bins, slope - usual_slope, noise)
        low, high = (slope, high) if pull > 0 else (low, slope)
    return _line(table, bins, low).baseline, low


def count_expected(table: LifeTable, bins: Sequence[Bin], baseline: Baseline, slope: float) -> float:
    """Return the number of events that a model expects among records with this life table."""
    return math.fsum(_line(table, bins, slope, baseline).expected)


def _pull(line: _HazardLine, bins: Sequence[Bin], beyond: float, noise: float) -> float:
    """Return a number above 0 where a larger slope is likelier, by the score equation and a prior.

    The prior is as in `fit_score_line`. The number of events in all is the baseline's, so only the differences of
    middles from their mean count.

    Args:
        beyond: by how much the slope exceeds the usual.
    """
    total = max(math.fsum(line.expected), 1e-9)
    mean = math.fsum(score_bin.place * n for score_bin, n in zip(bins, line.expected, strict=True)) / total
    sums: list[list[float]] = [[], [], []]
    for score_bin, expected, information in zip(bins, line.expected, line.information, strict=True):
        distance = score_bin.place - mean
        # The number of records has noise as well, half of which is in that of the events.
        spread = noise * noise * (1 + elementary.square(expected / score_bin.n_records - 0.5))
        events = score_bin.label + score_bin.n_records / 2
        terms = ((events - expected) * distance, information * (distance * distance), spread * (distance * distance))
        for each, term in zip(sums, terms, strict=True):
            each.append(term)
    score, known, covered = map(math.fsum, sums)
    return score - (1 + covered / max(known, 1e-9)) * beyond / elementary.square(SLOPE_DOUBT)


def _line(table: LifeTable, bins: Sequence[Bin], slope: float, known: Baseline = ()) -> _HazardLine:
    """Return the baseline, expected events and information at a slope, as in the module's text.

    The baseline is fitted unless it is `known`.
    """
    without, baseline = [1.0] * len(bins), []
    events: list[list[float]] = [[] for _ in bins]
    information: list[list[float]] = [[] for _ in bins]
    for interval, (chance, followed) in enumerate(zip(table.chances, table.followed, strict=True)):
        weights = [score_bin.n_records * share for score_bin, share in zip(bins, without, strict=True)]
        place = known[interval] if known else _fit_baseline(bins, weights, slope, chance)
        baseline.append(place)
        for number, score_bin in enumerate(bins):
            hazard = _chance(place + slope * score_bin.place * _STEPS_PER_UNIT)
            at_risk = score_bin.n_records * followed * without[number]
            events[number].append(at_risk * hazard)
            information[number].append(at_risk * hazard * (1 - hazard))
            without[number] *= 1 - hazard
    return _HazardLine(tuple(baseline), tuple(map(math.fsum, events)), tuple(map(math.fsum, information)))


def _fit_baseline(bins: Sequence[Bin], weights: list[float], slope: float, chance: float) -> int:
    """Return the baseline at which the weighted mean of the bins' hazards is `chance`.

    It is found by halving, in steps of 1/256.
    """
    low, high = -BASELINE_LIMIT, BASELINE_LIMIT
    wanted = chance * math.fsum(weights)
    while low < high:
        middle = (low + high) // 2
        mean = math.fsum(
            weight * _chance(middle + slope * score_bin.place * _STEPS_PER_UNIT)
            for weight, score_bin in zip(weights, bins, strict=True)
        )
        low, high = (middle + 1, high) if mean < wanted else (low, middle)
    return low


# The linear model that trees begin with -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnMoments(Query):
    """Sums of each column, and of squares of the numeric columns: int64 [p + n_numeric].

    A record adds its row r, and r_i**2 / unit of each numeric column, rounded towards zero.

    Attributes:
        rows: how codes become rows, without a transform.
        unit: integers per 1.0 of a row.
        numeric: the places of numeric features.
    """

    rows: linear.LinearRows
    unit: int
    numeric: tuple[int, ...]

    def answer(self, site: TrainingSite) -> IntVector:
        site.take_in(self.update)
        codes, rows = site.records.codes, self.rows
        sums, squares = np.zeros(rows.n_columns, dtype=np.int64), []
        sums[0] = rows.intercept * codes.shape[1]
        for feature, row in enumerate(codes):
            counts = np.bincount(row, minlength=rows.entry.shape[1])
            entries = rows.entry[feature].astype(np.int64)
            np.add.at(sums, rows.column[feature], counts * entries)
            if feature in self.numeric:
                squares.append(int((counts * (entries * entries // self.unit)).sum()))
        return np.concatenate([sums, np.array(squares, dtype=np.int64)])

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        reach = facts.reach(1)
        squares = released[self.rows.n_columns :]
        if (np.abs(released) > FLOAT_TOLERANCE * facts.n_rows * self.unit + reach + 1).any():
            yield "a moment of a column is larger than its records allow"
        if (squares < -reach).any():
            yield "a sum of squares is below zero"


@dataclass(frozen=True, kw_only=True, eq=False)
class HazardProducts(linear.CrossProducts):
    """Sums of products of columns with the model's errors, of times to an event: `CrossProducts`."""

    baseline: Baseline

    def answer(self, site: TrainingSite) -> IntVector:
        return linear.cross_products(site.records, self, linear_hazard_loss(self.baseline), site.n_threads)


HAZARD_ROUNDS = 3
HAZARD_SHARES = (0.15, 0.13, 0.24)
"""Shares of the linear model's divergence: for the moments, for X^T X, and for each of the rounds."""
MAX_COLUMNS = 256
"""Rows of more columns are those of the numeric features alone."""
_CURVATURE = 0.45
"""h: of a record's loss, at most about the share of records with an event, more for those who are followed long."""
_VARIANCE = 1 / 3
"""Prior variance of a column of numbers, and of all of a feature's categories together: as if even."""
_DOUBT = 3.0
"""Moments count for half where they are this many deviations of their noise."""
_MIN_SPREAD = 0.1
"""The least spread that columns are scaled by."""
_SQUARE_DOUBT = 0.3
_LIFT = 0.5
"""The least eigenvalue of Z^T Z / n is lifted to this many sqrt(p) deviations of its noise."""
_MIN_EIGENVALUE = 0.05


@dataclass(frozen=True, eq=False)
class HazardStart:
    """The linear model that trees of times to an event begin with.

    Attributes:
        plan: of times to an event.
    """

    plan: Plan

    @cached_property
    def basis(self) -> LinearBasis:
        """The rows before they are centred: numbers in [-1, 1], and a column for each category."""
        features = self.plan.features
        n_columns = 1 + sum(len(feature.categories) + 1 if feature.is_categorical else 1 for feature in features)
        norm = math.sqrt(len(features) + 1)
        return LinearBasis.of(self.plan, build_grid(self.plan), norm, "grid", numeric_only=n_columns > MAX_COLUMNS)

    @property
    def has_columns(self) -> bool:
        """True if rows hold more than a constant, and no more than can be solved for in seconds."""
        return 1 < self.basis.rows.n_columns <= MAX_LINEAR_START

    @property
    def n_trees(self) -> int:
        """The number of trees that nodes add to their scores: one per feature and round."""
        return HAZARD_ROUNDS * len(self.plan.features)

    @cached_property
    def _numeric(self) -> tuple[int, ...]:
        return tuple(place for place, feature in enumerate(self.plan.features) if not feature.is_categorical)

    @cached_property
    def loss(self) -> Loss:
        """The loss of one statistic, the negative gradient; it has one norm for all baselines."""
        return linear_hazard_loss((0,) * len(self.plan.label.intervals))

    @cached_property
    def _moments_squared(self) -> int:
        """The largest squared norm of a record's contribution to `ColumnMoments`."""
        rows, unit = self.basis.rows, self.basis.unit
        largest = np.abs(rows.entry.astype(np.int64)).max(axis=1)
        squares = sum((int(largest[place]) ** 2 // unit) ** 2 for place in self._numeric)
        return rows.intercept**2 + int((largest**2).sum()) + squares

    def rounds(self, whole: float) -> list[AlikeRounds]:
        """Return the rounds of the start, for a noise multiplier as if it were one release."""
        rows, noises = self.plan.privacy.rows_per_unit, linear.divide_noise(whole, HAZARD_SHARES)
        centred = self.basis.transform(np.eye(self.basis.rows.n_columns))
        return [
            AlikeRounds(self._moments_question(0, noises[0])),
            AlikeRounds(linear.ask_gram(1, "any", centred, noises[1], rows)),
            linear.list_cross_rounds(HazardProducts, centred, self.loss, noises[2], rows, HAZARD_ROUNDS),
        ]

    def ask(
        self, run: Run, whole: float, largest: int, first: int, carried: NodeTrees, baseline: Baseline
    ) -> AskedModel:
        """Run the start as a part of a program, and return its trees.

        Args:
            whole: the start's noise multiplier, as if it were one release; 0 without privacy.
            largest: the largest magnitude of a tree's value, in units of 2**-16.
            first: rounds before it.
            carried: what nodes know of trees: none before it, its own afterwards.

        Returns:
            All its trees in one batch, one per feature.
        """
        noises = linear.divide_noise(whole, HAZARD_SHARES)
        basis, rows, p = self.basis, self.plan.privacy.rows_per_unit, self.basis.rows.n_columns
        question = self._moments_question(first, noises[0])
        released = yield question
        centring, squares, n = self._centring(released / basis.unit, run.sigma(question) / basis.unit)
        basis = basis.transform(centring)
        query = linear.ask_gram(first + 1, "linear start, Z^T Z", basis, noises[1], rows)
        gram = linear.read_gram((yield query), basis)
        curvature = _curvature(gram / n, squares, linear.gram_sigma(run.sigma(query), basis) / n) * (n * _CURVATURE)
        squared = np.zeros(curvature.shape)
        # The matrix times itself, as `_times`.
        for column in curvature:
            squared += column[:, None] * column[None, :]
        factor = None if run.directions is None else linear.cholesky(curvature)
        fit, weights, sums = linear.LinearFit(run, basis, largest, carried, factor), np.zeros(p), np.zeros(p)
        for number in range(HAZARD_ROUNDS):
            purpose = HazardProducts.purpose_of(first + 2 + number, f"linear start, Z^T g, round {number}")
            asked = linear.ask_cross(purpose, basis, self.loss, noises[2], rows, carried)
            ask = HazardProducts(**{each.name: getattr(asked, each.name) for each in fields(asked)}, baseline=baseline)
            sums += linear.read_cross((yield ask), basis) + _times(curvature, weights)
            noise = run.sigma(ask) * 2.0**linear.CROSS_SHIFT / (basis.unit * RECORD_NORM)
            weights = _likeliest(curvature, squared, sums / (number + 1), noise / math.sqrt(number + 1))
            weights = fit.move_to(weights)
        return fit.trees

    def _moments_question(self, first: int, noise_multiplier: float) -> ColumnMoments:
        rows = self.plan.privacy.rows_per_unit
        return ColumnMoments(
            purpose=ColumnMoments.purpose_of(first, "linear start, moments"),
            length=self.basis.rows.n_columns + len(self._numeric),
            bound=self.basis.unit,
            sensitivity_squared=self._moments_squared * rows * rows,
            noise_multiplier=noise_multiplier,
            rows=self.basis.rows,
            unit=self.basis.unit,
            numeric=self._numeric,
        )

    def _centring(self, moments: Reals, noise: float) -> tuple[Matrix, NDArray[np.float64], float]:
        """Return the matrix that centres and scales rows, the mean squares then, and the records.

        They are float64 [p, p], float64 [p], and a number >= 1.

        Args:
            moments: float64 [p + n_numeric], what was released, in real units.
            noise: standard deviation of each.
        """
        p = self.basis.rows.n_columns
        n = max(1.0, float(moments[0]))
        kept = n * n / (n * n + elementary.square(_DOUBT * noise))
        matrix, squares = np.eye(p), np.ones(p)
        second = iter((moments[p:] / n).tolist())
        for feature, (first, size) in zip(self.plan.features, self.basis.blocks, strict=True):
            if size == 0:
                continue
            block = slice(first, first + size)
            usual = 1 / size if feature.is_categorical else 0.0
            means = np.clip(usual + (moments[block] / n - usual) * kept, 0.0 if feature.is_categorical else -1.0, 1.0)
            found = means * (1 - means) if feature.is_categorical else np.array([next(second)]) - means * means
            variances = np.maximum(found, 0.0) * kept + _VARIANCE / size * (1 - kept)
            scale = 1 / math.sqrt(max(math.fsum(variances.tolist()), _MIN_SPREAD * _MIN_SPREAD))
            places = np.arange(first, first + size)
            matrix[places, places] = scale
            matrix[places, 0] = -scale * means
            squares[block] = variances * (scale * scale)
        return matrix, squares, n


def _curvature(gram: Matrix, squares: NDArray[np.float64], noise: float) -> Matrix:
    """Return Z^T Z / n, shrunk towards unrelated columns where its noise is large: float64 [p, p].

    Args:
        gram: as released, float64 [p, p].
        squares: its diagonal as the moments have it, float64 [p].
        noise: standard deviation of an entry.
    """
    p = len(gram)
    off = gram - np.diag(np.diagonal(gram))
    energy = math.fsum((off * off).reshape(-1).tolist()) / max(1, p * (p - 1))
    kept = max(0.0, energy - noise * noise) / energy if energy > 0 else 1.0
    diagonal = squares + (np.diagonal(gram) - squares) / (1 + elementary.square(noise / _SQUARE_DOUBT))
    found = off * kept + np.diag(diagonal)
    wanted = _MIN_EIGENVALUE + _LIFT * noise * math.sqrt(p) * kept
    # No eigenvalue is beyond the largest sum of a row's magnitudes.
    span = max(math.fsum(row) for row in np.abs(found).tolist())
    ridge = max(0.0, wanted - linear.least_eigenvalue(found, span, 20))
    return np.asarray(found + ridge * np.eye(p))


def _times(matrix: Matrix, vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a symmetric matrix times a vector, one column after the other.

    A library's product may add in another order on another machine.
    """
    total = np.zeros(len(vector))
    for column, factor in zip(matrix, vector, strict=True):
        total += factor * column
    return total


def _likeliest(curvature: Matrix, squared: Matrix, estimate: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """Return coefficients shrunk by the noise of their estimate: float64 [p].

    The text of this module has the formula. All are zero if the estimate is no larger than its noise.

    Args:
        curvature, squared: H and H H, float64 [p, p].
        estimate: b, float64 [p], with noise of the standard deviation `noise`.
    """
    p = len(estimate)
    signal = math.fsum((estimate * estimate).tolist()) - p * noise * noise
    if signal <= 0:
        return np.zeros(p)
    trace = math.fsum(np.diagonal(squared).tolist())
    factor = linear.cholesky(squared + (noise * noise * trace / signal) * np.eye(p))
    return np.zeros(p) if factor is None else linear.solve(factor, _times(curvature, estimate))
