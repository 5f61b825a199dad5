# SPDX-License-Identifier: Apache-2.0
"""Mask a node's vectors of integers, and take the masks off their sum.

Sums wrap modulo 2^width by the machine's own arithmetic. Because the bounds on the sites' vectors together are below
2^(width-1), the wrapped word decodes to the exact sum; no float occurs anywhere. Decoding refuses nothing: where noise
is added to the sum later, a refusal would reveal something exact about it. `require_within` checks the bound on what is
released.

Where noise is distributed, every node adds a discrete Gaussian share of variance sigma^2 / h, where h is the
guaranteed honest group. At least h honest shares are in any sum that is released, whichever nodes drop out. Colluders
may subtract their own, and the rest is more noise than was accounted for.

One masked upload is y = x (+ noise) + PRG(own seed) + sum of +-PRG(pair secret), modulo 2^width, with a signed header.
To open a sum, each secret is rebuilt from shares and checked against what was published.

Source: Kairouz, Liu, Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation" (arXiv 2102.06387). What a sum of such shares costs beside one Gaussian is `privacy.cost.sum_slack`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from itertools import combinations, islice

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto import (
    DTYPES,
    SEED_BYTES,
    Entropy,
    Identity,
    PrimitiveFault,
    SecretKey,
    Words,
    add_keystreams,
    interpolate,
    parse_share,
    seal,
    secret_from,
    split,
    weights_at,
)
from hedgerow.errors import PrivacyError
from hedgerow.secagg.guarantees import Guarantees
from hedgerow.secagg.keys import (
    RoundContext,
    pair_secret,
    seed_commitment,
    seed_share_key,
    self_mask_secret,
    vector_keys,
)
from hedgerow.secagg.messages import (
    NO_ACCOUNT,
    WITHHELD,
    Answer,
    Header,
    MaskedVector,
    NoiseMode,
    RoundSpec,
    VectorSpec,
    derive_share_context,
    hash_sealed,
    header_hash,
)
from hedgerow.secagg.transitions import Code, SumAbandoned, refuse
from hedgerow.secagg.view import EpochView, is_enough

WIDTHS = (32, 64)
MAX_BOUND = 2**63 - 1
# By the bytes of a word, and in the same byte order.
_SIGNED: dict[int, np.dtype[np.signedinteger]] = {4: np.dtype("<i4"), 8: np.dtype("<i8")}

Integers = NDArray[np.int64]


def width_for(sum_bound: int) -> int:
    """Return the smallest width (32 or 64 bits) that holds every sum in [-sum_bound, sum_bound].

    Args:
        sum_bound: bound on the absolute value of an entry of the sum, the noise's tail included (1..2^63 - 1).

    Raises:
        Refusal: WIDTH_TOO_NARROW when no width holds it.
    """
    for width in WIDTHS:
        if 1 <= sum_bound < 2 ** (width - 1):
            return width
    raise refuse(Code.WIDTH_TOO_NARROW, f"No width of {WIDTHS} bits holds a bound of {sum_bound}.")


def require_width(width: int, sum_bound: int) -> None:
    """Raise Refusal WIDTH_TOO_NARROW unless `width` is 32 or 64 and holds sums up to `sum_bound`."""
    if width not in WIDTHS or width < width_for(sum_bound):
        raise refuse(Code.WIDTH_TOO_NARROW, f"A width of {width} bits, a bound of {sum_bound}.")


def check_vectors(vectors: tuple[VectorSpec, ...], max_length: int) -> None:
    """Raise Refusal SPEC_UNACCEPTABLE (none, repeated, empty, too long, no bound) or WIDTH_TOO_NARROW."""
    names = {vector.vector_id for vector in vectors}
    if not vectors or len(names) != len(vectors) or sum(vector.length for vector in vectors) > max_length:
        raise refuse(Code.SPEC_UNACCEPTABLE, peer="coordinator")
    for vector in vectors:
        largest = max(vector.entry_bound, vector.sum_bound)
        if vector.length < 1 or min(vector.entry_bound, vector.sum_bound) < 1 or largest > MAX_BOUND:
            raise refuse(Code.SPEC_UNACCEPTABLE, peer="coordinator")
        require_width(vector.width, largest)


def encode_vector(vector: Integers, length: int, entry_bound: int, width: int) -> Words:
    """Encode `vector` (int64, shape (length,)) as words modulo 2^width.

    Raises OwnMistake VECTOR_UNFIT for another shape or dtype, or an entry outside [-entry_bound, entry_bound].
    """
    if not isinstance(vector, np.ndarray) or vector.dtype != np.int64 or vector.shape != (length,):
        raise refuse(Code.VECTOR_UNFIT, f"An int64 array of shape ({length},) is required.")
    if _goes_beyond(vector, entry_bound):
        raise refuse(Code.VECTOR_UNFIT, "An entry is beyond the bound.")
    return vector.astype(DTYPES[width])


def decode_vector(words: Words) -> Integers:
    """Return `words` as signed integers (int64), without checking them."""
    signed: Integers = words.view(_SIGNED[words.itemsize]).astype(np.int64)
    return signed


def wrap(vector: Integers, width: int) -> Integers:
    """Return `vector` modulo 2^width, as signed integers (int64).

    Noise that is added to a decoded sum has to wrap with it. A dishonest site can choose its vector so that the others'
    exact sum stands at the end of a word. One record more would then move it to the other end, which no noise hides.
    """
    return vector.astype(_SIGNED[width // 8]).astype(np.int64)


def require_within(released: Integers, bound: int) -> None:
    """Raise SumAbandoned SUM_OUT_OF_RANGE for an entry outside [-bound, bound].

    Args:
        released: a sum *with its noise*, written down and charged already. On a sum without noise, the check would be a
            question that nothing was paid for.
    """
    if _goes_beyond(released, bound):
        raise refuse(Code.SUM_OUT_OF_RANGE)


def _goes_beyond(vector: Integers, bound: int) -> bool:
    """Return whether an entry is outside [-bound, bound]."""
    return bool(int(np.maximum.reduce(vector)) > bound or int(np.minimum.reduce(vector)) < -bound)


# Every site knows its own noise share and can subtract it from a release, so at least one share never counts.
MIN_COLLUDERS = 1

Sampler = Callable[[Fraction, int], Integers]
"""(variance, n) -> n independent draws (int64) of the discrete Gaussian with variance parameter sigma^2."""


def share_variance(total_variance: Fraction, guarantees: Guarantees) -> Fraction:
    """Return the variance of one node's noise share, so that the honest shares make up the total.

    Args:
        total_variance: sigma^2 of the accounted noise, in grid units squared (> 0).

    Raises:
        PrivacyError: when no honest vector is guaranteed or the variance is not positive.
    """
    if total_variance <= 0:
        raise PrivacyError("out-of-range", name="A variance of noise", value=total_variance, wanted="above 0")
    if guarantees.honest_group < 1:
        raise PrivacyError("noise-group")
    return total_variance / guarantees.honest_group


def draw_shares(spec: RoundSpec, guarantees: Guarantees, sampler: Sampler) -> dict[str, Integers]:
    """Draw one node's noise shares for every vector of the spec (int64 arrays by vector id)."""
    variance = share_variance(spec.noise.variance, guarantees)
    return {vector.vector_id: sampler(variance, vector.length) for vector in spec.vectors}


