"""The JSON Schemas that editors read: all that the product takes is theirs, and what is wrong is underlined."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.app.inputs import build_policy
from hedgerow.app.schema import SCHEMAS, build_schema, describe_section
from hedgerow.cli.main import main
from hedgerow.client.policy import Policy
from hedgerow.data.adapters import Adapter
from hedgerow.data.drafts import draft_plan
from hedgerow.errors import PlanError
from hedgerow.plan.omop import Omop, OmopColumn, OmopOutcome
from hedgerow.plan.plan import Feature, FederationSection, Label, ModelSection, Plan, Prepared, Privacy
from hedgerow.plan.registry import named_losses, sections
from tests.builders import make_plan, plans

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).resolve().parents[2]
SECTIONS = [Privacy, Label, ModelSection, FederationSection, Feature, Prepared, Policy, Adapter, Omop, OmopColumn,
            OmopOutcome, *sections().values()]  # fmt: skip
FIELDS = [(section, field) for section in SECTIONS for field in dataclasses.fields(section)]
WORDS = [
    "", " ", "auto", "all", "none", "a\nb", "record", "2020-01-31", "%d.%m.%Y", "days to years", "cp1252", "server",
    "a" * 64, "boosting", "binary", "numeric", "comma", "joint", "linear", "always", "any",
]  # fmt: skip
SCALARS = st.one_of(
    st.sampled_from(WORDS), st.booleans(), st.integers(-2, 300), st.floats(allow_nan=False), st.just(10**9)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "sex"]), inner, max_size=2)
    ),
    max_leaves=6,
)


SCHEMAS_BY_SECTION = {section: describe_section(section)["properties"] for section in SECTIONS}


schema_of = cache(build_schema)


def faults(kind: str, table: Any) -> list[str]:
    """What an editor underlines, by its dotted path."""
    found = jsonschema.Draft202012Validator(schema_of(kind)).iter_errors(table)
    return sorted(each.json_path.removeprefix("$.") for each in found)


@given(st.data())
def test_what_a_field_takes_its_schema_allows(data: st.DataObject) -> None:
    """An editor never underlines what a plan, a policy or an adapter may say."""
    section, field = data.draw(st.sampled_from(FIELDS))
    value = data.draw(VALUES)
    try:
        field.metadata["check"](value, field.name)
    except PlanError:
        return
    own = SCHEMAS_BY_SECTION[section][field.name]
    assert list(jsonschema.Draft202012Validator(own).iter_errors(value)) == [], (section, field.name, value)


def test_the_schema_has_every_section_of_a_plan() -> None:
    """A section that a plan may have is not underlined as unknown."""
    with pytest.raises(PlanError) as refused:
        Plan.from_dict({"version": 1, "no such section": 1})
    assert ", ".join(sorted(build_schema("plan")["properties"])) in str(refused.value)


def test_every_loss_that_a_plan_may_name_is_its_schemas() -> None:
    """[loss] has the parameters of the loss that it names."""
    for name, section in named_losses().items():
        required = dict.fromkeys(describe_section(section)["required"], 0.5)
        plan = make_plan("regression", loss={"name": name, **required}, model={"calibration": "none"})
        assert faults("plan", plan.to_dict()) == []


@settings(max_examples=10)
@given(plans())
def test_every_plan_is_its_schemas(plan: Plan) -> None:
    """A plan that is read is not underlined, whatever its method and label."""
    assert faults("plan", plan.to_dict()) == []


@pytest.mark.parametrize("kind", SCHEMAS)
def test_files_of_releases_are_their_schemas(kind: str) -> None:
    """Plans, policies and rosters that were written before are not underlined; the schema itself is one."""
    jsonschema.Draft202012Validator.check_schema(build_schema(kind))
    files = sorted((ROOT / "tests" / "compatibility").rglob(f"{kind}*.toml"))
    assert files or kind == "adapter"
    for file in files:
        assert faults(kind, tomllib.loads(file.read_text(encoding="utf-8"))) == [], file


@pytest.mark.parametrize(
    ("kind", "text", "underlined"),
    [
        ("plan", "version = 2", ["version"]),
        ("plan", "[privacy]\nepsilon = 0", ["privacy", "privacy", "privacy.epsilon"]),
        ("plan", "[modell]", [""]),
        ("plan", '[model]\nn_trees = "many"', ["model.n_trees"]),
        ("plan", '[model]\nmax_dept = 3\ninteraction_constraints = [["a"], []]',
         ["model", "model.interaction_constraints[1]"]),
        ("plan", '[[features]]\nname = "d"\ntype = "date"\nmin = "31.1.2020"', ["features[0].min"]),
        ("plan", '[loss]\nname = "quantile"\nquantile = 2', ["loss"]),
        ("policy", 'min_sites = 0\nnoise = ["nobody"]\ndata.missing = 3',
         ["data.missing", "min_sites", "noise[0]"]),
        ("adapter", 'data.scale.age = "days to weeks"', ["data.scale.age"]),
        ("roster", 'sites = [{name = "a", role = "coordinator"}]',
         ["sites[0]", "sites[0]", "sites[0]", "sites[0].role"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_underlined(kind: str, text: str, underlined: list[str]) -> None:
    """An error is shown where it stands, beside the fields that are missing altogether."""
    found = [path for path in faults(kind, tomllib.loads(text)) if path != "$"]
    assert found == [path for path in underlined if path]
    assert ("$" in faults(kind, tomllib.loads(text))) == (kind != "adapter")


def test_a_draft_names_the_schema_that_is_written_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft's first line is the one that editors read, and the file that it names is there, of this release."""
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("x,y\n1,0\n2,1\n", encoding="utf-8")
    assert main(["plan", "init", "a.csv", "--label", "y", "--out", "draft.toml"]) == 0
    line, written = Path("draft.toml").read_text(encoding="utf-8").split("\n", 1)[0], Path("plan.schema.json")
    assert line == f"#:schema ./{written}"
    assert json.loads(written.read_text(encoding="utf-8")) == build_schema("plan")
    assert draft_plan("a.csv", "y").startswith(line)
    assert build_policy("", "wards").startswith("#:schema ./policy.schema.json\n")
