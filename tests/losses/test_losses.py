"""Losses: what one record adds is never larger than the query says, through the very kernel that nodes run."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.errors import PlanError
from hedgerow.losses.logistic import HESSIAN_SCALE as LOGISTIC_HESSIAN_SCALE
from hedgerow.losses.registry import build_loss
from hedgerow.losses.softmax import HESSIAN_SCALE as SOFTMAX_HESSIAN_SCALE
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT, STEP_BITS, STEPS, Loss
from tests.builders import contributions, make_plan

UPDATES = ["newton", "gradient", "averaging"]
CLIPS = st.one_of(st.none(), st.floats(0.01, 9.9))
SCALES = st.one_of(st.none(), st.floats(0.01, 200))


def loss_of(label: str, update: str, clip: float | None = None, scale: float | None = None) -> Loss:
    """The loss, or the claim that it is refused: then there is nothing that could leak."""
    return build_loss(make_plan(label, model={"weight_update": update}), clip, scale)


def norms_squared(statistics: NDArray[np.int64]) -> NDArray[np.int64]:
    return (statistics**2).sum(axis=1)


def check_bounds(loss: Loss, statistics: NDArray[np.int64], score_bound: int) -> None:
    assert norms_squared(statistics).max() <= loss.sensitivity_squared(score_bound) <= loss.norm_squared
    assert np.abs(statistics).max() <= loss.bound()
    for index in range(loss.n_statistics):
        assert np.abs(statistics[:, index]).max() <= loss.largest_statistic(index) <= loss.bound()


def every_score(n_outputs: int) -> NDArray[np.int64]:
    """Scores of each entry of a table, about its middle and its ends, and scores far beyond the table."""
    middles = (np.arange(STEPS + 1) - STEPS // 2) << STEP_BITS
    half = 2 ** (STEP_BITS - 1)
    scores = np.concatenate([middles[::2], middles - half, middles[1::2] + half - 1, [-(2**31), 2**31 - 1]])
    return np.tile(scores, (n_outputs, 1))


@pytest.mark.parametrize("clip", [None, 0.05, 0.7, 5.0])
@pytest.mark.parametrize("scale", [None, 0.05, 50.0])
@pytest.mark.parametrize("update", UPDATES)
def test_no_entry_of_a_table_exceeds_the_sensitivity(update: str, clip: float | None, scale: float | None) -> None:
    """All labels at all scores, through the kernel: the promised norm is the largest that occurs, not one less."""
    loss = loss_of("binary", update, clip, scale)
    scores = every_score(loss.n_outputs)
    n = scores.shape[1]
    both = [contributions(loss, np.full(n, label), scores) for label in (0, 1)]
    statistics = np.concatenate(both)
    check_bounds(loss, statistics, 2**31)
    assert norms_squared(statistics).max() == loss.norm_squared
    assert np.abs(loss.table.astype(np.int64)).max() <= RECORD_NORM < 2**15


@settings(max_examples=40)
@given(bound=st.one_of(st.integers(0, 2**20), st.sampled_from([0, 255, 256, 257, 2**19 - 1, 2**19])), data=st.data())
def test_a_score_bound_lowers_the_sensitivity_and_no_more(bound: int, data: st.DataObject) -> None:
    """Scores within the public bound reach the sensitivity that is claimed for them, and never exceed it."""
    loss = loss_of("binary", data.draw(st.sampled_from(["newton", "gradient"])), data.draw(CLIPS))
    drawn = data.draw(st.lists(st.integers(-bound, bound), max_size=60))
    scores = np.array([-bound, bound, 0, *drawn])[None, :]
    for label in (0, 1):
        statistics = contributions(loss, np.full(scores.shape[1], label), scores)
        check_bounds(loss, statistics, bound)
    claimed = loss.sensitivity_squared(bound)
    furthest = min(STEPS // 2, bound + 2 ** (STEP_BITS - 1) >> STEP_BITS)
    steps = np.arange(-furthest, furthest + 1) + STEPS // 2
    assert claimed == norms_squared(loss.table[:, steps].astype(np.int64).reshape(-1, 2)).max()


@settings(max_examples=60)
@given(c=st.floats(0.05, LOGISTIC_HESSIAN_SCALE), label=st.floats(0, 1))
def test_up_to_c_star_the_hessian_is_free(c: float, label: float) -> None:
    """For c <= c* the norm of (g, c h) stays at most 1: the Hessian costs nothing beside the gradient."""
    loss = loss_of("binary", "newton", None, c)
    assert RECORD_NORM / loss.scales[0] <= 1.0
    x = label  # any gradient magnitude, not only those of the table
    assert math.hypot(x, c * x * (1 - x)) <= 1 + 1e-12


def test_beyond_c_star_the_hessian_costs() -> None:
    """c* is the largest such number: a little above it, a record at x = 1 / golden ratio exceeds norm 1."""
    x = 2 / (1 + math.sqrt(5))
    assert math.hypot(x, LOGISTIC_HESSIAN_SCALE * x * (1 - x)) == pytest.approx(1, abs=1e-12)
    assert math.hypot(x, LOGISTIC_HESSIAN_SCALE * 1.001 * x * (1 - x)) > 1.0001


def test_beyond_c_star_the_scale_pays_for_it() -> None:
    """A larger c must shrink the units, so that the promised norm stays what it is."""
    loss = loss_of("binary", "newton", None, 5.0)
    assert RECORD_NORM / loss.scales[0] == pytest.approx(1.354, abs=1e-3)  # S(5), from the closed form
    assert loss.norm_squared <= RECORD_NORM**2


def scores_of(data: st.DataObject, n_outputs: int, n: int) -> NDArray[np.int64]:
    """Scores of every size, with ties and the ends of 32 bits."""
    sizes = st.sampled_from([0, 1, 2**8, 2**12, 2**16, 2**18, 2**21, 2**31 - 1])
    seed = data.draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    size = data.draw(sizes)
    scores = random.integers(-size, size + 1, (n_outputs, n))
    tied = random.random(n) < 0.2
    scores[:, tied] = scores[0, tied] if n_outputs else 0
    return scores


@settings(max_examples=60)
@given(data=st.data())
def test_softmax_records_are_shrunk_to_the_promised_norm(data: st.DataObject) -> None:
    """At any scores, clip and scale the integers keep the norm; the guard acts before anything is summed."""
    update = data.draw(st.sampled_from(["newton", "gradient"]))
    try:
        loss = loss_of("multiclass", update, data.draw(CLIPS), data.draw(SCALES))
    except PlanError:
        return
    labels = np.arange(200) % 4
    statistics = contributions(loss, labels, scores_of(data, 4, 200))
    check_bounds(loss, statistics, 2**31)


@pytest.mark.parametrize(("clip", "scale"), [(1e-3, 1000.0), (1e-4, 900.0), (1e-9, None), (1e-300, None), (9.0, 1e-6)])
@pytest.mark.parametrize("label", ["binary", "multiclass", "regression", "count"])
def test_extreme_scales_are_refused_or_safe(label: str, clip: float, scale: float | None) -> None:
    """A plan may ask for clips that would overflow the kernels' words: it is refused, or the norm still holds."""
    try:
        loss = loss_of(label, "newton", clip, scale)
    except PlanError as error:
        assert "joint_clip" in error.what
        return
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 256)
    for size in (0, 2**14, 2**17, 2**30):
        scores = random.integers(-size, size + 1, (loss.n_outputs, 256))
        check_bounds(loss, contributions(loss, labels, scores), 2**31)


