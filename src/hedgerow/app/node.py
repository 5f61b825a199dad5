"""``hedgerow node``: take part in a run with this site's table, within what its owner allows; ``hedgerow ledger``.

An app of Flower is given its tables, models and budget book by the same functions.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.app.evaluation import score_facts
from hedgerow.app.inputs import address_of, is_terminal, read_plan, read_policy, signing_key, signing_roster
from hedgerow.app.output import begin_log, note, number, print_facts, print_json, today, warn
from hedgerow.app.owner import AtTheNode, Seen, Tell, ask_of_loss, command_of, look
from hedgerow.app.progress import survey_facts, told_if_slow
from hedgerow.client.budget import ACCEPTED, RESERVED, BudgetBook, BudgetLine, InvitationLine
from hedgerow.client.node import ArrivalFolder, available_threads, use_threads, warm_up
from hedgerow.client.node_session import NodeSession, close_reserved, leave, patience_of, run_node
from hedgerow.client.policy import (
    NodeSetup,
    Policy,
    check_own_plan,
    no_held_out_rows,
    no_raw_rows,
    no_training_rows,
    read_early,
    tell_of_more,
)
from hedgerow.client.state import ROSTER, NodeStore, OwnerDesk, Question
from hedgerow.data.adapters import PLAIN, Adapter
from hedgerow.data.fit import TableFit
from hedgerow.data.raw_cells import read_raw_site
from hedgerow.data.site_data import SiteData, read_site_data
from hedgerow.data.sources import Location, adapted, column_names, file_of, is_url, opened
from hedgerow.data.units import MOST_LEFT_OUT, ContributionReport, RowCount
from hedgerow.errors import (
    AggregationError,
    EnvironmentFault,
    HedgerowError,
    ModelError,
    PlanError,
    PolicyRefusal,
    PrivacyError,
    RemoteProtocolError,
    UsageError,
)
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.methods.tasks import digest_of_model
from hedgerow.models.model import Model, write_atomically, writes_over
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SystemNoise
from hedgerow.protocol.stream import Current, Result, Standing, Wanted, WireCode, WireRefusal, first_of, known
from hedgerow.survey.curves import SurvivalCurves
from hedgerow.survey.program import Findings
from hedgerow.survey.queries import RawSite
from hedgerow.survey.requests import Asked, Found
from hedgerow.transport import ENGINES
from hedgerow.transport.grpc_hub import ask
from hedgerow.transport.identities import (
    PinnedRoster,
    PrivateIdentity,
    adds_monitors_only,
    change_of,
    follows,
    parse_roster,
    read_private,
    read_roster,
    spoken,
)
from hedgerow.transport.interface import Connected, Disconnected, Repeats, Uplink, times
from hedgerow.trees.ensemble import Ensemble

if TYPE_CHECKING:
    from hedgerow.app.page import SitePage

_OLD_BOOK = "budget.db"
"""Earlier versions kept the book in the state folder, under this name."""
_PLACE = "budget.path"


def note_book(folder: Path, book: Path) -> Path:
    """Remember in the state folder where the book is; returns it. EnvironmentFault when that cannot be written."""
    text = f"{book.resolve()}\n".encode()
    place = folder / _PLACE
    try:
        if not place.exists() or place.read_bytes() != text:
            descriptor = os.open(place, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
    except OSError as fault:
        raise EnvironmentFault("rows-disk-full", place=place, fault=fault.strerror or fault) from fault
    return book


def book_of(given: Path) -> Path:
    """The book that a path names: a file as it is, a state folder's own."""
    if not given.is_dir():
        return given
    try:
        return Path((given / _PLACE).read_text(encoding="utf-8").rstrip("\n"))
    except (OSError, UnicodeDecodeError):
        return given / _OLD_BOOK


Load = Callable[[Plan], SiteData]
"""Reads a site's rows by a plan."""


def loader(
    data: str, query: str | None, *, strict: bool = False, tell: Tell | None = None, own: Adapter = PLAIN
) -> Load:
    """How the site's rows are read once there is a plan.

    Args:
        strict: refuse a row that does not fit, and a table without rows; else such rows are left out.
        tell: is given a sentence when rows are left out.
        own: how the site writes its table.

    Raises:
        UsageError: a URL without a query, or a query without a URL.
    """
    if query is not None and not is_url(data):
        raise UsageError("query-without-url")
    place = data if query is None else f"{data}#{query}"
    # A file is looked for when its rows are read; a URL may lack its query.
    source = opened(place).source if is_url(place) else data

    def load(plan: Plan) -> SiteData:
        return _said(read_site_data(adapted(place, own), plan, strict=strict), source, tell)

    return load


