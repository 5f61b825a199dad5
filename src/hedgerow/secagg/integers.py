"""Integers in machine words: their width, what is beyond a bound, and the nodes' shares of noise in them.

Sums wrap modulo 2^width by the machine's own arithmetic. Because the bounds on the sites' vectors together are below
2^(width-1), the wrapped word decodes to the exact sum; no float occurs anywhere.

Decoding refuses nothing: where noise is added to the sum later, a refusal would tell something exact about it. Whether
a bound was kept is asked of what is released (`require_within`).

Where noise is distributed, every node adds a discrete Gaussian share of variance sigma^2 / h, where h is the
guaranteed honest group. At least h honest shares are in any sum that is released, whichever nodes drop out. Colluders
may subtract their own, and the rest is more noise than was accounted for.

Source: Kairouz, Liu, Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation" (arXiv 2102.06387): a sum of discrete Gaussians is not one, but close; tau below is its term for that,
as in google-research `distributed_dp/accounting_utils`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import exp, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from hedgerow.errors import PrivacyError
from hedgerow.secagg._primitives.prg import DTYPES, Words
from hedgerow.secagg.guarantees import Guarantees
from hedgerow.secagg.messages import RoundSpec
from hedgerow.secagg.transitions import Code, refuse

WIDTHS = (32, 64)
MAX_BOUND = 2**63 - 1
# By the bytes of a word, and in the same byte order.
_SIGNED: dict[int, np.dtype[np.signedinteger]] = {4: np.dtype("<i4"), 8: np.dtype("<i8")}

Integers = NDArray[np.int64]


def width_for(sum_bound: int) -> int:
    """Returns the least width in bits (32 or 64) whose two's complement holds every sum in [-sum_bound, sum_bound].

    Args: sum_bound: bound on the absolute value of an entry of the sum, the noise's tail included (1..2^63 - 1).
    Raises Refusal WIDTH_TOO_NARROW when no width holds it.
    """
    for width in WIDTHS:
        if 1 <= sum_bound < 2 ** (width - 1):
            return width
    raise refuse(Code.WIDTH_TOO_NARROW, f"No width of {WIDTHS} bits holds a bound of {sum_bound}.")


def require_width(width: int, sum_bound: int) -> None:
    """Raises Refusal WIDTH_TOO_NARROW unless `width` is 32 or 64 and holds sums up to `sum_bound`."""
    if width not in WIDTHS or width < width_for(sum_bound):
        raise refuse(Code.WIDTH_TOO_NARROW, f"A width of {width} bits, a bound of {sum_bound}.")


def encode(vector: Integers, length: int, entry_bound: int, width: int) -> Words:
    """Returns `vector` (int64, shape (length,), entries in [-entry_bound, entry_bound]) as words modulo 2^width.

    Raises OwnMistake VECTOR_UNFIT for another shape or dtype, or an entry beyond the bound.
    """
    if not isinstance(vector, np.ndarray) or vector.dtype != np.int64 or vector.shape != (length,):
        raise refuse(Code.VECTOR_UNFIT, f"An int64 array of shape ({length},) is required.")
    if _goes_beyond(vector, entry_bound):
        raise refuse(Code.VECTOR_UNFIT, "An entry is beyond the bound.")
    return vector.astype(DTYPES[width])


def decode(words: Words) -> Integers:
    """Returns the signed integers (int64) of `words`, whatever they are."""
    signed: Integers = words.view(_SIGNED[words.itemsize]).astype(np.int64)
    return signed


def wrapped(vector: Integers, width: int) -> Integers:
    """Returns `vector` modulo 2^width, as signed integers (int64).

    Noise that is added to a decoded sum has to wrap with it. A site may lie so that the others' exact sum stands at the
    end of a word: then one record more would throw it to the other end, which no noise hides.
    """
    return vector.astype(_SIGNED[width // 8]).astype(np.int64)


def require_within(released: Integers, bound: int) -> None:
    """Raises Abandoned SUM_OUT_OF_RANGE for an entry outside [-bound, bound].

    Args: released: a sum *with its noise*, written down and charged already; of a sum without, this would be a
        question that nothing was paid for.
    """
    if _goes_beyond(released, bound):
        raise refuse(Code.SUM_OUT_OF_RANGE)


def _goes_beyond(vector: Integers, bound: int) -> bool:
    """Whether an entry is outside [-bound, bound]."""
    return bool(int(np.maximum.reduce(vector)) > bound or int(np.minimum.reduce(vector)) < -bound)


LEAST_COLLUDERS = 1
"""Every site sees the releases and knows its own share, which hides nothing from it: one share never counts."""

Sampler = Callable[[Fraction, int], Integers]
"""Returns that many independent draws (int64) of the discrete Gaussian of the given variance parameter sigma^2."""


def share_variance(total_variance: Fraction, guarantees: Guarantees) -> Fraction:
    """Returns the variance parameter of one node's share so that the honest shares in any sum make up the total.

    Args: total_variance: sigma^2 of the accounted noise, in grid units squared (> 0).
    Raises PrivacyError when no honest vector is guaranteed or the variance is not positive.
    """
    if total_variance <= 0:
        raise PrivacyError("Distributed noise needs a positive variance.", code="noise-variance")
    if guarantees.honest_group < 1:
        raise PrivacyError(
            "No honest noise share is guaranteed in a sum.",
            cause="The thresholds allow the coordinator to isolate nodes.",
            remedy="Raise min_survivors, add the echo exchange, or assume fewer colluders.",
            code="noise-group",
        )
    return total_variance / guarantees.honest_group


def draw_shares(spec: RoundSpec, guarantees: Guarantees, sampler: Sampler) -> dict[str, Integers]:
    """Returns one node's noise shares for every vector of the spec (int64 arrays by vector id)."""
    variance = share_variance(spec.noise.variance, guarantees)
    return {vector.vector_id: sampler(variance, vector.length) for vector in spec.vectors}


