"""Draft a plan from a table's header and types, and from a code book: the text behind ``hedgerow plan init``.

First stands what a table's columns hold, then the draft; then what a code book says of columns, and last what their
names alone suggest. Types, bounds, categories, classes and the number of records are
public inputs, so a draft leaves them open for a person to fill in from a code book; what the cells suggest is for the
owner's screen. Only when the owner says that all this is public already is it read off the file. Training never derives
anything public from data.

A code book is what a study has written down about its columns, as a CSV. It is public by its purpose, and so is what a
draft takes from it. Two kinds are told apart by their headers:

    name,type,min,max,categories,unit       of which only name is needed. type is "numeric", "integer", "date",
                                            "categorical" or "identifier"; categories are parted by "|", else ";",
                                            else ","
    a data dictionary of REDCap             as its web page exports it, or its programming interface. Categories are the
                                            codes of the choices, as in an export of raw data
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.data import columns as encoders
from hedgerow.data.columns import Place, listed
from hedgerow.data.lines import declared, header_of, without_declaration
from hedgerow.data.sources import column_names, opened, place_of, read_columns
from hedgerow.data.tables import existing_file, require_columns
from hedgerow.errors import DataError, UsageError
from hedgerow.plan.fields import ISO_DATE, day_of, days_between, iso_of, shown
from hedgerow.plan.plan import LARGEST_BOUND, MAX_CATEGORIES, PLAN_VERSION
from hedgerow.plan.registry import label_kinds
from hedgerow.plan.toml import OPEN_CLASSES, toml_value
from hedgerow.survey.kinds import ABSENT, DATE, N_KINDS, NUMBER

MAX_CLASSES = 20
"""A numeric column with more values than this is taken for a quantity, not for classes."""


@dataclass
class Summary:
    """One column, over all chunks. What it is its most cells say, never one of them.

    Attributes:
        kinds: cells of each kind, int64 [N_KINDS].
        is_whole: whether every number is integral.
        spans: the smallest and largest finite number, and of days.
        values: the distinct texts and the number of each, NaN for none, until there are more than `MAX_CATEGORIES`.
    """

    name: str
    kinds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(N_KINDS, dtype=np.int64))
    is_whole: bool = True
    spans: dict[int, tuple[float, float]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)

    @property
    def n_values(self) -> int:
        """Cells that are not missing."""
        return int(self.kinds.sum() - self.kinds[ABSENT])

    @property
    def is_numeric(self) -> bool:
        """Whether most are numbers. A column of nothing says nothing; numbers are the commoner case."""
        return bool(2 * self.kinds[NUMBER] > self.n_values) or not self.n_values

    @property
    def is_date(self) -> bool:
        """Whether most are dates of ISO 8601."""
        return bool(2 * self.kinds[DATE] > self.n_values)

    @property
    def is_integer(self) -> bool:
        """Whether it is of whole numbers."""
        return self.is_numeric and self.is_whole and self.n_values > 0

    @property
    def low(self) -> float:
        """The smallest of its numbers, or days."""
        return self.spans[DATE if self.is_date else NUMBER][0]

    @property
    def high(self) -> float:
        """The largest."""
        return self.spans[DATE if self.is_date else NUMBER][1]

    @property
    def has_too_many_values(self) -> bool:
        return len(self.values) > MAX_CATEGORIES

    @property
    def suggests(self) -> str:
        """The type that its cells suggest; not to be shown but to their owner."""
        if not (self.is_numeric or self.is_date):
            written = number_like(self.values)
            return "numbers or dates in another writing? They are read as text" if written else "categorical"
        kind = "date" if self.is_date else "numeric, whole numbers" if self.is_integer else "numeric"
        n_others = self.n_values - int(self.kinds[DATE if self.is_date else NUMBER])
        return kind + (f", but for {n_others:,} cells" if n_others else "")

    def sorted_values(self) -> list[str]:
        """The distinct values: numbers by size, text by alphabet."""
        numbers = [text for text, number in self.values.items() if not math.isnan(number)]
        return sorted(numbers, key=self.values.__getitem__) if self.is_numeric else sorted(self.values)


def summarise(path: str | os.PathLike[str], names: Sequence[str]) -> dict[str, Summary]:
    """Read the named columns once, in bounded memory; raises DataError where the file cannot be read or has no rows."""
    table, summaries = place_of(opened(path)), {name: Summary(name) for name in names}
    for batch in read_columns(path, names):
        for name, column in zip(names, batch, strict=True):
            _add(summaries[name], column, replace(table, column=name))
    return summaries


def _add(summary: Summary, column: Any, place: Place) -> None:
    summary.kinds += np.bincount(encoders.kinds(column, place), minlength=N_KINDS)
    distinct = encoders.distinct_texts(column, place)
    numbers = encoders.numbers(distinct, place, encoders.AsMissing())
    days = encoders.days(distinct, None, place, encoders.AsMissing())
    for kind, found in ((NUMBER, numbers), (DATE, days)):
        low, high = summary.spans.get(kind, (math.inf, -math.inf))
        finite = found[np.isfinite(found)].tolist()
        summary.spans[kind] = (min(low, *finite, math.inf), max(high, *finite, -math.inf))
    summary.is_whole &= not np.isfinite(numbers[numbers != np.floor(numbers)]).any()
    if not summary.has_too_many_values:
        summary.values.update(zip(distinct.slice(0, MAX_CATEGORIES + 1).to_pylist(), numbers.tolist(), strict=False))


_MOST_TEXTS = 1_000
_OTHERWISE = re.compile(
    r"[^\w\s]{0,2}\s?([A-Z]{3}\s)?[0-9][0-9.,'\u2019 \u00a0\u2009\u202f]*\s?[^\W\d_]{0,4}[^\w\s]{0,3}[^\W\d_]{0,3}|"
    r"[0-9]{1,4}([./-])[0-9]{1,2}\2[0-9]{2,4}.*"
)


def number_like(texts: Iterable[str]) -> bool:
    """Whether most of many texts look like numbers or dates in another writing: 70 kg, 12 %, 1,045.50, 13/05/2020."""
    found = [_OTHERWISE.fullmatch(text) is not None for text in itertools.islice(texts, _MOST_TEXTS)]
    return len(found) > MAX_CLASSES and 2 * sum(found) > len(found)


def ask_of_texts(names: Iterable[str]) -> str:
    """What the owner of columns is asked whose texts are `number_like`; "" for no column."""
    said = listed(sorted(names))
    return said and (
        f"Read as text: {said}. Most of the cells look like numbers or dates in another writing (units, marks of "
        "thousands, decimal commas, days first). If they are, convert them, or declare how they are written."
    )


_USUAL_EPSILON = 1.0


def draft_plan(
    path: str | os.PathLike[str],
    label: str | tuple[str, str],
    *,
    bounds_are_public: bool = False,
    epsilon: float | None = None,
    delta: float | None = None,
    n_records: int | None = None,
    codebook: Mapping[str, Entry] | None = None,
) -> str:
    """The text of a commented TOML plan for the table at `path`, to be read by `parse_plan` once it is filled in.

    Fields that only a person can know are left as comments; until they are filled in, `parse_plan` names each of them
    and its line. A draft without `bounds_are_public` follows from the header and the code book alone, comments and all:
    no cell is read. Columns that are identifiers by their names are left out.

    Args:
        label: the column to be predicted; every other column becomes a feature. For times to an event, a pair: the
            column of the times, and that which says whether the event was seen then.
        bounds_are_public: the owner says that each column's range and values may be published; they are read off the
            file then. The number of records is not: pass `n_records`.
        epsilon: 1 when not given.
        delta: when not given, left open without `n_records`, else 1/n_records rounded down to a power of ten.
        n_records: the public or declared number of training records over all sites.
        codebook: what a code book says of columns; it outranks the cells. See `hedgerow.data.drafts`.

    Raises:
        DataError: the file cannot be read, or has no column `label`, or none `event`.
        UsageError: there is no column besides these, or both are one.
    """
    names = column_names(path)
    label, event = (label, None) if isinstance(label, str) else label
    if event == label:
        raise UsageError("usage-event-is-label", label=label)
    for option, needed in (("--label", label), ("--event", event)):
        if needed is not None and needed not in names:
            missing, present = repr(needed), listed(names)
            raise DataError(
                "data-no-label-column", source=os.fspath(path), missing=missing, present=present, option=option
            )
    require_columns(os.fspath(path), [label, *([event] if event else [])], names)
    usable, book = usable_columns(names), codebook or {}
    features = [name for name in usable if name not in (label, event)]
    identifiers = [name for name in features if _is_identifier(name, book)]
    if len(features) == len(identifiers):
        raise UsageError("usage-no-features", path=os.fspath(path), label=label)
    seen = summarise(path, usable) if bounds_are_public else {}
    sections = [
        _top(bounds_are_public),
        _privacy(epsilon, delta, n_records, next(iter(identifiers), "person_id")),
        _MODEL,
        _FEDERATION,
        *(
            _left_out(name) if name in identifiers else _feature(name, seen.get(name), book.get(name, Entry()))
            for name in features
        ),
        _label(label, seen.get(label), book.get(label, Entry()))
        if event is None
        else _time(label, event, book.get(event, Entry())),
    ]
    unusable = len(names) - len(usable)
    if unusable:
        sections.append(
            f"# Left out: {unusable} column(s) whose name is empty, has a line break or another mark that is not\n"
            "# seen, or is another one's too. Rename those that you need."
        )
    return "\n\n".join(sections) + "\n"


def usable_columns(names: Sequence[str]) -> list[str]:
    """The columns that can stand in a plan by their names."""
    return [name for name in names if name.strip() and shown(name) == name and names.count(name) == 1]


def _is_identifier(name: str, book: Mapping[str, Entry]) -> bool:
    """What the code book says, else what the name says: a column's cells have no say."""
    entry = book.get(name, Entry())
    return entry.kind == "identifier" or (not entry.kind and looks_like_identifier(name))


