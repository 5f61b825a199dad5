"""Figure 20: formulas worked by hand, bytes counted by the hub, and runs that are not repeated."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from experiments import figure20
from experiments.figure20 import (
    LINES,
    METHODS,
    RECORDS,
    Formula,
    Measurement,
    accuracies,
    draw,
    formula_of,
    measure_all,
    report_of,
)
from experiments.harness import Lines
from hedgerow.methods.registry import resolve
from hedgerow.training.presets import PRESETS

pytestmark = pytest.mark.slow

# T = 20, d = 4, m = 10, Q = 32 (64 for XGBoost), s = 5: rounds and numbers of Appendix B, by hand.
BY_HAND = {
    "dp-ebm": Formula(200, 200 * 2 * 16),
    "dp-rf": Formula(1, 20 * 2 * 16),
    "feverless": Formula(20 * 4, 20 * (1 + 2 + 4 + 8) * 2 * 32 * 10),
    "dp-tr-newton": Formula(20, 20 * 2 * 16),
    "dp-tr-newton-ih": Formula(25, 20 * 2 * 16 + 5 * 32 * 10),
    "dp-tr-batch-newton-ih-ebm-p025": Formula(4 + 5, 20 * 2 * 16 + 5 * 32 * 10),
    "dp-tr-batch-newton-ih-ebm-p1": Formula(1 + 5, 20 * 2 * 16 + 5 * 32 * 10),
    "xgboost-like": Formula(20 * 4, 20 * 15 * 2 * 64 * 10),
    "ldp": Formula(20, 20 * 2 * 16),
}


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_appendix_b(name: str) -> None:
    """The formulas, with the constants that the report states."""
    plan = Measurement(name, 3, 20, 100).plan
    assert formula_of(plan, resolve(plan)) == BY_HAND[name]


def test_every_method_of_boosting_is_measured() -> None:
    """A preset of another algorithm has other fields: it would end the command before the first run."""
    assert set(BY_HAND) <= set(METHODS)
    for name in METHODS:
        assert Measurement(name, 3, 4, 100).plan.model.n_trees in (4, 40)


def test_a_single_histogram_serves_all_levels_of_one_feature() -> None:
    """k = 1: T rounds of Q, section 5.1."""
    plan = Measurement("feverless", 3, 20, 100).plan
    plan = replace(plan, model=replace(plan.model, interaction_size=1))
    assert formula_of(plan, resolve(plan)) == Formula(20, 20 * 2 * 32)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, Path]:
    """Two methods, four trees, three clients, over real sockets."""
    folder = tmp_path_factory.mktemp("figure20")
    wanted = [Measurement(name, 3, 4, 30) for name in ("dp-tr-newton", "feverless")]
    return measure_all(wanted, Lines(folder / "runs.csv"), folder), folder


def test_bytes_are_what_the_engine_carried(measured: tuple[pd.DataFrame, Path]) -> None:
    """Rounds are Appendix B's, numbers within its constants, bytes more than the numbers alone and of their order."""
    for line in measured[0].itertuples():
        formula = line.formula
        assert line.rounds == formula.rounds and line.exchanges == 2 * line.rounds
        assert formula.numbers <= line.numbers < 1.2 * formula.numbers
        assert 4 * line.numbers < line.sent < 8 * line.numbers + 2000 * line.exchanges
        assert line.received > 0 and line.set_up > 0 and line.cpu_client > 0 and line.cpu_server > 0


def test_measured_runs_are_kept(measured: tuple[pd.DataFrame, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another life reads them from the CSV, to the last digit."""
    lines, folder = measured

    def forbidden(*_: object) -> dict[str, str]:
        raise AssertionError("measured again")

    monkeypatch.setattr(figure20, "_measure", forbidden)
    wanted = [Measurement(line.method, line.clients, line.trees, line.rows) for line in lines.itertuples()]
    pd.testing.assert_frame_equal(measure_all(wanted, Lines(folder / "runs.csv"), folder), lines)


def test_accuracy_is_recorded_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings that are in the CSV are not repeated; two seeds are two runs."""
    wanted, store = [("DP-TR Newton, Q = 8", 700, seed) for seed in (0, 1)], tmp_path / "accuracy.csv"
    points = accuracies(wanted, store)
    first, second = points.auc
    assert first != second and min(first, second) > 0.5
    monkeypatch.setattr(figure20, "_auc", lambda *_: 1 / 0)
    pd.testing.assert_frame_equal(accuracies(wanted, store), points)


def test_the_report_notices_other_rounds(measured: tuple[pd.DataFrame, Path], tmp_path: Path) -> None:
    """What the exit code says: one run with a round too many is not Appendix B's."""
    points = pd.DataFrame(list(product(LINES, RECORDS, (0.9, 0.8))), columns=["line", "records", "auc"])
    lines = measured[0]
    report, holds = report_of(lines, points)
    assert holds and PRESETS["feverless"].title in report and "Rounds are those" in report
    report, holds = report_of(lines.assign(rounds=[lines.rounds[0] + 1, *lines.rounds[1:]]), points)
    assert not holds and "**not**" in report
    draw(lines, points, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
