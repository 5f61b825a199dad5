# SPDX-License-Identifier: Apache-2.0
"""A run of a plan over the nodes of a roster: training, evaluation or survey, whatever engine carries its messages."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hedgerow.app.evaluation import conclude_evaluation
from hedgerow.app.inputs import check_can_write, join_names, signing_key, signing_roster
from hedgerow.app.options import CoordinatorOptions
from hedgerow.app.output import begin_log, note, tell
from hedgerow.app.progress import SECONDS_BETWEEN_LINES, list_contributors, note_if_slow, space_lines
from hedgerow.app.watch import EVENT_WORDS, describe_wait
from hedgerow.errors import AggregationError, UsageError
from hedgerow.local.training import FederatedEvaluation
from hedgerow.methods.replica import rehearse
from hedgerow.methods.tasks import SurveyTask, Task, TrainingTask, digest_model
from hedgerow.methods.votes import find_power
from hedgerow.models.model import Model, require_room, save_unless_kept, write_atomically, writes_over
from hedgerow.plan.plan import Plan
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import NoiseSource, make_noise
from hedgerow.privacy.statement import NETWORK
from hedgerow.protocol.messages import RunState
from hedgerow.protocol.refusals import WireRefusal
from hedgerow.protocol.stream import Farewell, Result, Wanted, read_as
from hedgerow.server.coordinator import (
    RunEvent,
    RunEventKind,
    RunSession,
    RunSetup,
    conclude,
    find_patience,
    run_coordinator,
    tell_end,
)
from hedgerow.server.journal import Journal, open_journal
from hedgerow.server.release import EvaluatedModel, Outcome
from hedgerow.server.status import Audience, HubTraffic, Publisher, RunBoard
from hedgerow.transport.connections import allow_many_connections
from hedgerow.transport.engines import HUBS
from hedgerow.transport.grpc_hub import Monitors, StudyServer
from hedgerow.transport.identities import PinnedRoster, PrivateIdentity, read_private, read_roster
from hedgerow.transport.interface import Address, Hub, ListeningHub, Repeats, times

if TYPE_CHECKING:
    from hedgerow.app.page import Console


@contextmanager
def publish(board: RunBoard, hub: ListeningHub, monitors: Monitors, page: Audience | None = None) -> Iterator[None]:
    """Tell all who watch how the run is, and at the end how it ended."""

    def traffic() -> HubTraffic:
        counted = hub.traffic()
        return HubTraffic(counted.sent, counted.received, dict(hub.refusals), dict(hub.versions))

    with ExitStack() as stack:
        stack.callback(monitors.close)
        audiences: list[Audience] = [monitors, *([] if page is None else [page])]
        stack.callback(Publisher(board, traffic, audiences).close)
        yield


_OF_ALL_SITES = {RunEventKind.DISAGREEMENT, RunEventKind.OBJECTION}
"""What is told of all sites together."""
_WHY_ABSENT = (
    "Such a node is not running, or cannot reach this address, or its owner has not approved this roster, or has "
    "denied it: call the site"
)
STOPPED_BY_OPERATOR = "stopped-by-operator"
"""Code sent to the sites of a run ended with --abort."""


class RunLines:
    """Log of a run on stderr: sites that come and go, awaited sites, and progress now and then.

    Args:
        board: of the same run, which has taken note of each event before.
        shows: is called each time that the run looks for whom it waits; what it raises ends the run here.
    """

    def __init__(
        self, n_rounds: int, board: RunBoard, *, quiet: bool, shows: Callable[[], object] = lambda: None
    ) -> None:
        self._n_rounds, self._board, self._quiet, self._shows = n_rounds, board, quiet, shows
        self._last_release_line = float("-inf")
        self._repeats = Repeats()
        self._is_over = False
        self._last_wait_line = -math.inf
        self._last_awaited: tuple[str, ...] = ()

    def waiting(self, seconds: float, awaited: Collection[str] = ()) -> None:
        """Note the rest of the phase's time, and log now and then for whom the run waits.

        From the second time on the line also names sites that are not connected: a site that has denied a roster tells
        nobody.

        Args:
            awaited: whose answer, or return, the phase needs, where that is not who is to join: said once they are
                late, and again when others are.
        """
        self._board.note_wait(seconds, awaited)
        self._shows()
        wait, now = self._board.wait(), time.monotonic()
        is_new = awaited and wait.awaited != self._last_awaited
        pause = SECONDS_BETWEEN_LINES if is_new else space_lines(wait.seconds)
        if self._quiet or not (text := describe_wait(wait)) or now - self._last_wait_line < pause:
            return
        self._last_awaited = wait.awaited
        absent = wait.absent if math.isfinite(self._last_wait_line) else ()
        self._last_wait_line = now
        why = f". Not connected: {join_names(absent)}. {_WHY_ABSENT}" if absent else ""
        tell(f"{text}{why}")

    def __call__(self, event: RunEvent) -> None:
        """Take note of an event."""
        if event.kind is RunEventKind.PHASE:
            self._is_over = event.code in {RunState.FINISHING.value, RunState.OVER.value}
        if self._quiet:
            return
        if event.kind is RunEventKind.LEFT and self._is_over:
            # A site hangs up once it has the result.
            self._say_again(event.site, f"{event.site} has hung up", "", "INFO")
        elif (event.site and event.kind is not RunEventKind.LATE) or event.kind in _OF_ALL_SITES:
            said, mood = EVENT_WORDS.get(event.kind, (event.kind.value, ""))
            why = f" ({event.code})" if event.code else ""
            level = "WARNING" if mood == "bad" or event.kind is RunEventKind.SILENT else "INFO"
            more = f": {event.detail}" if event.detail else ""
            # Add who is still missing, unless all are there or the run goes on without them.
            if event.kind is RunEventKind.READY and (text := describe_wait(self._board.wait())):
                self._last_wait_line = time.monotonic()
                more = f"; {text}"
            self._say_again(event.site, f"{event.site} {said}{why}".strip(), more, level)
        elif event.kind is RunEventKind.ABANDONED:
            if count := self._repeats.note("", event.code):
                tell(f"round {event.round + 1}: begun again ({event.code}){times(count)}", level="WARNING")
        elif event.kind is RunEventKind.RELEASED:
            now = time.monotonic()
            if now - self._last_release_line >= SECONDS_BETWEEN_LINES or event.round >= self._n_rounds:
                self._last_release_line = now
                tell(f"round {event.round} of {self._n_rounds} released")

    def _say_again(self, site: str, text: str, then: str, level: str) -> None:
        """Log an event that a site can repeat at will: the first, second, fourth, eighth time and so on.

        `then` follows it; what differs from one time to the next does not make it another text.
        """
        if count := self._repeats.note(site, text):
            tell(text + times(count) + then, level=level, site=site)


@dataclass(frozen=True)
class ModelFile:
    """Destination of a run's model, and the file that is there already.

    Attributes:
        path: the file.
        evaluated: the model that is evaluated, None where one is trained.
        journal: of the run.
        is_new: set another run's journal aside.
        quiet: say nothing.
        made_in: where the run is, a name of `hedgerow.privacy.statement.PLACES`.
        agreed: called once enough sites have agreed to the plan of the run.
    """

    path: Path
    evaluated: Model | None
    journal: Path
    is_new: bool = False
    quiet: bool = False
    made_in: str = NETWORK
    agreed: Callable[[], object] = lambda: None

    def require_room(self) -> None:
        """Check, before a run begins or goes on, that the model can be written; UsageError "model-exists"."""
        require_room(self.path, self.evaluated, self._remedy)

    def look(self, session: RunSession) -> None:
        """Announce a run that is over by its journal; raise UsageError if there is no room for its model."""
        made = session.run.outcome
        if made is None:
            self.require_room()
            return
        is_there = self.path.is_file() and not writes_over(self._build_model(made, session), self.path, self._remedy)
        if not self.quiet:
            said = f"Its model is in {self.path}" if is_there else f"Its model is written to {self.path}"
            note(f"The run is over. {said}; sites that missed the end are told of it.")

    def keep(self, outcome: Outcome, session: RunSession) -> None:
        """Write the trained model, or the evaluated one with its evaluation; raise as `save`."""
        self.save(self._build_model(outcome, session))

    def _build_model(self, outcome: Outcome, session: RunSession) -> Model:
        if self.evaluated is None:
            return build_model(outcome, session, self.made_in)
        return conclude_evaluation(outcome, self.evaluated, self.made_in).model

    def save(self, model: Model) -> None:
        """Write it, unless it is there with more on its account; raises as `save_unless_kept`."""
        if not save_unless_kept(model, self.path, self._remedy) and not self.quiet:
            note(f"The run is over and its model is in {self.path}, with more on its account. It was not written over.")

    @property
    def _remedy(self) -> str:
        return (
            f"Give another name, --out MODEL, or move the file away first. To go on with a run that has begun, or to "
            f"have the model of one that is over, add --journal {self.journal}."
        )


def build_model(outcome: Outcome, session: RunSession, made_in: str) -> Model:
    """Build a training's model, with its account and the place where it was made."""
    model = Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report, salvaged=outcome.salvaged)
    run, votes = session.run, session.run.task.schedule.votes
    if votes is not None:
        declared = [run.setup.roster.find_max_rows(site.name) for site in run.sites]
        model = model.voted(outcome.tallies, find_power(outcome.plan, votes, declared))
    return model.made(made_in, len(run.sites), run.replica.count_drawings())


