"""What the two documents of deployment tell an operator is what the code does: the policy is read, code words exist."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hedgerow.app.life import EXIT_CODES
from hedgerow.cli.commands import build_parser
from hedgerow.client.policy import parse_policy
from hedgerow.evaluation.sums import ScoreHistogram
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import parse_plan
from hedgerow.transport.connections import STRANGERS
from hedgerow.transport.grpc_hub import MONITOR_CONNECTIONS, SITE_CONNECTIONS
from hedgerow.transport.identities import MAX_SITES

ROOT = Path(__file__).parents[2]
DOCUMENT = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("operate.md", "deploy.md"))
UNITS = {
    name: (ROOT / "deploy" / f"hedgerow-{name}.service").read_text(encoding="utf-8") for name in ("node", "coordinator")
}
DROP_INS = {
    name: (ROOT / "deploy" / f"hedgerow-{name}.conf").read_text(encoding="utf-8")
    for name in ("node.join", "coordinator.serve")
}
OWN = {"Description", "EnvironmentFile", "Environment", "ExecStart", "StateDirectory", "CacheDirectory",
       "RestartPreventExitStatus", "LimitNOFILE"}  # fmt: skip
"""What a unit has for itself; all the rest protects the machine and the party, and is the same for both."""


def commands_of(text: str) -> list[list[str]]:
    """Every `hedgerow ...` command in the document's shell blocks and the units, split into words."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    blocks += [
        start
        for unit in (*UNITS.values(), *DROP_INS.values())
        for start in re.findall(r"^ExecStart=.*?[^\\]$", unit, re.M | re.S)
    ]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [re.search(r"(?:^|/bin/|localhost/)hedgerow (?=[a-z]+ )(.*?)(?: > \S+)?$", line) for line in lines]
    return [shlex.split(match[1]) for match in found if match]


def test_the_policy_to_begin_with_is_one() -> None:
    """The example is copied to start from, so it must be read, also with the lines that are commented out."""
    (text,) = [block for block in re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL) if "max_epsilon" in block]
    assert parse_policy(text).min_sites == 3
    everything = parse_policy(re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE))
    assert everything.ask == "always" and everything.query_kinds and everything.site_figures


def test_the_policy_to_begin_with_accepts_the_plan_to_begin_with() -> None:
    """An operator who follows the document is not refused by its own policy, nor by the sites' noise of its surveys."""
    blocks = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    (plan,) = [block for block in blocks if "[model]" in block]
    (policy,) = [block for block in blocks if "max_epsilon" in block]
    for noise in ("server", "distributed"):
        parse_policy(policy).check_plan(parse_plan(plan.replace('noise = "distributed"', f'noise = "{noise}"')))
    task = TrainingTask(parse_plan(plan))
    (kinds,) = [set(json.loads(line)) for line in re.findall(r"^# query_kinds = (\[.*\])", policy, re.MULTILINE)]
    asked = set(task.schedule.kinds)
    assert kinds == asked | {ScoreHistogram.__name__}
    strict = parse_policy(re.sub(r"^# (?=query_kinds = )", "", policy, flags=re.MULTILINE))
    assert set(strict.query_kinds) == kinds