def test_many_classes_keep_the_norm_as_well() -> None:
    """With 250 classes and even scores, hundreds of small entries add up to a norm: none may be forgotten."""
    plan = make_plan("multiclass")
    table = plan.to_dict()
    table["label"]["classes"] = [str(i) for i in range(250)]
    for update in ("newton", "gradient"):
        table["model"]["weight_update"] = update
        for scale in (None, 100.0):
            loss = build_loss(type(plan).from_dict(table), None, scale)
            scores = np.random.default_rng(1).integers(-300, 300, (250, 40))
            scores[:, :5] = 0
            check_bounds(loss, contributions(loss, np.arange(40), scores), 2**31)


@settings(max_examples=60)
@given(data=st.data())
def test_residuals_are_clipped_at_any_label_and_score(data: st.DataObject) -> None:
    """Squared loss has no bounded gradient of its own; the clip holds for labels and scores of 32 bits too."""
    update = data.draw(st.sampled_from(UPDATES))
    try:
        loss = loss_of("regression", update, data.draw(CLIPS), data.draw(SCALES))
    except PlanError:
        return
    size = data.draw(st.sampled_from([1, 2**16, 2**31 - 1]))
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    labels = np.concatenate([random.integers(-size, size + 1, 100), [-(2**31), 2**31 - 1]])
    statistics = contributions(loss, labels, scores_of(data, loss.n_outputs, 102))
    check_bounds(loss, statistics, 2**31)
    assert (statistics[:, 1] == loss.constant).all()


