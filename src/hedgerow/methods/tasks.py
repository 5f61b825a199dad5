# SPDX-License-Identifier: Apache-2.0
"""The tasks of runs: to train a model by a plan, to evaluate a model, or to survey columns.

A survey comes before a plan, for what the plan is to say, or is for statistics alone. A task is public, and every party
of its run has the same one.

A task gives the run its program, says what the program's releases may cost, and has a digest by which parties, stores
and journals tell it from any other.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hedgerow.errors import HedgerowError, PlanError, PrivacyError, RemoteProtocolError
from hedgerow.evaluation.program import EvaluationProgram, evaluate_ensemble, schedule_of_evaluation
from hedgerow.evaluation.sums import count_groups
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.fields import MAX_VALUES, read_json
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import check_delta, check_epsilon
from hedgerow.privacy.schedule import Schedule
from hedgerow.protocol.messages import EvaluationInvitation, Invitation, SurveyInvitation
from hedgerow.protocol.queries import SiteQuery
from hedgerow.survey.program import SurveyProgram
from hedgerow.survey.requests import OpenTable
from hedgerow.training.settings import Settings
from hedgerow.training.steps import Program
from hedgerow.trees.ensemble import Ensemble, ensemble_from_dict, ensemble_to_dict
from hedgerow.trees.plausibility import ReleaseChecks

_DOMAIN = b"hedgerow evaluation 2"
_SURVEY_DOMAIN = b"hedgerow survey 1"


@dataclass(frozen=True, eq=False)
class TrainingTask:
    """The task of training a model by `plan`."""

    plan: Plan

    @cached_property
    def settings(self) -> Settings:
        """The plan's settings; PrivacyError if no noise keeps its promise."""
        return resolve(self.plan)

    @property
    def run_plan(self) -> Plan:
        """The plan for making sums: who adds the noise, and the least number of sites."""
        return self.plan

    @property
    def digest(self) -> str:
        """The plan's digest: 64 hexadecimal digits."""
        return self.plan.digest

    @property
    def promise(self) -> tuple[float, float]:
        """The epsilon and delta that releases may cost; epsilon is infinity with exact counts."""
        privacy = self.plan.privacy
        return math.inf if self.plan.reads_quantiles else privacy.epsilon, privacy.delta

    @cached_property
    def schedule(self) -> Schedule:
        """The most that a whole run asks for, with its highest cost.

        The plan's [[prepared]] releases are not in it: who answered those was charged for them then.
        """
        return self.settings.schedule(self.plan)

    def with_structure_seed(self, seed: int) -> TrainingTask:
        """Return the task as it is run, see `Plan.with_structure_seed`.

        The settings do not depend on the seed.
        """
        as_run = TrainingTask(self.plan.with_structure_seed(seed))
        as_run.__dict__["settings"] = self.settings
        return as_run

    def program(self) -> Program:
        """Return a fresh program."""
        return program_for(self.plan, self.settings)


