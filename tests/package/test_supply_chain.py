"""Who may publish a release runs nothing that is not named by a digest, and an image is built on one that is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSITIONS = [
    ROOT / "docker-compose.yml",
    *sorted((ROOT / "deploy").rglob("*compose*.yml")),
    ROOT / "deploy" / "more-sites.yml",
]
IMAGE = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")


def jobs_of(workflow: Path) -> dict[str, str]:
    """The text of each job, by its name."""
    _, _, text = workflow.read_text(encoding="utf-8").partition("\njobs:\n")
    parts = re.split(r"^  ([\w-]+):\n", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_action_is_named_by_its_commit() -> None:
    """A tag is whatever its owner, or who has broken in there, says today; the version beside it is for the reader."""
    lines = [line for path in WORKFLOWS for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    found = [
        re.fullmatch(r" *(?:- )?uses: ([\w.-]+/[\w./-]+)@([0-9a-f]{40})  # v\d+\.\d+\.\d+", line) for line in lines
    ]
    assert [line for line, match in zip(lines, found, strict=True) if match is None] == []
    pairs = {(match[1], match[2]) for match in found if match}
    assert len(pairs) == len({name for name, _ in pairs}) >= 9


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_job_that_may_write_installs_and_makes_nothing(workflow: Path) -> None:
    """What it runs itself is git alone: pages, wheels and tries are made where nothing can be published."""
    jobs = jobs_of(workflow)
    assert jobs and "permissions:\n  contents: read\n" in workflow.read_text(encoding="utf-8")
    writing = {name: text for name, text in jobs.items() if re.search(r"^ +[\w-]+: write$", text, re.M)}
    assert set(writing) == ({"publish", "image", "docs"} if workflow.name == "release.yml" else set())
    for name, text in writing.items():
        commands = re.findall(r"^ +(?:- )?run: (.*)$", text, re.M)
        assert all(command.startswith("git ") for command in commands), name


def test_what_a_release_installs_where_its_files_are_made_is_named_by_hashes() -> None:
    """Nothing unlocked runs before the wheel is handed over, nor does uv, with which it is tried."""
    jobs = jobs_of(ROOT / ".github" / "workflows" / "release.yml")
    for name in ("build", "try"):
        installs = re.findall(r"pip install (.*)$", jobs[name], re.M)
        assert all("--require-hashes -r " in line for line in installs), name
    assert "--build-only" in jobs["build"] and "make" not in jobs["build"]
    built, _, _ = (ROOT / "deploy" / "dist-check").read_text(encoding="utf-8").partition("--build-only ]]")
    assert [line for line in re.findall(r"pip\" install (.*)$", built, re.M) if "--require-hashes" not in line] == []
    lock = (ROOT / "deploy" / "release-tools.txt").read_text(encoding="utf-8")
    named = re.findall(r"^[\w.-]+==.*?\n(?=^\S|\Z)", lock, re.M | re.S)
    assert {"uv", "build", "twine", "setuptools"} <= {each.partition("==")[0] for each in named}
    assert all("--hash=sha256:" in each for each in named)


def test_every_image_is_named_by_its_digest() -> None:
    """The base of what is built, here and by every composition, and what builds it where a release is published."""
    (base,) = re.findall(r"^ARG BASE_IMAGE=(.*)$", DOCKERFILE, re.M)
    assert IMAGE.fullmatch(base)
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.M)) == {"${BASE_IMAGE}"}
    for path in COMPOSITIONS:
        text = path.read_text(encoding="utf-8")
        assert all(image.startswith("localhost/") for image in re.findall(r"^ *image: (.*)$", text, re.M)), path
        named = re.findall(r"BASE_IMAGE: \$\{BASE_IMAGE:-(.*)\}$", text, re.M)
        assert named == [base] * len(re.findall(r"^ *build:$", text, re.M)), path
    release = jobs_of(ROOT / ".github" / "workflows" / "release.yml")["image"]
    builders = re.findall(r"(?:driver-opts: image|sbom: generator)=(.*)$", release, re.M)
    assert len(builders) == 2 and all(IMAGE.fullmatch(image) for image in builders)
