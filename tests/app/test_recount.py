"""The recount of every pack: it needs nothing of Hedgerow, and finds what the report says, of every kind of run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hedgerow.privacy.events as kinds
from hedgerow.app import recount
from hedgerow.app.evidence import compare_accounts, explain_recount, gather_evidence, write_evidence
from hedgerow.data.binned import SiteData
from hedgerow.local.training import evaluate_federated, recalibrate_model, train
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import compute_account
from hedgerow.privacy.ledger import Ledger, Release, write_prepared_tables
from hedgerow.privacy.noise import SystemNoise
from tests.builders import make_data, make_plan, take

ROOT = Path(__file__).resolve().parents[2]

RUNS: dict[str, dict[str, Any]] = {
    "boosting": {},
    "boosting, noise of the sites": {"privacy": {"noise": "distributed"}},
    "boosting, local": {"privacy": {"noise": "local"}},
    "boosting, groups": {"federation": {"groups": 3, "min_sites": 9}},
    "boosting, persons at two sites": {"privacy": {"unit": "person", "max_rows_per_unit": 2, "sites_per_unit": 2}},
    "boosting, prepared": {},
    "boosting, evaluated": {},
    "boosting, recalibrated": {},
    "adassp": {"model": {"algorithm": "adassp", "n_trees": "auto", "max_depth": "auto"}},
    "s-gbdt": {"model": {"algorithm": "s-gbdt"}, "s_gbdt": {"individual_filter": False, "subsampling_ratio": 0.2}},
    "s-gbdt, noise of the sites": {
        "model": {"algorithm": "s-gbdt"}, "privacy": {"noise": "distributed"},
        "s_gbdt": {"individual_filter": False, "subsampling_ratio": 0.2},
    },
    "s-gbdt, filter": {"model": {"algorithm": "s-gbdt"}, "s_gbdt": {"extra_rounds": 3, "subsampling_ratio": 0.2}},
    "s-gbdt, filter at rate 1": {
        "model": {"algorithm": "s-gbdt"}, "s_gbdt": {"extra_rounds": 3, "subsampling_ratio": 1.0}
    },
    "s-gbdt, evaluated": {"model": {"algorithm": "s-gbdt"}, "s_gbdt": {"subsampling_ratio": 0.2}},
    "dp-xgboost": {"model": {"algorithm": "dp-xgboost"}, "dp_xgboost": {"subsampling_ratio": 0.4}},
    "dp-xgboost, persons": {
        "model": {"algorithm": "dp-xgboost"}, "privacy": {"unit": "person", "max_rows_per_unit": 3}
    },
    "dp-xgboost, evaluated": {"model": {"algorithm": "dp-xgboost"}},
}  # fmt: skip
FAST = [("boosting, noise of the sites", "rdp"), ("s-gbdt, filter", "gdp"), ("dp-xgboost, evaluated", "pure")]


def list_cases() -> list[Any]:
    """Every run with every accountant that its plan may have; a survey and a recalibration add plain releases only,
    which loss distributions take minutes to compose.
    """
    pairs = [
        (name, accountant)
        for name, about in RUNS.items()
        for accountant in ("gdp", "rdp", "pure", "pld")
        if not (accountant == "pld" and name.endswith(("prepared", "recalibrated")))
        if accountant != "pure" or about.get("model", {}).get("algorithm") == "dp-xgboost"
    ]
    slow = [pytest.mark.slow]
    return [
        pair if pair in FAST else pytest.param(*pair, marks=[*slow, pytest.mark.long] if is_long(*pair) else slow)
        for pair in pairs
    ]


def is_long(name: str, accountant: str) -> bool:
    """Whether loss distributions of a run of this kind take half a minute to compose; one of them stays."""
    return accountant == "pld" and name.endswith(("evaluated", "at rate 1")) and name != "boosting, evaluated"


def train_run(name: str, accountant: str) -> Model:
    """A small model of that kind of run, with the system's noise."""
    about = {section: dict(values) for section, values in RUNS[name].items()}
    model = {"n_trees": 3, "max_depth": 2, **about.pop("model", {})}
    privacy = {"epsilon": 1.0, "delta": 1e-6, "n_records": 400, "accountant": accountant, **about.pop("privacy", {})}
    plan, noise = make_plan("binary", model, privacy, **about), SystemNoise(os.urandom)
    if name.endswith("prepared"):
        made = Release("0/RecordCount/survey", 0, "RecordCount", kinds.DiscreteGaussianEvent(8.0, 8, 1), 1, 1.0, 8.0)
        plan = Plan.from_dict({**plan.to_dict(), "prepared": write_prepared_tables([made], "record", 1)})
    rows, n_sites = make_data(plan, 180, 1), 9
    sites: dict[str, SiteData] = {f"site-{at}": take(rows, np.arange(at, 180, n_sites)) for at in range(n_sites)}
    trained = train(plan, sites, noise=noise)
    if name.endswith("evaluated"):
        return evaluate_federated(trained, sites, epsilon=0.3, noise=noise, by=["region", "site"]).model
    return recalibrate_model(trained, rows, epsilon=0.5, noise=noise)[0] if name.endswith("recalibrated") else trained


