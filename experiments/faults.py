"""Random faults in whole federations of real processes: what they end in, and what they break.

``python -m experiments faults --schedules 200 --seed 0``. Each schedule is a coordinator and five nodes over
loopback TLS. Drawn from the seed, processes are killed, frozen, ended and started again, disks become full, one site
may be hostile and strangers may flood the port; the operator then does what docs/deploy.md says: the same commands
again, or `--abort`, or a corrected plan with `--new-run`; or the coordinator never comes back. At the end it is checked
that no model is wrong, nothing hangs, every end has a name, no site's book has less than what left the site, and no
budget stays reserved.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from experiments import faults_parties as parties
from experiments.datasets import Table, category, number
from experiments.federation import SEED, make_sites, plan_text
from hedgerow.cli.inputs import read_plan
from hedgerow.client.budget import RESERVED, BudgetBook, BudgetLine
from hedgerow.client.node import Node, warm_up
from hedgerow.data.site_data import read_site_data
from hedgerow.methods.registry import resolve
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import TrainingTask, ensemble_bytes
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.release import Releaser

N_SITES, N_RECORDS, N_TREES = 5, 300, 10
SITES = tuple(f"site-{count:03}" for count in range(N_SITES))
HUB, DELTA = "coordinator", 1e-6
TIMEOUTS = {"join_timeout": 4.0, "round_timeout": 2.0, "idle_timeout": 6.0}
AGAIN, ABORT, NEW_RUN = "the same commands again", "--abort", "a corrected plan, --new-run"
VANISHED = "none: the coordinator never comes back"
LATEST_START = 10.0
"""Moments count from when the first site is ready, or after so many seconds."""
HUNG_SECONDS = 300.0
"""In which a schedule is over on any machine; its timeouts add up to a fifth of that."""
CHECKS = ("wrong models", "hung", "under-charged", "budget left reserved", "ends without a name")
_LOSSES = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
_MOST_LIVES = 8


@dataclass(frozen=True)
class Schedule:
    """What befalls whom, as drawn."""

    number: int
    strikes: dict[str, list[parties.Strike | None]]
    signals: list[tuple[float, str, int]]
    hostile: str
    is_flooded: bool
    ending: str
    ending_at: float
    seed: int


def draw(seed: int, count: int) -> Schedule:
    """The schedule of this number; the same for the same seed."""
    source = random.Random(f"{seed}/{count}")
    hostile = source.choice(parties.HOSTILE) if source.random() < 0.5 else ""
    names = [HUB, *(SITES[:-1] if hostile else SITES)]
    strikes: dict[str, list[parties.Strike | None]] = {name: [] for name in names}
    signals: list[tuple[float, str, int]] = []
    for _ in range(source.randint(1, 4)):
        name = HUB if source.random() < 0.35 else source.choice(names)
        loss = source.choice([*_LOSSES, parties.FULL])
        if loss == parties.FULL or source.random() < 0.6:
            strikes[name].append(parties.Strike(loss, source.randint(1, 28), source.random() < 0.5))
        else:
            signals.append((source.uniform(0.0, 2.0), name, loss))
    ending = source.choice([AGAIN, AGAIN, AGAIN, ABORT, NEW_RUN, VANISHED])
    return Schedule(
        count, strikes, sorted(signals), hostile, source.random() < 0.3, ending, source.uniform(0.0, 2.0),
        source.getrandbits(32),
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

    def to_json(self) -> str:
        """One line, for the process that adds up."""
        return json.dumps({**self.__dict__, "ends": dict(self.ends), "faults": dict(self.faults)})


# One schedule ----------------------------------------------------------------------------------------------------


@dataclass
class Party:
    """The coordinator or a site: its lives, and whether its last end was its last."""

    name: str
    strikes: list[parties.Strike | None]
    process: parties.Process | None = None
    lives: list[parties.Process] = field(default_factory=list)
    start_at: float = 0.0
    thaw_at: float | None = None
    is_over: bool = False


class Play:
    """One schedule, played: a loop that looks at every process twenty times a second."""

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self.schedule, self.folder, self.found = schedule, folder, Found()
        self.source = random.Random(schedule.seed)
        self.parties = {name: Party(name, list(schedule.strikes.get(name, []))) for name in (HUB, *SITES)}
        self.signals, self.mode, self.hub_options = list(schedule.signals), AGAIN, [""]
        self.is_calm, self.n_closings = False, 0
        self.leavers: set[str] = set()
        self.first_ready: float | None = None
        self.plans = [read_plan(str(folder / "plan.toml"))]
        self.others: list[parties.Process] = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"

    @property
    def hub(self) -> Party:
        """The coordinator."""
        return self.parties[HUB]

    @property
    def _has_vanished(self) -> bool:
        return self.is_calm and self.schedule.ending == VANISHED

    def honest(self) -> Iterator[Party]:
        """The sites that follow the protocol."""
        return (self.parties[name] for name in SITES if not (self.schedule.hostile and name == SITES[-1]))

    def play(self) -> Found:
        """Until all have ended; what hangs is killed and counted."""
        begin = time.monotonic()
        if self.schedule.is_flooded:
            self.others.append(parties.start_flood(self.folder, self.address, self.schedule.seed))
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
        if party.name == SITES[-1] and self.schedule.hostile:
            return self.hub.is_over or len(party.lives) > _MOST_LIVES
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
            name = "full disk" if strike.signal == parties.FULL else signal.Signals(strike.signal).name
            self.found.faults[f"{name} at a message or write"] += 1
        if party is self.hub:
            arguments = [
                "coordinator", "plan.toml", "--roster", "roster.toml", "--identity", f"{HUB}.private.json", "--out",
                "model.json", "--listen", self.address, "--seed", str(SEED), *filter(None, self.hub_options),
            ]  # fmt: skip
            # Given a second time, it would set the new run aside.
            self.hub_options = [option for option in self.hub_options if option != "--new-run"]
            party.process = parties.start(self.folder, arguments, parties.prepare_coordinator(strike))
        else:
            arguments = [
                "node", f"{party.name}.csv", "--plan", "plan.toml", "--roster", "roster.toml", "--identity",
                f"{party.name}.private.json", "--policy", "policy.toml", "--connect", self.address,
                *(["--leave"] if party.name in self.leavers else []),
            ]  # fmt: skip
            self.leavers.discard(party.name)
            if self.schedule.hostile and party.name == SITES[-1]:
                self.found.faults[f"hostile site: {self.schedule.hostile}"] += not party.lives
                seed = self.schedule.seed + len(party.lives)
                party.process = parties.start_hostile(self.folder, self.schedule.hostile, arguments, seed)
            else:
                party.process = parties.start(self.folder, arguments, parties.prepare_node(strike))
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
            self.leavers = {name for name in SITES if self.source.random() < 0.3}
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


# What is checked -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inquest:
    """Looks at the files that a schedule has left."""

    play: Play

    @property
    def folder(self) -> Path:
        """Where the federation's files are."""
        return self.play.folder

    @cached_property
    def plan(self) -> Plan:
        """The plan that was carried out last."""
        return read_plan(str(self.folder / "plan.toml"))

    def check_model(self) -> None:
        """A model is what its journal's releases make, and each of these the local engine's sum over its sites."""
        if not (self.folder / "model.json").is_file():
            return
        found = self.play.found
        found.n_models += 1
        try:
            why = self._fault_of_model()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        if why:
            found.broken.append(("wrong models", why))

    def _fault_of_model(self) -> str:
        # Loading refuses a report that does not follow from the ledger.
        model = Model.load(str(self.folder / "model.json"))
        with closing(sqlite3.connect(self.folder / "model.json.journal")) as journal:
            rows = journal.execute("select content, survivors from releases order by round").fetchall()
            ((salvaged,),) = journal.execute("select salvaged from run").fetchall()
        n_used = len(rows) if salvaged is None else int(json.loads(salvaged)["n_used"])
        if len(model.ledger) != len(rows):
            return f"the ledger has {len(model.ledger)} releases, the journal {len(rows)}"
        replica = Replica(TrainingTask(self.plan))
        rows_of = {site: read_site_data(str(self.folder / f"{site}.csv"), self.plan)[0] for site in SITES}
        settings = resolve(self.plan)
        nodes = {site: Node(site, rows, self.plan, settings) for site, rows in rows_of.items()}
        releaser = Releaser(SeededNoise(SEED))
        for count, (content, listed) in enumerate(rows):
            query, survivors = replica.query, json.loads(listed)
            if query is None:
                return "there are more releases than the program asks for"
            release = np.frombuffer(content, dtype="<i8").astype(np.int64)
            total = np.zeros(query.length, dtype=np.int64)
            for site, node in nodes.items():
                if site in survivors:
                    total += node.answer(query)
                else:
                    node.finish(query)
            is_true = SITES[-1] not in survivors or self.play.schedule.hostile != parties.NUMBERS
            if is_true and count < n_used and not np.array_equal(releaser.release(query, total), release):
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
        for party in self.play.honest():
            self._close_by_hand(party.name)
            left: dict[str, set[int]] = {}
            for life in party.lives:
                for run_id, round_number in life.uploads():
                    left.setdefault(run_id, set()).add(round_number)
            charged = {}
            if (self.folder / f"{party.name}-budget.db").is_file():
                with closing(BudgetBook(self.folder / f"{party.name}-budget.db")) as book:
                    for line in book.lines():
                        charged[line.run_id] = line
                        if line.status == RESERVED:
                            self.play.found.broken.append(("budget left reserved", f"{party.name}: {line.run_id}"))
            for run_id, rounds in left.items():
                why = self._fault_of_line(charged.get(run_id), len(rounds))
                if why:
                    self.play.found.broken.append(("under-charged", f"{party.name}, run {run_id[:12]}: {why}"))

    def _fault_of_line(self, line: BudgetLine | None, n_rounds: int) -> str:
        if line is None:
            return "it is not in the book"
        n_charged = sum(getattr(event, "count", 1) for event in line.events)
        (plan,) = (plan for plan in self.play.plans if plan.digest == line.plan_digest)
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
            process = parties.start(self.folder, ["ledger", str(state), "--close", run_id[:12]])
            while process.poll() is None:
                time.sleep(0.02)
            self.play.found.n_closed += 1
            if process.code:
                self.play.found.broken.append(("budget left reserved", f"{site}: {process.word}"))


