"""What the documents and docstrings name in backticks is there: no name outlives what it named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hedgerow import __version__
from hedgerow.errors import entries
from hedgerow.protocol.refusals import WireCode
from hedgerow.secagg.transitions import Code

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "hedgerow"
NOT_OURS = {
    "OneHotEncoder", "StandardScaler", "TargetEncoder", "pandas.get_dummies", "pandas.to_datetime", "parse_dates",
    "XGBHorizontalRecipe", "flower_app_path", "send_and_receive", "_to_json_inner", "graph_parameter_finder",
    "https_proxy", "months_late", "N_v", "NUMBA_CACHE_DIR", "ColumnTransformer", "limit_concurrency", "app_NAME",
    "local/hedgerow.toml", "out/report.txt", "onnx.ModelProto", "drug_1503297",
}  # fmt: skip
"""Names of other libraries and of mathematics, and of columns and files in examples."""
NOT_CODES = {"flower-superlink", "flower-supernode", "ssh-keygen", "wards-north"}
"""Words with hyphens that are commands of others, and a folder of an example."""
SAID_BY_EACH = {"FILE_VERSION", "HESSIAN_SCALE"}
"""Constants that each kind of file, or each loss, has of its own."""
DOCSTRING = re.compile(r'"""[^`"].*?"""', re.DOTALL)
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
MODULES = [path for room in ("src/hedgerow", "experiments", "tests", "deploy") for path in (ROOT / room).rglob("*.py")]


@cache
def known() -> set[str]:
    """Every word of the code but for its docstrings, which may name what is gone, and the names of its files."""
    words = {part for path in MODULES for part in (path.stem, *path.parts[-3:-1])}
    for path in (*MODULES, ROOT / "pyproject.toml", PACKAGE / "errors.toml"):
        words.update(re.findall(r"\w+", DOCSTRING.sub("", path.read_text(encoding="utf-8"))))
    return words


def texts() -> Iterator[tuple[str, str]]:
    """Each page without its blocks of code, and the docstrings of each module of the package."""
    for path in DOCUMENTS:
        yield str(path.relative_to(ROOT)), re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for path in PACKAGE.rglob("*.py"):
        yield str(path.relative_to(ROOT)), "".join(DOCSTRING.findall(path.read_text(encoding="utf-8")))


def test_names_in_backticks_exist() -> None:
    """A reader who searches for a name, or opens a file, finds it."""
    gone = set()
    for where, text in texts():
        found = set(re.findall(r"(?<!`)`([A-Za-z_][\w.]*\w)(?:\(\))?`(?!`)", text)) - NOT_OURS
        names = {name for name in found if re.search(r"_|[a-z][A-Z]|^[a-z]+\.[a-z]", name) and not _is_file(name)}
        gone |= {(where, name) for name in names if not set(filter(None, name.split("."))) <= known()}
        dotted = set(re.findall(r"(?<!`)`([a-z_]+(?:\.\w+)+)(?:\(\))?`(?!`)", text)) - NOT_OURS
        gone |= {(where, name) for name in dotted if not _is_file(name) and not _resolves(name)}
        paths = set(re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|md|txt|toml|service))`", text)) - NOT_OURS
        tops = (ROOT, PACKAGE, PACKAGE.parent)
        gone |= {(where, path) for path in paths if not any((top / path).exists() for top in tops)}
    assert gone == set()


def test_code_words_in_backticks_exist() -> None:
    """An operator searches a page for the word in the log, and finds no word that no log has."""
    sources = "".join(path.read_text(encoding="utf-8") for path in (*PACKAGE.rglob("*.py"), ROOT / "pyproject.toml"))
    known_codes = {code.value for code in (*WireCode, *Code)} | set(re.findall(r'"([a-z]+(?:-[a-z]+)+)', sources))
    known_codes |= {row.get("code", entry) for rows in entries().values() for entry, row in rows.items()}
    found = {
        (where, word)
        for where, text in texts()
        if where.endswith(".md")
        for word in re.findall(r"`([a-z]+(?:-[a-z]+)+)`", text)
    }
    assert len(found) > 300
    assert {(where, word) for where, word in found if word not in known_codes | NOT_CODES} == set()


@cache
def modules() -> dict[str, Path]:
    """The modules and rooms of the package by their dotted names, without the package's own."""
    paths = {path.relative_to(PACKAGE).with_suffix("").parts: path for path in PACKAGE.rglob("*.py")}
    return {".".join(parts).removesuffix("__init__").rstrip("."): path for parts, path in paths.items()}


def _resolves(name: str) -> bool:
    """Whether a dotted name that begins with a room of the package leads to what a module says; others are not asked.

    `plan` and `privacy` are what a plan and its table are called as well.
    """
    parts = name.removeprefix("hedgerow.").split(".")
    longest = max((n for n in range(1, len(parts) + 1) if ".".join(parts[:n]) in modules()), default=0)
    if longest == 0 or (longest == 1 and parts[0] in ("plan", "privacy")):
        return True
    source = modules()[".".join(parts[:longest])].read_text(encoding="utf-8")
    return set(parts[longest:]) <= set(re.findall(r"\w+", DOCSTRING.sub("", source)))


def _is_file(name: str) -> bool:
    return (Path(name).suffix[1:] or "-") in (
        "md toml json csv txt db py html png svg sock log service npz yaml gz parquet tsv data xlsx onnx invitation cff"
    ).split()


def test_the_section_of_a_dataclass_names_every_field() -> None:
    """Who looks up what a field holds finds it in the section, or below the field; and the section under one name."""
    unnamed = set()
    for path in PACKAGE.rglob("*.py"):
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(each, ast.ClassDef) or "dataclass" not in "".join(map(ast.unparse, each.decorator_list)):
                continue
            text, section, lines = (ast.get_docstring(each) or "").partition("Attributes:\n")
            unnamed |= {(each.name, "Args")} if re.search("^Args:", text, re.MULTILINE) else set()
            named = set(re.findall(r"\w+", " ".join(re.findall(r"^    (\w[\w, ]*):", lines, re.MULTILINE))))
            for line, below in zip(each.body, (*each.body[1:], None), strict=True):
                is_field = isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line.annotation)
                if section and is_field and not isinstance(below, ast.Expr):
                    name = ast.unparse(line.target)
                    unnamed |= set() if name in named or name.startswith("_") else {(each.name, name)}
    assert unnamed == set()


