"""The price of the grid: every bound of docs/proofs/discrete-gaussian.md against exhaustive summation."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import numpy.typing as npt
import pytest

from hedgerow.privacy.accountants import delta_of_mu, get_accountant
from hedgerow.privacy.cost import lattice_slack, sum_slack
from hedgerow.privacy.events import DiscreteGaussianEvent, DiscreteGaussianSumEvent

Masses = npt.NDArray[np.float64]


def _discrete_gaussian(sigma: float, reach: int) -> Masses:
    masses = np.exp(-(np.arange(-reach, reach + 1, dtype=np.float64) ** 2) / (2 * sigma**2))
    return np.asarray(masses / masses.sum())


def _hockey_stick(p: Masses, q: Masses, epsilon: float) -> float:
    """The exact delta of a pair of distributions: the sum of the positive parts of p - e^epsilon q."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def _shifted(p: Masses, shift: int) -> Masses:
    return np.concatenate([np.zeros(shift), p[: p.size - shift]])


@pytest.mark.parametrize("sigma", [1, 2, 3, 5, 10, 30])
def test_distance_to_the_rounded_gaussian_is_bounded(sigma: int) -> None:
    """Protects theorem 1: the distance summed with 40 digits is below the bound, and the bound is near."""
    with mpmath.workdps(40):
        s = mpmath.sqrt(mpmath.mpf(sigma) ** 2 - mpmath.mpf(1) / 12)
        half = mpmath.mpf(1) / 2
        cells = range(-14 * sigma, 14 * sigma + 1)
        discrete = [mpmath.exp(-(mpmath.mpf(i) ** 2) / (2 * sigma**2)) for i in cells]
        normaliser = mpmath.fsum(discrete)
        rounded = [mpmath.ncdf((i + half) / s) - mpmath.ncdf((i - half) / s) for i in cells]
        pairs = zip(discrete, rounded, strict=True)
        distance = float(mpmath.fsum(abs(p / normaliser - q) for p, q in pairs) / 2)
    bound = lattice_slack(sigma**2, length=1).total_variation
    assert distance <= bound <= 20 * distance


def test_the_distance_shrinks_with_the_fourth_power() -> None:
    """Protects the reason for matching variances: ten times finer is ten thousand times nearer."""
    coarse, fine = lattice_slack(10**8, 1).total_variation, lattice_slack(10**10, 1).total_variation
    assert coarse / fine == pytest.approx(10**4, rel=1e-3)
    assert coarse < 4e-19
    assert lattice_slack(10**8, 7, 3).total_variation == pytest.approx(21 * coarse)


@pytest.mark.parametrize(("sigma", "shift"), [(2, 1), (3, 2), (5, 1), (5, 5), (20, 7), (57, 13)])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 1.0, 2.0])
def test_exact_delta_in_one_dimension_is_covered(sigma: int, shift: int, epsilon: float) -> None:
    """Protects the guarantee itself: the exact delta of the discrete Gaussian, summed, is below the accounted one."""
    p = _discrete_gaussian(sigma, 40 * sigma)
    exact = _hockey_stick(_shifted(p, shift), p, epsilon)
    slack = lattice_slack(sigma**2, length=1)
    mu = shift / sigma * math.sqrt(slack.mu_squared_factor)
    assert exact <= delta_of_mu(mu, epsilon) + (1 + math.exp(epsilon)) * slack.total_variation + 1e-14


def test_the_continuous_curve_alone_would_promise_too_much() -> None:
    """Shows why the slack exists: on coarse grids the exact delta does exceed that of the continuous Gaussian."""
    p = _discrete_gaussian(5, 200)
    assert _hockey_stick(_shifted(p, 1), p, 1.0) > delta_of_mu(1 / 5, 1.0) * 1.01
    p = _discrete_gaussian(57, 57 * 40)
    assert _hockey_stick(_shifted(p, 13), p, 1.0) > delta_of_mu(13 / 57, 1.0) * 1.0001


