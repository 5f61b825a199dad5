"""Enrolment over real sockets: whoever has the network can break the connection, and nothing else."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hedgerow.app import join
from hedgerow.codec import Encoded
from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.protocol.stream import Farewell, Standing
from hedgerow.study import Notebook
from hedgerow.transport.grpc_hub import StudyServer
from hedgerow.transport.grpc_link import GrpcUplink, LinkSettings, ask
from hedgerow.transport.identities import PrivateIdentity, PublicIdentity, Role, build_roster, new_identity, read_roster
from hedgerow.transport.interface import Address, Disconnected

if TYPE_CHECKING:
    from conftest import Study

DIRECT = LinkSettings(http_proxy=False)
Changed = Callable[[bytes], bytes]


class Network:
    """Somebody who has the network: sees every byte between two ends, and may change those of the one who dials."""

    def __init__(self, port: int, change: Changed = bytes) -> None:
        self._target, self._change = port, change
        self.seen = bytearray()
        self._open = set[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with near, far:
            self._open |= {near, far}
            while True:
                for side in select.select([near, far], [], [])[0]:
                    try:
                        data = side.recv(1 << 16)
                        self.seen += data
                        (far if side is near else near).sendall(self._change(data) if side is near else data)
                    except OSError:
                        return
                    if not data:
                        return

    def cut(self) -> None:
        """End every connection that there is now; later ones go through."""
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def server(study: Study) -> Iterator[StudyServer]:
    def answer(message: bytes) -> bytes:
        return study.answer(message).to_bytes()

    with closing(StudyServer(study.identity, Address(), 3, answer)) as serving:
        yield serving


class Answer(Encoded):
    """Bytes that a coordinator has sent."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def to_bytes(self) -> bytes:
        return self._raw


def over(address: str, pinned: PublicIdentity) -> Callable[[bytes], Encoded]:
    """What answers a party that dials this address."""
    return lambda message: Answer(ask(address, pinned, message, settings=DIRECT))


def test_who_listens_in_learns_neither_keys_nor_words(study: Study, server: StudyServer) -> None:
    """A party enrols through somebody who sees every byte: nothing of what was said is among them."""
    party = study.party("north")
    with closing(Network(server.port)) as network:
        words = party.enrol(over(network.address, study.identity.public))
    assert words == study.words("north")
    own = party.identity.public
    for said in (own.identity_key, own.proof, party.notes.read("nonce"), study.guest("north").challenge, b"north"):
        assert said and said not in network.seen
    assert len(network.seen) > 1000


class CutAt:
    """A coordinator whose network is cut once: at this message, before it is answered or on the answer's way.

    Or the coordinator "ends" there, for instance because its disk is full.
    """

    def __init__(self, study: Study, number: int, moment: str) -> None:
        self._study, self._number, self._moment = study, number, moment
        self.n_messages = 0
        self.network: Network | None = None

    def __call__(self, message: bytes) -> bytes:
        self.n_messages += 1
        is_it = self.n_messages == self._number and self.network is not None
        if is_it and self._moment == "before":
            assert self.network is not None
            self.network.cut()
            return b""
        if is_it and self._moment == "ends":
            return Farewell.from_refusal(WireRefusal(WireCode.CLOSED)).to_bytes()
        answer = self._study.answer(message).to_bytes()
        guest = self._study.guest("north")
        if guest.party is not None and not guest.is_confirmed:
            # The operator, who reads what the site shows.
            self._study.book.confirm("north", guest.words(self._study.identity.public), self._study.identity.public)
            self._study.book.close_roster(self._study.identity.public)
        if is_it:
            assert self.network is not None
            self.network.cut()
        return answer


