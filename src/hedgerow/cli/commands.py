# SPDX-License-Identifier: Apache-2.0
"""The commands, in the sections of ``hedgerow --help``. Each module has a group: their options, and what they do."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from typing import Any, NoReturn

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
    ledger, coordinator, node, carry, monitor,
)  # fmt: skip
SECTIONS = {
    "start here": "demo init",
    "plan a study": "plan schema privacy simulate check survey",
    "on one machine": "train predict evaluate recalibrate attack",
    "use and file a model": "report plot export evidence",
    "between institutions": "study join approve ledger monitor",
    "party by party": "coordinator node resident-node carry warm-up",
    "for authors and shells": "check-method completion",
}
"""The commands by what a reader wants to do, as ``hedgerow --help`` lists them."""
_EXIT_CODES = """\
exit codes:
  0 done           5 model file     10 the machine           130 interrupted
  1 other error    6 site policy    11 rows left out         137 killed
  2 command line   7 privacy        12 hidden by the noise   143 told to end
  3 plan           8 protocol       70 a fault of                (SIGTERM)
  4 data           9 secure sum        Hedgerow's own
  20 to 26 what `hedgerow join --status` finds
(docs/errors.md lists every error)
"""


_COMPLETION = """\
example:
  hedgerow completion bash > hedgerow-completion.bash
  source hedgerow-completion.bash            # in ~/.bashrc for every shell
"""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps prose, and keeps indented lines, such as commands and tables, as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = list[str]()
        for is_prose, group in groupby(text.splitlines(), lambda line: line[:1].strip() != ""):
            as_given = list(group)
            prose = textwrap.wrap(" ".join(as_given), width, break_long_words=False, break_on_hyphens=False)
            lines += prose if is_prose else as_given
        return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """argparse, but a wrong command line is a `UsageError` like every other error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _HelpFormatter)
        # A shortened option would change its meaning when a longer one is added.
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)
        self.words = dict[str, argparse.ArgumentParser]()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Leave the arguments to the command that the first of them names (`options.Words`)."""
        if args and args[0] in self.words:
            return self.words[args[0]].parse_known_args(args[1:], namespace)
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the words that a wrong one is near to, in place of all."""
        if action.choices is not None and value not in action.choices and (near := find_near(value, action.choices)):
            raise argparse.ArgumentError(action, f"{value!r} is not known; perhaps you mean {near}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        raise UsageError("usage", message=message[:1].upper() + message[1:], program=self.prog)


class _Program(Parser):
    """Lists the commands of the whole program in the sections of `SECTIONS`."""

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        (commands,) = (each for each in self._actions if isinstance(each, argparse._SubParsersAction))
        listed = {each.dest: each for each in commands._get_subactions()}
        for title, names in SECTIONS.items():
            formatter.start_section(title)
            formatter.add_arguments([listed[name] for name in names.split()])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments(self._optionals._group_actions)
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


def find_near(word: object, known: Iterable[object]) -> str:
    """Return the up to three known words that a mistyped one is near to, as text; "" for none."""
    return " or ".join(difflib.get_close_matches(str(word), [str(each) for each in known], 3))


class _Version(argparse.Action):
    """Names the build when it is asked for: to read all code would slow every command down."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from hedgerow.builds import describe_build

        print(describe_build())
        parser.exit()


@cache
def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line, once; `namespace.function` is the chosen command's function."""
    parser = _Program(
        prog="hedgerow",
        description="Train, check and use boosted trees over data that several sites hold and may not share, with "
        "differential privacy.",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="say which build of Hedgerow this is")
    parser.set_defaults(function=None, parser=parser, debug=False, json=False)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    for group in GROUPS:
        group.add_commands(commands)
    add = add_command(commands, "completion", complete, "print what a shell completes commands by", _COMPLETION)
    add("shell", choices=("bash", "zsh", "tcsh"), metavar="SHELL", help="bash, zsh or tcsh")
    return parser


def complete(arguments: argparse.Namespace) -> None:
    """Print the completion script for a shell."""
    try:
        import shtab
    except ImportError as absent:
        raise missing_extra("shtab", "Completion in shells") from absent
    parser = build_parser()
    _complete_files(parser)
    print(shtab.complete(parser, arguments.shell))


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Complete arguments without a list of words by file names."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in dict.fromkeys(action.choices.values()):
                _complete_files(command)
        elif not action.choices and action.nargs != 0 and action.type is None:
            vars(action)["complete"] = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
