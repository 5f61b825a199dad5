"""Canary audit of sampled and filtered runs: is one record's part told no better than the account says?

As in `experiments.audit`, the adversary knows every other record, who of them was drawn, and the canary; it
does not know whether the canary was drawn. With v the canary's vector, zero where its filter keeps it out, and q its
chance to be drawn, the most powerful statistic is the sum over releases of

    log(1 - q + q exp(<release - sum without canary, v> / sigma² - |v|² / (2 sigma²))).

Error rates a and b of any test bound epsilon from below: epsilon >= log((1 - delta - b) / a), and the same with a and b
exchanged (Kairouz, Oh and Viswanath 2015, arXiv 1311.0776); Clopper and Pearson's intervals make it hold with
confidence. Planted faults, which the audit must find, show that its silence means something.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from experiments.audit import CONFIDENCE, Verdict, mu_lower_bound, report_faults, subject_of
from hedgerow.client.node import Node
from hedgerow.client.sampling import SamplingSource, SeededSampling
from hedgerow.data.site_data import SiteData
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.events import DiscreteGaussianEvent, SampledGaussianEvent
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import CrossProducts, GramMatrix, IntVector, Query, SampledLeafSums
from hedgerow.server.coordinator import Releaser, event_of
from hedgerow.training.settings import Settings


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


class Everyone:
    """Draws every record: how the adversary computes what the canary adds if it is drawn; or a fault."""

    seeded = True

    def draw(self, threshold: int, n_records: int, purpose: str) -> NDArray[np.bool_]:
        """See `SamplingSource.draw`."""
        return np.ones(n_records, dtype=np.bool_)


class WeakFilter(Node):
    """A fault: the filter never keeps anybody out."""

    def answer(self, query: Query) -> IntVector:
        self._spent[:] = 0
        return super().answer(query)


class SkippedClip(Node):
    """A fault: gradients are not clipped, under a coordinator that noises for the clip."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._loss = dataclasses.replace(self._loss, clip=2**15 - 1)


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
    settings = resolve(plan)
    ratios = np.empty(n_runs)
    accounted, mu = 0.0, math.inf
    for run in range(n_runs):
        ratios[run], releaser = _log_likelihood_ratio(plan, settings, run, fault)
        if run == 0:
            accounted = get_accountant("gdp").epsilon(releaser.ledger.events(), plan.privacy.delta)
            mu = _mu_of(releaser)
    without, present = ratios[0::2], ratios[1::2]
    # The threshold is fixed beforehand: at a ratio of zero both hypotheses are equally likely.
    false_alarms, misses = int((without > 0).sum()), int((present <= 0).sum())
    alarms, missed = (false_alarms, len(without)), (misses, len(present))
    found = epsilon_lower_bound(alarms, missed, plan.privacy.delta, confidence)
    return SampledAudit(accounted, found, mu, mu_lower_bound(*alarms, *missed, confidence), n_runs)


def _mu_of(releaser: Releaser) -> float:
    """mu of a run without samples; infinity for another."""
    weight = 0.0
    for event in releaser.ledger.events():
        sampled = isinstance(event, SampledGaussianEvent) and event.sampling_rate < 1
        if sampled or not isinstance(event, SampledGaussianEvent | DiscreteGaussianEvent):
            return math.inf
        weight += event.count / event.noise_multiplier**2
    return math.sqrt(weight)


def epsilon_lower_bound(
    false_alarms: tuple[int, int], misses: tuple[int, int], delta: float, confidence: float
) -> float:
    """The epsilon that a mechanism must at least have to be told apart so well; (count, tests) of both errors."""
    each = 1 - (1 - confidence) / 2
    alarm, miss = (1.0 if k == n else float(beta.ppf(each, k + 1, n - k)) for k, n in (false_alarms, misses))
    bounds = [math.log((1 - delta - b) / a) if 1 - delta - b > 0 else 0.0 for a, b in ((alarm, miss), (miss, alarm))]
    return max(0.0, *bounds)


