"""Canary audit: does what runs really release tell no more about one record than was accounted for?

The auditor plays the strongest adversary that the guarantee allows: it knows every other record, and the canary, and
sees every release. Whether the canary took part is then a test between two known sums under Gaussian noise, whose most
powerful statistic is the log-likelihood ratio

    sum over releases of   <release - sum without canary, v> / sigma² - |v|² / (2 sigma²),   v = the canary's vector

where sums and vectors are those of real nodes under the releases so far. A mu-GDP mechanism allows no test whose error
rates a and b have Phi^-1(1 - a) - Phi^-1(b) > mu (Dong, Roth & Su 2019, arXiv 1905.02383, definition 2.5), so observed
error rates give a lower bound on mu, whatever the statistic; Clopper and Pearson's intervals make it hold with
confidence. Passing proves nothing; a bound above the accounted mu disproves the accounting.

In the local model the adversary sees more: every record's own answer. Then v is the canary's exact vector, and what
counts is what its node sent, with that record's noise alone; without the canary, the noise is in its place.

Source of the method: Nasr et al. 2023 (arXiv 2302.07956), with the exact statistic in place of a learned one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, norm

from experiments.harness import arguments
from hedgerow.client.node import Node, SamplingSource, SeededSampling, noise_of_site
from hedgerow.data.site_data import SiteData
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.s_gbdt.trees import accounts
from hedgerow.plan.plan import Plan
from hedgerow.privacy.gdp import total_mu
from hedgerow.privacy.noise import NoiseSource, SeededNoise
from hedgerow.privacy.query_noise import noise_of
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.server.release import Releaser
from hedgerow.training.presets import PRESETS, apply_preset
from hedgerow.training.settings import Settings
from hedgerow.trees.binning import build_grid

CONFIDENCE = 0.999
NO_DATA = "not used: the records are made up"
Answer = Callable[[IntVector], IntVector]
"""What happens to the canary's vector on its way into the sum; the identity unless a fault is being planted."""


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        mu_accounted: what the ledger's events allow.
        mu_lower_bound: what was observed, at the confidence asked for.
        mu_estimate: the same without the interval.
        n_runs: trainings in all, half of them with the canary.
    """

    mu_accounted: float
    mu_lower_bound: float
    mu_estimate: float
    n_runs: int

    @property
    def passed(self) -> bool:
        """Whether nothing was observed that contradicts the accounting."""
        return self.mu_lower_bound <= self.mu_accounted


Verdict = tuple[bool, str]
"""Whether an audit passed, and the columns of its line."""


@dataclass(frozen=True)
class Subject:
    """What is audited.

    Attributes:
        plan: the plan.
        records: the rows that are always there.
        canary: the row (or rows of one unit) that may be there.
        noise: a source of noise for each run, from its number.
        fault: a change to the canary's vector before it is summed, to see that the audit notices.
    """

    plan: Plan
    records: SiteData
    canary: SiteData
    noise: Callable[[int], NoiseSource]
    fault: Answer | None = None


def audit(subject: Subject, n_runs: int, confidence: float = CONFIDENCE) -> Audit:
    """Train `n_runs` times, in half of the runs with the canary, and bound mu from below."""
    settings = resolve(subject.plan)
    ratios = np.empty(n_runs)
    accounted = 0.0
    for run in range(n_runs):
        ratios[run], spent = _log_likelihood_ratio(subject, settings, run, with_canary=run % 2 == 1)
        accounted = max(accounted, spent)
    (false_alarms, n_without), (misses, n_present) = errors_of(ratios)
    return Audit(
        mu_accounted=accounted,
        mu_lower_bound=mu_lower_bound(false_alarms, n_without, misses, n_present, confidence),
        mu_estimate=_mu_of_rates((false_alarms + 0.5) / (n_without + 1), (misses + 0.5) / (n_present + 1)),
        n_runs=n_runs,
    )


Errors = tuple[int, int]
"""Errors of one kind, and the tests that could have had them."""


def errors_of(ratios: NDArray[np.float64], *, halves_ties: bool = False) -> tuple[Errors, Errors]:
    """False alarms in the even runs, which are without the canary, and misses in the odd ones.

    The threshold is fixed beforehand: at a ratio of zero both hypotheses are equally likely.

    Args:
        halves_ties: half of the ties count as errors of either kind, so that a statistic that says nothing finds
            nothing; else a tie is a miss.
    """
    without, present = ratios[0::2], ratios[1::2]
    ties = [int((part == 0).sum()) for part in (without, present)]
    alarms, misses = int((without > 0).sum()), int((present < 0).sum())
    added = (ties[0] // 2, ties[1] // 2) if halves_ties else (0, ties[1])
    return (alarms + added[0], len(without)), (misses + added[1], len(present))


def highest_rates(false_alarms: Errors, misses: Errors, confidence: float) -> tuple[float, float]:
    """The largest rates of both errors that are in accord with what was counted, with this confidence for both."""
    each = 1 - (1 - confidence) / 2
    alarm, miss = (1.0 if k == n else float(beta.ppf(each, k + 1, n - k)) for k, n in (false_alarms, misses))
    return alarm, miss


def mu_lower_bound(false_alarms: int, n_without: int, misses: int, n_present: int, confidence: float) -> float:
    """The mu that a mechanism must at least have to be told apart so well, with this confidence; at least 0."""
    return max(0.0, _mu_of_rates(*highest_rates((false_alarms, n_without), (misses, n_present), confidence)))


def _mu_of_rates(false_alarm_rate: float, miss_rate: float) -> float:
    return float(norm.isf(false_alarm_rate) - norm.ppf(miss_rate))


def play(plan: Plan, settings: Settings, step: Callable[[Query], tuple[IntVector, float]]) -> float:
    """One training: the sum of what `step` says about each query beside its release."""
    program = program_for(plan, settings)
    total, query = 0.0, next(program)
    while True:
        released, gain = step(query)
        total += gain
        try:
            query = program.send(released)
        except StopIteration:
            return total


def _log_likelihood_ratio(subject: Subject, settings: Settings, run: int, with_canary: bool) -> tuple[float, float]:
    """One training: the adversary's statistic, and the mu that its ledger accounts for."""
    noise, is_local = subject.noise(run), subject.plan.privacy.noise == "local"
    exact = replace(subject.plan, privacy=replace(subject.plan.privacy, noise="server")) if is_local else subject.plan
    site = Node("records", subject.records, exact, settings)
    canary = Node("canary", subject.canary, exact, settings)
    releaser = Releaser(noise, is_local=is_local)

    def step(query: Query) -> tuple[IntVector, float]:
        known, own = site.answer(query), canary.answer(query)
        if subject.fault is not None:
            own = subject.fault(own)
        added = own if with_canary else np.zeros_like(own)
        if is_local:
            known = known + noise_of_site(query, "records", subject.records.n_records, noise)
            added = added + noise_of_site(query, "canary", 1, noise)
        released = releaser.release(query, known + added)
        shift = (released - known).astype(np.float64) @ own
        gain = float(shift - own.astype(np.float64) @ own / 2) / noise_of(query, is_local=is_local).variance
        return released, gain

    return play(subject.plan, settings, step), total_mu(releaser.ledger.events())


