# SPDX-License-Identifier: Apache-2.0
"""Sums over groups of sites: the release of a round with several sums, and the one vector made of it.

With G groups (`federation.groups`) a round is G sums over disjoint groups of the roster's sites, each with its whole
noise. The release is all G noisy sums, as G rows of one vector:

    | weight | entries of the noisy sum, as many as the query asks for |

The weight w tells what every party knows about a group:

    above 0    the rows that its sites declare at most, or its number of sites where any site declares none
    0          the group sits the round out; its entries are 0
    -1         its sum is false: no records add up to it

Each party computes the vector for the program from these rows by the same post-processing, in integers:

1. W is the median weight times the number of groups that are there, and any larger w counts as W. So a site that
   declares the rows of a thousand sites does not change other groups' values.
2. Each sum is scaled to W: x W // w.
3. An entry's value is the median of the groups' values; for an even number, the mean of the middle two, rounded down. A
   group that sat out has the value 0, and one whose sum is false has none.

One hostile site corrupts one group's values. As long as more than half of the groups are honest (false ones count as
not), the median lies between two honest values, or an honest one and 0. More than half of the groups have to be there:
else the median would be 0 everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from hedgerow import elementary
from hedgerow.codec import digest
from hedgerow.protocol.queries import IntVector, Query

REJECTED_WEIGHT = -1
"""The weight of a group to whose sum no records add up."""
_WEIGHT_BITS = 31
_NOISE = {0: 1.0, 3: 2.01, 5: 2.68, 7: 3.21}


def median_noise_factor(n_groups: int) -> float:
    """Return the noise's standard deviation in the median of G scaled groups, in units of one group's.

    It is G times the deviation of the median of G normal numbers: 2.01 at 3, 2.68 at 5, 3.21 at 7; sqrt(pi G / 2)
    beyond.
    """
    return _NOISE.get(n_groups, math.sqrt(math.pi * n_groups / 2))


def count_entries(query: Query, n_groups: int) -> int:
    """Return the entries of a query's release over `n_groups` groups (0: one sum over all sites)."""
    return n_groups * (1 + query.length) if n_groups else query.release_length


def pack(
    sums: Mapping[int, IntVector], weights: Mapping[int, int], length: int, n_groups: int, false: Collection[int] = ()
) -> IntVector:
    """Pack the groups' sums into the release of a round: int64 [n_groups (1 + length)].

    Without groups the release is the one sum itself.

    Args:
        sums: noisy sums by group, each int64 [length].
        weights: weights > 0 of the groups that have a sum.
        false: the groups to whose sums no records add up.
    """
    if not n_groups:
        return sums[0]
    rows = np.zeros((n_groups, 1 + length), dtype=np.int64)
    rows[list(false), 0] = REJECTED_WEIGHT
    for group, total in sums.items():
        rows[group, 0], rows[group, 1:] = weights[group], total
    return rows.reshape(-1)


def split_by_group(release: IntVector, n_groups: int) -> IntVector:
    """Split a release by groups: int64 [n_groups, 1 + length], weights first.

    Raises ValueError for a release that is not valid.
    """
    rows = release.reshape(n_groups, -1)
    there = rows[:, 0] > 0
    if (rows[:, 0] < REJECTED_WEIGHT).any() or rows[~there, 1:].any() or there.sum() <= n_groups // 2:
        raise ValueError("weights that are none, or too few groups")
    return rows


