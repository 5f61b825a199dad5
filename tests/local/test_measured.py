"""What the package says was measured is what the recorded runs measured."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.data.datasets import rand_hie_plan_text
from hedgerow.local.forecast import share_noise_factor
from hedgerow.plan.plan import Plan, parse_plan
from hedgerow.privacy.outlook import SHARE_CURVES, SIGNAL_TO_COMPARE_SITES, order_shares, outlook_of

RUNS = Path(__file__).resolve().parents[2] / "docs" / "runs"


def recorded(name: str) -> str:
    return (RUNS / name).read_text(encoding="utf-8").replace(",", "")


def test_the_forecast_is_that_of_the_recorded_run() -> None:
    """A new run that nobody typed in would leave `hedgerow privacy` with the numbers of an old one."""
    found = re.findall(r"(?m)^  (?:smallest|median|largest) +h = +([\d.]+) k = ([\d.]+)$", recorded("forecast.txt"))
    assert [tuple(map(float, curve)) for curve in found] == list(SHARE_CURVES)


def test_the_range_holds_for_sets_that_it_was_not_fitted_to() -> None:
    """A range that misses a fifth of new runs, or one that is wide where there is signal, would be no forecast."""
    text = recorded("forecast.txt")
    coverage = float(re.findall(r"(?m)^All: ([\d.]+)% of \d+ runs lie inside", text)[0])
    assert 80 <= coverage <= 97
    sets = re.findall(r"(?m)^(\w+) +\d+ +[\d.]+ +(server|distributed|local) +(\d) +(\d) ", text)
    assert len({name for name, *_ in sets}) >= 10
    demo = {(noise, int(sites)) for name, noise, sites, _ in sets if name == "demo"}
    assert demo == {(noise, sites) for noise in ("server", "distributed", "local") for sites in (3, 4, 5, 6)}
    widths = re.findall(r"(?m)^(\d+) to (?:\d+|inf) +\d+ +\d+% +([\d.]+) +[\d.]+$", text)
    assert widths and all(float(width) <= 0.10 for signal, width in widths if int(signal) >= 1_000)
    smallest, _, largest = order_shares(1_100)
    assert largest - smallest <= 2 * 0.10


@given(st.floats(0, 1e12), st.floats(1, 10))
def test_more_signal_never_promises_less(signal: float, times: float) -> None:
    """Each end of the range is a share, in order, and rises with the signal without a step."""
    less, more = order_shares(signal), order_shares(signal * times)
    assert 0 <= less[0] <= less[1] <= less[2] <= 1
    assert all(one <= other for one, other in zip(less, more, strict=True))
    near = order_shares(signal * 1.001)
    assert all(abs(one - other) < 0.002 for one, other in zip(less, near, strict=True))


@pytest.mark.parametrize("n_sites", [3, 4, 5, 6])
def test_the_demonstration_is_not_promised_what_a_benchmark_has(n_sites: int) -> None:
    """The range that a reader of the demonstration's own report sees holds the mean of its recorded runs.

    The demonstration has the weakest label and persons with several rows: it is where a table of benchmarks promised
    too much.
    """
    plan = parse_plan(rand_hie_plan_text(range(1, n_sites + 1)))
    pattern = rf"(?m)^demo +\d+ +1 +(\w+) +{n_sites} +0 +(\d+) +[\d.]+ +[\d.]+ +([\d.]+) "
    lines = re.findall(pattern, recorded("forecast.txt"))
    assert [noise for noise, *_ in lines] == ["server", "distributed", "local"]
    for noise, signal, mean in lines:
        factor = None if noise != "distributed" else share_noise_factor(n_sites, has_echo=False)
        own = outlook_of(_with_noise(plan, noise), noise_factor=factor)
        assert own.signal == pytest.approx(float(signal), rel=0.05)
        assert own.smallest is not None and own.largest is not None
        assert math.floor(100 * own.smallest) / 100 <= float(mean) <= own.largest


def test_sites_that_add_the_noise_are_promised_less_than_the_coordinator() -> None:
    """The same promise costs more noise the less one trusts: the forecast knows it, for any number of sites."""
    plan = parse_plan(rand_hie_plan_text())
    said = [outlook_of(_with_noise(plan, noise)).signal for noise in ("server", "distributed", "local")]
    assert said == sorted(said, reverse=True) and len(set(said)) == 3
    assert said[2] == pytest.approx(said[0] / math.sqrt(plan.privacy.n_records))
    shares = [outlook_of(_with_noise(plan, "distributed"), noise_factor=factor).median for factor in (1.1, 1.4, 2.1)]
    assert shares == sorted(shares, reverse=True)
    assert outlook_of(plan, noise_factor=2.0) == outlook_of(plan)


def test_sites_are_compared_only_where_honest_models_do_not_fail() -> None:
    """The recorded honest federations told no owner of other sites from the threshold on, and below it some did."""
    rows = re.findall(r"(?m)^ *(\d+) to +(?:\d+|inf) +(\d+) +(\d+)", recorded("forecast_sites.txt"))
    told = {int(signal): (int(runs), int(alarms)) for signal, runs, alarms in rows}
    above = [found for signal, found in told.items() if signal >= SIGNAL_TO_COMPARE_SITES]
    below = [found for signal, found in told.items() if signal < SIGNAL_TO_COMPARE_SITES]
    assert sum(runs for runs, _ in above) >= 30 and not any(alarms for _, alarms in above)
    assert any(alarms for _, alarms in below)


def _with_noise(plan: Plan, noise: str) -> Plan:
    return replace(plan, privacy=replace(plan.privacy, noise=noise))
