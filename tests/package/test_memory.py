"""A process whose memory has settled neither walks through what was loaded nor asks for pages that it had before."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hedgerow.memory import settle_memory

_COUNT_FAULTS = """
import resource
from hedgerow import memory
{change}
memory.settle_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    block = bytearray(b"\\x01") * (4 << 20)
    del block
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES_OF_A_BLOCK = (4 << 20) // 4096


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The collector as it was."""
    yield
    gc.unfreeze()


def test_what_is_loaded_is_passed_over() -> None:
    """A full collection in the middle of a round would go through every module's objects while all sites wait."""
    settle_memory()
    assert gc.get_freeze_count() > 10_000
    assert gc.isenabled()


def faults(change: str = "") -> int:
    """Pages that a new process asks the system for while it uses and frees a block four times."""
    script = _COUNT_FAULTS.format(change=change)
    return int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep memory by other rules")
def test_blocks_come_from_memory_that_was_used_before() -> None:
    """The second count shows that the first one counts: without room, a block's pages are all asked for."""
    assert faults() < PAGES_OF_A_BLOCK // 4
    assert faults("memory._make_room = lambda: None") >= PAGES_OF_A_BLOCK
