# SPDX-License-Identifier: Apache-2.0
"""The ledger: one line per release, append-only, at most one release per purpose; accountants read nothing else.

What was released before a run counts with it: a plan's [[prepared]] releases. Bounds, the number of records and classes
may be found by noisy sums instead of being declared (`hedgerow.survey`). The plan that they are written into names
these sums, so that its digest, the noise of its training, its ledger and every report hold them as well. Nothing that
was spent can be lost between the two.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from hedgerow.errors import PrivacyError
from hedgerow.plan.fields import read_json
from hedgerow.plan.plan import Plan, Prepared
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    DiscreteLaplaceVectorEvent,
    Event,
    LatticeEvent,
    LocalGaussianEvent,
    PureEvent,
    SampledEvent,
    UnnoisedEvent,
    event_from_dict,
    scope_events,
)
from hedgerow.protocol.queries import NoiseCohort, Purpose

LEDGER_VERSION = 2
"""Version 1 did not know what stands in `_SINCE_2`; a ledger without any is still written as 1."""
_SITE_SUMS = "SiteSums"
_VOTES = "SiteVotes"
EVALUATION_KINDS = ("ScoreHistogram", "ErrorMoments", "DevianceMoments", "GroupedSums", _SITE_SUMS)
"""Kinds of releases that an evaluation makes and a training does not, as ledgers name them."""
RECALIBRATION = "recalibration"
"""The subject of releases by which a finished model was given another level and slope."""
AT_ONE_SITE = "evaluation at one site"
"""Beginning of the subject of an evaluation made by one site alone."""
_SINCE_2 = ("cohort", "seeded", "approximate", "figures")

# An event may claim no more noise than sigma / sensitivity; the tolerance covers the rounding of a square root.
_MULTIPLIER_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Release:
    """A noisy vector, as it left the aggregation.

    Attributes:
        purpose: what it is for; unique within a run.
        round: the round in which it was released, >= 0.
        kind: the query's kind, e.g. ``LeafSums``.
        event: what the accountants are to charge.
        length: entries of the vector, >= 1.
        sensitivity: L2 sensitivity in grid units under add/remove-one of the unit, > 0; for events of pure
            differential privacy the one that the event's type names.
        sigma: standard deviation of the whole noise in grid units, >= 0 (0 only with an UnnoisedEvent); for events of
            pure differential privacy the scale of the noise.
        cohort: with noise of the sites, those that could be in the sum; None for other noise, and in old ledgers.
        seeded: whether the noise came from a seed.
        approximate: whether it was a rounded floating-point Gaussian.
        figures: of an evaluation, a digest of what was released: its fresh noise tells it from any other of that model.

    Raises:
        PrivacyError: if a field is out of range or the event claims more noise than sigma / sensitivity, or other
            shares of it than the cohort promises.
    """

    purpose: str
    round: int
    kind: str
    event: Event
    length: int
    sensitivity: float
    sigma: float
    cohort: NoiseCohort | None = None
    seeded: bool = False
    approximate: bool = False
    figures: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.purpose, str) or not self.purpose or self.round < 0 or self.length < 1:
            raise _refuse_ledger(f"The release {self.purpose!r} has round {self.round} and length {self.length}.")
        if not (math.isfinite(self.sensitivity) and self.sensitivity > 0):
            raise _refuse_ledger(
                f"The release {self.purpose!r} has sensitivity {self.sensitivity!r}; it must be above 0."
            )
        shares = getattr(self.event, "n_shares", 0)
        if self.cohort is not None and self.cohort.n_shares != shares:
            raise _refuse_ledger(
                f"The release {self.purpose!r} counts {shares} shares of noise; its cohort has {self.cohort.n_shares}."
            )
        if getattr(self.event, "length", self.length) != self.length:
            raise _refuse_ledger(
                f"The release {self.purpose!r} has {self.length} entries, and its event another number."
            )
        if isinstance(self.event, UnnoisedEvent):
            return
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise _refuse_ledger(f"The release {self.purpose!r} has sigma {self.sigma!r}; noise must be above 0.")
        if isinstance(self.event, PureEvent):
            if self.event.epsilon < self.sensitivity / self.sigma * (1 - _MULTIPLIER_TOLERANCE):
                raise _refuse_ledger(
                    f"The release {self.purpose!r} claims epsilon {self.event.epsilon!r}, but sensitivity / scale is "
                    f"{self.sensitivity / self.sigma!r}."
                )
            if isinstance(self.event, DiscreteLaplaceVectorEvent):
                # No vector of this length and this L1 norm has a smaller L2 norm.
                least = (self.sensitivity / self.sigma) ** 2 / self.length
                if self.event.zcdp_weight < least * (1 - _MULTIPLIER_TOLERANCE):
                    raise _refuse_ledger(
                        f"The release {self.purpose!r} claims the weight {self.event.zcdp_weight!r}, but no vector of "
                        f"its length has less than {least!r}."
                    )
            return
        # Standard deviation of the noise that an event of integers states, in grid units; None if it states none.
        stated = float(self.event.sigma) if isinstance(self.event, LatticeEvent) else None
        if isinstance(self.event, DiscreteGaussianSumEvent | SampledEvent):
            stated = self.event.share_sigma * math.sqrt(self.event.n_shares)
        if stated is not None and not math.isclose(stated, self.sigma, rel_tol=_MULTIPLIER_TOLERANCE):
            raise _refuse_ledger(f"The release {self.purpose!r} has sigma {self.sigma!r}; its event has {stated!r}.")
        if self.event.noise_multiplier > self.sigma / self.sensitivity * (1 + _MULTIPLIER_TOLERANCE):
            raise _refuse_ledger(
                f"The release {self.purpose!r} claims the noise multiplier {self.event.noise_multiplier!r}, "
                f"but sigma / sensitivity is {self.sigma / self.sensitivity!r}."
            )

    @property
    def is_recalibration(self) -> bool:
        """True for a recalibration of a finished model on one site's rows."""
        return self._subject == RECALIBRATION

    @property
    def is_at_one_site(self) -> bool:
        """True for a release about a finished model by a single site, from sums seen by nobody else."""
        is_evaluation = self.kind in EVALUATION_KINDS and self._subject.startswith(AT_ONE_SITE)
        return self.is_recalibration or is_evaluation

    @property
    def _subject(self) -> str:
        return self.purpose.partition("/")[2].partition("/")[2]

    @property
    def is_later(self) -> bool:
        """True for a release after the training."""
        return self.kind in EVALUATION_KINDS or self.is_recalibration

    @property
    def is_by_site(self) -> bool:
        """True if each site added the noise to its own part."""
        return self.kind == _SITE_SUMS and isinstance(self.event, DiscreteGaussianEvent)

    @property
    def is_vote(self) -> bool:
        """True for the votes that sites cast beside a round's sums: no round of its own."""
        return self.kind == _VOTES

    @property
    def noise_mode(self) -> str:
        """Origin of the noise: a plan's mode, "site", "alone", or "" for no noise.

        "site": each site added noise to its own part. "alone": one site made the release by itself.
        """
        if isinstance(self.event, UnnoisedEvent):
            return ""
        if isinstance(self.event, LocalGaussianEvent):
            return "local"
        has_shares = hasattr(self.event, "n_shares")
        if self.is_at_one_site and not has_shares:
            return "alone"
        if self.is_by_site or self.is_vote:
            return "site"
        return "distributed" if has_shares else "server"

    def to_dict(self) -> dict[str, Any]:
        """Return the release as a dictionary of JSON values."""
        content: dict[str, Any] = {
            "purpose": self.purpose,
            "round": self.round,
            "kind": self.kind,
            "event": self.event.to_dict(),
            "length": self.length,
            "sensitivity": self.sensitivity,
            "sigma": self.sigma,
        }
        if self.cohort is not None:
            content["cohort"] = self.cohort.to_dict()
        # Omitted if empty, so that old ledgers keep their bytes.
        return content | {name: own for name in ("seeded", "approximate", "figures") if (own := getattr(self, name))}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Release:
        """Read the release that `to_dict` wrote.

        Raises:
            PrivacyError: an unknown event, or a malformed release.
        """
        try:
            values = {name: data[name] for name in cls.__dataclass_fields__ if name not in _SINCE_2}
            flags = {name: data.get(name, False) for name in ("seeded", "approximate")}
            if not all(isinstance(flag, bool) for flag in flags.values()):
                raise TypeError("a flag is no boolean")
            content, figures = data.get("cohort"), str(data.get("figures", ""))
            cohort = None if content is None else NoiseCohort.from_dict(content)
            values |= {"event": event_from_dict(data["event"]), "cohort": cohort, "figures": figures}
            return cls(**values, **flags)
        except (KeyError, TypeError, ValueError, AttributeError) as fault:
            raise _refuse_ledger(f"A release in the ledger cannot be read ({fault!r}).") from fault


