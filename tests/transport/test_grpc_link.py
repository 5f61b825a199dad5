"""One stream by itself: what it does when gRPC says, in its several ways, that there is no stream any more."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from hedgerow.protocol.wire.frames import FrameReader, FrameWriter
from hedgerow.protocol.wire.refusals import WireCode, WireRefusal
from hedgerow.transport.grpc_core import DEFAULTS, Caller
from hedgerow.transport.grpc_link import Link


class EndedStream:
    """A stream that the peer has ended: reading waits for ever, writing finds no call."""

    async def read(self) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def write(self, frame: bytes) -> None:
        raise asyncio.InvalidStateError("RPC already finished.")


@pytest.mark.parametrize("is_closing", [True, False])
def test_a_stream_that_the_peer_ended_first_is_no_fault(is_closing: bool) -> None:
    """At a run's end both sides say goodbye at once; the later one must end quietly, without a traceback in the log."""
    complaints: list[dict[str, Any]] = []

    async def scene() -> WireRefusal:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        reader, writer = FrameReader(DEFAULTS.max_message_bytes), FrameWriter()
        reader.version = writer.version = 1
        link = Link(EndedStream(), (reader, writer), DEFAULTS, lambda message: None)
        running = asyncio.ensure_future(link.run())
        if is_closing:
            link.end(WireRefusal(WireCode.CLOSED), drain=True)
        else:
            link.offer(b"a message")
        return await asyncio.wait_for(running, 10)

    why = asyncio.run(scene())
    assert why.wire_code is (WireCode.CLOSED if is_closing else WireCode.CONNECTION_LOST)
    assert not complaints


def test_what_is_asked_of_the_loop_comes_in_order_and_one_wake_up_serves_many() -> None:
    """A coordinator that sends to all its nodes must not stop for every one; nor may one that fails stop the others."""
    called: list[int] = []
    complaints: list[dict[str, Any]] = []

    async def scene() -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        wake_ups = 0
        wake = loop.call_soon_threadsafe

        def counted(*arguments: Any) -> Any:
            nonlocal wake_ups
            wake_ups += 1
            return wake(*arguments)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        caller = Caller(loop)
        for turn in (0, 10):
            for number in range(turn, turn + 10):
                caller.soon(partial(called.append, number) if number != 3 else partial(divmod, 1, 0))
            await asyncio.sleep(0.01)
        return wake_ups

    assert asyncio.run(scene()) == 2
    assert called == [number for number in range(20) if number != 3]
    assert len(complaints) == 1
