"""`hedgerow init`: the folder that it writes works as it stands."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from hedgerow.app.starter import N_SITES
from hedgerow.cli.main import main
from hedgerow.plan.plan import parse_plan


def test_it_writes_a_plan_that_is_read_and_leaves_other_folders_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan has no gaps, and what somebody has already is not written over."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "study"]) == 0
    assert parse_plan(Path("study/plan.toml").read_text(encoding="utf-8")).federation.min_sites == N_SITES
    before = {path: path.read_bytes() for path in Path("study").iterdir()}
    assert main(["init", "study"]) == 2
    assert {path: path.read_bytes() for path in Path("study").iterdir()} == before


@pytest.mark.slow
def test_the_script_trains_and_the_model_predicts_the_test_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a newcomer runs first ends with a report, and with the evaluation that README.md names."""
    assert main(["init", str(tmp_path / "study")]) == 0
    monkeypatch.chdir(tmp_path / "study")
    runpy.run_path("study.py")
    assert "HOLDS" in capsys.readouterr().out
    assert main(["privacy", "plan.toml"]) == 0
    assert main(["check", "plan.toml", "site-1.csv"]) == 0
    assert main(["evaluate", "model.json", "test.csv"]) == 0
