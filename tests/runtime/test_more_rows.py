"""More rows than the plan declares: nothing wraps, no exact sum decides anything, and every engine does the same."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hedgerow.client.budget import BudgetBook
from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.errors import AggregationError, PlanError, UsageError
from hedgerow.local.training import evaluate_federated, train, without_secure_aggregation
from hedgerow.methods.dp_xgboost.trees import SplitSelection, candidate_scores
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import MAX_SCORE, IntVector, Query
from hedgerow.server.journal import Journal
from hedgerow.server.release import UNCOUNTED, Releaser, run_program
from tests.builders import make_data, make_plan, take

if TYPE_CHECKING:
    from conftest import Builder, Federation


ENDS = ("sum-out-of-range", "release-implausible")
"""How a run over too many rows may end: an entry is too large, or a total is."""


def identical(plan: Plan, n: int) -> SiteData:
    """Rows that are all alike, of class 1: the largest sums that there can be, all in one leaf of every tree."""
    one = make_data(plan, 1, 3)
    return SiteData(np.repeat(one.codes, n, axis=1), np.ones(n, dtype=np.int32))


def parts_of(data: SiteData, n_sites: int) -> dict[str, SiteData]:
    owner = np.arange(data.n_records) % n_sites
    return {f"s{site}": take(data, np.flatnonzero(owner == site)) for site in range(n_sites)}


def result_of(plan: Plan, sites: dict[str, SiteData], noise: Any = None) -> Any:
    """The model, or the code of what ended the run."""
    try:
        return train(plan, sites, noise=noise or SeededNoise(1))
    except AggregationError as fault:
        return fault.code


def give(federation: Federation, site: str, rows: SiteData) -> None:
    """Start a site's node again with other rows."""
    party = federation.parties[site]
    party.kill()
    federation.data[site] = rows
    party.setup = dataclasses.replace(party.setup, load=lambda _: rows)
    party.start()


# The word, and its end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_rows", [131_071, 131_072, 3 * 131_072])
def test_one_record_more_than_declared_does_not_end_the_run(n_rows: int) -> None:
    """With 131,071 records declared a sum of 131,072 fills a word of 32 bits: a run that ends there tells one record
    apart with certainty, and a sum that wraps there calls every row of class 1 one of class 0.
    """
    model = {"n_trees": 1, "max_depth": 1, "weight_update": "averaging"}
    plan = make_plan(model=model, privacy={"n_records": 131_071, "epsilon": 1.0})
    data = identical(plan, n_rows)
    masked = result_of(plan, parts_of(data, 3))
    assert not isinstance(masked, str)
    assert masked.ensemble.probabilities(data.codes[:, :1])[0, 1] > 0.99
    clear = train(without_secure_aggregation(plan), {"all": data}, noise=SeededNoise(1))
    assert clear.ensemble.fitted.values.tobytes() == masked.ensemble.fitted.values.tobytes()


@pytest.mark.parametrize("noise", ["server", "distributed", "local"])
@pytest.mark.parametrize("times", [4.5, 100])
def test_every_engine_and_every_number_of_sites_does_the_same(noise: str, times: float) -> None:
    """Far more rows than declared give the model of these rows or end the run by name, never something else, and it is
    the same for one site in the clear and for sites behind masks.
    """
    if noise == "distributed":
        ends = [1.0, 30.0]
    else:
        ends = [0.05, 1.0, 30.0]
    for epsilon in ends:
        plan = make_plan(
            model={"n_trees": 2, "max_depth": 1, "weight_update": "averaging"},
            privacy={"n_records": 2000, "epsilon": epsilon, "noise": noise},
        )
        data = identical(plan, int(2000 * times))
        found = [result_of(plan, parts_of(data, n_sites)) for n_sites in (2, 3, 7)]
        for each in found:
            if isinstance(each, str):
                assert each in ENDS and times > 4
            elif epsilon >= 1:
                assert each.ensemble.probabilities(data.codes[:, :1])[0, 1] > 0.5
        if noise == "server":
            clear = result_of(without_secure_aggregation(plan), {"all": data})
            for each in found:
                assert type(each) is type(clear)
                assert isinstance(each, str) or each.ensemble.fitted.values.tobytes() == (
                    clear.ensemble.fitted.values.tobytes()
                )


