"""The page of ``--console``: what a monitor may know, for those who have its address; no markup."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from hedgerow.app import watch
from hedgerow.app.output import number
from hedgerow.app.page import Console, PastRun
from hedgerow.errors import EnvironmentFault, UsageError
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan, Prepared
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.ledger import read_prepared_events
from hedgerow.protocol.stream import OVER, EventReport, RunReport, SiteReport, SiteState
from hedgerow.server.wait import Patience
from tests.builders import make_data, make_plan, train

STATES = [SiteState.READY, SiteState.CONNECTED, SiteState.REFUSED]
REPORT = RunReport(
    b"process1", bytes(32), bytes(32), "1.0", "gathering", rounds_planned=100, epsilon_limit=1.0, delta=1e-5,
    seconds=20.0, sites=tuple(SiteReport(f"site-{n}", state) for n, state in enumerate(STATES)),
)  # fmt: skip
EVENTS = (EventReport(1, 2.0, "joined", 0, "<b>site-0</b>"), EventReport(2, 3.0, "refused", 0, "site-2", "policy-seed"))
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def since(number: int) -> tuple[tuple[EventReport, ...], int]:
    return EVENTS[number:], 0


@pytest.fixture
def page() -> Iterator[Console]:
    plan = make_plan("binary")
    with Console("0", replace(plan, federation=replace(plan.federation, min_sites=2, join_timeout=300.0))) as made:
        yield made


def get(url: str) -> Any:
    return DIRECT.open(url, timeout=300)


def read(url: str) -> bytes:
    with get(url) as answer:
        content: bytes = answer.read()
    return content


def refusal(url: str, method: str = "GET") -> int:
    """The status with which a request is refused."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        DIRECT.open(urllib.request.Request(url, method=method), timeout=300)
    refused.value.close()
    return refused.value.code


def state(page: Console) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(read(page.url + "state"))
    return content


def test_the_page_says_who_is_waited_for_and_what_was_spent(page: Console) -> None:
    """Names and codes as they are, for the script sets them as text; events once, though reports repeat them."""
    page._view.patience = Patience(needed=3, began=0.0, ends=140.0)
    page.show(REPORT, since)
    page.show(replace(REPORT, seconds=80.0), since)
    said = state(page)
    assert re.findall(r"\d+", said["waiting"]) == ["1", "2", "3", "80", "60"]
    assert [event["text"] for event in said["events"]] == ["site-2 refuses (policy-seed)", "<b>site-0</b> is connected"]
    page._view.patience = Patience(awaited=frozenset(["site-1"]), began=0.0)
    page.show(replace(REPORT, phase="collecting-vectors", rounds_done=3, epsilon_spent=0.25), since)
    said = state(page)
    assert said["mood"] == "waits" and "collecting" in said["phase"]
    page._view.patience = Patience()
    page.show(replace(REPORT, phase="collecting-vectors", rounds_done=3, epsilon_spent=0.3), since)
    said = state(page)
    assert said["waiting"] == "" and said["curve"] == [[0, 0.0], [3, 0.3]] and said["epsilon"] == [0.3, 1.0]


def test_a_long_run_keeps_a_short_curve(page: Console) -> None:
    """The last value stays, however many rounds there are."""
    n_rounds = 2 * watch.MAX_POINTS + 50
    for done in range(n_rounds):
        page.show(replace(REPORT, rounds_done=done, epsilon_spent=done / n_rounds), since)
    curve, last = state(page)["curve"], n_rounds - 1
    assert len(curve) <= watch.MAX_POINTS and curve[-1] == [last, last / n_rounds] and curve == sorted(curve)


def test_a_run_without_privacy_and_one_that_was_given_up(page: Console) -> None:
    page.show(
        replace(REPORT, epsilon_limit=float("inf"), epsilon_spent=float("inf"), phase=OVER, failure="too-few"), since
    )
    said = state(page)
    assert said["epsilon"] is None and said["epsilon_text"]
    assert (said["phase"].split()[-1], said["mood"], said["is_over"]) == ("too-few", "bad", True)


