"""No dependency may be so old that an advisory about it is known."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "deploy" / "advisories"


def requirements() -> list[Requirement]:
    """All that anything of the project asks for, but for its own extras."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = [*content["project"]["dependencies"], *content["build-system"]["requires"]]
    lines += [line for extra in content["project"]["optional-dependencies"].values() for line in extra]
    return [of for of in map(Requirement, lines) if of.name != content["project"]["name"]]


def oldest(requirement: Requirement) -> Version:
    """The oldest version that it allows."""
    (found,) = [Version(one.version) for one in requirement.specifier if one.operator in (">=", "==")]
    return found


def test_every_oldest_version_is_asked_about_and_was_raised_where_an_advisory_is_known() -> None:
    """A dependency without a floor is as old as its first release; the document's table is what is in force."""
    asked = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True).stdout.splitlines()
    for requirement in requirements():
        assert f"{requirement.name.lower()}=={oldest(requirement)}" in asked
    document = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").split("## Oldest versions")[1]
    raised = dict(re.findall(r"^\| `([\w.-]+)` \| ([\d.]+) \|", document, re.M))
    assert len(raised) >= 7
    for requirement in requirements():
        if requirement.name in raised:
            assert oldest(requirement) >= Version(raised.pop(requirement.name, "0")), requirement
    assert not raised


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"vulns": []}, 0),
        ({"vulns": [{"id": "GHSA-x", "fix_versions": ["9"]}]}, 1),
        ({"skip_reason": "Dependency not found"}, 75),
        (None, 75),
    ],
)
def test_what_is_not_known_is_not_said_to_be_fine(
    tmp_path: Path, answer: dict[str, object] | None, status: int
) -> None:
    """Where nothing can be asked, pip-audit finds nothing and says that all is well; the check tells that apart."""
    dependencies = None if answer is None else [{"name": "numpy", "version": "1", **answer}]
    said = "no network" if dependencies is None else json.dumps({"dependencies": dependencies})
    fake = tmp_path / "pip-audit"
    fake.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
    fake.chmod(0o700)
    assert subprocess.run([sys.executable, SCRIPT, str(fake)], capture_output=True).returncode == status


def test_locks_hold_no_version_older_than_the_oldest() -> None:
    """An image installs what is locked: a floor that was raised for an advisory raises the locks too."""
    floors = {canonicalize_name(of.name): oldest(of) for of in requirements()}
    for lock in (ROOT / "deploy" / "locks").glob("*.txt"):
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", lock.read_text(encoding="utf-8"), re.M):
            assert Version(version) >= floors.get(canonicalize_name(name), Version("0")), (lock.name, name)
