"""The codec: one encoding of every message of every room, nothing else is read, and the page that says so is fresh."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hedgerow.codec import (
    HEAD_BYTES,
    MAGIC,
    U16,
    VERSION,
    Blob,
    BlobByNode,
    Blobs,
    CodecFault,
    CodeWord,
    Dictionary,
    Encoded,
    Fixed,
    Flag,
    Flaw,
    Form,
    Hash,
    Integers,
    IntVector,
    Line,
    Many,
    Maybe,
    Member,
    Nested,
    NodeList,
    Nodes,
    Ratio,
    Real,
    Record,
    Shown,
    Text,
    Unsigned,
    Word,
    YesNo,
    digest,
    head,
    layout,
    with_hash,
    without_hash,
)
from hedgerow.secagg.messages import Answer, Kind, Roster, SignedList, Site
from hedgerow.secagg.transitions import Refusal
from tests.wire_document import ROOMS, kinds_of, render

REFUSED = (CodecFault, Refusal)
"""Secure aggregation has names of its own for what is wrong with its messages."""
ENCODED = [record for room in ROOMS for record in room.records if issubclass(record, Encoded)]


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True, slots=True)
class Point(Record):
    x: U16
    y: U16


@dataclass(frozen=True, slots=True, eq=False)
class Everything(Encoded):
    """A message with a field of every form."""

    KIND = 250
    number: Annotated[int, Unsigned(2, least=3, most=700)]
    real: Annotated[float, Real(least=0.0, most=1e9)]
    hash: Hash
    blob: Annotated[bytes, Blob(most=40)]
    line: Line
    shown: Shown
    word: CodeWord
    colour: Annotated[Colour, Member(Colour)]
    flag: YesNo
    maybe: Annotated[bytes, Maybe(Fixed(4), none=b"")]
    ratio: Annotated[Fraction, Ratio(3)]
    nodes: Nodes
    blobs: Blobs
    keys: Annotated[tuple[bytes, ...], Many(Fixed(4), least=1)]
    points: Annotated[tuple[Point, ...], Many(Nested(Point), size=1, most=3)]
    by_node: BlobByNode
    integers: Annotated[IntVector, Integers(most=50)]
    point: Point


NODES = st.lists(st.integers(0, 65_535), unique=True, max_size=5).map(lambda nodes: tuple(sorted(nodes)))


def values_of(form: Form) -> st.SearchStrategy[Any]:
    """Values that a field of this form may have."""
    match form:
        case Unsigned():
            return st.integers(form.least, 256**form.size - 1 if form.most is None else form.most)
        case Real():
            bounds = [None if math.isinf(bound) else bound for bound in (form.least, form.most)]
            return st.floats(*bounds, allow_nan=False)
        case Fixed():
            return st.binary(min_size=form.size, max_size=form.size)
        case Blob():
            return st.binary(max_size=min(form.most, 40))
        case Text():
            return st.text(max_size=form.most // 4).filter(lambda text: text.isprintable() or not form.is_shown)
        case Word():
            return st.from_regex(rf"[a-z0-9-]{{{form.least},64}}", fullmatch=True)
        case Member():
            return st.sampled_from(list(form.members))
        case Flag():
            return st.booleans()
        case Maybe():
            return st.just(form.none) | values_of(form.form)
        case Ratio():
            return st.builds(Fraction, st.integers(0, 256**form.size - 1), st.integers(1, 99)).filter(
                lambda value: value.numerator < 256**form.size
            )
        case NodeList():
            return NODES
        case Many():
            most = min(form.most or 4, 4)
            return st.lists(values_of(form.form), min_size=form.least, max_size=max(most, form.least)).map(tuple)
        case Dictionary():
            return st.dictionaries(values_of(form.keys), values_of(form.values), max_size=4)
        case Integers():
            bits = st.sampled_from([0, 7, 8, 15, 31, 62, 63])
            entries = bits.flatmap(
                lambda width: arrays.arrays(
                    np.int64, st.integers(0, min(form.most, 20)), elements=st.integers(-(2**width), 2**width - 1)
                )
            )
            return entries
        case Nested():
            return records_of(form.record)
    raise AssertionError(form)


def records_of(record: type[Record]) -> st.SearchStrategy[Any]:
    """Records that may be written."""
    fields = {name: values_of(form) for name, form in layout(record)}
    if record is Roster:
        sites = st.builds(Site, st.text(max_size=9), st.integers(10, 255).map(lambda n: bytes([n] * 32)))
        apart = (lambda site: site.name, lambda site: site.key)
        fields["coordinator"] = st.just(bytes([9] * 32))
        fields["sites"] = st.lists(sites, min_size=1, max_size=5, unique_by=apart).map(tuple)
    return st.builds(record, **fields).map(fitting).filter(is_writable)


PAIRS = (("holders", "sealed"), ("senders", "sealed"), ("survivors", "headers"), ("nodes", "signatures"))


def fitting(record: Any) -> Any:
    """The record, with the fields brought together that only go together."""
    names = {name for name, _ in layout(type(record))}
    if "releases" in names:
        total = "round" if "round" in names else "n_releases"
        return replace(record, **{total: max(getattr(record, total), len(record.releases))})
    for pair in PAIRS:
        if set(pair) <= names:
            count = min(len(getattr(record, name)) for name in pair)
            return replace(record, **{name: getattr(record, name)[:count] for name in pair})
    if isinstance(record, Answer):
        return replace(record, kinds=(0, *range(1, 3))[: 1 + min(2, len(record.shares))], shares=record.shares[:2])
    return replace(record, kind=Kind.KEY_LIST) if isinstance(record, SignedList) else record


def is_writable(record: Any) -> bool:
    try:
        record.check()
    except CodecFault:
        return False
    return True


MESSAGES = st.sampled_from([Everything, *ENCODED]).flatmap(records_of)


def same(one: Any, other: Any) -> bool:
    """Whether two values of a field are equal, arrays and lists of them included."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Record) and layout(type(one)):
        return all(same(getattr(one, name), getattr(other, name)) for name, _ in layout(type(one)))
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


