"""Sentences about a run are true of it: each has its condition, and its numbers are held to slow counts."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

from hedgerow.models.model import Model
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    DiscreteLaplaceEvent,
    Event,
    FilteredGaussianEvent,
    GaussianEvent,
    SampledGaussianEvent,
    SelectionEvent,
    UnnoisedEvent,
)
from hedgerow.privacy.guesses import bound_guesses, compute_meeting_chance
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.report import PrivacyReport, build_report
from hedgerow.privacy.statement import KINDS, PLACES, TOGETHER, Depth, Topic, format_share, make_statement
from hedgerow.protocol.queries import NoiseCohort
from hedgerow.rounds import choose_wishes
from hedgerow.secagg.guarantees import combine_guarantees, derive
from tests.builders import make_data, make_plan, train
from tests.privacy.sentences import form_cohort, make_report, make_runs, noise_of_sites

Pair = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Probabilities of the same outcomes with a unit and without it."""


@pytest.fixture(scope="module")
def runs() -> dict[str, PrivacyReport]:
    """Runs of different kinds."""
    return make_runs()


def test_every_sentence_is_reached_by_some_run(runs: dict[str, PrivacyReport]) -> None:
    """An editor sees an example of every sentence, and none stands in the code that no run can bring about."""
    found = {each.name for report in runs.values() for each in report.statement.sentences}
    assert found == {kind.name for kind in KINDS}
    assert len(KINDS) == len(found) and all(kind.condition for kind in KINDS if kind.conditions)


def test_a_statement_has_a_sentence_exactly_where_its_conditions_hold(runs: dict[str, PrivacyReport]) -> None:
    """No sentence is printed for a run that it is not true of, and none is left out of one that it is true of."""
    for report in runs.values():
        names = [each.name for each in make_statement(report).sentences]
        assert names == [kind.name for kind in KINDS if all(holds(report) for holds in kind.conditions)]
        by_topic = [each.name for topic in Topic for each in make_statement(report, topic).sentences]
        assert sorted(by_topic) == sorted(names)


def test_deeper_readers_read_what_others_read(runs: dict[str, PrivacyReport]) -> None:
    """A nurse's sentences stand in the analyst's statement, and the analyst's in the checker's."""
    for report in runs.values():
        person, analyst, checker = (set(report.statement.list_texts(depth=depth)) for depth in Depth)
        assert person <= analyst <= checker and person


@pytest.mark.parametrize("mode", ["server", "distributed", "local"])
def test_who_had_all_tables_is_never_said_to_be_kept_from_rows(runs: dict[str, PrivacyReport], mode: str) -> None:
    """Who read all tables has seen every row, whoever adds the noise by the plan; an unknown place promises less."""
    for report in runs.values():
        if report.noise_mode != mode or report.evaluated_in or report.guarantee == "void":
            continue
        for here in (report.made(place, 3) for place in TOGETHER):
            assert "oordinator" not in here.trust.replace(", coordinator", "") and "every row" in here.trust
            assert "network" not in " ".join(here.statement.list_texts())
        assert "every row" in report.made("").trust
        elsewhere = [report.made(place, 3).trust for place in PLACES if place not in TOGETHER]
        assert all("every row" not in text for text in elsewhere)


