"""Figures with all their digits: what two parties compare, made without a run and without a kernel.

`python -m tests.figures` prints them.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from hedgerow import elementary
from hedgerow.evaluation import estimates, sums
from hedgerow.losses.kinds import classification_scores, regression_scores
from hedgerow.losses.logistic import LogOdds
from hedgerow.losses.softmax import LogWeights
from hedgerow.losses.survival import survival_curves
from hedgerow.survey.curves import read_curve
from hedgerow.trees.binning import _edges_above, _log_edges


def list_figures() -> dict[str, Any]:
    """Elementary functions, probabilities, scores, a curve, figures of an evaluation, and edges of grids."""
    draw = np.random.Generator(np.random.Philox(key=5))
    cells = np.rint(draw.random((5, 40)) * 2**30) / 2**16 + 500
    scores = np.rint(draw.random((3, 2000)) * 2**20) / 2**16 - 8
    labels = (draw.random(2000) * 3).astype(int)
    several = LogWeights().probabilities(scores)
    curve = read_curve("all", cells[:, :9].ravel()[:9] + 20000, 5.0)
    survival = np.sort(draw.random((40, 2)))[:, ::-1]
    regression = estimates.regression_estimates(cells[0, :4] * [9, 1, 3, 2], 3.0, 0.7, 9.1)
    return {
        "elementary": [elementary.exp(scores).tolist(), elementary.log(np.abs(scores) + 0.1).tolist()],
        "probabilities": [LogOdds().probabilities(scores[:1]).tolist(), several.tolist()],
        "survival": survival_curves(scores[0], (-900, 300, 12)).tolist(),
        "scores": [classification_scores(labels, several), regression_scores(scores[0], scores[1])],
        "curve": curve.to_dict(),
        "evaluation": [
            estimates.auc(cells[:2], 3.0).to_dict(), estimates.concordance(cells, 3.0).to_dict(),
            estimates.integrated_brier(cells, 3.0, survival, np.array([0.3, 0.7])).to_dict(),
            estimates.estimate_mean(scores[0, :40], cells[0], 3.0).to_dict(),
            {name: each.to_dict() for name, each in regression.items()},
            [sums.choose_bin_count(n, 3.3) for n in range(50, 5000, 7)],
        ],
        "edges": [_log_edges(-3.3, 7.1, 250).tolist(), _edges_above(0.3, 17.7, 60, True).tolist()],
    }


if __name__ == "__main__":
    print(json.dumps(list_figures()))
