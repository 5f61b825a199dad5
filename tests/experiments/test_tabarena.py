"""The comparison with TabArena: files as their publishers have them, and scores beside those that are published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments import datasets, tabarena
from experiments.datasets import load
from experiments.harness import published
from experiments.tabarena import PUBLISHED, SETS, in_buckets, with_levels
from hedgerow.data.columns import hash_to_bucket
from hedgerow.errors import DataError
from tests.experiments.conftest import small_table

HEAD = (
    "customer_id,credit_score,country,gender,age,tenure,balance,products_number,credit_card,active_member,"
    "estimated_salary,churn"
)


@pytest.mark.parametrize("name", SETS)
def test_each_set_has_its_published_scores_and_says_where_its_file_is_to_be_had(name: str, tmp_path: Path) -> None:
    """None is compared with a score that is not there."""
    assert {*PUBLISHED} == {*published("tabarena", "tabarena")[name]}
    with pytest.raises(DataError) as caught:
        SETS[name](str(tmp_path))
    assert caught.value.code == "data-missing"


def test_missing_values_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    """TabArena keeps such rows, the papers drop them: a number is then NaN, and a category the code for missing."""
    rows = ["1,619,France,Female,42,2,0,1,1,1,101348.88,1", "2,,Spain,,41,1,83807.86,1,0,1,112542.58,0"]
    (tmp_path / "Bank Customer Churn Prediction.csv").write_text("\n".join([HEAD, *rows, ""]), encoding="utf-8")
    whole, dropped = (load("customers", str(tmp_path), complete=complete) for complete in (False, True))
    assert (whole.n_records, dropped.n_records) == (2, 1)
    assert np.isnan(whole.columns[0]).tolist() == [False, True] and whole.columns[2].tolist() == [0, -2]
    assert whole.frame("other")["gender"].isna().tolist() == [False, True]


SCHEMA = """
publisher = "nobody"
file = "made.arff"
header = false
columns = ["person", "code", "text", "first", "second", "label"]
label = "label"
positive = ["yes"]
one_row_of = "person"
features = [
  { name = "code", type = "categorical", categories = ["none", "V08..V11"] },
  { name = "text", type = "hashed", buckets = 1024 },
  { names = ["first", "second"], type = "numeric", min = 0, max = 9 },
]
"""
ROWS = ["1,V09,blue,0,2,yes", "2,none,red,3,0,no", "1,V11,red,5,6,yes", "3,V12,?,7,?,no", "4,V11,blue,1,1,no"]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of a data set "made", of which an entry of the schema stands for several features or codes."""
    monkeypatch.setattr(datasets, "SCHEMAS", tmp_path)
    (tmp_path / "made.toml").write_text(SCHEMA, encoding="utf-8")
    lines = ["% Anything", "@relation made", "@attribute code {none, V08}", "@DATA", "", *ROWS]
    (tmp_path / "made.arff").write_text("\n".join(lines), encoding="utf-8")
    return str(tmp_path)


def test_an_entry_of_a_schema_may_stand_for_several_features_or_codes(made: str) -> None:
    """The first row of each person is read, from below the head of an ARFF file."""
    table = load("made", made, complete=False)
    assert [feature["name"] for feature in table.features] == ["code", "text", "first", "second"]
    assert table.features[0]["categories"] == ["none", "V08", "V09", "V10", "V11"]
    assert table.columns[0].tolist() == [2, 0, -1, 4] and table.columns[2].tolist() == [0, 3, 7, 1]


def test_hashed_text_is_in_buckets_for_the_default_and_whole_for_xgboost(made: str) -> None:
    """And those of fewer buckets are the ones that a node would put the text into."""
    table, listed = (load("made", made, complete=False, listed=listed) for listed in (False, True))
    fewer = in_buckets(table, 1.0)
    for each in (table, fewer):
        buckets = each.features[1]["buckets"]
        blue, red = (hash_to_bucket(text, buckets) for text in ("blue", "red"))
        assert each.columns[1].tolist() == [blue, red, -2, blue]
    assert fewer.features[1]["buckets"] < table.features[1]["buckets"]
    assert listed.features[1]["categories"] == ["blue", "red"] and listed.columns[1].tolist() == [0, 1, -2, 0]


def test_xgboost_has_a_column_for_each_level_and_keeps_zeros(made: str) -> None:
    """A zero that is not stored would be a missing value to it; a level of a tested row alone is in no column."""
    table = load("made", made, complete=False, listed=True)
    values = with_levels(table, np.array([True, True, False, True]))
    assert values.shape == (4, 2 + 3 + 2) and values.nnz == 4 * 2 + 3 * 2
    dense = values.toarray()
    assert dense[:, 0].tolist() == [0, 3, 7, 1] and np.isnan(dense[2, 1]) and not dense[2, 2:].any()


@pytest.mark.slow
def test_what_is_there_is_compared_and_what_is_not_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is run twice."""
    there = {"bank-marketing": lambda *_, **__: small_table()}
    monkeypatch.setattr(tabarena, "SETS", {"diamonds": SETS["diamonds"], **there})
    options = ["--data", str(tmp_path), "--out", str(tmp_path), "--splits", "2", "--sets", "diamonds", "bank-marketing"]
    assert tabarena.main(options) == 0
    printed = capsys.readouterr().out
    assert "diamonds is left out" in printed and "| bank-marketing | 200 | AUC | 0.7727 | 0.7751 | 0.7561 |" in printed
    assert "| mean of 1 | AUC x 100 |" in printed and "RMSE" not in printed
    monkeypatch.setattr(tabarena, "by_xgboost", None)
    assert tabarena.main(options) == 0 and capsys.readouterr().out == printed
