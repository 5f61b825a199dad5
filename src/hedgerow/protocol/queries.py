"""Queries: questions that every node answers with one vector of integers.

A program yields queries; the sum of the nodes' vectors, with noise, is what it receives. A query says everything that a
node needs to answer it and everything that the coordinator needs to noise it: its length, the largest magnitude of one
record's contribution to one entry, and the squared L2 sensitivity in integer units.

Trees ask for sums over leaves, nodes and candidates; linear models for products of a record's row, whose entries are a
table over its codes; pure differential privacy for sums with Laplace noise and choices from exact sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntVector = NDArray[np.int64]


@dataclass(frozen=True)
class Purpose:
    """What a query is for. Each purpose is released at most once in a run.

    Attributes:
        round: 0-based number of the exchange within the run.
        kind: the kind of the query.
        subject: what it is about, e.g. "trees 0-24".
    """

    round: int
    kind: str
    subject: str

    def __str__(self) -> str:
        return f"{self.round}/{self.kind}/{self.subject}"


@dataclass(frozen=True)
class NoiseCohort:
    """The sites that a sum with noise of the sites was agreed among, and what its noise is counted by.

    Attributes:
        n_sites: members, also those that fall silent later, >= 1.
        n_colluders: how many of them may work together against the others' rows, 0 to n_sites - 1.
        n_shares: shares of noise that are in every sum over them, and unknown to so many colluders: 1 to
            n_sites - n_colluders.

    Raises:
        ValueError: a number is out of range.
    """

    n_sites: int
    n_colluders: int
    n_shares: int

    def __post_init__(self) -> None:
        numbers = (self.n_sites, self.n_colluders, self.n_shares)
        is_possible = all(type(number) is int for number in numbers) and self.n_colluders >= 0 and self.n_shares >= 1
        if not is_possible or self.n_shares > self.n_sites - self.n_colluders:
            raise ValueError(f"no cohort has {self}")

    def to_dict(self) -> dict[str, int]:
        """The cohort as a dictionary of JSON values."""
        return {"sites": self.n_sites, "colluders": self.n_colluders, "shares": self.n_shares}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NoiseCohort:
        """The inverse of `to_dict`; raises KeyError or ValueError."""
        return cls(data["sites"], data["colluders"], data["shares"])


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """The public structures of B complete trees of one depth, over grid codes.

    A record goes left at an internal node iff ``goes_left[tree, node, code]`` for its code of ``feature[tree, node]``.
    Nodes are numbered as in a heap: the children of i are 2i+1 (left) and 2i+2; leaf l is node l + 2**depth - 1.

    Attributes:
        feature: int32 [B, 2**depth - 1], the feature each internal node asks for.
        goes_left: uint8 [B, 2**depth - 1, n_codes], 1 where a code goes left.
        threshold: int32 [B, 2**depth - 1]: for a split of ordered codes, the last code that goes left; -1 for one by
            sets of categories.
    """

    feature: NDArray[np.int32]
    goes_left: NDArray[np.uint8]
    threshold: NDArray[np.int32]

    @property
    def n_trees(self) -> int:
        return int(self.feature.shape[0])

    @property
    def depth(self) -> int:
        return int(self.feature.shape[1] + 1).bit_length() - 1

    @property
    def n_leaves(self) -> int:
        return int(self.feature.shape[1]) + 1


@dataclass(frozen=True, eq=False)
class FittedTrees:
    """Structures with values: what a round adds to every record's scores.

    Attributes:
        trees: the structures.
        values: int32 [B, n_leaves, n_outputs], in units of 2**-16 score.
    """

    trees: TreeBatch
    values: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """One question to every node.

    Attributes:
        purpose: what it is for.
        length: entries of the answer.
        bound: the largest magnitude that one record adds to one entry, in integer units.
        sensitivity_squared: the largest squared L2 norm of one record's contribution, in integer units.
        noise_multiplier: standard deviation of the noise per unit of L2 sensitivity.
        update: trees fitted since the last query, to be added to the scores before answering; or None.
        ensemble_size: trees already in the scores before `update`; a node that holds another number has lost a round.
    """

    purpose: Purpose
    length: int
    bound: int
    sensitivity_squared: int
    noise_multiplier: float
    update: FittedTrees | None = None
    ensemble_size: int = 0

    @property
    def release_length(self) -> int:
        """Entries of what is released: those of the sum, unless something is computed from it in between."""
        return self.length


@dataclass(frozen=True, kw_only=True, eq=False)
class LeafSums(Query):
    """Per tree and leaf, the sums of the loss's statistics: int64 [B, n_leaves, n_statistics], flattened.

    Attributes:
        trees: the batch.
        score_bound: a public bound on the magnitude of every score, in units of 2**-16.
    """

    trees: TreeBatch
    score_bound: int


FILTER_UNITS = 2**52
"""A filter's whole budget in the units of `FilterTerms.costs`."""


