"""Canary audit: does what runs really release tell no more about one record than was accounted for?

The auditor plays the strongest adversary that the guarantee allows: it knows every other record, which of them were
drawn, and the canary, and sees every release; where rows are sampled, it does not know whether the canary was drawn.
Whether the canary took part is then a test between two known sums under noise, whose most powerful statistic is the
log-likelihood ratio. With v the canary's vector, zero where a filter keeps it out, a release r of a sum k adds to it

    <r - k, v> / sigma² - |v|² / (2 sigma²)        under Gaussian noise,
    (|r - k| - |r - k - v|) / s                    under Laplace noise of scale s (sums of magnitudes),

a choice the difference of the logarithms of its chances under the scores of k + v and of k, and a chance q to be drawn
turns a ratio x into log(1 - q + q exp(x)). Sums and vectors are those of real nodes under the releases so far.

A mu-GDP mechanism allows no test whose error rates a and b have Phi^-1(1 - a) - Phi^-1(b) > mu (Dong, Roth & Su 2019,
arXiv 1905.02383, definition 2.5), an (epsilon, delta) one none with log((1 - delta - b) / a) > epsilon, so observed
error rates give lower bounds, whatever the statistic; Clopper and Pearson's intervals make them hold with confidence.
Passing proves nothing; a bound above what is accounted for disproves the accounting. Planted faults, which the audit
must find, show that its silence means something.

In the local model the adversary sees more: every record's own answer. Then v is the canary's exact vector, and what
counts is what its node sent, with that record's noise alone; without the canary, the noise is in its place.

Source of the method: Nasr et al. 2023 (arXiv 2302.07956), with the exact statistic in place of a learned one.
"""

from __future__ import annotations

import math
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, norm

from experiments.harness import arguments, carried_out, run_plainly
from hedgerow.client.node import EvaluationNode, Node, SamplingSource, SeededSampling, draw_site_noise
from hedgerow.data.arrow import to_arrow
from hedgerow.data.binned import SiteData
from hedgerow.data.columns import Place
from hedgerow.data.raw_cells import RawColumn
from hedgerow.data.site_data import site_data_from_records
from hedgerow.data.units import records_from_columns
from hedgerow.evaluation.program import evaluate_ensemble
from hedgerow.evaluation.sums import GroupedSums
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.methods.boosting.schedule import BoostingSettings, weigh_trees
from hedgerow.methods.dp_xgboost.trees import SplitSelection, candidate_scores
from hedgerow.methods.linear import CrossProducts, GramMatrix
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.s_gbdt.trees import SampledLeafSums, accounts
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant, has_samples
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.cost import compose_cost
from hedgerow.privacy.events import Event
from hedgerow.privacy.ledger import write_prepared_tables
from hedgerow.privacy.noise import NoiseSource, SeededNoise
from hedgerow.protocol.queries import IntVector, PureQuery, Query, SiteQuery
from hedgerow.server.release import UNCOUNTED, Releaser
from hedgerow.survey.program import survey
from hedgerow.survey.queries import RawSite, SurveyNode
from hedgerow.training.presets import PRESETS, apply_preset
from hedgerow.training.settings import Settings, calibrate_noise
from hedgerow.trees.binning import build_grid
from hedgerow.trees.ensemble import Ensemble
from tests.builders import gaps

CONFIDENCE = 0.999


@dataclass(frozen=True)
class Found:
    """What an audit found: what is accounted for, infinity where that is not looked at, and what was observed.

    Attributes:
        epsilon_accounted: what the ledger's events allow at the plan's delta.
        epsilon_lower_bound: what was observed, at the confidence asked for.
        mu_accounted, mu_lower_bound: the same of mu, which is known where nothing is sampled or filtered and noise is
            Gaussian, and shows a fault in fewer trainings.
        mu_estimate: what was observed, without the interval.
    """

    epsilon_accounted: float
    epsilon_lower_bound: float
    mu_accounted: float
    mu_lower_bound: float
    mu_estimate: float

    @property
    def passed(self) -> bool:
        """Whether nothing was observed that contradicts the accounting."""
        return self.epsilon_lower_bound <= self.epsilon_accounted and self.mu_lower_bound <= self.mu_accounted


