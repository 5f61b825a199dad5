"""The local model: each record's noise is in a vector, only one record's is accounted for, nobody adds any more."""

from __future__ import annotations

import dataclasses
import math
import os
import sqlite3
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.stats import chi2

from hedgerow.client.node import EvaluationNode, Node
from hedgerow.client.policy import Policy
from hedgerow.errors import AggregationError, PlanError, PolicyRefusal, PrivacyError
from hedgerow.evaluation.program import evaluate_ensemble
from hedgerow.local.forecast import forecast
from hedgerow.local.training import evaluate_federated, train, without_secure_aggregation
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.calibration import noise_of, noise_of_records
from hedgerow.privacy.events import DiscreteGaussianEvent, LocalGaussianEvent, event_from_dict
from hedgerow.privacy.noise import SeededNoise, SystemNoise
from hedgerow.privacy.report import PrivacyContext, build_report
from hedgerow.protocol.messages import MessageKind
from hedgerow.protocol.queries import Query
from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.messages import EpochParameters, NoiseMode
from hedgerow.secagg.transitions import Refusal
from hedgerow.server.release import UNCOUNTED, Releaser
from hedgerow.training.presets import apply_preset, find_preset
from tests.builders import make_data, make_plan
from tests.memory_network import Fate, Passing

if TYPE_CHECKING:
    from conftest import Builder

LOCAL = {"noise": "local"}


def first_query(plan: Plan) -> Query:
    return next(program_for(plan))


def exact_answer(plan: Plan, data: Any, query: Query) -> Any:
    """What the node sums before its noise: the answer under a plan where the coordinator adds it."""
    server = dataclasses.replace(plan, privacy=dataclasses.replace(plan.privacy, noise="server"))
    return Node("a", data, server, resolve(server)).answer(query)


@pytest.mark.parametrize("n_records", [0, 1, 2, 9, 50])
def test_the_noise_of_a_site_is_that_of_its_records(n_records: int) -> None:
    """An oracle that lets every record draw for itself has the same variance: both within what chance allows."""
    plan = make_plan(model={"max_depth": 4}, privacy=LOCAL)
    data, query = make_data(plan, n_records, 3), first_query(plan)
    exact, sigma = exact_answer(plan, data, query), noise_of(query, is_local=True).record_sigma
    residues, drawn = [], []
    for run in range(30):
        noise = SeededNoise(run)
        residues.append(Node("a", data, plan, resolve(plan), noise=noise).answer(query) - exact)
        drawn.append(sum(noise.sample(sigma, query.length, f"record {i}") for i in range(max(1, n_records))))
    wanted = sigma**2 * max(1, n_records)
    for squares in (np.square(residues, dtype=np.float64), np.square(drawn, dtype=np.float64)):
        low, high = chi2.ppf([1e-6, 1 - 1e-6], squares.size)
        assert low < squares.sum() / wanted < high


def test_the_sum_over_records_is_rounded_up() -> None:
    """Never less noise than the records together, and never a grid unit more than that."""
    for sigma in (1, 3, 1000, 10**9):
        for n in (0, 1, 2, 3, 10**6):
            found = noise_of_records(sigma, n)
            assert found**2 >= sigma**2 * max(1, n) > (found - 1) ** 2
    assert noise_of_records(0, 5) == 0


def test_one_record_is_charged_and_nothing_is_added_centrally() -> None:
    """The account must not count the noise of other records, and the coordinator's sum is the release."""
    plan = make_plan(privacy=LOCAL)
    query = first_query(plan)
    noise, central = noise_of(query, is_local=True), noise_of(query)
    assert isinstance(noise.event, LocalGaussianEvent) and isinstance(central.event, DiscreteGaussianEvent)
    assert (noise.central_sigma, noise.share_sigma, noise.record_sigma) == (0, 0, central.central_sigma)
    assert noise.event.noise_multiplier == central.event.noise_multiplier
    releaser = Releaser(SystemNoise(os.urandom), UNCOUNTED, is_local=True)
    total = np.arange(query.length, dtype=np.int64)
    assert np.array_equal(releaser.release(query, total), total)
    assert [*releaser.ledger.events()] == [noise.event]
    assert event_from_dict(noise.event.to_dict()) == noise.event


@pytest.mark.parametrize("name", ["gdp", "rdp", "pld"])
def test_accountants_know_the_event_and_no_other_like_it(name: str) -> None:
    """One record's noise costs what the coordinator's of that size costs; a kind they have not met is an error."""
    local, central = (
        LocalGaussianEvent.from_integers(4000, 10**6, 32),
        DiscreteGaussianEvent.from_integers(4000, 10**6, 32),
    )
    judge = get_accountant(name)
    assert judge.epsilon([local] * 7, 1e-5) == judge.epsilon([central] * 7, 1e-5)

    class Unheard(LocalGaussianEvent):
        pass

    unheard: Any = Unheard.from_integers(4000, 10**6, 32)
    with pytest.raises(PrivacyError) as caught:
        judge.epsilon([unheard], 1e-5)
    assert caught.value.code == "unknown-event"


