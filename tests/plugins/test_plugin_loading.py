"""Plug-ins are loaded on one's own word; what they make says whose it is, and is read without them."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.machinery
import importlib.util
import json
import marshal
import pickle
import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hedgerow import plugins
from hedgerow.app.actors import start_actors
from hedgerow.cli.main import main
from hedgerow.client.policy import parse_policy
from hedgerow.errors import ModelError, UsageError
from hedgerow.losses.registry import build_loss
from hedgerow.methods import api
from hedgerow.methods.registry import METHODS, find_method
from hedgerow.models.model import Model, to_bytes
from hedgerow.plan.plan import Plan
from hedgerow.plan.registry import AbsentMethod, list_foreign_parts, named_losses, rules_by_method
from hedgerow.plugins import describe_plugin, load_agreed, load_plugin
from hedgerow.testing import check_method
from hedgerow.trees.binning import build_grid
from tests.builders import coded, make_plan
from tests.plugins import toy_last_release

OBLIVIOUS = Path(__file__).parents[2] / "docs" / "template" / "oblivious.py"
RESEARCH = OBLIVIOUS.parents[1] / "research.md"
PLAN = """
version = 1
name = "own method"
[model]
algorithm = "oblivious"
n_trees = 4
[oblivious]
levels = 2
[privacy]
epsilon = 2.0
delta = 1e-6
n_records = 300
[[features]]
name = "x"
type = "numeric"
min = 0
max = 1
[label]
name = "y"
type = "regression"
min = 0
max = 1
"""


def forget() -> None:
    """As a process that has not loaded the plug-in."""
    sys.modules.pop("oblivious", None)
    METHODS.pop("oblivious", None)
    rules_by_method().pop("oblivious", None)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Each test begins and ends without the plug-in."""
    forget()
    yield
    forget()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan, a table, and the plug-in, in the working folder."""
    x = np.random.default_rng(1).random(300)
    rows = "\n".join(f"{a},{b}" for a, b in zip(x, x**2, strict=True))
    (tmp_path / "site.csv").write_text(f"x,y\n{rows}\n", encoding="utf-8")
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    (tmp_path / "oblivious.py").write_bytes(OBLIVIOUS.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_template_keeps_to_what_it_states() -> None:
    """The method that the documents build, with usual labels and with a loss that a plan names."""
    load_plugin(str(OBLIVIOUS))
    named: dict[str, Any] = {"loss": {"name": "quantile", "tau": 0.9}}
    plans: list[tuple[str, dict[str, Any]]] = [("binary", {}), ("regression", {}), ("regression", named)]
    for label, more in plans:
        found = check_method(make_plan(label, {"algorithm": "oblivious", "n_trees": 3}, **more))
        assert found.faults == () and found.largest == {"LeafSums": 1}


def test_a_model_names_its_plug_in_and_is_read_without_it(folder: Path, capsys: Any) -> None:
    """HOLDS never stands alone, with the plug-in or without; and trees are predicted, plotted and exported."""
    assert main(["train", "plan.toml", "--plugin", "oblivious.py", "--site", "site.csv"]) == 0
    trained = Model.load("model.json")
    assert trained.to_bytes() == Path("model.json").read_bytes()
    forget()
    read = Model.load("model.json")
    assert isinstance(read.plan.own, AbsentMethod)
    assert read.to_bytes() == Path("model.json").read_bytes()
    assert read.plan.digest == trained.plan.digest
    for model in (trained, read):
        assert "module oblivious" in model.report.headline and "HOLDS" in model.report.headline
    columns = {"x": np.array([0.1, 0.9])}
    assert read.predict(columns).tolist() == trained.predict(columns).tolist()
    for command in (
        ["predict", "model.json", "site.csv", "--out", "out.csv"], ["evaluate", "model.json", "site.csv"],
        ["evaluate", "model.json", "--federated", "--site", "site.csv", "--epsilon", "1"],
        ["export", "model.json"], ["export", "model.json", "--to", "onnx"], ["plot", "model.json"],
    ):  # fmt: skip
        assert main(command) == 0, command
    capsys.readouterr()
    assert main(["report", "model.json", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["authors"] == ["the method oblivious 0.1 (module oblivious)"]
    with pytest.raises(ModelError, check=coded("method-absent")) as caught:
        find_method(read.plan)
    assert "oblivious 0.1" in caught.value.what
    # Without its plug-in no plan of it is carried out, on whosever word.
    assert main(["train", "plan.toml", "--site", "site.csv", "--out", "other.json"]) == 3


LOSS = PLAN.replace('algorithm = "oblivious"', "").replace("[oblivious]\nlevels = 2\n", "") + '[loss]\nname = "{}"\n'


def forget_losses() -> None:
    """As a process that has not loaded the toys."""
    sys.modules.pop("toy_loss", None)
    for name in ("lent", "apart"):
        named_losses().pop(name, None)  # type: ignore[attr-defined]


@pytest.fixture
def losses(folder: Path) -> Iterator[str]:
    """A plug-in with two losses."""
    forget_losses()
    yield str(Path(__file__).with_name("toy_loss.py"))
    forget_losses()


@pytest.mark.parametrize("method", [LOSS, PLAN + '[loss]\nname = "{}"\n'])
def test_a_model_of_a_foreign_loss_is_read_without_it(losses: str, method: str, capsys: Any) -> None:
    """Its scores mean what the file says: trees are predicted, plotted and exported, HOLDS does not stand alone, and
    no run goes by the loss. With a method that is not there either it is the same.
    """
    Path("plan.toml").write_text(method.format("lent") + "delta = 0.3\n", encoding="utf-8")
    plugins = ["--plugin", losses, *(["--plugin", "oblivious.py"] if "oblivious" in method else [])]
    assert main(["train", "plan.toml", *plugins, "--site", "site.csv"]) == 0
    trained, columns = Model.load("model.json"), {"x": np.array([0.1, 0.9])}
    expected = trained.predict(columns).tolist()
    forget()
    forget_losses()
    read = Model.load("model.json")
    assert (read.to_bytes(), read.plan.digest) == (Path("model.json").read_bytes(), trained.plan.digest)
    assert read.predict(columns).tolist() == expected
    assert read.report.headline == trained.report.headline
    assert "lent 0.3 (module toy_loss)" in read.report.headline
    for command in (
        ["predict", "model.json", "site.csv", "--out", "out.csv"], ["evaluate", "model.json", "site.csv"],
        ["evaluate", "model.json", "--federated", "--site", "site.csv", "--epsilon", "1"],
        ["export", "model.json"], ["export", "model.json", "--to", "onnx"], ["plot", "model.json"],
        ["report", "model.json"], ["evidence", "model.json", "--out", "pack"],
    ):  # fmt: skip
        assert main(command) == 0, command
    with pytest.raises(ModelError, check=coded("method-absent")) as caught:
        build_loss(read.plan)
    assert "lent 0.3" in caught.value.what
    assert main(["train", "plan.toml", "--site", "site.csv", "--out", "other.json"]) == 3


def test_a_model_whose_scores_only_its_loss_knows_says_so(losses: str, capsys: Any) -> None:
    """What is missing, by name, in place of a wrong number."""
    Path("plan.toml").write_text(LOSS.format("apart"), encoding="utf-8")
    assert main(["train", "plan.toml", "--plugin", losses, "--site", "site.csv"]) == 0
    forget_losses()
    with pytest.raises(ModelError, check=coded("method-absent")) as caught:
        Model.load("model.json")
    assert "apart 0.3" in caught.value.what and "'own'" in caught.value.what


def test_what_the_page_shows_keeps_to_what_it_states() -> None:
    """The query of the research page, asked by the shortest method, and its loss, by boosted trees."""
    shown = re.findall(r"```python\n(.*?)```", RESEARCH.read_text(encoding="utf-8"), re.S)
    query, loss = (compile(text, "research.md", "exec", dont_inherit=True) for text in shown)
    names: dict[str, Any] = {"__name__": "research"}
    exec(query, names)
    kind, unit = names["CellCounts"], api.RECORD_NORM

    class Once(api.Settings):
        def schedule(self, plan: Plan) -> api.Schedule:
            grid = build_grid(plan)
            m, noise = grid.n_features, self.noise_multiplier
            length, squared = m * grid.n_codes * 2, m * unit**2
            asked = api.AlikeRounds.of(
                kind, length=length, bound=unit, sensitivity_squared=squared, noise_multiplier=noise
            )
            return api.Schedule((asked,))

    def resolve(plan: Plan) -> Once:
        bare = Once(n_trees=0, max_depth=1)
        return dataclasses.replace(bare, noise_multiplier=api.calibrate_noise(plan, bare, weight=1.0))

    def program(plan: Plan, settings: Once) -> api.Program:
        yield kind(**vars(settings.schedule(plan).rounds[0].query))
        return api.empty_ensemble(api.Run.from_plan(plan, settings))

    try:
        api.add_method("once", api.Method(labels=("binary",), parts=lambda: api.Parts(resolve, program)))
        found = check_method(make_plan("binary", {"algorithm": "once"}))
        assert (found.faults, found.largest) == ((), {"CellCounts": 1})
        exec(loss, names)
        found = check_method(make_plan("regression", {"n_trees": 2}, loss={"name": "one-sided", "part": 0.2}))
        assert (found.faults, found.largest["LeafSums"]) == ((), 1)
    finally:
        METHODS.pop("once"), rules_by_method().pop("once")
        named_losses().pop("one-sided", None)  # type: ignore[attr-defined]


def test_a_method_ends_with_the_usual_last_release_by_names_that_stay() -> None:
    """What its two questions cost is counted and kept to, and classes do without it."""
    toy_last_release.add(load_plugin(str(OBLIVIOUS)))
    try:
        found = check_method(make_plan("regression", {"algorithm": "lined"}))
        assert (found.faults, set(found.largest)) == ((), {"LeafSums", "SpreadSums", "LineSums"})
        assert check_method(make_plan("binary", {"algorithm": "lined"})).largest == {"LeafSums": 1}
    finally:
        METHODS.pop("lined"), rules_by_method().pop("lined")


def test_code_of_a_plug_in_that_fails_is_not_called_a_fault_of_hedgerows(folder: Path, capsys: Any) -> None:
    """Its name and its line, so that its author mends it."""
    text = OBLIVIOUS.read_text(encoding="utf-8").replace("        sums = yield query\n", "        raise KeyError(7)\n")
    Path("oblivious.py").write_text(text, encoding="utf-8")
    line = text[: text.index("raise KeyError")].count("\n") + 1
    assert main(["check-method", "plan.toml", "--plugin", "oblivious.py"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"'oblivious' failed: oblivious.py, line {line}: KeyError: 7" in said and "(plugin, exit code 2)" in said


def test_a_models_own_methods_are_written_as_before() -> None:
    """Files of Hedgerow's own methods hold no word of authors."""
    claims = make_plan()
    assert Plan.from_dict(claims.to_dict()).digest == claims.digest
    assert list_foreign_parts(claims) == [] and METHODS.adders.keys().isdisjoint(METHODS)


