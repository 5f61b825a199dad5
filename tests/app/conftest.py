"""What every test of `app` leaves as it found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hedgerow.app.output import end_log


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    """A log ends with its command."""
    yield
    end_log()
