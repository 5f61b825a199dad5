"""Named checks of secure aggregation's properties, and weakenings of the code that turn each of them red.

A check is a function that raises AssertionError when a property is gone; the tests run all on the code as it is.
``python -m experiments secagg_mutations`` weakens the code in ways that others have been weak: each mutation patches
one name, runs one check and puts the name back. A mutation whose check stays green fails the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from experiments.harness import arguments
from hedgerow import crypto
from hedgerow.crypto import DTYPES
from hedgerow.errors import HedgerowError
from hedgerow.secagg import aggregator, enrolment, masks, participant
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.keys import self_mask_secret, vector_keys
from hedgerow.secagg.masks import MaskingKeys, derive_pair_secrets
from hedgerow.secagg.messages import SEED_SHARE, WITHHELD, Answer, Header, MaskedVector, NonceDelivery, VectorSpec
from hedgerow.secagg.participant import Participant
from hedgerow.secagg.transitions import Code, Refusal, State, refuse
from tests.secagg.lab import Lab, require, require_refusal, restore_node, seeded_entropy, set_up, store_node

CHECKS: dict[str, Callable[[], None]] = {}


def _check(check: Callable[[], None]) -> Callable[[], None]:
    CHECKS[check.__name__] = check
    return check


def looks_uniform(words: NDArray[np.unsignedinteger[Any]]) -> bool:
    """Whether the lowest and the highest byte of the words pass chi-square with 255 degrees of freedom (p > 1e-5)."""
    octets = words.view(np.uint8).reshape(len(words), -1)
    statistics = []
    for column in (0, -1):
        counts = np.bincount(octets[:, column], minlength=256)
        statistics.append(float(((counts - len(words) / 256) ** 2 / (len(words) / 256)).sum()))
    return max(statistics) < 360.0


@_check
def every_key_bit_counts() -> None:
    """A mask depends on all 256 bits of its key."""
    key = bytes(range(32))
    reference = np.zeros(8, DTYPES[64])
    crypto.add_keystreams(reference, [key], [])
    for bit in range(256):
        flipped = bytearray(key)
        flipped[bit // 8] ^= 1 << bit % 8
        other = np.zeros(8, DTYPES[64])
        crypto.add_keystreams(other, [bytes(flipped)], [])
        require(not (other == reference).any(), f"Bit {bit} of the key does not reach the mask.")


def _views(lab: Lab, aggregator: Aggregator, upload: bytes, keys: MaskingKeys, seed: bytes) -> dict[str, Any]:
    """What an adversary can compute from node 0's upload; each must be uniform, whatever the inputs.

    Nodes 2, 3 and 4 collude (t - 1 = 3 of t = 4); nodes 0 and 1 are honest.
    """
    vectors = aggregator.spec.vectors
    length, width = vectors[0].length, vectors[0].width
    rows = np.frombuffer(MaskedVector.from_bytes(upload).payload, DTYPES[width]).reshape(len(vectors), length)

    def without(plus: list[bytes], minus: list[bytes]) -> NDArray[Any]:
        row: NDArray[Any] = rows[0].copy()
        name = vectors[0].vector_id
        taken, given = (vector_keys(side, aggregator.context, name, width) for side in (plus, minus))
        crypto.add_keystreams(row, given, taken)
        return row

    own = self_mask_secret(seed, 0, aggregator.context)
    every, colluders = derive_pair_secrets(keys, (1, 2, 3, 4)), derive_pair_secrets(keys, (2, 3, 4))
    return {
        "the difference of two vectors of one slot": rows[0] - rows[1],
        "a survivor's vector without its self mask": without([own], []),
        "a survivor's vector without its self mask and the colluders' pair masks": without(
            [own, *colluders[0]], colluders[1]
        ),
        "a late vector after its slot key was rebuilt": without(*every),
    }


@_check
def equal_sums_look_alike() -> None:
    """Inputs (x, -x) and (x', -x') of two honest nodes look alike to the coordinator with t - 1 colluders."""
    for value in (7, 900):
        lab = Lab(n_nodes=5, n_slots=1, seed=value)
        vectors = tuple(VectorSpec(name, 16_384, 32, 1000, 5000) for name in ("gradients", "hessians"))
        aggregator = lab.open_vectors("tree-1", vectors)
        keys = MaskingKeys(lab.view, 0, lab.node(0).chain.current(), {}, aggregator.context)
        drawn: list[bytes] = []
        plain = lab.session.entropy

        def recorded(length: int, plain: Any = plain, drawn: list[bytes] = drawn) -> bytes:
            drawn.append(plain(length))
            return drawn[-1]

        lab.session.entropy = recorded
        upload = lab.masked(0, aggregator, {v.vector_id: np.full(v.length, value, np.int64) for v in vectors})
        for name, view in _views(lab, aggregator, upload, keys, drawn[0]).items():
            require(looks_uniform(view), f"Not uniform: {name}.")


@_check
def a_used_slot_is_refused() -> None:
    """A node masks nothing twice under one slot key, whatever the purpose."""
    lab = Lab(n_nodes=3)
    first = lab.open("tree-1")
    lab.masked(0, first)
    again = Aggregator.open(lab.view, lab.session.coordinator, replace(first.spec, purpose="tree-2"))
    require_refusal(lambda: lab.masked(0, again), Code.SLOT_REUSED)


@_check
def one_past_the_bound_is_refused() -> None:
    """Entries at the bound pass, one past it are refused, on both sides."""
    lab = Lab(n_nodes=3)
    aggregator = lab.open(bound=1000)
    for value in (1001, -1001):
        vector = np.array([0, 0, value, 0], np.int64)
        require_refusal(partial(lab.masked, 0, aggregator, {"leaves": vector}), Code.VECTOR_UNFIT)
    lab.masked(0, aggregator, {"leaves": np.array([1000, -1000, 0, 1], np.int64)})


@_check
def a_forged_header_is_refused() -> None:
    """A header in another node's name is refused by the aggregator, and by a holder whose coordinator forged it."""
    lab = Lab(n_nodes=4)
    aggregator = lab.collected()
    genuine = aggregator.uploads[1]
    header = replace(Header.from_signed(genuine.header), seed_commitment=bytes(32))
    forged = replace(genuine, header=header.to_signed(lab.session.contexts["site-2"].identity))
    _, complaints = Aggregator.open(lab.view, lab.session.coordinator, aggregator.spec).receive([forged.to_bytes()])
    found = [complaint.reason for complaint in complaints]
    require(found == [Code.BAD_SIGNATURE], f"The aggregator took a forged header: {found}.")
    lying = replace(aggregator, uploads={**aggregator.uploads, 1: forged})
    require_refusal(lambda: lab.answered(0, lab.request(lying, 0, (0, 1, 2, 3))), Code.BAD_SIGNATURE)


