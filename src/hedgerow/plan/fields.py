# SPDX-License-Identifier: Apache-2.0
"""Plain values from others' files and messages, and the checks of a plan's fields.

TOML and JSON can nest deeper than Python's stack, and hold numbers beyond any double. Their texts can contain terminal
commands, or letters that mislead a reader. Values that are read here have none of these. A check names the field, its
value, and the fix.
"""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import json
import math
import re
import textwrap
import tomllib
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hedgerow.errors import PlanError

DEEPEST = 32
"""Tables and lists inside one another."""
MAX_VALUES = 250_000
"""Largest number of values in a plan; 20,000 features need half of it. More would take a node seconds to read."""
MAX_INTEGER = 1 << 128
"""Limit of integers, above every bound of a plan and every integer of a model."""
_KEY = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_DEEP_KEY = re.compile(rf"(?<![\w-]){_KEY}(?:[ \t]*\.[ \t]*{_KEY}){{{DEEPEST}}}")
_BREAKS = {"Zl", "Zp"}
"""Separators of lines and paragraphs."""


def read_toml(text: str) -> dict[str, Any]:
    """Read a table from TOML text.

    Raises:
        ValueError: other text, or values that are not plain; its message may be shown.
    """
    table = parse_toml(text)
    require_plain(table)
    return table


def parse_toml(text: str) -> dict[str, Any]:
    """Read a table from TOML text without checking its values.

    Raises:
        ValueError: other text; its message may be shown.
    """
    # A key of n parts costs Python's reader n * n steps: one of 64 kB, sent by a stranger, 20 seconds.
    if any(line.count(".") >= DEEPEST and _DEEP_KEY.search(line) for line in text.splitlines()):
        raise ValueError(_too_deep())
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    except ValueError as fault:
        # This includes integers with more digits than Python reads. The message quotes the text, so it is escaped.
        raise ValueError(escape_for_terminal(str(fault))) from None


def read_json(text: str | bytes, most: float = math.inf) -> Any:
    """Read a value from JSON text.

    Args:
        most: largest number of values inside it.

    Raises:
        ValueError: other text, or values that are not plain; its message may be shown.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    except ValueError as fault:
        raise ValueError(escape_for_terminal(str(fault))) from None
    require_plain(value, most)
    return value


def require_plain(value: object, most: float = math.inf) -> None:
    """Refuse values that are nested too deeply, too large, too many, or hard to show.

    Args:
        most: largest number of values inside.

    Raises:
        ValueError: nesting beyond 32, integers beyond 2**128, more than `most` values, or texts and names of fields
            with characters that are not shown as they are. Its message may be shown, and begins with the dotted path.
    """
    level: list[tuple[str, object]] = [("", value)]
    n_values = 0
    for _ in range(DEEPEST):
        inner: list[tuple[str, object]] = []
        for path, item in level:
            if isinstance(item, Mapping | list | tuple) and (n_values := n_values + len(item)) > most:
                raise ValueError(f"{path or 'it'}: there are more than {most:,} values")
            if isinstance(item, str):
                _require_showable(item, path)
            elif isinstance(item, int) and not -MAX_INTEGER <= item <= MAX_INTEGER:
                raise ValueError(f"{path or 'it'}: an integer of {item.bit_length()} bits is too large")
            elif isinstance(item, Mapping):
                for name in item:
                    if isinstance(name, str):
                        _require_showable(name, f"{path or 'it'}: the name of a field")
                inner += [(f"{path}.{name}" if path else str(name), each) for name, each in item.items()]
            elif isinstance(item, list | tuple):
                inner += [(f"{path}[{place}]", each) for place, each in enumerate(item) if not isinstance(each, float)]
        if not inner:
            return
        level = inner
    raise ValueError(_too_deep())


def escape_for_terminal(text: str) -> str:
    """Escape characters that a terminal could misread, each by its number, for a person to read."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if not _is_hidden(each) else f"\\u{ord(each):04x}" if each <= "\uffff" else f"\\U{ord(each):08x}"
        for each in text
    )


