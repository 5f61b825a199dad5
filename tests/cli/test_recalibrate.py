"""`hedgerow recalibrate`, and `hedgerow evaluate` at one site: from files to files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hedgerow.cli.main import main
from hedgerow.models.model import Model

Run = Callable[..., Any]


def test_a_site_recalibrates_and_measures(study: Path, model: Path, tmp_path: Path, hedgerow: Run) -> None:
    """The new file has both accounts and the old one stays; what a site measures with noise is charged as well."""
    before, out = model.read_bytes(), tmp_path / "east.json"
    printed = hedgerow("recalibrate", model, study / "test.csv", "--epsilon", "1", "--out", out)
    assert "recalibrated" in printed and model.read_bytes() == before
    first, second = Model.load(model), Model.load(out)
    assert len(second.ledger) == len(first.ledger) + 1 and second.report.guarantee == "holds"
    scores = hedgerow("evaluate", out, study / "test.csv", "--json")
    assert scores["predicted"] == pytest.approx(scores["seen"], abs=0.1)
    measured = hedgerow("evaluate", out, study / "test.csv", "--epsilon", "1", "--json")
    assert measured["cost"]["epsilon"] <= 1 and len(Model.load(out).ledger) == len(second.ledger) + 2


@pytest.mark.parametrize(
    "options",
    [["--seed", "0"], ["--by", "ward"], ["--site", "a=x.csv"], ["--epsilon", "1", "--site", "a=x.csv"]],
    ids=" ".join,
)
def test_options_without_their_noise_are_refused(options: list[str], study: Path, model: Path) -> None:
    """What belongs to a measurement with noise is not passed over in silence where there is none."""
    assert main(["evaluate", str(model), str(study / "test.csv"), *options]) == 2


def test_no_model_is_lost(study: Path, model: Path) -> None:
    """A file that has another model's account is not written over, and nothing is released before that is known."""
    assert main(["recalibrate", str(model), str(study / "test.csv"), "--epsilon", "1", "--out", str(model)]) == 2
