"""The coordinator of a run, without a socket or a clock: events go in, messages for sites come out.

Everything is journalled before the messages that depend on it are returned. Sites that fall silent, leave or refuse
are not waited for; the run goes on with the others down to the threshold of secure aggregation, and waits for sites
to return when there are fewer. A purpose whose manifest was sent is finished with that manifest or the run ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hedgerow.errors import EnvironmentFault, HedgerowError, RemoteProtocolError
from hedgerow.protocol.messages import (
    Done,
    Hello,
    Message,
    MessageKind,
    Payload,
    Ready,
    Refused,
    Welcome,
    decode,
    kind_of,
)
from hedgerow.protocol.script import RunState, is_expected
from hedgerow.protocol.wire.refusals import WireCode
from hedgerow.secagg.transitions import Code
from hedgerow.server.coordinator import Outcome
from hedgerow.server.events import RunEventKind
from hedgerow.server.phases import Outgoing, RunPhases


class RunSession(RunPhases):
    """One run; made anew after a restart, when it goes on from what its journal holds.

    Attributes:
        state: what is being collected.
        sites: who is there, and what they said.
        outcome: the model, its ledger and report, once the run is over.
        failure: why the run was given up, if it was.
        survivors: for every release, the sites whose vectors are in it.
        n_phases: grows with every phase, so that a driver knows when to begin waiting anew.
    """

    # What a driver calls -----------------------------------------------------------------------------------------

    @property
    def made(self) -> Outcome | None:
        """What the run has made, once its releases are all there: its sites may still have to hear that it is over."""
        return self._conclude() if self.state is RunState.FINISHING else self.outcome

    @property
    def waits_for_joining(self) -> bool:
        """Whether the phase may take as long as sites need to join (else: to answer a round)."""
        return (self.state is RunState.GATHERING and not self._attempt) or bool(self.sites.returning)

    def joined(self, site: str) -> None:
        """A site's node is connected; it will say Hello."""
        self.sites.leave(site)
        self._tell(RunEventKind.JOINED, site)

    def left(self, site: str, reason: str = "") -> list[Outgoing]:
        """A site's connection is gone; it is not waited for, unless it was only given up.

        A broken connection says that the node's process has ended. One that was given up says no more than that
        something was too slow, perhaps this machine: the node dials again, and a round has as much time for it as for
        every other site.
        """
        if reason in _GIVEN_UP and self._view is not None and self._view.is_ready(self.sites.number(site)):
            self.sites.away.add(site)
        self.sites.leave(site)
        self._tell(RunEventKind.LEFT, site, reason)
        return self._flush()

    def arrived(self, site: str, data: bytes) -> list[Outgoing]:
        """A message of a site; one that cannot be used is dropped and told to the observer."""
        if self.state is not RunState.OVER:
            try:
                self._read(site, decode(data))
            except RemoteProtocolError as fault:
                self._tell(RunEventKind.COMPLAINT, site, fault.code)
        return self._flush()

    def timed_out(self) -> list[Outgoing]:
        """The phase has taken as long as it may: go on without whoever has not answered, or give up."""
        if self.sites.returning:
            self.sites.returning = set()
            self.n_phases += 1
            return self._flush()
        if self.is_stalled:
            self._give_up(self._too_few())
            return self._flush()
        for site in sorted(self._awaited()):
            self._fall_silent(site)
        self._guard(self._close_phase)
        return self._flush()

    def stop(self, fault: HedgerowError) -> list[Outgoing]:
        """Give the run up; what was released stays in the journal, and the same run can be taken up from it."""
        self.failure = fault
        self._enter(RunState.OVER)
        return self._flush(advance=False)

    # Messages ------------------------------------------------------------------------------------------------------

    def _read(self, site: str, message: Message) -> None:
        kind = kind_of(message)
        if site not in self.sites.connected and not isinstance(message, Hello):
            # It answers something that was sent over an earlier connection.
            self._tell(RunEventKind.LATE, site, kind.name.lower().replace("_", "-"))
            return
        if site in self.sites.silent:
            self._wake(site)
        if not is_expected(self.state, kind):
            self._tell(RunEventKind.LATE, site, kind.name.lower().replace("_", "-"))
            return
        match message:
            case Hello():
                self._greet(site, message)
            case Ready():
                self._accept(site, message)
            case Refused():
                if message.code not in _PASSING:
                    self.sites.refuse(site, message.code, is_explained=self._explains(site, message.code))
                self._tell(RunEventKind.REFUSED, site, message.code)
            case Done():
                self.sites.answered.add(site)
            case Payload(MessageKind.SETUP_ANSWER, content):
                self._take_setup(site, content)
            case Payload(_, content):
                self._take_answer(site, content)

    def _wake(self, site: str) -> None:
        """A site that was silent speaks: it is waited for again, and asked what the others were asked meanwhile."""
        self.sites.silent.discard(site)
        is_inside = self._view is not None and self._view.is_ready(self.sites.number(site))
        if self.state is RunState.FINISHING and site in self.sites.ready - self.sites.asked:
            self._send_finished(site)
        elif is_inside and site in self.sites.ready - self.sites.outsiders - self.sites.asked:
            self._repeat_to(site)

    def _greet(self, site: str, hello: Hello) -> None:
        self.sites.returning.discard(site)
        self.sites.away.discard(site)
        self.sites.refusals.pop(site, None)
        self.sites.connected.add(site)
        self._send(site, Welcome(hello.connection))
        is_ours = hello.run_id == self.run_id
        if is_ours and hello.n_releases > len(self._releases):
            # One site may say anything. Several are believed: the journal was restored from a backup.
            self.sites.claims.add(site)
            self._tell(RunEventKind.COMPLAINT, site, "releases-claimed")
            if len(self.sites.claims) >= self.sites.n_believed:
                self._give_up(_journal_behind(sorted(self.sites.claims)))
            return
        self.sites.claims.discard(site)
        self.sites.held[site] = hello.n_releases if is_ours else 0
        # No node has a release, or the epoch itself, without the seed that the trees are made from.
        is_in_it = self._origin is not None and hello.epoch == self._origin.digest
        knows = self.sites.knows_origin
        (knows.add if is_ours and (hello.n_releases or is_in_it) else knows.discard)(site)
        is_member = self._view is not None and self._view.is_ready(self.sites.number(site))
        if is_ours and is_member and self._view is not None and hello.epoch == self._view.digest:
            self.sites.ready.add(site)
            self._tell(RunEventKind.READY, site)
            self._repeat_to(site)
            return
        self.sites.conduct[site].lost_epochs += is_member and site not in self.sites.outsiders
        self._invite(site)

    def _accept(self, site: str, ready: Ready) -> None:
        if ready.run_id != self.run_id or ready.plan_digest != bytes.fromhex(self._task.digest):
            self._tell(RunEventKind.COMPLAINT, site, "plan-changed")
            return
        self.sites.refusals.pop(site, None)
        self.sites.ready.add(site)
        self._tell(RunEventKind.READY, site)
        if self.state is RunState.FINISHING:
            self._send_finished(site)

    def _repeat_to(self, site: str) -> None:
        """Send a returned site what it may have missed of the phase that is under way."""
        node = self.sites.number(site)
        if self.state is RunState.FINISHING:
            self._send_finished(site)
        elif self._slot is None or not self.sites.is_heard(site):
            return
        elif self.state is RunState.COLLECTING_VECTORS:
            if node not in self._slot.uploads:
                self._send_request(site)
        elif node in self._slot.uploads and self._slot.view.guarantees.has_echo:
            self._ask_openers(self._slot.requests((node,)))
            if self.state is RunState.COLLECTING_ANSWERS and self._certificate:
                self._send(site, Payload(MessageKind.CERTIFICATE, self._certificate))

    def _take_setup(self, site: str, content: bytes) -> None:
        if self._epoch_setup is None or site not in self.sites.members:
            return
        self._epoch_setup, complaints = self._epoch_setup.receive([content])
        if not complaints:
            self._note_answer(site)
        for complaint in complaints:
            self._tell(RunEventKind.COMPLAINT, site, complaint.code)

    def _note_answer(self, site: str) -> None:
        self.sites.answered.add(site)
        self.sites.conduct[site].in_a_row = 0

    def _take_answer(self, site: str, content: bytes) -> None:
        if self._slot is None:
            return
        self._slot, complaints = self._slot.receive([content])
        if not complaints or self.state is RunState.COLLECTING_ANSWERS:
            # Shares that cannot be used are not waited for a second time: the others are asked for theirs.
            self._note_answer(site)
        for complaint in complaints:
            self._tell(RunEventKind.COMPLAINT, site, complaint.code)

    def _fall_silent(self, site: str) -> None:
        self.sites.away.discard(site)
        self.sites.silent.add(site)
        self._tell(RunEventKind.SILENT, site)
        is_joining = self.state is RunState.FINISHING or (self.state is RunState.GATHERING and not self._attempt)
        if not is_joining and self.sites.conduct[site].timed_out():
            self._leave_out(site, "timeouts-spent")
        if self.state is RunState.SETTING_UP:
            # When it wakes it will find that the others have gone on without it.
            self._invite(site)

    # When a phase is complete --------------------------------------------------------------------------------------

    def _awaited(self) -> set[str]:
        """Sites without whose answer the phase is not complete."""
        return self._expected() - self.sites.answered

    def _expected(self) -> set[str]:
        sites = self.sites
        if self.state is RunState.GATHERING:
            return sites.names - sites.ready - set(sites.refusals) - sites.silent - set(sites.left_out) - sites.claims
        if self.state is RunState.SETTING_UP:
            return sites.heard(sites.members)
        if self.state is RunState.FINISHING:
            return {site for site in sites.connected if sites.is_there(site)} | sites.returning
        if self._slot is None or self._view is None:
            return set()
        nodes: Iterable[int] = self._view.ready
        asked, waited = sites.asked, sites.returning | sites.away
        if self.state is not RunState.COLLECTING_VECTORS:
            nodes, asked, waited = self._slot.uploads, sites.openers, sites.returning
        among = {sites.name(node) for node in nodes} - sites.outsiders
        among &= asked | waited
        return sites.heard(among) | (waited & among)

    def _keep_enough_openers(self) -> None:
        """Ask all survivors for shares as soon as one of the fewest that were asked will not answer."""
        slot = self._slot
        if self.state is not RunState.COLLECTING_ANSWERS or slot is None:
            return
        asked = {node for node, site in self._survivors_heard(slot).items() if site in self.sites.openers}
        if len(asked.union(slot.answers)) < len(slot.openers(slot.uploads)):
            self._ask_others()

    def _flush(self, *, advance: bool = True) -> list[Outgoing]:
        """Go on as far as possible, then hand over what is to be sent."""
        while advance and self.state is not RunState.OVER:
            before = self.n_phases
            self._keep_enough_openers()
            if self.is_stalled:
                self._guard(self._open_round if self._slot is None else self._close_phase)
                while self.is_stalled and self._take_back():
                    self._guard(self._open_round if self._slot is None else self._close_phase)
            elif not self._awaited():
                self._guard(self._close_phase)
            if self.n_phases == before:
                break
        out, self._out = self._out, []
        return out

    def _guard(self, step: Callable[[], None]) -> None:
        try:
            step()
        except EnvironmentFault:
            # The journal is as it was: started again, the run goes on.
            raise
        except HedgerowError as fault:
            self._give_up(fault)

    def _close_phase(self) -> None:
        if self.state is RunState.GATHERING:
            self._begin_setup()
        elif self.state is RunState.SETTING_UP:
            self._advance_setup()
        elif self.state is RunState.COLLECTING_VECTORS:
            self._close_vectors()
        elif self.state is RunState.COLLECTING_ECHOES:
            self._close_echoes()
        elif self.state is RunState.COLLECTING_ANSWERS:
            self._release()
        elif self.state is RunState.FINISHING:
            self._end()


_GIVEN_UP = {WireCode.SILENT.value, WireCode.SLOW_PEER.value, WireCode.REPLACED.value}
"""Why either end gives up a connection that did not break."""
_PASSING = {Code.ROLLED_BACK.value, Code.CORRUPT_STATE.value}
"""A node that cannot resume its epoch says so, and takes part in the next one."""


def _journal_behind(sites: list[str]) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"Sites {', '.join(sites)} hold more releases than this coordinator's journal.",
        cause="The journal was restored from a backup.",
        remedy="Never resume a run from a backup: noise would be drawn twice. Begin a new run, with --new-run or "
        "another journal.",
        code="journal-rolled-back",
    )