def test_up_to_four_times_the_declared_rows_are_a_run_like_any_other() -> None:
    """What the documents promise, at the worst: all rows alike and in one leaf, one site or many, any kind of noise."""
    for noise in ("server", "distributed", "local"):
        plan = make_plan(
            model={"n_trees": 2, "max_depth": 1, "weight_update": "averaging"},
            privacy={"n_records": 500, "epsilon": 1.0, "noise": noise},
        )
        data = identical(plan, 2000)
        for n_sites in (2, 5):
            found = result_of(plan, parts_of(data, n_sites))
            assert not isinstance(found, str), (noise, n_sites)


# What decides ----------------------------------------------------------------------------------------------------


class Chosen(SeededNoise):
    """Noise that makes a release whatever the test wants it to be."""

    def __init__(self, wanted: int, exact: int) -> None:
        super().__init__(1)
        self.wanted, self.exact = wanted, exact

    def sample(self, sigma: int, length: int, purpose: str) -> IntVector:
        return np.full(length, self.wanted - self.exact, dtype=np.int64)


class Sum:
    """One sum, whatever is asked."""

    cohort = None
    n_nodes = 3
    sites = None

    def __init__(self, value: int) -> None:
        self.value = value

    def sum_answers(self, query: Query) -> IntVector:
        return np.full(query.length, self.value, dtype=np.int64)


@pytest.mark.parametrize("exact", [0, 10**6, 10**9, -(10**12)])
@pytest.mark.parametrize(("wanted", "ends"), [(0, False), (10**6, False), (10**10, True), (-(10**10), True)])
def test_whether_a_run_ends_is_a_function_of_the_release(exact: int, wanted: int, ends: bool) -> None:
    """Two exact sums under one release: nobody can tell them apart, for the run goes on or ends for both alike."""
    plan = make_plan(model={"n_trees": 1})
    program = program_for(plan, resolve(plan))
    if ends:
        with pytest.raises(AggregationError) as caught:
            run_program(plan, program, Sum(exact), Chosen(wanted, exact), UNCOUNTED)
        assert caught.value.code == "sum-out-of-range"
    else:
        run_program(plan, program, Sum(exact), Chosen(wanted, exact), UNCOUNTED)


class Shift(SeededNoise):
    """Noise with a constant in it."""

    def __init__(self, constant: int) -> None:
        super().__init__(1)
        self.constant = constant

    def sample(self, sigma: int, length: int, purpose: str) -> IntVector:
        return super().sample(sigma, length, purpose) + self.constant


def test_a_federation_that_ends_so_has_paid_for_it(federate: Builder, tmp_path: Any) -> None:
    """That a run ended is a fact about its release: the coordinator has written it down with its cost, every node has
    charged it, and nobody can begin again as if nothing had been said.
    """
    federation: Federation = federate(4, make_plan(), noise=Shift(3 * 2**30))
    with pytest.raises(AggregationError) as caught:
        federation.run()
    assert caught.value.code == "sum-out-of-range"
    assert len(federation.session.run.ledger) == 1
    lines = []
    for party in federation.parties.values():
        book = BudgetBook(party.folder / "budget.db")
        lines += book.lines()
        book.close()
    assert len(lines) == 4
    for line in lines:
        assert line.status == "stopped" and len(line.events) == 1 and line.epsilon(1e-5) > 0
    journal = Journal(federation.folder / federation.journal)
    ((content,),) = journal._database.rows("select content from releases")
    # In a word of 32 bits, in which the sum was taken: else a sum at the end of a word would stand out of the noise.
    assert 2**29 < max(abs(np.frombuffer(content, dtype="<i8"))) < 2**31
    with pytest.raises(UsageError) as closed:
        journal.load(TrainingTask(federation.plan), federation.roster)
    assert closed.value.code == "journal-given-up"
    journal.close()


