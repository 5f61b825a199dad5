"""Surveys byte for byte: what is released, what stands in the ledger, what was found; a change of the house moves none.

Bounds, classes and counts for a plan, statistics of a table, and survival curves; declared columns and unknown ones,
zooms, classes of every kind, units with several rows, noise of either party, and none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hedgerow.data.raw_cells import read_raw_site
from hedgerow.local.survey import (
    SurveyResult,
    ask_curves,
    draft_plan,
    open_plan_text,
    plan_text,
    read_schema,
    schema_from_book,
    survey_sites,
    table_survey,
)
from hedgerow.methods.tasks import SurveyTask
from hedgerow.plan.draft import Entry
from hedgerow.plan.plan import Feature
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.release import Releaser
from hedgerow.survey.bounds import Findings
from hedgerow.survey.questions import Questions
from hedgerow.survey.requests import OpenTable
from tests.builders import gaps

pytestmark = pytest.mark.golden
N_RECORDS = 700


def label_of(**lines: object) -> str:
    """A plan's [label]."""
    return "[label]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items())


def table_of(*columns: Feature, label: str = "", **privacy: object) -> OpenTable:
    """Statistics of these columns."""
    return OpenTable.of(columns, label, {"epsilon": 20.0, "delta": 1e-6, **privacy})


def curves(by: str | None, **privacy: object) -> OpenTable:
    """Survival curves."""
    label = label_of(name="days", type="survival", event="died", intervals=[100, 250, 500, 900])
    ward = '[[features]]\nname = "ward"\ntype = "categorical"\ncategories = ["surgery", "medicine", "other"]\n'
    return ask_curves(label + ward, by, {"epsilon": 2.0, "delta": 1e-6, **privacy})


NAMES = "age", "income", "far", "cold", "born", "ward", "code", "flag", "visits", "ill"
EVERY = [Feature(name=name, type="") for name in NAMES]
DECLARED = [
    Feature(name="age", type="numeric", min=0.0, max=110.0, integer=True), Feature(name="income", type="numeric"),
    Feature(name="born", type="date"), Feature(name="code", type="hashed"),
    Feature(name="ward", type="categorical", categories=("surgery", "medicine", "other")),
]  # fmt: skip

GOLDEN: dict[str, tuple[OpenTable, str]] = {
    "table, nothing known": (table_of(*EVERY, label="ill"), "fe29ca5f1771efcaece5eea5"),
    "table, a whole label": (table_of(*EVERY, label="visits"), "048729b67ccfd853cd610164"),
    "table, declared, no label": (table_of(*DECLARED), "f96b97b0d69cb071280caaad"),
    "table, noise of the sites": (table_of(*EVERY, label="ill", noise="distributed"), "45b349e06725baac9eeb448a"),
    "table, units of two rows": (
        table_of(*EVERY, label="ill", unit="person", max_rows_per_unit=2),
        "639741e7d41c7eae19c0b8d5",
    ),
    "table, little epsilon": (table_of(*EVERY, label="ill", epsilon=0.5), "d6d3569b048425c1a6aff412"),
    "table, no noise": (table_of(*EVERY, label="ill", epsilon=float("inf")), "94d9f0170cad86e4b5302d57"),
    "curves by group": (curves("ward"), "15ebef2f13f1eb677088d3a1"),
    "curves, noise of the sites": (curves(None, noise="distributed"), "a53d32c0bd66c61b7ce88a4a"),
}
FILES = {
    "curves by group": "61e897eb0608a440e527d682",
    "curves, noise of the sites": "e267203c3edd27d008955379",
    "table, a whole label": "1292f2f274fea16c9a9b84c0",
    "table, declared, no label": "75e2150b5830dd727ef1050a",
    "table, little epsilon": "0c504a3042c8433cb0895d69",
    "table, no noise": "ae9d143cf48cbbd7d7383761",
    "table, noise of the sites": "5df3491e16fec664d7caa52c",
    "table, nothing known": "0353edeb862662ec3f6ad101",
    "table, units of two rows": "abb78ca05639f287662fa53f",
    "declarations": "e1f1ecefa025ee79c1898113",
}
"""Of each: the request on the wire, its task, the plan of its sums, the plan that is drafted, and the report."""

