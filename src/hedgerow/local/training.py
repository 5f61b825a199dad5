# SPDX-License-Identifier: Apache-2.0
"""Train by a plan, or evaluate a model, with all sites in one process. Estimators and commands call it.

It is the real protocol: nodes that see their own rows only, the set-up and the exchanges of `secagg`, a coordinator
that adds the noise. Only the network is missing.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt
from pathlib import Path

import numpy as np

from hedgerow.client.node import EvaluationNode, Node, SamplingSource, cast_vote
from hedgerow.crypto import Entropy
from hedgerow.data.binned import SiteData, check_data
from hedgerow.errors import UsageError
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.evaluation.program import evaluate_ensemble, schedule_of_evaluation
from hedgerow.local.accounts import Account, RunAccount, RunFacts, current_account, is_seeded
from hedgerow.methods.recalibration import Recalibration, recalibrate_ensemble
from hedgerow.methods.registry import find_method, program_for
from hedgerow.methods.tasks import EvaluationTask, TrainingTask
from hedgerow.methods.votes import VOTE_UNIT, expect_rows, find_power
from hedgerow.models.model import Model
from hedgerow.models.plots import draw_calibration
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import check_delta, check_epsilon
from hedgerow.privacy.calibration import QueryNoise, noise_of
from hedgerow.privacy.ledger import Ledger, read_prepared_events
from hedgerow.privacy.noise import NoiseSource
from hedgerow.privacy.report import PrivacyReport, build_lazy_report, build_report
from hedgerow.privacy.rounding import format_up
from hedgerow.privacy.statement import AT_SITE
from hedgerow.protocol.queries import IntVector, NoiseCohort, Query
from hedgerow.protocol.votes import Vote, count_least_rows
from hedgerow.rounds import VECTOR_ID, clip, noise_mode, round_in
from hedgerow.secagg.guarantees import assign_groups, default_wishes
from hedgerow.secagg.masks import MIN_COLLUDERS, Integers, draw_shares
from hedgerow.secagg.messages import NodePolicy, NoiseMode, RoundSpec
from hedgerow.secagg.session import NO_MODEL, EpochSession
from hedgerow.server.coordinator import MAX_HELD_SLOTS, check_words, find_noise_cohort
from hedgerow.server.release import (
    Aggregation,
    Answering,
    GroupedAggregation,
    PlainAggregation,
    Progress,
    Releaser,
    ask_node,
    check_cost,
    evaluation_context,
    run_evaluation,
    run_program,
)
from hedgerow.training.steps import play
from hedgerow.trees.binning import build_grid
from hedgerow.trees.leaf_sums import ScoredSite, SiteRecords

ALL_HERE = NodePolicy(min_cohort=1, min_honest_survivors=1, min_honest_group=1)
"""Owners of sites that are all in one process have nothing to insist on."""


class MaskedAggregation:
    """Sums of masked vectors: no one sees a site's vector, not even this object.

    Args:
        nodes: the sites' nodes, two or more, with distinct names.
        plan: the plan; it says who adds the noise, and bounds every sum.
        n_slots: aggregations that are expected (>= 1); an epoch's keys are made for that many at once.
        entropy: the source of keys and masks: ``os.urandom`` but in tests.
        noise: where the nodes' shares of noise come from, when the plan wants them to add it.
    """

    def __init__(
        self,
        nodes: Sequence[Answering],
        plan: Plan,
        n_slots: int,
        entropy: Entropy,
        noise: NoiseSource,
    ) -> None:
        self._nodes = {node.site: node for node in nodes}
        self._plan = plan
        self._n_slots = max(1, min(n_slots, MAX_HELD_SLOTS))
        self._entropy = entropy
        self._noise = noise
        self._mode = noise_mode(plan)
        self.n_nodes = len(self._nodes)
        self.sites: tuple[str, ...] | None = None
        self._epoch = self._new_epoch()

    @property
    def cohort(self) -> NoiseCohort | None:
        """Sites that add noise in this epoch; None when the nodes add none."""
        return find_noise_cohort(self._plan, self._epoch.view)

    @property
    def public_seed(self) -> int:
        """Seed of the trees' structure drawn by the sites in this epoch, 0 to 2**63 - 1."""
        return self._epoch.view.public_seed

    def sum_answers(self, query: Query) -> IntVector:
        """Sum the nodes' answers under masks; raises Refusal, OwnMistake or SumAbandoned as the parties do."""
        if self._epoch.next_slot >= self._n_slots:
            self._epoch = self._new_epoch()
        epoch = self._epoch
        noise, expected = round_in(query, self._plan, epoch.view.guarantees, NO_MODEL)
        spec = epoch.spec(expected.purpose, expected.vectors, expected.model, expected.noise.variance)
        vectors = {site: {VECTOR_ID: ask_node(node, query)} for site, node in self._nodes.items()}
        if noise.variance:
            vectors = {site: {VECTOR_ID: clip(sent[VECTOR_ID], expected)} for site, sent in vectors.items()}
        shares = self._shares(spec, noise) if self._mode is NoiseMode.DISTRIBUTED else None
        opened = epoch.aggregate(spec, vectors, noise=shares)
        names = list(self._nodes)
        self.sites = tuple(names[node] for node in opened.survivors)
        return opened.sums[VECTOR_ID]

    def _new_epoch(self) -> EpochSession:
        wishes = default_wishes(
            len(self._nodes), least_colluders=MIN_COLLUDERS if self._mode is NoiseMode.DISTRIBUTED else 0
        )
        # Count the same number of shares as over a network.
        wishes = replace(wishes, has_echo=wishes.has_echo or bool(self._plan.federation.echo))
        return EpochSession(
            list(self._nodes), self._n_slots, self._entropy, wishes=wishes, noise=self._mode, policy=ALL_HERE
        )

    def _shares(self, spec: RoundSpec, noise: QueryNoise) -> dict[str, dict[str, Integers]]:
        """Draw every site's share of one round's noise, each under a purpose of its own."""
        return {site: self._mask_share(site, spec, noise) for site in self._nodes}

    def _mask_share(self, site: str, spec: RoundSpec, noise: QueryNoise) -> dict[str, Integers]:
        if not noise.share_sigma:
            return {vector.vector_id: np.zeros(vector.length, dtype=np.int64) for vector in spec.vectors}

        def sampler(variance: Fraction, length: int) -> Integers:
            return self._noise.sample(isqrt(int(variance)), length, f"{spec.purpose}/share of {site}")

        return draw_shares(spec, self._epoch.view.guarantees, sampler)


