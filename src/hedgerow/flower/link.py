"""The node's end of the engine `flower`: one request in, one reply out, everything in between on the node's own disk.

Flower starts a new process for every message, perhaps on the other side of a restart. So a request is noted before it
is worked on and its reply before it leaves: a repeated request gets the same bytes again, and one whose process ended
in between is answered with "lost", after which the coordinator greets the node again, as after a broken connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hedgerow.client.budget import BudgetBook
from hedgerow.client.node_session import NodeSession
from hedgerow.client.policy import NodeSetup, asked_by
from hedgerow.client.state import NodeStore
from hedgerow.codec import stored_version
from hedgerow.errors import DataError, HedgerowError
from hedgerow.flower.envelope import (
    KEY_BYTES,
    Envelope,
    Kind,
    LinkKeys,
    messages_in,
    parse,
    public_key,
    require_signature,
    sealed,
    sign,
)
from hedgerow.protocol.messages import (
    FROM_COORDINATOR,
    EvaluationInvitation,
    Hello,
    Invitation,
    NodeState,
    Refused,
    Welcome,
    decode,
    encode,
)
from hedgerow.protocol.stream import WireCode, WireRefusal
from hedgerow.storage import Database
from hedgerow.transport.identities import PrivateIdentity
from hedgerow.transport.roster_file import PinnedRoster, require_pinned

_SCHEMA = """
create table if not exists link (
    one integer primary key check (one = 1), link blob not null, hub_key blob not null, secret blob not null,
    number integer not null, request blob not null, reply blob, kept blob not null
)
"""
_VERSION = 2


@dataclass
class _Link:
    """The link that the node is in: what its file holds."""

    link: bytes
    hub_key: bytes
    secret: bytes = field(repr=False)
    number: int
    request: bytes
    reply: bytes | None = None
    kept: bytes = field(default=b"", repr=False)


class LinkStore:
    """The link of one node, in a file of its own (mode 0600). One process at a time has it open.

    Raises EnvironmentFault, as `Database`: "database-locked" while another process answers a request.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._database = Database(folder / "flower.db", _SCHEMA, stored_version(_VERSION))
        # What was replaced is overwritten, so that a link's old keys cannot be read from the file.
        self._database.rows("pragma secure_delete = on")

    def load(self) -> _Link | None:
        """The link written last."""
        rows = self._database.rows("select link, hub_key, secret, number, request, reply, kept from link")
        return _Link(*rows[0]) if rows else None

    def save(self, link: _Link) -> None:
        """On the disk when this returns."""
        values = (link.link, link.hub_key, link.secret, link.number, link.request, link.reply, link.kept)
        self._database.write(("insert or replace into link values (1, ?, ?, ?, ?, ?, ?, ?)", values))

    def close(self) -> None:
        """Close the file."""
        self._database.close()