def _left_out(name: str) -> str:
    return (
        f"# Left out: {toml_value(name)}, by its name or the code book an identifier or free text. It would teach a\n"
        "# model nothing general, and much about single people. If it tells people apart, it may be privacy.unit; if\n"
        "# it is a quantity or a category after all, give it a [[features]] table."
    )


def _top(bounds_are_public: bool) -> str:
    if bounds_are_public:
        origin = (
            "# Bounds, categories and classes below were read off the file, because its owner said that they are\n"
            "# public. If they are not, take them from a code book instead: they would leak what they were read from."
        )
    else:
        origin = (
            "# Each line marked FILL IN waits for a value that only a person can know. Take it from a code book or\n"
            "# from common knowledge, never from private data: whatever stands in a plan is published.\n"
            "# Bounds that are too narrow make one value of many, and nothing complains; too wide ones cost nearly\n"
            "# nothing. Where you doubt, take the wider ones; `hedgerow check` shows how a table fits."
        )
    return (
        "# A plan of Hedgerow: the one public file that all parties agree on.\n"
        f'{origin}\nversion = {PLAN_VERSION}\nname = "plan"'
    )


def _privacy(epsilon: float | None, delta: float | None, n_records: int | None, unit: str) -> str:
    lines = [
        "[privacy]",
        "# The promise: no one who sees the model can tell whether one record was there, up to (epsilon, delta).",
        "# Smaller is safer and less accurate; 1 is a usual choice.",
        f"epsilon = {_number(_USUAL_EPSILON if epsilon is None else epsilon)}",
        "# The chance that the promise fails; well below 1 / n_records.",
    ]
    if delta is None and n_records is not None:
        delta = 10.0 ** -math.ceil(math.log10(max(n_records, 10)))
    lines.append("# delta =       # FILL IN, for example 1e-6" if delta is None else f"delta = {_number(delta)}")
    lines.append("# Training records over all sites, a public or declared number; a rough one will do.")
    lines.append("# n_records =   # FILL IN" if n_records is None else f"n_records = {n_records}")
    lines += [
        '# Who adds the noise. "server" trusts the coordinator to add it, and with exact sums over all sites; they can',
        '# be one person\'s values; with "distributed" the sites add it, and the coordinator sees no sum without it.',
        'noise = "server"',
        "# If one person may have several rows, protect the person: name the column that tells them apart, remove its",
        "# [[features]] table below, and say how many rows of a person may count at each site, and at how many sites a",
        "# person may have rows.",
        f"# unit = {toml_value(unit)}",
        "# max_rows_per_unit = 5",
        "# sites_per_unit = 1",
    ]
    return "\n".join(lines)


