"""`hedgerow evaluate --federated` from files to files: the numbers, the account, the picture."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from hedgerow.cli.main import main
from hedgerow.data.datasets import write_rand_hie
from hedgerow.models.model import Model, save_unless_kept

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the shipped data, and its held-out rows at six sites."""
    place = tmp_path_factory.mktemp("sites")
    files = write_rand_hie(place)
    # For rows: those of one person are spread over the sites below.
    plan = files.plan.read_text(encoding="utf-8").replace('unit = "zper"\nmax_rows_per_unit = 2', 'unit = "record"')
    files.plan.write_text(plan, encoding="utf-8")
    lines = files.test.read_text(encoding="utf-8").splitlines()
    for site in range(6):
        rows = [lines[0], *lines[1 + site :: 6]]
        (place / f"held-{site}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    arguments = ["train", str(files.plan), "--out", str(place / "model.json")]
    assert main(arguments + [f"--site={name}={path}" for name, path in files.train.items()]) == 0
    return place


def evaluate(folder: Path, out: str, *options: str) -> list[str]:
    sites = [f"--site={folder / f'held-{site}.csv'}" for site in range(6)]
    model = str(folder / "model.json")
    return ["evaluate", model, "--federated", *sites, "--out", str(folder / out), "--json", *options]


def test_the_numbers_are_near_those_in_the_clear(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At epsilon 1 all three scores lie within five errors (and the error of ties) of the scores without any noise."""
    capsys.readouterr()
    assert main(["evaluate", str(folder / "model.json"), str(folder / "test.csv"), "--json"]) == 0
    clear = json.loads(capsys.readouterr().out)
    assert main(evaluate(folder, "evaluated.json", "--epsilon", "1")) == 0
    noisy = json.loads(capsys.readouterr().out)
    for name in ("auc", "log_loss", "accuracy"):
        found = noisy["scores"][name]
        assert abs(found["value"] - clear[name]) < 5 * found["noise_error"] + 0.003
    assert abs(noisy["n_records"]["value"] - clear["n_records"]) < 5 * noisy["n_records"]["noise_error"]
    assert noisy["cost"]["epsilon_gdp"] <= 1


def test_the_cost_is_written_into_the_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The written model has the same trees, a longer ledger and a report that still holds; --out keeps the old."""
    assert main(evaluate(folder, "again.json", "--epsilon", "0.2")) == 0
    before, after = Model.load(folder / "model.json"), Model.load(folder / "again.json")
    assert len(after.ledger) == len(before.ledger) + 2
    assert after.report.epsilon > before.report.epsilon and after.report.guarantee == "holds"
    assert after.report.epsilon_requested == before.report.epsilon_requested == 1
    assert "training: 1)" in after.report.text()
    trees, same = (json.loads(model.to_bytes())["ensemble"] for model in (before, after))
    assert trees == same


@pytest.fixture
def locked_saves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that models were written to, each while nobody else could have locked the folder."""
    save, files = Model.save, list[Path]()

    def save_beside_another(model: Model, path: Path) -> None:
        beside = os.open(folder, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(beside, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(beside)
        files.append(path)
        save(model, path)

    monkeypatch.setattr(Model, "save", save_beside_another)
    return files


def test_two_evaluations_at_a_time_lose_no_account(folder: Path, locked_saves: list[Path]) -> None:
    """The second one writes after the first has written, and is refused then: its cost would be all that is counted."""
    assert main(evaluate(folder, "shared.json", "--epsilon", "0.2")) == 0
    assert main(evaluate(folder, "shared.json", "--epsilon", "0.2")) == 2
    assert locked_saves == [folder / "shared.json"]


def test_a_coordinator_writes_as_alone(folder: Path, locked_saves: list[Path]) -> None:
    """Its model's file may be evaluated at the moment when its run ends: of both, the later one asks anew."""
    model, file = Model.load(folder / "model.json"), folder / "alone.json"
    assert save_unless_kept(model, file) and save_unless_kept(model, file)
    assert locked_saves == [file, file]


def test_a_picture_of_the_calibration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A PNG with something on it, also where most bins are lost in the noise, and for people instead of machines."""
    image = pytest.importorskip("matplotlib.image")
    for epsilon in ("1", "0.003"):
        picture = folder / f"curve-{epsilon}.png"
        arguments = [*evaluate(folder, f"drawn-{epsilon}.json", "--epsilon", epsilon), "--plot", str(picture)]
        arguments.remove("--json")
        assert main(arguments) == 0
        assert "AUC" in capsys.readouterr().out
        assert image.imread(picture).std() > 0.05


def test_a_seed_is_no_secret(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Noise from a seed can be repeated, and makes the whole model's guarantee void."""
    found = []
    for _ in range(2):
        (folder / "seeded.json").unlink(missing_ok=True)
        capsys.readouterr()
        assert main(evaluate(folder, "seeded.json", "--epsilon", "1", "--seed", "0", "--no-book")) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert Model.load(folder / "seeded.json").report.guarantee == "void"
    assert main(["evaluate", str(folder / "model.json"), str(folder / "test.csv"), "--seed", "0"]) == 2
