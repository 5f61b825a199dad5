"""Enrolment while its ends are killed and its network is cut, before and after every write and every message.

Each end is started again and says the same again: what was shown never changes, and nothing is pinned that nobody has
confirmed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from hedgerow.app.study import _Answering
from hedgerow.codec import Encoded
from hedgerow.errors import EnvironmentFault
from hedgerow.protocol.refusals import WireRefusal
from hedgerow.protocol.stream import Standing, read_first
from hedgerow.study import Notebook, Reception, StudyBook
from hedgerow.transport.identities import Role, new_identity

if TYPE_CHECKING:
    from conftest import Study


class Struck(BaseException):
    """A process ends here, or a message arrives nowhere."""


class Fate:
    """Strikes everything of these kinds once before it happens and, when it is tried again, once after it."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self._kinds = kinds
        self.struck = set[tuple[object, ...]]()

    def pass_by(self, kind: str, *event: object) -> None:
        if kind in self._kinds and (kind, *event) not in self.struck:
            self.struck.add((kind, *event))
            raise Struck

    def befalls(self, kind: str, book: Notebook, whose: str = "") -> None:
        """From now on the process that writes here may be killed before what it writes is on the disk, or after."""
        begin = book._database.transaction

        @contextmanager
        def transaction() -> Iterator[Callable[[str, tuple[object, ...]], object]]:
            what = list[object]()
            with begin() as execute:

                def noted(sql: str, values: tuple[object, ...]) -> object:
                    what.append((sql, *(value for value in values if isinstance(value, str) and len(value) < 40)))
                    return execute(sql, values)

                yield noted
                if what:
                    self.pass_by(kind, whose, *what, "before")
            if what:
                self.pass_by(kind, whose, *what, "after")

        book._database.transaction = transaction  # type: ignore[method-assign,assignment]


class Play:
    """An enrolment under a fate, from its invitations to its end."""

    def __init__(self, study: Study, fate: Fate) -> None:
        self._study, self._fate = study, fate
        self._identities = {name: new_identity(name, Role.SITE, os.urandom(32)) for name in study.invitations}
        self.shown: dict[str, set[str]] = {name: set() for name in study.invitations}
        self.rosters = set[str]()
        for _ in range(100):
            for name in study.invitations:
                self._live(partial(self._take_part, name))
            self._live(self._operate)
            if all(guest.has_all for guest in study.book.guests()) and len(self.rosters) == 1:
                return
        raise AssertionError(fate.struck)

    def _live(self, life: Callable[[], None]) -> None:
        try:
            life()
        except Struck:
            # Every life begins anew, from what is on the disk.
            pass

    def _answer(self, message: bytes) -> Encoded:
        book = StudyBook(self._study.folder)
        self._fate.befalls("coordinator", book)
        try:
            self._fate.pass_by("network", message, "before")
            answer = Reception(self._study.identity.public, book, os.urandom).answer(message)
            self._fate.pass_by("network", message, "after")
            return answer
        finally:
            book.close()

    def _take_part(self, name: str) -> None:
        befalls = partial(self._fate.befalls, "party", whose=name)
        party = self._study.party(name, identity=self._identities[name], befalls=befalls)
        try:
            if party.end.roster is None:
                opening = party.end.opening(self._answer(party.end.knock().to_bytes()).to_bytes())
                read_first(Standing, self._answer(opening.to_bytes()).to_bytes())
                self.shown[name].add(party.end.words)
            party.ask(self._answer)
            if (roster := party.end.roster) is not None:
                self.rosters.add((party.notes.read("roster_words") or b"").decode())
                assert {site.identity_key for site in roster.sites} == {
                    identity.public.identity_key for identity in self._identities.values()
                }
        finally:
            party.notes.close()

    def _operate(self) -> None:
        book = StudyBook(self._study.folder)
        self._fate.befalls("coordinator", book)
        try:
            keys = self._study.identity.public
            for guest in book.guests():
                if guest.party is not None and self.shown[guest.name] and not guest.is_confirmed:
                    (read,) = self.shown[guest.name]
                    book.confirm(guest.name, read, keys)
            is_closed = book.close_roster(keys)
            assert is_closed == (book.roster is not None) == all(guest.is_confirmed for guest in book.guests())
        finally:
            book.close()


@pytest.mark.parametrize("kinds", [("coordinator",), ("party",), ("network",), ("coordinator", "party", "network")])
def test_an_enrolment_survives_whatever_ends_it(study: Study, kinds: tuple[str, ...]) -> None:
    """Killed at each write, cut at each message: all take the same roster in the end, by the words shown first."""
    fate = Fate(kinds)
    play = Play(study, fate)
    assert all(len(words) == 1 for words in play.shown.values()) and play.rosters == {study.book.roster_words}
    for kind, least in {"coordinator": 2 * (5 * 3 + 1), "party": 2 * 4 * 3, "network": 2 * 5 * 3}.items():
        # Of every party: the coordinator's five writes, its own four, and five messages at least; each struck twice.
        assert sum(event[0] == kind for event in fate.struck) >= least * (kind in kinds)


def test_a_full_disk_is_told_to_the_operator_alone(new_study: Callable[..., Study]) -> None:
    """Nothing is answered that is not on the disk; parties try again, and hear nothing of the coordinator's files."""
    study = new_study("full", *(f"site-{number}" for number in range(12)))
    answering = _Answering(Reception(study.identity.public, study.book, os.urandom))
    limit = study.book._database._connection.execute
    limit("pragma max_page_count = 1")  # SQLite takes what the file has already.
    answering.require_well()
    refused = dict[str, WireRefusal]()
    parties = {name: study.party(name) for name in study.invitations}
    for name, party in parties.items():
        try:
            opening = party.end.opening(answering(party.end.knock().to_bytes()))
            read_first(Standing, answering(opening.to_bytes()))
        except WireRefusal as refusal:
            refused[name] = refusal
    assert refused and {refusal.code for refusal in refused.values()} == {"closed"}
    assert not any("study.db" in f"{refusal}" or refusal.is_final for refusal in refused.values())
    with pytest.raises(EnvironmentFault) as fault:
        answering.require_well()
    assert fault.value.code == "disk-full"
    limit("pragma max_page_count = 100000")
    assert all(study.guest(name).party is None for name in refused)
    for name, party in parties.items():
        assert party.enrol(study.answer) == study.words(name)
