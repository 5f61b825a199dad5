"""Groups of sites: each round is a secure sum for each group, and the middle values are what the program is given."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.app.cost import groups_text
from hedgerow.client.node import Node
from hedgerow.client.node_session import NodeRun
from hedgerow.crypto import Identity
from hedgerow.errors import AggregationError, PlanError, PolicyRefusal, RemoteProtocolError
from hedgerow.local.forecast import propose_groups
from hedgerow.local.training import build_aggregation, train
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import EvaluationTask, TrainingTask, ensemble_bytes
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise, SystemNoise
from hedgerow.privacy.outlook import outlook_of
from hedgerow.protocol.groups import (
    Disagreement,
    LineUp,
    combine,
    derive_drawing,
    median_noise_factor,
    pack,
    split_by_group,
)
from hedgerow.protocol.messages import MessageKind, Payload, RunState, decode
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.secagg import masks, participant
from hedgerow.secagg.guarantees import Wishes, assign_groups, derive
from hedgerow.secagg.messages import Manifest, UnmaskRequest
from hedgerow.secagg.transitions import Code, Refusal
from hedgerow.server import coordinator
from hedgerow.server.coordinator import RunEventKind
from hedgerow.server.release import (
    UNCOUNTED,
    GroupedAggregation,
    PlainAggregation,
    Releaser,
    RunChecks,
    SumOrigin,
    run_program,
    weigh_groups,
)
from hedgerow.trees.plausibility import ReleaseChecks
from tests.builders import make_data, make_plan, take
from tests.tiers import every

if TYPE_CHECKING:
    from conftest import Builder, Federation

N_SITES, N_GROUPS = 12, 3


def key(name: str) -> Identity:
    """A signing key of this name, as the federation's own are made."""
    return Identity(hashlib.sha256(name.encode()).digest())


def grouped_plan(n_groups: int = N_GROUPS, noise: str = "server", **model: Any) -> Plan:
    """A small plan over groups, whose trees' seed is drawn by the sites unless `model` says otherwise."""
    own = {"n_trees": 3, "batch_size": 1, **model}
    return make_plan(model=own, n_records=1200, epsilon=8.0, noise=noise, groups=n_groups)


def parts_of(federation: Federation) -> list[set[str]]:
    """The names in each group, as every party computes them."""
    of = assign_groups([site.key for site in federation.roster.sites], N_GROUPS)
    return [
        {site.name for site, group in zip(federation.roster.sites, of, strict=True) if group == number}
        for number in range(N_GROUPS)
    ]


def expected(federation: Federation, plan: Plan) -> bytes:
    """The model of the same groups, whose sums are added in the clear."""
    settings = resolve(plan)
    sums = [
        PlainAggregation([Node(site, federation.data[site], plan, settings) for site in sorted(part)])
        for part in parts_of(federation)
    ]
    return ensemble_bytes(
        run_program(plan, program_for(plan, settings), GroupedAggregation(sums), SeededNoise(1), UNCOUNTED).ensemble
    )


# What a round over groups makes -------------------------------------------------------------------------------------


def test_a_federation_over_masks_makes_the_model_of_its_groups(federate: Builder) -> None:
    """Each group is summed under masks by itself, and every node computes the same middle values from the releases."""
    federation: Federation = federate(N_SITES, grouped_plan())
    outcome = federation.run()
    assert ensemble_bytes(outcome.ensemble) == expected(federation, outcome.plan)
    assert all(party.session.result is not None for party in federation.parties.values())
    # One event a round, with the noise of one sum.
    assert federation.session is not None
    alone = train(outcome.plan.with_one_sum(), {"a": federation.data["site-0"]}, noise=SeededNoise(1))
    assert len(outcome.ledger) == len(alone.ledger)
    assert next(outcome.ledger.events()).to_dict() == next(alone.ledger.events()).to_dict()


def test_no_mask_or_share_crosses_groups(federate: Builder) -> None:
    """A node's neighbours are those of its group; what is promised is derived from the group's size."""
    federation: Federation = federate(N_SITES, grouped_plan())
    federation.run()
    view = federation.session.run.view if federation.session is not None else None
    assert view is not None
    names = [{federation.roster.sites[node].name for node in part} for part in view.parts]
    assert names == parts_of(federation)
    for part in view.parts:
        for node in part:
            assert set(view.peers(node)) == set(part) - {node}
            assert view.by_node[node] == derive(len(part), view.parameters.wishes)


def test_how_rows_lie_within_a_group_changes_nothing() -> None:
    """Partition invariance holds within a fixed grouping."""
    plan = grouped_plan(structure_seed=5)
    rows = make_data(plan, 1200, 7)
    settings, found = resolve(plan), set()
    for n_sites in (1, 4):
        groups = []
        for group in range(N_GROUPS):
            own = np.flatnonzero(np.arange(1200) % N_GROUPS == group)
            parts = [take(rows, own[number::n_sites]) for number in range(n_sites)]
            groups.append(PlainAggregation([Node(f"s{i}", part, plan, settings) for i, part in enumerate(parts)]))
        outcome = run_program(plan, program_for(plan, settings), GroupedAggregation(groups), SeededNoise(2), UNCOUNTED)
        found.add(ensemble_bytes(outcome.ensemble))
    assert len(found) == 1


