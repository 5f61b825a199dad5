# SPDX-License-Identifier: Apache-2.0
"""The first releases of models with a start: the mean label, and a linear model of numeric features.

For a bounded number the mean is one release of two sums. A count may be far below its bound, where a sum of counts up
to the bound would be lost in its noise: there it is one release of how many records have counts of each size.

The linear model is five releases. Numeric features that go together leave X^T X with a few
large eigenvalues and many small ones, and noise that suits the large ones buries the small. So X^T X is asked for
twice, and the second time of rows that the first release has whitened:

    A = X^T X + noise;    z = sqrt(A_00 / d) L^-1 x   with   L L^T = A + lambda I, shortened to norm 1
    B = Z^T Z + noise
    three times:    coefficients += step (B + lambda I)^-1 (Z^T g + noise)

Preconditioning by an earlier private release is due to Kamath, Li, Singhal and Ullman 2019 (arXiv 1805.00216), the
rounds are those of boosted AdaSSP. Every row has norm 1 at most, whatever the releases were, so the sensitivities do
not depend on them. Categories are left to the trees.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hedgerow import elementary
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT, Loss
from hedgerow.methods import linear
from hedgerow.plan.plan import Plan
from hedgerow.privacy.schedule import AlikeRounds
from hedgerow.protocol.queries import FittedTrees, IntVector, Query, TreeBatch
from hedgerow.training.steps import NodeTrees, Run
from hedgerow.trees.binning import Grid, build_grid
from hedgerow.trees.leaf_sums import RecordCounts, TrainingSite
from hedgerow.trees.plausibility import FLOAT_TOLERANCE, Reals, ReleaseChecks, SumFacts

START_ROUNDS = 3
START_SHARES = (3 / 7, 1 / 7, 1 / 7)
"""Shares of a linear start's divergence: for A, for B, and for each of the rounds."""
ROW_NORM = 1.0
FIRST_RIDGE, SECOND_RIDGE = 0.5, 1.5
"""The least eigenvalues after the lift, in sqrt(p) standard deviations of the noise."""
MAX_LINEAR_START = 1000
"""Most columns of a linear model if the plan leaves the start open: solving takes their cube, 25 s for this many."""
MIN_SIZE_DEVIATIONS = 3.5
CLASS_STEP = 2.0
"""The logistic loss has at most a quarter of the curvature that X^T X stands for; half of that is taken back."""

AskedModel = Generator[Query, IntVector, FittedTrees]


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelSums(Query):
    """The sum of the clipped labels and the number of records, for an initial score: int64 [2].

    A record adds (clip(y * unit), support), with y its label scaled to [-1, 1], or -1/2 and 1/2 for two classes.

    Attributes:
        unit: integer units per 1.0 of a label.
        clip: largest magnitude of a label's statistic, in integer units.
        support: integer units per record.
    """

    unit: int
    clip: int
    support: int

    def answer(self, site: TrainingSite) -> IntVector:
        """Take in the update, then add up labels and records.

        Labels are clipped and rounded towards zero one by one.
        """
        site.take_in(self.update)
        labels = site.plan.label.kind.centre(site.records.labels)
        sizes = np.minimum((np.abs(labels) * self.unit) >> 16, self.clip)
        return np.array([int((np.sign(labels) * sizes).sum()), self.support * len(labels)], dtype=np.int64)

    def faults(self, released: Reals, facts: SumFacts, checks: ReleaseChecks) -> Iterator[str]:
        reach = facts.reach(1)
        if not -reach <= released[1] <= facts.n_rows * self.support + reach:
            yield "the number of records is out of range"
        records = max(0.0, released[1] + reach + facts.bound_clipping(self)) / self.support
        if abs(released[0]) > FLOAT_TOLERANCE * self.clip * records + reach + 1:
            yield "the sum of the labels is larger than its records allow"


