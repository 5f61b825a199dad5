"""What a command does follows from releases and public facts: tables on either side of every threshold on rows."""

from __future__ import annotations

import itertools
import secrets
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from hedgerow import DPGBDTClassifier, DPGBDTRegressor, DPGBDTSurvival
from hedgerow.app.environments import Simulation, Study
from hedgerow.app.rows import make_loader, make_raw_loader
from hedgerow.cli.main import main
from hedgerow.client.budget import BOOK, BudgetBook
from hedgerow.errors import HedgerowError
from hedgerow.local.accounts import forget_runs
from hedgerow.plan.plan import Feature, parse_plan
from hedgerow.server.release import Releaser
from hedgerow.survey.requests import OpenTable
from tests.tiers import every

LABELS = {
    "binary": 'type = "binary"\nclasses = ["no", "yes"]',
    "multiclass": 'type = "multiclass"\nclasses = ["no", "yes", "perhaps"]',
    "regression": 'type = "regression"\nmin = 0\nmax = 10',
    "count": 'type = "count"\nmax = 10',
}
PLAN = """\
version = 1
name = "thresholds"
[model]
n_trees = 3
max_depth = 2
structure_seed = 1
[privacy]
epsilon = 1
delta = 1e-6
n_records = 50
{unit}
[label]
name = "y"
{label}
[[features]]
name = "age"
type = "numeric"
min = 0
max = 100
[[features]]
name = "ward"
type = "categorical"
categories = ["a", "b"]
"""
UNIT = 'unit = "id"\nmax_rows_per_unit = 2'
HEADER = "id,age,ward,y"


def people(n: int, label: str = "") -> list[str]:
    """Rows that fit, of one person each; of both classes unless a label is given."""
    return [f"p{at},{at % 100},{'ab'[at % 2]},{label or ('no', 'yes')[at % 3 == 0]}" for at in range(n)]


def numbered(n: int) -> list[str]:
    return [f"p{at},{at % 100},a,{at % 7}" for at in range(n)]


Pair = tuple[str, str, list[str], list[str]]
PAIRS: dict[str, Pair] = {
    # By name: the label's type, the unit, and two tables.
    "a tenth does not fit, and one row more": (
        "binary", "", [*people(90), *["p,x,a,no"] * 10], [*people(90), *["p,x,a,no"] * 11]),
    "a tenth of lines of another length, and one more": (
        "binary", "", [*people(90), *["p,1,a,no,no"] * 10], [*people(90), *["p,1,a,no,no"] * 11]),
    "a tenth without a label, and one more": (
        "binary", "", [*people(90), *["p,1,a,"] * 10], [*people(90), *["p,1,a,"] * 11]),
    "a tenth outside the plan, and one more": (
        "multiclass", "", [*people(90), *["p,1,a,maybe"] * 10], [*people(90), *["p,1,a,maybe"] * 11]),
    "a tenth that is no text, and one more": (
        "binary", "", [*people(90), *["p,\xff,a,no"] * 10], [*people(90), *["p,\xff,a,no"] * 11]),
    "a tenth without an identifier, and one more": (
        "binary", UNIT, [*people(90), *[",1,a,no"] * 10], [*people(90), *[",1,a,no"] * 11]),
    "one class, and a label outside the plan": ("binary", "", people(40, "no"), [*people(40, "no"), "p,1,a,maybe"]),
    "one class, and a row of the other": ("binary", "", people(40, "no"), [*people(40, "no"), "p,1,a,yes"]),
    "one class of several, and one more": ("multiclass", "", people(40, "no"), [*people(40, "no"), "p,1,a,yes"]),
    "no row, and one": ("binary", "", [], ["p,1,a,no"]),
    "no row, and one that does not fit": ("binary", "", [], ["p,1,a,maybe"]),
    "no row that fits, and one": ("binary", "", ["p,x,a,no"] * 9, [*["p,x,a,no"] * 9, "p,1,a,no"]),
    "no line of the header's length, and one": ("binary", "", ["p,1"] * 9, [*["p,1"] * 9, "p,1,a,no"]),
    "no label at all, and one": ("binary", "", ["p,1,a,"] * 9, [*["p,1,a,"] * 9, "p,1,a,yes"]),
    "no identifier at all, and one": ("binary", UNIT, [",1,a,no"] * 9, [*[",1,a,no"] * 9, "p,1,a,yes"]),
    "a person with as many rows as are used, and one more": (
        "binary", UNIT, [*people(40), "p,1,a,no", "p,1,a,no"], [*people(40), *["p,1,a,no"] * 3]),
    "as many rows as declared, and one more": ("binary", "", people(50), people(51)),
    "a twentieth beyond the bounds, and one more": (
        "binary", "", [*people(95), *["p,999,a,no"] * 5], [*people(95), *["p,999,a,no"] * 6]),
    "a twentieth that is not listed, and one more": (
        "binary", "", [*people(95), *["p,1,c,no"] * 5], [*people(95), *["p,1,c,no"] * 6]),
    "a decimal comma": ("binary", "", people(40), [*people(40), 'p,"1,5",a,no']),
    "a quotation mark that is never closed": ("binary", "", people(40), [*people(40), 'p,"1,a,no']),
    "a blank line": ("binary", "", people(40), [*people(40), ""]),
    "numbers, and a label that is none": ("regression", "", numbered(40), [*numbered(40), "p,1,a,many"]),
    "numbers, and one beyond the bounds": ("regression", "", numbered(40), [*numbered(40), "p,1,a,1e99"]),
    "no number for a label, and one": ("regression", "", ["p,1,a,?"] * 5, [*["p,1,a,?"] * 5, "p,1,a,1"]),
    "counts, and one below 0": ("count", "", numbered(40), [*numbered(40), "p,1,a,-1"]),
}  # fmt: skip
COMMANDS: dict[str, str] = {
    "train": "train plan.toml --site a=t.csv --site b=other.csv --out new.json",
    "train, as JSON": "train plan.toml --site a=t.csv --out new.json --json",
    "train, in mapped files": "train plan.toml --site a=t.csv --out new.json --external-memory codes",
    "evaluate": "evaluate model.json t.csv --epsilon 1 --out new.json",
    "evaluate, over sites": (
        "evaluate model.json --federated --epsilon 1 --site a=t.csv --site b=other.csv --by ward --out new.json"
    ),
    "evaluate, as JSON": "evaluate model.json --federated --epsilon 1 --site a=t.csv --out new.json --json",
    "recalibrate": "recalibrate model.json t.csv --epsilon 1 --out new.json",
    "survey": "survey t.csv --label y --epsilon 1 --out new",
    "survey, of a schema": (
        "survey --site a=t.csv --site b=other.csv --schema plan.toml --label y --epsilon 1 --unit id --json"
    ),
}


