"""Budget accounts of runs in one process: none is less than what was released."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import sqlite3
import subprocess
import sys
import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import GridSearchCV, cross_val_score

import hedgerow
from hedgerow.client.budget import (
    REFUSED,
    RESERVED,
    STOPPED,
    BudgetBook,
    BudgetLine,
    compose_epsilon,
    find_near_name,
    fold_name,
    list_costs,
)
from hedgerow.errors import EnvironmentFault, HedgerowError, PolicyRefusal, UsageError
from hedgerow.estimators.base import SeveralRunsWarning
from hedgerow.local import accounts
from hedgerow.local.accounts import Account, BookStore, MemoryStore, RunFacts, merge_events, process_account
from hedgerow.privacy.accountants import epsilon_of_mu, mu_of
from hedgerow.privacy.accounts import MEMORY, NOWHERE, AccountState
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    FilteredGaussianEvent,
    GaussianEvent,
    UnnoisedEvent,
    scope_events,
)
from hedgerow.privacy.ledger import Ledger, Release
from tests.privacy.sentences import make_report, noise_of_server
from tests.wards import plan_text

DELTA = 1e-6
DECLARED: dict[str, Any] = {"bounds": (0, 1), "classes": [0, 1], "n_records": 400, "n_trees": 2, "max_depth": 2}
Rows = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    """A table and its labels."""
    generator = np.random.default_rng(0)
    table = generator.uniform(0, 1, (400, 2))
    return table, (table[:, 0] + generator.normal(0, 0.2, 400) > 0.5).astype(int)


def make_model(**parameters: Any) -> hedgerow.DPGBDTClassifier:
    """A small classifier with everything declared."""
    return hedgerow.DPGBDTClassifier(**{**DECLARED, **parameters})


def read_account(model: Any) -> AccountState:
    """The account that a fitted model's report names."""
    account = model.privacy_report_.account
    assert isinstance(account, AccountState)
    return account


def compose(models: Sequence[Any]) -> float:
    """What the ledgers of several models cost together, without any book."""
    events = [
        event for number, model in enumerate(models) for event in scope_events(model.ledger_.events(), str(number))
    ]
    return compose_epsilon(events, DELTA)


# One run --------------------------------------------------------------------------------------------------------------

gaussians = st.builds(
    DiscreteGaussianEvent, st.sampled_from([1.5, 4.0, 30.0]), st.just(10**5), st.sampled_from([3, 8]), st.integers(1, 3)
)
filtered = st.builds(
    FilteredGaussianEvent, st.sampled_from([2.0, 9.0]), st.just(1.0), st.just(1000), st.just(1), st.just(4),
    order=st.just(4), budget=st.sampled_from([0.2, 1.0]),
)  # fmt: skip
pure = st.builds(DiscreteLaplaceEvent, st.sampled_from([0.1, 0.5]))
releases = st.lists(st.one_of(gaussians, filtered, pure), max_size=5)
endings = st.sampled_from(["finished", "failed", "killed", "second book"])


@settings(max_examples=60, deadline=None)
@given(
    runs=st.lists(st.tuples(releases, releases, endings, st.booleans()), min_size=1, max_size=5),
    in_file=st.booleans(),
)
def test_the_total_is_never_less_than_what_was_released(
    tmp_path_factory: pytest.TempPathFactory, runs: Any, in_file: bool
) -> None:
    """Whatever runs foresee and release, however they end, the account holds it, and no more if they ended."""
    path = tmp_path_factory.mktemp("book") / "book.db"
    store: Any = BookStore(path) if in_file else MemoryStore()
    released, is_exact = list[Event](), True
    for number, (foreseen, made, ending, is_part) in enumerate(runs):
        account = Account([BookStore(path) if in_file and ending == "second book" else store])
        with contextlib.suppress(KeyboardInterrupt, GeneratorExit):
            opened = account.open_run(RunFacts(f"run {number}"), [] if is_part else foreseen)
            run = opened.__enter__()
            part = run.open_run(RunFacts("part"), foreseen) if is_part else contextlib.nullcontext(run)
            with part as inner:
                for event in made:
                    inner.charge(event)
                    before_noise = store.read_state("", "record", DELTA).epsilon
                    released += scope_events([event], f"run {number}")
                    # A kill at this moment, before the noise is drawn, loses nothing.
                    assert before_noise >= compose_epsilon(released, DELTA) * (1 - 1e-9)
                if ending == "failed":
                    assert not opened.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
                elif ending != "killed":
                    opened.__exit__(None, None, None)
        is_exact &= ending != "killed"
    total, own = store.read_state("", "record", DELTA).epsilon, compose_epsilon(released, DELTA)
    assert total >= own * (1 - 1e-9)
    if is_exact:
        assert total == pytest.approx(own, rel=1e-9)


