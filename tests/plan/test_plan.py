"""The plan: a valid one survives being written and read, a wrong one is refused by the name of the wrong field."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hedgerow.errors import PlanError
from hedgerow.methods.s_gbdt import SGbdt
from hedgerow.plan.plan import (
    BY_HISTOGRAMS,
    MAX_CATEGORIES,
    PLAN_VERSION,
    Feature,
    FederationSection,
    Label,
    ModelSection,
    Plan,
    Privacy,
    parse_plan,
)
from hedgerow.privacy.report import PrivacyContext
from tests.builders import coded

LINES = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=12).filter(str.strip)
WORDS = st.one_of(LINES, st.integers(-9, 9), st.floats(-9, 9), st.booleans())


def as_text(value: object) -> str:
    """What the plan keeps of a category: written out here again, so that the plan's own rule is not its own judge."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value == int(value) else str(value)


def distinct(low: int, high: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(WORDS, min_size=low, max_size=high, unique_by=as_text)


def bounds() -> st.SearchStrategy[dict[str, float]]:
    pair = st.lists(st.floats(-3e38, 3e38), min_size=2, max_size=2, unique=True).map(sorted)
    return pair.filter(lambda ends: ends[0] < ends[1]).map(lambda ends: {"min": ends[0], "max": ends[1]})


@st.composite
def features(draw: st.DrawFn, name: str) -> dict[str, Any]:
    if draw(st.booleans()):
        return {"name": name, "type": "categorical", "categories": draw(distinct(1, 5))}
    options = {"integer": st.booleans(), "spacing": st.sampled_from(["auto", "uniform", "log"])}
    return {"name": name, "type": "numeric", **draw(bounds()), **draw(st.fixed_dictionaries({}, optional=options))}


@st.composite
def labels(draw: st.DrawFn, name: str) -> dict[str, Any]:
    kind = draw(st.sampled_from(["binary", "multiclass", "regression"]))
    if kind == "regression":
        return {"name": name, "type": kind, **draw(bounds())}
    return {"name": name, "type": kind, "classes": draw(distinct(2, 2) if kind == "binary" else distinct(3, 6))}


MODEL: dict[str, st.SearchStrategy[Any]] = {
    "n_trees": st.one_of(st.just("auto"), st.integers(50, 100_000)),
    "max_depth": st.one_of(st.just("auto"), st.integers(1, 8)),
    "n_candidates": st.integers(1, 250),
    "split_method": st.just("totally_random"),
    "weight_update": st.sampled_from(["newton", "gradient", "averaging"]),
    "split_candidates": st.sampled_from(["adaptive", "uniform", "log", *BY_HISTOGRAMS]),
    "candidate_rounds": st.integers(1, 100),
    "interaction": st.sampled_from(["auto", "cyclical", "random"]),
    "interaction_size": st.sampled_from([1, "all", "auto"]),
    "batch_size": st.one_of(st.just("all"), st.integers(1, 50)),
    "learning_rate": st.one_of(st.just("auto"), st.floats(0, 10, exclude_min=True, exclude_max=True)),
    "leaf_ridge": st.floats(0, 1e9),
    "noise_ridge": st.floats(0, 100),
    "leaf_clip": st.floats(0, 1e6, exclude_min=True, exclude_max=True),
    "joint_clip": st.one_of(st.sampled_from(["auto", "none"]), st.floats(0, 10, exclude_min=True, exclude_max=True)),
    "hessian_scale": st.one_of(st.just("auto"), st.floats(0, 1000, exclude_min=True, exclude_max=True)),
    "structure_seed": st.integers(0, 2**63 - 1),
}
FEDERATION: dict[str, st.SearchStrategy[Any]] = {
    "min_sites": st.integers(1, 100_000),
    "secure_aggregation": st.booleans(),
    "echo": st.booleans(),
    "salvage": st.booleans(),
    "join_timeout": st.floats(1, 3600),
    "round_timeout": st.floats(1, 3600),
    "idle_timeout": st.floats(3600, 1e7, exclude_max=True),
}


@st.composite
def privacies(draw: st.DrawFn, unit: str) -> dict[str, Any]:
    table: dict[str, Any] = {
        "epsilon": draw(st.one_of(st.just(math.inf), st.floats(0, 1e9, exclude_min=True))),
        "delta": draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
        "n_records": draw(st.integers(1, 10**15)),
        "accountant": draw(st.sampled_from(["gdp", "rdp"])),
        "noise": draw(st.sampled_from(["server", "distributed"])),
        "bounds_from_data": draw(st.booleans()),
    }
    if draw(st.booleans()):
        table |= {"unit": unit, "max_rows_per_unit": draw(st.integers(1, 10**6))}
        if draw(st.booleans()):
            table["sites_per_unit"] = draw(st.integers(1, 1000))
    if draw(st.booleans()):
        table["line_breaks"] = draw(st.integers(0, 1000))
    return table


@st.composite
def plan_tables(draw: st.DrawFn) -> dict[str, Any]:
    """Any valid plan, as plain values."""
    columns = LINES.filter(lambda name: name != "record")
    *names, label, unit = draw(st.lists(columns, min_size=3, max_size=6, unique=True))
    privacy, federation = draw(privacies(unit)), draw(st.fixed_dictionaries({}, optional=FEDERATION))
    if privacy["noise"] == "distributed":
        federation["secure_aggregation"] = True
    return {
        "version": PLAN_VERSION,
        "name": draw(LINES),
        "features": [draw(features(name)) for name in names],
        "label": draw(labels(label)),
        "privacy": privacy,
        "model": draw(st.fixed_dictionaries({}, optional=MODEL)),
        "federation": federation,
    }


def toml_value(value: Any) -> str:
    """A value as TOML 1.0 writes it. JSON's strings are TOML's, but for U+007F, which LINES leaves out."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def toml_text(table: Mapping[str, Any]) -> str:
    """A plan's table as a TOML file."""

    def lines(section: Mapping[str, Any]) -> str:
        return "".join(f"{name} = {toml_value(value)}\n" for name, value in section.items())

    top = {name: value for name, value in table.items() if not isinstance(value, dict) and name != "features"}
    text = lines(top)
    for name, value in table.items():
        if isinstance(value, dict):
            text += f"[{name}]\n" + lines(value)
    return text + "".join("[[features]]\n" + lines(feature) for feature in table["features"])


@given(plan_tables())
def test_a_plan_survives_being_written_and_read(table: dict[str, Any]) -> None:
    """Plan, dict, JSON and TOML say the same: what the parties agree on is what each of them runs."""
    plan = Plan.from_dict(table)
    assert Plan.from_dict(plan.to_dict()) == plan
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert parse_plan(toml_text(table)) == plan
    assert parse_plan(toml_text(plan.to_dict())).digest == plan.digest
    assert hash(plan) == hash(Plan.from_dict(table))


@given(plan_tables(), st.data())
def test_the_digest_tells_plans_apart(table: dict[str, Any], data: st.DataObject) -> None:
    """Two parties with one digest hold one plan: a change of any one field changes it, the order of fields does not."""
    plan = Plan.from_dict(table)
    assert Plan.from_dict(dict(reversed(list(table.items())))).digest == plan.digest
    section = data.draw(st.sampled_from(["model", "federation"]))
    strategies = MODEL if section == "model" else FEDERATION
    name = data.draw(st.sampled_from(sorted(set(strategies) - {"split_method"})))
    value = data.draw(strategies[name])
    # Noise from the sites travels under masks only, so a plan that wants the one without the other is none.
    assume(value is not False or plan.privacy.noise != "distributed" or name != "secure_aggregation")
    other = Plan.from_dict({**table, section: {**table[section], name: value}})
    assert (other.digest == plan.digest) == (other == plan)


def test_every_field_has_a_default_that_is_allowed() -> None:
    """A plan that leaves out what may be left out, and one that spells the defaults out, are the same."""
    spelled_out = {"model": dataclasses.asdict(ModelSection()), "federation": dataclasses.asdict(FederationSection())}
    assert valid_plan({}) == valid_plan(spelled_out)


def valid_table() -> dict[str, Any]:
    return {
        "version": 1,
        "name": "a plan",
        "features": [
            {"name": "age", "type": "numeric", "min": 0, "max": 120},
            {"name": "sex", "type": "categorical", "categories": ["f", "m"]},
        ],
        "label": {"name": "sick", "type": "binary", "classes": [0, 1]},
        "privacy": {"epsilon": 1, "delta": 1e-5, "n_records": 1000},
        "model": {},
        "federation": {},
    }


def valid_plan(changes: Mapping[str, Any]) -> Plan:
    return Plan.from_dict({**valid_table(), **changes})


NO_TEXT = ["", "  ", "two\nlines", 3, ["a"], True]
NO_LIST = ["f", 3, {"f": 1}, ["f", "f"], [1, 1.0], [True, "true"]]
NAN = math.nan


def no_integer(low: int, high: int) -> list[Any]:
    return [low - 1, high + 1, float(low), True, "some", [low], -(2**80)]


def no_number(low: float, high: float, *, exclusive: bool = False) -> list[Any]:
    outside = [low, high] if exclusive else [low - max(1, abs(low)), high + max(1, abs(high))]
    return [*outside, NAN, True, "some", [1.0], -math.inf]


NO_WORD = ["", "Auto", "other", 1, True, ["auto"]]
NO_BOOLEAN = ["true", 1, 0, "", []]

BAD_VALUES: dict[str, list[Any]] = {
    "features[0].name": NO_TEXT,
    "features[0].type": NO_WORD,
    "features[0].min": no_number(-3e38, 3e38),
    "features[0].max": no_number(-3e38, 3e38),
    "features[0].buckets": no_integer(2, 65_000),
    "features[0].integer": NO_BOOLEAN,
    "features[0].spacing": NO_WORD,
    "features[0].format": ["", 1, True, "%d.%m", "%d.%m.%Y.%Y", "%x"],
    "features[0].monotone": NO_WORD,
    # "found" without the releases that found it is refused as well.
    "features[0].origin": [*NO_WORD, "found"],
    "features[1].categories": NO_LIST,
    "label.name": NO_TEXT,
    "label.origin": [*NO_WORD, "found"],
    "label.type": NO_WORD,
    "label.classes": [*NO_LIST, [0], [0, 1, 2], []],
    "label.min": no_number(-3e38, 3e38),
    "label.max": no_number(-3e38, 3e38),
    # On a label of two classes; those of a time to an event are below.
    "label.event": [*NO_TEXT, "died"],
    "label.event_codes": [*NO_LIST, [1, 2], [0]],
    "label.intervals": ["1, 2", 3, {"t": 1}, [1, "2"], [1, NAN], [2, 1], [1, 1], [1, math.inf], [1, 2]],
    "privacy.epsilon": [0, -1, NAN, True, "1", -math.inf],
    "privacy.delta": no_number(0, 1, exclusive=True),
    "privacy.accountant": NO_WORD,
    "privacy.noise": NO_WORD,
    "privacy.n_records": no_integer(1, 10**15),
    "privacy.unit": NO_TEXT,
    "privacy.max_rows_per_unit": no_integer(1, 10**6),
    "privacy.sites_per_unit": no_integer(1, 1000),
    "privacy.bounds_from_data": NO_BOOLEAN,
    "privacy.line_breaks": no_integer(0, 1000),
    "model.algorithm": NO_WORD,
    "model.n_trees": no_integer(1, 100_000),
    "model.max_depth": no_integer(1, 8),
    "model.n_candidates": [*no_integer(1, 250), "auto"],
    "model.split_method": NO_WORD,
    "model.weight_update": NO_WORD,
    "model.split_candidates": NO_WORD,
    "model.candidate_rounds": no_integer(1, 100),
    "model.interaction": NO_WORD,
    "model.interaction_size": [*no_integer(1, 2), "none"],
    "model.batch_size": [*no_integer(1, 100_000), "auto"],
    "model.learning_rate": no_number(0, 10, exclusive=True),
    "model.leaf_ridge": no_number(0, 1e9),
    "model.noise_ridge": no_number(0, 100),
    "model.leaf_clip": no_number(0, 1e6, exclusive=True),
    "model.joint_clip": no_number(0, 10, exclusive=True),
    "model.hessian_scale": no_number(0, 1000, exclusive=True),
    "model.start": NO_WORD,
    "model.shrinkage": no_number(0, 1),
    "model.class_weights": ["all", 1, {}, [1], [1, 0], [1, "a"], [1, 1e7], [1, 1, 1]],
    "model.calibration": NO_WORD,
    "model.structure_seed": no_integer(0, 2**63 - 1),
    "model.interaction_constraints": ["all", 1, True, {}, [["no such feature"]], [[]], ["age"], [["age", "age"]]],
    "federation.min_sites": no_integer(1, 100_000),
    "federation.groups": [1, 2, *no_integer(0, 63)],
    "federation.secure_aggregation": NO_BOOLEAN,
    "federation.echo": NO_BOOLEAN,
    "federation.salvage": NO_BOOLEAN,
    "federation.votes": NO_BOOLEAN,
    "federation.join_timeout": [0.5, *no_number(0, 1e7, exclusive=True)],
    "federation.round_timeout": [0.5, *no_number(0, 1e7, exclusive=True)],
    "federation.idle_timeout": [0.5, *no_number(0, 1e7, exclusive=True)],
    "s_gbdt.subsampling_ratio": [0, *no_number(0, 1)],
    "s_gbdt.gradient_clip": no_number(0, 10, exclusive=True),
    "s_gbdt.support_share": no_number(0, 1, exclusive=True),
    "s_gbdt.individual_filter": NO_BOOLEAN,
    "s_gbdt.extra_rounds": no_integer(0, 100_000),
    "s_gbdt.closing_rounds": no_integer(0, 100_000),
    "s_gbdt.initial_score": NO_WORD,
    "s_gbdt.initial_score_share": no_number(0, 0.9),
    "s_gbdt.linear_scale": NO_WORD,
    "s_gbdt.label_clip": [0, *no_number(0, 1)],
    "s_gbdt.numeric_weight": no_number(0, 1e6, exclusive=True),
    "s_gbdt.splits": NO_WORD,
    "s_gbdt.leaf_rule": NO_WORD,
    "s_gbdt.bound": NO_WORD,
}


def test_the_table_of_bad_values_knows_every_field() -> None:
    """A new field of the plan comes with the values that it refuses."""
    sections = {
        "features": Feature,
        "label": Label,
        "privacy": Privacy,
        "model": ModelSection,
        "federation": FederationSection,
        "s_gbdt": SGbdt,
    }
    fields = {f"{path}.{field.name}" for path, section in sections.items() for field in dataclasses.fields(section)}
    assert {path.replace("[0]", "").replace("[1]", "") for path in BAD_VALUES} == fields


def changed(path: str, value: Any) -> dict[str, Any]:
    table = valid_table()
    section, name = path.split(".")
    if section == "s_gbdt":
        table["model"]["algorithm"], table[section] = "s-gbdt", {}
    target = table["features"][int(section[9])] if section.startswith("features") else table[section]
    target[name] = value
    return table


@pytest.mark.parametrize(
    ("path", "value"), [(path, value) for path, values in BAD_VALUES.items() for value in values], ids=repr
)
def test_a_bad_value_is_refused_by_the_name_of_its_field(path: str, value: Any) -> None:
    """The message starts with the field's dotted path and says what to do; nothing is silently converted."""
    with pytest.raises(PlanError) as caught:
        Plan.from_dict(changed(path, value))
    error = caught.value
    assert error.what.startswith(path)
    assert error.remedy and error.code == "plan-field"
    assert len(str(error)) < 800


@pytest.mark.parametrize("path", ["features[0]", "label", "privacy", "model", "federation"])
def test_an_unknown_field_is_refused(path: str) -> None:
    """A misspelled field must not silently leave its default in force."""
    with pytest.raises(PlanError, check=coded("plan-unknown-field")) as caught:
        Plan.from_dict(changed(f"{path}.epsilom", 1))
    assert caught.value.what.startswith(f"{path}.epsilom")
    assert caught.value.code == "plan-unknown-field"


@pytest.mark.parametrize(
    ("section", "name", "said"),
    [
        ("features", "name", "features[0].name"),
        ("features", "type", "features[0].type"),
        ("features", "min", "features[0] (age).min"),
        ("features", "max", "features[0] (age).max"),
        ("label", "name", "label.name"),
        ("label", "type", "label.type"),
        ("label", "classes", "label.classes"),
        ("privacy", "epsilon", "privacy.epsilon"),
        ("privacy", "delta", "privacy.delta"),
        ("privacy", "n_records", "privacy.n_records"),
    ],
)
def test_what_only_a_person_can_know_has_no_default(section: str, name: str, said: str) -> None:
    """Bounds, classes and the promise itself are never guessed: leaving one out is an error that names it."""
    table = valid_table()
    del (table["features"][0] if section == "features" else table[section])[name]
    with pytest.raises(PlanError) as caught:
        Plan.from_dict(table)
    assert caught.value.what.startswith(said)


def with_features(*changes: Mapping[str, Any]) -> dict[str, Any]:
    first, second = valid_table()["features"]
    return {"features": [{**first, **changes[0]}, {**second, **(changes[1] if len(changes) > 1 else {})}]}


SURVIVAL = {"name": "time", "type": "survival", "event": "died", "intervals": [1, 2, 5]}
PRIVACY = {"epsilon": 1, "delta": 1e-5, "n_records": 1000}

CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"features": []}, "features"),
    ({"features": {"name": "age"}}, "features"),
    ({"features": ["age"]}, "features[0]"),
    ({"privacy": 3}, "privacy"),
    ({"label": []}, "label"),
    ({"name": "two\nlines"}, "name"),
    ({"privacies": {}}, "plan.privacies"),
    ({"version": "1"}, "version"),
    ({"version": True}, "version"),
    ({"version": 0}, "version"),
    ({"version": PLAN_VERSION + 1}, "version"),
    (with_features({"name": "sex"}), "features[0]"),
    (with_features({"name": "sick"}), "features[0]"),
    (with_features({"min": 5, "max": 5}), "features[0] (age).max"),
    (with_features({"min": 6, "max": 5}), "features[0] (age).max"),
    (with_features({"categories": ["a"]}), "features[0] (age).categories"),
    (with_features({}, {"min": 1.0}), "features[1] (sex)"),
    (with_features({}, {"categories": []}), "features[1] (sex).categories"),
    (with_features({}, {"categories": list(range(MAX_CATEGORIES + 1))}), "features[1] (sex).categories"),
    ({"label": {"name": "sick", "type": "multiclass", "classes": [0, 1]}}, "label.classes"),
    ({"label": {"name": "cost", "type": "regression"}}, "label.min"),
    ({"label": {"name": "cost", "type": "regression", "min": 1.0}}, "label.max"),
    ({"label": {"name": "cost", "type": "regression", "min": 1.0, "max": 0.0}}, "label.max"),
    ({"label": {"name": "cost", "type": "regression", "min": 0.0, "max": 1.0, "classes": [0, 1]}}, "label.classes"),
    ({"label": {"name": "time", "type": "survival", "intervals": [1, 2]}}, "label.event"),
    ({"label": {"name": "time", "type": "survival", "event": "time", "intervals": [1, 2]}}, "label.event"),
    ({"label": {"name": "time", "type": "survival", "event": "died"}}, "label.intervals"),
    ({"label": {"name": "time", "type": "survival", "event": "died", "intervals": [1]}}, "label.intervals"),
    ({"label": {"name": "time", "type": "survival", "event": "died", "intervals": [0, 1]}}, "label.intervals[0]"),
    ({"label": {"name": "time", "type": "survival", "event": "died", "intervals": [1, 3, 3]}}, "label.intervals[2]"),
    ({"label": {**SURVIVAL, "intervals": list(range(1, 66))}}, "label.intervals"),
    ({"label": {**SURVIVAL, "classes": [0, 1]}}, "label.classes"),
    ({"label": {**SURVIVAL, "max": 9.0}}, "label.min"),
    ({"label": {**SURVIVAL, "event": "age"}}, "features[0] (age)"),
    ({"label": SURVIVAL, "privacy": {**PRIVACY, "unit": "died"}}, "privacy.unit"),
    ({"label": SURVIVAL, "model": {"split_method": "hist"}}, "model.split_method"),
    ({"label": SURVIVAL, "model": {"weight_update": "averaging"}}, "model.weight_update"),
    ({"label": SURVIVAL, "model": {"split_candidates": "iterative_hessian"}}, "model.split_candidates"),
    ({"label": SURVIVAL, "model": {"start": "mean"}}, "model.start"),
    ({"label": SURVIVAL, "model": {"algorithm": "s-gbdt"}}, "label.type"),
    ({"privacy": {**valid_table()["privacy"], "max_rows_per_unit": 2}}, "privacy.max_rows_per_unit"),
    ({"privacy": {**valid_table()["privacy"], "sites_per_unit": 2}}, "privacy.sites_per_unit"),
    ({"privacy": {**valid_table()["privacy"], "unit": "age"}}, "privacy.unit"),
    ({"privacy": {**valid_table()["privacy"], "unit": "sick"}}, "privacy.unit"),
    ({"model": {"interaction_size": 3}}, "model.interaction_size"),
    ({"model": {"n_trees": 10, "batch_size": 11}}, "model.batch_size"),
]


