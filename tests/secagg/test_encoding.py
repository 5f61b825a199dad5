"""The canonical encoding: one form for each message, and nothing else is read."""

from __future__ import annotations

import struct
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.secagg._primitives.identity import Identity
from hedgerow.secagg.encoding import Kind, Reader, Writer, digest, framed
from hedgerow.secagg.refusals import Refusal
from hedgerow.secagg.roster import NoiseMode
from hedgerow.secagg.round_messages import NoiseSpec, RoundSpec, VectorSpec
from hedgerow.secagg.transitions import Code

LISTS = st.lists(st.binary(max_size=9), max_size=6)
LAYOUT = struct.Struct(">3sH")


def written(items, run):
    """A message of a list, a run of strings of four bytes, and two fields of fixed size."""
    writer = Writer(Kind.ECHO).items(items).number(len(run), 2).run(run, 4)
    return writer.fixed(b"abc", 3).number(513, 2).bytes()


def read(data):
    reader = Reader(data, Kind.ECHO)
    found = reader.items(), reader.run(reader.number(2), 4), reader.unpack(LAYOUT)
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
    assert framed("a", b"bc") == bytes(7) + b"\x01a" + bytes(7) + b"\x02bc"
    found = {digest("a", b"b", b"c"), digest("a", b"bc"), digest("ab", b"c"), digest("a", b"bc", b""), digest("abc")}
    assert len(found) == 5


def test_a_variance_has_one_form_however_often_it_comes():
    """Two forms of one spec would give it two hashes; that 2/4 is 1/2 is remembered, and refused each time."""
    noise = NoiseSpec(NoiseMode.SERVER, Fraction(1, 2))
    spec = RoundSpec(bytes(32), 0, "tree-1", bytes(32), (VectorSpec("v", 2, 32, 5, 25),), noise)
    signed = spec.to_signed(Identity(bytes(32)))
    assert RoundSpec.from_signed(signed) == spec
    whole, twice = (b"".join(part.to_bytes(16, "big") for part in parts) for parts in ((1, 2), (2, 4)))
    assert signed.count(whole) == 1
    for _ in range(2):
        with pytest.raises(Refusal) as refused:
            RoundSpec.from_signed(signed.replace(whole, twice))
        assert refused.value.reason is Code.MALFORMED
