"""Figures of single sites over the engine: whose they are, who has none, and that no noise is drawn twice."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from hedgerow.errors import PolicyRefusal
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.local.training import evaluate_federated
from hedgerow.models.model import Model
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.messages import MessageKind
from tests.builders import make_plan
from tests.memory_network import Fate, FaultPlan, Passing, no_faults

if TYPE_CHECKING:
    from conftest import Builder, Federation

EPSILON = 5.0


def trained(federate: Builder, noise: str = "server", faults: FaultPlan = no_faults) -> tuple[Federation, Model]:
    """Four sites, of which all but one show their figures, and their model of a single tree.

    The one says that they may be shown, but no sums by site: of these it answers nothing, and takes part in the others.
    """
    plan = make_plan(model={"n_trees": 1}, privacy={"noise": noise, "n_records": 400})
    federation = federate(4, plan, faults=faults)
    outcome = federation.run()
    for name, party in federation.parties.items():
        kinds = ("ScoreHistogram", "GroupedSums") if name == "site-2" else ()
        policy = dataclasses.replace(party.setup.policy, site_figures=True, query_kinds=kinds)
        party.setup = dataclasses.replace(party.setup, policy=policy)
    return federation, Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report)


def text(evaluation: Evaluation | None) -> str:
    """All that was found: NaN is not equal to itself."""
    assert evaluation is not None
    return json.dumps(evaluation.to_dict())


class Uploads:
    """Counts the vectors that sites send, and loses those of the sums by site while it is armed."""

    def __init__(self, *victims: str) -> None:
        self.counts, self.victims, self.lost, self.is_armed = Counter[str](), victims, list[str](), False

    def __call__(self, passing: Passing) -> Fate:
        if not self.is_armed or passing.message[4] != MessageKind.UPLOAD:
            return Fate.DELIVER
        self.counts[passing.site] += 1
        # After the outline and the detail come the sums by site.
        if passing.site in self.victims and self.counts[passing.site] == 3:
            self.lost.append(passing.site)
            return Fate.DROP
        return Fate.DELIVER


@pytest.mark.parametrize("noise", ["server", "distributed"])
def test_figures_are_those_of_the_sites_that_allow_them(federate: Builder, noise: str) -> None:
    """The same numbers as in one process for each of them; the other is named, and its node shows nothing."""
    federation, model = trained(federate, noise)
    by = ("region", "site")
    federation.prepare_evaluation(model, EPSILON, by=by)
    found = federation.run().evaluation
    here = evaluate_federated(model, federation.held_out, epsilon=EPSILON, noise=SeededNoise(1), by=by).evaluation
    assert found is not None and found.left_out == ("site-2",) and here.left_out == ()
    assert list(found.groups["site"]) == ["site-0", "site-1", "site-3"]
    for name, own in found.groups["site"].items():
        assert text(own) == text(here.groups["site"][name])
    assert all(text(own) == text(here.groups["region"][name]) for name, own in found.groups["region"].items())
    assert found.to_dict()["sites_left_out"] == ["site-2"]
    for party in federation.parties.values():
        assert party.session is not None and party.is_done and text(party.session.result) == text(found)


def list_spent(party: Any) -> list[float]:
    """What an owner's book has of each data set."""
    return [each["epsilon"] for each in party.book.describe(1e-5)["data_sets"]]


def test_a_question_that_no_policy_allows_ends_before_anything_is_paid(federate: Builder) -> None:
    """The coordinator learns it as the sites join; a quarter of epsilon would go to figures that stay empty."""
    federation, model = trained(federate)
    for party in federation.parties.values():
        policy = dataclasses.replace(party.setup.policy, site_figures=False)
        party.setup = dataclasses.replace(party.setup, policy=policy)
    federation.prepare_evaluation(model, EPSILON, by=("site",))
    spent = {name: list_spent(party) for name, party in federation.parties.items()}
    with pytest.raises(PolicyRefusal) as refused:
        federation.run()
    assert refused.value.code == "policy-query-kind"
    assert federation.session is not None and not federation.session.run.releases
    for name, party in federation.parties.items():
        party.kill()
        party.start()
        assert list_spent(party) == spent[name]


def test_a_site_that_falls_silent_has_no_figures_and_the_others_have_theirs(federate: Builder) -> None:
    """A drop-out costs the sum over sites nothing but its own block."""
    uploads = Uploads("site-1")
    federation, model = trained(federate, faults=uploads)
    federation.prepare_evaluation(model, EPSILON, by=("site",))
    uploads.is_armed = True
    found = federation.run().evaluation
    assert uploads.lost == ["site-1"] and found is not None and found.left_out == ("site-1", "site-2")
    assert list(found.groups["site"]) == ["site-0", "site-3"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_noise_of_figures_that_left_is_not_drawn_again(
    federate: Builder, killed: type[BaseException], is_restarted: bool
) -> None:
    """Asked again in a new epoch, a node sends the same block; one that was restarted in between sends none.

    A second draw would be a second release of the same sums, for the noise of a block is its site's alone.
    """
    names = [f"site-{number}" for number in range(4)]
    uploads = Uploads(*names)
    federation, model = trained(federate, faults=uploads)
    federation.prepare_evaluation(model, EPSILON, by=("site",))
    uploads.is_armed = True
    federation.while_waiting = lambda _: _die(killed) if len(uploads.lost) == 4 else False
    with pytest.raises(killed):
        federation.run()
    federation.while_waiting, uploads.is_armed = lambda _: False, False
    for party in federation.parties.values() if is_restarted else ():
        party.kill()
        party.start()
    database = sqlite3.connect(federation.folder / federation.journal)
    database.execute("update slots set slot = null, next_slot = 0")
    database.execute("update run set epoch = null, origin = null")
    database.commit()
    database.close()
    found = federation.run().evaluation
    assert found is not None and not any(party.failures for party in federation.parties.values())
    here = evaluate_federated(model, federation.held_out, epsilon=EPSILON, noise=SeededNoise(1), by=("site",))
    own = {name: text(figures) for name, figures in here.evaluation.groups["site"].items() if name != "site-2"}
    shown = {} if is_restarted else own
    assert {name: text(own) for name, own in found.groups["site"].items()} == shown
    assert found.left_out == (tuple(names) if is_restarted else ("site-2",))


def _die(killed: type[BaseException]) -> bool:
    raise killed
