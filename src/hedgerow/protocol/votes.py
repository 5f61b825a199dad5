# SPDX-License-Identifier: Apache-2.0
"""Votes of sites on the model so far: a reference that groups do not make.

A comparison of groups cannot tell which side is wrong (`hedgerow.protocol.groups`). So three times in a run each site
asks its own rows whether the model so far predicts them worse than the best of some constants does
(`hedgerow.methods.votes`). It adds the whole noise itself, and says one bit: whether the noisy answer is above
`THRESHOLD` standard deviations. The bit follows from nothing else that the node knows. It stands in the signed header
of the site's vector, and all bits of a round stand behind its release.

A site has one vote, whatever it sends: k liars move a tally by k. Votes name nobody. They say that most sites' rows are
against the model, whichever side of a comparison is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from hedgerow.protocol.queries import IntVector

MAX_VOTES = 3
"""Votes of a site in a run."""
THRESHOLD = 3
"""Standard deviations of its own noise above which a site objects: by chance once in 741 votes."""
EXCESS_OF_TURNED = 0.1
"""Excess a row of a model that is turned round over a constant, in squares of chances: the power is computed by it."""
MIN_POWER = 0.8
"""Below this chance that votes tell a model that is turned round, nothing is concluded from them."""


class Vote(IntEnum):
    """What a site says of the model so far; also the entry behind a release."""

    ABSTAINS = 0
    AGREES = 1
    OBJECTS = 2


def list_vote_rounds(n_rounds: int) -> tuple[int, ...]:
    """Return the rounds, from 0, with whose vectors sites vote: after each third of a run, at latest in its last round.

    Args:
        n_rounds: of the run, by its schedule.
    """
    thirds = {min(-(-n_rounds * third // MAX_VOTES), n_rounds - 1) for third in range(1, MAX_VOTES + 1)}
    return tuple(sorted(thirds - {0, -1}))


def count_least_rows(sigma: float) -> int:
    """Return the rows from which one site tells a model that is turned round with a chance of `MIN_POWER`.

    Sites that declare fewer abstain.

    Args:
        sigma: standard deviation of a vote's noise, in squares of chances as `EXCESS_OF_TURNED` is.
    """
    return math.ceil((THRESHOLD + 0.8416212) * sigma / EXCESS_OF_TURNED)


@dataclass(frozen=True)
class Tally:
    """Count of the votes of one round.

    Attributes:
        n_sites: of the roster.
        n_voted: that voted, and did not abstain or sit out.
        n_objections: that object.
    """

    n_sites: int
    n_voted: int
    n_objections: int

    @classmethod
    def count(cls, votes: Iterable[int]) -> Tally:
        """Count the entries behind a release, one for each site of the roster."""
        held = [int(vote) for vote in votes]
        objections = held.count(Vote.OBJECTS)
        return cls(len(held), objections + held.count(Vote.AGREES), objections)

    def is_against(self, n_groups: int) -> bool:
        """Return whether the votes are against the model.

        They are if at least half of those who voted object, and two more than the liars whom groups withstand, so that
        liars alone can never decide it.
        """
        return 2 * self.n_objections >= self.n_voted and self.n_objections >= n_groups // 2 + 2


def is_ballot(entries: IntVector) -> bool:
    """Return whether all entries are votes."""
    return bool(((entries >= Vote.ABSTAINS) & (entries <= Vote.OBJECTS)).all())


def compute_power(declared: Sequence[int], sigma: float, n_groups: int) -> float:
    """Return the probability that one vote detects an inverted model, rounded down to two digits.

    Against it the least liars who turn a model agree with it: those who declare most.

    Args:
        declared: rows of each site, as all parties know them.
        sigma: as in `count_least_rows`.
        n_groups: of sites.
    """
    least, n_liars = count_least_rows(sigma), n_groups // 2 + 1
    voting = sorted((rows for rows in declared if rows >= least), reverse=True)
    if len(voting) <= n_liars:
        return 0.0
    chances = [1.0]
    for rows in voting[n_liars:]:
        objects = 0.5 * math.erfc((THRESHOLD - EXCESS_OF_TURNED * rows / sigma) / math.sqrt(2))
        fewer, more = [each * (1 - objects) for each in chances], [each * objects for each in chances]
        chances = [one + other for one, other in zip([*fewer, 0.0], [0.0, *more], strict=True)]
    told = math.fsum(
        chance
        for number, chance in enumerate(chances)
        if Tally(len(declared), len(voting), number).is_against(n_groups)
    )
    return math.floor(told * 100) / 100


def describe_tally(tally: Tally) -> str:
    """Return the text for a site's owner when most votes object; it accuses no site."""
    return (
        f"{tally.n_objections} of {tally.n_voted} sites that voted say that the model so far predicts their rows worse "
        "than a constant. It is likely spoilt, by a lie, a fault or rows that are unlike: call all sites before anyone "
        "uses it. Votes name nobody. All parties see this (model-spoilt)"
    )
