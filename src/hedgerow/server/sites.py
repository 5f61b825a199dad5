# SPDX-License-Identifier: Apache-2.0
"""The sites of a run: their state, their faults, and who may be in an epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from hedgerow.builds import describe_build
from hedgerow.errors import AggregationError
from hedgerow.methods.replica import PROGRAM_DIFFERS
from hedgerow.plan.plan import Plan
from hedgerow.secagg.guarantees import MIN_COHORT, least_groups, origin_members, sparse_colluders
from hedgerow.secagg.messages import Roster
from hedgerow.secagg.transitions import Code

MIN_NOISED_COHORT = 2
"""If every site adds noise to its own vector, two sites can form a sum without reading each other's vector."""

# A site with this many timeouts is not asked any more.
MAX_TIMEOUTS_IN_A_ROW, MAX_TIMEOUTS = 2, 3
MAX_BROKEN_SETUPS = 2
MAX_LOST_EPOCHS = 2
"""Epochs that a site may leave by itself; after that, no new epoch is begun for it."""
MAX_UNACKNOWLEDGED = 2
"""Set-ups in which one of two sites did not acknowledge the other; after that they are never in one epoch again."""
# Refusals of a node that may have answered more than this journal knows of, or that received an impossible message.
_DOUBTS = {
    Code.PURPOSE_ANSWERED.value,
    Code.SECOND_MANIFEST.value,
    "round-out-of-step",
    "run-closed",
    "release-implausible",
    "release-unfit",
    "structure-seed",
}


@dataclass
class FaultCounts:
    """The costs that a site has caused others in this run. Its next connection does not clear them.

    Attributes:
        timeouts, in_a_row: phases in which it did not answer in time: all, and since its last answer.
        broken_setups: set-ups in which its message was missing while most others' messages were there.
        lost_epochs: how often it was in the epoch and came back without its state of it.
        unacknowledged: other site -> set-ups in which one of the two did not acknowledge the other's shares.
        may_return: whether it may be taken back: once, and again after it has helped to make a release.
    """

    timeouts: int = 0
    in_a_row: int = 0
    broken_setups: int = 0
    lost_epochs: int = 0
    unacknowledged: Counter[str] = field(default_factory=Counter)
    may_return: bool = True

    @property
    def weight(self) -> int:
        """The sum of all counts; the site with the larger sum is left out first."""
        return self.timeouts + self.broken_setups + self.lost_epochs + self.unacknowledged.total()

    def count_timeout(self) -> bool:
        """Count a timeout; return whether the site has now used up its timeouts."""
        self.timeouts, self.in_a_row = self.timeouts + 1, self.in_a_row + 1
        return self.in_a_row >= MAX_TIMEOUTS_IN_A_ROW or self.timeouts >= MAX_TIMEOUTS

    def text(self) -> str:
        """Describe the counts in words; empty for a site without faults."""
        counts = [
            (self.timeouts, "did not answer in time"),
            (self.broken_setups, "broke a set-up"),
            (self.lost_epochs, "came back without its epoch"),
        ]
        parts = [f"{words} ({count} times)" if count > 1 else words for count, words in counts if count]
        parts += [f"was not in agreement with {other} on shares" for other in sorted(self.unacknowledged)]
        return ", ".join(parts)


class Connection(Enum):
    """A site's connection."""

    GONE = "there is none, or its node has not said Hello on it"
    AWAY = "one end has given it up; the node dials again, so a round has time for it"
    RETURNING = "lost when the coordinator was started again; the site was in the epoch and has not come back"
    CONNECTED = "its node has said Hello"


class Consent(Enum):
    """A site's answer to the invitation."""

    OPEN = "nothing yet on this connection"
    READY = "it has checked plan and policy and takes part"
    REFUSED = "it will not do what was asked"


class Membership(Enum):
    """A site's place in the epoch."""

    OUTSIDE = "not in it, or it has lost its state of it"
    SETTING_UP = "it takes part in the set-up that is under way"
    INSIDE = "in it"


class SentMark(Enum):
    """Whether, and on which connection, a site was sent something."""

    NO = "no"
    EARLIER = "on an earlier connection"
    NOW = "on the connection that it has"