@pytest.mark.parametrize("clip", [None, 0.25, 2.0])
def test_regression_gradients_equal_the_formula(clip: float | None) -> None:
    """The released gradient is the clipped residual in the units that the leaf rule divides by, at any clip."""
    loss = loss_of("regression", "newton", clip)
    random = np.random.default_rng(3)
    labels, scores = random.integers(-SCORE_UNIT, SCORE_UNIT + 1, 500), random.integers(-(2**18), 2**18, (1, 500))
    got = contributions(loss, labels, scores) / loss.scales
    limit = 1.0 if clip is None else clip
    wanted = np.clip((scores[0] - labels) / SCORE_UNIT, -limit, limit)
    np.testing.assert_allclose(got[:, 0], wanted, atol=2 / loss.scales[0])
    np.testing.assert_array_equal(got[:, 1], 1.0)


def test_logistic_statistics_equal_the_formula() -> None:
    """Gradient p - y and Hessian p (1 - p), to half a step of the table and one integer."""
    loss = loss_of("binary", "newton")
    scores = np.random.default_rng(4).integers(-(2**19), 2**19, (1, 500))
    for label in (0, 1):
        got = contributions(loss, np.full(500, label), scores) / loss.scales
        p = 1 / (1 + np.exp(-scores[0] / SCORE_UNIT))
        np.testing.assert_allclose(got[:, 0], p - label, atol=0.25 / 512 + 2 / loss.scales[0])
        np.testing.assert_allclose(got[:, 1], p * (1 - p), atol=0.1 / 512 + 2 / loss.scales[1])


def test_softmax_statistics_equal_the_formula() -> None:
    """Gradients p_k - 1{y = k} and Hessians p_k (1 - p_k); up to c = 2 the guard never has to act."""
    loss = loss_of("multiclass", "newton")
    assert loss.scales[4] / loss.scales[0] == pytest.approx(SOFTMAX_HESSIAN_SCALE)
    random = np.random.default_rng(5)
    labels, scores = random.integers(0, 4, 500), random.integers(-(2**18), 2**18, (4, 500))
    got = contributions(loss, labels, scores) / loss.scales
    weights = np.exp(scores / SCORE_UNIT)
    p = (weights / weights.sum(axis=0)).T
    step = 1 / 256  # differences of scores are rounded down to the step of the table
    np.testing.assert_allclose(got[:, :4], p - np.eye(4)[labels], atol=step + 4 / loss.scales[0])
    np.testing.assert_allclose(got[:, 4:], p * (1 - p), atol=step + 4 / loss.scales[4])
    # Rounding alone keeps a record's gradients summing to zero, up to one integer per class.
    assert np.abs((got[:, :4] * loss.scales[0]).sum(axis=1)).max() <= 4


def test_a_shrunk_softmax_record_keeps_its_direction() -> None:
    """Clipping must shorten a record's vector, not bend it: gradient and Hessian keep their proportion."""
    free, clipped = loss_of("multiclass", "newton"), loss_of("multiclass", "newton", 0.3)
    random = np.random.default_rng(6)
    labels, scores = random.integers(0, 4, 200), random.integers(-(2**17), 2**17, (4, 200))
    long = contributions(free, labels, scores) / free.scales * np.repeat([1.0, 2.0], 4)
    short = contributions(clipped, labels, scores) / clipped.scales * np.repeat([1.0, 2.0], 4)
    lengths = np.linalg.norm(short, axis=1)
    assert (lengths <= 0.3 + 1e-6).all() and (lengths > 0.29).mean() > 0.9
    factor = np.minimum(1, 0.3 / np.linalg.norm(long, axis=1))
    np.testing.assert_allclose(short, long * factor[:, None], atol=1e-3)


def test_averaging_counts_exactly_one_per_record() -> None:
    """Counts are disjoint: every record adds the same unit to one class, so the norm is that unit."""
    for label, n_classes in (("binary", 2), ("multiclass", 4)):
        loss = loss_of(label, "averaging")
        labels = np.arange(100) % n_classes
        got = contributions(loss, labels, np.zeros((0, 100), dtype=np.int64))
        np.testing.assert_array_equal(got, RECORD_NORM * np.eye(n_classes, dtype=np.int64)[labels])
        assert loss.norm_squared == RECORD_NORM**2
