"""A node that asks its owner: nothing is answered unasked, an answer is to one question alone, and it is kept."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import select
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hedgerow.app import owner
from hedgerow.app.cost import describe_visibility
from hedgerow.app.page import plan_facts
from hedgerow.cli.main import main
from hedgerow.client.node_session import NodeSession
from hedgerow.client.policy import Policy
from hedgerow.client.state import ROSTER, NodeStore, OwnerDesk, Question
from hedgerow.errors import AggregationError, EnvironmentFault, UsageError
from hedgerow.local.forecast import forecast
from hedgerow.methods.replica import digest_behaviour
from hedgerow.methods.tasks import TrainingTask
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan, who_sees
from hedgerow.protocol.messages import (
    Deferred,
    EvaluationInvitation,
    Hello,
    Invitation,
    Message,
    Ready,
    Refused,
    Stop,
    Welcome,
    decode,
    encode,
)
from hedgerow.server.coordinator import RunEvent, RunEventKind
from tests.builders import make_plan

if TYPE_CHECKING:
    from conftest import Builder, Federation, Party

VICTIM = "site-1"
RUN = b"1" * 32
QUESTION = Question(
    "11" * 32, "training", "wards", "22" * 32, "33" * 32, 1.0, 1e-6, "beds", 1.5, 3.0, 1e-6, "distributed"
)  # fmt: skip


def asking(federation: Federation, *sites: str) -> list[Party]:
    """Sites whose owners are asked first."""
    parties = [federation.parties[site] for site in sites or federation.parties]
    for party in parties:
        party.setup = dataclasses.replace(party.setup, policy=dataclasses.replace(party.setup.policy, ask="always"))
        party.kill()
        party.start()
    return parties


def say(party: Party, *, approve: bool) -> Question:
    """What the owner answers, from another process."""
    with closing(OwnerDesk(party.folder)) as desk:
        question = desk.pending()
        assert question is not None
        return desk.answer(question.id, approve=approve)


def when_asked(federation: Federation, act: Callable[[Party], object]) -> None:
    """Once a site says that it asks its owner, the test acts for that owner, after this event was handled."""

    def on_event(event: RunEvent) -> None:
        if event.kind is RunEventKind.DEFERRED:
            act(federation.parties[event.site])

    federation.on_event = on_event


def lines(party: Party) -> list[tuple[str, int]]:
    """Of a node's book: how each run stands, and for how many releases it is charged."""
    assert party.book is not None
    return [(line.status, sum(event.count for event in line.events)) for line in party.book.lines()]


# Asking ---------------------------------------------------------------------------------------------------------------


def test_nothing_is_answered_or_reserved_before_the_owner_has_approved(federate: Builder) -> None:
    """Who asks learns that the owner is asked, and no more; what the owner is shown is what the run will cost."""
    federation = federate(4)
    asking(federation)
    shown: list[Question] = []

    def approved(party: Party) -> None:
        assert not lines(party) and party.session is not None and party.session.state.value == "outside"
        shown.append(say(party, approve=True))

    when_asked(federation, approved)
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert len(shown) == 4 and {question.kind for question in shown} == {"training"}
    plan = federation.plan
    assert all(question.run_id == federation.session.run.run_id.hex() for question in shown)
    assert {(q.epsilon, q.delta, q.digest, q.most) for q in shown} == {
        (plan.privacy.epsilon, plan.privacy.delta, plan.digest, 100.0)
    }
    party = federation.parties[VICTIM]
    assert party.book is not None
    # What the whole run cost is what the owner was told, or a little less.
    spent = party.book.spent("test", 1e-5)
    assert spent <= shown[0].total == pytest.approx(spent, rel=1e-3)
    assert [line.answer for line in party.book.invitations()] == ["accepted"]


def test_a_denial_reaches_the_coordinator_as_a_word_and_the_run_goes_on(federate: Builder) -> None:
    """The others train without that site, which has paid nothing, and the question is not asked again."""
    federation = federate(4)
    (party,) = asking(federation, VICTIM)
    when_asked(federation, lambda party: say(party, approve=False))
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert federation.session.run.sites.refusals == {VICTIM: "policy-denied"}
    assert [fault.code for fault in party.failures] == ["policy-denied"]
    party.start()
    assert not lines(party)
    assert [line.answer for line in party.book.invitations()] == ["policy-denied"]
    with closing(OwnerDesk(party.folder)) as desk:
        assert desk.pending() is None


