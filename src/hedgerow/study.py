# SPDX-License-Identifier: Apache-2.0
"""Enrol a study's parties, from one invitation file each to the roster that all of them pin.

An invitation holds a one-time secret S and the coordinator's keys. I is the hash of its whole content. Both ends draw
random numbers of 32 bytes: the party `nonce` and a second one with the hash `sealed`, the coordinator `challenge`.

    party                                             coordinator
     | -- Knock: hash(I, keys, nonce, sealed), HMAC_S --> |  keeps the first commitment, refuses another
     | <------------------------ Challenge: challenge --- |  one for each invitation, ever
     | -- Opening: keys, nonce, sealed, HMAC_S, signed -> |  refuses what was not committed to
     |        both: four words = hash(I, keys of both, sealed, nonce, challenge)
     |        people compare them, and each end is told
     | -- Asking --> Standing: the roster, all `sealed` - |  when all parties are confirmed
     | -- Asking: the second number, in the clear ------> |
     | <--------------- Standing: all second numbers ---- |  when all have the roster
     |        all: four words = hash(the roster, all second numbers)

If a party is withdrawn while the roster is being sent, the others receive its next edition. Their numbers are known by
then, so that edition has no words for them: people compare its fingerprint.

All messages go over TLS to the certificate that the invitation pins. docs/secure-aggregation.md argues whom this keeps
out. In short: four words have 40 bits, few enough to try all values. So an attacker who could choose a key or a number
after seeing the other side's could make words fit. Here each side is bound before it sees anything (Vaudenay, "Secure
communications over insecure channels based on short authenticated strings", CRYPTO 2005), and an invitation that was
answered is answered again only in the same way: an attacker in between has one try.

Everything that a message shows is on the disk before it is sent: a process that was killed sends the same again.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

from hedgerow.codec import CodecFault, Encoded, digest, kind_in
from hedgerow.crypto import Entropy, Identity, PrimitiveFault, verify
from hedgerow.errors import HedgerowError, RemoteProtocolError, UsageError
from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.protocol.stream import (
    NOTHING,
    Asking,
    AskingStep,
    Challenge,
    Farewell,
    Knock,
    Opening,
    Standing,
    StreamKind,
    read_as,
    read_first,
    translate_fault,
)
from hedgerow.storage import Database
from hedgerow.transport.identities import (
    PinnedRoster,
    PrivateIdentity,
    PublicIdentity,
    Role,
    build_roster,
    check_name,
    follows,
    from_base64,
    parse_public,
    parse_roster,
    to_base64,
    to_fields,
    write_new,
)
from hedgerow.transport.interface import Address

_DOMAIN = "hedgerow/enrolment/1/"
_SIGNED = b"ENROLMENT"
N_WORDS = 4
_BITS = 10


# Words ---------------------------------------------------------------------------------------------------------------


@cache
def _list() -> tuple[str, ...]:
    text = resources.files("hedgerow").joinpath("study_words.txt").read_text(encoding="ascii")
    return tuple(text.split())


def spell_words(of: bytes) -> str:
    """Return the first 40 bits of a digest as four words, separated by spaces."""
    number = int.from_bytes(of[:5], "big")
    return " ".join(_list()[number >> shift & 1023] for shift in range((N_WORDS - 1) * _BITS, -1, -_BITS))


def are_same_words(said: str, expected: str) -> bool:
    """Return whether `said` has the expected words; capitals and separators do not count."""
    return re.findall("[a-z]+", said.lower()) == expected.split()


# What both ends compute -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WordInputs:
    """The facts from which the four words of one party are computed.

    Attributes:
        invitation: hash of the invitation's whole content, 32 bytes.
        secret: the invitation's, 32 bytes.
        coordinator, party: the keys of both ends.
    """

    invitation: bytes
    secret: bytes
    coordinator: PublicIdentity
    party: PublicIdentity

    def commitment(self, nonce: bytes, sealed: bytes) -> bytes:
        """Return the party's first message: a 32-byte commitment.

        It binds the party, and reveals nothing while `nonce` is unknown.
        """
        return digest(_DOMAIN + "commitment", self.invitation, self.party.digest(), nonce, sealed)

    def words(self, nonce: bytes, sealed: bytes, challenge: bytes) -> str:
        """Return the four words of this enrolment."""
        keys = self.coordinator.digest(), self.party.digest()
        return spell_words(digest(_DOMAIN + "words", self.invitation, *keys, sealed, nonce, challenge))


def derive_tag(secret: bytes, kind: str, *parts: bytes) -> bytes:
    """Return the 32-byte tag that proves possession of the invitation."""
    return hmac.digest(secret, digest(_DOMAIN + kind, *parts), "sha256")


def _knock_tag(secret: bytes, invitation: bytes, commitment: bytes) -> bytes:
    # Authenticate the whole invitation, so that a changed copy does not use up the true one.
    return derive_tag(secret, "knock", invitation, commitment)


def _tag_opening(ends: WordInputs, numbers: tuple[bytes, bytes], challenge: bytes, max_rows: int) -> bytes:
    parts = ends.invitation, ends.party.digest(), *numbers, challenge, max_rows.to_bytes(8, "big")
    return derive_tag(ends.secret, "opening", *parts)


def _digest_asking(invitation: bytes, step: AskingStep, roster: bytes, nonce: bytes) -> bytes:
    return digest(_DOMAIN + "asking", invitation, bytes([step]), roster, nonce)


def roster_words(roster: PinnedRoster, nonces: Sequence[bytes]) -> str:
    """Return the four words of a roster.

    No one could choose a second roster with the same words. Each party's number became known only after that party had
    received the roster and the hashes of all other numbers.
    """
    return spell_words(digest(_DOMAIN + "roster", roster.digest(), *nonces))


# The party ------------------------------------------------------------------------------------------------------------


class Applicant:
    """The enrolment of an invited party, at the party's end.

    Args:
        ends: the ends of this enrolment; `ends.party` is the public part of `identity`.
        identity: the party's own identity.
        notes: notebook that keeps the enrolment's state across restarts.
        entropy: ``os.urandom`` except in tests.
        max_rows: the most rows that the party uses, a round public number; 0 to state none. The number stated first
            counts.
    """

    def __init__(
        self, ends: WordInputs, identity: PrivateIdentity, notes: Notebook, entropy: Entropy, max_rows: int = 0
    ) -> None:
        self._ends, self._notes, self._key = ends, notes, Identity(identity.seed)
        self._name = identity.public.name
        notes.keep(nonce=entropy(32), second=entropy(32), max_rows=max_rows.to_bytes(8, "big"))
        self._max_rows = int.from_bytes(notes.read("max_rows") or b"", "big")
        self._nonce, self._second = notes.read("nonce") or b"", notes.read("second") or b""
        self._sealed = sha256(self._second).digest()

    def knock(self) -> Knock:
        """Return the first message."""
        commitment = self._ends.commitment(self._nonce, self._sealed)
        return Knock(self._name, commitment, _knock_tag(self._ends.secret, self._ends.invitation, commitment))

    def opening(self, answer: bytes) -> Opening:
        """Return the second message, given the answer to the first; raise WireRefusal.

        Keeps the first challenge on disk and refuses any other: one that was chosen after the numbers were shown could
        be made to fit.
        """
        heard = read_first(Challenge, answer).nonce
        self._notes.keep(challenge=heard)
        challenge = self._notes.read("challenge") or b""
        if heard != challenge:
            raise WireRefusal(WireCode.INVITATION_USED, "The coordinator does not say what it said before.")
        own = self._ends.party
        tag = _tag_opening(self._ends, (self._nonce, self._sealed), challenge, self._max_rows)
        return Opening(
            self._name, own.identity_key, own.certificate, own.proof, self._nonce, self._sealed, self._max_rows, tag,
            self._key.sign(_SIGNED, tag),
        )  # fmt: skip

    @property
    def words(self) -> str:
        """The four words of this enrolment, once `opening` has been called."""
        return self._ends.words(self._nonce, self._sealed, self._notes.read("challenge") or b"")

    @property
    def _offered(self) -> Standing | None:
        kept = self._notes.read("offered")
        return None if kept is None else Standing.from_bytes(kept)

    @property
    def roster_words(self) -> str:
        """The roster's four words; empty for an edition that came after this party showed its second number."""
        return (self._notes.read("roster_words") or b"").decode()

    @property
    def roster(self) -> PinnedRoster | None:
        """The roster, once everybody has it and this party has checked all numbers; else None."""
        offered = self._offered
        if offered is None or self._notes.read("roster_words") is None:
            return None
        return parse_roster(offered.roster.decode(), "the coordinator's roster")

    def asking(self) -> Asking:
        """Return the next question to the coordinator."""
        offered = self._offered
        if offered is None:
            step, roster, nonce = AskingStep.WAITS, NOTHING, NOTHING
        else:
            has_nonces = self._notes.read("roster_words") is not None
            step = AskingStep.HAS_NONCES if has_nonces else AskingStep.HAS_ROSTER
            roster, nonce = _read_roster(offered.roster).digest(), self._second
        body = _digest_asking(self._ends.invitation, step, roster, nonce)
        return Asking(self._name, step, roster, nonce, self._key.sign(_SIGNED, body))

    def take(self, answer: bytes) -> None:
        """Read the answer to a question, and keep what it brings on disk.

        Raises:
            WireRefusal: the coordinator refuses, or its answer cannot be read.
            RemoteProtocolError: code "roster-offered"; the roster lacks this party's keys or the pinned coordinator's,
                differs from an earlier one, or has numbers that were not sealed.
        """
        standing = read_first(Standing, answer)
        if not standing.roster:
            return
        offered = self._offered
        if offered is None:
            _require_own(standing, self._ends, self._sealed, self._max_rows)
            # Bind this party to this roster now: its next question shows the second number.
            self._notes.keep(offered=Standing(standing.roster, standing.sealed).to_bytes())
            return
        if (standing.roster, standing.sealed) != (offered.roster, offered.sealed):
            if not follows(_read_roster(standing.roster), _read_roster(offered.roster)):
                raise RemoteProtocolError("roster-offered", why="it is another one than before")
            _require_own(standing, self._ends, self._sealed, self._max_rows)
            # The second number is known now, so this edition could have been chosen to fit: give it no words.
            again = Standing(standing.roster, standing.sealed).to_bytes()
            self._notes.exchange(offered=again, is_shown=b"1", roster_words=None)
            return
        if standing.nonces:
            if tuple(sha256(nonce).digest() for nonce in standing.nonces) != offered.sealed:
                raise RemoteProtocolError("roster-offered", why="its numbers are not those that were sealed")
            is_shown = self._notes.read("is_shown") is not None
            words = "" if is_shown else roster_words(_read_roster(offered.roster), standing.nonces)
            self._notes.keep(roster_words=words.encode())


