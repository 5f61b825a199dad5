"""What noisy counts say: bounds of columns, classes. Post-processing of releases, so it costs nothing.

All numbers here are in records. A count is believed where it stands above its noise by several standard deviations, by
itself or together with its neighbours; the numbers are those that the measurements of docs/privacy.md found best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.survey.queries import (
    LOWEST_OCTAVE,
    LOWEST_VALUE,
    N_BITS,
    N_BUCKETS,
    N_OCTAVES,
    N_ZOOM,
    ZERO,
    bucket_of,
    text_of,
)

Counts = NDArray[np.float64]
Marks = NDArray[np.bool_]

STANDS_OUT = 4.0
"""Standard deviations of the noise above which bins are believed in the octaves from 2**-8 to below 2**20."""
STANDS_OUT_FAR = 5.0
"""The same for other octaves, and for classes, of which there are many that no record has."""
USUAL_OCTAVES = range(-8, 20)
WINDOWS = (1, 2, 4)
"""Bins are believed one by one first, then in windows of two and four."""
NOTHING_SEEN = (0.0, 2.0**17)
NARROW = 3
"""Octaves that the values of a column span at most for its bounds to leave zero out."""
FEW_PARTS, MANY_RECORDS = 3.0, 8.0
"""A column is of whole numbers where fewer than the first many standard deviations of the noise are not whole, and the
records are more than the second many."""
ONLY_ZEROS = (6.0, 0.03)
"""A column of which only zeros are seen has none else if so many standard deviations are below this share of n."""
CLEAR_VOTES = 2.0
"""Votes of a text are clear, in the mean, above so many standard deviations; those of noise alone have 0.8."""
ZOOMS_ON = 0.25
"""Another zoom is worth it where the last one left less than this share of the range."""
NEARLY_ALL = 0.98
"""Share of the records of a column that a zoom has to keep between its bounds."""
CLEAR_MASS = 40.0
"""A zoom is believed where a column has at least so many standard deviations of its noise in records."""
NARROWEST = 2.0**-20
"""No range is zoomed into below this share of its bounds: single precision ends soon."""


@dataclass(frozen=True)
class Range:
    """What was found of one column.

    Attributes:
        low, high: bounds, low < high.
        is_whole: whether its values are whole numbers.
        is_seen: whether any value stood out of the noise.
        mass: about how many records were seen between the bounds.
    """

    low: float
    high: float
    is_whole: bool = False
    is_seen: bool = True
    mass: float = 0.0

    @property
    def bounds(self) -> tuple[float, float]:
        """Both bounds; those of whole numbers are whole."""
        if not self.is_whole:
            return self.low, self.high
        low, high = math.ceil(self.low), math.ceil(self.high) - 1
        return (float(low), float(high)) if low < high else (self.low, self.high)


def marked(counts: Counts, deviation: float, above: Counts) -> Marks:
    """Which bins hold records, for all that the noise lets see: bool [n].

    Args:
        counts: float64 [n], noisy counts.
        deviation: of the noise of each; 0 without noise.
        above: float64 [n], the standard deviations that a bin has to stand out by; the most of a window counts.
    """
    kept = np.zeros(len(counts), dtype=np.bool_)
    for width in WINDOWS:
        while (found := _best_window(counts, kept, width, deviation, above)) is not None:
            own = found & (counts > deviation)
            kept |= own if own.any() else found & (counts == counts[found].max())
    return kept


def _best_window(counts: Counts, kept: Marks, width: int, deviation: float, above: Counts) -> Marks | None:
    """The bins, of those not marked yet, of the window that stands out most; None where none does."""
    free = ~kept
    starts = np.lib.stride_tricks.sliding_window_view
    sums = starts(np.where(free, counts, 0.0), width).sum(axis=1)
    noise = np.sqrt(starts(free, width).sum(axis=1)) * deviation
    excess = sums - noise * starts(above, width).max(axis=1)
    best = int(excess.argmax())
    if excess[best] <= 0:
        return None
    window = np.zeros(len(counts), dtype=np.bool_)
    window[best : best + width] = True
    return window & free


def _octave_thresholds() -> Counts:
    octaves = np.abs(np.arange(N_OCTAVES) - ZERO) - 1 + LOWEST_OCTAVE
    usual = (octaves >= USUAL_OCTAVES.start) & (octaves < USUAL_OCTAVES.stop)
    usual[ZERO] = True
    return np.where(usual, STANDS_OUT, STANDS_OUT_FAR)


def range_of_octaves(counts: Counts, n_parts: float, deviation: float, n_records: float) -> Range:
    """The bounds of a column by its octaves: the outermost that are seen.

    Args:
        counts: float64 [N_OCTAVES], noisy.
        n_parts: noisy count of values that are not whole; its noise has twice the deviation.
        deviation: of the noise of a count.
        n_records: public or noisy.
    """
    seen = np.flatnonzero(marked(counts, deviation, _octave_thresholds()))
    is_whole = n_parts < FEW_PARTS * 2 * deviation + 0.5 and n_records > MANY_RECORDS * 2 * deviation
    if not len(seen):
        return Range(*NOTHING_SEEN, is_seen=False)
    first, last = int(seen[0]) - ZERO, int(seen[-1]) - ZERO
    if first == last == 0:
        deviations, share = ONLY_ZEROS
        is_sure = deviations * deviation < share * n_records
        return Range(0.0, 2.0 if is_whole else 1.0, is_whole) if is_sure else Range(*NOTHING_SEEN, is_seen=False)
    has_zero = first <= 0 <= last
    is_narrow = not has_zero and last - first < NARROW
    low = _edge(first, outer=first < 0) if first < 0 or is_narrow else 0.0
    high = _edge(last, outer=last > 0) if last > 0 or is_narrow else 0.0
    if is_whole:
        # The outer end of negative octaves is not among their values, and the upper bound of the others is left out.
        low, high = low + (low < 0 and first < 0), high + (high <= 0)
    return Range(low if low < high else low - 1, high, is_whole, mass=float(counts[seen].sum()))


def _edge(place: int, *, outer: bool) -> float:
    """The end of a signed octave that is away from zero, or the one towards zero; `place` is never 0."""
    magnitude = 2.0 ** (abs(place) - 1 + LOWEST_OCTAVE + outer)
    return math.copysign(magnitude, place)


def is_away_from_zero(found: Range) -> bool:
    """Whether even bins between the bounds may say more: a column that lies within few octaves away from zero."""
    return found.is_seen and (found.low > 0 or found.high < 0)


def zoomed(found: Range, counts: Counts, deviation: float) -> Range:
    """The shortest range of bins that holds nearly all that was seen before, and a bin beside it at either end.

    Bins that stand out would not do: a column that spreads thinly beside one frequent value (an imputed one) would be
    cut to that value. The same range where no bins hold so many, or where the noise could make them.

    Args:
        counts: float64 [N_ZOOM], noisy.
        deviation: of the noise of a count.
    """
    if found.mass < CLEAR_MASS * deviation:
        return found
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    wanted = NEARLY_ALL * found.mass - STANDS_OUT * deviation
    for width in range(1, N_ZOOM + 1):
        held = sums[width:] - sums[:-width]
        if held.max() >= wanted:
            first = int(held.argmax())
            size = (found.high - found.low) / N_ZOOM
            low = found.low + size * max(0, first - 1)
            high = found.low + size * min(N_ZOOM, first + width + 1)
            return replace(found, low=low, high=high) if low < high else found
    return found


def wants_zoom(before: Range, after: Range) -> bool:
    """Whether another zoom may say more."""
    width = after.high - after.low
    return NARROWEST * max(abs(after.low), abs(after.high)) < width < ZOOMS_ON * (before.high - before.low)


def classes_of_values(counts: Counts, deviation: float) -> tuple[int, ...]:
    """The whole numbers whose counts stand out, ascending: `ValueCounts`."""
    seen = np.flatnonzero(counts > STANDS_OUT_FAR * deviation)
    return tuple((seen + LOWEST_VALUE).tolist())


def classes_of_votes(votes: Counts, deviation: float) -> tuple[str, ...]:
    """The texts that the votes spell, sorted: `NameVotes`.

    A text counts where it belongs into the bucket that spells it, and where its votes are, in the mean, larger than
    noise alone could make them: then hardly one of its bits is wrong, and with a wrong bit it would belong elsewhere.

    Args: votes: float64 [N_BUCKETS N_BITS].
    """
    found = []
    for bucket, own in enumerate(votes.reshape(N_BUCKETS, N_BITS)):
        text = text_of(own > 0)
        support = float(np.abs(own).mean())
        if text is not None and bucket_of(text) == bucket and support > CLEAR_VOTES * deviation:
            found.append(text)
    return tuple(sorted(found))


def in_records(released: Sequence[int] | NDArray[np.int64], unit: int) -> Counts:
    """A release in records: float64."""
    return np.asarray(released, dtype=np.float64) / unit
