"""What a survey finds of known distributions, what it costs, and what it must not depend on."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow import DPGBDTClassifier, DPGBDTRegressor, DPGBDTSurvival, DPLinearClassifier, Model
from hedgerow.errors import DataError, PlanError, PrivacyError, UsageError
from hedgerow.estimators.base import FewRecordsWarning, warn_about_few_records
from hedgerow.local.survey import SurveyResult, survey_sites
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.ledger import read_prepared_ledger, write_prepared_tables
from hedgerow.privacy.noise import SeededNoise
from hedgerow.privacy.report import PrivacyContext, build_report, check_claims
from hedgerow.server.release import PlainAggregation
from hedgerow.survey.bounds import STANDS_OUT_FAR, WINDOWS, octave_thresholds
from hedgerow.survey.queries import RawSite
from tests.builders import coded, gaps

N = 20_000


def surveyed(columns: list[NDArray[Any]], seed: int = 0, **about: Any) -> SurveyResult:
    """A survey of one site at epsilon 1."""
    questions = gaps(**{"n_columns": len(columns), **about})
    return survey_sites(questions, {"site": RawSite(columns, None, len(columns[0]))}, SeededNoise(seed))


@pytest.mark.parametrize("seed", [0, 1])
def test_bounds_of_known_columns_are_found(seed: int) -> None:
    """Orders of magnitude, signs, whole numbers and far-away ranges, each from 20,000 records at epsilon 1."""
    draw = np.random.default_rng(seed)
    columns = [
        draw.normal(size=N),
        draw.integers(0, 2, N).astype(float),
        draw.integers(1950, 2020, N).astype(float),
        1e6 + draw.normal(size=N),
        np.zeros(N),
        np.full(N, np.nan),
        -draw.uniform(8, 16, N),
    ]
    found = surveyed(columns, seed).findings
    assert 19_000 < found.n_records < 21_000
    bounds = [own.bounds for _, own in found.columns]
    assert bounds[0] in [(-2.0, 2.0), (-4.0, 4.0), (-2.0, 4.0), (-4.0, 2.0)]
    assert bounds[1] == (0.0, 1.0) and found.columns[1][1].is_whole
    assert bounds[2] == pytest.approx((1950, 2019), abs=12) and found.columns[2][1].is_whole
    assert bounds[3] == pytest.approx((1e6 - 4, 1e6 + 4), abs=4)
    assert bounds[4] == (0.0, 1.0)
    assert bounds[5] == (0.0, 2.0**17) and not found.columns[5][1].is_seen
    assert bounds[6] == pytest.approx((-16, -8), abs=0.01)


@settings(max_examples=30, deadline=None)
@given(
    digits=st.integers(-44, 38), sign=st.sampled_from([-1.0, 1.0]), away=st.sampled_from([0.0, 1.0, 30.0]),
    both=st.booleans(), seed=st.integers(0, 9),
)  # fmt: skip
def test_bounds_are_found_wherever_single_precision_reaches(
    digits: int, sign: float, away: float, both: bool, seed: int
) -> None:
    """Of features and labels alike, in their true unit: nearly all values lie within, and the bounds are near them."""
    draw = np.random.default_rng(seed)
    sizes = (away + draw.random(N)) / (away + 1) * 10.0**digits
    values = sizes * (draw.choice([-1.0, 1.0], N) if both else sign)
    found = surveyed([values, values], seed, epsilon=8.0, n_columns=1, n_records=N, label="bounds").findings
    assert found.label is not None
    for own, share, most in ((found.columns[0][1], 0.97, 4), (found.label, 0.9999, 32)):
        assert own.is_seen and not own.doubt
        low, high = own.bounds
        held = (values >= low) & (values <= high)
        # The zoom of a column far from zero keeps nearly all by its noisy counts, and a label's range is rather wide.
        assert held.mean() > share
        assert max(abs(low), abs(high)) <= max(most * np.abs(values).max(), 2.0**-147)
        if away == 30 and not both and own is not found.label:
            assert high - low < 0.1 * 10.0**digits + 2.0**-147


@pytest.mark.parametrize("values", [[1e39, 1e300], [-1e300], [np.inf], [1e-310], [-1e-60, 1e-200]])
@pytest.mark.parametrize("rest", [[], [5.0, 6.0]])
def test_values_that_single_precision_does_not_hold_are_told(values: list[float], rest: list[float]) -> None:
    """What no bounds hold is no silent bound: the releases say how many there are, and the estimator warns."""
    cells = np.resize([*values, *rest, *rest], N)
    found = surveyed([cells], n_records=N).findings
    own, is_told = found.columns[0][1], abs(values[0]) > 1 or not rest
    assert bool(own.doubt) == bool(own.unheld) == is_told
    assert own.bounds == ((4.0, 7.0) if rest and abs(values[0]) > 1 else (0.0, 8.0) if rest else own.bounds)
    if is_told:
        assert own.unheld == pytest.approx(np.isin(cells, values).sum(), rel=0.1)
        with pytest.warns(FewRecordsWarning, match="In x: .*single precision"):
            warn_about_few_records(gaps(1), found, {"x": (0, own)}, ())


def test_noise_alone_makes_a_far_octave_in_one_column_of_eleven_thousand() -> None:
    """By the tail of the normal distribution over all windows, as docs/proofs/queries.md says it."""
    far = octave_thresholds() == STANDS_OUT_FAR
    windows = sum(np.lib.stride_tricks.sliding_window_view(far, width).any(axis=1).sum() for width in WINDOWS)
    assert far.sum() == 502 and windows * math.erfc(STANDS_OUT_FAR / math.sqrt(2)) / 2 < 1 / 11_000


@pytest.mark.parametrize("seed", range(5))
def test_no_octave_is_found_that_nobody_has(seed: int) -> None:
    """There are 502 far octaves, and a false one would spoil a column: of 400 columns of one value, none has one."""
    columns: list[NDArray[Any]] = [np.full(500, 3.0)] * 400
    found = surveyed(columns, seed, epsilon=200.0, n_records=500).findings
    assert sum(own.high > 2.0**20 or own.low < -(2.0**20) or own.unheld > 0 for _, own in found.columns) == 0


def test_one_value_far_out_is_not_found() -> None:
    """A single record decides nothing: the bounds are the same with it and without."""
    column = np.random.default_rng(3).uniform(1, 100, N)
    with_outlier = np.append(column, 1e9)
    assert surveyed([with_outlier]).findings.columns == surveyed([column]).findings.columns


def test_the_same_seed_finds_the_same() -> None:
    """Noise is drawn by purpose, so an experiment can be repeated."""
    column = np.random.default_rng(4).lognormal(3, 1, N)
    first, again, other = (surveyed([column], seed) for seed in (7, 7, 8))
    assert first.findings == again.findings and first.ledger == again.ledger
    assert first.findings.n_records != other.findings.n_records


def frame_of(n: int, seed: int = 1) -> tuple[pd.DataFrame, NDArray[np.str_]]:
    """Two numbers, a truth and a text, and classes that are texts."""
    draw = np.random.default_rng(seed)
    rows = pd.DataFrame(
        {
            "age": draw.integers(18, 90, n),
            "income": draw.lognormal(10, 1, n),
            "open": draw.random(n) < 0.4,
            "colour": draw.choice(["red", "green", "blue"], n),
        }
    )
    score = (rows["age"] - 50) / 20 + rows["open"] + 2 * (rows["colour"] == "red") + draw.normal(size=n)
    return rows, np.where(score > 1, "yes", "no")


def test_a_fit_without_any_declaration_keeps_its_promise() -> None:
    """Mixed types, classes of text: one ledger, one report, and never above the epsilon that was asked for."""
    rows, y = frame_of(N)
    model = DPGBDTClassifier(epsilon=1, n_trees=40).fit(rows, y)
    report = model.privacy_report_
    assert report.guarantee == "holds"
    assert 0.99 < report.epsilon <= 1 and report.epsilon_requested == 1
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.score(rows, y) > 0.75
    kinds = [release.kind for release in model.ledger_]
    assert kinds[:4] == ["RecordCount", "CellCounts", "KindCounts", "OctaveCounts"] and "NameVotes" not in kinds
    assert len(model.model_.plan.prepared) == len(kinds) - 43
    features = {feature.name: feature for feature in model.model_.plan.features}
    assert features["colour"].is_hashed and features["open"].categories == ("false", "true")


@pytest.mark.parametrize("accountant", ["gdp", "rdp"])
@pytest.mark.parametrize("kind", [DPGBDTClassifier, DPLinearClassifier])
def test_every_accountant_counts_both(kind: type[Any], accountant: str) -> None:
    """The training is calibrated to what the survey left, by the plan's own accountant."""
    draw = np.random.default_rng(2)
    X = draw.normal(size=(6000, 3))
    y = (X[:, 0] > 0).astype(int)
    model = kind(epsilon=2, accountant=accountant, random_state=1).fit(X, y)
    events = list(model.ledger_.events())
    total = get_accountant(accountant).epsilon(events, 1e-6)
    assert 1.98 < total <= 2 and total == model.privacy_report_.epsilon
    share = sum(1 / event.noise_multiplier**2 for event in events[: len(model.model_.plan.prepared)])
    whole = sum(event.count / event.noise_multiplier**2 for event in events)
    assert share / whole < 0.071


