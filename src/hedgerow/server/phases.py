"""The phases of a run on the coordinator's side: set an epoch up, open a slot, close it, release, finish.

Everything is journalled before the messages that depend on it are queued.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from hedgerow.errors import AggregationError, HedgerowError, PrivacyError, RemoteProtocolError
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.protocol.messages import (
    Abandoned,
    MessageKind,
    Payload,
    Stop,
)
from hedgerow.protocol.queries import SplitSelection
from hedgerow.protocol.results import Salvage
from hedgerow.protocol.script import RunState
from hedgerow.rounds.specs import VECTOR_ID
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.enrolment import EpochSetup
from hedgerow.secagg.integers import wrapped
from hedgerow.secagg.roster import MAX_ATTEMPTS
from hedgerow.secagg.transitions import Abandoned as SumAbandoned
from hedgerow.secagg.transitions import Code, State, refuse
from hedgerow.secagg.view import Cohort, EpochView
from hedgerow.server.coordinator import Outcome, Releaser, Summed, checked_report, require_plausible
from hedgerow.server.events import RunEventKind
from hedgerow.server.gathering import MOST_BROKEN_SETUPS, MOST_LOST_EPOCHS
from hedgerow.server.journal import BurntSlot, Journal, JournalledRelease, JournalledRun
from hedgerow.server.outbox import Outgoing as Outgoing
from hedgerow.server.outbox import RunOutbox
from hedgerow.server.rounds import (
    COLLECTIONS,
    Following,
    certificate_of,
    check_rounds,
    check_words,
    cohort_of,
    cohort_to_be,
    open_slot,
    parameters_of,
    slots_for,
)
from hedgerow.server.run_setup import RunSetup as RunSetup

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
        self.salvaged = stored.salvage
        n_used = len(stored.releases) if stored.salvage is None else stored.salvage.n_used
        for line in stored.releases[:n_used]:
            self._take(line)
        for line in stored.releases[n_used:]:
            self._ledger = self._ledger.append(line.entry)
        if stored.salvage is not None:
            self._replica.end_early()
        self._attempt, self._next_slot, self._burnt = stored.attempt, stored.next_slot, list(stored.burnt)
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
        members = self._members()
        while len(members) < self.sites.least(self._setup.run_plan):
            if not self._take_back():
                raise self._too_few()
            members = self._members()
        if self._attempt >= MAX_ATTEMPTS:
            raise AggregationError(
                f"No epoch was ready after {MAX_ATTEMPTS} attempts{self.sites.said_of_them()}.",
                remedy="Look at the sites' logs.",
                code="no-epoch",
            )
        self._attempt += 1
        n_slots = slots_for(self._task, len(self._releases), len(members))
        identity = (self.run_id, self._attempt, self._setup.roster.hash())
        parameters = parameters_of(self._setup.run_plan, identity, n_slots, len(members))
        self._journal.save_attempt(self._attempt)
        self._view = self._slot = None
        self.sites.begin_epoch(members)
        self._epoch_setup = EpochSetup(self._setup.roster, parameters)
        self._enter(RunState.SETTING_UP)
        for site in sorted(members):
            self._send_origin(site)
            self._send(site, Payload(MessageKind.ENROL, parameters.to_bytes()))

    def _agreeing(self) -> set[str]:
        """Who would take part in a set-up that begins now, but for what was masked before."""
        return self.sites.agreeing(self.sites.heard(self.sites.ready), self._setup.run_plan)

    def _members(self) -> set[str]:
        """Who takes part in a set-up that begins now; nobody, where none of them would mask the next query there.

        A node masks no round in two epochs of which both sums could be opened. Where a slot of the next query was given
        up after vectors of it had come, an epoch without those who came since may do.
        """
        members = self._agreeing()
        burnt = [slot for slot in self._burnt if slot.round == self._replica.n_releases and slot.masked]
        earlier = [{self.sites.name(node) for node in slot.cohort.members} for slot in burnt]
        least = self.sites.least(self._setup.run_plan)
        if len(members) < least:
            return members
        for among in (members, members.intersection(*earlier)):
            nodes = frozenset(map(self.sites.number, among))
            against = [slot.cohort for slot in burnt if nodes & slot.masked]
            if len(among) >= least and all(cohort_to_be(self._setup.run_plan, nodes).excludes(one) for one in against):
                return among
        return set()

    def _explains(self, site: str, code: str) -> bool:
        """Whether a site refuses to mask a round again of which this run has given a slot up, as it has to.

        Its vector may have left without coming here. In the local model a site that was started again does not know
        the noise that it has sent.
        """
        if code != Code.PURPOSE_ANSWERED.value or self._view is None:
            return False
        now, node = Cohort.of(self._view), self.sites.number(site)
        is_local = self._setup.run_plan.privacy.noise == "local"
        return any(
            slot.round == self._replica.n_releases and node in slot.cohort.members
            and (is_local or not now.excludes(slot.cohort))
            for slot in self._burnt
        )  # fmt: skip

    def _too_few(self) -> AggregationError:
        """Why the run cannot go on with the sites that are there."""
        there, least = self._agreeing(), self.sites.least(self._setup.run_plan)
        if len(there) < least or self._members():
            return self.sites.too_few(self._setup.run_plan)
        burnt = [slot for slot in self._burnt if slot.round == self._replica.n_releases]
        missing = {self.sites.name(node) for slot in burnt for node in slot.cohort.members - slot.masked}
        return AggregationError(
            f"Round {self._replica.n_releases} cannot be repeated with the sites that are there, "
            f"{', '.join(sorted(there))}; of {', '.join(sorted(missing))} no vector came{self.sites.said_of_them()}.",
            cause="Its vectors were masked in an epoch of other sites, and were too few. With those who came since in "
            "place of those who are gone, both sums could be opened, so that no site masks it again.",
            remedy="Start a new run when all sites are there. A smaller federation.min_sites leaves a round more room.",
            code="round-not-repeatable",
        )

    def _leave_out(self, site: str, code: str) -> None:
        """Ask a site no more; whoever watches is told why."""
        self.sites.leave_out(site, code)
        self._tell(RunEventKind.LEFT_OUT, site, code)

    def _take_back(self) -> bool:
        """Ask one site again that was left out; returns whether there was any."""
        site = self.sites.take_back()
        if site is not None:
            self._tell(RunEventKind.TAKEN_BACK, site)
        return site is not None

    def _judge_setup(self, setup: EpochSetup, view: EpochView | None) -> None:
        """Note who has broken a set-up that failed (`view` None), or has kept itself out of one that did not."""
        arrived: Collection[int] = {
            State.COLLECTING_KEYS: setup.bundles,
            State.COLLECTING_NONCES: setup.nonces,
            State.COLLECTING_SHARES: setup.shares,
            State.COLLECTING_ACKNOWLEDGEMENTS: setup.acknowledgements,
        }[setup.state]
        if setup.state is State.COLLECTING_ACKNOWLEDGEMENTS:
            arrived = set(arrived) & set(setup.shares)
            for pair in setup.unacknowledged():
                for one, other in (pair, pair[::-1]):
                    self.sites.conduct[self.sites.name(one)].unacknowledged[self.sites.name(other)] += 1
                    self._tell(RunEventKind.COMPLAINT, self.sites.name(one), Code.NOT_ACKNOWLEDGED.value)
        missing = {site for site in self.sites.invited if self.sites.number(site) not in arrived}
        if 2 * len(missing) >= len(self.sites.invited):
            # When most are missing it is the network, or this machine.
            return
        for site in sorted(missing):
            conduct = self.sites.conduct[site]
            conduct.broken_setups += 1
            self._tell(RunEventKind.COMPLAINT, site, "set-up-broken")
            if conduct.broken_setups >= MOST_BROKEN_SETUPS and site not in self.sites.left_out:
                self._leave_out(site, "set-ups-broken")

    def _advance_setup(self) -> None:
        setup = self._epoch_setup
        if setup is None:
            return
        try:
            if setup.state is State.COLLECTING_KEYS:
                if len(setup.bundles) < len(self.sites.invited):
                    # The parameters were made for more sites, and fewer need others to be as safe.
                    raise refuse(Code.TOO_FEW_READY, f"{len(setup.bundles)} of {len(self.sites.invited)}.")
                self._epoch_setup, listed = setup.close_keys()
                self._to_members(dict.fromkeys(self._epoch_setup.bundles, listed))
            elif setup.state is State.COLLECTING_NONCES:
                self._epoch_setup, listed = setup.close_nonces()
                self._to_members(dict.fromkeys(self._epoch_setup.bundles, listed))
            elif setup.state is State.COLLECTING_SHARES:
                self._epoch_setup, deliveries = setup.close_shares()
                self._to_members(deliveries)
            else:
                weights = {self.sites.number(site): each.weight for site, each in self.sites.conduct.items()}
                self._view, listed = setup.close_acknowledgements(weights)
                self._judge_setup(setup, self._view)
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
            self._judge_setup(setup, None)
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
        if self._origin is not None and self._origin.digest == view.digest:
            self.sites.knows_origin |= inside
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
            self.sites.asked, self.sites.sent_spec = set(), set()
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
        is_short = len(there) < view.guarantees.min_survivors
        agreeing, ready = self._agreeing(), self._members()
        comes_back = {site for site in ready - there if self.sites.conduct[site].lost_epochs >= MOST_LOST_EPOCHS}
        # Not `ready > there`: a site that is there, and is taken into no further epoch, keeps nobody out.
        is_worth_it = bool(agreeing - there) and is_short
        is_worth_it |= bool(ready - there - comes_back) and self._attempt < MAX_ATTEMPTS // 2
        if len(ready) >= self.sites.least(self._setup.run_plan) and (is_full or is_worth_it):
            # An epoch takes nobody in: those who came later, or lost their state, join in a new one.
            return Following.EPOCH, there
        return (Following.WAIT if is_short or is_full else Following.SLOT), there

    def _new_slot(self) -> Aggregator | None:
        query, place = self._replica.query, (self._next_slot, self._replica.context())
        if query is None or self._view is None:
            return None
        return open_slot(self._setup.run_plan, self._view, self._setup.identity, query, place)

    def _close_vectors(self) -> None:
        slot = self._require_slot()
        first = slot.openers(self._survivors_heard(slot))
        try:
            slot, requests = slot.close_vectors(self._setup.identity, first)
        except SumAbandoned as fault:
            # No manifest was sent, so nothing of this slot can ever be opened: the purpose may have another one.
            burnt = BurntSlot(self._replica.n_releases, Cohort.of(slot.view), frozenset(slot.uploads))
            self._journal.burn_slot(burnt)
            self._burnt.append(burnt)
            self._judge_burnt(slot)
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

    def _judge_burnt(self, slot: Aggregator) -> None:
        """Whoever was asked for a vector without which a slot was burnt has used up its time, gone or not."""
        named = {self.sites.name(node) for node in slot.uploads}
        for site in sorted(self.sites.sent_spec - named - self.sites.silent - set(self.sites.left_out)):
            if self.sites.conduct[site].timed_out():
                self._leave_out(site, "timeouts-spent")

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
            if fault.reason not in _MORE_SHARES_MAY_HELP:
                raise
            self._judge_dealer(slot, fault)
            self._stall()
            return
        cohort = cohort_of(self._setup.run_plan, self._view)
        releaser = Releaser(self._setup.noise, is_local=self._setup.run_plan.privacy.noise == "local")
        release = releaser.release(query, opened.sums[VECTOR_ID], cohort)
        if not isinstance(query, SplitSelection):
            release = wrapped(release, slot.spec.vectors[0].width)
        (entry,) = releaser.ledger.releases
        survivors = tuple(self.sites.name(node) for node in opened.survivors)
        line = JournalledRelease(release, entry, survivors)
        try:
            summed = Summed(cohort, self._view.guarantees.n_nodes, survivors)
            require_plausible(self._checks, query, self._setup.run_plan, release, summed)
        except SumAbandoned as fault:
            # That the run ends is told to all, so what it follows from is a release like any other: it is written down
            # with its cost, and the run given up, in one write.
            if fault.reason is Code.SUM_OUT_OF_RANGE:
                fault.what += f" In the sum were {', '.join(survivors)}: the masks do not show whose vector it was."
            self._give_up(fault, line)
            return
        self._take(line)
        for site in survivors:
            self.sites.conduct[site].may_return = True
        self._slot = None
        self._open_round(line)

    def _judge_dealer(self, slot: Aggregator, fault: SumAbandoned) -> None:
        """Name whoever is to blame for a secret that cannot be rebuilt, and raise; or return, to wait for more shares.

        Shares that do not fit: with as many more than the threshold as there may be liars, some threshold of them are
        honest holders', so that only wrong dealing explains it. Shares that are withheld, for they did not open: when
        more withhold than there may be liars, an honest holder is among them. Otherwise it may be a holder who lies.
        """
        if not isinstance(fault.peer, int):
            raise fault
        dealer, guarantees = fault.peer, slot.view.guarantees
        holders = {node for node in slot.uploads if node == dealer or dealer in slot.view.peers(node)}
        given = {node for node in holders & slot.shares.keys() if slot.shares[node].get(dealer) is not None}
        withheld, left = slot.shares.keys() & holders - given - {dealer}, holders - slot.answers.keys()
        n_liars, is_wrong = max(1, guarantees.n_colluders), fault.reason is Code.SECRET_UNRECOVERABLE
        if not is_wrong and len(given | left) >= guarantees.threshold:
            return
        name = self.sites.name(dealer)
        if (is_wrong and len(given) >= guarantees.threshold + n_liars) or (not is_wrong and len(withheld) > n_liars):
            self._tell(RunEventKind.COMPLAINT, name, Code.SECRET_UNRECOVERABLE.value)
            self._leave_out(name, Code.SECRET_UNRECOVERABLE.value)
            raise refuse(Code.SECRET_UNRECOVERABLE, f"It is the secret of {name}, which dealt wrong shares.", dealer)
        if not left - {dealer}:
            others = ", ".join(self.sites.name(node) for node in sorted((given | withheld) - {dealer}))
            said = f"It is the secret of {name}: it dealt wrong shares, or one of {others} lies about them."
            raise refuse(Code.SECRET_UNRECOVERABLE, said, dealer)

    def _can_salvage(self, fault: HedgerowError) -> bool:
        """Whether the run may end with the model of its releases; then its program has ended, and there is one.

        Where several sites say that they have answered what this journal does not know of, its ledger would say less
        than was released.
        """
        may = self._setup.plan.federation.salvage and isinstance(fault, AggregationError)
        return may and not self.sites.is_journal_doubted and self._replica.end_early()

    def _result_digest(self) -> bytes:
        """What tells the result of the run; raises PrivacyError when there may be none."""
        self._conclude()
        return self._replica.result_digest()

    def _begin_finishing(self) -> None:
        self._enter(RunState.FINISHING)
        self.sites.asked = set()
        # Who was left out has rows in the model, and may have it.
        for site in sorted(site for site in self.sites.ready if self.sites.is_there(site)):
            self._send_finished(site)

    def _conclude(self) -> Outcome:
        """The outcome; raises PrivacyError when the releases cost more than the plan allows."""
        model = self._setup.evaluation
        if model is not None and isinstance(self._replica.result, Evaluation):
            self.outcome = model.outcome(self._ledger, self._replica.result, self._setup.noise)
            return self.outcome
        report = checked_report(self._setup.run_plan, self._ledger, self._setup.noise)
        self.outcome = Outcome(
            self._replica.plan, self._replica.ensemble, self._ledger, report, salvaged=self.salvaged
        )
        return self.outcome

    def _end(self) -> None:
        self._conclude()
        self._enter(RunState.OVER)
        self._tell(RunEventKind.FINISHED)

    def _give_up(self, fault: HedgerowError, unused: JournalledRelease | None = None) -> None:
        """End the run by name: with the model of what was released, if that may be salvaged, or without.

        Args: unused: a release that nobody goes on from; it is written down with its cost, in the same write.
        """
        n_released = len(self._releases)
        if unused is not None:
            self._ledger = self._ledger.append(unused.entry)
        if self._can_salvage(fault):
            self.salvaged = Salvage(fault.code, n_released, self._task.n_exchanges)
            with suppress(PrivacyError):
                digest = self._result_digest()
                if unused is None:
                    self._journal.finish(digest, self.salvaged)
                else:
                    self._journal.commit(n_released, unused, None, digest, self.salvaged)
                self._slot, self._epoch_setup, self.setback = None, None, fault
                self._tell(RunEventKind.SALVAGED, code=fault.code)
                self._begin_finishing()
                return
            self.salvaged = None
        self.failure = fault
        if unused is None:
            self._journal.give_up(fault.code)
        else:
            self._journal.commit(n_released, unused, given_up=fault.code)
        for site in sorted(self.sites.connected):
            self._send(site, Stop(fault.code))
        self._enter(RunState.OVER)
        self._tell(RunEventKind.STOPPED, code=fault.code)
