"""The methods: each is a rule for its settings and a program. One line here makes a method exist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hedgerow.methods.adassp.program import boosted_adassp
from hedgerow.methods.adassp.settings import resolve_adassp
from hedgerow.methods.boosting.greedy import greedy_trees
from hedgerow.methods.boosting.program import boosted_trees
from hedgerow.methods.dp_xgboost.program import dp_xgboost
from hedgerow.methods.dp_xgboost.settings import resolve_dp_xgboost
from hedgerow.methods.s_gbdt.program import s_gbdt
from hedgerow.methods.s_gbdt.settings import resolve_s_gbdt
from hedgerow.plan.plan import Plan
from hedgerow.training.settings import Settings, features_asked, resolve_boosting
from hedgerow.training.steps import Program

Own = TypeVar("Own", bound=Settings)
"""A method's own kind of settings."""


@dataclass(frozen=True)
class Method(Generic[Own]):
    """What `model.algorithm` stands for.

    Attributes:
        resolve: decides every "auto" of a plan and calibrates its noise.
        program: makes a fresh program of a plan and its settings.
    """

    resolve: Callable[[Plan], Own]
    program: Callable[[Plan, Own], Program]


def boosting(plan: Plan, settings: Settings) -> Program:
    """Boosted trees: greedy ones where splits are chosen, totally random ones where there is nothing to choose.

    Partially random splits of a single feature leave nothing to choose.
    """
    method = plan.model.split_method
    if method == "hist" or (method == "partially_random" and features_asked(plan, settings) > 1):
        return greedy_trees(plan, settings)
    return boosted_trees(plan, settings)


METHODS: dict[str, Method[Any]] = {
    "boosting": Method(resolve_boosting, boosting),
    "adassp": Method(resolve_adassp, boosted_adassp),
    "s-gbdt": Method(resolve_s_gbdt, s_gbdt),
    "dp-xgboost": Method(resolve_dp_xgboost, dp_xgboost),
}


def resolve(plan: Plan) -> Settings:
    """Decide every "auto" of a plan and calibrate its noise.

    Raises:
        PrivacyError: when no noise keeps the promise.
    """
    settings: Settings = METHODS[plan.model.algorithm].resolve(plan)
    return settings


def program_for(plan: Plan, settings: Settings | None = None) -> Program:
    """A fresh program of a plan.

    Args:
        plan: the plan; its `model.algorithm` decides.
        settings: its resolved settings, or None to resolve them here.
    """
    program: Program = METHODS[plan.model.algorithm].program(plan, settings or resolve(plan))
    return program
