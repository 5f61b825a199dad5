"""A coordinator that makes plans, models or releases up to ask about single rows: it learns nothing of them."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.carriers import site
from hedgerow.cli.main import main
from hedgerow.client.budget import RESERVED, BudgetBook
from hedgerow.client.joining import check_own_plan
from hedgerow.client.node import Node
from hedgerow.client.node_session import NodeSession
from hedgerow.client.policy import Policy, parse_policy
from hedgerow.client.setup import NodeSetup
from hedgerow.client.state import NodeStore
from hedgerow.crypto import Identity
from hedgerow.data.binned import SiteData
from hedgerow.errors import AggregationError, UsageError
from hedgerow.evaluation.sums import ScoreHistogram
from hedgerow.methods.registry import resolve
from hedgerow.methods.replica import digest_behaviour
from hedgerow.methods.tasks import TrainingTask
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan, parse_plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.messages import Hello, Invitation, Message, Ready, Refused, Welcome, decode, encode
from hedgerow.protocol.queries import IntVector, NoiseCohort, Query
from hedgerow.secagg.messages import Roster, Site
from hedgerow.server.release import Releaser
from hedgerow.transport.envelope import (
    Envelope,
    EnvelopeKind,
    LinkKeys,
    bundle_messages,
    derive_public_key,
    open_messages,
    parse,
    sign,
)
from hedgerow.transport.identities import read_private
from hedgerow.trees.leaf_sums import LeafSums
from tests.builders import make_data, make_plan, take
from tests.wards import furnish, plan_text

SITES = ("site-0", "site-1", "site-2")
SITE = """version = 1
data = "site-0.csv"
identity = "site-0.private.json"
roster = "roster.toml"
policy = "policy.toml"
state = "site-0-state"
threads = 1
"""
AGES = range(20, 93)
"""What the owner's table may hold: one question for each is 73 questions."""


def invitation_to(plan: Plan) -> Invitation:
    return Invitation(os.urandom(32), plan.to_bytes(), digest_behaviour(TrainingTask(plan)))


class Federation:
    """Files of a federation, in which the coordinator lies: it greets one site over Flower as often as it likes."""

    def __init__(self, folder: Path, site_lines: str, policy_lines: str) -> None:
        self.folder = folder
        furnish(folder, SITES, plan_text(3, model={"n_trees": 2, "max_depth": 2}), 3)
        self.plan = parse_plan((folder / "plan.toml").read_text())
        policy = (folder / "policy.toml").read_text() + policy_lines.format(digest=self.plan.digest)
        (folder / "policy.toml").write_text(policy)
        (folder / "site-0.toml").write_text(SITE + site_lines)
        self._hub = read_private(folder / "hub.private.json")
        self._numbers = count(1)

    def greet(self, plan: Plan) -> list[Message]:
        """A greeting with an invitation, as a process of its own; what the site answers."""
        secret, link = os.urandom(32), os.urandom(32)
        body = bundle_messages([encode(invitation_to(plan))])
        key = derive_public_key(secret)
        greeting = Envelope(EnvelopeKind.GREETING, "", link, next(self._numbers), key, bytes(32), body)
        reply = parse(site.answer_request(self.folder / "site-0.toml", sign(greeting, self._hub.seed)))
        keys = LinkKeys.agree(secret, reply.key, link, reply.site)
        return [decode(message) for message in open_messages(reply, keys.to_hub)]

    def answer_to(self, plan: Plan) -> str:
        """Ready, or the code word of the refusal."""
        hello, answer = self.greet(plan)
        assert isinstance(hello, Hello) and isinstance(answer, Ready | Refused)
        return "ready" if isinstance(answer, Ready) else answer.code

    @property
    def book(self) -> BudgetBook:
        return BudgetBook(self.folder / "site-0-budget.db")


def is_there(plan: Plan, age: int) -> Plan:
    """A plan by which a table with a row of that age has a label outside the classes."""
    table = plan.to_dict()
    table["features"] = [feature for feature in table["features"] if feature["name"] != "age"]
    others = [str(other) for other in range(101) if other != age]
    table["label"] = {"name": "age", "type": "multiclass", "classes": others}
    table["name"] = f"is {age} there?"
    return Plan.from_dict(table)


