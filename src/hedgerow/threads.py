"""How many threads the kernels may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numba


def available_threads() -> int:
    """Threads that the kernels may use at most on this machine."""
    return int(cast(Any, numba.config).NUMBA_NUM_THREADS)


def threads_of_jobs(n_jobs: int | None) -> int:
    """What scikit-learn's `n_jobs` means: None is 1, -1 all, -2 all but one."""
    if n_jobs is None:
        return 1
    return max(1, available_threads() + 1 + n_jobs) if n_jobs < 0 else max(1, n_jobs)


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
