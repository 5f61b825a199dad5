"""Engine `local`: every node is an object in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hedgerow.errors import RemoteProtocolError
from hedgerow.protocol.queries import IntVector, NoiseCohort, Query


class Answering(Protocol):
    """What the engine needs of a node."""

    site: str

    def answer(self, query: Query) -> IntVector:
        """The site's vector for a query."""


class Aggregation(Protocol):
    """One secure sum: the integer sum of all sites' vectors, and nothing else about them."""

    @property
    def n_nodes(self) -> int:
        """Sites that are asked."""

    @property
    def cohort(self) -> NoiseCohort | None:
        """None for exact sums; else the last sum held noise already, by these sites (before any sum: the next one)."""

    @property
    def sites(self) -> tuple[str, ...] | None:
        """Whose vectors are in the last sum; None where that is not known."""

    def sum_of(self, query: Query) -> IntVector:
        """Ask every site and add up: int64 [query.length]."""


class PlainAggregation:
    """Sums in the clear, in this process: for simulations where every site's rows are here anyway."""

    cohort = None

    def __init__(self, nodes: Sequence[Answering]) -> None:
        self._nodes = list(nodes)
        self.n_nodes = len(self._nodes)
        self.sites: tuple[str, ...] | None = tuple(node.site for node in self._nodes)

    def sum_of(self, query: Query) -> IntVector:
        """See `Aggregation.sum_of`; RemoteProtocolError for an answer of another shape or type."""
        total = np.zeros(query.length, dtype=np.int64)
        for node in self._nodes:
            total += answer_of(node, query)
        return total


def answer_of(node: Answering, query: Query) -> IntVector:
    """A node's answer, if it is int64 [query.length]; RemoteProtocolError otherwise."""
    vector = node.answer(query)
    # A shorter vector would be stretched by numpy instead of being refused.
    if vector.shape != (query.length,) or vector.dtype != np.int64:
        raise RemoteProtocolError(
            f"Site {node.site!r} answered {query.purpose} with {vector.dtype} of shape {vector.shape}; "
            f"{query.length} integers of 64 bits were asked for.",
            cause="It runs another version, or another plan.",
            remedy="Install the same version of Hedgerow on both sides and compare the plans' digests.",
            code="answer-shape",
        )
    return vector