# Sets of shares that are tried for one secret: enough for every single liar, and for many pairs of them.
MAX_SUBSETS = 2000


@dataclass(frozen=True, slots=True)
class MaskingKeys:
    """The keys with which a node masks in one slot, and the account and the vote that its header names."""

    view: EpochView
    node: int
    own: SecretKey
    channels: Mapping[int, bytes] = field(repr=False)
    context: RoundContext
    account: bytes = NO_ACCOUNT
    vote: int = 0


def encode_vectors(
    spec: RoundSpec, vectors: Mapping[str, Integers], noise: Mapping[str, Integers] | None
) -> dict[str, Words]:
    """Encode the vectors as words, noise added; raise OwnMistake VECTOR_UNFIT.

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
        words[name] = encode_vector(vectors[name], vector.length, vector.entry_bound, vector.width)
        if noise is not None:
            words[name] += encode_vector(noise[name], vector.length, 2**63 - 1, vector.width)
    return words


def add_masks(
    spec: RoundSpec, context: RoundContext, words: Mapping[str, Words], plus: list[bytes], minus: list[bytes]
) -> None:
    """Add the masks of the secrets `plus` to every vector, and subtract those of `minus`, in place."""
    for vector in spec.vectors:
        name, width = vector.vector_id, vector.width
        keys = vector_keys([*plus, *minus], context, name, width)
        add_keystreams(words[name], keys[: len(plus)], keys[len(plus) :])


def derive_pair_secrets(keys: MaskingKeys, peers: tuple[int, ...]) -> tuple[list[bytes], list[bytes]]:
    """Return the pair secrets whose masks a node adds, and those whose masks it subtracts.

    It adds the masks that it shares with higher numbers, and subtracts those with lower ones. Raises Refusal
    LOW_ORDER_KEY.
    """
    plus: list[bytes] = []
    minus: list[bytes] = []
    node, slot = keys.node, keys.context.slot
    for peer in peers:
        try:
            secret = pair_secret(keys.own, node, peer, keys.view.slot_key(peer, slot), keys.context.epoch, slot)
        except PrimitiveFault as error:
            raise refuse(Code.LOW_ORDER_KEY, peer=peer) from error
        (plus if node < peer else minus).append(secret)
    return plus, minus


def mask_upload(
    keys: MaskingKeys, spec: RoundSpec, words: dict[str, Words], identity: Identity, entropy: Entropy
) -> tuple[bytes, bytes, bytes]:
    """Mask `words` in place; return the upload, the hash of its header and this node's own seed share."""
    node, context = keys.node, keys.context
    peers = keys.view.peers(node)
    seed = entropy(SEED_BYTES)
    plus, minus = derive_pair_secrets(keys, peers)
    add_masks(spec, context, words, [self_mask_secret(seed, node, context), *plus], minus)
    commitment = seed_commitment(seed, node, context)
    payload = b"".join(words[vector.vector_id].tobytes() for vector in spec.vectors)
    payload_hash = sha256(payload).digest()
    holders = (*peers, node)
    shares = split(seed, [holder + 1 for holder in holders], keys.view.by_node[node].threshold, entropy)
    sealed = tuple(
        seal(
            seed_share_key(keys.channels[peer], node, peer, context.slot),
            share,
            derive_share_context(context, node, peer, payload_hash, commitment),
            entropy,
        )
        for peer, share in zip(peers, shares, strict=False)
    )
    said = Header(context, node, payload_hash, commitment, hash_sealed(sealed), keys.account, keys.vote)
    header = said.to_signed(identity)
    return MaskedVector(header, sealed, payload).to_bytes(), header_hash(header), shares[-1]


