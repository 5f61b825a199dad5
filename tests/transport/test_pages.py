"""A port for HTTP keeps a few connections, for a few seconds, whoever knocks at it: pages and metrics stand on it."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from hedgerow.transport import pages
from hedgerow.transport.pages import HttpPort, Request, Response, StreamingResponse
from tests.transport.test_connections import wait_until


async def answer(request: Request) -> Response:
    """A word, a stream without an end, or what was sent."""
    if request.url.path == "/events":

        async def stream() -> AsyncIterator[bytes]:
            while True:
                yield b"data: there\n\n"
                await pages.asyncio.sleep(0.01)

        return StreamingResponse(stream())
    return Response(await request.body() or b"there")


@pytest.fixture
def port() -> Iterator[HttpPort]:
    """One that is open."""
    with contextlib.closing(HttpPort("127.0.0.1", 0, answer, ("GET", "POST"))) as opened:
        yield opened


def dial(port: HttpPort, words: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port.port), timeout=300)
    connection.sendall(words)
    return connection


def asked(port: HttpPort) -> bytes:
    """What one is answered who asks."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port.port, timeout=300)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().read()


def is_ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return not connection.recv(1 << 16)
    except BlockingIOError:
        return False
    except OSError:
        return True


HEAD = b" / HTTP/1.1\r\nHost: localhost\r\n"
PARTS = {
    "nothing": b"",
    "a part of a request": b"GET /",
    "a part of a body": b"POST" + HEAD + b"Content-Length: 9\r\n\r\nx",
    "an answered request": b"GET" + HEAD + b"\r\n",
}


@pytest.mark.parametrize("part", PARTS)
def test_a_crowd_takes_few_files_and_no_turn(port: HttpPort, part: str) -> None:
    """A thousand connections to a page took all files of a coordinator, whose run ended with its budget spent."""
    before, most = len(os.listdir("/dev/fd")), 0
    with contextlib.ExitStack() as crowd:
        for number in range(150):
            crowd.enter_context(dial(port, PARTS[part]))
            if number % 30 == 0:
                assert asked(port) == b"there"
            most = max(most, len(os.listdir("/dev/fd")) - before - number)
    # Those that were accepted and not looked at yet are beside them, four a turn of the loop, or five on Python 3.14.
    assert most <= pages.MAX_CONNECTIONS + 24


@pytest.mark.parametrize("part", PARTS)
def test_who_asks_for_ever_is_hung_up_on(port: HttpPort, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was half sent was held for ever; another byte now and then is no more than that."""
    monkeypatch.setattr(pages, "ASKING_SECONDS", 0.2)
    with dial(port, PARTS[part]) as slow:

        def goes_on() -> bool:
            with contextlib.suppress(OSError):
                slow.sendall(PARTS[part][-1:] and b"y")
            return is_ended(slow)

        wait_until(goes_on)


def test_a_stream_stays_beside_a_crowd(port: HttpPort, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever watches a run goes on watching, beyond the time in which others have to ask."""
    with dial(port, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n") as stream, contextlib.ExitStack() as crowd:
        assert stream.recv(1)
        monkeypatch.setattr(pages, "ASKING_SECONDS", 0.2)
        others = [crowd.enter_context(dial(port)) for _ in range(2 * pages.MAX_CONNECTIONS)]
        wait_until(lambda: all(map(is_ended, others)))
        stream.setblocking(True)
        for _ in range(50):
            assert stream.recv(1 << 16)


def test_the_answer_of_one_that_takes_nothing_makes_room_last(port: HttpPort) -> None:
    """And beyond so many streams there is still room for no more than so many."""
    with contextlib.ExitStack() as crowd:
        words = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
        streams = [crowd.enter_context(dial(port, words)) for _ in range(pages.MAX_CONNECTIONS)]
        assert all(stream.recv(1) for stream in streams)
        crowd.enter_context(dial(port, words))
        wait_until(lambda: len(port._server.server_state.connections) <= pages.MAX_CONNECTIONS)


def test_nobody_writes_the_log_from_outside(port: HttpPort, caplog: pytest.LogCaptureFixture) -> None:
    """A stranger who sends no HTTP is refused, and nothing is said about it."""
    with dial(port, b"\0no request\r\n\r\n") as stranger:
        assert stranger.recv(12) == b"HTTP/1.1 400"
    assert not caplog.records
