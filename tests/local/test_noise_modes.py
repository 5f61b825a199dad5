"""What a plan asks one to believe about its noise, and what noise of the sites costs, is said before anyone runs it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from hedgerow.cli.main import main
from hedgerow.local.forecast import expect_singles, share_noise_factor
from hedgerow.methods.registry import resolve
from hedgerow.plan.plan import Plan
from tests.builders import make_plan
from tests.wards import plan_text


@pytest.mark.parametrize(
    ("n_sites", "has_echo", "factor"),
    [
        (4, False, 2**0.5), (10, False, 2.5**0.5), (10, True, 2**0.5), (50, False, (50 / 11) ** 0.5),
        (50, True, (50 / 22) ** 0.5),
    ],
)  # fmt: skip
def test_noise_of_the_sites_is_as_much_as_all_their_shares(n_sites: int, has_echo: bool, factor: float) -> None:
    """The echo exchange saves a ninth of the noise at 10 sites and more than a quarter at 50."""
    assert share_noise_factor(n_sites, has_echo=has_echo) == pytest.approx(factor)


def test_single_records_are_counted_as_they_fall() -> None:
    """The number that is printed for records that are spread evenly is the one that throwing them at leaves gives."""
    table = make_plan(model={"n_trees": 3, "max_depth": 6}, privacy={"n_records": 100}).to_dict()
    plan = Plan.from_dict(table)
    even, crowded = expect_singles(plan, resolve(plan))  # type: ignore[misc]
    draws = np.random.default_rng(1).multinomial(100, np.full(64, 1 / 64), size=4000)
    assert even == pytest.approx(3 * (draws == 1).sum(axis=1).mean(), rel=0.02)
    assert even <= crowded <= 3 * 64
    many = Plan.from_dict({**table, "privacy": {**table["privacy"], "n_records": 10**6}})
    at_least, at_worst = expect_singles(many, resolve(many))  # type: ignore[misc]
    assert at_least < 1e-9 and at_worst == pytest.approx(3 * 63 / math.e, rel=0.02)


CHOICES = [("server", None, False), ("distributed", None, True), ("distributed", False, False)]


@pytest.mark.parametrize(("noise", "said", "echo"), CHOICES)
def test_the_sites_noise_has_the_echo_exchange_unless_a_plan_says_otherwise(
    noise: str, said: bool | None, echo: bool
) -> None:
    """Less noise is needed with it; a plan that was written down before keeps what it says, and its digest."""
    federation = {"min_sites": 3} | ({} if said is None else {"echo": said})
    table = make_plan(privacy={"noise": noise}).to_dict()
    plan = Plan.from_dict({**table, "federation": federation})
    assert plan.federation.echo is echo and plan.to_dict()["federation"]["echo"] is echo
    assert Plan.from_dict(plan.to_dict()).digest == plan.digest


def test_the_command_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`hedgerow privacy PLAN --sites N` compares the two kinds of noise for the federation that is planned."""
    (tmp_path / "plan.toml").write_text(plan_text(3, model={"n_trees": 4, "max_depth": 8}))
    assert main(["privacy", str(tmp_path / "plan.toml"), "--sites", "50", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["distributed_noise"]["factor"] == pytest.approx((50 / 22) ** 0.5)
    assert 0.5 < told["distributed_noise"]["like_server_epsilon"] < 0.75
    assert told["single_record_leaves"][1] > 100
    assert main(["privacy", str(tmp_path / "plan.toml")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "exact totals" in text and "at 3 sites" in text
