"""Where the model of a run goes: what was paid for is on the disk as soon as it can be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hedgerow.app.coordinator import ModelFile
from hedgerow.models.model import Model
from tests.builders import make_data, make_plan, train


def test_a_model_that_could_not_be_written_is_written_at_the_next_start(tmp_path: Path) -> None:
    """The disk was full when the run ended: its budget is spent, and no site has to come for the model to be there."""
    plan = make_plan("binary", {"n_trees": 2})
    outcome = train(plan, [make_data(plan, 200, 0)])
    made = SimpleNamespace(
        plan=plan, ensemble=outcome.ensemble, ledger=outcome.ledger, report=outcome.report, salvaged=None
    )
    file = ModelFile(tmp_path / "model.json", None, tmp_path / "journal.db", quiet=True)
    task = SimpleNamespace(schedule=SimpleNamespace(votes=None))
    replica = SimpleNamespace(count_drawings=lambda: 0)
    session: Any = SimpleNamespace(run=SimpleNamespace(sites=["a", "b", "c"], replica=replica, task=task, outcome=made))
    file.look(session)
    file.keep(made, session)  # type: ignore[arg-type]
    kept, own = Model.load(file.path), Model(plan, made.ensemble, made.ledger, made.report)
    assert kept.to_bytes() == own.made("network", 3).to_bytes() and kept.report.made_in == "network"
