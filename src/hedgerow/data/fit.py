"""How a site's table fits a plan, column by column: for the owner of the rows, and no one else.

Everything here is counted from private rows, without noise. It is shown where the rows are, and sent nowhere.

Last stands another coding at one site, and the `[data]` lines that would mend it: `M` for `male`, 1 and 2 for 0 and 1,
age in days. A line is suggested only where it is clear what it has to say; a person confirms it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hedgerow.data import columns as encoders
from hedgerow.data.adapters import UNITS
from hedgerow.data.columns import Place
from hedgerow.data.drafts import looks_like_identifier, quoted, words_of
from hedgerow.data.sources import Location, opened, place_of
from hedgerow.data.units import MANY, RowsLeftOut, needed_columns
from hedgerow.errors import DataError
from hedgerow.losses.survival import event_words
from hedgerow.plan.fields import ISO_DATE
from hedgerow.plan.plan import Feature, Label, Plan

_ALL_MISSING = 0.5
_WATCHED_ROWS = 10_000
"""The first rows of a column, in which an identifier's values all differ."""
_MOST_TEXTS = 1_000
"""Distinct odd texts of a column that are counted apart."""
_LATEST = 3e38
"""No follow-up ends later."""


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
        coding: what another coding at this site would explain, in words; "" for nothing.
        mending: the lines of a `[data]` table that would mend it (`hedgerow.data.adapters`), where that is clear.
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
    coding: str = ""
    mending: str = ""

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
        if self.clamped > MANY:
            said.append("many values beyond the bounds: are these too narrow, or in another unit?")
        if self.not_listed > MANY:
            is_label = self.role == "label"
            said.append("many rows of no listed class: they are left out" if is_label else "many values not listed")
        if self.n_unreadable:
            said.append("cells that cannot be read: their rows are left out")
        if self.role == "label" and self.n_missing:
            said.append("rows without a label are left out")
        elif self.role == "feature" and self.n_rows and self.n_missing / self.n_rows > _ALL_MISSING:
            said.append("mostly missing")
        if self.role != "unit" and self.is_constant and self.n_rows:
            said.append("one value for the model: nothing can be learned from it")
        if self.coding:
            said.append(self.coding)
        if self.role == "feature" and self.looks_like_id:
            said.append("looks like an identifier: leave it out, or make it privacy.unit")
        return said


@dataclass(frozen=True)
class TableFit:
    """What the plan makes of a table.

    Attributes:
        n_rows: rows that have as many fields as the header.
        columns: those that the plan names: features, label, unit.
        ignored: names of the others.
        unfit: rows that could not be taken apart, by the code that says why.
    """

    n_rows: int
    columns: list[ColumnFit]
    ignored: list[str]
    unfit: RowsLeftOut = field(default_factory=dict)


def table_fit(location: Location, plan: Plan, *, chunk_rows: int = 65536) -> TableFit:
    """Read a table once, in bounded memory, and count what the plan makes of it.

    Raises:
        DataError: the table cannot be read, or lacks a column.
    """
    names = needed_columns(plan)
    table = opened(location)
    unfit: RowsLeftOut = {}
    counts, place = [_Counted.of(name, plan) for name in names], place_of(table)
    for batch in table.batches(names, chunk_rows, unfit):
        for count, column in zip(counts, batch, strict=True):
            count.add(column, place)
    columns = [count.finished() for count in counts]
    ignored = [name for name in table.names() if name not in names]
    return TableFit(columns[0].n_rows, columns, ignored, unfit)


def _of_label(label: Label, name: str) -> Feature:
    """What a column of a time to an event holds: times from 0 on, without an end, or whether the event was seen."""
    if name == label.event:
        return Feature(name=name, type="categorical", categories=event_words(label))
    return Feature(name=name, type="numeric", min=0.0, max=_LATEST)


