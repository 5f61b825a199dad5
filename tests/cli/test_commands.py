"""The commands, from a plan to predictions, as a person or a script would call them."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.app.cost import describe_trees, model_facts
from hedgerow.app.inputs import parse_sites, read_plan
from hedgerow.app.output import PRIVATE, PRIVATE_MARK
from hedgerow.cli.main import main
from hedgerow.data.site_data import read_site_data
from hedgerow.methods.registry import resolve
from hedgerow.models.model import Model
from tests.builders import make_data, make_plan, train

Run = Callable[..., Any]


def test_train_says_what_it_did(study: Path, sites: list[str], tmp_path: Path, hedgerow: Run) -> None:
    """Sites, model and promise, for a person; the model file carries the same report."""
    out = tmp_path / "model.json"
    said = hedgerow("train", study / "plan.toml", *sites, "--out", out)
    assert "north, south, west" in said
    assert "30 trees" in said
    assert "Privacy guarantee: HOLDS" in said
    assert hedgerow("report", out) in said + "\n"


def test_train_counts_trees_as_privacy_does() -> None:
    """What a model begins and ends with is kept as trees of other depths: they are named beside those of the plan."""
    plan = make_plan("regression", {"n_trees": 7, "max_depth": 3})
    outcome = train(plan, [make_data(plan, 200, seed=1)])
    model = Model(plan, outcome.ensemble, outcome.ledger, outcome.report)
    assert dict(model_facts(plan, resolve(plan)))["max_depth"] == "3"
    n_start = model.ensemble.n_trees - 7
    assert n_start > 0
    assert re.findall(r"\d+", describe_trees(plan, model.ensemble)) == ["7", "3", str(n_start)]
    # Of a run that ended early nobody knows which trees it lacks.
    assert describe_trees(plan, model.ensemble, is_whole=False).startswith(f"{7 + n_start} trees")


def test_train_as_json(study: Path, sites: list[str], tmp_path: Path, hedgerow: Run) -> None:
    """The same for a script; epsilon spent is at most what was asked for."""
    out = tmp_path / "model.json"
    done = hedgerow("train", study / "plan.toml", *sites, "--out", out, "--json")
    assert done["sites"] == ["north", "south", "west"]
    assert done["settings"]["n_trees"] == 30
    assert 3.9 < done["report"]["epsilon_gdp"] <= 4
    assert done["report"]["guarantee"] == "holds"
    assert done["plan_digest"] == Model.load(out).plan.digest


def test_seed_repeats_and_voids(study: Path, sites: list[str], tmp_path: Path, hedgerow: Run) -> None:
    """With a seed, threads and the order of sites do not change a byte; the report says that the guarantee is void."""
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    hedgerow("train", study / "plan.toml", *sites, "--out", files[0], "--seed", "9", "--no-book")
    turned, more = [*sites[2:], *sites[:2]], ["--threads", 2, "--no-book", "--json"]
    done = hedgerow("train", study / "plan.toml", *turned, "--out", files[1], "--seed", 9, *more)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert done["report"]["guarantee"] == "void"


def test_rows_beyond_the_unit_are_left_out(
    study: Path, sites: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every patient has two rows; with one row per patient half of them are left out before training."""
    plan = tmp_path / "plan.toml"
    text = (study / "plan.toml").read_text()
    plan.write_text(text.replace("n_records = 1500", 'n_records = 1500\nunit = "patient"'))
    assert main(["train", str(plan), *sites, "--out", str(tmp_path / "model.json"), "--json"]) == 0
    printed = capsys.readouterr()
    done = json.loads(printed.out)
    assert "left_out" not in printed.out
    said = " ".join(printed.err.split())
    assert said.count("250 of 500 rows used") == said.count("Private") == 3
    assert done["report"]["unit"] == "patient"
    _, report = read_site_data(study / "north.csv", read_plan(str(plan)))
    assert (report.n_dropped, report.unfit) == (250, {})


