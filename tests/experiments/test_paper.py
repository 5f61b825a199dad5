"""The catalogue and its reports: every printed number has its cell, and differences are told in standard errors."""

from __future__ import annotations

import csv
import gzip
import tomllib
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from experiments import datasets, paper
from experiments.catalogue import (
    DATA,
    EXPERIMENTS,
    FURTHER,
    RANKED,
    REFERENCES,
    Cell,
    Experiment,
    Method,
    published_curves,
)
from experiments.datasets import AUTHORS, SCHEMAS, Table, available, load
from experiments.harness import Prepared, code_digest
from experiments.paper import Line, Results, Score, beside_the_paper, compare_curve, errors_between, plan_of, report_of
from hedgerow.training.presets import PRESETS

TABLES = sorted(name for name in EXPERIMENTS if name.startswith("table"))


def cells_of(experiment: Experiment) -> list[Cell]:
    return [*experiment.cells, *(cell for panel in experiment.panels for cell in panel.cells)]


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_every_cell_is_a_plan_and_every_key_one_cell(name: str, small: Table) -> None:
    """A misspelled setting would end a run after hours; two cells with one key would show each other's numbers."""
    prepared, seen = Prepared(small), {}
    for cell in cells_of(EXPERIMENTS[name]):
        plan, train = plan_of(cell, 1, prepared)
        assert plan.model.structure_seed == 1 and 0 < train.sum() < len(train)
        assert seen.setdefault(cell.key, plan.digest) == plan.digest
        assert plan.privacy.epsilon in (cell.epsilon, float("inf"))


@pytest.mark.parametrize("name", [name for name in TABLES if EXPERIMENTS[name].published is not None])
def test_every_number_that_the_paper_prints_has_its_cell(name: str) -> None:
    """For all six data sets, where their files are to be had: none is left out of the comparison."""
    experiment = EXPERIMENTS[name]
    assert experiment.published is not None
    further = [data for data in FURTHER if any(data in row for row in experiment.published.values())]
    assert "nomao" in further
    for sets in (DATA, (*DATA, *further)):
        printed = {(method, data) for method, row in experiment.published.items() for data in row if data in sets}
        cells = experiment.with_sets(sets[len(DATA) :]).cells
        assert {(cell.method.name, cell.data) for cell in cells} == printed


def write_nomao(folder: Path, n_rows: int = 60) -> NDArray[np.float64]:
    """A file of Nomao's form: the row's number, likenesses, some missing, words, and the class."""
    random = np.random.default_rng(2)
    likeness = random.random((n_rows, 118)).round(6)
    rows = []
    for number, row in enumerate(likeness):
        cells = [f"{value:g}" for value in row]
        cells[6] = "nsm"[number % 3]
        cells[40] = "?" if number % 7 == 0 else cells[40]
        rows.append(",".join([str(number), *cells, "-1" if number % 4 == 0 else "+1"]))
    (folder / "Nomao.data").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return likeness


@pytest.mark.parametrize("preparation", paper.PREPARATIONS)
def test_nomao_is_read_as_its_publisher_has_it(tmp_path: Path, preparation: str) -> None:
    """No head; the columns in which every cell is a number, but for the row's own; -1 is the class that is counted."""
    likeness = write_nomao(tmp_path)
    found = load("nomao", str(tmp_path), preparation)
    kept = [place for place in range(118) if place not in (6, 40)]
    assert [feature["name"] for feature in found.features] == [str(place + 1) for place in kept]
    assert np.array_equal(np.stack(found.columns, axis=1), likeness[:, kept].astype(np.float32))
    assert found.label.tolist() == [int(number % 4 == 0) for number in range(60)]
    if preparation == "declared":
        assert {(feature["min"], feature["max"]) for feature in found.features} == {(0.0, 1.0)}


