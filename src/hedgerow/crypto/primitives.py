"""Key derivation, key agreement, authenticated encryption and masks, and the error of everything in this room.

HKDF-SHA256 (RFC 5869), X25519 (RFC 7748), ChaCha20-Poly1305 (RFC 8439) and ChaCha20 as a generator of masks. Every
secret, key and seed has 32 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from cryptography.exceptions import InvalidTag
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
    """Raises PrimitiveFault unless `value` has exactly `length` bytes."""
    if len(value) != length:
        raise PrimitiveFault("wrong-length", name=name, n_bytes=len(value), length=length)


def with_either_top_bit(texts: Iterable[str]) -> frozenset[bytes]:
    """The 32 bytes of each hexadecimal text, without their top bit and with it."""
    raws = [bytes.fromhex(text) for text in texts]
    return frozenset(raw[:31] + bytes([raw[31] | top]) for raw in raws for top in (0, 0x80))


KEY_BYTES = 32
Entropy = Callable[[int], bytes]
_SHA256 = SHA256()


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int = KEY_BYTES) -> bytes:
    """Returns `length` (1..8160) bytes of HKDF-SHA256; raises ValueError for a length out of that range."""
    if not 1 <= length <= 255 * 32:
        raise ValueError(f"HKDF-SHA256 yields 1 to 8160 bytes, not {length}.")
    return HKDF(algorithm=_SHA256, length=length, salt=salt, info=info).derive(secret)


def expand(key: bytes, info: bytes) -> bytes:
    """Returns 32 bytes of HKDF-Expand (RFC 5869 section 2.3) from a 32-byte key that `hkdf` made."""
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

        Raises PrimitiveFault when the result is all zero (RFC 7748 section 6.1): `peer` is a point of low order.
        """
        require_length("X25519 public key", peer, KEY_BYTES)
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError as error:
            raise PrimitiveFault("low-order-key") from error


# The keys of the rooms above are per slot and per direction, so that a nonce could be fixed; it is random nevertheless,
# because a fixed one would leak the difference of two plaintexts after a node was restored from a backup.
NONCE_BYTES = 12
OVERHEAD_BYTES = NONCE_BYTES + 16


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
    """Counter and nonce begin at zero, because no key is ever used for two masks; the rooms above see to that."""
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
