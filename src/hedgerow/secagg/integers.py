"""Integers in machine words: their width, what is beyond a bound, and the nodes' shares of noise in them.

Sums wrap modulo 2^width by the machine's own arithmetic. Because the bounds on the sites' vectors together are below
2^(width-1), the wrapped word decodes to the exact sum; no float occurs anywhere.

Decoding refuses nothing: where noise is added to the sum later, a refusal would tell something exact about it. Whether
a bound was kept is asked of what is released (`require_within`).

Where noise is distributed, every node adds a discrete Gaussian share of variance sigma^2 / h, where h is the
guaranteed honest group. At least h honest shares are in any sum that is released, whichever nodes drop out. Colluders
may subtract their own, and the rest is more noise than was accounted for.

Source: Kairouz, Liu, Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation" (arXiv 2102.06387). What a sum of such shares costs beside one Gaussian is `privacy.cost.sum_slack`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.prg import DTYPES, Words
from hedgerow.errors import PrivacyError
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


# Every site sees the releases and knows its own share, which hides nothing from it: one share never counts.
LEAST_COLLUDERS = 1

Sampler = Callable[[Fraction, int], Integers]
"""Returns that many independent draws (int64) of the discrete Gaussian of the given variance parameter sigma^2."""


def share_variance(total_variance: Fraction, guarantees: Guarantees) -> Fraction:
    """Returns the variance parameter of one node's share so that the honest shares in any sum make up the total.

    Args: total_variance: sigma^2 of the accounted noise, in grid units squared (> 0).
    Raises PrivacyError when no honest vector is guaranteed or the variance is not positive.
    """
    if total_variance <= 0:
        raise PrivacyError("noise-variance")
    if guarantees.honest_group < 1:
        raise PrivacyError("noise-group")
    return total_variance / guarantees.honest_group


def draw_shares(spec: RoundSpec, guarantees: Guarantees, sampler: Sampler) -> dict[str, Integers]:
    """Returns one node's noise shares for every vector of the spec (int64 arrays by vector id)."""
    variance = share_variance(spec.noise.variance, guarantees)
    return {vector.vector_id: sampler(variance, vector.length) for vector in spec.vectors}
