"""A whole federation in one thread: real sessions, stores and loops over the engine in memory, and a clock by hand."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.client.budget import BudgetBook
from hedgerow.client.node_session import NodeSession, handle
from hedgerow.client.policy import Policy
from hedgerow.client.setup import NodeSetup
from hedgerow.client.state import NodeStore
from hedgerow.crypto import Identity
from hedgerow.data.binned import SiteData
from hedgerow.errors import HedgerowError, RemoteProtocolError
from hedgerow.methods.tasks import EvaluationTask, SurveyTask, TrainingTask, ensemble_bytes
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource, SeededNoise
from hedgerow.protocol.messages import MessageKind, NodeState, Payload, decode
from hedgerow.secagg.messages import Answer, Header, Manifest, MaskedVector, Roster, Site, UnmaskRequest, manifest_hash
from hedgerow.server.coordinator import RunEvent, RunSession, RunSetup, conclude, run_coordinator
from hedgerow.server.journal import Journal
from hedgerow.server.release import EvaluatedModel, Outcome
from hedgerow.transport.interface import Arrived, HubEvent
from tests import builders
from tests.builders import make_plan, take
from tests.memory_network import FaultPlan, MemoryHub, MemoryNetwork, MemoryUplink, no_faults
from tests.wards import survivors_model

NOISE = ("server", "distributed", "local")
OPEN_POLICY = Policy(version=1, data_set="test", max_epsilon=100.0, delta=1e-5, noise=NOISE, evaluation_noise=NOISE)


def key(name: str) -> Identity:
    """An identity that is the same in every run of the tests."""
    return Identity(name.encode().ljust(32, b"."))


class Crash(BaseException):
    """The node's process is gone; not an Exception, for nothing may catch it."""


