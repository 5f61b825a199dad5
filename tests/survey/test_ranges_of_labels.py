"""The range of a label that is a number, and its usual classes: found where they stand out of the noise, else refused.

Most of these draw the noise of one release by themselves: hundreds of searches cost less than one fit.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow import DPGBDTClassifier, DPGBDTRegressor
from hedgerow.errors import DataError
from hedgerow.losses.poisson import MAX_COUNT
from hedgerow.survey.bounds import Range, range_of_label, usual_classes
from hedgerow.survey.kinds import USUAL_CLASSES
from hedgerow.survey.queries import N_OCTAVES, OctaveCounts, blank, find_octaves, noise_deviation
from hedgerow.survey.questions import USUAL_BINS, Budget
from tests.builders import gaps

Labels = NDArray[np.float64]


def noise_of(stage: str, query: Any, epsilon: float) -> float:
    """The standard deviation of the noise of a release, in records."""
    return noise_deviation(Budget(gaps(epsilon=epsilon)).ask(stage, query))


def searched(labels: Labels, epsilon: float, seed: int, *, is_count: bool = False) -> Range:
    """The range by the octaves alone."""
    deviation = noise_of("label octaves", blank(OctaveCounts, columns=(0,)), epsilon)
    counts = np.bincount(find_octaves(labels), minlength=N_OCTAVES).astype(np.float64)
    if math.isfinite(epsilon):
        counts += np.random.default_rng(seed).normal(0, deviation, N_OCTAVES)
    n_parts = float(np.count_nonzero(labels % 1))
    return range_of_label(counts, n_parts, deviation, len(labels), is_count=is_count)


SHAPES = {
    "prices": lambda draw, n: draw.lognormal(3, 1, n),
    "tail": lambda draw, n: 10 * (1 + draw.pareto(3.5, n)),
    "airports": lambda draw, n: np.where(draw.random(n) < 0.03, 50 + 8 * draw.normal(size=n), draw.uniform(5, 15, n)),
    "changes": lambda draw, n: draw.normal(2, 8, n),
    "ages": lambda draw, n: np.rint(draw.uniform(18, 96, n)),
    "years": lambda draw, n: np.rint(draw.normal(2005, 6, n)),
    "debts": lambda draw, n: -draw.lognormal(6, 0.7, n),
    "claims": lambda draw, n: np.where(draw.random(n) < 0.6, 0.0, draw.lognormal(5, 1, n)),
    "tiny": lambda draw, n: 1e-12 * draw.gamma(2, 1, n),
    "returns": lambda draw, n: draw.standard_t(3, n) / 100,
}


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize(("n", "epsilon"), [(300, 0.5), (1200, 0.17), (1200, 0.5), (3000, 1.0), (9000, 3.0)])
def test_a_range_holds_nearly_all_labels_or_there_is_none(shape: str, n: int, epsilon: float) -> None:
    """Of few rows no guess is reported as a range: R2 is no less than -bias**2, for the bias of a mean of cut labels.

    Of enough, the mean is true to 5 %. And the range is no wider than the noise allows. At most one search in a hundred
    does else.
    """
    wrong = []
    for seed in range(60):
        labels = SHAPES[shape](np.random.default_rng(1000 + seed), n)
        found = searched(labels, epsilon, seed)
        if not found.is_seen:
            assert n * epsilon < 3000
            continue
        signal = n / noise_of("label octaves", blank(OctaveCounts, columns=(0,)), epsilon) / math.sqrt(0.04 / 1.25)
        bias = abs(np.clip(labels, found.low, found.high).mean() - labels.mean())
        allowed = 0.05 * max(abs(labels.mean()), labels.std()) if n * epsilon >= 3000 else 0.22 * labels.std()
        # A label far from zero is zoomed into.
        is_wide = (found.high - found.low) / labels.std() > 0.3 * signal and found.low <= 0 <= found.high
        wrong.append(bias > allowed or is_wide)
    assert sum(wrong) <= 1


@pytest.mark.parametrize("epsilon", [0.01, 0.17])
def test_noise_alone_is_no_range(epsilon: float) -> None:
    """Where labels are far fewer than the noise, no octave that nobody has becomes a bound of all predictions."""
    labels = np.random.default_rng(1).normal(0, 10, 200)
    assert not any(searched(labels, epsilon, seed).is_seen for seed in range(300))


@settings(max_examples=40, deadline=None)
@given(shape=st.sampled_from(sorted(SHAPES)), octaves=st.integers(-60, 60), turned=st.booleans())
def test_units_and_signs_do_not_matter(shape: str, octaves: int, turned: bool) -> None:
    """Labels in another unit, or counted the other way round, have the same range in that unit."""
    labels = np.where(np.abs(labels := SHAPES[shape](np.random.default_rng(5), 4000)) < 1e-15, 0.0, labels)
    plain, factor = searched(labels, math.inf, 0), (-1.0 if turned else 1.0) * 2.0**octaves
    moved = searched(factor * labels + 0.0, math.inf, 0)
    ends = sorted((factor * plain.low, factor * plain.high))
    # Whether numbers are whole depends on their unit, and moves a bound by one.
    assert moved.low == pytest.approx(ends[0], abs=8) and moved.high == pytest.approx(ends[1], abs=8)


def test_more_budget_sees_no_less_of_a_tail() -> None:
    """The noise decides how far a range reaches, so what is cut off shrinks as epsilon grows."""
    labels = SHAPES["tail"](np.random.default_rng(2), 20_000)
    cut = [
        np.mean([np.maximum(labels - searched(labels, epsilon, seed).high, 0.0).mean() for seed in range(20)])
        for epsilon in (0.1, 0.3, 1.0, 3.0)
    ]
    assert cut == sorted(cut, reverse=True) and cut[-1] == 0


@pytest.mark.parametrize("mean", [0.05, 3.0, 200.0])
def test_counts_have_room_above_what_is_seen(mean: float) -> None:
    """The model of counts begins at their level: a wide range costs nothing, and a narrow one cuts rare large ones."""
    labels = np.random.default_rng(3).negative_binomial(1, 1 / (1 + mean), 5000).astype(np.float64)
    found = searched(labels, 0.5, 1, is_count=True)
    assert found.is_seen and found.low == 0 and labels.max() < found.high <= MAX_COUNT
    assert not searched(-1 - labels, 3.0, 1, is_count=True).is_seen
    assert not searched(labels + 2 * MAX_COUNT, 3.0, 1, is_count=True).is_seen


def test_values_far_from_zero_are_zoomed_into_or_refused() -> None:
    """Years are found to a few decades; a number whose digits differ in the last places only is no guess."""
    X = np.random.default_rng(4).normal(size=(3000, 1))
    told: dict[str, Any] = {"bounds": (-3, 3), "n_records": 3000, "n_trees": 2, "epsilon": 1, "random_state": 1}
    years = DPGBDTRegressor(**told).fit(X, np.rint(2005 + 6 * X[:, 0]))
    label = years.model_.plan.label
    assert label.min is not None and label.max is not None and 1850 < label.min < 1990 and 2020 < label.max < 2150
    with pytest.raises(DataError) as refused:
        DPGBDTRegressor(**told).fit(X, 1e9 + X[:, 0])
    assert refused.value.code == "data-range"


def test_a_range_that_is_refused_says_what_was_spent_and_what_to_declare() -> None:
    """Whoever follows the advice has a model; the search is one release, and is on the account of what comes next."""
    X = np.random.default_rng(2).normal(size=(300, 2))
    told: dict[str, Any] = {"epsilon": 0.5, "bounds": (-3, 3), "n_records": 300, "n_trees": 2, "random_state": 0}
    with pytest.raises(DataError) as refused:
        DPGBDTRegressor(**told).fit(X, X[:, 0])
    assert refused.value.code == "data-range"
    assert "label_bounds=" in refused.value.remedy and "epsilon 0.0" in refused.value.remedy
    assert DPGBDTRegressor(**told, label_bounds=(-4, 4)).fit(X, X[:, 0]).model_.plan.label.max == 4


# Usual classes --------------------------------------------------------------------------------------------------------


def pair_of(shares: dict[str, float], n: int, epsilon: float, seed: int) -> tuple[str, ...]:
    """The usual pair that n labels of these classes are taken for."""
    from hedgerow.survey.queries import CellCounts

    deviation = noise_of("pairs", blank(CellCounts, columns=(0,), bins=(USUAL_BINS,)), epsilon)
    draw = np.random.default_rng(seed)
    noisy = dict(zip((*USUAL_BINS.categories, ""), draw.normal(0, deviation, USUAL_BINS.n_bins).tolist(), strict=True))
    for name, share in shares.items():
        noisy[name if name in noisy else ""] += share * n
    return usual_classes(noisy, deviation)


@pytest.mark.parametrize("pair", [("0", "1"), ("false", "true"), ("no", "yes")])
@pytest.mark.parametrize(
    ("n", "epsilon", "rate"), [(4930, 0.1, 0.2), (3577, 0.5, 0.049), (700, 0.5, 0.3), (10**6, 1, 0.002)]
)
def test_two_common_classes_are_found_of_few_records(pair: Any, n: int, epsilon: float, rate: float) -> None:
    """Also where one of them is too rare to be seen by itself."""
    found = [pair_of({pair[0]: 1 - rate, pair[1]: rate}, n, epsilon, seed) for seed in range(200)]
    assert found.count(pair) >= 190
    assert set(found) <= {pair, ()}


@pytest.mark.parametrize(
    "shares",
    [
        {"0": 0.5, "1": 0.3, "2": 0.2}, {"0": 0.6, "5": 0.4}, {"a": 0.5, "b": 0.5}, {"1": 0.4, "2": 0.3, "3": 0.3},
        {"no": 0.5, "maybe": 0.5}, {"yes": 0.5, "1": 0.5},
    ],
)  # fmt: skip
@pytest.mark.parametrize("n", [50, 150, 300, 1000, 10_000])
def test_other_classes_are_not_taken_for_a_usual_pair(shares: dict[str, float], n: int) -> None:
    """Rows of the others would be left out; where they may be there, the question is asked in general."""
    taken = sum(pair_of(shares, n, 1.0, seed) != () for seed in range(200))
    assert taken <= 200 * 0.1


def test_a_single_class_of_many_records_is_refused() -> None:
    """With so little noise a second class of one in 200 would be seen."""
    assert not any(pair_of({"0": 1.0}, 50_000, 1.0, seed) for seed in range(100))


def test_usual_pairs_are_sorted_and_name_each_class_once() -> None:
    """As what is found has to be; a class in two pairs has one bin."""
    assert all(list(pair) == sorted(pair) for pair in USUAL_CLASSES)
    assert max(Counter(USUAL_BINS.categories).values()) == 1


@pytest.mark.parametrize("cells", [[0, 1], [False, True], ["no", "yes"], [0.0, 1.0], [-1, 1]])
def test_a_fit_finds_a_usual_pair_with_one_small_release(cells: list[Any]) -> None:
    """And classes have the type that they have in y, whatever a single label is."""
    draw = np.random.default_rng(6)
    X = draw.normal(size=(3000, 2))
    y = np.array(cells)[(X[:, 0] + draw.normal(size=3000) > 1.9).astype(int)]
    model = DPGBDTClassifier(epsilon=1.0, bounds=(-4, 4), n_records=3000, n_trees=2, random_state=3).fit(X, y)
    assert model.classes_.tolist() == cells and model.predict_proba(X).shape == (3000, 2)
    assert [release.kind for release in model.ledger_][:1] == ["CellCounts"]
    assert len(model.model_.plan.prepared) == 1
