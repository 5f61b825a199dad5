# SPDX-License-Identifier: Apache-2.0
"""A site's node: take part in one run, or stay for one after another, within what its owner allows."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.app.actors import start_actors
from hedgerow.app.fit import Tell, ask_about_left_out_rows
from hedgerow.app.inputs import read_plan, read_policy, signing_key, signing_roster
from hedgerow.app.life import LifeSign
from hedgerow.app.options import NodeOptions
from hedgerow.app.output import begin_log, note, span, today, warn
from hedgerow.app.owner import AtTheNode, approval_command
from hedgerow.app.progress import NODE_PHASES, note_if_slow, space_lines
from hedgerow.app.rows import check_table, make_loader, make_raw_loader, open_arrivals, read_rows_ahead
from hedgerow.client.budget import BudgetBook, book_file, note_book
from hedgerow.client.joining import check_own_plan, leave
from hedgerow.client.node import available_threads, use_threads, warm_up
from hedgerow.client.node_session import NodeSession, compute_patience, run_node
from hedgerow.client.policy import Policy
from hedgerow.client.setup import LoadRows, NodeSetup, no_held_out_rows, no_training_rows
from hedgerow.client.shards import ReadPart, Shards
from hedgerow.client.state import NodeStore, OwnerDesk, Question
from hedgerow.codec import format_spoken
from hedgerow.data.differences import compare_surveyed
from hedgerow.data.fit import TableFit
from hedgerow.data.omop import locate_query
from hedgerow.data.raw_cells import read_raw_site
from hedgerow.data.site_data import read_part
from hedgerow.data.sources import Location, adapt
from hedgerow.errors import (
    AggregationError,
    HedgerowError,
    ModelError,
    PlanError,
    PolicyRefusal,
    PrivacyError,
    RemoteProtocolError,
    UsageError,
    mark_private,
)
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.methods.tasks import digest_model
from hedgerow.models.model import Model, write_atomically, writes_over
from hedgerow.plan.plan import Plan
from hedgerow.plugins import require_still_named
from hedgerow.privacy.noise import SystemNoise
from hedgerow.protocol.messages import NodeState
from hedgerow.protocol.refusals import WireCode, WireRefusal, read_code
from hedgerow.protocol.stream import Current, Result, Standing, Wanted, read_first
from hedgerow.survey.program import Found
from hedgerow.survey.queries import RawSite
from hedgerow.survey.requests import OpenTable
from hedgerow.survey.statistics import TableStatistics
from hedgerow.transport.grpc_link import ask
from hedgerow.transport.identities import (
    PinnedRoster,
    PrivateIdentity,
    adds_monitors_only,
    describe_change,
    follows,
    parse_roster,
    read_private,
    read_roster,
)
from hedgerow.transport.interface import Connected, Disconnected, Repeats, times
from hedgerow.transport.uplinks import UPLINKS
from hedgerow.trees.ensemble import Ensemble

if TYPE_CHECKING:
    from hedgerow.app.page import SitePage


@dataclass(frozen=True)
class NodeResult:
    """Result of a node's part in a run.

    Attributes:
        site: its name.
        result: what the run was for.
        policy: by which it took part.
        spent: epsilon of the data, this run included.
    """

    site: str
    result: Ensemble | Evaluation | Found
    policy: Policy
    spent: float


# The files of a node -------------------------------------------------------------------------------------------------

@contextmanager
def open_node_files(options: NodeOptions, name: str) -> Iterator[tuple[NodeStore, BudgetBook, Path]]:
    """Open a node's state and budget book, and yield them with the book's path until the block ends."""
    folder = options.state_folder(name)
    with closing(NodeStore(folder)) as store:
        place = note_book(folder, book_file(options.budget, options.policy, name))
        with closing(BudgetBook(place)) as book:
            yield store, book, place


def note_leaving(store: NodeStore, book: BudgetBook, site: str) -> None:
    """Leave the run in a node's state folder, and log it."""
    left = leave(store, book, site)
    note("The state holds no run to leave." if left is None else f"The run {left.hex()[:12]} is left.")


