"""Canary audit of sampled and filtered runs: is one record's part told no better than the account says?

As in `experiments.audit`, the adversary knows every other record, who of them was drawn, and the canary; it
does not know whether the canary was drawn. With v the canary's vector, zero where its filter keeps it out, and q its
chance to be drawn, the most powerful statistic is the sum over releases of

    log(1 - q + q exp(<release - sum without canary, v> / sigma² - |v|² / (2 sigma²))).

Planted faults, which the audit must find, show that its silence means something.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments import audit
from experiments.audit import CONFIDENCE, Verdict, epsilon_lower_bound, errors_of, mu_lower_bound, subject_of
from hedgerow.client.node import Node
from hedgerow.data.site_data import SiteData
from hedgerow.methods.adassp.linear import CrossProducts, GramMatrix
from hedgerow.methods.registry import resolve
from hedgerow.methods.s_gbdt.trees import SampledLeafSums, accounts
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.events import DiscreteGaussianEvent, SampledGaussianEvent
from hedgerow.privacy.query_noise import noise_of
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.server.release import Releaser


@dataclass(frozen=True)
class SampledAudit:
    """What an audit found: the epsilon accounted for, and the one that was at least observed, at the plan's delta.

    Where nothing is sampled or filtered, mu is known as well and shows a fault in fewer trainings; infinity elsewhere.
    """

    epsilon_accounted: float
    epsilon_lower_bound: float
    mu_accounted: float
    mu_lower_bound: float
    n_runs: int

    @property
    def passed(self) -> bool:
        """Whether nothing was observed that contradicts the accounting."""
        return self.epsilon_lower_bound <= self.epsilon_accounted and self.mu_lower_bound <= self.mu_accounted


class WeakFilter(Node):
    """A fault: the filter keeps no record out."""

    def answer(self, query: Query) -> IntVector:
        accounts(self.held)[:] = 0
        return super().answer(query)


class SkippedClip(Node):
    """A fault: gradients are not clipped, under a coordinator that noises for the clip."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.held.loss = dataclasses.replace(self.held.loss, clip=2**15 - 1)


class LongRows(Node):
    """A fault: the rows of linear models are not shortened."""

    def answer(self, query: Query) -> IntVector:
        if isinstance(query, GramMatrix | CrossProducts):
            query = dataclasses.replace(query, rows=dataclasses.replace(query.rows, limit=2**20))
        return super().answer(query)


FAULTS: dict[str, type[Node]] = {
    "none": Node,
    "weakened filter": WeakFilter,
    "skipped clip": SkippedClip,
    "rows that are not shortened": LongRows,
    "un-amplified sampler": Node,
}


def audit_sampled(plan: Plan, n_runs: int, fault: str = "none", confidence: float = CONFIDENCE) -> SampledAudit:
    """Train `n_runs` times, in half of the runs with the canary, and bound epsilon from below."""
    settings, is_open = resolve(plan), fault == "un-amplified sampler"
    attack = audit.Attack(plan, *_data(plan), _gain, FAULTS[fault], takes_all=is_open)
    ratios = np.empty(n_runs)
    accounted, mu = 0.0, math.inf
    for run in range(n_runs):
        ratios[run], releaser = attack.run(settings, run)
        if run == 0:
            accounted = get_accountant("gdp").epsilon(releaser.ledger.events(), plan.privacy.delta)
            mu = _mu_of(releaser)
    alarms, missed = errors_of(ratios)
    found = epsilon_lower_bound(alarms, missed, plan.privacy.delta, confidence)
    return SampledAudit(accounted, found, mu, mu_lower_bound(*alarms, *missed, confidence), n_runs)


def _gain(query: Query, known: IntVector, vector: IntVector, released: IntVector) -> tuple[float, float]:
    own = vector.astype(np.float64)
    shift = float((released - known).astype(np.float64) @ own - own @ own / 2) / noise_of(query).central_sigma ** 2
    return shift, query.sampling_rate if isinstance(query, SampledLeafSums) else 1.0


