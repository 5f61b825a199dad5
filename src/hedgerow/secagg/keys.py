# SPDX-License-Identifier: Apache-2.0
"""Every secret of the protocol and how it is derived.

Each derivation's context names everything that must separate two keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hedgerow.codec import U32, Hash, Record, digest
from hedgerow.crypto import Identity, SecretKey, expand, hkdf


def _context(label: str, *parts: bytes) -> bytes:
    return b"hedgerow/secagg/1/" + digest(label, *parts)


def _number(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _both_sides(own: SecretKey, own_node: int, peer: int, peer_public: bytes) -> list[bytes]:
    """Return the numbers and public keys of two nodes, the lower number first."""
    sides = sorted([(own_node, own.public), (peer, peer_public)])
    return [part for node, key in sides for part in (_number(node), key)]


@dataclass(frozen=True, slots=True)
class SlotChain:
    """The one-way chain of a node's slot secrets: the link of slot r gives the keys of slots >= r only.

    A node stores the link (32 bytes, secret) of the next unused slot, so that a stolen state does not give the keys of
    past slots. Keys are derived when they are needed.
    """

    link: bytes = field(repr=False)
    slot: int = 0

    def current(self) -> SecretKey:
        """Return the X25519 mask key of `slot`."""
        return SecretKey(self.current_secret())

    def current_secret(self) -> bytes:
        """Return the 32 secret bytes of `current`, without computing the public key."""
        return hkdf(self.link, b"", _context("slot-secret"))

    def storage_key(self) -> bytes:
        """Return the 32-byte key that encrypts what is stored about `slot` until the slot is over."""
        return hkdf(self.link, b"", _context("slot-storage"))

    def secrets(self, count: int) -> Iterator[bytes]:
        """Yield the 32 secret bytes of `count` slots' keys, beginning with this slot."""
        chain = self
        for _ in range(count):
            yield chain.current_secret()
            chain = chain.after(chain.slot + 1)

    def after(self, slot: int) -> SlotChain:
        """Return the chain whose current slot is `slot` (not before this one)."""
        chain = self
        while chain.slot < slot:
            chain = SlotChain(hkdf(chain.link, b"", _context("slot-next")), chain.slot + 1)
        return chain


@dataclass(frozen=True, slots=True)
class RoundContext(Record):
    """The epoch, the hash of the signed spec and the slot: every key of one aggregation is bound to them."""

    epoch: Hash
    spec: Hash
    slot: U32

    def to_bytes(self) -> bytes:
        """Return the context as one string of fixed length."""
        return self.epoch + self.spec + _number(self.slot)


def pair_secret(own: SecretKey, own_node: int, peer: int, peer_public: bytes, epoch: bytes, slot: int) -> bytes:
    """Return the 32-byte secret that two nodes share in one slot of an epoch.

    Both nodes compute the same secret.

    Raises:
        PrimitiveFault: the peer's key is of low order.
    """
    shared = own.agree(peer_public)
    return hkdf(shared, epoch, _context("pair", epoch, _number(slot), *_both_sides(own, own_node, peer, peer_public)))


def vector_keys(secrets: Iterable[bytes], context: RoundContext, vector_id: str, width: int) -> list[bytes]:
    """Return one mask key per secret, for one vector under one spec.

    Each secret is a pair secret or a self-mask secret.
    """
    info = _context("vector", context.to_bytes(), vector_id.encode(), _number(width))
    return [expand(secret, info) for secret in secrets]


def self_mask_secret(seed: bytes, node: int, context: RoundContext) -> bytes:
    """Return the secret of a node's self mask, from its fresh 32-byte seed."""
    return hkdf(seed, context.epoch, _context("self-mask", context.to_bytes(), _number(node)))


def seed_commitment(seed: bytes, node: int, context: RoundContext) -> bytes:
    """Return the 32-byte commitment to a node's self-mask seed.

    It hides the seed because the seed is uniform.
    """
    return digest("seed-commitment", context.to_bytes(), _number(node), seed)


def name_account(identity: Identity, data_set: str, epoch: bytes) -> bytes:
    """Return the 32 bytes by which a header names the data set that an epoch is charged to.

    Only the node itself can read them. Without the identity's secret they tell neither the name nor whether two epochs
    have the same.
    """
    return hkdf(identity.derive(b"account"), epoch, _context("account", data_set.encode(), epoch))


def nonce_commitment(nonce: bytes, node: int, parameters: bytes) -> bytes:
    """Return the 32-byte commitment to a node's nonce, bound to the hash of the epoch's parameters."""
    return digest("nonce-commitment", parameters, _number(node), nonce)


def channel_secret(own: SecretKey, peer_public: bytes, own_node: int, peer: int, parameters: bytes) -> bytes:
    """Return the 32-byte secret of the channel between two nodes in one epoch.

    Both nodes compute the same secret.
    """
    return hkdf(own.agree(peer_public), parameters, _context("channel", *_both_sides(own, own_node, peer, peer_public)))


def slot_channel(channel: bytes) -> bytes:
    """Return the 32-byte channel secret that a node keeps after the set-up.

    It no longer opens the set-up's shares. Those are shares of the keys of all slots: a stolen state that opened them
    would give the past ones away.
    """
    return hkdf(channel, b"", _context("slot-channel"))


def next_state_key(key: bytes) -> bytes:
    """Return the 32-byte key that follows `key`.

    The key before it cannot be computed from it.
    """
    return hkdf(key, b"", _context("state-next"))


def state_key(key: bytes) -> bytes:
    """Return the 32-byte AEAD key for the state that is stored under `key`."""
    return hkdf(key, b"", _context("state-at-rest"))


def setup_share_key(channel: bytes, sender: int, holder: int) -> bytes:
    """Return the AEAD key for the slot-key shares that `sender` gives `holder` at set-up."""
    return hkdf(channel, b"", _context("setup-shares", _number(sender), _number(holder)))


def seed_share_key(channel: bytes, sender: int, holder: int, slot: int) -> bytes:
    """Return the AEAD key for the self-mask share that `sender` gives `holder` in one slot.

    `channel` comes from `slot_channel`.
    """
    return hkdf(channel, b"", _context("seed-share", _number(sender), _number(holder), _number(slot)))
