# SPDX-License-Identifier: Apache-2.0
"""The public view of one epoch: members, keys, graph, ready nodes.

Every party computes it from the same messages. Only the slot keys differ: a bundle signs their hash, and each node
receives those of its neighbours.

It also says whose answers could open a sum. A node needs this to be sure that at most one of two sums of one round can
be opened, and a coordinator to ask for no other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from hedgerow.codec import BlobByNode, Bytes, digest
from hedgerow.crypto import KEY_BYTES, is_low_order
from hedgerow.secagg.guarantees import (
    Graph,
    Guarantees,
    assign_groups,
    combine_guarantees,
    complete,
    derive,
    harary,
    join,
    least_groups,
    sparse_colluders,
)
from hedgerow.secagg.keys import nonce_commitment
from hedgerow.secagg.messages import (
    Acknowledgement,
    EpochParameters,
    KeyBundle,
    Kind,
    NoiseMode,
    NonceReveal,
    ReadyList,
    Roster,
    Sent,
    check_signature,
    hash_slot_keys,
    read_signed_list,
    view_hash,
)
from hedgerow.secagg.transitions import Code, refuse


@lru_cache(maxsize=4)
def read_key_list(data: bytes, parameters: EpochParameters, roster: Roster) -> Mapping[int, KeyBundle]:
    """Read the bundles by node, and check every signature under the pinned roster.

    The result is cached, as in the other functions of public data here, because in one process all nodes read it.

    Raises:
        Refusal: UNKNOWN_NODE, REPEATED_NODE, BAD_SIGNATURE, DIFFERENT_VIEW, REPEATED_KEY, LOW_ORDER_KEY, MALFORMED.
    """
    expected = parameters.hash()
    bundles: dict[int, KeyBundle] = {}
    for message in read_signed_list(Kind.KEY_LIST, data, expected):
        bundle = KeyBundle.from_signed(message)
        _require_next(bundle.node, bundles)
        check_signature(site_key(roster, bundle.node), Kind.KEY_BUNDLE, message, bundle.node)
        if bundle.parameters != expected:
            raise refuse(Code.DIFFERENT_VIEW, "A bundle is for other parameters.", bundle.node)
        if is_low_order(bundle.channel_key):
            raise refuse(Code.LOW_ORDER_KEY, peer=bundle.node)
        bundles[bundle.node] = bundle
    # Compare keys with keys and hashes with hashes: a site could choose another site's hash as its key.
    channel_keys = {bundle.channel_key for bundle in bundles.values()}
    hashes = {bundle.slot_keys_hash for bundle in bundles.values()}
    if min(len(channel_keys), len(hashes)) < len(bundles):
        raise refuse(Code.REPEATED_KEY)
    return bundles


def split_slot_keys(slot_keys: bytes) -> list[bytes]:
    """Split concatenated slot keys into 32-byte keys, from slot 0 on."""
    return [slot_keys[start : start + KEY_BYTES] for start in range(0, len(slot_keys), KEY_BYTES)]


def check_slot_keys(bundles: Mapping[int, KeyBundle], n_slots: int, slot_keys: Mapping[int, bytes]) -> None:
    """Check some members' concatenated slot keys against the hashes that the nodes signed.

    Raises:
        Refusal: SLOT_KEYS_ALTERED, REPEATED_KEY or LOW_ORDER_KEY.
    """
    keys = [bundle.channel_key for bundle in bundles.values()]
    for node, run in slot_keys.items():
        if len(run) != KEY_BYTES * n_slots or hash_slot_keys(run) != bundles[node].slot_keys_hash:
            raise refuse(Code.SLOT_KEYS_ALTERED, peer=node)
        of_node = split_slot_keys(run)
        if any(map(is_low_order, of_node)):
            raise refuse(Code.LOW_ORDER_KEY, peer=node)
        keys += of_node
    if len(set(keys)) != len(keys):
        raise refuse(Code.REPEATED_KEY)


def read_nonce_list(
    data: bytes, parameters: EpochParameters, roster: Roster, bundles: Mapping[int, KeyBundle], key_list: bytes
) -> dict[int, bytes]:
    """Read the nonces of all members, checked against commitments and the hash of the key list.

    Raises:
        Refusal: REVEAL_MISSING, NONCE_MISMATCH, DIFFERENT_VIEW, and those of a list.
    """
    seen = digest("key-list", key_list)
    nonces: dict[int, bytes] = {}
    for message in read_signed_list(Kind.NONCE_LIST, data, parameters.hash()):
        reveal = read_nonce(message, parameters, roster, bundles, seen)
        _require_next(reveal.node, nonces)
        nonces[reveal.node] = reveal.nonce
    if nonces.keys() != bundles.keys():
        raise refuse(Code.REVEAL_MISSING, peer=min(bundles.keys() - nonces.keys()))
    return nonces


def read_nonce(
    message: bytes, parameters: EpochParameters, roster: Roster, bundles: Mapping[int, KeyBundle], key_list: bytes
) -> NonceReveal:
    """Read one member's nonce, and check it.

    Args:
        key_list: the hash of the key list that the member must have seen.

    Raises:
        Refusal: UNKNOWN_NODE, BAD_SIGNATURE, DIFFERENT_VIEW, NONCE_MISMATCH, MALFORMED.
    """
    reveal = NonceReveal.from_signed(message)
    if reveal.node not in bundles:
        raise refuse(Code.UNKNOWN_NODE, peer=reveal.node)
    check_signature(site_key(roster, reveal.node), Kind.NONCE, message, reveal.node)
    if reveal.parameters != parameters.hash() or reveal.key_list != key_list:
        raise refuse(Code.DIFFERENT_VIEW, "It saw another list of keys.", reveal.node)
    if nonce_commitment(reveal.nonce, reveal.node, reveal.parameters) != bundles[reveal.node].nonce_commitment:
        raise refuse(Code.NONCE_MISMATCH, peer=reveal.node)
    return reveal


def read_ready_list(data: bytes, roster: Roster, view: bytes, graph: Graph) -> tuple[int, ...]:
    """Read the ready nodes, and check that each acknowledged the shares of all ready neighbours.

    Raises:
        Refusal: UNKNOWN_NODE, REPEATED_NODE, BAD_SIGNATURE, DIFFERENT_VIEW, NOT_ACKNOWLEDGED.
    """
    ready_list = ReadyList.from_bytes(data)
    if ready_list.view != view:
        raise refuse(Code.DIFFERENT_VIEW, "The ready list is about another set-up.", "coordinator")
    held: dict[int, set[int]] = {}
    for message in ready_list.acknowledgements:
        acknowledgement = read_acknowledgement(message, roster, view, graph)
        _require_next(acknowledgement.node, held)
        held[acknowledgement.node] = set(acknowledgement.held)
    for node, senders in held.items():
        missing = [peer for peer in graph.neighbours[node] if peer in held and peer not in senders]
        if missing:
            raise refuse(Code.NOT_ACKNOWLEDGED, f"Node {node} does not hold its shares.", missing[0])
    return tuple(held)


def read_acknowledgement(message: bytes, roster: Roster, view: bytes, graph: Graph) -> Acknowledgement:
    """Read one member's acknowledgement, and check it; raise Refusal as `read_ready_list` does."""
    acknowledgement = Acknowledgement.from_signed(message)
    node = acknowledgement.node
    if node not in graph.neighbours:
        raise refuse(Code.UNKNOWN_NODE, peer=node)
    check_signature(site_key(roster, node), Kind.ACKNOWLEDGEMENT, message, node)
    if acknowledgement.view != view:
        raise refuse(Code.DIFFERENT_VIEW, "It acknowledged another set-up.", node)
    return acknowledgement