def audit(attack: AnyAttack, n_runs: int, confidence: float = CONFIDENCE) -> Found:
    """Train `n_runs` times, in half of the runs with the canary, and bound epsilon and mu from below."""
    plan, settings = attack.plan, resolve(attack.plan)
    if isinstance(attack, Attack) and attack.last_share:
        settings = _with_last_share(plan, settings, attack.last_share, attack.last)
    ratios, epsilon, mu = np.empty(n_runs), math.inf, 0.0
    for run in range(n_runs):
        ratios[run], releaser = attack.run(settings, run)
        mu = max(mu, _mu_of(plan, releaser.ledger.events()))
        if run == 0 and plan.model.algorithm in _BY_EPSILON:
            accountant = get_accountant(plan.privacy.accountant)
            epsilon = accountant.epsilon(releaser.ledger.events(), plan.privacy.delta)
    is_pure = plan.privacy.accountant == "pure"
    alarms, missed = errors_of(ratios, halves_ties=plan.model.algorithm == "dp-xgboost")
    return Found(
        epsilon, epsilon_lower_bound(alarms, missed, 0.0 if is_pure else plan.privacy.delta, confidence),
        mu, mu_lower_bound(*alarms, *missed, confidence),
        _mu_of_rates((alarms[0] + 0.5) / (alarms[1] + 1), (missed[0] + 0.5) / (missed[1] + 1)),
    )  # fmt: skip


_BY_EPSILON = ("s-gbdt", "dp-xgboost")
"""Algorithms that may sample or filter, or whose noise is not Gaussian: their mu is not known, or is a loose bound."""


def _mu_of(plan: Plan, events: Iterable[Event]) -> float:
    """mu of a run; infinity where it is not known."""
    counted = list(events)
    is_unknown = plan.privacy.accountant == "pure" or has_samples(counted)
    return math.inf if is_unknown else math.sqrt(compose_cost(counted).gdp_weight)


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


def epsilon_lower_bound(false_alarms: Errors, misses: Errors, delta: float, confidence: float) -> float:
    """The epsilon that a mechanism must at least have to be told apart so well.

    Source: Kairouz, Oh and Viswanath 2015, arXiv 1311.0776: epsilon >= log((1 - delta - b) / a), and the same with the
    error rates a and b exchanged.
    """
    alarm, miss = highest_rates(false_alarms, misses, confidence)
    bounds = [np.log((1 - delta - b) / a) if 1 - delta - b > 0 else 0.0 for a, b in ((alarm, miss), (miss, alarm))]
    return float(max(0.0, *bounds))


# The attack -----------------------------------------------------------------------------------------------------------


class Everyone:
    """Draws every record: how the adversary computes what the canary adds if it is drawn; or a fault."""

    seeded = True

    def draw(self, threshold: int, n_records: int, purpose: str) -> NDArray[np.bool_]:
        """See `SamplingSource.draw`."""
        return np.ones(n_records, dtype=np.bool_)


