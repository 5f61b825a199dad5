"""The coordinator of a run: `RunSession` turns events into messages for sites, `run_coordinator` carries it out.

The session has no socket and no clock. Everything is journalled before the messages that depend on it are returned.
Sites that fall silent, leave or refuse are not waited for; the run goes on with the others down to the threshold of
secure aggregation, and waits for sites to return when there are fewer. A purpose whose manifest was sent is finished
with that manifest or the run ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress

from hedgerow.errors import AggregationError, EnvironmentFault, HedgerowError, RemoteProtocolError
from hedgerow.methods.replica import rehearse
from hedgerow.plan.plan import Federation
from hedgerow.protocol.messages import (
    FROM_NODES,
    Deferred,
    Done,
    Hello,
    Message,
    MessageKind,
    Paused,
    Payload,
    Ready,
    Refused,
    RunState,
    Stop,
    Welcome,
    decode,
    encode,
    is_expected,
    kind_of,
)
from hedgerow.protocol.stream import WireCode, WireRefusal
from hedgerow.secagg.transitions import Code
from hedgerow.server.phases import (
    COLLECTIONS,
    advance_setup,
    begin_setup,
    certificate_of,
    check_releases,
    check_rounds,
    check_words,
    close_echoes,
    close_vectors,
    conclude,
    end,
    explains_refusal,
    give_up,
    keep_enough_openers,
    open_round,
    release,
    too_few,
)
from hedgerow.server.release import Outcome
from hedgerow.server.run import (
    Asked,
    Consent,
    Journal,
    JournalledRun,
    Link,
    Outgoing,
    Place,
    Run,
    RunEventKind,
    RunSetup,
    SiteRecord,
)
from hedgerow.transport.interface import Arrived, Hub, HubEvent, Joined, Left

# Why either end gives up a connection that did not break.
_GIVEN_UP = {WireCode.SILENT.value, WireCode.SLOW_PEER.value}
# A node that cannot resume its epoch says so, and takes part in the next one.
_PASSING = {Code.ROLLED_BACK.value, Code.CORRUPT_STATE.value}
_SECONDS_BETWEEN_WORDS = 5.0
_LEAST_WAIT = 1.0
"""Seconds: if a deadline passed while this process did not run, what the sites sent meanwhile is read first."""
_MOST_LATE = 4096
"""Messages that are read so, once the deadline is over, and for no longer than the phase had: a site that sends
without end, or what takes long to read, does not put the timeout off."""


class RunSession:
    """One run. After a restart a new session goes on from what the journal holds.

    Attributes:
        run: its facts.
    """

    def __init__(self, setup: RunSetup, journal: Journal) -> None:
        self.run = run = Run(setup, journal)
        check_words(run.task, len(setup.roster.sites))
        check_rounds(run.task, len(setup.roster.sites))
        check_releases(run.task, len(setup.roster.sites))
        run.sites.draws_seed = setup.plan.has_joint_structure
        stored = journal.load(run.task, setup.roster)
        if stored is None:
            run.run_id = setup.entropy(32)
            journal.begin(run.run_id, run.task, setup.roster)
        else:
            _resume(run, stored)

    # What a driver calls -----------------------------------------------------------------------------------------

    @property
    def made(self) -> Outcome | None:
        """What the run has made, once its releases are all there: its sites may still have to hear that it is over."""
        return conclude(self.run) if self.run.state is RunState.FINISHING else self.run.outcome

    @property
    def waits_for_joining(self) -> bool:
        """Whether the phase may take as long as sites need to join (else: to answer a round)."""
        run = self.run
        return (run.state is RunState.GATHERING and not run.attempt) or run.sites.is_any_returning

    @property
    def is_between_rounds(self) -> bool:
        """Whether the run waits for sites, and not for their answers to what they were sent."""
        return self.run.state is RunState.GATHERING or self.run.is_stalled

    def joined(self, site: str) -> None:
        """A site's node is connected; it will say Hello."""
        self.run.sites[site].leave()
        self.run.tell(RunEventKind.JOINED, site)

    def left(self, site: str, reason: str = "") -> list[Outgoing]:
        """A site's connection is gone; it is not waited for, unless it was only given up.

        A broken connection says that the node's process has ended. One that was given up says no more than that
        something was too slow, perhaps this machine: the node dials again, and a round has as much time for it as for
        every other site.
        """
        record = self.run.sites[site]
        record.leave(comes_back=reason in _GIVEN_UP and self._is_in_epoch(record))
        self.run.tell(RunEventKind.LEFT, site, reason)
        return self._flush()

    def arrived(self, site: str, data: bytes) -> list[Outgoing]:
        """A message of a site; one that cannot be used is dropped and told to the observer."""
        if self.run.state is not RunState.OVER:
            try:
                self._read(self.run.sites[site], decode(data, FROM_NODES))
            except RemoteProtocolError as fault:
                self.run.tell(RunEventKind.COMPLAINT, site, fault.code)
        return self._flush()

    def timed_out(self) -> list[Outgoing]:
        """The phase has taken as long as it may: go on without those who have not answered, or give up."""
        run = self.run
        if run.sites.is_any_returning:
            run.sites.stop_waiting()
            run.n_phases += 1
        elif run.is_stalled:
            give_up(run, too_few(run))
        else:
            awaited = self.awaited()
            for site in run.sites:
                if site.name in awaited:
                    self._fall_silent(site)
            self._guard(self._close_phase)
        return self._flush()

    def stop(self, fault: HedgerowError) -> list[Outgoing]:
        """Give the run up; what was released stays in the journal, and the same run can be taken up from it."""
        self.run.failure = fault
        self.run.enter(RunState.OVER)
        return self._flush(advance=False)

    def awaited(self) -> set[str]:
        """Sites without whose answer the phase is not complete."""
        return {site.name for site in self.run.sites if self._is_expected(site) and not site.has_answered}

    def _is_expected(self, site: SiteRecord) -> bool:
        state, slot = self.run.state, self.run.slot
        if state is RunState.GATHERING:
            return site.may_join
        if state is RunState.SETTING_UP:
            return site.is_setting_up and site.is_heard
        if state is RunState.FINISHING:
            return (site.is_there and not site.claims_more) or site.link is Link.RETURNING
        if slot is None or not site.is_inside:
            return False
        if state is RunState.COLLECTING_VECTORS:
            return site.link in (Link.RETURNING, Link.AWAY) or (site.spec is Asked.NOW and site.is_heard)
        is_asked = site.link is Link.RETURNING or (site.opening is Asked.NOW and site.is_heard)
        return is_asked and site.node in slot.uploads

    def _is_in_epoch(self, site: SiteRecord) -> bool:
        """Whether the epoch counts on a site, which may have lost its state of it."""
        return self.run.view is not None and self.run.view.is_ready(site.node)

    # Messages ------------------------------------------------------------------------------------------------------

    def _read(self, site: SiteRecord, message: Message) -> None:
        run, kind = self.run, kind_of(message)
        # Without a Hello on this connection, a message answers something that was sent over an earlier one.
        is_late = not site.is_connected and not isinstance(message, Hello)
        if site.is_silent and not is_late:
            self._wake(site)
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
                run.tell(RunEventKind.REFUSED, site.name, message.code)
            case Done():
                site.has_answered = True
            case Payload(MessageKind.SETUP_ANSWER, content):
                self._take_setup(site, content)
            case Payload(_, content):
                self._take_answer(site, content)

    def _wake(self, site: SiteRecord) -> None:
        """A site that was silent speaks: it is waited for again, and asked what the others were asked meanwhile."""
        site.is_silent = False
        if not site.is_ready or site.spec is Asked.NOW:
            return
        if self.run.state is RunState.FINISHING or site.is_inside:
            self._repeat_to(site)

    def _greet(self, site: SiteRecord, hello: Hello) -> None:
        run = self.run
        site.greet()
        run.send(site, Welcome(hello.connection))
        is_ours = hello.run_id == run.run_id
        # One site may say anything. Several are believed: the journal was restored from a backup.
        site.claims_more = is_ours and hello.n_releases > len(run.releases)
        if site.claims_more:
            run.tell(RunEventKind.COMPLAINT, site.name, "releases-claimed")
            claims = [each.name for each in run.sites if each.claims_more]
            # A whole run has no more releases than its journal: no node holds any that are not there.
            is_whole = run.state is RunState.FINISHING and run.salvaged is None
            if len(claims) >= run.sites.n_believed and not is_whole:
                give_up(run, RemoteProtocolError("journal-rolled-back", sites=", ".join(claims)))
            return
        site.n_held = hello.n_releases if is_ours else 0
        # No node has a release, or the epoch itself, without the seed that the trees are made from.
        has_seed = bool(hello.n_releases) or (run.origin is not None and hello.epoch == run.origin.digest)
        site.knows_origin = is_ours and has_seed
        is_member = self._is_in_epoch(site)
        if is_ours and is_member and run.view is not None and hello.epoch == run.view.digest:
            site.consent = Consent.READY
            run.tell(RunEventKind.READY, site.name)
            self._repeat_to(site)
            return
        site.conduct.lost_epochs += is_member and site.is_inside
        run.invite(site)

    def _accept(self, site: SiteRecord, ready: Ready) -> None:
        run = self.run
        if ready.run_id != run.run_id or ready.plan_digest != bytes.fromhex(run.task.digest):
            run.tell(RunEventKind.COMPLAINT, site.name, "plan-changed")
            return
        site.consent = Consent.READY
        run.tell(RunEventKind.READY, site.name)
        if run.state is RunState.FINISHING:
            run.send_finished(site)

    def _repeat_to(self, site: SiteRecord) -> None:
        """Send a returned site what it may have missed of the phase that is under way."""
        run = self.run
        if run.state is RunState.FINISHING:
            run.send_finished(site)
        elif run.slot is None or not site.is_heard:
            return
        elif run.state is RunState.COLLECTING_VECTORS:
            if site.node not in run.slot.uploads:
                run.send_request(site)
        elif site.node in run.slot.uploads and run.slot.view.guarantees.has_echo:
            run.ask_openers(run.slot.requests((site.node,)))
            if run.state is RunState.COLLECTING_ANSWERS and run.certificate:
                run.send(site, Payload(MessageKind.CERTIFICATE, run.certificate))

    def _take_setup(self, site: SiteRecord, content: bytes) -> None:
        if self.run.epoch_setup is None or not site.is_setting_up:
            return
        self.run.epoch_setup, complaints = self.run.epoch_setup.receive([content])
        if not complaints:
            site.answer()
        for complaint in complaints:
            self.run.tell(RunEventKind.COMPLAINT, site.name, complaint.code)

    def _take_answer(self, site: SiteRecord, content: bytes) -> None:
        run = self.run
        if run.slot is None:
            return
        run.slot, complaints = run.slot.receive([content])
        if not complaints or run.state is RunState.COLLECTING_ANSWERS:
            # Shares that cannot be used are not waited for a second time: the others are asked for theirs.
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
            # When it wakes it will find that the others have gone on without it.
            run.invite(site)

    # When a phase is complete --------------------------------------------------------------------------------------

    def _flush(self, *, advance: bool = True) -> list[Outgoing]:
        """Go on as far as possible, then hand over what is to be sent."""
        run = self.run
        while advance and run.state is not RunState.OVER:
            before = run.n_phases
            keep_enough_openers(run)
            if run.is_stalled:
                self._guard(self._retry)
                while run.is_stalled and run.take_back():
                    self._guard(self._retry)
            elif not self.awaited():
                self._guard(self._close_phase)
            if run.n_phases == before:
                break
        out, run.out = run.out, []
        return out

    def _guard(self, step: Callable[[], None]) -> None:
        try:
            step()
        except EnvironmentFault:
            # The journal is as it was: started again, the run goes on.
            raise
        except HedgerowError as fault:
            give_up(self.run, fault)

    def _retry(self) -> None:
        """Try to go on, although too few sites were there."""
        if self.run.slot is None:
            open_round(self.run)
        else:
            self._close_phase()

    def _close_phase(self) -> None:
        run = self.run
        match run.state:
            case RunState.GATHERING:
                begin_setup(run)
            case RunState.SETTING_UP:
                if advance_setup(run):
                    open_round(run)
            case RunState.COLLECTING_VECTORS:
                close_vectors(run)
            case RunState.COLLECTING_ECHOES:
                close_echoes(run)
            case RunState.COLLECTING_ANSWERS:
                release(run)
            case RunState.FINISHING:
                end(run)


