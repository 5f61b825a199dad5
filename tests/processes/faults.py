"""Random faults in whole federations of real processes: what they end in, and what they break.

``python -m experiments faults --schedules 200 --seed 0``. Each schedule is a coordinator and five nodes over loopback
TLS, or nine or twelve in three groups of sites; twelve add the noise and draw the groups. Drawn from the seed,
processes are killed, frozen, ended and started again, disks become full, one site may be hostile and strangers may
flood the port; the operator then does what docs/deploy.md says: the same commands again, or `--abort`, or a corrected
plan with `--new-run`; or the coordinator never comes back. At the end it is checked that no model is wrong, nothing
hangs, every end has a name, no site's book has less than what left the site, none summed a round in two groups, and no
budget stays reserved.

A worker imports and compiles everything once; every process is forked from it, so that a federation starts in a second.
Only here are functions of the product wrapped: to strike a process at an exact message or write, and to note every
vector that a node is about to send in a pipe, which a full disk does not reach.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import socket
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import hedgerow.app.node
import hedgerow.cli.main
import hedgerow.client.node_session
import hedgerow.secagg.masks
from experiments.datasets import Table, category, number
from experiments.federation import SEED, SETTINGS, make_sites
from hedgerow.app.inputs import read_plan, signing_roster
from hedgerow.cli.main import main as command
from hedgerow.client.budget import RESERVED, BudgetBook, BudgetLine
from hedgerow.client.node import Node, warm_up
from hedgerow.data.site_data import read_site_data
from hedgerow.methods.registry import resolve
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import TrainingTask, ensemble_bytes
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.plan.toml import plan_toml
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.groups import pack
from hedgerow.protocol.messages import Hello, MessageKind, encode
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.secagg.view import split_members
from hedgerow.server.journal import Journal
from hedgerow.server.release import UNCOUNTED, Releaser
from hedgerow.transport.grpc_link import GrpcUplink
from hedgerow.transport.identities import read_private, read_roster
from hedgerow.transport.interface import Connected
from tests.ports import hold_port

N_RECORDS, N_TREES, N_GROUPS = 300, 10, 3
SIZES = (5, 5, 5, 9, 12)
"""Numbers of sites. From nine on they are in three groups: of three, which can lose no site, or of four, which can, and
which are drawn anew, with noise of the sites."""
SITES = tuple(f"site-{count:03}" for count in range(max(SIZES)))
HUB, DELTA = "coordinator", 1e-6
TIMEOUTS = {"join_timeout": 4.0, "round_timeout": 2.0, "idle_timeout": 6.0}
AGAIN, ABORT, NEW_RUN = "the same commands again", "--abort", "a corrected plan, --new-run"
VANISHED = "none: the coordinator never comes back"
LATEST_START = 10.0
"""Moments count from when the first site is ready, or after so many seconds."""
HUNG_SECONDS = 300.0
"""In which a schedule is over on any machine; its timeouts add up to a fifth of that."""
CHECKS = (
    "wrong models", "hung", "under-charged", "in two groups", "budget left reserved", "ends without a name",
    "honest parties accused",
)  # fmt: skip
_LOSSES = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
_MAX_LIVES = 8
FULL = 0
"""In place of a strike's signal: from now on no file of the process may grow."""
MUTATING, NUMBERS, LYING, SILENT = "damages what it sends", "sends other numbers", "lies in its first word", "is silent"
DEALING = "deals shares of other seeds"
HOSTILE = (MUTATING, NUMBERS, LYING, SILENT, DEALING)
_DAMAGED_SHARE = 0.15
_HOSTILE_SECONDS, _FLOOD_SECONDS, _FLOOD_CONNECTIONS = 20.0, 2.0, 200


@dataclass(frozen=True)
class Strike:
    """What befalls a process at its n-th event: a node's n-th message in, or a coordinator's n-th write."""

    signal: int
    number: int
    is_before: bool


