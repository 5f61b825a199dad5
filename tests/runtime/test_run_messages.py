"""A run's messages: one encoding each, and nothing else is accepted, however long somebody tries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hedgerow.codec import MAGIC, VERSION
from hedgerow.errors import RemoteProtocolError
from hedgerow.protocol.messages import (
    PAYLOADS,
    SCRIPT,
    Abandoned,
    Done,
    EvaluationInvitation,
    Finished,
    Hello,
    Invitation,
    Message,
    MessageKind,
    NodeState,
    Payload,
    Ready,
    Refused,
    RoundRequest,
    RunState,
    Salvaged,
    Stop,
    Welcome,
    decode,
    encode,
    is_expected,
    message_kind,
    require_expected,
)

if TYPE_CHECKING:
    from conftest import Builder

HASHES = st.binary(min_size=32, max_size=32)
CODES = st.from_regex(r"[a-z0-9-]{1,64}", fullmatch=True)
VECTORS = st.one_of(
    *(
        arrays.arrays(np.int64, st.integers(0, 20), elements=st.integers(-(2**bits), 2**bits - 1))
        for bits in (0, 7, 8, 15, 31, 62, 63)
    )
)
RELEASES = st.lists(VECTORS, max_size=4).map(tuple)
REALS = st.floats(allow_nan=False)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Hello, st.integers(0, 2**64 - 1), HASHES, HASHES, st.integers(0, 65536)),
    st.builds(Welcome, st.integers(0, 2**64 - 1)),
    st.builds(Invitation, HASHES, st.binary(max_size=200)),
    st.builds(
        EvaluationInvitation,
        HASHES,
        st.binary(max_size=99),
        st.binary(max_size=99),
        REALS,
        REALS,
        st.integers(0, 2**32 - 1),
        CODES,
    ),
    st.builds(Ready, HASHES, HASHES),
    st.builds(Payload, st.sampled_from(sorted(PAYLOADS)), st.binary(max_size=200)),
    RELEASES.flatmap(lambda r: st.builds(RoundRequest, st.integers(len(r), 65536), st.just(r), st.binary(max_size=99))),
    RELEASES.flatmap(lambda r: st.builds(Finished, st.integers(len(r), 65536), st.just(r), HASHES)),
    RELEASES.flatmap(
        lambda r: st.builds(Salvaged, st.integers(len(r), 65536), st.just(r), HASHES, st.integers(0, 2**63 - 1), CODES)
    ),
    st.builds(Abandoned, st.integers(0, 2**32 - 1), CODES),
    st.builds(Refused, st.integers(0, 2**32 - 1), CODES),
    st.builds(Stop, CODES),
    st.builds(Done, HASHES),
)


@given(MESSAGES)
def test_every_message_is_read_back_as_it_was_written(message: Message) -> None:
    """The two ends must not differ by a bit in what was said, releases with their signs and widths included."""
    data = encode(message)
    assert message_kind(decode(data)) is message_kind(message)
    assert encode(decode(data)) == data
    if isinstance(message, RoundRequest | Finished | Salvaged):
        copy = decode(data)
        assert isinstance(copy, RoundRequest | Finished | Salvaged)
        assert all(map(np.array_equal, copy.releases, message.releases))
    else:
        assert decode(data) == message


@given(MESSAGES, st.data())
def test_cut_or_lengthened_messages_are_refused(message: Message, data: st.DataObject) -> None:
    """A stream that broke, or bytes smuggled in behind a message, must not pass for a message."""
    whole = encode(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for spoiled in (whole[:cut], whole + data.draw(st.binary(min_size=1, max_size=9))):
        with pytest.raises(RemoteProtocolError):
            decode(spoiled)


@given(MESSAGES, st.data())
def test_a_changed_byte_gives_another_message_or_a_refusal(message: Message, data: st.DataObject) -> None:
    """There is one encoding of each message: what decodes at all encodes to the same bytes again."""
    spoiled = bytearray(encode(message))
    spoiled[data.draw(st.integers(0, len(spoiled) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        other = decode(bytes(spoiled))
    except RemoteProtocolError:
        return
    assert encode(other) == bytes(spoiled)


@given(st.binary(max_size=300), st.integers(0, 40))
def test_garbage_is_refused_by_the_error_that_names_it(tail: bytes, kind: int) -> None:
    """Whatever a stranger sends, the reader answers with its own error and allocates nothing for announced lengths."""
    for garbage in (tail, MAGIC + bytes((VERSION, kind)) + tail):
        try:
            assert encode(decode(garbage)) == garbage
        except RemoteProtocolError as refusal:
            assert refusal.code in {"malformed-message", "unknown-version"}


def test_another_version_is_named() -> None:
    """An operator is told to compare versions, not that bytes are broken."""
    data = bytearray(encode(Hello(1)))
    data[3] = VERSION + 1
    with pytest.raises(RemoteProtocolError) as caught:
        decode(bytes(data))
    assert caught.value.code == "unknown-version"


def test_a_release_takes_as_few_bytes_as_its_largest_number() -> None:
    """A run's traffic is mostly releases: 1,000 numbers of three bytes travel as 3,000 bytes and a little."""
    release = np.full(1000, -(2**23), dtype=np.int64)
    assert len(encode(RoundRequest(1, (release,), b""))) <= 3030


@pytest.mark.parametrize("kind", sorted(MessageKind))
def test_the_script_has_a_place_for_every_message(kind: MessageKind) -> None:
    """A message that nobody ever expects is a mistake in the table; so is one that both sides expect."""
    sides = {type(state) for cue in SCRIPT if cue.kind is kind for state in cue.states}
    assert len(sides) == 1
    assert sides == ({NodeState} if kind < MessageKind.HELLO else {RunState})


@pytest.mark.parametrize("state", [*NodeState, *RunState])
@pytest.mark.parametrize("kind", sorted(MessageKind))
def test_what_is_not_in_the_script_is_refused(state: NodeState | RunState, kind: MessageKind) -> None:
    """The table is the only thing that decides what may come when."""
    if is_expected(state, kind):
        require_expected(state, kind)
        return
    with pytest.raises(RemoteProtocolError) as caught:
        require_expected(state, kind)
    assert caught.value.code == "out-of-order"


def test_a_node_of_one_message_takes_its_result_a_second_time_in_silence(federate: Builder) -> None:
    """The coordinator may send it twice, to a site that was ready again as the run ended: it breaks no protocol."""
    federation = federate(3)
    federation.run()
    party = federation.parties["site-0"]
    assert party.session is not None and party.session.state is NodeState.FINISHED
    (last,) = [data for site, data in federation.sent if site == "site-0" and isinstance(decode(data), Finished)]
    pending = party.session.pending_state()
    party.restart()
    party.session.restore_pending(pending)
    assert party.session.receive(last) == [] and party.session.failure is None
    assert party.session.pending_state() == pending
    # Over a new connection it is outside any run again.
    party.restart()
    assert party.session.connect() and party.session.state is NodeState.OUTSIDE
