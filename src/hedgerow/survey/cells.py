"""Queries about all columns of a table at once, numbers and texts alike: what `hedgerow.survey.statistics` asks.

    query       a record adds                                                     squared norm, in units
    KindCounts  per column one to its numbers, its texts or its missing cells     1 per column
    TextVotes   per column one for or against each bit of its text                128 per column
    CellCounts  per column one to one public bin of its cell                      1 per column
    JointCounts per column one to one public bin of its cell and its label's      1 per column

A cell's place depends on that cell (and, in JointCounts, on the same record's label) alone, so the norms are exact: one
record more changes the answer by that record's own contribution. docs/privacy.md, section "Statistics before training".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.queries import IntVector
from hedgerow.survey.queries import (
    N_BITS,
    N_BUCKETS,
    UNIT,
    NameVotes,
    RawSite,
    Reals,
    SurveyQuery,
    bits_of,
    bucket_of,
)

Places = NDArray[np.intp]
N_KINDS = 3
"""Numbers, texts, missing cells."""


class Column(Protocol):
    """One column of a site's table, cell by cell."""

    @property
    def numbers(self) -> NDArray[np.float64]:
        """Float64 [n], NaN where a cell is no number."""

    @property
    def is_text(self) -> NDArray[np.bool_]:
        """Bool [n], where a cell is there and no number."""

    @property
    def texts(self) -> tuple[Sequence[str], NDArray[np.intp]]:
        """The distinct texts of all cells, those of numbers too, and which of them each has: intp [n], -1 for none."""


