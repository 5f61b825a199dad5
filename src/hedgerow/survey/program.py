# SPDX-License-Identifier: Apache-2.0
"""The survey: a generator that yields questions about raw cells and returns the findings.

`hedgerow.survey.questions` lists the questions and each one's share of the budget. The survey asks only for undeclared
facts. Declarations and earlier releases determine them, never a type that one cell may have decided. Nothing here
depends on rows except through the noisy sums.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from hedgerow.protocol.queries import IntVector
from hedgerow.survey import queries, statistics
from hedgerow.survey.bounds import (
    BOOLEANS,
    Counts,
    Findings,
    Range,
    classify_counts,
    find_range,
    is_away_from_zero,
    range_of_label,
    read_value_classes,
    read_vote_classes,
    usual_classes,
    wants_label_zoom,
    wants_zoom,
    zoom_in,
    zoomed_label,
)
from hedgerow.survey.curves import SurvivalCurves, read_curves
from hedgerow.survey.kinds import ABSENT, DATE, MAX_FOUND_CLASSES, N_KINDS, NUMBER, TEXT, TRUTH
from hedgerow.survey.questions import N_ZOOMS, USUAL_BINS, Budget, Questions

MIN_COUNT = 2.0
"""Smallest count, in standard deviations of its noise: a lower one is raised to it. With probability 29,999/30,000 the
true number is then at most three times the result."""
UNKNOWN = -1
"""Kind of a table's column in which too few cells are seen."""

Found = statistics.TableStatistics | SurvivalCurves
"""Findings of a survey of a table."""
SurveyProgram = Generator[queries.SurveyQuery, IntVector, Any]
"""Yields queries, receives each one's noisy sum, and returns the findings; `Questions.about` tells their type."""
_Step = Generator[queries.SurveyQuery, IntVector, None]


def survey(questions: Questions, excess: float = 1.0) -> SurveyProgram:
    """Return the program that answers the questions.

    Args:
        excess: the noise's deviation in the releases divided by the accounted one: above 1 if all sites add noise
            although some would be enough. It changes no query, only the reported errors of the releases.

    Raises:
        PrivacyError: epsilon or delta out of range.
    """
    budget = Budget(questions, excess)
    if questions.curves is not None:
        query = budget.ask("curves", questions.curves.query)
        counts = queries.in_records((yield query)).reshape(len(questions.curves.groups), query.n_codes)
        return read_curves(questions.curves, counts, budget.reported_deviation(query))
    made = _Survey(questions, budget)
    if questions.about == "plan":
        return (yield from made.of_plan())
    return (yield from made.of_table())