def pause_file(journal: Path) -> Path:
    """Return the path of the file that marks a run as paused, or to be paused."""
    return Path(f"{journal}.paused")


def unmet_file(journal: Path) -> Path:
    """Return the path of the mark of a run that no site has joined: at its end nobody needs to be told."""
    return Path(f"{journal}.unmet")


class RunFile(Protocol):
    """Destination of a run's result and journal: a `ModelFile`, or the files of a survey."""

    @property
    def journal(self) -> Path:
        """Path of the run's journal."""

    @property
    def is_new(self) -> bool:
        """True if another run's journal is set aside."""

    @property
    def quiet(self) -> bool:
        """True if nothing is logged."""

    def require_room(self) -> None:
        """Check, before a run begins or goes on, that its result can be written; raise UsageError."""

    def look(self, session: RunSession) -> None:
        """Announce a run that is over by its journal; raise UsageError if there is no room for its result."""

    @property
    def agreed(self) -> Callable[[], object]:
        """Function to call once enough sites have agreed to the run."""

    def keep(self, outcome: Outcome, session: RunSession) -> None:
        """Write the result unless it is written already: before, the disk may have been full."""


def carry_out(
    keys: tuple[PrivateIdentity, PinnedRoster],
    plan: Plan,
    noise: NoiseSource,
    file: RunFile,
    about: EvaluatedModel | SurveyTask | None,
    opened: Callable[[RunSession, RunBoard], AbstractContextManager[Hub]],
    log_format: str = "text",
    shows: Callable[[], object] = lambda: None,
    entropy: Callable[[int], bytes] = os.urandom,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Outcome, RunSession]:
    """Wait for the sites and carry the run out, whatever engine carries its messages.

    Args:
        keys: the coordinator's identity, and the roster.
        plan: of the run; `about`'s own unless a model is trained.
        file: where its result goes, and where it is journalled.
        about: the model to be evaluated, or the survey; None trains a model.
        opened: the hub, from when the run can begin until it is over.
        log_format: of what is said: text or json.
        shows: as `RunLines`; the journal keeps the run that it ends.
        entropy: draws the run's number.
        clock: as for `run_coordinator`.

    Raises:
        HedgerowError: why the run was given up; the journal keeps what was released.
    """
    identity, pinned = keys
    begun = begin_log(pinned.coordinator.name, log_format)
    model = about if isinstance(about, EvaluatedModel) else None
    task: Task = about if isinstance(about, SurveyTask) else TrainingTask(plan) if model is None else model.task
    names = [site.name for site in pinned.sites]
    board = RunBoard(task, names, task.schedule.n_rounds, time.monotonic, os.urandom(8))
    lines = RunLines(task.schedule.n_rounds, board, quiet=file.quiet, shows=shows)

    def watch(event: RunEvent) -> None:
        if event.kind is RunEventKind.JOINED:
            unmet_file(file.journal).unlink(missing_ok=True)
        if event.kind is RunEventKind.PHASE and event.code == RunState.SETTING_UP:
            # Enough sites for an epoch are ready, and a ready site has checked plan and policy.
            file.agreed()
        board(event)
        lines(event)

    setup = RunSetup(task, signing_roster(pinned), signing_key(identity), noise, entropy, watch, model)
    path = check_can_write(str(file.journal))
    account = Ledger() if model is None else model.ledger
    journal, aside = open_journal(
        path, task, setup.roster, is_new=file.is_new, before_new=file.require_room, ledger=account
    )
    try:
        if aside is not None and not file.quiet:
            said = "a new run begins, on whose account is what it released"
            note(f"{path} held another run, which does not go on. It is set aside as {aside}; {said}.")
        if not journal.has_begun:
            unmet_file(file.journal).touch(mode=0o600)
        session = RunSession(setup, journal)
        file.look(session)
        if session.run.outcome is not None:
            file.keep(session.run.outcome, session)
        board.attach(session.run)
        begun.run = lambda: session.run.run_id
        with opened(session, board) as hub:
            pause = pause_file(file.journal)
            # Load compiled code, which takes a second, before the sites come and not while they wait for a sum.
            with note_if_slow(quiet=file.quiet):
                rehearse(session.run.task.with_structure_seed(0))
            run_coordinator(session, hub, plan.federation, clock, lines.waiting, pause.exists)
        # The hub may end before the sites acknowledge the end, which does not change the result.
        outcome = conclude(session.run)
        file.keep(outcome, session)
        return outcome, session
    finally:
        journal.close()