def combine(release: IntVector, n_groups: int) -> IntVector:
    """Combine the groups into the one vector for the program: int64 [length]; without groups, return the release.

    Raises as `split_by_group` does.
    """
    if not n_groups:
        return release
    rows = split_by_group(release, n_groups)
    there = np.sort(rows[rows[:, 0] > 0, 0])
    # Take the lower of two middle weights: one group's declaration must not enlarge the other's values.
    whole = len(there) * int(there[(len(there) - 1) // 2])
    # Declared numbers of rows have up to 48 bits. With 31 bits, all products with sums over records fit into 64.
    shift = max(0, whole.bit_length() - _WEIGHT_BITS)
    whole >>= shift
    weights = np.where(rows[:, 0] > 0, np.clip(rows[:, 0] >> shift, 1, whole), 1)
    quotients, rests = np.divmod(rows[:, 1:], weights[:, None])
    scaled = quotients * whole + rests * whole // weights[:, None]
    # Leave a false sum out: it tells nothing, and 0 in its place would pull the median towards 0.
    found = np.sort(scaled[rows[:, 0] != REJECTED_WEIGHT], axis=0)
    low, high = found[(len(found) - 1) // 2], found[len(found) // 2]
    # Mean of both, rounded down, without a sum that might wrap.
    return np.ascontiguousarray((low & high) + ((low ^ high) >> 1))


MAX_DRAWINGS = 8
"""Most drawings of groups in a run. Each uses one of the run's 16 set-ups; the others are for repeats."""
MIN_ROUNDS = 5
"""Fewest rounds of a drawing."""


def count_drawing_rounds(n_rounds: int) -> int:
    """Return how many rounds are summed over the same groups before these are drawn anew."""
    return max(MIN_ROUNDS, -(-n_rounds // MAX_DRAWINGS))


def derive_drawing(seed: int, number: int) -> bytes:
    """Return the bytes by which a drawing deals sites to groups: none in the first drawing, else 32.

    In the first drawing the sites have not drawn the seed yet.

    Args:
        seed: the seed that the sites have drawn for the trees, 0 to 2^63 - 1.
        number: number of the drawing, from 0.
    """
    return digest("drawing", seed.to_bytes(8, "big"), number.to_bytes(8, "big")) if number else b""


_TINY = 1e-300
DISAGREEING_ROUNDS = 10
DISAGREEING = 4.0
"""Mean mark over `DISAGREEING_ROUNDS` rounds: the squares of a group's distances are e^4 = 55 times the others'."""
MAX_OF_DRAWING, MAX_AHEAD = 2.5, 3.5
"""A site has the mean mark of its group, 0 to the first, of each drawing. Groups disagree where one site has so much
more than any other.

So it takes three drawings: of two, others stood beside it in one. In 200 honest runs whose rows differed by age no site
had so much more (docs/poisoning.md). It need not be a liar: two who lie only beside a third put the third ahead.
"""


@dataclass(frozen=True)
class Disagreement:
    """Sums of groups that differ by more than their noise does. Their comparison shows no culprit.

    Groups that lie alike are near each other, and a true one then stands alone. A true one beside another true one does
    not. So either the group that stands alone is unlike the whole, or all others are: by a lie, a fault or their rows.

    Attributes:
        alone: the nodes of the group that is far from all others; empty where groups are drawn anew.
        others: the nodes of each other group.
    """

    alone: tuple[int, ...] = ()
    others: tuple[tuple[int, ...], ...] = ()

    def describe(self, names: Sequence[str]) -> str:
        """Return the text for a site's owner: both possible readings, or no site's name.

        Args:
            names: the sites' names by node.
        """
        if not self.alone:
            return (
                "The sums of groups of sites differed by more than their noise does, in several drawings of groups. "
                "A site's rows may be unlike the others'; rarely, a site is faulty or dishonest. Which site it is "
                "cannot be told from this, so nobody is named or left out. All parties see this (groups-disagree)"
            )
        alone, *others = (", ".join(names[node] for node in group) for group in (self.alone, *self.others))
        rest = "both other groups are" if len(others) == 2 else "all other groups are"
        return (
            f"For {DISAGREEING_ROUNDS} rounds the sums of groups of sites have differed by more than their noise. "
            f"Either one group is unlike the whole ({alone}), or {rest} ({'; '.join(others)}): the releases cannot "
            "show which. Rows may be unlike the others'; rarely, sites on one side are faulty or dishonest. Call all "
            "sites, and accuse none. All parties see this (groups-disagree)"
        )


class LineUp:
    """Compare the sums of a run's groups, by the releases so far: every party finds the same.

    Of a round, a group's mark is the logarithm of its squared distance from the group that is nearest to it, over the
    usual (median) one of two of the others. Each group's noise is alike, so the mark of honest groups with like rows is
    about 0, whatever the noise is. That of a group whose sums are of other rows, or of none, grows with them. So do the
    marks of a true group beside two that lie alike, and those of groups with unlike rows: nobody is accused by them.

    If groups are drawn anew, each site has the marks of all groups in which it stood. If one site is far ahead of all
    others, this is reported as a disagreement, without the site's name.

    Args:
        n_rounds: of a drawing; 0 for groups that are never drawn anew.
    """

    def __init__(self, n_sites: int, n_groups: int, n_rounds: int = 0) -> None:
        self._n_groups, self._n_rounds = n_groups, n_rounds
        self._marks: list[Mapping[int, float]] = []
        self._evidence, self._of_drawing, self._n_taken = np.zeros(n_sites), np.zeros(n_groups), 0
        self._told: set[int] = set()

    def take(self, release: IntVector, parts: Sequence[Sequence[int]]) -> list[Disagreement]:
        """Take a release in, and return the disagreements that it shows for the first time.

        Args:
            parts: the nodes of the roster by groups.
        """
        if not self._n_groups:
            return []
        marks = self._mark_groups(split_by_group(release, self._n_groups))
        if self._n_rounds:
            return self._compare_drawings(marks, parts)
        self._marks = [*self._marks, marks][-DISAGREEING_ROUNDS:] if marks else self._marks
        if len(self._marks) < DISAGREEING_ROUNDS or not marks:
            return []
        mean = {group: math.fsum(each.get(group, 0.0) for each in self._marks) / DISAGREEING_ROUNDS for group in marks}
        found = [group for group in mean if mean[group] > DISAGREEING and group not in self._told]
        self._told.update(found)
        groups = [tuple(part) for part in parts]
        return [Disagreement(groups[group], tuple(groups[:group] + groups[group + 1 :])) for group in found]

    def _mark_groups(self, rows: IntVector) -> dict[int, float]:
        """Return the marks by group; none if a group sits out, because distances to it mean nothing."""
        there = np.flatnonzero(rows[:, 0] > 0).tolist()
        if len(there) < self._n_groups:
            false = np.flatnonzero(rows[:, 0] == REJECTED_WEIGHT).tolist()
            return dict.fromkeys(false, DISAGREEING) if self._n_rounds else {}
        scaled = rows[:, 1:].astype(np.float64) / rows[:, :1]
        squares = np.zeros((len(there), len(there)))
        for one, other in combinations(there, 2):
            # math.fsum rounds once, so that the result is the same on every machine.
            squares[one, other] = squares[other, one] = math.fsum((scaled[one] - scaled[other]) ** 2) + _TINY
        marks = {}
        for group in there:
            others = [other for other in there if other != group]
            usual = np.median([squares[one, other] for one in others for other in others if one < other])
            marks[group] = float(elementary.log(squares[group, others].min()) - elementary.log(usual))
        return marks

    def _compare_drawings(self, marks: Mapping[int, float], parts: Sequence[Sequence[int]]) -> list[Disagreement]:
        for group, mark in marks.items():
            self._of_drawing[group] += mark / self._n_rounds
        self._n_taken += 1
        if self._n_taken % self._n_rounds or self._told:
            return []
        for group, part in enumerate(parts):
            self._evidence[list(part)] += min(max(self._of_drawing[group], 0.0), MAX_OF_DRAWING)
        self._of_drawing[:] = 0
        second, first = np.sort(self._evidence)[-2:].tolist()
        if first - second <= MAX_AHEAD:
            return []
        self._told = {0}
        return [Disagreement()]