_MODEL = """[model]
# The sites draw the seed of the trees together, so that no one picks them: a run then begins with more than two thirds
# of its roster, whatever min_sites says. A number instead is one that all agree on.
structure_seed = "joint"
# Everything here has a default that follows from public numbers; see docs/defaults.md.
# n_trees = "auto"
# max_depth = "auto"
# learning_rate = "auto\""""

_FEDERATION = """[federation]
# Nothing is aggregated with fewer sites than this.
min_sites = 1"""


def _feature(name: str, summary: Summary | None, entry: Entry) -> str:
    """The table of a feature; `summary` only where its cells are public."""
    lines = ["[[features]]", f"name = {toml_value(name)}"]
    if entry.kind:
        return "\n".join([*lines, *_feature_of_book(entry)])
    if summary is None:
        return "\n".join([*lines, *_open_feature(entry)])
    if summary.is_date:
        first, last = (toml_value(iso_of(day)) for day in days_between(summary.low, summary.high))
        return "\n".join([*lines, 'type = "date"', f"min = {first}", f"max = {last}"])
    if summary.is_numeric:
        whole = ["integer = true"] if summary.is_integer else []
        return "\n".join([*lines, 'type = "numeric"', *whole, *_bounds(summary, entry, widen=True)])
    if summary.has_too_many_values:
        return (
            f"# Left out: {toml_value(name)} has more than {MAX_CATEGORIES} different texts. An identifier\n"
            "# or free text teaches a model nothing general; group rarer values to use it."
        )
    values = f"categories = {toml_value(summary.sorted_values())}" if summary.values else _OPEN_CATEGORIES
    return "\n".join([*lines, 'type = "categorical"', values])


