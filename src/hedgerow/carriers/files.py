# SPDX-License-Identifier: Apache-2.0
"""Runs whose messages are files, for sites without a connection: ``hedgerow carry out`` and ``hedgerow carry in``.

Every process ends between two steps, at both ends, and days may pass. A site's node lives for one request anyway. The
coordinator notes every reply that was carried in, and the time, before anything follows from it. Each process then
plays the run from its beginning over what was noted (`Replay`). It comes out where the last one was, byte for byte.
Keys, nonces and noise are drawn from one secret and all that was noted before, so whatever differs is drawn anew.

A file is what an app hands to a node on one machine (`HandedOn`, `HandedBack`): the release of Hedgerow, and an
envelope. Beside each lies a page for the person who has to let it pass.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from hedgerow.app.inputs import output_folder, read_plan, read_policy
from hedgerow.app.options import CoordinatorOptions, NodeOptions
from hedgerow.app.output import note, warn
from hedgerow.carriers.coordinator import coordinate, name_journal
from hedgerow.carriers.handing import MAX_HANDED_BYTES, HandedBack, HandedOn, hand_on, require_version
from hedgerow.carriers.pages import describe_reply, describe_request
from hedgerow.carriers.site import LinkStore, build_node, check_site
from hedgerow.codec import database_version
from hedgerow.crypto import DerivedEntropy
from hedgerow.errors import EnvironmentFault, HedgerowError, RemoteProtocolError, UsageError
from hedgerow.models.model import Model, write_atomically
from hedgerow.plan.fields import refuse
from hedgerow.privacy.statement import FILES
from hedgerow.protocol.refusals import WireRefusal
from hedgerow.storage import Database
from hedgerow.transport.carrier import Clock, Fetched, Patience, Waiting
from hedgerow.transport.envelope import Envelope, EnvelopeKind, parse, require_signature
from hedgerow.transport.identities import PinnedRoster, read_private, read_roster
from hedgerow.version import __version__

_REQUEST, _REPLY = "request", "reply"
_MIN_SECONDS = 86400.0
"""Shortest time limit in seconds for runs by files, which people carry."""
_SETTLING = 5.0
"""Seconds that pass in a run, at most, after what was carried in at one time was read."""
_PATIENCE = Patience(poll=0.5, longest_poll=0.5, repeat=60.0, longest_repeat=60.0, closing=0.0)
_KEPT = "carried.reply"
_SCHEMA = """
create table if not exists run (one integer primary key check (one = 1), secret blob, release text, is_over integer);
create table if not exists noted (number integer primary key, moment real, request blob, reply blob);
create table if not exists sent (number integer primary key, site text, request blob, envelope blob)
"""
_VERSION = 1
_Noted = tuple[float, bytes]
"""When it was carried in, and the reply; without one, only that the coordinator looked."""


def name_file(site: str, number: int, kind: str) -> str:
    """Return the name of a file; numbers grow by one within a run, and a reply has its request's number."""
    return f"{site}-{number}.{kind}"


def find_files(folder: Path, site: str, kind: str) -> list[Path]:
    """Return the files in a folder named for this site, in order; EnvironmentFault if there is no folder."""
    pattern = re.compile(rf"{re.escape(site)}-[0-9]{{1,10}}\.{kind}")
    try:
        found = [path for path in folder.iterdir() if pattern.fullmatch(path.name)]
    except OSError as fault:
        raise EnvironmentFault("file-not-read", path=folder, fault=fault.strerror or fault) from None
    return sorted(found, key=lambda path: int(path.stem.rpartition("-")[2]))


def _refuse(path: Path, fault: str) -> RemoteProtocolError:
    """Make the error about a file in the folder that is not taken, with its name."""
    return RemoteProtocolError("carried-file", path=path, fault=fault)


