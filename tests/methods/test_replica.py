"""What a replica says of its result: two parties must notice every number in which their models differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import FittedTrees, TreeBatch
from hedgerow.trees.ensemble import Ensemble
from tests.builders import make_plan


@pytest.fixture
def finished() -> Replica:
    plan = make_plan(model={"n_trees": 6, "batch_size": 3, "max_depth": 2})
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


@pytest.mark.parametrize("part", ["edges", "baseline", "stretch"])
def test_the_digest_of_a_result_is_of_what_its_trees_mean_too(
    finished: Replica, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same trees over other edges, or with another baseline of times to an event, are another model."""
    model, honest = finished.ensemble, finished.result_digest()
    feature = model.grid.divisible[0]
    cells = model.grid.features[feature]
    edges = np.sort(np.append(cells.edges[1:], cells.inner_edges[0, 0]))
    other = {
        "edges": replace(model, grid=model.grid.cut_again({feature: edges})),
        "baseline": replace(model, baseline=(1, 2)),
        "stretch": replace(model, stretch=1.5),
    }
    monkeypatch.setattr(finished, "_result", other[part])
    monkeypatch.setattr(finished, "_result_digest", b"")
    assert finished.result_digest() != honest


def test_the_digest_of_a_result_is_of_the_releases_too(finished: Replica) -> None:
    """Two histories may make one model, for values are clipped and rounded; they are not one run."""
    plan = make_plan(model={"n_trees": 6, "batch_size": 3, "max_depth": 2})
    zeros, ones = Replica(TrainingTask(plan)), Replica(TrainingTask(plan))
    for replica, last in ((zeros, 0), (ones, 1)):
        while replica.query is not None:
            release = np.zeros(replica.query.release_length, dtype=np.int64)
            release[-1] = last
            replica.feed(release)
    assert zeros.result_digest() != ones.result_digest() != finished.result_digest()


ENDED = {
    "totally random": ({"n_trees": 4, "max_depth": 2}, {}, {0: 0, 1: 1, 3: 3}),
    "batches": ({"n_trees": 6, "batch_size": 3}, {}, {0: 0, 1: 3}),
    "paid candidates": ({"n_trees": 4, "split_candidates": "iterative_hessian", "candidate_rounds": 2, "batch_size": 4},
                        {}, {1: 0}),
    "averaged": ({"n_trees": 4, "weight_update": "averaging"}, {}, {0: 0}),
    "greedy": ({"n_trees": 3, "max_depth": 2, "split_method": "hist", "interaction_size": 2},
               {}, {1: 0, 2: 1, 3: 1, 5: 2}),
    "adassp": ({"algorithm": "adassp"}, {"adassp": {"rounds": 3}}, {0: 0, 1: 0, 2: 4, 3: 4}),
    "dp-xgboost": ({"algorithm": "dp-xgboost", "n_trees": 3, "max_depth": 2}, {"dp_xgboost": {"sketch_rounds": 1}},
                   {1: 0, 3: 0, 4: 1, 6: 1, 7: 2}),
    "s-gbdt": ({"algorithm": "s-gbdt", "n_trees": 3}, {}, {0: 0, 1: 0, 2: 2, 3: 3}),
    "s-gbdt, linear start": ({"algorithm": "s-gbdt", "n_trees": 3}, {"s_gbdt": {"initial_score": "linear"}},
                             {2: 0, 4: 0, 5: 4, 6: 5}),
}  # fmt: skip
"""Of a plan: its model, other sections, and after so many releases so many trees."""


def _ended(plan: Plan, n_releases: int) -> tuple[Replica, bool]:
    """A replica that was ended after so many releases, and whether there is a model; the releases are the same."""
    replica, random = Replica(TrainingTask(plan)), np.random.default_rng(4)
    for _ in range(n_releases):
        assert replica.query is not None
        replica.feed(random.integers(-1000, 1000, replica.query.release_length))
    return replica, replica.end_early()


@pytest.mark.parametrize("name", ENDED)
def test_a_program_that_is_ended_early_gives_the_trees_whose_releases_are_there(name: str) -> None:
    """What was paid for is not lost: all parties make the same model of the releases so far, and of no others."""
    model, sections, expected = ENDED[name]
    plan = Plan.from_dict({**make_plan().to_dict(), "model": model, **sections})
    for n_releases, n_trees in expected.items():
        replica, has_model = _ended(plan, n_releases)
        assert (replica.ensemble.n_trees, has_model) == (n_trees, n_trees > 0), n_releases
        assert replica.query is None and not replica.end_early()
        if has_model:
            again, _ = _ended(plan, n_releases)
            assert again.result_digest() == replica.result_digest()
