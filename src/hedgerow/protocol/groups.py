"""Sums over groups of sites: what a round releases of several, and the one vector that a program makes of it.

With G groups (`federation.groups`) a round is G sums over disjoint groups of the roster's sites, each with its whole
noise. Released are all G noisy sums, as G rows of one vector:

    | weight | entries of the noisy sum, as many as the query asks for |

The weight is what the sites in the sum declare as their largest numbers of rows, or how many sites there are where some
site of any group declares none; 0, with entries of 0, is of a group that sits the round out. What follows is
post-processing, which every party computes alike, in integers: each sum is scaled to the weight of all (x W // w,
rounded down), and of the G values of an entry the middle one counts, with 0 for a group that sat out. W is the middle
weight times the number of groups that are there, and no w counts for more: a site that declares the rows of a thousand
moves no other group's values by it. One hostile site spoils one group's values; as long as most groups are honest, the
middle one lies between two honest ones, or an honest one and 0. More than half have to be there: else the middle value
would be 0 everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from hedgerow.protocol.queries import IntVector, Query

_WEIGHT_BITS = 31
_NOISE = {0: 1.0, 3: 2.01, 5: 2.68, 7: 3.21}


def noise_factor(n_groups: int) -> float:
    """The standard deviation of the middle of G groups' scaled noise, in units of one group's (which is a sum's).

    G times the deviation of the median of G normal numbers: 2.01 at 3, 2.68 at 5, 3.21 at 7; sqrt(pi G / 2) beyond.
    """
    return _NOISE.get(n_groups, math.sqrt(math.pi * n_groups / 2))


def length_of(query: Query, n_groups: int) -> int:
    """Entries of a query's release over so many groups; 0 for one sum over all sites."""
    return n_groups * (1 + query.length) if n_groups else query.release_length


def packed(sums: Mapping[int, IntVector], weights: Mapping[int, int], length: int, n_groups: int) -> IntVector:
    """The release of a round: int64 [n_groups (1 + length)].

    Args: sums: the noisy ones, by group, each int64 [length]; weights: > 0, of the groups that have one.
    """
    rows = np.zeros((n_groups, 1 + length), dtype=np.int64)
    for group, total in sums.items():
        rows[group, 0], rows[group, 1:] = weights[group], total
    return rows.reshape(-1)


def rows_of_groups(release: IntVector, n_groups: int) -> IntVector:
    """The release by groups: int64 [n_groups, 1 + length], weights first; ValueError for what is none."""
    rows = release.reshape(n_groups, -1)
    there = rows[:, 0] > 0
    if (rows[:, 0] < 0).any() or rows[~there].any() or there.sum() <= n_groups // 2:
        raise ValueError("weights below zero, or too few groups")
    return rows


def combined(release: IntVector, n_groups: int) -> IntVector:
    """The one vector that a program is given: int64 [length]; raises as `rows_of_groups`."""
    rows = rows_of_groups(release, n_groups)
    there = np.sort(rows[rows[:, 0] > 0, 0])
    # Of two, the less: what one of them declares makes the other's values no larger.
    whole = len(there) * int(there[(len(there) - 1) // 2])
    # Declared numbers of rows have up to 48 bits: so few keep all products of sums over records within 64.
    shift = max(0, whole.bit_length() - _WEIGHT_BITS)
    whole >>= shift
    weights = np.where(rows[:, 0] > 0, np.clip(rows[:, 0] >> shift, 1, whole), 1)
    quotients, rests = np.divmod(rows[:, 1:], weights[:, None])
    scaled = quotients * whole + rests * whole // weights[:, None]
    return np.ascontiguousarray(np.sort(scaled, axis=0)[n_groups // 2])


_HAIR = 1e-300
OUT_OF_LINE_ROUNDS = 10
OUT_OF_LINE = 4.0
"""Mean of the logarithm over so many rounds: the squares of a group's distances are e^4 = 55 times the others'."""


class LineUp:
    """Which group is out of line, by the releases of a run so far: every party finds the same.

    Of a round, a group's mark is the logarithm of its squared distance from the group that is nearest to it, over the
    usual (median) one of two of the others. Each group's noise is alike, so the mark of honest groups with like rows is
    about 0, whatever the noise is; that of a group whose sums are of other rows, or of none, grows with them. Rows that
    are unlike have marks too: it is evidence to be looked at, and nobody is left out for it.
    """

    def __init__(self, n_groups: int) -> None:
        self._n_groups = n_groups
        self._marks: list[Mapping[int, float]] = []
        self.told: set[int] = set()
        """Those that were out of line once."""

    def take(self, release: IntVector) -> list[int]:
        """The groups that are out of line for the first time with this release."""
        rows = rows_of_groups(release, self._n_groups)
        there = np.flatnonzero(rows[:, 0] > 0)
        if len(there) < self._n_groups:
            # Who sits out is told for that, and distances to it mean nothing.
            return []
        scaled = rows[:, 1:].astype(np.float64) / rows[:, :1]
        squares = np.array([[float(((one - other) ** 2).sum()) for other in scaled] for one in scaled]) + _HAIR
        marks = {}
        for group in there.tolist():
            others = [other for other in there.tolist() if other != group]
            usual = np.median([squares[one, other] for one in others for other in others if one < other])
            marks[group] = float(np.log(squares[group, others].min()) - np.log(usual))
        self._marks = [*self._marks, marks][-OUT_OF_LINE_ROUNDS:]
        if len(self._marks) < OUT_OF_LINE_ROUNDS:
            return []
        mean = {group: math.fsum(each[group] for each in self._marks) / OUT_OF_LINE_ROUNDS for group in marks}
        found = [group for group in mean if mean[group] > OUT_OF_LINE and group not in self.told]
        self.told.update(found)
        return found
