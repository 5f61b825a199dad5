"""Fixtures that every test may use: small plans, random rows, and real runs over them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

# Compiling a kernel takes longer than any deadline that would mean something.
settings.register_profile("hedgerow", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("hedgerow")

MEMORY = Path("/dev/shm")
_ROOM_NEEDED = 4 << 30
_SLOWEST = ("flower/test_deployment.py", "package/test_documents.py", "processes/", "hostile/test_strangers.py")
"""They begin first: one that began last would be waited for by the other workers."""


def _keeps_files_in_memory() -> bool:
    """Whether there is a file system in memory with room for all tests, from which programs may be started."""
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        return False
    found = os.statvfs(MEMORY)
    return found.f_bavail * found.f_frsize > _ROOM_NEEDED and not found.f_flag & os.ST_NOEXEC


if _keeps_files_in_memory():
    # Every commit of a journal waits for the disk, and thousands of tests make commits; no test cuts the power.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slowest files first."""
    folder = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        name = item.path.relative_to(folder).as_posix()
        return next((number for number, start in enumerate(_SLOWEST) if name.startswith(start)), len(_SLOWEST))

    items.sort(key=rank)


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
