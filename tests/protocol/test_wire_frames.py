"""Frames: what one side writes the other reads, and nothing else; the generated code is that of the .proto file."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.protocol.wire import hedgerow_pb2 as pb
from hedgerow.protocol.wire.frames import (
    CHUNK_BYTES,
    MAX_FRAME_BYTES,
    FrameReader,
    FrameWriter,
    Hello,
    Message,
    Ping,
    Refused,
    Welcome,
    negotiate,
)
from hedgerow.protocol.wire.refusals import WireCode, WireRefusal

ROOT = Path(__file__).resolve().parent.parent.parent
PROTO = "hedgerow/protocol/wire/hedgerow.proto"


def test_the_generated_code_is_fresh(tmp_path: Path) -> None:
    """`make proto` would change nothing: who edits the .proto file and forgets that is told here."""
    pytest.importorskip("grpc_tools")
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I",
        ".",
        f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}",
    ]
    subprocess.run([*command, PROTO], cwd=ROOT / "src", check=True)
    for suffix in (".py", ".pyi"):
        name = PROTO.replace(".proto", f"_pb2{suffix}")
        assert (tmp_path / name).read_text() == (ROOT / "src" / name).read_text(), f"{name} is stale: make proto"


def test_every_field_is_documented() -> None:
    """Each line of the .proto file that declares something has a comment above it."""
    lines = (ROOT / "src" / PROTO).read_text().splitlines()
    for above, line in pairwise(lines):
        declares = (line.strip().endswith(";") and " = " in line) or line.startswith(("message", "service"))
        if declares:
            assert above.strip().startswith("//"), line


def test_both_sides_call_the_method_of_the_file() -> None:
    """The service of the .proto file is the one that is served."""
    from hedgerow.transport.grpc_link import METHOD, SERVICE

    service = pb.DESCRIPTOR.services_by_name["Coordinator"]
    assert (service.full_name, [method.name for method in service.methods]) == (SERVICE, [METHOD])


@given(
    offered=st.lists(st.integers(1, 2**32 - 1), min_size=1, max_size=16),
    spoken=st.lists(st.integers(1, 6), min_size=1, max_size=6),
)
def test_negotiation(offered: list[int], spoken: list[int]) -> None:
    """The highest version of both lists, or a refusal when they have none in common."""
    if not set(offered) & set(spoken):
        with pytest.raises(WireRefusal) as error:
            negotiate(offered, spoken)
        assert error.value.wire_code is WireCode.VERSION_MISMATCH
        return
    version = negotiate(offered, spoken)
    assert version in offered and version in spoken
    assert not any(other > version for other in set(offered) & set(spoken))


TEXT = st.text(st.characters(categories=("L", "N", "P")), max_size=16)
BODIES = st.one_of(
    st.builds(Ping, st.integers(0, 2**64 - 1), st.booleans()),
    st.builds(Message, st.binary(max_size=300)),
    st.builds(Welcome, st.just(1), st.integers(1, 2**63), TEXT),
    st.builds(
        Hello, TEXT, st.binary(min_size=32, max_size=32), st.sampled_from([b"", bytes(32)]), st.just((1, 5)), TEXT
    ),
)


@given(bodies=st.lists(BODIES, max_size=8))
def test_what_is_written_is_read(bodies: list[Hello | Welcome | Ping | Message]) -> None:
    """A row of frames of any kind comes back as it was."""
    writer, reader = FrameWriter(), FrameReader(1000)
    for body in bodies:
        if isinstance(body, Message):
            frames = list(writer.chunks(body.data))
        elif isinstance(body, Ping):
            frames = [writer.ping(body)]
        else:
            frames = [writer.hello(body) if isinstance(body, Hello) else writer.welcome(body)]
        assert [reader.read(raw) for raw in frames] == [body]


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_chunks(size: int) -> None:
    """A message of any size goes in frames that fit; signs of life may come between; the last frame completes it."""
    writer, reader = FrameWriter(), FrameReader(4 * CHUNK_BYTES)
    message = bytes(number % 256 for number in range(size))
    results = []
    for raw in writer.chunks(message):
        assert len(raw) <= MAX_FRAME_BYTES
        results.append(reader.read(raw))
        assert reader.read(writer.ping(Ping(3))) == Ping(3)
    assert results == [None] * (len(results) - 1) + [Message(message)]


@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """A reader never fails in a way that has no name."""
    try:
        FrameReader(1000).read(data)
    except WireRefusal:
        return


@given(cut=st.integers(0, 30), where=st.integers(0, 10_000), what=st.integers(1, 255))
def test_an_altered_message_is_not_completed_silently(cut: int, where: int, what: int) -> None:
    """Frames cut short or with a byte changed are refused, or mean a message of the same size: TLS guards its bytes."""
    raw = bytearray(next(FrameWriter().chunks(bytes(50))))
    raw[where % len(raw)] ^= what
    altered = bytes(raw[: len(raw) - cut]) if cut else bytes(raw)
    try:
        frame = FrameReader(1000).read(altered)
    except WireRefusal:
        return
    assert not isinstance(frame, Message) or len(frame.data) in (0, 50)


def test_a_peers_words_cannot_drive_a_terminal() -> None:
    """A refusal is shown to an operator: control characters are left out, unknown codes become a known one."""
    raw = pb.Envelope(
        version=1, sequence=1, refused=pb.Refused(code="\x1b[2J", reason="a\x1b[31mb\nc")
    ).SerializeToString()
    assert FrameReader(1).read(raw) == Refused(WireCode.CLOSED, "a[31mbc")


def test_a_refusal_keeps_its_name_on_the_way() -> None:
    """What one side refuses by, the other reads, for every code."""
    for code in WireCode:
        frame = FrameReader(1).read(FrameWriter().refused(WireRefusal(code, "More.")))
        assert isinstance(frame, Refused) and frame.code is code
        assert frame.refusal().what == WireRefusal(code, "More.").what
