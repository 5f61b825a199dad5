"""A node's two vectors for one round, masked in two epochs: at most one of the sums can be opened."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.secagg.guarantees import default_threshold
from hedgerow.secagg.view import Cohort

MEMBERS = st.sets(st.integers(0, 5), min_size=3).map(frozenset)


def both_can_be_opened(first: Cohort, second: Cohort) -> bool:
    """By trying: who colludes answers in both epochs, who is honest in one of them."""
    everyone = sorted(first.members | second.members)
    for colluders in combinations(everyone, min(first.n_colluders, second.n_colluders)):
        honest = [node for node in everyone if node not in colluders]
        for choices in product((0, 1), repeat=len(honest)):
            answers = [set(colluders), set(colluders)]
            for node, choice in zip(honest, choices, strict=True):
                answers[choice].add(node)
            if all(len(who & c.members) >= c.least for who, c in zip(answers, (first, second), strict=True)):
                return True
    return False


@settings(max_examples=150, deadline=None)
@given(MEMBERS, MEMBERS, st.integers(0, 1), st.integers(0, 1))
def test_two_epochs_that_exclude_each_other_cannot_both_be_opened(
    ours: frozenset[int], theirs: frozenset[int], few: int, many: int
) -> None:
    """Whatever the members, no way of answering opens both where the rule says so, by trying every one."""
    first = Cohort(b"1" * 32, ours, default_threshold(len(ours)), few)
    second = Cohort(b"2" * 32, theirs, default_threshold(len(theirs)), many)
    assert first.excludes(second) == second.excludes(first)
    if first.excludes(second):
        assert not both_can_be_opened(first, second)


def test_the_rule_lets_a_cohort_shrink_and_not_split() -> None:
    """Ten sites of which seven open a sum: six may go on with the round, three may not."""
    ten, six, three = (Cohort(bytes([n]) * 32, frozenset(range(n)), default_threshold(n), 0) for n in (10, 6, 3))
    assert ten.excludes(six) and not both_can_be_opened(ten, six)
    assert not ten.excludes(three) and both_can_be_opened(ten, three)


def test_a_cohort_is_read_as_it_was_written() -> None:
    """What a node knows of its masked vectors outlives its process."""
    cohort = Cohort(bytes(range(32)), frozenset({3, 1, 2}), 3, 1)
    assert Cohort.from_json(cohort.to_json()) == cohort
    of_roster = replace(cohort, roster=b"r" * 32)
    assert Cohort.from_json(of_roster.to_json()) == of_roster
    assert Cohort.from_json(f'["{bytes(32).hex()}", [1, 2, 3], 3, 1]') == replace(cohort, epoch=bytes(32))


def test_members_of_two_rosters_are_not_compared() -> None:
    """What the same numbers stand for is another node: however many they share, both could be opened."""
    one = Cohort(b"1" * 32, frozenset(range(10)), 10, 0, b"r" * 32)
    assert one.excludes(replace(one, epoch=b"2" * 32))
    assert not one.excludes(replace(one, epoch=b"2" * 32, roster=b"s" * 32))
