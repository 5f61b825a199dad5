"""One site measures a model by itself, whoever added the noise of the training."""

from __future__ import annotations

import pytest

from hedgerow.local.training import evaluate_federated, recalibrate_model, train
from hedgerow.privacy.noise import SeededNoise
from tests.builders import make_data, make_plan


@pytest.mark.parametrize("noise", ["server", "distributed"])
def test_one_site_measures_and_recalibrates_a_model_of_any_noise(noise: str) -> None:
    """The site adds this noise alone, and the model's account keeps the training's releases as they are."""
    plan = make_plan(model={"n_trees": 2}, privacy={"noise": noise})
    sites = {f"site-{number}": make_data(plan, 60, number) for number in range(3)}
    model = train(plan, sites, noise=SeededNoise(1))
    one = {"site": sites["site-0"]}
    found = evaluate_federated(model, one, epsilon=1.0, noise=SeededNoise(2), is_one_site=True).model
    changed, _, _ = recalibrate_model(found, one["site"], epsilon=1.0, noise=SeededNoise(3))
    assert changed.report.noise_mode == noise
    assert changed.ledger.releases[: len(model.ledger)] == model.ledger.releases
    assert changed.report.epsilon > found.report.epsilon > model.report.epsilon
