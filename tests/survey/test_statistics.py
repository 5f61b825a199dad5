"""Private statistics: what one record changes, what they cost, what they say, and that they depend on sums alone."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.data.columns import Place
from hedgerow.data.raw_cells import RawColumn, RawTable, bound_tables
from hedgerow.errors import PlanError, PrivacyError
from hedgerow.local.survey import TableSurvey, draft_plan, plan_text, read_schema, survey_tables
from hedgerow.plan.plan import Feature, parse_plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import Purpose
from hedgerow.survey.bounds import find_range
from hedgerow.survey.curves import SurvivalCounts
from hedgerow.survey.queries import (
    N_OCTAVES,
    UNIT,
    CellCounts,
    JointCounts,
    KindCounts,
    NumberBins,
    RawSite,
    SurveyQuery,
    TextBins,
    TextVotes,
    find_octaves,
)
from hedgerow.survey.questions import SHARES, Questions
from hedgerow.survey.requests import OpenTable
from hedgerow.survey.statistics import Group, Noisy, show_count

MakeSite = Callable[[Sequence[Sequence[str]]], RawSite]
BLANK: dict[str, Any] = {
    "purpose": Purpose(0, "", ""), "length": 0, "bound": UNIT, "sensitivity_squared": 1, "noise_multiplier": 0.0,
}  # fmt: skip
BINS = (NumberBins((0.0, 1.0, 2.5)), TextBins(("a", "b")))
QUERIES: list[SurveyQuery] = [
    KindCounts(**BLANK, columns=(0, 1)),
    TextVotes(**BLANK, columns=(0, 1)),
    CellCounts(**BLANK, columns=(0, 1), bins=BINS),
    CellCounts(**BLANK, columns=(0, 1), bins=(BINS[0], TextBins((), 16))),
    JointCounts(**BLANK, columns=(0, 1), bins=BINS, label=1, classes=TextBins(("a", "b"), 0)),
    SurvivalCounts(**BLANK, time=0, event=1, codes=("0", "1"), ends=(0.5, 2.5), by=None, groups=("",)),
    SurvivalCounts(**BLANK, time=0, event=1, codes=("0", "1"), ends=(0.5, 2.5), by=1, groups=("a", "1")),
]
CELLS = (
    "1",
    "0",
    "-3.5",
    "2.5",
    "1e300",
    "inf",
    "nan",
    "",
    "a",
    "b",
    "true",
    "a text beyond sixteen bytes",
    "sixteen bytes ok",
    "7.0",
)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: type(query).__name__)
def test_no_record_adds_more_than_its_norm_and_some_record_adds_it(query: SurveyQuery, site_of: MakeSite) -> None:
    """The sensitivity is the largest norm over all records, no less and no more: by trying every pair of cells."""
    others = [["1", "a", ""], ["a", "b", "3"]]
    before = query.answer(site_of(others))
    norms = []
    for first in CELLS:
        for second in CELLS:
            after = query.answer(site_of([[*others[0], first], [*others[1], second]]))
            change = (after - before).astype(object)
            assert len(after) == query.expected_length()
            assert (change == query.answer(site_of([[first], [second]]))).all()
            norms.append(int((change * change).sum()))
    assert max(norms) == query.norm_squared()


@given(
    cells=st.lists(st.one_of(st.text(max_size=6), st.floats(), st.integers(), st.none(), st.booleans()), max_size=12),
    other=st.one_of(st.text(max_size=6), st.floats(), st.binary(max_size=4), st.dates()),
)
@settings(max_examples=100, deadline=None)
def test_a_cell_counts_by_itself_whatever_its_column_holds(cells: list[Any], other: Any) -> None:
    """Cells of mixed types never raise, and one cell more changes no other's place: nothing follows from a column."""
    queries = [KindCounts(**BLANK, columns=(0,)), CellCounts(**BLANK, columns=(0,), bins=(BINS[1],))]
    queries.append(CellCounts(**BLANK, columns=(0,), bins=(BINS[0],)))
    for query in queries:
        both, without, alone = (query.answer(_objects(own)) for own in ([*cells, other], cells, [other]))
        assert (both - without == alone).all()


