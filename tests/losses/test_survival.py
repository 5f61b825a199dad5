"""Times to an event: codes, the loss's table against a slow oracle, its sensitivity, baselines, curves, concordance."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from hedgerow import DPGBDTSurvival, tune
from hedgerow.app.evaluation import read_sites
from hedgerow.cli.main import main
from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.data.site_data import site_data_from_records
from hedgerow.data.units import LostRowsWarning, records_from_columns
from hedgerow.errors import DataError, HedgerowError, ModelError, PlanError, UsageError
from hedgerow.local.training import train
from hedgerow.losses.registry import build_loss
from hedgerow.losses.survival import Baseline, hazards, survival_codes, survival_curves, with_baseline
from hedgerow.losses.tables import RECORD_NORM, STEPS
from hedgerow.methods.boosting.schedule import BoostingSettings
from hedgerow.methods.hazards import LifeTable, fit_hazards
from hedgerow.methods.registry import resolve
from hedgerow.methods.score_bins import BINS_LENGTH, BINS_SENSITIVITY_SQUARED, N_BINS, KnownBins, ScoreBins
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.plan.toml import plan_toml
from hedgerow.privacy.noise import SeededNoise
from tests.builders import coded, make_plan

BASELINES: tuple[Baseline, ...] = ((0, 0, 0), (-700, -300, -1200), (2048, -2048, 5), (-2048, -2048, -2048))


def survival_plan(n_intervals: int = 3) -> Plan:
    table = make_plan("survival").to_dict()
    table["label"]["intervals"] = list(range(1, n_intervals + 1))
    return Plan.from_dict(table)


def at_risk_and_event(time: float, seen: bool, ends: list[float]) -> tuple[int, bool]:
    """The convention in its own words: in how many intervals a record's fate is known, and whether it was the event."""
    begin, known = 0.0, 0
    for end in ends:
        if seen and time <= end and (time > begin or begin == 0):
            return known + 1, True
        if time < end:
            return known, False
        begin, known = end, known + 1
    return known, False


