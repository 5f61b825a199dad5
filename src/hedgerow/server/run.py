"""The run as the coordinator knows it: its sites, its facts, the messages that follow from them alone, its journal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import Enum, StrEnum
from itertools import count
from pathlib import Path

import numpy as np

from hedgerow.codec import stored_version, with_hash, without_hash
from hedgerow.crypto import Identity
from hedgerow.errors import AggregationError, EnvironmentFault, HedgerowError, UsageError
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import EvaluationTask, SurveyTask, Task, TrainingTask, checks_of
from hedgerow.plan.plan import Plan
from hedgerow.privacy.ledger import Ledger, Release
from hedgerow.privacy.noise import NoiseSource
from hedgerow.privacy.prepared import prepared_ledger
from hedgerow.protocol.messages import (
    EvaluationInvitation,
    Finished,
    Invitation,
    Message,
    MessageKind,
    Payload,
    RoundRequest,
    RunState,
    Salvaged,
    SurveyInvitation,
    encode,
)
from hedgerow.protocol.queries import IntVector
from hedgerow.protocol.stream import Salvage
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.enrolment import EpochSetup
from hedgerow.secagg.guarantees import default_colluders, origin_members
from hedgerow.secagg.messages import Roster
from hedgerow.secagg.transitions import Code, Entropy, OwnMistake, Refusal
from hedgerow.secagg.view import Cohort, EpochView
from hedgerow.server.release import EvaluatedModel, Outcome
from hedgerow.storage import Database, Statement
from hedgerow.trees.plausibility import ReleaseChecks

# The sites ------------------------------------------------------------------------------------------------------------

SMALLEST_COHORT = 3
SMALLEST_NOISED_COHORT = 2
"""Where every site adds noise to its own vector, two sites can sum without reading each other's."""

# A site that has used up its time so often is asked no more.
MOST_TIMEOUTS_IN_A_ROW, MOST_TIMEOUTS = 2, 3
MOST_BROKEN_SETUPS = 2
MOST_LOST_EPOCHS = 2
"""For a site that has left so many epochs by itself, no new one is begun."""
MOST_UNACKNOWLEDGED = 2
"""Two sites of which one did not acknowledge the other in so many set-ups are not in one again."""
# What a node says that may have answered more than this journal knows of, or was sent what cannot be.
_DOUBTS = {
    Code.PURPOSE_ANSWERED.value,
    Code.SECOND_MANIFEST.value,
    "round-out-of-step",
    "run-closed",
    "release-implausible",
    "release-unfit",
    "structure-seed",
}


@dataclass
class Conduct:
    """What a site has cost the others in this run. Its next connection does not clear it.

    Attributes:
        timeouts, in_a_row: phases in which it was waited for in vain: all, and since it answered last.
        broken_setups: set-ups in which its message was missing while those of most others were there.
        lost_epochs: how often it was in the epoch and came back without it.
        unacknowledged: by other site, set-ups in which one of the two did not acknowledge the other's shares.
        may_return: whether it may be taken back: once, and again when it has helped to make a release since.
    """

    timeouts: int = 0
    in_a_row: int = 0
    broken_setups: int = 0
    lost_epochs: int = 0
    unacknowledged: Counter[str] = field(default_factory=Counter)
    may_return: bool = True

    @property
    def weight(self) -> int:
        """All of it in one number; the site with the larger one goes first."""
        return self.timeouts + self.broken_setups + self.lost_epochs + self.unacknowledged.total()

    def timed_out(self) -> bool:
        """Count a timeout; whether it was one too many."""
        self.timeouts, self.in_a_row = self.timeouts + 1, self.in_a_row + 1
        return self.in_a_row >= MOST_TIMEOUTS_IN_A_ROW or self.timeouts >= MOST_TIMEOUTS

    def text(self) -> str:
        """What it comes to, in words; empty for a site that has cost nothing."""
        counts = [
            (self.timeouts, "did not answer in time"),
            (self.broken_setups, "broke a set-up"),
            (self.lost_epochs, "came back without its epoch"),
        ]
        parts = [f"{words} ({count} times)" if count > 1 else words for count, words in counts if count]
        parts += [f"was not in agreement with {other} on shares" for other in sorted(self.unacknowledged)]
        return ", ".join(parts)