def test_a_run_is_reserved_as_a_whole_before_it_releases_anything(tmp_path: Path) -> None:
    """A process that is killed leaves a line that charges all that it might have released."""
    store = BookStore(tmp_path / "book.db")
    opened = Account([store]).open_run(RunFacts("killed"), [GaussianEvent(2.0, 3)])
    opened.__enter__()
    (line,) = store.lines("")
    assert line.status == RESERVED and line.events == (GaussianEvent(2.0, 3),)


def test_a_run_that_does_not_fit_is_refused_before_it_spends_and_is_seen(tmp_path: Path) -> None:
    """The limit is on reservations, in every book at once: where one refuses, none of them charges anything."""
    tight, wide = BookStore(tmp_path / "tight.db", (0.5, DELTA)), BookStore(tmp_path / "wide.db")
    with (
        pytest.raises(PolicyRefusal) as caught,
        Account([wide, tight]).open_run(RunFacts("much"), [GaussianEvent(1.0)]),
    ):
        pytest.fail("it was opened")
    assert (caught.value.code, caught.value.exit_code) == ("over-budget", 6)
    for store in (tight, wide):
        (line,) = store.lines("")
        assert line.status == REFUSED and not line.events


def test_a_release_that_was_not_foreseen_does_not_exceed_the_limit() -> None:
    """A program that asks for more than its schedule is stopped before the noise is drawn, and what it spent counts."""
    store = MemoryStore((1.0, DELTA))
    with pytest.raises(PolicyRefusal), Account([store]).open_run(RunFacts("r"), [GaussianEvent(6.0)]) as run:
        run.charge(GaussianEvent(6.0))
        run.charge(GaussianEvent(1.0))
    (line,) = store.lines("")
    assert line.status == STOPPED and line.events == (GaussianEvent(6.0),)


def test_parts_of_a_run_share_what_was_reserved_for_all() -> None:
    """A fit that first asks which bounds there are, and then trains, fits into a budget of just its epsilon."""
    store, weight = MemoryStore((1.0, DELTA)), mu_of(1.0, DELTA) ** 2
    with Account([store]).open_run(RunFacts("fit"), whole=(1.0, DELTA)) as run:
        for share in (0.1, 0.5, 0.39):
            event = GaussianEvent(1 / math.sqrt(weight * share))
            with run.open_run(RunFacts("part"), [event]) as part:
                part.charge(event)
            assert store.read_state("", "record", DELTA).epsilon == pytest.approx(1.0, rel=1e-6)
    assert store.read_state("", "record", DELTA).epsilon == pytest.approx(
        epsilon_of_mu(math.sqrt(weight * 0.99), DELTA)
    )


def test_a_seed_costs_an_infinite_epsilon() -> None:
    """Anyone who knows the seed takes the noise off, so that no sum of runs with it is bounded."""
    store = MemoryStore()
    with Account([store]).open_run(RunFacts("seeded", is_void=True), [GaussianEvent(9.0)]) as run:
        run.charge(GaussianEvent(9.0))
    assert store.read_state("", "record", DELTA).epsilon == math.inf
    assert merge_events([UnnoisedEvent(), UnnoisedEvent()]) == [UnnoisedEvent()]


def test_runs_for_different_units_are_not_added() -> None:
    """Epsilon per row and per person are other promises: a total says which it is of, and that there are more."""
    store = MemoryStore()
    for unit in ("record", "person"):
        with Account([store]).open_run(RunFacts("r", unit=unit), [GaussianEvent(3.0)]) as run:
            run.charge(GaussianEvent(3.0))
    for unit in ("record", "person"):
        state = store.read_state("", unit, DELTA)
        assert (state.n_runs, state.n_other_units) == (1, 1)
    with pytest.raises(PolicyRefusal) as caught, budget_of(store):
        pytest.fail("it was opened")
    assert caught.value.code == "policy-unit"


