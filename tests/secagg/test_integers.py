"""The machine words: widths from bounds, two's complement at its ends, refusal one past."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.secagg.masks import decode_vector, encode_vector, require_width, require_within, width_for, wrap
from hedgerow.secagg.transitions import Code, OwnMistake, Refusal, SumAbandoned


def test_the_width_changes_exactly_at_the_sign_bit():
    """2^31 - 1 fits 32 bits, 2^31 needs 64, 2^63 fits nothing, and a bound of zero is no bound."""
    assert width_for(1) == width_for(2**31 - 1) == 32
    assert width_for(2**31) == width_for(2**63 - 1) == 64
    for bound in (2**63, 0, -1):
        with pytest.raises(Refusal) as refused:
            width_for(bound)
        assert refused.value.reason is Code.WIDTH_TOO_NARROW


@pytest.mark.parametrize(("width", "bound"), [(32, 2**31), (16, 5), (64, 2**63), (33, 5)])
def test_a_width_that_does_not_hold_the_bound_is_refused(width, bound):
    """A coordinator that announces a narrower word than the bound needs would make sums wrap silently."""
    with pytest.raises(Refusal):
        require_width(width, bound)


@pytest.mark.parametrize("width", [32, 64])
def test_the_ends_of_the_range_survive_and_one_past_is_refused(width):
    """Entries at 0 and +-bound round-trip; every word decodes, as an exact sum must not decide whether a run goes on;
    what is released is refused one past its bound.
    """
    top = 2 ** (width - 1) - 1
    vector = np.array([0, top, -top, 1, -1], np.int64)
    assert decode_vector(encode_vector(vector, 5, top, width)).tolist() == vector.tolist()
    lowest = decode_vector(np.array([1 << (width - 1)], f"<u{width // 8}"))
    assert lowest.tolist() == [-top - 1]
    for value in (top, -top):
        with pytest.raises(OwnMistake):
            encode_vector(np.array([value], np.int64), 1, top - 1, width)
        require_within(np.array([value, 0], np.int64), top)
        with pytest.raises(SumAbandoned) as abort:
            require_within(np.array([value, 0], np.int64), top - 1)
        assert abort.value.reason is Code.SUM_OUT_OF_RANGE
    with pytest.raises(SumAbandoned):
        require_within(lowest, top)


@given(
    noise=st.integers(-(2**40), 2**40), sums=st.integers(-(2**63), 2**63 - 1),
    lie=st.integers(-(2**63), 2**63 - 1), width=st.sampled_from([32, 64]),
)  # fmt: skip
def test_a_sum_that_a_lie_has_wrapped_is_still_hidden_by_its_noise(noise, sums, lie, width):
    """What is released of a sum with a liar's vector in it is a function of the noisy sum and the lie alone: no lie
    places the others' exact sum where one record decides at which end of a word it comes out.
    """
    words = np.array([(sums + lie) % 2**width], f"<u{width // 8}")
    with np.errstate(over="ignore"):
        released = wrap(decode_vector(words) + np.int64(noise), width)
    half = 2 ** (width - 1)
    assert released.tolist() == [(sums + noise + lie + half) % 2**width - half]


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=8), st.integers(0, 2**64 - 1))
def test_masking_and_unmasking_wraps_without_loss(values, mask):
    """Any mask added and taken away modulo 2^64 leaves the integers, also when the sum wraps on the way."""
    words = encode_vector(np.array(values, np.int64), len(values), 2**40, 64)
    with np.errstate(over="ignore"):
        masked = words + np.uint64(mask)
        assert decode_vector(masked - np.uint64(mask)).tolist() == values


@pytest.mark.parametrize(
    "vector",
    [np.zeros(3, np.int32), np.zeros((3, 1), np.int64), np.zeros(4, np.int64), np.zeros(3), [0, 0, 0],
     np.array([-(2**63), 0, 0])],
)  # fmt: skip
def test_other_shapes_and_types_are_refused(vector):
    """A float or a narrower integer here would be a silent loss; the least int64 has no absolute value."""
    with pytest.raises(OwnMistake):
        encode_vector(vector, 3, 2**63 - 1, 64)


def test_words_are_little_endian_on_every_machine():
    """Both byte orders are forced by name, so that a big-endian node would send the same bytes."""
    words = encode_vector(np.array([1, -2], np.int64), 2, 10, 32)
    assert words.tobytes().hex() == "01000000feffffff"
    swapped = np.array([1, -2], ">i8").astype(np.int64)
    assert encode_vector(swapped, 2, 10, 64).tobytes().hex() == "01" + "0" * 14 + "fe" + "f" * 14