# Runs with samples ----------------------------------------------------------------------------------------------------


class Everyone:
    """Draws every record: how the adversary computes what the canary adds if it is drawn; or a fault."""

    seeded = True

    def draw(self, threshold: int, n_records: int, purpose: str) -> NDArray[np.bool_]:
        """See `SamplingSource.draw`."""
        return np.ones(n_records, dtype=np.bool_)


@dataclass(frozen=True)
class Attack:
    """An attack on runs that may sample and filter: the adversary does not know whether the canary was drawn.

    Attributes:
        plan: the plan.
        records: the rows that are always there.
        canary: the row that may be there.
        gain: the log-likelihood ratio of a release if the canary is drawn, of the query, the sum without it, its vector
            and the release; and the chance that it is drawn.
        kind: of the canary's node; another than `Node` plants a fault.
        noise: of the coordinator; another than `SeededNoise` plants a fault.
        takes_all: a fault: the canary is always drawn, and the adversary knows it.
    """

    plan: Plan
    records: SiteData
    canary: SiteData
    gain: Callable[[Query, IntVector, IntVector, IntVector], tuple[float, float]]
    kind: type[Node] = Node
    noise: type[SeededNoise] = SeededNoise
    takes_all: bool = False

    def run(self, settings: Settings, run: int) -> tuple[float, Releaser]:
        """One training: the adversary's statistic, and the releases' ledger; odd runs hold the canary."""
        plan, n_records = self.plan, self.records.n_records
        site = Node("records", self.records, plan, settings, 1, SeededSampling(run, np.arange(n_records)))
        sampling: SamplingSource = Everyone() if self.takes_all else SeededSampling(run, np.array([n_records]))
        canary = self.kind("canary", self.canary, plan, settings, 1, sampling)
        # The adversary knows what the canary adds if it is drawn: from a twin that spends what the canary spends.
        twin = self.kind("twin", self.canary, plan, settings, 1, Everyone())
        releaser = Releaser(self.noise(run, exact=False))

        def step(query: Query) -> tuple[IntVector, float]:
            accounts(twin.held)[:] = accounts(canary.held)
            known, own, vector = site.answer(query), canary.answer(query), twin.answer(query)
            released = releaser.release(query, known + own if run % 2 else known)
            gain, rate = self.gain(query, known, vector, released)
            if rate == 1 or self.takes_all:
                return released, gain
            return released, float(np.logaddexp(np.log1p(-rate), np.log(rate) + gain))

        return play(plan, settings, step), releaser