def _read(path: Path, kind: type[HandedOn] | type[HandedBack], identity_key: bytes) -> tuple[bytes, Envelope]:
    """Read the envelope in a file, as bytes and parsed, and check its signature by this key.

    Raises:
        RemoteProtocolError: `carried-file`, with the file's name.
    """
    try:
        # Do not block: the folder may hold a pipe or a device, which would be waited for or read without end.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise _refuse(path, "it is no file")
            found = kind.from_bytes(stream.read(MAX_HANDED_BYTES + 1))
        data = found.request if isinstance(found, HandedOn) else found.reply
        envelope = parse(data)
    except OSError as fault:
        raise _refuse(path, f"it cannot be read, {fault.strerror or fault}") from None
    except (ValueError, WireRefusal):
        raise _refuse(path, "it is not whole, or not such a file") from None
    if isinstance(found, HandedOn):
        require_version(found.version, "The coordinator")
    try:
        require_signature(data, identity_key)
    except WireRefusal:
        raise _refuse(path, "the roster's key has not signed what it holds") from None
    return data, envelope


def _read_reply(path: Path, roster: PinnedRoster, site: str) -> tuple[bytes, Envelope]:
    """Read a site's reply from its file; raise as `_read`."""
    pinned = roster.site(site)
    if pinned is None:
        raise UsageError("party-file", path=path, fault=f"{site} is not in the roster")
    reply, envelope = _read(path, HandedBack, pinned.identity_key)
    if envelope.site != site or envelope.kind not in (EnvelopeKind.REPLY, EnvelopeKind.LOST):
        raise _refuse(path, f"it is not a reply of {site}")
    return reply, envelope


def _write_request(folder: Path, site: str, envelope: bytes) -> None:
    """Write a site's request, with its page."""
    data, about = hand_on(envelope), parse(envelope)
    name = name_file(site, about.number, _REQUEST)
    _write(folder, name, data, describe_request(name, data, about, site))


def _write(folder: Path, name: str, data: bytes, page: str) -> None:
    """Write a file and its page, replacing whatever the carrier of the folder may have put there."""
    for path, content in ((folder / name, data), (folder / f"{name}.txt", page.encode())):
        write_atomically(path, content, replaces=True)
    note(f"Written: {folder / name}, {len(data):,} bytes, and its page.")


def _take_all(paths: Iterable[Path], take: Callable[[Path], bool]) -> int:
    """Take files in, past refused ones; return the number of new files, or raise the first refusal."""
    n_new, n_known, refused = 0, 0, list[HedgerowError]()
    for path in paths:
        try:
            is_new = take(path)
            n_new, n_known = n_new + is_new, n_known + (not is_new)
        except RemoteProtocolError as fault:
            refused.append(fault)
            warn(str(fault))
    if refused:
        raise refused[0]
    if n_known:
        note(f"Taken before: {n_known} file{'s' * (n_known > 1)}.")
    return n_new


# A site ---------------------------------------------------------------------------------------------------------------


def carry_into_site(file: NodeOptions, folder: Path) -> None:
    """Answer the coordinator's requests in a folder, and keep the answer for `carry_out_of_site`.

    Before each new answer the tables are looked at, as `check_site` does: until a sum was masked, it is made of
    the rows that they have then.

    Raises:
        RemoteProtocolError: `carried-file`; the other files of the folder were taken all the same.
        HedgerowError: as `check_site` and `CarriedNode.answer`.
    """
    name, roster = read_private(Path(file.identity)).public.name, read_roster(Path(file.roster))
    state = file.state_folder(name)

    def take(path: Path) -> bool:
        request, envelope = _read(path, HandedOn, roster.coordinator.identity_key)
        if envelope.kind not in (EnvelopeKind.GREETING, EnvelopeKind.REQUEST) or envelope.site != name:
            raise _refuse(path, f"it is not for {name}")
        with closing(LinkStore(state, roster.coordinator.identity_key)) as store:
            link = store.load()
        if link is not None and envelope.number < link.number:
            return False
        is_next = link is not None and envelope.link == link.link and envelope.number <= link.number + 1
        if envelope.kind is EnvelopeKind.REQUEST and not is_next:
            raise _refuse(path, "the file before it has not been carried in")
        is_new = link is None or envelope.digest != link.request
        if is_new:
            # Check the tables again, because each process is a start of the node and the owner may have removed rows.
            check_site(file)
        write_atomically(state / _KEPT, build_node(file).answer(request))
        if is_new:
            note(f"{path.name} is answered.")
        return is_new

    if not _take_all(find_files(folder, name, _REQUEST), take):
        note(f"Nothing new for {name} in {folder}.")


