"""Who is there: what the coordinator knows of every site of the roster."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from hedgerow.errors import AggregationError
from hedgerow.plan.plan import Plan
from hedgerow.secagg.guarantees import default_colluders, origin_members
from hedgerow.secagg.roster import Roster
from hedgerow.secagg.transitions import Code

SMALLEST_COHORT = 3
SMALLEST_NOISED_COHORT = 2
"""Where every site adds noise to its own vector, two sites can sum without reading each other's."""


MOST_TIMEOUTS_IN_A_ROW, MOST_TIMEOUTS = 2, 3
"""A site that has used up its time so often is asked no more."""
MOST_BROKEN_SETUPS = 2
MOST_LOST_EPOCHS = 2
"""For a site that has left so many epochs by itself, no new one is begun."""
MOST_UNACKNOWLEDGED = 2
"""Two sites of which one did not acknowledge the other in so many set-ups are not in one again."""
_DOUBTS = {
    Code.PURPOSE_ANSWERED.value,
    Code.SECOND_MANIFEST.value,
    "round-out-of-step",
    "run-closed",
    "release-implausible",
    "release-unfit",
    "structure-seed",
}
"""What a node says that may have answered more than this journal knows of, or was told what cannot be."""


@dataclass
class Conduct:
    """What a site has cost the others in this run. Its next connection does not clear it.

    Attributes:
        timeouts, in_a_row: phases in which it was waited for in vain: all, and since it answered last.
        broken_setups: set-ups in which its message was missing while those of most others were there.
        lost_epochs: how often it was in the epoch and came back without it.
        unacknowledged: by other site, set-ups in which one of the two did not acknowledge the other's shares.
        may_return: whether it may be taken back: once, and again when it has helped to make a release since.
    """

    timeouts: int = 0
    in_a_row: int = 0
    broken_setups: int = 0
    lost_epochs: int = 0
    unacknowledged: Counter[str] = field(default_factory=Counter)
    may_return: bool = True

    @property
    def weight(self) -> int:
        """All of it in one number; whoever has more goes first."""
        return self.timeouts + self.broken_setups + self.lost_epochs + self.unacknowledged.total()

    def timed_out(self) -> bool:
        """Count a timeout; whether it was one too many."""
        self.timeouts, self.in_a_row = self.timeouts + 1, self.in_a_row + 1
        return self.in_a_row >= MOST_TIMEOUTS_IN_A_ROW or self.timeouts >= MOST_TIMEOUTS

    def text(self) -> str:
        """What it comes to, in words; empty for a site that has cost nothing."""
        told = [
            (self.timeouts, "did not answer in time"),
            (self.broken_setups, "broke a set-up"),
            (self.lost_epochs, "came back without its epoch"),
        ]
        parts = [f"{words} ({count} times)" if count > 1 else words for count, words in told if count]
        parts += [f"was not in agreement with {other} on shares" for other in sorted(self.unacknowledged)]
        return ", ".join(parts)


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
        sent_spec: the same, on whatever connection.
        openers: whose node was asked to help to open the slot's sum, on the connection that it has.
        tried: who was asked for that at all, on whatever connection.
        answered: who has answered in the current phase.
        held: how many releases each node holds.
        draws_seed: whether the next epoch is to draw the trees' seed, which needs more of the roster than a sum.
        invited: sites for which the parameters of the set-up were made.
        conduct: what each site has cost the others.
        left_out: who is asked no more, and the code that says why.
        claims: whose node says that it holds more releases than there are.
        knows_origin: whose node knows which epoch drew the trees' seed, as far as its connection tells.
        explained: who has refused what a slot that was given up here explains.
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
    sent_spec: set[str] = field(default_factory=set)
    openers: set[str] = field(default_factory=set)
    tried: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    held: dict[str, int] = field(default_factory=dict)
    draws_seed: bool = False
    invited: frozenset[str] = frozenset()
    conduct: defaultdict[str, Conduct] = field(default_factory=lambda: defaultdict(Conduct))
    left_out: dict[str, str] = field(default_factory=dict)
    claims: set[str] = field(default_factory=set)
    explained: set[str] = field(default_factory=set)
    knows_origin: set[str] = field(default_factory=set)

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
        return self.is_there(site) and site not in self.left_out and site not in self.claims

    def is_there(self, site: str) -> bool:
        """Whether this site is connected and speaks, and has not refused."""
        return site in self.connected and site not in self.silent and site not in self.refusals

    def heard(self, among: Iterable[str]) -> set[str]:
        """Those whose answer can be waited for."""
        return {site for site in among if self.is_heard(site)}

    def leave(self, site: str) -> None:
        """The site's connection is gone: it must say Hello again, and begins a set-up anew."""
        self.connected.discard(site)
        self.ready.discard(site)
        self.members.discard(site)
        self.knows_origin.discard(site)
        self.asked.discard(site)
        self.openers.discard(site)

    def refuse(self, site: str, code: str, *, is_explained: bool = False) -> None:
        """The site will not do what was asked.

        Args: is_explained: whether that is no wonder, so that it says nothing against this journal.
        """
        self.refusals[site] = code
        (self.explained.add if is_explained else self.explained.discard)(site)
        self.ready.discard(site)
        self.members.discard(site)
        self.returning.discard(site)
        self.away.discard(site)

    def begin_epoch(self, members: set[str]) -> None:
        """A set-up begins with these sites; all others are outside until the next one."""
        self.members, self.invited = set(members), frozenset(members)
        self.outsiders, self.away = self.names - members, set()

    # What a site that costs the others too much may still do ---------------------------------------------------------

    @property
    def n_believed(self) -> int:
        """So many sites are believed: more than are taken to lie, and never one alone."""
        return max(2, default_colluders(len(self.names)) + 1)

    @property
    def is_journal_doubted(self) -> bool:
        """Whether several sites say that they have given or hold more than the journal knows of, or other releases."""
        doubting = {site for site, code in self.refusals.items() if code in _DOUBTS} - self.explained
        return len(self.claims | doubting) >= self.n_believed

    def leave_out(self, site: str, code: str) -> None:
        """The site is asked no more."""
        self.left_out[site] = code
        self.members.discard(site)
        self.returning.discard(site)
        self.away.discard(site)

    def take_back(self) -> str | None:
        """Ask one again of those who were left out, for there are too few without: the one that has cost least."""
        among = [
            (self.conduct[site].weight, site)
            for site in self.left_out
            if self.conduct[site].may_return and self.is_there(site) and site in self.ready
        ]
        if not among:
            return None
        _, site = min(among)
        conduct = self.conduct[site]
        # One more timeout, or broken set-up, and it is out again.
        conduct.may_return, conduct.in_a_row = False, 0
        del self.left_out[site]
        return site

    def agreeing(self, among: set[str], plan: Plan) -> set[str]:
        """Those of whom no two failed to acknowledge each other in two set-ups.

        Who is an end of several such pairs goes first. Of a pair that is left both ends go, for one of them has failed
        and nobody else sees which: a hostile site that does this to an honest one goes with it, and can do it to no
        other. Where too few would be left, only the end that has cost more goes.
        """
        odds = {
            (one, other)
            for one in among
            for other, count in self.conduct[one].unacknowledged.items()
            if other in among and count >= MOST_UNACKNOWLEDGED
        }
        rest = set(among)
        while True:
            ends = Counter(site for pair in odds if rest.issuperset(pair) for site in set(pair))
            worst = max(ends, key=lambda site: (ends[site], self.conduct[site].weight, site), default="")
            # A pair may be noted at both of its ends, which is still one pair.
            others = {site for pair in odds if worst in pair and rest.issuperset(pair) for site in pair} - {worst}
            if len(others) < 2:
                break
            rest.remove(worst)
        rest -= {site for pair in odds if rest.issuperset(pair) for site in pair}
        if len(rest) >= self.least(plan):
            return rest
        kept = set(among)
        while pairs := [pair for pair in odds if kept.issuperset(pair)]:
            kept.remove(max((site for pair in pairs for site in pair), key=lambda s: (self.conduct[s].weight, s)))
        return kept

    def said_of_them(self) -> str:
        """Who has cost the others how much, as the end of a sentence."""
        told = [(name, self.conduct[name].text()) for name in sorted(self.conduct)]
        return "".join(f"; {name} {text}" for name, text in told if text)

    def least(self, plan: Plan) -> int:
        """Sites without which no epoch is set up."""
        smallest = SMALLEST_NOISED_COHORT if plan.privacy.noise == "distributed" else SMALLEST_COHORT
        return max(plan.federation.min_sites, smallest, origin_members(len(self.names)) if self.draws_seed else 0)

    def too_few(self, plan: Plan) -> AggregationError:
        """The error for a run that cannot begin or go on for want of sites."""
        said = "".join(f"; {site} refused: {code}" for site, code in sorted(self.refusals.items()))
        said += self.said_of_them()
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
