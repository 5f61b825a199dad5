"""Fit times that the authors of Maddock et al., CCS'22, publish with their code.

Their repository `federated-boosted-dp-trees`, `replication_data/replication_fig6.csv`, column `training_time`: Credit
1, T = 100, depth 4, the first run at epsilon 0.1, 0.5 and 1, on a MacBook Air M1 by its README. The paper itself prints
no fit times; its figure 20 is a picture.
"""

from __future__ import annotations

from collections.abc import Mapping

N_TREES = 100
EPSILONS = (0.1, 0.5, 1.0)
SECONDS: Mapping[str, tuple[float, float, float]] = {
    "feverless": (4.778, 5.470, 6.170),
    "dp-gbm": (6.387, 6.626, 6.504),
    "dp-rf": (1.047, 0.970, 0.993),
    "dp-ebm": (11.422, 11.321, 11.477),
    "dp-ebm-newton": (1.281, 1.281, 1.365),
    "dp-tr-newton-ih": (2.026, 1.346, 1.422),
    "dp-tr-newton-ih-ebm": (3.950, 3.600, 3.477),
}
"""By preset, in seconds at each epsilon. DP-EBM fits 1,000 trees, 100 for each feature."""
