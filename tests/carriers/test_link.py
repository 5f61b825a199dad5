"""A run over a carrier without one: real files, sessions, stores and seals over a post office in memory."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import socket
import sqlite3
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import duckdb
import pytest

from hedgerow import __version__
from hedgerow.app.inputs import read_plan
from hedgerow.carriers import coordinator, handing, read_coordinator_file, read_site_file, site
from hedgerow.carriers.handing import HandedBack, HandedOn, NodeSocket, answer_handed_on, ask
from hedgerow.carriers.resident import ResidentNode
from hedgerow.carriers.site import LinkStore
from hedgerow.cli.main import main
from hedgerow.client.budget import BudgetBook
from hedgerow.client.node_session import NodeRun
from hedgerow.client.state import RUN_ROWS, OwnerDesk
from hedgerow.codec import head
from hedgerow.crypto import KEY_BYTES
from hedgerow.data.site_data import read_site_data
from hedgerow.errors import EnvironmentFault, HedgerowError, UsageError
from hedgerow.local.training import train
from hedgerow.models.model import Model
from hedgerow.plugins import describe_plugin, load_plugin
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.messages import MessageKind
from hedgerow.protocol.refusals import WireRefusal
from hedgerow.transport.carrier import Clock, EnvelopeHub, Fetched, Patience
from hedgerow.transport.envelope import (
    HIGHEST_NUMBER,
    Envelope,
    EnvelopeKind,
    LinkKeys,
    bundle_messages,
    derive_public_key,
    open_messages,
    parse,
    seal_messages,
    sign,
)
from hedgerow.transport.identities import (
    PrivateIdentity,
    Role,
    build_roster,
    create_identity,
    new_identity,
    read_private,
    read_roster,
)
from hedgerow.transport.interface import Joined, Left
from tests.builders import coded
from tests.carriers.conftest import Federation
from tests.plugins.test_plugin_loading import OBLIVIOUS, forget
from tests.wards import forget_place

QUICK = Patience(poll=0.001, longest_poll=0.005, roll_call=0.01, repeat=0.05, longest_repeat=0.2, closing=2.0)
FIRST_NODE = 7000


class Office:
    """Posts to nodes that answer at once, each in what stands for a process of its own; a test bends it."""

    place = "carrier"

    def __init__(self, federation: object, names: Sequence[str], folder: Path) -> None:
        self.places = {FIRST_NODE + number: folder / f"{name}.toml" for number, name in enumerate(names)}
        self.away: set[int] = set()
        self.replies: list[Fetched] = []
        self.seen: list[bytes] = []
        self.bend: Callable[[int, bytes, Callable[[], bytes]], Fetched | None] = self.plainly
        self._n_letters = 0

    def nodes(self) -> dict[int, str]:
        return dict.fromkeys(set(self.places) - self.away, "")

    def push(self, letters: Sequence[tuple[int, bytes]]) -> list[str | None]:
        numbers: list[str | None] = []
        for node, data in letters:
            self._n_letters += 1
            number = str(self._n_letters)
            numbers.append(number)
            self.seen.append(data)
            found = None if node in self.away else self.bend(node, data, partial(self.answer, node, data))
            if found is not None:
                self.replies.append(Fetched(number, found.data, found.code))
                self.seen.append(found.data or b"")
        return numbers

    def answer(self, node: int, data: bytes) -> bytes:
        return site.answer_request(self.places[node], data)

    def plainly(self, node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
        try:
            return Fetched("", answer())
        except HedgerowError as fault:
            return Fetched("", None, fault.code)

    def pull(self, numbers: Iterable[str]) -> list[Fetched]:
        wanted = set(numbers)
        found = [reply for reply in self.replies if reply.number in wanted]
        self.replies = [reply for reply in self.replies if reply.number not in wanted]
        return found


def run(federation: object, office: Office, name: str = "coordinator.toml") -> tuple[Model, EnvelopeHub]:
    file = read_coordinator_file(Path(federation.path(name)))  # type: ignore[attr-defined]
    return coordinator.coordinate(file, office, QUICK)


@pytest.fixture(autouse=True)
def standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator's time passes when it waits, and a little when it asks, however slow the machine is."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def monotonic() -> float:
        sleep(0.001)
        return now[0]

    monkeypatch.setattr(coordinator, "time", SimpleNamespace(monotonic=monotonic, sleep=sleep, time=lambda: 0.0))


def office_of(federation: Any) -> Office:
    office = Office(federation, federation.sites, federation.folder)
    office.federation = federation  # type: ignore[attr-defined]
    return office


@pytest.fixture
def office(in_files: Callable[..., ModuleType]) -> Office:
    return office_of(in_files())


def made_in(federation: Federation, name: str) -> str:
    """Where a model was made, by its file."""
    return Model.load(federation.path(f"{name}.json")).report.made_in


def test_the_model_is_the_local_engines_in_few_exchanges(office: Office) -> None:
    """One greeting that invites, four of the set-up, two a round, one to finish; and the bytes of `hedgerow train`."""
    federation = office.federation  # type: ignore[attr-defined]
    _, hub = run(federation, office)
    assert federation.model() == federation.local_model()
    assert made_in(federation, "model") == "carrier" and made_in(federation, "local") == "process"
    n_rounds = 2
    assert dict(hub.n_requests) == dict.fromkeys(federation.sites, 1 + 4 + 2 * n_rounds + 1)


ALGORITHMS: tuple[dict[str, object], ...] = (
    {"algorithm": "adassp"},
    {"algorithm": "dp-xgboost", "n_trees": 1, "max_depth": 2},
    {"algorithm": "boosting", "split_method": "hist", "interaction": "cyclical", "n_trees": 2, "max_depth": 2},
)


@pytest.mark.slow
@pytest.mark.parametrize("model", ALGORITHMS, ids=lambda model: str(model["algorithm"]))
def test_every_algorithm_is_rebuilt_for_every_message(
    in_files: Callable[..., ModuleType], model: dict[str, object]
) -> None:
    """A node's process ends after each message; what it knows of linear models or grown trees comes from its store."""
    federation = in_files(**model)
    run(federation, office_of(federation))
    assert federation.model() == federation.local_model()