@dataclass(frozen=True, eq=False)
class FilterTerms:
    """What a node's individual Renyi filter charges a record for a round, whether or not the record is drawn.

    Attributes:
        order: of the divergences.
        budget: largest sum of divergences of one record over all rounds.
        costs: int64 [n_levels], ascending: the divergence of a record whose gradient statistic has a magnitude of up to
            the level's upper end, in units of budget / FILTER_UNITS, rounded up (`hedgerow.methods.s_gbdt.trees`).
        limit: what a record may have spent after this round, in the same units: FILTER_UNITS is the whole budget, and
            what is missing to it is kept back for later rounds.
    """

    order: int
    budget: float
    costs: NDArray[np.int64]
    limit: int


SAMPLING_STEPS = 2**32
"""A record is drawn with a chance of a query's `sampling_threshold` in so many."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledLeafSums(LeafSums):
    """Leaf sums over a Poisson sample that each node draws in secret, of the records that its filter lets through.

    Attributes:
        sampling_threshold: a record is in the sum with a chance of sampling_threshold / SAMPLING_STEPS.
        filter: what the individual filter charges; None without a filter.
    """

    sampling_threshold: int
    filter: FilterTerms | None

    @property
    def sampling_rate(self) -> float:
        """Each record's chance, exactly."""
        return self.sampling_threshold / SAMPLING_STEPS


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Histogram(Query):
    """Per feature and bin, the sum of the Hessians: int64 [sum of the bins], features one after the other.

    Attributes:
        features: indices of the features.
        bin_of_code: for each of them, uint16 [n_codes], the bin of each grid code.
        n_bins: for each of them, its number of bins.
        score_bound: as in `LeafSums`.
    """

    features: tuple[int, ...]
    bin_of_code: tuple[NDArray[np.uint16], ...]
    n_bins: tuple[int, ...]
    score_bound: int


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeHistograms(Query):
    """Per tree, node, feature and bin, the sums of the loss's statistics, one level of splits after the other.

    The answer is [B][n_nodes][k][bins of the feature][n_statistics], flattened. In each tree a record adds its
    statistics to one bin of each of the k features, at the one node that it reaches.

    Attributes:
        trees: the levels that stand already; none of them for the roots.
        features: int64 [B, k], the features that each tree considers.
        bin_of_code: uint16 [n_features, n_codes], the bin of each grid code of every feature.
        n_bins: int64 [n_features].
        score_bound: as in `LeafSums`.
    """

    trees: TreeBatch
    features: NDArray[np.int64]
    bin_of_code: NDArray[np.uint16]
    n_bins: NDArray[np.int64]
    score_bound: int


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitSums(Query):
    """Per tree, node and feature, the sums of the loss's statistics on the two sides of one split that was drawn.

    The answer is [B][n_nodes][k][left, right][n_statistics], flattened. In each tree a record adds its statistics to
    one side for each of the k features, at the one node that it reaches.

    Attributes:
        trees, features, bin_of_code, score_bound: as in `NodeHistograms`.
        goes_left: uint8 [B, n_nodes, k, n_bins], 1 where the split sends a bin left.
    """

    trees: TreeBatch
    features: NDArray[np.int64]
    bin_of_code: NDArray[np.uint16]
    goes_left: NDArray[np.uint8]
    score_bound: int


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreHistogram(Query):
    """Counts of held-out records per bin of what the model says about them: int64, `shape` flattened, then the hits.

    The whole model comes as the `update` of the first such query. A record adds `unit` to one cell of every curve, and
    to one of the two hits, so its contribution has the squared L2 norm unit**2 (n_curves + with_hits), exactly.

    Attributes:
        position: what is binned, an integer (see `hedgerow.evaluation.sums`): "score" (one curve, binary),
            "probability" (one curve per class against the rest) or "residual" (one curve, regression).
        edges: int64 [n_curves, n_edges], ascending per curve, repeats allowed; bin b holds the positions above
            edges[b-1] and up to edges[b].
        by_label: whether each curve has one row of bins per outcome (not this class, this class), else one row in all.
        with_hits: whether two counts follow: records whose class is not predicted, and those whose class is.
        unit: what one record adds to a cell.
    """

    position: str
    edges: NDArray[np.int64]
    by_label: bool
    with_hits: bool
    unit: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Curves, rows of bins per curve, bins."""
        return len(self.edges), 1 + self.by_label, self.edges.shape[1] + 1


@dataclass(frozen=True, kw_only=True, eq=False)
class ErrorMoments(Query):
    """Over held-out records of a regression, the sums of (1, y, y**2, min(e, clip)**2 / clip**2): int64 [4].

    y is the label scaled to [-1, 1] and e the error of the (clipped) prediction; no statistic exceeds `unit`, so a
    record's contribution has a squared L2 norm of at most 4 unit**2.

    Attributes:
        error_clip: in units of 2**-16 of the scaled label, from 1 to 2**17.
        unit: integer units per 1.0 of a statistic.
    """

    error_clip: int
    unit: int


@dataclass(frozen=True, eq=False)
class LinearRows:
    """How a record's codes become its row of integers: a constant, then one entry per feature.

    A record's row r has the entry `intercept` in column 0 and, for each feature f with code c, `entry[f, c]` in column
    `column[f, c]`; all others are zero. A row longer than `limit` is shortened: every entry is multiplied by limit over
    the norm, rounded up, and then rounded towards zero.

    With a transform, the row is T r / 2**16, rounded towards zero, each entry cut off at +-2**24, and only then
    shortened.

    Attributes:
        column: int32 [n_features, n_codes], not descending over the features, at least 1.
        entry: int32 [n_features, n_codes].
        intercept: the constant.
        limit: largest norm of a row.
        n_columns: p.
        transform: T, int64 [p, p], magnitudes of at most 2**26 (2**10 in real units); of shape [0, 0] for none.
    """

    column: NDArray[np.int32]
    entry: NDArray[np.int32]
    intercept: int
    limit: int
    n_columns: int
    transform: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))


@dataclass(frozen=True, kw_only=True, eq=False)
class GramMatrix(Query):
    """The sums of r_i r_j / 2**shift, rounded towards zero, for i <= j: int64 [p (p + 1) / 2], row by row.

    The squared norm of one record's contribution is at most (|r|⁴ + sum of r_i⁴) / 2 / 4**shift: off the diagonal each
    product is there once, and all products together have the norm |r|².

    Attributes:
        rows: how codes become rows.
        shift: bits that products are shortened by.
    """

    rows: LinearRows
    shift: int


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossProducts(Query):
    """The sums of g r_i / 2**shift, rounded towards zero: int64 [p]; g is the record's negative gradient, an integer.

    The squared norm of one record's contribution is at most g² |r|² / 4**shift.

    Attributes:
        rows, shift: as in `GramMatrix`.
        score_bound: a public bound on the magnitude of every score, in units of 2**-16.
    """

    rows: LinearRows
    shift: int
    score_bound: int


LARGEST_SCORE = 2**61
"""Scores of a choice are within this magnitude, whatever the sums are: a choice never fails for an exact sum."""


@dataclass(frozen=True)
class PureNoise:
    """What makes a release epsilon-DP with epsilon = sensitivity / scale, without sampling.

    Attributes:
        scale: of the noise, in integer units; 0 without privacy.
        sensitivity: for sums the L1 norm that one unit adds at most; for a choice the range over which it can move the
            scores.
        sampling_threshold: each record is in the sum with a chance of sampling_threshold / SAMPLING_STEPS, drawn by its
            node in secret, anew for every query.
    """

    scale: int
    sensitivity: int
    sampling_threshold: int = SAMPLING_STEPS

    @property
    def sampling_rate(self) -> float:
        """Each record's chance, exactly."""
        return self.sampling_threshold / SAMPLING_STEPS