def gather(model: Model, folder: Path) -> dict[str, Any]:
    """Write a model's pack into a folder, and return evidence.json."""
    model.save(folder / "model.json")
    content = gather_evidence(folder / "model.json", model, "2026-01-31", book=None, attack=None, evaluation=None)
    write_evidence(folder, model, content)
    found: dict[str, Any] = json.loads((folder / "evidence.json").read_text(encoding="utf-8"))
    return found


def run_alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder where `import hedgerow` fails."""
    away = folder / "away"
    away.mkdir(exist_ok=True)
    (away / "hedgerow.py").write_text('raise ImportError("a reviewer has no Hedgerow")\n')
    path = os.pathsep.join([str(away), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("name", "accountant"), list_cases())
def test_a_pack_alone_gives_the_reported_epsilon(name: str, accountant: str, tmp_path: Path) -> None:
    """A reviewer without Hedgerow finds the epsilon of every method, accountant and unit again, and no smaller one."""
    content = gather(train_run(name, accountant), tmp_path)
    if (name, accountant) == FAST[0]:
        assert run_alone(tmp_path, "-c", "import hedgerow").returncode == 1
    said = run_alone(tmp_path, "recount.py", "evidence.json")
    assert said.returncode == 0, said.stdout + said.stderr
    found, reported = float(said.stdout.split("counted again: epsilon ")[1].split(",")[0]), content["report"]["epsilon"]
    is_close = content["report"]["accounted_by"] in ("gdp", "pure") and "sampling_rate" not in json.dumps(
        content["releases"]
    )
    within = {"pld": (0, 0.01)}.get(content["report"]["accounted_by"], (-1e-6, 1e-6) if is_close else (-1e-4, 1e-4))
    assert within[0] <= found / reported - 1 <= within[1]
    # A figure that is too small is told, as one subprocess sees by its exit code. Loss distributions take seconds.
    content["report"] |= {"epsilon": reported * 0.98}
    assert accountant == "pld" or not recount.recount_pack(content)["agrees"]
    if (name, accountant) == FAST[0]:
        (tmp_path / "evidence.json").write_text(json.dumps(content), encoding="utf-8")
        assert run_alone(tmp_path, "recount.py", "evidence.json").returncode == 1


def make_release(number: int, event: kinds.Event) -> Release:
    """A release with the noise that its event says."""
    length, sigma = getattr(event, "length", 3), float(getattr(event, "sigma", 0))
    sigma = sigma or getattr(event, "share_sigma", 0) * math.sqrt(getattr(event, "n_shares", 1)) or 1000.0
    if isinstance(event, kinds.PureEvent):
        return Release(f"{number}/A/x", number, "A", event, length, event.epsilon * sigma, sigma)
    if isinstance(event, kinds.UnnoisedEvent):
        return Release(f"{number}/A/x", number, "A", event, length, 1.0, 0.0)
    return Release(f"{number}/A/x", number, "A", event, length, sigma / event.noise_multiplier, sigma)


MULTIPLIERS, SIGMAS = st.floats(0.7, 100), st.integers(2, 10**5)
LENGTHS, SHARES, RATES = st.sampled_from([1, 8, 200]), st.integers(1, 30), st.sampled_from([1.0, 0.5, 0.1, 0.01])
EVENTS: dict[str, st.SearchStrategy[kinds.Event]] = {
    "gaussian": st.builds(kinds.GaussianEvent, MULTIPLIERS),
    "whole": st.builds(kinds.DiscreteGaussianEvent, MULTIPLIERS, SIGMAS, LENGTHS),
    "shares": st.builds(kinds.DiscreteGaussianSumEvent, MULTIPLIERS, SIGMAS, SHARES, LENGTHS),
    "local": st.builds(kinds.LocalGaussianEvent, MULTIPLIERS, SIGMAS, LENGTHS),
    "laplace": st.builds(kinds.DiscreteLaplaceEvent, st.floats(0.01, 2), RATES),
    "choice": st.builds(kinds.SelectionEvent, st.floats(0.01, 2), RATES),
    "vector": st.builds(
        lambda epsilon, rate, share: kinds.DiscreteLaplaceVectorEvent(epsilon, rate, zcdp_weight=epsilon**2 * share),
        st.floats(0.01, 2), RATES, st.floats(1 / 3, 1),
    ),
    "sampled": st.builds(kinds.SampledGaussianEvent, MULTIPLIERS, RATES, SIGMAS, SHARES, LENGTHS),
    "filtered": st.builds(
        lambda *parts, **limits: kinds.FilteredGaussianEvent(*parts, **limits),
        MULTIPLIERS, RATES, SIGMAS, SHARES, LENGTHS, order=st.sampled_from([2, 8, 33, 130]),
        budget=st.floats(0.01, 20), scope=st.sampled_from(["", "1"]),
    ),
}  # fmt: skip


def test_every_kind_of_event_is_counted_again() -> None:
    """No kind of release that a ledger may have is left out of the property below."""
    drawn = {
        "gaussian", "discrete-gaussian", "discrete-gaussian-sum", "local-gaussian", "discrete-laplace", "selection",
        "discrete-laplace-vector", "sampled-gaussian", "filtered-sampled-gaussian",
    }  # fmt: skip
    assert drawn | {"unnoised"} == {kind.type_name for kind in get_args(kinds.Event)} and len(EVENTS) == len(drawn)


@settings(max_examples=60, deadline=None)
@given(
    events=st.lists(st.tuples(st.one_of(*EVENTS.values()), st.integers(1, 5)), min_size=1, max_size=4),
    delta=st.sampled_from([1e-5, 1e-6, 1e-9]), accountant=st.sampled_from(["gdp", "rdp", "pure"]),
)  # fmt: skip
def test_any_ledger_is_counted_as_its_accountant_does(
    events: list[tuple[kinds.Event, int]], delta: float, accountant: str
) -> None:
    """Whatever was released, the recount is as close to the reported figure as the page says, and never below."""
    check_ledger([event for event, count in events for _ in range(count)], delta, accountant)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    events=st.lists(st.tuples(st.one_of(*EVENTS.values()), st.integers(1, 5)), min_size=1, max_size=4),
    delta=st.sampled_from([1e-5, 1e-6]),
)  # fmt: skip
def test_any_ledger_is_counted_by_loss_distributions(events: list[tuple[kinds.Event, int]], delta: float) -> None:
    """As above, by the accountant that takes seconds: at most one percent above."""
    check_ledger([event for event, count in events for _ in range(count)], delta, "pld")


def check_ledger(events: list[kinds.Event], delta: float, accountant: str) -> None:
    """Compare a recount with the account that a report would give."""
    releases = Ledger(tuple(make_release(at, event) for at, event in enumerate(events))).to_json()
    account = compute_account(accountant, events, delta)
    found = recount.count_epsilon(recount.add_up(json.loads(releases)["releases"]), delta, account.by)
    if account.epsilon == math.inf:
        assert found == math.inf
        return
    close = 1e-4 if accountant == "rdp" or any(map(kinds.is_sample, events)) else 1e-6
    assert account.epsilon * (1 - 1e-12) <= found <= account.epsilon * (1 + (0.01 if accountant == "pld" else close))


def test_something_without_noise_has_no_bound() -> None:
    """A release without noise makes every figure infinite, as it does in the report."""
    releases = json.loads(Ledger((make_release(0, kinds.UnnoisedEvent()),)).to_json())["releases"]
    report = {"accounted_by": "gdp", "delta": 1e-6, "epsilon": "infinite"}
    found = recount.recount_pack({"releases": releases, "report": report})
    assert (found["epsilon"], found["agrees"]) == (math.inf, True)


def test_what_the_recount_cannot_count_is_never_passed_over() -> None:
    """A kind of release that it does not know, or that a sum of epsilons cannot hold, confirms no figure."""
    releases = [
        make_release(at, event) for at, event in enumerate([kinds.DiscreteLaplaceEvent(0.1), kinds.GaussianEvent(2.0)])
    ]
    both = [each.to_dict() for each in releases]
    assert recount.count_epsilon(recount.add_up(both), 1e-6, "pure") == math.inf
    both[1]["event"]["type"] = "gaussian-2"
    with pytest.raises(ValueError, match="gaussian-2"):
        recount.add_up(both)


def explain(*events: kinds.Event, accountant: str = "gdp") -> tuple[list[str], dict[str, Any]]:
    """What a pack of these events says of its recount, and the recount."""
    releases = json.loads(Ledger(tuple(make_release(at, event) for at, event in enumerate(events))).to_json())
    account = compute_account(accountant, events, 1e-6)
    content: dict[str, Any] = {
        "releases": releases["releases"],
        "report": {"accounted_by": account.by, "delta": 1e-6, "epsilon": account.epsilon},
        "ledger": [
            {"noise": each["event"]["type"], "terms": {"sampling_rate": each["event"].get("sampling_rate", 1.0)}}
            for each in releases["releases"]
        ],
    }
    content["recount"] = compare_accounts(content)
    return explain_recount(content), content["recount"]


SAMPLED = kinds.SampledGaussianEvent(2.0, 0.2, 10**6, 1, 8, 40)
FILTERED = kinds.FilteredGaussianEvent(2.0, 0.2, 10**6, 1, 8, 40, order=8, budget=0.2)
EXPLAINED: Mapping[str, tuple[tuple[kinds.Event, ...], str, set[str]]] = {
    "exact": ((kinds.DiscreteGaussianEvent(5.0, 10**7, 1),), "gdp", set()),
    "coarse": ((kinds.DiscreteGaussianEvent(5.0, 5, 1),), "gdp", {"whole numbers"}),
    "rdp": ((kinds.DiscreteGaussianEvent(5.0, 10**7, 1),), "rdp", {"converted"}),
    "samples": ((SAMPLED,), "gdp", {"converted", "whole orders"}),
    "filter": ((FILTERED,), "gdp", {"budget"}),
    "pure": ((kinds.DiscreteLaplaceEvent(0.1, count=40),), "pure", {"without delta"}),
    "pure, samples": ((kinds.DiscreteLaplaceEvent(0.2, 0.4, 40),), "pure", {"without delta"}),
    "pure, beside a sum": (
        (kinds.DiscreteLaplaceEvent(0.1, 0.4, 40), kinds.DiscreteGaussianEvent(5.0, 10**7, 1)),
        "gdp",
        {"stands"},
    ),
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_reason_is_named_only_where_it_is_one(name: str) -> None:
    """A difference of figures is explained by what makes it: the grid, Renyi's conversion, samples, a filter, delta."""
    events, accountant, words = EXPLAINED[name]
    said, found = explain(*events, accountant=accountant)
    every = {word for _, _, own in EXPLAINED.values() for word in own}
    assert {word for word in every if any(word in line for line in said)} == words
    assert found["agrees"]
    if name in ("rdp", "samples", "pure"):
        assert found["epsilon"] > found["tightest"] * 1.02


