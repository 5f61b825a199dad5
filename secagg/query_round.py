"""From a query to the slot that sums it: every party computes the same widths and bounds from the same plan."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

from hedgerow.protocol.plan import Plan
from hedgerow.protocol.queries import Query
from hedgerow.secagg.checks import ExpectedRound
from hedgerow.secagg.fixed_point import width_for
from hedgerow.secagg.roster import NoiseMode
from hedgerow.secagg.round_messages import NoiseSpec, VectorSpec, variance_of

VECTOR_ID = "sum"
TAIL_DEVIATIONS = 16
"""The chance that a discrete Gaussian goes beyond so many standard deviations is below 10^-56 an entry."""
_MODES = {"server": NoiseMode.SERVER, "distributed": NoiseMode.DISTRIBUTED, "local": NoiseMode.LOCAL}
HEADROOM = 4
"""A declared number of records may be too small by this factor, as far as the width has room anyway."""


def mode_of(plan: Plan) -> NoiseMode:
    """Who adds the noise."""
    return _MODES[plan.privacy.noise]


def expected_round(
    query: Query, plan: Plan, noise: NoiseMode, variance: int, n_nodes: int, model: bytes
) -> ExpectedRound:
    """Returns what the round of a query must say.

    Args: noise: who adds the noise; variance: of the accounted noise (that of one record
        with local noise), grid units squared, 0 without privacy; n_nodes:
        members of the epoch, each of whom may add a whole share of distributed noise; model: 32-byte digest of all
        releases so far.
    Raises Refusal WIDTH_TOO_NARROW when no machine word holds the plan's sums.
    """
    rows = plan.privacy.n_records * plan.privacy.max_rows_per_unit
    n_draws = n_nodes if noise is NoiseMode.DISTRIBUTED else rows if noise is NoiseMode.LOCAL else 0
    vectors = (_vector_of(query.length, query.bound * rows, variance * n_draws),)
    return ExpectedRound(str(query.purpose), model, vectors, NoiseSpec(noise, variance_of(variance)))


@lru_cache(maxsize=64)
def _vector_of(length: int, exact_bound: int, added_variance: int) -> VectorSpec:
    """The vector of a query, by what bounds its sum and what is added to it; remembered, as many rounds have the same.

    Raises Refusal WIDTH_TOO_NARROW.
    """
    tail = TAIL_DEVIATIONS * (isqrt(added_variance) + 1) if added_variance else 0
    needed = exact_bound + tail
    width = width_for(needed)
    # Where the word has room, a declared number of records that is a little too small does not end the run.
    bound = min(2 ** (width - 1) - 1, HEADROOM * needed)
    return VectorSpec(VECTOR_ID, length, width, bound, bound)
