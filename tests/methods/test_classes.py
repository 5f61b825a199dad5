"""The default for three classes or more: its rule, its filter, and what it may depend on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hedgerow.local.training import train
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import mu_of
from hedgerow.privacy.noise import SeededNoise
from tests.builders import contributions, make_data, make_plan
from tests.methods.test_numbers import settings_of

AUTO = {"n_trees": "auto", "max_depth": "auto"}


@pytest.mark.parametrize(("n_records", "epsilon"), [(200, 0.1), (21_000, 1.0), (21_000, 3.0), (10**7, 1.0)])
def test_the_rule_is_what_the_document_says(n_records: int, epsilon: float) -> None:
    """docs/defaults.md: 100 sqrt(s / 5000) trees within [50, 300], rate 0.5, a record's norm at most 1, c = 2."""
    plan = make_plan("multiclass", AUTO, {"n_records": n_records, "epsilon": epsilon, "delta": 1e-5})
    own = settings_of(plan)
    signal = n_records * mu_of(epsilon, 1e-5)
    assert own.n_trees == max(50, min(300, int(100 * math.sqrt(signal / 5000))))
    assert (own.learning_rate, own.joint_clip, own.hessian_scale, own.max_depth) == (0.5, 1.0, 2.0, 4)
    assert own.loss(plan).scales[0] == pytest.approx(RECORD_NORM)


def test_two_classes_keep_their_own_default() -> None:
    """What was found for several classes must not reach the rule for two."""
    own = settings_of(make_plan("binary", AUTO, {"n_records": 21_000, "epsilon": 1.0, "delta": 1e-5}))
    n_trees = int(100 * (21_000 * mu_of(1.0, 1e-5) / 1000) ** 0.25)
    assert (own.learning_rate, own.joint_clip, own.hessian_scale, own.n_trees) == (0.25, 0.25, 2.0, n_trees)


@pytest.mark.parametrize("n_classes", [3, 7, 14, 26])
def test_the_largest_record_has_the_norm_that_noise_is_for(n_classes: int) -> None:
    """Every corner: any class certain, none, or two even, against every label. Not a sum of bounds: the clip is met."""
    table = make_plan("multiclass").to_dict()
    table["label"]["classes"] = [f"class {number}" for number in range(n_classes)]
    loss = settings_of(Plan.from_dict(table)).loss(Plan.from_dict(table))
    far, pairs = 2**20, [(i, j) for i in range(n_classes) for j in range(i + 1)]
    scores = np.zeros((n_classes, len(pairs) + 1), dtype=np.int64)
    for place, (first, second) in enumerate(pairs):
        scores[[first, second], place] = far
    norms = []
    for label in range(n_classes):
        found = contributions(loss, np.full(scores.shape[1], label), scores)
        norms.append((found.astype(np.int64) ** 2).sum(axis=1))
    largest = int(np.max(norms))
    assert largest <= loss.sensitivity_squared(0) <= RECORD_NORM**2
    assert largest > 0.999 * RECORD_NORM**2


def test_the_filter_costs_nothing() -> None:
    """It changes leaves and what follows from them; what is released, and how noisy it is, stays as it was."""
    models = []
    for shrinkage in ("auto", 0.4, 0.0):
        plan = make_plan("multiclass", {"n_trees": 12, "shrinkage": shrinkage}, {"n_records": 400})
        models.append(train(plan, {"one": make_data(plan, 400, 0)}, noise=SeededNoise(1)))
    events = [[release.event for release in model.ledger.releases] for model in models]
    assert events[0] == events[1] == events[2]
    # A plan that names the usual shrinkage is trained as before features had filters of their own.
    codes = make_data(plan, 50, 1).codes
    assert len({model.ensemble.scores(codes).tobytes() for model in models}) == 3


def test_filtered_classes_lose_their_common_part() -> None:
    """Only differences between scores mean anything: gradients sum to zero, so a filtered leaf's weighted values do."""
    plan = make_plan("multiclass", {"n_trees": 6, "leaf_ridge": 1e6}, {"n_records": 400, "epsilon": 8.0})
    model = train(plan, {"one": make_data(plan, 400, 0)}, noise=SeededNoise(1))
    assert model.ensemble.fitted is not None
    # So large a ridge makes all denominators alike.
    values = model.ensemble.fitted.values / SCORE_UNIT
    assert np.abs(values.sum(axis=2)).max() <= 4 * 0.5 / SCORE_UNIT + 0.01 * np.abs(values).max()