@pytest.mark.slow
def test_a_site_loads_the_plug_in_that_its_policy_names(
    in_files: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever carries the messages: with it the local engine's model, without it or with other sources no answer."""
    monkeypatch.syspath_prepend(str(OBLIVIOUS.parent))
    forget()
    try:
        line = describe_plugin(load_plugin("oblivious"))
        federation = in_files(algorithm="oblivious", n_trees=2)
        policy, file = federation.folder / "policy.toml", federation.folder / "coordinator.toml"
        plain = policy.read_text()
        for said, code in (("", "plan-field"), (f'plugins = ["{line[:-1]}x"]\n', "plugin")):
            forget()
            policy.write_text(plain + said)
            with pytest.raises(HedgerowError) as refused:
                site.answer_request(federation.folder / "site-0.toml", b"")
            assert refused.value.code == code
        policy.write_text(plain + f'plugins = ["{line}"]\n')
        file.write_text(file.read_text() + f'plugins = ["{line}"]\n')
        run(federation, office_of(federation))
        assert federation.model() == federation.local_model()
    finally:
        forget()


def test_a_plug_in_that_a_policy_names_no_more_runs_no_longer(
    in_files: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stays cannot unload it, so it refuses until it is started again: the owner's word counts at once,
    whatever file says it, and for other sites' nodes in one process their own owner's.
    """
    monkeypatch.syspath_prepend(str(OBLIVIOUS.parent))
    forget()
    try:
        line = describe_plugin(load_plugin("oblivious"))
        federation = in_files(algorithm="oblivious", n_trees=2)
        forget()
        own, policy = federation.folder / "site-0.toml", federation.folder / "policy.toml"
        plain, file = policy.read_text(), own.read_text()
        (federation.folder / "other.toml").write_text(plain)

        def build(name: str) -> None:
            site.build_node(read_site_file(federation.folder / f"{name}.toml"))

        named = plain + f'plugins = ["{line}"]\n'
        for text, own_policy, is_fine in (
            (named, "policy", True), (plain, "policy", False), (named, "other", False), (named, "policy", True)
        ):  # fmt: skip
            policy.write_text(text)
            own.write_text(file.replace("policy.toml", f"{own_policy}.toml"))
            with nullcontext() if is_fine else pytest.raises(UsageError, check=coded("plugin")):
                build("site-0")
        build("site-2")
    finally:
        forget()


def test_rows_that_come_while_a_run_goes_on_join_it(in_files: Callable[..., ModuleType]) -> None:
    """A file of the owner's folder is in the run from the exchange that finds it, and every later process, which knows
    nothing but the node's folder, finds it there: the bytes of the same stream in one process."""
    federation = in_files(algorithm="s-gbdt", n_trees=3, max_depth=2)
    with open(federation.path("plan.toml"), "a", encoding="ascii") as plan_file:
        plan_file.write("[s_gbdt]\nextra_rounds = 2\nsubsampling_ratio = 1\n")
    with open(federation.path("site-1.toml"), "a", encoding="ascii") as site_file:
        site_file.write('arrivals = "incoming"\n')
    incoming, late = federation.folder / "incoming", federation.folder / "site-1-held-out.csv"
    incoming.mkdir()
    office = office_of(federation)
    letters: list[int] = []

    def bend(node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
        letters.append(node)
        if letters.count(FIRST_NODE + 1) == 9 and not list(incoming.iterdir()):
            shutil.copy(late, incoming / "more.csv")
        return office.plainly(node, data, answer)

    office.bend = bend
    run(federation, office)
    with closing(sqlite3.connect(federation.path("site-1-state/node.db"))) as database:
        came = database.execute("select round from arrivals").fetchall()
    plan = read_plan(federation.path("plan.toml"))
    rows = {name: read_site_data(federation.path(f"{name}.csv"), plan)[0] for name in federation.sites}
    more = {"site-1": read_site_data(late, plan)[0]}
    noise = SeededNoise(read_coordinator_file(federation.folder / "coordinator.toml").seed)
    assert len(came) == 1 and 0 < came[0][0] < 5
    expected = train(plan, rows, noise=noise, arrivals={came[0][0]: more}).to_bytes()
    assert federation.model() == forget_place(expected)
    assert federation.model() != federation.local_model()


def test_a_folder_of_arrivals_that_is_not_there_is_no_empty_one(office: Office) -> None:
    """The owner has misspelled it: the node answers nothing until it is there."""
    federation = office.federation  # type: ignore[attr-defined]
    with open(federation.path("site-0.toml"), "a", encoding="ascii") as file:
        file.write('arrivals = "incomming"\n')
    with pytest.raises(EnvironmentFault) as refused:
        site.answer_request(Path(federation.path("site-0.toml")), b"")
    assert refused.value.code == "arrivals-folder"


def test_whoever_carries_the_messages_reads_the_plan_and_nothing_else(office: Office) -> None:
    """The bodies of all envelopes but greetings are sealed: no message of a run can be found in what was carried."""
    run(office.federation, office)  # type: ignore[attr-defined]
    kinds = {parse(data).kind for data in office.seen}
    assert kinds == {EnvelopeKind.GREETING, EnvelopeKind.REQUEST, EnvelopeKind.REPLY}
    for data in office.seen:
        if parse(data).kind is not EnvelopeKind.GREETING:
            assert not any(head(kind) in data for kind in MessageKind)


def test_what_the_node_keeps_is_its_own(office: Office) -> None:
    """Every file of the node's folder is closed to others; the binned rows too."""
    federation = office.federation  # type: ignore[attr-defined]
    folder, names = federation.folder / "site-0-state", set[str]()

    def look(node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
        found = office.plainly(node, data, answer)
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}
        assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in modes}
        names.update(path.name for path in modes)
        return found

    office.bend = look
    run(federation, office)
    assert {"node.db", "link.db", "counter.json", RUN_ROWS, "codes.npy"} <= names


def test_a_node_whose_process_ends_has_written_all_that_it_did(office: Office) -> None:
    """The next process may come in an hour: every answer has a step of its own in the folder by then."""
    federation = office.federation  # type: ignore[attr-defined]
    place = federation.folder / "site-0-state" / "counter.json"
    steps: list[int] = []

    def look(node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
        found = office.plainly(node, data, answer)
        if place.exists():
            steps.append(json.loads(place.read_text(encoding="ascii"))["sequence"])
        return found

    office.bend = look
    run(federation, office)
    assert max(steps) >= 4, "Two rounds, each with a vector and an answer."


@pytest.mark.parametrize("is_lost_before", [True, False])
def test_every_request_lost_once_changes_nothing(office: Office, is_lost_before: bool) -> None:
    """Requests that never arrive, or whose replies never do, are repeated and answered from the node's store."""
    federation = office.federation  # type: ignore[attr-defined]
    seen: set[bytes] = set()

    def lose(node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
        if data not in seen:
            seen.add(data)
            if not is_lost_before:
                answer()
            return None
        return Fetched("", answer())

    office.bend = lose
    _, hub = run(federation, office)
    assert federation.model() == federation.local_model()
    assert set(hub.n_requests.values()) == {10}


def test_a_repeated_request_gets_the_same_bytes(office: Office) -> None:
    """Not even a nonce is drawn again: what left once leaves again, byte for byte."""
    federation = office.federation  # type: ignore[attr-defined]
    n_compared = 0

    def twice(node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
        nonlocal n_compared
        first = answer()
        assert answer() == first
        n_compared += 1
        return Fetched("", first)

    office.bend = twice
    run(federation, office)
    assert n_compared == 30


class Killed(BaseException):
    """The process of a ClientApp is gone."""


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 3, 5, 6, 9])
def test_a_process_killed_before_its_reply_was_kept_costs_no_more_than_a_new_link(
    office: Office, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Killed with the session's state written and the reply not: the node says so, is greeted anew and goes on."""
    federation = office.federation  # type: ignore[attr-defined]
    save = LinkStore.save
    is_armed = [True]

    def dying(store: LinkStore, link: object) -> None:
        is_last = link.number == number and link.reply is not None  # type: ignore[attr-defined]
        if is_armed[0] and is_last and "site-1" in str(store._database.path):
            is_armed[0] = False
            raise Killed
        save(store, link)  # type: ignore[arg-type]

    def survive(node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
        try:
            return Fetched("", answer())
        except Killed:
            return None

    monkeypatch.setattr(LinkStore, "save", dying)
    office.bend = survive
    run(federation, office)
    assert not is_armed[0]
    assert federation.model() == federation.local_model()


def test_a_node_that_is_away_for_a_while_comes_back_into_the_run(office: Office) -> None:
    """Its SuperNode is offline after the third request: the link ends, and a greeting finds it where it was."""
    federation = office.federation  # type: ignore[attr-defined]
    counts: dict[int, int] = {}
    asked = [0]

    def leave(node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
        counts[node] = counts.get(node, 0) + 1
        if node == FIRST_NODE and counts[node] == 8:
            office.away.add(node)
            return None
        return Fetched("", answer())

    nodes = office.nodes

    def roll() -> Sequence[int]:
        there = nodes()
        asked[0] += bool(office.away)
        if asked[0] > 5:
            office.away.clear()
        return there

    office.bend, office.nodes = leave, roll  # type: ignore[method-assign]
    run(federation, office)
    assert asked[0] > 5
    assert federation.model() == federation.local_model()


def test_a_coordinator_started_again_goes_on_from_its_journal(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ServerApp dies after the first release; a new `flwr run` finishes the run, with the same model."""
    federation = office.federation  # type: ignore[attr-defined]
    n_requests = [0]

    def die(node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
        n_requests[0] += 1
        if n_requests[0] == 25:
            raise Killed
        return Fetched("", answer())

    office.bend = die
    monkeypatch.setattr(EnvelopeHub, "close", lambda hub: None)
    with pytest.raises(Killed):
        run(federation, office)
    office.bend = office.plainly
    run(federation, office)
    assert federation.model() == federation.local_model()


@pytest.mark.slow
def test_trees_that_the_sites_draw_are_the_local_engines(in_files: Callable[..., ModuleType]) -> None:
    """A plan whose seed nobody picks: the model says which one was drawn, and the engine `local` makes it with that.

    One node comes when the first release is made, and so joins in a second epoch, under the seed of the first.
    """
    federation = in_files(n_sites=4, n_trees=6, structure_seed="joint", join_timeout=20)
    office = office_of(federation)
    late, n_uploads = FIRST_NODE + 3, [0]
    office.away.add(late)

    def arrive(node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
        envelope = parse(data)
        n_uploads[0] += envelope.kind is EnvelopeKind.REQUEST and envelope.number == 5
        if n_uploads[0] == 3:
            office.away.discard(late)
        return Fetched("", answer())

    office.bend = arrive
    model, hub = run(federation, office)
    assert isinstance(model.plan.model.structure_seed, int) and hub.n_requests["site-3"] > 4
    survivors = federation.survivors()
    assert survivors[0] == federation.sites[:3] and survivors[-1] == federation.sites
    assert federation.model() == federation.survivors_model(model.plan)


def test_a_model_is_evaluated_over_held_out_rows(office: Office) -> None:
    """Trained, then evaluated, by group and by site: the local engine's numbers, and the model travels sealed only."""
    federation = office.federation  # type: ignore[attr-defined]
    run(federation, office)
    office.seen.clear()
    _, hub = run(federation, office, "evaluation.toml")
    federation.assert_evaluated()
    told = json.loads((federation.folder / "scores.json").read_bytes())
    assert told["sites"] == federation.sites and 0 < told["cost"]["epsilon_gdp"] <= 2 and "auc" in told["scores"]
    # The greeting does not invite: that takes one exchange more.
    assert dict(hub.n_requests) == dict.fromkeys(federation.sites, 1 + 1 + 4 + 2 * 4 + 1)
    for data in office.seen:
        assert parse(data).kind is not EnvelopeKind.GREETING or not open_messages(parse(data), b"")
        assert b'"trees"' not in data and head(MessageKind.EVALUATION) not in data


def test_a_run_repeated_after_an_evaluation_forgets_no_charge(
    office: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the finished run's own model nor a new run's replaces the one with the evaluation on its account."""
    federation = office.federation  # type: ignore[attr-defined]
    run(federation, office)
    file = federation.folder / "evaluation.toml"
    file.write_text(file.read_text(encoding="ascii").replace("evaluated.json", "model.json"), encoding="ascii")
    run(federation, office, "evaluation.toml")
    charged = federation.model()
    capsys.readouterr()
    run(federation, office)
    assert federation.model() == charged and "The run is over" in capsys.readouterr().err
    (federation.folder / "model.json.journal").unlink()
    with pytest.raises(UsageError) as refused:
        run(federation, office)
    assert refused.value.code == "model-exists" and federation.model() == charged
    assert not (federation.folder / "model.json.journal").exists()


@pytest.mark.parametrize("approve", [True, False])
def test_a_node_asks_its_owner_and_is_greeted_again_until_there_is_an_answer(office: Office, approve: bool) -> None:
    """Each message is a process of its own, and none can wait: the coordinator does, and goes on by the answer."""
    federation = office.federation  # type: ignore[attr-defined]
    policy = (federation.folder / "policy.toml").read_text()
    (federation.folder / "asks.toml").write_text(policy + 'ask = "always"\n')
    file = federation.folder / "site-0.toml"
    file.write_text(file.read_text().replace("policy.toml", "asks.toml"))
    state, n_asked = federation.folder / "site-0-state", []

    def answered_late(node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
        reply = office.plainly(node, data, answer)
        if node == FIRST_NODE and parse(data).kind is EnvelopeKind.GREETING:
            with closing(OwnerDesk(state)) as desk:
                question = desk.pending()
                n_asked.extend([] if question is None else [question.id])
                if question is not None and len(n_asked) == 3:
                    desk.answer(question.id, approve=approve)
        return reply

    office.bend = answered_late
    if approve:
        model, _ = run(federation, office)
        assert forget_place(model.to_bytes()) == federation.local_model()
    else:
        with pytest.raises(HedgerowError) as too_few:
            run(federation, office)
        assert "site-0 refused: policy-denied" in str(too_few.value)
    assert len(n_asked) == 3 and len(set(n_asked)) == 1
    assert f"hedgerow approve {state} {n_asked[0]}" in (state / "node.log").read_text()


def test_a_node_evaluates_only_rows_and_models_that_its_owner_named(office: Office) -> None:
    """A node without held-out rows says so; one that did not help to make a model evaluates it if its file says so."""
    federation = office.federation  # type: ignore[attr-defined]
    run(federation, office)
    file = federation.folder / "site-0.toml"
    complete = file.read_text()
    shutil.rmtree(federation.folder / "site-0-state")
    (federation.folder / "site-0-budget.db").unlink()
    named = complete + 'models = ["model.json"]\n'
    for text, code in ((complete, "policy-model"), (without(named, "held_out"), "policy-no-held-out")):
        file.write_text(text)
        with pytest.raises(HedgerowError) as too_few:
            run(federation, office, "evaluation.toml")
        assert too_few.value.code == "too-few-sites" and f"site-0 refused: {code}" in str(too_few.value)
        # It has said why, and the end of the run is no other fault of its own.
        log = (federation.folder / "site-0-state" / "node.log").read_text()
        assert code in log and "out-of-order" not in log
        for journal in federation.folder.glob("evaluated.json.*"):
            journal.unlink()
    file.write_text(without(named, "data"))
    # Its peers know of what its book has lost: its owner charges for that first.
    with pytest.raises(HedgerowError) as too_few:
        run(federation, office, "evaluation.toml")
    assert "site-0 refused: budget-rolled-back" in str(too_few.value)
    with closing(BudgetBook(federation.folder / "site-0-budget.db")) as book:
        book.charge_lost("wards", "record", 0.5, 1e-6)
    for journal in federation.folder.glob("evaluated.json.*"):
        journal.unlink()
    run(federation, office, "evaluation.toml")
    federation.assert_evaluated()


def without(text: str, field: str) -> str:
    """A file of fields, without one of them."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(f"{field} ="))


def test_another_coordinator_is_not_answered(office: Office, tmp_path: Path) -> None:
    """A SuperLink's owner with a key of his own gets nothing out of a node: the roster's key has not signed."""
    federation = office.federation  # type: ignore[attr-defined]
    codes: list[str] = []

    def forge(node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
        forged = data[:-1] + bytes([data[-1] ^ 1])
        with pytest.raises(WireRefusal) as refused:
            site.answer_request(office.places[node], forged)
        codes.append(refused.value.code)
        return Fetched("", answer())

    office.bend = forge
    run(federation, office)
    assert set(codes) == {"unpinned"}


def test_a_reply_that_was_altered_is_not_read(office: Office) -> None:
    """Whoever carries a reply and changes it is found out; the site is greeted anew, and the model is the same."""
    federation = office.federation  # type: ignore[attr-defined]
    n_altered = [0]

    def alter(node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
        reply = answer()
        if node == FIRST_NODE + 2 and parse(data).number == 3 and not n_altered[0]:
            n_altered[0] += 1
            return Fetched("", reply[:200] + bytes([reply[200] ^ 1]) + reply[201:])
        return Fetched("", reply)

    office.bend = alter
    _, hub = run(federation, office)
    assert hub.refusals["unpinned"] == 1
    assert federation.model() == federation.local_model()


def test_a_second_node_of_a_site_is_turned_away(office: Office) -> None:
    """A SuperNode started twice with one site's file: the first one stays."""
    federation = office.federation  # type: ignore[attr-defined]
    office.places[FIRST_NODE + 9] = office.places[FIRST_NODE]
    _, hub = run(federation, office)
    assert hub.refusals["duplicate-node"] == 1
    assert federation.model() == federation.local_model()


def test_an_older_greeting_is_refused_and_the_coordinator_is_told_the_newest_number(office: Office) -> None:
    """Who carried a signed greeting could keep it, and take the node out of a later run with it: five rounds were paid
    for and lost. A coordinator that starts again without a clock still finds its way in.
    """
    federation = office.federation  # type: ignore[attr-defined]
    hub = read_private(Path(federation.path("hub.private.json")))

    def greeted(number: int) -> tuple[bytes, Envelope]:
        bare = Envelope(EnvelopeKind.GREETING, "", os.urandom(32), number, derive_public_key(os.urandom(32)), bytes(32))
        raw = sign(replace(bare, body=bundle_messages([])), hub.seed)
        return raw, parse(office.answer(FIRST_NODE, raw))

    old, first = greeted(5)
    newer, second = greeted(9)
    kept = office.answer(FIRST_NODE, newer)
    again = parse(office.answer(FIRST_NODE, old))
    assert [first.kind, second.kind, again.kind] == [EnvelopeKind.REPLY, EnvelopeKind.REPLY, EnvelopeKind.LOST]
    assert again.number == greeted(9)[1].number == 9 and greeted(8)[1].kind is EnvelopeKind.LOST
    assert office.answer(FIRST_NODE, newer) == kept, "the link that is there goes on"
    run(federation, office)


def test_what_the_coordinator_signed_for_others_or_as_no_request_is_not_answered(office: Office) -> None:
    """Who carries envelopes could bring one site what was signed for another, or what a node would have said."""
    federation = office.federation  # type: ignore[attr-defined]
    seed, key = read_private(Path(federation.path("hub.private.json"))).seed, derive_public_key(os.urandom(32))
    number = itertools.count(5)

    def envelope(kind: EnvelopeKind, name: str) -> bytes:
        bare = Envelope(kind, name, os.urandom(32), next(number), key, bytes(32))
        return sign(replace(bare, body=bundle_messages([])), seed)

    asking = {EnvelopeKind.GREETING, EnvelopeKind.REQUEST}
    for kind, name in itertools.product(EnvelopeKind, ("", "site-0", "site-1")):
        data = envelope(kind, name)
        if kind in asking and name != "site-1":
            assert parse(office.answer(FIRST_NODE, data)).site == "site-0"
            continue
        with pytest.raises(WireRefusal, check=coded("unexpected-frame")):
            office.answer(FIRST_NODE, data)


def test_a_request_out_of_its_turn_is_answered_by_none(office: Office) -> None:
    """Who carries signed requests could leave one out, or bring an old one in another's place, and the node would take
    the run's messages in another order than the coordinator sent them.
    """
    federation = office.federation  # type: ignore[attr-defined]
    hub, secret, link = read_private(Path(federation.path("hub.private.json"))), os.urandom(32), os.urandom(32)
    seed, own_key = hub.seed, hub.public.identity_key
    bare = Envelope(EnvelopeKind.GREETING, "", link, 5, derive_public_key(secret), bytes(32))
    greeting = parse(office.answer(FIRST_NODE, sign(replace(bare, body=bundle_messages([])), seed)))
    keys = LinkKeys.agree(secret, greeting.key, link, "site-0")

    def answer(number: int, own: bytes = link) -> tuple[EnvelopeKind, int]:
        asked = Envelope(EnvelopeKind.REQUEST, "site-0", own, number, derive_public_key(secret), bytes(32))
        reply = parse(office.answer(FIRST_NODE, sign(seal_messages(asked, keys.to_node, [], os.urandom), seed)))
        assert reply.kind is EnvelopeKind.REPLY or not read_kept(reply)
        return reply.kind, reply.number

    def read_kept(reply: Envelope, coordinator: bytes = own_key) -> tuple[bytes, ...]:
        """What a page tells of a reply that was kept."""
        with closing(LinkStore(federation.folder / "site-0-state", coordinator)) as store:
            return store.open_reply("site-0", reply)

    # Only a reply of the present link is told of, and of no other coordinator's.
    assert read_kept(greeting) == open_messages(greeting, keys.to_hub) != ()
    assert read_kept(replace(greeting, link=os.urandom(32))) == read_kept(greeting, bytes(32)) == ()
    assert answer(7) == (EnvelopeKind.LOST, 5) and answer(6)[0] is EnvelopeKind.REPLY
    assert [answer(number) for number in (4, 5, 6, 8)] == [(EnvelopeKind.LOST, 6)] * 4
    assert answer(7, own=os.urandom(32)) == (EnvelopeKind.LOST, 6)
    assert answer(7)[0] is EnvelopeKind.REPLY


def test_neither_end_begins_with_an_identity_that_its_own_roster_does_not_pin(office: Office) -> None:
    """A key that was renewed needs a new roster: else peers refuse what it signs, and nobody says why."""
    folder = office.federation.folder  # type: ignore[attr-defined]
    for path in folder.glob("site-0.p*"):
        path.unlink()
    create_identity(folder, "site-0", Role.SITE)
    with pytest.raises(EnvironmentFault, check=coded("identity-not-pinned")):
        office.answer(FIRST_NODE, b"")
    hub, clock = new_identity("hub", Role.COORDINATOR, b"a" * 32), Clock(lambda: 0.0, lambda _: None, os.urandom, float)
    with pytest.raises(EnvironmentFault, check=coded("identity-not-pinned")):
        EnvelopeHub(hub, read_roster(folder / "roster.toml"), office, clock)


def test_a_coordinator_that_counts_too_high_shuts_no_other_out(office: Office) -> None:
    """Nobody could coordinate the site any more, by any roster, until its owner deleted what the node keeps; and what
    an earlier roster's coordinator has sent is not taken again, should its roster come back.
    """
    federation = office.federation  # type: ignore[attr-defined]
    folder, first = federation.folder, read_private(Path(federation.path("hub.private.json")))
    secret, link = os.urandom(32), os.urandom(32)

    def send(kind: EnvelopeKind, number: int, to_node: bytes = b"") -> tuple[bytes, Envelope]:
        site_name = "site-0" if to_node else ""
        bare = Envelope(kind, site_name, link, number, derive_public_key(secret), bytes(32))
        body = seal_messages(bare, to_node, [], os.urandom) if to_node else replace(bare, body=bundle_messages([]))
        raw = sign(body, first.seed)
        return raw, parse(office.answer(FIRST_NODE, raw))

    too_high = send(EnvelopeKind.GREETING, HIGHEST_NUMBER)[1]
    assert (too_high.kind, too_high.number) == (EnvelopeKind.LOST, 0), "the coordinator may name the next number"
    old, reply = send(EnvelopeKind.GREETING, HIGHEST_NUMBER - 1)
    keys = LinkKeys.agree(secret, reply.key, link, "site-0")
    assert reply.kind is send(EnvelopeKind.REQUEST, HIGHEST_NUMBER, keys.to_node)[1].kind is EnvelopeKind.REPLY
    before, roster = (folder / "roster.toml").read_bytes(), read_roster(folder / "roster.toml")
    (folder / "hub.private.json").unlink()
    (folder / "hub.public.toml").unlink()
    second, _, _ = create_identity(folder, "hub", Role.COORDINATOR)
    (folder / "roster.toml").write_text(build_roster(second.public, roster.sites).to_toml())
    run(federation, office)
    assert federation.model() == federation.local_model()
    with closing(sqlite3.connect(folder / "site-0-state" / "link.db")) as connection:
        assert len(connection.execute("select * from link where secret != x''").fetchall()) == 1, "old keys are gone"
    (folder / "roster.toml").write_bytes(before)
    assert parse(office.answer(FIRST_NODE, old)).kind is EnvelopeKind.LOST


def test_two_processes_do_not_answer_for_one_site(office: Office) -> None:
    """While one process works on a request, another one that has the same file is refused by the database's lock."""
    federation = office.federation  # type: ignore[attr-defined]
    store = LinkStore(federation.folder / "site-0-state", bytes(32))
    try:
        with pytest.raises(EnvironmentFault) as refused:
            LinkStore(federation.folder / "site-0-state", bytes(32))
        assert refused.value.code == "database-locked"
    finally:
        store.close()


class OneNode:
    """A post office with the node of one site, which takes every greeting and answers nothing else."""

    def __init__(self, identity: PrivateIdentity) -> None:
        self._identity, self._replies = identity, list[Fetched]()
        self.kinds: list[EnvelopeKind] = []

    def nodes(self) -> dict[int, str]:
        return {FIRST_NODE: ""}

    def push(self, letters: Sequence[tuple[int, bytes]]) -> list[str | None]:
        for _, data in letters:
            asked = parse(data)
            self.kinds.append(asked.kind)
            if asked.kind is EnvelopeKind.GREETING:
                secret, site = bytes([1]) * KEY_BYTES, self._identity.public.name
                key = derive_public_key(secret)
                bare = Envelope(EnvelopeKind.REPLY, site, asked.link, asked.number, key, asked.digest)
                keys = LinkKeys.agree(secret, asked.key, asked.link, site)
                reply = sign(seal_messages(bare, keys.to_hub, [], os.urandom), self._identity.seed)
                self._replies.append(Fetched(str(len(self.kinds)), reply))
        return [str(len(self.kinds)) for _ in letters]

    def pull(self, numbers: Iterable[str]) -> list[Fetched]:
        found, self._replies = self._replies, []
        return found


@pytest.mark.parametrize(("length", "most"), [(1 << 20, 128), (0, 4096)])
def test_what_waits_for_a_site_is_bounded(length: int, most: int) -> None:
    """A reply of 4,096 Hellos, each answered with all releases, filled the memory, and one request holds no more."""
    hub_identity, site = new_identity("hub", Role.COORDINATOR, b"a" * 32), new_identity("north", Role.SITE, b"b" * 32)
    post = OneNode(site)
    now = itertools.count()
    clock = Clock(lambda: float(next(now)), lambda _: None, os.urandom, lambda: 0.0)
    hub = EnvelopeHub(hub_identity, build_roster(hub_identity.public, [site.public]), post, clock)
    assert hub.receive(60.0) == Joined("north")
    message = bytes(length)
    taken = next(number for number in itertools.count() if number > 5000 or not hub.send("north", message))
    assert most // 2 < taken <= most and not hub.send("north", b"")
    assert [hub.receive(60.0), hub.receive(60.0)] == [Left("north", "slow-peer"), Joined("north")]
    assert hub.send("north", b"") and post.kinds == [EnvelopeKind.GREETING, EnvelopeKind.GREETING]


class Tables:
    """The tables of site-0, to train on and held out: files, and what a database has of them if its node reads one."""

    def __init__(self, federation: Federation, in_database: bool) -> None:
        self._files = [federation.folder / f"site-0{ending}.csv" for ending in ("", "-held-out")]
        self._database = federation.folder / "wards.duckdb" if in_database else None
        file = federation.folder / "site-0.toml"
        text = file.read_text(encoding="ascii")
        for number, table in enumerate(self._files if in_database else ()):
            self._execute(f"create table t{number} as from read_csv('{table}')")
            url = f"duckdb:///{self._database}#select * from t{number} order by rowid"
            text = text.replace(f'"{table.name}"', f'"{url}"')
        file.write_text(text, encoding="ascii")

    def insert(self, number: int) -> None:
        """A row comes."""
        table = self._files[number]
        table.write_text(table.read_text(encoding="ascii") + "50,a,1\n", encoding="ascii")
        self._execute(f"insert into t{number} values (50, 'a', 1)")

    def lose(self, number: int) -> None:
        """No table is left, and no row in the database."""
        self._files[number].unlink()
        self._execute(f"delete from t{number}")

    def _execute(self, statement: str) -> None:
        if self._database is not None:
            with duckdb.connect(str(self._database)) as connection:
                connection.execute(statement)


def draw_alike() -> Callable[[int], bytes]:
    """What Hedgerow takes for the system's generator, the same each time; what it imports has the true one."""
    draws, truly = itertools.count(), os.urandom

    def draw(n_bytes: int) -> bytes:
        is_ours = str(sys._getframe(1).f_globals["__name__"]).startswith("hedgerow.")
        return random.Random(next(draws)).randbytes(n_bytes) if is_ours else truly(n_bytes)

    return draw


@pytest.mark.slow
@pytest.mark.parametrize("in_database", [False, True])
def test_what_happens_to_rows_in_a_run_is_not_seen(
    in_database: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A patient who is admitted between two messages changes no byte that leaves, nor who is in a sum, of a training
    or an evaluation; the next run has the rows of its own time, and none are kept after one."""
    monkeypatch.setattr("hedgerow.app.node.SystemNoise", lambda entropy: SeededNoise(5))
    federation = Federation(tmp_path / "keys", 3, {"n_trees": 2, "batch_size": 1})

    def play(*changes: str) -> list[bytes]:
        federation.folder = shutil.copytree(tmp_path / "keys", tmp_path / "-".join(("run", *changes)))
        tables, office = Tables(federation, in_database), office_of(federation)
        state = federation.folder / "site-0-state"
        # What the owner looked at before the run is not what is in it.
        site.check_site(read_site_file(federation.folder / "site-0.toml"))
        tables.insert(0)
        expected, events = federation.local_model(), list[Callable[[], None]]()
        monkeypatch.setattr("os.urandom", draw_alike())

        def bend(node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
            found = office.plainly(node, data, answer)
            if node == FIRST_NODE and (state / RUN_ROWS).exists() and events:
                # Its run has begun.
                events.pop(0)()
            return found

        office.bend = bend
        for number, name in enumerate(("coordinator.toml", "evaluation.toml")):
            events += [partial(getattr(tables, change), number) for change in changes]
            run(federation, office, name)
            assert not events and not (state / RUN_ROWS).exists()
        assert federation.model() == expected
        assert federation.survivors() == [federation.sites] * 2
        return office.seen

    assert play() == play("insert", "insert", "lose")


class Lives:
    """How long each site's node lives: for one message, for the run, or until it is struck, by a seed above 0."""

    def __init__(self, office: Office, seed: int | None) -> None:
        self.nodes = {place: ResidentNode() for place in office.places.values()}
        self._places, self._random, self._seed = office.places, random.Random(seed), seed
        self.n_struck = 0

    def answer(self, node: int, data: bytes) -> bytes:
        place = self._places[node]
        if self._seed is None:
            return site.answer_request(place, data)
        if self._seed and self._random.random() < 0.3:
            self.n_struck += 1
            self.nodes[place].close()
        return self.nodes[place].answer(place, data)


@pytest.mark.slow
@pytest.mark.parametrize("changes_policy", [False, True])
def test_a_node_sends_the_same_bytes_however_long_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes_policy: bool
) -> None:
    """A resident node, struck between messages or never, sends and keeps what a node that lives for one message does:
    in a training, in an evaluation, and where its owner makes the policy narrower while the run goes on."""
    monkeypatch.setattr("hedgerow.app.node.SystemNoise", lambda entropy: SeededNoise(5))
    federation = Federation(tmp_path / "keys", 3, {"n_trees": 3, "batch_size": 1})

    def play(name: str, seed: int | None) -> tuple[list[bytes], list[object]]:
        federation.folder = shutil.copytree(tmp_path / "keys", tmp_path / name)
        office, n_letters = office_of(federation), [0]
        lives = Lives(office, seed)
        office.answer = lives.answer  # type: ignore[method-assign]
        monkeypatch.setattr("os.urandom", draw_alike())

        def bend(node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
            n_letters[0] += 1
            if n_letters[0] == 21 and changes_policy:
                policy = federation.folder / "policy.toml"
                policy.write_text(policy.read_text().replace("max_epsilon = ", "max_epsilon = 0.0"))
            return office.plainly(node, data, answer)

        office.bend = bend
        with pytest.raises(HedgerowError) if changes_policy else contextlib.nullcontext():
            run(federation, office)
            run(federation, office, "evaluation.toml")
        assert (lives.n_struck > 0) == bool(seed)
        for node in lives.nodes.values():
            node.close()
        left = list[object]()
        for site_name in federation.sites:
            key = read_private(Path(federation.path(f"{site_name}.private.json"))).public.identity_key
            with closing(BudgetBook(federation.folder / f"{site_name}-budget.db")) as book:
                left += [(line.status, line.epsilon(1e-6)) for line in book.lines()]
                left += sorted(book.peers.headers(key).items())
            counter = json.loads((federation.folder / f"{site_name}-state" / "counter.json").read_bytes())
            left.append({name: counter[name] for name in ("attempt", "sequence", "answered", "masked")})
        return office.seen, left

    expected = play("one-message", None)
    assert len(expected[0]) > 40
    for seed in (0, 1, 2):
        assert play(f"lives-{seed}", seed) == expected


def test_a_resident_node_takes_each_release_once(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a run grows with its rounds, and not with their square."""
    taken, feed = [0], NodeRun.feed

    def count(node_run: NodeRun, release: Any) -> None:
        taken[0] += 1
        feed(node_run, release)

    monkeypatch.setattr(NodeRun, "feed", count)
    federation = office.federation  # type: ignore[attr-defined]
    office.answer = Lives(office, 0).answer  # type: ignore[method-assign]
    model, _ = run(federation, office)
    assert taken[0] == len(federation.sites) * len(model.ledger.releases)
    assert federation.model() == federation.local_model()


@pytest.mark.parametrize("text", ["version = 1\n", "version = 2\n", "no toml", 'version = 1\nsurprise = "x"\n'])
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    """A missing, unknown or wrong field of a site's or coordinator's file has one code word."""
    path = tmp_path / "file.toml"
    path.write_text(text)
    for read in (read_site_file, read_coordinator_file):
        with pytest.raises(UsageError) as refused:
            read(path)
        assert refused.value.code == "party-file"


@pytest.mark.parametrize(
    "task",
    [
        "", 'plan = "p"', 'plan = "p"\nmodel = "m"\nout = "o"\nepsilon = 1.0', 'model = "m"',
        'plan = "p"\nout = "o"\nepsilon = 1.0', 'plan = "p"\nout = "o"\nscores = "s"', 'model = "m"\nepsilon = 0',
    ],
)  # fmt: skip
def test_a_coordinators_file_says_what_to_do(tmp_path: Path, task: str) -> None:
    """It trains by a plan or evaluates a model, never half of either: an epsilon that nobody reads would mislead."""
    path = tmp_path / "file.toml"
    path.write_text(f'version = 1\nroster = "r"\nidentity = "i"\n{task}\n')
    with pytest.raises(UsageError) as refused:
        read_coordinator_file(path)
    assert refused.value.code == "party-file"


def test_a_site_has_rows_of_some_kind(tmp_path: Path) -> None:
    """To train on, held out, or both; paths are those of the file's folder, and a list of them too."""
    path = tmp_path / "file.toml"
    needed = "".join(f'{name} = "x"\n' for name in ("identity", "roster", "policy", "state"))
    path.write_text(f"version = 1\n{needed}")
    with pytest.raises(UsageError) as refused:
        read_site_file(path)
    assert refused.value.code == "party-file"
    path.write_text(f'version = 1\n{needed}held_out = "h.csv"\nmodels = ["a.json", "/b.json"]\n')
    file = read_site_file(path)
    assert file.held_out == str(tmp_path / "h.csv") and file.models == (str(tmp_path / "a.json"), "/b.json")


def test_a_resident_node_answers_behind_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a SuperNode's user sees of the node: replies, code words, and nothing when nobody listens."""

    def answer(path: Path, request: bytes) -> bytes:
        if request == b"bad":
            raise EnvironmentFault("The disk is full.", code="disk-full")
        return path.name.encode() + request

    monkeypatch.setattr(site, "answer_request", answer)
    place, resident = tmp_path / "s", partial(answer_handed_on, lambda: tmp_path / "file")

    def hand_on(release: str, request: bytes) -> HandedBack:
        return HandedBack.from_bytes(answer_handed_on(lambda: place, HandedOn(release, request).to_bytes()))

    listener = NodeSocket(place)
    thread = threading.Thread(target=lambda: [listener.take(resident) for _ in range(5)])
    thread.start()
    try:
        assert stat.S_IMODE(place.stat().st_mode) == 0o660
        assert hand_on(__version__, b"x" * 3_000_000) == HandedBack(b"file" + b"x" * 3_000_000)
        assert hand_on(__version__, b"bad") == HandedBack(b"", "disk-full")
        assert hand_on("0.0.1", b"x") == HandedBack(b"", "carrier-version")
        assert HandedBack.from_bytes(ask(place, b"no request")) == HandedBack(b"", "malformed")
        # A second node of the site finds the first one.
        with pytest.raises(EnvironmentFault) as refused:
            NodeSocket(place)
        assert refused.value.code == "address-in-use"
    finally:
        thread.join()
        listener.close()
    # Without its socket, the place is taken for the site's file.
    with pytest.raises(EnvironmentFault) as absent:
        ask(place, b"")
    assert absent.value.code == "resident-absent"


def test_who_owns_the_folder_of_a_socket_has_no_other_file_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a carrier's user puts in the socket's place as soon as it is there keeps its mode."""
    own, place = tmp_path / "link.db", tmp_path / "s"
    own.touch(mode=0o600)

    class Watched(socket.socket):
        def bind(self, address: Any) -> None:
            super().bind(address)
            place.unlink()
            place.symlink_to(own)

    monkeypatch.setattr(socket, "socket", Watched)
    NodeSocket(place).close()
    assert stat.S_IMODE(own.stat().st_mode) == 0o600


def test_a_request_has_to_be_there_in_time_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that sends a byte now and then does not keep the site's node from the next request."""
    monkeypatch.setattr(handing, "_PATIENCE", 0.4)
    place, ends = tmp_path / "s", threading.Event()
    listener = NodeSocket(place)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dripping:
        dripping.connect(str(place))

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not ends.wait(0.05):
                    dripping.send(b"H")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            taking = threading.Thread(target=listener.take, args=(lambda *_: b"",), daemon=True)
            taking.start()
            taking.join(600.0)
            assert not taking.is_alive()
        finally:
            ends.set()
            thread.join()
    listener.close()


def test_a_node_that_hangs_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took the request, and does not answer."""
    monkeypatch.setattr(handing, "_MAX_ANSWER", 0.2)
    listener = NodeSocket(tmp_path / "s")
    refused: list[str] = []

    def wait() -> None:
        with pytest.raises(EnvironmentFault) as caught:
            ask(tmp_path / "s", b"")
        refused.append(caught.value.code)

    asking = threading.Thread(target=wait, daemon=True)
    asking.start()
    asking.join(600.0)
    was_answered = not asking.is_alive()
    # Closed, it would hang up on the one who waits.
    listener.close()
    assert was_answered and refused == ["resident-absent"]


@pytest.mark.parametrize(("n_requests", "n_charged"), [(8, 0), (25, 1)])
def test_a_stopped_run_makes_room_for_a_corrected_plan(
    in_files: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch, n_requests: int, n_charged: int
) -> None:
    """Over Flower, too: each site takes part in the corrected plan that it has pinned, charged for what has left it."""
    federation = in_files()
    office = office_of(federation)
    seen = [0]

    def die(node: int, data: bytes, answer: Callable[[], bytes]) -> Fetched | None:
        seen[0] += 1
        if seen[0] == n_requests:
            raise Killed
        return Fetched("", answer())

    office.bend = die
    with monkeypatch.context() as patch:
        patch.setattr(EnvelopeHub, "close", lambda hub: None)
        with pytest.raises(Killed):
            run(federation, office)
    office.bend = office.plainly
    place = Path(federation.path("plan.toml"))
    place.write_text(place.read_text(encoding="ascii").replace("epsilon = 1", "epsilon = 0.9"), encoding="ascii")
    if n_charged:
        with pytest.raises(UsageError) as refused:
            run(federation, office)
        assert refused.value.code == "journal-of-another-run"
        with Path(federation.path("coordinator.toml")).open("a", encoding="ascii") as file:
            file.write('journal = "second.journal"\n')
    run(federation, office)
    for name in federation.sites:
        with closing(BudgetBook(federation.folder / f"{name}-budget.db")) as book:
            old, new = book.lines()
        assert old.status == "left" and new.status == "finished"
        assert (old.epsilon(1e-6) > 0) == bool(n_charged) and old.epsilon(1e-6) < 1


def test_a_resident_node_says_what_is_wrong_before_it_listens(
    in_files: Callable[..., ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing table or a wrong column ends the command with its code; nobody has to ask first."""
    federation = in_files()
    place, socket = Path(federation.path("site-0.toml")), str(federation.folder / "socket")
    table = federation.folder / "site-0.csv"
    table.write_text("age,ill\n50,1\n", encoding="ascii")
    assert main(["resident-node", str(place), "--socket", socket]) == 4
    assert "data-missing-column" in capsys.readouterr().err
    table.unlink()
    assert main(["resident-node", str(place), "--socket", socket, "--log-format", "json"]) == 4
    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert (line["level"], line["site"], line["code"]) == ("ERROR", "site-0", "data-file-missing")
    assert not Path(socket).exists()
