"""Grids: every value falls into the cell that a plain search over single-precision edges names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.data.site_data import round_bounds
from hedgerow.trees import binning
from hedgerow.trees.binning import FeatureGrid, Grid, build_grid
from tests.builders import make_plan

METHODS = ["adaptive", "uniform", "log", "iterative_hessian"]
RANGES = [
    (0, 1), (-1, 1), (0, 4), (-3e38, 3e38), (0, 3e38), (-3e38, 0), (0, 1e-44), (-1e-40, 1e-40), (0, 1e-38),
    (1e30, 1.0000000001e30), (1e6, 1e6 + 1), (-5, -4), (-1e-3, 1e6), (16777216, 16777220),
]  # fmt: skip


@pytest.fixture(params=[0, binning.FEW_TO_ENCODE], ids=["kernel", "search"], scope="module", autouse=True)
def most_searched(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test by the kernel and by the search that stands in for it where values are few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binning, "FEW_TO_ENCODE", request.param)
        yield


def grid_of(low: float, high: float, method: str, spacing: str, integer: bool) -> FeatureGrid:
    feature = {"name": "x", "type": "numeric", "min": low, "max": high, "spacing": spacing, "integer": integer}
    grid = build_grid(make_plan(features=[feature], model={"split_candidates": method})).features[0]
    assert grid.edges.dtype == np.float32 and len(grid.edges) >= 1
    assert (np.diff(grid.edges.astype(np.float64)) > 0).all()
    return grid


def oracle(grid: FeatureGrid, values: NDArray[np.floating]) -> NDArray[np.int64]:
    """Number of edges at or below the single-precision value; one more than all for missing values."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    return np.where(np.isnan(single), grid.missing_code, np.searchsorted(grid.edges, single, side="right"))


def telling_values(grid: FeatureGrid) -> NDArray[np.float32]:
    """Values where a mistake would show: at every edge and next to it, and at the ends of the number line."""
    infinity = np.float32(np.inf)
    ends = np.array([-np.inf, np.inf, np.nan, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38], dtype=np.float32)
    with np.errstate(over="ignore"):
        below, above = np.nextafter(grid.edges, -infinity), np.nextafter(grid.edges, infinity)
    return np.concatenate([ends, grid.edges, below, above])


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("spacing", ["auto", "uniform", "log"])
@pytest.mark.parametrize("method", METHODS)
def test_codes_are_those_of_a_plain_search(method: str, spacing: str, integer: bool) -> None:
    """The buckets that make binning fast must never move a value to another cell, at any range of any feature."""
    for low, high in RANGES:
        grid = grid_of(low, high, method, spacing, integer)
        values = telling_values(grid)
        np.testing.assert_array_equal(
            Grid((grid,)).encode((values,))[0], oracle(grid, values), err_msg=f"{low} to {high}"
        )


@settings(max_examples=150)
@given(data=st.data())
def test_codes_of_arbitrary_edges_and_values(data: st.DataObject) -> None:
    """The same for any edges that a grid could ever hold, not only for those of today's rules."""
    number = st.floats(width=32, allow_nan=False, allow_infinity=False)
    edges = np.unique(np.array(data.draw(st.lists(number, min_size=1, max_size=40)), dtype=np.float32) + np.float32(0))
    grid = FeatureGrid(edges)
    values = np.array(data.draw(st.lists(st.floats(width=32), max_size=20)), dtype=np.float32)
    values = np.concatenate([values, telling_values(grid)])
    np.testing.assert_array_equal(Grid((grid,)).encode((values,))[0], oracle(grid, values))


def test_values_are_compared_in_single_precision() -> None:
    """A double between an edge and its neighbour in single precision goes where an exported model will send it."""
    grid = grid_of(0, 1, "adaptive", "auto", False)
    edge = float(grid.edges[90])
    below = edge * (1 - 1e-12)
    assert below < edge and np.float32(below) == np.float32(edge)
    assert grid.encode(np.array([below]))[0] == grid.encode(np.array([edge]))[0] == 91
    assert grid.encode(np.array([1e300, -1e300])).tolist() == [grid.n_cells - 1, 0]


