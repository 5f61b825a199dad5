"""The facts of a run, as the coordinator knows them, and the messages that follow from them alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from hedgerow.crypto.identity import Identity
from hedgerow.errors import AggregationError, HedgerowError
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import EvaluationTask, Task, TrainingTask, checks_of
from hedgerow.plan.plan import Plan
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import NoiseSource
from hedgerow.protocol.messages import (
    EvaluationInvitation,
    Finished,
    Invitation,
    Message,
    MessageKind,
    Payload,
    RoundRequest,
    Salvaged,
    encode,
)
from hedgerow.protocol.queries import IntVector
from hedgerow.protocol.results import Salvage
from hedgerow.protocol.script import RunState
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.enrolment import EpochSetup
from hedgerow.secagg.roster import Roster
from hedgerow.secagg.transitions import Entropy
from hedgerow.secagg.view import EpochView
from hedgerow.server.journal import BurntSlot, Journal, JournalledRelease
from hedgerow.server.release import EvaluatedModel, Outcome
from hedgerow.server.sites import Asked, SiteRecord, Sites
from hedgerow.server.status import Observer, RunEvent, RunEventKind
from hedgerow.trees.plausibility import ReleaseChecks

Outgoing = tuple[str, bytes]


@dataclass(frozen=True)
class RunSetup:
    """What the coordinator's operator gives it.

    Attributes:
        roster: who may take part, and this coordinator's key.
        identity: this coordinator's signing key.
        noise: where central noise comes from.
        entropy: the source of the run's number: ``os.urandom`` but in tests.
        observer: called with everything that happens.
        evaluation: the model to be evaluated; None to train one. `plan` is its plan then.
    """

    plan: Plan
    roster: Roster
    identity: Identity
    noise: NoiseSource
    entropy: Entropy
    observer: Observer = lambda _: None
    evaluation: EvaluatedModel | None = None

    @property
    def run_plan(self) -> Plan:
        """The plan that says who adds the noise; another one than the model's where an evaluation chooses that."""
        return self.task.run_plan

    @property
    def task(self) -> Task:
        """What the run is for."""
        return TrainingTask(self.plan) if self.evaluation is None else self.evaluation.task


