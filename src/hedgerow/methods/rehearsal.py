"""The first exchanges of a task with sums of zero: whoever takes part loads its code before others wait for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hedgerow.errors import HedgerowError
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import Task, TrainingTask
from hedgerow.protocol.queries import Query

_N_QUERIES = 3
_LARGEST = 1 << 22
"""Entries of an answer: nodes refuse to hold more, so such a run is not begun in memory before they are asked."""


def rehearse(task: Task, answer: Callable[[Query], object] = lambda query: None) -> None:
    """Carry out the first exchanges of a task; nothing of it is kept.

    A task that cannot be carried out is not refused here: it will be where those are told whom it concerns.

    Args:
        task: of a plan whose trees' seed is fixed, or any seed but the run's own.
        answer: what this party does with each query.
    """
    try:
        if isinstance(task, TrainingTask) and task.settings.largest_length(task.plan) > _LARGEST:
            return
        replica = Replica(task)
        for _ in range(_N_QUERIES):
            if replica.query is None:
                return
            answer(replica.query)
            replica.feed(np.zeros(replica.query.release_length, dtype=np.int64))
    except HedgerowError:
        return
