"""Where candidates come from: the plan at first, released sums later, the records never."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.training.candidates import AdaptiveCandidates, CandidateSource, iterative_hessian
from hedgerow.trees.binning import build_grid
from tests.builders import make_plan

SUMS = st.one_of(st.integers(-100, 1000), st.integers(-(2**60), 2**60))


def source_of(feature: dict[str, object], n_candidates: int, rounds: int = 5) -> CandidateSource:
    model = {"split_candidates": "iterative_hessian", "n_candidates": n_candidates, "candidate_rounds": rounds}
    plan = make_plan(features=[{"name": "x", **feature}], model=model)
    return CandidateSource(plan, build_grid(plan))


@settings(max_examples=200)
@given(data=st.data())
def test_a_round_of_splitting_keeps_its_promises(data: st.DataObject) -> None:
    """Ascending, distinct, within the old ones, at most twice as many as wanted; whatever the noise."""
    candidates = sorted(data.draw(st.lists(st.floats(-0.99, 0.99), unique=True, min_size=1, max_size=40)))
    n_candidates = data.draw(st.integers(len(candidates) // 2 + 1, 50))
    n_bins = len(candidates) + 1
    hessians = np.array(data.draw(st.lists(SUMS, min_size=n_bins, max_size=n_bins)), dtype=np.int64)
    total, as_printed = data.draw(st.floats(-1e18, 1e18)), data.draw(st.booleans())
    refined = iterative_hessian(candidates, hessians, total, n_candidates, as_printed)
    assert refined == sorted(set(refined)) and candidates[0] <= refined[0] and refined[-1] == candidates[-1]
    assert len(refined) <= 2 * n_candidates


def refined_by_hand(candidates: list[float], hessians: list[int], total: float, wanted: int) -> list[float]:
    """The published code's round, in its own order of steps: an oracle that shares nothing with ours."""
    kept, light = [], 0.0
    for place, hessian in enumerate(max(0, hessian) for hessian in hessians):
        light += hessian
        if place < len(candidates) - 1 and light > total / wanted:
            kept, light = [*kept, candidates[place]], 0.0
            if len(candidates) < wanted and len(kept) < wanted:
                kept.append((candidates[place] + candidates[place + 1]) / 2)
        elif place == len(candidates) - 1:
            kept.append(candidates[place])
    kept = sorted(set(kept))
    pieces = math.ceil(wanted / len(kept))
    steps = [np.linspace(low, high, pieces, endpoint=False) for low, high in pairwise(kept)]
    return sorted({*kept, *(float(step) for each in steps for step in each)})


@settings(max_examples=200)
@given(data=st.data())
def test_a_round_is_the_published_codes(data: st.DataObject) -> None:
    """The rule that makes the paper's numbers, on any candidates and noise; the printed one is another."""
    candidates = [float(edge) for edge in sorted(data.draw(st.sets(st.integers(-50, 50), min_size=1, max_size=20)))]
    hessians = data.draw(st.lists(st.integers(-50, 300), min_size=len(candidates) + 1, max_size=len(candidates) + 1))
    wanted = data.draw(st.integers(1, 24))
    total = float(sum(hessians))
    ours = iterative_hessian(candidates, np.array(hessians), total, wanted)
    assert ours == pytest.approx(refined_by_hand(candidates, hessians, total, wanted), abs=1e-9)


def test_light_bins_are_merged_and_what_is_left_is_divided() -> None:
    """The worked case: nearly all lies above 0 and up to 1; its upper end stays with the last, and gaps are divided."""
    bins = np.array([1, 97, 1, 1, 0])
    assert iterative_hessian([0.0, 1.0, 2.0, 3.0], bins, 100.0, 4) == [1.0, 2.0, 3.0]
    assert iterative_hessian([0.0, 1.0, 2.0, 3.0], bins, 100.0, 4, as_printed=True) == [0.0, 0.5, 1.0, 2.0, 3.0]
    # With room for more candidates than there were, the midpoint joins: towards the next one, or within the bin.
    room = np.array([0, 0, 99, 1, 0])
    assert iterative_hessian([0.0, 1.0, 2.0, 3.0], room, 100.0, 5) == [2.0, 2.25, 2.5, 2.75, 3.0]
    assert iterative_hessian([0.0, 1.0, 2.0, 3.0], room, 100.0, 5, as_printed=True)[:3] == [1.0, 1.25, 1.5]
    # Nothing is known of the bins: only the last candidate stays.
    assert iterative_hessian([0.0, 2.0], np.array([0, 0, 0]), 0.0, 4) == [2.0]


@settings(max_examples=80)
@given(data=st.data())
def test_refined_candidates_are_cells_of_the_grid(data: st.DataObject) -> None:
    """After any releases a candidate is a cell that a split can name; also with one edge, or none to choose."""
    ranges = [(0, 1), (-5, 300), (0, 1e-44), (-3e38, 3e38), (1e30, 1.00001e30)]
    low, high = data.draw(st.sampled_from(ranges))
    integer = data.draw(st.booleans())
    n_candidates = data.draw(st.integers(1, 40))
    source = source_of({"type": "numeric", "min": low, "max": high, "integer": integer}, n_candidates)
    for _ in range(source.count_paid_rounds(0, 100)):
        bins = source.bin_of_code(0)
        n_bins = int(bins.max()) + 1
        assert sorted(set(bins.tolist())) == list(range(n_bins))
        source.take_histogram(np.array(data.draw(st.lists(SUMS, min_size=n_bins, max_size=n_bins)), dtype=np.int64))
        cuts = source.cuts([0])[0]
        n_edges = int(len(bins) - 2)
        assert cuts == sorted(set(cuts)) and all(0 <= cut < n_edges for cut in cuts)
        assert len(cuts) <= 2 * n_candidates + 1
    assert source.count_paid_rounds(0, 100) == 0


