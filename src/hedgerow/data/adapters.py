# SPDX-License-Identifier: Apache-2.0
"""A site's own way of writing its table, declared in the `[data]` table of a site's own file.

    [data]
    separator = "semicolon"                        # of CSV files: comma, semicolon, tab, pipe
    encoding = "cp1252"                            # of CSV files
    decimal = "comma"                              # "3,5" is 3.5, in every source
    skip = 2                                       # lines of titles before the header of CSV files
    repeated = "number"                            # two columns "bp" of CSV files are called bp.1 and bp.2
    missing = [".", -999]                          # in all columns; or a table: missing.pulse = [0, -999]
    rename = {age_years = "age"}                   # the table's name = the plan's name
    recode.sex = {M = "male", F = "female"}        # the table's text = the plan's text
    date.admitted = "%d.%m.%Y"                     # how text writes a date
    scale.age = "days to years"                    # a name of `UNITS`, or a factor

All lines except `rename` call columns by the plan's names. The plan does not contain this table, and none of it leaves
the site.

Each cell is changed by itself. `recode` and `missing` are applied to its text (`recode` wins if both name it), then
`date` or `scale`. A cell's text is that of `hedgerow.data.columns`, so "1" stands for 1, 1.0 and "1". The result
depends on this file and that cell alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow.data.declarations import DECIMALS, MAX_SKIPPED, SEPARATORS, parse_declaration
from hedgerow.errors import PlanError, UsageError
from hedgerow.plan import fields

UNITS: Mapping[str, tuple[float, float]] = {
    "days to years": (1 / 365.25, 0.0),
    "weeks to years": (7 / 365.25, 0.0),
    "months to years": (1 / 12, 0.0),
    "hours to days": (1 / 24, 0.0),
    "m to cm": (100.0, 0.0),
    "cm to m": (0.01, 0.0),
    "inches to cm": (2.54, 0.0),
    "g to kg": (0.001, 0.0),
    "pounds to kg": (0.45359237, 0.0),
    "fahrenheit to celsius": (5 / 9, -160 / 9),
}
"""Unit name -> the factor that a number is multiplied by, and the summand that is added then."""

EVERY_COLUMN = ""


@fields.allows({"type": "string"})
def _read_encoding(value: Any, path: str) -> str:
    """Read an encoding in which CSV files may be declared."""
    try:
        parse_declaration(f"encoding={fields.text(value, path)}")
    except UsageError:
        expected = 'utf-8, utf-16, or one with a byte for each character, such as "cp1252"'
        raise fields.refuse(path, value, expected) from None
    return str(value)


def _by_column(each: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON Schema of a table that has one such value per column."""
    return {"type": "object", "additionalProperties": each}


