"""Both ends agree on what a run asks, charges and makes before it costs anything: builds of one version may differ."""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hedgerow.app.node import _may_come_again
from hedgerow.builds import _read_head, describe_build
from hedgerow.cli.main import main
from hedgerow.client import joining
from hedgerow.errors import AggregationError
from hedgerow.methods import replica
from hedgerow.methods.boosting import program as boosting
from hedgerow.methods.replica import digest_behaviour
from hedgerow.methods.tasks import Task, TrainingTask
from hedgerow.privacy.schedule import Schedule
from hedgerow.protocol.messages import EvaluationInvitation, Hello, Invitation, MessageKind, SurveyInvitation, decode
from hedgerow.protocol.queries import Query
from hedgerow.training.steps import Program
from tests.builders import make_plan

if TYPE_CHECKING:
    from conftest import Builder, Federation

LONG: dict[str, Any] = {"n_trees": 12, "batch_size": 1}
PLANS = {
    "trees": make_plan(model=LONG),
    "numbers": make_plan("regression", model=LONG),
    "joint seed": make_plan(model={**LONG, "structure_seed": "joint"}),
    "noise of the sites": make_plan(model=LONG, privacy={"noise": "distributed"}),
    "counts": make_plan("count", model=LONG),
}


def _louder(patch: pytest.MonkeyPatch) -> None:
    noise_of = replica.noise_of

    def other(query: Query, *arguments: Any, **named: Any) -> Any:
        found = noise_of(query, *arguments, **named)
        return replace(found, variance=found.variance + 1)

    patch.setattr(replica, "noise_of", other)


