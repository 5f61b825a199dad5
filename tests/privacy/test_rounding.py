"""What privacy costs is never shown as less than it is."""

from __future__ import annotations

import math
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import hedgerow
from hedgerow.privacy.rounding import format_up

SOURCES = Path(hedgerow.__file__).parent


@given(st.floats(1e-12, 1e6), st.integers(1, 6))
def test_a_cost_is_rounded_up_by_less_than_its_last_digit(value: float, digits: int) -> None:
    """Who reads an epsilon or a delta reads no less than was spent, and hardly more."""
    shown = float(format_up(value, digits))
    assert value <= shown <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12)


def test_what_nothing_bounds_and_what_costs_nothing_have_words() -> None:
    """As reports have them."""
    assert (format_up(math.inf), format_up(0.0), format_up(1e-5, 3)) == ("infinite", "0", "1e-05")


def test_no_epsilon_or_delta_is_rounded_to_the_nearest() -> None:
    """A picture, a page or an error once showed less than had been spent: digits of a cost come from `format_up`."""
    nearest = re.compile(
        r"(?:epsilon|delta|spent|cost)\w*['\"\]]*:\.\d+[fg]\}"
        r"|short\([\w.]*(?:epsilon|delta)\)|number\((?:total|spent|\w+\.epsilon)\b"
    )
    files = [*SOURCES.rglob("*.py"), SOURCES / "errors.toml"]
    assert [f"{file.name}: {found}" for file in files for found in nearest.findall(file.read_text("utf-8"))] == []