@dataclass(frozen=True)
class Attack:
    """An attack on runs of a plan, which may sample and filter.

    Attributes:
        plan: the plan.
        records: the rows that are always there.
        canary: the row (or rows of one unit) that may be there.
        noise: a source of noise for each run, from its number; another than that of runs plants a fault.
        kind: of the canary's node; another than `Node` plants a fault.
        takes_all: a fault: the canary is always drawn, and the adversary knows it.
        last_share: of mu^2, for the last release; 0 for the rule's, in which the trees' noise would hide a fault of it.
        last: which release that is, by the name of its share: the scores' bins or line, or the level's questions.
    """

    plan: Plan
    records: SiteData
    canary: SiteData
    noise: Callable[[int], NoiseSource]
    kind: type[Node] = Node
    takes_all: bool = False
    last_share: float = 0.0
    last: str = "calibration_share"

    def run(self, settings: Settings, run: int, releaser: Releaser | None = None) -> tuple[float, Releaser]:
        """One training: the adversary's statistic, and the releases' ledger; odd runs hold the canary.

        Args: releaser: that of what was released before; None for a new one.
        """
        plan, n_records, noise = self.plan, self.records.n_records, self.noise(run)
        is_local = plan.privacy.noise == "local"
        exact = replace(plan, privacy=replace(plan.privacy, noise="server")) if is_local else plan
        site = Node("records", self.records, exact, settings, 1, SeededSampling(run, np.arange(n_records)))
        sampling: SamplingSource = Everyone() if self.takes_all else SeededSampling(run, np.array([n_records]))
        canary = self.kind("canary", self.canary, exact, settings, 1, sampling)
        # The adversary knows what the canary adds if it is drawn: from a twin that spends what the canary spends.
        twin = self.kind("twin", self.canary, exact, settings, 1, Everyone())
        releaser, total = releaser or Releaser(noise, UNCOUNTED, is_local=is_local), 0.0

        def release(query: Query) -> IntVector:
            nonlocal total
            accounts(twin.held)[:] = accounts(canary.held)
            known, own, vector = site.answer(query), canary.answer(query), twin.answer(query)
            added = own if run % 2 else np.zeros_like(own)
            if is_local:
                known = known + draw_site_noise(query, "records", n_records, noise)
                added = added + draw_site_noise(query, "canary", 1, noise)
            released = releaser.release(query, known + added)
            gain, rate = gain_of(query, known, vector, released, is_local=is_local)
            if rate < 1 and not self.takes_all:
                gain = float(np.logaddexp(np.log1p(-rate), np.log(rate) + gain))
            total += gain
            return released

        carried_out(program_for(plan, settings), release)
        return total, releaser


@dataclass(frozen=True)
class OpenAttack:
    """An attack on a survey of what a plan leaves open, and on the training by the plan that is made of it.

    The canary lies far out in the open column, where it is counted alone; then it is trained on within the bounds that
    were found, which it may have moved.

    Attributes:
        plan: what is promised; the bounds of its first column, its classes and its number of records are found.
        noise: see `Attack`.
        n_copies: rows of the canary; 2 plants the fault of a row that is read twice.
        trains: whether the training is attacked too.
    """

    plan: Plan
    noise: Callable[[int], NoiseSource]
    n_copies: int = 1
    trains: bool = True

    def run(self, settings: Settings, run: int) -> tuple[float, Releaser]:
        """See `Attack.run`."""
        generator, releaser, total = np.random.default_rng(0), Releaser(self.noise(run), UNCOUNTED), 0.0
        rows = {"age": generator.integers(0, 10, 1000), "region": ["north"] * 1000, "y": generator.integers(0, 2, 1000)}
        n = self.n_copies
        canary: dict[str, Any] = {"age": [5000] * n, "region": ["south"] * n, "y": [1] * n}
        site, own = (SurveyNode("records", _raw(table)) for table in (rows, canary))
        twin = SurveyNode("twin", _raw({name: cells[:1] for name, cells in canary.items()}))

        def release(query: Query) -> IntVector:
            nonlocal total
            known = site.answer(query)
            released = releaser.release(query, known + own.answer(query) if run % 2 else known)
            total += gain_of(query, known, twin.answer(query), released, is_local=False)[0]
            return released

        promise = self.plan.privacy.epsilon, self.plan.privacy.delta
        questions = gaps(1, label="classes", epsilon=promise[0], delta=promise[1])
        findings = carried_out(survey(questions), release)
        if not self.trains or len(findings.classes) != 2:
            return total, releaser
        (_, found), table = findings.columns[0], self.plan.to_dict()
        assert found is not None
        low, high = found.bounds
        table["features"][0] = {"name": "age", "type": "numeric", "min": low, "max": high, "integer": found.is_whole}
        table["label"] = {"name": "y", "type": "binary", "classes": list(map(str, findings.classes))}
        table["privacy"]["n_records"] = findings.n_records
        plan = Plan.from_dict({**table, "prepared": write_prepared_tables(releaser.ledger, "record", 1)})
        data = [site_data_from_records([records_from_columns(table, plan)], plan)[0] for table in (rows, canary)]
        attack = Attack(plan, data[0], data[1], self.noise)
        more, _ = attack.run(resolve(plan), run, releaser)
        return total + more, releaser


