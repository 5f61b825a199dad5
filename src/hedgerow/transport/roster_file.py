"""The roster that every party pins: who coordinates, who takes part, by which keys; one TOML file for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from hedgerow.errors import EnvironmentFault, UsageError
from hedgerow.plan.fields import read_toml
from hedgerow.transport.identities import (
    PrivateIdentity,
    PublicIdentity,
    Role,
    lines_of,
    parse_public,
    read_text,
    spoken,
)

FORMAT_VERSION = 1
ROWS_VERSION = 2
"""Of rosters in which a site says how many rows it has at most; others stay of version 1, with the digest they had."""
MAX_ROWS = 2**48
MAX_SITES = 4096
MAX_MONITORS = 64
_HEADING = """\
# A federation's roster. Every site and the coordinator keep the same file. Read this to each other over the phone:
#     {fingerprint}
# `hedgerow roster show` computes it again; a comment proves nothing.
"""


@dataclass(frozen=True, slots=True)
class PinnedRoster:
    """Everybody whose keys are trusted, in one epoch.

    Args: epoch: 1 for a federation's first roster, one more at every change; coordinator; sites: sorted by name;
        monitors: who may watch runs and do nothing else, sorted by name. Every site pins them too, so that it knows;
        max_rows: for each site the most rows that it has, 0 where it does not say; empty when no site does.
        Raises UsageError when a name, key or certificate occurs twice, or somebody has the wrong role.
    """

    epoch: int
    coordinator: PublicIdentity
    sites: tuple[PublicIdentity, ...]
    monitors: tuple[PublicIdentity, ...] = ()
    max_rows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        everybody = self.everybody
        roles = [Role.COORDINATOR, *[Role.SITE] * len(self.sites), *[Role.MONITOR] * len(self.monitors)]
        if [party.role for party in everybody] != roles:
            raise UsageError("roster-roles")
        if not 1 <= self.epoch < 1 << 63 or not 1 <= len(self.sites) <= MAX_SITES:
            raise UsageError("roster-size")
        if len(self.monitors) > MAX_MONITORS:
            raise UsageError("roster-monitors", most=MAX_MONITORS)
        numbers = all(type(most) is int and 0 <= most <= MAX_ROWS for most in self.max_rows)
        if self.max_rows and (not numbers or len(self.max_rows) != len(self.sites) or not any(self.max_rows)):
            raise UsageError("roster-max-rows", most=MAX_ROWS)
        for parties in (self.sites, self.monitors):
            if list(parties) != sorted(parties, key=lambda party: party.name):
                raise UsageError("roster-unsorted")
        for what, values in (
            ("name", [party.name for party in everybody]),
            ("identity key", [party.identity_key for party in everybody]),
            ("certificate", [party.certificate for party in everybody]),
        ):
            if len(set(values)) != len(values):
                raise UsageError("roster-twice", what=what)

    @property
    def everybody(self) -> tuple[PublicIdentity, ...]:
        """All parties: the coordinator, the sites, the monitors."""
        return (self.coordinator, *self.sites, *self.monitors)

    def site(self, name: str) -> PublicIdentity | None:
        """The site of this name."""
        return next((site for site in self.sites if site.name == name), None)

    def monitor(self, name: str) -> PublicIdentity | None:
        """The monitor of this name."""
        return next((monitor for monitor in self.monitors if monitor.name == name), None)

    def digest(self) -> bytes:
        """SHA-256 over the epoch and everybody's digests, 32 bytes; the file's spaces and comments do not count."""
        parties = b"".join(party.digest() for party in self.everybody)
        rows = b"".join(most.to_bytes(8, "big") for most in self.max_rows)
        domain = b"hedgerow/roster/%d/" % self.version
        return sha256(domain + self.epoch.to_bytes(8, "big") + rows + parties).digest()

    @property
    def version(self) -> int:
        """Of the file's format: the least that says what this roster does."""
        return ROWS_VERSION if self.max_rows else FORMAT_VERSION

    def max_rows_of(self, name: str) -> int:
        """The most rows that the site of this name has; 0 where the roster does not say."""
        return next((most for site, most in zip(self.sites, self.max_rows, strict=False) if site.name == name), 0)

    def fingerprint(self) -> str:
        """`digest` to be read over the phone."""
        return spoken(self.digest())

    def to_toml(self) -> str:
        """The file's text."""
        lines = [
            _HEADING.format(fingerprint=self.fingerprint()),
            f"version = {self.version}",
            f"epoch = {self.epoch}",
        ]
        lines += ["", "[coordinator]", *lines_of(self.coordinator)]
        for section, parties in (("sites", self.sites), ("monitors", self.monitors)):
            for party in parties:
                lines += ["", f"[[{section}]]", *lines_of(party)]
                if section == "sites" and self.max_rows_of(party.name):
                    lines.append(f"max_rows = {self.max_rows_of(party.name)}")
        return "\n".join(lines) + "\n"