@dataclass(frozen=True, slots=True)
class OpenedSums:
    """The sums of one aggregation: int64 arrays by vector id, the survivors, and suspects.

    A suspect's share was off the polynomial of the others: it sent a wrong share, or the node that dealt it did.
    """

    # Exact sums stay out of logs: where the noise is central they are not yet private.
    sums: dict[str, Integers] = field(repr=False)
    survivors: tuple[int, ...]
    suspects: tuple[int, ...]


class Reconstructor:
    """Rebuilds secrets from shares, and remembers the holders that sent wrong ones."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self.suspects: set[int] = set()

    def recover(self, node: int, shares: Mapping[int, int | None], fits: Callable[[bytes], bool]) -> bytes:
        """Rebuild the secret of `node` from a threshold of shares, and check it with `fits`.

        Args:
            shares: by holder, from `shares_in`; None for a share that is no field element.
            fits: returns whether a secret agrees with what `node` published.

        Raises:
            SumAbandoned: TOO_FEW_ANSWERS, or SECRET_UNRECOVERABLE when no set of shares fits.
        """
        values = {holder + 1: share for holder, share in shares.items() if share is not None}
        if len(values) < len(shares):
            self.suspects.update(holder for holder, share in shares.items() if share is None)
        everyone = sorted(values)
        trusted = [x for x in everyone if x - 1 not in self.suspects] if self.suspects else everyone
        if len(values) < self._threshold:
            raise refuse(Code.TOO_FEW_ANSWERS, f"{len(values)} shares of {self._threshold}.", node)
        first = tuple(trusted[: self._threshold])
        if len(first) == self._threshold:
            # Nearly always every share is right, and no search is needed.
            secret = self._combine(first, values)
            if secret is not None and fits(secret):
                return secret
        for subset in islice(self._subsets(trusted, everyone), MAX_SUBSETS):
            secret = self._combine(subset, values)
            if secret is not None and fits(secret):
                self._name_liars(subset, values)
                return secret
        raise refuse(Code.SECRET_UNRECOVERABLE, peer=node)

    def _subsets(self, trusted: list[int], everyone: list[int]) -> Iterator[tuple[int, ...]]:
        """Yield sets of holders to try: first the trusted ones, then with more and more of them left out."""
        for candidates in (trusted, everyone):
            for left_out in range(len(candidates) - self._threshold + 1):
                for omitted in combinations(candidates, left_out):
                    kept = [x for x in candidates if x not in omitted]
                    yield tuple(kept[: self._threshold])

    def _combine(self, subset: tuple[int, ...], values: Mapping[int, int]) -> bytes | None:
        try:
            return secret_from(weights_at_zero(subset), [values[x] for x in subset])
        except PrimitiveFault:
            return None

    def _name_liars(self, subset: tuple[int, ...], values: Mapping[int, int]) -> None:
        """Add to the suspects every holder whose share is off the polynomial of the right secret."""
        known = [values[x] for x in subset]
        for x in values.keys() - set(subset):
            if interpolate(weights_at(x, subset), known) != values[x]:
                self.suspects.add(x - 1)


@lru_cache(maxsize=32)
def weights_at_zero(coordinates: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lagrange's weights of a set of holders; they do not depend on the secret."""
    return tuple(weights_at(0, coordinates))


