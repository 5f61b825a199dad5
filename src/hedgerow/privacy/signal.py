# SPDX-License-Identifier: Apache-2.0
"""How much signal a plan's noise leaves, by public numbers alone, and whether it is enough to compare sites."""

from __future__ import annotations

import math

from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import mu_of
from hedgerow.protocol.groups import median_noise_factor

USUAL_SHARE_FACTOR = math.sqrt(2)
"""Times the coordinator's noise that shares of the sites add, where the number of sites is not known: 1.41 at four and
ten sites, 1.51 at fifty, with the echo exchange (docs/runs/noise_modes.txt)."""
SIGNAL_TO_COMPARE_SITES = 1_000.0
"""Signal from which a model's failure at a site says something about sites; with less, noise alone makes models fail
(docs/runs/forecast_sites.txt)."""


def signal_of(plan: Plan, epsilon: float | None = None) -> float:
    """Return n mu / rows per unit with noise of the coordinator; with groups, for the median of the sums."""
    privacy = plan.privacy
    mu = mu_of(privacy.epsilon if epsilon is None else epsilon, privacy.delta)
    return privacy.n_records * mu / privacy.rows_per_unit / median_noise_factor(plan.federation.groups)


def expect_signal(plan: Plan, epsilon: float | None = None, noise_factor: float | None = None) -> float:
    """Return `signal_of`, over how much more noise the plan's noise mode adds than the coordinator would.

    Args:
        noise_factor: with noise of the sites, the standard deviation of a sum's noise in units of the coordinator's;
            None where the number of sites is not known. In the local model n records add sqrt(n) times one's noise.
    """
    factors = {"distributed": noise_factor or USUAL_SHARE_FACTOR, "local": math.sqrt(plan.privacy.n_records)}
    return signal_of(plan, epsilon) / factors.get(plan.privacy.noise, 1.0)


def can_compare_sites(plan: Plan) -> bool:
    """Return whether noise alone is unlikely to make a model predict one site's rows badly."""
    return math.isinf(plan.privacy.epsilon) or expect_signal(plan) >= SIGNAL_TO_COMPARE_SITES
