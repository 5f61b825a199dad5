"""A replica of a run's program: whoever holds the plan and the releases has the same queries and the same model.

The coordinator runs one, and so does every node, which therefore never needs to be told what it is asked.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np

from hedgerow.privacy.query_noise import noise_of
from hedgerow.protocol.errors import RemoteProtocolError
from hedgerow.protocol.plan import Plan
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.training.programs import program_for
from hedgerow.training.settings import Settings
from hedgerow.training.steps import Program
from hedgerow.trees.ensemble import Ensemble
from hedgerow.trees.ensemble_json import ensemble_to_dict

# No sum within the plan, and no noise but with a chance below 10^-300, is larger than this many times its bound.
_BEYOND = 64


class Replica:
    """A program and the releases it has been given.

    Attributes:
        query: what it asks now; None when it has finished.
        n_releases: releases it was given; also the number of the round that it stands in.
        history: 32-byte digest of the plan as it is run and of all releases so far, in order.
        plan: the plan as it is run, with the seed that the sites have drawn once `begin` was called.
    """

    def __init__(self, plan: Plan, settings: Settings) -> None:
        self.plan, self._settings = plan, settings
        self._program: Program | None = None
        self._ensemble: Ensemble | None = None
        self._model_digest = b""
        self.query: Query | None = None
        self.n_releases = 0
        self.history = bytes.fromhex(plan.digest)
        self._offered = plan
        if not plan.has_joint_structure:
            self._start()

    def begin(self, structure_seed: int) -> None:
        """Begin with a seed that the sites have drawn; again with that of a later epoch, while nothing was released.

        A plan with a seed of its own has begun already, and takes no other.

        Raises:
            ValueError: there are releases, and they were made with another seed.
        """
        plan = self._offered.with_structure_seed(structure_seed)
        if plan == self.plan:
            return
        if self.n_releases:
            raise ValueError("trees of another seed were released already")
        self.plan = plan
        self._start()

    def has_begun_with(self, structure_seed: int) -> bool:
        """Whether the trees are made from this seed."""
        return self.plan.model.structure_seed == structure_seed

    @property
    def structure_seed(self) -> int:
        """The seed of the trees' structure; ValueError before `begin` where the sites draw it."""
        seed = self.plan.model.structure_seed
        if isinstance(seed, str):
            raise ValueError("the sites have not drawn the seed yet")
        return seed

    def _start(self) -> None:
        self.history = bytes.fromhex(self.plan.digest)
        self._program = program_for(self.plan, self._settings)
        try:
            self.query = next(self._program)
        except StopIteration as finished:
            self._ensemble = finished.value

    @property
    def ensemble(self) -> Ensemble:
        """The model; ValueError before the program has finished."""
        if self._ensemble is None:
            raise ValueError("the program still asks")
        return self._ensemble

    def model_digest(self) -> bytes:
        """32 bytes that tell models apart: the hash of the ensemble as a model file holds it."""
        if not self._model_digest:
            content = json.dumps(
                ensemble_to_dict(self.ensemble), sort_keys=True, separators=(",", ":"), allow_nan=False
            )
            self._model_digest = hashlib.sha256(content.encode("ascii")).digest()
        return self._model_digest

    def feed(self, release: IntVector) -> None:
        """Give the program the release that it waits for.

        Raises:
            RemoteProtocolError: it is none: of another length, larger than any sum with noise can be, or too many.
        """
        query = self.query
        if self._program is None or query is None or release.shape != (query.length,) or release.dtype != np.int64:
            raise _no_release("one came that nothing was asked for, or of another length")
        # Python's integers: these products are beyond 64 bits for the largest plans.
        rows = self.plan.privacy.n_records * self.plan.privacy.max_rows_per_unit
        limit = _BEYOND * (query.bound * rows + int(noise_of(query).sigma) * 64 + 1)
        if int(release.max()) > limit or int(release.min()) < -limit:
            raise _no_release("its numbers are beyond any sum over the plan's records")
        told = hashlib.sha256(self.history)
        for part in (str(query.purpose).encode(), release.astype("<i8").tobytes()):
            told.update(len(part).to_bytes(8, "big") + part)
        self.history = told.digest()
        self.n_releases += 1
        try:
            self.query = self._program.send(release)
        except StopIteration as finished:
            self.query, self._ensemble = None, finished.value


def _no_release(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"A release cannot be used: {why}.",
        cause="The coordinator runs another version or another plan, or does not follow the protocol.",
        remedy="Compare the versions and the plans' digests; keep the journal as evidence.",
        code="release-unfit",
    )