def test_nothing_is_spent_where_all_is_declared() -> None:
    """What is known costs nothing."""
    X = np.random.default_rng(2).normal(size=(500, 2))
    declared: dict[str, Any] = {"bounds": [(-3, 3)] * 2, "n_records": 500, "n_trees": 5}
    model = DPGBDTClassifier(classes=[0, 1], **declared).fit(X, (X[:, 0] > 0).astype(int))
    assert len(model.ledger_) == 8 and not model.model_.plan.prepared
    assert "prepared" not in model.model_.plan.to_dict()
    numbers = DPGBDTRegressor(label_bounds=(-3, 3), **declared).fit(X, X[:, 0])
    kinds = Counter(release.kind for release in numbers.ledger_.releases)
    assert kinds.pop("LeafSums") == 5 and not numbers.model_.plan.prepared
    # The others are of the start and the end of a regression.
    assert set(kinds) == {"LabelSums", "SpreadSums", "GramMatrix", "CrossProducts", "ScoreBins", "LevelSums"}


def test_only_what_is_called_private_is_asked_for() -> None:
    """One column of several: the others' bounds are as declared, and the counts are of one column."""
    X = np.random.default_rng(2).normal(size=(5000, 3))
    model = DPGBDTClassifier(
        bounds=[(-3, 3), "private", (-2, 2)], classes=[0, 1], n_records=5000, n_trees=5, epsilon=2
    ).fit(X, (X[:, 0] > 0).astype(int))
    (release,) = [release for release in model.ledger_ if release.kind == "OctaveCounts"]
    assert release.length == 560
    assert [feature.min for feature in model.model_.plan.features][::2] == [-3, -2]


