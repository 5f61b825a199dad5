"""Bad input through the real command line: each row that docs/errors.md lists, and what is refused by name."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hedgerow.cli.main import main
from hedgerow.models.model import to_bytes
from tests.wards import plan_text

TABLE = Path(__file__).parent.parent / "docs" / "errors.md"

HEADER = "age,ward,ill"
ROWS = [f"{20 + i},{'ab'[i % 2]},{i % 2}" for i in range(40)]


class Row(NamedTuple):
    """An input, and the code word and exit code with which it ends."""

    input: str
    code: str
    exit_code: int


def documented() -> list[Row]:
    """What the document's table of inputs lists: all of it is handled."""
    table = TABLE.read_text(encoding="utf-8").partition("| in a table |")[2].partition("##")[0]
    return [Row(given, "-", 0) for given in re.findall(r"(?m)^\| (.+?) \| .+ \|$", table)[1:]]


class Scene:
    """A folder with a good plan, a good table and, when asked for, a good model; a case spoils one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shape = {"calibration": "auto", "n_trees": 3, "max_depth": 2}
        self.text: str = plan_text(1, model=shape, federation={"min_sites": 1})
        self.write("plan.toml", self.text)
        self.write("site.csv", "\n".join([HEADER, *ROWS]) + "\n")

    def write(self, name: str, content: str | bytes) -> str:
        """A file's path, after writing it."""
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def train(self, site: str = "site.csv", out: str = "model.json", plan: str = "plan.toml") -> list[str]:
        """The arguments that train on a file of the folder."""
        return ["train", self.path(plan), "--site", self.path(site), "--out", self.path(out), "--seed", "1"]

    def table(self, *rows: str, header: str = HEADER, name: str = "odd.csv") -> list[str]:
        """Train on the good rows and these."""
        self.write(name, "\n".join([header, *(ROWS if header == HEADER else []), *rows]) + "\n")
        return self.train(name)

    def plan(self, old: str, new: str) -> list[str]:
        """Train by a plan in which something is replaced."""
        assert old in self.text
        self.write("plan.toml", self.text.replace(old, new, 1))
        return self.train()

    def regression(self) -> list[str]:
        """Train by a plan for a label that is a number."""
        return self.plan('type = "binary"\nclasses = [0, 1]', 'type = "regression"\nmin = 0\nmax = 1')

    def model(self, change: Callable[[bytes], bytes]) -> list[str]:
        """Predict with a model file that was changed after training."""
        assert main(self.train()) == 0
        path = self.folder / "model.json"
        path.write_bytes(change(path.read_bytes()))
        return ["predict", str(path), self.path("site.csv")]

    def in_folder(self) -> list[str]:
        return ["--folder", str(self.folder)]

    def identity(self, name: str, *options: str) -> str:
        """The public file of a new identity; the private one lies beside it."""
        path = self.folder / f"{name}.public.toml"
        if not path.exists():
            assert main(["study", "keys", name, *self.in_folder(), *options]) == 0
        return str(path)

    def edited(self, name: str, old: str, new: str) -> list[str]:
        """Show a public file after one of its values was changed."""
        self.identity(name.partition(".")[0])
        path = self.folder / name
        path.write_text(path.read_text().replace(f'name = "{old}"', f'name = "{new}"'))
        return self.roster(str(path))

    def roster(self, *parties: str) -> list[str]:
        """Build a roster of these files."""
        return ["study", "roster", *parties, "--out", self.path("roster.toml")]


def changed(**values: object) -> Callable[[bytes], bytes]:
    """Set top-level values of a model file."""
    return lambda data: json.dumps({**json.loads(data), **values}).encode()


def dates(scene: Scene) -> list[str]:
    """A column of dates, the last of which is the 29th of February of 2021."""
    bounds = 'min = "2020-01-01"\nmax = "2022-01-01"'
    scene.plan('type = "numeric"\nmin = 0\nmax = 100', f'type = "date"\n{bounds}')
    rows = [f"2021-02-{day},{'ab'[day % 2]},{day % 2}" for day in range(20, 30)]
    scene.write("odd.csv", "\n".join([HEADER, *rows]) + "\n")
    return scene.train("odd.csv")