def test_too_few_owners_approve(federate: Builder) -> None:
    """Then the run ends at its join timeout, as with sites that do not come, and names who has said no."""
    federation = federate(4)
    asking(federation)
    when_asked(federation, lambda party: say(party, approve=party.setup.site == VICTIM))
    with pytest.raises(AggregationError) as ended:
        federation.run()
    assert ended.value.code == "too-few-sites" and "site-0 refused: policy-denied" in ended.value.what


def test_an_owner_who_answers_late_joins_the_run_that_has_begun_without(federate: Builder) -> None:
    """The join timeout passes, the others begin; once approved, the site is in the rounds that follow."""
    federation = federate(5)
    asking(federation, VICTIM)
    released: list[int] = []

    def on_event(event: RunEvent) -> None:
        if event.kind is RunEventKind.RELEASED:
            released.append(event.round)
            if len(released) == 2:
                say(federation.parties[VICTIM], approve=True)

    federation.on_event = on_event
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    survivors = federation.session.run.survivors
    assert VICTIM not in survivors[0] and VICTIM in survivors[-1]


@pytest.mark.parametrize("approve", [True, False])
def test_question_and_answer_survive_a_restart(federate: Builder, approve: bool) -> None:
    """Killed while it waits, and again after the owner has answered: the question stands, and is not asked twice."""
    federation = federate(4)
    (party,) = asking(federation, VICTIM)
    n_asked = []

    def killed(party: Party) -> None:
        n_asked.append(1)
        if len(n_asked) == 1:
            party.restart()
        else:
            party.kill()
            say(party, approve=approve)
            party.start()

    when_asked(federation, killed)
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    assert len(n_asked) == 2 and party.is_done == approve


def test_a_node_that_crashes_between_the_answer_and_its_ready_takes_part(
    federate: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The approval is on the disk before anything follows from it."""
    federation = federate(4)
    (party,) = asking(federation, VICTIM)
    when_asked(federation, lambda party: say(party, approve=True))
    crashed = party.crash_after(monkeypatch, NodeStore, "note_joining")
    outcome = federation.run()
    assert crashed and federation.model_bytes(outcome) == federation.survivors_model()
    assert party.is_done and lines(party)[0][0] == "finished"


def test_what_the_policy_refuses_is_not_asked(federate: Builder) -> None:
    """The owner's rules come first: a run that is over budget, or by another plan, is refused as before."""
    federation = federate(4)
    (party,) = asking(federation, VICTIM)
    policy = dataclasses.replace(party.setup.policy, max_epsilon=1e-3)
    party.setup = dataclasses.replace(party.setup, policy=policy)
    party.restart()
    federation.run()
    assert [fault.code for fault in party.failures] == ["policy-over-budget"]
    assert not (party.folder / "owner.db").exists()


def test_an_evaluation_is_a_question_of_its_own(federate: Builder) -> None:
    """The approval of the training says nothing about the evaluation of its model, whose cost is another."""
    federation = federate(4)
    asking(federation, VICTIM)
    shown: list[Question] = []
    when_asked(federation, lambda party: shown.append(say(party, approve=True)))
    outcome = federation.run()
    model = Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report)
    federation.prepare_evaluation(model, epsilon=0.5)
    federation.run()
    assert [question.kind for question in shown] == ["training", "evaluation"]
    assert shown[1].epsilon == 0.5 and shown[1].total > shown[0].total


# A dishonest coordinator ----------------------------------------------------------------------------------------------


class Node:
    """One node with whoever speaks to it."""

    def __init__(self, party: Party) -> None:
        self.party = party
        self.greet()

    @property
    def session(self) -> NodeSession:
        assert self.party.session is not None
        return self.party.session

    def greet(self) -> None:
        (hello,) = map(decode, self.session.connect())
        assert isinstance(hello, Hello)
        self.session.receive(encode(Welcome(hello.connection)))

    def told(self, message: Message) -> list[Message]:
        return [decode(answer) for answer in self.session.receive(encode(message))]

    def heard(self) -> list[Message]:
        """What the node sends once it has looked at what its owner says."""
        return [decode(answer) for answer in self.session.consider()]

    @property
    def asked(self) -> Question:
        with closing(OwnerDesk(self.party.folder)) as desk:
            question = desk.pending()
        assert question is not None
        return question


