# SPDX-License-Identifier: Apache-2.0
"""Read a column's kind, bounds and classes off noisy counts: all post-processing of releases.

All numbers here are in records. A count is believed if it exceeds its noise by several standard deviations, alone or
together with its neighbours. The constants are those that the measurements of docs/proofs/queries.md found best.

**A label's range** bounds all predictions and scales all noise, so it has rules of its own (`range_of_label`):

- Too wide costs little: training zooms in on the range of the labels, and loses next to nothing as long as the width is
  below a twentieth of spread times signal (the records, in standard deviations of a training's noise). Cutting off a
  tail biases all predictions, and no budget can undo that. So the range extends beyond the values seen: to twice their
  range in any case, and further as long as that costs nothing.
- A range is refused (`is_seen` is false) if records do not stand out by far, or may spread over a small part of it
  only: the model would then be little but noise. A person has to declare a refused range. There is no guess.
- The result does not depend on signs, nor on units, except for powers of two that a value just reaches. With less
  noise, at least as much of the tail is seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.errors import DataError
from hedgerow.losses.poisson import MAX_COUNT
from hedgerow.plan.plan import MAX_FEATURE_BOUND
from hedgerow.privacy.rounding import format_up
from hedgerow.survey import queries
from hedgerow.survey.kinds import ABSENT, NUMBER, USUAL_CLASSES

KIND_STANDS_OUT = 4.0
"""Standard deviations of the noise by which cells of another kind must outnumber the numbers."""
BOOLEANS = ("false", "true")
Counts = NDArray[np.float64]
Marks = NDArray[np.bool_]

STANDS_OUT = 4.0
"""Standard deviations of the noise above which a bin is believed, in the octaves from 2**-8 to below 2**20."""
STANDS_OUT_FAR = 5.3
"""Deviations for the other 502 octaves: an empty one of these is believed in one of 11,000 columns."""
CLASS_STANDS_OUT = 5.5
"""Deviations for the 1,152 classes: an empty one is found in one of 46,000 surveys."""
USUAL_OCTAVES = range(-8, 20)
WINDOWS = (1, 2, 4)
"""Bins are believed one by one first, then in windows of two and four."""
NOTHING_SEEN = (0.0, 2.0**17)
NARROW, NARROW_LABEL = 3, 2
"""Most octaves that a column's, or a label's, values may span if its bounds exclude zero."""
FEW_PARTS, MANY_RECORDS = 3.0, 8.0
"""A column has whole numbers if its non-whole values are fewer than FEW_PARTS standard deviations of the noise, and its
records more than MANY_RECORDS."""
ONLY_ZEROS = (6.0, 0.03)
"""(number, share): a column in which only zeros are seen has nothing else if this number of standard deviations of the
noise is below this share of n."""
CLEAR_VOTES = 2.0
"""Mean strength, in standard deviations, above which a text's votes are clear; noise alone has 0.8."""
ZOOMS_ON = 0.25
"""Another zoom follows if the last one left less than this share of the range."""
SHARE_IN_BOUNDS = 0.98
"""Share of the records of a column that a zoom has to keep between its bounds."""
NEAR, STANDS_OUT_NEAR, STANDS_OUT_SIDE = 3, 3.5, 2.5
"""For a label: octaves at most NEAR below the largest one seen are believed above STANDS_OUT_NEAR deviations, and all
of one sign together above STANDS_OUT_SIDE."""
CLEAR_LABEL = 20.0
"""A label's range is believed if this many standard deviations of records are seen. An octave that stays unseen then
has fewer than a fifth of the records; cutting it off adds, squared, at most that share of the label's variance."""
MARGINS, WIDTH_OF_SPREAD = (8.0, 4.0, 2.0), 0.25
"""Factors by which a label's range exceeds the octaves seen: the largest for which its width stays below
WIDTH_OF_SPREAD times the records seen (in standard deviations of their noise) times their spread."""
COUNT_MARGIN, MIN_OF_COUNTS = 8.0, 1024.0
"""Factor by which the range of a label of counts exceeds the octaves seen, and its least upper end."""
FEW_BINS = 4
"""Fewest bins of a zoom from which a label's spread can be estimated."""
FEW_VALUES = 64
"""Fewest whole numbers between the bounds for a zoom into them."""
RAREST = 0.005
"""Share that the rarer class of a usual pair is assumed to have at least."""
HELD = 0.85
"""Share of a label's records that a zoom has to keep, as far as the noise shows."""
ZOOM_WINDOWS, STANDS_OUT_ZOOM = (1, 2, 4, 8, 16, 32), 4.5
"""As `WINDOWS` and `STANDS_OUT`, for the even bins of a label that lies far from zero."""
CLEAR_MASS = 40.0
"""Fewest records of a column, in standard deviations of its noise, for a zoom to be believed."""
NARROWEST = 2.0**-20
"""Narrowest range for a zoom, as a share of its bounds: single precision ends soon below it."""


