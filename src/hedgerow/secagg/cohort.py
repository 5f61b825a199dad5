"""Whose answers could open a sum: no node lets two sums of one round be opened, and no coordinator need ask for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from hedgerow.secagg.guarantees import Guarantees
from hedgerow.secagg.view import EpochView


@dataclass(frozen=True)
class Cohort:
    """An epoch in which a vector is masked.

    Attributes:
        epoch: the epoch's digest, 32 bytes; empty for one that is not set up yet.
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
        return cls.promised(frozenset(view.graph.neighbours), view.guarantees, view.digest)

    @classmethod
    def promised(cls, members: frozenset[int], guarantees: Guarantees, epoch: bytes = b"") -> Cohort:
        """The cohort of these members with these guarantees."""
        least = guarantees.quorum if guarantees.has_echo else guarantees.threshold
        return cls(epoch, members, least, guarantees.n_colluders)

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