def test_sites_do_not_matter() -> None:
    """One site, three, and one per 500 rows give the same model file, byte by byte."""
    rows, y = frame_of(4000)
    partitions = [None, np.arange(len(y)) % 3, np.arange(len(y)) // 500]
    files = [
        DPGBDTClassifier(epsilon=8, n_trees=5, random_state=3).fit(rows, y, sites=sites).model_.to_bytes()
        for sites in partitions
    ]
    assert files[0] == files[1] == files[2]


def test_a_model_file_keeps_what_it_was_prepared_by(tmp_path: Any) -> None:
    """Loaded again it has the same account; one whose ledger lacks the survey is refused."""
    X = np.random.default_rng(2).normal(size=(3000, 2))
    made = DPGBDTClassifier(epsilon=4, n_trees=5).fit(X, (X[:, 0] > 0).astype(int)).model_
    made.save(tmp_path / "model.json")
    loaded = Model.load(tmp_path / "model.json")
    assert loaded.ledger == made.ledger and loaded.report.epsilon == made.report.epsilon
    assert loaded.plan.digest == made.plan.digest and loaded.next_round == 8
    before = read_prepared_ledger(loaded.plan)
    tables = write_prepared_tables(before, "record", 1)
    assert Plan.from_dict({**loaded.plan.to_dict(), "prepared": tables}, is_stored=True) == loaded.plan


def few_records_warning(estimator: Any, y: Any) -> str:
    """What fitting 60 rows of ten columns at a tiny epsilon warns of."""
    X = np.random.default_rng(2).normal(size=(60, 10))
    with pytest.warns(FewRecordsWarning) as caught:
        estimator.set_params(epsilon=0.01, random_state=0).fit(X, y)
    return str(caught[0].message)


def test_a_warning_of_few_records_hides_no_guess_and_advises_what_there_is() -> None:
    """By what was released only, and by a category that can be filtered; columns beyond the eighth are counted."""
    y = np.random.default_rng(3).normal(size=60)
    of_number = few_records_warning(DPGBDTRegressor(n_trees=2, label_bounds=(-3, 3)), y)
    assert re.search(r"in (x\d, ){7}x\d and [12] more; the bounds", of_number)
    assert re.search(r"Give bounds=\{'x\d': \(min, max\), \.\.\.\} or label_bounds by", of_number)
    of_class = few_records_warning(DPGBDTClassifier(n_trees=2, classes=[0, 1]), (y > 0).astype(int))
    assert re.search(r"\(min, max\), \.\.\.\} or classes by", of_class)
    of_time = few_records_warning(DPGBDTSurvival(n_trees=2, intervals=[1, 2]), np.column_stack([y > 0, np.abs(y)]))
    assert re.search(r"\(min, max\), \.\.\.\} by", of_time)


@pytest.mark.parametrize("seed", range(6))
def test_a_count_is_never_far_too_small(seed: int) -> None:
    """A release beyond a few times the plan's records is refused, so a count that is all noise must not be one."""
    column = np.random.default_rng(seed).normal(size=200)
    found = surveyed([column], seed, epsilon=0.1).findings.n_records
    assert 4 * found > 200
    with pytest.warns(FewRecordsWarning):
        DPGBDTClassifier(bounds="private", classes=[0, 1], epsilon=0.1, n_trees=3, random_state=seed).fit(
            column[:, None], (column > 0).astype(int)
        )


def test_classes_that_cannot_be_found_are_refused_by_name() -> None:
    """Dates are none that a survey knows; a single class that stands out is no task."""
    X = np.random.default_rng(2).normal(size=(3000, 1))
    dates = np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]")[(X[:, 0] > 0).astype(int)]
    with pytest.raises(UsageError, match="classes") as asked:
        DPGBDTClassifier(bounds=[(-3, 3)], n_records=3000).fit(X, dates)
    assert asked.value.code == "classes" and "dates" in asked.value.remedy
    with pytest.raises(DataError, match="stands out") as refused:
        DPGBDTClassifier(bounds=[(-3, 3)], n_records=3000).fit(X, 5000 + (X[:, 0] > 0))
    assert refused.value.code == "data-one-class"
    # Both have paid for the search: what it cost is a part of the promise, and what helps costs nothing.
    assert 0 < float(re.findall(r"cost epsilon ([\d.]+)", refused.value.remedy)[0]) < 1
    assert "classes=[0, 1]" in refused.value.remedy


