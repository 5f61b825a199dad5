# SPDX-License-Identifier: Apache-2.0
"""Single cryptographic operations: hazardous, and correct only as the rooms above combine them.

``secagg`` and the envelopes of ``transport`` are those rooms; ``study`` verifies as well, runs by files draw from
`DerivedEntropy`, and others only pass identities on. `DerivedEntropy` and Shamir's scheme are this project's own. Every
other part wraps one construction of the ``cryptography`` package, fixes its parameters, and refuses every other:
HKDF-SHA256 (RFC 5869), X25519 (RFC 7748), ChaCha20-Poly1305 (RFC 8439), ChaCha20 as a generator of masks, Ed25519 (RFC
8032). Every secret, key and seed has 32 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext, Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from numpy.typing import NDArray

from hedgerow.errors import ProtocolError


class PrimitiveFault(ProtocolError):
    """A key, signature, ciphertext or share was rejected; the text never contains the rejected bytes."""

    default_code = "primitive"


def require_length(name: str, value: bytes, length: int) -> None:
    """Raise PrimitiveFault unless `value` has exactly `length` bytes."""
    if len(value) != length:
        raise PrimitiveFault("wrong-length", name=name, n_bytes=len(value), length=length)


def with_either_top_bit(texts: Iterable[str]) -> frozenset[bytes]:
    """Return the 32 bytes of each hexadecimal text, without their top bit and with it."""
    raws = [bytes.fromhex(text) for text in texts]
    return frozenset(raw[:31] + bytes([raw[31] | top]) for raw in raws for top in (0, 0x80))


KEY_BYTES = 32
Entropy = Callable[[int], bytes]
_SHA256 = SHA256()


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int = KEY_BYTES) -> bytes:
    """Derive `length` (1..8160) bytes by HKDF-SHA256; raises ValueError for another length."""
    if not 1 <= length <= 255 * 32:
        raise ValueError(f"HKDF-SHA256 yields 1 to 8160 bytes, not {length}.")
    return HKDF(algorithm=_SHA256, length=length, salt=salt, info=info).derive(secret)


def expand(key: bytes, info: bytes) -> bytes:
    """Derive 32 bytes by HKDF-Expand (RFC 5869 section 2.3) from a 32-byte key that `hkdf` made."""
    return HKDFExpand(_SHA256, KEY_BYTES, info).derive(key)


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
    """Return whether this 32-byte public key is of low order.

    X25519 then gives the all-zero secret, whatever the other key.
    """
    return public in _LOW_ORDER


class SecretKey:
    """An X25519 secret; `public` is the 32-byte key to send.

    Args:
        secret: 32 uniform bytes, clamped by X25519 itself; PrimitiveFault for another length.
    """

    __slots__ = ("_key", "public")

    def __init__(self, secret: bytes) -> None:
        require_length("X25519 secret", secret, KEY_BYTES)
        self._key = X25519PrivateKey.from_private_bytes(secret)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"SecretKey(public={self.public.hex()[:16]}...)"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("A secret key is not pickled.")

    def agree(self, peer: bytes) -> bytes:
        """Return the 32-byte shared secret with the public key `peer`.

        Raises PrimitiveFault when the result is all zero (RFC 7748 section 6.1): `peer` is a point of low order.
        """
        require_length("X25519 public key", peer, KEY_BYTES)
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError as error:
            raise PrimitiveFault("low-order-key") from error


# The keys of the rooms above are per slot and per direction, so that a nonce could be fixed. It is random nevertheless,
# because a fixed one would leak the difference of two plaintexts after a node was restored from a backup.
NONCE_BYTES = 12
OVERHEAD_BYTES = NONCE_BYTES + 16


def seal(key: bytes, plaintext: bytes, context: bytes, entropy: Entropy) -> bytes:
    """Encrypt and authenticate `plaintext`: return nonce, ciphertext and tag, 28 bytes more.

    `context` is authenticated, not sent.
    """
    require_length("AEAD key", key, KEY_BYTES)
    nonce = entropy(NONCE_BYTES)
    require_length("nonce", nonce, NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plaintext, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """Return the plaintext of `sealed`.

    Raises:
        PrimitiveFault: when key, context, nonce or ciphertext differ.
    """
    require_length("AEAD key", key, KEY_BYTES)
    if len(sealed) < OVERHEAD_BYTES:
        raise PrimitiveFault("bad-ciphertext")
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
    except InvalidTag as error:
        raise PrimitiveFault("bad-ciphertext") from error


# Little-endian by name: the bytes on the wire and the masks are the same on every machine.
DTYPES: dict[int, np.dtype[np.unsignedinteger]] = {32: np.dtype("<u4"), 64: np.dtype("<u8")}

Words = NDArray[np.unsignedinteger]

# Masks are expanded and added in blocks that stay in a core's second-level cache: four times less memory traffic.
_BLOCK_BYTES = 1 << 16
_ZEROS = bytes(_BLOCK_BYTES)
# ChaCha20 numbers its 64-byte blocks with 32 bits. The part of a mask that starts at block b is made without the part
# before it, so that several threads (the cipher gives up the interpreter's lock) can each make a part.
_CIPHER_BLOCK = 64
_THREADS = 2
# Less work than this, in bytes of key stream, is done sooner than a second thread is started.
_WORTH_A_THREAD = 1 << 21


def _encryptor(key: bytes, counter_and_nonce: bytes = bytes(16)) -> AEADEncryptionContext | CipherContext:
    """Return the cipher of a mask key.

    Counter and nonce begin at zero, because no key is ever used for two masks; the rooms above see to that.
    """
    require_length("mask key", key, KEY_BYTES)
    return Cipher(ChaCha20(key, counter_and_nonce), mode=None).encryptor()


def keystream(key: bytes, length: int, counter_and_nonce: bytes = bytes(16)) -> bytes:
    """Return `length` bytes of a 32-byte key's key stream; raises PrimitiveFault for another key length."""
    return _encryptor(key, counter_and_nonce).update(bytes(length))


