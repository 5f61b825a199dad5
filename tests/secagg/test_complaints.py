"""What is complained of is kept without what it was found in: a node's keys, and whole messages of its peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from hedgerow.secagg.messages import ShareDelivery, UnmaskRequest
from hedgerow.secagg.transitions import OwnMistake, Refusal, SumAbandoned
from tests.secagg.lab import Lab, set_up

Complaints = Sequence[Refusal | OwnMistake | SumAbandoned]


def of_an_aggregator() -> Complaints:
    """A vector that ends too early."""
    lab = Lab()
    aggregator = lab.open()
    return aggregator.receive([lab.masked(0, aggregator)[:-1]])[1]


def of_a_setup() -> Complaints:
    """A key bundle that ends too early."""
    made = set_up("keys")
    return made.server.receive([made.messages[0][:-1]])[1]


def of_a_node_in_a_round() -> Complaints:
    """Two sealed seed shares are exchanged."""
    lab = Lab()
    request = UnmaskRequest.from_bytes(lab.request(lab.collected(), 0, (0, 1, 2, 3, 4)))
    first, second, *rest = request.sealed
    return lab.answered(0, replace(request, sealed=(second, first, *rest)).to_bytes()).complaints


def of_a_node_in_the_setup() -> Complaints:
    """Two sealed runs of slot-key shares are exchanged."""
    made = set_up("shares")
    server, _ = made.server.receive(made.messages)
    delivered = ShareDelivery.from_bytes(server.close_shares()[1][0])
    first, second, *rest = delivered.sealed
    altered = replace(delivered, sealed=(second, first, *rest)).to_bytes()
    return made.nodes[0].acknowledge(made.contexts[0], altered).complaints


@pytest.mark.parametrize("complain", [of_an_aggregator, of_a_setup, of_a_node_in_a_round, of_a_node_in_the_setup])
def test_a_complaint_holds_no_frame(complain: Callable[[], Complaints]) -> None:
    """A frame holds the state that was left: without the collector, which comes late, keys of past slots would stay."""
    complaints = complain()
    assert complaints
    for complaint in complaints:
        assert (complaint.__traceback__, complaint.__cause__, complaint.__context__) == (None, None, None)
