"""The coordinator: one event per release, refusals before anything leaves, and no model beyond the promise."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.errors import DataError, PrivacyError, RemoteProtocolError
from hedgerow.methods.registry import program_for, resolve
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.events import DiscreteGaussianEvent, UnnoisedEvent
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import Query
from hedgerow.server.release import UNCOUNTED, PlainAggregation, Releaser, run_program
from hedgerow.training.steps import Program
from hedgerow.trees.leaf_sums import LeafSums
from tests.builders import CountingNoise, make_data, make_plan, take, train


def first_query(**privacy: Any) -> Query:
    return next(program_for(make_plan(privacy=privacy)))


def test_a_release_is_the_sum_and_the_noise_of_its_event() -> None:
    """The noise that is added is the noise that is accounted for: same sigma, same length, drawn once."""
    query, noise = first_query(), CountingNoise(3)
    releaser = Releaser(noise, UNCOUNTED)
    total = np.arange(query.length)
    released = releaser.release(query, total)
    drawn = noise_of(query)
    event, sigma = drawn.event, drawn.central_sigma
    assert noise.asked == [(sigma, query.length, str(query.purpose))]
    np.testing.assert_array_equal(released - total, SeededNoise(3).sample(sigma, query.length, str(query.purpose)))
    (recorded,) = releaser.ledger
    assert recorded.event == event and recorded.sigma == sigma
    assert isinstance(event, DiscreteGaussianEvent) and event.sigma == sigma
    # In exact integers: sigma² >= multiplier² sensitivity², so the event never claims more noise than there is.
    assert sigma**2 >= query.noise_multiplier**2 * query.sensitivity_squared * (1 - 1e-12)
    assert event.noise_multiplier**2 * query.sensitivity_squared <= sigma**2


def test_a_purpose_is_released_once() -> None:
    """Two noisy answers to one question average to less noise: the second is refused before noise is drawn."""
    query, noise = first_query(), CountingNoise(3)
    releaser = Releaser(noise, UNCOUNTED)
    total = np.zeros(query.length, dtype=np.int64)
    releaser.release(query, total)
    with pytest.raises(PrivacyError, match="already released"):
        releaser.release(query, total)
    assert len(noise.asked) == 1 and len(releaser.ledger) == 1


def test_a_release_without_noise_is_written_down_as_such() -> None:
    """Without privacy the sum leaves as it is, and the ledger says infinity."""
    query, noise = first_query(epsilon=math.inf), CountingNoise(3)
    releaser = Releaser(noise, UNCOUNTED)
    total = np.arange(query.length)
    np.testing.assert_array_equal(releaser.release(query, total), total)
    assert noise.asked == [] and list(releaser.ledger.events()) == [UnnoisedEvent()]


def asking_again(program: Program) -> Program:
    """A faulty program: it asks every question twice, under a new purpose."""
    query = next(program)
    while True:
        again = dataclasses.replace(
            query, purpose=dataclasses.replace(query.purpose, subject="again " + query.purpose.subject), update=None
        )
        first = yield query
        second = yield dataclasses.replace(again, ensemble_size=query.ensemble_size + _added(query))
        try:
            query = program.send((first + second) // 2)
        except StopIteration as finished:
            return finished.value  # type: ignore[no-any-return]


def _added(query: Query) -> int:
    return 0 if query.update is None else query.update.trees.n_trees


def test_a_program_that_asks_too_much_gives_no_model() -> None:
    """The ledger is judged at the end whatever the program declared at the start: beyond the promise, no model."""
    plan = make_plan()
    node = Node("site", make_data(plan, 50, 0), plan, resolve(plan))
    with pytest.raises(PrivacyError) as caught:
        run_program(plan, asking_again(program_for(plan)), PlainAggregation([node]), SeededNoise(0), UNCOUNTED)
    assert caught.value.code == "budget-exceeded"


def test_the_report_says_what_was_done() -> None:
    """Spent at most what was asked for, one release per query, and seeded noise voids the guarantee."""
    plan = make_plan(privacy={"unit": "patient", "max_rows_per_unit": 3})
    seen: list[tuple[Query, Ledger]] = []
    settings = resolve(plan)
    nodes = [Node(str(i), make_data(plan, 20, i), plan, settings) for i in range(3)]
    outcome = run_program(
        plan, program_for(plan, settings), PlainAggregation(nodes), SeededNoise(0), UNCOUNTED,
        lambda query, ledger: seen.append((query, ledger)),
    )  # fmt: skip
    report = outcome.report
    assert 0.999 * plan.privacy.epsilon < report.epsilon <= plan.privacy.epsilon
    assert report.n_releases == len(outcome.ledger) == len(seen) == 4
    assert (report.unit, report.max_rows_per_unit, report.noise_mode) == ("patient", 3, "server")
    assert report.guarantee == "void" and any("seed" in reason for reason in report.voided_by)
    assert [len(ledger) for _, ledger in seen] == [1, 2, 3, 4]


def test_noise_from_the_sites_is_not_pretended() -> None:
    """A plan that distrusts the coordinator must not be run by one that adds the noise itself."""
    plan = make_plan(privacy={"noise": "distributed"})
    with pytest.raises(PrivacyError, match="distributed"):
        train(plan, [make_data(plan, 10, 0)])


class Answering:
    """A site that answers whatever it is told to."""

    site = "odd"

    def __init__(self, answer: NDArray[Any]) -> None:
        self._answer = answer

    def answer(self, query: Query) -> NDArray[Any]:
        return self._answer


@pytest.mark.parametrize("shape", [(), (1,), (7,)])
def test_an_answer_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    """numpy would stretch a single number over the whole vector: every leaf would then hold that site's sum."""
    with pytest.raises(RemoteProtocolError, match="odd"):
        PlainAggregation([Answering(np.ones(shape, dtype=np.int64))]).sum_answers(first_query())


