"""Statistics of a whole table before anyone trains: a generator that yields queries and returns what they say.

    stage    query        what for                                                       share of mu**2
    records  RecordCount  about how many records                                         0.01
    kinds    KindCounts   missing cells; whether a column is of numbers or of texts      0.05
    octaves  OctaveCounts bounds of the numbers                                          0.14
    zoom     ZoomCounts   thrice at most, of columns that lie far from zero              0.02 each
    names    TextVotes    common texts                                                   0.24
    values   ValueCounts  classes of a label that is a whole number                      0.02
    cells    CellCounts   histograms and shares of categories                            0.32
    rates    JointCounts  the label by bin of each column                                0.16

The shares are weights: each query takes its weight's part of what is left of mu**2, beside the weights that may still
follow, so that what one stage does not need goes to those after it, and the last one spends the rest (to the last digit
where the noise is the coordinator's). The sum of all
charges never exceeds the whole, whatever is released, which is what adaptive composition of Gaussian noise asks for
(docs/privacy.md). Nothing here depends on rows but by the noisy sums.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace

from hedgerow.errors import PrivacyError
from hedgerow.privacy.calibration import NoiseDemand, calibrate_noise_multiplier, calibrate_sigmas, noise_of
from hedgerow.privacy.events import Event
from hedgerow.protocol.queries import IntVector, Purpose
from hedgerow.survey.cells import N_KINDS, Bins, CellCounts, JointCounts, KindCounts, NumberBins, TextBins, TextVotes
from hedgerow.survey.program import Kind, Zoom, blank, deviation_of, zooms
from hedgerow.survey.queries import (
    N_BITS,
    N_BUCKETS,
    N_OCTAVES,
    UNIT,
    OctaveCounts,
    RecordCount,
    SurveyQuery,
    ValueCounts,
    ZoomCounts,
)
from hedgerow.survey.readings import (
    Counts,
    Range,
    classes_of_values,
    classes_of_votes,
    in_records,
    is_away_from_zero,
    range_of_octaves,
)
from hedgerow.survey.summaries import (
    Column,
    Density,
    Noisy,
    TableStatistics,
    column_of_numbers,
    column_of_texts,
    counted,
    dated,
    density_of_octaves,
    density_of_zoom,
    edges_of,
    holds_most,
    merged_bins,
    rates_of,
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
MAX_CLASSES = 20
"""A label with more values than this is a quantity."""


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
        columns: all columns, in the order of `TableSite.cells`.
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


StatisticsProgram = Generator[SurveyQuery, IntVector, TableStatistics]


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
    columns = [dated(column, own.layout) if own.is_date else column for column, own in asked]
    return TableStatistics(n_records, tuple(columns), questions.label, known.classes)


def _kinds(questions: TableQuestions, budget: _Budget, n_records: Noisy) -> Generator[SurveyQuery, IntVector, _Known]:
    """What kind each column is, and how much of it is missing."""
    query = budget.ask("kinds", blank(KindCounts, n_columns=len(questions.columns)))
    counts = in_records((yield query), UNIT).reshape(-1, N_KINDS)
    deviation, said = deviation_of(query), budget.said(query)
    known = _Known([], [], [], [])
    total = max(n_records.value, 1.0)
    for column, (numbers, texts, missing) in zip(questions.columns, counts, strict=True):
        more = counted(float(max(numbers, texts)), deviation)
        found = "unknown" if not more.is_shown else "number" if numbers >= texts else "text"
        known.kinds.append(found if found == "unknown" else column.kind or found)
        known.odd.append(counted(float(texts), said).over(total))
        known.present.append(float(numbers))
        known.missing.append(counted(float(missing), said).over(total))
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
    query = budget.ask("octaves", blank(OctaveCounts, columns=tuple(wanted)))
    counts, deviation = in_records((yield query), UNIT).reshape(-1, N_OCTAVES + 1), deviation_of(query)
    for index, own in zip(wanted, counts, strict=True):
        found = range_of_octaves(own[:N_OCTAVES], 2 * float(own[N_OCTAVES]), deviation, n_records.value)
        known.ranges[index] = found
        known.densities[index] = density_of_octaves(own[:N_OCTAVES], found, deviation)
        if not found.is_seen:
            known.kinds[index] = "unknown"

    def ask(number: int, query: ZoomCounts) -> ZoomCounts:
        return budget.ask(f"zoom {number}", query)

    def takes(index: int, zoom: Zoom) -> bool:
        if zoom.after == zoom.before:
            return False
        if not holds_most(zoom.before, zoom.after, zoom.counts, zoom.deviation, known.present[index]):
            return False
        known.densities[index] = density_of_zoom(zoom.before, zoom.counts, zoom.after, zoom.deviation)
        return True

    away = [index for index in wanted if is_away_from_zero(known.ranges[index])]
    yield from zooms(away, known.ranges, ask, takes)


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
    if known.kinds[label] == "number" and own is not None and own.is_whole:
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
        query = budget.ask("cells", blank(CellCounts, columns=tuple(order), bins=bins))
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
            columns.append(Column(*about))
    return columns


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
            columns=tuple(order),
            bins=tuple(bins[index] for index in order),
            label=label,
            classes=TextBins(known.classes, 0),
        ),
    )
    counts = query.by_column(in_records((yield query), UNIT))
    for index, table in zip(order, counts, strict=True):
        columns[index] = replace(columns[index], rates=rates_of(bins[index], table, budget.said(query)))
    return columns
