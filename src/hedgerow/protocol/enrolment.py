"""What an invited party and the coordinator of a study say to each other before there is a roster.

The party asks, the coordinator answers each message with one of its own; `hedgerow.study` says what each is
for, and whom it keeps out. What is asked may be asked again after a connection broke, and has the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from hedgerow.codec import Blob, Choice, Encoded, Fixed, Hash, Many, Shown
from hedgerow.protocol.stream import StreamKind

MAX_ENROLMENT_BYTES = 64 << 20
"""Of the largest message: a model, or a roster of 4,096 sites."""
MAX_CERTIFICATE_BYTES = 4096
NOTHING = bytes(32)

Signature = Annotated[bytes, Fixed(64)]


class AskingStep(IntEnum):
    """How far a party that asks has come."""

    WAITS = 1
    HAS_ROSTER = 2
    HAS_NONCES = 3


@dataclass(frozen=True, slots=True)
class Knock(Encoded):
    """Invited party: a commitment to its keys and its nonces, before it has heard anything of the coordinator's.

    Attributes:
        party: its name, as in its invitation. Not one that was invited: `invitation-unknown`.
        commitment: to what its Opening will say. Another one than before: `invitation-used`.
        tag: HMAC-SHA256 of the invitation and the commitment under its secret. Wrong: `invitation-unknown`.
    """

    KIND = StreamKind.KNOCK
    party: Shown
    commitment: Hash
    tag: Hash


@dataclass(frozen=True, slots=True)
class Challenge(Encoded):
    """Coordinator: a random number, drawn once for an invitation, and only after its party has committed itself.

    Attributes:
        nonce: the number.
    """

    KIND = StreamKind.CHALLENGE
    nonce: Hash


@dataclass(frozen=True, slots=True)
class Opening(Encoded):
    """Invited party: what it has committed itself to. Both ends now know the four words.

    Attributes:
        party: its name.
        identity_key: its Ed25519 key.
        certificate: DER of its TLS certificate.
        proof: the key's signature over its name, role, key and certificate.
        nonce: its random number.
        sealed: the hash of another one, which it shows when it has the roster.
        tag: HMAC-SHA256 of all this and the challenge under the invitation's secret.
        signature: of the tag, by the identity key.
    """

    KIND = StreamKind.OPENING
    party: Shown
    identity_key: Hash
    certificate: Annotated[bytes, Blob(MAX_CERTIFICATE_BYTES)]
    proof: Signature
    nonce: Hash
    sealed: Hash
    tag: Hash
    signature: Signature


@dataclass(frozen=True, slots=True)
class Asking(Encoded):
    """Invited party, again and again: how far it has come, and what it waits for.

    Attributes:
        party: its name.
        step: 1 it waits for the roster, 2 it has a roster, 3 it has everybody's nonces as well.
        roster: SHA-256 of the roster that it was given; zeros before.
        nonce: what it had sealed, from step 2 on; zeros before.
        signature: of all this and the invitation, by the identity key.
    """

    KIND = StreamKind.ASKING
    party: Shown
    step: Annotated[AskingStep, Choice(AskingStep)]
    roster: Hash
    nonce: Hash
    signature: Signature


@dataclass(frozen=True, slots=True)
class Standing(Encoded):
    """Coordinator: what there is so far.

    Attributes:
        roster: the roster's file; empty until all parties are confirmed.
        sealed: everybody's `sealed`, the sites' and then the monitors', each in the roster's order.
        nonces: what they sealed, in the same order; empty until all have shown it.
    """

    KIND = StreamKind.STANDING
    roster: Annotated[bytes, Blob(MAX_ENROLMENT_BYTES)] = b""
    sealed: Annotated[tuple[bytes, ...], Many(Fixed(32))] = ()
    nonces: Annotated[tuple[bytes, ...], Many(Fixed(32))] = ()


@dataclass(frozen=True, slots=True)
class Wanted(Encoded):
    """Party of the roster, over mutual TLS: after a run, it asks for the newest model's file.

    Attributes:
        party: its name.
    """

    KIND = StreamKind.WANTED
    party: Shown


@dataclass(frozen=True, slots=True)
class Current(Encoded):
    """Party of an earlier roster, over mutual TLS while a run goes on: it asks for the one that the run has.

    The answer is a Standing with the roster alone. What the party makes of it is for its owner to say.

    Attributes:
        party: its name.
    """

    KIND = StreamKind.CURRENT
    party: Shown


@dataclass(frozen=True, slots=True)
class Result(Encoded):
    """Coordinator: the file. Who takes it compares its trees with those that its own replica has made.

    Attributes:
        model: the content of a model file, with its ledger and report.
    """

    KIND = StreamKind.RESULT
    model: Annotated[bytes, Blob(MAX_ENROLMENT_BYTES)]
