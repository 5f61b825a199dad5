"""Training rows over sites: where they go, who leaves, and what that changes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hedgerow
from experiments import compare, harness, splits, utility
from experiments.datasets import Table
from experiments.harness import Prepared, plan_for
from experiments.splits import Split, site_of
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.server.release import Outcome
from tests.experiments.conftest import small_table

ROOT = Path(__file__).resolve().parents[2]
CLASSES = np.repeat([0, 1, 2], [6_000, 3_000, 1_000])


def spread(split: Split, seed: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.intp]]:
    """Rows by site and class."""
    of = site_of(CLASSES, split, np.random.default_rng(seed))
    return np.array([np.bincount(CLASSES[of == site], minlength=3) for site in range(split.n_sites)])


def test_without_skews_all_sites_are_alike() -> None:
    """Of each label a site has its share, to within a row."""
    assert np.abs(spread(Split(7)) - np.array([6_000, 3_000, 1_000]) / 7).max() <= 1


@pytest.mark.parametrize("split", [Split(10, 0.1), Split(10, None, 0.5), Split(10, 0.1, 0.1), Split(3, 1e-3, 1e-3)])
def test_every_row_is_at_one_site_and_a_seed_gives_one_split(split: Split) -> None:
    """No row is lost however small an alpha is, and another seed gives another split."""
    found = spread(split)
    np.testing.assert_array_equal(found.sum(axis=0), [6_000, 3_000, 1_000])
    np.testing.assert_array_equal(found, spread(split))
    assert np.any(found != spread(split, 1))


def test_a_small_alpha_makes_sites_unlike_in_what_it_is_for() -> None:
    """By labels: how mixed sites are falls with alpha; by size: labels stay mixed while sizes differ."""

    def largest_share(split: Split) -> float:
        return float(np.mean([(rows / rows.sum(axis=0)).max(axis=0) for rows in (spread(split, s) for s in range(20))]))

    assert largest_share(Split(10, 0.05)) > 0.6 > 0.2 > largest_share(Split(10, 100.0))
    by_size = spread(Split(10, None, 0.5))
    assert by_size.sum(axis=1).max() > 2_000
    assert np.abs(by_size - by_size.sum(axis=1, keepdims=True) * [0.6, 0.3, 0.1]).max() <= 3


def plan_of_small(**model: object) -> tuple[Prepared, Plan]:
    prepared = Prepared(small_table())
    return prepared, plan_for(prepared.table, 8.0, 150, {"n_trees": 6, "max_depth": 2, "structure_seed": 1, **model})


def bytes_of(outcome: Outcome) -> bytes:
    return Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report).to_bytes()


def test_a_split_alone_changes_no_bit_and_sites_that_leave_do() -> None:
    """Sums do not say who holds which row; who left is missing from them, and the promise is kept."""
    prepared, plan = plan_of_small()
    train = np.arange(prepared.table.n_records) < 150
    together = harness.trained(prepared, plan, train, 3)
    apart = splits.trained(Split(6, 0.2, 0.5), prepared, plan, train, 3)
    left = splits.trained(Split(6, 0.2, 0.5, 0.5), prepared, plan, train, 3)
    assert bytes_of(apart) == bytes_of(together) != bytes_of(left)
    assert [release.purpose for release in left.ledger] == [release.purpose for release in together.ledger]
    assert left.report.epsilon is not None and left.report.epsilon <= plan.privacy.epsilon


def test_the_same_sites_leave_whatever_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods are compared over the same losses: who leaves does not hang on a method's number of rounds."""
    left: list[list[bool]] = []

    class Seen(splits.LeavingSites):
        def __init__(self, nodes: Any, stays: Any) -> None:
            left.append([rounds < max(stays) for rounds in stays])
            super().__init__(nodes, stays)

    monkeypatch.setattr(splits, "LeavingSites", Seen)
    for n_trees in (1, 6):
        # One round: to draw one of it takes nothing from a generator.
        prepared, plan = plan_of_small(n_trees=n_trees, calibration="none")
        splits.trained(Split(9, leaving=0.5), prepared, plan, np.arange(200) < 150, 3)
    assert left[0] == left[1] and sum(left[0]) == 4


@pytest.mark.slow
def test_numbers_are_spread_by_tenths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that are numbers have no classes, and are skewed all the same."""
    table = small_table()
    section = {"name": "y", "type": "regression", "min": -2.0, "max": 2.0}
    numbers = Table(table.name, table.features, table.columns, table.columns[0].astype(float), section)
    plan = plan_for(numbers, 8.0, 200, {"n_trees": 6, "max_depth": 2, "structure_seed": 1})
    every = np.ones(200, dtype=bool)
    seen: list[list[int]] = []

    def spread_by(classes: np.ndarray[tuple[int], np.dtype[np.intp]], split: Split, random: np.random.Generator) -> Any:
        seen.append(np.bincount(classes).tolist())
        return site_of(classes, split, random)

    monkeypatch.setattr(splits, "site_of", spread_by)
    together = harness.trained(Prepared(numbers), plan, every, 3)
    assert bytes_of(splits.trained(Split(4, 0.2), Prepared(numbers), plan, every, 3)) == bytes_of(together)
    assert seen == [[20] * 10]


def test_scores_over_sites_are_kept_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default and the method from outside run over the split, under a key of it; XGBoost sees all rows."""
    kept: list[dict[str, str]] = []

    def run(argv: list[str], *, asks: bool) -> int:
        kept.append(dict(utility.KEYS))
        return 0

    monkeypatch.setattr(utility, "main", run)
    plan, module = tmp_path / "plan.toml", tmp_path / "own_method_over_sites.py"
    plan.write_text("[model]\nn_trees = 3\n", encoding="utf-8")
    module.write_text("A = 1", encoding="utf-8")
    given = ["--plugin", str(module), "--plan", str(plan)]
    for options in ([], ["--sites", "5"], ["--sites", "5", "--label-skew", "0.3"]):
        monkeypatch.setattr(utility, "METHODS", dict(utility.METHODS))
        monkeypatch.setattr(utility, "KEYS", {})
        assert compare.main([*given, *options]) == 0
    own = "boosting of plan.toml"
    assert [set(keys) for keys in kept] == [{own}, {own, *utility.OURS}, {own, *utility.OURS}]
    assert len({keys[own] for keys in kept}) == 3 and kept[1][utility.DEFAULT] != kept[2][utility.DEFAULT]
    for wrong in (["--leaving", "0.5"], ["--sites", "5", "--leaving", "0.6"], ["--sites", "5", "--size-skew", "0"]):
        with pytest.raises(SystemExit):
            compare.main([*given, *wrong])


def test_the_package_of_the_experiments_is_of_this_version_and_holds_all() -> None:
    """Who installs it without a checkout gets every folder that the experiments read."""
    project = tomllib.loads((ROOT / "experiments" / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == hedgerow.__version__
    assert project["project"]["dependencies"] == [f"hedgerow[experiments]=={hedgerow.__version__}"]
    held = {name.replace("experiments", ".", 1).replace("..", "") for name in project["tool"]["setuptools"]["packages"]}
    held |= {re.split("/", pattern)[0] for pattern in project["tool"]["setuptools"]["package-data"]["experiments"]}
    folders = {"."} | {path.name for path in (ROOT / "experiments").iterdir() if path.is_dir()}
    assert held == {name for name in folders if name not in ("__pycache__", "build") and "egg-info" not in name}
