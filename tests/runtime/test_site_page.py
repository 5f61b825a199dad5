"""The page of a site: what its owner is shown while a real node runs, and what may be done there, by whom."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hedgerow.app.output import begin_log, end_log
from hedgerow.app.page import SitePage
from hedgerow.client.budget import BudgetBook
from hedgerow.client.policy import Policy
from hedgerow.client.state import OwnerDesk, Question
from hedgerow.data.fit import ColumnFit, TableFit
from hedgerow.data.units import RowCount
from hedgerow.errors import PolicyRefusal, UsageError
from hedgerow.models.model import Model
from hedgerow.transport.interface import Connected, Disconnected
from tests.builders import make_data, make_plan, train

if TYPE_CHECKING:
    from conftest import Builder, Federation, Party

POLICY = Policy(version=1, data_set="test", max_epsilon=100.0, delta=1e-5, noise=("server", "distributed"))
QUESTION = Question("5d" * 32, "training", "wards", "ab" * 32, "ab" * 32, 2.0, 1e-5, "test", 3.0, 100.0, 1e-5, "server")
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def page() -> Iterator[SitePage]:
    with SitePage("0", "site-0", "wards") as made:
        yield made


def state(page: SitePage) -> dict[str, Any]:
    with DIRECT.open(page.url + "state", timeout=300) as answer:
        content: dict[str, Any] = json.load(answer)
    return content


def asked_by(page: SitePage) -> dict[str, str]:
    """What a browser sends with the request of the page itself."""
    origin = "/".join(page.url.split("/")[:3])
    return {"Origin": origin, "X-Hedgerow": "1", "Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"}


def ask(page: SitePage, action: str, headers: dict[str, str], body: bytes = b"{}") -> tuple[int, str]:
    """The status of a POST, and what is said."""
    try:
        with DIRECT.open(urllib.request.Request(page.url + action, body, headers), timeout=300) as answer:
            return answer.status, str(json.load(answer)["said"])
    except urllib.error.HTTPError as refused:
        with refused:
            text = refused.read().decode()
        return refused.code, str(json.loads(text)["said"]) if text.startswith("{") else text


def watching(page: SitePage, party: Party) -> Any:
    assert party.session is not None and party.store is not None
    return page.watching(party.session, party.store, party.folder / "budget.db", party.setup.policy)


@pytest.fixture
def federation(federate: Builder) -> Federation:
    return federate(4, policies={f"site-{number}": POLICY for number in range(4)})


# What is shown ----------------------------------------------------------------------------------------------------


def test_the_owner_sees_a_run_and_what_it_has_cost(page: SitePage, federation: Federation) -> None:
    """Before a run what it would cost, while it goes on what it has cost by now, and then what it was charged."""
    party = federation.parties["site-0"]
    seen: list[dict[str, Any]] = []
    with watching(page, party):
        pass
    before = state(page)
    assert (before["phase"], before["runs"], before["rounds"]) == (
        "Waiting for the coordinator to propose a run", [], None,
    )  # fmt: skip
    budget = dict(before["budget"])
    assert budget["spent"] == "epsilon 0" and "after one more run by this plan" in budget

    def look() -> None:
        with watching(page, party):
            pass
        seen.append(state(page))

    party.after(12, look)
    federation.run()
    (during,) = seen
    assert during["runs"][0][3] == "reserved" and 0 < during["rounds"][0] < during["rounds"][1]
    (_, total), now = during["ledger"]["reserved"][1], during["ledger"]["points"][-1]
    assert 0 < now[1] < total and 0 < now[0] < 1
    with watching(page, party):
        pass
    after = state(page)
    with closing(BudgetBook(party.folder / "budget.db")) as book:
        spent = book.spent("test", POLICY.delta)
        (line,) = book.lines()
    assert (after["phase"], after["can_stop"], after["ledger"]["reserved"]) == ("Finished", False, [])
    assert after["ledger"]["points"] == [[0, 0], [1, spent]]
    assert after["runs"][0][:4] == [line.run_id[:12], line.begun, line.plan_name, "finished"] and line.begun
    assert [one[1:5] for one in after["invitations"]] == [["training", line.plan_name, "2", "accepted"]]
    # How a node answers may tell of rows: no other machine is shown that.
    with SitePage("0.0.0.0:0", "site-0") as open_page:
        with watching(open_page, party):
            pass
        assert open_page.read_part("runs") == after["runs"] and open_page.read_part("invitations") == []


def test_a_second_run_adds_to_the_curve(page: SitePage, federation: Federation) -> None:
    """Oldest first on the curve, newest first in the list; another node's runs with the same book are named."""
    party = federation.parties["site-0"]
    federation.run()
    assert party.book is not None
    party.book.serve("south", "elsewhere")
    party.book.reserve(b"2" * 32, "test", federation.plan, federation.session.run.ledger.events(), (100.0, 1e-5))
    with watching(page, party):
        pass
    said = state(page)
    assert [one[0] for one in said["runs"]] == [(b"2" * 32).hex()[:12] + " of south", said["runs"][1][0]]
    totals = [total for _, total in said["ledger"]["points"]]
    assert totals == sorted(totals) and len(totals) == 3
    assert totals[-1] == pytest.approx(party.book.spent("test", 1e-5))


