"""What a plan asks of everyone and what it costs, known before anyone runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.query_noise import noise_of
from hedgerow.protocol.plan import Plan
from hedgerow.protocol.queries import Query
from hedgerow.secagg.query_round import require_words
from hedgerow.training.programs import program_for
from hedgerow.training.settings import Settings, largest_n_exchanges, resolve


@dataclass(frozen=True)
class Forecast:
    """What a plan asks of everyone.

    Attributes:
        settings: with every "auto" decided.
        n_exchanges: times that every node is asked for a vector.
        numbers_per_node: integers that one node sends over the whole run.
        bits_per_number: of a masked vector, over the fewest sites that the plan asks for; more sites may need 64.
        bytes_per_node: what one node sends, without the envelope of a transport.
        queries: (kind, number of exchanges, largest length of the vector) of each kind of query.
        epsilon_gdp, epsilon_rdp: what all releases together cost at the plan's delta, by these accountants.
        epsilon_promised: the same by the plan's own accountant.
    """

    settings: Settings
    n_exchanges: int
    numbers_per_node: int
    bits_per_number: int
    bytes_per_node: int
    queries: tuple[tuple[str, int, int], ...]
    epsilon_gdp: float
    epsilon_rdp: float
    epsilon_promised: float


def forecast(plan: Plan) -> Forecast:
    """Run the plan's program on sums of nothing and count what it asks.

    What a program asks depends on the answers (candidates follow the released sums), but how often it asks does not,
    and neither does the length of a vector of leaf sums; that of a histogram varies by a few candidates.
    """
    settings = resolve(plan)
    queries = dry_run(plan, settings)
    numbers = sum(query.length for query in queries)
    is_local = plan.privacy.noise == "local"
    widths = [width_of(query, plan) for query in queries]
    events = [noise_of(query, is_local=is_local).event for query in queries]
    kinds = list(dict.fromkeys(query.purpose.kind for query in queries))
    return Forecast(
        settings=settings,
        n_exchanges=len(queries),
        numbers_per_node=numbers,
        bits_per_number=max(widths),
        bytes_per_node=sum(query.length * width // 8 for query, width in zip(queries, widths, strict=True)),
        queries=tuple(_tally(kind, queries) for kind in kinds),
        epsilon_gdp=get_accountant("gdp").epsilon(events, plan.privacy.delta),
        epsilon_rdp=get_accountant("rdp").epsilon(events, plan.privacy.delta),
        epsilon_promised=get_accountant(plan.privacy.accountant).epsilon(events, plan.privacy.delta),
    )


def width_of(query: Query, plan: Plan) -> int:
    """The bits of one number of a masked vector, for as many sites as the plan asks for at least.

    Raises:
        PlanError: code "plan-sums-too-large".
    """
    noise = noise_of(query, is_local=plan.privacy.noise == "local")
    return require_words(query, plan, noise.variance, plan.federation.min_sites)


def _tally(kind: str, queries: Sequence[Query]) -> tuple[str, int, int]:
    lengths = [query.length for query in queries if query.purpose.kind == kind]
    return kind, len(lengths), max(lengths)


def count_exchanges(plan: Plan, settings: Settings) -> int:
    """How often a run asks every node: see `largest_n_exchanges`, which is exact."""
    return largest_n_exchanges(plan, settings)


def dry_run(plan: Plan, settings: Settings) -> list[Query]:
    """The queries of a plan when every answer is zero.

    Nothing here depends on the seed of the trees but which features a query names, so a seed that the sites are still
    to draw is taken to be 0.
    """
    program = program_for(plan.with_structure_seed(0), settings)
    queries: list[Query] = []
    try:
        query = next(program)
        while True:
            queries.append(query)
            query = program.send(np.zeros(query.release_length, dtype=np.int64))
    except StopIteration:
        return queries
