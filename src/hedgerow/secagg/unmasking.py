"""From shares to sums: rebuild each secret, check it against what was published, and take the masks away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations, islice

import numpy as np

from hedgerow.secagg._primitives.agreement import SecretKey
from hedgerow.secagg._primitives.faults import PrimitiveFault
from hedgerow.secagg._primitives.prg import DTYPES, Words
from hedgerow.secagg._primitives.shamir import interpolate, parse_share, secret_from, weights_at
from hedgerow.secagg.fixed_point import Integers, decode
from hedgerow.secagg.keys import Channels, PairSecrets, RoundContext, SelfMasks
from hedgerow.secagg.masking import MaskingKeys, add_masks, signed_pair_secrets
from hedgerow.secagg.refusals import refuse
from hedgerow.secagg.round_messages import WITHHELD, Answer, Header, MaskedVector, RoundSpec
from hedgerow.secagg.transitions import Code
from hedgerow.secagg.view import EpochView

# How many sets of shares are tried for one secret before it is given up: all single liars, and many pairs of them.
MAX_SUBSETS = 2000


@dataclass(frozen=True, slots=True)
class Release:
    """The sums of one aggregation: int64 arrays by vector id, the survivors, and suspects.

    A suspect's shares were off the others' polynomial: it sent wrong ones, or the node that dealt them did.
    """

    # Exact sums stay out of logs: where the noise is central they are not yet private.
    sums: dict[str, Integers] = field(repr=False)
    survivors: tuple[int, ...]
    suspects: tuple[int, ...]


class Reconstructor:
    """Rebuilds secrets from shares; remembers holders found out to send wrong ones."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self.suspects: set[int] = set()

    def recover(self, node: int, shares: Mapping[int, int | None], fits: Callable[[bytes], bool]) -> bytes:
        """Returns the secret of `node` that `fits` what it published, from any threshold of `shares`.

        Args: shares: by holder, as `shares_in` reads them.
        Raises Abandoned: TOO_FEW_ANSWERS, or SECRET_UNRECOVERABLE when no set of shares fits.
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
            # Nearly always nobody lies, and everybody waits: that needs no search.
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
        """Yields sets of holders to try: the trusted ones first, then with ever more of them left out."""
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
        """Suspects every holder whose share is off the polynomial through the shares that gave the right secret."""
        known = [values[x] for x in subset]
        for x in values.keys() - set(subset):
            if interpolate(weights_at(x, subset), known) != values[x]:
                self.suspects.add(x - 1)


@lru_cache(maxsize=32)
def weights_at_zero(coordinates: tuple[int, ...]) -> tuple[int, ...]:
    """Returns Lagrange's weights of a set of holders, which is the same for all secrets, and often for all slots."""
    return tuple(weights_at(0, coordinates))


def shares_in(answer: Answer, about: Sequence[int]) -> dict[int, int | None]:
    """Returns the shares of an answer by the node `about` which each is; None where one is no field element."""
    found: dict[int, int | None] = {}
    shares = iter(answer.shares)
    for node, kind in zip(about, answer.kinds, strict=True):
        if kind != WITHHELD:
            try:
                found[node] = parse_share(next(shares))
            except PrimitiveFault:
                found[node] = None
    return found


def _shares_by_node(
    view: EpochView, shares: Mapping[int, Mapping[int, int | None]]
) -> dict[int, dict[int, int | None]]:
    """Returns for every node the shares about it, by the holder that sent them."""
    collected: dict[int, dict[int, int | None]] = {node: {} for node in view.ready}
    for holder, of_holder in sorted(shares.items()):
        for node, share in of_holder.items():
            collected[node][holder] = share
    return collected


def sum_of(spec: RoundSpec, uploads: Mapping[int, MaskedVector]) -> dict[str, Words]:
    """Returns the sums of the masked vectors by vector id, masked themselves, as words of each vector's width."""
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


def _seed_test(node: int, masks: SelfMasks, commitment: bytes) -> Callable[[bytes], bool]:
    """Returns the test of a rebuilt seed against the commitment in the signed header."""
    return lambda seed: masks.commitment(seed, node) == commitment


def _key_test(public: bytes) -> Callable[[bytes], bool]:
    """Returns the test of a rebuilt slot key against the published key."""
    return lambda secret: SecretKey(secret).public == public


def unmask(
    view: EpochView,
    spec: RoundSpec,
    context: RoundContext,
    headers: Mapping[int, Header],
    totals: Mapping[str, Words],
    shares: Mapping[int, Mapping[int, int | None]],
) -> Release:
    """Returns the exact sums over the uploads; raises Abandoned and releases nothing when a secret cannot be rebuilt.

    The sums are not looked at: they may still be without noise.

    Args: headers: of the uploads, by node; totals: `sum_of` them, which is left as it is; shares: `shares_in` each
        holder's answer.
    """
    about = _shares_by_node(view, shares)
    masks = SelfMasks(context)
    reconstructor = Reconstructor(view.guarantees.threshold)
    plus: list[bytes] = []
    minus: list[bytes] = []
    for node, header in headers.items():
        seed = reconstructor.recover(node, about[node], _seed_test(node, masks, header.seed_commitment))
        minus.append(masks.secret(seed, node))
    for node in view.ready:
        if node in headers:
            continue
        survivors = tuple(peer for peer in view.peers(node) if peer in headers)
        if not survivors:
            continue
        public = view.slot_keys[node][context.slot]
        secret = reconstructor.recover(node, about[node], _key_test(public))
        pairs = PairSecrets(SecretKey(secret), node, context.epoch, context.slot)
        keys = MaskingKeys(view, node, pairs, Channels(node, {}), context)
        # The dropped node would have added these masks and its neighbours subtracted them, and the reverse: what it
        # would have added cancels what they sent.
        added, subtracted = signed_pair_secrets(keys, survivors)
        plus += added
        minus += subtracted
    words = {name: total.copy() for name, total in totals.items()}
    add_masks(spec, context, words, plus, minus)
    sums = {vector.vector_id: decode(words[vector.vector_id]) for vector in spec.vectors}
    return Release(sums, tuple(sorted(headers)), tuple(sorted(reconstructor.suspects)))