def _read_roster(content: bytes) -> PinnedRoster:
    try:
        return parse_roster(content.decode(), "the coordinator's roster")
    except (UnicodeDecodeError, HedgerowError):
        raise RemoteProtocolError("roster-offered", why="it cannot be read") from None


def _require_own(standing: Standing, ends: WordInputs, sealed: bytes, max_rows: int) -> None:
    roster = _read_roster(standing.roster)
    parties = (*roster.sites, *roster.monitors)
    if roster.coordinator != ends.coordinator:
        raise RemoteProtocolError("roster-offered", why="its coordinator is not the invitation's")
    if ends.party not in parties:
        raise RemoteProtocolError("roster-offered", why="this party's own keys are not in it")
    if roster.find_max_rows(ends.party.name) != max_rows:
        raise RemoteProtocolError("roster-offered", why="this party's own number of rows is not in it")
    if len(standing.sealed) != len(parties) or standing.sealed[parties.index(ends.party)] != sealed:
        raise RemoteProtocolError("roster-offered", why="this party's own number is not in it")


# The coordinator ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guest:
    """The coordinator's knowledge of an invited party; fields are empty until known.

    Attributes:
        name, role, secret, invitation: as in the invitation and in `WordInputs`.
        commitment, challenge: the commitment in its Knock, and the challenge in the answer.
        party: its keys, from its Opening.
        nonce, sealed: from its Opening.
        is_confirmed: whether the operator has compared the words.
        second: the number that it had sealed.
        has_all: whether it has the roster and everybody's numbers.
        max_rows: the most rows that it uses; 0 if it does not state any.
    """

    name: str
    role: Role
    secret: bytes
    invitation: bytes
    commitment: bytes = b""
    challenge: bytes = b""
    party: PublicIdentity | None = None
    nonce: bytes = b""
    sealed: bytes = b""
    is_confirmed: bool = False
    second: bytes = b""
    has_all: bool = False
    max_rows: int = 0

    def words(self, coordinator: PublicIdentity) -> str:
        """Return its four words; empty until it has opened its commitment."""
        if self.party is None:
            return ""
        ends = WordInputs(self.invitation, self.secret, coordinator, self.party)
        return ends.words(self.nonce, self.sealed, self.challenge)


