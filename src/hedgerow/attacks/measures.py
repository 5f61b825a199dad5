# SPDX-License-Identifier: Apache-2.0
"""Measures of an attack, with standard errors, beside a ledger's bound on any attack."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata

from hedgerow.errors import PrivacyError
from hedgerow.privacy.cost import compose_cost
from hedgerow.privacy.events import Event

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
FALSE_ALARM_RATES = (0.01, 0.001)


@dataclass(frozen=True)
class Figure:
    """A measured number.

    Attributes:
        value: not a number where it cannot be measured.
        error: its standard error.
        bound: the most that any attack reaches, in expectation.
    """

    value: float
    error: float
    bound: float

    def is_above(self, n_errors: float) -> bool:
        """Return whether the measured value exceeds its bound by more than n_errors standard errors."""
        return self.value - n_errors * self.error > self.bound


@dataclass(frozen=True)
class Bound:
    """The bound of a ledger on any test of whether one unit is in the data.

    It is the less of two bounds.

    Let a be a test's false alarm rate. If the releases are mu-GDP, its true positive rate is at most
    Phi(Phi^-1(a) + mu). If they are (epsilon, delta)-DP, it is at most
    min(delta + e^epsilon a, 1 - e^-epsilon (1 - delta - a)).
    Both are concave in a, so they hold for averages over rows and runs as well. Sources: Dong, Roth and Su 2019,
    arXiv 1905.02383, definition 2.1 and proposition 2.3; Kairouz, Oh and Viswanath 2015, arXiv 1311.0776.

    Attributes:
        mu: infinity where it is not known, or nothing is promised.
        epsilon, delta: infinity and any delta where nothing is promised.
    """

    mu: float
    epsilon: float
    delta: float

    @classmethod
    def of_ledger(cls, events: Iterable[Event], epsilon: float, delta: float) -> Bound:
        """Return the bound of these releases, whose report says (epsilon, delta)."""
        try:
            mu = math.sqrt(compose_cost(events).gdp_weight)
        except PrivacyError:
            # A release over a secret sample has no mu.
            mu = math.inf
        return cls(mu, epsilon, delta)

    def rate(self, false_alarms: float) -> float:
        """Return the largest true positive rate at a false alarm rate, in (0, 1)."""
        by_mu = float(ndtr(ndtri(false_alarms) + self.mu))
        if math.isinf(self.epsilon):
            return by_mu
        grown = self.delta + math.exp(self.epsilon) * false_alarms
        return min(by_mu, grown, 1 - math.exp(-self.epsilon) * max(0.0, 1 - self.delta - false_alarms))

    @property
    def auc(self) -> float:
        """The largest area under those rates.

        It is Phi(mu / sqrt 2), or that of the two straight lines, whichever is less.
        """
        by_mu = float(ndtr(self.mu / math.sqrt(2)))
        if math.isinf(self.epsilon):
            return by_mu
        # The lines cross at (1 - delta) / (1 + e^epsilon).
        crossing = (1 - self.delta) / (1 + math.exp(self.epsilon))
        return min(by_mu, self.delta * crossing + math.exp(self.epsilon) * crossing + self.delta)

    @property
    def accuracy(self) -> float:
        """The largest chance to tell which of two equally likely values a unit has.

        The values are 2 mu apart at most.
        """
        by_mu = float(ndtr(self.mu))
        if math.isinf(self.epsilon):
            return by_mu
        # From one value to none, and from none to the other: (2 epsilon, delta (1 + e^epsilon)), in total variation.
        delta = self.delta * (1 + math.exp(self.epsilon))
        return min(by_mu, (1 + delta + (1 - delta) * math.tanh(self.epsilon)) / 2)


@dataclass(frozen=True)
class Separation:
    """The separation of members from others by scores.

    Attributes:
        auc: the chance that a member's score is above another's, ties half.
        rates: the true positive rate by the false alarm rate.
    """

    auc: Figure
    rates: dict[float, Figure]

    def is_above(self, n_errors: float) -> bool:
        """Return whether any figure exceeds its bound by more than n_errors standard errors."""
        return self.auc.is_above(n_errors) or any(rate.is_above(n_errors) for rate in self.rates.values())


def separate(scores: Floats, present: Bools, bound: Bound) -> Separation:
    """Measure an attack over several independent runs.

    Its errors are those of a jackknife over runs (delete one run; Efron and Stein 1981), for rows of one run share its
    noise and are not independent: they say how far a figure would move with other noise and other members, for this
    table. Of few runs a jackknife may be too small by chance, so no error is less than that of independent rows.

    Args:
        scores: [n_runs, n], n_runs >= 2; the larger, the more likely the row was in that run.
        present: [n_runs, n], whether it was.
        bound: the bound by the runs' ledger.
    """
    n_present = max(1, int(present.sum()))
    n_absent = max(1, present.size - n_present)

    def measure(of: Callable[[Floats, Bools], float], floor: Callable[[float], float], allowed: float) -> Figure:
        value = of(scores, present)
        runs = range(len(scores))
        others = [of(np.delete(scores, run, axis=0), np.delete(present, run, axis=0)) for run in runs]
        return Figure(value, math.sqrt(max((len(runs) - 1) * float(np.var(others)), floor(value))), allowed)

    def vary_area(value: float) -> float:
        # The variance of an area where members are like others; it is less where they are not (Hanley, McNeil 1982).
        own = _shrink(value, min(n_present, n_absent))
        return 4 * own * (1 - own) * (1 / n_present + 1 / n_absent) / 12

    def vary_rate(at: float) -> Callable[[float], float]:
        # The variance of the share, plus that of the threshold: the share grows with the rate by share / rate at most.
        def variance(value: float) -> float:
            own = _shrink(value, n_present)
            return own * (1 - own) / n_present + own * own / (at * n_absent)

        return variance

    rates = {
        at: measure(lambda own, labels, at=at: find_rate(own, labels, at), vary_rate(at), bound.rate(at))  # type: ignore[misc]
        for at in FALSE_ALARM_RATES
    }
    return Separation(measure(find_auc, vary_area, bound.auc), rates)


def _shrink(share: float, count: int) -> float:
    """Return the share after one more trial with half a success.

    None and all of a few are not known without error.
    """
    return (share * count + 0.5) / (count + 1)


def find_auc(scores: Floats, present: Bools) -> float:
    """Return the chance that a member's score is above another's, ties half.

    It is not a number without one of each.
    """
    n_present = int(present.sum())
    n_absent = present.size - n_present
    if not n_present or not n_absent:
        return math.nan
    ranks = rankdata(scores, axis=None)[present.ravel()]
    return float((ranks.sum() - n_present * (n_present + 1) / 2) / (n_present * n_absent))


def find_rate(scores: Floats, present: Bools, false_alarms: float) -> float:
    """Return the share of members above the threshold of a false alarm rate.

    At most `false_alarms` of the others are above that threshold.

    The result is not a number where that share is less than one of the others.
    """
    absent = np.sort(scores[~present])
    allowed = int(false_alarms * len(absent))
    if not allowed or not present.any():
        return math.nan
    return float((scores[present] > absent[len(absent) - 1 - allowed]).mean())
