"""What a cohort is promised, as arithmetic: threshold, survivors, echo quorum and the guaranteed honest group.

n members, c of them colluding with the coordinator, threshold t, at least u survivors in any manifest.

- Curious coordinator: t > c, so that the colluders cannot rebuild a secret.
- Lying coordinator: for both secrets of one node it needs t answers of one kind and t of the other; the n - c honest
  answer one kind each and the c colluders both, so 2t > n + c makes it impossible. The same intersection allows at
  most one release for one purpose.
- Isolation by unequal lists: an honest answer excludes at most n - u nodes, and to strip a node's masks t - c honest
  answers must exclude it. So at most (n - c)(n - u)/(t - c) honest nodes are stripped, and every released sum holds at
  least ceil((n - c)(1 - (n - u)/(t - c))) honest vectors.
- With the echo exchange a node answers only after q > (n + c)/2 nodes signed the same manifest; two such quorums meet
  in an honest node, so the manifest is unique and the group is u - c. On a sparse graph, where a node sees only its
  neighbours' headers, q is at least u.

Who shares masks and secrets with whom: everyone with everyone, or a random Harary graph for large cohorts. With groups
of sites everyone with everyone of its group, and with no one else: each group is a cohort of its own, for which all of
the above holds with its own n, and the same c.

Source: Bell, Bonawitz, Gascón, Lepoint, Raykova 2020, "Secure single-server aggregation with (poly)logarithmic
overhead". The degree and the threshold follow the derivation of google-parfait/federated-compute
(`graph_parameter_finder`, whose published table the tests reproduce), here in exact integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb
from typing import Annotated

from hedgerow.codec import Record, Unsigned, YesNo, digest
from hedgerow.crypto import keystream
from hedgerow.secagg.transitions import Code, refuse

MAX_NODES = 4096
SMALLEST_COHORT = 3
"""Sites in a masked sum, at least: of two each would read the other's vector off it."""
NodeCount = Annotated[int, Unsigned(2, most=MAX_NODES)]


def default_threshold(n_nodes: int) -> int:
    """floor(2n/3) + 1, which withstands a lying coordinator with up to about n/3 colluders."""
    return 2 * n_nodes // 3 + 1


def origin_members(n_sites: int) -> int:
    """How many of a roster's sites an epoch needs whose nonces seed the trees: floor(2n/3) + 1.

    A node enrols once under each of an epoch's attempt numbers, and reveals its nonce for one list of commitments. Two
    epochs of one attempt with so many members each share an honest node wherever 2q > n + c, the inequality of the
    threshold: so all of a run's attempts give the coordinator and its c colluders no more than 16 seeds to choose from.
    """
    return default_threshold(n_sites)


def default_colluders(n_nodes: int) -> int:
    """floor((n - 1)/4): below the limit of the default threshold, leaving a comfortable honest group."""
    return (n_nodes - 1) // 4


