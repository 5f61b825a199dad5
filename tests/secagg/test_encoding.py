"""The canonical encoding: one form for each message, and nothing else is read."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.secagg._primitives.identity import Identity
from hedgerow.secagg.encoding import Kind, Reader, Writer, digest
from hedgerow.secagg.messages import NoiseSpec, RoundSpec, VectorSpec
from hedgerow.secagg.roster import NoiseMode
from hedgerow.secagg.transitions import Code, Refusal

LISTS = st.lists(st.binary(max_size=9), max_size=6)


def written(items, run):
    """A message of a list, a run of strings of four bytes, and two fields of fixed size."""
    writer = Writer(Kind.ECHO).items(items).number(len(run), 2).run(run, 4)
    return writer.fixed(b"abc", 3).number(513, 2).bytes()


def read(data):
    reader = Reader(data, Kind.ECHO)
    found = reader.items(), reader.run(reader.number(2), 4), (reader.fixed(3), reader.number(2))
    reader.end()
    return found


@given(LISTS, st.lists(st.binary(min_size=4, max_size=4), max_size=5))
def test_what_was_written_is_read_and_every_cut_is_refused(items, run):
    """Lists and runs are read in one go: a message that ends within any of them must be refused, not read short."""
    data = written(items, run)
    assert read(data) == (tuple(items), tuple(run), (b"abc", 513))
    for length in range(5, len(data)):
        with pytest.raises(Refusal) as refused:
            read(data[:length])
        assert refused.value.reason is Code.MALFORMED
    with pytest.raises(Refusal):
        read(data + b"\x00")


@pytest.mark.parametrize("count", [2, 3, 255, 65_535])
def test_an_announced_length_beyond_the_message_is_refused(count):
    """Neither a count nor a length that a liar wrote is believed before the bytes are there."""
    body = Writer(Kind.ECHO).bytes()
    for data in (
        body + count.to_bytes(2, "big") + b"\x00\x00\x00\x01x",
        body + b"\x00\x01" + (0xFFFFFF00 + count % 256).to_bytes(4, "big") + b"x",
    ):
        with pytest.raises(Refusal) as refused:
            Reader(data, Kind.ECHO).items()
        assert refused.value.reason is Code.MALFORMED
    with pytest.raises(Refusal):
        Reader(body + bytes(4), Kind.ECHO).run(count, 4)


def test_a_run_of_other_sizes_is_not_written():
    """A string too short or too long would shift every field after it."""
    for wrong in (b"abc", b"abcde"):
        with pytest.raises(ValueError, match="4 bytes"):
            Writer(Kind.ECHO).run([b"abcd", wrong], 4)


def test_parts_of_a_digest_cannot_run_into_one_another():
    """Each part is hashed after its length, so that what is moved from one part to the next changes the digest."""
    assert digest("a", b"bc") == sha256(bytes(7) + b"\x01a" + bytes(7) + b"\x02bc").digest()
    found = {digest("a", b"b", b"c"), digest("a", b"bc"), digest("ab", b"c"), digest("a", b"bc", b""), digest("abc")}
    assert len(found) == 5


def test_a_variance_has_one_form():
    """Two forms of one spec would give it two hashes; 2/4 is refused where 1/2 is meant."""
    noise = NoiseSpec(NoiseMode.SERVER, Fraction(1, 2))
    spec = RoundSpec(bytes(32), 0, "tree-1", bytes(32), (VectorSpec("v", 2, 32, 5, 25),), noise)
    signed = spec.to_signed(Identity(bytes(32)))
    assert RoundSpec.from_signed(signed) == spec
    whole, twice = (b"".join(part.to_bytes(16, "big") for part in parts) for parts in ((1, 2), (2, 4)))
    assert signed.count(whole) == 1
    with pytest.raises(Refusal) as refused:
        RoundSpec.from_signed(signed.replace(whole, twice))
    assert refused.value.reason is Code.MALFORMED


SPEC = RoundSpec(
    b"e" * 32, 3, "tree-1", b"m" * 32,
    (VectorSpec("first", 2, 32, 5, 25), VectorSpec("second", 9, 64, 7, 2**40)),
    NoiseSpec(NoiseMode.DISTRIBUTED, Fraction(2**70 + 1, 3)),
)  # fmt: skip
# Where the fields begin after the five bytes of every message and a purpose of six letters.
MODE = 5 + 36 + 7 + 32


@pytest.mark.parametrize(
    ("at", "field"),
    [
        (MODE, b"\0"),  # Nobody adds noise.
        (MODE, b"\x04"),
        (MODE + 17, bytes(16)),  # A variance of something over nothing.
        (MODE + 1, (6).to_bytes(16, "big") + (3).to_bytes(16, "big")),  # One that is not in lowest terms.
        (MODE + 33, b"\x41"),  # 65 vectors.
        (MODE + 33, b"\x03"),  # One more than there are.
        (MODE + 33, b"\x01"),  # One less.
    ],
)
def test_a_spec_is_read_as_it_was_written_and_its_numbers_only_in_their_ranges(at, field):
    """Its fields are read several at a time, and each still has its range and its place."""
    signed = SPEC.to_signed(Identity(b"c" * 32))
    assert RoundSpec.from_signed(signed) == SPEC
    assert signed[at : at + len(field)] != field
    with pytest.raises(Refusal) as refused:
        RoundSpec.from_signed(signed[:at] + field + signed[at + len(field) :])
    assert (refused.value.reason, refused.value.peer) == (Code.MALFORMED, "coordinator")


def test_a_spec_of_more_vectors_than_there_may_be_is_refused():
    """64 are read; a coordinator that writes 65 of them, all in order, is refused."""
    for count in (64, 65):
        vectors = tuple(VectorSpec(f"v{number}", 2, 32, 5, 25) for number in range(count))
        signed = replace(SPEC, vectors=vectors).to_signed(Identity(b"c" * 32))
        found = read_or_refused(RoundSpec.from_signed, signed)
        assert found == replace(SPEC, vectors=vectors) if count == 64 else found[0] is Code.MALFORMED


def test_a_spec_that_ends_anywhere_before_its_end_is_refused():
    """No field of a group is made up when the message ends within it."""
    signed = SPEC.to_signed(Identity(b"c" * 32))
    body, signature = signed[:-64], signed[-64:]
    for size in range(len(body)):
        with pytest.raises(Refusal):
            RoundSpec.from_signed(body[:size] + signature)


def read_or_refused(read, data: bytes) -> Any:
    try:
        return read(data)
    except Refusal as refused:
        return refused.reason, refused.peer, str(refused)