class _Counted:
    """One column while its chunks come."""

    def __init__(self, found: ColumnFit, item: Feature | Label | None) -> None:
        self._found, self._item = found, item
        self._only: float | None = None
        self._watched: set[str] | None = set()
        self._n_watched = 0
        self._used: set[int] = set()
        self._unreadable: dict[str, int] = {}
        self._sample: list[NDArray[np.float64]] = []
        self._sentinels: dict[float, int] = {}

    @classmethod
    def of(cls, name: str, plan: Plan) -> _Counted:
        for feature in plan.features:
            if feature.name == name:
                return cls(ColumnFit(name, "feature", feature.type), feature)
        if plan.label.is_survival and name in plan.label.columns:
            item = _of_label(plan.label, name)
            return cls(ColumnFit(name, "label", item.type), item)
        if name == plan.label.name:
            return cls(ColumnFit(name, "label", "numeric" if plan.label.is_numeric else "categorical"), plan.label)
        return cls(ColumnFit(name, "unit", "identifier"), None)

    def add(self, column: Any, table: Place) -> None:
        """Count one chunk."""
        place = Place(table.source, self._found.name, has_decimal_commas=table.has_decimal_commas)
        self._found.n_rows += len(column)
        self._watch(column, place)
        try:
            self._count(column, place)
        except DataError:  # a type that no cell of it fits
            self._found.n_unreadable += len(column)

    def finished(self) -> ColumnFit:
        """What was counted."""
        found = self._found
        all_differ = self._watched is not None and self._n_watched > 50 and found.kind != "identifier"
        found.looks_like_id = looks_like_identifier(found.name) or all_differ
        found.coding, found.mending = self._other_coding()
        return found

    def _other_coding(self) -> tuple[str, str]:
        """What another coding would explain, in words, and the lines that would mend it."""
        found, item = self._found, self._item
        if item is None or found.kind == "hashed":
            return "", ""
        if found.kind == "categorical":
            listed = item.categories if isinstance(item, Feature) else item.classes
            used = {listed[index] for index in self._used}
            return of_categories(found.name, found.unlisted, listed, used)
        said, lines = of_unreadable(found.name, self._unreadable, found.kind == "date")
        if found.kind == "date" or not self._sample:
            return said, lines
        bounds = (item.min or 0.0, item.max or 0.0) if isinstance(item, Feature) else item.bounds
        more = of_numbers(found.name, np.concatenate(self._sample), bounds, self._sentinels)
        return "; ".join(filter(None, (said, more[0]))), "\n".join(filter(None, (lines, more[1])))

    def _count(self, column: Any, place: Place) -> None:
        found, item = self._found, self._item
        bad = np.zeros(len(column), dtype=np.bool_)

        def unfit(rows: NDArray[np.bool_], code: str, error_at: Callable[[int], DataError]) -> None:
            bad[rows] = True

        if item is None:
            encoders.identifiers(column, place, unfit)
            found.n_missing += int(np.count_nonzero(bad))
            return
        if isinstance(item, Feature) and item.is_hashed and item.buckets is not None:
            values = encoders.bucket_indices(column, item.buckets, place, unfit)
            missing = values == encoders.MISSING
            found.n_missing += int(np.count_nonzero(missing & ~bad))
            self._compare(values[~missing & ~bad].astype(np.float64))
        elif found.kind == "categorical":
            listed = item.categories if isinstance(item, Feature) else item.classes
            values = encoders.category_indices(column, listed, place, unfit)
            missing, unlisted = values == encoders.MISSING, (values == encoders.UNKNOWN) & ~bad
            found.n_missing += int(np.count_nonzero(missing & ~bad))
            found.n_unlisted += int(np.count_nonzero(unlisted))
            self._used.update(np.unique(values[values >= 0]).tolist())
            _count_texts(column, unlisted, place, found.unlisted)
            self._compare(values[~missing & ~bad].astype(np.float64))
        else:
            low, high = (item.min, item.max) if isinstance(item, Feature) else item.bounds
            is_date = isinstance(item, Feature) and item.is_date
            layout = item.format if isinstance(item, Feature) else None
            numbers = encoders.days(column, layout, place, unfit) if is_date else encoders.numbers(column, place, unfit)
            missing = np.isnan(numbers) & ~bad
            found.n_missing += int(np.count_nonzero(missing))
            good = numbers[~missing & ~bad]
            found.n_below += int(np.count_nonzero(good < (low or 0.0)))
            found.n_above += int(np.count_nonzero(good > (high or 0.0)))
            _count_texts(column, bad, place, self._unreadable)
            self._sample_numbers(good, (low or 0.0, high or 0.0))
            self._compare(np.clip(good, low, high))
        found.n_unreadable += int(np.count_nonzero(bad))

    def _sample_numbers(self, numbers: NDArray[np.float64], bounds: tuple[float, float]) -> None:
        room = _WATCHED_ROWS - sum(map(len, self._sample))
        self._sample.append(numbers[np.isfinite(numbers)][:room])
        for value in SENTINELS:
            n_cells = 0 if bounds[0] <= value <= bounds[1] else int(np.count_nonzero(numbers == value))
            if n_cells:
                self._sentinels[value] = self._sentinels.get(value, 0) + n_cells

    def _compare(self, values: NDArray[np.float64]) -> None:
        if not len(values) or not self._found.is_constant:
            return
        self._only = float(values[0]) if self._only is None else self._only
        self._found.is_constant = bool((values == self._only).all())

    def _watch(self, column: Any, place: Place) -> None:
        """Whether the first values all differ; fractions do so anyway, so of numbers only whole ones count."""
        if self._watched is None or self._n_watched >= _WATCHED_ROWS:
            return
        first = column[:_WATCHED_ROWS] if isinstance(column, list) else column.slice(0, _WATCHED_ROWS)
        try:
            texts = [text for text in encoders.texts_of_cells(_decodable(first), place) if text is not None]
        except DataError:
            self._watched = None
            return
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
    for text in encoders.texts_of_cells(_decodable(cells), place):
        if text is not None and (text in counts or len(counts) < _MOST_TEXTS):
            counts[text] = counts.get(text, 0) + 1


