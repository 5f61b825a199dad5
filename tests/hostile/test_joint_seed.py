"""Colluding sites and their coordinator draw the trees' seed among themselves until they like it."""

from __future__ import annotations

import dataclasses
import os
import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hedgerow.cli.main import main
from hedgerow.client.budget import MAX_UNUSED_DRAWS
from hedgerow.crypto import Identity
from hedgerow.errors import AggregationError
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.ledger import Release
from hedgerow.protocol.messages import MessageKind, Payload, RoundRequest, decode, encode
from hedgerow.rounds import choose_wishes, noise_mode
from hedgerow.secagg.enrolment import Enrolment, EpochSetup
from hedgerow.secagg.messages import EpochParameters, Kind, NodePolicy, Roster
from hedgerow.secagg.participant import NodeContext
from hedgerow.secagg.transitions import Code, refuse
from hedgerow.secagg.view import EpochView, nonce_seed
from hedgerow.server.coordinator import RunSession
from hedgerow.server.journal import JournalledRelease
from hedgerow.server.release import UNCOUNTED, Releaser
from hedgerow.transport.interface import Arrived, HubEvent
from tests.builders import make_plan
from tests.memory_network import MemoryHub

if TYPE_CHECKING:
    from conftest import Builder, Federation, Party

CHOSEN_BITS = 8
"""Of the seed; 256 draws on average, and an honest run allows 16."""
COLLUDERS = ("site-0", "site-1", "site-2")


@pytest.fixture
def plan() -> Plan:
    """A plan whose trees the sites draw."""
    return make_plan(model={"structure_seed": "joint", "n_trees": 4})


def identity(site: str) -> Identity:
    """The signing key of a party of a federation in memory."""
    return Identity(site.encode().ljust(32, b"."))


@dataclass
class Colluders:
    """Sites that sign whatever their coordinator wants, in a set-up of their own."""

    roster: Roster
    sites: Sequence[str]
    n_draws: int = 0

    def set_up(self, parameters: EpochParameters, nonces: dict[str, bytes]) -> EpochView:
        """Returns a ready epoch of these sites alone, with these nonces; every signature in it is good."""
        lenient = NodePolicy(min_cohort=1, min_honest_survivors=0, min_honest_group=0, max_slots=4096)
        contexts = {site: NodeContext(identity(site), self.roster, lenient) for site in self.sites}
        nodes: dict[str, Any] = {}
        setup = EpochSetup(self.roster, parameters)
        for site in self.sites:
            secrets = [os.urandom(32), os.urandom(32), nonces[site]]
            begun = Enrolment.begin(contexts[site], parameters.to_bytes(), lambda _, left=secrets: left.pop(0))
            nodes[site] = begun.state
            setup, _ = setup.receive([begun.message])
        setup, listed = setup.close_keys()
        steps: dict[str, Callable[[Any, NodeContext, Any], Any]] = {
            "close_nonces": lambda node, context, keys: node.reveal(context, keys),
            "close_shares": lambda node, context, revealed: node.share(context, revealed[node.node], os.urandom),
            "close_acknowledgements": lambda node, context, shares: node.acknowledge(context, shares[node.node]),
        }
        for close, step in steps.items():
            for site in self.sites:
                answered = step(nodes[site], contexts[site], listed)
                nodes[site] = answered.state
                setup, _ = setup.receive([answered.message])
            setup, listed = getattr(setup, close)()
        assert isinstance(setup, EpochView)
        return setup

    def grind(self, parameters: EpochParameters, wanted: Callable[[int], bool]) -> EpochView:
        """Returns an epoch whose nonces give a seed that is wanted; all but one of the nonces stay the same."""
        source = random.Random(7)
        nonces = {site: source.randbytes(32) for site in self.sites}
        numbered = {number: site.name for number, site in enumerate(self.roster.sites) if site.name in nonces}
        while True:
            self.n_draws += 1
            nonces[self.sites[0]] = source.randbytes(32)
            seed = nonce_seed("structure-seed", {number: nonces[site] for number, site in numbered.items()})
            if wanted(int.from_bytes(seed[:8], "big") >> 1):
                return self.set_up(parameters, nonces)


def begin_with(replica: Replica, origin: EpochView) -> None:
    """Grow the trees from an epoch."""
    replica.begin(origin.public_seed, origin.digest)


def is_chosen(seed: int) -> bool:
    """Whether a seed is one of those that the attackers like."""
    return seed % (1 << CHOSEN_BITS) == 0