def with_unit(plan: Plan, age: int) -> Plan:
    """The same by the column that is to tell persons apart, where one is missing."""
    table = plan.to_dict()
    table["privacy"] |= {"unit": f"person {age}"}
    return Plan.from_dict(table)


def with_bounds(plan: Plan, age: int) -> Plan:
    """The same label as in the plan that was agreed on, and bounds that put one row beyond all others."""
    table = plan.to_dict()
    table["features"][0] |= {"min": float(age), "max": float(age) + 0.5}
    return Plan.from_dict(table)


LINES = {
    "a plan file": ('plan = "plan.toml"\n', "", "plan-changed"),
    "digests in the policy": ("", 'plans = ["{digest}"]\n', "policy-plan"),
    "no plan at all": ("", "", "no-pinned-plan"),
}


@pytest.mark.parametrize("pinned", LINES)
@pytest.mark.parametrize("made_up", [is_there, with_unit, with_bounds])
def test_plans_that_a_coordinator_makes_up_get_one_answer_whatever_the_rows_are(
    tmp_path: Path, pinned: str, made_up: Callable[[Plan, int], Plan]
) -> None:
    """A coordinator that may ask as often as it likes does not learn of any row, spends nothing, and is in the log."""
    site_lines, policy_lines, code = LINES[pinned]
    federation = Federation(tmp_path, site_lines, policy_lines)
    ages = AGES if made_up is is_there and pinned.startswith("no plan") else range(20, 26)
    assert {federation.answer_to(made_up(federation.plan, age)) for age in ages} == {code}
    lines = federation.book.invitations()
    assert sum(line.count for line in lines) == len(ages) and {line.answer for line in lines} == {code}
    assert {line.plan_digest for line in lines} == {made_up(federation.plan, age).digest for age in ages}
    assert {(line.kind, line.epsilon) for line in lines} == {("training", 1.0)}
    assert not federation.book.lines()


def test_the_owner_reads_who_asked_for_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`hedgerow ledger` says that a coordinator was refused, and lists each plan that it proposed."""
    federation = Federation(tmp_path, 'plan = "plan.toml"\n', "")
    federation.answer_to(is_there(federation.plan, 40))
    assert federation.answer_to(federation.plan) == "ready"
    book = str(tmp_path / "site-0-budget.db")
    capsys.readouterr()
    assert main(["ledger", book]) == 0
    assert "1 invitation(s)" in capsys.readouterr().out
    assert main(["ledger", book, "--invitations", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["invitations"]
    assert [(line["plan_name"], line["answer"]) for line in told] == [
        ("is 40 there?", "plan-changed"), ("plan", "accepted"),
    ]  # fmt: skip


# One node, without files ---------------------------------------------------------------------------------------------


def key(name: str) -> Identity:
    return Identity(name.encode().ljust(32, b"."))


@pytest.fixture
def node_of(tmp_path: Path) -> Iterator[Callable[..., tuple[NodeSession, BudgetBook]]]:
    """A node of five sites: its plan, its policy's rules, and how its table is read."""
    store, book = NodeStore(tmp_path / "state"), BudgetBook(tmp_path / "budget.db")

    def build(
        plan: Plan | None, load: Callable[[Plan], SiteData], *, max_rows: int = 0, **rules: Any
    ) -> tuple[NodeSession, BudgetBook]:
        sites = tuple(Site(f"s{i}", key(f"s{i}").public, max_rows) for i in range(5))
        roster = Roster(key("hub").public, sites)
        usual: dict[str, Any] = {"version": 1, "data_set": "x", "max_epsilon": 9.0, "delta": 1e-5, "noise": ("server",)}
        policy = Policy(**{**usual, **rules})
        setup = NodeSetup("s0", key("s0"), roster, policy, os.urandom, SeededNoise(1), load, plan)
        session = NodeSession(setup, store, book)
        hello = decode(session.connect()[0])
        assert isinstance(hello, Hello)
        session.receive(encode(Welcome(hello.connection)))
        return session, book

    yield build
    store.close()
    book.close()


