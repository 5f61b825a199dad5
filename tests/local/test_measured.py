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
from hedgerow.local.training import train
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan, parse_plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.privacy.outlook import SHARE_CURVES, find_noise_factor, order_shares, outlook_facts, outlook_of
from hedgerow.privacy.report import PrivacyContext, build_report
from hedgerow.privacy.signal import SIGNAL_TO_COMPARE_SITES
from tests.builders import FEATURES, LABELS, bare_plan, make_data

RUNS = Path(__file__).resolve().parents[2] / "docs" / "runs"


def recorded(name: str) -> str:
    return (RUNS / name).read_text(encoding="utf-8").replace(",", "")


def test_the_forecast_is_that_of_the_recorded_run() -> None:
    """A new run that nobody typed in would leave `hedgerow privacy` with the numbers of an old one."""
    found = re.findall(r"(?m)^  (?:lower|median) +h = +([\d.]+) k = ([\d.]+)$", recorded("forecast.txt"))
    assert [tuple(map(float, curve)) for curve in found] == list(SHARE_CURVES)


def test_the_range_holds_for_sets_that_it_was_not_fitted_to() -> None:
    """A range that misses a fifth of new runs, or one that is wide where there is signal, would be no forecast."""
    text = recorded("forecast.txt")
    coverage = float(re.findall(r"(?m)^All: ([\d.]+)% of \d+ runs lie inside", text)[0])
    assert 80 <= coverage <= 97
    rows = re.findall(r"(?m)^(\w[\w ]*?) +\d+ +(\d+) +(\d+)% +[\d.]+ +([\d.]+)$", text)
    assert len(rows) > 15 and all(int(inside) >= 80 for _, _, inside, _ in rows)
    assert all(float(most) <= 0.10 for *_, most in rows)
    (n_said,) = (int(said) for name, said, *_ in rows if name == "demo")
    assert n_said >= 20
    sets = re.findall(r"(?m)^(\w+) +\d+ +[\d.]+ +(server|distributed|local) +(\d) +(\d) ", text)
    assert len({name for name, *_ in sets}) >= 10
    demo = {(noise, int(sites)) for name, noise, sites, _ in sets if name == "demo"}
    assert demo == {(noise, sites) for noise in ("server", "distributed", "local") for sites in (3, 4, 5, 6)}


@given(st.floats(0, 1e12), st.floats(1, 10))
def test_more_signal_never_promises_less(signal: float, times: float) -> None:
    """A range is never wide, is in order, and its ends rise with the signal; with too little of it none is said."""
    less, more = order_shares(signal), order_shares(signal * times)
    if less is None:
        assert signal < 1_100
        return
    assert 0.8 <= less[0] <= less[1] <= less[2] <= 1 and more is not None
    assert all(one <= other for one, other in zip(less, more, strict=True))
    near = order_shares(signal * 1.001)
    assert near is not None and all(abs(one - other) < 0.011 for one, other in zip(less, near, strict=True))


def test_the_demonstration_is_not_promised_what_a_benchmark_has() -> None:
    """The range that a reader of the demonstration's own report sees holds most of its recorded means, or is not said.

    The demonstration has the weakest label and persons with several rows: it is where a table of benchmarks promised
    too much.
    """
    inside = []
    for n_sites in (3, 4, 5, 6):
        plan = parse_plan(rand_hie_plan_text(range(1, n_sites + 1)))
        pattern = rf"(?m)^demo +\d+ +([\d.]+) +(\w+) +{n_sites} +0 +(\d+) +[\d.]+ +[\d.]+ +([\d.]+) "
        lines = re.findall(pattern, recorded("forecast.txt"))
        assert [noise for _, noise, *_ in lines] == [*["server"] * 3, *["distributed"] * 2, *["local"] * 2]
        for epsilon, noise, signal, mean in lines:
            factor = None if noise != "distributed" else share_noise_factor(n_sites, has_echo=False)
            own = outlook_of(_with_noise(plan, noise), float(epsilon), noise_factor=factor)
            assert own.signal == pytest.approx(float(signal), rel=0.05)
            assert own.smallest is not None or own.signal < 1_000
            if own.smallest is not None and own.largest is not None:
                inside.append(own.smallest - 0.005 <= float(mean) <= own.largest)
    assert len(inside) >= 8 and sum(inside) >= 0.8 * len(inside)


def test_sites_that_add_the_noise_are_promised_less_than_the_coordinator() -> None:
    """The same promise costs more noise the less one trusts: the forecast knows it, for any number of sites."""
    plan = parse_plan(rand_hie_plan_text())
    said = [outlook_of(_with_noise(plan, noise)).signal for noise in ("server", "distributed", "local")]
    assert said == sorted(said, reverse=True) and len(set(said)) == 3
    assert said[2] == pytest.approx(said[0] / math.sqrt(plan.privacy.n_records))
    shares = [outlook_of(_with_noise(plan, "distributed"), 3.0, noise_factor=each).median for each in (1.1, 1.4, 2.1)]
    assert None not in shares and len(set(shares)) == 3
    assert shares == sorted(shares, reverse=True)
    assert outlook_of(plan, noise_factor=2.0) == outlook_of(plan)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["server", "distributed"])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_report_expects_no_more_than_its_first_release_shows(noise: str, rows: int, tmp_path: Path) -> None:
    """A plan that declares three times the records that its run used does not promise a model of so many."""
    unit = {"unit": "person", "max_rows_per_unit": rows} if rows > 1 else {}
    privacy = {"epsilon": 2.0, "delta": 1e-5, "noise": noise, **unit}
    federation, used, said = {"min_sites": 3}, 9_000, []
    for declared in (used, 3 * used):
        plan = bare_plan(LABELS["binary"], FEATURES, privacy=privacy | {"n_records": declared}, federation=federation)
        sites = {f"s{number}": make_data(plan, used // 3, number) for number in range(3)}
        model = train(plan, sites, noise=SeededNoise(3))
        said.append(model.filing("2026-01-01")["outlook"]["signal"])
        plain = model.report.outlook[0] == outlook_facts(plan, noise_factor=find_noise_factor(model.ledger))[0][1]
        assert plain == (declared == used)
        plain_report = build_report(model.ledger, PrivacyContext.from_plan(plan, ledger=model.ledger))
        older = replace(model, created_with="0.1.0", report=plain_report)
        assert older.report.outlook[0] == outlook_facts(plan, noise_factor=find_noise_factor(model.ledger))[0][1]
        model.save(tmp_path / f"{declared}.json")
        assert Model.load(tmp_path / f"{declared}.json").report.outlook == model.report.outlook
    assert said[0] <= said[1] <= 1.4 * said[0]


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