class Reception:
    """The coordinator's end of enrolments. It never raises because of a peer's message.

    Args:
        coordinator: the coordinator's own keys.
        entropy: ``os.urandom`` except in tests.
    """

    def __init__(self, coordinator: PublicIdentity, book: StudyBook, entropy: Entropy) -> None:
        self._coordinator, self._book, self._entropy = coordinator, book, entropy

    def answer(self, message: bytes) -> Encoded:
        """Answer a message with a Challenge, a Standing, or a Farewell; keep what it brings on disk."""
        try:
            return self._answer(message)
        except WireRefusal as refusal:
            return Farewell.from_refusal(refusal)
        except CodecFault as fault:
            return Farewell.from_refusal(translate_fault(fault))
        except (PrimitiveFault, RemoteProtocolError, UsageError, ValueError):
            return Farewell.from_refusal(WireRefusal(WireCode.MALFORMED))

    def _answer(self, message: bytes) -> Encoded:
        match kind_in(message):
            case StreamKind.KNOCK:
                return self._handle_knock(read_as(Knock, message))
            case StreamKind.OPENING:
                return self._handle_opening(read_as(Opening, message))
            case StreamKind.ASKING:
                return self._was_asked(read_as(Asking, message))
        raise WireRefusal(WireCode.UNEXPECTED_FRAME)

    def _find_guest(self, name: str) -> Guest:
        guest = self._book.guest(name)
        if guest is None:
            raise WireRefusal(WireCode.INVITATION_UNKNOWN)
        return guest

    def _update_guest(self, guest: Guest, **fields: object) -> Guest:
        """Write these fields of a guest to the disk, and return the guest.

        Raises WireRefusal if another invitation has replaced this one.
        """
        self._book.note(guest, **fields)
        found = self._find_guest(guest.name)
        if found.invitation != guest.invitation:
            raise WireRefusal(WireCode.INVITATION_UNKNOWN)
        return found

    def _handle_knock(self, knock: Knock) -> Challenge:
        guest = self._find_guest(knock.party)
        expected = _knock_tag(guest.secret, guest.invitation, knock.commitment)
        if not hmac.compare_digest(expected, knock.tag):
            raise WireRefusal(WireCode.INVITATION_UNKNOWN)
        if not guest.commitment:
            # Draw one challenge per invitation, ever: with a second one an attacker could try until the words fit.
            guest = self._update_guest(guest, commitment=knock.commitment, challenge=self._entropy(32))
        if guest.commitment != knock.commitment:
            raise WireRefusal(WireCode.INVITATION_USED)
        return Challenge(guest.challenge)

    def _handle_opening(self, opening: Opening) -> Standing:
        guest = self._find_guest(opening.party)
        party = PublicIdentity(guest.name, guest.role, opening.identity_key, opening.certificate, opening.proof)
        ends = WordInputs(guest.invitation, guest.secret, self._coordinator, party)
        expected = _tag_opening(ends, (opening.nonce, opening.sealed), guest.challenge, opening.max_rows)
        if not guest.commitment or not hmac.compare_digest(expected, opening.tag):
            raise WireRefusal(WireCode.INVITATION_UNKNOWN)
        verify(party.identity_key, _SIGNED, opening.tag, opening.signature)
        if ends.commitment(opening.nonce, opening.sealed) != guest.commitment:
            raise WireRefusal(WireCode.INVITATION_USED)
        if guest.party is None:
            numbers = {"nonce": opening.nonce, "sealed": opening.sealed, "max_rows": opening.max_rows}
            self._update_guest(guest, party=party, **numbers)
        return Standing()

    def _was_asked(self, asking: Asking) -> Standing:
        guest = self._find_guest(asking.party)
        if guest.party is None:
            raise WireRefusal(WireCode.INVITATION_UNKNOWN)
        body = _digest_asking(guest.invitation, asking.step, asking.roster, asking.nonce)
        try:
            verify(guest.party.identity_key, _SIGNED, body, asking.signature)
        except PrimitiveFault:
            raise WireRefusal(WireCode.INVITATION_USED) from None
        standing = self._book.standing()
        # A party that enrols after the roster was made waits for the next edition: this one does not have its keys.
        if not standing.roster or guest.party not in _read_roster(standing.roster).everybody:
            return Standing()
        if asking.step is AskingStep.WAITS:
            return Standing(standing.roster, standing.sealed)
        if sha256(asking.nonce).digest() != guest.sealed:
            raise WireRefusal(WireCode.ROSTER_MISMATCH)
        if not guest.second:
            self._update_guest(guest, second=asking.nonce)
        if asking.roster != _read_roster(standing.roster).digest():
            # A party was withdrawn while the roster was being sent: send the later edition.
            return Standing(standing.roster, standing.sealed)
        if asking.step is AskingStep.HAS_NONCES and standing.nonces:
            self._update_guest(guest, has_all=True)
        return self._book.standing()


