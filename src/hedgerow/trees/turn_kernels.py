"""Kernels of the adaptive order of features: whose turn it is, what a turn gained, random subsets to be tried."""

from __future__ import annotations

import numba
import numpy as np

from hedgerow.trees.drawing_kernels import permutation

EVEN_SHARE = 0.1
"""Share of the turns that single features get whatever they gained, so that none is given up for good."""


@numba.njit(cache=True, nogil=True)
def take_turns(turns, first, n_known, gains, even, last_turn):  # type: ignore[no-untyped-def]
    """Give every tree of a batch its subset, the most overdue one where none is given; returns the new `n_known`.

    A subset is the more overdue the larger its share of the turns times the trees since its last one; the first of
    several is taken. What it has earned of the turns goes by the root of its gain.

    Args:
        turns: int64 [B], the number of each tree's subset, -1 where none is given; written. New subsets have the
            numbers `n_known`, `n_known` + 1, ... in the order of their trees.
        first: the number of the batch's first tree.
        n_known: subsets that had a turn before.
        gains: float64 [all subsets], what each has gained; while none has any, all known ones have earned alike.
        even: float64 likewise, what part of the even share is its own.
        last_turn: int64 likewise, the tree of each known subset's last turn; written.
    """
    roots = np.sqrt(np.maximum(gains, 0.0))
    total = exact_sum(roots)
    for i in range(len(turns)):
        tree, most = first + i, -1.0
        if turns[i] < 0:
            turns[i] = 0
            for number in range(n_known):
                part = roots[number] / total if total > 0 else 1 / n_known
                overdue = ((1 - EVEN_SHARE) * part + EVEN_SHARE * even[number]) * (tree - last_turn[number])
                if overdue > most:
                    turns[i], most = number, overdue
        last_turn[turns[i]] = tree
        n_known = max(n_known, turns[i] + 1)
    return n_known


@numba.njit(cache=True, nogil=True)
def take_gains(turns, gradients, hessians, noise_squared, ridge, gains):  # type: ignore[no-untyped-def]
    """Write the gain of each tree of a batch to its subset's place: of several with one subset, the last one's.

    Args:
        turns: int64 [B], the number of each tree's subset.
        gradients, hessians: float64 [B, n_leaves, n_outputs].
        noise_squared: variance of the noise of one gradient sum.
        ridge: as in the leaf rule: without one an empty leaf says nothing.
        gains: float64 [all subsets]; written.
    """
    _, n_leaves, n_outputs = gradients.shape
    parts = np.empty(n_leaves * n_outputs)
    for tree in range(len(turns)):
        for leaf in range(n_leaves):
            for output in range(n_outputs):
                gradient, denominator = gradients[tree, leaf, output], hessians[tree, leaf, output] + ridge
                worth = gradient * gradient - noise_squared
                parts[leaf * n_outputs + output] = worth / denominator if denominator > 0 else 0.0
        gains[turns[tree]] = exact_sum(parts)


@numba.njit(cache=True, nogil=True)
def exact_sum(values):  # type: ignore[no-untyped-def]
    """The sum of finite numbers, rounded once: the same as `math.fsum`, bit for bit.

    Source: Shewchuk 1997; parts that do not overlap hold the sum so far exactly, the smallest of them first.

    Args:
        values: float64 [n].
    """
    parts, n_parts = np.empty(len(values) + 1), 0
    for value in values:
        n_kept = 0
        for i in range(n_parts):
            larger, smaller = (value, parts[i]) if abs(value) >= abs(parts[i]) else (parts[i], value)
            value = larger + smaller
            lost = smaller - (value - larger)
            if lost != 0:
                parts[n_kept] = lost
                n_kept += 1
        parts[n_kept] = value
        n_parts = n_kept + 1
    total, lost = 0.0, 0.0
    while n_parts > 0 and lost == 0:
        n_parts -= 1
        before = total
        total = before + parts[n_parts]
        lost = parts[n_parts] - (total - before)
    # Half way between two numbers, what is left of the parts decides.
    if n_parts > 0 and (lost < 0) == (parts[n_parts - 1] < 0):
        farther = total + 2 * lost
        if farther - total == 2 * lost:
            total = farther
    return total


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
