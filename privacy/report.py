"""What a run promises, in numbers for machines and in plain words for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.events import Event, LocalGaussianEvent, SelectionEvent, UnnoisedEvent
from hedgerow.privacy.ledger import Ledger
from hedgerow.protocol.errors import PrivacyError

ADJACENCY = "add or remove one"
LOCAL_ADJACENCY = "replace by zero the statistics of one"
"""In the local model it is no secret how many rows each site has."""
NOISE_MODES = ("server", "distributed", "local")

# JSON has no infinity.
_INFINITE = "infinite"
_FLOATS = ("epsilon_requested", "epsilon_gdp", "epsilon_rdp", "epsilon_own", "delta")
_OWN_WORDS = {"pure": "pure differential privacy, no delta needed", "pld": "privacy loss distributions"}


@dataclass(frozen=True)
class PrivacyContext:
    """What the ledger does not say about a run.

    Args:
        delta: in (0, 1).
        epsilon_requested: what the plan asked for; None when it set the noise directly.
        accountant: the accountant whose epsilon was promised.
        unit: ``record``, or the column that names the person or thing that is protected.
        max_rows_per_unit: rows of one unit that were used at most, >= 1.
        noise_mode: ``server``, ``distributed`` or ``local``.
        honest_sites: with distributed noise, the sites whose shares were counted; None with server noise.
        seeded: whether the noise came from a seed.
        approximate_noise: whether the noise was a rounded floating-point Gaussian.
        bounds_from_data: whether bounds or categories were read off the data.
        candidates_from_data: whether split candidates were; the counts that they came from are in the ledger.
    """

    delta: float
    epsilon_requested: float | None = None
    accountant: str = "gdp"
    unit: str = "record"
    max_rows_per_unit: int = 1
    noise_mode: str = "server"
    honest_sites: int | None = None
    seeded: bool = False
    approximate_noise: bool = False
    bounds_from_data: bool = False
    candidates_from_data: bool = False


@dataclass(frozen=True)
class PrivacyReport:
    """The privacy of one run; the fields of `PrivacyContext` and what the accountants found.

    Args:
        epsilon_gdp: spent at delta, by exact accounting of Gaussian noise, or by the Renyi bound of all releases when
            some were over samples; infinity if something left un-noised.
        epsilon_rdp: the same by Renyi differential privacy.
        epsilon_own: the same by the plan's accountant, if it is neither of these; else None.
        n_choices: releases that are choices which the coordinator made from exact sums.
        n_releases: noisy vectors that left the aggregation.
        adjacency: what neighbouring data sets are.
    """

    epsilon_requested: float | None
    epsilon_gdp: float
    epsilon_rdp: float
    delta: float
    n_releases: int
    accountant: str = "gdp"
    unit: str = "record"
    max_rows_per_unit: int = 1
    adjacency: str = ADJACENCY
    noise_mode: str = "server"
    honest_sites: int | None = None
    seeded: bool = False
    approximate_noise: bool = False
    bounds_from_data: bool = False
    epsilon_own: float | None = None
    n_choices: int = 0
    candidates_from_data: bool = False

    def __post_init__(self) -> None:
        get_accountant(self.accountant)
        if self.noise_mode not in NOISE_MODES:
            raise PrivacyError(
                f"The noise mode is {self.noise_mode!r}.",
                cause="The plan misspells it, or a newer version wrote the report.",
                remedy=f"Use one of {', '.join(NOISE_MODES)}.",
                code="unknown-noise-mode",
            )

    @property
    def epsilon(self) -> float:
        """The epsilon spent, by the accountant of the plan."""
        if self.epsilon_own is not None:
            return self.epsilon_own
        return self.epsilon_gdp if self.accountant == "gdp" else self.epsilon_rdp

    @property
    def voided_by(self) -> tuple[str, ...]:
        """Why the guarantee does not hold; empty when it does."""
        reasons = []
        if self.epsilon == math.inf:
            reasons.append("something left the aggregation without noise")
        if self.seeded:
            reasons.append("the noise came from a seed and can be drawn again (experimental)")
        if self.approximate_noise:
            reasons.append("the noise was an approximate floating-point Gaussian (experimental)")
        if self.bounds_from_data:
            reasons.append("bounds or categories were read off the private data")
        if self.candidates_from_data:
            reasons.append("split candidates are exact quantiles of the private data (for comparison)")
        return tuple(reasons)

    @property
    def guarantee(self) -> str:
        """``holds`` or ``void``."""
        return "void" if self.voided_by else "holds"

    @property
    def trust(self) -> str:
        """Whom the guarantee asks one to trust, as a sentence."""
        if self.noise_mode == "server":
            chooses = (
                f"In {self.n_choices} of the releases it chooses from exact sums, and is trusted to do so by the "
                "exponential mechanism. "
                if self.n_choices
                else ""
            )
            return (
                "The coordinator adds the noise: it sees the exact sums over all sites, and is trusted to add the "
                f"noise and to keep those sums to itself. {chooses}The guarantee holds against everybody else."
            )
        if self.noise_mode == "local":
            return (
                "Each record's node adds the noise, to every record's statistics by themselves, before anything leaves "
                "it: there is no trust in anyone but one's own node. How many rows each site has is taken to be known."
            )
        sites = f"at least {self.honest_sites} sites" if self.honest_sites else "enough sites"
        return (
            f"The sites add the noise: the guarantee holds against the coordinator as well, as long as {sites} follow "
            "the protocol and do not tell others their share of the noise."
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as a dictionary of JSON values, with ``guarantee``, ``voided_by`` and ``trust`` spelled out."""
        content = asdict(self)
        if self.epsilon_own is None:
            del content["epsilon_own"]
        if self.n_choices == 0:
            del content["n_choices"]
        if not self.candidates_from_data:
            del content["candidates_from_data"]
        for name in _FLOATS:
            if content.get(name) == math.inf:
                content[name] = _INFINITE
        return {**content, "guarantee": self.guarantee, "voided_by": list(self.voided_by), "trust": self.trust}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PrivacyReport:
        """The inverse of `to_dict`; what follows from the rest is derived again, not read. Raises PrivacyError."""
        try:
            # These are left out where they say nothing, as in every report before there were others.
            optional = {"epsilon_own": None, "n_choices": 0, "candidates_from_data": False}
            values = {field.name: data[field.name] for field in fields(cls) if field.name not in optional}
            values |= {name: data.get(name, default) for name, default in optional.items()}
        except KeyError as missing:
            raise PrivacyError(
                f"The privacy report lacks {missing}.",
                cause="It was cut off or written by another version.",
                remedy="Read it with the version that wrote it.",
                code="malformed-report",
            ) from missing
        for name in _FLOATS:
            values[name] = math.inf if values[name] == _INFINITE else values[name]
        return cls(**values)

    def text(self) -> str:
        """The report for a person: some lines of plain words, without a newline at the end."""
        lines = [f"Privacy guarantee: {'HOLDS' if self.guarantee == 'holds' else 'VOID'}"]
        lines += [f"  ! {reason[0].upper()}{reason[1:]}." for reason in self.voided_by]
        lines.append(f"  epsilon spent     {_number(self.epsilon)} at delta {self.delta:.3g}{self._requested()}")
        exact, renyi = _number(self.epsilon_gdp), _number(self.epsilon_rdp)
        if self.epsilon_own is not None:
            own = _number(self.epsilon_own)
            lines.append(f"                    {own} by {_OWN_WORDS[self.accountant]} ({self.accountant})")
            told = f"{exact} by gdp and {renyi} by rdp, both bounds"
        elif self.epsilon_gdp == self.epsilon_rdp and 0 < self.epsilon_gdp < math.inf:
            # Only a ledger with sampled or pure releases gives both the same: one bound for all of it.
            told = "by Renyi accounting, which bounds releases of all kinds together"
        else:
            told = f"{exact} by exact accounting (gdp), {renyi} by the looser Renyi bound (rdp)"
        lines.append(f"                    {told}")
        lines.append(f"  protects          {self._unit()}")
        lines.append(f"  neighbouring data {self.adjacency} {'record' if self.unit == 'record' else self.unit}")
        choices = f", {self.n_choices} of them choices from exact sums" if self.n_choices else ""
        lines.append(f"  releases          {self.n_releases} noisy sums{choices}")
        lines.append(f"  noise             {self.noise_mode}: {self.trust}")
        if self.guarantee == "holds":
            lines.append(f"  in words          {_in_words(self)}")
        return "\n".join(lines)

    def _requested(self) -> str:
        return "" if self.epsilon_requested is None else f" (requested: {_number(self.epsilon_requested)})"

    def _unit(self) -> str:
        if self.unit == "record":
            return "each record (a person with several records is protected less)"
        return f"each {self.unit}, of whom at most {self.max_rows_per_unit} row(s) were used"


