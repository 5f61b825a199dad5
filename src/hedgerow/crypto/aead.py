"""ChaCha20-Poly1305 (RFC 8439 section 2.8) with a random nonce, which stands before the ciphertext.

The keys above are per slot and per direction, so that a nonce could be fixed; it is random nevertheless, because a
fixed one would leak the difference of two plaintexts after a node was restored from a backup.
"""

from __future__ import annotations

from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from hedgerow.crypto.faults import PrimitiveFault, require_length

KEY_BYTES = 32
NONCE_BYTES = 12
OVERHEAD_BYTES = NONCE_BYTES + 16

Entropy = Callable[[int], bytes]


def seal(key: bytes, plaintext: bytes, context: bytes, entropy: Entropy) -> bytes:
    """Returns nonce, ciphertext and tag: 28 bytes more than `plaintext`; `context` is authenticated, not sent."""
    require_length("AEAD key", key, KEY_BYTES)
    nonce = entropy(NONCE_BYTES)
    require_length("nonce", nonce, NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plaintext, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """Returns the plaintext of `sealed`, or raises PrimitiveFault when key, context, nonce or ciphertext differ."""
    require_length("AEAD key", key, KEY_BYTES)
    if len(sealed) < OVERHEAD_BYTES:
        raise PrimitiveFault("short-ciphertext")
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
    except InvalidTag as error:
        raise PrimitiveFault("bad-ciphertext") from error
