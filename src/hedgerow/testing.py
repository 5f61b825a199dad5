# SPDX-License-Identifier: Apache-2.0
"""Check methods, losses and queries: play a plan and try to exceed what its queries state.

A ledger believes what a query states of its answer. `check_method` makes rows, gives each a node of its own, and
compares every answer with the query: its type and length, its largest entry and its norm. The answers of single rows
must add up to the answer of all rows, of thousands of copies, and of a site that missed earlier rounds. It adds up the
cost of the releases, counts the rounds, gives the same releases to the program over other rows, and divides rows over
1, 3 and 50 sites, which must give the same model. It is a search: each fault it reports is real, but finding none
proves nothing. The proof of a sensitivity belongs in the docstring of its query.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hedgerow.client.node import Node, SeededSampling
from hedgerow.data.binned import SiteData
from hedgerow.errors import HedgerowError
from hedgerow.methods.tasks import TrainingTask, ensemble_bytes
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.ledger import read_prepared_ledger
from hedgerow.privacy.noise import SeededNoise
from hedgerow.privacy.rounding import format_up
from hedgerow.protocol.queries import Choice, IntVector, PureQuery, Query
from hedgerow.server.release import UNCOUNTED, PlainAggregation, Releaser, run_program
from hedgerow.training.steps import play
from hedgerow.trees.binning import N_PLACES, CodeArray, Grid, build_grid
from hedgerow.trees.ensemble import Ensemble, ensemble_from_dict

PLAYED = {"the plan's noise": 1, "no noise": 0, "64 times the noise": 64}
"""Factors of the noise, each in a play of its own: different noise leads scores to different places."""
N_ALONE, N_DIVIDED, SITES = 40, 200, (1, 3, 50)
N_COPIES = 2**13 - 1
"""Copies of each row at one node: an odd number, so that single precision, and words of 32 bits, fail visibly."""


@dataclass(frozen=True)
class MethodCheck:
    """The findings of `check_method`.

    Attributes:
        faults: one sentence for each fault; empty if none was found.
        n_rounds: rounds of a run, each of which asks every node for a vector.
        epsilon: the cost of its releases at the plan's delta, by the plan's accountant.
        largest: by kind of query, the largest squared norm of one row's answer divided by the stated one: 1 is exact,
            less means unnecessary noise, more is a fault.
    """

    faults: tuple[str, ...]
    n_rounds: int
    epsilon: float
    largest: dict[str, float]


def check_method(plan: Plan, *, seed: int = 0) -> MethodCheck:
    """Play a plan on made rows, one node a row, and try to exceed what each of its queries states.

    Noise of the sites or of the records is played as noise of the coordinator: what queries state does not depend on
    it. Groups of sites are played as one.

    Args:
        plan: of the method and the loss to be checked; a small one takes a second.

    Returns:
        The faults that were found, and what the run asked for and cost.

    Raises:
        PrivacyError: no noise keeps the plan's promise.
    """
    plan = plan.with_one_sum().with_structure_seed(seed)
    plan = replace(plan, privacy=replace(plan.privacy, noise="server"))
    checked = _Checked(TrainingTask(plan), seed)
    for said, factor in PLAYED.items():
        checked.play(said, factor)
    if not checked.faults:
        checked.divide()
    return MethodCheck(tuple(checked.faults), checked.n_rounds, checked.epsilon, checked.largest)


class _ScaledNoise(SeededNoise):
    """Seeded noise, multiplied by a factor."""

    def __init__(self, seed: int, factor: int) -> None:
        super().__init__(seed, exact=False)
        self._factor = factor

    def sample(self, sigma: int, length: int, purpose: str) -> npt.NDArray[np.int64]:
        return self._factor * super().sample(sigma, length, purpose)

    def laplace(self, scale: int, length: int, purpose: str) -> npt.NDArray[np.int64]:
        return self._factor * super().laplace(scale, length, purpose)


class _Unplayable(Exception):
    """A fault that ends a play: its words, and the query that it is about."""


class _Checked:
    """A plan under check, and its findings so far; attributes as in `MethodCheck`."""

    def __init__(self, task: TrainingTask, seed: int) -> None:
        self.task, self.plan, self.seed = task, task.plan, seed
        # Keys are the words, so that a fault that occurs in every play and every tree is reported once.
        self.faults: dict[str, None] = {}
        self.n_rounds, self.epsilon = 0, 0.0
        self.largest: dict[str, float] = {}

    def play(self, said: str, factor: int) -> None:
        """Play the program: ask each of its queries of single rows, and of all rows together."""
        rows, numbers = make_rows(self.plan, N_ALONE, self.seed), np.arange(N_ALONE)
        parts = [[number] for number in numbers] + [numbers, numbers[:0], numbers, np.repeat(numbers, N_COPIES)]
        *alone, together, empty, late, many = self._nodes(rows, parts)
        releaser = Releaser(_ScaledNoise(self.seed, factor), UNCOUNTED, ledger=read_prepared_ledger(self.plan))
        kinds, schedule = Counter[str](), self.task.schedule
        asked, released = list[tuple[object, ...]](), list[IntVector]()

        def release(query: Query) -> IntVector:
            kind = query.purpose.kind
            kinds[kind] += 1
            asked.append(_stated(query))
            if len(asked) > schedule.n_rounds:
                raise _Unplayable(f"more than the {schedule.n_rounds} rounds that its schedule says")
            if query.length > schedule.kinds.get(kind, (0, query.length))[1]:
                self._note("it is longer than any of its kind in the schedule", query)
            answers = [node.answer(query) for node in (*alone, together, empty)]
            if any(answer.dtype != np.int64 or answer.shape != (query.length,) for answer in answers):
                raise _Unplayable(f"an answer is no int64 vector of the {query.length} entries that are stated", query)
            for fault in self._faults_of(query, answers[:-2], answers[-2], answers[-1]):
                self._note(fault, query)
            # Thousands of copies are slow: the first query of each kind, in one play, is enough.
            if not self.n_rounds and kinds[kind] > 1:
                many.finish(query)
            elif not self.n_rounds and not np.array_equal(many.answer(query), N_COPIES * answers[-2]):
                self._note(f"each row {N_COPIES} times does not answer {N_COPIES} times as much", query)
            if len(asked) < self.n_rounds:
                late.finish(query)
            elif len(asked) == self.n_rounds and not np.array_equal(late.answer(query), answers[-2]):
                self._note("a site that missed the rounds before answers otherwise", query)
            released.append(releaser.release(query, answers[-2]))
            return released[-1].copy()

        try:
            self._replay(asked, released, play(self.task.program(), release))
        except _Unplayable as fault:
            self._note(*fault.args)
            return
        except HedgerowError as fault:
            self._note(f"with {said}: {fault.what}")
            return
        self.n_rounds = max(self.n_rounds, len(asked))
        for kind, count in kinds.items():
            planned = self.task.schedule.kinds.get(kind, (0, 0))[0]
            if count > planned:
                self._note(f"{count} rounds of {kind}, where its schedule says {planned}")
        privacy = self.plan.privacy
        self.epsilon = get_accountant(privacy.accountant).epsilon(releaser.ledger.events(), privacy.delta)
        if self.epsilon > self.task.promise[0]:
            self._note(f"it spends epsilon {format_up(self.epsilon)}, where {self.task.promise[0]:g} was promised")

    def _replay(self, asked: Sequence[object], released: Sequence[IntVector], model: Ensemble) -> None:
        """Give the program the same releases over other rows: all that it asks and makes follows from releases."""
        node = self._nodes(make_rows(self.plan, N_ALONE, self.seed + 2), [np.arange(N_ALONE)])[0]
        rounds = zip(asked, released, strict=True)

        def release(query: Query) -> IntVector:
            stated, vector = next(rounds, (None, None))
            if vector is None or _stated(query) != stated:
                raise _Unplayable("its program asks otherwise when it is given the same releases again", query)
            node.answer(query)
            return vector.copy()

        if _write(play(self.task.program(), release)) != _write(model):
            raise _Unplayable("its program makes another model of the same releases where the rows are others")

    def divide(self) -> None:
        """Train over 1, 3 and 50 sites; note a fault if the models differ, or change in their files."""
        rows, random, found = make_rows(self.plan, N_DIVIDED, self.seed + 1), np.random.default_rng(self.seed), set()
        for n_sites in SITES:
            owner = random.integers(0, n_sites, N_DIVIDED)
            nodes = self._nodes(rows, [np.flatnonzero(owner == site) for site in range(n_sites)])
            noise = SeededNoise(self.seed, exact=False)
            try:
                ensemble = run_program(
                    self.plan, self.task.program(), PlainAggregation(nodes), noise, UNCOUNTED
                ).ensemble
                written = _write(ensemble)
                read = ensemble_from_dict(json.loads(written), self.plan)
            except HedgerowError as fault:
                self._note(f"over {n_sites} sites: {fault.what}")
                return
            codes = make_codes(ensemble.grid, N_DIVIDED, random)
            if not np.array_equal(read.scores(codes), ensemble.scores(codes)):
                self._note("its model reads back otherwise: cuts of its trees do not say who goes left")
            found.add(written)
        if len(found) > 1:
            self._note("another model where the same rows are at 1, 3 or 50 sites")

    def _nodes(self, rows: SiteData, parts: Sequence[npt.ArrayLike]) -> list[Node]:
        """Build a node for each part of the rows."""
        nodes: list[Node] = []
        for number, part in enumerate(parts):
            own = np.asarray(part, dtype=np.intp)
            node = Node(
                f"site {number}", rows.only(own), self.plan, self.task.settings, sampling=SeededSampling(self.seed, own)
            )
            if nodes:
                # Share one loss object: kernels cache their work only for a few losses.
                node.held.loss, node.held.linear_loss = nodes[0].held.loss, nodes[0].held.linear_loss
            nodes.append(node)
        return nodes

    def _note(self, fault: str, query: Query | None = None) -> None:
        self.faults.setdefault(fault if query is None else f"{query.purpose.kind}: {fault}")

    def _faults_of(self, query: Query, alone: list[IntVector], together: IntVector, empty: IntVector) -> Iterator[str]:
        """Yield the contradictions between a query and the answers of single rows, all rows and no rows."""
        if not np.array_equal(sum(alone), together) or empty.any():
            yield "what single rows answer does not add up to what all of them answer: it is no sum over rows"
        if max(int(np.abs(answer).max(initial=0)) for answer in alone) > query.bound:
            yield "one row adds more to an entry than the stated bound"
        rows = self.plan.privacy.rows_per_unit
        if isinstance(query, Choice):
            after = query.candidates(together)
            for answer in alone:
                # Range by which a row moves the scores of a choice's candidates, added up over all choices.
                moved = zip(after, query.candidates(together - answer), strict=True)
                ranges = [int(np.ptp(new - old)) for (_, new), (_, old) in moved if len(new)]
                if sum(ranges) > query.pure.sensitivity:
                    yield "one row moves the scores of its choices further than the stated sensitivity"
            return
        squared = max(sum(entry * entry for entry in answer.tolist()) for answer in alone) * rows * rows
        share = squared / query.sensitivity_squared if query.sensitivity_squared else math.inf
        kind = query.purpose.kind
        self.largest[kind] = max(self.largest.get(kind, 0.0), share if squared else 0.0)
        if squared > query.sensitivity_squared:
            yield "the rows of one unit have a larger squared norm than the stated sensitivity"
        most = max(int(np.abs(answer).sum()) for answer in alone) * rows
        if isinstance(query, PureQuery) and most > query.pure.sensitivity:
            yield "the rows of one unit have a larger sum of magnitudes than the stated sensitivity"


def make_codes(grid: Grid, n_rows: int, random: np.random.Generator) -> CodeArray:
    """Make codes [n_features, n]: every code of a feature if rows suffice, else an even selection."""
    spread = (np.linspace(0, feature.n_codes - 1, n_rows).round() for feature in grid.features)
    return np.array([random.permutation(codes) for codes in spread]).astype(grid.dtype)


def make_rows(plan: Plan, n_rows: int, seed: int) -> SiteData:
    """Make rows with codes from `make_codes`, missing ones included.

    Every second label is at an end of its range.

    Args:
        plan: the plan with their columns.
        n_rows: number of rows.
        seed: seed of the rows.
    """
    random, grid = np.random.default_rng([seed, 3]), build_grid(plan)
    codes = make_codes(grid, n_rows, random)
    low, high = plan.label.kind.encoded_range(plan.label)
    labels = random.integers(low, high + 1, n_rows)
    labels = np.where(np.arange(n_rows) % 2, labels, np.where(np.arange(n_rows) % 4, low, high))
    places = random.integers(0, N_PLACES, (len(grid.divisible), n_rows)).astype(np.uint8) if grid.divisible else None
    return SiteData(codes, labels.astype(np.int32), places)


def _write(ensemble: Ensemble) -> bytes:
    """Return the model's bytes as in its file."""
    try:
        return ensemble_bytes(ensemble)
    except LookupError as fault:
        raise _Unplayable(f"its model has trees with cuts that features do not have: {fault}") from fault


def _stated(query: Query) -> tuple[object, ...]:
    """Return the statements that two replicas of a program must make alike."""
    numbers = query.length, query.bound, query.sensitivity_squared, query.noise_multiplier, query.ensemble_size
    return (query.purpose, *numbers, query.left_open())
