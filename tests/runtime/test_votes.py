"""Votes of sites: one bit each, with noise of its own, drawn once, seen by all, and changed by nobody unnoticed."""

from __future__ import annotations

import dataclasses
import math
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.client.node import Node, cast_vote
from hedgerow.client.node_session import NodeRun
from hedgerow.errors import AggregationError, PlanError, RemoteProtocolError
from hedgerow.local.training import train
from hedgerow.methods.registry import resolve
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import TrainingTask, ensemble_bytes
from hedgerow.methods.votes import VOTE_BOUND, SiteVotes, ask_vote, find_power
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import compute_account, get_accountant
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.groups import combine, pack
from hedgerow.protocol.messages import NodeState, RunState
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.protocol.votes import THRESHOLD, Tally, Vote, compute_power, list_vote_rounds
from hedgerow.secagg.messages import Header, Manifest, Roster, Site, UnmaskRequest, header_hash
from hedgerow.secagg.transitions import Refusal
from hedgerow.secagg.view import split_members
from hedgerow.server import coordinator
from hedgerow.server.coordinator import RunEventKind
from tests.builders import CountingNoise, make_data, make_plan, take

if TYPE_CHECKING:
    from conftest import Builder, Federation

N_SITES, N_GROUPS, N_TREES = 12, 3, 6
ROUNDS = (2, 4, 5)


def voting_plan(noise: str = "server", epsilon: float = 40.0, **model: Any) -> Plan:
    """A small plan over three groups whose sites vote."""
    own = {"n_trees": N_TREES, "batch_size": 1, "structure_seed": 5, **model}
    return make_plan(model=own, n_records=1200, epsilon=epsilon, noise=noise, groups=N_GROUPS, votes=True)


def tail_of(federation: Federation, number: int) -> list[int]:
    """The votes behind a release."""
    assert federation.session is not None
    return [int(vote) for vote in federation.session.run.releases[number][-N_SITES:]]


def parts_of(federation: Federation) -> tuple[tuple[int, ...], ...]:
    """The nodes of each group."""
    return split_members(federation.roster, range(N_SITES), N_GROUPS, b"")


# When, and what it costs --------------------------------------------------------------------------------------------


