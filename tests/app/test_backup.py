"""Backups: what comes back, what does not, and that no account forgets what was released."""

from __future__ import annotations

import io
import itertools
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.app import backup
from hedgerow.app.backup import RESTORED, back_up_node, back_up_study, find_rule, restore_node, restore_study
from hedgerow.app.study import StudyOptions, newest_run
from hedgerow.app.study import evaluate as evaluate_study
from hedgerow.cli.main import main
from hedgerow.client.budget import compose_epsilon
from hedgerow.client.state import NodeStore
from hedgerow.errors import PolicyRefusal, UsageError
from hedgerow.privacy.events import Event, scope_events
from hedgerow.study import StudyBook
from hedgerow.transport.identities import Role, create_identity
from tests.app.site_folder import LIMIT, PLAN, SPENT, begin_run, book_of, end_run, furnish_site
from tests.builders import train_model

DELTA = LIMIT[1]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def lose(folder: Path) -> None:
    """All that the site had is gone."""
    for path in folder.parent.iterdir():
        if path != folder and path.suffix != ".tar":
            path.unlink()
    shutil.rmtree(folder)


# What a restored party is charged for, and what goes on ------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.just(0)),
        st.tuples(st.just("answer"), st.integers(1, len(SPENT))),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("backup"), st.just(0)),
        st.tuples(st.just("restore"), st.integers(0, 3)),
    ),
    max_size=14,
)


