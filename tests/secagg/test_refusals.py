"""One scenario for every reason code of the transition table: what was done wrong, and the code that refuses it.

The scenarios of a round, here, lie about specs and manifests, those of the set-up (setup_scenarios.py) about lists and
keys; most are what a lying coordinator can do with correctly signed messages of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from hedgerow.errors import entries
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.masks import require_within
from hedgerow.secagg.messages import Answer, EchoCertificate, NoiseMode, NoiseSpec, header_hash, manifest_hash
from hedgerow.secagg.transitions import TRANSITIONS, Code, OwnMistake, Refusal, SumAbandoned, refuse
from tests.secagg import setup_scenarios
from tests.secagg.lab import Lab, complaint_of, echoed, restore_node, store_node, vector, with_manifest, with_spec


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


def release_implausible() -> None:
    """Whoever releases a sum raises it; with sites that lie it is in tests/hostile/test_influence.py."""
    raise refuse(Code.RELEASE_IMPLAUSIBLE, "Round 0.")


def sum_out_of_range() -> None:
    """A malicious node masks a vector beyond the bound; the sum is opened, and found out where it is released."""
    lab = Lab()
    aggregator = lab.open(bound=10)
    spec = aggregator.spec
    uploads = [lab.masked(node, aggregator) for node in range(4)]
    poisoned = {"leaves": np.full(4, 50, np.int64)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hedgerow.secagg.masks.encode_vector", lambda v, length, bound, width: v.astype("<u4"))
        uploads.append(lab.masked(4, aggregator, poisoned))
    aggregator, requests = aggregator.receive(uploads)[0].close_vectors(lab.session.coordinator)
    answers = [lab.answered(node, requests[node]).message or b"" for node in range(5)]
    _, opened = aggregator.receive(answers)[0].release()
    require_within(opened.sums["leaves"], spec.vectors[0].sum_bound)


def corrupt_state() -> None:
    restore_node(b"not a state", 1)


def rolled_back() -> None:
    lab = Lab()
    restore_node(store_node(lab.node(0)), lab.node(0).sequence + 1)


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
    **setup_scenarios.SCENARIOS,
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
    Code.TOO_FEW_UPLOADS: too_few_uploads,
    Code.TOO_FEW_ANSWERS: too_few_answers,
    Code.SECRET_UNRECOVERABLE: secret_unrecoverable,
    Code.SUM_OUT_OF_RANGE: sum_out_of_range,
    Code.RELEASE_IMPLAUSIBLE: release_implausible,
}


@pytest.mark.parametrize("code", SCENARIOS, ids=str)
def test_is_refused_with_its_own_code(code):
    """Each scenario ends in exactly its code, in the class that says whose doing it was."""
    with pytest.raises((Refusal, OwnMistake, SumAbandoned)) as raised:
        SCENARIOS[code]()
    assert raised.value.reason is code and raised.value.code == code.value
    assert code.value in entries()[type(raised.value).__name__]


def test_every_code_has_a_scenario_a_reason_and_a_place():
    """No code without a test, a sentence for people and a row of the table; no row with a code that does not exist."""
    assert set(SCENARIOS) == set(Code)
    # A message for a closed collection, a state that is not loaded, and a sum found to be too large, or no sum over
    # records, when it has its noise.
    of_sums = {Code.SUM_OUT_OF_RANGE, Code.RELEASE_IMPLAUSIBLE}
    of_no_row = {Code.LATE_UPLOAD, Code.CORRUPT_STATE, Code.ROLLED_BACK} | of_sums
    assert {code for move in TRANSITIONS for code in move.refuses} | of_no_row == set(Code)
    kinds = [entries()[kind.__name__] for kind in (Refusal, OwnMistake, SumAbandoned)]
    sentences = {name: row for rows in kinds for name, row in rows.items()}
    assert set(sentences) == set(Code)
    assert all(set(row) == {"what", "cause", "remedy"} for row in sentences.values())
