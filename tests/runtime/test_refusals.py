"""What a node refuses, each by its code: to its owner in words, to the coordinator as the code alone."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hedgerow.client.budget import BudgetBook
from hedgerow.client.policy import Policy, parse_policy
from hedgerow.crypto import Identity
from hedgerow.errors import AggregationError, EnvironmentFault, PolicyRefusal, UsageError
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.rounds import choose_wishes
from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.messages import Roster, Site
from tests.builders import coded, make_plan

if TYPE_CHECKING:
    from conftest import Builder, Federation

POLICY = Policy(version=1, data_set="test", max_epsilon=100.0, delta=1e-5, noise=("server", "distributed"))


def with_policy(federate: Builder, plan: Plan | None = None, **rules: Any) -> Federation:
    """Five sites, the first of which has stricter rules."""
    strict = dataclasses.replace(POLICY, **rules)
    return federate(5, plan, policies={"site-0": strict})


def refused(federation: Federation, code: str) -> None:
    """The strict site has refused by this code, its owner and the coordinator know, and the others went on."""
    victim = federation.parties["site-0"]
    assert [fault.code for fault in victim.failures] == [code]
    assert victim.failures[0].cause and victim.failures[0].remedy
    assert [(e.site, e.code) for e in federation.events if e.kind == "refused"] == [("site-0", code)]
    assert all(party.is_done for site, party in federation.parties.items() if site != "site-0")
    assert all("site-0" not in survivors for survivors in federation.session.run.survivors)


PLANS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "policy-over-budget": ({}, {"max_epsilon": 1.5}),
    "policy-feature": ({}, {"features": ("age", "region", "change")}),
    "policy-label": ({}, {"labels": ("z",)}),
    "policy-query-kind": ({}, {"query_kinds": ("Histogram",)}),
    "policy-noise": ({}, {"noise": ("distributed",)}),
    "policy-unit": ({}, {"unit": "patient"}),
    "policy-unnoised": ({"privacy": {"epsilon": math.inf}}, {}),
    "parameters-refused": ({}, {"min_colluders": 3}),
}


@pytest.mark.parametrize("code", sorted(PLANS))
def test_a_policy_refuses_a_plan_by_its_code(federate: Builder, code: str) -> None:
    """A node's owner has the last word, and one strict site does not stop the others."""
    changes, rules = PLANS[code]
    others = {"max_epsilon": math.inf} if code == "policy-unnoised" else {}
    policies = {f"site-{i}": dataclasses.replace(POLICY, **others) for i in range(1, 5)}
    policies["site-0"] = dataclasses.replace(POLICY, **rules)
    federation = federate(5, make_plan(**changes), policies=policies)
    federation.run()
    refused(federation, code)


@pytest.mark.parametrize("lacking", ["GramMatrix", "CrossProducts", "SampledLeafSums"])
def test_a_policy_lists_the_kinds_of_a_linear_start_as_well(federate: Builder, lacking: str) -> None:
    """Who allows the sums of S-GBDT's trees has not allowed products of features: a run that would ask for a kind that
    is not listed, were it in its last round, is refused before it costs anything. A site that lists all takes part."""
    own = {"initial_score": "linear", "subsampling_ratio": 1}
    plan = make_plan(model={"algorithm": "s-gbdt", "n_trees": 2, "max_depth": 2}, s_gbdt=own)
    kinds = {"GramMatrix", "CrossProducts", "SampledLeafSums"}
    allowed = {"site-0": kinds - {lacking}, "site-1": kinds}
    policies = {site: dataclasses.replace(POLICY, query_kinds=tuple(sorted(own))) for site, own in allowed.items()}
    federation = federate(5, plan, policies=policies)
    federation.run()
    assert [(fault.code, lacking in str(fault)) for fault in federation.parties["site-0"].failures] == [
        ("policy-query-kind", True)
    ]
    assert [(e.site, e.code) for e in federation.events if e.kind == "refused"] == [("site-0", "policy-query-kind")]
    book = BudgetBook(federation.parties["site-0"].folder / "budget.db")
    assert book.lines() == []
    book.close()
    taking_part = federation.session.run.survivors
    assert not any("site-0" in sites for sites in taking_part)
    assert len(taking_part) == 7 and all("site-1" in sites for sites in taking_part)


