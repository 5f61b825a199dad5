"""What was released before a run and counts with it: a plan's [[prepared]] releases, as a ledger has them.

Bounds, the number of records and classes may be found by noisy sums instead of being declared (`hedgerow.survey`). The
plan that they are written into names these sums, so that its digest, the noise of its training, its ledger and every
report hold them as well: nothing that was spent can be lost between the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from hedgerow.errors import PrivacyError
from hedgerow.plan.plan import Plan, Prepared
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    Event,
    LocalGaussianEvent,
    UnnoisedEvent,
)
from hedgerow.privacy.ledger import Ledger, Release
from hedgerow.privacy.report import EVALUATION_KINDS
from hedgerow.protocol.queries import NoiseCohort, Purpose


def prepared_ledger(plan: Plan) -> Ledger:
    """The ledger that a run of this plan begins with: empty for most."""
    return Ledger(_releases(plan.prepared))


def prepared_events(plan: Plan) -> list[Event]:
    """What the releases before the run have cost."""
    return [release.event for release in _releases(plan.prepared)]


def prepared_tables(releases: Iterable[Release], unit: str, rows_per_unit: int) -> list[dict[str, Any]]:
    """Releases of a survey as the plan's [[prepared]] tables; `prepared_ledger` reads them back.

    `unit` and `rows_per_unit` are what the releases' sensitivities are of, as in `Prepared`.

    Raises:
        PrivacyError: code "malformed-ledger", for a release that is no Gaussian sum.
    """
    return [_table_of(release) | {"unit": unit, "rows_per_unit": rows_per_unit} for release in releases]


@lru_cache(maxsize=8)
def _releases(prepared: tuple[Prepared, ...]) -> tuple[Release, ...]:
    return tuple(_release_of(number, each) for number, each in enumerate(prepared))


def _release_of(number: int, prepared: Prepared) -> Release:
    if prepared.kind in EVALUATION_KINDS:
        # A report would take it for an evaluation's, whose noise may be another's, and which no plan asks for.
        raise PrivacyError("malformed-ledger", what=f"No {prepared.kind} of an evaluation comes before a training.")
    cohort = NoiseCohort(prepared.sites, prepared.colluders, prepared.shares) if prepared.shares else None
    return Release(
        purpose=str(Purpose(number, prepared.kind, prepared.subject)),
        round=number,
        kind=prepared.kind,
        event=_event_of(prepared),
        length=prepared.length,
        sensitivity=math.sqrt(prepared.sensitivity_squared),
        sigma=math.sqrt(prepared.sigma * prepared.sigma * max(1, prepared.shares)),
        cohort=cohort if prepared.sigma else None,
        seeded=prepared.seeded,
        approximate=prepared.approximate,
    )


def _event_of(prepared: Prepared) -> Event:
    noise = (prepared.sensitivity_squared, prepared.length)
    if not prepared.sigma:
        return UnnoisedEvent()
    if prepared.shares:
        return DiscreteGaussianSumEvent.of(prepared.sigma, prepared.shares, *noise)
    kind = LocalGaussianEvent if prepared.noise == "local" else DiscreteGaussianEvent
    return kind.of(prepared.sigma, *noise)


def _table_of(release: Release) -> dict[str, Any]:
    event, (_, kind, subject) = release.event, release.purpose.split("/", 2)
    table: dict[str, Any] = {
        "kind": kind,
        "subject": subject,
        "length": release.length,
        "sensitivity_squared": _squared(release.sensitivity),
        "sigma": 0,
        "seeded": release.seeded,
        "approximate": release.approximate,
    }
    if isinstance(event, DiscreteGaussianSumEvent) and release.cohort is not None:
        shares = {"sites": release.cohort.n_sites, "colluders": release.cohort.n_colluders, "shares": event.n_shares}
        return table | shares | {"sigma": event.share_sigma, "noise": "distributed"}
    if isinstance(event, LocalGaussianEvent):
        return table | {"sigma": event.sigma, "noise": "local"}
    if isinstance(event, DiscreteGaussianEvent):
        return table | {"sigma": event.sigma}
    if isinstance(event, UnnoisedEvent):
        return table
    raise PrivacyError("malformed-ledger", what=f"The release {release.purpose!r} is no sum that a plan can name.")


def _squared(sensitivity: float) -> int:
    """The integer whose root a sensitivity is; never less, where a double no longer tells neighbours apart."""
    squared = round(sensitivity * sensitivity)
    while math.sqrt(squared) < sensitivity:
        squared += 1
    return squared
