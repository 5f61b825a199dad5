# SPDX-License-Identifier: Apache-2.0
"""A site's node, whatever carries its messages: Flower, NVFlare, files.

It answers as a node over gRPC would: the same policy, the same state, the same budget book. It lives for one request,
or stays (`carriers.resident`) and keeps the session of its run in memory.

One request comes in and one reply goes out, and everything that the next request needs is on the node's own disk.
Whether the node stays or not, the next request may find another process, perhaps on the other side of a restart. So a
request is noted before it is worked on and its reply before it leaves. A repeated request gets the same bytes again,
and one whose process ended in between is answered with "lost", after which the coordinator greets the node again, as
after a broken connection.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from hedgerow.app.fit import Tell, ask_about_left_out_rows
from hedgerow.app.inputs import is_terminal
from hedgerow.app.node import list_tables, make_setup, read_owner
from hedgerow.app.options import NodeOptions
from hedgerow.app.output import note, tell
from hedgerow.app.owner import approval_command, list_facts
from hedgerow.app.rows import check_table, make_loader, read_rows_ahead
from hedgerow.builds import describe_build
from hedgerow.carriers import read_site_file
from hedgerow.client.budget import BudgetBook, book_file, note_book
from hedgerow.client.joining import check_own_plan
from hedgerow.client.node import available_threads, use_threads
from hedgerow.client.node_session import NodeSession
from hedgerow.client.setup import LoadRows, NodeSetup
from hedgerow.client.state import OPEN, RUN_ROWS, NodeStore
from hedgerow.codec import database_version
from hedgerow.crypto import KEY_BYTES
from hedgerow.errors import HedgerowError
from hedgerow.methods.tasks import read_invitation
from hedgerow.protocol.messages import (
    FROM_COORDINATOR,
    EvaluationInvitation,
    Hello,
    Invitation,
    NodeState,
    Refused,
    SurveyInvitation,
    Welcome,
    decode,
    encode,
)
from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.storage import Database
from hedgerow.transport.envelope import (
    HIGHEST_NUMBER,
    Envelope,
    EnvelopeKind,
    LinkKeys,
    derive_public_key,
    open_messages,
    parse,
    require_signature,
    seal_messages,
    sign,
)
from hedgerow.transport.identities import PinnedRoster, PrivateIdentity, require_pinned

_SCHEMA = """
create table if not exists link (
    coordinator blob primary key, link blob not null, hub_key blob not null, secret blob not null,
    number integer not null, request blob not null, reply blob, kept blob not null
)
"""
_VERSION = 3
_ENDED = (NodeState.FINISHED, NodeState.STOPPED)
_END = "update link set link = x'', hub_key = x'', secret = x'', request = x'', reply = null, kept = x''"


@dataclass
class _Link:
    """The node's present link, as its file holds it."""

    link: bytes
    hub_key: bytes
    secret: bytes = field(repr=False)
    number: int
    request: bytes
    reply: bytes | None = None
    kept: bytes = field(default=b"", repr=False)


class LinkStore:
    """The link of one node, in a file of its own (mode 0600). One process at a time has it open.

    Numbers are counted for each coordinator by itself, whose key is `coordinator`. One that went too high has shut
    itself out, and not who coordinates by a later roster. What it has sent stays known, should its roster come back.

    Raises EnvironmentFault, as `Database`: "database-locked" while another process answers a request.
    """

    def __init__(self, folder: Path, coordinator: bytes) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._coordinator = coordinator
        self._database = Database(folder / "link.db", _SCHEMA, database_version(_VERSION))
        # What was replaced is overwritten, so that a link's old keys cannot be read from the file.
        self._database.rows("pragma secure_delete = on")

    def load(self) -> _Link | None:
        """Return the link with this coordinator that was saved last."""
        fields = "link, hub_key, secret, number, request, reply, kept"
        rows = self._database.rows(f"select {fields} from link where coordinator = ?", (self._coordinator,))
        return _Link(*rows[0]) if rows else None

    def save(self, link: _Link) -> None:
        """Save a link; it is on the disk when this returns."""
        own = (self._coordinator,)
        values = (link.link, link.hub_key, link.secret, link.number, link.request, link.reply, link.kept)
        save = "insert or replace into link values (?, ?, ?, ?, ?, ?, ?, ?)"
        self._database.write((f"{_END} where coordinator != ?", own), (save, own + values))

    def open_reply(self, site: str, reply: Envelope) -> tuple[bytes, ...]:
        """Return the messages in this site's reply of the present link; none from a LOST reply."""
        link = self.load()
        if link is None or link.link != reply.link or reply.kind is not EnvelopeKind.REPLY:
            return ()
        return open_messages(reply, LinkKeys.agree(link.secret, link.hub_key, link.link, site).to_hub)

    def close(self) -> None:
        """Close the file."""
        self._database.close()


