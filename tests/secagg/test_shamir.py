"""Shamir's scheme against a second implementation, its threshold, its boundaries, and tampering."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow import crypto
from hedgerow.crypto import PrimitiveFault

P = 2**256 + 297


def seeded(seed: int):
    generator = random.Random(seed)
    return lambda length: generator.randbytes(length)


def combine(holders, shares):
    """The secret of exactly as many shares as the threshold."""
    return crypto.secret_from(crypto.weights_at(0, holders), [crypto.parse_share(share) for share in shares])


def by_elimination(points: list[tuple[int, int]]) -> int:
    """f(0) by Gaussian elimination of the Vandermonde system: slow, and shares no formula with Lagrange's."""
    rows = [[pow(x, power, P) for power in range(len(points))] + [y] for x, y in points]
    for column in range(len(rows)):
        pivot = next(i for i in range(column, len(rows)) if rows[i][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        inverse = pow(rows[column][column], P - 2, P)
        rows[column] = [value * inverse % P for value in rows[column]]
        for i in range(len(rows)):
            if i != column:
                factor = rows[i][column]
                rows[i] = [(a - factor * b) % P for a, b in zip(rows[i], rows[column], strict=True)]
    return rows[0][-1]


@st.composite
def sharings(draw):
    holders = draw(st.lists(st.integers(1, 65_535), min_size=1, max_size=9, unique=True))
    threshold = draw(st.integers(1, len(holders)))
    secret = draw(st.one_of(st.binary(min_size=32, max_size=32), st.sampled_from([bytes(32), b"\xff" * 32])))
    return secret, holders, threshold, seeded(draw(st.integers(0, 2**32)))


@given(sharings(), st.randoms(use_true_random=False))
def test_any_threshold_of_the_shares_reconstruct_in_any_order(sharing, order):
    """Property: every choice of `threshold` shares, in every order, gives the secret, by both implementations."""
    secret, holders, threshold, entropy = sharing
    shares = dict(zip(holders, crypto.split(secret, holders, threshold, entropy), strict=True))
    chosen = order.sample(holders, threshold)
    assert combine(chosen, [shares[x] for x in chosen]) == secret
    assert by_elimination([(x, int.from_bytes(shares[x], "big")) for x in chosen]) == int.from_bytes(secret, "big")


@given(sharings())
def test_every_subset_reconstructs(sharing):
    """Not only a chosen subset: all of them agree."""
    secret, holders, threshold, entropy = sharing
    shares = dict(zip(holders, crypto.split(secret, holders, threshold, entropy), strict=True))
    for chosen in itertools.islice(itertools.combinations(holders, threshold), 40):
        assert combine(chosen, [shares[x] for x in chosen]) == secret


def test_one_share_too_few_is_compatible_with_every_secret():
    """t-1 shares and any candidate secret lie on a polynomial of degree t-1, so they exclude nothing."""
    holders = [1, 2, 5, 9]
    shares = crypto.split(b"\x07" * 32, holders, 4, seeded(1))
    known = [(x, int.from_bytes(s, "big")) for x, s in zip(holders[:3], shares[:3], strict=True)]
    for candidate in (0, 1, 2**256 - 1):
        shifted = [1, *[x + 1 for x, _ in known]]  # so that the secret sits at 1, a legal coordinate
        fourth = crypto.interpolate(crypto.weights_at(10, shifted), [candidate, *[y for _, y in known]])
        forged = [fourth.to_bytes(33, "big")]
        assert combine(holders, shares[:3] + forged) == candidate.to_bytes(32, "big")


def test_one_share_too_few_is_uniform():
    """Chi-square over the low byte of one share of a fixed secret: no trace of the secret in t-1 = 1 share."""
    counts = [0] * 16
    for seed in range(4000):
        share = crypto.split(bytes(32), [1, 2], 2, seeded(seed))[0]
        counts[share[-1] >> 4] += 1
    chi_square = sum((count - 250) ** 2 / 250 for count in counts)
    assert chi_square < 44.3, "0.0001 quantile of chi-square with 15 degrees of freedom"


@pytest.mark.golden
def test_a_golden_sharing_keeps_its_bytes():
    """The share format is on the wire: a change of the coefficients' order or width must not pass unseen."""
    shares = crypto.split(bytes(range(32)), [1, 2, 3], 2, lambda length: bytes(range(100, 100 + length)))
    coefficient = int.from_bytes(bytes(range(100, 148)), "big") % P
    secret = int.from_bytes(bytes(range(32)), "big")
    assert [int.from_bytes(share, "big") for share in shares] == [(secret + x * coefficient) % P for x in (1, 2, 3)]


def test_the_modulus_is_prime():
    """Fermat to several bases; a composite modulus would leave some secrets without an inverse."""
    assert all(pow(base, P - 1, P) == 1 for base in (2, 3, 5, 7, 11, 13, 10**40 + 7))
    assert P.bit_length() == 257 and all(P % small for small in range(2, 10_000))


@pytest.mark.parametrize(
    "call",
    [
        lambda: crypto.split(bytes(31), [1, 2], 2, seeded(0)),
        lambda: crypto.split(bytes(32), [1, 1], 2, seeded(0)),
        lambda: crypto.split(bytes(32), [0, 1], 2, seeded(0)),
        lambda: crypto.split(bytes(32), [1, 65_536], 2, seeded(0)),
        lambda: crypto.split(bytes(32), [1, 2], 3, seeded(0)),
        lambda: crypto.split(bytes(32), [1, 2], 0, seeded(0)),
        lambda: crypto.split(bytes(32), [1, 2], 2, lambda length: bytes(length - 1)),
        lambda: crypto.parse_share(P.to_bytes(33, "big")),
        lambda: crypto.parse_share(bytes(32)),
        lambda: combine([3, 3], [bytes(33), bytes(33)]),
        lambda: crypto.secret_from([1], [2**256]),
    ],
)
def test_what_is_no_sharing_is_refused(call):
    """Repeated or zero coordinates, wrong lengths, elements outside the field: each raises, none computes on."""
    with pytest.raises(PrimitiveFault):
        call()


def test_the_largest_field_element_is_a_share():
    """The boundary: p-1 parses, p does not (above)."""
    assert crypto.parse_share((P - 1).to_bytes(33, "big")) == P - 1