def carry_out_of_site(file: NodeOptions, folder: Path) -> None:
    """Write the answer to the last request carried in, with its page."""
    name = read_private(Path(file.identity)).public.name
    state = file.state_folder(name)
    try:
        reply = (state / _KEPT).read_bytes()
    except FileNotFoundError:
        note(f"{name} has nothing to carry out: nothing has been carried in.")
        return
    envelope, data = parse(reply), HandedBack(reply).to_bytes()
    with closing(LinkStore(state, read_roster(Path(file.roster)).coordinator.identity_key)) as store:
        messages = store.open_reply(name, envelope)
    named = name_file(name, envelope.number, _REPLY)
    page = describe_reply(named, data, envelope, messages, state, read_policy(file.policy))
    _write(output_folder(str(folder)), named, data, page)


# The coordinator ------------------------------------------------------------------------------------------------------


class Replay:
    """Carrier and clock of a run replayed from its notes.

    Args:
        secret: 32 bytes, of this run alone.
        noted: what was carried in, and when, in its order.
    """

    place = FILES

    def __init__(self, roster: PinnedRoster, secret: bytes, noted: Sequence[_Noted]) -> None:
        self._sites, self._noted = [site.name for site in roster.sites], noted
        self._next, self._is_over = 1, False
        self._began = noted[0][0]
        self._now = self._tick = 0.0
        self._entropy = DerivedEntropy(secret, repr(self._began).encode())
        self.sent: list[tuple[str, bytes]] = []
        """Every envelope that the run has posted, with whom it is for."""

    def nodes(self) -> Mapping[int, str]:
        """Return all sites of the roster by number."""
        return dict(enumerate(self._sites))

    def push(self, envelopes: Sequence[tuple[int, bytes]]) -> list[str | None]:
        """Note each envelope as sent once and return its digest as its number; after the end send nothing."""
        if self._is_over:
            return [None] * len(envelopes)
        posted = [(self._sites[node], data) for node, data in envelopes]
        self.sent += [one for one in posted if one not in self.sent]
        return [parse(data).digest.hex() for _, data in posted]

    def pull(self, numbers: Iterable[str]) -> list[Fetched]:
        """Return the next noted reply that answers one of these envelopes, moving the clock to its time."""
        awaited = set(numbers)
        while self._next < len(self._noted) and (reply := self._noted[self._next][1]):
            self._note(reply)
            if (number := parse(reply).request.hex()) in awaited:
                return [Fetched(number, reply)]
        return []

    def now(self) -> float:
        """Seconds since the run began."""
        return self._now

    def date(self) -> float:
        """Return the time when the run began."""
        return self._began

    def sleep(self, seconds: float) -> None:
        """Let time pass until the next look; raises Waiting where there was none."""
        self._now += seconds
        if self._now - self._tick < _SETTLING or self._is_over:
            return
        if self._next == len(self._noted):
            self._is_over = True
            raise Waiting
        self._now = self._tick = max(self._now, self._noted[self._next][0] - self._began)
        self._note(repr(self._tick).encode())

    def entropy(self, n_bytes: int) -> bytes:
        """Return random bytes derived from the secret and from all notes up to now."""
        return self._entropy.draw(n_bytes)

    def _note(self, content: bytes) -> None:
        self._entropy.hear(content)
        self._next += 1


