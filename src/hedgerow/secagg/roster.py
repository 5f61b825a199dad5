"""Who may take part: the roster pinned at every node, the epoch's parameters, and what a node's owner insists on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Annotated

from hedgerow.codec import Choice, Hash, Line, Many, Nested, Record, Unsigned, digest
from hedgerow.crypto.faults import PrimitiveFault
from hedgerow.crypto.identity import require_public
from hedgerow.secagg.encoding import Kind, Sent
from hedgerow.secagg.guarantees import MAX_NODES, Guarantees, Wishes, derive
from hedgerow.secagg.transitions import Code, refuse

MAX_SLOTS = 4096
MAX_ATTEMPTS = 16
MAX_ROWS = 2**48


class NoiseMode(IntEnum):
    """Who adds the noise: the aggregator after unmasking, every node its share before masking, or every record its own.

    With local noise a node's vector is noisy before it comes here; there are no shares, and no party adds anything.
    """

    SERVER = 1
    DISTRIBUTED = 2
    LOCAL = 3


@dataclass(frozen=True, slots=True)
class Site(Record):
    """One organisation of the roster, the Ed25519 key (32 bytes) of its node, and the most rows it has; 0: not said."""

    name: Line
    key: Hash
    max_rows: Annotated[int, Unsigned(8, most=MAX_ROWS)] = 0


@dataclass(frozen=True, slots=True)
class Roster(Sent):
    """The sites, in the order that numbers their nodes from 0, and the coordinator's key.

    Raises Refusal ROSTER_MISMATCH for repeated names or keys, keys of small order, or too many sites.
    """

    KIND = Kind.ROSTER
    coordinator: Hash
    sites: Annotated[tuple[Site, ...], Many(Nested(Site), least=1, most=MAX_NODES)]

    def __post_init__(self) -> None:
        keys = [self.coordinator, *(site.key for site in self.sites)]
        names = [site.name for site in self.sites]
        if not all(0 <= site.max_rows <= MAX_ROWS for site in self.sites):
            raise refuse(Code.ROSTER_MISMATCH, "A site's largest number of rows is out of range.")
        if not 1 <= len(names) <= MAX_NODES or len(set(names)) != len(names) or len(set(keys)) != len(keys):
            raise refuse(Code.ROSTER_MISMATCH, "Names and keys must be distinct, and sites 1 to 4096.")
        try:
            for key in keys:
                require_public(key)
        except PrimitiveFault as error:
            raise refuse(Code.ROSTER_MISMATCH, error.what) from error

    def max_rows_of(self, name: str) -> int:
        """Returns the most rows that the site of this name has; 0 where the roster does not say."""
        return next((site.max_rows for site in self.sites if site.name == name), 0)

    def hash(self) -> bytes:
        """Returns the 32-byte hash that bundles and parameters carry."""
        return digest("roster", self.to_bytes())

    def node_of(self, key: bytes) -> int:
        """Returns the number of the node with this identity key; raises Refusal UNKNOWN_NODE."""
        for node, site in enumerate(self.sites):
            if site.key == key:
                return node
        raise refuse(Code.UNKNOWN_NODE, "This node's own key is not in the roster.")


@dataclass(frozen=True, slots=True)
class EpochParameters(Sent):
    """What the coordinator proposes for one epoch; every node checks it against its own policy.

    Args: run_id: 32 bytes, the plan's hash or a nonce; attempt: 1..16, counts the set-ups of one run; roster_hash: 32
        bytes; n_slots: aggregations (retries included) the epoch can hold (1..4096); wishes: thresholds and graph;
        noise: who adds it.
    """

    KIND = Kind.PARAMETERS
    SENDER = "coordinator"
    run_id: Hash
    attempt: Annotated[int, Unsigned(1, least=1)]
    roster_hash: Hash
    n_slots: Annotated[int, Unsigned(2, least=1, most=MAX_SLOTS)]
    wishes: Wishes
    noise: Annotated[NoiseMode, Choice(NoiseMode)]

    def hash(self) -> bytes:
        """Returns the 32-byte hash that every set-up message carries."""
        return _hash_of(self)


@lru_cache(maxsize=16)
def _hash_of(parameters: EpochParameters) -> bytes:
    """Remembered, because a set-up asks for it once for every pair of nodes."""
    return digest("parameters", parameters.to_bytes())


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """What a node's owner insists on, whatever the coordinator proposes.

    Args: min_cohort: least nodes in the epoch; min_colluders: least colluders to be withstood; min_honest_survivors:
        least survivors beyond the colluders (3, or 2 where every node adds its own noise); min_honest_group: least
        honest vectors guaranteed in any sum; max_slots, max_length: what the node is willing to hold (slots, entries).
    """

    min_cohort: int = 3
    min_colluders: int = 0
    min_honest_survivors: int = 3
    min_honest_group: int = 2
    requires_echo: bool = False
    refuses_server_noise: bool = False
    max_slots: int = 1024
    max_length: int = 1 << 22

    def require(self, parameters: EpochParameters, n_nodes: int) -> Guarantees:
        """Returns the guarantees for `n_nodes` members; raises Refusal COHORT_TOO_SMALL or PARAMETERS_REFUSED."""
        if n_nodes < self.min_cohort:
            raise refuse(Code.COHORT_TOO_SMALL, f"{n_nodes} nodes, of {self.min_cohort} required.")
        guarantees = derive(n_nodes, parameters.wishes)
        is_distributed = parameters.noise is NoiseMode.DISTRIBUTED
        least = min(self.min_honest_survivors, 2) if is_distributed else self.min_honest_survivors
        unmet = {
            "slots": parameters.n_slots > self.max_slots,
            "colluders": guarantees.n_colluders < self.min_colluders,
            "honest survivors": guarantees.min_survivors - guarantees.n_colluders < least,
            "honest group": guarantees.honest_group < self.min_honest_group,
            "echo": self.requires_echo and not guarantees.has_echo,
            "noise": self.refuses_server_noise and parameters.noise is NoiseMode.SERVER,
        }
        if any(unmet.values()):
            raise refuse(Code.PARAMETERS_REFUSED, "Unmet: " + ", ".join(name for name, bad in unmet.items() if bad))
        return guarantees