@dataclass(eq=False)
class SiteRecord:
    """The state of a site in a run.

    Attributes:
        name: as in the roster.
        node: the node's number in the roster.
        link: its connection.
        consent: whether it takes part.
        refusal, is_explained: the code of its refusal, and whether a slot that this run gave up explains it.
        place: its membership in the epoch.
        spec: whether it was sent the open slot's spec, or the last releases at the end of the run.
        opening: whether it was asked for shares that open the slot's sum.
        is_silent: whether it did not answer in time, and has not sent anything since.
        has_answered: whether it has answered in the current phase.
        claims_more: whether it claims to hold more releases than there are.
        knows_origin: whether it knows which epoch drew the trees' seed, as far as this connection tells.
        is_new: whether it did not know this run when it connected, and has not joined it since.
        n_held: number of releases that it holds.
        left_out: code of the reason why it is not asked any more; "" for a site that is asked.
        fault_counts: its faults in this run.
        build: the build of Hedgerow that it claims to be.
        shows_figures: whether its policy lets its own figures leave it; None if it has not said so.
    """

    name: str
    node: int
    link: Connection = Connection.GONE
    consent: Consent = Consent.OPEN
    refusal: str = ""
    is_explained: bool = False
    place: Membership = Membership.OUTSIDE
    spec: SentMark = SentMark.NO
    opening: SentMark = SentMark.NO
    is_silent: bool = False
    has_answered: bool = False
    claims_more: bool = False
    knows_origin: bool = False
    is_new: bool = False
    n_held: int = 0
    left_out: str = ""
    fault_counts: FaultCounts = field(default_factory=FaultCounts)
    build: str = ""
    shows_figures: bool | None = None

    # What is asked of it ---------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether messages can be sent to it."""
        return self.link is Connection.CONNECTED

    @property
    def is_ready(self) -> bool:
        """Whether it takes part in the run."""
        return self.consent is Consent.READY

    @property
    def has_refused(self) -> bool:
        """Whether its last word was a refusal."""
        return self.consent is Consent.REFUSED

    @property
    def is_inside(self) -> bool:
        """Whether it is in the current epoch."""
        return self.place is Membership.INSIDE

    @property
    def is_setting_up(self) -> bool:
        """Whether it takes part in the set-up that is under way."""
        return self.place is Membership.SETTING_UP

    @property
    def is_connected_and_willing(self) -> bool:
        """Whether it is connected and speaks, and has not refused."""
        return self.is_connected and not self.is_silent and not self.has_refused

    @property
    def can_answer(self) -> bool:
        """Whether an answer from it can be expected."""
        return self.is_connected_and_willing and not self.left_out and not self.claims_more

    @property
    def may_join(self) -> bool:
        """Whether it may still become ready."""
        return self.consent is Consent.OPEN and not (self.is_silent or self.left_out or self.claims_more)

    @property
    def disputes_journal(self) -> bool:
        """Whether it claims releases or answers that the journal does not have, or other ones."""
        return self.claims_more or (self.has_refused and self.refusal in _DOUBTS and not self.is_explained)

    # What happens to it ----------------------------------------------------------------------------------------------

    def greet(self) -> None:
        """Record that its node has said Hello."""
        self.link = Connection.CONNECTED
        if self.has_refused:
            self.consent = Consent.OPEN

    def leave(self, *, comes_back: bool = False) -> None:
        """Record that its connection is gone: it must say Hello again, and leaves a set-up.

        Args:
            comes_back: whether one end only gave the connection up, so that the node will dial again.
        """
        if comes_back and self.link is not Connection.RETURNING:
            self.link = Connection.AWAY
        elif self.is_connected:
            self.link = Connection.GONE
        if self.is_ready:
            self.consent = Consent.OPEN
        self._quit_setup()
        self.knows_origin = False
        marks = (self.spec, self.opening)
        self.spec, self.opening = (SentMark.EARLIER if mark is SentMark.NOW else mark for mark in marks)

    def refuse(self, code: str, *, is_explained: bool = False) -> None:
        """Record that it will not do what was asked.

        With `is_explained` the refusal does not contradict this journal.
        """
        self.consent, self.refusal, self.is_explained = Consent.REFUSED, code, is_explained
        self._quit_setup()

    def invite(self) -> None:
        """Record that it is invited to take part, from the next epoch on."""
        self.place = Membership.OUTSIDE
        if self.is_ready:
            self.consent = Consent.OPEN

    def answer(self) -> None:
        """Record that it has answered in time."""
        self.has_answered = True
        self.fault_counts.in_a_row = 0

    def fall_silent(self) -> None:
        """Record that it did not answer in time."""
        self.is_silent = True
        if self.link is Connection.AWAY:
            self.link = Connection.GONE

    def leave_out(self, code: str) -> None:
        """Record that it is not asked any more, and not waited for."""
        self.left_out = code
        self._quit_setup()
        if not self.is_connected:
            self.link = Connection.GONE

    def take_back(self) -> None:
        """Record that it is asked again; one more timeout, or broken set-up, excludes it again."""
        self.left_out = ""
        self.fault_counts.may_return, self.fault_counts.in_a_row = False, 0

    def _quit_setup(self) -> None:
        if self.is_setting_up:
            self.place = Membership.OUTSIDE


