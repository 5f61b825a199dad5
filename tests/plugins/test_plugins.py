"""A method, a type of label, a source of tables and an engine from outside the package take part, by a line each."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.cli.main import main
from hedgerow.data.sources import SOURCES, add_source
from hedgerow.errors import ModelError, PlanError, UsageError
from hedgerow.losses.labels import EFFECT
from hedgerow.losses.registry import LOSSES, add_loss
from hedgerow.methods.registry import METHODS, add_method
from hedgerow.models.model import Model
from hedgerow.plan.fields import read_section
from hedgerow.plan.plan import Label, Plan, parse_plan
from hedgerow.plan.registry import LabelKind, add_label, label_kinds, list_foreign_parts, named_losses, rules_by_method
from hedgerow.privacy.report import PrivacyContext
from hedgerow.transport.engines import HUBS, add_engine
from hedgerow.transport.uplinks import UPLINKS
from tests.builders import LABELS, make_plan
from tests.plugins import toy_label, toy_method, toy_source, toy_transport

SITES = ("north", "south", "west")
PLAN = """
version = 1
name = "toy"

[model]
algorithm = "toy"

[toy]
ridge = 4.0

[privacy]
epsilon = 2.0
delta = 1e-6
n_records = 900
noise = "distributed"

[federation]
min_sites = 3

[[features]]
name = "age"
type = "numeric"
min = 0
max = 100

[label]
name = "ill"
type = "binary"
classes = ["no", "yes"]
"""


@pytest.fixture(autouse=True)
def plugged() -> Iterator[None]:
    """The toys, for one test."""
    add_method("toy", toy_method.METHOD)
    add_loss(toy_label.KIND)
    add_source(".toy", toy_source.ToyTable)
    add_source("toy", toy_source.ToyTable)
    add_engine("toy", toy_transport.ENGINE)
    yield
    del METHODS["toy"], rules_by_method()["toy"], LOSSES["share"], label_kinds()["share"]
    del SOURCES[".toy"], SOURCES["toy"], UPLINKS["toy"], HUBS["toy"]


def test_what_others_add_is_theirs_whatever_it_is_a_copy_of() -> None:
    """Else a report says HOLDS of sensitivities that are another author's word: classes, and `__module__` of functions,
    are copied by ordinary Python."""
    parts = functools.wraps(METHODS["boosting"].parts)(lambda: METHODS["boosting"].parts())
    label = copy.copy(LOSSES["regression"].label)
    label.type = "dose"  # type: ignore[misc]
    add_method("wrapped", dataclasses.replace(METHODS["boosting"], parts=parts))
    add_loss(dataclasses.replace(LOSSES["regression"], label=label))
    own = make_plan("regression")
    loss = type("Own", (named_losses()["huber"],), {"__module__": __name__})()
    try:
        for plan, what in (
            (own, set()),
            (dataclasses.replace(own, loss=loss), {"loss"}),
            (dataclasses.replace(own, model=dataclasses.replace(own.model, algorithm="wrapped")), {"method"}),
            (dataclasses.replace(own, label=dataclasses.replace(own.label, type="dose")), {"type of label"}),
        ):
            found = list_foreign_parts(plan)
            assert {part["what"] for part in found} == what and {part["module"] for part in found} <= {__name__}
            assert len(PrivacyContext.from_plan(plan).authors) == len(what)
        for change in (METHODS.update, lambda other: METHODS.setdefault("new", other["boosting"])):
            with suppress(UsageError):
                change({"boosting": METHODS["wrapped"]})
        assert METHODS["boosting"].parts is not parts and "new" in METHODS.adders
        was = METHODS.pop("boosting")
        METHODS["boosting"] = METHODS["wrapped"]
        assert {part["what"] for part in list_foreign_parts(own)} == {"method"}
        del METHODS["boosting"], METHODS.adders["boosting"]
        METHODS._members["boosting"] = was
    finally:
        METHODS.pop("new", None)
        del METHODS["wrapped"], rules_by_method()["wrapped"], LOSSES["dose"], label_kinds()["dose"]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A plan, a file for each site, and the same tables under toy://."""
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    random = np.random.default_rng(1)
    for name in (*SITES, "test"):
        ages = random.uniform(0, 100, 300)
        table = {"age": ages.tolist(), "ill": np.where(random.random(300) < 0.8, "yes", "no").tolist()}
        toy_source.TABLES[name] = table
        (tmp_path / f"{name}.toy").write_text(json.dumps(table), encoding="utf-8")
    return tmp_path