# A node before anyone is dialled -------------------------------------------------------------------------------------


def read_owner(options: NodeOptions) -> tuple[Policy, PrivateIdentity, PinnedRoster, Plan | None]:
    """Read policy, keys, roster and plan of a site; raise HedgerowError.

    The policy is read first, because it names the plug-ins that a plan may use.
    """
    policy, roster = read_policy(options.policy), read_roster(Path(options.roster))
    require_still_named(str(Path(options.identity).resolve()), policy.plugins)
    plan = None if options.plan is None else read_plan(options.plan, is_own=True)
    return policy, read_private(Path(options.identity)), roster, plan


def list_tables(options: NodeOptions, policy: Policy) -> list[Location]:
    """Return the tables' locations, to be read as the policy says."""
    return [adapt(data, policy.data) for data in (options.data, options.held_out) if data]


def make_setup(
    options: NodeOptions,
    keys: tuple[PrivateIdentity, PinnedRoster],
    policy: Policy,
    plan: Plan | None,
    n_threads: int,
    read: Callable[[str, str], LoadRows],
    tell: Tell,
) -> NodeSetup:
    """Build a node's setup from what its owner gives.

    Args:
        read: how a table is read, "rows" or "held-out", once there is a plan.
        tell: is given what the owner should know.

    Raises:
        HedgerowError: a file cannot be read.
    """
    identity, roster = keys
    load: LoadRows = no_training_rows
    load_held_out: LoadRows = no_held_out_rows
    if options.held_out is not None:
        load_held_out = read(options.held_out, "held-out")
    if options.data is not None:
        load = read(options.data, "rows")
    models = frozenset(digest_model(Model.load(path).ensemble) for path in options.models)
    return NodeSetup(
        identity.public.name, signing_key(identity), signing_roster(roster), policy, os.urandom,
        SystemNoise(os.urandom), load, plan, n_threads, load_held_out, models, tell=tell,
        arrivals=open_arrivals(options.arrivals, tell=tell, own=policy.data),
    )  # fmt: skip


@dataclass(frozen=True)
class ReadyNode:
    """A site's node with its tables, state and book open; see `prepare_node`."""

    options: NodeOptions
    identity: PrivateIdentity
    roster: PinnedRoster
    policy: Policy
    session: NodeSession
    store: NodeStore
    book: BudgetBook
    book_place: Path
    page: SitePage | None

    def take_part(self, *, stays: bool = False, has_met: bool = False) -> NodeResult:
        """Join, and answer until the run is over; raises as `run_node`."""
        options, session, store, page = self.options, self.session, self.store, self.page
        plan = session.plan
        digest = b"" if plan is None else bytes.fromhex(plan.digest)
        notes = ConnectionNotes(
            lambda: compute_patience(session, PATIENCE),
            lambda: session.is_paused,
            lambda: is_no_run_due(session, store, stays=stays, has_met=has_met),
        )

        sign, lines = LifeSign(store.folder), NodeLines(session)

        def observe(event: Connected | Disconnected) -> None:
            sign.take(event)
            lines.take(event)
            if page is not None:
                page.show_connection(event)
            if not options.quiet:
                notes(event)

        def beat() -> None:
            sign.beat()
            if not options.quiet:
                lines.look()

        uplink = UPLINKS[options.engine](options.connect, self.identity, self.roster, digest)
        with closing(uplink):
            if not options.quiet:
                note(f"{session.site}: dialling {options.connect} with {_describe_holdings(plan, self.roster)}.")
            asked = AtTheNode(store.desk, store.folder)
            with nullcontext() if page is None else page.watching(session, store, self.book_place, self.policy):
                try:
                    result = run_node(session, uplink, time.monotonic, PATIENCE, observe, asked, beat)
                    sign.end("")
                except HedgerowError as fault:
                    is_due = not is_no_run_due(session, store, stays=stays, has_met=has_met)
                    if stays and not is_due and fault.code == "coordinator-silent":
                        # No run has ended, so the sign of life keeps how the last one did.
                        raise AggregationError("no-run-came") from fault
                    sign.end(fault.code)
                    if fault.code in _MISMATCHES and not options.quiet:
                        # A note and no warning: the refusal shows how grave it is, and a node that stays may just take
                        # up a new roster.
                        held = _describe_holdings(session.plan, self.roster)
                        note(f"This node holds {held}. The coordinator says what it holds in its own log.")
                    raise
                if session.salvaged is not None and not options.quiet:
                    warn(session.salvaged.text())
        if isinstance(result, TableStatistics) and session.plan is not None:
            # Compare after the run, with its connection closed, so that results from these rows stay in this log.
            tell_differences(list_tables(options, self.policy)[0], session.plan, result)
        spent = self.book.spent(self.policy.data_set, self.policy.delta)
        return NodeResult(session.site, result, self.policy, spent)