SCHEMA = """
label = {name = "ill", type = "binary", classes = ["no", "yes"]}
features = [
  {name = "a", type = "numeric", min = 0, max = 110, integer = true, spacing = "log", monotone = "increasing"},
  {name = "b", type = "numeric", min = -1.5},
  {name = "c", type = "date", min = "2020-01-31", max = "2021-12-31T12:00:00", format = "%d.%m.%Y"},
  {name = "d", type = "categorical", categories = ["x", "y"], origin = "found"},
  {name = "e", type = "hashed", buckets = 64}, {name = "f", type = "numeric", min = 2, max = 2}, {name = "g"},
]
"""
BOOK = {
    "h": Entry("numeric", True, 0.0, 4.0), "i": Entry("numeric", low=1.0), "j": Entry("date"), "k": Entry(""),
    "l": Entry("categorical", categories=("1", "2")), "m": Entry("identifier"), "n": Entry("categorical"),
    "o": Entry("date", low=10.0, high=20.5), "p": Entry("numeric", False, 3.0, 3.0),
}  # fmt: skip

OPEN = tuple(Feature(name=name, type="numeric") for name in ("age", "income", "far", "cold"))
BORN, VISITS, ILL = Feature(name="born", type="date"), Feature(name="visits", type=""), Feature(name="ill", type="")
FITS: dict[str, tuple[tuple[Feature, ...], dict[str, Any], str]] = {
    "bounds and classes": ((*OPEN, BORN, ILL), {"n_columns": 5, "label": "classes"}, "5caaa81c3e39ac1392114c19"),
    "whole classes": ((VISITS,), {"label": "classes"}, "134339e19fc82426e9c2a7f7"),
    "bounds of the label": (
        (*OPEN, VISITS), {"n_columns": 4, "label": "bounds", "n_records": 2100}, "31c3657bb8ed4572ffa43ed8"
    ),
    "units of three rows": (
        (*OPEN, ILL), {"n_columns": 4, "label": "classes", "rows_per_unit": 3}, "36ae8060ca7e30fd172f3485"
    ),
    "number of records": ((OPEN[0],), {}, "dab450e6429e70c201b3fc3e"),
    "little epsilon": ((*OPEN, ILL), {"n_columns": 4, "label": "classes", "epsilon": 0.2}, "d5f8c46289cac7297ca99bd3"),
    "no noise": (
        (*OPEN, ILL), {"n_columns": 4, "label": "classes", "epsilon": float("inf")}, "d8befca8ad8be7fd81c08ebc"
    ),
}  # fmt: skip
UNKNOWN = {
    "ill": "53f3fa858063d4d368c929ff",
    "visits": "4249bf08173f8c7c9247f8af",
    "flag": "58515b2c81c594af9e1d429f",
    "code": "21daaf219f514b985241731b",
}


