"""The one error of the hazardous layer, which the layer above turns into a refusal that names the peer; and what more
than one primitive asks of bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from hedgerow.errors import ProtocolError


class PrimitiveFault(ProtocolError):
    """A key, signature, ciphertext or share was rejected; the text never contains the rejected bytes."""

    default_code = "primitive"


def require_length(name: str, value: bytes, length: int) -> None:
    """Raises PrimitiveFault unless `value` has exactly `length` bytes."""
    if len(value) != length:
        raise PrimitiveFault("wrong-length", name=name, n_bytes=len(value), length=length)


def with_either_top_bit(texts: Iterable[str]) -> frozenset[bytes]:
    """The 32 bytes of each hexadecimal text, without their top bit and with it."""
    raws = [bytes.fromhex(text) for text in texts]
    return frozenset(raw[:31] + bytes([raw[31] | top]) for raw in raws for top in (0, 0x80))
