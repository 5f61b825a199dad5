"""A study's two ends without a network: what a message is, and who answers it, is up to the test."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hedgerow.codec import Encoded
from hedgerow.protocol.stream import Standing, read_first
from hedgerow.study import Applicant, Guest, Notebook, Reception, StudyBook, StudyInvitation, WordInputs, new_secret
from hedgerow.transport.identities import PrivateIdentity, Role, new_identity

PLAN = "version = 1"
POLICY = "max_epsilon = 1"


class Party:
    """An invited party: its invitation, its keys, and what it remembers. `again` is the same after a restart."""

    def __init__(
        self,
        invitation: StudyInvitation,
        place: Path,
        identity: PrivateIdentity | None = None,
        befalls: Callable[[Notebook], None] = lambda notes: None,
        max_rows: int = 0,
    ) -> None:
        self.invitation, self._place = invitation, place
        self.identity = identity or new_identity(invitation.party, invitation.role, os.urandom(32))
        self.notes = Notebook(place)
        befalls(self.notes)
        ends = WordInputs(invitation.digest(), invitation.secret, invitation.coordinator, self.identity.public)
        self.end = Applicant(ends, self.identity, self.notes, os.urandom, max_rows)

    def again(self) -> Party:
        return Party(self.invitation, self._place, self.identity)

    def enrol(self, answer: Callable[[bytes], Encoded]) -> str:
        """The words, once the coordinator, or whoever answers, has said what it has to."""
        opening = self.end.opening(answer(self.end.knock().to_bytes()).to_bytes())
        read_first(Standing, answer(opening.to_bytes()).to_bytes())
        return self.end.words

    def ask(self, answer: Callable[[bytes], Encoded]) -> None:
        """One question, and what becomes of it."""
        self.end.take(answer(self.end.asking().to_bytes()).to_bytes())


class Study:
    """A coordinator's end with invitations for some sites."""

    def __init__(self, folder: Path, *sites: str) -> None:
        self.folder = folder
        folder.mkdir()
        self.identity = new_identity("coordinator", Role.COORDINATOR, os.urandom(32))
        self.book = StudyBook.create(folder, {"name": "wards"})
        self.reception = Reception(self.identity.public, self.book, os.urandom)
        self.invitations = {site: self.invite(site) for site in sites}

    @property
    def answer(self) -> Callable[[bytes], Encoded]:
        return self.reception.answer

    def invite(self, name: str, role: Role = Role.SITE) -> StudyInvitation:
        invitation = StudyInvitation(
            "wards", name, role, self.identity.public, "127.0.0.1:7443", PLAN, POLICY, new_secret()
        )
        self.book.invite(invitation)
        return invitation

    def party(self, name: str, place: str = "", **more: Any) -> Party:
        """Whoever has this invitation, with a folder of its own; `more` as of a `Party`."""
        return Party(self.invitations[name], self.folder / f"{place or name}.db", **more)

    def guest(self, name: str) -> Guest:
        guest = self.book.guest(name)
        assert guest is not None
        return guest

    def words(self, name: str) -> str:
        """What the operator sees."""
        return self.guest(name).words(self.identity.public)

    def gather(self) -> list[Party]:
        """All parties, confirmed, with the roster closed."""
        parties = [self.party(name) for name in self.invitations]
        for party in parties:
            self.book.confirm(party.invitation.party, party.enrol(self.answer), self.identity.public)
        self.book.close_roster(self.identity.public)
        return parties


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path / "study", "north", "south", "west")


@pytest.fixture
def new_study(tmp_path: Path) -> Callable[..., Study]:
    """Makes studies by the name of their folder and those of their sites."""
    return lambda name, *sites: Study(tmp_path / name, *sites)
