"""The coordinator's numbers for Prometheus: a port for HTTP that shows a run's public progress and nothing else.

What is shown is listed in `_GAUGES` and `_COUNTERS`, and the streams that were refused or lost, by the words of
protocol/stream.py. Every party of the run knows all of it, or anyone who watches the network: no count, sum
or rate of any site's data has a place here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from hedgerow.errors import EnvironmentFault, UsageError, missing_extra
from hedgerow.protocol.stream import EventReport, RunReport, SiteState
from hedgerow.transport.connections import is_loopback
from hedgerow.transport.pages import HttpPort, Request, Response

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
except ImportError as error:
    raise missing_extra("prometheus_client", "Serving numbers for Prometheus") from error

EventsSince = Callable[[int], tuple[tuple[EventReport, ...], int]]

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
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)
        try:
            self._server = HttpPort(host, port, self._answer)
        except OSError as error:
            raise EnvironmentFault("page-not-served", host=host, port=port, fault=str(error.strerror)) from error
        self.port = self._server.port

    async def _answer(self, request: Request) -> Response:
        if request.url.path != "/metrics":
            return Response(status_code=404)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"Content-Type": content_type})

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
        self._server.close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
