# SPDX-License-Identifier: Apache-2.0
"""Backups of a study's folder and of a site's: `backup.toml` says which files may come back. Restoring marks accounts.

A backup takes files that cannot be made again and whose older copies do no harm. It leaves out the records of used
one-time keys and noise: an older copy of these would use them a second time.

An account from a backup lacks the releases since then. So a restored budget book closes the runs that were reserved in
it, and no node takes part before its owner has charged for the rest (`BudgetBook.mark_restored`). A model that comes
out of a backup is evaluated again only once somebody has looked for a newer copy of it. A run without a model is over.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import tarfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

from hedgerow import study
from hedgerow.app.inputs import ROSTER
from hedgerow.app.output import note, warn
from hedgerow.errors import HedgerowError, PolicyRefusal, UsageError
from hedgerow.storage import copy_database
from hedgerow.transport.identities import PRIVATE_SUFFIX, PublicIdentity, Role, read_private, read_roster

# The table ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileRule:
    """The rule of backups for files of one name.

    Attributes:
        pattern: the path below the folder; ``*`` stands for any letters but a slash, ``**`` for any at all.
        is_kept: whether it is in the backup, and may be restored.
    """

    pattern: str
    is_kept: bool

    def fits(self, path: str) -> bool:
        """Return whether the rule covers the file of this path below its folder."""
        parts = re.split(r"(\*\*|\*)", self.pattern)
        letters = {"**": ".*", "*": "[^/]*"}
        return re.fullmatch("".join(letters.get(part) or re.escape(part) for part in parts), path) is not None


_TABLE: Mapping[str, Sequence[tuple[str, str]]] = tomllib.loads(
    resources.files("hedgerow.app").joinpath("backup.toml").read_text(encoding="utf-8")
)


def _read_rules(name: str, folder: str = "") -> tuple[FileRule, ...]:
    return tuple(FileRule(folder + pattern, word == "kept") for word, pattern in _TABLE[name])


STUDY_FILES = _read_rules("study")
"""The folder of a study's coordinator."""
STATE_FILES = _read_rules("state")
"""A node's state folder (`--state`)."""
SITE_FILES = (*_read_rules("site"), *_read_rules("state", "state/"))
"""A site's folder, or a monitor's, of a study (STUDY-PARTY)."""
BESIDE_FILES = _read_rules("beside")
"""Beside a site's folder."""


def find_rule(rules: Sequence[FileRule], path: str) -> FileRule | None:
    """Return the rule about a file, the first that fits; None for a file that is not Hedgerow's."""
    return next((rule for rule in rules if rule.fits(path)), None)


def list_strange(folder: Path, rules: Sequence[FileRule]) -> list[str]:
    """Return the files of a folder that no rule is about, by their paths below it."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return [name for name in names if find_rule(rules, name) is None]


# The archive ----------------------------------------------------------------------------------------------------------
# A tar file without compression. Its first member lists the others with their hashes, in this order.

_HEAD = "hedgerow-backup.json"
_FORMAT, _VERSION = "hedgerow-backup", 1
_FOLDER, _BESIDE = "folder", "beside"
_RULES: Mapping[str, Mapping[str, Sequence[FileRule]]] = {
    "study": {_FOLDER: STUDY_FILES},
    "site": {_FOLDER: SITE_FILES, _BESIDE: BESIDE_FILES},
    "node": {_BESIDE: BESIDE_FILES},
}
"""Rules for the two places of each kind of backup."""
MAX_BACKUP_BYTES = 2 << 30
"""Largest size of an archive that is read."""


def _pack(kind: str, members: Mapping[str, bytes]) -> bytes:
    """Return the archive's bytes, which follow from the content of its members alone."""
    digests = {name: sha256(content).hexdigest() for name, content in sorted(members.items())}
    head = {"format": _FORMAT, "version": _VERSION, "kind": kind, "files": digests}
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in [(_HEAD, json.dumps(head, indent=1).encode()), *sorted(members.items())]:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            archive.addfile(member, io.BytesIO(content))
    return found.getvalue()


