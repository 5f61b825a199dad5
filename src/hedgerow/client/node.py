# SPDX-License-Identifier: Apache-2.0
"""The answers of one site: from its rows and a query to the vector that leaves the site.

A node sees only its own rows. It answers a query with a vector of integers, the sum of one contribution per record, and
with nothing else. Between queries it keeps its records' scores under the public model so far. `Node` takes part in
training, `EvaluationNode` in evaluations. Before them come the two random draws of a node: the sample of records for a
round, and the records' own noise in the local model. `ArrivalsOfRun` takes in rows that arrive while a run goes on.
`warm_up` runs a node once, so that its code is loaded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.data.binned import Recoded, SiteData, check_data, make_zeros
from hedgerow.data.hashing import mix_words
from hedgerow.errors import DataError, EnvironmentFault, HedgerowError, RemoteProtocolError, UsageError
from hedgerow.evaluation.sums import EvaluationQuery
from hedgerow.losses.registry import loss_kind
from hedgerow.methods.registry import find_method
from hedgerow.methods.replica import rehearse
from hedgerow.methods.tasks import Task, TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import noise_of, noise_of_records
from hedgerow.privacy.noise import NoiseSource, SystemNoise, attempt_discrete_gaussian
from hedgerow.protocol.queries import SAMPLING_STEPS, FittedTrees, IntVector, Query, SiteQuery, refuse_query
from hedgerow.protocol.votes import THRESHOLD, Vote
from hedgerow.storage import Database
from hedgerow.survey.queries import RawSite, SurveyNode
from hedgerow.training.settings import Settings
from hedgerow.trees.binning import FEW_TO_ENCODE, build_grid
from hedgerow.trees.leaf_sums import FEW_TO_SUM, ScoredSite, SiteRecords, TrainingSite, apply_update

_USUAL = {
    "version": 1,
    "name": "warm-up",
    "label": {"name": "y", "type": "binary", "classes": ["0", "1"]},
    "features": [
        {"name": "a", "type": "numeric", "min": 0.0, "max": 1.0},
        {"name": "b", "type": "categorical", "categories": ["x"]},
    ],
    "privacy": {"epsilon": 1.0, "delta": 1e-6, "n_records": 1000},
    "model": {"n_trees": 4, "max_depth": 2},
}


# Random draws ---------------------------------------------------------------------------------------------------------


class SamplingSource(Protocol):
    """Draws the Poisson sample of a node's records for a round.

    The privacy of a sampled release depends on the secrecy of the sample: if it is known, the release costs as much as
    one over all records. So real runs draw from the operating system, a new sample for every answer, and nothing about
    a sample is stored or sent.
    """

    @property
    def seeded(self) -> bool:
        """Whether the samples can be drawn again from a seed; they then amplify nothing."""

    def draw(self, threshold: int, n_records: int, purpose: str) -> NDArray[np.bool_]:
        """Draw the sample, each record with probability threshold / SAMPLING_STEPS: bool [n_records].

        Args:
            threshold: 1 to SAMPLING_STEPS.
        """


class SystemSampling:
    """Samples from the given byte source, which is `os.urandom` in every real run."""

    seeded = False

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._random_bytes = random_bytes

    def draw(self, threshold: int, n_records: int, purpose: str) -> NDArray[np.bool_]:
        """Draw each record with chance threshold / SAMPLING_STEPS: bool [n_records]."""
        if threshold == SAMPLING_STEPS:
            return np.ones(n_records, dtype=np.bool_)
        words = np.frombuffer(self._random_bytes(4 * n_records), dtype="<u4")
        return words < np.uint64(threshold)


class SeededSampling:
    """Samples that depend on a seed, the purpose and a record's number, however records are divided.

    For experiments and tests; a model made with it has no guarantee.

    Args:
        numbers: uint64 [n], the numbers of this site's records, distinct over all sites.
    """

    seeded = True

    def __init__(self, seed: int, numbers: NDArray[np.integer[Any]]) -> None:
        self._seed, self._numbers = seed, numbers.astype(np.uint64)

    def draw(self, threshold: int, n_records: int, purpose: str) -> NDArray[np.bool_]:
        """Draw each record by a hash of seed, purpose and its number: bool [n_records]."""
        digest = hashlib.sha256(f"hedgerow/seeded-sampling/1|{self._seed}|{purpose}".encode()).digest()
        keys = [np.uint64(int.from_bytes(digest[i : i + 8], "little")) for i in (0, 8)]
        numbers = self._numbers[:n_records]
        if len(numbers) != n_records:
            raise ValueError("there are more records than numbers")
        return (mix_words(mix_words(numbers ^ keys[0]) ^ keys[1]) >> np.uint64(32)) < np.uint64(threshold)


def seed_samplings(seed: int, sizes: Mapping[str, int]) -> dict[str, SamplingSource]:
    """Return a seeded source for each site, numbering the records one site after the other.

    Args:
        sizes: number of records of each site, in the order of the numbers.
    """
    sources: dict[str, SamplingSource] = {}
    first = 0
    for site, size in sizes.items():
        sources[site] = SeededSampling(seed, np.arange(first, first + size))
        first += size
    return sources


Shows = Callable[[SiteQuery], bool]
"""Tells whether a site's own figures may leave it, with noise of their own."""


