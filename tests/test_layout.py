"""The house rules that a reader relies on: where things are, what may import what, and which rooms are pure."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "hedgerow"

# Which room may import which others. A room is never listed for itself.
MAY_IMPORT: dict[str, set[str]] = {
    "plan": set(),
    "protocol": {"plan"},
    "losses": {"plan"},
    "storage": set(),
    "privacy": {"plan", "protocol"},
    "crypto": set(),
    "secagg": {"crypto"},
    "rounds": {"plan", "protocol", "privacy", "crypto", "secagg"},
    "transport": {"plan", "protocol", "crypto"},
    "study": {"plan", "protocol", "crypto", "storage", "transport"},
    "trees": {"plan", "protocol", "losses"},
    "data": {"plan", "protocol", "losses", "storage", "privacy", "trees", "survey"},
    "attacks": {"plan", "protocol", "privacy"},
    "evaluation": {"plan", "protocol", "losses", "privacy", "trees"},
    "survey": {"plan", "protocol", "losses", "privacy", "trees"},
    "training": {"plan", "protocol", "losses", "privacy", "trees", "evaluation"},
    "methods": {"plan", "protocol", "losses", "privacy", "trees", "evaluation", "survey", "training"},
    "client": {
        "plan", "protocol", "losses", "storage", "privacy", "crypto", "secagg", "rounds", "transport", "trees", "data",
        "evaluation", "survey", "training", "methods", "builds",
    },
    "server": {
        "plan", "protocol", "losses", "storage", "privacy", "crypto", "secagg", "rounds", "transport", "trees",
        "evaluation", "survey", "training", "methods", "builds",
    },
    "models": {
        "plan", "protocol", "losses", "storage", "privacy", "trees", "data", "evaluation", "survey", "training",
        "methods",
    },
    "local": {
        "plan", "protocol", "losses", "storage", "privacy", "crypto", "secagg", "rounds", "transport", "trees", "data",
        "evaluation", "survey", "training", "methods", "models", "client", "server", "attacks",
        "builds",
    },
}  # fmt: skip
# The edges put rooms together. What a party does is in `app`: the command line and the carriers stand on it, and on
# no other edge; the estimators are a fit in one process and need no party. Nothing but `__main__` imports `cli`.
MAY_IMPORT["estimators"] = {*MAY_IMPORT["local"], "local"}
MAY_IMPORT["plugins"] = MAY_IMPORT["builds"] = set()
MAY_IMPORT["app"] = {*MAY_IMPORT["local"], "local", "plugins", "study"}
MAY_IMPORT["carriers"] = {*MAY_IMPORT["app"], "app"}
MAY_IMPORT["testing"] = MAY_IMPORT["client"] | MAY_IMPORT["server"] | {"client", "server"}
MAY_IMPORT["cli"] = {*MAY_IMPORT["carriers"], "carriers", "testing"}
# Every room may import these.
GROUND = {"errors", "codec", "elementary", "version"}
# These names were given to the top of the repository. Nothing needs them there, so they are links into the package.
LINKS = ("client", "protocol", "secagg", "server")

# A pure room computes: whatever it imports from outside stands here, so that nothing slips in unseen. No module on this
# list opens a socket or a file, reads a clock or draws a random number by itself.
PURE_STANDARD = {
    "__future__", "abc", "bisect", "collections", "contextlib", "dataclasses", "decimal", "enum", "fractions",
    "functools", "hashlib", "hmac", "html", "itertools", "json", "math", "operator", "re", "string", "struct",
    "textwrap", "tomllib", "types", "typing", "unicodedata", "warnings", "weakref",
}  # fmt: skip
PURE: dict[str, set[str]] = {
    "codec": {"numpy"},
    "elementary": {"numpy"},
    # Dates are counted in days; no clock is read (IMPURE_ATTRIBUTES). Who adds a member is read off the stack.
    "plan": {"datetime", "inspect"},
    "protocol": {"numpy", "google"},
    "losses": {"numpy", "numba"},
    # Threads divide integer sums, which do not depend on how they are divided.
    "trees": {"numpy", "numba", "concurrent"},
    "attacks": {"numpy", "scipy"},
    "evaluation": {"numpy"},
    "survey": {"numpy", "zlib"},
    "training": {"numpy", "numba"},
    "methods": {"numpy", "numba", "concurrent"},
    "privacy": {"numpy", "numba", "scipy", "dp_accounting"},
    # Threads make parts of a mask, which is the same however it is divided.
    "crypto": {"numpy", "cryptography", "concurrent"},
    "secagg": {"numpy", "numba"},
    "rounds": {"numpy"},
}
IMPURE_CALLS = {"open", "input", "print", "exec", "eval", "__import__", "breakpoint"}
# Libraries that the pure rooms may import can still draw randomness or touch files by these names.
IMPURE_ATTRIBUTES = {
    "default_rng", "seed", "generate", "generate_key", "urandom", "token_bytes", "rvs",
    "load", "save", "savez", "loadtxt", "savetxt", "genfromtxt", "fromfile", "tofile", "memmap", "import_module",
    "now", "utcnow", "today",
}  # fmt: skip


# A generator that is given its whole state as an argument is as pure as a hash function.
KEYED_GENERATORS = {"Generator", "Philox", "PCG64", "BitGenerator"}


def rooms() -> list[str]:
    """Folders, and single files that have rules of their own."""
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    return sorted(folders | {"crypto", "rounds", "storage", "study", "testing", "plugins", "builds"})


class Facts(NamedTuple):
    """What the rules ask of a module: line and full name of everything imported, and of what no pure room may use.

    `needs` has what is imported when the code runs, and `n_lines` counts its lines of code.
    """

    imported: tuple[tuple[int, str], ...]
    impure: tuple[tuple[int, str], ...]
    needs: frozenset[str]
    n_lines: int


@cache
def facts_of(path: Path) -> Facts:
    """A module is read once a session: nearly every test here asks about the whole package."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, filename=str(path))
    said = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    documented = {line for node in said for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    n_lines = sum(bool(line) and not line.startswith("#") and number not in documented for number, line in lines)
    branches = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    unneeded = {line for node in branches if ast.unparse(node.test) == "TYPE_CHECKING" for line, _ in imported(node)}
    found = tuple(imported(tree))
    needs = frozenset(name for line, name in found if line not in unneeded)
    return Facts(found, tuple(impure_uses(tree)), needs, n_lines)


def modules(folder: Path) -> list[Path]:
    """The modules in a folder, or the single file of that name."""
    return sorted(folder.rglob("*.py")) or [folder.with_suffix(".py")]


# Any text that imports a room by its bare name, or relatively, has this in it; so have a few others.
MAY_BE_BARE = re.compile(rf"\b(?:from|import)\b[\s\\]*(?:\.|(?:[^\n]*,[\s\\]*)?(?:{'|'.join(MAY_IMPORT)})\b)")


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported, in functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import makes two modules of one"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def test_every_room_has_its_rules() -> None:
    """A room without a row in the table here has no rules; a link in the package blinds tools that do not follow it."""
    assert rooms() == sorted(MAY_IMPORT)
    assert not [path for path in PACKAGE.rglob("*") if path.is_symlink()]


def test_the_page_of_rooms_says_what_each_stands_on() -> None:
    """Who adds a room, or looks for one, reads the same order as the one that is tested: of each room the nearest."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \| .* \|(.*)\|$", page, re.MULTILINE)
    found = {room: set(re.findall(r"`(\w+)`", below)) for room, below in rows if room in MAY_IMPORT}
    assert found == {
        room: {one for one in below if not any(one in MAY_IMPORT[other] for other in below)}
        for room, below in MAY_IMPORT.items()
    }


def test_the_links_at_the_top_are_needed_by_nothing() -> None:
    """A checkout without links, as on Windows or in a zip archive, is whole."""
    for room in LINKS:
        assert (ROOT / room).readlink() == Path("src/hedgerow") / room
    for folder in (PACKAGE, ROOT / "experiments", ROOT / "tests", ROOT / "deploy"):
        for path in modules(folder):
            # Parsing takes far longer than searching, and the tests are many.
            if not MAY_BE_BARE.search(path.read_text(encoding="utf-8")):
                continue
            for line, name in facts_of(path).imported:
                head = name.split(".")[0]
                assert head not in MAY_IMPORT, f"{path}:{line}: import hedgerow.{head}, never the bare {head}"


def test_the_table_of_imports_is_closed() -> None:
    """What a room may import may itself import no more than that room may: else the table would hide a way round."""
    for room, allowed in MAY_IMPORT.items():
        for other in allowed:
            assert MAY_IMPORT[other] <= allowed | {room}
            assert room not in MAY_IMPORT[other]


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_rooms_import_only_what_they_may(room: str) -> None:
    """A program that saw a record, or a secure sum that knew trees, would undo the design."""
    allowed = MAY_IMPORT[room] | {room}
    for path in modules(PACKAGE / room):
        for line, name in facts_of(path).imported:
            head, *rest = name.split(".")
            if head == "hedgerow":
                assert rest and rest[0] in allowed | GROUND, f"{path}:{line}: {room} may not import {name}"
            assert head != "experiments", f"{path}:{line}: experiments stand outside the package"


def reach(start: str) -> dict[str, tuple[str, ...]]:
    """Every module of the package that a process may import once it has imported this one, with the way to it.

    Imports in functions count, and so do those of the packages around a module.
    """
    own = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    own = {name.removesuffix(".__init__"): path for name, path in own.items()}
    ways, waiting = {start: (start,)}, [start]
    for name in waiting:
        for needed in sorted(facts_of(own[name]).needs):
            words = needed.split(".")
            for above in (".".join(words[:end]) for end in range(1, len(words) + 1)):
                if above in own and above not in ways:
                    ways[above] = (*ways[name], above)
                    waiting.append(above)
    return ways


MAX_REACH = {"client": 21_300, "app.node": 30_400, "app.join": 27_400}
"""Most lines of code that one must read to know what a party's process may run. A change that raises one says in its
commit what the lines are worth."""


@pytest.mark.parametrize("party", MAX_REACH)
def test_one_party_can_be_read(party: str) -> None:
    """Who reviews a node before a hospital installs it reads what its process can import, and nothing else."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for path in modules(PACKAGE / party.replace(".", "/")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        found[name] = reach(name)
    paths = {name: PACKAGE.parent / Path(*name.split(".")) for ways in found.values() for name in ways}
    lines = {
        name: facts_of(path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).n_lines
        for name, path in paths.items()
    }
    reached = {name: sum(lines[each] for each in ways) for name, ways in found.items()}
    largest = max(reached, key=lambda name: reached[name])
    longest = sorted(found[largest].values(), key=lambda way: (-len(way), way))[:3]
    said = "\n".join([f"{largest}: {reached[largest]:,} lines", *(" > ".join(way) for way in longest)])
    print(said)
    assert reached[largest] <= MAX_REACH[party], said


def test_no_options_of_the_command_line_leave_it() -> None:
    """A party's functions say in their types what they need: Flower and Python callers have no `Namespace` to give."""
    for path in modules(PACKAGE):
        names = {name.partition(".")[0] for _, name in facts_of(path).imported}
        assert "argparse" not in names or path.parent.name == "cli", f"{path}: options are parsed in cli/"


@pytest.mark.parametrize("room", sorted(PURE))
def test_pure_rooms_stay_pure(room: str) -> None:
    """No socket, clock, file or random number of their own: what they do can be replayed, and tested, exactly."""
    for path in modules(PACKAGE / room):
        for line, name in facts_of(path).imported:
            head = name.split(".")[0]
            assert head in PURE_STANDARD | PURE[room] | {"hedgerow"}, f"{path}:{line}: {room} is pure; not {name}"
            assert "random" not in name.split(".")[:2] or head == "hedgerow", f"{path}:{line}: not {name}"
        for line, name in facts_of(path).impure:
            raise AssertionError(f"{path}:{line}: {room} is pure; {name} belongs at the edge")


def impure_uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    keyed = {id(node.value) for node in attributes if node.attr in KEYED_GENERATORS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield node.lineno, node.func.id
        if isinstance(node, ast.Attribute) and node.attr in IMPURE_ATTRIBUTES:
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.Attribute) and node.attr == "random" and id(node) not in keyed:
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.Call) and not node.args and not node.keywords:
            # Without an argument such a generator seeds itself from the operating system.
            if isinstance(node.func, ast.Attribute) and node.func.attr in KEYED_GENERATORS:
                yield node.lineno, ast.unparse(node)


