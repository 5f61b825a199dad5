"""Test AUC by who adds the noise: the coordinator, or n sites with and without the echo exchange.

With noise of the sites a sum holds the shares of all n sites, of which only h are counted, so it has sqrt(n / h) times
the noise of a coordinator that adds it. Everything else is the same: one default for all data sets, random 70/30
splits, delta = 1 / n_train, seeded noise. The sites' sums are not masked here, which changes no number.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from sklearn.metrics import roc_auc_score

from experiments.datasets import load
from experiments.harness import Prepared, arguments, deviation_of, plan_for, progress, rows_of, stratified_split
from hedgerow.client.node import Node
from hedgerow.local.forecast import noise_factor, noise_guarantees
from hedgerow.methods.registry import program_for, resolve
from hedgerow.privacy.noise import SeededNoise
from hedgerow.privacy.query_noise import noise_of
from hedgerow.protocol.queries import IntVector, NoiseCohort, Query
from hedgerow.server.release import PlainAggregation, run_program

NAMES = ("adult", "bank")
EPSILONS = (0.1, 0.5, 1.0)
N_SITES = (4, 10, 50)


class SumWithShares(PlainAggregation):
    """The sum over one node that holds all rows, and the shares of noise of `n` sites that are all present."""

    def __init__(self, node: Node, cohort: NoiseCohort, noise: SeededNoise) -> None:
        super().__init__([node])
        self.cohort = cohort  # type: ignore[assignment]
        # What a release may look like depends on how many sites add noise to it.
        self.n_nodes = cohort.n_sites
        self._noise, self._n_drawn = noise, cohort.n_sites

    def sum_of(self, query: Query) -> IntVector:
        """See `Aggregation.sum_of`."""
        assert self.cohort is not None
        share = noise_of(query, self.cohort.n_shares).share_sigma
        drawn = round(share * sqrt(self._n_drawn))
        return super().sum_of(query) + self._noise.sample(drawn, query.length, f"{query.purpose}/shares")


def main(argv: list[str]) -> int:
    """Print the table."""
    options = arguments("noise_modes", __doc__, splits=(10, "random splits per cell")).parse_args(argv)
    choices = [(0, False), *((n, echo) for n in N_SITES for echo in (False, True))]
    steps = iter(progress(len(NAMES) * len(EPSILONS) * len(choices), "noise modes"))
    print(f"{'data set':<9} {'epsilon':>7}  {'noise':<22} {'factor':>6}  {'AUC':>16}  {'loss':>7}")
    for name in NAMES:
        prepared = Prepared(load(name, options.data))
        for epsilon in EPSILONS:
            known: dict[float, np.ndarray] = {}
            for n_sites, has_echo in choices:
                next(steps, None)
                factor = noise_factor(n_sites, has_echo=has_echo) if n_sites else 1.0
                # Cohorts of one factor have the same noise.
                if factor not in known:
                    known[factor] = scores(prepared, epsilon, (n_sites, has_echo), options.splits)
                who = f"{n_sites} sites{', echo' if has_echo else ''}" if n_sites else "the coordinator"
                found = known[factor]
                cell = f"{found.mean():>8.4f} ({deviation_of(found):.4f})  {known[1.0].mean() - found.mean():>+7.4f}"
                print(f"{name:<9} {epsilon:>7}  {who:<22} {factor:>6.3f}  {cell}", flush=True)
    print(f"\n{options.splits} splits a cell, mean (sd); loss: against noise of the coordinator on the same splits")
    return 0


def scores(prepared: Prepared, epsilon: float, who: tuple[int, bool], n_splits: int) -> np.ndarray:
    """Test AUC over splits: float64 [n_splits]; `who` is the number of sites that add noise, 0 for none, and echo."""
    n_sites, has_echo = who
    found = []
    for seed in range(n_splits):
        train = stratified_split(prepared.table.label, seed)
        mode = "distributed" if n_sites else "server"
        plan = plan_for(prepared.table, epsilon, int(train.sum()), {"structure_seed": seed}, noise=mode)
        noise, settings = SeededNoise(seed, exact=False), resolve(plan)
        node = Node("one", rows_of(prepared, plan, train), plan, settings, noise=noise)
        sums = PlainAggregation([node])
        if n_sites:
            promised = noise_guarantees(n_sites, has_echo=has_echo)
            cohort = NoiseCohort(promised.n_nodes, promised.n_colluders, promised.honest_group)
            sums = SumWithShares(node, cohort, noise)
        outcome = run_program(plan, program_for(plan, settings), sums, noise)
        test = rows_of(prepared, plan, ~train)
        found.append(roc_auc_score(test.labels, outcome.ensemble.scores(test.codes)[0]))
    return np.array(found)
