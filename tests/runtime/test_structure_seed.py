"""Nobody picks the trees: their seed is drawn by the sites, and a node begins with no other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from hedgerow.crypto import Identity
from hedgerow.local.training import train, without_secure_aggregation
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.messages import Finished, Message, MessageKind, Payload, RoundRequest, decode
from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.messages import EpochParameters, NoiseMode, Roster, Site
from hedgerow.secagg.view import EpochRecord
from tests.builders import make_plan
from tests.memory_network import telling
from tests.tiers import every

if TYPE_CHECKING:
    from conftest import Builder, Federation


@pytest.fixture
def plan() -> Plan:
    """A plan whose trees the sites draw."""
    return make_plan(model={"structure_seed": "joint", "n_trees": 8})


def key_of(name: str) -> bytes:
    """The public key of a made-up party."""
    return Identity(name.encode().ljust(32, b".")).public


def seed_of(federation: Federation) -> int:
    """The seed of the run's trees."""
    assert federation.session is not None and federation.session.run.outcome is not None
    seed = federation.session.run.outcome.plan.model.structure_seed
    assert isinstance(seed, int)
    return seed


def test_every_run_has_trees_of_its_own_which_the_local_engine_makes_again(federate: Builder, plan: Plan) -> None:
    """The model holds the plan with the drawn seed, so anyone can make it again; another run draws another seed."""
    seeds = set()
    for name in ("first", "second"):
        federation = federate(4, plan, name=name)
        outcome = federation.run()
        again = train(outcome.plan, federation.data, noise=SeededNoise(1)).to_bytes()
        assert federation.model_bytes(outcome) == again == federation.survivors_model()
        assert all(party.is_done and not party.failures for party in federation.parties.values())
        seeds.add(seed_of(federation))
    assert len(seeds) == 2


def test_the_local_engine_draws_with_masks_and_without(federate: Builder, plan: Plan) -> None:
    """One plan means the same wherever it runs; with the drawn seed both ways give one ensemble."""
    data = federate(4, plan).data
    masked = train(plan, data, noise=SeededNoise(1))
    plain = train(without_secure_aggregation(plan), data, noise=SeededNoise(1))
    assert masked.plan.model.structure_seed != plain.plan.model.structure_seed
    again = train(without_secure_aggregation(masked.plan), data, noise=SeededNoise(1))
    assert (again.ensemble.fitted.values == masked.ensemble.fitted.values).all()
    assert not plain.plan.has_joint_structure


@pytest.mark.parametrize("number", every(3, range(1, 16)))
def test_a_node_that_is_started_again_knows_the_trees(federate: Builder, plan: Plan, number: int) -> None:
    """The seed is on the node's disk with the releases that were made from it, at whatever message it is killed."""
    federation = federate(4, plan)
    victim = federation.parties["site-1"]
    victim.after(number, victim.restart)
    outcome = federation.run()
    assert victim.is_done and not victim.failures
    assert federation.model_bytes(outcome) == federation.survivors_model()


@pytest.mark.parametrize("writes", every(3, range(1, 17, 2)))
def test_a_coordinator_that_is_started_again_knows_the_trees(
    federate: Builder, plan: Plan, killed: type[BaseException], writes: int
) -> None:
    """The epoch that drew the seed is in the journal before anyone hears that it is ready."""
    federation = federate(4, plan)
    with pytest.raises(killed):
        federation.run(kill_after=writes)
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert not any(party.failures for party in federation.parties.values())


def run_with_a_late_site(federation: Federation) -> Any:
    """site-4 starts when two releases are out."""
    late = federation.parties["site-4"]
    late.kill()

    def watch(event: Any) -> None:
        if event.kind == "released" and event.round >= 2 and late.session is None and not late.failures:
            late.start()

    federation.on_event = watch
    return federation.run()


def test_a_site_that_comes_late_sees_that_nobody_picked_the_seed(federate: Builder, plan: Plan) -> None:
    """It gets the signed nonces of those who drew the seed, and takes part from the next epoch on."""
    federation = federate(5, plan)
    outcome = run_with_a_late_site(federation)
    origins = [site for site, message in federation.sent if message[4] == MessageKind.ORIGIN]
    assert "site-4" in origins and "site-4" in federation.session.run.survivors[-1]
    assert "site-4" not in federation.session.run.survivors[0]
    assert federation.parties["site-4"].is_done and not federation.parties["site-4"].failures
    assert federation.model_bytes(outcome) == federation.survivors_model()


def test_a_site_that_comes_for_the_end_only_has_the_model_too(federate: Builder) -> None:
    """Who was in no round gets the releases with the proof of their seed, and makes the model from them."""
    federation = federate(5, make_plan(model={"structure_seed": "joint", "n_trees": 4}))
    run_with_a_late_site(federation)
    late = federation.parties["site-4"]
    assert late.is_done and not late.failures
    assert all("site-4" not in survivors for survivors in federation.session.run.survivors)


def other_seed(message: Message) -> Message:
    if isinstance(message, RoundRequest | Finished):
        return dataclasses.replace(message, structure_seed=message.structure_seed ^ 1)
    return message


def other_seed_after_a_release(message: Message) -> Message:
    return other_seed(message) if isinstance(message, RoundRequest) and message.round else message


def other_seed_at_the_end(message: Message) -> Message:
    return other_seed(message) if isinstance(message, Finished) else message


