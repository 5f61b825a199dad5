# SPDX-License-Identifier: Apache-2.0
"""What a plan asks of everyone and what it costs, known before anyone runs it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from hedgerow.errors import PlanError
from hedgerow.methods.registry import find_method
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import epsilon_of_rows, get_accountant
from hedgerow.privacy.calibration import noise_of
from hedgerow.privacy.ledger import read_prepared_events
from hedgerow.privacy.report import ROWS_OF_ONE_PERSON
from hedgerow.privacy.signal import signal_of
from hedgerow.rounds import require_words
from hedgerow.secagg.guarantees import Guarantees, default_wishes, derive
from hedgerow.secagg.masks import MIN_COLLUDERS
from hedgerow.training.settings import Settings

USUAL_GROUPS, MIN_GROUP = 3, 3
"""Groups of sites that are proposed first, and the fewest sites that the sum of a group hides."""
OFFERED_GROUPS = {3: (3, 3_000.0), 5: (4, 5_000.0)}
"""By number of groups the fewest sites in each, and the signal from which they cost at most .01 of AUC, by the mean of
docs/runs/signal.txt between s and s over the middle's noise (docs/runs/groups_price.txt)."""


def propose_groups(plan: Plan, n_sites: int, n_groups: int = USUAL_GROUPS) -> Plan | None:
    """Return the plan with groups of sites, if enough sites are expected and the price is small.

    None otherwise, for a plan that has groups already, and for one that can have none.
    """
    federation, privacy, (least, signal) = plan.federation, plan.privacy, OFFERED_GROUPS[n_groups]
    size = n_sites // n_groups
    if federation.groups or size < least or not math.isfinite(privacy.epsilon):
        return None
    noise = share_noise_factor(size, has_echo=True) if privacy.noise == "distributed" else 1.0
    if signal_of(plan) < signal * noise:
        return None
    table = plan.to_dict()
    changes = {"groups": n_groups, "min_sites": min(federation.min_sites, MIN_GROUP), "votes": bool(plan.label.classes)}
    with suppress(PlanError):
        return Plan.from_dict({**table, "federation": {**table["federation"], **changes}})
    return None


@dataclass(frozen=True)
class Forecast:
    """Cost of a plan's run for everyone.

    Attributes:
        settings: with every "auto" decided.
        n_rounds: times that every node is asked for a vector.
        numbers_per_node: integers that one node sends over the whole run, at most.
        bits_per_number: of a masked vector, over the fewest sites that the plan asks for; more sites may need 64.
        bytes_per_node: what one node sends, without the envelope of a transport.
        queries: (kind, number of rounds, largest length of the vector) of each kind of query.
        epsilon_gdp, epsilon_rdp: what all releases together cost at the plan's delta, by these accountants; those that
            the plan was prepared by count with them.
        epsilon_promised: the same by the plan's own accountant.
        epsilon_by_rows: where a plan protects a record, what they cost whoever has so many rows, as a report says it.
    """

    settings: Settings
    n_rounds: int
    numbers_per_node: int
    bits_per_number: int
    bytes_per_node: int
    queries: tuple[tuple[str, int, int], ...]
    epsilon_gdp: float
    epsilon_rdp: float
    epsilon_promised: float
    epsilon_by_rows: Mapping[int, float]


def forecast(plan: Plan) -> Forecast:
    """Compute a plan's demands from its schedule: the most it asks for, and the highest cost of that.

    Raises:
        PlanError: code "plan-sums-too-large".
    """
    task = TrainingTask(plan)
    schedule, events = task.schedule, [*read_prepared_events(plan), *task.schedule.events]
    is_local, n_sites = plan.privacy.noise == "local", plan.federation.min_sites
    # Bits of one number of a masked vector, for the smallest number of sites that the plan allows.
    asked = [(alike, noise_of(alike.query, is_local=is_local)) for alike in schedule.rounds]
    widths = [require_words(alike.query, plan, noise.variance, n_sites) for alike, noise in asked]
    numbers = [alike.count * alike.query.length for alike in schedule.rounds]
    accountant, delta, of_rows = plan.privacy.accountant, plan.privacy.delta, events
    if is_local:
        # Each row has noise of its own, so several rows of one person cost less than with one noise for all.
        of_rows = [*read_prepared_events(plan), *(noise.event for alike, noise in asked for _ in range(alike.count))]
    counts = [count for count in ROWS_OF_ONE_PERSON if count > 1] if plan.privacy.unit == "record" else []
    return Forecast(
        settings=task.settings,
        n_rounds=schedule.n_rounds,
        numbers_per_node=sum(numbers),
        bits_per_number=max(widths),
        bytes_per_node=sum(count * width // 8 for count, width in zip(numbers, widths, strict=True)),
        queries=tuple((kind, count, length) for kind, (count, length) in schedule.kinds.items()),
        epsilon_gdp=get_accountant("gdp").epsilon(events, delta),
        epsilon_rdp=get_accountant("rdp").epsilon(events, delta),
        epsilon_promised=get_accountant(accountant).epsilon(events, delta),
        epsilon_by_rows={count: epsilon_of_rows(accountant, of_rows, delta, count) for count in counts},
    )


def noise_guarantees(n_sites: int, *, has_echo: bool, min_survivors: int = 0) -> Guarantees:
    """Derive an epoch's guarantees with noise of the sites, as a coordinator sets the epoch up.

    Args:
        n_sites: >= 3.
        min_survivors: the plan's `min_sites`.
    """
    wishes = default_wishes(n_sites, least_colluders=MIN_COLLUDERS)
    least = max(wishes.min_survivors, min(min_survivors, n_sites))
    return derive(n_sites, replace(wishes, min_survivors=least, has_echo=wishes.has_echo or has_echo))


def share_noise_factor(n_sites: int, *, has_echo: bool, min_survivors: int = 0) -> float:
    """Return the noise of a sum relative to server noise if all of `n_sites` add their shares.

    Both are standard deviations.
    """
    return math.sqrt(n_sites / noise_guarantees(n_sites, has_echo=has_echo, min_survivors=min_survivors).honest_group)


def expect_singles(plan: Plan, settings: Settings) -> tuple[float, float] | None:
    """Estimate the leaves with a single record in a run from public numbers: spread evenly, and at worst.

    The first number is for records that are spread evenly: each falls into one of the L leaves of a tree with the
    chance 1/L, independently. Real records crowd into few leaves and leave others nearly empty. The second number is
    for the worst crowding: one leaf takes any number of the records, and the others are spread evenly over the rest.
    Then about one leaf in e holds a single record. Both numbers count all trees.

    Returns None for an algorithm without leaves.
    """
    if not find_method(plan).has_leaves:
        return None
    trees, n_records, n_leaves = settings.n_grown_trees, plan.privacy.n_records, settings.leaves_of_tree
    even = _single(n_records, n_leaves)
    # n records spread over L - 1 leaves: the count of single-record leaves is largest at n = L - 1.
    crowded = _single(min(n_records, n_leaves - 1), n_leaves - 1)
    return trees * even, trees * max(even, crowded)


def _single(n_records: int, n_leaves: int) -> float:
    """Return the expected number of leaves with exactly one of n_records spread evenly over n_leaves."""
    if n_leaves == 1:
        return float(n_records == 1)
    return n_records * math.exp((n_records - 1) * math.log1p(-1 / n_leaves))