def test_a_plan_that_would_fill_the_memory_is_refused_before_it_begins() -> None:
    """A coordinator may stop a run, but not a node's machine: the trees of this plan's one batch take gigabytes."""
    plan = make_plan(model={"n_trees": 100_000, "max_depth": 8, "batch_size": "all"})
    coordinator, *keys = (Identity(bytes([number]) * 32).public for number in range(4))
    roster = Roster(coordinator, tuple(Site(f"site-{number}", key) for number, key in enumerate(keys)))
    with pytest.raises(PolicyRefusal) as caught:
        POLICY.check_task(TrainingTask(plan), roster)
    assert caught.value.code == "plan-too-large"
    largest = make_plan(model={"n_trees": 8192, "max_depth": 8, "batch_size": "all"})
    POLICY.check_task(TrainingTask(largest), roster)


def test_a_small_cohort_is_refused(federate: Builder) -> None:
    """A sum over few sites says much about each of them: neither the roster nor the epoch may be smaller."""
    federation = with_policy(federate, min_sites=6)
    federation.run()
    refused(federation, "policy-small-cohort")
    federation = federate(5, policies={"site-0": dataclasses.replace(POLICY, min_sites=5)}, name="later")
    federation.parties["site-4"].kill()
    federation.run()
    # One site never came: the roster has five, the epoch four.
    refused_codes = [event.code for event in federation.events if event.kind == "refused"]
    assert refused_codes == ["cohort-too-small"]


def test_an_unknown_coordinator_is_refused(federate: Builder) -> None:
    """A roster may be exchanged; the policy pins the coordinator's key as well."""
    federation = with_policy(federate, coordinators=("00" * 32,))
    federation.run()
    refused(federation, "policy-coordinator")


def test_a_plan_that_was_changed_is_refused(federate: Builder) -> None:
    """A node that holds the plan takes part in no other one."""
    federation = federate(5)
    victim = federation.parties["site-0"]
    victim.kill()
    victim.setup = dataclasses.replace(victim.setup, plan=make_plan(privacy={"epsilon": 1.9}))
    victim.start()
    federation.run()
    refused(federation, "plan-changed")


@pytest.mark.parametrize(
    "text",
    [
        "", "version = 1", "= 3", 'version = 1\ndata_set = "a"\nmax_epsilon = -1\ndelta = 1e-6',
        'version = 1\ndata_set = "a"\nmax_epsilon = 1\ndelta = 1e-6\nmax_epsilom = 2',
        'version = 2\ndata_set = "a"\nmax_epsilon = 1\ndelta = 1e-6',
    ],
)  # fmt: skip
def test_a_policy_file_that_is_wrong_is_refused(text: str) -> None:
    """A misspelled rule would be a rule that does not hold."""
    with pytest.raises(UsageError) as caught:
        parse_policy(text)
    assert caught.value.code == "policy-file"


def test_a_policy_names_all_lines_that_it_lacks() -> None:
    """Its writer needs one look and not one for each line; of the version only this program knows the number."""
    with pytest.raises(UsageError) as lacks:
        parse_policy("version = 1")
    named = [name for name in ("data_set", "max_epsilon", "delta", "version") if name in lacks.value.what]
    assert named == ["data_set", "max_epsilon", "delta"]
    with pytest.raises(UsageError) as caught:
        parse_policy('data_set = "a"')
    assert "version = 1" in caught.value.remedy


