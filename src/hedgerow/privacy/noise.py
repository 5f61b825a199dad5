# SPDX-License-Identifier: Apache-2.0
"""Noise: exact sampling with integers alone, its source for real runs, and a seeded twin, which voids the guarantee.

Drawn are the discrete Gaussian, the discrete Laplace, and the exponential mechanism.

The discrete Gaussian N_Z(0, sigma²) has P(i) proportional to exp(-i² / (2 sigma²)) on the integers. No floating point
is involved (Mironov 2012: its low bits leak), and all randomness comes from the byte source that is passed in. Given
uniform bytes, the draws have exactly this distribution.

The compiled loops read a stream of random bytes. When the stream ends inside a draw, a loop stops *before* that draw
and says so. The caller appends bytes and the draw starts again from its first byte. No byte that was read is thrown
away; otherwise long draws, more often those of large values, would be under-represented. Every value is a non-negative
int64 below 2^62; see `attempt_discrete_gaussian` for why no operation overflows.

A batch is drawn at once, and its running time depends on the values drawn. No time per value can be seen from outside
(Jin et al. 2021, arXiv 2112.05307, on timing). The proof of what such noise costs is docs/proofs/discrete-gaussian.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numba
import numpy as np
import numpy.typing as npt

from hedgerow.errors import PrivacyError
from hedgerow.protocol.queries import MAX_SCORE

RandomBytes = Callable[[int], bytes]
"""Gives that many uniform random bytes: `os.urandom` at the edges, a keyed stream in experiments."""

# A position of -1 says that the stream ended.
END_OF_STREAM = -1

# (k + 1) sigma must fit an int64 for every k that is allowed. k > 511 has a probability below e^(-130 000).
MAX_SIGMA = 2**53
MAX_K = 511

# More successes of chance 1/e in a row than this have a probability below e^(-10^6).
MAX_WHOLE = 2**20

# One request to the byte source: enough for a thousand draws at least, and small beside the machine's memory.
MIN_REQUEST = 4096
_MAX_REQUEST = 1 << 22

# An attempt takes a few dozen bytes; one that takes a million has a probability below e^(-100 000).
MAX_ATTEMPT = 1 << 20

Stream = npt.NDArray[np.uint8]


# Uniform integers, and the discrete Gaussian --------------------------------------------------------------------------


# numba treats a literal number as a type of its own, and would compile its callee once more (1 s of a first run).
# So these loops pass numbers as `int(np.int64(2))`.


@numba.njit(cache=True)
def uniform_below(stream: Stream, position: int, limit: int) -> tuple[int, int]:
    """Draw a uniform integer in [0, limit), 1 <= limit <= 2^53, by rejection.

    Takes the fewest bits that hold limit - 1. Reads whole bytes, little-endian, and masks the surplus bits. Returns
    (value, next position), or (0, -1) when the stream ends. Seven bytes at most are joined, so that the value is below
    2^56.
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
    """Draw 1 with probability exp(-1/2), else 0. Returns the draw and the next position.

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
def bernoulli_exp(stream: Stream, position: int, part: int, whole: int, power: int) -> tuple[int, int]:
    """Draw 1 with probability exp(-(part / whole)^power / power), else 0; 0 <= part < whole <= 2^53.

    Returns the draw and the next position.

    As above with gamma = (part / whole)^power / power, power 1 or 2: Bernoulli(gamma / m) is `power` times "a uniform
    integer below `whole` is less than `part`" and, independently, "a uniform integer below `power` m is 0": no product
    is ever formed.
    """
    count = 1
    while True:
        for _ in range(power):
            value, position = uniform_below(stream, position, whole)
            if position == END_OF_STREAM:
                return 0, END_OF_STREAM
            if value >= part:
                return count & 1, position
        value, position = uniform_below(stream, position, power * count)
        if position == END_OF_STREAM:
            return 0, END_OF_STREAM
        if value != 0:
            return count & 1, position
        count += 1


@numba.njit(cache=True)
def draw_half_normal_integer(stream: Stream, position: int) -> tuple[int, int]:
    """Attempt to draw k >= 0 with probability proportional to exp(-k² / 2).

    Returns k, or -1 for a rejected attempt, and the next position.

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
    """Attempt to draw from N_Z(0, sigma²). Returns (accepted, value, next position).

    With i = k sigma + j, 0 <= j < sigma, it is exp(-i² / 2 sigma²) = exp(-k² / 2) exp(-j / sigma)^k
    exp(-(j / sigma)² / 2). So k is drawn from the first factor, j and the sign uniformly, and the attempt is accepted
    with the probability of the other factors. Zero has one of its two signs refused. Every integer is reached in one
    way, hence with a probability proportional to exp(-i² / 2 sigma²), exactly.

    Source: Karney 2016 (arXiv 1303.6257), Algorithm D, for an integer sigma and mean 0.
    """
    k, position = draw_half_normal_integer(stream, position)
    if position == END_OF_STREAM or k < 0:
        return 0, 0, position
    if k > MAX_K:
        return -1, 0, position
    sign, position = uniform_below(stream, position, int(np.int64(2)))
    if position == END_OF_STREAM:
        return 0, 0, END_OF_STREAM
    j, position = uniform_below(stream, position, sigma)
    if position == END_OF_STREAM or (k == 0 and j == 0 and sign == 1):
        return 0, 0, position
    for _ in range(k):
        success, position = bernoulli_exp(stream, position, j, sigma, int(np.int64(1)))
        if position == END_OF_STREAM or success == 0:
            return 0, 0, position
    success, position = bernoulli_exp(stream, position, j, sigma, int(np.int64(2)))
    if position == END_OF_STREAM or success == 0:
        return 0, 0, position
    # k <= 511 and j < sigma <= 2^53, so that k sigma + j < 512 * 2^53 = 2^62: it fits an int64 with its sign.
    value = k * sigma + j
    return 1, -value if sign == 1 else value, position


