"""Questions at a terminal that stand beside a loop: none holds it up, and none outlives its answer elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.app.inputs import prompt_while
from hedgerow.app.study import _Lines
from hedgerow.errors import UsageError
from hedgerow.transport.identities import Role
from tests.study.conftest import Study

PARTIES = ("north", "south", "watch")


@contextmanager
def terminal() -> Iterator[Callable[[str], None]]:
    """Have a terminal as standard input for a block; what is called types on it."""
    master, slave = os.openpty()
    try:
        with pytest.MonkeyPatch.context() as patch, os.fdopen(slave) as typed:
            patch.setattr("sys.stdin", typed)
            yield lambda keys: (os.write(master, keys.encode()), None)[1]
    finally:
        os.close(master)


def test_a_question_answered_elsewhere_is_withdrawn(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever asks goes on as soon as the answer is there, typed or not; what was typed is taken once."""
    with terminal() as types:
        looks = iter([True, True, False])
        assert prompt_while("Which words?", lambda: next(looks), 0.01) is None
        types("apple river\nstone\n")
        assert [prompt_while("Which words?", lambda: True, 0.01) for _ in range(2)] == ["apple river", "stone"]
        types("\x04")
        with pytest.raises(KeyboardInterrupt):
            prompt_while("Which words?", lambda: True, 0.01)
    assert capsys.readouterr().err.count("Which words?") == 4


@settings(max_examples=8)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["own", "other", "wrong", "enter", "elsewhere", "again", "withdraw", "nothing"]),
            st.sampled_from(PARTIES),
        ),
        max_size=12,
    )
)
def test_no_order_of_answers_holds_a_study_up(steps: list[tuple[str, str]]) -> None:
    """Whatever is typed, skipped, or settled by another command: nobody who is confirmed is asked about, nobody is
    confirmed by another party's words, and once all are confirmed the roster is sent without another key.
    """
    with TemporaryDirectory() as folder:
        answer_in_order(Study(Path(folder) / "study", *PARTIES[:2]), steps)


def answer_in_order(study: Study, steps: list[tuple[str, str]]) -> None:
    study.invitations["watch"] = study.invite("watch", Role.MONITOR)
    parties = {name: study.party(name) for name in PARTIES}
    for party in parties.values():
        party.enrol(study.answer)
    keys = study.identity.public
    with terminal() as types:
        lines = _Lines(study.book, study.identity, None)

        def look() -> str:
            """Look once; returns the party that is asked about now."""
            lines.look()
            asked = lines._asked
            return "" if asked is None else asked.name

        def is_open(name: str) -> bool:
            guest = study.book.guest(name)
            return guest is not None and guest.party is not None and not guest.is_confirmed

        asked = look()
        assert asked == PARTIES[0]
        for what, name in steps:
            before = {each: is_open(each) for each in PARTIES}
            if what == "elsewhere" and before[name]:
                study.book.confirm(name, study.words(name), keys)
            elif what == "again" and before[name]:
                study.invitations[name] = study.invite(name, study.invitations[name].role)
            elif what == "withdraw" and before[name]:
                study.book.withdraw(name, lambda _: None)
            elif what == "enter":
                types("\n")
            elif what == "wrong":
                types("apple river stone lamp\n")
            elif what == "other" and asked and name != asked and study.book.guest(name) is not None:
                types((study.words(name) or "apple river stone lamp") + "\n")
            elif what == "own" and asked:
                types(study.words(asked) + "\n")
            if not any(guest.role is Role.SITE for guest in study.book.guests()):
                with pytest.raises(UsageError):
                    look()
                return
            last, asked = asked, look()
            after = {each: is_open(each) for each in PARTIES}
            expected = before | ({name: False} if what in ("elsewhere", "again", "withdraw") else {})
            if what == "own" and last:
                expected[last] = False
            assert after == expected
            asked = look()
            assert (asked != "") == any(after.values()) and (not asked or after[asked])
        for name in PARTIES:
            if is_open(name):
                study.book.confirm(name, study.words(name), keys)
        look()
        is_complete = all(guest.is_confirmed for guest in study.book.guests())
        assert lines._asked is None and (study.book.roster is not None) == is_complete


@settings(max_examples=2)
@given(order=st.lists(st.sampled_from(PARTIES), min_size=2, max_size=6))
def test_whoever_has_done_its_part_is_awaited_no_more(order: list[str]) -> None:
    """The coordinator's operator calls whom the screen names: nobody is named twice for one step, or before the news
    that the step has begun, in whichever order the parties ask.
    """
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        said = list[str]()
        patch.setattr("hedgerow.app.study.note", said.append)
        study = Study(Path(folder) / "study", *PARTIES)
        parties = {name: study.party(name) for name in PARTIES}
        lines = _Lines(study.book, study.identity, None)
        for name, party in parties.items():
            study.book.confirm(name, party.enrol(study.answer), study.identity.public)
        # The roster is offered to a party, its number taken, all numbers given out, and the party's owner agrees.
        for name in (*order, *PARTIES * 4):
            lines.look()
            parties[name].ask(study.answer)
        assert lines.look()
    awaited = {step: list_awaited(said, step) for step in ("to fetch the roster", "to approve the roster")}
    for names in awaited.values():
        assert names and names[0] == set(PARTIES)
        assert all(later < earlier for earlier, later in pairwise(names))
    firsts = [next(at for at, line in enumerate(said) if what in line) for what in ("All parties", *awaited)]
    assert firsts == sorted(firsts)


def list_awaited(said: list[str], step: str) -> list[set[str]]:
    """The parties that each line names as awaited for a step."""
    return [{name for name in PARTIES if name in line} for line in said if step in line]
