"""A laboratory for secure aggregation: cohorts whose parties are moved one by one, by a coordinator that may lie.

The named checks, the mutations, the fuzzer and the tests are built on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.codec import Bytes, CodecFault, Encoded, Many, Text
from hedgerow.crypto import Identity
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.enrolment import Enrolment, EpochSetup
from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.messages import (
    Advertisement,
    EpochParameters,
    Kind,
    Manifest,
    NodePolicy,
    NoiseMode,
    NonceDelivery,
    Roster,
    RoundSpec,
    Site,
    UnmaskRequest,
    VectorSpec,
    build_signed_list,
    header_hash,
)
from hedgerow.secagg.participant import ExpectedRound, NodeContext, Participant
from hedgerow.secagg.session import EpochSession
from hedgerow.secagg.transitions import Code, OwnMistake, Refusal, Step, SumAbandoned, refuse

Vectors = dict[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class StoredNode(Encoded):
    """What a node's store has of an epoch, in one piece."""

    KIND = 53
    epoch: Bytes
    step: Bytes
    purposes: Annotated[tuple[str, ...], Many(Text())]


def store_node(node: Participant) -> bytes:
    """A node's state as its disk has it."""
    return StoredNode(node.epoch_bytes(), node.step_bytes(), tuple(sorted(node.purposes))).to_bytes()


def restore_node(data: bytes, sequence: int) -> Participant:
    """The node of `store_node`; raises as `Participant.restore_parts`."""
    try:
        stored = StoredNode.from_bytes(data)
    except CodecFault as error:
        raise refuse(Code.CORRUPT_STATE) from error
    return Participant.restore_parts(stored.epoch, stored.step, stored.purposes, sequence)


def seeded_entropy(seed: int) -> Callable[[int], bytes]:
    """A reproducible source of bytes, for checks and tests only."""
    return random.Random(seed).randbytes


class Lab:
    """A cohort whose parties are moved one by one, by a coordinator that may lie.

    Args: n_nodes; n_slots; seed: of all randomness; wishes, policy: by default those of the session.
    """

    def __init__(
        self,
        n_nodes: int = 5,
        n_slots: int = 4,
        seed: int = 1,
        wishes: Wishes | None = None,
        policy: NodePolicy | None = None,
    ) -> None:
        self.sites = [f"site-{number}" for number in range(n_nodes)]
        self.session = EpochSession(self.sites, n_slots, seeded_entropy(seed), wishes=wishes, policy=policy)
        self.view = self.session.view

    def open(self, purpose: str = "tree-1", length: int = 4, width: int = 32, bound: int = 1000) -> Aggregator:
        """The aggregator of the next slot, for one vector."""
        return self.open_vectors(purpose, (VectorSpec("leaves", length, width, bound, bound * len(self.sites)),))

    def open_vectors(self, purpose: str, vectors: tuple[VectorSpec, ...]) -> Aggregator:
        """The aggregator of the next slot, for several vectors."""
        return Aggregator.open(self.view, self.session.coordinator, self.session.spec(purpose, vectors))

    def node(self, number: int) -> Participant:
        """A node's current state."""
        return self.session.nodes[self.sites[number]]

    def masked(self, number: int, aggregator: Aggregator, vectors: Vectors | None = None) -> bytes:
        """Moves a node through its masking step and returns its upload."""
        spec = aggregator.spec
        if vectors is None:
            vectors = {v.vector_id: np.full(v.length, number + 1, np.int64) for v in spec.vectors}
        expected = ExpectedRound(spec.purpose, spec.model, spec.vectors, spec.noise)
        context = self.session.contexts[self.sites[number]]
        step = self.node(number).mask(context, aggregator.signed_spec, expected, vectors, self.session.entropy)
        self.session.nodes[self.sites[number]] = step.state
        return step.message or b""

    def collected(self, purpose: str = "tree-1", absent: tuple[int, ...] = (), **options: Any) -> Aggregator:
        """An aggregator that holds the uploads of all nodes but the absent ones."""
        aggregator = self.open(purpose, **options)
        uploads = [self.masked(node, aggregator) for node in range(len(self.sites)) if node not in absent]
        aggregator, complaints = aggregator.receive(uploads)
        assert not complaints
        return aggregator

    def request(self, aggregator: Aggregator, holder: int, survivors: tuple[int, ...], **changes: Any) -> bytes:
        """A request with any list of survivors, correctly signed: what a lying coordinator can make."""
        headers = {node: upload.header for node, upload in aggregator.uploads.items()}
        fields: dict[str, Any] = {
            "context": aggregator.context,
            "purpose": aggregator.spec.purpose,
            "survivors": survivors,
            "headers": tuple(header_hash(headers[node]) for node in survivors),
            **changes,
        }
        manifest = Manifest(**fields).to_signed(self.session.coordinator)
        peers = [node for node in self.view.peers(holder) if node in survivors]
        shown = tuple(headers[node] for node in sorted({*peers, *({holder} & set(survivors))}))
        sealed = tuple(aggregator.uploads[node].sealed[self.view.peers(node).index(holder)] for node in peers)
        return UnmaskRequest(manifest, shown, sealed).to_bytes()

    def answered(self, number: int, request: bytes) -> Step[Participant]:
        """Moves a node through its answer to a request."""
        step = self.node(number).unmask(self.session.contexts[self.sites[number]], request)
        self.session.nodes[self.sites[number]] = step.state
        return step


def refusal_of(act: Callable[[], object]) -> Code | None:
    """The code with which `act` was refused, or None."""
    try:
        act()
    except (Refusal, OwnMistake, SumAbandoned) as refusal:
        return refusal.reason
    return None


