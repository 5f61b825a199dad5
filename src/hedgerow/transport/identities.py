# SPDX-License-Identifier: Apache-2.0
"""Who a party is to the others, and its files on disk.

An identity is an Ed25519 key that signs, a pinned TLS certificate, and a proof that they belong together. The
certificate is self-signed, over P-256: gRPC's TLS offers no Ed25519. No authority signs it. Who pins the certificate
compares its SHA-256, so its dates say nothing and a clock that is wrong disturbs nothing. Its name is made from its
key, because TLS looks up trusted certificates by name.

An identity has two files: a private one that only its owner may read, and a public one for the others.

The roster, which every party pins, says who coordinates and who takes part, by which keys: one TOML file for all.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from hedgerow.codec import MAX_ROWS, format_spoken
from hedgerow.crypto import KEY_BYTES
from hedgerow.errors import EnvironmentFault, HedgerowError, RemoteProtocolError, UsageError
from hedgerow.plan.fields import read_toml, require_plain

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PROOF_DOMAIN = b"hedgerow/identity/1/"
# RFC 5280, 4.1.2.5: this date means that there is no end.
_NO_END = datetime(9999, 12, 31, 23, 59, 59)
_BEFORE_ALL = datetime(2000, 1, 1)


class Role(StrEnum):
    """Role of a party in a federation."""

    SITE = "site"
    COORDINATOR = "coordinator"
    MONITOR = "monitor"


def check_name(name: str) -> str:
    """Return the name if it is valid: 1 to 64 ASCII letters, digits, dots, dashes and underscores.

    Raises:
        UsageError: any other name.
    """
    if not _NAME.fullmatch(name):
        expected = "1 to 64 letters, digits, dots, dashes or underscores, a letter or digit first"
        raise UsageError("argument", code="identity-name", name="A name", value=name[:80], expected=expected)
    return name


@dataclass(frozen=True, slots=True)
class PublicIdentity:
    """Public keys and certificate of a party, for the others.

    Raises RemoteProtocolError when the parts do not belong together, UsageError for a name that cannot be.

    Attributes:
        name: as in the roster.
        role: site, coordinator or monitor.
        identity_key: Ed25519, 32 bytes.
        certificate: DER of the TLS certificate.
        proof: the identity key's signature over all of this, 64 bytes.
    """

    name: str
    role: Role
    identity_key: bytes
    certificate: bytes
    proof: bytes

    def __post_init__(self) -> None:
        check_name(self.name)
        try:
            # Verify the signature first, so that an altered certificate is not even parsed.
            Ed25519PublicKey.from_public_bytes(self.identity_key).verify(self.proof, _to_prove(self))
            certificate = x509.load_der_x509_certificate(self.certificate)
            # This proves that the maker of the certificate has its key, so no party can list another's key as its own.
            certificate.verify_directly_issued_by(certificate)
            curve = certificate.public_key()
        except (ValueError, TypeError, InvalidSignature):
            raise RemoteProtocolError("identity-proof", name=self.name) from None
        if not isinstance(curve, ec.EllipticCurvePublicKey) or not isinstance(curve.curve, ec.SECP256R1):
            raise RemoteProtocolError("identity-proof", name=self.name)

    @property
    def certificate_pem(self) -> bytes:
        """The certificate as gRPC takes it."""
        return x509.load_der_x509_certificate(self.certificate).public_bytes(Encoding.PEM)

    @property
    def certificate_sha256(self) -> bytes:
        """SHA-256 of the certificate's DER, 32 bytes; peers pin it."""
        return sha256(self.certificate).digest()

    @property
    def tls_name(self) -> str:
        """Host name in the certificate."""
        return tls_name(x509.load_der_x509_certificate(self.certificate).public_key())

    def digest(self) -> bytes:
        """SHA-256 over everything but the proof, 32 bytes."""
        return sha256(_to_prove(self)).digest()

    def fingerprint(self) -> str:
        """Return `digest` in a form for reading over the phone."""
        return format_spoken(self.digest())


