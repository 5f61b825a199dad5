"""Somebody with a table and nothing else gets to a private model, a report, shapes and ONNX by five commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from typing import Any

import pytest

from hedgerow.cli.main import main

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "deploy" / "first-hour-check"


@pytest.fixture
def script() -> ModuleType:
    """The script as a module; its name has no ending."""
    loader = SourceFileLoader("first_hour_check", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_tables_take_five_commands_each(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Semicolons and decimal commas; missing cells, dates and identifiers. Many rows are for the script by hand.

    The commands run in this process; that each starts by itself, test_documents.py sees.
    """
    said: list[str] = []

    def typed(words: Sequence[str], cwd: Path, **_: Any) -> CompletedProcess[str]:
        said.append(capsys.readouterr().out)
        monkeypatch.chdir(cwd)
        code = main(list(words[1:]))
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return CompletedProcess(words, code, printed.out, printed.err)

    monkeypatch.setattr(script.subprocess, "run", typed)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--rows", "0", "--folder", str(tmp_path / "tables")])
    script.main()
    said.append(capsys.readouterr().out)
    assert "".join(said).count("five commands in") == 2 and "".join(said).count("from `hedgerow predict`") == 2
