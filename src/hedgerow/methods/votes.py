# SPDX-License-Identifier: Apache-2.0
"""The question of a site's vote: how much worse than equal chances the model so far predicts its own rows.

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
"""The most that one record adds or takes: of two classes 1 - 1/4, of more classes less."""
VOTE_SHARE = 0.02
"""Share of mu^2 for all votes of a site."""
_AT_ONCE = 1 << 16


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteVotes(Query):
    """One site's excess of squared errors over those of equal chances, for its own vote: int64 [1], with own noise.

    A record adds half the sum over classes of (y - p)² - (y - m)², in units of `VOTE_UNIT`. p is its chances by the
    public model, y its class as 0 and 1, and m = 1 / classes, which is public. Each square is rounded to the grid, and
    each record's number clamped to `VOTE_BOUND`, before they are added. So the sensitivity is `VOTE_BOUND` times the
    rows of a unit. The site adds the noise, and only whether the result is above a threshold leaves it. Units are at
    one site only (groups need `sites_per_unit` = 1), so votes of all sites are one release for each unit.
    """

    def answer(self, site: ScoredSite) -> IntVector:
        link, label, records = loss_kind(site.plan).link, site.plan.label, site.records
        total = 0
        for first in range(0, records.n_records, _AT_ONCE):
            scores = records.scores[:, first : first + _AT_ONCE].astype(np.int64)
            labels = records.labels[first : first + _AT_ONCE].astype(np.int64)
            compared, level = link.compare(scores, labels, label), link.compare(scores * 0, labels, label)
            if compared is None or level is None:
                raise ValueError("votes are for labels with classes")
            excess = _measure(*compared) - _measure(*level)
            total += int(np.clip(excess, -VOTE_BOUND, VOTE_BOUND).sum())
        return np.array([total], dtype=np.int64)

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        yield "a vote is no sum over sites"


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
    usual = plan.privacy.n_records // max(1, len(declared))
    rows = [each or usual for each in declared]
    return compute_power(rows, noise_of(votes.query).sigma / VOTE_UNIT, plan.federation.groups)


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
