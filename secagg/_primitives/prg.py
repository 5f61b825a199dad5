"""ChaCha20 (RFC 8439) as a pseudo-random generator: a 256-bit single-use key becomes a full-width integer mask.

The nonce and the counter start at zero because no key is ever used for two masks; the rooms above see to that.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from hedgerow.secagg._primitives.faults import require_length

KEY_BYTES = 32
# Little-endian by name: the bytes on the wire and the masks are the same on every machine.
DTYPES: dict[int, np.dtype[np.unsignedinteger]] = {32: np.dtype("<u4"), 64: np.dtype("<u8")}

Words = NDArray[np.unsignedinteger]


def keystream_into(key: bytes, buffer: bytearray, zeros: bytes, counter_and_nonce: bytes = bytes(16)) -> None:
    """Fills `buffer` with the key stream; `zeros` is a run of zero bytes at least as long, passed in for its reuse."""
    require_length("mask key", key, KEY_BYTES)
    encryptor = Cipher(ChaCha20(key, counter_and_nonce), mode=None).encryptor()
    encryptor.update_into(memoryview(zeros)[: len(buffer)], buffer)


class MaskExpander:
    """Adds and subtracts masks of one length and width, reusing its buffers.

    Args: length: entries (>= 1); width: bits of an entry, 32 or 64.
    """

    def __init__(self, length: int, width: int) -> None:
        self._dtype = DTYPES[width]
        self._buffer = bytearray(length * self._dtype.itemsize)
        self._zeros = bytes(len(self._buffer))
        self._words: Words = np.frombuffer(self._buffer, dtype=self._dtype)

    def add(self, total: Words, key: bytes) -> None:
        """Adds the mask of `key` (32 bytes) to `total` in place, modulo 2^width."""
        keystream_into(key, self._buffer, self._zeros)
        np.add(total, self._words, out=total)

    def subtract(self, total: Words, key: bytes) -> None:
        """Subtracts the mask of `key` (32 bytes) from `total` in place, modulo 2^width."""
        keystream_into(key, self._buffer, self._zeros)
        np.subtract(total, self._words, out=total)
