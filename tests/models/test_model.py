"""The model and its file: predictions, equal bytes for equal models, and one clear error for each bad file."""

from __future__ import annotations

import hashlib
import json
import math
import os
import resource
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.cli.main import main
from hedgerow.data.cells import CellsWarning
from hedgerow.errors import DataError, EnvironmentFault, ModelError
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.models.model import Model, canonical_bytes
from tests.builders import make_data, make_plan, plans, take, train

Build = Callable[..., Model]


@pytest.fixture(scope="module")
def build() -> Build:
    """Train a small model on random rows."""

    def make(label: str = "binary", model: dict[str, Any] | None = None, **privacy: Any) -> Model:
        plan = make_plan(label, model, privacy)
        outcome = train(plan, [make_data(plan, 80, 0)])
        return Model(plan, outcome.ensemble, outcome.ledger, outcome.report, sites=("north", "south"))

    return make


@pytest.fixture
def saved(build: Build, tmp_path: Path) -> Path:
    """A model file."""
    path = tmp_path / "model.json"
    build().save(path)
    return path


COLUMNS: dict[str, Any] = {
    "age": np.array([0.0, 3.0, np.nan, 99.0]),
    "income": np.array([10.0, 2e5, 1e9, -5.0]),
    "region": np.array(["north", "mars", "", "west"], dtype=object),
    "change": np.array([0.5, np.nan, -1.0, 1.0]),
}


WITHIN = {
    "age": np.tile([0.0, 3.0, np.nan, 4.0], 3),
    "income": np.tile([10.0, 2e4, 500.0, 40.0], 3),
    "region": np.array(["north", "south", "", "west"] * 3, dtype=object),
    "change": np.tile([0.5, np.nan, -1.0, 1.0], 3),
}
"""Rows within the plan."""