def raw_loader(data: str | None, query: str | None, own: Adapter = PLAIN) -> Callable[[Asked], RawSite]:
    """How the raw cells of the rows to train on are read, once a survey asks for them."""
    if data is None:
        return no_raw_rows
    place = data if query is None else f"{data}#{query}"
    name = "The query's result" if is_url(place) else Path(file_of(place)).name

    def tell_owner(rows: RowCount) -> None:
        said = f"{name}, for a survey: {rows.text()} (private: for this site only)"
        note(said, level="WARNING" if rows.share_left_out > MOST_LEFT_OUT else "INFO")

    return lambda asked: read_raw_site(adapted(place, own), asked, tell_owner)


def _said(read: tuple[SiteData, ContributionReport], source: str, tell: Tell | None) -> SiteData:
    rows, report = read
    if tell is not None and (report.unfit or report.warning or not rows.n_records):
        text = " ".join(filter(None, (report.text(), report.warning)))
        said = f"{source}: {text} (private: for this site only)"
        tell(said, level="WARNING") if report.rows.share_left_out > MOST_LEFT_OUT else tell(said)
    return rows


def check_table(data: str, own: Adapter = PLAIN) -> None:
    """Look at a table before there is a plan: it is there, and its header can be read. Raises DataError.

    A database is asked when there is a plan.
    """
    if not is_url(data):
        column_names(adapted(data, own))


def table_of(data: str | None, query: str | None, own: Adapter) -> list[Location]:
    """Where a table is, with its query; none where none is given."""
    return [] if not data else [adapted(data if not query else f"{data}#{query}", own)]


def with_rows_read(
    setup: NodeSetup, tables: Sequence[Location] = (), tell: Tell = note, seen: Seen | None = None
) -> NodeSetup:
    """The same, with the tables of its plan looked at and read already, before anyone is dialled.

    Without a plan they are read when the coordinator proposes one.

    Args:
        tables: those that `setup` reads.
        tell: is given what the owner should know of them.
        seen: is given all that was found of each.

    Raises:
        DataError: a table does not fit, or is too large.
        PolicyRefusal: too many cells lie beyond the plan: see `look`.
    """
    load, load_held_out = setup.load, setup.load_held_out
    if setup.plan is not None:
        for table in tables:
            look(table, setup.plan, setup.policy, tell, seen)
    if load is not no_training_rows:
        load = _read_now(load, setup.plan, tables, tell)
        if setup.plan is not None:
            tell_of_more(setup, load(setup.plan).n_records)
    if load_held_out is not no_held_out_rows:
        load_held_out = _read_now(load_held_out, setup.plan, tables, tell)
        if setup.plan is not None:
            tell_of_more(setup, load_held_out(setup.plan).n_records)
    return replace(setup, load=load, load_held_out=load_held_out)


def _read_now(load: Load, plan: Plan | None, tables: Sequence[Location], tell: Tell) -> Load:
    """As `read_early`; and the owner is told of a run that takes rows whose table was changed since."""
    before = _stamps(tables)
    early = read_early(load, plan)

    def loaded(offered: Plan) -> SiteData:
        if plan is not None and _stamps(tables) != before:
            tell(
                "A table was changed since it was read. The run takes the rows as they were then; to have it take the "
                "new ones, start the node again before a run begins (private: for this site only)"
            )
        return early(offered)

    return loaded


def _stamps(tables: Sequence[Location]) -> list[tuple[int, int] | None]:
    """What tells whether a file was changed: when it was written, and its bytes; None for what is not a file."""
    found: list[tuple[int, int] | None] = []
    for table in tables:
        try:
            status = None if is_url(table) else Path(file_of(table)).stat()
        except OSError:
            status = None
        found.append(status and (status.st_mtime_ns, status.st_size))
    return found


def arrivals_of(
    folder: str | None, *, strict: bool = False, tell: Tell | None = None, own: Adapter = PLAIN
) -> ArrivalFolder | None:
    """The folder of tables that come while a run goes on; None for none; EnvironmentFault when it is not there."""
    if folder is None:
        return None

    def read(path: Path, plan: Plan) -> SiteData:
        return _said(read_site_data(adapted(path, own), plan, strict=strict), path.name, tell)

    source = ArrivalFolder(Path(folder), read, strict, tell)
    source.names()
    return source


def note_leaving(store: NodeStore, book: BudgetBook, site: str) -> None:
    """Leave the run that the state folder of a site's node holds, and say so."""
    left = leave(store, book, site)
    note("The state holds no run to leave." if left is None else f"The run {left.hex()[:12]} is left.")


