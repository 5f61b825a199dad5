"""Each kernel is compiled once, however many processes of the tests ask for it at the same time.

After a clean checkout numba's cache is empty. All workers, and the processes from which others are forked, would begin
by compiling the same kernels, a minute of processor time each. So the first compiles, and the others wait and load.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher


def compile_once() -> None:
    """From now on this process compiles a kernel only while no other one does, and looks into the cache before."""
    compile_it = Dispatcher.compile

    def compile_alone(self: Any, signature: Any) -> Any:
        folder = getattr(self._cache, "cache_path", None)
        if folder is None:
            return compile_it(self, signature)
        Path(folder).mkdir(parents=True, exist_ok=True)
        # numba's own lock first: of two threads, one would else hold this lock and the other one numba's.
        with global_compiler_lock:
            place = Path(folder, f"{self.py_func.__qualname__}.lock")
            lock = os.open(place, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                return compile_it(self, signature)
            finally:
                os.close(lock)

    Dispatcher.compile = compile_alone
