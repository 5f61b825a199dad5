"""The experiment with random faults: its schedules can be played again, and what it checks it does notice."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from hedgerow.app.inputs import read_plan
from hedgerow.client.budget import LEFT, BudgetBook
from hedgerow.methods.tasks import TrainingTask
from hedgerow.privacy.events import DiscreteGaussianEvent
from tests.processes import faults

pytestmark = pytest.mark.slow

RUN = "31" * 32


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "template"
    faults.furnish(folder)
    return folder


def play_that_sent(template: Path, folder: Path, n_rounds: int) -> faults.Play:
    """A play after which the first site has sent so many vectors of one run; nothing runs."""
    shutil.copytree(template, folder)
    schedule = faults.Schedule(0, {}, [], "", False, faults.AGAIN, 0.0, 1)
    play = faults.Play(schedule, folder)
    life = faults.Process(0, (0, 0), code=0)
    for number in range(n_rounds):
        life.noted += json.dumps([RUN, number, ""]).encode() + b"\n"
    play.parties[faults.SITES[0]].lives.append(life)
    return play


def test_a_schedule_is_drawn_from_its_seed_and_number() -> None:
    """Who sees a schedule break something can play the same one again."""
    assert faults.draw(7, 3) == faults.draw(7, 3)
    assert len({faults.draw(7, number).seed for number in range(20)}) == 20
    drawn = [faults.draw(0, number) for number in range(200)]
    assert {schedule.ending for schedule in drawn} == {faults.AGAIN, faults.ABORT, faults.NEW_RUN, faults.VANISHED}
    assert {schedule.hostile for schedule in drawn} == {"", *faults.HOSTILE}
    worst = [schedule for schedule in drawn if schedule.n_sites > faults.SIZES[0] and schedule.is_flooded]
    assert {schedule.hostile for schedule in worst} == {"", *faults.HOSTILE}


@pytest.mark.parametrize(("n_charged", "is_broken"), [(None, True), (2, True), (3, False), (4, False)])
def test_a_book_with_less_than_what_left_is_noticed(
    template: Path, tmp_path: Path, n_charged: int | None, is_broken: bool
) -> None:
    """Three vectors were seen leaving the site, whatever its own files say."""
    play = play_that_sent(template, tmp_path / "play", 3)
    site, plan = faults.SITES[0], read_plan(str(template / "plan.toml"))
    if n_charged is not None:
        with closing(BudgetBook(play.folder / f"{site}-budget.db")) as book:
            book.serve(site, play.folder / f"{site}-state")
            (event,) = TrainingTask(plan).schedule.events
            book.reserve(bytes.fromhex(RUN), "experiment", plan, [event], (100.0, 1e-6))
            assert isinstance(event, DiscreteGaussianEvent)
            book.settle(bytes.fromhex(RUN), ([dataclasses.replace(event, count=1)] * n_charged, {}), LEFT)
    play.check_books()
    assert ([name for name, _ in play.found.broken] == ["under-charged"]) is is_broken


@pytest.mark.parametrize(("drawing", "n_broken"), [("", 0), ("aa", 1)])
def test_a_round_that_is_summed_in_two_groups_is_noticed(
    template: Path, tmp_path: Path, drawing: str, n_broken: int
) -> None:
    """A vector may leave twice, but not for another group of sites."""
    play = play_that_sent(template, tmp_path / "play", 1)
    play.parties[faults.SITES[0]].lives[0].noted += json.dumps([RUN, 0, drawing]).encode() + b"\n"
    play.check_books()
    assert Counter(name for name, _ in play.found.broken)["in two groups"] == n_broken


def test_an_end_without_a_name_is_noticed(template: Path, tmp_path: Path) -> None:
    """A traceback, or an exit code without a code word, is nothing that an operator can look up."""
    play = play_that_sent(template, tmp_path / "play", 0)
    (life,) = play.parties[faults.SITES[0]].lives
    life.code = 9
    life.said += b"Error   Too few.\n        (too-few-sites, exit code 9)\n"
    play._look_at_ends()
    assert not play.found.broken and play.found.ends == {"node: 9 too-few-sites": 1}
    life.said += b"Traceback (most recent call last):\n"
    play._look_at_ends()
    assert [name for name, _ in play.found.broken] == ["ends without a name"]


def test_a_schedule_is_played_with_real_processes() -> None:
    """From forked commands over TLS to a model that is looked at."""
    assert faults.main(["--schedules", "1", "--seed", "3"]) == 0
