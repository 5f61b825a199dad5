"""All methods on all tasks: what is printed, kept, ranked, and asked of the default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import utility
from experiments.datasets import Table, make_classes, with_label
from tests.experiments.conftest import small_table

pytestmark = pytest.mark.slow

ADASSP = "Boosted AdaSSP"


@pytest.fixture
def two_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two classes, and of three, for which boosted AdaSSP is not made."""
    tasks: dict[str, Any] = {"small": lambda _: small_table(), "three": lambda _: make_classes(3, 300)}
    monkeypatch.setattr(utility, "TASKS", tasks)
    utility._prepared.cache_clear()


def run(folder: Path, *options: str) -> int:
    chosen = ("--methods", utility.DEFAULT, ADASSP, utility.XGBOOST, "--splits", "2", "--epsilons", "8")
    return utility.main(["--out", str(folder), *chosen, *options])


@pytest.mark.usefixtures("two_tasks")
def test_a_table_per_task_and_nothing_is_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A method that is not for a task has no row there; what the file holds is printed again without a run."""
    monkeypatch.setattr(utility, "GROUPS", {**{name: {} for name in utility.GROUPS}, "own": utility.TASKS})
    code = run(tmp_path, "--tasks", "own")
    printed = capsys.readouterr().out
    small, three = printed.split("# three:")
    assert ADASSP in small and utility.XGBOOST in small and "# small:" in small
    assert f"\n| {ADASSP} | 0" not in three and f"\n| {utility.DEFAULT} | 0" in three
    assert f"| {ADASSP} | " in three and three.count(" ± ") == 3
    monkeypatch.setattr(utility, "METHODS", dict.fromkeys(utility.METHODS, None))
    assert run(tmp_path, "--tasks", "own") == code and capsys.readouterr().out == printed


def test_ranks_count_the_private_methods_that_are_better() -> None:
    """Equal means share a rank; XGBoost, which is not private, has none."""
    scores = {utility.DEFAULT: 0.8, "equal": 0.8, "better": 0.9, "worse": 0.7, utility.XGBOOST: 0.99}
    ranks = utility._ranks({("t", method, 1.0): np.array([[score]]) for method, score in scores.items()})
    assert ranks == {utility.DEFAULT: [2], "equal": [2], "better": [1], "worse": [4]}


def test_what_is_asked_is_missed_by_more_than_a_standard_error() -> None:
    """Of numbers, too: a private method that is ahead by more than .01 is named, one that is not private is not."""
    scores = np.array([[0.42], [0.44]])
    found = {("abalone", utility.DEFAULT, 0.17): scores, ("abalone", utility.XGBOOST, 0.17): scores + 0.1}
    assert all(utility._gates(found, {}).values())
    ahead = {("abalone", "another", 0.17): scores + 0.02, ("abalone", ADASSP, 0.17): scores - 1}
    held = utility._gates({**found, **ahead}, {utility.DEFAULT: [2]})
    assert [holds for holds in held.values()] == [True, False, False, False]
    assert any("below another by 0.0200" in gate for gate in held)
    assert not next(iter(utility._gates({("abalone", utility.DEFAULT, 0.17): scores - 0.05}, {}).values()))


def test_a_number_among_the_features_can_be_the_label() -> None:
    """The label of two classes becomes a feature, and bounds of the label are the declared ones."""
    small = small_table()
    made: Table = with_label(small, "other", "x1")
    assert made.label_section == {"name": "x1", "type": "regression", "min": -1, "max": 1}
    assert [feature["name"] for feature in made.features] == ["x0", "x2", "x3", "x4", "x5", "y"]
    np.testing.assert_array_equal(made.label, small.columns[1].astype(float))


def test_scores_of_a_method_from_outside_are_of_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another setting, or other sources, are another run: no score of an earlier one is shown."""
    from experiments import compare

    kept: list[str] = []

    def run(argv: list[str], *, asks: bool) -> int:
        kept.append(utility.KEYS[argv[-1]])
        return 0

    monkeypatch.setattr(utility, "main", run)
    monkeypatch.setattr(utility, "METHODS", dict(utility.METHODS))
    monkeypatch.setattr(utility, "KEYS", {})
    plan, module = tmp_path / "plan.toml", tmp_path / "own_method_of_nobody.py"
    for trees, source in ((3, "A = 1"), (3, "A = 1"), (4, "A = 1"), (4, "A = 2")):
        plan.write_text(f"[model]\nn_trees = {trees}\n", encoding="utf-8")
        module.write_text(source, encoding="utf-8")
        assert compare.main(["--plugin", str(module), "--plan", str(plan)]) == 0
    assert kept[0] == kept[1] and len(set(kept)) == 3
