# SPDX-License-Identifier: Apache-2.0
"""How much signal a plan's noise leaves, and what of a model was left with as much of it: by public numbers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hedgerow.plan.plan import DEFAULT_ALGORITHM, FOUND, ModelSection, Plan
from hedgerow.privacy.accountants import mu_of
from hedgerow.protocol.groups import median_noise_factor

MEASURED_SIGNAL: tuple[tuple[float, float, float, float], ...] = (
    (0, 0.15, 0.22, 0.54), (30, 0.29, 0.57, 0.73), (100, 0.47, 0.80, 0.90), (300, 0.74, 0.87, 0.93),
    (1_000, 0.90, 0.95, 0.97), (3_000, 0.95, 0.98, 0.99), (10_000, 0.99, 0.99, 1.00),
)  # fmt: skip
"""What is left of a model by signal: (least s, smallest, median, largest share). Measured: docs/runs/signal.txt.

Not to be tuned: tests/local/test_measured.py holds it to that run. Shares are of AUC - 1/2 of the same trees
without noise on all rows, over four public sets with two classes.
"""
SIGNAL_TO_WARN = 300.0
"""Below, a model of most data sets says little."""
MIN_BUCKETS, MAX_BUCKETS, SIGNAL_OF_BUCKET = 32, 1024, 16
"""Of hashed text, and the signal for each: with less of it fewer texts can be told apart (docs/defaults.md)."""


@dataclass(frozen=True)
class Outlook:
    """How much signal a plan's noise leaves.

    Attributes:
        signal: s = n mu / rows per unit: roughly, how many standard deviations of noise the data amount to; >= 0. Over
            groups of sites that of the middle of their sums.
        smallest, median, largest: share of a model that was left at such signal, 0 to 1, over four data sets; None
            for plans whose like was not measured.
    """

    signal: float
    smallest: float | None = None
    median: float | None = None
    largest: float | None = None


def outlook_of(plan: Plan, epsilon: float | None = None) -> Outlook:
    """How much signal is left at the plan's epsilon, or at another one."""
    privacy = plan.privacy
    mu = mu_of(privacy.epsilon if epsilon is None else epsilon, privacy.delta)
    signal = privacy.n_records * mu / privacy.rows_per_unit / median_noise_factor(plan.federation.groups)
    if not is_measured(plan):
        return Outlook(signal)
    _, *shares = max(row for row in MEASURED_SIGNAL if row[0] <= signal)
    return Outlook(signal, *shares)


def with_buckets(plan: Plan) -> Plan:
    """The plan with as many buckets as its signal carries, a power of two, where noisy sums found text without a list.

    For trees alone: in a linear model each bucket has a coefficient of its own, and noise with it.
    """
    if plan.model.algorithm != DEFAULT_ALGORITHM or math.isinf(plan.privacy.epsilon):
        return plan
    most = int(min(outlook_of(plan).signal, 1e9)) // SIGNAL_OF_BUCKET
    buckets = max(MIN_BUCKETS, min(MAX_BUCKETS, 1 << max(0, most.bit_length() - 1)))
    features = [
        replace(feature, buckets=buckets, categories=()) if feature.is_hashed and feature.origin == FOUND else feature
        for feature in plan.features
    ]
    return replace(plan, features=tuple(features))


def is_measured(plan: Plan) -> bool:
    """Whether `MEASURED_SIGNAL` speaks of such a plan: of two classes, and the default in all."""
    return (
        plan.label.type == "binary"
        and replace(plan.model, structure_seed=ModelSection().structure_seed) == ModelSection()
    )


def outlook_facts(plan: Plan) -> list[tuple[str, str]]:
    """The outlook at a plan's epsilon, for a person: names and texts; none without noise, nor in the local model."""
    privacy, n_groups = plan.privacy, plan.federation.groups
    if math.isinf(privacy.epsilon) or privacy.noise == "local":
        return []
    own = outlook_of(plan)
    several = f" over {privacy.rows_per_unit} rows a unit" if privacy.rows_per_unit > 1 else ""
    if n_groups:
        several += f", over {median_noise_factor(n_groups):.2f} for the middle of {n_groups} groups"
    mu = f"{mu_of(privacy.epsilon, privacy.delta):.3g}"
    facts = [
        ("signal", f"s = {own.signal:,.0f} ({privacy.n_records:,} records at mu {mu}{several}): roughly, how many "
         "standard deviations of noise the data amount to"),
    ]  # fmt: skip
    if own.median is not None:
        facts.append(
            ("measured", f"typically {own.median:.0%} of the accuracy above chance of the same trees without noise, "
             f"{own.smallest:.0%} to {own.largest:.0%} (AUC, four public data sets with two classes; "
             "docs/runs/signal.txt)")
        )  # fmt: skip
    return [*facts, *([("warning", doubt)] if (doubt := doubt_of(plan)) else [])]


def doubt_of(plan: Plan) -> str:
    """What there is to say of a plan with too little signal, without a full stop; empty for others."""
    if math.isinf(plan.privacy.epsilon) or plan.privacy.noise == "local":
        return ""
    if (signal := outlook_of(plan).signal) >= SIGNAL_TO_WARN:
        return ""
    return (
        f"the data amount to about {signal:,.0f} standard deviations of noise (s), too little signal for most models: "
        f"below {SIGNAL_TO_WARN:g} much of what is predicted is noise, and it takes more records, fewer features or a "
        "larger epsilon"
    )
