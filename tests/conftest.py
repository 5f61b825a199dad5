"""How all tests are run: profiles of hypothesis, files in memory, kernels compiled once, Ctrl-C, the system's bytes."""

from __future__ import annotations

import inspect
import os
import random
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.kernels import compile_once

# Compiling a kernel takes longer than any deadline that would mean something. A test that lists such checks loses these
# two, and may fail on a busy machine (tests/test_layout.py).
settings.register_profile(
    "hedgerow", deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
settings.load_profile("hedgerow")

MEMORY = Path("/dev/shm")
_ROOM_NEEDED = 4 << 30
MIN_EXAMPLES = 12


def _keeps_files_in_memory() -> bool:
    """Whether there is a file system in memory with room for all tests, from which programs may be started."""
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        return False
    found = os.statvfs(MEMORY)
    return found.f_bavail * found.f_frsize > _ROOM_NEEDED and not found.f_flag & os.ST_NOEXEC


if _keeps_files_in_memory():
    # Every commit of a journal waits for the disk, and thousands of tests make commits; no test cuts the power.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """The system's random bytes follow from the test's name: what it says of noise holds in every run, or in none."""
    drawn, own = random.Random(item.nodeid), os.getpid()

    def draw(size: int) -> bytes:
        return drawn.randbytes(size) if os.getpid() == own else truly(size)

    truly = os.urandom
    # What `secrets` draws, and NumPy without a seed, is the second.
    os.urandom = random._urandom = draw  # type: ignore[attr-defined]
    try:
        return (yield)
    finally:
        os.urandom = random._urandom = truly  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def forget_earlier_runs() -> None:
    """Begin the account of this process anew: what reports say of it must not follow from the tests before."""
    if (accounts := sys.modules.get("hedgerow.local.accounts")) is not None:
        accounts.forget_runs()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the fast tier a property has a third of its examples, and at least twelve; the slow tier tries all of them."""
    tier = config.getoption("markexpr")
    for item in items if tier in ("slow", "slow and not long", "not slow") else ():
        test = getattr(item, "obj", None)
        whole = getattr(test, "_hypothesis_internal_use_settings", None)
        if not inspect.isfunction(test) or whole is None or item.get_closest_marker("slow"):
            continue
        if tier != "not slow":
            item.add_marker(pytest.mark.slow)
        elif whole.max_examples > MIN_EXAMPLES:
            fewer = max(MIN_EXAMPLES, whole.max_examples // 3)
            test._hypothesis_internal_use_settings = settings(whole, max_examples=fewer)


def pytest_configure(config: pytest.Config) -> None:
    """Let processes that begin at the same time compile each kernel once between them, and Ctrl-C end each of them."""
    # A shell starts what runs in its background deaf to Ctrl-C, and so would be the commands that tests end by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    does_nothing_itself = getattr(config.option, "numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ
    if not does_nothing_itself:
        compile_once()