def test_pure_promises_are_refused_by_name() -> None:
    """A survey's noise is Gaussian."""
    with pytest.raises(PrivacyError) as refused:
        gaps(accountant="pure")
    assert refused.value.code == "survey-pure"
    with pytest.raises(PlanError):
        DPGBDTClassifier(accountant="pure").fit(np.zeros((4, 1)), [0, 1, 0, 1])


def test_without_noise_everything_is_found() -> None:
    """At an infinite epsilon the report says that nothing is promised, as ever."""
    X = np.random.default_rng(2).integers(3, 9, (200, 2)).astype(float)
    model = DPGBDTClassifier(epsilon=math.inf, n_trees=5).fit(X, (X[:, 0] > 5).astype(int))
    assert model.privacy_report_.guarantee == "void"
    assert [(own.min, own.max) for own in model.model_.plan.features] == [(2.0, 15.0)] * 2


PLAN: dict[str, Any] = {
    "version": 1,
    "privacy": {"epsilon": 1.0, "delta": 1e-6, "n_records": 100},
    "label": {"name": "y", "type": "binary", "classes": ["0", "1"]},
    "features": [{"name": "word", "type": "hashed", "buckets": 8}],
}
RELEASE = {"kind": "RecordCount", "subject": "survey, records", "length": 1, "sensitivity_squared": 4, "sigma": 50}


