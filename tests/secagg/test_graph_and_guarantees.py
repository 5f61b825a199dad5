"""The graph's published parameters and the arithmetic of the guarantees."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import comb
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.secagg.guarantees import (
    DEGREE,
    MAX_ATTEMPTS,
    MIN_COHORT,
    SECURITY_BITS,
    SPARSE_ABOVE,
    Graph,
    Wishes,
    complete,
    default_colluders,
    default_threshold,
    default_wishes,
    derive,
    derive_sparse,
    echo_quorum,
    harary,
    isolation_bound,
    most_marked,
)
from hedgerow.secagg.messages import EpochParameters, NodePolicy, NoiseMode
from hedgerow.secagg.session import EpochSession
from hedgerow.secagg.transitions import Refusal
from hedgerow.secagg.view import most_beside
from tests.secagg.lab import seeded_entropy

# google-parfait/federated-compute, fcp/secagg/server/graph_parameter_finder_test.cc: nodes, colluders, drops,
# semi-malicious, (degree, threshold).
PUBLISHED = [
    (100, 45, 45, False, (92, 46)), (10, 3, 3, False, (8, 4)), (100, 33, 33, False, (68, 34)),
    (1000, 330, 330, False, (286, 150)), (100, 30, 30, True, (92, 62)), (10, 0, 3, False, (4, 2)),
    (100, 5, 33, False, (28, 6)), (1000, 50, 330, False, (72, 24)), (10_000, 500, 3300, False, (86, 29)),
    (10, 0, 3, True, (8, 5)), (100, 5, 33, True, (72, 39)), (1000, 50, 330, True, (398, 223)),
    (10, 3, 0, False, (4, 4)), (100, 33, 5, False, (34, 29)), (1000, 330, 50, False, (78, 60)),
    (10, 3, 0, True, (4, 4)), (100, 33, 5, True, (42, 37)), (1000, 330, 50, True, (132, 109)),
]  # fmt: skip


def published_parameters(n: int, colluders: int, drops: int, semi_malicious: bool) -> tuple[int, int]:
    """Degree and threshold by the published rule: drops at random, security 2^-40, failure 2^-20."""
    bad = colluders + drops
    for degree in range(2, n - 1, 2):
        pairs_twice = n * (n - degree - 1)
        if degree <= bad and (pairs_twice * comb(bad, degree)) << SECURITY_BITS >= comb(n, degree):
            continue
        corrupt = most_marked(n, colluders, degree, 2 * n)
        if semi_malicious:
            corrupt = -((5 - 4 * (corrupt + degree)) // 8)
        dropped, tail = min(drops, degree), 0
        while dropped > 0:
            tail += comb(drops, dropped) * comb(n - drops, degree - dropped)
            if (tail * n) << 20 >= comb(n, degree):
                break
            dropped -= 1
        if degree - dropped > corrupt:
            return degree, max(corrupt + 1, 2)
    raise AssertionError("no degree")


@pytest.mark.parametrize(("n", "colluders", "drops", "semi_malicious", "expected"), PUBLISHED)
def test_the_published_table_is_reproduced(n, colluders, drops, semi_malicious, expected):
    """Eighteen published entries, exactly, by the tails that the product uses: they agree with others' arithmetic."""
    assert published_parameters(n, colluders, drops, semi_malicious) == expected


def tail(population: int, marked: int, drawn: int, least: int) -> Fraction:
    """Pr[at least `least` marked among `drawn`], by drawing one after another: another way than binomials."""
    chances = {0: Fraction(1)}
    for done in range(drawn):
        after = dict[int, Fraction]()
        for hit, chance in chances.items():
            hits = Fraction(marked - hit, population - done)
            for following, share in ((hit + 1, hits), (hit, 1 - hits)):
                after[following] = after.get(following, Fraction(0)) + chance * share
        chances = after
    return sum((chance for hit, chance in chances.items() if hit >= least), Fraction(0))


@pytest.mark.parametrize("n_groups", [0, 7])
@pytest.mark.parametrize("n", [51, 73, 200, 1000, 4096])
def test_a_sparse_graph_fails_more_rarely_than_it_says(n, n_groups):
    """All three ways together, in all groups and set-ups of a run, by fractions and another way of counting."""
    wishes = replace(default_wishes(*[n] * max(1, n_groups)), n_groups=n_groups)
    promised, c, k = derive(n, wishes), wishes.n_colluders, DEGREE
    isolated = n * tail(n - 1, c, k, promised.threshold)
    split = Fraction(n * (n - k - 1), 2) * tail(n, c, k, k - wishes.max_drops)
    # Two quorums without an honest node in both.
    doubled = tail(n, c, k, 2 * promised.quorum - k)
    assert MAX_ATTEMPTS * max(1, n_groups) * (isolated + split + doubled) <= Fraction(1, 2**SECURITY_BITS)


