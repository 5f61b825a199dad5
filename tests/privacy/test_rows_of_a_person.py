"""What a report of rows means for a person who has several of them, and what it says that it rests on."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.errors import PrivacyError
from hedgerow.local.forecast import forecast
from hedgerow.local.training import train
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import compute_sampled_divergence, epsilon_renyi, get_accountant, mu_of
from hedgerow.privacy.cost import KNOWN_EVENTS, for_rows
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    DiscreteLaplaceEvent,
    DiscreteLaplaceVectorEvent,
    Event,
    FilteredGaussianEvent,
    GaussianEvent,
    LocalGaussianEvent,
    SampledGaussianEvent,
    SelectionEvent,
    UnnoisedEvent,
)
from hedgerow.privacy.ledger import Ledger, Release, read_prepared_ledger
from hedgerow.privacy.noise import SystemNoise
from hedgerow.privacy.public import PublicInputs
from hedgerow.privacy.report import PrivacyContext, PrivacyReport, build_report
from tests.builders import bare_plan, make_data, make_plan

EVENTS: tuple[Event, ...] = (
    GaussianEvent(9.0, count=3),
    DiscreteGaussianEvent.from_integers(90_000, 10**8, 32),
    DiscreteGaussianSumEvent.from_shares(40_000, 4, 10**8, 32),
    LocalGaussianEvent.from_integers(90_000, 10**8, 32),
    DiscreteLaplaceEvent(0.02, 0.5, 7),
    DiscreteLaplaceVectorEvent(0.02, 1.0, 7, zcdp_weight=1e-4),
    SelectionEvent(0.02, 1.0, 7),
    SampledGaussianEvent(4.0, 0.05, 40_000, 1, 32, 20),
    FilteredGaussianEvent(4.0, 0.05, 40_000, 1, 32, 20, order=4, budget=0.02),
    FilteredGaussianEvent(9.0, 1.0, 90_000, 1, 32, 20, order=4, budget=0.2),
    UnnoisedEvent(),
)


def ledger_of(*events: Event) -> Ledger:
    releases = []
    for at, event in enumerate(events):
        sigma = float(getattr(event, "sigma", 0) or getattr(event, "share_sigma", 1))
        sigma *= math.sqrt(getattr(event, "n_shares", 1))
        sensitivity = sigma / getattr(event, "noise_multiplier", 1 / getattr(event, "epsilon", 1.0))
        releases.append(Release(f"run/{at}", at, "LeafSums", event, 32, sensitivity, sigma))
    return Ledger(tuple(releases))


MODES = {LocalGaussianEvent: "local", DiscreteGaussianSumEvent: "distributed"}


def report(*events: Event, **about: Any) -> PrivacyReport:
    return build_report(ledger_of(*events), PrivacyContext(**{"delta": 1e-5, **about}))


def epsilon_by_mpmath(mu: mpmath.mpf, delta: float) -> mpmath.mpf:
    """The definition itself, at sixty digits."""
    with mpmath.workdps(60):
        low, high = mpmath.mpf(0), mpmath.mpf(100)
        for _ in range(120):
            middle = (low + high) / 2
            found = mpmath.ncdf(mu / 2 - middle / mu) - mpmath.exp(middle) * mpmath.ncdf(-mu / 2 - middle / mu)
            low, high = (middle, high) if found > delta else (low, middle)
        return high


@pytest.mark.parametrize("n_rows", [1, 2, 3, 5])
def test_rows_of_a_gaussian_run_are_exact(n_rows: int) -> None:
    """Of n rows mu is n times that of one: epsilon from the ledger's own sigmas is what mpmath finds, and not below."""
    releases, weight = [], mpmath.mpf(0)
    for at, (sigma, squared) in enumerate(itertools.product((70_000, 90_001), (10**8, 3 * 10**8))):
        event = DiscreteGaussianEvent.from_integers(sigma, squared, 8)
        releases.append(Release(f"run/{at}", at, "LeafSums", event, 8, math.sqrt(squared), sigma))
        weight += mpmath.mpf(squared) / mpmath.mpf(sigma) ** 2
    found = build_report(Ledger(tuple(releases)), PrivacyContext(delta=1e-6)).epsilon_of_rows(n_rows)
    exact = epsilon_by_mpmath(n_rows * mpmath.sqrt(weight), 1e-6)
    assert exact <= found <= exact * (1 + mpmath.mpf(10) ** -7)


