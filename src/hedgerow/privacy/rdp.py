"""Accounting by Renyi differential privacy, through autodp: the second opinion beside the exact accountant.

Only autodp's RDP path is used. Its characteristic-function path (`phi_off=False`) answers wrongly with current SciPy,
and its closed-form path (`approxDP_off=False`) would make this opinion a copy of the first one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable

import numpy as np

from hedgerow.privacy.cost import cost_of
from hedgerow.privacy.events import Event
from hedgerow.privacy.gdp import check_delta

# The order at which autodp stops its search is a matter of its optimiser's tolerance; this covers its rounding.
_RELATIVE_ROUNDING = 1e-11


def epsilon_rdp(events: Iterable[Event], delta: float) -> float:
    """The epsilon of the events at delta by RDP, rounded up; PrivacyError for an unknown event.

    RDP of a Gaussian release is alpha / (2 z²), and so is the bound of the discrete Gaussian (Canonne, Kamath & Steinke
    2020, arXiv 2004.00010; docs/proofs/discrete-gaussian.md, theorem 3); RDP adds up, so that any events together cost
    what one release with 1 / z² = sum of 1 / z_i² costs.
    """
    check_delta(delta)
    cost = cost_of(events)
    twin_delta = delta * math.exp(-cost.log_ratio)
    if cost.zcdp_weight == math.inf or twin_delta <= 0:
        return math.inf
    return epsilon_of_rho(cost.zcdp_weight / 2, twin_delta) + 2 * cost.log_ratio


def epsilon_of_rho(rho: float, delta: float) -> float:
    """The epsilon at delta of a mechanism whose RDP is rho alpha at every order alpha (rho-zCDP), rounded up.

    Args:
        rho: >= 0, infinity allowed.
        delta: in (0, 1).

    Source: the conversion of Balle et al. 2020 (arXiv 1905.09982, Theorem 21) as autodp 0.2.3.1 implements it.
    """
    check_delta(delta)
    if rho == 0:
        return 0.0
    if rho == math.inf:
        return math.inf
    # Arithmetic is silenced where it is searched for the order (overflow at alpha = 1), and for this thread alone: the
    # filters of warnings are the process's, and another thread may put them back in the middle of the search.
    with np.errstate(all="ignore"), warnings.catch_warnings():
        # autodp warns on import too (syntax, deprecations).
        warnings.simplefilter("ignore")
        from autodp.mechanism_zoo import GaussianMechanism

        mechanism = GaussianMechanism(
            1 / math.sqrt(2 * rho), RDP_off=False, approxDP_off=True, fdp_off=True, phi_off=True
        )
        epsilon = float(mechanism.get_approxDP(delta))
    return epsilon * (1 + _RELATIVE_ROUNDING) if epsilon > 0 else 0.0
