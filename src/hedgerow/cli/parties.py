# SPDX-License-Identifier: Apache-2.0
"""``hedgerow study keys`` and ``study roster``: a party's files for runs whose keys travel without invitations."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.app.inputs import check_can_write, read_max_rows
from hedgerow.app.output import note, print_facts, print_json
from hedgerow.cli.options import add_command, add_shared
from hedgerow.errors import UsageError

if TYPE_CHECKING:
    from hedgerow.transport.identities import PinnedRoster, PublicIdentity


def add_commands(actions: Any) -> None:
    """Add `keys` and `roster` to the commands of a study."""
    text = "make the keys of a party by hand: for carriers, services and monitors without an invitation"
    add = add_command(actions, "keys", make_keys, text)
    add("name", metavar="NAME", help="the party's name, as all others will see it")
    role = actions.choices["keys"].add_mutually_exclusive_group()
    role.add_argument("--coordinator", action="store_true", help="the keys are the coordinator's, not a site's")
    role.add_argument("--monitor", action="store_true", help="the keys are for watching runs, not a site's")
    add("--folder", default=".", metavar="FOLDER", help="where to write the two files (%(default)s)")
    add_shared(add, "--json")
    text = "make a roster out of the parties' public files, or show one, with all fingerprints"
    add = add_command(actions, "roster", roster, text)
    add("files", nargs="+", metavar="FILE", help="the .public.toml of every party; or one roster, to show it")
    text = "the most rows that a site has: its node keeps its sums within what they can add up to; repeat"
    add("--max-rows", action="append", default=[], metavar="NAME=N", help=text)
    add("--previous", metavar="ROSTER", help="the roster that this one follows: a new edition")
    text = "file to write; an existing one is kept (%(default)s)"
    add("--out", default="roster.toml", metavar="ROSTER", help=text)
    add_shared(add, "--json")


def make_keys(arguments: argparse.Namespace) -> None:
    """Write the private and the public file, and explain what to do with each."""
    from hedgerow.transport.identities import Role, create_identity

    folder = Path(arguments.folder)
    check_can_write(str(folder / "identity"))
    role = Role.COORDINATOR if arguments.coordinator else Role.MONITOR if arguments.monitor else Role.SITE
    identity, private, public = create_identity(folder, arguments.name, role)
    facts = {**describe_party(identity.public), "private_file": str(private), "public_file": str(public)}
    if arguments.json:
        print_json(facts)
        return
    print_facts([(name.replace("_", " "), value) for name, value in facts.items()])
    note(
        f"Keep {private} on this machine and in its backup; no one else needs it. Send {public} to the builder of the "
        "roster, and read them the fingerprint over the phone."
    )


def describe_party(identity: PublicIdentity) -> dict[str, str]:
    """Describe a party for programs."""
    return {
        "name": identity.name,
        "role": identity.role.value,
        "fingerprint": identity.fingerprint(),
        "identity_key": identity.identity_key.hex(),
        "certificate_sha256": identity.certificate_sha256.hex(),
    }


def roster(arguments: argparse.Namespace) -> None:
    """Write the roster of these parties, or read one; print the fingerprints that people compare."""
    from hedgerow.transport.identities import PUBLIC_SUFFIX, describe_change, read_roster, write_new

    file, *more = arguments.files
    if not more and not file.endswith(PUBLIC_SUFFIX):
        show(read_roster(Path(file)), arguments.json, file=file)
        return
    out = check_can_write(arguments.out)
    previous = None if arguments.previous is None else read_roster(Path(arguments.previous))
    built = build(arguments.files, previous, arguments.max_rows)
    write_new(out, built.to_toml())
    show(built, arguments.json, file=str(out), changes="" if previous is None else describe_change(built, previous))
    if not arguments.json:
        note(
            "Send the file to the coordinator and to every site. Each compares the fingerprint over the phone before "
            "it starts a node with it."
        )


def build(files: list[str], previous: PinnedRoster | None, max_rows: list[str]) -> PinnedRoster:
    """Build the roster of the parties in these public files, each by the role that its file says."""
    from hedgerow.transport.identities import Role, build_roster, read_public

    rows: dict[str, int] = {}
    for given in max_rows:
        name, _, number = given.partition("=")
        rows[name] = read_max_rows(given, "" if name in rows else number, "NAME=N once for a site, as in north=5000")
    parties = [read_public(Path(file)) for file in files]
    by_role = {role: [party for party in parties if party.role is role] for role in Role}
    if len(by_role[Role.COORDINATOR]) != 1:
        expected = "one coordinator's file among them; `hedgerow study keys NAME --coordinator` makes one"
        found = ", ".join(f"{party.name} ({party.role.value})" for party in parties)
        raise UsageError("argument", code="roster-file", name="A roster's files", value=found, expected=expected)
    return build_roster(by_role[Role.COORDINATOR][0], by_role[Role.SITE], previous, by_role[Role.MONITOR], rows)


def show(pinned: PinnedRoster, as_json: bool, **more: str) -> None:
    """Print a roster's fingerprint and everybody's, with these facts."""
    rows = {party.name: pinned.find_max_rows(party.name) for party in pinned.everybody}
    if as_json:
        parties = [{**describe_party(one), "max_rows": rows[one.name] or None} for one in pinned.everybody]
        facts = {"epoch": pinned.edition, "fingerprint": pinned.fingerprint(), "digest": pinned.digest().hex()}
        print_json({**facts, **more, "parties": parties})
        return
    lines = {"edition": str(pinned.edition), **more, "fingerprint": pinned.fingerprint()}
    print_facts([(name, value) for name, value in lines.items() if value])
    print()
    most = {name: f", at most {number:,} rows" if number else "" for name, number in rows.items()}
    print_facts([(f"{one.name} ({one.role.value})", one.fingerprint() + most[one.name]) for one in pinned.everybody])