@pytest.fixture
def node(federate: Builder) -> Node:
    """A node whose owner pins two plans, and is asked about both."""
    federation = federate(4)
    federation.pin(dearer())
    (party,) = asking(federation, VICTIM)
    return Node(party)


def dearer() -> Plan:
    return make_plan(privacy={"epsilon": 9.0})


def proposed(plan: Plan, run_id: bytes = RUN) -> Invitation:
    return Invitation(run_id, json.dumps(plan.to_dict()).encode(), digest_behaviour(TrainingTask(plan)))


def test_an_approval_is_not_one_of_another_plan(node: Node) -> None:
    """Under the number of the run that was approved, a dearer plan is asked for: it is a new question."""
    assert node.told(proposed(make_plan())) == [Deferred()]
    cheap = node.asked
    say(node.party, approve=True)
    assert node.told(proposed(dearer())) == [Deferred()]
    assert node.heard() == [] and node.asked.epsilon == 9.0 and node.asked.id != cheap.id
    assert not lines(node.party)
    # The other way round as well, and after a restart.
    node.party.restart()
    node.greet()
    assert node.told(proposed(dearer())) == [Deferred()]
    (ready,) = node.told(proposed(make_plan()))
    assert isinstance(ready, Ready) and lines(node.party)[0][0] == "reserved"


def test_an_approval_is_not_one_of_another_run(node: Node) -> None:
    """The same plan again would cost as much again."""
    node.told(proposed(make_plan()))
    say(node.party, approve=True)
    assert node.told(proposed(make_plan(), b"2" * 32)) == [Deferred()]
    assert node.heard() == [] and not lines(node.party)


def test_no_question_is_slipped_in_while_the_owner_reads_another(node: Node) -> None:
    """Who answers names the question that was shown; it is gone when the coordinator asks for something else."""
    node.told(proposed(make_plan()))
    shown = node.asked
    node.told(proposed(dearer()))
    with closing(OwnerDesk(node.party.folder)) as desk, pytest.raises(UsageError) as refused:
        desk.answer(shown.id, approve=True)
    assert refused.value.code == "not-asked" and node.heard() == [] and not lines(node.party)


def test_an_evaluation_at_another_price_is_another_question(node: Node) -> None:
    """Its digest has the model, the cost and the noise in it."""
    plan = make_plan().to_dict()
    questions = {
        dataclasses.replace(QUESTION, digest=digest, run_id=run_id, kind=kind).id
        for digest in (QUESTION.digest, "44" * 32)
        for run_id in (QUESTION.run_id, "55" * 32)
        for kind in ("training", "evaluation")
    }
    assert len(questions) == 8 and plan
    task = EvaluationInvitation(RUN, proposed(make_plan()).plan, b"{}", 0.5, 1e-6, 0, "distributed")
    assert [type(answer) for answer in node.told(task)] == [Refused]


def test_asking_again_and_again_is_one_question(node: Node) -> None:
    """A coordinator that repeats itself, over one connection or many, makes no second one and no second answer."""
    assert node.told(proposed(make_plan())) == [Deferred()]
    first = node.asked
    assert node.told(proposed(make_plan())) == []
    node.greet()
    assert node.told(proposed(make_plan())) == [Deferred()]
    assert node.asked == first
    say(node.party, approve=True)
    assert [type(answer) for answer in node.heard()] == [Ready] and node.heard() == []


def test_the_question_goes_when_the_coordinator_gives_up(node: Node) -> None:
    """No owner is asked about a run that will not be."""
    node.told(proposed(make_plan()))
    node.told(Stop("too-few-sites"))
    with closing(OwnerDesk(node.party.folder)) as desk:
        assert desk.pending() is None


# Stopping -------------------------------------------------------------------------------------------------------------


