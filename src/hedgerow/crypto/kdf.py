"""HKDF-SHA256 (RFC 5869): every key in this room is derived here, from a 32-byte secret and a labelled context."""

from __future__ import annotations

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

KEY_BYTES = 32
_SHA256 = SHA256()


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int = KEY_BYTES) -> bytes:
    """Returns `length` (1..8160) bytes of HKDF-SHA256; raises ValueError for a length out of that range."""
    if not 1 <= length <= 255 * 32:
        raise ValueError(f"HKDF-SHA256 yields 1 to 8160 bytes, not {length}.")
    return HKDF(algorithm=_SHA256, length=length, salt=salt, info=info).derive(secret)


def expand(key: bytes, info: bytes) -> bytes:
    """Returns 32 bytes of HKDF-Expand (RFC 5869 section 2.3) from a 32-byte key that `hkdf` made."""
    return HKDFExpand(_SHA256, KEY_BYTES, info).derive(key)