def test_the_owner_is_asked_on_the_page_and_answers_there(page: SitePage, federation: Federation) -> None:
    """Only the question that was shown is answered; a stop is left for the node; the log says what was done."""
    begin_log("site-0").also = page.tell
    party = federation.parties["site-0"]
    with closing(OwnerDesk(party.folder)) as desk:
        desk.ask(QUESTION)
        assert party.session is not None
        party.session.question = desk.pending()
        with watching(page, party):
            wrong = ask(page, "do/approve", asked_by(page), json.dumps({"question": "0" * 32}).encode())
            assert wrong[0] == 409 and UsageError("not-asked").what in wrong[1]
            assert desk.find_answer(QUESTION.id) is None
            body = json.dumps({"question": QUESTION.id}).encode()
            said_by_deny = f"The training by 'wards' (run {'5d' * 6}) is denied."
            assert ask(page, "do/deny", asked_by(page), body) == (200, said_by_deny)
            assert desk.find_answer(QUESTION.id) is False
            assert ask(page, "do/approve", asked_by(page), body)[0] == 409 and desk.find_answer(QUESTION.id) is False
            assert not desk.take_stop() and ask(page, "do/stop", asked_by(page))[0] == 200 and desk.take_stop()
    end_log()
    said = state(page)
    assert ["is denied" in one["text"] for one in said["events"]] == [False, True]
    assert said["question"]["id"] == QUESTION.id
    shown = dict(said["question"]["facts"])
    assert (shown["spent now"], shown["then spent"]) == ("epsilon 0", "epsilon 3 of 100 at delta 1e-05 of test")
    # Where no node runs there is no one to answer.
    assert ask(page, "do/stop", asked_by(page))[0] == 409


def test_a_new_roster_is_a_question_on_the_page_between_two_runs(page: SitePage, tmp_path: Path) -> None:
    """Who comes and goes, and the fingerprint to be compared; the same desk has the answer."""
    question = Question.about_roster("site east comes", bytes(32))
    tmp_path.chmod(0o700)
    with closing(OwnerDesk(tmp_path)) as desk:
        desk.ask(question)
        asked = desk.pending()
        assert asked is not None
        with page.asking(tmp_path, asked):
            facts = dict(state(page)["question"]["facts"])
            assert "site east" in facts["asked for"] and question.words in facts["fingerprint"]
            body = json.dumps({"question": question.id}).encode()
            assert ask(page, "do/approve", asked_by(page), body) == (200, "The roster (site east comes) is approved.")
        assert desk.find_answer(question.id) is True and state(page)["question"] is None


def test_the_words_of_a_node_that_waits(page: SitePage, tmp_path: Path) -> None:
    """Enrolment, a lost connection, an error that ends it, models that were received; names stay what they are."""
    page.wait_for("Your words: apple river stone lamp", "Call the operator.")
    assert state(page)["waiting"] == "Call the operator." and state(page)["study"] == "wards"
    page.tell("WARNING", "<script>alert(1)</script>")
    assert state(page)["events"][0]["text"] == "<script>alert(1)</script>"
    page.fail(PolicyRefusal("policy", code="policy-label", asked="predictions of <b>ill</b>"))
    assert "<b>ill</b>" in state(page)["error"]["what"] and state(page)["error"]["code"] == "policy-label"
    page.show_models(tmp_path)
    assert state(page)["models"] == [] and "report" not in state(page)
    plan = make_plan("binary", {"n_trees": 2})
    outcome = train(plan, [make_data(plan, 200, 0)])
    Model(plan, outcome.ensemble, outcome.ledger, outcome.report).save(tmp_path / "model-0.json")
    page.show_models(tmp_path)
    assert state(page)["report"].startswith(outcome.report.text())
    assert state(page)["models"][0][0].endswith("model-0.json")


def test_a_connection_that_is_lost_is_said(page: SitePage, federation: Federation) -> None:
    for event, phase in ((Disconnected("unreachable"), "No connection"), (Connected(), "Waiting for the coordinator")):
        page.show_connection(event)
        with watching(page, federation.parties["site-0"]):
            pass
        assert state(page)["phase"].startswith(phase)