class _Survey:
    """The state of a survey: known facts of each column by its index, and the questions that find more."""

    def __init__(self, questions: Questions, budget: Budget) -> None:
        self._asked, self._budget = questions, budget
        self._kinds = [NUMBER] * len(questions.columns)
        self._n_records = float(questions.n_records or 0)
        self._ranges: dict[int, Range] = {}
        self._label_range: Range | None = None
        self._densities: dict[int, statistics.Density] = {}
        self._categories: dict[int, tuple[str, ...]] = {}
        self._classes: tuple[int, ...] | tuple[str, ...] = ()
        self._bins: dict[int, queries.Bins] = {}
        # By column of a table: share of missing cells, share of cells of another kind, and number of cells of its kind.
        self._missing, self._odd, self._present = list[statistics.Noisy](), list[statistics.Noisy](), list[float]()

    def _place(self, index: int) -> int:
        """Return the index at which a column is read.

        Columns that were found to be dates are read as dates, after all columns (`RawSite.numbers`).
        """
        return index + len(self._kinds) * (self._kinds[index] == DATE)

    def _of_numbers(self) -> list[int]:
        return [index for index, kind in enumerate(self._kinds) if kind in (NUMBER, DATE)]

    # The gaps of a plan ----------------------------------------------------------------------------------------------

    def of_plan(self) -> Generator[queries.SurveyQuery, IntVector, Findings]:
        """Find the gaps of a plan: bounds, classes, and the number of records."""
        asked = self._asked
        if asked.n_records is None:
            query = self._budget.ask("records", queries.blank(queries.RecordCount))
            found = float(queries.in_records((yield query))[0])
            # Never use a far too small number: the checks of releases allow only for a few times as many records.
            self._n_records = max(found, MIN_COUNT * queries.noise_deviation(query))
        label_range = None
        if asked.label is not None and not asked.asks_bounds:
            yield from self._usual_classes(asked.label)
        unknown = tuple(index for index in asked.unknown if index != asked.label or not self._classes)
        if unknown:
            kinds = self._budget.ask("kinds", queries.blank(queries.KindCounts, columns=unknown))
            counts = queries.in_records((yield kinds)).reshape(-1, N_KINDS)
            for index, by_kind in zip(unknown, counts, strict=True):
                self._kinds[index] = classify_counts(by_kind, queries.noise_deviation(kinds))
        yield from self._bounds([index for index in asked.surveyed if self._kinds[index] in (NUMBER, DATE)])
        if asked.label is not None and asked.asks_bounds:
            label_range = yield from self._range_of_label(asked.label)
        elif asked.label is not None and not self._classes:
            yield from self._classes_of_plan(asked.label)
        return Findings(
            n_records=max(1, round(self._n_records)),
            columns=tuple((self._kinds[index], self._ranges.get(index)) for index in asked.surveyed),
            label=label_range,
            classes=self._classes,
            label_kind=NUMBER if asked.label is None else self._kinds[asked.label],
        )

    def _usual_classes(self, label: int) -> _Step:
        """Find a label's classes if they are a usual pair: few records are enough for that."""
        query = self._budget.ask("pairs", queries.blank(queries.CellCounts, columns=(label,), bins=(USUAL_BINS,)))
        counts = queries.in_records((yield query)).tolist()
        pair = usual_classes(
            dict(zip((*USUAL_BINS.categories, ""), counts, strict=True)), queries.noise_deviation(query)
        )
        if pair == BOOLEANS:
            self._kinds[label], self._classes = TRUTH, pair
        elif pair and pair[1].isdigit():
            self._kinds[label], self._classes = NUMBER, tuple(map(int, pair))
        elif pair:
            self._kinds[label], self._classes = TEXT, pair

    def _range_of_label(self, label: int) -> Generator[queries.SurveyQuery, IntVector, Range]:
        """Find the range of a numeric label.

        Its range scales all noise, so the label has queries of its own, however many columns there are.
        """
        query = self._budget.ask("label octaves", queries.blank(queries.OctaveCounts, columns=(label,)))
        counts, deviation = queries.in_records((yield query)), queries.noise_deviation(query)
        parts, is_count = 2 * float(counts[queries.N_OCTAVES]), self._asked.columns[label].integer
        found = range_of_label(counts[: queries.N_OCTAVES], parts, deviation, self._n_records, is_count=is_count)
        before = None
        for number in range(N_ZOOMS):
            if not wants_label_zoom(found, before):
                return found
            zoom = queries.blank(queries.ZoomCounts, columns=(label,), ranges=((found.low, found.high),))
            zoom = self._budget.ask(f"label zoom {number}", zoom)
            seen = queries.in_records((yield zoom))
            before, found = found, zoomed_label(found, seen, queries.noise_deviation(zoom), is_again=number > 0)
        if not wants_label_zoom(found, before):
            return found
        # The values' spread within these bounds is unknown and may be tiny, so refuse the range.
        return replace(found, is_seen=False)

    def _classes_of_plan(self, label: int) -> _Step:
        """Find the classes of a label; a label of dates has none."""
        kind = self._kinds[label]
        if kind == NUMBER:
            values = self._budget.ask("classes", queries.blank(queries.ValueCounts, column=label))
            self._classes = read_value_classes(queries.in_records((yield values)), queries.noise_deviation(values))
        elif kind == TEXT:
            votes = self._budget.ask("classes", queries.blank(queries.NameVotes))
            self._classes = read_vote_classes(queries.in_records((yield votes)), queries.noise_deviation(votes))
        elif kind == TRUTH:
            self._classes = BOOLEANS

    # Statistics of a table -------------------------------------------------------------------------------------------

    def of_table(self) -> Generator[queries.SurveyQuery, IntVector, statistics.TableStatistics]:
        """Find each column's histogram or shares of categories, and the label by bin."""
        asked, budget = self._asked, self._budget
        if asked.label is None:
            budget.skip("values", "rates")
        query = budget.ask("records", queries.blank(queries.RecordCount))
        n_records = statistics.show_count(float(queries.in_records((yield query))[0]), budget.reported_deviation(query))
        self._n_records = n_records.value
        yield from self._kinds_of_table()
        wanted = []
        for index in self._of_numbers():
            bounds, is_whole = asked.columns[index].bounds, asked.columns[index].integer
            if bounds is None:
                wanted.append(index)
            else:
                # A range excludes its upper end.
                self._ranges[index] = Range(bounds[0], bounds[1] + is_whole, is_whole)
        yield from self._bounds(wanted)
        yield from self._names()
        yield from self._classes_of_table()
        columns = yield from self._cells()
        if self._classes:
            yield from self._rates(columns)
        columns = [
            statistics.name_by_dates(column, about.format) if about.is_date or self._kinds[index] == DATE else column
            for index, (column, about) in enumerate(zip(columns, asked.columns, strict=True))
        ]
        label = "" if asked.label is None else asked.columns[asked.label].name
        classes = tuple(map(str, self._classes))
        return statistics.TableStatistics(n_records, tuple(columns), label, classes, self._label_range)

    def _kinds_of_table(self) -> _Step:
        """Find each column's kind, and its share of missing cells."""
        columns, budget = self._asked.columns, self._budget
        query = budget.ask("kinds", queries.blank(queries.KindCounts, columns=tuple(range(len(columns)))))
        counts = queries.in_records((yield query)).reshape(-1, N_KINDS)
        # Cells that are neither numbers nor missing are the sum of three counts.
        spread = math.sqrt(N_KINDS - 2)
        deviation, said = queries.noise_deviation(query), budget.reported_deviation(query)
        total = max(self._n_records, 1.0)
        for index, (column, by_kind) in enumerate(zip(columns, counts, strict=True)):
            is_date = column.is_date or (not column.type and classify_counts(by_kind, deviation) == DATE)
            numbers, missing = float(by_kind[DATE if is_date else NUMBER]), float(by_kind[ABSENT])
            texts = float(by_kind.sum()) - numbers - missing
            is_text = texts > numbers
            if not statistics.show_count(max(numbers, texts), deviation * (spread if is_text else 1)).is_shown:
                self._kinds[index] = UNKNOWN
            elif column.is_categorical or (not column.type and is_text):
                self._kinds[index] = TEXT
            elif is_date and not column.is_date and not is_text:
                self._kinds[index] = DATE
            self._odd.append(statistics.show_count(texts, said * spread).over(total))
            self._present.append(numbers)
            self._missing.append(statistics.show_count(missing, said).over(total))

    def _names(self) -> _Step:
        """Find the common texts of text columns without declared categories."""
        texts = {index: self._asked.columns[index].listed for index, kind in enumerate(self._kinds) if kind == TEXT}
        self._categories |= texts
        wanted = [index for index, declared in texts.items() if not declared]
        if not wanted:
            self._budget.skip("names")
            return
        query = self._budget.ask("names", queries.blank(queries.TextVotes, columns=tuple(wanted)))
        votes = queries.in_records((yield query)).reshape(len(wanted), queries.N_BUCKETS * queries.N_BITS)
        for index, column_votes in zip(wanted, votes, strict=True):
            self._categories[index] = read_vote_classes(column_votes, queries.noise_deviation(query))

    def _classes_of_table(self) -> _Step:
        """Find the label's classes, if it has few."""
        label, budget = self._asked.label, self._budget
        if label is None:
            return
        classes: tuple[int, ...] | tuple[str, ...] = self._categories.get(label, ())
        own = self._ranges.get(label)
        if self._kinds[label] == NUMBER and own is not None and own.is_whole:
            query = budget.ask("values", queries.blank(queries.ValueCounts, column=label))
            classes = read_value_classes(queries.in_records((yield query)), queries.noise_deviation(query))
        self._classes = classes if 2 <= len(classes) <= MAX_FOUND_CLASSES else ()
        budget.skip("values")
        if not self._classes:
            budget.skip("rates")

    def _cells(self) -> Generator[queries.SurveyQuery, IntVector, list[statistics.ColumnStatistics]]:
        """Find a histogram, or the shares of categories, of every column that is not unknown."""
        for index in self._of_numbers():
            if index in self._ranges:
                self._bins[index] = queries.NumberBins(
                    statistics.choose_edges(self._ranges[index], self._densities.get(index))
                )
        for index, names in self._categories.items():
            self._bins[index] = queries.TextBins(names, 1 if names else statistics.N_HASHED)
        order = sorted(self._bins)
        found: dict[int, tuple[Counts, float]] = {}
        if order:
            bins = tuple(self._bins[index] for index in order)
            query = self._budget.ask(
                "cells", queries.blank(queries.CellCounts, columns=tuple(map(self._place, order)), bins=bins)
            )
            counts = query.by_column(queries.in_records((yield query)))
            deviation = self._budget.reported_deviation(query)
            found = {index: (table[:, 0], deviation) for index, table in zip(order, counts, strict=True)}
        columns = []
        for index, asked in enumerate(self._asked.columns):
            own_bins = self._bins.get(index)
            about = (asked.name, self._missing[index])
            if isinstance(own_bins, queries.NumberBins):
                column = statistics.describe_numbers(*about, self._ranges[index], own_bins, *found[index])
                column = replace(column, odd=self._odd[index])
            elif own_bins is not None:
                column = statistics.describe_texts(*about, own_bins, *found[index])
            else:
                column = statistics.ColumnStatistics(*about, range=self._ranges.get(index))
            columns.append(replace(column, is_declared=asked.bounds is not None or asked.listed != ()))
        return columns

    def _rates(self, columns: list[statistics.ColumnStatistics]) -> _Step:
        """Find the shares of the label's classes by bin, and put them into the columns."""
        label = self._asked.label or 0
        bins: dict[int, queries.Bins] = {}
        for index, known in self._bins.items():
            if index != label and isinstance(known, queries.NumberBins):
                bins[index] = statistics.merge_bins(known, columns[index])
            elif index != label and isinstance(known, queries.TextBins) and known.categories:
                bins[index] = known
        order = sorted(bins)
        if not order:
            return
        query = self._budget.ask(
            "rates",
            queries.blank(
                queries.JointCounts,
                columns=tuple(map(self._place, order)),
                bins=tuple(bins[index] for index in order),
                label=label,
                classes=queries.TextBins(tuple(map(str, self._classes)), 0),
            ),
        )
        counts = query.by_column(queries.in_records((yield query)))
        deviation = self._budget.reported_deviation(query)
        for index, table in zip(order, counts, strict=True):
            columns[index] = replace(columns[index], rates=statistics.compute_rates(bins[index], table, deviation))

    # Bounds, of both -------------------------------------------------------------------------------------------------

    def _bounds(self, wanted: list[int]) -> _Step:
        """Find the bounds of these columns; for a table also the rough distribution between them."""
        budget, is_table = self._budget, self._asked.about == "table"
        if not wanted:
            budget.skip("octaves", *(f"zoom {number}" for number in range(N_ZOOMS)))
            return
        query = budget.ask("octaves", queries.blank(queries.OctaveCounts, columns=tuple(map(self._place, wanted))))
        counts, deviation = (
            queries.in_records((yield query)).reshape(-1, queries.N_OCTAVES + 1),
            queries.noise_deviation(query),
        )
        for index, octaves in zip(wanted, counts, strict=True):
            # The count of non-whole values behind a column's octaves is in halves of a unit.
            released = octaves[: queries.N_OCTAVES], 2 * float(octaves[queries.N_OCTAVES]), deviation, self._n_records
            self._ranges[index] = found = find_range(*released)
            if is_table and index == self._asked.label:
                self._label_range = range_of_label(*released, is_count=False)
            if is_table:
                self._densities[index] = statistics.spread_octaves(octaves[: queries.N_OCTAVES], found, deviation)
                self._kinds[index] = self._kinds[index] if found.is_seen else UNKNOWN
        wanted = [index for index in wanted if is_away_from_zero(self._ranges[index])]
        for number in range(N_ZOOMS):
            if not wanted:
                return
            before = [self._ranges[index] for index in wanted]
            bounds = tuple((span.low, span.high) for span in before)
            zoom = queries.blank(queries.ZoomCounts, columns=tuple(map(self._place, wanted)), ranges=bounds)
            zoom = budget.ask(f"zoom {number}", zoom)
            counts, deviation = (
                queries.in_records((yield zoom)).reshape(-1, queries.N_ZOOM),
                queries.noise_deviation(zoom),
            )
            again = []
            for index, old, seen in zip(wanted, before, counts, strict=True):
                after = zoom_in(old, seen, deviation)
                if self._takes(index, old, after, seen, deviation):
                    self._ranges[index] = after
                    if wants_zoom(old, after):
                        again.append(index)
            wanted = again

    def _takes(self, index: int, before: Range, after: Range, counts: Counts, deviation: float) -> bool:
        """Return whether a column accepts the result of a zoom; for a table, also keep its density."""
        if self._asked.about == "plan":
            # A feature's bounds may be wide, but not narrow.
            return wants_zoom(before, after)
        if after == before or not statistics.holds_most(before, after, counts, deviation, self._present[index]):
            return False
        self._densities[index] = statistics.spread_zoom(before, counts, after, deviation)
        return True
