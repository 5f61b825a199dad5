"""Files and messages that were made to harm who reads them: nothing but a named refusal comes of any."""

from __future__ import annotations

import copy
import json
import math
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.app.output import json_text
from hedgerow.cli.main import main
from hedgerow.client.policy import parse_policy
from hedgerow.errors import HedgerowError, ModelError, PlanError, RemoteProtocolError
from hedgerow.local.training import train
from hedgerow.methods.tasks import EvaluationTask, read_plan
from hedgerow.models.model import Model
from hedgerow.plan.fields import MAX_VALUES, escape_for_terminal, parse_toml, require_plain
from hedgerow.plan.plan import Plan, parse_plan
from hedgerow.plan.toml import toml_value
from hedgerow.privacy.noise import SeededNoise
from hedgerow.transport.identities import Role, build_roster, create_identity, parse_roster, read_private, read_public
from tests import wards
from tests.builders import make_data, make_plan, take

POLICY = 'version = 1\ndata_set = "wards"\nmax_epsilon = 3.0\ndelta = 1e-6\nmin_sites = 3\nfeatures = ["age"]\n'
DEEP = 20_000
TOML_VALUES = {
    "400 digits": "9" * 400,
    "5,000 digits": "9" * 5000,
    "hexadecimal": "0x" + "f" * 9000,
    "nested lists": "[" * DEEP + "]" * DEEP,
    "33 lists": "[" * 33 + "]" * 33,
    "nested tables": "{a=" * DEEP + "1" + "}" * DEEP,
    "escape": '"\\u001b]0;owned\\u0007"',
    "control 1": '"\\u009b31m"',
    "override": '"age\\u202e"',
    "isolate": '"\\u2066age"',
    "no width": '"a\\u200bge"',
    "line separator": '"age\\u2028"',
    "not a number": "nan",
    "infinite": "inf",
    "a date": "1979-05-27",
    "a time": "07:32:00",
    "a table": "{}",
    "true": "true",
    "empty": '""',
}
JSON_VALUES: tuple[Any, ...] = (
    10**400, -(10**400), 1e308, -0.0, math.nan, math.inf, "\x1b[2J", "a\u202eb", "\u2029", "\x9b", "", None, True, [],
    {}, [[[]]], {"": {}}, [1], ["a", "a"], "x" * 5000, 2**63, -1,
)  # fmt: skip


@pytest.fixture(scope="module")
def plan_text() -> str:
    """A good plan."""
    return wards.plan_text(
        2, name="wards", categories="abc", classes=["no", "yes"], model={"n_trees": 3, "structure_seed": 1},
        privacy={"epsilon": 4, "n_records": 1500}, federation={"min_sites": 2, "round_timeout": 60},
    )  # fmt: skip


@pytest.fixture(scope="module")
def texts(plan_text: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Callable[[str], object]]]:
    """A good text of every kind of file that somebody else may have written, and what reads it."""
    folder = tmp_path_factory.mktemp("files")
    identities = {
        name: create_identity(folder, name, role)
        for name, role in (("hub", Role.COORDINATOR), ("north", Role.SITE), ("south", Role.SITE))
    }
    publics = [made[0].public for made in identities.values()]
    public = identities["north"][2]

    def read(reader: Callable[[Path], object]) -> Callable[[str], object]:
        def written(text: str) -> object:
            path = folder / "read"
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")
            return reader(path)

        return written

    return {
        "plan": (plan_text, parse_plan),
        "policy": (POLICY, parse_policy),
        "roster": (build_roster(publics[0], publics[1:]).to_toml(), parse_roster),
        "public": (public.read_text(), read(read_public)),
        "private": (identities["north"][1].read_text(), read(read_private)),
    }


@pytest.mark.parametrize("value", TOML_VALUES)
@pytest.mark.parametrize("kind", ["plan", "policy", "roster", "public"])
def test_no_value_in_a_file_ends_a_command_without_a_name(
    texts: dict[str, tuple[str, Callable[[str], object]]], kind: str, value: str
) -> None:
    """In the place of any value: what cannot be used is refused, and what the owner is told has no escape sequence."""
    text, read = texts[kind]
    lines = text.split("\n")
    places = [number for number, line in enumerate(lines) if "=" in line and not line.startswith("#")]
    assert len(places) >= 5
    for place in places:
        name = lines[place].split("=")[0]
        spoilt = "\n".join([*lines[:place], f"{name}= {TOML_VALUES[value]}", *lines[place + 1 :]])
        try:
            read(spoilt)
        except HedgerowError as refused:
            assert escape_for_terminal(str(refused)) == str(refused)


