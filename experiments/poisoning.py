"""What one lying site does to the model, and what the checks of releases say: Adult, 6 and 50 sites of one size.

Each lie is trained through to the end as if nobody had looked, which gives the AUC that the lie would have caused; the
checks are asked beside it, and the first release that they refuse is where a real run ends. Noise is seeded so that the
table can be printed again; the sums are added in the clear, for masks change nothing about them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from hedgerow.client.node import Node, SiteData
from hedgerow.experiments.datasets import data_folder, load
from hedgerow.experiments.harness import Prepared, labels_of, plan_for, progress, stratified_split
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.plan import Plan
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.secagg.refusals import Abandoned
from hedgerow.server.coordinator import Releaser, Summed, require_plausible
from hedgerow.training.plausibility import ReleaseChecks
from hedgerow.training.programs import program_for
from hedgerow.training.settings import resolve
from hedgerow.transport.local import Answering, PlainAggregation
from hedgerow.trees.ensemble import Ensemble

SITES = (6, 50)


@dataclass(frozen=True)
class Lie:
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


def train_unchecked(plan: Plan, sums: PlainAggregation, noise: SeededNoise) -> tuple[Ensemble, str, int]:
    """A run that nothing stops: its model, the first that the checks have to say, and in which round (-1: nothing)."""
    settings, releaser = resolve(plan), Releaser(noise)
    checks, said, stopped = ReleaseChecks(lambda: settings.loss(plan)), "", -1
    program = program_for(plan, settings)
    try:
        query = next(program)
        while True:
            released = releaser.release(query, sums.sum_of(query))
            try:
                require_plausible(checks, query, plan, released, Summed(None, sums.n_nodes, sums.sites))
            except Abandoned as fault:
                if not said:
                    said, stopped = fault.code, query.purpose.round
            query = program.send(released)
    except StopIteration as finished:
        ensemble: Ensemble = finished.value
    return ensemble, said, stopped


def nodes_of(plan: Plan, data: SiteData, n_sites: int, lie: Lie, seed: int) -> Sequence[Answering]:
    """Sites with as many rows each, drawn at random; the last one lies."""
    owner, settings = np.random.default_rng(seed).permutation(data.n_records) % n_sites, resolve(plan)
    nodes: list[Answering] = []
    for site in range(n_sites):
        own, is_last = np.flatnonzero(owner == site), site == n_sites - 1
        labels = data.labels[own]
        rows = SiteData(np.ascontiguousarray(data.codes[:, own]), 1 - labels if is_last and lie.is_flipped else labels)
        node = Node(f"site-{site:02d}", rows, plan, settings)
        nodes.append(Liar(node, lie) if is_last else node)
    return nodes


def outcome_of(prepared: Prepared, n_sites: int, lie: Lie, options: argparse.Namespace, seed: int) -> tuple[float, str]:
    """The AUC on the test part, and where the run would have ended."""
    train = stratified_split(prepared.table.label, seed)
    model = {"n_trees": options.trees, "batch_size": 1, "structure_seed": seed}
    plan = plan_for(prepared.table, options.epsilon, int(train.sum()), model)
    codes, labels = prepared.codes_for(plan), labels_of(prepared.table)
    data = SiteData(np.ascontiguousarray(codes[:, train]), labels[train])
    sums = PlainAggregation(nodes_of(plan, data, n_sites, lie, seed))
    ensemble, said, stopped = train_unchecked(plan, sums, SeededNoise(seed, exact=False))
    scores: NDArray[np.int64] = ensemble.scores(np.ascontiguousarray(codes[:, ~train]))[0]
    return float(roc_auc_score(labels[~train], scores)), f"{said}, round {stopped}" if said else "-"


def main(argv: list[str]) -> int:
    """Print the table; the exit code is 1 when -100 times is not stopped, or honest sites are."""
    parser = argparse.ArgumentParser(prog="python -m hedgerow.experiments poisoning", description=__doc__)
    parser.add_argument("--data", help="folder with the data sets")
    parser.add_argument("--trees", type=int, default=60, help="trees of a model (default 60)")
    parser.add_argument("--epsilon", type=float, default=1.0, help="of a model (default 1)")
    parser.add_argument("--splits", type=int, default=3, help="random splits per line (default 3)")
    options = parser.parse_args(argv)
    prepared = Prepared(load("adult", data_folder(options.data)))
    steps = iter(progress(len(SITES) * len(LIES) * options.splits, "poisoning"))
    print(f"{'one site':<28} {'of':>3}  {'AUC, if nobody looked':>21}  what the checks say")
    holds = True
    for n_sites in SITES:
        for lie in LIES:
            found = []
            for seed in range(options.splits):
                next(steps, None)
                found.append(outcome_of(prepared, n_sites, lie, options, seed))
            said = sorted({words for _, words in found})
            mean = float(np.mean([auc for auc, _ in found]))
            print(f"{lie.name:<28} {n_sites:>3}  {mean:>21.4f}  {'; '.join(said)}", flush=True)
            holds &= ("-" not in said) if lie.times == -100 else (lie != LIES[0] or said == ["-"])
    print(f"\nAdult, epsilon {options.epsilon:g}, {options.trees} trees one by one, mean of {options.splits} splits: "
          f"{'holds' if holds else 'MISSED'}")  # fmt: skip
    return 0 if holds else 1