@given(events=st.lists(st.builds(kinds.GaussianEvent, st.floats(0.5, 100), st.integers(1, 50)), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_autodp_counts_gaussian_releases_as_rdp_does(events: list[kinds.Event]) -> None:
    """A second library, whose figure papers print, finds the Renyi epsilon of the same releases."""
    said, found = explain(*events, accountant="rdp")
    assert found["autodp"] == pytest.approx(found["epsilon"], rel=1e-6)
    assert any("autodp" in line for line in said)


@pytest.mark.parametrize("event", [SAMPLED, FILTERED, kinds.DiscreteLaplaceEvent(0.1)])
def test_autodp_is_asked_of_gaussian_releases_only(event: kinds.Event) -> None:
    """It would count others as what they are not, so nothing is said."""
    said, found = explain(event, kinds.DiscreteGaussianEvent(5.0, 10**7, 1))
    assert found["autodp"] is None and not any("autodp" in line for line in said)


def test_without_autodp_nothing_is_said_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra, and a pack needs none."""
    monkeypatch.setitem(sys.modules, "autodp.mechanism_zoo", None)
    said, found = explain(kinds.DiscreteGaussianEvent(5.0, 10**7, 1))
    assert found["autodp"] is None and found["agrees"] and not any("autodp" in line for line in said)


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_a_pack_of_an_earlier_model_is_counted_again(version: str, tmp_path: Path) -> None:
    """A model of an earlier release gives a pack, and its account is confirmed."""
    for label in ("binary", "survival"):
        model = Model.load(ROOT / "tests" / "compatibility" / version / f"model-{label}.json")
        assert gather(model, tmp_path)["recount"]["agrees"]


def test_a_report_that_says_too_little_is_told(tmp_path: Path) -> None:
    """A pack whose report was made smaller is not confirmed, and says so."""
    trained = train_run("boosting", "gdp")
    content = gather(trained, tmp_path)
    content["report"] |= {"epsilon": content["report"]["epsilon"] * 0.999}
    content["recount"] = compare_accounts(content)
    assert not content["recount"]["agrees"]
    assert any("DIFFER" in line for line in explain_recount(content))