def _open_feature(entry: Entry) -> list[str]:
    """What is to be known of a column."""
    kinds = '"numeric" or "date", with min and max, or "categorical", with categories'
    whole = "# integer = true   # if all its values are whole numbers"
    return [f"# type =   # FILL IN: {kinds}", whole, *_open_bounds(entry), _OPEN_CATEGORIES]


_OPEN_CATEGORIES = '# categories =   # FILL IN, a list such as ["a", "b"]; other values share one bin of their own'


def _feature_of_book(entry: Entry) -> list[str]:
    lines = [f"type = {toml_value(entry.kind)}"]
    if entry.kind == "categorical":
        return [*lines, f"categories = {toml_value(entry.categories)}" if entry.categories else _OPEN_CATEGORIES]
    if entry.unit:
        lines.append(f"# In {shown(entry.unit)}.")
    if entry.is_integer:
        lines.append("integer = true")
    if entry.kind == "date":
        lines.append('# format = "%d.%m.%Y"   # if the tables write dates so, and not as 2020-01-31')
    return [*lines, *_open_bounds(entry)]


def _open_bounds(entry: Entry) -> list[str]:
    """The bounds of a code book; a gap where it has none."""
    lines = []
    for bound, given, word in (("min", entry.low, "lower"), ("max", entry.high, "higher")):
        if given is not None:
            lines.append(f"{bound} = {toml_value(iso_of(given)) if entry.kind == 'date' else _number(given)}")
        else:
            lines.append(f"# {bound} =   # FILL IN; {word} values are clamped")
    return lines