def _objects(values: list[Any]) -> RawSite:
    return RawSite([RawColumn([values], Place("table", "c"))], n_all=len(values))


def test_the_shares_are_a_whole() -> None:
    """All of mu squared is given away, and not more."""
    assert math.fsum(SHARES["table"].values()) == pytest.approx(1.0, abs=1e-12)


@pytest.fixture(scope="module")
def columns() -> list[list[str]]:
    """Columns of 6,000 records: a number, whole years, an amount with zeros, a text, a label, a few odd cells."""
    generator = np.random.default_rng(3)
    age = generator.uniform(18, 95, 6000)
    ill = generator.random(6000) < age / 120
    amount = np.where(generator.random(6000) < 0.4, 0, generator.lognormal(5, 1, 6000))
    return [
        [f"{value:.2f}" for value in age],
        [str(value) for value in generator.integers(2001, 2011, 6000)],
        [f"{value:.2f}" if value else "0" for value in amount],
        generator.choice(["north", "south", "a name of many letters", ""], 6000, p=[0.5, 0.3, 0.1, 0.1]).tolist(),
        ["yes" if own else "no" for own in ill],
        [("unknown" if value < 0.2 else "1.5") for value in generator.random(6000)],
    ]


NAMES = ("age", "year", "amount", "place", "ill", "odd")


def open_table(epsilon: float = 2.0, label: str = "ill", **declared: Feature) -> OpenTable:
    asked = [declared.get(name, Feature(name=name, type="")) for name in NAMES]
    return OpenTable.of(asked, label, {"epsilon": epsilon, "delta": 1e-6})


def surveyed(columns: list[list[str]], site_of: MakeSite, n_sites: int = 1, **about: Any) -> TableSurvey:
    sites = [site_of([own[at::n_sites] for own in columns]) for at in range(n_sites)]
    tables = {f"s{at}": RawTable(tuple(site.columns), site.n_all) for at, site in enumerate(sites)}
    return survey_tables(open_table(**about), tables, SeededNoise(5))


@pytest.fixture
def found_once(columns: list[list[str]], site_of: MakeSite) -> TableSurvey:
    return surveyed(columns, site_of)


def test_sites_do_not_matter(columns: list[list[str]], site_of: MakeSite) -> None:
    """The same rows over 1, 3 and 7 sites, with masks from three on, give the same numbers and the same account."""
    found = [surveyed(columns, site_of, n_sites) for n_sites in (1, 3, 7)]
    assert found[0].statistics == found[1].statistics == found[2].statistics
    assert found[0].ledger == found[1].ledger == found[2].ledger


def test_two_sites_are_added_up_in_the_clear_which_is_said(columns: list[list[str]], site_of: MakeSite) -> None:
    """Masks hide nothing of two sites, and one site has no sum over sites."""
    reports = [surveyed(columns, site_of, n_sites).report for n_sites in (1, 2, 3)]
    assert [report.sums_in_clear for report in reports] == [False, True, False]
    assert "in the clear" in reports[1].text()


@pytest.mark.parametrize("label", ["", "ill", "age"])
@pytest.mark.parametrize("epsilon", [0.1, 2.0, 25.0])
def test_all_that_was_asked_is_spent_and_no_more(
    columns: list[list[str]], site_of: MakeSite, label: str, epsilon: float
) -> None:
    """Whatever stages come, one ledger has them all, and its total is the epsilon that was asked for."""
    report = surveyed(columns, site_of, epsilon=epsilon, label=label).report
    # At a large epsilon the grid has a price of its own, and not all can be spent.
    assert epsilon * (0.9999 if epsilon < 10 else 0.9) < report.epsilon_gdp <= epsilon
    assert report.n_releases == len(report.ledger)