def write_site(place: Path, seed: int) -> None:
    """A table of numbers far from zero and near it, dates, texts, codes, truth values, gaps and odd cells."""
    draw = np.random.default_rng(seed)
    n = N_RECORDS
    born = np.datetime64("1940-01-01") + draw.integers(0, 20_000, n)
    columns = {
        "person": draw.integers(0, n // 3, n), "age": draw.integers(18, 96, n),
        "income": np.round(draw.lognormal(10, 1, n), 2), "far": np.round(1e6 + draw.normal(0, 3, n), 2),
        "cold": np.round(-8 - 8 * draw.random(n), 3), "born": born,
        "ward": draw.choice(["surgery", "medicine", "other", ""], n, p=[0.5, 0.3, 0.15, 0.05]),
        "code": draw.choice([f"c{number}" for number in range(200)], n),
        "flag": draw.choice(["true", "false"], n), "visits": draw.integers(0, 4, n),
        "ill": draw.choice(["no", "yes", "?"], n, p=[0.6, 0.39, 0.01]),
        "days": np.round(draw.exponential(400, n), 1), "died": draw.integers(0, 2, n),
    }  # fmt: skip
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    lines[3] = lines[3].replace(lines[3].split(",")[1], "<18", 1)
    place.write_text("\n".join([",".join(columns), *lines]) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three sites."""
    folder = tmp_path_factory.mktemp("sites")
    places = {site: folder / f"{site}.csv" for site in ("north", "south", "west")}
    for seed, place in enumerate(places.values()):
        write_site(place, seed)
    return places


def plain(found: Any, asked: Sequence[Feature]) -> Any:
    """What was found, as values alone: of a fit, ranges of known columns, and kinds and ranges of unknown ones."""
    if not isinstance(found, Findings):
        return found.to_dict()
    n_records, columns, label, classes, kind = astuple(found)
    pairs = list(zip(asked, columns, strict=False))
    ranges = [span for each, (_, span) in pairs if each.type]
    return n_records, ranges, label, classes, [own for each, own in pairs if not each.type], kind


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_a_survey_stays_the_same(name: str, tables: dict[str, Path]) -> None:
    """The same rows and the same draws give the same releases, the same charges and the same results."""
    asked, expected = GOLDEN[name]
    sites = {site: read_raw_site(place, asked) for site, place in tables.items()}
    content, made = carry_out(asked.questions, sites)
    schedule = asked.questions.schedule
    content += [schedule.n_rounds, [repr(event) for event in schedule.events]]
    files = [asked.to_bytes().decode(), SurveyTask(asked).digest, asked.schema_plan.digest]
    if asked.schema_plan.privacy.noise == "server":
        told = table_survey(asked, made.findings, made.ledger, SeededNoise(7))
        plan = draft_plan(told, 3)
        files += [open_plan_text(told, 3) if plan is None else plan_text(plan)]
        files += [told.report.text()]
    assert (digest_of(content), digest_of(files)) == (expected, FILES[name])


def test_declarations_stay_the_same_on_the_wire() -> None:
    """A survey of a plan's columns, of a code book's and of unknown ones asks for them in the same bytes."""
    columns = {**schema_from_book(BOOK), **read_schema(SCHEMA), "u": Feature(name="u", type="")}
    request = OpenTable.of(list(columns.values()), "ill", {"epsilon": 1.0, "delta": 1e-6})
    read = OpenTable(json.loads(request.to_bytes()))
    assert read.columns == request.columns and read.to_bytes() == request.to_bytes()
    assert digest_of(request.to_bytes().decode()) == FILES["declarations"]


@pytest.mark.parametrize("name", sorted(FITS))
def test_a_survey_for_a_fit_stays_the_same(name: str, tables: dict[str, Path]) -> None:
    """What declarations leave open: bounds, a label's classes or range, the number of records."""
    columns, about, expected = FITS[name]
    rows = {"unit": "person", "max_rows_per_unit": 3} if "rows_per_unit" in about else {}
    asked = table_of(*columns, **rows)
    sites = {site: read_raw_site(place, asked) for site, place in tables.items()}
    questions = gaps(**{"epsilon": 20.0, **about})
    content, _ = carry_out(questions, sites)
    content += [questions.schedule.n_rounds, [repr(event) for event in questions.schedule.events]]
    assert digest_of(content) == expected


@pytest.mark.parametrize("label", sorted(UNKNOWN))
def test_a_survey_of_columns_that_nobody_knows_stays_the_same(label: str, tables: dict[str, Path]) -> None:
    """What an estimator asks for: kinds of columns and label first, then bounds, and classes of whichever kind."""
    columns = [Feature(name=name, type="") for name in ("age", "income", "born", "ward", "far", label)]
    asked = table_of(*columns)
    sites = {site: read_raw_site(place, asked) for site, place in tables.items()}
    questions = gaps(2, 3, "classes", epsilon=30.0)
    content, _ = carry_out(questions, sites)
    content += [questions.schedule.n_rounds, [repr(event) for event in questions.schedule.events]]
    assert digest_of(content) == UNKNOWN[label]


def digest_of(content: Any) -> str:
    """Of all values, floats to their last digit."""
    return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()[:24]


class Recorder(Releaser):
    """Keeps what it releases."""

    released: ClassVar[list[Any]] = []

    def release(self, query: Any, *about: Any) -> Any:
        made = super().release(query, *about)
        self.released.append([type(query).__name__, query.purpose.subject, np.asarray(made).tolist()])
        return made


def carry_out(questions: Questions, sites: Any) -> tuple[list[Any], SurveyResult]:
    """Every release, the ledger and what was found, as plain values and as they are."""
    Recorder.released.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hedgerow.local.survey.Releaser", Recorder)
        made = survey_sites(questions, sites, SeededNoise(7))
    ledger, found = [each.to_dict() for each in made.ledger.releases], plain(made.findings, questions.columns)
    return [list(Recorder.released), ledger, found], made
