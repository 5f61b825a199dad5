"""``hedgerow privacy`` of every method and setting that can be trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hedgerow.app.inputs import read_plan
from hedgerow.plan.plan import Plan, parse_plan
from hedgerow.plan.toml import plan_toml
from hedgerow.training.presets import PRESETS, apply_preset

Run = Callable[..., Any]


_NOISES = ("server", "distributed", "local")
_VARIANTS = [
    *({"split_method": method} for method in ("hist", "partially_random")),
    *({"split_candidates": way} for way in ("uniform", "log", "iterative_hessian", "quantile")),
    *({"interaction": way} for way in ("cyclical", "random", "adaptive")),
    {"batch_size": "all"},
    {"weight_update": "averaging"},
]


@pytest.mark.parametrize("seed", ["joint", 7])
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_cost_of_every_method_is_said(study: Path, tmp_path: Path, hedgerow: Run, name: str, seed: object) -> None:
    """`hedgerow privacy` accepts every plan that can be trained, also before the sites have drawn the trees' seed."""
    table = apply_preset(PRESETS[name], read_plan(str(study / "plan.toml"))).to_dict()
    table["model"]["structure_seed"] = seed
    file = tmp_path / "plan.toml"
    file.write_text(plan_toml(Plan.from_dict(table)))
    said = hedgerow("privacy", file, "--json")
    assert said["rounds"] >= 1 and "rounds" in hedgerow("privacy", file)


@pytest.mark.parametrize("noise", _NOISES)
@pytest.mark.parametrize("model", _VARIANTS, ids=str)
def test_the_cost_of_every_setting_is_said(
    study: Path, tmp_path: Path, hedgerow: Run, model: dict[str, Any], noise: str
) -> None:
    """Nor does it depend on what else is set: the cost is that of the same plan with a seed of its own."""
    table = read_plan(str(study / "plan.toml")).to_dict()
    found = []
    for seed in ("joint", 0):
        table["model"] |= {**model, "structure_seed": seed}
        table["privacy"]["noise"] = noise
        file = tmp_path / "plan.toml"
        file.write_text(plan_toml(Plan.from_dict(table)))
        found.append(hedgerow("privacy", file, "--json"))
    of_the_seed = {"digest": "", "fingerprint": ""}
    assert found[0] | of_the_seed == found[1] | of_the_seed


def test_text_of_a_plan_reads_back(study: Path) -> None:
    """Quotes, backslashes, accents and infinities survive."""
    table = read_plan(str(study / "plan.toml")).to_dict()
    table["features"][1]["categories"] = ['say "a"', "b\\c", "é", "true"]
    table["privacy"]["epsilon"] = float("inf")
    table["name"] = 'a "plan"'
    plan = type(parse_plan(plan_toml(read_plan(str(study / "plan.toml"))))).from_dict(table)
    assert parse_plan(plan_toml(plan)) == plan