class CarriedNode:
    """A site's node, for one request or for many.

    A node that stays keeps its session and its files open while it is in a run. What a fault leaves in memory may
    differ from the disk, so the next request then begins from the disk.

    Args:
        identity: the site's, from its own file, as `roster`.
        folder: the node's own, for its states, and for what its owner alone is told.
        budget: the budget book's file.
        stays: keep the session of a run from one request to the next.
    """

    def __init__(
        self,
        identity: PrivateIdentity,
        roster: PinnedRoster,
        setup: NodeSetup,
        folder: Path,
        budget: Path,
        *,
        stays: bool = False,
    ) -> None:
        require_pinned(identity, roster)
        self._identity, self._roster, self._setup = identity, roster, setup
        self._folder, self._budget, self._stays = folder, budget, stays
        self._open = ExitStack()
        self._links: LinkStore | None = None
        self._session: NodeSession | None = None

    def answer(self, data: bytes) -> bytes:
        """Answer one request.

        Raises WireRefusal for an envelope that the pinned coordinator did not make, or that is not for this site.
        Raises EnvironmentFault if the disk refuses; then nothing has been answered, and the request may come again.
        """
        request = parse(data)
        require_signature(data, self._roster.coordinator.identity_key)
        is_ours = request.site in ("", self._identity.public.name)
        if request.kind not in (EnvelopeKind.GREETING, EnvelopeKind.REQUEST) or not is_ours:
            raise WireRefusal(WireCode.UNEXPECTED_FRAME)
        is_kept = False
        try:
            if self._links is None:
                store = LinkStore(self._folder, self._roster.coordinator.identity_key)
                self._links = self._open.enter_context(closing(store))
            with use_threads(self._setup.n_threads):
                reply = self._reply(request, self._links)
            session = self._session
            is_kept = self._stays and session is not None and session.run_id != b"" and session.state not in _ENDED
            return reply
        finally:
            if not is_kept:
                self.close()

    def close(self) -> None:
        """Close the files; the next request begins from the disk."""
        self._session = self._links = None
        self._open.close()

    def _reply(self, request: Envelope, store: LinkStore) -> bytes:
        link = store.load()
        latest = -1 if link is None else link.number
        if link is not None and (link.link, link.request) == (request.link, request.digest):
            return self._answer_lost(request, latest) if link.reply is None else link.reply
        entropy, is_next = self._setup.entropy, request.number == latest + 1
        if request.kind is EnvelopeKind.GREETING and latest < request.number < HIGHEST_NUMBER:
            link = _Link(request.link, request.key, entropy(KEY_BYTES), request.number, request.digest)
        elif request.kind is EnvelopeKind.REQUEST and link is not None and link.link == request.link and is_next:
            link.number, link.request, link.reply = request.number, request.digest, None
        else:
            # Answer LOST: a replayed older greeting would take the node out of its run, and after too high a number the
            # coordinator could not greet again.
            return self._answer_lost(request, latest)
        keys = LinkKeys.agree(link.secret, link.hub_key, link.link, self._identity.public.name)
        messages = open_messages(request, keys.to_node)
        store.save(link)
        answers, link.kept = self._feed_session(messages, link, is_greeting=request.kind is EnvelopeKind.GREETING)
        reply = self._make_envelope(EnvelopeKind.REPLY, request, derive_public_key(link.secret))
        link.reply = sign(seal_messages(reply, keys.to_hub, answers, entropy), self._identity.seed)
        store.save(link)
        return link.reply

    def _feed_session(self, messages: Sequence[bytes], link: _Link, *, is_greeting: bool) -> tuple[list[bytes], bytes]:
        """Return the session's answers, and its state for the next process."""
        hello = [encode(Hello(0, build=describe_build()))] if is_greeting else []
        session, is_new = self._session, self._session is None
        if session is None:
            state = self._open.enter_context(closing(NodeStore(self._folder)))
            book = self._open.enter_context(closing(BudgetBook(self._budget)))
            try:
                session = NodeSession(self._setup, state, book)
            except HedgerowError as fault:
                # The rows, plan or policy have changed since the run began, so the node refuses.
                log_failure(self._folder, fault)
                for message in (decode(each, FROM_COORDINATOR) for each in messages):
                    if isinstance(message, Invitation | EvaluationInvitation | SurveyInvitation):
                        book.note_invitation(read_invitation(message)[0], fault.code)
                return [*hello, encode(Refused(0, fault.public_code))], b""
        if is_new and session.set_aside is not None and is_greeting:
            log_failure(self._folder, session.set_aside)
        stopped = session.consider()
        if session.failure is not None:
            answers = hello + stopped
        elif is_greeting:
            answers = self._greet(session, messages)
        else:
            if is_new:
                session.restore_pending(link.kept)
            answers = [answer for message in messages for answer in session.receive(message)]
        self._session = session
        if session.failure is not None:
            log_failure(self._folder, session.failure)
        if session.question is not None:
            said = "; ".join(f"{name}: {value}" for name, value in list_facts(session.question))
            command = approval_command(session.question, self._folder)
            _log(self._folder, f"The owner is asked first. {said}; {command}")
        return answers, session.pending_state()

    def _greet(self, session: NodeSession, messages: Sequence[bytes]) -> list[bytes]:
        """Open a new connection. The greeting's messages reach only nodes outside an epoch."""
        answers = session.connect()
        for answer in list(answers):
            hello = decode(answer)
            if isinstance(hello, Hello):
                # The link's new keys reject messages of earlier links, which is the purpose of the coordinator's
                # Welcome.
                session.receive(encode(Welcome(hello.connection)))
        is_outside = session.state is NodeState.OUTSIDE
        for number, message in enumerate(messages if is_outside else ()):
            if number and session.state is not NodeState.INVITED:
                break  # The node asks its owner first, or has refused.
            answers += session.receive(message)
        return answers

    def _answer_lost(self, request: Envelope, latest: int) -> bytes:
        """Reply that the link is lost, with the number of the last known request."""
        lost = self._make_envelope(EnvelopeKind.LOST, request, bytes(KEY_BYTES))
        return sign(replace(lost, number=max(0, latest)), self._identity.seed)

    def _make_envelope(self, kind: EnvelopeKind, request: Envelope, key: bytes) -> Envelope:
        return Envelope(kind, self._identity.public.name, request.link, request.number, key, request.digest)


