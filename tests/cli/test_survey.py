"""`hedgerow survey`: from tables to a page, numbers and a plan that trains."""

from __future__ import annotations

import io
import json
import math
import random
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hedgerow.app.inputs import read_plan
from hedgerow.app.statistics import build_histogram, build_sheets, categories_text, print_statistics
from hedgerow.cli.commands import build_parser
from hedgerow.cli.main import main
from hedgerow.survey.bounds import Range
from hedgerow.survey.statistics import ColumnStatistics, FoundQuantile, Group, Noisy, TableStatistics

Run = Callable[..., Any]


def test_a_survey_and_the_training_by_its_plan(study: Path, sites: list[str], tmp_path: Path, hedgerow: Run) -> None:
    """The drafted plan trains as it is, without what by its name is an identifier; the model's account holds both."""
    out = tmp_path / "statistics"
    said = hedgerow("survey", *sites, "--label", "ill", "--epsilon", 3, "--out", out)
    assert "3 sites" in said
    assert "Share of ill = yes" in said
    assert "HOLDS for one" in said
    plan = read_plan(str(out / "plan.toml"))
    assert plan.feature_names == ("age", "ward")
    assert plan.label.classes == ("no", "yes")
    report = hedgerow("train", out / "plan.toml", *sites, "--out", tmp_path / "m.json", "--json")["report"]
    assert 3 < report["epsilon_gdp"] <= plan.privacy.epsilon == 6
    assert report["n_releases"] > len(plan.prepared)
    assert report["guarantee"] == "holds"


def test_the_files(study: Path, sites: list[str], tmp_path: Path, hedgerow: Run) -> None:
    """The page asks nothing of other hosts and shows names as text; the numbers are those of --json."""
    odd = tmp_path / "odd.csv"
    odd.write_text((study / "north.csv").read_text().replace("patient,", "<script>alert(1)</script>,", 1))
    out = tmp_path / "statistics"
    content = hedgerow("survey", odd, "--label", "ill", "--epsilon", 20, "--out", out, "--seed", 1, "--json")
    assert content["report"]["guarantee"] == "void"
    page = (out / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"(src|href)=|https?:|@import|url\((?!#)", page)
    assert "prefers-color-scheme:dark" in page
    assert page.count("█") >= 3
    stored = json.loads((out / "survey.json").read_text())
    assert stored == {name: value for name, value in content.items() if name != "files"}
    assert [column["name"] for column in stored["columns"]][1:] == ["age", "ward", "ill"]


