# SPDX-License-Identifier: Apache-2.0
"""The state of a site's node for those who watch it from outside: `hedgerow join --status`.

A node that runs locks its database. So it writes signs of life beside it. The status is read from these, from the
budget book and from the owner's desk, which other processes may open. No row is read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.errors import EnvironmentFault, UsageError
from hedgerow.transport.interface import Connected, Disconnected

if TYPE_CHECKING:
    from hedgerow.client.budget import BudgetBook
    from hedgerow.client.policy import Policy
    from hedgerow.plan.plan import Plan

SIGN = "contact.json"
_SECONDS_BETWEEN_SIGNS = 15.0
MAX_SILENCE = 600.0
"""Seconds without a sign after which a node counts as down, and without contact in a run as cut off.

A node that stays rests for 300 s at most between two tries.
"""


class LifeSign:
    """The signs of life that a node writes: that it runs, its last contact, and how its last run ended.

    Args:
        folder: the node's own.
        clock: seconds since 1970.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._clock = folder, clock
        known = read_sign(folder)
        self._contact, self._ended = known.get("contact"), known.get("ended", "")
        self._is_connected, self._written = False, 0.0

    def take(self, event: Connected | Disconnected) -> None:
        """Note that the connection has come or gone, and write the sign."""
        self._note_contact()
        self._is_connected = isinstance(event, Connected)
        self._note_contact()
        self._write()

    def beat(self) -> None:
        """Write every few seconds that the node runs; the caller calls this every second."""
        self._note_contact()
        if abs(self._clock() - self._written) >= _SECONDS_BETWEEN_SIGNS:
            self._write()

    def end(self, code: str) -> None:
        """Write how a run has ended: the code word of its fault, "" for none."""
        self._note_contact()
        self._ended = code
        self._write()

    def _note_contact(self) -> None:
        if self._is_connected:
            self._contact = self._clock()

    def _write(self) -> None:
        from hedgerow.models.model import write_atomically

        self._written = self._clock()
        content = {"sign": self._written, "contact": self._contact, "ended": self._ended}
        # No run needs this file, so a full disk does not end the node here.
        with suppress(EnvironmentFault):
            write_atomically(self._folder / SIGN, json.dumps(content).encode(), mode=0o600)


def read_sign(folder: Path) -> dict[str, Any]:
    """Return what a node has left in its folder; empty where there is nothing that can be read."""
    try:
        found = json.loads((folder / SIGN).read_text(encoding="utf-8"))
        times = [found[name] for name in ("sign", "contact") if found[name] is not None]
        if not all(isinstance(each, int | float) for each in times) or not isinstance(found["ended"], str):
            return {}
        return dict(found)
    except (OSError, ValueError, KeyError, TypeError):
        return {}


EXIT_CODES = {
    "not-joined": 20, "not-running": 21, "budget-blocked": 22, "question": 23, "no-contact": 24, "last-run-failed": 25,
    "budget-short": 26,
}  # fmt: skip
"""Alarms, the gravest first; the first one found gives the command's exit code."""
_USUAL_ENDS = {
    "", "stopped-by-operator", "given-up", "run-closed", "policy-no-held-out", "policy-no-training", "policy-denied",
}  # fmt: skip
"""Ends of a run that need nobody's attention at the site."""


def describe_node(folder: Path, budget: Path | None = None, now: float | None = None) -> dict[str, Any]:
    """Describe the node of a party's study folder as JSON values, without exclusive access to its files.

    Args:
        budget: the book, where the folder does not say it yet.
        now: seconds since 1970.

    Raises:
        UsageError: code "node-folder".
    """
    from hedgerow.app.inputs import PLAN, POLICY, ROSTER, read_plan, read_policy
    from hedgerow.client.budget import RESERVED, BudgetBook, find_book
    from hedgerow.client.state import OwnerDesk

    if not (folder / "enrolment.db").is_file():
        raise UsageError("node-folder", folder=folder)
    now, state = time.time() if now is None else now, folder / "state"
    states = set[str]()
    found: dict[str, Any] = {
        "last_contact": None,
        "last_sign": None,
        "last_run": None,
        "budget": None,
        "question": None,
    }
    if not (folder / ROSTER).is_file():
        states.add("not-joined")
    sign = read_sign(state)
    if sign.get("contact") is not None:
        found["last_contact"] = _spell_time(sign["contact"])
    if sign:
        found["last_sign"] = _spell_time(sign["sign"])
        found["ended"] = sign["ended"]
    if not sign or now - sign["sign"] > MAX_SILENCE:
        states.add("not-running")
    if sign and sign["ended"] not in _USUAL_ENDS:
        states.add("last-run-failed")
    policy = read_policy(str(folder / POLICY)) if (folder / POLICY).is_file() else None
    place = budget or find_book(state)
    if policy is not None and place.is_file():
        with closing(BudgetBook(place)) as book:
            lines = book.lines(policy.data_set)
            if lines:
                last = lines[-1]
                found["last_run"] = {
                    "run_id": last.run_id, "plan": last.plan_name, "status": last.status, "begun": last.begun,
                    "epsilon": last.epsilon(policy.delta),
                }  # fmt: skip
            found["budget"] = {
                "data_set": policy.data_set, "spent": book.spent(policy.data_set, policy.delta),
                "max_epsilon": policy.max_epsilon, "delta": policy.delta,
            }  # fmt: skip
            is_open = any(line.status == RESERVED for line in lines)
            if code := book.find_block(policy.data_set):
                found["budget"]["blocked"] = code
                states.add("budget-blocked")
            elif (
                (folder / PLAN).is_file() and not is_open and not _has_room(book, policy, read_plan(str(folder / PLAN)))
            ):
                states.add("budget-short")
        contact = sign.get("contact")
        if is_open and (contact is None or now - contact > MAX_SILENCE):
            states.add("no-contact")
    with closing(OwnerDesk(state)) as desk:
        if (question := desk.pending()) is not None:
            found["question"] = {"id": question.id, "kind": question.kind, "asked": question.asked}
            states.add("question")
    found["states"] = [name for name in EXIT_CODES if name in states]
    return found


def _has_room(book: BudgetBook, policy: Policy, plan: Plan) -> bool:
    """Return whether what is left of the budget is enough for another run of a plan."""
    from hedgerow.methods.tasks import TrainingTask

    return book.spent(policy.data_set, policy.delta, TrainingTask(plan).schedule.events) <= policy.max_epsilon


def _spell_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