# The discrete Laplace, and choices ------------------------------------------------------------------------------------


@numba.njit(cache=True)
def bernoulli_exp_one(stream: Stream, position: int) -> tuple[int, int]:
    """Draw 1 with probability exp(-1), else 0, as two successes of exp(-1/2).

    Returns the draw and the next position.
    """
    for _ in range(2):
        success, position = bernoulli_exp_half(stream, position)
        if position == END_OF_STREAM:
            return 0, END_OF_STREAM
        if success == 0:
            return 0, position
    return 1, position


@numba.njit(cache=True)
def attempt_discrete_laplace(stream: Stream, position: int, scale: int) -> tuple[int, int, int]:
    """Attempt to draw from P(x) ~ exp(-|x| / scale). Returns (accepted, value, next position).

    u uniform below `scale` is kept with probability exp(-u / scale), v counts successes of exp(-1) before a failure.
    The number u + scale v is geometric. It gets a random sign, and one of the two signs of zero is refused. `accepted`
    is -1 when v leaves its range.

    Source: Canonne, Kamath & Steinke 2020 (arXiv 2004.00010), Algorithm 2 with s = 1, t = scale.
    """
    u, position = uniform_below(stream, position, scale)
    if position == END_OF_STREAM:
        return 0, 0, END_OF_STREAM
    success, position = bernoulli_exp(stream, position, u, scale, int(np.int64(1)))
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
    sign, position = uniform_below(stream, position, int(np.int64(2)))
    if position == END_OF_STREAM:
        return 0, 0, END_OF_STREAM
    # v <= 256 and u < scale <= 2^53: the value is below 2^62.
    value = u + scale * v
    if sign == 1 and value == 0:
        return 0, 0, position
    return 1, -value if sign == 1 else value, position


@numba.njit(cache=True)
def fill(stream: Stream, is_laplace: bool, size: int, out: npt.NDArray[np.int64], start: int) -> tuple[int, int]:
    """Fill out[start:] with independent draws of one kind of noise until it is full or the stream ends.

    Args:
        stream: (n,) uint8, uniform random bytes.
        is_laplace: the discrete Laplace, or else the discrete Gaussian.
        size: the noise's sigma or scale, 1 <= size <= 2^53, grid units.
        out: (length,) int64, written from `start` on.
        start: how many entries are filled already.

    Returns:
        (entries filled in total, bytes used up); bytes from there on must be given again, with more behind them.
        A negative first number says that a draw was beyond its kind's limit, which no sound byte source ever does.
    """
    position = int(np.int64(0))
    filled = start
    while filled < out.size:
        if is_laplace:
            accepted, value, after = attempt_discrete_laplace(stream, position, size)
        else:
            accepted, value, after = attempt_discrete_gaussian(stream, position, size)
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


