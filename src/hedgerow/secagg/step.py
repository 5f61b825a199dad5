"""What every step of a state machine returns: the next state, what to write first, and what to send then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from hedgerow.secagg.refusals import Abandoned, OwnMistake, Refusal

Entropy = Callable[[int], bytes]
"""Returns that many fresh bytes of the operating system's generator; injected, never global."""

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Record:
    """A fact to be written, with the state's bytes, before the step's message is sent.

    `sequence` counts a node's persisted steps: kept apart from the state, it unmasks a restored backup.
    """

    fact: str
    sequence: int
    slot: int = -1
    purpose: str = ""
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Step(Generic[S]):
    """The outcome of one step.

    Args: state: the next state; message: bytes to send, or None; persist: facts that must reach the disk, together
        with ``state.to_bytes()``, before `message` leaves (empty when nothing changed); complaints: refusals that
        concern a part of the message only.
    """

    state: S
    message: bytes | None
    persist: tuple[Record, ...] = ()
    complaints: tuple[Refusal | OwnMistake | Abandoned, ...] = ()