def model_digest(path: str) -> bytes:
    """32 bytes that tell the model of a file apart, as an evaluation's task does; raises ModelError."""
    return digest_of_model(Model.load(path).ensemble)


def note_reserved(store: NodeStore, book: BudgetBook, site: str) -> None:
    """Say which runs stay reserved when a site's node ends, and how to close them."""
    book.serve(site, store.folder)
    for run_id in book.reserved():
        short, folder = run_id.hex()[:12], shlex.quote(str(store.folder))
        note(
            f"{site}: the run {short} may go on, so its whole cost stays reserved. Start the node again to go on; "
            f"`hedgerow ledger {folder} --close {short}` ends it here, charged for what has left."
        )


# A node that stays ---------------------------------------------------------------------------------------------------

_OF_THIS_SITE = {
    "state-lost", "budget-lost", "budget-rolled-back", "stopped-by-owner", "roster-denied", "policy-coordinator",
    "policy-small-cohort", "rows-unchecked", "policy-loss", "policy-clamped", "policy-unlisted",
}  # fmt: skip
"""Refusals while a run goes on that are for the site's own people to mend; all others say no to one run alone."""
_ORDINARY = {"run-closed", "policy-no-held-out", "policy-no-training", "policy-denied"}
"""What its owner has said, or what belongs to a study whose sites do not all hold out rows: no warnings."""
_UNREADABLE = {"plan-unreadable", "malformed-message", "unknown-version"}
_SECONDS_BETWEEN_RUNS, _LONGEST_REST = 1.0, 300.0
_SECONDS_FOR_A_MODEL = 60.0


def stay(
    arguments: argparse.Namespace, *, is_once: bool = False, page: SitePage | None = None, has_met: bool = False
) -> None:
    """Take part in one run and evaluation after another, and keep the file of each one's model with its report.

    Args: arguments: of `hedgerow node`; is_once: end after the first run that has come to its end; page: the site's;
        has_met: whether the coordinator was reached before, so that there may well be no run now.
    Raises HedgerowError: what says something against the next run as well, or with `is_once` what ended this one.
    """
    name, pause = read_private(Path(arguments.identity)).public.name, _SECONDS_BETWEEN_RUNS
    if page is not None:
        page.show_models(_models_of(arguments, name))
    while True:
        # Until it is true, what ends the run is something that the owner gave.
        arguments.has_dialled = False
        try:
            result = take_part(arguments, page, stays=not is_once, has_met=has_met)
            if isinstance(result, Ensemble | Evaluation):
                _keep_model(arguments, result)
        except HedgerowError as fault:
            if fault.code == WireCode.ROSTER_MISMATCH and _takes_up_roster(arguments, page):
                continue
            if is_once or not (arguments.has_dialled and _may_come_again(fault)):
                raise
            note(f"{fault} ({fault.code})", level="INFO" if fault.code in _ORDINARY else "WARNING")
            if page is not None:
                page.fail(fault)
            pause = min(2 * pause, _LONGEST_REST)
        else:
            if page is not None:
                page.show_models(_models_of(arguments, name))
            pause = _SECONDS_BETWEEN_RUNS
            if is_once:
                return
        arguments.leave = False
        note(f"{name} waits for the next run; Ctrl-C ends it.")
        if page is not None:
            page.wait_for("Waiting for the next run")
        time.sleep(pause)


def _may_come_again(fault: HedgerowError) -> bool:
    """Whether what ended a run may not end the next one: all but what this site's own people have to mend or look at.

    A command that was mistyped at the coordinator, with another plan, roster or question, costs no site its node.
    """
    if isinstance(fault, WireRefusal):
        return fault.wire_code is not WireCode.DUPLICATE_NODE
    if isinstance(fault, PolicyRefusal):
        return fault.code not in _OF_THIS_SITE
    # Of messages that a peer must not send, a copy is evidence: someone has to look at it.
    return isinstance(fault, AggregationError | PlanError | PrivacyError | ModelError) or fault.code in _UNREADABLE


