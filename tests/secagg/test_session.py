"""The facade for engines: bytes counted, several vectors in a slot, set-up dropouts, and the bytes on the wire."""

from __future__ import annotations

import pkgutil
import re
from hashlib import sha256
from importlib import import_module

import numpy as np
import pytest

import hedgerow.secagg
from experiments import secagg_cost
from hedgerow.secagg.messages import VectorSpec
from hedgerow.secagg.session import EpochSession
from hedgerow.secagg.transitions import Code, Refusal
from tests.secagg.lab import Lab, seeded_entropy

SITES = [f"site-{i}" for i in range(5)]


def test_a_whole_run_stays_below_its_upload_budget():
    """100 trees of depth 4 in batches of 25 over 10 sites: everything a site sends, set-up included, below 64 kB."""
    traffic = secagg_cost.run_bytes()
    assert traffic["whole run, sent by a site"] < 64_000
    assert traffic["of the sent bytes, masked entries"] < traffic["whole run, sent by a site"]


def test_the_cost_table_says_what_to_install(monkeypatch, capsys):
    """Without Flower the experiment still runs, and names the command that fills its column."""
    monkeypatch.setattr(secagg_cost, "flower", lambda: None)
    one_round = secagg_cost.one_round
    monkeypatch.setattr(secagg_cost, "one_round", lambda *arguments: one_round(5, 10, 32))
    monkeypatch.setattr(secagg_cost, "primitives", lambda theirs: {"masks": (1.0, None)})
    assert secagg_cost.main([]) == 0
    assert "pip install flwr" in capsys.readouterr().out


def test_several_vectors_of_different_widths_share_a_slot():
    """A histogram of 64 bits and leaf sums of 32 bits travel together and come out apart."""
    session = EpochSession(SITES, 1, seeded_entropy(1))
    specs = (VectorSpec("histogram", 7, 64, 2**40, 5 * 2**40), VectorSpec("leaves", 3, 32, 9, 45))
    values = {
        site: {"histogram": np.full(7, -(2**40) + i), "leaves": np.array([i, -i, 9])} for i, site in enumerate(SITES)
    }
    release = session.aggregate(session.spec("tree-1", specs), values)
    assert release.sums["histogram"].tolist() == [-5 * 2**40 + 10] * 7
    assert release.sums["leaves"].tolist() == [10, -10, 45]


def test_a_site_that_is_silent_at_set_up_is_out_and_the_rest_go_on():
    """Not acknowledging means not being ready; the others aggregate without it."""
    session = EpochSession(SITES, 1, seeded_entropy(1), silent_at_setup={"acknowledgements": ["site-2"]})
    assert list(session.nodes) == ["site-0", "site-1", "site-3", "site-4"]
    spec = session.spec("p", (VectorSpec("v", 2, 32, 5, 25),))
    release = session.aggregate(spec, {site: {"v": np.array([1, 2])} for site in SITES})
    assert release.sums["v"].tolist() == [4, 8] and release.survivors == (0, 1, 3, 4)


def test_an_epoch_ends_with_its_slots():
    """R slots hold R aggregations; the next one is refused rather than reusing a key."""
    session = EpochSession(SITES, 2, seeded_entropy(1))
    values = {site: {"v": np.array([1])} for site in SITES}
    for number in range(2):
        session.aggregate(session.spec(f"p{number}", (VectorSpec("v", 1, 32, 5, 25),)), values)
    with pytest.raises(Refusal) as refused:
        session.aggregate(session.spec("p2", (VectorSpec("v", 1, 32, 5, 25),)), values)
    assert refused.value.reason is Code.SLOT_OUT_OF_RANGE


def test_the_structure_seed_is_the_same_for_all_and_new_for_each_epoch():
    """Every node derives the trees' public seed from the same committed nonces."""
    first, second = EpochSession(SITES, 1, seeded_entropy(1)), EpochSession(SITES, 1, seeded_entropy(2))
    seeds = {node.view.structure_seed for node in first.nodes.values()} | {first.view.structure_seed}
    assert len(seeds) == 1 and second.view.structure_seed not in seeds


@pytest.mark.golden
def test_a_golden_transcript_keeps_its_bytes():
    """All messages of a small epoch under a fixed source of bytes: a changed format must be a conscious decision.

    If this fails and the change is meant, raise codec.VERSION and replace the hash.
    """
    lab = Lab()
    collected = lab.collected()
    aggregator, requests = collected.close_vectors(lab.session.coordinator)
    answers = [lab.answered(node, requests[node]).message or b"" for node in range(5)]
    transcript = sha256()
    uploads = [collected.uploads[node].to_bytes() for node in range(5)]
    for message in (lab.view.record, aggregator.signed_spec, *uploads, *requests.values(), *answers):
        transcript.update(message)
    assert transcript.hexdigest()[:32] == "196fb60e8e2cc54e5d71e103686aa81b"


def test_the_room_tells_the_protocol_by_names_that_exist():
    """The door of the room is read first: each class and method that it names is there."""
    modules = [
        import_module(f"hedgerow.secagg.{module.name}") for module in pkgutil.iter_modules(hedgerow.secagg.__path__)
    ]
    named = re.findall(r"`(?:[a-z]+\.)?([A-Z]\w+)(?:\.(\w+))?`", hedgerow.secagg.__doc__)
    assert len(named) > 10
    for name, method in named:
        found = [getattr(module, name) for module in modules if hasattr(module, name)]
        assert found and (not method or hasattr(found[0], method)), (name, method)
