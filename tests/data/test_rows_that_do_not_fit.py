"""A row that does not fit is left out, whole and unseen by others; the operator is told how many, and may refuse."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hedgerow.app import inputs
from hedgerow.app.rows import make_loader, make_raw_loader, open_arrivals
from hedgerow.cli.main import main
from hedgerow.client.node import Node
from hedgerow.client.setup import NodeSetup, limit_rows
from hedgerow.data.binned import SiteData
from hedgerow.data.raw_cells import read_raw
from hedgerow.data.site_data import read_site_data, site_data_from_records
from hedgerow.data.sources import read_records
from hedgerow.data.units import records_from_columns
from hedgerow.errors import DataError
from hedgerow.local.survey import list_asked_columns
from hedgerow.local.training import evaluate_federated, train
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import Feature, Plan, parse_plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.survey.requests import OpenTable
from tests.builders import make_data, make_plan
from tests.wards import plan_text

HEADER = "person,age,ward,ill"
GOOD = [f"p{number % 7},{20 + number},{'ab'[number % 2]},{number % 2}" for number in range(40)]

TextOf, PlanOf = Callable[..., str], Callable[..., Plan]
PERSONS = {"unit": "person", "max_rows_per_unit": 3}


@pytest.fixture(scope="session")
def text_of() -> TextOf:
    """A plan's text, with persons as its units unless `privacy` says otherwise."""

    def text_of(privacy: dict[str, Any] = PERSONS, **columns: Any) -> str:
        model = {"n_trees": 3, "max_depth": 2, "structure_seed": 1}
        return plan_text(1, model=model, privacy=privacy, federation={"min_sites": 1}, **columns)

    return text_of


@pytest.fixture(scope="session")
def parsed_plan(text_of: TextOf) -> PlanOf:
    """The plan of such a text."""
    return lambda *arguments, **named: parse_plan(text_of(*arguments, **named))


def table(path: Path, rows: list[str | bytes], header: str = HEADER) -> Path:
    lines = [row if isinstance(row, bytes) else row.encode() for row in [header, *rows]]
    content = b"\n".join(lines) + b"\n"
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


UNFIT: list[tuple[str | bytes, str]] = [
    ("p3,30,a,2", "data-label-outside"),
    ("p3,30,a,", "data-label-missing"),
    ("p3,30,a,NaN", "data-label-missing"),
    ("p3,old,a,1", "data-wrong-type"),
    ('p3,"1,5",a,1', "data-wrong-type"),
    (",30,a,1", "data-unit-missing"),
    ("NA,30,a,1", "data-unit-missing"),
    ("p3,30,a", "data-ragged-row"),
    ("p3,30,a,1,x", "data-ragged-row"),
    (b"p3,30,\xe9,1", "data-encoding"),
    (b"p3,\xe9,a,1", "data-encoding"),
    (b"\xff,30,a,1", "data-encoding"),
    (b"p3,30,a,\xe9", "data-encoding"),
]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize(("row", "code"), UNFIT)
@pytest.mark.parametrize("at", [0, 17, 40])
def test_a_row_that_does_not_fit_changes_nothing_but_its_own_count(
    parsed_plan: PlanOf, tmp_path: Path, name: str, row: str | bytes, code: str, at: int
) -> None:
    """Wherever it stands, the site holds the very rows that it holds without it; its operator is told the cause."""
    plan = parsed_plan()
    without, told_before = read_site_data(table(tmp_path / name, [*GOOD]), plan)
    with_it, told = read_site_data(table(tmp_path / name, [*GOOD[:at], row, *GOOD[at:]]), plan)
    assert (with_it.codes == without.codes).all() and (with_it.labels == without.labels).all()
    assert with_it.codes.shape == without.codes.shape
    assert told.unfit == {code: 1}
    assert (told.n_units, told.n_dropped, told.n_rows) == (told_before.n_units, told_before.n_dropped, 40)


