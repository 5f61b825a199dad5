# SPDX-License-Identifier: Apache-2.0
"""The entry point: parse, call the command's function, and turn every outcome into an exit code."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context

from hedgerow.app.output import begin_log, end_log, note, report_error, tell
from hedgerow.cli.commands import build_parser
from hedgerow.errors import EnvironmentFault, HedgerowError, explain_import_error, explain_kernel_error

OWN_FAULT = 70
"""EX_SOFTWARE of sysexits.h: an error that no one thought of."""
INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""
BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader of the output has gone."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""The disk is full, or what an account may use of it."""
_RESEND_SECONDS = 0.1
SECONDS_OF_IMPORTS = 1.0


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
        with _no_interrupt_dropped():
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
    """Whether it is Ctrl-C in a compiled function, or while that was loaded, whose layers each wrap the one below."""
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)


@contextmanager
def _no_interrupt_dropped() -> Iterator[None]:
    """Send Ctrl-C again where it would be lost.

    While numba compiles, llvmlite calls back from C. Python only prints what is raised there, so the command would go
    on, and under systemd a node that was stopped in its first minute would take part in a run.
    """
    previous = sys.unraisablehook
    timers: list[threading.Timer] = []

    def resend(dropped: sys.UnraisableHookArgs) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            previous(dropped)
            return
        # Not at once: the callback has not returned yet.
        timer = threading.Timer(_RESEND_SECONDS, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        timer.daemon = True
        timer.start()
        timers.append(timer)

    sys.unraisablehook = resend
    try:
        yield
    except Exception as error:
        # Numba stumbles over what a callback was kept from noting.
        if timers:
            raise KeyboardInterrupt from error
        raise
    finally:
        sys.unraisablehook = previous
        for timer in timers:
            timer.cancel()


def _report_interrupt() -> int:
    tell("\nInterrupted.", level="WARNING")
    return INTERRUPTED


def _run(arguments: list[str]) -> None:
    namespace, unknown = build_parser().parse_known_args(arguments)
    if unknown:
        # `parse_args` would speak of the whole program, whose help does not list a command's options.
        namespace.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
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
    with _tell_of_slow_imports(quiet=getattr(namespace, "quiet", False)):
        namespace.function(namespace)


@contextmanager
def _tell_of_slow_imports(*, quiet: bool) -> Iterator[None]:
    """In a terminal, say after a second that the command is still being read from the disk, where it is."""
    here = threading.get_ident()

    def tell_of_imports() -> None:
        frame = sys._current_frames().get(here)
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        if frame is not None:
            note("Reading the program: the first time after an install or a restart this takes some seconds.")

    timer = threading.Timer(SECONDS_OF_IMPORTS, copy_context().run, (tell_of_imports,))
    timer.daemon = True
    if sys.stderr.isatty() and not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _explain(error: Exception) -> HedgerowError | None:
    """What went wrong, in words; None for a fault of Hedgerow's own."""
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