@given(st.integers(1, 5000))
def test_sites_vote_after_each_third_and_at_latest_in_the_last_round(n_rounds: int) -> None:
    """A model that is turned round early is told early, and no vote is without a vector that carries it."""
    rounds = list_vote_rounds(n_rounds)
    assert all(0 < number < n_rounds for number in rounds) and len(rounds) <= 3
    if n_rounds >= 6:
        assert rounds == (-(-n_rounds // 3), -(-2 * n_rounds // 3), n_rounds - 1)


@pytest.mark.parametrize("noise", ["server", "distributed"])
def test_what_votes_cost_is_planned_charged_and_within_the_promise(federate: Builder, noise: str) -> None:
    """The schedule, the coordinator's ledger and every owner's book have the same events, and all keep epsilon."""
    plan = voting_plan(noise)
    federation: Federation = federate(N_SITES, plan, noise=SeededNoise(1))
    outcome, votes = federation.run(), TrainingTask(plan).schedule.votes
    assert votes is not None
    cast = [release for release in outcome.ledger if release.is_vote]
    assert [release.round for release in cast] == list(ROUNDS)
    assert {release.event for release in cast} == {noise_of(votes.query).event}
    gdp, delta = get_accountant("gdp"), plan.privacy.delta
    charged = gdp.epsilon([release.event for release in cast], delta)
    planned = gdp.epsilon([votes.event], delta)
    assert planned * (1 - 1e-4) <= charged <= planned
    whole = compute_account("gdp", list(outcome.ledger.events()), delta).epsilon
    assert whole <= plan.privacy.epsilon
    for party in federation.parties.values():
        assert party.book is not None and party.store is not None
        (run_id,) = party.store.run_ids()
        spent = party.store.spent(run_id)
        assert spent is not None and len(spent) == N_TREES + len(ROUNDS)
        assert compute_account("gdp", spent, delta).epsilon >= whole * (1 - 1e-9)


def test_plans_without_votes_are_written_noised_and_released_as_before() -> None:
    """Nothing that was agreed on changes: no line, no share of the noise, no entry behind a release."""
    plan = make_plan(model={"n_trees": 6}, n_records=1200, groups=3)
    task = TrainingTask(plan)
    assert "votes" not in plan.to_dict()["federation"] and task.schedule.votes is None
    with_line = Plan.from_dict({**plan.to_dict(), "federation": {**plan.to_dict()["federation"], "votes": False}})
    assert with_line.digest == plan.digest
    replica = Replica(task, N_SITES)
    while replica.query is not None:
        assert replica.vote is None and replica.release_length == 3 * (1 + replica.query.length)
        replica.feed(pack({g: np.ones(replica.query.length, np.int64) for g in range(3)}, {0: 1, 1: 1, 2: 1},
                          replica.query.length, 3))  # fmt: skip
    voting = TrainingTask(Plan.from_dict({**plan.to_dict(), "federation": {"groups": 3, "votes": True}}))
    more = voting.settings.noise_multiplier / task.settings.noise_multiplier
    assert 1 / math.sqrt(0.98) * 0.999 < more < 1 / math.sqrt(0.98) * 1.001


@pytest.mark.parametrize(
    ("label", "changes"),
    [
        ("binary", {}),
        ("regression", {"groups": 3}),
        ("count", {"groups": 3}),
        ("survival", {"groups": 3}),
        ("binary", {"groups": 3, "privacy": {"epsilon": math.inf}}),
    ],
)
def test_votes_are_refused_where_they_could_say_nothing_or_hide_nothing(label: str, changes: dict[str, Any]) -> None:
    """They need groups, whose reference they are, classes, and noise."""
    with pytest.raises(PlanError) as refused:
        make_plan(label, votes=True, n_records=1200, **changes)
    assert "federation.votes" in str(refused.value)


# What one site says --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["binary", "multiclass"])
@given(data=st.data())
def test_one_row_moves_what_a_site_asks_itself_by_no_more_than_its_bound(label: str, data: st.DataObject) -> None:
    """The noise is made for it: whatever the scores, labels and other rows are."""
    plan = make_plan(label, n_records=1200, groups=3, votes=True)
    rows = make_data(plan, 12, data.draw(st.integers(0, 50)))
    node = Node("one", rows, plan, resolve(plan))
    scores = node.held.records.scores
    drawn = data.draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=scores.size, max_size=scores.size))
    scores[:] = np.array(drawn, dtype=np.int32).reshape(scores.shape)
    asked = voted(plan)
    whole, row = asked.answer(node.held), data.draw(st.integers(0, 11))
    without = asked.answer(node.held.only(np.arange(12) != row))
    assert np.abs(whole - without).max() <= VOTE_BOUND == asked.bound
    assert abs(int(whole.max()) - int(without.max())) <= VOTE_BOUND
    assert asked.sensitivity_squared == VOTE_BOUND**2


def test_the_bound_is_reached() -> None:
    """A looser one would waste noise, a tighter one would promise too much: a sure and wrong chance adds all of it."""
    plan = make_plan(n_records=1200, groups=3, votes=True)
    node = Node("one", make_data(plan, 1, 3), plan, resolve(plan))
    node.held.records.scores[:] = np.where(node.held.records.labels == 1, -(2**30), 2**30)
    assert voted(plan).answer(node.held).max() == VOTE_BOUND


def voted(plan: Plan) -> SiteVotes:
    """The question of a plan's votes, before any tree."""
    votes = TrainingTask(plan).schedule.votes
    assert votes is not None
    return dataclasses.replace(ask_vote(votes, votes.query), ensemble_size=0)