def made_up_release(session: RunSession) -> JournalledRelease:
    """What the coordinator claims to have released before the honest sites came."""
    query = session.run.replica.query
    assert query is not None
    releaser = Releaser(session.run.setup.noise, UNCOUNTED, is_local=False)
    release = releaser.release(query, np.zeros(query.length, dtype=np.int64), None)
    (entry,) = releaser.ledger.releases
    assert isinstance(entry, Release)
    return JournalledRelease(release, entry, COLLUDERS)


def lie_about_the_origin(federation: Federation, monkeypatch: pytest.MonkeyPatch, n_members: int) -> Colluders:
    """The coordinator says that `n_members` sites, which collude, drew the seed and made a release before the others
    came.
    """
    colluders = Colluders(federation.roster, [site.name for site in federation.roster.sites[:n_members]])
    begin = RunSession.__init__

    def lying(self: RunSession, *arguments: Any) -> None:
        begin(self, *arguments)
        self.run.origin = colluders.grind(parameters_for(self, federation, n_members), is_chosen)
        self.run.attempt = 1
        begin_with(self.run.replica, self.run.origin)
        self.run.take(made_up_release(self))

    monkeypatch.setattr(RunSession, "__init__", lying)
    # To its colluders, who have taken up no run yet, it does not say that they were restored.
    monkeypatch.setattr(RunSession, "_has_answered_after", lambda *_: False)
    return colluders


def parameters_for(session: RunSession, federation: Federation, n_members: int) -> EpochParameters:
    """Those of a first epoch of the session's run."""
    plan, roster = federation.plan, federation.roster.hash()
    return EpochParameters(session.run.run_id, 1, roster, 8, choose_wishes(plan, [n_members]), noise_mode(plan))


