"""`hedgerow attack`: what it prints, writes and marks as private."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hedgerow.app import attack
from hedgerow.app.output import PRIVATE
from hedgerow.cli.main import main
from hedgerow.local import attacks

Run = Callable[..., Any]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path) -> Run:
    """Attack the model with few models and few rows; gives the JSON. How far it is stands on stderr all the while."""
    monkeypatch.setattr(attacks, "MAX_UNITS", 40)
    monkeypatch.setattr(attacks, "MAX_SIGNALS", 40)
    smaller = partial(attack.run_attacks, n_models=(4, 2, 2), n_corners=3, n_altered=3)
    monkeypatch.setattr(attack, "run_attacks", smaller)

    def call(*arguments: str | Path) -> Any:
        capsys.readouterr()
        assert main(["attack", str(model), *map(str, arguments), "--json"]) == 0
        printed = capsys.readouterr()
        assert "40 units" in printed.err
        return json.loads(printed.out)

    return call


def test_figures_of_private_rows_are_marked(run: Run, sites: list[str], tmp_path: Path) -> None:
    """Who is handed the page, the text or the JSON sees at once that no guarantee covers it."""
    page = tmp_path / "attack.html"
    content = run(sites[1], "--out", page)
    assert content["private"] is True
    assert content["note"] == PRIVATE
    assert {"membership", "reconstruction", "signal", "attributes", "bound", "findings"} <= set(content)
    text = page.read_text(encoding="utf-8")
    assert PRIVATE in text
    assert f"{content['signal']['mean']:.3f}" in text
    assert "http" not in text.replace("http-equiv", "")


def test_figures_of_made_rows_are_not(run: Run) -> None:
    """Without a table nobody's rows are attacked, and a pack for reviewers may hold the figures."""
    assert run()["private"] is False
