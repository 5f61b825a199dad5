# SPDX-License-Identifier: Apache-2.0
"""Measures of predicted times to an event, where some records were followed for a while only.

A record has a time, and whether the event happened then or the record was last seen then (it is censored). Events of
a time come before losses at that time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.losses.kinds import Floats


def read_times(codes: NDArray[Any], ends: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Return times and events of records that are known by their interval only.

    An event counts at the end of its interval. A record that was lost in an interval was not seen at its end, and
    counts in its middle. A record that was followed through all intervals counts beyond the last end.

    Args:
        codes: int [n], 2 j + (whether the event happened) for interval j, 2 K for no event in any.
        ends: float64 [K], ascending, above 0.
    """
    starts = np.concatenate([[0.0], ends[:-1]])
    # The last place stands for records that were followed through all intervals.
    middles = np.append((starts + ends) / 2, 2 * ends[-1])
    events = codes % 2 == 1
    places = codes // 2
    return np.where(events, ends[np.minimum(places, len(ends) - 1)], middles[places]), events


def concordance(times: NDArray[Any], events: NDArray[Any], risks: NDArray[Any]) -> float:
    """Return Harrell's concordance of risks with times.

    It is the share of comparable pairs in which the record that is known to have had its event first has the larger
    risk; equal risks count half.

    Args:
        times: float [n].
        events: bool [n], whether the time is that of an event.
        risks: float [n].

    Returns:
        From 0 to 1; NaN where no two records can be compared. In O(n log n).

    Source: Harrell, Lee and Mark, Statistics in Medicine 15 (1996), section 5.5.
    """
    events = np.asarray(events, dtype=bool)
    order = np.lexsort((~events, times))
    events, ranks = events[order], np.unique(np.asarray(risks)[order], return_inverse=True)[1]
    n = len(order)
    # Records that are known to outlast an event stand behind all events of its time.
    changes = np.flatnonzero((np.diff(np.asarray(times)[order]) > 0) | (np.diff(events.astype(int)) != 0)) + 1
    behind = np.append(changes, n)[np.searchsorted(changes, np.arange(n), side="right")]
    first, own = behind[events], ranks[events]
    every = np.full(len(first), n)
    n_pairs = int((n - first).sum())
    if n_pairs == 0:
        return float("nan")
    smaller, up_to = (_count_below(ranks, first, every, own + tied) for tied in (0, 1))
    return float(smaller.sum() + up_to.sum()) / (2 * n_pairs)


def _count_below(values: NDArray[Any], begins: NDArray[Any], ends: NDArray[Any], limits: NDArray[Any]) -> NDArray[Any]:
    """Count the values of each range values[begin:end] that are below its limit: int64 [m].

    The values are sorted bit by bit, the highest first, and stably, so that every range stays one (a wavelet matrix).
    In O((n + m) log n).

    Args:
        values: int64 [n], from 0 to n - 1.
        begins, ends, limits: int64 [m]; limits from 0 to n.
    """
    found = np.zeros(len(begins), dtype=np.int64)
    for bit in reversed(range(len(values).bit_length())):
        is_one = (values >> bit) & 1 == 1
        zeros = np.concatenate([[0], np.cumsum(~is_one)])
        before, until = zeros[begins], zeros[ends]
        goes_up = (limits >> bit) & 1 == 1
        found += np.where(goes_up, until - before, 0)
        begins = np.where(goes_up, zeros[-1] + begins - before, before)
        ends = np.where(goes_up, zeros[-1] + ends - until, until)
        values = np.concatenate([values[~is_one], values[is_one]])
    return found


def brier_scores(times: NDArray[Any], events: NDArray[Any], survival: Floats, at: Floats) -> Floats:
    """Return the mean squared error of the predicted chance to be without the event, at each time.

    A record that was lost before a time does not count at it. The others are weighted by the inverse of the chance not
    to have been lost, by the Kaplan-Meier estimate of these same records.

    Args:
        times: float [n].
        events: bool [n].
        survival: float64 [n, K], predicted.
        at: float64 [K], the times.

    Returns:
        float64 [K].

    Source: Graf, Schmoor, Sauerbrei and Schumacher, Statistics in Medicine 18 (1999), section 3.
    """
    times, events = np.asarray(times), np.asarray(events, dtype=bool)
    distinct, places = np.unique(times, return_inverse=True)
    n_events, n_all = np.bincount(places, events, len(distinct)), np.bincount(places, minlength=len(distinct))
    # A record with the event at a time cannot be lost at that time.
    exposed = np.cumsum(n_all[::-1])[::-1] - n_events
    stays = 1 - (n_all - n_events) / np.maximum(exposed, 1)
    seen = np.concatenate([[1.0], np.cumprod(stays)])
    had = events[:, None] & (times[:, None] <= at)
    has_not = times[:, None] > at
    weight = np.zeros(survival.shape)
    np.divide(1.0, seen[places][:, None], out=weight, where=had)
    np.divide(1.0, seen[np.searchsorted(distinct, at, side="right")][None, :], out=weight, where=has_not)
    return np.array([elementary.mean(column) for column in (weight * (survival - has_not) ** 2).T])


def integrated_brier_score(times: NDArray[Any], events: NDArray[Any], survival: Floats, ends: Floats) -> float:
    """Return the mean of `brier_scores` over the time from 0 to the last end.

    The score is 0 at time 0, and lines between the ends are straight.
    """
    return mean_over_time(brier_scores(times, events, survival, ends), ends)


def mean_over_time(values: Floats, ends: Floats) -> float:
    """Return the mean over time of straight lines from 0 at time 0 through `values` at `ends`.

    Args:
        values, ends: float64 [K].
    """
    widths = np.diff(ends, prepend=0.0)
    return elementary.dot(widths, values + np.concatenate([[0.0], values[:-1]])) / (2 * float(ends[-1]))
