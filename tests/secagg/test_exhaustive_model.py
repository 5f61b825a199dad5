"""A lying coordinator that tells every node a different list, tried exhaustively for up to five nodes.

The answers come from the real participants: each is asked with every manifest that it could be shown, and what it
reveals is tabulated. Then all combinations over the nodes are enumerated, colluders revealing everything.
"""

from __future__ import annotations

import itertools

import pytest

from hedgerow.secagg.guarantees import Wishes, derive
from hedgerow.secagg.messages import SEED_SHARE, SLOT_KEY_SHARE, WITHHELD, Answer, NodePolicy
from hedgerow.secagg.transitions import Refusal
from tests.secagg.lab import Lab

CASES = [
    (n, c, t, u)
    for n in (3, 4, 5)
    for c in range(n)
    for t in range(1, n + 1)
    for u in range(t, n + 1)
    if c < t and 2 * t > n + c
]


def lab_for(n: int, c: int, t: int, u: int) -> Lab:
    policy = NodePolicy(min_cohort=2, min_honest_survivors=0, min_honest_group=0)
    return Lab(n, 2, wishes=Wishes(c, threshold=t, min_survivors=u), policy=policy)


def revealed(lab: Lab) -> list[list[tuple[frozenset[int], frozenset[int]]]]:
    """For every node, what it reveals under each manifest: (nodes whose seed share, nodes whose slot-key share)."""
    n = len(lab.sites)
    aggregator = lab.collected()
    table = []
    for holder in range(n):
        options = {(frozenset[int](), frozenset[int]())}
        for size in range(n + 1):
            for survivors in itertools.combinations(range(n), size):
                state = lab.node(holder)
                try:
                    step = state.unmask(
                        lab.session.contexts[lab.sites[holder]], lab.request(aggregator, holder, survivors)
                    )
                except Refusal:
                    continue
                kinds = Answer.from_signed(step.message or b"").kinds
                assert WITHHELD not in kinds
                about = dict(zip(sorted((*lab.view.peers(holder), holder)), kinds, strict=True))
                options.add(
                    (
                        frozenset(node for node, kind in about.items() if kind == SEED_SHARE),
                        frozenset(node for node, kind in about.items() if kind == SLOT_KEY_SHARE),
                    )
                )
        table.append(sorted(options, key=repr))
    return table


@pytest.mark.parametrize(("n", "c", "t", "u"), CASES)
def test_no_combination_of_manifests_isolates_a_node(n, c, t, u):
    """Never both secrets of an honest node; every sum that can be opened holds at least the guaranteed honest group.

    Without c colluders' worth of honest nodes, the enumeration covers every manifest for every honest node.
    """
    table = revealed(lab_for(n, c, t, u))
    honest = range(c, n)
    # No node reveals anything under a list that leaves it out or is too short, nor two kinds about one node.
    for holder in honest:
        for seeds, keys in table[holder]:
            assert not seeds & keys and holder not in keys
            assert not seeds or (holder in seeds and len(seeds) >= u)
    bound = derive(n, Wishes(c, threshold=t, min_survivors=u)).honest_group
    smallest = n
    for choice in itertools.product(*(table[holder] for holder in honest)):
        seed_open, key_open = [], []
        for node in honest:
            seed_open.append(c + sum(node in seeds for seeds, _ in choice) >= t)
            key_open.append(c + sum(node in keys for _, keys in choice) >= t)
        assert not any(seed and key for seed, key in zip(seed_open, key_open, strict=True))
        group = key_open.count(False)
        # The honest nodes whose slot keys are closed can be opened only all together.
        if group and all(seed or key for seed, key in zip(seed_open, key_open, strict=True)):
            smallest = min(smallest, group)
    assert smallest >= bound


@pytest.mark.parametrize(("n", "c", "t"), [(3, 0, 2), (4, 1, 3), (5, 1, 4), (5, 2, 4)])
def test_one_release_for_a_purpose(n, c, t):
    """With every assignment of the honest nodes to two slots of one purpose, at most one slot can be opened."""
    lab = lab_for(n, c, t, t)
    first = lab.collected("tree-1")
    requests = {node: lab.request(first, node, tuple(range(n))) for node in range(n)}
    openable = 0
    for answers_first in itertools.product([True, False], repeat=n - c):
        session, before = lab.session, dict(lab.session.nodes)
        for node, does in zip(range(c, n), answers_first, strict=True):
            if does:
                lab.answered(node, requests[node])
        second, refused = lab.open("tree-1"), 0
        for node in range(c, n):
            try:
                lab.masked(node, second)
            except Refusal:
                refused += 1
        assert refused == sum(answers_first)
        opens = [c + sum(answers_first) >= t, c + (n - c - refused) >= t]
        assert not all(opens)
        openable += any(opens)
        session.nodes, session.next_slot = before, 1
    assert openable
