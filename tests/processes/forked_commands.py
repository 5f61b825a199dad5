"""Starts the real commands in processes of their own, quickly: each is forked from this one, which has its imports.

It reads one JSON object per line: `arguments` of the command line, `out` and `err` (FIFOs or files) or a
`terminal`, `folder`, and perhaps how many `files` it may open, and a `strike`, which the child carries out on itself at
an exact point of the protocol:

    {"signal": 9, "kind": "UNMASK", "number": 1, "moment": "before" | "after"}   a node's n-th message of a kind; with
                                                                                "round", of those that ask for it
    {"signal": 9, "writes": 5}                                                 its journal's n-th write of a coordinator
    {"full": true, ...}                                                         instead of a signal: no file may grow

Time stands still for the loops of all parties, so that no story depends on how fast the machine is. It passes when
nothing arrives and only those are waited for whom the file `time-passes` names, site by site: they have been struck.

The product knows nothing of this; only here are some of its functions wrapped. The answer is the child's pid, and
later, when asked with {"poll": pid}, its exit code or null.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hedgerow.app.coordinator
import hedgerow.app.evaluation
import hedgerow.app.node
import hedgerow.client.node_session
from hedgerow.cli.main import main
from hedgerow.client.node import warm_up
from hedgerow.protocol.messages import MessageKind, RoundRequest, decode
from hedgerow.server.journal import Journal


def strike(wanted: dict[str, Any]) -> None:
    """What befalls this process."""
    if wanted.get("full"):
        # Python ignores the signal that goes with it, so that writing fails as on a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        return
    os.kill(os.getpid(), wanted["signal"])


def strike_node(wanted: dict[str, Any]) -> None:
    """Wrap the node's loop: it is struck before it handles a message, or after it has handed its answers over."""
    handle, seen = hedgerow.client.node_session.handle, [0]
    kind = MessageKind[wanted["kind"]]

    def struck(session: Any, uplink: Any, event: Any) -> None:
        is_it = isinstance(event, bytes) and event[4] == kind
        is_it = is_it and ("round" not in wanted or wanted["round"] == _round_of(event))
        seen[0] += is_it
        is_it = is_it and seen[0] == wanted["number"]
        if is_it and wanted["moment"] == "before":
            strike(wanted)
        handle(session, uplink, event)
        if is_it and wanted["moment"] == "after":
            strike(wanted)

    hedgerow.client.node_session.handle = struck


def _round_of(message: bytes) -> int | None:
    request = decode(message)
    return request.round if isinstance(request, RoundRequest) else None


def strike_coordinator(wanted: dict[str, Any]) -> None:
    """Wrap the journal: the process is struck after a number of writes, the disk is full before one."""
    begin, written = Journal.__init__, [0]

    def wrapped(self: Journal, path: Path) -> None:
        begin(self, path)
        if path.suffix != ".journal":
            return  # The rehearsal's, which is over when the run begins.
        write: Callable[..., None] = self._database.write

        def counted(*statements: Any) -> None:
            written[0] += 1
            if wanted.get("full") and written[0] == wanted["writes"]:
                strike(wanted)
            write(*statements)
            if not wanted.get("full") and written[0] == wanted["writes"]:
                strike(wanted)

        self._database.write = counted  # type: ignore[method-assign]

    Journal.__init__ = wrapped  # type: ignore[method-assign]


class Standing:
    """An engine's end and a clock that stands still, until `may_pass`: then what is waited for goes by at once."""

    def __init__(self, end: Any, may_pass: Callable[[set[str]], bool]) -> None:
        self._end, self._may_pass, self._now = end, may_pass, 0.0
        self.send = end.send

    def clock(self) -> float:
        return self._now

    def receive(self, timeout: float) -> Any:
        event = self._end.receive(min(timeout, 0.1))
        if event is None and timeout > 0:
            with contextlib.suppress(FileNotFoundError), open("time-passes", encoding="ascii") as file:
                if self._may_pass(set(file.read().split())):
                    self._now += timeout
        return event


def stop_clocks() -> None:
    """Wrap the loops of coordinator and node."""
    coordinate, take_part = hedgerow.app.coordinator.run_coordinator, hedgerow.app.node.run_node

    def coordinated(session: Any, hub: Any, timeouts: Any, _: Any, *more: Any) -> Any:
        standing = Standing(hub, lambda struck: session.run.is_stalled or session.list_awaited() <= struck)
        return coordinate(session, standing, timeouts, standing.clock, *more)

    def taken_part(session: Any, uplink: Any, _: Any, *more: Any) -> Any:
        standing = Standing(uplink, lambda struck: session._setup.site in struck)
        return take_part(session, standing, standing.clock, *more)

    hedgerow.app.coordinator.run_coordinator = coordinated  # type: ignore[assignment]
    hedgerow.app.node.run_node = taken_part  # type: ignore[assignment]


def sit_down_at(terminal: int) -> None:
    """Make a terminal this process's own, as a new window does: its input, its output, and where Ctrl-C comes from."""
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for stream in range(3):
        os.dup2(terminal, stream)
    os.close(terminal)
    # What this process has read ahead of its own input is nothing that a person has typed here.
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(stream, mode, buffering=1, closefd=False) for stream, mode in enumerate(("r", "w", "w"))
    )
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    os.environ["TERM"] = "xterm"


def child(request: dict[str, Any], terminal: int | None) -> int:
    """The command's exit code."""
    os.chdir(request["folder"])
    if terminal is not None:
        sit_down_at(terminal)
    else:
        for stream, name in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
            opened = os.open(name, os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(opened, stream)
            os.close(opened)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stop_clocks()
    if request.get("files"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (request["files"], request["files"]))
    wanted = request.get("strike")
    if wanted:
        (strike_coordinator if "writes" in wanted else strike_node)(wanted)
    return main(request["arguments"])


def serve() -> None:
    """Carry out what is asked until nobody asks any more."""
    sys.path.append(str(Path(__file__).parents[1]))
    from kernels import compile_once

    compile_once()
    warm_up(None)
    with contextlib.suppress(ImportError):
        # Where it is installed, Arrow imports it when the first table is read, which takes a second.
        import pandas  # noqa: F401
    codes: dict[int, int] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            pid = request["poll"]
            if pid not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done == pid:
                    codes[pid] = os.waitstatus_to_exitcode(status)
            print(json.dumps(codes.get(pid)), flush=True)
            continue
        # Opened before anyone is told: a terminal that nobody has open any more is at its end.
        terminal = os.open(request["terminal"], os.O_RDWR | os.O_NOCTTY) if "terminal" in request else None
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                code = child(request, terminal)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        if terminal is not None:
            os.close(terminal)
        print(pid, flush=True)


if __name__ == "__main__":
    serve()