@_check
def tampered_shares_never_change_the_sum() -> None:
    """A node that returns wrong shares is named, and the sum is exact; too many of them, and nothing is released."""
    lab = Lab(n_nodes=5)
    aggregator = lab.collected()
    aggregator, requests = aggregator.close_vectors(lab.session.coordinator)
    answers = [lab.answered(node, requests[node]).message or b"" for node in range(5)]
    for liars, suspects in (((1,), (1,)), ((0, 1), None)):
        messages = []
        for node, message in enumerate(answers):
            answer = Answer.from_signed(message)
            if node in liars:
                answer = replace(answer, shares=tuple(bytes([0, 1 + node]) + share[2:] for share in answer.shares))
            messages.append(answer.to_signed(lab.session.contexts[lab.sites[node]].identity))
        received, complaints = aggregator.receive(messages)
        require(not complaints, "Well-formed answers were refused.")
        if suspects is None:
            require_refusal(received.release, Code.SECRET_UNRECOVERABLE)
        else:
            release = received.release()[1]
            require(release.suspects == suspects, f"Named {release.suspects}, not {suspects}.")
            require((release.sums["leaves"] == 15).all(), "A wrong number was released.")


@_check
def never_both_shares() -> None:
    """However often and with whatever manifests a node is asked, it gives one kind of share about each other node."""
    lab = Lab(n_nodes=5)
    aggregator = lab.collected()
    kinds: dict[int, set[int]] = {node: set() for node in range(5)}
    for survivors in ((0, 1, 2, 3, 4), (0, 1, 2, 3), (0, 2, 3, 4), (0, 1, 2, 3, 4)):
        try:
            step = lab.answered(0, lab.request(aggregator, 0, survivors))
        except Refusal:
            continue
        if step.message is not None:
            for node, kind in zip(range(5), Answer.from_signed(step.message).kinds, strict=True):
                kinds[node] |= {kind} - {WITHHELD}
    both = [node for node, seen in kinds.items() if len(seen) > 1]
    require(not both, f"Node 0 gave both kinds of share about {both}.")
    require(kinds[1] == {SEED_SHARE}, "The first manifest was not answered.")