@numba.njit(cache=True)
def attempt_selection(stream: Stream, position: int, gaps: npt.NDArray[np.int64], scale: int) -> tuple[int, int]:
    """Attempt a choice. Returns (index, or -1 for a refused attempt; next position).

    An index is drawn uniformly and kept with probability exp(-gap / scale), its gap being how far its score is below
    the best one: then each is chosen with a probability proportional to exp(score / scale), exactly, and the best one
    is never refused.
    """
    index, position = uniform_below(stream, position, gaps.size)
    if position == END_OF_STREAM:
        return -1, END_OF_STREAM
    whole, part = gaps[index] // scale, gaps[index] % scale
    for _ in range(min(whole, MAX_WHOLE)):
        success, position = bernoulli_exp_one(stream, position)
        if position == END_OF_STREAM or success == 0:
            return -1, position
    success, position = bernoulli_exp(stream, position, part, scale, int(np.int64(1)))
    return (index if success == 1 else -1), position


# Drawing --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sampler:
    """Parameters of one kind of noise.

    Attributes:
        is_laplace: as `fill` takes it.
        bytes_per_draw, uniforms_per_draw: what an average draw uses: single bytes, and integers below the size.
        limit: what no draw from random bytes exceeds, in words.
    """

    is_laplace: bool
    bytes_per_draw: int
    uniforms_per_draw: int
    limit: str


# What an average draw uses was measured: 12 bytes, and 6 uniform integers.
_GAUSSIAN = _Sampler(is_laplace=False, bytes_per_draw=14, uniforms_per_draw=7, limit="511 standard deviations")
_LAPLACE = _Sampler(is_laplace=True, bytes_per_draw=12, uniforms_per_draw=4, limit="256 scales")


def sample_discrete_gaussian(sigma: int, length: int, random_bytes: RandomBytes) -> npt.NDArray[np.int64]:
    """Draw `length` independent integers exactly from N_Z(0, sigma²).

    Args:
        sigma: in grid units, 1 <= sigma <= 2^53; round up when it comes from a real number.
        length: >= 0.
        random_bytes: the only source of randomness; surplus bytes at its end are thrown away.

    Returns:
        (length,) int64, absolute values below 2^62.

    Raises:
        PrivacyError: on an argument out of range, or a byte source that returns too few bytes or no random ones.
    """
    return _draw(_GAUSSIAN, sigma, length, random_bytes)


def sample_discrete_laplace(scale: int, length: int, random_bytes: RandomBytes) -> npt.NDArray[np.int64]:
    """Draw `length` independent integers exactly with P(x) proportional to exp(-|x| / scale).

    Arguments, result and errors as of `sample_discrete_gaussian`, with the scale in the place of sigma.
    """
    return _draw(_LAPLACE, scale, length, random_bytes)


def select(scores: Sequence[npt.NDArray[np.int64]], scale: int, random_bytes: RandomBytes) -> npt.NDArray[np.int64]:
    """Choose one index per part by the exponential mechanism, exactly: P(i) ~ exp(scores[i] / scale).

    The same distribution as the largest score after Gumbel noise of that scale ("report noisy max" in log space),
    without a logarithm: an index is drawn uniformly and kept with probability exp(-(best score - its score) / scale).

    Args:
        scores: per part int64 [n_candidates], n_candidates from 0 to 2^32; magnitudes at most 2^61.
        scale: 1 <= scale <= 2^53.
        random_bytes: as in `sample_discrete_laplace`.

    Returns:
        int64 [len(scores)]; -1 for a part without candidates.

    Raises:
        PrivacyError: as `sample_discrete_laplace`.

    Source: McSherry & Talwar 2007; the sampler of exp(-x) as for the discrete Laplace.
    """
    _check_arguments(scale, len(scores))
    chosen = np.full(len(scores), -1, dtype=np.int64)
    stream, position = np.empty(0, dtype=np.uint8), 0
    for part, values in enumerate(scores):
        if not len(values):
            continue
        if int(np.abs(values).max()) > MAX_SCORE:
            raise PrivacyError(
                "out-of-range", name="A score", value="beyond 2^61", wanted="below it; count in coarser units"
            )
        gaps = np.asarray(int(values.max()) - values, dtype=np.int64)
        while chosen[part] < 0:
            index, after = attempt_selection(stream, position, gaps, scale)
            if after == END_OF_STREAM:
                if stream.size - position > MAX_ATTEMPT:
                    raise PrivacyError("unsound-randomness", given="a megabyte without one whole attempt at a choice")
                fresh = _request_bytes(random_bytes, max(MIN_REQUEST, stream.size - position))
                stream, position = np.concatenate([stream[position:], fresh]), 0
                continue
            chosen[part], position = index, after
    return chosen