def _other_last_query(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    begin = TrainingTask.program

    def other(task: TrainingTask) -> Program:
        n_last, inner = task.schedule.n_rounds - 1, begin(task)
        query, number = next(inner), 0
        while True:
            if number == n_last:
                query = replace(query, **{name: getattr(query, name) + more for name, more in changes.items()})
            release = yield query
            number += 1
            try:
                query = inner.send(release)
            except StopIteration as finished:
                return finished.value

    patch.setattr(TrainingTask, "program", other)


def _other_leaf(patch: pytest.MonkeyPatch) -> None:
    compute = boosting.compute_values

    def other(*arguments: Any) -> Any:
        values = compute(*arguments)
        return np.where(values > 0, values - 1, values).astype(values.dtype)

    patch.setattr(boosting, "compute_values", other)


def _dearer(patch: pytest.MonkeyPatch) -> None:
    events = Schedule.events.fget
    assert events is not None
    patch.setattr(Schedule, "events", property(lambda schedule: events(schedule)[:-1]))


CHANGES = {
    "a sigma": _louder,
    "the last query's sensitivity": lambda patch: _other_last_query(patch, sensitivity_squared=1),
    "the last query's bound": lambda patch: _other_last_query(patch, bound=1),
    "the noise of the last query": lambda patch: _other_last_query(patch, noise_multiplier=0.01),
    "a leaf's rule": _other_leaf,
    "what is charged": _dearer,
}


def digest_elsewhere(task: Task, change: str) -> bytes:
    """What the rehearsal comes to in a program that differs in one thing."""
    with pytest.MonkeyPatch.context() as patch:
        CHANGES[change](patch)
        return replica._compute_behaviour(task)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", PLANS)
def test_a_program_that_differs_anywhere_comes_to_another_digest(name: str, change: str) -> None:
    """In one sigma, one number of one query, though it is the last one, one rule of the leaves, or in what it costs."""
    task = TrainingTask(PLANS[name])
    own = digest_behaviour(task)
    assert replica._compute_behaviour(TrainingTask(task.plan)) == own != digest_elsewhere(task, change)


def test_the_digest_is_that_of_one_task() -> None:
    """Two plans have two, and nothing but the plan is in it: no row, no roster, no policy, and not the process."""
    digests = {name: digest_behaviour(TrainingTask(plan)) for name, plan in PLANS.items()}
    assert len(set(digests.values())) == len(PLANS)
    replica._known.clear()
    assert digests == {name: digest_behaviour(TrainingTask(plan)) for name, plan in PLANS.items()}


@pytest.mark.parametrize("most", ["rounds", "entries"])
def test_of_a_long_run_the_first_rounds_are_carried_out(most: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it takes no long time; the rest is compared by what it may cost, and in the rounds themselves."""
    monkeypatch.setattr(replica, f"_MAX_{most.upper()}_COMPARED", 4 if most == "rounds" else 40)
    task, fed = TrainingTask(PLANS["trees"]), list[int]()
    feed = replica.Replica.feed
    monkeypatch.setattr(replica.Replica, "feed", lambda own, release: (fed.append(own.n_releases), feed(own, release)))
    own = replica._compute_behaviour(task)
    assert 0 < len(fed) < 12
    assert digest_elsewhere(task, "a leaf's rule") != own != digest_elsewhere(task, "what is charged")


def exchange_build(monkeypatch: pytest.MonkeyPatch, sites: Collection[str], change: str) -> None:
    """Have the nodes of these sites be another build."""
    require = joining.require_joinable

    def required(files: Any, setup: Any, *rest: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if setup.site in sites:
                patch.setattr(joining, "digest_behaviour", lambda task: digest_elsewhere(task, change))
            return require(files, setup, *rest)

    monkeypatch.setattr(joining, "require_joinable", required)


def books(federation: Federation) -> dict[str, list[str]]:
    """By site, how its lines in the budget book stand."""
    found = {}
    for name, party in federation.parties.items():
        if party.book is None:
            party.start()
        assert party.book is not None
        found[name] = [line.status for line in party.book.lines()]
    return found


@pytest.mark.parametrize("change", CHANGES)
def test_where_the_programs_differ_nothing_is_spent(
    federate: Builder, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """All nodes are another build than the coordinator: each says so by name before it reserves anything, and may come
    to the next run; the coordinator says which builds they are.
    """
    federation = federate(4)
    exchange_build(monkeypatch, federation.parties, change)
    with pytest.raises(AggregationError) as ended:
        federation.run()
    assert ended.value.code == "too-few-sites"
    assert "program-differs" in ended.value.what and ended.value.what.count(describe_build()) == 1 + 4
    for party in federation.parties.values():
        (fault,) = party.failures
        assert fault.code == "program-differs" and _may_come_again(fault)
        assert str(fault).count(describe_build()) == 2
    assert set(map(tuple, books(federation).values())) == {()}
    assert federation.session.run.releases == []
    assert not any(message[4] == MessageKind.UPLOAD for _, message in federation.received)


def test_one_node_of_another_build_is_missing_alone(federate: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' run goes on, and its budget is whole."""
    federation = federate(4)
    exchange_build(monkeypatch, {"site-0"}, "a sigma")
    federation.run()
    assert [fault.code for fault in federation.parties["site-0"].failures] == ["program-differs"]
    found = books(federation)
    assert found.pop("site-0") == [] and set(map(tuple, found.values())) == {("finished",)}
    assert all(set(survivors) == set(found) for survivors in federation.session.run.survivors)


def test_each_invitation_says_what_it_is_and_nobody_else_hears_of_a_nodes_build(federate: Builder) -> None:
    """The coordinator's build is in what it sends; a node's is in its greeting, and in no message to another site."""
    federation = federate(4)
    federation.run()
    sent = [decode(message) for _, message in federation.sent]
    invitations = [each for each in sent if isinstance(each, Invitation | EvaluationInvitation | SurveyInvitation)]
    task = TrainingTask(federation.plan)
    assert {(each.behaviour, each.build) for each in invitations} == {(digest_behaviour(task), describe_build())}
    greetings = [decode(message) for _, message in federation.received if message[4] == MessageKind.HELLO]
    assert {each.build for each in greetings if isinstance(each, Hello)} == {describe_build()}
    others = [message for _, message in federation.sent if message[4] != MessageKind.INVITATION]
    assert not any(describe_build().encode() in message for message in others)


def test_the_build_is_named_by_its_commit_and_its_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Two commits of one version are told apart, from a checkout, a work tree beside it, or packed references."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == describe_build()
    root = Path(__file__).resolve().parents[2]
    if (root / ".git").exists():
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, check=True, capture_output=True, text=True)
        assert _read_head(root / ".git") == head.stdout.strip()
        assert head.stdout[:12] in describe_build()
    git, tree = tmp_path / "git", tmp_path / "tree"
    (git / "worktrees" / "tree").mkdir(parents=True)
    tree.mkdir()
    (git / "packed-refs").write_text("# pack-refs with: peeled\nabc123 refs/heads/main\n^fff\n")
    (git / "worktrees" / "tree" / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "worktrees" / "tree" / "commondir").write_text("../..\n")
    (tree / ".git").write_text(f"gitdir: {git / 'worktrees' / 'tree'}\n")
    assert _read_head(tree / ".git") == "abc123"
