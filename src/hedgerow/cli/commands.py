# SPDX-License-Identifier: Apache-2.0
"""The commands, in the order of ``hedgerow --help``. Each module has a group: their options, and what they do."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from hedgerow import __version__
from hedgerow.cli import (
    attack,
    carry,
    check_method,
    coordinator,
    evaluate,
    evidence,
    join,
    ledger,
    model,
    monitor,
    node,
    owner,
    parties,
    plan,
    privacy,
    recalibrate,
    study,
    survey,
    train,
)
from hedgerow.cli.options import add_command
from hedgerow.errors import UsageError, missing_extra

GROUPS = (
    train, plan, privacy, check_method, survey, evaluate, recalibrate, attack, model, evidence, study, join, owner,
    ledger, coordinator, node, carry, monitor, parties,
)  # fmt: skip
_EXIT_CODES = """\
exit codes:
  0 done              4 data           8 protocol        12 hidden by the noise
  1 other error       5 model file     9 secure sum      70 a fault of Hedgerow's own
  2 command line      6 site policy   10 the machine    130 interrupted
  3 plan              7 privacy       11 rows left out  137 killed, 143 told to end (SIGTERM)
(docs/errors.md lists every error)
"""


_COMPLETION = """\
example:
  hedgerow completion bash > hedgerow-completion.bash
  source hedgerow-completion.bash                      # in ~/.bashrc for every shell
"""


class Parser(argparse.ArgumentParser):
    """argparse, but a wrong command line is a `UsageError` like every other error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        # A shortened option would change its meaning when a longer one is added.
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError("usage", message=message[:1].upper() + message[1:], program=self.prog)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; the chosen command's function is `namespace.function`."""
    parser = Parser(
        prog="hedgerow",
        description="Train, check and use boosted trees over data that several sites hold and none may share,\n"
        "with differential privacy.",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"hedgerow {__version__}")
    parser.set_defaults(function=None, parser=parser, debug=False, json=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for group in GROUPS:
        group.add_commands(commands)
    add = add_command(commands, "completion", complete, "print what a shell completes commands by", _COMPLETION)
    add("shell", choices=("bash", "zsh", "tcsh"), metavar="SHELL", help="bash, zsh or tcsh")
    return parser


def complete(arguments: argparse.Namespace) -> None:
    """Print what the shell is to read."""
    try:
        import shtab
    except ImportError as absent:
        raise missing_extra("shtab", "Completion in shells") from absent
    parser = build_parser()
    _complete_files(parser)
    print(shtab.complete(parser, arguments.shell))


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Most of what has no list of words is a file."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in dict.fromkeys(action.choices.values()):
                _complete_files(command)
        elif not action.choices and action.nargs != 0 and action.type is None:
            vars(action)["complete"] = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
