# SPDX-License-Identifier: Apache-2.0
"""Draft a plan from a table's header and types and from a code book, for `hedgerow plan init`.

The module drafts a plan (its text comes from `hedgerow.plan.draft`), and reads code books. Types, bounds, categories,
classes and the number of records are public inputs, so a draft leaves them open for a person to fill in from a code
book. No cell is read: nothing public is ever derived from data.

A code book is a study's description of its columns, as a CSV. It is public by its purpose, and so is what a draft takes
from it. There are two kinds, recognized by their headers:

    name,type,min,max,categories,unit,labels   of which only name is needed. type is "numeric", "integer", "date",
                                            "categorical" or "identifier"; categories are parted by "|", else ";",
                                            else ","; labels say in words what each is, in the same order
    a data dictionary of REDCap             as its web page exports it, or its programming interface. Categories are the
                                            codes of the choices, as in an export of raw data
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from hedgerow.data.declarations import parse_declaration, without_declaration
from hedgerow.data.lines import read_header
from hedgerow.data.sources import column_names
from hedgerow.data.tables import existing_file, require_columns
from hedgerow.errors import DataError, UsageError
from hedgerow.plan.draft import Entry, draft_label, draft_survival, draft_text
from hedgerow.plan.fields import ISO_DATE, parse_day
from hedgerow.plan.names import is_identifier, usable_columns


def draft_plan(
    path: str | os.PathLike[str],
    label: str | tuple[str, str],
    *,
    epsilon: float = 1.0,
    codebook: Mapping[str, Entry] | None = None,
) -> str:
    """Return the text of a commented TOML plan for the table at `path`, for a person to fill in.

    Fields that only a person can know are left as comments; until they are filled in, `parse_plan` names each of them
    and its line. A draft follows from the header and the code book alone, comments included: no cell is read. Columns
    whose names look like identifiers are left out.

    Args:
        label: the column to be predicted; every other column becomes a feature. For times to an event, a pair: the
            column of the times, and that which says whether the event was seen then.
        codebook: what a code book says of columns; see `hedgerow.data.drafts`.

    Raises:
        DataError: the file cannot be read, or has no column `label`, or none `event`.
        UsageError: there is no column besides these, or both are one.
    """
    names = column_names(path)
    label, event = (label, None) if isinstance(label, str) else label
    if event == label:
        raise UsageError("usage-beside", option=f"--label {label}", other="--event of the same column")
    require_columns(os.fspath(path), [label, *([event] if event else [])], names)
    usable, book = usable_columns(names), codebook or {}
    features = {name: book.get(name, Entry()) for name in usable if name not in (label, event)}
    features |= {name: Entry("identifier") for name in features if is_identifier(name, book)}
    if all(entry.kind == "identifier" for entry in features.values()):
        raise UsageError("usage-no-features", path=os.fspath(path), label=label)
    own = book.get(label, Entry())
    own_text = draft_label(label, own) if event is None else draft_survival(label, event, book.get(event, Entry()))
    text = draft_text(features, own_text, epsilon)
    unusable = len(names) - len(usable)
    if unusable:
        text += (
            f"\n\n# Left out: {unusable} column(s) whose name is empty, has a line break or another mark that is not\n"
            "# seen, or is another one's too. Rename those that you need."
        )
    return text + "\n"


_REDCAP = {
    "variable / field name": "field_name",
    "field type": "field_type",
    "choices, calculations, or slider labels": "select_choices_or_calculations",
    "text validation type or show slider number": "text_validation_type_or_show_slider_number",
    "text validation min": "text_validation_min",
    "text validation max": "text_validation_max",
    "identifier?": "identifier",
}
"""Column heads of REDCap's web page -> the names in its programming interface."""
_BOOK_KINDS = {
    "numeric": "numeric", "number": "numeric", "float": "numeric", "real": "numeric", "continuous": "numeric",
    "integer": "integer", "int": "integer", "count": "integer",
    "categorical": "categorical", "category": "categorical", "factor": "categorical", "nominal": "categorical",
    "ordinal": "categorical", "binary": "categorical", "boolean": "categorical",
    "date": "date", "datetime": "date", "timestamp": "date",
    "identifier": "identifier", "id": "identifier", "text": "identifier", "": "",
}  # fmt: skip


def read_codebook(location: str) -> dict[str, Entry]:
    """Read a code book: each column's entry, by its name.

    Args:
        location: a CSV file; separator and encoding as for tables (`hedgerow.data.tables`).

    Raises:
        DataError: there is no such file, or it is empty or not in its encoding.
        UsageError: its header is not that of a code book, or a field says nothing.
    """
    place, declaration = without_declaration(location)
    file = existing_file(place)
    content = Path(file).read_bytes()
    header = read_header(content, parse_declaration(declaration))
    try:
        text = content.decode("utf-8-sig" if header.encoding == "utf-8" else header.encoding)
    except UnicodeDecodeError:
        raise DataError("data-encoding", source=place, where="the code book") from None
    names = [_REDCAP.get(name.lower(), name.lower()) for name in header.names]
    if "field_name" in names:
        read = _read_redcap_entry
    elif "name" in names:
        read = _read_plain_entry
    else:
        raise UsageError("codebook-header", path=place, present=", ".join(header.names))
    found: dict[str, Entry] = {}
    # Cells of a code book may hold line breaks. `strict` refuses an unclosed quotation mark, which would swallow rows.
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