@_check
def a_small_manifest_is_refused() -> None:
    """A manifest with one survivor fewer than guaranteed is refused."""
    lab = Lab(n_nodes=5)
    aggregator = lab.collected()
    require_refusal(lambda: lab.answered(0, lab.request(aggregator, 0, (0, 1, 2))), Code.TOO_FEW_SURVIVORS)
    require(lab.answered(0, lab.request(aggregator, 0, (0, 1, 2, 3))).message is not None, "The least was refused.")


@_check
def a_manifest_without_me_is_refused() -> None:
    """A node reveals nothing against a manifest that leaves it out."""
    lab = Lab(n_nodes=5)
    aggregator = lab.collected()
    require_refusal(lambda: lab.answered(0, lab.request(aggregator, 0, (1, 2, 3, 4))), Code.SELF_OMITTED)


@_check
def a_purpose_is_answered_once() -> None:
    """After an answer, the same purpose is refused in every later slot."""
    lab = Lab(n_nodes=3)
    first = lab.collected("tree-1")
    lab.answered(0, lab.request(first, 0, (0, 1, 2)))
    require_refusal(lambda: lab.masked(0, lab.open("tree-1")), Code.PURPOSE_ANSWERED)
    lab.masked(0, lab.open("tree-2"))


@_check
def low_order_keys_are_refused() -> None:
    """A key bundle with a low-order slot key goes no further than the aggregator, and no node would take it."""
    require(crypto.is_low_order(bytes(32)), "Zero is a point of low order.")
    require(crypto.is_low_order(bytes([1]) + bytes(31)), "One is a point of low order.")
    require(not crypto.is_low_order(bytes([9]) + bytes(31)), "The base point is not of low order.")


@_check
def other_slot_keys_are_refused() -> None:
    """A node that is given slot keys that their site did not sign for shares nothing."""
    made = set_up("nonces")
    genuine = NonceDelivery.from_bytes(made.drawn_with(made.messages))
    exchanged = replace(genuine, slot_keys=(genuine.slot_keys[1], genuine.slot_keys[0], genuine.slot_keys[2]))
    share = partial(made.nodes[0].share, made.contexts[0], entropy=seeded_entropy(5))
    require_refusal(lambda: share(exchanged.to_bytes()), Code.SLOT_KEYS_ALTERED)
    require(share(genuine.to_bytes()).message is not None, "The genuine keys were refused.")


@_check
def equal_shares_seal_differently() -> None:
    """The same share sealed twice under one key gives unrelated bytes, so that a rollback leaks no difference."""
    drawn = seeded_entropy(5)
    sealed = [crypto.seal(bytes(32), bytes(33), b"", drawn) for _ in range(2)]
    require(sealed[0][12:] != sealed[1][12:], "Two seals of one plaintext are equal.")


@_check
def a_restored_backup_is_refused() -> None:
    """A state older than the last record is refused, so that its slot key is not used a second time."""
    lab = Lab(n_nodes=3)
    backup = store_node(lab.node(0))
    lab.masked(0, lab.open())
    sequence = lab.node(0).sequence
    require_refusal(lambda: restore_node(backup, sequence), Code.ROLLED_BACK)
    restore_node(store_node(lab.node(0)), sequence)