def test_it_is_one_write_that_ends_a_run(federate: Builder, killed: type[BaseException]) -> None:
    """A coordinator that dies in between does not come back to go on from garbage: at every write it either asks again
    for the same sum or knows that the run is over.
    """
    for kill_after in range(1, 100):
        federation: Federation = federate(4, make_plan(), noise=Shift(2**30), name=f"killed-{kill_after}")
        was_killed = False
        try:
            federation.run(kill_after)
        except killed:
            was_killed = True
        except AggregationError as fault:
            assert fault.code == "sum-out-of-range"
        if was_killed:
            with pytest.raises((AggregationError, UsageError)) as caught:
                federation.run()
            assert caught.value.code in ("sum-out-of-range", "journal-given-up")
        federation.close()
        if not was_killed:
            return
    raise AssertionError("the run never ended")


class Opposite(SeededNoise):
    """Noise that takes an exact sum away."""

    def __init__(self, exact: IntVector) -> None:
        super().__init__(1)
        self.exact = exact

    def sample(self, sigma: int, length: int, purpose: str) -> IntVector:
        return -self.exact


def test_an_exact_sum_beyond_the_bound_does_not_end_a_federation(federate: Builder) -> None:
    """Noise may bring a sum back within the bound: then nobody hears that it was outside without the noise."""
    plan = make_plan(
        model={"n_trees": 1, "max_depth": 1, "weight_update": "averaging"}, privacy={"n_records": 1, "epsilon": 100.0}
    )
    settings = resolve(plan)
    query = next(program_for(plan, settings))
    federation: Federation = federate(4, plan)
    give(federation, "site-0", identical(plan, 3000))
    exact = sum(Node(site, data, plan, settings).answer(query) for site, data in federation.data.items())
    with pytest.raises(AggregationError) as caught:
        federation.run()
    assert caught.value.code == "sum-out-of-range"
    again: Federation = federate(4, plan, noise=Opposite(exact), name="again")
    give(again, "site-0", identical(plan, 3000))
    again.run()
    assert not again.codes("refused")


def test_an_evaluation_asks_the_same_of_its_releases() -> None:
    """Counts over far more held-out rows than the plan declares end the evaluation by name."""
    plan = make_plan(privacy={"n_records": 50})
    model = train(plan, {"a": make_data(plan, 50, 1)}, noise=SeededNoise(1))
    held_out = {"a": identical(plan, 40_000)}
    with pytest.raises(AggregationError) as caught:
        evaluate_federated(model, held_out, epsilon=8.0, noise=SeededNoise(2))
    assert caught.value.code == "sum-out-of-range"


# Choices from exact sums -----------------------------------------------------------------------------------------


def pure_plan(**own: Any) -> Plan:
    table = make_plan().to_dict()
    return Plan.from_dict(
        {
            **table,
            "privacy": {**table["privacy"], "accountant": "pure", "n_records": 20, "epsilon": 5.0},
            "model": {"algorithm": "dp-xgboost", "n_trees": 1, "max_depth": 2, "n_candidates": 5},
            "dp_xgboost": {"count_weight": 4, "sketch_rounds": 0, "sketch_share": 0, **own},
        }
    )