def test_sites_that_stay_away_keep_no_others_out() -> None:
    """Those of a roster that are there set up the graph of so many; all of the roster would refuse it as too weak."""
    names = [f"site-{number}" for number in range(SPARSE_ABOVE + 5)]
    wishes = default_wishes(len(names) - 3)
    there = EpochSession(names, 1, seeded_entropy(1), wishes=wishes, silent_at_setup={"keys": names[-3:]})
    assert there.view.guarantees == derive(len(names) - 3, wishes)
    with pytest.raises(Refusal):
        EpochSession(names, 1, seeded_entropy(1), wishes=wishes)


@settings(deadline=None)
@given(data=st.data(), n=st.integers(SPARSE_ABOVE + 1, 4096))
def test_a_node_takes_the_graph_of_any_part_of_its_roster(data, n):
    """Whoever is there, a node's first look at what is proposed refuses no graph that they would be safe on."""
    wishes = default_wishes(data.draw(st.integers(MIN_COHORT, n)))
    parameters = EpochParameters(bytes(32), 1, bytes(32), 1, wishes, NoiseMode.DISTRIBUTED)
    roster = Mock(sites=range(n))
    assert NodePolicy().require(parameters, most_beside(roster, parameters, 0)).n_colluders == wishes.n_colluders


@pytest.mark.parametrize("n", [*range(SPARSE_ABOVE + 1, 210), 500, 1000, 1001, 2048, 4096])
def test_a_sparse_graph_withstands_as_many_as_a_complete_one(n):
    """A quarter up to 200, later a twentieth; and a round that loses a site may be repeated by those who are left."""
    wishes = default_wishes(n)
    promised = derive(n, wishes)
    least = default_colluders(n) if n <= 200 else n // 20
    assert wishes.is_sparse and promised.n_colluders >= least and promised.honest_group > n // 2
    with pytest.raises(Refusal):
        derive(n, replace(wishes, n_colluders=least - 1))
    for left in (n - 1, n - n // 10):
        again = derive(left, default_wishes(left))
        assert promised.least_answers + again.least_answers > n + again.n_colluders
    # Who is missing cannot take a secret with it.
    assert promised.degree + 1 - wishes.max_drops >= promised.threshold


def test_the_document_has_the_numbers_of_sparse_graphs() -> None:
    """Its table is recomputed."""
    document = (Path(__file__).parents[2] / "docs" / "secure-aggregation.md").read_text(encoding="utf-8")
    lines = document.split("<!-- checked by tests/secagg/test_graph_and_guarantees.py -->")[1].split("\n\n")[0]
    rows = [[int(cell.replace(",", "")) for cell in line.split("|")[1:-1]] for line in lines.splitlines()[3:]]
    found = []
    for n in (row[0] for row in rows):
        wishes = default_wishes(n)
        of = derive(n, wishes)
        numbers = [n, of.n_colluders, wishes.max_drops, of.threshold, of.min_survivors, of.quorum, of.honest_group]
        found.append(numbers)
    assert len(rows) == 8 and rows == found


@given(st.sampled_from([(60, 61, 60), (51, 70), (200,) * 3, (90, 51)]))
def test_one_wish_fits_groups_of_unlike_sizes(sizes):
    """The numbers of an epoch are the same in all its groups."""
    wishes = replace(default_wishes(*sizes), n_groups=3)
    assert all(derive(size, wishes).degree == DEGREE for size in sizes)


def falls_apart(graph: Graph, gone: set[int]) -> bool:
    """Whether those who are not gone are in more than one piece."""
    left = [node for node in graph.neighbours if node not in gone]
    seen, front = {*left[:1]}, left[:1]
    while front:
        front = [near for node in front for near in graph.neighbours[node] if near not in gone and near not in seen]
        seen |= {*front}
    return len(seen) < len(left)


def test_two_places_of_the_ring_have_to_go() -> None:
    """All sets of 9 nodes: they fall apart exactly where two gaps of k/2 have a node that is left between them."""
    order, degree = list(range(9)), 4
    ring = Graph({n: tuple((n + step) % 9 for step in (-2, -1, 1, 2)) for n in order}, {})
    for size in range(9):
        for gone in map(set, combinations(order, size)):
            left = [n for n in order if n not in gone]
            following = [*left[1:], *left[:1]]
            gaps = sum((after - n - 1) % 9 >= degree // 2 for n, after in zip(left, following, strict=True))
            assert falls_apart(ring, gone) == (len(left) > 1 and gaps >= 2)


@settings(max_examples=10, deadline=None)
@given(st.integers(SPARSE_ABOVE + 1, 260), st.integers(0, 2**32))
def test_whoever_is_missing_the_others_stay_together(n, seed):
    """A coordinator that knows the graph leaves out a node's honest neighbours: those who are left are in one piece."""
    wishes = default_wishes(n)
    promised, graph = derive(n, wishes), harary(tuple(range(n)), DEGREE, seed.to_bytes(32, "big"))
    chosen = random.Random(seed).sample(range(n), wishes.n_colluders + 3)
    colluders = {*chosen[3:]}
    for node in chosen[:3]:
        honest = [near for near in graph.neighbours[node] if near not in colluders]
        assert DEGREE - len(honest) < promised.threshold
        assert not falls_apart(graph, {*colluders, *honest[: wishes.max_drops]})
    committee = graph.committee[0]
    assert len(committee) == DEGREE and 2 * promised.quorum > DEGREE + len(committee & colluders)


def test_an_arc_of_the_ring_is_no_cohort_of_its_own() -> None:
    """With numbers that are made for drops at random a coordinator cuts thirty honest sites out of 1,000.

    They are those that are published for 5 % of colluders and drops. The coordinator leaves the two ends of an arc out
    but for two colluders at each; all of the arc see as many survivors as they ask for. The numbers here refuse it.
    """
    n, degree, threshold, drops = 1000, 30, 17, 50
    assert published_parameters(n, 50, drops, False) == (degree, threshold)
    # The ring, for what is said of it does not hang on the order in which its members are drawn.
    ring = {node: tuple((node + step) % n for step in range(-15, 16) if step) for node in range(n)}
    arc, colluders = range(15, 45), {13, 14, 45, 46}
    gone = {*range(15), *range(45, 60)} - colluders
    assert len(gone) == 26 <= drops and falls_apart(Graph(ring, {}), gone | colluders)
    assert all(len({*ring[node]} - gone) >= threshold for node in arc)
    with pytest.raises(Refusal):
        derive_sparse(n, 50, len(gone))


@given(st.integers(3, 60), st.data())
def test_a_harary_graph_is_symmetric_regular_and_random(n, data):
    """Neighbours are mutual, each node has exactly `degree`, and another seed gives another graph."""
    degree = data.draw(st.integers(1, (n - 1) // 2)) * 2
    members = tuple(sorted(data.draw(st.permutations(range(n + 20)))[:n]))
    graph = harary(members, degree, bytes(32)).neighbours
    assert all(len(near) == degree and node not in near and list(near) == sorted(near) for node, near in graph.items())
    assert all(node in graph[other] for node, near in graph.items() for other in near)
    if n > 12 and degree < n // 2:
        assert graph != harary(members, degree, b"\x01" + bytes(31)).neighbours


def test_a_graph_keeps_its_neighbours_across_releases():
    """A golden graph: nodes of different versions must draw the same one from the same nonces."""
    assert harary(tuple(range(8)), 2, b"golden seed of thirty-two bytes!").neighbours == GOLDEN


def test_complete_means_everyone():
    """The complete graph leaves out nobody but oneself."""
    assert complete((0, 2, 5)).neighbours == {0: (2, 5), 2: (0, 5), 5: (0, 2)}


@pytest.mark.parametrize(
    ("n", "colluders", "expected"), [(10, 0, 6), (10, 2, 4), (10, 3, 2), (50, 0, 27), (50, 12, 11), (50, 16, 4)]
)
def test_the_honest_group_is_the_documented_one(n, colluders, expected):
    """The figures of the document, for the default threshold and as few survivors as it allows."""
    threshold = default_threshold(n)
    assert isolation_bound(n, colluders, threshold, threshold) == expected
    assert derive(n, Wishes(colluders)).honest_group == expected


@given(st.integers(2, 400))
def test_the_defaults_withstand_their_colluders(n):
    """t > c, 2t > n + c and at least one honest vector, for every cohort: the defaults are never refused."""
    guarantees = derive(n, Wishes(default_colluders(n)))
    c, t = guarantees.n_colluders, guarantees.threshold
    assert c < t and 2 * t > n + c and guarantees.honest_group >= 1
    # Two quorums of answers, or of echoes, share an honest node.
    assert 2 * (t - c) > n - c and 2 * (echo_quorum(n, c) - c) > n - c


@pytest.mark.parametrize(
    ("n", "wishes"),
    [
        (10, Wishes(10)), (10, Wishes(4)), (10, Wishes(0, threshold=5)), (10, Wishes(3, threshold=3, has_echo=True)),
        (10, Wishes(0, threshold=11)), (10, Wishes(0, min_survivors=11)),
        (500, Wishes(25, max_drops=25, is_sparse=True)),
        (10, Wishes(0, threshold=1, has_echo=True)), (30, Wishes(9, max_drops=25, is_sparse=True, has_echo=True)),
        (500, Wishes(50, threshold=9, max_drops=5, is_sparse=True, has_echo=True)),
        (500, Wishes(24, max_drops=5, is_sparse=True, has_echo=True)),
        (200, Wishes(49, max_drops=12, is_sparse=True, has_echo=True)),
        (20, Wishes(9, max_drops=9, is_sparse=True, has_echo=True)),
    ],
)  # fmt: skip
def test_parameters_that_break_an_inequality_are_refused(n, wishes):
    """Too many colluders, too low or too high thresholds, sparse without echo, no graph of that size."""
    with pytest.raises(Refusal):
        derive(n, wishes)


def test_an_echo_makes_the_group_all_but_the_colluders():
    """With a unique survivor list only the colluders' vectors can be taken away."""
    guarantees = derive(10, Wishes(3, has_echo=True))
    assert guarantees.quorum == 7 and guarantees.honest_group == guarantees.min_survivors - 3 == 4


GOLDEN = {5: (1, 2), 1: (0, 5), 0: (1, 6), 6: (0, 3), 3: (4, 6), 4: (3, 7), 7: (2, 4), 2: (5, 7)}