class NodeLines:
    """Says now and then what a node does, or for what it waits while it is connected."""

    def __init__(self, session: NodeSession) -> None:
        self._session, self._is_connected, self._text = session, False, ""
        self._since = self._said = time.monotonic()

    def take(self, event: Connected | Disconnected) -> None:
        """Note that the connection has come or gone, which others log."""
        self._is_connected, self._said = isinstance(event, Connected), time.monotonic()

    def look(self) -> None:
        """Say it if it is time; to be called every second."""
        state, now, (done, planned) = self._session.state, time.monotonic(), self._session.progress
        text = NODE_PHASES[state][0] + (f", round {min(done + 1, planned)} of {planned}" if planned else "")
        if text != self._text:
            self._text, self._since = text, now
        if state in (NodeState.FINISHED, NodeState.STOPPED) or not self._is_connected:
            return
        if now - self._said >= space_lines(now - self._since):
            self._said = now
            note(f"{text} ({now - self._since:,.0f} s so far).")


def tell_differences(table: Location, plan: Plan, found: TableStatistics) -> None:
    """Warn the owner of columns whose meaning seems to differ from the other sites', after a survey."""
    try:
        differences = compare_surveyed(table, plan, found)
    except HedgerowError as fault:
        warn(mark_private(f"The table could not be compared with what the survey has released: {fault}"))
        return
    for difference in differences:
        line = f"; with `{difference.line}` in [data] it goes away (docs/data.md)" if difference.line else ""
        warn(mark_private(f"Beside the other sites, {difference.name!r}: {difference.text}{line}"))


PATIENCE = 7 * 24 * 3600.0
"""Seconds that a node without a plan waits for its coordinator; afterwards the plan's own timeout counts."""
_MISMATCHES = {"plan-mismatch", "plan-changed", "roster-mismatch"}


def is_no_run_due(session: NodeSession, store: NodeStore, *, stays: bool, has_met: bool) -> bool:
    """Return whether an unreachable coordinator is normal: it was reached before, and no run is open.

    It was reached by an enrolment or, for a node that stays, in an earlier run.
    """
    return not session.run_id and (has_met or (stays and bool(store.run_ids())))


def _describe_holdings(plan: Plan | None, roster: PinnedRoster) -> str:
    """Describe this side's plan and roster, to be compared by phone."""
    own = "no plan" if plan is None else f"the plan {plan.name!r} ({format_spoken(bytes.fromhex(plan.digest))})"
    return f"{own} and the roster {roster.fingerprint()}"


