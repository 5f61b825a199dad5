"""The repository as a Flower app: what travels, of which version, and what docs/flower.md tells operators."""

from __future__ import annotations

import ast
import difflib
import re
import tomllib
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hedgerow import __version__
from hedgerow.carriers import read_coordinator_file, read_site_file
from hedgerow.carriers.handing import HandedBack, HandedOn, NodeSocket, answer_handed_on, find_site, require_version
from hedgerow.cli.commands import build_parser
from hedgerow.errors import DataError, RemoteProtocolError, entries

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DOCUMENT = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")
needs_flower = pytest.mark.skipif(find_spec("flwr") is None, reason="flwr is not installed (the extra `flower`)")


def test_app_project_and_package_are_of_one_version() -> None:
    """The shim compares itself with the installed package: a release that forgot one would refuse itself."""
    tree = ast.parse((ROOT / "flower_app.py").read_text(encoding="utf-8"))
    (said,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "VERSION"
    ]
    assert said == PROJECT["project"]["version"] == __version__


def test_the_shim_imports_nothing_of_hedgerow_before_it_runs() -> None:
    """A node without Hedgerow, or with another version, must be able to say so."""
    tree = ast.parse((ROOT / "flower_app.py").read_text(encoding="utf-8"))
    names = [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in names} == {"__future__", "flwr"}


@pytest.mark.parametrize("version", ["0.0.9", ""])
def test_another_version_is_refused(version: str) -> None:
    """Whatever a coordinator or an app says that is not the installed version."""
    with pytest.raises(RemoteProtocolError) as refused:
        require_version(version, "The app")
    assert refused.value.code == "carrier-version"
    require_version(__version__, "The app")


@needs_flower
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Of what flwr's command line uses.
def test_only_the_shim_travels() -> None:
    """What `flwr run` sends: the project's file and the shim, no package, no data, no tests."""
    import zipfile
    from io import BytesIO

    from flwr.cli.build import build_fab_from_files

    files = {name: ROOT / name for name in ("pyproject.toml", "flower_app.py", "README.md", "client/session.py")}
    content, _ = build_fab_from_files(files)
    assert set(zipfile.ZipFile(BytesIO(content)).namelist()) == {"pyproject.toml", "flower_app.py", ".info/CONTENT"}


@needs_flower
def test_only_the_node_config_names_the_site() -> None:
    """A run's configuration comes from whoever starts runs: it cannot point a SuperNode at another site's file."""
    from hedgerow.carriers.flower import SITE_KEY, site_path
    from hedgerow.errors import UsageError

    def path(node: dict[str, Any]) -> Path:
        theirs = {SITE_KEY: "/theirs.toml", "simulation": "/theirs"}
        return site_path(SimpleNamespace(node_config=node, run_config=theirs))  # type: ignore[arg-type]

    partition = {"partition-id": 3, "num-partitions": 4}
    assert path({SITE_KEY: "/ours.toml", **partition}) == Path("/ours.toml")
    for node in ({}, partition):
        with pytest.raises(UsageError) as refused:
            path(node)
        assert refused.value.code == "flower-no-site"


def test_an_nvflare_clients_file_is_the_one_in_its_workspace(tmp_path: Path) -> None:
    """Its owner puts it into a folder that jobs do not fill; the socket of a resident node there goes before."""
    assert find_site(tmp_path) == tmp_path / "hedgerow.toml"
    listener = NodeSocket(tmp_path / "hedgerow.sock")
    assert find_site(tmp_path) == tmp_path / "hedgerow.sock"
    listener.close()


def test_what_an_nvflare_client_is_handed_is_answered_or_refused_by_a_word(tmp_path: Path) -> None:
    """Another version, garbage, a client without a file: nothing but a code word leaves, whatever the fault."""
    absent = partial(answer_handed_on, lambda: tmp_path / "absent.toml")
    for handed, code in (
        (HandedOn("0.0.1", b"").to_bytes(), "carrier-version"),
        (HandedOn(__version__, b"").to_bytes(), "party-file"),
        (b"garbage", "malformed"),
    ):
        back = HandedBack.from_bytes(absent(handed))
        assert (back.reply, back.refusal) == (b"", code)


