"""What the package says was measured is what the recorded runs measured."""

from __future__ import annotations

import re
from pathlib import Path

from hedgerow.privacy.outlook import MEASURED_SIGNAL

RUNS = Path(__file__).resolve().parents[2] / "docs" / "runs"


def test_what_is_left_of_a_model_is_that_of_the_recorded_run() -> None:
    """A new run that nobody typed in would leave `hedgerow privacy` with the numbers of an old one."""
    lines = (RUNS / "signal.txt").read_text(encoding="utf-8").replace(",", "")
    found = re.findall(r"(?m)^ *(\d+) to +\d+ +\d+ +([\d.]+) +([\d.]+) +([\d.]+)$", lines)
    assert [tuple(map(float, row)) for row in found] == [tuple(map(float, row)) for row in MEASURED_SIGNAL]
