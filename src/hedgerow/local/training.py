"""Train a plan over sites that are objects in this process: what estimators, commands and the demonstration call.

It is the real protocol: nodes that see their own rows only, the set-up and the exchanges of `secagg`, a coordinator
that adds the noise. Only the network is missing.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import isqrt

import numpy as np

from hedgerow.client.node import Node, SamplingSource
from hedgerow.data.site_data import SiteData
from hedgerow.errors import UsageError
from hedgerow.methods.registry import method_of, program_for, resolve
from hedgerow.methods.tasks import TrainingTask
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import QueryNoise
from hedgerow.privacy.noise import NoiseSource
from hedgerow.protocol.queries import IntVector, NoiseCohort, Query
from hedgerow.rounds import VECTOR_ID, clipped, mode_of, round_in
from hedgerow.secagg.masks import LEAST_COLLUDERS, Integers, draw_shares
from hedgerow.secagg.messages import NodePolicy, NoiseMode, RoundSpec
from hedgerow.secagg.session import NO_MODEL, Drops, EpochSession, default_wishes
from hedgerow.secagg.transitions import Entropy
from hedgerow.server.phases import check_words, cohort_of
from hedgerow.server.release import Aggregation, Answering, PlainAggregation, Progress, answer_of, run_program

MAX_SLOTS = 1024
"""Slots of one epoch, as many as a node's policy holds by default; a longer run goes on in a new epoch."""
ALL_HERE = NodePolicy(min_cohort=1, min_honest_survivors=1, min_honest_group=1)
"""Owners of sites that are all in one process have nothing to insist on."""


class MaskedAggregation:
    """Sums of masked vectors: no one sees a site's vector, not even this object.

    Args:
        nodes: the sites' nodes, two or more, with distinct names.
        plan: the plan; it says who adds the noise, and bounds every sum.
        n_slots: aggregations that are expected (>= 1); an epoch's keys are made for that many at once.
        entropy: the source of keys and masks: ``os.urandom`` but in tests.
        noise: where the nodes' shares of noise come from, when the plan wants them to add it.
        drops: which sites fall silent at a query; for tests.
    """

    def __init__(
        self,
        nodes: Sequence[Answering],
        plan: Plan,
        n_slots: int,
        entropy: Entropy,
        noise: NoiseSource,
        drops: Callable[[Query], Drops] | None = None,
    ) -> None:
        self._nodes = {node.site: node for node in nodes}
        self._plan = plan
        self._n_slots = max(1, min(n_slots, MAX_SLOTS))
        self._entropy = entropy
        self._noise = noise
        self._drops = drops
        self._mode = mode_of(plan)
        self.n_nodes = len(self._nodes)
        self.sites: tuple[str, ...] | None = None
        self._epoch = self._new_epoch()

    @property
    def cohort(self) -> NoiseCohort | None:
        """The sites that add noise in this epoch; None when the nodes add none."""
        return cohort_of(self._plan, self._epoch.view)

    @property
    def public_seed(self) -> int:
        """The seed of the trees' structure that the sites have drawn in this epoch, 0 to 2**63 - 1."""
        return self._epoch.view.public_seed

    def sum_of(self, query: Query) -> IntVector:
        """See `Aggregation.sum_of`; raises Refusal, OwnMistake or Abandoned as the parties do."""
        if self._epoch.next_slot >= self._n_slots:
            self._epoch = self._new_epoch()
        epoch = self._epoch
        noise, expected = round_in(query, self._plan, epoch.view.guarantees, NO_MODEL)
        spec = epoch.spec(expected.purpose, expected.vectors, expected.model, expected.noise.variance)
        vectors = {site: {VECTOR_ID: answer_of(node, query)} for site, node in self._nodes.items()}
        if noise.variance:
            vectors = {site: {VECTOR_ID: clipped(own[VECTOR_ID], expected)} for site, own in vectors.items()}
        shares = self._shares(spec, noise) if self._mode is NoiseMode.DISTRIBUTED else None
        drops = self._drops(query) if self._drops is not None else None
        opened = epoch.aggregate(spec, vectors, noise=shares, drops=drops)
        names = list(self._nodes)
        self.sites = tuple(names[node] for node in opened.survivors)
        return opened.sums[VECTOR_ID]

    def _new_epoch(self) -> EpochSession:
        wishes = default_wishes(len(self._nodes), LEAST_COLLUDERS if self._mode is NoiseMode.DISTRIBUTED else 0)
        # As many shares count here as over a network.
        wishes = replace(wishes, has_echo=wishes.has_echo or bool(self._plan.federation.echo))
        return EpochSession(
            list(self._nodes), self._n_slots, self._entropy, wishes=wishes, noise=self._mode, policy=ALL_HERE
        )

    def _shares(self, spec: RoundSpec, noise: QueryNoise) -> dict[str, dict[str, Integers]]:
        """Every site's share of the noise of one round, each drawn under a name of its own."""
        return {site: self._share_of(site, spec, noise) for site in self._nodes}

    def _share_of(self, site: str, spec: RoundSpec, noise: QueryNoise) -> dict[str, Integers]:
        if not noise.variance:
            return {vector.vector_id: np.zeros(vector.length, dtype=np.int64) for vector in spec.vectors}

        def sampler(variance: Fraction, length: int) -> Integers:
            return self._noise.sample(isqrt(int(variance)), length, f"{spec.purpose}/share of {site}")

        return draw_shares(spec, self._epoch.view.guarantees, sampler)