@given(MESSAGES)
def test_every_message_is_read_back_as_it_was_written(message: Any) -> None:
    """The two ends must not differ by a bit in what was said."""
    data = message.to_bytes()
    found = type(message).from_bytes(data)
    assert same(found, message) and found.to_bytes() == data
    assert data[: HEAD_BYTES - 1] == MAGIC + bytes((VERSION,)) and data[HEAD_BYTES - 1] == head(data[4])[4]


@given(MESSAGES, st.data())
def test_what_is_cut_or_lengthened_is_refused(message: Any, data: st.DataObject) -> None:
    """A stream that broke, or bytes smuggled in behind a message, must not pass for a message."""
    whole = message.to_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    for spoiled in (whole[:cut], whole + data.draw(st.binary(min_size=1, max_size=9))):
        with pytest.raises(REFUSED):
            type(message).from_bytes(spoiled)


@given(MESSAGES, st.data())
def test_a_changed_byte_gives_another_message_or_a_refusal(message: Any, data: st.DataObject) -> None:
    """There is one encoding of each message: what is read at all is written as the same bytes again."""
    spoiled = bytearray(message.to_bytes())
    spoiled[data.draw(st.integers(0, len(spoiled) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        other = type(message).from_bytes(bytes(spoiled))
    except REFUSED:
        return
    assert other.to_bytes() == bytes(spoiled)


@given(st.sampled_from([Everything, *ENCODED]), st.binary(max_size=300))
def test_garbage_is_refused_by_one_error(record: type[Encoded], tail: bytes) -> None:
    """Whatever a stranger sends, no other exception comes out, and what is taken has that one encoding."""
    for kind in kinds_of(record) or [250]:
        for garbage in (tail, head(kind) + tail):
            try:
                assert record.from_bytes(garbage).to_bytes() == garbage
            except REFUSED:
                continue


GOOD = Everything(
    5, 1.5, bytes(32), b"blob", "a line", "shown", "a-word", Colour.RED, True, b"four", Fraction(1, 2), (1, 2),
    (b"x", b""), (b"abcd",), (Point(1, 2),), {3: b"three"}, np.array([-1, 300]), Point(7, 8),
)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"number": 2}, {"number": 701}, {"number": -1}, {"real": math.nan}, {"real": math.inf}, {"real": -1.0},
        {"hash": bytes(31)}, {"blob": bytes(41)}, {"line": "x" * 201},
        {"shown": "\x1b[1m"}, {"word": ""}, {"word": "A"}, {"word": "a" * 65},
        {"maybe": b"five5"}, {"ratio": Fraction(1, 2**24)}, {"nodes": (2, 2)}, {"nodes": (2, 1)}, {"keys": ()},
        {"keys": (b"abc",)}, {"points": (Point(1, 2),) * 4}, {"integers": np.zeros(51, np.int64)},
        {"point": Point(1, 65_536)},
    ],
)  # fmt: skip
def test_what_no_reader_takes_is_not_written(change: dict[str, Any]) -> None:
    """A message that a peer refuses as malformed should fail where it was made."""
    assert GOOD.to_bytes()
    with pytest.raises((CodecFault, OverflowError)):
        replace(GOOD, **change).to_bytes()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\x00\x00\x00\x04blob", b"\xff\xff\xff\xffblob"),  # A length that is not there.
        (b"\x00\x02\x00\x01\x00\x02", b"\xff\xff\x00\x01\x00\x02"),  # So many nodes are not there.
        (b"\x00\x01abcd", b"\xff\xffabcd"),  # Nor so many keys,
        (b"\x00\x02\x00\x00\x00\x01x", b"\xff\xff\x00\x00\x00\x01x"),  # blobs,
        (b"\x00\x00\x00\x02\x02", b"\x00\x00\x00\x32\x02"),  # or integers.
        (b"\x00\x00\x00\x02\x02", b"\x00\x00\x00\x02\x03"),  # Integers wider than they are.
        (b"\x00\x00\x01\x00\x00\x02", b"\x00\x00\x02\x00\x00\x04"),  # 2/4 for 1/2.
        (b"\x03red", b"\x03rod"),  # No such colour.
        (b"\x01\x01four", b"\x02\x01four"),  # Neither yes nor no.
        (b"\x06a line", b"\x06a lin\xff"),  # No UTF-8.
        (b"\x05shown", b"\x05sh\x1bwn"),  # It would drive a terminal.
    ],
)
def test_another_form_of_a_field_is_refused(before: bytes, after: bytes) -> None:
    """Neither a length that a liar wrote nor a second form of a value is taken."""
    data = GOOD.to_bytes()
    assert data.count(before) == 1
    with pytest.raises(CodecFault):
        Everything.from_bytes(data.replace(before, after))