class CarriedRun:
    """A coordinator's run, as it is on the disk between two processes.

    What is noted holds, until the run is over, what a running coordinator has in its memory: its owner's alone, 0600.

    Raises EnvironmentFault, as `Database`.
    """

    def __init__(self, file: CoordinatorOptions) -> None:
        self._file, self._roster = file, read_roster(Path(file.roster))
        self._model = Model.load(file.model) if file.model else None
        self._journal = Path(name_journal(file, self._model))
        place = self._journal.with_name(f"{self._journal.name}.carried")
        self._database = Database(place, _SCHEMA, database_version(_VERSION))
        self._database.rows("pragma secure_delete = on")

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @property
    def is_begun(self) -> bool:
        """True if there is a run."""
        return bool(self._database.rows("select 1 from run"))

    def begin(self) -> None:
        """Begin a run; raise PlanError for a plan with time limits too short for files, and UsageError."""
        file, journal = self._file, self._journal
        plan = read_plan(file.plan, is_own=True) if self._model is None else self._model.plan
        for name in ("join_timeout", "round_timeout"):
            if (seconds := getattr(plan.federation, name)) < _MIN_SECONDS:
                expected = f"{_MIN_SECONDS:g} s (a day) or more, for files are carried by people"
                raise refuse(f"federation.{name}", seconds, expected)
        if journal.exists():
            raise UsageError("journal-of-another-run", path=journal)
        if file.model and os.path.realpath(file.out) == os.path.realpath(file.model):
            # Overwritten, the model would differ, and the next command would evaluate it and pay again.
            fault = "by files, coordinator.out has to be another file than coordinator.model"
            raise UsageError("party-file", path=file.out, fault=fault)
        values = (os.urandom(32), __version__)
        self._database.write(("insert into run values (1, ?, ?, 0)", values), self._look())

    def look(self) -> None:
        """Note the present time, so that time passes in the run."""
        if not self._is_over:
            self._database.write(self._look())

    @staticmethod
    def _look() -> tuple[str, tuple[object, ...]]:
        return "insert into noted (moment, request, reply) values (?, x'', x'')", (time.time(),)

    def take(self, path: Path, site: str) -> bool:
        """Note a site's reply from a file; return False if it was noted before. Raises `carried-file`."""
        reply, envelope = _read_reply(path, self._roster, site)
        sent = self._database.rows("select site from sent where request = ?", (envelope.request,))
        if sent != [(site,)]:
            raise _refuse(path, f"it answers no file of this run to {site}")
        before = self._database.rows("select reply from noted where request = ?", (envelope.request,))
        if before:
            if before != [(reply,)]:
                raise _refuse(path, f"{site} has answered the same file otherwise before")
            return False
        if envelope.request not in {parse(data).digest for _, data in self.waiting()}:
            note(f"{path.name} is late: the run has gone on without it.")
            return True
        statement = "insert into noted (moment, request, reply) values (?, ?, ?)"
        self._database.write((statement, (time.time(), envelope.request, reply)))
        note(f"{path.name} is carried in.")
        return True

    def carry_in(self, folder: Path) -> None:
        """Take the files of all sites in, and go on as far as they lead; raises as `_take_all` and `go_on`."""
        if self._is_over:
            note("The run is over; nothing more is carried in.")
            return
        self.look()
        try:
            names = [site.name for site in self._roster.sites]
            whose = {path: name for name in names for path in find_files(folder, name, _REPLY)}
            _take_all(whose, lambda path: self.take(path, whose[path]))
        finally:
            self.go_on()

    @property
    def _is_over(self) -> bool:
        return bool(self._database.rows("select 1 from run where is_over"))

    def go_on(self) -> None:
        """Replay the run from its notes and store what it sends; raise HedgerowError if it is over for good.

        Raises UsageError `journal-of-another-run` where it does not come out where it was.
        """
        ((secret, release, is_over),) = self._database.rows("select secret, release, is_over from run")
        if is_over:
            return
        require_version(release, "This run")
        noted = self._database.rows("select moment, reply from noted order by number")
        replay = Replay(self._roster, secret, noted)
        for beside in ("", "-wal", "-shm"):
            # Delete the journal, which follows from the notes and is written again.
            Path(f"{self._journal}{beside}").unlink(missing_ok=True)
        failure: HedgerowError | None = None
        with suppress(Waiting):
            try:
                clock = Clock(replay.now, replay.sleep, replay.entropy, replay.date)
                coordinate(self._file, replay, _PATIENCE, clock, quiet=True)
            except HedgerowError as fault:
                if isinstance(fault, EnvironmentFault | UsageError) or fault.code == "run-paused":
                    # Not a result of what was carried in: the operator can remove the cause and go on.
                    raise
                failure = fault
            # A run that failed is over too: a replay would fail again, and its secret is of no further use.
            is_over = True
        before = self._database.rows("select site, envelope from sent order by number")
        if failure is not None and not replay.sent:
            raise failure
        if before != replay.sent[: len(before)]:
            raise UsageError("journal-of-another-run", path=self._database.path)
        new = [(site, parse(data).digest, data) for site, data in replay.sent[len(before) :]]
        insert = "insert into sent (site, request, envelope) values (?, ?, ?)"
        ending = [("update run set is_over = 1, secret = x''", ()), ("update noted set reply = x''", ())]
        self._database.write(*((insert, values) for values in new), *(ending if is_over else []))
        if failure is not None:
            raise failure

    def waiting(self) -> list[tuple[str, bytes]]:
        """Return each site's last envelope, if the site has not answered it."""
        last = "select max(number) from sent group by site"
        is_open = f"number in ({last}) and request not in (select request from noted)"
        return self._database.rows(f"select site, envelope from sent where {is_open} order by site")

    def carry_out(self, folder: Path) -> None:
        """Write the unanswered envelopes for the sites, with a page for each."""
        place = output_folder(str(folder))
        for site, envelope in self.waiting():
            _write_request(place, site, envelope)
        if not self.waiting():
            note("Nothing waits to be carried out.")