def _log_likelihood_ratio(plan: Plan, settings: Settings, run: int, fault: str) -> tuple[float, Releaser]:
    """One training: the adversary's statistic, and the releases' ledger; odd runs hold the canary."""
    (records, odd), kind = _data(plan), FAULTS[fault]
    site = Node("records", records, plan, settings, 1, SeededSampling(run, np.arange(records.n_records)))
    sampling: SamplingSource = SeededSampling(run, np.array([records.n_records]))
    canary = kind("canary", odd, plan, settings, 1, Everyone() if "un-amplified" in fault else sampling)
    # The adversary knows what the canary adds if it is drawn: from a twin that spends what the canary spends.
    twin = kind("twin", odd, plan, settings, 1, Everyone())
    releaser = Releaser(SeededNoise(run, exact=False))
    program = program_for(plan, settings)
    ratio = 0.0
    query = next(program)
    while True:
        twin._spent[:] = canary._spent
        known, own, vector = site.answer(query), canary.answer(query), twin.answer(query).astype(np.float64)
        released = releaser.release(query, known + own if run % 2 else known)
        shift = float((released - known).astype(np.float64) @ vector - vector @ vector / 2) / event_of(query)[1] ** 2
        rate = 1.0
        if isinstance(query, SampledLeafSums) and "un-amplified" not in fault:
            rate = query.sampling_rate
        ratio += shift if rate == 1 else float(np.logaddexp(math.log1p(-rate), math.log(rate) + shift))
        try:
            query = program.send(released)
        except StopIteration:
            return ratio, releaser


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
    labels: Mapping[str, Mapping[str, Any]] = {
        "binary": {"type": "binary", "classes": ["no", "yes"]},
        "regression": {"type": "regression", "min": 0, "max": 1},
    }
    return Plan.from_dict(
        {
            "version": 1,
            "name": "audit",
            "features": [
                {"name": "age", "type": "numeric", "min": 0, "max": 9, "integer": True},
                {"name": "region", "type": "categorical", "categories": ["north", "south"]},
            ],
            "label": {"name": "y", **labels[label]},
            "model": {"algorithm": "s-gbdt", "n_trees": n_trees, "max_depth": 1},
            "s_gbdt": section,
            "privacy": {"epsilon": epsilon, "delta": delta, "n_records": 40},
        }
    )


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
        "binary",
        2.0,
        1,
        0.05,
        subsampling_ratio=1.0,
        individual_filter=False,
        initial_score="linear",
        initial_score_share=0.9,
    ),
    # A gradient beyond the filter's levels stays out, so it takes a run without a filter to show this fault.
    "skipped clip": small_plan(
        "regression",
        2.0,
        5,
        0.05,
        subsampling_ratio=1.0,
        gradient_clip=0.1,
        support_share=0.01,
        individual_filter=False,
        initial_score_share=0.0,
    ),
    "un-amplified sampler": small_plan("binary", 1.0, 20, 0.05, subsampling_ratio=0.02, initial_score_share=0.0),
}
"""Plans on which a fault shows in few trainings: with a large delta there is less noise to see through."""


def main(argv: list[str]) -> int:
    """Audit S-GBDT, then the same with planted faults; 0 if all sound plans pass and all faulty ones fail."""
    parser = argparse.ArgumentParser(prog="sgbdt_audit", description="Canary audit of S-GBDT.")
    parser.add_argument("--runs", type=int, default=1000, help="trainings per plan")
    parser.add_argument("--data", help="not used: the records are made up")
    n_runs = parser.parse_args(argv).runs

    def found(plan: Plan, fault: str) -> Verdict:
        one = audit_sampled(plan, n_runs, fault)
        mus = f"{one.mu_accounted:14.3f}{one.mu_lower_bound:10.3f}" if one.mu_accounted < math.inf else " " * 24
        return one.passed, f"{one.epsilon_accounted:18.3f}{one.epsilon_lower_bound:10.3f}{mus}"

    head = f"{'epsilon accounted':>18}{'at least':>10}{'mu accounted':>14}{'at least':>10}"
    return report_faults(f"{n_runs} trainings each, {CONFIDENCE:.1%} confidence", head, (SOUND, FAULTY), found)
