"""S-GBDT."""

from __future__ import annotations

from hedgerow.methods.method import Method, Parts
from hedgerow.methods.s_gbdt.plan import SGbdt, check


def _parts() -> Parts:
    from hedgerow.methods.s_gbdt.program import s_gbdt
    from hedgerow.methods.s_gbdt.settings import resolve_s_gbdt
    from hedgerow.privacy.events import FilteredGaussianEvent, SampledGaussianEvent

    return Parts(resolve_s_gbdt, s_gbdt, (SampledGaussianEvent, FilteredGaussianEvent))


METHOD = Method(
    section=SGbdt,
    model_fields=frozenset(
        {
            "n_trees", "max_depth", "n_candidates", "learning_rate", "leaf_ridge", "noise_ridge", "leaf_clip",
            "split_candidates", "structure_seed",
        }
    ),
    labels=("binary", "regression"),
    check=check,
    parts=_parts,
    keeps_accounts=True,
)  # fmt: skip
