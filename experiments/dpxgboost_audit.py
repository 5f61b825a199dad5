"""Canary audit of DP-XGBoost: do choices and Laplace noise tell of one record no more than pure epsilon allows?

As in `experiments.sgbdt_audit`: the adversary knows every other record and the canary, sees every release, and
does not know whether the canary was drawn where rows are sampled. Its statistic is the log-likelihood ratio. A release
r of a sum k with discrete Laplace noise of scale s, and a canary that adds v, gives

    (|r - k| - |r - k - v|) / s     (sums of magnitudes),

a choice gives the difference of the logarithms of its chances under the scores of k + v and of k, and a chance q to be
drawn turns a ratio x into log(1 - q + q exp(x)). Error rates of the test bound epsilon from below at delta = 0.
Planted faults, which the audit must find, show that its silence means something.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.audit import (
    CONFIDENCE,
    Attack,
    Verdict,
    audit_faults,
    epsilon_lower_bound,
    errors_of,
    small_plan,
    subject_of,
)
from hedgerow.client.node import Node
from hedgerow.data.site_data import SiteData
from hedgerow.methods.dp_xgboost.trees import SplitSelection, candidate_scores
from hedgerow.methods.registry import resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import IntVector, PureQuery, Query


@dataclass(frozen=True)
class PureAudit:
    """What an audit found: the pure epsilon accounted for, and the one that was at least observed."""

    epsilon_accounted: float
    epsilon_lower_bound: float
    n_runs: int

    @property
    def passed(self) -> bool:
        """Whether nothing was observed that contradicts the accounting."""
        return self.epsilon_lower_bound <= self.epsilon_accounted


class SkippedClip(Node):
    """A fault: gradients are not clipped, under a coordinator that noises for the clip."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.held.loss = dataclasses.replace(self.held.loss, clip=2**14)


