"""No private number leaves a site: a federation with canaries, and a search of everything that was sent or written."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hedgerow.client.node import EvaluationNode, Node
from hedgerow.data.binned import SiteData
from hedgerow.methods.registry import resolve
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import Task, TrainingTask
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import IntVector
from tests.builders import NoNoise, make_data, make_plan, take

if TYPE_CHECKING:
    from conftest import Builder, Federation


def spellings(values: IntVector) -> Iterator[bytes]:
    """How a run of private integers could be written: in any common width and order, or as text."""
    for width in ("<i4", ">i4", "<i8", ">i8"):
        yield values.astype(width).tobytes()
    # As the run's own messages write releases: as few bytes as needed.
    for n_bytes in (3, 4, 5, 6):
        if np.abs(values).max() < 2 ** (8 * n_bytes - 1):
            yield values.astype(">i8").view(np.uint8).reshape(-1, 8)[:, 8 - n_bytes :].tobytes()
    for glue in (", ", ",", " "):
        yield glue.join(map(str, values)).encode()


def private_numbers(federation: Federation) -> dict[str, IntVector]:
    """Every site's exact vector, and the exact total, of every round: runs of three entries, none of them zero."""
    assert federation.session is not None
    plan, found = federation.plan, {}
    task: Task = TrainingTask(plan) if federation.evaluation is None else federation.evaluation.task
    nodes: dict[str, Node | EvaluationNode] = {
        site: Node(site, data, plan, resolve(plan))
        if isinstance(task, TrainingTask)
        else EvaluationNode(site, data, plan, 1, NoNoise(0), shows=lambda query: True)
        for site, data in rows_of(federation).items()
    }
    replica = Replica(task)
    for number, release in enumerate(federation.session.run.releases):
        query = replica.query
        assert query is not None
        vectors = {site: node.answer(query) for site, node in nodes.items()}
        vectors["total"] = np.sum(list(vectors.values()), axis=0)
        for name, vector in vectors.items():
            at = next(i for i in range(len(vector) - 2) if (np.abs(vector[i : i + 3]) > 1000).all())
            found[f"{name}, round {number}"] = vector[at : at + 3]
        found[f"control, round {number}"] = release[:3]
        replica.feed(release)
    return found


def rows_of(federation: Federation) -> dict[str, SiteData]:
    """What the last run was over."""
    return federation.data if federation.evaluation is None else federation.held_out


def outside(federation: Federation, outcome_bytes: bytes, log: str) -> dict[str, bytes]:
    """Everything that is not on a site's own disk."""
    files = {path.name: path.read_bytes() for path in federation.folder.glob("journal*.db*")}
    assert files
    messages = [message for _, message in (*federation.sent, *federation.received)]
    told = json.dumps([[e.kind, e.round, e.site, e.code] for e in federation.events])
    faults = repr([str(fault) for party in federation.parties.values() for fault in party.failures])
    return {
        **files,
        "messages": b"|".join(messages),
        "events": told.encode(),
        "model": outcome_bytes,
        "log": log.encode(),
        "faults": faults.encode(),
    }


Ran = tuple["Federation", dict[str, bytes]]


@pytest.fixture(params=["training", "evaluation of classes", "evaluation of numbers"])
def run_again(federate: Builder, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest) -> Callable[[], Ran]:
    """A federation of five sites of very different sizes, and what it sent and wrote; new keys and noise in each."""
    caplog.set_level(logging.DEBUG)
    names = map("run-{}".format, itertools.count())
    return lambda: _run(lambda n_sites, plan: federate(n_sites, plan, name=next(names)), caplog, request.param)


@pytest.fixture
def run(run_again: Callable[[], Ran]) -> Ran:
    return run_again()


