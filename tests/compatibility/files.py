"""One file of each kind that later releases have to read, in a folder of the release that wrote them.

``python -m experiments compatibility_files``, when a release is made, writes tests/compatibility/VERSION.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow import __version__
from hedgerow.cli.main import main as hedgerow
from hedgerow.client.budget import FINISHED, LEFT, BudgetBook
from hedgerow.client.state import NodeStore, Question
from hedgerow.codec import VERSION
from hedgerow.data.binned import SiteData
from hedgerow.local.training import train
from hedgerow.methods.tasks import TrainingTask, digest_model
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.plan.toml import plan_toml
from hedgerow.privacy.noise import SeededNoise
from hedgerow.study import Applicant, Notebook, Reception, StudyBook, WordInputs, read_invitation
from hedgerow.transport.identities import Role, new_identity, read_private
from tests.builders import LABELS, make_data, make_plan

HERE = Path(__file__).parent
COLUMNS: dict[str, Any] = {
    "age": [0, 1, 2, 3, 4, None],
    "income": [10.0, 2e3, 3e4, None, 5e5, 1e6],
    "region": ["north", "south", "west", "north", None, "west"],
    "change": [-1.0, -0.5, 0.0, 0.5, 1.0, None],
}
SITES = ("north", "south", "west")


def columns() -> dict[str, Any]:
    """The rows that the models are asked about."""
    return {
        name: np.array(values, dtype=object) if name == "region" else np.array(values, dtype=float)
        for name, values in COLUMNS.items()
    }


def scores_of(model: Model) -> list[float]:
    """What a model says of these rows."""
    return [float(score) for score in np.asarray(model.decision_scores(columns())).ravel()]


def open_study(folder: Path) -> tuple[StudyBook, Mapping[str, str]]:
    """A study's book, and the facts of it that must stay as they were."""
    book = StudyBook(folder)
    roster = book.roster
    assert roster is not None
    guests = {guest.name: (guest.is_confirmed, guest.max_rows) for guest in book.guests()}
    return book, {"roster": roster.fingerprint(), "words": book.roster_words, "guests": json.dumps(guests)}


def book_facts(book: BudgetBook, plan: Plan) -> dict[str, Any]:
    """What a budget book says, as its owner is told it."""
    return {
        "spent": book.spent("wards", 1e-6),
        "lines": [[line.run_id, line.site, line.status, line.plan_digest, line.unit] for line in book.lines()],
        "invitations": [[line.plan_digest, line.answer, line.count] for line in book.invitations()],
        "draws": len(book.draws(plan.digest)),
    }


def store_facts(store: NodeStore) -> dict[str, Any]:
    """What a node's state says of its runs, which are over."""
    question = store.desk.pending()
    return {
        "runs": {run_id.hex(): store.find_status(run_id) for run_id in store.run_ids()},
        "models": sorted(digest.hex() for digest in store.models()),
        "sites": sorted(store.sites()),
        "masked": {run_id.hex(): store.has_masked(run_id) for run_id in store.run_ids()},
        "question": None if question is None else question.id,
    }


def _write_models(folder: Path) -> dict[str, Any]:
    facts = {}
    for label in LABELS:
        plan = make_plan(label)
        (folder / f"plan-{label}.toml").write_text(plan_toml(plan), encoding="utf-8")
        rows: SiteData = make_data(plan, 100, 3)
        sites = {"north": rows.only(np.arange(50)), "south": rows.only(np.arange(50, 100))}
        model = train(plan, sites, noise=SeededNoise(4))
        model.save(folder / f"model-{label}.json")
        facts[label] = {
            "plan": plan.digest, "scores": scores_of(model), "epsilon": model.report.epsilon,
            "model": digest_model(model.ensemble).hex(),
        }  # fmt: skip
    return facts


