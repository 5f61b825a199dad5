"""The survey: a generator that yields a few queries about raw cells and returns what a plan needs to know of them.

    yield RecordCount      ->  about how many records
    yield KindCounts       ->  per column that is not declared: numbers, dates, truth values or texts
    yield OctaveCounts     ->  per column of numbers or dates its order of magnitude, its sign, whether it is whole
    yield ZoomCounts       ->  up to three times, where a column lies far from zero, and for a label's bounds
    yield ValueCounts      ->  classes that are whole numbers          (or NameVotes: classes that are texts)

Only what is not declared is asked for: what that is follows from declarations and earlier releases, never from a type
that one cell may have decided. Every release takes a fixed share of mu**2 of the whole promise and is charged like any
other; the training is calibrated to what is left (`Plan.prepared`): a zoom that is not needed costs nothing.
That the noise of later releases follows from earlier ones is covered: however it is chosen, their mu**2 add up to no
more than that of the promise, which is a filter (Koskela, Tobaben & Honkela, arXiv 2209.15596, for Gaussian releases).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.errors import PrivacyError
from hedgerow.plan.plan import LARGEST_BOUND
from hedgerow.privacy.calibration import calibrate_noise_multiplier, integer_sigma, noise_of
from hedgerow.privacy.events import Event, UnnoisedEvent
from hedgerow.protocol.queries import IntVector, Purpose
from hedgerow.survey.kinds import ABSENT, DATE, N_KINDS, NUMBER, TEXT, TRUTH
from hedgerow.survey.queries import (
    HIGHEST_OCTAVE,
    LOWEST_OCTAVE,
    LOWEST_VALUE,
    N_BITS,
    N_BUCKETS,
    N_OCTAVES,
    N_ZOOM,
    UNIT,
    ZERO,
    KindCounts,
    NameVotes,
    OctaveCounts,
    RecordCount,
    SurveyQuery,
    ValueCounts,
    ZoomCounts,
    bucket_of,
    spelt,
)

BOUNDS_SHARE = 0.05
"""Share of mu**2 for the number of records and all bounds together."""
COUNT_SHARE = 0.05 * BOUNDS_SHARE
OCTAVES_SHARE = 0.67 * BOUNDS_SHARE
LEAST_COUNT = 2.0
"""A count below so many standard deviations of its noise is taken to be that many: then the true number is, but for one
chance in 30,000, at most three times what is found."""
N_ZOOMS = 3
ZOOM_SHARE = (BOUNDS_SHARE - COUNT_SHARE - OCTAVES_SHARE) / N_ZOOMS
CLASSES_SHARE = 0.02
"""Share of mu**2 for the classes of a label, beside that of bounds."""
KINDS_SHARE = 0.01
"""Share of mu**2 for what columns are. With d columns some 170 sqrt(d) / epsilon records of a kind are enough (at a
delta of 1e-6), about as many as bounds need; the noise of the training grows by half a hundredth."""
KIND_STANDS_OUT = 4.0
"""Standard deviations of the noise by which cells of another kind have to be more than the numbers."""

BOOLEANS = ("false", "true")

Kind = TypeVar("Kind", bound=SurveyQuery)


@dataclass(frozen=True, kw_only=True)
class Questions:
    """What a survey is asked for, and what promise it is part of. All of it is public.

    Attributes:
        epsilon, delta, accountant: of the whole promise, the training's releases with it; epsilon may be infinite.
        n_columns: columns of numbers whose bounds are asked for: the first of `RawSite.columns`.
        n_unknown: columns after them of which nothing is known: their kind is asked for, then bounds of numbers, dates.
        n_records: the declared number; None asks for it.
        label: of the column after the others: "" for nothing; "bounds" of a number; "values" for classes that are whole
            numbers, "texts" for texts; "classes" for what they are first.
        rows_per_unit: rows of one unit of privacy at most.

    Raises:
        PrivacyError: code "survey-pure", for a promise of pure differential privacy.
    """

    epsilon: float
    delta: float
    accountant: str = "gdp"
    n_columns: int = 0
    n_unknown: int = 0
    n_records: int | None = None
    label: str = ""
    rows_per_unit: int = 1

    def __post_init__(self) -> None:
        if self.accountant == "pure":
            raise PrivacyError("survey-pure")

    @property
    def label_index(self) -> int:
        """The label's place in `RawSite.columns`."""
        return self.n_columns + self.n_unknown

    @property
    def unknown(self) -> tuple[int, ...]:
        """The columns of which the kind is asked for, the label among them."""
        return tuple(range(self.n_columns, self.label_index + (self.label == "classes")))

    @property
    def surveyed(self) -> tuple[int, ...]:
        """The columns whose bounds are asked for, at most, the label's among them."""
        return tuple(range(self.label_index + (self.label == "bounds")))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for."""
        return not (self.label_index or self.label or self.n_records is None)

    @property
    def n_exchanges(self) -> int:
        """Releases, at most."""
        of_columns = bool(self.unknown) + (1 + N_ZOOMS if self.surveyed else 0)
        return (self.n_records is None) + of_columns + (self.label in ("values", "texts", "classes"))


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


SurveyProgram = Generator[SurveyQuery, IntVector, Findings]
"""Yields queries, receives the noisy sum of each, returns what it found."""


@dataclass
class _Exchanges:
    """Makes queries one after the other, each with its share of the noise."""

    questions: Questions
    multiplier: float
    n_made: int = field(default=0)

    @classmethod
    def of(cls, questions: Questions) -> _Exchanges:
        if math.isinf(questions.epsilon):
            return cls(questions, 0.0)
        return cls(questions, calibrate_noise_multiplier(questions.epsilon, questions.delta, 1.0, questions.accountant))

    def ask(self, query: Kind, share: float, subject: str) -> Kind:
        """The query with its numbers filled in: `share` of mu**2 for it."""
        rows = self.questions.rows_per_unit
        purpose = Purpose(self.n_made, type(query).__name__, f"survey, {subject}")
        self.n_made += 1
        return replace(
            query,
            purpose=purpose,
            length=query.expected_length(),
            bound=query.largest_entry(),
            sensitivity_squared=query.norm_squared() * rows * rows,
            noise_multiplier=self.multiplier / math.sqrt(share),
        )


def survey(questions: Questions) -> SurveyProgram:
    """The program that answers the questions.

    Raises:
        PrivacyError: epsilon or delta out of range.
    """
    exchanges = _Exchanges.of(questions)
    n_records: float = questions.n_records or 0
    if questions.n_records is None:
        query = exchanges.ask(blank(RecordCount), COUNT_SHARE, "records")
        counted = float(in_records((yield query), UNIT)[0])
        # Never far too small: the checks of releases allow for a few times as many.
        n_records = max(counted, LEAST_COUNT * deviation_of(query))
    kinds = yield from _kinds(exchanges)
    # Of a site's columns, the dates come after all columns (`RawSite.numbers`).
    n_all = questions.label_index + (questions.label != "")
    places = [
        index + n_all * (kinds.get(index) == DATE)
        for index in questions.surveyed
        if kinds.get(index, NUMBER) in (NUMBER, DATE)
    ]
    ranges: dict[int, Range] = {}
    if places:
        octaves = exchanges.ask(blank(OctaveCounts, columns=tuple(places)), OCTAVES_SHARE, "octaves")
        found = _ranges(in_records((yield octaves), UNIT), deviation_of(octaves), n_records)
        ranges = dict(zip(places, found, strict=True))
        yield from _zoomed_in(exchanges, ranges)
    classes = yield from _classes(exchanges, kinds)
    return Findings(
        n_records=max(1, round(n_records)),
        ranges=tuple(ranges[index] for index in range(questions.n_columns)),
        label=ranges[questions.label_index] if questions.label == "bounds" else None,
        classes=classes,
        unknown=tuple(
            (kinds[index], ranges.get(index + n_all * (kinds[index] == DATE)))
            for index in range(questions.n_columns, questions.label_index)
        ),
        label_kind=kinds.get(questions.label_index, NUMBER),
    )


def _kinds(exchanges: _Exchanges) -> Generator[SurveyQuery, IntVector, dict[int, int]]:
    """What each column is of which that is asked for, by its index."""
    asked = exchanges.questions.unknown
    if not asked:
        return {}
    query = exchanges.ask(blank(KindCounts, columns=asked), KINDS_SHARE, "kinds")
    counts = in_records((yield query), UNIT).reshape(-1, N_KINDS)
    return {index: kind_of_counts(own, deviation_of(query)) for index, own in zip(asked, counts, strict=True)}


def kind_of_counts(counts: NDArray[np.float64], deviation: float) -> int:
    """What a column is: of numbers, unless cells of another kind are more, and stand out: `NUMBER` to `TEXT`.

    Args: counts: float64 [N_KINDS], noisy. deviation: of the noise of each.
    """
    most = int(counts[:ABSENT].argmax())
    return most if counts[most] - counts[NUMBER] > KIND_STANDS_OUT * deviation else NUMBER


def _classes(
    exchanges: _Exchanges, kinds: dict[int, int]
) -> Generator[SurveyQuery, IntVector, tuple[int, ...] | tuple[str, ...]]:
    """The classes of a label, if they are asked for; none of a label of dates."""
    label, index = exchanges.questions.label, exchanges.questions.label_index
    if label == "classes":
        label = {NUMBER: "values", TEXT: "texts", TRUTH: "truth"}.get(kinds[index], "")
    if label == "values":
        values = exchanges.ask(blank(ValueCounts, column=index), CLASSES_SHARE, "classes")
        return classes_of_values(in_records((yield values), UNIT), deviation_of(values))
    if label == "texts":
        votes = exchanges.ask(blank(NameVotes), CLASSES_SHARE, "classes")
        return classes_of_votes(in_records((yield votes), UNIT), deviation_of(votes))
    return BOOLEANS if label == "truth" else ()


def planned_survey(questions: Questions) -> list[Event]:
    """What a survey releases, at its most expensive: all zooms, of all columns.

    Raises:
        PrivacyError: epsilon or delta out of range.
    """
    exchanges, columns = _Exchanges.of(questions), questions.surveyed
    if not exchanges.multiplier:
        return [UnnoisedEvent()]
    queries: list[SurveyQuery] = []
    if questions.n_records is None:
        queries.append(exchanges.ask(blank(RecordCount), COUNT_SHARE, "records"))
    if questions.unknown:
        queries.append(exchanges.ask(blank(KindCounts, columns=questions.unknown), KINDS_SHARE, "kinds"))
    if columns:
        queries.append(exchanges.ask(blank(OctaveCounts, columns=columns), OCTAVES_SHARE, "octaves"))
        zoom = blank(ZoomCounts, columns=columns, ranges=((0.0, 1.0),) * len(columns))
        queries += [exchanges.ask(zoom, ZOOM_SHARE, f"zoom {number}") for number in range(N_ZOOMS)]
    if questions.label in ("values", "texts", "classes"):
        kind = blank(ValueCounts, column=0) if questions.label == "values" else blank(NameVotes)
        queries.append(exchanges.ask(kind, CLASSES_SHARE, "classes"))
    return [noise_of(query).event for query in queries]


def deviation_of(query: SurveyQuery) -> float:
    """Standard deviation of the noise of one count, in records."""
    if not query.noise_multiplier:
        return 0.0
    return integer_sigma(query.noise_multiplier, query.sensitivity_squared) / UNIT


@dataclass(frozen=True, eq=False)
class Zoom:
    """One zoom into one column: its range before and after, float64 [N_ZOOM] noisy counts, and their deviation."""

    before: Range
    after: Range
    counts: NDArray[np.float64]
    deviation: float


def _ranges(counts: NDArray[np.float64], deviation: float, n_records: float) -> list[Range]:
    # What stands beside the octaves of a column is in halves of a unit.
    return [
        range_of_octaves(own[:N_OCTAVES], 2 * float(own[N_OCTAVES]), deviation, n_records)
        for own in counts.reshape(-1, N_OCTAVES + 1)
    ]


def _zoomed_in(exchanges: _Exchanges, ranges: dict[int, Range]) -> Generator[SurveyQuery, IntVector, None]:
    """Zoom into the ranges that are worth it; a label's once in any case, for its bounds scale the noise."""
    label = exchanges.questions.label_index

    def takes(index: int, zoom: Zoom) -> bool:
        # A feature's bounds may be wide, but not narrow.
        return index == label or wants_zoom(zoom.before, zoom.after)

    def ask(number: int, query: ZoomCounts) -> ZoomCounts:
        return exchanges.ask(query, ZOOM_SHARE, f"zoom {number}")

    columns = [index for index, own in ranges.items() if is_away_from_zero(own) or (index == label and own.is_seen)]
    yield from zooms(columns, ranges, ask, takes)


