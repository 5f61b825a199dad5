"""Load what a run needs before anyone waits for it: accountants, compiled kernels, and the table when there is a plan.

A process that has just started spends seconds on imports and on kernels from numba's cache. Done before the node
dials, that time is its own; done at the first query, all other sites would wait for it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hedgerow.client.node import Node
from hedgerow.data.site_data import SiteData
from hedgerow.errors import HedgerowError
from hedgerow.methods.rehearsal import rehearse
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.trees.binning import build_grid

_USUAL = {
    "version": 1,
    "name": "warm-up",
    "label": {"name": "y", "type": "binary", "classes": ["0", "1"]},
    "features": [
        {"name": "a", "type": "numeric", "min": 0.0, "max": 1.0},
        {"name": "b", "type": "categorical", "categories": ["x"]},
    ],
    "privacy": {"epsilon": 1.0, "delta": 1e-6, "n_records": 1000},
    "model": {"n_trees": 4, "max_depth": 2},
}


def usual_plan() -> Plan:
    """What a node without a plan prepares for."""
    return Plan.from_dict(_USUAL)


def warm_up(plan: Plan | None, n_threads: int = 1) -> None:
    """Answer the first queries of a plan over one made-up record, for nobody; without a plan, those of a usual one."""
    plan = (plan or usual_plan()).with_structure_seed(0)
    try:
        task = TrainingTask(plan)
        task.planned_releases()
        columns = tuple(np.zeros(1, np.int16 if feature.is_categorical else np.float32) for feature in plan.features)
        data = SiteData(build_grid(plan).encode(columns), np.zeros(1, dtype=np.int32))
        rehearse(task, Node("warm-up", data, plan, task.settings, n_threads).answer)
    except HedgerowError:
        # A plan that cannot be run is refused where the refusal is told to the coordinator as well.
        return


def read_early(load: Callable[[Plan], SiteData], plan: Plan | None) -> Callable[[Plan], SiteData]:
    """`load`, with the rows of `plan` read already; raises DataError when they do not fit.

    A table that cannot be used is for the owner alone to hear of, and at once: the node does not dial then.
    """
    if plan is None:
        return load
    rows = load(plan)
    return lambda offered: rows if offered.is_run_of(plan) else load(offered)
