# SPDX-License-Identifier: Apache-2.0
"""The table of methods; a line here adds a method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hedgerow.errors import ModelError
from hedgerow.methods import Method, adassp, boosting, dp_xgboost, s_gbdt
from hedgerow.plan.plan import Plan
from hedgerow.plan.registry import METHOD_ADDERS, AbsentMethod, Registry, add_rules

if TYPE_CHECKING:
    # Plans are read without what carries methods out.
    from hedgerow.training.settings import Settings
    from hedgerow.training.steps import Program

METHODS: Registry[Method] = Registry("method", METHOD_ADDERS)


def add_method(name: str, method: Method) -> None:
    """Add a method that plans can name as `model.algorithm`.

    Raises:
        UsageError: the name is taken.
    """
    add_rules(name, method)
    METHODS[name] = method


add_method("boosting", boosting.METHOD)
add_method("adassp", adassp.METHOD)
add_method("s-gbdt", s_gbdt.METHOD)
add_method("dp-xgboost", dp_xgboost.METHOD)


def find_method(plan: Plan) -> Method:
    """Return the method of a plan.

    Raises:
        ModelError: code "method-absent"; the method of a model's plan is not installed.
    """
    if isinstance(plan.own, AbsentMethod):
        raise ModelError("method-absent", what=f"{plan.model.algorithm} {plan.own.version}".strip())
    return METHODS[plan.model.algorithm]


def resolve(plan: Plan) -> Settings:
    """Decide every "auto" of a plan and calibrate its noise.

    Raises:
        PrivacyError: when no noise keeps the promise.
    """
    settings: Settings = find_method(plan).parts().resolve(plan)
    return settings


def program_for(plan: Plan, settings: Settings | None = None) -> Program:
    """Return a fresh program of a plan.

    Args:
        settings: its resolved settings, or None to resolve them here.
    """
    program: Program = find_method(plan).parts().program(plan, settings or resolve(plan))
    return program
