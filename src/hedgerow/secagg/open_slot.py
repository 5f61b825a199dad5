"""The slot that a node is in, and how a node's secrets lie on its disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hedgerow.secagg._primitives.prg import keystream
from hedgerow.secagg._primitives.shamir import SHARE_BYTES
from hedgerow.secagg.keys import RoundContext, SlotChain


@dataclass(frozen=True, slots=True, repr=False)
class OpenSlot:
    """The slot a node is in: what it sent, and what it may send again.

    `digest` is the hash of the only manifest that is answered in this slot, empty before there is one; `manifest` is
    that manifest as the coordinator signed it, where it is still known.
    """

    context: RoundContext
    purpose: str
    header_hash: bytes
    own_share: bytes
    upload: bytes
    digest: bytes = b""
    manifest: bytes = b""
    echo: bytes = b""
    answer: bytes = b""

    def __repr__(self) -> str:
        return f"OpenSlot(slot={self.context.slot}, purpose={self.purpose!r})"

    def fields(self) -> list[bytes]:
        """Returns what is stored."""
        return [
            self.context.epoch, self.context.spec, self.context.slot.to_bytes(4, "big"), self.purpose.encode(),
            self.header_hash, self.own_share, self.upload, self.digest, self.manifest, self.echo, self.answer,
        ]  # fmt: skip

    @classmethod
    def from_fields(cls, fields: tuple[bytes, ...]) -> OpenSlot:
        """Returns the slot stored as `fields`; raises ValueError for another number of them."""
        epoch, spec, slot, purpose, *rest = fields
        header, own_share, upload, digest, manifest, echo, answer = rest
        context = RoundContext(epoch, spec, int.from_bytes(slot, "big"))
        return cls(context, purpose.decode(), header, own_share, upload, digest, manifest, echo, answer)


def storage_keys(chain: SlotChain) -> Iterator[bytes]:
    """Yields the keys under which the held shares of the chain's slot and of those after it are stored."""
    chain = SlotChain(chain.link, chain.slot)
    while True:
        yield chain.storage_key()
        chain = chain.after(chain.slot + 1)


def crypted(key: bytes, row: bytes) -> bytes:
    """Returns the row under the key stream of `key`, which is for this row only; done twice it is undone."""
    stream = keystream(key, len(row))
    return (int.from_bytes(row, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(row), "big")


def runs_by_node(nodes: tuple[int, ...], by_slot: bytes) -> dict[int, bytes]:
    """Returns each node's run of shares out of rows that hold one share of every node."""
    row = SHARE_BYTES * len(nodes)
    return {
        node: b"".join(by_slot[at : at + SHARE_BYTES] for at in range(SHARE_BYTES * place, len(by_slot), row))
        for place, node in enumerate(nodes)
    }
