"""X25519 key agreement (RFC 7748), refusing the all-zero result of low-order public keys (section 6.1)."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from hedgerow.secagg._primitives.faults import PrimitiveFault, require_length

KEY_BYTES = 32


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
            raise PrimitiveFault("A public key is a point of low order.", code="low-order-key") from error
