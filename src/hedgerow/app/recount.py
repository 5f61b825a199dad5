# SPDX-License-Identifier: Apache-2.0
"""Count the epsilon of an evidence pack again, from evidence.json alone: python recount.py evidence.json.

This file needs numpy, scipy and dp-accounting (pip install numpy scipy dp-accounting) and nothing of Hedgerow; every
pack has it as it is. It reads the ledger's releases, and takes the quotient of sensitivity and noise itself. The exit
code is 0 if the reported epsilon is reproduced as closely as `TOLERANCES` says, else 1.

gdp: mu² is the sum of (sensitivity / sigma)² (Balle and Wang 2018, arXiv 1805.06530, theorem 8). rdp: divergences of
sampled Gaussians (Mironov, Talwar and Zhang 2019, arXiv 1908.10530, section 3.3), those of a filter at its order its
budget at most; converted by Canonne, Kamath and Steinke 2020 (arXiv 2004.00010), proposition 12. pure: the sum of
amplified epsilons. pld: dp_accounting's privacy loss distributions. docs/proofs/discrete-gaussian.md bounds what noise
in whole numbers costs beyond a continuous Gaussian; docs/proofs/queries.md, section 10, what a pure release costs
beside one.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, gammaln, log_ndtr, logsumexp, ndtri

TOLERANCES = {"gdp": (-1e-6, 1e-6), "pure": (-1e-6, 1e-6), "rdp": (-1e-4, 1e-4), "pld": (-1e-6, 0.01)}
"""Relative range in which this epsilon may lie above the reported one; over samples gdp is a bound by rdp."""
PURE, FILTERED = ("discrete-laplace", "discrete-laplace-vector", "selection"), "filtered-sampled-gaussian"
GAUSSIAN = ("gaussian", "discrete-gaussian", "discrete-gaussian-sum", "local-gaussian", "sampled-gaussian", FILTERED)
_ORDERS = {*range(2, 65), *(round(64 * 1.06**step) for step in range(1, 85))}
_CELLS, UP = 2**14, 1 + 1e-9


@dataclass
class Costs:
    """Costs of releases.

    `mu2` is of Gaussian releases, `pure_mu2` of pure ones, and `weight`, twice their rho, of both.

    `distance` and `log_ratio` are the price of whole numbers. `pure` counts amplified epsilons, `samples` releases over
    samples by sensitivity / sigma, factor on mu² of whole numbers, sampling rate, and a filter's scope, order, budget.
    """

    mu2: float = 0.0
    pure_mu2: float = 0.0
    weight: float = 0.0
    distance: float = 0.0
    log_ratio: float = 0.0
    pure: Counter[float] = field(default_factory=Counter)
    samples: Counter[tuple[Any, ...]] = field(default_factory=Counter)


def add_up(releases: Sequence[Mapping[str, Any]], in_whole_numbers: bool = True) -> Costs:
    """Add up the costs of releases; noise counts as continuous unless `in_whole_numbers`."""
    total, filters = Costs(), defaultdict[tuple[Any, ...], list[tuple[float, float]]](list)
    for release in releases:
        event, length = release["event"], release["length"]
        kind, count, rate = event["type"], event.get("count", 1), event.get("sampling_rate", 1.0)
        if kind == "unnoised":
            return Costs(math.inf, 0.0, math.inf)
        ratio = release["sensitivity"] / release["sigma"]
        if kind in PURE:
            ratio = max(ratio, event["epsilon"])
            epsilon = math.log1p(rate * math.expm1(ratio)) if ratio < 30 else ratio + math.log(rate)
            known = ratio**2 / 4 if kind == "selection" else event.get("zcdp_weight", math.inf)
            total.pure[epsilon] += count
            total.pure_mu2 += count * (2 * float(ndtri(expit(-epsilon)))) ** 2
            total.weight += count * min(epsilon**2, known)
            continue
        if kind not in GAUSSIAN:
            raise ValueError(f"This program does not know what a release of the type {kind!r} costs.")
        ratio, factor, shares = max(ratio, 1 / event["noise_multiplier"]), 1.0, event.get("n_shares", 1)
        if in_whole_numbers and kind != "gaussian":
            variance, steps = release["sigma"] ** 2, np.arange(1, shares)
            rest = variance - 1 / 12
            apart = 0.00341 / rest**2 + 0.00381 / rest**2.5 + 1.001 * math.exp(-2 * math.pi**2 * variance)
            tau = 10 * float(np.exp(-2 * math.pi**2 * variance / shares * steps / (steps + 1)).sum())
            factor = 1 + 1 / (12 * rest)
            total.distance += length * count * apart
            total.log_ratio += length * count * tau
        limits = (event["scope"], event["order"], event["budget"]) if kind == FILTERED else ()
        if rate < 1:
            total.samples[ratio, factor, rate, limits] += count
        else:
            # Give each release without a filter a key of its own.
            filters[limits or (len(filters),)].append((count * ratio**2, factor))
    for limits, parts in filters.items():
        whole = math.fsum(weight for weight, _ in parts)
        # A filter at sampling rate 1 keeps mu² of every unit below 2 budget / order.
        weight = min(whole, 2 * limits[2] / limits[1]) if len(limits) == 3 else whole
        exact = math.fsum(weight * factor for weight, factor in parts)
        total.weight += weight
        total.mu2 += min(exact, weight * max(factor for _, factor in parts))
    return total


def convert_mu(mu2: float, distance: float, delta: float) -> float:
    """Return the epsilon at `delta` of releases within a total variation `distance` of mu-GDP ones.

    The distance costs (1 + e^epsilon) times itself in delta.
    """
    mu = math.sqrt(mu2)

    def excess(epsilon: float) -> float:
        high, low = log_ndtr(mu / 2 - epsilon / mu), log_ndtr(-mu / 2 - epsilon / mu)
        found = math.exp(high) * -math.expm1(min(0.0, epsilon + low - high))
        return found + (1 + math.exp(epsilon)) * distance - delta

    if mu == 0 or excess(0.0) <= 0:
        return 0.0
    # Beyond this point the distance costs more than epsilon gains; without a distance there is no such point.
    end = -mu * (float(ndtri(min(distance, 1.0))) + mu / 2) if distance else mu * (mu / 2 + 40)
    end = min(end, 700.0)
    return math.inf if end <= 0 or excess(end) > 0 else float(brentq(excess, 0.0, end, xtol=1e-14, rtol=1e-13)) * UP


def convert_renyi(order: float, divergence: float, delta: float) -> float:
    """Return the epsilon of one Renyi divergence."""
    return divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def convert_rho(rho: float, delta: float) -> float:
    """Return the epsilon of rho-zCDP at the best order."""
    middle = math.log(-math.log(delta) / rho) / 2

    def convert(place: float) -> float:
        return convert_renyi(1 + math.exp(place), rho * (1 + math.exp(place)), delta)

    best = minimize_scalar(convert, bounds=(middle - 8, middle + 8), method="bounded", options={"xatol": 1e-10})
    return max(0.0, float(best.fun)) * UP


def compute_divergence(order: int, ratio: float, rate: float) -> float:
    """Return the Renyi divergence of a Gaussian over a Poisson sample of this rate."""
    number = np.arange(order + 1)
    binomials = gammaln(order + 1) - gammaln(number + 1) - gammaln(order - number + 1)
    terms = binomials + (order - number) * math.log1p(-rate) + number * math.log(rate)
    return max(0.0, float(logsumexp(terms + number * (number - 1) * ratio**2 / 2))) / (order - 1)


def sum_divergences(samples: Mapping[tuple[Any, ...], int], order: int) -> dict[tuple[Any, ...], float]:
    """Return the divergences of releases over samples by filter of this order; all others under ()."""
    sums = defaultdict[tuple[Any, ...], float](float)
    for (ratio, _, rate, limits), count in samples.items():
        sums[limits if limits and limits[1] == order else ()] += count * compute_divergence(order, ratio, rate)
    return sums


def can_act(samples: Mapping[tuple[Any, ...], int]) -> bool:
    """Return whether a filter may leave a unit out: its releases, at their worst, exceed its budget."""
    orders = {limits[1] for _, _, _, limits in samples if limits}
    return any(cost > key[2] for order in orders for key, cost in sum_divergences(samples, order).items() if key)


def compose_losses(costs: Costs, delta: float) -> float:
    """Return the epsilon by dp_accounting's privacy loss distributions, rounding losses up to a grid."""
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    mu = math.sqrt(costs.mu2)
    spread = sum(n * math.expm1(ratio**2) * rate**2 for (ratio, _, rate, _), n in costs.samples.items())
    largest = math.fsum(costs.pure.elements()) + mu * (mu / 2 + 10) + math.sqrt(spread) * (math.sqrt(spread) / 2 + 10)
    grid, tail = {"value_discretization_interval": largest / _CELLS}, {"log_mass_truncation_bound": math.log(1e-15)}
    if largest > 700:
        return math.inf
    whole = pld.identity(**grid)
    for epsilon, count in costs.pure.items():
        pure = common.DifferentialPrivacyParameters(epsilon, 0.0)
        whole = whole.compose(pld.from_privacy_parameters(pure, **grid).self_compose(count))
    for (ratio, factor, rate, _), count in costs.samples.items():
        one = pld.from_gaussian_mechanism(1 / (ratio * math.sqrt(factor)), sampling_prob=rate, **grid, **tail)
        whole = whole.compose(one.self_compose(count))
    if mu:
        whole = whole.compose(pld.from_gaussian_mechanism(1 / mu, **grid, **tail))
    if not costs.distance:
        return float(whole.get_epsilon_for_delta(delta)) * UP

    def excess(epsilon: float) -> float:
        return float(whole.get_delta_for_epsilon(epsilon) + (1 + math.exp(epsilon)) * costs.distance - delta)

    end = next((2.0**power for power in range(-12, 9) if excess(2.0**power) <= 0), math.inf)
    return end if end == math.inf else float(brentq(excess, 0.0, end)) * (1 + 1e-9) if excess(0.0) > 0 else 0.0