# Invitations and folders ----------------------------------------------------------------------------------------------
# Identities, rosters, plans and policies in these folders are the files that `hedgerow study keys`, `study roster`,
# `plan` and `node` write and read. Only the invitation and the two databases of an enrolment have formats of their own.

FORMAT = "hedgerow-invitation"
FORMAT_VERSION = 1
SUFFIX = ".invitation"
COORDINATOR = "coordinator"
"""The name of the coordinator of every study; no party can have it."""
_MAX_BYTES = 32 << 20
"""Largest size of an invitation."""
_WARNING = "Secret until it has been used. Anyone who has this file can ask to take part in this party's name."


@dataclass(frozen=True)
class StudyInvitation:
    """The file that the coordinator gives to one party, over any channel.

    The words tell later whether it arrived unchanged.

    Attributes:
        study, party: names.
        role: the party's role.
        coordinator: the coordinator's keys.
        address: the coordinator's address, "host:port".
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
        """Return the 32-byte hash of its whole content."""
        texts = (self.study, self.party, self.role.value, self.address, self.plan, self.policy)
        parts = [text.encode() for text in texts]
        return digest("hedgerow/invitation/1", *parts, self.coordinator.digest(), self.secret)

    def to_text(self) -> str:
        """Return the file's content."""
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
            "coordinator": to_fields(self.coordinator),
            "secret": to_base64(self.secret),
        }
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def parse_invitation(text: str, where: str) -> StudyInvitation:
    """Read the invitation in a file's text.

    Its sender may have written it to do harm, so it can name no folder, no invalid host and no invalid key. Raises
    UsageError "invitation-file", or RemoteProtocolError for invalid keys.
    """
    try:
        content = json.loads(text)
        if content["format"] != FORMAT or content["version"] != FORMAT_VERSION:
            raise UsageError("invitation-file", where=where)
        address, plan, policy = (str(content[name]) for name in ("address", "plan", "policy"))
        Address.parse(address, "The invitation's address")
        study, party = check_name(content["study"]), check_name(content["party"])
        secret, coordinator = from_base64(content["secret"]), parse_public(content["coordinator"], where)
        role = Role(content["role"])
        if len(secret) != 32 or coordinator.role is not Role.COORDINATOR or role is Role.COORDINATOR:
            raise UsageError("invitation-file", where=where)
        return StudyInvitation(study, party, role, coordinator, address, plan, policy, secret)
    except HedgerowError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # The text of these errors may quote the file, which holds a secret.
        raise UsageError("invitation-file", where=where) from None


