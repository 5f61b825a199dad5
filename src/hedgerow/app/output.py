# SPDX-License-Identifier: Apache-2.0
"""What the commands print: errors in three parts, JSON, aligned facts, wrapped reports, and the lines of a log.

A node and a coordinator run for long, and others read what they say. From `begin_log` on, each remark, warning and
error is one line that says when, how grave, of which run and site. No heavy imports.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO

from hedgerow.errors import HedgerowError
from hedgerow.plan.fields import escape_for_terminal

WIDEST = 100
"""Longer lines are hard to read, however wide the terminal."""


def width() -> int:
    """Columns to write in."""
    return max(40, min(WIDEST, shutil.get_terminal_size().columns))


def report_error(error: HedgerowError, *, as_json: bool, exit_code: int | None = None) -> int:
    """Print an error's event, likely cause and remedy to stderr, and return the exit code."""
    code = error.exit_code if exit_code is None else exit_code
    remedy = error.remedy
    if error.code == "missing-extra":
        # Name this environment's pip, because another one would install the extra elsewhere.
        remedy = remedy.replace("pip install", f"{format_command('pip')} install")
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
    if (log := _LOG.get()) is not None:
        log.say("ERROR", error.what, cause=error.cause, remedy=remedy, code=error.code, exit_code=code)
        return code
    print(_wrap(_apply_style("Error", "1;31", sys.stderr) + "   ", len("Error   "), error.what), file=sys.stderr)
    for title, text in (("Cause", error.cause), ("To do", remedy)):
        if text:
            print(_wrap(_apply_style(title, "1", sys.stderr) + "   ", len(title) + 3, text), file=sys.stderr)
    print(_apply_style(f"        ({error.code}, exit code {code})", "2", sys.stderr), file=sys.stderr)
    return code


PRIVATE = "Private: exact figures of these rows, for their owner only. No guarantee covers them."
"""Stands with every figure that is read off rows without noise."""
PRIVATE_MARK: Mapping[str, Any] = {"private": True, "note": PRIVATE}
"""Fields of a JSON object that mark it as private."""


def print_json(content: Mapping[str, Any]) -> None:
    """Print a JSON object on stdout; numbers unknown to JSON become null or "infinite"."""
    print(json_text(content))


def json_text(content: Mapping[str, Any], *, indent: int | None = 2) -> str:
    """Return the object as `print_json` prints it, without a final newline; without `indent`, in one line.

    If a text in it has characters that a terminal could misread, all non-ASCII characters are escaped.
    """
    value = _to_json_value(content)
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    if all(escape_for_terminal(line) == line for line in text.split("\n")):
        return text
    return json.dumps(value, indent=indent, allow_nan=False).replace("\x7f", "\\u007f")


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Name and value, aligned; long values are wrapped."""
    longest = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        print(_wrap(f"  {name:<{longest}}  ", longest + 4, value))


def today() -> str:
    """Return today's date in UTC, for a printed report."""
    return time.strftime("%Y-%m-%d", time.gmtime())


def wrap_text(text: str, hanging: int = 20, columns: int | None = None) -> str:
    """Wrap a report's lines with a hanging indent."""
    columns = columns or width()
    lines = []
    for line in map(escape_for_terminal, text.split("\n")):
        # Keep long paths and digests whole, so that they can be copied.
        pieces = textwrap.wrap(
            line, columns, subsequent_indent=" " * hanging, break_on_hyphens=False, break_long_words=False
        )
        lines += pieces if len(line) > columns else [line]
    return "\n".join(lines)


class Log:
    """Log on stderr, one line for each event.

        2026-11-23T14:41:02Z INFO run=3f9a0c41d7be site=north Connected.

    Args:
        site: whose process this is; a line may be about another one.
        is_json: an object in each line, with time, level, run, site, message, and what else there is.
    """

    def __init__(self, site: str, *, is_json: bool) -> None:
        self.site, self._is_json = site, is_json
        self.run: Callable[[], bytes] = bytes
        """The number of the run that goes on, empty for none."""
        self.also: Callable[[str, str], object] = lambda level, text: None
        """Is told the level and the text of each line as well."""

    def say(self, level: str, text: str, *, site: str = "", **more: object) -> None:
        """Write a line.

        Args:
            level: INFO, WARNING or ERROR.
            more: of an error.
        """
        run, site, text = self.run().hex()[:12], site or self.site, text.strip()
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if self._is_json:
            line = json.dumps({"time": at, "level": level, "run": run, "site": site, "message": text, **more})
        else:
            said = [text, *(f"{title}: {more[part]}" for part, title in _PARTS if more.get(part))]
            said += [f"({more['code']}, exit code {more['exit_code']})"] if more else []
            line = f"{at} {level} run={run or '-'} site={site} {_escape_line(' '.join(said))}"
        print(line, file=sys.stderr, flush=True)
        self.also(level, text)