def test_no_docstring_leaves_what_it_heads_to_the_one_before() -> None:
    """A docstring stays true where a function comes between: none begins with "The same"."""
    begun = r'"""(?:The same|Same)\b'
    assert {str(path) for path in PACKAGE.rglob("*.py") if re.search(begun, path.read_text(encoding="utf-8"))} == set()


def test_public_constants_of_one_name_have_one_value() -> None:
    """Who reads a constant in one module, and looks it up in another, does not take another number for it."""
    values: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for line in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(line, ast.Assign):
                continue
            target, value = line.targets[0], line.value
            names, said_of = [target], [value]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                names, said_of = target.elts, value.elts
            for name, said in zip(names, said_of, strict=True):
                if not isinstance(name, ast.Name) or not re.fullmatch(r"[A-Z][A-Z0-9_]*", name.id):
                    continue
                if re.fullmatch(r"[-()\d.,e+*</ ]+", ast.unparse(said)):
                    values.setdefault(name.id, set()).add(ast.unparse(said))
    assert len(values) > 300
    assert {name for name, found in values.items() if len(found) > 1} == SAID_BY_EACH


def test_pages_state_the_version_that_the_package_has() -> None:
    """Who files a report, or asks for help, names the version that a page says."""
    for name in ("README.md", "docs/index.md", "mkdocs.yml"):
        said = re.findall(r"\d+\.\d+\.\d+(?=, beta)", " ".join((ROOT / name).read_text(encoding="utf-8").split()))
        assert said == [__version__], name
    chart = (ROOT / "deploy" / "chart" / "Chart.yaml").read_text(encoding="utf-8").splitlines()
    assert {f"version: {__version__}", f"appVersion: {__version__}"} <= set(chart)