LOG_FILE = "node.log"
_LOG_BYTES = 1 << 20
"""Longest log; a longer one is kept as node.old, replacing the former one."""


def check_site(options: NodeOptions) -> None:
    """Check a site's policy, plan and tables before a request; raise faults for the owner.

    The tables are read anew, for a run that is open as well, until this node has masked a sum in it. From then on that
    run's rows are held, and nothing is made to depend on what the tables have become.
    """
    with use_threads(options.threads or available_threads()) as n_threads:
        _, setup, folder = build_setup(options, n_threads)
        write = _make_teller(folder)

        def show(text: str, level: str = "") -> None:
            write(text, level)
            if level:
                note(text, level=level)

        with closing(NodeStore(folder)) as store:
            is_held = any(map(store.has_masked, store.run_ids(OPEN)))
            if not is_held:
                # Forget even rows read for the open run: the owner may have removed some, and nothing of them has left
                # yet.
                store.forget_rows()
        check_own_plan(setup)
        if is_held:
            said = "This node has answered in the run that is open. That takes the rows as they were when it read them,"
            return show(f"{said} whatever became of the tables; to give it up, start the node with --leave", "INFO")
        for table in filter(None, (options.data, options.held_out)):
            check_table(table, setup.policy.data)
        ask = ask_about_left_out_rows if is_terminal() else None
        read_rows_ahead(setup, list_tables(options, setup.policy), show, ask)


def build_setup(options: NodeOptions, n_threads: int) -> tuple[tuple[PrivateIdentity, PinnedRoster], NodeSetup, Path]:
    """Build the setup of a site's node; return it with the node's keys before and its own folder after it.

    A table, of a file or a database, is read once for each run. Its codes are held in external memory
    (`hedgerow.data.mapped`) until the run is over (`NodeStore.close_run`). Reading it for every message would cost more
    than answering, and all could see by this node's refusal that a row has come or changed in between.
    """
    policy, identity, roster, plan = read_owner(options)
    folder = options.state_folder(identity.public.name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    tell = _make_teller(folder)

    def read(data: str, name: str) -> LoadRows:
        return make_loader(data, tell=tell, own=policy.data, memory=folder / RUN_ROWS, name=name, holds=True)

    keys = identity, roster
    return keys, make_setup(options, keys, policy, plan, n_threads, read, tell), folder


def build_node(options: NodeOptions, *, stays: bool = False) -> CarriedNode:
    """Build a site's node, which may stay; raise UsageError."""
    with use_threads(options.threads or available_threads()) as n_threads:
        keys, setup, folder = build_setup(options, n_threads)
    budget = note_book(folder, book_file(options.budget, options.policy, setup.site))
    return CarriedNode(*keys, setup, folder, budget, stays=stays)


def answer_request(path: Path, request: bytes) -> bytes:
    """Answer one request for the site of this file; raise as `CarriedNode.answer`, and UsageError."""
    return build_node(read_site_file(path)).answer(request)


def _make_teller(folder: Path) -> Tell:
    # Lines for the owner go into the node's own folder.
    return lambda text, level="": _log(folder, f"{level} {text}".strip())


def log_failure(folder: Path, fault: HedgerowError) -> None:
    """Tell the owner of a failure: in full in the node's folder, and by its code in the carrier's log."""
    log = _log(folder, f"{fault} ({fault.code})")
    tell(f"hedgerow: {fault.code}; the rest stands in {log}", level="WARNING")


def _log(folder: Path, text: str) -> Path:
    """Write a line for the owner, and no one else, into the node's own folder; returns the file."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = folder / LOG_FILE
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        # Limit the log: a coordinator that is refused again and again must not fill the disk.
        log.replace(log.with_suffix(".old"))
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as stream:
        stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    return log
