"""A federated evaluation over an engine: the local engine's numbers, its cost in every account, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hedgerow.client.policy import Policy
from hedgerow.errors import AggregationError, UsageError
from hedgerow.local.training import evaluate_federated
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import EvaluationTask, TrainingTask, ensemble_bytes, task_from_text, task_to_text
from hedgerow.models.model import Model
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.noise import SeededNoise, SystemNoise
from hedgerow.protocol.messages import (
    Done,
    EvaluationInvitation,
    Finished,
    Message,
    MessageKind,
    RoundRequest,
    Welcome,
    decode,
    encode,
)
from hedgerow.server.coordinator import invitation_to
from hedgerow.server.release import Outcome
from tests.builders import make_plan, take, train
from tests.memory_network import Direction, Fate, Passing, telling
from tests.tiers import every

if TYPE_CHECKING:
    from conftest import Builder, Federation

EPSILON = 5.0
EITHER = ("server", "distributed")
POLICY = Policy(
    version=1, data_set="test", max_epsilon=100.0, delta=1e-5, noise=EITHER, evaluation_noise=EITHER
)  # fmt: skip


@pytest.fixture
def federate(federate: Builder) -> Builder:
    """Federations whose model is a single tree, unless a plan is given."""

    def build(n_sites: int, plan: Any = None, **more: Any) -> Federation:
        return federate(n_sites, plan or make_plan(model={"n_trees": 1}), **more)

    return build


def trained(federation: Federation) -> Model:
    """The model that the federation makes; its nodes know it afterwards."""
    outcome = federation.run()
    return Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report)


def evaluated(
    federation: Federation, model: Model, epsilon: float = EPSILON, by: tuple[str, ...] = (), **run: Any
) -> Outcome:
    """One evaluation over the engine."""
    federation.prepare_evaluation(model, epsilon, by=by)
    return federation.run(**run)


def numbers(outcome: Outcome) -> str:
    """All that was found and what it cost, as text: NaN is not equal to itself."""
    assert outcome.evaluation is not None and outcome.cost is not None
    return json.dumps([outcome.evaluation.to_dict(), outcome.cost.to_dict()])


def local_numbers(
    federation: Federation, model: Model, *sites: str, by: tuple[str, ...] = ()
) -> tuple[str, bytes]:
    """The local engine's numbers over some sites or all, and the model with them on its account."""
    held_out = {site: federation.held_out[site] for site in sites or federation.held_out}
    found = evaluate_federated(model, held_out, epsilon=EPSILON, noise=SeededNoise(1), by=by)
    return json.dumps([found.evaluation.to_dict(), found.cost.to_dict()]), found.model.to_bytes()


@pytest.mark.parametrize("label", ["binary", "multiclass", "regression", "count", "survival"])
def test_an_evaluation_is_the_local_engines(federate: Builder, label: str) -> None:
    """Same numbers, same cost, and the same model file with both on its account, to the byte; nodes see the same."""
    federation = federate(4, make_plan(label, privacy={"n_records": 2000}))
    model = trained(federation)
    # By what groups is a part of the invitation.
    by = ("region",) if label in ("binary", "count") else ()
    outcome = evaluated(federation, model, by=by)
    expected, expected_file = local_numbers(federation, model, by=by)
    assert numbers(outcome) == expected
    assert federation.model_bytes(outcome) == expected_file
    for party in federation.parties.values():
        assert party.session is not None and party.is_done and not party.failures
        assert json.dumps(party.session.result.to_dict()) == json.dumps(outcome.evaluation.to_dict())


def test_the_sites_can_add_the_noise_of_an_evaluation(federate: Builder) -> None:
    """With distributed noise the evaluation keeps what it was given, by the shares that are guaranteed."""
    plan = make_plan(privacy={"noise": "distributed", "n_records": 2000})
    federation = federate(5, plan, noise=SystemNoise(os.urandom))
    outcome = evaluated(federation, trained(federation))
    assert outcome.cost.epsilon <= EPSILON and outcome.cost.cohorts and outcome.report.guarantee == "holds"