def budget_of(store: MemoryStore) -> Any:
    """A run per person in an account that has a limit now."""
    store.limit = (9.0, DELTA)
    return Account([store]).open_run(RunFacts("r", unit="person"), [GaussianEvent(30.0)])


# Names ----------------------------------------------------------------------------------------------------------------

words = st.lists(st.text("abcxyz019", min_size=1, max_size=4), min_size=1, max_size=4)


@given(parts=words, typed=st.data())
def test_names_that_look_alike_are_one_data_set(parts: list[str], typed: Any) -> None:
    """A name that is typed again, with other dashes, spaces, capitals or letters that look alike, is no new account."""
    name = " ".join(parts)
    gap = typed.draw(st.sampled_from([" ", "  ", "\u00a0", "-", "\u2013", "\u2011", "_", "\u2212", " - "]))
    other = gap.join(parts)
    for letter, twin in {"a": "\u0430", "c": "\u0441", "x": "\u0445", "y": "\u0443", "0": "O", "1": "l"}.items():
        if typed.draw(st.booleans()):
            other = other.replace(letter, twin)
    other = typed.draw(
        st.sampled_from([other, other.upper().replace("L", "l"), f" {other}", f"{other}.", f"{other} ."])
    )
    assert fold_name(other) == fold_name(name)
    assert find_near_name(other, [name]) is None


def list_unseen() -> list[str]:
    """All letters without ink or width: control, format, private and unassigned ones, and those listed by Unicode."""
    ranges = [(0x180B, 0x180F), (0x2060, 0x206F), (0xFE00, 0xFE0F), (0xFFF0, 0xFFF8), (0xE0000, 0xE0FFF)]
    listed = [0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0]
    listed += [code for first, last in ranges for code in range(first, last + 1)]
    # Of planes 3 to 16 nearly all letters are unassigned: a part stands for them.
    near = [chr(code) for code in range(0x20000) if unicodedata.category(chr(code))[0] == "C"]
    return [letter for letter in [*near, *map(chr, listed)] if not letter.isspace()]


UNSEEN = list_unseen()


def test_no_letter_that_cannot_be_seen_begins_an_account() -> None:
    """Each of them, at any place of a name, leaves it the name that it looks like, and alone it is no name."""
    for letter in UNSEEN:
        assert fold_name(f"{letter}wa{letter}rds 20{letter}19{letter}") == fold_name("wards 2019"), hex(ord(letter))
        assert fold_name(letter) == "" == fold_name(f" {letter}"), hex(ord(letter))


@given(parts=words, unseen=st.lists(st.sampled_from([*UNSEEN, "\u2800", " "]), min_size=1, max_size=4), data=st.data())
def test_names_that_look_alike_are_one_with_letters_that_cannot_be_seen(
    parts: list[str], unseen: list[str], data: Any
) -> None:
    """Several of them, beside accents and blanks too, change no account, and the common form is its own."""
    name = " ".join(parts) + data.draw(st.sampled_from(["", "e\u0301", "\u00e9"]))
    other = name.replace("\u00e9", f"e{UNSEEN[40]}\u0301").replace(" ", f" {''.join(unseen)}")
    other = f"{''.join(unseen)}{other}{''.join(unseen)}"
    assert fold_name(other) == fold_name(name) == fold_name(fold_name(name))
    assert fold_name("".join(unseen)) == ""


def test_names_of_dashes_and_stops_are_one() -> None:
    """They look too much alike to be accounts of their own, but they are names."""
    assert len({fold_name(name) for name in ("-", "--", "\u2014", ".", "_ .", "\u2013\u034f", "\u2800-")} - {""}) == 1


def test_a_book_with_names_that_cannot_be_told_apart_keeps_every_charge(tmp_path: Path) -> None:
    """Lines that an earlier version took for accounts of their own are opened, and add up."""
    store = BookStore(tmp_path / "book.db")
    for name in ("wards", "wards\u034f", "wa\ufe0frds", "wards\u3164", "\u200b", "\u2800wards"):
        with Account([store], name).open_run(RunFacts("r"), [GaussianEvent(3.0)]) as run:
            run.charge(GaussianEvent(3.0))
    assert Account([store], "wards").read_state("record", DELTA).n_runs == 6
    assert Account([store], "births").read_state("record", DELTA).n_runs == 1


