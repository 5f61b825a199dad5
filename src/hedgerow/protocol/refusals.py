# SPDX-License-Identifier: Apache-2.0
"""Why a party is turned away, and why a training could not go on, by stable codes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hedgerow.errors import RemoteProtocolError


class WireCode(StrEnum):
    """The reasons to end a stream, by their stable words."""

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
    INVITATION_UNKNOWN = "invitation-unknown"
    INVITATION_USED = "invitation-used"
    CLOSED = "closed"
    NOT_SERVED = "not-served-yet"


FINAL = frozenset(
    {
        WireCode.VERSION_MISMATCH,
        WireCode.UNPINNED,
        WireCode.SITE_MISMATCH,
        WireCode.ROSTER_MISMATCH,
        WireCode.PLAN_MISMATCH,
        WireCode.DUPLICATE_NODE,
        WireCode.INVITATION_UNKNOWN,
        WireCode.INVITATION_USED,
    }
)
"""Codes after which a node stops; after all others it tries again with back-off."""


class WireRefusal(RemoteProtocolError):
    """A stream was ended, or must be; `detail` is a sentence in addition to those of the code."""

    def __init__(self, wire_code: WireCode, detail: str = "") -> None:
        super().__init__(wire_code.value)
        self.what = f"{self.what} {detail}".strip()
        self.wire_code, self.detail = wire_code, detail

    @property
    def is_final(self) -> bool:
        """Whether a node does not try again."""
        return self.wire_code in FINAL


def read_code(code: str) -> WireCode:
    """Return the code of a peer's word; CLOSED for a word of a later version."""
    try:
        return WireCode(code)
    except ValueError:
        return WireCode.CLOSED


@dataclass(frozen=True, slots=True)
class Salvage:
    """A training that could not go on, and ended with the model of the rounds released so far.

    Attributes:
        code: why it could not, a stable code.
        n_used: releases that the model is made of, the first ones of the ledger; >= 1.
        n_planned: releases of the whole run.
    """

    code: str
    n_used: int
    n_planned: int

    def text(self) -> str:
        """Return what a person is told, as one sentence."""
        return (
            f"The run could not go on ({self.code}). The model is that of the {self.n_used} of {self.n_planned} rounds "
            "that were released before."
        )