def _require_showable(text: str, path: str) -> None:
    if text.isascii() and text.isprintable():
        return
    for each in text:
        if _is_hidden(each):
            # Python escapes in its literals what this refuses.
            said = f"{text[:40]!r} is not allowed, for U+{ord(each):04X} is not shown as what it is"
            raise ValueError(f"{path}: {said}" if path else said)


def _is_hidden(character: str) -> bool:
    """Return whether a character controls, reorders or separates text, has no width, or has no meaning.

    These are the Unicode categories C, Zl and Zp.
    """
    category = unicodedata.category(character)
    return category.startswith("C") or category in _BREAKS


def _too_deep() -> str:
    return f"its tables and lists are nested more than {DEEPEST} deep"


Check = Callable[[Any, str], Any]
"""Takes a field's value and its dotted path, and returns the value to be kept; PlanError for one that may not be."""
SomeCheck = TypeVar("SomeCheck", bound=Check)
Section = TypeVar("Section")
JsonSchema = Mapping[str, Any]


def allows(schema: JsonSchema | Callable[[], JsonSchema]) -> Callable[[SomeCheck], SomeCheck]:
    """Decorate a check with the JSON Schema of what it accepts, by which editors underline the rest."""

    def note(check: SomeCheck) -> SomeCheck:
        vars(check)["schema"] = schema
        return check

    return note


def allowed_by(check: Check) -> JsonSchema:
    """Return the JSON Schema declared by a check; {} for a check without one, which may accept anything."""
    schema: JsonSchema | Callable[[], JsonSchema] = vars(check).get("schema", {})
    return schema() if callable(schema) else schema


def _or_words(schema: dict[str, Any], words: tuple[str, ...]) -> JsonSchema:
    return {"anyOf": [schema, {"enum": list(words)}]} if words else schema


def refuse(path: str, found: object, expected: str) -> PlanError:
    """Make the error for one field: `path` is its dotted name, `found` the offending value."""
    return PlanError("plan-field", path=path, found=quote(found), expected=expected)


def quote(found: object) -> str:
    """Return an offending value escaped for a person, cut to 60 characters."""
    # Python refuses to write an integer of many digits, so only its size is shown.
    found = found if not isinstance(found, int) or abs(found) <= MAX_INTEGER else f"{found.bit_length()} bits"
    said = escape_for_terminal(repr(found))
    return said if len(said) <= 60 else said[:57] + "..."


def integer(low: int, high: int, *also: str) -> Check:
    """Make a check for an integer in [low, high], or one of the words in `also`."""
    words = "".join(f', or "{word}"' for word in also)

    @allows(_or_words({"type": "integer", "minimum": low, "maximum": high}, also))
    def check(value: Any, path: str) -> Any:
        if isinstance(value, str) and value in also:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise refuse(path, value, f"an integer from {low} to {high}{words}")
        return value

    return check


def number(low: float, high: float, *also: str, exclusive: bool = False) -> Check:
    """Make a check for a number in [low, high], or one of the words in `also`.

    With `exclusive` the number is in (low, high). `high` may be infinite.
    """
    words = "".join(f', or "{word}"' for word in also)
    between = "strictly between" if exclusive else "from"
    joiner = "and" if exclusive else "to"
    least, most = ("exclusiveMinimum", "exclusiveMaximum") if exclusive else ("minimum", "maximum")
    # JSON has no infinity: editors read TOML's infinity as null.
    ends = {"type": "number", least: low, most: high} if high < math.inf else {"type": ["number", "null"], least: low}

    @allows(_or_words(ends, also))
    def check(value: Any, path: str) -> Any:
        if isinstance(value, str) and value in also:
            return value
        expected = f"a number {between} {low:g} {joiner} {high:g}{words}"
        # An integer of hundreds of digits fits no double.
        is_number = not isinstance(value, bool) and isinstance(value, int | float)
        if not is_number or (isinstance(value, int) and abs(value) > MAX_INTEGER) or math.isnan(value):
            raise refuse(path, value, expected)
        inside = low < value < high if exclusive else low <= value <= high
        if not inside:
            raise refuse(path, value, expected)
        return float(value)

    return check


