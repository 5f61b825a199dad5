"""What one record adds to a survey is never more than its query says, whatever the record holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.client.setup import limit_rows
from hedgerow.data.columns import Place
from hedgerow.data.raw_cells import RawColumn
from hedgerow.errors import RemoteProtocolError
from hedgerow.local.survey import survey_sites
from hedgerow.privacy.calibration import integer_sigma
from hedgerow.privacy.cost import compose_cost
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import Query, SiteQuery
from hedgerow.survey.program import survey
from hedgerow.survey.queries import (
    HALF_UNIT,
    N_BYTES,
    N_OCTAVES,
    UNIT,
    ZERO,
    CellCounts,
    KindCounts,
    NameVotes,
    OctaveCounts,
    RawSite,
    RecordCount,
    SurveyQuery,
    ValueCounts,
    ZoomCounts,
    encode_votes,
    find_octaves,
    hash_label,
    spelt,
)
from tests.builders import gaps

CELLS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324, -5e-324, 1.7e308, 2.0**-150, 2.0**128, 3.5, 1023.0]),
    st.integers(-200, 1100).map(float),
)
TEXTS = st.one_of(st.none(), st.text(max_size=20), st.sampled_from(["yes", "no", " ", "\0", "\ud800", "x" * 17]))
N_COLUMNS = 3


def queries() -> list[SurveyQuery]:
    """One query of each kind over three columns, as the program makes them."""
    columns = tuple(range(N_COLUMNS))
    kinds = [
        filled(RecordCount),
        filled(OctaveCounts, columns=columns),
        filled(ZoomCounts, columns=columns, ranges=((-8.0, 8.0), (0.0, 1e-12), (-1e12, 1e12))),
        filled(ValueCounts, column=0),
        filled(NameVotes),
    ]
    return kinds


def filled(kind: type[SurveyQuery], **about: object) -> SurveyQuery:
    """A query with the numbers that follow from it."""
    blank = {"length": 0, "bound": UNIT, "sensitivity_squared": 1, "noise_multiplier": 1.0}
    query = kind(purpose=kind.purpose_of(0, "test"), **blank, **about)  # type: ignore[arg-type]
    about = {"bound": query.largest_entry(), "sensitivity_squared": query.norm_squared()}
    return dataclasses.replace(query, length=query.expected_length(), **about)


def site_of(rows: list[tuple[tuple[float, ...], str | None]]) -> RawSite:
    """Rows of three numbers and a text."""
    cells = np.array([row for row, _ in rows], dtype=np.float64).reshape(-1, N_COLUMNS)
    texts = np.array([text for _, text in rows] + [None], dtype=object)[:-1]
    return RawSite((*cells.T, RawColumn([texts], Place("rows", "text"))), None, len(rows))


ROW = st.tuples(st.tuples(*[CELLS] * N_COLUMNS), TEXTS)


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(ROW, max_size=4), more=ROW, place=st.integers(0, 4))
def test_one_record_more_changes_no_answer_by_more_than_the_query_says(
    rows: list[tuple[tuple[float, ...], str | None]], more: tuple[tuple[float, ...], str | None], place: int
) -> None:
    """The noise is made for exactly this: any record, among any others, anywhere in the table."""
    longer = [*rows[:place], more, *rows[place:]]
    for query in queries():
        before, after = query.answer(site_of(rows)), query.answer(site_of(longer))
        assert before.dtype == after.dtype == np.int64 and before.shape == after.shape == (query.length,)
        change = (after - before).tolist()
        assert sum(entry * entry for entry in change) <= query.sensitivity_squared
        assert max(map(abs, change)) <= query.bound
        # A record's part does not depend on the others.
        assert change == query.answer(site_of([more])).tolist()


def test_the_sensitivities_are_reached() -> None:
    """What is said of each query is no more than what some record does."""
    site = site_of([((0.5, 1e-13, 0.5), "n" * N_BYTES)])
    norms = [int((query.answer(site) ** 2).sum()) for query in queries()]
    assert norms[:3] == [query.sensitivity_squared for query in queries()[:3]]
    assert norms[4] == queries()[4].sensitivity_squared
    assert int((queries()[3].answer(site_of([((7.0, 0.0, 0.0), None)])) ** 2).sum()) == UNIT * UNIT


@settings(deadline=None)
@given(rows=st.lists(ROW, max_size=6), cut=st.integers(0, 6))
def test_who_holds_which_row_does_not_matter(rows: list[tuple[tuple[float, ...], str | None]], cut: int) -> None:
    """Answers of sites add up to the answer over all rows."""
    for query in queries():
        parts = query.answer(site_of(rows[:cut])) + query.answer(site_of(rows[cut:]))
        assert np.array_equal(parts, query.answer(site_of(rows)))
        some = RawSite(site_of(rows).columns, np.arange(min(cut, len(rows))), len(rows))
        assert np.array_equal(query.answer(some), query.answer(site_of(rows[:cut])))


def test_octaves_are_powers_of_two() -> None:
    """Each magnitude is in the octave that begins at or below it, of its sign; only zero counts as zero."""
    cells = np.array([1.0, 1.999, 2.0, -1.0, -2.0, 0.0, -0.0, 5e-324, -1e-60, 2.0**-149, np.inf, -np.inf, 2.0**300])
    found = (find_octaves(cells) - ZERO).tolist()
    assert found == [151, 151, 152, -151, -152, 0, 0, 1, -1, 2, 279, -279, 279]
    assert find_octaves(np.array([-np.inf, np.inf])).tolist() == [0, N_OCTAVES - 1]


def test_missing_cells_add_nothing() -> None:
    """Nor do infinite values count as parts of a whole."""
    query = filled(OctaveCounts, columns=(0, 1, 2))
    answer = query.answer(site_of([((np.nan, np.inf, 0.5), None)])).reshape(3, -1)
    assert answer[0].sum() == 0
    assert answer[1, -1] == 0 and answer[1].sum() == UNIT
    assert answer[2, -1] == HALF_UNIT


@given(st.text(min_size=1, max_size=N_BYTES + 2))
def test_texts_are_spelt_by_their_votes(text: str) -> None:
    """What can be shown comes back, and nothing that cannot; no text has more than its part of the sensitivity."""
    votes, query = encode_votes(text), filled(NameVotes)
    assert 0 <= hash_label(text) < 512
    if votes is None:
        assert len(text.encode("utf-8", "replace")) > N_BYTES
        return
    assert int((votes * votes).sum()) <= query.norm_squared()
    assert np.abs(votes).max() <= query.largest_entry()
    found = spelt(votes.astype(np.float64))
    if text.isprintable() and text == text.strip() and max(text) < "\ud800":
        assert found == (text, np.abs(votes).max())
    assert found is None or found[0].isprintable()


@pytest.mark.parametrize("n_bytes", range(1, N_BYTES + 1))
def test_a_texts_votes_use_up_its_norm(n_bytes: int) -> None:
    """Short texts have larger votes: the squared norm is that of all bits, but for what rounding takes."""
    votes = encode_votes("x" * n_bytes)
    assert votes is not None
    norm = int((votes * votes).sum()) / filled(NameVotes).norm_squared()
    assert 1 - 1e-3 < norm <= 1
    assert np.count_nonzero(votes) == min(8 * n_bytes + 8, 8 * N_BYTES)


@pytest.mark.parametrize("lie", [{"sensitivity_squared": 1}, {"bound": 1}, {"length": 3}])
def test_a_site_believes_no_sensitivity_but_its_own(lie: dict[str, int]) -> None:
    """A query that claims less than a unit's contribution would have too little noise; it gets no answer."""
    from hedgerow.survey.queries import SurveyNode

    node = SurveyNode("north", site_of([]), rows_per_unit=1)
    query = filled(ValueCounts, column=0)
    assert node.answer(query).shape == (query.length,)
    with pytest.raises(RemoteProtocolError) as refused:
        node.answer(dataclasses.replace(query, **lie))
    assert refused.value.code == "query-refused"
    with pytest.raises(RemoteProtocolError):
        SurveyNode("north", site_of([]), rows_per_unit=2).answer(query)


