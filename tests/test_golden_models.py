"""Twenty models, byte for byte: a change of the house must not change what comes out of it."""

from __future__ import annotations

import hashlib
import json
import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hedgerow.client.sampling import SeededSampling
from hedgerow.local.training import train
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.trees.ensemble import ensemble_to_dict

N_RECORDS, N_SITES = 400, 3
Overrides = dict[str, dict[str, Any]]

# What each plan sets besides the smallest one of its label's type, and the digest of its ensemble and of its ledger.
GOLDEN: dict[str, tuple[str, Overrides, str]] = {
    "boosting": ("binary", {}, "bacf3c05a17abb4385e0d3c5"),
    "boosting, gradient": ("binary", {"model": {"weight_update": "gradient"}}, "6c847f1145f1632d15b727f1"),
    "boosting, averaging": (
        "binary",
        {"model": {"weight_update": "averaging", "batch_size": "all"}},
        "1ecd9556b8452025c8da60c3",
    ),
    "boosting, batches": (
        "binary",
        {"model": {"n_trees": 7, "batch_size": 3, "interaction": "cyclical"}},
        "0315066b3f5c959b0f349617",
    ),
    "boosting, iterative Hessian": (
        "binary",
        {"model": {"split_candidates": "iterative_hessian"}},
        "39a685b3e368ef5860df5d0d",
    ),
    "boosting, random features": (
        "binary",
        {"model": {"interaction": "random", "interaction_size": 1}},
        "5fce8ce8de9903677d6d9fd3",
    ),
    "boosting, log scale, rdp": (
        "binary",
        {"model": {"split_candidates": "log"}, "privacy": {"accountant": "rdp"}},
        "b5c9ba0f1e649858da4073a0",
    ),
    "boosting, several rows": (
        "binary",
        {"privacy": {"unit": "patient", "max_rows_per_unit": 3}},
        "55e86f4cf38db956b056c3d5",
    ),
    "boosting, classes": ("multiclass", {"model": {"max_depth": 3}}, "8b9287dcc5b15c599c90c8c6"),
    "boosting, numbers": ("regression", {"model": {"leaf_ridge": 1.0}}, "5fb22b28fc6d494da11a76fd"),
    "greedy, hist": (
        "binary",
        {"model": {"split_method": "hist", "interaction_size": "all"}},
        "711b78a87781d2175c4b5085",
    ),
    "greedy, partially random": ("binary", {"model": {"split_method": "partially_random"}}, "2a3e0b70c81bc890dd583611"),
    "without noise": ("binary", {"privacy": {"epsilon": math.inf}}, "22e3aff441bb90b41a786111"),
    "s-gbdt": ("regression", {"model": {"algorithm": "s-gbdt"}}, "b3000e1f2facdbe83c993da9"),
    "s-gbdt, binary": ("binary", {"model": {"algorithm": "s-gbdt"}}, "4fd8fd11a51daa756374d01a"),
    "s-gbdt, extra rounds": (
        "regression",
        {"model": {"algorithm": "s-gbdt"}, "s_gbdt": {"extra_rounds": 4, "subsampling_ratio": 0.5}},
        "6686f5ce1c4a9ace339647f2",
    ),
    "dp-xgboost": (
        "binary",
        {"model": {"algorithm": "dp-xgboost"}, "privacy": {"accountant": "pure"}},
        "8bd72314c0661fa1614a5157",
    ),
    "dp-xgboost, numbers": (
        "regression",
        {
            "model": {"algorithm": "dp-xgboost", "n_candidates": 5},
            "privacy": {"accountant": "pure"},
            "dp_xgboost": {"splits": "histogram", "sketch_rounds": 2},
        },
        "f4b331712073cc14b1d88c5d",
    ),
    "adassp": ("binary", {"model": {"algorithm": "adassp"}}, "afc6cbb8e8b531f1781fb11e"),
    "adassp, numbers": (
        "regression",
        {"model": {"algorithm": "adassp"}, "adassp": {"rounds": 3}},
        "45a850f040880514506277cf",
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


def digest_of(factory: ModuleType, plan: Plan) -> str:
    """SHA-256, shortened, over the ensemble and the releases of a seeded run over three sites."""
    data = factory.make_data(plan, N_RECORDS, 5)
    owner = np.arange(N_RECORDS) % N_SITES
    rows = {f"site-{number}": np.flatnonzero(owner == number) for number in range(N_SITES)}
    sites = {site: factory.take(data, numbers) for site, numbers in rows.items()}
    sampling = {site: SeededSampling(3, numbers) for site, numbers in rows.items()}
    model = train(plan, sites, noise=SeededNoise(1), sampling=sampling)
    releases = [release.to_dict() for release in model.ledger.releases]
    text = json.dumps([ensemble_to_dict(model.ensemble), releases], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@pytest.mark.parametrize("name", GOLDEN)
def test_a_model_stays_the_same_byte_for_byte(factory: ModuleType, name: str) -> None:
    """Whoever repeats a published run gets the published model."""
    label, overrides, digest = GOLDEN[name]
    assert digest_of(factory, plan_of(factory, label, overrides)) == digest