def test_nodes_out_of_order_and_other_versions_have_their_names() -> None:
    """The rooms above tell these from other faults."""
    data = GOOD.to_bytes()
    for spoiled, flaw in (
        (data.replace(b"\x00\x02\x00\x01\x00\x02", b"\x00\x02\x00\x02\x00\x02"), Flaw.DISORDERED),
        (data[:3] + bytes((VERSION + 1,)) + data[4:], Flaw.UNKNOWN_VERSION),
        (b"HSA" + data[3:], Flaw.MALFORMED),
        (data[:4] + b"\x01" + data[5:], Flaw.MALFORMED),
    ):
        with pytest.raises(CodecFault) as caught:
            Everything.from_bytes(spoiled)
        assert caught.value.flaw is flaw


def test_a_vector_takes_as_few_bytes_as_its_widest_number() -> None:
    """A run's traffic is mostly integers."""
    for number, width in ((0, 1), (-128, 1), (128, 2), (-(2**23), 3), (2**63 - 1, 8), (-(2**63), 8)):
        into: list[bytes] = []
        Integers(most=1000).write(np.full(1000, number, dtype=np.int64), into)
        assert len(b"".join(into)) == 5 + 1000 * width


@given(st.binary(max_size=60), st.data())
def test_a_stored_state_that_is_torn_is_told(body: bytes, data: st.DataObject) -> None:
    """Its hash stands after it."""
    whole = with_hash(body)
    assert without_hash(whole) == body
    at = data.draw(st.integers(0, len(whole) - 1))
    for spoiled in (whole[:at], whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :]):
        assume(spoiled != whole)
        with pytest.raises(CodecFault):
            without_hash(spoiled)


def test_parts_of_a_digest_cannot_run_into_one_another() -> None:
    """Each part is hashed after its length, so that what is moved from one part to the next changes the digest."""
    assert digest("a", b"bc") == sha256(bytes(7) + b"\x01a" + bytes(7) + b"\x02bc").digest()
    found = {digest("a", b"b", b"c"), digest("a", b"bc"), digest("ab", b"c"), digest("a", b"bc", b""), digest("abc")}
    assert len(found) == 5


def test_no_two_messages_have_one_kind() -> None:
    """All rooms share one space of kinds: no message can be taken for one of another room."""
    kinds = [kind for record in ENCODED for kind in kinds_of(record)]
    assert len(set(kinds)) == len(kinds) and all(0 < kind < 250 for kind in kinds)


def test_the_page_is_fresh() -> None:
    """Run ``python -m experiments wire_document > docs/wire.md``."""
    page = Path(__file__).parent.parent / "docs" / "wire.md"
    assert page.read_text(encoding="utf-8") == render()
