"""Candidates: quantiles of integer densities, and densities that stay sound whatever noise is released."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.training.candidates import (
    DENSITY_TOTAL,
    FLOOR_SHARE,
    MAX_REFINEMENTS,
    AdaptiveCandidates,
    count_quantiles,
    quantile_cuts,
)
from hedgerow.trees.binning import FeatureGrid

DENSITIES = st.lists(st.one_of(st.integers(0, 10), st.integers(0, 2**40)), min_size=1, max_size=60)
EXTREMES = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-1000, 1000), st.sampled_from([0, 2**63 - 1]))

CELLS = st.one_of(st.integers(0, 10), st.sampled_from([2**20, 2**30, 2**34]), st.integers(0, 2**40 // 120))


def fresh(n_cells: int) -> AdaptiveCandidates:
    """One numeric feature before any release."""
    return AdaptiveCandidates([FeatureGrid(np.arange(n_cells - 1, dtype=np.float32))])


def refined(
    candidates: AdaptiveCandidates, leaf_of_cell: NDArray[np.int64], hessians: NDArray[np.int64], noise: int
) -> NDArray[np.int64]:
    """The only feature's density after one release."""
    candidates.refine(0, leaf_of_cell, hessians, noise)
    return candidates.density[0].copy()


def slow_cuts(density: list[int], n_bins: int) -> list[int]:
    """For each quantile the cut whose mass to the left is nearest to it, the later one if two are; exact fractions."""
    total = sum(density)
    if len(density) < 2 or total == 0:
        return []
    below = [sum(density[: cut + 1]) for cut in range(len(density) - 1)]
    chosen = set()
    for q in range(1, n_bins):
        target = total * q // n_bins
        distances = [abs(Fraction(mass - target)) for mass in below]
        # Cuts with equal mass are the same split of the density: any of them is nearest.
        chosen.add(below[distances.index(min(distances))])
    return sorted(chosen)