def default_wishes(n_sites: int, least_colluders: int = 0) -> Wishes:
    """The complete graph up to SPARSE_ABOVE sites; beyond, a sparse one with echo, for 5 % and 5 %."""
    if n_sites <= SPARSE_ABOVE:
        return Wishes(max(least_colluders, default_colluders(n_sites)))
    return Wishes(n_sites // 20, max_drops=n_sites // 20, is_sparse=True, has_echo=True)


def isolation_bound(n_nodes: int, n_colluders: int, threshold: int, min_survivors: int) -> int:
    """The least number of honest vectors in any released sum, under unequal lists without an echo (>= 0)."""
    margin = threshold - n_colluders
    if margin <= 0:
        return 0
    numerator = (n_nodes - n_colluders) * (margin - (n_nodes - min_survivors))
    return max(0, -(-numerator // margin))


def echo_quorum(n_nodes: int, n_colluders: int) -> int:
    """The least q with q > (n + c)/2."""
    return (n_nodes + n_colluders) // 2 + 1


@dataclass(frozen=True, slots=True)
class Wishes(Record):
    """What an epoch's parameters ask for; zero means "by default".

    Attributes:
        n_colluders: colluding nodes to withstand.
        min_survivors: least nodes in a sum.
        threshold: shares to rebuild a secret.
        max_drops: nodes that may drop out of a sparse cohort.
        is_sparse, has_echo: graph and echo exchange.
        n_groups: of sites, each with a sum of its own; all other numbers are then of every group. 0 for one sum.
    """

    n_colluders: NodeCount
    min_survivors: NodeCount = 0
    threshold: NodeCount = 0
    max_drops: NodeCount = 0
    is_sparse: YesNo = False
    has_echo: YesNo = False
    n_groups: NodeCount = 0


@dataclass(frozen=True, slots=True)
class Guarantees:
    """The numbers every node recomputes. `honest_group` bounds from below the honest vectors in any released sum."""

    n_nodes: int
    n_colluders: int
    threshold: int
    min_survivors: int
    degree: int
    has_echo: bool
    quorum: int
    honest_group: int

    @property
    def is_sparse(self) -> bool:
        """Whether the graph is a Harary graph (`degree` > 0) and not the complete one (`degree` == 0)."""
        return self.degree > 0


def derive(n_nodes: int, wishes: Wishes) -> Guarantees:
    """The guarantees of a sum among `n_nodes` members, of a group where there are any.

    Raises Refusal PARAMETERS_REFUSED where the inequalities fail.
    """
    c = wishes.n_colluders
    if wishes.n_groups and (wishes.is_sparse or wishes.n_groups % 2 == 0):
        raise refuse(Code.PARAMETERS_REFUSED, "Groups have complete graphs, and an odd number.")
    if not 0 <= c < n_nodes:
        raise refuse(Code.PARAMETERS_REFUSED, f"{c} colluders among {n_nodes} nodes.")
    quorum = echo_quorum(n_nodes, c) if wishes.has_echo else 0
    if wishes.is_sparse:
        degree, threshold, least = _sparse(n_nodes, wishes)
    else:
        degree, threshold, least = 0, *_complete(n_nodes, wishes)
    survivors = max(least, wishes.min_survivors, quorum)
    if survivors > n_nodes:
        raise refuse(Code.PARAMETERS_REFUSED, f"{survivors} survivors are asked for among {n_nodes} nodes.")
    if wishes.is_sparse:
        # A node sees only its neighbours' signed headers there. That at least `survivors` nodes echo, each of which
        # found itself in the manifest, shows that no survivor was invented to make the list look long enough.
        quorum = survivors
    group = survivors - c if wishes.has_echo else isolation_bound(n_nodes, c, threshold, survivors)
    return Guarantees(n_nodes, c, threshold, survivors, degree, wishes.has_echo, quorum, group)


def _complete(n_nodes: int, wishes: Wishes) -> tuple[int, int]:
    """(threshold, least survivors) of the complete graph."""
    threshold = wishes.threshold or default_threshold(n_nodes)
    withstands_lies = wishes.has_echo or 2 * threshold > n_nodes + wishes.n_colluders
    # With a threshold of one, every share would be the secret.
    if not max(wishes.n_colluders, 1) < threshold <= n_nodes or not withstands_lies:
        raise refuse(
            Code.PARAMETERS_REFUSED,
            f"A threshold of {threshold} among {n_nodes} nodes does not withstand {wishes.n_colluders} colluders.",
        )
    return threshold, threshold


def _sparse(n_nodes: int, wishes: Wishes) -> tuple[int, int, int]:
    """(degree, threshold, least survivors) of the Harary graph; it needs the echo exchange."""
    if not wishes.has_echo or wishes.threshold:
        raise refuse(Code.PARAMETERS_REFUSED, "A sparse graph needs the echo exchange and its own threshold.")
    if wishes.n_colluders + wishes.max_drops >= n_nodes:
        raise refuse(Code.PARAMETERS_REFUSED, "Colluders and dropouts leave no node.")
    degree, threshold = harary_parameters(n_nodes, wishes.n_colluders, wishes.max_drops)
    return degree, threshold, n_nodes - wishes.max_drops


SECURITY_BITS = 40
FAILURE_BITS = 20
SPARSE_ABOVE = 200


def _tail_fits(population: int, marked: int, drawn: int, least: int, bits: int) -> bool:
    """Whether Pr[at least `least` marked among `drawn`] <= 2^-bits / population, hypergeometric, exactly."""
    favourable = sum(
        comb(marked, hit) * comb(population - marked, drawn - hit) for hit in range(least, min(marked, drawn) + 1)
    )
    return (favourable * population) << bits <= comb(population, drawn)


def _most_marked(population: int, marked: int, drawn: int, bits: int) -> int:
    """The least m with Pr[more than m marked among `drawn`] <= 2^-bits / population."""
    most = min(marked, drawn)
    while most >= 0 and _tail_fits(population, marked, drawn, most, bits):
        most -= 1
    return max(most, 0)


def _stays_connected(n_nodes: int, n_bad: int, degree: int) -> bool:
    """Whether removing `n_bad` random nodes disconnects the graph with probability below 2^-(SECURITY_BITS + 1).

    To break a Harary ring, degree/2 successive nodes must fail in two disjoint places; a union over the places.
    """
    if degree > n_bad:
        return True
    pairs_twice = n_nodes * (n_nodes - degree - 1)
    return (pairs_twice * comb(n_bad, degree)) << SECURITY_BITS < comb(n_nodes, degree)


@lru_cache(maxsize=256)
def harary_parameters(n_nodes: int, n_colluders: int, n_drops: int, semi_malicious: bool = False) -> tuple[int, int]:
    """(degree, threshold), self excluded: security 2^-40 and failure 2^-20 for a curious server.

    A lying server is held off by the echo exchange, not by this threshold; `semi_malicious` is the alternative of a
    higher threshold, kept for comparison with the published table.
    Raises Refusal PARAMETERS_REFUSED when no even degree below n_nodes - 1 will do.
    """
    for degree in range(2, n_nodes - 1, 2):
        if not _stays_connected(n_nodes, n_colluders + n_drops, degree):
            continue
        corrupt = _most_marked(n_nodes, n_colluders, degree, SECURITY_BITS + 1)
        if semi_malicious:
            corrupt = -((5 - 4 * (corrupt + degree)) // 8)
        survivors = degree - _most_dropped(n_nodes, n_drops, degree)
        if survivors > corrupt:
            return degree, max(corrupt + 1, 2)
    raise refuse(Code.PARAMETERS_REFUSED, "No sparse graph of this size gives the guarantees; use the complete one.")


def _most_dropped(n_nodes: int, n_drops: int, degree: int) -> int:
    """The most neighbours that drop, but for a probability below 2^-FAILURE_BITS / n_nodes."""
    most = min(n_drops, degree)
    scale = comb(n_nodes, degree)
    tail = 0
    while most > 0:
        tail += comb(n_drops, most) * comb(n_nodes - n_drops, degree - most)
        if (tail * n_nodes) << FAILURE_BITS >= scale:
            break
        most -= 1
    return most


def weakest(each: Collection[Guarantees]) -> Guarantees:
    """What is promised of every group: the least honest group, among as many nodes as the largest has."""
    return replace(min(each, key=lambda of: of.honest_group), n_nodes=max(of.n_nodes for of in each))


def least_groups(n_groups: int) -> int:
    """How many groups must open for a round to count: more than half; 1 without groups."""
    return n_groups // 2 + 1


def dealt(keys: Sequence[bytes], n_groups: int, drawing: bytes = b"") -> tuple[int, ...]:
    """The group of each site, by the order of the hashes of their keys: a public function of these alone.

    Sizes differ by one at most. Who chooses a key may choose its group; what is promised holds for any grouping.

    Args:
        drawing: what the groups are drawn by; empty for those of the roster alone.
    """
    order = sorted(range(len(keys)), key=lambda site: digest("group", keys[site], *([drawing] if drawing else [])))
    groups = [0] * len(keys)
    for place, site in enumerate(order):
        groups[site] = place % max(1, n_groups)
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class Graph:
    """Neighbours of every member (numbers in increasing order, self excluded); symmetric."""

    neighbours: dict[int, tuple[int, ...]]


def complete(members: tuple[int, ...]) -> Graph:
    """The graph in which every member neighbours every other."""
    return complete_parts((members,))


def complete_parts(parts: Iterable[tuple[int, ...]]) -> Graph:
    """The graph in which every member neighbours every other of its part, and none of another."""
    near = {node: tuple(other for other in part if other != node) for part in parts for node in part}
    return Graph({node: near[node] for node in sorted(near)})


def harary(members: tuple[int, ...], degree: int, seed: bytes) -> Graph:
    """The ring of randomly ordered members, each joined to the degree/2 next ones on both sides.

    Args:
        degree: even, below len(members).
        seed: 32 bytes that no party chose (the hash of all revealed nonces).
    """
    order = list(members)
    # A number is uniform as words of the incomplete last interval are rejected: with odds below 2^-48, so four words a
    # member never run out.
    buffer = keystream(digest("graph-order", seed), 8 * 4 * len(order))
    words = (int.from_bytes(buffer[start : start + 8], "little") for start in range(0, len(buffer), 8))
    for last in range(len(order) - 1, 0, -1):
        limit = last + 1
        chosen = next(word % limit for word in words if word < (1 << 64) - (1 << 64) % limit)
        order[last], order[chosen] = order[chosen], order[last]
    size, half = len(order), degree // 2
    return Graph(
        {
            node: tuple(sorted(order[(place + step) % size] for step in range(-half, half + 1) if step))
            for place, node in enumerate(order)
        }
    )
