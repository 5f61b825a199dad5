"""Training rows over sites: by a Dirichlet distribution over labels, by size, with sites that leave between rounds.

Sums do not say who holds which row, so that a split alone changes no bit of a model. It decides what a run loses with a
site that leaves: its rows, and the labels that it has most of.

Source: Li, Diao, Chen and He 2021, arXiv 2102.02079 (label and quantity skew, by Dirichlet distributions).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.harness import Prepared, rows_of
from hedgerow.client.node import Node, SeededSampling
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.server.release import UNCOUNTED, Outcome, PlainAggregation, run_program

MIN_SITES = 3
"""Over a network no sum is over fewer."""


class Split(NamedTuple):
    """How training rows are spread.

    Attributes:
        n_sites: sites of a run.
        label_skew: alpha of a Dirichlet distribution, by which each label's rows are shared out: 0.1 leaves most of a
            label's rows with a site or two; None for the same mix of labels at each site.
        size_skew: likewise, of the sites' sizes; None for sites of one size.
        leaving: share of the sites that leave for good, each before a round that is drawn.
    """

    n_sites: int
    label_skew: float | None = None
    size_skew: float | None = None
    leaving: float = 0.0

    @property
    def n_leaving(self) -> int:
        return round(self.leaving * self.n_sites)


def site_of(classes: NDArray[np.integer[Any]], split: Split, random: np.random.Generator) -> NDArray[np.intp]:
    """The number of the site that holds each row, from 0 on: intp [n] for labels [n]."""
    sizes = np.full(split.n_sites, 1 / split.n_sites)
    if split.size_skew is not None:
        sizes = random.dirichlet(np.full(split.n_sites, split.size_skew))
    found = np.zeros(len(classes), dtype=np.intp)
    for number in np.unique(classes):
        shares = sizes
        if split.label_skew is not None:
            # For sites of one size each alpha is the one that was asked for; none may be 0.
            shares = random.dirichlet(np.maximum(split.label_skew * split.n_sites * sizes, 1e-6))
        rows = random.permutation(np.flatnonzero(classes == number))
        places = (np.arange(len(rows)) + random.random()) / len(rows)
        found[rows] = np.searchsorted(np.cumsum(shares)[:-1], places, side="right")
    return found


class LeavingSites:
    """Sums in the clear over those sites that have not left.

    Args:
        nodes: of all sites.
        stays: of each, the rounds that it answers; it leaves for good after these.
    """

    cohort = None

    def __init__(self, nodes: Sequence[Node], stays: Sequence[int]) -> None:
        self._stays = list(zip(nodes, stays, strict=True))
        self.n_nodes = len(nodes)
        self.sites: tuple[str, ...] | None = None

    def sum_answers(self, query: Query) -> IntVector:
        """See `hedgerow.server.release.Aggregation.sum_answers`."""
        here = PlainAggregation([node for node, rounds in self._stays if query.purpose.round < rounds])
        self.n_nodes, self.sites = here.n_nodes, here.sites
        return here.sum_answers(query)


def trained(split: Split, prepared: Prepared, plan: Plan, train: NDArray[np.bool_], seed: int) -> Outcome:
    """As `harness.trained`, over the sites of a split; numbers and counts are spread by the tenth that they are in."""
    data, settings, n_rounds = rows_of(prepared, plan, train), resolve(plan), TrainingTask(plan).schedule.n_rounds
    random, classes = np.random.default_rng(seed), data.labels.astype(np.intp)
    if plan.label.kind.is_number:
        classes = np.searchsorted(np.quantile(classes, np.arange(1, 10) / 10), classes)
    of, noise = site_of(classes, split, random), SeededNoise(seed, exact=False)
    nodes = [
        Node(f"site-{number}", data.only(of == number), plan, settings, noise=noise,
             sampling=SeededSampling(seed, np.flatnonzero(of == number)))
        for number in range(split.n_sites)
    ]  # fmt: skip
    stays = np.full(split.n_sites, n_rounds)
    # The same sites leave, at the same share of the way, whatever number of rounds a method has.
    leavers = random.permutation(split.n_sites)[: split.n_leaving]
    stays[leavers] = (random.random(split.n_leaving) * n_rounds).astype(np.intp)
    return run_program(plan, program_for(plan, settings), LeavingSites(nodes, stays.tolist()), noise, UNCOUNTED)