def test_the_sites_that_a_report_counts_are_those_that_the_protocol_withstands() -> None:
    """Whoever signs reads how many may collude, of a group and of all sites: what every node derives, for every n."""
    for n_sites, n_groups, echo in itertools.product([*range(3, 40), 50, 60, 100, 200], (0, 3, 5), (False, True)):
        least = n_sites // max(1, n_groups)
        if least < 3:
            continue
        sizes = sorted({least, -(-n_sites // max(1, n_groups))})
        plan = make_plan("binary", {})
        plan = replace(plan, federation=replace(plan.federation, groups=n_groups, echo=echo or None))
        each = [derive(size, choose_wishes(plan, sizes)) for size in sizes]
        promised = combine_guarantees(each)
        cohort = NoiseCohort(promised.n_nodes, promised.n_colluders, promised.honest_group)
        report = make_report([noise_of_sites(0, cohort)], noise_mode="distributed", n_groups=n_groups)
        numbers = [int(number) for number in re.findall(r"\d+", report.made("network", n_sites, 8).trust)]
        (c,) = {guarantees.n_colluders for guarantees in each}
        assert numbers == ([c, *sizes, n_sites, c] if n_groups else [c, n_sites])
        assert c == max(1, (least - 1) // 4) or least > 50


@given(
    trained=st.lists(st.integers(3, 40), min_size=1, max_size=3),
    evaluated=st.lists(st.integers(3, 40), min_size=1, max_size=3),
    place=st.sampled_from([place for place in PLACES if place not in TOGETHER]),
)
def test_no_release_withstands_fewer_colluders_than_a_report_says(
    trained: list[int], evaluated: list[int], place: str
) -> None:
    """An evaluation that fewer sites were in has less unknown noise, and the report says how many may collude there."""
    releases = [noise_of_sites(at, form_cohort(n)) for at, n in enumerate(trained)]
    later = [noise_of_sites(at, form_cohort(n), kind="ScoreHistogram") for at, n in enumerate(evaluated, len(trained))]
    report = make_report([*releases, *later], noise_mode="distributed", evaluated_in=(place,)).made(place, max(trained))
    said = [int(number) for number in re.findall(r"at most (\d+) of", report.trust)]
    assert min(said) == min(form_cohort(n).n_colluders for n in [*trained, *evaluated])


def test_two_who_work_together_meet_as_often_as_in_all_ways_to_deal_groups() -> None:
    """The chance that colluders meet is counted over every way in which the roster can be dealt."""
    for n_sites, n_groups, n_together, n_beside in itertools.product((6, 7), (2, 3), (2, 3), (0, 1)):
        deals = [place % n_groups for place in range(n_sites)]
        ways = list(itertools.permutations(deals))
        meet = Fraction(sum(len(set(way[: n_together + n_beside])) == 1 for way in ways), len(ways))
        for n_drawings in (1, 8):
            found = compute_meeting_chance(n_sites, n_groups, n_drawings, n_together, n_beside)
            assert found == 1 - (1 - meet) ** n_drawings


# Guesses: the exact optimum, by outcomes ------------------------------------------------------------------------------


def _tell(event: Event) -> list[Pair]:
    """Each release of an event as a mechanism that costs what the event says, told by outcomes."""
    if isinstance(event, DiscreteLaplaceEvent):
        likely = 1 / (1 + math.exp(-event.epsilon))
        answer = np.array([likely, 1 - likely])
        with_unit = event.sampling_rate * answer + (1 - event.sampling_rate) * answer[::-1]
        return [(with_unit, answer[::-1])] * event.count
    if isinstance(event, SelectionEvent):
        likely = 1 / (1 + math.exp(-event.epsilon))
        return [(np.array([likely, 1 - likely]), np.array([0.5, 0.5]))] * event.count
    assert not isinstance(event, UnnoisedEvent)
    shift = 1 / event.noise_multiplier
    if isinstance(event, DiscreteGaussianEvent):
        values = np.arange(-6 * event.sigma - 4, 8 * event.sigma + 4)
        moved = round(shift * event.sigma)
        with_unit, without = (np.exp(-((values - at) ** 2) / (2 * event.sigma**2)) for at in (moved, 0))
        return [(with_unit / with_unit.sum(), without / without.sum())] * event.count
    edges = np.concatenate([[-np.inf], np.linspace(-6, shift + 6, 150), [np.inf]])
    with_unit, without = (np.diff(norm.cdf(edges, loc=at)) for at in (shift, 0.0))
    rate = event.sampling_rate if isinstance(event, SampledGaussianEvent) else 1.0
    return [(rate * with_unit + (1 - rate) * without, without)] * event.count


def _compose(pairs: Sequence[Pair]) -> Pair:
    """All releases together; outcomes that are told apart least are merged, which never helps who guesses."""
    p, q = np.ones(1), np.ones(1)
    for with_unit, without in pairs:
        p, q = np.outer(p, with_unit).ravel(), np.outer(q, without).ravel()
        order = np.argsort(np.log(p + 1e-300) - np.log(q + 1e-300), kind="stable")
        mass = np.cumsum((p + q)[order])
        starts = np.unique([0, *np.searchsorted(mass, np.linspace(0, 2, 150, endpoint=False))[1:]])
        p, q = np.add.reduceat(p[order], starts), np.add.reduceat(q[order], starts)
    return p, q


def _guess_best(events: Sequence[Event]) -> float:
    p, q = _compose([pair for event in events for pair in _tell(event)])
    return (1 + float(np.abs(p - q).sum()) / 2) / 2


MULTIPLIERS = st.floats(0.5, 20.0)
EVENTS = st.one_of(
    st.builds(GaussianEvent, MULTIPLIERS, st.integers(1, 3)),
    st.builds(DiscreteLaplaceEvent, st.floats(0.01, 2.0), st.sampled_from([0.1, 0.5, 1.0]), st.integers(1, 2)),
    st.builds(SelectionEvent, st.floats(0.01, 2.0)),
    st.builds(SampledGaussianEvent, MULTIPLIERS, st.floats(0.01, 1.0), st.just(100), st.just(1), st.just(1),
              st.integers(1, 3)),
    st.integers(1, 8).map(lambda shift: DiscreteGaussianEvent.from_integers(8, shift * shift, 1)),
)  # fmt: skip


@given(st.lists(EVENTS, min_size=1, max_size=4))
def test_no_guess_is_right_more_often_than_a_statement_says(events: list[Event]) -> None:
    """A person is told a bound on guesses about them: no test of what such releases show may do better."""
    assert _guess_best(events) <= bound_guesses(events) + 1e-9


@settings(max_examples=40)
@given(st.lists(EVENTS, min_size=1, max_size=3), st.floats(0.1, 3.0))
def test_a_filter_and_a_promise_only_lower_the_bound(events: list[Event], epsilon: float) -> None:
    """What else is known of a run never makes its statement say more, and never less than a coin."""
    whole = bound_guesses(events)
    assert 0.5 <= bound_guesses(events, epsilon, 1e-6) <= whole
    filtered = [
        FilteredGaussianEvent(**{**vars(event), "order": 4, "budget": 0.05})
        if isinstance(event, SampledGaussianEvent) else event for event in events
    ]  # fmt: skip
    assert 0.5 <= bound_guesses(filtered) <= whole * (1 + 1e-9)


def test_the_bound_is_the_optimum_where_one_is_known() -> None:
    """Gaussian and pure releases have exact optima: a bound above them would scare people for nothing."""
    for mu in (0.01, 0.2, 1.0, 3.0):
        assert bound_guesses([GaussianEvent(1 / mu)]) == pytest.approx(norm.cdf(mu / 2), rel=1e-9)
    for epsilon in (0.1, 1.0, 3.0):
        assert bound_guesses([DiscreteLaplaceEvent(epsilon)]) == pytest.approx(1 / (1 + math.exp(-epsilon)), rel=1e-9)
    shares = DiscreteGaussianSumEvent.from_shares(1000, 4, 10**6, 8)
    assert bound_guesses([shares] * 3) == pytest.approx(norm.cdf(math.sqrt(3) / 4), rel=1e-5)
    assert bound_guesses([UnnoisedEvent()]) == 1.0 and bound_guesses([GaussianEvent(1e-9)]) == 1.0
    samples = [SampledGaussianEvent(2.0, 0.2, 1000, 1, 8)] * 20
    assert _guess_best(samples) <= bound_guesses(samples) <= 1.1 * _guess_best(samples)


@given(st.floats(0.5, 1.0))
def test_shares_are_rounded_up(share: float) -> None:
    """A statement never shows less than the bound that was computed."""
    shown = float(format_share(share).removesuffix(" %")) / 100
    assert share <= shown * (1 + 1e-15) and shown - share < 0.0011


# Files ----------------------------------------------------------------------------------------------------------------


def test_a_model_file_keeps_where_it_was_made_and_an_old_one_says_that_it_does_not(tmp_path: Path) -> None:
    """A statement of trust is read from the file: it must survive it, and a file from before must claim nothing."""
    plan = make_plan("binary", {"n_trees": 2})
    made = train(plan, [make_data(plan, 200, 0)])
    model = Model(made.plan, made.ensemble, made.ledger, made.report)
    for place in PLACES:
        placed = model.made(place, 9, 8)
        placed.save(tmp_path / "model.json")
        report = Model.load(tmp_path / "model.json").report
        assert (report.made_in, report.n_sites, report.n_drawings) == (place, 9, 8) and report == placed.report
    model.save(tmp_path / "old.json")
    assert b"made_in" not in (tmp_path / "old.json").read_bytes()
    assert "no-place" in {each.name for each in Model.load(tmp_path / "old.json").report.statement.sentences}


def test_an_evaluation_elsewhere_is_not_forgotten(runs: dict[str, PrivacyReport]) -> None:
    """A later evaluation by nodes does not hide that an earlier one read all tables in one process, nor an unknown."""
    trained, evaluated = runs["noise of the coordinator, over a network"], runs["evaluated elsewhere"]
    unknown = replace(evaluated, evaluated_in=())
    assert evaluated.evaluated("network", evaluated).evaluated_in == ("network", "process")
    assert evaluated.evaluated("network", trained).evaluated_in == ("network",)
    assert evaluated.evaluated("network", unknown).evaluated_in == ("network", "unrecorded")
    cost = build_report(Ledger(), trained)
    assert replace(evaluated).with_evaluation(replace(cost, made_in="")).evaluated_in == ("process", "unrecorded")
    assert evaluated.with_evaluation(replace(cost, made_in="site")).evaluated_in == ("process",)
