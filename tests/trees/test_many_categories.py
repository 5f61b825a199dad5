"""Lists of more than 250 categories: codes of two bytes, trees in the order of the list, and buckets by signal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.data.binned import SiteData
from hedgerow.data.columns import Place, category_indices
from hedgerow.errors import ModelError, PlanError
from hedgerow.local.training import train
from hedgerow.models.model import Model
from hedgerow.plan.plan import FOUND, MANY_CATEGORIES, MAX_CATEGORIES, Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.privacy.outlook import with_buckets
from hedgerow.privacy.signal import signal_of
from hedgerow.trees.binning import build_grid
from hedgerow.trees.ensemble import ensemble_from_dict, ensemble_to_dict
from hedgerow.trees.random_trees import CutTable, PublicRandom, random_trees
from tests.builders import make_plan
from tests.models.probes import export_checked

N_CODES = 700


def features_with(n_codes: int) -> list[dict[str, Any]]:
    return [
        {"name": "x", "type": "numeric", "min": 0, "max": 1},
        {"name": "code", "type": "categorical", "categories": [f"c{number}" for number in range(n_codes)]},
    ]


def codes_and_labels(plan: Plan, n: int = 400) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Rows of which some have a category that is not listed, or none; half of the listed ones raise the label."""
    random, n_codes = np.random.default_rng(0), len(plan.features[1].categories)
    code = random.integers(-2, n_codes, n)
    columns = random.uniform(0, 1, n).astype(np.float32), code.astype(np.int32)
    low, high = (0, plan.label.n_codes - 1) if plan.label.classes else (-(2**16), 2**16)
    labels = np.where(code < n_codes // 2, low, high).astype(np.int32)
    return build_grid(plan).encode(columns), labels


METHODS: list[dict[str, Any]] = [
    {"n_trees": 6}, {"split_method": "hist", "interaction_size": 2, "interaction": "random"},
    {"split_method": "partially_random", "interaction": "random", "interaction_size": 2},
    {"split_candidates": "iterative_hessian", "interaction": "cyclical"}, {"weight_update": "averaging"},
    {"algorithm": "s-gbdt"}, {"algorithm": "dp-xgboost"},
]  # fmt: skip


@pytest.mark.parametrize("model", METHODS, ids=lambda model: " ".join(map(str, model.values())))
def test_a_model_of_many_codes_is_kept_and_read_back(model: dict[str, Any], tmp_path: Path) -> None:
    """Whatever the trees are drawn by: the file has equal bytes once read, and says the same of every code."""
    privacy = {"accountant": "pure"} if model.get("algorithm") == "dp-xgboost" else {}
    plan = make_plan("binary", model, privacy={**privacy, "epsilon": 50.0}, features=features_with(N_CODES))
    codes, labels = codes_and_labels(plan)
    assert codes.dtype == np.uint16
    model_ = train(plan, {"one": SiteData(codes, labels)}, noise=SeededNoise(1))
    model_.save(tmp_path / "model.json")
    read = Model.load(tmp_path / "model.json")
    assert read.to_bytes() == model_.to_bytes()
    every = np.stack([np.zeros(N_CODES + 2, dtype=np.uint16), np.arange(N_CODES + 2, dtype=np.uint16)])
    np.testing.assert_array_equal(read.ensemble.scores(every), model_.ensemble.scores(every))


def test_exports_say_the_same_of_many_codes(tmp_path: Path) -> None:
    """XGBoost's own reader predicts what the model does, which the export checks."""
    pytest.importorskip("xgboost")
    plan = make_plan("binary", {"n_trees": 8}, privacy={"epsilon": 50.0}, features=features_with(N_CODES))
    codes, labels = codes_and_labels(plan)
    export_checked(train(plan, {"one": SiteData(codes, labels)}, noise=SeededNoise(1)), tmp_path / "x.json")


def test_the_longest_list_has_a_code_for_each_and_no_more() -> None:
    """65,000 categories, whose codes fit two bytes with those of unknown and missing values."""
    plan = make_plan(features=features_with(MAX_CATEGORIES))
    names = plan.features[1].categories
    indices = category_indices(["c0", names[-1], "elsewhere", None], names, Place("", "code", 0)).require()
    assert indices.tolist() == [0, MAX_CATEGORIES - 1, -1, -2]
    codes = build_grid(plan).encode((np.zeros(4, dtype=np.float32), indices))
    assert codes[1].tolist() == [0, MAX_CATEGORIES - 1, MAX_CATEGORIES, MAX_CATEGORIES + 1]
    with pytest.raises(PlanError, match=r"at most 65000 categories"):
        make_plan(features=features_with(MAX_CATEGORIES + 1))


def test_linear_models_refuse_a_column_for_each_of_many_codes() -> None:
    """X^T X would have their square; a linear start of numbers leaves them to the trees."""
    with pytest.raises(PlanError, match="with adassp"):
        make_plan(model={"algorithm": "adassp"}, features=features_with(MANY_CATEGORIES + 1))
    make_plan(model={"algorithm": "adassp"}, features=features_with(MANY_CATEGORIES))
    plan = make_plan("regression", {"n_trees": 2, "start": "linear"}, features=features_with(N_CODES))
    codes, labels = codes_and_labels(plan)
    trained = train(plan, {"one": SiteData(codes, labels)}, noise=SeededNoise(1))
    assert trained.ensemble.n_trees > 2


@pytest.mark.parametrize(("n_codes", "some_in_order"), [(MANY_CATEGORIES, False), (N_CODES, True)])
def test_many_codes_are_divided_in_the_order_of_their_list_by_half_of_the_trees(
    n_codes: int, some_in_order: bool
) -> None:
    """Codes that begin alike stand together, so a leaf of neighbours says what they have in common."""
    grid = build_grid(make_plan(features=features_with(n_codes)))
    streams = [PublicRandom(5, f"tree {number}") for number in range(40)]
    trees = random_trees(streams, [(1,)] * 40, CutTable(grid), grid, 3)
    changes = np.abs(np.diff(trees.goes_left[:, 0, : n_codes + 2].astype(int), axis=1)).sum(axis=1)
    assert ((10 <= (changes == 1).sum() <= 30), bool((changes == 1).any())) == (some_in_order, some_in_order)


@pytest.mark.parametrize("text", ["0", "0g", "FF", 5, [1, 2], "ff" * 200])
def test_a_set_of_many_codes_that_is_no_set_is_refused(text: Any) -> None:
    """A file says each code once, within the feature's own, in one writing."""
    plan = make_plan("binary", {"n_trees": 1}, privacy={"epsilon": 50.0}, features=features_with(N_CODES)[1:])
    codes, labels = codes_and_labels(make_plan(features=features_with(N_CODES)))
    ensemble = train(plan, {"one": SiteData(codes[1:], labels)}, noise=SeededNoise(1)).ensemble
    table = ensemble_to_dict(ensemble)
    node = next(iter(table["trees"][0]["sets"]))
    assert ensemble_from_dict(table, plan).n_trees == ensemble.n_trees
    table["trees"][0]["sets"][node] = text
    with pytest.raises(ModelError):
        ensemble_from_dict(table, plan)


@given(n_records=st.integers(1, 10**7), epsilon=st.floats(0.05, 20))
def test_buckets_of_found_text_follow_the_signal(n_records: int, epsilon: float) -> None:
    """Only of text that noisy sums found without a list: 32 to 1,024, a power of two, no more than a sixteenth of s."""
    features = [{"name": name, "type": "hashed", "buckets": 40} for name in "ab"]
    plan = make_plan(features=features, privacy={"epsilon": epsilon, "n_records": n_records})
    assert with_buckets(plan) == plan
    found = replace(plan, features=(replace(plan.features[0], origin=FOUND), plan.features[1]))
    buckets, kept = (feature.buckets for feature in with_buckets(found).features)
    assert kept == 40 and buckets is not None and buckets in [2**power for power in range(5, 11)]
    signal = signal_of(plan)
    assert buckets == 32 or buckets <= signal / 16
    assert buckets == 1024 or 2 * buckets > signal / 16
    assert len(with_buckets(found).features[0].categories) == buckets
