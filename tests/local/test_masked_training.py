"""The local engine under masks: the same model to the byte, and noise from the sites never below what is accounted."""

from __future__ import annotations

import dataclasses
import math
import os
from functools import partialmethod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.errors import PlanError, PrivacyError, UsageError
from hedgerow.local.training import MaskedAggregation, train, without_secure_aggregation
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.events import DiscreteGaussianSumEvent
from hedgerow.privacy.noise import SeededNoise, SystemNoise
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.secagg.session import Drops, EpochSession
from hedgerow.server.release import UNCOUNTED, PlainAggregation, run_program
from tests import builders
from tests.builders import coded, make_data, make_plan, plans, take


def split(plan: Plan, n_sites: int, seed: int) -> dict[str, SiteData]:
    """At most the declared number of rows, dealt to sites at random; some sites may be left with few."""
    data = make_data(plan, plan.privacy.n_records, seed)
    owner = np.random.default_rng(seed).integers(0, n_sites, data.n_records)
    return {f"site {i}": take(data, np.flatnonzero(owner == i)) for i in range(n_sites)}


@settings(max_examples=25)
@given(data=st.data(), n_sites=st.integers(3, 6), seed=st.integers(0, 1000))
def test_a_model_is_byte_identical_with_and_without_masks(data: st.DataObject, n_sites: int, seed: int) -> None:
    """Masks that did not cancel, or a word too narrow for a sum, would change a model without anyone noticing."""
    plan = data.draw(plans())
    sites = split(plan, n_sites, seed)
    masked = train(plan, sites, noise=SeededNoise(seed))
    clear = train(without_secure_aggregation(plan), sites, noise=SeededNoise(seed))
    assert not clear.plan.federation.secure_aggregation
    # The report says of both how their sums were made; everything else is the same.
    assert dataclasses.replace(clear.report, sums_in_clear=False) == masked.report
    assert dataclasses.replace(clear, plan=plan, report=masked.report).to_bytes() == masked.to_bytes()


@pytest.mark.parametrize("size", [1, 2, "all"])
@pytest.mark.parametrize("method", ["hist", "partially_random"])
def test_masks_leave_greedy_trees_alone(method: str, size: int | str) -> None:
    """The same for trees that grow level by level, whose vectors have another length every time."""
    plan = make_plan(model={"split_method": method, "interaction_size": size, "max_depth": 3})
    sites = split(plan, 3, 5)
    masked = train(plan, sites, noise=SeededNoise(5))
    clear = train(without_secure_aggregation(plan), sites, noise=SeededNoise(5))
    # The report says of both how their sums were made; everything else is the same.
    assert dataclasses.replace(clear.report, sums_in_clear=False) == masked.report
    assert dataclasses.replace(clear, plan=plan, report=masked.report).to_bytes() == masked.to_bytes()


def test_more_exchanges_than_an_epoch_holds_go_on_in_a_new_one() -> None:
    """An epoch's keys are used once each; a long run must not run out of them."""
    plan = make_plan(model={"n_trees": 7})
    nodes = [Node(name, rows, plan, resolve(plan)) for name, rows in split(plan, 3, 1).items()]
    masked = MaskedAggregation(nodes, plan, 3, os.urandom, SeededNoise(1))
    outcome = run_program(plan, program_for(plan), masked, SeededNoise(1), UNCOUNTED)
    plain = builders.train(plan, list(split(plan, 3, 1).values()))
    assert outcome.ensemble.fitted is not None and plain.ensemble.fitted is not None
    assert np.array_equal(outcome.ensemble.fitted.values, plain.ensemble.fitted.values)


def test_a_single_site_cannot_hide_its_noise() -> None:
    """Noise from the sites needs somebody to sum with; one site alone is told so before anything runs."""
    plan = make_plan(privacy={"noise": "distributed"})
    with pytest.raises(UsageError, check=coded("too-few-sites")):
        train(plan, split(plan, 1, 3), noise=SystemNoise(os.urandom))