@dataclass(frozen=True, slots=True, repr=False)
class PrivateIdentity:
    """A party's secrets.

    Attributes:
        public: what the others are given.
        seed: of the Ed25519 key, 32 bytes.
        tls_key: PKCS #8 in PEM, not encrypted.
    """

    public: PublicIdentity
    seed: bytes
    tls_key: bytes

    def __post_init__(self) -> None:
        try:
            own = Ed25519PrivateKey.from_private_bytes(self.seed).public_key().public_bytes_raw()
            tls = load_pem_private_key(self.tls_key, None).public_key()
        except (ValueError, TypeError):
            raise RemoteProtocolError("identity-proof", name=self.public.name) from None
        certified = x509.load_der_x509_certificate(self.public.certificate).public_key()
        if own != self.public.identity_key or tls != certified:
            raise RemoteProtocolError("identity-proof", name=self.public.name)

    def __repr__(self) -> str:
        return f"PrivateIdentity({self.public.name!r})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("An identity is not pickled: its keys would be written in clear.")


def new_identity(name: str, role: Role, seed: bytes) -> PrivateIdentity:
    """Make a new identity.

    Args:
        seed: 32 bytes from the operating system's generator; the TLS key draws its own.
    """
    check_name(name)
    signing = Ed25519PrivateKey.from_private_bytes(seed)
    tls_key = ec.generate_private_key(ec.SECP256R1())
    certificate = _self_signed(tls_key)
    key = signing.public_key().public_bytes_raw()
    proof = signing.sign(_write_proof(name, role, key, certificate))
    secret = tls_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return PrivateIdentity(PublicIdentity(name, role, key, certificate, proof), seed, secret)


def tls_name(key: object) -> str:
    """Return a host name derived from a TLS key, in a domain that no resolver knows (RFC 6761)."""
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise TypeError("A TLS key of Hedgerow is one of P-256.")
    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()[:40] + ".invalid"


def _self_signed(key: ec.EllipticCurvePrivateKey) -> bytes:
    name = tls_name(key.public_key())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(_BEFORE_ALL).not_valid_after(_NO_END)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    # The certificate may not issue others.
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def _to_prove(identity: PublicIdentity) -> bytes:
    return _write_proof(identity.name, identity.role, identity.identity_key, identity.certificate)


def _write_proof(name: str, role: Role, key: bytes, certificate: bytes) -> bytes:
    parts = (name.encode(), role.value.encode(), key, certificate)
    return _PROOF_DOMAIN + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def to_base64(raw: bytes) -> str:
    """Encode bytes as base64 text."""
    return base64.b64encode(raw).decode()


def from_base64(text: str) -> bytes:
    """Text as bytes; raises ValueError."""
    return base64.b64decode(text, validate=True)


FORMAT = "hedgerow-private-identity"
FORMAT_VERSION = 1
_ROSTER = "The roster"
"""Of private and public files, and of rosters."""
PRIVATE_SUFFIX = ".private.json"
PUBLIC_SUFFIX = ".public.toml"
PARTY_FIELDS = {"name", "role", "identity_key", "certificate", "proof"}
_TOO_OPEN = stat.S_IRWXG | stat.S_IRWXO


def create_identity(folder: Path, name: str, role: Role) -> tuple[PrivateIdentity, Path, Path]:
    """Make an identity and write its two files, private (mode 0600) and public; never overwrite a file.

    Raises UsageError (a name that cannot be, or files that exist) and OSError.
    """
    check_name(name)
    private, public = folder / f"{name}{PRIVATE_SUFFIX}", folder / f"{name}{PUBLIC_SUFFIX}"
    for path in (private, public):
        if path.exists():
            raise UsageError("exists", code="identity-exists", path=path)
    identity = new_identity(name, role, secrets.token_bytes(KEY_BYTES))
    write_new(private, _write_private(identity), 0o600)
    write_new(public, public_lines(identity.public))
    return identity, private, public


