# SPDX-License-Identifier: Apache-2.0
"""Sums over groups of sites: what a round releases of several, and the one vector that a program makes of it.

With G groups (`federation.groups`) a round is G sums over disjoint groups of the roster's sites, each with its whole
noise. Released are all G noisy sums, as G rows of one vector:

    | weight | entries of the noisy sum, as many as the query asks for |

The weight w says what every party knows of a group:

    above 0    the rows that its sites declare at most, or its number of sites where any site declares none
    0          the group sits the round out; its entries are 0
    -1         its sum is false: no records add up to it

What a program gets follows from these rows by post-processing, which every party computes alike, in integers:

1. W is the middle weight times the number of groups that are there, and no w counts for more. So a site that declares
   the rows of a thousand moves no other group's values by it.
2. Each sum is scaled to W: x W // w.
3. Of the values of an entry the middle one counts; of an even number the mean of the two in the middle, rounded down.
   A group that sat out has the value 0, and one whose sum is false has none.

One hostile site spoils one group's values. As long as most groups are honest, with false ones among the others, what
counts lies between two honest values, or an honest one and 0. More than half of the groups have to be there: else the
middle value would be 0 everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
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
    """The standard deviation of the middle of G groups' scaled noise, in units of one group's (which is a sum's).

    G times the deviation of the median of G normal numbers: 2.01 at 3, 2.68 at 5, 3.21 at 7; sqrt(pi G / 2) beyond.
    """
    return _NOISE.get(n_groups, math.sqrt(math.pi * n_groups / 2))


def count_entries(query: Query, n_groups: int) -> int:
    """Entries of a query's release over so many groups; 0 for one sum over all sites."""
    return n_groups * (1 + query.length) if n_groups else query.release_length


def pack(
    sums: Mapping[int, IntVector], weights: Mapping[int, int], length: int, n_groups: int, false: Collection[int] = ()
) -> IntVector:
    """The release of a round: int64 [n_groups (1 + length)].

    Args:
        sums: the noisy ones, by group, each int64 [length].
        weights: > 0, of the groups that have one.
        false: the groups to whose sums no records add up.
    """
    rows = np.zeros((n_groups, 1 + length), dtype=np.int64)
    rows[list(false), 0] = REJECTED_WEIGHT
    for group, total in sums.items():
        rows[group, 0], rows[group, 1:] = weights[group], total
    return rows.reshape(-1)


def split_by_group(release: IntVector, n_groups: int) -> IntVector:
    """The release by groups: int64 [n_groups, 1 + length], weights first; ValueError for what is none."""
    rows = release.reshape(n_groups, -1)
    there = rows[:, 0] > 0
    if (rows[:, 0] < REJECTED_WEIGHT).any() or rows[~there, 1:].any() or there.sum() <= n_groups // 2:
        raise ValueError("weights that are none, or too few groups")
    return rows


def combine(release: IntVector, n_groups: int) -> IntVector:
    """The one vector that a program is given: int64 [length]; raises as `split_by_group`."""
    rows = split_by_group(release, n_groups)
    there = np.sort(rows[rows[:, 0] > 0, 0])
    # Of two, the less: what one of them declares makes the other's values no larger.
    whole = len(there) * int(there[(len(there) - 1) // 2])
    # Declared numbers of rows have up to 48 bits: so few keep all products of sums over records within 64.
    shift = max(0, whole.bit_length() - _WEIGHT_BITS)
    whole >>= shift
    weights = np.where(rows[:, 0] > 0, np.clip(rows[:, 0] >> shift, 1, whole), 1)
    quotients, rests = np.divmod(rows[:, 1:], weights[:, None])
    scaled = quotients * whole + rests * whole // weights[:, None]
    # Nothing is known by a false sum, and 0 in its place would draw all others towards it.
    found = np.sort(scaled[rows[:, 0] != REJECTED_WEIGHT], axis=0)
    low, high = found[(len(found) - 1) // 2], found[len(found) // 2]
    # Their mean, rounded down, without a sum that may wrap.
    return np.ascontiguousarray((low & high) + ((low ^ high) >> 1))


MAX_DRAWINGS = 8
"""Of groups in a run. Each takes one of its 16 set-ups; the others are for what goes wrong."""
MIN_ROUNDS = 5
"""Of a drawing."""


def count_drawing_rounds(n_rounds: int) -> int:
    """Rounds that are summed over the same groups, where they are drawn anew, in a run of so many."""
    return max(MIN_ROUNDS, -(-n_rounds // MAX_DRAWINGS))


def derive_drawing(seed: int, number: int) -> bytes:
    """By what the groups of a drawing are dealt: nothing in the first, whose sites draw the seed, else 32 bytes.

    Args:
        seed: that the sites have drawn for the trees, 0 to 2^63 - 1.
        number: of the drawing, from 0.
    """
    return digest("drawing", seed.to_bytes(8, "big"), number.to_bytes(8, "big")) if number else b""


_TINY = 1e-300
OUT_OF_LINE_ROUNDS = 10
OUT_OF_LINE = 4.0
"""Mean of the logarithm over so many rounds: the squares of a group's distances are e^4 = 55 times the others'."""
MAX_OF_DRAWING, NAMED = 2.5, 3.5
"""A site has the mean mark of its group, 0 to the first, of each drawing; who has so much more than any other is named.

So it takes three drawings: of two, others stood beside it in one. In 200 runs no honest site had so much more, whose
rows differed by age (docs/poisoning.md). One that lies only beside another is as far out of line as that one.
"""


class LineUp:
    """Which group is out of line, and which site stands in those that are, by the releases of a run so far: every party
    finds the same.

    Of a round, a group's mark is the logarithm of its squared distance from the group that is nearest to it, over the
    usual (median) one of two of the others. Each group's noise is alike, so the mark of honest groups with like rows is
    about 0, whatever the noise is; that of a group whose sums are of other rows, or of none, grows with them. Rows that
    are unlike have marks too: of groups that stay the same it is evidence to be looked at, and nobody is left out.

    Where groups are drawn anew, each site has the marks of all groups in which it stood. Others stand beside a liar now
    and then, and it stands in every group that is out of line: so who has much more than any other site is named.

    Args:
        n_rounds: of a drawing; 0 for groups that are never drawn anew.

    Attributes:
        told: groups that were out of line once.
        named: sites, by their nodes, in the order in which they were named.
    """

    def __init__(self, n_sites: int, n_groups: int, n_rounds: int = 0) -> None:
        self._n_groups, self._n_rounds = n_groups, n_rounds
        self._marks: list[Mapping[int, float]] = []
        self._evidence, self._of_drawing, self._n_taken = np.zeros(n_sites), np.zeros(n_groups), 0
        self.told: set[int] = set()
        self.named: list[int] = []

    @property
    def left_out(self) -> Sequence[int]:
        """The named sites that are left out: so many that three are left in a group even if it held all of them."""
        return self.named[: max(0, len(self._evidence) // max(1, self._n_groups) - 3)]

    def take(self, release: IntVector, parts: Sequence[Sequence[int]]) -> list[int]:
        """The nodes of groups that are out of line for the first time with this release; or a site that is named.

        Args:
            parts: the nodes of the roster by groups.
        """
        marks = self._mark_groups(split_by_group(release, self._n_groups))
        if self._n_rounds:
            return self._name(marks, parts)
        self._marks = [*self._marks, marks][-OUT_OF_LINE_ROUNDS:] if marks else self._marks
        if len(self._marks) < OUT_OF_LINE_ROUNDS or not marks:
            return []
        mean = {group: math.fsum(each.get(group, 0.0) for each in self._marks) / OUT_OF_LINE_ROUNDS for group in marks}
        found = [group for group in mean if mean[group] > OUT_OF_LINE and group not in self.told]
        self.told.update(found)
        return [node for group in found for node in parts[group]]

    def _mark_groups(self, rows: IntVector) -> dict[int, float]:
        """By group; none where a group sits out, for distances to it mean nothing."""
        there = np.flatnonzero(rows[:, 0] > 0).tolist()
        if len(there) < self._n_groups:
            false = np.flatnonzero(rows[:, 0] == REJECTED_WEIGHT).tolist()
            return dict.fromkeys(false, OUT_OF_LINE) if self._n_rounds else {}
        scaled = rows[:, 1:].astype(np.float64) / rows[:, :1]
        squares = np.zeros((len(there), len(there)))
        for one, other in combinations(there, 2):
            # Rounded once, so that it is the same on every machine.
            squares[one, other] = squares[other, one] = math.fsum((scaled[one] - scaled[other]) ** 2) + _TINY
        marks = {}
        for group in there:
            others = [other for other in there if other != group]
            usual = np.median([squares[one, other] for one in others for other in others if one < other])
            marks[group] = float(elementary.log(squares[group, others].min()) - elementary.log(usual))
        return marks

    def _name(self, marks: Mapping[int, float], parts: Sequence[Sequence[int]]) -> list[int]:
        for group, mark in marks.items():
            self._of_drawing[group] += mark / self._n_rounds
        self._n_taken += 1
        if self._n_taken % self._n_rounds:
            return []
        for group, part in enumerate(parts):
            self._evidence[list(part)] += min(max(self._of_drawing[group], 0.0), MAX_OF_DRAWING)
        self._of_drawing[:] = 0
        rest = np.delete(np.arange(len(self._evidence)), self.named)
        *_, second, first = rest[np.argsort(self._evidence[rest], kind="stable")].tolist()
        if self._evidence[first] - self._evidence[second] <= NAMED:
            return []
        self.named.append(first)
        # Others have stood beside it.
        self._evidence[:] = 0
        return [first]
