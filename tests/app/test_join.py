"""`hedgerow join` before anyone is dialled: what the owner of a table reads of it, and the file that mends it."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from contextlib import closing
from dataclasses import fields
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hedgerow.app import coordinator, study
from hedgerow.app.coordinator import ModelFile
from hedgerow.app.inputs import build_policy, prompt, read_policy, signing_roster
from hedgerow.app.join import _ask_most_rows, _compare, _DoorLine, _find_book, _list_rules, _require_company
from hedgerow.app.options import CoordinatorOptions
from hedgerow.app.rows import _read_now, make_loader
from hedgerow.app.survey import SurveyOptions
from hedgerow.cli.main import main
from hedgerow.client.budget import BudgetBook, note_book
from hedgerow.client.policy import Policy
from hedgerow.errors import PolicyRefusal, UsageError
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.fields import read_sentences
from hedgerow.plan.plan import Plan, parse_plan
from hedgerow.plugins import UNCOVERED, describe_plugin, load_plugin
from hedgerow.privacy.events import GaussianEvent
from hedgerow.privacy.rounding import format_up
from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.protocol.stream import Current
from hedgerow.server.journal import Journal
from hedgerow.study import Notebook, StudyBook, read_invitation
from hedgerow.transport.identities import Role, build_roster, create_identity, new_identity
from tests.plugins.test_plugin_loading import OBLIVIOUS, forget

PLAN = """\
version = 1
name = "wards"
[privacy]
epsilon = 1
delta = 1e-5
n_records = 100
noise = "distributed"
[[features]]
name = "sex"
type = "categorical"
categories = ["male", "female"]
[label]
name = "outcome"
type = "binary"
classes = ["no", "yes"]
"""


@pytest.fixture
def invitation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A site's, whose table has another coding; nobody can be asked anything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", None)
    Path("plan.toml").write_text(PLAN, encoding="utf-8")
    Path("north.csv").write_text("sex,outcome\n" + "M,no\nF,yes\n" * 20, encoding="utf-8")
    assert main(["study", "new", "wards", "--plan", "plan.toml", "--listen", "127.0.0.1:7443"]) == 0
    assert main(["study", "invite", "north"]) == 0
    return "wards/north.invitation"


def joined(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What `join` shows until it would ask whether the site takes part."""
    capsys.readouterr()
    assert main(["join", *arguments, "--data", "north.csv"]) == 2
    shown = capsys.readouterr()
    return shown.out + shown.err


