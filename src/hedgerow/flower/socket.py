"""Engine `flower`, on a site's machine: the app that Flower carries hands requests over to a node that is resident.

Whatever a SuperLink sends to be executed runs as the SuperNode's user. When the node is a process of another user
behind a socket, that code can only do what the network could: hand over bytes that the node does not believe unless
the pinned coordinator has signed them.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

from hedgerow.errors import EnvironmentFault, HedgerowError, RemoteProtocolError

MAX_BYTES = 1 << 27
_LENGTH = 4
_REPLY, _REFUSAL = b"\x01", b"\x00"
_PATIENCE = 60.0


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
            connection.settimeout(_PATIENCE)
            # Whoever hangs up or sends nonsense has not asked anything.
            with contextlib.suppress(OSError, UnicodeDecodeError, ValueError):
                version, request = _receive(connection).decode("ascii"), _receive(connection)
                try:
                    status, reply = _REPLY, answer(version, request)
                except HedgerowError as fault:
                    status, reply = _REFUSAL, fault.code.encode("ascii")
                connection.sendall(status + _framed(reply))

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._listener.close()
        with contextlib.suppress(OSError):
            self._path.unlink()


def ask(path: Path, version: str, request: bytes) -> bytes:
    """The resident node's reply.

    Raises EnvironmentFault `flower-node-absent` when nobody listens or hangs up, RemoteProtocolError with the node's
    own code word when it refuses.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(path))
            connection.sendall(_framed(version.encode("ascii")) + _framed(request))
            status, reply = _exactly(connection, 1), _receive(connection)
    except (OSError, ValueError) as fault:
        raise EnvironmentFault("flower-node-absent", path=path, fault=fault) from None
    if status != _REPLY:
        code = reply.decode("ascii", "replace")
        raise RemoteProtocolError("node-refuses", code=code)
    return reply


def _require_dead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return
    raise EnvironmentFault("socket-in-use", path=path)


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH, "big") + data


def _receive(connection: socket.socket) -> bytes:
    length = int.from_bytes(_exactly(connection, _LENGTH), "big")
    if length > MAX_BYTES:
        raise ValueError("a message is too long")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    parts, missing = [], length
    while missing:
        part = connection.recv(min(missing, 1 << 20))
        if not part:
            raise ValueError("the other side hung up")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