def shares_in(answer: Answer, about: Sequence[int]) -> dict[int, int | None]:
    """Return an answer's shares by the node that each is about; None for a share that is no field element."""
    found: dict[int, int | None] = {}
    shares = iter(answer.shares)
    for node, kind in zip(about, answer.kinds, strict=True):
        if kind != WITHHELD:
            try:
                found[node] = parse_share(next(shares))
            except PrimitiveFault:
                found[node] = None
    return found


def add_masked(spec: RoundSpec, uploads: Mapping[int, MaskedVector]) -> dict[str, Words]:
    """Add up the masked vectors; return the sums, still masked, by vector id."""
    totals: dict[str, Words] = {}
    at = 0
    for vector in spec.vectors:
        dtype = DTYPES[vector.width]
        total = np.zeros(vector.length, dtype)
        for upload in uploads.values():
            total += np.frombuffer(upload.payload, dtype, vector.length, at)
        totals[vector.vector_id] = total
        at += vector.length * dtype.itemsize
    return totals


def name_in(view: EpochView, vector_id: str, part: int) -> str:
    """Return the name of one part's sum of a vector: `vector_id` itself if there is only one part."""
    return f"{vector_id}/{part}" if len(view.parts) > 1 else vector_id


def list_sum_names(view: EpochView, spec: RoundSpec, uploads: Collection[int]) -> Iterator[str]:
    """Yield the names of the sums that `add_parts` returns for these uploads, in its order."""
    for part, members in enumerate(view.parts):
        if not set(members).isdisjoint(uploads):
            yield from (name_in(view, vector.vector_id, part) for vector in spec.vectors)


