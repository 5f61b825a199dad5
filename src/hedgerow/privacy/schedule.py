# SPDX-License-Identifier: Apache-2.0
"""The schedule of a run: its queries and costs, which give its rounds, lengths, words and events.

A method, a survey and an evaluation each say their schedule before they run: which rounds there are, how often, and
how large and how expensive each is at most. Their programs ask no more, whatever is released, and tests run every
program against its schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hedgerow.privacy.calibration import ROUNDING, NoiseDemand, integer_sigma, noise_of
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    Event,
    FilteredGaussianEvent,
    SampledGaussianEvent,
    UnnoisedEvent,
)
from hedgerow.protocol.queries import Query, SiteQuery


@dataclass(frozen=True)
class AlikeRounds:
    """Rounds of one kind, each counted as large as the largest.

    Attributes:
        query: what each asks for, at most: its length, bound and squared sensitivity are the largest of any.
        count: how many there are, at most; >= 1.
        least_squared: the smallest squared sensitivity of any, where a multiplier's noise has the coarsest grid; 0
            where all have the query's.
        grid_length: entries that the grid is paid for in each release, at least `query.length`; 0 for as many. The
            noise of plans that were agreed on follows from it, so it stays where a closer bound is known.
        is_exact: whether the noise is charged as the integer that it is, and not as its multiplier, which is a little
            less: where all have the query's sensitivity, and nothing is calibrated by the multiplier.
        n_choices: entries of a release of choices; 0 where a release is as long as the sum.
    """

    query: Query
    count: int = 1
    least_squared: int = 0
    grid_length: int = 0
    is_exact: bool = False
    n_choices: int = 0

    @classmethod
    def of(
        cls,
        kind: type[Query],
        *,
        length: int,
        bound: int,
        sensitivity_squared: int,
        noise_multiplier: float,
        count: int = 1,
        least_squared: int = 0,
        grid_length: int = 0,
        is_exact: bool = False,
    ) -> AlikeRounds:
        """Make rounds of a kind with Gaussian noise from the fields of a query; see the attributes."""
        query = (SiteQuery if issubclass(kind, SiteQuery) else Query)(
            purpose=kind.purpose_of(0, "any"),
            length=length,
            bound=bound,
            sensitivity_squared=sensitivity_squared,
            noise_multiplier=noise_multiplier,
        )
        return cls(query, count, least_squared, grid_length, is_exact)

    @property
    def release_length(self) -> int:
        """Entries of each release."""
        return self.n_choices or self.query.release_length

    @property
    def event(self) -> Event:
        """Event of all these rounds together, at their most expensive."""
        one = noise_of(self.query).event
        if isinstance(one, UnnoisedEvent):
            return one
        multiplier = self.query.noise_multiplier * (1 - ROUNDING)
        if isinstance(one, DiscreteGaussianEvent) and not self.is_exact:
            sigma = integer_sigma(self.query.noise_multiplier, self.least_squared or self.query.sensitivity_squared)
            one = DiscreteGaussianEvent(multiplier, sigma, self.grid_length or self.query.length)
        elif isinstance(one, SampledGaussianEvent | FilteredGaussianEvent):
            one = replace(one, noise_multiplier=multiplier)
        return replace(one, count=self.count)

    def demand(self, weight: float) -> NoiseDemand:
        """Return the rounds' demand for a calibration; `weight` is each round's share of mu²."""
        squared = self.least_squared or self.query.sensitivity_squared
        return NoiseDemand(squared, self.grid_length or self.query.length, self.count, weight)


@dataclass(frozen=True)
class Schedule:
    """All rounds of a run, roughly in their order.

    Attributes:
        rounds: those that are alike together. One of length 0 is reserved, and will not come.
        together: what all cost, where the share of each depends on what is released; else empty.
        votes: of the sites, cast with the vectors of some rounds (`hedgerow.protocol.votes`); None without any.
    """

    rounds: tuple[AlikeRounds, ...]
    together: tuple[Event, ...] = ()
    votes: AlikeRounds | None = None

    @property
    def n_rounds(self) -> int:
        """Largest number of vectors that the run asks of every node."""
        return sum(alike.count for alike in self.rounds)

    @property
    def longest(self) -> int:
        """Entries of the longest vector."""
        return max(alike.query.length for alike in self.rounds)

    @property
    def n_released(self) -> int:
        """Numbers in all releases together, at most."""
        return sum(alike.count * alike.release_length for alike in self.rounds)

    @property
    def kinds(self) -> dict[str, tuple[int, int]]:
        """Number of the queries of each kind and their largest length, by the kind's name."""
        found: dict[str, tuple[int, int]] = {}
        for alike in self.rounds:
            if alike.query.length:
                kind = alike.query.purpose.kind
                count, longest = found.get(kind, (0, 0))
                found[kind] = count + alike.count, max(longest, alike.query.length)
        return found

    @property
    def events(self) -> list[Event]:
        """Events of the run at its most expensive; rounds without noise are one un-noised event, the first."""
        events = list(self.together) or [alike.event for alike in self.rounds]
        events += [] if self.votes is None else [self.votes.event]
        noisy: list[Event] = [event for event in events if not isinstance(event, UnnoisedEvent)]
        return noisy if len(noisy) == len(events) else [UnnoisedEvent(), *noisy]
