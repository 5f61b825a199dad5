"""DP-XGBoost."""

from __future__ import annotations

from hedgerow.methods.dp_xgboost.plan import DpXgboost, check
from hedgerow.methods.method import Method, Parts


def _parts() -> Parts:
    from hedgerow.methods.dp_xgboost.program import dp_xgboost
    from hedgerow.methods.dp_xgboost.settings import resolve_dp_xgboost
    from hedgerow.privacy.events import PureEvent

    return Parts(resolve_dp_xgboost, dp_xgboost, (PureEvent,))


METHOD = Method(
    section=DpXgboost,
    model_fields=frozenset(
        {"n_trees", "max_depth", "n_candidates", "learning_rate", "leaf_ridge", "noise_ridge", "structure_seed"}
    ),
    labels=("binary", "regression"),
    is_pure=True,
    check=check,
    parts=_parts,
)
