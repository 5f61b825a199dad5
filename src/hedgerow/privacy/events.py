# SPDX-License-Identifier: Apache-2.0
"""The events that a ledger records and that an accountant reads; a meaning, once given to a type name, never changes.

An event says what was released in terms of privacy alone: how much noise, how often, on which grid. It is enough to
account for a run without knowing the algorithm. Adjacency is always "add or remove one unit". The unit (a record, or a
person with a bounded number of rows) and the sensitivity belong to the query that was asked.

Source of the idea: google/differential-privacy, dp_accounting/dp_event.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeGuard, get_args

from hedgerow.errors import PrivacyError

LARGEST = 1e100
"""Largest number in an event, and inverse of the smallest one: costs are made of their squares."""
MAX_ORDER = 2**16
"""Orders that are tried go to 2**13, and what a divergence takes grows with its order."""


@dataclass(frozen=True)
class EventBase:
    """Base of all events: a stable type name, a dictionary form, and numbers of a bounded range.

    The range is from 1 / `LARGEST` to `LARGEST`.
    """

    type_name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            # The annotations of this file are text.
            if part.type == "int":
                _check_positive_int(part.name, value)
            elif part.type == "float":
                if isinstance(value, bool) or not isinstance(value, int | float) or not 1 / LARGEST <= value <= LARGEST:
                    range_text = f"a number from {1 / LARGEST:g} to {LARGEST:g}"
                    raise _refuse_event(f"An event's {part.name} is {value!r}; it must be {range_text}.")

    def to_dict(self) -> dict[str, Any]:
        """Return the event as a dictionary of JSON values, with its type name under ``type``."""
        # An event's fields are numbers and texts: nothing in them has to be copied.
        return {"type": self.type_name, **vars(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the event that `to_dict` wrote.

        Raises:
            PrivacyError: another type, or a missing, surplus or wrong field.
        """
        if data.get("type") != cls.type_name:
            raise _refuse_event(f"An event of type {data.get('type')!r} was read as {cls.type_name!r}.")
        values = {key: value for key, value in data.items() if key != "type"}
        expected = {field.name for field in fields(cls)}
        if set(values) != expected:
            raise _refuse_event(f"A {cls.type_name!r} event has the fields {sorted(values)}, not {sorted(expected)}.")
        return cls(**values)


@dataclass(frozen=True)
class GaussianEvent(EventBase):
    """`count` adaptive releases, each of a vector q(D) + Z with Z ~ N(0, s² I) and noise_multiplier = s / S.

    S is the L2 sensitivity of q under add/remove-one of the unit; noise_multiplier > 0 and finite, count >= 1.
    """

    noise_multiplier: float
    count: int = 1
    type_name: ClassVar[str] = "gaussian"


@dataclass(frozen=True)
class LatticeEvent(EventBase):
    """Base of events of discrete Gaussian noise: `count` adaptive releases of `length` integers each.

    noise_multiplier <= sigma / S, with sigma (an integer >= 1) and the L2 sensitivity S both in grid units. The
    accountants add what the grid costs against the continuous Gaussian (docs/proofs/discrete-gaussian.md).
    """

    noise_multiplier: float
    sigma: int
    length: int
    count: int = 1

    @classmethod
    def from_integers(cls, sigma: int, sensitivity_squared: int, length: int, count: int = 1) -> Self:
        """Make the event of integer noise `sigma` on an integer query.

        `sensitivity_squared` is the query's squared L2 sensitivity in grid units.
        """
        return cls(round_multiplier(sigma * sigma, sensitivity_squared), sigma, length, count)


@dataclass(frozen=True)
class DiscreteGaussianEvent(LatticeEvent):
    """The sum over all records plus discrete Gaussian noise N_Z(0, sigma²)."""

    type_name: ClassVar[str] = "discrete-gaussian"


@dataclass(frozen=True)
class LocalGaussianEvent(LatticeEvent):
    """A release of the local model: *every* record's vector has noise of its own before any sum.

    That noise is at least N_Z(0, sigma²) on each entry, so a vector is private by itself, no matter who sees
    it before or after it is summed. S is that of one record's vector. Adjacency is "replace by zero the statistics of
    one unit" with the number of rows of every site public. Who takes part is no secret in the local model. The noise
    of other records is not counted.
    """

    type_name: ClassVar[str] = "local-gaussian"


