"""Why a stream ends: one table of codes, with the sentences for an operator and whether a node should try again.

The words are what `Refused.code` carries, what `Left.reason` and `Disconnected.reason` hold, and what logs and the
monitor show. They stay the same between versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hedgerow.errors import RemoteProtocolError


class WireCode(StrEnum):
    """The reasons by their stable words."""

    MALFORMED = "malformed"
    UNKNOWN_VERSION = "unknown-version"
    OUT_OF_ORDER = "out-of-order"
    OVERSIZED = "oversized"
    UNEXPECTED_FRAME = "unexpected-frame"
    HELLO_TIMEOUT = "hello-timeout"
    VERSION_MISMATCH = "version-mismatch"
    UNPINNED = "unpinned"
    SITE_MISMATCH = "site-mismatch"
    ROSTER_MISMATCH = "roster-mismatch"
    PLAN_MISMATCH = "plan-mismatch"
    DUPLICATE_NODE = "duplicate-node"
    REPLACED = "replaced"
    SILENT = "silent"
    SLOW_PEER = "slow-peer"
    CONNECTION_LOST = "connection-lost"
    UNREACHABLE = "unreachable"
    TLS_REFUSED = "tls-refused"
    WRONG_COORDINATOR = "wrong-coordinator"
    TOO_MANY_MONITORS = "too-many-monitors"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The three sentences of one code. A node tries again with back-off unless it `is_final`."""

    what: str
    cause: str
    remedy: str
    is_final: bool = False


_VERSIONS = "Compare the installed versions of hedgerow."
_FAULTY = "The peer is faulty, or it is not Hedgerow."
_ROSTERS = "Compare the rosters' fingerprints (`hedgerow roster show`) and pin the newest at every site."
_NETWORK = "Ask the network's operator; nothing else is needed, the node tries again by itself."

EXPLANATIONS: dict[WireCode, Explanation] = {
    WireCode.MALFORMED: Explanation("A frame does not parse, or is empty.", _FAULTY, _VERSIONS),
    WireCode.UNKNOWN_VERSION: Explanation("A frame is of another wire version than was agreed.", _FAULTY, _VERSIONS),
    WireCode.OUT_OF_ORDER: Explanation("A frame is missing, repeated, or out of its place.", _FAULTY, _VERSIONS),
    WireCode.OVERSIZED: Explanation(
        "A frame or message is larger than the receiver takes.",
        "The plan asks for very long vectors, or the peer is faulty.",
        "Make batches or the histogram smaller, or raise the limit on both sides.",
    ),
    WireCode.UNEXPECTED_FRAME: Explanation("A frame came that this moment does not allow.", _FAULTY, _VERSIONS),
    WireCode.HELLO_TIMEOUT: Explanation(
        "The peer connected and did not say who it is in time.",
        "The peer or the network is very slow, or the peer is not Hedgerow.",
        _NETWORK,
    ),
    WireCode.VERSION_MISMATCH: Explanation(
        "The two sides speak no common wire version.",
        "Their releases of hedgerow are too far apart.",
        "Install the same release on both sides.",
        is_final=True,
    ),
    WireCode.UNPINNED: Explanation(
        "The node's certificate is not in the coordinator's roster.",
        "The site is new, was removed, or has rotated its keys.",
        _ROSTERS,
        is_final=True,
    ),
    WireCode.SITE_MISMATCH: Explanation(
        "The node calls itself by another site's name than its certificate's.",
        "Its identity file and its roster do not belong together.",
        "Start the node with its own site's identity file.",
        is_final=True,
    ),
    WireCode.ROSTER_MISMATCH: Explanation(
        "The node pins another roster than the coordinator.",
        "One of them has an older roster.",
        _ROSTERS,
        is_final=True,
    ),
    WireCode.PLAN_MISMATCH: Explanation(
        "The node's owner agreed to another plan than the coordinator runs.",
        "The plan was changed on one side.",
        "Compare the plans' digests; agree on one file.",
        is_final=True,
    ),
    WireCode.DUPLICATE_NODE: Explanation(
        "A node of this site is connected already, and it answers.",
        "Two nodes of the site were started.",
        "Stop one of them. This one has stopped by itself.",
        is_final=True,
    ),
    WireCode.REPLACED: Explanation(
        "The connection did not answer, and a newer one of the same site took its place.",
        "The node was restarted, or its network changed.",
        "Nothing, if the node is there again.",
    ),
    WireCode.SILENT: Explanation(
        "Nothing was heard from the peer for too long.",
        "It hangs, was suspended, or the network drops packets.",
        _NETWORK,
    ),
    WireCode.SLOW_PEER: Explanation(
        "The peer does not take what is sent to it.", "It hangs, or its network is too slow for this plan.", _NETWORK
    ),
    WireCode.CONNECTION_LOST: Explanation(
        "The connection broke.", "The network or the peer's process failed.", _NETWORK
    ),
    WireCode.UNREACHABLE: Explanation(
        "The coordinator cannot be reached.",
        "It is not running, its address is wrong, or a firewall is in the way.",
        "Check the address and that outgoing TCP connections to it are allowed.",
    ),
    WireCode.TLS_REFUSED: Explanation(
        "The connection was closed during the TLS handshake.",
        "The coordinator does not pin this site's certificate, or something in between does not let TLS pass.",
        _ROSTERS,
    ),
    WireCode.WRONG_COORDINATOR: Explanation(
        "Whoever answered does not have the pinned coordinator's certificate.",
        "The coordinator has rotated its keys, or somebody stands between.",
        _ROSTERS,
    ),
    WireCode.TOO_MANY_MONITORS: Explanation(
        "As many monitors as the coordinator serves watch it already.",
        "Monitors were left running.",
        "Stop one of them; this one tries again by itself.",
    ),
    WireCode.CLOSED: Explanation("The peer ended the stream in order.", "It was stopped.", "Nothing; wait for it."),
}


class WireRefusal(RemoteProtocolError):
    """A stream was ended, or must be; `wire_code` is the table's row."""

    def __init__(self, wire_code: WireCode, detail: str = "") -> None:
        row = EXPLANATIONS[wire_code]
        super().__init__(f"{row.what} {detail}".strip(), cause=row.cause, remedy=row.remedy, code=wire_code.value)
        self.wire_code = wire_code


def known(code: str) -> WireCode:
    """The code of a word that a peer sent; CLOSED for a word of a later version."""
    try:
        return WireCode(code)
    except ValueError:
        return WireCode.CLOSED
