"""``hedgerow approve``: what a site's node asks its owner, and the answer; also at the terminal of the node itself."""

from __future__ import annotations

import argparse
import math
import secrets
import select
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path

from hedgerow.cli.inputs import asked, is_terminal
from hedgerow.cli.output import note, number, print_facts, print_json
from hedgerow.client.owner import ROSTER, OwnerDesk, Question, owner_desk
from hedgerow.errors import UsageError
from hedgerow.transport.interface import is_worth_a_line

_SECONDS_BETWEEN_REMINDERS = 60.0


def run(arguments: argparse.Namespace) -> None:
    """Show what is asked, take the answer, or end the node's part."""
    with owner_desk(Path(arguments.folder)) as desk:
        if arguments.stop:
            desk.stop()
            note("The node leaves its run, charged for what it has answered, and ends: now, or when it is started.")
            return
        question = desk.pending()
        if arguments.question is not None or arguments.deny:
            if question is None:
                raise UsageError("not-asked")
            _answer(desk, arguments.question or question.id, approve=not arguments.deny)
            return
        if arguments.json:
            print_json({"question": None if question is None else {"id": question.id, **asdict(question)}})
            return
        if question is None:
            note("Nothing is asked.")
            return
        print_facts(facts_of(question))
        if is_terminal():
            said = asked("Do you approve it? [yes/no]").lower()
            if said in _WORDS:
                _answer(desk, question.id, approve=_WORDS[said])
            return
        note(f"To approve it: {command_of(question, arguments.folder)}")


_WORDS = {"yes": True, "y": True, "no": False, "n": False}


def facts_of(question: Question) -> list[tuple[str, str]]:
    """What the owner is shown before they answer, as names and values."""
    if question.kind == ROSTER:
        return [
            ("asked for", f"a new roster, asked {question.asked} UTC: {question.name}"),
            ("fingerprint", f"{question.words}; call the coordinator, and compare"),
            ("question", question.id),
        ]
    cost = "nothing bounds it" if math.isinf(question.epsilon) else f"epsilon {number(question.epsilon)}"
    return [
        ("asked for", f"{question.kind}, run {question.run_id[:12]}, asked {question.asked} UTC"),
        ("plan", f"{question.name}, {question.words}"),
        ("costs", f"{cost} at delta {question.delta:g}"),
        ("then spent", f"{spending_of(question)} of {question.data_set}"),
        ("question", question.id),
    ]


def spending_of(question: Question) -> str:
    """What would be spent or reserved with this run, of what the policy allows."""
    return f"epsilon {question.total:.4g} of {question.most:g} at delta {question.total_delta:g}"


def command_of(question: Question, folder: object) -> str:
    """What approves a question."""
    return f"hedgerow approve {shlex.quote(str(folder))} {question.id}"


def _answer(desk: OwnerDesk, question_id: str, *, approve: bool) -> None:
    note(answered(desk.answer(question_id, approve=approve), approve=approve))


def answered(question: Question, *, approve: bool) -> str:
    """What is said once an owner has answered."""
    about = f"by {question.name!r} (run {question.run_id[:12]})" if question.kind != ROSTER else f"({question.name})"
    return f"The {question.kind} {about} is {'approved' if approve else 'denied'}."


class AtTheNode:
    """Asks the owner where the node runs: says what is asked, reminds, and reads the answer from a terminal.

    A "yes" counts with the number that is shown with its question. The node draws it: a coordinator that asks for
    something else while the owner types does not know it.

    Args: desk: where the answer goes; folder: the node's, for the command that answers from elsewhere.
    """

    def __init__(self, desk: OwnerDesk, folder: Path) -> None:
        self._desk, self._folder = desk, folder
        self._shown, self._number, self._since, self._count = "", 0, 0.0, 0
        self._reads = is_terminal()

    def __call__(self, question: Question) -> None:
        """To be called every second; waits for no one."""
        if question.id != self._shown:
            self._shown, self._since, self._count = question.id, time.monotonic(), 1
            self._number = 1000 + secrets.randbelow(9000)
            note(f"The owner is asked first. {'; '.join(f'{name}: {value}' for name, value in facts_of(question))}")
            how = f"Type yes {self._number}, or no. From elsewhere: " if self._reads else "To approve it: "
            note(f"{how}{command_of(question, self._folder)}")
        if self._reads and select.select([sys.stdin], [], [], 0)[0]:
            self._take(sys.stdin.readline(), question)
        waited = time.monotonic() - self._since
        if waited >= self._count * _SECONDS_BETWEEN_REMINDERS:
            if is_worth_a_line(self._count):
                note(f"Waiting for the owner, for {waited / 60:,.0f} min by now: {command_of(question, self._folder)}")
            self._count += 1

    def _take(self, line: str, question: Question) -> None:
        said = line.strip().lower()
        if said in ("no", f"yes {self._number}"):
            _answer(self._desk, question.id, approve=said != "no")
        elif line:
            note(f"Type yes {self._number}, or no.")
        # An empty line without its end: the terminal is gone.
        self._reads = bool(line)