@pytest.mark.parametrize("lie", [other_seed, other_seed_after_a_release, other_seed_at_the_end])
@pytest.mark.parametrize("is_joint", [True, False])
def test_a_node_begins_with_no_seed_that_the_coordinator_picked(
    federate: Builder, lie: Callable[[Message], Message], is_joint: bool
) -> None:
    """It knows from the nonces, or from the plan, what the seed is, in every round and at the end."""
    federation = federate(5, make_plan(model={"structure_seed": "joint" if is_joint else 3}))
    federation.tamper = telling("site-0", lie)
    federation.run()
    assert [fault.code for fault in federation.parties["site-0"].failures] == ["structure-seed"]


def without_origin(message: Message) -> Message | None:
    return None if isinstance(message, Payload) and message.kind is MessageKind.ORIGIN else message


def test_a_late_site_refuses_a_seed_without_its_origin(federate: Builder, plan: Plan) -> None:
    """A coordinator that only claims that the seed was drawn before the site came is not believed."""
    federation = federate(5, plan)
    federation.tamper = telling("site-4", without_origin)
    run_with_a_late_site(federation)
    assert [fault.code for fault in federation.parties["site-4"].failures] == ["structure-seed"]


def test_a_late_site_refuses_an_origin_that_was_not_signed(federate: Builder, plan: Plan) -> None:
    """One bit of the record, wherever it is, makes it nobody's."""
    for place in (40, 200, 700, -1):
        federation = federate(5, plan, name=f"bit {place}")

        def forged(message: Message, place: int = place) -> Message:
            if isinstance(message, Payload) and message.kind is MessageKind.ORIGIN:
                content = bytearray(message.content)
                content[place] ^= 1
                return Payload(message.kind, bytes(content))
            return message

        federation.tamper = telling("site-4", forged)
        run_with_a_late_site(federation)
        assert len(federation.parties["site-4"].failures) == 1


def test_a_late_site_refuses_the_origin_of_another_run(federate: Builder, plan: Plan) -> None:
    """Nonces are signed for one run: a seed that turned out well in another cannot be brought along."""
    other = federate(5, plan, name="other")
    run_with_a_late_site(other)
    record = next(decode(message) for _, message in other.sent if message[4] == MessageKind.ORIGIN)
    federation = federate(5, plan)

    def swapped(message: Message) -> Message:
        return record if isinstance(message, Payload) and message.kind is MessageKind.ORIGIN else message

    federation.tamper = telling("site-4", swapped)
    run_with_a_late_site(federation)
    assert [fault.code for fault in federation.parties["site-4"].failures] == ["roster-mismatch"]


def test_a_replica_begins_with_one_seed_only(plan: Plan) -> None:
    """What the first epoch has drawn are the trees of the run, before its first release and after it."""
    replica, fresh = Replica(TrainingTask(plan)), Replica(TrainingTask(plan.with_structure_seed(8)))
    assert replica.query is None
    with pytest.raises(ValueError, match="not drawn"):
        _ = replica.structure_seed
    replica.begin(8, bytes(32))
    replica.begin(8, bytes(32))
    assert replica.history == fresh.history and replica.structure_seed == 8
    assert replica.query is not None and fresh.query is not None
    for seed, origin in ((9, bytes(32)), (8, b"." * 32)):
        with pytest.raises(ValueError, match="another seed"):
            replica.begin(seed, origin)


def swapping_origin(record: bytes) -> Callable[[Message], Message | None]:
    """Shows a late site this record in place of the origin."""

    def swapped(message: Message) -> Message:
        is_origin = isinstance(message, Payload) and message.kind is MessageKind.ORIGIN
        return Payload(MessageKind.ORIGIN, record) if is_origin else message

    return swapped


def test_a_late_site_looks_at_no_list_of_a_foreign_roster(federate: Builder, plan: Plan) -> None:
    """Thousands of made-up sites, each with its signatures, would keep it busy; whose roster it is costs nothing."""
    federation = federate(5, plan)
    strangers = Roster(key_of("coordinator"), tuple(Site(f"s{n}", key_of(f"s{n}")) for n in range(6)))
    parameters = EpochParameters(bytes(32), 1, strangers.hash(), 9, Wishes(0), NoiseMode.SERVER)
    record = EpochRecord(strangers, parameters, *[b"lists that nobody can read"] * 3).to_bytes()
    federation.tamper = telling("site-4", swapping_origin(record))
    run_with_a_late_site(federation)
    assert [fault.code for fault in federation.parties["site-4"].failures] == ["roster-mismatch"]


def test_a_late_site_refuses_an_origin_that_was_signed_for_another_roster(federate: Builder, plan: Plan) -> None:
    """Members refuse parameters for a roster that they have not pinned, and so does who only reads them."""
    older = federate(5, plan, name="older")
    older.coordinator_entropy = bytes
    run_with_a_late_site(older)
    content = next(decode(message).content for _, message in older.sent if message[4] == MessageKind.ORIGIN)
    federation = federate(6, plan)
    federation.coordinator_entropy = bytes
    record = dataclasses.replace(EpochRecord.from_bytes(content), roster=federation.roster).to_bytes()
    federation.tamper = telling("site-4", swapping_origin(record))
    run_with_a_late_site(federation)
    assert [fault.code for fault in federation.parties["site-4"].failures] == ["roster-mismatch"]
