"""The public interface: every name is there, documented, and loaded only when asked for."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hedgerow
from hedgerow.errors import EnvironmentFault

SOURCE = Path(__file__).parent.parent.parent / "src"


def test_every_public_name_is_there_and_documented() -> None:
    """`__all__` is sorted, each name resolves and has a docstring, and dir() shows it."""
    assert hedgerow.__all__ == sorted(hedgerow.__all__)
    for name in hedgerow.__all__:
        value = getattr(hedgerow, name)
        assert name in dir(hedgerow)
        if name != "__version__":
            assert inspect.getdoc(value), name


def test_every_warning_can_be_filtered_by_a_public_name() -> None:
    """Who turns a warning off, or into an error, needs no module of ours."""
    sources = [path.read_text(encoding="utf-8") for path in (SOURCE / "hedgerow").rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"(?m)^class (\w+Warning)\(", text)}
    assert len(named) >= 7 and named <= set(hedgerow.__all__)


def test_types_and_homes_agree() -> None:
    """What type checkers see is what __getattr__ loads: the same names from the same modules."""
    tree = ast.parse((SOURCE / "hedgerow" / "__init__.py").read_text())
    checking = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module for node in checking.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == hedgerow._HOME
    assert {*seen, "__version__"} == set(hedgerow.__all__)


def test_no_submodule_hides_a_public_name() -> None:
    """A module hedgerow/x.py would replace the public name x once it is imported."""
    modules = {path.stem for path in (SOURCE / "hedgerow").iterdir()}
    assert not modules & set(hedgerow.__all__)


def test_import_is_light() -> None:
    """`import hedgerow` loads neither numpy nor any room, but for the empty list of what plans may name."""
    code = "import hedgerow, sys; print([m for m in sys.modules if m == 'numpy' or m.startswith('hedgerow.')])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SOURCE)}
    )
    assert done.stdout.strip() == "['hedgerow.plan', 'hedgerow.plan.registry', 'hedgerow.version']"


def test_an_unknown_name_is_an_attribute_error() -> None:
    """hasattr and misspellings behave as with any module."""
    assert not hasattr(hedgerow, "DPGBDTClasifier")


def test_estimators_without_scikit_learn_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """scikit-learn is an extra: without it the estimators name the command that installs it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("hedgerow.estimators.boosted", "hedgerow.estimators.base"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(vars(hedgerow), "DPGBDTClassifier", raising=False)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(EnvironmentFault) as caught:
        importlib.import_module("hedgerow").DPGBDTClassifier  # noqa: B018
    assert "[sklearn]" in caught.value.remedy
