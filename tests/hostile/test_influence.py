"""A site that sends something else than its sums: what no records can add up to ends the run by name."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.app.rows import make_loader, read_rows_ahead
from hedgerow.client.node import Node, is_worse_than_constant
from hedgerow.client.node_session import WORSE_TREES, NodeRun
from hedgerow.client.setup import select_rows
from hedgerow.data.binned import SiteData
from hedgerow.errors import AggregationError, RemoteProtocolError
from hedgerow.local.training import MaskedAggregation, train
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.privacy.signal import can_compare_sites
from hedgerow.protocol.messages import RoundRequest, decode, encode
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.secagg.participant import Participant
from hedgerow.server.coordinator import RunEventKind
from hedgerow.server.release import UNCOUNTED, PlainAggregation, run_program
from hedgerow.trees.leaf_sums import SiteRecords
from tests.builders import make_data, make_plan, take
from tests.hostile.poisoning import Liar, Lie

if TYPE_CHECKING:
    from conftest import Builder, Federation

N_ROWS = 20_000


def clear_plan(n_records: int = N_ROWS, **model: Any) -> Plan:
    """A plan whose releases are not mostly noise."""
    return make_plan(model={"n_trees": 6, "structure_seed": 3, **model}, n_records=n_records, epsilon=8.0)


def nodes_of(plan: Plan, n_sites: int, times: int) -> list[Any]:
    """Honest sites of one size, and `liar` with as many rows as they have on average."""
    data = make_data(plan, N_ROWS, 1)
    owner = np.arange(N_ROWS) % n_sites
    names = [f"honest-{number:02d}" for number in range(1, n_sites)] + ["liar"]
    settings = resolve(plan)
    nodes = [
        Node(name, take(data, np.flatnonzero(owner == number)), plan, settings) for number, name in enumerate(names)
    ]
    return [*nodes[:-1], Liar(nodes[-1], Lie("a multiple", times))]


@pytest.mark.parametrize("is_masked", [False, True])
def test_one_site_of_fifty_cannot_turn_the_model_round(is_masked: bool) -> None:
    """A site with 2 % of the rows that sends -100 times its sums ends the run at its first release: no model says the
    opposite of what 49 sites know. All sites of the sum are named, and nobody is accused.
    """
    plan = clear_plan()
    nodes = nodes_of(plan, 50, -100)
    sums = MaskedAggregation(nodes, plan, 6, np.random.default_rng(1).bytes, SeededNoise(1)) if is_masked else (
        PlainAggregation(nodes)
    )  # fmt: skip
    with pytest.raises(AggregationError) as caught:
        run_program(plan, program_for(plan), sums, SeededNoise(1), UNCOUNTED)
    assert caught.value.code == "release-implausible"
    assert "Round 0" in caught.value.what and "below zero" in caught.value.what
    assert all(f"honest-{number:02d}" in caught.value.what for number in range(1, 50)) and "liar" in caught.value.what


@pytest.mark.parametrize("times", [-100, -1])
def test_the_same_sites_without_the_lie_make_a_model(times: int) -> None:
    """The checks end no run for a lie that could be the truth: one site's opposite sums are that of other rows."""
    plan = clear_plan()
    n_sites = 1000 if times == -100 else 50
    run_program(plan, program_for(plan), PlainAggregation(nodes_of(plan, n_sites, times)), SeededNoise(1), UNCOUNTED)


