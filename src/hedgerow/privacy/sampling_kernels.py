"""The compiled inner loop of the exact discrete Gaussian sampler; integers only, no floating point anywhere.

The loop reads a stream of random bytes. When the stream ends inside a draw, the loop stops *before* that draw and says
so; the caller appends bytes and the draw starts again from its first byte. Nothing that was read is thrown away, so
that long draws (which are large ones more often) are not under-represented.

Every value is a non-negative int64 below 2^62; see `fill_discrete_gaussian` for why no operation overflows.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

# A position of -1 says that the stream ended.
END_OF_STREAM = -1

# (k + 1) sigma must fit an int64 for every k that is allowed. k > 511 has a probability below e^(-130 000).
LARGEST_SIGMA = 2**53
LARGEST_K = 511

Stream = npt.NDArray[np.uint8]


@numba.njit(cache=True)
def uniform_below(stream: Stream, position: int, limit: int) -> tuple[int, int]:
    """A uniform integer in [0, limit), 1 <= limit <= 2^53, by rejection from the fewest bits that hold limit - 1.

    Reads whole bytes, little-endian, and masks the surplus bits. Returns (value, next position), or (0, -1) when the
    stream ends. Seven bytes at most are joined, so that the value is below 2^56.
    """
    mask = np.int64(0)
    n_bytes = 0
    while mask < limit - 1:
        mask = (mask << 1) | 1
    width = mask
    while width > 0:
        n_bytes += 1
        width >>= 8
    while True:
        if position + n_bytes > stream.size:
            return 0, END_OF_STREAM
        value = np.int64(0)
        for index in range(n_bytes):
            value |= np.int64(stream[position + index]) << (8 * index)
        position += n_bytes
        value &= mask
        if value < limit:
            return int(value), position


@numba.njit(cache=True)
def bernoulli_exp_half(stream: Stream, position: int) -> tuple[int, int]:
    """1 with probability exp(-1/2), else 0, and the next position.

    Source: Canonne, Kamath & Steinke 2020 (arXiv 2004.00010), Algorithm 1 with gamma = 1/2: count how many draws of
    Bernoulli(gamma / 1), Bernoulli(gamma / 2), ... succeed; the probability that the count is even is exp(-gamma).
    Bernoulli(1 / (2 m)) is "a uniform integer below 2 m is 0".
    """
    count = 1
    while True:
        value, position = uniform_below(stream, position, 2 * count)
        if position == END_OF_STREAM:
            return 0, END_OF_STREAM
        if value != 0:
            return count & 1, position
        count += 1


@numba.njit(cache=True)
def bernoulli_exp_ratio(stream: Stream, position: int, part: int, whole: int) -> tuple[int, int]:
    """1 with probability exp(-part / whole), else 0, and the next position; 0 <= part < whole <= 2^53.

    As above with gamma = part / whole. Bernoulli(gamma / m) is "a uniform integer below `whole` is less than `part`"
    and, independently, "a uniform integer below m is 0": no product is ever formed.
    """
    count = 1
    while True:
        value, position = uniform_below(stream, position, whole)
        if position == END_OF_STREAM:
            return 0, END_OF_STREAM
        if value >= part:
            return count & 1, position
        value, position = uniform_below(stream, position, count)
        if position == END_OF_STREAM:
            return 0, END_OF_STREAM
        if value != 0:
            return count & 1, position
        count += 1


@numba.njit(cache=True)
def bernoulli_exp_half_square(stream: Stream, position: int, part: int, whole: int) -> tuple[int, int]:
    """1 with probability exp(-(part / whole)² / 2), else 0, and the next position; 0 <= part < whole <= 2^53.

    As above with gamma = (part / whole)² / 2: Bernoulli(gamma / m) is two independent "uniform below `whole` is less
    than `part`" and "a uniform integer below 2 m is 0".
    """
    count = 1
    while True:
        for _ in range(2):
            value, position = uniform_below(stream, position, whole)
            if position == END_OF_STREAM:
                return 0, END_OF_STREAM
            if value >= part:
                return count & 1, position
        value, position = uniform_below(stream, position, 2 * count)
        if position == END_OF_STREAM:
            return 0, END_OF_STREAM
        if value != 0:
            return count & 1, position
        count += 1


@numba.njit(cache=True)
def draw_half_normal_integer(stream: Stream, position: int) -> tuple[int, int]:
    """A k >= 0 with probability proportional to exp(-k² / 2), or -1 for a rejected attempt, and the next position.

    Source: Karney 2016 (arXiv 1303.6257), Algorithm N, steps 1 and 2: k successes of exp(-1/2) before a failure, then
    k (k - 1) more of them must all succeed: exp(-k / 2) exp(-k (k - 1) / 2) = exp(-k² / 2).
    """
    k = 0
    while True:
        success, position = bernoulli_exp_half(stream, position)
        if position == END_OF_STREAM:
            return 0, END_OF_STREAM
        if success == 0:
            break
        k += 1
    for _ in range(k * (k - 1)):
        success, position = bernoulli_exp_half(stream, position)
        if position == END_OF_STREAM:
            return 0, END_OF_STREAM
        if success == 0:
            return -1, position
    return k, position


@numba.njit(cache=True)
def attempt_discrete_gaussian(stream: Stream, position: int, sigma: int) -> tuple[int, int, int]:
    """One attempt at a draw from N_Z(0, sigma²): (accepted, value, next position).

    With i = k sigma + j, 0 <= j < sigma, it is exp(-i² / 2 sigma²) = exp(-k² / 2) exp(-j / sigma)^k
    exp(-(j / sigma)² / 2). So k is drawn from the first factor, j and the sign uniformly, and the attempt is accepted
    with the probability of the other factors. Zero has one of its two signs refused. Every integer is reached in one
    way, hence with a probability proportional to exp(-i² / 2 sigma²), exactly.

    Source: Karney 2016 (arXiv 1303.6257), Algorithm D, for an integer sigma and mean 0.
    """
    k, position = draw_half_normal_integer(stream, position)
    if position == END_OF_STREAM or k < 0:
        return 0, 0, position
    if k > LARGEST_K:
        return -1, 0, position
    sign, position = uniform_below(stream, position, 2)
    if position == END_OF_STREAM:
        return 0, 0, END_OF_STREAM
    j, position = uniform_below(stream, position, sigma)
    if position == END_OF_STREAM or (k == 0 and j == 0 and sign == 1):
        return 0, 0, position
    for _ in range(k):
        success, position = bernoulli_exp_ratio(stream, position, j, sigma)
        if position == END_OF_STREAM or success == 0:
            return 0, 0, position
    success, position = bernoulli_exp_half_square(stream, position, j, sigma)
    if position == END_OF_STREAM or success == 0:
        return 0, 0, position
    # k <= 511 and j < sigma <= 2^53, so that k sigma + j < 512 * 2^53 = 2^62: it fits an int64 with its sign.
    value = k * sigma + j
    return 1, -value if sign == 1 else value, position


@numba.njit(cache=True)
def fill_discrete_gaussian(
    stream: Stream, sigma: int, out: npt.NDArray[np.int64], start: int
) -> tuple[int, int]:
    """Fill out[start:] with independent draws from N_Z(0, sigma²) until it is full or the stream ends.

    Args:
        stream: (n,) uint8, uniform random bytes.
        sigma: 1 <= sigma <= 2^53, grid units.
        out: (length,) int64, written from `start` on.
        start: how many entries are filled already.

    Returns:
        (entries filled in total, bytes used up); bytes from there on must be given again, with more behind them.
        A negative first number says that a k above LARGEST_K was drawn, which no sound byte source ever does.
    """
    position = 0
    filled = start
    while filled < out.size:
        accepted, value, after = attempt_discrete_gaussian(stream, position, sigma)
        if accepted < 0:
            return -1, position
        if after == END_OF_STREAM:
            break
        # A refused attempt is complete: its bytes are spent, and the next attempt is independent of it.
        position = after
        if accepted == 1:
            out[filled] = value
            filled += 1
    return filled, position
