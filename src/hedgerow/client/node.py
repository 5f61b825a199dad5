"""The node: one site's records, and the answers that leave it.

A node sees only its own rows. It answers a query with a vector of integers, one contribution per record, and never
anything else; what it keeps between queries is its records' scores under the public model so far.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hedgerow.client.local_noise import noise_of_site
from hedgerow.client.sampling import SamplingSource, SystemSampling
from hedgerow.data.site_data import SiteData
from hedgerow.errors import DataError, RemoteProtocolError
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.methods.adassp.linear import cross_products, gram_matrix
from hedgerow.methods.s_gbdt.trees import charge
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource, SystemNoise
from hedgerow.protocol.queries import (
    SAMPLING_STEPS,
    CrossProducts,
    FittedTrees,
    GramMatrix,
    Histogram,
    IntVector,
    LabelSums,
    LeafSums,
    NodeHistograms,
    PureQuery,
    Query,
    SampledLeafSums,
    SplitSums,
)
from hedgerow.training.settings import Settings
from hedgerow.trees.binning import build_grid
from hedgerow.trees.histograms import PairedBinsCache, node_histograms, split_sums
from hedgerow.trees.leaf_sums import SiteRecords, apply_update, histogram, leaf_sums


class Arrivals(Protocol):
    """Where rows come from while a run goes on."""

    def due(self, round_number: int, may_be_new: bool) -> list[SiteData]:
        """The rows to take in before this exchange; new ones only if that is said."""


class Node:
    """One site of a run.

    Args:
        site: the site's name.
        data: its rows.
        plan: the plan that all agreed on.
        settings: the plan's resolved settings.
        n_threads: threads to sum with.
        sampling: where samples come from when the plan draws any; None for the operating system.
        noise: where the records' noise comes from in the local model; None for the operating system.

    Raises:
        DataError: for codes or labels outside the plan: the kernels look them up without asking, so that a record
            beyond the tables would add more than its bound.
    """

    def __init__(
        self,
        site: str,
        data: SiteData,
        plan: Plan,
        settings: Settings,
        n_threads: int = 1,
        sampling: SamplingSource | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        self.site = site
        check_data(site, data, plan)
        self._plan = plan
        self._sampling = sampling or SystemSampling(os.urandom)
        self._noise = noise or SystemNoise(os.urandom)
        self._loss, self._linear_loss = settings.loss(plan), settings.linear_loss(plan)
        self._n_threads = n_threads
        self._ensemble_size = 0
        scores = np.zeros((self._loss.n_outputs, data.n_records), dtype=np.int32)
        self._records = SiteRecords(data.codes, data.labels, scores)
        self._pairs = PairedBinsCache()
        # Only S-GBDT keeps an account for each record.
        n_accounts = data.n_records if plan.model.algorithm == "s-gbdt" else 0
        self._spent = np.zeros(n_accounts, dtype=np.int64)
        self._fitted: list[FittedTrees] = []
        self._arrivals: Arrivals | None = None

    @property
    def n_records(self) -> int:
        return self._records.n_records

    def expect(self, arrivals: Arrivals) -> None:
        """Ask there for new rows before every answer."""
        self._arrivals = arrivals

    def _take_in(self, query: Query, may_be_new: bool) -> None:
        for rows in self._arrivals.due(query.purpose.round, may_be_new) if self._arrivals else ():
            self.arrive(rows)

    def arrive(self, data: SiteData) -> None:
        """Take in rows that have come since the run began: they have spent nothing, and know the model so far.

        Raises:
            DataError: for codes or labels outside the plan.
        """
        check_data(self.site, data, self._plan)
        late = SiteRecords(data.codes, data.labels, np.zeros((self._loss.n_outputs, data.n_records), dtype=np.int32))
        for fitted in self._fitted:
            apply_update(late, fitted, self._n_threads)
        old = self._records
        self._records = SiteRecords(
            np.concatenate([old.codes, late.codes], axis=1),
            np.concatenate([old.labels, late.labels]),
            np.concatenate([old.scores, late.scores], axis=1),
        )
        self._spent = np.concatenate([self._spent, np.zeros(data.n_records, dtype=np.int64)])

    def answer(self, query: Query) -> IntVector:
        """The site's vector for a query: int64 [query.length]; in the local model with noise for each record.

        Raises:
            RemoteProtocolError: for a query of another ensemble size or of an unknown kind.
        """
        self._expect_ensemble(query)
        self._take_in(query, may_be_new=True)
        vector = self._sums(query)
        self._count_update(query)
        if self._plan.privacy.noise == "local":
            vector = vector + noise_of_site(query, self.site, self.n_records, self._noise)
        return vector

    def _sums(self, query: Query) -> IntVector:
        records = self._records
        if isinstance(query, PureQuery):
            if query.update is not None:
                apply_update(records, query.update, self._n_threads)
            records, query = self._drawn(query), replace(query, update=None)
        if isinstance(query, SampledLeafSums):
            return self._sampled_sums(query)
        if isinstance(query, LabelSums):
            return self._label_sums(query)
        if isinstance(query, LeafSums):
            return leaf_sums(records, query, self._loss, self._n_threads)
        if isinstance(query, Histogram):
            return histogram(records, query, self._loss, self._n_threads)
        if isinstance(query, NodeHistograms):
            kept = self._pairs if records is self._records else None
            return node_histograms(records, query, self._loss, self._n_threads, kept)
        if isinstance(query, SplitSums):
            return split_sums(records, query, self._loss, self._n_threads)
        if isinstance(query, GramMatrix):
            return gram_matrix(records, query, self._n_threads)
        if isinstance(query, CrossProducts):
            return cross_products(records, query, self._linear_loss, self._n_threads)
        raise RemoteProtocolError(
            f"The coordinator asked a query of an unknown kind, {type(query).__name__}.",
            cause="It runs a newer version than this node.",
            remedy="Install the same version of Hedgerow on both sides.",
            code="unknown-query-kind",
        )

    def _drawn(self, query: PureQuery) -> SiteRecords:
        """The records that this query's sample holds."""
        records, threshold = self._records, query.pure.sampling_threshold
        if threshold == SAMPLING_STEPS:
            return records
        return _rows_of(records, self._sampling.draw(threshold, records.n_records, str(query.purpose)))

    def finish(self, query: Query) -> None:
        """Take in a query's update without answering it; for a node that missed the round.

        The individual filter charges its records as if they had been in: whether a missed round's vector reached the
        sum is not known after a restart, and to charge too much is safe.
        """
        self._expect_ensemble(query)
        self._take_in(query, may_be_new=False)
        if query.update is not None:
            apply_update(self._records, query.update, self._n_threads)
        if isinstance(query, SampledLeafSums) and query.filter is not None:
            charge(self._records, self._loss, query.filter, self._spent)
        self._count_update(query)

    def _count_update(self, query: Query) -> None:
        if query.update is not None:
            self._ensemble_size += query.update.trees.n_trees
            if self._plan.model.algorithm == "s-gbdt":
                self._fitted.append(query.update)

    def _sampled_sums(self, query: SampledLeafSums) -> IntVector:
        """The sums over the records that the filter lets through and the sample holds."""
        if query.update is not None:
            apply_update(self._records, query.update, self._n_threads)
        records = self._records
        chosen = self._sampling.draw(query.sampling_threshold, records.n_records, str(query.purpose))
        if query.filter is not None:
            chosen = chosen & charge(records, self._loss, query.filter, self._spent)
        return leaf_sums(_rows_of(records, chosen), replace(query, update=None), self._loss, self._n_threads)

    def _label_sums(self, query: LabelSums) -> IntVector:
        """The sum of the clipped labels, rounded towards zero one by one, and the support."""
        labels = self._records.labels.astype(np.int64)
        if self._plan.label.type == "regression":
            sizes = np.minimum((np.abs(labels) * query.unit) >> 16, query.clip)
            signs = np.where(labels < 0, -1, 1)
        else:
            sizes = np.full(len(labels), min(query.unit // 2, query.clip), dtype=np.int64)
            signs = np.where(labels == 0, -1, 1)
        return np.array([int((signs * sizes).sum()), query.support * len(labels)], dtype=np.int64)

    def _expect_ensemble(self, query: Query) -> None:
        if self._loss.n_outputs and query.ensemble_size != self._ensemble_size:
            raise RemoteProtocolError(
                f"The query builds on {query.ensemble_size} trees, but this node's scores hold {self._ensemble_size}.",
                cause="The node missed a round, or the coordinator started again from an older state.",
                remedy="Let the node resynchronise from the model so far.",
                code="ensemble-out-of-step",
            )


def _rows_of(records: SiteRecords, chosen: NDArray[np.bool_]) -> SiteRecords:
    """The records for which `chosen`, bool [n], holds."""
    rows = np.flatnonzero(chosen)
    return SiteRecords(
        np.ascontiguousarray(records.codes[:, rows]),
        records.labels[rows],
        np.ascontiguousarray(records.scores[:, rows]),
    )


def check_data(site: str, data: SiteData, plan: Plan) -> None:
    """Refuse codes or labels outside the plan (DataError); `site` is for the message."""
    grid = build_grid(plan)
    label = plan.label
    low, high = (-SCORE_UNIT, SCORE_UNIT) if label.type == "regression" else (0, len(label.classes) - 1)
    fault = ""
    if data.codes.shape != (grid.n_features, data.n_records) or data.codes.dtype != grid.dtype:
        fault = f"{data.codes.dtype} codes of shape {data.codes.shape} for {data.n_records} labels"
    elif data.n_records and not low <= int(data.labels.min()) <= int(data.labels.max()) <= high:
        fault = f"a label beyond {low} to {high}"
    elif data.n_records:
        beyond = [
            feature.name
            for feature, cells, row in zip(plan.features, grid.features, data.codes, strict=True)
            if int(row.max()) >= cells.n_codes
        ]
        fault = f"a code beyond the grid in {beyond[0]}" if beyond else ""
    if fault:
        raise DataError(
            f"Site {site!r} holds {fault}.",
            cause="The rows were binned by another plan, or labels were not mapped to the plan's classes.",
            remedy="Bin and map the rows again with the plan of this run.",
            code="data-outside-plan",
        )
