"""A federation in files, as docs/flower.md has its operators write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from json import dumps, loads
from pathlib import Path
from typing import Any

import pytest

from hedgerow.cli.main import main
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from tests.wards import SEED, forget_place, furnish, model_by_journal, plan_text, survivors_of

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
repeat = 5
seed = 5
"""
EVALUATION = """version = 1
model = "model.json"
epsilon = 2
noise = "server"
by = ["ward", "site"]
roster = "roster.toml"
identity = "hub.private.json"
out = "evaluated.json"
scores = "scores.json"
repeat = 5
seed = 5
"""


class Federation:
    """A folder with everything that the parties have, and what the engine `local` makes of it."""

    def __init__(self, folder: Path, n_sites: int, plan: Mapping[str, Any]) -> None:
        self.folder = folder
        self.sites = [f"site-{number}" for number in range(n_sites)]
        folder.mkdir(parents=True, exist_ok=True)
        timeouts = {"join_timeout": 300, "round_timeout": 90, "idle_timeout": 300}
        timeouts |= {name: plan[name] for name in timeouts if name in plan}
        fields = {name: value for name, value in plan.items() if name not in timeouts}
        model = fields if "algorithm" in fields else {"n_trees": 4, "max_depth": 2, "batch_size": 2, **fields}
        furnish(folder, self.sites, plan_text(n_sites, model=model, federation=timeouts), 3, "watch")
        (folder / "coordinator.toml").write_text(COORDINATOR)
        (folder / "evaluation.toml").write_text(EVALUATION)
        shows = (folder / "policy.toml").read_text() + "site_figures = true\n"
        (folder / "shows.toml").write_text(shows)
        for site in self.sites:
            (folder / f"{site}.toml").write_text(SITE.format(site=site))
        # The last site shows its own figures, the others do not.
        own = folder / f"{self.sites[-1]}.toml"
        own.write_text(own.read_text().replace("policy.toml", "shows.toml"))

    def path(self, name: str) -> str:
        return str(self.folder / name)

    @staticmethod
    def run(*arguments: str) -> None:
        assert main(list(arguments)) == 0

    def model(self, name: str = "model.json") -> bytes:
        """What the run has written, without where it was made."""
        return forget_place((self.folder / name).read_bytes())

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
        return forget_place(model_by_journal(self.folder, self.sites, plan))

    def assert_evaluated(self) -> None:
        """What was found is the engine `local`'s with the same seed, and so is the model with it on its account.

        By site, of the one alone that shows its figures.
        """
        sites = [f"--site={site}={self.path(site)}-held-out.csv" for site in self.sites]
        options = ("--epsilon", "2", "--seed", SEED, "--out", self.path("local.json"), "--json")
        with redirect_stdout(StringIO()) as said:
            self.run("evaluate", self.path("model.json"), "--federated", *sites, *options, "--by=ward", "--by=site")
        found, here = (loads(text) for text in ((self.folder / "scores.json").read_bytes(), said.getvalue()))
        assert self.model("evaluated.json") == self.model("local.json")
        *others, shown = self.sites
        assert here["groups"]["site"].keys() == set(self.sites) and found["sites_left_out"] == others
        here["groups"]["site"] = {shown: here["groups"]["site"][shown]}
        # As text, for NaN is not equal to itself.
        for name in ("sites", "n_records", "scores", "groups"):
            assert dumps(found[name]) == dumps(here[name])


Builder = Callable[..., Federation]


@pytest.fixture
def in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    """Build a federation: `n_sites`, fields of the plan's section `model` (two trees a round), timeouts.

    Noise that nodes draw has the coordinator's seed, as in the engine `local`.
    """
    monkeypatch.setattr("hedgerow.app.node.SystemNoise", lambda entropy: SeededNoise(int(SEED)))

    def build(n_sites: int = 3, **plan: Any) -> Federation:
        return Federation(tmp_path / "federation", n_sites, plan)

    return build
