"""The node: one site's records, and the answers that leave it.

A node sees only its own rows. It answers a query with a vector of integers, one contribution per record, and never
anything else; what it keeps between queries is its records' scores under the public model so far.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.errors import RemoteProtocolError
from hedgerow.protocol.plan import Plan
from hedgerow.protocol.queries import Histogram, IntVector, LeafSums, Query
from hedgerow.training.settings import Settings
from hedgerow.trees.grid import CodeArray
from hedgerow.trees.routing import SiteRecords, apply_update, histogram, leaf_sums


@dataclass(frozen=True, eq=False)
class SiteData:
    """A site's rows after binning.

    Attributes:
        codes: uint8 or uint16 [n_features, n], the grid codes.
        labels: int32 [n]: the class index, or a regression's label scaled to [-1, 1] in units of 2**-16.
    """

    codes: CodeArray
    labels: NDArray[np.int32]

    @property
    def n_records(self) -> int:
        return len(self.labels)


class Node:
    """One site of a run.

    Args:
        site: the site's name.
        data: its rows.
        plan: the plan that all agreed on.
        settings: the plan's resolved settings.
        n_threads: threads to sum with.
    """

    def __init__(self, site: str, data: SiteData, plan: Plan, settings: Settings, n_threads: int = 1) -> None:
        self.site = site
        self._loss = settings.loss(plan)
        self._n_threads = n_threads
        self._ensemble_size = 0
        scores = np.zeros((self._loss.n_outputs, data.n_records), dtype=np.int32)
        self._records = SiteRecords(data.codes, data.labels, scores)

    @property
    def n_records(self) -> int:
        return self._records.n_records

    def answer(self, query: Query) -> IntVector:
        """The site's vector for a query: int64 [query.length].

        Raises:
            RemoteProtocolError: for a query of another ensemble size or of an unknown kind.
        """
        self._expect_ensemble(query)
        if isinstance(query, LeafSums):
            vector = leaf_sums(self._records, query, self._loss, self._n_threads)
        elif isinstance(query, Histogram):
            vector = histogram(self._records, query, self._loss)
        else:
            raise RemoteProtocolError(
                f"The coordinator asked a query of an unknown kind, {type(query).__name__}.",
                cause="It runs a newer version than this node.",
                remedy="Install the same version of Hedgerow on both sides.",
                code="unknown-query-kind",
            )
        if query.update is not None:
            self._ensemble_size += query.update.trees.n_trees
        return vector

    def finish(self, query: Query) -> None:
        """Take in a query's update without answering it; for a node that missed the round."""
        self._expect_ensemble(query)
        if query.update is not None:
            apply_update(self._records, query.update, self._n_threads)
            self._ensemble_size += query.update.trees.n_trees

    def _expect_ensemble(self, query: Query) -> None:
        if self._loss.n_outputs and query.ensemble_size != self._ensemble_size:
            raise RemoteProtocolError(
                f"The query builds on {query.ensemble_size} trees, but this node's scores hold {self._ensemble_size}.",
                cause="The node missed a round, or the coordinator started again from an older state.",
                remedy="Let the node resynchronise from the model so far.",
                code="ensemble-out-of-step",
            )