@contextmanager
def prepare_node(options: NodeOptions, page: SitePage | None = None, *, asks: bool = False) -> Iterator[ReadyNode]:
    """Prepare a node for one run; faults that its owner can mend are raised before anyone is dialled.

    Args:
        page: the site's.
        asks: whether the owner sits there and is asked where many rows are left out. A node that runs refuses nothing
            by itself: that would follow from rows.

    Raises:
        HedgerowError: something that the owner gave cannot be used.
    """
    policy, identity, roster, plan = read_owner(options)
    if options.data is not None:
        options = replace(options, data=locate_query(options.data, plan))
    name = identity.public.name
    log = begin_log(name, options.log_format)
    if page is not None:
        log.also = page.tell
        page.begin(plan, policy, roster, options.connect)
    if options.data is None and options.held_out is None:
        raise UsageError("usage-missing", missing="A table to train on (DATA), or one to evaluate on (--held-out),")

    def share(read_own: ReadPart) -> Callable[[Any], Shards]:
        n_parts, n_threads = options.shards or 1, options.threads or 1
        return lambda offered: Shards(start_actors(policy.plugins), n_parts, read_own, offered, n_threads)

    def read(data: str, role: str) -> LoadRows:
        memory = options.state_folder(name).resolve() if options.external_memory else None
        load = make_loader(data, tell=note, own=policy.data, memory=memory, name=role)
        check_table(data, policy.data)
        if options.shards:
            place = adapt(data, policy.data)
            return share(partial(read_part, place, memory=memory, name=role))
        return load

    def show_fit(table: str, found: TableFit) -> None:
        if page is not None:
            page.show_fit(table, found)
        if asks:
            ask_about_left_out_rows(table, found)

    with use_threads(options.threads or available_threads()) as n_threads:
        setup = make_setup(options, (identity, roster), policy, plan, n_threads, read, note)
        load_raw: Callable[[OpenTable], RawSite | Shards] = make_raw_loader(options.data, policy.data)
        if options.shards:
            if options.arrivals:
                raise UsageError("usage-beside", option="--arrivals", other="--shards")
            if options.data is not None:
                load_raw = share(partial(read_raw_site, list_tables(options, policy)[0]))
        setup = replace(setup, load_raw=load_raw, tell=warn)
        check_own_plan(setup)
        setup = read_rows_ahead(setup, list_tables(options, policy), seen=show_fit)
        with note_if_slow(quiet=options.quiet):
            warm_up(plan, n_threads, None if plan is None or options.data is None else setup.load(plan).n_records)
        with open_node_files(options, name) as (store, book, place):
            try:
                if options.leave:
                    note_leaving(store, book, name)
                session = NodeSession(setup, store, book)
                log.run = lambda: session.run_id
                if session.set_aside is not None:
                    note(f"{name}: {session.set_aside} ({session.set_aside.code})", level="WARNING")
                yield ReadyNode(options, identity, roster, policy, session, store, book, place, page)
            finally:
                if not options.quiet:
                    _note_reserved(store, book, name)


def _note_reserved(store: NodeStore, book: BudgetBook, site: str) -> None:
    """Log the runs that stay reserved when a site's node ends, and how to close them."""
    book.serve(site, store.folder)
    for run_id in book.list_reserved():
        short, folder = run_id.hex()[:12], shlex.quote(str(store.folder))
        note(
            f"{site}: the run {short} may go on, so its whole cost stays reserved. Start the node again to go on; "
            f"`hedgerow ledger {folder} --close {short}` ends it here, charged for what has left."
        )


def take_part(options: NodeOptions, page: SitePage | None = None, *, asks: bool = False) -> NodeResult:
    """Take part in one run; raises HedgerowError: as `prepare_node`, and why the run has ended."""
    with prepare_node(options, page, asks=asks) as node:
        return node.take_part()


