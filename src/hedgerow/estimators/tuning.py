# SPDX-License-Identifier: Apache-2.0
"""Choose among settings of an estimator within one promise: every fit and every measurement is on one account.

The promise's mu² is divided: a survey takes its usual share where something is not declared, once for all settings.
Of the rest each of K fits gets a K-th of nine tenths, and the measurement of each on held-out rows a K-th of one tenth.
The choice reads the noisy scores and nothing else, which is post-processing. Costs are added up although the held-out
rows are others: nothing rests on who stands in which part.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from hedgerow.errors import PrivacyError, UsageError
from hedgerow.estimators.base import PrivateTrees, only_rows, read_units
from hedgerow.evaluation.estimates import Estimate
from hedgerow.local.training import evaluate_federated
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.calibration import calibrate_noise_multiplier
from hedgerow.privacy.cost import compose_cost
from hedgerow.privacy.events import Event, GaussianEvent
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import NoiseSource, SeededNoise
from hedgerow.privacy.report import build_report
from hedgerow.privacy.rounding import format_up
from hedgerow.privacy.statement import PROCESS

Estimator = TypeVar("Estimator", bound=PrivateTrees)

EVALUATION_SHARE = 0.1
"""Share of mu² for all measurements together: they are few counts, which bear more noise than leaves do."""
_GRID_SHARES = ((15.0, 0.01), (math.inf, 0.25))
"""Of delta, kept back, by the largest epsilon for which it is: what the grid of the noise costs adds up over all fits,
and each of them counts its own alone. It grows as e^epsilon: at 20 two fits of one tree of depth 4 cost two hundredths
of a delta of 1e-6, and one of depth 8 more than a quarter."""
_MAX_EPSILON = 18.0
"""Beyond, the grid would cost more than that; what is asked above it is not spent."""
_FIXED = frozenset(
    {
        "epsilon", "delta", "accountant", "bounds", "categories", "classes", "label_bounds", "n_records",
        "max_rows_per_unit", "random_state", "secure_sums", "data_set", "loss", "intervals",
    }
)  # fmt: skip
_COPIED = ("n_features_in_", "feature_names_in_", "classes_")


@dataclass(frozen=True)
class TunedSetting:
    """A setting and its noisy score on held-out rows.

    Attributes:
        setting: the parameters that were tried.
        measure: "auc" for classes; "concordance" for times to an event; "rmse" or "mae" for numbers, of which less is
            better.
        score: with the error that its noise causes; NaN where there were too few held-out rows for the noise.
    """

    setting: Mapping[str, Any]
    measure: str
    score: Estimate


def tune(
    estimator: Estimator,
    settings: Sequence[Mapping[str, Any]],
    X: Any,
    y: Any,
    sites: Any = None,
    units: Any = None,
    *,
    held_out: float = 0.2,
) -> Estimator:
    """Fit an estimator with each setting and keep the best, all within its epsilon and delta.

    Tuning has a price: each of K fits has about 0.9 / K of the budget (mu²) and 1 - `held_out` of the rows. One fit
    with the default "auto" has all of both. At half the mu² a model has the noise of one on 30 % fewer rows, so tuning
    rarely beats "auto". Try few settings, those that you know to differ, with many rows. Tuning on made-up or public
    rows costs nothing.

    Args:
        estimator: its parameters but for the settings; it is not changed. Its `epsilon` is what all costs together;
            of more than 18, 18 are used.
        settings: parameters of the model to try, such as ``[{}, {"max_depth": 3}]``; ``{}`` is the estimator as it is.
        X, y, sites, units: as in `fit`.
        held_out: share of the rows (of units, where they are given) to measure on, in (0, 1). Each is drawn by itself.

    Returns:
        A fitted copy with the best setting. `privacy_report_`, `ledger_` and `model_` count the survey, all fits and
        all measurements; `tuning_` is a tuple of `TunedSetting`. Its `epsilon` is that of the whole promise again.

    Raises:
        UsageError: code "tune-settings", for settings that cannot be compared; others as `fit`.
        DataError, PlanError: as `fit`.
        PrivacyError: code "budget-exceeded"; the promise cannot be kept.
    """
    _check(estimator, settings, held_out)
    lead = clone(estimator).set_params(epsilon=_cap_epsilon(estimator.epsilon))
    tried: list[Estimator] = []
    scores: list[TunedSetting] = []
    with lead._open_run(units) as run:
        ready = lead._prepare(X, y, sites, units)
        start = ready.start
        is_held = _draw_held_out(len(ready.y), units, held_out, start.structure_seed if start.noise.seeded else None)
        n_fitted = max(1, round(start.n_records * (1 - held_out)))
        fitted = replace(ready, start=replace(start, rows=only_rows(start.rows, ~is_held), n_records=n_fitted))
        rows = only_rows(start.rows, is_held)
        of_fit, of_evaluation = _divide_budget(lead, start.ledger, len(settings))
        for number, setting in enumerate(settings):
            own: Estimator = clone(estimator).set_params(**{**setting, "epsilon": of_fit})
            for name in _COPIED:
                if hasattr(lead, name):
                    setattr(own, name, getattr(lead, name))
            # Noise from a seed must not be the same for all settings.
            noise: NoiseSource = SeededNoise(start.structure_seed + 1 + number) if start.noise.seeded else start.noise
            own._train(replace(fitted, start=replace(fitted.start, noise=noise)))
            held = own._make_site_data(own.model_.plan, ready.table, ready.y, rows)
            found = evaluate_federated(own.model_, held, epsilon=of_evaluation, noise=noise)
            own.model_ = found.model.evaluated(PROCESS, own.model_)
            tried.append(own)
            measure = next(name for name in ("auc", "concordance", "rmse", "mae") if name in found.evaluation.scores)
            scores.append(TunedSetting(dict(setting), measure, found.evaluation.scores[measure]))
    signs = [1 if scored.measure in ("auc", "concordance") else -1 for scored in scores]
    merits = [sign * scored.score.value for sign, scored in zip(signs, scores, strict=True)]
    best = int(np.nan_to_num(merits, nan=-math.inf).argmax())
    chosen = _merge_accounts(tried, best, estimator, tuple(scores))
    chosen._note_account(run)
    return chosen


def _check(estimator: PrivateTrees, settings: Any, held_out: Any) -> None:
    is_list = isinstance(settings, Sequence) and not isinstance(settings, str)
    if not is_list or not settings or not all(isinstance(setting, Mapping) for setting in settings):
        expected = 'a list of dictionaries, such as [{}, {"max_depth": 3}]; {} is the estimator as it is'
        raise UsageError("argument", code="tune-settings", name="settings", value=settings, expected=expected)
    fixed = [name for setting in settings for name in setting if name in _FIXED]
    if fixed:
        expected = "a parameter of the model; all settings share the promise, what is public, and what is predicted"
        raise UsageError("argument", code="tune-settings", name="A setting's name", value=fixed[0], expected=expected)
    if not 0 < held_out < 1:
        expected = "a share of the rows, above 0 and below 1"
        raise UsageError("argument", code="tune-settings", name="held_out", value=held_out, expected=expected)
    if estimator.accountant not in ("gdp", "rdp"):
        expected = '"gdp", which divides by Gaussian noise what all settings cost together'
        value = estimator.accountant
        raise UsageError("argument", code="tune-settings", name="accountant", value=value, expected=expected)


def _cap_epsilon(epsilon: Any) -> Any:
    """Return the part of an epsilon to spend; the plan refuses what is no epsilon."""
    is_larger = isinstance(epsilon, Real) and _MAX_EPSILON < float(epsilon) < math.inf
    return _MAX_EPSILON if is_larger else epsilon


def _draw_held_out(n_rows: int, units: Any, share: float, seed: int | None) -> NDArray[np.bool_]:
    """Draw the held-out rows, bool [n]; each row's or unit's draw is independent of all others."""
    draws = np.random.default_rng(secrets.randbits(128) if seed is None else seed)
    if units is None:
        return np.asarray(draws.random(n_rows) < share)
    distinct, number = np.unique(read_units(units, may_be_missing=True)[0], return_inverse=True)
    return np.asarray((draws.random(len(distinct)) < share)[number])


def _divide_budget(estimator: PrivateTrees, before: Ledger, n_settings: int) -> tuple[float, float]:
    """Return the budget of one fit, with the shared releases `before`, and of one measurement.

    Raises:
        PrivacyError: epsilon or delta out of range.
    """
    epsilon, delta = float(estimator.epsilon), estimator._delta
    if math.isinf(epsilon):
        return math.inf, math.inf
    judge, spent = get_accountant(estimator.accountant), list(before.events())
    kept_back = next(share for largest, share in _GRID_SHARES if epsilon <= largest)
    whole: float = calibrate_noise_multiplier(epsilon, delta * (1 - kept_back), 1.0, estimator.accountant) ** -2
    left = whole - (compose_cost(spent).gdp_weight if spent else 0.0)

    def costs(share: float, earlier: Sequence[Event] = ()) -> float:
        return judge.epsilon([*earlier, GaussianEvent(1 / math.sqrt(left * share / n_settings))], delta)

    return costs(1 - EVALUATION_SHARE, spent), costs(EVALUATION_SHARE)


def _merge_accounts(
    tried: Sequence[Estimator], best: int, asked: Estimator, scores: tuple[TunedSetting, ...]
) -> Estimator:
    """Return the best estimator, with the releases of all others on its account."""
    chosen = tried[best]
    ledger = chosen.model_.ledger
    for number, other in enumerate(tried):
        if number != best:
            # The ledger has the survey's releases already, which all settings share.
            n_shared = len(other.model_.plan.prepared)
            ledger = ledger.with_run(f"setting {number}", other.model_.ledger.releases[n_shared:], n_shared)
    report = build_report(ledger, chosen.model_.report)
    if report.epsilon > float(asked.epsilon):
        spent = format_up(report.epsilon)
        raise PrivacyError("budget-exceeded", what="All settings", spent=spent, epsilon=float(asked.epsilon))
    chosen.model_ = replace(chosen.model_, ledger=ledger, report=report)
    chosen.privacy_report_, chosen.ledger_ = report, ledger
    chosen.set_params(epsilon=asked.epsilon)
    chosen.tuning_ = scores
    return chosen
