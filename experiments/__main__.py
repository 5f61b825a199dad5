"""The one entry point of all experiments: ``python -m experiments NAME [--data DIR] [options]``."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from pathlib import Path

from hedgerow.errors import HedgerowError, fault_of_import

HERE = Path(__file__).parent


def available() -> dict[str, str]:
    """The experiments by name, with a line on each: modules, found without importing them, and the catalogue."""
    from experiments.catalogue import EXPERIMENTS

    found = {}
    for path in sorted(HERE.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        has_main = any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)
        if has_main and not path.stem.startswith("_"):
            found[path.stem] = (ast.get_docstring(tree) or "").split("\n", 1)[0]
    found |= {name: experiment.title for name, experiment in EXPERIMENTS.items()}
    return dict(sorted(found.items()))


def run(argv: list[str]) -> int:
    """List the experiments, or run the one that is named first; what goes wrong is said in one line."""
    try:
        return _run(argv)
    except ImportError as error:
        absent = fault_of_import(error)
        if absent is None:
            raise
        print(f"experiments: {absent}", file=sys.stderr)
        return absent.exit_code
    except HedgerowError as error:
        print(f"{argv[0]}: {error}", file=sys.stderr)
        return error.exit_code


def _run(argv: list[str]) -> int:
    # What they all need is an extra, so it is not imported before its absence can be told.
    from experiments import paper
    from experiments.catalogue import EXPERIMENTS

    experiments = available()
    if not argv or argv[0] in ("-h", "--help", "list"):
        print("Usage: python -m experiments NAME [--data DIR] [options]\n")
        width = max(len(name) for name in experiments)
        for name, summary in experiments.items():
            print(f"  {name:{width}}  {summary}")
        return 0
    name = argv[0].replace("-", "_")
    if name not in experiments:
        print(f"There is no experiment {argv[0]!r}; known are: {', '.join(experiments)}.", file=sys.stderr)
        return 2
    if name in EXPERIMENTS:
        return paper.run(name, argv[1:])
    module = importlib.import_module(f"experiments.{name}")
    return int(module.main(argv[1:]))


def run_quietly(argv: list[str]) -> int:
    """As `run`, also when what reads the output, such as ``head``, ends before it."""
    try:
        code = run(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # What is still in the buffer would be written at the interpreter's end, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(run_quietly(sys.argv[1:]))
