"""A model is read without what it was made with: each part of it from outside, each command, with it and without."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from hedgerow.cli.main import main
from hedgerow.data.site_data import read_site_data
from hedgerow.data.sources import SOURCES, add_source
from hedgerow.errors import ModelError
from hedgerow.local.training import train
from hedgerow.losses.kinds import AbsentLink, LossKind
from hedgerow.losses.registry import LOSSES, add_loss, build_loss
from hedgerow.methods.registry import find_method
from hedgerow.models.model import Model
from hedgerow.plan.registry import label_kinds, list_absent_parts
from hedgerow.plugins import load_plugin
from hedgerow.privacy.noise import SeededNoise
from tests.builders import LABELS, bare_plan, coded, make_data, numbers
from tests.plugins import toy_source
from tests.plugins.test_plugin_loading import OBLIVIOUS, forget, forget_losses
from tests.tiers import all_but

SHARE = {"name": "y", "type": "share", "min": 0, "max": 1}
NUMBER = {**SHARE, "type": "regression"}


def foreign(kind: LossKind, link: str = "", *, cuts_again: bool = False) -> Callable[[], None]:
    """Adds a loss of Hedgerow's for a type of label under another name, maybe with its link under another name."""
    label: Any = type("Foreign", (type(kind.label),), {"type": "share", "version": "0.2"})()

    def rename(kind: LossKind) -> LossKind:
        own = type("OwnLink", (type(kind.link),), {"name": link})() if link else kind.link
        return replace(kind, label=label, link=own, averaging=kind.averaging and rename(kind.averaging))

    return lambda: add_loss(replace(rename(kind), cuts_again=cuts_again))


def lend() -> None:
    load_plugin(str(Path(__file__).with_name("toy_loss.py")))


class Part(NamedTuple):
    """What a model is made with from outside.

    Attributes:
        add: as its plug-in is loaded.
        fields: of the plan.
        label: of the plan.
        said: what an error calls it.
        has_link: whether others know what its scores mean.
        reads_labels: whether labels are read without it.
    """

    add: Callable[[], Any]
    fields: dict[str, Any]
    label: dict[str, Any] = NUMBER
    said: str = ""
    has_link: bool = True
    reads_labels: bool = True


ALONE = {"interaction_size": 1}
OBLIVIOUS_TREES = {"algorithm": "oblivious", "n_trees": 3}
PARTS = {
    "method": Part(lambda: load_plugin(str(OBLIVIOUS)), OBLIVIOUS_TREES),
    "loss": Part(lend, {"loss": {"name": "lent", "delta": 0.3}, **ALONE}),
    "loss with its own link": Part(
        lend, {"loss": {"name": "apart"}, **ALONE}, said="the loss apart 0.3", has_link=False
    ),
    "label": Part(foreign(LOSSES["regression"]), ALONE, SHARE, "the type of label share 0.2", reads_labels=False),
    "label with its own link": Part(
        foreign(LOSSES["regression"], "own"), ALONE, SHARE, "the type of label share 0.2", False, False
    ),
    "source": Part(lambda: add_source("toy", toy_source.ToyTable), ALONE),
}
COMMANDS = {
    "predict": ["predict", "model.json", "rows.csv", "--out", "out"],
    "evaluate": ["evaluate", "model.json", "rows.csv", "--json"],
    "evaluate with noise": ["evaluate", "model.json", "--federated", "--site", "rows.csv", "--epsilon", "1", "--json"],
    "recalibrate": ["recalibrate", "model.json", "rows.csv", "--epsilon", "1", "--seed", "5", "--out", "out"],
    "report": ["report", "model.json", "--json"],
    "plot": ["plot", "model.json", "--out", "out.png"],
    "evidence": ["evidence", "model.json", "--out", "pack"],
    "export to xgboost": ["export", "model.json", "--to", "xgboost", "--out", "out"],
    "export to onnx": ["export", "model.json", "--to", "onnx", "--out", "out"],
    "export to ebm": ["export", "model.json", "--to", "ebm", "--out", "out"],
}


