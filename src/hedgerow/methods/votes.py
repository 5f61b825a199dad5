# SPDX-License-Identifier: Apache-2.0
"""The question of a site's vote: how much worse than a constant the model so far predicts its own rows.

Who votes when, and what follows, is in `hedgerow.protocol.votes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hedgerow.losses.registry import loss_kind
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.schedule import AlikeRounds
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.protocol.votes import compute_power
from hedgerow.trees.leaf_sums import ScoredSite
from hedgerow.trees.plausibility import Reals, ReleaseChecks, SumFacts

VOTE_UNIT = 2**16
"""Integer units of half a squared distance of 1 between chances and a class."""
VOTE_BOUND = VOTE_UNIT * 3 // 4
"""The most that one record adds or takes; a model that is surely wrong is off by up to 1 more than a constant."""
VOTE_SHARE = 0.02
"""Share of mu^2 for all votes of a site."""
_AT_ONCE = 1 << 16
_STEPS, _STEPS_OF_SEVERAL = 16, 4


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteVotes(Query):
    """One site's excess of squared errors over those of constants, for its own vote, of which the largest counts.

    For each of a public list of constants m, a record adds half the sum over classes of (y - p)² - (y - m)², in units
    of `VOTE_UNIT`; p is its chances by the public model, y its class as 0 and 1. Each square is rounded to the grid,
    and each record's number clamped to `VOTE_BOUND`, before they are added: int64, one sum for each constant. A record
    moves each sum by `VOTE_BOUND` at most, and so the largest of them, to which the site adds the noise. So the
    sensitivity is `VOTE_BOUND` times the rows of a unit. Only whether the noisy number is above a threshold leaves the
    site. Units are at one site only (groups need `sites_per_unit` = 1): votes of all sites are one release for a unit.

    No release chooses a constant: liars who own the first ones would choose one that suits them.
    """

    def answer(self, site: ScoredSite) -> IntVector:
        link, label, records = loss_kind(site.plan).link, site.plan.label, site.records
        levels = _list_levels(len(label.classes))
        classes = np.eye(len(label.classes))
        # By class and constant: what a constant is off by does not depend on the record otherwise.
        of_levels = np.array([[int(_measure(m[None], y[None])[0]) for m in levels] for y in classes], dtype=np.int64)
        sums = np.zeros(len(levels), dtype=np.int64)
        for first in range(0, records.n_records, _AT_ONCE):
            labels = records.labels[first : first + _AT_ONCE].astype(np.int64)
            compared = link.compare(records.scores[:, first : first + _AT_ONCE].astype(np.int64), labels, label)
            if compared is None:
                raise ValueError("votes are for labels with classes")
            excess = _measure(*compared)[:, None] - of_levels[labels]
            sums += np.clip(excess, -VOTE_BOUND, VOTE_BOUND).sum(axis=0)
        return sums

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        yield "a vote is no sum over sites"


def _list_levels(n_classes: int) -> Reals:
    """Return public constants: chances of each class [n, n_classes], all classes alike, or one of them in steps."""
    if n_classes == 2:
        chances = np.arange(1, _STEPS) / _STEPS
        return np.stack([1 - chances, chances], axis=1)
    even = np.full(n_classes, 1 / n_classes)
    steps = [step / _STEPS_OF_SEVERAL for step in range(1, _STEPS_OF_SEVERAL)]
    return np.array([even, *((1 - step) * even + step * own for own in np.eye(n_classes) for step in steps)])


def _measure(found: Reals, truth: Reals) -> IntVector:
    """Return half of each record's squared distance, in whole units: int64 [n]."""
    squares = np.rint((truth - found) ** 2 * (VOTE_UNIT // 2))
    return np.asarray(squares.astype(np.int64).sum(axis=1))


def plan_votes(plan: Plan, noise_multiplier: float, count: int) -> AlikeRounds:
    """Return the votes of a run in its schedule.

    Args:
        noise_multiplier: of each.
    """
    return AlikeRounds.of(
        SiteVotes,
        length=1,
        bound=VOTE_BOUND,
        sensitivity_squared=(VOTE_BOUND * plan.privacy.rows_per_unit) ** 2,
        noise_multiplier=noise_multiplier,
        count=count,
    )


def find_power(plan: Plan, votes: AlikeRounds, declared: Sequence[int]) -> float:
    """Return the chance that one vote shows a model that is turned round (`hedgerow.protocol.votes.compute_power`).

    Args:
        votes: of the schedule.
        declared: rows of each site by the roster; for 0 an equal part of the plan's is taken.
    """
    rows = [expect_rows(plan, each, len(declared)) for each in declared]
    return compute_power(rows, noise_of(votes.query).sigma / VOTE_UNIT, plan.federation.groups)


def expect_rows(plan: Plan, declared: int, n_sites: int) -> int:
    """Return the rows of a site as all parties know them: by the roster, or for 0 an equal part of the plan's."""
    return declared or plan.privacy.n_records // max(1, n_sites)


def ask_vote(votes: AlikeRounds, after: Query) -> SiteVotes:
    """Return the question of the votes cast with the vector of a query, once that query was answered.

    Args:
        votes: of the schedule.
    """
    n_trees = 0 if after.update is None else after.update.trees.n_trees
    return SiteVotes(
        purpose=SiteVotes.purpose_of(after.purpose.round, "of sites"),
        length=votes.query.length,
        bound=votes.query.bound,
        sensitivity_squared=votes.query.sensitivity_squared,
        noise_multiplier=votes.query.noise_multiplier,
        ensemble_size=after.ensemble_size + n_trees,
    )