@pytest.mark.parametrize(("changes", "said"), CONTRADICTIONS, ids=lambda value: value if isinstance(value, str) else "")
def test_contradictions_are_refused(changes: dict[str, Any], said: str) -> None:
    """Fields that are fine alone and wrong together are refused, naming the field to change."""
    with pytest.raises(PlanError) as caught:
        valid_plan(changes)
    assert caught.value.what.startswith(said)
    assert caught.value.exit_code == 3


def test_a_file_that_is_no_toml_or_has_no_version() -> None:
    """The message points at the line, and a plan from the future is told from a broken one."""
    with pytest.raises(PlanError, match="line 2") as caught:
        parse_plan("version = 1\nname = a\n")
    assert caught.value.code == "plan-syntax"
    with pytest.raises(PlanError, check=coded("plan-missing-field")):
        parse_plan('name = "a"')
    with pytest.raises(PlanError, check=coded("plan-newer-version")) as caught:
        parse_plan(f"version = {PLAN_VERSION + 1}\n[from_the_future]")
    assert caught.value.code == "plan-newer-version"


def test_a_plan_of_one_site_per_unit_is_the_plan_that_it_was() -> None:
    """Plans from before the field keep their digests, which models, journals and nodes know them by."""
    privacy = {**valid_table()["privacy"], "unit": "person", "max_rows_per_unit": 3}
    before = Plan.from_dict({**valid_table(), "privacy": privacy})
    said = Plan.from_dict({**valid_table(), "privacy": {**privacy, "sites_per_unit": 1}})
    other = Plan.from_dict({**valid_table(), "privacy": {**privacy, "sites_per_unit": 2}})
    assert said.digest == before.digest != other.digest
    assert "sites_per_unit" not in said.to_dict()["privacy"]
    assert Plan.from_dict(other.to_dict()) == other and other.privacy.rows_per_unit == 6
    no_breaks = Plan.from_dict({**valid_table(), "privacy": {**privacy, "line_breaks": 0}})
    breaks = Plan.from_dict({**valid_table(), "privacy": {**privacy, "line_breaks": 1}})
    assert no_breaks.digest == before.digest != breaks.digest and Plan.from_dict(breaks.to_dict()) == breaks


def test_where_a_column_is_from_is_said_only_where_its_author_did_not_declare_it() -> None:
    """A plan written by hand keeps its digest; one with columns read off rows has no guarantee, and reads back."""
    before = valid_plan({})
    said = Plan.from_dict(changed("label.origin", "declared"))
    assert said.digest == before.digest
    assert "origin" not in before.to_dict()["label"] and "origin" not in before.to_dict()["features"][0]
    for path in ("label", "features[0]"):
        typed, read_off = (Plan.from_dict(changed(f"{path}.origin", word)) for word in ("type", "data"))
        assert Plan.from_dict(typed.to_dict()) == typed and typed.digest != before.digest
        assert [plan.reads_rows for plan in (before, typed, read_off)] == [False, False, True]
        assert PrivacyContext.from_plan(read_off).bounds_from_data