def test_predict_and_evaluate_agree_with_the_model(study: Path, model: Path, tmp_path: Path, hedgerow: Run) -> None:
    """Classes, probabilities and scores are those of the model file read in Python."""
    table = list(csv.DictReader(io.StringIO((study / "test.csv").read_text())))
    columns = {"age": np.array([float(row["age"]) for row in table]), "ward": np.array([row["ward"] for row in table])}
    expected = Model.load(model).predict_proba(columns)

    printed = list(csv.reader(io.StringIO(hedgerow("predict", model, study / "test.csv", "--proba"))))
    assert printed[0] == ["probability_no", "probability_yes"]
    assert np.array_equal(np.array(printed[1:], dtype=float), expected)

    # Another user's, in a folder of many: predictions belong to the caller alone.
    (tmp_path / "classes.csv.part").write_text("theirs")
    hedgerow("predict", model, study / "test.csv", "--out", tmp_path / "classes.csv")
    assert (tmp_path / "classes.csv.part").read_text() == "theirs"
    with open(tmp_path / "classes.csv") as stream:
        classes = list(csv.reader(stream))
    assert classes[0] == ["predicted_ill"]
    predicted = [row[0] for row in classes[1:]]
    assert hedgerow("predict", model, study / "test.csv", "--json")["predictions"] == predicted
    written = hedgerow("predict", model, study / "test.csv", "--json", "--out", tmp_path / "again.csv")
    assert written["n_rows"] == 500

    scores = hedgerow("evaluate", model, study / "test.csv", "--json")
    truth = [row["ill"] for row in table]
    assert scores["n_records"] == 500
    assert scores["accuracy"] == pytest.approx(np.mean(np.array(predicted) == truth))
    assert scores["auc"] > 0.85
    assert "(chance 0.5)" in hedgerow("evaluate", model, study / "test.csv")


def test_exact_figures_of_private_rows_are_marked(model: Path, study: Path, tmp_path: Path, hedgerow: Run) -> None:
    """Who passes them on knows that no guarantee covers them: wherever a command prints them, and in JSON as well."""
    table, out = study / "test.csv", tmp_path / "out.csv"
    commands = [("evaluate", model, table), ("predict", model, table), ("predict", model, table, "--out", out),
                ("check", study / "plan.toml", table)]  # fmt: skip
    for command in commands:
        said = hedgerow(*command, "--json")
        assert {name: said[name] for name in PRIVATE_MARK} == PRIVATE_MARK
    for command in (commands[0], commands[3]):
        assert PRIVATE in " ".join(hedgerow(*command).split())


