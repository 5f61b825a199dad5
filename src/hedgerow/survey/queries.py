# SPDX-License-Identifier: Apache-2.0
"""The queries of a survey: counts over public bins of a record's raw cells, and a site's sums.

    query        a record adds                                                            squared norm, in units
    RecordCount  one                                                                      1
    KindCounts   per column one to its numbers, dates, truth values, texts or missing cells   1 per column
    OctaveCounts per column one to an octave, and a half to the count of non-whole values 5/4 per column
    ZoomCounts   per column one to one of 128 even bins of a range that was released      1 per column
    ValueCounts  one to a whole number from -128 to 1023                                  1
    NameVotes    votes for or against each bit of its text, in the bucket of that text    128

A missing cell adds to RecordCount and KindCounts alone. A cell's bin depends on that cell alone, so adding or removing
one record changes the answer by exactly that record's contribution. Each norm above is attained by some record.
`rows_per_unit` multiplies the norms if a unit of privacy has several rows. docs/proofs/queries.md, section "A survey of
the columns".
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.losses.tables import RECORD_NORM
from hedgerow.privacy.calibration import integer_sigma
from hedgerow.protocol.queries import IntVector, Purpose, Query, SiteQuery, refuse_query
from hedgerow.survey.kinds import ABSENT, N_KINDS, NUMBER
from hedgerow.trees.plausibility import ReleaseChecks, SumFacts

UNIT = RECORD_NORM
"""Integer that one record adds to one count: so large that rounding the noise to the grid costs next to nothing."""
HALF_UNIT = UNIT // 2
LOWEST_OCTAVE, HIGHEST_OCTAVE = -150, 128
"""Octave k holds magnitudes from 2**k to below 2**(k + 1). The octaves cover single precision, in which bounds and
edges are. All smaller magnitudes except zero are in the lowest octave, all larger ones in the highest."""
N_SIGNED = HIGHEST_OCTAVE - LOWEST_OCTAVE + 1
ZERO = N_SIGNED
"""The bin of zero. Bins before it hold negative numbers, the largest magnitude first."""
N_OCTAVES = 2 * N_SIGNED + 1
N_ZOOM = 128
LOWEST_VALUE, HIGHEST_VALUE = -128, 1023
N_VALUES = HIGHEST_VALUE - LOWEST_VALUE + 1
N_BUCKETS = 512
N_BYTES = 16
"""The longest text, in UTF-8, that `NameVotes` can spell."""
N_BITS = 8 * N_BYTES
_NAME_DOMAIN = b"hedgerow survey of names 1\0"

Reals = NDArray[np.float64]


class Column(Protocol):
    """One column of a site's table, cell by cell."""

    @property
    def kinds(self) -> NDArray[np.int8]:
        """The kind of each cell, int8 [n]: `NUMBER` to `ABSENT`."""

    @property
    def numbers(self) -> NDArray[np.floating]:
        """The numbers, float [n], NaN for a cell without one; the days if the column is declared to hold dates."""

    @property
    def days(self) -> NDArray[np.float64]:
        """The days since 1970-01-01, float64 [n], NaN for a cell without a date."""

    @property
    def texts(self) -> tuple[Sequence[str], NDArray[np.intp]]:
        """The distinct texts of all cells, and each cell's index among them.

        Numbers are among the texts; the index is intp [n], -1 for none.
        """


