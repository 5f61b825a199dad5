"""The account of whatever comes of a run holds what runs before it released, however they ended."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hedgerow.app.evaluation import conclude_evaluation, journal_file, prepare_evaluation
from hedgerow.app.study import past_runs, run_folder
from hedgerow.crypto import Identity
from hedgerow.errors import EnvironmentFault, UsageError
from hedgerow.methods.tasks import SurveyTask, Task, TrainingTask
from hedgerow.models.model import Model
from hedgerow.plan.plan import Feature
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.events import Event, FilteredGaussianEvent, scope_events
from hedgerow.privacy.ledger import Ledger, write_prepared_tables
from hedgerow.privacy.noise import SystemNoise
from hedgerow.privacy.report import PrivacyReport
from hedgerow.secagg.messages import Roster, Site
from hedgerow.server.coordinator import RunSession, RunSetup, conclude
from hedgerow.server.journal import Journal, JournalledRelease, open_journal
from hedgerow.server.release import UNCOUNTED, EvaluatedModel, Outcome, Releaser
from hedgerow.survey.requests import OpenTable
from tests.builders import make_plan, s_gbdt_plan

KEYS = [Identity(bytes([number]) * 32) for number in range(4)]
SITES = tuple(Site(f"site-{number}", key.public) for number, key in enumerate(KEYS[1:]))
ROSTER = Roster(KEYS[0].public, SITES)
NOISE = SystemNoise(lambda size: os.urandom(size))
WHOLE = 10**6


@dataclass
class Account:
    """What has left in runs of one kind, and the journal's place."""

    journal: Path
    left: list[Event] = field(default_factory=list)

    def run(
        self, task: Task, n_releases: int, *, is_new: bool, ends: bool = False, model: EvaluatedModel | None = None
    ) -> Outcome | None:
        """Begin a run or go on with it, up to so many releases, of sums of zero; None where it has no outcome.

        Args:
            n_releases: -1 for a process that is killed before the run begins.
            ends: whether it is given up then.
        """
        ledger = {} if model is None else {"ledger": model.ledger}
        journal, _ = open_journal(self.journal, task, ROSTER, is_new=is_new, **ledger)
        try:
            if n_releases < 0:
                return None
            setup = RunSetup(task, ROSTER, KEYS[0], NOISE, os.urandom, lambda _: None, model)
            run = RunSession(setup, journal).run
            releaser = Releaser(NOISE, UNCOUNTED)
            while run.outcome is None and run.replica.query is not None and len(run.releases) < n_releases:
                query = run.replica.query
                released = releaser.release(query, np.zeros(query.length, dtype=np.int64))
                entry = releaser.ledger.releases[-1]
                line = JournalledRelease(released, entry, tuple(site.name for site in SITES))
                run.take(line)
                journal.commit(line)
                self.left += scope_events([entry.event], run.run_id.hex())
            if run.replica.query is None:
                journal.commit(result_digest=run.replica.result_digest())
                return conclude(run)
            if ends:
                journal.end("too-few-sites")
            return None
        except UsageError as fault:
            assert fault.code in ("journal-given-up", "journal-of-another-run") and not is_new
            return None
        finally:
            journal.close()


def strip(events: Iterable[Event]) -> Counter[Event]:
    """How often each has left, whatever run it was of."""
    return Counter(replace(event, scope="") if isinstance(event, FilteredGaussianEvent) else event for event in events)


def count_scopes(events: Iterable[Event]) -> list[int]:
    """Of a filter's releases, how many are of each run."""
    return sorted(Counter(event.scope for event in events if isinstance(event, FilteredGaussianEvent)).values())


def check(report: PrivacyReport, left: list[Event]) -> None:
    """Every release is on the account, once, and so is its cost."""
    assert strip(report.ledger.events()) == strip(left)
    assert count_scopes(report.ledger.events()) == count_scopes(left)
    assert report.epsilon_gdp == pytest.approx(get_accountant("gdp").epsilon(left, report.delta), rel=1e-9)