@pytest.mark.parametrize(
    ("one", "other", "is_near"),
    [
        ("wards 2019", "wards 2020", True),
        ("wards 1-12", "wards 11-2", True),
        ("north", "south", False),
        ("patients", "patiens", True),
        ("admissions", "discharges", False),
    ],
)
def test_other_names_are_other_accounts_and_near_ones_are_asked_about(one: str, other: str, is_near: bool) -> None:
    """Two data sets never become one in silence where their names can be told apart, and a slip of the hand is seen."""
    assert fold_name(one) != fold_name(other)
    assert (find_near_name(other, [one]) == one) is is_near


@pytest.mark.parametrize("in_file", [True, False])
def test_runs_without_a_name_are_in_every_account_of_a_book(tmp_path: Path, in_file: bool) -> None:
    """Rows without a name may be those of any account: their total leaves nothing out, and no other leaves them out."""
    store: Any = BookStore(tmp_path / "book.db") if in_file else MemoryStore()
    for name in ("a", "b", "b", "", " "):
        with Account([store], name).open_run(RunFacts("r"), [GaussianEvent(3.0)]) as run:
            run.charge(GaussianEvent(3.0))
    counts = [Account([store], name).read_state("record", DELTA).n_runs for name in ("a", "b", "", "c")]
    assert counts == [3, 4, 5, 2]
    # A limit counts them as well, whichever name the next run has.
    store.limit = (compose_epsilon([GaussianEvent(3.0, 3)], DELTA), DELTA)
    with pytest.raises(PolicyRefusal), Account([store], "a").open_run(RunFacts("r"), [GaussianEvent(3.0)]):
        pass
    with Account([store], "c").open_run(RunFacts("r"), [GaussianEvent(3.0)]):
        pass


# The estimators -------------------------------------------------------------------------------------------------------


def test_all_fits_of_a_process_go_to_one_account_unless_another_is_named(rows: Rows) -> None:
    """The second model's report says what both cost together, whatever table each was given."""
    first, second = make_model().fit(*rows), make_model().fit(rows[0][:200], rows[1][:200])
    assert read_account(first).n_runs == 1 and read_account(first).place == MEMORY
    assert read_account(second).n_runs == 2
    assert read_account(second).epsilon == pytest.approx(compose([first, second]), rel=1e-9)
    named = make_model(data_set="wards").fit(*rows)
    # The two fits without a name may have been over these rows as well.
    assert (read_account(named).n_runs, read_account(named).data_set) == (3, "wards")
    assert read_account(make_model(data_set="births").fit(*rows)).n_runs == 3


def test_a_report_says_what_its_account_holds(rows: Rows) -> None:
    """Whoever reads the report of one fit learns of the others, and that scores of held-out rows are no guarantee."""
    texts = [make_model().fit(*rows).privacy_report_.text() for _ in range(2)]
    for text, count in zip(texts, (1, 2), strict=True):
        assert " account " in text and "hedgerow.budget" in text
        assert ("hedgerow.tune" in text) is (count > 1)


def test_the_account_of_a_model_is_kept_in_its_file(rows: Rows, tmp_path: Path) -> None:
    """`hedgerow report` of the file says the same as the report of the fit."""
    model = make_model().fit(*rows)
    model.save(tmp_path / "model.json")
    assert hedgerow.Model.load(tmp_path / "model.json").report.account == read_account(model)


def test_a_fit_that_fails_is_charged_what_it_released(rows: Rows) -> None:
    """An error after the search of classes loses no cost: the next report has it."""
    table, labels = rows
    with pytest.raises(HedgerowError):
        hedgerow.DPGBDTClassifier(epsilon=0.05, bounds=(0, 1), n_trees=2).fit(table[:40], labels[:40] * 1000.5)
    spent = process_account().read_state("record", DELTA)
    assert spent.epsilon > 0
    assert read_account(make_model().fit(*rows)).n_runs == 2


def test_a_budget_refuses_the_fit_too_many_and_leaves_the_others_usable(rows: Rows) -> None:
    """Three fits of epsilon 1 are 1, 1.455 and 1.814 together; a fourth would be 2.123, of 2 that are allowed."""
    models, totals = [], []
    with hedgerow.budget(2.0) as account:
        for _ in range(3):
            models.append(make_model().fit(*rows))
            totals.append(read_account(models[-1]).epsilon)
        with pytest.raises(PolicyRefusal) as caught:
            make_model().fit(*rows)
        assert account.read_state("record", DELTA).epsilon == totals[-1]
    assert caught.value.code == "over-budget"
    mu = mu_of(1.0, DELTA)
    assert totals == pytest.approx([epsilon_of_mu(mu * math.sqrt(count), DELTA) for count in (1, 2, 3)], rel=1e-4)
    assert len(models[0].predict(rows[0])) == len(rows[0])
    # What a budget counted is counted by the process as well.
    assert process_account().read_state("record", DELTA).n_runs == 3