def _draw(sampler: _Sampler, size: int, length: int, random_bytes: RandomBytes) -> npt.NDArray[np.int64]:
    """Draw `length` independent integers of one kind of noise.

    Arguments and errors as in `sample_discrete_gaussian`.
    """
    _check_arguments(size, length)
    out = np.empty(length, dtype=np.int64)
    width = (size.bit_length() + 7) // 8
    stream = np.empty(0, dtype=np.uint8)
    filled = 0
    while filled < length:
        wanted = (length - filled) * (sampler.bytes_per_draw + sampler.uniforms_per_draw * width)
        request = max(min(max(wanted, MIN_REQUEST), _MAX_REQUEST), stream.size)
        stream = np.concatenate([stream, _request_bytes(random_bytes, request)])
        filled, used = fill(stream, sampler.is_laplace, size, out, filled)
        if filled < 0:
            raise PrivacyError("unsound-randomness", given=f"a value beyond {sampler.limit}")
        stream = stream[used:]
        if filled < length and stream.size > MAX_ATTEMPT:
            given = f"{stream.size} bytes without completing one attempt at a draw"
            raise PrivacyError("unsound-randomness", given=given)
    return out


def _check_arguments(sigma: int, length: int) -> None:
    """Raise PrivacyError for a size of noise, or a length, out of range."""
    if isinstance(sigma, bool) or not isinstance(sigma, int) or not 1 <= sigma <= MAX_SIGMA:
        raise PrivacyError(
            "out-of-range", name="sigma, in grid units,", value=sigma, wanted="an integer from 1 to 2^53"
        )
    if isinstance(length, bool) or not isinstance(length, int) or length < 0:
        raise PrivacyError("out-of-range", name="A length of noise", value=length, wanted="an integer of at least 0")


def _request_bytes(random_bytes: RandomBytes, n_bytes: int) -> npt.NDArray[np.uint8]:
    """So many bytes from the source: uint8 [n_bytes]; PrivacyError when it gives another number."""
    content = random_bytes(n_bytes)
    if len(content) != n_bytes:
        raise PrivacyError("unsound-randomness", given=f"{len(content)} bytes instead of {n_bytes}")
    return np.frombuffer(content, dtype=np.uint8)


_STREAM_DOMAIN = b"hedgerow/seeded-noise/1"
_BLOCK_BYTES = 1 << 13


class NoiseSource(Protocol):
    """Draws integer noise for one purpose."""

    @property
    def seeded(self) -> bool:
        """True if anyone who knows a seed can draw the noise again; the model then has no guarantee."""

    @property
    def approximate(self) -> bool:
        """True for rounded floating-point Gaussian noise, False for exact discrete noise."""

    def sample(self, sigma: int, length: int, purpose: str) -> npt.NDArray[np.int64]:
        """Draw (length,) int64 from N_Z(0, sigma²); sigma is an integer in grid units, 1 <= sigma <= 2^53."""

    def laplace(self, scale: int, length: int, purpose: str) -> npt.NDArray[np.int64]:
        """(length,) int64 draws from the discrete Laplace of an integer scale, 1 <= scale <= 2^53."""

    def select(self, scores: Sequence[npt.NDArray[np.int64]], scale: int, purpose: str) -> npt.NDArray[np.int64]:
        """Choose one index per part with P proportional to exp(score / scale), as the function `select` does."""


class SystemNoise:
    """Exact discrete Gaussian noise from a given byte source, `os.urandom` in every real run."""

    seeded = False
    approximate = False

    def __init__(self, random_bytes: RandomBytes) -> None:
        self._random_bytes = random_bytes

    def sample(self, sigma: int, length: int, purpose: str) -> npt.NDArray[np.int64]:
        """Draw discrete Gaussian noise, fresh for each call whatever the purpose.

        The ledger admits each purpose only once.
        """
        return sample_discrete_gaussian(sigma, length, self._random_bytes)

    def laplace(self, scale: int, length: int, purpose: str) -> npt.NDArray[np.int64]:
        """Draw discrete Laplace noise, fresh for each call."""
        return sample_discrete_laplace(scale, length, self._random_bytes)

    def select(self, scores: Sequence[npt.NDArray[np.int64]], scale: int, purpose: str) -> npt.NDArray[np.int64]:
        """Choose one index per part, with fresh randomness for each call."""
        return select(scores, scale, self._random_bytes)


