"""The budget book of commands over tables of this machine: one account for all of them, beside the data."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hedgerow.app import accounts
from hedgerow.cli.main import main
from hedgerow.client.budget import BOOK, RESERVED, BudgetBook, compose_epsilon
from hedgerow.local.accounts import VARIABLE, Account, BookStore, RunFacts
from hedgerow.models.model import Model
from hedgerow.privacy.events import GaussianEvent, scope_events
from tests.wards import plan_text

Run = Callable[..., Any]
PLAN = plan_text(
    1,
    name="wards",
    categories=(),
    classes=("no", "yes"),
    model={"n_trees": 2, "max_depth": 2},
    privacy={"n_records": 1000},
    federation={"min_sites": 1},
)


@pytest.fixture
def ward(study: Path, tmp_path: Path) -> Path:
    """A folder with a plan and tables, and no book."""
    folder = tmp_path / "ward"
    folder.mkdir()
    (folder / "plan.toml").write_text(PLAN)
    for name in ("north", "south", "test"):
        shutil.copy(study / f"{name}.csv", folder)
    return folder


def read_total(folder: Path, hedgerow: Run, data_set: str = "") -> float:
    """The epsilon of an account, as `hedgerow ledger FOLDER` has it."""
    found = hedgerow("ledger", folder, "--json")["data_sets"]
    return float({each["data_set"]: each["epsilon"] for each in found}[data_set])


def compose(*ledgers: Any) -> float:
    """The cost of releases together, read from models and not from the book."""
    events = [event for number, own in enumerate(ledgers) for event in scope_events(own, str(number))]
    return compose_epsilon(events, 1e-6)


def test_all_commands_over_a_folder_add_up(ward: Path, hedgerow: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Trainings, evaluations, recalibrations and surveys are one account, and each report says what it holds."""
    plan, table, models = ward / "plan.toml", ward / "north.csv", [ward / "one.json", ward / "two.json"]
    for count, model in enumerate(models, 1):
        report = hedgerow("train", plan, "--site", table, "--out", model, "--json")["report"]
        assert report["account"]["n_runs"] == count and report["account"]["place"] == BOOK
    costs = [list(Model.load(str(model)).ledger.events()) for model in models]
    assert report["account"]["epsilon"] == pytest.approx(compose(*costs), rel=1e-9) == pytest.approx(1.4547, rel=1e-3)
    hedgerow("evaluate", models[0], ward / "test.csv", "--epsilon", "0.3", "--json")
    costs.append(list(Model.load(str(models[0])).ledger.events())[len(costs[0]) :])
    other = ward / "other.json"
    hedgerow("recalibrate", models[1], ward / "south.csv", "--epsilon", "0.2", "--out", other, "--json")
    costs.append(list(Model.load(str(other)).ledger.events())[len(costs[1]) :])
    assert read_total(ward, hedgerow) == pytest.approx(compose(*costs), rel=1e-9)
    out = ward / "found"
    asked = ["--label", "ill", "--schema", plan, "--epsilon", "4", "--out", out]
    survey = hedgerow("survey", ward / "south.csv", *asked, "--json")
    assert survey["report"]["account"]["n_runs"] == 5
    before = read_total(ward, hedgerow)
    # The plan that the survey wrote names its releases, which the book has: they are not charged a second time.
    third = ward / "three.json"
    hedgerow("train", out / "plan.toml", "--site", ward / "south.csv", "--out", third, "--json")
    assert before < read_total(ward, hedgerow)
    events = list(Model.load(str(third)).ledger.events())
    assert read_total(ward, hedgerow) == pytest.approx(compose(*costs, events), rel=1e-9)
    assert main(["report", str(third)]) == 0
    assert "6 runs" in " ".join(capsys.readouterr().out.split())


def test_a_survey_of_another_book_is_charged_with_the_training(ward: Path, tmp_path: Path, hedgerow: Run) -> None:
    """Releases that a plan was made of count in the book of its training, unless that has them."""
    out = tmp_path / "found"
    asked = ["--label", "ill", "--schema", ward / "plan.toml", "--epsilon", "4", "--out", out]
    hedgerow("survey", ward / "south.csv", *asked, "--book", tmp_path / "other.db", "--json")
    model = ward / "model.json"
    hedgerow("train", out / "plan.toml", "--site", ward / "south.csv", "--out", model, "--json")
    assert read_total(ward, hedgerow) == pytest.approx(compose(Model.load(str(model)).ledger.events()), rel=1e-9)


