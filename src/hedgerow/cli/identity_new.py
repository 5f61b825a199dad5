"""``hedgerow identity new``: make the keys of a site, of the coordinator or of a monitor."""

from __future__ import annotations

import argparse
from pathlib import Path

from hedgerow.cli.identity_show import described, facts
from hedgerow.cli.inputs import check_can_write
from hedgerow.cli.output import note, print_facts, print_json
from hedgerow.transport.identity import Role
from hedgerow.transport.identity_files import create_identity


def run(arguments: argparse.Namespace) -> None:
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
