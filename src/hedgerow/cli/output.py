"""What the commands print: errors in three parts, JSON, aligned facts, wrapped reports. No heavy imports."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from hedgerow.errors import HedgerowError
from hedgerow.plan.fields import shown

WIDEST = 100
"""Longer lines are hard to read, however wide the terminal."""


def width() -> int:
    """Columns to write in."""
    return max(40, min(WIDEST, shutil.get_terminal_size().columns))


def report_error(error: HedgerowError, *, as_json: bool, exit_code: int | None = None) -> int:
    """Print an error to stderr, what happened, the likely cause and what to do; returns the exit code."""
    code = error.exit_code if exit_code is None else exit_code
    remedy = error.remedy
    if error.code == "missing-extra":
        # Another environment's pip would install it where Hedgerow does not look.
        remedy = remedy.replace("pip install", f"{typed('pip')} install")
    if as_json:
        content = {
            "code": error.code,
            "exit_code": code,
            "what": error.what,
            "cause": error.cause,
            "remedy": remedy,
        }
        print(json.dumps({"error": content}), file=sys.stderr)
        return code
    print(_paragraph(_styled("Error", "1;31", sys.stderr) + "   ", len("Error   "), error.what), file=sys.stderr)
    for title, text in (("Cause", error.cause), ("To do", remedy)):
        if text:
            print(_paragraph(_styled(title, "1", sys.stderr) + "   ", len(title) + 3, text), file=sys.stderr)
    print(_styled(f"        ({error.code}, exit code {code})", "2", sys.stderr), file=sys.stderr)
    return code


def print_json(content: Mapping[str, Any]) -> None:
    """One JSON object on stdout; numbers that JSON does not know become null or "infinite"."""
    print(json_text(content))


def json_text(content: Mapping[str, Any], *, indent: int | None = 2) -> str:
    """The object as `print_json` prints it, without a newline at its end; without `indent`, in one line."""
    return json.dumps(_json_value(content), ensure_ascii=False, indent=indent, allow_nan=False)


def print_facts(facts: Sequence[tuple[str, str]], *, indent: str = "  ") -> None:
    """Name and value, aligned; long values are wrapped."""
    longest = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        print(_paragraph(f"{indent}{name:<{longest}}  ", len(indent) + longest + 2, value))


def wrapped(text: str, hanging: int = 20, columns: int | None = None) -> str:
    """A report's lines, wrapped with a hanging indent."""
    columns = columns or width()
    lines = []
    for line in map(shown, text.split("\n")):
        pieces = textwrap.wrap(
            line, columns, subsequent_indent=" " * hanging, break_on_hyphens=False, drop_whitespace=True
        )
        lines += pieces if len(line) > columns else [line]
    return "\n".join(lines)


def note(text: str) -> None:
    """A remark to a person, on stderr."""
    print(textwrap.fill(_one_line(text), width(), break_on_hyphens=False), file=sys.stderr)


def warn(text: str) -> None:
    """A warning to a person, on stderr."""
    print(_paragraph(_styled("Note", "1;33", sys.stderr) + "    ", 8, text), file=sys.stderr)


def warn_seeded() -> None:
    """What is wrong with a model whose noise came from a seed."""
    warn("The noise comes from a seed, so anyone who knows it can remove it. For experiments only.")


def typed(command: str) -> str:
    """A command of this installation as a shell here understands it: its program with the folder, if that is needed."""
    program, *rest = command.split(" ", 1)
    own, found = Path(sys.executable).parent / program, shutil.which(program)
    if not own.exists() or (found is not None and os.path.realpath(found) == os.path.realpath(own)):
        return command
    place = own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own
    return " ".join([shlex.quote(str(place)), *rest])


def number(value: float, digits: int = 4) -> str:
    """A number for a person."""
    if math.isnan(value):
        return "not defined"
    return "infinite" if math.isinf(value) else f"{value:.{digits}g}"


def megabytes(n_bytes: int) -> str:
    """A size for a person."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"


def _paragraph(start: str, indent: int, text: str) -> str:
    """`start`, which takes `indent` columns, then the text, wrapped and indented alike."""
    room = max(20, width() - indent)
    lines = textwrap.wrap(_one_line(text), room, break_on_hyphens=False, break_long_words=False) or [""]
    return start + ("\n" + " " * indent).join(lines)


def _one_line(text: str) -> str:
    """The text without what a terminal could take for a command: errors may quote a file, or a peer."""
    return shown(text.translate({ord(each): " " for each in "\n\t\r"}))


def _styled(text: str, style: str, stream: TextIO) -> str:
    plain = not stream.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if plain else f"\033[{style}m{text}\033[0m"


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else "infinite" if math.isinf(value) else value
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    return value
