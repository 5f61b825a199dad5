"""One stream by itself: what it does when gRPC says, in its several ways, that there is no stream any more."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import queue
import threading
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.transport import grpc_link
from hedgerow.transport.grpc_link import DEFAULTS, MIN_SPEED, Caller, GrpcLink, background, get_next, within


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
        link = GrpcLink(EndedStream(), DEFAULTS, lambda message: None)
        running = asyncio.ensure_future(link.run())
        if is_closing:
            link.end(WireRefusal(WireCode.CLOSED), drain=True)
        else:
            link.offer(b"a message")
        return await running

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
            await asyncio.sleep(0)
            while len(called) + len(complaints) < turn + 10:
                await asyncio.sleep(0)
        return wake_ups

    assert asyncio.run(scene()) == 2
    assert called == [number for number in range(20) if number != 3]
    assert len(complaints) == 1


class Minutes(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time: its clock goes on by what is waited for, and by `late` more."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.late = 0.0, 0.0
        look = self._selector.select  # type: ignore[attr-defined]

        def passing(timeout: float | None) -> Any:
            if timeout:
                self.now += timeout + self.late
            return look(0)

        self._selector.select = passing  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now


def played(scene: Coroutine[Any, Any, Any]) -> Any:
    """What a scene gives, played in a loop of that kind."""
    with asyncio.Runner(loop_factory=Minutes) as runner:
        return runner.run(scene)


class Pipe:
    """One end of a stream in memory; a peer that is `stuck` takes nothing, over a line of `speed` bytes a second."""

    def __init__(self, inward: asyncio.Queue[bytes], outward: asyncio.Queue[bytes]) -> None:
        self.inward, self.outward, self.is_stuck = inward, outward, False
        self.speed = float("inf")

    async def read(self) -> bytes:
        return await self.inward.get()

    async def write(self, frame: bytes) -> None:
        if self.is_stuck:
            await asyncio.Event().wait()
        await asyncio.sleep(len(frame) / self.speed)
        await self.outward.put(frame)


def link_over(pipe: Pipe) -> GrpcLink:
    return GrpcLink(pipe, DEFAULTS, lambda message: None)


def pair() -> tuple[Pipe, Pipe]:
    one, other = asyncio.Queue[bytes](), asyncio.Queue[bytes]()
    return Pipe(one, other), Pipe(other, one)


def clock() -> Minutes:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Minutes)
    return loop


async def ended(*running: asyncio.Future[Any]) -> None:
    for task in running:
        task.cancel()
    await asyncio.wait(running)


def test_a_peer_that_takes_nothing_is_named() -> None:
    """A message that cannot be written for too long ends the stream."""

    async def scene() -> tuple[WireRefusal, float]:
        near, _ = pair()
        near.is_stuck = True
        link = link_over(near)
        link.offer(b"a message")
        return await link.run(), clock().now

    why, seconds = played(scene())
    assert why.wire_code is WireCode.SLOW_PEER
    assert DEFAULTS.silence_seconds <= seconds <= 2 * DEFAULTS.silence_seconds


def test_a_long_message_has_the_time_that_it_takes_on_a_slow_line() -> None:
    """A site on a slow line is not cut in the middle of its longest message; one that takes nothing of it still is."""
    longest = bytes(DEFAULTS.max_message_bytes)
    seconds = len(longest) / MIN_SPEED

    async def scene() -> tuple[bool, WireRefusal, float]:
        near, _ = pair()
        near.speed = MIN_SPEED
        link = link_over(near)
        running = asyncio.ensure_future(link.run())
        link.offer(longest)
        await asyncio.sleep(seconds + DEFAULTS.silence_seconds)
        was_taken = not near.outward.empty() and not running.done()
        near.is_stuck, since = True, clock().now
        link.offer(longest)
        return was_taken, await running, clock().now - since

    was_taken, why, waited = played(scene())
    assert was_taken and why.wire_code is WireCode.SLOW_PEER
    assert seconds < waited <= seconds + 2 * DEFAULTS.silence_seconds + 1.0


def test_a_peer_is_not_slow_because_this_process_did_not_run() -> None:
    """On a busy machine every wait takes too long: a peer is judged by the time in which it could be served."""

    async def scene() -> tuple[bool, WireRefusal]:
        near, _ = pair()
        near.is_stuck = True
        link = link_over(near)
        link.offer(b"a message")
        running = asyncio.ensure_future(link.run())
        clock().late = 30.0
        await asyncio.sleep(20 * DEFAULTS.silence_seconds)
        was_there = not running.done()
        clock().late = 0.0
        return was_there, await running

    was_there, why = played(scene())
    assert was_there and why.wire_code is WireCode.SLOW_PEER


def test_a_wait_counts_the_seconds_in_which_this_process_ran() -> None:
    """A greeting is not too late because this machine was busy; one that never comes ends the wait."""

    async def scene() -> tuple[str, bool]:
        clock().late = 100.0

        async def greeting() -> str:
            await asyncio.sleep(900)
            return "hello"

        heard = await within(greeting(), 10.0)
        clock().late = 0.0
        try:
            await within(asyncio.Event().wait(), 10.0)
        except TimeoutError:
            return heard, True
        return heard, False

    assert played(scene()) == ("hello", True)


def test_a_queue_is_waited_for_as_long_as_this_process_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that was stopped for an hour lets its transport read before it calls anybody silent."""
    now = [0.0]
    stops = [3600.0, 3600.0, 0.0, 0.0, 0.0]
    events: queue.SimpleQueue[str] = queue.SimpleQueue()

    class Stopped:
        def get(self, timeout: float) -> str:
            now[0] += timeout + stops.pop(0)
            if not stops:
                return "an answer"
            raise queue.Empty

        get_nowait = events.get_nowait

    monkeypatch.setattr(grpc_link.time, "monotonic", lambda: now[0])
    assert get_next(Stopped(), 10.0) == "an answer"  # type: ignore[arg-type]
    assert get_next(events, 0.0) is None
    stops += [0.0] * 20
    assert get_next(Stopped(), 10.0) is None  # type: ignore[arg-type]
    assert len(stops) == 10


