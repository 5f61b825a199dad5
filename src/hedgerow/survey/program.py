"""The survey: a generator that yields a few queries about raw cells and returns what a plan needs to know of them.

    yield RecordCount      ->  about how many records
    yield OctaveCounts     ->  per column its order of magnitude, its sign, whether it is whole
    yield ZoomCounts       ->  up to three times, where a column lies far from zero, and for a label's bounds
    yield ValueCounts      ->  classes that are whole numbers          (or NameVotes: classes that are texts)

Only what is not declared is asked for. Every release takes a fixed share of mu**2 of the whole promise and is charged
like any other; the training is calibrated to what is left (`Plan.prepared`): a zoom that is not needed costs nothing.
That the noise of later releases follows from earlier ones is covered: however it is chosen, their mu**2 add up to no
more than that of the promise, which is a filter (Koskela, Tobaben & Honkela, arXiv 2209.15596, for Gaussian releases).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.errors import PrivacyError
from hedgerow.privacy.calibration import calibrate_noise_multiplier, integer_sigma, noise_of
from hedgerow.privacy.events import Event, UnnoisedEvent
from hedgerow.protocol.queries import IntVector, Purpose
from hedgerow.survey.queries import (
    N_OCTAVES,
    N_ZOOM,
    UNIT,
    NameVotes,
    OctaveCounts,
    RecordCount,
    SurveyQuery,
    ValueCounts,
    ZoomCounts,
)
from hedgerow.survey.readings import (
    Range,
    classes_of_values,
    classes_of_votes,
    in_records,
    is_away_from_zero,
    range_of_octaves,
    wants_zoom,
    zoomed,
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

Kind = TypeVar("Kind", bound=SurveyQuery)


@dataclass(frozen=True, kw_only=True)
class Questions:
    """What a survey is asked for, and what promise it is part of. All of it is public.

    Attributes:
        epsilon, delta, accountant: of the whole promise, the training's releases with it; epsilon may be infinite.
        n_columns: columns of numbers whose bounds are asked for: the first of `RawSite.columns`.
        n_records: the declared number; None asks for it.
        label: "" for nothing; "bounds" of a number, "values" for classes that are whole numbers (each the column after
            the others); "texts" for classes that are texts.
        rows_per_unit: rows of one unit of privacy at most.

    Raises:
        PrivacyError: code "survey-pure", for a promise of pure differential privacy.
    """

    epsilon: float
    delta: float
    accountant: str = "gdp"
    n_columns: int = 0
    n_records: int | None = None
    label: str = ""
    rows_per_unit: int = 1

    def __post_init__(self) -> None:
        if self.accountant == "pure":
            raise PrivacyError("survey-pure")

    @property
    def surveyed(self) -> tuple[int, ...]:
        """The columns whose bounds are asked for, the label's among them."""
        return tuple(range(self.n_columns + (self.label == "bounds")))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for."""
        return not (self.n_columns or self.label or self.n_records is None)

    @property
    def n_exchanges(self) -> int:
        """Releases, at most."""
        of_columns = 1 + N_ZOOMS if self.surveyed else 0
        return (self.n_records is None) + of_columns + (self.label in ("values", "texts"))


@dataclass(frozen=True)
class Findings:
    """What a survey found.

    Attributes:
        n_records: as declared, or about: at least 1, and rather too many than far too few.
        ranges: per column in the order of the questions.
        label: of a label's bounds.
        classes: whole numbers or texts, sorted.
    """

    n_records: int
    ranges: tuple[Range, ...] = ()
    label: Range | None = None
    classes: tuple[int, ...] | tuple[str, ...] = ()


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
            bound=UNIT,
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
    ranges: list[Range] = []
    if questions.surveyed:
        octaves = exchanges.ask(blank(OctaveCounts, columns=questions.surveyed), OCTAVES_SHARE, "octaves")
        ranges = _ranges(in_records((yield octaves), UNIT), deviation_of(octaves), n_records)
        yield from _zoomed_in(exchanges, ranges)
    classes: tuple[int, ...] | tuple[str, ...] = ()
    if questions.label == "values":
        values = exchanges.ask(blank(ValueCounts, column=questions.n_columns), CLASSES_SHARE, "classes")
        classes = classes_of_values(in_records((yield values), UNIT), deviation_of(values))
    elif questions.label == "texts":
        votes = exchanges.ask(blank(NameVotes), CLASSES_SHARE, "classes")
        classes = classes_of_votes(in_records((yield votes), UNIT), deviation_of(votes))
    label = ranges.pop() if questions.label == "bounds" else None
    return Findings(max(1, round(n_records)), tuple(ranges), label, classes)


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
    if columns:
        queries.append(exchanges.ask(blank(OctaveCounts, columns=columns), OCTAVES_SHARE, "octaves"))
        zoom = blank(ZoomCounts, columns=columns, ranges=((0.0, 1.0),) * len(columns))
        queries += [exchanges.ask(zoom, ZOOM_SHARE, f"zoom {number}") for number in range(N_ZOOMS)]
    if questions.label in ("values", "texts"):
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


def _zoomed_in(exchanges: _Exchanges, ranges: list[Range]) -> Generator[SurveyQuery, IntVector, None]:
    """Zoom into the ranges that are worth it; a label's once in any case, for its bounds scale the noise."""
    label = exchanges.questions.n_columns

    def takes(index: int, zoom: Zoom) -> bool:
        # A feature's bounds may be wide, but not narrow.
        return index == label or wants_zoom(zoom.before, zoom.after)

    def ask(number: int, query: ZoomCounts) -> ZoomCounts:
        return exchanges.ask(query, ZOOM_SHARE, f"zoom {number}")

    columns = [index for index, own in enumerate(ranges) if is_away_from_zero(own) or (index == label and own.is_seen)]
    yield from zooms(columns, ranges, ask, takes)


def zooms(
    wanted: list[int],
    ranges: list[Range] | dict[int, Range],
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
