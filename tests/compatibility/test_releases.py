"""What earlier releases wrote is read by this one, and a change of the wire has a number of its own."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hedgerow import __version__
from hedgerow.client.budget import BudgetBook, compose_epsilon, list_costs
from hedgerow.client.policy import parse_policy
from hedgerow.client.state import NodeStore
from hedgerow.codec import VERSION, layout
from hedgerow.errors import EnvironmentFault
from hedgerow.local.accounts import Account, BookStore, RunFacts
from hedgerow.methods.tasks import digest_model
from hedgerow.models.model import Model
from hedgerow.plan.plan import parse_plan
from hedgerow.privacy.events import GaussianEvent
from hedgerow.secagg.messages import SIGNED_HEADER_BYTES
from hedgerow.server.journal import Journal
from hedgerow.study import read_invitation
from hedgerow.transport.identities import read_private, read_roster
from tests.builders import LABELS, digest_of
from tests.compatibility.files import HERE, book_facts, open_study, scores_of, store_facts
from tests.wire_document import HASHES, KEYS, ROOMS, kinds_of


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


RELEASES = sorted((path.name for path in HERE.iterdir() if path.name[0].isdigit()), key=_numbers)[-2:]
WIRES = {4: ("0.1.0", "6e203d046fd8840b1ea27ff7"), 6: ("0.2.0", "72e7a4cc424d9cb967d2d73d")}
"""By the number of the wire: the first release that speaks it, and what its declarations come to. An entry changes only
as long as its release is being made; then a change of the bytes is another number, and another release.
"""


COMMITS = ("commit-2223dc60",)
"""Folders of files that a commit between two releases wrote, in places where people work with it."""


@pytest.fixture(params=[*RELEASES, *COMMITS])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A copy of a release's files, as their owner has them, and what they must still say."""
    folder = tmp_path / request.param
    shutil.copytree(HERE / request.param, folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return folder, json.loads((folder / "facts.json").read_text())


def test_models_and_plans_say_what_they_said(files: tuple[Path, dict[str, Any]]) -> None:
    """A model of an earlier release predicts the same, and a plan is the same plan, for its digest is in policies."""
    folder, facts = files
    assert set(facts["models"]) <= set(LABELS)
    for label, said in facts["models"].items():
        model = Model.load(folder / f"model-{label}.json")
        assert parse_plan((folder / f"plan-{label}.toml").read_text()).digest == said["plan"] == model.plan.digest
        assert scores_of(model) == pytest.approx(said["scores"], rel=1e-12)
        assert model.report.epsilon == said["epsilon"]
        assert digest_model(model.ensemble).hex() == said["model"]


def test_studies_go_on(files: tuple[Path, dict[str, Any]]) -> None:
    """An invitation that was sent, the keys, the roster and the coordinator's book of a study are those that were
    compared over the phone.
    """
    folder, facts = files
    said = facts["study"]
    assert read_invitation(folder / "north.invitation").digest().hex() == said["invitation"]
    assert read_private(folder / "study" / "coordinator.private.json").public.fingerprint() == said["key"]
    assert read_roster(folder / "roster.toml").fingerprint() == said["roster"]
    book, found = open_study(folder / "study")
    book.close()
    assert found == {name: said[name] for name in found}


def test_what_the_data_have_cost_is_kept(files: tuple[Path, dict[str, Any]]) -> None:
    """The policy, the budget book, and a state whose runs are over are carried over by themselves."""
    folder, facts = files
    plan = parse_plan((folder / "plan-binary.toml").read_text())
    policy = parse_policy((folder / "policy.toml").read_text())
    policy.check_plan(plan)
    assert policy.plans == (plan.digest,)
    with closing(BudgetBook(folder / "north-budget.db")) as book:
        book.serve("north", "state")
        found = book_facts(book, plan)
        assert found.pop("spent") == pytest.approx(facts["book"].pop("spent"), rel=1e-9)
        assert found == facts["book"]
        kept = {key.hex(): [header.hex() for header in headers] for key, headers in book.peers.headers(b"").items()}
        # A wire before kept one of each.
        assert kept == {key: [said] if isinstance(said, str) else said for key, said in facts.get("peers", {}).items()}
    with closing(NodeStore(folder / "state")) as store:
        assert store_facts(store) == facts["store"]
        assert store.load() is None


@pytest.mark.parametrize("status", ["open", "joining"])
@pytest.mark.parametrize(("release", "version"), [("0.1.0", 804), ("commit-2223dc60", 905)])
def test_a_run_that_goes_on_is_finished_by_the_release_that_began_it(
    tmp_path: Path, release: str, version: int, status: str
) -> None:
    """Its steps are in messages of that wire: the state is refused as it is, and the older release can go on."""
    shutil.copytree(HERE / release / "state", tmp_path / "state")
    for path in (tmp_path / "state").iterdir():
        path.chmod(0o600)
    (tmp_path / "state").chmod(0o700)
    with closing(sqlite3.connect(tmp_path / "state" / "node.db")) as database:
        database.execute("update run set status = ? where status = 'left'", (status,))
        database.commit()
    before = (tmp_path / "state" / "node.db").read_bytes()
    with pytest.raises(EnvironmentFault) as refused:
        NodeStore(tmp_path / "state")
    assert refused.value.code == "database-version"
    with closing(sqlite3.connect(tmp_path / "state" / "node.db")) as database:
        assert database.execute("pragma user_version").fetchall() == [(version,)]
        assert database.execute("select count(*) from run where status = ?", (status,)).fetchall() == [(1,)]
    assert (tmp_path / "state" / "node.db").stat().st_size == len(before)


def _declared() -> Iterator[list[Any]]:
    """Every message and stored state, the form of each of its fields, and what is hashed and derived beside them."""
    for room in ROOMS:
        for record in room.records:
            fields = [[name, str(form)] for name, form in layout(record)]
            yield [record.__name__, [int(kind) for kind in kinds_of(record)], fields]
    yield [HASHES, KEYS, SIGNED_HEADER_BYTES]


def test_a_change_of_the_wire_has_another_number() -> None:
    """Parties of two wires part by name; of one number and unlike bytes they would part in the midst of a run.

    Where this fails and the change is meant: raise `codec.VERSION` and the release's version, add them to `WIRES`, and
    run ``python -m experiments compatibility_files``.
    """
    release, digest = WIRES[VERSION]
    assert digest_of(list(_declared())) == digest
    assert _numbers(release) <= _numbers(__version__)
    firsts = [_numbers(first) for first, _ in WIRES.values()]
    assert firsts == sorted(set(firsts)) and list(WIRES) == sorted(WIRES)


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_speaks_one_wire(name: str) -> None:
    """The files of a release say which wire it spoke, so that a number is not given to another one later."""
    facts = json.loads((HERE / name / "facts.json").read_text())
    spoken = [wire for wire, (first, _) in WIRES.items() if _numbers(first) <= _numbers(name)]
    assert facts["release"] == name and facts["wire"] == max(spoken)


def test_this_release_has_its_files() -> None:
    """``python -m experiments compatibility_files`` was run for it: later releases are held to them."""
    assert __version__ in RELEASES


def test_runs_of_commands_and_nodes_share_an_earlier_book(files: tuple[Path, dict[str, Any]]) -> None:
    """A book that nodes of an earlier release wrote takes runs of commands, and no charge of either is lost."""
    folder, _ = files
    path = folder / "north-budget.db"
    with closing(BudgetBook(path)) as book:
        before = book.lines("wards")
    # Typed again, with another dash or a final stop, it is the account that the nodes charge.
    with Account([BookStore(path)], "WARDS.").open_run(RunFacts("a command"), [GaussianEvent(4.0)]) as run:
        run.charge(GaussianEvent(4.0))
    with closing(BudgetBook(path)) as book:
        lines = book.lines("wards")
        assert lines[: len(before)] == before and lines[-1].events == (GaussianEvent(4.0),)
        assert book.spent("wards", 1e-6) == compose_epsilon(list_costs(lines), 1e-6)


@pytest.mark.parametrize("commit", COMMITS)
def test_a_journal_of_another_wire_is_refused_as_it_is(tmp_path: Path, commit: str) -> None:
    """Its epochs are in messages that were signed in that wire; the release that wrote it still reads the run there."""
    path = tmp_path / "run.journal"
    shutil.copy(HERE / commit / "run.journal", path)
    path.chmod(0o600)

    def releases() -> list[Any]:
        with closing(sqlite3.connect(path)) as database:
            found = database.execute("select round, entry from releases order by round").fetchall()
            return [database.execute("pragma user_version").fetchone(), *found]

    before = releases()
    facts = json.loads((HERE / commit / "facts-journal.json").read_text())
    assert [json.loads(entry) for _, entry in before[1:]] == facts["releases"]
    with pytest.raises(EnvironmentFault) as refused:
        Journal(path)
    assert refused.value.code == "database-version"
    assert releases() == before