SMALLEST_MASKED_COHORT = 3


def train(
    plan: Plan,
    sites: Mapping[str, SiteData],
    *,
    noise: NoiseSource,
    n_threads: int = 1,
    progress: Progress | None = None,
    sampling: Mapping[str, SamplingSource] | None = None,
    arrivals: Mapping[int, Mapping[str, SiteData]] | None = None,
) -> Model:
    """Train one model over all sites; deterministic but for `noise` and `sampling`.

    Args:
        plan: the plan.
        sites: each site's rows by the site's name.
        noise: `SystemNoise(os.urandom)` for a real run; a seeded source makes a model without a guarantee.
        n_threads: threads each node sums with, >= 1.
        progress: called after every release with its query and the ledger so far.
        sampling: each site's source of samples, for algorithms that draw any; None for the operating system.
        arrivals: a stream (S-GBDT only): rows that come to sites before the exchange of that number. One run, and so
            one filter and one ledger, spans the whole stream; which record comes when must not depend on others.

    Raises:
        UsageError: fewer sites than the plan asks for.
        PlanError: no machine word holds the plan's sums.
        PrivacyError: when the plan's promise cannot be kept.
        AggregationError: code "sum-out-of-range"; far more rows than the plan declares.
    """
    check_sites(plan, len(sites))
    settings = resolve(plan)
    check_words(TrainingTask(plan), len(sites))
    check_sampling(plan, noise, sampling, arrivals)
    sources = sampling or {}
    nodes = {
        name: Node(name, sites[name], plan, settings, n_threads, sources.get(name), noise) for name in sorted(sites)
    }
    answering: list[Answering] = [ArrivingNode(node, arrivals or {}) for node in nodes.values()]
    aggregation = build_aggregation(plan, answering, settings.n_exchanges(plan), noise)
    # The seed that the sites have drawn; without masks there is no one to draw it with but this process.
    seed = aggregation.public_seed if isinstance(aggregation, MaskedAggregation) else secrets.randbits(63)
    as_run = plan.with_structure_seed(seed)
    outcome = run_program(as_run, program_for(as_run, settings), aggregation, noise, progress)
    return Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report)


class ArrivingNode:
    """A node to which rows come while a run goes on."""

    def __init__(self, node: Node, arrivals: Mapping[int, Mapping[str, SiteData]]) -> None:
        self.site = node.site
        self._node = node
        self._arrivals = {number: rows[node.site] for number, rows in arrivals.items() if node.site in rows}

    def answer(self, query: Query) -> IntVector:
        """See `Node.answer`; what has come up to this exchange is taken in first."""
        for number in sorted(due for due in self._arrivals if due <= query.purpose.round):
            self._node.arrive(self._arrivals.pop(number))
        return self._node.answer(query)


def check_sampling(
    plan: Plan,
    noise: NoiseSource,
    sampling: Mapping[str, SamplingSource] | None,
    arrivals: Mapping[int, Mapping[str, SiteData]] | None,
) -> None:
    """Raise UsageError for seeded samples under noise that claims a guarantee, or a stream for another algorithm."""
    if sampling and any(source.seeded for source in sampling.values()) and not noise.seeded:
        raise UsageError("sampling-seeded")
    if arrivals and not method_of(plan).keeps_accounts:
        raise UsageError("stream-unsupported", algorithm=plan.model.algorithm)


def build_aggregation(plan: Plan, nodes: Sequence[Answering], n_exchanges: int, noise: NoiseSource) -> Aggregation:
    """How the nodes' vectors are added up; the one place that decides it for everything in this process.

    Masks are used where the plan wants them and can hide something: the exact sum over two sites tells each of them the
    other's vector, and the sum over one is its vector. Noise from the sites always travels under masks.
    """
    is_distributed = plan.privacy.noise == "distributed"
    if is_distributed and len(nodes) < 2:
        raise UsageError("one-site")
    if is_distributed or (plan.federation.secure_aggregation and len(nodes) >= SMALLEST_MASKED_COHORT):
        return MaskedAggregation(nodes, plan, n_exchanges, os.urandom, noise)
    return PlainAggregation(nodes)


def without_secure_aggregation(plan: Plan) -> Plan:
    """The plan with sums in the clear, for large experiments in one process; the model file holds this plan.

    Raises:
        PlanError: when the plan wants noise from the sites.
    """
    table = plan.to_dict()
    return Plan.from_dict({**table, "federation": {**table["federation"], "secure_aggregation": False}})


def check_sites(plan: Plan, n_sites: int) -> None:
    """Raise UsageError when fewer sites take part than the plan asks for."""
    wanted = plan.federation.min_sites
    if n_sites < wanted:
        raise UsageError("too-few-sites", n_sites=n_sites, wanted=wanted)