def test_a_plan_says_what_was_spent_before_it() -> None:
    """Its digest covers the releases; a plan without any is written as before."""
    plain, prepared = Plan.from_dict(PLAN), Plan.from_dict({**PLAN, "prepared": [RELEASE]})
    assert "prepared" not in plain.to_dict() and plain.digest != prepared.digest
    assert Plan.from_dict(prepared.to_dict()) == prepared
    (release,) = read_prepared_ledger(prepared)
    assert (release.purpose, release.sigma, release.sensitivity) == ("0/RecordCount/survey, records", 50, 2)
    assert Plan.from_dict({**PLAN, "prepared": write_prepared_tables([release], "record", 1)}) == prepared
    with pytest.raises(PlanError, match="prepared"):
        Plan.from_dict({**PLAN, "prepared": [RELEASE], "model": {"algorithm": "s-gbdt"}, "s_gbdt": {}})
    with pytest.raises(PlanError, match="sigma"):
        Plan.from_dict({**PLAN, "prepared": [{**RELEASE, "sigma": -1}]})


def test_hashed_columns_have_buckets_in_place_of_categories() -> None:
    """A plan holds their number only; a cell's bucket depends on that cell alone."""
    from hedgerow.data.units import records_from_columns

    plan = Plan.from_dict(PLAN)
    assert "categories" not in plan.to_dict()["features"][0] and len(plan.features[0].categories) == 8
    cells = ["red", " red", 3, "3.0", None, "nan", "true", True]
    together = records_from_columns({"word": cells}, plan, with_label=False).features[0]
    alone = [records_from_columns({"word": [cell]}, plan, with_label=False).features[0][0] for cell in cells]
    assert together.tolist() == alone
    assert alone[0] == alone[1] and alone[2] == alone[3] and alone[6] == alone[7] and alone[4] == alone[5] == -2
    for wrong in ({"buckets": None}, {"categories": ["a"]}, {"min": 0.0}):
        with pytest.raises(PlanError):
            Plan.from_dict({**PLAN, "features": [{**PLAN["features"][0], **wrong}]})