@pytest.mark.parametrize("moment", ["before", "after", "ends"])
def test_a_network_that_is_cut_at_any_message_costs_a_try(
    new_study: Callable[..., Study], tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends go on to the roster, whichever message was lost. At the last one the site took itself for enrolled, and
    the coordinator, which had not heard of it, waited for ever.
    """
    monkeypatch.setattr(join, "_SECONDS_BETWEEN_QUESTIONS", 0.01)
    monkeypatch.setattr(join, "_compare", lambda *_: None)
    monkeypatch.setenv("no_grpc_proxy", "127.0.0.1")
    # A knock, an opening, and three questions.
    for number in range(1, 6):
        study = new_study(f"study-{number}", "north")
        cut = CutAt(study, number, moment)
        with closing(StudyServer(study.identity, Address(), 3, cut)) as serving:
            with closing(Network(serving.port)) as network:
                cut.network = network
                invitation = replace(study.invitations["north"], address=network.address)
                study.book.invite(invitation)
                folder = tmp_path / f"site-{number}"
                folder.mkdir()
                identity = join._make_identity(folder, invitation)
                with closing(Notebook(folder / "enrolment.db")) as notes:
                    typed = join.JoinOptions(
                        invitation="north.toml", folder=str(folder), max_rows="5000", connect=invitation.address,
                        expect="north", yes=True,
                    )  # fmt: skip
                    join._enrol(typed, invitation, folder, identity, notes)
        assert study.guest("north").has_all and cut.n_messages > number
        assert read_roster(folder / "roster.toml") == study.book.roster


def test_another_coordinator_is_refused_by_name(study: Study) -> None:
    """Who answers in the coordinator's place, with keys of its own, is told nothing."""
    false = new_identity("coordinator", Role.COORDINATOR, os.urandom(32))
    heard = list[bytes]()

    def answer(message: bytes) -> bytes:
        heard.append(message)
        return Standing().to_bytes()

    with closing(StudyServer(false, Address(), 3, answer)) as serving:
        with pytest.raises(WireRefusal) as refused:
            study.party("north").enrol(over(f"127.0.0.1:{serving.port}", study.identity.public))
    assert refused.value.code == "wrong-coordinator" and not heard


def test_bytes_that_are_changed_break_the_connection(study: Study, server: StudyServer) -> None:
    """Nothing of a changed message arrives, and the party can try again."""

    def change(data: bytes) -> bytes:
        # Behind the handshake's first record, whatever it is.
        return data[:-20] + bytes(byte ^ 1 for byte in data[-20:]) if len(data) < 400 else data

    party = study.party("north")
    with closing(Network(server.port, change)) as network, pytest.raises(WireRefusal) as refused:
        party.enrol(over(network.address, study.identity.public))
    assert not refused.value.is_final and not study.guest("north").commitment
    direct = over(f"127.0.0.1:{server.port}", study.identity.public)
    assert party.enrol(direct) == study.words("north")


def test_a_message_that_is_too_long_is_refused(study: Study, server: StudyServer) -> None:
    """A stranger cannot fill the coordinator's memory."""
    with pytest.raises(WireRefusal) as refused:
        ask(f"127.0.0.1:{server.port}", study.identity.public, bytes(1 << 20), settings=DIRECT)
    assert refused.value.code == "oversized"


def test_what_is_no_message_is_answered_by_a_refusal(study: Study, server: StudyServer) -> None:
    """Whatever a stranger sends, the coordinator goes on."""
    for raw in (b"", b"HRW", b"\xff" * 40):
        answer = ask(f"127.0.0.1:{server.port}", study.identity.public, raw, settings=DIRECT)
        assert Farewell.from_bytes(answer).code == "malformed"


def test_a_node_that_comes_before_the_run_is_told_to_come_again(study: Study, server: StudyServer) -> None:
    """A site that has the roster before the others waits; it does not take the coordinator for another version."""
    site: PrivateIdentity = study.party("north").identity
    roster = build_roster(study.identity.public, [site.public])
    with closing(GrpcUplink(f"127.0.0.1:{server.port}", site, roster, lambda: 0.5, settings=DIRECT)) as uplink:
        event = uplink.receive(300)
    assert event == Disconnected("closed", False)
