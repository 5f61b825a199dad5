"""What the page of a run tells Prometheus: public numbers, to those who ask this machine, and nothing else."""

from __future__ import annotations

import contextlib
import http.client
import re
import urllib.request
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from hedgerow.app import metrics
from hedgerow.app.page import Console, SitePage
from hedgerow.protocol.stream import EventReport, RunReport, SiteReport, SiteState

ROOT = Path(__file__).resolve().parents[2]
STATES = [SiteState.READY] * 3 + [SiteState.CONNECTED, SiteState.LEFT]
REPORT = RunReport(
    b"", b"", b"", "", "", rounds_done=3, rounds_planned=100, epsilon_spent=0.25, epsilon_limit=1.0, bytes_sent=1234,
    bytes_received=5678, sites=tuple(SiteReport(f"site-{n}", state) for n, state in enumerate(STATES)),
    streams_refused={"unpinned": 1},
)  # fmt: skip
EVENTS = [EventReport(n, 0.0, kind, 0, "", code) for n, (kind, code) in enumerate(
    [("left", "silent"), ("ready", ""), ("late", "late"), ("refused", "silent")], start=1
)]  # fmt: skip


def since(number: int) -> tuple[tuple[EventReport, ...], int]:
    """The events after that one, and how many are not kept any more."""
    return tuple(EVENTS[number:]), 0


def address(page: Console | SitePage) -> str:
    """Host and port, without the token."""
    return page.url.split("/")[2]


def numbers(page: Console) -> dict[str, float]:
    """What Prometheus' own parser reads."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://{address(page)}/metrics", timeout=300) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            sample.name + "".join(sample.labels.values()): sample.value
            for family in families
            for sample in family.samples
        }


def test_the_numbers_are_served_and_no_others() -> None:
    """These, as they are now, and each lost stream once; nothing about the process or the machine."""
    with Console("0") as page:
        assert numbers(page)["hedgerow_rounds_done_total"] == 0
        page.show(REPORT, since)
        assert numbers(page) == {
            "hedgerow_rounds_done_total": 3, "hedgerow_rounds_planned": 100, "hedgerow_connected_sites": 4,
            "hedgerow_expected_sites": 5, "hedgerow_bytes_sent_total": 1234, "hedgerow_bytes_received_total": 5678,
            "hedgerow_epsilon_spent": 0.25, "hedgerow_epsilon_limit": 1.0,
            "hedgerow_refusals_totalsilent": 2, "hedgerow_refusals_totalunpinned": 1,
        }  # fmt: skip
        page.show(replace(REPORT, rounds_done=4), since)
        shown = numbers(page)
        assert (shown["hedgerow_rounds_done_total"], shown["hedgerow_refusals_totalsilent"]) == (4, 2)


def test_a_monitors_page_tells_them_too() -> None:
    """Events that come again after a new connection are counted once."""
    with Console("0") as page:
        page.take(REPORT, EVENTS)
        page.take(REPORT, EVENTS)
        assert numbers(page)["hedgerow_refusals_totalsilent"] == 2


def status(page: Console | SitePage, host: str | None, path: str = "/metrics", method: str = "GET") -> int:
    with contextlib.closing(http.client.HTTPConnection(address(page), timeout=300)) as connection:
        connection.putrequest(method, path, skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        connection.endheaders()
        return connection.getresponse().status


def test_a_page_in_a_browser_does_not_read_the_numbers() -> None:
    """Its own name may be made to lead to this machine; the browser then asks for that name, and gets nothing."""
    with Console("0") as page:
        own = ["127.0.0.1", address(page), "localhost:1", "[::1]:9", "coordinator:9464", "LOCALHOST"]
        assert [status(page, host) for host in own] == [200] * len(own)
        others = ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", ""]
        others += ["[::1].evil.example]"]
        assert [status(page, host) for host in others] == [403] * len(others)
        assert status(page, None) == 400


def test_without_the_token_there_is_nothing_else() -> None:
    """Not beside the numbers, not by another method; and the page of a site, whose counts are private, has none."""
    with Console("0") as page:
        paths = ["/", "/metrics/", "/metrics/state", "//metrics", "/x/metrics", "/metrics%2f..%2fstate", "/state"]
        assert [status(page, "localhost", path) for path in paths] == [404] * len(paths)
        assert status(page, "localhost", method="POST") == 404
    with SitePage("0", "north") as own:
        assert status(own, "localhost") == 404


def test_the_rules_ask_for_numbers_that_there_are() -> None:
    """An alert on a name that nobody serves would never ring."""
    asked = set(re.findall(r"\bhedgerow_\w+", (ROOT / "deploy" / "prometheus-rules.yml").read_text(encoding="utf-8")))
    totals = {f"{name}_total" for name in (*metrics.COUNTERS, metrics.REFUSALS)}
    assert asked <= {f"hedgerow_{name}" for name in (*metrics.GAUGES, *totals)}