def test_the_lines_that_are_printed_mend_the_table(invitation: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Put into a file as they stand, they are taken by the next `join`, whose policy then has them."""
    first = joined(capsys, invitation)
    assert "Not listed" in first and "(usage, exit code" in first
    advice = first[first.index("  [data]\n") :].partition("\n\n")[0]
    Path("mended.toml").write_text(advice, encoding="utf-8")
    again = joined(capsys, invitation, "--adapter", "mended.toml")
    assert "Not listed" not in again and "(usage, exit code" in again
    policy = read_policy("wards/wards-north/proposed-policy.toml")
    assert policy.data.recode == (("sex", (("F", "female"), ("M", "male"))),)


@pytest.mark.parametrize("rows", ["", "M,no\nF,perhaps\n" * 20])
def test_an_owner_is_asked_again_where_rows_are_lost(
    invitation: str, rows: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody who is there is asked about an empty table, or half a table."""
    Path("north.csv").write_text("sex,outcome\n" + rows, encoding="utf-8")
    enrolled = list[str]()
    monkeypatch.setattr("hedgerow.app.join._enrol", lambda *_: enrolled.append("asked"))
    monkeypatch.setattr("hedgerow.app.node.stay", lambda *_, **__: enrolled.append("joined"))
    join = ["join", invitation, "--data", "north.csv"]
    # No, and an empty line is no; then yes to this, and to the policy.
    for answers, code in (["no"], 6), ([""], 6), (["yes", "yes"], 0):
        typed = iter(answers)
        monkeypatch.setattr("hedgerow.app.join.is_terminal", lambda: True)
        monkeypatch.setattr("builtins.input", lambda *_, typed=typed: next(typed))
        assert main(join) == code and next(typed, None) is None
    assert enrolled == ["asked", "joined"]


def test_a_number_of_rows_that_is_none_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has agreed is not thrown out for a mark of thousands; on the command line it is an error."""
    typed = iter(["5'000", "0", "99999999999999999999", "5,000", ""])
    monkeypatch.setattr("hedgerow.app.join.is_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", lambda *_: next(typed))
    assert [_ask_most_rows(None, asks=True) for _ in range(2)] == [5000, 0]
    for given in ("5'000", "99999999999999999999", ""):
        with pytest.raises(UsageError) as caught:
            _ask_most_rows(given, asks=True)
        assert caught.value.code == "usage"


def test_each_line_of_a_policy_says_what_it_is_for() -> None:
    """An owner agrees to eighteen lines: each has its half-sentence, the one that docs/fields.md has."""
    said = dict(_list_rules(build_policy("max_epsilon = 1.0\ndelta = 1e-5\nsurveys = true\n", "wards")))
    meanings = read_sentences(Policy)
    expected = {field.name for field in fields(Policy)} - {"version", "data"}
    assert {name.partition(".")[0] for name in said} - {"data"} == expected
    for name in expected:
        about = re.search(r"\((.+)\)$", said[name])
        assert about is not None and about[1] and meanings[name].startswith(about[1])


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_party_in_a_container_does_not_wait_for_a_volume_that_was_refused(tmp_path: Path, is_refused: bool) -> None:
    """More sites on volumes that have a roster without them: `up` came to no end, for they waited for their files."""
    ready = tmp_path / "ready"
    if is_refused:
        Path(f"{ready}.refused").write_text("setup: another roster\n", encoding="utf-8")
    else:
        ready.touch()
    done = subprocess.run(
        ["/bin/sh", str(Path(__file__).parents[2] / "deploy" / "entrypoint"), "/bin/echo", "started"],
        env={"HEDGEROW_WAIT_FOR": str(ready), "NUMBA_CACHE_DIR": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == ((1, "") if is_refused else (0, "started\n"))
    assert bool(done.stderr) == is_refused


def test_the_folder_of_a_site_has_its_account(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`hedgerow ledger` reads limit and delta from its policy: at another delta, what was allowed looks overspent."""
    folder, book = tmp_path / "wards-north", tmp_path / "north-budget.db"
    (folder / "state").mkdir(parents=True)
    note_book(folder / "state", book)
    (folder / "policy.toml").write_text(build_policy("max_epsilon = 3.0\ndelta = 1e-05\n", "north"), encoding="utf-8")
    with closing(BudgetBook(book)) as account:
        account.serve("north", folder / "state")
        account.reserve(b"1" * 32, "north", parse_plan(PLAN), [GaussianEvent(2.0)], (3.0, 1e-5))
    assert main(["ledger", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["delta"] == 1e-5 and [one["max_epsilon"] for one in shown["data_sets"]] == [3.0]
    assert main(["ledger", str(folder), "--close", "31" * 6]) == 0


@pytest.mark.parametrize("n_unfit", [10, 11, 90])
def test_no_row_decides_whether_an_unattended_site_is_there(
    invitation: str, n_unfit: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All others wait for it, at the first run and at each later one; its operator alone is warned."""
    rows = ["M,no\nF,yes\n" * 45, "M,perhaps\n" * n_unfit]
    joined = list[str]()

    def enrol(_: object, invitation: object, folder: Path, keys: object, notes: Any, page: object) -> None:
        notes.keep(settled=b"1")

    monkeypatch.setattr("hedgerow.app.join._enrol", enrol)
    monkeypatch.setattr("hedgerow.app.node.stay", lambda *_, **__: joined.append("joined"))
    Path("later.toml").write_text(PLAN.replace("n_records = 100", "n_records = 120"), encoding="utf-8")
    join = ["join", invitation, "--data", "north.csv", "--yes"]
    for plan, table in ([], rows), (["--plan", "later.toml"], rows), (["--plan", "plan.toml"], [""]):
        Path("north.csv").write_text("sex,outcome\n" + "".join(table), encoding="utf-8")
        capsys.readouterr()
        assert main([*join, *plan]) == 0
        assert ("takes part all the same" in " ".join(capsys.readouterr().err.split())) is (
            n_unfit > 10 or table == [""]
        )
    assert joined == ["joined"] * 3


def test_nobody_is_called_as_the_coordinator(invitation: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The advice is one that can be followed: there is nothing to withdraw."""
    capsys.readouterr()
    for way in (["coordinator"], ["--monitor", "coordinator"]):
        assert main(["study", "invite", *way]) == 2
        said = capsys.readouterr().err
        assert "withdraw" not in said and "(invited-coordinator, exit code 2)" in said


def test_too_few_sites_are_told_before_anyone_is_called(
    invitation: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their nodes would end as policy-small-cohort, after all words have been compared by phone."""

    def no_server(*_: object) -> None:
        raise UsageError("not-asked")

    monkeypatch.setattr("hedgerow.app.study.StudyServer", no_server)
    policy = "max_epsilon = 5\ndelta = 1e-5\nmin_sites = 2\n"
    Path("fewer.toml").write_text(policy, encoding="utf-8")
    for invited, is_told in (["south"], True), (["west"], False), (["north", "south", "--again"], False):
        assert main(["study", "invite", *invited, *(["--policy", "fewer.toml"] if "--again" in invited else [])]) == 0
        if "--again" in invited:
            assert main(["study", "withdraw", "west"]) == 0
        capsys.readouterr()
        assert main(["study", "serve"]) == 2
        assert ("2 site(s) are invited" in capsys.readouterr().err) is is_told


def test_a_later_adapter_is_not_passed_over(invitation: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A site that has joined is started again with another file: what its policy says of the table is what counts."""
    Path("one.toml").write_text('[data]\nrecode.sex = {M = "male", F = "female"}\n', encoding="utf-8")
    Path("other.toml").write_text('[data]\nmissing.sex = ["X"]\n', encoding="utf-8")
    joined(capsys, invitation, "--adapter", "one.toml")
    folder = Path("wards/wards-north")
    (folder / "proposed-policy.toml").rename(folder / "policy.toml")
    with closing(Notebook(folder / "enrolment.db")) as notes:
        notes.keep(invitation=read_invitation(Path(invitation)).digest())
    assert "(adapter-beside-policy" in joined(capsys, invitation, "--adapter", "other.toml")
    plain = (folder / "policy.toml").read_text(encoding="utf-8").partition("[data]")[0]
    Path("own.toml").write_text(plain, encoding="utf-8")
    assert "(adapter-beside-policy" in joined(capsys, invitation, "--policy", "own.toml", "--adapter", "one.toml")
    assert Path("own.toml").read_text(encoding="utf-8") == plain


def test_a_corrected_plan_is_read_before_anyone_is_asked(invitation: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a misspelled one the owner heard when they had agreed, enrolled and compared the words; a site that joins by a
    corrected plan is asked about that one alone."""
    capsys.readouterr()
    assert main(["join", invitation, "--data", "north.csv", "--plan", "nowhere.toml", "--yes"]) == 3
    assert "plan-not-found" in capsys.readouterr().err
    Path("corrected.toml").write_text(PLAN.replace('name = "wards"', 'name = "corrected"'), encoding="utf-8")
    said = joined(capsys, invitation, "--plan", "corrected.toml")
    assert "Plan 'corrected'" in said and "Plan 'wards'" not in said
    assert main(["study", "pause", "--study", "nowhere"]) == 2
    assert "study-folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("study new other --plan plan.toml --listen 127.0.0.1:7443", ".other.new/coordinator.private.json"),
        ("plan init north.csv --label outcome --out draft.toml", "draft.toml"),
    ],
)
def test_a_full_disk_names_the_file_and_leaves_none(
    invitation: str, command: str, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The system's own words say only that some disk is full; half a file would stand in the way of the next try."""

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", fail)
    assert main(command.split()) == 10
    said = " ".join(capsys.readouterr().err.split())
    assert file in said and "No space left on device" in said and "(disk-full, exit code 10)" in said
    assert not Path(file).exists()


def test_a_later_name_of_the_rows_is_not_passed_over(invitation: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Once there is a policy its name counts: who gives another one is told so, and who gives the same goes on."""
    Path("own.toml").write_text(build_policy(read_invitation(Path(invitation)).policy, "ward"), encoding="utf-8")
    said = joined(capsys, invitation, "--policy", "own.toml", "--data-set", "other")
    assert "(data-set-beside-policy, exit code 2)" in said and "'ward'" in said
    assert "(usage, exit code 2)" in joined(capsys, invitation, "--policy", "own.toml", "--data-set", "ward")
    folder = Path("wards/wards-north")
    Path("own.toml").rename(folder / "policy.toml")
    with closing(Notebook(folder / "enrolment.db")) as notes:
        notes.keep(invitation=read_invitation(Path(invitation)).digest())
    assert "(data-set-beside-policy" in joined(capsys, invitation, "--data-set", "other")


def test_a_site_by_another_name_begins_no_second_account(
    invitation: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator chooses the names of invitations, so a name alone must not give rows a new budget."""
    assert main(["study", "invite", "north-2"]) == 0
    folder, plan = Path("wards"), parse_plan(PLAN)
    with closing(BudgetBook(folder / "north-budget.db")) as book:
        book.reserve(b"run", "north", plan, [GaussianEvent(20.0)], (3.0, 1e-5))
    one, two = (f"wards/{name}.invitation" for name in ("north", "north-2"))
    assert _find_book(one, "north", None, "north") == folder / "north-budget.db"
    with pytest.raises(UsageError) as refused:
        _find_book(two, "north-2", None, "north")
    assert refused.value.code == "budget-elsewhere" and "--budget wards/north-budget.db" in str(refused.value.remedy)
    assert _find_book(two, "north-2", None, "others") == folder / "north-2-budget.db"
    said = " ".join(joined(capsys, "wards/north-2.invitation", "--data-set", "north").split())
    assert "(budget-elsewhere, exit code 2)" in said


def test_what_has_been_spent_is_shown_before_the_question(invitation: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Who is asked to take part, or to go on by a corrected plan, knows what is left of the epsilon for these rows."""
    first = " ".join(joined(capsys, invitation).split())
    assert "epsilon 0 of 1" in first and "epsilon 1 of 1" in first and "policy-over-budget" not in first
    with closing(BudgetBook(Path("wards/north-budget.db"))) as book:
        book.reserve(b"run", "north", parse_plan(PLAN), [GaussianEvent(20.0)], (3.0, 1e-5))
        spent = book.spent("north", 1e-5)
    folder = Path("wards/wards-north")
    (folder / "proposed-policy.toml").rename(folder / "policy.toml")
    (folder / "proposed-plan.toml").rename(folder / "plan.toml")
    with closing(Notebook(folder / "enrolment.db")) as notes:
        notes.keep(invitation=read_invitation(Path(invitation)).digest(), settled=b"1")
    for epsilon, is_refused in ((0.9, False), (1, True)):
        corrected = f"{PLAN}# Corrected.\n".replace("epsilon = 1", f"epsilon = {epsilon}")
        Path("corrected.toml").write_text(corrected, encoding="utf-8")
        said = " ".join(joined(capsys, invitation, "--plan", "corrected.toml").split())
        assert f"epsilon {format_up(spent, 4)} of 1" in said
        assert ("(policy-over-budget)" in said) is is_refused


def test_a_table_by_another_name_begins_no_second_account(invitation: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A table is exported anew with its date in the name, and holds the same people: who means others says so."""
    with closing(BudgetBook(Path("wards/north-budget.db"))) as book:
        book.reserve(b"run", "admissions", parse_plan(PLAN), [GaussianEvent(20.0)], (3.0, 1e-5))
    said = " ".join(joined(capsys, invitation).split())
    assert "(data-set-new, exit code 2)" in said and "which counts for admissions" in said
    for name in ("admissions", "others"):
        assert "data-set-new" not in joined(capsys, invitation, "--data-set", name)
    # Nor does it where the coordinator gives the site another name as well.
    assert main(["study", "invite", "north-2"]) == 0
    capsys.readouterr()
    renamed = str(Path(invitation).with_name("north-2.invitation"))
    said = " ".join(joined(capsys, renamed).split())
    assert "(data-set-new, exit code 2)" in said and "north-budget.db" in said


def test_a_run_over_a_table_that_was_changed_meanwhile_is_told(tmp_path: Path) -> None:
    """A node that stays takes the rows as it has read them; its owner, who has exported them anew, hears of it."""
    table, plan, told = tmp_path / "north.csv", parse_plan(PLAN), list[str]()
    table.write_text("sex,outcome\n" + "male,no\n" * 20, encoding="utf-8")
    load = _read_now(make_loader(str(table)), plan, [table], told.append)
    assert load(plan).n_records == 20 and not told
    table.write_text("sex,outcome\n" + "male,no\n" * 30, encoding="utf-8")
    assert load(plan).n_records == 20 and "changed" in told[0]


def test_a_question_is_seen_where_output_goes_to_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`hedgerow join ... > said.txt` asks at the terminal; it waited there for an answer to what nobody could see."""
    monkeypatch.setattr("sys.stdin", StringIO("yes\n"))
    assert prompt("Take part?") == "yes"
    assert capsys.readouterr() == ("", "Take part? ")


def test_a_new_invitation_proposes_what_the_old_one_did(invitation: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The advice is to type `invite NAME --again`: a site would have been left with a smaller budget than agreed."""
    assert main(["study", "invite", "south", "--max-epsilon", "3"]) == 0
    assert "epsilon 3" in " ".join(capsys.readouterr().err.split())
    old = read_invitation(Path("wards/south.invitation"))
    assert main(["study", "invite", "south", "--again"]) == 0
    new = read_invitation(Path("wards/south.invitation"))
    assert (new.policy, new.secret != old.secret) == (old.policy, True)
    assert main(["study", "invite", "south", "--again", "--max-epsilon", "2"]) == 0
    # A file that was moved to its site is not looked for.
    Path("wards/south.invitation").unlink()
    assert main(["study", "invite", "south", "--again"]) == 0
    assert "max_epsilon = 2.0" in read_invitation(Path("wards/south.invitation")).policy


def test_who_cannot_reach_the_coordinator_is_told_where_and_why(
    invitation: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first thing that fails at a site is a firewall, or a name: the address that was dialled, and what to do."""
    answers = iter([WireRefusal(WireCode.UNREACHABLE), b"yes"])

    def ask(*_: object) -> bytes:
        if isinstance(answer := next(answers), bytes):
            return answer
        raise answer

    monkeypatch.setattr("hedgerow.app.join.ask", ask)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert _DoorLine(read_invitation(Path(invitation)), "127.0.0.1:7443").ask(Current("north")) == b"yes"
    said = " ".join(capsys.readouterr().err.split())
    assert "127.0.0.1:7443" in said and "firewall" in said and "tries again" in said


def test_words_that_were_confirmed_count_for_no_others(
    invitation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other keys in the folder, or a coordinator that answers otherwise, there are other words, and a call."""
    typed = ["apple river stone lamp", "bottle custom zenith friday"]
    monkeypatch.setattr("hedgerow.app.join.is_terminal", lambda: True)
    monkeypatch.setattr("hedgerow.app.join.prompt_while", lambda *_: typed.pop(0))
    with closing(Notebook(tmp_path / "enrolment.db")) as notes:
        for words in (*typed, typed[1]):
            _compare(read_invitation(Path(invitation)), notes, words, "hedgerow join")
    assert not typed


def test_a_study_says_for_whom_it_waits_from_its_first_look_on(
    invitation: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Silence looks like a fault: who has yet to come is said at once, since when, again now and then, and when
    others are awaited.
    """
    clock = [1000.0]
    monkeypatch.setattr("hedgerow.app.study.time.monotonic", lambda: clock[0])
    assert main(["study", "invite", "south"]) == 0
    capsys.readouterr()
    told = list[str]()
    with closing(StudyBook(Path("wards"))) as book:
        lines = study._Lines(book, study.read_identity(book), None)
        for clock[0] in (1000.0, 1000.3, 1010.0, 1061.0):
            assert not lines.look()
            told.append(" ".join(capsys.readouterr().err.split()))
        assert main(["study", "withdraw", "south"]) == 0
        capsys.readouterr()
        assert not lines.look()
    assert told[1:3] == ["", ""] and "north, south" in told[0] and "61 s" in told[3]
    assert "south" not in capsys.readouterr().err


def test_the_command_that_began_a_run_goes_on_with_it(
    invitation: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a crash one types what one typed before; `study run --plan` was told to end its own run. What is said of
    ending it is a command of a study."""
    taken = list[tuple[CoordinatorOptions, Plan, ModelFile]]()

    def train(options: CoordinatorOptions, plan: Plan, file: ModelFile, _: object) -> tuple[None, None]:
        taken.append((options, plan, file))
        return None, None

    # First, for it imports the command, which would else keep what is put in the place of `train_over_nodes`.
    monkeypatch.setattr("hedgerow.cli.coordinator.print_model", lambda *_, **__: None)
    monkeypatch.setattr(coordinator, "train_over_nodes", train)
    monkeypatch.setattr(coordinator, "hand_out", lambda *_, **__: None)
    Path("wards/roster.toml").touch()
    Path("new.toml").write_text(PLAN.replace("epsilon = 1", "epsilon = 2"), encoding="utf-8")
    for _ in range(2):
        assert main(["study", "run", "--plan", "new.toml"]) == 0
    assert [file.path for _, _, file in taken] == [Path("wards/run-1/model.json")] * 2
    assert {plan.privacy.epsilon for _, plan, _ in taken} == {2.0}
    assert {options.ended_by for options, _, _ in taken} == {"`hedgerow study abort`"}
    # The study's plan is the one that sites have agreed to: one that all refuse is proposed once, and no more.
    assert Path("wards/plan.toml").read_text(encoding="utf-8") == PLAN
    taken[-1][2].agreed()
    assert Path("wards/plan.toml").read_text(encoding="utf-8") == Path("new.toml").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["study", "run", "--plan", "plan.toml"]) == 2
    assert "study-run-open" in capsys.readouterr().err


@pytest.mark.parametrize("is_met", [False, True])
def test_ending_a_run_that_no_site_has_taken_up_waits_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_met: bool
) -> None:
    """`abort` waited for sites that had refused the plan, to tell them of a run that they had never been in."""
    hub, _, _ = create_identity(tmp_path, "coordinator", Role.COORDINATOR)
    roster = build_roster(hub.public, [new_identity("north", Role.SITE, bytes(range(32))).public])
    (tmp_path / "roster.toml").write_text(roster.to_toml(), encoding="utf-8")
    plan, place = parse_plan(PLAN), tmp_path / "model.json.journal"
    with closing(Journal(place)) as journal:
        journal.begin(b"1" * 32, TrainingTask(plan), signing_roster(roster))
    if not is_met:
        coordinator.unmet_file(place).touch()
    listens = list[str]()

    def listen(*_: object) -> None:
        listens.append("listens")
        raise KeyboardInterrupt

    monkeypatch.setattr(coordinator, "HUBS", {"grpc": listen})
    options = CoordinatorOptions(
        identity=str(tmp_path / "coordinator.private.json"), roster=str(tmp_path / "roster.toml"),
        listen="127.0.0.1:7443",
    )  # fmt: skip
    if is_met:
        with pytest.raises(KeyboardInterrupt):
            coordinator.end_run(options, plan, place)
    else:
        assert coordinator.end_run(options, plan, place) == (b"1" * 32, [], 1)
    assert bool(listens) == is_met


@pytest.mark.parametrize("label", ["binary", "survival"])
def test_a_study_asks_its_sites_for_statistics_by_one_command(
    invitation: str, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns are the plan's, so that no one names them twice, and each survey has a folder of its own; the same
    command goes on with one that was cut off.
    """
    taken = list[tuple[SurveyOptions, Path]]()
    asked = "hedgerow.app.survey.survey_over_nodes"
    monkeypatch.setattr(asked, lambda options, _, out, is_new: taken.append((options, out)))
    monkeypatch.setattr("hedgerow.cli.survey.show", lambda *_: None)
    times = 'name = "time"\ntype = "survival"\nevent = "seen"\nintervals = [1, 2, 3]\n'
    is_survival = label == "survival"
    plan = PLAN.partition("[label]")[0] + "[label]\n" + times if is_survival else PLAN
    Path("wards/plan.toml").write_text(plan.replace("[privacy]", '[privacy]\nunit = "person"'), encoding="utf-8")
    assert main(["study", "survey", "--epsilon", "0.3"]) == 2 and not taken
    Path("wards/roster.toml").touch()
    for has_ended in (False, False, True):
        if has_ended:
            Path("wards/survey-1/survey.json").touch()
        assert main(["study", "survey", "--epsilon", "0.3"]) == 0
    assert [str(out) for _, out in taken] == ["wards/survey-1", "wards/survey-1", "wards/survey-2"]
    found, _ = taken[-1]
    assert (found.unit, found.max_rows_per_unit, found.delta, found.epsilon) == ("person", 1, 1e-5, 0.3)
    named = "wards/plan.toml"
    expected = (named, None, "") if is_survival else (None, named, "outcome")
    assert (found.survival, found.schema, found.label) == expected


def test_only_words_of_the_owner_grant_noise_of_others(
    invitation: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever adds the noise sees exact sums: no invitation, no line that it proposes, and no --yes is a yes."""
    monkeypatch.setattr("hedgerow.app.join._enrol", lambda *_: None)
    monkeypatch.setattr("hedgerow.app.node.stay", lambda *_, **__: None)
    for leftover in Path("wards").iterdir():
        leftover.unlink()
    Path("wards").rmdir()
    Path("plan.toml").write_text(PLAN.replace('noise = "distributed"', 'noise = "server"'), encoding="utf-8")
    Path("proposed.toml").write_text('max_epsilon = 1\ndelta = 1e-5\nnoise = ["server"]\n', encoding="utf-8")
    assert main(["study", "new", "wards", "--plan", "plan.toml", "--listen", "127.0.0.1:7443"]) == 0
    for number, more in enumerate(([], ["--policy", "proposed.toml"])):
        name = f"site-{number}"
        assert main(["study", "invite", name, *more]) == 0
        join = ["join", f"wards/{name}.invitation", "--data", "north.csv", "--data-set", name]
        assert ("noise" in read_invitation(Path(join[1])).policy) is bool(more)
        assert main([*join, "--yes"]) == 6
        assert "(policy-noise, exit code 6)" in capsys.readouterr().err
        for answers, code in (["yes"], 6), (["server", "yes"], 0):
            typed = iter(answers)
            with monkeypatch.context() as patch:
                patch.setattr("hedgerow.app.join.is_terminal", lambda: True)
                patch.setattr("builtins.input", lambda *_, typed=typed: next(typed))
                assert main(join) == code
        assert read_policy(f"wards/wards-{name}/policy.toml").noise == ("server",)


def test_the_owner_is_shown_all_that_the_policy_allows(invitation: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What a proposal leaves unsaid is allowed as well, and the thirteenth name of a list as much as the first; what
    it allows beyond the usual is said by itself.
    """
    names = ", ".join(f'"kind-{number}"' for number in range(30))
    given = 'surveys = true\nmin_sites = 1\ndelta = 0.5\nmonitors = "any"\nask = "always"\n'
    proposals = {
        "usual": ("max_epsilon = 1\ndelta = 1e-5\n", set[str]()),
        "wider": (f"max_epsilon = 1\n{given}query_kinds = [{names}]\n",
                  {"surveys", "min_sites", "delta", "monitors"}),
    }  # fmt: skip
    for name, (proposed, wider) in proposals.items():
        Path("proposed.toml").write_text(proposed, encoding="utf-8")
        assert main(["study", "invite", name, "--policy", "proposed.toml"]) == 0
        shown = " ".join(joined(capsys, f"wards/{name}.invitation", "--data-set", name).split())
        policy = read_policy(f"wards/wards-{name}/proposed-policy.toml")
        for field in vars(policy).keys() - {"version", "data"}:
            assert f" {field} " in shown
        assert all(kind in shown for kind in policy.query_kinds)
        assert {line.partition(" = ")[0] for line in policy.beyond_defaults(parse_plan(PLAN))} == wider
        assert all(f"{line} = " in shown for line in wider)


def test_an_invitation_names_no_code(
    invitation: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a proposed policy names is not loaded to be shown, nor with --yes: only its owner writes such a line."""
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("unread.py").write_text("raise SystemExit('it was imported')\n", encoding="utf-8")
    unread = ModuleType("unread")
    unread.__file__ = "unread.py"
    text = json.loads(Path(invitation).read_text(encoding="utf-8"))
    text["policy"] = f'max_epsilon = 1\ndelta = 1e-5\nplugins = ["{describe_plugin(unread)}"]\n'
    Path("altered").write_text(json.dumps(text), encoding="utf-8")
    for more in [], ["--yes"]:
        assert main(["join", "altered", "--data", "north.csv", "--data-set", "rows", *more]) == 2
        assert "(policy-file, exit code 2)" in capsys.readouterr().err
    assert "unread" not in sys.modules and not list(Path("wards").rglob("*policy.toml"))


@pytest.mark.parametrize("line", ['plugins = ["unread 1 sha256:0"]', '[data]\nname = "an adapter"'])
def test_what_sites_would_refuse_is_refused_before_it_is_sent(invitation: str, line: str, capsys: Any) -> None:
    """Where its author can still change it, and nothing is written; `join` refuses it whoever wrote it."""
    Path("proposed.toml").write_text(f"max_epsilon = 1\ndelta = 1e-5\n{line}\n", encoding="utf-8")
    assert main(["study", "invite", "south", "--policy", "proposed.toml"]) == 2
    assert "(policy-file, exit code 2)" in capsys.readouterr().err
    assert not Path("wards/south.invitation").exists()


def test_a_plan_of_a_foreign_method_is_read_by_the_owners_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The coordinator is told that owners have to name it; without a policy that does so the plan says nothing here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.syspath_prepend(str(OBLIVIOUS.parent))
    forget()
    try:
        line = describe_plugin(load_plugin("oblivious"))
        Path("plan.toml").write_text(f'{PLAN}[model]\nalgorithm = "oblivious"\n', encoding="utf-8")
        Path("north.csv").write_text("sex,outcome\n" + "1,no\n2,yes\n" * 20, encoding="utf-8")
        assert main(["study", "new", "wards", "--plan", "plan.toml", "--listen", "127.0.0.1:7443"]) == 0
        assert main(["study", "invite", "north"]) == 0
        assert "(module oblivious)" in " ".join(capsys.readouterr().err.split())
        forget()
        assert main(["join", "wards/north.invitation", "--data", "north.csv", "--data-set", "wards"]) == 3
        own = f'version = 1\ndata_set = "wards"\nmax_epsilon = 1\ndelta = 1e-6\nplugins = ["{line}"]\n'
        Path("own.toml").write_text(own, encoding="utf-8")
        shown = joined(capsys, "wards/north.invitation", "--policy", "own.toml")
        assert "(usage, exit code 2)" in shown and line[-64:] in shown
        # What its digest does not cover stands beside it.
        assert " ".join(UNCOVERED.split()) in " ".join(shown.split())
    finally:
        forget()


def test_no_proposal_speaks_to_the_terminal(invitation: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Words in an invitation that a terminal would act on, or that look like another line, are shown as what they
    are, or refused: the question below them is about what the owner sees.
    """
    for number, line in enumerate(
        (r'noise = ["a\u001b[2J"]', r'unit = "x\u001b[2Jy"', r'features = ["sex\u202e", "b\ndelta 1"]')
    ):
        text = json.loads(Path(invitation).read_text(encoding="utf-8"))
        text |= {"policy": f"max_epsilon = 1\ndelta = 1e-5\n{line}\n", "party": f"p{number}"}
        Path("altered").write_text(json.dumps(text), encoding="utf-8")
        capsys.readouterr()
        assert main(["join", "altered", "--data", "north.csv", "--data-set", f"p{number}"]) != 0
        said = "".join(capsys.readouterr())
        assert not any(each in said for each in "\x1b\u202e") and "\n  delta 1\n" not in said.replace("  ", " ")


@pytest.mark.parametrize(
    ("expect", "answer", "is_taken"),
    [
        ("north,south", None, True), ("south", None, True), ("south, west", None, False), ("north", None, False),
        (None, None, True), (None, "yes", True), (None, "no", False), ("west", "yes", False),
    ],
)  # fmt: skip
def test_a_site_is_shown_who_the_others_are(
    expect: str | None, answer: str | None, is_taken: bool,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """All other sites may be the coordinator's own: the owner sees names and fingerprints, and has a second say."""
    keys = {
        name: new_identity(name, role, name.encode().ljust(32)).public
        for name, role in (("hub", Role.COORDINATOR), ("north", Role.SITE), ("south", Role.SITE), ("w", Role.MONITOR))
    }
    roster = build_roster(keys["hub"], [keys["north"], keys["south"]], None, [keys["w"]], {})
    monkeypatch.setattr("hedgerow.app.join.is_terminal", lambda: answer is not None)
    monkeypatch.setattr("builtins.input", lambda *_: answer)
    try:
        _require_company(roster, "north", "apple river stone lamp", expect, asks=answer is not None)
    except PolicyRefusal as refused:
        assert refused.code == "roster-unexpected" and not is_taken
    else:
        assert is_taken
    said = capsys.readouterr().err
    assert "apple river stone lamp" in said
    assert all(f"{name}" in said and keys[name].fingerprint() in said for name in ("north", "south", "w"))


def test_a_coordinator_that_moves_is_dialled_where_it_is(
    invitation: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its keys are pinned, so an address needs no trust; the invitation stays what the words are about."""
    dialled = list[str]()

    def stop(address: str, *_: object) -> bytes:
        dialled.append(address)
        raise WireRefusal(WireCode.WRONG_COORDINATOR)

    monkeypatch.setattr("hedgerow.app.join.ask", stop)
    Path("north.csv").write_text("sex,outcome\n" + "male,no\n" * 20, encoding="utf-8")
    assert main(["study", "address", "127.0.0.1:7516"]) == 0
    join = ["join", invitation, "--data", "north.csv", "--yes"]
    for more, address in ([], "127.0.0.1:7443"), (["--connect", "127.0.0.1:7516"], "127.0.0.1:7516"):
        assert main([*join, *more]) == 8
        assert dialled.pop() == address
    assert main([*join, "--connect", "unix:/run/hub:1"]) == 2
    with closing(StudyBook(Path("wards"))) as book:
        assert (book.fact("address"), book.fact("listen")) == ("127.0.0.1:7516", "127.0.0.1:7516")
    assert main(["study", "address", "hub.example.org:7517", "--listen", "0.0.0.0:7443"]) == 0
    assert main(["study", "address", "hub.example.org:7518"]) == 0
    assert main(["study", "invite", "south"]) == 0
    assert read_invitation(Path("wards/south.invitation")).address == "hub.example.org:7518"
    with closing(StudyBook(Path("wards"))) as book:
        assert book.fact("listen") == "0.0.0.0:7443"