def build_roster(
    coordinator: PublicIdentity,
    sites: Sequence[PublicIdentity],
    previous: PinnedRoster | None = None,
    monitors: Sequence[PublicIdentity] = (),
    max_rows: Mapping[str, int] | None = None,
) -> PinnedRoster:
    """The roster of these parties; its epoch follows the previous one's. Raises UsageError.

    Args: max_rows: the most rows of the sites of these names; None for no site's.
    """
    unknown = sorted(set(max_rows or {}) - {site.name for site in sites})
    if unknown:
        raise UsageError("roster-unknown-site", name=unknown[0])
    epoch = 1 if previous is None else previous.epoch + 1
    sites, monitors = (tuple(sorted(parties, key=lambda party: party.name)) for parties in (sites, monitors))
    rows = tuple((max_rows or {}).get(site.name, 0) for site in sites)
    return PinnedRoster(epoch, coordinator, sites, monitors, rows if any(rows) else ())


def parse_roster(text: str, name: str = "The roster") -> PinnedRoster:
    """The roster in a file's text; raises UsageError, or RemoteProtocolError for keys that are not proved."""
    try:
        content = read_toml(text)
    except ValueError as error:
        raise UsageError("roster-not-toml", name=name, error=error) from None
    names = set(content) - {"monitors"}
    versions = (FORMAT_VERSION, ROWS_VERSION)
    if content.get("version") not in versions or names != {"version", "epoch", "coordinator", "sites"}:
        known = " or ".join(map(str, versions))
        raise UsageError("roster-version", name=name, known=known)
    sites, monitors = content["sites"], content.get("monitors", [])
    if not isinstance(content["epoch"], int) or not isinstance(sites, list) or not isinstance(monitors, list):
        raise UsageError("roster-lists", name=name)
    rows = _take_rows(sites) if content["version"] == ROWS_VERSION else ()
    return PinnedRoster(
        content["epoch"],
        parse_public(content["coordinator"], name),
        tuple(parse_public(site, name) for site in sites),
        tuple(parse_public(monitor, name) for monitor in monitors),
        rows,
    )


def _take_rows(sites: list[Any]) -> tuple[int, ...]:
    """Take the sites' `max_rows` out of their tables; 0 where there is none."""
    rows = tuple(site.pop("max_rows", 0) if isinstance(site, dict) else 0 for site in sites)
    return rows if any(rows) else (0,) * max(1, len(sites))


def read_roster(path: Path) -> PinnedRoster:
    """The roster in a file; raises as `parse_roster`, and UsageError when there is none."""
    return parse_roster(read_text(path), str(path))


def require_pinned(identity: PrivateIdentity, roster: PinnedRoster) -> None:
    """Raise EnvironmentFault unless the roster pins exactly this identity."""
    if identity.public not in (roster.coordinator, roster.site(identity.public.name)):
        raise EnvironmentFault("identity-not-pinned", name=identity.public.name)