class LittleNoise(SeededNoise):
    """A fault: a quarter of the noise that the ledger claims."""

    def laplace(self, scale: int, length: int, purpose: str) -> NDArray[np.int64]:
        """See `NoiseSource.laplace`."""
        return super().laplace(max(1, scale // 4), length, purpose)


class BestSplit(SeededNoise):
    """A fault: the best split is taken, as if choosing cost nothing."""

    def select(self, scores: Sequence[NDArray[np.int64]], scale: int, purpose: str) -> NDArray[np.int64]:
        """See `NoiseSource.select`."""
        return np.array([int(values.argmax()) if len(values) else -1 for values in scores], dtype=np.int64)


FAULTS = ("none", "skipped clip", "a quarter of the noise", "the best split without noise", "un-amplified sampler")


def audit_pure(plan: Plan, n_runs: int, fault: str = "none", confidence: float = CONFIDENCE) -> PureAudit:
    """Train `n_runs` times, in half of the runs with the canary, and bound epsilon from below."""
    settings, is_open = resolve(plan), fault == "un-amplified sampler"
    kind = SkippedClip if fault == "skipped clip" else Node
    noise = {"a quarter of the noise": LittleNoise, "the best split without noise": BestSplit}.get(fault, SeededNoise)
    attack = Attack(plan, subject_of(plan).records, _odd_one(plan), _gain, kind, noise, is_open)
    ratios = np.empty(n_runs)
    accounted = 0.0
    for run in range(n_runs):
        ratios[run], releaser = attack.run(settings, run)
        if run == 0:
            accounted = get_accountant("pure").epsilon(releaser.ledger.events(), plan.privacy.delta)
    alarms, missed = errors_of(ratios, halves_ties=True)
    return PureAudit(accounted, epsilon_lower_bound(alarms, missed, 0.0, confidence), n_runs)


def _odd_one(plan: Plan) -> SiteData:
    """The canary: where splits cost much, unlike all other records in every feature too, so that they set it apart."""
    canary = subject_of(plan).canary
    if plan.dp_xgboost.split_share < 0.1:
        return canary
    return SiteData(np.array([[4], [0]], dtype=canary.codes.dtype), canary.labels)


def _gain(query: Query, known: IntVector, vector: IntVector, released: IntVector) -> tuple[float, float]:
    """The log-likelihood ratio of one release, for a canary that is in it or is not, and its chance to be drawn."""
    if not isinstance(query, PureQuery):
        raise TypeError("only releases of pure differential privacy are audited here")
    if isinstance(query, SplitSelection):
        present, absent = (_log_chances(query, total, released) for total in (known + vector, known))
        return present - absent, query.pure.sampling_rate
    distance = np.abs(released - known).sum() - np.abs(released - known - vector).sum()
    return float(distance) / query.pure.scale, query.pure.sampling_rate


def _log_chances(query: SplitSelection, total: IntVector, released: IntVector) -> float:
    """The logarithm of the chance of these choices, one per node."""
    chance = 0.0
    for (places, scores), choice in zip(candidate_scores(query, total), released.tolist(), strict=True):
        if choice >= 0:
            logs = (scores - scores.max()) / query.pure.scale
            chance += float(logs[places == choice][0] - np.log(np.exp(logs).sum()))
    return chance


def plan_of(label: str, epsilon: float, model: Mapping[str, Any], **own: Any) -> Plan:
    """A small plan of DP-XGBoost under pure accounting."""
    table = small_plan(label, epsilon, {"algorithm": "dp-xgboost", **model}, dp_xgboost=own).to_dict()
    return Plan.from_dict({**table, "privacy": {**table["privacy"], "accountant": "pure"}})


SOUND: dict[str, Plan] = {
    "binary, choices": plan_of("binary", 2.0, {"n_trees": 1, "max_depth": 1}),
    "binary, choices, filter, 3 trees": plan_of("binary", 2.0, {"n_trees": 3, "max_depth": 2}, gradient="filter"),
    "regression, choices": plan_of("regression", 2.0, {"n_trees": 2, "max_depth": 1}),
    "binary, histograms": plan_of("binary", 2.0, {"n_trees": 1, "max_depth": 1}, splits="histogram"),
    "binary, samples of 0.2": plan_of("binary", 2.0, {"n_trees": 2, "max_depth": 1}, subsampling_ratio=0.2),
    "leaves alone": plan_of(
        "binary", 2.0, {"n_trees": 1, "max_depth": 1}, sketch_rounds=0, sketch_share=0.0, split_share=0.01
    ),
}
_LEAVES: dict[str, Any] = {"sketch_rounds": 0, "sketch_share": 0.0, "split_share": 0.01}
FAULTY: dict[str, Plan] = {
    # A rate of 9 sends scores far from any label, so that an unclipped gradient of the second tree is several times a
    # clipped one.
    "skipped clip": plan_of("regression", 1.0, {"n_trees": 2, "max_depth": 1, "learning_rate": 9.0}, **_LEAVES),
    "a quarter of the noise": plan_of("binary", 1.0, {"n_trees": 1, "max_depth": 1}, **_LEAVES),
    "the best split without noise": plan_of(
        "binary", 0.5, {"n_trees": 5, "max_depth": 1}, sketch_rounds=0, sketch_share=0.0, split_share=0.9
    ),
    "un-amplified sampler": plan_of("binary", 0.5, {"n_trees": 1, "max_depth": 1}, subsampling_ratio=0.02, **_LEAVES),
}
"""Plans on which a fault shows in few trainings."""


def main(argv: list[str]) -> int:
    """Audit DP-XGBoost, then the same with planted faults; 0 if all sound plans pass and all faulty ones fail."""

    def found(plan: Plan, n_runs: int, fault: str) -> Verdict:
        one = audit_pure(plan, n_runs, fault)
        return one.passed, f"{one.epsilon_accounted:18.3f}{one.epsilon_lower_bound:10.3f}"

    columns = f"{'epsilon accounted':>18}{'at least':>10}"
    return audit_faults(argv, "dpxgboost_audit", __doc__, (SOUND, FAULTY), columns, found)