@pytest.fixture(autouse=True)
def without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Rows in the working folder; what it gives makes this a process that has loaded no plug-in."""

    def unload() -> None:
        forget()
        forget_losses()
        SOURCES.pop("toy", None)
        LOSSES.pop("share", None)
        label_kinds().pop("share", None)  # type: ignore[attr-defined]

    unload()
    x = np.random.default_rng(1).random((2, 200))
    toy_source.TABLES["rows"] = {"x0": x[0].tolist(), "x1": x[1].tolist(), "y": (x[0] ** 2).tolist()}
    rows = [f"{a},{b},{a**2}\n" for a, b in x.T]
    (tmp_path / "rows.csv").write_text("x0,x1,y\n" + "".join(rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield unload
    unload()


def make_model(part: Part) -> Model:
    """A model of its plan, from the rows of the folder, in model.json."""
    plan = bare_plan(part.label, numbers(2), **{"n_trees": 3, "n_records": 200, **part.fields})
    Path("plan.json").write_text(json.dumps(plan.to_dict()), encoding="utf-8")
    table = "toy://rows" if "toy" in SOURCES else "rows.csv"
    model = train(plan, {"a": read_site_data(table, plan)[0]}, noise=SeededNoise(5))
    model.save("model.json")
    return model


def carry_out(command: str, capsys: Any) -> tuple[int, bytes]:
    """The exit code of a command, and what it wrote; of an error its text in one line."""
    Path("out").unlink(missing_ok=True)
    code = main(COMMANDS[command])
    said = capsys.readouterr()
    if code:
        return code, " ".join(said.err.split()).encode()
    return 0, Path("out").read_bytes() if Path("out").exists() else said.out.encode()


@pytest.mark.parametrize("command", all_but(set(COMMANDS) - {"predict", "export to xgboost"}, COMMANDS))
@pytest.mark.parametrize("name", PARTS)
def test_without_a_part_a_command_says_the_same_or_what_is_missing(
    name: str, command: str, without: Callable[[], None], capsys: Any
) -> None:
    """Trees are read, predicted, plotted and exported without what made them. What scores mean, where only the part
    knows, and how labels are read is never guessed: scores are given as scores, or the part is named.
    """
    part = PARTS[name]
    part.add()
    trained = make_model(part)
    stored, scores = trained.to_bytes(), trained.decision_scores(toy_source.TABLES["rows"])
    code, expected = carry_out(command, capsys)
    # An explainable boosting machine has no trees of several features.
    assert code == 0 or not part.has_link or (name, command) in (("method", "export to ebm"), ("loss", "recalibrate"))
    Path("model.json").write_bytes(stored)
    without()
    code, found = carry_out(command, capsys)
    is_by_link = command.startswith("evaluate") and not part.has_link
    if is_by_link or ((command == "recalibrate" or command.startswith("evaluate")) and not part.reads_labels):
        assert (code, part.said in found.decode()) == (5, True)
    elif command in ("export to onnx", "export to ebm") and not part.has_link:
        assert (code, "'own'" in found.decode()) == (5, True)
    elif command == "predict" and not part.has_link:
        header, *rows = found.decode().splitlines()
        assert (code, header, [float(row) for row in rows]) == (0, "score_y", scores.tolist())
    else:
        assert code == 0 or expected == found
        if command != "export to xgboost" or part.has_link:
            assert found == expected or command == "evaluate with noise"


@pytest.mark.parametrize("name", PARTS)
def test_a_file_reads_back_to_its_bytes_without_a_part(name: str, without: Callable[[], None]) -> None:
    """Its digest, its promise and what its report says of whose word it goes by; nothing is trained by it."""
    PARTS[name].add()
    trained = make_model(PARTS[name])
    expected = [what(trained) for what in SAID]
    without()
    read = Model.load("model.json")
    assert [what(read) for what in SAID] == expected
    for absent in list_absent_parts(read.plan):
        refused = find_method if absent.what == "method" else build_loss
        with pytest.raises(ModelError, check=coded("method-absent")):
            refused(read.plan)


SAID: list[Callable[[Model], Any]] = [
    Model.to_bytes, repr, lambda model: model.plan.digest, lambda model: model.report_text("today"),
    lambda model: model.explain(toy_source.TABLES["rows"]).values.argmax(axis=1).tolist(),
]  # fmt: skip


@pytest.mark.parametrize("cuts_again", [False, True])
@pytest.mark.parametrize("like", ["binary", "multiclass", "regression", "count"])
@pytest.mark.parametrize("update", ["newton", "averaging"])
@pytest.mark.parametrize("link", ["", "own"])
def test_any_type_of_label_is_read_by_what_its_scores_mean(
    link: str, like: str, update: str, cuts_again: bool, without: Callable[[], None]
) -> None:
    """Under another name, with another rule for cells, and with a link of its own: trees are what they were."""
    foreign(LOSSES[like], link, cuts_again=cuts_again)()
    plan = bare_plan({**LABELS[like], "type": "share"}, numbers(2), n_trees=2, weight_update=update)
    columns = {"x0": np.array([0.1, 0.8]), "x1": np.array([0.9, np.nan])}
    trained = train(plan, {"a": make_data(plan, 60, 1)}, noise=SeededNoise(5))
    trained.save("model.json")
    expected = trained.to_bytes(), trained.decision_scores(columns).tolist(), trained.predict(columns).tolist()
    without()
    read = Model.load("model.json")
    assert (read.to_bytes(), read.decision_scores(columns).tolist()) == expected[:2]
    if isinstance(read.ensemble.link, AbsentLink):
        with pytest.raises(ModelError, check=coded("method-absent")):
            read.predict(columns)
    else:
        assert read.predict(columns).tolist() == expected[2]