def test_the_counts_of_rows_stay_on_this_machine(page: SitePage) -> None:
    """A page that other machines can ask for goes over the network as it is: it says no count."""
    column = ColumnFit("age", "feature", "numeric", 12_034, 17, 700)
    found = TableFit(RowCount(12_034), [column], ["zip"], suggested_lines=['decimal = "comma"'])
    page.show_fit("north.csv", found)
    (table,) = state(page)["tables"]
    assert "12,034 of 12,034 rows" in table["rest"] and table["columns"][0][3] == "5.8%"
    assert table["suggested_lines"].startswith("[data]")
    with SitePage("0.0.0.0:0", "site-0") as open_page:
        open_page.show_fit("north.csv", found)
        (table,) = open_page.read_part("tables")
        assert table["columns"] == []
        # A log and an error may hold them as well.
        open_page.tell("INFO", "north.csv: 12,034 rows read")
        open_page.fail(PolicyRefusal("policy", code="policy-label", asked="5.80% of age clamped"))
        shown = json.dumps(open_page._parts)
        assert "log" in shown
        assert not [each for each in ("12,034", "5.8", "clamped") if each in shown]


# Who may do something ---------------------------------------------------------------------------------------------


def changed(page: SitePage, **headers: str | None) -> dict[str, str]:
    """What the page itself sends, but for these headers; None leaves one out."""
    found = {**asked_by(page), **{name.replace("_", "-"): each for name, each in headers.items()}}
    return {name: each for name, each in found.items() if each is not None}


def test_no_other_page_can_ask_for_anything(page: SitePage, federation: Federation) -> None:
    """Another site's page in the same browser, even with the address: it cannot send what is wanted, or says who it is.

    A form sends no header of its own, and another content type; a script from elsewhere another origin; a name that was
    made to lead here, its own name.
    """
    party = federation.parties["site-0"]
    refused = [
        changed(page, Origin="http://evil.example"), changed(page, Origin=None), changed(page, Origin="null"),
        changed(page, X_Hedgerow=None), changed(page, Content_Type="text/plain"),
        changed(page, Content_Type="application/x-www-form-urlencoded"), changed(page, Sec_Fetch_Site="cross-site"),
        changed(page, Sec_Fetch_Site="same-site"), changed(page, Origin=asked_by(page)["Origin"] + "0"),
        changed(page, Host="evil.example", Origin="http://evil.example"), changed(page, Host="127.0.0.1.evil.example"),
        changed(page, Host="evil@localhost", Origin="http://evil@localhost"), changed(page, Host="", Origin="http://"),
    ]  # fmt: skip
    with watching(page, party):
        for headers in refused:
            assert ask(page, "do/stop", headers)[0] == 403, headers
        assert ask(page, "do/stop", asked_by(page), b"[1]")[0] == ask(page, "do/stop", asked_by(page), b"{")[0] == 400
        assert ask(page, "do/stop", asked_by(page), b'{"a": "' + b"x" * 5000 + b'"}')[0] == 413
        for path in ("do/close", "do/", "stop", "", "state", "do/stop/"):
            assert ask(page, path, asked_by(page))[0] == 405
        other = page.url.replace(page.url.split("/")[3], "x" * 22)
        with pytest.raises(urllib.error.HTTPError) as unknown:
            DIRECT.open(urllib.request.Request(other + "do/stop", b"{}", asked_by(page)), timeout=300)
        unknown.value.close()
        assert unknown.value.code == 404
        with pytest.raises(urllib.error.HTTPError) as foreign:
            DIRECT.open(urllib.request.Request(page.url + "state", headers={"Host": "evil.example"}), timeout=300)
        foreign.value.close()
        assert foreign.value.code == 403
        with closing(OwnerDesk(party.folder)) as desk:
            assert not desk.take_stop()
        assert ask(page, "do/stop", asked_by(page))[0] == 200


def test_another_machine_may_look_and_do_nothing() -> None:
    """Where the page is served beyond this machine, its address goes over the network as it is."""
    with SitePage("0.0.0.0:0", "site-0") as page:
        app = page._server._server.config.app
        sent: list[dict[str, Any]] = []

        def statuses(client: str) -> int:
            headers = [(name.lower().encode(), each.encode()) for name, each in asked_by(page).items()]
            host = asked_by(page)["Origin"].removeprefix("http://").encode()
            path = f"/{page.url.split('/')[3]}/do/stop"
            scope = {
                "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
                "headers": [*headers, (b"host", host)], "client": (client, 5), "server": ("0.0.0.0", 1),
                "http_version": "1.1", "scheme": "http", "root_path": "", "asgi": {"version": "3.0"},
            }  # fmt: skip

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": b"{}", "more_body": False}

            async def send(message: dict[str, Any]) -> None:
                sent.append(message)

            sent.clear()
            asyncio.run(app(scope, receive, send))
            return int(sent[0]["status"])

        # No node runs behind this page: who may ask is told so.
        assert [statuses(client) for client in ("10.0.0.7", "192.168.1.2", "fe80::1")] == [403] * 3
        assert [statuses(client) for client in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == [409] * 3