MIN_MASKED_COHORT = 3


def train(
    plan: Plan,
    sites: Mapping[str, SiteData],
    *,
    noise: NoiseSource,
    account: Account | RunAccount | None = None,
    n_threads: int = 1,
    progress: Progress | None = None,
    sampling: Mapping[str, SamplingSource] | None = None,
    arrivals: Mapping[int, Mapping[str, SiteData]] | None = None,
    is_own: bool = False,
) -> Model:
    """Train one model over all sites; deterministic except `noise` and `sampling`.

    Args:
        sites: each site's rows by the site's name.
        noise: `SystemNoise(os.urandom)` for a real run; a seeded source makes a model without a guarantee.
        account: where the run is charged; None for that of this process (`current_account`).
        progress: called after every release with its query and the ledger so far.
        sampling: each site's source of samples, for algorithms that draw any; None for the operating system.
        arrivals: a stream (S-GBDT only): rows that come to sites before the round of that number. One run, and so
            one filter and one ledger, spans the whole stream; which record comes when must not depend on others.
        is_own: see `run_program`.

    Raises:
        UsageError: fewer sites than the plan asks for; seeded samples under noise that claims a guarantee, or a stream
            for an algorithm that keeps no accounts.
        PlanError: no machine word holds the plan's sums.
        PrivacyError: when the plan's promise cannot be kept.
        AggregationError: code "sum-out-of-range"; far more rows than the plan declares.
        PolicyRefusal: the run does not fit into the account; nothing is spent then.
        EnvironmentFault: the account's book cannot be written; nothing is spent then.
    """
    check_sites(plan, len(sites))
    task = TrainingTask(plan)
    settings = task.settings
    check_words(task, len(sites))
    sources = sampling or {}
    if any(source.seeded for source in sources.values()) and not noise.seeded:
        raise UsageError("sampling-seeded")
    if arrivals and not find_method(plan).keeps_accounts:
        raise UsageError("stream-unsupported", algorithm=plan.model.algorithm, unit=plan.privacy.unit)
    nodes = {
        name: Node(name, sites[name], plan, settings, n_threads, sources.get(name), noise, watches=False)
        for name in sorted(sites)
    }
    answering: list[Answering] = [ArrivingNode(node, arrivals or {}) for node in nodes.values()]
    aggregation = build_aggregation(plan, answering, task.schedule.n_rounds, noise)
    # Use the seed drawn by the sites; without masks this process draws it alone.
    drawing = aggregation.groups[0] if isinstance(aggregation, GroupedAggregation) else aggregation
    seed = drawing.public_seed if isinstance(drawing, MaskedAggregation) else secrets.randbits(63)
    as_run = plan.with_structure_seed(seed)
    facts = RunFacts.of_plan(plan, is_void=is_seeded(noise) or plan.reads_quantiles)
    account, earlier = account or current_account(), read_prepared_events(plan)

    def ballot(query: Query, asked: Query) -> list[int]:
        if expect_rows(plan, 0, len(nodes)) < count_least_rows(noise_of(asked).sigma / VOTE_UNIT):
            return [Vote.ABSTAINS] * len(nodes)
        return [cast_vote(asked, node.sum_rows(asked), name, noise) for name, node in nodes.items()]

    with account.open_run(facts, task.schedule.events, earlier=earlier) as run:
        program = program_for(as_run, settings)
        outcome = run_program(as_run, program, aggregation, noise, run, progress, ballot, is_own=is_own)
    model, votes = Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report), task.schedule.votes
    return model if votes is None else model.voted(outcome.tallies, find_power(plan, votes, [0] * len(nodes)))