@pytest.mark.parametrize("echo", [False, True])
def test_a_group_that_lacks_sites_sits_out_and_is_not_opened(federate: Builder, echo: bool) -> None:
    """Two sites of one group fall silent: the round goes on with the others, no manifest lists any of that group, and
    the run ends with a model that all who are there have.
    """
    plan = grouped_plan(structure_seed=5)
    plan = dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, echo=echo))
    federation: Federation = federate(N_SITES, plan)
    gone = sorted(parts_of(federation)[1])
    quiet: set[str] = set()

    def begin(event: Any) -> None:
        if event.kind is RunEventKind.RELEASED and not quiet:
            quiet.update(gone[:2])
            for name in gone[:2]:
                federation.parties[name].kill()

    federation.on_event = begin
    outcome = federation.run()
    assert outcome.ensemble.n_trees == 3 and federation.session is not None
    opened = [set(names) for names in federation.session.run.survivors]
    assert len(opened[0]) == N_SITES and all(names.isdisjoint(gone) for names in opened[1:])
    rows = [split_by_group(release, N_GROUPS) for release in federation.session.run.releases]
    assert [(row[1] == 0).all() for row in rows] == [False, True, True]
    for _, message in federation.sent:
        payload = decode(message)
        if isinstance(payload, Payload) and payload.kind is MessageKind.UNMASK:
            manifest = Manifest.from_signed(UnmaskRequest.from_bytes(payload.content).manifest)
            listed = {federation.roster.sites[node].name for node in manifest.survivors}
            assert all(not listed & part or len(listed & part) >= 3 for part in parts_of(federation))


@pytest.mark.parametrize(
    ("noise", "state", "steps"), [("distributed", RunState.COLLECTING_ECHOES, 2), ("server", RunState.SETTING_UP, 4)]
)
def test_a_group_whose_sites_fall_silent_sits_out_and_the_others_go_on(
    federate: Builder, noise: str, state: RunState, steps: int
) -> None:
    """Two sites of four do so after their vectors, or before they acknowledge: nothing is asked of the two others that
    they would refuse, and no secret is shared among too few.
    """
    source = SystemNoise(os.urandom) if noise == "distributed" else None
    federation: Federation = federate(
        N_SITES, grouped_plan(noise=noise, structure_seed=5), **({"noise": source} if source else {})
    )
    gone, seen = sorted(parts_of(federation)[1])[:2], []

    def fall_silent(event: Any) -> None:
        seen.extend([event] if event.kind is RunEventKind.PHASE and event.code == state else [])
        if len(seen) == steps:
            for name in gone:
                federation.parties[name].kill()

    federation.on_event = fall_silent
    assert federation.run().ensemble.n_trees == 3
    assert {name for name, party in federation.parties.items() if party.failures or not party.is_done} == set(gone)


def test_a_run_waits_where_too_few_groups_are_there(federate: Builder) -> None:
    """With one group of three the middle value would be 0: nothing is opened."""
    federation: Federation = federate(N_SITES, grouped_plan(structure_seed=5), must_start=False)
    for name in sorted(parts_of(federation)[0]):
        federation.parties[name].start()
    with pytest.raises(AggregationError):
        federation.run()
    assert federation.session is not None and not federation.session.run.releases


def test_a_coordinator_that_was_killed_goes_on_with_its_groups(federate: Builder, killed: type[Exception]) -> None:
    """Wherever it was killed: the same sums are opened, of the same sites, once."""
    plan = grouped_plan(structure_seed=5, n_trees=2)
    whole: Federation = federate(N_SITES, plan, name="whole")
    model = ensemble_bytes(whole.run().ensemble)
    for kill_after in (4, 5, 6, 7, 8):
        federation: Federation = federate(N_SITES, plan, name=f"killed-{kill_after}")
        with pytest.raises(killed):
            federation.run(kill_after)
        assert ensemble_bytes(federation.run().ensemble) == model


def test_noise_of_the_sites_is_whole_in_every_group(federate: Builder) -> None:
    """(n, c, h) are those of a group, with all colluders in it: that is what is charged, and what the report says."""
    plan = grouped_plan(noise="distributed", structure_seed=5, n_trees=1)
    federation: Federation = federate(N_SITES, plan, noise=SystemNoise(os.urandom))
    outcome = federation.run()
    promised = derive(4, Wishes(1, min_survivors=1, has_echo=True))
    for release in outcome.ledger:
        assert release.cohort is not None
        assert (release.cohort.n_sites, release.cohort.n_shares) == (4, promised.honest_group)