def _bounds(summary: Summary, entry: Entry, *, widen: bool) -> list[str]:
    if summary.low > summary.high:
        return _open_bounds(entry)
    low, high = max(summary.low, -LARGEST_BOUND), min(summary.high, LARGEST_BOUND)
    if low < high:
        return [f"min = {_number(low)}", f"max = {_number(high)}"]
    if not widen or not low < low + 1:
        return [f"min = {_number(low)}", "# max =   # FILL IN: the column holds one value only"]
    return ["# The column holds one value only.", f"min = {_number(low)}", f"max = {_number(low + 1)}"]


def _label(name: str, summary: Summary | None, entry: Entry) -> str:
    """The table of a label; `summary` only where its cells are public."""
    lines = ["[label]", f"name = {toml_value(name)}"]
    if len(entry.categories) > 1:
        return "\n".join([*lines, *_classes(list(entry.categories))])
    if entry.kind == "numeric":
        return "\n".join([*lines, 'type = "regression"', *_open_bounds(entry)])
    values = [] if summary is None else summary.sorted_values()
    if summary is not None and summary.is_numeric and len(values) > (MAX_CLASSES if summary.is_integer else 2):
        others = _comment(f"Or {_labels_but('regression')}.") if summary.is_integer else []
        return "\n".join([*lines, *others, 'type = "regression"', *_bounds(summary, entry, widen=False)])
    if 2 <= len(values) <= MAX_CATEGORIES:
        return "\n".join([*lines, *_classes(values)])
    if summary is not None:
        return "\n".join([*lines, *_comment(f"Or {_labels_but('binary')}."), 'type = "binary"', OPEN_CLASSES])
    kinds = _comment(f"One of {_labels_but('')}.")
    return "\n".join([*lines, *kinds, "# type =   # FILL IN, one of these", OPEN_CLASSES, *_open_bounds(entry)])


def _time(label: str, event: str, entry: Entry) -> str:
    codes = toml_value(entry.categories) if len(entry.categories) == 2 else ""
    return "\n".join(
        [
            "[label]",
            f"name = {toml_value(label)}",
            'type = "survival"',
            f"event = {toml_value(event)}",
            "# What it says of who was lost from sight, and then of whose event was seen: without this line 0, no or",
            "# false, and 1, yes or true; R's package survival has [1, 2]. Rows with anything else are left out.",
            f"event_codes = {codes}" if codes else "# event_codes =   # FILL IN, such as [0, 1] or [1, 2]",
            "# The ends of intervals of time, the first from 0, such as the years of the follow-up; 8 to 16 suit most.",
            "# They are public: take them from what the study is about, never from the rows.",
            "# intervals =   # FILL IN, in the unit of the times, such as [365, 730, 1095, 1461]",
        ]
    )


def _classes(values: list[str]) -> list[str]:
    if len(values) > 2:
        return ['type = "multiclass"', f"classes = {toml_value(values)}"]
    return ['type = "binary"', "# The positive class comes last.", f"classes = {toml_value(values)}"]


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 112, initial_indent="# ", subsequent_indent="# ")


def _labels_but(kind: str) -> str:
    """What a label may be besides this."""
    return ", or ".join(other.hint for name, other in label_kinds().items() if name != kind)


def _number(value: float) -> str:
    """A TOML number; integral values without a decimal point."""
    return toml_value(int(value) if float(value).is_integer() and abs(value) < 2**53 else float(value))


