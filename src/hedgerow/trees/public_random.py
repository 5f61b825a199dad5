"""Public randomness: a stream that anyone can expand again from the plan's seed.

Trees are drawn from it, so a node can check that the coordinator did not pick them. It is SHAKE-256 of the seed and a
label, read as 64-bit words: the same on every machine and in every release, which numpy's generators do not promise.
It must never be used for noise, masks or subsampling.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")
WORDS_PER_REFILL = 512
_FIRST_WORDS = 64
"""Most streams are never asked for more; a longer output of SHAKE-256 begins with the shorter one."""


def words_of(content: bytes) -> NDArray[np.uint64]:
    """Bytes of a stream as its words: uint64 [len(content) / 8]."""
    return np.frombuffer(content, dtype="<u8").astype(np.uint64)


class PublicRandom:
    """A deterministic stream of integers.

    Args:
        seed: the plan's structure seed, a non-negative integer.
        label: separates the streams of one seed, e.g. "tree 17".
    """

    def __init__(self, seed: int, label: str) -> None:
        self._key = f"hedgerow public randomness v1|{seed}|{label}".encode()
        self._refills = 0
        self._is_short = False
        self._words: list[int] = []

    def _word(self) -> int:
        if not self._words:
            if self._is_short:
                self._is_short, self._words = False, self._block(0, WORDS_PER_REFILL)[:-_FIRST_WORDS]
            else:
                self._is_short = self._refills == 0
                self._words = self._block(self._refills, _FIRST_WORDS if self._is_short else WORDS_PER_REFILL)
                self._refills += 1
        return self._words.pop()

    def first_words(self, count: int) -> NDArray[np.uint64]:
        """The first `count` words of the stream, whatever was taken of it: uint64 [count]."""
        return words_of(self.first_bytes(count))

    def first_bytes(self, count: int) -> bytes:
        """The same words before `words_of` reads them; those of several streams are read at once."""
        sizes = [8 * min(WORDS_PER_REFILL, count - start) for start in range(0, count, WORDS_PER_REFILL)]
        streams = [hashlib.shake_256(self._key + b"|%d" % block) for block in range(len(sizes))]
        return b"".join([stream.digest(size) for stream, size in zip(streams, sizes, strict=True)])

    def _block(self, refill: int, n_words: int) -> list[int]:
        """The first words of a block of the stream, last one first."""
        block = hashlib.shake_256(self._key + b"|%d" % refill).digest(8 * n_words)
        return list(struct.unpack(f"<{n_words}Q", block))[::-1]

    def _take(self, count: int) -> list[int]:
        """The next `count` words."""
        if count > len(self._words):
            return [self._word() for _ in range(count)]
        taken = self._words[len(self._words) - count :]
        del self._words[len(self._words) - count :]
        taken.reverse()
        return taken

    def below(self, limit: int) -> int:
        """An integer in [0, limit), for 1 <= limit <= 2**32; its bias is below 2**-32."""
        return (self._word() * limit) >> 64

    def coin(self) -> bool:
        """True or false, evenly."""
        return bool(self._word() & 1)

    def permutation(self, size: int) -> list[int]:
        """0 .. size-1 in random order (Fisher and Yates)."""
        order = list(range(size))
        words = self._take(max(0, size - 1))
        for last, word in zip(range(size - 1, 0, -1), words, strict=False):
            other = (word * (last + 1)) >> 64
            order[last], order[other] = order[other], order[last]
        return order

    def sample(self, items: Sequence[Item], size: int) -> list[Item]:
        """`size` distinct items, in random order."""
        return [items[index] for index in self.permutation(len(items))[:size]]

    def weighted(self, weights: Sequence[int]) -> int:
        """An index, drawn in proportion to non-negative integer weights, not all zero."""
        target = self.below_big(sum(weights))
        for index, weight in enumerate(weights):
            target -= weight
            if target < 0:
                return index
        raise ValueError("weights must not all be zero")

    def below_big(self, limit: int) -> int:
        """An integer in [0, limit) for limits up to 2**96; its bias is below 2**-32."""
        return (((self._word() << 64) | self._word()) * limit) >> 128
