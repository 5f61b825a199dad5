"""Who shares masks and secrets with whom: everyone with everyone, or a random Harary graph for large cohorts.

Source: Bell, Bonawitz, Gascón, Lepoint, Raykova 2020, "Secure single-server aggregation with (poly)logarithmic
overhead". The degree and the threshold follow the derivation of google-parfait/federated-compute
(`graph_parameter_finder`, whose published table the tests reproduce), here in exact integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import comb

from hedgerow.secagg._primitives.prg import keystream
from hedgerow.secagg.encoding import digest
from hedgerow.secagg.refusals import refuse
from hedgerow.secagg.transitions import Code

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
    """Returns the least m with Pr[more than m marked among `drawn`] <= 2^-bits / population."""
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
    """Returns (degree, threshold), self excluded: security 2^-40 and failure 2^-20 for a curious server.

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
    """Returns the most neighbours that drop, but for a probability below 2^-FAILURE_BITS / n_nodes."""
    most = min(n_drops, degree)
    scale = comb(n_nodes, degree)
    tail = 0
    while most > 0:
        tail += comb(n_drops, most) * comb(n_nodes - n_drops, degree - most)
        if (tail * n_nodes) << FAILURE_BITS >= scale:
            break
        most -= 1
    return most


@dataclass(frozen=True, slots=True)
class Graph:
    """Neighbours of every member (numbers in increasing order, self excluded); symmetric."""

    neighbours: dict[int, tuple[int, ...]]


def complete(members: tuple[int, ...]) -> Graph:
    """Returns the graph in which every member neighbours every other."""
    return Graph({node: tuple(other for other in members if other != node) for node in members})


def _uniform_below(limit: int, words: Iterator[int]) -> int:
    """Returns an unbiased number below `limit`, by rejection of the incomplete last interval."""
    return next(word % limit for word in words if word < (1 << 64) - (1 << 64) % limit)


def harary(members: tuple[int, ...], degree: int, seed: bytes) -> Graph:
    """Returns the ring of randomly ordered members, each joined to the degree/2 next ones on both sides.

    Args: degree: even, below len(members); seed: 32 bytes that nobody chose (the hash of all revealed nonces).
    """
    order = list(members)
    # A word is rejected with odds below 2^-48, so four words a member never run out.
    buffer = keystream(digest("graph-order", seed), 8 * 4 * len(order))
    words = (int.from_bytes(buffer[start : start + 8], "little") for start in range(0, len(buffer), 8))
    for last in range(len(order) - 1, 0, -1):
        chosen = _uniform_below(last + 1, words)
        order[last], order[chosen] = order[chosen], order[last]
    size, half = len(order), degree // 2
    return Graph(
        {
            node: tuple(sorted(order[(place + step) % size] for step in range(-half, half + 1) if step))
            for place, node in enumerate(order)
        }
    )

