"""What a run about a time to an event releases besides its trees: the baseline before them, and a line after them.

Before the first tree, `FateCounts`: how many records have each code. An actuary reads the life table off them: e_j
events among the n_j at risk in interval j, and p_j = e_j / n_j, whose log-odds are the baseline of a model without
trees.

After the last tree, `OddsCounts`: by bin of the finished score, how many records there are, and how many events. Joint
clipping biases what is learned, ridges shorten it, and steps may go too far, so that scores are no log-odds of hazards,
but s times them are. The slope s is the likeliest for the events of the bins,

    sum over bins  f (events - expected events at slope s) = 0

and for any slope the baseline follows from the life table: among those at risk in an interval the hazards of the bins,
each logistic in b_j + s f, must have the mean p_j. Who is at risk follows from the hazards before, and from how many
were censored before, which is taken to be alike in all bins. So b_j rises against the life table as those of high risk
are gone.

Arithmetic is elementary, the logistic function a table, and sums are exact: all parties have the same model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hedgerow.losses.survival import BASELINE_LIMIT, Baseline
from hedgerow.losses.tables import SCORE_UNIT, STEP_BITS, STEPS, logistic
from hedgerow.methods.start import LABEL_NORM, ODDS_BINS, ODDS_FIRST, ODDS_STEP
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.trees.leaf_sums import TrainingSite
from hedgerow.trees.plausibility import Reals, ReleaseChecks, SumFacts

_STEPS_PER_UNIT = SCORE_UNIT >> STEP_BITS


@dataclass(frozen=True, kw_only=True, eq=False)
class FateCounts(Query):
    """How many records have each code of a time to an event: int64 [2K + 1], with 2**14 to a record."""

    def answer(self, site: TrainingSite) -> IntVector:
        """See `Query.answer`: one record is in one entry."""
        site.take_in(self.update)
        return np.bincount(site.records.labels, minlength=self.length).astype(np.int64) * LABEL_NORM

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        reach = facts.reach(1)
        if (released < -reach).any() or (released > facts.n_rows * LABEL_NORM + reach).any():
            yield "the number of records of a fate is out of range"


HALF = 0.7
"""Where noise covers all, half have the event by the end of the last of K intervals: a chance of 0.7 / K in each."""
BASELINE_DOUBT = 1.0
"""By what share an interval's chance may differ from that of all, one standard deviation, before anything is known."""
SLOPE, SLOPE_DOUBT = 0.7, 0.25
"""Of scores, before anything is known, and one standard deviation: what was seen of made and real sets."""
LEAST_SLOPE, MOST_SLOPE = 0.2, 2.0
_DEVIATIONS = 2.0
"""A bin counts if its records are more than so many deviations of noise: else empty ones would add up."""
_HALVINGS = 16


