# SPDX-License-Identifier: Apache-2.0
"""Leaf values from noisy leaf sums: post-processing, so every choice here is free of privacy cost.

    newton, gradient   value = -learning_rate * clip(G / (H + ridge), leaf_clip)        CCS'22, equations 3 and 4;
                       0 where the noisy H is not positive: the leaf may well be empty  (the authors' code)
    averaging          value = share of the class (or mean label) in the leaf            CCS'22, section 4.4.1

ridge = leaf_ridge + noise_ridge * (known standard deviation of the noise in G): a leaf whose sum is mostly noise says
little. A batch of B trees moves the scores by the average of its trees (CCS'22, section 5.2).

Before sums become values, four steps can take noise out of them. They read only releases and the public structure:

    covariance  the gradient sums of several classes are filtered by the covariance that the releases so far have shown
                between classes: directions in which classes differ no more than the noise does are left out
    pooling     neighbouring leaves of a tree on one numeric feature, closer in Hessian mass than the noise can tell
                apart, share their sums
    shrinkage   the whole tree is scaled by the positive-part James-Stein factor: one that released little but noise,
                such as a tree over features that do not interact, adds little
    spread      in place of ridge, pooling and shrinkage: the values that are expected of all leaves together, where
                neighbours lie so far apart as the releases so far have shown, see `ValueSpread`

All arithmetic is elementary, in a fixed order, so every party computes the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.losses.tables import SCORE_UNIT, Loss
from hedgerow.protocol.queries import TreeBatch
from hedgerow.trees.constraints import Directions
from hedgerow.trees.random_trees import find_shapes

JAMES_STEIN_SHARE = 0.4
"""Share of the James-Stein correction that is applied to classes; all of it takes too much from trees with signal."""

MEMORY = 0.95
"""The factor on the weight of a tree's sums in the covariance of classes, for each later tree."""
OWN_MEMORY, LEAVES_OF_ALL = 0.7, 100.0
"""That factor among trees on the same features; and the number of leaves that all trees' covariance counts as."""
CLASSES_PER_TREE = 32
"""With more classes the filter is computed again every K // 32 + 1 trees, and is the same for all features."""
MAX_SWEEPS, SMALL = 30, 1e-9
"""Rotations end when the elements off the diagonal are this small beside the trace; ten sweeps suffice."""


@dataclass(frozen=True)
class LeafRule:
    """The rule for turning noisy sums into leaf values.

    Attributes:
        weight_update: "newton", "gradient" or "averaging".
        learning_rate: factor on every value, > 0.
        leaf_ridge: lambda, >= 0, in units of the Hessian.
        noise_ridge: further ridge per standard deviation of the gradient's noise, >= 0.
        leaf_clip: largest magnitude of a value before the learning rate, > 0.
        divisor: number of trees whose values are averaged: the batch size, or all trees for "averaging".
        smooths: whether noise is taken out first, see `smooth_ratios`; the papers' rules do not.
        shrinkage: share of the James-Stein correction that is applied when it is smoothed, 0 to 1.
        largest: largest magnitude of a value, in units of 2**-16; with all trees at it, scores must fit 32 bits.
        directions: how values go with features, where that is known. Trees on one such feature alone are not smoothed:
            the projection that follows (`trees.constraints`) takes more noise out, and less else.
        shape_rate, subset_rate: factors on the values that are expected of trees on one numeric feature, and of trees
            on several features, see `ValueSpread`; 0 where values follow the ridge.
    """

    weight_update: str
    learning_rate: float
    leaf_ridge: float
    noise_ridge: float
    leaf_clip: float
    divisor: int
    smooths: bool = False
    shrinkage: float = JAMES_STEIN_SHARE
    largest: int = 2**31 - 1
    directions: Directions | None = None
    shape_rate: float = 0.0
    subset_rate: float = 0.0

    def ridge(self, gradient_noise: float) -> float:
        """Return lambda plus the noise ridge, for gradient sums with noise of this standard deviation."""
        return self.leaf_ridge + self.noise_ridge * gradient_noise


