"""Fixtures that every test may use: small plans, random rows, and real runs over them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

# Compiling a kernel takes longer than any deadline that would mean something.
settings.register_profile("hedgerow", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("hedgerow")


def _module(name: str) -> ModuleType:
    """A module of this folder, loaded by path: tests are not a package."""
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"hedgerow_test_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def factory() -> ModuleType:
    """The functions of tests/factories.py."""
    return _module("factories")


@pytest.fixture(scope="session")
def wards() -> ModuleType:
    """The functions of tests/wards.py."""
    return _module("wards")