def survey_task(epsilon: float) -> SurveyTask:
    """Statistics of one column of numbers."""
    privacy = {"epsilon": epsilon, "delta": 1e-5, "noise": "server"}
    return SurveyTask(OpenTable.of([Feature(name="age", type="numeric", min=0.0, max=100.0)], "", privacy))


STEPS = st.tuples(
    st.sampled_from(["training", "evaluation", "survey"]),
    st.sampled_from([-1, 0, 1, 2, WHOLE, WHOLE]),
    st.sampled_from([1.0, 2.0]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
"""What is run, up to how many releases, at which epsilon; as a new run; given up where it breaks off; whether the file
of the evaluated model is lost."""


Step = tuple[str, int, float, bool, bool, bool]


def make_model(outcome: Outcome) -> Model:
    return Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report, salvaged=outcome.salvaged)


def play(steps: list[Step], *, is_filtered: bool) -> None:
    """Carry runs out one after the other in one folder, and check every account and the study's page."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        training, survey = Account(folder / "model.journal"), Account(folder / "survey.journal")
        model, evaluated, n_models, place = None, Account(folder), 0, folder
        for kind, n_releases, epsilon, is_new, ends, is_lost in steps:
            size = {"model": {"n_trees": 2, "max_depth": 1}, "privacy": {"epsilon": epsilon, "n_records": 400}}
            plan = s_gbdt_plan(**size) if is_filtered else make_plan(**size)
            if kind == "training":
                outcome = training.run(TrainingTask(plan), n_releases, is_new=is_new, ends=ends)
                if outcome is not None:
                    model, evaluated = make_model(outcome), Account(folder, list(training.left))
                    check(model.report, training.left)
                    n_models += 1
                    place = run_folder(folder, n_models) / "model.json"
                    place.parent.mkdir(mode=0o700)
                    model.save(place)
            elif kind == "survey":
                outcome = survey.run(survey_task(epsilon), n_releases, is_new=is_new, ends=ends)
                if outcome is not None:
                    check(outcome.report, survey.left)
                    assert len(write_prepared_tables(outcome.ledger, "record", 1)) == len(survey.left)
            elif model is not None:
                evaluated.journal = Path(journal_file(place, model))
                asked = prepare_evaluation(model, epsilon, None, "server", (), [])
                outcome = evaluated.run(asked.task, n_releases, is_new=is_new, ends=ends, model=asked)
                if outcome is not None:
                    found = conclude_evaluation(outcome, model, "a test").model
                    check(found.report, evaluated.left)
                    if not is_lost:
                        found.save(place)
                        model = Model.load(place)
        if model is not None:
            told = past_runs(folder, n_models + 1)[-1].events
            assert (strip(told), count_scopes(told)) == (strip(evaluated.left), count_scopes(evaluated.left))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEPS, min_size=2, max_size=8), is_filtered=st.booleans())
def test_no_release_is_forgotten_or_counted_twice(steps: list[Step], is_filtered: bool) -> None:
    """Trainings, evaluations and surveys, whole or broken off at any place: the next account holds all that left."""
    play(steps, is_filtered=is_filtered)


@pytest.mark.parametrize("kind", ["training", "evaluation", "survey"])
def test_a_run_that_broke_off_is_on_the_account_of_the_next(kind: str) -> None:
    """It was given up, or only killed; set aside twice, and once more before the new run had begun."""
    broken: list[Step] = [(kind, 1, 1.0, True, True, False), (kind, 2, 2.0, True, False, False)]
    whole: list[Step] = [(kind, -1, 1.0, True, False, False), (kind, WHOLE, 1.0, False, False, False)]
    play([("training", WHOLE, 1.0, False, False, False), *broken, *whole], is_filtered=kind == "training")


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([1.0, 1.0, 2.0]), st.booleans()), min_size=2, max_size=5))
@example([(0, 1.0, True), (0, 1.0, False), (1, 1.0, False)])
@example([(0, 1.0, False), (0, 2.0, False), (1, 1.0, False)])
def test_evaluations_from_any_file_are_told_apart(steps: list[tuple[int, float, bool]]) -> None:
    """Which file each is of, at which epsilon, and whether its journal is lost: the account holds what its file had and
    every other journal's releases, once, though two of one file at one epsilon differ in nothing but their figures."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "model.json"
        trained = Account(place)
        plan = make_plan(model={"n_trees": 2, "max_depth": 1}, privacy={"n_records": 400})
        outcome = trained.run(TrainingTask(plan), WHOLE, is_new=False)
        assert outcome is not None
        files, journalled = [(make_model(outcome), frozenset[int]())], set[int]()
        left: list[list[Event]] = []
        for number, (file, epsilon, is_lost) in enumerate(steps):
            model, held = files[file % len(files)]
            asked, own = prepare_evaluation(model, epsilon, None, "server", (), []), Account(Path())
            own.journal = Path(journal_file(place, model))
            outcome = own.run(asked.task, WHOLE, is_new=True, model=asked)
            assert outcome is not None
            left.append(own.left)
            counted = held | journalled | {number}
            found = conclude_evaluation(outcome, model, "a test").model
            check(found.report, [*trained.left, *(event for each in sorted(counted) for event in left[each])])
            files.append((found, counted))
            if is_lost:
                own.journal.unlink()
            else:
                journalled |= counted - held


def test_a_run_is_on_an_account_only_with_all_of_its_releases(tmp_path: Path) -> None:
    """A model's file may have been changed: what a journal has is passed over where the file holds every line of it."""
    place = tmp_path / "model.json"
    plan = make_plan(model={"n_trees": 2, "max_depth": 1}, privacy={"n_records": 400})
    outcome = Account(place).run(TrainingTask(plan), WHOLE, is_new=False)
    assert outcome is not None
    model = make_model(outcome)
    asked, evaluated = prepare_evaluation(model, 1.0, None, "server", (), []), Account(Path(journal_file(place, model)))
    first, _ = (evaluated.run(asked.task, WHOLE, is_new=True, model=asked) for _ in "12")
    assert first is not None
    lines = first.ledger.releases
    own = lines[len(model.ledger) :]
    assert len(own) > 1
    with closing(Journal(evaluated.journal)) as journal:
        (run,) = journal.earlier
        assert run not in journal.runs(Ledger(lines))
        for gone in own:
            assert run in journal.runs(Ledger(tuple(line for line in lines if line != gone)))


def test_a_page_is_shown_while_a_model_is_evaluated(tmp_path: Path) -> None:
    """Its run says that more is under way; what another run's account needs is not passed over, and can be asked for
    again."""
    outcome = Account(tmp_path / "journal").run(TrainingTask(make_plan()), WHOLE, is_new=False)
    assert outcome is not None
    place, model = run_folder(tmp_path, 1) / "model.json", make_model(outcome)
    place.parent.mkdir(mode=0o700)
    model.save(place)
    asked, journal = prepare_evaluation(model, 1.0, None, "server", (), []), Path(journal_file(place, model))
    with closing(open_journal(journal, asked.task, ROSTER)[0]):
        (told,) = past_runs(tmp_path, 2)
        assert (told.events, told.remark != "") == (tuple(model.ledger.events()), True)
        other = journal.with_name("model.json.evaluation-99.journal"), asked.task, ROSTER
        with pytest.raises(EnvironmentFault) as caught:
            open_journal(*other)
    assert caught.value.code == "database-locked"
    open_journal(*other)[0].close()


@pytest.mark.parametrize("privacy", [{"unit": "patient"}, {"noise": "distributed"}])
def test_what_cannot_be_added_to_an_account_is_not_set_aside(tmp_path: Path, privacy: dict[str, str]) -> None:
    """Releases that protect something else, or by other noise, would be counted for what they are not."""
    training = Account(tmp_path / "model.journal")
    training.run(TrainingTask(make_plan()), 1, is_new=False)
    with pytest.raises(UsageError) as caught:
        open_journal(training.journal, TrainingTask(make_plan(privacy=privacy)), ROSTER, is_new=True)
    assert caught.value.code == "journal-of-another-run"
    assert training.run(TrainingTask(make_plan()), WHOLE, is_new=False) is not None