def _takes_up_roster(arguments: argparse.Namespace, page: SitePage | None) -> bool:
    """Ask for the roster of the coordinator's run, and pin it if the owner wants to; whether that was done.

    Raises PolicyRefusal: code "roster-denied" where the owner does not, "stopped-by-owner".
    """
    place, identity = Path(arguments.roster), read_private(Path(arguments.identity))
    old, name, address = read_roster(place), identity.public.name, _address(arguments)
    try:
        text = first_of(Standing, ask(address, old.coordinator, Current(name).to_bytes(), identity)).roster.decode()
        new = parse_roster(text, "the coordinator's roster")
    except (WireRefusal, UsageError, RemoteProtocolError, UnicodeDecodeError):
        return False
    if not follows(new, old) or identity.public != new.site(name):
        return False
    change = change_of(new, old)
    if read_policy(arguments.policy).monitors != "any" or not adds_monitors_only(new, old):
        folder, zeros = _state_of(arguments, name), "00" * 32
        question = Question(
            zeros, ROSTER, change, new.digest().hex(), new.digest().hex(), 0.0, 0.0, "", 0.0, 0.0, 0.0, ""
        )
        desk = OwnerDesk(folder)
        desk.ask(question)
        shown = desk.pending() or question
        with closing(desk), nullcontext() if page is None else page.asking(folder, shown):
            asked = AtTheNode(desk, folder)
            while (said := desk.ask(question)) is None:
                if desk.take_stop():
                    raise PolicyRefusal("stopped-by-owner")
                asked(shown)
                time.sleep(_SECONDS_BETWEEN_RUNS)
        if not said:
            approves = command_of(question, folder)
            raise PolicyRefusal("roster-denied", change=change, words=new.fingerprint(), command=approves)
    write_atomically(place, text.encode())
    note(f"{name} pins the roster {new.fingerprint()} from now on: {change}.")
    return True


def _state_of(arguments: argparse.Namespace, name: str) -> Path:
    return Path(arguments.state or Path(arguments.identity).parent / f"{name}-state")


def _models_of(arguments: argparse.Namespace, name: str) -> Path:
    return Path(arguments.out or Path(arguments.identity).parent / f"{name}-models")