class Replay:
    """Releases of one run, which another one is given in place of its own: what then differs follows from rows.

    Attributes:
        sums: of each run, what its releases were before the noise.
    """

    def __init__(self) -> None:
        self.released: list[np.ndarray] = []
        self.sums: list[list[bytes]] = []

    def begin(self) -> None:
        """Begin a run, with nothing spent before it: the first one's releases are kept."""
        forget_runs()
        if not self.sums:
            self.released.clear()
        self.sums.append([])

    def take(self, total: np.ndarray, released: np.ndarray) -> np.ndarray:
        """What is released in place of this."""
        if not self.sums:
            return released
        self.sums[-1].append(total.tobytes())
        if len(self.sums) == 1:
            self.released.append(released)
        expected = self.released[len(self.sums[-1]) - 1]
        assert expected.shape == released.shape
        return expected


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Replay:
    """Takes part in all releases of this process."""
    kept, add_noise = Replay(), Releaser._add_noise

    def add(self: Releaser, query: Any, total: Any, *given: Any) -> Any:
        return kept.take(total, add_noise(self, query, total, *given))

    monkeypatch.setattr(Releaser, "_add_noise", add)
    return kept


def read_digests(pair: Pair, folder: Path) -> list[bytes]:
    """Of each of the two tables, what its rows are to a training."""
    found = []
    for rows in pair[2:]:
        write_scene(folder, pair, rows)
        found.append(make_loader("t.csv")(parse_plan(Path("plan.toml").read_text())).digest())
    return found


def write_scene(folder: Path, pair: Pair, rows: list[str]) -> None:
    """A folder with a plan, a model by it, a table of another site, and the table."""
    label, unit, _, _ = pair
    good = numbered(60) if label in ("regression", "count") else people(60)
    (folder / "plan.toml").write_text(PLAN.format(label=LABELS[label], unit=unit))
    (folder / "other.csv").write_text("\n".join([HEADER, *good, ""]))
    (folder / "t.csv").write_bytes("\n".join([HEADER, *rows, ""]).encode("latin-1"))


def list_files(folder: Path) -> dict[str, bytes]:
    """All that is there but the codes of rows and what names the table's time, which are the owner's, and the book."""
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "t.csv" and "codes" not in path.parts
        and not path.name.startswith(BOOK)
    }  # fmt: skip


def read_charges(folder: Path) -> list[tuple[str, str, str, float]]:
    """Of each run in the folder's budget book, all but its name and time: what it is charged."""
    with closing(BudgetBook(folder / BOOK)) as book:
        return [(line.plan_name, line.unit, line.status, line.epsilon(1e-6)) for line in book.lines()]


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