def read_private(path: Path) -> PrivateIdentity:
    """Read an identity from its private file.

    Raises EnvironmentFault when others than its owner may read or write it, UsageError when it is not such a file, and
    RemoteProtocolError when its keys do not belong together.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, IsADirectoryError):
        raise UsageError(
            "not-found",
            code="identity-not-found",
            path=path,
            wanted="a private file, which `hedgerow study keys` wrote",
        ) from None
    with os.fdopen(descriptor, "rb") as file:
        # Check the open file and not its name, so that it cannot be exchanged in between.
        status = os.fstat(file.fileno())
        # A public file is rightly open to all, so report the wrong kind of file and not its permissions.
        if not stat.S_ISREG(status.st_mode) or path.name.endswith(PUBLIC_SUFFIX):
            raise UsageError("identity-other-file", path=path)
        if status.st_mode & _TOO_OPEN:
            found, first = stat.S_IMODE(status.st_mode), "Where somebody has, make a new identity and a new roster. "
            raise EnvironmentFault(
                "state-permissions", code="identity-permissions", path=path, used="read", found=found, mode="600",
                first=first,
            )  # fmt: skip
        raw = file.read()
    try:
        content = json.loads(raw)
        require_plain({**content, "tls_key": ""})
        if content["format"] != FORMAT or content["version"] != FORMAT_VERSION:
            raise UsageError("identity-other-file", path=path)
        public = parse_public(content["public"], str(path))
        return PrivateIdentity(public, from_base64(content["identity_seed"]), content["tls_key"].encode("ascii"))
    except HedgerowError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # The text of these errors may quote the file, which holds secrets.
        raise UsageError("identity-other-file", path=path) from None


def write_new(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a new file so that it is on the disk with all of its text, or not at all.

    Raises UsageError "identity-exists" when it does exist, and OSError.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link never replaces a file: of two processes that make an identity, one fails.
        os.link(draft, path)
    except FileExistsError:
        raise UsageError("exists", code="identity-exists", path=path) from None
    except OSError as fault:
        # The error of a full disk names no file.
        fault.filename = fault.filename or str(path)
        raise
    finally:
        draft.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_private(identity: PrivateIdentity) -> str:
    content = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "warning": "Secret. Anyone who has this file can answer in this party's name.",
        "public": to_fields(identity.public),
        "identity_seed": to_base64(identity.seed),
        "tls_key": identity.tls_key.decode("ascii"),
    }
    return json.dumps(content, indent=2) + "\n"


def public_lines(identity: PublicIdentity) -> str:
    """Return the text of a public file, which a party sends to the builder of the roster."""
    heading = (
        f"# Public identity of {identity.name}; nothing here is secret. Fingerprint:\n#     {identity.fingerprint()}\n"
    )
    return "\n".join([heading, f"version = {FORMAT_VERSION}", *to_toml_lines(identity)]) + "\n"


def read_public(path: Path) -> PublicIdentity:
    """Read an identity from a public file; raise UsageError or RemoteProtocolError."""
    text = read_text(path)
    try:
        content = read_toml(text)
    except ValueError as error:
        raise UsageError("roster-file", name=path, fault=error) from None
    if content.pop("version", None) != FORMAT_VERSION:
        raise UsageError("roster-file", name=path, fault="another version or kind of file")
    return parse_public(content, str(path))


def parse_public(content: object, where: str) -> PublicIdentity:
    """Read an identity from a table of TOML or JSON; raise UsageError or RemoteProtocolError."""
    if not isinstance(content, Mapping) or set(content) != PARTY_FIELDS:
        raise UsageError("roster-file", name=where, fault="a party has other fields")
    try:
        return PublicIdentity(
            content["name"],
            Role(content["role"]),
            from_base64(content["identity_key"]),
            from_base64(content["certificate"]),
            from_base64(content["proof"]),
        )
    except HedgerowError:
        raise
    except (ValueError, TypeError):
        raise UsageError("roster-file", name=where, fault="a party's fields do not read") from None


def to_fields(identity: PublicIdentity) -> dict[str, Any]:
    """Return a party as a table for TOML or JSON."""
    return {
        "name": identity.name,
        "role": identity.role.value,
        "identity_key": to_base64(identity.identity_key),
        "certificate": to_base64(identity.certificate),
        "proof": to_base64(identity.proof),
    }


def read_text(path: Path, *, is_own: bool = False) -> str:
    """Read a file's text; with `is_own` check its owner as `read_own` does.

    Raises:
        UsageError: there is no such file, or it is no text.
    """
    try:
        return read_own(path) if is_own else path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, IsADirectoryError):
        raise UsageError(
            "not-found", code="identity-not-found", path=path,
            wanted="a file that `hedgerow study roster` or `hedgerow study keys` wrote",
        ) from None  # fmt: skip
    except UnicodeDecodeError:
        raise UsageError("roster-file", name=path, fault="no text of UTF-8") from None


def to_toml_lines(identity: PublicIdentity) -> list[str]:
    """Return a party as lines of TOML."""
    # Names are checked and the rest is base64, so nothing needs escaping.
    return [f'{name} = "{value}"' for name, value in to_fields(identity).items()]


ROWS_VERSION = 2
"""Version of rosters that state sites' largest numbers of rows; others keep version 1 and their digest."""
MAX_SITES = 4096
MAX_LISTED_MONITORS = 64
_HEADING = """\
# A federation's roster. Every site and the coordinator keep the same file. Read this to each other over the phone:
#     {fingerprint}
# `hedgerow study roster` computes it again; a comment proves nothing.
"""