def test_higgs_is_a_fixed_sample_of_its_publishers_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed, without a head, the class first; always the same rows, whatever parts it is read by."""
    random = np.random.default_rng(3)
    values = np.column_stack([random.integers(0, 2, 300), random.uniform(0, 1.5, (300, 28))])
    lines = [",".join(f"{value:.18e}" for value in row) for row in values]
    with gzip.open(tmp_path / "HIGGS.csv.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    whole = load("higgs", str(tmp_path))
    assert len(whole.features) == 28 and whole.features[0]["name"] == "lepton_pT"
    assert np.array_equal(whole.label, values[:, 0]) and np.array_equal(whole.columns[5], values[:, 6].astype("f4"))
    assert set(available(FURTHER, str(tmp_path))) == {"higgs"}
    read = pd.read_csv
    schema = {**tomllib.loads((SCHEMAS / "higgs.toml").read_text(encoding="utf-8")), "sample": 50}
    drawn = []
    for size in (37, 500):
        monkeypatch.setattr(
            pd, "read_csv", lambda *args, size=size, **named: read(*args, **{**named, "chunksize": size})
        )
        drawn.append(datasets._without_head(tmp_path / "HIGGS.csv.gz", schema))
    assert len(drawn[0]) == 50 and drawn[0].equals(drawn[1])
    assert set(drawn[0][1]) < {line.split(",")[1] for line in lines}


def test_a_table_over_a_further_set_is_trained_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With Nomao's file in the folder, table 5 has a column for it, with the paper's numbers beside ours."""
    write_nomao(tmp_path, 200)
    experiment = EXPERIMENTS["table5"].with_sets(available(FURTHER, str(tmp_path)))
    one = replace(experiment, cells=tuple(cell for cell in experiment.cells if cell.data == "nomao")[:2])
    results = paper.run_cells(one.cells, Namespace(out=tmp_path, data=str(tmp_path), jobs=1, repeats=1), one.title)
    report = report_of(one, results, AUTHORS, image="table5.png")
    assert "| method | nomao |" in report and "0.8859 ± 0.0056" in report
    paper.draw(one, results, tmp_path / "table5.png")
    assert (tmp_path / "table5.png").stat().st_size > 1000


def test_table_6_ranks_what_the_paper_ranks() -> None:
    """And ours. The table has no row for DP-TR Newton by itself, the local baseline, or other papers' methods."""
    others = {name for name, preset in PRESETS.items() if preset.section_name}
    assert len(others) == 6
    assert set(RANKED) | set(REFERENCES) | {"ldp", "dp-tr-newton"} == set(PRESETS) - others
    names, epsilons = (*RANKED, *REFERENCES), (0.1, 0.5, 1.0)
    wanted = {(name, data, epsilon, 0.0) for name in names for data in DATA for epsilon in epsilons}
    assert {cell.key for cell in EXPERIMENTS["table6"].cells} == wanted


def line(auc: float, code: str = "") -> Line:
    return {"auc": str(auc), "seed": "0", "cpu_seconds": "1.0", "code": code or code_digest()}


def made_up(ours: list[float]) -> tuple[Experiment, Results]:
    """A table of one method a cell, the paper's number 0.80 ± 0.01 in each."""
    cells = tuple(Cell(Method(f"m{i}", {}), "bank", 1.0) for i in range(len(ours)))
    published = {cell.method.name: {"bank": (0.80, 0.01)} for cell in cells}
    results = {cell.key: [line(value - 0.01), line(value + 0.01)] for cell, value in zip(cells, ours, strict=True)}
    return Experiment("table3", "made up", cells, published), results


def test_a_difference_is_told_in_its_own_standard_errors() -> None:
    """Two means of 15 runs each, by hand; no tolerance of single runs hides a bias of means."""
    assert errors_between((0.80, 0.03), Score(0.81, 0.04, 15)) == pytest.approx(0.01 / (0.05 / 15**0.5))
    assert errors_between((0.80, 0.03), Score(0.79, 0.04, 15)) < 0
    experiment, results = made_up([0.80, 0.85])
    ours = [score for _, published, score in beside_the_paper(experiment, results) if published == (0.80, 0.01)]
    assert [(round(score.mean, 6), score.runs) for score in ours] == [(0.80, 2), (0.85, 2)]


