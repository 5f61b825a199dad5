# SPDX-License-Identifier: Apache-2.0
"""The account of a ledger counted again by Google's dp_accounting: nothing here is imported from `hedgerow.privacy`.

What is read is the ledger as JSON: of each release its kind of noise, the standard deviation (or scale) and the
sensitivity, in the grid's units. Their quotient is taken here, not from the event that our accountants charge.

Where all noise is Gaussian, over all units, its analytic formula counts (Balle and Wang 2018, arXiv 1805.06530, theorem
8), at mu² = the sum of (sensitivity / sigma)². Else its privacy loss distributions do, on a grid that rounds losses up:
Gaussian releases over samples too, and discrete Laplace noise as randomised response of its epsilon. It takes noise for
continuous, so ours, which is charged for the grid of whole numbers as well, may be a little larger.
"""

from __future__ import annotations

import importlib.metadata
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_GAUSSIAN = ("discrete-gaussian", "discrete-gaussian-sum", "local-gaussian", "sampled-gaussian")
_PURE = "discrete-laplace"


def recount_ledger(releases: Sequence[Mapping[str, Any]], delta: float, accounted_by: str = "") -> dict[str, Any]:
    """The epsilon of all releases at delta, with the library that says so; `why` in place of it where it cannot tell.

    Args:
        releases: as a model's file has them.
        delta: in (0, 1).
        accounted_by: which of our accountants gave our figure: "pld" is the library's own.

    Raises:
        ImportError: without the library, of the extra "pld".
    """
    from dp_accounting import get_epsilon_gaussian
    from dp_accounting.pld import common, privacy_loss_distribution

    # By Gaussian or not, noise over sensitivity, and chance to be in the sample.
    counted, unknown = Counter[tuple[bool, float, float]](), set()
    for release in releases:
        event = release["event"]
        kind, rate = event["type"], event.get("sampling_rate", 1.0)
        if kind in _GAUSSIAN or (kind == _PURE and rate == 1):
            counted[kind in _GAUSSIAN, release["sigma"] / release["sensitivity"], rate] += event.get("count", 1)
        else:
            unknown.add(kind)
    found = {"by": "dp_accounting", "version": importlib.metadata.version("dp-accounting")}
    if unknown or not counted:
        # A filter's budget, a choice and a vector of pure noise have no counterpart there.
        return found | {"why": f"it has no like of {', '.join(sorted(unknown))}" if unknown else "nothing was released"}
    if all(is_gaussian and rate == 1 for is_gaussian, _, rate in counted):
        mu = math.sqrt(math.fsum(count / ratio**2 for (_, ratio, _), count in counted.items()))
        return found | {"epsilon": float(get_epsilon_gaussian(1 / mu, delta))}
    if accounted_by == "pld":
        return found | {"why": "the figure above is its own"}
    whole = privacy_loss_distribution.identity()
    for (is_gaussian, ratio, rate), count in counted.items():
        pure = common.DifferentialPrivacyParameters(1 / ratio, 0.0)
        one = (
            privacy_loss_distribution.from_gaussian_mechanism(ratio, sampling_prob=rate)
            if is_gaussian
            else privacy_loss_distribution.from_privacy_parameters(pure)
        )
        whole = whole.compose(one.self_compose(count))
    return found | {"epsilon": float(whole.get_epsilon_for_delta(delta))}