def _resume(run: Run, stored: JournalledRun) -> None:
    """Go on from what the journal holds."""
    run.run_id = stored.run_id
    if stored.origin is not None:
        run.begin_trees(stored.origin)
    run.salvaged = stored.salvage
    n_used = len(stored.releases) if stored.salvage is None else stored.salvage.n_used
    for line in stored.releases[:n_used]:
        run.take(line)
    for line in stored.releases[n_used:]:
        run.ledger = run.ledger.append(line.entry)
    if stored.salvage is not None:
        run.replica.end_early()
    run.attempt, run.next_slot, run.burnt = stored.attempt, stored.next_slot, list(stored.burnt)
    run.view, run.slot = stored.view, stored.slot
    if run.view is not None:
        for node in run.view.ready:
            run.sites.of(node).link, run.sites.of(node).place = Link.RETURNING, Place.INSIDE
    if stored.result_digest is not None:
        run.enter(RunState.FINISHING)
    elif run.slot is not None:
        run.certificate = certificate_of(run.slot)
        run.enter(COLLECTIONS[run.slot.state])
    elif run.view is not None:
        run.stall()


# The loop ------------------------------------------------------------------------------------------------------------


def run_coordinator(
    session: RunSession,
    hub: Hub,
    timeouts: Federation,
    clock: Callable[[], float],
    waiting: Callable[[float], object] | None = None,
    is_paused: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Carry a run out.

    Args:
        session: a new session, or one that a journal brought back.
        hub: connected to the nodes; the caller closes it.
        timeouts: `join_timeout` for sites to come or come back, `round_timeout` for an answer, `idle_timeout` for
            enough sites to return when there are too few.
        clock: seconds, from any beginning, that never go back: ``time.monotonic``.
        waiting: is told again and again, every few seconds, how many seconds are left until the phase is closed.
        is_paused: whether the operator wants to go on later; asked now and then.

    Raises:
        HedgerowError: why the run was given up.
        AggregationError: code "run-paused"; what was released is in the journal, from which the run goes on.
        EnvironmentFault: the journal could not be written; started again, the run goes on.
    """
    # Compiled code takes a second to load: before the sites come, and not while they wait for a sum.
    rehearse(session.run.task.with_structure_seed(0))
    phase, deadline, late_until, late_end, n_late = -1, 0.0, 0.0, 0.0, 0
    while session.run.state is not RunState.OVER:
        event: HubEvent | None = None
        if session.is_between_rounds and is_paused():
            raise _paused(session, hub)
        n_released = len(session.run.releases)
        if session.run.n_phases != phase:
            phase = session.run.n_phases
            deadline, n_late = clock() + _timeout(session, timeouts), 0
        if clock() < deadline:
            left = deadline - clock()
            if waiting is not None:
                waiting(left)
            event = hub.receive(left if waiting is None else min(left, _SECONDS_BETWEEN_WORDS))
        else:
            if not n_late:
                late_until = clock() + _LEAST_WAIT
                late_end = late_until + _timeout(session, timeouts)
            n_late += 1
            if n_late <= _MOST_LATE and clock() < late_end:
                # After the second that what is on its way is given, only what is there already is read.
                event = hub.receive(max(0.0, late_until - clock()))
        if event is None and clock() < deadline:
            continue
        n_late = n_late if event is not None else 0
        messages = session.timed_out() if event is None else _react(session, event)
        is_new_round = len(session.run.releases) > n_released and session.run.state is RunState.COLLECTING_VECTORS
        if is_new_round and is_paused():
            # The next round's spec is in the journal, and no site has it.
            raise _paused(session, hub)
        _deliver(session, hub, messages)
    if session.run.outcome is not None and session.run.failure is None:
        return session.run.outcome
    raise session.run.failure or HedgerowError("no-model")


def _paused(session: RunSession, hub: Hub) -> AggregationError:
    """Tell the sites that the run goes on later."""
    run = session.run
    for site in run.sites:
        if site.is_connected:
            hub.send(site.name, encode(Paused()))
    return AggregationError("run-paused", n_released=len(run.releases), n_rounds=run.task.n_exchanges)


def tell_of_the_end(
    run: tuple[bytes, str], hub: Hub, sites: Collection[str], seconds: float, clock: Callable[[], float]
) -> list[str]:
    """Tell the sites that come back to a run that it has ended.

    Args:
        run: its number, and the code word that says why it has ended.
        hub: connected to the nodes; the caller closes it.
        sites: that may come.
        seconds: to wait for them; all that have come hear of it at once. One that comes and is not in the run has
            nothing to hear, and is not waited for.
        clock: as for `run_coordinator`.

    Returns:
        The names of those that were in the run and heard of its end.
    """
    run_id, code = run
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
    """Send messages. A site whose message its engine refuses, as too long, counts as gone; the run goes on."""
    waiting, gone = deque(messages), set[str]()
    while waiting:
        site, message = waiting.popleft()
        # What follows a message that was not sent would not be understood.
        if site in gone:
            continue
        try:
            hub.send(site, message)
        except WireRefusal as refusal:
            gone.add(site)
            waiting.extend(session.left(site, refusal.code))


def _react(session: RunSession, event: HubEvent) -> list[tuple[str, bytes]]:
    match event:
        case Joined(site):
            session.joined(site)
            return []
        case Left(site, reason):
            return session.left(site, reason)
        case Arrived(site, message):
            return session.arrived(site, message)


def _timeout(session: RunSession, timeouts: Federation) -> float:
    if session.waits_for_joining:
        return timeouts.join_timeout
    return timeouts.idle_timeout if session.run.is_stalled else timeouts.round_timeout