def test_the_stream_tells_of_every_change(page: Console) -> None:
    """A browser that asks late is told at once how the run is."""
    page.show(REPORT, since)
    with get(page.url + "events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert json.loads(stream.readline()[len("data: ") :])["rounds"] == [0, 100]
        stream.readline()
        page.show(replace(REPORT, rounds_done=1), since)
        assert json.loads(stream.readline()[len("data: ") :])["rounds"] == [1, 100]


def test_the_end_shows_report_and_shapes(page: Console) -> None:
    plan = make_plan("binary", {"n_trees": 2})
    outcome = train(plan, [make_data(plan, 200, 0)])
    page.show(replace(REPORT, phase=OVER), since)
    page.show_model(Model(plan, outcome.ensemble, outcome.ledger, outcome.report))
    said = state(page)
    assert said["report"].startswith(outcome.report.text()) and said["phase"] == "Finished"
    assert read(page.url + said["picture"]).startswith(b"\x89PNG")


@pytest.mark.parametrize("path", ["", "state", "events", "console.js", "shapes.png"])
def test_nobody_reads_without_the_token(page: Console, path: str) -> None:
    """Nor is there any other file, or a way to change anything."""
    root, token = re.fullmatch(r"(http://127\.0\.0\.1:\d+/)([\w-]{22})/", page.url).groups()  # type: ignore[union-attr]
    for url in (root + path, f"{root}x/{path}", f"{root}{token[:-1]}/{path}"):
        assert refusal(url) == 404
    for name in ("../console.py", "console.py", "%2e%2e/output.py"):
        assert refusal(page.url + name) == 404
    assert refusal(page.url + path, "POST") == 405


def test_a_browser_runs_and_loads_nothing_else(page: Console) -> None:
    """The policy allows this page's own files; they name no other host, and put no text where markup is read."""
    with get(page.url) as answer:
        headers = answer.headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'" and headers["referrer-policy"] == "no-referrer"
    for name in ("", "console.js", "page.js", "page.css"):
        require_harmless(read(page.url + name).decode())


def require_harmless(content: str) -> None:
    """A page's file names no other host, and no way by which a text becomes markup or a program."""
    assert not re.search(r"https?:|//[a-z]|(inner|outer)HTML|document\.write|eval\(|@import|url\(", content)
    assert not re.search(r"insertAdjacent|Function\(|srcdoc|<script>|<style|\son[a-z]+=|style=", content)


def test_a_monitors_page_waits_without_a_plan() -> None:
    """It knows no deadline; and when its connection is lost the last report stays."""
    with Console("0") as page:
        page.lose("unreachable")
        assert state(page)["phase"] == "No connection"
        page.take(REPORT, EVENTS)
        assert re.findall(r"\d+", state(page)["waiting"]) == ["1"]
        page.take(replace(REPORT, seconds=REPORT.seconds + 65), [])
        assert re.findall(r"\d+", state(page)["waiting"]) == ["1", "65"]
        page.lose("closed")
        said = state(page)
        assert said["rounds"] == [0, 100] and "(closed)" in said["lost"]


def test_a_place_that_is_none_or_taken(page: Console) -> None:
    with pytest.raises(UsageError):
        Console("here")
    with pytest.raises(EnvironmentFault) as taken:
        Console(page.url.split(":")[2].partition("/")[0])
    assert taken.value.code == "address-in-use"


def test_two_surveys_that_were_asked_alike_are_both_counted(page: Console) -> None:
    """A study whose plans come from two surveys has spent both, though the plans are the same in all that they say."""
    about = {"kind": "RecordCount", "subject": "survey, records", "length": 1, "sensitivity_squared": 2**20}
    first, other = (
        replace(make_plan("binary"), prepared=(Prepared(**about, sigma=5_000, run=run),)) for run in ("a", "b")
    )
    unnamed = replace(first, prepared=(replace(first.prepared[0], run=None),))
    again = replace(first, model=replace(first.model, n_trees=3))

    def before(*plans: Plan) -> str:
        """What is said to be spent before a run of the last one."""
        page.show_history([PastRun("run 1", "finished", plan, ()) for plan in plans], plans[-1])
        found: str = dict(map(tuple, state(page)["budget"]))["before this run"]
        return found

    def cost(n_surveys: int) -> str:
        spent = get_accountant("gdp").epsilon(read_prepared_events(first) * n_surveys, first.privacy.delta)
        return f"epsilon {number(spent)}"

    assert before(first) == before(first, again) == cost(1) != cost(2)
    assert before(first, other) == cost(2)
    assert before(unnamed) == before(unnamed, unnamed) == cost(1)
    assert before(unnamed, replace(unnamed, name="changed by hand")) == cost(2)