def test_a_person_with_five_rows_is_told_so() -> None:
    """Epsilon 1 at delta 1e-5 for a row is 3.41, a factor of 30, for three of one person, and 6.17, 477, for five."""
    found = report(GaussianEvent(1 / mu_of(1.0, 1e-5)))
    assert round(found.epsilon_of_rows(3), 2) == 3.41 and round(math.exp(found.epsilon_of_rows(3))) == 30
    assert round(found.epsilon_of_rows(5), 2) == 6.17 and round(math.exp(found.epsilon_of_rows(5))) == 477
    assert "3.41" in found.text() and "6.17" in found.text() and "477" in found.text()
    assert found.to_dict()["epsilon_by_rows_of_one_person"]["5"] == found.epsilon_of_rows(5)
    person = report(GaussianEvent(5.0), unit="person", max_rows_per_unit=5)
    assert "epsilon_by_rows_of_one_person" not in person.to_dict() and "6.17" not in person.text()


@pytest.mark.parametrize("accountant", ["gdp", "rdp"])
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_more_rows_cost_more_and_no_more_than_any_group_may(event: Event, accountant: str) -> None:
    """Of every kind of release: a bound never falls with the rows, and is below k epsilon where that is a bound."""
    one = report(event, accountant=accountant, noise_mode=MODES.get(type(event), "server"))
    found = [one.epsilon_of_rows(n_rows) for n_rows in (1, 2, 3, 5)]
    assert found == sorted(found) and len(set(found)) == (1 if isinstance(event, UnnoisedEvent) else 4)
    if isinstance(event, DiscreteLaplaceEvent):
        pure = report(event, accountant="pure")
        assert pure.epsilon_of_rows(3) == pytest.approx(3 * pure.epsilon, rel=1e-9)


def test_every_kind_of_release_is_among_them() -> None:
    """A new kind of event says what several rows of it cost, or a report of it is refused."""
    assert {type(event) for event in EVENTS} == set(KNOWN_EVENTS)

    class Other(GaussianEvent):
        pass

    with pytest.raises(PrivacyError) as caught:
        for_rows(Other(1.0), 2)
    assert caught.value.code == "unknown-event"


@given(rate=st.floats(0.01, 0.6), noise=st.floats(0.8, 6.0), n_rows=st.integers(2, 5), order=st.integers(2, 12))
def test_rows_in_samples_cost_no_more_than_is_said(rate: float, noise: float, n_rows: int, order: int) -> None:
    """Each row is drawn by itself: the divergence of that very mixture, integrated, is below that of the event."""
    shifts = np.arange(n_rows + 1)
    chances = np.array([math.comb(n_rows, k) * rate**k * (1 - rate) ** (n_rows - k) for k in shifts])
    at = np.linspace(-12 * noise, n_rows + 12 * noise, 20_001)
    logs = [np.log(chance) - (at - shift) ** 2 / 2 / noise**2 for chance, shift in zip(chances, shifts, strict=True)]
    absent, present = -(at**2) / 2 / noise**2, np.logaddexp.reduce(logs)
    scale = math.log((at[1] - at[0]) / noise / math.sqrt(2 * math.pi))
    exact = [
        (np.logaddexp.reduce(order * own + (1 - order) * other) + scale) / (order - 1)
        for own, other in ((present, absent), (absent, present))
    ]
    event = for_rows(SampledGaussianEvent(noise, rate, 40_000, 1, 1), n_rows)
    assert isinstance(event, SampledGaussianEvent)
    assert max(exact) <= compute_sampled_divergence(order, event.sampling_rate, event.noise_multiplier) + 1e-9