@dataclass
class Party:
    """One site's node process: it can be killed, frozen and started again."""

    setup: NodeSetup
    folder: Path
    network: MemoryNetwork
    session: NodeSession | None = None
    uplink: MemoryUplink | None = None
    is_frozen: bool = False
    failures: list[HedgerowError] = field(default_factory=list)
    store: NodeStore | None = None
    book: BudgetBook | None = None

    def start(self) -> None:
        """Start the process: whatever it knows is on its disk."""
        try:
            self.store = NodeStore(self.folder)
            self.book = BudgetBook(self.folder / "budget.db")
            self.session = NodeSession(self.setup, self.store, self.book)
        except HedgerowError as fault:
            self.failures.append(fault)
            self.kill()
            return
        self.uplink = self.network.uplink(self.setup.site)

    def kill(self) -> None:
        """The process is gone, and with it its memory and its connection."""
        self.session = None
        if self.uplink is not None:
            self.uplink.close()
            self.uplink = None
        for file in (self.store, self.book):
            if file is not None:
                file.close()
        self.store = self.book = None

    @property
    def is_done(self) -> bool:
        return self.session is not None and self.session.state is NodeState.FINISHED

    def pump(self) -> bool:
        """Handle one event; False when there is none, or nobody to handle it. After a crash it is started again."""
        if self.session is None or self.uplink is None or self.is_frozen:
            return False
        asked, event = self.session.question, None
        try:
            # As the loop does, which looks at what the owner says before it waits.
            handle(self.session, self.uplink, None)
            event = self.uplink.receive(0)
            if event is not None:
                handle(self.session, self.uplink, event)
        except Crash:
            self.restart()
        except HedgerowError as fault:
            self.failures.append(fault)
            self.kill()
        return event is not None or self.session is None or self.session.question != asked

    def after(self, number: int, act: Callable[[], None]) -> None:
        """Carry out `act` as soon as this many events have been handled."""
        pump, seen = self.pump, [0]

        def watched() -> bool:
            handled = pump()
            seen[0] += handled
            if handled and seen[0] == number:
                act()
            return handled

        self.pump = watched  # type: ignore[method-assign]

    def restart(self) -> None:
        """Kill the process and start it again at once."""
        self.kill()
        self.start()

    def crash_after(self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[bool]:
        """The process crashes once, when it has called this method of its store or book; then the list has an entry."""
        method, crashed = getattr(kind, name), []

        def struck(own: Any, *arguments: Any, **named: Any) -> Any:
            found = method(own, *arguments, **named)
            if own in (self.store, self.book) and not crashed:
                crashed.append(True)
                raise Crash
            return found

        monkeypatch.setattr(kind, name, struck)
        return crashed


class Killed(BaseException):
    """The coordinator's process is gone; not an Exception, for nothing may catch it."""


@pytest.fixture
def killed() -> type[BaseException]:
    """What ends a coordinator's process in these tests."""
    return Killed


@pytest.fixture
def crash() -> type[BaseException]:
    """What ends a node's process in these tests; it is started again."""
    return Crash


class PumpedHub:
    """A hub whose nodes run when the coordinator waits; time passes only when nothing else can happen."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._hub: MemoryHub = federation.network.hub()
        federation.tamper(self._hub)

    def send(self, site: str, message: bytes) -> bool:
        self._federation.sent.append((site, message))
        if message[4] == MessageKind.UNMASK:
            self._federation.note_manifest(message)
        return self._hub.send(site, message)

    def receive(self, timeout: float) -> HubEvent | None:
        federation = self._federation
        while True:
            event = self._hub.receive(0)
            if event is not None:
                if isinstance(event, Arrived):
                    federation.note(event)
                return event
            if timeout <= 0:
                return None  # It does not wait, it only asks.
            if any([party.pump() for party in federation.parties.values()]):
                continue
            if federation.while_waiting(timeout):
                continue
            federation.now += timeout
            return None

    def close(self) -> None:
        self._hub.close()


class WatchedJournal(Journal):
    """A journal that kills its process after a given number of writes."""

    def __init__(self, path: Path, kill_after: int | None) -> None:
        super().__init__(path)
        write = self._database.write
        left = [kill_after]

        def watched(*statements: Any) -> None:
            write(*statements)
            if left[0] is not None:
                left[0] -= 1
                if left[0] <= 0:
                    raise Killed

        self._database.write = watched  # type: ignore[method-assign]


@dataclass
class Federation:
    """Sites, a coordinator, and the network between them."""

    plan: Plan
    data: dict[str, SiteData]
    held_out: dict[str, SiteData]
    folder: Path
    noise: NoiseSource
    network: MemoryNetwork
    roster: Roster
    parties: dict[str, Party] = field(default_factory=dict)
    events: list[RunEvent] = field(default_factory=list)
    sent: list[tuple[str, bytes]] = field(default_factory=list)
    received: list[tuple[str, bytes]] = field(default_factory=list)
    manifests: dict[bytes, str] = field(default_factory=dict)
    uploads: dict[tuple[str, bytes, int], bytes] = field(default_factory=dict)
    answers: dict[tuple[str, bytes, str], bytes] = field(default_factory=dict)
    checks_messages: bool = True
    now: float = 0.0
    while_waiting: Callable[[float], bool] = field(default=lambda _: False)
    on_event: Callable[[RunEvent], None] = field(default=lambda _: None)
    session: RunSession | None = None
    tamper: Callable[[MemoryHub], None] = field(default=lambda _: None)
    coordinator_entropy: Callable[[int], bytes] = field(default=lambda size: os.urandom(size))
    coordinator_key: Identity = field(default_factory=lambda: key("coordinator"))
    evaluation: EvaluatedModel | None = None
    """The model that the next runs evaluate; None to train one."""
    survey: SurveyTask | None = None
    """What the next runs ask for before there is a plan."""

    def watch(self, event: RunEvent) -> None:
        """Keep an event, and let a test act on it."""
        self.events.append(event)
        self.on_event(event)

    def note_manifest(self, message: bytes) -> None:
        """Remember which purpose a manifest is for."""
        if not self.checks_messages:
            return
        payload = decode(message)
        assert isinstance(payload, Payload)
        signed = UnmaskRequest.from_bytes(payload.content).manifest
        self.manifests[manifest_hash(signed)] = Manifest.from_signed(signed).purpose

    def note(self, event: Arrived) -> None:
        """Check, in every test: a slot masks one vector only, and a purpose is answered for one manifest only."""
        self.received.append((event.site, event.message))
        assert self.session is not None
        assert self.session._is_any_awaited() == bool(self.session.list_awaited())
        if not self.checks_messages:
            return
        try:
            payload = decode(event.message)
        except RemoteProtocolError:
            return
        if not isinstance(payload, Payload) or payload.content == b"garbage":
            return
        if payload.kind is MessageKind.UPLOAD:
            header = Header.from_signed(MaskedVector.from_bytes(payload.content).header)
            place = (event.site, header.context.epoch, header.context.slot)
            assert self.uploads.setdefault(place, payload.content) == payload.content, "a slot was used twice"
        if payload.kind is MessageKind.ANSWER:
            manifest = Answer.from_signed(payload.content).manifest
            purpose = (event.site, self.session.run.run_id, self.manifests[manifest])
            assert self.answers.setdefault(purpose, manifest) == manifest, "a purpose was answered twice"

    def stop(self, n_writes: int) -> None:
        """The coordinator is killed after a write of its journal and never comes back; then the nodes are."""
        with pytest.raises(Killed):
            self.run(kill_after=n_writes)
        for party in self.parties.values():
            party.kill()

    def drop_journal(self) -> None:
        """The coordinator sets its journal aside: what it begins next is another run of the same plan."""
        for file in self.folder.glob("journal.db*"):
            file.unlink()

    def run(
        self, kill_after: int | None = None, plan: Plan | None = None, is_paused: Callable[[], bool] = lambda: False
    ) -> Outcome:
        """One life of the coordinator's process; raises Killed when it was killed."""
        journal = WatchedJournal(self.folder / self.journal, kill_after)
        hub: PumpedHub | None = None
        try:
            keys = (self.roster, self.coordinator_key)
            model, noise = self.evaluation, self.noise
            task = self.survey or (TrainingTask(plan or self.plan) if model is None else model.task)
            setup = RunSetup(task, *keys, noise, self.coordinator_entropy, self.watch, model)
            session = self.session = RunSession(setup, journal)
            hub = PumpedHub(self)
            run_coordinator(session, hub, self.plan.federation, lambda: self.now, None, is_paused)
            self.drain()
            return conclude(session.run)
        finally:
            journal.close()
            if hub is not None:
                self.drain()
                hub.close()

    @property
    def journal(self) -> str:
        """Every model and every evaluation has its own."""
        if self.survey is not None:
            return "journal-survey.db"
        return "journal.db" if self.evaluation is None else f"journal-{self.evaluation.task.first_round}.db"

    def prepare_evaluation(
        self, model: Model, epsilon: float, delta: float | None = None, noise: str | None = None,
        by: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Every node is started again with the rows that it holds out, and the next run evaluates the model."""
        noise = model.plan.privacy.noise if noise is None else noise
        task = EvaluationTask(
            model.plan, ensemble_bytes(model.ensemble), epsilon, delta or model.plan.privacy.delta, len(model.ledger),
            noise, by, tuple(self.parties) if "site" in by else (),
        )  # fmt: skip
        self.evaluation = EvaluatedModel(task, model.ledger, model.report)
        self.events.clear()
        for site, party in self.parties.items():
            party.kill()
            party.failures.clear()
            own = self.held_out[site]
            party.setup = dataclasses.replace(party.setup, load_held_out=lambda _, own=own: own)
            party.start()

    def pin(self, *plans: Plan) -> None:
        """From their next start on, the owners of all sites agree to these plans, and to those before."""
        for party in self.parties.values():
            digests = {*party.setup.policy.plans, *(plan.digest for plan in plans)}
            digests |= set() if party.setup.plan is None else {party.setup.plan.digest}
            policy = dataclasses.replace(party.setup.policy, plans=tuple(sorted(digests)))
            party.setup = dataclasses.replace(party.setup, plan=None, policy=policy)

    def survivors_model(self) -> bytes:
        """The model file when each round's sum is over the sites that were in it: an oracle without masks."""
        assert self.session is not None and self.session.run.outcome is not None
        plan = self.session.run.outcome.plan
        return survivors_model(plan, self.data, self.session.run.survivors, self.noise)

    def model_bytes(self, outcome: Outcome) -> bytes:
        """The model file that a coordinator would write."""
        errors = None if outcome.evaluation is None else outcome.evaluation.errors
        return Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report, errors=errors).to_bytes()

    def drain(self) -> None:
        """Let the nodes handle what has reached them."""
        while any([party.pump() for party in self.parties.values()]):
            pass

    def codes(self, kind: str | None = None) -> list[str]:
        """The code words of the events, in order."""
        return [event.code for event in self.events if kind is None or event.kind == kind]

    def close(self) -> None:
        for party in self.parties.values():
            party.kill()


Builder = Callable[..., Federation]


@pytest.fixture
def federate(tmp_path: Path) -> Iterator[Builder]:
    """Build a federation: `n_sites`, `plan`, policies by site, faults of the network."""
    built: list[Federation] = []

    def build(
        n_sites: int = 4,
        plan: Plan | None = None,
        policies: dict[str, Policy] | None = None,
        faults: FaultPlan = no_faults,
        noise: NoiseSource | None = None,
        name: str = "run",
        must_start: bool = True,
    ) -> Federation:
        plan = plan or make_plan()
        rows = builders.make_data(plan, plan.privacy.n_records, 7)
        owner = np.arange(rows.n_records) % n_sites
        names = [f"site-{number}" for number in range(n_sites)]
        data = {site: take(rows, np.flatnonzero(owner == number)) for number, site in enumerate(names)}
        others = builders.make_data(plan, plan.privacy.n_records, 8)
        held_out = {site: take(others, np.flatnonzero(owner == number)) for number, site in enumerate(names)}
        roster = Roster(key("coordinator").public, tuple(Site(site, key(site).public) for site in names))
        folder = tmp_path / name
        folder.mkdir()
        network = MemoryNetwork(faults)
        noise = noise or SeededNoise(1)
        federation = Federation(plan, data, held_out, folder, noise, network, roster)
        for site in names:
            policy = (policies or {}).get(site, OPEN_POLICY)
            own = data[site]
            setup = NodeSetup(site, key(site), roster, policy, os.urandom, noise, lambda _, own=own: own, plan)
            federation.parties[site] = Party(setup, folder / site, network)
            if must_start:
                federation.parties[site].start()
        built.append(federation)
        return federation

    yield build
    for federation in built:
        federation.close()
