# SPDX-License-Identifier: Apache-2.0
"""How a site's table fits a plan, column by column: for the owner of the rows, and no one else.

Everything here is counted from private rows, without noise. It is shown where the rows are, and sent nowhere.

Last stand the `[data]` lines that would mend a table written in another way: `M` for `male`, "." for no value, another
encoding. Each is tried before it is shown: the table is read with it, more cells have to fit, and none that was read
may become anything else. What could mean two things, such as 1,045, is a question, never a line.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hedgerow.data import columns as encoders
from hedgerow.data import units
from hedgerow.data.adapters import PLAIN, Adapter
from hedgerow.data.columns import Place
from hedgerow.data.omop import compile_counts, compile_known, describe_lacks, find_dialect
from hedgerow.data.sources import AdaptedLocation, Location, adapt, find_place, open_table
from hedgerow.errors import DataError
from hedgerow.losses.survival import EVENT_CODES
from hedgerow.plan.names import looks_like_identifier
from hedgerow.plan.plan import Feature, Plan
from hedgerow.plan.toml import toml_key, toml_value
from hedgerow.trees.binning import MISSING_CATEGORY, UNKNOWN_CATEGORY

_ALL_MISSING = 0.5
_SAMPLED_ROWS = 10_000
"""The first rows of a column, in which an identifier's values all differ."""
_MIN_POINTS = 20
"""Different numbers with a point before three digits, and none with another, that may be thousands."""
_MAX_TEXTS = 1_000
"""Distinct odd texts of a column that are counted apart."""
_CHUNK_ROWS = 65536


@dataclass
class ColumnFit:
    """What the plan makes of one column.

    Attributes:
        name: its name.
        role: "feature", "label" or "unit".
        kind: "numeric", "date", "categorical", "hashed" or "identifier".
        n_rows: cells.
        n_missing: without a value.
        n_below, n_above: numbers beyond the bounds, which count as the bound.
        n_unlisted: texts that the plan does not list.
        n_unreadable: cells that are no number, or no text; their rows are left out.
        is_constant: whether all values that are there are one for the model.
        looks_like_id: whether its name is an identifier's, or its first values all differ as an identifier's do.
        unlisted: texts that the plan does not list, and how often each is there: of 1,000 at most.
        unread: the same of cells that cannot be read.
        coding: what another coding at this site would explain, in words; "" for nothing.
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
        """The share of its cells that is clamped, or not listed."""
        return self.clamped + self.not_listed

    def findings(self) -> list[str]:
        """What its owner should look at, in words."""
        said = []
        if self.clamped > units.MANY:
            said.append("many values beyond the bounds: are these too narrow, or in another unit?")
        if self.not_listed > units.MANY:
            is_label = self.role == "label"
            said.append("many rows of no listed class: they are left out" if is_label else "many values not listed")
        if self.n_unreadable:
            said.append("cells that cannot be read: their rows are left out")
        if self.n_unreadable and self.kind == "date":
            layout = f'date.{toml_key(self.name)} = "%d.%m.%Y" under [data], or as they are written (docs/data.md)'
            said.append(f"dates written otherwise? If so: {layout}")
        if self.role == "label" and self.n_missing:
            said.append("rows without a label are left out")
        elif self.role == "feature" and self.n_rows and self.n_missing / self.n_rows > _ALL_MISSING:
            said.append("almost all values are missing at this site")
        if self.role != "unit" and self.is_constant and self.n_missing + self.n_unreadable < self.n_rows:
            said.append("one value only: the model cannot use this column at this site")
        if self.coding:
            said.append(self.coding)
        if self.role == "feature" and self.looks_like_id:
            said.append("looks like an identifier: leave it out, or make it privacy.unit")
        return said


@dataclass(frozen=True)
class TableFit:
    """What the plan makes of a table.

    Attributes:
        rows: how many of its rows are used, by the ordinary reading.
        columns: those that the plan names: features, label, unit.
        ignored: names of the others.
        about: what its owner should look at in the table as a whole, each with a title.
        suggested_lines: the lines of a `[data]` table (`hedgerow.data.adapters`) with which more cells were read.
    """

    rows: units.RowCount
    columns: list[ColumnFit]
    ignored: list[str]
    about: list[tuple[str, str]] = field(default_factory=list)
    suggested_lines: list[str] = field(default_factory=list)

    def findings(self) -> list[tuple[str, str]]:
        """What its owner should look at, in words, the table as a whole first."""
        own = [(column.name, "; ".join(column.findings())) for column in self.columns]
        return [*self.about, *((name, said) for name, said in own if said)]


def table_fit(location: Location, plan: Plan, *, chunk_rows: int = _CHUNK_ROWS) -> TableFit:
    """Read a table once, in bounded memory, and count what the plan makes of it; again for each thing that may mend it.

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
                of_units.append(units.hash_texts(fitting.unit, np.uint64(0)))
            if fitting.label is not None and len(counts_of_codes):
                counts_of_codes += np.bincount(fitting.label.astype(np.intp), minlength=plan.label.n_codes)
        except DataError as fault:  # a type that no cell of it fits
            own = {fault.code: len(batch[0])}
        for code, n_rows in own.items():
            units.count_left_out(left_out, code, n_rows)
    about, lines = _try_adapters(location, plan, counts)
    if doubt := plan.label.kind.doubt(counts_of_codes, plan.label):
        about = [(plan.label.name, doubt), *about]
    # A word may be one of its column's values, as "dead" of `dead`; of several columns at once it is their header.
    has_headers = sum(count.found.name in map(str.strip, count.odd) for count in counts) > 1
    columns = [count.finish(has_headers) for count in counts]
    ignored = [name for name in table.names() if name and name not in names]
    _, n_of_unit = np.unique(np.concatenate(of_units), return_counts=True)
    n_beyond = int(np.maximum(n_of_unit - plan.privacy.max_rows_per_unit, 0).sum())
    rows = units.RowCount(n_fit, left_out, getattr(table, "lines", None)).bound(n_fit - n_beyond)
    about = [*explain_lines(len(table.names()), rows), *_list_lacks(location, plan, rows.n_rows), *about]
    return TableFit(rows, columns, ignored, about, lines)


