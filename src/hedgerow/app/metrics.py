# SPDX-License-Identifier: Apache-2.0
"""A run's numbers for Prometheus, as the page of the run serves them at ``/metrics`` to whoever asks, without a token.

`GAUGES`, `COUNTERS` and the streams that were refused or lost, by the words of protocol/stream.py, are all that is told
there. Every party of the run knows it, or anyone who watches the network: no count, sum or rate of any site's data has
a place here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hedgerow.errors import missing_extra
from hedgerow.protocol.stream import EventReport, RunReport, SiteState

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
except ImportError as error:
    raise missing_extra("prometheus_client", "A page for the browser") from error

GAUGES = {
    "rounds_planned": "Releases that the plan has.",
    "connected_sites": "Sites whose node is connected.",
    "expected_sites": "Sites of the roster.",
    "epsilon_spent": "Epsilon of all releases so far, by the ledger.",
    "epsilon_limit": "Epsilon that the plan promises.",
}
COUNTERS = {
    "rounds_done": "Releases made.",
    "bytes_sent": "Bytes sent to the nodes.",
    "bytes_received": "Bytes received from the nodes.",
}
REFUSALS = "refusals"
_LOST = {"left", "refused"}
_NOT_CONNECTED = {SiteState.ABSENT, SiteState.LEFT, SiteState.REFUSED, SiteState.DONE}


class Metrics(Collector):
    """Prometheus metrics of the latest report."""

    def __init__(self) -> None:
        self._report, self._lost = RunReport(b"", b"", b"", "", ""), Counter[str]()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def take(self, report: RunReport, events: Sequence[EventReport]) -> None:
        """Take note of a report, and of the events since the last one."""
        self._lost.update(event.code for event in events if event.kind in _LOST and event.code)
        self._report = report

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the latest report, as `Collector` requires."""
        report = self._report
        numbers = {name: getattr(report, name, 0) for name in (*GAUGES, *COUNTERS)}
        numbers["connected_sites"] = sum(site.state not in _NOT_CONNECTED for site in report.sites)
        numbers["expected_sites"] = len(report.sites)
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"hedgerow_{name}", text, value=numbers[name])
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"hedgerow_{name}", text, value=numbers[name])
        refusals = CounterMetricFamily(f"hedgerow_{REFUSALS}", "Streams refused or lost, by reason.", labels=["reason"])
        for reason, count in sorted((self._lost + Counter(report.streams_refused)).items()):
            refusals.add_metric([reason], count)
        yield refusals

    def encode(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics as text for Prometheus, and its media type.

        Args:
            accept: the request's header of that name.
        """
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type