def test_noise_of_the_sites_keeps_the_promise_whatever_their_number(
    columns: list[list[str]], site_of: MakeSite
) -> None:
    """Each share of noise is rounded up by itself, so the account of the whole is another one than of one noise: it is
    no more than was asked for all the same, or all would be spent and nothing shown.
    """
    site = site_of([own[:400] for own in columns])
    for epsilon in np.linspace(5, 20, 40):
        privacy = {"epsilon": float(epsilon), "delta": 1e-6, "noise": "distributed"}
        program = OpenTable.of([Feature(name=name, type="") for name in NAMES], "ill", privacy).program()
        queries = []
        with contextlib.suppress(StopIteration):
            query = next(program)
            while True:
                queries.append(query)
                query = program.send(query.answer(site))
        for n_shares in (1, 2, 3, 5, 7):
            events = [noise_of(query, n_shares).event for query in queries]
            assert 0.99 * epsilon < get_accountant("gdp").epsilon(events, 1e-6) <= epsilon


def test_what_is_found(columns: list[list[str]], site_of: MakeSite) -> None:
    """Quantiles, means, categories and rates are near those of the rows, within what the noise is said to be."""
    found = surveyed(columns, site_of, 3).statistics
    own = {column.name: column for column in found.columns}
    assert found.n_records.value == pytest.approx(6000, abs=4 * found.n_records.deviation)
    assert [column.kind for column in found.columns] == ["number"] * 3 + ["text"] * 2 + ["number"]
    age = np.array(columns[0], dtype=float)
    for quantile in own["age"].quantiles:
        assert (age < quantile.value).mean() == pytest.approx(quantile.share, abs=0.03)
        assert quantile.low <= quantile.value <= quantile.high
    mean = own["age"].mean
    assert mean is not None
    assert mean.value == pytest.approx(age.mean(), abs=5 * mean.deviation + 0.5)
    assert own["year"].range is not None
    assert own["year"].range.bounds == (2001, 2010)
    assert own["amount"].quantiles[0].value == 0
    assert own["place"].categories == ("north", "south")
    assert own["place"].missing.value == pytest.approx(0.1, abs=0.02)
    assert own["odd"].odd.value == pytest.approx(0.2, abs=4 * own["odd"].odd.deviation)
    assert found.classes == ("no", "yes")
    rates = own["age"].shown_rates
    assert rates[0].rates[1].value < 0.4 < 0.6 < rates[-1].rates[1].value
    assert not own["ill"].rates


@given(sign=st.sampled_from([-1.0, 1.0]), size=st.integers(-100, -1))
def test_bounds_of_whole_numbers_hold_them_where_noise_looks_like_fractions(sign: float, size: int) -> None:
    """Zeros and ones stay between the bounds, whatever octave of fractions the noise makes stand out beside them."""
    counts = np.bincount(find_octaves(np.repeat([0.0, 1.0], [700, 300])), minlength=N_OCTAVES).astype(float)
    counts[find_octaves(np.array([sign * 2.0**size]))] += 60
    assert find_range(counts, 0.0, 10.0, 1000).bounds == (0, 1)


@pytest.mark.parametrize(("high", "is_shown"), [(40.0, False), (95.0, True)])
def test_no_mean_is_shown_of_a_column_that_lies_beyond_its_bounds(
    columns: list[list[str]], site_of: MakeSite, high: float, is_shown: bool
) -> None:
    """Values beyond the bounds count as the bounds: what their mean would say, with its interval, is not true."""
    found = surveyed(columns, site_of, age=Feature(name="age", type="numeric", min=0.0, max=high)).statistics.columns[0]
    assert (found.mean is not None) == is_shown


def test_without_noise_counts_are_exact(columns: list[list[str]], site_of: MakeSite) -> None:
    """At an infinite epsilon every cell is in one bin, and the report says that nothing is promised."""
    found = surveyed(columns, site_of, epsilon=math.inf)
    assert found.statistics.n_records.value == 6000
    assert found.report.guarantee == "void"
    for column in found.statistics.columns:
        missing = round(column.missing.value * 6000) + round(column.odd.value * 6000)
        assert sum(group.count.value for group in column.groups) == 6000 - missing


