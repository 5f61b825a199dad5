"""X25519 key agreement (RFC 7748), refusing the all-zero result of low-order public keys (section 6.1)."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from hedgerow.crypto.faults import PrimitiveFault, require_length, with_either_top_bit

KEY_BYTES = 32
# The u-coordinates of low order, canonical or not (the top bit is ignored by X25519).
_LOW_ORDER_U = (
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
)
_LOW_ORDER = with_either_top_bit(_LOW_ORDER_U)


def is_low_order(public: bytes) -> bool:
    """Whether X25519 with this 32-byte public key gives the all-zero secret, whatever the other key."""
    return public in _LOW_ORDER


class SecretKey:
    """An X25519 secret; `public` is the 32-byte key to send. The secret is reachable only through `secret_bytes`."""

    __slots__ = ("_key", "_secret", "public")

    def __init__(self, secret: bytes) -> None:
        """Args: secret: 32 uniform bytes (clamped by X25519 itself). Raises PrimitiveFault for another length."""
        require_length("X25519 secret", secret, KEY_BYTES)
        self._key = X25519PrivateKey.from_private_bytes(secret)
        self._secret = secret
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"SecretKey(public={self.public.hex()[:16]}...)"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("A secret key is not pickled.")

    def secret_bytes(self) -> bytes:
        """Returns the 32 secret bytes, to be shared or stored; never to be logged."""
        return self._secret

    def agree(self, peer: bytes) -> bytes:
        """Returns the 32-byte shared secret with the public key `peer`.

        Raises PrimitiveFault when the result is all zero, that is when `peer` is a point of low order.
        """
        require_length("X25519 public key", peer, KEY_BYTES)
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError as error:
            raise PrimitiveFault("low-order-key") from error
