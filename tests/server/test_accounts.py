"""The account of a model: after training, evaluation, saving and loading, a report says what its ledger says."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from hedgerow.data.binned import SiteData
from hedgerow.errors import ModelError
from hedgerow.local.training import FederatedEvaluation, evaluate_federated, train
from hedgerow.methods.tasks import EvaluationTask, ensemble_bytes
from hedgerow.models.model import Model, canonical_bytes
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import epsilon_of_mu, get_accountant, mu_of
from hedgerow.privacy.events import Event, PureEvent
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.secagg.guarantees import Wishes, default_wishes, derive
from hedgerow.server.release import EvaluatedModel
from tests.builders import make_data, make_plan, take
from tests.tiers import all_but, with_long

EPSILON = 1.0
DELTA = 1e-6

PLANS: dict[str, dict[str, Any]] = {
    "gdp": {"privacy": {"accountant": "gdp"}},
    "rdp": {"privacy": {"accountant": "rdp"}},
    "pld": {"privacy": {"accountant": "pld"}},
    "gdp, distributed": {"privacy": {"accountant": "gdp", "noise": "distributed"}},
    "rdp, local": {"privacy": {"accountant": "rdp", "noise": "local"}},
    "pure, dp-xgboost": {"model": {"algorithm": "dp-xgboost"}, "privacy": {"accountant": "pure"}},
    "gdp, dp-xgboost": {"model": {"algorithm": "dp-xgboost"}, "privacy": {"accountant": "gdp"}},
    "pld, dp-xgboost": {"model": {"algorithm": "dp-xgboost"}, "privacy": {"accountant": "pld"}},
    "gdp, s-gbdt": {"model": {"algorithm": "s-gbdt"}, "privacy": {"accountant": "gdp"}},
    "gdp, adassp": {"model": {"algorithm": "adassp", "n_trees": "auto", "max_depth": "auto"}},
}


def plan_named(name: str) -> Plan:
    """A small plan of that kind."""
    fields = PLANS[name]
    model = {"n_trees": 3, "max_depth": 2, **fields.get("model", {})}
    privacy = {"epsilon": EPSILON, "delta": DELTA, "n_records": 400, **fields.get("privacy", {})}
    return make_plan("binary", model, privacy)


def sites_of(plan: Plan, seed: int) -> dict[str, SiteData]:
    """Three sites with rows."""
    rows = make_data(plan, 120, seed)
    return {f"site-{i}": take(rows, np.arange(i, 120, 3)) for i in range(3)}


def gaussian_epsilon(events: list[Event], delta: float) -> float:
    """The exact curve of Gaussian releases together (Balle and Wang 2018), by a root finder of its own."""
    mu = math.sqrt(sum(event.count / event.noise_multiplier**2 for event in events))

    def excess(epsilon: float) -> float:
        tail = math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
        return float(norm.cdf(mu / 2 - epsilon / mu)) - tail - delta

    return float(brentq(excess, 1e-9, 500, xtol=1e-12))


def pld_epsilon(events: list[Event], delta: float) -> float:
    """The library's own composition, event by event."""
    from dp_accounting.pld import common, privacy_loss_distribution

    whole = None
    for event in events:
        if isinstance(event, PureEvent):
            told = common.DifferentialPrivacyParameters(event.epsilon, 0.0)
            part = privacy_loss_distribution.from_privacy_parameters(told, value_discretization_interval=1e-4)
        else:
            part = privacy_loss_distribution.from_gaussian_mechanism(
                event.noise_multiplier, value_discretization_interval=1e-4
            )
        part = part.self_compose(event.count)
        whole = part if whole is None else whole.compose(part)
    assert whole is not None
    return float(whole.get_epsilon_for_delta(delta))