class ConnectionNotes:
    """Logs connection changes, and repeats of one kind less and less often.

    Args:
        patience: seconds without a word from the coordinator after which the node gives up.
        is_paused: whether the coordinator has said that it goes on later.
        is_resting: whether no run is due, so that none need be there.
    """

    def __init__(
        self,
        patience: Callable[[], float] | None = None,
        is_paused: Callable[[], bool] = lambda: False,
        is_resting: Callable[[], bool] = lambda: False,
    ) -> None:
        self._repeats, self._patience = Repeats(), patience
        self._is_paused, self._is_resting = is_paused, is_resting

    def __call__(self, event: Connected | Disconnected) -> None:
        """Log a change of the connection."""
        level = "WARNING" if isinstance(event, Disconnected) else "INFO"
        if isinstance(event, Connected):
            said = "Connected."
            if self._patience is not None:
                said += f" Waiting for the coordinator, for {span(self._patience())} without a word at most."
        elif self._is_paused() and self._patience is not None and not event.is_final:
            said = "The coordinator has paused the run. This node keeps its place, and waits"
            said, level = f"{said} for {span(self._patience())} at most.", "INFO"
        elif event.is_final or event.reason == WireCode.CLOSED:
            return
        elif event.reason == WireCode.UNREACHABLE and self._is_resting():
            # This is normal between runs, so it is no warning.
            level, said = (
                "INFO",
                f"There is no run now: the coordinator cannot be reached. The node tries again. ({event.reason})",
            )
        else:
            why = WireRefusal(read_code(event.reason))
            said = f"{why} The node tries again. ({why.code})"
        if count := self._repeats.note("coordinator", said):
            if isinstance(event, Disconnected) and event.reason == WireCode.TLS_REFUSED and count > 1:
                # Every run refuses a withdrawn site, so one warning is enough for its owner to ask the coordinator.
                level = "INFO"
            note(said + times(count), level=level)


# A node that stays ---------------------------------------------------------------------------------------------------

_OF_THIS_SITE = {
    "state-lost", "budget-lost", "budget-rolled-back", "budget-restored", "stopped-by-owner", "roster-denied",
    "policy-coordinator", "policy-small-cohort",
}  # fmt: skip
"""Refusals while a run goes on that are for the site's own people to mend; all others say no to one run alone."""
_NO_RUN_CAME = "no-run-came"
_ORDINARY = {"run-closed", "policy-no-held-out", "policy-no-training", "policy-denied", _NO_RUN_CAME}
"""Codes that are no warnings: no run, the owner's own decisions, and runs for rows that this site does not give."""
_UNREADABLE = {"plan-unreadable", "malformed-message", "unknown-version"}
_SECONDS_BETWEEN_RUNS, _MAX_REST = 1.0, 300.0
_SECONDS_FOR_A_MODEL = 60.0


def stay(
    options: NodeOptions,
    report: Callable[[NodeResult], object],
    page: SitePage | None = None,
    *,
    is_once: bool = False,
    has_met: bool = False,
    asks: bool = False,
) -> None:
    """Take part in one run and evaluation after another, and keep each model's file with its report.

    Args:
        report: is given what became of each run.
        page, asks: as for `prepare_node`; the owner is asked once, when they start the node.
        is_once: end after the first run that has come to its end.
        has_met: whether the coordinator was reached before, so that there may well be no run now.

    Raises:
        HedgerowError: what says something against the next run as well, or with `is_once` what ended this one.
    """
    name, pause = read_private(Path(options.identity)).public.name, _SECONDS_BETWEEN_RUNS
    if page is not None:
        page.show_models(options.models_folder(name))
    while True:
        fault = None
        with prepare_node(options, page, asks=asks) as node:
            asks = False
            try:
                result = node.take_part(stays=not is_once, has_met=has_met)
            except HedgerowError as why:
                fault = why
        if fault is None:
            report(result)
            try:
                if isinstance(result.result, Ensemble | Evaluation):
                    _keep_model(options, result.result)
            except HedgerowError as why:
                fault = why
        if fault is not None:
            if fault.code == WireCode.ROSTER_MISMATCH and _takes_up_roster(options, page):
                continue
            if is_once or not _may_come_again(fault):
                raise fault
            note(f"{fault} ({fault.code})", level="INFO" if fault.code in _ORDINARY else "WARNING")
            if page is not None and fault.code != _NO_RUN_CAME:
                page.fail(fault)
            pause = min(2 * pause, _MAX_REST)
        else:
            if page is not None:
                page.show_models(options.models_folder(name))
            pause = _SECONDS_BETWEEN_RUNS
            if is_once:
                return
        options = replace(options, leave=False)
        note(f"{name} waits for the next run; Ctrl-C ends it.")
        if page is not None:
            page.wait_for("Waiting for the next run")
        time.sleep(pause)


