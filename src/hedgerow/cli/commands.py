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
from hedgerow.errors import UsageError

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
    return parser