class FolderCarrier:
    """Carrier over a folder, polled while the coordinator also listens for other sites.

    Args:
        sites: whose messages are files.
    """

    place = FILES

    def __init__(self, roster: PinnedRoster, sites: Sequence[str], folder: Path) -> None:
        self._roster, self._sites, self._folder = roster, sites, folder
        self._looked_at: set[tuple[str, int, int]] = set()
        self._asked = dict[str, str]()
        """Whom each request is for: they all lie in one folder, where one site's courier may read another's."""

    def nodes(self) -> Mapping[int, str]:
        """Return the sites served by files, by number."""
        return dict(enumerate(self._sites))

    def push(self, envelopes: Sequence[tuple[int, bytes]]) -> list[str | None]:
        """Write each envelope into the folder, and return its digest as its number."""
        for node, data in envelopes:
            _write_request(self._folder, self._sites[node], data)
            self._asked[parse(data).digest.hex()] = self._sites[node]
        return [parse(data).digest.hex() for _, data in envelopes]

    def pull(self, numbers: Iterable[str]) -> list[Fetched]:
        """Read new replies from the folder; a refused file is reported once, and read again if it changes."""
        awaited, found = set(numbers), list[Fetched]()
        for site in self._sites:
            for path in find_files(self._folder, site, _REPLY):
                try:
                    status = path.stat()
                except OSError:
                    continue  # The file was moved away, or is a dangling link.
                stamp = (path.name, status.st_mtime_ns, status.st_size)
                if stamp in self._looked_at:
                    continue
                self._looked_at.add(stamp)
                try:
                    reply, envelope = _read_reply(path, self._roster, site)
                    if self._asked.get(number := envelope.request.hex(), site) != site:
                        raise _refuse(path, f"it answers no file of this run to {site}")
                except RemoteProtocolError as fault:
                    warn(f"{fault} ({fault.code})")
                    continue
                if number in awaited:
                    note(f"{path.name} is carried in.")
                    found.append(Fetched(number, reply))
        return found


def run_beside_grpc(file: CoordinatorOptions, folder: Path) -> None:
    """Carry out a run with sites by files and by gRPC; stay until it is over. It can be started again."""
    roster, place = read_roster(Path(file.roster)), output_folder(str(folder))
    if strangers := set(file.by_files) - {site.name for site in roster.sites}:
        raise UsageError("party-file", path=file.roster, fault=f"{min(strangers)} is not in it")
    patience = Patience(poll=0.5, longest_poll=2.0, repeat=_MIN_SECONDS, longest_repeat=_MIN_SECONDS, closing=5.0)
    coordinate(file, FolderCarrier(roster, file.by_files, place), patience)


def carry_into_coordinator(file: CoordinatorOptions, folder: Path) -> None:
    """Take the sites' answers in, and go on with the run as far as they lead."""
    with closing(CarriedRun(file)) as run:
        if not run.is_begun:
            raise UsageError("no-open-run", path=file.out)
        run.carry_in(folder)


def carry_out_of_coordinator(file: CoordinatorOptions, folder: Path) -> None:
    """Write the next requests to the sites, beginning the run if needed; with `listen` stay to its end."""
    if file.listen:
        run_beside_grpc(file, folder)
        return
    with closing(CarriedRun(file)) as run:
        if not run.is_begun:
            run.begin()
        elif not run.waiting():
            # Let time pass in the run: it may be time to repeat a request.
            run.look()
        try:
            run.go_on()
        finally:
            # A run that was given up also tells its sites.
            run.carry_out(folder)