@dataclass(frozen=True, slots=True)
class PinnedRoster:
    """One edition of all parties with trusted keys.

    Attributes:
        edition: 1 for a federation's first roster, one more at every change; `epoch` in the file.
        coordinator: whose word a run begins by.
        sites: sorted by name.
        monitors: who may watch runs and do nothing else, sorted by name. Every site pins them too, so that it knows.
        max_rows: for each site the most rows that it has, 0 where it does not say; empty when no site does.

    Raises:
        UsageError: when a name, key or certificate occurs twice, or somebody has the wrong role.
    """

    edition: int
    coordinator: PublicIdentity
    sites: tuple[PublicIdentity, ...]
    monitors: tuple[PublicIdentity, ...] = ()
    max_rows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        everybody = self.everybody
        roles = [Role.COORDINATOR, *[Role.SITE] * len(self.sites), *[Role.MONITOR] * len(self.monitors)]
        if [party.role for party in everybody] != roles:
            raise UsageError("roster-file", name=_ROSTER, fault="somebody is listed in a role that is not theirs")
        if not 1 <= self.edition < 1 << 63 or not 1 <= len(self.sites) <= MAX_SITES:
            raise UsageError("roster-file", name=_ROSTER, fault="an epoch or number of sites that none may have")
        if len(self.monitors) > MAX_LISTED_MONITORS:
            raise UsageError("roster-file", name=_ROSTER, fault=f"more than {MAX_LISTED_MONITORS} monitors")
        numbers = all(type(most) is int and 0 <= most <= MAX_ROWS for most in self.max_rows)
        if self.max_rows and (not numbers or len(self.max_rows) != len(self.sites) or not any(self.max_rows)):
            raise UsageError("roster-file", name=_ROSTER, fault=f"max_rows is a whole number from 1 to {MAX_ROWS:,}")
        for parties in (self.sites, self.monitors):
            if list(parties) != sorted(parties, key=lambda party: party.name):
                raise UsageError("roster-file", name=_ROSTER, fault="sites or monitors are not sorted by name")
        for what, values in (
            # People take names that differ only in capitals for one name.
            ("name", [party.name.lower() for party in everybody]),
            ("identity key", [party.identity_key for party in everybody]),
            ("certificate", [party.certificate for party in everybody]),
        ):
            if len(set(values)) != len(values):
                raise UsageError("roster-file", name=_ROSTER, fault=f"two parties have the same {what}")

    @property
    def everybody(self) -> tuple[PublicIdentity, ...]:
        """The coordinator, the sites and the monitors."""
        return (self.coordinator, *self.sites, *self.monitors)

    def site(self, name: str) -> PublicIdentity | None:
        """Return the site of this name, or None."""
        return next((site for site in self.sites if site.name == name), None)

    def monitor(self, name: str) -> PublicIdentity | None:
        """Return the monitor of this name, or None."""
        return next((monitor for monitor in self.monitors if monitor.name == name), None)

    def digest(self) -> bytes:
        """Compute SHA-256 over the edition, the rows and everybody's digests: 32 bytes.

        The file's spaces and comments do not count.
        """
        parties = b"".join(party.digest() for party in self.everybody)
        rows = b"".join(most.to_bytes(8, "big") for most in self.max_rows)
        domain = b"hedgerow/roster/%d/" % self.version
        return sha256(domain + self.edition.to_bytes(8, "big") + rows + parties).digest()

    @property
    def version(self) -> int:
        """Version of the file's format, the lowest that can hold this roster."""
        return ROWS_VERSION if self.max_rows else FORMAT_VERSION

    def find_max_rows(self, name: str) -> int:
        """Return the largest number of rows of this site; 0 if the roster does not state one."""
        return next((most for site, most in zip(self.sites, self.max_rows, strict=False) if site.name == name), 0)

    def fingerprint(self) -> str:
        """Return `digest` in a form for reading over the phone."""
        return format_spoken(self.digest())

    def to_toml(self) -> str:
        """Return the text of the roster's file."""
        lines = [
            _HEADING.format(fingerprint=self.fingerprint()),
            f"version = {self.version}",
            f"epoch = {self.edition}",
        ]
        lines += ["", "[coordinator]", *to_toml_lines(self.coordinator)]
        for section, parties in (("sites", self.sites), ("monitors", self.monitors)):
            for party in parties:
                lines += ["", f"[[{section}]]", *to_toml_lines(party)]
                if section == "sites" and self.find_max_rows(party.name):
                    lines.append(f"max_rows = {self.find_max_rows(party.name)}")
        return "\n".join(lines) + "\n"


