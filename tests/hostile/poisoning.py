"""What one lying site does to the model, and what the checks of releases say: Adult, 6 and 50 sites of one size.

Each lie is trained through to the end as if nobody had looked, which gives the AUC that the lie would have caused; the
checks are asked beside it, and the first release that they refuse is where a real run ends. Noise is seeded so that the
table can be printed again; the sums are added in the clear, for masks change nothing about them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
from sklearn.metrics import roc_auc_score

from experiments.datasets import load
from experiments.harness import Prepared, arguments, plan_for, progress, rows_of, stratified_split
from hedgerow.client.node import Node
from hedgerow.data.site_data import SiteData
from hedgerow.methods.registry import resolve
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import TrainingTask, checks_of
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.secagg.transitions import Abandoned
from hedgerow.server.release import Answering, PlainAggregation, Releaser, Summed, require_plausible
from hedgerow.trees.binning import build_grid
from hedgerow.trees.ensemble import Ensemble

SITES = (6, 50)


class Lie(NamedTuple):
    """What the last site does.

    Attributes:
        name: as the table has it.
        times: its sums are multiplied by this; 0 for a site that is not there.
        is_flipped: it turns its labels round.
        first: the exchange from which on it lies.
    """

    name: str
    times: int = 1
    is_flipped: bool = False
    first: int = 0


LIES = (
    Lie("honest"),
    Lie("not there", times=0),
    Lie("flipped labels", is_flipped=True),
    Lie("-1 times its sums", times=-1),
    Lie("-10 times its sums", times=-10),
    Lie("-10 times, from tree 20 on", times=-10, first=20),
    Lie("-100 times its sums", times=-100),
    Lie("+100 times its sums", times=100),
)


class Liar:
    """A node whose sums are multiplied."""

    def __init__(self, node: Node, lie: Lie) -> None:
        self.site, self._node, self._lie = node.site, node, lie

    def answer(self, query: Query) -> IntVector:
        """The node's answer, or what it sends instead."""
        sums = self._node.answer(query)
        return sums * self._lie.times if query.purpose.round >= self._lie.first else sums


def train_unchecked(plan: Plan, sums: PlainAggregation, noise: SeededNoise) -> tuple[Ensemble, Ensemble | None, str]:
    """A run that goes on whatever the checks say, and beside it the one that they stop.

    Returns:
        The model of the first; of the second the model of the rounds before it is stopped, None where there is none,
        and by what and where it is stopped, "-" if it is not.
    """
    task, releaser = TrainingTask(plan), Releaser(noise)
    run, stopped, checks = Replica(task), Replica(task), checks_of(task)
    said = "-"
    while (query := run.query) is not None:
        released = releaser.release(query, sums.sum_of(query))
        if said == "-":
            try:
                require_plausible(checks, query, plan, released, Summed(None, sums.n_nodes, sums.sites))
                stopped.feed(released)
            except Abandoned as fault:
                said = f"{fault.code}, round {query.purpose.round}"
        run.feed(released)
    return run.ensemble, stopped.ensemble if said != "-" and stopped.end_early() else None, said


def nodes_of(plan: Plan, data: SiteData, n_sites: int, lie: Lie, seed: int) -> Sequence[Answering]:
    """Sites with as many rows each, drawn at random; the last one lies."""
    owner, settings = np.random.default_rng(seed).permutation(data.n_records) % n_sites, resolve(plan)
    nodes: list[Answering] = []
    for site in range(n_sites):
        own, is_last = np.flatnonzero(owner == site), site == n_sites - 1
        labels = data.labels[own]
        rows = replace(data.only(own), labels=1 - labels if is_last and lie.is_flipped else labels)
        node = Node(f"site-{site:02d}", rows, plan, settings)
        nodes.append(Liar(node, lie) if is_last else node)
    return nodes


Result = tuple[float, float | None, str]
"""AUC on the test part if nobody looked, AUC of the salvaged model, and where the run would have ended."""


def result_of(prepared: Prepared, n_sites: int, lie: Lie, options: argparse.Namespace, seed: int) -> Result:
    """One split."""
    train = stratified_split(prepared.table.label, seed)
    model = {"n_trees": options.trees, "structure_seed": seed}
    plan = plan_for(prepared.table, options.epsilon, int(train.sum()), model)
    sums = PlainAggregation(nodes_of(plan, rows_of(prepared, plan, train), n_sites, lie, seed))
    unchecked, salvaged, where = train_unchecked(plan, sums, SeededNoise(seed, exact=False))
    test = rows_of(prepared, plan, ~train)

    def auc(ensemble: Ensemble) -> float:
        scores = ensemble.scores(test.codes_in(build_grid(plan), ensemble.grid.new_edges))
        return float(roc_auc_score(test.labels, scores[0]))

    return auc(unchecked), None if salvaged is None else auc(salvaged), where


def mean_of(values: Sequence[float | None]) -> str:
    """The mean of what there is; "-" where one has none."""
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.4f}" if len(known) == len(values) else "-"


def main(argv: list[str]) -> int:
    """Print the table; the exit code is 1 when -100 times is not stopped, or honest sites are."""
    parser = arguments("poisoning", __doc__, trees=(60, "trees of a model"), splits=(3, "random splits per line"))
    parser.add_argument("--epsilon", type=float, default=1.0, help="of a model (default 1)")
    options = parser.parse_args(argv)
    prepared = Prepared(load("adult", options.data))
    steps = progress(len(SITES) * len(LIES), "poisoning")
    print(f"{'one site':<28} {'of':>3}  {'AUC, if nobody looked':>21}  {'salvaged':>8}  what the checks say")
    holds = True
    for n_sites, lie in product(SITES, LIES):
        found = [result_of(prepared, n_sites, lie, options, seed) for seed in range(options.splits)]
        next(steps, None)
        unchecked, salvaged, words = zip(*found, strict=True)
        said = sorted(set(words))
        row = f"{lie.name:<28} {n_sites:>3}  {mean_of(unchecked):>21}  {mean_of(salvaged):>8}  {'; '.join(said)}"
        print(row, flush=True)
        holds &= ("-" not in said) if lie.times == -100 else (lie != LIES[0] or said == ["-"])
    print(f"\nAdult, epsilon {options.epsilon:g}, {options.trees} trees one by one, mean of {options.splits} splits: "
          f"{'holds' if holds else 'MISSED'}")  # fmt: skip
    return 0 if holds else 1