def read_invitation(path: Path) -> StudyInvitation:
    """Read the invitation in a file; raise as `parse_invitation` does."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise UsageError("invitation-file", where=str(path))
        # An editor, or a mail program, may have put a byte-order mark first.
        return parse_invitation(content.decode("utf-8-sig"), str(path))
    except FileNotFoundError:
        raise UsageError(
            "not-found", code="invitation-not-found", path=path, wanted="the file that the coordinator sent"
        ) from None
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
    second blob not null default x'', has_all integer not null default 0, max_rows integer not null default 0
);
"""
_SCHEMA_VERSION = 2


class Notebook:
    """A party's notes in a database of its own; two processes may have it open."""

    def __init__(self, path: Path, schema: str = _NOTES) -> None:
        self._database = Database(path, schema, _SCHEMA_VERSION, is_exclusive=False)

    def read(self, name: str) -> bytes | None:
        """Return the content written under this name; None if there is none."""
        rows = self._database.rows("select content from notes where name = ?", (name,))
        return bytes(rows[0][0]) if rows else None

    def keep(self, **values: bytes) -> None:
        """Write all values to disk, or none; a name that has a value already keeps it."""
        sql = "insert or ignore into notes values (?, ?)"
        self._database.write(*((sql, (name, value)) for name, value in values.items()))

    def exchange(self, **values: bytes | None) -> None:
        """Replace all values on disk, or none; None deletes a value."""
        new, gone = "insert or replace into notes values (?, ?)", "delete from notes where name = ?"
        self._database.write(
            *((gone, (name,)) if value is None else (new, (name, value)) for name, value in values.items())
        )

    def close(self) -> None:
        """Close the database."""
        self._database.close()


