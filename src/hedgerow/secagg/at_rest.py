"""Stored states that only the newest key opens, whatever copies of older ones a disk still holds.

A database keeps what it has replaced for a while, in its log and in free pages. So every state is stored under a key of
its own. The keys follow one another one way, and the caller keeps only the last, where it overwrites the one before.
"""

from __future__ import annotations

from hedgerow.secagg._primitives.aead import seal, unseal
from hedgerow.secagg._primitives.faults import PrimitiveFault
from hedgerow.secagg.encoding import digest
from hedgerow.secagg.keys import state_key
from hedgerow.secagg.refusals import refuse
from hedgerow.secagg.step import Entropy
from hedgerow.secagg.transitions import Code


def locked(key: bytes, state: bytes, run_id: bytes, sequence: int, entropy: Entropy) -> bytes:
    """Returns the state encrypted under the 32-byte key of its step, bound to its run and sequence."""
    return seal(state_key(key), state, _context(run_id, sequence), entropy)


def unlocked(key: bytes, data: bytes, run_id: bytes, sequence: int) -> bytes:
    """Returns the state that was `locked`; raises OwnMistake CORRUPT_STATE for another key, run or sequence."""
    try:
        return unseal(state_key(key), data, _context(run_id, sequence))
    except PrimitiveFault as error:
        raise refuse(Code.CORRUPT_STATE) from error


def _context(run_id: bytes, sequence: int) -> bytes:
    return digest("state", run_id, sequence.to_bytes(8, "big"))
