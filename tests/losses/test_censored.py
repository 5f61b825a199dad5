"""Measures of predicted times to an event, against their definitions and against another package."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.losses.censored import brier_scores, concordance, integrated_brier_score, read_times

Record = tuple[int, bool, int]
RECORDS = st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.integers(0, 4)), min_size=2, max_size=30)


def columns(records: list[Record]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    times, events, risks = zip(*records, strict=True)
    return np.array(times, dtype=float), np.array(events), np.array(risks, dtype=float)


def concordance_by_pairs(records: list[Record]) -> float:
    """The definition: every ordered pair of which the first is known to have had its event before the second."""
    right = pairs = 0.0
    for time, event, risk in records:
        for other_time, other_event, other_risk in records:
            if event and (time < other_time or (time == other_time and not other_event)):
                pairs += 1
                right += 1.0 if risk > other_risk else 0.5 if risk == other_risk else 0.0
    return right / pairs if pairs else math.nan


@given(RECORDS)
@settings(deadline=None)
def test_concordance_is_the_share_of_ordered_pairs(records: list[Record]) -> None:
    """A user who compares models reads Harrell's number, ties of times and of risks included."""
    assert concordance(*columns(records)) == pytest.approx(concordance_by_pairs(records), abs=1e-12, nan_ok=True)


def made(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times without ties, about a third of them censored, and a score that says something of them."""
    generator = np.random.default_rng(seed)
    score = generator.normal(size=n)
    times, lost = generator.exponential(np.exp(-score)), generator.exponential(1.5, n)
    return np.minimum(times, lost) + 1e-9, times <= lost, score + generator.normal(size=n)


def test_concordance_of_many_records() -> None:
    """The counting by bits does not go wrong where ranks need many bits; scikit-survival says the same."""
    reference = pytest.importorskip("sksurv.metrics")
    times, events, risks = made(3000, 1)
    times, risks = np.round(times, 2), np.round(risks, 1)
    expected = reference.concordance_index_censored(events, times, risks)[0]
    assert concordance(times, events, risks) == pytest.approx(expected, abs=1e-12)


def brier_by_definition(records: list[Record], survival: float, at: float) -> float:
    """Graf's estimate, one record after the other; the chance not to be lost is a product over times."""

    def seen(limit: float, *, also: bool) -> float:
        chance = 1.0
        for time in sorted({own for own, _, _ in records}):
            if time < limit or (also and time == limit):
                lost = sum(own == time and not event for own, event, _ in records)
                exposed = sum(own > time or (own == time and not event) for own, event, _ in records)
                chance *= 1 - lost / exposed if exposed else 1.0
        return chance

    total = 0.0
    for time, event, _ in records:
        if time <= at and event:
            total += survival**2 / seen(time, also=False)
        elif time > at:
            total += (1 - survival) ** 2 / seen(at, also=True)
    return total / len(records)


@given(RECORDS, st.floats(0, 1))
@settings(deadline=None)
def test_brier_scores_follow_their_definition(records: list[Record], survival: float) -> None:
    """Weights of records that were not lost are those of the definition, with ties of deaths and losses too."""
    times, events, _ = columns(records)
    at = np.array([0.5, 2.0, 3.0, 5.5, 7.0])
    expected = [brier_by_definition(records, survival, each) for each in at]
    found = brier_scores(times, events, np.full((len(records), len(at)), survival), at)
    assert found == pytest.approx(expected, abs=1e-12)


def test_brier_scores_against_another_package() -> None:
    """scikit-survival has the same scores, and the same integral up to where it begins."""
    reference = pytest.importorskip("sksurv.metrics")
    from sksurv.util import Surv

    times, events, score = made(400, 2)
    at = np.quantile(times, [0.1, 0.3, 0.5, 0.7, 0.9])
    survival = np.exp(-at * np.exp(score)[:, None])
    labels = Surv.from_arrays(events, times)
    expected = reference.brier_score(labels, labels, survival, at)[1]
    assert brier_scores(times, events, survival, at) == pytest.approx(expected, rel=1e-12)
    area = sum((b - a) * (y + x) / 2 for (a, x), (b, y) in pairwise(zip([0, *at], [0, *expected], strict=True)))
    assert integrated_brier_score(times, events, survival, at) == pytest.approx(area / at[-1], rel=1e-12)


def test_codes_say_what_is_known_of_a_time() -> None:
    """A record that was lost within an interval is not compared with an event of that interval, and a later one is."""
    ends = np.array([1.0, 2.0, 4.0])
    times, events = read_times(np.array([0, 1, 2, 3, 4, 5, 6]), ends)
    assert times.tolist() == [0.5, 1, 1.5, 2, 3, 4, 8]
    assert events.tolist() == [False, True, False, True, False, True, False]
    assert math.isnan(concordance(*read_times(np.array([2, 3]), ends), np.array([0.0, 1.0])))
    assert concordance(*read_times(np.array([3, 4]), ends), np.array([1.0, 0.0])) == 1
