"""Frames: what one side writes to a stream and how the other reads it, checked before it is believed or stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from hedgerow.protocol.wire import hedgerow_pb2 as pb
from hedgerow.protocol.wire.refusals import WireCode, WireRefusal, known

FIRST_VERSION = 1
"""Hello and Refused are written in it for ever."""
VERSIONS = (1,)
"""The wire versions that this release speaks."""
CHUNK_BYTES = 1 << 20
MAX_FRAME_BYTES = CHUNK_BYTES + 4096
DIGEST_BYTES = 32
_MAX_VERSIONS = 16
_MAX_RELEASE_BYTES = 64
_MAX_SITE_BYTES = 200
_MAX_REASON_BYTES = 500


@dataclass(frozen=True, slots=True)
class Hello:
    """What a node says first; hedgerow.proto documents the fields."""

    site: str
    roster_digest: bytes
    plan_digest: bytes = b""
    versions: tuple[int, ...] = VERSIONS
    release: str = ""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The coordinator's answer to a Hello that it accepts."""

    version: int
    max_message_bytes: int
    release: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the other side ends the stream."""

    code: WireCode
    reason: str

    def refusal(self) -> WireRefusal:
        """The same as an error of this side, with what the peer said beyond the code's own sentence."""
        own = WireRefusal(self.code).what
        return WireRefusal(self.code, self.reason.removeprefix(own).strip())


