"""A study from Python: the first example of docs/api.md, in each of the environments that it names."""

from __future__ import annotations

import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.app.environments import Processes, Simulation, Study, make_keys
from hedgerow.app.output import end_log
from hedgerow.errors import EnvironmentFault
from hedgerow.models.model import Model
from hedgerow.plan.plan import parse_plan
from tests.ports import hold_port

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "api.md"
FIRST, OVER_SITES, AT_A_SITE, BESIDE = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.S)
PLAN = """\
version = 1
name = "example"
[privacy]
epsilon = 2
delta = 1e-6
n_records = 360
noise = "server"
[model]
n_trees = 4
structure_seed = 1
[label]
name = "ill"
type = "binary"
classes = [0, 1]
[[features]]
name = "age"
type = "numeric"
min = 0
max = 99
integer = true
"""


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The files that the examples name, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    random = np.random.default_rng(0)
    Path("plan.toml").write_text(PLAN, encoding="utf-8")
    for name in ("north", "south", "west"):
        age = random.integers(0, 100, 120)
        rows = "".join(f"{a},{int(a + random.normal(0, 20) > 50)}\n" for a in age)
        for file in (f"{name}.csv", f"{name}-test.csv"):
            Path(file).write_text(f"age,ill\n{rows}", encoding="utf-8")
    return {name: f"{name}.csv" for name in ("north", "south", "west")}


def test_the_first_example_runs(tables: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Who types the first lines of the page has a model, and reads what it promises."""
    names: dict[str, Any] = {}
    exec(FIRST, names)
    assert Path("model.json").is_file() and names["tables"] == tables
    assert names["result"].sites == ("north", "south", "west")
    assert "epsilon" in capsys.readouterr().out


def test_the_example_beside_a_training_runs(tables: dict[str, str]) -> None:
    """A survey, a preset and an evaluation need no deep import."""
    names: dict[str, Any] = {}
    exec(BESIDE, names)
    assert names["found"].sites == sorted(tables) and Path("model.json").is_file()
    spent, measured = names["result"].report.epsilon, names["measured"]
    assert spent < measured.model.report.epsilon and names["linear"].model.algorithm == "adassp"
    assert list(measured.evaluation.groups["site"]) == sorted(tables) and measured.evaluation.left_out == ()
    # The sites add the noise, whoever added that of the training.
    assert measured.cost.noise_mode == "distributed"
    assert measured.cost.epsilon <= 0.5


def unplaced(model: Model) -> bytes:
    """A model's bytes without where it was made and what else was, all that differs from one place to another."""
    report = replace(model.report, made_in="", evaluated_in=(), n_sites=0, n_drawings=0, account=None)
    return replace(model, report=report).to_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "noise"), [("server", "server"), ("server", ""), ("local", "")])
def test_a_study_measures_the_same_wherever_it_runs(tables: dict[str, str], mode: str, noise: str) -> None:
    """A model gets the same account in a simulation and over processes; with noise of the coordinator, from a seed, the
    same bytes and scores as well. What sites add is theirs: other noise each time.
    """
    study, by = Study(parse_plan(PLAN.replace("server", mode))), () if mode == "local" else ("age", "site")
    model, held_out = study.run(Simulation(tables), seed=7).model, {name: f"{name}-test.csv" for name in tables}
    here, there = (
        study.evaluate(model, place, epsilon=3, noise=noise, by=by, seed=8)
        for place in (Simulation(held_out), Processes(held_out))
    )
    # How fine the second histogram is follows from the first one's noise, and the account's last digits from that.
    assert there.cost.epsilon == pytest.approx(here.cost.epsilon, abs=1e-6)
    groups = [{name: list(own) for name, own in found.evaluation.groups.items()} for found in (there, here)]
    assert groups[0] == groups[1] and there.evaluation.left_out == here.evaluation.left_out
    if noise == "server":
        assert unplaced(there.model) == unplaced(here.model) and there.cost == here.cost
        assert (there.model.report.evaluated_in, here.model.report.evaluated_in) == (("processes",), ("process",))
        # As text: an error that is not estimated is NaN, which equals nothing.
        assert repr(there.evaluation.scores) == repr(here.evaluation.scores)
        missing, same = (found.evaluation.groups["age"]["missing"].scores for found in (there, here))
        assert repr(missing) == repr(same)


@pytest.mark.slow
def test_a_study_makes_the_same_model_wherever_it_runs(tables: dict[str, str]) -> None:
    """A plan that was tried in a simulation is the plan that real sites carry out: same noise, same bytes, same ledger,
    over processes of this machine, and over nodes that dial a coordinator.
    """
    study = Study("plan.toml")
    made = study.run(Simulation(tables), seed=7)
    over_processes = study.run(Processes(tables), seed=7)
    assert over_processes.sites == made.sites
    assert unplaced(over_processes.model) == unplaced(made.model)
    assert (over_processes.report.made_in, made.report.made_in) == ("processes", "process")
    assert all("every row" in each.report.trust for each in (over_processes, made))
    account = over_processes.model.report.account
    assert account is not None and account.n_runs == 2 and math.isinf(account.epsilon)


def test_a_federation_takes_the_same_plan(tables: dict[str, str]) -> None:
    """What the page says that a coordinator and its sites type leads to a model, the simulation's own."""
    make_keys(Path(), dict.fromkeys(tables, Path()))
    held, address = hold_port()
    port = address.rpartition(":")[2]

    def type_at(site: str) -> None:
        Path(f"{site}-policy.toml").write_text(
            f'version = 1\ndata_set = "{site}"\nmax_epsilon = 2.0\ndelta = 1e-6\nnoise = ["server"]\n', encoding="utf-8"
        )
        try:
            exec(AT_A_SITE.replace("north", site).replace("7443", port), {})
        finally:
            end_log()

    with held, ThreadPoolExecutor(len(tables)) as threads:
        sites = [threads.submit(type_at, site) for site in tables]
        names: dict[str, Any] = {}
        seeded = OVER_SITES.replace("7443", port).replace("study.run(", "study.run(seed=7, environment=")
        exec(seeded, names)
        for site in sites:
            site.result()
    made = Study("plan.toml").run(Simulation(tables), seed=7)
    assert Path("model.json").read_bytes() == names["result"].model.to_bytes()
    assert unplaced(names["result"].model) == unplaced(made.model)
    assert names["result"].report.made_in == "network" and "every row" not in names["result"].report.trust


@pytest.mark.parametrize("place", [Simulation, pytest.param(Processes, marks=pytest.mark.slow)])
def test_rows_that_are_lost_end_no_study(
    tables: dict[str, str], place: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether there is a model, or an evaluation, follows from no count of rows; it is the owner who is warned."""
    study = Study("plan.toml")
    lines = Path("south.csv").read_text().splitlines()
    Path("south.csv").write_text("\n".join([lines[0], *(f"x{line}" for line in lines[1:])]))
    model = study.run(place(tables), seed=7).model
    said = " ".join(capsys.readouterr().err.split())
    assert "site south only: 0" in said
    assert study.evaluate(model, place(tables), epsilon=1).cost.epsilon <= 1


def test_a_node_that_ends_ends_the_study(tables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which one, and does not wait for that site as long as the plan allows."""
    monkeypatch.setattr("hedgerow.app.environments.sys.executable", "/bin/false")
    with pytest.raises(EnvironmentFault) as ended:
        Study("plan.toml").run(Processes(tables))
    assert ended.value.code == "node-process"