def epsilon_lower_bound(false_alarms: Errors, misses: Errors, delta: float, confidence: float) -> float:
    """The epsilon that a mechanism must at least have to be told apart so well.

    Source: Kairouz, Oh and Viswanath 2015, arXiv 1311.0776: epsilon >= log((1 - delta - b) / a), and the same with the
    error rates a and b exchanged.
    """
    alarm, miss = highest_rates(false_alarms, misses, confidence)
    bounds = [np.log((1 - delta - b) / a) if 1 - delta - b > 0 else 0.0 for a, b in ((alarm, miss), (miss, alarm))]
    return float(max(0.0, *bounds))


# Plans ----------------------------------------------------------------------------------------------------------------


def small_plan(
    label: str,
    epsilon: float,
    model: Mapping[str, Any],
    rows_per_unit: int = 1,
    delta: float = 1e-5,
    **section: Mapping[str, Any],
) -> Plan:
    """A plan over two features, small enough to train a thousand times; `section` is that of its algorithm."""
    labels: dict[str, dict[str, Any]] = {
        "binary": {"type": "binary", "classes": ["no", "yes"]},
        "multiclass": {"type": "multiclass", "classes": ["a", "b", "c"]},
        "regression": {"type": "regression", "min": 0, "max": 1},
    }
    unit = "record" if rows_per_unit == 1 else "patient"
    table = {
        "version": 1,
        "name": "audit",
        "features": [
            {"name": "age", "type": "numeric", "min": 0, "max": 9, "integer": True},
            {"name": "region", "type": "categorical", "categories": ["north", "south"]},
        ],
        "label": {"name": "y", **labels[label]},
        "model": model if "algorithm" in model else {"n_trees": 5, "max_depth": 2, "interaction": "cyclical", **model},
        **section,
        "privacy": {
            "epsilon": epsilon, "delta": delta, "n_records": 40, "unit": unit, "max_rows_per_unit": rows_per_unit,
        },
    }  # fmt: skip
    return Plan.from_dict(table)


def subject_of(plan: Plan, noise: Callable[[int], NoiseSource] | None = None, fault: Answer | None = None) -> Subject:
    """Forty records that all look alike, and a canary with the opposite label: the record that moves sums most."""
    grid = build_grid(plan)
    rows = plan.privacy.rows_per_unit
    regression = plan.label.type == "regression"
    common, opposite = (-SCORE_UNIT, SCORE_UNIT) if regression else (0, 1)
    # The rows of linear models are longest at the ends of features.
    code = 0 if plan.model.algorithm == "adassp" else 1

    def site(n: int, label: int) -> SiteData:
        codes: NDArray[np.unsignedinteger[Any]] = np.full((grid.n_features, n), code, dtype=grid.dtype)
        return SiteData(codes, np.full(n, label, dtype=np.int32))

    return Subject(plan, site(40, common), site(rows, opposite), noise or seeded_noise(), fault)


def seeded_noise(scale: float = 1.0, seed: int = 0) -> Callable[[int], NoiseSource]:
    """Reproducible noise for each run; `scale` other than 1 plants the fault of noise that is too small or large."""
    return lambda run: _ScaledNoise(seed * 1_000_003 + run, scale)


class _ScaledNoise(SeededNoise):
    def __init__(self, seed: int, scale: float) -> None:
        super().__init__(seed, exact=False)
        self._scale = scale

    def sample(self, sigma: int, length: int, purpose: str) -> NDArray[np.int64]:
        return super().sample(max(1, round(sigma * self._scale)), length, purpose)


PLANS: dict[str, Plan] = {
    "binary, newton, adaptive": small_plan("binary", 6.0, {}),
    "binary, newton, no joint clip": small_plan("binary", 6.0, {"joint_clip": "none"}),
    "binary, newton, paid candidates": small_plan(
        "binary", 6.0, {"split_candidates": "iterative_hessian", "candidate_rounds": 2}
    ),
    "binary, gradient, batches of 5": small_plan("binary", 6.0, {"weight_update": "gradient", "batch_size": "all"}),
    "binary, averaging": small_plan("binary", 6.0, {"weight_update": "averaging"}),
    "multiclass, newton": small_plan("multiclass", 6.0, {}),
    "regression, newton": small_plan("regression", 6.0, {}),
    "adassp, logistic": small_plan("binary", 6.0, {"algorithm": "adassp"}, adassp={"rounds": 4}),
    "adassp, hinge, short rows": small_plan(
        "binary", 6.0, {"algorithm": "adassp"}, adassp={"rounds": 4, "loss": "hinge", "row_norm": 1.0}
    ),
    "adassp, regression": small_plan("regression", 6.0, {"algorithm": "adassp"}, adassp={"rounds": 4}),
    "binary, 3 rows per patient": small_plan("binary", 6.0, {}, rows_per_unit=3),
}