def _require_next(node: int, seen: Mapping[int, object]) -> None:
    if seen and node <= max(seen):
        raise refuse(Code.REPEATED_NODE, peer=node)


def site_key(roster: Roster, node: int) -> bytes:
    """Return the identity key of a node; raise Refusal UNKNOWN_NODE."""
    if node >= len(roster.sites):
        raise refuse(Code.UNKNOWN_NODE, peer=node)
    return roster.sites[node].key


def nonce_seed(label: str, nonces: Mapping[int, bytes]) -> bytes:
    """Return the 32-byte hash of all revealed nonces under a label.

    No node and no coordinator can choose it.
    """
    return digest(label, *(nonces[node] for node in sorted(nonces)))


def split_members(
    roster: Roster, members: Collection[int], n_groups: int, drawing: bytes = b""
) -> tuple[tuple[int, ...], ...]:
    """Return the members of each group in increasing order; without groups, one part with all members."""
    if not n_groups:
        return (tuple(members),)
    of = assign_groups([site.key for site in roster.sites], n_groups, drawing)
    return tuple(tuple(node for node in sorted(members) if of[node] == group) for group in range(n_groups))


def size_beside(roster: Roster, members: Collection[int], parameters: EpochParameters, node: int) -> int:
    """Count the members in a node's group, itself included; without groups, all members."""
    parts = split_members(roster, members, parameters.wishes.n_groups, parameters.drawing)
    return next((len(part) for part in parts if node in part), 0)


