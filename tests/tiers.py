"""Which parameters of a test `make test` runs, and which are left to `make test-slow`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def every(step: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of which all but every so many-th are slow, the first one excepted."""
    return [
        value if place % step == 0 else pytest.param(*_parts(value), marks=pytest.mark.slow)
        for place, value in enumerate(values)
    ]


def all_but(slow: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Parameters of which these are slow."""
    return [pytest.param(value, marks=pytest.mark.slow) if value in slow else value for value in values]


def with_long(long: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Parameters of which these are left to `make test-long`."""
    marks = (pytest.mark.slow, pytest.mark.long)
    return [pytest.param(value, marks=marks) if value in long else value for value in values]


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
