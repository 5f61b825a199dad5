"""Weakens secure aggregation in ways that others have been weak, and shows that a named check turns red for each.

Printed by ``python -m experiments secagg_mutations``. Each mutation patches one name, runs one check of
`secagg_checks` and puts the name back. A mutation whose check stays green fails the run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from experiments.secagg_checks import CHECKS
from hedgerow.errors import HedgerowError
from hedgerow.secagg import aggregator, checks, masks, participant
from hedgerow.secagg._primitives import aead, agreement, prg
from hedgerow.secagg.keys import vector_keys
from hedgerow.secagg.messages import Header
from hedgerow.secagg.participant import Participant
from hedgerow.secagg.transitions import Code, Refusal, State, refuse


@dataclass(frozen=True, slots=True)
class Mutation:
    """A weakening: its name, where it was seen, the check that must turn red, and how to apply it."""

    name: str
    seen_in: str
    check: str
    apply: Callable[[], Any]


def _narrow_seed() -> Any:
    plain = prg._encryptor
    return mock.patch.object(prg, "_encryptor", lambda key, *rest: plain(key[:4] + bytes(28), *rest))


def _fresh_except(code: Code) -> Any:
    plain = Participant._require_fresh

    def lenient(self: Participant, spec: Any) -> None:
        try:
            plain(self, spec)
        except Refusal as refusal:
            if refusal.reason is not code:
                raise

    def rewinding(self: Participant, *arguments: Any, **options: Any) -> Any:
        # A slot can be used again only if its key is still there: the weakened node also keeps its first link.
        return plain_mask(replace(self, chain=_FIRST.setdefault(self.node, self.chain)), *arguments, **options)

    plain_mask = Participant.mask
    patches: dict[str, Any] = {"_require_fresh": lenient}
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
        lambda spec, context, words, plus, minus: plain(
            spec, context, words, keep(plus), minus if keeps_minus else []
        ),
    )


@contextmanager
def _unchecked_signatures() -> Iterator[None]:
    def accept(*arguments: Any) -> None:
        return None

    with (
        mock.patch.object(aggregator, "check_signature", accept),
        mock.patch.object(checks, "check_signature", accept),
        mock.patch.object(participant, "check_signature", accept),
    ):
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
    plain = checks.check_manifest

    def lenient(*arguments: Any) -> None:
        try:
            plain(*arguments)
        except Refusal as refusal:
            if refusal.reason is not code:
                raise

    def headers(request: Any, manifest: Any, view: Any, node: int) -> Any:
        if node in manifest.survivors:
            return plain_headers(request, manifest, view, node)
        return {header.node: header for header in map(Header.from_signed, request.headers)}

    plain_headers = checks.check_headers
    return mock.patch.multiple(participant, check_manifest=lenient, check_headers=headers)


def _unchecked_range() -> Any:
    def encode(vector: Any, length: int, entry_bound: int, width: int) -> Any:
        return vector.astype(prg.DTYPES[width])

    return mock.patch.object(masks, "encode", encode)


def _without_vector_id() -> Any:
    def nameless(secrets: Any, context: Any, vector_id: str, width: int) -> list[bytes]:
        return vector_keys(secrets, context, "", width)

    return mock.patch.object(masks, "vector_keys", nameless)


def _fixed_nonce() -> Any:
    plain = aead.seal
    return mock.patch.object(aead, "seal", lambda key, text, context, entropy: plain(key, text, context, bytes))


def _resumes_backups() -> Any:
    plain = Participant.restore

    def lenient(data: bytes, sequence: int) -> Participant:
        for guess in range(sequence, 0, -1):
            try:
                return plain(data, guess)
            except Exception as error:
                last = error
        raise last

    return mock.patch.object(Participant, "restore", lenient)


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
             lambda: mock.patch.object(agreement, "is_low_order", lambda public: False)),
    Mutation("fixed AEAD nonce", "", "equal_shares_seal_differently", _fixed_nonce),
    Mutation("restored backups resumed", "", "a_restored_backup_is_refused", _resumes_backups),
)  # fmt: skip


def turns_red(mutation: Mutation) -> str:
    """Returns the sentence with which the mutation's check fails, or "" when it stays green."""
    with mutation.apply():
        try:
            CHECKS[mutation.check]()
        except AssertionError as failure:
            return str(failure)
        except HedgerowError as failure:
            return f"{type(failure).__name__}: {failure.what}"
    return ""


def main(argv: list[str]) -> int:
    """Prints the table of mutations and returns 0 if every check turned red and is green without the mutation."""
    argparse.ArgumentParser(prog="secagg_mutations", description=__doc__).parse_args(argv)
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