def classify_counts(counts: NDArray[np.float64], deviation: float) -> int:
    """Return a column's kind (`NUMBER` to `TEXT`): numbers, unless another kind clearly outnumbers them.

    Args:
        counts: float64 [N_KINDS], noisy.
        deviation: standard deviation of the noise of each count.
    """
    most = int(counts[:ABSENT].argmax())
    return most if counts[most] - counts[NUMBER] > KIND_STANDS_OUT * deviation else NUMBER


@dataclass(frozen=True)
class Range:
    """The range that was found for one column.

    Attributes:
        low, high: bounds, low < high.
        is_whole: whether its values are whole numbers.
        is_seen: whether any value stood out of the noise.
        mass: approximate number of records seen before zooms narrowed the bounds.
        unheld: approximate number of values outside single precision: too large, or too small if all nonzero values
            are.
    """

    low: float
    high: float
    is_whole: bool = False
    is_seen: bool = True
    mass: float = 0.0
    unheld: float = 0.0

    @property
    def doubt(self) -> str:
        """The warning about the bounds, by the releases; "" for none."""
        guess = "" if self.is_seen else "a guess: nothing stands out of the noise"
        if not self.unheld:
            return guess
        return (guess and f"{guess}; ") + (
            f"about {self.unheld:,.0f} values are too large or too small for single precision (1e-45 to 3e38), and "
            "count as a bound or as zero: write them in another unit"
        )

    @property
    def bounds(self) -> tuple[float, float]:
        """Both bounds; those of whole numbers are whole."""
        if not self.is_whole:
            return self.low, self.high
        low, high = math.ceil(self.low), math.ceil(self.high) - 1
        return (float(low), float(high)) if low < high else (self.low, self.high)


def mark(counts: Counts, deviation: float, above: Counts, windows: tuple[int, ...] = WINDOWS) -> Marks:
    """Return flags of the bins that hold records, as far as the noise shows: bool [n].

    Args:
        counts: float64 [n], noisy counts.
        deviation: standard deviation of the noise of each count; 0 without noise.
        above: float64 [n], deviations by which a bin has to stand out; for a window, the largest of its bins.
        windows: in bins, the narrowest first.
    """
    kept = np.zeros(len(counts), dtype=np.bool_)
    for width in windows:
        while (found := _best_window(counts, kept, width, deviation, above)) is not None:
            own = found & (counts > deviation)
            kept |= own if own.any() else found & (counts == counts[found].max())
    return kept


def _best_window(counts: Counts, kept: Marks, width: int, deviation: float, above: Counts) -> Marks | None:
    """Return the unmarked bins of the window that stands out most; None if no window does."""
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


_OCTAVES = np.abs(np.arange(queries.N_OCTAVES) - queries.ZERO) - 1 + queries.LOWEST_OCTAVE
"""The octave of each bin; below the lowest for that of zero."""
_SIGNS = np.sign(np.arange(queries.N_OCTAVES) - queries.ZERO)


def octave_thresholds() -> Counts:
    """Return the deviations by which each octave's count has to stand out: float64 [N_OCTAVES]."""
    is_usual = (_OCTAVES >= USUAL_OCTAVES.start) & (_OCTAVES < USUAL_OCTAVES.stop)
    is_usual[queries.ZERO] = True
    return np.where(is_usual, STANDS_OUT, STANDS_OUT_FAR)


def find_range(counts: Counts, n_parts: float, deviation: float, n_records: float) -> Range:
    """Return the bounds of a column by its outermost octaves that are seen.

    Args:
        counts: float64 [N_OCTAVES], noisy.
        n_parts: noisy count of values that are not whole; its noise has twice the deviation.
        deviation: standard deviation of the noise of a count.
        n_records: public or noisy.
    """
    marks = mark(counts, deviation, octave_thresholds())
    return _octave_range(counts, marks, n_parts, deviation, n_records)