def test_codes_say_where_a_record_was_at_risk_and_whether_it_had_the_event() -> None:
    ends = [1.0, 2.5, 4.0]
    for time in (0.0, 0.5, 1.0, 1.1, 2.5, 3.0, 4.0, 4.1, math.inf):
        for seen in (False, True):
            (code,) = survival_codes([time], [seen], ends).tolist()
            assert ((code + 1) // 2, code % 2 == 1) == at_risk_and_event(time, seen, ends), (time, seen)
    assert survival_codes([4.0, 5.0, 5.0], [0, 0, 1], ends).tolist() == [6, 6, 6]
    for wrong in (-0.1, math.nan):
        with pytest.raises(ValueError, match="negative"):
            survival_codes([wrong], [0], ends)


def exact_statistics(code: int, step: int, baseline: Baseline, clip: float, c: float) -> tuple[float, float]:
    """(g, c h) of one record by the formulas of the loss, one interval after the other, shortened to the clip."""
    score = (step - STEPS // 2 + 0.5) / 256
    gradient = hessian = 0.0
    for interval in range((code + 1) // 2):
        hazard = 1 / (1 + math.exp(-(baseline[interval] / 256 + score)))
        is_last = interval == (code + 1) // 2 - 1
        gradient += hazard - (1.0 if is_last and code % 2 else 0.0)
        hessian += hazard * (1 - hazard)
    norm = math.hypot(gradient, c * hessian)
    factor = min(1.0, clip / norm) if norm else 1.0
    return gradient * factor, c * hessian * factor


@pytest.mark.parametrize("clip", [0.25, 1.0, None])
@pytest.mark.parametrize("baseline", BASELINES)
def test_the_table_is_what_the_formulas_say(baseline: Baseline, clip: float | None) -> None:
    loss = with_baseline(build_loss(survival_plan(), clip, 2.0), baseline)
    limit = math.hypot(3, 2 * 3 / 4) if clip is None else clip
    for code in range(7):
        for step in range(0, STEPS, 13):
            expected = exact_statistics(code, step, baseline, limit, 2.0)
            # Gradients and Hessians share one unit: the Hessian's c is in the statistic.
            real = loss.table[code, step] / (RECORD_NORM / limit)
            assert np.abs(real - expected).max() <= limit / RECORD_NORM * 1.01, (code, step)


@pytest.mark.parametrize("clip", [0.02, 0.25, 1.0, None])
@pytest.mark.parametrize("n_intervals", [2, 7, 64])
def test_no_record_is_longer_than_promised_whatever_baseline_is_released(n_intervals: int, clip: float | None) -> None:
    loss, rng = build_loss(survival_plan(n_intervals), clip, None), np.random.default_rng(n_intervals)
    assert loss.norm_squared == RECORD_NORM**2
    drawn = [tuple(rng.integers(-2048, 2049, size=n_intervals).tolist()) for _ in range(3)]
    for baseline in [(-2048,) * n_intervals, (0,) * n_intervals, (2048,) * n_intervals, *drawn]:
        own = with_baseline(loss, baseline)
        squared = (own.table.astype(np.int64) ** 2).sum(axis=-1)
        assert own.table.shape == (2 * n_intervals + 1, STEPS, 2)
        assert squared.max() <= RECORD_NORM**2
        # A run's releases are planned before the baseline is known, so the promise may not depend on it.
        assert {own.sensitivity_squared(bound) for bound in (0, 10**5, 10**7)} == {RECORD_NORM**2}
    if clip is not None and clip < 0.5:
        assert squared.max() > 0.999 * RECORD_NORM**2


def test_a_record_that_was_never_at_risk_adds_nothing() -> None:
    loss = with_baseline(build_loss(survival_plan(), 0.25, None), (5, 6, 7))
    assert not loss.table[0].any()


def counts_of(codes: np.ndarray, n_intervals: int) -> np.ndarray:
    return np.bincount(codes, minlength=2 * n_intervals + 1) * RECORD_NORM


def test_without_noise_the_baseline_is_the_life_table() -> None:
    """Events among those at risk, interval by interval, as an actuary counts them."""
    rng = np.random.default_rng(3)
    time, seen = rng.exponential(2, 20_000), rng.random(20_000) < 0.7
    ends = [0.5, 1.0, 2.0, 4.0]
    codes = survival_codes(time, seen, ends)
    baseline = LifeTable.of(counts_of(codes, 4), 0.0).baseline
    begin = 0.0
    for end, place in zip(ends, baseline, strict=True):
        events = int((seen & (time > begin) & (time <= end)).sum())
        known = int((time >= end).sum()) + events
        assert abs(place / 256 - math.log(events / (known - events))) < 0.02
        begin = end


def test_where_noise_covers_the_counts_the_baseline_is_that_of_all_intervals() -> None:
    counts = counts_of(survival_codes([0.5] * 5 + [3.0] * 95, [1] * 100, [1.0, 2.0, 3.0]), 3)
    baseline = LifeTable.of(counts, 1e9 * RECORD_NORM).baseline
    assert max(baseline) - min(baseline) <= 1
    for hostile in (-(10**12), 0, 10**12):
        found = LifeTable.of(np.full(7, hostile), 1e6).baseline
        assert all(abs(place) <= 2048 for place in found)


def test_survival_curves_start_below_one_and_never_rise() -> None:
    scores = np.linspace(-30, 30, 101)
    curves = survival_curves(scores, (-2048, 0, 100, 2048))
    assert curves.shape == (101, 4)
    assert curves.max() <= 1
    assert curves.min() >= 0
    assert (np.diff(curves, axis=1) <= 0).all()
    assert (np.diff(curves, axis=0) <= 0).all()
    assert np.allclose(hazards(np.array([0.3]), (256, -256)), [[1 / (1 + math.exp(-1.3)), 1 / (1 + math.exp(0.7))]])


ASKED = ScoreBins(
    purpose=ScoreBins.purpose_of(0, "calibration"), length=BINS_LENGTH, bound=RECORD_NORM,
    sensitivity_squared=BINS_SENSITIVITY_SQUARED, noise_multiplier=1.0,
)  # fmt: skip


def events_by_score(slope: float, baseline: Baseline, n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes of records whose log-odds are baseline + slope * score, and both releases about them without noise."""
    rng, n_intervals = np.random.default_rng(seed), len(baseline)
    scores = rng.normal(-0.5, 1.0, n)
    codes = np.full(n, 2 * n_intervals)
    lost, is_in = rng.integers(0, 2 * n_intervals, n), np.ones(n, dtype=bool)
    for interval, place in enumerate(baseline):
        codes[is_in & (lost == interval)] = 2 * interval
        is_in &= lost != interval
        had = is_in & (rng.random(n) < 1 / (1 + np.exp(-place / 256 - slope * scores)))
        codes[had] = 2 * interval + 1
        is_in &= ~had
    bins = (np.clip(np.floor(np.abs(scores) * 2 + 0.5) * np.sign(scores), -20, 20) + 20).astype(int)
    counts, events = np.bincount(bins, minlength=N_BINS), np.bincount(bins[codes % 2 == 1], minlength=N_BINS)
    released = np.concatenate([counts * RECORD_NORM, (2 * events - counts) * (RECORD_NORM // 2)])
    return counts_of(codes, n_intervals), released, codes


@pytest.mark.parametrize("slope", [0.4, 0.7, 1.0, 1.3])
def test_the_last_release_finds_slope_and_baseline(slope: float) -> None:
    """The life table's hazards fall as those of high risk are gone; the baseline that was true comes back."""
    baseline = (-500, -450, -400, -350, -300, -250)
    fates, released, _ = events_by_score(slope, baseline, 400_000, 2)
    table = LifeTable.of(fates, 0.0)
    found, own = fit_hazards(table, KnownBins.of(ASKED, released, 0.0))
    assert abs(own - slope) < 0.04 * max(1.0, slope)
    assert np.abs(np.array(found) - np.array(baseline)).max() < 13
    assert np.abs(np.array(table.baseline) - np.array(baseline)).max() > 20


def test_under_noise_the_slope_stays_what_was_expected() -> None:
    fates, released, _ = events_by_score(1.0, (-500, -400, -300), 1_000, 3)
    table = LifeTable.of(fates, 0.0)
    for sigma in (50.0, 500.0, 1e6):
        drawn = [KnownBins.of(ASKED, released + noise, sigma * RECORD_NORM) for noise in noises(sigma, 20)]
        own = [fit_hazards(table, known)[1] for known in drawn]
        assert 0.2 <= min(own) <= max(own) <= 2.0
        assert abs(np.mean(own) - 0.7) < 0.2


def noises(sigma: float, n: int) -> np.ndarray:
    return np.rint(np.random.default_rng(4).normal(0, sigma * RECORD_NORM, (n, 2 * N_BINS))).astype(np.int64)


def test_without_noise_a_known_model_of_hazards_is_learned(tmp_path: Path) -> None:
    """Made records whose hazards are known: the curves come near, and risks are in nearly the true order."""
    rng, n = np.random.default_rng(6), 20_000
    x = rng.uniform(-2, 2, (n, 2))
    scores = np.where(x[:, 0] > 0, 1.0, -0.5) + 0.5 * x[:, 1]
    baseline, ends = (-600, -500, -450, -420), [1.0, 2.0, 3.0, 4.0]
    time, is_in = rng.uniform(0, 6, n), np.ones(n, dtype=bool)
    seen, lost = np.zeros(n, dtype=bool), time.copy()
    for interval, hazard in enumerate(hazards(scores, baseline).T):
        had = is_in & (rng.random(n) < hazard) & (lost > interval + 1)
        time[had], seen[had], is_in = interval + 0.5, True, is_in & ~had
    table = make_plan("survival").to_dict()
    table |= {"features": [{"name": f"x{i}", "type": "numeric", "min": -2, "max": 2} for i in range(2)], "model": {}}
    table["label"]["intervals"] = ends
    table["privacy"] |= {"epsilon": math.inf, "n_records": n}
    plan = Plan.from_dict(table)
    columns = {"x0": x[:, 0], "x1": x[:, 1], "y": time, "seen": seen}
    data = site_data_from_records([records_from_columns(columns, plan)], plan)[0]
    model = train(plan, {"site": data}, noise=SeededNoise(1))
    truth, found = survival_curves(scores, baseline), model.predict_survival(columns)
    assert np.abs(found - truth).mean() < 0.03
    assert np.corrcoef(model.predict(columns), scores)[0, 1] > 0.97
    model.save(tmp_path / "model.json")
    again = Model.load(tmp_path / "model.json")
    assert again.ensemble.baseline == model.ensemble.baseline
    assert np.array_equal(again.predict_survival(columns), found)


def test_fates_are_counted_once_for_each_record() -> None:
    """The baseline's one release: a record is in one entry, so the norm of its vector is what was promised."""
    plan = make_plan("survival")
    settings = resolve(plan)
    assert isinstance(settings, BoostingSettings)
    (query,) = settings.start_of(plan).questions()
    for labels in ([0], [3], [8], [0, 3, 3, 8]):
        data = SiteData(np.zeros((len(plan.features), len(labels)), np.uint8), np.array(labels, dtype=np.int32))
        answer = Node("site", data, plan, settings).answer(query)
        assert answer.tolist() == (np.bincount(labels, minlength=9) * RECORD_NORM).tolist()
        assert len(answer) == query.length and (len(labels) > 1 or (answer**2).sum() == query.sensitivity_squared)


# Tables, estimators, commands -----------------------------------------------------------------------------------------


def test_both_columns_of_a_table_make_a_code_and_rows_that_do_not_fit_are_left_out() -> None:
    plan = survival_plan()
    times = [0.5, 1.5, 9.0, math.nan, -1.0, 1.0, 2.0, 3.0]
    words = ["yes", "no", "true", "1", "0", "0", "perhaps", None]
    columns: dict[str, Any] = {"y": times, "seen": words, "age": [1.0] * 8, "income": [1.0] * 8, "change": [0.0] * 8}
    columns["region"] = ["north"] * 8
    left_out: dict[str, int] = {}
    records = records_from_columns(columns, plan, left_out=left_out)
    assert records.label is not None
    assert records.label.tolist() == [1, 2, 6, 2]
    assert left_out == {"data-label-missing": 2, "data-label-outside": 2}
    for row, code in ((3, "missing"), (4, "below 0"), (6, "whether the event"), (7, "missing")):
        with pytest.raises(DataError, match=code):
            records_from_columns({name: column[row : row + 1] for name, column in columns.items()}, plan)
    with pytest.raises(DataError, match="seen"):
        records_from_columns({name: column for name, column in columns.items() if name != "seen"}, plan)


@pytest.mark.parametrize(
    ("codes", "words"), [(["1", "2"], ["2", "1", 1, 2.0]), (["alive", "dead"], ["dead", "alive"] * 2)]
)
def test_a_plan_says_how_its_column_writes_an_event(codes: list[str], words: list[Any]) -> None:
    """In R's package survival 1 is censored and 2 the event; whatever is neither of both is left out, and counted."""
    plan = survival_plan()
    declared = Plan.from_dict({**plan.to_dict(), "label": {**plan.to_dict()["label"], "event_codes": codes}})
    assert "event_codes" not in plan.to_dict()["label"] and declared.digest != plan.digest
    assert Plan.from_dict(declared.to_dict()) == declared
    rows: dict[str, Any] = {"y": [1.5] * 6, "seen": [*words, "0", "yes"], "region": ["north"] * 6}
    rows |= {name: [0.0] * 6 for name in ("age", "income", "change")}
    left_out: dict[str, int] = {}
    found = records_from_columns(rows, declared, left_out=left_out).label
    assert found is not None and (found % 2 == 1).tolist() == [str(word)[0] in "2d" for word in words]
    assert left_out == {"data-label-outside": 2}
    for wrong in (["1"], ["0", "1", "2"], ["1", "1"]):
        with pytest.raises(PlanError, match="event_codes"):
            Plan.from_dict({**plan.to_dict(), "label": {**plan.to_dict()["label"], "event_codes": wrong}})


def test_an_estimator_is_told_what_an_event_is() -> None:
    """The same model for either way of writing it, and no other value is taken for one of both."""
    X, seen, time = cohort(300, 3)
    told = {**TOLD, "n_trees": 3, "random_state": 1}
    plain = DPGBDTSurvival(**told).fit(X, np.column_stack([seen, time]))
    renamed = DPGBDTSurvival(**told, event_codes=(1, 2)).fit(X, np.column_stack([seen + 1, time]))
    assert renamed.predict(X).tolist() == plain.predict(X).tolist()
    assert (plain.model_.plan.label.event_codes, renamed.model_.plan.label.event_codes) == ((), ("1", "2"))
    # Codes that were not named take their rows out, which is said in private; without a promise they are an error.
    with pytest.warns(LostRowsWarning):
        DPGBDTSurvival(**told).fit(X, np.column_stack([seen + 1, time]))
    with pytest.raises(UsageError, check=coded("survival-label")):
        DPGBDTSurvival(**told, epsilon=math.inf).fit(X, np.column_stack([seen + 1, time]))


@pytest.mark.parametrize(("factor", "is_told"), [(1.0, False), (365.25, True), (1 / 365.25, True)])
def test_times_in_another_unit_than_the_intervals_are_told(
    factor: float, is_told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Days beside years teach a model next to nothing: the owner is told before a training, and by a survey's sums."""
    X, seen, time = cohort(400, 4)
    rows = [f"{a},{t * factor},{int(e)}" for a, t, e in zip(X[:, 0], time, seen, strict=True)]
    (tmp_path / "t.csv").write_text("a,days,died\n" + "\n".join(rows) + "\n", encoding="ascii")
    about = {"name": "days", "type": "survival", "event": "died", "intervals": [0.25, 0.5, 1.0, 3.0]}
    feature = {"name": "a", "type": "numeric", "min": -1, "max": 1}
    privacy = {"epsilon": 5, "delta": 1e-6, "n_records": 400}
    plan = {"version": 1, "name": "p", "privacy": privacy, "label": about, "features": [feature]}
    (tmp_path / "p.toml").write_text(plan_toml(Plan.from_dict(plan)), encoding="ascii")
    place = [str(tmp_path / "p.toml"), str(tmp_path / "t.csv")]
    for command in (["check", *place], ["survey", place[1], "--survival", place[0], "--epsilon", "5"]):
        assert main(command) == 0
        printed = capsys.readouterr()
        assert ("another unit" in " ".join((printed.out + printed.err).split())) == is_told
    read_sites({"t": place[1]}, Plan.from_dict(plan), quiet=True)
    assert ("another unit" in " ".join(capsys.readouterr().err.split())) == is_told
    model = DPGBDTSurvival(intervals=about["intervals"], bounds=(-1, 1), n_records=400, n_trees=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, np.column_stack([seen, time * factor]))
    assert any("another unit" in str(own.message) for own in caught) == is_told


def cohort(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, whether the event was seen, and when: the first feature decides."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3))
    time, lost = rng.exponential(np.exp(-2 * X[:, 0])), rng.uniform(0, 3, n)
    return X, time <= lost, np.minimum(time, lost)


TOLD: dict[str, Any] = {"bounds": (-1, 1), "intervals": [0.25, 0.5, 1.0, 1.5, 2.0, 3.0], "n_records": 3000}


def test_an_estimator_reads_what_scikit_survival_makes_and_predicts_curves() -> None:
    X, seen, time = cohort(3000, 1)
    pairs = np.array(list(zip(seen, time, strict=True)), dtype=[("event", bool), ("time", float)])
    private = DPGBDTSurvival(epsilon=2, **TOLD).fit(X, pairs, sites=np.arange(3000) % 3)
    assert private.privacy_report_.guarantee == "holds"
    assert private.privacy_report_.epsilon <= 2
    fresh, seen_later, later = cohort(2000, 2)
    assert private.score(fresh, np.column_stack([seen_later, later])) > 0.7
    curves = private.predict_survival_function(fresh)
    assert curves.shape == (2000, 6)
    assert (np.diff(curves, axis=1) <= 0).all() and curves.min() >= 0 and curves.max() <= 1
    # The larger the risk, the lower the whole curve.
    order = np.argsort(private.predict(fresh))
    assert (np.diff(curves[order], axis=0) <= 0).all()
    # By the noise of one model; a third of those at risk is not far from its true share.
    truth = np.exp(-np.outer(np.exp(2 * fresh[:, 0]), TOLD["intervals"]))
    assert np.abs(curves - truth).mean() < 0.15


def test_who_holds_which_row_does_not_matter_to_an_estimator() -> None:
    X, seen, time = cohort(300, 3)
    y = np.column_stack([seen, time])
    told = {**TOLD, "n_trees": 6, "random_state": 1}
    whole = DPGBDTSurvival(**told).fit(X, y)
    parts = clone(DPGBDTSurvival(**told)).fit(X, y, sites=np.arange(300) % 7)
    assert whole.model_.to_bytes() == parts.model_.to_bytes()
    assert whole.get_params()["intervals"] == TOLD["intervals"]


@pytest.mark.parametrize(
    ("changes", "y", "error"),
    [
        ({"intervals": None}, [[1, 0.5]] * 20, "intervals is None"),
        ({"intervals": [2.0, 1.0]}, [[1, 0.5]] * 20, "above the one before"),
        ({"intervals": [1.0]}, [[1, 0.5]] * 20, "2 to 64 intervals"),
        ({}, [0.5] * 20, "has the shape"),
        ({}, [[0.5, 1]] * 20, "other values than 0 and 1"),
        ({}, [[1, -1.0]] * 20, "missing or below 0"),
        ({}, [[1, math.nan]] * 20, "missing or below 0"),
        ({}, [["a", "b"]] * 20, "other things than numbers"),
    ],
)
def test_an_estimator_says_what_is_wrong(changes: dict[str, Any], y: Any, error: str) -> None:
    """A caller reads what is wrong with arguments and shapes, and with labels where nothing is promised."""
    with pytest.raises(HedgerowError, match=error):
        DPGBDTSurvival(**{**TOLD, **changes}, epsilon=math.inf).fit(np.zeros((20, 3)), y)


def test_commands_check_train_predict_and_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, seen, time = cohort(200, 4)
    rows = [f"{a},{b},{c},{t},{'yes' if e else 'no'}" for (a, b, c), t, e in zip(X, time, seen, strict=True)]
    (tmp_path / "rows.csv").write_text("a,b,c,time,died\n" + "\n".join(rows))
    features = "".join(f'[[features]]\nname = "{name}"\ntype = "numeric"\nmin = -1\nmax = 1\n' for name in "abc")
    (tmp_path / "plan.toml").write_text(
        "version = 1\n[model]\nn_trees = 4\n[privacy]\nepsilon = 5\ndelta = 1e-5\nn_records = 200\n[label]\n"
        'name = "time"\ntype = "survival"\nevent = "died"\nintervals = [0.5, 1, 2]\n' + features
    )
    plan, table, model = (str(tmp_path / name) for name in ("plan.toml", "rows.csv", "model.json"))
    assert main(["check", plan, table]) == 0
    assert main(["train", plan, "--site", table, "--out", model]) == 0
    capsys.readouterr()
    assert main(["predict", model, table]) == 0
    header, first, *_ = capsys.readouterr().out.splitlines()
    assert header == "risk_time,survival_0.5,survival_1,survival_2"
    assert [float(cell) for cell in first.split(",")[1:]] == sorted(map(float, first.split(",")[1:]), reverse=True)
    assert main(["evaluate", model, table, "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() >= {"concordance", "integrated_brier"}
    assert main(["export", model, "--to", "xgboost", "--out", str(tmp_path / "x.json")]) == 0
    assert main(["export", model, "--to", "ebm", "--out", str(tmp_path / "e.json")]) == 5
    assert main(["predict", model, table, "--proba"]) == 5
    kept = Model.load(model)
    codes = kept.encode(dict(zip("abc", X.T, strict=True)))
    assert np.allclose(
        kept.predict_survival_codes(codes), survival_curves(kept.predict_codes(codes), kept.ensemble.baseline)
    )
    for wrong in ([0, 1], [0, 1, 2.0], [0, 0, 5000], None):
        content = json.loads(Path(model).read_text())
        content["ensemble"]["baseline"] = wrong
        Path(tmp_path / "wrong.json").write_text(json.dumps(content))
        with pytest.raises(ModelError, match="baseline"):
            Model.load(tmp_path / "wrong.json")


def test_settings_are_chosen_by_noisy_concordance() -> None:
    X, seen, time = cohort(2000, 5)
    settings: list[dict[str, Any]] = [{"n_trees": 1}, {"n_trees": 30}]
    found = tune(DPGBDTSurvival(**{**TOLD, "epsilon": 8}), settings, X, np.column_stack([seen, time]))
    assert [own.measure for own in found.tuning_] == ["concordance", "concordance"]
    best = max(found.tuning_, key=lambda own: own.score.value)
    assert found.n_trees == best.setting["n_trees"]
    assert found.privacy_report_.epsilon <= 8
    with pytest.raises(UsageError, match="intervals"):
        tune(found, [{"intervals": [1.0, 2.0]}], X, np.column_stack([seen, time]))
