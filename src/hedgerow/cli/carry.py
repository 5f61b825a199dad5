# SPDX-License-Identifier: Apache-2.0
"""``hedgerow carry``: a run whose messages are files, for sites without a connection."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hedgerow.app.options import NodeOptions
from hedgerow.cli.options import add_command, add_group

_END = """\
FILE is the party's own: site.toml or coordinator.toml, as docs/airlock.md has them. The coordinator begins with
`carry out`; from then on each party carries in what came, and carries out what it has to say.
"""


def add_commands(commands: Any) -> None:
    """Add `carry out` and `carry in`."""
    group = add_group(commands, "carry", "take part in a run whose messages are files, or coordinate one")
    for name, function, text in (
        ("out", carry_out, "write what this party has to say into a folder: files, with a page for each"),
        ("in", carry_in, "read the files of a folder that are for this party, and do what they ask"),
    ):
        add = add_command(group, name, function, text, _END)
        add("folder", metavar="FOLDER", help="on a disk, or what is moved through an airlock")
        add("--as", dest="party", required=True, metavar="FILE", help="site.toml or coordinator.toml")


def carry_out(arguments: argparse.Namespace) -> None:
    """Write the messages to other parties as files in a folder, with a page for each."""
    from hedgerow.carriers import read_party_file
    from hedgerow.carriers.files import carry_out_of_coordinator, carry_out_of_site

    file = read_party_file(Path(arguments.party))
    if isinstance(file, NodeOptions):
        carry_out_of_site(file, Path(arguments.folder))
    else:
        carry_out_of_coordinator(file, Path(arguments.folder))


def carry_in(arguments: argparse.Namespace) -> None:
    """Read a folder's files for this party, and act on them."""
    from hedgerow.carriers import read_party_file
    from hedgerow.carriers.files import carry_into_coordinator, carry_into_site

    file = read_party_file(Path(arguments.party))
    if isinstance(file, NodeOptions):
        carry_into_site(file, Path(arguments.folder))
    else:
        carry_into_coordinator(file, Path(arguments.folder))