# All of them -----------------------------------------------------------------------------------------------------


def furnish(folder: Path) -> None:
    """Keys, roster, policy, plan and tables of made-up wards."""
    source = np.random.default_rng(1)
    age = source.integers(0, 100, N_RECORDS).astype(np.float32)
    ward = source.integers(0, 2, N_RECORDS).astype(np.int16)
    label = (source.random(N_RECORDS) < age / 100).astype(np.int64)
    features = (number("age", 0, 100), category("ward", "a b"))
    section = {"name": "ill", "type": "binary", "classes": ["0", "1"]}
    make_sites(folder, Table("wards", features, (age, ward), label, section), N_SITES)
    plan = Plan.from_dict(
        {
            "version": 1,
            "features": list(features),
            "label": section,
            "privacy": {"epsilon": 4.0, "delta": DELTA, "n_records": N_RECORDS},
            "model": {"n_trees": N_TREES, "max_depth": 2},
            "federation": {"min_sites": 3, **TIMEOUTS},
        }
    )
    (folder / "plan.toml").write_text(plan_text(plan), encoding="utf-8")


def play_one(schedule: Schedule, template: Path, keep: Path | None) -> Found:
    """One schedule in a folder of its own, looked at afterwards; the folder is kept if something was broken."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "federation"
        shutil.copytree(template, folder)
        play = Play(schedule, folder)
        found = play.play()
        inquest = Inquest(play)
        inquest.check_model()
        inquest.check_books()
        if found.broken and keep is not None:
            shutil.copytree(folder, keep / f"schedule-{schedule.number}", dirs_exist_ok=True)
            for party in play.parties.values():
                said = b"\n---\n".join(bytes(life.said) for life in party.lives)
                (keep / f"schedule-{schedule.number}" / f"{party.name}.err").write_bytes(said)
    return found


def be_worker(options: argparse.Namespace) -> int:
    """Play every n-th schedule, and write a line for each."""
    warm_up(None)
    with tempfile.TemporaryDirectory() as place:
        template = Path(place) / "template"
        furnish(template)
        parties.warm()
        for count in options.only or range(options.worker[0], options.schedules, options.worker[1]):
            schedule = draw(options.seed, count)
            found = play_one(schedule, template, options.keep)
            print(json.dumps([count, found.to_json()]), flush=True)
    return 0


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 1 if something was broken."""
    parser = argparse.ArgumentParser(prog="python -m experiments faults", description=__doc__)
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2, help="schedules that are played beside one another")
    parser.add_argument("--only", type=int, nargs="+", help="these schedules, by their numbers")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the files of schedules that broke something")
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        return be_worker(options)
    n_workers = 1 if options.only else max(1, min(options.at_once, options.schedules))
    # A process with threads of its own cannot be forked safely.
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    given = list(sys.argv[2:] if argv is None else argv)
    start = [sys.executable, "-m", "experiments", "faults", *given, "--worker"]
    workers = [
        subprocess.Popen([*start, str(first), str(n_workers)], env=environment, text=True, stdout=subprocess.PIPE)
        for first in range(n_workers)
    ]
    results = sorted(_read(workers), key=lambda result: result[0])
    expected = len(options.only) if options.only else options.schedules
    if any(worker.wait() for worker in workers) or len(results) != expected:
        print(f"BROKEN  {len(results)} of {expected} schedules were played: a worker has failed")
        return 1
    return report(results)


def _read(workers: Sequence[subprocess.Popen[str]]) -> list[tuple[int, Found]]:
    results = []
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            assert worker.stdout is not None
            selector.register(worker.stdout, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                line = key.fileobj.readline()  # type: ignore[union-attr]
                if not line:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                    continue
                count, text = json.loads(line)
                content = json.loads(text)
                found = Found(**{**content, "ends": Counter(content["ends"]), "faults": Counter(content["faults"])})
                results.append((count, found))
                said = "; ".join(f"BROKEN {name}" for name, _ in found.broken) or "holds"
                print(f"schedule {count}: {said}, {found.seconds:.1f} s", file=sys.stderr, flush=True)
    return results
