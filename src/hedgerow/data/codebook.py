"""Code books: what a study has written down about its columns, as a CSV, for the draft of a plan.

A code book is public by its purpose, and so is what a draft takes from it. Two kinds are told apart by their headers:

    name,type,min,max,categories,unit       of which only name is needed. type is "numeric", "integer", "date",
                                            "categorical" or "identifier"; categories are parted by "|", else ";",
                                            else ","
    a data dictionary of REDCap             as its web page exports it, or its programming interface. Categories are the
                                            codes of the choices, as in an export of raw data
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hedgerow.data.tables import declared, existing_file, header_of, without_declaration
from hedgerow.errors import DataError, UsageError
from hedgerow.plan.fields import ISO_DATE, day_of

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
_OWN = ("name", "type", "min", "max", "categories", "unit")
_KINDS = {
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
        UsageError: its header is none of a code book, or a field says nothing.
    """
    place, declaration = without_declaration(location)
    file = existing_file(place)
    content = Path(file).read_bytes()
    header = header_of(content, True, declared(declaration))
    try:
        text = content.decode("utf-8-sig" if header.encoding == "utf-8" else header.encoding)
    except UnicodeDecodeError:
        raise DataError("data-encoding", source=place, where="the code book") from None
    names = [_REDCAP.get(name.lower(), name.lower()) for name in header.names]
    if "field_name" in names:
        read = _redcap
    elif "name" in names:
        read = _own
    else:
        raise UsageError("codebook-header", path=place, present=", ".join(header.names))
    found: dict[str, Entry] = {}
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=header.separator)
    for count, cells in enumerate(rows, start=1):
        if count <= header.n_rows or not cells:
            continue
        row = dict(zip(names, (cell.strip() for cell in cells), strict=False))
        try:
            found.update(read(row, header.has_decimal_commas))
        except ValueError as fault:
            raise UsageError("codebook-field", path=place, row=count, fault=fault) from None
    return found


def _own(row: Mapping[str, str], has_commas: bool) -> Iterator[tuple[str, Entry]]:
    word = row.get("type", "").lower()
    if word not in _KINDS:
        raise ValueError(f"{word!r} is no type; it may be numeric, integer, date, categorical or identifier")
    kind, listed = _KINDS[word], row.get("categories", "")
    separator = next((each for each in "|;," if each in listed), "|")
    categories = _sorted([part.strip() for part in listed.split(separator) if part.strip()])
    read = _day if kind == "date" else partial(_number, has_commas=has_commas)
    low, high = (read(row.get(bound, "")) for bound in ("min", "max"))
    if not kind:
        kind = "categorical" if categories else "numeric" if low is not None or high is not None else ""
    own = "numeric" if kind == "integer" else kind
    if own in ("numeric", "date"):
        categories = ()
    yield row["name"], Entry(own, kind == "integer", low, high, categories, row.get("unit", ""))


def _redcap(row: Mapping[str, str], has_commas: bool) -> Iterator[tuple[str, Entry]]:
    name, kind = row["field_name"], row.get("field_type", "").lower()
    checked = row.get("text_validation_type_or_show_slider_number", "").lower()
    low, high = (_number(row.get(f"text_validation_{bound}", ""), has_commas, checked) for bound in ("min", "max"))
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
        yield name, Entry("categorical", categories=_sorted(codes))
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


def _number(text: str, has_commas: bool, checked: str = "number") -> float | None:
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


def _sorted(codes: list[str]) -> tuple[str, ...]:
    """Each code once; numbers by size, so that the 1 of 1 and 0 comes last as the positive class does."""
    distinct = list(dict.fromkeys(codes))
    try:
        return tuple(sorted(distinct, key=float))
    except ValueError:
        return tuple(distinct)
