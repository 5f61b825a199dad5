# SPDX-License-Identifier: Apache-2.0
"""How much signal a plan's noise leaves, and what share of a model is left with it: by public numbers alone.

The forecast is of (AUC - 1/2) over that of the default without noise (epsilon infinite) on the same rows. Noise of
standard deviation 1 / s in units of the signal hides what is weaker than it. The share of what is learned that lies
above goes from 0 to 1 as s grows. The curve that was measured is

    share(s) = 1 / (1 + (h / s) ** k)

a straight line of log-odds over ln s, which rises everywhere: at the signal h a half is left. Labels differ in how
strong they are, so there are two such curves: below the first lies a quarter of runs, below the second a half.
`python -m experiments forecast` fits them by quantile regression over eleven public data sets, each with the same
weight. The range goes up to 1, because some runs lost nothing. Its lower end loses `LOSS_FACTOR` times what the first
curve loses, because a new set may be unlike all of these. The run says how often the runs of a set lie within the range
that the other sets give. Where the range would be wider than `MAX_HALF_WIDTH` to either side, nothing is said: with
little signal models of different labels keep anything from nothing to all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hedgerow.plan.plan import DEFAULT_ALGORITHM, FOUND, ModelSection, Plan
from hedgerow.privacy.accountants import mu_of
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.public import PublicInputs
from hedgerow.privacy.signal import USUAL_SHARE_FACTOR, expect_signal, signal_of
from hedgerow.protocol.groups import median_noise_factor

SHARE_CURVES: tuple[tuple[float, float], ...] = ((65.5, 0.9), (22.6, 0.8))
"""(h, k) of the lower quartile and the median of shares. Measured: docs/runs/forecast.txt.