@pytest.mark.parametrize("of_training", [False, True])
def test_a_seed_before_a_restart_is_not_forgotten(
    federate: Builder, killed: type[BaseException], of_training: bool
) -> None:
    """A run that began with seeded noise and was taken up with real noise has releases that a seed undoes."""
    federation = federate(4, make_plan(model={"n_trees": 3, "batch_size": 1}), noise=SeededNoise(1))
    if not of_training:
        federation.noise = SystemNoise(os.urandom)
        model = trained(federation)
        federation.prepare_evaluation(model, EPSILON)
        federation.noise = SeededNoise(1)
    with pytest.raises(killed):
        federation.run(kill_after=6)
    federation.noise = SystemNoise(os.urandom)
    outcome = federation.run()
    assert outcome.report.seeded and outcome.report.guarantee == "void"
    assert {release.seeded for release in outcome.ledger} == {True, False}


@pytest.mark.parametrize(
    ("accountant", "algorithm"),
    [("pure", "dp-xgboost"), ("gdp", "dp-xgboost"), ("rdp", "boosting")],
)
def test_every_account_of_an_evaluation_over_the_network_is_the_ledgers(
    federate: Builder, accountant: str, algorithm: str
) -> None:
    """Also under an accountant that cannot hold an evaluation's noise: a bound that can is said, and its name."""
    model = {"n_trees": 1, "algorithm": algorithm}
    plan = make_plan(model=model, privacy={"accountant": accountant, "n_records": 2000})
    federation = federate(4, plan)
    first = trained(federation)
    for _ in range(2):
        outcome = evaluated(federation, first)
        assert outcome.report.epsilon_gdp == get_accountant("gdp").epsilon(outcome.ledger.events(), plan.privacy.delta)
        assert outcome.report.epsilon_rdp == get_accountant("rdp").epsilon(outcome.ledger.events(), plan.privacy.delta)
        named = "gdp" if accountant == "pure" else accountant
        assert outcome.report.accounted_by == named and outcome.cost.accounted_by == named
        expected = get_accountant(named).epsilon(outcome.ledger.events(), plan.privacy.delta)
        assert outcome.report.epsilon == expected > first.report.epsilon
        for party in federation.parties.values():
            book = get_accountant("gdp").epsilon(outcome.ledger.events(), 1e-5)
            assert party.book.spent("test", 1e-5) == pytest.approx(book, rel=1e-6)
        first = Model(plan, outcome.ensemble, outcome.ledger, outcome.report)


@pytest.mark.parametrize("by", [(), ("site",)])
def test_an_evaluation_is_charged_to_every_account(federate: Builder, by: tuple[str, ...]) -> None:
    """The model's ledger, its report and each site's budget book hold the evaluation beside the training.

    So do those of sites that have no figures of their own.
    """
    federation = federate(4, policies={"site-0": dataclasses.replace(POLICY, site_figures=True)})
    model = trained(federation)
    outcome = evaluated(federation, model, by=by)
    assert len(outcome.ledger) == len({r.purpose for r in outcome.ledger}) == len(model.ledger) + 2 + len(by)
    assert outcome.report.epsilon > max(model.report.epsilon, outcome.cost.epsilon)
    for party in federation.parties.values():
        lines = party.book.lines("test")
        assert [line.status for line in lines] == ["finished", "finished"]
        assert lines[1].epsilon(1e-5) == pytest.approx(outcome.cost.epsilon, rel=1e-6)
        assert party.book.spent("test", 1e-5) == pytest.approx(outcome.report.epsilon_gdp, rel=0.01)


def test_a_second_evaluation_is_charged_anew_and_at_last_refused(federate: Builder) -> None:
    """Whoever asks again gets other noise, so each time costs; the budget ends it."""
    federation = federate(3, policies={f"site-{i}": dataclasses.replace(POLICY, max_epsilon=9.0) for i in range(3)})
    model = trained(federation)
    spent = []
    for _ in range(2):
        outcome = evaluated(federation, model)
        model = Model(model.plan, outcome.ensemble, outcome.ledger, outcome.report)
        spent.append(federation.parties["site-0"].book.spent("test", 1e-5))
    assert spent[0] < spent[1] <= 9.0
    with pytest.raises(AggregationError):
        evaluated(federation, model)
    codes = [fault.code for party in federation.parties.values() for fault in party.failures]
    assert codes == ["policy-over-budget"] * 3


