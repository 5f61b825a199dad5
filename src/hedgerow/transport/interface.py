# SPDX-License-Identifier: Apache-2.0
"""What an engine is: it carries messages between one coordinator and its nodes, and knows nothing of what they say.

The coordinator's end is a `Hub`, a node's end an `Uplink`. Messages are bytes; they arrive whole, at most once, and in
the order in which one end sent them, or the connection is reported as lost. Nothing is stored: after a connection was
lost, what was under way may be lost too, and the parties' own journals decide what is sent again.

`transport/uplinks.py` and `transport/engines.py` have both ends of all by name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self

from hedgerow.errors import UsageError

_MAX_KINDS = 8
_ADDRESS = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9]{1,15})?\]):[0-9]{1,5}")
_ANY_HOST = {"0.0.0.0", "::"}


class Address(NamedTuple):
    """Address of a coordinator or a page: the host's name or number, and a port; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 0

    @classmethod
    def parse(cls, text: str, option: str, host: str = "") -> Self:
        """Read an address from "host:port" or "[v6]:port"; raise UsageError "address" for other text.

        Only ASCII is accepted, because letters may look alike, and no other kind of address that gRPC knows, such as
        the file of a socket or a name server.

        Args:
            option: that the text was given for.
            host: of a text that is a port alone, if it may be.
        """
        given, colon, port = text.rpartition(":")
        given = given.removeprefix("[").removesuffix("]") if colon or not host else host
        normal = f"[{given}]:{port}" if ":" in given else f"{given}:{port}"
        if not _ADDRESS.fullmatch(normal) or int(port) > 65535:
            expected = "an address, HOST:PORT, as in 127.0.0.1:7443 or [::1]:7443"
            raise UsageError("argument", code="address", name=option, value=text, expected=expected)
        return cls(given, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_any(self) -> bool:
        """True if the host stands for all addresses of this machine, which nobody can dial."""
        return self.host in _ANY_HOST


@dataclass(frozen=True, slots=True)
class Joined:
    """A site's node is connected; its identity was proved against the roster by the transport."""

    site: str


@dataclass(frozen=True, slots=True)
class Left:
    """A site's connection is gone: closed, broken or replaced by a newer one of the same site."""

    site: str
    reason: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message of a connected site."""

    site: str
    message: bytes


HubEvent = Joined | Left | Arrived


class Hub(Protocol):
    """The coordinator's end of an engine."""

    def send(self, site: str, message: bytes) -> bool:
        """Queue a message for a site; False when it is not connected (nothing is queued then). Does not block."""

    def receive(self, timeout: float) -> HubEvent | None:
        """Return the next event, or None after `timeout` seconds. Events of one site keep their order."""

    def close(self) -> None:
        """Disconnect all nodes and free the port."""


@dataclass(slots=True)
class Traffic:
    """Bytes each way."""

    sent: int = 0
    received: int = 0


class ListeningHub(Hub, Protocol):
    """A hub that nodes dial; it also counts its traffic and refusals."""

    port: int
    """The port it listens on."""

    @property
    def refusals(self) -> Mapping[str, int]:
        """Number of refused peers by code."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Version of Hedgerow by site, as each site's node stated it; sites that stated none are missing."""

    def traffic(self) -> Traffic:
        """Return the bytes of messages, as gRPC carries them, over all joined streams since the hub was made."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The node's link is up; on every reconnection again."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The node's link is down; the engine is trying again with back-off, unless `is_final`.

    `detail` is a sentence for the operator beside those of the reason.
    """

    reason: str
    is_final: bool = False
    detail: str = field(default="", compare=False)


UplinkEvent = Connected | Disconnected | bytes


class Uplink(Protocol):
    """A node's end of an engine."""

    def send(self, message: bytes) -> bool:
        """Queue a message for the coordinator; False when the link is down. Does not block."""

    def receive(self, timeout: float) -> UplinkEvent | None:
        """Return the next event, or None after `timeout` seconds without one."""

    def close(self) -> None:
        """Stop trying and disconnect."""


def is_worth_a_line(count: int) -> bool:
    """Return whether to log the `count`-th event of a kind: the first, second, fourth, eighth and so on.

    A peer that repeats itself must not fill the log.
    """
    return count & (count - 1) == 0


class Repeats:
    """Counts events caused by peers, so that repeats are logged less and less often.

    A peer may invent reasons, so after 8 kinds of one peer its other kinds count as one.
    """

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}

    def note(self, peer: str, kind: str) -> int:
        """Count an event; return the count so far, or 0 if it is not worth a line."""
        counts = self._counts.setdefault(peer, Counter())
        kind = kind if kind in counts or len(counts) < _MAX_KINDS else ""
        counts[kind] += 1
        return counts[kind] if is_worth_a_line(counts[kind]) else 0


def times(count: int) -> str:
    """Return the end of a log line that repeats an earlier one: "" for the first time."""
    return "" if count == 1 else f" ({count} times by now)"
