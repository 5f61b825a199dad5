"""Identity files on disk: one private file that only its owner may read, one public file for the others."""

from __future__ import annotations

import json
import os
import secrets
import stat
from pathlib import Path

from hedgerow.errors import EnvironmentFault, HedgerowError, UsageError
from hedgerow.plan.fields import require_plain
from hedgerow.transport.identity import (
    KEY_BYTES,
    PrivateIdentity,
    Role,
    check_name,
    from_base64,
    new_identity,
    to_base64,
)
from hedgerow.transport.roster_file import fields_of, parse_public, public_lines

FORMAT = "hedgerow-private-identity"
FORMAT_VERSION = 1
PRIVATE_SUFFIX = ".private.json"
PUBLIC_SUFFIX = ".public.toml"
_TOO_OPEN = stat.S_IRWXG | stat.S_IRWXO


def create_identity(folder: Path, name: str, role: Role) -> tuple[PrivateIdentity, Path, Path]:
    """A new identity and its two files, private (mode 0600) and public; existing files are never overwritten.

    Raises UsageError (a name that cannot be, or files that exist) and OSError.
    """
    check_name(name)
    private, public = folder / f"{name}{PRIVATE_SUFFIX}", folder / f"{name}{PUBLIC_SUFFIX}"
    for path in (private, public):
        if path.exists():
            raise _exists(path)
    identity = new_identity(name, role, secrets.token_bytes(KEY_BYTES))
    _write(private, _private_text(identity), 0o600)
    _write(public, public_lines(identity.public), 0o644)
    return identity, private, public


def read_private(path: Path) -> PrivateIdentity:
    """The identity in a private file.

    Raises EnvironmentFault when others than its owner may read or write it, UsageError when it is not such a file, and
    RemoteProtocolError when its keys do not belong together.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, IsADirectoryError):
        raise _unreadable(path, "There is no such file.", "identity-not-found") from None
    with os.fdopen(descriptor, "rb") as file:
        # The open file is asked, not its name, so that nobody exchanges it in between.
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise _unreadable(path, "It is not a plain file.")
        if path.name.endswith(PUBLIC_SUFFIX):
            raise _public_given(path)
        if status.st_mode & _TOO_OPEN:
            raise _too_open(path, status.st_mode)
        raw = file.read()
    try:
        content = json.loads(raw)
        require_plain({**content, "tls_key": ""})
        if content["format"] != FORMAT or content["version"] != FORMAT_VERSION:
            raise _unreadable(path, "It is of another format or version.")
        public = parse_public(content["public"], str(path))
        return PrivateIdentity(public, from_base64(content["identity_seed"]), content["tls_key"].encode("ascii"))
    except HedgerowError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # The text of these errors may quote the file, which holds secrets.
        raise _unreadable(path, "Its fields do not read.") from None


def write_new(path: Path, text: str) -> None:
    """Write a public file that does not exist yet; raises UsageError when it does."""
    _write(path, text, 0o644)


def _write(path: Path, text: str, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise _exists(path) from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _private_text(identity: PrivateIdentity) -> str:
    content = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "warning": "Secret. Whoever has this file can answer in this party's name.",
        "public": fields_of(identity.public),
        "identity_seed": to_base64(identity.seed),
        "tls_key": identity.tls_key.decode("ascii"),
    }
    return json.dumps(content, indent=2) + "\n"


def _exists(path: Path) -> UsageError:
    return UsageError(
        f"{path} exists already.",
        cause="An identity that is overwritten cannot be had back, and every roster would have to be made again.",
        remedy="Choose another folder, or move the file away first.",
        code="identity-exists",
    )


def _too_open(path: Path, mode: int) -> EnvironmentFault:
    return EnvironmentFault(
        f"{path} may be used by others than its owner (mode {stat.S_IMODE(mode):04o}).",
        cause="Its permissions were changed, or it was copied.",
        remedy=f"If nobody else has read it: chmod 600 {path}. Otherwise make a new identity and a new roster.",
        code="identity-permissions",
    )


def _public_given(path: Path) -> UsageError:
    private = path.with_name(path.name.removesuffix(PUBLIC_SUFFIX) + PRIVATE_SUFFIX)
    return UsageError(
        f"{path} is the public file of an identity; its private file is needed here.",
        cause="The public file is for the roster. With the private one a party proves who it is.",
        remedy=f"Give the private file, which `hedgerow identity new` wrote beside it: {private}",
        code="identity-file",
    )


def _unreadable(path: Path, cause: str, code: str = "identity-file") -> UsageError:
    return UsageError(
        f"{path} is not a private identity.",
        cause=cause,
        remedy="Give the path of a file that `hedgerow identity new` wrote.",
        code=code,
    )