def count_epsilon(costs: Costs, delta: float, accountant: str) -> float:
    """Return the epsilon of costs by an accountant; infinity where something had no noise."""
    if accountant == "pure":
        return math.inf if costs.mu2 or costs.samples else math.fsum(costs.pure.elements()) * UP
    left = delta * math.exp(-costs.log_ratio)
    if costs.weight == math.inf or left <= 0:
        return math.inf
    if not costs.weight and not costs.samples:
        return 0.0
    if costs.samples:
        found = math.inf
        for order in _ORDERS | {limits[1] for _, _, _, limits in costs.samples if limits}:
            sums = sum_divergences(costs.samples, order)
            whole = costs.weight / 2 * order + sum(min(cost, key[2]) if key else cost for key, cost in sums.items())
            found = min(found, max(0.0, convert_renyi(order, whole, left)) * UP)
    else:
        found = convert_rho(costs.weight / 2, left)
        if accountant != "rdp":
            found = min(found, convert_mu(costs.mu2 + costs.pure_mu2, costs.distance, left))
    found += 2 * costs.log_ratio
    if accountant != "rdp" and not costs.samples and not costs.mu2:
        found = min(found, math.fsum(costs.pure.elements()) * UP)
    # For Gaussian releases alone `convert_mu` is exact.
    if accountant == "pld" and (costs.samples or costs.pure) and not can_act(costs.samples):
        found = min(found, compose_losses(costs, left) + 2 * costs.log_ratio)
    return found


def recount_pack(content: Mapping[str, Any]) -> dict[str, Any]:
    """Recount a pack's releases by the reported accountant; `above` is the share above the report."""
    report, costs = content["report"], add_up(content["releases"])
    name, reported = report["accounted_by"], math.inf if report["epsilon"] == "infinite" else report["epsilon"]
    found = count_epsilon(costs, report["delta"], name)
    above = 0.0 if found == reported else found / reported - 1 if reported else math.inf
    low, high = TOLERANCES["rdp" if costs.samples and name == "gdp" else name]
    return {
        "by": "recount.py",
        "version": ", ".join(f"{each} {version(each)}" for each in ("numpy", "scipy", "dp-accounting")),
        "accountant": name, "epsilon": found, "above": above, "agrees": low <= above <= high,
    }  # fmt: skip


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        pack = json.load(file)
    result = recount_pack(pack)
    print(f"reported: epsilon {pack['report']['epsilon']} at delta {pack['report']['delta']} by {result['accountant']}")
    print(f"counted again: epsilon {result['epsilon']}, {100 * result['above']:+.2g} %")
    print("The reported epsilon is reproduced." if result["agrees"] else "The reported epsilon is NOT reproduced.")
    sys.exit(0 if result["agrees"] else 1)
