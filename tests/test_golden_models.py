"""Models and ledgers, byte for byte: a change of the house must not change what comes out of it.

One of every method, label, start, calibration, kind of noise and of candidates. Runs over nodes that go otherwise than
planned are in tests/runtime/test_golden_runs.py, and surveys beside their own tests.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hedgerow.client.node import SeededSampling
from hedgerow.data.binned import SiteData
from hedgerow.local.training import evaluate_federated, train
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.trees import binning, leaf_sums
from hedgerow.trees.binning import build_grid
from hedgerow.trees.ensemble import ensemble_to_dict
from tests import builders
from tests.builders import make_data, make_plan, take

pytestmark = pytest.mark.golden
N_RECORDS, N_SITES = 400, 3
Overrides = dict[str, Any]

WITH_SIGNAL: dict[str, Any] = {"noise_ridge": 1.5, "interaction_size": 3}
"""What two classes have by default, but not at so little signal as these 400 records are."""
WIDE = [{"name": name, "type": "numeric", "min": -90_000, "max": 90_240} for name in "abc"]
"""Far wider than the rows, which are about 120: a run cuts these again."""
NARROW = "narrow"
"""The name of plans whose labels fill the lowest part of their range, so that residuals are doubled."""
RISING = [
    {"name": "age", "type": "numeric", "min": 0, "max": 4, "integer": True, "monotone": "increasing"},
    {"name": "income", "type": "numeric", "min": 0, "max": 1e6, "monotone": "decreasing"},
    {"name": "region", "type": "categorical", "categories": ["north", "south", "west"]},
]
DATED = [
    {"name": "born", "type": "date", "min": "1950-01-01", "max": "2020-12-31"},
    {"name": "word", "type": "hashed", "buckets": 8},
    {"name": "count", "type": "numeric", "min": 0, "max": 9},
]

# What each plan sets besides the smallest one of its label's type, and the digest of its ensemble and of its ledger.
GOLDEN: dict[str, tuple[str, Overrides, str]] = {
    "boosting": ("binary", {"model": WITH_SIGNAL}, "7b9fa0a8822f0c7ebbac03e3"),
    "boosting, gradient": (
        "binary",
        {"model": {**WITH_SIGNAL, "weight_update": "gradient"}},
        "85d85a655609281d0d96ed78",
    ),
    "boosting, averaging": (
        "binary",
        {"model": {"weight_update": "averaging", "batch_size": "all"}},
        "50a03ccc94104b2b5e5d4e88",
    ),
    "boosting, batches": (
        "binary",
        {"model": {"n_trees": 7, "batch_size": 3, "interaction": "cyclical"}},
        "03e64d4075866479717904ad",
    ),
    "boosting, iterative Hessian": (
        "binary",
        {"model": {**WITH_SIGNAL, "split_candidates": "iterative_hessian"}},
        "62bfacfe00c210bb43a1d082",
    ),
    "boosting, random features": (
        "binary",
        {"model": {"interaction": "random", "interaction_size": 1}},
        "ec5ceb8292fbe1d112bc5dec",
    ),
    "boosting, log scale, rdp": (
        "binary",
        {"model": {**WITH_SIGNAL, "split_candidates": "log"}, "privacy": {"accountant": "rdp"}},
        "fd433415f704ef16c815a368",
    ),
    "boosting, several rows": (
        "binary",
        {"model": WITH_SIGNAL, "privacy": {"unit": "patient", "max_rows_per_unit": 3}},
        "14e60f874b3912749dcbbe3c",
    ),
    "boosting, classes": ("multiclass", {"model": {"max_depth": 3, "shrinkage": 0.4}}, "180966bb9be87fec46d7ddde"),
    "boosting, numbers": (
        "regression",
        {
            "model": {
                "start": "none",
                "shrinkage": 0.4,
                "learning_rate": 0.25,
                "noise_ridge": 12.0,
                "joint_clip": 0.25,
                "hessian_scale": 0.25,
            }
        },
        "abd6a759488dd98f26520947",
    ),
    "boosting, expected values": (
        "binary",
        {"model": {"n_trees": 14, "max_depth": "auto"}, "privacy": {"epsilon": 12.0, "n_records": 3_000}},
        "588447ba8f8a40d9fe2d6c3f",
    ),
    "boosting, expected values in batches": (
        "binary",
        {"model": {"n_trees": 14, "batch_size": 3}, "privacy": {"epsilon": 12.0, "n_records": 3_000}},
        "ccc0f67839770ae26f4fa192",
    ),
    "boosting, expected values of numbers": (
        "regression",
        {"model": {"n_trees": 14, "max_depth": "auto"}, "privacy": {"epsilon": 20.0}},
        "29e6f3a2144a6bffa8fd30b7",
    ),
    "boosting, doubled residuals of numbers": (
        "regression",
        {"name": NARROW, "privacy": {"epsilon": 20.0}},
        "9a84f6168cfeed623a43dd73",
    ),
    "boosting, doubled residuals of counts": (
        "count",
        {"name": NARROW, "privacy": {"epsilon": 20.0}},
        "0b2c2423f0278cde743b3e26",
    ),
    "boosting, expected values of counts": (
        "count",
        {"model": {"n_trees": 14, "max_depth": "auto"}, "privacy": {"epsilon": 20.0}},
        "35a488cc21da378c49394930",
    ),
    "boosting, time to an event": (
        "survival",
        {
            "model": {
                "start": "none",
                "shrinkage": 0.4,
                "learning_rate": 0.25,
                "noise_ridge": 1.5,
                "joint_clip": 0.25,
                "hessian_scale": 1.0,
            }
        },
        "45bb55933f70f953e27ea3f5",
    ),
    "boosting, time to an event, linear start": (
        "survival",
        {
            "model": {
                "start": "linear",
                "shrinkage": 1.0,
                "learning_rate": 0.25,
                "noise_ridge": 6.0,
                "joint_clip": 0.25,
                "hessian_scale": 1.0,
            }
        },
        "3bb38ab5d9bc00a9a56dafd0",
    ),
    "greedy, hist": (
        "binary",
        {"model": {"split_method": "hist", "interaction_size": "all"}},
        "d3a581a83d041c63d12b6d95",
    ),
    "greedy, partially random": ("binary", {"model": {"split_method": "partially_random"}}, "457ab7878506ff7fa0670585"),
    "without noise": ("binary", {"privacy": {"epsilon": math.inf}}, "d0edc2148cae77dc06888760"),
    "s-gbdt": (
        "regression",
        {"model": {"algorithm": "s-gbdt", "calibration": "none"}},
        "8a53725fb7a40728e6bc3dc7",
    ),
    "s-gbdt, binary": ("binary", {"model": {"algorithm": "s-gbdt"}}, "dc234a1dd429593a49c013f9"),
    "s-gbdt, extra rounds": (
        "regression",
        {
            "model": {"algorithm": "s-gbdt", "calibration": "none"},
            "s_gbdt": {"extra_rounds": 4, "subsampling_ratio": 0.5},
        },
        "1d5d0af0c3d1dce13d7f1fb6",
    ),
    "dp-xgboost": (
        "binary",
        {"model": {"algorithm": "dp-xgboost"}, "privacy": {"accountant": "pure"}},
        "a89b1e1015aaabe4ca413c82",
    ),
    "dp-xgboost, numbers": (
        "regression",
        {
            "model": {"algorithm": "dp-xgboost", "n_candidates": 5, "noise_ridge": 1.0},
            "privacy": {"accountant": "pure"},
            "dp_xgboost": {"splits": "histogram", "sketch_rounds": 2, "start": "none", "shrinkage": 0.0},
        },
        "fb94688051f55154aeefa2dd",
    ),
    "adassp": ("binary", {"model": {"algorithm": "adassp"}}, "aba04064afbb652940b03b32"),
    "adassp, numbers": (
        "regression",
        {"model": {"algorithm": "adassp", "calibration": "none"}, "adassp": {"rounds": 3, "shrinkage": 0.0}},
        "14a6294277c18aab02dbf18e",
    ),
    "adassp, numbers, line": ("regression", {"model": {"algorithm": "adassp"}}, "95c1c887c5bf38171900758b"),
    "s-gbdt, line": ("regression", {"model": {"algorithm": "s-gbdt"}}, "890471541fd9824552024c05"),
    "dp-xgboost, mean": (
        "regression",
        {"model": {"algorithm": "dp-xgboost"}, "privacy": {"accountant": "pure"}},
        "70381b8b6444eb57001f49a0",
    ),
    "boosting, numbers, mean": ("regression", {"model": {"start": "mean"}}, "eda080a6eee5c84d814073d6"),
    "boosting, numbers, linear model without line": (
        "regression",
        {"model": {"start": "linear", "calibration": "none"}},
        "2c158b0a6a0e434032bb09af",
    ),
    "boosting, numbers, mean and slope": (
        "regression",
        {"model": {"interaction": "cyclical"}},
        "2c36b3b1d614f080da516bf6",
    ),
    "boosting, numbers, averaging and slope": (
        "regression",
        {"model": {"weight_update": "averaging"}},
        "de51092d076996db231b2a6e",
    ),
    "boosting, counts": ("count", {"model": {"start": "none"}}, "a10c4c57f22963f22da4e586"),
    "boosting, counts, level": ("count", {"model": {"weight_update": "gradient"}}, "8d74c402c1a0398e1e2ca185"),
    "boosting, classes, filtered": ("multiclass", {"model": {"max_depth": 3}}, "d9c45a0b3f788c39b4b9b18a"),
    "boosting, classes, averaging": (
        "multiclass",
        {"model": {"weight_update": "averaging"}},
        "346905f7cbc1190c5103515b",
    ),
    "boosting, time to an event, baseline alone": (
        "survival",
        {"model": {"interaction": "cyclical"}},
        "7fd7ce474e4d483b4fb13193",
    ),
    "boosting, time to an event, no calibration": (
        "survival",
        {"model": {"calibration": "none"}},
        "3bcc68d70b7d391ff42291ea",
    ),
    "boosting, central subsets": (
        "binary",
        {"model": {**WITH_SIGNAL, "n_trees": 14}, "privacy": {"epsilon": 12.0, "n_records": 3_000}},
        "64be362789fd883ccd450233",
    ),
    "boosting, constraints": (
        "binary",
        {"model": {**WITH_SIGNAL, "interaction_constraints": [["age", "income"], ["region"]]}, "features": RISING},
        "8c4942dc70a6751978d1e782",
    ),
    "boosting, dates and hashed texts": (
        "binary",
        {"model": WITH_SIGNAL, "features": DATED},
        "a8de77361f3060523fef0c71",
    ),
    "boosting, quantile": (
        "binary",
        {"model": {**WITH_SIGNAL, "split_candidates": "quantile"}, "privacy": {"epsilon": math.inf}},
        "b15c5d3ca2a6af80d74947d7",
    ),
    "boosting, cut again": (
        "binary",
        {"model": {"n_trees": 8}, "privacy": {"epsilon": 12.0}, "features": WIDE},
        "9b289b1ba22e52b1a325817b",
    ),
    "boosting, classes, cut again": (
        "multiclass",
        {"model": {"n_trees": 8}, "privacy": {"epsilon": 12.0}, "features": WIDE},
        "30a3bb9972794c5d143aebe2",
    ),
    "boosting, noise of the sites": (
        "binary",
        {"model": WITH_SIGNAL, "privacy": {"noise": "distributed"}},
        "a449fd111d877fd5c1d316a8",
    ),
    "boosting, noise of the records": (
        "binary",
        {"model": WITH_SIGNAL, "privacy": {"noise": "local"}},
        "88a70205d05a6afbf42c5a3c",
    ),
    "boosting, several rows at several sites": (
        "binary",
        {"model": WITH_SIGNAL, "privacy": {"unit": "patient", "max_rows_per_unit": 2, "sites_per_unit": 2}},
        "7cbb6e41e729fa0dcfbc6b22",
    ),
    "groups of sites": ("binary", {"model": WITH_SIGNAL, "federation": {"groups": 3}}, "4e6218ece31ce3ebefbd32e2"),
}


def smallest_plan(label: str, overrides: Overrides) -> Plan:
    """The smallest plan of the label's type with `overrides`, over the declared number of records."""
    model = {"structure_seed": 7, "calibration": "auto", **overrides.get("model", {})}
    privacy = {"n_records": N_RECORDS, **overrides.get("privacy", {})}
    return make_plan(label, **{**overrides, "model": model, "privacy": privacy})