def zooms(
    wanted: list[int],
    ranges: dict[int, Range],
    ask: Callable[[int, ZoomCounts], ZoomCounts],
    takes: Callable[[int, Zoom], bool],
) -> Generator[SurveyQuery, IntVector, None]:
    """Zoom into ranges, in place, `N_ZOOMS` times at most; those that another zoom says more of are asked for again.

    Args:
        wanted: the columns to begin with.
        ranges: of each column.
        ask: fills the numbers of a zoom's query in, by its number from 0 on.
        takes: whether a column has what its zoom has found from now on.
    """
    for number in range(N_ZOOMS):
        if not wanted:
            return
        before = [ranges[index] for index in wanted]
        bounds = tuple((own.low, own.high) for own in before)
        query = ask(number, blank(ZoomCounts, columns=tuple(wanted), ranges=bounds))
        counts, deviation = in_records((yield query), UNIT).reshape(-1, N_ZOOM), deviation_of(query)
        again = []
        for index, own, seen in zip(wanted, before, counts, strict=True):
            zoom = Zoom(own, zoomed(own, seen, deviation), seen, deviation)
            if takes(index, zoom):
                ranges[index] = zoom.after
                if wants_zoom(own, zoom.after):
                    again.append(index)
        wanted = again


_NO_PURPOSE = Purpose(0, "", "")


def blank(kind: type[Kind], **about: Any) -> Kind:
    """A query of a kind before its numbers are filled in."""
    blank: dict[str, Any] = {
        "purpose": _NO_PURPOSE, "length": 0, "bound": UNIT, "sensitivity_squared": 1, "noise_multiplier": 0.0,
    }  # fmt: skip
    return kind(**blank, **about)


# What noisy counts say ------------------------------------------------------------------------------------------------
# Bounds of columns, classes. Post-processing of releases, so it costs nothing.
#
# All numbers here are in records. A count is believed where it stands above its noise by several standard deviations,
# by itself or together with its neighbours; the numbers are those that the measurements of docs/privacy.md found best.

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

    Args: votes: float64 [N_BUCKETS N_BITS].
    """
    found = []
    for bucket, own in enumerate(votes.reshape(N_BUCKETS, N_BITS)):
        text, strength = spelt(own) or ("", 0.0)
        if strength > CLEAR_VOTES * deviation and bucket_of(text) == bucket:
            found.append(text)
    return tuple(sorted(found))


def in_records(released: Sequence[int] | NDArray[np.int64], unit: int) -> Counts:
    """A release in records: float64."""
    return np.asarray(released, dtype=np.float64) / unit