def require_refusal(act: Callable[[], object], code: Code) -> None:
    """Raises AssertionError unless `act` is refused with `code`."""
    found = refusal_of(act)
    if found is not code:
        raise AssertionError(f"Wanted the refusal {code.value}, got {found.value if found else 'none'}.")


def require(condition: bool, sentence: str) -> None:
    """Raises AssertionError with the sentence unless the condition holds."""
    if not condition:
        raise AssertionError(sentence)


def sparse_lab() -> Lab:
    """Forty nodes on a random Harary graph."""
    return Lab(n_nodes=40, wishes=Wishes(9, max_drops=4, is_sparse=True, has_echo=True))


def echoed() -> tuple[Lab, Aggregator, list[bytes]]:
    """A lab whose five nodes echoed a manifest, the aggregator that waits for the echoes, and these."""
    lab = Lab(wishes=Wishes(1, has_echo=True))
    aggregator, requests = lab.collected().close_vectors(lab.session.coordinator)
    return lab, aggregator, [lab.answered(node, requests[node]).message or b"" for node in range(5)]


def complaint_of(aggregator: Aggregator, message: bytes) -> None:
    """Raises the aggregator's complaint about a message."""
    _, (complaint,) = aggregator.receive([message])
    raise complaint


@dataclass(slots=True)
class SetUp:
    """A set-up stopped at a stage: the nodes so far, what they last sent, and the aggregator before it received it.

    `drawn` are the lists of nonces with the neighbours' slot keys, and `deliveries` the shares, by node.
    """

    contexts: list[NodeContext]
    parameters: EpochParameters
    nodes: list[Enrolment]
    server: EpochSetup
    key_list: bytes
    drawn: dict[int, bytes]
    deliveries: dict[int, bytes]
    messages: list[bytes]

    def advertised(self, node: int) -> Advertisement:
        """What a node advertised: its signed bundle and its slot keys."""
        return Advertisement.from_bytes(self.nodes[node].advertisement)

    @property
    def bundles(self) -> list[bytes]:
        """All nodes' signed bundles."""
        return [self.advertised(node).bundle for node in range(len(self.nodes))]

    def drawn_with(self, nonces: list[bytes]) -> bytes:
        """What node 0 of a complete graph is sent with these signed nonces: the list, and the others' slot keys."""
        listed = build_signed_list(Kind.NONCE_LIST, self.parameters.hash(), nonces)
        others = range(1, len(self.nodes))
        return NonceDelivery(listed, tuple(self.advertised(node).slot_keys for node in others)).to_bytes()


def set_up(until: str, n_nodes: int = 4, wishes: Wishes | None = None) -> SetUp:
    """A set-up in which all nodes just sent their "keys", "nonces", "shares" or acknowledgements ("ready")."""
    entropy = seeded_entropy(3)
    identities = [Identity(entropy(32)) for _ in range(n_nodes)]
    coordinator = Identity(entropy(32))
    roster = Roster(coordinator.public, tuple(Site(f"s{i}", key.public) for i, key in enumerate(identities)))
    contexts = [NodeContext(identity, roster, NodePolicy()) for identity in identities]
    parameters = EpochParameters(entropy(32), 1, roster.hash(), 2, wishes or Wishes(0), NoiseMode.SERVER)
    made = SetUp(contexts, parameters, [], EpochSetup(roster, parameters), b"", {}, {}, [])

    def take(steps: list[Step[Enrolment]]) -> None:
        made.nodes = [step.state for step in steps]
        made.messages = [step.message or b"" for step in steps]

    def received() -> EpochSetup:
        server, complaints = made.server.receive(made.messages)
        require(not complaints, "A message of the set-up was refused.")
        return server

    take([Enrolment.begin(context, parameters.to_bytes(), entropy) for context in contexts])
    if until == "keys":
        return made
    made.server, made.key_list = received().close_keys()
    take([node.reveal(c, made.key_list) for node, c in zip(made.nodes, contexts, strict=True)])
    if until == "nonces":
        return made
    made.server, made.drawn = received().close_nonces()
    take([node.share(contexts[i], made.drawn[i], entropy) for i, node in enumerate(made.nodes)])
    if until == "shares":
        return made
    made.server, made.deliveries = received().close_shares()
    take([node.acknowledge(contexts[i], made.deliveries[i]) for i, node in enumerate(made.nodes)])
    return made


def with_spec(**changes: Any) -> Callable[[], None]:
    """A spec that the coordinator altered for node 0, which expects the genuine one."""

    def scenario() -> None:
        lab = Lab()
        genuine = lab.open().spec
        altered = replace(genuine, **{k: v(genuine) if callable(v) else v for k, v in changes.items()})
        signed = altered.to_signed(lab.session.coordinator)
        aggregator = Aggregator(lab.view, genuine, signed)
        lab.masked(0, aggregator)

    return scenario


def vector(**changes: Any) -> Callable[[RoundSpec], tuple[VectorSpec, ...]]:
    """The one vector of a spec with altered fields, for `with_spec`."""
    return lambda spec: (replace(spec.vectors[0], **changes),)


def with_manifest(**changes: Any) -> Callable[[], None]:
    """A correctly signed manifest with altered fields, shown to node 0."""

    def scenario() -> None:
        lab = Lab()
        aggregator = lab.collected()
        altered = {k: v(aggregator) if callable(v) else v for k, v in changes.items()}
        lab.answered(0, lab.request(aggregator, 0, altered.pop("survivors", (0, 1, 2, 3, 4)), **altered))

    return scenario
