"""What a process does with its memory before others wait for it."""

from __future__ import annotations

import gc

_ROOM_BYTES = 16 << 20


def settle_memory() -> None:
    """Keep what is loaded out of the collector's way, and have room for what comes.

    To be called once code and rows are loaded, and before any secret of a run is: none may be in what the collector
    passes over.
    """
    gc.collect()
    gc.freeze()
    _make_room()


def _make_room() -> None:
    """Use some memory and give it back.

    A page that is used for the first time is found and cleared by the system, in the middle of a round. And glibc gives
    large blocks back to the system as soon as they are free, only to ask for them again in the next round; it keeps
    those up to the size of the largest one that it has given back.
    """
    for _ in range(2):
        # The first block raises that size; the second one is then kept. Zeros alone would not touch a page.
        bytearray(b"\x01") * _ROOM_BYTES
