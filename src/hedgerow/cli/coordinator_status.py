"""Who is told how a coordinator's run is: monitors over gRPC, and Prometheus when asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from hedgerow.cli.federation_inputs import address_of
from hedgerow.cli.output import note
from hedgerow.protocol.results import RunReport, SiteState
from hedgerow.server.publisher import Audience, EventsSince, Publisher
from hedgerow.server.status import RunBoard, Traffic

if TYPE_CHECKING:
    # An engine without gRPC may be watched by nobody.
    from hedgerow.transport.grpc_monitor import Monitors

_COUNTED = {"left", "refused"}
_NOT_CONNECTED = {SiteState.ABSENT, SiteState.LEFT, SiteState.REFUSED, SiteState.DONE}


class MetricsAudience:
    """Shows reports to Prometheus.

    Args: where: "PORT", on this machine only, or "HOST:PORT": naming a host allows other machines to read.
    Raises UsageError for what is no address, EnvironmentFault when it cannot be had or the extra is missing.
    """

    def __init__(self, where: str) -> None:
        # An extra: only whoever asks for metrics needs it.
        from hedgerow.transport.metrics import MetricsServer

        host, port = address_of(where if ":" in where else f"127.0.0.1:{where}", "--metrics")
        self._server = MetricsServer(host, port, allow_remote=":" in where)
        self.port = self._server.port
        self._lost: Counter[str] = Counter()
        self._last_event = 0

    def is_there(self) -> bool:
        """Always: it asks when it likes."""
        return True

    def show(self, report: RunReport, events_since: EventsSince) -> None:
        """See `Audience.show`."""
        from hedgerow.transport.metrics import RunNumbers

        events, missed = events_since(self._last_event)
        self._last_event += missed + len(events)
        self._lost.update(event.code for event in events if event.kind in _COUNTED and event.code)
        self._server.show(
            RunNumbers(
                rounds_done=report.rounds_done,
                rounds_planned=report.rounds_planned,
                connected_sites=sum(site.state not in _NOT_CONNECTED for site in report.sites),
                expected_sites=len(report.sites),
                bytes_sent=report.bytes_sent,
                bytes_received=report.bytes_received,
                epsilon_spent=report.epsilon_spent,
                epsilon_limit=report.epsilon_limit,
                refusals=self._lost + Counter(report.streams_refused),
            )
        )

    def close(self) -> None:
        """Stop serving."""
        self._server.close()


class CountingHub(Protocol):
    """What a hub counts, whatever its engine."""

    @property
    def refusals(self) -> Mapping[str, int]:
        """How many peers were refused, by code."""

    def traffic(self) -> CountedBytes:
        """Bytes since the hub was made."""


class CountedBytes(Protocol):
    """Bytes each way."""

    @property
    def sent(self) -> int: ...

    @property
    def received(self) -> int: ...


@contextmanager
def published(board: RunBoard, hub: CountingHub, monitors: Monitors, metrics: str | None) -> Iterator[None]:
    """Tell all who watch how the run is, and at the end how it ended."""

    def traffic() -> Traffic:
        counted = hub.traffic()
        return Traffic(counted.sent, counted.received, dict(hub.refusals))

    with ExitStack() as stack:
        stack.callback(monitors.close)
        audiences: list[Audience] = [monitors]
        if metrics is not None:
            audience = MetricsAudience(metrics)
            stack.callback(audience.close)
            audiences.append(audience)
            note(f"Metrics for Prometheus: port {audience.port}, path /metrics.")
        stack.callback(Publisher(board, traffic, audiences).close)
        yield