def _list_lacks(location: Location, plan: Plan, n_rows: int) -> Iterator[tuple[str, str]]:
    """What the database lacks of the records and concepts that its plan's [omop] asks for."""
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
    """What the plan says of a column, as of a feature; None for the unit."""
    for column in plan.label.kind.columns(plan.label):
        if column.name == name:
            low, high = column.bounds or (None, None)
            kind = "categorical" if column.words else "numeric"
            return Feature(name=name, type=kind, categories=column.words, min=low, max=high)
    return next((feature for feature in plan.features if feature.name == name), None)


class _Cells(NamedTuple):
    """The cells of one column as the plan has them.

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
    """Cells by the ordinary reading."""
    bad, none, undecodable = (np.zeros(len(column), dtype=np.bool_) for _ in range(3))

    def unfit(rows: NDArray[np.bool_], code: str, error_at: Callable[[int], DataError]) -> None:
        bad[rows] = True
        undecodable[rows] |= code == "data-encoding"

    values: NDArray[Any]
    try:
        if item is None:
            values = encoders.identifiers(column, place, unfit)
            missing, unlisted = bad & ~undecodable, none
        else:
            values = units.read_feature(column, item, place, unfit)
            is_absent = values == MISSING_CATEGORY if item.is_categorical else np.isnan(values)
            missing, unlisted = is_absent & ~bad, (values == UNKNOWN_CATEGORY) & ~bad & item.is_categorical
    except DataError:  # a type that no cell of it fits
        return _Cells(np.zeros(len(column)), none, none, ~none)
    return _Cells(values, missing, unlisted, bad & ~missing, int(np.count_nonzero(undecodable)))


class _Counted:
    """One column while its chunks come."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.item = item = find_item(name, plan)
        role = "label" if name in plan.label.columns else "feature"
        self.found = ColumnFit(name, "unit", "identifier") if item is None else ColumnFit(name, role, item.type)
        self.listed = () if item is None else item.categories
        self.n_undecodable = 0
        self.used = Counter[int]()
        # Whether a point in one of the first cells cannot be a mark of thousands, whether all points there may be one,
        # and whether all marks are clear.
        self.shows_points = self.has_points_only = self.is_decided = False
        self._only: float | None = None
        self._watched: set[str] | None = set()
        self._n_watched = 0
        self._sentinels = Counter[float]()

    @property
    def odd(self) -> dict[str, int]:
        """Texts that are not read as the plan has them, and how often each is there."""
        return self.found.unread | self.found.unlisted

    def add(self, column: Any, table: Place) -> None:
        """Count one chunk."""
        place, found = replace(table, column=self.found.name), self.found
        found.n_rows += len(column)
        self._watch(column, place)
        cells = read_cells(column, self.item, place)
        self.n_undecodable += cells.n_undecodable
        found.n_missing += int(np.count_nonzero(cells.is_missing))
        found.n_unlisted += int(np.count_nonzero(cells.is_unlisted))
        found.n_unreadable += int(np.count_nonzero(cells.is_unreadable))
        if self.item is None:
            return
        there = cells.values[~cells.is_missing & ~cells.is_unreadable]
        _count_texts(column, cells.is_unlisted, place, found.unlisted)
        _count_texts(column, cells.is_unreadable, place, found.unread)
        if found.kind in ("categorical", "hashed"):
            self.used.update(there[there >= 0].tolist())
        elif cells.is_read.any():
            low, high = self.item.min or 0.0, self.item.max or 0.0
            found.n_below += int(np.count_nonzero(there < low))
            found.n_above += int(np.count_nonzero(there > high))
            self._sentinels.update(there[np.isin(there, SENTINELS) & ((there < low) | (there > high))].tolist())
            there = np.clip(there, low, high)
        self._compare(there.astype(np.float64))

    def finish(self, has_headers: bool) -> ColumnFit:
        """What was counted; `has_headers` says whether the table's header stands among its rows."""
        found = self.found
        all_differ = self._watched is not None and self._n_watched > 50 and found.kind != "identifier"
        found.looks_like_id = looks_like_identifier(found.name) or all_differ
        found.coding = "; ".join(filter(None, [found.coding, *self._list_questions(has_headers)]))
        return found

    def _list_questions(self, has_headers: bool) -> Iterator[str]:
        """What its cells may mean, where nothing but a person can tell."""
        name, odd = self.found.name, self.odd
        if has_headers and name in map(str.strip, odd):
            yield "the header stands among the rows again, which are left out"
        codes = [f"{value:g}" for value, count in sorted(self._sentinels.items()) if count > 1]
        if codes:
            yield f"codes for missing values? If so: missing.{toml_key(name)} = [{', '.join(codes)}]"
        if self.found.role == "label" and (two := self._ask_about_codes()):
            yield two
        has_marks = self.has_points_only or any(map(_THOUSANDS.fullmatch, odd))
        if self.found.kind == "numeric" and has_marks and not self.is_decided:
            yield (
                "marks before three digits: thousands or decimals? Marks of thousands are not read: export the numbers "
                "without them. A decimal mark is declared behind the file's name (docs/data.md)"
            )

    def _ask_about_codes(self) -> str:
        """What is asked where a label has 0 and 1 in the plan, and 1 and another number in the table; else ""."""
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
        """Whether the first values all differ; fractions do so anyway, so of numbers only whole ones count."""
        if self._watched is None or self._n_watched >= _SAMPLED_ROWS:
            return
        first = column[:_SAMPLED_ROWS] if isinstance(column, list) else column.slice(0, _SAMPLED_ROWS)
        try:
            texts = [text for text in encoders.read_texts(first, place) if text is not None]
        except DataError:
            self._watched = None
            return
        pointed = {text for text in texts if "." in text}
        self.shows_points |= any(_THOUSANDS.fullmatch(text) is None for text in pointed)
        self.has_points_only = not self.shows_points and (self.has_points_only or len(pointed) >= _MIN_POINTS)
        self._n_watched += len(texts)
        self._watched.update(texts)
        point = "," if place.has_decimal_commas else "."
        has_fractions = any(point in text for text in texts)
        if len(self._watched) < self._n_watched or has_fractions:
            self._watched = None