def _run(federate: Callable[[int, Plan], Federation], caplog: pytest.LogCaptureFixture, what: str) -> Ran:
    label = "regression" if what.endswith("numbers") else "binary"
    plan = make_plan(label, privacy={"n_records": 20_000})
    federation = federate(5, plan)
    owner = np.searchsorted([7919, 7919 + 4801, 7919 + 4801 + 3607, 18_930], np.arange(20_000), side="right")
    for kept, seed in ((federation.data, 11), (federation.held_out, 12)):
        rows = make_data(plan, 20_000, seed)
        for number, site in enumerate(sorted(kept)):
            # Every site holds fewer rows out than it trains on, by a number of its own.
            kept[site] = take(rows, np.flatnonzero(owner == number)[seed - 11 :: 2 * (seed - 11) or 1])
    for site, own in federation.data.items():
        object.__setattr__(federation.parties[site].setup, "load", lambda _, own=own: own)
    outcome = federation.run()
    model = Model(plan, outcome.ensemble, outcome.ledger, outcome.report)
    told = model.to_bytes()
    if what != "training":
        for party in federation.parties.values():
            policy = dataclasses.replace(party.setup.policy, site_figures=True)
            party.setup = dataclasses.replace(party.setup, policy=policy)
        federation.prepare_evaluation(model, 1.0, by=("site",))
        outcome = federation.run()
        evaluation = outcome.evaluation.to_dict()
        for curve in (curve for own in (evaluation, *evaluation["groups"]["site"].values()) for curve in own["curves"]):
            # Where bins lie is public, and so fine a grid that its digits may spell a site's share.
            del curve["predicted"]
        told += federation.model_bytes(outcome) + json.dumps([evaluation]).encode()
    return federation, outside(federation, told, caplog.text)


def test_no_exact_sum_leaves_a_site_or_stays_with_the_coordinator(run: Ran) -> None:
    """Neither a site's sums nor the exact total are in any message, file, event, log or error; the releases are."""
    federation, places = run
    n_controls = 0
    for name, values in private_numbers(federation).items():
        hits = [(place, form) for place, content in places.items() for form in spellings(values) if form in content]
        if name.startswith("control"):
            n_controls += {place for place, _ in hits} >= {"messages"}
            continue
        assert not hits, f"{name} is in {hits[0][0]}"
    # The search does find what is there: all releases but, perhaps, one that has a zero in it.
    assert n_controls >= len(federation.session.run.releases) - 1 > 0


def told_numbers(federation: Federation, places: dict[str, bytes]) -> set[tuple[str, int, str]]:
    """Each site's numbers that stand in 64 bits somewhere: the site, the number and the place."""
    # What is released is noised, and by chance any number: one that is in a release says nothing of a site.
    released = np.concatenate(federation.session.run.releases)
    return {
        (site, number, place)
        for site, data in rows_of(federation).items()
        for number in numbers_of(federation, data)
        if number not in released
        for place, content in places.items()
        if any(number.to_bytes(8, order) in content for order in ("big", "little"))
    }


def numbers_of(federation: Federation, data: SiteData) -> list[int]:
    """Rows of a site, and of two classes those with the second."""
    is_binary = federation.plan.label.type == "binary"
    return [data.n_records, *([int(data.labels.sum())] if is_binary else [])]


def test_no_count_of_rows_and_no_share_of_labels_is_told(run: Ran, run_again: Callable[[], Ran]) -> None:
    """A site's number of rows or of positive labels says how many patients it has, and how ill they are.

    A number below 2**16 is two bytes among zeros, which keys and masks next to zeros show by chance, in one run of
    thirty. What a run tells it tells in every one, so a find counts that three runs with other keys have in common.
    """
    federation, places = run
    found = told_numbers(federation, places)
    for _ in range(2):
        found &= told_numbers(*run_again()) if found else found
    assert not found
    for data in rows_of(federation).values():
        for number in numbers_of(federation, data):
            assert number > 200
            for place in ("events", "log", "faults"):
                assert not re.search(rb"(?<!\d)%d(?!\d)" % number, places[place])
        share = f"{abs(data.labels.mean()):.4f}".encode()
        assert not any(share in places[place] for place in ("events", "log", "faults", "model"))


def test_what_stays_at_a_site_is_where_only_its_owner_reads(run: Ran) -> None:
    """A node's folder holds keys and releases, but no row and no sum of its own."""
    federation, _ = run
    own = private_numbers(federation)
    for site, party in federation.parties.items():
        party.kill()
        for path in Path(party.folder).iterdir():
            content = path.read_bytes()
            assert path.stat().st_mode & 0o077 == 0
            for name, values in own.items():
                if name.startswith(f"{site},"):
                    assert not any(form in content for form in spellings(values)), f"{name} is in {path.name}"