def test_nothing_but_a_survey_is_answered() -> None:
    """A raw row is for these counts only, over all sites: to a figure of one site nobody would add noise here."""
    from hedgerow.survey.queries import SurveyNode

    @dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
    class RecordsOfSite(SiteQuery, RecordCount):
        """A count of each site by itself."""

    asked = {"length": 1, "bound": UNIT, "sensitivity_squared": UNIT**2, "noise_multiplier": 1.0}
    other = Query(purpose=RecordCount.purpose_of(0, "x"), **asked)
    by_site = RecordsOfSite(purpose=RecordsOfSite.purpose_of(0, "x"), sites=("north",), **asked)
    for query in (other, by_site):
        with pytest.raises(RemoteProtocolError):
            SurveyNode("north", site_of([])).answer(query)


def test_a_planned_survey_names_every_release() -> None:
    """A budget that is reserved for the plan is enough for whatever the survey then asks."""
    questions = gaps(2, label="classes", rows_per_unit=3)
    program, asked = survey(questions), []
    query = next(program)
    with pytest.raises(StopIteration):
        while True:
            asked.append(query)
            assert query.sensitivity_squared == query.norm_squared() * 9
            assert integer_sigma(query.noise_multiplier, query.sensitivity_squared) > UNIT
            query = program.send(np.zeros(query.length, dtype=np.int64))
    assert [type(query) for query in asked] == [RecordCount, CellCounts, KindCounts, OctaveCounts, ValueCounts]
    assert len(questions.schedule.events) == 8