def test_a_curve_is_told_by_its_mean_and_its_worst_point() -> None:
    """By hand: differences of .01, -.03 and .05 at one deviation for all points, three runs beside the paper's 15."""
    curve = compare_curve({1.0: 0.7, 2.0: 0.7, 4.0: 0.7}, {x: Score(0.7 + d, 0.02, 3) for x, d in
                                                        ((1.0, 0.01), (2.0, -0.03), (4.0, 0.05))})  # fmt: skip
    assert (round(curve.mean, 6), round(curve.worst, 6), curve.worst_x) == (0.01, 0.05, 4.0)
    assert curve.errors == pytest.approx(0.01 / (0.02 * (1 / 3 + 1 / 15) ** 0.5))


def test_every_point_of_the_papers_pictures_has_its_cell() -> None:
    """A point under a misspelled panel or method, or at a place that no run has, would be left out of sight."""
    listed = {figure for figure in EXPERIMENTS if published_curves(figure)}
    assert listed == {f"figure{number}" for number in (2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 18)}
    for name in listed:
        panels = {
            panel.title: {(cell.method.name, cell.x) for cell in panel.cells} for panel in EXPERIMENTS[name].panels
        }
        for (title, method), points in published_curves(name).items():
            assert {(method, x) for x in points} <= panels[title] and len(points) > 2


def test_table_12_has_totally_random_trees_after_200_and_not_300_rounds() -> None:
    """The paper's figures say so to four digits: why Newton at epsilon 1 is lower here than in its table."""
    sets = {"figure2": "credit1", "figure6": "credit2", "figure7": "adult", "figure8": "bank"}
    printed = EXPERIMENTS["table12"].published
    assert printed is not None
    for figure, data in sets.items():
        curve = published_curves(figure)["epsilon 1, depth 4", "totally_random newton"]
        assert curve[200.0] == printed["totally_random newton"][data][0] != curve[300.0]


def test_a_report_marks_what_is_beyond_and_counts_other_code() -> None:
    """Bold where beyond three errors, the counts below the table, seeds and code above it."""
    experiment, results = made_up([0.80, 0.85])
    for cell in experiment.cells:
        results[cell.key][0]["code"] = "000000000000"
    for data in DATA[1:]:
        more, others = made_up([0.80, 0.80])
        moved = [replace(cell, data=data) for cell in more.cells]
        results |= {cell.key: others[old.key] for cell, old in zip(moved, more.cells, strict=True)}
        published = {name: {**row, data: (0.80, 0.01)} for name, row in (experiment.published or {}).items()}
        experiment = replace(experiment, cells=(*experiment.cells, *moved), published=published)
    report = report_of(experiment, results, "authors", "x.png")
    assert "0.8000 ± 0.0100, 0.8500 ± 0.0141, **+4.8**" in report
    assert "Of 8 cells 7 are within two standard errors, 1 above and 0 below." in report and "seeds 0 to 0" in report
    assert f"2 of them by other code than {code_digest()}" in report


@pytest.mark.usefixtures("small_data")
def test_a_table_from_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CSV, Markdown and PNG are written; how far it is from the paper is no fault of the command."""
    small = [replace(cell, method=replace(cell.method, model={**cell.method.model, "n_trees": 2, "max_depth": 2}))
             for cell in EXPERIMENTS["table3"].cells]  # fmt: skip
    monkeypatch.setitem(paper.EXPERIMENTS, "table3", replace(EXPERIMENTS["table3"], cells=tuple(small)))
    assert paper.run("table3", ["--repeats", "1", "--out", str(tmp_path)]) == 0
    with (tmp_path / "runs.csv").open(newline="") as stream:
        assert len(list(csv.DictReader(stream))) == len(small)
    assert "Of 36 cells " in (tmp_path / "table3.txt").read_text()
    assert (tmp_path / "table3.png").read_bytes().startswith(b"\x89PNG")