class Link(Enum):
    """A site's connection."""

    GONE = "there is none, or its node has not said Hello on it"
    AWAY = "one end has given it up; the node dials again, so a round has time for it"
    RETURNING = "lost when the coordinator was started again; the site was in the epoch and has not come back"
    CONNECTED = "its node has said Hello"


class Consent(Enum):
    """What a site says of the run."""

    OPEN = "nothing yet on this connection"
    READY = "it has checked plan and policy and takes part"
    REFUSED = "it will not do what was asked"


class Place(Enum):
    """A site's place in the epoch."""

    OUTSIDE = "not in it, or it has lost its state of it"
    SETTING_UP = "it takes part in the set-up that is under way"
    INSIDE = "in it"


class Asked(Enum):
    """Whether a site was sent something."""

    NO = "no"
    EARLIER = "on an earlier connection"
    NOW = "on the connection that it has"


@dataclass(eq=False)
class SiteRecord:
    """Where a site stands.

    Attributes:
        node: the number of its node.
        refusal, is_explained: the code of a refusal, and whether a slot that was given up here explains it.
        spec: whether it was sent the open slot's spec, or at the end the last releases.
        opening: whether it was asked to help to open the slot's sum.
        is_silent: it did not answer in time, and has not spoken since.
        has_answered: in the current phase.
        claims_more: it says that it holds more releases than there are.
        knows_origin: it knows which epoch drew the trees' seed, as far as its connection tells.
        n_held: how many releases it holds.
        left_out: why it is asked no more, as a code; "" for a site that is asked.
    """

    name: str
    node: int
    link: Link = Link.GONE
    consent: Consent = Consent.OPEN
    refusal: str = ""
    is_explained: bool = False
    place: Place = Place.OUTSIDE
    spec: Asked = Asked.NO
    opening: Asked = Asked.NO
    is_silent: bool = False
    has_answered: bool = False
    claims_more: bool = False
    knows_origin: bool = False
    n_held: int = 0
    left_out: str = ""
    conduct: Conduct = field(default_factory=Conduct)

    # What is asked of it ---------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether something can be sent to it."""
        return self.link is Link.CONNECTED

    @property
    def is_ready(self) -> bool:
        """Whether it takes part in the run."""
        return self.consent is Consent.READY

    @property
    def has_refused(self) -> bool:
        """Whether its last word was a refusal."""
        return self.consent is Consent.REFUSED

    @property
    def is_inside(self) -> bool:
        """Whether it is in the current epoch."""
        return self.place is Place.INSIDE

    @property
    def is_setting_up(self) -> bool:
        """Whether it takes part in the set-up that is under way."""
        return self.place is Place.SETTING_UP

    @property
    def is_there(self) -> bool:
        """Whether it is connected and speaks, and has not refused."""
        return self.is_connected and not self.is_silent and not self.has_refused

    @property
    def is_heard(self) -> bool:
        """Whether an answer of it can be waited for."""
        return self.is_there and not self.left_out and not self.claims_more

    @property
    def may_join(self) -> bool:
        """Whether it may still say that it is ready, for all that is known."""
        return self.consent is Consent.OPEN and not (self.is_silent or self.left_out or self.claims_more)

    @property
    def is_doubting(self) -> bool:
        """Whether it says that it gave or holds more than the journal knows of, or other releases."""
        return self.claims_more or (self.has_refused and self.refusal in _DOUBTS and not self.is_explained)

    # What happens to it ----------------------------------------------------------------------------------------------

    def greet(self) -> None:
        """Its node has said Hello."""
        self.link = Link.CONNECTED
        if self.has_refused:
            self.consent = Consent.OPEN

    def leave(self, *, comes_back: bool = False) -> None:
        """Its connection is gone: it must say Hello again, and does not go on with a set-up.

        Args:
            comes_back: whether the connection was only given up.
        """
        if comes_back and self.link is not Link.RETURNING:
            self.link = Link.AWAY
        elif self.is_connected:
            self.link = Link.GONE
        if self.is_ready:
            self.consent = Consent.OPEN
        self._quit_setup()
        self.knows_origin = False
        self.spec, self.opening = (Asked.EARLIER if each is Asked.NOW else each for each in (self.spec, self.opening))

    def refuse(self, code: str, *, is_explained: bool = False) -> None:
        """It will not do what was asked; with `is_explained` that says nothing against this journal."""
        self.consent, self.refusal, self.is_explained = Consent.REFUSED, code, is_explained
        self._quit_setup()

    def invite(self) -> None:
        """It is asked to take part, from the next epoch on."""
        self.place = Place.OUTSIDE
        if self.is_ready:
            self.consent = Consent.OPEN

    def answer(self) -> None:
        """It has answered in time."""
        self.has_answered = True
        self.conduct.in_a_row = 0

    def fall_silent(self) -> None:
        """It was waited for in vain."""
        self.is_silent = True
        if self.link is Link.AWAY:
            self.link = Link.GONE

    def leave_out(self, code: str) -> None:
        """It is asked no more, and not waited for."""
        self.left_out = code
        self._quit_setup()
        if not self.is_connected:
            self.link = Link.GONE

    def take_back(self) -> None:
        """It is asked again; with one more timeout, or broken set-up, it is out again."""
        self.left_out = ""
        self.conduct.may_return, self.conduct.in_a_row = False, 0

    def _quit_setup(self) -> None:
        if self.is_setting_up:
            self.place = Place.OUTSIDE


