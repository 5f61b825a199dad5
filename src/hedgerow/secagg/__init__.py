"""Secure aggregation as pure state machines: bytes in, bytes and the next state out.

A node: `Enrolment.begin(...)` through `finish(...)`, then for each slot `Participant.mask`, `unmask`, `confirm`.
The coordinator: `EpochSetup`, then an `Aggregator` for each slot. All in one process: `EpochSession`.
docs/secure-aggregation.md has the protocol and what it promises. `_primitives` is not for use outside this room.
"""

from hedgerow.secagg._primitives.identity import Identity
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.checks import ExpectedRound
from hedgerow.secagg.enrolment import Enrolment, EpochSetup
from hedgerow.secagg.guarantees import Guarantees, Wishes, derive
from hedgerow.secagg.integers import width_for
from hedgerow.secagg.masks import Release
from hedgerow.secagg.messages import NoiseSpec, RoundSpec, VectorSpec
from hedgerow.secagg.participant import NodeContext, Participant
from hedgerow.secagg.roster import EpochParameters, NodePolicy, NoiseMode, Roster, Site
from hedgerow.secagg.session import Drops, EpochSession
from hedgerow.secagg.transitions import Abandoned, Code, Entropy, OwnMistake, Record, Refusal, Step
from hedgerow.secagg.view import EpochView

__all__ = [
    "Abandoned",
    "Aggregator",
    "Code",
    "Drops",
    "Enrolment",
    "Entropy",
    "EpochParameters",
    "EpochSession",
    "EpochSetup",
    "EpochView",
    "ExpectedRound",
    "Guarantees",
    "Identity",
    "NodeContext",
    "NodePolicy",
    "NoiseMode",
    "NoiseSpec",
    "OwnMistake",
    "Participant",
    "Record",
    "Refusal",
    "Release",
    "Roster",
    "RoundSpec",
    "Site",
    "Step",
    "VectorSpec",
    "Wishes",
    "derive",
    "width_for",
]