def _keep_model(arguments: argparse.Namespace, result: object) -> None:
    """Ask for the model's file after a run, compare it with this node's own, and write it with its report."""
    identity, coordinator = read_private(Path(arguments.identity)), read_roster(Path(arguments.roster)).coordinator
    name = identity.public.name
    with closing(NodeStore(_state_of(arguments, name))) as store:
        own = set(store.models())
    own |= {digest_of_model(result)} if isinstance(result, Ensemble) else set()
    own |= {model_digest(path) for path in arguments.allowed or ()}
    folder = _models_of(arguments, name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + _SECONDS_FOR_A_MODEL
    while True:
        try:
            message = Wanted(name).to_bytes()
            answer = first_of(Result, ask(_address(arguments), coordinator, message, identity))
            break
        except WireRefusal as refusal:
            if time.monotonic() > deadline:
                note(f"The model's file was not received: {refusal.what} ({refusal.code})")
                return
        time.sleep(_SECONDS_BETWEEN_RUNS)
    received = folder / "received.json"
    write_atomically(received, answer.model)
    try:
        model = Model.load(received)
        digest = digest_of_model(model.ensemble)
        if digest not in own:
            raise ModelError("model-of-others")
    finally:
        received.unlink()
    place = folder / f"model-{digest.hex()[:12]}.json"
    # An older file of this model, with less on its account, replaces no newer one.
    if writes_over(model, place):
        write_atomically(place, answer.model)
    report = place.with_suffix(".report.txt")
    write_atomically(report, (model.report_text(today()) + "\n").encode())
    note(f"The model is in {place}, its report in {report}.")


# One run --------------------------------------------------------------------------------------------------------------

PATIENCE = 7 * 24 * 3600.0
"""Seconds that a node without a plan waits for its coordinator; afterwards the plan's own timeout counts."""


def run(arguments: argparse.Namespace) -> None:
    """Take part in one run, or with --serve in one after another; a page stays beyond that."""
    with _page(arguments) as page:
        arguments.asks_of_loss = is_terminal()
        if arguments.serve:
            stay(arguments, page=page)
        else:
            take_part(arguments, page)
        if page is not None:
            page.wait()


@contextmanager
def _page(arguments: argparse.Namespace) -> Iterator[SitePage | None]:
    """The site's page, if one is wanted."""
    if arguments.console is None:
        yield None
        return
    # An extra: only who wants the page needs it.
    from hedgerow.app.page import SitePage

    name = read_private(Path(arguments.identity)).public.name
    begin_log(name, arguments.log_format)
    with SitePage(arguments.console, name) as page:
        yield page


def _address(arguments: argparse.Namespace) -> str:
    host, port = address_of(arguments.connect, "--connect")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def take_part(
    arguments: argparse.Namespace, page: SitePage | None = None, *, stays: bool = False, has_met: bool = False
) -> Ensemble | Evaluation | Found:
    """Join, answer until the run is over, say what it has cost; returns what the run was for.

    Args: stays: whether the node waits for runs as they come; has_met: whether it is known to reach the coordinator,
        beside what its folder tells. There may then well be no run now.
    """
    plan = None if arguments.plan is None else read_plan(arguments.plan)
    policy = read_policy(arguments.policy)
    pinned = read_roster(Path(arguments.roster))
    identity = read_private(Path(arguments.identity))
    address = _address(arguments)
    name = identity.public.name
    log = begin_log(name, arguments.log_format)
    if page is not None:
        log.also = page.tell
        page.begin(plan, policy, pinned, address)
    folder = _state_of(arguments, name)
    with use_threads(arguments.threads or available_threads()) as n_threads:
        seen: Seen | None = None if page is None else page.show_fit
        if getattr(arguments, "asks_of_loss", False):
            # Once, when its owner starts it. A node that runs refuses nothing by itself: that would follow from rows.
            seen, arguments.asks_of_loss = _asking(seen), False
        setup = _setup_of(arguments, (identity, pinned), policy, plan, n_threads, seen)
        store = NodeStore(folder)
        book_place = note_book(folder, book_file(arguments.budget, folder, arguments.policy, name))
        book = BudgetBook(book_place)
        try:
            if arguments.leave:
                note_leaving(store, book, name)
            session = NodeSession(setup, store, book)
            log.run = lambda: session.run_id
            if session.set_aside is not None:
                note(f"{name}: {session.set_aside} ({session.set_aside.code})", level="WARNING")
            digest = b"" if plan is None else bytes.fromhex(plan.digest)
            uplink = ENGINES[arguments.engine].uplink(address, identity, pinned, digest)
            arguments.has_dialled = True
            try:
                observers: list[Observer] = [] if page is None else [page.connected]
                if not arguments.json:
                    note(f"{name}: dialling {address} with {_agreed(plan, pinned)}.")
                    observers.append(ConnectionNotes(*_standing(session, store, stays=stays, has_met=has_met)))
                asked = AtTheNode(store.desk, folder)
                with nullcontext() if page is None else page.watching(session, store, book_place, policy):
                    result = _taken_part(session, uplink, pinned, asked, observers, quiet=arguments.json)
            finally:
                uplink.close()
            _print(arguments, session, result, book, policy)
            return result
        finally:
            if not arguments.json:
                note_reserved(store, book, name)
            book.close()
            store.close()


def _asking(seen: Seen | None) -> Seen:
    """As `seen`; and the owner, who sits there, is asked where many rows are left out."""

    def asks(name: str, found: TableFit) -> None:
        if seen is not None:
            seen(name, found)
        ask_of_loss(name, found)

    return asks


def _standing(
    session: NodeSession, store: NodeStore, *, stays: bool, has_met: bool
) -> tuple[Callable[[], float], Callable[[], bool], Callable[[], bool]]:
    """What `ConnectionNotes` asks: the node's patience, whether its run is paused, and whether no run is due.

    None is due where the way to the coordinator is known to be open: by an enrolment, or, for a node that stays, by an
    earlier run.
    """
    return (
        lambda: patience_of(session, PATIENCE),
        lambda: session.is_paused,
        lambda: not session.run_id and (has_met or (stays and bool(store.run_ids()))),
    )


def _setup_of(
    arguments: argparse.Namespace,
    parties: tuple[PrivateIdentity, PinnedRoster],
    policy: Policy,
    plan: Plan | None,
    n_threads: int,
    seen: Seen | None,
) -> NodeSetup:
    """What the owner gives the node. What they can mend is said at once, and before anyone is dialled."""
    identity, pinned = parties
    load, load_held_out = _loaders(arguments, policy)
    keys = (signing_key(identity), signing_roster(pinned))
    models = frozenset(model_digest(path) for path in arguments.allowed or ())
    setup = NodeSetup(
        identity.public.name, *keys, policy, os.urandom, SystemNoise(os.urandom), load, plan, n_threads, load_held_out,
        models, arrivals=arrivals_of(arguments.arrivals, strict=policy.is_strict, tell=note, own=policy.data),
        load_raw=raw_loader(arguments.data, arguments.query, policy.data), tell=warn,
    )  # fmt: skip
    check_own_plan(setup)
    setup = with_rows_read(setup, _tables(arguments, policy.data), seen=seen)
    with told_if_slow(quiet=arguments.json):
        warm_up(plan, n_threads)
    return setup


def _taken_part(
    session: NodeSession,
    uplink: Uplink,
    pinned: PinnedRoster,
    asked: AtTheNode,
    observers: Sequence[Observer],
    *,
    quiet: bool,
) -> Ensemble | Evaluation | Found:
    """Take part until the run is over; raises as `run_node`."""

    def observe(event: Connected | Disconnected) -> None:
        for observer in observers:
            observer(event)

    try:
        result = run_node(session, uplink, time.monotonic, PATIENCE, observe, asked)
    except HedgerowError as fault:
        if fault.code in _MISMATCHES and not quiet:
            # The refusal says how grave it is: a node that stays takes up a new roster, where all is as it should be.
            note(f"This node holds {_agreed(session.plan, pinned)}. The coordinator says what it holds in its own log.")
        raise
    if session.salvaged is not None and not quiet:
        warn(session.salvaged.text())
    return result


Observer = Callable[[Connected | Disconnected], None]
_MISMATCHES = {"plan-mismatch", "plan-changed", "roster-mismatch"}


def _agreed(plan: Plan | None, roster: PinnedRoster) -> str:
    """What this side holds that both have to hold, in words for the phone."""
    own = "no plan" if plan is None else f"the plan {plan.name!r} ({spoken(bytes.fromhex(plan.digest))})"
    return f"{own} and the roster {roster.fingerprint()}"


def book_file(budget: str | None, folder: Path, policy: str, name: str) -> Path:
    """The budget book: as given, else the one that the state folder has from an older version, else beside the policy.

    It is not in the state folder, which people delete to begin again: what the data has cost must outlive that.
    """
    if budget:
        return Path(budget)
    old = folder / _OLD_BOOK
    return old if old.exists() else Path(policy).parent / f"{name}-budget.db"


class ConnectionNotes:
    """Tells the owner why nothing happens, and that it is over; less and less often where that goes on and on."""

    def __init__(
        self,
        patience: Callable[[], float] | None = None,
        is_paused: Callable[[], bool] = lambda: False,
        is_resting: Callable[[], bool] = lambda: False,
    ) -> None:
        """Args: patience: seconds without a word from the coordinator after which the node gives up; is_paused: whether
        the coordinator has said that it goes on later; is_resting: whether no run is due, so that none need be there.
        """
        self._repeats, self._patience = Repeats(), patience
        self._is_paused, self._is_resting = is_paused, is_resting

    def __call__(self, event: Connected | Disconnected) -> None:
        """Take note of what became of the connection."""
        level = "WARNING" if isinstance(event, Disconnected) else "INFO"
        if isinstance(event, Connected):
            said = "Connected."
            if self._patience is not None:
                said += f" Waiting for the coordinator, for {self._patience():,.0f} s without a word at most."
        elif self._is_paused() and self._patience is not None and not event.is_final:
            said = "The coordinator has paused the run. This node keeps its place, and waits"
            said, level = f"{said} for {self._patience():,.0f} s at most.", "INFO"
        elif event.is_final or event.reason == WireCode.CLOSED:
            return
        elif event.reason == WireCode.UNREACHABLE and self._is_resting():
            # As it is between most runs: nothing that somebody who watches a log for warnings is called for.
            level, said = (
                "INFO",
                f"No run goes on: the coordinator cannot be reached. The node tries again. ({event.reason})",
            )
        else:
            why = WireRefusal(known(event.reason))
            said = f"{why} The node tries again. ({why.code})"
        if count := self._repeats.note("coordinator", said):
            if isinstance(event, Disconnected) and event.reason == WireCode.TLS_REFUSED and count > 1:
                # Every run refuses a site that was withdrawn: one warning calls whoever asks the coordinator.
                level = "INFO"
            note(said + times(count), level=level)


def _tables(arguments: argparse.Namespace, own: Adapter) -> list[Location]:
    given = ((arguments.data, arguments.query), (arguments.held_out, arguments.held_out_query))
    return [table for data, query in given for table in table_of(data, query, own)]


def _loaders(arguments: argparse.Namespace, policy: Policy) -> tuple[Load, Load]:
    """How rows to train on are read, and rows that are held out; raises DataError for a table that is not there."""
    if arguments.data is None and arguments.held_out is None:
        raise UsageError("usage-no-rows")

    def load(data: str | None, query: str | None, nothing: Load) -> Load:
        if data is None and query is None:
            return nothing
        found = loader(data or "", query, strict=policy.is_strict, tell=note, own=policy.data)
        check_table(data or "", policy.data)
        return found

    held_out = load(arguments.held_out, arguments.held_out_query, no_held_out_rows)
    return load(arguments.data, arguments.query, no_training_rows), held_out


def _found(result: Ensemble | Evaluation | Found) -> dict[str, Any]:
    if isinstance(result, Ensemble):
        return {"n_trees": result.n_trees}
    if isinstance(result, Evaluation):
        return {"evaluation": result.to_dict()}
    return {"survey": asdict(result)} if isinstance(result, Findings) else {"statistics": result.to_dict()}


def _print(
    arguments: argparse.Namespace,
    session: NodeSession,
    result: Ensemble | Evaluation | Found,
    book: BudgetBook,
    policy: Policy,
) -> None:
    name = session.site
    spent = book.spent(policy.data_set, policy.delta)
    if arguments.json:
        budget = {"data_set": policy.data_set, "spent": spent, "max_epsilon": policy.max_epsilon, "delta": policy.delta}
        print_json({"site": name, **_found(result), "budget": budget})
        return
    facts = [("site", name)]
    if isinstance(result, Ensemble):
        facts.append(("model", f"{result.n_trees} trees"))
    elif isinstance(result, Findings):
        facts += survey_facts(result, session.surveyed)
    elif isinstance(result, Evaluation):
        facts += score_facts(result)
    elif isinstance(result, SurvivalCurves):
        facts.append(("curves", f"of {len(result.curves)} groups"))
    else:
        facts.append(("statistics", f"of {len(result.columns)} columns"))
    budget_text = f"{policy.data_set}: epsilon {spent:.4g} of {policy.max_epsilon:g} at delta {policy.delta:g}"
    print_facts([*facts, ("budget", budget_text)])


# The ledger of a site -------------------------------------------------------------------------------------------------
# ``hedgerow ledger``: what all runs together have cost a site's data, and the end of one that is reserved.

_LEAST_DIGITS = 8


def ledger(arguments: argparse.Namespace) -> None:
    """Close a run or set a plan's draws back, if one is named, and print the budget book."""
    file = book_of(Path(arguments.state))
    if not file.is_file():
        raise UsageError("budget-not-found", path=arguments.state)
    policy = None if arguments.policy is None else read_policy(arguments.policy)
    delta = arguments.delta if policy is None else policy.delta
    book = BudgetBook(file)
    try:
        closed = [] if arguments.close is None else _close(book, arguments.close, Path(arguments.state))
        forgotten = {} if arguments.allow_draws is None else _allow_draws(book, arguments.allow_draws)
        if arguments.lost is not None:
            if policy is None:
                raise UsageError("usage-lost-without-policy")
            book.charge_lost(policy.data_set, policy.unit, arguments.lost, policy.delta)
        content = _content(book, delta)
        asked = book.invitations()
    finally:
        book.close()
    if policy is not None:
        for data_set in content["data_sets"]:
            if data_set["data_set"] == policy.data_set:
                data_set["max_epsilon"] = policy.max_epsilon
    if arguments.json:
        content |= {"closed": closed} if arguments.close else {}
        content |= {"allowed_draws": forgotten} if forgotten else {}
        content |= {"invitations": [dataclasses.asdict(line) for line in asked]} if arguments.invitations else {}
        print_json(content)
        return
    for line in closed:
        note(_said_line(line))
    for digest, count in forgotten.items():
        note(f"{count} set-up(s) of the plan {digest[:12]} are counted no more: the seed may be drawn again.")
    _print_ledger(content)
    _say_invitations(asked, is_list=arguments.invitations)
    if any(line["status"] == RESERVED for data_set in content["data_sets"] for line in data_set["runs"]):
        note(
            "A run that is reserved may go on: start its node again. If it shall not, end it with "
            f"`hedgerow ledger {shlex.quote(arguments.state)} --close RUN`, and what it did not use is free again."
        )


def _close(book: BudgetBook, wanted: str, given: Path) -> list[dict[str, Any]]:
    """Close a run, for all nodes with this book or, where their folder is `given`, for that node.

    Raises UsageError: code "run-not-reserved", or "run-in-use" while a node works with its folder.
    """
    lines = [line for line in book.lines() if line.status == RESERVED and line.run_id.startswith(wanted.lower())]
    if given.is_dir():
        lines = [line for line in lines if _folder_of(line, given) == given.resolve()]
    if len(wanted) < _LEAST_DIGITS or len({line.run_id for line in lines}) != 1:
        raise UsageError("run-not-reserved", wanted=wanted, least=_LEAST_DIGITS)
    closed = []
    with ExitStack() as open_files:
        # All are opened before one is closed: as long as a node works with its folder, nothing is.
        found = _own_stores(lines, given, open_files)
        if given.is_dir() and any(store is not None for _, store in found):
            # The folder is of one node, and only its line is meant.
            found = [(line, store) for line, store in found if store is not None]
        for line, store in found:
            book.serve(line.site, line.state)
            is_known = close_reserved(store, book, bytes.fromhex(line.run_id))
            closed.append({"run_id": line.run_id, "site": line.site, "state": line.state, "is_known": is_known})
    return closed


def _allow_draws(book: BudgetBook, wanted: str) -> dict[str, int]:
    """Set a plan's set-ups back for all nodes with this book; UsageError (code "no-draws") where there are none."""
    forgotten = book.forget_draws(wanted.lower()) if len(wanted) >= _LEAST_DIGITS else {}
    if not forgotten:
        raise UsageError("no-draws", wanted=wanted, least=_LEAST_DIGITS)
    return forgotten


def _folder_of(line: BudgetLine, given: Path) -> Path:
    """A line's state folder; where that is gone, or not known, the folder that was given, if it is one."""
    noted = Path(line.state)
    is_there = bool(line.state) and (noted / "node.db").is_file()
    return given.resolve() if given.is_dir() and not is_there else noted


def _own_stores(
    lines: Sequence[BudgetLine], given: Path, open_files: ExitStack
) -> list[tuple[BudgetLine, NodeStore | None]]:
    """Each line, and the state of its own node; None where it is not there, for another node's does not tell its cost.

    A state tells whose it is. Where it does not, being of an earlier version, the folder must be that of the line.
    """
    folders = [_folder_of(line, given) for line in lines]
    opened = {folder: _opened(folder, open_files) for folder in dict.fromkeys(folders)}
    found: list[tuple[BudgetLine, NodeStore | None]] = []
    for line, folder in zip(lines, folders, strict=True):
        store = opened[folder]
        sites = frozenset() if store is None else store.sites()
        is_own = sites == {line.site} or (not sites and str(folder) == line.state)
        found.append((line, store if is_own else None))
    return found


def _opened(folder: Path, open_files: ExitStack) -> NodeStore | None:
    if not (folder / "node.db").is_file():
        return None
    try:
        return open_files.enter_context(closing(NodeStore(folder)))
    except EnvironmentFault as fault:
        if fault.code != "database-locked":
            raise
        raise UsageError("run-in-use", folder=folder) from fault


def _said_line(line: dict[str, Any]) -> str:
    name = f"{line['run_id'][:12]}{' of ' + line['site'] if line['site'] else ''}"
    if line["is_known"]:
        return f"The run {name} is closed, charged for what has left its node. It is never taken up again."
    why = "The node's state is gone, so what has left it is not known"
    return f"The run {name} is closed. {why}: all that was reserved stays charged."


def _content(book: BudgetBook, delta: float) -> dict[str, Any]:
    names = list(dict.fromkeys(line.data_set for line in book.lines()))
    return {
        "delta": delta,
        "data_sets": [
            {
                "data_set": name,
                "epsilon": book.spent(name, delta),
                "runs": [
                    {
                        "run_id": line.run_id,
                        "site": line.site,
                        "plan": line.plan_name,
                        "plan_digest": line.plan_digest,
                        "unit": line.unit,
                        "status": line.status,
                        "epsilon": line.epsilon(delta),
                        "begun": line.begun,
                    }
                    for line in book.lines(name)
                ],
            }
            for name in names
        ],
    }


def _say_invitations(lines: list[InvitationLine], *, is_list: bool) -> None:
    """What coordinators have asked this site for, and what they were told; or only how many were refused."""
    if not is_list:
        if n_refused := sum(line.count for line in lines if line.answer != ACCEPTED):
            print(f"{n_refused} invitation(s) of a coordinator were refused; --invitations lists them.")
        return
    print("\nInvitations (times are UTC)")
    for line in lines:
        span = line.first if line.first == line.last else f"{line.first} to {line.last}"
        what = f"{line.plan_name} ({line.plan_digest[:12]})" if line.plan_digest else "of many kinds"
        print(f"  {line.count} x {line.kind}, epsilon {number(line.epsilon)}, {what}: {line.answer}, {span}")


def _print_ledger(content: dict[str, Any]) -> None:
    for data_set in content["data_sets"]:
        limit = f" of {number(data_set['max_epsilon'])}" if "max_epsilon" in data_set else ""
        print(f"{data_set['data_set']}: epsilon {number(data_set['epsilon'])}{limit} at delta {content['delta']:g}")
        is_shared = len({run["site"] for run in data_set["runs"]}) > 1
        print_facts([(f"run {run['run_id'][:12]}", _line(run, is_shared=is_shared)) for run in data_set["runs"]])


def _line(run: dict[str, Any], *, is_shared: bool) -> str:
    site = f"{run['site']}: " if is_shared and run["site"] else ""
    # A line of an earlier version has no date.
    begun = run["begun"][:10] or "?"
    return f"{site}{run['status']:<9} {begun:<10} epsilon {number(run['epsilon']):<8} {run['plan']} (per {run['unit']})"
