"""``hedgerow identity show``: say whose keys a file holds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hedgerow.cli.output import print_facts, print_json
from hedgerow.transport.identity import PublicIdentity
from hedgerow.transport.identity_files import PRIVATE_SUFFIX, read_private
from hedgerow.transport.roster_file import read_public


def run(arguments: argparse.Namespace) -> None:
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