def add_parts(view: EpochView, spec: RoundSpec, uploads: Mapping[int, MaskedVector]) -> dict[str, Words]:
    """Add up the masked vectors of each part that has uploads; return the sums by `name_in`."""
    sums = dict[str, Words]()
    for part, members in enumerate(view.parts):
        there = {node: uploads[node] for node in members if node in uploads}
        if there:
            sums |= {name_in(view, name, part): total for name, total in add_masked(spec, there).items()}
    return sums


def _seed_test(node: int, context: RoundContext, commitment: bytes) -> Callable[[bytes], bool]:
    """Return the test of a rebuilt seed against the commitment in the signed header."""
    return lambda seed: seed_commitment(seed, node, context) == commitment


def _key_test(public: bytes) -> Callable[[bytes], bool]:
    """Return the test of a rebuilt slot key against the published key."""
    return lambda secret: SecretKey(secret).public == public


def unmask(
    view: EpochView,
    spec: RoundSpec,
    context: RoundContext,
    headers: Mapping[int, Header],
    totals: Mapping[str, Words],
    shares: Mapping[int, Mapping[int, int | None]],
    *,
    is_last: bool = False,
) -> OpenedSums:
    """Return the exact sums over the uploads; raise SumAbandoned if a secret cannot be rebuilt.

    The sums are not looked at: they may still be without noise. With groups, each group has a sum of its own, named by
    `name_in`. With `is_last`, sums that cannot be opened are left out, if enough others can.

    Args:
        headers: of the uploads, by node.
        totals: from `add_parts`; left unchanged.
        shares: by holder, from `shares_in`.
    """
    # Shares of each node's secret, by the holder that sent them.
    about: dict[int, dict[int, int | None]] = {node: {} for node in view.ready}
    for holder, of_holder in sorted(shares.items()):
        for node, share in of_holder.items():
            about[node][holder] = share
    sums: dict[str, Integers] = {}
    opened, suspects, faults = list[int](), set[int](), list[SumAbandoned]()
    for part, members in enumerate(view.parts):
        there = {node: headers[node] for node in members if node in headers}
        if not there:
            continue
        reconstructor = Reconstructor(view.by_node[members[0]].threshold)
        try:
            found = _unmask_part(view, spec, context, part, there, totals, about, reconstructor)
        except SumAbandoned as fault:
            faults.append(fault)
            continue
        finally:
            suspects |= reconstructor.suspects
        sums |= found
        opened += there
    if faults and not (is_last and is_enough(view, opened)):
        raise faults[0]
    return OpenedSums(sums, tuple(sorted(opened)), tuple(sorted(suspects)))


def _unmask_part(
    view: EpochView,
    spec: RoundSpec,
    context: RoundContext,
    part: int,
    headers: Mapping[int, Header],
    totals: Mapping[str, Words],
    about: Mapping[int, Mapping[int, int | None]],
    reconstructor: Reconstructor,
) -> dict[str, Integers]:
    """Return the exact sums of one part, given the headers of its uploads.

    `about` has the shares of each secret.
    """
    plus: list[bytes] = []
    minus: list[bytes] = []
    for node, header in headers.items():
        seed = reconstructor.recover(node, about[node], _seed_test(node, context, header.seed_commitment))
        minus.append(self_mask_secret(seed, node, context))
    for node in view.parts[part]:
        if node in headers or not view.is_ready(node):
            continue
        survivors = tuple(peer for peer in view.peers(node) if peer in headers)
        if not survivors:
            continue
        public = view.slot_key(node, context.slot)
        secret = reconstructor.recover(node, about[node], _key_test(public))
        keys = MaskingKeys(view, node, SecretKey(secret), {}, context)
        # The survivors' uploads hold their side of these masks. Adding the dropped node's side cancels them.
        added, subtracted = derive_pair_secrets(keys, survivors)
        plus += added
        minus += subtracted
    words = {v.vector_id: totals[name_in(view, v.vector_id, part)].copy() for v in spec.vectors}
    add_masks(spec, context, words, plus, minus)
    return {name_in(view, v.vector_id, part): decode_vector(words[v.vector_id]) for v in spec.vectors}