def test_counts_may_be_declared(tmp_path: Path, hedgerow: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Small whole numbers are taken for classes, which is said; a [label] of a schema is taken as it stands."""
    draw = random.Random(3)
    rows = [f"{draw.randint(20, 90)},{draw.choice([0, 0, 1, 2])}" for _ in range(3_000)]
    (tmp_path / "t.csv").write_text("\n".join(["age,visits", *rows]), encoding="utf-8")
    words = ("survey", tmp_path / "t.csv", "--label", "visits", "--epsilon", 10, "--out")
    assert main([*map(str, words), str(tmp_path / "classes")]) == 0
    assert read_plan(str(tmp_path / "classes" / "plan.toml")).label.classes == ("0", "1", "2")
    assert "3 classes" in " ".join(capsys.readouterr().err.split())
    schema = tmp_path / "schema.toml"
    schema.write_text('[label]\nname = "visits"\ntype = "count"\nmax = 30\n', encoding="utf-8")
    hedgerow(*words, tmp_path / "counts", "--schema", schema)
    label = read_plan(str(tmp_path / "counts" / "plan.toml")).label
    assert (label.type, label.max) == ("count", 30)
    schema.write_text('[label]\nname = "visits"\ntype = "count"\n', encoding="utf-8")
    assert main([*map(str, words), str(tmp_path / "none"), "--schema", str(schema)]) == 3
    assert not (tmp_path / "none" / "survey.json").exists()


def test_kaplan_meier_curves(tmp_path: Path, hedgerow: Run) -> None:
    """A plan's label and one of its features give curves by group: a table, the same numbers as JSON, and a picture."""
    draw = random.Random(3)
    for site in ("north", "south"):
        rows = [(draw.expovariate(1 / 10), draw.random() < 0.8, draw.choice(["new", "<old>"])) for _ in range(900)]
        lines = [f"{days:.3f},{int(died)},{arm}" for days, died, arm in rows]
        (tmp_path / f"{site}.csv").write_text("\n".join(["days,died,arm", *lines]) + "\n")
    plan = tmp_path / "part.toml"
    plan.write_text(
        '[label]\nname = "days"\ntype = "survival"\nevent = "died"\nintervals = [3, 6, 60, 300]\n'
        '[[features]]\nname = "arm"\ntype = "categorical"\ncategories = ["new", "<old>"]\n'
    )
    asked = [f"--site={tmp_path / site}.csv" for site in ("north", "south")]
    asked += ["--survival", plan, "--by", "arm", "--epsilon", 2, "--seed", 1]
    out = tmp_path / "curves"
    content = hedgerow("survey", *asked, "--out", out, "--json")
    assert content["ends"] == [3, 6, 60, 300] and [own["group"] for own in content["curves"]] == ["new", "<old>"]
    first, last = (content["curves"][0]["survival"][place] for place in (0, 3))
    assert first["value"] == pytest.approx(math.exp(-0.3 * 0.8), abs=0.08) and last is None
    assert content["report"]["n_releases"] == 1
    stored = json.loads((out / "survey.json").read_text())
    assert stored == {name: value for name, value in content.items() if name != "files"}
    picture, page = (out / "curves.svg").read_text(), (out / "report.html").read_text()
    assert picture.count("<polyline") == page.count("<polyline") == 2
    assert "&lt;old&gt;" in page and "<old>" not in page + picture
    assert not re.search(r"(src|href)=|https?:|@import|url\((?!#)", page)
    said = hedgerow("survey", *asked)
    assert said.index("arm: new") < said.index("arm: <old>") and said.count("at risk") == 2
    first = content["curves"][0]
    assert f"{first['survival'][0]['value']:.1%} [{first['low'][0]:.1%}, {first['high'][0]:.1%}]" in said


def test_a_unit_is_protected_in_the_statistics_and_in_the_training(
    study: Path, sites: list[str], tmp_path: Path, hedgerow: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one row of each patient half of the rows are counted; the plan that is drafted protects patients too."""
    out = tmp_path / "statistics"
    asked = ("--label", "ill", "--unit", "patient", "--epsilon", 8, "--seed", 2)
    content = hedgerow("survey", *sites, *asked, "--max-rows-per-unit", 2, "--out", out, "--json")
    assert [column["name"] for column in content["columns"]] == ["age", "ward", "ill"]
    assert content["n_records"]["value"] == pytest.approx(1500, rel=0.05)
    assert (content["report"]["unit"], content["report"]["max_rows_per_unit"]) == ("patient", 2)
    plan = read_plan(str(out / "plan.toml"))
    assert (plan.privacy.unit, plan.privacy.rows_per_unit) == ("patient", 2)
    report = hedgerow("train", out / "plan.toml", *sites, "--out", tmp_path / "m.json", "--json")["report"]
    assert report["unit"] == "patient"
    one = hedgerow("survey", *sites, *asked, "--json")
    assert one["n_records"]["value"] == pytest.approx(750, rel=0.05)


def test_a_code_book_is_public_knowledge(study: Path, tmp_path: Path, hedgerow: Run) -> None:
    """Bounds, categories and classes of a book are not asked for; identifiers and columns of other tables left out."""
    book, out = tmp_path / "book.csv", tmp_path / "statistics"
    book.write_text(
        "name,type,min,max,categories\npatient,identifier,,,\nage,numeric,0,100,\nward,categorical,,,a|b|c|d\n"
        "ill,categorical,,,no|yes\nelsewhere,numeric,0,1,\n"
    )
    table = study / "north.csv"
    said = hedgerow("survey", table, "--label", "ill", "--codebook", book, "--epsilon", 20, "--seed", 1, "--out", out)
    assert "patient" not in said
    plan = read_plan(str(out / "plan.toml"))
    assert [release.kind for release in plan.prepared] == ["RecordCount", "KindCounts", "CellCounts", "JointCounts"]
    assert (plan.features[0].min, plan.features[0].max) == (0, 100)
    assert plan.features[1].categories == ("a", "b", "c", "d")
    assert plan.feature_names == ("age", "ward")


def test_a_seed_repeats(study: Path, sites: list[str], hedgerow: Run) -> None:
    """With a seed, the order of the sites changes nothing."""
    asked = ("--label", "ill", "--epsilon", "1", "--seed", "4", "--json")
    first, turned = hedgerow("survey", *sites, *asked), hedgerow("survey", *sites[2:], *sites[:2], *asked)
    assert first["columns"] == turned["columns"]


def test_what_columns_of_parquet_are_is_found(study: Path, tmp_path: Path, hedgerow: Run) -> None:
    """By noisy counts: who wrote the file may have inferred its types. What cannot be read is left out by its type."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    n = 3000
    table = pa.table(
        {
            "code": pa.array(["a1", "a2"] * (n // 2)),
            "age": pa.array(["<18", *map(str, range(n - 1))]),
            "day": pa.array([18_000] * n, pa.date32()),
            "flag": pa.array([True, False, None] * (n // 3)),
            "size": pa.array([float(number % 50) for number in range(n)]),
            "list": pa.array([[1]] * n),
        }
    )
    parquet.write_table(table, tmp_path / "own.parquet")
    content = hedgerow("survey", tmp_path / "own.parquet", "--epsilon", 10, "--seed", 2)
    assert re.search(r"code .* a[12] 50 %, a[12] 50 %", content)
    assert "age" in content.split("Dates")[0]
    assert "2019-04-14" in content
    assert "false" in content
    assert "true" in content


def test_what_stands_in_rows_changes_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Odd cells and ragged rows end as a good table does, and only counts for the operator differ; so does a
    table without rows.
    """
    good = "a,b\n" + "1,x\n" * 50
    for text in (good, "a,b\n", good + '"', good + "1,2,3\n", good + "\xff,\x00\n", good + "nan,inf\n1e999,\n"):
        file = tmp_path / "table.csv"
        file.write_bytes(text.encode("latin-1"))
        assert main(["survey", str(file), "--label", "b", "--epsilon", "0.1", "--out", str(tmp_path / "out")]) == 12
        assert "(survey-no-plan, exit code 12)" in capsys.readouterr().err
    assert not (tmp_path / "out" / "plan.toml").exists()


def test_rows_that_are_lost_to_a_survey_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no plan yet that `check` could be asked with: of R's row names the survey itself says what they are."""
    (tmp_path / "table.csv").write_text("a,b\n" + "7,1,2\n" * 20)
    assert main(["survey", str(tmp_path / "table.csv"), "--label", "b", "--epsilon", "1"]) == 12
    assert "row.names = FALSE" in " ".join(capsys.readouterr().err.split())


NONE_LEFT = [part for name in ("patient", "age", "ward", "ill") for part in ("--without", name)]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["TABLE", "--epsilon", "1", "--label", "Ill"], "survey-column"),
        (["TABLE", "--epsilon", "1", "--without", "none"], "survey-column"),
        (["TABLE", "--epsilon", "1", "--site", "TABLE"], "usage"),
        (["--epsilon", "1"], "usage"),
        (["TABLE", "--epsilon", "1", "--unit", "Patient"], "survey-column"),
        (["TABLE", "--epsilon", "1", "--max-rows-per-unit", "2"], "usage"),
        (["TABLE", "--epsilon", "1", "--roster", "r.toml"], "usage"),
        (["--epsilon", "1", "--federated", "--site", "TABLE"], "usage"),
        (["TABLE", "--epsilon", "1", "--federated", "--roster", "r", "--identity", "i"], "usage"),
        (["--epsilon", "1", "--federated", "--roster", "r", "--identity", "i", "--out", "OUT"], "usage"),
        (["TABLE", "--epsilon", "1", "--train-epsilon", "1"], "survey-plan-epsilon"),
        (["TABLE", "--epsilon", "1", "--schema", "none.toml"], "plan-not-found"),
        (["TABLE", "--epsilon", "1", *NONE_LEFT], "survey-no-columns"),
        (["TABLE", "--epsilon", "1", "--label", "ill", *NONE_LEFT[:-2]], "survey-no-columns"),
    ],
)
def test_refusals(
    study: Path, tmp_path: Path, arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong command is refused before anything is released."""
    places = {"TABLE": str(study / "north.csv"), "OUT": str(tmp_path / "out")}
    given = [places.get(part, part) for part in arguments]
    assert main(["survey", *given]) != 0
    assert f"({code}, exit code" in capsys.readouterr().err


def test_a_rare_class_leaves_a_plan_that_waits_for_it(
    tmp_path: Path, hedgerow: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was found is paid for once: the classes are written in and it trains, or are declared beforehand."""
    draw = np.random.default_rng(1)
    rare, age = (draw.random(5110) < 0.049).astype(int), draw.integers(1, 83, 5110)
    table, out = tmp_path / "a.csv", tmp_path / "found"
    table.write_text("age,stroke\n" + "".join(f"{own},{event}\n" for own, event in zip(age, rare, strict=True)))
    asked = ["survey", str(table), "--label", "stroke", "--epsilon", "0.1", "--seed", "1"]
    assert main([*asked, "--out", str(out)]) == 12
    said = " ".join(capsys.readouterr().err.split())
    assert "--schema" in said and "epsilon 0.1" in said and str(out / "plan.toml") in said.replace(" ", "")
    assert main(["privacy", str(out / "plan.toml")]) == 3
    text = (out / "plan.toml").read_text(encoding="utf-8")
    (out / "plan.toml").write_text(re.sub(r"# classes = .*", "classes = [0, 1]", text), encoding="utf-8")
    plan = read_plan(str(out / "plan.toml"))
    assert plan.prepared and plan.feature_names == ("age",) and plan.label.classes == ("0", "1")
    (tmp_path / "known.toml").write_text('[label]\nname = "stroke"\nclasses = [0, 1]\n', encoding="utf-8")
    hedgerow(*asked, "--schema", tmp_path / "known.toml", "--out", tmp_path / "again")
    assert read_plan(str(tmp_path / "again" / "plan.toml")).label.classes == ("0", "1")


def test_what_is_not_shown_does_not_look_like_none() -> None:
    """Bins and categories that noise hides are marked, in the terminal and on the page; what is outside is drawn."""
    hidden, clear = Noisy(4.0, 2.0, is_shown=False), Noisy(90.0, 2.0)
    groups = [(-math.inf, 0, clear), (0, 2, clear), (2, 8, hidden), (8, 10, clear), (10, math.inf, hidden)]
    number = ColumnStatistics(
        "x", hidden, "number", Range(0, 10), present=Noisy(300.0, 3.0),
        groups=tuple(Group(f"{low} to {high}", low, high, count) for low, high, count in groups),
    )  # fmt: skip
    assert build_histogram(number, 5) == "█│█░░░█"
    names = (Group("a", count=clear), Group("b", count=hidden))
    text = ColumnStatistics("w", hidden, "text", present=Noisy(100.0, 1.0), groups=names)
    assert categories_text(text) == "a 90 %; 1 not shown"
    page = build_sheets(TableStatistics(clear, (number, text)), is_page=True)
    # 24 bars, of which those from 0 to 2 and from 8 to 10 are shown, and an end; and one category of two.
    looks = [(sum(sign in "▁▂▃▄▅▆▇█" for sign in sheet.rows[0][-1]), sheet.rows[0][-1].count("░")) for sheet in page]
    assert looks == [(11, 14), (1, 1)]


def test_numbers_in_another_writing_are_asked_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers with units are texts, of which a plan keeps hashes: the table's owner hears of it, and no one else."""
    rows = [f"{n % 50} kg,{n % 50},E{n % 50}.1,{n % 2}" for n in range(600)]
    (tmp_path / "v.csv").write_text("\n".join(["weight,age,code,y", *rows]) + "\n", encoding="ascii")
    asked = ["survey", str(tmp_path / "v.csv"), "--label", "y", "--epsilon", "5", "--seed", "1", "--out", str(tmp_path)]
    assert main(asked) == 0
    printed = capsys.readouterr()
    told = " ".join(printed.err.split())
    # "E1.1" begins with no digit: words make no private note.
    assert "'weight' (100%" in told and "'code'" not in told
    assert "text: weight" in told and "Read as text" not in printed.out
    assert all(b"Read as text" not in file.read_bytes() for file in tmp_path.iterdir())


def test_wide_numbers_take_no_columns_name_away() -> None:
    """Each line of a survey's table says whose it is, however many digits its numbers have, on 80 columns too."""
    wide, count = -1.23456e37, Noisy(1000.0, 1.0)
    column = ColumnStatistics(
        "age", count, "number", Range(-1e38, 1e38), mean=Noisy(wide, 1e36),
        quantiles=tuple(FoundQuantile(share, wide, wide, wide) for share in (0.05, 0.5, 0.95)),
        groups=(Group("", -1e38, 1e38, count),) * 3,
    )  # fmt: skip
    console = Console(width=80, record=True, file=io.StringIO())
    print_statistics(console, TableStatistics(count, (column,)), ["site"])
    text = console.export_text()
    assert " age " in text and "\u2026" not in text


def test_rows_of_classes_that_were_not_found_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan of those that stand out leaves the others' rows out: about how many follows from the same sums."""
    draw = np.random.default_rng(1)
    table, out = tmp_path / "a.csv", ["--seed", "1", "--out", str(tmp_path / "found")]
    for rare, is_told in (list("cdefghijklmnopqrst"), True), (["a"], False):
        names = draw.choice(["a", "b", *rare], 6000, p=[0.5, 0.4, *[0.1 / len(rare)] * len(rare)])
        table.write_text("x,y\n" + "".join(f"{place % 7},{name}\n" for place, name in enumerate(names)))
        assert main(["survey", str(table), "--label", "y", "--epsilon", "0.7", *out]) == 0
        assert read_plan(str(tmp_path / "found" / "plan.toml")).label.classes == ("a", "b")
        said = " ".join(capsys.readouterr().err.split())
        found = re.findall(r"About ([\d,]+) ± \d+ rows have other values of y", said)
        assert [abs(int(count.replace(",", "")) - 600) < 150 for count in found] == [True] * is_told
        (tmp_path / "found" / "plan.toml").unlink()


def test_cells_that_are_no_numbers_are_seen_in_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Values below a limit are text: their share stands in the table, and what helps below it."""
    draw = np.random.default_rng(1)
    table = tmp_path / "a.csv"
    table.write_text("hb\n" + "".join("<11\n" if own < 11 else f"{own:.1f}\n" for own in draw.normal(13, 2, 3000)))
    assert main(["survey", str(table), "--epsilon", "2", "--seed", "1"]) == 0
    printed = capsys.readouterr()
    assert re.search(r"hb +- +1[5-7] % ", printed.out)
    assert "recode.hb" in printed.err


def test_what_comes_after_a_survey_over_nodes_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that is advised has what `hedgerow coordinator` needs, and listens where the survey did."""
    advice = list[str]()
    monkeypatch.setattr("hedgerow.app.survey.survey_over_nodes", lambda *_, **__: None)
    monkeypatch.setattr("hedgerow.cli.survey.show", lambda *given: advice.append(given[3]))
    survey = ["survey", "header.csv", "--federated", "--label", "y", "--epsilon", "1", "--train-epsilon", "2"]
    party = ["--roster", "our roster.toml", "--identity", "hub.private.json", "--listen", "0.0.0.0:7501"]
    assert main([*survey, *party, "--out", str(tmp_path)]) == 0
    typed = build_parser().parse_args(shlex.split(advice[0].replace("{plan}", "out/plan.toml")))
    assert (typed.plan, typed.roster, typed.listen) == ("out/plan.toml", "our roster.toml", "0.0.0.0:7501")
