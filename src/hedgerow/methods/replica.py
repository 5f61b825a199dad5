# SPDX-License-Identifier: Apache-2.0
"""A replica of a run's program: all parties with the plan and the releases have the same queries.

The coordinator runs one, and so does every node, which therefore never needs to be told what it is asked. The queries
of an evaluation need no bytes on the wire either, for they follow from the task.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass

import numpy as np

from hedgerow.errors import HedgerowError, RemoteProtocolError
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.evaluation.program import EvaluationProgram
from hedgerow.methods.tasks import Task, TrainingTask
from hedgerow.methods.votes import SiteVotes, ask_vote
from hedgerow.privacy.calibration import noise_of
from hedgerow.protocol.groups import combine, count_drawing_rounds, count_entries, derive_drawing, split_by_group
from hedgerow.protocol.queries import Choice, IntVector, Query
from hedgerow.protocol.votes import list_vote_rounds
from hedgerow.survey.program import Found, SurveyProgram
from hedgerow.training.steps import EndedEarly, Program
from hedgerow.trees.ensemble import Ensemble

# Every sum within the plan, with its noise, is below this many times its bound, except with a chance below 10^-300.
_BEYOND = 64
_N_REHEARSED = 3
_MAX_REHEARSED = 1 << 22
"""Entries of an answer: nodes refuse to hold more, so such a run is not begun in memory before they are asked."""


class Replica:
    """A program with the releases that it has been given.

    Args:
        n_sites: of the roster, each with a vote behind some releases; None for any number.

    Attributes:
        query: the query that it asks now; None when it has finished.
        n_releases: releases it was given; also the number of the present round.
        history: 32-byte digest of the task as it is run and of all releases so far, in order.
        n_groups: groups of sites with a sum each in a release; 0 for one sum over all.
        n_rounds: rounds over the same groups; 0 if the roster's groups stay throughout.
        vote_rounds: the rounds with whose vectors sites vote (`hedgerow.protocol.votes`).
        plan: the task's as it is run, with the seed that the sites have drawn once `begin` was called.
    """

    def __init__(self, task: Task, n_sites: int | None = None) -> None:
        self.plan, self._task, self._n_sites = task.plan, task, n_sites
        votes = task.schedule.votes
        self.vote_rounds = () if votes is None else list_vote_rounds(task.schedule.n_rounds)
        self.n_groups = task.run_plan.federation.groups
        # Exact sums for two groupings would reveal single sites by subtraction; noisy sums are charged one by one.
        is_drawn = self.n_groups and task.run_plan.privacy.noise == "distributed" and task.plan.has_joint_structure
        self.n_rounds = count_drawing_rounds(task.schedule.n_rounds) if is_drawn else 0
        self._program: Program | EvaluationProgram | SurveyProgram | None = None
        self._origin = b""
        self._result: Ensemble | Evaluation | Found | None = None
        self._result_digest = b""
        self.query: Query | None = None
        self.n_releases = 0
        self.history = bytes.fromhex(task.digest)
        if not task.plan.has_joint_structure:
            self._start(task)

    def begin(self, structure_seed: int, origin: bytes) -> None:
        """Begin with the seed that the sites have drawn, in the epoch of this digest (32 bytes).

        A plan with a seed of its own has begun already, and takes no other.

        Raises:
            ValueError: it has begun with another.
        """
        if not self._task.plan.has_joint_structure:
            return
        task = self._task.with_structure_seed(structure_seed)
        if self._origin:
            if (origin, task.plan) != (self._origin, self.plan):
                raise ValueError("the trees have begun with another seed")
            return
        self.plan, self._origin = task.plan, origin
        self._start(task)

    @property
    def structure_seed(self) -> int:
        """The seed of the trees' structure; ValueError before `begin` if the sites draw it."""
        seed = self.plan.model.structure_seed
        if isinstance(seed, str):
            raise ValueError("the sites have not drawn the seed yet")
        return seed

    def _start(self, task: Task) -> None:
        self.history = bytes.fromhex(task.digest)
        self._program = task.program()
        try:
            self.query = next(self._program)
        except StopIteration as finished:
            self._result = finished.value

    @property
    def result(self) -> Ensemble | Evaluation | Found:
        """The result of the program; ValueError before it has finished."""
        if self._result is None:
            raise ValueError("the program still asks")
        return self._result

    @property
    def ensemble(self) -> Ensemble:
        """The model; ValueError before the program has finished, or if it makes none."""
        if not isinstance(self.result, Ensemble):
            raise ValueError("an evaluation or a survey makes no model")
        return self.result

    def result_digest(self) -> bytes:
        """Return 32 bytes that tell results apart.

        For a training, the bytes are the hash of all releases and of every number of the model. For an evaluation or a
        survey, they are the hash of all releases alone: an evaluation's estimates may differ in their last digit
        between machines, and a survey's findings follow from its releases.
        """
        if isinstance(self.result, Ensemble):
            self._result_digest = self._result_digest or _digest_state(self.history, self.result)
            return self._result_digest
        return self.history

    def context(self) -> bytes:
        """Return 32 bytes that a round's signed spec is bound to.

        They are `history` with the facts that the query's purpose leaves open. Where the sites drew the trees' seed,
        which is 63 bits of a hash, the whole digest of their epoch is among these.
        """
        left_open = self._origin + (b"" if self.query is None else self.query.left_open())
        return hashlib.sha256(self.history + left_open).digest() if left_open else self.history

    def feed(self, release: IntVector) -> None:
        """Give the program the release that it waits for, and advance to its next query.

        Raises:
            RemoteProtocolError: it cannot be this release: another length, larger than any sum with noise, or too many.
        """
        query = self.query
        fits = query is not None and self.is_fit(release)
        if self._program is None or query is None or not fits:
            raise RemoteProtocolError("release-unfit", why="one came that nothing was asked for, or of another length")
        rows = self.read_sums(release)
        largest = max(int(rows.max()), -int(rows.min()))
        # Compute the noise only for a release that is beyond any sum without noise.
        if largest > self._limit(query, 0.0) and largest > self._limit(query, noise_of(query).sigma):
            raise RemoteProtocolError("release-unfit", why="its numbers are beyond any sum over the plan's records")
        hasher = hashlib.sha256(self.history)
        for part in (str(query.purpose).encode(), release.astype("<i8").tobytes()):
            hasher.update(len(part).to_bytes(8, "big") + part)
        self.history = hasher.digest()
        self.n_releases += 1
        sums, _ = self.split(release)
        try:
            self.query = self._program.send(combine(sums, self.n_groups))
        except StopIteration as finished:
            self.query, self._result = None, finished.value

    @property
    def drawing(self) -> bytes:
        """The bytes that deal sites to groups in the present round, from the plan, seed and round."""
        return derive_drawing(self.structure_seed, self.n_drawings) if self.n_drawings else b""

    @property
    def n_drawings(self) -> int:
        """The number of new deals of sites to groups until the present round."""
        return self.n_releases // self.n_rounds if self.n_rounds else 0

    def count_drawings(self) -> int:
        """Return the number of drawings that the releases so far were made in; 0 for fixed groups."""
        return -(-self.n_releases // self.n_rounds) if self.n_rounds else 0

    @property
    def n_drawings_left(self) -> int:
        """The number of new deals of sites to groups after the present one."""
        return -(-self._task.schedule.n_rounds // self.n_rounds) - 1 - self.n_drawings if self.n_rounds else 0

    @property
    def n_left_of_drawing(self) -> int:
        """The rounds left with the present groups, or of the run if groups never change."""
        n_left = self._task.schedule.n_rounds - self.n_releases
        return min(n_left, self.n_rounds - self.n_releases % self.n_rounds) if self.n_rounds else n_left

    @property
    def release_length(self) -> int:
        """The number of entries of the awaited release; 0 once the program has finished."""
        n_votes = (self._n_sites or 0) if self.vote is not None else 0
        return 0 if self.query is None else count_entries(self.query, self.n_groups) + n_votes

    @property
    def vote(self) -> SiteVotes | None:
        """The question of the votes that are cast with the present round's vectors; None in most rounds."""
        votes = self._task.schedule.votes
        is_asked = votes is not None and self.query is not None and self.n_releases in self.vote_rounds
        return ask_vote(votes, self.query) if is_asked and votes is not None and self.query is not None else None

    def is_fit(self, release: IntVector) -> bool:
        """Return whether a release has the type and length of the awaited one, its votes included."""
        n_votes, is_free = len(release) - self.release_length, self._n_sites is None and self.vote is not None
        return release.dtype == np.int64 and release.ndim == 1 and (n_votes == 0 or (is_free and n_votes > 0))

    def split(self, release: IntVector) -> tuple[IntVector, IntVector]:
        """Return the sums in a fitting release of the present round, and the votes behind them."""
        n_entries = 0 if self.query is None else count_entries(self.query, self.n_groups)
        return release[:n_entries], release[n_entries:]

    def read_sums(self, release: IntVector) -> IntVector:
        """Return the sums in a release: int64 [n, length], one, or one per group (0 if it sat out).

        Raises:
            RemoteProtocolError: code "release-unfit"; it has no weights, or too few groups.
        """
        if not self.n_groups:
            return release[None]
        try:
            return np.ascontiguousarray(split_by_group(self.split(release)[0], self.n_groups)[:, 1:])
        except ValueError as fault:
            raise RemoteProtocolError("release-unfit", why=str(fault)) from fault

    def end_early(self) -> bool:
        """End the program at the releases so far, and return whether they make a model.

        The model is the program's own, of the trees whose releases are all there: a party that holds the plan and the
        releases has the same. An evaluation or a survey has nothing to show before its end.
        """
        if self.query is None or not isinstance(self._task, TrainingTask):
            return False
        program, self._program, self.query = self._program, None, None
        if program is None:
            return False
        try:
            program.throw(EndedEarly())
        except StopIteration as finished:
            self._result = finished.value
        return isinstance(self._result, Ensemble) and self._result.n_trees > 0

    def close(self) -> None:
        """Close the program, which asks nothing more.

        Its destructor would drop a Ctrl-C that comes at this moment.
        """
        if self._program is not None:
            self._program.close()

    def _limit(self, query: Query, sigma: float) -> int:
        """Return a bound on every entry of a release, given the standard deviation of its noise."""
        # Python's integers: these products are beyond 64 bits for the largest plans.
        rows = self.plan.privacy.n_records * self.plan.privacy.rows_per_unit
        n_draws = rows if self.plan.privacy.noise == "local" else 1
        return _BEYOND * (query.bound * rows + int(sigma * math.sqrt(n_draws)) * 64 + 1)


def _digest_state(history: bytes, ensemble: Ensemble) -> bytes:
    """Return the digest of a history and of a model's arrays.

    Text of a model would take many times as long. The plan's grid, the link and the number of outputs follow from the
    plan, which `history` begins with.
    """
    hasher = hashlib.sha256(history)
    fitted, weights = ensemble.fitted, ensemble.leaf_weights
    arrays = [] if fitted is None else [
        fitted.trees.feature.astype("<i4"),
        fitted.trees.threshold.astype("<i4"),
        np.packbits(fitted.trees.goes_left),
        fitted.values.astype("<i4"),
        *([] if weights is None else [weights.astype("<i8")]),
    ]  # fmt: skip
    for array in arrays:
        hasher.update(f"|{array.shape}|".encode())
        hasher.update(array.tobytes())
    if ensemble.stretch != 1:
        hasher.update(f"|{ensemble.stretch!r}|".encode())
    for feature, edges in ensemble.grid.new_edges.items():
        hasher.update(f"|edges {feature}|".encode() + edges.astype("<f4").tobytes())
    if ensemble.baseline:
        hasher.update(f"|baseline {ensemble.baseline}|".encode())
    return hasher.digest()


# Behaviour ------------------------------------------------------------------------------------------------------------
# Two builds may agree on the wire and on the plan, and be two programs. Before anything is spent, both ends carry the
# task out on releases that are drawn from a public seed, without a row, and compare the result: every query, the
# integer sigmas and events of its noise, and the model. Facts that depend on releases, seed or roster are compared by
# their rule here, applied to drawn values, and again in each round, because a node derives the signed spec itself.

PROGRAM_DIFFERS = "program-differs"
_MAX_ROUNDS_COMPARED, _MAX_ENTRIES_COMPARED = 1000, 1 << 20
"""What is carried out at most: the first rounds, and the model of them. The schedule says the size and cost of all."""
_HONEST_GROUPS = (1, 2, 5)
"""Numbers of shares by which the rule of the sites' own noise is compared; the roster's is known later."""
_known: dict[str, bytes] = {}
_MAX_KNOWN = 16


def digest_behaviour(task: Task) -> bytes:
    """Return 32 bytes that two programs share only if they ask, charge and make the same of this task.

    It depends on the task alone. A task that cannot be carried out has a digest as well: of how far it comes.
    """
    found = _known.get(task.digest)
    if found is None:
        while len(_known) >= _MAX_KNOWN:
            _known.pop(next(iter(_known)))
        found = _known[task.digest] = _compute_behaviour(task)
    return found


def _compute_behaviour(task: Task) -> bytes:
    hasher = hashlib.sha256(b"hedgerow behaviour 1" + bytes.fromhex(task.digest))

    def note(*parts: object) -> None:
        for part in parts:
            text = _describe(part)
            hasher.update(len(text).to_bytes(8, "big") + text)

    seed = hasher.digest()
    try:
        note(task.schedule.events, task.schedule.rounds)
        if task.schedule.longest > _MAX_REHEARSED:
            return hasher.digest()
        replica = Replica(task.with_structure_seed(int.from_bytes(seed[:7], "big")))
        try:
            n_entries, mode = 0, task.run_plan.privacy.noise
            while (query := replica.query) is not None and replica.n_releases < _MAX_ROUNDS_COMPARED:
                n_entries += max(query.length, replica.release_length)
                if n_entries > _MAX_ENTRIES_COMPARED and replica.n_releases:
                    break
                note(type(query).__name__, query, query.release_length, query.left_open(), replica.drawing)
                groups = _HONEST_GROUPS if mode == "distributed" else (None,)
                note([noise_of(query, group, is_local=mode == "local") for group in groups])
                if replica.vote is not None:
                    note("vote", replica.vote, noise_of(replica.vote))
                replica.feed(_draw_release(replica, query, seed))
            if replica.query is None or replica.end_early():
                note(replica.n_releases)
                if isinstance(replica.result, Ensemble):
                    hasher.update(_digest_state(replica.history, replica.result))
        finally:
            replica.close()
    except (HedgerowError, ArithmeticError, LookupError, TypeError, ValueError) as fault:
        # Releases that no rows give may end a program; the same one ends in the same place.
        note(type(fault).__name__)
    return hasher.digest()


def _draw_release(replica: Replica, query: Query, seed: bytes) -> IntVector:
    """Draw what might be released, from a hash of the seed and the round: of every size that the plan's rows allow."""
    number = replica.n_releases
    n_groups = max(1, replica.n_groups)
    # Sums of few records and of many, so that rules for either act.
    rows = max(1, replica.plan.privacy.n_records >> (number % 12))
    scale = min(query.bound * rows, 1 << 50)
    content = hashlib.shake_256(seed + number.to_bytes(4, "big")).digest(8 * n_groups * query.length)
    drawn = (np.frombuffer(content, "<u8") >> np.uint64(12)).astype(np.int64)
    # 52 bits as a share of the scale, from a quarter below zero to all of it; shifted so that no product overflows.
    sums: IntVector = ((drawn >> 40) * (scale // 4096 + 1) * 5 // 4 - scale // 4).reshape(n_groups, query.length)
    if isinstance(query, Choice):
        chosen = [own[int(part) % len(own)] for (own, _), part in zip(query.candidates(sums[0]), drawn, strict=False)]
        return np.array(chosen, dtype=np.int64)
    weights = np.ones((n_groups, 1 if replica.n_groups else 0), dtype=np.int64)
    release: IntVector = np.concatenate([weights, sums], axis=1).ravel()
    return release


def _describe(value: object) -> bytes:
    """Write a value down for a hash: floats to nine digits, for another processor may round the last ones otherwise."""
    if isinstance(value, float):
        return f"{value:.9g}".encode()
    if value is None or isinstance(value, bool | int | str | bytes):
        return f"{type(value).__name__} {value!r}".encode()
    if isinstance(value, np.ndarray):
        kind = "f" if value.dtype.kind == "f" else "i"
        return f"{kind}{value.shape}".encode() + value.astype("<f8" if kind == "f" else "<i8").tobytes()
    if isinstance(value, Mapping):
        parts = [part for key in sorted(value) for part in (key, value[key])]
    elif is_dataclass(value):
        held = [(each.name, getattr(value, each.name)) for each in fields(value)]
        parts = [type(value).__name__, *(part for pair in held for part in pair)]
    elif isinstance(value, Sequence):
        parts = list(value)
    else:
        return type(value).__name__.encode()
    texts = [_describe(part) for part in parts]
    return b"".join(len(text).to_bytes(8, "big") + text for text in texts)


def rehearse(task: Task, answer: Callable[[Query], object] = lambda query: None) -> None:
    """Run the first rounds of a task with sums of zero, so that its code is loaded; keep nothing.

    A task that cannot be carried out is not refused here, but where the other parties hear of it.

    Args:
        task: of a plan whose trees' seed is fixed, or any seed but the run's own.
        answer: called with each query, as this party answers it.
    """
    try:
        if task.schedule.longest > _MAX_REHEARSED:
            return
        replica = Replica(task)
        try:
            for _ in range(_N_REHEARSED):
                if replica.query is None:
                    return
                answer(replica.query)
                zeros = np.zeros(replica.release_length, dtype=np.int64)
                if replica.n_groups:
                    zeros.reshape(replica.n_groups, -1)[:, 0] = 1
                replica.feed(zeros)
        finally:
            replica.close()
    except HedgerowError:
        return
