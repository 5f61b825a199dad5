"""A federation in files, as docs/flower.md has its operators write them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from hedgerow.cli.main import main

PLAN = """version = 1
[model]
n_trees = {n_trees}
max_depth = 2
batch_size = 2
[privacy]
epsilon = 1
delta = 1e-6
n_records = 300
[federation]
min_sites = 3
join_timeout = 300
round_timeout = 90
idle_timeout = 300
[[features]]
name = "age"
type = "numeric"
min = 0
max = 100
[[features]]
name = "ward"
type = "categorical"
categories = ["a", "b"]
[label]
name = "ill"
type = "binary"
classes = [0, 1]
"""
POLICY = 'version = 1\ndata_set = "wards"\nmax_epsilon = 3\ndelta = 1e-6\n'
SITE = """version = 1
data = "{site}.csv"
identity = "{site}.private.json"
roster = "roster.toml"
policy = "policy.toml"
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


class Federation:
    """A folder with everything that the parties have, and what the engine `local` makes of it."""

    def __init__(self, folder: Path, n_sites: int, n_trees: int = 4, monitor: str = "") -> None:
        self.folder = folder
        self.sites = [f"site-{number}" for number in range(n_sites)]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan.toml").write_text(PLAN.format(n_trees=n_trees))
        (folder / "policy.toml").write_text(POLICY)
        coordinator = COORDINATOR.format(monitor=monitor)
        (folder / "coordinator.toml").write_text(coordinator if monitor else coordinator.replace('monitor = ""\n', ""))
        self.run("identity", "new", "hub", "--coordinator", "--folder", str(folder))
        self.run("identity", "new", "watch", "--monitor", "--folder", str(folder))
        source = random.Random(1)
        for site in self.sites:
            self.run("identity", "new", site, "--folder", str(folder))
            (folder / f"{site}.toml").write_text(SITE.format(site=site))
            ages = [source.randint(0, 99) for _ in range(100)]
            rows = [f"{age},{source.choice('ab')},{int(source.random() < age / 100)}\n" for age in ages]
            (folder / f"{site}.csv").write_text("age,ward,ill\n" + "".join(rows))
        public = [self.path(f"{site}.public.toml") for site in self.sites]
        others = ("--coordinator", self.path("hub.public.toml"), "--monitor", self.path("watch.public.toml"))
        self.run("roster", "build", *public, *others, "--out", self.path("roster.toml"))

    def path(self, name: str) -> str:
        return str(self.folder / name)

    @staticmethod
    def run(*arguments: str) -> None:
        assert main(list(arguments)) == 0

    def model(self) -> bytes:
        """What the run has written."""
        return (self.folder / "model.json").read_bytes()

    def local_model(self, *without: str) -> bytes:
        """The engine `local`'s model of the same rows, with the same seed; without some sites' rows."""
        sites = [f"--site={site}={self.path(site)}.csv" for site in self.sites if site not in without]
        self.run("train", self.path("plan.toml"), *sites, "--seed", "5", "--out", self.path("local.json"))
        return (self.folder / "local.json").read_bytes()


Builder = Callable[..., Federation]


@pytest.fixture
def in_files(tmp_path: Path) -> Builder:
    """Build a federation: `n_sites`, `n_trees` (two a round), `monitor`."""

    def build(n_sites: int = 3, n_trees: int = 4, monitor: str = "") -> Federation:
        return Federation(tmp_path / "federation", n_sites, n_trees, monitor)

    return build
