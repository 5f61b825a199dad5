"""Experiments: tables, figures and benchmarks; ``python -m experiments`` lists and runs them.

Each experiment is one module with ``main(argv) -> int``; its first docstring line is what the list shows.
"""

from contextlib import ExitStack

ENDING: list[ExitStack] = []
"""Closed when an experiment ends, the newest first; empty where a test calls one."""
