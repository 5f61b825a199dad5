"""Another user of the machine may write to a site's state or budget book: it is refused, not believed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from hedgerow.cli.main import main
from hedgerow.client.budget import BudgetBook
from hedgerow.client.state import NodeStore
from hedgerow.errors import EnvironmentFault
from hedgerow.server.journal import Journal

OPENERS: dict[str, Callable[[Path], object]] = {
    "state": lambda folder: NodeStore(folder / "state"),
    "book": lambda folder: BudgetBook(folder / "budget.db"),
    "journal": lambda folder: Journal(folder / "run.journal"),
}
FILES = {"state": "state/node.db", "book": "budget.db", "journal": "run.journal"}


def opened(kind: str, folder: Path) -> None:
    """Open it and close it again."""
    OPENERS[kind](folder).close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "mode", "name"),
    [(kind, mode, FILES[kind]) for kind in OPENERS for mode in (0o640, 0o604, 0o666, 0o602)]
    + [("state", mode, "state") for mode in (0o755, 0o770, 0o701)],
)
def test_a_file_or_folder_that_others_may_use_is_refused(tmp_path: Path, kind: str, mode: int, name: str) -> None:
    """Whoever may write to it may take back what the data have cost; the remedy that is printed works."""
    opened(kind, tmp_path)
    path = tmp_path / name
    assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    path.chmod(mode)
    with pytest.raises(EnvironmentFault) as refused:
        opened(kind, tmp_path)
    assert refused.value.code == "state-permissions" and str(path) in refused.value.what
    assert os.system(refused.value.remedy.split(": ")[1]) == 0
    opened(kind, tmp_path)


@pytest.mark.parametrize("kind", OPENERS)
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner could write to it at any time, whatever its mode; root is no exception."""
    opened(kind, tmp_path)
    for user in (os.geteuid() + 1, 0 if os.geteuid() else 10001):
        with monkeypatch.context() as patched:
            patched.setattr(os, "geteuid", lambda user=user: user)
            with pytest.raises(EnvironmentFault) as refused:
                opened(kind, tmp_path)
        assert refused.value.code == "state-owner" and f"chown {user} " in refused.value.remedy
    opened(kind, tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_log_that_another_user_left_beside_the_book_is_refused(tmp_path: Path) -> None:
    """SQLite would carry out what it says, in the name of the book."""
    opened("book", tmp_path)
    beside = tmp_path / "budget.db-wal"
    beside.touch(mode=0o600)
    os.chown(beside, 12345, 12345)
    with pytest.raises(EnvironmentFault) as refused:
        opened("book", tmp_path)
    assert refused.value.code == "state-owner" and str(beside) in refused.value.what


def test_the_account_of_an_open_book_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An owner who asks what was spent is told first that somebody else may have changed the answer."""
    opened("book", tmp_path)
    (tmp_path / "budget.db").chmod(0o664)
    assert main(["ledger", str(tmp_path / "budget.db")]) == 10
    assert "state-permissions" in capsys.readouterr().err
