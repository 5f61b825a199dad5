"""Class weights: what a record adds, how much that may be, which plans may weigh, and what is learned so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow import DPGBDTClassifier
from hedgerow.errors import PlanError, UsageError
from hedgerow.losses.registry import build_loss
from hedgerow.losses.tables import CLASS_WEIGHT_UNIT, RECORD_NORM
from hedgerow.methods.registry import resolve
from hedgerow.privacy.accountants import compute_account
from hedgerow.privacy.noise import SeededNoise
from tests.builders import LABELS, coded, contributions, make_data, make_plan, train

WEIGHTS = st.one_of(st.sampled_from([1e-6, 1.0, 2.0, 1e6]), st.floats(1e-3, 1e3))
N_CLASSES = {"binary": 2, "multiclass": 4}


@settings(max_examples=40)
@given(data=st.data(), label=st.sampled_from(sorted(N_CLASSES)), seed=st.integers(0, 10**6))
def test_a_record_adds_its_classes_part_of_what_the_heaviest_may(data: st.DataObject, label: str, seed: int) -> None:
    """Whoever comes or goes moves a sum by at most the class's part of the sensitivity that the noise is for."""
    n_classes = N_CLASSES[label]
    weights = [data.draw(WEIGHTS) for _ in range(n_classes)]
    clip, scale = data.draw(st.sampled_from([(0.2, 0.5), (None, None), (1.0, 1.0)]))
    random = np.random.default_rng(seed)
    loss = build_loss(make_plan(label, {"class_weights": weights}), clip, scale)
    plain = build_loss(make_plan(label), clip, scale)
    labels = np.repeat(np.arange(n_classes), 64)
    scores = random.integers(-(2**20), 2**20, (loss.n_outputs, len(labels)))
    own, whole = contributions(loss, labels, scores), contributions(plain, labels, scores)
    part = (np.array(weights) / max(weights))[labels]
    assert loss.norm_squared <= RECORD_NORM**2
    assert ((own.astype(float) ** 2).sum(axis=1) <= RECORD_NORM**2 * part**2 + 1e-6).all()
    # Of a table before it is rounded, of softmax after that: less than a unit more, and less than two less.
    assert (np.abs(own) <= (np.abs(whole) + 1) * part[:, None]).all() and (own * whole >= 0).all()
    assert (np.abs(own) >= np.abs(whole) * part[:, None] - 2).all()
    heaviest = part == 1
    assert np.array_equal(own[heaviest], whole[heaviest])


@pytest.mark.parametrize("label", N_CLASSES)
def test_the_account_is_that_of_the_heaviest_class(label: str) -> None:
    """Weights cost nothing by themselves: the noise beside the heaviest class's sensitivity is what it was."""
    plain, weighed = make_plan(label), make_plan(label, {"class_weights": [1, *[5] * (N_CLASSES[label] - 1)]})
    assert resolve(weighed).noise_multiplier == resolve(plain).noise_multiplier
    data, noise = make_data(weighed, 80, 1), SeededNoise(1)
    ledgers = [train(plan, [data], noise).ledger for plan in (weighed, plain)]
    found, other = (compute_account("gdp", ledger.events(), 1e-5).epsilon for ledger in ledgers)
    assert found == pytest.approx(other, rel=1e-3)


def test_only_ratios_count() -> None:
    """Weights are proportions: twice all of them is the same model."""
    plans = [make_plan("multiclass", {"class_weights": [own * times for own in (1, 3, 1, 2)]}) for times in (1, 8)]
    losses = [build_loss(plan) for plan in plans]
    assert losses[0].class_weights.tolist() == losses[1].class_weights.tolist()
    assert losses[0].class_weights.max() == CLASS_WEIGHT_UNIT


@pytest.mark.parametrize(
    ("label", "model"),
    [
        ("binary", {"class_weights": [1]}),
        ("binary", {"class_weights": [1, 0]}),
        ("binary", {"class_weights": [1, 2], "weight_update": "averaging"}),
        ("multiclass", {"class_weights": [1, 2, 3, 4], "weight_update": "gradient"}),
        ("binary", {"class_weights": [1, 2], "algorithm": "s-gbdt"}),
        ("binary", {"class_weights": [1, 2], "algorithm": "dp-xgboost"}),
        ("binary", {"class_weights": [1, 2], "algorithm": "adassp"}),
        *((label, {"class_weights": [1, 2]}) for label in LABELS if label not in N_CLASSES),
    ],
)
def test_plans_that_cannot_weigh_are_refused(label: str, model: dict[str, Any]) -> None:
    """A weight that would be ignored, or that no statistic knows of, is an error and not silence."""
    with pytest.raises(PlanError, check=coded("plan-field")):
        make_plan(label, model)


def some_rows(n: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """One feature and a class that one in ten has."""
    random = np.random.default_rng(0)
    X = random.normal(size=(n, 2))
    return X, (X[:, 0] + random.normal(size=n) > 1.8).astype(int)


def estimator(**parameters: Any) -> DPGBDTClassifier:
    known: dict[str, Any] = {"bounds": (-4, 4), "classes": [0, 1], "n_records": 600, "n_trees": 20, "epsilon": 20.0}
    return DPGBDTClassifier(**known | parameters)


def test_a_rare_class_is_predicted_more_often_by_its_weight() -> None:
    """`class_weight` reaches the plan in the order of the classes, and the last release does not undo it."""
    X, y = some_rows()
    plain = estimator(random_state=0).fit(X, y)
    weighed = estimator(random_state=0, class_weight={1: 9}).fit(X, y)
    assert weighed.model_.plan.model.class_weights == (1.0, 9.0)
    assert plain.predict(X).mean() < 0.15 < weighed.predict(X).mean()
    # Without the weights its odds are right: the mean chance is the rate.
    chance = 1 / (1 + 9 * np.exp(-weighed.decision_function(X)))
    assert chance.mean() == pytest.approx(y.mean(), abs=0.02)
    stages = list(weighed.staged_predict_proba(X))
    assert len(stages) == weighed.model_.ensemble.n_trees
    assert np.array_equal(stages[-1], weighed.predict_proba(X))


def test_staged_chances_of_averaged_trees_are_those_of_their_mean() -> None:
    """The first tree of an average is a model, not a part of one."""
    X, y = some_rows()
    stages = list(estimator(weight_update="averaging", random_state=0).fit(X, y).staged_predict_proba(X))
    assert stages[0].mean(axis=0) == pytest.approx(stages[-1].mean(axis=0), abs=0.1)


@pytest.mark.parametrize("given", ["balanced", {2: 1}, {1: 0}, {1: "a"}, [1, 2]])
def test_weights_that_are_not_public_numbers_of_classes_are_refused(given: Any) -> None:
    """What is "balanced" would be counted from private rows; what is refused has spent nothing."""
    X, y = some_rows(20)
    with pytest.raises(UsageError, check=coded("class-weight")):
        estimator(class_weight=given).fit(X, y)


def test_what_would_look_at_the_rows_again_is_refused_by_name() -> None:
    """Whoever comes from other boosted trees reads why, and not that Python knows no such word."""
    X, y = some_rows(20)
    for name in ("eval_set", "early_stopping_rounds", "warm_start"):
        with pytest.raises(UsageError, check=coded("every-look-costs")):
            estimator().fit(X, y, **{name: 5})
    for name in ("early_stopping_rounds", "warm_start"):
        with pytest.raises(UsageError, check=coded("every-look-costs")):
            estimator(**{name: True})
    assert estimator().fit(*some_rows(600), eval_set=None).n_features_in_ == 2
