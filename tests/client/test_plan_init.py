"""Drafting a plan: a draft gives nothing private away unasked, and once filled in it is a plan."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hedgerow.client.plan_init import draft_plan
from hedgerow.client.reading import read_records
from hedgerow.client.records import concatenate
from hedgerow.protocol.errors import DataError, PlanError, UsageError
from hedgerow.protocol.plan import parse_plan

WriteFile = Callable[[str, bytes], Path]

TABLE = b"age,city,weight,sick\n41,Oslo,70.25,no\n,Rome,88.5,yes\n77,,61,no\n"


def test_a_draft_holds_no_value_of_the_table(write_file: WriteFile) -> None:
    """Bounds and categories are public inputs: unless their owner says so, not one leaves the file."""
    draft = draft_plan(write_file("a.csv", TABLE), "sick")
    for value in ("41", "77", "Oslo", "Rome", "70.25", "88.5", "61", '"no"', '"yes"'):
        assert value not in draft


def test_an_untouched_draft_names_the_first_field_to_fill_in(write_file: WriteFile) -> None:
    """Filling in the fields in the order of the file, a person is led from each to the next and then has a plan."""
    draft = draft_plan(write_file("a.csv", TABLE), "sick")
    answers = [
        ("privacy.delta", "# delta =", "delta = 1e-6"),
        ("privacy.n_records", "# n_records =", "n_records = 1000"),
        ("features[0] (age).min", "# min =", "min = 0"),
        ("features[0] (age).max", "# max =", "max = 120"),
        ("features[1] (city).categories", "# categories =", 'categories = ["Oslo", "Rome"]'),
        ("features[2] (weight).min", "# min =", "min = 0"),
        ("features[2] (weight).max", "# max =", "max = 300"),
        ("label.classes", "# classes =", 'classes = ["no", "yes"]'),
    ]
    for field, placeholder, answer in answers:
        with pytest.raises(PlanError) as caught:
            parse_plan(draft)
        assert caught.value.what.startswith(field)
        first = re.search(rf"^{placeholder}.*FILL IN.*$", draft, re.MULTILINE)
        assert first is not None
        draft = draft[: first.start()] + answer + draft[first.end() :]
    plan = parse_plan(draft)
    assert [feature.type for feature in plan.features] == ["numeric", "categorical", "numeric"]
    assert [feature.integer for feature in plan.features] == [True, False, False]
    assert plan.privacy.epsilon == 1.0


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_public_bounds_are_read_off_the_file(ending: str, write_file: WriteFile) -> None:
    """With leave of the owner a draft is a plan at once, the same for each format, and its own table fits it."""
    path = write_file(f"a.{ending}", TABLE)
    if ending == "parquet":
        columns = {
            "age": [41, None, 77],
            "city": ["Oslo", "Rome", None],
            "weight": [70.25, 88.5, 61],
            "sick": ["no", "yes", "no"],
        }
        pq.write_table(pa.table(columns), path)
    plan = parse_plan(draft_plan(path, "sick", bounds_are_public=True, epsilon=0.5, n_records=1234))
    age, city, weight = plan.features
    assert (age.min, age.max, age.integer) == (41, 77, True)
    assert city.categories == ("Oslo", "Rome")
    assert (weight.min, weight.max, weight.integer) == (61, 88.5, False)
    assert plan.label.classes == ("no", "yes") and plan.label.type == "binary"
    assert (plan.privacy.epsilon, plan.privacy.delta, plan.privacy.n_records) == (0.5, 1e-4, 1234)
    assert not plan.privacy.bounds_from_data
    assert concatenate(read_records(path, plan)).n_records == 3


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["0", "1", "1"], {"type": "binary", "classes": ["0", "1"]}),
        (["10", "9", "8"], {"type": "multiclass", "classes": ["8", "9", "10"]}),
        (["b", "a", "c"], {"type": "multiclass", "classes": ["a", "b", "c"]}),
        (["1.5", "-2", "3"], {"type": "regression", "min": -2, "max": 3}),
        ([str(number) for number in range(40)], {"type": "regression", "min": 0, "max": 39}),
        (["1", "1", "1"], {"type": "binary"}),
    ],
)
def test_the_kind_of_label(values: list[str], expected: dict[str, object], write_file: WriteFile) -> None:
    """Two values are classes, a few whole numbers or texts too, other numbers a quantity, one value a question."""
    content = "x,y\n" + "".join(f"{row},{value}\n" for row, value in enumerate(values))
    draft = draft_plan(write_file("a.csv", content.encode()), "y", bounds_are_public=True, n_records=100)
    label = tomllib.loads(draft)["label"]
    assert label == {"name": "y", **expected}


def test_columns_that_no_plan_can_use(write_file: WriteFile) -> None:
    """Free text is left out with a word about it, a constant gets bounds apart, a nameless index is no feature."""
    rows = "".join(f"{row},note {row},5,{row % 2}\n" for row in range(300))
    path = write_file("a.csv", (",notes,flat,y\n" + rows).encode())
    draft = draft_plan(path, "y", bounds_are_public=True, n_records=300)
    plan = parse_plan(draft)
    assert plan.feature_names == ("flat",)
    assert (plan.features[0].min, plan.features[0].max) == (5, 6)
    assert '"notes" has more than 250' in draft and "name is empty" in draft


@given(
    names=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\x00"), min_size=1).map(str.strip),
        min_size=2,
        max_size=4,
        unique=True,
    ).filter(lambda names: all(names)),
    words=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\x00"), max_size=6),
        min_size=2,
        max_size=4,
    ),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_any_names_and_values_survive_the_draft(names: list[str], words: list[str], write_file: WriteFile) -> None:
    """Quotes, commas, backslashes and control characters in a header or a cell neither break a draft nor get lost."""
    *features, label = names
    rows = [names, *([word] * len(names) for word in words)]
    quoted = [['"' + cell.replace('"', '""') + '"' for cell in row] for row in rows]
    path = write_file("a.csv", "\n".join(",".join(row) for row in quoted).encode())
    table = tomllib.loads(draft_plan(path, label, bounds_are_public=True, n_records=10))
    assert table["label"]["name"] == label
    assert [feature["name"] for feature in table["features"]] == features


def test_what_cannot_be_drafted(write_file: WriteFile) -> None:
    """A label that is not there, a name used twice, nothing to predict from: each is said before any work is done."""
    with pytest.raises(DataError, match="'ill'") as caught:
        draft_plan(write_file("a.csv", TABLE), "ill")
    assert caught.value.code == "data-missing-column"
    with pytest.raises(DataError, match="two columns are called 'a'"):
        draft_plan(write_file("b.csv", b"a,a,y\n1,2,3\n"), "y")
    with pytest.raises(UsageError, match="no column besides the label"):
        draft_plan(write_file("c.csv", b"y\n1\n"), "y")