_REDCAP = {
    "variable / field name": "field_name",
    "field type": "field_type",
    "choices, calculations, or slider labels": "select_choices_or_calculations",
    "text validation type or show slider number": "text_validation_type_or_show_slider_number",
    "text validation min": "text_validation_min",
    "text validation max": "text_validation_max",
    "identifier?": "identifier",
}
"""The heads of REDCap's page, and what its programming interface calls them."""
_BOOK_KINDS = {
    "numeric": "numeric", "number": "numeric", "float": "numeric", "real": "numeric", "continuous": "numeric",
    "integer": "integer", "int": "integer", "count": "integer",
    "categorical": "categorical", "category": "categorical", "factor": "categorical", "nominal": "categorical",
    "ordinal": "categorical", "binary": "categorical", "boolean": "categorical",
    "date": "date", "datetime": "date", "timestamp": "date",
    "identifier": "identifier", "id": "identifier", "text": "identifier", "": "",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """What a code book says of one column.

    Attributes:
        kind: "numeric", "date", "categorical", "identifier" (also free text), or "" for nothing.
        is_integer: whether all values are whole numbers.
        low, high: bounds, None where it names none.
        categories: codes, numbers by their size; empty where it names none.
        unit: of its values, "" for none.
    """

    kind: str = ""
    is_integer: bool = False
    low: float | None = None
    high: float | None = None
    categories: tuple[str, ...] = ()
    unit: str = ""


def read_codebook(location: str) -> dict[str, Entry]:
    """Each column's entry, by its name.

    Args: location: a CSV file; separator and encoding as for tables (`hedgerow.data.tables`).

    Raises:
        DataError: there is no such file, or it is empty or not in its encoding.
        UsageError: its header is not that of a code book, or a field says nothing.
    """
    place, declaration = without_declaration(location)
    file = existing_file(place)
    content = Path(file).read_bytes()
    header = header_of(content, declared(declaration))
    try:
        text = content.decode("utf-8-sig" if header.encoding == "utf-8" else header.encoding)
    except UnicodeDecodeError:
        raise DataError("data-encoding", source=place, where="the code book") from None
    names = [_REDCAP.get(name.lower(), name.lower()) for name in header.names]
    if "field_name" in names:
        read = _redcap_entry
    elif "name" in names:
        read = _plain_entry
    else:
        raise UsageError("codebook-header", path=place, present=", ".join(header.names))
    found: dict[str, Entry] = {}
    # Its cells hold line breaks, and it is public: but a mark that is not closed takes no row away in silence.
    rows, count = csv.reader(io.StringIO(text, newline=""), delimiter=header.separator, strict=True), 0
    try:
        for cells in rows:
            count += 1
            if rows.line_num > header.n_lines and cells:
                row = dict(zip(names, (cell.strip() for cell in cells), strict=False))
                found.update(read(row, header.has_decimal_commas))
    except (csv.Error, ValueError) as fault:
        row_number = count + isinstance(fault, csv.Error)
        raise UsageError("codebook-field", path=place, row=row_number, fault=fault) from None
    return found


def _plain_entry(row: Mapping[str, str], has_commas: bool) -> Iterator[tuple[str, Entry]]:
    word = row.get("type", "").lower()
    if word not in _BOOK_KINDS:
        raise ValueError(f"{word!r} is no type; it may be numeric, integer, date, categorical or identifier")
    kind, listed = _BOOK_KINDS[word], row.get("categories", "")
    separator = next((each for each in "|;," if each in listed), "|")
    categories = _sorted_codes([part.strip() for part in listed.split(separator) if part.strip()])
    read = _day if kind == "date" else partial(_number_of_book, has_commas=has_commas)
    low, high = (read(row.get(bound, "")) for bound in ("min", "max"))
    if not kind:
        kind = "categorical" if categories else "numeric" if low is not None or high is not None else ""
    own = "numeric" if kind == "integer" else kind
    if own in ("numeric", "date"):
        categories = ()
    yield row["name"], Entry(own, kind == "integer", low, high, categories, row.get("unit", ""))


def _redcap_entry(row: Mapping[str, str], has_commas: bool) -> Iterator[tuple[str, Entry]]:
    name, kind = row["field_name"], row.get("field_type", "").lower()
    checked = row.get("text_validation_type_or_show_slider_number", "").lower()
    low, high = (
        _number_of_book(row.get(f"text_validation_{bound}", ""), has_commas, checked) for bound in ("min", "max")
    )
    choices = row.get("select_choices_or_calculations", "")
    codes = [part.partition(",")[0].strip() for part in choices.split("|") if part.strip()]
    if row.get("identifier", "").lower() in ("y", "yes", "1"):
        yield name, Entry("identifier")
    elif kind == "checkbox":
        # Each choice is a column of its own in an export.
        for code in codes:
            yield f"{name}___{code.lower().replace('-', '_')}", Entry("categorical", categories=("0", "1"))
    elif kind in ("yesno", "truefalse"):
        yield name, Entry("categorical", categories=("0", "1"))
    elif kind in ("radio", "dropdown"):
        yield name, Entry("categorical", categories=_sorted_codes(codes))
    elif kind == "slider":
        yield name, Entry("numeric", True, 0.0 if low is None else low, 100.0 if high is None else high)
    elif kind == "text" and (checked == "integer" or checked.startswith("number")):
        yield name, Entry("numeric", checked == "integer", low, high)
    elif kind == "calc":
        yield name, Entry("numeric")
    elif kind == "text" and checked.startswith("date"):
        # Whatever order of day and month its form shows, an export of raw data has ISO 8601.
        words = (row.get(f"text_validation_{bound}", "") for bound in ("min", "max"))
        low, high = (_day(word) if re.match(ISO_DATE, word) else None for word in words)
        yield name, Entry("date", False, low, high)
    elif kind in ("text", "notes") and not checked.startswith("time"):
        yield name, Entry("identifier")
    elif kind != "descriptive":
        yield name, Entry()


def _number_of_book(text: str, has_commas: bool, checked: str = "number") -> float | None:
    """A bound; None for none, and for those of another kind."""
    if not text or not (checked == "integer" or checked.startswith("number")):
        return None
    plain = text.replace(",", ".") if has_commas or checked.endswith("comma_decimal") else text
    value = float(plain) if re.fullmatch(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?", plain, re.IGNORECASE) else math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a number")
    return value


def _day(text: str) -> float | None:
    """A date's bound in days since 1970-01-01; None for none."""
    try:
        return day_of(text) if text else None
    except ValueError:
        raise ValueError(f"{text!r} is not a date such as 2020-01-31") from None


def _sorted_codes(codes: list[str]) -> tuple[str, ...]:
    """Each code once; numbers by size, so that the 1 of 1 and 0 comes last as the positive class does."""
    distinct = list(dict.fromkeys(codes))
    try:
        return tuple(sorted(distinct, key=float))
    except ValueError:
        return tuple(distinct)


_IDENTIFIERS = {
    "id", "ids", "identifier", "uuid", "guid", "pid", "eid", "uid", "oid", "mrn", "ssn", "nhs", "nir", "subjid",
    "usubjid", "patid", "patientid", "personid", "recordid", "rowid", "caseid", "visitid", "encounterid", "stayid",
    "hadm", "fallnummer", "patientennummer", "pseudonym", "kennung",
}  # fmt: skip
_NUMBERED = {
    "patient", "person", "subject", "record", "case", "row", "visit", "encounter", "admission", "account", "member",
}  # fmt: skip
_NUMBER = {"no", "nr", "num", "number", "key", "code", "ref", "index"}
_PEOPLE = {"patient", "person", "subject", "participant", "index", "unnamed: 0"}


def words_of(name: str) -> list[str]:
    """The words of a name in small letters: "PatientID_2" is "patient", "id", "2"."""
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    parted = re.sub(r"([A-Za-z])([0-9])", r"\1 \2", parted)
    return [word.lower() for word in re.split(r"[\W_]+", parted) if word]


def looks_like_identifier(name: str) -> bool:
    """Whether a column's name is one that identifiers have."""
    words = words_of(name)
    return (
        name.strip().lower() in _PEOPLE
        or not _IDENTIFIERS.isdisjoint(words)
        or (not _NUMBERED.isdisjoint(words) and not _NUMBER.isdisjoint(words))
    )