def rows_of(plan: Plan) -> SiteData:
    """Random rows of any code; of wide bounds values about 120, of which the first decides the class."""
    rows: SiteData = make_data(plan, N_RECORDS, 5)
    if plan.name == NARROW:
        return replace(rows, labels=(rows.labels + SCORE_UNIT) // 32 - SCORE_UNIT)
    if plan.features[0].name != "a":
        return rows
    values = tuple((120 + 17 * np.random.default_rng(5).normal(size=(3, N_RECORDS))).astype(np.float32))
    grid = build_grid(plan)
    codes = grid.encode(values)
    return SiteData(codes, (values[0] > 120).astype(np.int32), grid.places(values, codes))


def digest_of(plan: Plan) -> str:
    """The digest of the ensemble and the releases of a seeded run over three sites or more."""
    data, n_sites = rows_of(plan), max(N_SITES, 4 * plan.federation.groups)
    owner = np.arange(N_RECORDS) % n_sites
    rows = {f"site-{number}": np.flatnonzero(owner == number) for number in range(n_sites)}
    sites = {site: take(data, numbers) for site, numbers in rows.items()}
    sampling = {site: SeededSampling(3, numbers) for site, numbers in rows.items()}
    model = train(plan, sites, noise=SeededNoise(1), sampling=sampling)
    releases = [release.to_dict() for release in model.ledger.releases]
    return builders.digest_of([ensemble_to_dict(model.ensemble), releases])


@pytest.mark.parametrize("most_without_kernels", [0, leaf_sums.FEW_TO_SUM], ids=["kernels", "numpy"])
@pytest.mark.parametrize("name", GOLDEN)
def test_a_model_stays_the_same_byte_for_byte(
    name: str, most_without_kernels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever repeats a published run gets the published model, whether their rows are few or many."""
    monkeypatch.setattr(leaf_sums, "FEW_TO_SUM", most_without_kernels)
    monkeypatch.setattr(binning, "FEW_TO_ENCODE", most_without_kernels)
    label, overrides, digest = GOLDEN[name]
    assert digest_of(smallest_plan(label, overrides)) == digest


EVALUATED = {
    "binary": "c862885aa26b1b0bab8ea2fb",
    "multiclass": "3e1976f3947fef4d10f353e3",
    "regression": "9bea3b20c0aea741bbc6881c",
    "count": "086d9019660bb760c09c45eb",
    "survival": "c2eaa5e17413738e9b97eda6",
}


def list_releases(model: Model) -> list[dict[str, Any]]:
    """A model's account, as it was before releases of evaluations were named by their figures."""
    return [replace(release, figures="").to_dict() for release in model.ledger]


def test_an_evaluation_by_groups_stays_the_same() -> None:
    """Borders of groups, noise and cost of each column's release are published with the run as well."""
    plan = smallest_plan("binary", {})
    data = make_data(plan, N_RECORDS, 5)
    model = train(plan, {"site": data}, noise=SeededNoise(1))
    by = plan.feature_names
    found = evaluate_federated(model, {"site": data}, epsilon=1.0, noise=SeededNoise(2), by=by)
    content = [found.evaluation.to_dict(), list_releases(found.model)]
    assert builders.digest_of(content) == "b658c0e24d845def2cd6adfc"


@pytest.mark.parametrize("label", EVALUATED)
def test_an_evaluation_stays_the_same(label: str) -> None:
    """Every figure that sites measure together, and what it cost, is what was published of the same run."""
    plan = smallest_plan(label, {})
    data = make_data(plan, N_RECORDS, 5)
    model = train(plan, {"site": data}, noise=SeededNoise(1))
    found = evaluate_federated(model, {"site": data}, epsilon=1.0, noise=SeededNoise(2))
    content = [found.evaluation.to_dict(), list_releases(found.model)]
    assert builders.digest_of(content) == EVALUATED[label]