@dataclass(frozen=True)
class LifeTable:
    """What `FateCounts` tells, each float [K].

    Attributes:
        chances: p_j, of the event in an interval for those at risk in it.
        followed: the share of those without the event that are at risk in an interval, not ascending.
    """

    chances: tuple[float, ...]
    followed: tuple[float, ...]

    @classmethod
    def of(cls, released: IntVector, sigma: float) -> LifeTable:
        """Read a release, int64 [2K + 1] with noise `sigma`.

        Where the noise outweighs an interval's records, its chance gives way to that of all intervals, and where it
        outweighs all of them, theirs to `HALF`: as with normal priors whose deviation is their mean.
        """
        counts, noise = (released / LABEL_NORM).tolist(), (sigma / LABEL_NORM) ** 2
        # An event in it, or later, or censored at its end or later.
        at_risk = [max(math.fsum(counts[first:]), 1.0) for first in range(1, len(counts), 2)]
        events = counts[1::2]
        total = math.fsum(at_risk)
        usual = HALF / len(events)
        kept = (total * usual) ** 2 / ((total * usual) ** 2 + len(events) * noise)
        overall = min(max(usual + (math.fsum(events) / total - usual) * kept, 1 / (total + 1)), 0.5)
        chances: list[float] = []
        followed: list[float] = []
        without = 1.0
        for own, n in zip(events, at_risk, strict=True):
            expected = n * overall
            spread = (expected * BASELINE_DOUBT) ** 2
            kept = spread / (spread + noise + expected)
            chance = min(max((expected + (own - expected) * kept) / n, 1e-4), 1 - 1e-4)
            share = n / max(at_risk[0] * without, 1e-9)
            followed.append(min(share, followed[-1] if followed else 1.0))
            chances.append(chance)
            without *= 1 - chance
        return cls(tuple(chances), tuple(followed))

    @property
    def baseline(self) -> Baseline:
        """Log-odds of the chances: the inverse of a table, for a library's logarithm may round otherwise elsewhere."""
        return tuple(int(np.searchsorted(_logistic(), chance)) - STEPS // 2 for chance in self.chances)


@lru_cache(maxsize=1)
def _logistic() -> Reals:
    return logistic(STEPS, _STEPS_PER_UNIT)


def _chance(place: float) -> float:
    """The logistic function of log-odds in steps of 1/256."""
    return float(_logistic()[min(max(math.floor(place) + STEPS // 2, 0), STEPS - 1)])


@dataclass(frozen=True)
class _Bin:
    """What was released of a bin of scores, and its middle in steps of 1/256."""

    middle: float
    events: float
    n_records: float


@dataclass(frozen=True)
class _Line:
    """What a slope says: the baseline, and of each bin its expected events and their information."""

    baseline: Baseline
    expected: tuple[float, ...]
    information: tuple[float, ...]


def mended_hazards(table: LifeTable, released: IntVector, sigma: float) -> tuple[Baseline, float]:
    """The baseline and the slope of a finished model's scores; where noise covers all, the table's own and `SLOPE`.

    Args:
        table: of the same records.
        released: int64 [2 `ODDS_BINS`], an answer to `OddsCounts` with its noise.
        sigma: the noise's standard deviation, in integer units.

    Returns:
        K integers within `BASELINE_LIMIT`, and the slope, from `LEAST_SLOPE` to `MOST_SLOPE`.
    """
    noise, bins = sigma / LABEL_NORM, []
    for number in range(ODDS_BINS):
        middle = (ODDS_FIRST + (number - 0.5) * ODDS_STEP) / (1 << STEP_BITS)
        n_records = float(released[number]) / LABEL_NORM
        events = float(released[ODDS_BINS + number]) / LABEL_NORM + n_records / 2
        if n_records > _DEVIATIONS * noise:
            # Cut off at 0 and at all, events would lean towards the middle where there are few, and the slope to 0.
            bins.append(_Bin(middle, events, n_records))
    if len(bins) < 2:
        return table.baseline, SLOPE
    low, high = LEAST_SLOPE, MOST_SLOPE
    for _ in range(_HALVINGS):
        slope = (low + high) / 2
        low, high = (slope, high) if _pull(_line(table, bins, slope), bins, slope, noise) > 0 else (low, slope)
    return _line(table, bins, low).baseline, low


def _pull(line: _Line, bins: list[_Bin], slope: float, noise: float) -> float:
    """Above 0 where a larger slope is likelier: the score equation, and a prior as in `mended_odds`.

    How many events there are in all is the baseline's, so only how middles differ from their mean counts.
    """
    total = max(math.fsum(line.expected), 1e-9)
    mean = math.fsum(own.middle * n for own, n in zip(bins, line.expected, strict=True)) / total
    sums: list[list[float]] = [[], [], []]
    for own, expected, information in zip(bins, line.expected, line.information, strict=True):
        distance = (own.middle - mean) / _STEPS_PER_UNIT
        # The number of records has noise as well, half of which is in that of the events.
        spread = noise * noise * (1 + (expected / own.n_records - 0.5) ** 2)
        terms = ((own.events - expected) * distance, information * distance**2, spread * distance**2)
        for each, term in zip(sums, terms, strict=True):
            each.append(term)
    score, known, covered = map(math.fsum, sums)
    return score - (1 + covered / max(known, 1e-9)) * (slope - SLOPE) / SLOPE_DOUBT**2


def _line(table: LifeTable, bins: list[_Bin], slope: float) -> _Line:
    """See the module's text."""
    without, baseline = [1.0] * len(bins), []
    events: list[list[float]] = [[] for _ in bins]
    information: list[list[float]] = [[] for _ in bins]
    for chance, followed in zip(table.chances, table.followed, strict=True):
        weights = [own.n_records * share for own, share in zip(bins, without, strict=True)]
        place = _place_of_mean(bins, weights, slope, chance)
        baseline.append(place)
        for number, own in enumerate(bins):
            hazard = _chance(place + slope * own.middle)
            at_risk = own.n_records * followed * without[number]
            events[number].append(at_risk * hazard)
            information[number].append(at_risk * hazard * (1 - hazard))
            without[number] *= 1 - hazard
    return _Line(tuple(baseline), tuple(map(math.fsum, events)), tuple(map(math.fsum, information)))


def _place_of_mean(bins: list[_Bin], weights: list[float], slope: float, chance: float) -> int:
    """The baseline with which the weighted mean of the bins' hazards is `chance`: by halving, in steps of 1/256."""
    low, high = -BASELINE_LIMIT, BASELINE_LIMIT
    wanted = chance * math.fsum(weights)
    while low < high:
        middle = (low + high) // 2
        mean = math.fsum(
            weight * _chance(middle + slope * own.middle) for weight, own in zip(weights, bins, strict=True)
        )
        low, high = (middle + 1, high) if mean < wanted else (low, middle)
    return low
