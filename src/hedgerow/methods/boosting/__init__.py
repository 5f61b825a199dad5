"""Boosted trees."""

from __future__ import annotations

from hedgerow.methods.method import Method, Parts


def _parts() -> Parts:
    from hedgerow.methods.boosting.program import boosting
    from hedgerow.training.settings import resolve_boosting

    return Parts(resolve_boosting, boosting)


METHOD = Method(parts=_parts, counts_prepared=True)