@pytest.mark.parametrize("kind", [MemoryError, OverflowError, KeyError, RuntimeError, ValueError, RecursionError])
def test_what_an_unforeseen_fault_says_stays_at_the_site(
    kind: type[Exception], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Flower stores what an exception says on the SuperLink: the shape of rows that the memory had no room for.

    NVFlare sends what a client logs to its server, so it is no line of a log either.
    """

    def fail() -> Path:
        raise kind("Unable to allocate 3 GiB for an array with shape (7, 1234567)")

    back = HandedBack.from_bytes(answer_handed_on(fail, HandedOn(__version__, b"").to_bytes()))
    assert (back.reply, back.refusal) == (b"", "internal")
    assert "1234567" in capsys.readouterr().err
    assert not caplog.records


def test_a_fault_of_rows_leaves_a_site_as_one_word() -> None:
    """Which fault it is would say something of the rows, whichever way a refusal takes; a table's head may be told."""

    def fail(code: str) -> Path:
        raise DataError("Row 7 does not fit.", code=code)

    rows = entries()["DataError"].items()
    codes = {code for name, row in rows for code in (str(row.get("code", name)), *str(row.get("codes", "")).split())}
    data = HandedOn(__version__, b"").to_bytes()
    told = {HandedBack.from_bytes(answer_handed_on(partial(fail, code), data)).refusal for code in codes}
    assert told == {
        "data", "data-missing-column", "data-duplicate-column", "data-file-missing", "data-permission",
        "data-unknown-format",
    }  # fmt: skip
    calls = [
        node
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Refused", "HandedBack")
    ]
    sent = [part.attr for call in calls for part in call.args if isinstance(part, ast.Attribute)]
    assert len(calls) > 4 and sent.count("public_code") == 4 and "code" not in sent


def test_an_nvflare_job_of_xgboost_changes_in_twenty_lines_at_most() -> None:
    """What docs/nvflare.md shows of its two jobs, both of which deploy/nvflare-check runs: lines that go and come."""
    text = (ROOT / "docs" / "nvflare.md").read_text(encoding="utf-8")
    after, before = re.findall(r"^cat > job.py <<END\n(.*?)^END$", text, re.DOTALL | re.MULTILINE)
    (shown,) = re.findall(r"^```diff\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    found = [*difflib.unified_diff(before.splitlines(), after.splitlines(), n=99, lineterm="")][3:]
    assert [line.rstrip() for line in shown.splitlines()] == [line.rstrip() for line in found]
    changed = [line[0] for line in found if line[0] in "+-"]
    assert (changed.count("-"), changed.count("+")) == (8, 3) and "eight lines" in text


def test_the_extra_takes_the_versions_of_flower_that_were_run() -> None:
    """The oldest and the newest of the recorded matrix, and every one of its models was the local engine's."""
    record = (ROOT / "docs" / "runs" / "flower_matrix.txt").read_text(encoding="utf-8")
    ran = [tuple(map(int, found)) for found in re.findall(r"^== flwr (\d+)\.(\d+)\.\d+$", record, re.MULTILINE)]
    (least, below) = re.fullmatch(
        r"flwr>=1\.(\d+),<1\.(\d+)", *PROJECT["project"]["optional-dependencies"]["flower"]
    ).groups()  # type: ignore[union-attr]
    assert (min(ran), max(ran)) == ((1, int(least)), (1, int(below) - 1))
    assert record.count("byte for byte local's") == len(ran) >= 5 and "NOT local's" not in record


@needs_flower
def test_a_node_answers_what_it_cannot_use_with_a_code_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version, no request, no site: the coordinator gets one word, and no text that could quote a file."""
    from hedgerow.carriers import flower

    monkeypatch.setattr(flower, "Message", lambda content, reply_to: content)

    def refuse(app: str, site: dict[str, str], data: bytes) -> str:
        context: Any = SimpleNamespace(node_config=site, run_config={})
        reply: Any = flower.reply_to(SimpleNamespace(content=flower.wrap(data)), context, app)  # type: ignore[arg-type]
        return HandedBack.from_bytes(flower.unwrap(reply)).refusal

    request, site = HandedOn(__version__, b"x").to_bytes(), {flower.SITE_KEY: "/absent.toml"}
    assert refuse("0.0.1", site, request) == "carrier-version"
    assert refuse(__version__, site, HandedOn("0.0.1", b"x").to_bytes()) == "carrier-version"
    assert refuse(__version__, site, b"") == "malformed"
    assert refuse(__version__, {}, request) == "flower-no-site"
    assert refuse(__version__, site, request) == "party-file"


def test_the_documents_files_are_read_and_its_commands_exist(tmp_path: Path) -> None:
    """The files to begin with hold every field that is needed; the commands have the options that they name."""
    blocks = re.findall(r"^cat > (\S+) <<END\n(.*?)^END$", DOCUMENT, re.DOTALL | re.MULTILINE)
    found = {name.split("/")[-1]: text.replace("$site", "north") for name, text in blocks}
    for name in ("$site.toml", "coordinator.toml", "evaluation.toml"):
        (tmp_path / "file.toml").write_text(found[name])
        (read_site_file if "site" in name else read_coordinator_file)(tmp_path / "file.toml")
    names = "resident-node|study keys|study roster|ledger|evaluate"
    pattern = rf"\bhedgerow ((?:{names}) (?:\\\n|[^`#;|\n])*?)(?: #| &|;|$|`)"
    commands = re.findall(pattern, DOCUMENT, re.MULTILINE)
    assert len(commands) >= 6
    for words in commands:
        build_parser().parse_args(words.replace("$site", "north").replace("\\\n", " ").split())


def test_every_word_of_the_document_is_one_that_the_code_says() -> None:
    """An operator searches the table for the word in the log."""
    modules = (*ROOT.glob("src/hedgerow/transport/*.py"), *ROOT.glob("src/hedgerow/carriers/*.py"))
    sources = "".join(path.read_text(encoding="utf-8") for path in modules)
    errors = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    words = set(re.findall(r"`(carrier-version|flower-no-site|resident-absent|party-file)`", DOCUMENT))
    assert len(words) == 4
    for word in words:
        assert f'"{word}"' in sources and f"`{word}`" in errors