def lie_from(federation: Federation, site: str, first: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a round on, the site's process masks its sums times a number."""
    honest = NodeRun._answer

    def answer(self: NodeRun, query: Query) -> IntVector:
        sums = honest(self, query)
        is_liar = self is federation.parties[site].session._run
        return sums * times if is_liar and query.purpose.round >= first else sums

    monkeypatch.setattr(NodeRun, "_answer", answer)
    monkeypatch.setattr("hedgerow.client.node_session.clip", lambda vector, *_: vector)


@pytest.mark.parametrize("is_lying", [True, False])
def test_owners_hear_of_a_model_that_is_against_their_rows(
    federate: Builder, monkeypatch: pytest.MonkeyPatch, is_lying: bool
) -> None:
    """One site keeps its Hessians and turns its gradients against the others': every check passes, and the model says
    the opposite of what they know. Each other site's owner hears of it, and nobody else: the run goes on.
    """
    federation: Federation = federate(4, clear_plan(4000, n_trees=14, batch_size=1))
    heard: dict[str, list[str]] = {}
    for name, party in federation.parties.items():
        party.kill()
        party.setup = dataclasses.replace(party.setup, tell=heard.setdefault(name, []).append)
        party.start()
    honest = NodeRun._answer

    def answer(self: NodeRun, query: Query) -> IntVector:
        sums = honest(self, query).copy()
        if is_lying and self is federation.parties["site-2"].session._run:
            sums[0::2] *= -8
        return sums

    monkeypatch.setattr(NodeRun, "_answer", answer)
    outcome = federation.run()
    assert outcome.ensemble.n_trees == 14 and not federation.codes("complaint")
    objecting = [name for name, said in heard.items() if said]
    assert len(objecting) >= 3 if is_lying else not objecting
    assert all("model-disagrees" in line for said in heard.values() for line in said)


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0])
def test_no_owner_hears_of_other_sites_where_noise_alone_makes_a_model_fail(
    federate: Builder, monkeypatch: pytest.MonkeyPatch, epsilon: float
) -> None:
    """All sites are honest, and the model fails at their rows because there is little signal: nobody is accused."""
    heard: list[str] = []
    worst = Counter[str]()
    look = NodeRun._look

    def watch(self: NodeRun) -> None:
        look(self)
        worst["trees in a row"] = max(worst["trees in a row"], self.node.n_worse)

    monkeypatch.setattr(NodeRun, "_look", watch)
    plan = make_plan(model={"n_trees": 30, "batch_size": 1, "structure_seed": 3}, n_records=400, epsilon=epsilon)
    federation: Federation = federate(4, plan)
    for party in federation.parties.values():
        party.kill()
        party.setup = dataclasses.replace(party.setup, tell=heard.append)
        party.start()
    assert federation.run().ensemble.n_trees == 30
    assert not [line for line in heard if "model-disagrees" in line]
    # Else this test could not fail.
    assert worst["trees in a row"] >= WORSE_TREES or epsilon > 0.05


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([200, 600, 2_000]), st.floats(0.05, 2.0), st.integers(2, 5))
def test_honest_sites_are_not_doubted(seed: int, n_records: int, epsilon: float, n_sites: int) -> None:
    """Whatever the rows, epsilon and number of sites: a model that fails at an honest site's rows has little signal."""
    plan = make_plan(model={"n_trees": 25, "batch_size": 1, "structure_seed": 3}, n_records=n_records, epsilon=epsilon)
    data, owner, own = make_data(plan, n_records, seed), np.arange(n_records) % n_sites, resolve(plan)
    nodes = [Node(f"s{each}", take(data, np.flatnonzero(owner == each)), plan, own) for each in range(n_sites)]
    most = 0

    class Watched:
        def __init__(self, node: Node) -> None:
            self.node, self.site = node, node.site

        def answer(self, query: Query) -> IntVector:
            nonlocal most
            answered = self.node.answer(query)
            most = max(most, self.node.n_worse)
            return answered

    watched = PlainAggregation([Watched(node) for node in nodes])
    run_program(plan, program_for(plan, own), watched, SeededNoise(seed), UNCOUNTED)
    assert most < WORSE_TREES or not can_compare_sites(plan)


@pytest.mark.parametrize("label", ["binary", "multiclass", "regression"])
def test_a_model_is_compared_with_its_own_mean(label: str) -> None:
    """Squares by hand, for predictions that follow the labels, that do not, and that go against them."""
    plan = make_plan(label)
    drawn = np.random.default_rng(3)
    codes = 4 if label == "multiclass" else 2
    labels = drawn.integers(-60_000, 60_000, 900) if label == "regression" else drawn.integers(0, codes, 900)
    for slope, is_worse in ((1.0, False), (0.0, False), (-1.0, True)):
        if label == "regression":
            scores = slope * labels[None]
        else:
            is_own = labels[None] == np.arange(codes)[1 if label == "binary" else 0 :, None]
            scores = 65_536 * (0.5 + slope * (is_own - 0.5))
        records = SiteRecords(np.zeros((2, 900), np.uint8), labels.astype(np.int32), scores.astype(np.int32))
        assert is_worse_than_constant(plan, records) is is_worse