def check_account(content: dict[str, Any], accountant: str, n_releases: int, epsilon: float) -> None:
    """Every epsilon of a report, and the one that is told, against a recomputation from the ledger beside it."""
    ledger, report = Ledger.from_json(json.dumps(content["ledger"])), content["report"]
    events, delta = list(ledger.events()), report["delta"]
    is_pure = all(isinstance(event, PureEvent) for event in events)
    is_gaussian = all(type(event).type_name in ("discrete-gaussian", "discrete-gaussian-sum", "local-gaussian")
                      for event in events)  # fmt: skip
    assert report["n_releases"] == len(ledger) == n_releases
    assert report["epsilon_gdp"] == pytest.approx(get_accountant("gdp").epsilon(events, delta), rel=1e-9)
    assert report["epsilon_rdp"] == pytest.approx(get_accountant("rdp").epsilon(events, delta), rel=1e-9)
    if is_gaussian:
        assert report["epsilon_gdp"] == pytest.approx(gaussian_epsilon(events, delta), rel=1e-6)
    expected = {"gdp": report["epsilon_gdp"], "rdp": report["epsilon_rdp"]}.get(accountant)
    if accountant == "pld":
        expected = min(report["epsilon_gdp"], pld_epsilon(events, delta))
        assert report["epsilon_own"] == pytest.approx(expected, rel=2e-3)
    elif accountant == "pure" and is_pure:
        expected = math.fsum(event.epsilon * event.count for event in events if isinstance(event, PureEvent))
    elif accountant == "pure":
        # A sum of epsilons cannot hold Gaussian releases: the bound that can is said, and said to be that.
        expected = report["epsilon_gdp"]
        assert report["accounted_by"] == "gdp" and "epsilon_own" not in report
    assert epsilon == pytest.approx(expected, rel=2e-3)


@pytest.fixture(scope="module")
def trained() -> Callable[[str], Model]:
    """A model of a kind of plan, which the tests share: to calibrate noise by `pld` takes seconds."""

    @functools.cache
    def train_once(name: str) -> Model:
        plan = plan_named(name)
        return train(plan, sites_of(plan, 1), noise=SystemNoise(os.urandom))

    return train_once


@pytest.mark.parametrize("name", with_long(["pld", "pld, dp-xgboost"], PLANS))
def test_every_epsilon_is_the_ledgers_after_every_sequence(
    trained: Callable[[str], Model], name: str, tmp_path: Path
) -> None:
    """Trained, evaluated, saved, loaded, evaluated again at another delta: at each step the report is the account."""
    plan = plan_named(name)
    accountant, path = plan.privacy.accountant, tmp_path / "model.json"
    noise, model = SystemNoise(os.urandom), trained(name)
    spent = [model.report.epsilon]
    n_releases = len(model.ledger)
    assert spent[0] <= EPSILON
    steps = ((5.0, None, False), (0.5, 1e-4, True), (2.0, None, True))
    # Composing by `pld` takes seconds a time; after another delta has been loaded, a third step says nothing new of it.
    for epsilon, delta, is_loaded in steps[:2] if accountant == "pld" else steps:
        if is_loaded:
            model = Model.load(path)
        found = evaluate_federated(model, sites_of(plan, 2), epsilon=epsilon, delta=delta, noise=noise)
        model, n_releases = found.model, n_releases + 2
        model.save(path)
        content = json.loads(path.read_text())
        check_account(content, accountant, n_releases, model.report.epsilon)
        assert content["report"]["delta"] == DELTA and content["report"]["guarantee"] == "holds"
        assert content["report"] == json.loads(json.dumps(model.report.claims()))
        assert Model.load(path).report.to_dict() == model.report.to_dict()
        assert found.cost.epsilon <= epsilon and found.cost.delta == (delta or DELTA)
        spent.append(model.report.epsilon)
    assert all(before < after for before, after in itertools.pairwise(spent)) and spent[-1] > 5
    # No file says what its evaluations were given: what is repeated is what the plan says.
    assert model.report.epsilon_requested == model.plan.privacy.epsilon


