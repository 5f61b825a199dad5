"""The compiled inner loops of the exact discrete Laplace sampler and of the exponential mechanism; integers only.

They read a stream of random bytes as `hedgerow.privacy.sampling_kernels` does: a draw during which the stream ends
starts again from its first byte when there are more.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from hedgerow.privacy.sampling_kernels import (
    END_OF_STREAM,
    Stream,
    bernoulli_exp_half,
    bernoulli_exp_ratio,
    uniform_below,
)

LARGEST_WHOLE = 2**20
"""More successes of chance 1/e in a row than this have a probability below e^(-10^6)."""


@numba.njit(cache=True)
def bernoulli_exp_one(stream: Stream, position: int) -> tuple[int, int]:
    """1 with probability exp(-1), else 0, and the next position: two successes of exp(-1/2)."""
    for _ in range(2):
        success, position = bernoulli_exp_half(stream, position)
        if position == END_OF_STREAM:
            return 0, END_OF_STREAM
        if success == 0:
            return 0, position
    return 1, position


@numba.njit(cache=True)
def attempt_discrete_laplace(stream: Stream, position: int, scale: int) -> tuple[int, int, int]:
    """One attempt at a draw with P(x) proportional to exp(-|x| / scale): (accepted, value, next position).

    u uniform below `scale` is kept with probability exp(-u / scale), v counts successes of exp(-1) before a failure;
    u + scale v is geometric; it gets a random sign, and one of the two signs of zero is refused. accepted is -1 when v
    leaves its range.

    Source: Canonne, Kamath & Steinke 2020 (arXiv 2004.00010), Algorithm 2 with s = 1, t = scale.
    """
    u, position = uniform_below(stream, position, scale)
    if position == END_OF_STREAM:
        return 0, 0, END_OF_STREAM
    success, position = bernoulli_exp_ratio(stream, position, u, scale)
    if position == END_OF_STREAM or success == 0:
        return 0, 0, position
    v = 0
    while True:
        success, position = bernoulli_exp_one(stream, position)
        if position == END_OF_STREAM:
            return 0, 0, END_OF_STREAM
        if success == 0:
            break
        v += 1
        if v > 256:
            return -1, 0, position
    sign, position = uniform_below(stream, position, 2)
    if position == END_OF_STREAM:
        return 0, 0, END_OF_STREAM
    # v <= 256 and u < scale <= 2^53: the value is below 2^62.
    value = u + scale * v
    if sign == 1 and value == 0:
        return 0, 0, position
    return 1, -value if sign == 1 else value, position


@numba.njit(cache=True)
def fill_discrete_laplace(
    stream: Stream, scale: int, out: npt.NDArray[np.int64], start: int
) -> tuple[int, int]:
    """Fill out[start:] as `fill_discrete_gaussian` does: (entries filled in total, or -1; bytes used up)."""
    position = 0
    filled = start
    while filled < out.size:
        accepted, value, after = attempt_discrete_laplace(stream, position, scale)
        if accepted < 0:
            return -1, position
        if after == END_OF_STREAM:
            break
        position = after
        if accepted == 1:
            out[filled] = value
            filled += 1
    return filled, position


@numba.njit(cache=True)
def attempt_selection(stream: Stream, position: int, gaps: npt.NDArray[np.int64], scale: int) -> tuple[int, int]:
    """One attempt at a choice: (index, or -1 when it is refused; next position).

    An index is drawn uniformly and kept with probability exp(-gap / scale), its gap being how far its score is below
    the best one: then each is chosen with a probability proportional to exp(score / scale), exactly, and the best one
    is never refused.
    """
    index, position = uniform_below(stream, position, gaps.size)
    if position == END_OF_STREAM:
        return -1, END_OF_STREAM
    whole, part = gaps[index] // scale, gaps[index] % scale
    for _ in range(min(whole, LARGEST_WHOLE)):
        success, position = bernoulli_exp_one(stream, position)
        if position == END_OF_STREAM or success == 0:
            return -1, position
    success, position = bernoulli_exp_ratio(stream, position, part, scale)
    return (index if success == 1 else -1), position
