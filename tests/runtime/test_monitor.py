"""What monitors are told of a run: what happened, public numbers only, and none of it at the run's expense."""

from __future__ import annotations

import dataclasses
import threading
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hedgerow.app.page import Console, PastRun
from hedgerow.app.watch import in_words
from hedgerow.client.policy import Policy
from hedgerow.data.binned import SiteData
from hedgerow.errors import AggregationError
from hedgerow.plan.plan import Plan
from hedgerow.protocol.stream import EventReport, RunReport, event_bytes, report_bytes
from hedgerow.server.coordinator import RunEvent, RunEventKind
from hedgerow.server.status import KEPT_EVENTS, EventsSince, HubTraffic, Publisher, RunBoard
from tests.builders import make_data, make_plan, take

if TYPE_CHECKING:
    from conftest import Builder, Federation

N_ROUNDS = 4
"""Of the tests' plan: one for each tree."""


def watched(federation: Federation, process: bytes = b"process1") -> RunBoard:
    """A board that takes note of everything from now on, as the coordinator's command makes it."""
    names = [site.name for site in federation.roster.sites]
    board = RunBoard(federation.plan, names, N_ROUNDS, lambda: federation.now, process)
    federation.on_event = board
    federation.tamper = lambda _: board.attach(federation.session.run)
    return board


def states(report: RunReport) -> dict[str, tuple[str, str]]:
    return {site.name: (site.state, site.code) for site in report.sites}


def test_the_end_of_a_run(federate: Builder) -> None:
    """The last report agrees with the outcome: rounds, epsilon by the run's own report, everybody in every sum."""
    federation = federate(4)
    board = watched(federation)
    outcome = federation.run()
    report = board.report(HubTraffic(10, 20, {"unpinned": 1}, {federation.roster.sites[0].name: "1.2.3"}))
    assert [site.version for site in report.sites] == ["1.2.3", "", "", ""]
    assert report.is_over and not report.failure and report.seconds_left is None
    assert report.rounds_done == report.rounds_planned == len(outcome.ledger) == N_ROUNDS
    assert report.epsilon_spent == pytest.approx(outcome.report.epsilon)
    assert report.epsilon_spent <= report.epsilon_limit == federation.plan.privacy.epsilon
    assert [(site.name, site.rounds, site.dropouts, site.refusals) for site in report.sites] == [
        (site.name, N_ROUNDS, 0, 0) for site in federation.roster.sites
    ]
    assert (report.bytes_sent, report.bytes_received, report.streams_refused) == (10, 20, {"unpinned": 1})
    assert report.run_id == federation.session.run.run_id
    assert set(states(report).values()) == {("done", "")}
    events, missed = board.events_since(0)
    assert [event.number for event in events] == [*range(1, len(events) + 1)] and missed == 0
    assert [event.kind for event in events][-1] == "finished"
    phases = [event.code for event in events if event.kind == "phase"]
    assert phases == ["setting-up", "finishing"], "each is told once, those within a round never"


def test_a_refusal_is_shown_with_its_code(federate: Builder) -> None:
    """The site stays refused when its node hangs up after it, and that is no dropout."""
    strict = Policy(version=1, data_set="test", max_epsilon=0.1, delta=1e-5, noise=("server", "distributed"))
    federation = federate(5, policies={"site-2": strict})
    board = watched(federation)
    federation.run()
    report = board.report(HubTraffic())
    assert states(report)["site-2"] == ("refused", "policy-over-budget")
    (site,) = (site for site in report.sites if site.name == "site-2")
    assert (site.rounds, site.dropouts, site.refusals) == (0, 0, 1)
    assert ("refused", "site-2", "policy-over-budget") in [
        (event.kind, event.site, event.code) for event in board.events_since(0)[0]
    ]


def test_a_dropout_is_counted(federate: Builder) -> None:
    """A node killed after the second release is shown as gone, with the sums that it is in."""
    federation = federate(5)
    board = watched(federation)

    def kill(event: RunEvent) -> None:
        board(event)
        if event.kind is RunEventKind.RELEASED and event.round == 2:
            federation.parties["site-1"].kill()

    federation.on_event = kill
    federation.run()
    (site,) = (site for site in board.report(HubTraffic()).sites if site.name == "site-1")
    assert (site.state, site.dropouts) == ("left", 1)
    assert site.rounds == sum("site-1" in survivors for survivors in federation.session.run.survivors) < N_ROUNDS


