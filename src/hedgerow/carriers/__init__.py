# SPDX-License-Identifier: Apache-2.0
"""Runs over carriers that need no trust: Flower, NVFlare, files. See docs/flower.md, docs/nvflare.md, docs/airlock.md.

One version is on every machine: coordinator and node compare it before anything else. Here stand the two files that
operators write: `site.toml` at a site, `coordinator.toml` at the coordinator. Paths in them are relative to the file's
own folder. Neither file travels, and nothing that travels can name a site's; the coordinator's is named by whoever
submits the job.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from hedgerow.app.options import CoordinatorOptions, NodeOptions
from hedgerow.errors import PlanError, UsageError
from hedgerow.plan.fields import integer, read_section, read_toml
from hedgerow.plugins import load_agreed
from hedgerow.transport.identities import read_own

FILE_VERSION = 1
File = TypeVar("File", NodeOptions, CoordinatorOptions)


def read_site_file(path: Path) -> NodeOptions:
    """Read a site's file; raise UsageError."""
    found = _read(NodeOptions, path, "site")
    if found.data is None and found.held_out is None:
        raise UsageError("party-file", path=path, fault="both site.data and site.held_out are missing")
    return found


def read_coordinator_file(path: Path) -> CoordinatorOptions:
    """Read a coordinator's file and load the plug-ins named there; raise UsageError."""
    found = _read(CoordinatorOptions, path, "coordinator")
    load_agreed(found.plugins)
    fault = ""
    if bool(found.plan) == bool(found.model):
        fault = "it names both a plan and a model, or neither: coordinator.plan trains, coordinator.model is evaluated"
    elif found.plan and (not found.out or found.epsilon or found.delta or found.scores or found.noise or found.by):
        fault = "training needs coordinator.out; epsilon, delta, noise, by and scores are for an evaluation"
    elif bool(found.by_files) != bool(found.listen):
        fault = "coordinator.by_files and coordinator.listen go together: some sites by files, the others by gRPC"
    elif found.model and not found.epsilon:
        fault = "an evaluation needs coordinator.epsilon: what it may cost"
    if fault:
        raise UsageError("party-file", path=path, fault=fault)
    return found if found.out else replace(found, out=found.model)


def read_party_file(path: Path) -> NodeOptions | CoordinatorOptions:
    """Read a site's or a coordinator's file: only a site's has a policy. Raise UsageError."""
    try:
        is_site = "policy" in read_toml(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        is_site = False
    return read_site_file(path) if is_site else read_coordinator_file(path)


def _read(kind: type[File], path: Path, name: str) -> File:
    """Read a party's file and make its paths absolute; raise UsageError `party-file` for other files."""
    try:
        content = read_toml(read_own(path))
        integer(1, FILE_VERSION)(content.pop("version", None), f"{name}.version")
        found = read_section(kind, content, name)
    except OSError as fault:
        raise UsageError("party-file", path=path, fault=fault.strerror or fault) from None
    except PlanError as fault:
        raise UsageError("party-file", path=path, fault=f"{fault.what} {fault.cause}".strip(" .")) from None
    except ValueError as fault:
        raise UsageError("party-file", path=path, fault=f"no TOML, {fault}") from None
    here = path.parent.resolve()
    absolute: dict[str, Any] = {}
    for declared in fields(found):
        named = getattr(found, declared.name)
        if named and declared.metadata.get("is_path"):
            each = tuple(str(here / path) for path in named) if isinstance(named, tuple) else None
            absolute[declared.name] = each or (named if "://" in named else str(here / named))
    return replace(found, **absolute)
