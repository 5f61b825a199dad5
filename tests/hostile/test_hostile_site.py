"""Of five sites one is hostile, or on a line that flaps: the others get their model, or that of the rounds so far.

Time is by hand: a wait costs nothing, and how long a run took is a number that a test can ask for.
"""

from __future__ import annotations

import dataclasses
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hedgerow.client.budget import BudgetBook
from hedgerow.client.node import Node
from hedgerow.codec import Integers, Source, head
from hedgerow.crypto import Identity
from hedgerow.errors import AggregationError, EnvironmentFault, HedgerowError, RemoteProtocolError
from hedgerow.methods.registry import resolve
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import TrainingTask, ensemble_bytes
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.protocol.messages import (
    Done,
    Finished,
    Hello,
    MessageKind,
    Payload,
    Ready,
    Refused,
    RoundRequest,
    RunState,
    decode,
    encode,
)
from hedgerow.secagg import masks, participant
from hedgerow.secagg.messages import Acknowledgement, Kind, RoundSpec, ShareMessage
from hedgerow.secagg.transitions import Code
from hedgerow.server.coordinator import RunEvent
from hedgerow.server.release import UNCOUNTED, Outcome, Releaser
from hedgerow.server.sites import MAX_UNACKNOWLEDGED, Connection, Consent, Sites
from hedgerow.storage import Database
from hedgerow.transport.grpc_link import DEFAULTS, require_size
from hedgerow.transport.interface import Arrived
from tests.builders import coded, make_plan
from tests.wards import SumOverSurvivors

if TYPE_CHECKING:
    from conftest import Builder, Federation, Party

    from tests.memory_network import MemoryHub

HOSTILE, HONEST = "site-0", ("site-1", "site-2", "site-3", "site-4")
N_TREES = 6


@pytest.fixture
def plan() -> Plan:
    """Six rounds of one tree."""
    return make_plan(model={"n_trees": N_TREES})


def signing(site: str) -> Identity:
    """The signing key of a party of a federation in memory."""
    return Identity(site.encode().ljust(32, b"."))


def hostile(federation: Federation, change: Callable[[bytes], list[bytes]] = lambda m: [m]) -> Party:
    """The hostile site: what it sends is changed on its way out. What the tests note of all others they check."""
    party, note = federation.parties[HOSTILE], federation.note

    def only_the_others(event: Arrived) -> None:
        if event.site != HOSTILE:
            note(event)

    federation.note = only_the_others  # type: ignore[method-assign]
    start = party.start

    def wrap() -> None:
        if party.uplink is None:
            return
        send = party.uplink.send
        party.uplink.send = lambda message: all([send(each) for each in change(message)])  # type: ignore[method-assign]

    def started() -> None:
        start()
        wrap()

    party.start = started  # type: ignore[method-assign]
    wrap()
    return party


def named(federation: Federation, *kinds: str) -> set[tuple[str, str]]:
    """Of which sites something was said, and what."""
    return {(event.site, event.code) for event in federation.events if event.kind in kinds}


def rounds_masked(federation: Federation, site: str) -> set[int]:
    """The rounds of which a vector of this site came, whatever became of it."""
    rounds: dict[tuple[bytes, int], int] = {}
    for _, message in federation.sent:
        request = decode(message)
        if isinstance(request, RoundRequest):
            spec = RoundSpec.from_signed(request.signed_spec)
            rounds[spec.epoch, spec.slot] = request.round
    return {rounds[epoch, slot] for name, epoch, slot in federation.uploads if name == site}


def model_so_far(federation: Federation) -> bytes:
    """The trees of the rounds that were released, by a program without masks over the sites that were in each."""
    session, outcome = federation.session, federation.session.run.outcome
    settings = resolve(outcome.plan)
    nodes = {site: Node(site, rows, outcome.plan, settings) for site, rows in federation.data.items()}
    sums = SumOverSurvivors(nodes, session.run.survivors)
    replica, releaser = Replica(TrainingTask(outcome.plan)), Releaser(federation.noise, UNCOUNTED)
    for _ in session.run.survivors:
        replica.feed(releaser.release(replica.query, sums.sum_answers(replica.query)))
    assert list(outcome.ledger)[: len(session.run.survivors)] == list(releaser.ledger)
    if outcome.salvaged is not None:
        assert replica.end_early()
    return ensemble_bytes(replica.ensemble)


def check(federation: Federation, outcome: Outcome, among: tuple[str, ...] = HONEST) -> None:
    """The model is exact, every honest site has the same and paid for what it masked, and nothing stays reserved."""
    assert ensemble_bytes(outcome.ensemble) == model_so_far(federation)
    assert outcome.report.epsilon <= outcome.plan.privacy.epsilon
    assert len(outcome.ledger) >= len(federation.session.run.survivors)
    for site in among:
        party = federation.parties[site]
        assert not party.failures and party.is_done, site
        assert ensemble_bytes(party.session.result) == ensemble_bytes(outcome.ensemble)
        assert (party.session.salvaged is None) == (outcome.salvaged is None)
        (line,) = party.book.lines()
        assert line.status == "finished"
        assert sum(event.count for event in line.events) == len(rounds_masked(federation, site))


def check_salvaged(federation: Federation, outcome: Outcome, code: str, n_used: int) -> None:
    """The run ended early, by this code, with the model of so many rounds; the file says so and is read back."""
    check(federation, outcome)
    assert outcome.salvaged is not None
    assert (outcome.salvaged.code, outcome.salvaged.n_used, outcome.salvaged.n_planned) == (code, n_used, N_TREES)
    assert outcome.ensemble.n_trees == n_used
    model = Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report, salvaged=outcome.salvaged)
    place = federation.folder / "salvaged.json"
    model.save(place)
    again = Model.load(place)
    assert again.salvaged == outcome.salvaged and again.to_bytes() == model.to_bytes()