def show_nothing(query: SiteQuery) -> bool:
    """Return False: the rule of a site whose policy allows no figures of its own."""
    return False


def draw_site_noise(query: Query, site: str, n_records: int, source: NoiseSource) -> IntVector | int:
    """Draw the noise that a site adds to its vector in the local model: int64 [query.length], or 0.

    Each record's vector needs its own discrete Gaussian noise, N_Z(0, sigma²) on every entry, before anybody else sees
    anything of it. A node of n records draws the sum of these noises at once: one discrete Gaussian with the standard
    deviation sqrt(n) sigma, rounded up to an integer. That is n times cheaper than n draws, and nothing is lost. One
    record's noise is accounted for, and a site's vector has a single discrete Gaussian of at least that sigma, for
    which the ledger's event holds exactly. Apart from the rounding, the log-ratio of the two distributions is below 10
    n exp(-pi² sigma²) per entry (docs/proofs/discrete-gaussian.md, theorem 2), which is negligible for a sigma of
    hundreds of grid units. A site without rows adds one record's noise.

    Source of the baseline: Maddock et al., CCS'22, section 5.3 ("LDP baseline": each user adds Gaussian noise before
    releasing their gradient information).

    Args:
        source: the source of the noise, drawn under a name that differs between sites.
    """
    sigma = noise_of_records(noise_of(query, is_local=True).record_sigma, n_records)
    return source.sample(sigma, query.length, f"{query.purpose}/records of {site}") if sigma else 0


def add_site_noise(
    query: Query, sums: IntVector, site: str, plan: Plan, n_records: int, source: NoiseSource,
    *, shows: Shows = show_nothing,
) -> IntVector:
    """Return the vector that leaves a site: its exact sums with the noise that the site draws.

    Args:
        shows: tells whether figures of this site alone may leave it, with noise of their own.
    """
    if isinstance(query, SiteQuery):
        if not shows(query):
            return query.place(site, None)
        purpose = f"{query.purpose}/figures of {site}"
        return query.place(site, sums + source.sample(noise_of(query).site_sigma, len(sums), purpose))
    return sums + draw_site_noise(query, site, n_records, source) if plan.privacy.noise == "local" else sums


def cast_vote(asked: Query, total: IntVector, site: str, source: NoiseSource) -> Vote:
    """Cast a site's vote on the model so far, by its exact sums and noise of its own that is drawn here.

    Nothing but the noisy number decides. Whoever calls this keeps the answer, and never calls it twice for a round.

    Args:
        asked: the vote's query (`hedgerow.methods.votes`).
        total: its answer, int64 [n], of which the largest counts.
    """
    sigma = noise_of(asked).central_sigma
    drawn = int(source.sample(sigma, 1, f"{asked.purpose}/vote of {site}")[0])
    return Vote.OBJECTS if int(total.max()) + drawn > THRESHOLD * sigma else Vote.AGREES


# The owner's own eye --------------------------------------------------------------------------------------------------

_MAX_LOOKED_AT = 8192
_TOLERANCE = 1e-9