@pytest.mark.parametrize(
    "line",
    [
        "x = open('a')",
        "x = np.random.default_rng(0)",
        "x = numpy.random.normal()",
        "def f():\n    return X25519PrivateKey.generate()",
        "x = np.random.Generator(np.random.Philox())",
        "x = np.load('a.npy')",
        "x = datetime.date.today()",
    ],
)
def test_the_check_of_purity_sees(line: str) -> None:
    """The check itself is checked: each of these would make a pure room impure, the last line would not."""
    assert list(impure_uses(ast.parse(line)))
    assert not list(impure_uses(ast.parse("x = np.random.Generator(np.random.Philox(key=key)).standard_normal(3)")))


def test_importing_the_package_is_light() -> None:
    """`hedgerow --help` and a node start without the estimators and without compiling kernels."""
    code = "import sys, hedgerow; print(sorted({'sklearn', 'numba', 'pandas', 'scipy'} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "src")}, text=True, capture_output=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_no_test_hangs_on_how_fast_the_machine_is() -> None:
    """What fails by chance has good changes refused. So a kill comes at an event, a port is held from its choice on
    (tests/ports.py), and a property has no deadline, and no checks of how long its examples take to draw."""
    by_chance = re.compile(r"suppress_health_check=\[|\bdeadline=(?!None)|\btimeout -s|\) as free:|bind\(.*\); print")
    scripts = [path for path in (ROOT / "deploy").glob("*-check") if path.is_file()]
    paths = {*modules(ROOT / "tests"), *scripts} - {Path(__file__), ROOT / "tests" / "conftest.py"}
    found = {str(path.relative_to(ROOT)): by_chance.findall(path.read_text(encoding="utf-8")) for path in paths}
    assert {name: words for name, words in found.items() if words} == {}