def when(federation: Federation, kind: str, number: int, act: Callable[[], None], code: str = "") -> None:
    """Carry something out when an event of a kind comes for the nth time."""
    seen, before = [0], federation.on_event

    def watch(event: RunEvent) -> None:
        before(event)
        if event.kind == kind and code in ("", event.code):
            seen[0] += 1
            if seen[0] == number:
                act()

    federation.on_event = watch


# Claims ---------------------------------------------------------------------------------------------------------------


def claim(federation: Federation, site: str) -> None:
    """The site says that it holds far more releases than there are."""
    session, uplink = federation.session, federation.parties[site].uplink
    uplink.send(encode(Hello(1, session.run.run_id, session.run.view.digest, 65_000)))


def test_what_one_site_claims_to_hold_ends_no_run(federate: Builder, plan: Plan) -> None:
    """One message of one site once closed the journal of a run for good, after nearly all of it was paid for."""
    federation = federate(5, plan)
    hostile(federation)
    when(federation, "released", 4, lambda: claim(federation, HOSTILE))
    outcome = federation.run()
    check(federation, outcome)
    assert outcome.salvaged is None
    assert named(federation, "complaint", "left-out") == {(HOSTILE, "releases-claimed")}
    assert HOSTILE not in federation.session.run.survivors[-1]


def test_a_site_that_takes_its_claim_back_takes_part_again(federate: Builder, plan: Plan) -> None:
    """It is left out while it claims what cannot be, and no longer."""
    federation = federate(5, plan)
    party = hostile(federation)
    when(federation, "released", 2, lambda: claim(federation, HOSTILE))
    when(federation, "released", 4, party.restart)
    outcome = federation.run()
    check(federation, outcome)
    assert [HOSTILE in survivors for survivors in federation.session.run.survivors][-1]


def test_several_sites_that_hold_more_are_believed(federate: Builder, plan: Plan) -> None:
    """More sites than are taken to lie: then the journal is the older one, and its ledger may not be published."""
    federation = federate(5, plan)

    def act() -> None:
        claim(federation, "site-0")
        claim(federation, "site-3")

    when(federation, "released", 4, act)
    federation.note = lambda _: None  # type: ignore[method-assign]
    with pytest.raises(RemoteProtocolError) as caught:
        federation.run()
    assert caught.value.code == "journal-rolled-back" and federation.session.run.outcome is None