def test_the_table_is_read_after_the_cost_is_reserved(node_of: Callable[..., tuple[NodeSession, BudgetBook]]) -> None:
    """Whoever makes a node read its table has paid for a whole run by then."""
    plan = make_plan()
    found: list[str] = []

    def load(asked: Plan) -> SiteData:
        found.extend(line.status for line in book.lines())
        return make_data(asked, 20, 1)

    session, book = node_of(None, load, plans=(plan.digest,))
    (answer,) = map(decode, session.receive(encode(invitation_to(plan))))
    assert isinstance(answer, Ready) and found == [RESERVED]


@pytest.mark.parametrize("n_rows", [20, 21])
def test_whether_a_site_has_more_rows_than_it_declares_is_not_found_when_a_coordinator_asks(
    node_of: Callable[..., tuple[NodeSession, BudgetBook]], n_rows: int
) -> None:
    """The answer is the same: of more rows it uses as many as it declares, and tells its owner alone."""
    plan = make_plan()
    session, _ = node_of(None, lambda asked: make_data(asked, n_rows, 1), max_rows=20, plans=(plan.digest,))
    (answer,) = map(decode, session.receive(encode(invitation_to(plan))))
    assert isinstance(answer, Ready)
    assert session._run is not None and session._run.node.n_records == 20  # type: ignore[union-attr]


def test_a_plan_that_is_not_pinned_does_not_reach_the_table(
    node_of: Callable[..., tuple[NodeSession, BudgetBook]],
) -> None:
    """A process of `hedgerow node` gives one answer to a made-up plan before it looks at a row."""
    plan = make_plan()
    looked: list[Plan] = []

    def load(asked: Plan) -> SiteData:
        looked.append(asked)
        return make_data(asked, 20, 1)

    session, book = node_of(plan, load)
    (answer,) = map(decode, session.receive(encode(invitation_to(dataclasses.replace(plan, name="mine")))))
    assert isinstance(answer, Refused) and answer.code == "plan-changed"
    assert not looked and not book.lines() and [line.answer for line in book.invitations()] == ["plan-changed"]


def test_the_list_of_invitations_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator can neither fill the owner's disk with invitations nor push earlier ones out."""
    monkeypatch.setattr("hedgerow.client.budget.MAX_INVITATIONS", 5)
    book = BudgetBook(tmp_path / "budget.db")
    for number in range(20):
        book.note_invitation(("training", f"{number:064x}", f"\x1b[2J{number}", 1.0), "plan-changed")
    lines = book.invitations()
    assert [line.plan_digest for line in lines] == [*(f"{number:064x}" for number in range(5)), ""]
    assert lines[0].plan_name == "?[2J0" and (lines[-1].kind, lines[-1].count) == ("other", 15)
    book.close()