def test_two_runs_add_up() -> None:
    """What a report says of a second run like it is the account of both; a filter's budget is spent in each."""
    one = report(EVENTS[8])
    assert one.epsilon_of_two_runs > one.epsilon
    twice = [dataclasses.replace(EVENTS[8], scope=scope) for scope in ("1", "2")]
    assert one.epsilon_of_two_runs == epsilon_renyi(twice, 1e-5)
    both = get_accountant("gdp").epsilon([GaussianEvent(4.0)] * 2, 1e-5)
    assert report(GaussianEvent(4.0)).epsilon_of_two_runs == both


def origins_plan(origins: list[str], label: str = "declared", *, prepared: bool = True, **privacy: Any) -> Plan:
    """A plan of as many columns as origins are given, "c0" and so on."""
    counted = {"kind": "RecordCount", "subject": "records", "length": 1, "sensitivity_squared": 1, "sigma": 50}
    features = [
        {"name": f"c{at}", "type": "categorical", "categories": ["a", "b", "c"], "origin": origin}
        if at % 2
        else {"name": f"c{at}", "type": "date", "min": "2001-01-01", "max": "2020-12-31", "origin": origin}
        for at, origin in enumerate(origins)
    ]
    releases = [counted, {**counted, "kind": "OctaveCounts"}] if prepared else []
    ill = {"name": "ill", "type": "binary", "classes": ["no", "yes"], "origin": label}
    return bare_plan(ill, features, name="ward", prepared=releases, n_records=900, privacy=privacy)


def report_of_plan(plan: Plan) -> PrivacyReport:
    releases = [*read_prepared_ledger(plan), Release("0/LeafSums", 0, "LeafSums", GaussianEvent(9.0), 1, 1.0, 9.0)]
    return build_report(Ledger(tuple(releases)), PrivacyContext.from_plan(plan))


def test_what_is_taken_as_public_is_all_that_the_plan_has_with_where_it_is_from() -> None:
    """No column, bound, category, class or number of a plan is left out of the report, and none is called declared
    that was found, was a type's, or was read off rows."""
    plan = origins_plan(["declared", "found", "type", "data"], label="found")
    found = report_of_plan(plan)
    public = json.loads(json.dumps(found.to_dict()))["taken_as_public"]
    assert public["plan"] == {"name": "ward", "digest": plan.digest}
    assert public["n_records"] == {"value": 900, "origin": "found"}
    assert [(own["name"], own["role"], own["origin"]) for own in public["columns"]] == [
        *((f"c{at}", "feature", origin) for at, origin in enumerate(["declared", "found", "type", "data"])),
        ("ill", "label", "found"),
    ]
    assert public["columns"][0]["min"] == "2001-01-01" and public["columns"][1]["categories"] == ["a", "b", "c"]
    assert found.guarantee == "void"
    declared = report_of_plan(origins_plan(["declared"] * 2, prepared=False, bounds_from_data=True, unit="who"))
    origins = [own.origin for own in declared.public.columns] if declared.public else []
    assert origins == ["data"] * 3 + ["declared"] and declared.guarantee == "void"


def test_settings_that_were_chosen_are_taken_as_public_too() -> None:
    """Weights of classes or directions that somebody counted in the rows stand in the report, as bounds do."""
    ill = {"name": "ill", "type": "binary", "classes": ["no", "yes"]}
    features = [{"name": f"c{at}", "type": "numeric", "min": 0, "max": 1, "monotone": "increasing"} for at in range(40)]
    apart = [[each["name"]] for each in features]
    model = {"class_weights": [1.0, 4.7], "n_trees": 7, "structure_seed": 5, "interaction_constraints": apart}
    found = report_of_plan(bare_plan(ill, features, model=model))
    public = json.loads(json.dumps(found.to_dict()))["taken_as_public"]
    assert public["settings"] == {f"model.{name}": value for name, value in model.items()}
    assert {own.get("monotone") for own in public["columns"][:-1]} == {"increasing"}
    text = found.text()
    assert "model.class_weights [1.0, 4.7]" in text and "of 40 features" in text and "[[" not in text
    own = bare_plan({"name": "n", "type": "regression", "min": 0, "max": 9}, features[:1], loss={"name": "huber"})
    assert dict(PublicInputs.from_plan(own).settings)["loss.name"] == "huber"


