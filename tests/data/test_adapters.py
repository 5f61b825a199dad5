"""A site's own `[data]` lines: what they may say, and that commands read tables through them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hedgerow.cli.main import main
from hedgerow.client.policy import parse_policy
from hedgerow.data.adapters import PLAIN, read_adapter
from hedgerow.data.sources import adapt, column_names, open_table
from hedgerow.errors import UsageError

WriteFile = Callable[[str, bytes], Path]

PLAN = b"""
version = 1
[privacy]
epsilon = 1
delta = 1e-6
n_records = 200
[model]
n_trees = 2
max_depth = 1
[[features]]
name = "age"
type = "numeric"
min = 0
max = 110
[[features]]
name = "sex"
type = "categorical"
categories = ["male", "female"]
[label]
name = "ill"
type = "binary"
classes = [0, 1]
"""
ADAPTER = b"""
[data]
encoding = "cp1252"
separator = "pipe"
missing.age = [-999]
rename = {"\xc3\x84lter" = "age"}
recode.sex = {M = "male", W = "female"}
scale.age = "days to years"
"""
DAYS = [3000 + 300 * row for row in range(100)]
SITE = "Älter|sex|ill\n" + "".join(f"{days}|{'MW'[days % 200 // 100]}|{row % 2}\n" for row, days in enumerate(DAYS))
SITE += "-999|M|1\n"
SHARED = "age,sex,ill\n" + "".join(
    f"{days * (1 / 365.25)!r},{['male', 'female'][days % 200 // 100]},{row % 2}\n" for row, days in enumerate(DAYS)
)
SHARED += ",male,1\n"


@pytest.mark.parametrize(
    "lines",
    [
        b"[data]\nseparator = ':'",
        b"[data]\nencoding = 'utf-7'",
        b"[data]\nmising = ['.']",
        b"[data]\nmissing = '.'",
        b"[data]\nrename = {a = 'x', b = 'x'}",
        b"[data]\nrecode.sex = ['M']",
        b"[data]\nrecode.sex = {M = ['male']}",
        b"[data]\ndate.born = 'dd.mm.yyyy'",
        b"[data]\nscale.age = 0",
        b"[data]\nscale.age = 'parsecs'",
        b"[data]\nscale.born = 2\ndate.born = '%d.%m.%Y'",
        b"data = 'north.csv'",
        b"version = 1",
        b"[data",
    ],
)
def test_a_line_that_says_nothing_is_refused(lines: bytes, write_file: WriteFile) -> None:
    """A misspelled line would leave a site's table as it is, and nobody would notice."""
    with pytest.raises(UsageError) as caught:
        read_adapter(str(write_file("site.toml", lines)))
    assert caught.value.code == "adapter-file"
    with pytest.raises(UsageError):
        read_adapter(str(write_file("site.toml", lines)) + ".none")


