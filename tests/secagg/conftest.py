"""Shared fixtures: a reproducible source of bytes, and the lab in which parties are moved one by one."""

from __future__ import annotations

import pytest

from tests.secagg.lab import Lab, seeded_entropy


@pytest.fixture
def entropy():
    """Reproducible bytes; no test of this room depends on the machine's generator."""
    return seeded_entropy(20_240_229)


@pytest.fixture
def lab():
    """Five nodes in a ready epoch of four slots, threshold four, and a coordinator that may lie."""
    return Lab()
