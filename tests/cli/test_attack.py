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
from hedgerow.local import attacks


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few models and few rows."""
    monkeypatch.setattr(attack, "run_attacks", partial(attack.run_attacks, n_models=(4, 2, 2)))
    for name, value in (("MOST_UNITS", 40), ("MOST_SIGNALS", 40), ("N_CORNERS", 3), ("N_ALTERED", 3)):
        monkeypatch.setattr(attacks, name, value)


def test_figures_of_private_rows_are_marked(
    hedgerow: Callable[..., Any], model: Path, sites: list[str], tmp_path: Path
) -> None:
    """Who is handed the page, the text or the JSON sees at once that no guarantee covers it."""
    table, page = sites[1], tmp_path / "attack.html"
    content = hedgerow("attack", model, table, "--out", page, "--json")
    assert content["private"] is True
    assert content["note"] == PRIVATE
    assert {"membership", "reconstruction", "signal", "attributes", "bound", "findings"} <= set(content)
    text = page.read_text(encoding="utf-8")
    assert PRIVATE in text
    assert f"{content['signal']['mean']:.3f}" in text
    assert "http" not in text.replace("http-equiv", "")


def test_figures_of_made_rows_are_not(hedgerow: Callable[..., Any], model: Path) -> None:
    """Without a table nobody's rows are attacked, and a pack for reviewers may hold the figures."""
    content = hedgerow("attack", model, "--json")
    assert content["private"] is False
    assert json.dumps(content)
