"""Engine `flower`, on a site's machine: the app that Flower carries hands requests over to a node that is resident.

Whatever a SuperLink sends to be executed runs as the SuperNode's user. When the node is a process of another user
behind a socket, that code can only do what the network could: hand over bytes that the node does not believe unless
the pinned coordinator has signed them. Each side writes one message of `hedgerow.codec` and ends its half.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hedgerow import __version__
from hedgerow.codec import Bytes, Encoded, Shown, Word
from hedgerow.errors import EnvironmentFault, HedgerowError, RemoteProtocolError
from hedgerow.flower.envelope import PartKind
from hedgerow.plan.fields import shown

MAX_BYTES = 1 << 27
_PATIENCE = 60.0
"""Seconds for a whole request, from a process of the same machine: the next one waits for it."""
_LONGEST_ANSWER = 3600.0
"""Seconds for a node to answer, after the requests before: one that reads its rows or grows trees takes minutes."""


@dataclass(frozen=True, slots=True)
class HandedOn(Encoded):
    """App to the site's node, on one machine: a request as it came, and the release of Hedgerow at the coordinator."""

    KIND = PartKind.HANDED_ON
    release: Shown
    request: Bytes


@dataclass(frozen=True, slots=True)
class HandedBack(Encoded):
    """The site's node to the app: its reply, or the code with which it refuses."""

    KIND = PartKind.HANDED_BACK
    reply: Bytes
    refusal: Annotated[str, Word(least=0)] = ""


class NodeSocket:
    """Takes requests from processes of this machine, one at a time. Args: path: of the socket; mode: its permissions.

    Raises EnvironmentFault `address-in-use` when another node listens there, `file-not-written` when it cannot be made.
    """

    def __init__(self, path: Path, mode: int = 0o660) -> None:
        if path.is_socket():
            _require_dead(path)
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if path.is_socket():
                path.unlink()
            # Made closed to all, then opened for its group.
            before = os.umask(0o177)
            try:
                self._listener.bind(str(path))
            finally:
                os.umask(before)
            path.chmod(mode)
            self._listener.listen(8)
        except OSError as fault:
            self._listener.close()
            raise EnvironmentFault("socket-not-made", path=path, fault=fault.strerror or fault) from None

    def take(self, answer: Callable[[str, bytes], bytes]) -> None:
        """Take one request: `answer` gives the reply to the coordinator's version and its bytes, or raises."""
        connection, _ = self._listener.accept()
        with connection:
            # A peer that hangs up, is slow or sends nonsense has not asked anything.
            with contextlib.suppress(OSError, ValueError):
                asked = HandedOn.from_bytes(_received(connection, _PATIENCE))
                try:
                    reply = HandedBack(answer(asked.release, asked.request))
                except HedgerowError as fault:
                    reply = HandedBack(b"", fault.code)
                connection.settimeout(_PATIENCE)
                connection.sendall(reply.to_bytes())

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._listener.close()
        with contextlib.suppress(OSError):
            self._path.unlink()


def ask(path: Path, version: str, request: bytes) -> bytes:
    """The resident node's reply.

    Raises EnvironmentFault `flower-node-absent` when no one listens, or the node hangs up or hangs; RemoteProtocolError
    with the node's own code word when it refuses, or `flower-version` for a version that cannot be shown.
    """
    try:
        asked = HandedOn(version, request).to_bytes()
    except ValueError:
        said = shown(version[:32])
        raise RemoteProtocolError("flower-version", whose="The coordinator", said=said, installed=__version__) from None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_LONGEST_ANSWER)
            connection.connect(str(path))
            connection.sendall(asked)
            connection.shutdown(socket.SHUT_WR)
            back = HandedBack.from_bytes(_received(connection, _LONGEST_ANSWER))
    except (OSError, ValueError) as fault:
        raise EnvironmentFault("flower-node-absent", path=path, fault=fault) from None
    if code := back.refusal:
        raise RemoteProtocolError("node-refuses", code=code)
    return back.reply


def _require_dead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return
    raise EnvironmentFault("socket-in-use", path=path)


def _received(connection: socket.socket, seconds: float) -> bytes:
    """All that the other side writes until it ends its half; TimeoutError when that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    parts: list[bytes] = []
    n_bytes = 0
    while True:
        # For the whole of it: a peer that sends a byte now and then would keep the next one waiting without end.
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError("it took too long")
        connection.settimeout(left)
        if not (part := connection.recv(1 << 20)):
            return b"".join(parts)
        parts.append(part)
        n_bytes += len(part)
        if n_bytes > MAX_BYTES:
            raise ValueError("a message is too long")