class ArrivingNode:
    """A node that receives rows during a run."""

    def __init__(self, node: Node, arrivals: Mapping[int, Mapping[str, SiteData]]) -> None:
        self.site = node.site
        self._node = node
        self._arrivals = {number: rows[node.site] for number, rows in arrivals.items() if node.site in rows}

    def answer(self, query: Query) -> IntVector:
        """Take in the rows that are due up to this round, then answer as `Node.answer`."""
        for number in sorted(due for due in self._arrivals if due <= query.purpose.round):
            self._node.arrive(self._arrivals.pop(number))
        return self._node.answer(query)


def build_aggregation(plan: Plan, nodes: Sequence[Answering], n_rounds: int, noise: NoiseSource) -> Aggregation:
    """Choose how the nodes' vectors are added up; every sum in this process is decided here.

    Masks are used if the plan wants them and they can hide something. They hide nothing if there are two sites, because
    each site can subtract its own vector from the exact sum. Noise from the sites always travels under masks.
    """
    if plan.federation.groups:
        return _group_nodes(plan, nodes, n_rounds, noise)
    is_distributed = plan.privacy.noise == "distributed"
    if is_distributed and len(nodes) < 2:
        raise UsageError("one-site")
    if is_distributed or (plan.federation.secure_aggregation and len(nodes) >= MIN_MASKED_COHORT):
        return MaskedAggregation(nodes, plan, n_rounds, os.urandom, noise)
    return PlainAggregation(nodes)


def _group_nodes(plan: Plan, nodes: Sequence[Answering], n_rounds: int, noise: NoiseSource) -> GroupedAggregation:
    """Deal the sites to groups by their names, because sites of one process have no keys."""
    n_groups = plan.federation.groups
    if len(nodes) < n_groups:
        raise UsageError("too-few-sites", n_sites=len(nodes), wanted=n_groups)
    of = assign_groups([node.site.encode() for node in nodes], n_groups)
    alone = plan.with_one_sum()
    parts = [[node for node, group in zip(nodes, of, strict=True) if group == number] for number in range(n_groups)]
    return GroupedAggregation([build_aggregation(alone, part, n_rounds, noise) for part in parts])


