"""What `join` and `study serve` ask a person, on a real terminal: the words are typed, mistyped, and broken off."""

from __future__ import annotations

import errno
import os
import pty
import re
import signal
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.processes.test_study import SITES, begin, command, join, listed, words_at

if TYPE_CHECKING:
    from conftest import Scene, Theatre

pytestmark = pytest.mark.slow

COLUMNS = 60
CTRL_C, CTRL_D = "\x03", "\x04"
AGREE = "Take part in this study, by this policy? [yes/no] "
COMPARE = "Which four words do they read to you? "
CALL = "Call {}. Which four words do they read to you? ("


class Terminal:
    """A command on a terminal of its own, and the person before it, who reads on from where they were.

    It is forked like all others, for starting each anew would take a second of processor time.
    """

    def __init__(self, scene: Scene, *arguments: str) -> None:
        self._scene = scene
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, COLUMNS))
        self._forker = scene._forker
        self._pid: int = self._forker.ask(
            arguments=list(arguments), terminal=os.ttyname(slave), folder=str(scene.folder)
        )
        os.close(slave)
        self._raw, self._at = b"", 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                found = os.read(self._master, 1 << 16)
            except OSError as fault:
                assert fault.errno == errno.EIO  # Linux's word for: nobody has it open any more.
                return
            if not found:
                return
            self._raw += found

    @property
    def text(self) -> str:
        """All that was written, as a person reads it."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self._raw.decode(errors="replace")).replace("\r\n", "\n")

    def sees(self, words: str) -> str:
        """Wait for these words, wherever lines are broken, after all that was seen before; returns what led to them."""
        pattern = re.compile(r"\s+".join(map(re.escape, words.split())))
        self._waits(lambda: pattern.search(self.text, self._at) is not None or not self._reader.is_alive())
        found = pattern.search(self.text, self._at)
        assert found is not None, self.text
        before, self._at = self.text[self._at : found.end()], found.end()
        return before

    def _waits(self, is_so: Callable[[], bool]) -> None:
        try:
            self._scene.wait_until(is_so)
        except AssertionError as fault:
            raise AssertionError(f"{fault}\n--- on this terminal\n{self.text}") from None

    def types(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def ends(self, *words: str) -> int:
        """Wait until the command is over, having said these words; returns its exit code."""
        self._waits(lambda: self.code is not None and not self._reader.is_alive())
        for each in words:
            self.sees(each)
        code = self.code
        assert code is not None
        return code

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        code: int | None = self._forker.ask(poll=self._pid)
        return code

    def close(self) -> None:
        if self.code is None:
            os.kill(self._pid, signal.SIGKILL)
        self._scene.wait_until(lambda: self.code is not None)
        self._reader.join()
        os.close(self._master)


class Room:
    """A scene's folder, with terminals in it."""

    def __init__(self, scene: Scene, stack: ExitStack) -> None:
        self.scene, self._stack = scene, stack

    def open(self, *arguments: str) -> Terminal:
        terminal = Terminal(self.scene, *arguments)
        self._stack.callback(terminal.close)
        return terminal

    def serve(self) -> Terminal:
        return self.open("study", "serve")

    def join(self, site: str, *more: str) -> Terminal:
        return self.open("join", f"{site}.invitation", "--data", f"{site}.csv", "--max-rows", "500", *more)

    def words_of(self, site: str) -> str:
        """What the coordinator expects a site to read."""
        (words,) = [str(one["words"]) for one in listed(self.scene)["parties"] if one["name"] == site]
        return words


def rooms(scene: Scene) -> Iterator[Room]:
    plan = scene.folder / "plan.toml"
    plan.write_text(plan.read_text().replace("[privacy]\n", '[privacy]\nnoise = "distributed"\n'))
    begin(scene)
    with ExitStack() as stack:
        yield Room(scene, stack)


def nobody_agrees(scene: Scene) -> None:
    """No is no, Ctrl-C and the end of the input are none at all: nothing is agreed to, and the question comes again."""
    for room in rooms(scene):
        agreed = scene.folder / "wards-site-0" / "plan.toml"
        for keys, code, said in (
            ("no\n", 6, "not-agreed, exit code 6"), (CTRL_C, 130, "Interrupted."), (CTRL_D, 130, "Interrupted."),
        ):  # fmt: skip
            site = room.join("site-0")
            site.sees("Your policy, which your node enforces whatever the coordinator asks for")
            site.sees(AGREE)
            site.types("maybe\n")
            site.sees(AGREE)
            site.types(keys)
            assert site.ends(said) == code and "Traceback" not in site.text and not agreed.exists()
        assert {one["state"] for one in listed(scene)["parties"]} == {"invited"}


