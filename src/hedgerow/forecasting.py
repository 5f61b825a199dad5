"""What a plan asks of everyone and what it costs, known before anyone runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np

from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.query_noise import noise_of
from hedgerow.protocol.plan import Plan
from hedgerow.protocol.queries import Query
from hedgerow.secagg.query_round import TAIL_DEVIATIONS
from hedgerow.training.programs import program_for
from hedgerow.training.settings import Settings, largest_n_exchanges, resolve


@dataclass(frozen=True)
class Forecast:
    """What a plan asks of everyone.

    Attributes:
        settings: with every "auto" decided.
        n_exchanges: times that every node is asked for a vector.
        numbers_per_node: integers that one node sends over the whole run.
        bits_per_number: enough for any sum over the declared number of records.
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
    largest = max(expected_bound(query, plan) for query in queries)
    bits = largest.bit_length() + 1
    numbers = sum(query.length for query in queries)
    is_local = plan.privacy.noise == "local"
    events = [noise_of(query, is_local=is_local).event for query in queries]
    kinds = list(dict.fromkeys(query.purpose.kind for query in queries))
    return Forecast(
        settings=settings,
        n_exchanges=len(queries),
        numbers_per_node=numbers,
        bits_per_number=bits,
        bytes_per_node=sum(-(-query.length * bits // 8) for query in queries),
        queries=tuple(_tally(kind, queries) for kind in kinds),
        epsilon_gdp=get_accountant("gdp").epsilon(events, plan.privacy.delta),
        epsilon_rdp=get_accountant("rdp").epsilon(events, plan.privacy.delta),
        epsilon_promised=get_accountant(plan.privacy.accountant).epsilon(events, plan.privacy.delta),
    )


def expected_bound(query: Query, plan: Plan) -> int:
    """The largest sum over the declared number of records; in the local model with what their noise may come to."""
    rows = plan.privacy.n_records * plan.privacy.max_rows_per_unit
    noise = noise_of(query, is_local=True).variance * rows if plan.privacy.noise == "local" else 0
    return query.bound * rows + TAIL_DEVIATIONS * isqrt(noise)


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
