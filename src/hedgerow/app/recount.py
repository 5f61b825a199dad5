# SPDX-License-Identifier: Apache-2.0
"""The account of a ledger counted again by other people's arithmetic: nothing here is imported from `hedgerow.privacy`.

What is read is the ledger as JSON: of each release its kind of noise, the standard deviation (or scale) and the
sensitivity, in the grid's units. Their quotient is taken here, not from the event that our accountants charge.

mpmath        Gaussian noise only: delta(epsilon) of the Gaussian mechanism (Balle and Wang 2018, arXiv 1805.06530,
              theorem 8) in 50 digits, at mu² = the sum of (sensitivity / sigma)².
dp_accounting Google's library, by privacy loss distributions on a grid that rounds losses up: Gaussian releases over
              all units or over samples, and discrete Laplace noise as randomised response of its epsilon.

Both take the noise for continuous, so ours, which is charged for the grid of whole numbers as well, is a little larger.
"""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_GAUSSIAN = ("discrete-gaussian", "discrete-gaussian-sum", "local-gaussian")
_SAMPLED = "sampled-gaussian"
_PURE = "discrete-laplace"
_DIGITS = 50
Key = tuple[str, float, float]
"""Kind of noise, noise over sensitivity, chance to be in the sample."""


def recount_ledger(releases: Sequence[Mapping[str, Any]], delta: float) -> list[dict[str, Any]]:
    """The epsilon of all releases at delta, a line by each library; where one cannot tell, `why` in place of `epsilon`.

    Args:
        releases: as a model's file has them.
        delta: in (0, 1).

    Raises:
        ImportError: without the libraries of the extra "pld".
    """
    import mpmath

    counted = Counter[Key]()
    unknown = set()
    for release in releases:
        event = release["event"]
        kind, rate = event["type"], event.get("sampling_rate", 1.0)
        if kind not in (*_GAUSSIAN, _SAMPLED, _PURE) or (kind == _PURE and rate != 1):
            unknown.add(kind)
            continue
        counted[kind, release["sigma"] / release["sensitivity"], rate] += event.get("count", 1)
    # A filter's budget, a choice and a vector of pure noise have no counterpart there.
    why = f"it has no like of {', '.join(sorted(unknown))}" if unknown else "" if counted else "nothing was released"
    libraries = {"mpmath": _by_formula, "dp_accounting": _by_distributions}
    versions = {"mpmath": mpmath.__version__, "dp_accounting": importlib.metadata.version("dp-accounting")}
    found = []
    for name, count in libraries.items():
        line: dict[str, Any] = {"by": name, "version": versions[name]}
        is_gaussian = all(kind in _GAUSSIAN or (rate == 1 and kind == _SAMPLED) for kind, _, rate in counted)
        doubt = why or ("" if is_gaussian or name != "mpmath" else "the formula is for Gaussian noise alone")
        found.append(line | ({"why": doubt} if doubt else {"epsilon": count(counted, delta)}))
    return found


def _by_formula(counted: Mapping[Key, int], delta: float) -> float:
    """The least epsilon at delta, by bisection."""
    import mpmath

    with mpmath.workdps(_DIGITS):
        mu = mpmath.sqrt(mpmath.fsum(count / mpmath.mpf(z) ** 2 for (_, z, _), count in counted.items()))

        def spent(epsilon: Any) -> Any:
            return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)

        low, high = mpmath.mpf(0), mpmath.mpf(1)
        if spent(low) <= delta:
            return 0.0
        while spent(high) > delta:
            low, high = high, 2 * high
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if spent(middle) > delta else (low, middle)
        return float(high)


def _by_distributions(counted: Mapping[Key, int], delta: float) -> float:
    """An upper bound on epsilon at delta: losses are rounded up on the library's grid."""
    from dp_accounting.pld import common, privacy_loss_distribution

    parts = []
    for (kind, ratio, rate), count in counted.items():
        if kind == _PURE:
            parameters = common.DifferentialPrivacyParameters(1 / ratio, 0.0)
            one = privacy_loss_distribution.from_privacy_parameters(parameters)
        else:
            one = privacy_loss_distribution.from_gaussian_mechanism(ratio, sampling_prob=rate)
        parts.append(one.self_compose(count))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part)
    return float(whole.get_epsilon_for_delta(delta))
