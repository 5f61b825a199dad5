# SPDX-License-Identifier: Apache-2.0
"""The entry point: parse, call the command's function, and turn every outcome into an exit code."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hedgerow.app.output import begin_log, end_log, note, report_error, tell
from hedgerow.cli.commands import build_parser, find_near
from hedgerow.errors import EnvironmentFault, HedgerowError, explain_import_error, explain_kernel_error

OWN_FAULT = 70
"""EX_SOFTWARE of sysexits.h: an error that no one thought of."""
INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""
BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader of the output has gone."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""The disk is full, or what an account may use of it."""


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
    with suppress(ImportError):
        # A core dump would hold rows, keys and masks. Windows has no such module, and writes none.
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a survey has paid for must not be lost for a sign that the terminal has not; a file has UTF-8, as all do.
        encoding = sys.stdout.encoding if sys.stdout.isatty() else "utf-8"
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")
    try:
        _run(arguments)
        sys.stdout.flush()
        return 0
    except SystemExit as done:  # argparse, after --help and --version
        return done.code if isinstance(done.code, int) else 0
    except KeyboardInterrupt:
        return _report_interrupt()
    except BrokenPipeError:
        # Python flushes stdout again when it ends; give it somewhere to go.
        descriptor = 1
        with suppress(OSError, ValueError):
            descriptor = sys.stdout.fileno()
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        return BROKEN_PIPE
    except Exception as error:
        if _is_interruption(error):
            return _report_interrupt()
        if debug:
            raise
        if (fault := _explain(error)) is not None:
            return report_error(fault, as_json=as_json)
        own = HedgerowError("internal", type=type(error).__name__, error=error)
        return report_error(own, as_json=as_json, exit_code=OWN_FAULT)
    finally:
        end_log()


def _is_interruption(error: BaseException | None) -> bool:
    """Return whether an error is Ctrl-C in a compiled function or its loading, whose layers wrap it."""
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)


def _report_interrupt() -> int:
    tell("\nInterrupted.", level="WARNING")
    return INTERRUPTED


def _run(arguments: list[str]) -> None:
    namespace, unknown = build_parser().parse_known_args(arguments)
    if unknown:
        # `parse_args` would speak of the whole program, whose help does not list a command's options.
        options = [word.partition("=")[0] for word in unknown if word.startswith("--")]
        near = [each for option in options if (each := find_near(option, namespace.parser._option_string_actions))]
        hint = f" (perhaps you mean {' or '.join(near)})" if near else ""
        namespace.parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if namespace.function is None:
        namespace.parser.print_help()
        if namespace.parser.prog != "hedgerow":
            namespace.parser.error("a command is missing")
        return
    if getattr(namespace, "log_format", "") == "json":
        # All lines are JSON from the first on; else a person reads plain text until a run begins.
        begin_log("", "json")
    if getattr(namespace, "plugins", None):
        # Not at the top: it reads what is installed, and most commands load nothing.
        from hedgerow.plugins import load_plugin

        for name in namespace.plugins:
            load_plugin(name)
    if sys.stderr.isatty() and not getattr(namespace, "quiet", False) and not _has_compiled_kernels():
        note("Reading the program: the first time after an install this takes some seconds.")
    namespace.function(namespace)


def _has_compiled_kernels() -> bool:
    """Return whether numba has kept compiled kernels of this installation, without importing numba."""
    return any((Path(__file__).parent.parent / "trees" / "__pycache__").glob("*.nbi"))


def _explain(error: Exception) -> HedgerowError | None:
    """Describe an error as a HedgerowError; None for a fault of Hedgerow's own."""
    if isinstance(error, HedgerowError):
        return error
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        # pyarrow says it in a message of its own.
        if error.errno in FULL or any(os.strerror(number) in str(error) for number in FULL):
            return EnvironmentFault("disk-full", path=error.filename or "A file", fault=os.strerror(errno.ENOSPC))
        return EnvironmentFault("file-operation", name=name, fault=error.strerror or type(error).__name__)
    # As in `_run`.
    from hedgerow.plugins import explain_failed_plugin

    if (fault := explain_failed_plugin(error)) is not None:
        return fault
    return explain_import_error(error) if isinstance(error, ImportError) else explain_kernel_error(error)


if __name__ == "__main__":
    sys.exit(main())