@pytest.mark.parametrize("name", ["no_such_module_of_anyone", "nowhere.py", "faulty.py", "torn.py"])
def test_a_plug_in_that_is_not_there_or_fails_is_named(name: str, folder: Path) -> None:
    """A usage error, also where its own code is wrong: that is no fault of Hedgerow's. Nothing is carried out."""
    Path("faulty.py").write_text("from hedgerow.methods.api import nothing_of_that_name\n", encoding="utf-8")
    Path("torn.py").write_text("def program(:\n", encoding="utf-8")
    assert main(["privacy", "plan.toml", "--plugin", name]) == 2
    with pytest.raises(UsageError, check=coded("plugin")):
        load_plugin(name)


def test_a_plug_in_takes_no_name_that_is_taken(folder: Path) -> None:
    """A module that calls itself as a method of Hedgerow's is refused whole."""
    text = OBLIVIOUS.read_text(encoding="utf-8").replace('add_method("oblivious"', 'add_method("boosting"')
    Path("taker.py").write_text(text, encoding="utf-8")
    before = METHODS["boosting"]
    with pytest.raises(UsageError, check=coded("name-taken")):
        load_plugin("taker.py")
    assert METHODS["boosting"] is before and "taker" not in sys.modules


def test_a_node_loads_what_its_policy_names_and_nothing_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Module, version and digest: other sources are not even imported, and a plan's word loads nothing."""
    monkeypatch.syspath_prepend(str(folder))
    line = describe_plugin(load_plugin("oblivious"))
    assert line.startswith("oblivious 0.1 sha256:")
    forget()
    rules = f'version = 1\ndata_set = "d"\nmax_epsilon = 1\ndelta = 1e-6\nplugins = ["{line}"]\n'
    assert parse_policy(rules).plugins == (line,)
    assert "oblivious" not in METHODS
    load_agreed(parse_policy(rules).plugins)
    assert "oblivious" in METHODS
    forget()
    importlib.invalidate_caches()
    with open("oblivious.py", "a", encoding="utf-8") as module:
        module.write("\nraise SystemExit('it was imported')\n")
    for other in (line, line.replace("0.1", "0.2"), "numpy.linalg 1 sha256:0", "no_such_module_of_anyone 1 sha256:0"):
        with pytest.raises(UsageError, check=coded("plugin")):
            load_agreed([other])
    assert "oblivious" not in METHODS


