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
"""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow.secagg.graph import harary_parameters
from hedgerow.secagg.refusals import refuse
from hedgerow.secagg.transitions import Code


def default_threshold(n_nodes: int) -> int:
    """Returns floor(2n/3) + 1, which withstands a lying coordinator with up to about n/3 colluders."""
    return 2 * n_nodes // 3 + 1


def origin_members(n_sites: int) -> int:
    """Returns how many of a roster's sites an epoch needs whose nonces seed the trees: floor(2n/3) + 1.

    A node enrols once under each of an epoch's attempt numbers, and reveals its nonce for one list of commitments. Two
    epochs of one attempt with so many members each share an honest node wherever 2q > n + c, the inequality of the
    threshold: so all of a run's attempts give the coordinator and its c colluders no more than 16 seeds to choose from.
    """
    return default_threshold(n_sites)


def default_colluders(n_nodes: int) -> int:
    """Returns floor((n - 1)/4): below the limit of the default threshold, leaving a comfortable honest group."""
    return (n_nodes - 1) // 4


def isolation_bound(n_nodes: int, n_colluders: int, threshold: int, min_survivors: int) -> int:
    """Returns the least number of honest vectors in any released sum, under unequal lists without an echo (>= 0)."""
    margin = threshold - n_colluders
    if margin <= 0:
        return 0
    numerator = (n_nodes - n_colluders) * (margin - (n_nodes - min_survivors))
    return max(0, -(-numerator // margin))


def echo_quorum(n_nodes: int, n_colluders: int) -> int:
    """Returns the least q with q > (n + c)/2."""
    return (n_nodes + n_colluders) // 2 + 1


@dataclass(frozen=True, slots=True)
class Wishes:
    """What an epoch's parameters ask for; zero means "by default".

    Args: n_colluders: colluding nodes to withstand; min_survivors: least nodes in a sum; threshold: shares to rebuild a
        secret; max_drops: nodes that may drop out of a sparse cohort; is_sparse, has_echo: graph and echo exchange.
    """

    n_colluders: int
    min_survivors: int = 0
    threshold: int = 0
    max_drops: int = 0
    is_sparse: bool = False
    has_echo: bool = False


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
    """Returns the guarantees for `n_nodes` members; raises Refusal PARAMETERS_REFUSED where the inequalities fail."""
    c = wishes.n_colluders
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
    """Returns (threshold, least survivors) of the complete graph."""
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
    """Returns (degree, threshold, least survivors) of the Harary graph; it needs the echo exchange."""
    if not wishes.has_echo or wishes.threshold:
        raise refuse(Code.PARAMETERS_REFUSED, "A sparse graph needs the echo exchange and its own threshold.")
    if wishes.n_colluders + wishes.max_drops >= n_nodes:
        raise refuse(Code.PARAMETERS_REFUSED, "Colluders and dropouts leave no node.")
    degree, threshold = harary_parameters(n_nodes, wishes.n_colluders, wishes.max_drops)
    return degree, threshold, n_nodes - wishes.max_drops
