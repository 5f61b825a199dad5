"""Boosted linear models by AdaSSP."""

from __future__ import annotations

from hedgerow.methods.adassp.plan import Adassp, check
from hedgerow.methods.method import Method, Parts


def _parts() -> Parts:
    from hedgerow.methods.adassp.program import boosted_adassp
    from hedgerow.methods.adassp.settings import resolve_adassp

    return Parts(resolve_adassp, boosted_adassp)


METHOD = Method(
    section=Adassp,
    model_fields=frozenset({"structure_seed"}),
    labels=("binary", "regression"),
    check=check,
    parts=_parts,
    has_leaves=False,
)
