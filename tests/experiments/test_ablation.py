"""What a part of the default earns: parts are off while they are said to be, and differences are paired."""

from __future__ import annotations

import math

import pytest

from experiments import ablation
from experiments.ablation import DEFAULT, PARTS, SAME, Run
from experiments.harness import Prepared
from hedgerow.trees import leaves
from tests.experiments.conftest import small_table


def test_what_is_replaced_for_a_run_is_there_again_after_it() -> None:
    """Also where the run fails: every later run would be without the part too."""
    before = leaves.smooth_ratios
    part = PARTS["pooling"]
    with pytest.raises(ZeroDivisionError), ablation._replaced(part.patches):
        assert leaves.smooth_ratios is not before
        raise ZeroDivisionError
    assert leaves.smooth_ratios is before


def test_what_is_earned_is_the_mean_of_paired_differences() -> None:
    """Only splits that both have count, and errors of cells add up as those of a mean."""
    found: ablation.Found = {
        ("binary", "a", DEFAULT, 1.0): {0: (0.5, 0.0), 1: (0.7, 0.0), 2: (0.9, 0.0)},
        ("binary", "a", "x", 1.0): {0: (0.4, 0.0), 1: (0.4, 0.0)},
        ("binary", "b", DEFAULT, 1.0): {0: (0.5, 0.0)},
        ("binary", "b", "x", 1.0): {0: (0.5, 0.0)},
    }
    mean, error, fewest = ablation._earned(found, "binary", ["a", "b"], "x")
    assert mean == pytest.approx(0.1) and fewest == 1
    assert error == pytest.approx(math.sqrt(0.2**2 / 2 / 2) / 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if "binary" in part.kinds])
def test_a_part_that_is_off_makes_another_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a table would say that it earns nothing; no cell of this set is crowded, and triples want more signal."""
    monkeypatch.setattr(ablation, "_task", lambda *_: Prepared(small_table(n_records=4_000)))
    epsilon = 0.2 if name in ("little signal", "pooling") else 3.0
    runs = [Run("binary", "small", part, epsilon, 0) for part in (DEFAULT, name)]
    default, without = (ablation._run(run, None, "code")["scores"] for run in runs)
    assert (without in (SAME, default)) == (name in ("cells cut again", "expected values of triples"))