# Weakenings -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mutation:
    """A weakening: its name, where it was seen, the check that must turn red, and how to apply it."""

    name: str
    seen_in: str
    check: str
    apply: Callable[[], Any]


def _narrow_seed() -> Any:
    plain = crypto._encryptor
    return mock.patch.object(crypto, "_encryptor", lambda key, *rest: plain(key[:4] + bytes(28), *rest))


def _except(code: Code, plain: Callable[..., None]) -> Callable[..., None]:
    """Does not refuse with this code."""

    def lenient(*arguments: Any) -> None:
        try:
            plain(*arguments)
        except Refusal as refusal:
            if refusal.reason is not code:
                raise

    return lenient


def _fresh_except(code: Code) -> Any:
    plain_mask = Participant.mask

    def rewinding(self: Participant, *arguments: Any, **options: Any) -> Any:
        # A slot can be used again only if its key is still there: the weakened node also keeps its first link.
        return plain_mask(replace(self, chain=_FIRST.setdefault(self.node, self.chain)), *arguments, **options)

    patches: dict[str, Any] = {"_require_fresh": _except(code, Participant._require_fresh)}
    if code is Code.SLOT_REUSED:
        _FIRST.clear()
        patches["mask"] = rewinding
    return mock.patch.multiple(Participant, **patches)


_FIRST: dict[int, Any] = {}


def _masks_without(keep: Callable[[list[bytes]], list[bytes]], keeps_minus: bool) -> Any:
    plain = masks.add_masks
    return mock.patch.object(
        masks,
        "add_masks",
        lambda spec, context, words, plus, minus: plain(spec, context, words, keep(plus), minus if keeps_minus else []),
    )


@contextmanager
def _unchecked_signatures() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (aggregator, participant):
            stack.enter_context(mock.patch.object(module, "check_signature", lambda *arguments: None))
        yield


def _answers_again(self: Participant, signed_manifest: bytes, digest: bytes) -> Any:
    opened = self.open
    if opened is None:
        raise refuse(Code.OUT_OF_ORDER)
    reopened = replace(
        self,
        state=State.VECTOR_MASKED,
        shares=_BEFORE[self.node][0],
        shares_from=_BEFORE[self.node][1],
        open=replace(opened, digest=b"", manifest=b"", own_share=bytes(33)),
    )
    return Participant.unmask(reopened, *_ASKED[self.node])


_BEFORE: dict[int, Any] = {}
_ASKED: dict[int, Any] = {}


@contextmanager
def _second_manifest() -> Iterator[None]:
    plain = Participant.unmask

    def remembering(self: Participant, context: Any, request: bytes) -> Any:
        _ASKED[self.node] = (context, request)
        if self.state is State.VECTOR_MASKED:
            _BEFORE[self.node] = (self.shares, self.shares_from)
        return plain(self, context, request)

    with (
        mock.patch.object(Participant, "unmask", remembering),
        mock.patch.object(Participant, "_repeat_or_stop", _answers_again),
    ):
        yield


def _manifest_except(code: Code) -> Any:
    plain_headers = participant.check_headers

    def headers(request: Any, manifest: Any, view: Any, node: int) -> Any:
        if node in manifest.survivors:
            return plain_headers(request, manifest, view, node)
        return {header.node: header for header in map(Header.from_signed, request.headers)}

    lenient = _except(code, participant.check_manifest)
    return mock.patch.multiple(participant, check_manifest=lenient, check_headers=headers)


def _unchecked_range() -> Any:
    def encode(vector: Any, length: int, entry_bound: int, width: int) -> Any:
        return vector.astype(crypto.DTYPES[width])

    return mock.patch.object(masks, "encode_vector", encode)


def _without_vector_id() -> Any:
    def nameless(secrets: Any, context: Any, vector_id: str, width: int) -> list[bytes]:
        return vector_keys(secrets, context, "", width)

    return mock.patch.object(masks, "vector_keys", nameless)


