"""The phases of a run on the coordinator's side: set an epoch up, open a slot, close it, release, finish.

Everything is journalled before the messages that depend on it are queued.
"""

from __future__ import annotations

from hedgerow.protocol.errors import AggregationError, HedgerowError, RemoteProtocolError
from hedgerow.protocol.pure_queries import SplitSelection
from hedgerow.protocol.run_messages import (
    Abandoned,
    MessageKind,
    Payload,
    Stop,
)
from hedgerow.protocol.run_script import RunState
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.epoch_server import EpochSetup
from hedgerow.secagg.fixed_point import wrapped
from hedgerow.secagg.query_round import VECTOR_ID
from hedgerow.secagg.refusals import Abandoned as SumAbandoned
from hedgerow.secagg.refusals import refuse
from hedgerow.secagg.roster import MAX_ATTEMPTS
from hedgerow.secagg.transitions import Code, State
from hedgerow.secagg.view import EpochView
from hedgerow.server.coordinator import Outcome, Releaser, Summed, require_plausible
from hedgerow.server.events import RunEventKind
from hedgerow.server.journal import Journal, JournalledRelease, JournalledRun
from hedgerow.server.outbox import Outgoing as Outgoing
from hedgerow.server.outbox import RunOutbox
from hedgerow.server.rounds import (
    COLLECTIONS,
    Following,
    certificate_of,
    check_rounds,
    check_words,
    cohort_of,
    open_slot,
    parameters_of,
    slots_for,
)
from hedgerow.server.run_setup import RunSetup as RunSetup
from hedgerow.training.evaluation_estimates import Evaluation

_MORE_SHARES_MAY_HELP = {Code.TOO_FEW_ANSWERS, Code.SECRET_UNRECOVERABLE}