class Used:
    """What a call uses; notes in which thread it is let go of."""

    def __init__(self, threads: list[str]) -> None:
        self._threads = threads

    def __del__(self) -> None:
        self._threads.append(threading.current_thread().name)


def test_the_loops_thread_lets_go_of_what_a_failed_call_used() -> None:
    """Python drops a Ctrl-C that comes while the main thread runs a destructor, as gRPC's was when nobody answered."""
    threads: list[str] = []

    async def deep(used: Used) -> None:
        raise TimeoutError(used)

    async def call() -> None:
        try:
            await deep(Used(threads))
        except TimeoutError:
            raise WireRefusal(WireCode.UNREACHABLE) from None

    with pytest.raises(WireRefusal) as caught:
        background.run(call())
    gc.collect()
    assert threads == ["hedgerow-transport"] and caught.value.wire_code is WireCode.UNREACHABLE


def test_an_error_of_the_loop_does_not_keep_what_its_callers_hold() -> None:
    """Who could not listen holds half a server: it goes with the error, not whenever Python looks for circles."""
    threads: list[str] = []

    async def fail() -> None:
        raise WireRefusal(WireCode.UNREACHABLE)

    def call(used: Used) -> None:
        background.run(fail())

    gc.disable()
    try:
        with contextlib.suppress(WireRefusal):
            call(Used(threads))
        assert threads == [threading.current_thread().name]
    finally:
        gc.enable()


def test_ctrl_c_while_the_loop_begins_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever goes on after it, as in a notebook, must not wait for a loop that nobody runs."""
    own = type(background)()

    async def answer() -> int:
        return 7

    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    loops: list[asyncio.AbstractEventLoop] = []
    begin = asyncio.new_event_loop

    def begun() -> asyncio.AbstractEventLoop:
        loops.append(begin())
        return loops[-1]

    monkeypatch.setattr(asyncio, "new_event_loop", begun)
    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(threading.Thread, "start", interrupted)
        own.run(answer())
    loops[0].close()
    before, answered = set(threading.enumerate()), list[int]()
    asking = threading.Thread(target=lambda: answered.append(own.run(answer())), daemon=True)
    asking.start()
    asking.join(600)
    assert answered == [7]
    loops[1].call_soon_threadsafe(loops[1].stop)
    for thread in set(threading.enumerate()) - before:
        thread.join(600)
    loops[1].close()