def test_a_run_says_whom_it_trusts() -> None:
    """With real noise the promise holds, within epsilon, and the report names no coordinator to be trusted."""
    plan = apply_preset(find_preset("ldp"), make_plan())
    sites = {name: make_data(plan, 40, seed) for seed, name in enumerate("abc")}
    report = train(plan, sites, noise=SystemNoise(os.urandom)).report
    assert report.guarantee == "holds" and report.noise_mode == "local"
    assert 0.99 * plan.privacy.epsilon <= report.epsilon <= plan.privacy.epsilon
    assert "replace by zero the statistics of one record" in report.text()
    # Who takes part is no secret in the local model, and the words must not say that it is.
    assert "took part" not in report.text()


def test_a_report_is_of_the_mode_of_its_ledger() -> None:
    """An account of sums does not pass for one of records, nor the other way round."""
    query = first_query(make_plan(privacy=LOCAL))
    for is_local, mode in ((True, "server"), (False, "local")):
        releaser = Releaser(SystemNoise(os.urandom), UNCOUNTED, is_local=is_local)
        releaser.release(query, np.zeros(query.length, dtype=np.int64))
        with pytest.raises(PrivacyError) as caught:
            build_report(releaser.ledger, PrivacyContext(delta=1e-5, noise_mode=mode))
        assert caught.value.code == "noise-mode-unsupported"


def test_a_forecast_counts_on_wider_sums() -> None:
    """What `hedgerow privacy` says of bytes: the noise of all records takes bits that the sums do not."""
    privacy = {"epsilon": 0.1, "n_records": 20_000}
    central, local = (make_plan(privacy={**privacy, **noise}) for noise in ({}, LOCAL))
    assert forecast(local).bits_per_number > forecast(central).bits_per_number
    assert forecast(local).epsilon_gdp == pytest.approx(forecast(central).epsilon_gdp)


def test_masks_leave_the_local_model_alone() -> None:
    """Wide enough words for the noise of all records: the same model with masks and without."""
    plan = apply_preset(find_preset("ldp"), make_plan(privacy={"epsilon": 0.1}))
    sites = {name: make_data(plan, 33, seed) for seed, name in enumerate("abc")}
    masked = train(plan, sites, noise=SeededNoise(1))
    clear = train(without_secure_aggregation(plan), sites, noise=SeededNoise(1))
    # The report says of both how their sums were made; everything else is the same.
    assert dataclasses.replace(clear.report, sums_in_clear=False) == masked.report
    assert dataclasses.replace(clear, plan=plan, report=masked.report).to_bytes() == masked.to_bytes()


def test_a_node_that_is_given_no_noise_takes_the_systems() -> None:
    """There is no way to build a node of the local model whose sums leave as they are."""
    plan = make_plan(privacy=LOCAL)
    data, query = make_data(plan, 20, 3), first_query(plan)
    answers = [Node("a", data, plan, resolve(plan)).answer(query) for _ in range(2)]
    assert not np.array_equal(*answers)
    assert not any(np.array_equal(answer, exact_answer(plan, data, query)) for answer in answers)


@pytest.mark.parametrize("label", ["binary", "regression"])
def test_evaluations_are_of_the_local_model_too(label: str) -> None:
    """Counts of held-out rows leave with each row's noise, and their error bars know of it."""
    plan = make_plan(label, privacy=LOCAL)
    server = make_plan(label)
    sites = {name: make_data(plan, 33, seed) for seed, name in enumerate("abc")}
    model = train(plan, sites, noise=SeededNoise(1))
    query = next(evaluate_ensemble(plan, model.ensemble, 1.0, 1e-5, first_round=9))
    pair = [EvaluationNode("a", sites["a"], plan).answer(query) for _ in range(2)]
    assert not np.array_equal(*pair)
    found = evaluate_federated(model, sites, epsilon=1.0, noise=SeededNoise(2))
    assert found.cost.noise_mode == "local" and found.cost.epsilon <= 1.0
    assert all(isinstance(event, LocalGaussianEvent) for event in found.model.ledger.events())
    central = evaluate_federated(train(server, sites, noise=SeededNoise(1)), sites, epsilon=1.0, noise=SeededNoise(2))
    ratio = found.evaluation.n_records.noise_error / central.evaluation.n_records.noise_error
    # Fewer bins are cut where there is more noise, so the factor is not exact.
    assert ratio == pytest.approx(math.sqrt(plan.privacy.n_records), rel=0.5)


