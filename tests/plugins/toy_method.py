"""A method from outside the package: one noisy share of the last class, the same for every record."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hedgerow.losses.registry import build_loss
from hedgerow.losses.tables import SCORE_UNIT, Loss
from hedgerow.methods import Method, Parts
from hedgerow.plan.fields import define_field, number, refuse
from hedgerow.plan.plan import Plan
from hedgerow.plan.registry import own_section
from hedgerow.privacy.calibration import NoiseDemand, calibrate_sigmas
from hedgerow.privacy.schedule import AlikeRounds, Schedule
from hedgerow.protocol.queries import FittedTrees, IntVector, Query, TreeBatch
from hedgerow.training.settings import Settings
from hedgerow.training.steps import Run, empty_ensemble
from hedgerow.trees.ensemble import Ensemble
from hedgerow.trees.leaf_sums import TrainingSite

UNIT = 2**10


@dataclass(frozen=True, kw_only=True)
class Toy:
    """The section [toy]: how far the share is drawn to a half, in records."""

    ridge: float = define_field(number(0, 1e6), 10.0)


def check(plan: Plan) -> None:
    if plan.privacy.unit != "record":
        raise refuse("privacy.unit", plan.privacy.unit, '"record" with "toy"')


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassCounts(Query):
    """How many records there are of each of two classes, `UNIT` for each: int64 [2]."""

    def answer(self, site: TrainingSite) -> IntVector:
        return UNIT * np.bincount(site.records.labels, minlength=2).astype(np.int64)

    def faults(self, released: Any, facts: Any, checks: Any) -> Iterator[str]:
        if released.min() < -facts.reach(1):
            yield "a count is below zero"


@dataclass(frozen=True)
class ToySettings(Settings):
    """All of it but the noise is for show."""

    def loss(self, plan: Plan) -> Loss:
        return build_loss(plan)

    def schedule(self, plan: Plan) -> Schedule:
        asked = AlikeRounds.of(
            ClassCounts, length=2, bound=UNIT, sensitivity_squared=UNIT**2, noise_multiplier=self.noise_multiplier
        )
        return Schedule((asked,))


def resolve(plan: Plan) -> ToySettings:
    privacy, multiplier = plan.privacy, 0.0
    if not math.isinf(privacy.epsilon):
        demand = NoiseDemand(UNIT**2, 2)
        multiplier = calibrate_sigmas(privacy.epsilon, privacy.delta, [demand], privacy.accountant)[0] / UNIT
    return ToySettings(n_trees=1, max_depth=1, noise_multiplier=multiplier)


def program(plan: Plan, settings: ToySettings) -> Generator[Query, IntVector, Ensemble]:
    run = Run.from_plan(plan, settings)
    counts = yield ClassCounts(
        purpose=ClassCounts.purpose_of(0, "both classes"), length=2, bound=UNIT, sensitivity_squared=UNIT**2,
        noise_multiplier=settings.noise_multiplier,
    )  # fmt: skip
    first, last = np.maximum(counts / UNIT, 0) + own_section(Toy, plan).ridge / 2
    score = round(math.log(last / first) * SCORE_UNIT)
    n_codes = run.grid.n_codes
    tree = TreeBatch(
        np.zeros((1, 1), dtype=np.int32), np.ones((1, 1, n_codes), dtype=np.uint8), np.array([[n_codes - 1]], np.int32)
    )
    values = np.array([score, 0], dtype=np.int32).reshape(1, 2, 1)
    return empty_ensemble(run).extend([FittedTrees(tree, values)], [None])


METHOD = Method(
    section=Toy,
    model_fields=frozenset({"structure_seed"}),
    labels=("binary",),
    check=check,
    parts=lambda: Parts(resolve, program),
)
