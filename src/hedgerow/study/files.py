"""What a study consists of on disk: invitations, the coordinator's folder, and a party's folder.

Identities, rosters, plans and policies in these folders are the files that `hedgerow identity`, `roster`, `plan` and
`node` write and read; nothing here has a format of its own but the invitation and the two databases of an enrolment.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow.codec import digest
from hedgerow.errors import HedgerowError, UsageError
from hedgerow.protocol.enrolment import Standing
from hedgerow.storage import Database
from hedgerow.study.enrolment import Guest, are_same_words, roster_words
from hedgerow.transport.identities import (
    PinnedRoster,
    PublicIdentity,
    Role,
    build_roster,
    check_name,
    fields_of,
    from_base64,
    parse_public,
    parse_roster,
    to_base64,
    write_new,
)

FORMAT = "hedgerow-invitation"
FORMAT_VERSION = 1
SUFFIX = ".invitation"
COORDINATOR = "coordinator"
"""The name of the coordinator of every study; no party can have it."""
PLAN, ROSTER, POLICY = "plan.toml", "roster.toml", "policy.toml"
_MOST_BYTES = 32 << 20
"""Of an invitation."""
_ADDRESS = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9]{1,15})?\]):[0-9]{1,5}")
_WARNING = "Secret until it has been used. Whoever has this file can ask to take part in this party's name."


def check_address(address: str, option: str) -> str:
    """The address that sites dial, host and port; raises UsageError "address".

    In ASCII, for one letter may look like another, and nothing that gRPC takes for another kind of address: the file of
    a socket, a server that is asked for names.
    """
    if not _ADDRESS.fullmatch(address):
        raise UsageError("address", option=option, text=address)
    return address


@dataclass(frozen=True)
class Invitation:
    """What the coordinator gives to one party, over any line: the words tell whether it has arrived unchanged.

    Attributes:
        study, party: names.
        role: of the party.
        coordinator: its keys.
        address: where it listens, "host:port".
        plan, policy: the texts of these files; the policy is a proposal, and empty for a monitor.
        secret: 32 bytes, for one enrolment.
    """

    study: str
    party: str
    role: Role
    coordinator: PublicIdentity
    address: str
    plan: str
    policy: str
    secret: bytes

    def digest(self) -> bytes:
        """Hash of everything in it, 32 bytes."""
        texts = (self.study, self.party, self.role.value, self.address, self.plan, self.policy)
        parts = [text.encode() for text in texts]
        return digest("hedgerow/invitation/1", *parts, self.coordinator.digest(), self.secret)

    def to_text(self) -> str:
        """The file's content."""
        content = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "warning": _WARNING,
            "study": self.study,
            "party": self.party,
            "role": self.role.value,
            "address": self.address,
            "plan": self.plan,
            "policy": self.policy,
            "coordinator": fields_of(self.coordinator),
            "secret": to_base64(self.secret),
        }
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def parse_invitation(text: str, where: str) -> Invitation:
    """The invitation in a file's text; raises UsageError "invitation-file", RemoteProtocolError for keys that err.

    Whoever sent it may have written it to harm: it names no folder, no host, and no key that it could not.
    """
    try:
        content = json.loads(text)
        if content["format"] != FORMAT or content["version"] != FORMAT_VERSION:
            raise UsageError("invitation-file", where=where)
        address, plan, policy = (str(content[name]) for name in ("address", "plan", "policy"))
        check_address(address, "The invitation's address")
        study, party = check_name(content["study"]), check_name(content["party"])
        secret, coordinator = from_base64(content["secret"]), parse_public(content["coordinator"], where)
        role = Role(content["role"])
        if len(secret) != 32 or coordinator.role is not Role.COORDINATOR or role is Role.COORDINATOR:
            raise UsageError("invitation-file", where=where)
        return Invitation(study, party, role, coordinator, address, plan, policy, secret)
    except HedgerowError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # The text of these errors may quote the file, which holds a secret.
        raise UsageError("invitation-file", where=where) from None


