"""Models and ledgers of runs over nodes that lose sites, byte for byte: the same faults end in the same model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hedgerow.plan.plan import Plan
from hedgerow.secagg.guarantees import assign_groups
from hedgerow.server.coordinator import RunEvent, RunEventKind
from hedgerow.server.release import Outcome
from hedgerow.trees.ensemble import ensemble_to_dict
from tests.builders import digest_of, make_plan

if TYPE_CHECKING:
    from conftest import Builder, Federation


pytestmark = pytest.mark.golden


def content_of(outcome: Outcome) -> list[Any]:
    """What a run's end leaves to everybody."""
    releases = [release.to_dict() for release in outcome.ledger.releases]
    return [ensemble_to_dict(outcome.ensemble), releases, outcome.salvaged is not None]


def seeded_plan(noise: str, n_groups: int) -> Plan:
    """Six small trees, whose seed stands in the plan."""
    return make_plan(n_trees=6, structure_seed=7, n_records=600, epsilon=8.0, noise=noise, groups=n_groups)


def lose(federation: Federation, sites: list[str], n_releases: int) -> None:
    """These sites fall silent after so many releases."""
    seen = []

    def act(event: RunEvent) -> None:
        seen.extend([event] if event.kind is RunEventKind.RELEASED else [])
        if len(seen) == n_releases:
            for site in sites:
                federation.parties[site].kill()

    federation.on_event = act


@pytest.mark.parametrize(
    ("noise", "digest"),
    [
        ("server", "013a534ff74aac0998dfcca4"),
        ("distributed", "584d514090132c4799338336"),
    ],
)
def test_a_salvaged_model_and_its_ledger_stay_the_same(federate: Builder, noise: str, digest: str) -> None:
    """What is left of a run that lost its sites holds the rounds that were released, and all that was spent."""
    federation: Federation = federate(5, seeded_plan(noise, 0))
    lose(federation, ["site-0", "site-1", "site-2"], 3)
    outcome = federation.run()
    assert outcome.salvaged is not None
    assert digest_of(content_of(outcome)) == digest


def test_a_run_in_which_a_group_sits_out_stays_the_same(federate: Builder) -> None:
    """Which groups are summed, and what is made of their sums, is public and the same for every party."""
    federation: Federation = federate(12, seeded_plan("server", 3))
    of = assign_groups([site.key for site in federation.roster.sites], 3)
    second = [site.name for site, group in zip(federation.roster.sites, of, strict=True) if group == 1]
    lose(federation, second[:2], 2)
    assert digest_of(content_of(federation.run())) == "092c6f64c2b6e3b8f35941b3"
