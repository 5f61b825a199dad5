"""The algorithms other than boosted trees: each is a rule for its settings and a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hedgerow.protocol.plan import Plan
from hedgerow.training.adassp import boosted_adassp
from hedgerow.training.adassp_settings import resolve_adassp
from hedgerow.training.dp_xgboost import dp_xgboost
from hedgerow.training.dp_xgboost_settings import resolve_dp_xgboost
from hedgerow.training.s_gbdt import s_gbdt
from hedgerow.training.s_gbdt_rule import resolve_s_gbdt
from hedgerow.training.settings import Settings
from hedgerow.training.steps import Program


@dataclass(frozen=True)
class Algorithm:
    """What `model.algorithm` stands for.

    Attributes:
        resolve: decides every "auto" of a plan and calibrates its noise.
        program: makes a fresh program of a plan and its settings.
    """

    resolve: Callable[[Plan], Settings]
    program: Callable[[Plan, Settings], Program]


ALGORITHMS: dict[str, Algorithm] = {
    "adassp": Algorithm(resolve_adassp, boosted_adassp),
    "s-gbdt": Algorithm(resolve_s_gbdt, s_gbdt),
    "dp-xgboost": Algorithm(resolve_dp_xgboost, dp_xgboost),
}
