"""The entry point of all experiments."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.__main__ import BESIDE_TESTS, available, run

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_fault() -> None:
    """`python -m experiments | head -3` ends without a traceback."""
    command = [sys.executable, "-m", "experiments"]
    done = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout is not None and done.stderr is not None
    done.stdout.close()
    assert done.stderr.read() == b"" and done.wait() == 141
    done.stderr.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BESIDE_TESTS))
def test_what_stands_beside_tests_is_run_like_an_experiment(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The documents name these commands: each is listed with a line on it, and starts."""
    command = available()[name]
    assert command.summary and callable(getattr(importlib.import_module(command.module), command.function))
    assert run(["list"]) == 0 and f"  {name} " in capsys.readouterr().out
