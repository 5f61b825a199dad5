"""The coordinator's numbers for Prometheus: a small HTTP server that shows a run's public progress and nothing else.

What is shown are the fields of `RunNumbers`. Every party of the run knows all of them, or whoever watches the network
sees them: no count, sum or rate of any site's data has a place here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hedgerow.protocol.errors import EnvironmentFault, UsageError, missing_extra

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise missing_extra("prometheus_client", "Serving numbers for Prometheus") from error


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """A run's public numbers at one moment.

    Args: rounds_done, rounds_planned: releases made and to be made; connected_sites, expected_sites; bytes_sent,
        bytes_received: frames of all streams; epsilon_spent, epsilon_limit: by the ledger and by the plan; refusals:
        streams that were refused or lost, by the words of protocol/wire/refusals.py.
    """

    rounds_done: int = 0
    rounds_planned: int = 0
    connected_sites: int = 0
    expected_sites: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    epsilon_spent: float = 0.0
    epsilon_limit: float = 0.0
    refusals: Mapping[str, int] = field(default_factory=dict)


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
if set(_GAUGES) | set(_COUNTERS) | {"refusals"} != {one.name for one in fields(RunNumbers)}:
    raise TypeError("Every field of RunNumbers is shown, and nothing but them.")


class _RunCollector(Collector):
    def __init__(self) -> None:
        self.numbers = RunNumbers()

    def collect(self) -> Iterator[Metric]:
        numbers = self.numbers
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"hedgerow_{name}", text, value=getattr(numbers, name))
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"hedgerow_{name}", text, value=getattr(numbers, name))
        refusals = CounterMetricFamily("hedgerow_refusals", "Streams refused or lost, by reason.", labels=["reason"])
        for reason, count in sorted(numbers.refusals.items()):
            refusals.add_metric([reason], count)
        yield refusals


class MetricsServer:
    """Serves ``/metrics`` until it is closed.

    Args: host: an IP address of this machine; port: 0 takes a free one; allow_remote: permits an address that other
        machines reach, as in a container. The page has no authentication.
    Raises UsageError for another host without `allow_remote`, EnvironmentFault `address-in-use`.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, allow_remote: bool = False) -> None:
        if not allow_remote and not _is_loopback(host):
            raise UsageError(
                f"Metrics on {host} could be read by other machines.",
                cause="The page has no authentication.",
                remedy="Serve it on 127.0.0.1, or allow remote readers explicitly behind a firewall.",
                code="metrics-not-loopback",
            )
        self._collector = _RunCollector()
        registry = CollectorRegistry()
        registry.register(self._collector)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise EnvironmentFault(
                f"Metrics cannot be served on {host}:{port}.",
                cause=str(error.strerror),
                remedy="Choose another port.",
                code="address-in-use",
            ) from error
        self.port: int = self._server.server_port

    def show(self, numbers: RunNumbers) -> None:
        """From now on these numbers are served. May be called from any thread."""
        self._collector.numbers = numbers

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