def test_every_dependency_has_its_reason() -> None:
    """docs/dependencies.md and pyproject.toml name the same packages, in the extras of users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    always, extras = text.split("## Extras")

    def names(requirements: list[str]) -> set[str]:
        found = {re.split(r"[\[<>=!~ ;]", requirement)[0] for requirement in requirements}
        return found - {"hedgerow"}

    assert set(re.findall(r"^- `([\w-]+)`: ", always, re.MULTILINE)) == names(project["dependencies"])
    documented = set(re.findall(r"^- `([\w-]+)` \(`([\w-]+)`\): ", extras, re.MULTILINE))
    declared = {(name, extra) for extra, listed in project["optional-dependencies"].items() for name in names(listed)}
    assert documented == {(name, extra) for name, extra in declared if extra not in ("test", "docs", "dev")}


def test_every_source_file_says_its_licence() -> None:
    """A file that travels alone keeps its terms; what protoc makes has them from the file that it is made of."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    line = f"SPDX-License-Identifier: {project['license']}".encode()
    sources = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.proto"), *(ROOT / "deploy").rglob("*"), ROOT / ".ci" / "run"]
    begun = {path: path.read_bytes()[:200] for path in sources if path.is_file()}
    own = {path: text for path, text in begun.items() if path.suffix in (".py", ".proto") or text.startswith(b"#!")}
    # In a comment of its language: a script for node does not run with another one.
    signs = {
        path: b"// " if path.suffix == ".proto" or b"node" in text.split(b"\n")[0] else b"# "
        for path, text in own.items()
    }
    silent = [
        path for path, text in own.items() if signs[path] + line not in text and not path.name.endswith("_pb2.py")
    ]
    assert silent == []


