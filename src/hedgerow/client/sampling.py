"""Which records a node draws for a round: a Poisson sample that nobody else knows.

The privacy of a sampled release rests on this secret: whoever knew who was drawn would see full releases. So real runs
draw from the operating system, anew for every answer, and nothing about a sample is stored or sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.queries import SAMPLING_STEPS

RandomBytes = Callable[[int], bytes]


class SamplingSource(Protocol):
    """Draws Poisson samples."""

    @property
    def seeded(self) -> bool:
        """Whether the samples can be drawn again by whoever knows a seed; they then amplify nothing."""

    def draw(self, threshold: int, n_records: int, purpose: str) -> NDArray[np.bool_]:
        """Who is drawn, each with a chance of threshold / SAMPLING_STEPS: bool [n_records].

        Args:
            threshold: 1 to SAMPLING_STEPS.
            n_records: how many.
            purpose: of the query.
        """


class SystemSampling:
    """Samples from the byte source given, which is `os.urandom` in every real run."""

    seeded = False

    def __init__(self, random_bytes: RandomBytes) -> None:
        self._random_bytes = random_bytes

    def draw(self, threshold: int, n_records: int, purpose: str) -> NDArray[np.bool_]:
        """See `SamplingSource.draw`."""
        if threshold == SAMPLING_STEPS:
            return np.ones(n_records, dtype=np.bool_)
        words = np.frombuffer(self._random_bytes(4 * n_records), dtype="<u4")
        return words < np.uint64(threshold)


class SeededSampling:
    """Samples that depend on a seed, the purpose and a record's own number: the same however records are divided.

    For experiments and tests; a model made with it has no guarantee.

    Args:
        seed: any integer.
        numbers: uint64 [n], the numbers of this site's records, distinct over all sites.
    """

    seeded = True

    def __init__(self, seed: int, numbers: NDArray[np.integer[Any]]) -> None:
        self._seed, self._numbers = seed, numbers.astype(np.uint64)

    def draw(self, threshold: int, n_records: int, purpose: str) -> NDArray[np.bool_]:
        """See `SamplingSource.draw`."""
        told = hashlib.sha256(f"hedgerow/seeded-sampling/1|{self._seed}|{purpose}".encode()).digest()
        keys = [np.uint64(int.from_bytes(told[i : i + 8], "little")) for i in (0, 8)]
        numbers = self._numbers[:n_records]
        if len(numbers) != n_records:
            raise ValueError("there are more records than numbers")
        return (_mixed(_mixed(numbers ^ keys[0]) ^ keys[1]) >> np.uint64(32)) < np.uint64(threshold)


def seeded_samplings(seed: int, sizes: Mapping[str, int]) -> dict[str, SamplingSource]:
    """A seeded source for each of some sites, whose records are numbered one site after the other.

    Args:
        seed: any integer.
        sizes: records of each site, in the order of the numbers.
    """
    sources: dict[str, SamplingSource] = {}
    first = 0
    for site, size in sizes.items():
        sources[site] = SeededSampling(seed, np.arange(first, first + size))
        first += size
    return sources


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of splitmix64, modulo 2**64."""
    mixed = words + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
