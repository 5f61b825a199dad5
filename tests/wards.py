"""A small federation in files (keys, roster, plan, policy, tables of made-up wards), and the oracle over survivors."""

from __future__ import annotations

import random
import runpy
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from json import dumps, loads
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.cli.main import main
from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.data.site_data import read_site_data
from hedgerow.methods.registry import program_for, resolve
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource, SeededNoise
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.server.release import UNCOUNTED, run_program

RECORDS_PER_SITE = 100
SEED = "5"
"""Of the coordinator's noise."""


def plan_text(
    n_sites: int,
    *,
    name: str = "",
    categories: Sequence[str] = ("a", "b"),
    classes: Sequence[object] = (0, 1),
    **sections: Mapping[str, Any],
) -> str:
    """A plan over the tables of `n_sites` sites; each section's fields as TOML has them.

    `categories` and `classes` are the wards and the label's; a name that is empty is left out, and a ward without any.
    """
    privacy = {"epsilon": 1, "delta": 1e-6, "n_records": RECORDS_PER_SITE * n_sites, **sections.get("privacy", {})}
    federation = {"min_sites": 3, **sections.get("federation", {})}
    model = dict(sections.get("model", {}))
    if model.get("algorithm", "boosting") == "boosting":
        # One release for each tree, and no last one.
        model.setdefault("calibration", "none")
    tables = {"model": model, "privacy": privacy, "federation": federation}
    lines = ["version = 1", *([f'name = "{name}"'] if name else [])]
    for section, fields in tables.items():
        values = {key: f'"{value}"' if isinstance(value, str) else f"{value}" for key, value in fields.items()}
        lines += [f"[{section}]", *(f"{key} = {value}" for key, value in values.items())]
    lines += ["[[features]]", 'name = "age"', 'type = "numeric"', "min = 0", "max = 100"]
    if categories:
        lines += ["[[features]]", 'name = "ward"', 'type = "categorical"', f"categories = {_listed(categories)}"]
    lines += ["[label]", 'name = "ill"', 'type = "binary"', f"classes = {_listed(classes)}"]
    return "\n".join(lines) + "\n"


def _listed(values: Sequence[object]) -> str:
    return dumps(list(values), ensure_ascii=False)


def furnish(folder: Path, sites: Sequence[str], plan: str, max_epsilon: float, monitor: str = "") -> None:
    """Keys, roster, plan, policy, and tables, different for every site, to train on and held out.

    The coordinator is `hub`; `monitor` names one who may watch.
    """
    policy = f'version = 1\ndata_set = "wards"\nmax_epsilon = {max_epsilon}\ndelta = 1e-6\n'
    policy += 'noise = ["server", "distributed"]\nevaluation_noise = ["server", "distributed"]\n'
    (folder / "plan.toml").write_text(plan, encoding="ascii")
    (folder / "policy.toml").write_text(policy, encoding="ascii")
    others = [("hub", "--coordinator")] + ([(monitor, "--monitor")] if monitor else [])
    for name, role in others:
        assert main(["study", "keys", name, role, "--folder", str(folder)]) == 0
    source = random.Random(1)
    for site in sites:
        assert main(["study", "keys", site, "--folder", str(folder)]) == 0
        for name in (f"{site}.csv", f"{site}-held-out.csv"):
            ages = [source.randint(0, 99) for _ in range(RECORDS_PER_SITE)]
            rows = [f"{age},{source.choice('ab')},{int(source.random() < age / 100)}\n" for age in ages]
            (folder / name).write_text("age,ward,ill\n" + "".join(rows), encoding="ascii")
    public = [str(folder / f"{name}.public.toml") for name in (*sites, *dict(others))]
    assert main(["study", "roster", *public, "--out", str(folder / "roster.toml")]) == 0


_SAME_MODEL = Path(__file__).parents[1] / "deploy" / "same-model"
forget_place: Callable[[bytes], bytes] = runpy.run_path(str(_SAME_MODEL))["forget_place"]
"""Takes from a model's file where it was made and what it was charged to: engines differ in nothing else."""


def survivors_of(journal: Path) -> list[list[str]]:
    """For every release, the sites whose vectors are in it, by the coordinator's journal."""
    database = sqlite3.connect(f"file:{journal}?mode=ro", uri=True)
    rows = database.execute("select survivors from releases order by round").fetchall()
    database.close()
    return [loads(row[0]) for row in rows]


class SumOverSurvivors:
    """Plain sums in which every round has its own sites; the others take the round's update in, as a node does."""

    cohort = None
    sites = None

    def __init__(
        self, nodes: Mapping[str, Node], survivors: Sequence[Sequence[str]], arrivals: Mapping[int, Any] | None = None
    ) -> None:
        self._nodes, self._survivors, self.n_nodes = nodes, survivors, len(nodes)
        self._arrivals = arrivals or {}

    def sum_answers(self, query: Query) -> IntVector:
        """See `Aggregation.sum_answers`."""
        total = np.zeros(query.length, dtype=np.int64)
        for site, rows in self._arrivals.get(query.purpose.round, {}).items():
            self._nodes[site].arrive(rows)
        for site, node in self._nodes.items():
            if site in self._survivors[query.purpose.round]:
                total += node.answer(query)
            else:
                node.finish(query)
        return total


def survivors_model(
    plan: Plan,
    data: Mapping[str, SiteData],
    survivors: Sequence[Sequence[str]],
    noise: NoiseSource,
    arrivals: Mapping[int, Mapping[str, SiteData]] | None = None,
) -> bytes:
    """The model file when each round's sum is over the sites that were in it: an oracle without masks.

    `arrivals` are rows that come to sites before the round of that number.
    """
    settings = resolve(plan)
    nodes = {site: Node(site, rows, plan, settings) for site, rows in data.items()}
    outcome = run_program(
        plan, program_for(plan, settings), SumOverSurvivors(nodes, survivors, arrivals), noise, UNCOUNTED
    )
    return Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report).to_bytes()


def model_by_journal(folder: Path, sites: Sequence[str], plan: Plan) -> bytes:
    """The same for a federation in files, whose coordinator's noise has the usual seed."""
    data = {site: read_site_data(folder / f"{site}.csv", plan)[0] for site in sites}
    return survivors_model(plan, data, survivors_of(folder / "model.json.journal"), SeededNoise(int(SEED)))
