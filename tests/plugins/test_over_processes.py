"""Losses that a plan names, and a method and a loss from outside, over nodes in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hedgerow.app.environments import Processes, Simulation, Study
from hedgerow.plugins import describe_plugin, load_plugin
from tests.plugins.test_plugin_loading import OBLIVIOUS, forget
from tests.wards import forget_place

PLAN = """\
version = 1
name = "over processes"
[privacy]
epsilon = 9
delta = 1e-6
n_records = 900
noise = "{noise}"
[model]
structure_seed = 1
n_trees = 12
{model}
[federation]
min_sites = 3
[label]
name = "y"
type = "regression"
min = 0
max = 10
[[features]]
name = "x"
type = "numeric"
min = 0
max = 1
"""
HUBER = '[loss]\nname = "huber"\ndelta = 0.2'
EXPECTILE = '[loss]\nname = "expectile"\ntau = 0.8'
TREES = 'algorithm = "oblivious"\n[oblivious]\nlevels = 2'
QUANTILE = '[loss]\nname = "quantile"\ntau = 0.7'


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The rows of three sites, and a plug-in that nodes can import."""
    forget()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    random = np.random.default_rng(0)
    for name in ("north", "south", "west"):
        x = random.random(300)
        rows = "".join(f"{a},{b}\n" for a, b in zip(x, np.clip(5 * x + random.exponential(1, 300), 0, 10), strict=True))
        Path(f"{name}.csv").write_text(f"x,y\n{rows}", encoding="utf-8")
    Path("oblivious.py").write_bytes(OBLIVIOUS.read_bytes())
    yield {name: f"{name}.csv" for name in ("north", "south", "west")}
    forget()


@pytest.mark.slow
@pytest.mark.parametrize(("model", "noise"), [
    (HUBER, "server"), (EXPECTILE, "distributed"), (TREES, "server"), (f"{TREES}\n{QUANTILE}", "distributed"),
])  # fmt: skip
def test_masked_nodes_make_the_model_of_one_process(tables: dict[str, str], model: str, noise: str) -> None:
    """With noise of the coordinator byte for byte; with that of the sites a model that keeps the same promise.

    A node runs a plug-in only by its policy's word: module, version and digest.
    """
    if model.startswith(TREES):
        line = describe_plugin(load_plugin("oblivious.py"))
    Path("plan.toml").write_text(PLAN.format(model=model, noise=noise), encoding="utf-8")
    study = Study("plan.toml")
    alone = study.run(Simulation(tables), seed=7).model
    over = study.run(Processes(tables, "parties"), seed=7).model
    if noise == "server":
        assert forget_place(over.to_bytes()) == forget_place(alone.to_bytes())
    assert (over.report.epsilon, over.report.authors) == (alone.report.epsilon, alone.report.authors)
    assert [release.kind for release in over.ledger] == [release.kind for release in alone.ledger]
    low, high = over.predict({"x": np.array([0.05, 0.95])})
    assert low < high
    policy = Path("parties/north.policy.toml").read_text(encoding="utf-8")
    assert ("plugins" in policy) == model.startswith(TREES)
    if model.startswith(TREES):
        assert line in policy
