"""The graph's published parameters and the arithmetic of the guarantees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.secagg.guarantees import (
    Wishes,
    complete,
    default_colluders,
    default_threshold,
    derive,
    echo_quorum,
    harary,
    harary_parameters,
    isolation_bound,
)
from hedgerow.secagg.transitions import Refusal

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


@pytest.mark.parametrize(("n", "colluders", "drops", "semi_malicious", "expected"), PUBLISHED)
def test_the_published_table_is_reproduced(n, colluders, drops, semi_malicious, expected):
    """Eighteen published entries, exactly: our integer arithmetic and their floating point agree."""
    assert harary_parameters(n, colluders, drops, semi_malicious) == expected


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
    ("n", "colluders", "expected"), [(10, 0, 6), (10, 2, 4), (10, 3, 2), (100, 0, 51), (100, 16, 30), (100, 32, 4)]
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
        (500, Wishes(25, threshold=9, max_drops=25, is_sparse=True, has_echo=True)),
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


def test_a_sparse_manifest_is_vouched_for_by_as_many_as_it_must_list():
    """On a sparse graph a coordinator could list survivors whose headers few nodes see: all u must echo."""
    guarantees = derive(1000, Wishes(50, max_drops=100, is_sparse=True, has_echo=True))
    assert guarantees.quorum == guarantees.min_survivors == 900 and guarantees.honest_group == 850


GOLDEN = {5: (1, 2), 1: (0, 5), 0: (1, 6), 6: (0, 3), 3: (4, 6), 4: (3, 7), 7: (2, 4), 2: (5, 7)}
