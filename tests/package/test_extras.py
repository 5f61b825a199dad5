"""What an ordinary installation lacks is said with the command that brings it, wherever it is asked for."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from hedgerow.cli.main import main
from hedgerow.errors import OPTIONAL, EnvironmentFault, missing_extra, name_to_install

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# What a package is imported as, where that is not its name.
MODULES = {
    "adbc-driver-postgresql": "adbc_driver_postgresql", "dp-accounting": "dp_accounting", "grpcio": "grpc",
    "mlflow-skinny": "mlflow",
    "protobuf": "google", "scikit-learn": "sklearn", "scikit-survival": "sksurv",
}  # fmt: skip
# What each extra's absence meets first when it is asked for.
ASKED = {
    "sklearn": "import hedgerow; hedgerow.DPGBDTClassifier",
    "matplotlib": "from hedgerow.models.plots import pyplot_module; pyplot_module()",
    "flwr": "import hedgerow.carriers.flower",
    "nvflare": "import hedgerow.carriers.collab",
    "ray": "from hedgerow.app.actors import start_actors; start_actors(())",
    "prometheus_client": "import hedgerow.app.page",
    "starlette": "import hedgerow.app.page",
    "uvicorn": "import hedgerow.app.page",
    "onnx": "from hedgerow.models.exports import onnx_module; onnx_module()",
    "dp_accounting": "from hedgerow.privacy.accountants import epsilon_pld\n"
    "from hedgerow.privacy.events import GaussianEvent\n"
    "epsilon_pld([GaussianEvent(1.0)], 1e-6)",
    "sqlalchemy": "from hedgerow.data.sources import column_names\ncolumn_names('mysql://#select 1')",
    "adbc_driver_postgresql": "from hedgerow.data.sources import column_names\ncolumn_names('postgresql://#select 1')",
    "shtab": "from types import SimpleNamespace\nfrom hedgerow.cli.commands import complete\n"
    "complete(SimpleNamespace(shell='bash'))",
    "mlflow": "from hedgerow.models.mlflow import load_model\nload_model('models:/x')",
    "duckdb": "from hedgerow.data.sources import column_names\ncolumn_names('duckdb:///t.duckdb#select 1')",
}


def packages(requirements: list[str]) -> set[str]:
    """The packages that a list of requirements names."""
    return {re.split(r"[\[<>=!~ ;]", requirement)[0] for requirement in requirements} - {"hedgerow"}


def third_party_imports() -> Iterator[tuple[Path, str]]:
    """Every module from outside that the package imports, also within functions."""
    own = [path for path in (ROOT / "src" / "hedgerow").rglob("*.py") if not path.parent.is_symlink()]
    rooms = [path for link in (ROOT / "src" / "hedgerow").iterdir() if link.is_symlink() for path in link.rglob("*.py")]
    for path in {*own, *rooms}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                head = name.partition(".")[0]
                if head not in sys.stdlib_module_names and head != "hedgerow":
                    yield path, head


def test_every_optional_import_has_its_extra() -> None:
    """A package that is imported somewhere is installed always, or known with the extra that brings it."""
    always = {MODULES.get(name, name) for name in packages(PROJECT["dependencies"])}
    for path, module in set(third_party_imports()):
        assert module in always | set(OPTIONAL), f"{path}: {module}"
    for module, (_, extra) in OPTIONAL.items():
        assert module in {MODULES.get(name, name) for name in packages(PROJECT["optional-dependencies"][extra])}


def test_a_node_and_a_coordinator_need_no_extra() -> None:
    """The product runs after `pip install hedgerow`; the extra's old name still works in commands that were noted."""
    assert {"grpcio", "protobuf"} <= packages(PROJECT["dependencies"])
    assert PROJECT["optional-dependencies"]["grpc"] == []
    for module in ("app.node", "app.coordinator", "app.monitor", "carriers.site"):
        code = f"import sys\nfor name in {list(OPTIONAL)}: sys.modules[name] = None\nimport hedgerow.{module}"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=900)


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(ASKED))
def test_what_is_missing_is_named_where_it_is_needed(module: str) -> None:
    """The library raises the error with the extra in it, whatever the order of imports."""
    code = (
        f"import sys\nsys.modules[{module!r}] = None\nfrom hedgerow.errors import EnvironmentFault\n"
        f"try:\n    exec({ASKED[module]!r})\nexcept EnvironmentFault as fault:\n    print(fault.code, fault.remedy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.stdout.split()[:1] == ["missing-extra"], done.stderr
    assert f"pip install {name_to_install(OPTIONAL[module][1])}" in done.stdout


@pytest.mark.parametrize("module", sorted(OPTIONAL))
def test_no_missing_extra_is_a_fault_of_ours(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where nobody foresaw the import, a command ends with exit code 10 and the remedy, never with 70."""

    def fail(*_: object, **__: object) -> None:
        importlib.import_module(f"{module}.base")

    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("hedgerow.models.model.Model.load", fail)
    assert main(["report", "model.json", "--json"]) == 10
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "missing-extra" and name_to_install(OPTIONAL[module][1]) in error["remedy"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "arguments"),
    [("pandas", []), ("sklearn", ["utility"]), ("xgboost", ["speed"]), ("SurvSet", ["survival_curves"])],
)
def test_an_experiment_names_its_extra(module: str, arguments: list[str]) -> None:
    """Experiments need more than a node does; without it they say so in one line and not with a traceback."""
    code = f"import runpy, sys; sys.modules[{module!r}] = None; sys.argv[1:] = {arguments}\n"
    code += "runpy.run_module('experiments', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 10 and "Traceback" not in done.stderr
    # As from its own folder.
    assert re.search(rf'pip install [^\n]*\[{OPTIONAL[module][1]}\]', done.stderr)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, '"hedgerow[pld]"'),
        ({"url": "file:///src/a%20b", "dir_info": {"editable": True}}, '-e "/src/a b[pld]"'),
        ({"url": "file:///src/tree", "dir_info": {}}, '"/src/tree[pld]"'),
        ({"url": Path.cwd().as_uri(), "dir_info": {"editable": True}}, '-e ".[pld]"'),
        ({"url": "file:///d/hedgerow-1-py3-none-any.whl", "archive_info": {}},
         '"hedgerow[pld] @ file:///d/hedgerow-1-py3-none-any.whl"'),
        ({"url": "https://host.invalid/h", "vcs_info": {"vcs": "git", "commit_id": "c0"}},
         '"hedgerow[pld] @ git+https://host.invalid/h@c0"'),
        ("no JSON", '"hedgerow[pld]"'),
    ],
)  # fmt: skip
def test_what_is_missing_is_installed_as_the_rest_was(
    origin: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout, a wheel or a commit: an index that is asked for the name alone may not have it, or another's."""
    text = origin if origin is None or isinstance(origin, str) else json.dumps(origin)
    found = [SimpleNamespace(read_text=lambda _, text=each: text) for each in (None, text)]
    monkeypatch.setattr("importlib.metadata.distributions", lambda name: iter(found))
    assert name_to_install("pld") == expected
    fault = missing_extra("dp_accounting")
    assert fault.remedy.endswith(f"pip install {expected}")


def test_the_error_is_of_the_environment() -> None:
    """Scripts tell it apart by its class and its code."""
    fault = missing_extra("flwr", "A run over Flower")
    assert isinstance(fault, EnvironmentFault) and (fault.code, fault.exit_code) == ("missing-extra", 10)


# What is typed or imported, and what has to be installed for it.
NEEDED = {
    r"^hedgerow plot ": "plots", r"^hedgerow export .*--to onnx": "onnx", r"^from hedgerow import DP": "sklearn",
    r"^import pandas": "pandas",
}  # fmt: skip


@pytest.mark.parametrize("name", ["README.md", "docs/tutorials/analyst.md"])
def test_what_a_page_installs_is_enough_for_what_it_shows(name: str) -> None:
    """Typed in an empty environment, the page's own commands do not end in `missing-extra`."""
    text = (ROOT / name).read_text(encoding="utf-8")
    words = " ".join(re.findall(r"^pip install (.*)$", text, re.MULTILINE)).replace('"', "").split()
    installed = {extra for word in words if word.startswith(".[") for extra in Requirement(f"own{word[1:]}").extras}
    installed |= {word for word in words if not word.startswith(".")}
    needed = {what for pattern, what in NEEDED.items() if re.search(pattern, text, re.MULTILINE)}
    assert len(needed) >= 2 and needed <= installed