def serve(
    options: CoordinatorOptions,
    plan: Plan,
    file: RunFile,
    about: EvaluatedModel | SurveyTask | None = None,
    page: Console | None = None,
    shows: Callable[[], object] = lambda: None,
) -> tuple[Outcome, RunSession]:
    """Listen where the options say, and `carry_out`.

    Args:
        page: is shown the run.
        shows: as for `RunLines`.
    """
    require_masks(plan)
    pinned, identity = read_roster(Path(options.roster)), read_private(Path(options.identity))
    address = Address.parse(options.listen, "--listen")
    # For an evaluation do not compare digests here: a node may hold the plan from before its seed was drawn.
    digest = bytes.fromhex(plan.digest) if about is None else b""
    allow_many_connections()

    @contextmanager
    def listening(session: RunSession, board: RunBoard) -> Iterator[Hub]:
        monitors = Monitors(pinned)
        hub = HUBS[options.engine](identity, pinned, address, digest, monitors)
        try:
            if not options.quiet:
                names = join_names(site.name for site in pinned.sites)
                note(f"Listening on {Address(address.host, hub.port)} for {names}.")
            if page is not None:
                page.follow(board)
                page.show_plan(plan, len(pinned.sites))
            with publish(board, hub, monitors, page):
                yield hub
        except AggregationError as fault:
            if fault.code == "too-few-sites" and hub.refusals:
                # Waiting for these sites, as the remedy advises, would not help.
                codes = ", ".join(sorted(hub.refusals))
                fault.what += f" Nodes of this roster were refused before they joined ({codes})."
            raise
        except KeyboardInterrupt:
            end = f" {options.ended_by} ends it." if options.ended_by else ""
            note(f"The run can go on: its sites wait, and the same command takes it up again.{end}")
            raise
        finally:
            hub.close()

    noise = make_noise(options.seed, os.urandom)
    return carry_out((identity, pinned), plan, noise, file, about, listening, options.log_format, shows)


