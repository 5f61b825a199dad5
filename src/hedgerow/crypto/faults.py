"""The one error of the hazardous layer; the layer above turns it into a refusal that names the peer."""

from __future__ import annotations

from hedgerow.errors import ProtocolError


class PrimitiveFault(ProtocolError):
    """A key, signature, ciphertext or share was rejected; the text never contains the rejected bytes."""

    default_code = "primitive"


def require_length(name: str, value: bytes, length: int) -> None:
    """Raises PrimitiveFault unless `value` has exactly `length` bytes."""
    if len(value) != length:
        raise PrimitiveFault("wrong-length", name=name, n_bytes=len(value), length=length)