def test_a_run_over_masks_ends_by_name_and_is_paid_for(federate: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six sites one sends -20 times its sums from the third round on: the run ends there, by that name for all, the
    release is in the ledger, and the operator reads which sites were in the sum.
    """
    federation: Federation = federate(6, clear_plan(6000, batch_size=1))
    lie_from(federation, "site-2", 2, -20, monkeypatch)
    outcome = federation.run()
    # The rounds before are a model.
    assert outcome.ensemble.n_trees == 2
    assert federation.session is not None and len(federation.session.run.ledger) == 3
    fault = federation.session.run.fault
    assert fault is not None and fault.code == "release-implausible" and "Round 2" in fault.what
    assert all(f"site-{number}" in fault.what for number in range(6))
    assert "release-implausible" in federation.codes(RunEventKind.SALVAGED)


def test_a_node_does_not_believe_a_coordinator_that_has_not_looked(
    federate: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that no records add up to is refused by every node that is sent it, whatever the coordinator says."""
    federation: Federation = federate(4, clear_plan(4000, batch_size=1))

    def changed(hub: Any) -> None:
        send = hub.send

        def sent(site: str, message: bytes) -> bool:
            told = decode(message)
            if isinstance(told, RoundRequest) and told.releases:
                worse = tuple(-release for release in told.releases)
                message = encode(dataclasses.replace(told, releases=worse))
            return bool(send(site, message))

        hub.send = sent

    federation.tamper = changed
    with pytest.raises(AggregationError):
        federation.run()
    failures = [failure for party in federation.parties.values() for failure in party.failures]
    assert len(failures) == 4
    for failure in failures:
        assert isinstance(failure, RemoteProtocolError) and failure.code == "release-implausible"


def test_an_evaluation_is_asked_the_same() -> None:
    """Counts of held-out rows below zero are no evaluation."""
    from hedgerow.client.node import EvaluationNode
    from hedgerow.evaluation.program import evaluate_ensemble
    from hedgerow.server.release import evaluation_context, run_evaluation

    plan = clear_plan()
    data: SiteData = make_data(plan, N_ROWS, 1)
    model = train(plan, {"a": data}, noise=SeededNoise(1))
    parts = [take(data, np.flatnonzero(np.arange(N_ROWS) % 10 == number)) for number in range(10)]
    nodes: list[Any] = [EvaluationNode(f"site-{number}", rows, plan) for number, rows in enumerate(parts)]
    nodes[3] = Liar(nodes[3], Lie("a multiple", -30))
    program = evaluate_ensemble(plan, model.ensemble, 8.0, 1e-5, len(model.ledger))
    context = evaluation_context(plan, 8.0, 1e-5, SeededNoise(2))
    with pytest.raises(AggregationError) as caught:
        run_evaluation(plan, program, PlainAggregation(nodes), SeededNoise(2), UNCOUNTED, model.ledger, context)
    assert caught.value.code == "release-implausible"


# Sites that declare how many rows they have -----------------------------------------------------------------------


def declare(federation: Federation, site: str, max_rows: int, others: int = 0) -> None:
    """The roster of every party, and the coordinator's, with the site's largest number of rows, and that of others."""
    sites = tuple(
        dataclasses.replace(each, max_rows=max_rows if each.name == site else others)
        for each in federation.roster.sites
    )
    federation.roster = dataclasses.replace(federation.roster, sites=sites)
    for party in federation.parties.values():
        party.kill()
        party.setup = dataclasses.replace(party.setup, roster=federation.roster)
        party.start()


def masked_by(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The largest entry that each site masks in a run, in the order of the roster."""
    largest: dict[str, int] = {}
    mask = Participant.mask

    def watched(self: Participant, context: Any, spec: Any, expected: Any, vectors: Any, *rest: Any) -> Any:
        name = f"site-{self.node}"
        largest[name] = max(largest.get(name, 0), int(np.abs(vectors["sum"]).max()))
        return mask(self, context, spec, expected, vectors, *rest)

    monkeypatch.setattr(Participant, "mask", watched)
    federation.run()
    return largest


def test_a_node_keeps_to_the_rows_that_its_site_declares(federate: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that was given twice, or a typing error in a query, weighs no more in the model than the rows that the
    roster says: the site's own node clips its sums, and nobody hears of it.
    """
    plan = clear_plan(4000, weight_update="averaging")
    for max_rows in (0, 50):
        federation: Federation = federate(4, plan, name=f"rows-{max_rows}")
        declare(federation, "site-1", max_rows)
        largest = masked_by(federation, monkeypatch)
        bound = next(program_for(plan)).bound
        assert (largest["site-1"] <= 50 * bound) == bool(max_rows)
        assert all(largest[f"site-{number}"] > 50 * bound for number in (0, 2, 3))
        assert not federation.codes("refused")
        monkeypatch.undo()


def test_an_owner_hears_of_too_many_rows(federate: Builder) -> None:
    """The owner, and nobody else, is told that the table is larger than the roster says; the node takes part."""
    federation: Federation = federate(4, clear_plan(400))
    declare(federation, "site-1", 99)
    heard: list[str] = []
    party = federation.parties["site-1"]
    party.kill()
    party.setup = dataclasses.replace(party.setup, plan=federation.plan, tell=heard.append)
    party.start()
    read_rows_ahead(party.setup)
    assert len(heard) == 1 and "100" in heard[0] and "99" in heard[0] and "rows-beyond-declared" in heard[0]
    read_rows_ahead(dataclasses.replace(party.setup, site="site-0", load=federation.parties["site-0"].setup.load))
    assert len(heard) == 1
    federation.run()
    assert len(heard) == 2 and not federation.codes("refused")


@pytest.mark.parametrize("n_changed", [0, 1])
def test_a_row_more_moves_one_other_row_at_most(n_changed: int) -> None:
    """Which rows are used follows from contents, not from their order: a row that comes, or is replaced, moves at most
    one other one out or in, so that the promise for its unit is that of replacing one.
    """
    drawn = np.random.default_rng(5)
    for n_rows in (5, 40, 41, 60, 200):
        rows = drawn.integers(0, 9, size=(n_rows, 4))
        other = np.concatenate([rows[n_changed:], drawn.integers(0, 9, size=(1, 4))])
        drawn.shuffle(other)
        kept = [Counter(map(tuple, table[select_rows(table.T, len(table), 40)].tolist())) for table in (rows, other)]
        assert [sum(each.values()) for each in kept] == [min(40, len(table)) for table in (rows, other)]
        assert max((kept[0] - kept[1]).total(), (kept[1] - kept[0]).total()) <= 1


def test_the_bound_of_a_sum_is_what_its_sites_declare(federate: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all sites say how many rows they have, made-up rows beyond these end the run, which four times the plan's
    number would let pass. A site that holds more than it declares does not end it.
    """
    plan = clear_plan(4000, batch_size=1)
    for times, is_declared, code in ((2, False, ""), (2, True, "release-implausible"), (1, True, "")):
        federation: Federation = federate(4, plan, name=f"declared-{times}-{is_declared}")
        if is_declared:
            declare(federation, "site-1", 500, others=1000)
        # What the liar sends beyond its rows, its own node would clip.
        lie_from(federation, "site-2", 0, times, monkeypatch)
        if code:
            with pytest.raises(AggregationError) as caught:
                federation.run()
            assert caught.value.code == code
        else:
            federation.run()
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("content", "code"), [("visits\n1\n", "data-missing-column"), ("", "data"), (None, "data-file-missing")]
)
def test_a_coordinator_hears_what_is_wrong_with_a_tables_head_and_no_more(
    federate: Builder, tmp_path: Path, content: str | None, code: str
) -> None:
    """A missing column is named by a code that helps; what depends on whether there are rows is not told."""
    federation: Federation = federate(4, clear_plan(400))
    party, table = federation.parties["site-1"], tmp_path / "a.csv"
    if content is not None:
        table.write_text(content, encoding="ascii")
    party.kill()
    party.setup = dataclasses.replace(party.setup, load=make_loader(str(table)))
    party.start()
    federation.run()
    assert federation.codes("refused") == [code]