@dataclass(frozen=True)
class EvaluationAttack:
    """An attack on an evaluation of a public model, by the groups of every feature or by site as well.

    Of figures by site the adversary sees what left the site, with the noise that its node has drawn.

    Attributes:
        plan: of the model; its promise is the evaluation's.
        noise: see `Attack`.
        kind: of the canary's node; another than `EvaluationNode` plants a fault.
        site_scale: by site: how much noise the site of the canary adds to its figures, as the adversary knows; 1 is
            all of it. 0 for an evaluation by groups.
    """

    plan: Plan
    noise: Callable[[int], NoiseSource]
    kind: type[EvaluationNode] = EvaluationNode
    site_scale: float = 0.0

    @cached_property
    def ensemble(self) -> Ensemble:
        return run_plainly(self.plan, attack_on(self.plan).records, SeededNoise(0, exact=False)).ensemble

    def run(self, settings: Settings, run: int) -> tuple[float, Releaser]:
        """See `Attack.run`."""
        plan, releaser, total = self.plan, Releaser(self.noise(run), UNCOUNTED), 0.0
        rows = attack_on(plan)

        def hold(kind: type[EvaluationNode], data: SiteData, noise: NoiseSource) -> EvaluationNode:
            return kind("site", data, plan, 1, noise, shows=lambda query: True)

        exact = _ScaledNoise(0, 0.0)
        site, twin = (hold(EvaluationNode, data, exact) for data in (rows.records, rows.canary))
        own = hold(self.kind, rows.canary, exact)
        parts = (rows.records, rows.canary)[: 1 + run % 2]
        together = SiteData(
            np.concatenate([part.codes for part in parts], axis=1), np.concatenate([part.labels for part in parts])
        )
        seen = hold(EvaluationNode, together, seeded_noise(self.site_scale, 1)(run))

        def release(query: Query) -> IntVector:
            nonlocal total
            known, added, sent = site.answer(query), own.answer(query), seen.answer(query)
            total_sum = known + added if run % 2 else known
            released = releaser.release(query, sent if isinstance(query, SiteQuery) else total_sum)
            gain, _ = gain_of(query, known, twin.answer(query), released, is_local=False)
            total += gain / self.site_scale**2 if isinstance(query, SiteQuery) else gain
            return released

        columns = ["site"] if self.site_scale else [feature.name for feature in plan.features]
        promise = plan.privacy.epsilon, plan.privacy.delta
        carried_out(evaluate_ensemble(plan, self.ensemble, *promise, by=columns, sites=["other", "site"]), release)
        return total, releaser


AnyAttack = Attack | OpenAttack | EvaluationAttack


def _with_last_share(plan: Plan, settings: Settings, share: float, last: str) -> BoostingSettings:
    """The settings with another share for the last release, under the same promise."""
    assert isinstance(settings, BoostingSettings) and settings.calibration != "none" and settings.levels
    names = ("start_share", "calibration_share", "level_share", "vote_share")
    shares = {name: getattr(settings, name) * (1 - share) for name in names} | {last: share}
    changed = replace(settings, **shares)
    weight = weigh_trees(plan, changed) / changed.share_of_trees
    return replace(changed, noise_multiplier=calibrate_noise(plan, changed, weight))


def _raw(table: Mapping[str, Any]) -> RawSite:
    # Cell by cell, as the classes of a label are asked for.
    label = RawColumn([to_arrow(np.asarray(table["y"]), "a table", "y")], Place("a table", "y"))
    return RawSite([np.asarray(table["age"], dtype=np.float64), label], n_all=len(table["y"]))


def gain_of(
    query: Query, known: IntVector, vector: IntVector, released: IntVector, *, is_local: bool
) -> tuple[float, float]:
    """The log-likelihood ratio of a release if the canary is drawn, and the chance that it is drawn.

    Args:
        known: the sum without it.
        vector: what it adds.
    """
    if isinstance(query, SplitSelection):
        present, absent = (log_chances(query, total, released) for total in (known + vector, known))
        return present - absent, query.pure.sampling_rate
    if isinstance(query, PureQuery):
        distance = np.abs(released - known).sum() - np.abs(released - known - vector).sum()
        return float(distance) / query.pure.scale, query.pure.sampling_rate
    own = vector.astype(np.float64)
    shift = float((released - known).astype(np.float64) @ own - own @ own / 2)
    rate = query.sampling_rate if isinstance(query, SampledLeafSums) else 1.0
    return shift / noise_of(query, is_local=is_local).variance, rate