@dataclass(frozen=True)
class Ledger:
    """An immutable sequence of releases; `append` gives a new ledger and refuses a purpose released before."""

    releases: tuple[Release, ...] = ()
    # Shared with longer ledgers made from this one, so it may also hold their purposes.
    _purposes: set[str] = field(init=False, repr=False, compare=False, default_factory=set)

    def __post_init__(self) -> None:
        for release in self.releases:
            _refuse_second(release.purpose, self._purposes)
            self._purposes.add(release.purpose)

    def append(self, release: Release) -> Ledger:
        """Return a ledger with one more release; this one stays as it is.

        Raises:
            PrivacyError: code "purpose-released-twice".
        """
        is_latest = len(self._purposes) == len(self.releases)
        purposes = self._purposes if is_latest else {earlier.purpose for earlier in self.releases}
        _refuse_second(release.purpose, purposes)
        purposes.add(release.purpose)
        # Bypass the constructor, which would read every purpose again: a run appends thousands of times.
        longer = object.__new__(Ledger)
        object.__setattr__(longer, "releases", (*self.releases, release))
        object.__setattr__(longer, "_purposes", purposes)
        return longer

    def with_run(self, run: str, releases: Sequence[Release], n_before: int) -> Ledger:
        """Return a ledger with another run's releases appended, numbered on after this ledger's own.

        Releases of that run that this ledger holds already are not repeated.

        Args:
            run: what tells that run from others; it begins the subject of each purpose.
            releases: all of that run, in its order.
            n_before: releases at the beginning of this ledger that were made before its own run, and are not numbered.
        """
        ledger, n_held = self, sum(f"/{run}, " in release.purpose for release in self)
        for release in releases[n_held:]:
            place, (_, kind, subject) = ledger.n_rounds - n_before, release.purpose.split("/", 2)
            # Votes follow the sums of their round.
            place -= release.is_vote
            (event,) = scope_events([release.event], run)
            purpose = str(Purpose(place, kind, f"{run}, {subject}"))
            ledger = ledger.append(replace(release, purpose=purpose, round=place, event=event))
        return ledger

    def events(self) -> Iterator[Event]:
        """Iterate over the events of all releases, in order, as accountants charge them."""
        return (release.event for release in self.releases)

    @property
    def n_rounds(self) -> int:
        """The number of releases that are rounds of their own: all but votes."""
        return sum(not release.is_vote for release in self.releases)

    def __len__(self) -> int:
        return len(self.releases)

    def __iter__(self) -> Iterator[Release]:
        return iter(self.releases)

    def to_json(self) -> str:
        """Return the ledger as one versioned JSON text; equal ledgers give equal bytes."""
        releases = [release.to_dict() for release in self.releases]
        is_new = any(name in release for release in releases for name in _SINCE_2)
        content = {"version": LEDGER_VERSION if is_new else 1, "releases": releases}
        return json.dumps(content, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """Read the ledger that `to_json` wrote.

        Raises:
            PrivacyError: broken text, a newer version or a repeated purpose.
        """
        try:
            content = read_json(text)
        except ValueError as fault:
            raise _refuse_ledger(f"The ledger is not JSON ({fault}).") from fault
        if not isinstance(content, dict) or content.get("version") not in range(1, LEDGER_VERSION + 1):
            version = content.get("version") if isinstance(content, dict) else None
            raise _refuse_ledger(f"The ledger has version {version!r}; this hedgerow reads 1 to {LEDGER_VERSION}.")
        releases = content.get("releases")
        if not isinstance(releases, list):
            raise _refuse_ledger("The ledger has no list of releases.")
        return cls(tuple(Release.from_dict(release) for release in releases))


def _refuse_second(purpose: str, seen: frozenset[str] | set[str]) -> None:
    if purpose in seen:
        raise PrivacyError("purpose-released-twice", purpose=purpose)


def _refuse_ledger(what: str) -> PrivacyError:
    return PrivacyError("malformed", code="malformed-ledger", what=what)


def read_prepared_ledger(plan: Plan) -> Ledger:
    """Return the ledger at the start of a plan's run: the plan's prepared releases, usually none."""
    return Ledger(_read_releases(plan.prepared))


def read_prepared_events(plan: Plan) -> list[Event]:
    """Return the events of the releases made before the run, as the plan states them."""
    return [release.event for release in _read_releases(plan.prepared)]


def write_prepared_tables(
    releases: Iterable[Release], unit: str, rows_per_unit: int, run: bytes = b""
) -> list[dict[str, Any]]:
    """Releases of a survey as the plan's [[prepared]] tables; `read_prepared_ledger` reads them back.

    `unit` and `rows_per_unit` are what the releases' sensitivities are of, and `run` is the run over nodes that they
    are of, as in `Prepared`.

    Raises:
        PrivacyError: code "malformed-ledger", for a release that is no Gaussian sum.
    """
    about = {"unit": unit, "rows_per_unit": rows_per_unit} | ({"run": run.hex()} if run else {})
    return [_write_table(release) | about for release in releases]


@lru_cache(maxsize=8)
def _read_releases(prepared: tuple[Prepared, ...]) -> tuple[Release, ...]:
    return tuple(_read_release(number, each) for number, each in enumerate(prepared))


def _read_release(number: int, prepared: Prepared) -> Release:
    if prepared.kind in EVALUATION_KINDS or prepared.subject == RECALIBRATION:
        # A report would count it as a release after the training, where another party may add the noise.
        raise PrivacyError(
            "malformed", code="malformed-ledger", what=f"No {prepared.kind} about a model comes before its training."
        )
    cohort = NoiseCohort(prepared.sites, prepared.colluders, prepared.shares) if prepared.shares else None
    return Release(
        purpose=str(Purpose(number, prepared.kind, prepared.subject)),
        round=number,
        kind=prepared.kind,
        event=_read_event(prepared),
        length=prepared.length,
        sensitivity=math.sqrt(prepared.sensitivity_squared),
        sigma=math.sqrt(prepared.sigma * prepared.sigma * max(1, prepared.shares)),
        cohort=cohort if prepared.sigma else None,
        seeded=prepared.seeded,
        approximate=prepared.approximate,
    )


def _read_event(prepared: Prepared) -> Event:
    noise = (prepared.sensitivity_squared, prepared.length)
    if not prepared.sigma:
        return UnnoisedEvent()
    if prepared.shares:
        return DiscreteGaussianSumEvent.from_shares(prepared.sigma, prepared.shares, *noise)
    kind = LocalGaussianEvent if prepared.noise == "local" else DiscreteGaussianEvent
    return kind.from_integers(prepared.sigma, *noise)


def _write_table(release: Release) -> dict[str, Any]:
    event, (_, kind, subject) = release.event, release.purpose.split("/", 2)
    table: dict[str, Any] = {
        "kind": kind,
        "subject": subject,
        "length": release.length,
        "sensitivity_squared": _round_square(release.sensitivity),
        "sigma": 0,
        "seeded": release.seeded,
        "approximate": release.approximate,
    }
    if isinstance(event, DiscreteGaussianSumEvent) and release.cohort is not None:
        shares = {"sites": release.cohort.n_sites, "colluders": release.cohort.n_colluders, "shares": event.n_shares}
        return table | shares | {"sigma": event.share_sigma, "noise": "distributed"}
    if isinstance(event, LocalGaussianEvent):
        return table | {"sigma": event.sigma, "noise": "local"}
    if isinstance(event, DiscreteGaussianEvent):
        return table | {"sigma": event.sigma}
    if isinstance(event, UnnoisedEvent):
        return table
    raise PrivacyError(
        "malformed", code="malformed-ledger", what=f"The release {release.purpose!r} is no sum that a plan can name."
    )


def _round_square(sensitivity: float) -> int:
    """Return the integer squared sensitivity behind a sensitivity, never less.

    A double does not tell the roots of large neighbouring integers apart.
    """
    squared = round(sensitivity * sensitivity)
    while math.sqrt(squared) < sensitivity:
        squared += 1
    return squared
