"""Who is there: what the coordinator knows of every site of the roster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hedgerow.protocol.errors import AggregationError
from hedgerow.protocol.plan import Plan
from hedgerow.secagg.guarantees import origin_members
from hedgerow.secagg.roster import Roster

SMALLEST_COHORT = 3
SMALLEST_NOISED_COHORT = 2
"""Where every site adds noise to its own vector, two sites can sum without reading each other's."""


@dataclass
class Sites:
    """The sites of a run, by name.

    Attributes:
        connected: whose node has said Hello on its connection.
        ready: who has checked plan and policy and takes part.
        refusals: who has refused, and the code.
        silent: who was asked and did not answer in time, and has not spoken since.
        outsiders: who is not in the current epoch, or has lost its state of it.
        members: who takes part in the set-up that is under way.
        away: in the epoch, but one end has given the connection up; the node dials again, so a round has time for it.
        returning: who was in the epoch before the coordinator was started again, and has not come back.
        asked: whose node was sent the spec of the open slot, on the connection that it has.
        openers: whose node was asked to help to open the slot's sum, on the connection that it has.
        tried: who was asked for that at all, on whatever connection.
        answered: who has answered in the current phase.
        held: how many releases each node holds.
        n_invited: sites for which the parameters of the set-up were made.
        draws_seed: whether the next epoch is to draw the trees' seed, which needs more of the roster than a sum.
    """

    roster: Roster
    connected: set[str] = field(default_factory=set)
    ready: set[str] = field(default_factory=set)
    refusals: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    outsiders: set[str] = field(default_factory=set)
    members: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)
    returning: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    openers: set[str] = field(default_factory=set)
    tried: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    held: dict[str, int] = field(default_factory=dict)
    n_invited: int = 0
    draws_seed: bool = False

    def __post_init__(self) -> None:
        self._numbers = {site.name: number for number, site in enumerate(self.roster.sites)}

    @property
    def names(self) -> set[str]:
        """All sites of the roster."""
        return set(self._numbers)

    def name(self, node: int) -> str:
        """The name of a node's site."""
        return self.roster.sites[node].name

    def number(self, site: str) -> int:
        """The number of a site's node."""
        return self._numbers[site]

    def is_heard(self, site: str) -> bool:
        """Whether an answer of this site can be waited for."""
        return site in self.connected and site not in self.silent and site not in self.refusals

    def heard(self, among: Iterable[str]) -> set[str]:
        """Those whose answer can be waited for."""
        return {site for site in among if self.is_heard(site)}

    def leave(self, site: str) -> None:
        """The site's connection is gone: it must say Hello again, and begins a set-up anew."""
        self.connected.discard(site)
        self.ready.discard(site)
        self.members.discard(site)
        self.asked.discard(site)
        self.openers.discard(site)

    def refuse(self, site: str, code: str) -> None:
        """The site will not do what was asked."""
        self.refusals[site] = code
        self.ready.discard(site)
        self.members.discard(site)
        self.returning.discard(site)
        self.away.discard(site)

    def begin_epoch(self, members: set[str]) -> None:
        """A set-up begins with these sites; all others are outside until the next one."""
        self.members, self.n_invited = set(members), len(members)
        self.outsiders, self.away = self.names - members, set()

    def least(self, plan: Plan) -> int:
        """Sites without which no epoch is set up."""
        smallest = SMALLEST_NOISED_COHORT if plan.privacy.noise == "distributed" else SMALLEST_COHORT
        return max(plan.federation.min_sites, smallest, origin_members(len(self.names)) if self.draws_seed else 0)

    def too_few(self, plan: Plan) -> AggregationError:
        """The error for a run that cannot begin or go on for want of sites."""
        said = "".join(f"; {site} refused: {code}" for site, code in sorted(self.refusals.items()))
        there = len(self.heard(self.ready))
        why = "and as many as secure aggregation's threshold"
        if self.draws_seed:
            why = 'for with structure_seed = "joint" more than two thirds of the roster draw the trees\' seed'
        return AggregationError(
            f"Too few sites take part: {there} of {len(self.names)} are there and ready{said}.",
            cause=f"At least {self.least(plan)} are needed, {why}.",
            remedy="Wait for the others and start a new run; look at the logs of those that refused.",
            code="too-few-sites",
        )
