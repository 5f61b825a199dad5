"""``hedgerow roster show``: say who is in a roster."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hedgerow.cli.identity_show import described as party
from hedgerow.cli.output import print_facts, print_json
from hedgerow.transport.roster_file import PinnedRoster, read_roster


def run(arguments: argparse.Namespace) -> None:
    """Print the roster's fingerprint and everybody's."""
    roster = read_roster(Path(arguments.roster))
    if arguments.json:
        print_json(described(roster))
        return
    print_facts([("epoch", str(roster.epoch)), ("fingerprint", roster.fingerprint())])
    if roster.max_rows:
        print_facts([("largest numbers of rows", rows_text(roster))])
    print()
    print_facts([(f"{one.name} ({one.role.value})", one.fingerprint()) for one in roster.everybody])


def rows_text(roster: PinnedRoster) -> str:
    """How many rows the sites have at most, of those that say so."""
    rows = {site.name: roster.max_rows_of(site.name) for site in roster.sites}
    return ", ".join(f"{name} {most:,}" for name, most in rows.items() if most)


def described(roster: PinnedRoster) -> dict[str, Any]:
    """A roster for machines."""
    return {
        "epoch": roster.epoch,
        "fingerprint": roster.fingerprint(),
        "digest": roster.digest().hex(),
        "coordinator": party(roster.coordinator),
        "sites": [
            {**party(site), **({"max_rows": most} if (most := roster.max_rows_of(site.name)) else {})}
            for site in roster.sites
        ],
        "monitors": [party(monitor) for monitor in roster.monitors],
    }
