"""The parties of ``experiments faults``: real commands in forked processes, what befalls them, and who wishes them ill.

A worker imports and compiles everything once; every process is forked from it, so that a federation starts in a second.
Only here are functions of the product wrapped: to strike a process at an exact message or write, and to note every
vector that a node is about to send in a pipe, which a full disk does not reach.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import hedgerow.cli.node
import hedgerow.client.node_session
from experiments.federation import SETTINGS
from hedgerow.cli.inputs import read_plan
from hedgerow.cli.main import main
from hedgerow.client.node import Node
from hedgerow.protocol.messages import Hello, MessageKind, encode
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.server.journal import Journal
from hedgerow.transport.grpc_uplink import GrpcUplink
from hedgerow.transport.identities import read_private
from hedgerow.transport.interface import Connected
from hedgerow.transport.roster_file import read_roster

FULL = 0
"""In place of a strike's signal: from now on no file of the process may grow."""
MUTATING, NUMBERS, LYING, SILENT = "damages what it sends", "sends other numbers", "lies in its first word", "is silent"
HOSTILE = (MUTATING, NUMBERS, LYING, SILENT)
_DAMAGED_SHARE = 0.15
_HOSTILE_SECONDS, _FLOOD_SECONDS, _FLOOD_CONNECTIONS = 20.0, 2.0, 200


@dataclass(frozen=True)
class Strike:
    """What befalls a process at its n-th event: a node's n-th message in, or a coordinator's n-th write."""

    signal: int
    number: int
    is_before: bool


@dataclass(eq=False)
class Process:
    """A forked command: its pid, what it said on stderr, the vectors it was about to send, and how it ended."""

    pid: int
    pipes: tuple[int, int]
    said: bytearray = field(default_factory=bytearray)
    noted: bytearray = field(default_factory=bytearray)
    code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, below 0 for a signal; None while it runs. Reads what it has said meanwhile."""
        if self.code is not None:
            return self.code
        done, status = os.waitpid(self.pid, os.WNOHANG)
        for pipe, text in zip(self.pipes, (self.said, self.noted), strict=True):
            with contextlib.suppress(BlockingIOError):
                while part := os.read(pipe, 1 << 16):
                    text += part
        if done:
            self.code = os.waitstatus_to_exitcode(status)
            for pipe in self.pipes:
                os.close(pipe)
        return self.code

    @property
    def is_frozen(self) -> bool:
        """Whether it was stopped by a signal."""
        text = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace")
        return self.code is None and text.rpartition(")")[2].split()[0] == "T"

    def send(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    @property
    def word(self) -> str:
        """The code word of the error with which it ended; empty for none."""
        lines = self.said.decode(errors="replace").strip().splitlines()
        last = lines[-1].strip() if lines else ""
        return last.lstrip("(").partition(",")[0] if last.endswith(")") and ", exit code " in last else ""

    def uploads(self) -> Iterator[tuple[str, int]]:
        """Run and round of every vector that it was about to send."""
        for line in self.noted.decode("ascii").splitlines():
            run_id, number = json.loads(line)
            yield run_id, number


def start(folder: Path, arguments: list[str], prepare: Callable[[int], None] = lambda _: None) -> Process:
    """Fork a command in a folder.

    Args: prepare: is called in the child before the command, with the pipe to note vectors in.
    """

    def act(noted: int) -> int:
        prepare(noted)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = main(arguments)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return code

    return _fork(folder, act)


def _fork(folder: Path, act: Callable[[int], int]) -> Process:
    said, noted = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            # Until the command has begun, to be interrupted is not an end of the command's.
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))
            os.setpgid(0, 0)
            os.chdir(folder)
            null = os.open(os.devnull, os.O_RDWR)
            for stream, target in ((0, null), (1, null), (2, said[1])):
                os.dup2(target, stream)
            code = act(noted[1])
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(code)
    for pipe in (said[1], noted[1]):
        os.close(pipe)
    for pipe in (said[0], noted[0]):
        os.set_blocking(pipe, False)
    return Process(pid, (said[0], noted[0]))


def warm() -> None:
    """What a process does once before it dials was done by the one that it is forked from."""
    hedgerow.cli.node.warm_up = lambda *_: None  # type: ignore[attr-defined]


# What befalls a process ------------------------------------------------------------------------------------------


def _befall(strike: Strike) -> None:
    if strike.signal == FULL:
        # Python ignores the signal that goes with it, so that writing fails as on a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    else:
        os.kill(os.getpid(), strike.signal)


def prepare_node(strike: Strike | None) -> Callable[[int], None]:
    """Wrap the node's loop: it notes its vectors, and is struck."""

    def prepare(noted: int) -> None:
        handle, seen = hedgerow.client.node_session.handle, [0]

        def struck(session: Any, uplink: Any, event: Any) -> None:
            seen[0] += isinstance(event, bytes)
            is_it = strike is not None and isinstance(event, bytes) and seen[0] == strike.number
            if is_it and strike is not None and strike.is_before:
                _befall(strike)
            handle(session, _Noting(session, uplink, noted), event)
            if is_it and strike is not None and not strike.is_before:
                _befall(strike)

        hedgerow.client.node_session.handle = struck

    return prepare