@dataclass(frozen=True)
class Schedule:
    """What befalls whom, as drawn."""

    number: int
    strikes: dict[str, list[Strike | None]]
    signals: list[tuple[float, str, int]]
    hostile: str
    is_flooded: bool
    ending: str
    ending_at: float
    seed: int
    n_sites: int = SIZES[0]

    @property
    def sites(self) -> tuple[str, ...]:
        """Who takes part; the last one is hostile where one is."""
        return SITES[: self.n_sites]


def draw(seed: int, count: int) -> Schedule:
    """The schedule of this number; the same for the same seed."""
    source = random.Random(f"{seed}/{count}")
    hostile = source.choice(HOSTILE) if source.random() < 0.5 else ""
    n_sites = source.choice(SIZES)
    names = [HUB, *SITES[: n_sites - bool(hostile)]]
    strikes: dict[str, list[Strike | None]] = {name: [] for name in names}
    signals: list[tuple[float, str, int]] = []
    for _ in range(source.randint(1, 4)):
        name = HUB if source.random() < 0.35 else source.choice(names)
        loss = source.choice([*_LOSSES, FULL])
        if loss == FULL or source.random() < 0.6:
            strikes[name].append(Strike(loss, source.randint(1, 28), source.random() < 0.5))
        else:
            signals.append((source.uniform(0.0, 2.0), name, loss))
    ending = source.choice([AGAIN, AGAIN, AGAIN, ABORT, NEW_RUN, VANISHED])
    return Schedule(
        count, strikes, sorted(signals), hostile, source.random() < 0.3, ending, source.uniform(0.0, 2.0),
        source.getrandbits(32), n_sites,
    )  # fmt: skip


@dataclass
class Found:
    """How a schedule ended: counts of ends by party, and what was broken."""

    ends: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[str, str]] = field(default_factory=list)
    n_models: int = 0
    n_closed: int = 0
    seconds: float = 0.0


# Processes, what befalls them, and who wishes them ill ---------------------------------------------------------------


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
        return last.rpartition("(")[2].partition(",")[0] if last.endswith(")") and ", exit code " in last else ""

    def uploads(self) -> Iterator[tuple[str, int, str]]:
        """Run, round and groups of every vector that it was about to send."""
        for line in self.noted.decode("ascii").splitlines():
            run_id, number, drawing = json.loads(line)
            yield run_id, number, drawing


def start(folder: Path, arguments: list[str], prepare: Callable[[int], None] = lambda _: None) -> Process:
    """Fork a command in a folder.

    Args: prepare: is called in the child before the command, with the pipe to note vectors in.
    """

    def act(noted: int) -> int:
        prepare(noted)
        run = hedgerow.cli.main._run

        def interruptible(given: list[str]) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                run(given)
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)

        # Before and after, to be interrupted is not an end of the command's.
        hedgerow.cli.main._run = interruptible  # type: ignore[assignment]
        return command(arguments)

    return _fork(folder, act)


def _fork(folder: Path, act: Callable[[int], int]) -> Process:
    said, noted = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
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


Act = Callable[[], object]


def _striker(strike: Strike | None) -> Callable[[Act], None]:
    """Does what it is given; the process is struck before or after the right one."""
    seen = [0]

    def befall() -> None:
        assert strike is not None
        if strike.signal == FULL:
            # Python ignores the signal that goes with it, so that writing fails as on a full disk.
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        else:
            os.kill(os.getpid(), strike.signal)

    def act(what: Act) -> None:
        seen[0] += 1
        is_it = strike is not None and seen[0] == strike.number
        if is_it and strike is not None and strike.is_before:
            befall()
        what()
        if is_it and strike is not None and not strike.is_before:
            befall()

    return act


