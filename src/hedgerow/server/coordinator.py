# SPDX-License-Identifier: Apache-2.0
"""The coordinator of a run: `RunSession` answers events with messages, `run_coordinator` drives it.

The session has no socket and no clock. Everything is journalled before the messages that depend on it are returned. The
run does not wait for sites that fall silent, leave or refuse. It goes on with the others down to the threshold of
secure aggregation, and waits for sites to return when there are fewer. Once the manifest of a purpose was sent, the
purpose is finished with that manifest, or the run ends.

The file has, from top to bottom: the checks before anyone is invited; the run and its stages; and the steps from stage
to stage:

    Gathering       begin_setup      an epoch is set up with the sites that are ready
    SettingUp       advance_setup    ... step by step
    BetweenSlots    open_round       a slot is opened for the next query; or a new epoch is set up, or the run finishes
    InSlot          close_vectors    the vectors that came are fixed by a manifest; with none of it, the slot is burnt
                    close_echoes     where the epoch wants one, the echo of the manifest is certified
                    release          the sum is opened, noised and journalled, and the next slot opened
    Finishing       end              the sites have the result
    Over

Then come the sites' messages, which move a run from one stage to the next, and the loop. Nothing outside this file
changes a run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import ClassVar

import numpy as np

from hedgerow.builds import describe_build
from hedgerow.crypto import KEY_BYTES, Entropy, Identity
from hedgerow.errors import (
    AggregationError,
    EnvironmentFault,
    HedgerowError,
    ModelError,
    PlanError,
    PolicyRefusal,
    PrivacyError,
    RemoteProtocolError,
)
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.methods.replica import PROGRAM_DIFFERS, Replica, digest_behaviour
from hedgerow.methods.tasks import EvaluationTask, SurveyTask, Task, TrainingTask, build_checks, list_site_queries
from hedgerow.plan.plan import FederationSection, Plan
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.ledger import Ledger, read_prepared_ledger
from hedgerow.privacy.noise import NoiseSource
from hedgerow.privacy.report import build_report
from hedgerow.protocol.groups import LineUp, pack
from hedgerow.protocol.messages import (
    FROM_NODES,
    Abandoned,
    Deferred,
    Done,
    EvaluationInvitation,
    Finished,
    Hello,
    Invitation,
    Message,
    MessageKind,
    Paused,
    Payload,
    Ready,
    Refused,
    RoundRequest,
    RunState,
    Salvaged,
    Stop,
    SurveyInvitation,
    Welcome,
    decode,
    encode,
    is_expected,
    message_kind,
)
from hedgerow.protocol.queries import IntVector, NoiseCohort, Query
from hedgerow.protocol.refusals import Salvage, WireCode, WireRefusal
from hedgerow.protocol.votes import Tally
from hedgerow.rounds import (
    VECTOR_ID,
    choose_wishes,
    count_possible_rows,
    noise_mode,
    release_bound,
    require_words,
    round_in,
)
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.enrolment import EpochSetup
from hedgerow.secagg.guarantees import MAX_ATTEMPTS, MIN_COHORT, derive, least_groups
from hedgerow.secagg.masks import WIDTHS, OpenedSums, name_in
from hedgerow.secagg.messages import EpochParameters, NoiseMode, Roster, RoundSpec
from hedgerow.secagg.transitions import Code, State, SumAbandoned, refuse
from hedgerow.secagg.view import Cohort, EpochView, is_enough, split_members
from hedgerow.server.journal import BurntSlot, Journal, JournalledRelease, JournalledRun
from hedgerow.server.release import (
    BY_NODES,
    EvaluatedModel,
    Outcome,
    Releaser,
    RunChecks,
    SumOrigin,
    check_report,
    weigh_groups,
)
from hedgerow.server.sites import (
    MAX_BROKEN_SETUPS,
    MAX_LOST_EPOCHS,
    Connection,
    Consent,
    Membership,
    SentMark,
    SiteRecord,
    Sites,
)
from hedgerow.survey.program import Found
from hedgerow.transport.interface import Arrived, Hub, HubEvent, Joined, Left
from hedgerow.trees.binning import build_grid
from hedgerow.trees.ensemble import make_empty_ensemble

# Before anyone is invited ---------------------------------------------------------------------------------------------

MAX_HELD_SLOTS = 1024
"""Most slots of an epoch, as many as a node holds by default; a longer run continues in a new epoch."""
SLOT_KEYS_BYTES = 1 << 25
"""Largest size of the slot keys of all members: the coordinator compares, holds and journals them."""
_SURELY_FEW = 2**30
"""Rows times sites below which sums surely fit 64 bits: no record adds as much as 2^24 units to an entry."""
RELEASES_BYTES = 63 << 20
"""Largest size of a run's releases, or of a model, in a message of at most 64 MiB; the rest is for a spec or a plan."""
RELEASE_HEAD_BYTES = 5
"""Bytes of a release in a message besides its entries."""


