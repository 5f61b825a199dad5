# SPDX-License-Identifier: Apache-2.0
"""``hedgerow identity`` makes and shows the keys of a party; ``hedgerow roster`` the list of the parties of a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.app.inputs import check_can_write, join_names, parse_max_rows
from hedgerow.app.output import note, print_facts, print_json
from hedgerow.cli.options import add_command, add_group, add_shared
from hedgerow.errors import UsageError

if TYPE_CHECKING:
    from hedgerow.transport.identities import PinnedRoster, PublicIdentity, Role


def add_commands(commands: Any) -> None:
    """Add `identity` and `roster`."""
    actions = add_group(commands, "identity", "make or show the keys of a site, coordinator or monitor")
    text = "make the keys of this site, or of the coordinator"
    add = add_command(actions, "new", new, text)
    add("name", metavar="NAME", help="the site's name, as all others will see it")
    role = actions.choices["new"].add_mutually_exclusive_group()
    role.add_argument("--coordinator", action="store_true", help="the keys are the coordinator's, not a site's")
    role.add_argument("--monitor", action="store_true", help="the keys are for watching runs, not a site's")
    add("--folder", default=".", metavar="FOLDER", help="where to write the two files (%(default)s)")
    add_shared(add, "--json")
    add = add_command(actions, "show", show, "say whose keys a file holds; shows no secret")
    add("file", metavar="FILE", help="a .public.toml or .private.json file")
    add_shared(add, "--json")
    actions = add_group(commands, "roster", "make or show the list of those who trust each other")
    add = add_command(actions, "build", build, "make a roster out of the parties' public files")
    add("sites", nargs="+", metavar="SITE", help="the sites' .public.toml files")
    add("--coordinator", required=True, metavar="FILE", help="the coordinator's .public.toml file")
    text = "the .public.toml of somebody who may watch runs; repeat"
    add("--monitor", action="append", default=[], dest="monitors", metavar="FILE", help=text)
    text = "the most rows that a site has: its node keeps its sums within what they can add up to; repeat"
    add("--max-rows", action="append", default=[], metavar="NAME=N", help=text)
    add("--previous", metavar="ROSTER", help="the roster that this one follows: a new edition")
    text = "file to write; an existing one is kept (%(default)s)"
    add("--out", default="roster.toml", metavar="ROSTER", help=text)
    add_shared(add, "--json")
    add = add_command(actions, "show", show_roster, "say who is in a roster, and its fingerprint")
    add("roster", metavar="ROSTER")
    add_shared(add, "--json")


def new(arguments: argparse.Namespace) -> None:
    """Write the private and the public file, and explain what to do with each."""
    from hedgerow.transport.identities import Role, create_identity

    folder = Path(arguments.folder)
    check_can_write(str(folder / "identity"))
    role = Role.COORDINATOR if arguments.coordinator else Role.MONITOR if arguments.monitor else Role.SITE
    identity, private, public = create_identity(folder, arguments.name, role)
    if arguments.json:
        print_json({**describe_party(identity.public), "private_file": str(private), "public_file": str(public)})
        return
    print_facts([*facts(identity.public), ("private file", str(private)), ("public file", str(public))])
    note(
        f"Keep {private} on this machine and in its backup; no one else needs it. Send {public} to the builder of the "
        "roster, and read them the fingerprint over the phone."
    )


def show(arguments: argparse.Namespace) -> None:
    """Print the public part of a private or public file."""
    from hedgerow.transport.identities import PRIVATE_SUFFIX, read_private, read_public

    path = Path(arguments.file)
    is_private = path.name.endswith((PRIVATE_SUFFIX, ".json"))
    identity = read_private(path).public if is_private else read_public(path)
    if arguments.json:
        print_json(describe_party(identity))
    else:
        print_facts(facts(identity))


def describe_party(identity: PublicIdentity) -> dict[str, Any]:
    """Describe a party for programs."""
    return {
        "name": identity.name,
        "role": identity.role.value,
        "fingerprint": identity.fingerprint(),
        "identity_key": identity.identity_key.hex(),
        "certificate_sha256": identity.certificate_sha256.hex(),
    }


def facts(identity: PublicIdentity) -> list[tuple[str, str]]:
    """Describe a party for people."""
    return [(name.replace("_", " "), str(value)) for name, value in describe_party(identity).items()]


def build(arguments: argparse.Namespace) -> None:
    """Write the roster, and say who is new, gone or renewed since the previous one."""
    from hedgerow.transport.identities import Role, build_roster, read_roster, write_new

    out = check_can_write(arguments.out)
    previous = None if arguments.previous is None else read_roster(Path(arguments.previous))
    coordinator, rows = read_party(arguments.coordinator, Role.COORDINATOR), parse_max_rows(arguments.max_rows)
    sites = [read_party(site, Role.SITE) for site in arguments.sites]
    monitors = [read_party(monitor, Role.MONITOR) for monitor in arguments.monitors]
    roster = build_roster(coordinator, sites, previous, monitors, rows)
    changes = {} if previous is None else compare_rosters(previous, roster)
    write_new(out, roster.to_toml())
    if arguments.json:
        print_json({**describe_roster(roster), "file": str(out), "changes": changes})
        return
    print_facts(
        [
            ("file", str(out)),
            ("edition", str(roster.edition)),
            ("sites", f"{len(roster.sites)}: {join_names(site.name for site in roster.sites)}"),
            *([("monitors", join_names(one.name for one in roster.monitors))] if roster.monitors else []),
            *([("largest numbers of rows", rows_text(roster))] if roster.max_rows else []),
            *((name, join_names(names)) for name, names in changes.items() if names),
            ("fingerprint", roster.fingerprint()),
        ]
    )
    note(
        "Send the file to the coordinator and to every site. Each compares the fingerprint over the phone before it "
        "starts a node with it."
    )


def read_party(file: str, role: Role) -> PublicIdentity:
    """Read the party in a public file; raise UsageError for a party of another role."""
    from hedgerow.transport.identities import Role, read_public

    party = read_public(Path(file))
    if party.role is not role:
        where = {Role.SITE: "among the sites", Role.COORDINATOR: "--coordinator", Role.MONITOR: "--monitor"}
        own = f"this one is of the {party.role.value} {party.name}, and its place is {where[party.role]}"
        expected = f"the public file of a {role.value}: {own}. `hedgerow identity new` makes keys for each role"
        raise UsageError("argument", code="roster-file", name=f"A {role.value}'s file", value=file, expected=expected)
    return party


def compare_rosters(old: PinnedRoster, new: PinnedRoster) -> dict[str, list[str]]:
    """Return the names of parties that joined, left or renewed their keys, of every role."""
    before = {party.name: party for party in old.everybody}
    after = {party.name: party for party in new.everybody}
    return {
        "joined": sorted(after.keys() - before.keys()),
        "left": sorted(before.keys() - after.keys()),
        "renewed": sorted(name for name in after.keys() & before.keys() if after[name] != before[name]),
    }


def show_roster(arguments: argparse.Namespace) -> None:
    """Print the roster's fingerprint and everybody's."""
    from hedgerow.transport.identities import read_roster

    roster = read_roster(Path(arguments.roster))
    if arguments.json:
        print_json(describe_roster(roster))
        return
    print_facts([("edition", str(roster.edition)), ("fingerprint", roster.fingerprint())])
    if roster.max_rows:
        print_facts([("largest numbers of rows", rows_text(roster))])
    print()
    print_facts([(f"{one.name} ({one.role.value})", one.fingerprint()) for one in roster.everybody])


def rows_text(roster: PinnedRoster) -> str:
    """List the sites' largest numbers of rows, for sites that state one."""
    rows = {site.name: roster.find_max_rows(site.name) for site in roster.sites}
    return ", ".join(f"{name} {most:,}" for name, most in rows.items() if most)


def describe_roster(roster: PinnedRoster) -> dict[str, Any]:
    """Describe a roster for programs."""
    return {
        "epoch": roster.edition,
        "fingerprint": roster.fingerprint(),
        "digest": roster.digest().hex(),
        "coordinator": describe_party(roster.coordinator),
        "sites": [
            {**describe_party(site), **({"max_rows": most} if (most := roster.find_max_rows(site.name)) else {})}
            for site in roster.sites
        ],
        "monitors": [describe_party(monitor) for monitor in roster.monitors],
    }