def _write_study(folder: Path) -> dict[str, Any]:
    """Identities, an invitation, and a study whose sites are all in its roster."""
    here = os.getcwd()
    os.chdir(folder)
    try:
        for command in (
            ["study", "new", "study", "--plan", "plan-binary.toml", "--listen", "127.0.0.1:7443"],
            ["study", "invite", *SITES, "--study", "study"],
        ):
            assert hedgerow(command) == 0
    finally:
        os.chdir(here)
    coordinator = read_private(folder / "study" / "coordinator.private.json")
    invitations = {site: read_invitation(folder / "study" / f"{site}.invitation") for site in SITES}
    with closing(StudyBook(folder / "study")) as book:
        reception = Reception(coordinator.public, book, os.urandom)
        ends, notebooks = {}, {site: Notebook(folder / f"{site}.db") for site in SITES}
        for number, (site, invitation) in enumerate(invitations.items()):
            identity = new_identity(site, Role.SITE, os.urandom(32))
            of = WordInputs(invitation.digest(), invitation.secret, invitation.coordinator, identity.public)
            end = ends[site] = Applicant(of, identity, notebooks[site], os.urandom, 1000 * number)
            opening = end.opening(reception.answer(end.knock().to_bytes()).to_bytes())
            reception.answer(opening.to_bytes())
            book.confirm(site, end.words, coordinator.public)
        book.close_roster(coordinator.public)
        for _ in range(3):
            for end in ends.values():
                end.take(reception.answer(end.asking().to_bytes()).to_bytes())
        for site, notes in notebooks.items():
            notes.close()
            (folder / f"{site}.db").unlink()
        roster = book.roster
        assert roster is not None
        (folder / "roster.toml").write_text(roster.to_toml(), encoding="utf-8")
    shutil.move(folder / "study" / "north.invitation", folder / "north.invitation")
    for name in [path for path in (folder / "study").iterdir() if path.suffix == ".invitation"]:
        name.unlink()
    book, facts = open_study(folder / "study")
    book.close()
    return {**facts, "invitation": invitations["north"].digest().hex(), "key": coordinator.public.fingerprint()}


def _write_node(folder: Path, plan: Plan, model: str) -> dict[str, Any]:
    """A policy, a budget book and a node's state, whose runs are over."""
    (folder / "policy.toml").write_text(
        'version = 1\ndata_set = "wards"\nmax_epsilon = 3.0\ndelta = 1e-6\nmin_sites = 3\nunit = "record"\n'
        f'plans = ["{plan.digest}"]\nnoise = ["distributed", "server"]\nask = "always"\n', encoding="utf-8",
    )  # fmt: skip
    task, runs = TrainingTask(plan), [bytes([number]) * 32 for number in (1, 2)]
    events = task.schedule.events
    with closing(NodeStore(folder / "state")) as store, closing(BudgetBook(folder / "north-budget.db")) as book:
        store.note_site("north")
        book.serve("north", "state")
        for run_id, status, used in ((runs[0], FINISHED, events), (runs[1], LEFT, events[:1])):
            store.note_joining(run_id, task, bytes(32))
            book.reserve(run_id, "wards", plan, events, (9.0, 1e-6))
            store.open_run(run_id, task, bytes(32))
            store.close_run(run_id, status)
            book.settle(run_id, (used, {}), status)
        store.keep_model(bytes.fromhex(model))
        book.note_invitation(("training", plan.digest, plan.name, 2.0), "accepted")
        book.note_draw(plan.digest, runs[0], 1)
        book.require_group("data wards", bytes(32))
        headers = {bytes(32): bytes(range(256)) + bytes(11)}
        book.peers.keep(b"", runs[0], headers)
        cost = (2.0, 1e-5, "wards", 2.0, 3.0, 1e-6, "distributed")
        store.desk.ask(Question(runs[1].hex(), "training", "test", plan.digest, plan.digest, *cost))
        peers = {key.hex(): [header.hex()] for key, header in headers.items()}
        return {"book": book_facts(book, plan), "store": store_facts(store), "peers": peers}


def write(folder: Path) -> None:
    """Write the files of the release that is installed."""
    folder.mkdir(parents=True)
    models = _write_models(folder)
    study = _write_study(folder)
    node = _write_node(folder, make_plan("binary"), models["binary"]["model"])
    facts = {"release": __version__, "wire": VERSION, "models": models, "study": study, **node}
    (folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="ascii")


def main(argv: list[str]) -> int:
    """Write tests/compatibility/VERSION for the installed release, in place of what was there."""
    folder = HERE / __version__
    shutil.rmtree(folder, ignore_errors=True)
    write(folder)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
