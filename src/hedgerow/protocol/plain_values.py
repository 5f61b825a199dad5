"""Plain values from others' files and messages: read without harm to the reader, and fit to be shown to a person.

TOML and JSON can nest deeper than Python's stack, hold numbers that no double and no decimal text holds, and texts that
a terminal takes for commands, or that read another way than they are. What is read here has none of these.
"""

from __future__ import annotations

import json
import tomllib
import unicodedata
from collections.abc import Mapping
from typing import Any, TypeGuard

DEEPEST = 32
"""Tables and lists inside one another."""
LARGEST = 1 << 128
"""No bound of a plan, and no integer of a model, is as large."""
_BREAKS = {"Zl", "Zp"}
"""Separators of lines and paragraphs."""


def read_toml(text: str) -> dict[str, Any]:
    """The table in a text of TOML; ValueError, fit to be shown, for what is none or holds what is not plain."""
    table = parse_toml(text)
    require_plain(table)
    return table


def parse_toml(text: str) -> dict[str, Any]:
    """The same without the check, for who checks the table; ValueError, fit to be shown, for what is none."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    except ValueError as fault:
        # Also an integer of more digits than Python reads; the words quote the text.
        raise ValueError(shown(str(fault))) from None


def read_json(text: str | bytes) -> Any:
    """The value in a text of JSON; ValueError, fit to be shown, for what is none or holds what is not plain."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    except ValueError as fault:
        raise ValueError(shown(str(fault))) from None
    require_plain(value)
    return value


def require_plain(value: object) -> None:
    """Raises ValueError, fit to be shown, for nesting beyond 32, integers beyond 2**128, and texts, names of fields
    among them, with characters that are not shown as they are. It begins with the dotted path of what is wrong.
    """
    level: list[tuple[str, object]] = [("", value)]
    for _ in range(DEEPEST):
        inner: list[tuple[str, object]] = []
        for path, item in level:
            if isinstance(item, str):
                _require_showable(item, path)
            elif isinstance(item, int) and not -LARGEST <= item <= LARGEST:
                raise ValueError(f"{path or 'it'}: an integer of {item.bit_length()} bits is too large")
            elif isinstance(item, Mapping):
                for name in filter(_is_text, item):
                    _require_showable(name, f"{path or 'it'}: the name of a field")
                inner += [(f"{path}.{name}" if path else str(name), each) for name, each in item.items()]
            elif isinstance(item, list | tuple):
                inner += [(f"{path}[{place}]", each) for place, each in enumerate(item) if not isinstance(each, float)]
        if not inner:
            return
        level = inner
    raise ValueError(_too_deep())


def shown(text: str) -> str:
    """The text as a person may see it: characters that a terminal could take for something else as their numbers."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"\\u{ord(each):04x}" if _is_hidden(each) else each for each in text)


def _require_showable(text: str, path: str) -> None:
    if text.isascii() and text.isprintable():
        return
    for each in text:
        if _is_hidden(each):
            # Python escapes in its literals what this refuses.
            said = f"{text[:40]!r} is not allowed, for U+{ord(each):04X} is not shown as what it is"
            raise ValueError(f"{path}: {said}" if path else said)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _is_hidden(character: str) -> bool:
    """Whether it controls, reorders or separates text, has no width, or stands for nothing (category C, Zl, Zp)."""
    category = unicodedata.category(character)
    return category.startswith("C") or category in _BREAKS


def _too_deep() -> str:
    return f"its tables and lists are nested more than {DEEPEST} deep"
