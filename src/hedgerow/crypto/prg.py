"""ChaCha20 (RFC 8439) as a pseudo-random generator: a 256-bit single-use key becomes a full-width integer mask.

The nonce and the counter start at zero because no key is ever used for two masks; the rooms above see to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext, Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from hedgerow.crypto.faults import require_length

KEY_BYTES = 32
# Little-endian by name: the bytes on the wire and the masks are the same on every machine.
DTYPES: dict[int, np.dtype[np.unsignedinteger]] = {32: np.dtype("<u4"), 64: np.dtype("<u8")}

Words = NDArray[np.unsignedinteger]


# Masks are expanded and added in blocks that stay in a core's second-level cache: four times less memory traffic.
_BLOCK_BYTES = 1 << 16
_ZEROS = bytes(_BLOCK_BYTES)
# ChaCha20 numbers its 64-byte blocks with 32 bits: the part of a mask that starts at block b is made without the part
# before it, so that several threads (the cipher gives up the interpreter's lock) can each make a part.
_CIPHER_BLOCK = 64
_THREADS = 2
# Less work than this, in bytes of key stream, is done sooner than a second thread is started.
_WORTH_A_THREAD = 1 << 21


def _encryptor(key: bytes, counter_and_nonce: bytes = bytes(16)) -> AEADEncryptionContext | CipherContext:
    require_length("mask key", key, KEY_BYTES)
    return Cipher(ChaCha20(key, counter_and_nonce), mode=None).encryptor()


def keystream(key: bytes, length: int, counter_and_nonce: bytes = bytes(16)) -> bytes:
    """Returns `length` bytes of the key stream of a 32-byte key; raises PrimitiveFault for another key length."""
    return _encryptor(key, counter_and_nonce).update(bytes(length))


def add_keystreams(total: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """Adds to `total`, in place and modulo 2^width, the masks of the keys `plus`, and subtracts those of `minus`.

    Args: total: words of width 32 or 64, shape (length,); plus, minus: 32-byte keys, each for this use only.
    Raises PrimitiveFault for a key of another length.
    """
    threads = _THREADS if total.nbytes * (len(plus) + len(minus)) >= _WORTH_A_THREAD else 1
    words_per_block = _CIPHER_BLOCK // total.itemsize
    blocks = -(-len(total) // words_per_block)
    edges = [words_per_block * (blocks * part // threads) for part in range(threads)] + [len(total)]
    if threads == 1:
        _add_part(total, 0, plus, minus)
        return
    with ThreadPoolExecutor(threads) as pool:
        parts = [
            pool.submit(_add_part, total[start:end], start // words_per_block, plus, minus)
            for start, end in pairwise(edges)
        ]
        for part in parts:
            part.result()


def _add_part(total: Words, first_block: int, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """Adds and subtracts, in place, the part of the masks that starts at cipher block `first_block`."""
    counter_and_nonce = first_block.to_bytes(4, "little") + bytes(12)
    added = [_encryptor(key, counter_and_nonce) for key in plus]
    subtracted = [_encryptor(key, counter_and_nonce) for key in minus]
    step = _BLOCK_BYTES // total.itemsize
    buffer = bytearray(min(_BLOCK_BYTES, total.nbytes))
    for start in range(0, len(total), step):
        block = total[start : start + step]
        view, zeros = memoryview(buffer)[: block.nbytes], memoryview(_ZEROS)[: block.nbytes]
        words: Words = np.frombuffer(view, dtype=total.dtype)
        for encryptor in added:
            encryptor.update_into(zeros, view)
            np.add(block, words, out=block)
        for encryptor in subtracted:
            encryptor.update_into(zeros, view)
            np.subtract(block, words, out=block)