def _read_plain_entry(row: Mapping[str, str], has_commas: bool) -> Iterator[tuple[str, Entry]]:
    word = row.get("type", "").lower()
    if word not in _BOOK_KINDS:
        raise ValueError(f"{word!r} is no type; it may be numeric, integer, date, categorical or identifier")
    kind, listed = _BOOK_KINDS[word], row.get("categories", "")
    separator = next((each for each in "|;," if each in listed), "|")
    codes = [part.strip() for part in listed.split(separator) if part.strip()]
    categories, words = _sort_codes(codes), [word.strip() for word in row.get("labels", "").split(separator)]
    labels = tuple(zip(codes, words, strict=True)) if all(words) and len(words) == len(codes) else ()
    read = _read_day if kind == "date" else partial(_parse_bound, has_commas=has_commas)
    low, high = (read(row.get(bound, "")) for bound in ("min", "max"))
    if not kind:
        kind = "categorical" if categories else "numeric" if low is not None or high is not None else ""
    own = "numeric" if kind == "integer" else kind
    if own in ("numeric", "date"):
        categories = labels = ()
    yield row["name"], Entry(own, kind == "integer", low, high, categories, row.get("unit", ""), labels)


def _read_redcap_entry(row: Mapping[str, str], has_commas: bool) -> Iterator[tuple[str, Entry]]:
    name, kind = row["field_name"], row.get("field_type", "").lower()
    checked = row.get("text_validation_type_or_show_slider_number", "").lower()
    low, high = (_parse_bound(row.get(f"text_validation_{bound}", ""), has_commas, checked) for bound in ("min", "max"))
    choices = row.get("select_choices_or_calculations", "")
    parted = (part.partition(",") for part in choices.split("|") if part.strip())
    labels = tuple((code.strip(), word.strip()) for code, _, word in parted)
    codes = [code for code, _ in labels]
    if row.get("identifier", "").lower() in ("y", "yes", "1"):
        yield name, Entry("identifier")
    elif kind == "checkbox":
        # Each choice is a column of its own in an export.
        for code in codes:
            yield f"{name}___{code.lower().replace('-', '_')}", Entry("categorical", categories=("0", "1"))
    elif kind in ("yesno", "truefalse"):
        said = ("No", "Yes") if kind == "yesno" else ("False", "True")
        yield name, Entry("categorical", categories=("0", "1"), labels=tuple(zip("01", said, strict=True)))
    elif kind in ("radio", "dropdown"):
        yield name, Entry("categorical", categories=_sort_codes(codes), labels=labels)
    elif kind == "slider":
        yield name, Entry("numeric", True, 0.0 if low is None else low, 100.0 if high is None else high)
    elif kind == "text" and (checked == "integer" or checked.startswith("number")):
        yield name, Entry("numeric", checked == "integer", low, high)
    elif kind == "calc":
        yield name, Entry("numeric")
    elif kind == "text" and checked.startswith("date"):
        # Whatever order of day and month its form shows, an export of raw data has ISO 8601.
        words = (row.get(f"text_validation_{bound}", "") for bound in ("min", "max"))
        low, high = (_read_day(word) if re.match(ISO_DATE, word) else None for word in words)
        yield name, Entry("date", False, low, high)
    elif kind in ("text", "notes") and not checked.startswith("time"):
        yield name, Entry("identifier")
    elif kind != "descriptive":
        yield name, Entry()


def _parse_bound(text: str, has_commas: bool, checked: str = "number") -> float | None:
    """Parse a bound; return None for an empty field, or a field that is not checked as a number."""
    if not text or not (checked == "integer" or checked.startswith("number")):
        return None
    plain = text.replace(",", ".") if has_commas or checked.endswith("comma_decimal") else text
    value = float(plain) if re.fullmatch(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?", plain, re.IGNORECASE) else math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a number")
    return value


def _read_day(text: str) -> float | None:
    """Read a date's bound as days since 1970-01-01; return None for an empty field."""
    try:
        return parse_day(text) if text else None
    except ValueError:
        raise ValueError(f"{text!r} is not a date such as 2020-01-31") from None


def _sort_codes(codes: list[str]) -> tuple[str, ...]:
    """Return each code once, numbers by size.

    The 1 of 1 and 0 then comes last, as the positive class does.
    """
    distinct = list(dict.fromkeys(codes))
    try:
        return tuple(sorted(distinct, key=float))
    except ValueError:
        return tuple(distinct)