@dataclass(eq=False)
class Run:
    """A run as the coordinator knows it, and the messages that it has queued.

    A message is queued here, and sent once the step that it belongs to is done and journalled.

    Attributes:
        state: what is being collected.
        sites: who is there, and what they said.
        outcome: the model, its ledger and report, once the run is over.
        failure: why the run was given up, if it was.
        setback: why this process has ended the run early, where its releases were salvaged.
        survivors: for every release, the sites whose vectors are in it.
        n_phases: grows with every phase, so that a driver knows when to begin to wait.
        is_stalled: too few sites are there to go on; they are waited for.
        origin: the epoch whose nonces seed the trees: the first that was ready.
        prepared: the phase's messages that bring one release or none, by how many: most sites need the same.
        burnt: slots that were given up before their manifests.
    """

    setup: RunSetup
    journal: Journal
    run_id: bytes = b""
    state: RunState = RunState.GATHERING
    n_phases: int = 0
    is_stalled: bool = False
    releases: list[IntVector] = field(default_factory=list)
    survivors: list[tuple[str, ...]] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    attempt: int = 0
    epoch_setup: EpochSetup | None = None
    view: EpochView | None = None
    origin: EpochView | None = None
    next_slot: int = 0
    slot: Aggregator | None = None
    certificate: bytes = b""
    prepared: dict[int, bytes] = field(default_factory=dict)
    burnt: list[BurntSlot] = field(default_factory=list)
    outcome: Outcome | None = None
    failure: HedgerowError | None = None
    salvaged: Salvage | None = None
    setback: HedgerowError | None = None
    out: list[Outgoing] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.task = self.setup.task
        self.plan = self.task.run_plan
        self.replica = Replica(self.task)
        self.checks: ReleaseChecks = checks_of(self.task)
        self.sites = Sites(self.setup.roster)

    # What happens ----------------------------------------------------------------------------------------------------

    def tell(self, kind: RunEventKind, site: str = "", code: str = "") -> None:
        """Tell the observer."""
        self.setup.observer(RunEvent(kind, len(self.releases), site, code))

    def enter(self, state: RunState) -> None:
        """A phase begins."""
        self.state, self.is_stalled, self.prepared = state, False, {}
        self.n_phases += 1
        self.sites.begin_phase()
        self.tell(RunEventKind.PHASE, code=state.value)

    def stall(self) -> None:
        """Wait for sites to return; every message is a chance to go on."""
        if not self.is_stalled:
            self.is_stalled = True
            self.n_phases += 1
            self.tell(RunEventKind.PHASE, code="waiting-for-sites")

    def begin_trees(self, origin: EpochView) -> None:
        """The first epoch that was ready seeds the trees, whatever becomes of it: its sites take no other seed."""
        self.origin, self.sites.draws_seed = origin, False
        self.replica.begin(origin.public_seed, origin.digest)

    def take(self, line: JournalledRelease) -> None:
        """A release is made, and the program goes on from it."""
        self.ledger = self.ledger.append(line.entry)
        self.replica.feed(line.release)
        self.releases.append(line.release)
        self.survivors.append(line.survivors)

    def leave_out(self, site: SiteRecord, code: str) -> None:
        """Ask a site no more, and say why."""
        site.leave_out(code)
        self.tell(RunEventKind.LEFT_OUT, site.name, code)

    def take_back(self) -> bool:
        """Ask one site again that was left out; returns whether there was any."""
        site = self.sites.to_take_back()
        if site is not None:
            site.take_back()
            self.tell(RunEventKind.TAKEN_BACK, site.name)
        return site is not None

    def count_timeout(self, site: SiteRecord) -> None:
        """A site was waited for in vain; it is left out when that was one time too many."""
        if site.conduct.timed_out():
            self.leave_out(site, "timeouts-spent")

    def open_slot(self) -> Aggregator:
        """The slot that is open; AggregationError when there is none."""
        if self.slot is None:
            raise AggregationError("no-slot")
        return self.slot

    def has_answered(self, site: str) -> bool:
        """Whether a site has answered in the current phase."""
        return self.sites[site].has_answered

    def survivors_heard(self) -> dict[int, SiteRecord]:
        """The nodes whose vector is in the slot's sum and whose answer can be waited for, with their sites."""
        sites = {node: self.sites.of(node) for node in self.open_slot().uploads}
        return {node: site for node, site in sites.items() if site.is_heard and site.is_inside}

    # Messages --------------------------------------------------------------------------------------------------------

    def send(self, site: SiteRecord, message: Message | bytes) -> None:
        """Queue a message, or its bytes, for a site that is connected."""
        if site.is_connected:
            self.out.append((site.name, message if isinstance(message, bytes) else encode(message)))

    def send_to_connected(self, message: Message) -> None:
        """Queue a message for all sites that are connected."""
        for site in self.sites.connected:
            self.send(site, message)

    def invite(self, site: SiteRecord) -> None:
        """Ask a site to take part, from the next epoch on."""
        site.invite()
        self.send(site, invitation_to(self.task, self.run_id))

    def send_origin(self, site: SiteRecord) -> None:
        """Show a site that may be late whose signed nonces seed the trees; once, for there may be thousands."""
        origin = self.origin if self.setup.plan.has_joint_structure else None
        if origin is not None and site.is_connected and not site.knows_origin:
            site.knows_origin = True
            self.send(site, Payload(MessageKind.ORIGIN, origin.record))

    def send_request(self, site: SiteRecord) -> None:
        """Ask a site for its vector, and send it the releases that it lacks."""
        spec, seed = self.open_slot().signed_spec, self.replica.structure_seed
        n_releases, fresh = self._releases_for(site)
        self.send(site, self._prepared(len(fresh), lambda: RoundRequest(n_releases, fresh, spec, seed)))

    def ask_openers(self, requests: dict[int, bytes]) -> None:
        """Ask nodes to help to open the slot's sum."""
        for node, request in requests.items():
            site = self.sites.of(node)
            site.opening = Asked.NOW
            self.send(site, Payload(MessageKind.UNMASK, request))

    def send_finished(self, site: SiteRecord) -> None:
        """Send a site the releases that it lacks, and the digest of the result."""
        if not site.is_inside:
            self.send_origin(site)
        n_releases, fresh = self._releases_for(site)
        self.send(site, self._prepared(len(fresh), lambda: self._ending(n_releases, fresh)))

    def _ending(self, n_releases: int, fresh: tuple[IntVector, ...]) -> Message:
        digest, seed = self.replica.result_digest(), self.replica.structure_seed
        if self.salvaged is None:
            return Finished(n_releases, fresh, digest, seed)
        return Salvaged(n_releases, fresh, digest, seed, self.salvaged.code)

    def _prepared(self, n_fresh: int, make: Callable[[], Message]) -> bytes:
        """A message that brings so many releases; one of more is not kept: sites say what they hold as they like."""
        found = self.prepared.get(n_fresh)
        if found is None:
            found = encode(make())
            if n_fresh <= 1:
                self.prepared[n_fresh] = found
        return found

    def _releases_for(self, site: SiteRecord) -> tuple[int, tuple[IntVector, ...]]:
        """How many releases there are, and those that the site, which is asked now, does not hold yet."""
        site.spec = Asked.NOW
        fresh = tuple(self.releases[site.n_held :])
        site.n_held = len(self.releases)
        return len(self.releases), fresh


def invitation_to(task: Task, run_id: bytes) -> Invitation | EvaluationInvitation:
    """The message that asks a site to take part."""
    plan = json.dumps(task.plan.to_dict(), sort_keys=True, separators=(",", ":")).encode()
    if isinstance(task, EvaluationTask):
        return EvaluationInvitation(run_id, plan, task.model, task.epsilon, task.delta, task.first_round, task.noise)
    return Invitation(run_id, plan)