def _unpack(path: Path, kinds: Sequence[str]) -> tuple[str, dict[str, bytes]]:
    """Return the kind of a backup and its members.

    Raises UsageError "backup-file" for an archive of another kind, and for one with anything that no backup contains:
    other files, links, folders, or names that lead elsewhere.
    """

    def refuse(why: str) -> UsageError:
        return UsageError("backup-file", path=path, why=why)

    members = dict[str, bytes]()
    try:
        if path.stat().st_size > MAX_BACKUP_BYTES:
            raise refuse(f"it has more than {MAX_BACKUP_BYTES >> 30} GiB")
        with tarfile.open(path, mode="r:") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isreg() and not member.issparse() else None
                if stream is None:
                    raise refuse(f"{member.name!r} is no plain file")
                if member.name in members:
                    raise refuse(f"it has {member.name!r} twice")
                members[member.name] = stream.read()
        head = json.loads(members.pop(_HEAD, b"{}"))
        kind, files = head["kind"], dict(head["files"])
        if (head["format"], head["version"]) != (_FORMAT, _VERSION):
            raise refuse("another program, or a newer Hedgerow, has made it")
    except FileNotFoundError:
        raise UsageError("not-found", code="backup-not-found", path=path, wanted="a backup") from None
    except (tarfile.TarError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise refuse("it is no backup, or was cut off") from None
    if kind not in kinds:
        raise refuse(f"it is a backup of a {kind if kind in _RULES else 'thing that Hedgerow does not know'}")
    if files != {name: sha256(content).hexdigest() for name, content in members.items()}:
        raise refuse("its files are not those that it lists")
    for name in members:
        place, _, below = name.partition("/")
        rule = find_rule(_RULES[kind].get(place, ()), below)
        # A rule's name may have any letters: no name leads out of the folder.
        if rule is None or not rule.is_kept or not all(re.fullmatch(r"[^\0\\]+", part) for part in below.split("/")):
            raise refuse(f"{name!r} may not be restored")
        if {".", ".."} & set(below.split("/")) or (place == _BESIDE and "/" in below):
            raise refuse(f"{name!r} may not be restored")
    return kind, members


def _read_kept(folder: Path, rules: Sequence[FileRule]) -> dict[str, bytes]:
    """Return what a backup has of a folder, by the path below it, and tell which files are in no table."""
    found = dict[str, bytes]()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        rule = None if path.is_dir() or path.is_symlink() else find_rule(rules, name)
        if rule is not None and rule.is_kept:
            found[name] = copy_database(path) if name.endswith(".db") else path.read_bytes()
    if strange := list_strange(folder, rules):
        note(f"Left out, for they are no files of Hedgerow's: {', '.join(strange)}.")
    return found


def _write(file: Path, kind: str, members: Mapping[str, bytes]) -> None:
    from hedgerow.models.model import write_atomically

    if file.exists() or file.is_symlink():
        raise UsageError("exists", code="backup-exists", path=file)
    write_atomically(file, _pack(kind, members), mode=0o600)
    note(f"{file} holds {len(members)} files, private keys among them: keep it as secret as these.")


def _require_room(*places: Path) -> None:
    """Raise UsageError "backup-exists" where something stands already: a restored file replaces none."""
    for place in places:
        if place.exists() or place.is_symlink():
            raise UsageError("exists", code="backup-exists", path=place)


@contextmanager
def _draft_of(folder: Path) -> Iterator[Path]:
    """Give an empty folder beside the one to be made, which is gone afterwards unless it was renamed."""
    draft = folder.with_name(f".{folder.name}.restored")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700, parents=True)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_members(draft: Path, members: Mapping[str, bytes], place: str) -> None:
    for name, content in members.items():
        if name.startswith(f"{place}/"):
            path = draft / name.partition("/")[2]
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(path, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())


# A study ------------------------------------------------------------------------------------------------------------