def _octave_range(
    counts: Counts, marks: Marks, n_parts: float, deviation: float, n_records: float, narrow: int = NARROW
) -> Range:
    large, small = marks & (_OCTAVES == queries.HIGHEST_OCTAVE), marks & (_OCTAVES == queries.LOWEST_OCTAVE)
    held = marks & ~large & ~small
    unheld = large if held[_OCTAVES > queries.LOWEST_OCTAVE].any() else large | small
    held[queries.ZERO] |= small.any()
    mass = float(counts[held | small].sum())
    found = _build_range(np.flatnonzero(held), mass, n_parts, deviation, n_records, narrow)
    return replace(found, unheld=float(counts[unheld].sum()))


def _build_range(
    seen: NDArray[np.intp], mass: float, n_parts: float, deviation: float, n_records: float, narrow: int
) -> Range:
    is_whole = n_parts < FEW_PARTS * 2 * deviation + 0.5 and n_records > MANY_RECORDS * 2 * deviation
    if is_whole:
        # No whole number lies between 0 and 1 in absolute value, so counts there are noise.
        seen = seen[(seen == queries.ZERO) | (_OCTAVES[seen] >= 0)]
    if not len(seen):
        return Range(*NOTHING_SEEN, is_seen=False)
    first, last = int(seen[0]) - queries.ZERO, int(seen[-1]) - queries.ZERO
    if first == last == 0:
        deviations, share = ONLY_ZEROS
        is_sure = deviations * deviation < share * n_records
        return Range(0.0, 2.0 if is_whole else 1.0, is_whole) if is_sure else Range(*NOTHING_SEEN, is_seen=False)
    has_zero = first <= 0 <= last
    is_narrow = not has_zero and last - first < narrow
    low = _edge(first, outer=first < 0) if first < 0 or is_narrow else 0.0
    high = _edge(last, outer=last > 0) if last > 0 or is_narrow else 0.0
    if is_whole:
        # The outer end of negative octaves is not among their values, and the upper bound of the others is left out.
        low, high = low + (low < 0 and first < 0), high + (high <= 0)
    return Range(low if low < high else low - 1, high, is_whole, mass=mass)


def _edge(place: int, *, outer: bool) -> float:
    """Return the end of a signed octave away from zero (`outer`), or towards zero; `place` is never 0."""
    magnitude = 2.0 ** (abs(place) - 1 + queries.LOWEST_OCTAVE + outer)
    return math.copysign(min(magnitude, MAX_FEATURE_BOUND), place)


def is_away_from_zero(found: Range) -> bool:
    """Return whether the range excludes zero, so that even bins between its bounds may tell more."""
    return found.is_seen and (found.low > 0 or found.high < 0)


def zoom_in(found: Range, counts: Counts, deviation: float) -> Range:
    """Return the shortest range of bins with nearly all records seen before, and one more bin at each end.

    Bins that stand out would not do: a column that spreads thinly beside one frequent value (an imputed one) would be
    cut to that value. The range stays the same if no bins hold that many records, or if noise could produce them.

    Args:
        counts: float64 [N_ZOOM], noisy.
        deviation: standard deviation of the noise of a count.
    """
    if found.mass < CLEAR_MASS * deviation:
        return found
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    wanted = SHARE_IN_BOUNDS * found.mass - STANDS_OUT * deviation
    for width in range(1, queries.N_ZOOM + 1):
        held = sums[width:] - sums[:-width]
        if held.max() >= wanted:
            first = int(held.argmax())
            size = (found.high - found.low) / queries.N_ZOOM
            start, end = max(0, first - 1), min(queries.N_ZOOM, first + width + 1)
            low, high = found.low + size * start, found.low + size * end
            return replace(found, low=low, high=high) if low < high else found
    return found


def wants_zoom(before: Range, after: Range) -> bool:
    """Return whether another zoom may narrow the range further."""
    width = after.high - after.low
    return NARROWEST * max(abs(after.low), abs(after.high)) < width < ZOOMS_ON * (before.high - before.low)