def chosen_from(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> list[tuple[SplitSelection, IntVector]]:
    """The exact sums that a run's choices were computed from."""
    seen: list[tuple[SplitSelection, IntVector]] = []
    choose = Releaser._choose

    def watched(self: Releaser, query: SplitSelection, total: IntVector, purpose: str) -> IntVector:
        seen.append((query, total))
        return choose(self, query, total, purpose)

    monkeypatch.setattr(Releaser, "_choose", watched)
    try:
        federation.run()
    except AggregationError as fault:
        assert fault.code == "sum-out-of-range"
    monkeypatch.undo()
    return seen


def test_a_site_of_eighty_times_the_declared_rows_moves_no_gain_further_than_claimed(
    federate: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gain is computed from several entries of a sum. Were they clipped one by one, a record would move it by more
    than its claimed range; so they are those of whole records, however many rows a site has.
    """
    plan = pure_plan()
    random = np.random.default_rng(5)
    many = make_data(plan, 1600, 1)
    worst = 0.0
    for label in (0, 1):
        for trial in range(3):
            alike = int(random.integers(1600))
            one = take(many, np.array([alike]))
            one = SiteData(one.codes, np.array([label], dtype=np.int32))
            full = SiteData(many.codes, np.full(1600, trial % 2, dtype=np.int32))
            found = []
            for extra in (0, 1):
                rows = SiteData(
                    np.concatenate([full.codes, one.codes], axis=1)[:, : 1600 + extra],
                    np.concatenate([full.labels, one.labels])[: 1600 + extra],
                )
                federation: Federation = federate(3, plan, name=f"{label}-{trial}-{extra}")
                give(federation, "site-0", rows)
                (query, total), *_ = chosen_from(federation, monkeypatch)
                settings = resolve(plan)
                nodes = [Node(site, data, plan, settings) for site, data in federation.data.items()]
                np.testing.assert_array_equal(total, sum(node.answer(query) for node in nodes))
                found.append(candidate_scores(query, total))
                federation.close()
            for (places, before), (same, after) in zip(*found, strict=True):
                assert (places == same).all()
                moved = after - before
                if len(moved):
                    worst = max(worst, int(moved.max()) - int(moved.min()), int(abs(moved).max()))
    assert 0 < worst <= query.pure.sensitivity


def test_no_lie_of_a_site_widens_the_range_of_gains() -> None:
    """A site that sends gradients without records would let another site's record move a gain without limit; one that
    places the others' count at the end of a word would learn it exactly. Neither costs more than half of the claim.
    """
    plan = pure_plan()
    settings = resolve(plan)
    data = make_data(plan, 40, 1)
    program = program_for(plan, settings)
    query = next(program)
    assert isinstance(query, SplitSelection)
    random = np.random.default_rng(1)
    for trial in range(60):
        lie = random.integers(-(2**62), 2**62, query.length) >> int(random.integers(0, 60))
        if trial % 2:
            lie[1::2] = lie[1::2] >> 30
        if trial % 3 == 0:
            lie[:2] = 2**63 - 1 - random.integers(0, 5000, 2)
        for row in range(0, 40, 13):
            own = Node("n", take(data, np.array([row])), plan, settings).answer(query)
            with np.errstate(over="ignore"):
                before, after = candidate_scores(query, lie), candidate_scores(query, lie + own)
            for (_, first), (_, second) in zip(before, after, strict=True):
                if len(first):
                    moved = second - first
                    assert 2 * (int(moved.max()) - int(moved.min())) <= 3 * query.pure.sensitivity


def test_no_lie_of_a_site_makes_a_choice_fail() -> None:
    """Gains were cut off at twice what the draw takes, and beyond that a run ended: whether it did told of one record
    exactly. A choice is drawn from whatever sums there are.
    """
    plan = pure_plan()
    settings = resolve(plan)
    query = next(program_for(plan, settings))
    assert isinstance(query, SplitSelection)
    own = Node("n", make_data(plan, 40, 1), plan, settings).answer(query)
    for power in range(30, 63):
        for cell in range(0, min(query.length, 40), 2):
            lie = np.zeros_like(own)
            lie[cell], lie[cell + 1] = 2**63 - 2**40, 2**power
            with np.errstate(over="ignore"):
                total = own + lie
            scores = [found for _, found in candidate_scores(query, total) if len(found)]
            assert all(found.max() <= MAX_SCORE for found in scores)
            assert len(Releaser(SeededNoise(1), UNCOUNTED).release(query, total)) == query.release_length


def test_a_plan_that_no_word_holds_is_refused_before_anyone_trains() -> None:
    """By the name of the field, for whoever starts the run; no node has been asked anything by then."""
    plan = make_plan(privacy={"n_records": 10**15, "epsilon": 8.0, "unit": "p", "max_rows_per_unit": 1000})
    with pytest.raises(PlanError) as refused:
        train(plan, {"a": make_data(plan, 20, 1)}, noise=SeededNoise(1))
    assert refused.value.code == "plan-sums-too-large"