def log_chances(query: SplitSelection, total: IntVector, released: IntVector) -> float:
    """The logarithm of the chance of these choices, one per node."""
    chance = 0.0
    for (places, scores), choice in zip(candidate_scores(query, total), released.tolist(), strict=True):
        if choice >= 0:
            logs = (scores - scores.max()) / query.pure.scale
            chance += float(logs[places == choice][0] - np.log(np.exp(logs).sum()))
    return chance


def attack_on(plan: Plan, **changes: Any) -> Attack:
    """Forty records that all look alike, and a canary with the opposite label: the record that moves sums most.

    For DP-XGBoost's splits, where they cost much, it is unlike them in every feature too, so that they set it apart.
    For a linear start there are many records, at the other end of a feature, so that the start's second matrix is of
    rows in which the canary's would be the longest.

    Args:
        changes: to the attack, such as a fault.
    """
    grid = build_grid(plan)
    common, opposite = (-SCORE_UNIT, SCORE_UNIT) if plan.label.kind.is_number else (0, 1)
    is_linear_start = getattr(plan.own, "initial_score", "") == "linear"
    # The rows of linear models are longest at the ends of features.
    code = 0 if plan.model.algorithm == "adassp" or is_linear_start else 1

    def site(n: int, label: int) -> SiteData:
        codes: NDArray[np.unsignedinteger[Any]] = np.full((grid.n_features, n), code, dtype=grid.dtype)
        return SiteData(codes, np.full(n, label, dtype=np.int32))

    records, canary = site(1000 if is_linear_start else 40, common), site(plan.privacy.rows_per_unit, opposite)
    if is_linear_start:
        canary.codes[0] = 9
    elif plan.model.algorithm == "dp-xgboost" and plan.own.split_share >= 0.1:
        canary.codes[:] = [[4], [0]]
    return Attack(plan, records, canary, **{"noise": seeded_noise(), **changes})


def seeded_noise(scale: float = 1.0, seed: int = 0) -> Callable[[int], NoiseSource]:
    """Reproducible noise for each run; `scale` other than 1 plants the fault of noise that is too small or large."""
    return lambda run: _ScaledNoise(seed * 1_000_003 + run, scale)


# Faults ---------------------------------------------------------------------------------------------------------------


class _ScaledNoise(SeededNoise):
    def __init__(self, seed: int, scale: float) -> None:
        super().__init__(seed, exact=False)
        self._scale = scale

    def sample(self, sigma: int, length: int, purpose: str) -> NDArray[np.int64]:
        # Of no noise at all one grid unit is left, which no statistic sees.
        return super().sample(max(1, round(sigma * self._scale)), length, purpose)

    def laplace(self, scale: int, length: int, purpose: str) -> NDArray[np.int64]:
        return super().laplace(max(1, int(scale * self._scale)), length, purpose)


class _BestSplit(SeededNoise):
    """The best split is taken, as if choosing cost nothing."""

    def select(self, scores: Sequence[NDArray[np.int64]], scale: int, purpose: str) -> NDArray[np.int64]:
        return np.array([int(values.argmax()) if len(values) else -1 for values in scores], dtype=np.int64)


class _CountsTwice(Node):
    """A row that was read twice, or a unit with more rows than the plan allows."""

    def answer(self, query: Query) -> IntVector:
        return 2 * super().answer(query)


class _WeakFilter(Node):
    """The filter keeps no record out."""

    def answer(self, query: Query) -> IntVector:
        accounts(self.held)[:] = 0
        return super().answer(query)


class _SkippedClip(Node):
    """Gradients are not clipped, under a coordinator that noises for the clip."""

    def __init__(self, site: str, data: SiteData, plan: Plan, *rest: Any) -> None:
        super().__init__(site, data, plan, *rest)
        self.held.loss = replace(self.held.loss, clip=2**14 if plan.model.algorithm == "dp-xgboost" else 2**15 - 1)


class _LongRows(Node):
    """The rows of linear models are not shortened."""

    def answer(self, query: Query) -> IntVector:
        if isinstance(query, GramMatrix | CrossProducts):
            query = replace(query, rows=replace(query.rows, limit=2**20))
        return super().answer(query)


