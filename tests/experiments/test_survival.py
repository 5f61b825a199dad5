"""The two private linear methods that the default for times to an event is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from experiments import survival
from experiments.datasets import Table
from experiments.harness import Prepared
from experiments.survival import CLIP, N_STEPS, Cohort, Predicted
from hedgerow.losses.censored import concordance
from hedgerow.losses.survival import hazards, survival_codes
from hedgerow.privacy.accountants import mu_of

Fit = Callable[[Cohort, NDArray[np.bool_], int, float], Predicted]
LINEAR: list[Fit] = [survival._adassp, survival._descent]
ENDS = (1.0, 2.0, 3.0, 4.0)
SLOPES = np.array([1.2, -0.8, 0.0])


def made_cohort(n: int, seed: int) -> tuple[Cohort, NDArray[np.float64]]:
    """Three numbers within [-1, 1], of which two decide, and true scores."""
    rng = np.random.default_rng(seed)
    matrix = rng.uniform(-1, 1, (n, 3))
    truth = matrix @ SLOPES
    times, lost = rng.exponential(4 * np.exp(-truth)), rng.uniform(0, 8, n)
    events = times <= lost
    times = np.minimum(times, lost)
    features = tuple({"name": f"x{i}", "type": "numeric", "min": -1, "max": 1} for i in range(3))
    label = {"name": "time", "type": "survival", "event": "event", "intervals": list(ENDS)}
    codes = np.asarray(survival_codes(times, events, ENDS), dtype=np.int64)
    table = Table("made", features, tuple(matrix.T.astype(np.float32)), codes, label)
    return Cohort(Prepared(table), times, events, ENDS, matrix), truth


def half(n: int) -> NDArray[np.bool_]:
    return np.arange(n) % 2 == 0


@pytest.mark.parametrize("fit", LINEAR)
def test_with_little_noise_the_slopes_of_a_cox_model_are_found(fit: Fit) -> None:
    cohort, truth = made_cohort(6000, 1)
    train = half(6000)
    risks, curves = fit(cohort, train, 0, 50.0)
    assert np.corrcoef(risks, truth[~train])[0, 1] > 0.99
    own, best = (concordance(cohort.times[~train], cohort.events[~train], each) for each in (risks, truth[~train]))
    assert own > best - 0.005
    assert curves.shape == (3000, 4) and (np.diff(curves, axis=1) <= 0).all()
    # The larger the risk, the lower the whole curve.
    assert (np.diff(curves[np.argsort(risks)], axis=0) <= 1e-12).all()


@pytest.mark.parametrize("fit", LINEAR)
def test_the_same_seed_gives_the_same_model_and_noise_hurts(fit: Fit) -> None:
    cohort, truth = made_cohort(2000, 2)
    train = half(2000)
    first, again = (fit(cohort, train, 3, 1.0)[0] for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, fit(cohort, train, 4, 1.0)[0])
    near, far = (
        np.mean([np.corrcoef(fit(cohort, train, seed, epsilon)[0], truth[~train])[0, 1] for seed in range(6)])
        for epsilon in (20.0, 0.02)
    )
    assert near > 0.98 > 0.8 > far


def test_baseline_and_model_share_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise multipliers of all releases: the sum of 1 / multiplier² is the mu² of the promise, for both methods."""
    cohort, _ = made_cohort(1000, 5)
    train, promised = half(1000), mu_of(1.0, 1 / 500)
    drawn: list[tuple[float, object]] = []

    class Recorder:
        def normal(self, mean: float, sigma: float, size: object = None) -> NDArray[np.float64] | float:
            drawn.append((sigma, size))
            return np.zeros(size) if size is not None else 0.0  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(np.random, "default_rng", lambda *_: Recorder())
    survival._adassp(cohort, train, 0, 1.0)
    # Rows have norm 1 at most and targets are within [-1, 1], so each release has the sensitivity 1, as codes have.
    assert len(drawn) == 4
    assert sum(1 / sigma**2 for sigma, _ in drawn) == pytest.approx(promised**2, rel=1e-3)
    drawn.clear()
    survival._descent(cohort, train, 0, 1.0)
    assert len(drawn) == 1 + N_STEPS
    spent = 1 / drawn[0][0] ** 2 + sum((CLIP / sigma) ** 2 for sigma, _ in drawn[1:])
    assert spent == pytest.approx(promised**2, rel=1e-3)


def test_no_record_moves_a_release_of_theirs_further_than_its_noise_is_for() -> None:
    """By brute force over records: rows of AdaSSP have norm 1 at most, clipped gradients of the descent `CLIP`."""
    cohort, _ = made_cohort(400, 6)
    bought = survival._bought(cohort, np.ones(400, dtype=bool), 0, 1.0)
    rows = bought.rows / math.sqrt(len(cohort.prepared.table.features) + 1)
    assert np.linalg.norm(rows, axis=1).max() <= 1
    rng = np.random.default_rng(7)
    for _ in range(20):
        scores = rng.normal(0, 3, 400)
        excess = bought.excess(scores)
        chances = hazards(scores, bought.baseline)
        for record, code in enumerate(bought.codes.tolist()):
            assert excess[record] == pytest.approx(chances[record, : (code + 1) // 2].sum() - code % 2)
        assert (np.abs(np.clip(-excess, -1, 1))[:, None] * np.linalg.norm(rows, axis=1)[:, None]).max() <= 1
        lengths = np.linalg.norm(bought.rows, axis=1)
        slopes = excess * np.minimum(1, CLIP / np.maximum(np.abs(excess) * lengths, 1e-12))
        assert np.linalg.norm(bought.rows * slopes[:, None], axis=1).max() <= CLIP * (1 + 1e-12)