@pytest.mark.parametrize("noise", ["server", "distributed"])
def test_rows_are_summed_in_one_group_only(federate: Builder, noise: str) -> None:
    """A site whose keys changed deals all anew. With noise of the coordinator no node sums its rows in another group,
    in whatever run and with whatever database; with noise of the sites a new run may have other groups.
    """
    plan = grouped_plan(noise=noise, structure_seed=5, n_trees=1)
    federation: Federation = federate(N_SITES, plan, noise=SystemNoise(os.urandom))
    federation.run()
    before = parts_of(federation)
    (federation.folder / federation.journal).unlink()
    # A key that deals some of the others anew.
    for number in range(20):
        renewed = key(f"renewed {number}")
        sites = (dataclasses.replace(federation.roster.sites[0], key=renewed.public), *federation.roster.sites[1:])
        roster = dataclasses.replace(federation.roster, sites=sites)
        federation.roster, old = roster, federation.roster
        moved = {name for part in before for name in part - {"site-0"} if part not in parts_of(federation)}
        if moved:
            break
        federation.roster = old
    for name, party in federation.parties.items():
        party.kill()
        party.setup = dataclasses.replace(party.setup, roster=roster)
        if name == "site-0":
            party.setup = dataclasses.replace(party.setup, identity=renewed)
        party.start()
    if noise == "distributed":
        assert federation.run().ensemble.n_trees == 1
        return
    with pytest.raises(AggregationError):
        federation.run()
    for name in moved:
        assert [failure.code for failure in federation.parties[name].failures] == ["group-changed"]


# Groups that are drawn anew -----------------------------------------------------------------------------------------


def groups_masked(federation: Federation) -> dict[tuple[str, int], list[tuple[str, ...]]]:
    """For each site and round, the groups in which a vector of it left, one for each epoch that it was masked in."""
    found: dict[tuple[str, int], list[tuple[str, ...]]] = {}
    for name, party in federation.parties.items():
        run = party.session._run if party.session is not None else None
        for number, cohort in run._masked if run is not None else ():
            names = tuple(sorted(federation.roster.sites[node].name for node in cohort.members))
            found.setdefault((name, number), []).append(names)
    return found


def drawn(federation: Federation, seed: int, number: int) -> list[set[str]]:
    """The groups of a drawing, as every party computes them."""
    of = assign_groups([site.key for site in federation.roster.sites], N_GROUPS, derive_drawing(seed, number))
    sites = federation.roster.sites
    return [{site.name for site, group in zip(sites, of, strict=True) if group == g} for g in range(N_GROUPS)]