@pytest.mark.slow
def test_a_coordinator_killed_after_every_write_ends_in_the_same_evaluation(
    federate: Builder, killed: type[BaseException]
) -> None:
    """A crash draws no noise twice: after any write of the journal, the numbers are those of an undisturbed run."""
    whole = federate(4, name="whole")
    expected = numbers(evaluated(whole, trained(whole)))
    for kill_after in range(1, 100):
        federation = federate(4, name=f"killed-{kill_after}")
        model = trained(federation)
        was_killed = False
        try:
            evaluated(federation, model, kill_after=kill_after)
        except killed:
            was_killed = True
        assert numbers(federation.run()) == expected
        assert all(party.is_done for party in federation.parties.values())
        federation.close()
        if not was_killed:
            assert kill_after > 6
            return
    raise AssertionError("the evaluation never ended")


@pytest.mark.parametrize("number", every(3, range(1, 12)))
def test_a_node_killed_at_any_message_takes_part_again(federate: Builder, number: int) -> None:
    """A node that missed the round in which the trees came takes them in before the next one."""
    federation = federate(4)
    model = trained(federation)
    federation.prepare_evaluation(model, EPSILON)
    victim = federation.parties["site-1"]
    victim.after(number, victim.restart)
    outcome = federation.run()
    assert not victim.failures and victim.is_done
    assert "site-1" in federation.session.run.survivors[-1]
    if all(len(survivors) == 4 for survivors in federation.session.run.survivors):
        assert numbers(outcome) == local_numbers(federation, model)[0]


def test_sites_without_rows_for_it_are_left_out(federate: Builder) -> None:
    """A node that was given rows to train on only refuses; one with an empty table of held-out rows takes part."""
    federation = federate(5)
    model = trained(federation)
    federation.held_out["site-1"] = take(federation.held_out["site-1"], [])
    federation.prepare_evaluation(model, EPSILON)
    victim = federation.parties["site-0"]
    victim.kill()
    plain = {field.name: getattr(victim.setup, field.name) for field in dataclasses.fields(victim.setup)}
    del plain["load_held_out"]
    victim.setup = type(victim.setup)(**plain)
    victim.start()
    outcome = federation.run()
    assert [fault.code for fault in victim.failures] == ["policy-no-held-out"]
    assert [(e.site, e.code) for e in federation.events if e.kind == "refused"] == [("site-0", "policy-no-held-out")]
    assert numbers(outcome) == local_numbers(federation, model, "site-1", "site-2", "site-3", "site-4")[0]


REFUSALS: dict[str, dict[str, Any]] = {
    "policy-query-kind": {"query_kinds": ("LeafSums",)},
    "policy-feature": {"features": ("age",)},
    "policy-label": {"labels": ("z",)},
    "policy-noise": {"evaluation_noise": ()},
    "policy-over-budget": {"max_epsilon": 4.0},
    "policy-coordinator": {"coordinators": ("00" * 32,)},
}


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_a_policy_refuses_an_evaluation_by_its_code(federate: Builder, code: str) -> None:
    """The owner's rules hold for held-out rows as for the others."""
    federation = federate(5)
    model = trained(federation)
    federation.prepare_evaluation(model, EPSILON)
    victim = federation.parties["site-0"]
    victim.kill()
    victim.setup = dataclasses.replace(victim.setup, policy=dataclasses.replace(POLICY, **REFUSALS[code]))
    victim.start()
    federation.run()
    assert [fault.code for fault in victim.failures] == [code]
    assert all("site-0" not in survivors for survivors in federation.session.run.survivors)


@pytest.mark.parametrize(("epsilon", "code"), [(math.inf, "policy-unnoised"), (1e9, "policy-over-budget")])
def test_an_evaluation_with_next_to_no_noise_gets_a_code_and_no_vector(
    federate: Builder, epsilon: float, code: str
) -> None:
    """A coordinator that would pay any price is told the owner's."""
    federation = federate(3)
    model = trained(federation)
    n_uploads = len(federation.uploads)
    with pytest.raises(AggregationError):
        evaluated(federation, model, epsilon)
    assert [fault.code for party in federation.parties.values() for fault in party.failures] == [code] * 3
    assert len(federation.uploads) == n_uploads


