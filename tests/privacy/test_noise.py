"""Sources of noise: what feeds them, and what the seeded twin promises to experiments."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hedgerow.errors import PrivacyError
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise


class CountingBytes:
    """A byte source that remembers how much was asked of it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.n_bytes = 0

    def __call__(self, n_bytes: int) -> bytes:
        self.n_bytes += n_bytes
        return self._random.randbytes(n_bytes)


def test_system_noise_is_a_function_of_its_bytes_alone() -> None:
    """Protects where noise comes from: same bytes, same noise; NumPy's generators have no part."""
    np.random.seed(1)
    before = np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    first, again, other = (SystemNoise(CountingBytes(seed)).sample(10**6, 500, "a") for seed in (1, 1, 2))
    np.random.seed(2)
    reseeded = SystemNoise(CountingBytes(1)).sample(10**6, 500, "a")
    assert np.array_equal(first, again)
    assert np.array_equal(first, reseeded)
    assert np.count_nonzero(first == other) < 5
    np.random.seed(1)
    SystemNoise(CountingBytes(1)).sample(10**6, 500, "a")
    assert np.array_equal(np.random.get_state()[1], before)  # type: ignore[index]


def test_system_noise_uses_enough_entropy() -> None:
    """Protects against expanding a short seed: at least the entropy of the draws is asked of the source, each time."""
    source = CountingBytes(3)
    noise = SystemNoise(source)
    n_draws, sigma = 10_000, 10**6
    noise.sample(sigma, n_draws, "a")
    entropy_bytes = n_draws * (math.log2(sigma * math.sqrt(2 * math.pi * math.e))) / 8
    assert source.n_bytes > entropy_bytes
    once = source.n_bytes
    noise.sample(sigma, n_draws, "a")
    assert source.n_bytes == pytest.approx(2 * once, rel=0.05)


def test_system_noise_is_fresh_for_every_call() -> None:
    """Protects against a cache: the same purpose asked twice gets new noise (the ledger refuses its release)."""
    noise = SystemNoise(CountingBytes(4))
    assert not np.array_equal(noise.sample(1000, 50, "a"), noise.sample(1000, 50, "a"))


@settings(deadline=None, max_examples=30)
@given(seed=st.one_of(st.integers(), st.binary(max_size=40)), purpose=st.text(max_size=20), exact=st.booleans())
def test_seeded_noise_does_not_depend_on_order(seed: int | bytes, purpose: str, exact: bool) -> None:
    """Protects partition invariance: the draws of a purpose are the same whatever was drawn before or elsewhere."""
    fresh = SeededNoise(seed, exact).sample(5000, 20, purpose)
    used = SeededNoise(seed, exact)
    used.sample(7, 11, "something else")
    assert np.array_equal(used.sample(5000, 20, purpose), fresh)
    assert not np.array_equal(used.sample(5000, 20, purpose + "'"), fresh)


@pytest.mark.parametrize("exact", [True, False])
def test_seeds_of_different_kinds_differ(exact: bool) -> None:
    """Protects the key: 97, "97" as bytes and b"a" are three seeds, and seed and purpose do not run together."""
    pairs = [(97, "p"), (b"97", "p"), (b"a", "p"), (-97, "p"), (b"97p", ""), (b"", "97p")]
    draws = {SeededNoise(seed, exact).sample(10**6, 8, purpose).tobytes() for seed, purpose in pairs}
    assert len(draws) == len(pairs)


@pytest.mark.golden
def test_golden_draws() -> None:
    """Protects recorded experiments: these integers are in models that were made with a seed, on every platform."""
    assert SeededNoise(3).sample(10**5, 5, "a").tolist() == GOLDEN
    assert SeededNoise(3).sample(10**5, 9, "a")[:5].tolist() == GOLDEN


def test_marks() -> None:
    """Protects the report: whoever can repeat the noise, or approximates it, says so."""
    sources: list[NoiseSource] = [SystemNoise(CountingBytes(1)), SeededNoise(1), SeededNoise(1, exact=False)]
    assert [(source.seeded, source.approximate) for source in sources] == [(False, False), (True, False), (True, True)]


def test_the_fast_twin_has_the_same_scale() -> None:
    """Protects large experiments: rounded Gaussian integers of the asked sigma, in int64."""
    draws = SeededNoise(5, exact=False).sample(10**4, 100_000, "a")
    assert draws.dtype == np.int64
    assert stats.kstest(draws / 10**4, "norm").pvalue > 1e-7
    assert stats.kstest(draws / (0.95 * 10**4), "norm").pvalue < 1e-7


@pytest.mark.parametrize("exact", [True, False])
def test_sigma_out_of_range_is_refused(exact: bool) -> None:
    """Protects experiments from silent zero noise."""
    for sigma in (0, -1, 2**53 + 1):
        with pytest.raises(PrivacyError) as caught:
            SeededNoise(1, exact).sample(sigma, 3, "a")
        assert caught.value.code == "out-of-range"


@pytest.mark.parametrize("seed", [1.0, None, True, "text"])
def test_seeds_without_a_canonical_form_are_refused(seed: object) -> None:
    """Protects reproducibility: a seed is bytes or an integer."""
    with pytest.raises(PrivacyError) as caught:
        SeededNoise(seed)  # type: ignore[arg-type]
    assert caught.value.code == "out-of-range"


GOLDEN = [-130286, 41766, 51902, 118559, -117233]
