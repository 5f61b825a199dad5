"""The two files that Flower's operators write: `site.toml` beside a SuperNode, `coordinator.toml` beside the SuperLink.

Paths in them are relative to the file's own folder. Neither file travels, and nothing that travels can name others.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from hedgerow.protocol.errors import PlanError, UsageError
from hedgerow.protocol.plan_fields import checked, integer, read_section, text

FILE_VERSION = 1
_PATHS = {"data", "identity", "roster", "policy", "plan", "state", "budget", "out", "journal"}


@dataclass(frozen=True, kw_only=True)
class SiteFile:
    """What the owner of a site writes down for its node.

    Attributes:
        data: a .csv, .csv.gz or .parquet file, or a database's URL with `query`.
        identity, roster, policy: as for `hedgerow node`.
        plan: the only plan to take part in, or "".
        state: the node's own folder, made with mode 0700.
        budget: the budget book's file; "" for NAME-budget.db beside the policy.
        threads: threads to sum with; 0 for all.
    """

    version: int = checked(integer(1, FILE_VERSION))
    data: str = checked(text)
    identity: str = checked(text)
    roster: str = checked(text)
    policy: str = checked(text)
    state: str = checked(text)
    query: str = checked(text, "")
    plan: str = checked(text, "")
    budget: str = checked(text, "")
    threads: int = checked(integer(0, 4096), 0)


@dataclass(frozen=True, kw_only=True)
class CoordinatorFile:
    """What the coordinator's operator writes down for its runs.

    Attributes:
        plan, roster, identity: as for `hedgerow coordinator`.
        out: the model file to write.
        journal: where the run is journalled; "" for OUT.journal.
        monitor: HOST:PORT where the roster's monitors may watch; "" for nowhere.
        repeat: seconds before a request without a reply is sent again.
        seed: draws the noise from a seed, for experiments only; -1 for the operating system's generator.
    """

    version: int = checked(integer(1, FILE_VERSION))
    plan: str = checked(text)
    roster: str = checked(text)
    identity: str = checked(text)
    out: str = checked(text)
    journal: str = checked(text, "")
    monitor: str = checked(text, "")
    repeat: int = checked(integer(1, 3600), 30)
    seed: int = checked(integer(-1, 1 << 62), -1)


File = TypeVar("File", SiteFile, CoordinatorFile)


def read_site_file(path: Path) -> SiteFile:
    """The file of a site; raises UsageError."""
    return _read(SiteFile, path, "site")


def read_coordinator_file(path: Path) -> CoordinatorFile:
    """The file of a coordinator; raises UsageError."""
    return _read(CoordinatorFile, path, "coordinator")


def _read(kind: type[File], path: Path, name: str) -> File:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        found = read_section(kind, content, name)
    except OSError as fault:
        raise _wrong(f"{path}: {fault.strerror or fault}.", "The path may be misspelled.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise _wrong(f"{path} is not TOML: {fault}.", "It was edited, or is another file.") from None
    except PlanError as fault:
        raise _wrong(f"{path}: {fault.what}", fault.cause) from None
    absolute: dict[str, Any] = {
        field.name: str(path.parent.resolve() / getattr(found, field.name))
        for field in fields(found)
        if field.name in _PATHS and getattr(found, field.name) and "://" not in getattr(found, field.name)
    }
    return replace(found, **absolute)


def _wrong(what: str, cause: str) -> UsageError:
    return UsageError(
        what, cause=cause, remedy="docs/flower.md has a file to begin with, and says what it holds.", code="flower-file"
    )