@dataclass(frozen=True, eq=False)
class RawSite:
    """A site's rows as a survey sees them.

    Attributes:
        columns: in the order of the questions, the label last if there is one. Float arrays [n_all] are numbers.
        rows: intp [n], the indices of this site's rows; None for all.
        n_all: number of rows of the columns.
    """

    columns: Sequence[Column | NDArray[np.floating]]
    rows: NDArray[np.intp] | None = None
    n_all: int = 0

    @property
    def n_records(self) -> int:
        return self.n_all if self.rows is None else len(self.rows)

    def own(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of this site's rows, out of a column's values."""
        return values if self.rows is None else values[self.rows]

    def only(self, rows: NDArray[np.intp]) -> RawSite:
        """Return some of the rows, by their numbers."""
        return replace(self, rows=self.own(np.arange(self.n_all))[rows])

    def numbers(self, index: int) -> Reals:
        """Return one column as float64 [n], NaN for no number.

        From len(columns) on, indices mean the same columns read as dates.
        """
        if index >= len(self.columns):
            return np.asarray(self.own(self.cells(index - len(self.columns)).days), dtype=np.float64)
        column = self.columns[index]
        return np.asarray(self.own(column if isinstance(column, np.ndarray) else column.numbers), dtype=np.float64)

    def column(self, index: int) -> Reals:
        """Return `numbers` without the missing cells: float64 [at most n]."""
        own = self.numbers(index)
        return own[~np.isnan(own)]

    def cells(self, index: int) -> Column:
        """Return a column that has cells; raise ValueError for a plain array of numbers."""
        column = self.columns[index]
        if isinstance(column, np.ndarray):
            raise ValueError("these rows have nothing but numbers here")
        return column

    def text_counts(self, index: int) -> list[tuple[str, int]]:
        """Return the distinct texts of a column, with the number of rows that have each."""
        texts, codes = self.cells(index).texts
        counts = np.bincount(self.own(codes) + 1, minlength=len(texts) + 1)[1:]
        return [(text, count) for text, count in zip(texts, counts.tolist(), strict=True) if count]

    def list_contents(self) -> list[NDArray[Any]]:
        """Return everything that distinguishes rows, as arrays of numbers of shape [n_records]."""
        found: list[NDArray[Any]] = []
        for column in self.columns:
            if isinstance(column, np.ndarray):
                found.append(column)
                continue
            texts, codes = column.texts
            # The last hash is for cells without a text, whose code is -1.
            hashes = np.array([*(crc32(str(text).encode()) for text in texts), 0], dtype=np.uint64)
            found += [column.kinds, hashes[codes]]
        return [self.own(values) for values in found]

    def digest(self) -> bytes:
        """Return 32 bytes that differ if the rows differ; they never leave the site."""
        hasher = hashlib.sha256(self.n_all.to_bytes(8, "big"))
        parts = [b"" if self.rows is None else self.rows.tobytes()]
        for column in self.columns:
            if isinstance(column, np.ndarray):
                parts.append(np.asarray(column, dtype=np.float64).tobytes())
                continue
            parts += [column.kinds.tobytes(), np.asarray(column.numbers, dtype=np.float64).tobytes()]
            if not np.isin(column.kinds, (NUMBER, ABSENT)).all():
                texts, codes = column.texts
                parts += [repr(texts).encode(), codes.tobytes()]
        for part in parts:
            hasher.update(len(part).to_bytes(8, "big"))
            hasher.update(part)
        return hasher.digest()


@dataclass(frozen=True, kw_only=True, eq=False)
class SurveyQuery(Query, ABC):
    """A question about raw cells; a record's contribution is counted in `UNIT`."""

    @abstractmethod
    def norm_squared(self) -> int:
        """Return the largest squared norm of one record's contribution, in squared integer units."""

    def largest_entry(self) -> int:
        """Return the largest amount that one record adds to one entry, in integer units."""
        return UNIT

    @abstractmethod
    def expected_length(self) -> int:
        """Return the number of entries of an answer, by the query's other numbers."""

    @abstractmethod
    def totals(self, released: Reals) -> Reals:
        """Return sums of entries such that one record adds at most one `largest_entry` to each sum."""

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        """Yield a fault if a count is below zero or a total is larger than the rows allow."""
        totals = self.totals(released)
        per_total = -(-self.length // len(totals))
        if released.min() < -facts.reach(1):
            yield "a count is below zero"
        if totals.max() > facts.n_rows * UNIT + facts.reach(per_total):
            yield "a total is larger than the rows allow"


class OneCount(SurveyQuery):
    """Counts to one of which a record adds `UNIT`, or nothing."""

    def norm_squared(self) -> int:
        return UNIT * UNIT

    def totals(self, released: Reals) -> Reals:
        return np.asarray(released.sum(keepdims=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordCount(OneCount):
    """The number of records: int64 [1]. A record adds `UNIT`."""

    def answer(self, site: RawSite) -> IntVector:
        return np.array([site.n_records * UNIT], dtype=np.int64)

    def expected_length(self) -> int:
        return 1


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnCounts(SurveyQuery):
    """Counts of each column, to one of which a record adds `UNIT`, or nothing: int64 [n_columns n_cells].

    Attributes:
        columns: their indices in `RawSite.columns`.
        n_cells: of each column.
    """

    columns: tuple[int, ...]
    n_cells: ClassVar[int]

    def norm_squared(self) -> int:
        return len(self.columns) * UNIT * UNIT

    def expected_length(self) -> int:
        return len(self.columns) * self.n_cells

    def totals(self, released: Reals) -> Reals:
        return np.asarray(released.reshape(len(self.columns), -1).sum(axis=1))


@dataclass(frozen=True, kw_only=True, eq=False)
class KindCounts(ColumnCounts):
    """Per column the cells of each kind, `NUMBER` to `ABSENT`: int64 [n_columns N_KINDS].

    In each column a record adds `UNIT` to exactly one of them: a squared norm of exactly n_columns UNIT**2.
    """

    n_cells = N_KINDS

    def answer(self, site: RawSite) -> IntVector:
        kinds = [site.own(site.cells(index).kinds) for index in self.columns]
        return np.concatenate([np.bincount(cells, minlength=N_KINDS) * UNIT for cells in kinds]).astype(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class OctaveCounts(ColumnCounts):
    """Per column the records in each signed octave, then those of no whole number: int64 [n_columns (N_OCTAVES + 1)].

    In each column a record adds `UNIT` to one octave, and `UNIT / 2` if its cell is not whole; nothing if it is
    missing. So its squared norm is at most 5/4 UNIT**2 per column.
    """

    n_cells = N_OCTAVES + 1

    def answer(self, site: RawSite) -> IntVector:
        parts = []
        for index in self.columns:
            cells = site.column(index)
            parts.append(np.bincount(find_octaves(cells), minlength=N_OCTAVES) * UNIT)
            parts.append(np.array([np.count_nonzero(cells != np.floor(cells)) * HALF_UNIT]))
        return np.concatenate(parts).astype(np.int64)

    def norm_squared(self) -> int:
        return len(self.columns) * (UNIT * UNIT + HALF_UNIT * HALF_UNIT)

    def totals(self, released: Reals) -> Reals:
        return np.asarray(released.reshape(len(self.columns), -1)[:, :N_OCTAVES].sum(axis=1))


@dataclass(frozen=True, kw_only=True, eq=False)
class ZoomCounts(ColumnCounts):
    """Per column the records in each of 128 even bins between two released bounds: int64 [n_columns N_ZOOM].

    In each column a record adds `UNIT` to one bin, or nothing where its cell is outside the bounds or missing.

    Attributes:
        ranges: (low, high) of each column, low < high, both finite.
    """

    n_cells = N_ZOOM
    ranges: tuple[tuple[float, float], ...]

    def answer(self, site: RawSite) -> IntVector:
        parts = []
        for index, (low, high) in zip(self.columns, self.ranges, strict=True):
            cells = site.column(index)
            inside = cells[(cells >= low) & (cells < high)]
            # IEEE 754 defines the rounding of each operation, so a cell has the same bin on every machine.
            bins = np.minimum(((inside - low) / (high - low) * N_ZOOM).astype(np.int64), N_ZOOM - 1)
            parts.append(np.bincount(bins, minlength=N_ZOOM) * UNIT)
        return np.concatenate(parts).astype(np.int64)

    def left_open(self) -> bytes:
        """Return the ranges as bytes: they come from noise and floating-point arithmetic on it."""
        return np.array(self.ranges, dtype="<f8").tobytes()


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueCounts(OneCount):
    """The records with each whole number from -128 to 1023 in one column: int64 [N_VALUES].

    A record adds `UNIT` to one of them, or nothing where its cell is another number or missing.

    Attributes:
        column: its index in `RawSite.columns`.
    """

    column: int

    def answer(self, site: RawSite) -> IntVector:
        cells = site.column(self.column)
        listed = cells[(cells >= LOWEST_VALUE) & (cells <= HIGHEST_VALUE) & (cells == np.floor(cells))]
        counts = np.bincount(listed.astype(np.int64) - LOWEST_VALUE, minlength=N_VALUES)
        return np.asarray(counts * UNIT, dtype=np.int64)

    def expected_length(self) -> int:
        return N_VALUES


@dataclass(frozen=True, kw_only=True, eq=False)
class NameVotes(SurveyQuery):
    """Votes on the bits of the label's texts, by public bucket of the text: int64 [N_BUCKETS N_BITS].

    A record votes in the one bucket of its text, on the bits of the text's UTF-8 bytes and of the zero byte that ends
    it: it adds a vote to each bit that is 1 and subtracts one from each bit that is 0. It adds nothing to later bytes.
    A vote is `UNIT` for N_BITS bits, and larger for fewer bits, so that the squared norm stays at most N_BITS UNIT**2.
    A text beyond N_BYTES, or none, adds nothing. If one text has most of a bucket, the signs of the sums spell it,
    whatever the text is: the names come from the sums, and no list of names is ever looked up in the data.
    """

    def answer(self, site: RawSite) -> IntVector:
        votes = np.zeros((N_BUCKETS, N_BITS), dtype=np.int64)
        for text, count in site.text_counts(-1):
            own = encode_votes(text)
            if own is not None:
                votes[hash_label(text)] += own * count
        return votes.ravel()

    def norm_squared(self) -> int:
        """Return the largest squared norm; texts of N_BYTES bytes, or one less, attain it exactly."""
        return N_BITS * UNIT * UNIT

    def largest_entry(self) -> int:
        """Return the votes of a text of one byte, which are the largest."""
        return _vote(1)

    def expected_length(self) -> int:
        return N_BUCKETS * N_BITS

    def totals(self, released: Reals) -> Reals:
        """Return the largest absolute vote: a vote may be negative."""
        return np.asarray(np.abs(released).max(keepdims=True))

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        """Yield a fault if a vote of either sign is larger than the rows allow."""
        if self.totals(released).max() > facts.n_rows * self.largest_entry() + facts.reach(1):
            yield "a vote is larger than the rows allow"


def find_octaves(cells: Reals) -> NDArray[np.int64]:
    """Return the signed octave of each number: int64 [n], 0 to N_OCTAVES - 1.

    Infinities are in the highest octaves.

    Args:
        cells: float64 [n], none of them NaN.
    """
    exponents = np.frexp(cells)[1].astype(np.int64) - 1
    exponents = np.where(np.isinf(cells), HIGHEST_OCTAVE, np.clip(exponents, LOWEST_OCTAVE, HIGHEST_OCTAVE))
    return np.asarray(ZERO + np.sign(cells) * (exponents - LOWEST_OCTAVE + 1), dtype=np.int64)


def hash_label(text: str) -> int:
    """Return the public bucket of a label's text: 0 to N_BUCKETS - 1."""
    return int.from_bytes(hashlib.sha256(_NAME_DOMAIN + _encode(text)).digest()[:8], "big") % N_BUCKETS


def encode_votes(text: str) -> NDArray[np.int64] | None:
    """Return the votes of a record with this text in its bucket: int64 [N_BITS].

    The result is None for a text that is too long, or empty.
    """
    content = _encode(text)
    if not 0 < len(content) <= N_BYTES:
        return None
    bits = np.unpackbits(np.frombuffer(content.ljust(N_BYTES, b"\0"), dtype=np.uint8)).astype(np.int64)
    votes = (2 * bits - 1) * _vote(len(content))
    votes[_n_voted(len(content)) :] = 0
    return np.asarray(votes)


def _n_voted(n_bytes: int) -> int:
    """Return the number of bits that a text of `n_bytes` votes on.

    They include the zero byte that ends the text, if there is room for it.
    """
    return min(8 * (n_bytes + 1), N_BITS)


def _vote(n_bytes: int) -> int:
    """Return the vote on each bit of a text of `n_bytes`, in integer units.

    It is rounded down, so that the norm never exceeds its bound.
    """
    return math.isqrt(N_BITS * UNIT * UNIT // _n_voted(n_bytes))


def spelt(votes: Reals) -> tuple[str, float] | None:
    """Return the text that votes spell, up to the first zero byte, and its votes' mean strength.

    Args:
        votes: float64 [N_BITS], the votes of one bucket.

    Returns:
        None if they spell no text that can be shown as it is.
    """
    content = np.packbits(votes > 0).tobytes().split(b"\0", 1)[0]
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    if not (text and text.isprintable() and text == text.strip()):
        return None
    return text, elementary.mean(np.abs(votes[: _n_voted(len(content))]))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")


# Cells of a table -----------------------------------------------------------------------------------------------------
# Queries about all columns of a table at once, numbers and texts alike: what `hedgerow.survey.statistics` asks.
#
#     query       a record adds                                                     squared norm, in units
#     TextVotes   per column votes for or against each bit of its text              128 per column
#     CellCounts  per column one to one public bin of its cell                      1 per column
#     JointCounts per column one to one public bin of its cell and its label's      1 per column
#
# A cell's bin depends on that cell (and, in JointCounts, on the same record's label) alone, so the norms are exact. One
# record more changes the answer by that record's own contribution. docs/proofs/queries.md, section "Statistics before
# training".

Places = NDArray[np.intp]


@dataclass(frozen=True)
class NumberBins:
    """Bins between public edges, ascending.

    Bin 0 is below the first edge, the last bin starts at the last edge.
    """

    edges: tuple[float, ...]

    @property
    def n_bins(self) -> int:
        return len(self.edges) + 1

    def places(self, site: RawSite, index: int) -> Places:
        """Return the bin of each cell of a column: intp [n], -1 for a cell without a number."""
        numbers = site.numbers(index)
        places = np.searchsorted(np.array(self.edges), numbers, side="right")
        return np.asarray(np.where(np.isnan(numbers), -1, places), dtype=np.intp)


@dataclass(frozen=True)
class TextBins:
    """One bin for each public category, then `n_others` bins for all other texts, by a public hash.

    With 0 others, such texts have no bin.
    """

    categories: tuple[str, ...]
    n_others: int = 1

    @property
    def n_bins(self) -> int:
        return len(self.categories) + self.n_others

    def places(self, site: RawSite, index: int) -> Places:
        """Return the bin of each cell of a column: intp [n], -1 for a missing cell, or one without a bin."""
        texts, codes = site.cells(index).texts
        place_of = {text: place for place, text in enumerate(self.categories)}
        n_listed, n_others = len(self.categories), self.n_others
        others = [n_listed + hash_label(text) % n_others if n_others else -1 for text in texts]
        table = [place_of.get(text, other) for text, other in zip(texts, others, strict=True)]
        return np.asarray(np.array([*table, -1], dtype=np.intp)[site.own(codes)])


Bins = NumberBins | TextBins
Kind = TypeVar("Kind", bound=SurveyQuery)


@dataclass(frozen=True, kw_only=True, eq=False)
class TextVotes(NameVotes):
    """`NameVotes` of several columns, one after the other: int64 [n_columns N_BUCKETS N_BITS].

    In each column a record votes in one bucket, or adds nothing where its text is missing or beyond N_BYTES: a squared
    norm of at most n_columns N_BITS UNIT**2, which texts of N_BYTES have.

    Attributes:
        columns: their indices in `RawSite.columns`.
    """

    columns: tuple[int, ...]

    def answer(self, site: RawSite) -> IntVector:
        votes = np.zeros((len(self.columns), N_BUCKETS, N_BITS), dtype=np.int64)
        for column_votes, index in zip(votes, self.columns, strict=True):
            for text, count in site.text_counts(index):
                votes_of_one = encode_votes(text)
                if votes_of_one is not None:
                    column_votes[hash_label(text)] += votes_of_one * count
        return votes.ravel()

    def norm_squared(self) -> int:
        return len(self.columns) * N_BITS * UNIT * UNIT

    def expected_length(self) -> int:
        return len(self.columns) * N_BUCKETS * N_BITS


@dataclass(frozen=True, kw_only=True, eq=False)
class CellCounts(ColumnCounts):
    """Per column the cells in each of its bins: int64 [all bins of all columns].

    In each column a record adds `UNIT` to one bin, or nothing where no bin is for its cell: a squared norm of at most
    n_columns UNIT**2, which a record without missing cells has.

    Attributes:
        bins: of each column.
    """

    bins: tuple[Bins, ...]

    @property
    def n_labels(self) -> int:
        """Number of counts of each bin."""
        return 1

    def answer(self, site: RawSite) -> IntVector:
        parts = []
        for index, bins in zip(self.columns, self.bins, strict=True):
            places = bins.places(site, index)
            parts.append(np.bincount(places[places >= 0], minlength=bins.n_bins) * UNIT)
        return np.concatenate(parts).astype(np.int64)

    def expected_length(self) -> int:
        return sum(bins.n_bins for bins in self.bins) * self.n_labels

    def left_open(self) -> bytes:
        """Return the edges as bytes: they come from noise and floating-point arithmetic on it."""
        edges = [edge for bins in self.bins if isinstance(bins, NumberBins) for edge in bins.edges]
        return np.array(edges, dtype="<f8").tobytes()

    def by_column(self, counts: Reals) -> list[Reals]:
        """Split counts by column: float64 [n_bins, n_labels] each."""
        ends = np.cumsum([bins.n_bins * self.n_labels for bins in self.bins])
        return [table.reshape(-1, self.n_labels) for table in np.split(counts, ends[:-1])]

    def totals(self, released: Reals) -> Reals:
        return np.array([table.sum() for table in self.by_column(released)])


@dataclass(frozen=True, kw_only=True, eq=False)
class JointCounts(CellCounts):
    """`CellCounts`, each bin by class of the label: int64 [all bins of all columns, n_classes], flat.

    In each column a record adds `UNIT` to its bin and its class, or nothing where either is missing: a squared norm of
    at most n_columns UNIT**2.

    Attributes:
        label: the label's index in `RawSite.columns`.
        classes: the bins of the label, without others.
    """

    label: int
    classes: TextBins

    @property
    def n_labels(self) -> int:
        return self.classes.n_bins

    def answer(self, site: RawSite) -> IntVector:
        labels, parts = self.classes.places(site, self.label), []
        for index, bins in zip(self.columns, self.bins, strict=True):
            places = bins.places(site, index)
            both = (places * self.n_labels + labels)[(places >= 0) & (labels >= 0)]
            parts.append(np.bincount(both, minlength=bins.n_bins * self.n_labels) * UNIT)
        return np.concatenate(parts).astype(np.int64)


# Numbers of a query ---------------------------------------------------------------------------------------------------

_NO_PURPOSE = Purpose(0, "", "")


def blank(kind: type[Kind], **about: Any) -> Kind:
    """Return a query of a kind, before its numbers are filled in."""
    blank: dict[str, Any] = {
        "purpose": _NO_PURPOSE, "length": 0, "bound": UNIT, "sensitivity_squared": 1, "noise_multiplier": 0.0,
    }  # fmt: skip
    return kind(**blank, **about)


def noise_deviation(query: SurveyQuery) -> float:
    """Return the standard deviation of the noise of one count, in records."""
    if not query.noise_multiplier:
        return 0.0
    return integer_sigma(query.noise_multiplier, query.sensitivity_squared) / UNIT


def in_records(released: Sequence[int] | NDArray[np.int64]) -> Reals:
    """Convert a release to records: float64."""
    return np.asarray(released, dtype=np.float64) / UNIT


# A site ---------------------------------------------------------------------------------------------------------------
# It answers questions about its raw cells, and computes each query's sensitivity itself.


class SurveyNode:
    """A site that answers survey queries only.

    Args:
        rows: its raw rows, at most `max_rows_per_unit` of each unit.
        rows_per_unit: most rows of one unit in a sum over all sites.
    """

    def __init__(self, site: str, rows: RawSite, rows_per_unit: int = 1) -> None:
        self.site = site
        self._rows = rows
        self._rows_per_unit = rows_per_unit

    n_worse = 0

    def answer(self, query: Query) -> IntVector:
        """Return the site's vector for a query: int64 [query.length].

        Raises:
            RemoteProtocolError: for a query of another kind, or one that claims less sensitivity than one unit's
                contribution has, or another length than its answer.
        """
        return self.sum_rows(query)

    def sum_rows(self, query: Query) -> IntVector:
        """Return the sums of a query, as `answer` does: nothing is drawn here."""
        if not isinstance(query, SurveyQuery) or isinstance(query, SiteQuery):
            raise refuse_query(f"a {type(query).__name__} query has no place in a survey")
        least = query.norm_squared() * self._rows_per_unit**2
        if query.bound < query.largest_entry() or query.sensitivity_squared < least:
            raise refuse_query("it claims a smaller sensitivity than one unit's contribution has")
        if query.length != query.expected_length():
            raise refuse_query("its answer has another length than it says")
        return query.answer(self._rows)

    def finish(self, query: Query) -> None:
        """Accept a round that this node missed; raw cells do not change."""
