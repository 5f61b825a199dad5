"""The entry point of all experiments."""

from __future__ import annotations

import importlib
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from experiments import ENDING, harness
from experiments.__main__ import BESIDE_TESTS, available, run
from hedgerow.client.budget import BOOK
from hedgerow.local.accounts import BookStore
from hedgerow.local.training import train
from hedgerow.privacy.noise import SeededNoise
from tests.builders import make_data, make_plan

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


def test_the_runs_of_an_experiment_are_counted_in_its_own_folder(tmp_path: Path) -> None:
    """Who publishes what an experiment made finds all that it released, failed runs too, beside it."""
    plan = make_plan()
    with ExitStack() as stack:
        ENDING.append(stack)
        harness.arguments("any", "", out="scores").parse_args(["--out", str(tmp_path / "made")])
        ENDING.clear()
        train(plan, {"one": make_data(plan, 20, 1)}, noise=SeededNoise(1))
    train(plan, {"one": make_data(plan, 20, 1)}, noise=SeededNoise(2))
    (line,) = BookStore(tmp_path / "made" / BOOK).lines("")
    assert line.plan_digest == plan.digest
