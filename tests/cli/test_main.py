"""The entry point: quick help, and an exit code with three sentences for whatever happens."""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hedgerow.cli.main as entry
from hedgerow.app import output
from hedgerow.cli.commands import SECTIONS, build_parser
from hedgerow.cli.main import main
from hedgerow.errors import HedgerowError

SOURCE = str(Path(__file__).parent.parent.parent / "src")
HEAVY = ("numpy", "numba", "scipy", "pyarrow", "rich", "sklearn", "cryptography", "autodp")


def test_help_imports_nothing_heavy() -> None:
    """`hedgerow --help`, `hedgerow train --help` and a wrong command answer before anything large is loaded."""
    code = f"""
import contextlib, io, sys
sys.path.insert(0, {SOURCE!r})
from hedgerow.cli.main import main
with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
    codes = [main(["--help"]), main(["train", "--help"]), main(["--version"]), main(["no-such-command"])]
assert "usage: hedgerow" in out.getvalue()
loaded = [name for name in {HEAVY!r} if name in sys.modules]
print(codes, loaded)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0, 0, 0, 2] []"


@pytest.mark.parametrize("name", " ".join(SECTIONS.values()).split())
def test_a_mistyped_command_is_told_what_it_is_near_to(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Who swaps two letters reads the command, and not a list of thirty."""
    assert main([name[1] + name[0] + name[2:]]) == 2
    assert name in capsys.readouterr().err.split("To do")[0]


def test_the_help_lists_every_command_in_one_section(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that no section names would be found by nobody."""
    assert main(["--help"]) == 0
    printed = re.findall(r"(?m)^  ([a-z][a-z-]*)(?:  |$)", capsys.readouterr().out.split("options:")[0])
    (commands,) = (each for each in build_parser()._actions if each.choices)
    assert printed == " ".join(SECTIONS.values()).split() and sorted(printed) == sorted(commands.choices or ())


def test_commands_for_people_load_no_compiler() -> None:
    """Keys, rosters, a study's guests, a table's fit and the monitor are at hand long before a run could start."""
    light = ["transport.identities", "app.study", "app.join", "app.monitor", "app.owner"]
    code = f"import sys; sys.path.insert(0, {SOURCE!r})\n"
    code += "".join(f"import hedgerow.{name}\n" for name in light)
    code += "print([name for name in ('numba', 'scipy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command of the overview explains itself."""
    commands = ["demo", "plan init", "privacy", "train", "evaluate", "predict", "report", "plot", "export"]
    for command in commands:
        assert main([*command.split(), "--help"]) == 0
        assert f"usage: hedgerow {command}" in capsys.readouterr().out


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`hedgerow` alone shows the overview; `hedgerow plan` alone says that its command is missing."""
    assert main([]) == 0
    assert "start here:" in capsys.readouterr().out
    assert main(["plan"]) == 2


def test_an_option_that_a_command_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    """The help that is pointed to is that of the command, which lists the options that there are."""
    assert main(["train", "--plan", "plan.toml", "--site", "a.csv", "b.toml"]) == 2
    assert main(["plan", "init", "a.csv", "--label", "y", "--labl", "y"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "Unrecognized arguments: --plan" in said and "`hedgerow train --help`" in said
    assert "Unrecognized arguments: --labl" in said and "`hedgerow plan init --help`" in said


def test_a_promise_that_no_plan_could_hold_is_not_drafted(capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused at once, and not by the first command that reads the draft."""
    assert main(["plan", "init", "a.csv", "--label", "y", "--epsilon", "-1"]) == 2
    assert "--epsilon" in capsys.readouterr().err


def test_an_error_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json an error is one object on stderr with the same five facts, and stdout stays empty."""
    assert main(["report", "nowhere.json", "--json"]) == 5
    printed = capsys.readouterr()
    error = json.loads(printed.err)["error"]
    assert printed.out == ""
    assert (error["code"], error["exit_code"]) == ("model-not-found", 5)
    assert set(error) == {"code", "exit_code", "what", "cause", "remedy"}


def test_the_help_names_the_exit_codes_that_the_documents_do(capsys: pytest.CaptureFixture[str]) -> None:
    """A supervisor that sees 143 finds it in `hedgerow --help`; only what a pipe does to a reader is left out."""
    main(["--help"])
    shown = set(re.findall(r"(?:^|[ ,])(\d+) [a-z]", capsys.readouterr().out.partition("exit codes:")[2]))
    text = (Path(SOURCE).parent / "docs" / "errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| ([\d, ]+) \|", text.partition("## Bad input")[0])
    assert {code for row in rows for code in row.split(", ")} - {"141"} <= shown


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of all its commands."""
    yield parser
    for action in parser._actions:
        for command in action.choices.values() if isinstance(action.choices, dict) else ():
            yield from commands_of(command)


def test_no_help_is_wider_than_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prose, tables and the commands of examples are read, and copied, in a window of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line for parser in commands_of(build_parser()) for line in parser.format_help().split("\n")]
    assert [line for line in lines if len(line) > 80] == []


