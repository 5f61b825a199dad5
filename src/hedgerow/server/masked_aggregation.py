"""Secure sums in one process: the real set-up and the real exchanges of `secagg`, for sites that are all here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import isqrt

import numpy as np

from hedgerow.privacy.noise import NoiseSource
from hedgerow.privacy.query_noise import QueryNoise, noise_of
from hedgerow.protocol.plan import Plan
from hedgerow.protocol.queries import IntVector, NoiseCohort, Query
from hedgerow.secagg.fixed_point import Integers
from hedgerow.secagg.noise_shares import LEAST_COLLUDERS, draw_shares
from hedgerow.secagg.query_round import VECTOR_ID, clipped, expected_round, mode_of
from hedgerow.secagg.roster import NodePolicy, NoiseMode
from hedgerow.secagg.round_messages import RoundSpec
from hedgerow.secagg.session import NO_MODEL, Drops, EpochSession, default_wishes
from hedgerow.secagg.step import Entropy
from hedgerow.server.rounds import cohort_of, shares_of
from hedgerow.transport.local import Answering, answer_of

MAX_SLOTS = 1024
"""Slots of one epoch, as many as a node's policy holds by default; a longer run goes on in a new epoch."""
ALL_HERE = NodePolicy(min_cohort=1, min_honest_survivors=1, min_honest_group=1)
"""Owners of sites that are all in one process have nothing to insist on."""


class MaskedAggregation:
    """Sums of masked vectors: nobody sees a site's vector, not even this object.

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
        noise = noise_of(query, shares_of(self.cohort), is_local=self._mode is NoiseMode.LOCAL)
        expected = expected_round(query, self._plan, self._mode, noise.variance, len(self._nodes), NO_MODEL)
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
