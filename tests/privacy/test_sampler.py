"""The exact sampler: its distribution against the exact mass function, its arithmetic, its use of the byte source."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hedgerow.errors import PrivacyError
from hedgerow.privacy import noise as kernels
from hedgerow.privacy.noise import SeededNoise, sample_discrete_gaussian

N_DRAWS = 200_000

# Seeds are fixed, so that a passing test passes for ever; the level is that of a test with fresh randomness.
LEVEL = 1e-7


class _EndOfStreamError(Exception):
    pass


class SlowSampler:
    """The sampler's specification in plain Python, on Python's own integers: an independent reading of the papers."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def below(self, limit: int) -> int:
        bits = (limit - 1).bit_length()
        n_bytes = -(-bits // 8)
        while True:
            if self._position + n_bytes > len(self._content):
                raise _EndOfStreamError
            chunk = self._content[self._position : self._position + n_bytes]
            self._position += n_bytes
            value = int.from_bytes(chunk, "little") % (1 << bits)
            if value < limit:
                return value

    def exp_minus(self, trial: Callable[[int], bool]) -> bool:
        """True with probability exp(-gamma), where trial(m) is true with probability gamma / m."""
        count = 1
        while trial(count):
            count += 1
        return count % 2 == 1

    def draw(self, sigma: int) -> int:
        def half(m: int) -> bool:
            return self.below(2 * m) == 0

        while True:
            k = 0
            while self.exp_minus(half):
                k += 1
            if not all(self.exp_minus(half) for _ in range(k * (k - 1))):
                continue
            negative = self.below(2) == 1
            j = self.below(sigma)
            if k == 0 and j == 0 and negative:
                continue

            def ratio(m: int, j: int = j) -> bool:
                return self.below(sigma) < j and self.below(m) == 0

            def half_square(m: int, j: int = j) -> bool:
                return self.below(sigma) < j and self.below(sigma) < j and self.below(2 * m) == 0

            if all(self.exp_minus(ratio) for _ in range(k)) and self.exp_minus(half_square):
                return -(k * sigma + j) if negative else k * sigma + j


def _seeded(sigma: int, length: int, purpose: str = "test") -> np.ndarray:
    return SeededNoise(20_260_000 + sigma).sample(sigma, length, purpose)


@pytest.mark.parametrize("sigma", [1, 2, 3, 7, 57, 256, 1000])
def test_draws_have_the_exact_mass_function(sigma: int, chi_square_p_value: Callable[..., float]) -> None:
    """Protects the distribution itself: chi-square over single integers, tails included."""
    assert chi_square_p_value(_seeded(sigma, N_DRAWS), sigma) > LEVEL


@pytest.mark.parametrize("sigma", [2, 8, 58, 1000])
def test_half_the_noise_is_found_out(sigma: int, chi_square_p_value: Callable[..., float]) -> None:
    """Shows that the test above can fail: half the noise, and noise off by 5 %, are refused at the same level."""
    assert chi_square_p_value(_seeded(sigma // 2, N_DRAWS), sigma) < LEVEL
    if sigma == 58:
        assert chi_square_p_value(_seeded(55, N_DRAWS), sigma) < LEVEL


def test_a_sampler_with_a_hole_is_found_out(chi_square_p_value: Callable[..., float]) -> None:
    """Shows that the chi-square test sees both classic mistakes: zero with both signs, and one sign only."""
    draws = _seeded(5, N_DRAWS)
    both_zeros = np.concatenate([draws, draws[draws == 0]])
    assert chi_square_p_value(both_zeros, 5) < LEVEL
    assert chi_square_p_value(np.abs(draws), 5) < LEVEL


@pytest.mark.parametrize("sigma", [10_000, 1_000_003, 2**40, 2**53])
def test_large_sigma_is_gaussian(sigma: int) -> None:
    """Protects the 64-bit arithmetic: Kolmogorov-Smirnov against the continuous law, from which the grid is far."""
    draws = _seeded(sigma, N_DRAWS)
    assert stats.kstest(draws / sigma, "norm").pvalue > LEVEL
    assert stats.kstest(draws / (0.97 * sigma), "norm").pvalue < LEVEL


@pytest.mark.parametrize("sigma", [4096, 2**40, 2**53])
def test_low_digits_are_uniform(sigma: int) -> None:
    """Protects the low digits, where floating-point noise leaks: for a large sigma they are uniform."""
    counts = np.bincount(_seeded(sigma, N_DRAWS) % 64, minlength=64)
    assert stats.chisquare(counts).pvalue > LEVEL


@pytest.mark.parametrize("sigma", [1, 2, 3, 57, 10**6])
def test_variance_follows_the_formula(sigma: int) -> None:
    """Protects scale: the variance is that of the exact mass function, at most sigma² and within 7 standard errors."""
    reach = np.arange(-40, 41) if sigma < 3 else np.array([0])
    weights = np.exp(-(reach**2) / (2 * sigma**2))
    variance = float((reach**2 * weights).sum() / weights.sum()) if sigma < 3 else float(sigma**2)
    # From sigma = 3 on, the variance equals sigma² to 1e-70 (Canonne, Kamath & Steinke 2020, arXiv 2004.00010).
    draws = _seeded(sigma, N_DRAWS).astype(np.float64)
    assert variance <= sigma**2 * (1 + 1e-12)
    assert abs(draws.var() - variance) < 7 * variance * math.sqrt(2 / N_DRAWS) * 1.05
    assert abs(draws.mean()) < 7 * math.sqrt(variance / N_DRAWS)


def test_draws_are_independent_of_each_other() -> None:
    """Protects against bytes used twice: neighbouring draws, their signs and sizes, are uncorrelated."""
    draws = _seeded(1000, N_DRAWS).astype(np.float64)
    for series in (draws, np.abs(draws), np.sign(draws)):
        centred = series - series.mean()
        for lag in (1, 2, 3):
            correlation = float((centred[lag:] * centred[:-lag]).mean() / centred.var())
            assert abs(correlation) < 6 / math.sqrt(N_DRAWS)


@pytest.mark.parametrize(("part", "whole"), [(0, 1), (1, 2), (2, 3), (9, 10), (2**52 + 1, 2**53)])
def test_bernoulli_of_an_exponential(part: int, whole: int) -> None:
    """Protects the two rational coins: their frequencies are exp(-p/q) and exp(-(p/q)²/2) within 6 standard errors."""
    stream = np.frombuffer(bytearray(random.Random(7).randbytes(1_500_000)), dtype=np.uint8)
    n_trials = 20_000
    for power in (1, 2):
        probability = math.exp(-((part / whole) ** power) / power)
        position = heads = 0
        for _ in range(n_trials):
            head, position = kernels.bernoulli_exp(stream, position, part, whole, power)
            assert position >= 0
            heads += head
        assert abs(heads / n_trials - probability) <= 6 * math.sqrt(probability * (1 - probability) / n_trials)


def test_bernoulli_of_minus_one_half() -> None:
    """Protects the coin on which the size of the noise rests: exp(-1/2), and k with weights exp(-k²/2)."""
    stream = np.frombuffer(bytearray(random.Random(8).randbytes(1_500_000)), dtype=np.uint8)
    n_trials = 50_000
    position = heads = 0
    for _ in range(n_trials):
        head, position = kernels.bernoulli_exp_half(stream, position)
        heads += head
    assert abs(heads / n_trials - math.exp(-0.5)) < 6 * math.sqrt(0.24 / n_trials)
    counts = np.zeros(4)
    for _ in range(n_trials):
        k, position = kernels.draw_half_normal_integer(stream, position)
        assert position >= 0
        if k >= 0:
            counts[min(k, 3)] += 1
    weights = np.exp(-(np.arange(40.0) ** 2) / 2)
    expected = np.concatenate([weights[:3], [weights[3:].sum()]]) / weights.sum() * counts.sum()
    assert stats.chisquare(counts, expected).pvalue > LEVEL


def test_uniform_integers_are_exact() -> None:
    """Protects the ground of everything: over all one- and two-byte streams each residue is equally frequent."""
    for limit in (1, 2, 3, 5, 100, 255, 256):
        seen = np.zeros(limit, dtype=int)
        for first in range(256):
            value, position = kernels.uniform_below(np.array([first], dtype=np.uint8), 0, limit)
            if position >= 0:
                seen[value] += 1
        assert seen.min() == seen.max() > 0
    limit = 300
    seen = np.zeros(limit, dtype=int)
    for pair in range(65536):
        value, position = kernels.uniform_below(np.array([pair & 255, pair >> 8], dtype=np.uint8), 0, limit)
        if position >= 0:
            seen[value] += 1
    assert seen.min() == seen.max() == 128


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 2**53), st.integers(0, 2**32))
def test_the_compiled_loop_follows_its_specification(sigma: int, seed: int) -> None:
    """Protects the kernel, overflow included: byte for byte the plain-Python sampler gives the same integers."""
    content = random.Random(seed).randbytes(4000)
    slow = SlowSampler(content)
    expected = []
    try:
        while len(expected) < 20:
            expected.append(slow.draw(sigma))
    except _EndOfStreamError:
        pass
    out = np.zeros(len(expected), dtype=np.int64)
    filled, _ = kernels.fill(np.frombuffer(bytearray(content), dtype=np.uint8), False, sigma, out, 0)
    assert filled == len(expected) > 0
    assert out.tolist() == expected


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_the_size_of_requests_does_not_change_the_draws(piece: int) -> None:
    """Protects against the bias of cut-off draws: a stream in small pieces gives the same draws as in one."""
    content = np.frombuffer(bytearray(random.Random(3).randbytes(20_000)), dtype=np.uint8)
    whole = np.zeros(300, dtype=np.int64)
    assert kernels.fill(content, False, 1000, whole, 0)[0] == 300
    pieces = np.zeros(300, dtype=np.int64)
    filled = start = end = 0
    while filled < 300:
        end += piece
        filled, used = kernels.fill(content[start:end], False, 1000, pieces, filled)
        start += used
    assert pieces.tolist() == whole.tolist()


def test_zero_entries_need_no_bytes() -> None:
    """Protects the empty vector: it is answered without asking for randomness."""

    def no_bytes(n_bytes: int) -> bytes:
        raise AssertionError(f"{n_bytes} bytes were asked for")

    assert sample_discrete_gaussian(5, 0, no_bytes).shape == (0,)


@pytest.mark.parametrize("sigma", [0, -1, 2**53 + 1, True, 2.0])
def test_sigma_out_of_range_is_refused(sigma: int) -> None:
    """Protects the proof that nothing overflows: sigma is an integer from 1 to 2^53 or an error."""
    with pytest.raises(PrivacyError) as caught:
        sample_discrete_gaussian(sigma, 1, random.Random(1).randbytes)
    assert caught.value.code == "out-of-range"


@pytest.mark.parametrize("source", [bytes, lambda n: b"\xff" * n, lambda n: b"", lambda n: bytes(n - 1)])
def test_a_broken_byte_source_is_an_error(source: Callable[[int], bytes]) -> None:
    """Protects against silence: constant or missing bytes end in an error, neither in a loop nor in fixed noise."""
    with pytest.raises(PrivacyError) as caught:
        sample_discrete_gaussian(1000, 10, source)
    assert caught.value.code == "unsound-randomness"


def _stream_with_k(k: int) -> np.ndarray:
    """Bytes that make the sampler draw this k: a 1 is a success of exp(-1/2), a 0 and a 1 are a failure."""
    return np.concatenate([np.ones(k), [0, 1], np.ones(k * (k - 1) + 7 * (2 * k + 10))]).astype(np.uint8)


def test_the_largest_deviate_fits_and_a_larger_one_is_an_error() -> None:
    """Protects int64: 511 sigma of the largest sigma is exact, and a stream that drives k beyond is refused."""
    out = np.zeros(1, dtype=np.int64)
    filled, _ = kernels.fill(_stream_with_k(kernels.MAX_K), False, kernels.MAX_SIGMA, out, 0)
    j = int.from_bytes(b"\x01" * 7, "little") % 2**53
    assert filled == 1
    assert out[0] == -(511 * 2**53 + j)
    filled, _ = kernels.fill(_stream_with_k(kernels.MAX_K + 1), False, kernels.MAX_SIGMA, out, 0)
    assert filled == -1
