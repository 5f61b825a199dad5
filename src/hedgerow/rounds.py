# SPDX-License-Identifier: Apache-2.0
"""Turn a query into the slot that sums it.

Every party computes the same widths and bounds from the same plan.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import isqrt

import numpy as np

from hedgerow.errors import PlanError
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import QueryNoise, noise_of
from hedgerow.protocol.queries import Query, SiteQuery
from hedgerow.secagg.guarantees import Guarantees, Wishes, default_wishes
from hedgerow.secagg.masks import MAX_BOUND, MIN_COLLUDERS, WIDTHS, Integers, width_for
from hedgerow.secagg.messages import NoiseMode, NoiseSpec, VectorSpec
from hedgerow.secagg.participant import ExpectedRound
from hedgerow.secagg.transitions import Refusal

VECTOR_ID = "sum"
TAIL_DEVIATIONS = 16
"""Standard deviations that an entry's discrete Gaussian noise exceeds with a probability below 10^-56."""
LAPLACE_DEVIATIONS = 96
"""Deviations of discrete Laplace noise with the same probability: 96 standard deviations are 135 times its scale."""
_MODES = {"server": NoiseMode.SERVER, "distributed": NoiseMode.DISTRIBUTED, "local": NoiseMode.LOCAL}
HEADROOM = 4
"""Factor by which a declared number of records may be too small without a refusal and without a wrapped sum."""


def noise_mode(plan: Plan) -> NoiseMode:
    """Return which party adds the noise."""
    return _MODES[plan.privacy.noise]


def round_in(query: Query, plan: Plan, guarantees: Guarantees, model: bytes) -> tuple[QueryNoise, ExpectedRound]:
    """Return a query's noise in an epoch with these guarantees, and the round that nodes expect.

    Args and raises: as `expect_round`.
    """
    mode = noise_mode(plan)
    honest_group = guarantees.honest_group if mode is NoiseMode.DISTRIBUTED else None
    noise = noise_of(query, honest_group, is_local=mode is NoiseMode.LOCAL)
    return noise, expect_round(query, plan, mode, noise.variance, guarantees.n_nodes, model)


def expect_round(
    query: Query, plan: Plan, noise: NoiseMode, variance: int, n_nodes: int, model: bytes
) -> ExpectedRound:
    """Compute the spec that a query's round must have.

    Args:
        variance: variance of the accounted noise (of one record with local noise), grid units squared, 0 without
            privacy.
        n_nodes: members of the epoch, each of which may add a whole share of distributed noise.
        model: 32-byte digest of all releases so far.

    Raises:
        Refusal: WIDTH_TOO_NARROW when no machine word holds the plan's sums.
    """
    exact = query.bound * count_possible_rows(plan)
    tail = _tail(query, plan, noise, variance, n_nodes)
    vector = _build_vector_spec(query.length, exact, tail, _find_mode_of_words(query, noise), n_nodes, query.is_pure)
    added = Fraction(0 if isinstance(query, SiteQuery) else variance)
    return ExpectedRound(str(query.purpose), model, (vector,), NoiseSpec(noise, added))


def _find_mode_of_words(query: Query, noise: NoiseMode) -> NoiseMode:
    """Return the noise mode that determines a vector's words.

    A query by site has its noise in the vectors already, like local noise.
    """
    return NoiseMode.LOCAL if isinstance(query, SiteQuery) else noise


def count_possible_rows(plan: Plan) -> int:
    """Return the number of rows if the plan's declared number counts units."""
    return plan.privacy.n_records * plan.privacy.rows_per_unit


def most_rows(plan: Plan, declared: Collection[int]) -> int:
    """Return the most rows that the honest sites of a sum hold together: the sum of their declarations.

    If a site declares none, the plan's number times `HEADROOM` is used, which is also the largest result.

    Args:
        declared: `max_rows` of each site that may be in the sum; 0 if it declares none. Nodes use no more rows than
            that.
    """
    slack = HEADROOM * count_possible_rows(plan)
    return min(slack, sum(declared)) if declared and all(declared) else slack


def clip(vector: Integers, expected: ExpectedRound, own: int | None = None) -> Integers:
    """Clip a site's own vector to the bound on its entries; for rounds with noise.

    Refusing an entry beyond the bound would tell the coordinator something exact about this site's sum. A clipped entry
    moves no further than before when one record is added, so the noise still suffices.

    Args:
        own: bound for the site's declared rows (from `bound_entry`); None if the roster does not say.
    """
    limit = min(expected.vectors[0].entry_bound, MAX_BOUND if own is None else own)
    return np.minimum(np.maximum(vector, -limit), limit)