def train_over_nodes(
    options: CoordinatorOptions,
    plan: Plan,
    file: ModelFile,
    page: Console | None = None,
    shows: Callable[[], object] = lambda: None,
) -> tuple[Model, RunSession]:
    """Run a training, or continue it, and return the model, which is written. Raises as `carry_out`."""
    outcome, session = serve(options, plan, file, None, page, shows)
    model = build_model(outcome, session, file.made_in)
    if page is not None:
        page.show_model(model)
    return model, session


def evaluate_over_nodes(
    options: CoordinatorOptions,
    evaluated: EvaluatedModel,
    model: Model,
    file: ModelFile,
    shows: Callable[[], object] = lambda: None,
) -> tuple[FederatedEvaluation, list[str]]:
    """Evaluate a model over the held-out rows of a roster's nodes, as their coordinator.

    The model is written with the cost on its account. Returns the evaluation, and the sites with rows in it.
    """
    # The run must write the model's account, because numbers seen but not charged would be a leak.
    outcome, session = serve(options, model.plan, file, evaluated, None, shows)
    return conclude_evaluation(outcome, model, file.made_in), list_contributors(session)


def end_run(options: CoordinatorOptions, plan: Plan, journal_file: Path) -> tuple[bytes, list[str], int]:
    """End the run of a journal for good, and tell its sites as they come back.

    Args:
        plan: its `federation.round_timeout` says how long the sites are waited for, `join_timeout` at most.

    Returns: the run's number, the sites that were told, and how many there are.

    Raises:
        UsageError: code "no-open-run"; there is no such run, or it is over.
    """
    pinned, identity = read_roster(Path(options.roster)), read_private(Path(options.identity))
    log = begin_log(pinned.coordinator.name, options.log_format)
    address = Address.parse(options.listen, "--listen")
    if not journal_file.is_file():
        raise UsageError("no-open-run", path=journal_file)
    with closing(Journal(journal_file)) as journal:
        run_id = journal.end(STOPPED_BY_OPERATOR)
        log.run = lambda: run_id
        names, has_met = [site.name for site in pinned.sites], not unmet_file(journal_file).exists()
        # A waiting node dials again within this time; a node that is not running hears of the end at
        # its next start.
        seconds = min(plan.federation.join_timeout, find_patience(plan.federation))
        if not has_met:
            if not options.quiet:
                note(f"The run {run_id.hex()[:12]} is ended. No site had taken it up, so nobody is told.")
            return run_id, [], len(names)
        allow_many_connections()
        # Accept any plan: only nodes that were in this run are told.
        with closing(HUBS[options.engine](identity, pinned, address, b"", None)) as hub:
            if not options.quiet:
                note(f"The run {run_id.hex()[:12]} is ended.")
                note(f"Waiting for {join_names(names)}, to tell them, for {seconds:.0f} s at most.")
            reached = tell_end(run_id, STOPPED_BY_OPERATOR, hub, names, seconds, time.monotonic)
    return run_id, reached, len(names)


