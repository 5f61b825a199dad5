"""Integers in machine words: the width from the bound on the sum, two's complement, and what is beyond a bound.

Sums wrap modulo 2^width by the machine's own arithmetic. Because the bounds on the sites' vectors together are below
2^(width-1), the wrapped word decodes to the exact sum; no float occurs anywhere.

Decoding refuses nothing: where noise is added to the sum later, a refusal would tell something exact about it. Whether
a bound was kept is asked of what is released (`require_within`).
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
