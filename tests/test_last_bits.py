"""The same bytes on every processor: nothing that is kept or compared follows from the last bit of a library.

`tests/last_bits.py` moves those bits; other processors are tried by switching parts of this one off.
"""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hedgerow import elementary
from tests.figures import list_figures
from tests.last_bits import FUNCTIONS
from tests.processors import list_processors
from tests.tiers import with_long

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "hedgerow"

FORBIDDEN = FUNCTIONS - {"sum"} | {"quantile", "percentile", "polyfit", "cov", "corrcoef", "linalg", "special"}
"""Functions of libraries. Most sums are of integers: those of floats `tests/last_bits.py` finds in golden runs."""
METHODS = {"mean", "std", "var", "dot"}
"""Those that arrays have too."""
OWN = {"elementary", "asking"}
"""What has methods of these names and is no array."""
HARMLESS = {
    "privacy/": "accountants' figures are shown with few digits, rounded up; noise is rounded up to integers",
    "methods/dp_xgboost/settings.py": "a share of epsilon, lowered until its account holds; its noise is an integer",
    "estimators/tuning.py": "a share of the noise, which is rounded up to integers",
    "attacks/": "an attack estimates; its figures are no party's but the attacker's",
    "local/attacks.py": "an attack estimates; its figures are no party's but the attacker's",
    "local/forecast.py": "a forecast is shown with few digits",
    "app/evidence.py": "a factor for a person, shown with few digits",
    "app/recount.py": "stands alone in an evidence pack; what it says is compared with a tolerance",
    "models/plots.py": "pictures",
    "data/differences.py": "what a site's owner is told about their own table, with few digits",
    "protocol/votes.py": "a vote's power, rounded down to two digits",
    "trees/greedy_trees.py": "a product of matrices of integers, which BLAS has no part in",
}


def list_library_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each use of a function whose last bit is a library's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN:
            # Python computes math.hypot itself, by elementary operations.
            if ast.unparse(node.value) in ("np", "numpy", "math", "scipy") and ast.unparse(node) != "math.hypot":
                yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            if ast.unparse(node.func.value) not in OWN | {"np", "numpy", "math", "scipy"}:
                yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and not _is_exact(node):
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("scipy", "math", "numpy"):
            names = {alias.name for alias in node.names}
            if node.module.startswith("scipy") or names & FORBIDDEN:
                yield node.lineno, ast.unparse(node)


def _is_exact(power: ast.BinOp) -> bool:
    """Whether it is a power of two or ten, or a square, which for arrays and whole numbers is a product."""
    base, exponent = power.left, power.right
    return (isinstance(base, ast.Constant) and base.value in (2, 10)) or (
        isinstance(exponent, ast.Constant) and exponent.value == 2
    )


def test_no_value_follows_from_the_last_bit_of_a_library() -> None:
    """What another processor repeats is the same; each exception says why it is harmless."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        found[name] = list(list_library_uses(ast.parse(path.read_text(encoding="utf-8"))))
    used = {name for name, uses in found.items() if uses}
    excused = {name: [one for one in HARMLESS if name.startswith(one)] for name in used}
    assert {name: found[name] for name in used if not excused[name]} == {}
    # An excuse that nothing needs would hide what comes next.
    assert {one for each in excused.values() for one in each} == set(HARMLESS)


@pytest.mark.parametrize(
    "line",
    [
        "np.exp(x)", "math.log(x)", "x @ y", "x**0.5", "x**y", "np.linalg.norm(x)", "x.dot(y)", "x[0].mean()",
        "f(x).std()", "np.interp(x, y, z)", "from math import exp", "from scipy.special import ndtr", "np.mean(x)",
        "math.pow(x, 2)",
    ],
)  # fmt: skip
def test_the_check_of_library_uses_sees(line: str) -> None:
    """The check itself is checked: each of these ends in another bit elsewhere."""
    assert list(list_library_uses(ast.parse(line)))


def test_the_check_of_library_uses_lets_exact_ones_pass() -> None:
    """What IEEE 754 rounds in one way only, and this package's own functions, are no findings."""
    lines = "elementary.exp(x); x * y; np.sqrt(x); 2.0**k; x**2; math.fsum(x); np.cumsum(x); score.mean; 10**6"
    assert not list(list_library_uses(ast.parse(lines)))