def is_worse_than_constant(plan: Plan, records: SiteRecords) -> bool:
    """Return whether a model predicts a site's labels worse than their mean does, in squared error.

    The result is False for labels without such a mean (times to an event). Of many rows only some thousands are
    compared.
    """
    link, step = loss_kind(plan).link, 1 + records.n_records // _MAX_LOOKED_AT
    scores, labels = records.scores[:, ::step], records.labels[::step]
    if not len(labels) or not len(scores):
        return False
    compared = link.compare(scores.astype(np.int64), labels.astype(np.int64), plan.label)
    if compared is None:
        return False
    found, truth = compared
    mean = elementary.add_up_rows(found.T) / len(found)
    return elementary.add_up((found - truth) ** 2) > (1 + _TOLERANCE) * elementary.add_up((mean - truth) ** 2)


# Training -------------------------------------------------------------------------------------------------------------


class Node:
    """One site of a run.

    Args:
        sampling: the source of samples if the plan draws any; None for the operating system.
        noise: the source of the records' noise in the local model; None for the operating system.
        watches: keep `n_worse`, for an owner who is told of it.

    Raises:
        DataError: for codes or labels outside the plan: the kernels look them up without a check, so a record beyond
            the tables would add more than its bound.
    """

    def __init__(
        self,
        site: str,
        data: SiteData,
        plan: Plan,
        settings: Settings,
        n_threads: int = 1,
        sampling: SamplingSource | None = None,
        noise: NoiseSource | None = None,
        *,
        watches: bool = True,
    ) -> None:
        self.site = site
        check_data(site, data, plan)
        self._watches = watches
        self._noise = noise or SystemNoise(os.urandom)
        loss, draw = settings.loss(plan), (sampling or SystemSampling(os.urandom)).draw
        records = _with_scores(data, loss.n_outputs)
        self._data = data
        self.held = TrainingSite(plan, records, n_threads, loss=loss, linear_loss=settings.linear_loss(plan), draw=draw)
        self._ensemble_size = 0
        self._fitted: list[FittedTrees] = []
        self._arrivals: ArrivalsOfRun | None = None
        self.n_worse = 0
        """Number of the last trees in a row after which the model predicted these rows worse than a constant."""

    @property
    def n_records(self) -> int:
        return self.held.records.n_records

    def expect(self, arrivals: ArrivalsOfRun) -> None:
        """Set the arrivals that the node asks for new rows before every answer."""
        self._arrivals = arrivals

    def _take_in(self, query: Query, may_be_new: bool) -> None:
        for rows in self._arrivals.due(query.purpose.round, may_be_new) if self._arrivals else ():
            self.arrive(rows)

    def arrive(self, data: SiteData) -> None:
        """Take in rows that arrived after the run began.

        They have spent nothing, and get the scores of the model so far.

        Raises:
            DataError: for codes or labels outside the plan.
        """
        check_data(self.site, data, self.held.plan)
        late, old = _with_scores(data, self.held.loss.n_outputs), self.held.records
        for fitted in self._fitted:
            apply_update(late, fitted, self.held.n_threads)
        self.held.records = SiteRecords(
            np.concatenate([old.codes, late.codes], axis=1),
            np.concatenate([old.labels, late.labels]),
            np.concatenate([old.scores, late.scores], axis=1),
        )

    def answer(self, query: Query) -> IntVector:
        """Return the site's vector for a query: int64 [query.length].

        In the local model it has noise for each record.

        Raises:
            RemoteProtocolError: for a query of another ensemble size, of an unknown kind, or of an evaluation.
        """
        return add_site_noise(query, self.sum_rows(query), self.site, self.held.plan, self.n_records, self._noise)

    def sum_rows(self, query: Query) -> IntVector:
        """Return a query's exact sums over the rows of this site, without any noise."""
        if isinstance(query, EvaluationQuery):
            raise refuse_query(f"a {type(query).__name__} query has no place in training")
        self._expect_ensemble(query)
        _cut_again(self.held, self._data, query)
        self._take_in(query, may_be_new=True)
        vector = query.answer(self.held)
        self._count_update(query)
        return vector

    def finish(self, query: Query) -> None:
        """Take in a query's update without answering it, because the node missed the round."""
        self._expect_ensemble(query)
        _cut_again(self.held, self._data, query)
        self._take_in(query, may_be_new=False)
        query.miss(self.held)
        self._count_update(query)

    def _count_update(self, query: Query) -> None:
        if query.update is not None:
            self._ensemble_size += query.update.trees.n_trees
            is_worse = self._watches and is_worse_than_constant(self.held.plan, self.held.records)
            self.n_worse = self.n_worse + query.update.trees.n_trees if is_worse else 0
            if find_method(self.held.plan).keeps_accounts:
                self._fitted.append(query.update)

    def _expect_ensemble(self, query: Query) -> None:
        if type(query).miss is not Query.miss and not find_method(self.held.plan).keeps_accounts:
            # Otherwise its nodes would continue a run although their rows have changed since the query kept something
            # of them.
            raise refuse_query("it keeps something from round to round, and its method has no `keeps_accounts`")
        if self.held.loss.n_outputs and query.ensemble_size != self._ensemble_size:
            raise RemoteProtocolError("ensemble-out-of-step", found=query.ensemble_size, held=self._ensemble_size)


