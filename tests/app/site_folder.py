"""A site's folder of a study as `hedgerow join` leaves it, and runs of its node, without a network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from hedgerow.client.budget import FINISHED, BudgetBook, note_book
from hedgerow.client.state import NodeStore
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.toml import plan_toml
from hedgerow.privacy.events import Event
from hedgerow.study import Notebook, StudyInvitation, new_secret, write_private
from hedgerow.transport.identities import Role, build_roster, create_identity, new_identity
from tests.builders import make_plan

PLAN = make_plan()
SPENT = tuple(TrainingTask(PLAN).schedule.events)
"""What a whole run costs."""
LIMIT = (50.0, 1e-5)
POLICY = f'version = 1\ndata_set = "wards"\nmax_epsilon = {LIMIT[0]}\ndelta = {LIMIT[1]}\n'


def furnish_site(folder: Path) -> Path:
    """Return the folder of the site north, which has joined and was never in a run; its invitation lies beside it."""
    folder.mkdir(mode=0o700, parents=True)
    identity, _, _ = create_identity(folder, "north", Role.SITE)
    others = [new_identity(name, Role.SITE, os.urandom(32)).public for name in ("south", "west")]
    hub = new_identity("coordinator", Role.COORDINATOR, os.urandom(32)).public
    roster = build_roster(hub, [identity.public, *others])
    texts = {"plan.toml": plan_toml(PLAN), "policy.toml": POLICY, "roster.toml": roster.to_toml()}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    invitation = StudyInvitation(
        "wards", "north", Role.SITE, hub, "127.0.0.1:7443", texts["plan.toml"], "max_epsilon = 3", new_secret()
    )
    write_private(folder.parent / "north.invitation", invitation.to_text())
    with closing(Notebook(folder / "enrolment.db")) as notes:
        notes.keep(invitation=invitation.digest(), settled=b"1")
    return folder


def book_of(folder: Path) -> BudgetBook:
    """Return the open book of a site's node, served for it."""
    book = BudgetBook(folder.parent / "north-budget.db")
    book.serve("north", folder / "state")
    return book


def begin_run(folder: Path, run_id: bytes) -> None:
    """Reserve a run and open it, as a node does that takes it up; raises as the book."""
    state = folder / "state"
    with closing(NodeStore(state)) as store, closing(book_of(folder)) as book:
        note_book(state, folder.parent / "north-budget.db")
        book.require_runs(store.run_ids())
        book.reserve(run_id, "wards", PLAN, SPENT, LIMIT)
        store.open_run(run_id, TrainingTask(PLAN), b"rows")


def end_run(folder: Path, run_id: bytes, used: Sequence[Event]) -> None:
    """Settle a run at what it has used."""
    with closing(NodeStore(folder / "state")) as store, closing(book_of(folder)) as book:
        book.settle(run_id, (used, {}), FINISHED)
        store.close_run(run_id, FINISHED)