@pytest.mark.parametrize("method", ["adaptive", "iterative_hessian"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_are_binned_as_a_slow_search_does(method: str, dtype: type) -> None:
    """Codes of any number, from a matrix's columns of either width, are those of one search a value."""
    features = [
        {"name": f"x{i}", "type": "numeric", "min": low, "max": high, "spacing": spacing}
        for i, (low, high) in enumerate(RANGES)
        for spacing in ["auto" if i % 2 else "log"]
    ]
    grid = build_grid(make_plan(features=features, model={"split_candidates": method}))
    assert grid.dtype == (np.uint8 if method == "adaptive" else np.uint16)
    random = np.random.default_rng(0)
    for n in (0, 1, 511, 512, 513, 1300):
        matrix = random.normal(size=(n, len(features))) * 10.0 ** random.integers(-30, 30, (n, len(features)))
        matrix[random.random(matrix.shape) < 0.1] = np.nan
        matrix[random.random(matrix.shape) < 0.05] = np.inf
        matrix = matrix.astype(dtype)
        codes = grid.encode(tuple(matrix.T))
        assert codes.dtype == grid.dtype and codes.shape == (len(features), n)
        expected = np.stack([oracle(grid.features[i], matrix[:, i]) for i in range(len(features))])
        np.testing.assert_array_equal(codes, expected)


@pytest.mark.parametrize("order", ["C", "F"])
def test_values_beyond_bounds_are_counted_while_they_are_binned(order: str) -> None:
    """Owners are told of clamped columns: exact counts, in single precision, none of missing values, by any threads."""
    random = np.random.default_rng(0)
    features: list[dict[str, Any]] = [
        {"name": f"x{i}", "type": "numeric", "min": low, "max": high} for i, (low, high) in enumerate(RANGES)
    ]
    plan = make_plan(features=features)
    draws = random.normal(size=(45_000, len(features))) * 3
    matrix = np.asfortranarray(draws) if order == "F" else draws
    matrix[random.random(matrix.shape) < 0.1] = np.nan
    bounds, single = round_bounds(plan), matrix.astype(np.float32)
    expected = ((single < bounds[0]) | (single > bounds[1])).sum(axis=0).tolist()
    for n_threads in (1, 2):
        codes, found = build_grid(plan).encode_and_count(matrix, bounds, n_threads)
        assert found.tolist() == expected
        np.testing.assert_array_equal(codes, build_grid(plan).encode(tuple(single.T)))


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_bytes_are_used_as_long_as_every_code_fits(method: str, integer: bool) -> None:
    """256 codes fit a byte, 257 do not: a code that wrapped round would be another cell."""
    for top in (1, 100, 252, 253, 254, 10_000):
        features: list[dict[str, Any]] = [
            {"name": "x", "type": "numeric", "min": 0, "max": top, "integer": integer},
            {"name": "c", "type": "categorical", "categories": [str(i) for i in range(250)]},
        ]
        grid = build_grid(make_plan(features=features, model={"split_candidates": method, "n_candidates": 250}))
        assert grid.n_codes == max(feature.n_codes for feature in grid.features)
        assert grid.dtype == (np.uint8 if grid.n_codes <= 256 else np.uint16)
        values = np.linspace(-1, top + 1, 999, dtype=np.float32)
        codes = grid.encode((values, np.arange(999) % 250))
        np.testing.assert_array_equal(codes[0], oracle(grid.features[0], values))


def test_unlisted_and_missing_categories_have_codes_of_their_own() -> None:
    """A value that nobody listed must not share a code with a listed one, nor with a missing one."""
    grid = build_grid(make_plan()).features[2]
    assert grid.encode(np.array([0, 1, 2, -1, -2])).tolist() == [0, 1, 2, 3, 4]
    assert (grid.n_cells, grid.missing_code, grid.n_codes) == (4, 4, 5)


def test_a_grid_depends_on_the_plan_alone() -> None:
    """Two parties with the same plan hold the same edges, bit by bit."""
    first, second = build_grid(make_plan()), build_grid(make_plan())
    for one, other in zip(first.features, second.features, strict=True):
        assert one.edges.tobytes() == other.edges.tobytes()


def fixed_edges(method: str, low: float, high: float) -> NDArray[np.float32]:
    features = [{"name": "x", "type": "numeric", "min": low, "max": high}]
    plan = make_plan(features=features, model={"split_candidates": method, "n_candidates": 7})
    edges: NDArray[np.float32] = build_grid(plan).features[0].edges
    return edges


@pytest.mark.parametrize(("low", "high"), [(2, 10), (0, 60_000), (-3, 0), (-1e6, 1e6)])
def test_log_candidates_are_uniform_in_the_logarithm(low: float, high: float) -> None:
    """x <= s_q with log(1 + s_q - a) = q / Q log(1 + b - a), q from 0: the lower bound is the first candidate."""
    edges = fixed_edges("log", low, high)
    assert len(edges) == 7 and edges[0] > low and (edges < high).all()
    spaced = np.log1p(edges.astype(np.float64) - low)
    rounding = 0.1 if low == -1e6 else 1e-5  # of single precision, near -1e6
    np.testing.assert_allclose(spaced, np.log1p(high - low) * np.arange(7) / 7, rtol=1e-5, atol=rounding)


@pytest.mark.parametrize(("low", "high"), [(2, 10), (0, 60_000), (-3, 0), (0, 1e-20), (-1e6, 1e6)])
def test_uniform_candidates_divide_as_the_paper_says(low: float, high: float) -> None:
    """x <= s_q with s_q = a + (q - 1) (b - a) / (Q - 1): the lower bound is told from all above it."""
    edges = fixed_edges("uniform", low, high)
    wanted = (low + (high - low) * np.arange(6) / 6).astype(np.float32)
    assert len(edges) == 6 and (edges > wanted).all()
    np.testing.assert_allclose(edges, wanted, rtol=1e-6, atol=2e-12 * (high - low))
    assert (edges[edges != 0] > np.finfo(np.float32).tiny).all() or low < 0


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("spacing", ["auto", "uniform", "log"])
def test_places_are_those_of_a_plain_search(spacing: str, integer: bool) -> None:
    """A value's place is the number of its cell's inner edges at or below it: of the value and public edges alone."""
    for low, high in RANGES:
        grid = grid_of(low, high, "adaptive", spacing, integer)
        if grid.within is None:
            assert integer and high - low <= 253
            continue
        inner = grid.inner_edges
        assert inner.shape == (grid.n_cells, 255) and (inner[:, 1:] > inner[:, :-1])[inner[:, 1:] < np.inf].all()
        finite = inner[inner < np.inf]
        cell = np.searchsorted(grid.edges, finite, side="right")
        assert np.array_equal(cell, np.nonzero(inner < np.inf)[0]) and not np.isin(finite, grid.edges).any()
        some = finite[:: max(1, len(finite) // 500)]
        values = np.concatenate([telling_values(grid), some, np.nextafter(some, np.float32(-np.inf))])
        codes = grid.encode(values)
        rows = np.vstack([inner, np.full(255, np.inf, dtype=np.float32)])
        expected = [0 if c == grid.missing_code else (rows[c] <= v).sum() for v, c in zip(values, codes, strict=True)]
        # The largest numbers are infinite in single precision, and beyond every edge that there is.
        is_infinite = np.isposinf(values)
        assert np.array_equal(grid.places(values, codes)[~is_infinite], np.array(expected)[~is_infinite])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_cells_cut_anew_are_those_of_a_plain_search(data: st.DataObject) -> None:
    """From its first code and its place alone, a value gets the code that a search over the new edges gives it."""
    low, high = data.draw(st.sampled_from([(0, 16000), (-8e6, 24), (0, 3e38), (-1e-40, 1e-40), (-5, -4)]))
    grid = grid_of(low, high, "adaptive", "auto", data.draw(st.booleans()) and high - low > 253)
    union = np.union1d(grid.edges, grid.inner_edges[grid.inner_edges < np.inf])
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    new = grid.cut_again(np.sort(random.choice(union, len(grid.edges), replace=False)))
    assert new.n_codes == grid.n_codes
    values = np.concatenate([telling_values(grid), telling_values(new), random.uniform(low, high, 200)])
    codes = grid.encode(values)
    found = grid.codes_in(new)[codes, grid.places(values, codes)]
    np.testing.assert_array_equal(found, oracle(new, values))
    for beyond in (np.nextafter(np.float32(high), np.float32(np.inf)), np.inf):
        with pytest.raises(ValueError, match="edges"):
            grid.cut_again(np.append(new.edges[1:], np.float32(beyond)))
    between = np.nextafter(new.edges, np.float32(np.inf))
    if (is_unknown := ~np.isin(between, union)).any():
        with pytest.raises(ValueError, match="edges"):
            grid.cut_again(np.where(is_unknown, between, new.edges))
