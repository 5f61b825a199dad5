"""The messages of secure aggregation: what cannot be read is refused by the room's own codes, and by its sender."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

import hedgerow.secagg
from hedgerow.codec import CodecFault
from hedgerow.crypto import Identity
from hedgerow.secagg.messages import NoiseMode, NoiseSpec, RoundSpec, VectorSpec
from hedgerow.secagg.transitions import Code, Refusal
from tests.wire_document import HASHES, KEYS


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
# Where fields begin: after the five bytes of every message and a purpose of six letters, and before the signature.
COUNT, MODE = 5 + 36 + 7 + 32, -64 - 33


@pytest.mark.parametrize(
    ("at", "field"),
    [
        (MODE, b"\0"),  # Nobody adds noise.
        (MODE, b"\x04"),
        (MODE + 17, bytes(16)),  # A variance of something over nothing.
        (MODE + 1, (6).to_bytes(16, "big") + (3).to_bytes(16, "big")),  # One that is not in lowest terms.
        (COUNT, b"\x41"),  # 65 vectors.
        (COUNT, b"\x03"),  # One more than there are.
        (COUNT, b"\x01"),  # One less.
    ],
)
def test_a_spec_is_read_as_it_was_written_and_its_numbers_only_in_their_ranges(at, field):
    """Its fields are read several at a time, and each still has its range and its place."""
    signed = SPEC.to_signed(Identity(b"c" * 32))
    assert RoundSpec.from_signed(signed) == SPEC
    at %= len(signed)
    assert signed[at : at + len(field)] != field
    with pytest.raises(Refusal) as refused:
        RoundSpec.from_signed(signed[:at] + field + signed[at + len(field) :])
    assert (refused.value.reason, refused.value.peer) == (Code.MALFORMED, "coordinator")


def test_a_spec_of_more_vectors_than_there_may_be_is_refused():
    """64 are read; 65 are not written, and where a coordinator has written them, all in order, they are not read."""
    many = [VectorSpec(f"v{number:02}", 2, 32, 5, 25) for number in range(65)]
    signed = replace(SPEC, vectors=tuple(many[:64])).to_signed(Identity(b"c" * 32))
    assert RoundSpec.from_signed(signed).vectors == tuple(many[:64])
    with pytest.raises(CodecFault):
        replace(SPEC, vectors=tuple(many)).to_signed(Identity(b"c" * 32))
    last: list[bytes] = []
    many[64].write_fields(last)
    longer = signed[:COUNT] + b"\x41" + signed[COUNT + 1 : MODE] + b"".join(last) + signed[MODE:]
    with pytest.raises(Refusal) as refused:
        RoundSpec.from_signed(longer)
    assert refused.value.reason is Code.MALFORMED


def test_a_spec_that_ends_anywhere_before_its_end_is_refused():
    """No field of a group is made up when the message ends within it."""
    signed = SPEC.to_signed(Identity(b"c" * 32))
    body, signature = signed[:-64], signed[-64:]
    for size in range(len(body)):
        with pytest.raises(Refusal):
            RoundSpec.from_signed(body[:size] + signature)


def test_every_domain_is_listed():
    """Two uses of one domain would let one hash pass for another; docs/wire.md prints the list."""
    source = "".join(path.read_text() for path in Path(hedgerow.secagg.__file__).parent.glob("*.py"))
    assert set(re.findall(r'(?:digest|nonce_seed)\("([a-z-]+)"', source)) == set(HASHES)
    assert set(re.findall(r'_context\("([a-z-]+)"', source)) == set(KEYS)