@dataclass(frozen=True, eq=False)
class TableSite(RawSite):
    """A site's rows with all their columns; `RawSite.columns` and `texts` are not used.

    Attributes:
        cells: the columns, in the order of the questions.
    """

    cells: Sequence[Column] = ()

    def column(self, index: int) -> Reals:
        """See `RawSite.column`."""
        own = self.own(self.cells[index].numbers)
        return np.asarray(own[~np.isnan(own)])

    def own(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        """Those of a column's values that are of this site's rows."""
        return values if self.rows is None else values[self.rows]

    def text_counts(self, index: int) -> list[tuple[str, int]]:
        """The distinct texts of a column, and how many rows have each."""
        texts, codes = self.cells[index].texts
        counts = np.bincount(self.own(codes) + 1, minlength=len(texts) + 1)[1:]
        return [(text, count) for text, count in zip(texts, counts.tolist(), strict=True) if count]


@dataclass(frozen=True)
class NumberBins:
    """Bins between public edges, ascending; bin 0 is below the first edge, the last one from the last edge on.

    A number x is in bin k if k of the edges are at most x.
    """

    edges: tuple[float, ...]

    @property
    def n_bins(self) -> int:
        return len(self.edges) + 1

    def places(self, site: TableSite, index: int) -> Places:
        """The bin of each cell of a column: intp [n], -1 for a cell without a number."""
        numbers = site.own(site.cells[index].numbers)
        places = np.searchsorted(np.array(self.edges), numbers, side="right")
        return np.asarray(np.where(np.isnan(numbers), -1, places), dtype=np.intp)


@dataclass(frozen=True)
class TextBins:
    """A bin for each public category, then `n_others` for all other texts, by a public hash; none of them for 0."""

    categories: tuple[str, ...]
    n_others: int = 1

    @property
    def n_bins(self) -> int:
        return len(self.categories) + self.n_others

    def places(self, site: TableSite, index: int) -> Places:
        """The bin of each cell of a column: intp [n], -1 for a missing cell, or one that no bin is for."""
        texts, codes = site.cells[index].texts
        place_of = {text: place for place, text in enumerate(self.categories)}
        table = [place_of.get(text, self._other(text)) for text in texts]
        return np.asarray(np.array([*table, -1], dtype=np.intp)[site.own(codes)])

    def _other(self, text: str) -> int:
        return len(self.categories) + bucket_of(text) % self.n_others if self.n_others else -1


Bins = NumberBins | TextBins


@dataclass(frozen=True, kw_only=True, eq=False)
class KindCounts(SurveyQuery):
    """Per column how many cells are numbers, texts, missing: int64 [3 n_columns].

    In each column a record adds `UNIT` to one of the three: a squared norm of exactly n_columns UNIT**2.
    """

    n_columns: int

    def answer(self, site: TableSite) -> IntVector:
        """See `Query.answer`."""
        parts = []
        for column in site.cells:
            numbers, is_text = site.own(column.numbers), site.own(column.is_text)
            kinds = np.where(is_text, 1, np.where(np.isnan(numbers), 2, 0))
            parts.append(np.bincount(kinds, minlength=N_KINDS) * UNIT)
        return np.concatenate(parts).astype(np.int64)

    def norm_squared(self) -> int:
        """See `SurveyQuery.norm_squared`."""
        return self.n_columns * UNIT * UNIT

    def expected_length(self) -> int:
        """See `SurveyQuery.expected_length`."""
        return self.n_columns * N_KINDS

    def totals(self, released: Reals) -> Reals:
        """See `SurveyQuery.totals`."""
        return np.asarray(released.reshape(self.n_columns, -1).sum(axis=1))


@dataclass(frozen=True, kw_only=True, eq=False)
class TextVotes(NameVotes):
    """`NameVotes` of several columns, one after the other: int64 [n_columns N_BUCKETS N_BITS].

    In each column a record adds or takes `UNIT` at the N_BITS bits of one bucket, or nothing where its text is missing
    or beyond N_BYTES: a squared norm of at most n_columns N_BITS UNIT**2, which every text that is short enough has.

    Attributes:
        columns: their indices in `TableSite.cells`.
    """

    columns: tuple[int, ...]

    def answer(self, site: TableSite) -> IntVector:  # type: ignore[override]
        """See `Query.answer`."""
        votes = np.zeros((len(self.columns), N_BUCKETS, N_BITS), dtype=np.int64)
        for own, index in zip(votes, self.columns, strict=True):
            for text, count in site.text_counts(index):
                bits = bits_of(text)
                if bits is not None:
                    own[bucket_of(text)] += (2 * bits - 1) * (count * UNIT)
        return votes.ravel()

    def norm_squared(self) -> int:
        """See `SurveyQuery.norm_squared`."""
        return len(self.columns) * N_BITS * UNIT * UNIT

    def expected_length(self) -> int:
        """See `SurveyQuery.expected_length`."""
        return len(self.columns) * N_BUCKETS * N_BITS


@dataclass(frozen=True, kw_only=True, eq=False)
class CellCounts(SurveyQuery):
    """Per column the cells in each of its bins: int64 [all bins of all columns].

    In each column a record adds `UNIT` to one bin, or nothing where no bin is for its cell: a squared norm of at most
    n_columns UNIT**2, which a record without missing cells has.

    Attributes:
        columns: their indices in `TableSite.cells`.
        bins: of each.
    """

    columns: tuple[int, ...]
    bins: tuple[Bins, ...]

    @property
    def n_labels(self) -> int:
        """Counts of each bin."""
        return 1

    def answer(self, site: TableSite) -> IntVector:
        """See `Query.answer`."""
        parts = []
        for index, bins in zip(self.columns, self.bins, strict=True):
            places = bins.places(site, index)
            parts.append(np.bincount(places[places >= 0], minlength=bins.n_bins) * UNIT)
        return np.concatenate(parts).astype(np.int64)

    def norm_squared(self) -> int:
        """See `SurveyQuery.norm_squared`."""
        return len(self.columns) * UNIT * UNIT

    def expected_length(self) -> int:
        """See `SurveyQuery.expected_length`."""
        return sum(bins.n_bins for bins in self.bins) * self.n_labels

    def left_open(self) -> bytes:
        """See `Query.left_open`: edges come from noise and arithmetic on it."""
        edges = [edge for bins in self.bins if isinstance(bins, NumberBins) for edge in bins.edges]
        return np.array(edges, dtype="<f8").tobytes()

    def by_column(self, counts: Reals) -> list[Reals]:
        """The counts of each column: float64 [n_bins, n_labels] each."""
        ends = np.cumsum([bins.n_bins * self.n_labels for bins in self.bins])
        return [own.reshape(-1, self.n_labels) for own in np.split(counts, ends[:-1])]

    def totals(self, released: Reals) -> Reals:
        """See `SurveyQuery.totals`."""
        return np.array([own.sum() for own in self.by_column(released)])


@dataclass(frozen=True, kw_only=True, eq=False)
class JointCounts(CellCounts):
    """`CellCounts`, each bin by class of the label: int64 [all bins of all columns, n_classes], flat.

    In each column a record adds `UNIT` to its bin and its class, or nothing where either is missing: a squared norm of
    at most n_columns UNIT**2.

    Attributes:
        label: the label's index in `TableSite.cells`.
        classes: the bins of the label, without others.
    """

    label: int
    classes: TextBins

    @property
    def n_labels(self) -> int:
        """See `CellCounts.n_labels`."""
        return self.classes.n_bins

    def answer(self, site: TableSite) -> IntVector:
        """See `Query.answer`."""
        labels, parts = self.classes.places(site, self.label), []
        for index, bins in zip(self.columns, self.bins, strict=True):
            places = bins.places(site, index)
            both = (places * self.n_labels + labels)[(places >= 0) & (labels >= 0)]
            parts.append(np.bincount(both, minlength=bins.n_bins * self.n_labels) * UNIT)
        return np.concatenate(parts).astype(np.int64)