@pytest.mark.filterwarnings("ignore:About")
def test_a_budget_has_room_for_a_fit_that_finds_its_bounds(rows: Rows) -> None:
    """Search and training are parts of one run: neither is refused where the whole fits, nor counted twice."""
    with hedgerow.budget(1.0):
        model = hedgerow.DPGBDTClassifier(epsilon=1.0, n_trees=2).fit(*rows)
    assert read_account(model).n_runs == 1
    assert read_account(model).epsilon == pytest.approx(compose([model]), rel=1e-9)


def test_tune_is_one_run_of_its_whole_epsilon(rows: Rows) -> None:
    """A choice by noisy scores fits into the budget that one fit has, and its report warns of no choice."""
    with hedgerow.budget(1.0), warnings.catch_warnings():
        warnings.simplefilter("error", SeveralRunsWarning)
        best = hedgerow.tune(make_model(), [{}, {"max_depth": 1}], *rows)
    assert read_account(best).n_runs == 1
    assert read_account(best).epsilon == pytest.approx(compose([best]), rel=1e-6)


def test_a_search_is_charged_for_each_fit_and_warns_once_with_the_sum(rows: Rows) -> None:
    """Ten fits are ten runs; the one warning and the best model's report name what all of them cost."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        search = GridSearchCV(make_model(), {"epsilon": [0.5, 1, 3]}, cv=3).fit(*rows)
    said = [str(each.message) for each in caught if issubclass(each.category, SeveralRunsWarning)]
    account = read_account(search.best_estimator_)
    assert account.n_runs == 10 and len(said) == 1 and account.describe_total() in said[0]
    weights = [mu_of(epsilon, DELTA) ** 2 for epsilon in [0.5] * 3 + [1] * 3 + [3] * 3]
    best = mu_of(search.best_params_["epsilon"], DELTA) ** 2
    assert account.epsilon == pytest.approx(epsilon_of_mu(math.sqrt(sum(weights) + best), DELTA), rel=1e-3)


@pytest.mark.slow
def test_a_search_in_other_processes_says_that_its_choice_is_outside_the_guarantee(rows: Rows) -> None:
    """Without a book the fits of workers are not counted: the chosen model's report names the choice all the same."""
    search = GridSearchCV(make_model(), {"max_depth": [1, 2]}, cv=2, n_jobs=2)
    with pytest.warns(SeveralRunsWarning):
        search.fit(*rows)
    account = read_account(search.best_estimator_)
    assert account.is_chosen and AccountState.from_dict(account.to_dict()) == account
    assert "hedgerow.tune" in search.best_estimator_.privacy_report_.text()
    assert not read_account(make_model().fit(*rows)).is_chosen


def test_one_fit_warns_of_nothing_and_a_cross_validation_once(rows: Rows) -> None:
    """A warning is for what a single report does not say."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", SeveralRunsWarning)
        make_model().fit(*rows)
    accounts.forget_runs()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cross_val_score(make_model(), *rows, cv=3)
    assert sum(issubclass(each.category, SeveralRunsWarning) for each in caught) == 1


def test_each_account_in_memory_warns_for_itself(rows: Rows) -> None:
    """A budget that ended warned of its own runs: the next one's, which may lie at the same place, are another sum."""
    for _ in range(3):
        with hedgerow.budget(), pytest.warns(SeveralRunsWarning):
            make_model().fit(*rows)
            make_model().fit(*rows)


def test_a_search_in_a_budget_stops_with_our_words(rows: Rows) -> None:
    """scikit-learn hands the refusal on, or, where it goes on with other fits, quotes it."""
    grid = {"max_depth": [1, 2, 3]}
    with hedgerow.budget(2.0) as account, pytest.raises(PolicyRefusal):
        GridSearchCV(make_model(), grid, cv=3, error_score="raise").fit(*rows)
    assert account.read_state("record", DELTA).n_runs == 3
    with hedgerow.budget(2.0), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(PolicyRefusal) as refused:
            GridSearchCV(make_model(), grid, cv=3).fit(*rows)
    # The refusal as a whole, with what to do.
    assert any(str(refused.value) in str(each.message) for each in caught)


