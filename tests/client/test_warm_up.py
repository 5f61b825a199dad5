"""Warming up answers nobody and changes nothing; rows read early are the rows of that plan only."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.client.node import Node, warm_up
from hedgerow.client.setup import read_early
from hedgerow.data.binned import SiteData
from hedgerow.errors import DataError
from hedgerow.methods.registry import resolve
from hedgerow.methods.replica import rehearse
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import Query
from hedgerow.training.steps import Program
from tests.builders import make_data, make_plan


@pytest.mark.parametrize("label", ["binary", "multiclass", "regression"])
def test_any_plan_can_be_warmed_up(label: str) -> None:
    """Whatever is predicted, and without a plan too: a node must not fail before it has dialled."""
    warm_up(make_plan(label))
    warm_up(None)


def test_rows_read_early_serve_their_plan_only() -> None:
    """Another plan bins the rows otherwise, so they are read for it anew."""
    asked: list[Plan] = []
    first, second = make_plan(), make_plan(model={"n_trees": 7})

    def load(plan: Plan) -> SiteData:
        asked.append(plan)
        return make_data(plan, 5, 1)

    early = read_early(load, first)
    assert early(first) is early(first)
    assert asked == [first]
    early(second)
    assert asked == [first, second]
    assert read_early(load, None) is load


def test_rows_that_do_not_fit_are_refused_before_anyone_is_dialled() -> None:
    """A table that cannot be used is for its owner to hear of at once; whether it fits is told to nobody else."""

    def load(plan: Plan) -> SiteData:
        raise DataError("These rows do not fit.", code="data-outside-plan")

    plan = make_plan()
    with pytest.raises(DataError):
        read_early(load, plan)


def test_a_party_rehearses_the_first_exchanges_only() -> None:
    """Enough queries to have all code loaded, in order; a long run is not gone through before it begins."""
    asked: list[Query] = []
    rehearse(TrainingTask(make_plan(model={"n_trees": 50, "batch_size": 1})), asked.append)
    assert [query.purpose.round for query in asked] == [0, 1, 2]


def test_ctrl_c_at_the_end_of_a_rehearsal_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that has just been started and is told to end does: Python drops what a destructor raises."""
    begin = TrainingTask.program

    def interrupted(task: TrainingTask) -> Program:
        try:
            return (yield from begin(task))
        except GeneratorExit:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(TrainingTask, "program", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rehearse(TrainingTask(make_plan(model={"n_trees": 50, "batch_size": 1})))


def test_a_run_that_no_node_would_hold_is_not_rehearsed() -> None:
    """Its first batch alone could fill the coordinator's memory before any site has refused it."""
    asked: list[Query] = []
    plan = make_plan(model={"n_trees": 10_000, "batch_size": "all", "max_depth": 8})
    rehearse(TrainingTask(plan), asked.append)
    assert asked == []


def test_chosen_rows_run_the_code_that_a_whole_table_does() -> None:
    """Rows of one of several sites lie in another order in memory, and their first fit would compile kernels for it."""
    plan = make_plan()
    whole = make_data(plan, 30, 1)
    some = SiteData(whole.codes[:, ::2][:, np.arange(10)], whole.labels[:10])
    assert not some.codes.flags.c_contiguous
    node = Node("a", some, plan, resolve(plan))
    assert node.held.records.codes.flags.c_contiguous and np.array_equal(node.held.records.codes, some.codes)