@pytest.mark.parametrize("kill_after", every(2, [None, 16, 18, 21]))
def test_with_noise_of_the_sites_groups_are_drawn_anew_between_rounds(
    federate: Builder, killed: type[Exception], kill_after: int | None
) -> None:
    """Every round has the groups of its drawing, which follow from the sites' seed and the round alone, and a site's
    vector of it leaves in these and no others, wherever the coordinator is killed. All make the same model.
    """
    plan = grouped_plan(noise="distributed", n_trees=7, structure_seed="joint")
    federation: Federation = federate(N_SITES, plan, noise=SystemNoise(os.urandom))
    if kill_after is not None:
        with pytest.raises(killed):
            federation.run(kill_after)
    outcome = federation.run()
    assert outcome.ensemble.n_trees == 7 and federation.session is not None
    seed, rounds = federation.session.run.replica.structure_seed, federation.session.run.replica.n_rounds
    assert rounds == 5 and drawn(federation, seed, 0) == parts_of(federation) != drawn(federation, seed, 1)
    masked = groups_masked(federation)
    assert {number for _, number in masked} == set(range(7))
    for (name, number), groups in masked.items():
        assert [set(group) for group in groups] == [
            part for part in drawn(federation, seed, number // rounds) if name in part
        ]
    assert all(party.session.result is not None for party in federation.parties.values() if party.session)


@pytest.mark.slow
def test_set_ups_are_kept_for_the_drawings_to_come(federate: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has so many: a site that has lost its state joins in the next drawing, or there were none for the last."""
    monkeypatch.setattr(coordinator, "MAX_ATTEMPTS", 4)
    plan = grouped_plan(noise="distributed", n_trees=11, structure_seed="joint")
    federation: Federation = federate(N_SITES, plan, noise=SystemNoise(os.urandom))
    party = federation.parties["site-3"]

    def lose(event: Any) -> None:
        if event.kind is RunEventKind.RELEASED and event.round == 1:
            party.kill()
            for file in party.folder.glob("node.db*"):
                file.unlink()
            party.start()

    federation.on_event = lose
    federation.run()
    assert federation.session is not None and federation.session.run.attempt == 3
    there = [number for number, names in enumerate(federation.session.run.survivors) if "site-3" in names]
    assert there == [0, *range(5, 11)]


@pytest.mark.parametrize("comes_in", every(3, [3, 4, 5]))
def test_sites_that_come_late_or_come_back_are_dealt_like_the_others(federate: Builder, comes_in: int) -> None:
    """One that was not there when the seed was drawn, and one that was started again, around the round between two
    drawings: both end with the model of all, and no vector of theirs left in other groups than the round's.
    """
    plan = grouped_plan(noise="distributed", n_trees=12, structure_seed="joint")
    federation: Federation = federate(N_SITES, plan, noise=SystemNoise(os.urandom))
    late, back = sorted(parts_of(federation)[0])[:2]
    federation.parties[late].kill()

    def begin(event: Any) -> None:
        if event.kind is RunEventKind.RELEASED and event.round == comes_in:
            federation.parties[late].start()
            federation.parties[back].kill()
            federation.parties[back].start()

    federation.on_event = begin
    outcome = federation.run()
    assert outcome.ensemble.n_trees == 12 and federation.session is not None
    run, masked = federation.session.run, groups_masked(federation)
    assert all({late, back} <= set(names) for names in run.survivors[2 * run.replica.n_rounds :])
    for (name, number), groups in masked.items():
        (own,) = (part for part in drawn(federation, run.replica.structure_seed, number // 5) if name in part)
        # An epoch's members may be fewer than the roster's.
        assert all(set(group) <= own for group in groups)
    models = [party.session.result for party in federation.parties.values() if party.session is not None]
    assert [ensemble_bytes(model) for model in models if model] == [ensemble_bytes(outcome.ensemble)] * N_SITES


def test_a_node_masks_no_round_in_other_groups_than_its_own(federate: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch that deals the sites otherwise than this round does is refused, whoever drew it; and the groups of a
    drawing are written down, so that a node that has lost its database, and is told of another seed, takes no others.
    """
    plan = grouped_plan(noise="distributed", n_trees=7, structure_seed="joint")
    federation: Federation = federate(N_SITES, plan, noise=SystemNoise(os.urandom))
    federation.run()
    session = federation.parties["site-3"].session
    assert session is not None and session._run is not None and federation.session is not None
    run, view = session._run, federation.session.run.view
    assert view is not None and view.parameters.drawing == run.replica.drawing != b""
    run._require_group(view)
    for drawing in (
        b"",
        derive_drawing(run.replica.structure_seed, 2),
        derive_drawing(run.replica.structure_seed + 1, 1),
    ):
        other = dataclasses.replace(view, parameters=dataclasses.replace(view.parameters, drawing=drawing))
        with pytest.raises(Refusal) as caught:
            run._require_group(other)
        assert caught.value.reason is Code.PARAMETERS_REFUSED
    run._grouped_by.clear()
    own = federation.roster.find_node(run._setup.identity.public)
    group = next(part for part in run._divide_roster() if own in part)
    codes = []
    for seed in range(20):
        monkeypatch.setattr(Replica, "structure_seed", seed)
        # One drawing of 165 deals this node the same neighbours, and is no other group.
        if group in run._divide_roster():
            continue
        other = dataclasses.replace(
            view, parameters=dataclasses.replace(view.parameters, drawing=derive_drawing(seed, run.replica.n_drawings))
        )
        with pytest.raises(PolicyRefusal) as denied:
            run._require_group(other)
        codes.append(denied.value.code)
    assert len(codes) > 10 and set(codes) == {"group-changed"}


@pytest.mark.parametrize(("noise", "seed"), [("server", "joint"), ("distributed", 5)])
def test_groups_are_never_drawn_where_sums_are_exact_or_no_seed_is_joint(noise: str, seed: str | int) -> None:
    """Exact sums over other groups of the same rows would show single sites' by their differences."""
    replica = Replica(TrainingTask(grouped_plan(noise=noise, n_trees=40, structure_seed=seed)))
    assert replica.n_rounds == 0 and replica.drawing == b""


NAMES = [f"site-{number:02d}" for number in range(15)]


def compare(
    seed: int, liars: set[int], *, is_drawn: bool, n_sites: int = N_SITES, n_groups: int = N_GROUPS, lie: str
) -> list[tuple[Disagreement, str]]:
    """What is told of 40 releases of sites whose rows are alike, where liars move their groups' sums.

    Args:
        lie: "alike", "opposite" by each second liar, only where liars hold a "majority" of groups, only "beside" site
            0, or "garbage", which no records add up to.
    """
    drawing, lineup, told = np.random.default_rng(seed), LineUp(n_sites, n_groups, 5 * is_drawn), []
    for number in range(40):
        if number % 5 == 0 and (is_drawn or not number):
            dealing = drawing.permutation(n_sites)
            parts = [sorted(dealing[group::n_groups].tolist()) for group in range(n_groups)]
        rows = {group: np.rint(drawing.normal(100, 40, 30)).astype(np.int64) for group in range(n_groups)}
        lying = [group for group, part in enumerate(parts) if not liars.isdisjoint(part)]
        lying = [] if lie == "majority" and 2 * len(lying) < n_groups else lying
        lying = [group for group in lying if lie != "beside" or 0 in parts[group]]
        false: list[int] = []
        for place, group in enumerate(lying):
            if lie == "garbage" and not false:
                del rows[group]
                false.append(group)
            elif lie != "garbage":
                rows[group] += -600 if lie == "opposite" and place % 2 else 600
        found = lineup.take(pack(rows, dict.fromkeys(rows, 4), 30, n_groups, false), parts)
        told += [(one, one.describe(NAMES)) for one in found]
    return told


@pytest.mark.parametrize("lie", ["alike", "opposite", "majority", "beside", "garbage"])
@settings(max_examples=30)
@given(data=st.data())
def test_a_comparison_of_groups_accuses_nobody_who_is_honest(lie: str, data: st.DataObject) -> None:
    """Whoever lies, in however many groups: a message names no site, or says two readings, one of which is true and
    which together name every site.
    """
    is_drawn, seed = data.draw(st.booleans()), data.draw(st.integers(0, 2**32))
    n_groups = data.draw(st.sampled_from([3, 5]))
    liars = data.draw(st.sets(st.integers(1, 14), max_size=3))
    for one, text in compare(seed, liars, is_drawn=is_drawn, n_sites=15, n_groups=n_groups, lie=lie):
        shown = {number for number, name in enumerate(NAMES) if name in text}
        assert liars and "groups-disagree" in text
        assert shown == {node for group in (one.alone, *one.others) for node in group}
        assert len(shown) == (0 if is_drawn else 15)
        if not is_drawn:
            assert not liars.isdisjoint(one.alone) or all(not liars.isdisjoint(group) for group in one.others)


@pytest.mark.parametrize("is_drawn", [True, False])
def test_a_lie_of_one_site_is_told(is_drawn: bool) -> None:
    """In each of 20 runs, once; of sums that differ by noise alone nothing is said."""
    assert [len(compare(seed, {7}, is_drawn=is_drawn, lie="alike")) for seed in range(20)] == [1] * 20
    assert not [told for seed in range(20) for told in compare(seed, set(), is_drawn=is_drawn, lie="alike")]


def test_two_who_lie_alike_leave_the_true_group_alone() -> None:
    """The group that is far from the others is the honest one, and what is told says that this may be so."""
    found = [compare(seed, {1, 2}, is_drawn=False, lie="alike") for seed in range(20)]
    alone = [one.alone for told in found for one, _ in told]
    assert any(not {1, 2} & set(nodes) for nodes in alone) and any({1, 2} <= set(nodes) for nodes in alone)


def test_garbage_is_the_same_evidence_to_nodes_and_coordinator(
    federate: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would leave other sites out, and every node refuse the epochs of the others."""
    plan = grouped_plan(noise="distributed", n_trees=7, structure_seed="joint")
    federation: Federation = federate(N_SITES, plan, noise=SystemNoise(os.urandom))
    honest = NodeRun._answer

    def answer(self: NodeRun, query: Query) -> IntVector:
        return honest(self, query) * (-400 if self is federation.parties["site-3"].session._run else 1)

    monkeypatch.setattr(NodeRun, "_answer", answer)
    federation.run()
    assert federation.session is not None
    evidence = federation.session.run.lineup._evidence.tolist()
    assert max(evidence) > 0
    runs = [party.session._run for party in federation.parties.values() if party.session is not None]
    assert [run._lineup._evidence.tolist() for run in runs if run is not None] == [evidence] * N_SITES


# A site that lies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [-5, 400])
def test_one_site_spoils_its_group_and_no_more(federate: Builder, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """What no records add up to costs its group the round, not the others the run; the sites of that sum are named."""
    plan = grouped_plan(structure_seed=5)
    federation: Federation = federate(N_SITES, plan)
    liar, honest = "site-3", NodeRun._answer

    def answer(self: NodeRun, query: Query) -> IntVector:
        sums = honest(self, query)
        return sums * times if self is federation.parties[liar].session._run else sums

    monkeypatch.setattr(NodeRun, "_answer", answer)
    outcome = federation.run()
    assert outcome.ensemble.n_trees == 3
    (named,) = {event.site for event in federation.events if event.code == "group-out-of-line"}
    assert set(named.split(", ")) == next(part for part in parts_of(federation) if liar in part)
    assert not [failure for party in federation.parties.values() for failure in party.failures]


def test_who_deals_wrong_shares_in_a_group_is_left_out_of_it(
    federate: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs its group one round: the others are opened, the dealer is named, and its group is in the next one."""
    plan = grouped_plan(structure_seed=5)
    federation: Federation = federate(N_SITES, plan)
    part = next(part for part in parts_of(federation) if "site-3" in part)
    liar = next(node for node, site in enumerate(federation.roster.sites) if site.name == "site-3")
    mask, split = participant.mask_upload, masks.split

    def misdealt(keys: Any, *others: Any) -> Any:
        with monkeypatch.context() as patch:
            if keys.node == liar:
                patch.setattr(masks, "split", lambda seed, *given: split(bytes(len(seed)), *given))
            return mask(keys, *others)

    monkeypatch.setattr(participant, "mask_upload", misdealt)
    assert federation.run().ensemble.n_trees == 3 and federation.session is not None
    there = [part & set(names) for names in federation.session.run.survivors]
    assert there == [set(), part - {"site-3"}, part - {"site-3"}]
    named = {event.site for event in federation.events if event.code == "secret-unrecoverable" and event.site}
    assert named == {"site-3"}


@pytest.mark.parametrize("n_liars", [0, 1, 2])
def test_groups_that_disagree_are_told_to_all_with_both_readings(
    federate: Builder, monkeypatch: pytest.MonkeyPatch, n_liars: int
) -> None:
    """A lie within all bounds, by one site or by one of each of two groups: after ten rounds every owner hears of it,
    from the releases alone, with every site on one side or the other; the coordinator's operator hears no name. The run
    goes on, and nobody is left out.
    """
    plan = grouped_plan(structure_seed=5, n_trees=11)
    federation: Federation = federate(N_SITES, plan)
    heard: dict[str, list[str]] = {}
    for name, party in federation.parties.items():
        party.kill()
        party.setup = dataclasses.replace(party.setup, tell=heard.setdefault(name, []).append)
        party.start()
    parts, honest = parts_of(federation), NodeRun._answer
    liars = [min(part) for part in parts[:n_liars]]

    def answer(self: NodeRun, query: Query) -> IntVector:
        runs: list[Any] = [federation.parties[liar].session._run for liar in liars]  # type: ignore[union-attr]
        if self not in runs:
            return honest(self, query)
        # Eight times the first one's rows, with the opposite labels: all lie alike.
        sums = 8 * honest(runs[0], query)
        sums[0::2] *= -1
        return sums

    monkeypatch.setattr(NodeRun, "_answer", answer)
    outcome = federation.run()
    said = {name: [line for line in lines if "groups-disagree" in line] for name, lines in heard.items()}
    events = [event for event in federation.events if event.code in ("groups-disagree", "group-out-of-line")]
    assert outcome.ensemble.n_trees == 11 and {len(lines) for lines in said.values()} == {int(n_liars > 0)}
    assert {(event.kind, event.site) for event in events} == ({("disagreement", "")} if n_liars else set())
    alone = parts[0] if n_liars == 1 else parts[2]
    for line in (line for lines in said.values() for line in lines):
        first, second = line.split("other groups are (")
        assert set(re.findall(r"site-\d+", first)) == alone
        assert set(re.findall(r"site-\d+", second)) == set(federation.parties) - alone


def test_marks_know_nothing_of_the_noise() -> None:
    """Honest groups' marks are about 0 whatever the noise is; one that sits out is not marked for it."""
    drawn, parts = np.random.default_rng(3), [[0], [1], [2]]
    for scale in (10, 10**6):
        lineup, silent = LineUp(3, N_GROUPS), LineUp(3, N_GROUPS)
        for _ in range(40):
            rows = {group: np.rint(drawn.normal(100, scale, 16)).astype(np.int64) for group in range(N_GROUPS)}
            weights = {0: 900, 1: 1000, 2: 1100}
            assert not lineup.take(pack(rows, weights, 16, N_GROUPS), parts)
            assert not silent.take(pack({0: rows[0], 2: rows[2]}, weights, 16, N_GROUPS), parts)
        far = {**rows, 1: rows[1] + 40 * scale}
        found = [lineup.take(pack(far, weights, 16, N_GROUPS), parts) for _ in range(20)]
        assert [one for told in found for one in told] == [Disagreement((1,), ((0,), (2,)))]
    # A coordinator may say that two groups are one, now these and now those, and the third beyond all bounds.
    near, lineup = np.zeros(4, dtype=np.int64), LineUp(3, N_GROUPS)
    for number in range(20):
        rows = {0: near, 1: near + (number % 2 << 62), 2: near + (1 << 62)}
        lineup.take(pack(rows, dict.fromkeys(rows, 1), 4, N_GROUPS), parts)


@given(st.data())
def test_the_middle_lies_between_honest_groups(data: st.DataObject) -> None:
    """Whatever fewer than half of the groups send, each entry lies between two honest ones, a group that sat out
    counting as 0 and a false one, which is one of those, as nothing; the rounding is floor(x W / w), exactly.
    """
    n_groups = data.draw(st.sampled_from([3, 5]))
    whole = st.integers(-(2**40), 2**40)
    sums = {g: np.array(data.draw(st.lists(whole, min_size=2, max_size=2))) for g in range(n_groups)}
    weights = {g: data.draw(st.integers(1, 2**20)) for g in range(n_groups)}
    if data.draw(st.booleans()):
        weights[0] = 2**48
    n_false = data.draw(st.integers(0, n_groups // 2))
    n_lying = data.draw(st.integers(0, n_groups // 2 - n_false))
    sat_out = data.draw(st.integers(0, n_groups // 2 - n_false))
    there = {g: sums[g] for g in range(n_groups - sat_out - n_false)}
    false = range(n_groups - n_false, n_groups)
    found = combine(pack(there, weights, 2, n_groups, false), n_groups)
    total = len(there) * sorted(weights[g] for g in there)[(len(there) - 1) // 2]
    scaled = [[int(x) * total // min(weights[g], total) for x in sums[g]] for g in there] + [[0, 0]] * sat_out
    middle = len(scaled) - 1
    columns = [sorted(column) for column in zip(*scaled, strict=True)]
    assert found.tolist() == [(column[middle // 2] + column[(middle + 1) // 2]) // 2 for column in columns]
    kept = scaled[n_lying:]
    for place, value in enumerate(found.tolist()):
        assert min(row[place] for row in kept) <= value <= max(row[place] for row in kept)


@given(rows=st.integers(1, 2**50), lie=st.integers(-(2**60), 2**60), n_there=st.sampled_from([2, 3]))
def test_what_a_group_declares_moves_no_other_groups_values(rows: int, lie: int, n_there: int) -> None:
    """However many rows a liar's group declares, honest groups' sums are not made larger, nor wrapped."""
    own = [2**44, 2**44 + 9][: n_there - 1]
    sums = {0: np.array([lie]), **{group: np.array([value]) for group, value in enumerate(own, start=1)}}
    found = int(combine(pack(sums, {0: rows, 1: 1000, 2: 1000}, 1, N_GROUPS), N_GROUPS)[0])
    assert 0 <= found <= n_there * max(own)
    assert n_there == 2 or found >= n_there * min(own)


def test_weights_are_of_one_kind() -> None:
    """Where one site declares no rows, every group counts by its sites: 4 sites beside 4,000 rows would be nothing."""
    sums = {group: SumOrigin(None, 2, ("a", "b"), declared) for group, declared in enumerate([(9, 9), (9, 0), (9, 9)])}
    assert weigh_groups(sums) == {0: 2, 1: 2, 2: 2}
    assert weigh_groups({0: sums[0], 2: sums[2]}) == {0: 18, 2: 18}


def test_a_group_that_was_away_is_compared_with_nothing() -> None:
    """While it was away trees were added that its sums move by: an honest group does not sit out for them later."""
    plan = grouped_plan(n_trees=6, learning_rate=1.0, structure_seed=5)
    settings, program = resolve(plan), program_for(plan, resolve(plan))
    # With one label only, scores go far and all the same way.
    held = [make_data(plan, 400, i) for i in range(N_GROUPS)]
    held = [dataclasses.replace(rows, labels=np.ones_like(rows.labels)) for rows in held]
    nodes = [Node(f"s{i}", rows, plan, settings) for i, rows in enumerate(held)]
    checks = RunChecks(lambda: ReleaseChecks(lambda: settings.loss(plan)))
    releaser, query = Releaser(SeededNoise(1), UNCOUNTED), next(program)
    for number in range(6):
        totals = {group: node.answer(query) for group, node in enumerate(nodes)}
        there = {group: total for group, total in totals.items() if group or number in (0, 5)}
        summed = {group: SumOrigin(None, 1, (f"s{group}",), (400,)) for group in there}
        release, faults = checks.check(query, plan, releaser.release_groups(query, there, N_GROUPS), summed)
        assert not faults
        with suppress(StopIteration):
            query = program.send(combine(release, N_GROUPS))


@pytest.mark.parametrize("false", [(0, 1), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("lie", [-(1 << 40), 1 << 62])
def test_where_a_run_ends_by_false_sums_all_groups_that_sent_one_are_named(false: tuple[int, ...], lie: int) -> None:
    """And no other: whose sums happen to be looked at first says nothing of who lies."""
    plan = grouped_plan()
    settings, program = resolve(plan), program_for(plan, resolve(plan))
    query = next(program)
    totals = {group: Node(f"s{group}", make_data(plan, 400, group), plan, settings).answer(query) for group in range(3)}
    sums = Releaser(SeededNoise(1), UNCOUNTED).release_groups(query, totals, 3)
    sums |= {group: np.full_like(sums[group], lie) for group in false}
    summed = {group: SumOrigin(None, 2, (f"site-{group}a", f"site-{group}b"), (200, 200)) for group in range(3)}
    with pytest.raises(AggregationError) as caught:
        RunChecks(lambda: ReleaseChecks(lambda: settings.loss(plan))).check(query, plan, sums, summed)
    found = {group for group in range(3) if all(f"site-{group}{part}" in caught.value.what for part in "ab")}
    assert found == set(false) and caught.value.code in ("release-implausible", "sum-out-of-range")


@pytest.mark.parametrize("n_groups", [3, 5, 7, 9])
def test_the_noise_of_the_middle_is_what_programs_reckon_with(n_groups: int) -> None:
    """2.01 times a sum's at three groups, where the mean's would be 1.73."""
    drawn = np.random.default_rng(1).normal(0, 1 << 30, size=(n_groups, 1, 40_000)).astype(np.int64)
    sums = {group: drawn[group, 0] for group in range(n_groups)}
    found = combine(pack(sums, dict.fromkeys(sums, 1), 40_000, n_groups), n_groups)
    assert float(found.std()) / (1 << 30) == pytest.approx(median_noise_factor(n_groups), rel=0.03)


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("federation", {"groups": 4}),
        ("federation", {"groups": 1}),
        ("privacy", {"noise": "local"}),
        ("model", {"split_candidates": "quantile"}),
        ("model", {"algorithm": "s-gbdt"}),
        ("model", {"algorithm": "adassp"}),
    ],
)
def test_what_is_no_plain_sum_has_no_groups(section: str, changes: dict[str, Any]) -> None:
    """Samples, choices, local noise and exact counts are refused by the plan's own check, and by name."""
    table = grouped_plan().to_dict()
    if "algorithm" in changes:
        table["model"] = {}
    with pytest.raises(PlanError) as caught:
        Plan.from_dict({**table, section: {**table[section], **changes}})
    assert "groups" in caught.value.what


def test_plans_without_groups_are_written_as_before() -> None:
    """Their digests are what they were."""
    table = make_plan().to_dict()
    assert "groups" not in table["federation"]
    assert grouped_plan(0).digest == Plan.from_dict(grouped_plan(0).to_dict()).digest
    assert Plan.from_dict(grouped_plan().to_dict()) == grouped_plan()


@pytest.mark.parametrize(("n_sites", "min_sites"), [(8, 1), (9, 4)])
def test_groups_that_are_too_small_are_refused_before_anyone_is_invited(
    federate: Builder, n_sites: int, min_sites: int
) -> None:
    """A sum of two would tell each of them the other's."""
    plan = grouped_plan(structure_seed=5)
    plan = dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, min_sites=min_sites))
    federation: Federation = federate(n_sites, plan)
    with pytest.raises(PlanError) as caught:
        federation.run()
    assert caught.value.code == "plan-groups-too-small"


@pytest.mark.parametrize("noise", ["server", "distributed"])
def test_of_a_group_of_three_one_that_is_gone_costs_the_group_and_not_the_run(federate: Builder, noise: str) -> None:
    """Nine sites have three groups: no sum of two is opened, with noise of the coordinator, and the run goes on."""
    federation: Federation = federate(9, grouped_plan(noise=noise), noise=SystemNoise(os.urandom))
    gone = sorted(parts_of(federation)[1])[0]

    def begin(event: Any) -> None:
        if event.kind is RunEventKind.RELEASED:
            federation.parties[gone].kill()

    federation.on_event = begin
    outcome = federation.run()
    assert outcome.ensemble.n_trees == 3 and federation.session is not None
    later = federation.session.run.survivors[1:]
    assert all(gone not in names for names in later)
    if noise == "server":
        assert all(len(parts_of(federation)[1] & set(names)) in (0, 3) for names in later)


def test_a_release_of_too_few_groups_is_refused_by_every_replica() -> None:
    """A coordinator cannot leave most groups out, nor give one that sat out a number."""
    task = TrainingTask(grouped_plan(structure_seed=5))
    for rows in ({0: 1}, {0: 1, 1: -1}, {0: 1, 1: -2, 2: 1}):
        replica = Replica(task)
        release = np.zeros((N_GROUPS, replica.release_length // N_GROUPS), dtype=np.int64)
        for group, weight in rows.items():
            release[group, 0] = weight
        with pytest.raises(RemoteProtocolError) as caught:
            replica.feed(release.reshape(-1))
        assert caught.value.code == "release-unfit"


# What they cost, and where they are proposed --------------------------------------------------------------------------


def test_groups_are_proposed_where_enough_sites_are_expected_and_they_cost_little() -> None:
    """Nine sites, and so much signal that half of it costs at most .01 of AUC; never where a plan can have none."""

    def plan(n_records: int, noise: str = "server", **federation: Any) -> Plan:
        made: Plan = make_plan(privacy={"n_records": n_records, "epsilon": 1.0, "noise": noise})
        table = made.to_dict()
        return Plan.from_dict({**table, "federation": {**table["federation"], **federation}})

    many = plan(50_000, min_sites=9)
    proposed = propose_groups(many, 9)
    assert proposed is not None
    assert (proposed.federation.groups, proposed.federation.min_sites) == (3, 3)
    assert [propose_groups(*each) for each in ((many, 8), (plan(5_000), 9), (proposed, 9))] == [None] * 3
    linear = dataclasses.replace(many, model=dataclasses.replace(many.model, algorithm="adassp"))
    assert propose_groups(linear, 9) is None
    least = next(n for n in range(1_000, 10**6, 500) if propose_groups(plan(n), 9) is not None)
    # Five have more noise, and four sites each, so that a group can lose one.
    assert [propose_groups(many, n_sites, 5) is not None for n_sites in (9, 19, 20)] == [False, False, True]
    assert propose_groups(plan(least), 20, 5) is None and propose_groups(plan(2 * least), 20, 5) is not None
    assert ["groups = 5" in groups_text(plan(n), 9) for n in (least, 2 * least)] == [False, True]
    assert ["groups = 3" in groups_text(plan(n), 9) for n in (least // 2, least)] == [False, True]
    # Noise of the sites leaves less, in a group of three.
    assert propose_groups(plan(least, "distributed"), 9) is None
    assert propose_groups(plan(2 * least, "distributed"), 9) is not None


def test_signal_is_that_of_the_middle_of_groups() -> None:
    """What `hedgerow privacy` says of a plan with groups reckons with their noise."""
    grouped = grouped_plan()
    alone, own = outlook_of(grouped.with_one_sum()), outlook_of(grouped)
    assert own.signal == pytest.approx(alone.signal / median_noise_factor(N_GROUPS))


def test_a_report_says_how_many_groups_there_were() -> None:
    """In its text and in what a model keeps; a report of one sum is as before."""
    plan = grouped_plan(structure_seed=5)
    sites = {f"s{i}": make_data(plan, 50, i) for i in range(6)}
    grouped = train(plan, sites, noise=SeededNoise(1)).report
    alone = train(plan.with_one_sum(), sites, noise=SeededNoise(1)).report
    assert grouped.claims()["n_groups"] == 3
    assert "n_groups" not in alone.claims()


def test_evaluations_have_one_sum() -> None:
    """The middle of counts would be no count: a model of groups is evaluated over all sites at once."""
    plan = grouped_plan(structure_seed=5)
    nodes = [Node(f"s{i}", make_data(plan, 50, i), plan, resolve(plan)) for i in range(6)]
    assert isinstance(build_aggregation(plan, nodes, 3, SeededNoise(1)), GroupedAggregation)
    model = train(plan, {f"s{i}": make_data(plan, 50, i) for i in range(6)}, noise=SeededNoise(1))
    task = EvaluationTask(model.plan, ensemble_bytes(model.ensemble), 1.0, 1e-6, len(model.ledger), "server")
    assert task.run_plan.federation.groups == 0 and Replica(task).n_groups == 0
