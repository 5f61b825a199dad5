"""Integers in machine words: the width from the bound on the sum, two's complement, refusal one past the bound.

Sums wrap modulo 2^width by the machine's own arithmetic. Because the bound on the sum is below 2^(width-1), the
wrapped word decodes to the exact sum; no float occurs anywhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hedgerow.secagg._primitives.prg import DTYPES, Words
from hedgerow.secagg.refusals import refuse
from hedgerow.secagg.transitions import Code

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


def decode(words: Words, sum_bound: int) -> Integers:
    """Returns the signed integers (int64) of `words`; raises Abandoned SUM_OUT_OF_RANGE for one beyond `sum_bound`."""
    signed: Integers = words.view(_SIGNED[words.itemsize]).astype(np.int64)
    if _goes_beyond(signed, sum_bound):
        raise refuse(Code.SUM_OUT_OF_RANGE)
    return signed


def _goes_beyond(vector: Integers, bound: int) -> bool:
    """Whether an entry is outside [-bound, bound]."""
    return bool(int(np.maximum.reduce(vector)) > bound or int(np.minimum.reduce(vector)) < -bound)
