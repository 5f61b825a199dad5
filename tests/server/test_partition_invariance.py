"""The same rows give the same model, byte for byte, whoever holds them: one site, three, or fifty."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.data.binned import SiteData
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.release import Outcome
from tests.builders import make_data, make_plan, plans, take, train


def model_bytes(outcome: Outcome) -> tuple[bytes, ...]:
    """Everything that was learned: structures, values, what was released for them."""
    fitted = outcome.ensemble.fitted
    assert fitted is not None
    arrays = (fitted.trees.feature, fitted.trees.goes_left, fitted.trees.threshold, fitted.values)
    return (*(array.tobytes() for array in arrays), outcome.ledger.to_json().encode())


def divided(data: SiteData, n_sites: int, random: np.random.Generator) -> list[SiteData]:
    """The rows in random order over sites of random sizes; some sites may be empty."""
    owner = random.integers(0, n_sites, data.n_records)
    order = random.permutation(data.n_records)
    return [take(data, order[owner[order] == site]) for site in range(n_sites)]


def check(plan: Plan, n_records: int, seed: int) -> None:
    data = make_data(plan, n_records, seed)
    random = np.random.default_rng(seed)
    noise = SeededNoise(seed, exact=False)
    alone = model_bytes(train(plan, [data], noise))
    for n_sites in (3, 50):
        assert model_bytes(train(plan, divided(data, n_sites, random), noise)) == alone


@settings(max_examples=30)
@given(data=st.data(), n_records=st.sampled_from([0, 1, 40, 300]), seed=st.integers(0, 10**6))
def test_any_plan_over_any_sites(data: st.DataObject, n_records: int, seed: int) -> None:
    """Plans of every kind, rows in any order, also over sites that hold nothing."""
    check(data.draw(plans()), n_records, seed)


@pytest.mark.parametrize("label", ["binary", "multiclass", "regression", "count", "survival"])
@pytest.mark.parametrize("update", ["newton", "gradient", "averaging"])
@pytest.mark.parametrize("candidates", ["adaptive", "uniform", "log", "iterative_hessian"])
def test_every_method_over_any_sites(label: str, update: str, candidates: str) -> None:
    """Each combination at least once, whatever hypothesis happens to draw; batches, turns and sizes take turns."""
    kinds = ["cyclical", "random", "adaptive"]
    number = len(label) + 3 * len(update) + 5 * len(candidates)
    model = {
        "weight_update": update,
        "split_candidates": candidates,
        "interaction": kinds[number % 3],
        "interaction_size": [1, 2, "all"][number // 3 % 3],
        "batch_size": [1, 2, "all"][number // 2 % 3],
        "n_trees": 6,
        "max_depth": 3,
    }
    check(make_plan(label, model), 200, number)


def test_blocks_of_the_kernels_do_not_show() -> None:
    """More rows than fit one block of the kernels, so that sites cut them at other places."""
    plan = make_plan(model={"n_trees": 8, "interaction_size": 2}, privacy={"n_records": 9000})
    check(plan, 9001, 3)


def test_the_exact_sampler_is_as_good() -> None:
    """The sampler that real runs use, driven by a seed, depends on purpose and length alone as well."""
    plan = make_plan()
    data = make_data(plan, 100, 1)
    runs = [train(plan, sites, SeededNoise(7)) for sites in ([data], divided(data, 5, np.random.default_rng(0)))]
    assert model_bytes(runs[0]) == model_bytes(runs[1])


def test_other_rows_or_other_noise_show() -> None:
    """The comparison can fail: one record more, or another seed, and the model is another."""
    plan = make_plan()
    data = make_data(plan, 100, 1)
    fewer = take(data, np.arange(99))
    runs = [model_bytes(train(plan, [rows], SeededNoise(seed))) for rows, seed in ((data, 7), (fewer, 7), (data, 8))]
    assert len(set(runs)) == 3