@pytest.mark.slow
def test_worker_processes_share_the_book_of_a_budget_and_no_longer(rows: Rows, tmp_path: Path) -> None:
    """Ten fits in two worker processes are ten lines; workers that are used again after the block charge it nothing."""
    book = tmp_path / "patients.db"
    with hedgerow.budget(book=book):
        search = GridSearchCV(make_model(), {"epsilon": [0.5, 1, 3]}, cv=3, n_jobs=2).fit(*rows)
    assert read_account(search.best_estimator_).n_runs == 10
    GridSearchCV(make_model(), {"epsilon": [0.5, 1]}, cv=3, n_jobs=2).fit(*rows)
    assert BookStore(book).read_state("", "record", DELTA).n_runs == 10
    # These workers began before the block.
    with hedgerow.budget(2.0, book=tmp_path / "other.db"), pytest.raises(PolicyRefusal):
        GridSearchCV(make_model(), {"max_depth": [1, 2]}, cv=3, n_jobs=2, error_score="raise").fit(*rows)
    assert BookStore(tmp_path / "other.db").read_state("", "record", DELTA).n_runs == 3


def test_a_second_process_with_the_book_adds_to_it(rows: Rows, tmp_path: Path) -> None:
    """What an earlier process has spent counts in the next one's budget, and so does a run that was killed."""
    book = tmp_path / "patients.db"
    with hedgerow.budget(2.0, book=book):
        make_model().fit(*rows)
    line = BudgetLine("ab" * 32, "", "", "", "killed", "", "record", RESERVED, (GaussianEvent(3.0),))
    script = f"""
from contextlib import closing
from pathlib import Path
from hedgerow.local.accounts import Account, BookStore, RunFacts
from hedgerow.privacy.events import GaussianEvent
import os
opened = Account([BookStore(Path({str(book)!r}))]).open_run(RunFacts("killed"), [GaussianEvent(3.0)])
opened.__enter__()
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    with hedgerow.budget(2.0, book=book):
        model = make_model(epsilon=0.5).fit(*rows)
    with contextlib.closing(BudgetBook(book)) as opened:
        lines = opened.lines()
    assert [each.status for each in lines] == ["finished", RESERVED, "finished"] and lines[1].events == line.events
    assert read_account(model).epsilon == compose_epsilon(list_costs(lines), DELTA)


def test_an_unfitted_estimator_takes_no_budget_along_but_to_a_worker(rows: Rows, tmp_path: Path) -> None:
    """A pickle that is read again later, by this process or another, charges no book that it does not name."""
    with hedgerow.budget(book=tmp_path / "book.db"):
        sent, kept = pickle.dumps(make_model()), pickle.dumps(make_model().fit(*rows))
    assert str(tmp_path).encode() not in kept
    pickle.loads(sent).fit(*rows)
    assert BookStore(tmp_path / "book.db").read_state("", "record", DELTA).n_runs == 1
    assert os.environ.get(accounts.VARIABLE) is None


def test_a_worker_of_a_worker_shares_the_book_of_a_budget(rows: Rows, tmp_path: Path) -> None:
    """A process that was sent a budget sends it on, and one that it started keeps it beside a budget of its own."""
    sent = [{"path": str(tmp_path / "outer.db"), "epsilon": None, "delta": DELTA}]
    script = f"""
from hedgerow.local import accounts
accounts._inherited = {sent!r}
assert accounts.send_budgets()["files"] == {sent!r}
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    script = f"""
import hedgerow
from pathlib import Path
with hedgerow.budget(book={str(tmp_path / "inner.db")!r}):
    places = [store.place for store in hedgerow.local.accounts.process_account().stores]
assert places == ["inner.db", "outer.db", "memory"], places
assert [store.place for store in hedgerow.local.accounts.process_account().stores] == ["outer.db", "memory"]
"""
    environment = {**os.environ, accounts.VARIABLE: json.dumps(sent)}
    assert subprocess.run([sys.executable, "-c", script], env=environment, check=False).returncode == 0


