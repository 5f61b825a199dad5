"""Kernels of the adaptive order of features: whose turn it is, and random subsets to be tried."""

from __future__ import annotations

import numba
import numpy as np

from hedgerow.trees.drawing_kernels import permutation

EVEN_SHARE = 0.1
"""Share of the turns that single features get whatever they gained, so that none is given up for good."""


@numba.njit(cache=True, nogil=True)
def take_turns(turns, first, n_known, has_gains, earned, even, last_turn):  # type: ignore[no-untyped-def]
    """Give every tree of a batch its subset: the most overdue one where none is given.

    A subset is the more overdue the larger its share of the turns times the trees since its last one; the first of
    several is taken.

    Args:
        turns: int64 [B], the number of each tree's subset, -1 where none is given; written. New subsets have the
            numbers `n_known`, `n_known` + 1, ... in the order of their trees.
        first: the number of the batch's first tree.
        n_known: subsets that had a turn before.
        has_gains: whether any subset has gained anything; else all known ones have earned alike.
        earned: float64 [at least all subsets], what part of the turns each has earned by its gain.
        even: float64 likewise, what part of the even share is its own.
        last_turn: int64 likewise, the tree of each known subset's last turn; written.
    """
    for i in range(len(turns)):
        tree, most = first + i, -1.0
        if turns[i] < 0:
            turns[i] = 0
            for number in range(n_known):
                part = earned[number] if has_gains else 1 / n_known
                overdue = ((1 - EVEN_SHARE) * part + EVEN_SHARE * even[number]) * (tree - last_turn[number])
                if overdue > most:
                    turns[i], most = number, overdue
        last_turn[turns[i]] = tree
        n_known = max(n_known, turns[i] + 1)


@numba.njit(cache=True, nogil=True)
def random_subsets(words, n_subsets, n_features, size):  # type: ignore[no-untyped-def]
    """Random subsets of features, by `n_features` - 1 words of public randomness each: int64 [n_subsets, size].

    The features of a subset ascend.
    """
    subsets = np.empty((n_subsets, size), dtype=np.int64)
    order, at = np.empty(n_features, dtype=np.int64), 0
    for row in range(n_subsets):
        at = permutation(words, at, order)
        subsets[row] = np.sort(order[:size])
    return subsets
