"""The entry point: parse, call the command's function, and turn every outcome into an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from hedgerow.cli.output import begin_log, end_log, report_error, tell
from hedgerow.cli.parser import build_parser
from hedgerow.errors import EnvironmentFault, HedgerowError, fault_of_import

OWN_FAULT = 70
"""EX_SOFTWARE of sysexits.h: an error that no one thought of."""
INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""
BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader of the output has gone."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments without the program's name; None takes the process's own.

    Returns:
        The exit code; docs/errors.md lists them.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # An error of parsing must know these two before there is a namespace.
    as_json, debug = "--json" in arguments, "--debug" in arguments
    try:
        _run(arguments)
        sys.stdout.flush()
        return 0
    except SystemExit as done:  # argparse, after --help and --version
        return done.code if isinstance(done.code, int) else 0
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        # Python flushes stdout again when it ends; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), _file_number_of_stdout())
        return BROKEN_PIPE
    except Exception as error:
        # Ctrl-C inside a compiled function arrives as a SystemError that it caused.
        if isinstance(error, SystemError) and isinstance(error.__cause__, KeyboardInterrupt):
            return _interrupted()
        if debug:
            raise
        if (fault := _fault_of(error)) is not None:
            return report_error(fault, as_json=as_json)
        own = HedgerowError("internal", type=type(error).__name__, error=error)
        return report_error(own, as_json=as_json, exit_code=OWN_FAULT)
    finally:
        end_log()


def _interrupted() -> int:
    tell("\nInterrupted.", level="WARNING")
    return INTERRUPTED


def _run(arguments: list[str]) -> None:
    namespace: argparse.Namespace = build_parser().parse_args(arguments)
    if namespace.function is None:
        namespace.parser.print_help()
        if namespace.parser.prog != "hedgerow":
            namespace.parser.error("a command is missing")
        return
    if getattr(namespace, "log_format", "") == "json":
        # Whoever reads lines by a program reads all of them so; a person is spoken to until a run begins.
        begin_log("", "json")
    module, _, name = namespace.function.partition(":")
    getattr(importlib.import_module(module), name)(namespace)


def _file_number_of_stdout() -> int:
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):
        return 1


def _fault_of(error: Exception) -> HedgerowError | None:
    """What went wrong, in words; None for a fault of Hedgerow's own."""
    if isinstance(error, HedgerowError):
        return error
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return EnvironmentFault("file-operation", name=name, fault=error.strerror or type(error).__name__)
    return fault_of_import(error) if isinstance(error, ImportError) else None


if __name__ == "__main__":
    sys.exit(main())
