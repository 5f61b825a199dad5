"""Every secret of the protocol and how it is derived; each context names all that must separate two keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct

from hedgerow.secagg._primitives.agreement import SecretKey
from hedgerow.secagg._primitives.kdf import expand, hkdf
from hedgerow.secagg.encoding import digest, framed

_ROOM = b"hedgerow/secagg/1/"
# A number, and what stands before a key, as `digest` hashes them: each part after its length.
_SIZED_NUMBER, _NUMBER_AND_SIZE = Struct(">QI"), Struct(">QIQ")
_THREE_NUMBERS = Struct(">QIQIQI")


def _context(label: str, *parts: bytes) -> bytes:
    return _ROOM + digest(label, *parts)


# The contexts that are the same for every key of their kind.
_SLOT_SECRET, _SLOT_STORAGE, _SLOT_NEXT = _context("slot-secret"), _context("slot-storage"), _context("slot-next")
_SLOT_CHANNEL, _STATE_NEXT, _STATE_AT_REST = _context("slot-channel"), _context("state-next"), _context("state-at-rest")
_SEED_SHARE = framed("seed-share")


def _number(value: int) -> bytes:
    return value.to_bytes(4, "big")


class SlotChain:
    """The one-way chain of a node's slot secrets: from the link at slot r follow the keys of r and later ones only.

    A node stores the link of the next unused slot, so that a stolen state does not give the keys of past slots. Keys
    and links that were made ahead live in memory as long as a link from which they follow, and are never stored: a
    chain leads to those that come after it, and to none before.
    """

    __slots__ = ("_following", "_pairs", "link", "slot")

    def __init__(self, link: bytes, slot: int = 0) -> None:
        """Args: link: 32 bytes, secret; slot: the slot whose key `current` returns."""
        self.link, self.slot = link, slot
        self._pairs: PairSecrets | None = None
        self._following: SlotChain | None = None

    def __repr__(self) -> str:
        return f"SlotChain(slot={self.slot})"

    def current(self) -> SecretKey:
        """Returns the X25519 mask key of `slot`."""
        return SecretKey(self.current_secret())

    def pairs(self, node: int, epoch: bytes) -> PairSecrets:
        """Returns what the node whose chain this is shares with its peers in `slot` of the epoch (its digest)."""
        if self._pairs is not None and self._pairs.is_of(node, epoch):
            return self._pairs
        return PairSecrets(self.current(), node, epoch, self.slot)

    def agreed_ahead(self, node: int, epoch: bytes, peers: Sequence[Mapping[int, bytes]]) -> SlotChain:
        """Returns this chain with the secrets of its first slots made, by the peers' public keys of each.

        What an agreement costs is paid then, and not while others wait for a masked vector. Raises PrimitiveFault for a
        key of low order.
        """
        first = chain = SlotChain(self.link, self.slot)
        for keys in peers:
            chain._pairs = PairSecrets(chain.current(), node, epoch, chain.slot)
            for peer, public in keys.items():
                chain._pairs.with_peer(peer, public)
            chain._following = chain.after(chain.slot + 1)
            chain = chain._following
        return first

    def current_secret(self) -> bytes:
        """Returns the 32 secret bytes of `current`, without the work of finding the public key."""
        return hkdf(self.link, b"", _SLOT_SECRET)

    def storage_key(self) -> bytes:
        """Returns the key for what is stored about `slot` until it is over, 32 bytes."""
        return hkdf(self.link, b"", _SLOT_STORAGE)

    def keys(self, count: int) -> Iterator[SecretKey]:
        """Yields the mask keys of this slot and the following ones, `count` in all."""
        for secret in self.secrets(count):
            yield SecretKey(secret)

    def secrets(self, count: int) -> Iterator[bytes]:
        """Yields the 32 secret bytes of each of `keys`."""
        chain = SlotChain(self.link, self.slot)
        for _ in range(count):
            yield chain.current_secret()
            chain = chain.after(chain.slot + 1)

    def after(self, slot: int) -> SlotChain:
        """Returns the chain whose current slot is `slot` (not before this one)."""
        chain = self
        while chain.slot < slot:
            chain = chain._following or SlotChain(hkdf(chain.link, b"", _SLOT_NEXT), chain.slot + 1)
        return chain


@dataclass(frozen=True, slots=True)
class RoundContext:
    """What binds a key to one aggregation: the epoch, the signed spec (its hash) and the slot."""

    epoch: bytes
    spec: bytes
    slot: int

    def bytes(self) -> bytes:
        """Returns the context as one string of fixed length."""
        return self.epoch + self.spec + _number(self.slot)


class PairSecrets:
    """The secrets that a node shares with its peers in one slot; one that was made is remembered."""

    __slots__ = ("_beginning", "_made", "_node", "_own", "_salt", "_side")

    def __init__(self, own: SecretKey, own_node: int, epoch: bytes, slot: int) -> None:
        """Args: own: the node's key of the slot; epoch: digest of the epoch's view."""
        self._own, self._node, self._salt = own, own_node, epoch
        self._beginning, self._side = framed("pair", epoch, _number(slot)), _side(own_node, own.public)
        self._made: dict[tuple[int, bytes], bytes] = {}

    def __repr__(self) -> str:
        return f"PairSecrets({len(self._made)})"

    def is_of(self, node: int, epoch: bytes) -> bool:
        """Whether these are the secrets of this node in the epoch with this digest."""
        return (self._node, self._salt) == (node, epoch)

    def with_peer(self, peer: int, peer_public: bytes) -> bytes:
        """Returns the 32-byte secret that the two nodes share for the slot; the same from both sides.

        Raises PrimitiveFault when the peer's key is of low order.
        """
        made = self._made.get((peer, peer_public))
        if made is None:
            shared = self._own.agree(peer_public)
            # Both numbers and both keys, those of the lower number first.
            theirs = _side(peer, peer_public)
            sides = self._side + theirs if (self._node, self._own.public) < (peer, peer_public) else theirs + self._side
            made = hkdf(shared, self._salt, _ROOM + sha256(self._beginning + sides).digest())
            self._made[peer, peer_public] = made
        return made


def _side(node: int, public: bytes) -> bytes:
    """A node's number and key as parts of a digest."""
    return _NUMBER_AND_SIZE.pack(4, node, len(public)) + public


