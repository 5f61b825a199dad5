"""The shipped data: what the README says about them is so, and the demonstration's split leaks nothing."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from xgboost import XGBClassifier

from hedgerow.data.datasets import load_rand_hie, rand_hie_plan_text, split_by_unit, write_rand_hie
from hedgerow.data.site_data import bound_sites, read_site_rows
from hedgerow.data.sources import read_records
from hedgerow.data.units import concatenate
from hedgerow.plan.plan import parse_plan
from hedgerow.trees.binning import MISSING_CATEGORY, UNKNOWN_CATEGORY


def test_the_readme_tells_the_truth_about_the_file() -> None:
    """Hash, size, people, share of the label and missing values as documented; columns as in its table."""
    folder = resources.files("hedgerow").joinpath("data")
    readme = folder.joinpath("README.md").read_text(encoding="utf-8")
    columns = load_rand_hie()
    assert hashlib.sha256(folder.joinpath("rand_hie.csv.gz").read_bytes()).hexdigest() in readme
    assert re.findall(r"^\| `(\w+)`", readme, re.MULTILINE) == list(columns)
    assert f"{len(columns['site']):,} person-years of {len(np.unique(columns['zper'])):,} people" in readme
    assert f"{100 * columns['visited'].mean():.1f} %" in readme
    for name, values in columns.items():
        n_missing = int(np.isnan(values.astype(np.float64)).sum())
        line = next(line for line in readme.splitlines() if line.startswith(f"| `{name}`"))
        assert (f"({n_missing:,} missing)" in line) if n_missing else ("missing" not in line)


def test_nobody_is_on_both_sides(tmp_path: Path) -> None:
    """A person's years are alike; with some in training, a test on the others would flatter the model."""
    files = write_rand_hie(tmp_path)
    columns = load_rand_hie()
    parts = {name: np.genfromtxt(path, delimiter=",", names=True) for name, path in files.train.items()}
    test = np.genfromtxt(files.test, delimiter=",", names=True)
    assert list(parts) == [f"site-{number}" for number in range(1, 7)]
    # The plan says that it lies there.
    assert "README.md" in files.plan.read_text()
    assert "public domain" in (tmp_path / "README.md").read_text()
    assert all(set(part["site"]) == {int(name[-1])} for name, part in parts.items())
    trained_on = np.concatenate([part["zper"] for part in parts.values()])
    assert not set(trained_on) & set(test["zper"])
    assert len(trained_on) + len(test) == len(columns["zper"])


@pytest.mark.parametrize(("seed", "n_sites"), [(0, 6), (0, 3), (0, 4), (0, 5), (7, 6), (7, 3)])
def test_the_plan_of_some_sites_declares_the_rows_that_they_use(tmp_path: Path, seed: int, n_sites: int) -> None:
    """The forecast of accuracy follows from the declared number: all rows, or those of six sites, promise too much."""
    files = write_rand_hie(tmp_path, seed=seed, n_sites=n_sites)
    plan = parse_plan(files.plan.read_text())
    tables = {name: read_site_rows(path, plan) for name, path in list(files.train.items())[:n_sites]}
    used = sum(rows.n_records for rows, _ in bound_sites(tables, plan).values())
    assert (plan.privacy.n_records, plan.federation.min_sites) == (used, n_sites)
    shipped = parse_plan(rand_hie_plan_text())
    own = replace(plan.privacy, n_records=shipped.privacy.n_records)
    assert replace(plan, privacy=own, federation=shipped.federation).digest == shipped.digest


def test_the_split_is_seeded() -> None:
    """The same seed gives the same rows, another seed others; a fraction that is none is refused."""
    unit = np.repeat(np.arange(100), 3)
    first = split_by_unit(unit, test_fraction=0.25, seed=1)
    assert first.sum() == 75
    assert np.array_equal(first, split_by_unit(unit, test_fraction=0.25, seed=1))
    assert not np.array_equal(first, split_by_unit(unit, test_fraction=0.25, seed=2))
    with pytest.raises(ValueError, match="test_fraction"):
        split_by_unit(unit, test_fraction=30)


def test_the_table_fits_its_plan(tmp_path: Path) -> None:
    """No category is unknown and no value beyond its public bounds; missing values arrive as missing."""
    plan = parse_plan(rand_hie_plan_text())
    files = write_rand_hie(tmp_path)
    records = concatenate(chunk for path in (*files.train.values(), files.test) for chunk in read_records(path, plan))
    assert records.n_records == 20_190
    n_missing = 0
    for feature, column in zip(plan.features, records.features, strict=True):
        if feature.is_categorical:
            assert not np.isin(column, [UNKNOWN_CATEGORY, MISSING_CATEGORY]).any()
            continue
        assert feature.min is not None and feature.max is not None
        assert feature.min <= np.nanmin(column) and np.nanmax(column) <= feature.max
        assert not feature.integer or np.array_equal(column, np.floor(column))
        n_missing += int(np.isnan(column).sum())
    assert n_missing == 4 + 5223 + 5 + 5


def test_the_label_can_be_learned_but_not_read_off() -> None:
    """Gradient boosting without privacy reaches an AUC near 0.73: a real task, and no column gives the answer away."""
    columns, plan = load_rand_hie(), parse_plan(rand_hie_plan_text())
    is_test = split_by_unit(columns["zper"])
    x = np.column_stack([columns[name].astype(np.float32) for name in plan.feature_names])
    y = columns["visited"]
    model = XGBClassifier(n_estimators=60, max_depth=4, learning_rate=0.15, n_jobs=1).fit(x[~is_test], y[~is_test])
    assert 0.70 < roc_auc_score(y[is_test], model.predict_proba(x[is_test])[:, 1]) < 0.78