def test_units_of_several_rows_have_as_much_more_noise() -> None:
    """What is protected is a unit: all its rows at its one site."""
    units: list[dict[str, Any]] = [{}, {"unit": "who", "max_rows_per_unit": 5}]
    one, five = (TrainingTask(make_plan(n_records=1200, groups=3, votes=True, **own)).schedule.votes for own in units)
    assert one is not None and five is not None
    assert five.query.sensitivity_squared == 25 * one.query.sensitivity_squared
    assert noise_of(five.query).sigma >= 4.9 * noise_of(one.query).sigma


@given(st.integers(-(2**40), 2**40), st.integers(0, 2**32))
def test_a_vote_is_the_noisy_number_against_the_threshold_and_nothing_else(total: int, seed: int) -> None:
    """A bit that followed from an exact count would be no private release."""
    asked = voted(make_plan(n_records=1200, groups=3, votes=True))
    sigma, sums = noise_of(asked).central_sigma, np.array([total - 5, total, total - 1], dtype=np.int64)
    (drawn,) = SeededNoise(seed).sample(sigma, 1, f"{asked.purpose}/vote of one")
    objects = total + int(drawn) > THRESHOLD * sigma
    assert cast_vote(asked, sums, "one", SeededNoise(seed)) == (Vote.OBJECTS if objects else Vote.AGREES)