def test_an_owner_ends_the_nodes_part_in_the_middle_of_a_run(federate: Builder) -> None:
    """What it has answered is charged and no more; the others go on; it is never in that run again."""
    federation = federate(5)
    party = federation.parties[VICTIM]
    released: list[int] = []

    def on_event(event: RunEvent) -> None:
        if event.kind is RunEventKind.RELEASED:
            released.append(event.round)
            if len(released) == 2:
                with closing(OwnerDesk(party.folder)) as desk:
                    desk.stop()
            elif len(released) == 3:
                # Somebody starts it again: the run is closed to it.
                party.start()

    federation.on_event = on_event
    outcome = federation.run()
    assert federation.model_bytes(outcome) == federation.survivors_model()
    survivors = federation.session.run.survivors
    n_answered = sum(VICTIM in sites for sites in survivors)
    assert 0 < n_answered < len(survivors)
    assert [fault.code for fault in party.failures] == ["stopped-by-owner", "run-closed"]
    party.start()
    ((status, charged),) = lines(party)
    assert status == "closed" and n_answered <= charged <= n_answered + 1


def test_a_node_that_is_down_hears_of_it_when_it_starts(federate: Builder, killed: type[BaseException]) -> None:
    """It ends at once, its run closed; started once more, it takes part in the next one."""
    federation = federate(4)
    with pytest.raises(killed):
        federation.run(kill_after=10)
    party = federation.parties[VICTIM]
    party.kill()
    assert main(["approve", str(party.folder), "--stop"]) == 0
    party.start()
    party.pump()
    assert [fault.code for fault in party.failures] == ["stopped-by-owner"]
    party.start()
    party.pump()
    assert lines(party)[0][0] == "closed" and len(party.failures) == 1


def test_stopping_withdraws_the_question(node: Node) -> None:
    """Who stops the node has said no."""
    node.told(proposed(make_plan()))
    assert main(["approve", str(node.party.folder), "--stop"]) == 0
    (refused,) = node.heard()
    assert refused == Refused(0, "stopped-by-owner") and not lines(node.party)
    with closing(OwnerDesk(node.party.folder)) as desk:
        assert desk.pending() is None


# The command and the terminal -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A node's folder, in which the owner is asked."""
    place = tmp_path / "wards-north" / "state"
    place.mkdir(parents=True, mode=0o700)
    store = NodeStore(place)
    store.desk.ask(QUESTION)
    store.close()
    return place


def answered(folder: Path) -> bool | None:
    with closing(OwnerDesk(folder)) as desk:
        return desk.find_answer(QUESTION.id)