def test_three_colluders_of_thirteen_cannot_choose_the_trees(
    federate: Builder, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may sign as many set-ups among themselves as they like: no honest site grows trees from any of them."""
    # What it made up itself a coordinator may call a model; here it shall end by name.
    plan = dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, salvage=False))
    federation = federate(13, plan)
    colluders = lie_about_the_origin(federation, monkeypatch, len(COLLUDERS))
    with pytest.raises(AggregationError):
        federation.run()
    honest = [party for site, party in federation.parties.items() if site not in COLLUDERS]
    assert colluders.n_draws > 16, "an honest run could have drawn that"
    assert [[fault.code for fault in party.failures] for party in honest] == [["cohort-too-small"]] * 10
    assert all("coordinator" in str(party.failures[0]) for party in honest)
    assert not federation.uploads


def test_an_origin_of_more_than_two_thirds_is_taken_from_a_late_start(
    federate: Builder, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine of thirteen are enough, so that dropouts at the first epoch do not end a federation's run; eight are not."""
    ends = {}
    for n_members in (8, 9):
        federation = federate(13, plan, name=f"members {n_members}")
        with monkeypatch.context() as patched:
            lie_about_the_origin(federation, patched, n_members)
            try:
                federation.run()
            except AggregationError:
                pass
        ends[n_members] = {fault.code for party in federation.parties.values() for fault in party.failures}
    assert ends == {8: {"cohort-too-small"}, 9: set()}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_who_was_in_one_origin_takes_no_other(federate: Builder, plan: Plan, is_restarted: bool) -> None:
    """Not even one that every site has signed, and not after a restart: a node says once what the trees come from."""
    federation = federate(4, plan)
    victim = federation.parties["site-0"]
    sites = [site.name for site in federation.roster.sites]
    told: list[bytes] = []

    def tamper(hub: MemoryHub) -> None:
        send = hub.send

        def lying(site: str, message: bytes) -> bool:
            if site == "site-0" and isinstance(decode(message), RoundRequest) and not told:
                parameters = parameters_for(federation.session, federation, len(sites))
                other = Colluders(federation.roster, sites).grind(parameters, is_chosen)
                told.append(other.record)
                if is_restarted:
                    victim.restart()
                    return True
            if site == "site-0" and told and isinstance(decode(message), RoundRequest):
                send(site, encode(Payload(MessageKind.ORIGIN, told[0])))
            return send(site, message)

        hub.send = lying  # type: ignore[method-assign]

    federation.tamper = tamper
    federation.run()
    assert told and [fault.code for fault in victim.failures] == ["structure-seed"]
    assert sum(party.is_done for party in federation.parties.values()) == 3


def test_the_sites_of_a_round_have_the_same_origin(plan: Plan) -> None:
    """A round's signed spec is bound to it: two nodes that were told different ones have masks that do not cancel."""
    contexts = set()
    for origin in (b"a" * 32, b"b" * 32):
        replica = Replica(TrainingTask(plan))
        replica.begin(7, origin)
        contexts.add(replica.context())
    assert len(contexts) == 2


def test_a_run_that_draws_its_trees_needs_more_than_two_thirds_of_the_roster_to_begin(
    federate: Builder, plan: Plan
) -> None:
    """It ends by name when fewer are there, though the plan asks for three sites only."""
    federation = federate(7, plan)
    for site in ("site-4", "site-5", "site-6"):
        federation.parties[site].kill()
    with pytest.raises(AggregationError) as refused:
        federation.run()
    assert refused.value.code == "too-few-sites"
    assert "5" in refused.value.cause and "seed" in refused.value.cause
    federation = federate(7, plan, name="one more")
    for site in ("site-5", "site-6"):
        federation.parties[site].kill()
    federation.run()


def test_an_epoch_that_broke_down_leaves_its_origin(federate: Builder, plan: Plan, killed: type[BaseException]) -> None:
    """The first epoch that was ready has drawn the seed, whatever became of it; a site of it goes on in a later one."""
    federation = federate(4, plan)
    with dying_without_vectors(federation, killed), pytest.raises(killed):
        federation.run()
    first = federation.session.run.origin
    write(federation, "update slots set slot = null, next_slot = 0", "update run set epoch = null")
    outcome = federation.run()
    assert outcome.plan.model.structure_seed == first.public_seed
    assert federation.session.run.view.digest != first.digest
    assert federation.model_bytes(outcome) == federation.survivors_model()


def test_a_journal_that_lost_its_origin_gets_no_other_trees(
    federate: Builder, plan: Plan, killed: type[BaseException]
) -> None:
    """Before the first release as well: a node that knows the seed answers nothing under another."""
    federation = federate(4, plan)
    with dying_without_vectors(federation, killed), pytest.raises(killed):
        federation.run()
    write(federation, "update slots set slot = null, next_slot = 0", "update run set epoch = null, origin = null")
    with pytest.raises(AggregationError):
        federation.run()
    faults = {fault.code for party in federation.parties.values() for fault in party.failures}
    assert faults == {"structure-seed"}


def begin_runs(federation: Federation, times: int, killed: type[BaseException], act: Callable[[], None]) -> list[str]:
    """Begin a run so many times, each dropped where its process is killed; returns how each ended."""
    ends = []
    for _ in range(times):
        try:
            federation.run()
            ends.append("model")
        except killed:
            ends.append("dropped")
        except AggregationError as fault:
            ends.append(fault.code)
        federation.drop_journal()
        act()
    return ends


def watch_nonces(party: Party, book_knows: list[bool]) -> None:
    """Before a node's nonce leaves it is looked up whether its book knows of the set-up, and of all before it."""
    start, sent = party.start, [0]

    def started() -> None:
        start()
        wrap()

    def wrap() -> None:
        uplink, digest = party.uplink, party.setup.plan.digest
        if uplink is None:
            return
        send = uplink.send

        def sending(message: bytes) -> bool:
            payload = decode(message)
            is_setup = isinstance(payload, Payload) and payload.kind is MessageKind.SETUP_ANSWER
            if is_setup and payload.content[4] == Kind.NONCE:
                sent[0] += 1
                book_knows.append(len(party.book.draws(digest)) == sent[0])
            return send(message)

        uplink.send = sending

    party.start = started  # type: ignore[method-assign]
    wrap()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_seed_cannot_be_drawn_over_many_runs_that_come_to_nothing(
    federate: Builder, plan: Plan, killed: type[BaseException], monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """A run that is given up before a vector is masked costs nothing, and gave one more seed to choose from each time;
    the nodes count these set-ups, over their own restarts too, and take part in 16.
    """
    federation = federate(4, plan)
    book_knows: list[bool] = []
    for party in federation.parties.values():
        watch_nonces(party, book_knows)

    def look_and_drop(_: EpochSetup) -> None:
        raise killed

    monkeypatch.setattr(EpochSetup, "close_nonces", look_and_drop)

    def act() -> None:
        for party in federation.parties.values():
            if restarts and not party.failures:
                party.restart()

    ends = begin_runs(federation, 18, killed, act)
    assert ends[:16] == ["dropped"] * 16 and ends[16] == "too-few-sites", ends
    assert [[fault.code for fault in party.failures] for party in federation.parties.values()] == [
        ["seed-drawn-too-often"]
    ] * 4
    assert book_knows == [True] * (4 * 16), "a nonce left before the book knew of it"


def test_the_last_set_up_that_is_left_may_be_one_in_the_middle_of_a_run(
    federate: Builder, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other runs have used up is missing in the next one: its nodes end by name, whatever it is that failed."""
    federation = federate(4, plan)
    for party in federation.parties.values():
        for number in range(14):
            party.book.note_draw(plan.digest, bytes([number]) * 32, 1)
    failed: list[EpochSetup] = []

    def fail(setup: EpochSetup) -> None:
        failed.append(setup)
        raise refuse(Code.REVEAL_MISSING, peer=0)

    monkeypatch.setattr(EpochSetup, "close_nonces", fail)
    with pytest.raises(AggregationError) as caught:
        federation.run()
    assert caught.value.code == "too-few-sites" and "seed-drawn-too-often" in caught.value.what
    assert len(failed) == 2
    assert [[fault.code for fault in party.failures] for party in federation.parties.values()] == [
        ["seed-drawn-too-often"]
    ] * 4


def test_the_owner_lets_the_seed_be_drawn_again(
    federate: Builder, plan: Plan, killed: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the owner sets the count back; then an honest run goes on to its model."""
    federation = federate(4, plan)

    def look_and_drop(_: EpochSetup) -> None:
        raise killed

    with monkeypatch.context() as patched:
        patched.setattr(EpochSetup, "close_nonces", look_and_drop)
        begin_runs(federation, 17, killed, lambda: None)
    for party in federation.parties.values():
        party.failures.clear()
        party.kill()
        assert main(["ledger", str(party.folder / "budget.db"), "--allow-draws", plan.digest[:6]]) == 2
        assert main(["ledger", str(party.folder / "budget.db"), "--allow-draws", plan.digest[:12]]) == 0
        party.start()
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()


def test_runs_that_were_paid_for_are_not_counted(federate: Builder, killed: type[BaseException]) -> None:
    """A coordinator that fails now and then after its first round, all through a plan's life, is not refused."""
    cheap = make_plan(model={"structure_seed": "joint", "n_trees": 4}, privacy={"epsilon": 0.5})
    federation = federate(4, cheap)
    with dying_without_vectors(federation, killed):
        assert begin_runs(federation, 18, killed, lambda: None) == ["dropped"] * 18
    federation.run()
    assert not any(party.failures for party in federation.parties.values())


@pytest.mark.parametrize("lost", [["node.db"], ["node.db", "counter.json", "kept"]])
def test_a_run_that_was_paid_for_stays_so_when_the_state_folder_is_lost(federate: Builder, lost: list[str]) -> None:
    """The book is kept then, as docs/deploy.md says, and it knows what the run has cost."""
    cheap = make_plan(model={"structure_seed": "joint", "n_trees": 2}, privacy={"epsilon": 0.3})
    federation = federate(4, cheap)
    federation.run()
    federation.drop_journal()
    for party in federation.parties.values():
        for number in range(MAX_UNUSED_DRAWS - 1):
            party.book.note_draw(cheap.digest, bytes([number]) * 32, 1)
        party.kill()
        for name in lost:
            for file in party.folder.glob(f"{name}*"):
                file.unlink()
        party.start()
        assert [line.status for line in party.book.lines()] == ["finished"]
    federation.run()
    assert not any(party.failures for party in federation.parties.values())


def test_set_ups_under_a_number_that_was_used_before_are_counted(
    federate: Builder, plan: Plan, killed: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that has lost its database takes such a number; its book knows that it is not the first set-up of it."""
    federation = federate(4, plan)

    def look_and_drop(_: EpochSetup) -> None:
        raise killed

    monkeypatch.setattr(EpochSetup, "close_nonces", look_and_drop)
    for _ in range(MAX_UNUSED_DRAWS):
        with pytest.raises(killed):
            federation.run()
        write(federation, "update run set attempt = 0")
        for party in federation.parties.values():
            party.kill()
            for file in party.folder.glob("node.db*"):
                file.unlink()
            party.start()
    with pytest.raises(AggregationError):
        federation.run()
    assert [[fault.code for fault in party.failures] for party in federation.parties.values()] == [
        ["seed-drawn-too-often"]
    ] * 4


@contextmanager
def dying_without_vectors(federation: Federation, killed: type[BaseException]) -> Iterator[None]:
    """The coordinator is killed when it has waited for masked vectors, of which none arrives."""

    def die(_: float) -> bool:
        raise killed

    federation.tamper, federation.while_waiting = dropping_uploads, die
    yield
    federation.tamper, federation.while_waiting = (lambda _: None), lambda _: False


def dropping_uploads(hub: MemoryHub) -> None:
    """A hub that loses every masked vector."""
    receive = hub.receive

    def losing(timeout: float) -> HubEvent | None:
        while True:
            event = receive(timeout)
            if not isinstance(event, Arrived) or event.message[4] != MessageKind.UPLOAD:
                return event

    hub.receive = losing  # type: ignore[method-assign]


def write(federation: Federation, *statements: str) -> None:
    """Change the coordinator's journal behind its back."""
    database = sqlite3.connect(federation.folder / "journal.db")
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()