@pytest.mark.parametrize("rule", ["iterative_hessian", "iterative_hessian_printed"])
def test_candidates_move_to_where_the_hessian_is(rule: str) -> None:
    """With most records in a hundredth of the range, a few rounds put many candidates there; uniform ones have none."""
    feature = {"type": "numeric", "min": 0, "max": 1, "spacing": "uniform"}
    plan = make_plan(
        features=[{"name": "x", **feature}],
        model={"split_candidates": rule, "n_candidates": 16, "candidate_rounds": 5},
    )
    source = CandidateSource(plan, build_grid(plan))
    edges = build_grid(plan).features[0].edges

    def inside() -> int:
        return sum(0.40 < edges[cut] < 0.41 for cut in source.cuts([0])[0])

    assert inside() <= 1
    # The published rule looks no lower than the lowest heavy bin's upper end, so a few records lie below.
    records = np.append(np.random.default_rng(0).uniform(0.40, 0.41, 5000), np.full(1000, 0.37))
    codes = np.searchsorted(edges, records.astype(np.float32), side="right")
    for _ in range(5):
        bins = source.bin_of_code(0)
        source.take_histogram(1000 * np.bincount(bins[codes], minlength=int(bins.max()) + 1))
    assert inside() >= 4


def test_each_bin_holds_the_cells_between_its_candidates() -> None:
    """A histogram that put a cell into the wrong bin would refine the wrong half of the range."""
    source = source_of({"type": "numeric", "min": 0, "max": 10, "integer": True}, 4)
    cuts, bins = source.cuts([0])[0], source.bin_of_code(0)
    for code in range(len(bins) - 1):
        assert bins[code] == sum(code > cut for cut in cuts)
    assert bins[-1] == len(cuts) + 1


@pytest.mark.parametrize("update", ["newton", "averaging"])
def test_only_what_is_paid_for_is_asked(update: str) -> None:
    """A plan that weighs by averages has no Hessians, so it must not pay for histograms of them."""
    model = {"split_candidates": "iterative_hessian", "candidate_rounds": 3, "weight_update": update}
    plan = make_plan(model=model)
    source = CandidateSource(plan, build_grid(plan))
    assert source.count_paid_rounds(0, 1) == (1 if update == "newton" else 0)
    assert source.count_paid_rounds(0, 10) == (3 if update == "newton" else 0)


def crowded_in(place: float, high: float) -> tuple[CandidateSource, AdaptiveCandidates]:
    """The source of a feature in [0, high], after a release that found all records in one cell about `place`."""
    plan = make_plan(features=[{"name": "x", "type": "numeric", "min": 0, "max": high}])
    source = CandidateSource(plan, build_grid(plan))
    cells = source.grid.features[0]
    leaf_of_cell = (np.arange(cells.n_codes) == cells.encode(np.array([place]))[0]).astype(np.uint8)
    assert source._adaptive.refine(0, leaf_of_cell, np.array([0, 10_000]), 1)
    return source, source._adaptive


def test_a_crowded_feature_is_cut_anew_where_its_records_are() -> None:
    """Cuts of trees stay edges, and the others are where the released Hessians say; by an independent count."""
    source, adaptive = crowded_in(7000.3, 16000.0)
    before = source.grid.features[0]
    cell = int(before.encode(np.array([7000.3]))[0])
    low, high = before.edges[cell - 1], before.edges[cell]
    assert source.find_crowded() == [0] and source.find_crowded() == []
    used = {3, 17, 200}
    new = source.cut_again({0: used})[0]
    assert np.isin(before.edges[sorted(used)], new).all() and len(new) == len(before.edges)
    inner = before.inner_edges[cell]
    # 1 part in 50 of the density lies elsewhere, and the rest is even over the places of this cell.
    inside = new[(new > low) & (new < high)]
    assert len(inside) >= 0.9 * (len(new) - len(used)) and np.isin(inside, inner).all()
    assert np.array_equal(source.grid.features[0].edges, new) and adaptive.density[0].sum() > 0.99 * 2**40
    cuts = new[source.cuts([0])[0]]
    assert 28 <= len(cuts) <= 31 and ((cuts >= low) & (cuts <= high)).mean() > 0.9


def test_a_feature_is_not_cut_anew_for_nothing() -> None:
    """Not when it fills its cells, when trees use nearly all its edges, or when whole numbers leave nothing to cut."""
    source, adaptive = crowded_in(7000.3, 16000.0)
    assert source.find_crowded() == [0] and source.cut_again({0: set(range(200))}) == {}
    adaptive.density[0][:] = 2**40 // len(adaptive.density[0])
    adaptive.latest = {0}
    assert source.find_crowded() == []
    feature = {"name": "x", "type": "numeric", "min": 0, "max": 100_000, "integer": True}
    plan = make_plan(features=[feature])
    zero = CandidateSource(plan, build_grid(plan))
    first = (np.arange(zero.grid.features[0].n_codes) == 0).astype(np.uint8)
    assert zero._adaptive.refine(0, first, np.array([0, 10_000]), 1)
    assert zero.find_crowded() == [0] and zero.cut_again({0: set()}) == {}