def _decodable(column: Any) -> Any:
    """The cells of a column without those that are no UTF-8."""
    if not isinstance(column, pa.Array) or not pa.types.is_binary(column.type):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    return pa.array([None if cell is None else cell.decode(errors="replace") for cell in column.to_pylist()])


_MOST = 0.9
"""The least share of odd cells that one explanation has to fit."""
_FITTING = 0.95
"""The least share of numbers within the bounds, in another unit."""
_LEAST_SPREAD = 0.05
"""The least part of the bounds that such numbers take up: small enough, any number fits."""
_SHOWN_TEXTS = 12
_MEANINGS = (
    "m male man boy herr mann maennlich männlich homme masculin hombre masculino",
    "f w female woman girl frau weiblich femme feminin féminin mujer femenino",
    "1 y yes true t ja j oui o si sí positive pos",
    "0 n no false f nein non negative neg",
)
_MISSING_CODES = {
    ".", "..", "-", "--", "?", "*", "#", "#n/a", "#na", "none", "nil", "missing", "miss", "unknown", "unk", "nd",
    "n.d.", "k.a.", "k. a.", "not available", "not done", "not known", "fehlend", "unbekannt",
}  # fmt: skip
SENTINELS = (-9.0, -99.0, -999.0, -9999.0, 99.0, 999.0, 9999.0, 99999.0)
"""Numbers that many write for "no value"."""
_DATES = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%Y%m%d")
_UNITS_OF = {
    "age": ("days to years", "weeks to years", "months to years"),
    "alter": ("days to years", "weeks to years", "months to years"),
    "height": ("m to cm", "cm to m", "inches to cm"),
    "weight": ("g to kg", "pounds to kg"),
    "temperature": ("fahrenheit to celsius",),
    "temp": ("fahrenheit to celsius",),
}
"""By a word of a column's name, the units of `UNITS` that its numbers may be in."""
_POWERS = (1000.0, 100.0, 10.0, 0.1, 0.01, 0.001)