def test_budgets_of_threads_end_in_any_order(tmp_path: Path) -> None:
    """A process that begins within a budget finds its file, whichever other budgets have ended meanwhile."""
    first, second = hedgerow.budget(book=tmp_path / "a.db"), hedgerow.budget(book=tmp_path / "b.db")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert [Path(each["path"]).name for each in json.loads(os.environ[accounts.VARIABLE])] == ["b.db"]
    second.__exit__(None, None, None)
    assert accounts.VARIABLE not in os.environ


def test_a_changed_variable_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that cannot be found is never passed over in silence."""
    for value in ("no list", "[3]", '[{"path": "a.db"}]', "3"):
        monkeypatch.setenv(accounts.VARIABLE, value)
        with pytest.raises(UsageError):
            process_account()


@pytest.mark.parametrize("is_older", [True, False])
def test_a_book_that_is_deleted_or_replaced_while_it_is_used_fits_nothing_more(tmp_path: Path, is_older: bool) -> None:
    """The runs that a lost book held would seem to be unspent: nothing is released until it is there again."""
    path, event = tmp_path / "book.db", GaussianEvent(3.0)
    older = None
    with hedgerow.budget(9.0, book=path) as account:
        for _ in range(2):
            older = path.read_bytes()
            with account.open_run(RunFacts("r"), [event]) as run:
                run.charge(event)
        newer = path.read_bytes()
        path.unlink()
        if is_older:
            path.write_bytes(older)
            path.chmod(0o600)
        for _ in range(2):
            with pytest.raises(EnvironmentFault) as caught, account.open_run(RunFacts("r"), [event]):
                pytest.fail("it was opened")
            assert caught.value.code == "book-replaced"
        path.write_bytes(newer)
        with account.open_run(RunFacts("r"), [event]) as run:
            run.charge(event)
        assert account.read_state("record", DELTA).n_runs == 3
        path.unlink()
        # A run whose book is lost before its end is still written down.
        with pytest.raises(EnvironmentFault), account.open_run(RunFacts("r"), [event]) as run:
            pytest.fail("it was opened")


steps = st.lists(st.sampled_from(["a", "b", "", "nodes"]), min_size=1, max_size=6)


@given(steps=steps)
def test_a_report_never_says_that_an_account_has_releases_that_it_lacks(steps: list[str]) -> None:
    """A model is trained and evaluated in several places, at equal costs: what an account may lack comes on top."""
    stores = {"a": MemoryStore(), "b": MemoryStore()}
    made, report = list[tuple[str, Release]](), make_report([noise_of_server(0)])
    for at, place in enumerate(steps):
        release = noise_of_server(at)
        made.append((place, release))
        report = replace(report, ledger=Ledger(tuple(own for _, own in made)))
        if place == "nodes":
            continue
        account = Account([stores[place]] if place else [])
        with account.open_run(RunFacts("r"), [release.event]) as run:
            run.charge(release.event)
        report = report.with_account(account.read_state("record", DELTA))
        assert report.account is not None
        # What an account before did not have may be in this one, and is not counted: equal costs cannot be told apart.
        n_counted, n_there = report.account.n_counted, sum(own == place for own, _ in made)
        others = [number for number, (own, _) in enumerate(made) if own not in (place, "nodes")]
        n_since = sum(own == place for own, _ in made[others[-1] + 1 if others else 0 :])
        assert not place or (n_counted is not None and n_since <= n_counted <= n_there)
        lines = [text for name, text in report.account.facts(report.n_releases) if not name]
        is_whole = {own for own, _ in made} == {place}
        if place:
            assert any("not known to be in it" in text for text in lines) is not is_whole
    if report.account is not None and steps[-1] == "nodes" and steps[0] in stores:
        (_, *lines) = report.account.facts(report.n_releases)
        assert report.account.place == NOWHERE or any("not known to be in it" in text for _, text in lines)


# Books that cannot be used --------------------------------------------------------------------------------------------


def spoil_by_text(path: Path) -> None:
    path.write_text("no database")
    path.chmod(0o600)


def spoil_by_other_tables(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("create table patients (name text)")
        database.commit()
    path.chmod(0o600)


def spoil_by_truncation(path: Path) -> None:
    with Account([BookStore(path)]).open_run(RunFacts("r"), [GaussianEvent(3.0)]) as run:
        run.charge(GaussianEvent(3.0))
    path.write_bytes(path.read_bytes()[:1500])


@pytest.mark.parametrize("spoil", [spoil_by_text, spoil_by_other_tables, spoil_by_truncation])
def test_a_book_that_cannot_be_used_is_one_error_before_anything_is_spent(
    rows: Rows, tmp_path: Path, spoil: Any
) -> None:
    """A damaged file, or a database of somebody else's, ends the block before a row is read, and is not written to."""
    path = tmp_path / "book.db"
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(EnvironmentFault), hedgerow.budget(2.0, book=path):
        make_model().fit(*rows)
    assert path.read_bytes() == before
    assert process_account().read_state("record", DELTA).n_runs == 0