_PARTS = (("cause", "Cause"), ("remedy", "To do"))
_LOG: ContextVar[Log | None] = ContextVar("log", default=None)
_HUB = logging.getLogger("hedgerow.transport.grpc_hub")
"""Says who watches, and which site holds an older roster; what nodes remark at that level, their own lines say."""


class _FromLibrary(logging.Handler):
    """Handler that writes the transports' log records as lines of a `Log`."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as a line of the log."""
        self.log.say(record.levelname, record.getMessage())


def begin_log(site: str, log_format: str = "text") -> Log:
    """Write this command's messages as lines of a log from here on, until `end_log`.

    Args:
        log_format: text or json.
    """
    end_log()
    log = Log(site, is_json=log_format == "json")
    logging.getLogger("hedgerow").addHandler(_FromLibrary(log))
    _HUB.setLevel(logging.INFO)
    _LOG.set(log)
    return log


def name_log(site: str) -> None:
    """Set the site of this process in an open log."""
    if (log := _LOG.get()) is not None:
        log.site = site


def end_log() -> None:
    """Write messages for a person at a terminal from here on."""
    logger = logging.getLogger("hedgerow")
    for handler in [each for each in logger.handlers if isinstance(each, _FromLibrary) and each.log is _LOG.get()]:
        logger.removeHandler(handler)
    _HUB.setLevel(logging.NOTSET)
    _LOG.set(None)


def tell(text: str, *, level: str = "INFO", site: str = "") -> None:
    """Print an event of a run as a line on stderr.

    Args:
        site: whom it is about, if not whose process this is.
    """
    if (log := _LOG.get()) is not None:
        log.say(level, text, site=site)
    else:
        print(text, file=sys.stderr, flush=True)


def note(text: str, *, level: str = "INFO") -> None:
    """Print a remark to a person on stderr."""
    if (log := _LOG.get()) is not None:
        log.say(level, text)
        return
    print(textwrap.fill(_escape_line(text), width(), break_on_hyphens=False), file=sys.stderr)


def warn(text: str) -> None:
    """Print a warning to a person on stderr."""
    if (log := _LOG.get()) is not None:
        log.say("WARNING", text)
        return
    print(_wrap(_apply_style("Note", "1;33", sys.stderr) + "    ", 8, text), file=sys.stderr)


def alarm(text: str) -> None:
    """Print a text in red on stdout that a person must not overlook."""
    print(_apply_style(text, "1;31", sys.stdout))


def warn_seeded() -> None:
    """Warn that noise from a seed can be removed."""
    warn("The noise comes from a seed, so anyone who knows it can remove it. For experiments only.")


def format_command(command: str) -> str:
    """Return a command of this installation for the shell here, with its program's folder if needed."""
    program, *rest = command.split(" ", 1)
    if "archive-v0" in Path(sys.prefix).parts and program == "hedgerow":
        # uvx has the program on the path only while it runs.
        return f"uvx {command}"
    own, found = Path(sys.executable).parent / program, shutil.which(program)
    if not own.exists() or (found is not None and os.path.realpath(found) == os.path.realpath(own)):
        return command
    place = own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own
    return " ".join([shlex.quote(str(place)), *rest])


def number(value: float, digits: int = 4) -> str:
    """Format a number for a person."""
    if math.isnan(value):
        return "not defined"
    return "infinite" if math.isinf(value) else f"{value:.{digits}g}"


def megabytes(n_bytes: int) -> str:
    """Format a size in bytes for a person."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"


def _wrap(start: str, indent: int, text: str) -> str:
    """Wrap the text after `start`, indenting all lines by `indent`, the width of `start`."""
    room = max(20, width() - indent)
    lines = textwrap.wrap(_escape_line(text), room, break_on_hyphens=False, break_long_words=False) or [""]
    return start + ("\n" + " " * indent).join(lines)


def _escape_line(text: str) -> str:
    """Escape what a terminal could take for a command: errors may quote a file, or a peer."""
    return escape_for_terminal(text.translate({ord(each): " " for each in "\n\t\r"}))


def _apply_style(text: str, style: str, stream: TextIO) -> str:
    plain = not stream.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if plain else f"\033[{style}m{text}\033[0m"


def _to_json_value(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else "infinite" if math.isinf(value) else value
    if isinstance(value, Mapping):
        return {str(key): _to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_value(item) for item in value]
    return value


def span(seconds: float) -> str:
    """Format a length of time for a person."""
    whole = int(min(seconds, 10**9))
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