def without_secure_aggregation(plan: Plan) -> Plan:
    """Return the plan with sums in the clear, for large experiments in one process.

    The model file holds this plan.

    Raises:
        PlanError: when the plan wants noise from the sites.
    """
    table = plan.to_dict()
    return Plan.from_dict({**table, "federation": {**table["federation"], "secure_aggregation": False}})


def check_sites(plan: Plan, n_sites: int) -> None:
    """Raise UsageError when fewer sites take part than the plan asks for."""
    wanted = plan.federation.min_sites
    if n_sites < wanted:
        raise UsageError("too-few-sites", n_sites=n_sites, wanted=wanted)


# Evaluation -----------------------------------------------------------------------------------------------------------
# The calibration curve of an evaluation over sites can be drawn, with the extra "plots" (matplotlib): released numbers
# only.


@dataclass(frozen=True, eq=False)
class FederatedEvaluation:
    """Result and cost of an evaluation, and the model with that cost on its account.

    Attributes:
        evaluation: the numbers.
        cost: the report on this evaluation alone.
        model: the same trees; its ledger and report now hold the evaluation as well. Keep this one.
    """

    evaluation: Evaluation
    cost: PrivacyReport
    model: Model

    def with_account(self, account: Account) -> FederatedEvaluation:
        """Return this evaluation with the charged account in its model's report."""
        privacy = self.model.plan.privacy
        return replace(self, model=self.model.with_account(account.read_state(privacy.unit, privacy.delta)))


def evaluate_federated(
    model: Model,
    sites: Mapping[str, SiteData],
    *,
    epsilon: float,
    noise: NoiseSource,
    account: Account | RunAccount | None = None,
    delta: float | None = None,
    n_threads: int = 1,
    by: Sequence[str] = (),
    mode: str = "",
    is_one_site: bool = False,
) -> FederatedEvaluation:
    """Measure with noise how well a model predicts the sites' held-out rows; deterministic except `noise`.

    Args:
        sites: each site's held-out rows by the site's name; at most `max_rows_per_unit` of each unit
            (`hedgerow.data.site_data` sees to it).
        epsilon: what this evaluation may cost, > 0; infinity for no noise, which voids the model's guarantee.
        noise: `SystemNoise(os.urandom)` for a real one.
        account: where it is charged; None for that of this process (`current_account`).
        delta: None takes the plan's.
        by: features of the plan by whose public groups the same is measured, each with a release of its own; "site" for
            each site, with noise of its own.
        mode: who adds the noise, as for `EvaluationTask`; "" for who added it to the training.
        is_one_site: whether this is one site by itself, which adds the noise whatever the plan says of a federation.

    Raises:
        UsageError: fewer sites than the plan asks for.
        PrivacyError: for a feature without public groups, for epsilon or delta out of range, or when the promise cannot
            be kept.
        PolicyRefusal, EnvironmentFault: as `train`.
    """
    names, privacy = sorted(sites), model.plan.privacy
    delta = privacy.delta if delta is None else delta
    task = EvaluationTask(
        model.plan, b"", epsilon, delta, model.next_round, mode or privacy.noise, tuple(by), tuple(names)
    )
    plan = _plan_alone(model.plan) if is_one_site else task.run_plan
    check_sites(plan, len(sites))
    # The caller holds all tables, so each node may show its own figures.
    nodes = [EvaluationNode(name, sites[name], plan, n_threads, noise, shows=lambda query: True) for name in names]
    context = evaluation_context(plan, epsilon, delta, noise)
    context = replace(context, made_in=AT_SITE) if is_one_site else context
    # Check the ledger now, so that one that this evaluation cannot be added to is refused before any release.
    build_lazy_report(model.ledger, model.report)
    program = evaluate_ensemble(
        plan, model.ensemble, epsilon, delta, model.next_round, by, names, is_one_site=is_one_site
    )
    aggregation = build_aggregation(plan, nodes, task.schedule.n_rounds, noise)
    facts = RunFacts.of_plan(plan, is_void=is_seeded(noise), name=f"evaluation of {plan.name}")
    events = schedule_of_evaluation(plan, epsilon, delta, by, names).events
    with (account or current_account()).open_run(facts, events) as run:
        evaluation, cost, ledger = run_evaluation(plan, program, aggregation, noise, run, model.ledger, context)
    report = build_report(ledger, model.report.with_evaluation(cost))
    return FederatedEvaluation(evaluation, cost, add_evaluation(model, evaluation, ledger, report))