def read_invitation(path: Path) -> Invitation:
    """The invitation in a file; raises as `parse_invitation`."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise UsageError("invitation-file", where=str(path))
        return parse_invitation(content.decode(), str(path))
    except FileNotFoundError:
        raise UsageError("invitation-not-found", path=path) from None
    except (UnicodeDecodeError, IsADirectoryError):
        raise UsageError("invitation-file", where=str(path)) from None


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner may read; raises as `write_new`."""
    write_new(path, text, 0o600)


_NOTES = "create table if not exists notes (name text primary key, content blob not null);"
_GUESTS = f"""{_NOTES}
create table if not exists guests (
    name text primary key, role text not null, secret blob not null, invitation blob not null,
    commitment blob not null default x'', challenge blob not null default x'', party text not null default '',
    nonce blob not null default x'', sealed blob not null default x'', is_confirmed integer not null default 0,
    second blob not null default x'', has_all integer not null default 0
);
"""
_SCHEMA_VERSION = 1


class Notebook:
    """`enrolment.Notes` in a database of their own; two processes may have it open."""

    def __init__(self, path: Path, schema: str = _NOTES) -> None:
        self._database = Database(path, schema, _SCHEMA_VERSION, is_exclusive=False)

    def read(self, name: str) -> bytes | None:
        """See `Notes.read`."""
        rows = self._database.rows("select content from notes where name = ?", (name,))
        return bytes(rows[0][0]) if rows else None

    def keep(self, **values: bytes) -> None:
        """See `Notes.keep`."""
        sql = "insert or ignore into notes values (?, ?)"
        self._database.write(*((sql, (name, value)) for name, value in values.items()))

    def close(self) -> None:
        """Close the database."""
        self._database.close()