def _may_come_again(fault: HedgerowError) -> bool:
    """Return whether the node may try the next run after this fault.

    It may not after faults that this site's own people have to mend or to look at. A mistyped command at the
    coordinator, with another plan, roster or question, stops no site's node.
    """
    if isinstance(fault, WireRefusal):
        return fault.wire_code is not WireCode.DUPLICATE_NODE
    if isinstance(fault, PolicyRefusal):
        return fault.code not in _OF_THIS_SITE
    # A forbidden message of a peer stops the node: its copy is evidence, and a person has to look at it.
    return isinstance(fault, AggregationError | PlanError | PrivacyError | ModelError) or fault.code in _UNREADABLE


def _takes_up_roster(options: NodeOptions, page: SitePage | None) -> bool:
    """Ask for the run's roster and pin it if the owner agrees; return whether it was pinned.

    Raises:
        PolicyRefusal: code "roster-denied" where the owner does not, "stopped-by-owner".
    """
    place, identity = Path(options.roster), read_private(Path(options.identity))
    old, name = read_roster(place), identity.public.name
    try:
        answer = ask(options.connect, old.coordinator, Current(name).to_bytes(), identity)
        text = read_first(Standing, answer).roster.decode()
        new = parse_roster(text, "the coordinator's roster")
    except (WireRefusal, UsageError, RemoteProtocolError, UnicodeDecodeError):
        return False
    if not follows(new, old) or identity.public != new.site(name):
        return False
    change = describe_change(new, old)
    if read_policy(options.policy).monitors != "any" or not adds_monitors_only(new, old):
        folder, question = options.state_folder(name), Question.about_roster(change, new.digest())
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
            approves = approval_command(question, folder)
            raise PolicyRefusal("roster-denied", change=change, words=new.fingerprint(), command=approves)
    write_atomically(place, text.encode())
    note(f"{name} pins the roster {new.fingerprint()} from now on: {change}.")
    return True


def _keep_model(options: NodeOptions, result: Ensemble | Evaluation) -> None:
    """Ask for the model's file after a run, compare it with this node's own, and write it with its report."""
    identity, coordinator = read_private(Path(options.identity)), read_roster(Path(options.roster)).coordinator
    name = identity.public.name
    with closing(NodeStore(options.state_folder(name))) as store:
        own = set(store.models())
    own |= {digest_model(result)} if isinstance(result, Ensemble) else set()
    own |= {digest_model(Model.load(path).ensemble) for path in options.models}
    folder = options.models_folder(name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + _SECONDS_FOR_A_MODEL
    while True:
        try:
            answer = read_first(Result, ask(options.connect, coordinator, Wanted(name).to_bytes(), identity))
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
        digest = digest_model(model.ensemble)
        if digest not in own:
            raise ModelError("model-of-others")
    finally:
        received.unlink()
    place = folder / f"model-{digest.hex()[:12]}.json"
    # Do not replace a newer file of this model by an older one with less on its account.
    if writes_over(model, place):
        write_atomically(place, answer.model)
    report = place.with_suffix(".report.txt")
    write_atomically(report, (model.report_text(today()) + "\n").encode())
    note(f"The model is in {place}, its report in {report}.")
