"""What a replica says of its result: two parties must notice every number in which their models differ."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from hedgerow.protocol.queries import FittedTrees, TreeBatch
from hedgerow.training.replica import Replica
from hedgerow.training.tasks import TrainingTask
from hedgerow.trees.ensemble import Ensemble


@pytest.fixture
def finished(factory: ModuleType) -> Replica:
    plan = factory.make_plan(model={"n_trees": 6, "batch_size": 3, "max_depth": 2})
    replica = Replica(TrainingTask(plan))
    random = np.random.default_rng(3)
    while replica.query is not None:
        replica.feed(random.integers(-1000, 1000, replica.query.release_length))
    return replica


def _bent(ensemble: Ensemble, part: str) -> Ensemble:
    """The same model with one number changed."""
    fitted, weights = ensemble.fitted, ensemble.leaf_weights
    assert fitted is not None and weights is not None
    trees, values = fitted.trees, fitted.values
    arrays = {
        "feature": trees.feature, "threshold": trees.threshold, "goes_left": trees.goes_left,
        "values": values, "weights": weights,
    }  # fmt: skip
    changed = {name: array.copy() for name, array in arrays.items()}
    last = changed[part].reshape(-1)
    last[-1] = not last[-1] if part == "goes_left" else last[-1] + 1
    batch = TreeBatch(changed["feature"], changed["goes_left"], changed["threshold"])
    return replace(ensemble, fitted=FittedTrees(batch, changed["values"]), leaf_weights=changed["weights"])


@pytest.mark.parametrize("part", ["feature", "threshold", "goes_left", "values", "weights"])
def test_the_digest_of_a_result_tells_every_number_apart(
    finished: Replica, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that rounds one value otherwise must not end a run believing that all have the same model."""
    honest = finished.result_digest()
    assert honest == finished.result_digest()
    monkeypatch.setattr(finished, "_result", _bent(finished.ensemble, part))
    monkeypatch.setattr(finished, "_result_digest", b"")
    assert finished.result_digest() != honest


def test_the_digest_of_a_result_is_of_the_releases_too(factory: ModuleType, finished: Replica) -> None:
    """Two histories may make one model, for values are clipped and rounded; they are not one run."""
    plan = factory.make_plan(model={"n_trees": 6, "batch_size": 3, "max_depth": 2})
    zeros, ones = Replica(TrainingTask(plan)), Replica(TrainingTask(plan))
    for replica, last in ((zeros, 0), (ones, 1)):
        while replica.query is not None:
            release = np.zeros(replica.query.release_length, dtype=np.int64)
            release[-1] = last
            replica.feed(release)
    assert zeros.result_digest() != ones.result_digest() != finished.result_digest()
