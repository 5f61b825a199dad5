"""What noisy counts say of a column: its kind, its bounds, its classes. All of it is post-processing of releases.

All numbers here are in records. A count is believed where it stands above its noise by several standard deviations, by
itself or together with its neighbours; the numbers are those that the measurements of docs/privacy.md found best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.plan.plan import LARGEST_BOUND
from hedgerow.survey.kinds import ABSENT, NUMBER
from hedgerow.survey.queries import (
    HIGHEST_OCTAVE,
    LOWEST_OCTAVE,
    LOWEST_VALUE,
    N_BITS,
    N_BUCKETS,
    N_OCTAVES,
    N_ZOOM,
    ZERO,
    hash_label,
    spelt,
)

KIND_STANDS_OUT = 4.0
"""Standard deviations of the noise by which cells of another kind have to be more than the numbers."""
BOOLEANS = ("false", "true")
Counts = NDArray[np.float64]
Marks = NDArray[np.bool_]

STANDS_OUT = 4.0
"""Standard deviations of the noise above which bins are believed in the octaves from 2**-8 to below 2**20."""
STANDS_OUT_FAR = 5.3
"""The same for other octaves, of which there are 502 that no record has: one is believed in 11,000 columns at most."""
CLASS_STANDS_OUT = 5.5
"""The same for classes: there are 1,152, and one that no record has is found in one survey of 46,000."""
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


def kind_of_counts(counts: NDArray[np.float64], deviation: float) -> int:
    """What a column is: of numbers, unless cells of another kind are more, and stand out: `NUMBER` to `TEXT`.

    Args:
        counts: float64 [N_KINDS], noisy.
        deviation: of the noise of each.
    """
    most = int(counts[:ABSENT].argmax())
    return most if counts[most] - counts[NUMBER] > KIND_STANDS_OUT * deviation else NUMBER


@dataclass(frozen=True)
class Range:
    """What was found of one column.

    Attributes:
        low, high: bounds, low < high.
        is_whole: whether its values are whole numbers.
        is_seen: whether any value stood out of the noise.
        mass: about how many records were seen before zooms narrowed the bounds.
        cut, cut_deviation: about how many of them lie beyond the bounds, and the standard deviation of its noise.
        unheld: about how many single precision does not hold: too large, or too small where all but zeros are so.
    """

    low: float
    high: float
    is_whole: bool = False
    is_seen: bool = True
    mass: float = 0.0
    cut: float = 0.0
    cut_deviation: float = 0.0
    unheld: float = 0.0

    @property
    def doubt(self) -> str:
        """What a person should know of the bounds, by the releases; "" for nothing."""
        guess = "" if self.is_seen else "a guess: nothing stands out of the noise"
        if not self.unheld:
            return guess
        return (guess and f"{guess}; ") + (
            f"about {self.unheld:,.0f} values are too large or too small for single precision (1e-45 to 3e38), and "
            "count as a bound or as zero: write them in another unit"
        )

    @property
    def share_beyond(self) -> tuple[float, float]:
        """About what share of what was seen lies beyond the bounds, 0 to 1, and its standard deviation; 0, 0 if none.

        Rather too little: of windows alike, that one was taken of which the noise made most.
        """
        if not self.cut_deviation:
            return 0.0, 0.0
        return min(max(self.cut / self.mass, 0.0), 1.0), self.cut_deviation / self.mass

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


_OCTAVES = np.abs(np.arange(N_OCTAVES) - ZERO) - 1 + LOWEST_OCTAVE
"""The octave of each bin; below the lowest for that of zero."""


def _octave_thresholds() -> Counts:
    usual = (_OCTAVES >= USUAL_OCTAVES.start) & (_OCTAVES < USUAL_OCTAVES.stop)
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
    marks = marked(counts, deviation, _octave_thresholds())
    large, small = marks & (_OCTAVES == HIGHEST_OCTAVE), marks & (_OCTAVES == LOWEST_OCTAVE)
    held = marks & ~large & ~small
    unheld = large if held[_OCTAVES > LOWEST_OCTAVE].any() else large | small
    held[ZERO] |= small.any()
    mass = float(counts[held | small].sum())
    found = _range_of(np.flatnonzero(held), mass, n_parts, deviation, n_records)
    return replace(found, unheld=float(counts[unheld].sum()))


def _range_of(seen: NDArray[np.intp], mass: float, n_parts: float, deviation: float, n_records: float) -> Range:
    is_whole = n_parts < FEW_PARTS * 2 * deviation + 0.5 and n_records > MANY_RECORDS * 2 * deviation
    if is_whole:
        # No whole number lies between 0 and 1 in size: what seems to be there is noise.
        seen = seen[(seen == ZERO) | (_OCTAVES[seen] >= 0)]
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
    return Range(low if low < high else low - 1, high, is_whole, mass=mass)


def _edge(place: int, *, outer: bool) -> float:
    """The end of a signed octave that is away from zero, or the one towards zero; `place` is never 0."""
    magnitude = 2.0 ** (abs(place) - 1 + LOWEST_OCTAVE + outer)
    return math.copysign(min(magnitude, LARGEST_BOUND), place)


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
            start, end = max(0, first - 1), min(N_ZOOM, first + width + 1)
            low, high = found.low + size * start, found.low + size * end
            cut = found.cut + float(sums[start] + sums[-1] - sums[end])
            noise = math.hypot(found.cut_deviation, math.sqrt(start + N_ZOOM - end) * deviation)
            return replace(found, low=low, high=high, cut=cut, cut_deviation=noise) if low < high else found
    return found


def wants_zoom(before: Range, after: Range) -> bool:
    """Whether another zoom may say more."""
    width = after.high - after.low
    return NARROWEST * max(abs(after.low), abs(after.high)) < width < ZOOMS_ON * (before.high - before.low)


def classes_of_values(counts: Counts, deviation: float) -> tuple[int, ...]:
    """The whole numbers whose counts stand out, ascending: `ValueCounts`."""
    seen = np.flatnonzero(counts > CLASS_STANDS_OUT * deviation)
    return tuple((seen + LOWEST_VALUE).tolist())


def classes_of_votes(votes: Counts, deviation: float) -> tuple[str, ...]:
    """The texts that the votes spell, sorted: `NameVotes`.

    A text counts where it belongs into the bucket that spells it, and where its votes are, in the mean, larger than
    noise alone could make them: then hardly one of its bits is wrong, and with a wrong bit it would belong elsewhere.

    Args:
        votes: float64 [N_BUCKETS N_BITS].
    """
    found = []
    for bucket, own in enumerate(votes.reshape(N_BUCKETS, N_BITS)):
        text, strength = spelt(own) or ("", 0.0)
        if strength > CLEAR_VOTES * deviation and hash_label(text) == bucket:
            found.append(text)
    return tuple(sorted(found))


@dataclass(frozen=True)
class Findings:
    """What a survey found.

    Attributes:
        n_records: as declared, or about: at least 1, and rather too many than far too few.
        ranges: per column of numbers, in the order of the questions.
        label: of a label's bounds.
        classes: whole numbers or texts, sorted.
        unknown: per column of which nothing was known its kind, `NUMBER` to `TEXT`, and the range of numbers and dates.
        label_kind: of classes, where it was asked for.
    """

    n_records: int
    ranges: tuple[Range, ...] = ()
    label: Range | None = None
    classes: tuple[int, ...] | tuple[str, ...] = ()
    unknown: tuple[tuple[int, Range | None], ...] = ()
    label_kind: int = NUMBER
