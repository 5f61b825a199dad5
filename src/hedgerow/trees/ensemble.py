"""The ensemble: fitted trees over a public grid, and what their sums mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.plan import Plan
from hedgerow.protocol.queries import FittedTrees
from hedgerow.trees.grid import CodeArray, Grid
from hedgerow.trees.losses import SCORE_UNIT
from hedgerow.trees.routing import SiteRecords, apply_update
from hedgerow.trees.structures import concatenate

LOGISTIC, SOFTMAX, IDENTITY, PROBABILITY = "logistic", "softmax", "identity", "probability"
LINKS = (LOGISTIC, SOFTMAX, IDENTITY, PROBABILITY)


def link_of(plan: Plan) -> str:
    """What the scores of a plan's model mean: one of `LINKS`."""
    if plan.model.weight_update == "averaging":
        return IDENTITY if plan.label.type == "regression" else PROBABILITY
    return {"binary": LOGISTIC, "multiclass": SOFTMAX, "regression": IDENTITY}[plan.label.type]


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Trees whose values add up.

    Attributes:
        grid: the cells that thresholds refer to.
        fitted: all trees with their values, in training order; None before the first.
        n_outputs: scores per record: 1, or one per class.
        link: what a sum of values means: "logistic" (log-odds), "softmax" (one log-weight per class), "identity" (the
            label scaled to [-1, 1]) or "probability" (averaged class shares).
        leaf_weights: int64 [n_trees, n_leaves], the released (noisy) leaf Hessians or counts, cut off at zero, in the
            integer units of their release; None when they were not kept. Only proportions within a tree mean anything;
            scores do not depend on them.
    """

    grid: Grid
    fitted: FittedTrees | None
    n_outputs: int
    link: str
    leaf_weights: NDArray[np.int64] | None = None

    @property
    def n_trees(self) -> int:
        return 0 if self.fitted is None else self.fitted.trees.n_trees

    def extended(self, batches: Sequence[FittedTrees], weights: Sequence[NDArray[np.int64] | None]) -> Ensemble:
        """This ensemble with further batches at its end, joined once; weights are kept only if all trees have them.

        Args:
            batches: fitted batches of equal depth, in training order.
            weights: the leaf weights of each batch, or None.
        """
        if not batches:
            return self
        parts = [self.fitted, *batches] if self.fitted is not None else list(batches)
        joined = FittedTrees(
            trees=concatenate([part.trees for part in parts]),
            values=np.concatenate([part.values for part in parts]),
        )
        all_weights = [self.leaf_weights, *weights] if self.fitted is not None else list(weights)
        known = [part for part in all_weights if part is not None]
        kept = np.concatenate(known) if len(known) == len(all_weights) else None
        return Ensemble(self.grid, joined, self.n_outputs, self.link, kept)

    def scores(self, codes: CodeArray) -> NDArray[np.float64]:
        """Sums of the values that records reach: float64 [n_outputs, n]; exact, in steps of 2**-16."""
        n = codes.shape[1]
        records = SiteRecords(codes, np.zeros(n, dtype=np.int32), np.zeros((self.n_outputs, n), dtype=np.int32))
        if self.fitted is not None:
            apply_update(records, self.fitted)
        return records.scores / SCORE_UNIT

    def probabilities(self, codes: CodeArray) -> NDArray[np.float64]:
        """Class probabilities: float64 [n, n_classes], rows summing to 1.

        Raises:
            ValueError: for a regression.
        """
        scores = self.scores(codes)
        if self.link == LOGISTIC:
            positive = 1 / (1 + np.exp(-scores[0]))
            return np.stack([1 - positive, positive], axis=1)
        if self.link == SOFTMAX:
            weights = np.exp(scores - scores.max(axis=0))
            return np.asarray((weights / weights.sum(axis=0)).T)
        if self.link == PROBABILITY and self.n_outputs == 1:
            positive = np.clip(scores[0], 0, 1)
            return np.stack([1 - positive, positive], axis=1)
        if self.link == PROBABILITY:
            shares = np.clip(scores, 1e-12, 1)
            return np.asarray((shares / shares.sum(axis=0)).T)
        raise ValueError("a regression has no class probabilities")
