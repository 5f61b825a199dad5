"""What commands are given: plans, sites, places to write to; each checked before any work starts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from hedgerow.errors import EnvironmentFault, PlanError, UsageError
from hedgerow.plan.plan import Plan, parse_plan

DEFAULT_MODEL = "model.json"
_ENDINGS = (".csv.gz", ".csv", ".parquet", ".pq")


def read_plan(path: str) -> Plan:
    """The plan in a TOML file.

    Raises:
        PlanError: the file is not there, is no text, or the plan is wrong.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise PlanError(
            f"{path}: there is no such file.",
            cause="The path may be misspelled, or relative to another folder.",
            remedy="Give the path of a plan, or draft one with `hedgerow plan init`.",
            code="plan-not-found",
        ) from None
    except UnicodeDecodeError:
        raise PlanError(
            f"{path}: the plan is not UTF-8 text.",
            cause="It was saved in another encoding, or is no plan at all.",
            remedy="Save it as UTF-8.",
            code="plan-encoding",
        ) from None
    return parse_plan(text)


def named_sites(arguments: Sequence[str]) -> dict[str, Path]:
    """Each site's file by its name, from `[NAME=]FILE` arguments.

    Raises:
        UsageError: two sites have the same name.
    """
    sites: dict[str, Path] = {}
    for argument in arguments:
        name, path = _site(argument)
        if name in sites:
            raise UsageError(
                f"--site {argument}: there already is a site called {name!r}.",
                cause="Without a name of its own, a site is called by its file's name.",
                remedy="Name it: --site NAME=FILE.",
                code="duplicate-site",
            )
        sites[name] = path
    return sites


def _site(argument: str) -> tuple[str, Path]:
    name, equals, path = argument.partition("=")
    if equals and name and os.sep not in name and path and not Path(argument).exists():
        return name, Path(path)
    file = Path(argument)
    ending = next((ending for ending in _ENDINGS if file.name.lower().endswith(ending)), "")
    return file.name[: len(file.name) - len(ending)] or file.name, file


def check_can_write(path: str) -> Path:
    """The path, if a file can be written there: known before training, for training again would cost privacy again.

    Raises:
        UsageError: the path is a folder, or its folder does not exist.
        EnvironmentFault: its folder may not be written to.
    """
    file = Path(path)
    if file.is_dir():
        raise UsageError(f"{path} is a folder.", remedy="Give the name of a file in it.", code="out-is-folder")
    if not file.parent.is_dir():
        raise UsageError(
            f"{file.parent}: there is no such folder.",
            remedy=f"Make it first: mkdir -p {file.parent}",
            code="out-folder-missing",
        )
    if not os.access(file.parent, os.W_OK):
        raise EnvironmentFault(
            f"{file.parent}: this user may not write there.", remedy="Choose another folder.", code="file-not-written"
        )
    return file


def new_model(path: str | None) -> Path:
    """Where a trained model goes: as told, else model.json here; a model must not be there yet.

    Raises:
        UsageError, EnvironmentFault: as `check_can_write` and `require_room`.
    """
    # Not at the top: commands without a model need no numpy.
    from hedgerow.models.model import require_room

    out = check_can_write(path or DEFAULT_MODEL)
    require_room(out)
    return out


def listed(names: Iterable[str], most: int = 12) -> str:
    """Names for a person, the first few of many."""
    every = list(names)
    rest = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + rest
