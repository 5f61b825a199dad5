"""A plugin of pytest that moves the last bit of whatever a library may compute differently on another processor.

`LAST_BITS=up python -m pytest -p tests.last_bits ...` imports the package through it: each exponential, logarithm,
power, product of matrices and sum of floating-point numbers is one unit in the last place off, unless it is exact. A
test that compares bytes fails if one of these is in the way. Kernels are left alone: numba fuses and reorders nothing
unless it is told to.
"""

from __future__ import annotations

import ast
import importlib.machinery
import math
import os
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np

# What accountants find is rounded up, to integers of noise or to few digits.
ANY_DIGIT = ("hedgerow.privacy", "hedgerow.elementary", "hedgerow.attacks")
FUNCTIONS = {
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "power", "float_power", "pow", "sin", "cos",
    "tan", "arctan", "arctan2", "sinh", "cosh", "tanh", "hypot", "cbrt", "interp", "dot", "matmul", "einsum", "inner",
    "vdot", "tensordot", "norm", "mean", "average", "std", "var", "sum", "gamma", "lgamma", "erf", "erfc",
}  # fmt: skip
ADDS_UP = {"sum", "mean", "average", "dot", "matmul", "einsum", "inner", "vdot", "tensordot"}
WAY = os.environ.get("LAST_BITS")
"""Up or down; without it this module changes nothing."""
MOVE = -math.inf if WAY == "down" else math.inf
LOG = os.environ.get("LAST_BITS_LOG")
"""A file that is told which places were moved."""


def move(value: Any, where: str = "") -> Any:
    """The floating-point numbers next to these; whole ones stay, for they are exact."""
    if not isinstance(value, float | np.floating | np.ndarray) or np.asarray(value).dtype.kind != "f":
        return value
    kind = np.asarray(value).dtype
    moved = np.where(np.rint(value) == value, value, np.nextafter(value, kind.type(MOVE)))
    if LOG and np.any(moved != value):
        with open(LOG, "a", encoding="utf-8") as stream:
            print(where, file=stream)
    if isinstance(value, np.ndarray):
        return moved.astype(kind)
    return type(value)(moved)


def moved_call(where: str, name: str, function: Callable[..., Any], *values: Any, **options: Any) -> Any:
    """What a function of a library says, a bit off."""
    found = function(*values, **options)
    if name not in ADDS_UP or getattr(np.asarray(found), "dtype", None) != np.float64:
        return move(found, where)
    # Sums of multiples of one power of two are exact in any order.
    given = [getattr(function, "__self__", None), *values]
    parts = [np.asarray(part) for part in given if isinstance(part, np.ndarray | list)]
    if all(part.dtype.kind in "iub" or _is_coarse(part) for part in parts) and name != "mean":
        return found
    return move(found, where)


def _is_coarse(values: np.ndarray[Any, Any]) -> bool:
    """Whether all are multiples of 2**-26, so that sums and products are exact, or may be."""
    return values.dtype.kind == "f" and bool(np.all(np.rint(values * 2.0**26) == values * 2.0**26))


def moved_power(where: str, base: Any, exponent: Any) -> Any:
    """A power, a bit off; NumPy multiplies for squares of arrays, and whole powers of whole numbers are exact."""
    found = base**exponent
    if isinstance(base, np.ndarray) and isinstance(exponent, int) and exponent == 2:
        return found
    if isinstance(exponent, int) and isinstance(base, float) and base in (2.0, 10.0) and abs(exponent) < 23:
        return found
    if isinstance(base, int | float) and base == 2 and np.all(np.rint(exponent) == exponent):
        return found
    if exponent == 2 and isinstance(base, float) and float(base).as_integer_ratio()[0].bit_length() <= 26:
        return found
    return move(found, where)


def moved_product(where: str, first: Any, second: Any) -> Any:
    """A product of matrices, a bit off."""
    found = first @ second
    if _is_coarse(np.asarray(first)) and _is_coarse(np.asarray(second)):
        return found
    return move(found, where)


class _Move(ast.NodeTransformer):
    """Send each such place of a module through the functions above."""

    def __init__(self, module: str) -> None:
        self.module = module

    def _where(self, node: ast.expr) -> ast.Constant:
        return ast.Constant(f"{self.module}:{node.lineno}: {ast.unparse(node)[:90]}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if any("njit" in ast.unparse(each) or "kernel" in ast.unparse(each) for each in node.decorator_list):
            return node
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        where = self._where(node)
        self.generic_visit(node)
        name = {ast.Pow: "__moved_power__", ast.MatMult: "__moved_product__"}.get(type(node.op))
        if name is None:
            return node
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [where, node.left, node.right], []), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        where = self._where(node)
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in FUNCTIONS:
            return node
        if ast.unparse(node.func) == "math.hypot" or ast.unparse(node.func.value) in ("elementary", "_CONTEXT", "_log"):
            return node
        given = [where, ast.Constant(node.func.attr), node.func, *node.args]
        return ast.copy_location(ast.Call(ast.Name("__moved_call__", ast.Load()), given, node.keywords), node)


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Never from bytecode that was kept, and never kept."""
        return self.source_to_code(self.get_data(self.path), self.path)

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        tree = ast.parse(data)
        if not self.name.startswith(ANY_DIGIT):
            tree = ast.fix_missing_locations(_Move(self.name).visit(tree))
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)

    def exec_module(self, module: Any) -> None:
        vars(module).update(__moved_call__=moved_call, __moved_power__=moved_power, __moved_product__=moved_product)
        super().exec_module(module)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith("hedgerow."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


if WAY:
    if any(name.startswith("hedgerow.") for name in sys.modules):
        raise RuntimeError("the package is imported already: name this plugin by -p")
    sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