def test_a_data_set_that_is_named_has_an_account_of_its_own(
    ward: Path, hedgerow: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """The owner's name chooses the account, however it is typed; a name that is nearly another is warned of."""
    run = ["train", ward / "plan.toml", "--site", ward / "north.csv", "--json", "--data-set"]
    assert hedgerow(*run, "wards 2019-2024", "--out", ward / "1.json")["report"]["account"]["n_runs"] == 1
    assert hedgerow(*run, "Wards  2019–2024.", "--out", ward / "2.json")["report"]["account"]["n_runs"] == 2
    assert hedgerow(*run, "births", "--out", ward / "3.json")["report"]["account"]["n_runs"] == 1
    assert main([*map(str, run), "wards 2019-2025", "--out", str(ward / "4.json")]) == 0
    assert "wards 2019-2024" in capsys.readouterr().err


def test_tables_of_two_folders_are_charged_in_both(ward: Path, tmp_path: Path, hedgerow: Run) -> None:
    """A run over two folders counts for the rows of each, whichever folder is used next."""
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(ward / "south.csv", other)
    sites = ["--site", ward / "north.csv", "--site", other / "south.csv"]
    hedgerow("train", ward / "plan.toml", *sites, "--out", ward / "1.json", "--json")
    assert read_total(ward, hedgerow) == read_total(other, hedgerow) > 0


@pytest.mark.parametrize("kind", ["duckdb", "sqlite", "SQLite+pysqlite"])
@pytest.mark.parametrize("name", ["rows.db", "a#1.db"])
def test_the_file_of_a_database_is_charged_beside_itself(
    ward: Path, tmp_path: Path, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file has one account, that of its folder, however its URL is written and wherever the output goes."""
    for out in ("one", "two"):
        (tmp_path / out).mkdir()
    (tmp_path / "link.db").symlink_to(ward / name)
    (ward / name).touch()
    monkeypatch.chdir(tmp_path)
    query = "#select age, ill from t where age < 3 # 4"
    urls = [f"{kind}:///{place}" for place in (ward / name, f"ward/{name}", tmp_path / "link.db")]
    if kind != "duckdb":
        pytest.importorskip("sqlalchemy")
        urls += [f"{kind}:///file:{ward}/{name.replace('#', '%23')}?mode=ro&uri=true", f"{urls[0]}?timeout=9"]
    for out in ("one", "two"):
        for url in urls:
            account = accounts.open_account(accounts.AccountOptions(), [url + query], tmp_path / out / "1.json")
            assert [store.path for store in account.stores if isinstance(store, BookStore)] == [ward.resolve() / BOOK]


@pytest.mark.parametrize(
    "url", ["postgresql://host/rows#select 1", "sqlite://#select 1", "duckdb:///:memory:#select 1"]
)
def test_a_database_without_a_file_is_charged_beside_the_output(url: str, tmp_path: Path) -> None:
    """A server's rows have no folder here."""
    account = accounts.open_account(accounts.AccountOptions(), [url], tmp_path / "1.json")
    assert [store.path for store in account.stores if isinstance(store, BookStore)] == [tmp_path.resolve() / BOOK]


def test_no_book_has_to_be_typed_and_stands_in_the_report(ward: Path, hedgerow: Run) -> None:
    """Whoever keeps no account says so to each reader of the report."""
    run = ["train", ward / "plan.toml", "--site", ward / "north.csv", "--out", ward / "1.json", "--no-book"]
    assert "--no-book" in hedgerow(*run)
    assert not (ward / BOOK).exists()


def test_where_the_data_take_no_book_it_stands_beside_the_output(
    ward: Path, tmp_path: Path, hedgerow: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A read-only folder of tables costs no charge: the owner is told where the book is, or asked for one."""
    kept, out = ward.resolve(), tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(accounts, "_takes_book", lambda place: place.parent != kept)
    run = ["train", str(ward / "plan.toml"), "--site", str(ward / "north.csv")]
    assert main([*run, "--out", str(out / "1.json")]) == 0
    assert BOOK in "".join(capsys.readouterr().err.split())
    assert read_total(out, hedgerow) > 0
    assert main([*run, "--out", str(ward / "2.json")]) == 2
    assert "--no-book" in capsys.readouterr().err and not (ward / "2.json").exists()
    assert main(["survey", str(ward / "north.csv"), "--epsilon", "1"]) == 2


def test_a_book_that_is_there_is_used_even_if_it_cannot_be_written(
    ward: Path, tmp_path: Path, hedgerow: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was closed after some runs does not begin another account beside the output."""
    run = ["train", ward / "plan.toml", "--site", ward / "north.csv"]
    hedgerow(*run, "--out", ward / "1.json")
    monkeypatch.setattr(accounts, "_takes_book", lambda place: place.parent != ward.resolve())
    (tmp_path / "out").mkdir()
    hedgerow(*run, "--out", tmp_path / "out" / "2.json")
    assert not (tmp_path / "out" / BOOK).exists()
    account = Model.load(tmp_path / "out" / "2.json").report.account
    assert account is not None and account.n_runs == 2


def test_another_book_beside_the_data_is_named(
    ward: Path, tmp_path: Path, hedgerow: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command says which books it does not add up: a node's over the same rows, or the folder's beside --book."""
    run = ["train", str(ward / "plan.toml"), "--site", str(ward / "north.csv")]
    (ward / "north-budget.db").touch()
    assert main([*run, "--out", str(ward / "1.json")]) == 0
    assert "north-budget.db" in "".join(capsys.readouterr().err.split())
    assert main([*run, "--out", str(ward / "2.json"), "--book", str(tmp_path / "new.db")]) == 0
    said = "".join(capsys.readouterr().err.split())
    assert "north-budget.db" in said and BOOK in said


def test_a_command_that_a_budget_started_is_counted_in_it(
    ward: Path, tmp_path: Path, hedgerow: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that calls a command within a limit is refused what does not fit, and no model is made."""
    book = tmp_path / "budget.db"
    monkeypatch.setenv(VARIABLE, json.dumps([{"path": str(book), "epsilon": 1.2, "delta": 1e-6}]))
    run = ["train", str(ward / "plan.toml"), "--site", str(ward / "north.csv")]
    assert main([*run, "--out", str(ward / "1.json")]) == 0
    assert main([*run, "--out", str(ward / "2.json")]) == 6 and not (ward / "2.json").exists()
    assert len(BookStore(book).lines("")) == 2


def test_a_damaged_book_ends_each_command_before_it_reads_a_row(
    ward: Path, hedgerow: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """One clear error, the same whatever the rows are, and no file."""
    hedgerow("train", ward / "plan.toml", "--site", ward / "north.csv", "--out", ward / "1.json", "--no-book")
    (ward / BOOK).write_text("no database")
    (ward / BOOK).chmod(0o600)
    before = {path.name: path.read_bytes() for path in ward.iterdir()}
    table, model = str(ward / "north.csv"), str(ward / "1.json")
    for command in (
        ["train", str(ward / "plan.toml"), "--site", table, "--out", str(ward / "2.json")],
        ["evaluate", model, table, "--epsilon", "1"],
        ["recalibrate", model, table, "--epsilon", "1", "--out", str(ward / "2.json")],
        ["survey", table, "--epsilon", "1"],
    ):
        assert main(command) == 10
        said = " ".join(capsys.readouterr().err.split())
        # It would count from zero if it were only moved away.
        assert "database-damaged" in said and "hedgerow node restore" in said and "--lost" in said
    assert {path.name: path.read_bytes() for path in ward.iterdir()} == before


def test_a_run_that_was_killed_is_seen_and_counted(ward: Path, hedgerow: Run) -> None:
    """`hedgerow ledger` shows it as reserved, at all that it might have released, and the next report counts it."""
    opened = Account([BookStore(ward / BOOK)]).open_run(RunFacts("killed"), [GaussianEvent(2.0)])
    opened.__enter__()
    (found,) = hedgerow("ledger", ward, "--json")["data_sets"]
    assert [run["status"] for run in found["runs"]] == [RESERVED] and found["epsilon"] > 2
    run = ["train", ward / "plan.toml", "--site", ward / "north.csv", "--out", ward / "1.json", "--json"]
    assert hedgerow(*run)["report"]["account"]["epsilon"] > found["epsilon"]
    number = found["runs"][0]["run_id"][:12]
    hedgerow("ledger", ward, "--close", number)
    with contextlib.closing(BudgetBook(ward / BOOK)) as book:
        assert book.lines()[0].events == (GaussianEvent(2.0),)


def test_what_is_charged_does_not_follow_from_rows(ward: Path, hedgerow: Run) -> None:
    """A row more, or one that does not fit, leaves book and report as they are, but for names of runs and times."""
    described = []
    for more in ("", "p,50,a,no\n", "p,50,a,maybe\n"):
        with contextlib.suppress(FileNotFoundError):
            (ward / BOOK).unlink()
        table = ward / "rows.csv"
        table.write_text((ward / "north.csv").read_text() + more)
        out = ward / f"{len(described)}.json"
        run = ["train", ward / "plan.toml", "--site", f"a={table}", "--out", out, "--json"]
        assert main([*map(str, run)]) == 0
        content = hedgerow("ledger", ward, "--json")
        for run in content["data_sets"][0]["runs"]:
            del run["run_id"], run["begun"]
        described.append(json.dumps(content))
    # The seed of the trees is drawn for each run, and stands in no book.
    assert len(set(described)) == 1
