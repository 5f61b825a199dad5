"""The one entry point of all experiments: ``python -m experiments NAME [--data DIR] [options]``."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from experiments import ENDING
from hedgerow.errors import HedgerowError, explain_import_error

HERE = Path(__file__).parent
BESIDE_TESTS = {
    "audit": "tests.server.audit",
    "compatibility_files": "tests.compatibility.files",
    "error_table": "tests.package.error_table",
    "faults": "tests.processes.faults",
    "field_reference": "tests.package.field_reference",
    "flower": "tests.carriers.beside_grpc",
    "make_rand_hie": "tests.package.make_rand_hie",
    "pictures": "tests.package.pictures",
    "poisoning": "tests.hostile.poisoning",
    "secagg_fuzz": "tests.secagg.fuzz",
    "secagg_mutations": "tests.secagg.mutations",
    "sentences": "tests.privacy.sentences",
    "wire_document": "tests.wire_document",
}
"""Commands that stand beside the tests that use them: what looks for faults longer than a test may, as audits do, what
writes documents and data that tests compare, and what times the deployment that tests start."""


class Command(NamedTuple):
    """Where an experiment is, and a line on it."""

    module: str
    function: str
    summary: str


def available() -> dict[str, Command]:
    """The experiments by name: `main` of a module, its `main_NAME`, found without importing it, and the catalogue."""
    from experiments.catalogue import EXPERIMENTS

    found = {name: Command("experiments.paper", "run", experiment.title) for name, experiment in EXPERIMENTS.items()}
    modules = {path.stem: f"experiments.{path.stem}" for path in HERE.glob("[!_]*.py")} | BESIDE_TESTS
    for stem, module in modules.items():
        file = HERE.parent / f"{module.replace('.', '/')}.py"
        # Tests are in a checkout only.
        tree = ast.parse(file.read_text(encoding="utf-8") if file.exists() else "")
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("main"):
                name, about = (stem, tree) if node.name == "main" else (node.name.removeprefix("main_"), node)
                found[name] = Command(module, node.name, (ast.get_docstring(about) or "").split("\n", 1)[0])
    return dict(sorted(found.items()))


def run(argv: list[str]) -> int:
    """List the experiments, or run the one that is named first; what goes wrong is said in one line."""
    try:
        experiments = available()
        if not argv or argv[0] in ("-h", "--help", "list"):
            print("Usage: python -m experiments NAME [--data DIR] [options]\n")
            width = max(len(name) for name in experiments)
            for name, command in experiments.items():
                print(f"  {name:{width}}  {command.summary}")
            return 0
        name = argv[0].replace("-", "_")
        if name not in experiments:
            print(f"There is no experiment {argv[0]!r}; known are: {', '.join(experiments)}.", file=sys.stderr)
            return 2
        command = experiments[name]
        act = getattr(importlib.import_module(command.module), command.function)
        with ExitStack() as stack:
            ENDING[:] = [stack]
            return int((partial(act, name) if command.function == "run" else act)(argv[1:]))
    except ImportError as error:
        absent = explain_import_error(error)
        if absent is None:
            raise
        print(f"experiments: {absent}", file=sys.stderr)
        return absent.exit_code
    except HedgerowError as error:
        print(f"{argv[0]}: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        ENDING.clear()


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