def run(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


def check_model(path: Path) -> None:
    """Four of five are ill, and that is all that the toy can say."""
    model = Model.load(path)
    chance = model.predict_proba({"age": np.array([1.0, 99.0])})[:, 1]
    assert chance[0] == chance[1] == pytest.approx(0.8, abs=0.05)
    assert [release.kind for release in model.ledger][:1] == ["ClassCounts"]
    assert 1.99 < model.report.epsilon <= 2 or len(model.ledger) > 1


def test_a_toy_trains_and_is_evaluated_in_one_process(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`train`, `evaluate` and `predict` read the toy's tables, as files and as URLs; the model file reads back."""
    sites = ["--site", study / "north.toy", "--site", "south=toy://south", "--site", f"west={study / 'west.toy'}"]
    run("train", study / "plan.toml", *sites, "--out", study / "model.json")
    check_model(study / "model.json")
    capsys.readouterr()
    run("evaluate", study / "model.json", "toy://test", "--json")
    assert json.loads(capsys.readouterr().out)["n_records"] == 300
    run("predict", study / "model.json", study / "test.toy", "--out", study / "predictions.csv")
    assert len((study / "predictions.csv").read_text().splitlines()) == 301
    run("evaluate", study / "model.json", "--federated", *sites, "--epsilon", "1", "--json")
    check_model(study / "model.json")


def test_a_toy_label_is_trained_evaluated_predicted_and_exported(tmp_path: Path, capsys: Any) -> None:
    """All rooms ask the kind of a label, so one that says no more than what is its own is served by all of them."""
    plan = PLAN.replace('algorithm = "toy"', "n_trees = 20").replace("[toy]\nridge = 4.0\n", "")
    plan = plan.replace("min_sites = 3", "min_sites = 1").replace('noise = "distributed"', 'noise = "server"')
    plan = plan.replace('type = "binary"\nclasses = ["no", "yes"]', 'type = "share"\nmax = 1')
    (tmp_path / "plan.toml").write_text(plan.replace("epsilon = 2.0", "epsilon = 50.0"), encoding="utf-8")
    ages = np.random.default_rng(1).uniform(0, 100, 600)
    table = {"age": [*ages.tolist(), 50.0], "ill": [*(ages > 50).astype(float).tolist(), -0.5]}
    toy_source.TABLES["share"] = table
    (tmp_path / "test.toy").write_text(json.dumps({"age": [1.0, 99.0]}), encoding="utf-8")
    run("train", tmp_path / "plan.toml", "--site", "a=toy://share", "--out", tmp_path / "model.json")
    run("evaluate", tmp_path / "model.json", "--federated", "--site", "a=toy://share", "--epsilon", "9")
    capsys.readouterr()
    run("evaluate", tmp_path / "model.json", "toy://share", "--allow-loss", "0.1", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["n_records"] == 600, "a share below 0 is left out"
    assert found["r2"] > 0.5
    run("predict", tmp_path / "model.json", tmp_path / "test.toy", "--interval", "0.9", "--out", tmp_path / "found.csv")
    header, *rows = (tmp_path / "found.csv").read_text().splitlines()
    assert header == "predicted_ill,lower_ill,upper_ill"
    low, high = (float(row.split(",")[0]) for row in rows)
    assert 0 <= low < 0.3 < 0.7 < high <= 1
    for form in ("xgboost", "onnx", "ebm"):
        run("export", tmp_path / "model.json", "--to", form, "--out", tmp_path / f"model.{form}.json")
    with pytest.raises(ModelError) as caught:
        Model.load(tmp_path / "model.json").predict_proba({"age": np.array([1.0])})
    assert caught.value.code == "no-probabilities"


@pytest.mark.parametrize("kind", label_kinds().values(), ids=lambda kind: kind.type)
def test_what_a_kind_of_label_says_of_itself_fits_together(kind: LabelKind) -> None:
    """Made-up labels are kept in its range, what it refuses has an error, and what it says has none."""
    label = read_section(Label, LABELS[kind.type], "label")
    kind.check(label)
    effects = np.random.default_rng(1).normal(0, EFFECT, (label.n_outputs, 500))
    values = kind.simulate(effects, label, np.random.default_rng(2))
    kept, (low, high) = kind.encode(values, label), kind.encoded_range(label)
    assert kept.dtype == np.int32 and low <= kept.min() < kept.max() <= high
    assert high - low == label.n_codes - 1 or kind.is_number
    assert not kind.has_one_outcome(kept)
    assert all(isinstance(refuse(), ModelError) for refuse in kind.refusals.values())
    assert kind.predicts not in kind.refusals
    assert [column.name for column in kind.columns(label)] == list(label.columns)


@pytest.mark.parametrize("add", [
    lambda: add_method("boosting", toy_method.METHOD), lambda: add_method("s_gbdt", toy_method.METHOD),
    lambda: add_method("toy", toy_method.METHOD), lambda: add_loss(LOSSES["binary"]),
    lambda: add_label(LOSSES["binary"].label), lambda: add_source(".csv", toy_source.ToyTable),
    lambda: add_source("", toy_source.ToyTable), lambda: add_engine("grpc", toy_transport.ENGINE),
    lambda: METHODS.__setitem__("boosting", toy_method.METHOD),
])  # fmt: skip
def test_a_name_that_is_taken_is_refused(add: Callable[[], object]) -> None:
    """Nothing runs under another one's name; what was there stays, and nothing is half added."""
    tables = (METHODS, LOSSES, SOURCES, UPLINKS, HUBS, rules_by_method(), label_kinds())
    before = [dict(table) for table in tables]
    with pytest.raises(UsageError) as caught:
        add()
    assert caught.value.code == "name-taken"
    assert [dict(table) for table in tables] == before


def test_a_toy_section_is_checked_as_any_other() -> None:
    """Its fields, the fields of [model] that it does not read, its labels, and its own rule."""
    plan = parse_plan(PLAN)
    assert plan.own == toy_method.Toy(ridge=4.0)
    assert Plan.from_dict(plan.to_dict()).digest == plan.digest
    for before, after, field in (
        ("ridge = 4.0", "ridge = -1", "toy.ridge"),
        ("ridge = 4.0", "rigde = 4.0", "toy.rigde"),
        ('algorithm = "toy"', 'algorithm = "toy"\nmax_depth = 3', "model.max_depth"),
        ('algorithm = "toy"', 'algorithm = "boosting"', "model.algorithm"),
        ('type = "binary"\nclasses = ["no", "yes"]', 'type = "count"\nmax = 5', "label.type"),
        ("n_records = 900", 'n_records = 900\nunit = "patient"', "privacy.unit"),
    ):
        with pytest.raises(PlanError) as caught:
            parse_plan(PLAN.replace(before, after))
        assert caught.value.what.startswith(field)


def test_a_toy_trains_over_a_network_of_its_own(study: Path) -> None:
    """`coordinator` and `node` find the engine by its name; masks, policy, ledger and journal are those of any run."""
    for name, role in (("hub", ["--coordinator"]), *((site, []) for site in SITES)):
        run("study", "keys", name, *role, "--folder", study)
    parties = (study / f"{name}.public.toml" for name in ("hub", *SITES))
    run("study", "roster", *parties, "--out", study / "roster.toml")
    (study / "policy.toml").write_text(
        'version = 1\ndata_set = "toy"\nmax_epsilon = 3\ndelta = 1e-5\nmin_sites = 3\nquery_kinds = ["ClassCounts"]\n',
        encoding="utf-8",
    )
    common = ["--roster", study / "roster.toml", "--engine", "toy"]
    codes: dict[str, int] = {}

    def command(name: str, *arguments: object) -> threading.Thread:
        def work() -> None:
            codes[name] = main([str(argument) for argument in arguments])

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    own = [study / "plan.toml", "--identity", study / "hub.private.json", "--listen", "127.0.0.1:1"]
    threads = [command("hub", "coordinator", *own, *common, "--out", study / "model.json")]
    for site in SITES:
        own = ["--identity", study / f"{site}.private.json", "--policy", study / "policy.toml"]
        where = ["--plan", study / "plan.toml", "--connect", "127.0.0.1:1", "--budget", study / f"{site}.db"]
        threads.append(command(site, "node", f"toy://{site}", *own, *where, *common))
    # Nodes of this engine would wait for a coordinator that has failed.
    threads[0].join(600)
    assert codes["hub"] == 0
    for thread in threads[1:]:
        thread.join(600)
    assert codes == dict.fromkeys(("hub", *SITES), 0)
    check_model(study / "model.json")
