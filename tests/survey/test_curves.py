"""Private Kaplan-Meier curves: what one record changes, what they cost, and whether their bands are honest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hedgerow.data.raw_cells import RawTable
from hedgerow.errors import PlanError, UsageError
from hedgerow.local.survey import TableSurvey, ask_curves, survey_tables
from hedgerow.losses.survival import survival_codes
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.noise import SeededNoise
from hedgerow.survey.curves import SurvivalCurves, read_curve
from hedgerow.survey.queries import RawSite
from hedgerow.survey.requests import OpenTable
from hedgerow.survey.statistics import BAND
from tests.builders import coded

MakeSite = Callable[[Sequence[Sequence[str]]], RawSite]
PART = """
[label]
name = "days"
type = "survival"
event = "died"
intervals = [1, 2, 3, 5, 8]

[[features]]
name = "arm"
type = "categorical"
categories = ["new", "old"]
"""


def asked(by: str | None = "arm", **privacy: object) -> OpenTable:
    return ask_curves(PART, by, {"epsilon": 1.0, "delta": 1e-6, **privacy})


def records(n: int = 3000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, events and arms; the old arm's hazard is twice the new one's."""
    generator = np.random.default_rng(4)
    arm = generator.choice(["new", "old"], n)
    times, lost = generator.exponential(np.where(arm == "old", 4, 8)), generator.uniform(0, 12, n)
    return np.minimum(times, lost), times <= lost, arm


def made(site_of: MakeSite, n_sites: int, open_table: OpenTable) -> TableSurvey:
    times, events, arm = records()
    columns = [[f"{own:.6f}" for own in times], ["yes" if own else "no" for own in events], arm.tolist()]
    columns = columns[: len(open_table.columns)]
    sites = [site_of([own[at::n_sites] for own in columns]) for at in range(n_sites)]
    tables = {f"s{at}": RawTable(tuple(site.columns), site.n_all) for at, site in enumerate(sites)}
    return survey_tables(open_table, tables, SeededNoise(5))


def curves(found: TableSurvey) -> SurvivalCurves:
    assert isinstance(found.statistics, SurvivalCurves)
    return found.statistics


def test_sites_do_not_matter(site_of: MakeSite) -> None:
    """The same rows over 1, 3 and 7 sites, with masks from three on, give the same curves and the same account."""
    found = [made(site_of, n_sites, asked()) for n_sites in (1, 3, 7)]
    assert found[0].statistics == found[1].statistics == found[2].statistics
    assert found[0].ledger == found[1].ledger == found[2].ledger


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_curves_are_one_release_that_costs_what_was_asked(site_of: MakeSite, epsilon: float) -> None:
    """However many groups and intervals, the ledger has one event, and it spends the epsilon and no more."""
    report = made(site_of, 1, asked(epsilon=epsilon)).report
    assert report.n_releases == len(report.ledger) == 1
    assert 0.9999 * epsilon < report.epsilon_gdp <= epsilon


def test_noise_of_the_sites_keeps_the_promise() -> None:
    """Each share of noise is rounded up by itself; whatever their number, they cost no more than was asked."""
    for epsilon in np.linspace(0.1, 20, 30):
        query = next(asked(epsilon=float(epsilon), noise="distributed").program())
        for n_shares in (1, 2, 3, 7):
            spent = get_accountant("gdp").epsilon([noise_of(query, n_shares).event], 1e-6)
            assert 0.99 * epsilon < spent <= epsilon


def test_a_unit_of_several_rows_has_their_noise() -> None:
    """Who may have three rows changes three cells: nine times the squared sensitivity."""
    one, three = (next(asked(unit="patient", max_rows_per_unit=rows).program()).sensitivity_squared for rows in (1, 3))
    assert three == 9 * one


@pytest.mark.parametrize("breaks", [0, 1, 4])
def test_a_report_says_what_one_line_amounts_to_where_cells_may_hold_line_breaks(
    site_of: MakeSite, breaks: int
) -> None:
    """As a training's does: the coordinator of a survey chooses it, and sites bound their tables by it."""
    report = made(site_of, 3, asked(line_breaks=breaks)).report
    of_one_line = report.to_dict().get("epsilon_of_one_line")
    assert of_one_line == (report.epsilon_of_rows(2 * breaks + 2) if breaks else None)


def test_without_noise_it_is_kaplan_meier(site_of: MakeSite) -> None:
    """Where no interval has both events and losses the curve is Kaplan and Meier's, and its band Greenwood's."""
    reference = pytest.importorskip("sksurv.nonparametric")
    times, events, _ = records(400)
    # Losses are seen at the end of a tenth that has no events, and events in the middle of another.
    times = np.where(events, np.floor(times * 5) / 5 + 0.05, np.floor(times * 5) / 5 + 0.2)
    ends = np.round(np.arange(1, 60) / 5 - 0.1, 3)
    ends = np.sort(np.concatenate([ends, np.round(np.arange(1, 60) / 5 + 0.01, 3)]))
    counts = np.bincount(survival_codes(times, events, ends), minlength=2 * len(ends) + 1)
    assert not ((counts[:-1:2] > 0) & (counts[1::2] > 0)).any()
    found = read_curve("", counts.astype(float), 0.0)
    steps, chances = reference.kaplan_meier_estimator(events, times)
    places = np.searchsorted(steps, ends[: len(found.survival)], side="right")
    expected = np.append(1.0, chances)[places]
    assert [own.value for own in found.survival] == pytest.approx(expected.tolist(), abs=1e-12)
    greenwood = 0.0
    for place, end in enumerate(ends[: len(found.survival)]):
        start = ends[place - 1] if place else 0.0
        died = int((events & (times > start) & (times <= end)).sum())
        at_risk = int((times > start).sum())
        greenwood += died / (at_risk * (at_risk - died)) if at_risk > died else 0.0
        assert found.low[place] == pytest.approx(expected[place] * math.exp(-BAND * math.sqrt(greenwood)), abs=1e-9)