def one_of(*words: str) -> Check:
    """Make a check for one of the given words."""

    @allows({"enum": list(words)})
    def check(value: Any, path: str) -> Any:
        if not isinstance(value, str) or value not in words:
            raise refuse(path, value, "one of " + ", ".join(f'"{word}"' for word in words))
        return value

    return check


def some_of(*words: str) -> Check:
    """Make a check for a list of distinct words out of the given ones."""
    each = one_of(*words)

    @allows({"type": "array", "items": {"enum": list(words)}, "uniqueItems": True})
    def check(value: Any, path: str) -> Any:
        return tuple(each(word, path) for word in distinct_texts(value, path))

    return check


@allows({"type": "boolean"})
def boolean(value: Any, path: str) -> bool:
    """Check for true or false."""
    if not isinstance(value, bool):
        raise refuse(path, value, "true or false")
    return value


@allows({"type": "string", "pattern": r"^[^\n]*\S[^\n]*$"})
def text(value: Any, path: str) -> str:
    """Check for a non-empty line of text."""
    if not isinstance(value, str) or not value.strip() or "\n" in value:
        raise refuse(path, value, "a non-empty line of text")
    return value


@allows({"type": "array", "items": {"not": {"type": ["array", "object", "null"]}}, "uniqueItems": True})
def distinct_texts(value: Any, path: str) -> tuple[str, ...]:
    """Check for a list of distinct values; each is kept as the text by which data write it."""
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise refuse(path, value, "a list of distinct values")
    if any(item is None or isinstance(item, Mapping | list | tuple | bytes) for item in value):
        raise refuse(path, value, "a list of distinct texts or numbers")
    words = tuple(as_text(item) for item in value)
    if len(set(words)) != len(words):
        twice = next(word for word in words if words.count(word) > 1)
        raise refuse(path, twice, "distinct values")
    return words


@allows({"type": "array", "items": {**allowed_by(distinct_texts), "minItems": 1}})
def groups(value: Any, path: str) -> tuple[tuple[str, ...], ...]:
    """Check for a list of non-empty lists of distinct names."""
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise refuse(path, value, 'a list of groups of features, such as [["age", "bmi"], ["sex"]]')
    found = tuple(distinct_texts(group, f"{path}[{index}]") for index, group in enumerate(value))
    if () in found:
        raise refuse(f"{path}[{found.index(())}]", [], "a group of one feature at least")
    return found


@allows({"type": "array", "items": {"type": "number"}})
def ascending_numbers(value: Any, path: str) -> tuple[float, ...]:
    """Check for a list of finite numbers, each above the one before."""
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise refuse(path, value, "a list of numbers, each above the one before")
    found = tuple(number(-3e38, 3e38)(item, f"{path}[{index}]") for index, item in enumerate(value))
    for index in range(1, len(found)):
        if found[index] <= found[index - 1]:
            raise refuse(f"{path}[{index}]", found[index], f"a number above the one before, {found[index - 1]:g}")
    return found


def list_of(each: Check) -> Check:
    """Make a check for a list whose values each pass the check `each`."""

    @allows({"type": "array", "items": allowed_by(each)})
    def check(value: Any, path: str) -> Any:
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise refuse(path, value, "a list")
        return tuple(each(item, f"{path}[{index}]") for index, item in enumerate(value))

    return check


_ISO_TIME = r"[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?"
ISO_DATE = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}({_ISO_TIME})?$"
"""A date of ISO 8601, or a moment; one that names no time zone is taken as UTC."""
DATE_PARTS = {"Y": "([0-9]{4})", "m": "([0-9]{1,2})", "d": "([0-9]{1,2})"} | dict.fromkeys("HMS", "([0-9]{1,2})")
"""Parts of a date's format, by the letter after %: year, month, day, hour, minute, second."""
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECONDS = 86_400 * 10**6
FIRST_DAY, LAST_DAY = -719_162.0, 2_932_896.0
"""0001-01-01 and 9999-12-31."""


def parse_day(text: str) -> float:
    """Days from 1970-01-01 to a date or moment of ISO 8601, to the microsecond; ValueError for other text."""
    if not re.fullmatch(ISO_DATE, text):
        raise ValueError(text)
    found = datetime.datetime.fromisoformat(text)
    found = found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)
    return (found - _EPOCH) / datetime.timedelta(microseconds=1) / _MICROSECONDS