def test_a_node_that_has_the_model_may_go(federate: Builder) -> None:
    """Hanging up after the last message is no dropout; a node that goes before it has said so is one."""
    federation = federate(5)
    board = watched(federation)

    def leave(event: RunEvent) -> None:
        board(event)
        if event.code == "finishing":
            federation.parties["site-1"].kill()

    federation.on_event = leave
    federation.run()
    ended = states(board.report(HubTraffic()))
    assert ended.pop("site-1")[0] == "left"
    assert set(ended.values()) == {("done", "")}


def test_a_run_that_is_given_up_says_why(federate: Builder) -> None:
    """The failure's code is in the last report."""
    strict = Policy(version=1, data_set="test", max_epsilon=0.1, delta=1e-5, noise=("server", "distributed"))
    federation = federate(3, policies={"site-0": strict})
    board = watched(federation)
    with pytest.raises(AggregationError):
        federation.run()
    report = board.report(HubTraffic())
    assert report.is_over and report.failure == "too-few-sites"
    assert "stopped" in [event.kind for event in board.events_since(0)[0]]


def test_after_a_restart_the_journal_counts(federate: Builder, killed: type[BaseException]) -> None:
    """A coordinator that is killed and started again reports the same run, its rounds and epsilon from before."""
    federation = federate(4)
    first = watched(federation)
    with pytest.raises(killed):
        federation.run(kill_after=9)
    before = first.report(HubTraffic())
    second = watched(federation, b"process2")
    outcome = federation.run()
    after = second.report(HubTraffic())
    assert before.run_id == after.run_id and before.process != after.process
    assert 0 < before.rounds_done < after.rounds_done == N_ROUNDS
    assert after.epsilon_spent == pytest.approx(outcome.report.epsilon)
    assert [site.rounds for site in after.sites] == [N_ROUNDS] * 4


def everything_told(federation: Federation) -> list[bytes]:
    """Every report and event of a run, as they go over the wire and onto a page, without the numbers that are drawn for
    it; and the page as it is when another run of the study begins.
    """
    board = watched(federation)
    told: list[bytes] = []
    with Console("0", federation.plan) as page:

        def tell(event: RunEvent) -> None:
            board(event)
            report = dataclasses.replace(board.report(HubTraffic()), run_id=bytes(32), epsilon_spent=0.0)
            events, missed = board.events_since(0)
            page.take(report, events)
            told.append(report_bytes(report) + event_bytes(events, missed) + read(page))

        federation.on_event = tell
        outcome = federation.run()
        releases = tuple(outcome.ledger.events())
        page.show_history([PastRun("run 1", "finished", outcome.plan, releases)], federation.plan)
        told.append(read(page))
        assert b'"history"' in told[-1] and b'"budget"' in told[-1] and b'"plan"' in told[-1]
    return told