def _key(name: str) -> str:
    """A name as TOML has it."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else quoted(name)


def counted(counts: Mapping[str, int], n_others: int = 0) -> str:
    """Texts and how often each is there, the most frequent first."""
    often = sorted(counts, key=lambda text: (-counts[text], text))
    said = ", ".join(f"{text!r} {counts[text]:,}" for text in often[:_SHOWN_TEXTS])
    n_rest = sum(counts[text] for text in often[_SHOWN_TEXTS:]) + n_others
    return said + (f" and {n_rest:,} cells of other texts" if n_rest else "")


def of_categories(name: str, unlisted: Mapping[str, int], listed: Sequence[str], used: set[str]) -> tuple[str, str]:
    """What texts that a plan does not list may mean: a finding and a line, "" for neither.

    Args:
        unlisted: the texts, and how often each is there.
        listed: the plan's categories or classes; used: those of them that are there.
    """
    if not unlisted:
        return "", ""
    if (shifted := _shifted(unlisted, listed, used)) is not None:
        old, new = ", ".join(shifted), ", ".join(shifted.values())
        line = f"recode.{_key(name)} = {_inline(shifted)}"
        return f"coded {old} where the plan has {new}? If they mean these in this order: {line}", ""
    if _share(unlisted, lambda text: bool(_layouts(text))) >= _MOST:
        return "dates, where the plan lists texts", ""
    meant = {text: own for text in sorted(unlisted) if (own := _meant(text, listed)) is not None}
    codes = [text for text in unlisted if text not in meant and text.casefold() in _MISSING_CODES]
    lines = ([f"recode.{_key(name)} = {_inline(meant)}"] if meant else []) + _missing_line(name, codes)
    return ("another coding at this site?" if meant else ""), "\n".join(lines)


def of_unreadable(name: str, texts: Mapping[str, int], is_date: bool) -> tuple[str, str]:
    """What cells that are no number, or no date, may mean: a finding and a line, "" for neither."""
    codes = [text for text in texts if text.casefold() in _MISSING_CODES]
    lines = _missing_line(name, codes)
    others = {text: count for text, count in texts.items() if text not in codes}
    said = "codes for missing values?" if codes else ""
    if others and is_date:
        layouts = {text: _layouts(text) for text in others}
        fitting = [each for each in _DATES if _share(others, partial(_is_in, each, layouts)) >= _MOST]
        if len(fitting) == 1:
            lines.append(f'date.{_key(name)} = "{fitting[0]}"')
        if fitting:
            said = "dates in another format: " + " or ".join(fitting)
    elif others and _share(others, lambda text: bool(_layouts(text))) >= _MOST:
        said = 'dates, where the plan has numbers: it could say type = "date"'
    elif others and _share(others, lambda text: re.fullmatch(r"[+-]?[0-9]*,[0-9]+", text) is not None) >= _MOST:
        said = "decimal commas?"
        lines.append('decimal = "comma"')
    return said, "\n".join(lines)


def of_numbers(
    name: str, sample: NDArray[np.float64], bounds: tuple[float, float], sentinels: Mapping[float, int]
) -> tuple[str, str]:
    """What numbers beyond the bounds may mean: a finding and a line, "" for neither.

    Args:
        sample: float64 [n], numbers of the column, all finite.
        sentinels: numbers beyond the bounds that many write for "no value", and how often each is there.
    """
    codes = [value for value, count in sentinels.items() if count > 1]
    lines = [f"missing.{_key(name)} = [{', '.join(f'{value:g}' for value in codes)}]"] if codes else []
    own = sample[~np.isin(sample, codes)]
    said = "codes for missing values?" if codes else ""
    low, high = bounds
    if len(own) and np.mean((own < low) | (own > high)) > 0.5:
        named = [unit for word in words_of(name) for unit in _UNITS_OF.get(word, ())]
        units = [f'"{unit}"' for unit in dict.fromkeys(named) if _fits(own * UNITS[unit][0] + UNITS[unit][1], bounds)]
        units = units or [f"{power:g}" for power in _POWERS if _fits(own * power, bounds)]
        if len(units) == 1:
            lines.append(f"scale.{_key(name)} = {units[0]}")
        said = "in another unit?" if units else said
    return said, "\n".join(lines)


def renames(missing: Iterable[str], present: Sequence[str]) -> str:
    """The line for columns that a table has under another name, "" where none is clear."""
    found: dict[str, str] = {}
    for name in missing:
        words, others = set(words_of(name)), [other for other in present if other not in found]
        alike = [other for other in others if _plain(other) == _plain(name)]
        alike = alike or [other for other in others if words and words <= set(words_of(other))]
        if len(alike) == 1:
            found[alike[0]] = name
    return f"rename = {_inline(found)}" if found else ""


def _inline(pairs: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{_key(old)} = {quoted(new)}" for old, new in pairs.items()) + "}"


def _missing_line(name: str, codes: Sequence[str]) -> list[str]:
    listed = ", ".join(quoted(code) for code in sorted(codes))
    return [f"missing.{_key(name)} = [{listed}]"] if codes else []


def _share(counts: Mapping[str, int], fits: Callable[[str], bool]) -> float:
    """The share of the cells whose text fits."""
    return sum(count for text, count in counts.items() if fits(text)) / max(sum(counts.values()), 1)


def _is_in(layout: str, layouts: Mapping[str, Sequence[str]], text: str) -> bool:
    return layout in layouts[text]


def _plain(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold())


def _meant(text: str, listed: Sequence[str]) -> str | None:
    """The one listed text that another one clearly stands for."""
    own = _plain(text)
    if not own:
        return None
    groups = [set(group.split()) for group in _MEANINGS if own in group.split()]
    for fitting in (
        [each for each in listed if _plain(each) == own],
        [each for each in listed if any(_plain(each) in group for group in groups)],
        [each for each in listed if own.isalpha() and _plain(each).startswith(own)],
    ):
        if fitting:
            return fitting[0] if len(fitting) == 1 else None
    return None


def _shifted(unlisted: Mapping[str, int], listed: Sequence[str], used: set[str]) -> dict[str, str] | None:
    """1, 2, ... for 0, 1, ...: the table's text and the plan's."""
    plan = [str(number) for number in range(len(listed))]
    site = [str(number) for number in range(1, len(listed) + 1)]
    is_shifted = set(listed) == set(plan) and set(unlisted) == {site[-1]} and "0" not in used
    return dict(zip(site, plan, strict=True)) if is_shifted else None


def _layouts(text: str) -> list[str]:
    """The formats that a text is a date in."""
    found = ["%Y-%m-%d"] if re.fullmatch(ISO_DATE, text) else []
    for layout in _DATES:
        pattern = re.escape(layout)
        for part, digits in (("Y", "(?:19|20)[0-9]{2}"), ("m", "[0-9]{1,2}"), ("d", "[0-9]{1,2}")):
            pattern = pattern.replace(f"%{part}", f"(?P<{part}>{digits})")
        read = re.fullmatch(pattern, text)
        if read is not None and 1 <= int(read["m"]) <= 12 and 1 <= int(read["d"]) <= 31:
            found.append(layout)
    return found


def _fits(numbers: NDArray[np.float64], bounds: tuple[float, float]) -> bool:
    low, high = bounds
    inside = np.mean((numbers >= low) & (numbers <= high)) >= _FITTING
    first, last = np.quantile(numbers, [0.05, 0.95])
    return bool(inside and last - first >= _LEAST_SPREAD * (high - low))