def most_beside(roster: Roster, parameters: EpochParameters, node: int) -> int:
    """Return how many members may at most be in a node's group, itself included, before any is known.

    A sparse graph is used among the nodes that are there. For the whole of a large roster it would have to withstand
    more colluders than the wishes name.
    """
    there, wishes = size_beside(roster, range(len(roster.sites)), parameters, node), parameters.wishes
    while wishes.is_sparse and sparse_colluders(there) > wishes.n_colluders:
        there -= 1
    return there


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreed content of the lists of keys and nonces, before anyone is ready.

    `view` (32 bytes) is the lists' hash. `parts` are the members of each group, in the order of the groups; one part if
    there are no groups. `by_node` has the guarantees of the sum that a node is in, `guarantees` those of every sum.
    """

    bundles: Mapping[int, KeyBundle]
    nonces: Mapping[int, bytes]
    guarantees: Guarantees
    by_node: Mapping[int, Guarantees]
    parts: tuple[tuple[int, ...], ...]
    graph: Graph
    view: bytes


@lru_cache(maxsize=4)
def agree(roster: Roster, parameters: EpochParameters, key_list: bytes, nonce_list: bytes) -> Agreement:
    """Check the lists of keys and nonces, and return their agreement; raise Refusal."""
    if parameters.roster_hash != roster.hash():
        # The members signed for the roster that they had pinned; in another roster the numbers may be other sites.
        raise refuse(Code.ROSTER_MISMATCH, "The parameters are for another roster.", "coordinator")
    bundles = read_key_list(key_list, parameters, roster)
    nonces = read_nonce_list(nonce_list, parameters, roster, bundles, key_list)
    parts = split_members(roster, bundles, parameters.wishes.n_groups, parameters.drawing)
    there = [part for part in parts if part]
    if len(there) < least_groups(parameters.wishes.n_groups):
        raise refuse(Code.COHORT_TOO_SMALL, f"Members of {len(there)} groups only.")
    promised = [derive(len(part), parameters.wishes) for part in there]
    by_node = {node: of for part, of in zip(there, promised, strict=True) for node in part}
    guarantees = combine_guarantees(promised)
    seed = nonce_seed("graph-seed", nonces)
    graph = join(
        harary(part, of.degree, seed) if of.is_sparse else complete(part)
        for part, of in zip(there, promised, strict=True)
    )
    view = view_hash(parameters.hash(), key_list, nonce_list)
    return Agreement(bundles, nonces, guarantees, by_node, parts, graph, view)


@dataclass(frozen=True, slots=True)
class EpochRecord(Sent):
    """Coordinator: an epoch as its members saw it, for other sites and for its own storage.

    Attributes:
        roster: the federation's.
        parameters: of the epoch.
        key_list, nonce_list: SignedLists.
        ready_list: a ReadyList.
    """

    KIND = Kind.EPOCH_RECORD
    roster: Roster
    parameters: EpochParameters
    key_list: Bytes
    nonce_list: Bytes
    ready_list: Bytes


@dataclass(frozen=True, slots=True)
class StoredView(Sent):
    """A party's stored copy of an epoch.

    Attributes:
        record: an EpochRecord.
        slot_keys: those that the party was given, concatenated for each node.
    """

    KIND = Kind.EPOCH_VIEW
    record: Bytes
    slot_keys: BlobByNode


@dataclass(frozen=True, slots=True)
class EpochView:
    """All public facts about a ready epoch. `digest` (32 bytes) binds every later message to it.

    `record` is the canonical bytes from which `from_record` rebuilds the view. `structure_seed` seeds the trees' public
    randomness, from the same committed nonces as the graph. `slot_keys` are those that this party was given,
    concatenated for each node: a node has its ready neighbours', the aggregator those of all ready nodes. They are not
    in the record. `parts`, `by_node` and `guarantees` are as in `Agreement`.
    """

    roster: Roster
    parameters: EpochParameters
    guarantees: Guarantees
    by_node: Mapping[int, Guarantees] = field(repr=False)
    parts: tuple[tuple[int, ...], ...]
    graph: Graph
    ready: tuple[int, ...]
    bundles: Mapping[int, KeyBundle]
    structure_seed: bytes
    digest: bytes
    record: bytes
    _ready_set: frozenset[int] = field(repr=False)
    _peers: Mapping[int, tuple[int, ...]] = field(repr=False)
    slot_keys: Mapping[int, bytes] = field(default_factory=dict, repr=False)

    @classmethod
    @lru_cache(maxsize=4)
    def from_messages(
        cls, roster: Roster, parameters: EpochParameters, key_list: bytes, nonce_list: bytes, ready_list: bytes
    ) -> EpochView:
        """Build the view without slot keys, and check everything; raise Refusal."""
        agreed = agree(roster, parameters, key_list, nonce_list)
        ready = read_ready_list(ready_list, roster, agreed.view, agreed.graph)
        if not is_enough(agreed, ready):
            raise refuse(Code.COHORT_TOO_SMALL, f"{len(ready)} ready, {agreed.guarantees.min_survivors} needed.")
        ready_set, peers = frozenset(ready), agreed.graph.neighbours
        if len(ready) < len(peers):
            peers = {node: tuple(peer for peer in near if peer in ready_set) for node, near in peers.items()}
        return cls(
            roster=roster,
            parameters=parameters,
            guarantees=agreed.guarantees,
            by_node=agreed.by_node,
            parts=agreed.parts,
            graph=agreed.graph,
            ready=ready,
            bundles=agreed.bundles,
            structure_seed=nonce_seed("structure-seed", agreed.nonces),
            # Leave the acknowledgements' signatures out: the nodes agree only on who is ready, and on which view.
            digest=digest("epoch", agreed.view, *(node.to_bytes(2, "big") for node in ready)),
            record=EpochRecord(roster, parameters, key_list, nonce_list, ready_list).to_bytes(),
            _ready_set=ready_set,
            _peers=peers,
        )

    @classmethod
    def from_record(
        cls, record: bytes, require: Callable[[Roster, EpochParameters], None] = lambda roster, parameters: None
    ) -> EpochView:
        """Rebuild the view without slot keys from `record`, and check it again; raise Refusal.

        Args:
            require: raises for an unwanted roster or parameters. It is called before the signatures of the lists are
                checked, because a stranger's record may hold as many as the format allows.
        """
        of = EpochRecord.from_bytes(record)
        require(of.roster, of.parameters)
        return cls.from_messages(of.roster, of.parameters, of.key_list, of.nonce_list, of.ready_list)

    def with_slot_keys(self, slot_keys: Mapping[int, bytes]) -> EpochView:
        """Return the view with this party's slot keys, checked; raise Refusal as `check_slot_keys` does."""
        check_slot_keys(self.bundles, self.parameters.n_slots, slot_keys)
        return replace(self, slot_keys=slot_keys)

    def slot_key(self, node: int, slot: int) -> bytes:
        """Return a node's 32-byte public key for a slot, if this party was given it."""
        return self.slot_keys[node][KEY_BYTES * slot : KEY_BYTES * (slot + 1)]

    def to_bytes(self) -> bytes:
        """Serialize the record and this party's slot keys, for its own storage."""
        return StoredView(self.record, self.slot_keys).to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, node: int | None = None) -> EpochView:
        """Read the view from `to_bytes`, and check it again.

        Raises Refusal, or OwnMistake CORRUPT_STATE if slot keys are missing that this party was given.

        Args:
            node: the node whose view it is; None for the coordinator's.
        """
        stored = StoredView.from_bytes(data)
        view = cls.from_record(stored.record)
        if not stored.slot_keys.keys() <= view.bundles.keys():
            raise refuse(Code.UNKNOWN_NODE, "Slot keys are of no member.")
        if not stored.slot_keys.keys() >= set(view.ready if node is None else view.peers(node)):
            raise refuse(Code.CORRUPT_STATE)
        return view.with_slot_keys(stored.slot_keys)

    @property
    def public_seed(self) -> int:
        """`structure_seed` as the number in 0 to 2**63 - 1 that a plan can hold."""
        return int.from_bytes(self.structure_seed[:8], "big") >> 1

    @property
    def noise(self) -> NoiseMode:
        """The party that adds the noise in this epoch."""
        return self.parameters.noise

    def is_ready(self, node: int) -> bool:
        """Return whether the node finished the set-up."""
        return node in self._ready_set

    def part_of(self, node: int) -> tuple[int, ...]:
        """Return the members whose sum a node is in, itself included."""
        return next(part for part in self.parts if node in part)

    def peers(self, node: int) -> tuple[int, ...]:
        """Return the ready neighbours of a node in increasing order, itself excluded."""
        return self._peers[node]


