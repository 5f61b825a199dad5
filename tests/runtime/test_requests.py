"""What the page beside a file for a site says of it is so of every message to a site, whatever the run is for."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hedgerow.carriers.pages import describe_request
from hedgerow.client.setup import build_answers
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import EvaluationTask, TrainingTask, find_visibility
from hedgerow.models.model import Model
from hedgerow.protocol.messages import FROM_COORDINATOR, Finished, MessageKind, RoundRequest, Salvaged, decode
from hedgerow.protocol.queries import SiteQuery
from hedgerow.transport.envelope import Envelope, EnvelopeKind
from tests.builders import make_plan

if TYPE_CHECKING:
    from conftest import Builder, Federation

HELD = {
    MessageKind.INVITATION: "the plan",
    MessageKind.EVALUATION: "the model that is evaluated",
    MessageKind.SURVEY: "the questions of a survey",
    MessageKind.ENROL: "lists of sites",
    MessageKind.SETUP: "parts of keys that are encrypted for this site",
    MessageKind.ROUND_REQUEST: "results of earlier rounds",
    MessageKind.UNMASK: "lists of sites",
    MessageKind.CERTIFICATE: "signatures",
    MessageKind.ABANDONED: "code words",
    MessageKind.FINISHED: "results of earlier rounds",
    MessageKind.SALVAGED: "results of earlier rounds",
    MessageKind.STOP: "code words",
    MessageKind.WELCOME: "random numbers",
    MessageKind.ORIGIN: "random numbers",
    MessageKind.PAUSED: "asks this site next",
}


def test_the_page_names_what_every_kind_of_message_holds() -> None:
    """A kind that the page leaves out would be passed by somebody who was told that there is no such thing."""
    assert set(HELD) == FROM_COORDINATOR
    envelope = Envelope(EnvelopeKind.REQUEST, "s0", b"l" * 32, 3, b"k" * 32, b"q" * 32)
    page = " ".join(describe_request("s0.request", b"x", envelope, "s0").split())
    assert [kind for kind, said in HELD.items() if said not in page] == []


@pytest.mark.parametrize("epsilon", [2.0, math.inf])
@pytest.mark.parametrize("noise", ["server", "distributed"])
def test_what_sites_are_sent_is_what_the_page_promises(federate: Builder, noise: str, epsilon: float) -> None:
    """Results are the same for all, noised where the run's task says so, and of one site alone as its policy allows."""
    federation = federate(3, make_plan(model={"n_trees": 1}, privacy={"noise": noise, "epsilon": epsilon}))
    for site, party in federation.parties.items():
        policy = dataclasses.replace(party.setup.policy, max_epsilon=math.inf, site_figures=site == "site-1")
        party.setup = dataclasses.replace(party.setup, policy=policy)
        party.kill()
        party.start()
    outcome = federation.run()
    check(federation, TrainingTask(federation.plan))
    model = Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report)
    # By site there is always noise.
    federation.prepare_evaluation(model, epsilon, by=("site",) if math.isfinite(epsilon) else ())
    federation.sent.clear()
    federation.run()
    assert federation.evaluation is not None
    check(federation, federation.evaluation.task)


def check(federation: Federation, task: TrainingTask | EvaluationTask) -> None:
    """All that was sent in the run that is over, to each site."""
    assert federation.session is not None
    releases, told = federation.session.run.releases, set[tuple[str, int]]()
    for site, message in federation.sent:
        opened = decode(message, FROM_COORDINATOR)
        if isinstance(opened, RoundRequest | Finished | Salvaged):
            end = opened.round if isinstance(opened, RoundRequest) else opened.n_releases
            for number, release in enumerate(opened.releases, end - len(opened.releases)):
                assert np.array_equal(release, releases[number])
                told.add((site, number))
    assert told == {(site, number) for site in federation.parties for number in range(len(releases))}
    setups = {site: dataclasses.replace(party.setup, n_threads=1) for site, party in federation.parties.items()}
    nodes, replica = {site: build_answers(task, setup)[0] for site, setup in setups.items()}, Replica(task)
    is_exact = find_visibility(task).split()[0] == "none"
    for release in releases:
        query = replica.query
        assert query is not None
        sums = {site: node.sum_rows(query) for site, node in nodes.items()}
        if isinstance(query, SiteQuery):
            blocks = dict(zip(nodes, np.split(release, len(nodes)), strict=True))
            assert [site for site, block in blocks.items() if block.any()] == ["site-1"]
            assert not np.array_equal(blocks["site-1"], sums["site-1"])
        else:
            assert np.array_equal(release, np.sum(list(sums.values()), axis=0)) == is_exact
        replica.feed(release)