def test_what_a_node_counts_exactly_for_its_owner_reaches_no_vote(
    federate: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The private count of trees that are worse than a constant may be anything: the same bits leave."""
    told = []
    for number, n_worse in enumerate((0, 1000)):
        monkeypatch.setattr(Node, "_count_update", count_updates(n_worse))
        federation: Federation = federate(N_SITES, voting_plan(), name=f"worse-{number}")
        federation.run()
        told.append([tail_of(federation, number) for number in ROUNDS])
    assert told[0] == told[1] and {1} <= {vote for votes in told[0] for vote in votes}


def count_updates(n_worse: int) -> Any:
    """A node's own count of updates that says this many were worse."""

    def count(self: Node, query: Query) -> None:
        self.n_worse = n_worse
        self._ensemble_size += 0 if query.update is None else query.update.trees.n_trees

    return count


def test_sites_that_declare_too_few_rows_abstain(federate: Builder) -> None:
    """What they said would be noise alone; that they abstain follows from public numbers."""
    plan = voting_plan(epsilon=0.5)
    federation: Federation = federate(N_SITES, plan, must_start=False)
    sites = tuple(Site(site.name, site.key, 100 if at else 100_000) for at, site in enumerate(federation.roster.sites))
    federation.roster = Roster(federation.roster.coordinator, sites)
    for party in federation.parties.values():
        party.setup = dataclasses.replace(party.setup, roster=federation.roster)
        party.start()
    federation.run()
    for number in ROUNDS:
        first, *others = tail_of(federation, number)
        assert first != Vote.ABSTAINS and set(others) == {Vote.ABSTAINS}


# Once, and by nobody else --------------------------------------------------------------------------------------------


def test_a_restart_makes_no_second_noise(federate: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two draws over the same rows would be two releases, of which one is charged: what was said is said again."""
    federation: Federation = federate(N_SITES, voting_plan(), must_start=False)
    # Of two groups that need all their sites: the round waits for both to come back.
    federation.plan = plan = dataclasses.replace(
        federation.plan, federation=dataclasses.replace(federation.plan.federation, min_sites=4)
    )
    noise, struck = CountingNoise(9), set[tuple[str, int]]()
    names = [f"site-{min(part)}" for part in parts_of(federation)[:2]]
    for party in federation.parties.values():
        party.setup = dataclasses.replace(party.setup, plan=plan, noise=noise)
        party.start()
    kind = type(party)
    record, pump = NodeRun._record_step, kind.pump

    def strike(self: NodeRun, *given: Any) -> bytes:
        message, place = record(self, *given), (self._setup.site, self.replica.n_releases)
        if place[0] in names and place[1] in {*self._votes} & {*ROUNDS[:2]} and place not in struck:
            # On the disk, and not sent. The slot is given up, and the round asked for again.
            struck.add(place)
            raise KeyboardInterrupt
        return message

    def restart(self: Any) -> bool:
        try:
            return bool(pump(self))
        except KeyboardInterrupt:
            self.kill()
            self.start()
            return True

    monkeypatch.setattr(NodeRun, "_record_step", strike)
    monkeypatch.setattr(kind, "pump", restart)
    federation.run()
    assert struck == {(name, number) for name in names for number in ROUNDS[:2]}
    assert federation.codes("abandoned")
    drawn = [purpose for _, _, purpose in noise.asked if "vote of" in purpose]
    assert len(drawn) == len(set(drawn)) == N_SITES * len(ROUNDS)
    assert not {Vote.ABSTAINS} & {vote for number in ROUNDS for vote in tail_of(federation, number)}
    assert not [fault for party in federation.parties.values() for fault in party.failures]


def test_a_node_that_may_have_voted_abstains(federate: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk is older than what has left, or what the run has cost is lost: a new draw could be a second one."""
    federation: Federation = federate(N_SITES, voting_plan())
    vote, told = NodeRun._vote, list[int]()

    def ask(self: NodeRun, may_have_left: bool) -> Any:
        if self.replica.vote is None or self._setup.site != "site-3":
            return vote(self, may_have_left)
        found = [vote(self, may_have_left=True)]
        self._votes.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(self._store), "spent", lambda *given: None)
            found.append(vote(self, may_have_left=False))
        told.extend(each[1] for each in found if each is not None)
        return found[-1]

    monkeypatch.setattr(NodeRun, "_vote", ask)
    federation.run()
    assert told == [Vote.ABSTAINS] * 2 * len(ROUNDS)
    assert [tail_of(federation, number)[3] for number in ROUNDS] == [Vote.ABSTAINS] * len(ROUNDS)


@pytest.mark.parametrize("own", Vote)
@pytest.mark.parametrize("told", Vote)
@pytest.mark.parametrize("other", [*Vote, -1, 3, 7])
def test_a_site_that_helped_to_open_no_sum_knows_its_own_vote(own: Vote, told: Vote, other: int) -> None:
    """Its vector may have come too late, so it may be left out of the votes; it was never turned into another one. Of
    the other sites it has seen nothing, but that what stands for them is a vote.
    """
    node: Any = SimpleNamespace(
        replica=SimpleNamespace(
            vote=True, n_releases=2, n_groups=1, is_fit=lambda _: True,
            split=lambda _: (np.ones(5, np.int64), np.array([0, told, other], np.int64)),
        ),
        _seen_votes={}, _votes={2: own}, _last_masked=2, _divide_roster=lambda: [(0, 1, 2)],
        _setup=SimpleNamespace(identity=SimpleNamespace(public=b""), roster=SimpleNamespace(find_node=lambda _: 1)),
    )  # fmt: skip
    is_fine = told in (own, Vote.ABSTAINS) and other in list(Vote)
    with nullcontext() if is_fine else pytest.raises(RemoteProtocolError):
        NodeRun._require_votes(node, np.zeros(8, np.int64))


@pytest.mark.parametrize("to", ["flipped", "dropped", "made-up"])
def test_a_coordinator_that_changes_a_vote_is_refused(
    federate: Builder, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """By the site itself and by its neighbours, who have its signed header: by more than half of all is not needed."""
    federation: Federation = federate(N_SITES, voting_plan())
    count, victim = coordinator._list_votes, 3

    def list_votes(*given: Any) -> IntVector:
        votes = count(*given)
        if len(votes):
            votes[victim] = {"flipped": 3 - votes[victim], "dropped": 0, "made-up": 7}[to]
        return votes

    monkeypatch.setattr(coordinator, "_list_votes", list_votes)
    with suppress(AggregationError):
        federation.run()
    codes = {site: [fault.code for fault in party.failures] for site, party in federation.parties.items()}
    assert any("vote-changed" in codes[site] for site in [f"site-{victim}", *neighbours(federation, victim)])
    if to != "dropped":
        assert "vote-changed" in codes[f"site-{victim}"]


def neighbours(federation: Federation, node: int) -> list[str]:
    """The sites of a node's group."""
    (part,) = (part for part in parts_of(federation) if node in part)
    return [federation.roster.sites[each].name for each in part if each != node]


def restart_after_answers(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every node again once it has seen a round's manifest: it knows what is on its disk."""
    kind = type(federation.parties["site-0"])
    pump = kind.pump

    def pump_and_restart(self: Any) -> bool:
        before = None if self.session is None else self.session.state
        handled = bool(pump(self))
        after = None if self.session is None else self.session.state
        if before is NodeState.MASKED and after in (NodeState.ECHOED, NodeState.WAITING):
            self.restart()
        return handled

    monkeypatch.setattr(kind, "pump", pump_and_restart)


def test_a_node_that_is_started_again_still_knows_what_its_neighbours_said(
    federate: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes of most carriers live for one message: else a coordinator could drop every objection unnoticed there."""
    federation: Federation = federate(N_SITES, voting_plan())
    restart_after_answers(federation, monkeypatch)
    count, victim = coordinator._list_votes, 3

    def list_votes(*given: Any) -> IntVector:
        votes = count(*given)
        votes[victim : victim + 1] = Vote.ABSTAINS
        return votes

    monkeypatch.setattr(coordinator, "_list_votes", list_votes)
    with suppress(AggregationError):
        federation.run()
    codes = {site: [fault.code for fault in party.failures] for site, party in federation.parties.items()}
    group = {f"site-{victim}", *neighbours(federation, victim)}
    told = {site for site in codes if "vote-changed" in codes[site]}
    assert len(told) > 1 and told <= group


@pytest.mark.parametrize(
    ("noise", "state", "is_restarted"),
    [
        ("server", RunState.COLLECTING_ANSWERS, False),
        pytest.param("distributed", RunState.COLLECTING_ECHOES, True, marks=pytest.mark.slow),
    ],
)
def test_a_group_that_sits_out_after_it_has_voted_accuses_nobody(
    federate: Builder, monkeypatch: pytest.MonkeyPatch, noise: str, state: RunState, is_restarted: bool
) -> None:
    """Two of its four sites are gone once all vectors are there: the others have seen votes that no release has."""
    federation: Federation = federate(N_SITES, voting_plan(noise), noise=SeededNoise(1))
    if is_restarted:
        restart_after_answers(federation, monkeypatch)
    gone = [f"site-{node}" for node in parts_of(federation)[1][:2]]

    def fall_silent(event: Any) -> None:
        session = federation.session
        if event.kind is RunEventKind.PHASE and event.code == state and session is not None:
            for name in gone if len(session.run.releases) == ROUNDS[0] else ():
                federation.parties[name].kill()

    federation.on_event = fall_silent
    assert federation.run().ensemble.n_trees == N_TREES
    assert {name for name, party in federation.parties.items() if party.failures or not party.is_done} == set(gone)
    votes = tail_of(federation, ROUNDS[0])
    assert {node for node, vote in enumerate(votes) if not vote} == set(parts_of(federation)[1])


def test_a_vote_for_a_site_that_is_gone_is_refused_by_all(federate: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site outside the sum has not voted, and cannot object itself."""
    federation: Federation = federate(N_SITES, voting_plan(), must_start=False)
    for name, party in federation.parties.items():
        if name != "site-3":
            party.start()
    count = coordinator._list_votes

    def list_votes(*given: Any) -> IntVector:
        votes = count(*given)
        votes[3:4] = Vote.OBJECTS
        return votes

    monkeypatch.setattr(coordinator, "_list_votes", list_votes)
    with suppress(AggregationError):
        federation.run()
    assert {fault.code for party in federation.parties.values() for fault in party.failures} >= {"vote-changed"}


@pytest.mark.parametrize(("lists_it", "code"), [(False, "header-altered"), (True, "bad-signature")])
def test_a_header_whose_vote_was_changed_on_its_way_is_refused(federate: Builder, lists_it: bool, code: str) -> None:
    """A neighbour's vote is believed by its place in the manifest and by its signature, for the coordinator makes the
    manifest, and could list what it has made up.
    """
    federation: Federation = federate(N_SITES, voting_plan())
    seen: list[str] = []
    note = NodeRun._note_votes

    def tampered(self: NodeRun, request: bytes) -> Any:
        asked = UnmaskRequest.from_bytes(request)
        if self.replica.vote is not None and not seen:
            first = asked.headers[0]
            header = Header.from_signed(first)
            changed = dataclasses.replace(header, vote=3 - header.vote)
            signed = changed.to_bytes() + first[len(changed.to_bytes()) :]
            manifest = Manifest.from_signed(asked.manifest)
            hashes = list(manifest.headers)
            hashes[manifest.survivors.index(header.node)] = header_hash(signed)
            listed = dataclasses.replace(manifest, headers=tuple(hashes)).to_signed(federation.coordinator_key)
            forged = dataclasses.replace(
                asked, headers=(signed, *asked.headers[1:]), manifest=listed if lists_it else asked.manifest
            )
            with pytest.raises(Refusal) as refused:
                note(self, forged.to_bytes())
            seen.append(refused.value.code)
        return note(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeRun, "_note_votes", tampered)
        federation.run()
    assert seen == [code]


# What follows --------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.data())
def test_a_liar_has_one_vote(cast: list[int], data: st.DataObject) -> None:
    """So k liars move a tally by k at most, and those whom groups withstand never have a model called spoilt alone."""
    liars = data.draw(st.sets(st.integers(0, len(cast) - 1)))
    lied = [data.draw(st.integers(0, 2)) if at in liars else vote for at, vote in enumerate(cast)]
    before, after = Tally.count(cast), Tally.count(lied)
    assert abs(after.n_objections - before.n_objections) <= len(liars)
    assert abs(after.n_voted - before.n_voted) <= len(liars) and after.n_sites == len(cast)
    for n_groups in (3, 5):
        alone = [Vote.OBJECTS if at <= n_groups // 2 else Vote.AGREES * (vote > 0) for at, vote in enumerate(cast)]
        assert not Tally.count(alone).is_against(n_groups)


def test_power_is_what_draws_say() -> None:
    """A chance that is promised is met: by draws of every honest site's noise."""
    random, declared, sigma = np.random.default_rng(4), [700, 900, 1100, 1300] * 3, 25.0
    power = compute_power(declared, sigma, 3)
    voting = sorted(rows for rows in declared if rows >= 3.8416212 * sigma / 0.1)
    honest = np.array(voting[:-2])
    objects = (0.1 * honest + random.normal(0, sigma, (20_000, len(honest))) > THRESHOLD * sigma).sum(axis=1)
    told = np.mean([Tally(12, len(voting), int(count)).is_against(3) for count in objects])
    assert 0 < power < 1 and power - 0.015 < told < power + 0.025
    assert compute_power([100] * 12, sigma, 3) == 0.0 and compute_power([10**6] * 12, sigma, 3) == 1.0


@pytest.mark.parametrize("n_liars", [0, 2])
def test_most_sites_rows_tell_that_a_model_is_spoilt_and_nobody_is_named(
    federate: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, n_liars: int
) -> None:
    """Where two of three groups lie alike, their comparison leaves the true one alone. All owners and the coordinator's
    operator hear that most sites' rows are against the model; an honest run says nothing.
    """
    plan = voting_plan(learning_rate=1.0)
    federation: Federation = federate(N_SITES, plan)
    heard: dict[str, list[str]] = {}
    for name, party in federation.parties.items():
        party.kill()
        rows = party.setup.load(plan)
        # Labels that one feature tells: a model that learns them is right, and one that is turned round is wrong.
        labels = (rows.codes[1] > np.median(federation.data["site-0"].codes[1])).astype(np.int32)
        clear = dataclasses.replace(rows, labels=labels)
        tell = heard.setdefault(name, []).append
        party.setup = dataclasses.replace(party.setup, tell=tell, load=lambda _, own=clear: own)
        party.start()
    liars = [f"site-{min(part)}" for part in parts_of(federation)[:n_liars]]
    honest = NodeRun._answer

    def answer(self: NodeRun, query: Query) -> IntVector:
        sums = honest(self, query).copy()
        if self._setup.site in liars:
            sums[0::2] *= -8
        return sums

    monkeypatch.setattr(NodeRun, "_answer", answer)
    outcome = federation.run()
    told = [event for event in federation.events if event.code == "model-spoilt"]
    assert [tally.n_voted for tally in outcome.tallies] == [N_SITES] * 3
    assert bool(told) == any(tally.is_against(N_GROUPS) for tally in outcome.tallies) == (n_liars > 0)
    assert {(event.kind, event.site) for event in told} == ({("objection", "")} if n_liars else set())
    said = {name: [line for line in lines if "model-spoilt" in line] for name, lines in heard.items()}
    assert {len(lines) for lines in said.values()} == {len(told)}
    assert not [line for lines in said.values() for line in lines if "site-" in line]
    model = Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report)
    votes = TrainingTask(plan).schedule.votes
    assert votes is not None
    model = model.voted(outcome.tallies, find_power(plan, votes, [0] * N_SITES)).made("network", N_SITES)
    again = kept(model, tmp_path)
    assert again.report.tallies == model.report.tallies and again.report.tallies
    assert ("spoilt, and nobody" in " ".join(again.report.statement.list_texts())) == (n_liars > 0)


def kept(model: Model, folder: Path) -> Model:
    """A model as its file gives it back."""
    (folder / "model.json").write_bytes(model.to_bytes())
    return Model.load(folder / "model.json")


# Alike everywhere ----------------------------------------------------------------------------------------------------


def test_votes_change_no_tree_and_stand_in_every_partys_history(federate: Builder) -> None:
    """A run over masks makes the model of one without votes' entries, and all parties have the same releases."""
    federation: Federation = federate(N_SITES, voting_plan())
    outcome = federation.run()
    assert federation.session is not None
    replica = Replica(TrainingTask(outcome.plan), N_SITES)
    bare = Replica(TrainingTask(outcome.plan))
    for release in federation.session.run.releases:
        body, votes = replica.split(release)
        assert len(votes) == (N_SITES if replica.n_releases in ROUNDS else 0)
        assert combine(body, N_GROUPS) is not None
        bare.feed(release)
        replica.feed(release)
    assert ensemble_bytes(replica.ensemble) == ensemble_bytes(outcome.ensemble) == ensemble_bytes(bare.ensemble)
    assert replica.result_digest() == federation.session.run.replica.result_digest()


def test_one_process_plays_the_votes_as_well(tmp_path: Path) -> None:
    """Its ledger has what the plan says, and its report how many were against the model."""
    plan = voting_plan()
    rows = make_data(plan, 1200, 7)
    sites = {f"site-{number}": take(rows, np.arange(number, 1200, 9)) for number in range(9)}
    model = train(plan, sites, noise=SeededNoise(3))
    assert [release.round for release in model.ledger if release.is_vote] == list(ROUNDS)
    assert [(n_sites, n_voted) for n_sites, n_voted, _ in model.report.tallies] == [(9, 9)] * 3
    assert model.next_round == N_TREES
    assert kept(model, tmp_path).report.tallies == model.report.tallies
