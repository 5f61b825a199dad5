"""Events and the ledger: what they refuse, and that nothing is lost or changed in JSON."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.errors import PrivacyError
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    Event,
    GaussianEvent,
    UnnoisedEvent,
    event_from_dict,
    round_multiplier,
)
from hedgerow.privacy.ledger import Ledger, Release

positive = st.integers(1, 10**12)
multipliers = st.floats(1e-6, 1e12)
all_events: st.SearchStrategy[Event] = st.one_of(
    st.builds(GaussianEvent, multipliers, positive),
    st.builds(DiscreteGaussianEvent, multipliers, positive, positive, positive),
    st.builds(DiscreteGaussianSumEvent, multipliers, positive, positive, positive, positive),
    st.just(UnnoisedEvent()),
)


def _release(purpose: str, event: Event | None = None, **changes: Any) -> Release:
    values: dict[str, Any] = {"round": 0, "kind": "LeafSums", "length": 32, "sensitivity": 1024.0, "sigma": 20480}
    return Release(purpose=purpose, event=event or GaussianEvent(20.0), **{**values, **changes})


@given(all_events)
def test_events_survive_json(event: Event) -> None:
    """Protects the ledger's content: an event read back is the event written, floats to the last bit."""
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event
    assert type(event).from_dict(event.to_dict()) == event


def test_type_names_are_stable() -> None:
    """Protects stored ledgers: these names and fields are in files and never change."""
    assert GaussianEvent(2.0, 3).to_dict() == {"type": "gaussian", "noise_multiplier": 2.0, "count": 3}
    assert UnnoisedEvent().to_dict() == {"type": "unnoised"}
    assert DiscreteGaussianEvent(2.0, 5, 7).to_dict() == {
        "type": "discrete-gaussian",
        "noise_multiplier": 2.0,
        "sigma": 5,
        "length": 7,
        "count": 1,
    }
    assert DiscreteGaussianSumEvent(2.0, 5, 6, 7).to_dict() == {
        "type": "discrete-gaussian-sum",
        "noise_multiplier": 2.0,
        "share_sigma": 5,
        "n_shares": 6,
        "length": 7,
        "count": 1,
    }


@pytest.mark.parametrize("name", ["laplace", "", None, 3, "Gaussian"])
def test_unknown_event_types_are_refused(name: object) -> None:
    """Protects failing closed when a newer ledger is read."""
    with pytest.raises(PrivacyError) as caught:
        event_from_dict({"type": name, "noise_multiplier": 1.0, "count": 1})
    assert caught.value.code == "unknown-event"


@pytest.mark.parametrize(
    "data",
    [
        {"type": "gaussian", "noise_multiplier": 1.0},
        {"type": "gaussian", "noise_multiplier": 1.0, "count": 1, "surplus": 1},
        {"type": "gaussian", "noise_multiplier": 0.0, "count": 1},
        {"type": "gaussian", "noise_multiplier": math.inf, "count": 1},
        {"type": "gaussian", "noise_multiplier": math.nan, "count": 1},
        {"type": "gaussian", "noise_multiplier": "1", "count": 1},
        {"type": "gaussian", "noise_multiplier": True, "count": 1},
        {"type": "gaussian", "noise_multiplier": 1.0, "count": 0},
        {"type": "gaussian", "noise_multiplier": 1.0, "count": 1.5},
        {"type": "discrete-gaussian", "noise_multiplier": 1.0, "sigma": 0, "length": 1, "count": 1},
        {
            "type": "discrete-gaussian-sum",
            "noise_multiplier": 1.0,
            "share_sigma": 1,
            "n_shares": 0,
            "length": 1,
            "count": 1,
        },
    ],
)
def test_malformed_events_are_refused(data: dict[str, object]) -> None:
    """Protects accounting from values that would make a release free."""
    with pytest.raises(PrivacyError) as caught:
        event_from_dict(data)
    assert caught.value.code == "malformed-event"


def test_an_event_is_not_read_as_another_kind() -> None:
    """Protects `from_dict` of one kind from the dictionary of another."""
    with pytest.raises(PrivacyError):
        GaussianEvent.from_dict(UnnoisedEvent().to_dict())