def prepare_node(strike: Strike | None, noted: int) -> None:
    """Wrap the node's loop: it notes its vectors, and is struck."""
    handle, act = hedgerow.client.node_session.handle, _striker(strike)

    def struck(session: Any, uplink: Any, event: Any) -> None:
        what = partial(handle, session, _Noting(session, uplink, noted), event)
        if isinstance(event, bytes):
            act(what)
        else:
            what()

    hedgerow.client.node_session.handle = struck


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
            drawing = run.participant.view.parameters.drawing.hex()
            os.write(self._noted, json.dumps([run.run_id.hex(), run.replica.n_releases, drawing]).encode() + b"\n")
        return bool(self._uplink.send(message))


def prepare_coordinator(strike: Strike | None, _: int) -> None:
    """Wrap the journal: the process is struck before or after a write."""
    begin, act = Journal.__init__, _striker(strike)

    def wrapped(self: Journal, path: Path) -> None:
        begin(self, path)
        write = self._database.write
        self._database.write = lambda *statements: act(partial(write, *statements))  # type: ignore[method-assign]

    Journal.__init__ = wrapped  # type: ignore[method-assign]


def start_hostile(folder: Path, how: str, arguments: list[str], seed: int) -> Process:
    """A site that does not follow the protocol, with a certificate that the roster pins.

    Args: arguments: of `hedgerow node`, as an honest site has them.
    """
    source = random.Random(seed)
    if how == MUTATING:
        return start(folder, arguments, lambda _: _damage(source))
    if how == NUMBERS:
        return start(folder, arguments, lambda _: _misnumber(source))
    if how == DEALING:
        return start(folder, arguments, lambda _: _misdeal())
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


def _misdeal() -> None:
    split = hedgerow.secagg.masks.split  # type: ignore[attr-defined]
    hedgerow.secagg.masks.split = lambda seed, *others: split(bytes(len(seed)), *others)  # type: ignore[attr-defined]


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


# One schedule ----------------------------------------------------------------------------------------------------


@dataclass
class Party:
    """The coordinator or a site: its lives, and whether its last end was its last."""

    name: str
    strikes: list[Strike | None]
    process: Process | None = None
    lives: list[Process] = field(default_factory=list)
    start_at: float = 0.0
    thaw_at: float | None = None
    is_over: bool = False