@given(listed=st.lists(st.integers(0, 900), max_size=5), others=st.integers(0, 2000), is_declared=st.booleans())
def test_a_draft_lists_what_covers_most_cells_and_hashes_the_rest(
    listed: list[int], others: int, is_declared: bool, found_once: TableSurvey
) -> None:
    """A found list that covers less than half of the cells, by the released counts, is hashed and asked about."""
    is_declared &= bool(listed)
    total = max(sum(listed) + others, 1)
    counts = [*((f"level {at}", count) for at, count in enumerate(listed)), ("other", others)]
    groups = tuple(Group(name, count=Noisy(float(count), 1.0)) for name, count in counts)
    own = next(column for column in found_once.statistics.columns if column.name == "place")
    own = replace(own, groups=groups, present=Noisy(float(total), 1.0), is_hashed=not listed, is_declared=is_declared)
    others_too = tuple(column for column in found_once.statistics.columns if column.name != "place")
    plan = draft_plan(replace(found_once, statistics=replace(found_once.statistics, columns=(own, *others_too))), 1)
    assert plan is not None
    (place,) = (feature for feature in plan.features if feature.name == "place")
    is_kept = bool(listed) and (is_declared or 2 * sum(listed) >= total)
    assert place.is_hashed is not is_kept
    assert (place.categories == tuple(name for name, _ in counts[:-1])) is is_kept
    assert ('["place"]' in plan_text(plan).partition("version =")[0]) is (place.is_hashed and not is_declared)


def test_what_is_declared_is_not_asked_for(columns: list[list[str]], site_of: MakeSite) -> None:
    """Declared types, bounds and categories are taken as they are; only the rest costs anything."""
    schema = read_schema(
        '[[features]]\nname = "age"\ntype = "numeric"\nmin = 0\nmax = 100\n'
        '[[features]]\nname = "year"\ntype = "numeric"\nmin = 2000\nmax = 2012\ninteger = true\n'
        '[[features]]\nname = "amount"\ntype = "numeric"\nmin = 0\nmax = 5000\n'
        '[[features]]\nname = "place"\ntype = "categorical"\ncategories = ["north", "a name of many letters"]\n'
        '[[features]]\nname = "odd"\ntype = "numeric"\nmin = 0\nmax = 2\n'
        '[[features]]\nname = "half"\n# type = "numeric"\n'
        '[label]\nname = "ill"\ntype = "binary"\nclasses = ["yes", "no"]\n'
    )
    found = surveyed(columns, site_of, **schema)
    assert [release.kind for release in found.ledger] == ["RecordCount", "KindCounts", "CellCounts", "JointCounts"]
    own = {column.name: column for column in found.statistics.columns}
    assert own["place"].categories == ("north", "a name of many letters")
    assert own["year"].range is not None
    assert own["year"].range.bounds == (2000, 2012)
    assert found.statistics.classes == ("yes", "no")
    assert found.report.epsilon_gdp == pytest.approx(2.0, rel=1e-4)


SOME_CELLS = st.sampled_from(["1", "2", "x", ""])
PLACES = st.integers(0, 2)


@given(
    rows=st.lists(st.tuples(st.sampled_from("abcd"), SOME_CELLS, PLACES), max_size=20),
    own=st.lists(st.tuples(SOME_CELLS, PLACES), min_size=1, max_size=9),
)
@settings(max_examples=60, deadline=None)
def test_a_unit_adds_no_more_than_its_bound_whatever_its_rows(rows: list[Any], own: list[Any]) -> None:
    """One person more, with rows at any of the sites, moves an answer by what the query's sensitivity says at most,
    and changes no other person's rows.
    """
    asked = OpenTable.of(
        [Feature(name="c", type="")], "", {"epsilon": 1.0, "delta": 1e-6, "unit": "person", "max_rows_per_unit": 2}
    )
    queries: list[SurveyQuery] = [KindCounts(**BLANK, columns=(0,)), TextVotes(**BLANK, columns=(0,))]
    queries.append(CellCounts(**BLANK, columns=(0,), bins=(BINS[1],)))

    def sums(everyone: list[Any]) -> list[Any]:
        tables = {}
        for site in range(3):
            here = [row for row in everyone if row[2] == site]
            cells, people = (pa.array([row[at] for row in here], pa.string()) for at in (1, 0))
            column, person = (RawColumn([each], Place("table", "c")) for each in (cells, people))
            tables[f"s{site}"] = RawTable((column,), len(here), unit=person.identifiers())
        sites = bound_tables(tables, asked)
        return [sum(query.answer(site).astype(object) for site in sites.values()) for query in queries]

    joined = [*rows, *(("new", cell, site) for cell, site in own), ("", "1", 0)]
    for query, before, after in zip(queries, sums(rows), sums(joined), strict=True):
        change = after - before
        assert int((change * change).sum()) <= query.norm_squared() * asked.questions.rows_per_unit**2


