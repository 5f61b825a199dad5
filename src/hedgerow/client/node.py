"""The answers of one site: from its rows and a query to the vector that leaves.

A node sees only its own rows. It answers a query with a vector of integers, one contribution per record, and never
anything else; between queries it keeps its records' scores under the public model so far. `Node` takes part in
training, `EvaluationNode` in evaluations. Before them stand the two random draws that a node makes: which records a
round samples, and the records' own noise in the local model. `warm_up` runs a node once, so that its code is loaded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hedgerow.data.site_data import SiteData
from hedgerow.errors import DataError, HedgerowError, RemoteProtocolError
from hedgerow.evaluation.sums import LARGEST_ERROR, error_moments, score_histogram
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.methods.adassp.linear import cross_products, gram_matrix
from hedgerow.methods.replica import rehearse
from hedgerow.methods.s_gbdt.trees import charge
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource, SystemNoise
from hedgerow.privacy.query_noise import noise_of, noise_of_records
from hedgerow.protocol.queries import (
    SAMPLING_STEPS,
    CrossProducts,
    ErrorMoments,
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
    ScoreHistogram,
    SplitSums,
)
from hedgerow.training.settings import Settings
from hedgerow.trees.binning import build_grid
from hedgerow.trees.ensemble import link_of
from hedgerow.trees.histograms import PairedBinsCache, node_histograms, split_sums
from hedgerow.trees.leaf_sums import SiteRecords, apply_update, histogram, leaf_sums

_USUAL = {
    "version": 1,
    "name": "warm-up",
    "label": {"name": "y", "type": "binary", "classes": ["0", "1"]},
    "features": [
        {"name": "a", "type": "numeric", "min": 0.0, "max": 1.0},
        {"name": "b", "type": "categorical", "categories": ["x"]},
    ],
    "privacy": {"epsilon": 1.0, "delta": 1e-6, "n_records": 1000},
    "model": {"n_trees": 4, "max_depth": 2},
}


# Random draws ---------------------------------------------------------------------------------------------------------


class SamplingSource(Protocol):
    """Draws the Poisson sample of a node's records for a round.

    The privacy of a sampled release rests on this: with the sample known, a release is a full one. So real runs draw
    from the operating system, a new sample for every answer, and nothing about a sample is stored or sent.
    """

    @property
    def seeded(self) -> bool:
        """Whether the samples can be drawn again from a seed; they then amplify nothing."""

    def draw(self, threshold: int, n_records: int, purpose: str) -> NDArray[np.bool_]:
        """Who is drawn, each with a chance of threshold / SAMPLING_STEPS: bool [n_records].

        Args:
            threshold: 1 to SAMPLING_STEPS.
            n_records: how many.
            purpose: of the query.
        """


class SystemSampling:
    """Samples from the byte source given, which is `os.urandom` in every real run."""

    seeded = False

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._random_bytes = random_bytes

    def draw(self, threshold: int, n_records: int, purpose: str) -> NDArray[np.bool_]:
        """See `SamplingSource.draw`."""
        if threshold == SAMPLING_STEPS:
            return np.ones(n_records, dtype=np.bool_)
        words = np.frombuffer(self._random_bytes(4 * n_records), dtype="<u4")
        return words < np.uint64(threshold)


class SeededSampling:
    """Samples that depend on a seed, the purpose and a record's own number: the same however records are divided.

    For experiments and tests; a model made with it has no guarantee.

    Args:
        seed: any integer.
        numbers: uint64 [n], the numbers of this site's records, distinct over all sites.
    """

    seeded = True

    def __init__(self, seed: int, numbers: NDArray[np.integer[Any]]) -> None:
        self._seed, self._numbers = seed, numbers.astype(np.uint64)

    def draw(self, threshold: int, n_records: int, purpose: str) -> NDArray[np.bool_]:
        """See `SamplingSource.draw`."""
        digest = hashlib.sha256(f"hedgerow/seeded-sampling/1|{self._seed}|{purpose}".encode()).digest()
        keys = [np.uint64(int.from_bytes(digest[i : i + 8], "little")) for i in (0, 8)]
        numbers = self._numbers[:n_records]
        if len(numbers) != n_records:
            raise ValueError("there are more records than numbers")
        return (_mixed(_mixed(numbers ^ keys[0]) ^ keys[1]) >> np.uint64(32)) < np.uint64(threshold)


def seeded_samplings(seed: int, sizes: Mapping[str, int]) -> dict[str, SamplingSource]:
    """A seeded source for each of some sites, whose records are numbered one site after the other.

    Args:
        seed: any integer.
        sizes: records of each site, in the order of the numbers.
    """
    sources: dict[str, SamplingSource] = {}
    first = 0
    for site, size in sizes.items():
        sources[site] = SeededSampling(seed, np.arange(first, first + size))
        first += size
    return sources


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of splitmix64, modulo 2**64."""
    mixed = words + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def noise_of_site(query: Query, site: str, n_records: int, source: NoiseSource) -> IntVector | int:
    """What a site of so many records (>= 0) adds to its vector in the local model: int64 [query.length], or 0.

    Each record's vector is to have its own discrete Gaussian noise, N_Z(0, sigma²) on every entry, before anybody else
    sees anything of it. A node of n records draws the sum of these noises at once: one discrete Gaussian with the
    standard deviation sqrt(n) sigma, rounded up to an integer. That is n times cheaper than n draws, and nothing is
    lost. What is accounted for is one record's noise, and the vector of a site has a single discrete Gaussian of at
    least that sigma, for which the ledger's event holds exactly. But for the rounding, the log-ratio of the two
    distributions is below 10 n exp(-pi² sigma²) an entry (docs/proofs/discrete-gaussian.md, theorem 2), which is
    nothing for a sigma of hundreds of grid units. A site without rows adds one record's noise.

    Source of the baseline: Maddock et al., CCS'22, section 5.3 ("LDP baseline": each user adds Gaussian noise before
    releasing their gradient information).

    Args:
        source: where it is drawn, under a name that tells sites apart.
    """
    sigma = noise_of_records(noise_of(query, is_local=True).record_sigma, n_records)
    return source.sample(sigma, query.length, f"{query.purpose}/records of {site}") if sigma else 0


