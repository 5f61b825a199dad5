# SPDX-License-Identifier: Apache-2.0
"""What privacy costs, for a person: never shown as less than it is."""

from __future__ import annotations

import math


def format_up(value: float, digits: int = 6) -> str:
    """Format an epsilon or a delta for a person with this many significant digits, rounded up."""
    if value in (0.0, math.inf):
        return "0" if value == 0 else "infinite"
    shown = f"{value:.{digits}g}"
    if float(shown) < value:
        unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
        shown = f"{float(shown) + unit:.{digits}g}"
    return shown


def format_cost(epsilon: float, delta: float, digits: int = 6) -> str:
    """Format epsilon and delta in words, both rounded up as by `format_up`."""
    return f"epsilon {format_up(epsilon, digits)} at delta {format_up(delta)}"