def build_roster(
    coordinator: PublicIdentity,
    sites: Sequence[PublicIdentity],
    previous: PinnedRoster | None = None,
    monitors: Sequence[PublicIdentity] = (),
    max_rows: Mapping[str, int] | None = None,
) -> PinnedRoster:
    """Build the roster of these parties, with the edition after the previous one's. Raises UsageError.

    Args:
        max_rows: the most rows of the sites of these names; None for no site's.
    """
    unknown = sorted(set(max_rows or {}) - {site.name for site in sites})
    if unknown:
        raise UsageError(
            "roster-file", name=_ROSTER, fault=f"rows are declared for {unknown[0]!r}, which is no site of it"
        )
    edition = 1 if previous is None else previous.edition + 1
    sites, monitors = (tuple(sorted(parties, key=lambda party: party.name)) for parties in (sites, monitors))
    rows = tuple((max_rows or {}).get(site.name, 0) for site in sites)
    return PinnedRoster(edition, coordinator, sites, monitors, rows if any(rows) else ())


def follows(new: PinnedRoster, old: PinnedRoster) -> bool:
    """Return whether a roster may follow another: a later edition with the same coordinator's keys."""
    return new.edition > old.edition and new.coordinator == old.coordinator


def adds_monitors_only(new: PinnedRoster, old: PinnedRoster) -> bool:
    """Return whether the sites with their keys and rows are unchanged, and no monitor is gone or changed."""
    are_sites_same = (new.sites, new.max_rows) == (old.sites, old.max_rows)
    return are_sites_same and set(old.monitors) <= set(new.monitors)


def describe_change(new: PinnedRoster, old: PinnedRoster) -> str:
    """Describe in words which parties come, go and have new keys."""
    parts = []
    for role, now, before in (("site", new.sites, old.sites), ("monitor", new.monitors, old.monitors)):
        known, named = {party.name: party for party in before}, {party.name: party for party in now}
        parts += [f"{role} {name} comes" for name in named if name not in known]
        parts += [f"{role} {name} goes" for name in known if name not in named]
        parts += [f"{role} {name} has new keys" for name in named if name in known and named[name] != known[name]]
    for site in new.sites:
        most, earlier = new.find_max_rows(site.name), old.find_max_rows(site.name)
        if most != earlier and old.site(site.name) is not None:
            parts.append(f"site {site.name} may use {_describe_most(most)}, not {_describe_most(earlier)}")
    return ", ".join(parts) or "nothing but its number changes"


def _describe_most(rows: int) -> str:
    return f"{rows:,} rows" if rows else "any number of rows"


