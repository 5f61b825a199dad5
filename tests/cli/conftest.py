"""A small study: three sites' tables, a plan, a test table."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hedgerow.app import output
from hedgerow.cli.main import main
from tests.wards import plan_text


@pytest.fixture(scope="module", autouse=True)
def one_day() -> Iterator[None]:
    """What is printed says the day, and is compared with what was printed before: all of it is of one."""
    day = time.gmtime()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "time", SimpleNamespace(strftime=time.strftime, gmtime=lambda: day))
        yield


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plan.toml, north.csv, south.csv, west.csv (500 rows each, two per patient) and test.csv."""
    folder = tmp_path_factory.mktemp("study")
    plan = plan_text(
        3, name="wards", categories="abc", classes=["no", "yes"], model={"n_trees": 30, "max_depth": 3},
        privacy={"epsilon": 4, "n_records": 1500}, federation={"min_sites": 2},
    )  # fmt: skip
    (folder / "plan.toml").write_text(plan)
    generator = np.random.default_rng(4)
    for name in ("north", "south", "west", "test"):
        age = generator.uniform(0, 100, 500)
        ward = generator.choice(["a", "b", "c"], 500)
        ill = np.where(age + 30 * (ward == "c") + generator.normal(0, 10, 500) > 60, "yes", "no")
        with open(folder / f"{name}.csv", "w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["patient", "age", "ward", "ill"])
            writer.writerows(zip((f"{name}{i // 2}" for i in range(500)), age, ward, ill, strict=True))
    return folder


@pytest.fixture
def hedgerow(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command that must succeed; with --json its object, else what it printed on stdout."""

    def run(*arguments: str | Path) -> Any:
        capsys.readouterr()
        exit_code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert exit_code == 0, printed.err
        if "--json" in arguments:
            assert not printed.err
            return json.loads(printed.out)
        return printed.out

    return run


@pytest.fixture(scope="session")
def sites(study: Path) -> list[str]:
    """The arguments that name the three sites."""
    return [text for name in ("north", "south", "west") for text in ("--site", str(study / f"{name}.csv"))]


@pytest.fixture(scope="session")
def model(study: Path, sites: list[str]) -> Path:
    """A model trained with the system's noise."""
    out = study / "model.json"
    assert main(["train", str(study / "plan.toml"), *sites, "--out", str(out), "--json"]) == 0
    return out