@pytest.mark.parametrize("n_sites", [2, 3, 10])
def test_sites_can_add_the_noise_themselves(n_sites: int) -> None:
    """With distributed noise the ledger charges sums of shares, the promise holds, and nobody adds noise centrally."""
    plan = make_plan(privacy={"noise": "distributed"})
    model = train(plan, split(plan, n_sites, 3), noise=SystemNoise(os.urandom))
    events = list(model.ledger.events())
    assert all(isinstance(event, DiscreteGaussianSumEvent) for event in events) and len(events) == 4
    assert model.report.noise_mode == "distributed" and model.report.guarantee == "holds"
    ((cohort, count),) = model.report.cohorts.items()
    assert (cohort.n_sites, cohort.n_shares, count) == (n_sites, events[0].n_shares, 4) and cohort.n_colluders >= 1
    assert get_accountant("gdp").epsilon(events, plan.privacy.delta) <= plan.privacy.epsilon


@pytest.mark.parametrize("n_sites", [2, 3, 4, 5])
def test_a_site_that_takes_its_own_share_away_leaves_the_noise_that_was_accounted(n_sites: int) -> None:
    """Every site sees the releases and knows its own share, so the others' shares must be enough by themselves."""
    plan = make_plan(privacy={"noise": "distributed"})
    aggregation = MaskedAggregation([Silence(f"s{i}") for i in range(n_sites)], plan, 1, os.urandom, SeededNoise(5))
    guarantees = aggregation._epoch.view.guarantees
    assert guarantees.n_colluders >= 1 and 1 <= guarantees.honest_group <= n_sites - 1


class Silence:
    """A node without data, so that what comes out of the sum is noise alone."""

    def __init__(self, site: str) -> None:
        self.site = site

    def answer(self, query: Query) -> IntVector:
        """Zeros."""
        return np.zeros(query.length, dtype=np.int64)


@pytest.mark.parametrize(
    "drops",
    [Drops(), Drops(vectors=("s0", "s4", "s9")), Drops(answers=("s1", "s5", "s8")), Drops(("s2",), (), ("s3", "s7"))],
)
def test_the_noise_is_never_less_than_accounted_whoever_drops_out(
    drops: Drops, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cohort that shrinks to its threshold still adds at least the noise in the ledger: exactly, share by share.

    The survivors' shares are independent, so the variance of their sum is their number times a share's; the empirical
    variance shows that the shares which the arithmetic counts are really in the sum.
    """
    plan = make_plan(privacy={"noise": "distributed"}, model={"n_trees": 1, "max_depth": 8})
    nodes = [Silence(f"s{i}") for i in range(10)]
    aggregation = MaskedAggregation(nodes, plan, 1, os.urandom, SeededNoise(5))
    monkeypatch.setattr(EpochSession, "aggregate", partialmethod(EpochSession.aggregate, drops=drops))
    query = next(program_for(plan))
    noise = noise_of(query, aggregation.cohort.n_shares if aggregation.cohort else None)
    n_shares = 10 - len(drops.vectors)
    assert n_shares * noise.share_sigma**2 >= noise.variance >= noise_of(query).variance
    total = aggregation.sum_answers(query)
    expected = math.sqrt(n_shares) * noise.share_sigma
    # 512 entries: the relative error of a standard deviation is about 1/sqrt(1024) = 3 %; five of those.
    assert np.std(total.astype(float)) == pytest.approx(expected, rel=0.16)
    assert np.std(total.astype(float)) > math.sqrt(noise.variance)


def test_noise_from_the_sites_needs_masks() -> None:
    """Without masks the coordinator would see each site's vector with that site's small share of noise only."""
    plan = make_plan(privacy={"noise": "distributed"})
    with pytest.raises(PlanError):
        without_secure_aggregation(plan)
    aggregation = PlainAggregation([Silence("a"), Silence("b")])
    with pytest.raises(PrivacyError) as caught:
        run_program(plan, program_for(plan), aggregation, SeededNoise(1), UNCOUNTED)
    assert caught.value.code == "noise-mode-unsupported"


def test_a_plan_without_privacy_works_in_every_mode() -> None:
    """Shares of no noise at all are zeros; the ledger then says that nothing is promised."""
    values: list[Any] = []
    for noise in ("server", "distributed"):
        plan = make_plan(privacy={"noise": noise, "epsilon": math.inf})
        model = train(plan, split(plan, 3, 2), noise=SeededNoise(1))
        assert model.report.guarantee == "void" and model.ensemble.fitted is not None
        values.append(model.ensemble.fitted.values)
    assert np.array_equal(*values)
