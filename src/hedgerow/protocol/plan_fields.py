"""Checks for the fields of a plan: each names the field, what it found, and the fix."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hedgerow.protocol.errors import PlanError
from hedgerow.protocol.plain_values import LARGEST, shown

Check = Callable[[Any, str], Any]
Section = TypeVar("Section")


def refuse(path: str, found: object, expected: str, remedy: str = "") -> PlanError:
    """The error for one field: `path` is its dotted name, `found` the offending value."""
    # A part is enough, and Python writes no integer of many digits out.
    found = found if not isinstance(found, int) or abs(found) <= LARGEST else f"{found.bit_length()} bits"
    said = shown(repr(found))
    if len(said) > 60:
        said = said[:57] + "..."
    return PlanError(
        f"{path}: {said} is not allowed; expected {expected}.",
        remedy=remedy or f"Set {path} to {expected}.",
        code="plan-field",
    )


def integer(low: int, high: int, *also: str) -> Check:
    """An integer in [low, high], or one of the words in `also`."""
    words = "".join(f', or "{word}"' for word in also)

    def check(value: Any, path: str) -> Any:
        if isinstance(value, str) and value in also:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise refuse(path, value, f"an integer from {low} to {high}{words}")
        return value

    return check


def number(low: float, high: float, *also: str, exclusive: bool = False) -> Check:
    """A finite number in [low, high] (in (low, high) when `exclusive`), or one of the words in `also`."""
    words = "".join(f', or "{word}"' for word in also)
    between = "strictly between" if exclusive else "from"
    joiner = "and" if exclusive else "to"

    def check(value: Any, path: str) -> Any:
        if isinstance(value, str) and value in also:
            return value
        expected = f"a number {between} {low:g} {joiner} {high:g}{words}"
        # No double holds an integer of hundreds of digits.
        is_number = not isinstance(value, bool) and isinstance(value, int | float)
        if not is_number or (isinstance(value, int) and abs(value) > LARGEST) or math.isnan(value):
            raise refuse(path, value, expected)
        inside = low < value < high if exclusive else low <= value <= high
        if not inside:
            raise refuse(path, value, expected)
        return float(value)

    return check


def one_of(*words: str) -> Check:
    """One of the given words."""

    def check(value: Any, path: str) -> Any:
        if not isinstance(value, str) or value not in words:
            raise refuse(path, value, "one of " + ", ".join(f'"{word}"' for word in words))
        return value

    return check


def boolean(value: Any, path: str) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise refuse(path, value, "true or false")
    return value


def text(value: Any, path: str) -> str:
    """A non-empty line of text."""
    if not isinstance(value, str) or not value.strip() or "\n" in value:
        raise refuse(path, value, "a non-empty line of text")
    return value


def distinct_texts(value: Any, path: str) -> tuple[str, ...]:
    """A list of distinct values, kept as the text in which the data writes them."""
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise refuse(path, value, "a list of distinct values")
    if any(item is None or isinstance(item, Mapping | list | tuple | bytes) for item in value):
        raise refuse(path, value, "a list of distinct texts or numbers")
    words = tuple(as_text(item) for item in value)
    if len(set(words)) != len(words):
        twice = next(word for word in words if words.count(word) > 1)
        raise refuse(path, twice, "distinct values", f"Remove the repeated {twice!r} from {path}.")
    return words


def as_text(value: object) -> str:
    """The canonical text of a category or class: integral numbers without a decimal point."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def checked(check: Check, default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field that carries its check."""
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata={"check": check})
    return dataclasses.field(default=default, metadata={"check": check})


def read_section(section: type[Section], table: object, path: str) -> Section:
    """Build the dataclass `section` from a table, refusing unknown, missing and ill-typed fields.

    Raises:
        PlanError: with the dotted path of the offending field.
    """
    if not isinstance(table, Mapping):
        raise refuse(path, table, "a table of fields")
    fields = {field.name: field for field in dataclasses.fields(section)}  # type: ignore[arg-type]
    for name in table:
        if name not in fields:
            raise PlanError(
                f"{path}.{name}: there is no such field.",
                cause="It may be misspelled, or belong to another section.",
                remedy=f"The fields of {path} are: {', '.join(fields)}.",
                code="plan-unknown-field",
            )
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in table and table[name] is not None:
            values[name] = field.metadata["check"](table[name], f"{path}.{name}")
        elif field.default is dataclasses.MISSING:
            raise PlanError(
                f"{path}.{name} is missing.",
                remedy=f"Add {name} to {path}: it has no default, because only you can know it.",
                code="plan-missing-field",
            )
    return section(**values)
