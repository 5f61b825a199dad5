"""The page for Prometheus shows a run's public numbers, to this machine, and nothing else."""

from __future__ import annotations

import contextlib
import http.client
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hedgerow.errors import EnvironmentFault, UsageError
from hedgerow.protocol.stream import EventReport, RunReport, SiteReport, SiteState
from hedgerow.transport.metrics import MetricsServer

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


def page(server: MetricsServer) -> dict[str, float]:
    """What Prometheus' own parser reads."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://127.0.0.1:{server.port}/metrics", timeout=300) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            sample.name + "".join(sample.labels.values()): sample.value
            for family in families
            for sample in family.samples
        }


def test_the_numbers_are_served_and_no_others() -> None:
    """These, as they are now, and each lost stream once; nothing about the process or the machine."""
    with MetricsServer() as server:
        server.show(REPORT, since)
        assert page(server) == {
            "hedgerow_rounds_done_total": 3, "hedgerow_rounds_planned": 100, "hedgerow_connected_sites": 4,
            "hedgerow_expected_sites": 5, "hedgerow_bytes_sent_total": 1234, "hedgerow_bytes_received_total": 5678,
            "hedgerow_epsilon_spent": 0.25, "hedgerow_epsilon_limit": 1.0,
            "hedgerow_refusals_totalsilent": 2, "hedgerow_refusals_totalunpinned": 1,
        }  # fmt: skip
        server.show(replace(REPORT, rounds_done=4), since)
        shown = page(server)
        assert (shown["hedgerow_rounds_done_total"], shown["hedgerow_refusals_totalsilent"]) == (4, 2)


def test_other_machines_are_not_served_by_accident() -> None:
    """An address that others reach must be allowed in so many words."""
    for host in ("0.0.0.0", "192.0.2.1", "::", "example.org"):
        with pytest.raises(UsageError):
            MetricsServer(host)
    with MetricsServer("0.0.0.0", allow_remote=True) as server:
        assert page(server)["hedgerow_rounds_done_total"] == 0


def test_a_taken_port_is_an_error_of_ours() -> None:
    """And a closed server gives its port back."""
    with MetricsServer() as server:
        with pytest.raises(EnvironmentFault) as error:
            MetricsServer(port=server.port)
        assert error.value.code == "address-in-use"
        port = server.port
    with MetricsServer(port=port) as again:
        assert again.port == port


def status(server: MetricsServer, host: str | None, path: str = "/metrics", method: str = "GET") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    with contextlib.closing(connection):
        connection.putrequest(method, path, skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        connection.endheaders()
        return connection.getresponse().status


def test_a_page_in_a_browser_does_not_read_the_numbers() -> None:
    """Its own name may be made to lead to this machine; the browser then asks for that name, and gets nothing."""
    with MetricsServer() as server:
        own = ["127.0.0.1", f"127.0.0.1:{server.port}", "localhost:1", "[::1]:9", "coordinator:9464", "LOCALHOST"]
        assert [status(server, host) for host in own] == [200] * len(own)
        others = ["evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "localhost.evil.example", ""]
        others += ["[::1].evil.example]"]
        assert [status(server, host) for host in others] == [403] * len(others)
        assert (status(server, None), status(server, "localhost", "/")) == (400, 404)
        assert status(server, "localhost", method="POST") == 405
