"""Every secret of the protocol and how it is derived; each context names all that must separate two keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hedgerow.secagg._primitives.agreement import SecretKey
from hedgerow.secagg._primitives.kdf import hkdf
from hedgerow.secagg.encoding import digest


def _context(label: str, *parts: bytes) -> bytes:
    return b"hedgerow/secagg/1/" + digest(label, *parts)


def _number(value: int) -> bytes:
    return value.to_bytes(4, "big")


class SlotChain:
    """The one-way chain of a node's slot secrets: from the link at slot r follow the keys of r and later ones only.

    A node stores the link of the next unused slot, so that a stolen state does not give the keys of past slots.
    """

    __slots__ = ("link", "slot")

    def __init__(self, link: bytes, slot: int = 0) -> None:
        """Args: link: 32 bytes, secret; slot: the slot whose key `current` returns."""
        self.link, self.slot = link, slot

    def __repr__(self) -> str:
        return f"SlotChain(slot={self.slot})"

    def current(self) -> SecretKey:
        """Returns the X25519 mask key of `slot`."""
        return SecretKey(hkdf(self.link, b"", _context("slot-secret")))

    def storage_key(self) -> bytes:
        """Returns the key for what is stored about `slot` until it is over, 32 bytes."""
        return hkdf(self.link, b"", _context("slot-storage"))

    def keys(self, count: int) -> Iterator[SecretKey]:
        """Yields the mask keys of this slot and the following ones, `count` in all."""
        chain = self
        for _ in range(count):
            yield chain.current()
            chain = chain.after(chain.slot + 1)

    def after(self, slot: int) -> SlotChain:
        """Returns the chain whose current slot is `slot` (not before this one)."""
        link = self.link
        for _ in range(slot - self.slot):
            link = hkdf(link, b"", _context("slot-next"))
        return SlotChain(link, slot)


@dataclass(frozen=True, slots=True)
class RoundContext:
    """What binds a key to one aggregation: the epoch, the signed spec (its hash) and the slot."""

    epoch: bytes
    spec: bytes
    slot: int

    def bytes(self) -> bytes:
        """Returns the context as one string of fixed length."""
        return self.epoch + self.spec + _number(self.slot)


def pair_secret(
    own: SecretKey, peer_public: bytes, own_node: int, peer: int, context: RoundContext
) -> bytes:
    """Returns the 32-byte secret that two nodes share for one slot; the same from both sides.

    Raises PrimitiveFault when the peer's key is of low order.
    """
    sides = sorted([(own_node, own.public), (peer, peer_public)])
    named = [part for node, key in sides for part in (_number(node), key)]
    return hkdf(own.agree(peer_public), context.epoch, _context("pair", context.bytes(), *named))


def vector_key(secret: bytes, vector_id: str, width: int) -> bytes:
    """Returns the mask key of one vector of one slot, from a pair secret or a self-mask secret."""
    return hkdf(secret, b"", _context("vector", vector_id.encode(), _number(width)))


def self_mask_secret(seed: bytes, node: int, context: RoundContext) -> bytes:
    """Returns the secret of a node's self mask from its fresh 32-byte seed."""
    return hkdf(seed, context.epoch, _context("self-mask", context.bytes(), _number(node)))


def seed_commitment(seed: bytes, node: int, context: RoundContext) -> bytes:
    """Returns the 32-byte commitment to a self-mask seed; it hides because the seed is uniform."""
    return digest("seed-commitment", context.bytes(), _number(node), seed)


def nonce_commitment(nonce: bytes, node: int, parameters: bytes) -> bytes:
    """Returns the 32-byte commitment to a node's nonce, bound to the epoch's parameters (their hash)."""
    return digest("nonce-commitment", parameters, _number(node), nonce)


def channel_secret(own: SecretKey, peer_public: bytes, own_node: int, peer: int, parameters: bytes) -> bytes:
    """Returns the 32-byte secret of the channel between two nodes for one epoch; the same from both sides."""
    sides = sorted([(own_node, own.public), (peer, peer_public)])
    named = [part for node, key in sides for part in (_number(node), key)]
    return hkdf(own.agree(peer_public), parameters, _context("channel", *named))


def setup_share_key(channel: bytes, sender: int, holder: int) -> bytes:
    """Returns the AEAD key for the slot-key shares that `sender` gives `holder` at set-up."""
    return hkdf(channel, b"", _context("setup-shares", _number(sender), _number(holder)))


def seed_share_key(channel: bytes, sender: int, holder: int, slot: int) -> bytes:
    """Returns the AEAD key for the self-mask share that `sender` gives `holder` in one slot."""
    return hkdf(channel, b"", _context("seed-share", _number(sender), _number(holder), _number(slot)))