class SeededNoise:
    """Noise drawn from a seed: for experiments only.

    The draws depend on the seed and the purpose alone, not on the order of the calls, so that runs with other sites,
    engines or batches can be compared. Fitting again with the same seed on changed data cancels the noise.

    Args:
        seed: bytes, or an integer of any size.
        exact: True for the exact sampler; False for rounded NumPy Gaussians, several times faster, for large
            experiments (same on one NumPy version; variance larger by 1/12 of a grid unit squared).
    """

    seeded = True

    def __init__(self, seed: bytes | int, exact: bool = True) -> None:
        if isinstance(seed, bool) or not isinstance(seed, bytes | int):
            raise PrivacyError(
                "out-of-range", name="The type of a seed", value=type(seed).__name__, wanted="bytes or int"
            )
        # Mark the kind of the seed, so that 97 and b"a" are different seeds.
        self._seed = b"b" + seed if isinstance(seed, bytes) else b"i" + str(seed).encode()
        self._exact = exact

    @property
    def approximate(self) -> bool:
        """True for rounded floating-point noise."""
        return not self._exact

    def sample(self, sigma: int, length: int, purpose: str) -> npt.NDArray[np.int64]:
        """Draw Gaussian noise from seed and purpose.

        If exact, a longer vector for the same purpose begins with the shorter one.
        """
        key = _derive_key(self._seed, purpose)
        if self._exact:
            return sample_discrete_gaussian(sigma, length, _KeyedStream(key).read)
        if not 1 <= sigma <= MAX_SIGMA:
            # Let the exact sampler raise its error for this sigma.
            sample_discrete_gaussian(sigma, 0, _KeyedStream(key).read)
        return np.rint(_make_generator(key).standard_normal(length) * sigma).astype(np.int64)

    def laplace(self, scale: int, length: int, purpose: str) -> npt.NDArray[np.int64]:
        """Draw Laplace noise from seed and purpose; rounded NumPy draws if not exact."""
        key = _derive_key(self._seed, purpose)
        if self._exact:
            return sample_discrete_laplace(scale, length, _KeyedStream(key).read)
        return np.rint(_make_generator(key).laplace(0.0, scale, length)).astype(np.int64)

    def select(self, scores: Sequence[npt.NDArray[np.int64]], scale: int, purpose: str) -> npt.NDArray[np.int64]:
        """Choose one index per part from seed and purpose; if not exact, the largest score after Gumbel noise."""
        key = _derive_key(self._seed, purpose)
        if self._exact:
            return select(scores, scale, _KeyedStream(key).read)
        generator = _make_generator(key)
        noisy = [values + generator.gumbel(0.0, scale, len(values)) for values in scores]
        return np.array([int(values.argmax()) if len(values) else -1 for values in noisy], dtype=np.int64)


def make_noise(seed: int | None, random_bytes: RandomBytes) -> SystemNoise | SeededNoise:
    """Make a run's source of noise: from random bytes, or for an experiment from a seed."""
    return SystemNoise(random_bytes) if seed is None else SeededNoise(seed)


class _KeyedStream:
    """Deterministic bytes: SHAKE-256 of the key and a block counter, one block after the other."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._n_blocks = 0
        self._rest = b""

    def read(self, n_bytes: int) -> bytes:
        """Return the next `n_bytes` of the stream."""
        parts = [self._rest]
        available = len(self._rest)
        while available < n_bytes:
            block = hashlib.shake_256(self._key + self._n_blocks.to_bytes(8, "little")).digest(_BLOCK_BYTES)
            self._n_blocks += 1
            parts.append(block)
            available += len(block)
        content = b"".join(parts)
        self._rest = content[n_bytes:]
        return content[:n_bytes]


def _make_generator(key: bytes) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))


def _derive_key(seed: bytes, purpose: str) -> bytes:
    """Derive 32 bytes from seed and purpose; a length before each keeps different pairs apart."""
    digest = hashlib.shake_256(_STREAM_DOMAIN)
    for part in (seed, purpose.encode()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest(32)
