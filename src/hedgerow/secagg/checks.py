"""What a node checks before it masks a vector and before it reveals a share; each failure has its own code."""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow.crypto.aead import unseal
from hedgerow.crypto.faults import PrimitiveFault
from hedgerow.crypto.shamir import parse_share
from hedgerow.secagg.encoding import Kind, check_signature
from hedgerow.secagg.integers import MAX_BOUND, require_width
from hedgerow.secagg.keys import RoundContext, seed_share_key
from hedgerow.secagg.messages import (
    Header,
    Manifest,
    NoiseSpec,
    RoundSpec,
    UnmaskRequest,
    VectorSpec,
    header_hash,
    sealed_share_context,
)
from hedgerow.secagg.roster import NodePolicy
from hedgerow.secagg.transitions import Code, refuse
from hedgerow.secagg.view import EpochView, site_key


@dataclass(frozen=True, slots=True)
class ExpectedRound:
    """What a node's own training state expects of the next round, computed from its own copy of plan and model."""

    purpose: str
    model: bytes
    vectors: tuple[VectorSpec, ...]
    noise: NoiseSpec


def check_spec(spec: RoundSpec, expected: ExpectedRound, view: EpochView, policy: NodePolicy) -> None:
    """Raises Refusal: NOISE_MISMATCH, SPEC_UNACCEPTABLE, WIDTH_TOO_NARROW or PURPOSE_UNEXPECTED."""
    if spec.noise.mode is not view.noise or spec.noise != expected.noise:
        raise refuse(Code.NOISE_MISMATCH, peer="coordinator")
    check_vectors(spec.vectors, policy.max_length)
    if spec.purpose != expected.purpose or spec.model != expected.model or spec.vectors != expected.vectors:
        raise refuse(Code.PURPOSE_UNEXPECTED, peer="coordinator")


def check_vectors(vectors: tuple[VectorSpec, ...], max_length: int) -> None:
    """Raises Refusal SPEC_UNACCEPTABLE (none, repeated, empty, too long, no bound) or WIDTH_TOO_NARROW."""
    names = {vector.vector_id for vector in vectors}
    if not vectors or len(names) != len(vectors) or sum(vector.length for vector in vectors) > max_length:
        raise refuse(Code.SPEC_UNACCEPTABLE, peer="coordinator")
    for vector in vectors:
        largest = max(vector.entry_bound, vector.sum_bound)
        if vector.length < 1 or min(vector.entry_bound, vector.sum_bound) < 1 or largest > MAX_BOUND:
            raise refuse(Code.SPEC_UNACCEPTABLE, peer="coordinator")
        require_width(vector.width, largest)


def check_manifest(
    manifest: Manifest, view: EpochView, node: int, context: RoundContext, purpose: str, own_header: bytes
) -> None:
    """Raises Refusal: OTHER_SPEC, UNKNOWN_NODE, TOO_FEW_SURVIVORS, TOO_FEW_NEIGHBOURS or SELF_OMITTED."""
    if manifest.context != context or manifest.purpose != purpose:
        raise refuse(Code.OTHER_SPEC, "The manifest's.", "coordinator")
    for survivor in manifest.survivors:
        if not view.is_ready(survivor):
            raise refuse(Code.UNKNOWN_NODE, peer=survivor)
    listed = dict(zip(manifest.survivors, manifest.headers, strict=True))
    if listed.get(node) != own_header:
        raise refuse(Code.SELF_OMITTED, peer="coordinator")
    guarantees = view.guarantees
    if len(listed) < guarantees.min_survivors:
        raise refuse(Code.TOO_FEW_SURVIVORS, f"{len(listed)} of {guarantees.min_survivors}.", "coordinator")
    surviving = sum(peer in listed for peer in view.peers(node))
    if guarantees.is_sparse and surviving < guarantees.threshold:
        raise refuse(Code.TOO_FEW_NEIGHBOURS, f"{surviving} of {guarantees.threshold}.", "coordinator")


def check_headers(request: UnmaskRequest, manifest: Manifest, view: EpochView, node: int) -> dict[int, Header]:
    """Returns the headers of this node's surviving neighbours and its own, each as the manifest lists it.

    Whose they are, a neighbour's sealed share tells when it opens, and `check_header_signature` when it does not.

    Raises Refusal: HEADER_ALTERED, OTHER_SPEC, MALFORMED.
    """
    listed = dict(zip(manifest.survivors, manifest.headers, strict=True))
    wanted = [peer for peer in sorted((*view.peers(node), node)) if peer in listed]
    if len(request.headers) != len(wanted) or len(request.sealed) != len(wanted) - 1:
        raise refuse(Code.MALFORMED, "Headers or shares are missing.", "coordinator")
    headers: dict[int, Header] = {}
    for peer, signed in zip(wanted, request.headers, strict=True):
        if header_hash(signed) != listed[peer]:
            raise refuse(Code.HEADER_ALTERED, peer=peer)
        header = Header.from_signed(signed)
        if header.node != peer:
            raise refuse(Code.HEADER_ALTERED, "It is another node's.", peer)
        if header.context != manifest.context:
            raise refuse(Code.OTHER_SPEC, "A header's.", peer)
        headers[peer] = header
    return headers


def check_header_signature(view: EpochView, peer: int, signed: bytes) -> None:
    """Raises Refusal BAD_SIGNATURE unless the header is the neighbour's."""
    check_signature(site_key(view.roster, peer), Kind.HEADER, signed, peer)


def open_seed_share(channel: bytes, header: Header, holder: int, sealed: bytes) -> bytes:
    """Returns the 33-byte share of the self-mask seed that the header commits to; raises Refusal SHARE_UNREADABLE.

    It is sealed under a key that only the two nodes have, bound to the header's slot, payload and commitment: that it
    opens shows that the neighbour made the header, as its signature would, for a tenth of the time.

    Args:
        channel: `slot_channel` between the header's node and `holder`.
        header: one that `check_headers` passed.
    """
    context, sender = header.context, header.node
    bound = sealed_share_context(context, sender, holder, header.payload, header.seed_commitment)
    try:
        share = unseal(seed_share_key(channel, sender, holder, context.slot), sealed, bound)
        parse_share(share)
    except PrimitiveFault as error:
        raise refuse(Code.SHARE_UNREADABLE, peer=sender) from error
    return share
