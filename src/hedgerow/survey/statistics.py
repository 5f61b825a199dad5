"""Statistics of a whole table before anyone trains: a generator that yields queries and returns what they say.

    stage    query        what for                                                       share of mu**2
    records  RecordCount  about how many records                                         0.01
    kinds    KindCounts   missing cells; whether a column is of numbers or of texts      0.05
    octaves  OctaveCounts bounds of the numbers                                          0.14
    zoom     ZoomCounts   up to three times, of columns that lie far from zero           0.02 each
    names    TextVotes    common texts                                                   0.24
    values   ValueCounts  classes of a label that is a whole number                      0.02
    cells    CellCounts   histograms and shares of categories                            0.32
    rates    JointCounts  the label by bin of each column                                0.16

The shares are weights: each query takes its weight's part of what is left of mu**2, beside the weights that may still
follow, so that what one stage does not need goes to those after it, and the last one spends the rest (to the last digit
where the noise is the coordinator's). The sum of all charges never exceeds the whole, whatever is released, which is
what adaptive composition of Gaussian noise asks for (docs/privacy.md). Nothing here depends on rows but by the noisy
sums.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.errors import PrivacyError
from hedgerow.plan.fields import FIRST_DAY, LAST_DAY, iso_of
from hedgerow.privacy.calibration import NoiseDemand, calibrate_noise_multiplier, calibrate_sigmas, noise_of
from hedgerow.privacy.events import Event
from hedgerow.protocol.queries import IntVector, Purpose
from hedgerow.survey.kinds import ABSENT, DATE, MAX_CLASSES, N_KINDS, NUMBER
from hedgerow.survey.program import (
    Counts,
    Kind,
    Range,
    Zoom,
    blank,
    classes_of_values,
    classes_of_votes,
    deviation_of,
    in_records,
    is_away_from_zero,
    kind_of_counts,
    range_of_octaves,
    zooms,
)
from hedgerow.survey.queries import (
    HIGHEST_OCTAVE,
    LOWEST_OCTAVE,
    N_BITS,
    N_BUCKETS,
    N_OCTAVES,
    N_ZOOM,
    UNIT,
    ZERO,
    Bins,
    CellCounts,
    JointCounts,
    KindCounts,
    NumberBins,
    OctaveCounts,
    RecordCount,
    SurveyQuery,
    TextBins,
    TextVotes,
    ValueCounts,
    ZoomCounts,
)

SHARES = {
    "records": 0.01,
    "kinds": 0.05,
    "octaves": 0.14,
    "zoom 0": 0.02,
    "zoom 1": 0.02,
    "zoom 2": 0.02,
    "names": 0.24,
    "values": 0.02,
    "cells": 0.32,
    "rates": 0.16,
}
"""Weights of the stages in mu**2, in their order."""
_SLACK = 1e-3
"""Share of mu**2 that is kept for the price of the grid, which the last query knows and pays."""
N_HASHED = 16
"""Bins of a column's texts where no common text was found."""
MOST_BEYOND = 0.05
"""A column of which a larger share lies beyond its bounds is shown without a mean."""


@dataclass(frozen=True)
class AskedColumn:
    """What is declared of a column; all of it is public.

    Attributes:
        name: of the column.
        kind: "number" or "text"; "" to find it.
        bounds: (min, max) of numbers; None to find them.
        is_whole: whether declared bounds are of whole numbers.
        categories: of texts; empty to find them.
        is_date: whether its numbers are days since 1970-01-01.
        layout: how its text writes a date; None for ISO 8601.
    """

    name: str
    kind: str = ""
    bounds: tuple[float, float] | None = None
    is_whole: bool = False
    categories: tuple[str, ...] = ()
    is_date: bool = False
    layout: str | None = None


@dataclass(frozen=True, kw_only=True)
class TableQuestions:
    """What statistics are asked for, and at what price.

    Attributes:
        columns: all columns, in the order of `RawSite.columns`.
        epsilon, delta, accountant: of all these releases together; epsilon may be infinite.
        label: the column whose shares of classes are asked for by bin of each other; "" for none.
        rows_per_unit: rows of one unit of privacy at most.
        noise: who adds it, as `privacy.noise` of a plan says it.

    Raises:
        PrivacyError: code "survey-pure", for a promise of pure differential privacy.
    """

    columns: tuple[AskedColumn, ...]
    epsilon: float
    delta: float
    accountant: str = "gdp"
    label: str = ""
    rows_per_unit: int = 1
    noise: str = "server"

    def __post_init__(self) -> None:
        if self.accountant == "pure":
            raise PrivacyError("survey-pure")

    @property
    def n_exchanges(self) -> int:
        """Releases, at most."""
        return len(SHARES)

    @property
    def label_index(self) -> int | None:
        names = [column.name for column in self.columns]
        return names.index(self.label) if self.label else None