@pytest.mark.parametrize(("row", "code"), UNFIT)
def test_a_site_may_refuse_instead(parsed_plan: PlanOf, tmp_path: Path, row: str | bytes, code: str) -> None:
    """Who wants to hear of every such row can: the first one is an error that names it."""
    with pytest.raises(DataError) as caught:
        list(read_records(table(tmp_path / "t.csv", [*GOOD, row]), parsed_plan()))
    assert caught.value.code == code and "data row 41" in caught.value.what


def test_many_rows_that_do_not_fit_are_counted_once_each(parsed_plan: PlanOf, tmp_path: Path) -> None:
    """A row with several faults is one row; chunks do not matter."""
    rows = [row for row, _ in UNFIT] * 3 + [",old,a,7"] * 5 + GOOD
    plan, left_out = parsed_plan(), dict[str, int]()
    path = table(tmp_path / "t.csv", rows)
    n_records = sum(chunk.n_records for chunk in read_records(path, plan, chunk_rows=4, left_out=left_out))
    assert n_records == len(GOOD)
    assert sum(left_out.values()) == 3 * len(UNFIT) + 5


def test_one_long_row_does_not_keep_a_site_out(parsed_plan: PlanOf, tmp_path: Path) -> None:
    """A row may hold a book: the rows before and after it are what they are without it, and it counts as any other."""
    header = f"{HEADER},note"
    rows: list[str | bytes] = [f"{row},short" for row in GOOD] * 3
    rows[20:20] = ["p1,30,a,1", "p1,30,a,7,no class"]
    long = f'p1,30,a,1,"{"x" * 5_000_000}"'
    before, told = read_site_data(table(tmp_path / "a.csv", rows, header), parsed_plan({}))
    after, told_after = read_site_data(
        table(tmp_path / "b.csv", [*rows[:60], long, *rows[60:]], header), parsed_plan({})
    )
    assert (np.delete(after.codes, 58, axis=1) == before.codes).all() and after.n_records == before.n_records + 1
    assert told.unfit == told_after.unfit == {"data-ragged-row": 1, "data-label-outside": 1}


BLANK_ROWS: list[str | bytes] = [
    " " * 2**20 + ",30,a,1", " " * (5 * 2**20), "\n" * 2**20, " " * 2**20, "\t" * 2**20 + "p1,30,a,1", " \n" * 2**19,
]  # fmt: skip


# Half a million rows take seconds to read, and the compressed table's are read as the other's are.
BLANK_TABLES = [(name, row) for name in ("t.csv", "t.csv.gz") for row in BLANK_ROWS]
BLANK_TABLES.remove(("t.csv", BLANK_ROWS[-1]))


@pytest.mark.parametrize(("name", "row"), BLANK_TABLES)
def test_a_row_of_blanks_hides_no_other(parsed_plan: PlanOf, tmp_path: Path, name: str, row: str) -> None:
    """A megabyte of blanks in the first row, or before it, does not pass for a table without rows."""
    plan = parsed_plan({})
    before, _ = read_site_data(table(tmp_path / name, [*GOOD]), plan)
    after, _ = read_site_data(table(tmp_path / name, [row, *GOOD]), plan)
    assert (after.codes[:, -40:] == before.codes).all() and after.n_records - 40 in (0, 1)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n\n"])
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_a_header_alone_is_a_table_without_rows(parsed_plan: PlanOf, tmp_path: Path, name: str, end: str) -> None:
    """However the header ends: with a line's end, without one, with empty lines after it."""
    content = (HEADER + end).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_site_data(tmp_path / name, parsed_plan())[0].n_records == 0


RAGGED: list[str | bytes] = [
    "1," * 2_500_000, "x" * 5_000_000, "p,30,a,1," + "é" * 3_000_000, b"\xff" * 5_000_000, b"\xff,1", b"p,\xe9,a,1,",
    'p"q\x0cr,1', 'p"q\u2028r,1', 'p"q\x85\x1c\x0b,1,2,3,4,5',
    b"\xff" * 17_000_000, 'p1,30,"a,1', '"p1,30,a,1', 'p1,"30,a"b,"',
]  # fmt: skip


