# SPDX-License-Identifier: Apache-2.0
"""An evaluation from noisy counts: post-processing, so every choice here is free of privacy cost.

Sums and ratios are computed from the counts as released, negative ones too. Cutting them off at zero would add a bias
that grows with the number of bins. Only what must be a share is cut off at 0 and 1, at the very end. The error of each
number that comes from the noise is known, because the noise is: it is propagated to first order (the delta method).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from hedgerow import elementary
from hedgerow.losses.kinds import Floats

MEASURABLE = 4.0
"""A class with a noisy count below this many standard deviations of its noise is too small to be measured."""


@dataclass(frozen=True)
class Estimate:
    """A number with what is known about its error.

    Attributes:
        value: NaN when there were too few records for the noise.
        noise_error: standard deviation that the privacy noise causes; infinity with a NaN.
        sampling_error: standard deviation over other samples of as many records; NaN where it is not estimated.
    """

    value: float
    noise_error: float
    sampling_error: float = math.nan

    def to_dict(self) -> dict[str, float]:
        return {"value": self.value, "noise_error": self.noise_error, "sampling_error": self.sampling_error}


UNMEASURABLE = Estimate(math.nan, math.inf)


@dataclass(frozen=True, eq=False)
class CalibrationCurve:
    """Predicted and observed chances, per bin with records: all float64 [n_bins].

    Attributes:
        label_class: the class whose probability it is.
        predicted: mean predicted probability.
        observed: share of the bin's records that are of the class, cut off at 0 and 1.
        noise_error: standard deviation of `observed` due to the noise; infinity where the count is lost in it.
        share: the bin's share of all records, cut off at 0.
    """

    label_class: str
    predicted: Floats
    observed: Floats
    noise_error: Floats
    share: Floats

    def to_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name).tolist() for name in ("predicted", "observed", "noise_error", "share")}
        return {"class": self.label_class, **numbers}


COVERAGES = (0.8, 0.9, 0.95)
"""Coverages in a report of an evaluation; the histogram has the intervals of every coverage."""


@dataclass(frozen=True)
class ErrorHistogram:
    """The released counts of |prediction - label| over held-out records, for prediction intervals.

    Attributes:
        uppers: upper border of each bin, in units of the label, above 0 and ascending; each bin begins where the one
            before it ends. No error is beyond the last.
        counts: a noisy count of records per bin.
        noise: standard deviation of the noise of each count, in records.

    Raises:
        ValueError: the fields do not fit each other.
    """

    uppers: tuple[float, ...]
    counts: tuple[float, ...]
    noise: float

    def __post_init__(self) -> None:
        ascends = all(low < high for low, high in pairwise((0.0, *self.uppers)))
        if len(self.uppers) < 2 or len(self.uppers) != len(self.counts) or not ascends:
            raise ValueError("the bins of its errors do not fit their counts")
        if not all(map(math.isfinite, (*self.uppers, *self.counts, self.noise))) or self.noise < 0:
            raise ValueError("the counts of its errors are not numbers with noise")

    def half_width(self, coverage: float) -> float:
        """Return the half width of prediction intervals, in label units; infinity if counts do not say.

        The split-conformal quantile (Lei et al., JASA 113, 2018, algorithm 2), read off noisy counts: of n records at
        most (1 - coverage)(n + 1) - 1 may have larger errors. To the count of those, one standard deviation of the
        noise in the comparison is added. Between the borders of a bin the count is taken to fall evenly over the
        logarithm of the error, which is a line above the true curve where density times error falls.

        Args:
            coverage: the share of labels that are to lie within, in (0, 1).
        """
        counts, uppers = np.array(self.counts), np.array(self.uppers)
        miss, n_above = 1 - coverage, np.arange(len(counts))[::-1]
        above = np.append(np.cumsum(counts[:0:-1])[::-1], 0.0)
        # The noise of above - miss * total: a bin above counts with 1 - miss, another one with -miss.
        margin = self.noise * np.sqrt(n_above * (coverage * coverage) + (len(counts) - n_above) * (miss * miss))
        excess = above + margin - miss * elementary.add_up(counts) + coverage
        # From the top, so that no border above the quantile has too many records beyond it.
        last = int(np.flatnonzero(excess > 0).max(initial=-1))
        if last == len(counts) - 1:
            return math.inf
        if last < 0:
            return float(uppers[0])
        share = float(excess[last] / (excess[last] - excess[last + 1]))
        return float(uppers[last] * elementary.exp(share * elementary.log(uppers[last + 1] / uppers[last])))

    def to_dict(self) -> dict[str, Any]:
        return {"uppers": list(self.uppers), "counts": list(self.counts), "noise": self.noise}

    @classmethod
    def from_dict(cls, content: Any) -> ErrorHistogram:
        """Read the result of `to_dict`; raises ValueError for anything else."""
        if not isinstance(content, dict) or content.keys() != {"uppers", "counts", "noise"}:
            raise ValueError("it does not say how large its errors were")
        lists = (content["uppers"], content["counts"], [content["noise"]])
        if not all(isinstance(one, list) and all(type(part) in (int, float) for part in one) for one in lists):
            raise ValueError("its errors are no lists of numbers")
        return cls(tuple(map(float, lists[0])), tuple(map(float, lists[1])), float(content["noise"]))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The evaluation of a model on held-out records, measured with noise.

    Attributes:
        n_records: the number of records, a noisy count.
        scores: "auc", "log_loss" and "accuracy", or "rmse" (in units of the label) and "r2", or "mae" and a deviance,
            or "concordance" and "integrated_brier".
        curves: one calibration curve (binary), or one per class; none for a regression.
        error_clip: regression: errors beyond this, in units of the label, counted as this much; else None.
        errors: for numbers, the histogram of the errors of records; else None.
        groups: the evaluation of each group by itself, by column (or "site") and group.
        left_out: sites without figures by site, because they do not allow them or were not in that sum; None if there
            is nothing by site.
    """

    n_records: Estimate
    scores: dict[str, Estimate]
    curves: tuple[CalibrationCurve, ...] = ()
    error_clip: float | None = None
    errors: ErrorHistogram | None = None
    groups: Mapping[str, Mapping[str, Evaluation]] = field(default_factory=dict)
    left_out: tuple[str, ...] | None = None

    @property
    def half_widths(self) -> dict[float, float]:
        """Half widths of prediction intervals by coverage, in label units: `ErrorHistogram.half_width`."""
        return {} if self.errors is None else {each: self.errors.half_width(each) for each in COVERAGES}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON writers that know NaN and infinity."""
        by = {name: {group: each.to_dict() for group, each in groups.items()} for name, groups in self.groups.items()}
        left_out = {} if self.left_out is None else {"sites_left_out": list(self.left_out)}
        return ({"groups": by} if by else {}) | left_out | {
            "n_records": self.n_records.to_dict(),
            "scores": {name: estimate.to_dict() for name, estimate in self.scores.items()},
            "curves": [curve.to_dict() for curve in self.curves],
            "error_clip": self.error_clip,
            "half_widths": {f"{coverage:g}": width for coverage, width in self.half_widths.items()},
        }


def auc(cells: Floats, noise: float) -> Estimate:
    """Estimate the area under the ROC curve from counts per bin, ties half.

    Args:
        cells: float64 [2, n_bins], records of the other classes and of the class, in the order of the score.
        noise: standard deviation of the noise of each count.

    Source of the sampling error: DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988).
    """
    others, ours = cells
    n_others, n_ours = elementary.add_up(others), elementary.add_up(ours)
    if min(n_others, n_ours) <= max(MEASURABLE * noise * math.sqrt(cells.shape[1]), 0):
        return UNMEASURABLE
    below = (np.cumsum(others) - others / 2) / n_others
    above = (n_ours - np.cumsum(ours) + ours / 2) / n_ours
    area = elementary.dot(ours, below) / n_ours
    slopes = np.concatenate([(below - area) / n_ours, (above - area) / n_others])
    kept_ours, kept_others = np.maximum(ours, 0), np.maximum(others, 0)
    variance = elementary.dot(kept_ours, (below - area) ** 2) / (n_ours * n_ours)
    variance += elementary.dot(kept_others, (above - area) ** 2) / (n_others * n_others)
    return Estimate(min(max(area, 0.0), 1.0), noise * elementary.norm(slopes), math.sqrt(variance))


def concordance(cells: Floats, noise: float) -> Estimate:
    """Estimate Harrell's concordance of times to an event from counts per bin, equal bins half.

    A record with an event in interval j is compared with those that were followed through it.

    Args:
        cells: float64 [2 K + 1, n_bins], by code of the time (`hedgerow.losses.survival.survival_codes`) and in the
            order of the risk.
        noise: standard deviation of the noise of each count.
    """
    events = cells[1::2]
    # Records that were followed through each interval: codes from 2 j + 2 on.
    longer = np.cumsum(cells[::-1], axis=0)[::-1][2::2]
    n_longer, n_events = elementary.add_up_rows(longer), elementary.add_up_rows(events)
    # Per interval and bin: those that lived longer at a lower risk, and those with the event at a higher one. They are
    # the pairs in the right order, of a record with the event and of one that lived longer; half of its own bin.
    below = np.cumsum(longer, axis=1) - longer / 2
    above = n_events[:, None] - np.cumsum(events, axis=1) + events / 2
    n_pairs = elementary.dot(n_events, n_longer)
    if n_pairs <= 0:
        return UNMEASURABLE
    value = elementary.dot(events, below) / n_pairs
    # The slope of the ratio by each cell. A record is in pairs by its event, and by each interval that it was followed
    # through: all before the one in which it was lost (code 2 j) or had its event (code 2 j + 1).
    of_events = below - value * n_longer[:, None]
    of_longer = np.cumsum(above - value * n_events[:, None], axis=0)
    slopes = np.zeros(cells.shape)
    slopes[1::2] = of_events
    pairs = np.zeros(len(cells))
    pairs[1::2] = n_longer
    slopes[2::2] += of_longer
    slopes[3::2] += of_longer[:-1]
    pairs[2::2] += np.cumsum(n_events)
    pairs[3::2] += np.cumsum(n_events)[:-1]
    # `pairs` is the slope of the number of pairs, by each code: a number that could be noise is no divisor.
    if n_pairs <= MEASURABLE * noise * math.sqrt(cells.shape[1]) * elementary.norm(pairs):
        return UNMEASURABLE
    return within(_with_errors(value, slopes / n_pairs, cells, noise), 0.0, 1.0)


def integrated_brier(cells: Floats, noise: float, survival: Floats, weights: Floats) -> Estimate:
    """Estimate the integrated Brier score of times to an event from counts per bin.

    See `hedgerow.losses.censored`.

    With r_j at risk of being lost in interval j, and c_j lost in it, the chance not to have been lost by its end is
    G_j = (1 - c_1 / r_1) ... (1 - c_j / r_j): records count as lost in the middle of an interval and events at its end.

    Args:
        cells: as in `concordance`.
        survival: float64 [n_bins, K], predicted.
        weights: float64 [K], of the score at each end.
    """
    n_intervals = len(weights)
    total = elementary.add_up(cells)
    codes, places = np.arange(len(cells)), np.arange(n_intervals)[:, None]
    at_risk, lost = (codes >= 2 * places).astype(np.float64), (codes == 2 * places).astype(np.float64)
    by_code = elementary.add_up_rows(cells)
    n_at_risk, stayed = elementary.times(at_risk, by_code), elementary.times(at_risk - lost, by_code)
    least = max(MEASURABLE * noise * math.sqrt(cells.size), 0.0)
    if min(total, float(stayed.min(initial=math.inf))) <= least:
        return UNMEASURABLE
    seen = np.cumprod(stayed / n_at_risk)
    had, has_not = survival.T**2, (1 - survival.T) ** 2
    # Parts of a record with an event in an interval, or followed through it, in the sum over all ends.
    of_events = np.cumsum((weights[:, None] * had)[::-1], axis=0)[::-1] / seen[:, None]
    of_longer = weights[:, None] * has_not / seen[:, None]
    slopes = np.zeros(cells.shape)
    slopes[1::2] = of_events
    later = np.cumsum(of_longer, axis=0)
    slopes[2::2] += later
    slopes[3::2] += later[:-1]
    value = elementary.dot(slopes, cells) / total
    # The derivative by the logarithm of each chance not to have been lost, and that of the logarithm by the counts.
    followed = np.cumsum(cells[::-1], axis=0)[::-1][2::2]
    by_seen = elementary.add_up_rows(of_events * cells[1::2]) + elementary.add_up_rows(of_longer * followed)
    of_seen = np.cumsum((at_risk - lost) / stayed[:, None] - at_risk / n_at_risk[:, None], axis=0)
    slopes -= elementary.times(of_seen.T, by_seen)[:, None] + value
    return _with_errors(value, slopes / total, cells, noise)


def _with_errors(value: float, slopes: Floats, cells: Floats, noise: float) -> Estimate:
    """Return a number with its errors to first order, from its derivative by each count.

    The number is a ratio, so the mean of the derivatives is 0.
    """
    sampling = math.sqrt(elementary.dot(np.maximum(cells, 0), slopes**2))
    return Estimate(value, noise * elementary.norm(slopes), sampling)


def average_estimates(estimates: list[Estimate]) -> Estimate:
    """Return the mean of estimates with independent noise, without those that were not measured."""
    known = [estimate for estimate in estimates if not math.isnan(estimate.value)]
    if not known:
        return UNMEASURABLE
    value = math.fsum(estimate.value for estimate in known) / len(known)
    return Estimate(value, math.hypot(*(estimate.noise_error for estimate in known)) / len(known))


def ratio(top: Floats, bottom: Floats, cells: Floats, noise: float) -> Estimate:
    """Estimate (top . cells) / (bottom . cells), for cells with independent noise; all float64 [n]."""
    total = elementary.dot(bottom, cells)
    if total <= MEASURABLE * noise * elementary.norm(bottom):
        return UNMEASURABLE
    value = elementary.dot(top, cells) / total
    return Estimate(value, noise * elementary.norm((top - value * bottom) / total))


def estimate_mean(values: Floats, cells: Floats, noise: float) -> Estimate:
    """Estimate the mean of a value per cell over the records, with its sampling error; float64 [n]."""
    found = ratio(values, np.ones_like(values), cells, noise)
    if math.isnan(found.value):
        return found
    total = elementary.add_up(cells)
    variance = elementary.dot(np.maximum(cells, 0), (values - found.value) ** 2) / total
    return Estimate(found.value, found.noise_error, math.sqrt(variance / total))


def within(estimate: Estimate, low: float, high: float) -> Estimate:
    """Return the estimate with its value cut off at both ends."""
    value = estimate.value if math.isnan(estimate.value) else min(max(estimate.value, low), high)
    return Estimate(value, estimate.noise_error, estimate.sampling_error)


def calibration_curve(label_class: str, cells: Floats, noise: float, predicted: Floats) -> CalibrationCurve:
    """Return one class's curve from its counts.

    Args:
        cells: float64 [2, n_bins].
        predicted: float64 [n_bins].
    """
    others, ours = cells
    total = others + ours
    n_records = max(elementary.add_up(total), 1.0)
    seen = total > 0
    safe = np.where(seen, total, 1.0)
    observed = np.clip(np.where(seen, ours / safe, 0.5), 0, 1)
    # The gradient of ours / (ours + others).
    slope = np.sqrt((1 - observed) ** 2 + observed**2) / safe
    # A count within two deviations of zero says nothing about its parts.
    lost = total <= 2 * noise * math.sqrt(2) if noise > 0 else ~seen
    error = np.where(lost, math.inf, noise * slope)
    return CalibrationCurve(label_class, predicted, observed, error, np.maximum(total, 0) / n_records)


def estimate_means(moments: Floats, noise: float, largest: dict[str, float]) -> dict[str, Estimate]:
    """Estimate means of several numbers from the sums of (1, each as a share of its largest).

    Args:
        moments: float64 [1 + number of names].
        noise: standard deviation of the noise of each.
        largest: by name.
    """
    found = {}
    for place, (name, most) in enumerate(largest.items(), start=1):
        share = np.eye(len(moments))
        mean = ratio(share[place], share[0], moments, noise)
        found[name] = within(Estimate(mean.value * most, mean.noise_error * most), 0.0, most)
    return found


def regression_estimates(moments: Floats, noise: float, clip: float, half_range: float) -> dict[str, Estimate]:
    """Estimate RMSE and R**2 from the sums of (1, y, y**2, min(e, clip)**2 / clip**2).

    y is scaled to [-1, 1].

    Args:
        moments: float64 [4].
        noise: standard deviation of the noise of each.
        clip: in units of the scaled label.
        half_range: label units per scaled unit.
    """
    if moments[0] <= MEASURABLE * noise:
        return {"rmse": UNMEASURABLE, "r2": UNMEASURABLE}

    def mean_square(sums: Floats) -> float:
        return float(sums[3] / sums[0]) * clip * clip

    def r_squared(sums: Floats) -> float:
        mean = float(sums[1] / sums[0])
        variance = float(sums[2] / sums[0]) - mean * mean
        return 1 - mean_square(sums) / variance

    variance = float(moments[2] / moments[0] - elementary.square(float(moments[1] / moments[0])))
    square = mean_square(moments)
    square_error = noise * clip * clip / float(moments[0]) * math.hypot(1, square / (clip * clip))
    rmse = math.sqrt(max(square, 0.0))
    # At zero the root has no slope; half the root of the error stands in.
    rmse_error = square_error / (2 * rmse) if rmse > 0 else math.sqrt(square_error)
    results = {"rmse": Estimate(rmse * half_range, rmse_error * half_range), "r2": UNMEASURABLE}
    if variance > MEASURABLE * noise / float(moments[0]):
        step = max(noise / 8, 1e-6 * float(moments[0]))
        steps = np.eye(4) * step
        slopes = [(r_squared(moments + one) - r_squared(moments - one)) / (2 * step) for one in steps]
        results["r2"] = Estimate(min(r_squared(moments), 1.0), noise * math.hypot(*slopes))
    return results