def range_of_label(counts: Counts, n_parts: float, deviation: float, n_records: float, *, is_count: bool) -> Range:
    """Return a label's range: the octaves that are seen, and a margin.

    `is_seen` is false if the range is refused.

    Args:
        counts, n_parts, deviation, n_records: as in `find_range`.
        is_count: whether the label is a count; its range then begins at zero and is at most `MAX_COUNT`.
    """
    everywhere = np.full(len(counts), STANDS_OUT_FAR)
    marks = mark(counts, deviation, everywhere)
    largest = _OCTAVES[marks].max(initial=queries.LOWEST_OCTAVE)
    # Near the largest octave that stands out by itself, a lower threshold is enough, on both sides of zero.
    marks = mark(counts, deviation, np.where(np.abs(_OCTAVES - largest) <= NEAR, STANDS_OUT_NEAR, everywhere))
    for sign in (-1, 1):
        # If one sign's labels spread over several octaves that are not seen singly, their sum may be seen.
        side = (sign == _SIGNS) & (largest - NEAR <= _OCTAVES) & (largest >= _OCTAVES)
        is_there = counts[side].sum() > STANDS_OUT_SIDE * deviation * math.sqrt(side.sum())
        marks |= side & (largest == _OCTAVES) & bool(is_there and marks.any())
    found = _octave_range(counts, marks, n_parts, deviation, n_records, NARROW_LABEL)
    seen = np.where(marks, np.maximum(counts, 0.0), 0.0)
    mass = float(seen.sum())
    bins = np.flatnonzero(marks) - queries.ZERO
    is_clear = mass > CLEAR_LABEL * deviation and not found.unheld and (is_count or bins.any())
    if not is_clear or (is_count and (bins[0] < 0 or 2.0**largest > MAX_COUNT)):
        return replace(found, is_seen=False, mass=mass)
    if is_count:
        high = min(max(COUNT_MARGIN * 2.0 ** (largest + 1), MIN_OF_COUNTS), float(MAX_COUNT))
        return Range(0.0, high, mass=mass)
    # Use the middle of each octave, and the spread within it.
    sizes = np.where(_OCTAVES < queries.LOWEST_OCTAVE, 0.0, np.ldexp(1.5, _OCTAVES)) * _SIGNS
    middle = elementary.dot(sizes, seen) / mass
    spread = math.sqrt(elementary.dot((sizes - middle) ** 2 + sizes**2 / 27, seen) / mass)
    wider = [_widened(found, margin) for margin in (MARGINS[1:] if is_away_from_zero(found) else MARGINS)]
    is_fine = (span for span in wider if not _is_too_wide(span.high - span.low, spread, mass, deviation))
    return next(is_fine, wider[-1])


def _is_too_wide(width: float, spread: float, mass: float, deviation: float) -> bool:
    """Return whether a label's range is so wide that it costs accuracy.

    `mass` is the number of records with that spread, `deviation` that of the noise.
    """
    return width * deviation > WIDTH_OF_SPREAD * mass * spread


def _widened(found: Range, margin: float) -> Range:
    """Widen a range: multiply ends away from zero by the margin, and halve ends towards zero."""
    low, high = (
        bound * (margin if bound * side > 0 else 0.5) for bound, side in ((found.low, -1.0), (found.high, 1.0))
    )
    return replace(found, low=max(low, -MAX_FEATURE_BOUND), high=min(high, MAX_FEATURE_BOUND))


def zoomed_label(found: Range, counts: Counts, deviation: float, *, is_again: bool) -> Range:
    """Return the range of the bins seen for a label far from zero, widened by its width on either side.

    The range stays the same if no bins stand out, because values then lie in many of them, or if enough bins stand out
    that the range is not too wide. If fewer stand out, they must hold nearly all records; else the same range stays,
    and is refused if it is too wide by far.

    Args:
        counts, deviation: as in `zoom_in`.
        is_again: whether a zoom preceded, so that no tail is left to lose: the range may then be half as wide.
    """
    seen = np.flatnonzero(mark(counts, deviation, np.full(queries.N_ZOOM, STANDS_OUT_ZOOM), ZOOM_WINDOWS))
    if not len(seen):
        return found
    first, end = int(seen[0]), int(seen[-1]) + 1
    width, noise = end - first, deviation * math.sqrt(end - first)
    # Values spread evenly between two ends have a deviation of a bit more than a fourth of the distance.
    spread = width / 4 if width >= FEW_BINS else 0.0
    if not _is_too_wide(2 * queries.N_ZOOM if is_again else queries.N_ZOOM, spread, found.mass, deviation):
        return found
    if counts[first:end].sum() - 2 * noise < HELD * found.mass:
        return replace(found, is_seen=not _is_too_wide(queries.N_ZOOM / 4, spread, found.mass, deviation))
    size = (found.high - found.low) / queries.N_ZOOM
    low, high = found.low + size * max(0, first - width), found.low + size * min(queries.N_ZOOM, end + width)
    return replace(found, low=low, high=high) if low < high else replace(found, is_seen=False)


