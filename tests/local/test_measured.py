"""What the package says was measured is what the recorded runs measured."""

from __future__ import annotations

import re
from pathlib import Path

from hedgerow.local.forecast import MEASURED_LOSSES
from hedgerow.privacy.outlook import MEASURED_SIGNAL

RUNS = Path(__file__).resolve().parents[2] / "docs" / "runs"


def test_what_is_left_of_a_model_is_that_of_the_recorded_run() -> None:
    """A new run that nobody typed in would leave `hedgerow privacy` with the numbers of an old one."""
    lines = (RUNS / "signal.txt").read_text(encoding="utf-8").replace(",", "")
    found = re.findall(r"(?m)^ *(\d+) to +\d+ +\d+ +([\d.]+) +([\d.]+) +([\d.]+)$", lines)
    assert [tuple(map(float, row)) for row in found] == [tuple(map(float, row)) for row in MEASURED_SIGNAL]


def test_losses_by_noise_of_the_sites_are_those_of_the_recorded_run() -> None:
    """For each epsilon and factor of the noise: the loss on Adult, and on Bank."""
    lines = (RUNS / "noise_modes.txt").read_text(encoding="utf-8")
    row = r"(?m)^(adult|bank) +([\d.]+) .*? ([\d.]+) +[\d.]+ \([\d.]+\) +([+-][\d.]+)$"
    rows = re.findall(row, lines)
    found = {(name, float(epsilon), float(factor)): float(loss) for name, epsilon, factor, loss in rows}
    listed = {(name, epsilon, factor): loss for epsilon, factor, *losses in MEASURED_LOSSES
              for name, loss in zip(("adult", "bank"), losses, strict=True)}  # fmt: skip
    assert found == listed
