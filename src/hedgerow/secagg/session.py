# SPDX-License-Identifier: Apache-2.0
"""A whole cohort in one process, for the local engine, tests and measurements.

Every message is made, sent as bytes, parsed and checked as between machines; only the transport is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from hedgerow.codec import HASH_BYTES
from hedgerow.crypto import Entropy, Identity
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.enrolment import Enrolment, EpochSetup
from hedgerow.secagg.guarantees import Wishes, default_wishes
from hedgerow.secagg.masks import Integers, OpenedSums
from hedgerow.secagg.messages import (
    EpochParameters,
    NodePolicy,
    NoiseMode,
    NoiseSpec,
    Roster,
    RoundSpec,
    Site,
    VectorSpec,
)
from hedgerow.secagg.participant import ExpectedRound, NodeContext, Participant
from hedgerow.secagg.transitions import Step

NO_MODEL = bytes(HASH_BYTES)


@dataclass(frozen=True, slots=True)
class Drops:
    """Sites that fall silent before they send a masked vector, an echo, or their answer."""

    vectors: Collection[str] = ()
    echoes: Collection[str] = ()
    answers: Collection[str] = ()


@dataclass(slots=True)
class SessionTraffic:
    """Bytes a site has sent ("up") and received ("down"), everything counted, by site."""

    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)

    def count_sent(self, site: str, message: bytes | None) -> None:
        """Count a message from the site."""
        self.up[site] = self.up.get(site, 0) + len(message or b"")

    def count_received(self, site: str, message: bytes) -> None:
        """Count a message to the site."""
        self.down[site] = self.down.get(site, 0) + len(message)


class EpochSession:
    """A cohort of sites in a ready epoch. Mutable: it holds every party's current state.

    `nodes` maps sites to participants, `view` is the epoch's public view, `traffic` what went over the wire.
    """

    def __init__(
        self,
        sites: Sequence[str],
        n_slots: int,
        entropy: Entropy,
        *,
        wishes: Wishes | None = None,
        noise: NoiseMode = NoiseMode.SERVER,
        policy: NodePolicy | None = None,
        silent_at_setup: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """Set the epoch up.

        Raises Refusal or SumAbandoned if a party does.

        Args:
            sites: distinct names.
            n_slots: aggregations, retries included.
            entropy: the source of all secrets (``os.urandom`` except in tests).
            silent_at_setup: sites that fall silent before "keys", "shares" or "acknowledgements".
        """
        self.traffic = SessionTraffic()
        self.entropy = entropy
        self.coordinator = Identity(entropy(32))
        identities = {site: Identity(entropy(32)) for site in sites}
        self.roster = Roster(self.coordinator.public, tuple(Site(site, identities[site].public) for site in sites))
        policy = policy or NodePolicy()
        self.contexts = {site: NodeContext(identities[site], self.roster, policy) for site in sites}
        self.parameters = EpochParameters(
            entropy(HASH_BYTES), 1, self.roster.hash(), n_slots, wishes or default_wishes(len(sites)), noise
        )
        self.next_slot = 0
        self.nodes: dict[str, Participant] = {}
        self._set_up(silent_at_setup or {})

    def _set_up(self, silent: Mapping[str, Collection[str]]) -> None:
        setup = EpochSetup(self.roster, self.parameters)
        contexts, entropy = self.contexts, self.entropy
        nodes: dict[str, Enrolment] = {}

        def answered(step: Callable[[str, bytes], Step[Enrolment]], deliveries: Mapping[str, bytes]) -> EpochSetup:
            """Send each site its delivery and return the set-up that has received the answers."""
            messages = []
            for site, delivery in deliveries.items():
                self.traffic.count_received(site, delivery)
                taken = step(site, delivery)
                self.traffic.count_sent(site, taken.message)
                nodes[site] = taken.state
                messages.append(taken.message or b"")
            following, complaints = setup.receive(messages)
            if complaints:
                raise complaints[0]
            return following

        present = [site for site in contexts if site not in silent.get("keys", ())]
        proposed = dict.fromkeys(present, self.parameters.to_bytes())
        setup = answered(lambda site, given: Enrolment.begin(contexts[site], given, entropy), proposed)
        setup, key_list = setup.close_keys()
        listed = dict.fromkeys(present, key_list)
        setup = answered(lambda site, given: nodes[site].reveal(contexts[site], given), listed)
        setup, drawn = setup.close_nonces()
        present = [site for site in present if site not in silent.get("shares", ())]
        drawn_by_site = {site: drawn[nodes[site].node] for site in present}
        setup = answered(lambda site, given: nodes[site].share(contexts[site], given, entropy), drawn_by_site)
        setup, dealt = setup.close_shares()
        present = [site for site in present if site not in silent.get("acknowledgements", ())]
        dealt_by_site = {site: dealt[nodes[site].node] for site in present}
        setup = answered(lambda site, given: nodes[site].acknowledge(contexts[site], given), dealt_by_site)
        self.view, ready_list = setup.close_acknowledgements()
        for site, enrolment in nodes.items():
            if self.view.is_ready(enrolment.node):
                self.traffic.count_received(site, ready_list)
                self.nodes[site] = enrolment.finish(contexts[site], ready_list).state

    def spec(
        self,
        purpose: str,
        vectors: tuple[VectorSpec, ...],
        model: bytes = NO_MODEL,
        variance: Fraction = Fraction(0),
    ) -> RoundSpec:
        """Return the spec of the next slot, and use that slot up."""
        noise = NoiseSpec(self.view.noise, variance)
        spec = RoundSpec(self.view.digest, self.next_slot, purpose, model, vectors, noise)
        self.next_slot += 1
        return spec

    def aggregate(
        self,
        spec: RoundSpec,
        vectors: Mapping[str, Mapping[str, Integers]],
        *,
        noise: Mapping[str, Mapping[str, Integers]] | None = None,
        drops: Drops | None = None,
    ) -> OpenedSums:
        """Run one aggregation and return its sums.

        Raises Refusal, OwnMistake or SumAbandoned; the slot cannot be used again then.

        Args:
            spec: from `spec`.
            vectors: int64 arrays by site, then by vector id.
            noise: likewise, the sites' noise shares where noise is distributed.
        """
        drops = drops or Drops()
        aggregator = Aggregator.open(self.view, self.coordinator, spec)
        expected = ExpectedRound(spec.purpose, spec.model, spec.vectors, spec.noise)
        messages: list[bytes] = []
        for site in self._present(drops.vectors):
            self.traffic.count_received(site, aggregator.signed_spec)
            step = self.nodes[site].mask(
                self.contexts[site], aggregator.signed_spec, expected, vectors[site], self.entropy,
                noise[site] if noise is not None else None,
            )  # fmt: skip
            self._keep(site, step.state, step.message, messages)
        gone = {*drops.vectors, *drops.echoes}
        aggregator = self._deliver(aggregator, messages)
        asked = self._choose_helpers(aggregator, gone, drops.answers)
        aggregator, requests = aggregator.close_vectors(self.coordinator, [self.nodes[site].node for site in asked])
        for site in asked:
            self.traffic.count_received(site, requests[self.nodes[site].node])
            step = self.nodes[site].unmask(self.contexts[site], requests[self.nodes[site].node])
            # Without an echo exchange this step is the answer already.
            lost = site in drops.answers and not self.view.guarantees.has_echo
            self._keep(site, step.state, None if lost else step.message, messages)
        if self.view.guarantees.has_echo:
            aggregator, certificate = self._deliver(aggregator, messages).close_echoes()
            for site in self._present({*gone, *drops.answers}):
                self.traffic.count_received(site, certificate)
                step = self.nodes[site].confirm(certificate)
                self._keep(site, step.state, step.message, messages)
        return self._deliver(aggregator, messages).release()[1]

    def _choose_helpers(self, aggregator: Aggregator, gone: Collection[str], mute: Collection[str]) -> list[str]:
        """Return the sites to ask for shares: as few as open the sum, or all if one of those is mute."""
        present = {self.nodes[site].node: site for site in self._present(gone)}
        asked = [present[node] for node in aggregator.openers(present)]
        return list(present.values()) if set(asked) & set(mute) else asked

    def _present(self, gone: Collection[str]) -> list[str]:
        return [site for site in self.nodes if site not in gone]

    def _keep(self, site: str, state: Participant, message: bytes | None, messages: list[bytes]) -> None:
        self.nodes[site] = state
        if message is not None:
            self.traffic.count_sent(site, message)
            messages.append(message)

    def _deliver(self, aggregator: Aggregator, messages: list[bytes]) -> Aggregator:
        following, complaints = aggregator.receive(messages)
        messages.clear()
        if complaints:
            raise complaints[0]
        return following
