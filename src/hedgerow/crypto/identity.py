"""Ed25519 identities (RFC 8032): who signed what, with the kind of message inside the signature."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hedgerow.crypto.primitives import PrimitiveFault, require_length, with_either_top_bit

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEED_BYTES = 32
_PREFIX = b"hedgerow/secagg/1/"
# The encodings of points of small order, canonical or not: under such a "key" one signature fits many messages.
_SMALL_ORDER_Y = (
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
)
_SMALL_ORDER = with_either_top_bit(_SMALL_ORDER_Y)


def _to_sign(domain: bytes, body: bytes) -> bytes:
    """The signed string: the length of the domain stands before it, so that no two domains overlap."""
    return _PREFIX + len(domain).to_bytes(1, "big") + domain + body


class Identity:
    """A long-lived Ed25519 signing key; `public` (32 bytes) is what a roster pins."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        """Args: seed: 32 secret bytes, as from ``os.urandom(32)``. Raises PrimitiveFault for another length."""
        require_length("identity seed", seed, SEED_BYTES)
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"Identity(public={self.public.hex()[:16]}...)"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("An identity is not pickled: its signing key would be written in clear.")

    def sign(self, domain: bytes, body: bytes) -> bytes:
        """Returns the 64-byte signature over (domain, body); `domain` names the kind of message."""
        return self._key.sign(_to_sign(domain, body))


def require_public(public: bytes) -> None:
    """Raises PrimitiveFault unless `public` has 32 bytes and is not the encoding of a point of small order."""
    require_length("identity key", public, PUBLIC_KEY_BYTES)
    if public in _SMALL_ORDER:
        raise PrimitiveFault("small-order-key")


@lru_cache(maxsize=4096)
def _key_of(public: bytes) -> Ed25519PublicKey:
    """The key with these bytes; remembered, for a party hears the same few signers in every round."""
    return Ed25519PublicKey.from_public_bytes(public)


# Hashes of what was verified. In one process many nodes check the same public header; the hash is kept
# and not the message, which may be large. Failures are never remembered.
_VERIFIED: dict[bytes, None] = {}
_MOST_REMEMBERED = 8192


def forget_verified() -> None:
    """Forgets which signatures were verified (for measurements)."""
    _VERIFIED.clear()


def verify(public: bytes, domain: bytes, body: bytes, signature: bytes) -> None:
    """Returns if `signature` (64 bytes) over (domain, body) verifies under `public` (32 bytes); raises otherwise.

    Raises PrimitiveFault.
    """
    require_length("signature", signature, SIGNATURE_BYTES)
    require_public(public)
    signed = _to_sign(domain, body)
    claim = sha256(public + signature + signed).digest()
    if claim in _VERIFIED:
        return
    try:
        _key_of(public).verify(signature, signed)
    except (InvalidSignature, ValueError) as error:
        raise PrimitiveFault("bad-signature") from error
    if len(_VERIFIED) >= _MOST_REMEMBERED:
        _VERIFIED.clear()
    _VERIFIED[claim] = None
