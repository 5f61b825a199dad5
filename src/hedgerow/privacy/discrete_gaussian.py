"""Exact sampling of the discrete Gaussian N_Z(0, sigma²): P(i) proportional to exp(-i² / (2 sigma²)) on the integers.

No floating point is involved (Mironov 2012: its low bits leak), and all randomness comes from the byte source that is
passed in. The source is exact: given uniform bytes, the draws have this distribution and no other.

A batch is drawn at once, and its running time depends on the values drawn; no time per value can be seen from outside
(Jin et al. 2021, arXiv 2112.05307, on timing). The proof of what such noise costs is docs/proofs/discrete-gaussian.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hedgerow.privacy.sampling_kernels import LARGEST_SIGMA, fill_discrete_gaussian
from hedgerow.protocol.errors import PrivacyError

RandomBytes = Callable[[int], bytes]
"""Gives that many uniform random bytes: `os.urandom` at the edges, a keyed stream in experiments."""

# One request to the byte source: enough for a thousand draws at least, and small beside the machine's memory.
SMALLEST_REQUEST = 4096
_LARGEST_REQUEST = 1 << 22

# An attempt takes a few dozen bytes; one that takes a million has a probability below e^(-100 000).
LARGEST_ATTEMPT = 1 << 20

# Bytes that an average draw uses, besides those of its uniform integers below sigma (measured: 12, and 6 of those).
_BYTES_PER_DRAW = 14
_UNIFORMS_PER_DRAW = 7


def sample_discrete_gaussian(sigma: int, length: int, random_bytes: RandomBytes) -> npt.NDArray[np.int64]:
    """`length` independent draws from N_Z(0, sigma²), exact.

    Args:
        sigma: in grid units, 1 <= sigma <= 2^53; round up when it comes from a real number.
        length: >= 0.
        random_bytes: the only source of randomness; surplus bytes at its end are thrown away.

    Returns:
        (length,) int64, absolute values below 2^62.

    Raises:
        PrivacyError: on an argument out of range, or a byte source that returns too few bytes or no random ones.
    """
    return draw(GAUSSIAN, sigma, length, random_bytes)


@dataclass(frozen=True)
class Sampler:
    """What tells one kind of noise from another.

    Attributes:
        fill: the kernel: takes (bytes, size of the noise, out, entries filled), fills `out` on, and returns how many
            entries are filled now, below 0 for a draw beyond `limit`, and how many bytes it used.
        bytes_per_draw, uniforms_per_draw: what an average draw uses: single bytes, and integers below the size.
        limit: what no draw from random bytes exceeds, in words.
    """

    fill: Callable[[npt.NDArray[np.uint8], int, npt.NDArray[np.int64], int], tuple[int, int]]
    bytes_per_draw: int
    uniforms_per_draw: int
    limit: str


GAUSSIAN = Sampler(fill_discrete_gaussian, _BYTES_PER_DRAW, _UNIFORMS_PER_DRAW, "511 standard deviations")


def draw(sampler: Sampler, size: int, length: int, random_bytes: RandomBytes) -> npt.NDArray[np.int64]:
    """`length` independent draws of one kind of noise; arguments and errors as in `sample_discrete_gaussian`."""
    check_arguments(size, length)
    out = np.empty(length, dtype=np.int64)
    width = (size.bit_length() + 7) // 8
    stream = np.empty(0, dtype=np.uint8)
    filled = 0
    while filled < length:
        wanted = (length - filled) * (sampler.bytes_per_draw + sampler.uniforms_per_draw * width)
        request = max(min(max(wanted, SMALLEST_REQUEST), _LARGEST_REQUEST), stream.size)
        stream = np.concatenate([stream, request_bytes(random_bytes, request)])
        filled, used = sampler.fill(stream, size, out, filled)
        if filled < 0:
            raise unsound(f"The byte source gave a value beyond {sampler.limit}.")
        stream = stream[used:]
        if filled < length and stream.size > LARGEST_ATTEMPT:
            raise unsound(f"The byte source gave {stream.size} bytes without completing one attempt at a draw.")
    return out


def check_arguments(sigma: int, length: int) -> None:
    """Raise PrivacyError for a size of noise, or a length, out of range."""
    if isinstance(sigma, bool) or not isinstance(sigma, int) or not 1 <= sigma <= LARGEST_SIGMA:
        raise PrivacyError(
            f"The noise has sigma = {sigma!r} grid units; it must be an integer from 1 to 2^53.",
            cause="The fixed-point grid is far too coarse or too fine for the noise.",
            remedy="Choose a scale such that sigma is between a thousand and a billion grid units.",
            code="sigma-out-of-range",
        )
    if isinstance(length, bool) or not isinstance(length, int) or length < 0:
        raise PrivacyError(
            f"Noise was asked for a vector of {length!r} entries.",
            cause="The query states no length.",
            remedy="Give the number of entries as an integer of at least 0.",
            code="length-out-of-range",
        )


def request_bytes(random_bytes: RandomBytes, n_bytes: int) -> npt.NDArray[np.uint8]:
    """So many bytes from the source: uint8 [n_bytes]; PrivacyError when it gives another number."""
    content = random_bytes(n_bytes)
    if len(content) != n_bytes:
        raise unsound(f"The byte source gave {len(content)} bytes instead of {n_bytes}.")
    return np.frombuffer(content, dtype=np.uint8)


def unsound(what: str) -> PrivacyError:
    """The error for a byte source that is not random."""
    return PrivacyError(
        what,
        cause="It is not a source of uniform random bytes.",
        remedy="Use the operating system's generator (os.urandom).",
        code="unsound-randomness",
    )
