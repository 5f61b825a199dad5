"""How many threads the kernels may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numba


def available_threads() -> int:
    """Threads that the kernels may use at most on this machine."""
    return int(numba.config.NUMBA_NUM_THREADS)


@contextmanager
def use_threads(n_threads: int) -> Iterator[int]:
    """Let the kernels use `n_threads` threads, at least one and at most all; the old number is restored at the end."""
    before = numba.get_num_threads()
    allowed = max(1, min(n_threads, available_threads()))
    numba.set_num_threads(allowed)
    try:
        yield allowed
    finally:
        numba.set_num_threads(before)