@dataclass(frozen=True, slots=True)
class Ping:
    """A sign of life, asked for or given."""

    token: int
    is_answer: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message of the layer above."""

    data: bytes


Frame = Hello | Welcome | Refused | Ping | Message


def negotiate(offered: Iterable[int], spoken: Iterable[int] = VERSIONS) -> int:
    """The highest wire version that both sides speak; raises WireRefusal VERSION_MISMATCH when there is none."""
    common = set(offered) & set(spoken)
    if not common:
        raise WireRefusal(WireCode.VERSION_MISMATCH)
    return max(common)


class FrameWriter:
    """Numbers and encodes the frames of one direction of one stream."""

    def __init__(self) -> None:
        self.version = FIRST_VERSION
        self._sequence = 0

    def _frame(self, version: int) -> pb.Envelope:
        self._sequence += 1
        return pb.Envelope(version=version, sequence=self._sequence)

    def hello(self, hello: Hello) -> bytes:
        """Returns the frame; always in the first version."""
        frame = self._frame(FIRST_VERSION)
        frame.hello.versions.extend(hello.versions)
        frame.hello.hedgerow_version = hello.release
        frame.hello.site = hello.site
        frame.hello.roster_digest = hello.roster_digest
        frame.hello.plan_digest = hello.plan_digest
        return frame.SerializeToString()

    def welcome(self, welcome: Welcome) -> bytes:
        """Returns the frame; from here on this writer writes the version that was chosen."""
        self.version = welcome.version
        frame = self._frame(self.version)
        frame.welcome.version = welcome.version
        frame.welcome.hedgerow_version = welcome.release
        frame.welcome.max_message_bytes = welcome.max_message_bytes
        return frame.SerializeToString()

    def refused(self, refusal: WireRefusal) -> bytes:
        """Returns the frame; always in the first version."""
        frame = self._frame(FIRST_VERSION)
        frame.refused.code = refusal.wire_code.value
        frame.refused.reason = refusal.what.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
        return frame.SerializeToString()

    def ping(self, ping: Ping) -> bytes:
        """Returns the frame."""
        frame = self._frame(self.version)
        frame.ping.token = ping.token
        frame.ping.is_answer = ping.is_answer
        return frame.SerializeToString()

    def chunks(self, message: bytes) -> Iterator[bytes]:
        """Yields the frames of one message; pings may be written between them."""
        for offset in range(0, max(len(message), 1), CHUNK_BYTES):
            frame = self._frame(self.version)
            frame.chunk.message_bytes = len(message)
            frame.chunk.offset = offset
            frame.chunk.data = message[offset : offset + CHUNK_BYTES]
            yield frame.SerializeToString()


class FrameReader:
    """Reads one direction of one stream. After it has raised, the stream must end.

    Args:
        max_message_bytes: larger messages are refused at their first chunk.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self.version = FIRST_VERSION
        self.max_message_bytes = max_message_bytes
        self._sequence = 0
        self._expected_bytes = 0
        self._parts: list[bytes] = []
        self._received_bytes = 0

    def read(self, raw: bytes) -> Frame | None:
        """Returns what the frame says, or None for a part of a message that is not whole yet; raises WireRefusal."""
        if len(raw) > MAX_FRAME_BYTES:
            raise WireRefusal(WireCode.OVERSIZED)
        try:
            frame = pb.Envelope.FromString(raw)
        except DecodeError:
            raise WireRefusal(WireCode.MALFORMED) from None
        kind = frame.WhichOneof("body")
        if kind is None:
            raise WireRefusal(WireCode.MALFORMED, "It has no body.")
        if kind == "welcome":
            self.version = frame.version
        expected = FIRST_VERSION if kind in ("hello", "refused") else self.version
        if frame.version != expected or frame.version not in VERSIONS:
            raise WireRefusal(WireCode.UNKNOWN_VERSION)
        self._sequence += 1
        if frame.sequence != self._sequence:
            raise WireRefusal(WireCode.OUT_OF_ORDER)
        if kind == "chunk":
            return self._chunk(frame.chunk)
        if kind == "ping":
            return Ping(frame.ping.token, frame.ping.is_answer)
        if kind == "hello":
            return _hello(frame.hello)
        if kind == "welcome":
            return _welcome(frame.welcome, frame.version)
        return Refused(known(frame.refused.code), _shown(frame.refused.reason[:_MAX_REASON_BYTES]))

    def _chunk(self, chunk: pb.Chunk) -> Message | None:
        if chunk.offset == 0 and not self._parts:
            if chunk.message_bytes > self.max_message_bytes:
                raise WireRefusal(WireCode.OVERSIZED)
            self._expected_bytes = chunk.message_bytes
        end = self._received_bytes + len(chunk.data)
        if chunk.offset != self._received_bytes or chunk.message_bytes != self._expected_bytes:
            raise WireRefusal(WireCode.OUT_OF_ORDER, "A chunk is not where the message goes on.")
        if len(chunk.data) != min(CHUNK_BYTES, self._expected_bytes - chunk.offset):
            # Smaller chunks would let a peer make this side store a message as millions of objects.
            raise WireRefusal(WireCode.MALFORMED, "A chunk is not of its one possible size.")
        self._parts.append(chunk.data)
        self._received_bytes = end
        if end < self._expected_bytes:
            return None
        whole = b"".join(self._parts)
        self._parts, self._received_bytes = [], 0
        return Message(whole)


def _hello(hello: pb.Hello) -> Hello:
    fits = (
        1 <= len(hello.versions) <= _MAX_VERSIONS
        and len(hello.hedgerow_version.encode()) <= _MAX_RELEASE_BYTES
        and len(hello.site.encode()) <= _MAX_SITE_BYTES
        and len(hello.roster_digest) == DIGEST_BYTES
        and len(hello.plan_digest) in (0, DIGEST_BYTES)
    )
    if not fits:
        raise WireRefusal(WireCode.MALFORMED, "A field of Hello has a wrong length.")
    return Hello(
        hello.site, hello.roster_digest, hello.plan_digest, tuple(hello.versions), _shown(hello.hedgerow_version)
    )


def _welcome(welcome: pb.Welcome, version: int) -> Welcome:
    fits = welcome.version == version and len(welcome.hedgerow_version.encode()) <= _MAX_RELEASE_BYTES
    if not fits or not welcome.max_message_bytes:
        raise WireRefusal(WireCode.MALFORMED, "A field of Welcome is out of its range.")
    return Welcome(welcome.version, welcome.max_message_bytes, _shown(welcome.hedgerow_version))


def _shown(text: str) -> str:
    """A peer's text without what could drive a terminal."""
    return "".join(character for character in text if character.isprintable())
