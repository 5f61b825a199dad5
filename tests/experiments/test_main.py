"""The entry point of all experiments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_reader_that_leaves_early_is_no_fault() -> None:
    """`python -m experiments | head -3` ends without a traceback."""
    command = [sys.executable, "-m", "experiments"]
    done = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout is not None and done.stderr is not None
    done.stdout.close()
    assert done.stderr.read() == b"" and done.wait() == 141
    done.stderr.close()