@dataclass(frozen=True, kw_only=True, eq=False)
class CountOctaves(RecordCounts):
    """Numbers of records with counts of each size: int64 [1 + octaves], with 2**14 to a record.

    The first entry is of 0, and entry k of counts from 2**(k-1) to 2**k - 1.
    """

    def answer(self, site: TrainingSite) -> IntVector:
        """Take in the update, then count records by size; each record is in one entry."""
        site.take_in(self.update)
        largest = int(site.plan.label.bounds[1])
        counts = ((site.records.labels.astype(np.int64) + SCORE_UNIT) * largest + SCORE_UNIT) // (2 * SCORE_UNIT)
        # The exponent of a double is the length of a whole number below 2**53, exactly.
        octaves = np.frexp(counts.astype(np.float64))[1]
        return self.count(octaves)


def count_octaves(plan: Plan) -> int:
    """Return the number of entries of `CountOctaves`."""
    return 1 + int(plan.label.bounds[1]).bit_length()


def read_level(released: IntVector, sigma: float, largest: float) -> tuple[float, float] | None:
    """Return the mean and the standard deviation of counts by an answer to `CountOctaves`.

    A size within `MIN_SIZE_DEVIATIONS` of its noise counts as empty: a record of a high one weighs as much as hundreds.

    Args:
        released: int64 [1 + octaves], with its noise.
        sigma: the noise's standard deviation, in integer units.

    Returns:
        None where noise covers all of it.
    """
    noise = sigma / RECORD_NORM
    counts = released / RECORD_NORM
    least = elementary.square(MIN_SIZE_DEVIATIONS * noise)
    found = [max(0.0, count - least / count) if count > 0 else 0.0 for count in counts]
    # Counts thin out upwards, so those from 2**(k-1) to 2**k are taken to lie at the middle by factors.
    sizes = [0.0, 1.0, *(min(math.sqrt(2) * 2.0 ** (k - 1), largest) for k in range(2, len(found)))]
    total = math.fsum(found)
    if total <= 0:
        return None
    mean = math.fsum(size * count for size, count in zip(sizes, found, strict=True)) / total
    squares = math.fsum((size - mean) * (size - mean) * count for size, count in zip(sizes, found, strict=True))
    # About as many counts above 0 as the noise may be hidden in it.
    return max(mean, noise / total), math.sqrt(squares / total)


def label_statistics(largest: float) -> tuple[int, int, int]:
    """Return unit, clip and support of `LabelSums` for labels up to `largest` in magnitude.

    The norm of a record is below 2**14.
    """
    unit = math.floor(RECORD_NORM / math.hypot(largest, largest / 2))
    return unit, math.floor(largest * unit), math.floor(largest / 2 * unit)


def ask_labels(statistics: tuple[int, int, int], noise_multiplier: float, rows: int) -> LabelSums:
    """Return the question for the mean, by `label_statistics`.

    Args:
        rows: the largest number of rows of one unit.
    """
    unit, clip, support = statistics
    return LabelSums(
        purpose=LabelSums.purpose_of(0, "initial score"),
        length=2,
        bound=max(clip, support),
        sensitivity_squared=(clip**2 + support**2) * rows * rows,
        noise_multiplier=noise_multiplier,
        unit=unit,
        clip=clip,
        support=support,
    )


def read_mean(released: IntVector, statistics: tuple[int, int, int]) -> float:
    """Return the mean label by an answer to `ask_labels`."""
    unit, _, support = statistics
    return float(released[0]) / unit / max(1.0, float(released[1]) / support)


def make_constant_trees(grid: Grid, depth: int, value: float, largest: int) -> FittedTrees:
    """Return one tree that adds `value` to every score, but at most `largest` units of 2**-16."""
    trees = make_constant_tree(grid, depth)
    values = np.zeros((1, trees.n_leaves, 1), dtype=np.int32)
    values[0, 0, 0] = min(max(math.floor(value * SCORE_UNIT + 0.5), -largest), largest)
    return FittedTrees(trees, values)


def make_constant_tree(grid: Grid, depth: int) -> TreeBatch:
    """Return a tree that sends every record to its first leaf: a batch of one.

    It carries an initial score.
    """
    shape = (1, 2**depth - 1)
    goes_left, threshold = np.ones((*shape, grid.n_codes), np.uint8), np.full(shape, grid.n_codes - 1, np.int32)
    return TreeBatch(np.zeros(shape, np.int32), goes_left, threshold)