def _fixed_nonce() -> Any:
    plain = crypto.seal
    return mock.patch.object(crypto, "seal", lambda key, text, context, entropy: plain(key, text, context, bytes))


def _resumes_backups() -> Any:
    plain = Participant.restore_parts

    def lenient(epoch: bytes, step: bytes, purposes: Collection[str], sequence: int) -> Participant:
        for guess in range(sequence, 0, -1):
            try:
                return plain(epoch, step, purposes, guess)
            except Exception as error:
                last = error
        raise last

    return mock.patch.object(Participant, "restore_parts", lenient)


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("mask seed of 32 bits", "Flower SecAgg+", "every_key_bit_counts", _narrow_seed),
    Mutation("slot used twice", "MicroSecAgg", "a_used_slot_is_refused", lambda: _fresh_except(Code.SLOT_REUSED)),
    Mutation("range of entries not checked", "Flower #4982", "one_past_the_bound_is_refused", _unchecked_range),
    Mutation("signatures skipped", "Flamingo's prototype", "a_forged_header_is_refused", _unchecked_signatures),
    Mutation("no self mask", "single-mask schemes", "equal_sums_look_alike",
             lambda: _masks_without(lambda plus: plus[1:], True)),
    Mutation("no pairwise mask", "", "equal_sums_look_alike", lambda: _masks_without(lambda plus: plus[:1], False)),
    Mutation("vector id left out of the key", "Fed-BioMed LOM", "equal_sums_look_alike", _without_vector_id),
    Mutation("seed commitment not checked", "", "tampered_shares_never_change_the_sum",
             lambda: mock.patch.object(masks, "_seed_test", lambda *arguments: lambda seed: True)),
    Mutation("both shares answered", "Flower SecAgg+", "never_both_shares", _second_manifest),
    Mutation("size of the manifest not checked", "", "a_small_manifest_is_refused",
             lambda: _manifest_except(Code.TOO_FEW_SURVIVORS)),
    Mutation("own place in the manifest not checked", "", "a_manifest_without_me_is_refused",
             lambda: _manifest_except(Code.SELF_OMITTED)),
    Mutation("a purpose answered twice", "", "a_purpose_is_answered_once",
             lambda: _fresh_except(Code.PURPOSE_ANSWERED)),
    Mutation("low-order keys accepted", "", "low_order_keys_are_refused",
             lambda: mock.patch.object(crypto, "is_low_order", lambda public: False)),
    Mutation("slot keys not checked", "", "other_slot_keys_are_refused",
             lambda: mock.patch.object(enrolment, "check_slot_keys", lambda *arguments: None)),
    Mutation("fixed AEAD nonce", "", "equal_shares_seal_differently", _fixed_nonce),
    Mutation("restored backups resumed", "", "a_restored_backup_is_refused", _resumes_backups),
)  # fmt: skip


def turns_red(mutation: Mutation) -> str:
    """The sentence with which the mutation's check fails, or "" when it stays green."""
    with mutation.apply():
        try:
            CHECKS[mutation.check]()
        except AssertionError as failure:
            return str(failure)
        except HedgerowError as failure:
            return f"{type(failure).__name__}: {failure.what}"
    return ""


def main(argv: list[str]) -> int:
    """Print the table of mutations; 0 if every check turned red and is green without the mutation."""
    arguments("secagg_mutations", __doc__, data="not used: there are no records").parse_args(argv)
    survivors = 0
    print(f"{'weakening':<40} {'check':<40} outcome")
    for mutation in MUTATIONS:
        failure = turns_red(mutation)
        CHECKS[mutation.check]()
        survivors += not failure
        print(f"{mutation.name:<40} {mutation.check:<40} {'red: ' + failure if failure else 'GREEN'}")
    caught = len(MUTATIONS) - survivors
    print(f"{caught} of {len(MUTATIONS)} weakenings were caught; every check is green without them.")
    return 1 if survivors else 0
