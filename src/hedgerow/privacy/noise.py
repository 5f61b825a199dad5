"""Sources of noise: the exact one for real runs, and a seeded twin for experiments, which voids the guarantee."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hedgerow.errors import PrivacyError
from hedgerow.privacy.samplers import (
    LARGEST_SIGMA,
    RandomBytes,
    sample_discrete_gaussian,
    sample_discrete_laplace,
    select,
)

_STREAM_DOMAIN = b"hedgerow/seeded-noise/1"
_BLOCK_BYTES = 1 << 13


class NoiseSource(Protocol):
    """Draws integer noise for one purpose."""

    @property
    def seeded(self) -> bool:
        """Whether the noise can be drawn again by anyone who knows a seed; a model made with it has no guarantee."""

    @property
    def approximate(self) -> bool:
        """Whether the noise is a rounded floating-point Gaussian instead of an exact discrete one."""

    def sample(self, sigma: int, length: int, purpose: str) -> npt.NDArray[np.int64]:
        """(length,) int64 draws from N_Z(0, sigma²), sigma an integer number of grid units, 1 <= sigma <= 2^53."""

    def laplace(self, scale: int, length: int, purpose: str) -> npt.NDArray[np.int64]:
        """(length,) int64 draws from the discrete Laplace of an integer scale, 1 <= scale <= 2^53."""

    def select(self, scores: Sequence[npt.NDArray[np.int64]], scale: int, purpose: str) -> npt.NDArray[np.int64]:
        """One index per part with P proportional to exp(score / scale): see `samplers.select`."""


class SystemNoise:
    """Exact discrete Gaussian noise from the byte source given, which is `os.urandom` in every real run."""

    seeded = False
    approximate = False

    def __init__(self, random_bytes: RandomBytes) -> None:
        self._random_bytes = random_bytes

    def sample(self, sigma: int, length: int, purpose: str) -> npt.NDArray[np.int64]:
        """See `NoiseSource.sample`; fresh for every call, whatever the purpose (the ledger admits each only once)."""
        return sample_discrete_gaussian(sigma, length, self._random_bytes)

    def laplace(self, scale: int, length: int, purpose: str) -> npt.NDArray[np.int64]:
        """See `NoiseSource.laplace`."""
        return sample_discrete_laplace(scale, length, self._random_bytes)

    def select(self, scores: Sequence[npt.NDArray[np.int64]], scale: int, purpose: str) -> npt.NDArray[np.int64]:
        """See `NoiseSource.select`."""
        return select(scores, scale, self._random_bytes)


class SeededNoise:
    """The same noise drawn from a seed: for experiments only.

    The draws depend on the seed and the purpose alone, not on the order of the calls, so that runs with other sites,
    engines or batches can be compared. Fitting again with the same seed on changed data cancels the noise.

    Args:
        seed: bytes, or an integer of any size.
        exact: True for the exact sampler; False for rounded NumPy Gaussians, several times faster, for large
            experiments (same on one NumPy version; variance larger by 1/12 of a grid unit squared).
    """

    seeded = True

    def __init__(self, seed: bytes | int, exact: bool = True) -> None:
        if isinstance(seed, bool) or not isinstance(seed, bytes | int):
            raise PrivacyError("seed-type", type=type(seed).__name__)
        # The two kinds are told apart, so that 97 and b"a" are different seeds.
        self._seed = b"b" + seed if isinstance(seed, bytes) else b"i" + str(seed).encode()
        self._exact = exact

    @property
    def approximate(self) -> bool:
        """See `NoiseSource.approximate`."""
        return not self._exact

    def sample(self, sigma: int, length: int, purpose: str) -> npt.NDArray[np.int64]:
        """See `NoiseSource.sample`; a longer vector for the same purpose begins with the shorter one (if exact)."""
        key = _key(self._seed, purpose)
        if self._exact:
            return sample_discrete_gaussian(sigma, length, _KeyedStream(key).read)
        if not 1 <= sigma <= LARGEST_SIGMA:
            # The exact sampler has the words for it.
            sample_discrete_gaussian(sigma, 0, _KeyedStream(key).read)
        return np.rint(_generator(key).standard_normal(length) * sigma).astype(np.int64)

    def laplace(self, scale: int, length: int, purpose: str) -> npt.NDArray[np.int64]:
        """See `NoiseSource.laplace`."""
        key = _key(self._seed, purpose)
        if self._exact:
            return sample_discrete_laplace(scale, length, _KeyedStream(key).read)
        return np.rint(_generator(key).laplace(0.0, scale, length)).astype(np.int64)

    def select(self, scores: Sequence[npt.NDArray[np.int64]], scale: int, purpose: str) -> npt.NDArray[np.int64]:
        """See `NoiseSource.select`; not exact: the largest score after Gumbel noise."""
        key = _key(self._seed, purpose)
        if self._exact:
            return select(scores, scale, _KeyedStream(key).read)
        generator = _generator(key)
        noisy = [values + generator.gumbel(0.0, scale, len(values)) for values in scores]
        return np.array([int(values.argmax()) if len(values) else -1 for values in noisy], dtype=np.int64)


class _KeyedStream:
    """Deterministic bytes: SHAKE-256 of the key and a block counter, one block after the other."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._n_blocks = 0
        self._rest = b""

    def read(self, n_bytes: int) -> bytes:
        """The next `n_bytes` of the stream."""
        parts = [self._rest]
        available = len(self._rest)
        while available < n_bytes:
            block = hashlib.shake_256(self._key + self._n_blocks.to_bytes(8, "little")).digest(_BLOCK_BYTES)
            self._n_blocks += 1
            parts.append(block)
            available += len(block)
        content = b"".join(parts)
        self._rest = content[n_bytes:]
        return content[:n_bytes]


def _generator(key: bytes) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))


def _key(seed: bytes, purpose: str) -> bytes:
    """32 bytes from the seed and the purpose; the lengths in front keep different pairs apart."""
    digest = hashlib.shake_256(_STREAM_DOMAIN)
    for part in (seed, purpose.encode()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest(32)
