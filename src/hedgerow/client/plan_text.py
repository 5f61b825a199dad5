"""A plan as the text of its TOML file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hedgerow.protocol.plan import Plan


def plan_toml(plan: Plan) -> str:
    """TOML that `parse_plan` reads back to an equal plan; comments of the file it came from are not kept."""
    table = plan.to_dict()
    parts = [f"version = {table['version']}\nname = {quoted(table['name'])}\n"]
    # The algorithm's own section, if the plan has one, is a table like the others.
    parts += [toml_section(name, values) for name, values in table.items() if isinstance(values, Mapping)]
    parts += [toml_section("[features]", feature) for feature in table["features"]]
    return "\n".join(parts)


def toml_section(name: str, values: Mapping[str, Any], *, commented: bool = False) -> str:
    """One TOML table; without a header when the name is empty, as comments if so wished."""
    lines = [f"[{name}]"] if name else []
    lines += [f"{field} = {toml_value(value)}" for field, value in values.items()]
    return "".join(f"# {line}\n" if commented else f"{line}\n" for line in lines)


def toml_value(value: Any) -> str:
    """A number, a boolean, text, or a list of these, as TOML.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, int | float):
        return repr(value)
    raise TypeError(f"{type(value).__name__} is no value of a plan")


def quoted(text: str) -> str:
    """A TOML basic string (TOML 1.0, section String): control characters, quotes and backslashes are escaped."""
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character < " " or character == "\x7f":
        return f"\\u{ord(character):04x}"
    return character