class Play:
    """One schedule, played: a loop that looks at every process twenty times a second."""

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self.schedule, self.folder, self.found = schedule, folder, Found()
        self.source = random.Random(schedule.seed)
        self.parties = {name: Party(name, list(schedule.strikes.get(name, []))) for name in (HUB, *schedule.sites)}
        self.signals, self.mode, self.hub_options = list(schedule.signals), AGAIN, [""]
        self.is_calm, self.n_closings = False, 0
        self.leavers: set[str] = set()
        self.first_ready: float | None = None
        self.plans = [read_plan(str(folder / "plan.toml"))]
        self.others: list[Process] = []
        self.address = ""

    @property
    def hub(self) -> Party:
        """The coordinator."""
        return self.parties[HUB]

    @property
    def hostile(self) -> str:
        """The site that does not follow the protocol; empty where all do."""
        return self.schedule.sites[-1] if self.schedule.hostile else ""

    @property
    def _has_vanished(self) -> bool:
        return self.is_calm and self.schedule.ending == VANISHED

    def honest(self) -> Iterator[Party]:
        """The sites that follow the protocol."""
        return (self.parties[name] for name in self.schedule.sites if name != self.hostile)

    def play(self) -> Found:
        """Until all have ended; what hangs is killed and counted."""
        begin = time.monotonic()
        held, self.address = hold_port()
        self.found.faults[f"{self.schedule.n_sites} sites"] += 1
        if self.schedule.is_flooded:
            self.others.append(start_flood(self.folder, self.address, self.schedule.seed))
            self.found.faults["flood"] += 1
        while not self._is_over():
            now = time.monotonic() - begin
            if now > HUNG_SECONDS:
                alive = [name for name, party in self.parties.items() if party.process is not None]
                self.found.broken.append(("hung", ", ".join(alive) or "the operator"))
                break
            self._step(now)
            time.sleep(0.05)
        self._kill_all()
        held.close()
        self.found.seconds = time.monotonic() - begin
        self._look_at_ends()
        return self.found

    def _is_over(self) -> bool:
        return all(party.is_over for party in (self.hub, *self.honest()))

    def _step(self, now: float) -> None:
        if self.first_ready is None and (b" is ready" in self._said_by_hub() or now > LATEST_START):
            self.first_ready = now
        moment = -1.0 if self.first_ready is None else now - self.first_ready
        while self.signals and self.signals[0][0] <= moment:
            _, name, what = self.signals.pop(0)
            process = self.parties[name].process
            if process is not None and process.poll() is None:
                process.send(what)
                self.found.faults[f"{signal.Signals(what).name} at a moment"] += 1
        if not self.is_calm and self.schedule.ending != AGAIN and moment >= self.schedule.ending_at:
            self._change_course()
        for party in self.parties.values():
            self._look_at(party, now)
        if self.hub.is_over and not self._is_over() and self.schedule.ending != VANISHED:
            self._tell_the_others(now)

    def _said_by_hub(self) -> bytes:
        return b"".join(life.said for life in self.hub.lives)

    def _look_at(self, party: Party, now: float) -> None:
        if party.process is None:
            if not party.is_over and now >= party.start_at:
                self._start(party)
            return
        if party.process.poll() is None:
            if party.thaw_at is None and party.process.is_frozen:
                party.thaw_at = now + self.source.uniform(0.3, 4.0)
            elif party.thaw_at is not None and now >= party.thaw_at:
                party.process.send(signal.SIGCONT)
                party.thaw_at = None
            return
        code, word = party.process.code or 0, party.process.word
        party.process, party.thaw_at = None, None
        party.is_over = self._was_the_last(party, code, word)
        party.start_at = now + self.source.uniform(0.0, 0.8)

    def _was_the_last(self, party: Party, code: int, word: str) -> bool:
        """Whether an operator would leave it at that: it has finished, or its run was given up."""
        if party.name == self.hostile:
            return self.hub.is_over or len(party.lives) > _MAX_LIVES
        if code < 0 or code in (10, 130):
            # Nobody starts a node again for a coordinator that never comes back.
            return party is not self.hub and self.hub.is_over and (self.n_closings > 1 or self._has_vanished)
        if word == "coordinator-silent":
            return self.hub.is_over
        return True

    # What the operator does ---------------------------------------------------------------------------------------

    def _start(self, party: Party) -> None:
        strike = party.strikes.pop(0) if party.strikes and not self.is_calm else None
        if strike is not None:
            name = "full disk" if strike.signal == FULL else signal.Signals(strike.signal).name
            self.found.faults[f"{name} at a message or write"] += 1
        if party is self.hub:
            arguments = [
                "coordinator", "plan.toml", "--roster", "roster.toml", "--identity", f"{HUB}.private.json", "--out",
                "model.json", "--listen", self.address, "--seed", str(SEED), *filter(None, self.hub_options),
            ]  # fmt: skip
            # Given a second time, it would set the new run aside.
            self.hub_options = [option for option in self.hub_options if option != "--new-run"]
            party.process = start(self.folder, arguments, partial(prepare_coordinator, strike))
        else:
            arguments = [
                "node", f"{party.name}.csv", "--plan", "plan.toml", "--roster", "roster.toml", "--identity",
                f"{party.name}.private.json", "--policy", "policy.toml", "--connect", self.address,
                *(["--leave"] if party.name in self.leavers else []),
            ]  # fmt: skip
            self.leavers.discard(party.name)
            if party.name == self.hostile:
                self.found.faults[f"hostile site: {self.schedule.hostile}"] += not party.lives
                seed = self.schedule.seed + len(party.lives)
                party.process = start_hostile(self.folder, self.schedule.hostile, arguments, seed)
            else:
                party.process = start(self.folder, arguments, partial(prepare_node, strike))
        party.lives.append(party.process)

    def _change_course(self) -> None:
        """All are stopped by their operators; then the run is ended, or begun again with a corrected plan."""
        self.is_calm = True
        if self.hub.is_over:
            return
        self.found.faults[f"operator: {self.schedule.ending}"] += 1
        if self.schedule.ending == VANISHED:
            if self.hub.process is not None:
                self.hub.process.send(signal.SIGKILL)
            self.hub.process, self.hub.is_over = None, True
            return
        self._stop_all()
        if self.schedule.ending == ABORT:
            self.hub_options = ["--abort"]
        else:
            plan = (self.folder / "plan.toml").read_text(encoding="utf-8")
            (self.folder / "plan.toml").write_text(plan.replace("epsilon = 4.0", "epsilon = 3.0"), encoding="utf-8")
            self.plans.append(read_plan(str(self.folder / "plan.toml")))
            self.leavers = {name for name in self.schedule.sites if self.source.random() < 0.3}
            self.hub_options = ["--new-run"]

    def _stop_all(self) -> None:
        for party in self.parties.values():
            if party.process is not None:
                for what in (signal.SIGCONT, signal.SIGINT):
                    party.process.send(what)
        deadline = time.monotonic() + 60
        for party in self.parties.values():
            while party.process is not None and party.process.poll() is None:
                if time.monotonic() > deadline:
                    party.process.send(signal.SIGKILL)
                time.sleep(0.02)
            party.process, party.thaw_at, party.start_at, party.is_over = None, None, 0.0, False

    def _tell_the_others(self, now: float) -> None:
        """The coordinator has ended, some nodes have not: the same command tells them of the model, --abort of the end.

        Those who still do not know then are stopped by their owners.
        """
        self.is_calm = True
        waiting = [party for party in self.honest() if not party.is_over]
        self.n_closings += 1
        if self.n_closings > 2:
            for party in waiting:
                if party.process is not None:
                    party.process.send(signal.SIGINT)
                party.is_over = party.process is None or party.process.poll() is not None
            return
        last = self.hub.lives[-1]
        has_model = last.code == 0 and "--abort" not in self.hub_options
        # Without a run to end, or after its model was made, the error says to start it without --abort.
        self.hub_options = [] if has_model or last.word == "no-open-run" else ["--abort"]
        self.hub.is_over, self.hub.start_at = False, now

    def _kill_all(self) -> None:
        for process in (*self.others, *(life for party in self.parties.values() for life in party.lives)):
            process.send(signal.SIGKILL)
            while process.poll() is None:
                time.sleep(0.01)

    def _look_at_ends(self) -> None:
        for party in (self.hub, *self.honest()):
            for life in party.lives:
                code = life.code or 0
                name = signal.Signals(-code).name if code < 0 else life.word or str(code)
                self.found.ends[f"{'coordinator' if party is self.hub else 'node'}: {code} {name}"] += 1
                if code > 0 and (code == 70 or not (life.word or code == 130)):
                    said = life.said.decode(errors="replace")[-2000:]
                    self.found.broken.append(("ends without a name", f"{party.name}, {code}: {said}"))
                if life.word == "out-of-order":
                    # Nobody here lies to a node but other nodes: its coordinator followed the protocol.
                    self.found.broken.append(("honest parties accused", f"{party.name}: {life.said.decode()[-600:]}"))

    # What is checked ----------------------------------------------------------------------------------------------

    def check_model(self) -> None:
        """A model is what its journal's releases make, and each of these the local engine's sum over its sites."""
        if not (self.folder / "model.json").is_file():
            return
        self.found.n_models += 1
        try:
            why = self._fault_of_model()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        if why:
            self.found.broken.append(("wrong models", why))

    def _fault_of_model(self) -> str:
        # Loading refuses a report that does not follow from the ledger.
        model = Model.load(str(self.folder / "model.json"))
        with closing(sqlite3.connect(self.folder / "model.json.journal")) as journal:
            rows = journal.execute("select content, survivors from releases order by round").fetchall()
            ((salvaged,),) = journal.execute("select salvaged from run").fetchall()
        n_used = len(rows) if salvaged is None else int(json.loads(salvaged)["n_used"])
        # What the runs before released, whose journals were set aside, is on the model's account too.
        n_released = len(rows)
        for path in self.folder.glob("model.json.journal.[0-9]*"):
            with closing(sqlite3.connect(path)) as journal:
                n_released += journal.execute("select count(*) from releases").fetchone()[0]
        if len(model.ledger) != n_released:
            return f"the ledger has {len(model.ledger)} releases, the journals {n_released}"
        # A run may end just before its operator corrects the plan: then the model is of the plan before.
        plan = next((each for each in self.plans if each.privacy.epsilon == model.plan.privacy.epsilon), None)
        if plan is None:
            return "the model is of no plan that was carried out"
        replica, settings = Replica(TrainingTask(plan)), resolve(plan)
        if plan.has_joint_structure:
            replica.begin(int(model.plan.model.structure_seed), bytes(32))
        sites = self.schedule.sites
        rows_of = {site: read_site_data(str(self.folder / f"{site}.csv"), plan)[0] for site in sites}
        nodes = {site: Node(site, rows, plan, settings) for site, rows in rows_of.items()}
        roster = signing_roster(read_roster(self.folder / "roster.toml"))
        releaser = Releaser(SeededNoise(SEED), UNCOUNTED)
        for count, (content, listed) in enumerate(rows):
            query, survivors = replica.query, json.loads(listed)
            if query is None:
                return "there are more releases than the program asks for"
            release = np.frombuffer(content, dtype="<i8").astype(np.int64)
            nodes_of_groups = split_members(roster, range(len(sites)), replica.n_groups, replica.drawing)
            parts = [{roster.sites[node].name for node in part} for part in nodes_of_groups]
            totals = dict[int, IntVector]()
            for site, node in nodes.items():
                if site in survivors:
                    (group,) = (number for number, part in enumerate(parts) if site in part)
                    totals[group] = totals.get(group, np.int64(0)) + node.answer(query)
                else:
                    node.finish(query)
            # Of made-up numbers, the sum is not known here; over groups it is that of one group, which may sit out.
            liar = self.hostile if self.schedule.hostile == NUMBERS else ""
            weights = {group: len(parts[group].intersection(survivors)) for group in totals}
            if not replica.n_groups or model.plan.privacy.noise != "distributed":
                totals = releaser.release_groups(query, totals, replica.n_groups)
            packed = pack(totals, weights, query.length, replica.n_groups)
            true = dict(enumerate(packed.reshape(max(1, replica.n_groups), -1)))
            found = release.reshape(max(1, replica.n_groups), -1)
            cohort = model.ledger.releases[count].cohort
            # Twelve sites may add a share of noise each, which is not known here.
            most = 0 if cohort is None else 16 * 12 * noise_of(query, cohort.n_shares).share_sigma
            wrong = [group for group, row in true.items() if (np.abs(row - found[group]) > most).any()]
            if count < n_used and any(liar not in parts[group].intersection(survivors) for group in wrong):
                return f"release {count} is not the sum over {survivors}"
            # A release after those of a model that was salvaged is counted, and it may be garbage.
            if count < n_used:
                replica.feed(release)
        if replica.query is not None and (salvaged is None or not replica.end_early()):
            return f"there is a model of {n_used} releases, and the program asks for more"
        is_same = ensemble_bytes(model.ensemble) == ensemble_bytes(replica.ensemble)
        return "" if is_same else "the model is not the one that its releases make"

    def check_books(self) -> None:
        """Of each honest site: close what is reserved, as docs/deploy.md says; then compare with what has left."""
        for party in self.honest():
            self._close_by_hand(party.name)
            left: dict[str, set[int]] = {}
            groups: dict[tuple[str, int], str] = {}
            for life in party.lives:
                for run_id, round_number, drawing in life.uploads():
                    left.setdefault(run_id, set()).add(round_number)
                    if groups.setdefault((run_id, round_number), drawing) != drawing:
                        self.found.broken.append(("in two groups", f"{party.name}: round {round_number} of {run_id}"))
            charged = {}
            if (self.folder / f"{party.name}-budget.db").is_file():
                with closing(BudgetBook(self.folder / f"{party.name}-budget.db")) as book:
                    for line in book.lines():
                        charged[line.run_id] = line
                        if line.status == RESERVED:
                            self.found.broken.append(("budget left reserved", f"{party.name}: {line.run_id}"))
            for run_id, rounds in left.items():
                why = self._fault_of_line(charged.get(run_id), len(rounds))
                if why:
                    self.found.broken.append(("under-charged", f"{party.name}, run {run_id[:12]}: {why}"))

    def _fault_of_line(self, line: BudgetLine | None, n_rounds: int) -> str:
        if line is None:
            return "it is not in the book"
        n_charged = sum(getattr(event, "count", 1) for event in line.events)
        (plan,) = (plan for plan in self.plans if plan.digest == line.plan_digest)
        # A plan's cost is rounded up; what is charged for all of its rounds may be less by so much.
        true = plan.privacy.epsilon * 0.9999 if n_rounds == N_TREES else 0.0
        if n_charged < n_rounds or line.epsilon(DELTA) < true:
            return f"{n_charged} of {n_rounds} rounds, epsilon {line.epsilon(DELTA):g}"
        return ""

    def _close_by_hand(self, site: str) -> None:
        state = self.folder / f"{site}-state"
        file = self.folder / f"{site}-budget.db"
        if not file.is_file():
            return
        with closing(BudgetBook(file)) as book:
            reserved = [line.run_id for line in book.lines() if line.status == RESERVED]
        for run_id in reserved:
            process = start(self.folder, ["ledger", str(state), "--close", run_id[:12]])
            while process.poll() is None:
                time.sleep(0.02)
            self.found.n_closed += 1
            if process.code:
                self.found.broken.append(("budget left reserved", f"{site}: {process.word}"))