def test_a_full_disk_is_one_error_before_anything_is_spent(
    rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the reservation cannot be written no noise is drawn, and no other account is charged."""

    def fail(*_: Any) -> None:
        raise EnvironmentFault("disk-full", path=tmp_path, fault="full")

    with hedgerow.budget(2.0, book=tmp_path / "book.db"):
        monkeypatch.setattr(BookStore, "put", fail)
        with pytest.raises(EnvironmentFault):
            make_model().fit(*rows)
    assert process_account().read_state("record", DELTA).n_runs == 0


def test_no_account_says_so() -> None:
    """A report of a run without a book says that other runs are not counted."""
    with Account().open_run(RunFacts("r"), [GaussianEvent(3.0)]) as run:
        run.charge(GaussianEvent(3.0))
    state = Account().read_state("record", DELTA)
    assert state.place == NOWHERE and "--no-book" in dict(state.facts())["account"]
    assert AccountState.from_dict(state.to_dict()) == state


# Studies --------------------------------------------------------------------------------------------------------------


def make_study(noise: str) -> hedgerow.Study:
    """A study of the tables' three sites."""
    shape, privacy = {"n_trees": 2, "max_depth": 2}, {"n_records": 400, "noise": noise}
    text = plan_text(3, name="wards", categories=(), classes=("no", "yes"), model=shape, privacy=privacy)
    return hedgerow.Study(hedgerow.parse_plan(text))


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, str]:
    """The tables of three sites."""
    for name in ("a", "b", "c"):
        lines = [f"{at % 100},{'no' if at % 3 else 'yes'}" for at in range(60)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,ill", *lines]) + "\n")
    return {name: str(tmp_path / f"{name}.csv") for name in ("a", "b", "c")}


@pytest.mark.parametrize("noise", ["server", "distributed", "local"])
def test_a_study_fits_into_a_budget_of_its_own_epsilon(tables: dict[str, str], noise: str) -> None:
    """Whoever adds the noise, what is released was foreseen, so no run that keeps a limit is ended by it."""
    study = make_study(noise)
    with hedgerow.budget(1.0) as account:
        result = study.run(hedgerow.Simulation(tables))
        state = account.read_state("record", DELTA)
        report = result.model.report
        assert report.account == replace(state, n_releases=report.n_releases, n_counted=report.n_releases)
        assert state.epsilon == pytest.approx(result.model.report.epsilon, rel=1e-9)


def test_nodes_of_this_machine_are_charged_to_its_account_before_they_begin(
    tables: dict[str, str], tmp_path: Path
) -> None:
    """The nodes' own books may be removed with them; where the run does not fit, none is started."""
    study, parties = make_study("server"), tmp_path / "parties"
    model = study.run(hedgerow.Simulation(tables)).model
    with hedgerow.budget(0.9) as account:
        with pytest.raises(PolicyRefusal, match="budget"):
            study.run(hedgerow.Processes(tables, parties))
        with pytest.raises(PolicyRefusal, match="budget"):
            study.evaluate(model, hedgerow.Processes(tables, parties), epsilon=1.0)
        assert account.read_state("record", DELTA).epsilon == 0
    assert not parties.exists()


@pytest.mark.parametrize("name", [5, 0, True, False, ["wards"], [], b"wards", math.nan])
def test_a_data_set_that_is_no_text_is_refused_before_anything_is_spent(rows: Rows, name: Any) -> None:
    """A name of another type neither ends in a bare error nor stands for all rows."""
    with pytest.raises(UsageError) as caught:
        make_model(data_set=name).fit(*rows)
    assert caught.value.code == "usage" and "data_set" in caught.value.what
    assert process_account().read_state("record", DELTA).n_runs == 0