@dataclass(frozen=True)
class DiscreteGaussianSumEvent(EventBase):
    """Like `DiscreteGaussianEvent`, but the noise is a sum of `n_shares` independent draws from N_Z(0, share_sigma²).

    Such a sum is not a discrete Gaussian; the accountants add the difference. `n_shares` counts only the shares that
    are guaranteed to be present and unknown to the adversary (the honest survivors). Further shares only help.
    noise_multiplier <= share_sigma sqrt(n_shares) / S.
    """

    noise_multiplier: float
    share_sigma: int
    n_shares: int
    length: int
    count: int = 1
    type_name: ClassVar[str] = "discrete-gaussian-sum"

    @classmethod
    def from_shares(
        cls, share_sigma: int, n_shares: int, sensitivity_squared: int, length: int
    ) -> DiscreteGaussianSumEvent:
        """Make the event of `n_shares` integer shares on an integer query.

        `sensitivity_squared` is the query's squared L2 sensitivity in grid units.
        """
        multiplier = round_multiplier(n_shares * share_sigma * share_sigma, sensitivity_squared)
        return cls(multiplier, share_sigma, n_shares, length)


@dataclass(frozen=True)
class PureEvent(EventBase):
    """Base of events of pure differential privacy: `count` adaptive releases, each epsilon-DP.

    Each is epsilon-DP on the records it reads.

    Every unit is among these with a chance of at most `sampling_rate`, drawn for each release, independently and
    in secret; 1 when all units are. epsilon >= sensitivity / scale of the noise, in grid units, *without* sampling.
    """

    epsilon: float
    sampling_rate: float = 1.0
    count: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_rate(self.sampling_rate)


@dataclass(frozen=True)
class DiscreteLaplaceEvent(PureEvent):
    """An integer vector plus discrete Laplace noise of an integer scale; the sensitivity is that in the L1 norm."""

    type_name: ClassVar[str] = "discrete-laplace"


@dataclass(frozen=True)
class DiscreteLaplaceVectorEvent(PureEvent):
    """`DiscreteLaplaceEvent` with a bound over the whole vector: `zcdp_weight` >= sum of (v_i / scale)².

    v is the most that one unit adds, entry by entry; epsilon >= sum of |v_i| / scale as before. An entry is
    |v_i| / scale-DP by itself, and the noises are independent, so the release is (zcdp_weight / 2)-zCDP.
    """

    zcdp_weight: float = field(kw_only=True)
    type_name: ClassVar[str] = "discrete-laplace-vector"


@dataclass(frozen=True)
class SelectionEvent(PureEvent):
    """Choices by the exponential mechanism, P(c) proportional to exp(score / scale), one in each of disjoint parts.

    The sensitivity is the range over which one unit can move the scores: the largest change less the smallest, so a
    release has the bounded range epsilon. A row is in one part at most, and the parts are public. The ranges of a
    unit's rows add up, so all choices of a release together cost what one of that range does.
    """

    type_name: ClassVar[str] = "selection"


@dataclass(frozen=True)
class SampledEvent(EventBase):
    """Base of events over Poisson samples: `count` adaptive releases of `length` integers each.

    Every unit is in the sum with a chance of at most `sampling_rate`, independently, and only its node knows of
    whom that holds. The noise is a sum of `n_shares` draws from N_Z(0, share_sigma²), as in `DiscreteGaussianSumEvent`
    (one share: the coordinator's noise). noise_multiplier <= share_sigma sqrt(n_shares) / S, with S the sensitivity
    *without* sampling.

    At the rate 1 every record is in the sample: that is a Gaussian release as any other, and is accounted for as one.
    """

    noise_multiplier: float
    sampling_rate: float
    share_sigma: int
    n_shares: int
    length: int
    count: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_rate(self.sampling_rate)


@dataclass(frozen=True)
class SampledGaussianEvent(SampledEvent):
    """Releases over Poisson samples; see `SampledEvent`."""

    type_name: ClassVar[str] = "sampled-gaussian"