class DerivedEntropy:
    """Random bytes from a secret and all that was heard, so that a run played again draws the same.

    Draw number n is the key stream of HKDF-SHA256 of the secret, with what was heard as salt and n as info. What was
    heard is a chain of SHA-256: over what came first, then over the chain and each content. So two runs that share a
    secret draw alike until they hear something different, and from then on nothing alike.

    Args:
        secret: 32 bytes, of one run alone.
        first: what is heard before the first draw.
    """

    def __init__(self, secret: bytes, first: bytes) -> None:
        require_length("secret of a run", secret, KEY_BYTES)
        self._secret, self._heard, self._count = secret, sha256(first).digest(), 0

    def hear(self, content: bytes) -> None:
        """Let all later draws depend on this content, too."""
        self._heard = sha256(self._heard + content).digest()

    def draw(self, n_bytes: int) -> bytes:
        """Return the next bytes."""
        self._count += 1
        key = hkdf(self._secret, self._heard, b"hedgerow/carried/" + self._count.to_bytes(8, "big"))
        return keystream(key, n_bytes)


def add_keystreams(total: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """Add the masks of the keys `plus` to `total`, and subtract those of `minus`.

    This is in place and modulo 2^width.

    Args:
        total: words of width 32 or 64, shape (length,).
        plus, minus: 32-byte keys, each for this use only.

    Raises:
        PrimitiveFault: for a key of another length.
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
    """Add and subtract, in place, the part of the masks that starts at cipher block `first_block`."""
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


# Identities -----------------------------------------------------------------------------------------------------------
# Ed25519 identities (RFC 8032): who signed what, with the kind of message inside the signature.

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
    """Return the string to sign: the length of the domain, the domain, and the body.

    The length stands first, so that no two domains overlap.
    """
    return _PREFIX + len(domain).to_bytes(1, "big") + domain + body


class Identity:
    """A long-lived Ed25519 signing key; a roster pins `public` (32 bytes).

    Args:
        seed: 32 secret bytes, as from ``os.urandom(32)``; PrimitiveFault for another length.
    """

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        require_length("identity seed", seed, SEED_BYTES)
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"Identity(public={self.public.hex()[:16]}...)"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("An identity is not pickled: its signing key would be written in clear.")

    def sign(self, domain: bytes, body: bytes) -> bytes:
        """Return the 64-byte signature over (domain, body); `domain` names the kind of message."""
        return self._key.sign(_to_sign(domain, body))

    def derive(self, purpose: bytes) -> bytes:
        """Derive a 32-byte secret for a purpose, always the same.

        Only the holder of this key can make it.
        """
        return hkdf(self._key.private_bytes_raw(), b"", b"hedgerow/identity/" + purpose)


def require_public(public: bytes) -> None:
    """Raise PrimitiveFault unless `public` has 32 bytes and is not the encoding of a point of small order."""
    require_length("identity key", public, PUBLIC_KEY_BYTES)
    if public in _SMALL_ORDER:
        raise PrimitiveFault("low-order-key")


@lru_cache(maxsize=4096)
def _load_key(public: bytes) -> Ed25519PublicKey:
    """Return the key with these bytes.

    It is remembered, because a party hears the same few signers in every round.
    """
    return Ed25519PublicKey.from_public_bytes(public)


# Hashes of what was verified. In one process many nodes check the same public header; the hash is kept
# and not the message, which may be large. Failures are never remembered.
VERIFIED: dict[bytes, None] = {}
_MAX_REMEMBERED = 8192


def verify(public: bytes, domain: bytes, body: bytes, signature: bytes) -> None:
    """Raise PrimitiveFault unless `signature` (64 bytes) over (domain, body) verifies under `public`.

    A signature that verifies is remembered.
    """
    require_length("signature", signature, SIGNATURE_BYTES)
    require_public(public)
    signed = _to_sign(domain, body)
    claim = sha256(public + signature + signed).digest()
    if claim in VERIFIED:
        return
    try:
        _load_key(public).verify(signature, signed)
    except (InvalidSignature, ValueError) as error:
        raise PrimitiveFault("bad-signature") from error
    if len(VERIFIED) >= _MAX_REMEMBERED:
        VERIFIED.clear()
    VERIFIED[claim] = None


# Shares ---------------------------------------------------------------------------------------------------------------
# Shamir's secret sharing of 32-byte secrets over the prime field of p = 2^256 + 297, in plain integers.
#
# Source: Shamir 1979, "How to share a secret". p is the least prime above 2^256. So every 32-byte secret is a field
# element and a share is 33 bytes, big-endian. Holder coordinates are small integers (1..65,535): products with them
# stay cheap, and Horner's rule needs only one reduction a share.

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
MAX_COORDINATE = 65_535
# 384 random bits reduced modulo p are within 2^-127 of uniform, and need no rejection loop.
_COEFFICIENT_BYTES = 48


def _check_coordinates(coordinates: Sequence[int]) -> None:
    if len(set(coordinates)) != len(coordinates):
        raise PrimitiveFault("bad-share", fault="A share holder is named twice")
    if any(not 1 <= x <= MAX_COORDINATE for x in coordinates):
        raise PrimitiveFault("bad-share", fault="A share holder's coordinate is outside 1..65535")


def split(secret: bytes, coordinates: Sequence[int], threshold: int, entropy: Entropy) -> list[bytes]:
    """Return one 33-byte share of `secret` (32 bytes) per coordinate.

    Any `threshold` of the shares give back the secret, and fewer give nothing.

    Args:
        coordinates: distinct, 1..65,535.
        threshold: 1..len(coordinates).

    Raises:
        PrimitiveFault: an argument is not as above.
    """
    require_length("secret to share", secret, SECRET_BYTES)
    _check_coordinates(coordinates)
    if not 1 <= threshold <= len(coordinates):
        raise PrimitiveFault("bad-share", fault="The threshold is outside 1..number of holders")
    drawn = entropy(_COEFFICIENT_BYTES * (threshold - 1))
    require_length("randomness for a sharing", drawn, _COEFFICIENT_BYTES * (threshold - 1))
    descending = [
        int.from_bytes(drawn[start : start + _COEFFICIENT_BYTES], "big") % PRIME
        for start in range(0, len(drawn), _COEFFICIENT_BYTES)
    ]
    descending.append(int.from_bytes(secret, "big"))
    shares = []
    for x in coordinates:
        value = 0
        for coefficient in descending:
            value = value * x + coefficient
        shares.append((value % PRIME).to_bytes(SHARE_BYTES, "big"))
    return shares


def parse_share(share: bytes) -> int:
    """Return the field element of a 33-byte share; raises PrimitiveFault when it is not below p."""
    require_length("share", share, SHARE_BYTES)
    value = int.from_bytes(share, "big")
    if value >= PRIME:
        raise PrimitiveFault("bad-share", fault="A share is not a field element")
    return value


def weights_at(target: int, coordinates: Sequence[int]) -> list[int]:
    """Return Lagrange's weights at `target` for values at the coordinates.

    f(target) is the sum of weight times f(coordinate), for degree < len(coordinates).

    One modular inversion serves all weights (Montgomery's trick). Raises PrimitiveFault for repeated coordinates.
    """
    _check_coordinates(coordinates)
    numerators, denominators = [], []
    for x in coordinates:
        numerator = denominator = 1
        for other in coordinates:
            if other != x:
                numerator *= target - other
                denominator *= x - other
        numerators.append(numerator % PRIME)
        denominators.append(denominator % PRIME)
    prefixes = [1]
    for denominator in denominators:
        prefixes.append(prefixes[-1] * denominator % PRIME)
    inverse = pow(prefixes[-1], -1, PRIME)
    weights = [0] * len(coordinates)
    for index in range(len(coordinates) - 1, -1, -1):
        weights[index] = numerators[index] * (inverse * prefixes[index] % PRIME) % PRIME
        inverse = inverse * denominators[index] % PRIME
    return weights


def interpolate(weights: Sequence[int], values: Sequence[int]) -> int:
    """Return the weighted sum modulo p of as many values as weights."""
    return sum(map(int.__mul__, weights, values)) % PRIME


def secret_from(weights: Sequence[int], values: Sequence[int]) -> bytes:
    """Return the 32-byte secret from the weights at zero and parsed shares.

    There are exactly as many shares as the threshold.

    Raises PrimitiveFault if the secret is longer, which happens only if some share is wrong.
    """
    secret = interpolate(weights, values)
    if secret >= 2**256:
        raise PrimitiveFault("bad-share", fault="The shares combine to no 32-byte secret")
    return secret.to_bytes(SECRET_BYTES, "big")
