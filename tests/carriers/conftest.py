"""A federation in files, as docs/flower.md has its operators write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hedgerow.cli.main import main
from hedgerow.plan.plan import Plan
from tests.wards import SEED, furnish, model_by_journal, plan_text, survivors_of

SITE = """version = 1
data = "{site}.csv"
held_out = "{site}-held-out.csv"
identity = "{site}.private.json"
roster = "roster.toml"
policy = "policy.toml"
plan = "plan.toml"
state = "{site}-state"
threads = 1
"""
COORDINATOR = """version = 1
plan = "plan.toml"
roster = "roster.toml"
identity = "hub.private.json"
out = "model.json"
monitor = "{monitor}"
repeat = 5
seed = 5
"""
EVALUATION = """version = 1
model = "model.json"
epsilon = 2
noise = "server"
roster = "roster.toml"
identity = "hub.private.json"
out = "evaluated.json"
scores = "scores.json"
repeat = 5
seed = 5
"""


class Federation:
    """A folder with everything that the parties have, and what the engine `local` makes of it."""

    def __init__(self, folder: Path, n_sites: int, monitor: str, plan: Mapping[str, Any]) -> None:
        self.folder = folder
        self.sites = [f"site-{number}" for number in range(n_sites)]
        folder.mkdir(parents=True, exist_ok=True)
        timeouts = {"join_timeout": 300, "round_timeout": 90, "idle_timeout": 300}
        timeouts |= {name: plan[name] for name in timeouts if name in plan}
        fields = {name: value for name, value in plan.items() if name not in timeouts}
        model = fields if "algorithm" in fields else {"n_trees": 4, "max_depth": 2, "batch_size": 2, **fields}
        furnish(folder, self.sites, plan_text(n_sites, model=model, federation=timeouts), 3, "watch")
        coordinator = COORDINATOR.format(monitor=monitor)
        (folder / "coordinator.toml").write_text(coordinator if monitor else coordinator.replace('monitor = ""\n', ""))
        (folder / "evaluation.toml").write_text(EVALUATION)
        for site in self.sites:
            (folder / f"{site}.toml").write_text(SITE.format(site=site))

    def path(self, name: str) -> str:
        return str(self.folder / name)

    @staticmethod
    def run(*arguments: str) -> None:
        assert main(list(arguments)) == 0

    def model(self, name: str = "model.json") -> bytes:
        """What the run has written."""
        return (self.folder / name).read_bytes()

    def local_model(self, *without: str) -> bytes:
        """The engine `local`'s model of the same rows, with the same seed; without some sites' rows."""
        sites = [f"--site={site}={self.path(site)}.csv" for site in self.sites if site not in without]
        self.run("train", self.path("plan.toml"), *sites, "--seed", SEED, "--out", self.path("local.json"))
        return self.model("local.json")

    def survivors(self) -> list[list[str]]:
        """For every release, the sites that are in it."""
        return survivors_of(self.folder / "model.json.journal")

    def survivors_model(self, plan: Plan) -> bytes:
        """The engine `local`'s model of the sites that were in each round. Args: plan: with the seed of its trees."""
        return model_by_journal(self.folder, self.sites, plan)

    def local_evaluation(self) -> bytes:
        """The engine `local`'s evaluation of the run's model, with the same seed: the model with it on its account."""
        sites = [f"--site={site}={self.path(site)}-held-out.csv" for site in self.sites]
        options = ("--epsilon", "2", "--seed", SEED, "--out", self.path("local.json"), "--json")
        self.run("evaluate", self.path("model.json"), "--federated", *sites, *options)
        return self.model("local.json")


Builder = Callable[..., Federation]


@pytest.fixture
def in_files(tmp_path: Path) -> Builder:
    """Build a federation: `n_sites`, `monitor`, fields of the plan's section `model` (two trees a round), timeouts."""

    def build(n_sites: int = 3, monitor: str = "", **plan: Any) -> Federation:
        return Federation(tmp_path / "federation", n_sites, monitor, plan)

    return build