_SECONDS_TO_HAND_OUT, _SECONDS_BETWEEN_LOOKS = 60.0, 0.3


def hand_out(options: CoordinatorOptions, model: Path, *, only_late: bool = False) -> None:
    """Serve a model's file to the roster's nodes for a minute at most, noting beside it who has taken it.

    Who has taken it is noted beside it.

    Args:
        only_late: end once those have it that had not taken it before.
    """
    content = Result(model.read_bytes()).to_bytes()
    roster, identity = read_roster(Path(options.roster)), read_private(Path(options.identity))
    sites, took = {site.name for site in roster.sites}, set[str]()
    awaited = late(model, roster) if only_late else sites
    digest = digest_model(Model.load(model).ensemble)
    before = set(_read_record(model, digest).get("sites", ()))

    def answer(message: bytes) -> bytes:
        try:
            took.add(read_as(Wanted, message).party)
        except WireRefusal as refusal:
            return Farewell.from_refusal(refusal).to_bytes()
        return content

    address = Address.parse(options.listen, "--listen")
    note(
        f"Waiting for {join_names(sorted(awaited))} to take the model's file, for {_SECONDS_TO_HAND_OUT:.0f} s at most."
    )
    server = StudyServer(identity, address, len(sites), answer, roster.sites)
    try:
        deadline = time.monotonic() + _SECONDS_TO_HAND_OUT
        while not took.issuperset(awaited) and time.monotonic() < deadline:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    finally:
        server.close()
        record = {"model": digest.hex(), "roster": roster.fingerprint(), "sites": sorted(before | took)}
        write_atomically(_record_file(model), json.dumps(record).encode())
    note(f"The model's file was taken by {join_names(sorted(took)) or 'no site'}.")


def late(model: Path, roster: PinnedRoster) -> set[str]:
    """Return the sites of a run's roster that have not taken its model's file, regardless of its account.

    Empty if the roster has changed since, because the run cannot be continued with another one. Raises ModelError.

    No one where the roster is another one by now, with which the run cannot be taken up. Raises ModelError.
    """
    digest = digest_model(Model.load(model).ensemble)
    noted = _read_record(model, digest)
    is_known = not noted or noted["roster"] == roster.fingerprint()
    return {site.name for site in roster.sites} - set(noted.get("sites", ())) if is_known else set()


def _read_record(model: Path, digest: bytes) -> dict[str, Any]:
    """Read `roster` and `sites` from the record beside a model's file; empty for another model's record."""
    try:
        record = json.loads(_record_file(model).read_text(encoding="utf-8"))
        return dict(record) if record["model"] == digest.hex() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _record_file(model: Path) -> Path:
    return model.with_name(f"{model.name}.taken")


def require_masks(plan: Plan) -> None:
    """Raise UsageError for a plan of sums in the clear."""
    if not plan.federation.secure_aggregation:
        raise UsageError("clear-sums")