def _with_scores(data: SiteData, n_outputs: int) -> SiteRecords:
    """Return the rows with the scores of an empty model."""
    # Make the arrays contiguous: numba would compile the kernels again for a selection of rows, which takes 9 s.
    codes, labels = np.ascontiguousarray(data.codes), np.ascontiguousarray(data.labels)
    return SiteRecords(codes, labels, make_zeros(data.memory, (n_outputs, data.n_records), np.int32))


def _cut_again(held: ScoredSite, data: SiteData, query: Query) -> None:
    """Replace the rows' codes by those of a query's new edges, if it has any."""
    if query.new_edges:
        recoded = Recoded(held.new_edges, held.records.codes)
        codes = data.codes_in(held.grid, query.new_edges, recoded)
        held.records, held.new_edges = held.records._replace(codes=codes), query.new_edges


# Evaluation -----------------------------------------------------------------------------------------------------------


class EvaluationNode:
    """One site of an evaluation; it answers evaluation queries only.

    Args:
        data: its held-out rows.
        noise: the source of the noise that this site adds: to its own figures, and in the local model to records; None
            for the operating system.
        shows: tells whether this site's own figures may be shown, with noise of their own.

    Raises:
        DataError: for codes or labels outside the plan.
    """

    n_worse = 0

    def __init__(
        self, site: str, data: SiteData, plan: Plan, n_threads: int = 1, noise: NoiseSource | None = None,
        *, shows: Shows = show_nothing,
    ) -> None:  # fmt: skip
        check_data(site, data, plan)
        self.site, self._shows = site, shows
        self._noise = noise or SystemNoise(os.urandom)
        self._ensemble_size = 0
        self.held, self._data = ScoredSite(plan, _with_scores(data, plan.label.n_outputs), n_threads), data

    def answer(self, query: Query) -> IntVector:
        """Return the site's vector for a query: int64 [query.length].

        Raises:
            RemoteProtocolError: for a query of another kind, of another ensemble size, or that claims less sensitivity
                than one unit's contribution has.
        """
        sums, n_records = self.sum_rows(query), self.held.records.n_records
        return add_site_noise(query, sums, self.site, self.held.plan, n_records, self._noise, shows=self._shows)

    def sum_rows(self, query: Query) -> IntVector:
        """Return a query's exact sums over the held-out rows, without any noise.

        For figures by site, they are the site's own block only.
        """
        if not isinstance(query, EvaluationQuery):
            raise refuse_query(f"a {type(query).__name__} query has no place in an evaluation")
        self._check(query)
        self._expect_ensemble(query)
        _cut_again(self.held, self._data, query)
        return query.answer_alone(self.held) if isinstance(query, SiteQuery) else query.answer(self.held)

    def finish(self, query: Query) -> None:
        """Take in a query's trees without answering it, because the node missed the round."""
        self._expect_ensemble(query)
        _cut_again(self.held, self._data, query)
        query.miss(self.held)

    def _expect_ensemble(self, query: Query) -> None:
        if query.ensemble_size != self._ensemble_size:
            raise refuse_query(
                f"the query builds on {query.ensemble_size} trees; the scores hold {self._ensemble_size}"
            )
        self._ensemble_size += query.update.trees.n_trees if query.update is not None else 0

    def _check(self, query: EvaluationQuery) -> None:
        """Check a query's numbers against this node's own ones.

        The noise is calibrated by them, so a node trusts only its own computation.
        """
        plan = self.held.plan
        if not (query.fits(plan) and query.unit >= 1):
            raise refuse_query("it does not fit the plan's label")
        least = query.norm_squared() * (query.unit * plan.privacy.rows_per_unit) ** 2
        if query.bound < query.unit or query.sensitivity_squared < least:
            raise refuse_query("it claims a smaller sensitivity than one unit's contribution has")
        if isinstance(query, SiteQuery) and not query.noise_multiplier:
            raise refuse_query("nobody may see one site's exact sums")