@pytest.mark.parametrize(
    ("said", "flwr", "code"),
    [("ERROR :     ServerApp raised an exception", 0, 1), ("refused", 3, 1), ("1 round released", 0, 0)],
)
def test_a_run_over_flower_that_fails_shows_no_other_runs_score(
    tmp_path: Path, said: str, flwr: int, code: int
) -> None:
    """`flwr run` ends with 0 even so, and ./out may hold a model that docker-compose.yml made."""
    script = (ROOT / "deploy" / "flower" / "run").read_text(encoding="utf-8")
    programs = {
        "run": script.replace("/opt/hedgerow/bin/", "./"),
        "flwr": f"#!/bin/sh\n[ $1 != run ] || {{ echo '{said}'; exit {flwr}; }}\n",
        "hedgerow": "#!/bin/sh\necho AUC\n",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "registered").touch()
    path = {"PATH": f".:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "run"], cwd=tmp_path, env=path, capture_output=True, text=True, check=False)
    assert (done.returncode, "AUC" in done.stdout) == (code, code == 0)
    assert said in done.stdout


@pytest.mark.parametrize("words", commands_of(DOCUMENT), ids=" ".join)
def test_every_command_is_one_that_hedgerow_knows(words: list[str]) -> None:
    """A command with an option that does not exist would fail on the operator's machine."""
    assert build_parser().parse_args(words).function is not None


def test_what_the_check_of_a_study_types_is_in_the_document() -> None:
    """deploy/study-check takes its commands from the page; it needs containers, so few would notice one that went."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    lines = [" ".join(line.split()) for line in "\n".join(re.findall(r"```sh\n(.*?)```", page, re.S))
             .replace("\\\n", " ").splitlines()]  # fmt: skip
    asked = 0
    for call in ast.walk(ast.parse((ROOT / "deploy" / "study-check").read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id.startswith("printed"):
            words = [word.value for word in call.args if isinstance(word, ast.Constant)]
            if call.func.id == "printed_inline":
                assert f"`{words[0]}`" in " ".join(page.split()), words
            elif words:
                assert [all(word in line for word in words) for line in lines].count(True) == 1, words
            asked += 1
    assert asked > 10


def shared_settings(unit: str) -> list[str]:
    """The lines of a unit that are not its own, continued ones as one."""
    lines = [line for line in unit.replace("\\\n", " ").splitlines() if line and line[0] not in "#["]
    return [line for line in lines if line.partition("=")[0] not in OWN]


def test_the_coordinators_unit_protects_as_the_nodes_does() -> None:
    """A line that is added to one of them would be missing from the other."""
    node, coordinator = map(shared_settings, UNITS.values())
    assert node == coordinator and len(node) > 30


@pytest.mark.parametrize("name", DROP_INS)
def test_a_drop_in_works_where_its_unit_may_write_and_the_page_says_so(name: str) -> None:
    """It replaces the unit's command alone, in the unit's own folder, and the page installs it under its own name."""
    unit, role = UNITS[name.partition(".")[0]], name.partition(".")[2]
    (folder,) = re.findall(r"^StateDirectory=(\S+)$", unit, re.M)
    lines = [line for line in DROP_INS[name].replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    section, place, reset, command = lines
    assert (section, place, reset) == ("[Service]", f"WorkingDirectory=/var/lib/{folder}", "ExecStart=")
    words = shlex.split(command.removeprefix("ExecStart="))
    written = [word for word in words if word.startswith("/var/")]
    assert written and all(word.startswith(f"/var/lib/{folder}/") for word in written)
    given = re.findall(r"\$\{(\w+)\}", command)
    environment = re.findall(r"^# (.*)$", unit, re.M)
    known = {word for line in environment for word in re.findall(r"\b[A-Z]{3,}\b", line)} | {"STUDY"}
    assert given and set(given) <= known
    file = f"hedgerow-{name.partition('.')[0]}.service.d/{role}.conf"
    assert f'"$CHECKOUT/deploy/hedgerow-{name}.conf" /etc/systemd/system/{file}' in DOCUMENT
    assert file in DROP_INS[name]


def test_the_page_has_the_exit_code_of_every_state() -> None:
    """Who alarms on them reads the numbers there, and the overview of exit codes leads to it."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    listed = {name: int(code) for code, name in re.findall(r"^\| (\d\d) \| `([a-z-]+)`: ", page, re.M)}
    assert listed == EXIT_CODES and list(listed) == list(EXIT_CODES)
    errors = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert f"| {min(EXIT_CODES.values())} to {max(EXIT_CODES.values())} |" in errors


def test_the_coordinators_files_are_enough_for_the_largest_roster() -> None:
    """Under systemd and in a container it starts with as many sites as a roster may have, and strangers beside them."""
    (by_unit,) = re.findall(r"^LimitNOFILE=(\d+)$", UNITS["coordinator"], re.M)
    ((soft, hard),) = re.findall(r"--ulimit nofile=(\d+):(\d+)", DOCUMENT)
    assert by_unit == soft == hard
    assert int(hard) >= MAX_SITES * SITE_CONNECTIONS + 100 * MONITOR_CONNECTIONS + STRANGERS + 512
    assert str(hard) in DOCUMENT.split("### File descriptors")[1].split("###")[0]


@pytest.mark.parametrize("lock", sorted((ROOT / "deploy" / "locks").glob("*.txt")), ids=lambda path: path.stem)
def test_an_image_installs_only_what_is_locked(lock: Path) -> None:
    """Every file that comes into an image is known by its hash, fits pyproject.toml, and is from no host by name."""
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text and "--index-url" not in text
    pattern = r"^([A-Za-z0-9._-]+)==(\S+)(?: ;[^\\\n]*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
    entries = re.findall(pattern, text, re.M)
    rest = [line for line in text.splitlines() if line and not line.startswith(("#", "    --hash="))]
    assert len(entries) == len(rest) and all(hashes for _, _, hashes in entries)
    versions: dict[str, set[str]] = {}
    for name, version, _ in entries:
        versions.setdefault(canonicalize_name(name), set()).add(version)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    extras = lock.stem.split("-")
    for extra in extras:
        wanted += project["project"]["optional-dependencies"][extra]
    for requirement in map(Requirement, wanted):
        if requirement.name == project["project"]["name"]:
            assert requirement.extras <= set(extras), "the image's own list names the extras of its extras"
            continue
        found = versions[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in found), requirement


def test_both_images_have_their_lock() -> None:
    """The sets of extras that the compositions build with are locked; the build fails without."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    flower = (ROOT / "deploy" / "flower-compose.yml").read_text(encoding="utf-8")
    sets = [*re.findall(r'^ARG EXTRAS="(.*)"$', dockerfile, re.M), *re.findall(r"^ *EXTRAS: (.*)$", flower, re.M)]
    assert len(sets) == 2
    # Nothing can be installed in an image that runs: every table is read, whatever database it is in.
    assert all({"duckdb", "postgresql", "sql"} <= set(extras.split()) for extras in sets)
    assert all((ROOT / "deploy" / "locks" / f"{extras.replace(' ', '-')}.txt").is_file() for extras in sets)
    assert "--require-hashes" in dockerfile and dockerfile.count("pip install") == 2
    assert re.findall(r"^FROM (\S+)", dockerfile, re.M) == ["${BASE_IMAGE}", "${BASE_IMAGE}"]


def test_a_composition_begins_again_where_its_volumes_are_gone(tmp_path: Path) -> None:
    """`down --volumes` takes the journal along and leaves ./out: the next `up` has to end with a model as well, and the
    older ones stay under numbers of their own."""
    out, data, tools = tmp_path / "out", tmp_path / "data", tmp_path / "bin"
    for folder in (out, data, tools):
        folder.mkdir()
    fake = tools / "hedgerow"
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = coordinator ] || exit 0\n[ ! -e {out}/model.json ] || exit 2\n'
        f"cp count {out}/model.json; cp count run.journal\n"
    )
    fake.chmod(0o755)
    text = (ROOT / "deploy" / "compose" / "coordinate").read_text(encoding="utf-8")
    script = text.replace("/out/", f"{out}/").replace("/tmp/report.txt", f"{tmp_path}/report.txt")
    for number in range(1, 5):
        (data / "count").write_text(f"{number}")
        if number == 3:
            for journal in data.glob("*.journal"):
                journal.unlink()
        environment = {"PATH": f"{tools}{os.pathsep}{os.defpath}"}
        subprocess.run(["sh", "-c", script], cwd=data, env=environment, check=True)
    kept = {path.name: path.read_text() for path in out.glob("model*")}
    assert kept == {"model-1.json": "1", "model-2.json": "2", "model-3.json": "3", "model.json": "4"}
    assert {path.name for path in data.glob("*.journal")} == {"run-3.journal", "run.journal"}