def commands_say(folder: Path, table: Mapping[str, Any], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What `predict` and `evaluate` say of a table, with the folder's model."""
    labelled = {**table, "y": np.tile(["no", "yes"], 6)}
    lines = [",".join(labelled), *(",".join(map(str, row)) for row in zip(*labelled.values(), strict=True))]
    (folder / "rows.csv").write_text("\n".join(lines), encoding="utf-8")
    said = []
    for command in ("predict", "evaluate"):
        capsys.readouterr()
        assert main([command, str(folder / "model.json"), str(folder / "rows.csv")]) == 0
        said.append(" ".join(capsys.readouterr().err.split()))
    return said


def test_a_column_without_any_value_is_told(
    build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    """An export that lost a column is predicted by what was never learned; one cell, or a row alone, is no news."""
    model, rows = build(), WITHIN
    model.predict(rows)
    model.predict({name: values[2:3] for name, values in rows.items()})
    assert not recwarn
    empty: dict[str, Any] = {"age": np.full(12, np.nan), "region": np.full(12, "", dtype=object)}
    with pytest.warns(CellsWarning, match="12 of 12 cells of 'age', 12 of 12 cells of 'region'"):
        model.predict(rows | empty)
    model.save(tmp_path / "model.json")
    for said in commands_say(tmp_path, rows, capsys):
        assert "cells of 'age', 12 of 12 cells of 'region'" not in said
    for said in commands_say(tmp_path, rows | empty, capsys):
        assert "cells of 'age', 12 of 12 cells of 'region'" in said


def test_a_column_of_which_much_is_not_listed_is_told(
    build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    """Codes written in another way are all one category to the model, and the predictions look like any others."""
    model, rows = build(), WITHIN
    known = np.array(["north", "south", "west", ""] * 3, dtype=object)
    model.predict(rows | {"region": known})
    model.predict({name: values[:4] for name, values in rows.items()} | {"region": np.repeat("NORTH", 4)})
    assert not recwarn
    others = rows | {"region": np.where(np.arange(12) < 4, "NORTH", known)}
    with pytest.warns(CellsWarning, match="'region'"):
        model.predict(others)
    model.save(tmp_path / "model.json")
    for said in commands_say(tmp_path, rows | {"region": known}, capsys):
        assert "Not listed" not in said
    for said in commands_say(tmp_path, others, capsys):
        assert "Not listed" in said


ENDS = [("binary", ""), ("regression", "end at -3 and 5,"), ("count", "and 12,")]


@pytest.mark.parametrize(("label", "said"), ENDS)
def test_an_export_says_where_predictions_have_to_be_cut_off(
    build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str], label: str, said: str
) -> None:
    """XGBoost cuts nothing off at a label's bounds, which the file has."""
    model = build(label)
    model.save(tmp_path / "model.json")
    assert main(["export", str(tmp_path / "model.json")]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert ("Cut" in told) is bool(said) and (not said or said in told)
    if said:
        xgboost = pytest.importorskip("xgboost")
        booster = xgboost.Booster(model_file=str(tmp_path / "model.xgboost.json"))
        low, high = model.plan.label.bounds
        # No mean of counts is 0.
        assert float(booster.attr("clip_max")) == high and low <= float(booster.attr("clip_min")) < low + 0.01


@settings(max_examples=25)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_a_model_survives_its_file(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, seed: int) -> None:
    """Every kind of model reads back to the same bytes and the same predictions."""
    plan = data.draw(plans())
    rows = make_data(plan, 40, seed)
    outcome = train(plan, [rows])
    model = Model(plan, outcome.ensemble, outcome.ledger, outcome.report)
    path = tmp_path_factory.mktemp("model") / "model.json"
    model.save(path)
    again = Model.load(path)
    assert again.to_bytes() == model.to_bytes() == path.read_bytes()
    assert again.plan == plan and again.ledger == model.ledger and again.report == model.report
    assert again.report.to_dict() == model.report.to_dict()
    assert again.report_text("2026-01-02") == model.report_text("2026-01-02")
    assert np.array_equal(again.predict_codes(rows.codes), model.predict_codes(rows.codes))


def test_the_file_does_not_depend_on_who_holds_which_row() -> None:
    """The same rows over one or three sites give the same bytes: the file counts nobody's records."""
    plan = make_plan("multiclass", {"interaction": "cyclical", "interaction_size": 2})
    rows = make_data(plan, 90, 5)
    parts = [take(rows, np.arange(start, 90, 3)) for start in range(3)]
    files = set()
    for sites in ([rows], parts):
        outcome = train(plan, sites)
        files.add(Model(plan, outcome.ensemble, outcome.ledger, outcome.report).to_bytes())
    assert len(files) == 1


def test_a_model_without_privacy_has_a_file_of_strict_json(build: Build, tmp_path: Path) -> None:
    """An infinite epsilon is written as a word, since JSON has no infinity, and comes back as infinity."""
    model = build(epsilon=math.inf)
    model.save(tmp_path / "m.json")
    assert b"Infinity" not in model.to_bytes()
    again = Model.load(tmp_path / "m.json")
    assert again.plan.privacy.epsilon == math.inf and again.report.guarantee == "void"


def test_class_predictions(build: Build) -> None:
    """Labels are the plan's own words; probabilities add up; scores are log-odds of the last class."""
    model = build()
    chances, scores = model.predict_proba(COLUMNS), model.decision_scores(COLUMNS)
    assert chances.shape == (4, 2) and scores.shape == (4,)
    assert np.allclose(chances.sum(axis=1), 1)
    assert np.allclose(np.log(chances[:, 1] / chances[:, 0]), scores)
    assert model.predict(COLUMNS).tolist() == [("no", "yes")[int(score > 0)] for score in scores]


def test_multiclass_predictions(build: Build) -> None:
    """With several classes there is one score per class, and the likeliest class is predicted."""
    model = build("multiclass")
    chances, scores = model.predict_proba(COLUMNS), model.decision_scores(COLUMNS)
    assert chances.shape == scores.shape == (4, 4)
    assert np.array_equal(chances.argmax(axis=1), scores.argmax(axis=1))
    assert model.predict(COLUMNS).tolist() == ["abcd"[place] for place in scores.argmax(axis=1)]


def test_regression_predictions(build: Build) -> None:
    """Scores are scaled from [-1, 1] to the label's range and clipped to it; there are no probabilities."""
    model = build("regression", {"n_trees": 6})
    scores = model.decision_scores(COLUMNS)
    assert np.allclose(model.predict(COLUMNS), np.clip(1 + 4 * scores, -3, 5))
    fitted = model.ensemble.fitted
    assert fitted is not None
    fitted.values[:] = SCORE_UNIT
    assert model.predict(COLUMNS).tolist() == [5.0] * 4
    with pytest.raises(ModelError) as caught:
        model.predict_proba(COLUMNS)
    assert caught.value.code == "no-probabilities"


def test_no_rows_give_no_predictions(build: Build) -> None:
    """An empty table is no error."""
    empty = {name: column[:0] for name, column in COLUMNS.items()}
    assert build().predict(empty).shape == (0,)
    assert build("multiclass").predict_proba(empty).shape == (0, 4)


def test_a_missing_column_is_named(build: Build) -> None:
    """Predicting without a feature ends in an error that names it; further columns are ignored."""
    with pytest.raises(DataError, match="income"):
        build().predict({name: column for name, column in COLUMNS.items() if name != "income"})
    assert len(build().predict({**COLUMNS, "shoe size": np.arange(4)})) == 4


def _rewritten(path: Path, change: Callable[[dict[str, Any]], object], fix_checksum: bool = True) -> None:
    """Change a file's content and, as a careful forger would, its checksum."""
    content = json.loads(path.read_bytes())
    change(content)
    if fix_checksum:
        content.pop("checksum", None)
        content["checksum"] = hashlib.sha256(canonical_bytes(content)).hexdigest()
    path.write_bytes(canonical_bytes(content))


def _change(*keys: Any, value: Any) -> Callable[[Path], None]:
    def change(content: dict[str, Any]) -> None:
        inner: Any = content
        for key in keys[:-1]:
            inner = inner[key]
        assert inner[keys[-1]] != value, "the change must change something"
        inner[keys[-1]] = value

    return lambda path: _rewritten(path, change)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def _edit_a_digit(path: Path) -> None:
    content = json.loads(path.read_bytes())
    content["ensemble"]["trees"][0]["values"][0] += 1
    path.write_bytes(canonical_bytes(content))


def _cost_next_to_nothing(path: Path) -> None:
    """Make a release one over a sample, of the same noise; no plan of boosted trees asks for any."""

    def change(content: dict[str, Any]) -> None:
        release = content["ledger"]["releases"][0]
        multiplier = release["sigma"] / release["sensitivity"] * 0.999
        noise = {"noise_multiplier": multiplier, "share_sigma": int(release["sigma"]), "n_shares": 1}
        release["event"] = {"type": "sampled-gaussian", "sampling_rate": 1e-6, "length": release["length"], **noise}
        release["event"]["count"] = 1

    _rewritten(path, change)


BAD_FILES: list[tuple[str, Callable[[Path], object]]] = [
    ("model-not-found", lambda path: path.unlink()),
    ("model-truncated", lambda path: path.write_bytes(b"")),
    ("model-not-json", lambda path: path.write_bytes(b"\x1f\x8b\x08\x00\x00")),
    ("model-not-json", lambda path: path.write_text("depth: 4")),
    ("model-not-json", lambda path: path.write_text("[" * 100_000)),
    ("model-not-json", lambda path: path.write_text('{"version": NaN}')),
    ("model-truncated", _cut),
    ("model-truncated", lambda path: path.write_bytes(path.read_bytes()[:10])),
    ("model-wrong-kind", lambda path: path.write_text("[1, 2]")),
    ("model-wrong-kind", lambda path: path.write_text('{"learner": {}}')),
    ("model-newer-version", _change("version", value=3)),
    ("model-newer-version", _change("ensemble", "version", value=2)),
    ("model-newer-version", _change("plan", "version", value=2)),
    ("model-invalid", _change("version", value="one")),
    ("model-invalid", _change("sites", value=[1])),
    ("model-invalid", _change("created_with", value=None)),
    ("model-invalid", _change("plan", value=None)),
    ("model-invalid", _change("plan", "label", "classes", value=["only"])),
    ("model-invalid", _change("ensemble", value=None)),
    ("model-invalid", _change("ensemble", "trees", 0, "cuts", value=[])),
    ("model-invalid", _change("ledger", value=None)),
    ("model-invalid", _change("ledger", "releases", 0, "event", value={"type": "magic"})),
    ("model-invalid", _change("ledger", "releases", value=[])),
    ("model-invalid", _change("ledger", "releases", 0, "round", value=7)),
    ("model-invalid", _change("report", "epsilon_requested", value=0.25)),
    ("model-invalid", _change("ledger", "releases", 0, "purpose", value="7/LeafSums/trees 0-24")),
    ("model-invalid", _change("ledger", "releases", 0, "length", value=1)),
    ("model-invalid", _change("ledger", "releases", 0, "sigma", value=1e9)),
    ("model-invalid", _cost_next_to_nothing),
    ("model-invalid", _change("ledger", "releases", 0, "event", "noise_multiplier", value=1e-200)),
    ("model-report-untrue", _change("report", "n_records", value=10**9)),
    ("model-report-untrue", _change("report", "accounted_by", value="rdp")),
    ("model-report-untrue", _change("report", "epsilon_gdp", value=0.5)),
    ("model-report-untrue", _change("report", "epsilon_rdp", value=0.5)),
    ("model-report-untrue", _change("report", "epsilon", value=0.5)),
    ("model-report-untrue", _change("report", "delta", value=0.5)),
    ("model-report-untrue", _change("report", "unit", value="patient")),
    ("model-report-untrue", _change("report", "noise_mode", value="local")),
    ("model-report-untrue", _change("report", "seeded", value=False)),
    ("model-report-untrue", _change("report", "guarantee", value="holds")),
    ("model-report-untrue", lambda path: _rewritten(path, lambda content: content["report"].update(n_choices=1))),
    ("model-invalid", _change("report", value=None)),
    ("model-invalid", _change("report", "epsilon_gdp", value="little")),
    ("model-report-untrue", _change("report", "accountant", value="none")),
    ("model-invalid", _change("ensemble", "trees", 0, "features", 0, value=77)),
    ("model-leaf-range", _change("ensemble", "trees", 0, "values", 0, value=2**40)),
    ("model-grid-changed", _change("plan", "features", 0, "max", value=9.0)),
    ("model-checksum", _edit_a_digit),
    ("model-checksum", lambda path: _rewritten(path, lambda content: content.pop("checksum"), fix_checksum=False)),
]


@pytest.mark.parametrize(("code", "damage"), BAD_FILES)
def test_a_bad_file_gives_one_clear_error(saved: Path, code: str, damage: Callable[[Path], object]) -> None:
    """Each way in which a file can be bad has its own code, a remedy, and the exit code of a model error."""
    damage(saved)
    with pytest.raises(ModelError) as caught:
        Model.load(saved)
    assert caught.value.code == code
    assert caught.value.exit_code == 5
    assert caught.value.remedy


@settings(max_examples=80)
@given(data=st.data())
def test_no_damage_goes_unnoticed(build: Build, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever byte is changed, or wherever the file is cut, loading ends in a ModelError, or in the very same model.

    The latter happens when JSON writes one value in two ways, such as 1e-5 and 1E-5.
    """
    whole = build().to_bytes()
    place = data.draw(st.integers(0, len(whole) - 2))
    damaged = bytearray(whole)
    if data.draw(st.booleans()):
        damaged[place] ^= data.draw(st.integers(1, 255))
    else:
        del damaged[place:]
    path = tmp_path_factory.mktemp("damage") / "model.json"
    path.write_bytes(damaged)
    try:
        assert Model.load(path).to_bytes() == whole
    except ModelError as refused:
        assert refused.code.startswith("model-")


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    """What is there but cannot be read as a file is the machine's fault, with its own exit code."""
    with pytest.raises(EnvironmentFault) as caught:
        Model.load(tmp_path)
    assert (caught.value.code, caught.value.exit_code) == ("file-not-read", 10)


def test_a_full_disk_leaves_the_old_model(build: Build, saved: Path) -> None:
    """When the new file does not fit, the old one stays whole and no fragment is left in the folder."""
    before = saved.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(EnvironmentFault) as caught:
            build("multiclass").save(saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (caught.value.code, caught.value.exit_code) == ("disk-full", 10)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_saving_into_no_folder(build: Build, tmp_path: Path) -> None:
    """A folder that does not exist is named, and nothing is created."""
    with pytest.raises(EnvironmentFault) as caught:
        build().save(tmp_path / "nowhere" / "model.json")
    assert caught.value.code == "file-not-written"
    assert os.listdir(tmp_path) == []


def test_saving_replaces_and_loads(build: Build, saved: Path) -> None:
    """A later model takes the place of an earlier one, readable by everybody as the umask says."""
    later = build("regression").with_sites(("a",))
    later.save(saved)
    assert Model.load(saved).sites == ("a",)
    plain = saved.with_name("plain")
    plain.write_bytes(b"")
    assert saved.stat().st_mode == plain.stat().st_mode


def test_a_report_that_says_more_than_its_ledger_is_put_right(saved: Path) -> None:
    """What is shown is computed from the ledger: a figure that is too large is not repeated either."""
    expected = Model.load(saved)
    _rewritten(saved, lambda content: content["report"].update(epsilon=9.0, epsilon_gdp=9.0, epsilon_rdp=9.5))
    assert Model.load(saved).report == expected.report and Model.load(saved).to_bytes() == expected.to_bytes()


def test_a_file_of_the_first_version_is_read(saved: Path) -> None:
    """Its report had other words, and its ledger no flags: what the report says of seeds still counts."""

    def as_it_was(content: dict[str, Any]) -> None:
        content["version"], content["ledger"]["version"] = 1, 1
        for release in content["ledger"]["releases"]:
            del release["seeded"]
        for name in ("epsilon", "accounted_by", "warnings", "n_records"):
            del content["report"][name]
        content["report"]["honest_sites"] = None

    expected = Model.load(saved).report
    _rewritten(saved, as_it_was)
    found = Model.load(saved).report
    assert found.to_dict() == expected.to_dict() and found.guarantee == "void"
