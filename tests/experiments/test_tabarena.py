"""The comparison with TabArena: files as their publishers have them, and scores beside those that are published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments import tabarena
from experiments.datasets import load
from experiments.harness import published
from experiments.tabarena import PUBLISHED, SETS
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


@pytest.mark.slow
def test_what_is_there_is_compared_and_what_is_not_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is run twice."""
    monkeypatch.setattr(tabarena, "SETS", {"diamonds": SETS["diamonds"], "bank-marketing": lambda _: small_table()})
    options = ["--data", str(tmp_path), "--out", str(tmp_path), "--splits", "2", "--sets", "diamonds", "bank-marketing"]
    assert tabarena.main(options) == 0
    printed = capsys.readouterr().out
    assert "diamonds is left out" in printed and "| bank-marketing | 200 | AUC | 0.7727 | 0.7751 | 0.7561 |" in printed
    assert "| mean of 1 | AUC x 100 |" in printed and "RMSE" not in printed
    monkeypatch.setattr(tabarena, "by_xgboost", None)
    assert tabarena.main(options) == 0 and capsys.readouterr().out == printed