def _plan_alone(plan: Plan) -> Plan:
    """Return the plan for questions to one site alone, which adds the noise to its own sums."""
    alone, is_local = plan.with_one_sum(), plan.privacy.noise == "local"
    privacy = plan.privacy if is_local else replace(plan.privacy, noise="server")
    return replace(alone, privacy=privacy, federation=replace(alone.federation, min_sites=1))


def add_evaluation(model: Model, evaluation: Evaluation, ledger: Ledger, report: PrivacyReport) -> Model:
    """Return the model with an evaluation on its account, and with the errors that it measured."""
    return replace(model, ledger=ledger, report=report, errors=evaluation.errors or model.errors)


def recalibrate_model(
    model: Model,
    data: SiteData,
    *,
    epsilon: float,
    noise: NoiseSource,
    account: Account | RunAccount | None = None,
    delta: float | None = None,
    n_threads: int = 1,
) -> tuple[Model, Recalibration, PrivacyReport]:
    """Adapt a model's level and slope to one site's rows, with noise added by the site.

    Args:
        data: the site's rows; at most `max_rows_per_unit` of each unit.
        epsilon, noise, account, delta, n_threads: as for `evaluate_federated`.

    Returns:
        The model, with what this costs on its account: the rows may be of the same units that it was trained on. Then
        what was found, and the report on this alone.

    Raises:
        ModelError: code "no-recalibration".
        PrivacyError: for epsilon or delta out of range, or when the promise cannot be kept.
        PolicyRefusal, EnvironmentFault: as `train`.
    """
    plan, ensemble = _plan_alone(model.plan), model.ensemble
    delta = plan.privacy.delta if delta is None else delta
    check_epsilon(epsilon)
    check_delta(delta)
    check_data("the site", data, plan)
    program = recalibrate_ensemble(plan, ensemble, epsilon, delta, model.next_round)
    codes = data.codes_in(build_grid(plan), ensemble.grid.new_edges)
    scores = np.zeros((plan.label.n_outputs, data.n_records), dtype=np.int32)
    site = ScoredSite(plan, SiteRecords(codes, data.labels, scores), n_threads)
    facts = RunFacts.of_plan(plan, is_void=is_seeded(noise), name=f"recalibration of {plan.name}")
    with (account or current_account()).open_run(facts, whole=(epsilon, delta)) as run:
        releaser = Releaser(noise, run, ledger=model.ledger)
        found = play(program, lambda query: releaser.release(query, query.answer(site)))
    context = replace(evaluation_context(plan, epsilon, delta, noise), noise_mode="server", made_in=AT_SITE)
    cost = check_cost(Ledger(releaser.ledger.releases[len(model.ledger) :]), context)
    report = build_report(releaser.ledger, model.report.with_evaluation(cost))
    # Drop the measured errors, because they belong to the old level.
    changed = replace(model, ensemble=found.ensemble, ledger=releaser.ledger, report=report, errors=None)
    return changed, found, cost


def plot_calibration(found: FederatedEvaluation, path: str | Path) -> None:
    """Draw predictions against outcomes, with 95 % bars of the noise, and the distribution of records.

    Raises:
        EnvironmentFault: matplotlib is missing, or the file cannot be written.
    """
    area = found.evaluation.scores["auc"]
    text = "not measurable" if math.isnan(area.value) else f"{area.value:.3f} ± {area.noise_error:.3f}"
    n_records = f"about {max(found.evaluation.n_records.value, 0):,.0f} records"
    void = " (void)" if found.cost.guarantee == "void" else ""
    cost = f"epsilon {format_up(found.cost.epsilon, 3)}{void}"
    subtitle = f"AUC {text} · {n_records} · {cost} · bars: 95 % of the privacy noise"
    draw_calibration(found.evaluation.curves, found.model.plan.label.name, subtitle, path)