def test_a_model_that_nobody_vouches_for_is_refused(federate: Builder) -> None:
    """Trees could be made to give one patient a bin of its own; a node evaluates what it helped to make, or its owner
    has looked at.
    """
    federation = federate(4)
    model = trained(federation)
    other = train(model.plan, [federation.data["site-0"]])
    stranger = dataclasses.replace(model, ensemble=other.ensemble)
    with pytest.raises(AggregationError):
        evaluated(federation, stranger)
    codes = [fault.code for party in federation.parties.values() for fault in party.failures]
    assert codes == ["policy-model"] * 4
    federation = federate(4, name="vouched")
    model = trained(federation)
    task = EvaluationTask(model.plan, ensemble_bytes(stranger.ensemble), EPSILON, 1e-5, len(model.ledger))
    federation.prepare_evaluation(stranger, EPSILON)
    for party in federation.parties.values():
        party.kill()
        party.setup = dataclasses.replace(party.setup, models=frozenset({task.model_digest}))
        party.start()
    assert federation.run().evaluation is not None


LIES: dict[str, tuple[Callable[[EvaluationInvitation], EvaluationInvitation], str]] = {
    "another model": (lambda i: dataclasses.replace(i, model=i.model.replace(b"1", b"2", 1)), "policy-model"),
    "no model": (lambda i: dataclasses.replace(i, model=b"[[["), "policy-model"),
    "no epsilon": (lambda i: dataclasses.replace(i, epsilon=-1.0), "epsilon-out-of-range"),
    "no delta": (lambda i: dataclasses.replace(i, delta=1.0), "delta-out-of-range"),
    "no noise": (lambda i: dataclasses.replace(i, epsilon=math.inf), "policy-unnoised"),
    "a worthless delta": (lambda i: dataclasses.replace(i, delta=1 - 1e-12), "policy-over-budget"),
    "a dear one": (lambda i: dataclasses.replace(i, epsilon=1e4), "policy-over-budget"),
    "a cheap one": (lambda i: dataclasses.replace(i, epsilon=i.epsilon / 2), ""),
    "other purposes": (lambda i: dataclasses.replace(i, first_round=i.first_round + 2), ""),
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_coordinator_that_invites_sites_to_different_evaluations_gets_no_sum_of_them(
    federate: Builder, lie: str
) -> None:
    """A task's digest is in every answer: a site that was told something else is refused, or refuses, and is out."""
    change, code = LIES[lie]
    federation = federate(5)
    model = trained(federation)
    federation.prepare_evaluation(model, EPSILON)
    federation.tamper = telling("site-0", lambda said: change(said) if isinstance(said, EvaluationInvitation) else said)
    federation.while_waiting = lambda _: False
    outcome = federation.run()
    victim = federation.parties["site-0"]
    assert [fault.code for fault in victim.failures] == ([code] if code else [])
    if not code:
        assert "plan-changed" in federation.codes("complaint")
    assert all("site-0" not in survivors for survivors in federation.session.run.survivors)
    assert numbers(outcome) == local_numbers(federation, model, "site-1", "site-2", "site-3", "site-4")[0]


def test_other_bins_than_a_nodes_own_are_refused(federate: Builder) -> None:
    """A release that was altered on its way moves the bins of the second question; the site sees it by the digest."""
    federation = federate(5)
    model = trained(federation)
    federation.prepare_evaluation(model, EPSILON)

    def changed(said: Message) -> Message:
        is_told = isinstance(said, RoundRequest) and said.releases
        return dataclasses.replace(said, releases=(said.releases[0][::-1].copy(),)) if is_told else said

    federation.tamper = telling("site-0", changed)
    federation.run()
    assert [fault.code for fault in federation.parties["site-0"].failures] == ["purpose-unexpected"]
    assert [len(survivors) for survivors in federation.session.run.survivors] == [5, 4]


def test_an_evaluation_that_is_over_is_not_answered_again(federate: Builder, killed: type[BaseException]) -> None:
    """A coordinator that lost its journal and asks again under the same number gets nothing."""
    federation = federate(4)
    model = trained(federation)
    evaluated(federation, model)
    run_id = federation.session.run.run_id
    for file in federation.folder.glob("journal-*.db*"):
        file.unlink()
    federation.coordinator_entropy = lambda n: run_id if n == 32 else os.urandom(n)
    with pytest.raises(AggregationError):
        evaluated(federation, model)
    assert {fault.code for party in federation.parties.values() for fault in party.failures} == {"run-closed"}


def test_a_journal_of_an_evaluation_serves_no_other(federate: Builder) -> None:
    """The numbers of one evaluation must not be taken for those of another."""
    federation = federate(4)
    model = trained(federation)
    evaluated(federation, model)
    federation.prepare_evaluation(model, EPSILON / 2)
    with pytest.raises(UsageError) as caught:
        federation.run()
    assert caught.value.code == "journal-of-another-run"


@pytest.mark.parametrize("fate", [Fate.CUT, Fate.CUT_AFTER])
def test_a_cut_stream_at_the_invitation_is_made_good(federate: Builder, fate: Fate) -> None:
    """The invitation, which carries the model, is said again on the next connection."""
    cut = [0]

    def faults(passing: Passing) -> Fate:
        is_it = passing.direction is Direction.TO_NODE and passing.message[4] == MessageKind.EVALUATION
        if is_it and passing.site == "site-2" and not cut[0]:
            cut[0] += 1
            return fate
        return Fate.DELIVER

    federation = federate(5, faults=faults)
    model = trained(federation)
    outcome = evaluated(federation, model)
    assert cut == [1] and numbers(outcome) == local_numbers(federation, model)[0]


def test_a_task_is_read_back_as_it_was_written(federate: Builder) -> None:
    """A node that was killed goes on with the very same task, or not at all."""
    federation = federate(3)
    model = trained(federation)
    for task in (
        TrainingTask(model.plan),
        EvaluationTask(model.plan, ensemble_bytes(model.ensemble), 0.1, 1e-7, len(model.ledger)),
        EvaluationTask(
            model.plan, ensemble_bytes(model.ensemble), 0.1, 1e-7, len(model.ledger), by=("site",), sites=("a", "b")
        ),
    ):
        copy = task_from_text(task_to_text(task))
        assert copy.digest == task.digest and copy.promise == task.promise and type(copy) is type(task)


def test_a_model_whose_seed_the_sites_drew_is_evaluated_by_nodes_with_the_open_plan(federate: Builder) -> None:
    """The model's plan names the seed that was drawn; the owner's leaves it open: it is the plan agreed on."""
    plan = make_plan(model={"n_trees": 1, "structure_seed": "joint"})
    federation = federate(4, plan)
    for party in federation.parties.values():
        party.kill()
        party.setup = dataclasses.replace(party.setup, plan=plan)
        party.start()
    model = trained(federation)
    assert not model.plan.has_joint_structure
    assert numbers(evaluated(federation, model)) == local_numbers(federation, model)[0]
    other = dataclasses.replace(model.plan, name="another")
    federation.prepare_evaluation(dataclasses.replace(model, plan=other), EPSILON / 2)
    federation.evaluation = dataclasses.replace(
        federation.evaluation, task=dataclasses.replace(federation.evaluation.task, first_round=99)
    )
    with pytest.raises(AggregationError):
        federation.run(plan=other)
    assert {fault.code for party in federation.parties.values() for fault in party.failures} == {"plan-changed"}


def test_a_node_vouches_for_no_model_in_whose_rounds_it_had_no_part(federate: Builder) -> None:
    """A coordinator that makes releases up can show their end to a node that it only invited."""
    federation = federate(4)
    party, plan = federation.parties["site-0"], federation.plan

    def tell(message: Message) -> list[Message]:
        return [decode(answer) for answer in party.session.receive(encode(message))]

    def greet() -> None:
        (hello,) = map(decode, party.session.connect())
        tell(Welcome(hello.connection))

    greet()
    task, made_up = TrainingTask(plan), Replica(TrainingTask(plan))
    tell(invitation_to(task, b"1" * 32))
    releases = []
    while made_up.query is not None:
        releases.append(np.full(made_up.query.release_length, 5))
        made_up.feed(releases[-1])
    end = Finished(len(releases), tuple(releases), made_up.result_digest(), made_up.structure_seed)
    assert [type(answer) for answer in tell(end)] == [Done]
    model = EvaluationTask(made_up.plan, ensemble_bytes(made_up.ensemble), 1.0, 1e-5, len(releases))
    own = federation.held_out["site-0"]
    party.setup = dataclasses.replace(party.setup, load_held_out=lambda _: own)
    party.restart()
    greet()
    assert [answer.code for answer in tell(invitation_to(model, b"2" * 32))] == ["policy-model"]
    assert [line.events for line in party.book.lines()] == [()]