def test_the_noise_of_a_curve_is_that_of_its_counts() -> None:
    """The part of a band that is noise is the spread of the curve over many draws of noise on the same records."""
    times, events, _ = records()
    counts = np.bincount(survival_codes(times, events, (1, 2, 3, 5, 8)), minlength=11).astype(float)
    said = [own.deviation for own in read_curve("", counts, 6.0).survival]
    draws = np.random.default_rng(1).normal(0, 6, (3000, 11))
    values = [[own.value for own in read_curve("", counts + draw, 6.0).survival] for draw in draws]
    assert np.std(values, axis=0) == pytest.approx(said, rel=0.08)


@pytest.mark.parametrize(("n", "deviation"), [(300, 0.0), (300, 5.0), (2000, 10.0), (2000, 40.0)])
def test_bands_hold_the_truth_as_often_as_they_say(n: int, deviation: float) -> None:
    """Over fresh records and fresh noise, what is shown has the true chance within its 95 % band."""
    generator, ends = np.random.default_rng(8), np.arange(1.0, 9.0)
    truth, inside, shown = np.exp(-0.15 * ends), 0, 0
    for _ in range(400):
        times, lost = generator.exponential(1 / 0.15, n), generator.uniform(0, 20, n)
        counts = np.bincount(survival_codes(np.minimum(times, lost), times <= lost, ends), minlength=17)
        found = read_curve("", counts + generator.normal(0, deviation, 17), deviation)
        own = truth[: len(found.low)]
        inside += int(((np.array(found.low) <= own) & (own <= np.array(found.high))).sum())
        shown += len(own)
    assert 0.93 < inside / shown < 0.98


@given(arrays(np.float64, st.sampled_from([5, 9, 21]), elements=st.floats(-50, 500)), st.floats(0, 60))
@settings(deadline=None)
def test_a_curve_never_rises_and_is_a_chance(counts: np.ndarray, deviation: float) -> None:
    """Whatever the noise has made of the counts, a curve falls from 1 to 0 within its band."""
    found = read_curve("", counts, deviation)
    values = [own.value for own in found.survival]
    for own in (values, found.low, found.high):
        assert all(0 <= after <= before <= 1 for before, after in zip([1.0, *own], own, strict=False))
    assert all(low <= own <= high for low, own, high in zip(found.low, values, found.high, strict=True))
    assert all(own.is_shown for own in found.at_risk[: len(values)])
    assert not any(own.is_shown for own in found.at_risk[len(values) :])


def test_groups_are_told_apart(site_of: MakeSite) -> None:
    """Each group's curve is of its own records, and near the truth; without groups there is one for all."""
    found = curves(made(site_of, 3, asked()))
    new, old = found.curves
    assert (new.group, old.group) == ("new", "old")
    for curve, mean in ((new, 8), (old, 4)):
        expected = [math.exp(-end / mean) for end in found.ends]
        assert [own.value for own in curve.survival] == pytest.approx(expected, abs=0.06)
    (every,) = curves(made(site_of, 3, asked(None))).curves
    assert every.group == "" and new.survival[-1].value > every.survival[-1].value > old.survival[-1].value


def test_curves_are_of_the_events_that_a_plan_names(site_of: MakeSite) -> None:
    """With R's codes, 1 is lost from sight and 2 the event; a curve of the others would be upside down."""
    told = PART.replace('event = "died"', 'event = "died"\nevent_codes = [1, 2]')
    program = ask_curves(told, None, {"epsilon": 1.0, "delta": 1e-6}).program()
    counts = next(program).answer(site_of([["0.5", "0.5", "0.5", "1.5"], ["2", "1", "0", "2"]])) // 2**14
    assert counts.tolist() == [1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]


def test_what_does_not_fit_counts_nowhere(site_of: MakeSite) -> None:
    """A missing time, event or group, a time below zero and a word that is no event leave a record out, and no more."""
    program = asked().program()
    query = next(program)
    cells = [
        ["1.5", "", "-1", "x", "2", "2", "2", "inf", "0"],
        ["1", "1", "1", "1", "", "perhaps", "true", "No", "Yes"],
    ]
    arms = ["new", "new", "new", "new", "new", "new", "other", "old", "old"]
    counts = query.answer(site_of([*cells, arms])) // 2**14
    assert counts.reshape(2, 11).tolist() == [
        [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    ]


def test_refusals() -> None:
    """Groups that nobody declared, another label, and a promise that has no Gaussian noise are refused by name."""
    with pytest.raises(UsageError, check=coded("survey-by")):
        asked("ward")
    with pytest.raises(PlanError, match=r"label\.type"):
        ask_curves('[label]\nname = "y"\ntype = "binary"\nclasses = ["0", "1"]\n', None, {"epsilon": 1, "delta": 1e-6})
    with pytest.raises(PlanError, match="accountant"):
        asked(accountant="pure")
    table = dict(asked().table)
    for wrong in ({"curves": {"event": "died"}}, {"curves": {**table["curves"], "by": "days"}}, {"columns": []}):
        with pytest.raises(PlanError):
            OpenTable({**table, **wrong})
    assert OpenTable(table).to_bytes() == asked().to_bytes()