@dataclass(frozen=True, eq=False)
class EvaluationTask:
    """The task of evaluating a model over the rows that the sites hold out.

    Attributes:
        plan: of the model.
        model: the ensemble, as `ensemble_bytes` writes it. It is read when it is needed, so that a node can ask first
            whether it knows the model.
        epsilon, delta: the cost that the evaluation may have by itself.
        first_round: releases on the model's account before this one.
        noise: who adds the noise to this evaluation: "server" or "distributed", which may differ from the training's;
            "local" for the models of plans with local noise, and only for these. "" takes the sites: a party with the
            exact sums of an evaluation could have made the model for them.
        by: columns by whose public groups it is evaluated as well, and "site" for single sites.
        sites: all of them, where it is by site; else none.

    Raises:
        PrivacyError: epsilon or delta out of range; code "noise-mode-unsupported" for other noise, "unknown-name" for a
            column without public groups.
        RemoteProtocolError: the plan is not that of a model, for it leaves the seed of the trees open.
    """

    plan: Plan
    model: bytes
    epsilon: float
    delta: float
    first_round: int
    noise: str = ""
    by: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for column in self.by:
            count_groups(self.plan, column, self.sites)
        is_local = self.plan.privacy.noise == "local"
        if not self.noise:
            object.__setattr__(self, "noise", "local" if is_local else "distributed")
        if self.noise not in (("local",) if is_local else ("server", "distributed")):
            others = '"local", as in its plan' if is_local else '"distributed" or "server"'
            subject = "An evaluation of this model"
            raise PrivacyError("noise-mode-unsupported", subject=subject, noise=self.noise, others=others)
        if self.epsilon != float("inf"):
            check_epsilon(self.epsilon)
        check_delta(self.delta)
        if self.plan.has_joint_structure:
            raise RemoteProtocolError(
                "task-unreadable",
                code="model-unreadable",
                what="model",
                why="Its plan does not say from which seed the trees were made.",
            )

    @cached_property
    def run_plan(self) -> Plan:
        """The model's plan for one sum over all sites, with this evaluation's noise."""
        plan = self.plan.with_one_sum()
        if plan.privacy.noise == self.noise:
            return plan
        # The echo exchange lowers the noise of sites. A plan with other noise had no reason to ask for it.
        federation = replace(plan.federation, echo=bool(plan.federation.echo) or self.noise == "distributed")
        return replace(plan, privacy=replace(plan.privacy, noise=self.noise), federation=federation)

    @cached_property
    def ensemble(self) -> Ensemble:
        """The model's trees; RemoteProtocolError or ModelError if the bytes are no model of the plan."""
        try:
            table = read_json(self.model)
        except ValueError as fault:
            raise RemoteProtocolError(
                "task-unreadable", code="model-unreadable", what="model", why="It is no JSON."
            ) from fault
        return ensemble_from_dict(table, self.plan)

    @property
    def model_digest(self) -> bytes:
        """The SHA-256 of the model: 32 bytes."""
        return hashlib.sha256(self.model).digest()

    @cached_property
    def digest(self) -> str:
        """The digest of the whole task: 64 hexadecimal digits."""
        numbers = struct.pack(">ddQ", self.epsilon, self.delta, self.first_round)
        parts = bytes.fromhex(self.plan.digest) + self.model_digest + numbers + self.noise.encode()
        parts += b"".join(b"\0" + column.encode() for column in self.by)
        parts += b"".join(b"\0\0" + site.encode() for site in self.sites)
        return hashlib.sha256(_DOMAIN + parts).hexdigest()

    @property
    def promise(self) -> tuple[float, float]:
        """The epsilon and delta that the evaluation may cost by itself."""
        return self.epsilon, self.delta

    @cached_property
    def schedule(self) -> Schedule:
        """The rounds of the evaluation: an outline of the scores, their detail, then by columns."""
        return schedule_of_evaluation(self.plan, self.epsilon, self.delta, self.by, self.sites)

    def with_structure_seed(self, _: int) -> EvaluationTask:
        """Return the task itself: the trees are there already."""
        return self

    def program(self) -> EvaluationProgram:
        """Return a fresh program."""
        promise = self.epsilon, self.delta
        return evaluate_ensemble(self.plan, self.ensemble, *promise, self.first_round, self.by, self.sites)


@dataclass(frozen=True, eq=False)
class SurveyTask:
    """The task of answering questions about raw columns by noisy sums.

    Attributes:
        asked: the questions and their program; all parties get its `KIND` and its bytes.
    """

    asked: OpenTable

    @property
    def plan(self) -> Plan:
        """The plan for making sums, each over all sites; no one trains by it."""
        return self.asked.schema_plan.with_one_sum()

    @property
    def run_plan(self) -> Plan:
        """The plan for making sums, which is `plan`."""
        return self.plan

    @cached_property
    def digest(self) -> str:
        """The digest of the whole task: 64 hexadecimal digits."""
        parts = self.asked.KIND.encode() + b"\0" + self.asked.to_bytes()
        return hashlib.sha256(_SURVEY_DOMAIN + parts).hexdigest()

    @property
    def promise(self) -> tuple[float, float]:
        """The epsilon and delta that the survey may cost by itself.

        They are part of the promise of a plan that is made of it.
        """
        return self.asked.epsilon, self.plan.privacy.delta

    @cached_property
    def schedule(self) -> Schedule:
        """The rounds of the survey's questions."""
        return self.asked.questions.schedule

    def with_structure_seed(self, _: int) -> SurveyTask:
        """Return the task itself: there are no trees."""
        return self

    def program(self) -> SurveyProgram:
        """Return a fresh program."""
        return self.asked.program()


def survey_task(about: str, content: bytes) -> SurveyTask:
    """Read the task of a survey's invitation.

    Raises:
        RemoteProtocolError: it cannot be read.
        PrivacyError: its epsilon or delta is out of range.
    """
    try:
        if about != OpenTable.KIND:
            raise ValueError(f"nothing is asked about {about!r}")
        return SurveyTask(OpenTable(read_json(content, MAX_VALUES)))
    except (ValueError, AttributeError, KeyError, TypeError) as fault:
        why = f" {fault.what}" if isinstance(fault, PlanError) else ""
        raise RemoteProtocolError("task-unreadable", code="plan-unreadable", what="plan", why=why) from fault


Task = TrainingTask | EvaluationTask | SurveyTask