class Sites:
    """The sites of a run. It yields their records in the order of their names.

    Attributes:
        draws_seed: whether the next epoch is to draw the trees' seed, which needs more of the roster than a sum.
        invited: sites for which the parameters of the set-up were made.
    """

    def __init__(self, roster: Roster, plan: Plan) -> None:
        self._plan = plan
        self._by_node = [SiteRecord(site.name, node) for node, site in enumerate(roster.sites)]
        self._by_name = {site.name: site for site in sorted(self._by_node, key=lambda site: site.name)}
        self.draws_seed = False
        self.invited: tuple[SiteRecord, ...] = ()

    def __getitem__(self, name: str) -> SiteRecord:
        return self._by_name[name]

    def __iter__(self) -> Iterator[SiteRecord]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_node)

    def of(self, node: int) -> SiteRecord:
        """The site of a node."""
        return self._by_node[node]

    def name(self, node: int) -> str:
        """The name of a node's site."""
        return self._by_node[node].name

    def names(self, nodes: Iterable[int]) -> set[str]:
        """The names of the nodes' sites."""
        return {self.name(node) for node in nodes}

    @property
    def refusals(self) -> dict[str, str]:
        """Those that have refused, and the code."""
        return {site.name: site.refusal for site in self if site.has_refused}

    @property
    def left_out(self) -> dict[str, str]:
        """Those that are asked no more, and why."""
        return {site.name: site.left_out for site in self if site.left_out}

    @property
    def available(self) -> set[str]:
        """Those that could be in a new epoch: ready, and an answer can be waited for."""
        return {site.name for site in self if site.is_ready and site.is_heard}

    @property
    def is_any_returning(self) -> bool:
        """Whether a site is waited for that was in the epoch before the coordinator was started again."""
        return any(site.link is Link.RETURNING for site in self)

    def stop_waiting(self) -> None:
        """Those that have not come back since the coordinator was started again are waited for no more."""
        for site in self:
            if site.link is Link.RETURNING:
                site.link = Link.GONE

    def begin_epoch(self, members: set[str]) -> None:
        """A set-up begins with these sites; all others are outside until the next one."""
        self.invited = tuple(site for site in self if site.name in members)
        for site in self:
            site.place = Place.SETTING_UP if site.name in members else Place.OUTSIDE
            if site.link is Link.AWAY:
                site.link = Link.GONE

    def begin_slot(self) -> None:
        """No site has the spec of the slot, or the releases that end the run."""
        for site in self:
            site.spec = Asked.NO

    # What a site that costs the others too much may still do ---------------------------------------------------------

    @property
    def n_believed(self) -> int:
        """So many sites are believed: more than are taken to lie, and never one alone."""
        return max(2, default_colluders(len(self)) + 1)

    @property
    def is_journal_doubted(self) -> bool:
        """Whether several sites say that they have given or hold more than the journal knows of, or other releases."""
        return sum(site.is_doubting for site in self) >= self.n_believed

    def to_take_back(self) -> SiteRecord | None:
        """Of those who were left out and may return, the one that has cost least."""
        among = (site for site in self if site.left_out and site.conduct.may_return and site.is_there and site.is_ready)
        return min(among, key=lambda site: (site.conduct.weight, site.name), default=None)

    def agreeing(self) -> set[str]:
        """The available sites of whom no two failed to acknowledge each other in two set-ups: for a new epoch.

        A site that is an end of several such pairs goes first. Of a pair that is left both ends go, because one of
        them has failed and no other site sees which: a hostile site that does this to an honest one goes with it, and
        can do it to no other. Where too few would be left, only the end that has cost more goes.
        """
        among = self.available
        odds = {
            (one, other)
            for one in among
            for other, count in self[one].conduct.unacknowledged.items()
            if other in among and count >= MOST_UNACKNOWLEDGED
        }
        rest = set(among)
        while True:
            ends = Counter(site for pair in odds if rest.issuperset(pair) for site in set(pair))
            worst = max(ends, key=lambda site: (ends[site], self[site].conduct.weight, site), default="")
            # A pair may be noted at both of its ends, which is still one pair.
            others = {site for pair in odds if worst in pair and rest.issuperset(pair) for site in pair} - {worst}
            if len(others) < 2:
                break
            rest.remove(worst)
        rest -= {site for pair in odds if rest.issuperset(pair) for site in pair}
        if len(rest) >= self.least:
            return rest
        kept = set(among)
        while pairs := [pair for pair in odds if kept.issuperset(pair)]:
            kept.remove(max((site for pair in pairs for site in pair), key=lambda s: (self[s].conduct.weight, s)))
        return kept

    def said_of_them(self) -> str:
        """Which sites have cost the others how much, as the end of a sentence."""
        texts = ((site.name, site.conduct.text()) for site in self)
        return "".join(f"; {name} {text}" for name, text in texts if text)

    @property
    def least(self) -> int:
        """Sites without which no epoch is set up."""
        smallest = SMALLEST_NOISED_COHORT if self._plan.privacy.noise == "distributed" else SMALLEST_COHORT
        return max(self._plan.federation.min_sites, smallest, origin_members(len(self)) if self.draws_seed else 0)

    def too_few(self) -> AggregationError:
        """The error for a run that cannot begin or go on for want of sites."""
        said = "".join(f"; {site} refused: {code}" for site, code in self.refusals.items())
        said += self.said_of_them()
        why = "and as many as secure aggregation's threshold"
        if self.draws_seed:
            why = 'for with structure_seed = "joint" more than two thirds of the roster draw the trees\' seed'
        return AggregationError(
            "too-few-sites", n_ready=len(self.available), n_sites=len(self), said=said, least=self.least, why=why
        )