class FlowerNode:
    """A site's node that lives for one request.

    Args:
        identity: the site's, from its own file, as `roster`.
        roster: the roster that the site has pinned.
        setup: what the node's owner gives it.
        folder: the node's own, for its states.
        budget: the budget book's file.
        report: takes a failure in full, for the owner's eyes.
    """

    def __init__(
        self,
        identity: PrivateIdentity,
        roster: PinnedRoster,
        setup: NodeSetup,
        folder: Path,
        budget: Path,
        report: Callable[[HedgerowError], None],
    ) -> None:
        require_pinned(identity, roster)
        self._identity, self._roster, self._setup = identity, roster, setup
        self._folder, self._budget, self._report = folder, budget, report

    def answer(self, data: bytes) -> bytes:
        """The reply to one request.

        Raises WireRefusal for an envelope that the pinned coordinator did not make, or that is not for this site, and
        EnvironmentFault when the disk refuses: then nothing has been answered, and the request may come again.
        """
        request = parse(data)
        require_signature(data, self._roster.coordinator.identity_key)
        if request.kind not in (Kind.GREETING, Kind.REQUEST) or request.site not in ("", self._identity.public.name):
            raise WireRefusal(WireCode.UNEXPECTED_FRAME)
        store = LinkStore(self._folder)
        try:
            return self._reply(request, store)
        finally:
            store.close()

    def _reply(self, request: Envelope, store: LinkStore) -> bytes:
        link = store.load()
        is_same = link is not None and link.link == request.link
        if link is not None and is_same and link.request == request.digest:
            return self._lost(request) if link.reply is None else link.reply
        entropy = self._setup.entropy
        if request.kind is Kind.GREETING:
            # A greeting that was used before would bring old keys back.
            link = None if is_same else _Link(request.link, request.key, entropy(KEY_BYTES), 0, request.digest)
        elif link is not None and is_same and request.number == link.number + 1:
            link.number, link.request, link.reply = request.number, request.digest, None
        else:
            link = None
        if link is None:
            return self._lost(request)
        keys = LinkKeys.agree(link.secret, link.hub_key, link.link, self._identity.public.name)
        messages = messages_in(request, keys.to_node)
        store.save(link)
        answers, link.kept = self._work(messages, link, is_greeting=request.kind is Kind.GREETING)
        reply = self._envelope(Kind.REPLY, request, public_key(link.secret))
        link.reply = sign(sealed(reply, keys.to_hub, answers, entropy), self._identity.seed)
        store.save(link)
        return link.reply

    def _work(self, messages: Sequence[bytes], link: _Link, *, is_greeting: bool) -> tuple[list[bytes], bytes]:
        """What the session answers, and what the next process needs of it."""
        with self._files() as (store, book):
            try:
                session = NodeSession(self._setup, store, book)
            except HedgerowError as fault:
                # Its rows, plan or policy have changed since the run began: the coordinator is told that it refuses.
                self._report(fault)
                code = fault.public_code if isinstance(fault, DataError) else fault.code
                for message in (decode(each, FROM_COORDINATOR) for each in messages):
                    if isinstance(message, Invitation | EvaluationInvitation):
                        book.note_invitation(asked_by(message), fault.code)
                return ([encode(Hello(0))] if is_greeting else []) + [encode(Refused(0, code))], b""
            if session.set_aside is not None and is_greeting:
                self._report(session.set_aside)
            answers = self._greet(session, messages) if is_greeting else self._go_on(session, messages, link.kept)
            if session.failure is not None:
                self._report(session.failure)
            return answers, session.kept()

    def _greet(self, session: NodeSession, messages: Sequence[bytes]) -> list[bytes]:
        """A new connection. What a greeting carries is for nodes that are in no epoch: the others are in the run."""
        answers = session.connected()
        for answer in list(answers):
            hello = decode(answer)
            if isinstance(hello, Hello):
                # Nothing of an earlier link opens in this one: its keys do what the coordinator's Welcome does.
                session.receive(encode(Welcome(hello.connection)))
        if session.state is NodeState.OUTSIDE:
            for message in messages:
                answers += session.receive(message)
        return answers

    @staticmethod
    def _go_on(session: NodeSession, messages: Sequence[bytes], content: bytes) -> list[bytes]:
        session.take_up(content)
        return [answer for message in messages for answer in session.receive(message)]

    @contextmanager
    def _files(self) -> Iterator[tuple[NodeStore, BudgetBook]]:
        store = NodeStore(self._folder)
        try:
            book = BudgetBook(self._budget)
            try:
                yield store, book
            finally:
                book.close()
        finally:
            store.close()

    def _lost(self, request: Envelope) -> bytes:
        return sign(self._envelope(Kind.LOST, request, bytes(KEY_BYTES)), self._identity.seed)

    def _envelope(self, kind: Kind, request: Envelope, key: bytes) -> Envelope:
        return Envelope(kind, self._identity.public.name, request.link, request.number, key, request.digest)