class RunPhases(RunOutbox):
    """What the coordinator does in each phase; `RunSession` decides when."""

    def __init__(self, setup: RunSetup, journal: Journal) -> None:
        super().__init__(setup, journal)
        check_words(self._task, len(setup.roster.sites))
        check_rounds(self._task, len(setup.roster.sites))
        self.sites.draws_seed = setup.plan.has_joint_structure
        stored = journal.load(self._task, setup.roster)
        if stored is None:
            self.run_id = setup.entropy(32)
            journal.begin(self.run_id, self._task, setup.roster)
        else:
            self.run_id = stored.run_id
            self._resume(stored)

    def _resume(self, stored: JournalledRun) -> None:
        if stored.origin is not None:
            self._begin_trees(stored.origin)
        for line in stored.releases:
            self._take(line)
        self._attempt, self._next_slot = stored.attempt, stored.next_slot
        self._view, self._slot = stored.view, stored.slot
        if self._view is not None:
            self.sites.returning = {self.sites.name(node) for node in self._view.ready}
        if stored.result_digest is not None:
            self._enter(RunState.FINISHING)
        elif self._slot is not None:
            self._certificate = certificate_of(self._slot)
            self._enter(COLLECTIONS[self._slot.state])
        elif self._view is not None:
            self._stall()

    def _enter(self, state: RunState) -> None:
        self.state, self.is_stalled = state, False
        self.n_phases += 1
        self.sites.answered = set()
        self._tell(RunEventKind.PHASE, code=state.value)

    def _stall(self) -> None:
        """Wait for sites to return; every message is a chance to go on."""
        if not self.is_stalled:
            self.is_stalled = True
            self.n_phases += 1
            self._tell(RunEventKind.PHASE, code="waiting-for-sites")

    def _begin_setup(self) -> None:
        """Set a new epoch up with all sites that are ready."""
        members = self.sites.heard(self.sites.ready)
        if len(members) < self.sites.least(self._setup.plan):
            raise self.sites.too_few(self._setup.plan)
        if self._attempt >= MAX_ATTEMPTS:
            raise AggregationError(
                f"No epoch was ready after {MAX_ATTEMPTS} attempts.", remedy="Look at the sites' logs.", code="no-epoch"
            )
        self._attempt += 1
        n_slots = slots_for(self._task, len(self._releases), len(members))
        identity = (self.run_id, self._attempt, self._setup.roster.hash())
        parameters = parameters_of(self._setup.plan, identity, n_slots, len(members))
        self._journal.save_attempt(self._attempt)
        self._view = self._slot = None
        self.sites.begin_epoch(members)
        self._epoch_setup = EpochSetup(self._setup.roster, parameters)
        self._enter(RunState.SETTING_UP)
        for site in sorted(members):
            self._send_origin(site)
            self._send(site, Payload(MessageKind.ENROL, parameters.to_bytes()))

    def _advance_setup(self) -> None:
        setup = self._epoch_setup
        if setup is None:
            return
        try:
            if setup.state is State.COLLECTING_KEYS:
                if len(setup.bundles) < self.sites.n_invited:
                    # The parameters were made for more sites, and fewer need others to be as safe.
                    raise refuse(Code.TOO_FEW_READY, f"{len(setup.bundles)} of {self.sites.n_invited}.")
                self._epoch_setup, listed = setup.close_keys()
                self._to_members(dict.fromkeys(self._epoch_setup.bundles, listed))
            elif setup.state is State.COLLECTING_NONCES:
                self._epoch_setup, listed = setup.close_nonces()
                self._to_members(dict.fromkeys(self._epoch_setup.bundles, listed))
            elif setup.state is State.COLLECTING_SHARES:
                self._epoch_setup, deliveries = setup.close_shares()
                self._to_members(deliveries)
            else:
                self._view, listed = setup.close_acknowledgements()
                is_origin = self._origin is None
                if is_origin:
                    self._begin_trees(self._view)
                self._journal.save_epoch(self._view, is_origin=is_origin)
                self._next_slot, self._epoch_setup = 0, None
                self._announce(self._view, listed)
                self._open_round()
        except (SumAbandoned, RemoteProtocolError) as fault:
            # Somebody fell silent in the middle; those who are there begin again.
            self._tell(RunEventKind.ABANDONED, code=fault.code)
            self._epoch_setup = None
            self._enter(RunState.GATHERING)

    def _begin_trees(self, origin: EpochView) -> None:
        """The first epoch that was ready seeds the trees, whatever becomes of it: its sites take no other seed."""
        self._origin, self.sites.draws_seed = origin, False
        self._replica.begin(origin.public_seed, origin.digest)

    def _announce(self, view: EpochView, ready_list: bytes) -> None:
        """Tell the ready nodes that they are, and invite the others anew."""
        inside = {self.sites.name(node) for node in view.ready} & self.sites.members
        for site in sorted(self.sites.members - inside):
            self._invite(site)
        self.sites.outsiders = self.sites.names - inside
        for site in sorted(inside):
            self._send(site, Payload(MessageKind.SETUP, ready_list))

    def _to_members(self, messages: dict[int, bytes]) -> None:
        self._enter(RunState.SETTING_UP)
        for node, message in messages.items():
            if self.sites.name(node) in self.sites.members:
                self._send(self.sites.name(node), Payload(MessageKind.SETUP, message))

    def _open_round(self, released: JournalledRelease | None = None) -> None:
        """Open a slot for the query that is next; stall when too few sites are there for any.

        Args: released: what was released before it, to be journalled with the slot, or with the end of the run, before
            anyone hears of either.
        """
        following, there = self._following()
        slot = self._new_slot() if following is Following.SLOT else None
        digest = self._result_digest() if following is Following.END else None
        if released is not None:
            self._journal.commit(len(self._releases) - 1, released, slot, digest)
            self._tell(RunEventKind.RELEASED)
        elif slot is not None:
            self._journal.save_slot(slot)
        elif digest is not None:
            self._journal.finish(digest)
        if slot is not None:
            self._slot, self._certificate, self._requests = slot, b"", {}
            self._next_slot += 1
            self.sites.asked = set()
            self._enter(RunState.COLLECTING_VECTORS)
            for site in sorted(there):
                self._send_request(site)
        elif following is Following.END:
            self._begin_finishing()
        elif following is Following.EPOCH:
            self._begin_setup()
        elif following is Following.WAIT:
            self._stall()

    def _following(self) -> tuple[Following, set[str]]:
        """What comes after a release or a set-up, and the sites of the epoch that are there."""
        view = self._view
        if self._replica.query is None:
            return Following.END, set()
        if view is None:
            return Following.NOTHING, set()
        there = self.sites.heard({self.sites.name(node) for node in view.ready} - self.sites.outsiders)
        is_full = self._next_slot >= view.parameters.n_slots
        if self.sites.returning:
            return Following.WAIT, there
        ready = self.sites.heard(self.sites.ready)
        is_short = len(there) < view.guarantees.min_survivors
        is_worth_it = ready > there and (is_short or self._attempt < MAX_ATTEMPTS // 2)
        if len(ready) >= self.sites.least(self._setup.plan) and (is_full or is_worth_it):
            # An epoch takes nobody in: those who came later, or lost their state, join in a new one.
            return Following.EPOCH, there
        return (Following.WAIT if is_short else Following.SLOT), there

    def _new_slot(self) -> Aggregator | None:
        query, place = self._replica.query, (self._next_slot, self._replica.context())
        if query is None or self._view is None:
            return None
        return open_slot(self._setup.plan, self._view, self._setup.identity, query, place)

    def _close_vectors(self) -> None:
        slot = self._require_slot()
        first = slot.openers(self._survivors_heard(slot))
        try:
            slot, requests = slot.close_vectors(self._setup.identity, first)
        except SumAbandoned as fault:
            # No manifest was sent, so nothing of this slot can ever be opened: the purpose may have another one.
            self._journal.burn_slot()
            self._slot = None
            self._tell(RunEventKind.ABANDONED, code=fault.code)
            for site in sorted(self.sites.connected):
                self._send(site, Abandoned(self._replica.n_releases, fault.code))
            self._stall()
            self._open_round()
            return
        self._journal.save_slot(slot)
        self._slot = slot
        self.sites.openers, self.sites.tried = set(), set()
        self._enter(COLLECTIONS[slot.state])
        self._ask_openers(requests)

    def _close_echoes(self) -> None:
        slot = self._require_slot()
        try:
            slot, certificate = slot.close_echoes()
        except SumAbandoned:
            self._stall()
            return
        self._journal.save_slot(slot)
        self._slot, self._certificate = slot, certificate
        self._enter(RunState.COLLECTING_ANSWERS)
        # Who has lost its state since it echoed, or before, was invited anew: it has no slot that this could open.
        for site in sorted({self.sites.name(node) for node in slot.uploads} - self.sites.outsiders):
            self._send(site, Payload(MessageKind.CERTIFICATE, certificate))

    def _release(self) -> None:
        """Unmask, add the noise, journal, and only then go on: what follows may be seen."""
        slot, query = self._require_slot(), self._replica.query
        if query is None or self._view is None:
            return
        try:
            _, opened = slot.release()
        except SumAbandoned as fault:
            # The same manifest is repeated to whoever returns; there is never a second one.
            if fault.reason in _MORE_SHARES_MAY_HELP and self._ask_others():
                return
            if fault.reason is not Code.TOO_FEW_ANSWERS:
                raise
            self._stall()
            return
        cohort = cohort_of(self._setup.plan, self._view)
        releaser = Releaser(self._ahead.noise, is_local=self._setup.plan.privacy.noise == "local")
        release = releaser.release(query, opened.sums[VECTOR_ID], cohort)
        if not isinstance(query, SplitSelection):
            release = wrapped(release, slot.spec.vectors[0].width)
        (entry,) = releaser.ledger.releases
        survivors = tuple(self.sites.name(node) for node in opened.survivors)
        line = JournalledRelease(release, entry, survivors)
        try:
            summed = Summed(cohort, self._view.guarantees.n_nodes, survivors)
            require_plausible(self._checks, query, self._setup.plan, release, summed)
        except SumAbandoned as fault:
            # That the run ends is told to all, so what it follows from is a release like any other: it is written down
            # with its cost, and the run given up, in one write.
            self._ledger = self._ledger.append(entry)
            self._journal.commit(len(self._releases), line, given_up=fault.code)
            raise
        self._take(line)
        self._slot = None
        self._open_round(line)

    def _result_digest(self) -> bytes:
        """What tells the result of the run; raises PrivacyError when there may be none."""
        self._conclude()
        return self._replica.result_digest()

    def _begin_finishing(self) -> None:
        self._enter(RunState.FINISHING)
        self.sites.asked = set()
        for site in sorted(self.sites.heard(self.sites.ready)):
            self._send_finished(site)

    def _conclude(self) -> Outcome:
        """The outcome; raises PrivacyError when the releases cost more than the plan allows."""
        model = self._setup.evaluation
        if model is not None and isinstance(self._replica.result, Evaluation):
            self.outcome = model.outcome(self._ledger, self._replica.result, self._setup.noise)
            return self.outcome
        report = self._ahead.report_on(self._ledger)
        self.outcome = Outcome(self._replica.plan, self._replica.ensemble, self._ledger, report)
        return self.outcome

    def _end(self) -> None:
        self._conclude()
        self._enter(RunState.OVER)
        self._tell(RunEventKind.FINISHED)

    def _give_up(self, fault: HedgerowError) -> None:
        self.failure = fault
        self._journal.give_up(fault.code)
        for site in sorted(self.sites.connected):
            self._send(site, Stop(fault.code))
        self._enter(RunState.OVER)
        self._tell(RunEventKind.STOPPED, code=fault.code)