# The run --------------------------------------------------------------------------------------------------------------


class RunEventKind(StrEnum):
    """What happened."""

    JOINED = "joined"
    LEFT = "left"
    READY = "ready"
    DEFERRED = "deferred"
    REFUSED = "refused"
    SILENT = "silent"
    LATE = "late"
    COMPLAINT = "complaint"
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
        round: the exchange in which it happened.
        site: the site that it is about, or "".
        code: why, as a code word; for a phase, its name.
    """

    kind: RunEventKind
    round: int
    site: str = ""
    code: str = ""


Observer = Callable[[RunEvent], None]

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
        survey: what to find before there is a plan; `plan` is the task's then.
    """

    plan: Plan
    roster: Roster
    identity: Identity
    noise: NoiseSource
    entropy: Entropy
    observer: Observer = lambda _: None
    evaluation: EvaluatedModel | None = None
    survey: SurveyTask | None = None

    @property
    def task(self) -> Task:
        """What the run is for."""
        if self.survey is not None:
            return self.survey
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
        if isinstance(self.task, TrainingTask):
            self.ledger = prepared_ledger(self.plan)
        self.replica = Replica(self.task)
        self.checks: ReleaseChecks = checks_of(self.task)
        self.sites = Sites(self.setup.roster, self.plan)

    # What happens ----------------------------------------------------------------------------------------------------

    def tell(self, kind: RunEventKind, site: str = "", code: str = "") -> None:
        """Tell the observer."""
        self.setup.observer(RunEvent(kind, len(self.releases), site, code))

    def enter(self, state: RunState) -> None:
        """A phase begins."""
        self.state, self.is_stalled, self.prepared = state, False, {}
        self.n_phases += 1
        for site in self.sites:
            site.has_answered = False
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
        for site in self.sites:
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

        def ending() -> Message:
            digest, seed = self.replica.result_digest(), self.replica.structure_seed
            if self.salvaged is None:
                return Finished(n_releases, fresh, digest, seed)
            return Salvaged(n_releases, fresh, digest, seed, self.salvaged.code)

        self.send(site, self._prepared(len(fresh), ending))

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