@pytest.mark.parametrize("other", [1, 1.0, np.int8(1), np.uint64(1)])
def test_one_row_of_a_list_decides_nothing_about_how_classes_are_written(other: Any) -> None:
    """Of a list, numpy's type follows from all rows: the classes of a plan, and their type, may not."""
    X = np.random.default_rng(2).normal(size=(3000, 1))
    plain: list[Any] = (X[:, 0] > 0).tolist()
    mixed = [other, *plain[1:]] if plain[0] else [*plain[:-1], other]
    found = []
    for y in (plain, mixed):
        model = DPGBDTClassifier(epsilon=8, bounds=[(-3, 3)], n_records=3000, n_trees=5, random_state=1).fit(X, y)
        found.append((model.model_.plan.label.classes, model.classes_.dtype, model.classes_.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("privacy", "lie"),
    [
        ({"unit": "patient", "max_rows_per_unit": 1}, {}),
        ({"unit": "patient", "max_rows_per_unit": 5}, {"unit": "patient", "rows_per_unit": 1}),
        ({"unit": "patient", "max_rows_per_unit": 2, "sites_per_unit": 2}, {"unit": "patient", "rows_per_unit": 3}),
        ({"noise": "distributed"}, {}),
        ({}, {"noise": "local"}),
        ({}, {"kind": "Record/Count"}),
    ],
)
def test_what_was_released_for_another_promise_is_refused(privacy: dict[str, Any], lie: dict[str, Any]) -> None:
    """Noise for one row of a record does not protect a patient with five, and no report may say that it did."""
    with pytest.raises(PlanError, match="prepared"):
        Plan.from_dict({**PLAN, "privacy": {**PLAN["privacy"], **privacy}, "prepared": [{**RELEASE, **lie}]})
    if "unit" in privacy:
        rows = privacy["max_rows_per_unit"] * privacy.get("sites_per_unit", 1)
        tables = write_prepared_tables(
            read_prepared_ledger(Plan.from_dict({**PLAN, "prepared": [RELEASE]})), "patient", rows
        )
        plan = Plan.from_dict({**PLAN, "privacy": {**PLAN["privacy"], **privacy}, "prepared": tables})
        assert Plan.from_dict(plan.to_dict()) == plan


def test_no_release_of_an_evaluation_comes_before_a_training() -> None:
    """A report would speak of an evaluation that never was, and of its noise in place of the plan's."""
    plan = Plan.from_dict({**PLAN, "prepared": [{**RELEASE, "kind": "ScoreHistogram"}]})
    with pytest.raises(PrivacyError) as refused:
        read_prepared_ledger(plan)
    assert refused.value.code == "malformed-ledger"


def test_a_report_says_what_the_run_has_not_seen() -> None:
    """Releases before a run are the word of whoever wrote the plan: their number is told, and cannot be lost."""
    plan = Plan.from_dict({**PLAN, "prepared": [RELEASE]})
    ledger = read_prepared_ledger(plan)
    report, plain = (
        build_report(ledger, PrivacyContext.from_plan(plan)),
        build_report(ledger, PrivacyContext(delta=1e-6)),
    )
    assert report.text() != replace(report, n_prepared=0).text() and report.to_dict()["n_prepared"] == 1
    assert "n_prepared" not in plain.to_dict()
    check_claims(report.to_dict(), report)
    with pytest.raises(PrivacyError, check=coded("report-untrue")):
        check_claims({key: value for key, value in report.to_dict().items() if key != "n_prepared"}, report)


def test_sums_over_sites_are_masked_where_masks_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`secure_sums=True` is for the survey too: no sum of sites is taken in the clear before a report that claims
    masks; and over three sites or more a survey of site objects has them in any case, with the same findings.
    """
    draw = np.random.default_rng(4)
    columns = [draw.normal(size=900), draw.integers(1950, 2020, 900).astype(float)]
    questions = gaps(2, epsilon=5.0)
    found = [
        survey_sites(
            questions,
            {f"s{at}": RawSite(columns, np.arange(at, 900, n_sites), 900) for at in range(n_sites)},
            SeededNoise(1),
        )
        for n_sites in (1, 2, 4)
    ]
    assert found[0].findings == found[1].findings == found[2].findings
    assert [own.is_clear for own in found] == [False, True, False]

    def seen(*_: Any) -> Any:
        raise AssertionError("a sum was taken in the clear")

    monkeypatch.setattr(PlainAggregation, "sum_answers", seen)
    X, y = np.column_stack(columns), (columns[0] > 0).astype(int)
    model = DPGBDTClassifier(epsilon=8, n_trees=2, max_depth=2, random_state=1, secure_sums=True)
    assert model.fit(X, y, sites=np.arange(900) % 3).model_.plan.prepared
    assert not model.privacy_report_.sums_in_clear
    with pytest.raises(AssertionError):
        model.set_params(secure_sums=False).fit(X, y, sites=np.arange(900) % 3)