def wants_label_zoom(found: Range, before: Range | None = None) -> bool:
    """Return whether a label's values may lie in a tiny part of bounds that are far from zero.

    Args:
        before: the range before the last zoom; None if there was none.
    """
    if not is_away_from_zero(found) or (found.is_whole and found.high - found.low < FEW_VALUES):
        return False
    return before is None or queries.N_ZOOM * (found.high - found.low) < 3 * FEW_BINS * (before.high - before.low)


def usual_classes(counts: Mapping[str, float], deviation: float) -> tuple[str, ...]:
    """Return the usual pair that a label's classes are; () if they may be other classes.

    A pair is likely before any count. So it is believed if both classes together stand out, from any other pair as
    well, and nothing else does. That one of the two is too rare to be seen is no objection, unless there is so little
    noise that it would be seen.

    Args:
        counts: noisy counts of each class of `USUAL_CLASSES`, and of all others as "".
        deviation: standard deviation of the noise of each count.
    """
    totals = sorted((sum(counts[name] for name in pair), pair) for pair in USUAL_CLASSES)
    (second, _), (total, pair) = totals[-2:]
    rarer = min(counts[name] for name in pair)
    others = max(count for name, count in counts.items() if name not in pair)
    # Two pairs may share the common class, as 0 and 1 do with 1 and 2.
    stands_out = min(total, total - second) > STANDS_OUT * math.sqrt(2) * deviation
    is_alone = others <= min(STANDS_OUT_NEAR * deviation, total / 3)
    is_absent = rarer <= STANDS_OUT * deviation and rarer + 2 * deviation < RAREST * total
    return pair if stands_out and is_alone and not is_absent else ()


def read_value_classes(counts: Counts, deviation: float) -> tuple[int, ...]:
    """Return the whole numbers whose counts in `ValueCounts` stand out, ascending."""
    seen = np.flatnonzero(counts > CLASS_STANDS_OUT * deviation)
    return tuple((seen + queries.LOWEST_VALUE).tolist())


def read_vote_classes(votes: Counts, deviation: float) -> tuple[str, ...]:
    """Return the texts that the votes of `NameVotes` spell, sorted.

    A text counts if its hash belongs to the bucket that spells it, and if its votes are on average larger than noise
    alone could make them. Then hardly one of its bits is wrong, and a wrong bit would change the bucket.

    Args:
        votes: float64 [N_BUCKETS N_BITS].
    """
    found = []
    for bucket, bits in enumerate(votes.reshape(queries.N_BUCKETS, queries.N_BITS)):
        text, strength = queries.spelt(bits) or ("", 0.0)
        if strength > CLEAR_VOTES * deviation and queries.hash_label(text) == bucket:
            found.append(text)
    return tuple(sorted(found))


@dataclass(frozen=True)
class Findings:
    """The findings of a survey.

    Attributes:
        n_records: the declared or approximate number of records: at least 1, and rather too many than far too few.
        columns: of each feature, in the order of the questions, its kind, `NUMBER` to `TEXT`, and the range of numbers
            and dates.
        label: the range of a label that is a number; a guess if it is not seen.
        classes: whole numbers or texts, sorted.
        label_kind: kind of the classes, if the survey asked for it.
    """

    n_records: int
    columns: tuple[tuple[int, Range | None], ...] = ()
    label: Range | None = None
    classes: tuple[int, ...] | tuple[str, ...] = ()
    label_kind: int = NUMBER

    @property
    def lacks_label(self) -> bool:
        """Whether neither a range nor two classes of the requested label stand out of the noise."""
        return len(self.classes) < 2 if self.label is None else not self.label.is_seen

    def require_label(self, spent: float) -> None:
        """Raise DataError if the label was not found, in a search that has cost the epsilon `spent`.

        Raises:
            DataError: code "data-range" or "data-one-class".
        """
        if not self.lacks_label:
            return
        if self.label is None:
            seen = f"Of its values {self.classes[0]} alone stands" if self.classes else "None of its values stands"
            raise DataError("data-one-class-private", seen=seen, spent=format_up(spent, 3))
        about = f"About {self.label.mass:,.0f} records, between {self.label.low:g} and {self.label.high:g}, stand"
        seen = about if self.label.mass else "Nothing stands"
        raise DataError("data-range-private", seen=seen, spent=format_up(spent, 3))
