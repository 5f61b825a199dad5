# SPDX-License-Identifier: Apache-2.0
"""Which build of Hedgerow this is: a version is kept by hand, and two builds of one version are not one program."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from hedgerow.version import __version__

_PACKAGE = Path(__file__).resolve().parent
_SHOWN = 12


@lru_cache(maxsize=1)
def describe_build() -> str:
    """Name the version, the first digits of a digest of the package's code, and the commit where it is known."""
    hasher = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        content = path.read_bytes()
        hasher.update(f"{path.relative_to(_PACKAGE).as_posix()} {len(content)}\n".encode() + content)
    commit = _find_commit()
    said = f", commit {commit[:_SHOWN]}" if commit else ""
    return f"Hedgerow {__version__}{said}, code {hasher.hexdigest()[:_SHOWN]}"


def _find_commit() -> str:
    """Return the commit that this was installed from, or that is checked out around it; empty where it is not known."""
    root = _PACKAGE.parent.parent
    try:
        if (root / ".git").exists() and (root / "src" / "hedgerow") == _PACKAGE:
            return _read_head(root / ".git")
        # PEP 610; absent where an index gave it.
        origin = json.loads(distribution("hedgerow").read_text("direct_url.json") or "{}")
        return str(origin.get("vcs_info", {}).get("commit_id", ""))
    except (OSError, ValueError, PackageNotFoundError):
        return ""


def _read_head(folder: Path) -> str:
    if folder.is_file():
        # A work tree beside its repository names the folder that has its HEAD.
        folder = (folder.parent / folder.read_text().partition("gitdir:")[2].strip()).resolve()
    head = (folder / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    shared, name = folder, head.removeprefix("ref: ")
    if (folder / "commondir").is_file():
        shared = (folder / (folder / "commondir").read_text().strip()).resolve()
    if (shared / name).is_file():
        return (shared / name).read_text().strip()
    packed = (line.split() for line in (shared / "packed-refs").read_text().splitlines())
    return next((parts[0] for parts in packed if parts[1:] == [name]), "")