def test_a_site_with_more_rows_than_it_declares_asks_as_many_of_them_by_their_contents(
    site_of: Callable[..., RawSite],
) -> None:
    """A survey uses no more rows than the roster says, whichever order they are in; its owner is told."""
    columns = [[str(row) for row in range(30)], ["a", "", "b"] * 10]
    order = np.random.default_rng(1).permutation(30).tolist()
    told: list[str] = []
    setup: Any = SimpleNamespace(max_rows=20, tell=told.append)
    used = []
    for raw in (site_of(columns), site_of([[own[row] for row in order] for own in columns])):
        own = limit_rows(setup, raw)
        assert own.n_records == 20
        used.append((sorted(own.numbers(0).tolist()), own.text_counts(1)))
    assert used[0][0] == used[1][0] and sorted(used[0][1]) == sorted(used[1][1]) and len(told) == 2
    with_numbers = RawSite([np.arange(30.0)], n_all=30)
    assert limit_rows(setup, with_numbers).n_records == 20
    enough: Any = SimpleNamespace(max_rows=30, tell=told.append)
    assert limit_rows(enough, with_numbers) is with_numbers


@settings(max_examples=40, deadline=None)
@given(
    n_columns=st.integers(0, 2), n_unknown=st.integers(0, 3), n_records=st.sampled_from([None, 40]), data=st.data(),
    label=st.sampled_from(["", "bounds", "counts", "classes"]), epsilon=st.sampled_from([0.5, 40.0]),
)  # fmt: skip
def test_a_survey_asks_no_more_than_it_plans(
    n_columns: int, n_unknown: int, n_records: int | None, label: str, epsilon: float, data: st.DataObject
) -> None:
    """Whatever columns turn out to be, releases and their cost stay within what was planned before any of them."""
    questions = gaps(n_columns, n_unknown, label, epsilon=epsilon, n_records=n_records)
    if not questions.columns and n_records:
        return
    cells = st.sampled_from([1, 2.5, 1e6, "a", "2020-01-01", True, None])
    columns = [RawColumn([[data.draw(cells)] * 40], Place("rows", "x")) for _ in questions.columns]
    made = survey_sites(questions, {"site": RawSite(columns, None, 40)}, SeededNoise(1))
    planned = questions.schedule.events
    assert len(made.ledger) <= len(planned) == questions.schedule.n_rounds
    assert compose_cost(list(made.ledger.events())).gdp_weight <= compose_cost(planned).gdp_weight * (1 + 1e-9)
