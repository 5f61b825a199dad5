# SPDX-License-Identifier: Apache-2.0
"""On a site's machine: how a carrier's app hands a request to the site's node, and gets its reply.

What a SuperLink or a job sends to be executed runs as the user of the SuperNode or the client. When the node is
resident, a process of another user behind a socket, that code can only do what the network could: hand over bytes that
the node does not believe unless the pinned coordinator has signed them. Without one, the node lives for one request in
the app's process.

All carriers hand over the same two messages of `hedgerow.codec`; a file that is carried by hand is one of them.
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

from hedgerow.app.output import tell
from hedgerow.codec import Bytes, Encoded, Shown, Word
from hedgerow.errors import EnvironmentFault, HedgerowError, RemoteProtocolError
from hedgerow.plan.fields import escape_for_terminal
from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.transport.carrier import Fetched
from hedgerow.transport.envelope import PartKind
from hedgerow.version import __version__

MAX_HANDED_BYTES = 1 << 27
SITE_FILE = "hedgerow.toml"
"""File that an NVFlare client's owner puts into a folder of its workspace that jobs do not fill."""
_PATIENCE = 60.0
"""Seconds for a whole request, from a process of the same machine: the next one waits for it."""
_MAX_ANSWER = 3600.0
"""Seconds for a node to answer, after the requests before: one that reads its rows or grows trees takes minutes."""


@dataclass(frozen=True, slots=True)
class HandedOn(Encoded):
    """A request with the coordinator's version of Hedgerow, from an app or a file to the site's node."""

    KIND = PartKind.HANDED_ON
    version: Shown
    request: Bytes


@dataclass(frozen=True, slots=True)
class HandedBack(Encoded):
    """Reply of the site's node, or the code of its refusal."""

    KIND = PartKind.HANDED_BACK
    reply: Bytes
    refusal: Annotated[str, Word(least=0)] = ""


def require_version(version: str, whose: str) -> None:
    """Raise RemoteProtocolError `carrier-version` unless it is the installed one."""
    if version != __version__:
        said = version[:32] or "no version"
        raise RemoteProtocolError("carrier-version", whose=whose, said=said, installed=__version__)


# At the coordinator ---------------------------------------------------------------------------------------------------


def hand_on(request: bytes) -> bytes:
    """Wrap a request into a HandedOn of this version."""
    return HandedOn(__version__, request).to_bytes()


def fetch_handed_back(number: str, data: bytes) -> Fetched:
    """Read a HandedBack as the result for the envelope of this number."""
    try:
        back = HandedBack.from_bytes(data)
    except ValueError:
        return Fetched(number, None, WireCode.MALFORMED.value)
    return Fetched(number, None, back.refusal) if back.refusal else Fetched(number, back.reply)


# At a site ------------------------------------------------------------------------------------------------------------


def find_site(folder: Path) -> Path:
    """Return the site's file in a folder, or the socket of a resident node, which has precedence."""
    file = folder / SITE_FILE
    resident = file.with_suffix(".sock")
    return resident if resident.is_socket() else file


def answer_handed_on(
    find: Callable[[], Path], data: bytes, answer: Callable[[Path, bytes], bytes] | None = None
) -> bytes:
    """Answer a HandedOn with a HandedBack; a refusal is logged in full here, and leaves as a code only.

    Args:
        find: gives the socket of a resident node, which answers then, or the file of the site whose node does.
        answer: answers a request for the site of a file; a node that lives for this request when not given.
    """
    try:
        path = find()
        if path.is_socket():
            return ask(path, data)
        try:
            asked = HandedOn.from_bytes(data)
        except ValueError:
            raise WireRefusal(WireCode.MALFORMED) from None
        require_version(asked.version, "The coordinator")
        if answer is None:
            # Imported here, because it takes seconds, which a caller of a resident node saves.
            from hedgerow.carriers.site import answer_request

            answer = answer_request
        return HandedBack(answer(path, asked.request)).to_bytes()
    except Exception as fault:
        # Hide other exceptions: a carrier would send on their text, which may quote a cell or a number of rows.
        known = fault
        if not isinstance(known, HedgerowError):
            known = HedgerowError("internal", type=type(fault).__name__, error=fault)
        tell(f"hedgerow: {escape_for_terminal(str(known))} ({known.code})", level="WARNING")
        return HandedBack(b"", known.public_code).to_bytes()


class NodeSocket:
    """Takes requests from processes of this machine, one at a time.

    Raises EnvironmentFault `address-in-use` when another node listens there, `file-not-written` when it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        if path.is_socket():
            _require_dead(path)
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if path.is_socket():
                path.unlink()
            # Make the socket with its final mode. Changing the mode by name later would follow a link that another user
            # of the folder has put in the socket's place.
            before = os.umask(0o117)
            try:
                self._listener.bind(str(path))
            finally:
                os.umask(before)
            self._listener.listen(8)
        except OSError as fault:
            self._listener.close()
            raise EnvironmentFault("file-not-written", path=path, fault=fault.strerror or fault) from None

    def take(self, answer: Callable[[bytes], bytes]) -> None:
        """Take one request: `answer` gives a HandedBack to a HandedOn."""
        connection, _ = self._listener.accept()
        with connection:
            # A peer that hangs up or is slow has not asked anything.
            with contextlib.suppress(OSError, ValueError):
                reply = answer(_receive_all(connection, _PATIENCE))
                connection.settimeout(_PATIENCE)
                connection.sendall(reply)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._listener.close()
        with contextlib.suppress(OSError):
            self._path.unlink()


def ask(path: Path, data: bytes) -> bytes:
    """Send a HandedOn to the resident node and return its HandedBack.

    Raises EnvironmentFault `resident-absent` when no one listens, or the node hangs up or hangs.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_MAX_ANSWER)
            connection.connect(str(path))
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return HandedBack.from_bytes(_receive_all(connection, _MAX_ANSWER)).to_bytes()
    except (OSError, ValueError) as fault:
        raise EnvironmentFault("resident-absent", path=path, fault=fault) from None


def _require_dead(path: Path) -> None:
    """EnvironmentFault `address-in-use` where something answers at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return
    raise EnvironmentFault("address-in-use", fault="A node listens already", address=path)


def _receive_all(connection: socket.socket, seconds: float) -> bytes:
    """Receive until the other side ends its half; TimeoutError if all of it takes longer than `seconds`."""
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
        if n_bytes > MAX_HANDED_BYTES:
            raise ValueError("a message is too long")