def _require_table(value: Any, path: str, expected: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise fields.refuse(path, value, expected)
    return value


@fields.allows(_by_column(fields.allowed_by(fields.text)))
def _read_renames(value: Any, path: str) -> tuple[tuple[str, str], ...]:
    found = _require_table(value, path, 'a table such as {age_years = "age"}')
    names = tuple((name, fields.text(new, f"{path}.{name}")) for name, new in found.items())
    if len({new for _, new in names}) < len(names):
        raise fields.refuse(path, dict(names), "another new name for each column")
    return names


@fields.allows(_by_column(_by_column(fields.allowed_by(fields.distinct_texts)["items"])))
def _recodes(value: Any, path: str) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    expected = 'a table for each column, such as sex = {M = "male", F = "female"}'
    found = []
    for column, codes in _require_table(value, path, expected).items():
        pairs = _require_table(codes, f"{path}.{column}", expected)
        # As in lists of categories, a number stands for its text.
        texts = [(old, fields.distinct_texts([new], f"{path}.{column}.{old}")[0]) for old, new in pairs.items()]
        found.append((column, tuple(texts)))
    return tuple(found)


@fields.allows(
    {"anyOf": [fields.allowed_by(fields.distinct_texts), _by_column(fields.allowed_by(fields.distinct_texts))]}
)
def _read_missing(value: Any, path: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(value, Mapping):
        return ((EVERY_COLUMN, fields.distinct_texts(value, path)),)
    return tuple((column, fields.distinct_texts(texts, f"{path}.{column}")) for column, texts in value.items())


@fields.allows(_by_column(fields.allowed_by(fields.date_format)))
def _read_dates(value: Any, path: str) -> tuple[tuple[str, str], ...]:
    found = _require_table(value, path, 'a table of formats, such as {admitted = "%d.%m.%Y"}')
    return tuple((column, fields.date_format(layout, f"{path}.{column}")) for column, layout in found.items())


@fields.allows(_by_column({"anyOf": [{"type": "number"}, {"enum": list(UNITS)}]}))
def _read_scales(value: Any, path: str) -> tuple[tuple[str, tuple[float, float]], ...]:
    found = []
    for column, factor in _require_table(value, path, 'a table of factors, such as {age = "days to years"}').items():
        is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
        is_factor = is_number and math.isfinite(factor) and factor != 0
        if not is_factor and (not isinstance(factor, str) or factor not in UNITS):
            names = ", ".join(f'"{name}"' for name in UNITS)
            raise fields.refuse(f"{path}.{column}", factor, f"a factor other than 0, or one of {names}")
        found.append((column, UNITS[factor] if isinstance(factor, str) else (float(factor), 0.0)))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A site's own way of writing its table; the fields are those at the head of this file.

    Attributes:
        separator, decimal, encoding: how CSV files are written, where it does not follow from the file (docs/data.md).
        skip: number of lines of titles before the header of CSV files.
        repeated: "number" calls two columns of one name NAME.1 and NAME.2 in CSV files; without it neither can be read.
        missing: texts that mean "no value", by column; "" is every column.
        rename: names of the table with the plan's names.
        recode: by column, texts of the table with the plan's texts.
        date: by column, how text writes a date.
        scale: by column, the factor, and the summand that is added after it.
    """

    separator: str = fields.define_field(fields.one_of(*SEPARATORS), "")
    decimal: str = fields.define_field(fields.one_of(*DECIMALS), "")
    encoding: str = fields.define_field(_read_encoding, "")
    skip: int = fields.define_field(fields.integer(0, MAX_SKIPPED), 0)
    repeated: str = fields.define_field(fields.one_of("number"), "")
    missing: tuple[tuple[str, tuple[str, ...]], ...] = fields.define_field(_read_missing, ())
    rename: tuple[tuple[str, str], ...] = fields.define_field(_read_renames, ())
    recode: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = fields.define_field(_recodes, ())
    date: tuple[tuple[str, str], ...] = fields.define_field(_read_dates, ())
    scale: tuple[tuple[str, tuple[float, float]], ...] = fields.define_field(_read_scales, ())

    @property
    def columns(self) -> set[str]:
        """The columns that a line names, by the plan's names."""
        own = {name for part in (self.missing, self.recode, self.date, self.scale) for name, _ in part}
        return own - {EVERY_COLUMN} | {new for _, new in self.rename}


PLAIN = Adapter()
"""The adapter of a site that writes its table as the plan does."""


def adapter(value: Any, path: str) -> Adapter:
    """Read a `[data]` table, and check it; raise PlanError."""
    found = fields.read_section(Adapter, value, path)
    twice = {name for name, _ in found.date} & {name for name, _ in found.scale}
    if twice:
        raise fields.refuse(f"{path}.scale", min(twice), "no column that is a date")
    return found


def read_adapter(path: str) -> Adapter:
    """Read the adapter from a site's own file: a policy, or a file with a `[data]` table only.

    Raises UsageError.
    """
    try:
        content = fields.read_toml(Path(path).read_text(encoding="utf-8-sig"))
        if "data" not in content:
            raise UsageError("adapter-not-read", path=path, fault="there is no table [data]")
        return adapter(content["data"], "data")
    except OSError as fault:
        raise UsageError("adapter-not-read", path=path, fault=fault.strerror or fault) from None
    except PlanError as fault:
        what, cause, remedy = f"{path}: {fault.what}", fault.cause, fault.remedy
        raise UsageError("policy-file", code="adapter-file", what=what, cause=cause, remedy=remedy) from None
    except ValueError as fault:
        raise (
            fault
            if isinstance(fault, UsageError)
            else UsageError("not-toml", code="adapter-file", name=path, fault=fault)
        ) from None