@dataclass(frozen=True)
class FilteredGaussianEvent(SampledEvent):
    """Releases over Poisson samples of the units still admitted by an individual Renyi filter.

    Over all releases of one filter, the Renyi divergences at `order` (2 to 2**16) of what any one unit adds sum up to
    at most `budget`; at the rate 1 these are order / 2 times its squared norms over the noise's, so that mu² <= 2
    budget / order. Events of one `scope` with one order and budget belong to one filter; a ledger's own run has
    the empty scope; where runs are added up, each has a scope of its own (`scope_events`).
    """

    order: int = 2
    budget: float = 1.0
    scope: str = ""
    type_name: ClassVar[str] = "filtered-sampled-gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.order <= MAX_ORDER or not isinstance(self.scope, str):
            raise _refuse_event(f"A filter has order {self.order!r} and scope {self.scope!r}.")


def is_sample(event: Event) -> TypeGuard[SampledEvent]:
    """Return whether a release is over a Poisson sample of less than all units."""
    # By type, not by class: a subclass may mean something else than its parent.
    is_known = type(event) is SampledGaussianEvent or type(event) is FilteredGaussianEvent
    return is_known and isinstance(event, SampledEvent) and event.sampling_rate < 1


def scope_events(events: Iterable[Event], scope: str) -> list[Event]:
    """Return one run's events, marked by `scope`: a filter's budget is spent once in each run."""
    # A ledger may hold events of several runs, each with a scope already, which must not become one.
    return [
        replace(event, scope=scope + event.scope) if isinstance(event, FilteredGaussianEvent) else event
        for event in events
    ]


@dataclass(frozen=True)
class UnnoisedEvent(EventBase):
    """A release without noise: every accountant answers epsilon = infinity."""

    type_name: ClassVar[str] = "unnoised"


Event = (
    GaussianEvent
    | DiscreteGaussianEvent
    | DiscreteGaussianSumEvent
    | LocalGaussianEvent
    | DiscreteLaplaceEvent
    | DiscreteLaplaceVectorEvent
    | SelectionEvent
    | SampledGaussianEvent
    | FilteredGaussianEvent
    | UnnoisedEvent
)

_EVENT_TYPES: dict[str, type[Event]] = {kind.type_name: kind for kind in get_args(Event)}


@lru_cache(maxsize=64)
def event_to_json(event: Event) -> str:
    """Return `to_dict` as JSON text. Cached: most rounds of a run cost the same, and a node writes each."""
    return json.dumps(event.to_dict())


def event_from_dict(data: Mapping[str, Any]) -> Event:
    """Read the event that `to_dict` wrote.

    Raises:
        PrivacyError: code "unknown-event", for a type unknown to this version.
    """
    name = data.get("type")
    if not isinstance(name, str) or name not in _EVENT_TYPES:
        raise PrivacyError("unknown-event", type=name)
    return _EVENT_TYPES[name].from_dict(data)


def round_multiplier(sigma_squared: int, sensitivity_squared: int) -> float:
    """Compute sqrt(sigma_squared / sensitivity_squared) of two positive integers, rounded down.

    Rounding down claims less noise than there is, which is the safe side.
    """
    _check_positive_int("sigma_squared", sigma_squared)
    _check_positive_int("sensitivity_squared", sensitivity_squared)
    # isqrt of the quotient scaled by 4^shift is the root's floor to `shift` bits after the point. `shift` is such that
    # the root has at least 53 significant bits, so the only further loss is the conversion to float, undone below.
    shift = max(0, 60 + (sensitivity_squared.bit_length() - sigma_squared.bit_length()) // 2)
    root = math.isqrt((sigma_squared << 2 * shift) // sensitivity_squared)
    return math.nextafter(math.ldexp(float(root), -shift), 0.0)


def _check_rate(value: float) -> None:
    if value > 1:
        raise _refuse_event(f"An event's sampling_rate is {value!r}; a chance is at most 1.")


def _check_positive_int(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _refuse_event(f"An event's {name} is {value!r}; it must be an integer of at least 1.")


def _refuse_event(what: str) -> PrivacyError:
    return PrivacyError("malformed", code="malformed-event", what=what)
