"""Who is asked to open a sum: the fewest sites whose shares do, and all as soon as one of those does not."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from hedgerow.local_training import train
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.errors import AggregationError
from hedgerow.protocol.run_messages import MessageKind
from hedgerow.secagg.participant import Participant
from hedgerow.secagg.round_messages import SEED_SHARE, WITHHELD, Answer
from hedgerow.transport.memory import Direction, Fate, Passing

if TYPE_CHECKING:
    from conftest import Builder, Federation

N_SITES, THRESHOLD = 7, 5
"""Of seven shares, five open a secret."""


def asked(federation: Federation) -> Counter[str]:
    """How often each site was asked for shares."""
    return Counter(site for site, message in federation.sent if message[4] == MessageKind.UNMASK)


def everybodys_model(federation: Federation) -> bytes:
    """What the local engine makes of all sites."""
    return train(federation.plan, federation.data, noise=SeededNoise(1)).to_bytes()


def test_no_more_sites_are_asked_than_are_needed(federate: Builder) -> None:
    """Shares beyond the threshold tell the coordinator nothing, and cost every site the work of giving them."""
    federation = federate(N_SITES)
    assert federation.model_bytes(federation.run()) == everybodys_model(federation)
    n_rounds = len(federation.session.survivors)
    assert asked(federation).total() == n_rounds * THRESHOLD
    assert max(asked(federation).values()) <= n_rounds


def test_with_an_echo_everybody_is_asked(federate: Builder, factory: Any) -> None:
    """That a manifest is the only one is shown by how many confirm it."""
    plan = factory.make_plan()
    echoing = dataclasses.replace(plan.federation, echo=True)
    federation = federate(N_SITES, dataclasses.replace(plan, federation=echoing))
    assert federation.model_bytes(federation.run()) == everybodys_model(federation)
    assert set(asked(federation)) == set(federation.data)
    assert asked(federation).total() == len(federation.session.survivors) * N_SITES


@pytest.mark.parametrize("n_gone", [1, 2])
def test_others_are_asked_at_once_when_one_leaves(federate: Builder, n_gone: int) -> None:
    """A site that was asked and is gone costs no timeout: another one's shares do as well, of the same manifest."""
    gone: list[str] = []

    def fate(passing: Passing) -> Fate:
        if passing.direction is Direction.TO_NODE and passing.message[4] == MessageKind.UNMASK and len(gone) < n_gone:
            gone.append(passing.site)
            federation.parties[passing.site].is_frozen = True
        return Fate.DELIVER

    federation = federate(N_SITES, faults=fate)

    def vanish(_: float) -> bool:
        waiting = [site for site in gone if federation.parties[site].uplink is not None]
        for site in waiting:
            federation.parties[site].kill()
        return bool(waiting)

    federation.while_waiting = vanish
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert federation.session.survivors[0] == tuple(sorted(federation.data))
    assert len(federation.manifests) == len(federation.session.survivors)
    assert "silent" not in {event.kind for event in federation.events}


def test_others_are_asked_when_one_is_silent(federate: Builder) -> None:
    """A site that was asked and is frozen is given up after one timeout, and the sum is opened without its shares."""
    frozen: list[str] = []

    def fate(passing: Passing) -> Fate:
        if passing.direction is Direction.TO_NODE and passing.message[4] == MessageKind.UNMASK and not frozen:
            frozen.append(passing.site)
            federation.parties[passing.site].is_frozen = True
        return Fate.DELIVER

    federation = federate(N_SITES, faults=fate)
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert federation.session.survivors[0] == tuple(sorted(federation.data))
    assert [event.site for event in federation.events if event.kind.value == "silent"] == frozen
    # One timeout for the round in which it froze, and one for it to take its leave at the end.
    assert federation.now <= 2 * federation.plan.federation.round_timeout


def altered(answer: Answer, *, withheld: bool) -> Answer:
    """An answer whose shares were left out, or are each of the right form and wrong."""
    if withheld:
        return dataclasses.replace(answer, kinds=(WITHHELD,) * len(answer.kinds), shares=())
    shares = tuple(bytes([*share[:-1], share[-1] ^ 1]) for share in answer.shares)
    return dataclasses.replace(answer, shares=shares)


@pytest.mark.parametrize("withheld", [True, False], ids=["withheld", "wrong"])
@pytest.mark.parametrize("n_liars", [1, 2])
def test_others_are_asked_when_the_shares_of_some_do_not_do(
    federate: Builder, monkeypatch: pytest.MonkeyPatch, n_liars: int, withheld: bool
) -> None:
    """With none to spare a wrong share hides the secret; with the others' shares it is found, and the sum is exact."""
    answer = Participant._answer

    def lying(self: Participant, *arguments: Any) -> Any:
        told, complaints = answer(self, *arguments)
        assert SEED_SHARE in told.kinds
        return (altered(told, withheld=withheld) if self.node < n_liars else told), complaints

    federation = federate(N_SITES)
    expected = everybodys_model(federation)
    monkeypatch.setattr(Participant, "_answer", lying)
    assert federation.model_bytes(federation.run()) == expected
    assert asked(federation).total() > len(federation.session.survivors) * THRESHOLD
    assert len(federation.manifests) == len(federation.session.survivors)


def test_when_nobodys_shares_do_the_run_ends_by_name(federate: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking the others is done once; a sum that cannot be opened is not waited for, and nothing is released."""
    answer = Participant._answer

    def lying(self: Participant, *arguments: Any) -> Any:
        told, complaints = answer(self, *arguments)
        return altered(told, withheld=False), complaints

    monkeypatch.setattr(Participant, "_answer", lying)
    federation = federate(N_SITES)
    with pytest.raises(AggregationError) as caught:
        federation.run()
    assert caught.value.code == "secret-unrecoverable"
    assert asked(federation) == dict.fromkeys(federation.data, 1)
    assert not federation.session.survivors
