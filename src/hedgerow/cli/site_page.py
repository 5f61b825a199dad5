"""The page of a site: ``--console`` of its node, or of ``hedgerow join``; for the owner of its rows, and nobody else.

It shows what a run costs before and after, the budget book as a curve, how the table fits the plan, and the files that
were received; there the owner approves or denies what is asked, and ends the node's part. It sees no row: what it shows
of the table are the counts that `hedgerow check` prints, and only where no other machine can ask for the page.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.cli import check, privacy
from hedgerow.cli.approve import answered, facts_of
from hedgerow.cli.output import note, number
from hedgerow.cli.page import Page
from hedgerow.client.budget import RESERVED, BudgetBook, BudgetLine
from hedgerow.client.owner import OwnerDesk
from hedgerow.errors import HedgerowError, UsageError
from hedgerow.local.forecast import forecast
from hedgerow.methods.tasks import TrainingTask
from hedgerow.models.model import Model
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.events import scoped
from hedgerow.protocol.messages import NodeState
from hedgerow.protocol.stream import WireRefusal, known
from hedgerow.transport.connections import is_loopback
from hedgerow.transport.identities import PinnedRoster, spoken
from hedgerow.transport.interface import Connected, Disconnected

if TYPE_CHECKING:
    from hedgerow.client.node_session import NodeSession
    from hedgerow.client.owner import Question
    from hedgerow.client.policy import Policy
    from hedgerow.client.state import NodeStore
    from hedgerow.data.fit import TableFit
    from hedgerow.plan.plan import Plan

_KEPT_LINES = 200
_MOST_RUNS, _MOST_POINTS = 24, 400
"""Of the curve: runs of the book, and looks at the one that goes on; beyond these every second one goes."""
_MOST_INVITATIONS = 20
_SECONDS_BETWEEN_LOOKS = 1.0
_IDLE_PER_WORK = 20
"""Costs are added up at most for a twentieth of the time: the node computes on the same machine."""
_PHASES = {
    NodeState.OUTSIDE: ("Waiting for the coordinator to propose a run", "waits"),
    NodeState.INVITED: ("In a run, which waits for other sites", "waits"),
    NodeState.ENROLLING: ("Agreeing on keys with the other sites", "runs"),
    NodeState.WAITING: ("Taking part", "runs"),
    NodeState.MASKED: ("Taking part", "runs"),
    NodeState.ECHOED: ("Taking part", "runs"),
    NodeState.FINISHED: ("Finished", "good"),
    NodeState.STOPPED: ("Stopped", "bad"),
}
_MOODS = {"WARNING": "waits", "ERROR": "bad"}


class SitePage(Page):
    """Serves a site's page until it is closed.

    Args: place: see `Page`; site: its name; study: that it takes part in, if that has a name.
    Raises: as `Page`.
    """

    def __init__(self, place: str, site: str, study: str = "") -> None:
        self._folder: Path | None = None
        self._context = copy_context()
        self._lines: deque[dict[str, str]] = deque(maxlen=_KEPT_LINES)
        self._connection = ""
        actions = {"approve": self._approve, "deny": self._deny, "stop": self._stop}
        super().__init__(place, "site", "The page of this site", actions)
        self.say(title=site, study=study, phase="Starting", mood="waits", waiting="", events=[], tables=[])

    @property
    def _is_for_owner(self) -> bool:
        """Whether no other machine can ask for it: over a network it goes as it is."""
        return is_loopback(self._host)

    # What it is told --------------------------------------------------------------------------------------------------

    def tell(self, level: str, text: str) -> None:
        """A line of the node's log, which may hold counts of its rows."""
        if not self._is_for_owner:
            return
        at = time.strftime("%H:%M:%S", time.gmtime())
        self._lines.appendleft({"time": at, "text": text, "mood": _MOODS.get(level, "")})
        self.say(events=list(self._lines))

    def fail(self, fault: HedgerowError) -> None:
        """See `Page.fail`; the text, and even the code, may tell of rows."""
        if self._is_for_owner:
            super().fail(fault)
        else:
            self.say(
                error={"what": "The node's log says why it does not go on.", "cause": "", "remedy": "", "code": ""}
            )

    def wait_for(self, phase: str, waiting: str = "") -> None:
        """Something is done, or waited for, outside a run."""
        self.say(phase=phase, mood="waits", waiting=waiting, rounds=None, can_stop=False)

    def begin(self, plan: Plan | None, policy: Policy, roster: PinnedRoster, address: str) -> None:
        """A node starts: what it was given, and what its plan costs."""
        self.show_cost(plan)
        facts = [
            ["data", policy.data_set],
            ["coordinator", address],
            ["roster", roster.fingerprint()],
            ["sites of the roster", ", ".join(site.name for site in roster.sites)],
        ]
        self.say(about=facts, tables=[], error=None, question=None)

    def show_cost(self, plan: Plan | None) -> None:
        """What a plan asks for, and what that costs."""
        if plan is not None:
            about = f"{plan.label.name} ({plan.label.type}), from {len(plan.features)} features"
            words = spoken(bytes.fromhex(plan.digest))
            named = [("plan", plan.name), ("fingerprint", words), ("predicts", about)]
            self.say(cost=[*named, *privacy.privacy_facts(plan, forecast(plan))])

    def show_fit(self, name: str, found: TableFit) -> None:
        """How one of the site's tables fits the plan."""
        table: dict[str, Any] = {"name": name, "rest": "", "columns": []}
        if self._is_for_owner:
            columns = [[*check.cells(column), "; ".join(column.findings())] for column in found.columns]
            mending = [line for column in found.columns for line in column.mending.split("\n") if line]
            lines = ["[data]", *dict.fromkeys(mending)] if mending else []
            table |= {"rest": check.rest(found), "columns": columns, "mending": "\n".join(lines)}
        else:
            table["rest"] = "Its counts are private, and this page is served to other machines: see `hedgerow check`."
        self.say(tables=[*(self.said("tables") or []), table])

    def connected(self, event: Connected | Disconnected) -> None:
        """The connection to the coordinator has come or gone."""
        is_there = isinstance(event, Connected)
        self._connection = "" if is_there else WireRefusal(known(event.reason)).what  # type: ignore[union-attr]

    def show_models(self, folder: Path) -> None:
        """Where the models are that this site has received, and the newest one's report and shapes."""
        found = sorted(folder.glob("model-*.json"), key=lambda place: -place.stat().st_mtime)
        self.say(models=[[str(place), str(place.with_suffix(".report.txt"))] for place in found])
        if found:
            self.show_model(Model.load(found[0]))

    # While a node runs ------------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self, session: NodeSession, store: NodeStore, book: Path, policy: Policy) -> Iterator[None]:
        """Show how a node is until the block ends, and take its owner's answers; `book`: its budget book's file."""
        self._folder, self._context = store.folder, copy_context()
        stops = threading.Event()

        def watch() -> None:
            # Connections of its own: the node may write meanwhile.
            with closing(BudgetBook(book)) as own:
                look = _Look(session, store, own, policy)
                while True:
                    is_last = stops.is_set()
                    try:
                        found = look(self._connection, is_last=is_last)
                        # How the node answered may tell of rows.
                        found |= {} if self._is_for_owner else {"invitations": []}
                        self.say(**found)
                    except HedgerowError as fault:
                        self.tell("WARNING", f"{fault.what} ({fault.code})")
                    if is_last:
                        return
                    stops.wait(_SECONDS_BETWEEN_LOOKS)

        thread = threading.Thread(target=watch, name="hedgerow-look", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stops.set()
            thread.join()
            self._folder = None

    @contextmanager
    def asking(self, folder: Path, question: Question) -> Iterator[None]:
        """Show what is asked between two runs until the block ends, and take the answer; `folder`: the node's."""
        self._folder = folder
        *facts, _ = facts_of(question)
        waiting = "The coordinator has a new roster: see below."
        shown = {"id": question.id, "facts": facts}
        self.say(phase="Your answer is awaited", mood="waits", waiting=waiting, question=shown, can_stop=True)
        try:
            yield
        finally:
            self._folder = None
            self.say(question=None, can_stop=False)

    # What the owner may do --------------------------------------------------------------------------------------------

    def _approve(self, asked: Mapping[str, Any]) -> str:
        return self._answered(asked, approve=True)

    def _deny(self, asked: Mapping[str, Any]) -> str:
        return self._answered(asked, approve=False)

    def _answered(self, asked: Mapping[str, Any], *, approve: bool) -> str:
        """Answer the question that was shown: the page names it, so no other can be slipped in between."""
        with closing(self._own_desk()) as desk:
            question = desk.answer(str(asked.get("question", "")), approve=approve)
        return self._noted(answered(question, approve=approve))

    def _stop(self, _: Mapping[str, Any]) -> str:
        with closing(self._own_desk()) as desk:
            desk.stop()
        return self._noted("The node leaves its run, charged for what it has answered, and ends.")

    def _noted(self, said: str) -> str:
        """What was done on the page, in the log of the node as well: it is that of another thread."""
        self._context.copy().run(note, f"On the site's page: {said}")
        return said

    def _own_desk(self) -> OwnerDesk:
        """For one answer; raises UsageError (code "not-asked") where no node runs."""
        if self._folder is None:
            raise UsageError("not-asked")
        return OwnerDesk(self._folder)


class _Look:
    """What stands on the page of a node that runs; to be called now and then, by one thread.

    Args: session, store: the node's; book: opened for this; policy: the owner's.
    """

    def __init__(self, session: NodeSession, store: NodeStore, book: BudgetBook, policy: Policy) -> None:
        self._session, self._store, self._book, self._policy = session, store, book, policy
        self._known: tuple[tuple[str, str, str], ...] | None = None
        self._runs: list[list[str]] = []
        self._totals = [0.0]
        self._after: list[list[str]] = []
        self._in_run: list[tuple[float, float]] = []
        self._again = -math.inf

    def __call__(self, lost: str, *, is_last: bool) -> dict[str, Any]:
        """Args: lost: why there is no connection, "" where there is one; is_last: whether no other look follows."""
        session = self._session
        question, (phase, mood), waiting = session.question, _PHASES[session.state], ""
        is_over = session.state in (NodeState.FINISHED, NodeState.STOPPED)
        if question is not None:
            phase, waiting = "Your answer is awaited", f"The coordinator asks for a {question.kind}: see below."
        elif lost and not is_over:
            phase, mood, waiting = "No connection to the coordinator", "waits", f"{lost} The node tries again."
        if session.is_paused and not is_over:
            phase, mood, waiting = "Paused by the coordinator", "waits", "The run goes on when it is resumed there."
        done, planned = session.progress
        parts = {
            "phase": phase,
            "mood": mood,
            "waiting": waiting,
            "question": None if question is None else {"id": question.id, "facts": self._asked(question)},
            "can_stop": not is_over,
            "rounds": [done, planned] if planned else None,
        }
        if is_last or time.monotonic() >= self._again:
            began = time.monotonic()
            parts |= self._ledger()
            ended = time.monotonic()
            self._again = ended + _IDLE_PER_WORK * (ended - began)
        return parts

    def _asked(self, question: Question) -> list[tuple[str, str]]:
        """What a question asks for, with what was spent before; without its number, which the page sends along."""
        before = self._book.spent(question.data_set, question.total_delta)
        *facts, then, _ = facts_of(question)
        return [*facts, ("spent now", f"epsilon {before:.4g}"), then]

    def _ledger(self) -> dict[str, Any]:
        """The budget book as numbers, a table and a curve."""
        policy, run_id = self._policy, self._session.run_id.hex()
        lines = self._book.lines(policy.data_set)
        known = tuple((line.run_id, line.site, line.status) for line in lines)
        if known != self._known:
            self._add_up(lines)
            self._known, self._in_run = known, []
        (*_, total), most = self._totals, policy.max_epsilon
        last = len(self._totals) - 1
        points = [(float(n), each) for n, each in enumerate(self._totals)]
        facts = [["spent", f"epsilon {number(total)}"]]
        reserved: list[tuple[float, float]] = []
        if any(line.status == RESERVED for line in lines):
            facts[0][0] = "spent, or reserved"
        if lines and lines[-1].status == RESERVED and lines[-1].run_id == run_id:
            self._note_spent(lines, last - 1)
            if self._in_run:
                points, reserved = [*points[:-1], *self._in_run], [points[-2], points[-1]]
                facts.insert(0, ["spent so far", f"epsilon {number(self._in_run[-1][1])}"])
        facts += self._after
        facts += [["your policy allows", f"epsilon {number(most)}"], ["at delta", f"{policy.delta:g}"]]
        limit = most if 0 < most < math.inf else max(1.1 * total, 1.0)
        return {
            "budget": facts,
            "budget_text": f"{number(total)} of {number(most)}",
            "ledger": {"points": points, "reserved": reserved, "most": max(1, last), "limit": limit},
            "runs": self._runs,
            "invitations": [
                [line.last, line.kind, line.plan_name, number(line.epsilon), line.answer, str(line.count)]
                for line in reversed(self._book.invitations()[-_MOST_INVITATIONS:])
            ],
        }

    def _add_up(self, lines: Sequence[BudgetLine]) -> None:
        """What the last runs of the book have cost, each and all so far, oldest first."""
        delta, gdp = self._policy.delta, get_accountant("gdp")
        first = max(0, len(lines) - _MOST_RUNS)
        events = [event for line in lines[:first] for event in line.events]
        self._totals, self._runs = [gdp.epsilon(events, delta) if events else 0.0], []
        for line in lines[first:]:
            events += line.events
            self._totals.append(gdp.epsilon(events, delta) if events else 0.0)
            name = line.run_id[:12] + (f" of {line.site}" if line.site and line.site != self._session.site else "")
            costs = [number(line.epsilon(delta)), number(self._totals[-1])]
            self._runs.insert(0, [name, line.begun, line.plan_name, line.status, *costs])
        plan = self._session.plan
        self._after = []
        if plan is not None and not any(line.status == RESERVED for line in lines):
            whole = gdp.epsilon([*events, *TrainingTask(plan).planned_releases()], delta)
            self._after = [["after one more run by this plan", f"epsilon {number(whole)}, at most"]]

    def _note_spent(self, lines: Sequence[BudgetLine], start: int) -> None:
        """A point of the curve: what the run that goes on has cost by now. Args: start: where it begins."""
        done, planned = self._session.progress
        spent = self._store.spent(self._session.run_id)
        if spent is None or not planned:
            return
        events = [event for line in lines[:-1] for event in line.events] + scoped(spent, lines[-1].run_id)
        total = get_accountant("gdp").epsilon(events, self._policy.delta) if events else 0.0
        point = (start + min(1.0, done / planned), total)
        if not self._in_run or self._in_run[-1] != point:
            self._in_run.append(point)
        if len(self._in_run) > _MOST_POINTS:
            self._in_run = [*self._in_run[:-1:2], self._in_run[-1]]