def vector_keys(secrets: Iterable[bytes], context: RoundContext, vector_id: str, width: int) -> list[bytes]:
    """Returns the mask keys of one vector under one spec, each from a pair secret or a self-mask secret."""
    info = _context("vector", context.bytes(), vector_id.encode(), _number(width))
    return [expand(secret, info) for secret in secrets]


class SelfMasks:
    """What follows from the self-mask seeds of one slot; how its derivations begin is worked out once for all nodes."""

    __slots__ = ("_commitment", "_epoch", "_secret")

    def __init__(self, context: RoundContext) -> None:
        whole, self._epoch = context.bytes(), context.epoch
        self._secret, self._commitment = framed("self-mask", whole), framed("seed-commitment", whole)

    def secret(self, seed: bytes, node: int) -> bytes:
        """Returns the secret of a node's self mask from its fresh 32-byte seed."""
        return hkdf(seed, self._epoch, _ROOM + sha256(self._secret + _SIZED_NUMBER.pack(4, node)).digest())

    def commitment(self, seed: bytes, node: int) -> bytes:
        """Returns the 32-byte commitment to a node's self-mask seed; it hides because the seed is uniform."""
        return sha256(self._commitment + _NUMBER_AND_SIZE.pack(4, node, len(seed)) + seed).digest()


def nonce_commitment(nonce: bytes, node: int, parameters: bytes) -> bytes:
    """Returns the 32-byte commitment to a node's nonce, bound to the epoch's parameters (their hash)."""
    return digest("nonce-commitment", parameters, _number(node), nonce)


def channel_secret(own: SecretKey, peer_public: bytes, own_node: int, peer: int, parameters: bytes) -> bytes:
    """Returns the 32-byte secret of the channel between two nodes for one epoch; the same from both sides."""
    sides = sorted([(own_node, own.public), (peer, peer_public)])
    named = [part for node, key in sides for part in (_number(node), key)]
    return hkdf(own.agree(peer_public), parameters, _context("channel", *named))


def slot_channel(channel: bytes) -> bytes:
    """Returns what a node keeps of a channel when the set-up is over, 32 bytes: it no longer opens the set-up's shares.

    Those are of the keys of all slots: a stolen state that opened them would give the past ones to whoever has them.
    """
    return hkdf(channel, b"", _SLOT_CHANNEL)


def next_state_key(key: bytes) -> bytes:
    """Returns the 32-byte key that follows `key`; the one before cannot be found from it."""
    return hkdf(key, b"", _STATE_NEXT)


def state_key(key: bytes) -> bytes:
    """Returns the AEAD key of the state that is stored under `key`, 32 bytes."""
    return hkdf(key, b"", _STATE_AT_REST)


class Channels(dict[int, bytes]):
    """What a node keeps of its channels, `slot_channel` by peer, and the keys of seed shares that follow from them.

    Keys that were made ahead live in memory as long as the channels do, and tell whoever reads it nothing that these
    would not; they are never stored.
    """

    __slots__ = ("_ahead", "_node")

    def __init__(self, node: int, channels: Mapping[int, bytes]) -> None:
        """Args: node: the one that keeps them; channels: 32 bytes by peer."""
        super().__init__(channels)
        self._node = node
        self._ahead: dict[int, dict[int, tuple[bytes, bytes]]] = {}

    def __repr__(self) -> str:
        return f"Channels({len(self)})"

    def made_ahead(self, slots: range) -> Channels:
        """Returns these channels with the keys of some slots made, which costs nothing then when others wait."""
        channels = Channels(self._node, self)
        channels._ahead = {
            slot: {peer: (self.key_to(peer, slot), self.key_from(peer, slot)) for peer in self} for slot in slots
        }
        return channels

    def key_to(self, peer: int, slot: int) -> bytes:
        """Returns the key under which a peer is given its share of this node's seed; KeyError for no peer."""
        ahead = self._ahead.get(slot)
        return seed_share_key(self[peer], self._node, peer, slot) if ahead is None else ahead[peer][0]

    def key_from(self, peer: int, slot: int) -> bytes:
        """Returns the key under which a peer gives this node its share; KeyError for no peer."""
        ahead = self._ahead.get(slot)
        return seed_share_key(self[peer], peer, self._node, slot) if ahead is None else ahead[peer][1]


def setup_share_key(channel: bytes, sender: int, holder: int) -> bytes:
    """Returns the AEAD key for the slot-key shares that `sender` gives `holder` at set-up."""
    return hkdf(channel, b"", _context("setup-shares", _number(sender), _number(holder)))


def seed_share_key(channel: bytes, sender: int, holder: int, slot: int) -> bytes:
    """Returns the AEAD key for the self-mask share that `sender` gives `holder` in one slot, from a `slot_channel`."""
    numbers = _THREE_NUMBERS.pack(4, sender, 4, holder, 4, slot)
    return hkdf(channel, b"", _ROOM + sha256(_SEED_SHARE + numbers).digest())
