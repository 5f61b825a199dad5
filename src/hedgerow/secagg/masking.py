"""One masked upload: y = x (+ noise) + PRG(own seed) + sum of +-PRG(pair secret), modulo 2^width, and its header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from hedgerow.secagg._primitives.aead import seal
from hedgerow.secagg._primitives.faults import PrimitiveFault
from hedgerow.secagg._primitives.identity import Identity
from hedgerow.secagg._primitives.prg import Words, add_keystreams
from hedgerow.secagg._primitives.shamir import split
from hedgerow.secagg.fixed_point import Integers, encode
from hedgerow.secagg.keys import (
    Channels,
    PairSecrets,
    RoundContext,
    SelfMasks,
    SlotChain,
    vector_keys,
)
from hedgerow.secagg.refusals import refuse
from hedgerow.secagg.roster import NoiseMode
from hedgerow.secagg.round_messages import (
    Header,
    MaskedVector,
    RoundSpec,
    SealedContexts,
    header_hash,
    sealed_hash,
)
from hedgerow.secagg.step import Entropy
from hedgerow.secagg.transitions import Code
from hedgerow.secagg.view import EpochView

SEED_BYTES = 32
MOST_AGREEMENTS = 4096
"""What a node agrees on ahead at most: a quarter of a second's work, and two megabytes."""


@dataclass(frozen=True, slots=True)
class MaskingKeys:
    """What a node masks with in one slot."""

    view: EpochView
    node: int
    pairs: PairSecrets = field(repr=False)
    channels: Channels = field(repr=False)
    context: RoundContext


def encode_vectors(
    spec: RoundSpec, vectors: Mapping[str, Integers], noise: Mapping[str, Integers] | None
) -> dict[str, Words]:
    """Returns the vectors as words, noise added; raises OwnMistake VECTOR_UNFIT.

    The bound holds for the vector before noise; the noise wraps around with the rest, which costs no privacy.
    """
    wants_noise = spec.noise.mode is NoiseMode.DISTRIBUTED
    if wants_noise != (noise is not None):
        raise refuse(Code.VECTOR_UNFIT, "Noise shares are required where noise is distributed, and only there.")
    wanted = {vector.vector_id for vector in spec.vectors}
    if vectors.keys() != wanted or (noise is not None and noise.keys() != wanted):
        raise refuse(Code.VECTOR_UNFIT, "The vectors are not those of the spec.")
    words: dict[str, Words] = {}
    for vector in spec.vectors:
        name = vector.vector_id
        words[name] = encode(vectors[name], vector.length, vector.entry_bound, vector.width)
        if noise is not None:
            words[name] += encode(noise[name], vector.length, 2**63 - 1, vector.width)
    return words


def add_masks(
    spec: RoundSpec, context: RoundContext, words: Mapping[str, Words], plus: list[bytes], minus: list[bytes]
) -> None:
    """Adds to every vector the masks of the secrets `plus`, and subtracts those of `minus`, in place."""
    for vector in spec.vectors:
        name, width = vector.vector_id, vector.width
        keys = vector_keys([*plus, *minus], context, name, width)
        add_keystreams(words[name], keys[: len(plus)], keys[len(plus) :])


def agreed_ahead(
    view: EpochView, node: int, chain: SlotChain, channels: Channels, n_slots: int
) -> tuple[SlotChain, Channels]:
    """Returns a node's chain and channels with all keys of its next `n_slots` slots, as far as they are and fit.

    What can be worked out before a slot is open is worked out then, and not while others wait for a masked vector.
    """
    peers, first = view.peers(node), chain.slot
    count = min(n_slots, view.parameters.n_slots - first, MOST_AGREEMENTS // max(1, len(peers)))
    keys = [{peer: view.slot_keys[peer][slot] for peer in peers} for slot in range(first, first + count)]
    try:
        return chain.agreed_ahead(node, view.digest, keys), channels.made_ahead(range(first, first + count))
    except PrimitiveFault as error:
        raise refuse(Code.LOW_ORDER_KEY) from error


def signed_pair_secrets(
    keys: MaskingKeys, peers: tuple[int, ...]
) -> tuple[list[bytes], list[bytes]]:
    """Returns the secrets with `peers` whose masks this node adds (towards higher numbers) and subtracts (lower).

    Raises Refusal LOW_ORDER_KEY.
    """
    plus: list[bytes] = []
    minus: list[bytes] = []
    slot, slot_keys = keys.context.slot, keys.view.slot_keys
    for peer in peers:
        try:
            secret = keys.pairs.with_peer(peer, slot_keys[peer][slot])
        except PrimitiveFault as error:
            raise refuse(Code.LOW_ORDER_KEY, peer=peer) from error
        (plus if keys.node < peer else minus).append(secret)
    return plus, minus


def mask_upload(
    keys: MaskingKeys, spec: RoundSpec, words: dict[str, Words], identity: Identity, entropy: Entropy
) -> tuple[bytes, bytes, bytes]:
    """Returns the upload, the hash of its header, and this node's own seed share; masks `words` in place."""
    node, context = keys.node, keys.context
    peers = keys.view.peers(node)
    seed = entropy(SEED_BYTES)
    plus, minus = signed_pair_secrets(keys, peers)
    own = SelfMasks(context)
    add_masks(spec, context, words, [own.secret(seed, node), *plus], minus)
    commitment = own.commitment(seed, node)
    payload = b"".join(words[vector.vector_id].tobytes() for vector in spec.vectors)
    told = sha256(payload).digest()
    holders = (*peers, node)
    shares = split(seed, [holder + 1 for holder in holders], keys.view.guarantees.threshold, entropy)
    contexts, slot = SealedContexts(context), context.slot
    sealed = tuple(
        [
            seal(
                keys.channels.key_to(peer, slot),
                share,
                contexts.of(node, peer, told, commitment),
                entropy,
            )
            for peer, share in zip(peers, shares, strict=False)
        ]
    )
    header = Header(context, node, told, commitment, sealed_hash(sealed)).to_signed(identity)
    return MaskedVector(header, sealed, payload).to_bytes(), header_hash(header), shares[-1]