@pytest.mark.parametrize("seeded", [(True, False), (False, True)])
def test_a_seed_in_one_part_voids_the_whole(seeded: tuple[bool, bool], tmp_path: Path) -> None:
    """Whoever knows the seed of the training, or of the evaluation, subtracts that noise: the model has no promise."""
    plan = plan_named("gdp")
    sources: list[NoiseSource] = [SeededNoise(3) if is_seeded else SystemNoise(os.urandom) for is_seeded in seeded]
    model = train(plan, sites_of(plan, 1), noise=sources[0])
    model.save(tmp_path / "model.json")
    found = evaluate_federated(Model.load(tmp_path / "model.json"), sites_of(plan, 2), epsilon=1.0, noise=sources[1])
    found.model.save(tmp_path / "model.json")
    assert found.model.report.guarantee == Model.load(tmp_path / "model.json").report.guarantee == "void"
    assert model.report.seeded == seeded[0] and found.cost.seeded == seeded[1]


def forged(path: Path, **changes: Any) -> None:
    """Change a file's report and, as a careful forger would, its checksum."""
    content = json.loads(path.read_bytes())
    content["report"] |= changes
    content.pop("checksum")
    content["checksum"] = hashlib.sha256(canonical_bytes(content)).hexdigest()
    path.write_bytes(canonical_bytes(content))


@pytest.fixture(scope="module")
def by_pld(trained: Callable[[str], Model]) -> Callable[[str], FederatedEvaluation]:
    """Evaluations of models whose plans are accounted for by `pld`."""

    @functools.cache
    def evaluate_once(name: str) -> FederatedEvaluation:
        data = sites_of(plan_named(name), 2)
        return evaluate_federated(trained(name), data, epsilon=5.0, noise=SystemNoise(os.urandom))

    return evaluate_once


BY_PLD = all_but(["pld, dp-xgboost"], ["pld", "pld, dp-xgboost"])


@pytest.mark.parametrize("name", BY_PLD)
def test_a_report_that_forgot_an_evaluation_is_refused(
    by_pld: Callable[[str], FederatedEvaluation], name: str, tmp_path: Path
) -> None:
    """Such files were written: trained at epsilon 1, evaluated at 5, and "HOLDS, 0.999998"."""
    path = tmp_path / "model.json"
    by_pld(name).model.save(path)
    assert Model.load(path, exact=True).report.epsilon > 5
    forged(path, epsilon_own=0.999998, epsilon=0.999998)
    with pytest.raises(ModelError) as caught:
        Model.load(path)
    assert caught.value.code == "model-report-untrue" and "0.999998" in str(caught.value)


def test_a_figure_that_takes_seconds_is_never_repeated_unread(trained: Callable[[str], Model], tmp_path: Path) -> None:
    """Prediction need not wait for it; whoever asks for the report gets what the ledger says, or an error."""
    path = tmp_path / "model.json"
    trained("pld, dp-xgboost").save(path)
    expected = Model.load(path).report.epsilon
    forged(path, epsilon_own=expected / 2, epsilon=expected / 2)
    assert Model.load(path).report.epsilon == expected
    with pytest.raises(ModelError) as caught:
        Model.load(path, exact=True)
    assert caught.value.code == "model-report-untrue"