def read_invitation(
    message: Invitation | EvaluationInvitation | SurveyInvitation,
) -> tuple[tuple[str, str, str, float], Task | HedgerowError]:
    """Read an invitation: its line in a site's list, and its task or the error in it.

    Returns:
        Kind, digest, name and epsilon, as `hedgerow.client.budget.InvitationLine` has them; and the task, or why it
        cannot be read.
    """
    match message:
        case SurveyInvitation():
            kind, content = "survey", message.questions
        case EvaluationInvitation():
            kind, content = "evaluation", message.plan
        case _:
            kind, content = "training", message.plan
    words = kind, hashlib.sha256(content).hexdigest(), "(cannot be read)", math.inf
    task: Task
    try:
        if isinstance(message, SurveyInvitation):
            task = survey_task(message.about, message.questions)
            return (kind, task.digest, task.plan.name, task.promise[0]), task
        task = TrainingTask(read_plan(message.plan))
        words = kind, task.digest, task.plan.name, task.promise[0]
        if isinstance(message, EvaluationInvitation):
            words = *words[:3], message.epsilon
            numbers = message.epsilon, message.delta, message.first_round, message.noise, message.by, message.sites
            task = EvaluationTask(task.plan, message.model, *numbers)
        return words, task
    except HedgerowError as fault:
        return words, fault


def read_plan(content: bytes) -> Plan:
    """Read the plan in an invitation.

    Raises:
        RemoteProtocolError: it cannot be read.
    """
    try:
        return Plan.from_dict(read_json(content, MAX_VALUES))
    except (ValueError, AttributeError) as fault:
        why = f" {fault.what}" if isinstance(fault, PlanError) else ""
        raise RemoteProtocolError("task-unreadable", code="plan-unreadable", what="plan", why=why) from fault


def list_site_queries(task: Task) -> list[SiteQuery]:
    """Return what a task asks for figures of single sites, as its schedule has it."""
    return [alike.query for alike in task.schedule.rounds if isinstance(alike.query, SiteQuery)]


def find_visibility(task: Task, shows: Callable[[SiteQuery], bool] = lambda query: False) -> str:
    """Return who sees what in a run for this task, as words between spaces for `who_sees`.

    The words are "none" if totals have no noise, else the party that adds it (`Privacy.noise`); "groups" if a sum is
    over a group of sites; "votes" if each site votes on the model; "own-figures" if this site's own figures leave it;
    and "others-figures" if only other sites' figures do.

    Args:
        shows: whether the site that is told lets figures of its own leave it (`Policy.shows_figures`).
    """
    privacy, n_groups = task.run_plan.privacy, task.run_plan.federation.groups
    words = ["none" if math.isinf(task.promise[0]) else privacy.noise, *["groups"] * (n_groups > 0)]
    words += ["votes"] * task.run_plan.federation.votes
    if isinstance(task, EvaluationTask) and task.sites:
        asked = list_site_queries(task)
        words += ["own-figures" if any(map(shows, asked)) else "others-figures"] if asked else []
    return " ".join(words)


def build_checks(task: Task) -> ReleaseChecks:
    """Return the checks of releases in a run for this task."""
    if isinstance(task, TrainingTask):
        return ReleaseChecks(lambda: task.settings.loss(task.plan))
    return ReleaseChecks(lambda: resolve(task.plan).loss(task.plan))


def ensemble_bytes(ensemble: Ensemble) -> bytes:
    """Return an ensemble as bytes for hashing and sending; equal ensembles give equal bytes."""
    content = json.dumps(ensemble_to_dict(ensemble), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return content.encode("ascii")


def digest_model(ensemble: Ensemble) -> bytes:
    """Return the 32 bytes of `EvaluationTask.model_digest`.

    By them a node knows a model again when it is asked to evaluate it.
    """
    return hashlib.sha256(ensemble_bytes(ensemble)).digest()


def task_to_text(task: Task) -> str:
    """Return a task as JSON, for a node's own store."""
    if isinstance(task, SurveyTask):
        asked = {"about": task.asked.KIND, "questions": task.asked.to_bytes().decode("utf-8")}
        return json.dumps({"survey": asked}, sort_keys=True)
    table: dict[str, Any] = {"plan": task.plan.to_dict()}
    if isinstance(task, EvaluationTask):
        table["evaluation"] = {
            "model": task.model.decode("ascii"),
            "epsilon": task.epsilon,
            "delta": task.delta,
            "first_round": task.first_round,
            "noise": task.noise,
            **({"by": list(task.by)} if task.by else {}),
            **({"sites": list(task.sites)} if task.sites else {}),
        }
    return json.dumps(table, sort_keys=True)


def task_from_text(text: str) -> Task:
    """Return the task that `task_to_text` wrote."""
    table = json.loads(text)
    if "survey" in table:
        return survey_task(str(table["survey"]["about"]), str(table["survey"]["questions"]).encode())
    plan = Plan.from_dict(table["plan"], is_stored=True)
    if "evaluation" not in table:
        return TrainingTask(plan)
    part = table["evaluation"]
    model = str(part["model"]).encode("ascii")
    # A version that did not write the noise down had the plan's.
    noise = str(part.get("noise", plan.privacy.noise))
    numbers = float(part["epsilon"]), float(part["delta"]), int(part["first_round"])
    return EvaluationTask(plan, model, *numbers, noise, tuple(part.get("by", ())), tuple(part.get("sites", ())))
