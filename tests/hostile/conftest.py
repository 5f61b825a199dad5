"""Federations in memory and in processes, with a hostile party in them; the fixtures are those of the other rooms."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def _conftest_of(room: str) -> ModuleType:
    """The fixtures of another folder of tests, loaded by path: tests are not a package."""
    path = Path(__file__).parents[1] / room / "conftest.py"
    spec = importlib.util.spec_from_file_location(f"hedgerow_hostile_{room}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while it is loaded.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_runtime = _conftest_of("runtime")
federate, killed, crash = _runtime.federate, _runtime.killed, _runtime.crash

_processes = _conftest_of("processes")
theatre = _processes.theatre
