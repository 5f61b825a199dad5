"""The coordinator's numbers for Prometheus: a small HTTP server that shows a run's public progress and nothing else.

What is shown is listed in `_GAUGES` and `_COUNTERS`, and the streams that were refused or lost, by the words of
protocol/stream.py. Every party of the run knows all of it, or anyone who watches the network: no count, sum
or rate of any site's data has a place here.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from hedgerow.errors import EnvironmentFault, UsageError, missing_extra
from hedgerow.protocol.stream import EventReport, RunReport, SiteState
from hedgerow.transport.connections import is_loopback, is_own_name

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
except ImportError as error:
    raise missing_extra("prometheus_client", "Serving numbers for Prometheus") from error

EventsSince = Callable[[int], tuple[tuple[EventReport, ...], int]]

_MAX_CONNECTIONS = 8
_CONNECTION_SECONDS = 10.0
"""So long has a client to ask and to take the answer, however slowly it does."""
_PATIENCE_SECONDS = 1.0
"""So long does a new connection wait for the one that made room for it."""


_GAUGES = {
    "rounds_planned": "Releases that the plan has.",
    "connected_sites": "Sites whose node is connected.",
    "expected_sites": "Sites of the roster.",
    "epsilon_spent": "Epsilon of all releases so far, by the ledger.",
    "epsilon_limit": "Epsilon that the plan promises.",
}
_COUNTERS = {
    "rounds_done": "Releases made.",
    "bytes_sent": "Bytes sent to the nodes.",
    "bytes_received": "Bytes received from the nodes.",
}
_LOST = {"left", "refused"}
_NOT_CONNECTED = {SiteState.ABSENT, SiteState.LEFT, SiteState.REFUSED, SiteState.DONE}
_NO_REPORT = RunReport(b"", b"", b"", "", "")


class _RunCollector(Collector):
    def __init__(self) -> None:
        self.report, self.refusals = _NO_REPORT, Counter[str]()

    def collect(self) -> Iterator[Metric]:
        report = self.report
        numbers = {name: getattr(report, name, 0) for name in (*_GAUGES, *_COUNTERS)}
        numbers["connected_sites"] = sum(site.state not in _NOT_CONNECTED for site in report.sites)
        numbers["expected_sites"] = len(report.sites)
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"hedgerow_{name}", text, value=numbers[name])
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"hedgerow_{name}", text, value=numbers[name])
        refusals = CounterMetricFamily("hedgerow_refusals", "Streams refused or lost, by reason.", labels=["reason"])
        for reason, count in sorted(self.refusals.items()):
            refusals.add_metric([reason], count)
        yield refusals


class _Page(BaseHTTPRequestHandler):
    """One request, and the end of its connection."""

    server: _Server

    def do_GET(self) -> None:
        """The numbers, to who asks for them under a name of this machine."""
        if not self.server.is_own_name(self.headers.get("Host", "")):
            # A page in somebody's browser, whose own name was made to lead here (DNS rebinding), must not read them.
            self.send_error(HTTPStatus.FORBIDDEN, "Ask for this page by an address or a name of this machine.")
        elif self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            page = encode(self.server.registry)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: clients do not write the coordinator's log."""


class _Server(socketserver.ThreadingTCPServer):
    """At most `_MAX_CONNECTIONS` at once, each for `_CONNECTION_SECONDS`; the oldest makes room for a new one."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._host = host
        self._lock = threading.Lock()
        self._began: dict[socket.socket, float] = {}
        self._places = threading.Semaphore(_MAX_CONNECTIONS)
        ((family, _, _, _, address), *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self.address_family = family
        super().__init__((str(address[0]), int(address[1])), _Page)

    def is_own_name(self, host: str) -> bool:
        """See `connections.is_own_name`."""
        return is_own_name(host, self._host)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the connection a place and a thread."""
        with self._lock:
            if len(self._began) >= _MAX_CONNECTIONS:
                _hang_up(min(self._began, key=self._began.__getitem__))
        if not self._places.acquire(timeout=_PATIENCE_SECONDS):
            self.shutdown_request(request)
            return
        with self._lock:
            self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer; the place is free afterwards."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._began.pop(request, None)
            self._places.release()

    def service_actions(self) -> None:
        """End the connections whose time is over; called twice a second."""
        self._hang_up_before(time.monotonic() - _CONNECTION_SECONDS)

    def server_close(self) -> None:
        """Free the port, and wait for those who are being answered."""
        self._hang_up_before(float("inf"))
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that went away is no news."""

    def _hang_up_before(self, moment: float) -> None:
        with self._lock:
            for connection, began in self._began.items():
                if began < moment:
                    _hang_up(connection)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class MetricsServer:
    """Serves ``/metrics`` until it is closed.

    It answers requests for an IP address, `localhost`, this machine's name, a name without dots, and `host`.

    Args: host: an address of this machine, or its name; port: 0 takes a free one; allow_remote: permits an address that
        other machines reach, as in a container. The page has no authentication.
    Raises UsageError for another host without `allow_remote`, EnvironmentFault `address-in-use`.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, allow_remote: bool = False) -> None:
        if not allow_remote and not is_loopback(host):
            raise UsageError("metrics-not-loopback", host=host)
        self._collector, self._lost, self._last_event = _RunCollector(), Counter[str](), 0
        registry = CollectorRegistry()
        registry.register(self._collector)
        try:
            self._server = _Server(host, port, registry)
        except OSError as error:
            raise EnvironmentFault("metrics-not-served", host=host, port=port, fault=str(error.strerror)) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="hedgerow-metrics", daemon=True)
        self._thread.start()

    def is_there(self) -> bool:
        """Always: Prometheus asks when it likes."""
        return True

    def show(self, report: RunReport, events_since: EventsSince) -> None:
        """From now on this report is served; see `server.status.Audience`."""
        events, missed = events_since(self._last_event)
        self._last_event += missed + len(events)
        self._lost.update(event.code for event in events if event.kind in _LOST and event.code)
        self._collector.refusals = self._lost + Counter(report.streams_refused)
        self._collector.report = report

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