def read(page: Console) -> bytes:
    """All that the page's script is told."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(page.url + "state", timeout=300) as answer:
        content: bytes = answer.read()
    return content


def test_what_is_told_does_not_depend_on_rows(federate: Builder) -> None:
    """The same run over other rows, other labels and other numbers of rows tells the same, byte for byte.

    Epsilon stands aside: the noise's scale follows the released sums, so it differs in the sixth digit. It is that of
    the public ledger, as the first test checks.
    """
    one, other = federate(4, name="one"), federate(4, name="other")
    plan = other.plan
    for number, (site, party) in enumerate(sorted(other.parties.items())):
        rows: SiteData = take(make_data(plan, 50, 100 + number), np.arange(10 + number))
        party.kill()
        party.setup = dataclasses.replace(party.setup, load=lambda _, rows=rows: rows)
        party.start()
        assert len(other.data[site].labels) != len(rows.labels)
    told = everything_told(one)
    assert told == everything_told(other)
    assert len(set(told)) > 10


def test_events_that_are_not_kept_are_counted() -> None:
    """Whoever was away for long is told how many events it missed, and the last ones."""
    board = noisy_board(KEPT_EVENTS + 40)
    events, missed = board.events_since(10)
    assert (events[0].number, events[-1].number, missed) == (41, KEPT_EVENTS + 40, 30)
    assert board.events_since(KEPT_EVENTS + 39)[0] == events[-1:]
    assert board.events_since(KEPT_EVENTS + 40) == ((), 0)


def noisy_board(n_events: int, code: str = "x") -> RunBoard:
    """A board that has noted so many complaints."""
    plan = Plan.from_dict(
        {
            "version": 1, "name": "t", "features": [{"name": "x", "type": "numeric", "min": 0, "max": 1}],
            "label": {"name": "y", "type": "binary", "classes": [0, 1]}, "model": {"n_trees": 1, "max_depth": 1},
            "privacy": {"epsilon": 1.0, "delta": 1e-5, "n_records": 10},
        }
    )  # fmt: skip
    board = RunBoard(plan, ["north"], 1, lambda: 0.0, bytes(8))
    for _ in range(n_events):
        board(RunEvent(RunEventKind.COMPLAINT, 0, "north", code))
    return board


def test_a_sites_word_cannot_grow_or_drive_a_terminal() -> None:
    """A code that a site sent is cut to what a report holds."""
    (event,) = noisy_board(1, "\x1b[31mé" + "a" * 500).events_since(0)[0]
    assert event.code.startswith("[31ma") and len(event.code) <= 64


def test_a_false_sum_is_told_of_its_group_and_counted_against_no_site() -> None:
    """The masks hide whose vector it was: no screen says of one site that it sent what cannot be used."""
    board = noisy_board(0)
    for names in (["north", "west"], [f"{'n' * 60}{number}" for number in range(30)]):
        board(RunEvent(RunEventKind.FALSE_SUM, 3, ", ".join(names), "group-out-of-line"))
    short, long = board.events_since(0)[0]
    assert short.site == "north, west" and long.site.endswith(" and 27 more") and len(long.site) <= 200
    assert [site.refusals for site in board.report(HubTraffic()).sites] == [0]
    told = [line["text"] for line in in_words([short])]
    assert told[0].startswith("north, west ") and "group-out-of-line" in told[0]


class Listener:
    """An audience that keeps what it was shown."""

    def __init__(self, is_there: bool) -> None:
        self._is_there, self.shown = is_there, []
        self.has_some = threading.Event()

    def is_there(self) -> bool:
        return self._is_there

    def show(self, report: RunReport, events_since: EventsSince) -> None:
        self.shown.append((report, events_since(0)))
        self.has_some.set()


def published(listener: Listener, then: Callable[[], object]) -> None:
    publisher = Publisher(noisy_board(3), HubTraffic, [listener])
    then()
    publisher.close()


def test_reports_are_made_only_for_somebody() -> None:
    """Nobody watches: nothing is computed. Somebody does: reports come, and a last one at the end."""
    there, away = Listener(True), Listener(False)
    published(there, lambda: there.has_some.wait(300))
    published(away, lambda: None)
    assert len(there.shown) >= 2 and not away.shown
    report, (events, missed) = there.shown[0]
    assert isinstance(report, RunReport) and isinstance(events[0], EventReport) and missed == 0


def test_what_was_released_before_a_run_is_none_of_its_rounds(federate: Builder) -> None:
    """A plan's prepared releases stand first on the account, and in what is spent; the rounds are the training's."""
    table = make_plan().to_dict()
    release = {"kind": "RecordCount", "subject": "survey", "length": 1, "sensitivity_squared": 1, "sigma": 2000}
    federation = federate(4, Plan.from_dict({**table, "prepared": [release]}))
    board = watched(federation)
    outcome = federation.run()
    report = board.report(HubTraffic(10, 20, {}))
    assert report.rounds_done == report.rounds_planned == N_ROUNDS == len(outcome.ledger) - 1
    assert outcome.ledger.releases[0].kind == "RecordCount"
    assert outcome.report.n_prepared == 1 and outcome.report.epsilon <= federation.plan.privacy.epsilon
    assert report.epsilon_spent == pytest.approx(outcome.report.epsilon)
