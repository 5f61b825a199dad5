# SPDX-License-Identifier: Apache-2.0
"""Check how a site's table fits a plan, column by column: for the owner of the rows, and no one else.

All counts are of private rows, without noise. They are shown where the rows are, and sent nowhere.

No list of words guesses the meaning of a text: a coding that is half reversed is worse than none. A `[data]` line is
proposed only if the plan's own words, or those of a code book, explain every text of a column one to one. Everything
else is a question, with the texts that are not read.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hedgerow.data import columns as encoders
from hedgerow.data import units
from hedgerow.data.cells import CellCounts, explain_column
from hedgerow.data.columns import Place
from hedgerow.data.hashing import hash_texts
from hedgerow.data.omop import compile_counts, compile_known, describe_lacks, find_dialect
from hedgerow.data.sources import AdaptedLocation, Location, find_place, open_table
from hedgerow.errors import DataError
from hedgerow.plan.draft import Entry
from hedgerow.plan.names import looks_like_identifier
from hedgerow.plan.plan import FOUND, Feature, Plan
from hedgerow.plan.toml import toml_key, toml_value
from hedgerow.trees.binning import MISSING_CATEGORY, UNKNOWN_CATEGORY

_SAMPLED_ROWS = 10_000
"""Rows of a column in which all values differ if it is an identifier."""
_MIN_POINTS = 20
"""Different numbers from which on points may be marks of thousands, if each has three digits after its point."""
_MAX_TEXTS = 1_000
"""Distinct odd texts of a column that are counted one by one."""
_CHUNK_ROWS = 65536


@dataclass
class ColumnFit:
    """The way in which the plan reads one column.

    Attributes:
        name: its name.
        role: "feature", "label" or "unit".
        kind: "numeric", "date", "categorical", "hashed" or "identifier".
        n_rows: cells.
        n_missing: without a value.
        n_below, n_above: numbers beyond the bounds, which count as the bound.
        n_unlisted: texts that the plan does not list.
        n_unreadable: cells that are no number or no text as the plan expects; their rows are left out.
        n_undecodable: of these, cells that are not in the table's encoding.
        is_found: whether noise has found its bounds or list.
        is_constant: whether all values look the same to the model, missing cells aside.
        looks_like_id: whether its name is an identifier's, or its first values all differ as an identifier's do.
        unlisted: texts that the plan does not list, with their counts; at most 1,000.
        unread: the texts of cells that cannot be read, with their counts.
        coding: questions about the coding of its cells; "" for none.
    """

    name: str
    role: str
    kind: str
    n_rows: int = 0
    n_missing: int = 0
    n_below: int = 0
    n_above: int = 0
    n_unlisted: int = 0
    n_unreadable: int = 0
    n_undecodable: int = 0
    is_found: bool = False
    is_constant: bool = True
    looks_like_id: bool = False
    unlisted: dict[str, int] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    coding: str = ""

    @property
    def clamped(self) -> float:
        """The share of its cells that counts as a bound."""
        return (self.n_below + self.n_above) / max(self.n_rows, 1)

    @property
    def not_listed(self) -> float:
        """The share of its cells that the plan does not list."""
        return self.n_unlisted / max(self.n_rows, 1)

    @property
    def beyond(self) -> float:
        """The share of its cells that is clamped or not listed."""
        return self.clamped + self.not_listed

    @property
    def counts(self) -> CellCounts:
        """The counts of its cells, by how the plan reads them."""
        n_unread = self.n_unreadable - self.n_undecodable
        return CellCounts(
            self.n_rows, self.n_missing, self.n_below, self.n_above, self.n_unlisted, n_unread, self.n_undecodable
        )

    def findings(self) -> list[str]:
        """List in words what the owner should look at."""
        said = explain_column(self.name, self.counts, is_found=self.is_found)
        if self.role == "label" and self.n_unlisted:
            said.append("rows of no listed class are left out")
        if self.n_unreadable:
            said.append("rows with cells that cannot be read are left out")
        if self.n_unreadable and self.kind == "date":
            layout = f'date.{toml_key(self.name)} = "%d.%m.%Y" under [data], or as they are written (docs/data.md)'
            said.append(f"dates written otherwise? If so: {layout}")
        if self.role == "label" and self.n_missing:
            said.append("rows without a label are left out")
        if self.role != "unit" and self.is_constant and self.n_missing + self.n_unreadable < self.n_rows:
            said.append("one value only: the model cannot use this column at this site")
        if self.coding:
            said.append(self.coding)
        if self.role == "feature" and self.looks_like_id:
            said.append("looks like an identifier: leave it out, or make it privacy.unit")
        return said


@dataclass(frozen=True)
class TableFit:
    """The way in which the plan reads a table.

    Attributes:
        rows: how many of its rows are used.
        columns: the columns that the plan names: features, label, unit.
        ignored: names of the other columns.
        about: what its owner should look at in the table as a whole, each with a title.
        suggested_lines: the lines of a `[data]` table (`hedgerow.data.adapters`) by which the words of plan or code
            book explain all texts of a column.
    """

    rows: units.RowCount
    columns: list[ColumnFit]
    ignored: list[str]
    about: list[tuple[str, str]] = field(default_factory=list)
    suggested_lines: list[str] = field(default_factory=list)

    def findings(self) -> list[tuple[str, str]]:
        """List in words what the owner should look at, the table as a whole first."""
        own = [(column.name, "; ".join(column.findings())) for column in self.columns]
        return [*self.about, *((name, said) for name, said in own if said)]


def table_fit(
    location: Location, plan: Plan, *, chunk_rows: int = _CHUNK_ROWS, book: Mapping[str, Entry] | None = None
) -> TableFit:
    """Read a table once, in bounded memory, and count how the plan reads it.

    Args:
        book: a code book, whose words say what the plan's codes mean.

    Raises:
        DataError: the table cannot be read, or lacks a column.
    """
    names, left_out, n_fit = units.list_needed_columns(plan), units.RowsLeftOut(), 0
    of_units = [np.empty(0, dtype=np.uint64)]
    counts_of_codes = np.zeros(plan.label.n_codes, dtype=np.intp)
    table = open_table(location, plan)
    counts, place = [_Counted(name, plan) for name in names], find_place(table)
    for batch in table.batches(names, chunk_rows, left_out):
        for count, column in zip(counts, batch, strict=True):
            count.add(column, place)
        own = units.RowsLeftOut()
        try:
            fitting = units.records_from_columns(dict(zip(names, batch, strict=True)), plan, table=place, left_out=own)
            n_fit += fitting.n_records
            if fitting.unit is not None:
                of_units.append(hash_texts(fitting.unit, np.uint64(0)))
            if fitting.label is not None and len(counts_of_codes):
                counts_of_codes += np.bincount(fitting.label.astype(np.intp), minlength=plan.label.n_codes)
        except DataError as fault:  # a type that no cell of it fits
            own = {fault.code: len(batch[0])}
        for code, n_rows in own.items():
            units.count_left_out(left_out, code, n_rows)
    about, lines = list[tuple[str, str]](), list[str]()
    if doubt := plan.label.kind.doubt(counts_of_codes, plan.label):
        about = [(plan.label.name, doubt), *about]
    # One column's name may be one of its values ("dead" of `dead`), but several at once are a repeated header.
    has_headers = sum(count.found.name in map(str.strip, count.odd) for count in counts) > 1
    columns = [count.finish(has_headers) for count in counts]
    kept = dict(location.adapter.recode) if isinstance(location, AdaptedLocation) else {}
    for count in counts:
        name = count.found.name
        if pairs := count.explain((book or {}).get(name, Entry()).labels):
            lines.append(f"recode.{toml_key(name)} = {toml_value({**dict(kept.get(name, ())), **pairs})}")
    ignored = [name for name in table.names() if name and name not in names]
    _, n_of_unit = np.unique(np.concatenate(of_units), return_counts=True)
    n_beyond = int(np.maximum(n_of_unit - plan.privacy.max_rows_per_unit, 0).sum())
    rows = units.RowCount(n_fit, left_out, getattr(table, "lines", None)).bound(n_fit - n_beyond)
    about = [*explain_lines(len(table.names()), rows), *_list_lacks(location, plan, rows.n_rows), *about]
    return TableFit(rows, columns, ignored, about, lines)


def _list_lacks(location: Location, plan: Plan, n_rows: int) -> Iterator[tuple[str, str]]:
    """List the OMOP concepts and records that the database does not have but the plan asks for."""
    url = os.fspath(location).partition("#")[0]
    if plan.omop is None or not find_dialect(url):
        return

    def ask(query: str, column: str) -> list[int]:
        batches = open_table(f"{url}#{query}").batches([column], _CHUNK_ROWS, {})
        return [int(cell) for (cells,) in batches for cell in np.asarray(cells)]

    known: list[int] | None = None
    with suppress(DataError):  # Some databases have the persons without the vocabulary.
        known = ask(compile_known(plan.omop), "concept_id")
    counts = ask(compile_counts(plan.omop, find_dialect(url)), "records")
    yield from describe_lacks(plan.omop, counts, n_rows, known)


def find_item(name: str, plan: Plan) -> Feature | None:
    """Return the feature, or the label as a feature, of this name; None for the unit."""
    for column in plan.label.kind.columns(plan.label):
        if column.name == name:
            low, high = column.bounds or (None, None)
            kind = "categorical" if column.words else "numeric"
            return Feature(name=name, type=kind, categories=column.words, min=low, max=high)
    return next((feature for feature in plan.features if feature.name == name), None)


class _Cells(NamedTuple):
    """The cells of one column as the plan reads them.

    Attributes:
        values: [n] numbers, indices in the list, buckets, or identifiers.
        is_missing, is_unlisted, is_unreadable: bool [n].
        n_undecodable: that are not in the table's encoding.
    """

    values: NDArray[Any]
    is_missing: NDArray[np.bool_]
    is_unlisted: NDArray[np.bool_]
    is_unreadable: NDArray[np.bool_]
    n_undecodable: int = 0

    @property
    def is_read(self) -> NDArray[np.bool_]:
        return ~(self.is_unlisted | self.is_unreadable)


def read_cells(column: Any, item: Feature | None, place: Place) -> _Cells:
    """Read the cells of a column as training does."""
    none = np.zeros(len(column), dtype=np.bool_)
    try:
        read = encoders.identifiers(column, place) if item is None else units.read_feature(column, item, place)
    except DataError:  # a type that no cell of it fits
        return _Cells(np.zeros(len(column)), none, none, ~none)
    values, bad, undecodable = read.values, read.is_unfit, read.is_undecodable
    if item is None:
        missing, unlisted = bad & ~undecodable, none
    else:
        is_absent = values == MISSING_CATEGORY if item.is_categorical else np.isnan(values)
        missing, unlisted = is_absent & ~bad, (values == UNKNOWN_CATEGORY) & ~bad & item.is_categorical
    return _Cells(values, missing, unlisted, bad & ~missing, int(np.count_nonzero(undecodable)))


class _Counted:
    """One column while its chunks are counted."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.item = item = find_item(name, plan)
        role = "label" if name in plan.label.columns else "feature"
        self.found = ColumnFit(name, "unit", "identifier") if item is None else ColumnFit(name, role, item.type)
        self.listed = () if item is None else item.categories
        self.found.is_found = (plan.label if role == "label" else item or plan.label).origin == FOUND
        self.used = Counter[int]()
        # shows_points: a point in the first cells is no mark of thousands. has_points_only: all points may be such
        # marks.
        self.shows_points = self.has_points_only = False
        self._spellings = dict[str, set[str]]()
        self._only: float | None = None
        self._watched: set[str] | None = set()
        self._n_watched = 0
        self._beyond = Counter[float]()
        self._n_texts = self._n_with_digits = 0

    @property
    def odd(self) -> dict[str, int]:
        """Texts that cannot be read or are not listed, with their counts."""
        return self.found.unread | self.found.unlisted

    def add(self, column: Any, table: Place) -> None:
        """Count one chunk."""
        place, found = replace(table, column=self.found.name), self.found
        found.n_rows += len(column)
        self._watch(column, place)
        cells = read_cells(column, self.item, place)
        found.n_undecodable += cells.n_undecodable
        found.n_missing += int(np.count_nonzero(cells.is_missing))
        found.n_unlisted += int(np.count_nonzero(cells.is_unlisted))
        found.n_unreadable += int(np.count_nonzero(cells.is_unreadable))
        if self.item is None:
            return
        there = cells.values[~cells.is_missing & ~cells.is_unreadable]
        _count_texts(column, cells.is_unlisted, place, found.unlisted)
        _count_texts(column, cells.is_unreadable, place, found.unread)
        if found.kind == "hashed":
            texts, codes = encoders.encode_texts(column, place)
            begins = np.array([*(text[:1].isdecimal() for text in texts), False], dtype=np.bool_)
            self._n_with_digits += int(np.count_nonzero(begins[codes]))
            self._n_texts += int(np.count_nonzero(codes >= 0))
        if found.kind in ("categorical", "hashed"):
            self.used.update(there[there >= 0].tolist())
        elif cells.is_read.any():
            low, high = self.item.min or 0.0, self.item.max or 0.0
            found.n_below += int(np.count_nonzero(there < low))
            found.n_above += int(np.count_nonzero(there > high))
            beyond = there[(there < low) | (there > high)]
            if len(self._beyond) < _MAX_TEXTS:
                self._beyond.update(beyond[:_MAX_TEXTS].tolist())
            there = np.clip(there, low, high)
        self._compare(there.astype(np.float64))

    def finish(self, has_headers: bool) -> ColumnFit:
        """Return the counts with the questions about the column's coding; `has_headers`: rows repeat the header."""
        found = self.found
        all_differ = self._watched is not None and self._n_watched > 50 and found.kind != "identifier"
        found.looks_like_id = looks_like_identifier(found.name) or all_differ
        found.coding = "; ".join(filter(None, [found.coding, *self._list_questions(has_headers)]))
        return found

    def _list_questions(self, has_headers: bool) -> Iterator[str]:
        """Yield questions about the cells that only a person can answer."""
        name, odd = self.found.name, self.odd
        if has_headers and name in map(str.strip, odd):
            yield "the header stands among the rows again, which are left out"
        least = max(2.0, _MIN_CODE * self._beyond.total())
        codes = [f"{value:g}" for value, count in sorted(self._beyond.items()) if count >= least]
        if codes and self.found.kind == "numeric":
            yield f"codes for missing values? If so: missing.{toml_key(name)} = [{', '.join(codes)}]"
        if self._n_texts:
            share = self._n_with_digits / self._n_texts
            yield f"read as text, which has no order; {share:.0%} of the cells begin with a digit"
        if self.found.role == "label" and (two := self._ask_about_codes()):
            yield two
        marks = any(_THOUSANDS.fullmatch(text) or _DECIMAL_COMMA.fullmatch(text) for text in odd)
        if self.found.kind == "numeric" and (marks or self.has_points_only):
            yield (
                "marks within numbers: thousands or decimals? Marks of thousands are not read: export the numbers "
                "without them. A decimal mark is declared behind the file's name, as #decimal=comma (docs/data.md)"
            )
        if self.found.kind == "numeric":
            yield from self._ask_about_spellings()

    def _ask_about_spellings(self) -> Iterator[str]:
        """Yield questions about values that are written in several ways: probably codes, not numbers."""
        several = sorted((sorted(texts) for texts in self._spellings.values() if len(texts) > 1), key=str)
        if several:
            said = " and ".join(map(repr, several[0][:3]))
            yield (
                f"{len(several):,} numbers are written in several ways, as {said}, and each is one value. If these are "
                "codes, declare the column as categorical, whose texts are compared as they are written"
            )
        if any(abs(int(text)) > _MAX_EXACT for texts in self._spellings.values() for text in texts if _is_long(text)):
            yield (
                "whole numbers beyond 2^53, of which those that differ in the last digits are one value. If these are "
                "codes, declare the column as categorical"
            )

    def explain(self, labels: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
        """Map all unread texts of this column to the plan's words by `explain_texts`; {} if that fails."""
        if self.item is None or not self.listed or not self.odd or len(self.odd) >= _MAX_TEXTS:
            return {}
        used = {self.listed[index] for index in self.used}
        return explain_texts({*self.odd, *used}, self.listed, labels)

    def _ask_about_codes(self) -> str:
        """Return the question about a label that is coded 1 and -1, or 1 and 2, for the plan's 0 and 1.

        It is "" for any other coding.
        """
        listed, odd, n_odd = self.listed, self.found.unlisted, sum(self.found.unlisted.values())
        code = max(odd, key=odd.__getitem__, default="")
        # Of an event's words, 0 and 1 are one way to write it.
        n_others = sum(count for index, count in self.used.items() if listed[index] != "1")
        is_one = {"0", "1"} <= set(listed) and odd.get(code, 0) >= _MOST * n_odd and n_others <= (1 - _MOST) * n_odd
        code = code.removesuffix(".0")
        if not is_one or code not in ("-1", "2"):
            return ""
        low, high = sorted(("1", code))
        pairs = '{-1 = "0"}' if low == "-1" else '{1 = "0", 2 = "1"}'
        return (
            f"coded {low} and {high} where the plan has 0 and 1: which of them is the event? If {high} is: "
            f"recode.{toml_key(self.found.name)} = {pairs} here, or classes or event_codes = [{low}, {high}] in "
            "the plan"
        )

    def _compare(self, values: NDArray[np.float64]) -> None:
        if not len(values) or not self.found.is_constant:
            return
        self._only = float(values[0]) if self._only is None else self._only
        self.found.is_constant = bool((values == self._only).all())

    def _watch(self, column: Any, place: Place) -> None:
        """Note whether the first values all differ.

        Of numbers only whole ones count, because fractions differ anyway.
        """
        if self._watched is None or self._n_watched >= _SAMPLED_ROWS:
            return
        first = column[:_SAMPLED_ROWS] if isinstance(column, list) else column.slice(0, _SAMPLED_ROWS)
        try:
            texts = [text for text in encoders.read_texts(first, place) if text is not None]
        except DataError:
            self._watched = None
            return
        distinct = set(texts) if self.found.kind == "numeric" else set()
        for text in distinct:
            plain = text.rstrip("0").rstrip(".") if "." in text else text
            if plain != text or _is_long(text):
                self._spellings.setdefault(plain, set()).update({text, plain} & distinct)
        pointed = {text for text in texts if "." in text}
        self.shows_points |= any(_THOUSANDS.fullmatch(text) is None for text in pointed)
        self.has_points_only = not self.shows_points and (self.has_points_only or len(pointed) >= _MIN_POINTS)
        self._n_watched += len(texts)
        self._watched.update(texts)
        point = "," if place.has_decimal_commas else "."
        has_fractions = any(point in text for text in texts)
        if len(self._watched) < self._n_watched or has_fractions:
            self._watched = None


def _is_long(text: str) -> bool:
    return text.lstrip("+-").isdecimal() and len(text) > len("9007199254740992") - 1


def _count_texts(column: Any, rows: NDArray[np.bool_], place: Place, counts: dict[str, int]) -> None:
    """Count the texts of some cells; only the first 1,000 different ones."""
    if not rows.any():
        return
    at = np.flatnonzero(rows)
    cells = [column[index] for index in at.tolist()] if isinstance(column, list) else column.take(pa.array(at))
    for text in encoders.read_texts(cells, place):
        if text is not None and (text in counts or len(counts) < _MAX_TEXTS):
            counts[text] = counts.get(text, 0) + 1


_MOST = 0.9
"""The least share of odd cells that one explanation has to fit."""
_SHOWN_TEXTS = 20
_MIN_CODE = 0.1
"""Smallest share of the numbers beyond the bounds that one number must have to be taken for a code."""
_MAX_EXACT = 2**53
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}([.,'\u2019 \u00a0\u2009\u202f][0-9]{3})+([.,][0-9]+)?")
_DECIMAL_COMMA = re.compile("[+-]?[0-9]*,[0-9]+")


def format_counts(counts: Mapping[str, int], n_others: int = 0) -> str:
    """Format texts with their counts: the most frequent 20, then the number of the others.

    Args:
        n_others: cells whose texts were not counted one by one.
    """
    often = sorted(counts, key=lambda text: (-counts[text], text))
    said = ", ".join(f"{text!r} {counts[text]:,}" for text in often[:_SHOWN_TEXTS])
    n_more, n_rest = len(often) - _SHOWN_TEXTS, sum(counts[text] for text in often[_SHOWN_TEXTS:]) + n_others
    more = f"{n_more:,}{' or' if n_others else ''} more" if n_more > 0 else "others"
    return said + (f" and {more} ({n_rest:,} cells)" if n_rest else "")


def explain_lines(n_names: int, rows: units.RowCount) -> Iterator[tuple[str, str]]:
    """Yield the probable reason for rows whose number of fields is not the header's."""
    n_ragged = rows.left_out.get("data-ragged-row", 0)
    if not n_ragged:
        return
    said, lines = "a separator or a quotation mark in a cell that is not quoted", rows.lines
    if n_ragged > _MOST * rows.n_rows and lines is not None and set(lines.n_fields) == {n_names + 1}:
        said = (
            "one field more than the header. Either each row has a name in front, as R writes it: export it without "
            "(row.names = FALSE), or give its column a name in the header. Or each ends with a separator: "
            "take it away, or put one at the header's end"
        )
    elif lines is not None and lines.n_unclosed:
        said += "; a line break in a quoted cell, which a plan has to declare (docs/data.md)"
    yield "rows", f"{n_ragged:,} with another number of fields than the header: {said}"


# Texts that words of plan or code book explain ------------------------------------------------------------------------


def explain_texts(
    texts: Collection[str], words: Sequence[str], labels: Sequence[tuple[str, str]] = ()
) -> dict[str, str]:
    """Map all texts of a column to the plan's words, one to one, without those that are a word already.

    The result is {} if that fails. A text stands for a word if it differs from it, or from its label, in case, spaces,
    quotation marks or hyphens only. If there are as many texts as words, it may also be the beginning of exactly one
    of them: M and F of male and female.

    Args:
        labels: a word, and what it means in other words, by a code book.
    """
    known = [(word, word) for word in words] + [(word, label) for word, label in labels if word in words]
    for may_begin in (False, True):
        pairs = {text: _find_word(text, known, may_begin=may_begin) for text in texts}
        found = set(pairs.values())
        if None not in found and len(found) == len(pairs) and (not may_begin or len(pairs) == len(words)):
            return {text: word for text, word in sorted(pairs.items()) if word is not None and word != text}
    return {}


def _find_word(text: str, known: Sequence[tuple[str, str]], *, may_begin: bool) -> str | None:
    own = _reduce_to_word(text)
    fitting = {word for word, said in known if own and _reduce_to_word(said) == own}
    if not fitting and may_begin and own.isalpha():
        fitting = {word for word, said in known if _reduce_to_word(said).startswith(own)}
    return fitting.pop() if len(fitting) == 1 else None


def _reduce_to_word(text: str) -> str:
    """Remove what does not distinguish texts: case, spaces, quotes, hyphens and points between letters.

    Signs and significant marks stay: -1 is not 1, A- is not A+, 1-5 is not 15.
    """
    plain = re.sub(r"(?<=[^\W\d_])[-.](?=[^\W\d_])|[\s_]", "", text.casefold())
    return plain.strip("\"'").rstrip(".")
