"""Runs of the papers' cells: each is written down once, with its seed, and taken up where an earlier life left off."""

from __future__ import annotations

import csv
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from experiments import paper
from experiments.catalogue import Cell, Method
from experiments.harness import code_digest, mean_and_deviation
from experiments.paper import SPLIT_SEEDS, Line, Results, average_ranks, plan_of, run_cells

MODEL = {"n_trees": 3, "max_depth": 2, "interaction": "cyclical"}
TWO = [Cell(Method("newton", MODEL), "small", 5.0), Cell(Method("gradient", {**MODEL, "weight_update": "gradient"}),
                                                         "small", 5.0)]  # fmt: skip
TIMES = {"seconds", "cpu_seconds"}

pytestmark = pytest.mark.usefixtures("small_data")
StoreOf = Callable[..., Namespace]


def forbidden(task: Any) -> Line:
    raise AssertionError(f"{task} was run again")


def without_times(results: Results) -> dict[Any, list[Line]]:
    return {
        key: [{field: value for field, value in line.items() if field not in TIMES} for line in lines]
        for key, lines in results.items()
    }


def test_what_is_written_down_is_not_run_again(store: StoreOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after an interruption nor for another table that shares the cell."""
    first = run_cells(TWO, store(3), "")
    monkeypatch.setattr(paper, "_run", forbidden)
    assert run_cells(TWO, store(3), "") == first
    assert run_cells(TWO[:1], store(2), "") == {TWO[0].key: first[TWO[0].key][:2]}


def test_a_line_that_was_cut_off_is_run_again_and_only_it(store: StoreOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it writes leaves half a line."""
    first = run_cells(TWO, store(3), "")
    path, ran = store().out / "runs.csv", []
    content = path.read_text()
    path.write_text(content[: content.rindex(",")][:-8] + "\n")
    run = paper._run
    monkeypatch.setattr(paper, "_run", lambda task: (ran.append(task), run(task))[1])
    assert without_times(run_cells(TWO, store(3), "")) == without_times(first)
    assert len(ran) == 1


def test_other_settings_under_the_same_name_are_another_run(store: StoreOf) -> None:
    """The plan's digest is part of the key: a changed method never shows an old number."""
    run_cells(TWO[:1], store(1), "")
    changed = Cell(Method("newton", {**MODEL, "learning_rate": 0.9}), "small", 5.0)
    found = run_cells([changed], store(1), "")
    with (store().out / "runs.csv").open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    assert len(lines) == 2 and lines[0]["plan"] != lines[1]["plan"] == found[changed.key][0]["plan"]


def test_seeds_are_recorded_and_decide(store: StoreOf, tmp_path: Any) -> None:
    """Trees, noise and split follow from a run's seed: the same in another folder, another for another seed."""
    found = run_cells(TWO[:1], store(len(SPLIT_SEEDS) + 1), "")[TWO[0].key]
    assert [int(line["seed"]) for line in found] == list(range(len(SPLIT_SEEDS) + 1))
    again = run_cells(TWO[:1], store(len(SPLIT_SEEDS) + 1, out=tmp_path / "other"), "")[TWO[0].key]
    assert [line["auc"] for line in again] == [line["auc"] for line in found]
    assert len({line["auc"] for line in found}) > 1
    prepared = paper._prepared("small", TWO[0].preparation, None)
    plans = [plan_of(TWO[0], seed, prepared) for seed in range(len(SPLIT_SEEDS) + 1)]
    assert [plan.model.structure_seed for plan, _ in plans] == list(range(len(SPLIT_SEEDS) + 1))
    # Seed 5 splits as seed 0 does, with other trees and other noise.
    assert np.array_equal(plans[0][1], plans[len(SPLIT_SEEDS)][1]) and not np.array_equal(plans[0][1], plans[1][1])


def test_two_processes_find_what_one_does(store: StoreOf, tmp_path: Any) -> None:
    """`--jobs` changes neither results nor their order in a report."""
    one = run_cells(TWO, store(3), "")
    two = run_cells(TWO, store(3, out=tmp_path / "two", jobs=2), "")
    assert without_times(one) == without_times(two) and list(one) == list(two)


def test_runs_of_other_code_are_used_and_a_later_line_counts(store: StoreOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line says of which code it is; a run that stands in the file twice is the later one."""
    fresh = run_cells(TWO[:1], store(2), "")[TWO[0].key]
    assert {line["code"] for line in fresh} == {code_digest()}
    path = store().out / "runs.csv"
    head, *lines = path.read_text().splitlines(keepends=True)
    older = [line.replace(code_digest(), "000000000000") for line in lines]
    monkeypatch.setattr(paper, "_run", forbidden)
    path.write_text("".join([head, *older]))
    used = run_cells(TWO[:1], store(2), "")[TWO[0].key]
    assert {line["code"] for line in used} == {"000000000000"}
    path.write_text("".join([head, *older, *lines]))
    assert run_cells(TWO[:1], store(2), "")[TWO[0].key] == fresh


def test_a_line_says_what_the_run_took(store: StoreOf) -> None:
    """Exchanges and numbers are those of the ledger: one per tree, two numbers for each of four leaves."""
    (line,) = run_cells(TWO[:1], store(1), "")[TWO[0].key]
    assert (line["exchanges"], line["numbers_per_node"]) == ("3", "24")
    assert 0.5 < float(line["auc"]) <= 1 and line["epsilon"] == "5" and line["data"] == "small"


def test_trees_for_each_feature_are_counted(store: StoreOf) -> None:
    """DP-EBM trains T trees for each of the m features."""
    cell = Cell(Method("ebm", MODEL, trees_per_feature=2), "small", 5.0)
    (line,) = run_cells([cell], store(1), "")[cell.key]
    assert line["exchanges"] == "12"


def lines_of(*values: float) -> list[Line]:
    return [{"auc": str(value)} for value in values]


def test_ranks_are_averaged_over_data_sets_and_shared_in_ties() -> None:
    """By hand: a is first and (tied with b) 1.5th, b second and 1.5th, c last twice; another epsilon does not count."""
    results: Results = {
        ("a", "bank", 1.0, 0.0): lines_of(0.9, 0.7), ("b", "bank", 1.0, 0.0): lines_of(0.75, 0.75),
        ("c", "bank", 1.0, 0.0): lines_of(0.5), ("a", "adult", 1.0, 0.0): lines_of(0.8),
        ("b", "adult", 1.0, 0.0): lines_of(0.8), ("c", "adult", 1.0, 0.0): lines_of(0.1),
        ("c", "bank", 0.1, 0.0): lines_of(1.0),
    }  # fmt: skip
    assert average_ranks(results, ["a", "b", "c"], 1.0) == {"a": 1.25, "b": 1.75, "c": 3.0}
    assert average_ranks(results, ["b", "c"], 1.0) == {"b": 1.0, "c": 2.0}


def test_a_deviation_is_that_of_a_sample() -> None:
    """Divided by n - 1, as the paper's; one run has none."""
    assert mean_and_deviation([0.7, 0.9]) == "0.8000 ± 0.1414"
    assert mean_and_deviation([0.7]) == "0.7000 ± 0.0000"
