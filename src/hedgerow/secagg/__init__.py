# SPDX-License-Identifier: Apache-2.0
"""Secure aggregation as pure state machines: bytes in, bytes and the next state out.

The protocol, in the order in which it happens:

Set-up, once for an epoch of many slots (`enrolment`; the bytes are in `messages`, the thresholds in `guarantees`):

1. The coordinator proposes `messages.EpochParameters`. A node that accepts them sends its keys: `Enrolment.begin`.
2. `EpochSetup.close_keys` lists what all signed of their keys. Each node reveals its nonce: `Enrolment.reveal`.
3. `EpochSetup.close_nonces` lists the nonces, which draw the graph, and adds the slot keys of each node's neighbours.
   Each node shares its own slot keys: `Enrolment.share`.
4. `EpochSetup.close_shares` delivers the shares. Each node says which ones it holds: `Enrolment.acknowledge`.
5. `EpochSetup.close_acknowledgements` says who is ready, and with whom every node shares masks: the `view.EpochView`.
   `Enrolment.finish` makes a `participant.Participant` of each ready node.

One aggregation, in a slot of its own (`participant` and `aggregator`; the masks are in `masks`, the keys in `keys`):

1. Mask: `Aggregator.open` signs the spec, and each node answers with its masked vectors (`Participant.mask`), after it
   checked what it was asked.
2. Fix the survivors: `Aggregator.close_vectors` signs the manifest of those who sent a vector.
3. Unmask: each node answers the manifest with shares (`Participant.unmask`). Where the epoch wants an echo, it first
   signs that it saw the manifest, and answers when enough others did so too: `Aggregator.close_echoes`,
   `Participant.confirm`.
4. Sum: `Aggregator.release` rebuilds the masks from the shares and takes them away.

`transitions` has every legal step and every reason to refuse one. `session.EpochSession` runs all of it in one process.
docs/secure-aggregation.md says what the protocol promises.
"""
