"""S-GBDT from the command line: what a plan costs, and a run that a seed repeats."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from hedgerow.cli.main import main

PLAN = """version = 1
[model]
algorithm = "s-gbdt"
n_trees = 6
max_depth = 2
[s_gbdt]
subsampling_ratio = 0.3
extra_rounds = 3
[privacy]
epsilon = 1
delta = 1e-5
n_records = 120
[[features]]
name = "age"
type = "numeric"
min = 0
max = 100
[label]
name = "ill"
type = "binary"
classes = [0, 1]
"""


@pytest.fixture
def sites(tmp_path: Path) -> list[str]:
    (tmp_path / "plan.toml").write_text(PLAN)
    source, given = random.Random(1), []
    for site in ("north", "south", "west"):
        rows = [f"{age},{int(source.random() < age / 100)}\n" for age in (source.randint(0, 99) for _ in range(40))]
        (tmp_path / f"{site}.csv").write_text("age,ill\n" + "".join(rows))
        given.append(f"--site={site}={tmp_path / f'{site}.csv'}")
    return given


def test_a_seed_repeats_a_run_and_none_does_not(
    sites: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --seed the samples are seeded too; without one the guarantee holds, and the next run is another."""
    plan, models = str(tmp_path / "plan.toml"), []
    for name, more in (("a", ["--seed", "3"]), ("b", ["--seed", "3"]), ("c", []), ("d", [])):
        out = tmp_path / f"{name}.json"
        assert main(["train", plan, *sites, *more, "--out", str(out), "--no-book"]) == 0
        models.append(out.read_bytes())
    assert models[0] == models[1] and models[2] != models[3]
    said = capsys.readouterr().out
    assert "Renyi" in said and "10 trees" in said
    assert [json.loads(model)["report"]["guarantee"] for model in models] == ["void", "void", "holds", "holds"]


def test_the_cost_of_a_plan_is_known_beforehand(
    sites: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`hedgerow privacy` runs the plan on sums of nothing: what it says is what a run then spends."""
    plan = str(tmp_path / "plan.toml")
    assert main(["privacy", plan, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rounds"] == 10 and 0.99 < told["epsilon_gdp"] <= 1
    assert {"kind": "SampledLeafSums", "count": 9, "length": 8} in told["queries"]
    assert main(["train", plan, *sites, "--out", str(tmp_path / "m.json")]) == 0
    report = json.loads((tmp_path / "m.json").read_bytes())["report"]
    # What is planned is charged by its largest sensitivities together, and what was released one by one.
    assert report["epsilon_gdp"] == pytest.approx(told["epsilon_gdp"], rel=1e-6)
    assert main(["privacy", plan]) == 0
    assert "Renyi accounting" in " ".join(capsys.readouterr().out.split())