def most_slots(n_members: int) -> int:
    """Return how many slots an epoch can have: the coordinator holds the keys of all members."""
    return min(MAX_HELD_SLOTS, SLOT_KEYS_BYTES // n_members // KEY_BYTES)


def check_rounds(task: Task, n_sites: int) -> None:
    """Raise PlanError "plan-too-many-rounds" for a task that all epochs of a run could not hold.

    It is checked before anyone is invited: in the middle of a run, all releases so far would be wasted.
    """
    most = MAX_ATTEMPTS * most_slots(n_sites)
    if task.schedule.n_rounds > most:
        raise PlanError(
            "plan-too-many-rounds",
            n_rounds=task.schedule.n_rounds,
            n_sites=n_sites,
            most=most,
            n_epochs=MAX_ATTEMPTS,
            n_slots=most_slots(n_sites),
            megabytes=SLOT_KEYS_BYTES >> 20,
        )


def check_groups(task: Task, roster: Roster) -> None:
    """Raise PlanError "plan-groups-too-small" if the roster's smallest group is too small for its sums.

    The promise against colluders holds in each group as for a federation of its size. A group of four or more sites can
    lose one. In a group of three, one missing site costs the group the round, which goes on with the others.
    """
    plan = task.run_plan
    n_groups = plan.federation.groups
    if not n_groups:
        return
    size = len(roster.sites) // n_groups
    if size >= max(MIN_COHORT, plan.federation.min_sites):
        return
    raise PlanError("plan-groups-too-small", n_groups=n_groups, n_sites=len(roster.sites), size=size,
                    least=plan.federation.min_sites)  # fmt: skip


def check_words(task: Task, n_sites: int) -> None:
    """Raise PlanError "plan-sums-too-large" if some sum of a task would not fit any word.

    It is checked before anything is released: in the middle of a run, all releases so far would be wasted.
    """
    plan = task.run_plan
    if count_possible_rows(plan) * n_sites < _SURELY_FEW:
        return
    is_local = plan.privacy.noise == "local"
    for alike in task.schedule.rounds:
        require_words(alike.query, plan, noise_of(alike.query, is_local=is_local).variance, n_sites)


def check_releases(task: Task, n_sites: int) -> None:
    """Raise an error if a run's releases, or the model of an evaluation, might not fit one message.

    A site that holds no release, because it came late or has lost its state, receives all at once. The check is made
    before anyone is invited, as in `check_words`.

    Raises:
        PlanError: code "plan-releases-too-long".
        ModelError: code "model-too-long-to-send".
    """
    if isinstance(task, EvaluationTask) and len(task.model) > RELEASES_BYTES:
        raise ModelError("model-too-long-to-send", megabytes=-(-len(task.model) >> 20), most=RELEASES_BYTES >> 20)
    plan = task.run_plan
    copies, entries, n_bytes = max(1, plan.federation.groups), 0, 0
    for alike in task.schedule.rounds:
        # Use the bound on entries: a larger one would be refused as out of range.
        width = WIDTHS[-1] // 8
        if not alike.query.is_pure:
            noise = noise_of(alike.query, is_local=plan.privacy.noise == "local")
            # Double the bound, because every share of the sites' noise is rounded up.
            largest = 2 * release_bound(alike.query, plan, noise.variance, n_sites)
            width = min(width, 1 + largest.bit_length() // 8)
        # Each sum has a weight in addition to its entries.
        own = copies * alike.count * (alike.release_length + 1)
        entries, n_bytes = entries + own, n_bytes + own * width
    size = n_bytes + RELEASE_HEAD_BYTES * task.schedule.n_rounds
    if size > RELEASES_BYTES:
        raise PlanError(
            "plan-releases-too-long",
            entries=entries,
            n_bytes=-(-n_bytes // entries),
            megabytes=-(-size >> 20),
            most=RELEASES_BYTES >> 20,
        )


def find_noise_cohort(plan: Plan, view: EpochView) -> NoiseCohort | None:
    """Return the sites that add the noise in an epoch; None if they add none."""
    if noise_mode(plan) is not NoiseMode.DISTRIBUTED:
        return None
    promised = view.guarantees
    return NoiseCohort(promised.n_nodes, promised.n_colluders, promised.honest_group)


# The run, and where it stands -----------------------------------------------------------------------------------------


class RunEventKind(StrEnum):
    """The kinds of events in a run."""

    JOINED = "joined"
    LEFT = "left"
    READY = "ready"
    DEFERRED = "deferred"
    REFUSED = "refused"
    SILENT = "silent"
    LATE = "late"
    COMPLAINT = "complaint"
    FALSE_SUM = "false-sum"
    DISAGREEMENT = "disagreement"
    OBJECTION = "objection"
    PHASE = "phase"
    RELEASED = "released"
    ABANDONED = "abandoned"
    LEFT_OUT = "left-out"
    TAKEN_BACK = "taken-back"
    SALVAGED = "salvaged"
    FINISHED = "finished"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event.

    Attributes:
        kind: what happened.
        round: the round in which it happened.
        site: the site that it is about; for a false sum, all sites in the sum; or "".
        code: the reason as a code word; for a phase, its name.
        detail: further information for the operator.
    """

    kind: RunEventKind
    round: int
    site: str = ""
    code: str = ""
    detail: str = ""


Observer = Callable[[RunEvent], None]

Outgoing = tuple[str, bytes]


@dataclass(frozen=True)
class RunSetup:
    """The operator's input to a run.

    Attributes:
        task: the task of the run.
        roster: who may take part, and this coordinator's key.
        identity: this coordinator's signing key.
        noise: the source of central noise.
        entropy: the source of the run's number: ``os.urandom`` except in tests.
        observer: called with every event.
        model: the model and its account, if one is evaluated.
    """

    task: Task
    roster: Roster
    identity: Identity
    noise: NoiseSource
    entropy: Entropy
    observer: Observer = lambda _: None
    model: EvaluatedModel | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Gathering:
    """There is no epoch: sites may join."""

    view: ClassVar[None] = None
    state: ClassVar[RunState] = RunState.GATHERING


@dataclass(frozen=True, eq=False, slots=True)
class SettingUp:
    """An epoch is being set up."""

    setup: EpochSetup
    view: ClassVar[None] = None
    state: ClassVar[RunState] = RunState.SETTING_UP


@dataclass(frozen=True, eq=False, slots=True)
class BetweenSlots:
    """An epoch is ready, and no slot of it is open. If that lasts, too few sites are there."""

    view: EpochView
    next_slot: int
    state: ClassVar[RunState] = RunState.GATHERING


@dataclass(frozen=True, eq=False, slots=True)
class InSlot:
    """A slot is open: its vectors, echoes or answers are being collected.

    Attributes:
        slot: its state, with the messages received so far.
        certificate: the certificate of the echoes, once it was sent.
    """

    slot: Aggregator
    certificate: bytes = b""

    @property
    def view(self) -> EpochView:
        """The epoch of the slot."""
        return self.slot.view

    @property
    def state(self) -> RunState:
        """The kind of message that is being collected."""
        return _COLLECTIONS[self.slot.state]

    def over(self) -> BetweenSlots:
        """Return the stage after this slot, whether it had a release or not."""
        return BetweenSlots(self.slot.view, self.slot.spec.slot + 1)


@dataclass(frozen=True, eq=False, slots=True)
class Finishing:
    """The run's result is in the journal; the sites are being told."""

    view: EpochView | None
    state: ClassVar[RunState] = RunState.FINISHING


@dataclass(frozen=True, eq=False, slots=True)
class Over:
    """The run is over, with its outcome or without."""

    view: EpochView | None
    state: ClassVar[RunState] = RunState.OVER


Stage = Gathering | SettingUp | BetweenSlots | InSlot | Finishing | Over
_COLLECTIONS = {
    State.COLLECTING_VECTORS: RunState.COLLECTING_VECTORS,
    State.COLLECTING_ECHOES: RunState.COLLECTING_ECHOES,
    State.COLLECTING_ANSWERS: RunState.COLLECTING_ANSWERS,
}


@dataclass(eq=False)
class CoordinatorRun:
    """The state of a run at the coordinator, and its queued messages.

    A message is queued here, and sent once its step is complete and journalled.

    Attributes:
        setup: the operator's input.
        journal: the journal of the run.
        run_id: number of the run, drawn when it begins.
        releases, ledger: all releases so far, and their costs.
        attempt: the number of the last set-up.
        stage: the stage that it is in.
        sites: the states of all sites.
        outcome: the model, its ledger and report, once all releases are there, even if sites have not been told yet;
            None if the run is given up.
        fault: the fault for which this process has ended the run early or given it up.
        survivors: for every release, the sites whose vectors are in it.
        n_phases: grows with every phase, so that a driver knows when to begin to wait.
        is_stalled: whether the run waits because too few sites are there.
        origin: the epoch whose nonces seed the trees: the first that was ready.
        anticipated: the parameters of a set-up of all sites that went out with the invitations; None if there is none.
        early: sites' answers to it that came before all sites were ready.
        prepared: the phase's encoded messages by number of releases in them (0 or 1), because most sites need the same.
        burnt: slots that were given up before their manifests.
        tallies: of the votes on the model so far, in order.
        out: messages that are queued.
    """

    setup: RunSetup
    journal: Journal
    run_id: bytes = b""
    stage: Stage = field(default_factory=Gathering)
    n_phases: int = 0
    is_stalled: bool = False
    releases: list[IntVector] = field(default_factory=list)
    survivors: list[tuple[str, ...]] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    attempt: int = 0
    origin: EpochView | None = None
    anticipated: EpochParameters | None = None
    early: dict[str, bytes] = field(default_factory=dict)
    prepared: dict[int, bytes] = field(default_factory=dict)
    burnt: list[BurntSlot] = field(default_factory=list)
    tallies: list[Tally] = field(default_factory=list)
    outcome: Outcome | None = None
    fault: HedgerowError | None = None
    out: list[Outgoing] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.task = self.setup.task
        self.plan = self.task.run_plan
        if isinstance(self.task, TrainingTask):
            self.ledger = read_prepared_ledger(self.plan)
        self.replica = Replica(self.task, len(self.setup.roster.sites))
        self.checks = RunChecks(lambda: build_checks(self.task))
        self.lineup = LineUp(len(self.setup.roster.sites), self.replica.n_groups, self.replica.n_rounds)
        self.sites = Sites(self.setup.roster, self.plan)

    @property
    def state(self) -> RunState:
        """The kind of message that is being collected."""
        return self.stage.state

    @property
    def view(self) -> EpochView | None:
        """The view of the ready epoch, or of the last one at the end."""
        return self.stage.view

    @property
    def failure(self) -> HedgerowError | None:
        """The reason why the run was given up; None if it was not."""
        return self.fault if self.outcome is None else None

    @property
    def slot(self) -> Aggregator | None:
        """The open slot; None if there is none."""
        return self.stage.slot if isinstance(self.stage, InSlot) else None

    def parts(self, sites: Collection[str]) -> tuple[tuple[int, ...], ...]:
        """Return the nodes of these sites by groups of the next round; one part if there are no groups."""
        nodes = [self.sites[site].node for site in sites]
        return split_members(self.setup.roster, nodes, self.plan.federation.groups, self.replica.drawing)

    # What happens ----------------------------------------------------------------------------------------------------

    def tell(self, kind: RunEventKind, site: str = "", code: str = "", detail: str = "") -> None:
        """Tell the observer an event."""
        self.setup.observer(RunEvent(kind, len(self.releases), site, code, detail))

    def enter(self, stage: Stage) -> None:
        """Begin a phase in a new stage."""
        self.stage, self.is_stalled, self.prepared = stage, False, {}
        self.n_phases += 1
        for site in self.sites:
            site.has_answered = False
        self.tell(RunEventKind.PHASE, code=stage.state.value)

    def stall(self) -> None:
        """Wait for sites to return; every message may let the run go on."""
        if not self.is_stalled:
            self.is_stalled = True
            self.n_phases += 1
            self.tell(RunEventKind.PHASE, code="waiting-for-sites")

    def begin_trees(self, origin: EpochView) -> None:
        """Let the first ready epoch seed the trees; its sites accept no other seed, whatever becomes of it."""
        self.origin, self.sites.draws_seed = origin, False
        self.replica.begin(origin.public_seed, origin.digest)

    def take(self, line: JournalledRelease) -> None:
        """Add a release to the run, and let the program continue from it."""
        self.charge(line)
        parts = self.parts([site.name for site in self.sites])
        is_vote, (sums, votes) = self.replica.vote is not None, self.replica.split(line.release)
        self.replica.feed(line.release)
        for _ in self.lineup.take(sums, parts):
            self.tell(RunEventKind.DISAGREEMENT, code="groups-disagree")
        if is_vote:
            tally = Tally.count(votes)
            self.tallies.append(tally)
            if tally.is_against(self.replica.n_groups):
                self.tell(RunEventKind.OBJECTION, code="model-spoilt")
        self.releases.append(line.release)
        self.survivors.append(line.survivors)

    def charge(self, line: JournalledRelease) -> None:
        """Add a release, and the votes beside it, to the ledger."""
        for entry in line.entries:
            self.ledger = self.ledger.append(entry)

    def leave_out(self, site: SiteRecord, code: str) -> None:
        """Stop asking a site, and report why."""
        site.leave_out(code)
        self.tell(RunEventKind.LEFT_OUT, site.name, code)

    def take_back(self) -> bool:
        """Ask one site again that was left out; return whether there was any."""
        site = self.sites.readmission_candidate()
        if site is not None:
            site.take_back()
            self.tell(RunEventKind.TAKEN_BACK, site.name)
        return site is not None

    def count_timeout(self, site: SiteRecord) -> None:
        """Count a site's timeout; leave it out if it has used up its timeouts."""
        if site.fault_counts.count_timeout():
            self.leave_out(site, "timeouts-spent")

    def survivors_heard(self, slot: Aggregator) -> dict[int, SiteRecord]:
        """Return the nodes (with sites) whose vector is in the slot's sum and that can answer."""
        sites = {node: self.sites.at_node(node) for node in slot.uploads}
        return {node: site for node, site in sites.items() if site.can_answer and site.is_inside}

    # Messages --------------------------------------------------------------------------------------------------------

    def send(self, site: SiteRecord, message: Message | bytes) -> None:
        """Queue a message, or its bytes, for a site; drop it if the site is not connected."""
        if site.is_connected:
            self.out.append((site.name, message if isinstance(message, bytes) else encode(message)))

    def send_to_connected(self, message: Message) -> None:
        """Queue a message for all connected sites."""
        for site in self.sites:
            self.send(site, message)

    def invite(self, site: SiteRecord) -> None:
        """Ask a site to take part, from the next epoch on."""
        site.invite()
        if self.anticipated is None:
            # With an anticipated set-up the site has the invitation already; a second one would end that set-up.
            self.send(site, invitation_to(self.task, self.run_id))

    def send_origin(self, site: SiteRecord) -> None:
        """Send a late site the epoch record that seeds the trees; only once, because it may be large."""
        origin = self.origin if self.task.plan.has_joint_structure else None
        if origin is not None and site.is_connected and not site.knows_origin:
            site.knows_origin = True
            self.send(site, Payload(MessageKind.ORIGIN, origin.record))

    def send_request(self, site: SiteRecord, slot: Aggregator) -> None:
        """Ask a site for its vector, and send it the releases that it lacks."""
        spec, seed = slot.signed_spec, self.replica.structure_seed
        n_releases, fresh = self._list_releases_for(site)
        self.send(site, self._prepare(len(fresh), lambda: RoundRequest(n_releases, fresh, spec, seed)))

    def ask_openers(self, requests: dict[int, bytes]) -> None:
        """Ask nodes for the shares that open the slot's sum."""
        for node, request in requests.items():
            site = self.sites.at_node(node)
            site.opening = SentMark.NOW
            self.send(site, Payload(MessageKind.UNMASK, request))

    def send_finished(self, site: SiteRecord) -> None:
        """Send a site the releases that it lacks, and the digest of the result."""
        if not site.is_inside:
            self.send_origin(site)
        n_releases, fresh = self._list_releases_for(site)

        def ending() -> Message:
            digest, seed = self.replica.result_digest(), self.replica.structure_seed
            if self.outcome is None or self.outcome.salvaged is None:
                return Finished(n_releases, fresh, digest, seed)
            return Salvaged(n_releases, fresh, digest, seed, self.outcome.salvaged.code)

        self.send(site, self._prepare(len(fresh), ending))

    def _prepare(self, n_fresh: int, make: Callable[[], Message]) -> bytes:
        """Return the encoded message with `n_fresh` releases, cached only for 0 or 1.

        Sites could ask for any number of releases, so a cache of all would be unbounded.
        """
        found = self.prepared.get(n_fresh)
        if found is None:
            found = encode(make())
            if n_fresh <= 1:
                self.prepared[n_fresh] = found
        return found

    def _list_releases_for(self, site: SiteRecord) -> tuple[int, tuple[IntVector, ...]]:
        """Return the number of releases, and those that the site lacks; record that it now holds all."""
        site.spec = SentMark.NOW
        fresh = tuple(self.releases[site.n_held :])
        site.n_held = len(self.releases)
        return len(self.releases), fresh


def invitation_to(task: Task, run_id: bytes) -> Invitation | EvaluationInvitation | SurveyInvitation:
    """Return the message that asks a site to take part."""
    about = digest_behaviour(task), describe_build()
    if isinstance(task, SurveyTask):
        return SurveyInvitation(run_id, task.asked.KIND, task.asked.to_bytes(), *about)
    plan = task.plan.to_bytes()
    if isinstance(task, EvaluationTask):
        numbers = task.epsilon, task.delta, task.first_round
        return EvaluationInvitation(run_id, plan, task.model, *numbers, task.noise, task.by, task.sites, *about)
    return Invitation(run_id, plan, *about)


# Who takes part ----------------------------------------------------------------------------------------------------


def choose_members(run: CoordinatorRun) -> set[str]:
    """Return the sites for a set-up that begins now; none if they would refuse to mask the next query.

    A node does not mask a round in two epochs if both sums could be opened. So if a slot of the next query was given up
    after vectors had come, the new epoch must exclude that the old sum is opened too. If it does not with all sites
    that are there, it may without those that have come since.
    """
    members = run.sites.members_for_next_epoch()
    if not run.plan.federation.groups:
        return _choose_from(run, members, run.sites.least)
    parts = [{run.sites.name(node) for node in part} for part in run.parts(members)]
    there = [
        found
        for part in parts
        if len(found := _choose_from(run, part, run.sites.least_in_sum)) == len(part)
        and len(found) >= run.sites.least_in_sum
    ]
    is_most = len(there) >= least_groups(run.plan.federation.groups)
    return set[str]().union(*there) if is_most else set()


def _choose_from(run: CoordinatorRun, members: set[str], least: int) -> set[str]:
    """Choose among the sites of one sum; see `choose_members`."""
    if len(members) < least:
        return members
    burnt = [slot for slot in _list_burnt(run) if slot.masked]
    for among in (members, members.intersection(*(run.sites.names(slot.cohort.members) for slot in burnt))):
        nodes = frozenset(run.sites[site].node for site in among)
        against = [slot.cohort for slot in burnt if nodes & slot.masked]
        if len(among) >= least and all(_derive_cohort(run, nodes).excludes(one) for one in against):
            return among
    return set()


def explains_refusal(run: CoordinatorRun, site: SiteRecord, code: str) -> bool:
    """Return whether a site rightly refuses to mask a round again, because this run gave up a slot of it.

    The site's vector may have left it without arriving here. In the local model a site that was started again does not
    know the noise that it has sent.
    """
    if code != Code.PURPOSE_ANSWERED.value or run.view is None:
        return False
    now = Cohort.from_view(run.view, site.node if site.node in run.view.bundles else None)
    is_local = run.plan.privacy.noise == "local"
    earlier = [slot.cohort for slot in _list_burnt(run) if site.node in slot.cohort.members]
    return any(is_local or not now.excludes(cohort) for cohort in earlier)


def too_few(run: CoordinatorRun) -> AggregationError:
    """Return the error that says why the run cannot go on with the sites that are there."""
    there = run.sites.members_for_next_epoch()
    if len(there) < run.sites.least or choose_members(run) or not _list_burnt(run):
        return run.sites.too_few(count_needed(run))
    lacking = (run.sites.names(slot.cohort.members - slot.masked) for slot in _list_burnt(run))
    return AggregationError(
        "round-not-repeatable",
        round=run.replica.n_releases,
        there=", ".join(sorted(there)),
        lacking=", ".join(sorted(set[str]().union(*lacking))),
        said=run.sites.fault_summary(),
    )


def count_needed(run: CoordinatorRun) -> int:
    """Return how many sites the run needs to go on; 0 if no single number tells it.

    A round needs as many sites of its epoch as secure aggregation promises. A new epoch needs `Sites.least`; it is set
    up once a site is there that the last one does not have, or when that one is used up.
    """
    stage, sites = run.stage, run.sites
    if isinstance(stage, Gathering | SettingUp):
        return sites.least
    if not isinstance(stage, BetweenSlots) and run.state is not RunState.COLLECTING_VECTORS:
        return 0
    view, there = stage.view, {site.name for site in sites if site.is_inside and site.can_answer}
    if view is None or (isinstance(stage, BetweenSlots) and _is_used_up(run, stage)):
        return sites.least
    if isinstance(stage, BetweenSlots) and sites.members_for_next_epoch() - there:
        return sites.least
    by_part = sorted(view.by_node[part[0]].min_survivors for part in view.parts if part)
    return sum(by_part[: least_groups(run.plan.federation.groups)])


def has_needed_back(run: CoordinatorRun) -> bool:
    """Return whether enough sites of the epoch have come back since a restart to go on without the others.

    Going on leaves the missing sites out of a sum, as every timeout of a round does: the epoch's promise holds for any
    sufficient set of its nodes. It never opens a second sum of a round: a signed manifest stays.
    """
    view = run.view
    if view is None or isinstance(run.stage, Finishing):
        return True
    there = {site.node for site in run.sites if site.is_inside and site.can_answer}
    slot = run.slot
    if slot is None:
        is_met = isinstance(run.stage, BetweenSlots) and len(choose_members(run)) >= run.sites.least
        return is_enough(view, there) or (is_met and count_needed(run) == run.sites.least)
    is_open = slot.state is State.COLLECTING_VECTORS
    return is_enough(view, there.union(slot.uploads) if is_open else there.intersection(slot.uploads))


def _is_used_up(run: CoordinatorRun, between: BetweenSlots) -> bool:
    view = between.view
    return between.next_slot >= view.parameters.n_slots or view.parameters.drawing != run.replica.drawing


def _list_burnt(run: CoordinatorRun) -> list[BurntSlot]:
    """Return the slots of the next query that were given up."""
    return [slot for slot in run.burnt if slot.round == run.replica.n_releases]


# The set-up --------------------------------------------------------------------------------------------------------


def slots_for(n_left: int, n_members: int) -> int:
    """Return the slots of an epoch for `n_left` rounds and some repeats, as far as their keys can be held."""
    rest = max(1, n_left)
    return min(most_slots(n_members), rest + rest // 4 + 8)


def _derive_cohort(run: CoordinatorRun, members: frozenset[int]) -> Cohort:
    """Return the cohort of an epoch that these nodes would set up; raise Refusal as `derive` does."""
    promised = derive(len(members), choose_wishes(run.plan, [len(members)]))
    return Cohort.with_guarantees(members, promised, run.setup.roster.hash())


def _may_show_figures(run: CoordinatorRun, members: Collection[str]) -> bool:
    """Return whether some member has said that its own figures may leave it, or has said nothing of it."""
    return any(run.sites[name].shows_figures is not False for name in members)


def begin_setup(run: CoordinatorRun) -> None:
    """Set up a new epoch with all ready sites; raise AggregationError if there are too few.

    Raise PolicyRefusal, before anything is spent, for an evaluation by site that no policy allows.
    """
    members = choose_members(run)
    while len(members) < run.sites.least:
        if not run.take_back():
            raise too_few(run)
        members = choose_members(run)
    if run.attempt >= MAX_ATTEMPTS:
        raise AggregationError("no-epoch", n_epochs=MAX_ATTEMPTS, said=run.sites.fault_summary())
    if not run.releases and list_site_queries(run.task) and not _may_show_figures(run, members):
        raise PolicyRefusal("policy-figures")
    anticipated, run.anticipated = run.anticipated, None
    if anticipated is not None and set(run.early) != members:
        # A site that has answered an attempt refuses another one of the same number.
        run.attempt = anticipated.attempt
        anticipated = None
    run.attempt += 1
    parameters = anticipated or _choose_parameters(run, members)
    run.journal.save_attempt(run.attempt)
    run.sites.begin_epoch(members)
    setup = EpochSetup(run.setup.roster, parameters)
    run.enter(SettingUp(setup))
    for site in run.sites.invited:
        if anticipated is not None:
            setup, complaints = setup.receive([run.early[site.name]])
            site.has_answered = not complaints
            for complaint in complaints:
                run.tell(RunEventKind.COMPLAINT, site.name, complaint.code)
            continue
        run.send_origin(site)
        run.send(site, Payload(MessageKind.ENROL, parameters.to_bytes()))
    run.stage = SettingUp(setup)


def anticipate_setup(run: CoordinatorRun, *, is_first: bool) -> list[bytes]:
    """Return the message that begins a set-up of all sites, to go with their invitations; or none.

    It saves an exchange if all sites come. If one does not, or comes twice, the set-up begins as usual.

    Args:
        is_first: whether the site was not invited before.
    """
    if run.state is not RunState.GATHERING or run.attempt:
        return []
    if not is_first:
        # The site may have answered, and then refuses another attempt of that number.
        run.attempt, run.anticipated, run.early = 1, None, {}
        return []
    if run.anticipated is None:
        run.anticipated = replace(_choose_parameters(run, {site.name for site in run.sites}), attempt=1)
    return [encode(Payload(MessageKind.ENROL, run.anticipated.to_bytes()))]


def _choose_parameters(run: CoordinatorRun, members: Collection[str]) -> EpochParameters:
    """Return the parameters of an epoch of these sites."""
    n_slots = slots_for(run.replica.n_left_of_drawing, len(members))
    wishes = choose_wishes(run.plan, [len(part) for part in run.parts(members) if part])
    mode, drawing = noise_mode(run.plan), run.replica.drawing
    return EpochParameters(run.run_id, run.attempt, run.setup.roster.hash(), n_slots, wishes, mode, drawing)


def advance_setup(run: CoordinatorRun, setup: EpochSetup) -> None:
    """Close a step of the set-up, and begin the next one, or the epoch."""
    is_last = setup.state is State.COLLECTING_ACKNOWLEDGEMENTS
    try:
        if is_last:
            between = _begin_epoch(run, setup)
        else:
            advanced, messages = _close_step(run, setup)
    except (SumAbandoned, RemoteProtocolError) as fault:
        # A site fell silent in the middle; the sites that are there begin again.
        run.tell(RunEventKind.ABANDONED, code=fault.code)
        _judge_setup(run, setup)
        run.enter(Gathering())
        return
    if is_last:
        open_round(run, between)
    else:
        run.enter(SettingUp(advanced))
        for node, message in messages.items():
            if run.sites.at_node(node).is_setting_up:
                run.send(run.sites.at_node(node), Payload(MessageKind.SETUP, message))


def _close_step(run: CoordinatorRun, setup: EpochSetup) -> tuple[EpochSetup, dict[int, bytes]]:
    """Close the set-up's step; return the next state, and the messages of the next step by node."""
    if setup.state is State.COLLECTING_SHARES:
        return setup.close_shares()
    if setup.state is State.COLLECTING_NONCES:
        return setup.close_nonces()
    n_invited = len(run.sites.invited)
    if len(setup.advertisements) < n_invited:
        # The parameters were made for more sites; fewer sites need other ones to be as safe.
        raise refuse(Code.TOO_FEW_READY, f"{len(setup.advertisements)} of {n_invited}.")
    advanced, listed = setup.close_keys()
    return advanced, dict.fromkeys(advanced.advertisements, listed)


def _begin_epoch(run: CoordinatorRun, setup: EpochSetup) -> BetweenSlots:
    """Begin the ready epoch: tell its nodes, and invite the other sites again."""
    view, ready_list = setup.close_acknowledgements({site.node: site.fault_counts.weight for site in run.sites})
    _judge_setup(run, setup)
    is_origin = run.origin is None
    if is_origin:
        run.begin_trees(view)
    run.journal.save_epoch(view, is_origin=is_origin)
    run.stage = between = BetweenSlots(view, 0)
    members = [site for site in run.sites if site.is_setting_up]
    for site in members:
        if view.is_ready(site.node):
            site.place = Membership.INSIDE
        else:
            run.invite(site)
    for site in members:
        if site.is_inside:
            site.knows_origin |= is_origin
            run.send(site, Payload(MessageKind.SETUP, ready_list))
    return between


def _judge_setup(run: CoordinatorRun, setup: EpochSetup) -> None:
    """Count the faults of sites that broke a failed set-up, or kept themselves out of a good one."""
    arrived: Collection[int] = {
        State.COLLECTING_KEYS: setup.advertisements,
        State.COLLECTING_NONCES: setup.nonces,
        State.COLLECTING_SHARES: setup.shares,
        State.COLLECTING_ACKNOWLEDGEMENTS: setup.acknowledgements,
    }[setup.state]
    if setup.state is State.COLLECTING_ACKNOWLEDGEMENTS:
        arrived = set(arrived) & set(setup.shares)
        for pair in setup.find_unacknowledged():
            for one, other in (pair, pair[::-1]):
                run.sites.at_node(one).fault_counts.unacknowledged[run.sites.name(other)] += 1
                run.tell(RunEventKind.COMPLAINT, run.sites.name(one), Code.NOT_ACKNOWLEDGED.value)
    missing = [site for site in run.sites.invited if site.node not in arrived]
    if 2 * len(missing) >= len(run.sites.invited):
        # If most are missing, the network or this machine is at fault.
        return
    for site in missing:
        site.fault_counts.broken_setups += 1
        run.tell(RunEventKind.COMPLAINT, site.name, "set-up-broken")
        if site.fault_counts.broken_setups >= MAX_BROKEN_SETUPS and not site.left_out:
            run.leave_out(site, "set-ups-broken")


# From a query to its slot ------------------------------------------------------------------------------------------


class NextStep(Enum):
    """The coordinator's next step when no slot is open."""

    SLOT = "open a slot"
    EPOCH = "set a new epoch up"
    WAIT = "wait for sites"
    END = "finish"


def open_round(run: CoordinatorRun, between: BetweenSlots, released: JournalledRelease | None = None) -> None:
    """Open a slot for the next query; set up an epoch, stall or finish if none can be opened.

    Args:
        released: the release before it, to be journalled in one write with the slot or the end of the run, before a
            site hears of either.
    """
    step, there = _choose_next_step(run, between)
    slot, query, view = None, run.replica.query, between.view
    if step is NextStep.SLOT and query is not None:
        _, asked = round_in(query, run.plan, view.guarantees, run.replica.context())
        spec = RoundSpec(view.digest, between.next_slot, asked.purpose, asked.model, asked.vectors, asked.noise)
        slot = Aggregator.open(view, run.setup.identity, spec)
    if step is NextStep.END:
        conclude(run)
    run.journal.commit(released, slot, run.replica.result_digest() if step is NextStep.END else None)
    if released is not None:
        run.tell(RunEventKind.RELEASED)
    if slot is not None:
        run.sites.begin_slot()
        run.enter(InSlot(slot))
        for site in there:
            run.send_request(site, slot)
    elif step is NextStep.END:
        _begin_finishing(run)
    elif step is NextStep.EPOCH:
        begin_setup(run)
    elif step is NextStep.WAIT:
        run.stall()


def _choose_next_step(run: CoordinatorRun, between: BetweenSlots) -> tuple[NextStep, list[SiteRecord]]:
    """Return the step after a release or a set-up, and the sites of the epoch that are there."""
    view, sites = between.view, run.sites
    if run.replica.query is None:
        return NextStep.END, []
    present = [site for site in sites if site.is_inside and site.can_answer]
    if sites.is_any_returning:
        return NextStep.WAIT, present
    there = {site.name for site in present}
    is_full = _is_used_up(run, between)
    is_short = not is_enough(view, [site.node for site in present])
    ready = choose_members(run)
    comes_back = {name for name in ready - there if sites[name].fault_counts.lost_epochs >= MAX_LOST_EPOCHS}
    # Do not test `ready > there`: a site that is there, but not chosen for a new epoch, must not keep others out.
    would_suffice = is_short and bool(sites.members_for_next_epoch() - there)
    # Where groups are drawn anew, each drawing needs a set-up of its own, in which newcomers join as well. Half of the
    # attempts are kept for set-ups that fail.
    has_attempts = run.attempt + run.replica.n_drawings_left < MAX_ATTEMPTS // 2
    takes_newcomers = has_attempts and bool(ready - there - comes_back)
    if len(ready) >= sites.least and (is_full or would_suffice or takes_newcomers):
        # An epoch cannot admit sites: those that came later, or lost their state, join in a new one.
        return NextStep.EPOCH, present
    return (NextStep.WAIT if is_short or is_full else NextStep.SLOT), present


# From the slot to a release ----------------------------------------------------------------------------------------

_MORE_SHARES_MAY_HELP = {Code.TOO_FEW_ANSWERS, Code.SECRET_UNRECOVERABLE}


def close_vectors(run: CoordinatorRun, now: InSlot) -> None:
    """Sign the manifest of the vectors that came, and ask for shares; or burn the slot."""
    slot = now.slot
    first = slot.openers(run.survivors_heard(slot))
    try:
        slot, requests = slot.close_vectors(run.setup.identity, first)
    except SumAbandoned as fault:
        _burn(run, now, fault)
        return
    run.journal.commit(next_slot=slot)
    for site in run.sites:
        site.opening = SentMark.NO
    run.enter(InSlot(slot))
    run.ask_openers(requests)


def _burn(run: CoordinatorRun, now: InSlot, fault: SumAbandoned) -> None:
    """Give a slot up.

    No manifest was sent, so nothing of it can ever be opened, and its purpose may get another slot.
    """
    slot, n_released = now.slot, run.replica.n_releases
    for part in filter(None, slot.view.parts):
        burnt = BurntSlot(n_released, Cohort.from_view(slot.view, part[0]), frozenset(slot.uploads).intersection(part))
        run.journal.burn_slot(burnt)
        run.burnt.append(burnt)
    for site in run.sites:
        # A site that was asked for its vector has used up its time, whether it is connected or not.
        is_lacking = site.spec is not SentMark.NO and site.node not in slot.uploads
        if is_lacking and not site.is_silent and not site.left_out:
            run.count_timeout(site)
    run.stage = between = now.over()
    run.tell(RunEventKind.ABANDONED, code=fault.code)
    run.send_to_connected(Abandoned(n_released, fault.code))
    run.stall()
    open_round(run, between)


def close_echoes(run: CoordinatorRun, now: InSlot) -> None:
    """Send the certificate of the echoes; stall if there are too few."""
    try:
        slot, certificate = now.slot.close_echoes(is_last=True)
    except SumAbandoned:
        run.stall()
        return
    run.journal.commit(next_slot=slot)
    run.enter(InSlot(slot, certificate))
    for site in run.sites:
        # A site that has lost its state was invited again and has no such slot. A site that was not asked on this
        # connection may not have seen the manifest.
        if site.is_inside and site.node in slot.uploads and site.opening is SentMark.NOW:
            run.send(site, Payload(MessageKind.CERTIFICATE, certificate))


def ask_others(run: CoordinatorRun, slot: Aggregator) -> bool:
    """Ask the remaining survivors for shares; return whether there were any."""
    others = {node: site for node, site in run.survivors_heard(slot).items() if site.opening is not SentMark.NOW}
    is_new = any(site.opening is SentMark.NO for site in others.values())
    run.ask_openers(slot.requests(others))
    # A site that is asked for the first time has as long to answer as the others had. But a site must not be able to
    # delay the end of a run by leaving and coming back.
    run.n_phases += is_new and not run.is_stalled and not run.sites.is_any_returning
    return bool(others)


def keep_enough_openers(run: CoordinatorRun) -> None:
    """Ask all survivors for shares as soon as one of the few that were asked will not answer."""
    slot = run.slot
    if run.state is not RunState.COLLECTING_ANSWERS or slot is None:
        return
    asked = {node for node, site in run.survivors_heard(slot).items() if site.opening is SentMark.NOW}
    if len(asked.union(slot.answers)) < len(slot.openers(slot.uploads)):
        ask_others(run, slot)


def release(run: CoordinatorRun, now: InSlot) -> None:
    """Unmask, add the noise and journal the release; only then go on with what others may see."""
    slot, query = now.slot, run.replica.query
    if query is None:
        return
    try:
        _, opened = slot.release()
    except SumAbandoned as fault:
        found = _wait_for_shares(run, slot, fault)
        if found is None:
            return
        opened = found
    survivors = tuple(run.sites.name(node) for node in opened.survivors)
    line, noisy, summed = _release_groups(run, slot, query, opened)
    try:
        released, faults = run.checks.check(query, run.plan, noisy, summed)
        for group in faults:
            run.tell(RunEventKind.FALSE_SUM, ", ".join(summed[group].sites or ()), "group-out-of-line")
        # Journal the release without the groups to whose sums no records add up, and with all votes behind it.
        line = replace(line, release=np.concatenate([released, _list_votes(run, slot, opened.survivors)]))
    except SumAbandoned as fault:
        # All sites learn that the run ends. So the cause is a release like any other: write it down with its cost, and
        # give the run up, in one write.
        if fault.reason is Code.SUM_OUT_OF_RANGE and not run.replica.n_groups:
            fault.what += f" In the sum were {', '.join(survivors)}: the masks do not show whose vector it was."
        give_up(run, fault, line)
        return
    for name in survivors:
        run.sites[name].fault_counts.may_return = True
    run.take(line)
    run.stage = between = now.over()
    open_round(run, between, line)


Charged = tuple[JournalledRelease, dict[int, IntVector], dict[int, SumOrigin]]
"""A journalled release; by group, the noisy sum and its public facts (group 0 for a sum over all sites)."""


def _release_groups(run: CoordinatorRun, slot: Aggregator, query: Query, opened: OpenedSums) -> Charged:
    """Charge and return the release of the groups' sums, or of the one sum over all sites."""
    view, n_groups, is_local = slot.view, run.replica.n_groups, run.plan.privacy.noise == "local"
    there = {group: opened.sums[name] for group in range(len(view.parts))
             if (name := name_in(view, VECTOR_ID, group)) in opened.sums}  # fmt: skip
    releaser = Releaser(run.setup.noise, BY_NODES, is_local=is_local, width=slot.spec.vectors[0].width)
    noisy = releaser.release_groups(query, there, n_groups, find_noise_cohort(run.plan, view))
    (entry,), votes = releaser.ledger.releases, run.replica.vote
    cast = None if votes is None else releaser.enter_votes(votes)
    summed = {g: _sum_slot(run, slot, [node for node in opened.survivors if node in view.parts[g]]) for g in noisy}
    survivors = tuple(run.sites.name(node) for node in opened.survivors)
    whole = pack(noisy, weigh_groups(summed), query.length, n_groups)
    return JournalledRelease(whole, entry, survivors, cast), noisy, summed


def _list_votes(run: CoordinatorRun, slot: Aggregator, survivors: Sequence[int]) -> IntVector:
    """List the votes in the signed headers of those in the sums, by the roster's nodes; none in most rounds."""
    votes = np.zeros(len(run.setup.roster.sites) if run.replica.vote is not None else 0, dtype=np.int64)
    for node in survivors if len(votes) else ():
        votes[node] = slot.headers[node].vote
    return votes


def _sum_slot(run: CoordinatorRun, slot: Aggregator, nodes: Sequence[int]) -> SumOrigin:
    """Return the public facts about the sum over these nodes, one or more."""
    names = tuple(run.sites.name(node) for node in nodes)
    declared = tuple(run.setup.roster.find_max_rows(name) for name in names)
    return SumOrigin(find_noise_cohort(run.plan, slot.view), slot.view.by_node[nodes[0]].n_nodes, names, declared)


def _wait_for_shares(run: CoordinatorRun, slot: Aggregator, fault: SumAbandoned) -> OpenedSums | None:
    """Ask for more shares, or wait, if they may open the sum; else raise the fault.

    Return the sums of the other groups if these are enough and nobody is left to be asked; else None.
    """
    if fault.reason not in _MORE_SHARES_MAY_HELP:
        raise fault
    # A returning site receives the same manifest again; there is never a second one.
    if ask_others(run, slot):
        return None
    with suppress(SumAbandoned):
        opened = slot.release(is_last=True)[1]
        with suppress(SumAbandoned):
            # Leave the dealer out; else its group would sit out all rounds.
            _judge_dealer(run, slot, fault)
        return opened
    _judge_dealer(run, slot, fault)
    run.stall()
    return None


def _judge_dealer(run: CoordinatorRun, slot: Aggregator, fault: SumAbandoned) -> None:
    """Blame a site for a secret that cannot be rebuilt, and raise; or return, to wait for more shares.

    If shares do not fit: with as many shares above the threshold as there may be liars, some threshold of them come
    from honest holders, so only wrong dealing explains it. If shares are withheld because they did not open: if more
    holders withhold than may lie, an honest one is among them. Otherwise a holder may be lying.
    """
    if not isinstance(fault.peer, int):
        raise fault
    dealer, guarantees = fault.peer, slot.view.guarantees
    holders = {node for node in slot.uploads if node == dealer or dealer in slot.view.peers(node)}
    given = {node for node in holders & slot.shares.keys() if slot.shares[node].get(dealer) is not None}
    withheld, left = slot.shares.keys() & holders - given - {dealer}, holders - slot.answers.keys()
    n_liars, is_wrong = max(1, guarantees.n_colluders), fault.reason is Code.SECRET_UNRECOVERABLE
    threshold = slot.view.by_node[dealer].threshold
    if not is_wrong and len(given | left) >= threshold:
        return
    site = run.sites.at_node(dealer)
    if (is_wrong and len(given) >= threshold + n_liars) or (not is_wrong and len(withheld) > n_liars):
        run.tell(RunEventKind.COMPLAINT, site.name, Code.SECRET_UNRECOVERABLE.value)
        run.leave_out(site, Code.SECRET_UNRECOVERABLE.value)
        raise refuse(Code.SECRET_UNRECOVERABLE, f"It is the secret of {site.name}, which dealt wrong shares.", dealer)
    if not left - {dealer}:
        others = ", ".join(run.sites.name(node) for node in sorted((given | withheld) - {dealer}))
        said = f"It is the secret of {site.name}: it dealt wrong shares, or one of {others} lies about them."
        raise refuse(Code.SECRET_UNRECOVERABLE, said, dealer)


# The end of a run --------------------------------------------------------------------------------------------------


def conclude(run: CoordinatorRun, salvaged: Salvage | None = None) -> Outcome:
    """Set the run's outcome, once all releases are there, and return it.

    Raises PrivacyError if they cost more than the plan allows. Releases of runs whose journals were set aside are added
    to the outcome's account, beyond this run's own limit.

    Args:
        salvaged: the reason and the number of rounds, if the run has ended early.
    """
    if run.outcome is not None:
        return run.outcome
    model, replica, noise = run.setup.model, run.replica, run.setup.noise
    if model is not None and isinstance(replica.result, Evaluation):
        outcome = model.outcome(run.ledger, replica.result, noise)
    elif isinstance(replica.result, Found):
        report = check_report(run.plan, run.ledger, noise)
        nothing = make_empty_ensemble(run.plan, build_grid(run.plan))
        outcome = Outcome(run.plan, nothing, run.ledger, report, findings=replica.result)
    else:
        # Report by the model's own plan, with the drawn seed, as the model's file and every site do.
        report = check_report(replica.plan, run.ledger, noise)
        outcome = Outcome(
            replica.plan, replica.ensemble, run.ledger, report, salvaged=salvaged, tallies=tuple(run.tallies)
        )
    ledger = outcome.ledger
    for name, releases in run.journal.earlier.items():
        ledger = ledger.with_run(name, releases, len(outcome.plan.prepared))
    if ledger != outcome.ledger:
        outcome = replace(outcome, ledger=ledger, report=build_report(ledger, outcome.report))
    run.outcome = outcome
    return outcome


def end(run: CoordinatorRun) -> None:
    """End the run, which has made its result."""
    run.enter(Over(run.view))
    run.tell(RunEventKind.FINISHED)


def give_up(run: CoordinatorRun, fault: HedgerowError, unused: JournalledRelease | None = None) -> None:
    """End the run because of a fault, with a salvaged model of the releases so far if that may be.

    A run whose result is in the journal is only stopped.

    Args:
        unused: a release that the program does not continue from; it is journalled with its cost, in the same write.
    """
    if run.state is RunState.FINISHING:
        # The result is in the journal, and sites may have it: after a restart the run ends from there.
        _stop(run, fault)
        return
    n_released = len(run.releases)
    if unused is not None:
        run.charge(unused)
    may_salvage = run.task.plan.federation.salvage and isinstance(fault, AggregationError)
    # If several sites have answered rounds that this journal does not know, its ledger would state less than was
    # released. Salvage only if the program can end early with a model.
    if may_salvage and not run.sites.is_journal_doubted and run.replica.end_early():
        salvaged = Salvage(fault.code, n_released, run.task.schedule.n_rounds)
        with suppress(PrivacyError):
            conclude(run, salvaged)
            run.journal.commit(unused, None, run.replica.result_digest(), salvaged)
            run.fault = fault
            run.tell(RunEventKind.SALVAGED, code=fault.code)
            _begin_finishing(run)
            return
    run.journal.commit(unused, given_up=fault.code)
    run.send_to_connected(Stop(fault.code))
    _stop(run, fault)


def _stop(run: CoordinatorRun, fault: HedgerowError) -> None:
    run.outcome, run.fault = None, fault
    run.enter(Over(run.view))
    run.tell(RunEventKind.STOPPED, code=fault.code)


def _begin_finishing(run: CoordinatorRun) -> None:
    run.enter(Finishing(run.view))
    run.sites.begin_slot()
    for site in run.sites:
        # A site that was left out later may have rows in the model, so it receives the model too.
        if site.is_ready and site.is_connected_and_willing:
            run.send_finished(site)


# What sites say -------------------------------------------------------------------------------------------------------

# Why either end gives up a connection that did not break.
_GIVEN_UP = {WireCode.SILENT.value, WireCode.SLOW_PEER.value}
# Refusals of a node that cannot resume its epoch; it takes part in the next one.
_PASSING = {Code.ROLLED_BACK.value, Code.CORRUPT_STATE.value}


class RunSession:
    """The session of one run. After a restart a new session continues from the journal."""

    def __init__(self, setup: RunSetup, journal: Journal) -> None:
        self.run = run = CoordinatorRun(setup, journal)
        self._last_awaited: SiteRecord | None = None
        check_groups(run.task, setup.roster)
        check_words(run.task, len(setup.roster.sites))
        check_rounds(run.task, len(setup.roster.sites))
        check_releases(run.task, len(setup.roster.sites))
        run.sites.draws_seed = run.task.plan.has_joint_structure
        if run.sites.least > len(run.sites):
            # Waiting for sites cannot help: the roster of a run does not grow.
            n_sites, least, why = len(run.sites), run.sites.least, run.sites.why_needed
            raise AggregationError("too-few-sites", n_ready=0, n_sites=n_sites, said="", least=least, why=why)
        stored = journal.load(run.task, setup.roster)
        if stored is None:
            run.run_id = setup.entropy(32)
            journal.begin(run.run_id, run.task, setup.roster)
        else:
            _resume(run, stored)

    # What a driver calls -----------------------------------------------------------------------------------------

    @property
    def waits_for_joining(self) -> bool:
        """Whether the join timeout applies to the phase (else the round timeout)."""
        run = self.run
        return (run.state is RunState.GATHERING and not run.attempt) or run.sites.is_any_returning

    @property
    def waits_for_more_than_needed(self) -> bool:
        """Whether all sites that have not returned since a restart are dispensable."""
        return self.run.sites.is_any_returning and has_needed_back(self.run)

    @property
    def is_between_rounds(self) -> bool:
        """Whether the run waits for sites to come, and not for answers to messages."""
        return self.run.state is RunState.GATHERING or self.run.is_stalled

    def add_connection(self, site: str) -> None:
        """Record that a site's node is connected; it will say Hello."""
        self.run.sites[site].leave()
        self.run.tell(RunEventKind.JOINED, site)

    def remove_connection(self, site: str, reason: str = "") -> list[Outgoing]:
        """Record that a site's connection is gone; wait for the site only if the connection was given up.

        A broken connection means that the node's process has ended. One that was given up only means that something was
        too slow, perhaps this machine: the node dials again, and a round has as much time for it as for every other
        site.
        """
        record = self.run.sites[site]
        record.leave(comes_back=reason in _GIVEN_UP and self._is_in_epoch(record))
        self.run.tell(RunEventKind.LEFT, site, reason)
        return self._flush()

    def receive(self, site: str, data: bytes) -> list[Outgoing]:
        """Handle a site's message; drop and report one that cannot be used."""
        if self.run.state is not RunState.OVER:
            try:
                self._read(self.run.sites[site], decode(data, FROM_NODES))
            except RemoteProtocolError as fault:
                self.run.tell(RunEventKind.COMPLAINT, site, fault.code)
        slot = self.run.slot
        # A site that has given its shares is not missing among the openers when it leaves.
        return self._flush(has_opener_left=slot is None or self.run.sites[site].node not in slot.answers)

    def handle_timeout(self) -> list[Outgoing]:
        """Close the phase because its time is over: go on without silent sites, or give up."""
        run = self.run
        if run.sites.is_any_returning:
            run.sites.stop_waiting()
            run.n_phases += 1
            run.tell(RunEventKind.PHASE, code=run.state.value)
        elif run.is_stalled:
            give_up(run, too_few(run))
        else:
            awaited = self.list_awaited()
            for site in run.sites:
                if site.name in awaited:
                    self._fall_silent(site)
            self._guard(self._close_phase)
        return self._flush()

    def list_awaited(self) -> set[str]:
        """Return the sites whose answer is missing to complete the phase."""
        return {site.name for site in self.run.sites if self._is_awaited(site)}

    def _is_awaited(self, site: SiteRecord) -> bool:
        return not site.has_answered and self._is_expected(site)

    def _is_any_awaited(self) -> bool:
        """Return whether `list_awaited` would name any site.

        The site found last time is checked first; else every message would cost as much work as there are sites. Sites
        that were asked last answer last, so the search begins there.
        """
        if self._last_awaited is None or not self._is_awaited(self._last_awaited):
            self._last_awaited = next(filter(self._is_awaited, reversed(self.run.sites)), None)
        return self._last_awaited is not None

    def _is_expected(self, site: SiteRecord) -> bool:
        state, slot = self.run.state, self.run.slot
        if state is RunState.GATHERING:
            return site.may_join or (site.is_ready and self._is_early(site))
        if state is RunState.SETTING_UP:
            return site.is_setting_up and site.can_answer
        if state is RunState.FINISHING:
            return (site.is_connected_and_willing and not site.claims_more) or site.link is Connection.RETURNING
        if slot is None or not site.is_inside:
            return False
        if state is RunState.COLLECTING_VECTORS:
            has_spec = site.spec is SentMark.NOW and site.can_answer
            return site.link in (Connection.RETURNING, Connection.AWAY) or has_spec
        is_asked = site.link is Connection.RETURNING or (site.opening is SentMark.NOW and site.can_answer)
        return is_asked and site.node in slot.uploads

    def _is_early(self, site: SiteRecord) -> bool:
        """Return whether a site's answer to the anticipated set-up can still come."""
        run = self.run
        return run.anticipated is not None and run.state is RunState.GATHERING and site.name not in run.early

    def _is_in_epoch(self, site: SiteRecord) -> bool:
        """Return whether the epoch has the site, which may have lost its state of it."""
        view = self.run.view
        return view is not None and view.is_ready(site.node)

    # Messages ------------------------------------------------------------------------------------------------------

    def _read(self, site: SiteRecord, message: Message) -> None:
        run, kind = self.run, message_kind(message)
        # Without a Hello on this connection, a message answers one that was sent over an earlier connection.
        is_late = not site.is_connected and not isinstance(message, Hello)
        if site.is_silent and not is_late:
            # Wait for it again, and ask it what the others were asked meanwhile.
            site.is_silent = False
            is_in_it = run.state is RunState.FINISHING or site.is_inside
            if site.is_ready and site.spec is not SentMark.NOW and is_in_it:
                self._repeat_to(site)
        if kind is MessageKind.SETUP_ANSWER and isinstance(message, Payload) and self._is_early(site):
            run.early[site.name] = message.content
            return
        if is_late or not is_expected(run.state, kind):
            run.tell(RunEventKind.LATE, site.name, kind.name.lower().replace("_", "-"))
            return
        match message:
            case Hello():
                self._greet(site, message)
            case Ready():
                self._accept(site, message)
            case Deferred():
                run.tell(RunEventKind.DEFERRED, site.name)
            case Refused():
                if message.code not in _PASSING:
                    site.refuse(message.code, is_explained=explains_refusal(run, site, message.code))
                is_other = message.code == PROGRAM_DIFFERS
                detail = f"{site.name} is {site.build}; here is {describe_build()}" if is_other else ""
                run.tell(RunEventKind.REFUSED, site.name, message.code, detail)
            case Done():
                site.has_answered = True
            case Payload(MessageKind.SETUP_ANSWER, content):
                self._take_setup(site, content)
            case Payload(_, content):
                self._take_answer(site, content)

    def _greet(self, site: SiteRecord, hello: Hello) -> None:
        run = self.run
        is_first = not site.is_connected
        site.greet()
        site.build = hello.build
        run.send(site, Welcome(hello.connection))
        is_ours = hello.run_id == run.run_id
        # A single site may claim anything. If several claim it, believe them: the journal was restored from a backup.
        site.claims_more = is_ours and hello.n_releases > len(run.releases)
        if site.claims_more:
            run.tell(RunEventKind.COMPLAINT, site.name, "releases-claimed")
            claims = [each.name for each in run.sites if each.claims_more]
            # A complete run has all releases in its journal, so no node can hold more.
            is_whole = run.outcome is not None and run.outcome.salvaged is None
            if len(claims) >= run.sites.n_believed and not is_whole:
                give_up(run, RemoteProtocolError("journal-rolled-back", sites=", ".join(claims)))
            return
        if is_ours and self._has_answered_after(site, hello.n_releases):
            # It held all earlier releases when it answered that round, so its folder was restored since. Telling it
            # makes it charge its owner for the whole run. A node that noticed this itself has done so, and goes on in a
            # new epoch.
            self._tell_restored(site)
        # A second Hello on one connection shows the state before the node joined the run.
        site.is_new = is_first and not is_ours
        site.n_held = hello.n_releases if is_ours else 0
        # A node that has a release, or the origin's epoch, also has the trees' seed.
        has_seed = bool(hello.n_releases) or (run.origin is not None and hello.epoch == run.origin.digest)
        site.knows_origin = is_ours and has_seed
        is_member = self._is_in_epoch(site)
        view = run.view
        if is_ours and is_member and view is not None and hello.epoch == view.digest:
            site.consent = Consent.READY
            run.tell(RunEventKind.READY, site.name)
            self._repeat_to(site)
            return
        site.fault_counts.lost_epochs += is_member and site.is_inside
        run.invite(site)

    def _has_answered_after(self, site: SiteRecord, n_held: int) -> bool:
        """Return whether a site's vector is here for a round whose number is above `n_held`."""
        run = self.run
        if any(site.name in survivors for survivors in run.survivors[n_held + 1 :]):
            return True
        # The open round has no release yet, so look at its uploads.
        is_later = len(run.releases) > n_held and self._is_in_epoch(site)
        return is_later and isinstance(run.stage, InSlot) and site.node in run.stage.slot.uploads

    def _tell_restored(self, site: SiteRecord) -> None:
        self.run.tell(RunEventKind.REFUSED, site.name, Code.ROLLED_BACK)
        self.run.send(site, Stop(Code.ROLLED_BACK))

    def _accept(self, site: SiteRecord, ready: Ready) -> None:
        run = self.run
        if ready.run_id != run.run_id or ready.plan_digest != bytes.fromhex(run.task.digest):
            run.tell(RunEventKind.COMPLAINT, site.name, "plan-changed")
            return
        is_new, site.is_new = site.is_new, False
        if is_new and self._has_answered_after(site, -1):
            # A node that knows of its answers does not join the run a second time, so this folder is a copy from before
            # the run. A node that has lost only its database notices that, charges the whole run, and goes on in a new
            # epoch.
            self._tell_restored(site)
        site.consent, site.shows_figures = Consent.READY, ready.shows_figures
        run.tell(RunEventKind.READY, site.name)
        if run.state is RunState.FINISHING:
            run.send_finished(site)

    def _repeat_to(self, site: SiteRecord) -> None:
        """Send a returned site the messages of the current phase that it may have missed."""
        run = self.run
        match run.stage:
            case Finishing():
                run.send_finished(site)
            case InSlot(slot, certificate) if site.can_answer:
                if slot.state is State.COLLECTING_VECTORS:
                    if site.node not in slot.uploads:
                        run.send_request(site, slot)
                elif site.node in slot.uploads and slot.view.guarantees.has_echo:
                    run.ask_openers(slot.requests((site.node,)))
                    if certificate:
                        run.send(site, Payload(MessageKind.CERTIFICATE, certificate))

    def _take_setup(self, site: SiteRecord, content: bytes) -> None:
        stage = self.run.stage
        if not isinstance(stage, SettingUp) or not site.is_setting_up:
            return
        setup, complaints = stage.setup.receive([content])
        self.run.stage = SettingUp(setup)
        if not complaints:
            site.answer()
        for complaint in complaints:
            self.run.tell(RunEventKind.COMPLAINT, site.name, complaint.code)

    def _take_answer(self, site: SiteRecord, content: bytes) -> None:
        run = self.run
        if not isinstance(run.stage, InSlot):
            return
        slot, complaints = run.stage.slot.receive([content])
        run.stage = replace(run.stage, slot=slot)
        if not complaints or run.state is RunState.COLLECTING_ANSWERS:
            # Do not wait a second time for shares that cannot be used: the others are asked for theirs.
            site.answer()
        for complaint in complaints:
            run.tell(RunEventKind.COMPLAINT, site.name, complaint.code)

    def _fall_silent(self, site: SiteRecord) -> None:
        run = self.run
        site.fall_silent()
        run.tell(RunEventKind.SILENT, site.name)
        is_joining = run.state is RunState.FINISHING or (run.state is RunState.GATHERING and not run.attempt)
        if not is_joining:
            run.count_timeout(site)
        if run.state is RunState.SETTING_UP:
            # When it wakes up, the others have gone on without it.
            run.invite(site)

    # When a phase is complete --------------------------------------------------------------------------------------

    def _flush(self, *, has_opener_left: bool = True) -> list[Outgoing]:
        """Go on as far as possible, then return the queued messages.

        Args:
            has_opener_left: whether a site that was asked to open the sum may have left.
        """
        run = self.run
        while run.state is not RunState.OVER:
            before = run.n_phases
            if has_opener_left:
                keep_enough_openers(run)
            has_opener_left = True
            if run.is_stalled:
                self._guard(self._close_phase)
                while run.is_stalled and run.take_back():
                    self._guard(self._close_phase)
            elif not self._is_any_awaited():
                self._guard(self._close_phase)
            if run.n_phases == before:
                break
        out, run.out = run.out, []
        return out

    def _guard(self, step: Callable[[], None]) -> None:
        try:
            step()
        except EnvironmentFault:
            # The journal is unchanged: after a restart the run goes on.
            raise
        except HedgerowError as fault:
            give_up(self.run, fault)

    def _close_phase(self) -> None:
        run = self.run
        match run.stage:
            case Gathering():
                begin_setup(run)
            case SettingUp(setup):
                advance_setup(run, setup)
            case BetweenSlots() as between:
                open_round(run, between)
            case InSlot() as now if now.state is RunState.COLLECTING_VECTORS:
                close_vectors(run, now)
            case InSlot() as now if now.state is RunState.COLLECTING_ECHOES:
                close_echoes(run, now)
            case InSlot() as now:
                release(run, now)
            case Finishing():
                end(run)


def _resume(run: CoordinatorRun, stored: JournalledRun) -> None:
    """Restore the run from the journal's content."""
    run.run_id = stored.run_id
    if stored.origin is not None:
        run.begin_trees(stored.origin)
    n_used = len(stored.releases) if stored.salvage is None else stored.salvage.n_used
    for line in stored.releases[:n_used]:
        run.take(line)
    for line in stored.releases[n_used:]:
        run.charge(line)
    if stored.salvage is not None:
        run.replica.end_early()
    run.attempt, run.burnt = stored.attempt, list(stored.burnt)
    if stored.view is not None:
        for node in stored.view.ready:
            run.sites.at_node(node).link, run.sites.at_node(node).place = Connection.RETURNING, Membership.INSIDE
    if stored.result_digest is not None:
        conclude(run, stored.salvage)
        run.enter(Finishing(stored.view))
    elif stored.slot is not None:
        slot = stored.slot
        is_certified = slot.state is State.COLLECTING_ANSWERS and bool(slot.echoes)
        run.enter(InSlot(slot, slot.certificate() if is_certified else b""))
        # Wait until the epoch's sites are back, or their time is over.
        run.tell(RunEventKind.PHASE, code="waiting-for-sites")
    elif stored.view is not None:
        run.stage = BetweenSlots(stored.view, stored.next_slot)
        run.stall()


# The loop ------------------------------------------------------------------------------------------------------------

_SECONDS_BETWEEN_WORDS = 2.0
_RETURN_SECONDS = 30.0
"""Seconds in which every living node dials a restarted coordinator: the longest pause between two tries."""
_MIN_WAIT = 1.0
"""Seconds: if a deadline passed while this process did not run, messages that arrived meanwhile are read first."""
_MAX_LATE = 4096
"""Most messages that are read after the deadline, for at most as long as the phase had: a site that sends without end,
or messages that take long to read, must not delay the timeout."""


def run_coordinator(
    session: RunSession,
    hub: Hub,
    timeouts: FederationSection,
    clock: Callable[[], float],
    waiting: Callable[[float, Collection[str]], object] | None = None,
    is_paused: Callable[[], bool] = lambda: False,
) -> None:
    """Drive a run to its end; `conclude` then returns its outcome.

    Args:
        session: a new session, or one restored from a journal.
        hub: connected to the nodes; the caller closes it.
        timeouts: `join_timeout` for sites to come or come back, `round_timeout` for an answer, `idle_timeout` for
            enough sites to return when there are too few. After a restart the run waits for dispensable sites only as
            long as a living node needs to dial again.
        clock: seconds, from any beginning, that never go back: ``time.monotonic``.
        waiting: called every few seconds with the seconds left until the phase is closed, and the sites whose answer or
            return is missing.
        is_paused: returns whether the operator wants to pause the run; called between rounds.

    Raises:
        HedgerowError: the fault for which the run was given up.
        AggregationError: code "run-paused"; the releases are in the journal, from which the run can continue.
        EnvironmentFault: the journal could not be written; after a restart the run goes on.
    """
    phase, deadline, next_word, late_until, late_end, n_late = -1, 0.0, 0.0, 0.0, 0.0, 0
    all_back = clock() + find_patience(timeouts)
    while session.run.state is not RunState.OVER:
        event: HubEvent | None = None
        if session.is_between_rounds and is_paused():
            raise _pause(session, hub)
        n_released = len(session.run.releases)
        if session.run.n_phases != phase:
            phase = session.run.n_phases
            deadline, next_word, n_late = clock() + _find_timeout(session, timeouts), -math.inf, 0
        if clock() < deadline:
            if clock() >= next_word:
                if all_back < deadline and session.waits_for_more_than_needed:
                    deadline = max(all_back, clock())
                if waiting is not None:
                    waiting(deadline - clock(), () if session.is_between_rounds else session.list_awaited())
                next_word = clock() + _SECONDS_BETWEEN_WORDS
            left = deadline - clock()
            looks_again = waiting is not None or session.run.sites.is_any_returning
            event = hub.receive(min(left, max(0.0, next_word - clock())) if looks_again else left)
        else:
            if not n_late:
                late_until = clock() + _MIN_WAIT
                late_end = late_until + _find_timeout(session, timeouts)
            n_late += 1
            if n_late <= _MAX_LATE and clock() < late_end:
                # After that second for messages on their way, read only those that are there already.
                event = hub.receive(max(0.0, late_until - clock()))
        if event is None and clock() < deadline:
            continue
        n_late = n_late if event is not None else 0
        messages = session.handle_timeout() if event is None else _react(session, event)
        is_new_round = len(session.run.releases) > n_released and session.run.state is RunState.COLLECTING_VECTORS
        if is_new_round and is_paused():
            # The next round's spec is in the journal, and no site has received it.
            raise _pause(session, hub)
        _deliver(session, hub, messages)
    if session.run.outcome is None:
        raise session.run.fault or HedgerowError("no-result", result="a model")


def _pause(session: RunSession, hub: Hub) -> AggregationError:
    """Tell the sites that the run pauses, and return the error to raise."""
    run = session.run
    for site in run.sites:
        if site.is_connected:
            hub.send(site.name, encode(Paused()))
    return AggregationError("run-paused", n_released=len(run.releases), n_rounds=run.task.schedule.n_rounds)


def tell_end(
    run_id: bytes, code: str, hub: Hub, sites: Collection[str], seconds: float, clock: Callable[[], float]
) -> list[str]:
    """Tell sites that come back to a run that the run has ended; return those that were in it and heard.

    Args:
        code: code word of the reason.
        hub: connected to the nodes; the caller closes it.
        sites: the sites that may come.
        seconds: time to wait for them; each site that comes is told at once. A site that comes but is not in the run
            has nothing to hear, and is not waited for.

    Returns:
        The names of those that were in the run and heard of its end.
    """
    reached, awaited = set[str](), set(sites)
    deadline = clock() + seconds
    while awaited and clock() < deadline:
        event = hub.receive(max(0.0, deadline - clock()))
        if not isinstance(event, Arrived):
            continue
        with suppress(RemoteProtocolError):
            hello = decode(event.message, FROM_NODES)
            if isinstance(hello, Hello):
                awaited.discard(event.site)
                if hello.run_id == run_id:
                    hub.send(event.site, encode(Welcome(hello.connection)))
                    hub.send(event.site, encode(Stop(code)))
                    reached.add(event.site)
    return sorted(reached)


def _deliver(session: RunSession, hub: Hub, messages: list[Outgoing]) -> None:
    """Send messages.

    A site whose message the engine refuses, because it is too long, counts as gone; the run goes on.
    """
    waiting, gone = deque(messages), set[str]()
    while waiting:
        site, message = waiting.popleft()
        # Skip messages that follow an unsent one: the site would not understand them.
        if site in gone:
            continue
        try:
            hub.send(site, message)
        except WireRefusal as refusal:
            gone.add(site)
            waiting.extend(session.remove_connection(site, refusal.code))


def _react(session: RunSession, event: HubEvent) -> list[tuple[str, bytes]]:
    match event:
        case Joined(site):
            session.add_connection(site)
            return []
        case Left(site, reason):
            return session.remove_connection(site, reason)
        case Arrived(site, message):
            return session.receive(site, message)


def find_patience(timeouts: FederationSection) -> float:
    """Return the seconds in which every living node returns to a coordinator that was away."""
    return max(_RETURN_SECONDS, timeouts.round_timeout / 2)


def _find_timeout(session: RunSession, timeouts: FederationSection) -> float:
    if session.waits_for_joining:
        return timeouts.join_timeout
    return timeouts.idle_timeout if session.run.is_stalled else timeouts.round_timeout