class _Wrapped:
    """An uplink, as far as a node's loop uses it when it has an event."""

    def __init__(self, uplink: Any) -> None:
        self._uplink = uplink
        self.receive, self.close = uplink.receive, uplink.close


class _Noting(_Wrapped):
    """Notes every vector before it is sent."""

    def __init__(self, session: Any, uplink: Any, noted: int) -> None:
        super().__init__(uplink)
        self._session, self._noted = session, noted

    def send(self, message: bytes) -> bool:
        if message[4] == MessageKind.UPLOAD:
            run = self._session._run
            os.write(self._noted, json.dumps([run.run_id.hex(), run.replica.n_releases]).encode() + b"\n")
        return bool(self._uplink.send(message))


def prepare_coordinator(strike: Strike | None) -> Callable[[int], None]:
    """Wrap the journal: the process is struck before or after a write."""

    def prepare(_: int) -> None:
        begin, written = Journal.__init__, [0]

        def wrapped(self: Journal, path: Path) -> None:
            begin(self, path)
            write = self._database.write

            def counted(*statements: Any) -> None:
                written[0] += 1
                is_it = strike is not None and written[0] == strike.number
                if is_it and strike is not None and strike.is_before:
                    _befall(strike)
                write(*statements)
                if is_it and strike is not None and not strike.is_before:
                    _befall(strike)

            self._database.write = counted  # type: ignore[method-assign]

        Journal.__init__ = wrapped  # type: ignore[method-assign]

    return prepare


# Who wishes them ill ---------------------------------------------------------------------------------------------


def start_hostile(folder: Path, how: str, arguments: list[str], seed: int) -> Process:
    """A site that does not follow the protocol, with a certificate that the roster pins.

    Args: arguments: of `hedgerow node`, as an honest site has them.
    """
    source = random.Random(seed)
    if how == MUTATING:
        return start(folder, arguments, lambda _: _damage(source))
    if how == NUMBERS:
        return start(folder, arguments, lambda _: _misnumber(source))
    return _fork(folder, lambda _: _lie(arguments, source, is_silent=how == SILENT))


def _damage(source: random.Random) -> None:
    handle = hedgerow.client.node_session.handle

    class Damaging(_Wrapped):
        def send(self, message: bytes) -> bool:
            if source.random() >= _DAMAGED_SHARE:
                return bool(self._uplink.send(message))
            changed = bytearray(message)
            way = source.randrange(5)
            if way == 0:
                changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
            elif way == 1:
                changed = changed[: source.randrange(1, len(changed) + 1)]
            elif way == 2:
                changed[5:] = source.randbytes(len(changed) - 5)
            elif way == 3:
                self._uplink.send(message)
            return way == 4 or bool(self._uplink.send(bytes(changed)))

    hedgerow.client.node_session.handle = lambda session, uplink, event: handle(session, Damaging(uplink), event)


def _misnumber(source: random.Random) -> None:
    numbers = np.random.default_rng(source.getrandbits(32))

    def answer(_: Node, query: Query) -> IntVector:
        return numbers.integers(-(1 << 40), 1 << 40, query.length, dtype=np.int64)

    Node.answer = answer  # type: ignore[method-assign,assignment]


def _lie(arguments: list[str], source: random.Random, *, is_silent: bool) -> int:
    given = dict(pairwise(arguments))
    identity, pinned = read_private(Path(given["--identity"])), read_roster(Path(given["--roster"]))
    plan = read_plan(given["--plan"])
    digest = bytes.fromhex(plan.digest)
    uplink = GrpcUplink(given["--connect"], identity, pinned, source.random, plan_digest=digest, settings=SETTINGS)
    until = time.monotonic() + _HOSTILE_SECONDS
    while time.monotonic() < until:
        event = uplink.receive(0.2)
        if is_silent or event is None:
            continue
        run_id, epoch = (source.choice([bytes(32), source.randbytes(32)]) for _ in range(2))
        lie = encode(Hello(source.getrandbits(63), run_id, epoch, source.choice([0, 3, 65_000])))
        uplink.send(lie if isinstance(event, Connected) or source.random() < 0.5 else source.randbytes(40))
        time.sleep(0.02)
    uplink.close()
    return 0


def start_flood(folder: Path, address: str, seed: int) -> Process:
    """Strangers: connections that say garbage, or nothing, for two seconds."""
    return _fork(folder, lambda _: _flood(address, random.Random(seed)))


def _flood(address: str, source: random.Random) -> int:
    host, _, port = address.rpartition(":")
    held: list[socket.socket] = []
    until = time.monotonic() + _FLOOD_SECONDS
    for _ in range(_FLOOD_CONNECTIONS):
        with contextlib.suppress(OSError):
            held.append(socket.create_connection((host, int(port)), 0.5))
            held[-1].settimeout(0.1)
            if source.random() < 0.7:
                held[-1].sendall(source.randbytes(source.randrange(1, 400)))
        if len(held) > 40:
            held.pop(0).close()
        time.sleep(0.005)
        if time.monotonic() > until:
            break
    return 0