def test_what_a_policy_names_is_loaded_and_no_entry_point_of_that_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sources that were read are those that run."""
    monkeypatch.syspath_prepend(str(folder))
    line = describe_plugin(load_plugin("oblivious"))
    forget()
    Path("unread.py").write_text("raise SystemExit('it was imported')\n", encoding="utf-8")
    other = EntryPoint("oblivious", "unread", "hedgerow.plugins")
    monkeypatch.setattr("hedgerow.plugins.entry_points", lambda **_: [other])
    load_agreed([line])
    assert "oblivious" in METHODS and "unread" not in sys.modules


@pytest.mark.parametrize("name", ["more.py", "more.pyc", f"more{importlib.machinery.EXTENSION_SUFFIXES[-1]}"])
def test_all_that_a_package_can_import_is_in_its_digest(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compiled is code as well: a package that has got more of it is not what its owner has read."""
    monkeypatch.syspath_prepend(str(folder))
    Path("parcel").mkdir()
    Path("parcel/__init__.py").write_bytes(b"")
    line = describe_plugin(importlib.import_module("parcel"))
    sys.modules.pop("parcel")
    load_agreed([line])
    sys.modules.pop("parcel")
    Path("parcel", name).write_bytes(b"1")
    with pytest.raises(UsageError, check=coded("plugin")):
        load_agreed([line])