@given(st.integers(1, 2**120), st.integers(1, 2**120))
def test_noise_multipliers_of_integers_are_rounded_down(sigma_squared: int, sensitivity_squared: int) -> None:
    """Protects the claim of noise: exactly at most the true ratio, and within 1e-15 of it."""
    ours = Fraction(round_multiplier(sigma_squared, sensitivity_squared))
    truth = Fraction(sigma_squared, sensitivity_squared)
    assert ours * ours <= truth
    assert ours * ours >= truth * (1 - Fraction(1, 10**15))


PURPOSES = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=20)


@settings(max_examples=50)
@given(st.lists(PURPOSES, unique=True, max_size=10), st.data())
def test_a_ledger_survives_json(purposes: list[str], data: st.DataObject) -> None:
    """Protects stored runs: same releases in the same order, same bytes when written again."""
    ledger = Ledger()
    for index, purpose in enumerate(purposes):
        ledger = ledger.append(
            _release(purpose, data.draw(st.sampled_from([GaussianEvent(3.5), UnnoisedEvent()])), round=index)
        )
    again = Ledger.from_json(ledger.to_json())
    assert again == ledger
    assert again.to_json() == ledger.to_json()
    assert [release.purpose for release in again] == purposes
    assert list(again.events()) == [release.event for release in ledger]
    assert len(again) == len(purposes)


def test_a_purpose_is_released_once() -> None:
    """Protects against averaging noise away: a second release is refused in memory, in the constructor, in a file."""
    ledger = Ledger().append(_release("run/1/LeafSums"))
    doubled = json.loads(ledger.to_json())
    doubled["releases"] *= 2
    for attempt in (
        lambda: ledger.append(_release("run/1/LeafSums", round=5)),
        lambda: Ledger((*ledger.releases, *ledger.releases)),
        lambda: Ledger.from_json(json.dumps(doubled)),
    ):
        with pytest.raises(PrivacyError) as caught:
            attempt()
        assert caught.value.code == "purpose-released-twice"


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abcdef")), max_size=30))
def test_append_leaves_every_other_ledger_alone(steps: list[tuple[int, str]]) -> None:
    """Protects immutability: whatever others made of a ledger, it takes each purpose once, and none is lost to it."""
    ledgers, expected = [Ledger()], [list[str]()]
    for place, purpose in steps:
        before, known = ledgers[place % len(ledgers)], expected[place % len(ledgers)]
        if purpose in known:
            with pytest.raises(PrivacyError) as caught:
                before.append(_release(purpose))
            assert caught.value.code == "purpose-released-twice"
        else:
            ledgers.append(before.append(_release(purpose)))
            expected.append([*known, purpose])
    assert [[release.purpose for release in ledger] for ledger in ledgers] == expected


def test_a_release_cannot_claim_more_noise_than_it_had() -> None:
    """Protects the link of event and noise: multiplier <= sigma / sensitivity, exact integers included."""
    assert _release("a", GaussianEvent(20.0)).event == GaussianEvent(20.0)
    assert _release("a", DiscreteGaussianEvent.from_integers(20480, 1024**2, 32))
    with pytest.raises(PrivacyError) as caught:
        _release("a", GaussianEvent(20.001))
    assert caught.value.code == "malformed-ledger"


@pytest.mark.parametrize(
    "changes",
    [
        {"purpose": ""},
        {"round": -1},
        {"length": 0},
        {"sensitivity": 0.0},
        {"sensitivity": math.nan},
        {"sigma": 0},
        {"sigma": math.inf},
    ],
)
def test_releases_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    """Protects the ledger from lines that say nothing."""
    with pytest.raises(PrivacyError):
        _release(**{"purpose": "a", **changes})


def test_an_unnoised_release_may_have_no_sigma() -> None:
    """Protects experiments with epsilon = infinity: they are recorded, with sigma 0."""
    assert _release("a", UnnoisedEvent(), sigma=0).sigma == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 3, "releases": []}',
        '{"version": 1}',
        '{"version": 1, "releases": [{}]}',
        '{"version": 1, "releases": [3]}',
        '{"version": 1, "releases": [',
    ],
)
def test_broken_ledgers_are_refused(text: str) -> None:
    """Protects against a truncated or newer file being read as a cheaper run."""
    with pytest.raises(PrivacyError) as caught:
        Ledger.from_json(text)
    assert caught.value.code == "malformed-ledger"