# All of them -----------------------------------------------------------------------------------------------------


def furnish(folder: Path, n_sites: int = SIZES[0]) -> None:
    """Keys, roster, policy, plan and tables of made-up wards."""
    source = np.random.default_rng(1)
    age = source.integers(0, 100, N_RECORDS).astype(np.float32)
    ward = source.integers(0, 2, N_RECORDS).astype(np.int16)
    label = (source.random(N_RECORDS) < age / 100).astype(np.int64)
    features = (number("age", 0, 100), category("ward", "a b"))
    section = {"name": "ill", "type": "binary", "classes": ["0", "1"]}
    make_sites(folder, Table("wards", features, (age, ward), label, section), n_sites)
    policy = folder / "policy.toml"
    policy.write_text(policy.read_text(encoding="utf-8").replace('["server"]', '["server", "distributed"]'))
    noise, seed = ("distributed", "joint") if n_sites == SIZES[-1] else ("server", 0)
    plan = Plan.from_dict(
        {
            "version": 1,
            "features": list(features),
            "label": section,
            "privacy": {"epsilon": 4.0, "delta": DELTA, "n_records": N_RECORDS, "noise": noise},
            "model": {"n_trees": N_TREES, "max_depth": 2, "calibration": "none", "structure_seed": seed},
            "federation": {"min_sites": 3, **TIMEOUTS, **({"groups": N_GROUPS} if n_sites > SIZES[0] else {})},
        }
    )
    (folder / "plan.toml").write_text(plan_toml(plan), encoding="utf-8")


