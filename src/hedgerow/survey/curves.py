# SPDX-License-Identifier: Apache-2.0
"""Compute Kaplan-Meier curves by group, at the ends of public intervals, from one noisy sum.

A record adds one to one cell, given by its group and by what is known of its time (`survival_codes`). With the noisy
counts d_j of events in interval j, c_j of records lost in it, and r_j at risk in it,

    S_j = (1 - d_1 / r_1) ... (1 - d_j / r_j),    r_j = d_j + c_j / 2 + all that were followed further,

which is the Kaplan-Meier estimate if no interval has both events and losses, and else the life table's. A record that
was lost in an interval was at risk in half of it. All computations on the release are post-processing.

The variance of log S_j is Greenwood's for the sample, plus that of the noise to first order. Bands cover both. A curve
ends when too few records are left to be distinguished from noise. See docs/proofs/queries.md,
section "Kaplan-Meier curves".

Source: Kaplan and Meier, JASA 53 (1958); Cutler and Ederer, J. Chronic Diseases 8 (1958); Greenwood 1926.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hedgerow import elementary
from hedgerow.losses.survival import EVENT_CODES, doubt_times, survival_codes
from hedgerow.protocol.queries import IntVector
from hedgerow.survey.queries import UNIT, OneCount, RawSite, Reals, TextBins, blank
from hedgerow.survey.statistics import BAND, Noisy, show_count

_EVENT_TEXTS = (*EVENT_CODES, "false", "true")


@dataclass(frozen=True, kw_only=True, eq=False)
class SurvivalCounts(OneCount):
    """Records by group and by what is known of their times: int64 [n_groups (2 K + 1)], flat.

    A record adds `UNIT` to one cell, or nothing where its time, event or group is missing or none: a squared norm of
    exactly UNIT**2 for a record that fits.

    Attributes:
        time, event: their indices in `RawSite.columns`.
        ends: ends of the intervals, ascending, above 0.
        codes: texts of the column of events, alternating: not seen, seen.
        by: the index of the column of groups; None for one group of all.
        groups: its categories; ("",) for one group of all.
    """

    time: int
    event: int
    ends: tuple[float, ...]
    codes: tuple[str, ...] = _EVENT_TEXTS
    by: int | None
    groups: tuple[str, ...]

    @property
    def n_codes(self) -> int:
        """Number of cells of a group."""
        return 2 * len(self.ends) + 1

    def answer(self, site: RawSite) -> IntVector:
        times = site.numbers(self.time)
        words = TextBins(self.codes, 0).places(site, self.event)
        own = np.zeros(len(times), dtype=np.intp) if self.by is None else TextBins(self.groups, 0).places(site, self.by)
        fits = (times >= 0) & (words >= 0) & (own >= 0)
        codes = survival_codes(times[fits], words[fits] % 2 == 1, self.ends)
        counts = np.bincount(own[fits] * self.n_codes + codes, minlength=self.expected_length())
        return np.asarray(counts * UNIT, dtype=np.int64)

    def expected_length(self) -> int:
        return len(self.groups) * self.n_codes


@dataclass(frozen=True, kw_only=True)
class AskedCurves:
    """The curves that a survey asks for.

    Attributes:
        ends, groups, codes: as in `SurvivalCounts`.
        names: names of the columns of times, of events, and of groups ("" for none).
    """

    ends: tuple[float, ...]
    groups: tuple[str, ...]
    names: tuple[str, str, str]
    codes: tuple[str, ...] = _EVENT_TEXTS

    @property
    def query(self) -> SurvivalCounts:
        """The only query, before its numbers are filled in."""
        by = 2 if self.names[2] else None
        return blank(SurvivalCounts, time=0, event=1, ends=self.ends, codes=self.codes, by=by, groups=self.groups)


@dataclass(frozen=True)
class Curve:
    """A group's curve.

    Attributes:
        group: its category; "" for all records.
        n_records: approximate number of records.
        at_risk: records at risk in each interval, counting those lost in it half; not shown once too few are left.
        survival: the probability of no event until the end of each shown interval, not ascending, with the standard
            deviation of its noise alone.
        low, high: 95 % bounds of each probability, for noise and sample together.
    """

    group: str
    n_records: Noisy
    at_risk: tuple[Noisy, ...]
    survival: tuple[Noisy, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; None for a value that is not shown."""
        hidden = [None] * (len(self.at_risk) - len(self.survival))
        return {
            "group": self.group,
            "n_records": self.n_records.to_dict(),
            "at_risk": [count.to_dict() for count in self.at_risk],
            "survival": [*(point.to_dict() for point in self.survival), *hidden],
            "low": [*self.low, *hidden],
            "high": [*self.high, *hidden],
        }