def promising_less(data: bytes) -> bytes:
    """A model file whose report has half the epsilon that was spent, with a checksum that fits."""
    content = json.loads(data)
    content["report"]["epsilon_gdp"] /= 2
    del content["checksum"]
    return to_bytes(content)


Case = Callable[[Scene], list[str]]


def identity_too_open(scene: Scene) -> list[str]:
    scene.identity("north")
    private = scene.folder / "north.private.json"
    private.chmod(0o644)
    return ["monitor", "--roster", str(scene.folder), "--identity", str(private), "--connect", "localhost:1"]


def identity_over_existing(scene: Scene) -> list[str]:
    scene.identity("north")
    return ["study", "keys", "north", *scene.in_folder()]


def good_roster(scene: Scene) -> list[str]:
    arguments = scene.roster(scene.identity("hub", "--coordinator"), scene.identity("north"))
    assert main(arguments) == 0
    return arguments


def roster_breaks_off(scene: Scene) -> list[str]:
    path = Path(good_roster(scene)[-1])
    path.write_text(path.read_text()[:-40])
    return ["study", "roster", str(path)]


def roster_that_others_may_write(scene: Scene) -> list[str]:
    path = Path(good_roster(scene)[-1])
    path.chmod(0o664)
    return ["study", "roster", str(path)]


def roster_over_existing(scene: Scene) -> list[str]:
    return good_roster(scene)


NOT_UTF8 = "\n".join([HEADER, *ROWS, "30,\xe9,0\n"]).encode("latin-1")


def unit_missing(scene: Scene) -> list[str]:
    scene.plan("n_records = 100", 'n_records = 100\nunit = "person"\nmax_rows_per_unit = 2')
    rows = [f"{row},p{number}" for number, row in enumerate(ROWS)]
    return scene.table(*rows, "34,b,1,", header=HEADER + ",person")


def measured(scene: Scene, command: list[str]) -> list[str]:
    """Evaluate the model of this command, exactly, on its own table: up to a tenth of its rows is left out."""
    assert main(command) == 0
    return ["evaluate", scene.path("model.json"), command[command.index("--site") + 1]]


def regression_label_beyond(scene: Scene) -> list[str]:
    scene.regression()
    return scene.table("30,a,7.5", "31,b,-2")


def regression_probabilities(scene: Scene) -> list[str]:
    scene.regression()
    assert main(scene.train()) == 0
    return ["predict", scene.path("model.json"), scene.path("site.csv"), "--proba"]


def interval(scene: Scene, *options: str, is_number: bool = True) -> list[str]:
    """Ask a model that was never evaluated for intervals."""
    if is_number:
        scene.regression()
    assert main(scene.train()) == 0
    return ["predict", scene.path("model.json"), scene.path("site.csv"), *(options or ("--interval", "0.9"))]


def predicted_of_few(scene: Scene) -> list[str]:
    assert main(scene.train()) == 0
    scene.table(*["old,a,0"] * 5)
    return ["predict", scene.path("model.json"), scene.path("odd.csv")]


def checked_of_few(scene: Scene) -> list[str]:
    """A check of a table of which an eighth does not fit."""
    scene.train()
    scene.table(*["old,a,0"] * 5)
    return ["check", scene.path("plan.toml"), scene.path("odd.csv")]


