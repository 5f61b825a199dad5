"""What a node of a large roster is sent in a set-up, which docs/secure-aggregation.md quotes.

``python -m experiments secagg_cost --sizes`` prints it.
"""

from __future__ import annotations

from experiments.harness import table
from hedgerow.codec import HASH_BYTES
from hedgerow.crypto import KEY_BYTES, OVERHEAD_BYTES, SHARE_BYTES, Identity
from hedgerow.secagg import messages
from hedgerow.secagg.guarantees import MAX_NODES, default_wishes, derive
from hedgerow.secagg.masks import MIN_COLLUDERS
from hedgerow.secagg.messages import Kind, build_signed_list
from hedgerow.secagg.view import EpochRecord
from hedgerow.server.coordinator import most_slots


def setup_sizes(n_sites: int, n_slots: int = 0) -> dict[str, int]:
    """Bytes of the messages that one node is sent in a set-up of so many sites, by the heads of a table's columns.

    All sites are members; there are as many slots as there may be where none are given. The messages are encoded with
    content that is made up: their lengths do not depend on it.
    """
    n_slots = n_slots or most_slots(n_sites)
    degree = derive(n_sites, default_wishes(n_sites, least_colluders=MIN_COLLUDERS)).degree or n_sites - 1
    some, near, signer = bytes(HASH_BYTES), tuple(range(degree)), Identity(bytes(32))
    coordinator, *keys = (Identity(number.to_bytes(32, "big")).public for number in range(1, n_sites + 2))
    named = (messages.Site(f"site-{number:04}", key) for number, key in enumerate(keys))
    roster, mode = messages.Roster(coordinator, tuple(named)), messages.NoiseMode.SERVER
    parameters = messages.EpochParameters(some, 1, roster.hash(), n_slots, default_wishes(n_sites), mode)
    bundle = messages.KeyBundle(some, 0, some, some, some).to_signed(signer)
    key_list = build_signed_list(Kind.KEY_LIST, some, [bundle] * n_sites)
    nonce = messages.NonceReveal(some, 0, some, some).to_signed(signer)
    nonce_list = build_signed_list(Kind.NONCE_LIST, some, [nonce] * n_sites)
    acknowledged = messages.Acknowledgement(some, 0, near).to_signed(signer)
    ready_list = messages.ReadyList(some, (acknowledged,) * n_sites).to_bytes()
    sealed = (bytes(SHARE_BYTES * n_slots + messages.HANDED_BACK_BYTES + OVERHEAD_BYTES),) * degree
    sent = {
        "key bundles": key_list,
        "nonces, slot keys": messages.NonceDelivery(nonce_list, (bytes(KEY_BYTES * n_slots),) * degree).to_bytes(),
        "shares": messages.ShareDelivery(some, near, sealed).to_bytes(),
        "ready list": ready_list,
    }
    sizes = {name: len(message) for name, message in sent.items()}
    # The record of such an epoch, for a site that was not in it.
    origin = EpochRecord(roster, parameters, key_list, nonce_list, ready_list).to_bytes()
    return {
        "sites": n_sites, "slots": n_slots, "neighbours": degree, **sizes, "together": sum(sizes.values()),
        "the epoch that drew the seed": len(origin),
    }  # fmt: skip


def table_of_sizes() -> list[str]:
    """The table of `setup_sizes` for four rosters, in Markdown."""
    found = [setup_sizes(n_sites) for n_sites in (200, 1000, 2048, MAX_NODES)]
    rows = []
    for sizes in found:
        counts, parts = list(sizes.values())[:3], list(sizes.values())[3:]
        rows.append([*(f"{count:,}" for count in counts), *(f"{size / 2**20:.2f}" for size in parts)])
    return table(found[0], rows)