# Training -------------------------------------------------------------------------------------------------------------


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
        raise RemoteProtocolError("unknown-query-kind", kind=type(query).__name__)

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
            raise RemoteProtocolError("ensemble-out-of-step", found=query.ensemble_size, held=self._ensemble_size)


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
        raise DataError("data-outside-plan", site=site, fault=fault)


# Evaluation -----------------------------------------------------------------------------------------------------------


class EvaluationNode:
    """One site of an evaluation; it answers `ScoreHistogram` and `ErrorMoments` and nothing else.

    Args:
        site: the site's name.
        data: its held-out rows.
        plan: the plan of the model.
        n_threads: threads to predict with.
        noise: where the records' noise comes from in the local model; None for the operating system.

    Raises:
        DataError: for codes or labels outside the plan.
    """

    def __init__(
        self, site: str, data: SiteData, plan: Plan, n_threads: int = 1, noise: NoiseSource | None = None
    ) -> None:
        check_data(site, data, plan)
        self.site = site
        self._plan = plan
        self._link = link_of(plan)
        self._n_threads = n_threads
        self._noise = noise or SystemNoise(os.urandom)
        self._ensemble_size = 0
        scores = np.zeros((plan.label.n_outputs, data.n_records), dtype=np.int32)
        self._records = SiteRecords(data.codes, data.labels, scores)

    def answer(self, query: Query) -> IntVector:
        """The site's vector for a query: int64 [query.length].

        Raises:
            RemoteProtocolError: for a query of another kind, of another ensemble size, or that claims less sensitivity
                than one unit's contribution has.
        """
        if not isinstance(query, ScoreHistogram | ErrorMoments):
            raise RemoteProtocolError(
                "evaluation-query-refused", reason=f"a {type(query).__name__} query has no place in an evaluation"
            )
        self._check(query)
        self.finish(query)
        if isinstance(query, ErrorMoments):
            sums = error_moments(self._records, query)
        else:
            sums = score_histogram(self._records, query, self._link)
        if self._plan.privacy.noise == "local":
            sums = sums + noise_of_site(query, self.site, self._records.n_records, self._noise)
        return sums

    def finish(self, query: Query) -> None:
        """Take in a query's trees without answering it; for a node that missed the round."""
        if query.ensemble_size != self._ensemble_size:
            raise RemoteProtocolError(
                "evaluation-query-refused",
                reason=f"the query builds on {query.ensemble_size} trees; the scores hold {self._ensemble_size}",
            )
        if query.update is not None:
            apply_update(self._records, query.update, self._n_threads)
            self._ensemble_size += query.update.trees.n_trees

    def _check(self, query: ScoreHistogram | ErrorMoments) -> None:
        """The numbers that the noise is calibrated by follow from the query; a node believes only its own."""
        label, rows = self._plan.label, self._plan.privacy.rows_per_unit
        if isinstance(query, ErrorMoments):
            fits = label.type == "regression" and 1 <= query.error_clip <= LARGEST_ERROR and query.length == 4
            norm_squared = 4
        else:
            expected = {"binary": "score", "multiclass": "probability", "regression": "residual"}[label.type]
            n_curves, n_rows, n_bins = query.shape
            fits = query.position == expected and n_curves == label.n_outputs
            fits = fits and not (label.type == "regression" and (query.by_label or query.with_hits))
            fits = fits and query.length == n_curves * n_rows * n_bins + 2 * query.with_hits
            fits = fits and bool((np.diff(query.edges, axis=1) >= 0).all())
            norm_squared = n_curves + query.with_hits
        if not (fits and query.unit >= 1):
            raise RemoteProtocolError("evaluation-query-refused", reason="it does not fit the plan's label")
        if query.bound < query.unit or query.sensitivity_squared < norm_squared * query.unit**2 * rows * rows:
            raise RemoteProtocolError(
                "evaluation-query-refused", reason="it claims a smaller sensitivity than one unit's contribution has"
            )


# Warming up -----------------------------------------------------------------------------------------------------------


def warm_up(plan: Plan | None, n_threads: int = 1) -> None:
    """Answer the first queries of a plan over one made-up record, for nothing but to load what a run needs.

    A process that has just started spends seconds on imports and on kernels from numba's cache. It does so here, before
    the node dials: at the first query, all other sites would wait for it. Without a plan, the queries are those of a
    usual one.
    """
    plan = (plan or Plan.from_dict(_USUAL)).with_structure_seed(0)
    try:
        task = TrainingTask(plan)
        task.planned_releases()
        columns = tuple(np.zeros(1, np.int16 if feature.is_categorical else np.float32) for feature in plan.features)
        data = SiteData(build_grid(plan).encode(columns), np.zeros(1, dtype=np.int32))
        rehearse(task, Node("warm-up", data, plan, task.settings, n_threads).answer)
    except HedgerowError:
        # A plan that cannot be run is refused where the refusal is told to the coordinator as well.
        return