def bound_entry(query: Query, plan: Plan, variance: int, max_rows: int) -> int | None:
    """Return the bound on an honest site's entry with `max_rows` rows, the tail of its noise included.

    None means no bound: the roster says 0 rows, or the query's sums must stay as they are.
    """
    if not max_rows or query.is_pure:
        return None
    n_draws = 1 if isinstance(query, SiteQuery) else max_rows + 1 if noise_mode(plan) is NoiseMode.LOCAL else 0
    return query.bound * max_rows + (TAIL_DEVIATIONS * (isqrt(variance * n_draws) + 1) if n_draws else 0)


def release_bound(query: Query, plan: Plan, variance: int, n_nodes: int) -> int:
    """Return a bound on a release's entries, at up to `HEADROOM` times the declared rows and noise.

    All parties compute the same number.
    """
    return HEADROOM * (
        query.bound * count_possible_rows(plan) + _tail(query, plan, noise_mode(plan), variance, n_nodes)
    )


def least_entry_bound(query: Query, plan: Plan, variance: int, n_nodes: int, *, is_known: bool = True) -> int | None:
    """Return the least bound to which honest nodes clip a query's entries; None if they do not clip.

    Args:
        variance, n_nodes: as in `release_bound`.
        is_known: whether these are the numbers of the sum's own epoch. If not, they are the largest of any epoch, and
            the narrower word is assumed if any epoch may have it.
    """
    if not variance or query.is_pure:
        return None
    exact, n_nodes = query.bound * count_possible_rows(plan), max(1, n_nodes)
    mode = _find_mode_of_words(query, noise_mode(plan))
    tail, largest = _tail(query, plan, mode, variance, n_nodes), 2 ** (WIDTHS[0] - 1) - 1
    if is_known or exact > largest:
        bound: int = _build_vector_spec(query.length, exact, tail, mode, n_nodes, is_pure=False).entry_bound
        return bound
    least: int = max(exact, (largest - tail) // min(n_nodes, largest // exact))
    return least


def require_words(query: Query, plan: Plan, variance: int, n_nodes: int) -> int:
    """Return the width of a query's words.

    Raises PlanError (code "plan-sums-too-large") when no machine word holds the sums of a query of this plan.
    """
    try:
        return expect_round(query, plan, noise_mode(plan), variance, n_nodes, bytes(32)).vectors[0].width
    except Refusal as fault:
        raise PlanError(
            "plan-sums-too-large", n_rows=count_possible_rows(plan), n_nodes=n_nodes, n_bits=WIDTHS[-1]
        ) from fault


def _tail(query: Query, plan: Plan, noise: NoiseMode, variance: int, n_nodes: int) -> int:
    """Return the largest magnitude of the noise in a release, all draws together."""
    if not variance:
        return 0
    # A site without rows adds one record's noise in the local model.
    n_draws = 1 if isinstance(query, SiteQuery) else {
        NoiseMode.SERVER: 1,
        NoiseMode.DISTRIBUTED: n_nodes,
        NoiseMode.LOCAL: count_possible_rows(plan) + n_nodes,
    }[noise]  # fmt: skip
    deviations = LAPLACE_DEVIATIONS if query.is_pure else TAIL_DEVIATIONS
    return deviations * (isqrt(variance * n_draws) + 1)


@lru_cache(maxsize=64)
def _build_vector_spec(length: int, exact: int, tail: int, noise: NoiseMode, n_nodes: int, is_pure: bool) -> VectorSpec:
    """Build the vector spec of a query; cached, because many rounds have the same.

    Args:
        exact: bound on the sum over the declared rows, all of which one site may hold.
        tail: largest magnitude of the noise.

    A site's entries are clipped only as far as the word requires, so that the sum of all vectors and the noise never
    wraps. Choices of splits are computed from several entries of a sum, and their range is known for sums of whole
    records only. So releases of pure differential privacy have words so wide that no table is ever clipped.

    Raises Refusal WIDTH_TOO_NARROW.
    """
    own = exact + (tail if noise is NoiseMode.LOCAL else 0)
    # Noise that is added to the sum, within the words or later, wraps with it.
    added = 0 if noise is NoiseMode.LOCAL else tail
    width = width_for(max(HEADROOM * (exact + tail), n_nodes * own + added))
    if is_pure:
        width = WIDTHS[-1]
    entry_bound = (2 ** (width - 1) - 1 - added) // n_nodes
    return VectorSpec(VECTOR_ID, length, width, entry_bound, HEADROOM * (exact + tail))


def choose_wishes(plan: Plan, sizes: Collection[int]) -> Wishes:
    """Return the guarantees to ask of an epoch; `sizes` are its members, or those of each group."""
    # On a complete graph one colluder costs nothing: the threshold withstands more anyway.
    wishes = default_wishes(*sizes, least_colluders=MIN_COLLUDERS)
    least, has_echo = min(plan.federation.min_sites, *sizes), wishes.has_echo or bool(plan.federation.echo)
    return replace(wishes, min_survivors=least, has_echo=has_echo, n_groups=plan.federation.groups)
