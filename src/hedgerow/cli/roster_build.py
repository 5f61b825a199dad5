"""``hedgerow roster build``: make a roster out of the parties' public files."""

from __future__ import annotations

import argparse
from pathlib import Path

from hedgerow.cli.inputs import check_can_write, listed
from hedgerow.cli.output import note, print_facts, print_json
from hedgerow.cli.roster_show import described, rows_text
from hedgerow.protocol.errors import UsageError
from hedgerow.transport.identity_files import write_new
from hedgerow.transport.roster_file import PinnedRoster, build_roster, read_public, read_roster


def run(arguments: argparse.Namespace) -> None:
    """Write the roster, and say who is new, gone or renewed since the previous one."""
    out = check_can_write(arguments.out)
    previous = None if arguments.previous is None else read_roster(Path(arguments.previous))
    sites = [read_public(Path(site)) for site in arguments.sites]
    monitors = [read_public(Path(monitor)) for monitor in arguments.monitors]
    coordinator, rows = read_public(Path(arguments.coordinator)), rows_of(arguments.max_rows)
    roster = build_roster(coordinator, sites, previous, monitors, rows)
    changes = {} if previous is None else changed(previous, roster)
    write_new(out, roster.to_toml())
    if arguments.json:
        print_json({**described(roster), "file": str(out), "changes": changes})
        return
    print_facts(
        [
            ("file", str(out)),
            ("epoch", str(roster.epoch)),
            ("sites", f"{len(roster.sites)}: {listed(site.name for site in roster.sites)}"),
            *([("monitors", listed(one.name for one in roster.monitors))] if roster.monitors else []),
            *([("largest numbers of rows", rows_text(roster))] if roster.max_rows else []),
            *((name, listed(names)) for name, names in changes.items() if names),
            ("fingerprint", roster.fingerprint()),
        ]
    )
    note(
        "Send the file to the coordinator and to every site. Each compares the fingerprint over the phone before it "
        "starts a node with it."
    )


def rows_of(given: list[str]) -> dict[str, int]:
    """The numbers of ``--max-rows NAME=N``; raises UsageError."""
    rows = {}
    for each in given:
        name, equals, number = each.partition("=")
        if not equals or not number.isascii() or not number.isdecimal() or int(number[:20]) < 1 or name in rows:
            raise UsageError(
                f"--max-rows {each}: this is no number of rows, or the site's second.",
                remedy="Write NAME=N once for a site, as in north=5000.",
                code="usage",
            )
        rows[name] = int(number[:20])
    return rows


def changed(old: PinnedRoster, new: PinnedRoster) -> dict[str, list[str]]:
    """The names of who joined, who left, and whose keys were renewed; coordinator and monitors count like sites."""
    before = {party.name: party for party in old.everybody}
    after = {party.name: party for party in new.everybody}
    return {
        "joined": sorted(after.keys() - before.keys()),
        "left": sorted(before.keys() - after.keys()),
        "renewed": sorted(name for name in after.keys() & before.keys() if after[name] != before[name]),
    }