def largest_total_variance(total_variance: Fraction, guarantees: Guarantees, n_survivors: int) -> Fraction:
    """Returns the variance of the noise in a sum over `n_survivors`: the price of not trusting the coordinator."""
    return share_variance(total_variance, guarantees) * n_survivors


def sum_bound_tau(variance_per_share: Fraction, n_shares: int) -> float:
    """Returns tau = 10 sum_{k=1}^{n-1} exp(-2 pi^2 sigma_i^2 k/(k+1)), the distance of the sum from one Gaussian.

    Below 1e-30 for a sigma_i of 3 grid units and 1,000 shares; the scale of the grid is to be chosen so.
    Source: Kairouz et al. 2021, Proposition 14, which needs sigma_i >= 1/2.
    Raises PrivacyError for a smaller variance or fewer than one share.
    """
    if 4 * variance_per_share < 1 or n_shares < 1:
        raise PrivacyError("tau needs a sigma of at least 1/2 a share, and one share.", code="noise-variance")
    return 10.0 * sum(exp(-2.0 * pi**2 * float(variance_per_share) * k / (k + 1)) for k in range(1, n_shares))


@dataclass(frozen=True, slots=True)
class SumPrivacy:
    """The zero-concentrated privacy of a sum of discrete Gaussian shares: `rho`, and the `tau` that is inside it."""

    rho: float
    tau: float


def sum_privacy(
    variance_per_share: Fraction, n_shares: int, length: int, l1_sensitivity: float, l2_sensitivity: float
) -> SumPrivacy:
    """Returns rho = epsilon^2 / 2 for the sum of `n_shares` independent discrete Gaussians added to `length` entries.

    epsilon is the least of sqrt(D2^2/(n s^2) + tau d / 2), sqrt(D2^2/(n s^2) + 2 tau D1/(sqrt(n) s) + tau^2 d)
    and D2/(sqrt(n) s) + tau sqrt(d), with D1, D2 the integer sensitivities: Kairouz et al. 2021, Theorem 1.
    """
    tau = sum_bound_tau(variance_per_share, n_shares)
    spread = sqrt(n_shares * float(variance_per_share))
    squared = (l2_sensitivity / spread) ** 2
    epsilon = min(
        sqrt(squared + tau * length / 2),
        sqrt(squared + 2 * tau * l1_sensitivity / spread + tau**2 * length),
        l2_sensitivity / spread + tau * sqrt(length),
    )
    return SumPrivacy(epsilon**2 / 2, tau)