# Any task -------------------------------------------------------------------------------------------------------------

RowsOrCells = SiteData | RawSite
"""A site's rows, in the form that its task needs."""


def make_node(
    site: str,
    rows: RowsOrCells,
    task: Task,
    n_threads: int = 1,
    sampling: SamplingSource | None = None,
    noise: NoiseSource | None = None,
    *,
    shows: Shows = show_nothing,
) -> Node | EvaluationNode | SurveyNode:
    """Build the node that answers a task's queries over a site's rows.

    Arguments and errors are those of `Node` and `EvaluationNode`.
    """
    if isinstance(rows, RawSite):
        return SurveyNode(site, rows, task.plan.privacy.rows_per_unit)
    if isinstance(task, TrainingTask):
        return Node(site, rows, task.plan, task.settings, n_threads, sampling, noise)
    return EvaluationNode(site, rows, task.run_plan, n_threads, noise, shows=shows)


# Warming up -----------------------------------------------------------------------------------------------------------


def warm_up(plan: Plan | None, n_threads: int = 1, n_rows: int | None = None) -> None:
    """Answer the first queries of a plan over made-up records, to load the code that a run needs.

    A process that has just started spends seconds on imports and on kernels, which are compiled once per installation.
    This happens here, before the node dials: at the first query, all other sites would wait for it.

    Args:
        plan: the plan; None for a usual one.
        n_rows: rows of the site, because few rows are summed without kernels; None loads everything.
    """
    plan = (plan or Plan.from_dict(_USUAL)).with_structure_seed(0)
    n_many = max(FEW_TO_SUM, FEW_TO_ENCODE // len(plan.features)) + 1
    n = n_many if n_rows is None else max(1, min(n_rows, n_many))
    try:
        task = TrainingTask(plan)
        _ = task.schedule
        columns = tuple(np.zeros(n, np.int32 if feature.is_categorical else np.float32) for feature in plan.features)
        grid = build_grid(plan)
        codes = grid.encode(columns)
        data = SiteData(codes, np.zeros(n, dtype=np.int32), grid.places(columns, codes))
        rehearse(task, Node("warm-up", data, plan, task.settings, n_threads).answer)
    except HedgerowError:
        # A plan that cannot be run is refused later, where the coordinator hears of it too.
        return


def has_compiled() -> bool:
    """Return whether numba has cached compiled code here, of the loops that every run needs."""
    folder = attempt_discrete_gaussian.stats.cache_path
    return folder is None or any(Path(folder).glob("*.nbi"))


# Rows that come while a run goes on -----------------------------------------------------------------------------------

ReadTable = Callable[[Path, Plan], SiteData]


@dataclass(frozen=True)
class ArrivalFolder:
    """The folder in which the owner puts new rows.

    Files are written elsewhere and then moved here, so that each is complete.

    Attributes:
        folder: the folder; its tables are read in the order of their names, without names that begin with a point.
        read: reads a table for a plan; DataError when it does not fit.
        is_table: whether a file of this name is one.
        tell: called with a message for the site's own operator, never for a peer; None for nobody.
    """

    folder: Path
    read: ReadTable
    is_table: Callable[[str], object]
    tell: Callable[..., object] | None = None

    def check(self, plan: Plan) -> None:
        """Raise UsageError "stream-unsupported" for a plan whose rows cannot arrive during a run."""
        if find_method(plan).keeps_accounts and plan.privacy.unit == "record":
            return
        raise UsageError("stream-unsupported", algorithm=plan.model.algorithm, unit=plan.privacy.unit)

    def names(self) -> list[str]:
        """Return the names of the tables that are there now.

        Raises EnvironmentFault "arrivals-folder" if there is no such folder.
        """
        try:
            found = [path.name for path in self.folder.iterdir() if path.is_file()]
        except OSError as fault:
            raise EnvironmentFault("arrivals-folder", folder=self.folder, fault=fault.strerror or fault) from fault
        return sorted(name for name in found if self.is_table(name) and not name.startswith("."))


class ArrivalsOfRun:
    """The files that one run has taken in, and the round of each; see `Node.expect`.

    The spent budget of each record is not stored: a node that starts again computes it from its rows and the releases.
    So it must know in which round each file came, and it needs each file unchanged. Both are written into the node's
    database before an answer is computed with the rows. A file that is gone or changed ends the run for this node,
    because rows that came again would have a whole budget again. These are acts of the owner on files, and depend on no
    row.

    Whether two files are equal does depend on single rows: a file with one row more than a copy is no copy. If a copy
    ended the run, or were left out, that row would decide about all others in the file. So the rows of a copy count,
    each as a record of its own, and the operator is told.

    Args:
        source: the folder of arrivals.
        database: the node's database, with the table ``arrivals (run_id, name, digest, round)``.
        is_closed: whether new files are ignored: after a state was lost or rolled back, nobody knows which files have
            been in rounds already.
    """

    def __init__(
        self, source: ArrivalFolder, plan: Plan, database: Database, run_id: bytes, is_closed: bool = False
    ) -> None:
        self._is_closed = is_closed
        self._source, self._plan, self._database, self._run_id = source, plan, database, run_id
        rows = database.rows("select name, digest, round from arrivals where run_id = ? order by rowid", (run_id,))
        self._waiting: list[tuple[str, bytes, int]] = [(name, digest, number) for name, digest, number in rows]
        self._known = {name: digest for name, digest, _ in self._waiting}

    def due(self, round_number: int, may_be_new: bool) -> list[SiteData]:
        """Return the rows to take in before the round of this number, and record new files on disk.

        Args:
            may_be_new: whether to take in files that were not seen before; False while releases are replayed.

        Raises:
            DataError: a new file does not fit the plan; code "arrival-changed": an earlier one is not as it was.
        """
        found = []
        while self._waiting and self._waiting[0][2] <= round_number:
            name, digest, _ = self._waiting.pop(0)
            found.append(self._read(name, digest))
        if self._is_closed or not may_be_new:
            return found
        names = self._source.names()
        for name in self._known:
            if name not in names:
                # A renamed file would come again as another file, so a missing file is an error.
                raise DataError("arrival-changed", name=name)
        for name in names:
            if name in self._known:
                continue
            digest = self._digest(name)
            rows = self._read(name, digest)
            if rows.n_records:
                self._look_for_copy(name, digest)
            found.append(rows)
            row = (self._run_id, name, digest, round_number)
            self._database.write(("insert into arrivals values (?, ?, ?, ?)", row))
            self._known[name] = digest
        return found

    def _look_for_copy(self, name: str, digest: bytes) -> None:
        """Tell the operator of a file that is equal to an earlier one."""
        earlier = next((known for known, its in self._known.items() if its == digest), None)
        if earlier is None:
            return
        if self._source.tell is not None:
            self._source.tell(
                f"{name} holds what {earlier} holds. If it is a copy, its rows count twice, each time with a whole "
                "budget: stop the node then, and leave this run. Put each record into one file only (private: for "
                "this site only)"
            )

    def _read(self, name: str, digest: bytes) -> SiteData:
        data = None
        if self._digest(name) == digest:
            data = self._source.read(self._source.folder / name, self._plan)
        # Compare again after reading: a file that is still being written would differ next time.
        if data is None or self._digest(name) != digest:
            raise DataError("arrival-changed", name=name)
        return data

    def _digest(self, name: str) -> bytes:
        try:
            return hashlib.sha256((self._source.folder / name).read_bytes()).digest()
        except OSError:
            return b""


# Threads --------------------------------------------------------------------------------------------------------------


def available_threads() -> int:
    """Return the largest number of threads that the kernels may use on this machine."""
    return int(cast(Any, numba.config).NUMBA_NUM_THREADS)


def count_threads(n_jobs: int | None) -> int:
    """Convert scikit-learn's `n_jobs` to threads: None is 1, -1 all, -2 all but one."""
    if n_jobs is None:
        return 1
    return max(1, available_threads() + 1 + n_jobs) if n_jobs < 0 else max(1, n_jobs)


@contextmanager
def use_threads(n_threads: int) -> Iterator[int]:
    """Let the kernels use `n_threads` threads (within 1 to all); restore the old number at the end."""
    before = numba.get_num_threads()
    allowed = max(1, min(n_threads, available_threads()))
    numba.set_num_threads(allowed)
    try:
        yield allowed
    finally:
        numba.set_num_threads(before)