@dataclass(frozen=True)
class LinearStart:
    """A linear start of a plan.

    Attributes:
        plan: with one numeric feature at least.
        gradient_clip: largest |g| of the squared loss, in units in which the label's range is [-1, 1].
        scale: what a numeric feature's value is: "grid" or "linear", as in [adassp].
    """

    plan: Plan
    gradient_clip: float
    scale: str = "grid"

    @property
    def n_trees(self) -> int:
        """The number of trees that nodes add to their scores: one per feature and round."""
        return START_ROUNDS * len(self.plan.features)

    @property
    def loss(self) -> Loss:
        """The logistic loss, or squares with gradients clipped to one integer at least."""
        clip = min(max(self.gradient_clip, 1 / RECORD_NORM), 1.0)
        return linear.linear_loss("logistic", self.plan.label.kind.is_number, clip)

    @cached_property
    def basis(self) -> linear.LinearBasis:
        """The rows before they are whitened."""
        return linear.LinearBasis.of(self.plan, build_grid(self.plan), ROW_NORM, self.scale, numeric_only=True)

    def rounds(self, whole: float) -> list[AlikeRounds]:
        """Return the rounds of the start, for a noise multiplier as if it were one release."""
        basis, rows, noises = self.basis, self.plan.privacy.rows_per_unit, linear.divide_noise(whole, START_SHARES)
        white_rows = basis.transform(np.eye(basis.rows.n_columns))
        return [
            AlikeRounds(linear.ask_gram(0, "any", basis, noises[0], rows)),
            AlikeRounds(linear.ask_gram(1, "any", white_rows, noises[1], rows)),
            linear.list_cross_rounds(linear.CrossProducts, white_rows, self.loss, noises[2], rows, START_ROUNDS),
        ]

    def ask(
        self,
        run: Run,
        whole: float,
        largest: int,
        first: int,
        carried: NodeTrees,
        doublings: int = 0,
    ) -> AskedModel:
        """Run the start as a part of a program, and return its trees.

        Args:
            whole: the start's noise multiplier, as if it were one release; 0 without privacy.
            largest: the largest magnitude of a tree's value, in units of 2**-16.
            first: rounds before it.
            carried: what nodes know of the trees before it, and of its own afterwards.
            doublings: of the gradients, see `hedgerow.losses.tables.double_residuals`.

        Returns:
            All its trees in one batch, one per feature.
        """
        loss, rows, noises = self.loss, self.plan.privacy.rows_per_unit, linear.divide_noise(whole, START_SHARES)
        query = linear.ask_gram(first, "linear start, X^T X", self.basis, noises[0], rows, carried.n_held)
        gram, factor = linear.factor_gram((yield query), self.basis, run.sigma(query), FIRST_RIDGE)
        basis = self.basis.transform(_whitening_matrix(gram, factor))
        query = linear.ask_gram(first + 1, "linear start, Z^T Z", basis, noises[1], rows, carried.n_held)
        _, factor = linear.factor_gram((yield query), basis, run.sigma(query), SECOND_RIDGE)
        step = 1.0 if self.plan.label.kind.is_number else CLASS_STEP
        fit = linear.LinearFit(run, basis, largest, carried, factor)
        for number in range(START_ROUNDS):
            purpose = linear.CrossProducts.purpose_of(first + 2 + number, f"linear start, Z^T g, round {number}")
            release = yield linear.ask_cross(purpose, basis, loss, noises[2], rows, carried, doublings)
            fit.add(step * 2.0**-doublings * linear.solve(factor, linear.read_cross(release, basis)))
        return fit.trees


def _whitening_matrix(gram: linear.Matrix, factor: linear.Matrix) -> linear.Matrix:
    """Return sqrt(A_00 / d) L^-1, which whitens rows to a mean squared norm of about 1.

    d = p - lambda tr (L L^T)^-1 is how many of the p directions stand out of the ridge. Both A_00 and d are 1 at least.
    """
    inverse = linear.lower_inverse(factor)
    ridge = elementary.square(float(factor[0, 0])) - float(gram[0, 0])
    resolved = len(gram) - ridge * math.fsum((inverse * inverse).reshape(-1).tolist())
    return math.sqrt(max(1.0, float(gram[0, 0])) / max(1.0, resolved)) * inverse