def play_one(schedule: Schedule, template: Path, keep: Path | None) -> Found:
    """One schedule in a folder of its own, looked at afterwards; the folder is kept if something was broken."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "federation"
        shutil.copytree(template, folder)
        play = Play(schedule, folder)
        found = play.play()
        play.check_model()
        play.check_books()
        if found.broken and keep is not None:
            shutil.copytree(folder, keep / f"schedule-{schedule.number}", dirs_exist_ok=True)
            for party in play.parties.values():
                said = b"\n---\n".join(bytes(life.said) for life in party.lives)
                (keep / f"schedule-{schedule.number}" / f"{party.name}.err").write_bytes(said)
    return found


def report(results: Sequence[tuple[int, Found]]) -> int:
    """Print what they ended in; 1 if anything was broken."""
    faults, ends = (sum((getattr(found, name) for _, found in results), Counter[str]()) for name in ("faults", "ends"))
    for title, counted in (("Faults, as drawn; some processes end before", faults), ("Ends", ends)):
        print(f"\n{title}")
        for name, count in sorted(counted.items()):
            print(f"  {count:6}  {name}")
    seconds = [found.seconds for _, found in results]
    n_models, n_closed = (sum(getattr(found, name) for _, found in results) for name in ("n_models", "n_closed"))
    print(f"\n{len(results)} schedules, {np.median(seconds):.1f} s each (median; at most {max(seconds):.1f} s).")
    print(f"{n_models} models; {n_closed} runs closed by their owners with `hedgerow ledger --close`.")
    for check in CHECKS:
        broken = [(count, text) for count, found in results for name, text in found.broken if name == check]
        print(f"{'BROKEN' if broken else 'holds '}  {len(broken)} {check}")
        for count, text in broken:
            print(f"          schedule {count}: {text}")
    return int(any(found.broken for _, found in results))


def be_ready() -> None:
    """What a process does once before it dials is done by the worker that it is forked from."""
    warm_up(None)
    hedgerow.app.node.warm_up = lambda *_: None  # type: ignore[attr-defined]


def main(argv: Sequence[str]) -> int:
    """Run it; 1 if something was broken."""
    parser = argparse.ArgumentParser(prog="python -m experiments faults", description=__doc__)
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2, help="schedules that are played beside one another")
    parser.add_argument("--only", type=int, nargs="+", help="these schedules, by their numbers")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the files of schedules that broke something")
    options = parser.parse_args(argv)
    schedules = [draw(options.seed, count) for count in options.only or range(options.schedules)]
    n_workers = 1 if options.only else max(1, min(options.at_once, options.schedules))
    # A process with threads of its own cannot be forked safely: workers are new ones that start none.
    one_thread = {"NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    results: list[tuple[int, Found]] = []
    with (
        tempfile.TemporaryDirectory() as place, mock.patch.dict(os.environ, one_thread),
        ProcessPoolExecutor(n_workers, multiprocessing.get_context("spawn"), be_ready) as workers,
    ):  # fmt: skip
        templates = {n_sites: Path(place) / f"template-{n_sites}" for n_sites in SIZES}
        for n_sites, template in templates.items():
            furnish(template, n_sites)
        waiting = {workers.submit(play_one, each, templates[each.n_sites], options.keep): each for each in schedules}
        for done in as_completed(waiting):
            try:
                count, found = waiting[done].number, done.result()
            except BrokenProcessPool:
                print(f"BROKEN  {len(results)} of {len(schedules)} schedules were played: a worker has failed")
                return 1
            results.append((count, found))
            said = "; ".join(f"BROKEN {name}" for name, _ in found.broken) or "holds"
            print(f"schedule {count}: {said}, {found.seconds:.1f} s", file=sys.stderr, flush=True)
    return report(sorted(results, key=lambda result: result[0]))