@dataclass(frozen=True, kw_only=True, eq=False)
class PureHistogram(Histogram):
    """A histogram with Laplace noise."""

    pure: PureNoise


@dataclass(frozen=True, kw_only=True, eq=False)
class PureLeafSums(LeafSums):
    """Leaf sums with Laplace noise."""

    pure: PureNoise


@dataclass(frozen=True, kw_only=True, eq=False)
class PureNodeHistograms(NodeHistograms):
    """Histograms per node with Laplace noise."""

    pure: PureNoise


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitSelection(NodeHistograms):
    """The sum is as for `NodeHistograms`, of one tree; released is only, per node, which candidate was chosen.

    The coordinator computes each candidate's gain from the exact sums and chooses by the exponential mechanism: int64
    [n_nodes], slot * n_bins + position of the chosen candidate, or -1 where there is none. Candidate (slot, position)
    sends left the bins of the feature `features[0, slot]` up to `position` or, for a categorical one, that bin alone.

    Attributes:
        pure: noise of the choice; its scores are gains in units of 1 / `score_unit`.
        is_candidate: bool [n_nodes, k, n_bins], by the public structure alone.
        is_alive: bool [n_nodes, k, n_bins], the bins that the levels above have left to each node.
        is_categorical: bool [k].
        missing_left: bool [n_nodes], the side of missing values, the last bin of a numeric feature.
        units: integers per 1.0 of the gradient and of the count.
        ridge: lambda, in thousandths.
        score_unit: integers per 1.0 of a gain in which no gradient exceeds 1.
    """

    pure: PureNoise
    is_candidate: NDArray[np.bool_]
    is_alive: NDArray[np.bool_]
    is_categorical: NDArray[np.bool_]
    missing_left: NDArray[np.bool_]
    units: tuple[int, int]
    ridge: int
    score_unit: int

    @property
    def release_length(self) -> int:
        """One choice per node."""
        return len(self.is_candidate)


PureQuery = PureHistogram | PureLeafSums | PureNodeHistograms | SplitSelection
