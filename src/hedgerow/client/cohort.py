"""Whose answers could open a sum, so that a node never lets two sums of one round be opened."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from hedgerow.secagg.view import EpochView


@dataclass(frozen=True)
class Cohort:
    """An epoch in which a node has masked a vector.

    Attributes:
        epoch: the epoch's digest, 32 bytes.
        members: its nodes.
        least: nodes without whose answers, or echoes, nothing of it is opened.
        n_colluders: nodes of it that may collude with the coordinator.
    """

    epoch: bytes
    members: frozenset[int]
    least: int
    n_colluders: int

    @classmethod
    def of(cls, view: EpochView) -> Cohort:
        """The cohort of an epoch."""
        promised = view.guarantees
        least = promised.quorum if promised.has_echo else promised.threshold
        return cls(view.digest, frozenset(view.graph.neighbours), least, promised.n_colluders)

    def excludes(self, other: Cohort) -> bool:
        """Whether at most one of two sums of one round can be opened, each in one of these epochs.

        An honest node answers a round once, in whatever epoch; a colluder as often as it likes. With m members in
        both together, c of them colluders, two sums need least + least' answers, and m - c + 2c are to be had.
        """
        n_members = len(self.members | other.members)
        n_colluders = min(self.n_colluders, other.n_colluders)
        return self.epoch == other.epoch or self.least + other.least > n_members + n_colluders

    def to_json(self) -> str:
        """What is stored."""
        return _json_of(self)

    @classmethod
    def from_json(cls, text: str) -> Cohort:
        """The cohort stored as `text`."""
        epoch, members, least, n_colluders = json.loads(text)
        return cls(bytes.fromhex(epoch), frozenset(members), least, n_colluders)


@lru_cache(maxsize=8)
def _json_of(cohort: Cohort) -> str:
    """Remembered, because all rounds of an epoch store the same."""
    return json.dumps([cohort.epoch.hex(), sorted(cohort.members), cohort.least, cohort.n_colluders])