def invitation_to(task: Task, run_id: bytes) -> Invitation | EvaluationInvitation | SurveyInvitation:
    """The message that asks a site to take part."""
    if isinstance(task, SurveyTask):
        return SurveyInvitation(run_id, task.asked.KIND, task.asked.to_bytes())
    plan = json.dumps(task.plan.to_dict(), sort_keys=True, separators=(",", ":")).encode()
    if isinstance(task, EvaluationTask):
        return EvaluationInvitation(run_id, plan, task.model, task.epsilon, task.delta, task.first_round, task.noise)
    return Invitation(run_id, plan)


# The journal ----------------------------------------------------------------------------------------------------------
# What was said and released, on the disk before anyone can see it.
#
# A coordinator that was killed and started again reads the journal and goes on where it was: the same run, the same
# epoch, the same spec and manifest of the open slot, the same releases. Noise is drawn once for each purpose, because
# a release is here before it is anywhere else.
#
# An exchange costs two writes that wait for the disk, and both must: one of the uploads with the manifest, for there
# may never be a second manifest; one of the release with the next slot's spec, for noise may be drawn only once.

_SCHEMA = """
create table if not exists run (
    run_id blob primary key, plan_digest text not null, roster blob not null, attempt integer not null,
    epoch blob, origin blob, model_digest blob, given_up text, salvaged text
);
create table if not exists slots (run_id blob primary key, next_slot integer not null, slot blob);
create table if not exists releases (
    round integer primary key, purpose text not null unique, content blob not null, entry text not null,
    survivors text not null
);
create table if not exists burnt (round integer, cohort text, masked text, primary key (round, cohort, masked))
"""
_VERSION = 9
_ENTRIES = "select entry from releases order by round"
_NO_SLOTS: Statement = ("update slots set slot = null, next_slot = 0", ())
_CLOSED_SLOT: Statement = ("update slots set slot = null", ())


@dataclass(frozen=True)
class JournalledRelease:
    """A release, its line in the ledger, and the sites whose vectors are in it."""

    release: IntVector
    entry: Release
    survivors: tuple[str, ...]


@dataclass(frozen=True)
class BurntSlot:
    """A slot that was given up before its manifest: its round, its epoch, and the nodes whose vectors had come."""

    round: int
    cohort: Cohort
    masked: frozenset[int]


@dataclass(frozen=True)
class JournalledRun:
    """A run as the journal has it: `view` is the epoch's, `slot` the open slot's aggregator, and `origin` the epoch
    whose nonces seed the trees. With `salvage` only its first releases are in the model; the others were paid for.
    """

    run_id: bytes
    attempt: int
    next_slot: int
    view: EpochView | None
    origin: EpochView | None
    slot: Aggregator | None
    releases: tuple[JournalledRelease, ...]
    result_digest: bytes | None
    salvage: Salvage | None = None
    burnt: tuple[BurntSlot, ...] = ()


