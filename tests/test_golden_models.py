"""Twenty-six models, byte for byte: a change of the house must not change what comes out of it."""

from __future__ import annotations

import hashlib
import json
import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hedgerow.client.node import SeededSampling
from hedgerow.local.training import train
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.trees.ensemble import ensemble_to_dict

N_RECORDS, N_SITES = 400, 3
Overrides = dict[str, dict[str, Any]]

WITH_SIGNAL: dict[str, Any] = {"noise_ridge": 1.5, "interaction_size": 3}
"""What two classes have by default, but not at so little signal as these 400 records are."""

# What each plan sets besides the smallest one of its label's type, and the digest of its ensemble and of its ledger.
GOLDEN: dict[str, tuple[str, Overrides, str]] = {
    "boosting": ("binary", {"model": WITH_SIGNAL}, "bfb939e83ffbe5c96689df1e"),
    "boosting, gradient": (
        "binary",
        {"model": {**WITH_SIGNAL, "weight_update": "gradient"}},
        "ab081325f9d64009b04b999b",
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
        "1342111dd7dceb42bfec9dcf",
    ),
    "boosting, random features": (
        "binary",
        {"model": {"interaction": "random", "interaction_size": 1}},
        "ec5ceb8292fbe1d112bc5dec",
    ),
    "boosting, log scale, rdp": (
        "binary",
        {"model": {**WITH_SIGNAL, "split_candidates": "log"}, "privacy": {"accountant": "rdp"}},
        "b8529c8ff62c28af4feca5a7",
    ),
    "boosting, several rows": (
        "binary",
        {"model": WITH_SIGNAL, "privacy": {"unit": "patient", "max_rows_per_unit": 3}},
        "9ae8b4f57edf45af68e69ee9",
    ),
    "boosting, classes": ("multiclass", {"model": {"max_depth": 3, "shrinkage": 0.4}}, "ebf802553690bd7b0f8ef403"),
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
        "474c2fe233ec515e85fcb6ef",
    ),
    "boosting, expected values": (
        "binary",
        {"model": {"n_trees": 14, "max_depth": "auto"}, "privacy": {"epsilon": 12.0, "n_records": 3_000}},
        "1fcfb09ae818022bf8b54054",
    ),
    "boosting, expected values in batches": (
        "binary",
        {"model": {"n_trees": 14, "batch_size": 3}, "privacy": {"epsilon": 12.0, "n_records": 3_000}},
        "be5d67132a7086ba821a5986",
    ),
    "boosting, expected values of numbers": (
        "regression",
        {"model": {"n_trees": 14, "max_depth": "auto"}, "privacy": {"epsilon": 20.0}},
        "d8b19085741206d6aa22d8a6",
    ),
    "boosting, expected values of counts": (
        "count",
        {"model": {"n_trees": 14, "max_depth": "auto"}, "privacy": {"epsilon": 20.0}},
        "8e76c3043f750cb631f52ba2",
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
        "2bf8e8274972484711b916fb",
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
        "6978bba18d698afb2422be8d",
    ),
    "greedy, hist": (
        "binary",
        {"model": {"split_method": "hist", "interaction_size": "all"}},
        "d3a581a83d041c63d12b6d95",
    ),
    "greedy, partially random": ("binary", {"model": {"split_method": "partially_random"}}, "457ab7878506ff7fa0670585"),
    "without noise": ("binary", {"privacy": {"epsilon": math.inf}}, "16a974d75279af1e9157f2f9"),
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
}


def plan_of(factory: ModuleType, label: str, overrides: Overrides) -> Plan:
    """The smallest plan of the label's type with `overrides`, over the declared number of records."""
    base = factory.make_plan(label).to_dict()
    sizes = {} if "adassp" in str(overrides) else {"n_trees": 4, "max_depth": 2}
    model = {**sizes, "structure_seed": 7, **overrides.get("model", {})}
    privacy = {"epsilon": 2.0, "delta": 1e-5, "n_records": N_RECORDS, **overrides.get("privacy", {})}
    sections = {name: section for name, section in overrides.items() if name not in ("model", "privacy")}
    shared = {name: base[name] for name in ("version", "name", "features", "label")}
    return Plan.from_dict({**shared, "model": model, "privacy": privacy, **sections})


def rounded(content: Any) -> Any:
    """The content with nine digits of every float: calibration may end a last digit elsewhere."""
    if isinstance(content, dict):
        return {name: rounded(value) for name, value in content.items()}
    if isinstance(content, list):
        return [rounded(value) for value in content]
    return float(f"{content:.9g}") if isinstance(content, float) else content


def digest_of(factory: ModuleType, plan: Plan) -> str:
    """SHA-256, shortened, over the ensemble and the releases of a seeded run over three sites."""
    data = factory.make_data(plan, N_RECORDS, 5)
    owner = np.arange(N_RECORDS) % N_SITES
    rows = {f"site-{number}": np.flatnonzero(owner == number) for number in range(N_SITES)}
    sites = {site: factory.take(data, numbers) for site, numbers in rows.items()}
    sampling = {site: SeededSampling(3, numbers) for site, numbers in rows.items()}
    model = train(plan, sites, noise=SeededNoise(1), sampling=sampling)
    releases = [release.to_dict() for release in model.ledger.releases]
    text = json.dumps(rounded([ensemble_to_dict(model.ensemble), releases]), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@pytest.mark.parametrize("name", GOLDEN)
def test_a_model_stays_the_same_byte_for_byte(factory: ModuleType, name: str) -> None:
    """Whoever repeats a published run gets the published model."""
    label, overrides, digest = GOLDEN[name]
    assert digest_of(factory, plan_of(factory, label, overrides)) == digest
