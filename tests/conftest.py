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


@pytest.fixture(scope="session")
def factory() -> ModuleType:
    """The functions of tests/factories.py, loaded by path: tests are not a package."""
    path = Path(__file__).parent / "factories.py"
    spec = importlib.util.spec_from_file_location("hedgerow_test_factories", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