def drop_parcel() -> None:
    """As a process that has not imported it."""
    for each in [name for name in sys.modules if name.partition(".")[0] == "parcel"]:
        sys.modules.pop(each)


def plant(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[str, bytes]:
    """A package with other code compiled beside one of its modules; the line that names it, and an object of it."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(plugins, "_AGREED", plugins._Agreed())
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if not isinstance(each, plugins._Agreed)])
    Path("parcel").mkdir()
    for each in ("__init__", "more"):
        Path(f"parcel/{each}.py").write_text("WHO = 'read'\nclass Thing: pass\n")
    line = describe_plugin(importlib.import_module("parcel"))
    content = pickle.dumps(importlib.import_module("parcel.more").Thing())
    drop_parcel()
    other = compile("WHO = 'unread'\nclass Thing: pass\n", name, "exec")
    place = Path(importlib.util.cache_from_source(f"parcel/{name}.py"))
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(importlib.util.MAGIC_NUMBER + b"\1\0\0\0" + bytes(8) + marshal.dumps(other))
    return line, content


@pytest.mark.parametrize("name", ["__init__", "more"])
def test_what_lies_compiled_beside_sources_that_were_read_is_not_run(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes it unasked where it says of itself that it need not be compared; also of modules that come later."""
    line, _ = plant(name, monkeypatch, folder)
    load_agreed([line])
    more = importlib.import_module("parcel.more")
    assert sys.modules["parcel"].WHO == more.WHO == "read"
    drop_parcel()
    sys.meta_path.remove(plugins._AGREED)
    # Otherwise it would have been.
    assert "unread" in {importlib.import_module(each).WHO for each in ("parcel", "parcel.more")}
    drop_parcel()


@pytest.mark.parametrize("name", ["__init__", "more"])
def test_an_actor_that_holds_rows_runs_what_the_policy_names_and_nothing_else(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a process of its own, which imports a plug-in as it reads what it is asked: it has loaded it before."""
    line, content = plant(name, monkeypatch, folder)
    # An actor of Ray reads what it is asked only after it was made.
    ray = SimpleNamespace(is_initialized=lambda: True, remote=lambda **_: lambda kind: SimpleNamespace(remote=kind))
    for module in ("ray", "ray.exceptions"):
        monkeypatch.setitem(sys.modules, module, ray)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    start_actors([line])()
    pickle.loads(content)
    assert sys.modules["parcel"].WHO == sys.modules["parcel.more"].WHO == "read"
    drop_parcel()
    Path("parcel/more.py").write_text("WHO = 'other'\n")
    with pytest.raises(UsageError, check=coded("plugin")):
        start_actors([line])()


def test_a_file_is_not_taken_for_a_module_of_its_name(folder: Path) -> None:
    """Another module would be loaded in its place, and described by its digest."""
    Path("json.py").write_bytes(OBLIVIOUS.read_bytes())
    with pytest.raises(UsageError, check=coded("plugin")):
        load_plugin("json.py")
    assert "oblivious" not in METHODS


def test_a_file_does_not_pass_a_foreign_method_off_as_hedgerows(folder: Path) -> None:
    """By a module of its own word, and with a report that names no author: HOLDS would stand alone."""
    assert main(["train", "plan.toml", "--plugin", "oblivious.py", "--site", "site.csv"]) == 0
    stored = json.loads(Model.load("model.json").to_bytes())
    forget()
    stored["made_by"] = [{**part, "module": "hedgerow.methods"} for part in stored["made_by"]]
    del stored["report"]["authors"]
    del stored["checksum"]
    Path("model.json").write_bytes(to_bytes(stored))
    assert "oblivious" in Model.load("model.json").report.headline


def test_evidence_of_a_foreign_method_depends_on_its_authors_word(folder: Path, capsys: Any) -> None:
    """A plan, what a reviewer signs, and an entry for a public registry state no promise without the condition."""
    assert main(["train", "plan.toml", "--plugin", "oblivious.py", "--site", "site.csv"]) == 0
    capsys.readouterr()
    assert main(["privacy", "plan.toml"]) == 0
    assert "oblivious 0.1" in " ".join(capsys.readouterr().out.split())
    assert main(["evidence", "model.json", "--out", "pack"]) == 0
    content = json.loads(Path("pack/evidence.json").read_text(encoding="utf-8"))
    condition = Model.load("model.json").report.condition
    assert "oblivious 0.1 (module oblivious)" in condition
    assert condition in dict(content["facts"])["in words"]
    said = dict(content["impact"])
    assert condition in said["To whom, and under which agreement"]
    entry = Path("pack/registry.yaml").read_text(encoding="utf-8")
    assert condition in " ".join(entry.split())
    assert ">holds<" not in Path("pack/evidence.html").read_text(encoding="utf-8")


def test_nodes_have_no_option_for_plug_ins() -> None:
    """On a command line that somebody sends to a site, no code of theirs is named."""
    for command in ("node", "join"):
        assert main([command, "--plugin", "anything"]) == 2


def test_what_authors_need_is_in_one_place() -> None:
    """Each name of the interface has a line in the module's docstring, which docs/api.md shows."""
    page = api.__doc__ or ""
    names = [name for name in vars(api) if not name.startswith("_") and name != "annotations"]
    assert [name for name in names if f"- `{name}`: " not in page] == []