EVERY = list(itertools.product(COMMANDS, PAIRS))


@pytest.mark.parametrize(("command", "threshold"), every(12, EVERY))
def test_no_command_follows_from_a_count_of_rows(
    command: str, threshold: str, in_folder: Path, replay: Replay, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given the same releases, exit code, files, charges and stdout are the same on either side of a threshold; where
    the same rows are used the sums are too.
    """
    pair = PAIRS[threshold]
    write_scene(in_folder, pair, [])
    if "model.json" in COMMANDS[command]:
        assert main(["train", "plan.toml", "--site", "b=other.csv", "--out", "model.json"]) == 0
    found = []
    for rows in pair[2:]:
        write_scene(in_folder, pair, rows)
        # A book of the run before would be in what this one says that all runs cost together.
        (in_folder / BOOK).unlink(missing_ok=True)
        capsys.readouterr()
        replay.begin()
        code = main(COMMANDS[command].split())
        found.append((code, capsys.readouterr().out, list_files(in_folder), read_charges(in_folder)))
        for place in ("new", "codes"):
            shutil.rmtree(in_folder / place, ignore_errors=True)
        (in_folder / "new.json").unlink(missing_ok=True)
    assert found[0][0] in (0, 12) or (command, pair[0]) in REFUSED
    assert found[0] == found[1]
    first, second = read_digests(pair, in_folder)
    if first == second and "survey" not in command:
        assert replay.sums[0] == replay.sums[1]


REFUSED = {("recalibrate", "multiclass")}
"""What is refused for its plan, whatever the rows are."""


@pytest.mark.parametrize(("command", "threshold"), every(9, list(itertools.product(["run", "evaluate"], PAIRS))))
def test_no_study_follows_from_a_count_of_rows(
    command: str, threshold: str, in_folder: Path, replay: Replay, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same of `Study.run` and `Study.evaluate` over tables of one process."""
    pair, found = PAIRS[threshold], []
    write_scene(in_folder, pair, [])
    study = Study("plan.toml")
    model = study.run(Simulation({"b": "other.csv"}), seed=1).model
    for rows in pair[2:]:
        write_scene(in_folder, pair, rows)
        place = Simulation({"a": "t.csv", "b": "other.csv"})
        capsys.readouterr()
        replay.begin()
        if command == "run":
            found.append(study.run(place).model.to_bytes())
        else:
            found.append(study.evaluate(model, place, epsilon=1).model.to_bytes())
        assert not capsys.readouterr().out
    assert found[0] == found[1]


@pytest.mark.parametrize("threshold", PAIRS)
def test_no_node_ends_by_a_count_of_rows(threshold: str, in_folder: Path) -> None:
    """A node reads its table, for a training and for a survey, on either side of every threshold."""
    pair = PAIRS[threshold]
    columns = [Feature(name=name, type="") for name in ("age", "ward", "y")]
    asked = OpenTable.of(columns, "y", {"epsilon": 1.0, "delta": 1e-6, "unit": "id"})
    for rows in pair[2:]:
        write_scene(in_folder, pair, rows)
        plan = parse_plan(Path("plan.toml").read_text())
        assert make_loader("t.csv")(plan).n_records >= 0
        assert make_raw_loader("t.csv")(asked) is not None


ROWS = np.random.default_rng(0).random((60, 2))
CLASSES = [0, 1] * 30
NUMBERS = np.linspace(0, 1, 60)
TIMES = np.column_stack([CLASSES, NUMBERS * 5])
TOLD: dict[str, Any] = {"bounds": [(0, 1)] * 2, "n_records": 60, "n_trees": 3, "max_depth": 2}
Fit = tuple[Any, Any, Any, dict[str, Any]]


def one_more(y: Any, label: Any) -> Any:
    """Labels with another one at the end."""
    return [*y, label] if isinstance(y, list) else np.concatenate([y, [label]])


MORE = np.concatenate([ROWS, [[0.5, 0.5]]])
FITS: dict[str, tuple[Any, dict[str, Any], Fit, Fit]] = {
    # By name: the estimator, its parameters, and two tables with labels, units, and more of a fit's arguments.
    **{
        f"a label that is {label!r}": (
            DPGBDTClassifier, {"classes": [0, 1]}, (ROWS, CLASSES, None, {}),
            (MORE, one_more(CLASSES, label), None, {}))
        for label in (None, float("nan"), 2, 0.5, "x", "", b"x", object, (1,), np.void(b"1"))
    },
    **{
        f"a number that is {label!r}": (
            DPGBDTRegressor, {"label_bounds": (0, 1)}, (ROWS, NUMBERS.tolist(), None, {}),
            (MORE, one_more(NUMBERS.tolist(), label), None, {}))
        for label in (None, float("nan"), float("inf"), "x", 10**400)
    },
    "a number that is not there, of an array": (
        DPGBDTRegressor, {"label_bounds": (0, 1)}, (ROWS, NUMBERS, None, {}),
        (MORE, one_more(NUMBERS, np.nan), None, {})),
    "a count below 0": (
        DPGBDTRegressor, {"label_bounds": (0, 9), "loss": "poisson"}, (ROWS, NUMBERS, None, {}),
        (MORE, one_more(NUMBERS, -1.0), None, {})),
    "a time below 0": (
        DPGBDTSurvival, {"intervals": [1, 2, 4]}, (ROWS, TIMES, None, {}), (MORE, one_more(TIMES, [1, -1]), None, {})),
    "an event of another code": (
        DPGBDTSurvival, {"intervals": [1, 2, 4]}, (ROWS, TIMES, None, {}), (MORE, one_more(TIMES, [7, 1]), None, {})),
    "no identifier": (
        DPGBDTClassifier, {"classes": [0, 1]}, (ROWS, CLASSES, list(range(60)), {}),
        (MORE, one_more(CLASSES, 1), [*range(60), None], {})),
    **{
        f"a {part} of {cell!r:.20}": (
            DPGBDTSurvival, {"intervals": [1, 2, 4]}, (ROWS, TIMES, None, {}),
            (MORE, np.array([*TIMES.tolist(), [cell, 1] if part == "fate" else [1, cell]], dtype=object), None, {}))
        for part in ("fate", "time") for cell in (10**400, "x", None)
    },
    "an identifier of several people": (
        DPGBDTClassifier, {"classes": [0, 1]}, (ROWS, CLASSES, list(range(60)), {}),
        (MORE, one_more(CLASSES, 1), [*range(60), 2.0**60], {})),
    **{
        f"a site of {site!r:.20}": (
            DPGBDTClassifier, {"classes": [0, 1], "secure_sums": True},
            (ROWS, CLASSES, None, {"sites": ["a", "b", "c"] * 20}),
            (MORE, one_more(CLASSES, 1), None, {"sites": [*["a", "b", "c"] * 20, site]}))
        for site in (None, "\ud800", "c" * 500, 10**400)
    },
    "a label of a kind of bytes, where classes are found": (
        DPGBDTClassifier, {"epsilon": 20}, (ROWS, CLASSES, None, {}),
        (MORE, np.array([*CLASSES, np.void(b"1")], dtype=object), None, {})),
    "one class, and a row of the other": (
        DPGBDTClassifier, {"classes": [0, 1]}, (ROWS, [0] * 60, None, {}), (MORE, [*[0] * 60, 1], None, {})),
    "no row, and one": (
        DPGBDTClassifier, {"classes": [0, 1]}, (ROWS[:0], [], None, {}), (ROWS[:1], [1], None, {})),
    "no number, and one": (
        DPGBDTRegressor, {"label_bounds": (0, 1)}, (ROWS[:0], NUMBERS[:0], None, {}),
        (ROWS[:1], NUMBERS[:1], None, {})),
    "no label at all, and one": (
        DPGBDTClassifier, {"classes": [0, 1]}, (ROWS, [None] * 60, None, {}), (ROWS, [*[None] * 59, 1], None, {})),
    "classes to be found, and a label that is none": (
        DPGBDTClassifier, {"epsilon": 20}, (ROWS, CLASSES, None, {}), (MORE, one_more(CLASSES, None), None, {})),
    "one class to be found, and a row of another": (
        DPGBDTClassifier, {"epsilon": 20}, (ROWS, [0] * 60, None, {}), (MORE, [*[0] * 60, 1], None, {})),
    "bounds to be found, and a number that is none": (
        DPGBDTRegressor, {"epsilon": 20}, (ROWS, NUMBERS.tolist(), None, {}),
        (MORE, one_more(NUMBERS.tolist(), None), None, {})),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("threshold", FITS)
def test_no_fit_follows_from_a_row(threshold: str, replay: Replay) -> None:
    """Given the same releases a fit of either table raises the same error, or makes the same model."""
    kind, parameters, *tables = FITS[threshold]
    found = []
    for X, y, units, others in tables:
        model = kind(**TOLD | parameters)
        replay.begin()
        with patch.object(secrets, "randbits", lambda n: 7):
            try:
                model.fit(X, y, units=units, **others)
            except HedgerowError as error:
                found.append((type(error), error.code, str(error)))
            else:
                found.append((model.model_.to_bytes(), model.privacy_report_.text(), repr(model.columns_)))
    assert found[0] == found[1]
    assert isinstance(found[0][0], bytes) or found[0][1] in ("data-one-class", "data-range")