@given(st.lists(st.floats(-744, 709), min_size=1, max_size=40))
def test_an_exponential_is_the_nearest_number_or_its_neighbour(values: list[float]) -> None:
    """Probabilities are as right as a library's."""
    with mpmath.workprec(200):
        expected = np.array([float(mpmath.exp(mpmath.mpf(value))) for value in values])
    found = elementary.exp(values)
    assert (np.abs(found - expected) <= np.spacing(expected)).all()


@given(st.lists(st.floats(5e-324, 1.7e308), min_size=1, max_size=40))
def test_a_logarithm_is_the_nearest_number_or_its_neighbour(values: list[float]) -> None:
    """Losses are as right as a library's."""
    with mpmath.workprec(200):
        expected = np.array([float(mpmath.log(mpmath.mpf(value))) for value in values])
    found = elementary.log(values)
    assert (np.abs(found - expected) <= np.spacing(np.abs(expected))).all()


def test_elementary_functions_know_their_ends() -> None:
    """Scores of any size have probabilities, without a warning."""
    assert elementary.exp([0, -0.0, 1e4, -1e4, math.inf, -math.inf]).tolist() == [1, 1, math.inf, 0, math.inf, 0]
    assert elementary.log([1, 0, math.inf]).tolist() == [0, -math.inf, math.inf]
    assert np.isnan([elementary.exp(math.nan), elementary.log(-1), elementary.log(math.nan)]).all()
    assert elementary.expm1(1e-12) == math.expm1(1e-12)
    assert elementary.powers(10, [-2, 0, 3]).tolist() == [0.01, 1, 1000]


@given(st.lists(st.floats(-2, 4), max_size=20), st.lists(st.floats(0, 2), min_size=2, max_size=9), st.data())
def test_a_line_between_points_is_as_numpy_reads_it(values: list[float], places: list[float], data: Any) -> None:
    """Bins of equal weight stay where they were."""
    ascending = np.sort(places)
    heights = np.array(data.draw(st.lists(st.floats(-9, 9), min_size=len(places), max_size=len(places))))
    found = elementary.interpolate(np.array(values), ascending, heights)
    assume(min(np.diff(ascending)) > 1e-9)
    assert found == pytest.approx(np.interp(values, ascending, heights), rel=1e-9, abs=1e-9)


def run(code: list[str], **settings: str) -> str:
    """What a Python process says, with more settings of its environment."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1", **settings}
    done = subprocess.run([sys.executable, *code], env=environment, cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


PROCESSORS = list_processors()
# To collect all tests takes longer than to run these.
GOLDEN = [
    str(path.relative_to(ROOT))
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    if "mark.golden" in path.read_text(encoding="utf-8") and path != Path(__file__)
]
GOLDEN_RUN = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "golden", *GOLDEN]


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        (PROCESSORS[-1] if PROCESSORS else {}, "up"),
        *[pytest.param(settings, "", marks=pytest.mark.slow) for settings in PROCESSORS],
        pytest.param({}, "down", marks=pytest.mark.slow),
    ],
)
def test_figures_are_the_same_to_the_last_digit(settings: dict[str, str], way: str) -> None:
    """Parties with other machines and libraries find the same curves, probabilities, edges and figures."""
    code = "import tests.last_bits, runpy; runpy.run_module('tests.figures', run_name='__main__')"
    assert json.loads(run(["-c", code], LAST_BITS=way, **settings)) == json.loads(json.dumps(list_figures()))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("way", ["up", "down"])
def test_golden_bytes_do_not_hang_on_a_library_s_last_bit(way: str) -> None:
    """A model, evaluation or survey is made of nothing that another library would compute otherwise."""
    run([*GOLDEN_RUN, "-p", "tests.last_bits"], LAST_BITS=way)


@pytest.mark.slow
@pytest.mark.parametrize("settings", with_long(PROCESSORS[1:], PROCESSORS), ids=lambda own: own["OPENBLAS_CORETYPE"])
def test_golden_bytes_are_the_same_on_an_older_processor(settings: dict[str, str]) -> None:
    """Whoever repeats a published run on another machine gets the published bytes."""
    run(GOLDEN_RUN, **settings)
