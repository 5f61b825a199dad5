"""Which program a plan runs."""

from __future__ import annotations

from hedgerow.protocol.plan import Plan
from hedgerow.training.algorithms import ALGORITHMS
from hedgerow.training.boosting import boosted_trees
from hedgerow.training.greedy import greedy_trees
from hedgerow.training.settings import Settings, features_asked, resolve
from hedgerow.training.steps import Program


def program_for(plan: Plan, settings: Settings | None = None) -> Program:
    """A fresh program of a plan.

    Partially random splits of a single feature leave nothing to choose, so they are totally random ones.

    Args:
        plan: the plan; its `model.algorithm` and `model.split_method` decide.
        settings: its resolved settings, or None to resolve them here.
    """
    settings = settings or resolve(plan)
    if plan.model.algorithm != "boosting":
        return ALGORITHMS[plan.model.algorithm].program(plan, settings)
    method = plan.model.split_method
    if method == "hist" or (method == "partially_random" and features_asked(plan, settings) > 1):
        return greedy_trees(plan, settings)
    return boosted_trees(plan, settings)
