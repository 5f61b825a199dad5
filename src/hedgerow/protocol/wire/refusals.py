"""Why a stream ends: the codes, and whether a node should try again; `errors.toml` has the sentences for an operator.

The words are what `Refused.code` carries, what `Left.reason` and `Disconnected.reason` hold, and what logs and the
monitor show. They stay the same between versions.
"""

from __future__ import annotations

from enum import StrEnum

from hedgerow.errors import RemoteProtocolError


class WireCode(StrEnum):
    """The reasons by their stable words."""

    MALFORMED = "malformed"
    UNKNOWN_VERSION = "unknown-version"
    OVERSIZED = "oversized"
    UNEXPECTED_FRAME = "unexpected-frame"
    HELLO_TIMEOUT = "hello-timeout"
    VERSION_MISMATCH = "version-mismatch"
    UNPINNED = "unpinned"
    SITE_MISMATCH = "site-mismatch"
    ROSTER_MISMATCH = "roster-mismatch"
    PLAN_MISMATCH = "plan-mismatch"
    DUPLICATE_NODE = "duplicate-node"
    SILENT = "silent"
    SLOW_PEER = "slow-peer"
    CONNECTION_LOST = "connection-lost"
    UNREACHABLE = "unreachable"
    TLS_REFUSED = "tls-refused"
    WRONG_COORDINATOR = "wrong-coordinator"
    TOO_MANY_MONITORS = "too-many-monitors"
    CLOSED = "closed"


FINAL = frozenset(
    {
        WireCode.VERSION_MISMATCH,
        WireCode.UNPINNED,
        WireCode.SITE_MISMATCH,
        WireCode.ROSTER_MISMATCH,
        WireCode.PLAN_MISMATCH,
        WireCode.DUPLICATE_NODE,
    }
)
"""After these a node stops; after all others it tries again with back-off."""


class WireRefusal(RemoteProtocolError):
    """A stream was ended, or must be; `detail` is a sentence beside those of the code."""

    def __init__(self, wire_code: WireCode, detail: str = "") -> None:
        super().__init__(wire_code.value)
        self.what = f"{self.what} {detail}".strip()
        self.wire_code = wire_code

    @property
    def is_final(self) -> bool:
        """Whether a node does not try again."""
        return self.wire_code in FINAL


def known(code: str) -> WireCode:
    """The code of a word that a peer sent; CLOSED for a word of a later version."""
    try:
        return WireCode(code)
    except ValueError:
        return WireCode.CLOSED