def format_day(days: float) -> str:
    """Write days since 1970-01-01 as ISO 8601, as a date if the number is whole.

    `parse_day` reads the same number back, if `parse_day` can give it.

    Raises:
        OverflowError: beyond the years 1 to 9999, which `FIRST_DAY` and `LAST_DAY` bound.
    """
    found = _EPOCH.replace(tzinfo=None) + datetime.timedelta(microseconds=round(days * _MICROSECONDS))
    return found.date().isoformat() if found.time() == datetime.time() else found.isoformat()


def days_between(low: float, high: float) -> tuple[float, float]:
    """Round found bounds of days outwards to whole days, within the years that can be written."""
    first = min(max(math.floor(low), FIRST_DAY), LAST_DAY - 1)
    return first, max(min(math.ceil(high), LAST_DAY), first + 1)


@allows({"type": "string", "pattern": "%"})
def date_format(value: Any, path: str) -> str:
    """Check for a date format: %Y, %m and %d, each once, and optionally %H, %M and %S.

    Other characters stand for themselves.
    """
    parts = re.findall("%(.)", text(value, path))
    has_parts = {"Y", "m", "d"} <= set(parts) <= set(DATE_PARTS) and len(set(parts)) == len(parts)
    if not has_parts or "%" in re.sub("%.", "", value):
        raise refuse(path, value, 'a format with each of %Y, %m and %d once, such as "%d.%m.%Y" or "%d/%m/%Y %H:%M"')
    return str(value)


def as_text(value: object) -> str:
    """Return the canonical text of a category or class: integral numbers without a decimal point."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def define_field(check: Check, default: Any = dataclasses.MISSING, **facts: Any) -> Any:
    """Make a dataclass field with its check, and with further facts for its reader."""
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata={"check": check, **facts})
    return dataclasses.field(default=default, metadata={"check": check, **facts})


def read_section(section: type[Section], table: object, path: str) -> Section:
    """Build the dataclass `section` from a table, refusing unknown, missing and ill-typed fields.

    Raises:
        PlanError: with the dotted path of the offending field.
    """
    if not isinstance(table, Mapping):
        raise refuse(path, table, "a table of fields")
    fields = {field.name: field for field in list_fields(section)}
    for name in table:
        if name not in fields:
            raise PlanError("plan-unknown-field", path=path, name=name, fields=", ".join(fields))
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in table and table[name] is not None:
            values[name] = field.metadata["check"](table[name], f"{path}.{name}")
        elif field.default is dataclasses.MISSING:
            raise _missing(section, table, path, name)
    return section(**values)


def list_fields(section: type) -> list[dataclasses.Field[Any]]:
    """List the fields of a dataclass that a file may have: all but those declared with `in_file=False`."""
    return [field for field in dataclasses.fields(section) if field.metadata.get("in_file", True)]


def _missing(section: type, table: Mapping[str, object], path: str, first: str) -> PlanError:
    """Make the error about a field that has no default; it names all missing fields of the section."""
    needed = [field.name for field in list_fields(section) if field.default is dataclasses.MISSING]
    others = [name for name in needed if name != first and table.get(name) is None]
    also = f" So {'are' if len(others) > 1 else 'is'} {', '.join(others)}." if others else ""
    return PlanError("plan-missing-field", path=path, name=first, value="", also=also)


def read_sentences(owner: type) -> dict[str, str]:
    """Read the docstrings of a class and its bases for the line about each attribute or parameter."""
    doc = "\n\n".join(inspect.cleandoc(each.__doc__ or "") for each in owner.__mro__[::-1])
    found: dict[str, str] = {}
    for part in re.findall(r"^.*:\n((?:[ ]{4}.*(?:\n|$))+)", doc, re.MULTILINE):
        entries = re.split(r"\n(?=\S)", textwrap.dedent(part).strip())
        for names, _, said in (" ".join(entry.split()).partition(": ") for entry in entries):
            if not said.startswith("as in `DP"):
                found |= dict.fromkeys(re.split(r",\s*", names), said)
    return found