def words_are_compared(scene: Scene) -> None:
    """Both ends compare by typing: wrong words are asked for again, and an empty line looks again."""
    for room in rooms(scene):
        hub, site = room.serve(), room.join("site-0")
        site.sees(AGREE)
        site.types("YES\n")
        site.sees("Your words:")
        shown = site.sees(COMPARE)
        assert " ".join(shown.split()).startswith(room.words_of("site-0"))
        # A remark is broken for this window; a question is not, for the terminal does that.
        remark = shown.partition("Call the operator")[2].partition("Which four")[0].splitlines()
        assert len(remark) > 1 and max(map(len, remark)) <= COLUMNS
        hub.sees(CALL.format("site-0"))
        for wrong in ("apple river stone lamp\n", "\n", " ".join(reversed(room.words_of("site-0").split())) + "\n"):
            hub.types(wrong)
            hub.sees(CALL.format("site-0"))
        hub.types(room.words_of("site-0").upper().replace(" ", ", ") + "\n")
        hub.sees("site-0 is confirmed.")
        for wrong in ("yes\n", "\n", "apple river stone lamp\n"):
            site.types(wrong)
            site.sees(COMPARE)
        site.types(room.words_of("site-0") + "\n")
        site.sees("Waiting for the other parties")
        for end in (site, hub):
            end.types(CTRL_C)
            assert end.ends("Interrupted.") == 130 and "Traceback" not in end.text


def what_was_answered_stays_answered(scene: Scene) -> None:
    """Broken off at the call or while it waits, each end asks for what is left to say, and for nothing else."""
    for room in rooms(scene):
        hub, site = room.serve(), room.join("site-0")
        site.sees(AGREE)
        site.types("yes\n")
        site.sees(COMPARE)
        site.types(CTRL_C)
        assert site.ends("Interrupted.") == 130
        hub.sees(CALL.format("site-0"))
        hub.types(CTRL_C)
        assert hub.ends("Interrupted.") == 130
        hub, site = room.serve(), room.join("site-0")
        site.sees(COMPARE)
        site.types(room.words_of("site-0") + "\n")
        site.sees("Waiting for the other parties")
        hub.sees(CALL.format("site-0"))
        hub.types(room.words_of("site-0") + "\n")
        hub.sees("site-0 is confirmed.")
        for end in (site, hub):
            end.types(CTRL_C)
            assert end.ends("Interrupted.") == 130
        hub, site = room.serve(), room.join("site-0")
        site.sees("Waiting for the other parties")
        # Those who join without a terminal are said how to answer, in the words of another command.
        by_itself = join(scene, "site-1")
        scene.wait_until(partial(words_at, by_itself))
        hub.sees(CALL.format("site-1"))
        assert AGREE not in site.text and COMPARE not in site.text and "site-0" not in hub.text.split("Call site-1")[1]


def confirmed_in_another_shell(scene: Scene) -> None:
    """Questions that `study confirm` and `join --confirm` have answered are withdrawn at both ends, and both go on."""
    for room in rooms(scene):
        hub = room.serve()
        sites = {name: room.join(name) for name in SITES}
        for site in sites.values():
            site.sees(AGREE)
            site.types("yes\n")
            site.sees(COMPARE)
        hub.sees(CALL.format("site-0"))
        # Words of another party pin nothing, and are named.
        hub.types(room.words_of("site-1") + "\n")
        hub.sees("They are the words of site-1.")
        for name, site in sites.items():
            command(scene, "study", "confirm", f"{name}={room.words_of(name)}")
            command(scene, "join", f"{name}.invitation", "--confirm", room.words_of(name))
            site.sees("nothing is asked here any more")
        hub.sees("the question about it is withdrawn")
        hub.sees("All parties are confirmed.")
        for site in sites.values():
            site.sees("Do you know all of these sites")
        for end in (hub, *sites.values()):
            end.types(CTRL_C)
            assert end.ends("Interrupted.") == 130


def a_table_in_another_coding(scene: Scene) -> None:
    """Who says no because the table reads wrongly comes again with an adapter: it goes into the policy, once."""
    for room in rooms(scene):
        table, adapter = scene.folder / "site-0.csv", scene.folder / "own.toml"
        text = table.read_text(encoding="ascii")
        table.write_text(text.replace("ward", "station"), encoding="ascii")
        assert room.join("site-0").ends("data-missing-column, exit code 4") == 4
        adapter.write_text('[data]\nrename = {station = "ward"}\n', encoding="ascii")
        policy = scene.folder / "wards-site-0" / "policy.toml"
        for answer in ("no", "yes"):
            site = room.join("site-0", "--adapter", "own.toml")
            site.sees("Your policy, which your node enforces")
            assert "station" in site.sees(AGREE) and not policy.exists()
            site.types(f"{answer}\n")
            site.sees("not-agreed" if answer == "no" else "This end tries again.")
        site.types(CTRL_C)
        assert site.ends("Interrupted.") == 130
        assert policy.read_text(encoding="utf-8").count("[data]") == 1
        adapter.write_text('[data]\nrename = {other = "ward"}\n', encoding="ascii")
        site = room.join("site-0", "--adapter", "own.toml")
        assert site.ends("adapter-beside-policy, exit code 2") == 2


STORIES = {
    "nobody agrees": (nobody_agrees, 6),
    "words are compared": (words_are_compared, 6),
    "another shell": (confirmed_in_another_shell, 6),
    "answers stay": (what_was_answered_stays_answered, 6),
    "another coding": (a_table_in_another_coding, 6),
}


@pytest.mark.parametrize("story", STORIES)
def test_the_questions(theatre: Theatre, story: str) -> None:
    """As a person answers them: in their own time, and not always well."""
    theatre.ended(story)
