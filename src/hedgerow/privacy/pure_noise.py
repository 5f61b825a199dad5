"""Exact sampling for pure differential privacy: the discrete Laplace, and choices by the exponential mechanism.

As in `hedgerow.privacy.discrete_gaussian`, no floating point is involved, and all randomness comes from the byte source
that is passed in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hedgerow.privacy.discrete_gaussian import (
    LARGEST_ATTEMPT,
    SMALLEST_REQUEST,
    RandomBytes,
    Sampler,
    check_arguments,
    draw,
    request_bytes,
    unsound,
)
from hedgerow.privacy.laplace_kernels import attempt_selection, fill_discrete_laplace
from hedgerow.privacy.sampling_kernels import END_OF_STREAM
from hedgerow.protocol.errors import PrivacyError
from hedgerow.protocol.pure_queries import LARGEST_SCORE

_LAPLACE = Sampler(fill_discrete_laplace, bytes_per_draw=12, uniforms_per_draw=4, limit="256 scales")


def sample_discrete_laplace(scale: int, length: int, random_bytes: RandomBytes) -> npt.NDArray[np.int64]:
    """`length` independent draws with P(x) proportional to exp(-|x| / scale) on the integers, exact.

    Args:
        scale: in grid units, 1 <= scale <= 2^53; round up when it comes from a real number.
        length: >= 0.
        random_bytes: the only source of randomness; surplus bytes at its end are thrown away.

    Returns:
        (length,) int64.

    Raises:
        PrivacyError: on an argument out of range, or a byte source that returns too few bytes or no random ones.
    """
    return draw(_LAPLACE, scale, length, random_bytes)


def select(
    scores: Sequence[npt.NDArray[np.int64]], scale: int, random_bytes: RandomBytes
) -> npt.NDArray[np.int64]:
    """One choice per part by the exponential mechanism: index i with P proportional to exp(scores[i] / scale), exact.

    The same distribution as the largest score after Gumbel noise of that scale ("report noisy max" in log space),
    without a logarithm: an index is drawn uniformly and kept with probability exp(-(best score - its score) / scale).

    Args:
        scores: per part int64 [n_candidates], n_candidates from 0 to 2^32; magnitudes at most 2^61.
        scale: 1 <= scale <= 2^53.
        random_bytes: as in `sample_discrete_laplace`.

    Returns:
        int64 [len(scores)]; -1 for a part without candidates.

    Raises:
        PrivacyError: as `sample_discrete_laplace`.

    Source: McSherry & Talwar 2007; the sampler of exp(-x) as for the discrete Laplace.
    """
    check_arguments(scale, len(scores))
    chosen = np.full(len(scores), -1, dtype=np.int64)
    stream, position = np.empty(0, dtype=np.uint8), 0
    for part, values in enumerate(scores):
        if not len(values):
            continue
        if int(np.abs(values).max()) > LARGEST_SCORE:
            raise PrivacyError(
                "A score is beyond 2^61.",
                cause="It was scaled up too far.",
                remedy="Count scores in coarser units.",
                code="score-out-of-range",
            )
        gaps = np.asarray(int(values.max()) - values, dtype=np.int64)
        while chosen[part] < 0:
            index, after = attempt_selection(stream, position, gaps, scale)
            if after == END_OF_STREAM:
                if stream.size - position > LARGEST_ATTEMPT:
                    raise unsound("The byte source gave a megabyte without completing one attempt at a choice.")
                fresh = request_bytes(random_bytes, max(SMALLEST_REQUEST, stream.size - position))
                stream, position = np.concatenate([stream[position:], fresh]), 0
                continue
            chosen[part], position = index, after
    return chosen