@dataclass(frozen=True, eq=False)
class NoisyLeaves:
    """Released sums in real units.

    Attributes:
        gradients: float64 [B, n_leaves, n_outputs].
        hessians: float64 [B, n_leaves, n_outputs], negative noise cut off at zero.
        gradient_noise: standard deviation of the noise of one gradient sum, in real units.
        hessian_noise: standard deviation of the noise of one Hessian sum.
        integer_hessians: int64 [B, n_leaves], the Hessians added over the classes, in integer units as released.
    """

    gradients: NDArray[np.float64]
    hessians: NDArray[np.float64]
    gradient_noise: float
    hessian_noise: float
    integer_hessians: NDArray[np.int64]


def read_sums(sums: NDArray[np.int64], sigma: float, loss: Loss, n_trees: int) -> NoisyLeaves:
    """Convert a release to real units.

    Args:
        sums: int64 [n_trees * n_leaves * n_statistics].
        sigma: standard deviation of its noise, in integer units.
    """
    scales, n_gradients = loss.scales, max(1, loss.n_outputs)
    own = sums.reshape(n_trees, -1, loss.n_statistics)
    gradients = own[..., :n_gradients] / scales[:n_gradients]
    # One Hessian for each gradient, or one for all of them.
    known = np.maximum(own[..., n_gradients:] / scales[n_gradients:], 0.0)
    hessians = np.repeat(known, n_gradients // known.shape[2], axis=2)
    integers = own[..., n_gradients:].sum(axis=2)
    return NoisyLeaves(gradients, hessians, sigma / float(scales[0]), sigma / float(scales[-1]), integers)


def leaf_values(
    sums: NDArray[np.int64], sigma: float, loss: Loss, trees: TreeBatch, rule: LeafRule
) -> NDArray[np.int32]:
    """Return the leaf values of a batch, in units of 2**-16.

    The result is int32 [n_trees, n_leaves, n_outputs of the model].
    """
    n_trees = trees.n_trees
    if rule.weight_update == "averaging":
        return _to_units(_averages(sums, loss, n_trees) / rule.divisor)
    return compute_values(read_sums(sums, sigma, loss, n_trees), trees, rule)


def compute_values(
    leaves: NoisyLeaves,
    trees: TreeBatch,
    rule: LeafRule,
    mixing: NDArray[np.float64] | None = None,
    spread: ValueSpread | None = None,
) -> NDArray[np.int32]:
    """Return `leaf_values` of sums that were read already; not for "averaging".

    Args:
        mixing: float64 [B, n_outputs, n_outputs], the matrix that each tree's gradients are multiplied by when they
            are smoothed; see `ClassCovariance`.
        spread: the spread of values in the releases so far; learns from this one. None if the rule does not use it.
    """
    if spread is None:
        return scale_ratios(_ratios_by_ridge(leaves, trees, rule, mixing), rule)
    ratios, rates = spread.update_and_smooth(leaves, trees, rule)
    is_expected = rates > 0
    if not is_expected.all():
        ratios = np.where(is_expected, ratios, _ratios_by_ridge(leaves, trees, rule, mixing))
    return scale_ratios(ratios, rule, np.where(is_expected, rates, rule.learning_rate))


def _ratios_by_ridge(
    leaves: NoisyLeaves, trees: TreeBatch, rule: LeafRule, mixing: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Return G / (H + ridge), smoothed where the rule says so: float64 [B, n_leaves, n_outputs].

    Args as of `compute_values`.
    """
    gradients, hessians, noise = leaves.gradients, leaves.hessians, leaves.gradient_noise
    ridge = rule.ridge(noise)
    if not rule.smooths:
        # A leaf whose Hessian is lost in the noise is probably nearly empty.
        ratios = np.divide(gradients, hessians + ridge, out=np.zeros_like(gradients), where=hessians + ridge > 0)
        return np.where(hessians > 0, ratios, 0)
    shapes = find_shapes(trees)
    is_smooth = np.ones(trees.n_trees, dtype=np.bool_) if rule.directions is None else ~rule.directions.bind(trees)
    is_pooled, shares = shapes.is_ordered & is_smooth, np.where(is_smooth, rule.shrinkage, 0.0)
    how = (noise, ridge, shares, _AS_THEY_ARE if mixing is None else mixing)
    ratios = smooth_ratios(gradients, hessians, shapes.reachable, is_pooled, *how)
    # As above: without a noise ridge in the plan, nothing else limits such a leaf.
    return np.asarray(ratios if rule.noise_ridge else np.where(hessians > 0, ratios, 0))


_AS_THEY_ARE = np.empty((0, 0, 0))


@numba.njit(cache=True, nogil=True)
def smooth_ratios(  # type: ignore[no-untyped-def]
    gradients, hessians, reachable, is_ordered, noise, ridge, shrinkage, mixing
):
    """Return G / (H + ridge) of leaves, pooled and shrunk: float64 [B, n_leaves, n_outputs].

    Args:
        gradients, hessians: float64 [B, n_leaves, n_outputs].
        reachable: bool [B, n_leaves]; the other leaves hold only noise, and get 0.
        is_ordered: bool [B], trees whose leaves are stretches of one numeric feature, in the order of its values.
        noise: standard deviation of the noise of one gradient sum.
        ridge: at least 0; where H + ridge is 0 the ratio is 0, as an empty leaf says nothing without a ridge.
        shrinkage: float64 [B], share of the James-Stein correction that is applied to each tree.
        mixing: float64 [B, n_outputs, n_outputs], what a tree's gradients are multiplied by; [0, 0, 0] for nothing.
    """
    n_trees, n_leaves, n_outputs = gradients.shape
    own = _mix(gradients, mixing) if len(mixing) else gradients
    ratios = np.zeros((n_trees, n_leaves, n_outputs))
    leaves, middle = np.empty(n_leaves, dtype=np.int64), np.empty(n_leaves)
    for tree in range(n_trees):
        n_used = 0
        for leaf in range(n_leaves):
            if reachable[tree, leaf]:
                leaves[n_used] = leaf
                n_used += 1
        used = leaves[:n_used]
        pools = is_ordered[tree] and n_used > 2 and noise > 0
        if pools:
            _middles(hessians[tree], used, middle)
        factor = _shrinkage(gradients[tree], used, noise, shrinkage[tree])
        for i in range(n_used):
            for output in range(n_outputs):
                g, h = own[tree, used[i], output], hessians[tree, used[i], output]
                if pools:
                    g, h = _pool_leaf(own[tree, :, output], hessians[tree, :, output], used, middle, i, noise)
                if h + ridge > 0:
                    ratios[tree, used[i], output] = g / (h + ridge) * factor
    return ratios


@numba.njit(cache=True, nogil=True)
def _mix(gradients, mixing):  # type: ignore[no-untyped-def]
    """Return every leaf's gradients times its tree's matrix.

    A library's product may add up in another order on another machine.
    """
    mixed = np.zeros_like(gradients)
    n_trees, n_leaves, n_outputs = gradients.shape
    for tree in range(n_trees):
        for leaf in range(n_leaves):
            for k in range(n_outputs):
                for output in range(n_outputs):
                    mixed[tree, leaf, output] += gradients[tree, leaf, k] * mixing[tree, k, output]
    return mixed


class ClassCovariance:
    """The covariance of classes' gradient sums, estimated from all releases of a run so far.

    Classes are alike in a few ways: what speaks for one manual trade speaks for others. The sums of a leaf are a vector
    of signal and of noise of known, equal variance in every direction. In a direction in which the sums vary by v, of
    which the noise explains n, the best linear guess at the signal is 1 - n / v of the sum, and nothing where v <= n:
    the estimator of Efron and Morris (1972, Biometrika 59) with positive parts, by the covariance of many trees in
    place of one. Older trees count less, since they say what is already in the model. What a feature tells apart
    differs from feature to feature, so the trees on the same features may have a covariance of their own, drawn towards
    that of all trees.

    Args:
        n_classes: gradients per leaf, at least 3.
        by_features: whether the trees on the same features have a covariance of their own; of very many classes they
            never have.
    """

    def __init__(self, n_classes: int, by_features: bool = True) -> None:
        self._products, self._n_leaves = np.zeros((n_classes, n_classes)), 0.0
        self._by_features = by_features and n_classes <= CLASSES_PER_TREE
        self._own: dict[tuple[int, ...], tuple[NDArray[np.float64], float]] = {}
        self._n_trees, self._mixing = 0, np.eye(n_classes)

    def update_and_filter(
        self, leaves: NoisyLeaves, reachable: NDArray[np.bool_], subsets: Sequence[tuple[int, ...]]
    ) -> NDArray[np.float64]:
        """Learn from a release, and return a matrix to multiply each tree's gradients by: [B, K, K].

        Args:
            leaves: the release; its noise differs from that of the releases before by rounding alone.
            reachable: bool [B, n_leaves]; the other leaves hold only noise.
            subsets: the features of each tree.
        """
        n_classes, n_trees = len(self._products), len(subsets)
        for gradients, used in zip(leaves.gradients, reachable, strict=True):
            self._n_leaves = MEMORY * self._n_leaves + int(used.sum())
            add_products(self._products, gradients[used], MEMORY)
        noise_squared, covariance = elementary.square(leaves.gradient_noise), self._products / max(1.0, self._n_leaves)
        if not self._by_features:
            # Many classes make the filter slow to compute, and it changes slowly.
            interval = n_classes // CLASSES_PER_TREE + 1
            if self._n_trees == 0 or (self._n_trees + n_trees) // interval > self._n_trees // interval:
                self._mixing = wiener_filter(covariance, noise_squared)
            self._n_trees += n_trees
            return np.array(np.broadcast_to(self._mixing, (n_trees, n_classes, n_classes)))
        mixing = np.empty((n_trees, n_classes, n_classes))
        for number, (subset, gradients, used) in enumerate(zip(subsets, leaves.gradients, reachable, strict=True)):
            products, n_leaves = self._own.get(subset, (np.zeros_like(covariance), 0.0))
            n_leaves = OWN_MEMORY * n_leaves + int(used.sum())
            add_products(products, gradients[used], OWN_MEMORY)
            self._own[subset] = products, n_leaves
            own = (products + LEAVES_OF_ALL * covariance) / (n_leaves + LEAVES_OF_ALL)
            mixing[number] = wiener_filter(own, noise_squared)
        return mixing


@numba.njit(cache=True, nogil=True)
def add_products(products, gradients, memory):  # type: ignore[no-untyped-def]
    """Decay products by memory and add d d^T of every leaf, in place; d: the gradients less their mean.

    Gradients of softmax sum to zero, so their mean is noise.

    Args:
        products: float64 [K, K].
        gradients: float64 [n_leaves, K].
        memory: 0 to 1.
    """
    n_classes = len(products)
    own = np.empty(n_classes)
    products *= memory
    for leaf in range(len(gradients)):
        mean = 0.0
        for k in range(n_classes):
            mean += gradients[leaf, k]
        mean /= n_classes
        for k in range(n_classes):
            own[k] = gradients[leaf, k] - mean
        for k in range(n_classes):
            for other in range(n_classes):
                products[k, other] += own[k] * own[other]


@numba.njit(cache=True, nogil=True)
def wiener_filter(covariance, noise_squared):  # type: ignore[no-untyped-def]
    """Return U max(0, 1 - noise_squared / v) U^T for the covariance U diag(v) U^T: float64 [K, K].

    Eigenvectors by cyclic Jacobi rotations (Golub and Van Loan, Matrix Computations, 8.5), which take nothing but
    elementary arithmetic in a fixed order.

    Args:
        covariance: float64 [K, K], symmetric, positive semi-definite.
        noise_squared: the variance of the noise, at least 0.
    """
    n = len(covariance)
    a, vectors = covariance.copy(), np.eye(n)
    size = 0.0
    for i in range(n):
        size += a[i, i]
    for _ in range(MAX_SWEEPS):
        off = 0.0
        for i in range(n):
            for j in range(i):
                off += a[i, j] * a[i, j]
        if off <= (SMALL * size) ** 2:
            break
        for i in range(n - 1):
            for j in range(i + 1, n):
                if abs(a[i, j]) <= SMALL * size / n:
                    continue
                ratio = (a[j, j] - a[i, i]) / (2 * a[i, j])
                tangent = (1.0 if ratio >= 0 else -1.0) / (abs(ratio) + np.sqrt(ratio * ratio + 1))
                cosine = 1 / np.sqrt(tangent * tangent + 1)
                sine = tangent * cosine
                for k in range(n):
                    left, right = a[k, i], a[k, j]
                    a[k, i], a[k, j] = cosine * left - sine * right, sine * left + cosine * right
                for k in range(n):
                    left, right = a[i, k], a[j, k]
                    a[i, k], a[j, k] = cosine * left - sine * right, sine * left + cosine * right
                for k in range(n):
                    left, right = vectors[k, i], vectors[k, j]
                    vectors[k, i], vectors[k, j] = cosine * left - sine * right, sine * left + cosine * right
    found = np.zeros((n, n))
    for place in range(n):
        kept = 1 - noise_squared / a[place, place] if a[place, place] > noise_squared else 0.0
        for i in range(n):
            for j in range(n):
                found[i, j] += vectors[i, place] * kept * vectors[j, place]
    return found


@numba.njit(cache=True, nogil=True)
def _middles(hessians, used, middle):  # type: ignore[no-untyped-def]
    """Write the Hessian mass below each leaf's middle to `middle`."""
    below = 0.0
    for i in range(len(used)):
        mass = 0.0
        for output in range(hessians.shape[1]):
            mass += hessians[used[i], output]
        mass /= hessians.shape[1]
        middle[i] = below + mass / 2
        below += mass


@numba.njit(cache=True, nogil=True)
def _pool_leaf(gradients, hessians, used, middle, at, noise):  # type: ignore[no-untyped-def]
    """Return one leaf's sums pooled with its neighbours', which count less with distance.

    The distance of two leaves is the Hessian mass between their middles, in standard deviations of the noise. The
    weight falls as 1 / (1 + t + t**2 / 2), which follows exp(-t) closely and needs no library's exponential.
    """
    g, h = 0.0, 0.0
    for i in range(len(used)):
        steps = abs(middle[at] - middle[i]) / noise
        weight = 1 / (1 + steps + steps * steps / 2)
        g += weight * gradients[used[i]]
        h += weight * hessians[used[i]]
    return g, h


@numba.njit(cache=True, nogil=True)
def _shrinkage(gradients, used, noise, share):  # type: ignore[no-untyped-def]
    """Return the factor in [0, 1] for one tree's values.

    Source: James & Stein 1961, with the positive part of Baranchik 1964, for gradient sums of known noise.
    """
    energy, n_sums = 0.0, len(used) * gradients.shape[1]
    for i in range(len(used)):
        for output in range(gradients.shape[1]):
            energy += gradients[used[i], output] ** 2
    if n_sums <= 2 or energy <= 0:
        return 1.0
    return max(0.0, 1 - share * (n_sums - 2) * noise * noise / energy)


SPREADS = np.array([0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.35, 0.6, 1.0])
"""Candidate spreads of neighbours: standard deviations in units of the score; one of them is chosen."""
RISK_MEMORY, RISK_MEMORY_OF_ALL, SHARE_OF_ALL = 0.8, 0.95, 0.2
"""Factors on the weight of a tree's risks for each later tree: among trees on the same feature, and among all trees on
single features, whose risks count a fifth beside a feature's own."""
LEVEL_OF_CHAIN = 4.0
"""Variance of the first leaf's value, in squared spreads."""


class ValueSpread:
    """The typical difference between values of neighbouring leaves, estimated from a run's releases.

    A leaf's sum is G = H v + noise, v the step that is due there. Before the release, v is a random walk: along the
    values of a numeric feature from leaf to leaf, or, in a tree on several features, down the tree from node to node.
    All steps of the walk have one standard deviation, the spread. For a given spread, one pass there and one back give
    the expected values after the release (Kalman 1960; Fraser and Potter 1969; on trees, Chou, Willsky and Benveniste
    1994). Leaves with an uncertain release take over their neighbours' values, and a tree that released only noise adds
    next to nothing.

    The spread is the one of `SPREADS` with the least risk in all releases so far, older ones counting less: the squared
    error of the sums as Stein's unbiased estimate has it (Stein 1981), sum (G - H v)**2 + 2 noise**2 trace dHv/dG. The
    noise of a Hessian counts as noise of a gradient at a value as large as the spread.
    """

    def __init__(self) -> None:
        self._risks: dict[int, NDArray[np.float64]] = {}
        self._of_all = np.zeros(len(SPREADS))

    def update_and_smooth(
        self, leaves: NoisyLeaves, trees: TreeBatch, rule: LeafRule
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Learn from a release, and return the expected values of its trees.

        Args:
            leaves: the release, of one output.
            trees: the batch.
            rule: its rates say which trees get expected values.

        Returns:
            The expected G / H, float64 [B, n_leaves, 1], and the factor on it, float64 [B, 1, 1]: 0 for trees that
            follow the ridge.
        """
        shapes, n_trees = find_shapes(trees), trees.n_trees
        expected, rates = np.zeros_like(leaves.gradients), np.zeros((n_trees, 1, 1))
        held = np.zeros(n_trees, dtype=np.bool_) if rule.directions is None else rule.directions.bind(trees)
        for tree in range(n_trees):
            feature, is_chain = int(shapes.single[tree]), bool(shapes.is_ordered[tree])
            rate = rule.subset_rate if feature < 0 else rule.shape_rate if is_chain and not held[tree] else 0.0
            if rate == 0:
                continue
            gradients, hessians = leaves.gradients[tree, :, 0], leaves.hessians[tree, :, 0]
            noises = leaves.gradient_noise, leaves.hessian_noise
            values, risks = compute_expected_values(
                gradients, hessians, shapes.reachable[tree], is_chain, SPREADS, *noises
            )
            expected[tree, :, 0], rates[tree] = values[self._best(feature, risks)], rate
        return expected, rates

    def _best(self, feature: int, risks: NDArray[np.float64]) -> int:
        """Add the risks of a tree on one feature, or several (-1), and return the least risky spread."""
        own = self._risks[feature] = RISK_MEMORY * self._risks.get(feature, np.zeros(len(SPREADS))) + risks
        if feature < 0:
            return int(own.argmin())
        self._of_all = RISK_MEMORY_OF_ALL * self._of_all + risks
        return int((own + SHARE_OF_ALL * self._of_all).argmin())


@numba.njit(cache=True, nogil=True)
def compute_expected_values(  # type: ignore[no-untyped-def]
    gradients, hessians, reachable, is_chain, spreads, noise, hessian_noise
):
    """Return a tree's expected leaf values for each spread, and the risk of each spread.

    They are float64 [n_spreads, n_leaves] and [n_spreads].

    See `ValueSpread`. Risks are in units of the variance of the noise.

    Args:
        gradients, hessians: float64 [n_leaves], Hessians at least 0.
        reachable: bool [n_leaves]; the other leaves hold only noise, and get 0 or what is above them.
        is_chain: whether the leaves are stretches of one numeric feature in order; else they are those of a tree.
        spreads: float64 [n_spreads], at least 0.
        noise, hessian_noise: standard deviations, the first above 0.
    """
    n_leaves = len(gradients)
    values, risks = np.zeros((len(spreads), n_leaves)), np.zeros(len(spreads))
    for number in range(len(spreads)):
        step = spreads[number] * spreads[number]
        noise_squared, variances = noise * noise + step * hessian_noise * hessian_noise, np.zeros(n_leaves)
        if step > 0 and is_chain:
            _along_chain(gradients, hessians, reachable, step, noise_squared, values[number], variances)
        elif step > 0:
            _down_tree(gradients, hessians, reachable, step, noise_squared, values[number], variances)
        for leaf in range(n_leaves):
            if reachable[leaf]:
                residual = (gradients[leaf] - hessians[leaf] * values[number, leaf]) / noise
                # If its leaf's sum moves by 1, a value moves by hessian * variance / noise_squared.
                moved = 2 * hessians[leaf] * hessians[leaf] * variances[leaf] / noise_squared
                risks[number] += residual * residual + moved
    return values, risks


@numba.njit(cache=True, nogil=True)
def _along_chain(gradients, hessians, reachable, step, noise_squared, values, variances):  # type: ignore[no-untyped-def]
    """Write each leaf's expected value and its variance, for values that walk from leaf to leaf.

    A pass from the first leaf on knows of each value what its own sum and those before it say; one back adds what those
    after it say. What is known of a value is kept as its precision, and the precision times the value.

    Args:
        gradients, hessians, reachable: as of `compute_expected_values`.
        step: variance of a step of the walk.
        noise_squared: variance of the noise of a gradient.
        values, variances: float64 [n_leaves], 0 at first.
    """
    n_leaves = len(gradients)
    ahead, ahead_value = np.zeros(n_leaves), np.zeros(n_leaves)
    precision, value = 1 / (LEVEL_OF_CHAIN * step), 0.0
    is_first = True
    for leaf in range(n_leaves):
        if not reachable[leaf]:
            continue
        passed = 1.0 if is_first else 1 / (1 + precision * step)
        precision = precision * passed + hessians[leaf] * hessians[leaf] / noise_squared
        value = value * passed + hessians[leaf] * gradients[leaf] / noise_squared
        ahead[leaf], ahead_value[leaf], is_first = precision, value, False
    precision, value = 0.0, 0.0
    for leaf in range(n_leaves - 1, -1, -1):
        if not reachable[leaf]:
            continue
        passed = 1 / (1 + precision * step)
        precision, value = precision * passed, value * passed
        variances[leaf] = 1 / (ahead[leaf] + precision)
        values[leaf] = (ahead_value[leaf] + value) * variances[leaf]
        precision += hessians[leaf] * hessians[leaf] / noise_squared
        value += hessians[leaf] * gradients[leaf] / noise_squared


@numba.njit(cache=True, nogil=True)
def _down_tree(gradients, hessians, reachable, step, noise_squared, values, variances):  # type: ignore[no-untyped-def]
    """Write each leaf's expected value and its variance, for values that walk down a tree.

    A node's children stand at 2 i + 1 and 2 i + 2.

    A pass up knows of each node what the sums below it say; one down adds what all others say.
    """
    n_leaves = len(gradients)
    n_nodes = 2 * n_leaves - 1
    precision, value, is_alive = np.zeros(n_nodes), np.zeros(n_nodes), np.zeros(n_nodes, dtype=np.bool_)
    for leaf in range(n_leaves):
        if reachable[leaf]:
            node = n_leaves - 1 + leaf
            precision[node] = hessians[leaf] * hessians[leaf] / noise_squared
            value[node] = hessians[leaf] * gradients[leaf] / noise_squared
            is_alive[node] = True
    steps = np.zeros(n_leaves - 1)
    for node in range(n_leaves - 2, -1, -1):
        is_alive[node] = is_alive[2 * node + 1] or is_alive[2 * node + 2]
        # A node that sends all its records one way is no step.
        steps[node] = step if is_alive[2 * node + 1] and is_alive[2 * node + 2] else 0.0
        for below in range(2 * node + 1, 2 * node + 3):
            passed = 1 / (1 + precision[below] * steps[node])
            precision[node] += precision[below] * passed
            value[node] += value[below] * passed
    mean, variance = np.zeros(n_nodes), np.zeros(n_nodes)
    variance[0] = 1 / (precision[0] + 1 / step)
    mean[0] = value[0] * variance[0]
    for node in range(n_leaves - 1):
        for below in range(2 * node + 1, 2 * node + 3):
            if steps[node] == 0:
                mean[below], variance[below] = mean[node], variance[node]
                continue
            # Remove this child's own sums from its parent's estimate, and widen the rest by one step: the message that
            # the rest of the tree sends to this child.
            passed = 1 / (1 + precision[below] * steps[node])
            others = 1 / variance[node] - precision[below] * passed
            before = 1 / (1 / others + steps[node])
            variance[below] = 1 / (precision[below] + before)
            others_value = (mean[node] / variance[node] - value[below] * passed) / others
            mean[below] = (value[below] + before * others_value) * variance[below]
    for leaf in range(n_leaves):
        values[leaf], variances[leaf] = mean[n_leaves - 1 + leaf], variance[n_leaves - 1 + leaf]


def scale_ratios(
    ratios: NDArray[np.float64], rule: LeafRule, rates: NDArray[np.float64] | None = None
) -> NDArray[np.int32]:
    """Return -rate clip(ratio) / divisor as int32 in units of 2**-16, at most `rule.largest`.

    Args:
        rates: float64 [B, 1, 1]; by default the learning rate.
    """
    reach = rule.divisor * rule.largest / SCORE_UNIT
    values = -(rule.learning_rate if rates is None else rates) * np.clip(ratios, -rule.leaf_clip, rule.leaf_clip)
    return _to_units(np.clip(values, -reach, reach) / rule.divisor)


def leaf_weights(sums: NDArray[np.int64], loss: Loss, n_trees: int) -> NDArray[np.int64]:
    """Return the released weight of each leaf: int64 [n_trees, n_leaves], >= 0, in integer units.

    A weight is the leaf's noisy Hessian (for "averaging" its count), added over the classes and at least zero.
    """
    per_tree = sums.reshape(n_trees, -1, loss.n_statistics)
    first = 0 if loss.counts_classes else max(1, loss.n_outputs)
    return np.asarray(np.maximum(per_tree[:, :, first:].sum(axis=2), 0))


def _averages(sums: NDArray[np.int64], loss: Loss, n_trees: int) -> NDArray[np.float64]:
    real = sums.reshape(n_trees, -1, loss.n_statistics) / loss.scales
    if loss.is_share:
        share = np.divide(real[..., :1], real[..., 1:], out=np.full_like(real[..., :1], 0.5), where=real[..., 1:] > 0)
        return np.clip(share, 0, 1)
    if not loss.counts_classes:
        count = np.maximum(real[:, :, 1:], 1.0)
        return np.clip(-real[:, :, :1] / count, -1, 1)
    counts = np.maximum(real, 0)
    total = counts.sum(axis=2, keepdims=True)
    even = np.full_like(counts, 1 / counts.shape[2])
    shares = np.divide(counts, total, out=even, where=total > 0)
    return np.asarray(shares[:, :, 1:] if counts.shape[2] == 2 else shares)


def _to_units(values: NDArray[np.float64]) -> NDArray[np.int32]:
    return np.rint(values * SCORE_UNIT).astype(np.int32)


def largest_sum(values: NDArray[np.int32]) -> int:
    """Return the sum over trees of each one's largest magnitude in int32 [B, n_leaves, n_outputs]."""
    return int(np.abs(values.astype(np.int64)).max(axis=(1, 2), initial=0).sum())