def _count_texts(column: Any, rows: NDArray[np.bool_], place: Place, counts: dict[str, int]) -> None:
    """Count the texts of some cells, of the first 1,000 different ones."""
    if not rows.any():
        return
    at = np.flatnonzero(rows)
    cells = [column[index] for index in at.tolist()] if isinstance(column, list) else column.take(pa.array(at))
    for text in encoders.read_texts(cells, place):
        if text is not None and (text in counts or len(counts) < _MAX_TEXTS):
            counts[text] = counts.get(text, 0) + 1


_MOST = 0.9
"""The least share of odd cells that one explanation has to fit."""
_SHOWN_TEXTS = 12
_MEANINGS = (
    "m male man boy herr mann maennlich männlich homme masculin hombre masculino",
    "f w female woman girl frau weiblich femme feminin féminin mujer femenino",
    "1 y yes true t ja j oui o si sí positive pos",
    "0 n no false f nein non negative neg",
)
_FATES = (
    "1 dead died deceased death event tot verstorben gestorben décédé décès muerto fallecido",
    "0 alive living censored lost lebend lebt zensiert vivant vivo",
)
"""Of an event: a label of two classes may be "survived" as well."""
_MISSING_CODES = {
    ".", "..", "-", "--", "?", "*", "#", "#n/a", "#na", "none", "nil", "missing", "miss", "unknown", "unk", "nd",
    "n.d.", "n.a.", "n. a.", "k.a.", "k. a.", "not available", "not done", "not known", "fehlend", "unbekannt",
}  # fmt: skip
SENTINELS = (-9.0, -99.0, -999.0, -9999.0, 99.0, 999.0, 9999.0, 99999.0)
"""Numbers that many write for "no value"."""
_ENCODINGS = ("cp1252", "cp850", "mac-roman", "cp1250")
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}([.,'\u2019 \u00a0\u2009\u202f][0-9]{3})+([.,][0-9]+)?")
_DECIMAL_COMMA = re.compile("[+-]?[0-9]*,[0-9]+")
_LIMIT = re.compile(r"[<>]=?\s*([0-9]+([.,][0-9]+)?)")


def format_counts(counts: Mapping[str, int], n_others: int = 0) -> str:
    """Texts and how often each is there, the most frequent first."""
    often = sorted(counts, key=lambda text: (-counts[text], text))
    said = ", ".join(f"{text!r} {counts[text]:,}" for text in often[:_SHOWN_TEXTS])
    n_rest = sum(counts[text] for text in often[_SHOWN_TEXTS:]) + n_others
    return said + (f" and {n_rest:,} cells of other texts" if n_rest else "")


def explain_lines(n_names: int, rows: units.RowCount) -> Iterator[tuple[str, str]]:
    """What the rows that have another number of fields than the header may come from."""
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


# What mends a table ---------------------------------------------------------------------------------------------------


def _try_adapters(
    location: Location, plan: Plan, counts: Sequence[_Counted]
) -> tuple[list[tuple[str, str]], list[str]]:
    """What was found to mend the table as a whole, and the lines that do; columns are told what mends them."""
    before = location.adapter if isinstance(location, AdaptedLocation) else PLAIN
    place, own, about = os.fspath(location), before, list[tuple[str, str]]()

    def take(*trials: Adapter) -> bool:
        nonlocal own
        gains = [_count_gain(place, plan, own, trial) for trial in trials]
        if not any(gains):
            return False
        own = trials[gains.index(max(gains))]
        return True

    if any(count.n_undecodable for count in counts) and take(*(replace(own, encoding=word) for word in _ENCODINGS)):
        declared = f"The same behind the file's name: #encoding={own.encoding}"
        about.append(("encoding", f"cells that are not UTF-8, and that {own.encoding} reads. {declared}"))
    numeric = [count for count in counts if count.found.kind == "numeric"]
    if (mark := _find_decimal_mark(numeric)) and take(replace(own, decimal=mark)):
        about.append(("numbers", f"a decimal {mark}"))
        for count in numeric:
            count.is_decided = True
    for count in counts:
        found, odd = count.found, count.odd
        if found.kind in ("hashed", "identifier") or not odd:
            continue
        for said, pairs in _list_meanings(odd, count.listed):
            new = [word for word in pairs.values() if word is not None]
            used = {count.listed[index] for index in count.used}
            # A line that makes one class of several codes, while no cell is of another class, is no reading of a label.
            unites = found.role == "label" and len(used | set(new)) < min(2, len(used) + len(new))
            if pairs and not (unites and count.listed) and take(_recode(own, found.name, pairs)):
                found.coding = "; ".join(filter(None, (found.coding, said)))
    return about, list_data_lines(own, before)


def _list_meanings(odd: Mapping[str, int], listed: Sequence[str]) -> Iterator[tuple[str, dict[str, str | None]]]:
    """What texts that are not read may stand for, with words for it; None for no value."""
    words, groups = (("0", "1"), (*_MEANINGS, *_FATES)) if listed == EVENT_CODES else (listed, _MEANINGS)
    meant = {text: own for text in sorted(odd) if (own := guess_meaning(text, words, groups)) is not None}
    yield "another coding at this site?", dict(meant)
    yield (
        "codes for missing values?",
        {text: None for text in sorted(odd) if text not in meant and text.casefold() in _MISSING_CODES},
    )
    if not listed:
        limits = {text: found[1] for text in sorted(odd) if (found := _LIMIT.fullmatch(text))}
        yield "limits of detection? The line counts such a cell as its limit", dict(limits)


def _recode(own: Adapter, name: str, pairs: Mapping[str, str | None]) -> Adapter:
    """The adapter with these texts of a column as well."""
    recode, missing = dict(own.recode), dict(own.missing)
    texts = {old: new for old, new in pairs.items() if new is not None}
    if texts:
        recode[name] = tuple((dict(recode.get(name, ())) | texts).items())
    codes = tuple(old for old, new in pairs.items() if new is None)
    if codes:
        # A list for all columns, if there is one, leaves no room for one of a column.
        at = "" if "" in missing else name
        missing[at] = tuple(dict.fromkeys((*missing.get(at, ()), *codes)))
    return replace(own, recode=tuple(recode.items()), missing=tuple(missing.items()))


def list_data_lines(own: Adapter, before: Adapter = PLAIN) -> list[str]:
    """The lines of a `[data]` table that an adapter has and the other has not; each stands for the other's of its name.

    Separators, other names, dates and scales are left out: nothing here suggests them.
    """
    lines = [
        f"{part} = {toml_value(word)}"
        for part in ("encoding", "decimal")
        if (word := getattr(own, part)) != getattr(before, part)
    ]
    new = [(name, pairs) for name, pairs in own.recode if pairs != dict(before.recode).get(name)]
    lines += [f"recode.{toml_key(name)} = {toml_value(dict(pairs))}" for name, pairs in new]
    for name, codes in own.missing:
        if codes != dict(before.missing).get(name):
            lines.append(f"missing{'.' * bool(name)}{toml_key(name) if name else ''} = {toml_value(codes)}")
    return lines


def _count_gain(place: str, plan: Plan, before: Adapter, after: Adapter) -> int:
    """How many more cells are read; 0 where one that was read becomes anything else."""
    names, gain = units.list_needed_columns(plan), 0
    tables = [open_table(adapt(place, adapter), plan) for adapter in (before, after)]
    places = [find_place(table) for table in tables]
    for pair in zip_longest(*(table.batches(names, _CHUNK_ROWS, {}) for table in tables)):
        if None in pair or len(pair[0][0]) != len(pair[1][0]):
            # The rows themselves are others.
            return 0
        for name, columns in zip(names, zip(*pair, strict=True), strict=True):
            item = find_item(name, plan)
            old, new = (
                read_cells(column, item, replace(at, column=name)) for column, at in zip(columns, places, strict=True)
            )
            is_same = (old.is_missing == new.is_missing) & ((old.values == new.values) | new.is_missing)
            if (old.is_read & ~(new.is_read & is_same)).any():
                return 0
            gain += int(np.count_nonzero(new.is_read & ~old.is_read))
    return gain


def _find_decimal_mark(columns: Sequence[_Counted]) -> str:
    """The word for the decimal mark, where each column with numbers that are not read shows that its mark is one."""
    with_commas = [column for column in columns if any(map(_DECIMAL_COMMA.fullmatch, column.odd))]
    if with_commas:
        decimals = [[text for text in column.odd if not _THOUSANDS.fullmatch(text)] for column in with_commas]
        return "comma" if all(any(map(_DECIMAL_COMMA.fullmatch, texts)) for texts in decimals) else ""
    with_points = [each for each in columns if any("." in text and _THOUSANDS.fullmatch(text) for text in each.odd)]
    return "point" if with_points and all(column.shows_points for column in with_points) else ""


def guess_meaning(text: str, listed: Sequence[str], meanings: Sequence[str] = _MEANINGS) -> str | None:
    """The one listed text that another one clearly stands for."""
    own = _reduce_to_word(text)
    if not own:
        return None
    groups = [set(group.split()) for group in meanings if own in group.split()]
    for fitting in (
        [each for each in listed if _reduce_to_word(each) == own],
        [each for each in listed if any(_reduce_to_word(each) in group for group in groups)],
        [each for each in listed if own.isalpha() and _reduce_to_word(each).startswith(own)],
    ):
        if fitting:
            return fitting[0] if len(fitting) == 1 else None
    return None


def _reduce_to_word(text: str) -> str:
    """A text without what does not tell two apart: case, spaces, quotation marks, hyphens and points between letters.

    Signs and marks that may stay: -1 is not 1, A- is not A+, 1-5 is not 15.
    """
    plain = re.sub(r"(?<=[^\W\d_])[-.](?=[^\W\d_])|[\s_]", "", text.casefold())
    return plain.strip("\"'").rstrip(".")