@pytest.mark.parametrize("algorithm", ["s-gbdt", "dp-xgboost"])
def test_what_has_no_local_model_is_refused(algorithm: str) -> None:
    """Secret samples help nobody whose own answer is seen, and choices need the exact sums."""
    with pytest.raises(PlanError, match=r"privacy\.noise"):
        make_plan(model={"algorithm": algorithm, "max_depth": 2}, privacy=LOCAL)


def test_a_policy_says_who_may_add_the_noise() -> None:
    """Without a list the sites add it. "local", by which the number of a site's rows shows, and "server", which trusts
    the coordinator with exact sums, have to be named; secure sums without "server" refuse the coordinator's as well.
    """
    plan = make_plan(privacy=LOCAL)
    rules = {"version": 1, "data_set": "d", "max_epsilon": 9.0, "delta": 1e-5}
    Policy(**rules, noise=("distributed", "local")).check_plan(plan)
    for noise in ("server", "distributed"):
        Policy(**rules, noise=(noise,)).check_plan(make_plan(privacy={"noise": noise}))
    Policy(**rules).check_plan(make_plan(privacy={"noise": "distributed"}))
    for listed in ((), ("distributed",)):
        for refused in (plan, make_plan()):
            with pytest.raises(PolicyRefusal) as caught:
                Policy(**rules, noise=listed).check_plan(refused)
            assert caught.value.code == "policy-noise" and f'["{refused.privacy.noise}"]' in caught.value.remedy
    with pytest.raises(PolicyRefusal) as caught:
        Policy(**rules, noise=("server",)).check_plan(make_plan(privacy={"noise": "distributed"}))
    # "Agree on noise of the sites" would be of no use: that is what is refused.
    assert "Agree" not in caught.value.remedy and 'add "distributed" to noise' in caught.value.remedy
    assert Policy(**rules).secure_sums.refuses_server_noise
    strict = Policy(**rules, noise=("distributed", "local")).secure_sums
    wishes = Wishes(n_colluders=1)
    for mode in NoiseMode:
        parameters = EpochParameters(bytes(32), 1, bytes(32), 4, wishes, mode)
        if mode is NoiseMode.SERVER:
            with pytest.raises(Refusal, match="noise"):
                strict.require(parameters, 6)
        else:
            strict.require(parameters, 6)


def test_a_federation_makes_the_local_engines_model(federate: Builder) -> None:
    """Over the protocol, with every node drawing its own records' noise: byte-identical under one seed."""
    plan = apply_preset(find_preset("ldp"), make_plan(privacy=LOCAL))
    plan = dataclasses.replace(plan, model=dataclasses.replace(plan.model, n_trees=3))
    federation = federate(4, plan)
    outcome = federation.run()
    assert federation.model_bytes(outcome) == train(plan, federation.data, noise=SeededNoise(1)).to_bytes()


@pytest.mark.parametrize("lost", [None, "nothing", "the database", "the counter"])
def test_noise_that_left_is_not_drawn_again(federate: Builder, killed: type[BaseException], lost: str | None) -> None:
    """Nodes that were restarted after their answer left, and are asked for it in a new epoch, do not answer: nothing
    but the records' noise protects them here, and two draws are two releases. That holds as well when the database that
    said so is lost, or the counter beside it. Else (None) it is the same draw.
    """
    plan = make_plan(model={"structure_seed": 7}, privacy=LOCAL)
    kept: list[str] = []

    def keep(passing: Passing) -> Fate:
        if passing.message[4] == MessageKind.UPLOAD and len(kept) < 4:
            kept.append(passing.site)
            return Fate.DROP
        return Fate.DELIVER

    federation = federate(4, plan, faults=keep)

    def die(_: float) -> bool:
        raise killed

    federation.while_waiting = die
    with pytest.raises(killed):
        federation.run()
    assert len(kept) == 4
    federation.while_waiting = lambda _: False
    for party in federation.parties.values() if lost else ():
        party.kill()
        for file in party.folder.glob({"the database": "node.db*", "the counter": "counter.json"}.get(lost, "none")):
            file.unlink()
        party.start()
    database = sqlite3.connect(federation.folder / "journal.db")
    database.execute("update slots set slot = null, next_slot = 0")
    database.execute("update run set epoch = null, origin = null")
    database.commit()
    database.close()
    if lost is None:
        federation.run()
        return
    with pytest.raises(AggregationError):
        federation.run()
    faults = [fault for party in federation.parties.values() for fault in party.failures]
    assert {fault.code for fault in faults} == {"purpose-answered"}
    # Where one of the two is lost, the other bars what was masked, whatever noise it would have had.
    assert all("other noise" in str(fault) for fault in faults) or lost in ("the database", "the counter")
