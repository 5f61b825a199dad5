"""From a query to the slot that sums it: every party computes the same widths and bounds from the same plan."""

from __future__ import annotations

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
    n_draws = {NoiseMode.SERVER: 0, NoiseMode.DISTRIBUTED: n_nodes, NoiseMode.LOCAL: rows}[noise]
    tail = TAIL_DEVIATIONS * (isqrt(variance * n_draws) + 1) if variance * n_draws else 0
    needed = query.bound * rows + tail
    width = width_for(needed)
    # Where the word has room, a declared number of records that is a little too small does not end the run.
    bound = min(2 ** (width - 1) - 1, HEADROOM * needed)
    vector = VectorSpec(VECTOR_ID, query.length, width, bound, bound)
    return ExpectedRound(str(query.purpose), model, (vector,), NoiseSpec(noise, variance_of(variance)))
