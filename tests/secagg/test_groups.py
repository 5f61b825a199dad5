"""Groups of sites are cohorts of their own: what is opened, by whom, and with how many."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.enrolment import EpochSetup
from hedgerow.secagg.guarantees import Wishes, assign_groups, default_wishes, derive
from hedgerow.secagg.masks import name_in
from hedgerow.secagg.messages import EchoCertificate, NodePolicy
from hedgerow.secagg.transitions import Code, Refusal, SumAbandoned
from hedgerow.secagg.view import Cohort, split_members
from tests.secagg.lab import Lab, SetUp, refusal_of, set_up

N_NODES, N_GROUPS = 12, 3
OPEN = NodePolicy(min_honest_survivors=1, min_honest_group=1)


def lab_of(seed: int = 1, *, has_echo: bool = False) -> Lab:
    """Twelve nodes in three groups of four, of whom three are needed."""
    return Lab(N_NODES, seed=seed, wishes=Wishes(1, n_groups=N_GROUPS, has_echo=has_echo), policy=OPEN)


@settings(max_examples=15, deadline=None)
@given(st.sets(st.integers(0, N_NODES - 1)), st.sets(st.integers(0, N_NODES - 1)), st.integers(1, 9))
def test_a_group_is_opened_whole_or_not_at_all(late: set[int], mute: set[int], seed: int) -> None:
    """Whoever is late with a vector or gives no answer: each sum that opens is that of its group's survivors, exactly,
    and the others are not opened; without most groups nothing is.
    """
    lab = lab_of(seed)
    parts = [set(part) for part in lab.view.parts]
    there = [part - late for part in parts]
    kept = [part for part in there if len(part) >= 3]
    try:
        aggregator, requests = lab.collected(absent=tuple(late)).close_vectors(lab.session.coordinator)
    except SumAbandoned:
        assert len(kept) < 2
        return
    assert set(aggregator.uploads) == set().union(*kept) and len(kept) >= 2
    answers = [lab.answered(node, requests[node]).message or b"" for node in requests if node not in mute]
    aggregator, complaints = aggregator.receive(answers)
    able = [part for part in kept if len(part - mute) >= 3]
    assert not complaints
    if len(able) < 2:
        with pytest.raises(SumAbandoned):
            aggregator.release(is_last=True)
        return
    opened = aggregator.release(is_last=True)[1]
    assert set(opened.survivors) == set().union(*able)
    for number, part in enumerate(parts):
        found = opened.sums.get(name_in(lab.view, "leaves", number))
        expected = sum(node + 1 for node in part - late)
        assert (found is not None) == (part - late in able)
        assert found is None or found.tolist() == [expected] * 4


grouped = cache(lambda stage: set_up(stage, N_NODES, Wishes(0, n_groups=N_GROUPS)))
"""A set-up in three groups of four, of whom three are needed; it is not changed."""
CLOSINGS = {
    "keys": EpochSetup.close_keys, "shares": EpochSetup.close_shares, "ready": EpochSetup.close_acknowledgements,
}  # fmt: skip


@pytest.mark.parametrize("stage", CLOSINGS)
@settings(max_examples=12, deadline=None)
@given(st.sets(st.integers(0, N_NODES - 1)))
def test_a_set_up_goes_on_only_with_enough_in_most_groups(stage: str, absent: set[int]) -> None:
    """Whoever is gone: with too few the step ends as too few, and accuses nobody of a list that is too short."""
    made: SetUp = grouped(stage)
    parts = split_members(made.server.roster, range(N_NODES), N_GROUPS, made.parameters.drawing)
    if stage == "keys":
        # Who is enough is counted among those who advertise: a group of two is refused for its size.
        absent = {node for part in parts if not absent.isdisjoint(part) for node in part}
    able = [part for part in parts if len({*part} - absent) >= 3]
    there = [message for node, message in enumerate(made.messages) if node not in absent]
    server, complaints = made.server.receive(there)
    assert not complaints
    found = refusal_of(lambda: CLOSINGS[stage](server))
    assert found is (None if len(able) >= 2 else Code.TOO_FEW_READY)


@cache
def echoing() -> tuple[Aggregator, dict[int, bytes]]:
    """An aggregator that waits for the echoes of three groups, and these."""
    lab = lab_of(has_echo=True)
    aggregator, requests = lab.collected().close_vectors(lab.session.coordinator)
    return aggregator, {node: lab.answered(node, requests[node]).message or b"" for node in requests}


@settings(max_examples=12, deadline=None)
@given(st.sets(st.integers(0, N_NODES - 1)), st.booleans())
def test_echoes_are_certified_only_with_a_quorum_in_each_group_that_is_kept(mute: set[int], is_last: bool) -> None:
    """Before the last call all groups are needed, then most: no certificate has fewer echoes than its nodes want."""
    waiting, echoes = echoing()
    view = waiting.view
    received, complaints = waiting.receive([echo for node, echo in echoes.items() if node not in mute])
    assert not complaints
    able = [part for part in view.parts if len({*part} - mute) >= view.by_node[part[0]].quorum]
    if len(able) < (2 if is_last else N_GROUPS):
        assert refusal_of(lambda: received.close_echoes(is_last=is_last)) is Code.TOO_FEW_ANSWERS
        return
    closed, certificate = received.close_echoes(is_last=is_last)
    assert {*closed.uploads} == set().union(*able)
    certified = EchoCertificate.from_bytes(certificate).nodes
    for part in able:
        assert len({*certified} & {*part}) == view.by_node[part[0]].quorum


def test_the_list_of_another_group_does_not_count() -> None:
    """A manifest that lists all of two groups and two nodes of a third is answered by no one of the third."""
    lab = lab_of()
    aggregator = lab.collected()
    few = lab.view.parts[0][:2]
    keep = tuple(sorted({*few, *lab.view.parts[1], *lab.view.parts[2]}))
    with pytest.raises(Refusal) as refused:
        lab.answered(few[0], lab.request(aggregator, few[0], keep))
    assert refused.value.reason is Code.TOO_FEW_SURVIVORS
    other = lab.view.parts[1][0]
    assert lab.answered(other, lab.request(aggregator, other, keep)).message


def test_what_is_promised_is_a_groups() -> None:
    """The guarantees are those of a federation of the group's size, and two epochs are compared by the group."""
    view = lab_of().view
    assert set(view.by_node.values()) == {derive(4, view.parameters.wishes)}
    for part in view.parts:
        assert Cohort.from_view(view, part[0]).members == frozenset(part)
        assert all(set(view.peers(node)) == set(part) - {node} for node in part)


@given(st.lists(st.binary(min_size=32, max_size=32), min_size=3, max_size=40, unique=True), st.sampled_from([3, 5]))
def test_groups_follow_from_keys_alone(keys: list[bytes], n_groups: int) -> None:
    """Not from the order of the roster; and their sizes differ by one at most."""
    of = dict(zip(keys, assign_groups(keys, n_groups), strict=True))
    turned = keys[::-1]
    assert of == dict(zip(turned, assign_groups(turned, n_groups), strict=True))
    sizes = [list(of.values()).count(group) for group in range(n_groups)]
    assert max(sizes) - min(sizes) <= 1


def test_an_even_number_of_groups_is_refused() -> None:
    """It has no middle."""
    for wishes in (Wishes(1, n_groups=2), replace(default_wishes(60, 60), n_groups=2)):
        with pytest.raises(Refusal) as refused:
            derive(60, wishes)
        assert refused.value.reason is Code.PARAMETERS_REFUSED
