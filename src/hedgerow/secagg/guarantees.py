# SPDX-License-Identifier: Apache-2.0
"""The numbers that a cohort is promised: threshold, survivors, echo quorum and honest group.

n members, c of them colluding with the coordinator, threshold t, at least u survivors in any manifest.

- Curious coordinator: t > c, so that the colluders cannot rebuild a secret.
- Lying coordinator: for both secrets of one node it needs t answers of one kind and t of the other. The n - c honest
  answer one kind each and the c colluders both, so 2t > n + c makes it impossible. The same intersection allows at
  most one release for one purpose.
- Isolation by unequal lists: an honest answer excludes at most n - u nodes, and to strip a node's masks t - c honest
  answers must exclude it. So at most (n - c)(n - u)/(t - c) honest nodes are stripped, and every released sum holds at
  least ceil((n - c)(1 - (n - u)/(t - c))) honest vectors.
- With the echo exchange a node answers only after q > (n + c)/2 nodes signed the same manifest. Two such quorums meet
  in an honest node, so the manifest is unique and the group is u - c.

Who shares masks and secrets with whom: up to SPARSE_ABOVE everyone with everyone, beyond it everyone with DEGREE others
on a random ring (`derive_sparse`), where a committee echoes. With groups of sites each group is a cohort of its own,
for which all of the above holds with its own n, and the same c.

Sources: Bell, Bonawitz, Gascón, Lepoint, Raykova 2020, "Secure single-server aggregation with (poly)logarithmic
overhead", sections 3 and 4, for random neighbours and the hypergeometric tails. There those that drop out are taken not
to know the graph. Here a coordinator that does know it may choose them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb
from typing import Annotated

from hedgerow.codec import Record, Unsigned, YesNo, digest
from hedgerow.crypto import keystream
from hedgerow.secagg.transitions import Code, Refusal, refuse

MAX_NODES = 4096
MIN_COHORT = 3
"""Fewest sites in a masked sum: with two, each could subtract its own vector and read the other's."""
NodeCount = Annotated[int, Unsigned(2, most=MAX_NODES)]


def default_threshold(n_nodes: int) -> int:
    """Return floor(2n/3) + 1, which withstands a lying coordinator with about n/3 colluders."""
    return 2 * n_nodes // 3 + 1


def origin_members(n_sites: int) -> int:
    """Return how many sites must reveal nonces for an epoch to seed the trees: floor(2n/3) + 1.

    A node enrols once under each of an epoch's attempt numbers, and reveals its nonce for one list of commitments. Two
    epochs of one attempt, with that many members each, share an honest node wherever 2q > n + c, the inequality of the
    threshold. So all attempts of a run give the coordinator and its c colluders no more than 16 seeds to choose from.
    """
    return default_threshold(n_sites)


def default_colluders(n_nodes: int) -> int:
    """Return floor((n - 1)/4): below the limit of the default threshold, for a larger honest group."""
    return (n_nodes - 1) // 4


