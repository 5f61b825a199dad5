# SPDX-License-Identifier: Apache-2.0
"""What a site's node asks its owner, and the answer, also at the terminal of the node itself. No heavy imports."""

from __future__ import annotations

import math
import secrets
import select
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow.app.inputs import is_terminal
from hedgerow.app.output import note
from hedgerow.plan.plan import who_sees
from hedgerow.privacy.rounding import format_up
from hedgerow.transport.interface import is_worth_a_line

if TYPE_CHECKING:
    from hedgerow.client.state import OwnerDesk, Question

_SECONDS_BETWEEN_REMINDERS = 60.0


def list_facts(question: Question) -> list[tuple[str, str]]:
    """List what the owner sees before they answer, as names and values."""
    if question.is_about_roster:
        return [
            ("asked for", f"a new roster, asked {question.asked} UTC: {question.name}"),
            ("fingerprint", f"{question.words}; call the coordinator, and compare"),
            ("question", question.id),
        ]
    cost = "nothing bounds it" if math.isinf(question.epsilon) else f"epsilon {format_up(question.epsilon, 4)}"
    return [
        ("asked for", f"{question.kind}, run {question.run_id[:12]}, asked {question.asked} UTC"),
        ("plan", f"{question.name}, {question.words}"),
        ("who sees what", who_sees(question.noise)),
        ("costs", f"{cost} at delta {format_up(question.delta)}"),
        ("then spent", f"{format_budget(question.total, question.most, question.total_delta)} of {question.data_set}"),
        ("question", question.id),
    ]


def format_budget(epsilon: float, most: float, delta: float) -> str:
    """Format an epsilon as part of what a policy allows."""
    return f"epsilon {format_up(epsilon, 4)} of {most:g} at delta {format_up(delta)}"


def approval_command(question: Question, folder: object) -> str:
    """Return the command that approves a question."""
    return f"hedgerow approve {shlex.quote(str(folder))} {question.id}"


def answer(desk: OwnerDesk, question_id: str, *, approve: bool) -> str:
    """Approve or deny a question, and return a sentence about it; raise as `OwnerDesk.answer`."""
    question = desk.answer(question_id, approve=approve)
    run = f"by {question.name!r} (run {question.run_id[:12]})"
    about = f"({question.name})" if question.is_about_roster else run
    return f"The {question.kind} {about} is {'approved' if approve else 'denied'}."


class AtTheNode:
    """Asks the owner at the node: logs the question, reminds, and reads the answer from a terminal.

    A "yes" counts with the number that is shown with its question. The node draws it: a coordinator that asks for
    something else while the owner types does not know it.

    Args:
        desk: where the answer goes.
        folder: the node's, for the command that answers from elsewhere.
    """

    def __init__(self, desk: OwnerDesk, folder: Path) -> None:
        self._desk, self._folder = desk, folder
        self._shown, self._number, self._since, self._count = "", 0, 0.0, 0
        self._reads = is_terminal()

    def __call__(self, question: Question) -> None:
        """Show a new question, read an answer that was typed, or remind of the question; never block.

        The caller calls this every second.
        """
        if question.id != self._shown:
            self._shown, self._since, self._count = question.id, time.monotonic(), 1
            self._number = 1000 + secrets.randbelow(9000)
            note(f"The owner is asked first. {'; '.join(f'{name}: {value}' for name, value in list_facts(question))}")
            how = f"Type yes {self._number}, or no. From elsewhere: " if self._reads else "To approve it: "
            note(f"{how}{approval_command(question, self._folder)}")
        if self._reads and select.select([sys.stdin], [], [], 0)[0]:
            self._take(sys.stdin.readline(), question)
        waited = time.monotonic() - self._since
        if waited >= self._count * _SECONDS_BETWEEN_REMINDERS:
            if is_worth_a_line(self._count):
                note(
                    f"Waiting for the owner, for {waited / 60:,.0f} min by now: "
                    f"{approval_command(question, self._folder)}"
                )
            self._count += 1

    def _take(self, line: str, question: Question) -> None:
        said = line.strip().lower()
        if said in ("no", f"yes {self._number}"):
            note(answer(self._desk, question.id, approve=said != "no"))
        elif line:
            note(f"Type yes {self._number}, or no.")
        # An empty read without a newline means that the terminal is gone.
        self._reads = bool(line)