@pytest.mark.parametrize("row", RAGGED)
@pytest.mark.parametrize("at", [0, 17, 40])
def test_no_ragged_row_makes_a_site_refuse(parsed_plan: PlanOf, tmp_path: Path, row: str | bytes, at: int) -> None:
    """However long it is, and whatever bytes and quotation marks it holds."""
    plan = parsed_plan()
    before, _ = read_site_data(table(tmp_path / "t.csv", [*GOOD]), plan)
    after, told = read_site_data(table(tmp_path / "t.csv", [*GOOD[:at], row, *GOOD[at:]]), plan)
    assert (after.codes == before.codes).all() and after.codes.shape == before.codes.shape
    assert told.unfit == {"data-ragged-row": 1}


def test_cells_are_read_as_the_bytes_that_they_are(parsed_plan: PlanOf, tmp_path: Path) -> None:
    """Letters beyond ASCII, a byte order mark before the header, bytes that are no UTF-8 beside them."""
    plan = parsed_plan({}, categories=["é", "日本", "ÿ", "a"])
    rows = ["p,1,é,1", "p,2,日本,0", b"p,3,\xe9,1", "p,4,ÿ,0", "ü,5,a,1", "p,6,ñ,0"]
    header = '\ufeff"note of ü",person,age,ward,ill'
    found, told = read_site_data(
        table(tmp_path / "t.csv", [b"x," + (row if isinstance(row, bytes) else row.encode()) for row in rows], header),
        plan,
    )
    plain = {"person": ["p"] * 5, "age": [1, 2, 4, 5, 6], "ward": ["é", "日本", "ÿ", "a", "ñ"], "ill": [1, 0, 0, 1, 0]}
    expected = site_data_from_records([records_from_columns(plain, plan)], plan)[0]
    assert (found.codes == expected.codes).all() and found.labels.tolist() == expected.labels.tolist()
    assert told.unfit == {"data-encoding": 1}


