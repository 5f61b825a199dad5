"""The page for Prometheus shows a run's public numbers, to this machine, and nothing else."""

from __future__ import annotations

import urllib.request
from dataclasses import fields, replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hedgerow.protocol.errors import EnvironmentFault, UsageError
from hedgerow.transport.metrics import MetricsServer, RunNumbers

NUMBERS = RunNumbers(3, 100, 4, 5, 1234, 5678, 0.25, 1.0, {"silent": 2, "unpinned": 1})


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
    """Exactly the fields of `RunNumbers`, as they are now; nothing about the process or the machine."""
    with MetricsServer() as server:
        server.show(NUMBERS)
        shown = page(server)
        assert shown == {
            "hedgerow_rounds_done_total": 3, "hedgerow_rounds_planned": 100, "hedgerow_connected_sites": 4,
            "hedgerow_expected_sites": 5, "hedgerow_bytes_sent_total": 1234, "hedgerow_bytes_received_total": 5678,
            "hedgerow_epsilon_spent": 0.25, "hedgerow_epsilon_limit": 1.0,
            "hedgerow_refusals_totalsilent": 2, "hedgerow_refusals_totalunpinned": 1,
        }  # fmt: skip
        assert len(shown) == len(fields(RunNumbers)) - 1 + len(NUMBERS.refusals)
        server.show(replace(NUMBERS, rounds_done=4))
        assert page(server)["hedgerow_rounds_done_total"] == 4


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