def preset_plans() -> dict[str, Plan]:
    """Every private preset as it is, its noise and accountant included, with few and shallow trees in small batches."""
    plans, schema = {}, small_plan("binary", 6.0, {})
    for name, preset in PRESETS.items():
        # Other algorithms have plans above, or audits of their own: sgbdt_audit, dpxgboost_audit.
        if preset.private and "algorithm" not in preset.model:
            table = apply_preset(preset, schema).to_dict()
            size = table["model"]["batch_size"]
            table["model"] |= {"n_trees": 5, "max_depth": 2, "batch_size": size if size == "all" else min(2, size)}
            plans[name] = Plan.from_dict(table)
    return plans


def main(argv: list[str]) -> int:
    """Audit a few plans, then the same with planted faults; 0 if all sound ones pass and all faulty ones fail."""
    parser = arguments("audit", __doc__, data=NO_DATA, runs=(2000, "trainings per plan"))
    parser.add_argument("--presets", action="store_true", help="every private preset, sound and with half the noise")
    options = parser.parse_args(argv)
    n_runs, plans = options.runs, preset_plans() if options.presets else PLANS
    first = next(iter(PLANS.values()))
    rows = [(name, subject_of(plan), True) for name, plan in plans.items()]
    halved = plans if options.presets else {}
    rows += [
        (f"{name}, half the noise", subject_of(plan, seeded_noise(0.5)), False) for name, plan in halved.items()
    ]
    rows += [
        ("fault: half the noise", subject_of(first, seeded_noise(0.5)), False),
        ("fault: contributions counted twice", subject_of(first, fault=lambda vector: 2 * vector), False),
    ]
    print(f"{n_runs} trainings each, {CONFIDENCE:.1%} confidence\n")

    def found(subject: Subject) -> Verdict:
        one = audit(subject, n_runs)
        return one.passed, f"{one.mu_accounted:14.3f}{one.mu_estimate:10.3f}{one.mu_lower_bound:10.3f}"

    width = max(len(name) for name, _, _ in rows) + 1
    head = f"{'plan':{width}}{'mu accounted':>14}{'observed':>10}{'at least':>10}"
    return report_audits(head, width, ((name, sound, partial(found, subject)) for name, subject, sound in rows))


def report_audits(head: str, width: int, rows: Iterable[tuple[str, bool, Callable[[], Verdict]]]) -> int:
    """Print a line for each audit as it ends; 0 if those that should have passed did, and no others.

    Args:
        head: the names of the columns, without the verdict.
        width: of the first column.
        rows: a name, whether it should pass, and what says whether it did, and its columns.
    """
    print(f"{head}  verdict")
    as_expected = True
    for name, is_sound, run in rows:
        passed, columns = run()
        as_expected &= passed == is_sound
        print(f"{name:{width}}{columns}  {'within the promise' if passed else 'BROKEN'}", flush=True)
    if not as_expected:
        print("\nNot as expected: a sound plan broke its promise, or a planted fault went unseen.", file=sys.stderr)
    return 0 if as_expected else 1


def audit_faults(
    argv: list[str],
    name: str,
    about: str | None,
    plans: tuple[Mapping[str, Plan], Mapping[str, Plan]],
    columns: str,
    run: Callable[[Plan, int, str], Verdict],
) -> int:
    """The command of an audit whose faults are named: sound plans, and plans each with the fault it is named after.

    Args:
        argv: the command's arguments.
        name: of the experiment.
        about: its module's docstring.
        plans: the sound ones, and the others.
        columns: the names of the columns after the first.
        run: audits a plan in so many trainings with a fault, "none" for none.
    """
    options = arguments(name, about, data=NO_DATA, runs=(1000, "trainings per plan")).parse_args(argv)
    print(f"{options.runs} trainings each, {CONFIDENCE:.1%} confidence{', delta = 0' * (name == 'dpxgboost_audit')}\n")
    sound, faulty = plans
    rows = [(title, True, partial(run, plan, options.runs, "none")) for title, plan in sound.items()]
    rows += [(f"fault: {fault}", False, partial(run, plan, options.runs, fault)) for fault, plan in faulty.items()]
    return report_audits(f"{'plan':38}{columns}", 38, rows)