class Journal:
    """One run's journal in one file; every method that writes returns when it is on the disk.

    Raises:
        EnvironmentFault: it cannot be read or written; nothing has changed then.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path, _SCHEMA, stored_version(_VERSION))

    def load(self, task: Plan | Task, roster: Roster) -> JournalledRun | None:
        """The run in the journal, or None in a new one; UsageError for a run of another task or roster.

        Args: task: what the run is for; a plan stands for its training.
        Raises EnvironmentFault `corrupt-state` when what is stored cannot be what was written.
        """
        rows = self._database.rows(
            "select run_id, plan_digest, roster, attempt, next_slot, epoch, origin, slot, model_digest, given_up,"
            " salvaged from run join slots using (run_id)"
        )
        if not rows:
            return None
        run_id, task_digest, roster_bytes, attempt, next_slot, epoch, origin, slot, digest, given_up, salvaged = rows[0]
        if task_digest != task.digest or roster_bytes != roster.to_bytes():
            raise UsageError("journal-of-another-run", path=self._database.path)
        if given_up is not None:
            raise UsageError("journal-given-up", path=self._database.path, given_up=given_up)
        try:
            view = None if epoch is None else EpochView.from_bytes(without_hash(epoch))
            first = None if origin is None else EpochView.from_record(without_hash(origin))
            opened = None if slot is None or view is None else Aggregator.restore(view, slot)
            salvage = None if salvaged is None else Salvage(**json.loads(salvaged))
            parts = (view, first, opened, self._releases(), digest, salvage, self._burnt())
        except (Refusal, OwnMistake, ValueError, KeyError, TypeError) as fault:
            # The disk's fault: a refusal would blame a site for what it did not send.
            raise EnvironmentFault("journal-damaged", path=self._database.path) from fault
        return JournalledRun(run_id, attempt, next_slot, *parts)

    def is_in_the_way(self, task: Task, roster: Roster, *, is_new: bool) -> bool:
        """Whether it holds a run that makes room for a new one: any with `is_new`, else one that has released nothing
        and cannot go on, for it was given up, or was for another task or roster.
        """
        rows = self._database.rows("select plan_digest, roster, given_up from run")
        if not rows or is_new:
            return bool(rows)
        task_digest, roster_bytes, given_up = rows[0]
        cannot_go_on = given_up is not None or task_digest != task.digest or roster_bytes != roster.to_bytes()
        return cannot_go_on and not self._database.rows("select 1 from releases")

    def entries(self) -> tuple[Release, ...]:
        """What was released, as a ledger has it, whatever became of the run; without what was released before it."""
        return tuple(Release.from_dict(json.loads(text)) for (text,) in self._database.rows(_ENTRIES))

    def end(self, code: str) -> bytes:
        """Give the run up, unless it was already, and return its number; UsageError where there is none to give up."""
        rows = self._database.rows("select run_id, model_digest, given_up from run")
        if not rows or rows[0][1] is not None:
            raise UsageError("run-over" if rows else "no-open-run", path=self._database.path)
        if rows[0][2] is None:
            self.commit(given_up=code)
        run_id: bytes = rows[0][0]
        return run_id

    def begin(self, run_id: bytes, task: Task, roster: Roster) -> None:
        """A run begins; written before anyone is invited."""
        self._database.write(
            (
                "insert into run values (?, ?, ?, 0, null, null, null, null, null)",
                (run_id, task.digest, roster.to_bytes()),
            ),
            ("insert into slots values (?, 0, null)", (run_id,)),
        )

    def save_attempt(self, attempt: int) -> None:
        """An epoch's set-up begins; written before its parameters are sent."""
        self._database.write(("update run set attempt = ?, epoch = null", (attempt,)), _NO_SLOTS)

    def save_epoch(self, view: EpochView, *, is_origin: bool) -> None:
        """An epoch is ready; written before the nodes hear of it. With `is_origin` its nonces seed the trees."""
        epoch = with_hash(view.to_bytes())
        statement: Statement = ("update run set epoch = ?", (epoch,))
        if is_origin:
            statement = ("update run set epoch = ?, origin = ?", (epoch, with_hash(view.record)))
        self._database.write(statement, _NO_SLOTS)

    def burn_slot(self, burnt: BurntSlot) -> None:
        """A slot was given up before its manifest; its purpose may be asked for again in another slot of the epoch, and
        in another epoch where no two sums of it could be opened.
        """
        values = (burnt.round, burnt.cohort.to_json(), json.dumps(sorted(burnt.masked)))
        self._database.write(_CLOSED_SLOT, ("insert or ignore into burnt values (?, ?, ?)", values))

    def commit(
        self,
        release: JournalledRelease | None = None,
        following: Aggregator | None = None,
        result_digest: bytes | None = None,
        given_up: str | Salvage | None = None,
    ) -> None:
        """Write down what goes out in one message: a release, and what comes after it; nothing for nothing.

        Args:
            release: what was released; its slot is closed with it.
            following: the open slot: its spec, or its uploads with the manifest.
            result_digest: of the result that the run ends with.
            given_up: why the run ends without a result, as a code; or what is salvaged of it.
        """
        statements: list[Statement] = []
        if release is not None:
            content = release.release.astype("<i8").tobytes()
            entry, survivors = json.dumps(release.entry.to_dict(), sort_keys=True), json.dumps(release.survivors)
            numbered = "insert into releases values ((select count(*) from releases), ?, ?, ?, ?)"
            statements = [(numbered, (release.entry.purpose, content, entry, survivors)), _CLOSED_SLOT]
        if following is not None:
            values = (following.to_bytes(), following.spec.slot + 1)
            statements.append(("update slots set slot = ?, next_slot = ?", values))
        if result_digest is not None:
            statements.append(("update run set model_digest = ?", (result_digest,)))
        if isinstance(given_up, Salvage):
            statements.append(("update run set salvaged = ?", (json.dumps(asdict(given_up)),)))
        elif given_up is not None:
            statements.append(("update run set given_up = ?", (given_up,)))
        if statements:
            self._database.write(*statements)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _burnt(self) -> tuple[BurntSlot, ...]:
        rows = self._database.rows("select round, cohort, masked from burnt order by rowid")
        return tuple(BurntSlot(number, Cohort.from_json(text), frozenset(json.loads(masked)))
                     for number, text, masked in rows)  # fmt: skip

    def _releases(self) -> tuple[JournalledRelease, ...]:
        rows = self._database.rows("select content, entry, survivors from releases order by round")
        return tuple(
            JournalledRelease(
                np.frombuffer(content, dtype="<i8").astype(np.int64),
                Release.from_dict(json.loads(entry)),
                tuple(json.loads(survivors)),
            )
            for content, entry, survivors in rows
        )


def open_journal(
    path: Path, task: Task, roster: Roster, *, is_new: bool = False, before_new: Callable[[], None] = lambda: None
) -> tuple[Journal, Path | None]:
    """The journal for a run at `path`, and where an older one was set aside: renamed, never deleted.

    Args:
        is_new: begin a new run even where the older one could go on, or has released something.
        before_new: called before a journal is begun or set aside; what it raises is raised, and no file has changed.

    Raises:
        EnvironmentFault: as `Journal`; code "database-locked" while a coordinator works with it.
    """
    if is_new or not path.exists():
        before_new()
    journal = Journal(path)
    if not journal.is_in_the_way(task, roster, is_new=is_new):
        return journal, None
    journal.close()
    before_new()
    if Path(f"{path}-wal").exists():
        # Renamed without it, the journal would lack its last lines; left behind, it would mix with the new one.
        raise EnvironmentFault("journal-not-closed", path=path)
    beside = (path.with_name(f"{path.name}.{number}") for number in count(1))
    aside = next(place for place in beside if not place.exists())
    path.rename(aside)
    return Journal(path), aside