class _InTwoGroups(EvaluationNode):
    """A record counts in its group twice."""

    def answer(self, query: Query) -> IntVector:
        return super().answer(query) * (2 if isinstance(query, GroupedSums) else 1)


FAULTS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "half the noise": {"noise": seeded_noise(0.5)},
    "contributions counted twice": {"kind": _CountsTwice},
    "weakened filter": {"kind": _WeakFilter},
    "skipped clip": {"kind": _SkippedClip},
    "rows that are not shortened": {"kind": _LongRows},
    "un-amplified sampler": {"takes_all": True},
    "a quarter of the noise": {"noise": seeded_noise(0.25)},
    "the best split without noise": {"noise": lambda run: _BestSplit(run, exact=False)},
}
"""Changes to an attack, by name."""


# Plans ----------------------------------------------------------------------------------------------------------------


def small_plan(
    label: str = "binary",
    epsilon: float = 6.0,
    model: Mapping[str, Any] = {},
    rows_per_unit: int = 1,
    delta: float = 1e-5,
    accountant: str = "",
    **section: Mapping[str, Any],
) -> Plan:
    """A plan over two features, small enough to train a thousand times; `section` is that of its algorithm.

    Args: accountant: "" is "pure" for DP-XGBoost, and "gdp" for the others.
    """
    labels: dict[str, dict[str, Any]] = {
        "binary": {"type": "binary", "classes": ["no", "yes"]},
        "multiclass": {"type": "multiclass", "classes": ["a", "b", "c"]},
        "regression": {"type": "regression", "min": 0, "max": 1},
        "count": {"type": "count", "max": 40},
    }
    privacy: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "n_records": 40, "max_rows_per_unit": rows_per_unit}
    privacy["unit"] = "record" if rows_per_unit == 1 else "patient"
    privacy["accountant"] = accountant or ("pure" if model.get("algorithm") == "dp-xgboost" else "gdp")
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
        "privacy": privacy,
    }
    return Plan.from_dict(table)


OPEN: Mapping[str, tuple[OpenAttack, str]] = {
    "private bounds, and training": (OpenAttack(small_plan(), seeded_noise()), ""),
    "private bounds alone": (OpenAttack(small_plan(epsilon=60.0), seeded_noise(), trains=False), ""),
    "fault: a row in the bounds twice": (
        OpenAttack(small_plan(epsilon=60.0), seeded_noise(), 2, trains=False), "twice"
    ),
}  # fmt: skip
"""Surveys take a small share of a promise: alone, with a large one, they show a fault in few runs."""


_LAST = {label: small_plan(label, model={"interaction": "adaptive"}) for label in ("binary", "regression", "count")}
ALONE: Mapping[str, tuple[Attack | EvaluationAttack, str]] = {
    **{f"{label}, most for the last release": (attack_on(plan, last_share=0.9), "") for label, plan in _LAST.items()},
    **{
        f"{label}, most for the level": (attack_on(plan, last_share=0.9, last="level_share"), "")
        for label, plan in _LAST.items()
    },
    "fault: half the noise of a last release": (
        attack_on(_LAST["binary"], last_share=0.9, **FAULTS["half the noise"]), "half the noise"
    ),
    "fault: half the noise of a level": (
        attack_on(_LAST["binary"], last_share=0.9, last="level_share", **FAULTS["half the noise"]), "half the noise"
    ),
    "evaluation by groups": (EvaluationAttack(small_plan(), seeded_noise()), ""),
    "fault: a record twice in its group": (EvaluationAttack(small_plan(), seeded_noise(), _InTwoGroups), "twice"),
    "evaluation by site": (EvaluationAttack(small_plan(), seeded_noise(), site_scale=1.0), ""),
    "fault: half the noise of a site": (EvaluationAttack(small_plan(), seeded_noise(), site_scale=0.5), "half of one"),
}  # fmt: skip
"""Questions that a training asks once with little of its promise, or that follow it."""


Rows = dict[str, tuple[Plan, str]]
"""Plans by what they show, each with the name of its fault, or ""."""


def _rows(entries: Sequence[dict[str, Any]]) -> Rows:
    found: Rows = {}
    for entry in entries:
        fault = entry.pop("fault", "")
        found[entry.pop("name", f"fault: {fault}")] = small_plan(**entry), fault
    return found