def test_a_table_that_cannot_be_read_prints_no_predictions(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A header alone would be taken for the predictions of an empty table."""
    (tmp_path / "other.csv").write_text("size,colour\n1,red\n", encoding="utf-8")
    for table, code in (("absent.csv", "data-file-missing"), ("other.csv", "data-missing-column")):
        assert main(["predict", str(model), str(tmp_path / table)]) == 4
        said = capsys.readouterr()
        assert said.out == "" and code in said.err


def test_an_evaluation_over_sites_tells_of_columns_without_values(
    study: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A site whose export has lost a column hears of it, as `evaluate` says it of one table: its scores mean little."""
    lines = [line.split(",") for line in (study / "north.csv").read_text().splitlines()]
    lost = [lines[0], *([patient, "", ward, ill] for patient, _, ward, ill in lines[1:])]
    (tmp_path / "lost.csv").write_text("".join(",".join(line) + "\n" for line in lost))
    tables = [f"--site=a={study / 'south.csv'}", f"--site=b={tmp_path / 'lost.csv'}"]
    command = ["evaluate", str(model), "--federated", *tables, "--epsilon", "4", "--out", str(tmp_path / "m.json")]
    assert main(command) == 0
    said = " ".join(capsys.readouterr().err.split())
    own = said.partition("for the site b only:")[2]
    n_cells = f"{len(lines) - 1:,}"
    assert f"Missing: {n_cells} of {n_cells} cells of 'age'" in own and said.count("Missing:") == 1


OVER_INPUTS = [
    ("predict MODEL TABLE --out", "MODEL"), ("predict MODEL TABLE --out", "TABLE"),
    ("attack MODEL TABLE --out", "MODEL"), ("attack MODEL TABLE --out", "TABLE"),
    ("export MODEL --out", "MODEL"), ("report MODEL --html", "MODEL"),
    ("evaluate MODEL TABLE --epsilon 1 --out", "TABLE"), ("plan init TABLE --label ill --out", "TABLE"),
    ("recalibrate MODEL TABLE --epsilon 1 --out", "MODEL"), ("recalibrate MODEL TABLE --epsilon 1 --out", "TABLE"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "victim"), OVER_INPUTS)
@pytest.mark.parametrize("way", ["its name", "a link", "a hard link"])
def test_no_command_writes_over_what_it_reads(
    command: str, victim: str, way: str, model: Path, study: Path, tmp_path: Path
) -> None:
    """A table has no copy for its owner to fetch, and a model's account of what was paid is in its file alone."""
    files = {"MODEL": tmp_path / "m.json", "TABLE": tmp_path / "t.csv"}
    for file, own in zip(files.values(), (model, study / "test.csv"), strict=True):
        file.write_bytes(own.read_bytes())
    before = {name: file.read_bytes() for name, file in files.items()}
    link = tmp_path / "link"
    if way == "a link":
        link.symlink_to(files[victim])
    elif way == "a hard link":
        os.link(files[victim], link)
    given = [str(files.get(word, word)) for word in command.split()]
    assert main([*given, str(files[victim] if way == "its name" else link)]) == 2
    assert {name: file.read_bytes() for name, file in files.items()} == before


def test_no_file_takes_the_place_of_a_pipe(model: Path, tmp_path: Path, hedgerow: Run) -> None:
    """A device is written to, as the shell would: /dev/null of a container is there for all its programs."""
    os.mkfifo(pipe := tmp_path / "pipe")
    for command in (["export", model, "--out"], ["report", model, "--html"]):
        with ThreadPoolExecutor() as pool:
            read = pool.submit(pipe.read_bytes)
            hedgerow(*command, pipe)
            assert read.result() and pipe.is_fifo()


def test_labels_are_not_needed_to_predict(model: Path, tmp_path: Path, hedgerow: Run) -> None:
    """A table without the label's column predicts; it does not evaluate."""
    (tmp_path / "new.csv").write_text("ward,age\na,10\nc,\n")
    assert len(hedgerow("predict", model, tmp_path / "new.csv").splitlines()) == 3
    assert main(["evaluate", str(model), str(tmp_path / "new.csv")]) == 4


def test_one_class_has_no_auc(model: Path, tmp_path: Path, hedgerow: Run) -> None:
    """A table of one class has an accuracy but no AUC: null for a script, said in words for a person."""
    (tmp_path / "one.csv").write_text("ward,age,ill\na,10,no\nc,20,no\n")
    assert hedgerow("evaluate", model, tmp_path / "one.csv", "--json")["auc"] is None
    assert "not defined" in hedgerow("evaluate", model, tmp_path / "one.csv")


def test_regression(study: Path, sites: list[str], tmp_path: Path, hedgerow: Run) -> None:
    """A bounded number trains, predicts within its bounds and is scored by RMSE and R²."""
    text = (study / "plan.toml").read_text()
    text = text[: text.index('[[features]]\nname = "age"')] + text[text.index('[[features]]\nname = "ward"') :]
    label = 'name = "age"\ntype = "regression"\nmin = 0\nmax = 100\n'
    (tmp_path / "plan.toml").write_text(text[: text.index('name = "ill"')] + label)
    out = tmp_path / "model.json"
    hedgerow("train", tmp_path / "plan.toml", *sites, "--out", out, "--json")
    scores = hedgerow("evaluate", out, study / "test.csv", "--json")
    assert set(scores) == {"model", "data", *PRIVATE_MARK, "n_records", "rmse", "r2", "predicted", "seen"}
    assert 20 < scores["rmse"] < 35
    values = hedgerow("predict", out, study / "test.csv", "--json")["predictions"]
    assert all(0 <= value <= 100 for value in values)

    held_out = [f"--site=n={study / 'north.csv'}", f"--site=s={study / 'south.csv'}", "--epsilon", "4"]
    found = hedgerow("evaluate", out, "--federated", *held_out, "--json")
    assert set(found["half_widths"]) == {"0.8", "0.9", "0.95"}
    rows = hedgerow("predict", out, study / "test.csv", "--interval", "0.8", "--json")
    assert rows["columns"] == ["predicted_age", "lower_age", "upper_age"]
    for value, lower, upper in rows["predictions"]:
        half = found["half_widths"]["0.8"]
        assert (lower, upper) == (pytest.approx(max(value - half, 0)), pytest.approx(min(value + half, 100)))
    assert "90% interval" in hedgerow("evaluate", out, "--federated", *held_out)


def test_privacy_forecasts_what_training_spends(study: Path, model: Path, hedgerow: Run) -> None:
    """Exchanges, epsilon and settings before a run are those after it; both accountants are told."""
    forecast = hedgerow("privacy", study / "plan.toml", "--json")
    trained = Model.load(model)
    assert forecast["rounds"] == len(trained.ledger) == 30
    assert forecast["numbers_per_node"] == sum(release.length for release in trained.ledger)
    assert forecast["epsilon_gdp"] == pytest.approx(trained.report.epsilon_gdp, rel=1e-4)
    assert forecast["epsilon_gdp"] <= 4 < forecast["epsilon_rdp"]
    said = hedgerow("privacy", study / "plan.toml")
    assert "30 x LeafSums of 16 numbers" in said
    assert "epsilon 4 at delta 1e-06" in said


def test_settings_that_are_shown_can_be_copied() -> None:
    """Whoever copies what `hedgerow privacy` shows trains the same model; what cannot be copied begins with "auto"."""
    opened = {"n_trees": "auto", "max_depth": "auto"}
    for label, n_records in itertools.product(("binary", "multiclass", "regression", "count"), (500, 20_000, 200_000)):
        plan = make_plan(label, opened, {"epsilon": 0.5, "n_records": n_records})
        chosen = resolve(plan)
        facts = dict(model_facts(plan, chosen))
        copied = {name: getattr(chosen, name) for name, text in facts.items() if not text.startswith(("auto", "leave"))}
        assert {"n_trees", "interaction"} <= copied.keys()
        assert resolve(replace(plan, model=replace(plan.model, **copied))) == chosen
        assert facts["learning_rate"].startswith("auto: ") == (chosen.shape_rate > 0)
    plan = make_plan("binary", opened, {"epsilon": 0.5, "n_records": 200_000})
    facts = dict(model_facts(plan, resolve(plan)))
    assert re.findall(r"\d", facts["max_depth"]) == ["4", "5"]
    assert facts["learning_rate"] == (
        "auto: 0.3 of expected values in trees on one numeric feature, 0.4 on several; 0.25 in others"
    )


def test_privacy_warns_of_a_large_delta(study: Path, tmp_path: Path, hedgerow: Run) -> None:
    """A delta of one in the number of records or more protects nobody in particular."""
    text = (study / "plan.toml").read_text()
    (tmp_path / "plan.toml").write_text(text.replace("delta = 1e-06", "delta = 0.01"))
    assert "1 / n_records" in hedgerow("privacy", tmp_path / "plan.toml")
    assert "warning" not in hedgerow("privacy", study / "plan.toml")
    (tmp_path / "plan.toml").write_text(text.replace("epsilon = 4", "epsilon = inf"))
    assert "promises nothing" in hedgerow("privacy", tmp_path / "plan.toml")
    assert hedgerow("privacy", tmp_path / "plan.toml", "--json")["epsilon_gdp"] == "infinite"


def test_a_draft_waits_to_be_filled_in(study: Path, tmp_path: Path, hedgerow: Run) -> None:
    """What is public is for a person to say: as it is drafted, no command takes it for a plan."""
    draft = tmp_path / "draft.toml"
    draft.write_text(hedgerow("plan", "init", study / "north.csv", "--label", "ill"))
    assert main(["privacy", str(draft)]) == 3


def test_export_loads_in_xgboost(study: Path, model: Path, tmp_path: Path, hedgerow: Run) -> None:
    """The exported file is one that XGBoost itself reads."""
    import xgboost

    out = tmp_path / "xgboost.json"
    assert hedgerow("export", model, "--to", "xgboost", "--out", out, "--json")["out"] == str(out)
    booster = xgboost.Booster()
    booster.load_model(out)
    assert booster.num_boosted_rounds() > 0


def test_plot_draws(model: Path, tmp_path: Path, hedgerow: Run) -> None:
    """A picture is written; another ending is refused."""
    hedgerow("plot", model, "--out", tmp_path / "shapes.png")
    assert (tmp_path / "shapes.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", str(model), "--out", str(tmp_path / "shapes.doc")]) == 2