def test_train_and_check_read_through_a_sites_file(
    write_file: WriteFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One site in its own way and one in the plan's have the same rows: the models are the same to the byte."""
    plan = str(write_file("plan.toml", PLAN))
    own, shared = write_file("own.csv", SITE.encode("cp1252")), write_file("shared.csv", SHARED.encode())
    file, made = str(write_file("site.toml", ADAPTER)), []
    for name, place, more in (("a", own, [f"x={file}"]), ("b", shared, []), ("c", own, [file])):
        out = tmp_path / f"{name}.json"
        given = ["train", plan, "--site", f"x={place}", "--out", str(out), "--seed", "1", "--no-book"]
        given += [f"--adapter={each}" for each in more]
        assert main(given) == 0
        made.append(out.read_bytes())
    assert made[0] == made[1] == made[2]
    assert main(["train", plan, "--site", f"x={own}", "--adapter", file, "--adapter", file]) == 2
    capsys.readouterr()
    assert main(["check", plan, str(own), "--adapter", file, "--json"]) == 0
    age, sex, _ = json.loads(capsys.readouterr().out)["columns"]
    assert (age["n_missing"], age["n_above"], sex["n_unlisted"]) == (1, 0, 0)


def test_every_command_reads_through_a_sites_file(
    write_file: WriteFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same rows in two codings have the same predictions, scores, noised scores, statistics and drafts."""
    plan = str(write_file("plan.toml", PLAN))
    places = [tmp_path / "own" / "site.csv", tmp_path / "shared" / "site.csv"]
    for place, content in zip(places, (SITE.encode("cp1252"), SHARED.encode()), strict=True):
        place.parent.mkdir()
        place.write_bytes(content)
    own, shared = places
    file, model = str(write_file("site.toml", ADAPTER)), str(tmp_path / "model.json")
    assert main(["train", plan, "--site", f"x={shared}", "--out", model, "--seed", "1"]) == 0

    def said(*given: str) -> str:
        capsys.readouterr()
        assert main(list(given)) == 0
        return capsys.readouterr().out.replace(str(own), "TABLE").replace(str(shared), "TABLE")

    for command in (
        ["predict", model, "TABLE", "--proba"],
        ["evaluate", model, "TABLE", "--json"],
        ["survey", "TABLE", "--epsilon", "9", "--label", "ill", "--seed", "3", "--no-book", "--json"],
        ["plan", "init", "TABLE", "--label", "ill"],
    ):
        table = command.index("TABLE")
        through = [*command[:table], str(own), *command[table + 1 :], "--adapter", file]
        assert said(*through) == said(*command[:table], str(shared), *command[table + 1 :]), command
    noised = []
    for number, given in enumerate(
        ([f"x={own}", "--adapter", f"x={file}"], [f"x={own}", "--adapter", file], [f"x={shared}"])
    ):
        out, more = str(tmp_path / f"{number}.json"), ["--epsilon", "1", "--seed", "4", "--no-book", "--site", *given]
        said("evaluate", model, "--federated", "--out", out, *more)
        noised.append(Path(out).read_bytes())
    assert noised[0] == noised[1] == noised[2]


def test_what_a_survey_says_to_type_reads_through_the_same_file(
    write_file: WriteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan that a survey drafts is by the plan's names: the training that it suggests has to read by them too."""
    write_file("own.csv", SITE.encode("cp1252"))
    write_file("site.toml", ADAPTER)
    # Short names: long ones are broken over lines.
    monkeypatch.chdir(tmp_path)
    given = ["survey", "own.csv", "--adapter", "site.toml", "--label", "ill", "--epsilon", "900", "--seed", "3"]
    assert main([*given, "--out", "found"]) == 0
    suggested = capsys.readouterr().err.partition("hedgerow train ")[2].split()
    assert main(["train", *suggested]) == 0


@pytest.mark.parametrize(
    "given",
    [
        ["evaluate", "model.json", "--federated", "--roster", "r", "--identity", "i", "--epsilon", "1"],
        ["survey", "--federated", "--roster", "r", "--identity", "i", "--epsilon", "1", "--out", "o", "--schema=PLAN"],
    ],
)
def test_an_adapter_without_a_table_is_refused(
    given: list[str], write_file: WriteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Where sites read their own tables, a file that nobody would use is not taken as if it counted."""
    monkeypatch.chdir(tmp_path)
    plan = str(write_file("plan.toml", PLAN))
    file = str(write_file("site.toml", ADAPTER))
    assert main([*(each.replace("PLAN", plan) for each in given), "--adapter", file]) == 2
    assert "(adapter-no-table, exit code 2)" in capsys.readouterr().err


def test_names_and_types_are_those_of_the_plan(write_file: WriteFile) -> None:
    """A column that another one takes the name of is hidden, and two may change places."""
    place = write_file("a.csv", b"age,days,sex\n1,2,M\n")
    own = read_adapter(str(write_file("a.toml", b"[data]\nrename = {days = 'age'}\nscale.age = 2")))
    assert column_names(adapt(place, own)) == ["age", "sex"]
    assert [str(kind) for kind in open_table(adapt(place, own)).types().values()] == ["double", "string"]
    swap = read_adapter(str(write_file("b.toml", b"[data]\nrename = {days = 'age', age = 'days'}")))
    assert column_names(adapt(place, swap)) == ["days", "age", "sex"]


def test_a_policy_has_the_lines_of_its_site() -> None:
    """The node reads its tables as the policy's [data] says; one without it as they are."""
    text = 'version = 1\ndata_set = "a"\nmax_epsilon = 1\ndelta = 1e-6\n'
    assert parse_policy(text).data == PLAIN
    assert parse_policy(text + "[data]\nmissing = ['.']\n").data.missing == (("", (".",)),)
    with pytest.raises(UsageError) as caught:
        parse_policy(text + "[data]\nmising = ['.']\n")
    assert caught.value.code == "policy-file" and "policy.data" in str(caught.value)