@pytest.mark.parametrize("label", ["", "found", "text", "listed", "whole"])
def test_no_release_makes_the_program_fail(label: str) -> None:
    """A node is given releases by a coordinator, and follows them in its own program: whatever numbers they have, and
    whatever bounds are declared, it ends as it does on others, with numbers that can be written.
    """
    declared = [
        Feature(name="found", type=""), Feature(name="text", type="hashed"),
        Feature(name="listed", type="categorical", categories=("x", "y")),
        Feature(name="wide", type="numeric", min=-3e38, max=3e38),
        Feature(name="thin", type="numeric", min=0.0, max=1e-300),
        Feature(name="whole", type="numeric", min=-3e38, max=3e38, integer=True), Feature(name="day", type="date"),
    ]  # fmt: skip
    draw, most = np.random.default_rng(7), 4 * 10**9
    for epsilon in [0.01, 1.0, 50.0] * 8:
        program = OpenTable.of(declared, label, {"epsilon": epsilon, "delta": 1e-6}).program()
        try:
            query = next(program)
            while True:
                n, here = query.length, draw.random(query.length)
                kinds = [
                    np.zeros(n), np.where(here < 0.02, most * here, 0) * UNIT, (here - 0.5) * 2.0**46,
                    np.where(np.arange(n) == draw.integers(n), most, 0) * UNIT, here * 10**6 * UNIT,
                ]  # fmt: skip
                query = program.send(kinds[draw.integers(len(kinds))].astype(np.int64))
        except StopIteration as finished:
            assert json.loads(json.dumps(finished.value.to_dict()))["label"] == label


def test_small_cells_are_not_shown(columns: list[list[str]], site_of: MakeSite) -> None:
    """A count below ten, or below three standard deviations of its noise, is null, and so is what rests on it."""
    assert not show_count(9.9, 0.0).is_shown
    assert not show_count(59.0, 20.0).is_shown
    assert show_count(60.0, 20.0).is_shown
    found = surveyed([own[:60] for own in columns], site_of, epsilon=0.05).statistics.to_dict()
    for column in found["columns"]:
        assert column["missing"] is None
        assert all(group["count"] is None or group["count"]["value"] >= 10 for group in column["groups"])
        assert not column.get("quantiles")
    assert not found["classes"]


def test_the_draft_has_what_was_found_and_what_it_cost(columns: list[list[str]], site_of: MakeSite) -> None:
    """Its plan names every release of the statistics, and reads back from its own text."""
    found = surveyed(columns, site_of, 3)
    plan = draft_plan(found, 3)
    assert plan is not None
    assert parse_plan(plan_text(plan)) == plan
    assert [release.kind for release in plan.prepared] == [release.kind for release in found.ledger]
    assert plan.label.classes == ("no", "yes")
    assert plan.privacy.epsilon == 4
    assert {feature.name: feature.type for feature in plan.features}["place"] == "categorical"
    assert {plan.label.origin, *(feature.origin for feature in plan.features)} == {"found"}
    age = Feature(name="age", type="numeric", min=0.0, max=120.0)
    numbers = draft_plan(surveyed(columns, site_of, label="amount", age=age), 1)
    assert numbers is not None
    # Of a number, bounds that are declared are not found.
    assert {feature.name: feature.origin for feature in numbers.features}["age"] == "declared"
    assert numbers.label.origin == "found"
    assert numbers.label.type == "regression"
    assert draft_plan(surveyed(columns, site_of, label=""), 1) is None


def test_what_is_refused(columns: list[list[str]], site_of: MakeSite) -> None:
    """A label that no column is, and a promise without delta, are refused before anything is released."""
    with pytest.raises(PlanError, match="label"):
        surveyed(columns, site_of, label="Ill")
    with pytest.raises(PrivacyError, match="Gaussian"):
        Questions(columns=(), epsilon=1.0, delta=1e-6, accountant="pure")