def claiming_at_the_end(federation: Federation, *sites: str) -> None:
    """These sites have the result, and say in place of it that they hold more releases than there are."""

    def lying(send: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
        def sending(message: bytes) -> bool:
            claim = Hello(7, federation.session.run.run_id, bytes(32), 60_000)
            return send(encode(claim) if is_kind(message, MessageKind.DONE) else message)

        return sending

    for site in sites:
        uplink = federation.parties[site].uplink
        uplink.send = lying(uplink.send)  # type: ignore[method-assign]


def test_a_whole_run_is_not_given_up_for_what_sites_claim(federate: Builder, plan: Plan) -> None:
    """There are no more releases than all: that so many sites say so tells of these sites, not of the journal."""
    federation = federate(5, plan)
    claiming_at_the_end(federation, "site-0", "site-3")
    outcome = federation.run()
    assert outcome.salvaged is None and federation.model_bytes(outcome) == federation.survivors_model()
    assert named(federation, "complaint") == {("site-0", "releases-claimed"), ("site-3", "releases-claimed")}
    assert federation.model_bytes(federation.run()) == federation.model_bytes(outcome)


def test_a_part_that_was_saved_stays_in_the_journal_whatever_sites_claim(federate: Builder, plan: Plan) -> None:
    """Its ledger may say too little if they are right, so nothing is made of it now; if they lie, nothing is lost."""
    federation = federate(5, plan)
    claiming_at_the_end(federation, "site-3", "site-4")
    gone = ("site-0", "site-1", "site-2")
    when(federation, "released", 3, lambda: [federation.parties[site].kill() for site in gone])
    with pytest.raises(RemoteProtocolError, check=coded("journal-rolled-back")):
        federation.run()
    for site in gone:
        federation.parties[site].start()
    outcome = federation.run()
    assert outcome.salvaged is not None and outcome.salvaged.n_used == 3


# Messages that no engine carries --------------------------------------------------------------------------------------

LIMIT = dataclasses.replace(DEFAULTS, max_message_bytes=1 << 20)
"""An engine's limit on a message; lower than by default, which saves time and changes nothing else."""


def with_limit(federation: Federation) -> None:
    """The hub in memory refuses what is too long for an engine, in the same place as the hub of an engine."""

    def tamper(hub: MemoryHub) -> None:
        send = hub.send

        def sending(site: str, message: bytes) -> bool:
            require_size(message, LIMIT)
            return send(site, message)

        hub.send = sending  # type: ignore[method-assign]

    federation.tamper = tamper


def dealing(change_of_length: int | None) -> Callable[[bytes], list[bytes]]:
    """The hostile site's first sealed item is so much longer; with None as long as the message has room for."""

    def change(message: bytes) -> list[bytes]:
        payload = decode(message)
        if not isinstance(payload, Payload) or payload.content[4:5] != bytes((Kind.SHARES,)):
            return [message]
        said = ShareMessage.from_signed(payload.content)
        sealed = [bytes(len(said.sealed[0]) + (change_of_length or 0)), *said.sealed[1:]]
        if change_of_length is None:
            # The other items make room for the first one.
            room = LIMIT.max_message_bytes - len(message) + sum(map(len, said.sealed))
            sealed = [bytes(room), *[b""] * (len(said.sealed) - 1)]
        changed = dataclasses.replace(said, sealed=tuple(sealed)).to_signed(signing(HOSTILE))
        return [encode(Payload(payload.kind, changed))]

    return change


@pytest.mark.parametrize("change_of_length", [None, 1, -1])
def test_shares_of_another_length_name_who_dealt_them(federate: Builder, change_of_length: int | None) -> None:
    """One item as long as a message made its holder's delivery longer: the coordinator ended, at every start."""
    federation = federate(5, make_plan(model={"n_trees": N_TREES, "structure_seed": "joint"}))
    with_limit(federation)
    hostile(federation, dealing(change_of_length))
    outcome = federation.run()
    assert outcome.salvaged is None and federation.session.run.attempt <= 3
    assert (HOSTILE, Code.CONTENT_MISMATCH.value) in named(federation, "complaint")
    assert {site for site, _ in named(federation, "complaint", "left-out")} == {HOSTILE}
    for site in HONEST:
        party = federation.parties[site]
        assert not party.failures and party.is_done and party.book.lines()[0].status == "finished"


@pytest.mark.parametrize("kind", [MessageKind.SETUP, MessageKind.ROUND_REQUEST, MessageKind.FINISHED])
def test_a_site_whose_message_is_too_long_is_gone_and_the_run_goes_on(
    federate: Builder, plan: Plan, kind: MessageKind
) -> None:
    """Whatever makes a message too long for its engine: it costs one site its place, and no run."""
    federation = federate(5, plan)

    def tamper(hub: MemoryHub) -> None:
        send = hub.send

        def sending(site: str, message: bytes) -> bool:
            if site == HOSTILE and is_kind(message, kind):
                require_size(bytes(LIMIT.max_message_bytes + 1), LIMIT)
            return send(site, message)

        hub.send = sending  # type: ignore[method-assign]

    federation.tamper = tamper
    outcome = federation.run()
    check(federation, outcome)
    assert outcome.salvaged is None and (HOSTILE, "oversized") in named(federation, "left")


# Vectors and shares that nobody can check ----------------------------------------------------------------------------


@contextmanager
def masking_by(monkeypatch: pytest.MonkeyPatch, slot: int, how: str) -> Iterator[None]:
    """From a slot on, node 0 masks random words, or deals shares of another seed, or shares that do not open."""
    mask_upload, split, seal = participant.mask_upload, masks.split, masks.seal

    def masked(keys: Any, spec: Any, words: dict[str, Any], identity: Any, entropy: Any) -> Any:
        if keys.node == 0 and spec.slot >= slot:
            if how == "random words":
                for name, word in words.items():
                    bits = np.frombuffer(os.urandom(word.nbytes), word.dtype)
                    words[name] = (bits | word.dtype.type(1 << (8 * word.itemsize - 3))).copy()
            elif how == "another seed":
                monkeypatch.setattr(masks, "split", lambda _, *rest: split(os.urandom(32), *rest))
            else:
                monkeypatch.setattr(masks, "seal", lambda *rest: os.urandom(len(seal(*rest))))
        try:
            return mask_upload(keys, spec, words, identity, entropy)
        finally:
            monkeypatch.setattr(masks, "split", split)
            monkeypatch.setattr(masks, "seal", seal)

    monkeypatch.setattr(participant, "mask_upload", masked)
    yield
    monkeypatch.undo()


def test_random_words_for_the_last_vector_cost_the_last_round_only(
    federate: Builder, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The masks do not show whose vector it was, so nobody is named; the rounds before are a model, and the one that
    was spoilt is charged like any release.
    """
    federation = federate(5, plan)
    hostile(federation)
    with masking_by(monkeypatch, N_TREES - 1, "random words"):
        outcome = federation.run()
    check_salvaged(federation, outcome, "sum-out-of-range", N_TREES - 1)
    assert len(outcome.ledger) == N_TREES
    assert named(federation, "complaint", "left-out") == set()
    assert all(site in str(federation.session.run.fault) for site in (HOSTILE, *HONEST))


@pytest.mark.parametrize("how", ["another seed", "closed shares"])
def test_the_dealer_of_a_secret_that_cannot_be_rebuilt_is_named(
    federate: Builder, plan: Plan, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Nodes answer a purpose once, so that sum is lost; the others' rounds are not, and all know who did it."""
    federation = federate(5, plan)
    hostile(federation)
    with masking_by(monkeypatch, 3, how):
        outcome = federation.run()
    check_salvaged(federation, outcome, "secret-unrecoverable", 3)
    assert named(federation, "complaint", "left-out") == {(HOSTILE, "secret-unrecoverable")}
    assert f"secret of {HOSTILE}, which dealt" in str(federation.session.run.fault)
    assert federation.now < plan.federation.idle_timeout


def test_a_plan_may_forbid_to_salvage(federate: Builder, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a run that cannot go on ends by name and without a model, as one without any release does."""
    strict = dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, salvage=False))
    assert strict.digest != plan.digest and Plan.from_dict(strict.to_dict()) == strict
    federation = federate(5, strict)
    hostile(federation)
    with masking_by(monkeypatch, 3, "another seed"), pytest.raises(AggregationError) as caught:
        federation.run()
    assert caught.value.code == "secret-unrecoverable"
    for site in HONEST:
        book = BudgetBook(federation.parties[site].folder / "budget.db")
        (line,) = book.lines()
        assert (line.status, sum(event.count for event in line.events)) == ("stopped", 4)
        book.close()


def test_a_coordinator_that_dies_while_it_salvages_salvages_the_same(
    federate: Builder, plan: Plan, killed: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the run has ended, and with which rounds, is in one write with the release that nobody goes on from."""
    federation = federate(5, plan)
    hostile(federation)

    def die(event: RunEvent) -> None:
        if event.kind == "salvaged":
            raise killed

    federation.on_event = die
    with masking_by(monkeypatch, 4, "random words"):
        with pytest.raises(killed):
            federation.run()
        federation.on_event = lambda _: None
        outcome = federation.run()
    check_salvaged(federation, outcome, "sum-out-of-range", 4)
    assert len(outcome.ledger) == 5


# Set-ups that do not come to an end ----------------------------------------------------------------------------------


def is_kind(message: bytes, kind: MessageKind) -> bool:
    """Whether a message of a run is of this kind."""
    return message[4] == kind


def hangs_up(federation: Federation, kinds: tuple[MessageKind, ...], *, forgets: bool = False) -> None:
    """The hostile site hangs up, and dials again, in place of every message of these kinds."""
    party = federation.parties[HOSTILE]
    due: list[bool] = []

    def change(message: bytes) -> list[bytes]:
        if message[4] in kinds and federation.session.run.state is not RunState.OVER:
            due.append(True)
            return []
        if forgets and is_kind(message, MessageKind.HELLO):
            said = decode(message)
            assert isinstance(said, Hello)
            return [encode(Hello(said.connection))]
        return [message]

    hostile(federation, change)
    pump = party.pump

    def pumped() -> bool:
        handled = pump()
        if due:
            due.clear()
            party.restart()
        return handled

    party.pump = pumped  # type: ignore[method-assign]


def test_a_site_that_hangs_up_at_every_set_up_is_left_out_of_the_third(federate: Builder, plan: Plan) -> None:
    """Sixteen such set-ups once ended the run; the budget of all sites was for nothing."""
    federation = federate(5, plan)
    hangs_up(federation, (MessageKind.SETUP_ANSWER,))
    outcome = federation.run()
    check(federation, outcome)
    assert outcome.salvaged is None and federation.session.run.attempt == 3
    assert named(federation, "complaint", "left-out") == {(HOSTILE, "set-up-broken"), (HOSTILE, "set-ups-broken")}
    assert all(survivors == HONEST for survivors in federation.session.run.survivors)


def test_a_site_that_comes_back_without_its_epoch_begins_few_new_ones(federate: Builder) -> None:
    """A new epoch takes a site in again that lost its state; one that loses it in every round is not waited for."""
    federation = federate(5, make_plan(model={"n_trees": 20}))
    party = hostile(
        federation, lambda m: [encode(Hello(decode(m).connection))] if is_kind(m, MessageKind.HELLO) else [m]
    )
    federation.on_event = lambda event: party.restart() if event.kind == "released" else None
    outcome = federation.run()
    check(federation, outcome)
    assert outcome.salvaged is None and federation.session.run.attempt <= 4
    assert "its epoch" in federation.session.run.sites[HOSTILE].fault_counts.text()


def test_no_epoch_names_those_who_broke_the_set_ups(federate: Builder) -> None:
    """Of three sites all are needed: the run ends, and says because of whom."""
    federation = federate(3, make_plan())
    hangs_up(federation, (MessageKind.SETUP_ANSWER,))
    with pytest.raises(AggregationError) as caught:
        federation.run()
    assert caught.value.code in ("too-few-sites", "no-epoch")
    assert HOSTILE in caught.value.what
    assert not any(f"{site} broke" in caught.value.what for site in HONEST)


# Acknowledgements ----------------------------------------------------------------------------------------------------


def not_acknowledging(*victims: int) -> Callable[[bytes], list[bytes]]:
    """In the nth set-up the hostile site does not acknowledge the nth of these nodes, in all later ones the last."""
    left = list(victims)

    def change(message: bytes) -> list[bytes]:
        payload = decode(message)
        if not isinstance(payload, Payload) or payload.kind is not MessageKind.SETUP_ANSWER:
            return [message]
        if payload.content[4] != Kind.ACKNOWLEDGEMENT:
            return [message]
        said = Acknowledgement.from_signed(payload.content)
        victim = left.pop(0) if len(left) > 1 else left[0]
        held = tuple(node for node in said.held if node != victim)
        forged = dataclasses.replace(said, held=held).to_signed(signing(HOSTILE))
        return [encode(Payload(MessageKind.SETUP_ANSWER, forged))]

    return change


def test_not_acknowledging_an_honest_site_names_both_ends_and_costs_one_at_most(federate: Builder, plan: Plan) -> None:
    """Nobody else can see which of the two has failed; so one honest site may be left out, and never a second."""
    federation = federate(5, plan)
    hostile(federation, not_acknowledging(4))
    outcome = federation.run()
    check(federation, outcome)
    assert outcome.salvaged is None and federation.session.run.attempt == 2
    assert named(federation, "complaint", "left-out") == {(HOSTILE, "not-acknowledged"), ("site-4", "not-acknowledged")}
    assert all(len(set(HONEST) - set(survivors)) <= 1 for survivors in federation.session.run.survivors)


def test_a_site_that_failed_to_acknowledge_another_keeps_no_third_one_out(federate: Builder) -> None:
    """It is in the epoch and will be in no other; honest sites that came later were never taken in beside it."""
    federation = federate(6, make_plan(model={"n_trees": 20}), must_start=False)
    for site in list(federation.parties)[:5]:
        federation.parties[site].start()
    hostile(federation, not_acknowledging(4))
    when(federation, "released", 5, federation.parties["site-5"].start)
    outcome = federation.run()
    check(federation, outcome, ("site-1", "site-2", "site-3", "site-5"))
    assert "site-5" in federation.session.run.survivors[-1]


@pytest.mark.parametrize(
    ("pairs", "left"),
    [
        ([("a", "b")], "cdefg"),
        ([("a", "b"), ("b", "a")], "cdefg"),
        ([("a", "b"), ("a", "c"), ("d", "a")], "bcdefg"),
        ([("a", "b"), ("a", "c"), ("d", "e")], "bcfg"),
    ],
)
def test_of_missing_acknowledgements_the_end_of_most_pairs_goes_first(
    federate: Builder, pairs: list[tuple[str, str]], left: str
) -> None:
    """A hostile site that failed to acknowledge several honest ones took all of them along."""
    plan = make_plan()
    sites = Sites(federate(7, plan).roster, plan)
    for site in sites:
        site.link, site.consent = Connection.CONNECTED, Consent.READY
    named = dict(zip("abcdefg", (site.name for site in sites), strict=True))
    for one, other in pairs:
        sites[named[one]].fault_counts.unacknowledged[named[other]] = MAX_UNACKNOWLEDGED
    assert sites.members_for_next_epoch() == {named[letter] for letter in left}


def test_who_fails_to_acknowledge_a_second_site_goes_itself(federate: Builder, plan: Plan) -> None:
    """The site that is an end of more missing pairs goes first: whoever does it to two is the one."""
    federation = federate(5, plan)
    hostile(federation, not_acknowledging(4, 3))
    outcome = federation.run()
    check(federation, outcome)
    assert set(federation.session.run.survivors[-1]) == set(HONEST)


def test_of_a_pair_that_never_agrees_both_go_where_enough_are_left(federate: Builder, plan: Plan) -> None:
    """And where a run stands still because the hostile one of the two is gone, the honest one is taken in again."""
    federation = federate(5, plan)
    party = hostile(federation, not_acknowledging(4))
    when(federation, "released", 3, party.kill)
    outcome = federation.run()
    check(federation, outcome)
    assert outcome.salvaged is None
    assert set(federation.session.run.survivors[-1]) == set(HONEST)


# Timeouts ------------------------------------------------------------------------------------------------------------


def answers_nothing_but_speaks(federation: Federation, kinds: tuple[MessageKind, ...], words: int = 1000) -> Party:
    """The hostile site lets the time of a round pass, and says a word when it is over, so that it is asked again."""
    party = hostile(federation, lambda message: [] if message[4] in kinds else [message])
    left = [words]

    def act(event: RunEvent) -> None:
        if event.kind == "silent" and event.site == HOSTILE and party.uplink is not None and left[0]:
            left[0] -= 1
            party.uplink.send(encode(Refused(0, "rolled-back")))

    federation.on_event = act
    return party


@pytest.mark.parametrize(
    "kinds", [(MessageKind.UPLOAD,), (MessageKind.ANSWER,), (MessageKind.UPLOAD, MessageKind.ANSWER)]
)
def test_a_site_that_spends_its_time_is_asked_no_more(federate: Builder, kinds: tuple[MessageKind, ...]) -> None:
    """Thirty rounds took thirty times a round's timeout, because one site said a word after each."""
    federation = federate(5, make_plan(model={"n_trees": 30}))
    answers_nothing_but_speaks(federation, kinds)
    outcome = federation.run()
    check(federation, outcome)
    assert outcome.salvaged is None
    assert federation.now <= 3 * federation.plan.federation.round_timeout
    assert named(federation, "left-out") == {(HOSTILE, "timeouts-spent")}
    assert not named(federation, "complaint")


@pytest.mark.parametrize("word", [b"x" * 9, encode(Refused(0, "rolled-back"))])
def test_words_without_end_do_not_put_a_timeout_off(federate: Builder, word: bytes) -> None:
    """A site that withholds its vector and speaks twice a second held a round open for ever."""
    federation = federate(5, make_plan(model={"n_trees": N_TREES}))

    def change(message: bytes) -> list[bytes]:
        is_late = is_kind(message, MessageKind.UPLOAD) and len(federation.session.run.survivors) >= 2
        return [] if is_late else [message]

    party = hostile(federation, change)

    def speaks(timeout: float) -> bool:
        if len(federation.session.run.survivors) < 2 or party.uplink is None or timeout < 0.5:
            return False
        federation.now += 0.5
        assert federation.now < 100 * federation.plan.federation.round_timeout, "the run hangs"
        party.uplink.send(word)
        return True

    federation.while_waiting = speaks  # type: ignore[method-assign]
    outcome = federation.run()
    check(federation, outcome)
    assert outcome.salvaged is None and (HOSTILE, "") in named(federation, "silent")
    assert federation.now < 2 * N_TREES * federation.plan.federation.round_timeout


def test_words_that_take_long_to_read_do_not_put_a_timeout_off(federate: Builder) -> None:
    """Of a site that withholds its vector, 4,096 messages were read after the deadline, whatever each of them cost."""
    federation = federate(5, make_plan(model={"n_trees": N_TREES}))

    def change(message: bytes) -> list[bytes]:
        is_late = is_kind(message, MessageKind.UPLOAD) and len(federation.session.run.survivors) >= 2
        return [] if is_late else [message]

    party, note, begun = hostile(federation, change), federation.note, []

    def costly(event: Arrived) -> None:
        note(event)
        is_waited_for = (HOSTILE, "") not in named(federation, "silent")
        if begun and is_waited_for and event.site == HOSTILE and party.uplink is not None:
            federation.now += federation.plan.federation.round_timeout / 8
            party.uplink.send(b"x" * 9)

    def begins(_: float) -> bool:
        is_time = not begun and len(federation.session.run.survivors) >= 2 and party.uplink is not None
        return is_time and not begun.append(party.uplink.send(b"x" * 9))

    federation.note, federation.while_waiting = costly, begins  # type: ignore[method-assign]
    outcome = federation.run()
    check(federation, outcome)
    assert outcome.salvaged is None and (HOSTILE, "") in named(federation, "silent")
    assert federation.now < 3 * N_TREES * federation.plan.federation.round_timeout


@pytest.mark.parametrize("kind", [MessageKind.FINISHED, MessageKind.ROUND_REQUEST, MessageKind.SALVAGED])
def test_nothing_is_read_of_what_only_the_coordinator_may_send(
    federate: Builder, plan: Plan, monkeypatch: pytest.MonkeyPatch, kind: MessageKind
) -> None:
    """One message of 16 MiB, three million empty vectors, took the coordinator ten seconds and 600 MB."""
    federation = federate(5, plan)
    forged = head(kind) + bytes(4) + (1000).to_bytes(4, "big") + bytes(5000)
    hostile(federation, lambda message: [forged, message])
    read, n_read = Integers.read, []

    def counted(form: Integers, source: Source) -> Any:
        n_read.extend([1] * (source.data == forged))
        return read(form, source)

    monkeypatch.setattr(Integers, "read", counted)
    check(federation, federation.run())
    assert not n_read and (HOSTILE, "malformed-message") in named(federation, "complaint")


def bytes_in(found: object) -> int:
    """Bytes that a fact of a run holds on to."""
    values = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    return sum(len(value) for value in values if isinstance(value, bytes))


def greets_for_each_release(federation: Federation, state: RunState) -> list[tuple[int, int]]:
    """In this phase one site says for every release that it holds those before it; what was sent, and what is kept."""
    note, found = federation.note, []

    def act(event: Arrived) -> None:
        note(event)
        session = federation.session
        run = session.run
        if found or event.site != HOSTILE or run.state is not state or len(run.releases) < 4:
            return
        hello = Hello(1, run.run_id, run.view.digest)
        greetings = [dataclasses.replace(hello, n_releases=held) for held in range(len(run.releases))]
        n_sent = sum(len(message) for each in greetings for _, message in session.receive(HOSTILE, encode(each)))
        found.append((n_sent, sum(map(bytes_in, vars(run).values()))))

    federation.note = act  # type: ignore[method-assign]
    return found


def test_what_a_site_says_that_it_holds_keeps_no_message_in_memory(federate: Builder, plan: Plan) -> None:
    """Two hundred greetings of 88 bytes, each of another number of releases, kept 414 MB of requests."""
    federation = federate(5, plan)
    found = greets_for_each_release(federation, RunState.COLLECTING_VECTORS)
    check(federation, federation.run())
    ((n_sent, n_kept),) = found
    assert n_kept < n_sent / 4


def test_who_asks_for_the_end_again_is_sent_what_was_made_before(
    federate: Builder, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last release was encoded again for every site, and for every greeting of each."""
    federation, made = federate(5, plan), []
    encoded = Finished.to_bytes
    monkeypatch.setattr(Finished, "to_bytes", lambda own: made.append(1) or encoded(own))
    check(federation, federation.run())
    assert len(made) == 1


def silent_in_every(federation: Federation, number: int) -> None:
    """After every so many releases one site is silent until the coordinator has noticed."""
    party = federation.parties[HOSTILE]

    def act(event: RunEvent) -> None:
        if event.kind == "released":
            party.is_frozen = event.round % number == 0
        elif event.kind == "silent":
            party.is_frozen = False

    federation.on_event = act


def test_an_honest_site_on_a_line_that_flaps_ends_no_run(federate: Builder) -> None:
    """It is silent in every third round, and takes part in the others until it has used up its time."""
    federation = federate(5, make_plan(model={"n_trees": 30}))
    silent_in_every(federation, 3)
    outcome = federation.run()
    check(federation, outcome, (HOSTILE, *HONEST))
    assert outcome.salvaged is None and federation.now <= 4 * federation.plan.federation.round_timeout
    assert named(federation, "left-out") <= {(HOSTILE, "timeouts-spent")} and not named(federation, "complaint")


def test_a_slow_site_that_is_needed_is_asked_again(federate: Builder) -> None:
    """Of three sites all are needed: one that is silent in every second round still ends nothing."""
    federation = federate(3, make_plan(model={"n_trees": 12}))
    silent_in_every(federation, 2)
    outcome = federation.run()
    check(federation, outcome, (HOSTILE, *HONEST[:2]))
    assert outcome.salvaged is None and len(outcome.ledger) == 12


def test_sites_that_do_not_come_back_leave_the_model_of_the_rounds_so_far(federate: Builder, plan: Plan) -> None:
    """Two of five leave for good: the run waits for them, and then ends with what was paid for."""
    federation = federate(5, plan)

    def act() -> None:
        federation.parties["site-0"].kill()
        federation.parties["site-1"].kill()

    when(federation, "released", 3, act)
    outcome = federation.run()
    assert outcome.salvaged is not None and outcome.salvaged.code == "too-few-sites"
    assert outcome.salvaged.n_used == outcome.ensemble.n_trees == 3
    check(federation, outcome, HONEST[1:])


# Rounds that were burnt ----------------------------------------------------------------------------------------------


def withholding(federation: Federation, act: Callable[[], None], *, after: int) -> Party:
    """From a round on the hostile site masks nothing; at its begin something is carried out once."""
    when(federation, "released", after, act)
    released = [0]
    before = federation.on_event

    def watch(event: RunEvent) -> None:
        released[0] += event.kind == "released"
        before(event)

    federation.on_event = watch
    return hostile(federation, lambda m: [] if released[0] >= after and is_kind(m, MessageKind.UPLOAD) else [m])


def with_least(plan: Plan, least: int) -> Plan:
    """The plan with another number of sites that it needs."""
    return dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, min_sites=least))


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_round_that_may_not_be_repeated_leaves_the_model_of_those_before(
    federate: Builder, plan: Plan, killed: type[BaseException], is_killed: bool
) -> None:
    """Four of five sites are needed; one comes late and one withholds its vector. With the late one instead, both sums
    of the round could be opened, so no honest site would mask it again: the run ends by name, and doubts none of them.
    """
    federation = federate(5, with_least(plan, 4), must_start=False)
    for site in (HOSTILE, *HONEST[:3]):
        federation.parties[site].start()
    withholding(federation, federation.parties["site-4"].start, after=3)
    if is_killed:
        kill_at_burn(federation, killed)
        with pytest.raises(killed):
            federation.run()
        federation.parties[HOSTILE].kill()
    outcome = federation.run()
    check_salvaged(federation, outcome, "round-not-repeatable", 3)
    assert not named(federation, "refused")
    assert HOSTILE in str(federation.session.run.fault)


def test_a_first_round_that_may_not_be_repeated_ends_by_name_at_every_site(federate: Builder, plan: Plan) -> None:
    """Where nothing was released there is no model; the nodes end with the code of the coordinator, and pay for what
    they have masked.
    """
    federation = federate(5, with_least(plan, 4), must_start=False)
    for site in (HOSTILE, *HONEST[:3]):
        federation.parties[site].start()
    hostile(federation, lambda m: [] if is_kind(m, MessageKind.UPLOAD) else [m])
    when(federation, "phase", 1, federation.parties["site-4"].start, code="collecting-vectors")
    with pytest.raises(AggregationError) as caught:
        federation.run()
    assert caught.value.code == "round-not-repeatable" and HOSTILE in caught.value.what
    for site in HONEST:
        assert [fault.code for fault in federation.parties[site].failures] == ["round-not-repeatable"]
        with closing(BudgetBook(federation.parties[site].folder / "budget.db")) as book:
            (line,) = book.lines()
        assert (line.status, len(line.events)) == ("stopped", 0 if site == "site-4" else 1)


def kill_at_burn(federation: Federation, killed: type[BaseException]) -> None:
    """The coordinator's process is killed as soon as a slot was burnt."""
    before = federation.on_event

    def watch(event: RunEvent) -> None:
        before(event)
        if event.kind == "abandoned" and event.code == "too-few-uploads":
            federation.on_event = before
            raise killed

    federation.on_event = watch


def test_a_burnt_round_is_repeated_with_the_site_that_withheld_where_it_speaks(federate: Builder, plan: Plan) -> None:
    """In an epoch of all five both sums cannot be opened, and four vectors are enough there."""
    federation = federate(5, with_least(plan, 4), must_start=False)
    for site in (HOSTILE, *HONEST[:3]):
        federation.parties[site].start()
    party = withholding(federation, federation.parties["site-4"].start, after=3)

    def speak() -> None:
        party.uplink.send(encode(Refused(0, "rolled-back")))

    when(federation, "abandoned", 1, speak)
    outcome = federation.run()
    check(federation, outcome)
    assert outcome.salvaged is None and set(federation.session.run.survivors[-1]) == set(HONEST)


def test_who_refuses_a_round_whose_vectors_were_lost_is_not_doubted(federate: Builder, plan: Plan) -> None:
    """The vectors of a round were masked and never came; what their sites then refuse is what this run has burnt."""
    federation = federate(5, with_least(plan, 4), must_start=False)
    for site in (HOSTILE, *HONEST[:3]):
        federation.parties[site].start()
    is_lossy = [False]

    def lose(event: Arrived) -> bool:
        return is_lossy[0] and is_kind(event.message, MessageKind.UPLOAD)

    federation.tamper = losing(lose)

    def act() -> None:
        is_lossy[0] = True
        federation.parties["site-4"].start()

    when(federation, "released", 3, act)
    federation.on_event = chained(federation.on_event, lambda event: mend(federation, event, is_lossy))
    outcome = federation.run()
    assert outcome.salvaged is not None and outcome.salvaged.n_used == 3
    assert {site for site, code in named(federation, "refused") if code == "purpose-answered"} == set(HONEST[:3])
    for site in HONEST[:3]:
        assert [fault.code for fault in federation.parties[site].failures] == ["purpose-answered"]
    assert federation.parties["site-4"].is_done


def test_a_journal_of_an_earlier_version_is_refused_by_name(
    federate: Builder, plan: Plan, killed: type[BaseException]
) -> None:
    """Its epochs have bundles that hold all slot keys; the file is left as it was, for the version that wrote it."""
    federation = federate(4, plan)

    def die() -> None:
        raise killed

    when(federation, "released", 2, die)
    with pytest.raises(killed):
        federation.run()

    def exchange_version(version: int) -> int:
        with closing(sqlite3.connect(federation.folder / "journal.db")) as database:
            ((found,),) = database.execute("pragma user_version").fetchall()
            database.execute(f"pragma user_version = {version}")
            database.commit()
        return int(found)

    own = exchange_version(7)
    with pytest.raises(EnvironmentFault) as refused:
        federation.run()
    assert refused.value.code == "database-version"
    exchange_version(own)
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()


def losing(lose: Callable[[Arrived], bool]) -> Callable[[Any], None]:
    """A hub that loses what `lose` says."""

    def tamper(hub: Any) -> None:
        receive = hub.receive

        def lossy(timeout: float) -> Any:
            while True:
                event = receive(timeout)
                if not isinstance(event, Arrived) or not lose(event):
                    return event

        hub.receive = lossy

    return tamper


def chained(first: Callable[[RunEvent], None], second: Callable[[RunEvent], None]) -> Callable[[RunEvent], None]:
    """One after the other."""

    def both(event: RunEvent) -> None:
        first(event)
        second(event)

    return both


def mend(federation: Federation, event: RunEvent, is_lossy: list[bool]) -> None:
    """When the slot is given up the hostile site is gone for good, and the others' line is whole again."""
    if event.kind == "abandoned" and is_lossy[0]:
        is_lossy[0] = False
        federation.parties[HOSTILE].kill()
        for site in HONEST[:3]:
            federation.parties[site].uplink.send(encode(Refused(0, "rolled-back")))


# Whatever else -------------------------------------------------------------------------------------------------------


def test_words_that_change_nothing_change_nothing(federate: Builder, plan: Plan) -> None:
    """Refusals with changing codes, Ready for another plan, replays and late messages, one after the other."""
    federation = federate(5, plan)
    sent: list[bytes] = []
    party = hostile(federation, lambda message: [message, *(sent.append(message) or sent[-4:])])  # type: ignore[func-returns-value]
    codes = iter(range(10_000))

    def act(event: RunEvent) -> None:
        if event.kind in ("phase", "released") and party.uplink is not None and party.session is not None:
            run_id = federation.session.run.run_id
            for word in (Ready(run_id, bytes(32)), Refused(0, f"code-{next(codes)}"), Done(bytes(32))):
                party.uplink.send(encode(word))

    federation.on_event = act
    outcome = federation.run()
    check(federation, outcome)
    assert outcome.salvaged is None
    assert {site for site, _ in named(federation, "complaint", "left-out", "refused")} == {HOSTILE}


def mutated(chance: random.Random, message: bytes) -> bytes:
    """One byte changed, some cut off, some added, or none of it."""
    spoilt = bytearray(message)
    match chance.randrange(4):
        case 0 if len(spoilt) > 6:
            spoilt[chance.randrange(5, len(spoilt))] ^= chance.randrange(1, 256)
        case 1 if len(spoilt) > 6:
            del spoilt[chance.randrange(5, len(spoilt)) :]
        case 2:
            spoilt += chance.randbytes(chance.randrange(1, 9))
    return bytes(spoilt)


def made_up(chance: random.Random, federation: Federation, seen: list[bytes]) -> bytes:
    """A message of any kind: valid, replayed, or spoilt."""
    session = federation.session
    epoch = bytes(32) if session.run.view is None else session.run.view.digest
    count = chance.choice([0, len(session.run.releases), len(session.run.releases) + 1, 65_000])
    kinds = sorted(kind for kind in MessageKind if kind >= MessageKind.HELLO)
    words = [
        Hello(
            chance.getrandbits(64),
            chance.choice([session.run.run_id, bytes(32)]),
            chance.choice([epoch, bytes(32)]),
            count,
        ),
        Ready(session.run.run_id, chance.choice([bytes.fromhex(federation.plan.digest), bytes(32)])),
        Refused(count, chance.choice(["rolled-back", "corrupt-state", "purpose-answered", "disk-full", "x"])),
        Done(chance.randbytes(32)),
        Payload(chance.choice([k for k in kinds if k in (MessageKind.SETUP_ANSWER, MessageKind.UPLOAD, MessageKind.ECHO,
                                                         MessageKind.ANSWER)]), chance.randbytes(chance.randrange(40))),
    ]  # fmt: skip
    picked = encode(chance.choice(words)) if chance.random() < 0.6 or not seen else chance.choice(seen)
    return mutated(chance, picked)


@pytest.fixture
def quick_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk: no machine loses power here, and hundreds of runs would be mostly that."""
    begin = Database.__init__

    def hasty(self: Database, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self.rows("pragma synchronous = off")

    monkeypatch.setattr(Database, "__init__", hasty)
    monkeypatch.setattr("hedgerow.client.state._sync", lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 20))
@pytest.mark.usefixtures("quick_disks")
def test_whatever_one_site_sends_the_others_get_a_model(federate: Builder, first: int) -> None:
    """Sixty schedules of every kind of message, true and spoilt, of hang-ups and of silence, at any moment."""
    for seed in range(first, first + 20):
        chance = random.Random(seed)
        plan = make_plan(model={"n_trees": 4})
        if seed % 5 == 0:
            plan = dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, echo=True))
        federation = federate(5, plan, name=f"fuzz-{seed}")
        fuzz(federation, chance)
        try:
            outcome = federation.run()
        except HedgerowError as fault:
            raise AssertionError(f"schedule {seed} ended by {fault.code}") from fault
        check(federation, outcome)
        limits = plan.federation
        assert federation.now <= limits.join_timeout + 12 * limits.round_timeout + limits.idle_timeout, seed
        assert {site for site, code in named(federation, "complaint", "left-out") if code != "not-acknowledged"} <= {
            HOSTILE
        }, seed
        federation.close()


def fuzz(federation: Federation, chance: random.Random) -> None:
    """Let the hostile site do as chance will, for a while or to the end."""
    seen: list[bytes] = []
    budget = [chance.choice([3, 10, 60])]

    def change(message: bytes) -> list[bytes]:
        seen.append(message)
        if budget[0] <= 0 or chance.random() < 0.7:
            return [message]
        budget[0] -= 1
        return [[], [mutated(chance, message)], [message, message], [made_up(chance, federation, seen), message]][
            chance.randrange(4)
        ]

    party = hostile(federation, change)
    pump = party.pump

    def pumped() -> bool:
        handled = pump()
        if handled and budget[0] > 0 and federation.session is not None and chance.random() < 0.2:
            budget[0] -= 1
            if chance.random() < 0.2 or party.uplink is None:
                party.restart()
            else:
                party.uplink.send(made_up(chance, federation, seen))
        return handled

    def act(event: RunEvent) -> None:
        if event.kind == "silent" and party.uplink is not None and budget[0] > 0 and chance.random() < 0.7:
            budget[0] -= 1
            party.uplink.send(made_up(chance, federation, seen))

    party.pump = pumped  # type: ignore[method-assign]
    federation.on_event = act