@pytest.mark.parametrize("shift", [(1, 0), (1, 1), (2, 3), (4, 1)])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_exact_delta_in_two_dimensions_is_covered(shift: tuple[int, int], epsilon: float) -> None:
    """Protects vectors, whose loss depends on a lattice projection: two entries, all shifts, exhaustively."""
    sigma = 6
    p = _discrete_gaussian(sigma, 20 * sigma)
    plane = np.outer(p, p)
    moved = np.outer(_shifted(p, shift[0]), _shifted(p, shift[1]))
    exact = _hockey_stick(moved, plane, epsilon)
    slack = lattice_slack(sigma**2, length=2)
    mu = math.hypot(*shift) / sigma * math.sqrt(slack.mu_squared_factor)
    assert exact <= delta_of_mu(mu, epsilon) + (1 + math.exp(epsilon)) * slack.total_variation + 1e-14


@pytest.mark.parametrize(("sigma", "shift", "count"), [(4, 2, 3), (8, 3, 5), (30, 10, 4)])
@pytest.mark.parametrize("delta", [1e-2, 1e-4])
def test_accounted_epsilon_covers_compositions(sigma: int, shift: int, count: int, delta: float) -> None:
    """Protects whole runs: the exact epsilon of several releases, by convolving losses, is below both accountants'."""
    # The loss of one release at x is (shift² - 2 x shift) / (2 sigma²) with x ~ N_Z(0, sigma²): affine in x. So the
    # loss of all releases is affine in the sum of the x, whose law is the convolution of their laws.
    p = _discrete_gaussian(sigma, 20 * sigma)
    total = p
    for _ in range(count - 1):
        total = np.convolve(total, p)
    sums = np.arange(total.size) - total.size // 2
    losses = (count * shift**2 - 2 * sums * shift) / (2 * sigma**2)

    def exact_delta(epsilon: float) -> float:
        return float((total * -np.expm1(np.minimum(epsilon - losses, 0.0))).sum())

    event = DiscreteGaussianEvent.from_integers(sigma, shift**2, length=1, count=count)
    for name in ("gdp", "rdp"):
        assert exact_delta(get_accountant(name).epsilon([event], delta)) <= delta * (1 + 1e-9)


@pytest.mark.parametrize(("share_sigma", "n_shares"), list(itertools.product([1, 2, 3], [2, 3, 8])))
def test_log_ratio_of_sums_is_bounded(share_sigma: int, n_shares: int) -> None:
    """Protects theorem 2: the convolution of the shares differs from one discrete Gaussian by at most e^(+-tau)."""
    reach = 12 * share_sigma * n_shares
    share = _discrete_gaussian(share_sigma, reach)
    total = share
    for _ in range(n_shares - 1):
        total = np.convolve(total, share, mode="same")
    whole = _discrete_gaussian(share_sigma * math.sqrt(n_shares), reach)
    core = slice(reach - 5 * share_sigma, reach + 5 * share_sigma + 1)
    log_ratio = float(np.abs(np.log(total[core] / whole[core])).max())
    tau = sum_slack(share_sigma, n_shares, length=1).log_ratio
    assert log_ratio <= tau + 1e-13
    if (share_sigma, n_shares) == (1, 2):
        # With more shares the true ratio falls, as the errors average out; the bound adds them up.
        assert log_ratio > tau / 10


def test_tau_follows_its_formula() -> None:
    """Protects the sum over shares: direct summation for a few, an upper bound that stays close for many."""
    for n_shares in (2, 5, 60):
        tau = 10 * sum(math.exp(-2 * math.pi**2 * 4 * k / (k + 1)) for k in range(1, n_shares))
        assert sum_slack(2, n_shares, length=3, count=2).log_ratio == pytest.approx(6 * tau, rel=1e-9)
    many = 10 * sum(math.exp(-2 * math.pi**2 * k / (k + 1)) for k in range(1, 5000))
    assert many <= sum_slack(1, 5000, length=1).log_ratio <= 1.5 * many
    assert sum_slack(3, 2, length=1).log_ratio < 1e-36
    assert sum_slack(1000, 1, length=1).log_ratio == 0


def test_a_sum_of_one_share_is_a_discrete_gaussian() -> None:
    """Protects the meeting point of both modes: one share costs what server noise of that sigma costs."""
    for name in ("gdp", "rdp"):
        alone = get_accountant(name).epsilon([DiscreteGaussianSumEvent.from_shares(5000, 1, 1000**2, 64)], 1e-6)
        assert alone == get_accountant(name).epsilon([DiscreteGaussianEvent.from_integers(5000, 1000**2, 64)], 1e-6)
