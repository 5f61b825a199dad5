"""Shamir's secret sharing of 32-byte secrets over the prime field of p = 2^256 + 297, in plain integers.

Source: Shamir 1979, "How to share a secret". p is the least prime above 2^256, so every 32-byte secret is a field
element and a share is 33 bytes, big-endian. Holder coordinates are small integers (1..65,535): products with them
stay cheap, and Horner's rule needs only one reduction a share.
"""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow.crypto.primitives import Entropy, PrimitiveFault, require_length

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
MAX_COORDINATE = 65_535
# 384 random bits reduced modulo p are within 2^-127 of uniform, and need no rejection loop.
_COEFFICIENT_BYTES = 48


def _check_coordinates(coordinates: Sequence[int]) -> None:
    if len(set(coordinates)) != len(coordinates):
        raise PrimitiveFault("share-holder-twice")
    if any(not 1 <= x <= MAX_COORDINATE for x in coordinates):
        raise PrimitiveFault("share-holder-outside")


def split(secret: bytes, coordinates: Sequence[int], threshold: int, entropy: Entropy) -> list[bytes]:
    """Returns one 33-byte share per coordinate; any `threshold` of them give back `secret` (32 bytes), fewer nothing.

    Args: coordinates: distinct, 1..65,535; threshold: 1..len(coordinates). Raises PrimitiveFault.
    """
    require_length("secret to share", secret, SECRET_BYTES)
    _check_coordinates(coordinates)
    if not 1 <= threshold <= len(coordinates):
        raise PrimitiveFault("share-threshold")
    drawn = entropy(_COEFFICIENT_BYTES * (threshold - 1))
    require_length("randomness for a sharing", drawn, _COEFFICIENT_BYTES * (threshold - 1))
    descending = [
        int.from_bytes(drawn[start : start + _COEFFICIENT_BYTES], "big") % PRIME
        for start in range(0, len(drawn), _COEFFICIENT_BYTES)
    ]
    descending.append(int.from_bytes(secret, "big"))
    shares = []
    for x in coordinates:
        value = 0
        for coefficient in descending:
            value = value * x + coefficient
        shares.append((value % PRIME).to_bytes(SHARE_BYTES, "big"))
    return shares


def parse_share(share: bytes) -> int:
    """Returns the field element of a 33-byte share; raises PrimitiveFault when it is not below p."""
    require_length("share", share, SHARE_BYTES)
    value = int.from_bytes(share, "big")
    if value >= PRIME:
        raise PrimitiveFault("bad-share")
    return value


def weights_at(target: int, coordinates: Sequence[int]) -> list[int]:
    """Returns Lagrange's weights: f(target) = sum of weight times f(coordinate), for degree < len(coordinates).

    One modular inversion serves all weights (Montgomery's trick). Raises PrimitiveFault for repeated coordinates.
    """
    _check_coordinates(coordinates)
    numerators, denominators = [], []
    for x in coordinates:
        numerator = denominator = 1
        for other in coordinates:
            if other != x:
                numerator *= target - other
                denominator *= x - other
        numerators.append(numerator % PRIME)
        denominators.append(denominator % PRIME)
    prefixes = [1]
    for denominator in denominators:
        prefixes.append(prefixes[-1] * denominator % PRIME)
    inverse = pow(prefixes[-1], -1, PRIME)
    weights = [0] * len(coordinates)
    for index in range(len(coordinates) - 1, -1, -1):
        weights[index] = numerators[index] * (inverse * prefixes[index] % PRIME) % PRIME
        inverse = inverse * denominators[index] % PRIME
    return weights


def interpolate(weights: Sequence[int], values: Sequence[int]) -> int:
    """Returns the weighted sum modulo p of as many values as weights."""
    return sum(map(int.__mul__, weights, values)) % PRIME


def combine(coordinates: Sequence[int], shares: Sequence[bytes]) -> bytes:
    """Returns the 32-byte secret at zero of the polynomial through all the given shares (exactly threshold many).

    Raises PrimitiveFault for repeated coordinates, shares out of the field, or a value that is no 32-byte secret
    (which happens only when some share is wrong).
    """
    return secret_from(weights_at(0, coordinates), [parse_share(share) for share in shares])


def secret_from(weights: Sequence[int], values: Sequence[int]) -> bytes:
    """Returns the 32-byte secret from the weights at zero and parsed shares; raises PrimitiveFault if it is longer."""
    secret = interpolate(weights, values)
    if secret >= 2**256:
        raise PrimitiveFault("shares-without-secret")
    return secret.to_bytes(SECRET_BYTES, "big")
