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

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.audit import CONFIDENCE, Verdict, report_faults, small_plan, subject_of
from experiments.sgbdt_audit import Everyone, epsilon_lower_bound
from hedgerow.client.node import Node
from hedgerow.client.sampling import SeededSampling
from hedgerow.data.site_data import SiteData
from hedgerow.methods.dp_xgboost.trees import candidate_scores
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import IntVector, PureQuery, Query, SplitSelection
from hedgerow.server.coordinator import Releaser
from hedgerow.training.settings import Settings


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
        self._loss = dataclasses.replace(self._loss, clip=2**14)


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
    settings = resolve(plan)
    ratios = np.empty(n_runs)
    accounted = 0.0
    for run in range(n_runs):
        ratios[run], releaser = _log_likelihood_ratio(plan, settings, run, fault)
        if run == 0:
            accounted = get_accountant("pure").epsilon(releaser.ledger.events(), plan.privacy.delta)
    without, present = ratios[0::2], ratios[1::2]
    # Half of the ties count as errors, so that a statistic that says nothing finds nothing.
    alarms = (int((without > 0).sum()) + int((without == 0).sum()) // 2, len(without))
    missed = (int((present < 0).sum()) + int((present == 0).sum()) // 2, len(present))
    return PureAudit(accounted, epsilon_lower_bound(alarms, missed, 0.0, confidence), n_runs)


def _log_likelihood_ratio(plan: Plan, settings: Settings, run: int, fault: str) -> tuple[float, Releaser]:
    """One training: the adversary's statistic, and the releases' ledger; odd runs hold the canary."""
    subject, odd = subject_of(plan), _odd_one(plan)
    kind = SkippedClip if fault == "skipped clip" else Node
    n_records = subject.records.n_records
    site = Node("records", subject.records, plan, settings, 1, SeededSampling(run, np.arange(n_records)))
    secret = Everyone() if fault == "un-amplified sampler" else SeededSampling(run, np.array([n_records]))
    canary = kind("canary", odd, plan, settings, 1, secret)
    twin = kind("twin", odd, plan, settings, 1, Everyone())
    noise = {"a quarter of the noise": LittleNoise, "the best split without noise": BestSplit}.get(fault, SeededNoise)
    releaser = Releaser(noise(run, exact=False))
    program = program_for(plan, settings)
    ratio = 0.0
    query = next(program)
    while True:
        known, own, vector = site.answer(query), canary.answer(query), twin.answer(query)
        released = releaser.release(query, known + own if run % 2 else known)
        gain = _gain(query, known, vector, released)
        rate = query.pure.sampling_rate if isinstance(query, PureQuery) else 1.0
        is_secret = rate < 1 and fault != "un-amplified sampler"
        ratio += float(np.logaddexp(np.log1p(-rate), np.log(rate) + gain)) if is_secret else gain
        try:
            query = program.send(released)
        except StopIteration:
            return ratio, releaser


def _odd_one(plan: Plan) -> SiteData:
    """The canary: where splits cost much, unlike all other records in every feature too, so that they set it apart."""
    canary = subject_of(plan).canary
    if plan.dp_xgboost.split_share < 0.1:
        return canary
    return SiteData(np.array([[4], [0]], dtype=canary.codes.dtype), canary.labels)


def _gain(query: Query, known: IntVector, vector: IntVector, released: IntVector) -> float:
    """The log-likelihood ratio of one release, for a canary that is in it or is not."""
    if not isinstance(query, PureQuery):
        raise TypeError("only releases of pure differential privacy are audited here")
    if isinstance(query, SplitSelection):
        present, absent = (_log_chances(query, total, released) for total in (known + vector, known))
        return present - absent
    return float(np.abs(released - known).sum() - np.abs(released - known - vector).sum()) / query.pure.scale


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
    "un-amplified sampler": plan_of(
        "binary", 0.5, {"n_trees": 1, "max_depth": 1}, subsampling_ratio=0.02, **_LEAVES
    ),
}
"""Plans on which a fault shows in few trainings."""


def main(argv: list[str]) -> int:
    """Audit DP-XGBoost, then the same with planted faults; 0 if all sound plans pass and all faulty ones fail."""
    parser = argparse.ArgumentParser(prog="dpxgboost_audit", description="Canary audit of DP-XGBoost.")
    parser.add_argument("--runs", type=int, default=1000, help="trainings per plan")
    parser.add_argument("--data", help="not used: the records are made up")
    n_runs = parser.parse_args(argv).runs

    def found(plan: Plan, fault: str) -> Verdict:
        one = audit_pure(plan, n_runs, fault)
        return one.passed, f"{one.epsilon_accounted:18.3f}{one.epsilon_lower_bound:10.3f}"

    title = f"{n_runs} trainings each, {CONFIDENCE:.1%} confidence, delta = 0"
    return report_faults(title, f"{'epsilon accounted':>18}{'at least':>10}", (SOUND, FAULTY), found)