def back_up_study(folder: Path, file: Path) -> None:
    """Write a backup of a study's folder; the coordinator may work in it meanwhile.

    Raises UsageError "backup-exists" where the file is there.
    """
    if not (folder / "study.db").is_file():
        raise UsageError("study-folder", folder=folder)
    members = _read_kept(folder, STUDY_FILES)
    _write(file, "study", {f"{_FOLDER}/{name}": content for name, content in members.items()})


RESTORED = "restored"
"""Mark in a run's folder: its model came out of a backup, so later evaluations may not be on its account."""


def restore_study(file: Path, folder: Path) -> None:
    """Make a study's folder out of a backup.

    No run in it goes on: one without a model is ended. Parties that were not confirmed need new invitations.

    Raises UsageError "backup-file", and "backup-exists" where the folder is there.
    """
    _, members = _unpack(file, ("study",))
    _require_room(folder)
    with _draft_of(folder) as draft:
        _write_members(draft, members, _FOLDER)
        with closing(study.StudyBook(draft)) as book:
            voided = book.void_open_invitations()
        for run in sorted(draft.glob("run-*")):
            mark = run / (RESTORED if (run / "model.json").is_file() else "ended")
            mark.touch(mode=0o600)
        roster = read_roster(draft / ROSTER) if (draft / ROSTER).is_file() else None
        draft.rename(folder)
    note(f"{folder} is restored. No run in it goes on; the next one is `hedgerow study run`.")
    if roster is not None:
        note(
            f"Its roster is edition {roster.edition}, {roster.fingerprint()}: ask a site whether it has a newer one. "
            "Parties that were taken out since are trusted by this one."
        )
    if voided:
        note(f"Not confirmed, and to be invited again: {', '.join(voided)}.")


# A site -------------------------------------------------------------------------------------------------------------


def _find_party(folder: Path) -> tuple[str, Role]:
    """Return the name and the role of the party whose folder of a study this is."""
    private = sorted(folder.glob(f"*{PRIVATE_SUFFIX}"))
    if len(private) != 1:
        raise UsageError("node-folder", folder=folder)
    public = read_private(private[0]).public
    return public.name, public.role


def back_up_node(folder: Path, file: Path) -> None:
    """Write a backup of a party's folder of a study, with the invitation and budget book beside it.

    Of a state folder (`--state`) it backs up the budget book alone. The node may run meanwhile.

    Raises UsageError: "node-folder"; "budget-not-found" where the book is not where the node had it; "backup-exists".
    """
    from hedgerow.client.budget import find_book
    from hedgerow.client.state import node_folder

    members = dict[str, bytes]()
    is_party = (folder / "enrolment.db").is_file()
    if is_party:
        name, role = _find_party(folder)
        if not (folder / ROSTER).is_file():
            raise UsageError("not-enrolled", name=name)
        hub = read_roster(folder / ROSTER).coordinator
        members |= {f"{_FOLDER}/{path}": content for path, content in _read_kept(folder, SITE_FILES).items()}
        for path in sorted(folder.absolute().parent.glob(f"*{study.SUFFIX}")):
            if _parties_of(path) == (name, hub):
                members[f"{_BESIDE}/{name}{study.SUFFIX}"] = path.read_bytes()
        if f"{_BESIDE}/{name}{study.SUFFIX}" not in members:
            note("The invitation does not lie beside the folder: keep a copy, `hedgerow join` is started with it.")
        state, book_name, is_site = folder / "state", f"{name}-budget.db", role is Role.SITE
    else:
        state, book_name, is_site = node_folder(folder), "node-budget.db", True
    if is_site and (state / "budget.path").is_file():
        book = find_book(state)
        if not book.is_file():
            wanted = "the book that the node of this folder had"
            raise UsageError("not-found", code="budget-not-found", path=book, wanted=wanted)
        members[f"{_BESIDE}/{book_name}"] = copy_database(book)
    _write(file, "site" if is_party else "node", members)


def _parties_of(invitation: Path) -> tuple[str, PublicIdentity] | None:
    """Return who is invited by whom; None for a file that is no invitation."""
    try:
        found = study.read_invitation(invitation)
    except (HedgerowError, OSError):
        return None
    return found.party, found.coordinator