def truncated_gzip(scene: Scene) -> list[str]:
    packed = gzip.compress("\n".join([HEADER, *ROWS * 50]).encode())
    scene.write("odd.csv.gz", packed[: len(packed) // 2])
    return scene.train("odd.csv.gz")


def file_of(name: str, content: str | bytes) -> Case:
    """Train on a file with this content."""

    def case(scene: Scene) -> list[str]:
        scene.write(name, content)
        return scene.train(name)

    return case


def train_by(content: bytes) -> Case:
    """Train by a plan with this content."""

    def case(scene: Scene) -> list[str]:
        scene.write("plan.toml", content)
        return scene.train()

    return case


def model_over_existing(scene: Scene) -> list[str]:
    assert main(scene.train()) == 0
    return scene.train()


def demo_over_existing(scene: Scene) -> list[str]:
    assert main(scene.train()) == 0
    return ["demo", "--out", str(scene.folder)]


def draft_over_existing(scene: Scene) -> list[str]:
    return ["plan", "init", scene.path("site.csv"), "--label", "ill", "--out", scene.path("plan.toml")]


def draft_without_features(scene: Scene) -> list[str]:
    return ["plan", "init", scene.write("one.csv", "ill\n0\n1\n"), "--label", "ill"]


def federated(scene: Scene, *options: str) -> list[str]:
    """Evaluate a good model over one good site, with these options."""
    assert main(scene.train()) == 0
    return ["evaluate", scene.path("model.json"), "--federated", "--site", scene.path("site.csv"), *options]


def picture_of_regression(scene: Scene) -> list[str]:
    scene.regression()
    return federated(scene, "--epsilon", "1", "--plot", scene.path("curve.png"))


def two_sites(scene: Scene) -> list[str]:
    return [*scene.train(), "--site", scene.path("site.csv")]


CASES: dict[str, Case] = {
    "a number beyond the feature's min or max": lambda s: s.table("-5,a,0", "1e6,b,1"),
    "an infinite number": lambda s: s.table("inf,a,0", "-inf,b,1"),
    "NaN, an empty field, `NA`, `n/a` or `null` in a feature": lambda s: s.table("NaN,a,0", ",b,1", "n/a,NA,1"),
    "a category that the plan does not list": lambda s: s.table("30,c,0"),
    "a column that the plan does not name": lambda s: s.table("30,a,1,x", "31,b,0,y", header=HEADER + ",note"),
    "one class only among a site's labels": lambda s: s.table("30,a,1", "31,b,1", header="age,ward, ill"),
    "a regression's label beyond its bounds": regression_label_beyond,
    "text where the plan says numeric": lambda s: s.table("old,a,0"),
    "a missing column": lambda s: s.table("30,0", header="age,ill"),
    "two columns of one name that the plan needs": lambda s: s.table("30,a,0,1", header=HEADER + ",ill"),
    "a row with too few fields": lambda s: s.table("30,a"),
    "a label that is not one of the plan's classes": lambda s: s.table("30,a,2"),
    "a quotation mark that is never closed": lambda s: s.table('30,a,"1', '30,"a,1', '"30,a,1'),
    "a missing label": lambda s: s.table("30,a,"),
    "a missing identifier under `privacy.unit`": unit_missing,
    "rows of which more than a tenth do not fit": lambda s: s.table(*["old,a,0"] * 5),
    "a check of rows of which more than a tenth do not fit": checked_of_few,
    "`--allow-loss` at a command that may release something": lambda s: [*s.train(), "--allow-loss", "0.5"],
    "a share of rows (`--allow-loss`) that is no share": lambda s: [*checked_of_few(s), "--allow-loss", "1.5"],
    "one of two classes that the plan does not list": lambda s: s.table(
        *["30,a,1"] * 60,
        *["31,b,2"] * 3,
        header="age,ward, ill",
    ),
    "predictions of a table of which more than a tenth does not fit": predicted_of_few,
    "a header without rows": file_of("odd.csv", HEADER + "\n"),
    "a table of 0 bytes": file_of("odd.csv", b""),
    "a file that does not exist": lambda s: s.train("nowhere.csv"),
    "a file ending that is not read": file_of("odd.xlsx", b"PK"),
    "a workbook under the name of a CSV": file_of("odd.csv", b"PK\x03\x04\x14"),
    "a header that two separators cut": lambda s: s.table("30,a,1", header=HEADER + ";a;b"),
    "a first line of numbers, or one that no separator cuts": lambda s: s.table("30,1,0", header="29.5,0,1"),
    "a gzip file that breaks off": truncated_gzip,
    "a file that is not gzip, whatever its ending": file_of("odd.csv.gz", HEADER + "\n"),
    "a file that is not Parquet, whatever its ending": file_of("odd.parquet", HEADER + "\n"),
    "text that is not UTF-8, in a row": file_of("odd.csv", NOT_UTF8),
    "a header that is not UTF-8": file_of("odd.csv", b"\xe9" + NOT_UTF8),
    "an exact evaluation, and text where the plan says numeric": lambda s: measured(s, s.table("old,a,0")),
    "an exact evaluation, and a day that there is not, or a date in another format": lambda s: measured(s, dates(s)),
    "an exact evaluation, and a row with too few fields": lambda s: measured(s, s.table("30,a")),
    "an exact evaluation, and a label that is not one of the plan's classes": lambda s: measured(s, s.table("30,a,2")),
    "an exact evaluation, and a missing label": lambda s: measured(s, s.table("30,a,")),
    "an exact evaluation, and a missing identifier": lambda s: measured(s, unit_missing(s)),
    "an exact evaluation, and a row that is not UTF-8": lambda s: measured(s, file_of("odd.csv", NOT_UTF8)(s)),
    "epsilon = inf": lambda s: s.plan("epsilon = 1", "epsilon = inf"),
    "n_trees = 0": lambda s: s.plan("n_trees = 3", "n_trees = 0"),
    "n_trees = 2.5": lambda s: s.plan("n_trees = 3", "n_trees = 2.5"),
    "epsilon = 0": lambda s: s.plan("epsilon = 1", "epsilon = 0"),
    "epsilon < 0": lambda s: s.plan("epsilon = 1", "epsilon = -1"),
    "epsilon = nan": lambda s: s.plan("epsilon = 1", "epsilon = nan"),
    "delta = 0": lambda s: s.plan("delta = 1e-06", "delta = 0"),
    "delta = 1": lambda s: s.plan("delta = 1e-06", "delta = 1"),
    "max below min": lambda s: s.plan("max = 100", "max = -1"),
    "one class": lambda s: s.plan("classes = [0, 1]", "classes = [1]"),
    "a timeout below a second": lambda s: s.plan("min_sites = 1", "min_sites = 1\nround_timeout = 0.5"),
    "idle_timeout below join_timeout": lambda s: s.plan("min_sites = 1", "min_sites = 1\njoin_timeout = 7200"),
    "a feature that is the label": lambda s: s.plan('name = "age"', 'name = "ill"'),
    "static leaf noise in S-GBDT": lambda s: s.plan(
        "max_depth = 2", 'max_depth = 2\nalgorithm = "s-gbdt"\n[s_gbdt]\nleaf_rule = "static"'
    ),
    "no min and max": lambda s: s.plan("min = 0\nmax = 100\n", ""),
    "no n_records": lambda s: s.plan("n_records = 100\n", ""),
    "so many records that no machine word holds a sum": lambda s: s.plan("n_records = 100", f"n_records = {10**15}"),
    "a misspelled field": lambda s: s.plan("max_depth", "maxdepth"),
    "a number of hundreds of digits": lambda s: s.plan("n_records = 100", f"n_records = {'9' * 400}"),
    "a plan of more than 250,000 values": lambda s: s.plan("version = 1", f"version = [{'1,' * 250_001}]"),
    "tables nested thousands deep": lambda s: s.plan("version = 1", f"version = {'[' * 9000}{']' * 9000}"),
    "an escape sequence, or a character that hides or reorders text": lambda s: s.plan(
        "version = 1", 'version = 1\nname = "\\u001b[2J\\u202e"'
    ),
    "a newer version of the plan": lambda s: s.plan("version = 1", "version = 2"),
    "text that is not TOML": lambda s: s.plan("version = 1", "version is 1"),
    "a plan that does not exist": lambda s: s.train(plan="nowhere.toml"),
    "a plan that is not text": train_by(b"\xff\xfe\x00v"),
    "a model that does not exist": lambda s: ["report", s.path("nowhere.json")],
    "a model of 0 bytes": lambda s: s.model(lambda data: b""),
    "a model that breaks off": lambda s: s.model(lambda data: data[: len(data) // 2]),
    "a model that is not JSON": lambda s: s.model(lambda data: b"model"),
    "JSON that is not a model": lambda s: s.model(lambda data: b"{}"),
    "a newer version of the model": lambda s: s.model(changed(version=99)),
    "a model that somebody edited": lambda s: s.model(changed(created_with="another")),
    "a model whose report says less than its ledger": lambda s: s.model(promising_less),
    "probabilities of a regression": regression_probabilities,
    "intervals of a model that was not evaluated": interval,
    "intervals of a model of classes": lambda s: interval(s, is_number=False),
    "an interval's coverage that is no share": lambda s: interval(s, "--interval", "90"),
    "an unknown command": lambda s: ["trian"],
    "an unknown option": lambda s: [*s.train(), "--epsilon", "3"],
    "a missing argument": lambda s: ["train", s.path("plan.toml")],
    "a seed below 0": lambda s: [*s.train(), "--seed", "-4"],
    "two sites of one name": two_sites,
    "a federated evaluation without epsilon": lambda s: federated(s),
    "a federated evaluation of a table in the clear": lambda s: federated(s, s.path("site.csv"), "--epsilon", "1"),
    "a calibration picture of a regression": picture_of_regression,
    "fewer sites than federation.min_sites": lambda s: s.plan("min_sites = 1", "min_sites = 2"),
    "an output folder that does not exist": lambda s: s.train(out="nowhere/model.json"),
    "an output that is a folder": lambda s: s.train(out="."),
    "predictions in the place of their table": lambda s: [
        "predict",
        s.path("model.json"),
        s.path("site.csv"),
        "--out",
        s.path("site.csv"),
    ],
    "a trained model over another model": model_over_existing,
    "a demonstration (`demo --out`) into a folder with a model": demo_over_existing,
    "a draft over an existing plan": draft_over_existing,
    "a draft without features": draft_without_features,
    "a private identity that others may read": identity_too_open,
    "a policy or a roster that others may write": roster_that_others_may_write,
    "an identity over an existing one": identity_over_existing,
    "a name with a slash": lambda s: ["study", "keys", "north/ward", *s.in_folder()],
    "an identity file that does not exist": lambda s: s.roster(s.path("nowhere.public.toml")),
    "a public identity that somebody edited": lambda s: s.edited("north.public.toml", "north", "south"),
    "a public identity that cannot be read": lambda s: s.roster(s.path("plan.toml"), s.identity("north")),
    "a roster without a coordinator": lambda s: s.roster(s.identity("north"), s.identity("south")),
    "one site twice in a roster": lambda s: s.roster(s.identity("hub", "--coordinator"), *[s.identity("north")] * 2),
    "a roster that breaks off": roster_breaks_off,
    "a roster over an existing one": roster_over_existing,
}

REFUSED: dict[tuple[str, int], tuple[str, ...]] = {
    ("data-missing-column", 4): ("a missing column",),
    ("data-duplicate-column", 4): ("two columns of one name that the plan needs",),
    ("rows-left-out", 11): (
        "a check of rows of which more than a tenth do not fit",
        "predictions of a table of which more than a tenth does not fit",
    ),
    ("-", 0): (
        "rows of which more than a tenth do not fit",
        "one of two classes that the plan does not list",
        "a header without rows",
        "epsilon = inf",
        "an exact evaluation, and text where the plan says numeric",
        "an exact evaluation, and a day that there is not, or a date in another format",
        "an exact evaluation, and a row with too few fields",
        "an exact evaluation, and a label that is not one of the plan's classes",
        "an exact evaluation, and a missing label",
        "an exact evaluation, and a missing identifier",
        "an exact evaluation, and a row that is not UTF-8",
    ),
    ("data-empty", 4): ("a table of 0 bytes",),
    ("data-file-missing", 4): ("a file that does not exist",),
    ("data-unknown-format", 4): (
        "a file ending that is not read",
        "a workbook under the name of a CSV",
        "a header that two separators cut",
        "a first line of numbers, or one that no separator cuts",
    ),
    ("data-truncated", 4): ("a gzip file that breaks off",),
    ("data-corrupt", 4): (
        "a file that is not gzip, whatever its ending",
        "a file that is not Parquet, whatever its ending",
    ),
    ("data-encoding", 4): ("a header that is not UTF-8",),
    ("plan-field", 3): (
        "n_trees = 0",
        "n_trees = 2.5",
        "epsilon = 0",
        "epsilon < 0",
        "epsilon = nan",
        "delta = 0",
        "delta = 1",
        "max below min",
        "one class",
        "a timeout below a second",
        "idle_timeout below join_timeout",
        "a feature that is the label",
        "a number of hundreds of digits",
        "a plan of more than 250,000 values",
        "an escape sequence, or a character that hides or reorders text",
    ),
    ("static-leaf-noise", 3): ("static leaf noise in S-GBDT",),
    ("plan-missing-field", 3): (
        "no min and max",
        "no n_records",
    ),
    ("plan-sums-too-large", 3): ("so many records that no machine word holds a sum",),
    ("plan-unknown-field", 3): ("a misspelled field",),
    ("plan-syntax", 3): (
        "tables nested thousands deep",
        "text that is not TOML",
    ),
    ("plan-newer-version", 3): ("a newer version of the plan",),
    ("plan-not-found", 3): ("a plan that does not exist",),
    ("plan-encoding", 3): ("a plan that is not text",),
    ("model-not-found", 5): ("a model that does not exist",),
    ("model-truncated", 5): (
        "a model of 0 bytes",
        "a model that breaks off",
    ),
    ("model-not-json", 5): ("a model that is not JSON",),
    ("model-wrong-kind", 5): ("JSON that is not a model",),
    ("model-newer-version", 5): ("a newer version of the model",),
    ("model-checksum", 5): ("a model that somebody edited",),
    ("model-report-untrue", 5): ("a model whose report says less than its ledger",),
    ("no-probabilities", 5): ("probabilities of a regression",),
    ("no-interval", 5): (
        "intervals of a model that was not evaluated",
        "intervals of a model of classes",
    ),
    ("interval-coverage", 2): ("an interval's coverage that is no share",),
    ("usage", 2): (
        "an unknown command",
        "an unknown option",
        "a missing argument",
        "a seed below 0",
        "a share of rows (`--allow-loss`) that is no share",
        "`--allow-loss` at a command that may release something",
        "a federated evaluation without epsilon",
        "a federated evaluation of a table in the clear",
        "a calibration picture of a regression",
    ),
    ("duplicate-site", 2): ("two sites of one name",),
    ("too-few-sites", 2): ("fewer sites than federation.min_sites",),
    ("out-folder-missing", 2): ("an output folder that does not exist",),
    ("out-is-folder", 2): ("an output that is a folder",),
    ("out-is-input", 2): ("predictions in the place of their table",),
    ("model-exists", 2): (
        "a trained model over another model",
        "a demonstration (`demo --out`) into a folder with a model",
    ),
    ("plan-exists", 2): ("a draft over an existing plan",),
    ("usage-no-features", 2): ("a draft without features",),
    ("identity-permissions", 10): ("a private identity that others may read",),
    ("file-of-others", 10): ("a policy or a roster that others may write",),
    ("identity-exists", 2): (
        "an identity over an existing one",
        "a roster over an existing one",
    ),
    ("identity-name", 2): ("a name with a slash",),
    ("identity-not-found", 2): ("an identity file that does not exist",),
    ("identity-proof", 8): ("a public identity that somebody edited",),
    ("roster-file", 2): (
        "a public identity that cannot be read",
        "a roster without a coordinator",
        "one site twice in a roster",
        "a roster that breaks off",
    ),
}
"""Inputs that no document lists, since the error says it, by code word (a dash: none) and exit code."""

ALL_ROWS = [*documented(), *(Row(given, *end) for end, inputs in REFUSED.items() for given in inputs)]


def test_table_and_cases_agree() -> None:
    """No row of the document is without a case, and no case without a row."""
    inputs = [row.input for row in ALL_ROWS]
    assert len(inputs) == len(set(inputs))
    assert set(inputs) == set(CASES)


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row.input)
def test_bad_input(row: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its exit code and code word, three parts and no traceback; or a result when it is handled."""
    arguments = CASES[row.input](Scene(tmp_path))
    capsys.readouterr()
    exit_code = main(arguments)
    printed = capsys.readouterr()
    assert exit_code == row.exit_code, printed.err
    assert "Traceback" not in printed.err
    if row.code == "-":
        assert "Error" not in printed.err
        assert printed.out
        return
    assert not printed.out or arguments[0] == "check"
    assert f"({row.code}, exit code {row.exit_code})" in printed.err
    assert "\nError   " in f"\n{printed.err}"
    assert "To do   " in printed.err


@pytest.mark.parametrize(
    ("odd", "plain"),
    [("-5,a", "0,a"), ("1e6,b", "100,b"), ("inf,a", "100,a"), ("NaN,a", ",a"), ("null,NA", ","), ("30,c", "30,zzz")],
)
def test_handled_values_count_as_documented(
    odd: str, plain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value that is handled predicts as the value that the document says it counts as."""
    scene = Scene(tmp_path)
    assert main(scene.plan("n_trees = 3", "n_trees = 40")) == 0
    scene.write("ask.csv", f"age,ward\n{odd}\n{plain}\n")
    capsys.readouterr()
    assert main(["predict", scene.path("model.json"), scene.path("ask.csv"), "--proba"]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert first == second