@dataclass
class _Budget:
    """Gives each query its part of mu**2.

    Attributes:
        questions: what was asked.
        multiplier: of a query that takes all of mu**2; 0 without noise.
        excess: the deviation of the noise in the releases, over that of the noise that is accounted for.
        left: share of mu**2 that is not spent.
        open: stages that may still come.
        spent: the releases so far.
    """

    questions: TableQuestions
    multiplier: float
    excess: float = 1.0
    left: float = 1.0 - _SLACK
    open: list[str] = field(default_factory=lambda: list(SHARES))
    spent: list[Event] = field(default_factory=list)

    @classmethod
    def of(cls, questions: TableQuestions, excess: float) -> _Budget:
        if math.isinf(questions.epsilon):
            return cls(questions, 0.0)
        multiplier = calibrate_noise_multiplier(questions.epsilon, questions.delta, 1.0, questions.accountant)
        return cls(questions, multiplier, excess)

    def said(self, query: SurveyQuery) -> float:
        """The deviation of the noise of one count in what is said of it; what is asked next does not follow from it."""
        return self.excess * deviation_of(query)

    def skip(self, *stages: str) -> None:
        """These stages will not come: their weights go to the others."""
        self.open = [stage for stage in self.open if stage not in stages]

    def ask(self, stage: str, query: Kind) -> Kind:
        """The query with its numbers filled in; stages before this one will not come any more."""
        self.open = self.open[self.open.index(stage) :]
        share = self.left * SHARES[stage] / math.fsum(SHARES[each] for each in self.open)
        self.left = max(0.0, self.left - share)
        self.open.remove(stage)
        filled = replace(
            query,
            purpose=Purpose(len(self.spent), type(query).__name__, f"statistics, {stage}"),
            length=query.expected_length(),
            bound=query.largest_entry(),
            sensitivity_squared=query.norm_squared() * self.questions.rows_per_unit**2,
            noise_multiplier=self.multiplier / math.sqrt(share),
        )
        # What the shares of sites cost, each rounded up by itself, is not known before: a little is left unspent there.
        if not self.open and self.multiplier and self.questions.noise == "server":
            filled = replace(filled, noise_multiplier=self._rest(filled))
        self.spent.append(noise_of(filled).event)
        return filled

    def _rest(self, query: SurveyQuery) -> float:
        """The least noise of the last query by the account of all others: the price of the grid is paid for here."""
        asked, demand = self.questions, NoiseDemand(query.sensitivity_squared, query.length)
        (sigma,) = calibrate_sigmas(asked.epsilon, asked.delta, [demand], asked.accountant, self.spent)
        return sigma / math.sqrt(query.sensitivity_squared)