@given(st.data())
def test_no_damage_to_a_file_ends_a_command_without_a_name(
    texts: dict[str, tuple[str, Callable[[str], object]]], data: st.DataObject
) -> None:
    """Pieces are cut out, doubled, or put in the place of others: it is read, or refused by name."""
    text, read = texts[data.draw(st.sampled_from(["plan", "policy", "roster", "public"]))]
    for _ in range(data.draw(st.integers(1, 3))):
        begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        piece = data.draw(st.sampled_from(["", text[begin:end] * 2, *TOML_VALUES.values(), "[[x]]\n", "\0", '"""']))
        text = text[:begin] + piece + text[end if data.draw(st.booleans()) else begin :]
    with suppress(HedgerowError):
        read(text)


@pytest.mark.parametrize("value", TOML_VALUES)
def test_a_command_refuses_a_harmful_plan_by_name(
    plan_text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    """Exit code 70 means a fault of Hedgerow; whoever writes a plan cannot bring it about, nor reach the terminal."""
    path = tmp_path / "plan.toml"
    path.write_text(plan_text.replace('name = "wards"', f"name = {TOML_VALUES[value]}"))
    assert main(["privacy", str(path)]) == 3
    said = capsys.readouterr()
    assert all(escape_for_terminal(line) == line for line in (said.out + said.err).split("\n"))


@pytest.mark.parametrize("text", ["[omop", "a = " + "[" * 40, "a = 1\na = 2"])
def test_a_definition_that_is_no_toml_is_refused_by_name(tmp_path: Path, text: str) -> None:
    """A cohort's definition comes from another hand than the plan, and is read by the same reader."""
    (tmp_path / "definition.toml").write_text(text)
    assert main(["plan", "from-omop", str(tmp_path / "definition.toml")]) == 3


@given(st.text())
def test_what_is_printed_for_programs_hides_nothing(text: str) -> None:
    """JSON and TOML say cells and names as they are, and a terminal that shows them takes none for a command."""
    printed, written = json_text({"cells": {text: 1}}), toml_value(text)
    assert all(escape_for_terminal(line) == line for line in [*printed.split("\n"), written])
    assert json.loads(printed) == {"cells": {text: 1}}
    assert any("\ud800" <= each <= "\udfff" for each in text) or tomllib.loads(f"a = {written}") == {"a": text}


@pytest.mark.parametrize("character", ["\x1b", "\x07", "\x7f", "\x9b", "\u200b", "\u200f", "\u202a", "\u202e", "\u2066",
                                       "\u2069", "\ufeff", "\u2028", "\u2029", "\r", "\n", "\t", "\ud800"])  # fmt: skip
def test_a_plan_shows_its_owner_nothing_that_reads_otherwise(plan_text: str, character: str) -> None:
    """Neither in a text nor in the name of a field, wherever it stands: what an owner agrees to is what is seen."""
    table = json.loads(json.dumps(Plan.to_dict(parse_plan(plan_text))))
    texts = [("name",), ("label", "name"), ("privacy", "unit"), ("features", 0, "name"), ("label", "classes", 0)]
    for *outer, last in texts:
        spoilt = copy.deepcopy(table)
        inner: Any = spoilt
        for step in outer:
            inner = inner[step]
        inner[last] = f"age{character}"
        with pytest.raises(PlanError) as refused:
            Plan.from_dict(spoilt)
        assert character not in str(refused.value) and f"{ord(character):04X}" in str(refused.value)
    with pytest.raises(PlanError) as refused:
        Plan.from_dict({**table, f"name{character}": 1})
    assert character not in str(refused.value)


def test_letters_of_every_script_are_plain() -> None:
    """Names of columns in any language stay what they were."""
    require_plain({"Größe": ["näive", "年齢", "возраст", "गाँव", "عمر", "µ² ≥ 1", "né\u00a0le", "😀"]})


@pytest.mark.parametrize(
    "content", [b"[" + b"[]," * MAX_VALUES + b"[]]", b'{"features":[[' + b"0," * MAX_VALUES + b"0]]}"]
)
def test_a_plan_of_too_many_values_is_not_gone_through(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator could otherwise keep each node busy for seconds with every invitation."""
    monkeypatch.setattr(Plan, "from_dict", lambda _: pytest.fail("it was gone through"))
    with pytest.raises(RemoteProtocolError) as refused:
        read_plan(content)
    assert refused.value.code == "plan-unreadable"
    with pytest.raises(ValueError, match="more than 250,000 values"):
        require_plain(json.loads(content), MAX_VALUES)


@pytest.fixture(scope="module")
def model() -> Model:
    """A small model."""
    plan = make_plan(model={"n_trees": 2})
    data = make_data(plan, plan.privacy.n_records, 7)
    sites = {f"site-{number}": take(data, slice(number, None, 3)) for number in range(3)}
    return train(plan, sites, noise=SeededNoise(1))


@pytest.fixture(scope="module")
def written(model: Model) -> tuple[Any, list[tuple[Any, ...]]]:
    """Its file as JSON, and the paths of all values in it."""
    content = json.loads(model.to_bytes())
    return content, list(places_in(content))


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a value of JSON."""
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places_in(inner, (*path, key))


def spoilt_at(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with a new value in this place."""
    if not path:
        return new
    changed = copy.copy(value)
    changed[path[0]] = spoilt_at(value[path[0]], path[1:], new)
    return changed


@settings(max_examples=300)
@given(data=st.data())
def test_no_message_with_a_plan_or_a_model_ends_a_node_without_a_name(
    model: Model, written: tuple[Any, list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    """Over the wire a coordinator sends both as JSON; any value may stand anywhere."""
    plan = model.plan.to_dict()
    place = data.draw(st.sampled_from(list(places_in(plan))))
    spoilt = json.dumps(spoilt_at(plan, place, data.draw(st.sampled_from(JSON_VALUES)))).encode()
    try:
        read_plan(spoilt)
    except HedgerowError as refused:
        assert escape_for_terminal(str(refused)) == str(refused)
    content, places = written
    trees = content["ensemble"]
    place = data.draw(st.sampled_from([path[1:] for path in places if path[:1] == ("ensemble",)]))
    spoilt = json.dumps(spoilt_at(trees, place, data.draw(st.sampled_from(JSON_VALUES)))).encode()
    try:
        _ = EvaluationTask(model.plan, spoilt, 1.0, 1e-6, 0).ensemble
    except HedgerowError as refused:
        assert escape_for_terminal(str(refused)) == str(refused)


@pytest.mark.parametrize("text", ["[" * DEEP, '{"a":' * DEEP, "[" * 40 + "]" * 40, "9" * 5000])
def test_deep_or_long_json_is_refused_by_name(model: Model, text: str) -> None:
    """Neither the stack nor the digits of a number end a node."""
    with pytest.raises(HedgerowError):
        read_plan(text.encode())
    with pytest.raises(HedgerowError):
        _ = EvaluationTask(model.plan, text.encode(), 1.0, 1e-6, 0).ensemble


@pytest.mark.parametrize("key", ["a." * 64 + "a", "'a' . " * 64 + "a", '"a.b"\t.\t' * 64 + "a"])
@pytest.mark.parametrize("text", ["{} = 1", "[{}]", "[[ {} ]]", "a = {{ b = 1, {} = 1 }}"])
def test_deep_toml_is_refused_before_it_is_read(key: str, text: str) -> None:
    """Python's reader takes time by the square of a key's parts: an invitation of 64 kB would keep a site for 20 s,
    one of a megabyte for hours.
    """
    with pytest.raises(ValueError, match="32 deep"):
        parse_toml(text.format(key))
    assert parse_toml('a = "' + "1.5, " * 64 + '"\nb = [' + "1.5, " * 64 + "]\nc.d.e = 1")["c"] == {"d": {"e": 1}}


@settings(max_examples=300)
@given(data=st.data())
def test_no_model_file_ends_a_command_without_a_name(
    written: tuple[Any, list[tuple[Any, ...]]], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A model comes from others too; its checksum keeps nobody from writing what they like."""
    content, places = written
    place = data.draw(st.sampled_from(places))
    spoilt = spoilt_at(content, place, data.draw(st.sampled_from(JSON_VALUES)))
    path = tmp_path_factory.getbasetemp() / "model.json"
    path.write_text(json.dumps(spoilt))
    try:
        Model.load(path)
    except HedgerowError as refused:
        assert escape_for_terminal(str(refused).replace(str(path), "")) == str(refused).replace(str(path), "")


def test_a_deep_model_file_is_refused_by_name(tmp_path: Path) -> None:
    """Its parser's stack is not the reader's problem."""
    path = tmp_path / "model.json"
    for text in ("[" * DEEP, '{"a":' * DEEP):
        path.write_text(text)
        with pytest.raises(ModelError):
            Model.load(path)