def test_a_report_of_many_columns_stays_short_and_names_what_nobody_declared() -> None:
    """Of 3,000 columns a person reads some lines; those whose categories a type gave are named among them."""
    text = report_of_plan(origins_plan(["declared"] * 2990 + ["type"] * 10)).text()
    assert len(text) < 6000
    assert "c2991" in text and "2,990" in text


def test_a_report_holds_only_for_somebody_and_given_something() -> None:
    """No line with HOLDS can be read alone and taken for a promise about a person, or without what is public."""
    rows, person = (
        origins_plan(["declared"]),
        origins_plan(["declared"], unit="who", max_rows_per_unit=4, prepared=False),
    )
    for plan in (rows, person):
        found = report_of_plan(plan)
        lines = [line for line in found.text().splitlines() if "HOLDS" in line]
        whom = "one record" if plan is rows else "one who"
        assert lines == [found.headline] and whom in lines[0] and "public" in lines[0]
        assert "one of them" not in found.text()
        assert plan.digest in found.text() and found.text().count("add up") == 1


def test_a_report_says_what_one_line_amounts_to_where_cells_may_hold_line_breaks() -> None:
    """One line may then add and remove records of its neighbours: their number, and epsilon for as many, are told."""
    found = report(GaussianEvent(5.0), public=PublicInputs((), line_breaks=2))
    assert found.to_dict()["epsilon_of_one_line"] == found.epsilon_of_rows(6) > found.epsilon_of_rows(5)
    assert "privacy.line_breaks" in found.text()
    without = report(GaussianEvent(5.0), public=PublicInputs(()))
    assert "epsilon_of_one_line" not in without.to_dict() and "line_breaks" not in without.text()


@pytest.mark.parametrize("noise", ["server", "distributed", "local"])
@pytest.mark.parametrize("accountant", ["gdp", "rdp"])
def test_a_plan_says_beforehand_what_its_report_will_say(accountant: str, noise: str) -> None:
    """Who approves a run sees what several rows of a person amount to; where people are protected there is nothing."""
    plan = make_plan(privacy={"accountant": accountant, "noise": noise}, model={"n_trees": 4})
    report = train(plan, {f"s{i}": make_data(plan, 30, i) for i in range(3)}, noise=SystemNoise(os.urandom)).report
    expected = forecast(plan).epsilon_by_rows
    assert expected == pytest.approx({count: report.epsilon_of_rows(count) for count in (2, 3, 5)}, rel=1e-4)
    people = dataclasses.replace(plan, privacy=dataclasses.replace(plan.privacy, unit="who", max_rows_per_unit=2))
    assert not forecast(people).epsilon_by_rows


@pytest.mark.parametrize("event", [EVENTS[7], EVENTS[8]], ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("n_rows", [2, 3, 5])
def test_of_samples_the_bound_for_groups_is_taken_where_it_says_less(event: Event, n_rows: int) -> None:
    """No report of samples says more than what holds for groups of rows under any mechanism, nor less than one row."""
    found = report(event).epsilon_of_rows(n_rows)
    for part in np.geomspace(1e-5, 1e-9, 30):
        epsilon = get_accountant("gdp").epsilon([event], float(part))
        if part * math.expm1(n_rows * epsilon) / math.expm1(epsilon) <= 1e-5:
            assert found <= n_rows * epsilon * (1 + 1e-2)
            break
    else:
        pytest.fail("no part of delta is small enough")
    assert found > report(event).epsilon
