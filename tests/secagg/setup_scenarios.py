"""What can go wrong in a set-up: lies about lists and keys, most of them by a coordinator with messages of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hedgerow.codec import MAGIC, VERSION, head
from hedgerow.crypto import Identity
from hedgerow.secagg.enrolment import Enrolment
from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.messages import (
    Acknowledgement,
    KeyBundle,
    Kind,
    NonceDelivery,
    NonceReveal,
    ReadyList,
    ShareDelivery,
    build_signed_list,
)
from hedgerow.secagg.transitions import Code
from tests.secagg.lab import SetUp, seeded_entropy, set_up


def key_list(made: SetUp, bundles: list[bytes]) -> bytes:
    return build_signed_list(Kind.KEY_LIST, made.parameters.hash(), bundles)


def bundle(made: SetUp, node: int, **changes) -> bytes:
    """A node's bundle with changes, signed by that node."""
    signed = KeyBundle.from_signed(made.bundles[node])
    return replace(signed, **changes).to_signed(made.contexts[node].identity)


def with_bundle(made: SetUp, node: int, changed: bytes) -> bytes:
    """The list of all bundles in which one is another."""
    return key_list(made, [changed if at == node else signed for at, signed in enumerate(made.bundles)])


def begin(changes: dict | None = None, **context) -> None:
    made = set_up("keys")
    parameters = replace(made.parameters, **(changes or {})).to_bytes()
    Enrolment.begin(replace(made.contexts[0], **context), parameters, seeded_entropy(1))


def malformed() -> None:
    set_up("keys").nodes[0].reveal(set_up("keys").contexts[0], head(Kind.KEY_LIST) + b"short")


def unknown_version() -> None:
    made = set_up("keys")
    Enrolment.begin(made.contexts[0], MAGIC + bytes((VERSION + 1,)) + made.parameters.to_bytes()[4:], seeded_entropy(1))


def out_of_order() -> None:
    made = set_up("nonces")
    made.nodes[0].acknowledge(made.contexts[0], b"")


def unknown_node() -> None:
    begin(identity=Identity(bytes(32)))


def repeated_node() -> None:
    made = set_up("keys")
    made.nodes[0].reveal(made.contexts[0], key_list(made, [made.bundles[0], *made.bundles]))


def bad_signature() -> None:
    made = set_up("keys")
    forged = replace(KeyBundle.from_signed(made.bundles[1]), channel_key=bytes([9] * 32))
    swapped = forged.to_signed(made.contexts[0].identity)
    made.nodes[0].reveal(made.contexts[0], with_bundle(made, 1, swapped))


def cohort_too_small() -> None:
    made = set_up("keys")
    made.nodes[0].reveal(made.contexts[0], key_list(made, made.bundles[:2]))


def own_bundle_altered() -> None:
    made = set_up("keys")
    replayed = bundle(made, 0, slot_keys_hash=bytes([9] * 32))
    made.nodes[0].reveal(made.contexts[0], with_bundle(made, 0, replayed))


def repeated_key() -> None:
    made = set_up("keys")
    copied = bundle(made, 1, channel_key=KeyBundle.from_signed(made.bundles[2]).channel_key)
    made.nodes[0].reveal(made.contexts[0], with_bundle(made, 1, copied))


def low_order_key() -> None:
    made = set_up("keys")
    made.nodes[0].reveal(made.contexts[0], with_bundle(made, 1, bundle(made, 1, channel_key=bytes(32))))


def nonce_list(made: SetUp, node: int | None = None, **changes) -> bytes:
    messages = list(made.messages)
    if node is not None:
        altered = replace(NonceReveal.from_signed(messages[node]), **changes)
        messages[node] = altered.to_signed(made.contexts[node].identity)
    return made.drawn_with(messages)


def slot_keys_altered() -> None:
    made = set_up("nonces")
    genuine = NonceDelivery.from_bytes(nonce_list(made))
    swapped = replace(genuine, slot_keys=(genuine.slot_keys[1], genuine.slot_keys[0], genuine.slot_keys[2]))
    made.nodes[0].share(made.contexts[0], swapped.to_bytes(), seeded_entropy(1))


def nonce_mismatch() -> None:
    made = set_up("nonces")
    made.nodes[0].share(made.contexts[0], nonce_list(made, 2, nonce=bytes(32)), seeded_entropy(1))


def reveal_missing() -> None:
    made = set_up("nonces")
    made.server, _ = made.server.receive(made.messages[:3])
    made.server.close_nonces()


def different_view() -> None:
    made = set_up("nonces")
    made.nodes[0].share(made.contexts[0], nonce_list(made, 2, key_list=bytes(32)), seeded_entropy(1))


def share_unreadable() -> None:
    made = set_up("shares")
    made.server, _ = made.server.receive(made.messages)
    _, deliveries = made.server.close_shares()
    delivery = ShareDelivery.from_bytes(deliveries[0])
    swapped = replace(delivery, sealed=(delivery.sealed[1], delivery.sealed[0], delivery.sealed[2]))
    step = made.nodes[0].acknowledge(made.contexts[0], swapped.to_bytes())
    assert Acknowledgement.from_signed(step.message).held == (3,)
    assert [complaint.peer for complaint in step.complaints] == [1, 2]
    raise step.complaints[0]


def ready_list(made: SetUp, messages: list[bytes]) -> bytes:
    view = Acknowledgement.from_signed(messages[0]).view
    return ReadyList(view, tuple(messages)).to_bytes()


def not_acknowledged() -> None:
    made = set_up("ready")
    partial = replace(Acknowledgement.from_signed(made.messages[1]), held=(0, 2))
    messages = [made.messages[0], partial.to_signed(made.contexts[1].identity), *made.messages[2:]]
    made.nodes[0].finish(made.contexts[0], ready_list(made, messages))


def not_ready() -> None:
    made = set_up("ready")
    made.nodes[0].finish(made.contexts[0], ready_list(made, made.messages[1:]))


def too_few_ready() -> None:
    made = set_up("shares")
    made.server, _ = made.server.receive(made.messages[:2])
    made.server.close_shares()


SCENARIOS: dict[Code, Callable[[], None]] = {
    Code.MALFORMED: malformed,
    Code.UNKNOWN_VERSION: unknown_version,
    Code.OUT_OF_ORDER: out_of_order,
    Code.UNKNOWN_NODE: unknown_node,
    Code.REPEATED_NODE: repeated_node,
    Code.BAD_SIGNATURE: bad_signature,
    Code.ROSTER_MISMATCH: lambda: begin({"roster_hash": bytes(32)}),
    Code.PARAMETERS_REFUSED: lambda: begin({"wishes": Wishes(2)}),
    Code.STALE_ATTEMPT: lambda: begin({"attempt": 17}),
    Code.COHORT_TOO_SMALL: cohort_too_small,
    Code.OWN_BUNDLE_ALTERED: own_bundle_altered,
    Code.REPEATED_KEY: repeated_key,
    Code.LOW_ORDER_KEY: low_order_key,
    Code.SLOT_KEYS_ALTERED: slot_keys_altered,
    Code.NONCE_MISMATCH: nonce_mismatch,
    Code.REVEAL_MISSING: reveal_missing,
    Code.DIFFERENT_VIEW: different_view,
    Code.SHARE_UNREADABLE: share_unreadable,
    Code.NOT_ACKNOWLEDGED: not_acknowledged,
    Code.NOT_READY: not_ready,
    Code.TOO_FEW_READY: too_few_ready,
}