@settings(max_examples=200)
@given(density=DENSITIES, n_bins=st.integers(1, 40))
def test_cuts_are_the_nearest_to_the_quantiles(density: list[int], n_bins: int) -> None:
    """Binary search over sums finds what a search over all cuts finds: the same masses to the left of the cuts."""
    cuts = quantile_cuts(np.array(density, dtype=np.int64), n_bins)
    assert cuts == sorted(set(cuts)) and len(cuts) <= max(0, n_bins - 1)
    assert all(0 <= cut < len(density) - 1 for cut in cuts)
    masses = [sum(density[: cut + 1]) for cut in cuts]
    wanted = slow_cuts(density, n_bins)
    total = sum(density)
    targets = [total * q // n_bins for q in range(1, n_bins)]
    # Ties between two masses may fall either way; the distance to each quantile may not differ.
    for target in targets if wanted else []:
        assert min(abs(m - target) for m in masses) == min(abs(m - target) for m in wanted)
    assert set(masses) <= {sum(density[: cut + 1]) for cut in range(len(density) - 1)}


def test_even_densities_give_even_cuts() -> None:
    """With every cell alike the candidates are the plan's uniform ones."""
    # Five of the seven quantiles are nearest to the two cuts beside the cell that holds half of all.
    assert count_quantiles(np.array([1, 1, 4, 1, 1], dtype=np.int64), 8) == ([0, 1, 2, 3], [1, 2, 3, 1])
    assert quantile_cuts(np.full(12, 7, dtype=np.int64), 4) == [2, 5, 8]
    assert quantile_cuts(np.array([5]), 4) == [] == quantile_cuts(np.zeros(5, dtype=np.int64), 4)


@pytest.mark.slow
@settings(max_examples=200)
@given(data=st.data(), n_cells=st.integers(1, 253), n_leaves=st.integers(1, 32))
def test_densities_stay_sound_under_any_release(data: st.DataObject, n_cells: int, n_leaves: int) -> None:
    """Noise may be anything: densities stay non-negative, bounded, and leave every cell a share; nothing overflows."""
    candidates = fresh(n_cells)
    random = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    for _ in range(8):
        hessians = np.array(data.draw(st.lists(EXTREMES, min_size=n_leaves, max_size=n_leaves)), dtype=np.int64)
        noise = data.draw(st.sampled_from([0, 1, 10**6, 2**53]))
        leaf_of_cell = np.sort(random.integers(0, n_leaves, n_cells))
        before, n_before = candidates.density[0].copy(), int(candidates.refinements[0])
        density = refined(candidates, leaf_of_cell, hessians, noise)
        assert density.dtype == np.int64 and len(density) == n_cells
        assert (density > 0).all()
        assert sum(density.tolist()) <= DENSITY_TOTAL + n_cells
        if candidates.refinements[0] == n_before or (hessians <= 2 * noise).all():
            np.testing.assert_array_equal(density, before)
        assert candidates.cuts(0, 32) == sorted(set(candidates.cuts(0, 32)))
    assert candidates.refinements[0] == MAX_REFINEMENTS


@settings(max_examples=200)
@given(data=st.data(), n_cells=st.integers(1, 120), n_leaves=st.integers(1, 16))
def test_densities_are_those_of_whole_numbers(data: st.DataObject, n_cells: int, n_leaves: int) -> None:
    """Floats only say where to look: every cell is what exact integers make it, or parties would draw other trees."""
    mass = np.array(data.draw(st.lists(EXTREMES, min_size=n_leaves, max_size=n_leaves)), dtype=np.int64)
    density = np.array(data.draw(st.lists(CELLS, min_size=n_cells, max_size=n_cells)), dtype=np.int64)
    leaves = data.draw(st.lists(st.integers(0, n_leaves - 1), min_size=n_cells, max_size=n_cells))
    candidates = fresh(n_cells)
    candidates.density[0] = density
    after = refined(candidates, np.array(leaves), mass, 0).tolist()
    kept = [max(0, m) for m in mass.tolist()]
    if not any(kept):
        assert after == density.tolist()
        return
    inside = [
        max(1, sum(d for d, of in zip(density.tolist(), leaves, strict=True) if of == leaf)) for leaf in range(n_leaves)
    ]
    for cell, leaf in enumerate(leaves):
        share = DENSITY_TOTAL * kept[leaf] * int(density[cell]) // (sum(kept) * inside[leaf])
        assert after[cell] == share - share // FLOOR_SHARE + DENSITY_TOTAL // FLOOR_SHARE // n_cells


def test_density_follows_the_leaves() -> None:
    """A leaf with three quarters of the Hessian gets about three quarters of the density, and so of the candidates."""
    candidates = fresh(100)
    density = refined(candidates, np.repeat([0, 1], 50), np.array([300_000, 100_000]), 10)
    assert 0.70 < density[:50].sum() / density.sum() < 0.76
    cuts = np.array(candidates.cuts(0, 32))
    assert abs(int((cuts < 50).sum()) - 23) <= 2


def test_leaves_within_their_noise_count_as_empty() -> None:
    """A leaf that noise alone explains must not draw candidates to itself."""
    density = refined(fresh(100), np.repeat([0, 1], 50), np.array([1000, 199]), 100)
    assert density[50:].sum() < 0.05 * density.sum()
    kept = refined(fresh(100), np.repeat([0, 1], 50), np.array([199, -5000]), 100)
    np.testing.assert_array_equal(kept, fresh(100).density[0])


def test_within_a_leaf_the_density_keeps_its_shape() -> None:
    """One release knows nothing about differences inside a leaf: what was known of them is kept."""
    candidates = fresh(6)
    candidates.density[0] = np.array([4, 1, 1, 2, 2, 2], dtype=np.int64) * 2**36
    density = refined(candidates, np.array([0, 0, 0, 1, 1, 1]), np.array([10**6, 10**6]), 0)
    assert density[0] > 3 * density[1]
    assert density[1] == density[2] and density[3] == density[4] == density[5]


def test_a_categorical_feature_has_no_density() -> None:
    """Its release changes nothing, and a numeric feature stops being refined after its share of releases."""
    grids = [FeatureGrid(np.arange(9, dtype=np.float32)), FeatureGrid(np.empty(0, dtype=np.float32), n_categories=5)]
    candidates = AdaptiveCandidates(grids)
    leaves, hessians = np.repeat([0, 1], 5), np.array([10**6, 10**5])
    assert [candidates.refine(0, leaves, hessians, 1) for _ in range(8)] == [True] * MAX_REFINEMENTS + [False] * 2
    assert not candidates.refine(1, leaves, hessians, 1) and candidates.cuts(1, 16) == []
    assert candidates.refinements == [MAX_REFINEMENTS, 0]


@pytest.mark.parametrize("n_cells", [1, 2, 3, 254])
def test_a_fresh_density_is_even(n_cells: int) -> None:
    """Before any release every cell counts alike, also for the feature with a single cell."""
    start = fresh(n_cells)
    assert len(set(start.density[0].tolist())) == 1 and start.density[0].shape == (n_cells,)
    assert len(start.cuts(0, 10)) <= min(9, n_cells - 1)