@dataclass
class _Known:
    """What is known of each column by its index, declared or released so far."""

    kinds: list[str]
    missing: list[Noisy]
    odd: list[Noisy]
    present: list[float]
    ranges: dict[int, Range] = field(default_factory=dict)
    densities: dict[int, Density] = field(default_factory=dict)
    categories: dict[int, tuple[str, ...]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    bins: dict[int, Bins] = field(default_factory=dict)
    dates: set[int] = field(default_factory=set)

    def place(self, index: int) -> int:
        """Where a column is read: those that were found to be of dates, as dates (`RawSite.numbers`)."""
        return index + len(self.kinds) * (index in self.dates)

    def of_kind(self, kind: str) -> list[int]:
        return [index for index, own in enumerate(self.kinds) if own == kind]


def survey_table(questions: TableQuestions, excess: float = 1.0) -> StatisticsProgram:
    """The program that makes the statistics.

    Args:
        excess: the deviation of the noise in the releases, over that of the noise that is accounted for: above 1 where
            all sites add noise, and some of them are enough. It changes no query, only what is said of the releases.

    Raises:
        PrivacyError: epsilon or delta out of range.
    """
    budget = _Budget.of(questions, excess)
    if not questions.label:
        budget.skip("values", "rates")
    query = budget.ask("records", blank(RecordCount))
    n_records = counted(float(in_records((yield query), UNIT)[0]), budget.said(query))
    known = yield from _kinds(questions, budget, n_records)
    yield from _bounds(questions, budget, known, n_records)
    yield from _names(questions, budget, known)
    yield from _classes(questions, budget, known)
    columns = yield from _cells(questions, budget, known)
    if known.classes:
        columns = yield from _rates(questions, budget, known, columns)
    asked = zip(columns, questions.columns, strict=True)
    columns = [
        dated(column, own.layout) if own.is_date or index in known.dates else column
        for index, (column, own) in enumerate(asked)
    ]
    return TableStatistics(n_records, tuple(columns), questions.label, known.classes)


def _kinds(questions: TableQuestions, budget: _Budget, n_records: Noisy) -> Generator[SurveyQuery, IntVector, _Known]:
    """What kind each column is, and how much of it is missing."""
    query = budget.ask("kinds", blank(KindCounts, columns=tuple(range(len(questions.columns)))))
    counts = in_records((yield query), UNIT).reshape(-1, N_KINDS)
    # What is neither a number nor missing are three counts.
    spread = math.sqrt(N_KINDS - 2)
    deviation, said = deviation_of(query), budget.said(query)
    known = _Known([], [], [], [])
    total = max(n_records.value, 1.0)
    for column, own in zip(questions.columns, counts, strict=True):
        is_date = column.is_date or (column.kind == "" and kind_of_counts(own, deviation) == DATE)
        numbers, missing = float(own[DATE if is_date else NUMBER]), float(own[ABSENT])
        texts = float(own.sum()) - numbers - missing
        more = counted(max(numbers, texts), deviation * (1 if numbers >= texts else spread))
        found = "unknown" if not more.is_shown else "number" if numbers >= texts else "text"
        if is_date and not column.is_date and found == "number":
            known.dates.add(len(known.kinds))
        known.kinds.append(found if found == "unknown" else column.kind or found)
        known.odd.append(counted(texts, said * spread).over(total))
        known.present.append(numbers)
        known.missing.append(counted(missing, said).over(total))
    return known


def _bounds(
    questions: TableQuestions, budget: _Budget, known: _Known, n_records: Noisy
) -> Generator[SurveyQuery, IntVector, None]:
    """The bounds of all columns of numbers, and about where their values lie between them."""
    wanted = []
    for index in known.of_kind("number"):
        column = questions.columns[index]
        if column.bounds is None:
            wanted.append(index)
        else:
            low, high = column.bounds
            # The upper end of a range is not in it.
            known.ranges[index] = Range(low, high + column.is_whole, column.is_whole)
    if not wanted:
        budget.skip("octaves", "zoom 0", "zoom 1", "zoom 2")
        return
    query = budget.ask("octaves", blank(OctaveCounts, columns=tuple(map(known.place, wanted))))
    counts, deviation = in_records((yield query), UNIT).reshape(-1, N_OCTAVES + 1), deviation_of(query)
    for index, own in zip(wanted, counts, strict=True):
        found = range_of_octaves(own[:N_OCTAVES], 2 * float(own[N_OCTAVES]), deviation, n_records.value)
        known.ranges[index] = found
        known.densities[index] = density_of_octaves(own[:N_OCTAVES], found, deviation)
        if not found.is_seen:
            known.kinds[index] = "unknown"

    def ask(number: int, query: ZoomCounts) -> ZoomCounts:
        return budget.ask(f"zoom {number}", query)

    def takes(place: int, zoom: Zoom) -> bool:
        index = place % len(known.kinds)
        if zoom.after == zoom.before:
            return False
        if not holds_most(zoom.before, zoom.after, zoom.counts, zoom.deviation, known.present[index]):
            return False
        known.densities[index] = density_of_zoom(zoom.before, zoom.counts, zoom.after, zoom.deviation)
        return True

    places = {known.place(index): known.ranges[index] for index in wanted}
    yield from zooms([place for place, own in places.items() if is_away_from_zero(own)], places, ask, takes)
    known.ranges |= {place % len(known.kinds): own for place, own in places.items()}


def _names(questions: TableQuestions, budget: _Budget, known: _Known) -> Generator[SurveyQuery, IntVector, None]:
    """The common texts of the columns of text, where they are not declared."""
    wanted = []
    for index in known.of_kind("text"):
        known.categories[index] = questions.columns[index].categories
        if not known.categories[index]:
            wanted.append(index)
    if not wanted:
        budget.skip("names")
        return
    query = budget.ask("names", blank(TextVotes, columns=tuple(wanted)))
    votes = in_records((yield query), UNIT).reshape(len(wanted), N_BUCKETS * N_BITS)
    for index, own in zip(wanted, votes, strict=True):
        known.categories[index] = classes_of_votes(own, deviation_of(query))


def _classes(questions: TableQuestions, budget: _Budget, known: _Known) -> Generator[SurveyQuery, IntVector, None]:
    """The label's classes, if it has few."""
    label = questions.label_index
    if label is None:
        return
    classes: tuple[str, ...] = known.categories.get(label, ())
    own = known.ranges.get(label)
    if known.kinds[label] == "number" and own is not None and own.is_whole and label not in known.dates:
        query = budget.ask("values", blank(ValueCounts, column=label))
        classes = tuple(map(str, classes_of_values(in_records((yield query), UNIT), deviation_of(query))))
    known.classes = classes if 2 <= len(classes) <= MAX_CLASSES else ()
    budget.skip("values")
    if not known.classes:
        budget.skip("rates")


def _cells(
    questions: TableQuestions, budget: _Budget, known: _Known
) -> Generator[SurveyQuery, IntVector, list[Column]]:
    """A histogram, or the shares of categories, of every column of which something is known."""
    for index, own in known.ranges.items():
        if known.kinds[index] == "number":
            known.bins[index] = NumberBins(edges_of(own, known.densities.get(index)))
    for index, names in known.categories.items():
        known.bins[index] = TextBins(names, 1 if names else N_HASHED)
    order = sorted(known.bins)
    found: dict[int, tuple[Counts, float]] = {}
    if order:
        bins = tuple(known.bins[index] for index in order)
        query = budget.ask("cells", blank(CellCounts, columns=tuple(map(known.place, order)), bins=bins))
        counts = query.by_column(in_records((yield query), UNIT))
        found = {index: (own[:, 0], budget.said(query)) for index, own in zip(order, counts, strict=True)}
    columns = []
    for index, asked in enumerate(questions.columns):
        own_bins = known.bins.get(index)
        about = (asked.name, known.missing[index])
        if isinstance(own_bins, NumberBins):
            column = column_of_numbers(*about, known.ranges[index], own_bins, *found[index])
            columns.append(replace(column, odd=known.odd[index]))
        elif own_bins is not None:
            columns.append(column_of_texts(*about, own_bins, *found[index]))
        else:
            columns.append(Column(*about, range=known.ranges.get(index)))
    return [
        replace(column, is_declared=asked.bounds is not None or asked.categories != ())
        for column, asked in zip(columns, questions.columns, strict=True)
    ]


def _rates(
    questions: TableQuestions, budget: _Budget, known: _Known, columns: list[Column]
) -> Generator[SurveyQuery, IntVector, list[Column]]:
    """The columns with the shares of the label's classes by bin."""
    label = questions.label_index or 0
    bins: dict[int, Bins] = {}
    for index, own in known.bins.items():
        if index == label:
            continue
        if isinstance(own, NumberBins):
            bins[index] = merged_bins(own, columns[index])
        elif own.categories:
            bins[index] = own
    order = sorted(bins)
    if not order:
        return columns
    query = budget.ask(
        "rates",
        blank(
            JointCounts,
            columns=tuple(map(known.place, order)),
            bins=tuple(bins[index] for index in order),
            label=label,
            classes=TextBins(known.classes, 0),
        ),
    )
    counts = query.by_column(in_records((yield query), UNIT))
    for index, table in zip(order, counts, strict=True):
        columns[index] = replace(columns[index], rates=rates_of(bins[index], table, budget.said(query)))
    return columns


# What the counts say of a column --------------------------------------------------------------------------------------
# Shares, quantiles, means, rates, each with the noise that it has. All of it is post-processing of releases, so it
# costs nothing. Errors are those of the noise alone; that a sample is a sample, and that values are only known by their
# bin, comes on top. A count below `LEAST_RECORDS`, or below `CLEAR` standard deviations of its noise, is not shown, and
# neither is what would rest on it.

LEAST_RECORDS = 10.0
CLEAR = 3.0
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BAND = 1.96
"""Standard deviations of the noise on either side that a band covers: 95 %."""
N_BINS = 32
"""Of a histogram whose column is not of a few whole numbers."""
MOST_VALUES = 40
"""Whole numbers up to so many have a bin each."""
N_GROUPS = 8
"""Bins at most that a label's rates are given by."""
VAGUE = 0.1
"""Rates whose noise has a larger standard deviation are not shown."""
NEARLY_ALL = 0.95
"""Share of a column's cells that its range has to hold to be made narrower."""
_TINY = 2.0**LOWEST_OCTAVE
"""Magnitudes below count as zero."""


@dataclass(frozen=True)
class Noisy:
    """A number with the standard deviation of its noise; not to be shown where it rests on too few records."""

    value: float
    deviation: float
    is_shown: bool = True

    @property
    def limit(self) -> float:
        """What a count that is not shown is below, with a chance of 95 %: the noise may have hidden some of it."""
        return max(LEAST_RECORDS, CLEAR * self.deviation) + BAND * self.deviation

    def over(self, whole: float) -> Noisy:
        """The share of a whole that is taken as it is."""
        return Noisy(self.value / whole, self.deviation / whole, self.is_shown)

    def to_dict(self) -> dict[str, float] | None:
        """Plain values; None where it is not shown."""
        return {"value": self.value, "deviation": self.deviation} if self.is_shown else None


def counted(value: float, deviation: float, n_counts: int = 1) -> Noisy:
    """A sum of so many counts of one deviation each, shown if it is large enough."""
    deviation *= math.sqrt(n_counts)
    return Noisy(value, deviation, value >= max(LEAST_RECORDS, CLEAR * deviation))


@dataclass(frozen=True)
class Quantile:
    """The value that a share of the records is below, and between which values noise leaves it (95 %)."""

    share: float
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Group:
    """One bin of a column, with its count or with the label's shares.

    Attributes:
        name: for a person: a category, a number, or a range.
        low, high: of numbers; -inf and inf at the ends.
        count: records in it.
        rates: by class of the label, in order; empty without a label.
    """

    name: str
    low: float = math.nan
    high: float = math.nan
    count: Noisy = Noisy(0.0, 0.0, is_shown=False)
    rates: tuple[Noisy, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values; counts and rates that are not shown are None."""
        found: dict[str, Any] = {"name": self.name}
        if not math.isnan(self.low):
            found |= {"low": self.low, "high": self.high}
        found["count"] = self.count.to_dict()
        if self.rates:
            found["rates"] = [rate.to_dict() for rate in self.rates]
        return found


@dataclass(frozen=True)
class Column:
    """What was found of one column.

    Attributes:
        name: of the column.
        missing: share of its cells that are missing.
        kind: "number", "text", or "unknown" where too few cells were seen.
        range: the bounds of numbers, and what is to be known of them.
        present: cells that are counted in the bins.
        groups: the bins of numbers, or the categories.
        mean, quantiles: of numbers, by the bins; quantiles that rest on too few records are left out.
        is_hashed: no common text was found, and the groups are hashes.
        rates: the label's shares of classes by coarser bins; empty without.
        odd: share of the cells of a column of numbers that are not numbers.
        is_date: whether its numbers are days since 1970-01-01.
        layout: how its text writes a date; None for ISO 8601.
        is_declared: whether its bounds or categories were; else what is said of them was found.
    """

    name: str
    missing: Noisy
    kind: str = "unknown"
    range: Range | None = None
    present: Noisy = Noisy(0.0, 0.0, is_shown=False)
    groups: tuple[Group, ...] = ()
    mean: Noisy | None = None
    quantiles: tuple[Quantile, ...] = ()
    is_hashed: bool = False
    rates: tuple[Group, ...] = ()
    odd: Noisy = Noisy(0.0, 0.0, is_shown=False)
    is_date: bool = False
    layout: str | None = None
    is_declared: bool = False

    def said(self, value: float) -> str:
        """One of its numbers for a person."""
        return date_of(value) if self.is_date else short(value)

    @property
    def categories(self) -> tuple[str, ...]:
        """Texts that were found or declared."""
        return () if self.kind != "text" or self.is_hashed else tuple(group.name for group in self.groups[:-1])

    @property
    def shown_rates(self) -> tuple[Group, ...]:
        """The bins whose rates may be shown."""
        return tuple(group for group in self.rates if group.rates and group.rates[0].is_shown)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        found: dict[str, Any] = {"name": self.name, "kind": self.kind, "missing": self.missing.to_dict()}
        if self.range is not None and self.range.doubt:
            found["doubt"] = self.range.doubt
        if self.range is not None and self.kind == "number":
            low, high = self.range.bounds
            found |= {"bounds": [low, high], "is_whole": self.range.is_whole}
            if self.is_date:
                found["days_since"] = "1970-01-01"
        if self.kind == "number":
            found["no_number"] = self.odd.to_dict()
            found["mean"] = None if self.mean is None else self.mean.to_dict()
            found["quantiles"] = [
                {each.name: getattr(own, each.name) for each in fields(own)} for own in self.quantiles
            ]
        if self.kind == "text":
            found["is_hashed"] = self.is_hashed
        found["groups"] = [group.to_dict() for group in self.groups]
        found["rates"] = [group.to_dict() for group in self.rates]
        return found


@dataclass(frozen=True)
class TableStatistics:
    """What was found of a table.

    Attributes:
        n_records: about how many records.
        columns: all of them, in order.
        label, classes: of the label, and its classes if it has few.
    """

    n_records: Noisy
    columns: tuple[Column, ...]
    label: str = ""
    classes: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "n_records": self.n_records.to_dict(),
            "label": self.label,
            "classes": list(self.classes),
            "columns": [column.to_dict() for column in self.columns],
        }


StatisticsProgram = Generator[SurveyQuery, IntVector, TableStatistics]


# Where values lie, roughly, before the bins are chosen ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Density:
    """Mass between edges: float64 [n + 1] and [n], the mass at least 0."""

    edges: NDArray[np.float64]
    mass: Counts


def density_of_octaves(counts: Counts, found: Range, deviation: float) -> Density:
    """Where values lie by their octaves, within the range that was found; what the noise may have made counts nothing.

    Args: counts: float64 [N_OCTAVES].
    """
    positive = 2.0 ** np.arange(LOWEST_OCTAVE, HIGHEST_OCTAVE + 2)
    edges = np.concatenate([-positive[::-1], positive])
    return _within(edges, counts, found, deviation)


def density_of_zoom(before: Range, counts: Counts, found: Range, deviation: float) -> Density:
    """The same by the even bins of a zoom into a range.

    Args: counts: float64 [N_ZOOM].
    """
    return _within(np.linspace(before.low, before.high, N_ZOOM + 1), counts, found, deviation)


def holds_most(before: Range, found: Range, counts: Counts, deviation: float, n_cells: float) -> bool:
    """Whether a narrower range is sure to hold nearly all cells of a column: in much noise, a zoom sees but peaks.

    Args:
        before: what was zoomed into.
        counts: float64 [N_ZOOM], of its even bins.
        n_cells: about how many cells the column has.
    """
    edges = np.linspace(before.low, before.high, N_ZOOM + 1)
    inside = (edges[:-1] >= found.low) & (edges[1:] <= found.high)
    is_sure = deviation * math.sqrt(int(inside.sum())) <= (1 - NEARLY_ALL) * n_cells
    return is_sure and float(counts[inside].sum()) >= NEARLY_ALL * n_cells


def _within(edges: NDArray[np.float64], counts: Counts, found: Range, deviation: float) -> Density:
    mass = np.where(counts > deviation, counts, 0.0)
    cut = np.clip(edges, found.low, found.high)
    kept = np.diff(cut) > 0
    if len(edges) == N_OCTAVES + 1 and found.low == 0:
        # Zero's own bin begins at zero here, and is as narrow as can be.
        kept[ZERO] = True
    first, last = np.flatnonzero(kept)[[0, -1]]
    return Density(cut[first : last + 2], mass[first : last + 1])


def edges_of(found: Range, density: Density | None) -> tuple[float, ...]:
    """Public edges of a column's bins: one for each of few whole numbers, else of about equal weight.

    Args: density: None for even bins.
    """
    low, high = found.bounds
    if found.is_whole and high - low < MOST_VALUES:
        return tuple((np.arange(low, high + 2) - 0.5).tolist())
    if found.is_whole:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, N_BINS + 1)
    if density is not None and density.mass.sum() > 0:
        edges = np.clip(_even_weights(density), low, high)
        edges = np.concatenate([[low], edges, [high]])
    if found.is_whole:
        edges = np.rint(edges - 0.5) + 0.5
    else:
        # A value at the upper bound belongs into the last bin.
        edges[edges == high] = np.nextafter(high, math.inf)
    return tuple(np.unique(edges).tolist())


def _even_weights(density: Density) -> NDArray[np.float64]:
    """Edges between which the density has about equal mass; around a point mass, if there is one, a bin of its own."""
    mass = density.mass / density.mass.sum()
    # A little everywhere: what the noise hid is somewhere.
    mass = 0.97 * mass + 0.03 / len(mass)
    below = np.concatenate([[0.0], np.cumsum(mass)])
    edges = np.interp(np.linspace(0, 1, N_BINS + 1), below / below[-1], density.edges)
    widths = np.diff(density.edges)
    points = np.flatnonzero((widths <= 2 * _TINY) & (mass > 1 / N_BINS))
    inside = np.abs(edges) <= _TINY
    ends = [density.edges[[point, point + 1]] for point in points]
    return np.concatenate([edges[~inside], *ends]) if len(points) else edges


# What the bins say ---------------------------------------------------------------------------------------------------


def column_of_numbers(
    name: str, missing: Noisy, found: Range, bins: NumberBins, counts: Counts, deviation: float
) -> Column:
    """A column of numbers by its bins.

    Args: counts: float64 [bins.n_bins].
    """
    own = Column(name, missing, "number", found, counted(float(counts.sum()), deviation, len(counts)))
    own = replace(own, groups=_groups_of_numbers(bins, counts, deviation, found.is_whole))
    if not own.present.is_shown:
        return own
    beyond = sum(group.count.value for group in (own.groups[0], own.groups[-1]) if group.count.is_shown)
    # Values beyond the bounds count as the bounds: of many such values the mean would be another one.
    mean = None if beyond > MOST_BEYOND * own.present.value else _mean(bins, counts, deviation, found)
    return replace(own, mean=mean, quantiles=_quantiles(bins, counts, deviation, own))


def column_of_texts(name: str, missing: Noisy, bins: TextBins, counts: Counts, deviation: float) -> Column:
    """A column of texts by its categories; `counts` as above."""
    names = [*bins.categories, *_names_of_others(bins)]
    groups = tuple(Group(own, count=counted(float(count), deviation)) for own, count in zip(names, counts, strict=True))
    present = counted(float(counts.sum()), deviation, len(counts))
    return Column(name, missing, "text", present=present, groups=groups, is_hashed=not bins.categories)


def _names_of_others(bins: TextBins) -> list[str]:
    if bins.categories:
        return ["other"] * bins.n_others
    return [f"bucket {number}" for number in range(bins.n_others)]


def _groups_of_numbers(bins: NumberBins, counts: Counts, deviation: float, is_whole: bool) -> tuple[Group, ...]:
    ends = [-math.inf, *bins.edges, math.inf]
    return tuple(
        Group(name_of_range(low, high, is_whole), low, high, counted(float(count), deviation))
        for low, high, count in zip(ends[:-1], ends[1:], counts, strict=True)
    )


def dated(column: Column, layout: str | None) -> Column:
    """A column of days since 1970-01-01, whose bins are called by their dates."""

    def called(group: Group) -> Group:
        first, last = math.ceil(max(group.low, FIRST_DAY)), math.ceil(min(group.high, LAST_DAY)) - 1
        if group.low == -math.inf:
            return replace(group, name=f"before {date_of(last + 1)}")
        if group.high == math.inf:
            return replace(group, name=f"from {date_of(first)}")
        return replace(group, name=date_of(first) if first >= last else f"{date_of(first)} to {date_of(last)}")

    if column.kind != "number":
        return column
    groups, rates = (tuple(called(group) for group in own) for own in (column.groups, column.rates))
    return replace(column, is_date=True, layout=layout, groups=groups, rates=rates)


def date_of(days: float) -> str:
    """The date of a number of days since 1970-01-01; the first or last that has a text, beyond them."""
    return iso_of(math.floor(min(max(days, FIRST_DAY), LAST_DAY)))


def name_of_range(low: float, high: float, is_whole: bool) -> str:
    """A bin for a person."""
    if low == -math.inf:
        return f"below {short(math.ceil(high) if is_whole else high)}"
    if high == math.inf:
        return f"{short(math.ceil(low))} and more" if is_whole else f"from {short(low)}"
    if is_whole:
        first, last = math.ceil(low), math.ceil(high) - 1
        return short(first) if first >= last else f"{short(first)} to {short(last)}"
    return "0" if max(abs(low), abs(high)) <= _TINY else f"{short(low)} to {short(high)}"


def short(value: float) -> str:
    """A number in few digits."""
    if abs(value) <= _TINY:
        return "0"
    if abs(value) < 10_000:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.6g}"


def two_digits(value: float) -> str:
    """An error in two digits."""
    return short(float(f"{value:.2g}"))


def _mean(bins: NumberBins, counts: Counts, deviation: float, found: Range) -> Noisy:
    """The mean by the middles of the bins; those outside count as the bounds."""
    edges = np.clip(bins.edges, found.low, found.high) if not found.is_whole else np.array(bins.edges)
    low, high = found.bounds
    middles = np.concatenate([[low], (edges[1:] + edges[:-1]) / 2, [high]])
    total = float(counts.sum())
    mean = float(middles @ counts) / total
    spread = deviation * float(np.sqrt(((middles - mean) ** 2).sum())) / total
    return Noisy(min(max(mean, low), high), spread)


def _quantiles(bins: NumberBins, counts: Counts, deviation: float, own: Column) -> tuple[Quantile, ...]:
    """Those of `QUANTILES` that have enough records on either side, and are not outside all edges."""
    found, groups = own.range, own.groups
    if found is None:
        return ()
    below = np.cumsum(counts)
    total = float(below[-1])
    # Sums that fall are noise: the mean of the least curve above and the largest below them rises.
    rising = (np.maximum.accumulate(below) + np.minimum.accumulate(below[::-1])[::-1]) / 2
    curve = np.clip(rising / total, 0.0, 1.0)[:-1]
    quantiles = []
    for share in QUANTILES:
        value = _at(share, curve, bins, found)
        # Of the noise of (sum below) - share * (sum of all), with so many bins below.
        n_below = int(np.searchsorted(curve, share)) + 1
        spread = deviation * math.sqrt(n_below * (1 - share) ** 2 + (len(counts) - n_below) * share**2)
        tail = min(share, 1 - share) * total
        is_outside = (share <= curve[0] and groups[0].count.is_shown) or (
            share > curve[-1] and groups[-1].count.is_shown
        )
        if is_outside or tail < max(LEAST_RECORDS, CLEAR * spread):
            continue
        band = BAND * spread / total
        ends = (_at(share - band, curve, bins, found), _at(share + band, curve, bins, found))
        quantiles.append(Quantile(share, value, *ends))
    return tuple(quantiles)


def _at(share: float, curve: NDArray[np.float64], bins: NumberBins, found: Range) -> float:
    """The value below which a share of the records is: on straight lines between the edges, whole for whole numbers."""
    low, high = found.bounds
    edges = np.array(bins.edges)
    place = int(np.searchsorted(curve, share, side="left"))
    if place == 0:
        value = float(edges[0])
    elif place == len(curve):
        value = float(edges[-1])
    else:
        step = curve[place] - curve[place - 1]
        part = (share - curve[place - 1]) / step if step > 0 else 0.0
        value = float(edges[place - 1] + part * (edges[place] - edges[place - 1]))
    is_zero = abs(value) <= max(_TINY, 1e-6 * (high - low))
    value = round(value) if found.is_whole else 0.0 if is_zero else value
    return float(min(max(value, low), high))


# The label by bin ----------------------------------------------------------------------------------------------------


def merged_bins(bins: NumberBins, column: Column) -> NumberBins:
    """Coarser bins of about equal weight, by the counts that were released."""
    if bins.n_bins <= N_GROUPS + 2:
        return bins
    counts = np.array([max(0.0, group.count.value) for group in column.groups])
    below = np.cumsum(counts)[:-1]
    if not below[-1] > 0:
        return NumberBins(bins.edges[:: max(1, len(bins.edges) // N_GROUPS)])
    wanted = np.arange(1, N_GROUPS) / N_GROUPS * float(counts.sum())
    chosen = {int(place) for place in np.searchsorted(below, wanted) if 0 < place < len(below) - 1}
    return NumberBins(tuple(bins.edges[place] for place in sorted({0, *chosen, len(below) - 1})))


def rates_of(bins: Bins, table: NDArray[np.float64], deviation: float) -> tuple[Group, ...]:
    """The shares of the label's classes in each bin.

    Args:
        table: float64 [bins.n_bins, n_classes], noisy counts.
        deviation: of each.
    """
    if isinstance(bins, NumberBins):
        is_whole = all(edge % 1 == 0.5 for edge in bins.edges)
        groups: Sequence[Group] = _groups_of_numbers(bins, table.sum(axis=1), 0.0, is_whole)
    else:
        groups = [Group(name) for name in (*bins.categories, *_names_of_others(bins))]
    return tuple(_with_rates(group, own, deviation) for group, own in zip(groups, table, strict=True))


def _with_rates(group: Group, counts: Counts, deviation: float) -> Group:
    n_classes = len(counts)
    count = counted(float(counts.sum()), deviation, n_classes)
    if not count.is_shown:
        return replace(group, count=count, rates=(Noisy(0.0, 0.0, is_shown=False),) * n_classes)
    rates = np.clip(counts / count.value, 0.0, 1.0)
    spreads = deviation / count.value * np.sqrt((1 - rates) ** 2 + (n_classes - 1) * rates**2)
    is_clear = float(spreads.max()) <= VAGUE
    own = tuple(Noisy(float(rate), float(spread), is_clear) for rate, spread in zip(rates, spreads, strict=True))
    return replace(group, count=count, rates=own)