class StudyBook(Notebook):
    """The coordinator's notes about a study: its facts and its guests.

    Several processes, or threads with one object each, may have it open: each question about guests and the change that
    follows are one transaction.
    """

    def __init__(self, folder: Path) -> None:
        """Raise UsageError "study-folder" for a folder that holds no study."""
        if not (folder / "study.db").is_file():
            raise UsageError("study-folder", folder=folder)
        super().__init__(folder / "study.db", _GUESTS)
        self.folder = folder

    @classmethod
    def create(cls, folder: Path, facts: Mapping[str, str]) -> StudyBook:
        """Create a new study's book in an existing folder."""
        write_private(folder / "study.db", "")
        book = cls(folder)
        book.keep(**{name: text.encode() for name, text in facts.items()})
        return book

    def fact(self, name: str) -> str:
        """Return one of the facts that the study was created with."""
        return (self.read(name) or b"").decode()

    def move(self, address: str, listen: str) -> None:
        """Record another address for sites to dial, and for the coordinator to listen at."""
        self.exchange(address=address.encode(), listen=listen.encode())

    def invite(self, invitation: StudyInvitation) -> None:
        """Record an invitation, replacing an earlier one that was not confirmed.

        Raises UsageError "invited-already" for a party that is confirmed.
        """
        with self._database.transaction() as execute:
            guest = self.guest(invitation.party)
            if guest is not None and guest.is_confirmed:
                name, cause = invitation.party, "It is confirmed or in the study's roster already."
                also = f" A party that needs new keys is taken out first: `hedgerow study withdraw {name}`."
                raise UsageError("invited-already", code="invited-already", name=name, cause=cause, also=also)
            values = (invitation.party, invitation.role.value, invitation.secret, invitation.digest())
            execute("insert or replace into guests (name, role, secret, invitation) values (?, ?, ?, ?)", values)
            kept = (f"policy of {invitation.party}", invitation.policy.encode())
            execute("insert or replace into notes values (?, ?)", kept)

    def void_open_invitations(self) -> list[str]:
        """Forget the parties that are not confirmed, and return their names: each needs a new invitation.

        A book that was restored may have forgotten the challenge that answered an invitation. A second challenge would
        give an attacker in between a second try at the words.
        """
        with self._database.transaction() as execute:
            voided = [guest.name for guest in self.guests() if not guest.is_confirmed]
            execute("delete from guests where not is_confirmed", ())
        return voided

    def find_proposal(self, name: str) -> str | None:
        """Return the policy in the newest invitation of a party; None if it was never invited."""
        text = self.read(f"policy of {name}")
        return None if text is None else text.decode()

    def withdraw(self, name: str, pin: Callable[[PinnedRoster], None]) -> PinnedRoster | None:
        """Withdraw a party; if the roster has it, make the roster's next edition without it.

        Other parties that do not have the withdrawn party's roster yet receive the new edition.

        Args:
            pin: puts that roster where runs read it, before the book has it: after a crash in between, nobody who was
                withdrawn is trusted.

        Returns: the roster without the party; None if no roster has it.

        Raises:
            UsageError: code "not-invited".
        """
        with self._database.transaction() as execute:
            self._require_guest(name)
            previous, roster = self.roster, None
            if previous is not None and name in self._list_parties():
                # A guest that is not in the roster yet does not matter here.
                others = [guest for guest in self.guests() if guest.name in self._list_parties() - {name}]
                roster = _build_roster(previous.coordinator, others, previous)
                pin(roster)
                execute("insert or replace into notes values ('roster', ?)", (roster.to_toml().encode(),))
            execute("delete from guests where name = ?", (name,))
        return roster

    def guest(self, name: str) -> Guest | None:
        """Return the guest of this name; None if it was not invited."""
        return next((guest for guest in self.guests("where name = ?", (name,))), None)

    def _require_guest(self, name: str) -> Guest:
        if (guest := self.guest(name)) is None:
            known = ", ".join(each.name for each in self.guests())
            raise UsageError("unknown-name", code="not-invited", kind="invited party", name=name, known=known)
        return guest

    def guests(self, where: str = "", values: Sequence[Any] = ()) -> list[Guest]:
        """Return all guests in the order of a roster: sites by name, then monitors."""
        columns = "name, role, secret, invitation, commitment, challenge, party, nonce, sealed, is_confirmed, second, "
        columns += "has_all, max_rows"
        rows = self._database.rows(f"select {columns} from guests {where} order by role desc, name", values)
        return [
            Guest(
                name, Role(role), bytes(secret), bytes(invitation), bytes(commitment), bytes(challenge),
                parse_public(json.loads(party), name) if party else None, bytes(nonce), bytes(sealed),
                bool(is_confirmed), bytes(second), bool(has_all), max_rows,
            )
            for name, role, secret, invitation, commitment, challenge, party, nonce, sealed, is_confirmed, second,
            has_all, max_rows in rows
        ]  # fmt: skip

    def note(self, guest: Guest, **fields: object) -> None:
        """Write fields of a guest to the disk, unless another invitation has replaced this one."""
        stored = {
            field: json.dumps(to_fields(value)) if isinstance(value, PublicIdentity) else value
            for field, value in fields.items()
        }
        columns = ", ".join(f"{field} = ?" for field in stored)
        # Match the invitation too: another process may have replaced it meanwhile.
        sql = f"update guests set {columns} where name = ? and invitation = ?"
        self._database.write((sql, (*stored.values(), guest.name, guest.invitation)))

    def standing(self) -> Standing:
        """Return the answer that all guests receive."""
        roster = self.read("roster")
        if roster is None:
            return Standing()
        names = self._list_parties()
        guests = [guest for guest in self.guests() if guest.name in names]
        nonces = tuple(guest.second for guest in guests)
        return Standing(roster, tuple(guest.sealed for guest in guests), nonces if all(nonces) else ())

    def confirm(self, name: str, said: str, coordinator: PublicIdentity) -> None:
        """Pin a party's keys, because its operator says these words.

        Raises UsageError "not-invited", "not-enrolled" if it has not enrolled yet, or "words-differ".
        """
        guest = self._require_guest(name)
        if guest.party is None:
            raise UsageError("not-enrolled", name=name)
        if not are_same_words(said, guest.words(coordinator)):
            raise UsageError("words-differ", name=name)
        self.note(guest, is_confirmed=1)

    def close_roster(self, coordinator: PublicIdentity) -> bool:
        """Make the roster, or its next edition, if all guests are confirmed; return whether it has all guests.

        The next edition is made only if parties have come since, and all others have the roster as it was.
        """
        with self._database.transaction() as execute:
            guests, previous, listed = self.guests(), self.roster, self._list_parties()
            if previous is not None and {guest.name for guest in guests} == listed:
                return True
            for guest in guests:
                if guest.party is None or not guest.is_confirmed or (guest.name in listed and not guest.has_all):
                    return False
            roster = _build_roster(coordinator, guests, previous)
            execute("insert or replace into notes values ('roster', ?)", (roster.to_toml().encode(),))
        return True

    def _list_parties(self) -> set[str]:
        """Return the names in the roster, without the coordinator."""
        roster = self.roster
        return set() if roster is None else {party.name for party in (*roster.sites, *roster.monitors)}

    @property
    def roster(self) -> PinnedRoster | None:
        """The roster, once it is made."""
        text = self.read("roster")
        return None if text is None else parse_roster(text.decode(), "the study's roster")

    @property
    def roster_words(self) -> str:
        """The roster's four words; empty until all parties have shown their numbers."""
        roster, nonces = self.roster, self.standing().nonces
        return roster_words(roster, nonces) if roster is not None and nonces else ""


def _build_roster(coordinator: PublicIdentity, guests: list[Guest], previous: PinnedRoster | None) -> PinnedRoster:
    by_role = {
        role: [guest.party for guest in guests if guest.role is role and guest.party is not None]
        for role in (Role.SITE, Role.MONITOR)
    }
    rows = {guest.name: guest.max_rows for guest in guests if guest.role is Role.SITE and guest.max_rows}
    return build_roster(coordinator, by_role[Role.SITE], previous, by_role[Role.MONITOR], rows)


def new_secret() -> bytes:
    """Draw the 32-byte secret of an invitation."""
    return secrets.token_bytes(32)
