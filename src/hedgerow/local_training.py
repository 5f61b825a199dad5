"""Train a plan over sites that are objects in this process: what estimators, commands and the demonstration call.

It is the real protocol (nodes that see their own rows only, an aggregation, a coordinator that adds the noise); only
the network is missing.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence

from hedgerow.client.node import Node, SiteData
from hedgerow.model import Model
from hedgerow.privacy.noise import NoiseSource
from hedgerow.protocol.errors import UsageError
from hedgerow.protocol.plan import Plan
from hedgerow.server.coordinator import Progress, run_program
from hedgerow.server.masked_aggregation import MaskedAggregation
from hedgerow.training.programs import program_for
from hedgerow.training.settings import largest_n_exchanges, resolve
from hedgerow.transport.local import Aggregation, Answering, PlainAggregation

SMALLEST_MASKED_COHORT = 3


def train(
    plan: Plan,
    sites: Mapping[str, SiteData],
    *,
    noise: NoiseSource,
    n_threads: int = 1,
    progress: Progress | None = None,
) -> Model:
    """Train one model over all sites; deterministic but for `noise`.

    Args:
        plan: the plan.
        sites: each site's rows by the site's name.
        noise: `SystemNoise(os.urandom)` for a real run; a seeded source makes a model without a guarantee.
        n_threads: threads each node sums with, >= 1.
        progress: called after every release with its query and the ledger so far.

    Raises:
        UsageError: fewer sites than the plan asks for.
        PrivacyError: when the plan's promise cannot be kept.
    """
    check_sites(plan, len(sites))
    settings = resolve(plan)
    nodes = [Node(name, sites[name], plan, settings, n_threads) for name in sorted(sites)]
    aggregation = build_aggregation(plan, nodes, largest_n_exchanges(plan, settings), noise)
    as_run = plan.with_structure_seed(_drawn_seed(aggregation))
    outcome = run_program(as_run, program_for(as_run, settings), aggregation, noise, progress)
    return Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report)


def _drawn_seed(aggregation: Aggregation) -> int:
    """The seed that the sites have drawn; without masks there is nobody to draw it with but this process."""
    return aggregation.public_seed if isinstance(aggregation, MaskedAggregation) else secrets.randbits(63)


def build_aggregation(plan: Plan, nodes: Sequence[Answering], n_exchanges: int, noise: NoiseSource) -> Aggregation:
    """How the nodes' vectors are added up; the one place that decides it for everything in this process.

    Masks are used where the plan wants them and can hide something: the exact sum over two sites tells each of them the
    other's vector, and the sum over one is its vector. Noise from the sites always travels under masks.
    """
    is_distributed = plan.privacy.noise == "distributed"
    if is_distributed and len(nodes) < 2:
        raise UsageError(
            'The plan wants the sites to add the noise (privacy.noise = "distributed"), but there is only one site.',
            cause="A single site's masked sum is its own vector: there is nobody to hide it among.",
            remedy='Set privacy.noise to "server", or take more sites.',
            code="too-few-sites",
        )
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
        raise UsageError(
            f"{n_sites} site(s) take part, but the plan asks for at least {wanted} (federation.min_sites).",
            cause="A sum over few sites says much about each of them.",
            remedy="Give the tables of more sites, or agree on a plan with a smaller federation.min_sites.",
            code="too-few-sites",
        )