def test_an_answer_of_another_type_is_refused() -> None:
    """Floating-point sums depend on their order; only integers keep the promise of one model."""
    query = first_query()
    with pytest.raises(RemoteProtocolError, match="float64"):
        PlainAggregation([Answering(np.ones(query.length))]).sum_answers(query)


def test_a_node_that_lost_a_round_refuses() -> None:
    """Scores under another model than the coordinator's would be summed as if they were under the same."""
    plan = make_plan()
    settings = resolve(plan)
    node, late = (Node(name, make_data(plan, 20, 0), plan, settings) for name in ("a", "b"))
    program = program_for(plan, settings)
    query = next(program)
    for _ in range(2):
        query = program.send(node.answer(query))
    with pytest.raises(RemoteProtocolError, match="builds on"):
        late.answer(query)


def test_a_node_that_only_takes_updates_stays_in_step() -> None:
    """A site that missed the deadline of a round takes in its update and can answer the next query like the others."""
    plan = make_plan(model={"n_trees": 6})
    settings = resolve(plan)
    data = make_data(plan, 50, 0)
    node, late = (Node(name, data, plan, settings) for name in ("a", "b"))
    program = program_for(plan, settings)
    query = next(program)
    for number in range(5):
        answer = node.answer(query)
        if number % 2:
            late.finish(query)
        else:
            np.testing.assert_array_equal(late.answer(query), answer)
        query = program.send(answer)
    np.testing.assert_array_equal(late.answer(query), node.answer(query))


def test_an_unknown_question_is_refused() -> None:
    """A node answers the kinds it knows; a newer coordinator's question is an error, not an empty answer."""
    plan = make_plan()
    node = Node("site", make_data(plan, 5, 0), plan, resolve(plan))
    known = first_query()
    plain = Query(**{field.name: getattr(known, field.name) for field in dataclasses.fields(Query)})
    with pytest.raises(RemoteProtocolError) as refused:
        node.answer(plain)
    assert refused.value.code == "unknown-query-kind"


@pytest.mark.parametrize("label", ["binary", "multiclass", "regression", "count", "survival"])
def test_rows_outside_the_plan_never_reach_the_kernels(label: str) -> None:
    """The kernels look labels and codes up without asking: a label of 7 would read foreign memory into the sum."""
    plan = make_plan(label)
    good = make_data(plan, 10, 0)
    settings = resolve(plan)
    for wrong in (-(2**16) - 1, 2**16 + 1):
        labels = good.labels.copy()
        labels[3] = wrong
        with pytest.raises(DataError, match="label"):
            Node("site", SiteData(good.codes, labels), plan, settings)
    codes = good.codes.copy()
    codes[2, 5] = 200  # the region has five codes
    with pytest.raises(DataError, match="region"):
        Node("site", SiteData(codes, good.labels), plan, settings)
    for odd in (good.codes[:3], good.codes[:, :9], good.codes.astype(np.uint16)):
        with pytest.raises(DataError):
            Node("site", SiteData(odd, good.labels), plan, settings)


def run(model: dict[str, Any], data: SiteData) -> tuple[list[Query], str]:
    """The queries of a run, and its ledger as text."""
    plan = make_plan(model=model)
    queries: list[Query] = []
    settings = resolve(plan)
    outcome = run_program(
        plan, program_for(plan, settings), PlainAggregation([Node("s", data, plan, settings)]), SeededNoise(5),
        UNCOUNTED, lambda query, _: queries.append(query),
    )  # fmt: skip
    return queries, outcome.ledger.to_json()


@pytest.mark.parametrize("interaction", ["cyclical", "random", "adaptive"])
@pytest.mark.parametrize("candidates", ["adaptive", "uniform", "iterative_hessian"])
def test_neighbouring_data_change_nothing_but_the_released_numbers(candidates: str, interaction: str) -> None:
    """One record more, same plan, same noise: rounds, purposes, sizes and the first structures stay what they were."""
    model = {"split_candidates": candidates, "interaction": interaction, "interaction_size": 1, "n_trees": 6}
    data = make_data(make_plan(model=model), 61, 4)
    more, more_ledger = run(model, data)
    fewer, fewer_ledger = run(model, take(data, np.arange(60)))
    assert [str(query.purpose) for query in more] == [str(query.purpose) for query in fewer]
    leaf_sums = [(a, b) for a, b in zip(more, fewer, strict=True) if isinstance(a, LeafSums)]
    assert [a.length for a, _ in leaf_sums] == [b.length for _, b in leaf_sums]
    assert [a.bound for a in more] == [b.bound for b in fewer]
    first = [next(query for query in queries if isinstance(query, LeafSums)) for queries in (more, fewer)]
    if candidates != "iterative_hessian":  # there a released histogram comes first
        for name in ("feature", "goes_left", "threshold"):
            assert getattr(first[0].trees, name).tobytes() == getattr(first[1].trees, name).tobytes()
    # The ledger's words, their order and the first release's numbers are those of the plan.
    strip = [text.replace(".", "").split('"sensitivity"')[0] for text in (more_ledger, fewer_ledger)]
    assert strip[0] == strip[1]


def test_no_data_at_all_trains_too() -> None:
    """Sites without a record answer zeros; that nobody has data must not show as an error either."""
    plan = make_plan()
    empty = make_data(plan, 0, 0)
    outcome = train(plan, [empty, empty])
    assert outcome.ensemble.n_trees == 4
    assert train(plan, []).ledger.to_json() == outcome.ledger.to_json()