def test_parquet_rows_that_do_not_fit_are_left_out(parsed_plan: PlanOf, tmp_path: Path) -> None:
    """A label outside the plan and a missing identifier in a typed file."""
    columns = {
        "person": pa.array([1.0, None, 2.0**53, 3.0, 4.0]),
        "age": pa.array([1, 2, 3, 4, None]),
        "ward": pa.array([b"a", b"b", b"a", b"\xff", b"a"]),
        "ill": pa.array([0, 1, 0, 1, 1], pa.int8()),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    rows, report = read_site_data(tmp_path / "t.parquet", parsed_plan())
    assert rows.labels.tolist() == [0, 1]
    assert report.unfit == {"data-unit-missing": 2, "data-encoding": 1}


ODD_CELLS: dict[str, Any] = {
    "list": [1, 2], "no elements": [], "record": {"a": 1}, "duration": timedelta(1), "time": time(1, 2),
    "date": date(2001, 1, 1), "moment": datetime(2001, 1, 1), "number": 5, "bytes": b"\xff", "text": "a", "truth": True,
}  # fmt: skip


@pytest.mark.parametrize("cell", ODD_CELLS.values(), ids=ODD_CELLS)
@pytest.mark.parametrize("column", ["person", "age", "ward", "ill"])
def test_the_only_cell_of_a_parquet_column_decides_about_its_own_row(
    parsed_plan: PlanOf, tmp_path: Path, column: str, cell: Any
) -> None:
    """Its type is the column's, which has none without it: no site refuses because of it, and a survey asks alike."""
    plan, path = parsed_plan() if column == "person" else parsed_plan({}), tmp_path / "t.parquet"
    asked, held = list[Any](), list[SiteData]()
    for cells in ([None] * 4, [None] * 4 + [cell]):
        n = len(cells)
        columns = {"person": list("abcde")[:n], "age": list(range(n)), "ward": ["a"] * n, "ill": [1] * n}
        pq.write_table(pa.table({name: pa.array(own) for name, own in {**columns, column: cells}.items()}), path)
        held.append(read_site_data(path, plan)[0])
        asked.append(list_asked_columns({"a": path}, {}, ()))
        assert read_raw(path, asked[0][0]).n_rows == n
    before, after = held
    assert asked[0] == asked[1] and after.n_records <= before.n_records + 1
    assert (after.codes[:, : before.n_records] == before.codes).all()


def read_in_vain(plan: Plan, folder: Path, kind: str) -> SiteData:
    """The rows of a table of which no row fits, or that has none."""
    if kind == "parquet":
        empty = {name: pa.array([], pa.string()) for name in HEADER.split(",")}
        pq.write_table(pa.table(empty), folder / "t.parquet")
        return read_site_data(folder / "t.parquet", plan)[0]
    if kind == "query":
        pytest.importorskip("sqlalchemy")
        return make_loader(f"sqlite:///{folder}/t.db#select 1 person, 2 age, 3 ward, 0 ill where 1 = 0")(plan)
    rows: list[str | bytes] = {"header": [], "header and empty lines": ["", ""], "nothing fits": ["p,1,a,9", "x"]}[kind]
    return read_site_data(table(folder / "t.csv", rows), plan)[0]


@pytest.mark.parametrize("kind", ["header", "header and empty lines", "nothing fits", "parquet", "query"])
def test_a_site_without_rows_takes_part_with_zeros(parsed_plan: PlanOf, tmp_path: Path, kind: str) -> None:
    """If it refused, whether there is a model would tell of one row whether it is in the table."""
    plan = parsed_plan()
    rows = read_in_vain(plan, tmp_path, kind)
    assert rows.n_records == 0
    node = Node("empty", rows, plan, resolve(plan))
    program = program_for(plan)
    query = next(program)
    for _ in range(3):
        assert not node.answer(query).any()
        try:
            query = program.send(np.zeros(query.release_length, dtype=np.int64))
        except StopIteration:
            break


ALGORITHMS: list[tuple[str, dict[str, Any]]] = [
    ("binary", {}),
    ("binary", {"split_method": "hist"}),
    ("binary", {"split_method": "partially_random"}),
    ("binary", {"split_candidates": "iterative_hessian"}),
    ("binary", {"split_candidates": "quantile"}),
    ("multiclass", {}),
    ("regression", {}),
    ("binary", {"algorithm": "adassp"}),
    ("regression", {"algorithm": "s-gbdt"}),
    ("binary", {"algorithm": "dp-xgboost"}),
]


@pytest.mark.parametrize(("label", "model"), ALGORITHMS)
def test_every_algorithm_bears_a_site_without_rows(label: str, model: dict[str, Any]) -> None:
    """A site without rows is a site like any other; the model is that of the others' rows."""
    table = make_plan(label).to_dict()
    sizes = {} if model.get("algorithm") == "adassp" else {"n_trees": 3, "max_depth": 2, "structure_seed": 1}
    plan = Plan.from_dict({**table, "model": {**model, **sizes}})
    full, some = make_data(plan, 60, 1), make_data(plan, 1, 1)
    empty = SiteData(some.codes[:, :0], some.labels[:0])
    found = train(plan, {"a": full, "b": empty}, noise=SeededNoise(3))
    assert found.ensemble.n_trees
    evaluation = evaluate_federated(found, {"a": full, "b": empty}, epsilon=1.0, noise=SeededNoise(1)).evaluation
    assert evaluation is not None


# The commands -------------------------------------------------------------------------------------------------------


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_counts_of_private_rows_stay_on_the_operators_screen(text_of: TextOf, tmp_path: Path, run: Run) -> None:
    """What `train --json` prints may be published: it is the same whether or not a row was left out."""
    (tmp_path / "plan.toml").write_text(text_of())
    told = []
    for rows in ([*GOOD], [*GOOD, "p3,30,a,2", ",1,a,1"]):
        site = table(tmp_path / "north.csv", rows)
        options = ("--out", tmp_path / "m.json", "--seed", 1, "--no-book", "--json")
        code, out, err = run("train", tmp_path / "plan.toml", "--site", f"north={site}", *options)
        assert code == 0
        assert "left_out" not in out and "left out" not in out
        told.append(((tmp_path / "m.json").read_bytes(), json.loads(out), err))
        (tmp_path / "m.json").unlink()
    assert told[0][:2] == told[1][:2]
    said = " ".join(told[1][2].split())
    assert "Private" in said and "1 data-label-outside" in said and "1 data-unit-missing" in said


@pytest.mark.parametrize("row", ["old,a", "3", b"30,\xe9"])
def test_a_prediction_drops_no_row(text_of: TextOf, tmp_path: Path, run: Run, row: str | bytes) -> None:
    """Line n of the predictions is row n of the table, or there are none."""
    (tmp_path / "plan.toml").write_text(text_of())
    site = table(tmp_path / "north.csv", [*GOOD])
    assert run("train", tmp_path / "plan.toml", "--site", site, "--out", tmp_path / "m.json", "--seed", 1)[0] == 0
    out, has_place = tmp_path / "out.csv", row != "3"
    for n_before in (1, 70_000):
        asked = table(tmp_path / "ask.csv", [*["30,a"] * n_before, row, *["31,b"] * 10], header="age,ward")
        out.write_text("older")
        code, _, err = run("predict", tmp_path / "m.json", asked, "--out", out)
        lines = out.read_text().split("\n")
        if has_place:
            assert code == 0 and [at for at, line in enumerate(lines[:-1]) if not line.strip('"')] == [n_before + 1]
        else:
            assert code == 4 and f"data row {n_before + 1}" in " ".join(err.split()) and lines == ["older"]
        assert not list(tmp_path.glob("*.part"))


ODD_LINES = [
    ('5,b,"6 inches', True), ('5,b,6" and 7"', True), ('5,b,"a"b,"', False), ('5,"b,fine', False), ('"5,b,fine', False),
    ('5,b,""', True), ("5,b,\x00", True), ("5,b,a\rb", True),
]  # fmt: skip


@pytest.mark.parametrize(("line", "fits"), ODD_LINES)
def test_a_prediction_for_each_line(text_of: TextOf, tmp_path: Path, run: Run, line: str, fits: bool) -> None:
    """A stray quotation mark takes no other line's prediction away; a line that has none is named."""
    (tmp_path / "plan.toml").write_text(text_of())
    site = table(tmp_path / "north.csv", [*GOOD])
    assert run("train", tmp_path / "plan.toml", "--site", site, "--out", tmp_path / "m.json", "--seed", 1)[0] == 0
    rows = [f"{20 + number},{'ab'[number % 2]},fine" for number in range(50)]
    found = []
    for lines in (rows, [*rows[:10], line, *rows[10:]]):
        asked = table(tmp_path / "ask.csv", lines, header="age,ward,note")
        code, out, err = run("predict", tmp_path / "m.json", asked)
        if lines != rows and not fits:
            assert code == 4 and "data row 11" in err.replace("\n        ", " ") and not out
            return
        found.append(out.splitlines())
    assert found[1][:11] == found[0][:11] and found[1][12:] == found[0][11:] and len(found[1]) == 52


def test_lines_are_counted_beside_rows(text_of: TextOf, tmp_path: Path, run: Run) -> None:
    """Blank lines are no rows, and said; so are lines within cells, where the plan takes them."""
    (tmp_path / "plan.toml").write_text(text_of({"line_breaks": 1}))
    rows: list[str | bytes] = ["", *[f"{row},note" for row in GOOD], "", 'p1,30,a,1,"two\nlines"']
    site = table(tmp_path / "north.csv", rows, f"{HEADER},x")
    commands = (
        ("train", tmp_path / "plan.toml", "--site", site, "--out", tmp_path / "m.json", "--seed", 1),
        ("predict", tmp_path / "m.json", site, "--out", tmp_path / "p.csv"),
        ("check", tmp_path / "plan.toml", site),
    )
    for command in commands:
        code, out, err = run(*command)
        said = " ".join((out + err).split())
        assert code == 0 and all(word in said for word in ("41 of 41 rows", " 44", "2 blank", "1 of a cell")), said
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 42
    assert "privacy.line_breaks" in run("privacy", tmp_path / "plan.toml")[1]


# Loss of rows ---------------------------------------------------------------------------------------------------------


RELEASING = [
    ("train", "plan.toml", "--site", "{}", "--seed", "1", "--out", "new.json"),
    ("evaluate", "model.json", "--federated", "--site", "{}", "--epsilon", "1", "--out", "new.json"),
    ("recalibrate", "model.json", "{}", "--epsilon", "1", "--out", "new.json"),
]


@pytest.fixture
def scene(text_of: TextOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with a plan, its model, and a table of which one row of eleven, or a third, does not fit."""
    monkeypatch.chdir(tmp_path)
    Path("plan.toml").write_text(text_of({}))
    table(Path("good.csv"), [*GOOD])
    table(Path("few.csv"), [*GOOD[:20], "p1,old,a,1", "p1,old,b,1", *GOOD[20:]])
    table(Path("many.csv"), [*GOOD, *["p1,old,a,1"] * 20])
    assert main(["train", "plan.toml", "--site", "good.csv", "--seed", "1"]) == 0
    capsys.readouterr()
    return tmp_path


@pytest.mark.parametrize(
    ("command", "of_few", "of_many"),
    [
        *((command, 0, 0) for command in RELEASING),
        (("evaluate", "model.json", "{}"), 0, 11),
        (("predict", "model.json", "{}", "--out", "new.json"), 0, 11),
    ],
)
def test_rows_are_counted_before_anything_is_done(
    scene: Path, command: tuple[str, ...], of_few: int, of_many: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A third of a table is not left out in silence; the counts come before all else that is said."""
    for name, allowed, code in (("few", [], of_few), ("many", [], of_many), ("many", ["--allow-loss", "0.34"], 0)):
        if allowed and not of_many:
            code = 2
        Path("new.json").unlink(missing_ok=True)
        assert main([word.format(f"{name}.csv") for word in command] + allowed) == code
        said = " ".join(capsys.readouterr().err.split())
        assert Path("new.json").exists() is (code == 0 and "new.json" in command)
        if code not in (2, 4):
            counts = r"40 of (42|60) rows used\. Left out: (2|20) data-wrong-type"
            assert re.match(rf"(Private|Note Private|Error)\S* .*?{counts}", said)


@pytest.mark.parametrize("command", RELEASING)
def test_who_sits_at_a_terminal_is_asked_before_anything_is_spent(
    scene: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loss is loud: the owner sees the counts, and says no; `--yes` is asked nothing, nor is a table that fits."""
    monkeypatch.setattr(inputs, "is_terminal", lambda: True)
    questions = list[str]()

    def say_no(question: str) -> str:
        questions.append(question)
        return "no"

    monkeypatch.setattr(inputs, "prompt", say_no)
    many, good = ([word.format(name) for word in command] for name in ("many.csv", "good.csv"))
    assert main(many) == 6
    printed = capsys.readouterr()
    assert "(not-agreed, exit code 6)" in printed.err and "40 of 60 rows used" in " ".join(printed.err.split())
    assert len(questions) == 1 and not printed.out and not Path("new.json").exists()
    assert main([*many, "--yes"]) == 0
    Path("new.json").unlink()
    assert main(good) == 0 and len(questions) == 1


def test_a_prediction_stands_where_its_row_does(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that are left out have an empty line; one whose fields cannot be counted is an error all the same."""
    assert main(["predict", "model.json", "good.csv", "--proba"]) == 0
    whole = capsys.readouterr().out.splitlines()
    assert main(["predict", "model.json", "few.csv", "--proba"]) == 0
    found = capsys.readouterr().out.splitlines()
    assert found == [*whole[:21], ",", ",", *whole[21:]]
    table(Path("ragged.csv"), [*GOOD, "p1,30,a"])
    assert main(["predict", "model.json", "ragged.csv", "--allow-loss", "1"]) == 4


def test_check_ends_a_script_by_the_share_that_is_left_out(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It releases nothing, so it may: what a script asks before it spends anything."""
    for name, allowed, code in (("few", [], 0), ("few", ["--allow-loss", "0"], 11), ("many", [], 11),
                                ("many", ["--allow-loss", "0.34"], 0)):  # fmt: skip
        assert main(["check", "plan.toml", f"{name}.csv", *allowed]) == code
        printed = capsys.readouterr()
        assert "rows used" in printed.out and ("rows-left-out" in printed.err) is bool(code)


def test_the_rarer_of_two_codes_is_not_left_out_in_silence(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where 1 and 2 stand for lost and dead, all who died may be fewer than a tenth of the rows."""
    rows = [f"p1,{20 + at},a,{2 if at % 20 == 0 else 1}" for at in range(60)]
    table(Path("coded.csv"), rows)
    assert main(["train", "plan.toml", "--site", "coded.csv", "--seed", "1", "--out", "new.json"]) == 0
    assert "one class" in " ".join(capsys.readouterr().err.split())


def test_an_arrival_or_a_survey_without_a_usable_row_is_a_warning_to_the_owner(
    scene: Path, parsed_plan: PlanOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that runs refuses nothing for its rows: its owner is told, and sums of zero are what peers see."""
    said = list[tuple[str, str]]()

    def tell(text: str, *, level: str = "INFO") -> None:
        said.append((level, text.partition(" (")[0]))

    empty, odd = table(Path("empty.csv"), []), table(Path("odd.csv"), ["p1,old,a,1"] * 3)
    arrivals = open_arrivals(str(scene), tell=tell)
    assert arrivals is not None
    assert [arrivals.read(path, parsed_plan({})).n_records for path in (empty, odd, Path("few.csv"))] == [0, 0, 40]
    monkeypatch.setattr("hedgerow.app.rows.note", tell)
    asked = OpenTable.of([Feature(name="age", type="")], "", {"epsilon": 1.0, "delta": 1e-6})
    make_raw_loader("odd.csv")(asked)
    make_raw_loader(str(table(Path("r.csv"), [f"{row},x" for row in GOOD])))(asked)
    assert said == [
        ("WARNING", "empty.csv: 0 of 0 rows used. Lines: 0."),
        ("WARNING", "odd.csv: 0 of 3 rows used. Left out: 3 data-wrong-type"),
        ("INFO", "few.csv: 40 of 42 rows used. Left out: 2 data-wrong-type"),
        ("INFO", "odd.csv, for a survey: 3 of 3 rows used. Lines: 3."),
        ("WARNING", "r.csv, for a survey: 0 of 40 rows used. Left out: 40 data-ragged-row"),
    ]


def test_a_survey_of_more_rows_than_are_declared_uses_as_many(scene: Path) -> None:
    """Which rows are used follows from what stands in each, so that their order decides nothing."""
    columns = [Feature(name=name, type="") for name in ("age", "ward")]
    asked = OpenTable.of(columns, "", {"epsilon": 1.0, "delta": 1e-6})
    said = list[str]()
    setup = cast(NodeSetup, SimpleNamespace(max_rows=10, tell=said.append))
    used = []
    for rows in (GOOD, GOOD[::-1]):
        raw = limit_rows(setup, make_raw_loader(str(table(Path("rows.csv"), [*rows])))(asked))
        used.append({float(value) for value in raw.numbers(0)})
        assert raw.n_records == 10
    assert used[0] == used[1] and len(used[0]) == 10 and len(said) == 2
