"""Pictures: drawn for every kind of model, and a clear error where they cannot be."""

from __future__ import annotations

import errno
import html
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hedgerow.errors import EnvironmentFault
from hedgerow.models.bands import why_unknown
from hedgerow.models.model import Model
from hedgerow.models.plots import plot_shapes
from tests.builders import FEATURES, make_plan, train_model


def small_model(label: str, features: Any = None, **fields: Any) -> Model:
    return train_model(make_plan(label, fields, features=features), n=200)


@pytest.mark.parametrize("label", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize(
    "fields", [{"interaction_size": 1}, {"interaction": "cyclical", "interaction_size": "all"}, {"n_trees": 1}]
)
def test_every_model_can_be_drawn(tmp_path: Path, label: str, fields: dict[str, Any]) -> None:
    """The picture comes out as a PNG file of some size, without a warning (warnings are errors here)."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "shapes.png"
    plot_shapes(small_model(label, **fields), path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 5000


def test_a_picture_names_every_feature(tmp_path: Path) -> None:
    """Each feature has its panel, with its name in it, and the promise stands below the title."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "shapes.svg"
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot_shapes(small_model("binary", n_trees=8), path)
    drawn = path.read_text()
    for word in ("age", "income", "region", "change", "epsilon 2", "missing values"):
        assert word in drawn, word


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    """Dollars, backslashes and braces are no formulas: they neither end the drawing nor change a name."""
    matplotlib = pytest.importorskip("matplotlib")
    odd = ["cost $ per $", "$a_{$", "\\frac{1}", "{0} %d"]
    features: list[dict[str, Any]] = [{"name": name, "type": "numeric", "min": 1, "max": 1e6} for name in odd[:2]]
    features += [{"name": odd[2], "type": "categorical", "categories": ["$x^", "a_b"]}]
    features += [{"name": odd[3], "type": "numeric", "min": 1, "max": 1e6, "spacing": "log"}]
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot_shapes(small_model("binary", features, n_trees=8), tmp_path / "shapes.svg")
    drawn = html.unescape((tmp_path / "shapes.svg").read_text(encoding="utf-8"))
    assert [name for name in [*odd, "$x^"] if name not in drawn] == []
    assert "mathdefault" not in drawn


def test_without_matplotlib_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a node's small installation, drawing says which extra to install."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EnvironmentFault, match=r"\[plots\]") as caught:
        plot_shapes(small_model("binary"), tmp_path / "shapes.png")
    assert caught.value.code == "missing-extra"


def test_a_picture_into_no_folder(tmp_path: Path) -> None:
    """A folder that does not exist is one clear error."""
    pytest.importorskip("matplotlib")
    with pytest.raises(EnvironmentFault) as caught:
        plot_shapes(small_model("binary"), tmp_path / "nowhere" / "a.png")
    assert caught.value.code == "file-not-written"


def test_a_picture_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, and neither half a picture nor a draft of one is left; an earlier picture stays."""
    pytest.importorskip("matplotlib")
    picture = tmp_path / "model.svg"
    picture.write_text("earlier")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFault) as raised:
        plot_shapes(small_model("binary"), picture)
    assert raised.value.code == "disk-full"
    assert [path.name for path in tmp_path.iterdir()] == ["model.svg"] and picture.read_text() == "earlier"


def test_directions_that_were_fixed_are_marked(tmp_path: Path) -> None:
    """Else a reader takes for found what was declared; their shapes have no bands, and the picture says why."""
    matplotlib = pytest.importorskip("matplotlib")
    features = [{**FEATURES[0], "monotone": "increasing"}, FEATURES[1]]
    model = small_model("binary", features=features, n_trees=8)
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot_shapes(model, tmp_path / "shapes.svg")
    drawn = (tmp_path / "shapes.svg").read_text()
    assert drawn.count("\N{NORTH EAST ARROW}") == 1
    reason = why_unknown(model.plan, model.ensemble, model.ledger)
    assert reason in drawn
    assert "never falls with age" in repr(model)