class Site:
    """A site whose node runs, is backed up, lost and restored; `released` is what has left it, whatever it knows."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.numbers = furnish_site(folder), itertools.count(1)
        self.released: dict[bytes, list[Event]] = {}
        self.open: bytes | None = None
        self.backups: list[tuple[Path, set[bytes]]] = []

    def step(self, kind: str, number: int) -> None:
        if kind == "begin" and self.open is None:
            run_id = next(self.numbers).to_bytes(32, "big")
            begin_run(self.folder, run_id)
            self.open, self.released[run_id] = run_id, []
        elif kind == "answer" and self.open is not None:
            with closing(book_of(self.folder)) as book:
                book.require_reserved(self.open)
            self.released[self.open] = list(SPENT[: max(number, len(self.released[self.open]))])
        elif kind == "end" and self.open is not None:
            end_run(self.folder, self.open, self.released[self.open])
            self.open = None
        elif kind == "backup":
            file = self.folder.parent / f"{len(self.backups)}.tar"
            back_up_node(self.folder, file)
            self.backups.append((file, set(self.released)))
        elif kind == "restore" and self.backups:
            self.restore(*self.backups[-1 - number % len(self.backups)])

    def restore(self, file: Path, known: set[bytes]) -> None:
        lose(self.folder)
        restore_node(file, self.folder)
        # What the owner does not know yet cannot be used: nothing leaves before they have said what is missing.
        with closing(NodeStore(self.folder / "state")) as store:
            assert store.run_ids() == []
        with pytest.raises(PolicyRefusal) as refused:
            begin_run(self.folder, b"\xff" * 32)
        assert refused.value.code == "budget-restored"
        with closing(book_of(self.folder)) as book:
            for run_id in self.released:
                # Whatever the backup knew of it, no run is taken up again that something may have left in.
                with pytest.raises(PolicyRefusal):
                    book.require_reserved(run_id)
            since = [self.scoped(run_id) for run_id in self.released if run_id not in known]
            epsilon = compose_epsilon([event for events in since for event in events], DELTA)
            book.charge_lost("wards", "record", epsilon * 1.0001, DELTA)
        self.open = None

    def scoped(self, run_id: bytes) -> list[Event]:
        return list(scope_events(self.released[run_id], run_id.hex()))

    def require_charged(self) -> None:
        truth = [event for run_id in self.released for event in self.scoped(run_id)]
        with closing(book_of(self.folder)) as book:
            charged = book.spent("wards", DELTA)
        assert charged >= compose_epsilon(truth, DELTA) * (1 - 1e-9)


@settings(max_examples=18, deadline=None)
@given(STEPS)
def test_a_restored_site_is_charged_for_all_that_left_it_and_resumes_no_run(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """Whenever it was backed up, and however often it is lost, its book never says less than the peers have seen."""
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as place:
        site = Site(Path(place) / "wards-north")
        for kind, number in steps:
            site.step(kind, number)
            site.require_charged()


def test_a_run_that_was_open_in_the_backup_is_charged_whole(tmp_path: Path) -> None:
    """Nobody knows what left the node after the backup, and the run is not taken up from it."""
    folder = furnish_site(tmp_path / "wards-north")
    begin_run(folder, bytes(32))
    back_up_node(folder, tmp_path / "b.tar")
    lose(folder)
    restore_node(tmp_path / "b.tar", folder)
    with closing(book_of(folder)) as book:
        (line,) = book.lines("wards")
        assert line.status == "closed" and len(line.events) == len(SPENT)
        book.charge_lost("wards", "record", 0, DELTA)
        assert book.find_block() == ""
        with pytest.raises(PolicyRefusal) as refused:
            book.require_reserved(bytes(32))
    assert refused.value.code == "run-closed"


def test_a_site_without_a_book_in_its_backup_waits_for_its_owner_too(tmp_path: Path) -> None:
    """A backup from before the first run must not begin the account anew."""
    folder = furnish_site(tmp_path / "wards-north")
    back_up_node(folder, tmp_path / "b.tar")
    begin_run(folder, bytes(32))
    lose(folder)
    restore_node(tmp_path / "b.tar", folder)
    with pytest.raises(PolicyRefusal) as refused:
        begin_run(folder, b"\1" * 32)
    assert refused.value.code == "budget-restored"


def test_a_book_that_has_outlived_the_folder_is_kept(tmp_path: Path) -> None:
    """It knows more than the backup, which replaces it neither by itself nor by an option; an older one is refused."""
    folder = furnish_site(tmp_path / "wards-north")
    for number in range(2):
        begin_run(folder, bytes([number] * 32))
        end_run(folder, bytes([number] * 32), SPENT)
        back_up_node(folder, tmp_path / f"{number}.tar")
    shutil.rmtree(folder)
    with pytest.raises(UsageError) as refused:
        restore_node(tmp_path / "0.tar", folder)
    assert refused.value.code == "backup-exists" and not folder.exists()
    restore_node(tmp_path / "0.tar", folder, keeps_book=True)
    with closing(book_of(folder)) as book:
        assert len(book.lines()) == 2 and book.find_block() == ""
    # The book of the first backup, in the place of the newest.
    lose(folder)
    restore_node(tmp_path / "0.tar", folder)
    shutil.rmtree(folder)
    with pytest.raises(PolicyRefusal) as refused:
        restore_node(tmp_path / "1.tar", folder, keeps_book=True)
    assert refused.value.code == "budget-lost" and not folder.exists()


def test_the_commands_restore_a_site_whose_models_may_be_evaluated(tmp_path: Path) -> None:
    """Keys, policy, models and invitation are what they were, private, and the ledger takes what the owner says."""
    folder = furnish_site(tmp_path / "wards-north")
    train_model(PLAN).save(folder / "model-0123456789ab.json")
    begin_run(folder, bytes(32))
    end_run(folder, bytes(32), SPENT[:1])
    file = tmp_path / "b.tar"
    assert main(["node", "backup", str(folder), str(file)]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["node", "backup", str(folder), str(file)]) == 2
    back_up_node(folder, tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == file.read_bytes()
    before, invitation = files_of(folder), (tmp_path / "north.invitation").read_bytes()
    lose(folder)
    assert main(["node", "restore", str(file), str(folder)]) == 0
    after = files_of(folder)
    kept = {name for name in before if (rule := find_rule(backup.SITE_FILES, name)) is not None and rule.is_kept}
    assert {name: after.get(name) for name in kept - {"enrolment.db"}} == {
        name: before[name] for name in kept - {"enrolment.db"}
    }
    assert (tmp_path / "north.invitation").read_bytes() == invitation
    for path in folder.rglob("*"):
        assert not path.stat().st_mode & 0o077, path
    with closing(NodeStore(folder / "state")) as store:
        assert len(store.models()) == 1
    assert main(["ledger", str(folder), "--lost", "0.5"]) == 0
    begin_run(folder, b"\1" * 32)


# A study -----------------------------------------------------------------------------------------------------------


def furnish_study(folder: Path) -> Path:
    """Return a study with a finished run that was evaluated, and one that is open."""
    folder.mkdir(mode=0o700)
    create_identity(folder, "coordinator", Role.COORDINATOR)
    StudyBook.create(folder, {"name": "wards", "listen": "127.0.0.1:0", "address": "127.0.0.1:1"}).close()
    (folder / "plan.toml").write_text("plan", encoding="ascii")
    for number in (1, 2):
        place = folder / f"run-{number}"
        place.mkdir(mode=0o700)
        for name in ("plan.toml", "model.json.journal", "model.json.journal-wal", "model.json.journal.1"):
            (place / name).write_text(name, encoding="ascii")
    (folder / "run-1" / "model.json").write_text("{}", encoding="ascii")
    (folder / "run-1" / "model.json.evaluation-4.journal").write_text("", encoding="ascii")
    (folder / "notes.txt").write_text("mine", encoding="ascii")
    return folder


def test_a_restored_study_resumes_no_run_and_adds_to_no_older_account(tmp_path: Path) -> None:
    """No journal comes back, a run without a model is over, and a model is evaluated once its account was looked at."""
    folder = furnish_study(tmp_path / "wards")
    assert main(["study", "backup", str(tmp_path / "b.tar"), "--study", str(folder)]) == 0
    with pytest.raises(UsageError) as refused:
        restore_study(tmp_path / "b.tar", folder)
    assert refused.value.code == "backup-exists"
    before = files_of(folder)
    shutil.rmtree(folder)
    assert main(["study", "restore", str(tmp_path / "b.tar"), str(folder)]) == 0
    after = files_of(folder)
    assert not [name for name in after if "journal" in name or name == "notes.txt"]
    assert after["coordinator.private.json"] == before["coordinator.private.json"]
    assert newest_run(folder) == (2, True)
    (folder / "roster.toml").write_text("", encoding="ascii")
    with pytest.raises(UsageError) as refused:
        evaluate_study(StudyOptions(folder=folder), 0.1, "", (), lambda *_: None)
    assert refused.value.code == "model-restored"
    (folder / "roster.toml").unlink()
    back_up_study(folder, tmp_path / "again.tar")
    shutil.rmtree(folder)
    restore_study(tmp_path / "again.tar", folder)
    assert (folder / "run-1" / RESTORED).is_file() and newest_run(folder) == (2, True)


# What is refused ---------------------------------------------------------------------------------------------------


def link(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def plain(name: str) -> tarfile.TarInfo:
    return link(name, tarfile.REGTYPE)


HOSTILE = {
    "a link": [link("folder/plan.toml", tarfile.SYMTYPE, "/etc/passwd")],
    "a hard link": [link("folder/plan.toml", tarfile.LNKTYPE, "folder/roster.toml")],
    "a folder": [link("folder/run-1", tarfile.DIRTYPE)],
    "a pipe": [link("folder/plan.toml", tarfile.FIFOTYPE)],
    "a device": [link("folder/plan.toml", tarfile.CHRTYPE)],
    "an absolute name": [plain("/folder/plan.toml")],
    "a way out": [plain("folder/../plan.toml")],
    "a way out by a pattern": [plain("folder/survey-1/..")],
    "a way out beside": [plain("beside/../north.invitation")],
    "a name of nothing": [plain("folder/survey-1/")],
    "a journal": [plain("folder/run-1/model.json.journal")],
    "a state": [plain("folder/state/node.db")],
    "a counter": [plain("folder/state/counter.json")],
    "another file": [plain("folder/notes.txt")],
    "a place of its own": [plain("elsewhere/plan.toml")],
    "one twice": [plain("folder/plan.toml"), plain("folder/plan.toml")],
}


@pytest.mark.parametrize("kind", ["study", "site"])
@pytest.mark.parametrize("what", HOSTILE)
def test_an_archive_with_anything_else_in_it_is_refused(what: str, kind: str, tmp_path: Path) -> None:
    """Whoever has written it, restoring makes the table's files in one folder, and no other."""
    members = HOSTILE[what]
    names = {member.name: b"" for member in members}
    packed = io.BytesIO(backup._pack(kind, names))
    with tarfile.open(fileobj=packed) as archive:
        head = archive.getmembers()[0]
        content = archive.extractfile(head)
        assert content is not None
        text = content.read()
    file = tmp_path / "b.tar"
    with tarfile.open(file, "w") as archive:
        archive.addfile(head, io.BytesIO(text))
        for member in members:
            archive.addfile(member, io.BytesIO())
    restore: Callable[[Path, Path], None] = restore_study if kind == "study" else restore_node
    with pytest.raises(UsageError) as refused:
        restore(file, tmp_path / "out" / "wards")
    assert refused.value.code == "backup-file"
    assert files_of(tmp_path).keys() == {"b.tar"}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_an_archive_that_was_changed_or_cut_off_is_refused_or_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """No byte of a key, a policy or a book comes back as another one."""
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as place:
        folder = furnish_study(Path(place) / "wards")
        file = Path(place) / "b.tar"
        back_up_study(folder, file)
        before, whole = files_of(folder), file.read_bytes()
        shutil.rmtree(folder)
        at = data.draw(st.integers(0, len(whole) - 1))
        is_cut = data.draw(st.booleans())
        file.write_bytes(whole[:at] if is_cut else whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        try:
            restore_study(file, folder)
        except UsageError as refused:
            assert refused.code == "backup-file" and not folder.exists()
        else:
            same = files_of(folder)
            assert {name: content for name, content in same.items() if name in before and name != "study.db"} == {
                name: before[name] for name in before if name in same and name != "study.db"
            }


def test_a_backup_is_restored_by_the_command_of_its_kind(tmp_path: Path) -> None:
    """A study's keys do not become a site's, and what is no archive at all is refused by the same word."""
    back_up_study(furnish_study(tmp_path / "wards"), tmp_path / "study.tar")
    (tmp_path / "text.tar").write_text("nothing", encoding="ascii")
    for name in ("study.tar", "text.tar"):
        with pytest.raises(UsageError) as refused:
            restore_node(tmp_path / name, tmp_path / "other")
        assert refused.value.code == "backup-file"
    with pytest.raises(UsageError) as refused:
        restore_study(tmp_path / "absent.tar", tmp_path / "other")
    assert refused.value.code == "backup-not-found"


def test_the_page_lists_every_file_as_the_table_has_it() -> None:
    """An operator who backs up by other means reads there what a command would have refused."""
    page = (Path(__file__).parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")
    section = page.partition("\n### Backup\n")[2].partition("\n### ")[0]
    rows = [row.split(" | ") for row in section.splitlines() if row.startswith("| ")]
    listed = {(name, row[1].startswith("yes")) for row in rows for name in row[0].split("`")[1::2]}
    rules = (*backup.STUDY_FILES, *backup.SITE_FILES, *backup.STATE_FILES, *backup.BESIDE_FILES)
    wanted = {(rule.pattern, rule.is_kept) for rule in rules if not rule.pattern.endswith((".db-*", ".part"))}
    assert {one for one in wanted if not one[0].startswith("state/")} <= listed