def report_of(ledger: Ledger, context: PrivacyContext) -> PrivacyReport:
    """The report of a run: the accountants read the whole ledger.

    Raises:
        PrivacyError: code "noise-mode-unsupported": a release's event is not of the noise mode that is reported.
    """
    is_local = context.noise_mode == "local"
    if any(isinstance(event, LocalGaussianEvent) != is_local for event in ledger.events() if _is_noised(event)):
        raise PrivacyError(
            f"The run is reported with {context.noise_mode} noise, but its ledger holds a release of another kind.",
            cause="Noise of single records and noise of sums do not protect from the same people.",
            remedy="Do not publish the model; report the plan to the maintainers.",
            code="noise-mode-unsupported",
        )
    own = context.accountant in _OWN_WORDS
    return PrivacyReport(
        epsilon_own=get_accountant(context.accountant).epsilon(ledger.events(), context.delta) if own else None,
        epsilon_gdp=get_accountant("gdp").epsilon(ledger.events(), context.delta),
        epsilon_rdp=get_accountant("rdp").epsilon(ledger.events(), context.delta),
        adjacency=LOCAL_ADJACENCY if is_local else ADJACENCY,
        n_releases=len(ledger),
        n_choices=sum(isinstance(event, SelectionEvent) for event in ledger.events()),
        **{field.name: getattr(context, field.name) for field in fields(context)},
    )


def _is_noised(event: Event) -> bool:
    return not isinstance(event, UnnoisedEvent)


def _number(value: float) -> str:
    """Six digits, rounded up: a report never shows less than was spent."""
    if value in (0.0, math.inf):
        return "0" if value == 0 else "infinite"
    shown = f"{value:.6g}"
    if float(shown) < value:
        unit = 10.0 ** (math.floor(math.log10(value)) - 5)
        shown = f"{float(shown) + unit:.6g}"
    return shown


def _in_words(report: PrivacyReport) -> str:
    """What epsilon means for one person, as a bound on odds; e^epsilon bounds the factor up to the chance delta."""
    epsilon, delta = report.epsilon, report.delta
    what = "gave true statistics, not zeros" if report.noise_mode == "local" else "took part"
    factor = math.exp(epsilon) if epsilon < 20 else math.inf
    if factor == math.inf or factor > 1000:
        return "So large an epsilon says little: the model may give away much about one of them."
    return (
        f"Whatever one learns from the model changes the odds that one of them {what} by a factor of at most "
        f"{math.ceil(factor * 100) / 100:.2f}, but for a chance of {delta:.3g}."
    )