ROWS: dict[str, Rows] = {
    command: _rows(entries)
    for command, entries in tomllib.loads(Path(__file__).with_name("audits.toml").read_text(encoding="utf-8")).items()
}
"""Of each command."""


def preset_plans() -> dict[str, Plan]:
    """Every private preset as it is, its noise and accountant included, with few and shallow trees in small batches."""
    plans, schema = {}, small_plan()
    for name, preset in PRESETS.items():
        # Other algorithms have rows of their own.
        if preset.private and "algorithm" not in preset.model:
            table = apply_preset(preset, schema).to_dict()
            size = table["model"]["batch_size"]
            table["model"] |= {"n_trees": 5, "max_depth": 2, "batch_size": size if size == "all" else min(2, size)}
            plans[name] = Plan.from_dict(table)
    return plans


# The commands ---------------------------------------------------------------------------------------------------------

_HEADS = {
    "audit": f"{'mu accounted':>14}{'observed':>10}{'at least':>10}",
    "sgbdt_audit": f"{'epsilon accounted':>18}{'at least':>10}{'mu accounted':>14}{'at least':>10}",
}
_HEADS["dpxgboost_audit"] = _HEADS["sgbdt_audit"]


def main(argv: list[str]) -> int:
    """Audit a few plans, then the same with planted faults; 0 if all sound ones pass and all faulty ones fail."""
    return _run("audit", __doc__, argv, 2000)


def main_sgbdt_audit(argv: list[str]) -> int:
    """Canary audit of sampled and filtered runs: is one record's part told no better than the account says?"""
    return _run("sgbdt_audit", main_sgbdt_audit.__doc__, argv, 1000)


def main_dpxgboost_audit(argv: list[str]) -> int:
    """Canary audit of DP-XGBoost: do choices and Laplace noise tell of one record no more than the account allows?"""
    return _run("dpxgboost_audit", main_dpxgboost_audit.__doc__, argv, 1000)


def _run(command: str, about: str | None, argv: list[str], n_runs: int) -> int:
    parser = arguments(command, about, data="not used: the records are made up", runs=(n_runs, "trainings per plan"))
    if command == "audit":
        text = "every private preset, sound and with half the noise"
        parser.add_argument("--presets", action="store_true", help=text)
    options, rows = parser.parse_args(argv), ROWS[command]
    if command == "audit" and options.presets:
        halved = "half the noise"
        rows = {name: row for name, row in rows.items() if row[1]}
        plans = preset_plans()
        rows = {**{name: (plan, "") for name, plan in plans.items()},
                **{f"{name}, {halved}": (plan, halved) for name, plan in plans.items()}, **rows}  # fmt: skip
    attacks: dict[str, tuple[AnyAttack, str]] = {
        name: (attack_on(plan, **FAULTS[fault]), fault) for name, (plan, fault) in rows.items()
    }
    if command == "audit" and not options.presets:
        attacks |= {**ALONE, **OPEN}
    print(f"{options.runs} trainings each, {CONFIDENCE:.1%} confidence\n")
    width = max(map(len, attacks)) + 1 if command == "audit" else 38
    print(f"{'plan':{width}}{_HEADS[command]}  verdict")
    as_expected = True
    for name, (attack, fault) in attacks.items():
        found = audit(attack, options.runs)
        as_expected &= found.passed == (not fault)
        verdict = "within the promise" if found.passed else "BROKEN"
        print(f"{name:{width}}{_columns(command, found)}  {verdict}", flush=True)
    if not as_expected:
        print("\nNot as expected: a sound plan broke its promise, or a planted fault went unseen.", file=sys.stderr)
    return 0 if as_expected else 1


def _columns(command: str, found: Found) -> str:
    epsilons = f"{found.epsilon_accounted:18.3f}{found.epsilon_lower_bound:10.3f}"
    if command == "audit":
        return f"{found.mu_accounted:14.3f}{found.mu_estimate:10.3f}{found.mu_lower_bound:10.3f}"
    is_known = found.mu_accounted < math.inf
    return epsilons + (f"{found.mu_accounted:14.3f}{found.mu_lower_bound:10.3f}" if is_known else " " * 24)