def test_without_out_the_names_are_usual_ones(
    study: Path, sites: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hedgerow: Run
) -> None:
    """Commands work as the documents show them, and a model that has cost privacy is never written over."""
    monkeypatch.chdir(tmp_path)
    hedgerow("train", study / "plan.toml", *sites)
    hedgerow("plot", "model.json")
    hedgerow("export", "model.json")
    assert {path.name for path in tmp_path.iterdir()} == {"model.json", "shapes.png", "model.xgboost.json"}
    trained = (tmp_path / "model.json").read_bytes()
    for more in ([], ["--out", "model.json"]):
        assert main(["train", str(study / "plan.toml"), *sites, *more]) == 2
        assert (tmp_path / "model.json").read_bytes() == trained
    (tmp_path / "damaged.json").write_bytes(trained[:-9])
    assert main(["train", str(study / "plan.toml"), *sites, "--out", "damaged.json"]) == 2


def test_an_evaluation_keeps_the_account_of_the_one_before(
    study: Path, sites: list[str], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model whose evaluation is charged in another file is not evaluated over that file: one charge would be lost."""
    out = tmp_path / "evaluated.json"
    arguments = ["evaluate", str(model), "--federated", *sites, "--epsilon", "0.5", "--out", str(out), "--json"]
    assert main(arguments) == 0
    evaluated = out.read_bytes()
    capsys.readouterr()
    assert main(arguments) == 2
    assert "model-exists" in capsys.readouterr().err and out.read_bytes() == evaluated
    arguments[1] = str(out)
    assert main(arguments) == 0 and len(out.read_bytes()) > len(evaluated)


@pytest.mark.slow
def test_the_demonstration_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hedgerow: Run) -> None:
    """It shows models without privacy beside the private one, and nothing is wider than a terminal of 80 columns.

    What stands under Next can be typed: one line each, with the folder of the program where no PATH leads to it.
    """
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    said = hedgerow("demo", "--out", "my results")
    assert "the same trees without privacy" in said
    assert "XGBoost, pooled, without privacy" in said
    too_wide = [line for line in said.splitlines() if len(line) > 80 and "hedgerow" not in line and "/" not in line]
    assert not too_wide
    commands = said.partition("\nNext\n")[2].strip().splitlines()
    assert len(commands) == 3
    for command in commands:
        program, *words = shlex.split(command)
        assert Path(program).resolve() == (Path(sys.executable).parent / "hedgerow").resolve()
        hedgerow(*words)


def test_site_names() -> None:
    """A name before "=", else the file's own without its ending."""
    sites = parse_sites(["north=data/x.csv", "data/south.csv.gz", "west.parquet", "./a=b/east.csv"])
    assert [(name, str(path)) for name, path in sites.items()] == [
        ("north", "data/x.csv"),
        ("south", "data/south.csv.gz"),
        ("west", "west.parquet"),
        ("east", "a=b/east.csv"),
    ]


def test_a_site_is_not_named_by_the_password_in_its_url() -> None:
    """Names of sites stand in reports and models."""
    urls = ["postgresql://user:canary@host#select a/b from t", "duckdb:///x/north.duckdb#select * from t",
            "postgresql://user:canary@host/south?password=canary#select 1"]  # fmt: skip
    assert list(parse_sites(urls)) == ["database", "north", "south"]


@pytest.mark.slow
def test_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hedgerow: Run, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six real sites, a guarantee that holds, an AUC clearly above chance, and the files that it names.

    It writes over no model, for what one has cost is not forgotten: a folder that was named is refused, and `make demo`
    again keeps what is there.
    """
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "hedgerow-demo"
    folder.mkdir()
    shutil.copy(model, folder / "model.json")
    assert main(["demo", "--out", "hedgerow-demo", "--json"]) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "model-exists" and "--out FOLDER" in error["remedy"]
    assert [file.name for file in folder.iterdir()] == ["model.json"]
    done = hedgerow("demo", "--json")
    assert Path(done["files"]["model"]).read_bytes() != model.read_bytes()
    assert (folder / "model.json.1").read_bytes() == model.read_bytes()
    assert len(done["sites"]) == 6
    assert done["report"]["guarantee"] == "holds"
    assert done["report"]["epsilon_gdp"] <= 1
    assert done["test"]["auc"] > 0.6
    for path in done["files"].values():
        assert Path(path).stat().st_size > 0
    assert "HOLDS" in (folder / "report.txt").read_text()
    # Its owner's own look uses as many rows of a person as the plan does, and says so.
    assert main(["evaluate", str(folder / "model.json"), str(folder / "data" / "test.csv"), "--json"]) == 0
    captured = capsys.readouterr()
    assert "3,464 of 6,022" in captured.err and abs(json.loads(captured.out)["auc"] - done["test"]["auc"]) < 0.03


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    """What JSON cannot say is null or the word infinite, at any depth."""
    from hedgerow.app.output import print_json

    print_json({"a": math.nan, "b": [math.inf, {"c": (1.5, None)}]})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": ["infinite", {"c": [1.5, None]}]}


def test_a_misspelled_label_is_corrected_on_the_command_line(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who drafts a plan has none to ask for again: the columns are listed."""
    assert main(["plan", "init", str(study / "north.csv"), "--label", "Outcome"]) == 4
    said = " ".join(capsys.readouterr().err.split())
    header = (study / "north.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    assert all(repr(name) in said for name in header) and "(data-missing-column, exit code 4)" in said


def test_training_on_nothing_is_no_error(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether a table has a row cannot be seen from whether there is a model; its owner is warned."""
    header = (study / "north.csv").read_text(encoding="utf-8").splitlines()[0]
    (tmp_path / "empty.csv").write_text(header + "\n", encoding="utf-8")
    sites = [f"--site={name}={tmp_path / 'empty.csv'}" for name in ("a", "b", "c")]
    out = tmp_path / "m.json"
    assert main(["train", str(study / "plan.toml"), *sites, "--out", str(out)]) == 0
    assert "site a only: 0 of 0" in " ".join(capsys.readouterr().err.split())
    assert out.exists()
