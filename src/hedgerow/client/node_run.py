"""The run that a node is in: how it sets an epoch up, answers a round, and opens the round's sum.

The node runs its own replica of the program, so it computes every query itself and masks only what it expects. A
message that needs an answer goes through one method here, from the checks to the write in the store; the answer is
returned after the write. `NodeSession` decides which message comes here.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

import numpy as np

from hedgerow.client.budget import BudgetBook
from hedgerow.client.node import ArrivalsOfRun, Node
from hedgerow.client.policy import Answers, NodeSetup, require_draws_left
from hedgerow.client.state import NodeStep, NodeStore, StoredRun
from hedgerow.errors import RemoteProtocolError
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import checks_of
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.events import Event
from hedgerow.protocol.messages import Finished, Message, MessageKind, NodeState, Payload, RoundRequest, Salvaged
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.protocol.reports import Salvage
from hedgerow.rounds import (
    HEADROOM,
    VECTOR_ID,
    bound_of_rows,
    clipped,
    least_entry_bound,
    mode_of,
    round_in,
    rows_of,
)
from hedgerow.secagg.enrolment import Enrolment
from hedgerow.secagg.guarantees import origin_members
from hedgerow.secagg.masks import LEAST_COLLUDERS, draw_shares
from hedgerow.secagg.messages import MAX_ATTEMPTS, EpochParameters, Kind, NoiseMode, Roster, RoundSpec
from hedgerow.secagg.participant import NodeContext, Participant
from hedgerow.secagg.transitions import Code, State, Step, refuse
from hedgerow.secagg.view import Cohort, EpochView
from hedgerow.trees.plausibility import SumFacts

Reply = tuple[NodeState, Message | None]
"""Where the node stands after a message, and what it sends."""
_NOTHING = NodeStep()
_STATES = {State.VECTOR_MASKED: NodeState.MASKED, State.MANIFEST_ECHOED: NodeState.ECHOED}


class NodeRun:
    """The run that a node is in.

    Args:
        setup: what the owner gives the node.
        files: the node's store, in which the run is open, and its budget book.
        stored: the run as the store has it; its participant is None where the store's was lost.
        node: answers the queries over the site's rows.

    Attributes:
        node: see above.
        replica: the node's own run of the program.
        participant: the node in the epoch that is ready; None while there is none.
        enrolment: the node in the epoch that is being set up.
        origin: digest of the epoch whose nonces seed the trees, and the seed; no other is taken in this run.
    """

    def __init__(self, setup: NodeSetup, files: tuple[NodeStore, BudgetBook], stored: StoredRun, node: Answers) -> None:
        self._setup, (self._store, self._book), self.node = setup, files, node
        self._context = NodeContext(setup.identity, setup.roster, setup.policy.secure_sums)
        self.run_id, self.task = stored.run_id, stored.task
        self.replica, self._checks = Replica(stored.task), checks_of(stored.task)
        self.participant = stored.participant
        self.enrolment: Enrolment | None = None
        self.origin: tuple[bytes, int] | None = None
        self._answered, self._masked = set(stored.answered), set(stored.masked)
        # The last round in which a vector may have left in an earlier life of this process.
        self._last_masked = self._store.last_masked(stored.run_id)
        # The answer to a round's query, with its number. It changes the node's scores, and so is computed once.
        self._vector: tuple[int, IntVector] | None = None
        # Rounds of the local model whose answer may have left with other noise, before a restart.
        self._redrawn = set[int]()
        if setup.arrivals is not None and isinstance(node, Node):
            # After a state was lost or rolled back, it is not known which files have been in rounds already.
            is_closed = self._store.spent(self.run_id) is None
            node.expect(
                ArrivalsOfRun(setup.arrivals, self.task.plan, self._store.database, self.run_id, is_closed=is_closed)
            )
        self._take_origin(stored.origin)
        for release in stored.releases:
            self._feed(release)

    @property
    def plan(self) -> Plan:
        """The task's, with who adds the noise to this run."""
        return self.task.run_plan

    @property
    def state(self) -> NodeState:
        """Where a node stands that has just come back to an epoch that is ready."""
        return NodeState.WAITING if self.participant is None else _STATES.get(self.participant.state, NodeState.WAITING)

    def leave_epoch(self) -> None:
        """The node is invited again, or the run is over: what is set up or ready counts no more."""
        self.enrolment, self.participant = None, None

    def take(self, message: Payload | RoundRequest) -> Reply:
        """Answer one message; what must survive a crash is in the store when this returns."""
        match message:
            case RoundRequest():
                return NodeState.MASKED, Payload(MessageKind.UPLOAD, self._answer_round(message))
            case Payload(MessageKind.ENROL, content):
                return NodeState.ENROLLING, Payload(MessageKind.SETUP_ANSWER, self._enrol(content))
            case Payload(MessageKind.SETUP, content):
                return self._set_up(content)
            case Payload(MessageKind.UNMASK, content):
                return self._unmask(content)
            case Payload(MessageKind.CERTIFICATE, content):
                step = self._require_participant().confirm(content)
                return NodeState.WAITING, Payload(MessageKind.ANSWER, self._taken(step))
        raise refuse(Code.OUT_OF_ORDER, peer="coordinator")

    # Setting an epoch up ---------------------------------------------------------------------------------------------

    def _enrol(self, content: bytes) -> bytes:
        parameters = EpochParameters.from_bytes(content)
        self._require_fitting(parameters)
        if self._draws_in(parameters):
            require_draws_left(self._store, self._book, self.task.plan)
        last = self._store.attempt_of(self.run_id)
        step = Enrolment.begin(self._context, content, self._setup.entropy, last)
        self._store.save_attempt(self.run_id, parameters.attempt)
        self.participant, self.enrolment = None, step.state
        return step.message or b""

    def _set_up(self, content: bytes) -> Reply:
        enrolment = self.enrolment
        if enrolment is None:
            raise refuse(Code.OUT_OF_ORDER, "No set-up is under way.", "coordinator")
        kind = content[4] if len(content) > 4 else 0
        if kind == Kind.READY_LIST:
            ready = enrolment.finish(self._context, content).state
            origin = self._origin_in(ready.view)
            self.participant, self.enrolment = ready, None
            self._store.save(self.run_id, NodeStep(participant=self.participant, origin=origin))
            self._take_origin(origin)
            return NodeState.WAITING, None
        if kind == Kind.KEY_LIST:
            step = enrolment.reveal(self._context, content)
            if self._draws_in(enrolment.parameters):
                # Before the nonce leaves: who has it knows what this set-up draws, and may then let the run go.
                self._book.note_draw(self.task.plan.digest, self.run_id, enrolment.parameters.attempt)
        elif kind == Kind.NONCE_DELIVERY:
            step = enrolment.share(self._context, content, self._setup.entropy)
        else:
            step = enrolment.acknowledge(self._context, content)
        self.enrolment = step.state
        return NodeState.ENROLLING, Payload(MessageKind.SETUP_ANSWER, step.message or b"")

    def originate(self, record: bytes) -> None:
        """Take note of the seed that others drew before this node came.

        Raises:
            Refusal: for what they did not sign.
            RemoteProtocolError: this node knows of another seed (code "structure-seed").
        """
        policy = self._context.policy

        def require(roster: Roster, parameters: EpochParameters) -> None:
            if roster != self._context.roster or parameters.run_id != self.run_id:
                raise refuse(Code.ROSTER_MISMATCH, "The seed was drawn in another run.", "coordinator")
            if not 1 <= parameters.attempt <= MAX_ATTEMPTS:
                raise refuse(Code.STALE_ATTEMPT, f"The seed is of attempt {parameters.attempt}.", "coordinator")
            self._require_fitting(parameters)
            policy.require(parameters, len(roster.sites))

        view = EpochView.from_record(record, require)
        policy.require(view.parameters, view.guarantees.n_nodes)
        if self.origin is not None and self.origin[0] != view.digest:
            raise RemoteProtocolError("structure-seed")
        origin = self._origin_in(view)
        self._store.save(self.run_id, NodeStep(origin=origin))
        self._take_origin(origin)

    def _require_fitting(self, parameters: EpochParameters) -> None:
        """Raises Refusal PARAMETERS_REFUSED for an epoch that is not of this run and its noise."""
        if parameters.run_id != self.run_id or parameters.noise is not mode_of(self.plan):
            raise refuse(Code.PARAMETERS_REFUSED, "They are for another run or another noise.", "coordinator")
        if parameters.noise is NoiseMode.DISTRIBUTED and parameters.wishes.n_colluders < LEAST_COLLUDERS:
            raise refuse(Code.PARAMETERS_REFUSED, "Another site's own share of noise is counted.", "coordinator")

    def _draws_in(self, parameters: EpochParameters) -> bool:
        """Whether the nonces of a set-up draw anything: the trees' seed, where there is none yet, or a sparse graph."""
        return (self.plan.has_joint_structure and self.origin is None) or parameters.wishes.is_sparse

    def _origin_in(self, view: EpochView) -> tuple[bytes, int] | None:
        """What an epoch says about the seed of the trees, where that is news; `_take_origin` when it is on the disk.

        Raises:
            Refusal: COHORT_TOO_SMALL; so few sites are in it that they could have drawn until they liked the seed.
        """
        if not self.plan.has_joint_structure or self.origin is not None:
            return None
        if not view.can_seed_trees:
            there, n_sites = view.guarantees.n_nodes, len(view.roster.sites)
            said = f"{there} of {n_sites} sites drew the seed of the trees; {origin_members(n_sites)} are needed."
            raise refuse(Code.COHORT_TOO_SMALL, said, "coordinator")
        return view.digest, view.public_seed

    def _take_origin(self, origin: tuple[bytes, int] | None) -> None:
        """Begin the program with the seed of the trees; nothing for None."""
        if origin is not None:
            self.origin = origin
            self.replica.begin(origin[1], origin[0])

    # Rounds ----------------------------------------------------------------------------------------------------------

    def _answer_round(self, request: RoundRequest) -> bytes:
        """The masked vector of a round; what it costs is in the store when this returns."""
        participant = self._require_participant()
        self._require_structure(request.structure_seed)
        fresh = self._take_releases(request.round, request.releases)
        query = self.replica.query
        if query is None:
            raise refuse(Code.PURPOSE_UNEXPECTED, "The program asks nothing any more.", "coordinator")
        if request.round in self._answered:
            raise refuse(Code.PURPOSE_ANSWERED, peer="coordinator")
        self._setup.policy.check_query(query)
        self._book.require_reserved(self.run_id)
        cohort = Cohort.of(participant.view)
        step, cost = self._mask(participant, cohort, query, request.signed_spec)
        if fresh and not step.persist:
            # The repeated vector is of an earlier round than the one that these releases lead to.
            raise refuse(Code.SLOT_REUSED, "Its spec was answered, and comes with new releases.", "coordinator")
        return self._taken(step, NodeStep(releases=fresh, spent=(request.round, cost), masked=cohort))

    def _mask(
        self, participant: Participant, cohort: Cohort, query: Query, signed_spec: bytes
    ) -> tuple[Step[Participant], Event]:
        """The step that answers a query under masks, if the signed spec says what this node's own replica says.

        Returns:
            The step, and what the round's release costs.

        Raises:
            Refusal, OwnMistake: as `Participant.mask`, and PURPOSE_ANSWERED where an earlier epoch's sum of the same
                round could be opened as well.
        """
        number = self.replica.n_releases
        if any(earlier == number and not cohort.excludes(other) for earlier, other in self._masked):
            said = "Its vector left in an epoch whose other nodes could still open it."
            raise refuse(Code.PURPOSE_ANSWERED, said, "coordinator")
        mode, guarantees = mode_of(self.plan), participant.view.guarantees
        if mode is NoiseMode.LOCAL and not self._holds_answer() and self._may_have_left(number):
            self._redrawn.add(number)
        noise, expected = round_in(query, self.plan, guarantees, self.replica.context())
        shares = None
        if mode is NoiseMode.DISTRIBUTED and noise.variance:
            names = (expected.purpose, expected.model, expected.vectors, expected.noise)
            spec = RoundSpec(participant.view.digest, 0, *names)
            label, source = f"{query.purpose}/share of {self._setup.site}", self._setup.noise
            shares = draw_shares(spec, guarantees, lambda v, length: source.sample(isqrt(int(v)), length, label))
        elif mode is NoiseMode.DISTRIBUTED:
            shares = {VECTOR_ID: np.zeros(query.length, dtype=np.int64)}
        vector = self._answer(query)
        own = bound_of_rows(query, self.plan, noise.variance, self._setup.max_rows)
        vectors = {VECTOR_ID: clipped(vector, expected, own) if noise.variance else vector}
        step = participant.mask(self._context, signed_spec, expected, vectors, self._setup.entropy, shares)
        if number in self._redrawn and step.persist:
            # Not a repetition of what was sent. Masks are no part of the promise in the local model: another draw of
            # the records' noise would be another release of the same sums.
            raise refuse(Code.PURPOSE_ANSWERED, "Its answer may have left already, with other noise.", "coordinator")
        self._masked.add((number, cohort))
        return step, noise.event

    def _may_have_left(self, number: int) -> bool:
        """Whether a round's vector left; a database that is older than its counter does not know of the last ones."""
        return number <= self._last_masked or any(earlier == number for earlier, _ in self._masked)

    def _holds_answer(self) -> bool:
        return self._vector is not None and self._vector[0] == self.replica.n_releases

    def _answer(self, query: Query) -> IntVector:
        """The site's own sums; computed once for a query, however often its round is repeated."""
        if self._vector is None or not self._holds_answer():
            self._vector = (self.replica.n_releases, self.node.answer(query))
        return self._vector[1]

    def _unmask(self, content: bytes) -> Reply:
        """The shares that open a round's sum, or the echo that comes before them where the epoch wants one."""
        step = self._require_participant().unmask(self._context, content)
        number = self.replica.n_releases
        answers = any(record.fact == "purpose-answered" for record in step.persist)
        message = self._taken(step, NodeStep(answered=number if answers else None))
        if answers:
            self._answered.add(number)
        if step.state.state is State.STOPPED:
            raise step.complaints[0]
        if step.state.state is State.MANIFEST_ECHOED:
            return NodeState.ECHOED, Payload(MessageKind.ECHO, message)
        return NodeState.WAITING, Payload(MessageKind.ANSWER, message)

    def _taken(self, step: Step[Participant], beside: NodeStep = _NOTHING) -> bytes:
        """The message of a step; the store has what it changes, and what changes beside it, when this returns."""
        if step.persist:
            self._store.save(self.run_id, replace(beside, participant=step.state))
        self.participant = step.state
        return step.message or b""

    def _require_participant(self) -> Participant:
        if self.participant is None:
            raise refuse(Code.OUT_OF_ORDER, "No epoch is ready.", "coordinator")
        return self.participant

    # Releases --------------------------------------------------------------------------------------------------------

    def finish(self, message: Finished | Salvaged) -> Salvage | None:
        """Take the last releases in; afterwards `replica.result` is the run's.

        Returns:
            Why and how far the run came, where it ends early.

        Raises:
            RemoteProtocolError: "not-salvageable", or "model-differs" for another result than this node's own.
        """
        self._require_structure(message.structure_seed)
        fresh = self._take_releases(message.n_releases, message.releases)
        salvaged = None
        if isinstance(message, Salvaged):
            if not (self.plan.federation.salvage and self.replica.end_early()):
                raise RemoteProtocolError("not-salvageable")
            salvaged = Salvage(message.code, message.n_releases, self.task.n_exchanges)
        if self.replica.query is not None or self.replica.result_digest() != message.result_digest:
            raise RemoteProtocolError("model-differs")
        self._store.save(self.run_id, NodeStep(releases=fresh, is_salvaged=salvaged is not None))
        return salvaged

    def _require_structure(self, seed: int) -> None:
        """Raises RemoteProtocolError (code "structure-seed") unless the trees are made from the seed that the
        coordinator names: the plan's, or the one that the sites have drawn as far as this node saw.
        """
        if not self.replica.has_begun_with(seed):
            raise RemoteProtocolError("structure-seed")

    def _take_releases(self, total: int, releases: tuple[IntVector, ...]) -> tuple[tuple[int, IntVector], ...]:
        """Feed the replica what it lacks of `total` releases; returns what was new, by round.

        Raises:
            RemoteProtocolError: code "round-out-of-step"; the coordinator counts otherwise.
        """
        first = total - len(releases)
        if not first <= self.replica.n_releases <= total:
            raise RemoteProtocolError(
                "round-out-of-step", total=total, n_sent=len(releases), n_held=self.replica.n_releases
            )
        fresh = []
        for number, release in enumerate(releases, start=first):
            if number == self.replica.n_releases:
                self._feed(release)
                fresh.append((number, release))
        return tuple(fresh)

    def _feed(self, release: IntVector) -> None:
        """Take a release in: the round's update, unless the round was answered here, then the program's next step.

        Raises:
            RemoteProtocolError: it is no release of this round, or none of sums over records.
        """
        query = self.replica.query
        if query is not None and release.shape == (query.release_length,) and release.dtype == np.int64:
            self._require_plausible(query, release)
        if query is not None and not self._holds_answer():
            self.node.finish(query)
        self.replica.feed(release)
        self._vector = None

    def _require_plausible(self, query: Query, release: IntVector) -> None:
        """Ask what the coordinator has to ask of every release; this node does not rely on it.

        Whose vectors were in a sum is not known here, nor how many shares of noise: more of it is allowed for, and
        totals of rounds are not compared.
        """
        mode, n_sites = mode_of(self.plan), len(self._setup.roster.sites)
        noise = noise_of(query, 1 if mode is NoiseMode.DISTRIBUTED else None, is_local=mode is NoiseMode.LOCAL)
        entry_bound = least_entry_bound(query, self.plan, noise.variance, n_sites, is_known=False)
        facts = SumFacts(HEADROOM * rows_of(self.plan), entry_bound, noise, n_sites)
        fault = self._checks.fault_in(query, release, facts)
        if fault:
            raise RemoteProtocolError("release-implausible", round=query.purpose.round, fault=fault)