def filter_survivors(of: Agreement | EpochView, nodes: Collection[int]) -> tuple[int, ...]:
    """Return the nodes whose sum has enough of them, in increasing order."""
    there = set(nodes)
    parts = ([node for node in part if node in there] for part in of.parts)
    return tuple(sorted(n for part in parts if part and len(part) >= of.by_node[part[0]].min_survivors for n in part))


def is_enough(of: Agreement | EpochView, nodes: Collection[int]) -> bool:
    """Return whether these nodes suffice for a round: for its sum, or for more than half of the groups."""
    there = set(filter_survivors(of, nodes))
    n_groups = len(of.parts) if len(of.parts) > 1 else 0
    return sum(not there.isdisjoint(part) for part in of.parts) >= least_groups(n_groups)


@dataclass(frozen=True)
class Cohort:
    """An epoch in which a vector is masked.

    Attributes:
        epoch: the epoch's digest, 32 bytes; empty for one that is not set up yet.
        members: its nodes, by their numbers in the roster.
        least: fewest nodes whose answers, or echoes, can open a sum.
        n_colluders: members that may collude with the coordinator.
        roster: the hash of that roster, 32 bytes; empty if an earlier version wrote the cohort.
    """

    epoch: bytes
    members: frozenset[int]
    least: int
    n_colluders: int
    roster: bytes = b""

    @classmethod
    def from_view(cls, view: EpochView, node: int | None = None) -> Cohort:
        """Return the cohort of an epoch, or of one node's group if there are groups."""
        members = view.graph.neighbours if node is None else view.part_of(node)
        promised = view.guarantees if node is None else view.by_node[node]
        return cls.with_guarantees(frozenset(members), promised, view.parameters.roster_hash, view.digest)

    @classmethod
    def with_guarantees(
        cls, members: frozenset[int], guarantees: Guarantees, roster: bytes, epoch: bytes = b""
    ) -> Cohort:
        """Return the cohort of these members with these guarantees."""
        return cls(epoch, members, guarantees.least_answers, guarantees.n_colluders, roster)

    def excludes(self, other: Cohort) -> bool:
        """Return whether at most one of two sums of one round, in these two epochs, can be opened.

        An honest node answers a round once, in whatever epoch; a colluder as often as it likes. If the epochs have m
        members together, c of them colluders, two sums need least + least' answers, and m - c + 2c are available. In
        another roster the same numbers are other nodes, so nobody can say how many members there are together.
        """
        if self.epoch == other.epoch or self.roster != other.roster:
            return self.epoch == other.epoch
        n_members = len(self.members | other.members)
        n_colluders = min(self.n_colluders, other.n_colluders)
        return self.least + other.least > n_members + n_colluders

    def to_json(self) -> str:
        """Return the text to store."""
        return json.dumps([self.epoch.hex(), sorted(self.members), self.least, self.n_colluders, self.roster.hex()])

    @classmethod
    def from_json(cls, text: str) -> Cohort:
        """Read a cohort from its stored text."""
        epoch, members, least, n_colluders, *roster = json.loads(text)
        return cls(bytes.fromhex(epoch), frozenset(members), least, n_colluders, bytes.fromhex("".join(roster)))