@dataclass(frozen=True)
class SurvivalCurves:
    """The curves of all groups.

    Attributes:
        time, event, by: the columns; "" for no groups.
        ends: ends of the intervals.
        curves: by group, in the order of its categories.
        n_records: approximate number of records with a time, an event and a group.
        doubt: a warning about the times, by the released counts; "" for none.
    """

    time: str
    event: str
    by: str
    ends: tuple[float, ...]
    curves: tuple[Curve, ...]
    n_records: Noisy
    doubt: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "n_records": self.n_records.to_dict(),
            "time": self.time,
            "event": self.event,
            "by": self.by,
            "ends": list(self.ends),
            **({"doubt": self.doubt} if self.doubt else {}),
            "curves": [curve.to_dict() for curve in self.curves],
        }


def read_curves(asked: AskedCurves, counts: Reals, deviation: float) -> SurvivalCurves:
    """Compute the curves of all groups from noisy counts.

    Args:
        counts: float64 [n_groups, 2 K + 1], noisy.
        deviation: of the noise of each.
    """
    curves = tuple(read_curve(name, row, deviation) for name, row in zip(asked.groups, counts, strict=True))
    time, event, by = asked.names
    total = show_count(float(counts.sum()), deviation, counts.size)
    doubt = doubt_times(counts.sum(axis=0), asked.ends, time) if total.is_shown else ""
    return SurvivalCurves(time, event, by, asked.ends, curves, total, doubt)


def read_curve(group: str, counts: Reals, deviation: float) -> Curve:
    """Compute one group's curve from its noisy counts.

    Args:
        counts: float64 [2 K + 1], by code.
        deviation: of the noise of each.
    """
    n_intervals = len(counts) // 2
    events = counts[1::2]
    # [interval, code]: how much a record counts as surviving the interval, and as at risk in it.
    places, codes = np.arange(n_intervals)[:, None], np.arange(2 * n_intervals + 1)
    stays = (codes >= 2 * places + 2) + 0.5 * (codes == 2 * places)
    exposed = stays + (codes == 2 * places + 1)
    left, risk = elementary.times(stays, counts), elementary.times(exposed, counts)
    at_risk = [
        show_count(float(n), deviation * elementary.norm(row)) for n, row in zip(risk, exposed, strict=True)
    ]
    hidden = [not count.is_shown for count in at_risk]
    n_shown = hidden.index(True) if True in hidden else n_intervals
    left, risk, events = left[:n_shown], risk[:n_shown], np.maximum(events[:n_shown], 0.0)
    raw = np.cumprod(np.maximum(1 - counts[1::2][:n_shown] / risk, 0.0))
    # A rise is noise: take the middle of the closest non-rising curves below and above.
    survival = np.clip((np.minimum.accumulate(raw) + np.maximum.accumulate(raw[::-1])[::-1]) / 2, 0.0, 1.0)
    # Keep at least half a record, so that a curve that ends at 0 has a band.
    left = np.maximum(left, 0.5)
    slopes = np.cumsum(stays[:n_shown] / left[:, None] - exposed[:n_shown] / risk[:, None], axis=0)
    noise = deviation * np.array([elementary.norm(row) for row in slopes])
    error = np.sqrt(noise**2 + np.cumsum(events / (risk * left)))
    low = np.minimum.accumulate(survival * elementary.exp(-BAND * error))
    high = np.maximum.accumulate(np.minimum(survival * elementary.exp(BAND * error), 1.0)[::-1])[::-1]
    return Curve(
        group,
        show_count(float(counts.sum()), deviation, len(counts)),
        (*at_risk[:n_shown], *(replace(count, is_shown=False) for count in at_risk[n_shown:])),
        tuple(Noisy(float(value), float(value * spread)) for value, spread in zip(survival, noise, strict=True)),
        tuple(low.tolist()),
        tuple(high.tolist()),
    )