def interrupted_in_a_kernel(n_layers: int) -> BaseException:
    """What comes out of a compiled function during which Ctrl-C was pressed; deeper while that is loaded."""
    error: BaseException = KeyboardInterrupt()
    for _ in range(n_layers):
        below, error = error, SystemError("returned a result with an exception set")
        error.__cause__ = below
    return error


@pytest.mark.parametrize(
    ("raised", "exit_code", "said"),
    [
        (KeyboardInterrupt(), 130, "Interrupted"),
        (interrupted_in_a_kernel(1), 130, "Interrupted"),
        (interrupted_in_a_kernel(4), 130, "Interrupted"),
        (PermissionError(13, "Permission denied", "model.json"), 10, "(file-operation, exit code 10)"),
        (OSError(28, "No space left on device", "a.csv"), 10, "(disk-full, exit code 10)"),
        (OSError("Error writing bytes to file. Detail: [errno 28] No space left on device"), 10, "(disk-full,"),
        (RuntimeError("cannot cache function 'f': no locator available for file 'f.py'"), 10, "NUMBA_CACHE_DIR"),
        (ZeroDivisionError("division by zero"), 70, "(internal, exit code 70)"),
    ],
)
def test_what_nobody_planned(
    raised: BaseException,
    exit_code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Interruptions, the system's refusals and faults of our own end without a traceback, each with its exit code."""

    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("hedgerow.models.model.Model.load", fail)
    assert main(["report", "model.json"]) == exit_code
    printed = capsys.readouterr().err
    assert said in " ".join(printed.split())
    assert "Traceback" not in printed


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """--debug lets the exception through, for those who mend it."""

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("hedgerow.models.model.Model.load", fail)
    with pytest.raises(ZeroDivisionError):
        main(["report", "model.json", "--debug"])


@pytest.mark.slow
def test_a_reader_that_stops_is_no_error(model: Path, study: Path) -> None:
    """`hedgerow predict ... | head -1` ends quietly with 141, as programs do whose reader has gone."""
    (study / "long.csv").write_text("age,ward\n" + "50,a\n" * 50_000)
    command = [sys.executable, "-m", "hedgerow", "predict", str(model), str(study / "long.csv"), "--proba"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={"PYTHONPATH": SOURCE, "PATH": ""}
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "probability_no,probability_yes\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_errors_are_laid_out(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What, cause and remedy stand in a column each, wrapped to the terminal's width."""
    monkeypatch.setenv("COLUMNS", "60")
    error = HedgerowError("The cat sat on the mat. " * 5, cause="It was tired.", remedy="Let it sleep.", code="cat")
    assert output.report_error(error, as_json=False) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Error   The cat")
    assert lines[1].startswith("        ")
    assert lines[-3:] == ["Cause   It was tired.", "To do   Let it sleep.", "        (cat, exit code 1)"]
    assert max(map(len, lines)) <= 60


def test_commands_are_shown_as_they_can_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After `make demo` nothing of ours is on the PATH: then the program's folder is part of what is shown."""
    own = tmp_path / "my env" / "bin"
    own.mkdir(parents=True)
    for program in ("hedgerow", "python"):
        (own / program).write_text("#!/bin/sh\n")
        (own / program).chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", "")
    assert output.format_command("hedgerow report m.json") == f"'{own}/hedgerow' report m.json"
    monkeypatch.chdir(tmp_path)
    assert output.format_command("hedgerow report m.json") == "'my env/bin/hedgerow' report m.json"
    assert output.format_command("pip install x") == "pip install x"
    monkeypatch.setenv("PATH", str(own))
    assert output.format_command("hedgerow report m.json") == "hedgerow report m.json"


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_first_start_says_that_it_takes_a_while(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_compiled: bool, is_terminal: bool
) -> None:
    """A person who starts a command of a fresh installation reads at once why it is slow; a log and a script do not."""
    monkeypatch.setattr(entry, "_has_compiled_kernels", lambda: is_compiled)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    assert main(["schema", "plan"]) == 0
    assert bool(capsys.readouterr().err) == (is_terminal and not is_compiled)


class Screen(io.TextIOWrapper):
    """What a program writes to, as a terminal or as a file of other signs than UTF-8 has."""

    def __init__(self, encoding: str, is_terminal: bool) -> None:
        self.bytes, self._is_terminal = io.BytesIO(), is_terminal
        super().__init__(self.bytes, encoding=encoding)

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437", "utf-8"])
def test_what_was_paid_for_is_shown_whatever_signs_there_are(
    encoding: str, is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A survey's statistics are released once: a sign that the terminal lacks is its number, and a file has UTF-8."""
    table = tmp_path / "a.csv"
    table.write_text("age,\N{GREEK SMALL LETTER ALPHA}\n" + "\u226565,1\n" * 50, encoding="utf-8")
    screen = Screen(encoding, is_terminal)
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["survey", str(table), "--epsilon", "5"]) == 0
    shown = screen.bytes.getvalue().decode(encoding if is_terminal else "utf-8")
    assert ("\u03b1" in shown) != ("\\u03b1" in shown)
    assert "\u03b1" in shown or (is_terminal and encoding in ("ascii", "cp1252"))