def count_to_begin(plan: Plan, n_sites: int, *, draws_seed: bool | None = None) -> int:
    """Return how many sites of a roster an epoch needs.

    Args:
        draws_seed: whether the epoch draws the trees' seed; None for a first epoch, which does if the plan has a joint
            seed.
    """
    draws_seed = plan.has_joint_structure if draws_seed is None else draws_seed
    least = _count_in_sum(plan) * least_groups(plan.federation.groups)
    return max(least, origin_members(n_sites) if draws_seed else 0)


def _count_in_sum(plan: Plan) -> int:
    is_noised = plan.privacy.noise == "distributed" and not plan.federation.groups
    return max(plan.federation.min_sites, MIN_NOISED_COHORT if is_noised else MIN_COHORT)


class Sites:
    """The sites of a run. It yields their records in the order of their names.

    Attributes:
        draws_seed: whether the next epoch draws the trees' seed, which takes more of the roster than a sum.
        invited: sites for which the parameters of the set-up were made.
    """

    def __init__(self, roster: Roster, plan: Plan) -> None:
        self._plan = plan
        self._by_node = [SiteRecord(site.name, node) for node, site in enumerate(roster.sites)]
        self._by_name = {site.name: site for site in sorted(self._by_node, key=lambda site: site.name)}
        self.draws_seed = False
        self.invited: tuple[SiteRecord, ...] = ()

    def __getitem__(self, name: str) -> SiteRecord:
        return self._by_name[name]

    def __iter__(self) -> Iterator[SiteRecord]:
        return iter(self._by_name.values())

    def __reversed__(self) -> Iterator[SiteRecord]:
        return reversed(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_node)

    def at_node(self, node: int) -> SiteRecord:
        """Return the site of a node."""
        return self._by_node[node]

    def name(self, node: int) -> str:
        """Return the name of a node's site."""
        return self._by_node[node].name

    def names(self, nodes: Iterable[int]) -> set[str]:
        """Return the names of the nodes' sites."""
        return {self.name(node) for node in nodes}

    @property
    def refusals(self) -> dict[str, str]:
        """The code of each site that has refused, by name."""
        return {site.name: site.refusal for site in self if site.has_refused}

    @property
    def left_out(self) -> dict[str, str]:
        """The reason of each site that is not asked any more, by name."""
        return {site.name: site.left_out for site in self if site.left_out}

    @property
    def available(self) -> set[str]:
        """The sites that could be in a new epoch: ready, and an answer can be expected."""
        return {site.name for site in self if site.is_ready and site.can_answer}

    @property
    def is_any_returning(self) -> bool:
        """Whether the run waits for a site that was in the epoch before the coordinator restarted."""
        return any(site.link is Connection.RETURNING for site in self)

    def stop_waiting(self) -> None:
        """Stop waiting for sites that have not come back since the coordinator restarted."""
        for site in self:
            if site.link is Connection.RETURNING:
                site.link = Connection.GONE

    def begin_epoch(self, members: set[str]) -> None:
        """Record that a set-up begins with these sites; all others are outside until the next one."""
        self.invited = tuple(site for site in self if site.name in members)
        for site in self:
            site.place = Membership.SETTING_UP if site.name in members else Membership.OUTSIDE
            if site.link is Connection.AWAY:
                site.link = Connection.GONE

    def begin_slot(self) -> None:
        """Record that no site has the spec of the slot, or the releases that end the run."""
        for site in self:
            site.spec = SentMark.NO

    # What a site that costs the others too much may still do ---------------------------------------------------------

    @property
    def n_believed(self) -> int:
        """Number of sites whose common claim is believed: more than may lie, and at least two."""
        return max(2, sparse_colluders(len(self)) + 1)

    @property
    def is_journal_doubted(self) -> bool:
        """Whether enough sites dispute the journal (`SiteRecord.disputes_journal`) to be believed."""
        return sum(site.disputes_journal for site in self) >= self.n_believed

    def readmission_candidate(self) -> SiteRecord | None:
        """Return the site with the fewest faults among those left out that may return; None if none may."""
        left_out = (site for site in self if site.left_out and site.fault_counts.may_return)
        among = (site for site in left_out if site.is_connected_and_willing and site.is_ready)
        return min(among, key=lambda site: (site.fault_counts.weight, site.name), default=None)

    def members_for_next_epoch(self) -> set[str]:
        """Return the available sites for a new epoch, without pairs that failed to acknowledge each other.

        A pair counts after two such set-ups. A site in several such pairs is removed first. Of a remaining pair both
        sites are removed, because one of them has failed and no other site sees which. So a hostile site that does this
        to an honest one is removed with it, and can do it to no other. If too few sites would be left, only the one
        with more faults is removed.
        """
        among = self.available
        odds = {
            (one, other)
            for one in among
            for other, count in self[one].fault_counts.unacknowledged.items()
            if other in among and count >= MAX_UNACKNOWLEDGED
        }
        rest = set(among)
        while True:
            ends = Counter(site for pair in odds if rest.issuperset(pair) for site in set(pair))
            worst = max(ends, key=lambda site: (ends[site], self[site].fault_counts.weight, site), default="")
            # A pair may be noted at both of its sites; count it once.
            others = {site for pair in odds if worst in pair and rest.issuperset(pair) for site in pair} - {worst}
            if len(others) < 2:
                break
            rest.remove(worst)
        rest -= {site for pair in odds if rest.issuperset(pair) for site in pair}
        if len(rest) >= self.least:
            return rest
        kept = set(among)
        while pairs := [pair for pair in odds if kept.issuperset(pair)]:
            kept.remove(max((site for pair in pairs for site in pair), key=lambda s: (self[s].fault_counts.weight, s)))
        return kept

    def fault_summary(self) -> str:
        """Describe the faults of the sites, as the end of a sentence."""
        texts = ((site.name, site.fault_counts.text()) for site in self)
        return "".join(f"; {name} {text}" for name, text in texts if text)

    @property
    def least(self) -> int:
        """The fewest sites with which an epoch is set up."""
        return count_to_begin(self._plan, len(self), draws_seed=self.draws_seed)

    @property
    def least_in_sum(self) -> int:
        """The fewest sites of a sum, or of one group's sum."""
        return _count_in_sum(self._plan)

    @property
    def why_needed(self) -> str:
        """The reason for the needed number of sites, as the end of a sentence."""
        if self.draws_seed:
            return 'for with structure_seed = "joint" more than two thirds of the roster draw the trees\' seed'
        return "and as many as secure aggregation's threshold"

    def too_few(self, needed: int) -> AggregationError:
        """Return the error for a run that cannot go on with the sites that are there; it needs this many."""
        said = "".join(f"; {site} refused: {code}" for site, code in self.refusals.items())
        builds = [f"{site.name} is {site.build}" for site in self if site.refusal == PROGRAM_DIFFERS]
        said += f"; here is {describe_build()}, {', '.join(builds)}" if builds else ""
        said += self.fault_summary()
        return AggregationError(
            "too-few-sites", n_ready=len(self.available), n_sites=len(self), said=said,
            least=max(needed, self.least), why=self.why_needed,
        )  # fmt: skip