def test_a_policy_file_is_read_as_it_is_written() -> None:
    """The example in the documents is a policy, with each line that it comments out; fields.md has all lines."""
    page = (Path(__file__).parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")
    (example,) = (block for block in re.findall(r"```toml\n(.*?)```", page, re.S) if "data_set = " in block)
    lines = re.sub(r"(?m)^# (?=\w+ = )", "", example)
    read = parse_policy(lines)
    assert read.min_sites == 3 and read.noise == ("distributed", "server") and read.surveys
    assert set(tomllib.loads(lines)) <= {field.name for field in dataclasses.fields(read)}


def test_without_a_word_about_it_a_policy_withstands_a_colluding_site(federate: Builder) -> None:
    """A default must not trust every other site: three and four sites, too, are summed so that one may collude."""
    assert POLICY.min_colluders == 1
    for n_sites in (3, 4):
        federation = federate(n_sites, name=f"of-{n_sites}")
        federation.run()
        guarantees = federation.session.run.view.guarantees
        assert guarantees.n_colluders >= 1 and guarantees.honest_group >= 2 and guarantees.min_survivors >= 3


@pytest.mark.parametrize("weaker", [{"min_survivors": 3}, {"has_echo": False}])
def test_an_epoch_with_less_than_the_plan_asks_for_is_refused(
    federate: Builder, monkeypatch: pytest.MonkeyPatch, weaker: dict[str, Any]
) -> None:
    """All parties have agreed on the plan: no coordinator opens a sum over fewer sites, or shows each site another list
    of survivors, because a policy would allow it.
    """
    table = make_plan().to_dict()
    plan = Plan.from_dict({**table, "federation": {**table["federation"], "min_sites": 4, "echo": True}})

    def with_less(plan: Plan, sizes: Collection[int]) -> Wishes:
        return dataclasses.replace(choose_wishes(plan, sizes), **weaker)

    monkeypatch.setattr("hedgerow.server.coordinator.choose_wishes", with_less)
    federation = federate(5, plan)
    with pytest.raises(AggregationError):
        federation.run()
    assert {fault.code for party in federation.parties.values() for fault in party.failures} == {"parameters-refused"}
    assert not federation.uploads


def test_a_sites_own_sum_beyond_the_bound_is_no_refusal(federate: Builder) -> None:
    """Whether one site has more rows than the whole plan declares depends on one record; it must not be told."""
    federation = federate(4, make_plan(privacy={"n_records": 2000, "epsilon": 50.0}))
    too_few = dataclasses.replace(federation.plan, privacy=dataclasses.replace(federation.plan.privacy, n_records=1))
    for party in federation.parties.values():
        party.kill()
        party.setup = dataclasses.replace(party.setup, plan=too_few)
        party.start()
    with contextlib.suppress(AggregationError):
        federation.run(plan=too_few)
    assert federation.uploads and not federation.codes("refused")


@pytest.mark.slow
def test_a_node_without_the_extra_that_a_plan_needs_refuses_before_it_costs_anything(
    federate: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No party counts by another accountant than the plan's because of what is installed: it says what to install."""
    from hedgerow.client import node_session

    own = {"individual_filter": False, "subsampling_ratio": 0.2}
    model = {"algorithm": "s-gbdt", "n_trees": 1, "max_depth": 2}
    federation = federate(4, make_plan(model=model, privacy={"accountant": "pld"}, s_gbdt=own))
    real = node_session.join

    def join_without_extra(files: Any, setup: Any, *arguments: Any) -> Any:
        if setup.site != "site-0":
            return real(files, setup, *arguments)
        with pytest.MonkeyPatch.context() as patch:
            for module in ("dp_accounting", "dp_accounting.pld"):
                patch.setitem(sys.modules, module, None)
            return real(files, setup, *arguments)

    monkeypatch.setattr(node_session, "join", join_without_extra)
    federation.run()
    refused(federation, "missing-extra")
    assert "[pld]" in federation.parties["site-0"].failures[0].remedy
    book = BudgetBook(federation.parties["site-0"].folder / "budget.db")
    assert book.lines() == []
    book.close()


def test_a_coordinator_without_the_extra_invites_nobody(federate: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with the name of the extra, and no site has reserved anything."""
    federation = federate(4, make_plan(model={"n_trees": 2}, privacy={"accountant": "pld"}))
    for module in ("dp_accounting", "dp_accounting.pld"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EnvironmentFault, check=coded("missing-extra")):
        federation.run()
    for party in federation.parties.values():
        book = BudgetBook(party.folder / "budget.db")
        assert book.lines() == []
        book.close()
