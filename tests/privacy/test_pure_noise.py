"""Exact samplers of pure differential privacy: their distributions, their bytes, their errors."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import chisquare

from hedgerow.errors import PrivacyError
from hedgerow.privacy import noise as samplers
from hedgerow.privacy.noise import SeededNoise, SystemNoise, sample_discrete_laplace, select

MIN_P = 1e-6
"""One of these tests fails by chance in about a hundred thousand runs."""


def stream(seed: int) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


@pytest.mark.parametrize("scale", [1, 2, 7, 1000])
def test_the_discrete_laplace_has_its_distribution(scale: int) -> None:
    """Chi-square of 60,000 draws against exp(-|x| / scale), in cells of about even shares."""
    drawn = sample_discrete_laplace(scale, 60_000, stream(scale))
    borders = np.unique(np.rint(np.quantile(drawn, np.linspace(0, 1, 25)[1:-1])).astype(int))
    ratio = math.exp(-1 / scale)

    def below(x: int) -> float:
        """P(X <= x) of the exact law."""
        tail = ratio ** (x + 1 if x >= 0 else -x) / (1 + ratio)
        return 1 - tail if x >= 0 else tail

    shares = np.diff([0.0, *(below(int(border)) for border in borders), 1.0])
    counts = np.bincount(np.searchsorted(borders, drawn), minlength=len(shares))
    assert chisquare(counts, shares * len(drawn)).pvalue > MIN_P


@pytest.mark.parametrize("scale", [1, 40, 10_000])
def test_choices_have_the_exponential_mechanisms_distribution(scale: int) -> None:
    """Chi-square of 40,000 choices; scores far apart, equal ones, negative ones, an offset that does not matter."""
    scores = np.array([0, 3, 3, -50, scale, 2 * scale, -(10**9)], dtype=np.int64) + 10**12
    chosen = select([scores] * 40_000, scale, stream(scale))
    weights = np.exp((scores - scores.max()) / scale)
    seen = np.bincount(chosen, minlength=len(scores)).astype(float)
    expected = weights / weights.sum() * len(chosen)
    assert seen[expected < 1e-3].sum() == 0
    large = expected > 5
    rest = np.append(seen[large], seen[~large].sum()), np.append(expected[large], expected[~large].sum())
    kept = rest[1] > 0
    assert chisquare(rest[0][kept], rest[1][kept] * rest[0].sum() / rest[1].sum()).pvalue > MIN_P


def test_parts_without_candidates_have_no_choice() -> None:
    """-1, and the others are as they were."""
    empty: np.ndarray = np.empty(0, dtype=np.int64)
    assert select([empty, np.array([5]), empty], 3, os.urandom).tolist() == [-1, 0, -1]
    assert SystemNoise(os.urandom).select([empty], 3, "p").tolist() == [-1]


@pytest.mark.parametrize("size", [1, 3, 64])
def test_the_bytes_may_come_in_any_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw that is cut starts again from its first byte: the same draws from the same bytes."""
    content = np.random.default_rng(1).bytes(1 << 20)

    def source() -> Callable[[int], bytes]:
        position = 0

        def read(count: int) -> bytes:
            nonlocal position
            position += count
            return content[position - count : position]

        return read

    scores = [np.array([0, 500, 900], dtype=np.int64)] * 50
    whole = sample_discrete_laplace(9, 300, source()).tolist(), select(scores, 300, source()).tolist()
    monkeypatch.setattr(samplers, "MIN_REQUEST", size)
    hungry = dataclasses.replace(samplers._LAPLACE, bytes_per_draw=0, uniforms_per_draw=0)
    monkeypatch.setattr(samplers, "_LAPLACE", hungry)
    assert (sample_discrete_laplace(9, 300, source()).tolist(), select(scores, 300, source()).tolist()) == whole


@pytest.mark.parametrize("exact", [True, False])
def test_seeded_draws_depend_on_seed_and_purpose(exact: bool) -> None:
    """The same again, another for another purpose; both kinds have the standard deviation of a Laplace."""
    noise = SeededNoise(3, exact)
    drawn = noise.laplace(50, 4000, "a")
    assert np.array_equal(drawn, SeededNoise(3, exact).laplace(50, 4000, "a"))
    assert not np.array_equal(drawn, noise.laplace(50, 4000, "b"))
    assert drawn.std() == pytest.approx(50 * math.sqrt(2), rel=0.1)
    scores = [np.array([0, 20, 40], dtype=np.int64)] * 3000
    chosen = noise.select(scores, 20, "a")
    assert np.array_equal(chosen, SeededNoise(3, exact).select(scores, 20, "a"))
    weights = np.exp([0.0, 1.0, 2.0])
    np.testing.assert_allclose(np.bincount(chosen) / 3000, weights / weights.sum(), atol=0.05)


def test_arguments_and_sources_are_checked() -> None:
    """No noise from a scale out of range, from a score beyond the integers, or from a source that is none."""
    for scale in (0, -1, 2**53 + 1, 1.5):
        with pytest.raises(PrivacyError):
            sample_discrete_laplace(scale, 1, os.urandom)  # type: ignore[arg-type]
        with pytest.raises(PrivacyError):
            select([np.array([1])], scale, os.urandom)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError) as caught:
        select([np.array([2**62])], 5, os.urandom)
    assert caught.value.code == "out-of-range"
    with pytest.raises(PrivacyError) as caught:
        sample_discrete_laplace(5, 1, lambda count: b"")
    assert caught.value.code == "unsound-randomness"
    with pytest.raises(PrivacyError):
        sample_discrete_laplace(5, 10, lambda count: b"\x00" * count)