# Words that ruff's D401 lets pass at the beginning of a docstring, and that hide what a call does.
RIDDLES = {
    "all", "as", "each", "for", "from", "how", "in", "it", "its", "no", "none", "of", "on", "one", "see", "that",
    "these", "those", "to", "what", "when", "where", "whether", "which", "who", "whom", "whose", "with",
}  # fmt: skip


def _begins_with_a_riddle(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    text, decorators = ast.get_docstring(function) or "", [ast.unparse(each) for each in function.decorator_list]
    is_property = any(each.split(".")[-1] in ("property", "cached_property") for each in decorators)
    first, _, rest = text.partition(" ")
    # "See `Base.method`." names what is overridden; a property is what it is: "Whether ...".
    names_its_base = first == "See" and rest.startswith("`")
    return first.lower() in RIDDLES and not names_its_base and not (is_property and first == "Whether")


def test_docstrings_say_first_what_a_call_does() -> None:
    """A reader learns from the first word what a function does, and not that a riddle follows."""
    found = [
        f"{path.relative_to(PACKAGE)}: {node.name}: {ast.get_docstring(node)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _begins_with_a_riddle(node)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "expected"), [("What it is.", True), ("See A: b.", True), ("See `A.b`.", False), ("Add.", False)]
)
def test_the_check_of_docstrings_sees(text: str, expected: bool) -> None:
    """The check refuses a riddle, and lets pass an imperative and the name of what is overridden."""
    function = ast.parse(f'def f():\n    """{text}"""').body[0]
    assert isinstance(function, ast.FunctionDef)
    assert _begins_with_a_riddle(function) == expected
