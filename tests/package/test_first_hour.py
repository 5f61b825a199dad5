"""Somebody with a table and nothing else gets to a private model, a report, shapes and ONNX by five commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "deploy" / "first-hour-check"


def test_tables_take_five_commands_each(tmp_path: Path) -> None:
    """Semicolons and decimal commas; missing cells, dates and identifiers. Many rows are for the script by hand."""
    program = Path(sys.executable).parent / "hedgerow"
    options = ["--hedgerow", str(program), "--rows", "0", "--folder", str(tmp_path / "tables")]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.count("five commands in") == 2 and done.stdout.count("from `hedgerow predict`") == 2
