"""What the coordinator knows of a run, and what it has to say to the sites.

A message is queued here, and sent once the step that it belongs to is done and journalled.
"""

from __future__ import annotations

from hedgerow.errors import AggregationError, HedgerowError
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import Task, checks_of
from hedgerow.privacy.ledger import Ledger
from hedgerow.protocol.messages import Finished, Message, MessageKind, Payload, RoundRequest, Salvaged, encode
from hedgerow.protocol.queries import IntVector
from hedgerow.protocol.results import Salvage
from hedgerow.protocol.script import RunState
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.enrolment import EpochSetup
from hedgerow.secagg.view import EpochView
from hedgerow.server.coordinator import Outcome
from hedgerow.server.events import RunEvent, RunEventKind
from hedgerow.server.gathering import Sites
from hedgerow.server.journal import BurntSlot, Journal, JournalledRelease
from hedgerow.server.rounds import invitation_to
from hedgerow.server.run_setup import RunSetup

Outgoing = tuple[str, bytes]


class RunOutbox:
    """The facts of a run (see `RunSession`), and the queue of messages to sites."""

    def __init__(self, setup: RunSetup, journal: Journal) -> None:
        self._setup, self._journal = setup, journal
        self._task = setup.task
        self.run_id = b""
        self._replica = Replica(self._task)
        self._checks = checks_of(self._task)
        self._releases: list[IntVector] = []
        self._ledger = Ledger()
        self.state = RunState.GATHERING
        self.sites = Sites(setup.roster)
        self.outcome: Outcome | None = None
        self.failure: HedgerowError | None = None
        self.salvaged: Salvage | None = None
        self.setback: HedgerowError | None = None
        """Why this process has ended the run early, where its releases were salvaged."""
        self.survivors: list[tuple[str, ...]] = []
        self.n_phases = 0
        self.is_stalled = False
        """Too few sites are there to go on; they are waited for."""
        self._epoch_setup: EpochSetup | None = None
        self._view: EpochView | None = None
        self._origin: EpochView | None = None
        """The epoch whose nonces seed the trees: the first that was ready."""
        self._slot: Aggregator | None = None
        self._certificate = b""
        self._requests: dict[int, bytes] = {}
        """The slot's requests, by how many releases they bring: most sites need the same."""
        self._burnt: list[BurntSlot] = []
        """Slots that were given up before their manifests."""
        self._next_slot = self._attempt = 0
        self._out: list[Outgoing] = []

    @property
    def task(self) -> Task:
        """What the run is for."""
        return self._task

    @property
    def ledger(self) -> Ledger:
        """What was released so far."""
        return self._ledger

    def _take(self, line: JournalledRelease) -> None:
        self._ledger = self._ledger.append(line.entry)
        self._replica.feed(line.release)
        self._releases.append(line.release)
        self.survivors.append(line.survivors)

    def _survivors_heard(self, slot: Aggregator) -> dict[int, str]:
        """The nodes whose vector is in the slot's sum and whose answer can be waited for, with their sites."""
        named = {node: self.sites.name(node) for node in slot.uploads}
        return {node: site for node, site in named.items() if self.sites.is_heard(site)
                and site not in self.sites.outsiders}  # fmt: skip

    def _ask_openers(self, requests: dict[int, bytes]) -> None:
        for node, request in requests.items():
            self.sites.openers.add(self.sites.name(node))
            self.sites.tried.add(self.sites.name(node))
            self._send(self.sites.name(node), Payload(MessageKind.UNMASK, request))

    def _ask_others(self) -> bool:
        """Ask the survivors that were not asked yet to help to open the sum; returns whether there were any."""
        slot = self._require_slot()
        others = {node: site for node, site in self._survivors_heard(slot).items() if site not in self.sites.openers}
        is_new = bool(set(others.values()) - self.sites.tried)
        self._ask_openers(slot.requests(others))
        # Who is asked for the first time has as long to answer as the others had. But nobody puts the end of a run off
        # by leaving and coming back.
        self.n_phases += is_new and not self.is_stalled and not self.sites.returning
        return bool(others)

    def _invite(self, site: str) -> None:
        """Ask a site to take part, from the next epoch on."""
        self.sites.outsiders.add(site)
        self.sites.members.discard(site)
        self.sites.ready.discard(site)
        self._send(site, invitation_to(self._task, self.run_id))

    def _send(self, site: str, message: Message) -> None:
        if site in self.sites.connected:
            self._out.append((site, encode(message)))

    def _send_origin(self, site: str) -> None:
        """Show a site that may be late whose signed nonces seed the trees; once, for there may be 32 MiB of them."""
        origin = self._origin if self._setup.plan.has_joint_structure else None
        if origin is not None and site in self.sites.connected - self.sites.knows_origin:
            self.sites.knows_origin.add(site)
            self._send(site, Payload(MessageKind.ORIGIN, origin.record))

    def _send_request(self, site: str) -> None:
        spec, seed = self._require_slot().signed_spec, self._replica.structure_seed
        n_releases, fresh = self._releases_for(site)
        self.sites.sent_spec.add(site)
        if len(fresh) not in self._requests:
            self._requests[len(fresh)] = encode(RoundRequest(n_releases, fresh, spec, seed))
        if site in self.sites.connected:
            self._out.append((site, self._requests[len(fresh)]))

    def _send_finished(self, site: str) -> None:
        if site in self.sites.outsiders:
            self._send_origin(site)
        digest, seed = self._replica.result_digest(), self._replica.structure_seed
        releases = self._releases_for(site)
        if self.salvaged is None:
            self._send(site, Finished(*releases, digest, seed))
        else:
            self._send(site, Salvaged(*releases, digest, seed, self.salvaged.code))

    def _releases_for(self, site: str) -> tuple[int, tuple[IntVector, ...]]:
        """How many releases there are, and those that the site, which is asked now, does not hold yet."""
        self.sites.asked.add(site)
        fresh = tuple(self._releases[self.sites.held.get(site, 0) :])
        self.sites.held[site] = len(self._releases)
        return len(self._releases), fresh

    def _require_slot(self) -> Aggregator:
        if self._slot is None:
            raise AggregationError("No slot is open.", code="no-slot")
        return self._slot

    def _tell(self, kind: RunEventKind, site: str = "", code: str = "") -> None:
        self._setup.observer(RunEvent(kind, len(self._releases), site, code))