def restore_node(file: Path, folder: Path, budget: Path | None = None, *, keeps_book: bool = False) -> None:
    """Make a site's folder out of a backup, with a budget book that waits for its owner.

    Args:
        budget: where the budget book goes (beside the folder).
        keeps_book: keep the book that is there, which has outlived the folder, in place of the backup's.

    Raises:
        UsageError: code "backup-file"; "backup-exists" where the folder, the book or the invitation is there.
        PolicyRefusal: code "budget-lost" where the book that is there lacks runs that the backup has.
    """
    from hedgerow.client.budget import BudgetBook, note_book
    from hedgerow.client.state import NodeStore

    kind, members = _unpack(file, ("site", "node"))
    folder = folder.absolute()
    _require_room(folder)
    beside = {name.partition("/")[2]: content for name, content in members.items() if name.startswith(f"{_BESIDE}/")}
    with _draft_of(folder) as draft:
        _write_members(draft, members, _FOLDER)
        party, role = _find_party(draft) if kind == "site" else ("", Role.SITE)
        state = draft / "state" if kind == "site" else draft
        book_name = next((name for name in beside if not name.endswith(study.SUFFIX)), f"{party}-budget.db")
        place = (budget or folder.parent / book_name).absolute()
        invitations = {name: content for name, content in beside.items() if name.endswith(study.SUFFIX)}
        missing = {
            name: content
            for name, content in invitations.items()
            if not (folder.parent / name).is_file() or (folder.parent / name).read_bytes() != content
        }
        _require_room(*(folder.parent / name for name in missing))
        if role is Role.SITE:
            state.mkdir(mode=0o700, exist_ok=True)
            made = draft / ".book" / place.name
            made.parent.mkdir(mode=0o700)
            if book_name in beside:
                made.touch(mode=0o600)
                made.write_bytes(beside[book_name])
            with closing(BudgetBook(made)) as book:
                book.mark_restored()
                if keeps_book:
                    _require_newer(place, book)
            if not keeps_book:
                _require_room(place)
            note_book(state, place)
            with closing(NodeStore(state)) as store:
                if party:
                    store.note_site(party)
                for digest in _list_models(draft):
                    store.keep_model(digest)
            if not keeps_book:
                # Unlike a renaming it replaces nothing that has come meanwhile.
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.link(made, place)
            shutil.rmtree(made.parent)
        _write_members(folder.parent, {f"{_BESIDE}/{name}": content for name, content in missing.items()}, _BESIDE)
        draft.rename(folder)
    note(f"{folder} is restored. No run goes on from it: a run that is open goes on without this site's earlier part.")
    if role is Role.SITE and not keeps_book:
        warn(
            f"The budget book {place} came out of the backup. The node takes part in nothing before you have charged "
            f"for the runs since, 0 if there were none: hedgerow ledger {folder} --lost EPSILON"
        )


def _require_newer(place: Path, restored: Any) -> None:
    """Raise as `restore_node` where the book that is there lacks a run of the backup's."""
    from hedgerow.client.budget import BudgetBook

    if not place.is_file():
        raise UsageError("not-found", code="budget-not-found", path=place, wanted="the book that is to be kept")
    with closing(BudgetBook(place)) as book:
        known = {(line.run_id, line.site) for line in book.lines()}
        if not known.issuperset((line.run_id, line.site) for line in restored.lines()):
            raise PolicyRefusal("budget-lost")


def _list_models(folder: Path) -> list[bytes]:
    """Return the digests of the models in a restored folder, so that its node lets them be evaluated."""
    from hedgerow.methods.tasks import digest_model
    from hedgerow.models.model import Model

    found = []
    for path in sorted(folder.glob("model-*.json")):
        try:
            found.append(digest_model(Model.load(path).ensemble))
        except HedgerowError as fault:
            warn(f"{path.name} cannot be read, so this node lets no one evaluate it: {fault.what}")
    return found
