"""Every named method of boosting over every engine: the same model file, to the byte, in process and over real sockets.

Presets of other algorithms have other fields, and some draw samples: tests/runtime/test_algorithms.py runs those.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from experiments.federation import Loopback
from hedgerow.local.training import MaskedAggregation, build_aggregation, train
from hedgerow.methods.registry import resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.training.presets import PRESETS, apply_preset
from tests.builders import FEATURES, make_data, make_plan, take
from tests.tiers import all_but


@pytest.fixture(scope="module")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Loopback:
    """Three sites with keys of their own."""
    return Loopback(3, tmp_path_factory.mktemp("loopback"))


def tiny(name: str) -> Plan:
    """The preset with few and shallow trees: at least two rounds of boosting, in batches where it has any."""
    plan = apply_preset(PRESETS[name], make_plan(privacy={"n_records": 60}))
    batch = plan.model.batch_size
    changes = {"n_trees": 4, "max_depth": 2, "candidate_rounds": 2, "n_candidates": 8}
    model = dataclasses.replace(plan.model, **changes, batch_size=min(batch, 2) if isinstance(batch, int) else batch)
    return Plan.from_dict(dataclasses.replace(plan, model=model).to_dict())


BOOSTED = {name for name, preset in PRESETS.items() if "algorithm" not in preset.model}
SLOWER = BOOSTED - {"hedgerow", "ldp", "xgboost-like"}
"""All but smoothed trees, noise of the records, and splits that are paid for."""


@pytest.mark.parametrize("name", all_but(SLOWER, sorted(BOOSTED)))
def test_masked_in_process_and_over_grpc(loopback: Loopback, name: str) -> None:
    """`local` with secure aggregation and `grpc` make the same bytes, noise of nodes and coordinator included."""
    plan = tiny(name)
    assert plan.federation.secure_aggregation
    rows = make_data(plan, 60, 7)
    data = {site: take(rows, np.arange(i, 60, 3)) for i, site in enumerate(loopback.names)}
    noise = SeededNoise(3)
    local = train(plan, data, noise=noise)
    found = loopback.run(plan, data, noise)
    assert found.model == local.to_bytes()
    # The default of two classes ends with a release more, which adds a tree of one value.
    assert local.ensemble.n_trees == 4 + (name == "hedgerow")
    assert found.n_rounds == len(local.ledger) == resolve(plan).schedule(plan).n_rounds


@pytest.mark.slow
@pytest.mark.parametrize("label", ["binary", "regression", "survival"])
def test_what_is_known_is_kept_alike_over_engines(loopback: Loopback, label: str) -> None:
    """Every party projects the values by itself: one other bit, and the nodes would sum by other scores."""
    features = [{**FEATURES[0], "monotone": "increasing"}, *FEATURES[1:3]]
    features += [{**FEATURES[3], "monotone": "decreasing"}]
    model = {"n_trees": 12, "max_depth": 3, "interaction_constraints": [["age", "income"], ["income", "change"]]}
    plan = make_plan(label, model, {"n_records": 60}, features)
    rows = make_data(plan, 60, 7)
    data = {site: take(rows, np.arange(i, 60, 3)) for i, site in enumerate(loopback.names)}
    noise = SeededNoise(3)
    local = train(plan, data, noise=noise)
    assert loopback.run(plan, data, noise).model == local.to_bytes()


def test_residuals_of_counts_far_below_their_bound_are_doubled_alike(loopback: Loopback) -> None:
    """Of every party alone: how far is read off the first release, and the last one mends what all have made."""
    table = make_plan("count", {"n_trees": 4, "max_depth": 2}, {"n_records": 300, "epsilon": 8.0}).to_dict()
    table["label"]["max"], table["model"]["interaction"] = 200, "adaptive"
    plan = Plan.from_dict(table)
    rows = make_data(plan, 300, 7)
    counts = np.random.default_rng(7).poisson(2.0 * (1 + rows.codes[0] % 3))
    rows = dataclasses.replace(rows, labels=plan.label.kind.encode(counts, plan.label))
    data = {site: take(rows, np.arange(i, 300, 3)) for i, site in enumerate(loopback.names)}
    noise = SeededNoise(3)
    local = train(plan, data, noise=noise)
    assert [release.kind for release in local.ledger][::5] == ["CountOctaves", "ScoreBins"]
    assert loopback.run(plan, data, noise).model == local.to_bytes()


def test_three_sites_are_summed_under_masks(loopback: Loopback) -> None:
    """The comparison above would say little if the engine `local` added sums up in the clear."""

    class Silent:
        def __init__(self, site: str) -> None:
            self.site = site

    nodes = [Silent(site) for site in loopback.names]
    assert isinstance(build_aggregation(tiny("ldp"), nodes, 4, SeededNoise(1)), MaskedAggregation)  # type: ignore[arg-type]


def test_every_byte_of_a_run_is_counted(loopback: Loopback, tmp_path: Path) -> None:
    """At the hub: at least what the masked vectors alone weigh, and not so much more that something else is counted."""
    plan = tiny("dp-tr-newton")
    rows = make_data(plan, 60, 7)
    data = {site: take(rows, np.arange(i, 60, 3)) for i, site in enumerate(loopback.names)}
    found = loopback.run(plan, data, SeededNoise(3))
    numbers = sum(release.length for release in train(plan, data, noise=SeededNoise(3)).ledger)
    assert found.n_exchanges == 2 * found.n_rounds
    received = found.rounds.received / len(loopback.names)
    assert 4 * numbers < received < 4 * numbers + 5000 * found.n_exchanges
    assert found.set_up.received > 0 and found.cpu_node > 0 and found.cpu_coordinator > 0