@pytest.mark.parametrize("is_evaluated", [False, True])
@pytest.mark.parametrize("name", BY_PLD)
def test_a_model_can_be_read_without_the_extra(
    trained: Callable[[str], Model],
    by_pld: Callable[[str], FederatedEvaluation],
    name: str,
    is_evaluated: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where `pld` cannot be computed, a bound that can be is said, and that it is another one."""
    path = tmp_path / "model.json"
    (by_pld(name).model if is_evaluated else trained(name)).save(path)
    for module in [module for module in sys.modules if module.startswith("dp_accounting")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    model = Model.load(path, exact=True)
    assert model.report.epsilon == get_accountant("gdp").epsilon(model.ledger.events(), DELTA)
    assert model.report.accounted_by == "gdp" and model.report.epsilon_own is None
    assert "not installed" in model.report.text()
    model.save(path)
    assert Model.load(path).report.accounted_by == "gdp"


def test_evaluations_have_sites_of_their_own(tmp_path: Path) -> None:
    """Trained by three sites and evaluated by seven: each release names the sites that added its noise."""
    plan = plan_named("gdp, distributed")
    model = train(plan, sites_of(plan, 1), noise=SystemNoise(os.urandom))
    rows = make_data(plan, 140, 2)
    seven = {f"site-{i}": take(rows, np.arange(i, 140, 7)) for i in range(7)}
    found = evaluate_federated(model, seven, epsilon=1.0, noise=SystemNoise(os.urandom))
    found.model.save(tmp_path / "model.json")
    loaded = Model.load(tmp_path / "model.json")
    told = [(cohort.n_sites, cohort.n_colluders, count) for cohort, count in loaded.report.cohorts.items()]
    assert told == [(3, 1, len(model.ledger)), (7, 1, 2)]
    assert [(c.n_sites, count) for c, count in found.cost.cohorts.items()] == [(7, 2)]
    assert all(release.cohort.n_shares == release.event.n_shares for release in loaded.ledger)
    forged(tmp_path / "model.json", cohorts=[])
    with pytest.raises(ModelError):
        Model.load(tmp_path / "model.json")


def shares_left(n_sites: int, colluders: frozenset[int], least: int) -> int:
    """Shares of noise that colluders do not know, in the worst sum that is opened."""
    return min(
        len(set(survivors) - colluders)
        for size in range(least, n_sites + 1)
        for survivors in itertools.combinations(range(n_sites), size)
    )


@pytest.mark.parametrize("has_echo", [False, True])
@pytest.mark.parametrize("n_sites", range(2, 9))
def test_the_stated_condition_is_the_one_that_holds(n_sites: int, has_echo: bool) -> None:
    """At most c colluders among the sites of a sum keep the promise, whoever falls silent; h honest sites do not."""
    wishes = Wishes(default_wishes(n_sites, least_colluders=1).n_colluders, has_echo=has_echo)
    promised = derive(n_sites, wishes)
    mu = mu_of(EPSILON, DELTA)

    def epsilon(n_colluders: int) -> float:
        worst = min(
            shares_left(n_sites, frozenset(chosen), promised.min_survivors)
            for chosen in itertools.combinations(range(n_sites), n_colluders)
        )
        return epsilon_of_mu(mu * math.sqrt(promised.honest_group / worst), DELTA) if worst else math.inf

    # Each site adds the h-th part of the variance.
    assert all(epsilon(n_colluders) <= EPSILON * (1 + 1e-9) for n_colluders in range(promised.n_colluders + 1))
    exactly_h_are_honest = epsilon(n_sites - promised.honest_group)
    is_whole = n_sites - promised.honest_group <= promised.n_colluders
    assert (exactly_h_are_honest > 1.1 * EPSILON) != is_whole
    if (n_sites, has_echo) == (4, False):
        assert exactly_h_are_honest == pytest.approx(1.455, abs=0.001)


def test_the_coordinator_of_a_network_gives_the_same_account(
    trained: Callable[[str], Model], by_pld: Callable[[str], FederatedEvaluation]
) -> None:
    """Under `pld`, whose figure was once left as it was before the evaluation."""
    plan, model, found = plan_named("pld"), trained("pld"), by_pld("pld")
    noise = SystemNoise(os.urandom)
    task = EvaluationTask(plan, ensemble_bytes(model.ensemble), 5.0, DELTA, len(model.ledger))
    own = Ledger(found.model.ledger.releases[len(model.ledger) :])
    outcome = EvaluatedModel(task, model.ledger, model.report).outcome(own, found.evaluation, noise)
    assert outcome.report == found.model.report and outcome.report.epsilon > 5
