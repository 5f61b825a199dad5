"""Presets: every named method is a valid plan, means what its source says, and costs no more than it promises."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from hedgerow.client.node import Node
from hedgerow.errors import UsageError
from hedgerow.local.training import train
from hedgerow.methods.registry import program_for, resolve
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import Query
from hedgerow.server.release import UNCOUNTED, PlainAggregation, run_program
from hedgerow.training.presets import PRESETS, apply_preset, find_preset
from hedgerow.trees.histograms import Histogram, NodeHistograms
from hedgerow.trees.leaf_sums import LeafSums
from tests import builders
from tests.builders import make_data, make_plan
from tests.tiers import all_but

M = 4
"""Features of the test plan."""

# Privacy cost in CCS'22's counts, T = 100, d = 4, s = 5 rounds of iterative Hessians; kind and number of exchanges.
COSTS: dict[str, tuple[int, dict[type[Query], int]]] = {
    "dp-ebm": (100 * M, {LeafSums: 100 * M}),
    "dp-ebm-newton": (100, {LeafSums: 100}),
    "dp-rf": (100, {LeafSums: 1}),
    "dp-gbm": (100 * M * 4, {NodeHistograms: 400}),
    "feverless": (100 * M * 4, {NodeHistograms: 400}),
    "dp-tr-newton": (100, {LeafSums: 100}),
    "ldp": (100, {LeafSums: 100}),
    "dp-tr-newton-ih": (100 + 5 * M, {LeafSums: 100, Histogram: 5}),
    "dp-tr-newton-ih-ebm": (100 + 5 * M, {LeafSums: 100, Histogram: 5}),
    "dp-tr-batch-newton-ih-ebm-p025": (100 + 5 * M, {LeafSums: 4, Histogram: 5}),
    "dp-tr-batch-newton-ih-ebm-p1": (100 + 5 * M, {LeafSums: 1, Histogram: 5}),
}


def test_the_documents_name_every_preset() -> None:
    """Whoever looks for a paper's method finds its name without asking for one that there is not."""
    page = Path(__file__).parents[2] / "docs" / "api.md"
    told = page.read_text(encoding="utf-8").partition("### Presets\n")[2].partition("\n## ")[0]
    rows = "".join(line for line in told.split("\n") if line.startswith("|"))
    assert set(re.findall(r"`([a-z0-9-]+)`", rows)) == set(PRESETS)


ALGORITHM_PRESETS = {
    "s-gbdt": "s-gbdt", "s-gbdt-samples": "s-gbdt", "s-gbdt-linear": "s-gbdt", "dp-xgboost": "dp-xgboost",
    "dp-boost": "dp-xgboost", "adassp": "adassp",
}  # fmt: skip


def asked(name: str) -> tuple[float, dict[type[Query], int], float, float]:
    """Total cost in single queries, exchanges by kind, epsilon spent and promised."""
    plan = apply_preset(PRESETS[name], make_plan())
    settings, queries = resolve(plan), []
    nodes = [Node("one", make_data(plan, 50, 1), plan, settings)]
    outcome = run_program(
        plan, program_for(plan, settings), PlainAggregation(nodes), SeededNoise(1, exact=False), UNCOUNTED,
        lambda query, _: queries.append(query),
    )  # fmt: skip
    kinds: dict[type[Query], int] = {}
    for query in queries:
        kinds[type(query)] = kinds.get(type(query), 0) + 1
    weight = math.fsum((settings.noise_multiplier / query.noise_multiplier) ** 2 for query in queries)
    spent = get_accountant(plan.privacy.accountant).epsilon(outcome.ledger.events(), plan.privacy.delta)
    return weight, kinds, spent, plan.privacy.epsilon


@pytest.mark.parametrize("name", sorted(COSTS))
def test_costs_are_those_of_the_paper(name: str) -> None:
    """kappa_c + kappa_s + kappa_w and the exchanges of each named method; epsilon spent is within the promise."""
    weight, kinds, spent, promised = asked(name)
    assert weight == pytest.approx(COSTS[name][0], rel=1e-6)
    assert kinds == COSTS[name][1]
    assert 0.99 * promised <= spent <= promised


def test_every_preset_says_where_it_comes_from() -> None:
    """All have a source, make a valid plan, and keep the plan's schema, promise and seed."""
    plan = make_plan(model={"structure_seed": 7})
    assert set(COSTS) | set(ALGORITHM_PRESETS) | {"xgboost-like", "hedgerow"} == set(PRESETS)
    for name, preset in PRESETS.items():
        made = apply_preset(preset, plan)
        assert preset.name == name and preset.source and preset.title
        assert made.features == plan.features and made.label == plan.label and made.model.structure_seed == 7
        assert made.privacy.epsilon == (plan.privacy.epsilon if preset.private else math.inf)
    default = apply_preset(PRESETS["hedgerow"], plan).model
    assert (default.n_trees, default.interaction, default.split_method) == ("auto", "auto", "totally_random")


@pytest.mark.parametrize("name", all_but(["s-gbdt-samples"], sorted(ALGORITHM_PRESETS)))
def test_other_papers_methods_run(name: str) -> None:
    """Each replaces any other algorithm's sections, trains over two sites, and keeps the plan's promise by its own
    kind of account: delta is 0 where releases are pure."""
    before = apply_preset(PRESETS["s-gbdt-linear"], make_plan(privacy={"epsilon": 1.0}))
    plan = apply_preset(PRESETS[name], before)
    assert plan.model.algorithm == ALGORITHM_PRESETS[name]
    sections = {"s_gbdt", "dp_xgboost", "adassp"} & set(plan.to_dict())
    assert sections == {PRESETS[name].section_name}
    sites = {site: make_data(plan, 40, seed) for seed, site in enumerate("ab")}
    model = train(plan, sites, noise=SeededNoise(1, exact=False))
    assert 0.97 < model.report.epsilon <= 1.0
    assert (plan.privacy.accountant == "pure") == (plan.model.algorithm == "dp-xgboost")
    assert model.ensemble.n_trees > 0


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_draft_names_the_accountant_that_counts_its_method_best(name: str) -> None:
    """Samples without a filter that can act are drafted with "pld", in the plan itself; nothing else is."""
    plan = apply_preset(PRESETS[name], make_plan(model={"structure_seed": 7}))
    section = plan.to_dict().get("s_gbdt", {"subsampling_ratio": 1.0})
    has_free_samples = section["subsampling_ratio"] < 1 and not section["extra_rounds"]
    expected = "pld" if has_free_samples else PRESETS[name].accountant
    assert plan.privacy.accountant == expected
    assert (expected == "pld") == (name == "s-gbdt-samples")


def test_the_reference_without_privacy_says_so() -> None:
    """It adds no noise, and its report does not claim a guarantee."""
    plan = apply_preset(PRESETS["xgboost-like"], make_plan())
    report = builders.train(plan, [make_data(plan, 40, 0)]).report
    assert report.epsilon == math.inf


def test_an_unknown_name_is_refused() -> None:
    """With the names that there are."""
    with pytest.raises(UsageError, match="dp-tr") as caught:
        find_preset("dp-tr")
    assert "dp-tr-newton" in str(caught.value.remedy)