def sparse_colluders(n_nodes: int) -> int:
    """Return the smallest number of colluders that a sparse graph may be set up to withstand.

    It is a quarter of up to 200 nodes, as on a complete graph; for more nodes 49, or a twentieth of them if that is
    more.
    """
    return max(min(default_colluders(n_nodes), 49), n_nodes // 20)


def default_wishes(*sizes: int, least_colluders: int = 0) -> Wishes:
    """Return the default wishes: a complete graph up to SPARSE_ABOVE nodes, else a sparse one with echo.

    A sparse graph allows as many dropped nodes as a round can lose.

    Args:
        sizes: nodes of the epoch, or of each of its groups.
    """
    if min(sizes) <= SPARSE_ABOVE:
        return Wishes(max(least_colluders, default_colluders(min(sizes))))
    n_colluders = max(least_colluders, sparse_colluders(max(sizes)))
    most = min(_most_drops(size, n_colluders, len(sizes)) for size in sizes)
    return Wishes(n_colluders, max_drops=most, is_sparse=True, has_echo=True)


def isolation_bound(n_nodes: int, n_colluders: int, threshold: int, min_survivors: int) -> int:
    """Return the least number of honest vectors in any released sum, without an echo (>= 0).

    It holds against a coordinator that tells nodes unequal lists of survivors.
    """
    margin = threshold - n_colluders
    if margin <= 0:
        return 0
    numerator = (n_nodes - n_colluders) * (margin - (n_nodes - min_survivors))
    return max(0, -(-numerator // margin))


def echo_quorum(n_nodes: int, n_colluders: int) -> int:
    """Return the least q with q > (n + c)/2."""
    return (n_nodes + n_colluders) // 2 + 1


@dataclass(frozen=True, slots=True)
class Wishes(Record):
    """What an epoch's parameters ask for; zero means "by default".

    Attributes:
        n_colluders: colluding nodes to withstand.
        min_survivors: least nodes in a sum.
        threshold: shares to rebuild a secret.
        max_drops: members that may be missing in a sum of a sparse cohort, whoever chooses them.
        is_sparse, has_echo: graph and echo exchange.
        n_groups: groups of sites, each with a sum of its own; all other numbers then hold for every group. 0 for one
            sum.
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
    """The numbers every node recomputes. `honest_group` bounds from below the honest vectors in any released sum.

    `quorum` counts echoes of the committee on a sparse graph, else of all nodes; 0 without an echo.
    """

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
        """Whether each node has only `degree` neighbours; 0 means a complete graph."""
        return self.degree > 0

    @property
    def least_answers(self) -> int:
        """A lower bound on the number of nodes, colluders included, whose answers open a sum.

        On a sparse graph all of the u - c honest survivors have to be opened, each by t shares. An honest node that
        answers gives one of its own and one for each of k neighbours, a colluder holds one of k honest neighbours. If a
        honest nodes answer, a (k + 1) + c k >= (u - c) t.
        """
        if not self.is_sparse:
            return self.quorum if self.has_echo else self.threshold
        shares = (self.min_survivors - self.n_colluders) * self.threshold + self.n_colluders
        return -(-shares // (self.degree + 1))


def derive(n_nodes: int, wishes: Wishes) -> Guarantees:
    """Compute the guarantees of a sum among `n_nodes` members (of one group, if there are groups).

    Raises Refusal PARAMETERS_REFUSED if the inequalities fail.
    """
    c = wishes.n_colluders
    if wishes.n_groups and wishes.n_groups % 2 == 0:
        raise refuse(Code.PARAMETERS_REFUSED, "An even number of groups has no middle one.")
    if not 0 <= c < n_nodes:
        raise refuse(Code.PARAMETERS_REFUSED, f"{c} colluders among {n_nodes} nodes.")
    if wishes.is_sparse:
        if not wishes.has_echo or wishes.threshold or c < sparse_colluders(n_nodes):
            least = sparse_colluders(n_nodes)
            said = f"A sparse graph needs the echo, its own threshold, and {least} colluders at least."
            raise refuse(Code.PARAMETERS_REFUSED, said)
        degree, threshold, quorum = derive_sparse(n_nodes, c, wishes.max_drops, max(1, wishes.n_groups))
        survivors = max(n_nodes - wishes.max_drops, wishes.min_survivors)
    else:
        quorum = echo_quorum(n_nodes, c) if wishes.has_echo else 0
        degree, threshold = 0, wishes.threshold or default_threshold(n_nodes)
        # With a threshold of one, every share would be the secret.
        if not max(c, 1) < threshold <= n_nodes or not (wishes.has_echo or 2 * threshold > n_nodes + c):
            said = f"A threshold of {threshold} among {n_nodes} nodes does not withstand {c} colluders."
            raise refuse(Code.PARAMETERS_REFUSED, said)
        survivors = max(threshold, wishes.min_survivors, quorum)
    if survivors > n_nodes:
        raise refuse(Code.PARAMETERS_REFUSED, f"{survivors} survivors are asked for among {n_nodes} nodes.")
    group = survivors - c if wishes.has_echo else isolation_bound(n_nodes, c, threshold, survivors)
    return Guarantees(n_nodes, c, threshold, survivors, degree, wishes.has_echo, quorum, group)


SPARSE_ABOVE = 50
"""Nodes up to which everyone masks with everyone."""
DEGREE = 40
"""Neighbours of a node on a sparse graph, and nodes of its committee."""
SECURITY_BITS = 40
MAX_ATTEMPTS = 16
"""Set-ups of a run, each of which draws a graph."""


def most_marked(population: int, marked: int, drawn: int, n_events: int) -> int:
    """Return the least m with n_events * Pr[more than m marked among `drawn`] <= 2^-SECURITY_BITS.

    Only integers are used.
    """
    most, favourable = min(marked, drawn), 0
    while most > 0:
        favourable += comb(marked, most) * comb(population - marked, drawn - most)
        if (favourable * n_events) << SECURITY_BITS > comb(population, drawn):
            break
        most -= 1
    return most


@lru_cache(maxsize=1024)
def derive_sparse(n_nodes: int, n_colluders: int, max_drops: int, n_groups: int = 1) -> tuple[int, int, int]:
    """Return (degree k, threshold t, committee's quorum q) of a sparse graph against a lying coordinator.

    The members stand on a ring in an order that none of them chose, each joined to the k/2 next ones on both sides. The
    first k are the committee. The c colluders are chosen before the order is drawn, the d missing members after it. The
    probability that any of the following events occurs, in any group and any set-up of a run, is at most
    2^-SECURITY_BITS:

    - t or more of a node's k neighbours collude. With t = k + 1 - d every secret keeps t holders, itself among them,
      whoever is missing.
    - The honest members that are not missing fall apart. Two of them in turn that are not joined have k/2 missing or
      colluding members between them, so this takes two such places, and k - d colluders in the two together.
    - Two different manifests have q echoes each: 2q > k + m, where at most m of the committee collude.

    Raises Refusal PARAMETERS_REFUSED.
    """
    degree = min(DEGREE, (n_nodes - 2) // 2 * 2)
    threshold = degree + 1 - max_drops
    n_draws = 3 * MAX_ATTEMPTS * n_groups
    n_places = n_nodes * (n_nodes - degree - 1) // 2
    near = most_marked(n_nodes - 1, n_colluders, degree, n_draws * n_nodes)
    in_places = most_marked(n_nodes, n_colluders, degree, n_draws * n_places)
    quorum = (degree + most_marked(n_nodes, n_colluders, degree, n_draws)) // 2 + 1
    if not (degree >= 2 and threshold > max(near, 1) and degree - max_drops > in_places and quorum <= degree):
        said = f"A sparse graph of {n_nodes} nodes does not withstand {n_colluders} colluders and {max_drops} missing."
        raise refuse(Code.PARAMETERS_REFUSED, said)
    return degree, threshold, quorum


@lru_cache(maxsize=256)
def _most_drops(n_nodes: int, n_colluders: int, n_groups: int) -> int:
    """Return how many members a round may lack.

    If more are lost, up to a tenth, the others may repeat the round in a new epoch. At most one of the two epochs' sums
    can be opened then (`least_answers`; `view.Cohort` says why that is needed).
    """
    most = 0
    for max_drops in range(DEGREE):
        wishes = Wishes(n_colluders, max_drops=max_drops, is_sparse=True, has_echo=True)
        try:
            whole = derive(n_nodes, replace(wishes, n_groups=n_groups if n_groups > 1 else 0))
            left = n_nodes - n_nodes // 10
            fewer = replace(wishes, n_colluders=sparse_colluders(left))
            rest = derive(left, fewer if left > SPARSE_ABOVE else Wishes(default_colluders(left)))
        except Refusal:
            break
        if all(whole.least_answers + of.least_answers > n_nodes + of.n_colluders for of in (whole, rest)):
            most = max_drops
    return most


def combine_guarantees(each: Collection[Guarantees]) -> Guarantees:
    """Return the guarantees that hold for every group.

    They are those of the least honest group; `n_nodes` is that of the largest group.
    """
    return replace(min(each, key=lambda of: of.honest_group), n_nodes=max(of.n_nodes for of in each))


def least_groups(n_groups: int) -> int:
    """Return how many groups must open for a round to count: more than half; 1 without groups."""
    return n_groups // 2 + 1


def assign_groups(keys: Sequence[bytes], n_groups: int, drawing: bytes = b"") -> tuple[int, ...]:
    """Assign each site to a group, by the order of the hashes of their keys (public).

    Sizes differ by one at most. Whoever chooses a key may choose its group; the guarantees hold for any grouping.

    Args:
        drawing: bytes that are hashed with each key; empty if the groups follow from the roster alone.
    """
    order = sorted(range(len(keys)), key=lambda site: digest("group", keys[site], *([drawing] if drawing else [])))
    groups = [0] * len(keys)
    for place, site in enumerate(order):
        groups[site] = place % max(1, n_groups)
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class Graph:
    """The neighbours of every member and the committee whose echoes it counts.

    Neighbours are symmetric, in increasing order, and exclude the member itself.
    """

    neighbours: Mapping[int, tuple[int, ...]]
    committee: Mapping[int, frozenset[int]]


def complete(members: tuple[int, ...]) -> Graph:
    """Return the graph in which every member is a neighbour of all others and counts everyone's echo."""
    near = {node: tuple(other for other in members if other != node) for node in members}
    return Graph(near, dict.fromkeys(members, frozenset(members)))


def join(graphs: Iterable[Graph]) -> Graph:
    """Return the union of graphs without common members."""
    near, committee = dict[int, tuple[int, ...]](), dict[int, frozenset[int]]()
    for graph in graphs:
        near |= graph.neighbours
        committee |= graph.committee
    return Graph({node: near[node] for node in sorted(near)}, committee)


def harary(members: tuple[int, ...], degree: int, seed: bytes) -> Graph:
    """Return the ring of randomly ordered members, joined to the degree/2 next ones on both sides.

    The first `degree` members of the ring are everyone's committee.

    Args:
        degree: even, below len(members).
        seed: 32 bytes that no party chose (the hash of all revealed nonces).
    """
    order = list(members)
    # Rejecting words of the incomplete last interval makes the number uniform. A rejection has a probability below
    # 2^-48, so four words for each member never run out.
    buffer = keystream(digest("graph-order", seed), 8 * 4 * len(order))
    words = (int.from_bytes(buffer[start : start + 8], "little") for start in range(0, len(buffer), 8))
    for last in range(len(order) - 1, 0, -1):
        limit = last + 1
        chosen = next(word % limit for word in words if word < (1 << 64) - (1 << 64) % limit)
        order[last], order[chosen] = order[chosen], order[last]
    size, half = len(order), degree // 2
    near = {
        node: tuple(sorted(order[(place + step) % size] for step in range(-half, half + 1) if step))
        for place, node in enumerate(order)
    }
    return Graph(near, dict.fromkeys(members, frozenset(order[:degree])))
