"""A model of two classes says the same whichever of them comes first: exactly, for noise with its signs turned."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.data.binned import SiteData
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from tests.builders import FEATURES, make_data, make_plan, take, train
from tests.tiers import every


class MirroredNoise(SeededNoise):
    """Seeded noise as it is added when the classes are swapped: what is about labels has the other sign.

    Sums are of a gradient and a Hessian in turn, so noise on gradients is turned; the last release is counts by bin of
    score, and labels by bin, and the bins of one are those of the other from the end.
    """

    def sample(self, sigma: int, length: int, purpose: str) -> NDArray[np.int64]:
        drawn, kind = super().sample(sigma, length, purpose), purpose.split("/")[1]
        if kind == "ScoreBins":
            counts, labels = drawn.reshape(2, -1)[:, ::-1]
            return np.concatenate([counts, -labels])
        if kind == "LevelSums":
            # How far labels are from predictions, how much these rise, and the predictions of both classes.
            return np.concatenate([-drawn[:1], drawn[1:2], drawn[:1:-1]])
        if kind != "Histogram":
            drawn[::2] *= -1
        return drawn


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """What a plan's [model] may say of trees whose values follow gradients; most of them say little."""
    pick = st.sampled_from
    n_trees = draw(pick(["auto", 3, 9]))
    free = {
        "n_trees": n_trees,
        "max_depth": draw(pick(["auto", 1, 3, 5])),
        "weight_update": draw(pick(["newton", "newton", "gradient"])),
        "interaction": draw(pick(["auto", "auto", "cyclical", "random"])),
        "interaction_size": draw(pick(["auto", 1, 2, "all"])),
        "batch_size": draw(pick([1, 2, 3, "all"])) if n_trees != "auto" else 1,
        "joint_clip": draw(pick(["auto", "none", 0.2, 1.0])),
        "split_candidates": draw(pick(["adaptive", "uniform", "iterative_hessian"])),
        "leaf_ridge": draw(pick([0.0, 1.0])),
        "calibration": draw(pick(["auto", "none"])),
    }
    named = draw(st.sets(st.sampled_from(sorted(free)), max_size=4)) - {"batch_size"}
    own = {name: free[name] for name in named | ({"batch_size"} if "n_trees" in named else set())}
    usual = {"calibration": "auto", "n_trees": 40, "max_depth": "auto"}
    return {**usual, **own, "structure_seed": draw(st.integers(0, 99))}


def rare(plan: Plan, n: int, level: float, seed: int) -> SiteData:
    """Random rows, whose first feature says most about a class that is rare where the level is far from 0."""
    data, random = make_data(plan, n, seed), np.random.default_rng(seed)
    place = data.codes[0] / max(1, int(data.codes[0].max())) - 0.5
    chance = 1 / (1 + np.exp(-(level + 3 * place)))
    return replace(data, labels=(random.random(n) < chance).astype(np.int32))


def scores(plan: Plan, sites: list[SiteData], noise: SeededNoise) -> NDArray[np.float64]:
    """The log-odds of the last class for all rows."""
    ensemble = train(plan, sites, noise).ensemble
    return np.concatenate([ensemble.scores(site.codes)[0] for site in sites])


@pytest.mark.slow
@settings(max_examples=30)
@given(
    model=models(),
    level=st.sampled_from([0.0, -1.5, -4.0, 5.0]),
    promised=st.sampled_from([(math.inf, 0), (1.0, 200), (1.0, 5_000), (8.0, 100_000), (30.0, 100_000)]),
    seed=st.integers(0, 99),
)
def test_swapped_classes_have_each_other_s_chances(
    model: dict[str, Any], level: float, promised: tuple[float, int], seed: int
) -> None:
    """p becomes 1 - p, without noise and with it: at any signal, depth, update, calibration and rate."""
    privacy = {"epsilon": promised[0], **({"n_records": promised[1]} if promised[1] else {})}
    plan = make_plan("binary", model, privacy)
    data = rare(plan, 300, level, seed)
    parts = np.array_split(np.arange(300), 1 + seed % 3)
    sites = [take(data, rows) for rows in parts]
    swapped = [replace(site, labels=1 - site.labels) for site in sites]
    found = scores(plan, sites, SeededNoise(seed))
    other = scores(plan, swapped, MirroredNoise(seed))
    chances, others = 1 / (1 + np.exp(-found)), 1 / (1 + np.exp(-other))
    assert np.abs(chances + others - 1).max() <= 1e-6


DRAWN = {"split_method": "partially_random", "interaction": "cyclical", "interaction_size": 2}
GREEDY = {"split_method": "hist", "interaction": "cyclical", "interaction_size": "all", "joint_clip": "none"}


@pytest.mark.parametrize(
    ("model", "promised"),
    [
        *itertools.product([{"algorithm": "s-gbdt"}, DRAWN, GREEDY], [math.inf, 5.0]),
        ({"algorithm": "dp-xgboost"}, math.inf),
    ],
    ids=str,
)
def test_published_methods_do_not_care_either(model: dict[str, Any], promised: float) -> None:
    """S-GBDT, DP-XGBoost, and trees whose splits are chosen by noisy sums."""
    algorithm = model.get("algorithm", "")
    privacy = {"epsilon": promised, "n_records": 2_000, "accountant": "pure" if algorithm == "dp-xgboost" else "gdp"}
    plan = make_plan("binary", {"n_trees": 6, **model}, privacy)
    if algorithm:
        # Of all rows: a sample is another one each time.
        plan = Plan.from_dict({**plan.to_dict(), algorithm.replace("-", "_"): {"subsampling_ratio": 1.0}})
    data = rare(plan, 500, -2.0, 3)
    found = scores(plan, [data], SeededNoise(1))
    other = scores(plan, [replace(data, labels=1 - data.labels)], MirroredNoise(1))
    assert np.abs(found + other).max() <= 1e-6 and np.abs(found).max() > 0.1


@pytest.mark.parametrize("depth", every(2, [1, 3]))
def test_directions_turn_with_the_classes(depth: int) -> None:
    """What rises with a feature for one class falls for the other: the same but for units that are rounded down."""
    found = []
    for way, swaps, noise in (("increasing", 0, SeededNoise(1)), ("decreasing", 1, MirroredNoise(1))):
        features = [{**own, "monotone": way} if own["name"] in ("age", "income") else own for own in FEATURES]
        model = {"n_trees": 20, "max_depth": depth, "interaction_size": 3, "calibration": "auto"}
        plan = make_plan("binary", model, {"epsilon": 5.0, "n_records": 2_000}, features)
        data = rare(plan, 500, -2.0, 3)
        found.append(scores(plan, [replace(data, labels=np.abs(data.labels - swaps))], noise))
    assert np.abs(found[0] + found[1]).max() < 20 / 2**16 and np.ptp(found[0]) > 0.1