Not to be tuned: tests/local/test_measured.py holds them to that run.
"""
LOSS_FACTOR = 2.5
"""Times the lower quartile's loss at the range's lower end: the least by halves with which at least 80 % of the runs of
each set lie in the range that the other sets give (docs/runs/forecast.txt)."""
MAX_HALF_WIDTH = 10
"""Largest half-width of a range that is said, in points of a hundred."""
SIGNAL_TO_WARN = 300.0
"""Below, a model of most data sets says little."""
MIN_BUCKETS, MAX_BUCKETS, SIGNAL_OF_BUCKET = 32, 1024, 16
"""Limits of the buckets of hashed text, and the signal that each bucket needs (docs/defaults.md)."""


@dataclass(frozen=True)
class Outlook:
    """Forecast of the signal left by a plan's noise.

    Attributes:
        signal: s, roughly how many standard deviations of noise the data amount to; >= 0: `signal_of`, over how many
            times the coordinator's noise is added.
        smallest, median, largest: share of the accuracy above chance that is left at such signal, 0 to 1; None for
            plans whose like was not measured, and for a signal at which runs differed too much.
    """

    signal: float
    smallest: float | None = None
    median: float | None = None
    largest: float | None = None


def outlook_of(plan: Plan, epsilon: float | None = None, *, noise_factor: float | None = None) -> Outlook:
    """Forecast the share of accuracy left at the plan's epsilon, or at another one.

    Args:
        noise_factor: as in `expect_signal`.
    """
    signal = expect_signal(plan, epsilon, noise_factor)
    shares = order_shares(signal) if is_measured(plan) else None
    return Outlook(signal) if shares is None else Outlook(signal, *shares)


def order_shares(
    signal: float, curves: Sequence[tuple[float, float]] = SHARE_CURVES
) -> tuple[float, float, float] | None:
    """Return the smallest, the median and the largest share left at a signal, or None if the range is too wide.

    The shares are from 0 to 1, and the smallest is rounded down to whole points of a hundred.
    """
    # Odds of a share: rising in the signal, and 0 without any. Beyond 1e30 they would leave floating point.
    odds = [(min(signal, 1e30) / half) ** slope for half, slope in curves]
    low, middle = (each / (1 + each) for each in odds)
    # Curves of different slope cross far out, where nothing was measured.
    least = math.floor(100 - 100 * LOSS_FACTOR * (1 - min(low, middle)))
    return None if 100 - least > 2 * MAX_HALF_WIDTH else (least / 100, middle, 1.0)


def find_noise_factor(ledger: Ledger) -> float | None:
    """Return a training's noise relative to the coordinator's noise; None if no site added noise.

    Each of n sites adds a share of the noise, `n_shares` of which are enough: all add sqrt(n / n_shares) times as much.
    """
    cohorts = [release.cohort for release in ledger if release.cohort is not None and not release.is_later]
    return max((math.sqrt(cohort.n_sites / cohort.n_shares) for cohort in cohorts), default=None)


def with_buckets(plan: Plan) -> Plan:
    """Return the plan with buckets of found text columns set to a power of two that its signal carries.

    For trees alone: in a linear model each bucket has a coefficient of its own, and noise with it.
    """
    if plan.model.algorithm != DEFAULT_ALGORITHM or math.isinf(plan.privacy.epsilon):
        return plan
    most = int(min(signal_of(plan), 1e9)) // SIGNAL_OF_BUCKET
    buckets = max(MIN_BUCKETS, min(MAX_BUCKETS, 1 << max(0, most.bit_length() - 1)))
    features = [
        replace(feature, buckets=buckets, categories=()) if feature.is_hashed and feature.origin == FOUND else feature
        for feature in plan.features
    ]
    return replace(plan, features=tuple(features))


def is_measured(plan: Plan) -> bool:
    """Return whether `SHARE_CURVES` speak of such a plan: two classes, and the default in all."""
    return (
        plan.label.type == "binary"
        and replace(plan.model, structure_seed=ModelSection().structure_seed) == ModelSection()
    )


def count_at_most(plan: Plan, ledger: Ledger, leaf_weights: Sequence[int]) -> int | None:
    """Bound the number of records that a run used, by its first release; None if that release counts none.

    Before the first tree all scores are 0. Each record adds one Hessian to a leaf of the default's first tree. Its
    largest gradient is as large, so it is the record's norm over the square root of 2. Weights are cut off at 0, which
    makes their sum larger, and two standard deviations of its noise are added.

    Args:
        leaf_weights: of the first tree, as the model keeps them.
    """
    own = ledger.releases[len(plan.prepared) :]
    is_plain = is_measured(plan) and not plan.federation.groups and plan.privacy.noise != "local"
    # A file may say anything of a release; its sensitivity is a whole number's, so at least 1.
    if not is_plain or not own or own[0].kind != "LeafSums" or not own[0].sensitivity >= 1:
        return None
    hessian = own[0].sensitivity / plan.privacy.rows_per_unit / math.sqrt(2)
    noise = own[0].sigma * (find_noise_factor(ledger) or 1.0) * math.sqrt(len(leaf_weights))
    return math.ceil((sum(leaf_weights) + 2 * noise) / hessian)


def outlook_facts(
    plan: Plan, *, noise_factor: float | None = None, at_most: int | None = None
) -> list[tuple[str, str]]:
    """Return the outlook at a plan's epsilon, for a person: names and texts; none without noise.

    Args:
        noise_factor: as for `outlook_of`.
        at_most: records that a run used, by `count_at_most`; it counts where the plan declares more.
    """
    declared, n_groups = plan.privacy.n_records, plan.federation.groups
    if math.isinf(plan.privacy.epsilon):
        return []
    counted = "found with noise" if PublicInputs.from_plan(plan).n_records_origin == FOUND else "as the plan declares"
    records = f"{declared:,} records, {counted}"
    if at_most is not None and at_most < declared:
        plan = replace_count(plan, at_most)
        records = f"at most {plan.privacy.n_records:,} records by the first release, where the plan has {declared:,}"
    privacy, own = plan.privacy, outlook_of(plan, noise_factor=noise_factor)
    several = f" over {privacy.rows_per_unit} rows a unit" if privacy.rows_per_unit > 1 else ""
    if n_groups:
        several += f", over {median_noise_factor(n_groups):.2f} for the middle of {n_groups} groups"
    if privacy.noise == "distributed":
        several += f", over {noise_factor or USUAL_SHARE_FACTOR:.2f} for the sites' shares of noise"
    elif privacy.noise == "local":
        several += f", over {math.sqrt(privacy.n_records):,.0f} for noise on every record"
    mu = f"{mu_of(privacy.epsilon, privacy.delta):.3g}"
    facts = [
        ("signal", f"s = {own.signal:,.0f} ({records}, at mu {mu}{several}): roughly the size of the data, "
         "in standard deviations of the noise"),
    ]  # fmt: skip
    runs = "(AUC, eleven public data sets with two classes; docs/runs/forecast.txt)"
    if own.smallest is not None and own.median is not None and own.largest is not None:
        facts.append(
            ("measured", f"typically {own.median:.0%} of the accuracy above chance that the same trees reach "
             f"without noise, {own.smallest:.0%} to {own.largest:.0%} in most runs, if the number of records is right "
             f"{runs}")
        )  # fmt: skip
    elif is_measured(plan):
        facts.append(
            ("measured", "how much of the accuracy above chance is left cannot be said: runs with so little signal "
             f"differed by more than {2 * MAX_HALF_WIDTH} points of a hundred {runs}")
        )  # fmt: skip
    doubt = doubt_of(plan, noise_factor=noise_factor)
    return [*facts, *([("warning", doubt)] if doubt else [])]


def list_outlook(plan: Plan, *, noise_factor: float | None = None, at_most: int | None = None) -> tuple[str, ...]:
    """Return the lines of a report's outlook; arguments as for `outlook_facts`."""
    facts = outlook_facts(plan, noise_factor=noise_factor, at_most=at_most)
    return tuple(f"! Warning: {text}." if name == "warning" else text for name, text in facts)


def replace_count(plan: Plan, at_most: int | None) -> Plan:
    """Return the plan with this number of records, if it has more."""
    if at_most is None or at_most >= plan.privacy.n_records:
        return plan
    return replace(plan, privacy=replace(plan.privacy, n_records=max(1, at_most)))


def doubt_of(plan: Plan, *, noise_factor: float | None = None) -> str:
    """Describe a plan's lack of signal, without a full stop; empty for a plan with enough signal."""
    if math.isinf(plan.privacy.epsilon):
        return ""
    if (signal := outlook_of(plan, noise_factor=noise_factor).signal) >= SIGNAL_TO_WARN:
        return ""
    return (
        f"the data amount to about {signal:,.0f} standard deviations of noise (s), too little signal for most models: "
        f"below {SIGNAL_TO_WARN:g} much of what is predicted is noise, and it takes more records, fewer features or a "
        "larger epsilon"
    )