def _mu_of(releaser: Releaser) -> float:
    """mu of a run without samples; infinity for another."""
    weight = 0.0
    for event in releaser.ledger.events():
        sampled = isinstance(event, SampledGaussianEvent) and event.sampling_rate < 1
        if sampled or not isinstance(event, SampledGaussianEvent | DiscreteGaussianEvent):
            return math.inf
        weight += event.count / event.noise_multiplier**2
    return math.sqrt(weight)


def _data(plan: Plan) -> tuple[SiteData, SiteData]:
    """The records that are always there, and the canary; for a linear start many of the first, at the other end of a
    feature, so that its second matrix is of rows in which the canary's would be the longest."""
    subject = subject_of(plan)
    if plan.s_gbdt.initial_score != "linear":
        return subject.records, subject.canary
    codes, labels = subject.records.codes * 0, subject.records.labels
    far = subject.canary.codes * 0
    far[0] = 9
    return SiteData(np.tile(codes, 25), np.tile(labels, 25)), SiteData(far, subject.canary.labels)


def small_plan(label: str, epsilon: float = 2.0, n_trees: int = 5, delta: float = 1e-5, **section: Any) -> Plan:
    """A plan of S-GBDT over two features, small enough to train a thousand times."""
    model = {"algorithm": "s-gbdt", "n_trees": n_trees, "max_depth": 1}
    return audit.small_plan(label, epsilon, model, delta=delta, s_gbdt=section)


SOUND: dict[str, Plan] = {
    "binary, samples of 0.3, filter": small_plan("binary", subsampling_ratio=0.3, extra_rounds=15),
    "binary, filter, closing rounds": small_plan("binary", subsampling_ratio=1.0, extra_rounds=15, closing_rounds=2),
    "binary, no samples, filter": small_plan("binary", subsampling_ratio=1.0, extra_rounds=15),
    "binary, samples, no filter": small_plan("binary", subsampling_ratio=0.1, individual_filter=False, n_trees=20),
    "regression, samples, filter": small_plan("regression", subsampling_ratio=0.3, extra_rounds=15),
    "regression, linear start": small_plan(
        "regression", subsampling_ratio=1.0, individual_filter=False, initial_score="linear", initial_score_share=0.8
    ),
    "binary, linear start, samples": small_plan(
        "binary", subsampling_ratio=0.3, initial_score="linear", initial_score_share=0.8
    ),
}
FAULTY: dict[str, Plan] = {
    "weakened filter": small_plan(
        "binary", 1.0, 1, 0.05, subsampling_ratio=1.0, extra_rounds=45, initial_score_share=0.0
    ),
    # Rows of the linear start that are not shortened: the second matrix is of rows that a release has stretched.
    "rows that are not shortened": small_plan(
        "binary", 2.0, 1, 0.05, subsampling_ratio=1.0, individual_filter=False,
        initial_score="linear", initial_score_share=0.9,
    ),
    # A gradient beyond the filter's levels stays out, so it takes a run without a filter to show this fault.
    "skipped clip": small_plan(
        "regression", 2.0, 5, 0.05, subsampling_ratio=1.0, gradient_clip=0.1, support_share=0.01,
        individual_filter=False, initial_score_share=0.0,
    ),
    "un-amplified sampler": small_plan("binary", 1.0, 20, 0.05, subsampling_ratio=0.02, initial_score_share=0.0),
}  # fmt: skip
"""Plans on which a fault shows in few trainings: with a large delta there is less noise to see through."""


def main(argv: list[str]) -> int:
    """Audit S-GBDT, then the same with planted faults; 0 if all sound plans pass and all faulty ones fail."""

    def found(plan: Plan, n_runs: int, fault: str) -> Verdict:
        one = audit_sampled(plan, n_runs, fault)
        mus = f"{one.mu_accounted:14.3f}{one.mu_lower_bound:10.3f}" if one.mu_accounted < math.inf else " " * 24
        return one.passed, f"{one.epsilon_accounted:18.3f}{one.epsilon_lower_bound:10.3f}{mus}"

    columns = f"{'epsilon accounted':>18}{'at least':>10}{'mu accounted':>14}{'at least':>10}"
    return audit.audit_faults(argv, "sgbdt_audit", __doc__, (SOUND, FAULTY), columns, found)
