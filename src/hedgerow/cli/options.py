# SPDX-License-Identifier: Apache-2.0
"""What commands share: how one is added, options of several, and how options become what a function takes.

Nothing in this room imports numpy at the top of a module: ``hedgerow COMMAND --help`` answers at once. What a command
needs is imported in its function.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypeVar

from hedgerow.app.options import CoordinatorOptions
from hedgerow.plan.fields import allowed_by, read_sentences

if TYPE_CHECKING:
    from hedgerow.app.accounts import AccountOptions

_BY_POLICY = ("node", "join", "resident-node", "carry in", "carry out")
"""Commands that load what the site's own files name, and nothing else."""
Add = Callable[..., Any]
"""Adds one argument to a command: see `argparse.ArgumentParser.add_argument`."""


def add_command(
    commands: Any, name: str, function: Callable[[argparse.Namespace], None], help_line: str, epilog: str | None = None
) -> Add:
    """Add a command with its function, and return a function that adds its arguments."""
    description = f"{help_line[:1].upper()}{help_line[1:]}."
    command: argparse.ArgumentParser = commands.add_parser(name, help=help_line, description=description, epilog=epilog)
    command.set_defaults(function=function, parser=command)
    if command.prog.partition(" ")[2] not in _BY_POLICY:
        text = "load what another package adds: an entry point, a module or a .py file; repeat"
        command.add_argument("--plugin", action="append", dest="plugins", default=[], metavar="MODULE", help=text)
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return command.add_argument


class Words:
    """Commands behind one that may have something else as its first word, as `hedgerow node TABLE` has.

    Args:
        command: that command's parser; it looks into its `words` before it reads its own arguments.
    """

    def __init__(self, command: Any) -> None:
        self._command = command

    def add_parser(self, name: str, **more: Any) -> argparse.ArgumentParser:
        """Add a command, as `add_command` asks for it."""
        more.pop("help")
        made: argparse.ArgumentParser = type(self._command)(prog=f"{self._command.prog} {name}", **more)
        self._command.words[name] = made
        return made


def add_group(commands: Any, name: str, help_line: str) -> Any:
    """Add a command that only has commands of its own."""
    group = commands.add_parser(name, help=help_line, description=f"{help_line[:1].upper()}{help_line[1:]}.")
    group.set_defaults(parser=group)
    return group.add_subparsers(title="commands", metavar="COMMAND")


def whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Make a parser of whole numbers within bounds."""

    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            bounds = f"at least {least}" if most == math.inf else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text} is not {bounds}")
        return value

    return number


def above_zero(text: str) -> float:
    """Read a number above 0."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def share(text: str) -> float:
    """Read a number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1, such as 0.2")
    return value


SHARED: dict[str, dict[str, Any]] = {
    "plan": {"metavar": "PLAN", "help": "a plan's TOML file"},
    "--json": {"action": "store_true", "help": "print one JSON object instead of text; no progress"},
    "--threads": {"type": whole(1), "metavar": "N", "help": "threads to compute with (default: all)"},
    "--seed": {
        "type": whole(0),
        "metavar": "N",
        "help": "draw the noise from a seed: for experiments, voids the guarantee",
    },
    "--hand-out": {
        "action": "store_true",
        "help": "then give the model's file to the nodes that stay (--serve), for a minute at most",
    },
    "--console": {
        "metavar": "[HOST:]PORT",
        "help": "a page of the run for the browser, and /metrics for Prometheus; on 127.0.0.1 unless a host is given",
    },
    "--adapter": {
        "metavar": "FILE",
        "help": "how this site writes its table: a policy, or another file with [data] (docs/data.md)",
    },
    "--allow-loss": {
        "type": share,
        "metavar": "SHARE",
        "help": "the largest share of the table's rows that may be left out (0.1)",
    },
    "--yes": {
        "action": "store_true",
        "help": "go on unasked where many rows are left out, of which a warning on stderr tells",
    },
    "--data-set": {
        "metavar": "NAME",
        "help": "whose rows these are, as their owner calls them: the account that this is charged to (without it, one "
        "account of all tables of the folder)",
    },
    "--book": {
        "metavar": "FILE",
        "help": "the budget book that keeps the account (hedgerow-budget.db beside the data)",
    },
    "--no-book": {
        "action": "store_true",
        "help": "keep no account of what this costs, which its report then says",
    },
    "--evaluation": {"metavar": "FILE", "help": "what `hedgerow evaluate --federated --json` printed of this model"},
    "--new-run": {
        "action": "store_true",
        "help": "set the journal of an earlier run aside (it is renamed); the new run counts what that one released",
    },
}
"""Options that mean the same in several commands."""
ADAPTERS: dict[str, Any] = {
    "action": "append",
    "default": [],
    "dest": "adapters",
    "metavar": "[NAME=]FILE",
    "help": "how a site writes its table: a policy, or a file with a [data] table; without NAME: every site; repeat",
}
SITE_CONSOLE: dict[str, Any] = {
    "metavar": "[HOST:]PORT",
    "help": "a page for the browser: costs, approve, stop; on 127.0.0.1 without HOST",
}


def add_shared(add: Add, *names: str, **more: Any) -> None:
    """Add options of `SHARED`, by name.

    Args:
        more: besides what stands there.
    """
    for name in names:
        add(name, **SHARED[name], **more)


def add_fields(add: Add, kind: type, *names: str, **more: Any) -> None:
    """Add options for fields of a record of `hedgerow.app.options`, with their checks, defaults and sentences.

    Args:
        names: as they are typed: with two hyphens, or none for an argument without a name.
        more: besides, or in place of, what the fields declare.
    """
    said = read_sentences(kind)
    declared = {field.metadata.get("option", field.name): field for field in fields(kind)}
    for name in names:
        field = declared[name.lstrip("-").replace("-", "_")]
        allowed, facts = allowed_by(field.metadata["check"]), field.metadata
        choices, is_list = facts.get("choices", allowed.get("enum")), allowed.get("type") == "array"
        said_of_it = said[field.name].rstrip(".") + "; repeat" * is_list + " (%(default)s)" * bool(choices)
        given: dict[str, Any] = {"help": said_of_it}
        if name.startswith("-"):
            is_needed = field.default is MISSING
            given |= {"dest": field.name, "default": None if is_needed else field.default, "required": is_needed}
        if allowed.get("type") == "boolean":
            given["action"] = "store_true"
        else:
            given |= {"choices": choices} if choices else {"metavar": facts["metavar"]}
        if allowed.get("type") == "integer":
            given["type"] = whole(allowed["minimum"], allowed["maximum"])
        if is_list:
            given |= {"action": "append", "default": []}
        add(name, **given | more)


def add_listening(add: Add) -> None:
    """Add the options of a command that listens for nodes."""
    add_fields(add, CoordinatorOptions, "--listen", default="127.0.0.1:7443")
    add_fields(add, CoordinatorOptions, "--engine", "--log-format")


def add_nodes(add: Add, noise: str) -> None:
    """Add the options of a command that asks nodes, with this help text for noise."""
    add_fields(add, CoordinatorOptions, "--roster", "--identity", required=False)
    add_listening(add)
    add_shared(add, "--new-run")
    add("--noise", choices=("distributed", "server"), help=noise)


T = TypeVar("T")


def read_options(kind: type[T], arguments: argparse.Namespace, **given: Any) -> T:
    """Read a record of options: from `given`, from --json as `quiet`, and each field by its option's name."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    named = {name: value for name, value in vars(arguments).items() if name in names}
    named = {name: tuple(value) if isinstance(value, list) else value for name, value in named.items()}
    return kind(**named | {"quiet": arguments.json} | given)


def read_account(arguments: argparse.Namespace) -> AccountOptions:
    """Read the account named by --data-set, --book and --no-book."""
    from hedgerow.app.accounts import AccountOptions

    return AccountOptions(arguments.data_set, arguments.book, arguments.no_book)