def test_the_command_shows_what_is_asked_and_what_it_would_cost(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the folder of the node, or of the party in a study; the command that approves is printed whole."""
    assert main(["approve", str(folder.parent)]) == 0
    shown, said = capsys.readouterr()
    flat = " ".join((shown + said).split())
    for part in ("training", "111111111111", QUESTION.words, "epsilon 1 at delta 1e-06", "epsilon 1.5 of 3"):
        assert part in flat
    assert f"hedgerowapprove{folder.parent}{QUESTION.id}" in "".join(said.split()) and answered(folder) is None
    assert main(["approve", str(folder), "--json"]) == 0
    assert f'"id": "{QUESTION.id}"' in capsys.readouterr().out
    unbounded = dataclasses.replace(QUESTION, epsilon=math.inf)
    assert "nothing bounds" in dict(owner.list_facts(unbounded))["costs"]


@pytest.mark.parametrize("noise", ["server", "distributed", "local"])
def test_who_approves_is_told_who_sees_exact_totals(noise: str) -> None:
    """At the terminal, on the page and in `hedgerow privacy` alike, by one function."""
    plan = make_plan(privacy={"noise": noise, "n_records": 1000})
    said = dict(owner.list_facts(dataclasses.replace(QUESTION, noise=noise)))["who sees what"]
    assert dict(plan_facts(plan))["who sees what"] == said == who_sees(noise)
    assert dict(describe_visibility(plan, forecast(plan)))["who sees what"] == said
    assert ("exact totals" in said) == (noise == "server")


ANSWERS = [([QUESTION.id], True), ([QUESTION.id, "--deny"], False), (["--deny"], False)]


@pytest.mark.parametrize(("more", "said"), ANSWERS)
def test_the_command_answers_once(
    folder: Path, more: list[str], said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was answered is not asked any more, and another question's number answers nothing."""
    assert main(["approve", str(folder), "0" * 32]) == 2 and answered(folder) is None
    assert main(["approve", str(folder), *more]) == 0 and answered(folder) is said
    capsys.readouterr()
    assert main(["approve", str(folder), QUESTION.id, "--json"]) == 2
    assert '"not-asked"' in capsys.readouterr().err and answered(folder) is said
    assert main(["approve", str(folder), "--deny"]) == 2
    assert main(["approve", str(folder)]) == 0 and "Nothing" in capsys.readouterr().err


def test_a_roster_that_was_denied_by_mistake_is_approved_after_all(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stays denied until its own number is typed, which the command shows; a run that was denied is over."""
    roster = dataclasses.replace(QUESTION, kind=ROSTER, name="site south comes")
    with closing(OwnerDesk(folder)) as desk:
        assert desk.ask(roster) is None
        assert main(["approve", str(folder), "--deny"]) == 0 and desk.ask(roster) is False
        assert main(["approve", str(folder), "--deny"]) == main(["approve", str(folder), QUESTION.id]) == 2
        capsys.readouterr()
        assert main(["approve", str(folder)]) == 0
        shown, said = capsys.readouterr()
        assert "site south" in shown and roster.words in " ".join(shown.split())
        assert f"hedgerowapprove{folder}{roster.id}" in "".join(said.split()) and desk.ask(roster) is False
        assert main(["approve", str(folder), roster.id]) == 0 and desk.ask(roster) is True
        assert main(["approve", str(folder), roster.id]) == 2 and desk.find_denied_roster() is None


def test_a_folder_of_no_node_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is made there."""
    assert main(["approve", str(tmp_path), "--stop"]) == 2
    assert "node-folder" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_another_users_folder_is_left_alone(folder: Path) -> None:
    """A file of another user would keep the node from starting; who may write to the folder could approve."""
    folder.chmod(0o770)
    with closing(OwnerDesk(folder)) as desk, pytest.raises(EnvironmentFault) as refused:
        desk.stop()
    assert refused.value.code == "state-permissions"


class Terminal:
    """A terminal, with somebody who types."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._typing, own = os.openpty()
        self._stdin = os.fdopen(own, encoding="ascii")
        monkeypatch.setattr(sys, "stdin", self._stdin)

    def type(self, text: str) -> None:
        os.write(self._typing, text.encode() + b"\n")
        assert select.select([self._stdin], [], [], 600)[0]

    def close(self) -> None:
        self._stdin.close()
        os.close(self._typing)


def test_at_the_nodes_own_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A yes counts with the number beside its question, so that none is meant for another that came meanwhile."""
    with closing(Terminal(monkeypatch)) as terminal, closing(OwnerDesk(folder)) as desk:
        ask = owner.AtTheNode(desk, folder)
        ask(QUESTION)
        (first,) = numbers_in(capsys.readouterr().err)
        terminal.type("yes")
        ask(QUESTION)
        assert answered(folder) is None
        other = dataclasses.replace(QUESTION, digest="44" * 32)
        desk.ask(other)
        monkeypatch.setattr(owner.secrets, "randbelow", lambda _: (int(first) - 1000 + 1) % 9000)
        terminal.type(f"yes {first}")
        ask(other)
        assert answered(folder) is None and desk.find_answer(other.id) is None
        second = numbers_in(capsys.readouterr().err)[-1]
        terminal.type(f"YES {second} ")
        ask(other)
        assert desk.find_answer(other.id) is True


def test_a_no_at_the_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the command is used at one, which shows the question before it asks."""
    with closing(Terminal(monkeypatch)) as terminal, closing(OwnerDesk(folder)) as desk:
        ask = owner.AtTheNode(desk, folder)
        terminal.type("no")
        ask(QUESTION)
        assert answered(folder) is False
        desk.ask(other := dataclasses.replace(QUESTION, digest="44" * 32))
        terminal.type("yes")
        assert main(["approve", str(folder)]) == 0 and desk.find_answer(other.id) is True


def numbers_in(text: str) -> list[str]:
    """What the terminal asks to be typed."""
    return [words.split()[0].rstrip(",.") for words in text.split("ype yes ")[1:]]


def test_the_policy_has_two_words_for_it() -> None:
    """Nothing else is read as either."""
    assert not Policy(version=1, data_set="x", max_epsilon=1.0, delta=1e-6).asks
    assert Policy(version=1, data_set="x", max_epsilon=1.0, delta=1e-6, ask="always").asks