def test_a_node_without_a_plan_does_not_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`hedgerow node` ends before it dials, and what it tells its owner to do works."""
    furnish(tmp_path, SITES, plan_text(3), 3)
    arguments = [
        "node", str(tmp_path / "site-0.csv"), "--roster", str(tmp_path / "roster.toml"), "--identity",
        str(tmp_path / "site-0.private.json"), "--policy", str(tmp_path / "policy.toml"), "--connect", "127.0.0.1:1",
    ]  # fmt: skip
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 6
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "no-pinned-plan" and "hedgerow privacy PLAN" in error["remedy"]
    assert main(["privacy", str(tmp_path / "plan.toml")]) == 0
    digest = parse_plan((tmp_path / "plan.toml").read_text()).digest
    assert digest in capsys.readouterr().out
    roster = Roster(key("hub").public, tuple(Site(f"s{i}", key(f"s{i}").public) for i in range(5)))
    rules: dict[str, Any] = {"version": 1, "data_set": "x", "max_epsilon": 9.0, "delta": 1e-5, "plans": (digest,)}

    def start(**more: Any) -> None:
        policy = Policy(**{**rules, **more})
        check_own_plan(NodeSetup("s0", key("s0"), roster, policy, os.urandom, SeededNoise(1), make_data))

    start()


@pytest.mark.parametrize(
    "line", ['rows_that_do_not_fit = "refuse"', "max_unlisted = 0.02", "max_clamped = 0.05", "refuse_loss = 0.1"]
)
def test_no_line_of_a_policy_lets_rows_decide_whether_their_site_is_there(line: str) -> None:
    """That a site is away is seen by all others; earlier lines that made it follow from rows are refused by name."""
    policy = 'version = 1\ndata_set = "x"\nmax_epsilon = 1.0\ndelta = 1e-6\n'
    with pytest.raises(UsageError) as caught:
        parse_policy(policy + line)
    assert caught.value.code == "policy-file" and line.split()[0] in caught.value.what
    assert parse_policy(policy).data_set == "x"


# A model that was made for one patient --------------------------------------------------------------------------------


class MakesReleasesUp:
    """A coordinator's process that releases in training what singles one patient out, and keeps an evaluation's sums.

    It knows everything about the patient but the label. Leaves in which the patient is not are given nothing.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plan: Plan, patient: SiteData) -> None:
        self.sums: list[tuple[ScoreHistogram, IntVector]] = []
        known = dataclasses.replace(patient, labels=np.ones(1, dtype=np.int32))
        self._shadow = Node("shadow", known, plan, resolve(plan))
        honest = Releaser.release_groups

        def release(
            own: Releaser, query: Query, totals: dict[int, IntVector], n_groups: int, cohort: NoiseCohort | None = None
        ) -> dict[int, IntVector]:
            fair = honest(own, query, totals, n_groups, cohort)
            if isinstance(query, LeafSums):
                return {0: self._shadow.answer(query) * 100}
            assert isinstance(query, ScoreHistogram)
            self.sums.append((query, totals[0]))
            # Equal counts in all bins of the outline make the bins of the detail as narrow as they can be.
            return {0: np.full_like(fair[0], 4 * query.unit)} if not query.by_label else fair

        monkeypatch.setattr(Releaser, "release_groups", release)

    def label(self) -> int | None:
        """What stands in the highest bin that is not empty, if that is one record; None for anything else."""
        query, total = self.sums[-1]
        rows = total.reshape(query.shape)[0] / query.unit
        (places,) = np.nonzero(rows.sum(axis=0))
        highest = rows[:, places[-1]]
        return int(highest.argmax()) if sorted(highest) == [0, 1] else None


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["server", "distributed"])
def test_a_model_made_for_one_patient_is_evaluated_with_noise_of_the_sites_only(
    federate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """Every site has helped to make that model, which proves nothing: its sums have one patient alone on top. With the
    noise of the sites the coordinator sees no such sum, and with its own it gets none, unless a policy says so."""
    plan = make_plan(model={"n_trees": 12, "max_depth": 4, "batch_size": 2, "structure_seed": 3})
    told, wanted = [], []
    for number in range(6):
        federation = federate(4, plan, name=f"patient-{number}")
        patient = take(federation.held_out["site-0"], [number])
        liar = MakesReleasesUp(monkeypatch, plan, patient)
        outcome = federation.run()
        model = Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report)
        federation.prepare_evaluation(model, 2.0, noise=asked)
        federation.run()
        told.append(liar.label())
        wanted.append(int(patient.labels[0]))
        monkeypatch.undo()
    if asked == "server":
        assert told == wanted, "the attack does not work: look at it before relying on this test"
    else:
        assert told == [None] * 6
        return
    federation = federate(4, plan, name="default")
    outcome = federation.run()
    model = Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report)
    for party in federation.parties.values():
        party.setup = dataclasses.replace(
            party.setup, policy=dataclasses.replace(party.setup.policy, evaluation_noise=())
        )
    federation.prepare_evaluation(model, 2.0, noise="server")
    with pytest.raises(AggregationError):
        federation.run()
    assert {fault.code for party in federation.parties.values() for fault in party.failures} == {"policy-noise"}