class StudyBook(Notebook):
    """The coordinator's memory of a study: what it is, and its guests. See `enrolment.GuestBook`.

    Several processes, or threads with one object each, may have it open: who is invited, confirmed and in the roster is
    asked and written in one transaction.
    """

    def __init__(self, folder: Path) -> None:
        """Raises UsageError "study-folder" for a folder that holds no study."""
        if not (folder / "study.db").is_file():
            raise UsageError("study-folder", folder=folder)
        super().__init__(folder / "study.db", _GUESTS)
        self.folder = folder

    @classmethod
    def create(cls, folder: Path, facts: Mapping[str, str]) -> StudyBook:
        """A new study's book, in a folder that is there."""
        write_private(folder / "study.db", "")
        book = cls(folder)
        book.keep(**{name: text.encode() for name, text in facts.items()})
        return book

    def fact(self, name: str) -> str:
        """One of the facts that the study was created with."""
        return (self.read(name) or b"").decode()

    def invite(self, invitation: Invitation) -> None:
        """Expect a party. An invitation of the same name that nobody has used, or that was not confirmed, is void.

        Raises UsageError "invited-already" for a party that is confirmed.
        """
        with self._database.transaction() as execute:
            guest = self.guest(invitation.party)
            if guest is not None and guest.is_confirmed:
                raise UsageError("invited-already", name=invitation.party)
            values = (invitation.party, invitation.role.value, invitation.secret, invitation.digest())
            execute("insert or replace into guests (name, role, secret, invitation) values (?, ?, ?, ?)", values)

    def withdraw(self, name: str) -> None:
        """Expect a party no more; raises UsageError "not-invited", or "invited-already" once a roster has it."""
        with self._database.transaction() as execute:
            if self.guest(name) is None:
                raise UsageError("not-invited", name=name)
            if name in self._listed():
                raise UsageError("invited-already", name=name)
            execute("delete from guests where name = ?", (name,))

    def guest(self, name: str) -> Guest | None:
        """See `GuestBook.guest`."""
        return next((guest for guest in self.guests("where name = ?", (name,))), None)

    def guests(self, where: str = "", values: Sequence[Any] = ()) -> list[Guest]:
        """All of them in the order of a roster: the sites by name, then the monitors."""
        columns = "name, role, secret, invitation, commitment, challenge, party, nonce, sealed, is_confirmed, second"
        rows = self._database.rows(f"select {columns}, has_all from guests {where} order by role desc, name", values)
        return [
            Guest(
                name, Role(role), bytes(secret), bytes(invitation), bytes(commitment), bytes(challenge),
                parse_public(json.loads(party), name) if party else None, bytes(nonce), bytes(sealed),
                bool(is_confirmed), bytes(second), bool(has_all),
            )
            for name, role, secret, invitation, commitment, challenge, party, nonce, sealed, is_confirmed, second,
            has_all in rows
        ]  # fmt: skip

    def note(self, guest: Guest, **fields: object) -> None:
        """See `GuestBook.note`."""
        stored = {
            field: json.dumps(fields_of(value)) if isinstance(value, PublicIdentity) else value
            for field, value in fields.items()
        }
        columns = ", ".join(f"{field} = ?" for field in stored)
        # Of this very invitation: another process may have replaced it meanwhile.
        sql = f"update guests set {columns} where name = ? and invitation = ?"
        self._database.write((sql, (*stored.values(), guest.name, guest.invitation)))

    def standing(self) -> Standing:
        """See `GuestBook.standing`."""
        roster = self.read("roster")
        if roster is None:
            return Standing()
        names = self._listed()
        guests = [guest for guest in self.guests() if guest.name in names]
        nonces = tuple(guest.second for guest in guests)
        return Standing(roster, tuple(guest.sealed for guest in guests), nonces if all(nonces) else ())

    def confirm(self, name: str, said: str, coordinator: PublicIdentity) -> None:
        """Pin a party's keys, for its operator says these words.

        Raises UsageError "not-invited", "not-enrolled" before it has enrolled, "words-differ" for other words.
        """
        guest = self.guest(name)
        if guest is None:
            raise UsageError("not-invited", name=name)
        if guest.party is None:
            raise UsageError("not-enrolled", name=name)
        if not are_same_words(said, guest.words(coordinator)):
            raise UsageError("words-differ", name=name)
        self.note(guest, is_confirmed=1)

    def close_roster(self, coordinator: PublicIdentity) -> bool:
        """Make the roster of all guests, once they are confirmed; it stays as it is. Where somebody has come since, and
        all others have the roster as it was, make its next epoch.

        Returns whether there is one with all guests in it.
        """
        with self._database.transaction() as execute:
            guests, previous, listed = self.guests(), self.roster, self._listed()
            if previous is not None and {guest.name for guest in guests} == listed:
                return True
            by_role: dict[Role, list[PublicIdentity]] = {Role.SITE: [], Role.MONITOR: []}
            for guest in guests:
                if guest.party is None or not guest.is_confirmed or (guest.name in listed and not guest.has_all):
                    return False
                by_role[guest.role].append(guest.party)
            roster = build_roster(coordinator, by_role[Role.SITE], previous, by_role[Role.MONITOR])
            execute("insert or replace into notes values ('roster', ?)", (roster.to_toml().encode(),))
        return True

    def _listed(self) -> set[str]:
        """Who is in the roster, besides the coordinator."""
        roster = self.roster
        return set() if roster is None else {party.name for party in (*roster.sites, *roster.monitors)}

    @property
    def roster(self) -> PinnedRoster | None:
        """The roster, once it is made."""
        text = self.read("roster")
        return None if text is None else parse_roster(text.decode(), "the study's roster")

    @property
    def roster_words(self) -> str:
        """Its four words; empty until all parties have shown their numbers."""
        roster, nonces = self.roster, self.standing().nonces
        return roster_words(roster, nonces) if roster is not None and nonces else ""


def new_secret() -> bytes:
    """For one invitation."""
    return secrets.token_bytes(32)
