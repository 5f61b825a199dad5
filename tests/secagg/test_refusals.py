"""One scenario for every reason code of the transition table: what was done wrong, and the code that refuses it.

The scenarios of the set-up lie about lists and keys, those of a round about specs and manifests; most are what a lying
coordinator can do with correctly signed messages of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from hedgerow.experiments.secagg_lab import (
    Lab,
    SetUp,
    complaint_of,
    echoed,
    seeded_entropy,
    set_up,
    sparse_lab,
)
from hedgerow.secagg._primitives.identity import Identity
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.encoding import VERSION, Kind
from hedgerow.secagg.epoch import Enrolment
from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.participant import Participant
from hedgerow.secagg.refusals import REASONS, Abandoned, Blame, OwnMistake, Refusal
from hedgerow.secagg.roster import NoiseMode
from hedgerow.secagg.round_messages import (
    Answer,
    EchoCertificate,
    NoiseSpec,
    header_hash,
    manifest_hash,
)
from hedgerow.secagg.setup_messages import (
    Acknowledgement,
    KeyBundle,
    NonceReveal,
    ReadyList,
    ShareDelivery,
    signed_list,
)
from hedgerow.secagg.transitions import ANYWHERE, TRANSITIONS, Code


def key_list(made: SetUp, messages: list[bytes]) -> bytes:
    return signed_list(Kind.KEY_LIST, made.parameters.hash(), messages)


def bundle(made: SetUp, node: int, **changes) -> bytes:
    return replace(KeyBundle.from_signed(made.nodes[node].bundle), **changes).to_signed(made.contexts[node].identity)


def begin(changes: dict | None = None, **context) -> None:
    made = set_up("keys")
    parameters = replace(made.parameters, **(changes or {})).to_bytes()
    Enrolment.begin(replace(made.contexts[0], **context), parameters, seeded_entropy(1))


def malformed() -> None:
    set_up("keys").nodes[0].reveal(set_up("keys").contexts[0], bytes((*b"HSA", VERSION, 4)) + b"short")


def unknown_version() -> None:
    made = set_up("keys")
    Enrolment.begin(made.contexts[0], bytes((*b"HSA", VERSION + 1)) + made.parameters.to_bytes()[4:], seeded_entropy(1))


def out_of_order() -> None:
    made = set_up("nonces")
    made.nodes[0].acknowledge(made.contexts[0], b"")


def unknown_node() -> None:
    begin(identity=Identity(bytes(32)))


def repeated_node() -> None:
    made = set_up("keys")
    made.nodes[0].reveal(made.contexts[0], key_list(made, [made.messages[0], *made.messages]))


def bad_signature() -> None:
    made = set_up("keys")
    forged = replace(KeyBundle.from_signed(made.messages[1]), channel_key=bytes([9] * 32))
    swapped = forged.to_signed(made.contexts[0].identity)
    made.nodes[0].reveal(made.contexts[0], key_list(made, [made.messages[0], swapped, *made.messages[2:]]))


def cohort_too_small() -> None:
    made = set_up("keys")
    made.nodes[0].reveal(made.contexts[0], key_list(made, made.messages[:2]))


def own_bundle_altered() -> None:
    made = set_up("keys")
    replayed = bundle(made, 0, slot_keys=tuple(bytes([9 + i] * 32) for i in range(2)))
    made.nodes[0].reveal(made.contexts[0], key_list(made, [replayed, *made.messages[1:]]))


def repeated_key() -> None:
    made = set_up("keys")
    copied = bundle(made, 1, channel_key=KeyBundle.from_signed(made.messages[2]).channel_key)
    made.nodes[0].reveal(made.contexts[0], key_list(made, [made.messages[0], copied, *made.messages[2:]]))


def low_order_key() -> None:
    made = set_up("keys")
    weak = bundle(made, 1, slot_keys=(bytes(32), bytes([9] * 32)))
    made.nodes[0].reveal(made.contexts[0], key_list(made, [made.messages[0], weak, *made.messages[2:]]))


def nonce_list(made: SetUp, node: int | None = None, **changes) -> bytes:
    messages = list(made.messages)
    if node is not None:
        altered = replace(NonceReveal.from_signed(messages[node]), **changes)
        messages[node] = altered.to_signed(made.contexts[node].identity)
    return signed_list(Kind.NONCE_LIST, made.parameters.hash(), messages)


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


def with_spec(**changes) -> Callable[[], None]:
    """A spec that the coordinator altered for node 0, which expects the genuine one."""

    def scenario() -> None:
        lab = Lab()
        genuine = lab.open().spec
        altered = replace(genuine, **{k: v(genuine) if callable(v) else v for k, v in changes.items()})
        signed = altered.to_signed(lab.session.coordinator)
        aggregator = Aggregator(lab.view, genuine, signed)
        lab.masked(0, aggregator)

    return scenario


def vector(**changes):
    return lambda spec: (replace(spec.vectors[0], **changes),)


def with_manifest(**changes) -> Callable[[], None]:
    """A correctly signed manifest with altered fields, shown to node 0."""

    def scenario() -> None:
        lab = Lab()
        aggregator = lab.collected()
        altered = {k: v(aggregator) if callable(v) else v for k, v in changes.items()}
        lab.answered(0, lab.request(aggregator, 0, altered.pop("survivors", (0, 1, 2, 3, 4)), **altered))

    return scenario


def other_epoch() -> None:
    lab, other = Lab(), Lab(seed=2)
    lab.masked(0, Aggregator.open(lab.view, lab.session.coordinator, other.open().spec))


def header_altered() -> None:
    lab = Lab()
    aggregator = lab.collected()
    headers = tuple(header_hash(aggregator.uploads[n].header) for n in range(5))
    lab.answered(0, lab.request(aggregator, 0, (0, 1, 2, 3, 4), headers=(*headers[:4], bytes(32))))


def other_spec() -> None:
    """The coordinator gave node 1 another spec: its header does not match, though it is honest and signed."""
    lab = Lab()
    aggregator = lab.collected(absent=(1,))
    twin = Aggregator.open(lab.view, lab.session.coordinator, replace(aggregator.spec, purpose="tree-9"))
    twin, _ = twin.receive([lab.masked(1, twin)])
    mixed = replace(aggregator, uploads=dict(sorted({**aggregator.uploads, **twin.uploads}.items())))
    lab.answered(0, lab.request(mixed, 0, (0, 1, 2, 3, 4)))


def too_few_neighbours() -> None:
    lab = sparse_lab()
    weaker = replace(lab.view.guarantees, min_survivors=1)
    lab.view = replace(lab.view, guarantees=weaker)
    lab.session.nodes["site-0"] = replace(lab.node(0), view=lab.view)
    near = lab.view.peers(0)
    keep = tuple(sorted({*range(40)} - set(near[lab.view.guarantees.threshold - 1 :])))
    aggregator = lab.collected()
    lab.answered(0, lab.request(aggregator, 0, keep))


def second_manifest() -> None:
    lab = Lab()
    aggregator = lab.collected()
    assert lab.answered(0, lab.request(aggregator, 0, (0, 1, 2, 3, 4))).message
    step = lab.answered(0, lab.request(aggregator, 0, (0, 1, 2, 3)))
    assert step.message is None and step.persist[0].fact == "stopped" and len(step.state.evidence) == 2
    raise step.complaints[0]


def stopped() -> None:
    lab = Lab()
    aggregator = lab.collected()
    lab.answered(0, lab.request(aggregator, 0, (0, 1, 2, 3, 4)))
    lab.answered(0, lab.request(aggregator, 0, (0, 1, 2, 3)))
    lab.masked(0, lab.open("tree-2"))


def too_few_echoes() -> None:
    lab, aggregator, echoes = echoed()
    nodes = tuple(range(lab.view.guarantees.quorum - 1))
    short = EchoCertificate(manifest_hash(aggregator.manifest), nodes, tuple(echoes[n][-64:] for n in nodes))
    lab.node(0).confirm(short.to_bytes())


def content_mismatch() -> None:
    lab = Lab()
    aggregator = lab.open()
    upload = bytearray(lab.masked(0, aggregator))
    upload[-1] ^= 1
    complaint_of(aggregator, bytes(upload))


def late_upload() -> None:
    lab = Lab()
    aggregator = lab.collected(absent=(4,))
    late = lab.masked(4, aggregator)
    complaint_of(aggregator.close_vectors(lab.session.coordinator)[0], late)


def not_a_survivor() -> None:
    lab = Lab()
    aggregator = lab.collected(absent=(4,)).close_vectors(lab.session.coordinator)[0]
    identity = lab.session.contexts["site-4"].identity
    complaint_of(aggregator, Answer(4, manifest_hash(aggregator.manifest), (0,) * 5, ()).to_signed(identity))


def other_manifest() -> None:
    lab = Lab()
    aggregator = lab.collected().close_vectors(lab.session.coordinator)[0]
    identity = lab.session.contexts["site-0"].identity
    complaint_of(aggregator, Answer(0, bytes(32), (0,) * 5, ()).to_signed(identity))


def contradiction() -> None:
    lab = Lab()
    aggregator = lab.collected()
    aggregator, requests = aggregator.close_vectors(lab.session.coordinator)
    message = lab.answered(0, requests[0]).message or b""
    aggregator, _ = aggregator.receive([message])
    answer = Answer.from_signed(message)
    changed = replace(answer, shares=(bytes(33), *answer.shares[1:]))
    complaint_of(aggregator, changed.to_signed(lab.session.contexts["site-0"].identity))


def vector_unfit() -> None:
    lab = Lab()
    lab.masked(0, lab.open(), {"leaves": np.full(4, 1001, np.int64)})


def too_few_uploads() -> None:
    lab = Lab()
    lab.collected(absent=(0, 1)).close_vectors(lab.session.coordinator)


def answers_of(lab: Lab, count: int, alter=lambda answer: answer) -> Aggregator:
    aggregator, requests = lab.collected().close_vectors(lab.session.coordinator)
    messages = [
        alter(Answer.from_signed(lab.answered(node, requests[node]).message or b"")).to_signed(
            lab.session.contexts[f"site-{node}"].identity
        )
        for node in range(count)
    ]
    return aggregator.receive(messages)[0]


def too_few_answers() -> None:
    answers_of(Lab(), 3).release()


def secret_unrecoverable() -> None:
    def lying(answer: Answer) -> Answer:
        return replace(answer, shares=(bytes([0] * 31 + [1, answer.node]),) * 5)

    answers_of(Lab(), 5, lying).release()


def sum_out_of_range() -> None:
    """A malicious node masks a vector beyond the bound; the sum is caught and nothing is released."""
    lab = Lab()
    aggregator = lab.open(bound=10)
    spec = aggregator.spec
    wide = replace(spec, vectors=(replace(spec.vectors[0], entry_bound=50),))
    uploads = [lab.masked(node, aggregator) for node in range(4)]
    poisoned = {"leaves": np.full(4, 50, np.int64)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hedgerow.secagg.masking.encode", lambda v, length, bound, width: v.astype("<u4"))
        uploads.append(lab.masked(4, aggregator, poisoned))
    assert wide != spec
    aggregator, requests = aggregator.receive(uploads)[0].close_vectors(lab.session.coordinator)
    answers = [lab.answered(node, requests[node]).message or b"" for node in range(5)]
    aggregator.receive(answers)[0].release()


def corrupt_state() -> None:
    Participant.restore(b"not a state", 1)


def rolled_back() -> None:
    lab = Lab()
    Participant.restore(lab.node(0).to_bytes(), lab.node(0).sequence + 1)


def purpose_answered() -> None:
    lab = Lab()
    lab.answered(0, lab.request(lab.collected("tree-1"), 0, (0, 1, 2, 3, 4)))
    lab.masked(0, lab.open("tree-1"))


def slot_reused() -> None:
    lab = Lab()
    first = lab.open()
    lab.masked(0, first)
    lab.masked(0, Aggregator.open(lab.view, lab.session.coordinator, replace(first.spec, purpose="tree-2")))


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
    Code.NONCE_MISMATCH: nonce_mismatch,
    Code.REVEAL_MISSING: reveal_missing,
    Code.DIFFERENT_VIEW: different_view,
    Code.SHARE_UNREADABLE: share_unreadable,
    Code.NOT_ACKNOWLEDGED: not_acknowledged,
    Code.NOT_READY: not_ready,
    Code.OTHER_EPOCH: other_epoch,
    Code.SLOT_REUSED: slot_reused,
    Code.SLOT_OUT_OF_RANGE: with_spec(slot=4),
    Code.PURPOSE_UNEXPECTED: with_spec(purpose="tree-2"),
    Code.PURPOSE_ANSWERED: purpose_answered,
    Code.WIDTH_TOO_NARROW: with_spec(vectors=vector(sum_bound=2**31)),
    Code.SPEC_UNACCEPTABLE: with_spec(vectors=()),
    Code.NOISE_MISMATCH: with_spec(noise=NoiseSpec(NoiseMode.SERVER, Fraction(9))),
    Code.OTHER_SPEC: other_spec,
    Code.HEADER_ALTERED: header_altered,
    Code.SELF_OMITTED: with_manifest(survivors=(1, 2, 3, 4)),
    Code.TOO_FEW_SURVIVORS: with_manifest(survivors=(0, 1, 2)),
    Code.TOO_FEW_NEIGHBOURS: too_few_neighbours,
    Code.SECOND_MANIFEST: second_manifest,
    Code.TOO_FEW_ECHOES: too_few_echoes,
    Code.STOPPED: stopped,
    Code.CONTENT_MISMATCH: content_mismatch,
    Code.LATE_UPLOAD: late_upload,
    Code.NOT_A_SURVIVOR: not_a_survivor,
    Code.OTHER_MANIFEST: other_manifest,
    Code.CONTRADICTION: contradiction,
    Code.CORRUPT_STATE: corrupt_state,
    Code.ROLLED_BACK: rolled_back,
    Code.VECTOR_UNFIT: vector_unfit,
    Code.TOO_FEW_READY: too_few_ready,
    Code.TOO_FEW_UPLOADS: too_few_uploads,
    Code.TOO_FEW_ANSWERS: too_few_answers,
    Code.SECRET_UNRECOVERABLE: secret_unrecoverable,
    Code.SUM_OUT_OF_RANGE: sum_out_of_range,
}


@pytest.mark.parametrize("code", SCENARIOS, ids=str)
def test_is_refused_with_its_own_code(code):
    """Each scenario ends in exactly its code, in the class that says whose doing it was."""
    with pytest.raises((Refusal, OwnMistake, Abandoned)) as raised:
        SCENARIOS[code]()
    assert raised.value.reason is code and raised.value.code == code.value
    expected = {Blame.PEER: Refusal, Blame.SELF: OwnMistake, Blame.NOBODY: Abandoned}[REASONS[code].blame]
    assert type(raised.value) is expected


def test_every_code_has_a_scenario_a_reason_and_a_place():
    """No code without a test, a sentence for people and a row of the table; no row with a code that does not exist."""
    assert set(SCENARIOS) == set(Code) == set(REASONS)
    assert {code for move in TRANSITIONS for code in move.refuses} | set(ANYWHERE) == set(Code)
    assert all(reason.what and reason.cause and reason.remedy for reason in REASONS.values())


