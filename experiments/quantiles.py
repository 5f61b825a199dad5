"""Quantiles of numbers by `[loss]`: how many labels lie at or below them, and the pinball loss beside XGBoost's.

Random splits, four rows in five to train on, delta = 1 / n_train, bounds as `experiments/schemas` declares them, one
setting for all, noise seeded. The constant is the training labels' own quantile, and XGBoost sees the rows without
privacy: 100 trees of depth 6 at rate 0.1, by its quantile loss. "way" is how far the loss is on the way from XGBoost's
to the constant's. The exit code is 1 unless three tasks have a mean coverage within 0.02 of tau, and at most a third of
the way, at every tau.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from experiments import harness
from experiments.harness import Prepared, plan_for
from experiments.utility import GROUPS
from hedgerow.losses.named import Quantile
from hedgerow.plan.plan import Plan

TAUS = (0.1, 0.5, 0.9)
EPSILON, SHARE = 1.0, 0.8
FURTHEST, MAX_OF_WAY, FEWEST = 0.02, 1 / 3, 3
Floats = NDArray[np.float64]


def by_boosting(prepared: Prepared, train: NDArray[np.bool_], tau: float, seed: int) -> Floats:
    """Private quantiles of the rows that were not trained on: float64 [n]."""
    usual = plan_for(prepared.table, EPSILON, int(train.sum()), {"structure_seed": seed})
    plan = Plan.from_dict({**usual.to_dict(), "loss": {"name": "quantile", "tau": tau}})
    outcome = harness.trained(prepared, plan, train, seed)
    scores = harness.scores_of(outcome, harness.rows_of(prepared, plan, ~train))
    return outcome.ensemble.link.values(scores[0], plan.label)


def by_xgboost(prepared: Prepared, train: NDArray[np.bool_], tau: float, seed: int) -> Floats:
    """The same without privacy."""
    from xgboost import XGBRegressor

    table = prepared.table
    model = XGBRegressor(
        n_estimators=100, max_depth=6, learning_rate=0.1, objective="reg:quantileerror", quantile_alpha=tau,
        random_state=seed, n_jobs=1,
    )  # fmt: skip
    model.fit(table.matrix[train], table.label[train])
    return np.asarray(model.predict(table.matrix[~train]), dtype=np.float64)


def main(argv: list[str]) -> int:
    """Print coverage and loss of each task and tau."""
    tasks = GROUPS["numbers"]
    parser = harness.arguments("quantiles", __doc__, splits=(2, "random splits per cell"))
    parser.add_argument("--tasks", nargs="+", default=list(tasks), choices=list(tasks), metavar="TASK")
    options = parser.parse_args(argv)
    print(f"epsilon = {EPSILON:g}, {options.splits} splits\n")
    print(f"{'task':10}  tau  coverage  XGBoost's   pinball    XGBoost   constant    way")
    n_met = 0
    for task in options.tasks:
        prepared, is_met = Prepared(tasks[task](options.data)), True
        for tau in TAUS:
            found = []
            for split in range(60, 60 + options.splits):
                train = harness.stratified_split(prepared.table.label, split, SHARE)
                labels = prepared.table.label[~train]
                constant = np.full(len(labels), np.quantile(prepared.table.label[train], tau))
                ours, theirs = (by(prepared, train, tau, split) for by in (by_boosting, by_xgboost))
                pinball = [float(Quantile(tau=tau).pinball(labels, own).mean()) for own in (ours, theirs, constant)]
                found.append([float(np.mean(labels <= ours)), float(np.mean(labels <= theirs)), *pinball])
            coverage, other, own, best, worst = np.mean(found, axis=0).tolist()
            way = (own - best) / (worst - best)
            is_met &= abs(coverage - tau) <= FURTHEST and way <= MAX_OF_WAY
            print(
                f"{task:10}  {tau:.1f}  {coverage:8.3f}  {other:9.3f} {own:9.4g}  {best:9.4g}  {worst:9.4g}  {way:5.2f}"
            )
        n_met += is_met
    print(f"\nMet by {n_met} tasks of {len(options.tasks)}; {FEWEST} are asked for.")
    return 0 if n_met >= FEWEST else 1