def parse_roster(text: str, name: str = _ROSTER) -> PinnedRoster:
    """Read a roster from a file's text; raise UsageError, or RemoteProtocolError for unproved keys."""
    try:
        content = read_toml(text)
    except ValueError as error:
        raise UsageError("roster-file", name=name, fault=error) from None
    names = set(content) - {"monitors"}
    versions = (FORMAT_VERSION, ROWS_VERSION)
    if content.get("version") not in versions or names != {"version", "epoch", "coordinator", "sites"}:
        raise UsageError("roster-file", name=name, fault="of another version than this release reads, or another file")
    sites, monitors = content["sites"], content.get("monitors", [])
    if type(content["epoch"]) is not int or not isinstance(sites, list) or not isinstance(monitors, list):
        raise UsageError("roster-file", name=name, fault="a malformed epoch or list")
    rows: tuple[int, ...] = ()
    if content["version"] == ROWS_VERSION:
        rows = tuple(site.pop("max_rows", 0) if isinstance(site, dict) else 0 for site in sites)
        rows = rows if any(rows) else (0,) * max(1, len(sites))
    return PinnedRoster(
        content["epoch"],
        parse_public(content["coordinator"], name),
        tuple(parse_public(site, name) for site in sites),
        tuple(parse_public(monitor, name) for monitor in monitors),
        rows,
    )


def read_roster(path: Path) -> PinnedRoster:
    """Read a roster from a file; raise as `parse_roster` and `read_own`, and UsageError without a file."""
    return parse_roster(read_text(path, is_own=True), str(path))


def read_own(path: Path) -> str:
    """Read a file that a node trusts (roster, policy or plan), checking that no other user can change it.

    Raises:
        EnvironmentFault: `file-of-others` for a file that others than its owner may write, or a folder on the way to it
            where they may put another one in its place. `state-owner` where the system keeps what is one's own in such
            a folder (as in /tmp), and another user has made the file, or a folder or a link on the way to it.
        OSError, UnicodeDecodeError: it cannot be read, or is no text.
    """
    with path.open(encoding="utf-8-sig") as file:
        # Check the file that is read, because its name may lead to another file a moment later.
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode):
            _require_own(path, status)
        return file.read()


def _require_own(path: Path, status: os.stat_result) -> None:
    others = stat.S_IWGRP | stat.S_IWOTH
    if status.st_mode & others:
        raise _refuse_mode(path, status)
    steps = list(_list_steps(path.absolute()))
    for step, made in zip(steps, [*map(os.lstat, steps[:-1]), status], strict=True):
        folder = step.parent.stat()
        if not folder.st_mode & others:
            continue
        if not folder.st_mode & stat.S_ISVTX:
            if folder.st_mode & stat.S_IWOTH or not _is_alone_in_group(folder):
                raise _refuse_mode(step.parent.resolve(), folder)
        # Root and the folder's owner may decide what is in the folder.
        elif made.st_uid not in (0, folder.st_uid, os.geteuid()):
            raise EnvironmentFault("state-owner", path=step, owner=made.st_uid, user=os.geteuid())


def _refuse_mode(path: Path, status: os.stat_result) -> EnvironmentFault:
    found, first = stat.S_IMODE(status.st_mode), "Look whether the files there still say what you agreed to. "
    return EnvironmentFault(
        "state-permissions", code="file-of-others", path=path, used="written", found=found, mode="go-w", first=first
    )


def _is_alone_in_group(status: os.stat_result) -> bool:
    """Return whether a folder's owner is the only member of its group, as with a group for each user."""
    # These modules do not exist on every system.
    import grp
    import pwd

    try:
        owner, members = pwd.getpwuid(status.st_uid).pw_name, grp.getgrgid(status.st_gid).gr_mem
    except KeyError:
        return False
    return {owner}.issuperset(members) and all(
        user.pw_uid == status.st_uid for user in pwd.getpwall() if user.pw_gid == status.st_gid
    )


def _list_steps(path: Path) -> Iterator[Path]:
    """Yield all folders and links on the way to a file, and the file's own name last."""
    for step in (*reversed(path.parents[:-1]), path):
        if step.name != "..":
            yield step
        if step.is_symlink():
            yield from _list_steps(step.parent / step.readlink())


def require_pinned(identity: PrivateIdentity, roster: PinnedRoster) -> None:
    """Raise EnvironmentFault unless the roster pins exactly this identity."""
    if identity.public not in (roster.coordinator, roster.site(identity.public.name)):
        raise EnvironmentFault("identity-not-pinned", name=identity.public.name)
