"""``hedgerow identity``: `new` makes the keys of a site, a coordinator or a monitor; `show` says whose a file holds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hedgerow.cli.inputs import check_can_write
from hedgerow.cli.output import note, print_facts, print_json
from hedgerow.transport.identities import (
    PRIVATE_SUFFIX,
    PublicIdentity,
    Role,
    create_identity,
    read_private,
    read_public,
)


def new(arguments: argparse.Namespace) -> None:
    """Write the private and the public file, and say what to do with each."""
    folder = Path(arguments.folder)
    check_can_write(str(folder / "identity"))
    role = Role.COORDINATOR if arguments.coordinator else Role.MONITOR if arguments.monitor else Role.SITE
    identity, private, public = create_identity(folder, arguments.name, role)
    if arguments.json:
        print_json({**described(identity.public), "private_file": str(private), "public_file": str(public)})
        return
    print_facts([*facts(identity.public), ("private file", str(private)), ("public file", str(public))])
    note(
        f"Keep {private} on this machine and in its backup; nobody else needs it. Send {public} to whoever builds the "
        "roster, and read them the fingerprint over the phone."
    )


def show(arguments: argparse.Namespace) -> None:
    """Print what is public about a private or public file."""
    path = Path(arguments.file)
    is_private = path.name.endswith((PRIVATE_SUFFIX, ".json"))
    identity = read_private(path).public if is_private else read_public(path)
    if arguments.json:
        print_json(described(identity))
    else:
        print_facts(facts(identity))


def described(identity: PublicIdentity) -> dict[str, Any]:
    """A party for machines."""
    return {
        "name": identity.name,
        "role": identity.role.value,
        "fingerprint": identity.fingerprint(),
        "identity_key": identity.identity_key.hex(),
        "certificate_sha256": identity.certificate_sha256.hex(),
    }


def facts(identity: PublicIdentity) -> list[tuple[str, str]]:
    """A party for people."""
    return [(name.replace("_", " "), str(value)) for name, value in described(identity).items()]
