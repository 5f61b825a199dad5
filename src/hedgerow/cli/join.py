# SPDX-License-Identifier: Apache-2.0
"""``hedgerow join``: a site's way from an invitation to a run, and a monitor's."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.app.options import JoinOptions
from hedgerow.app.output import print_facts, print_json
from hedgerow.cli.options import SITE_CONSOLE, add_command, add_fields, add_shared, read_options
from hedgerow.errors import UsageError

if TYPE_CHECKING:
    from hedgerow.app.node import NodeResult
    from hedgerow.app.page import SitePage


_JOIN_END = """\
The keys that it makes stay in the folder STUDY-PARTY beside the invitation. Ended by Ctrl-C (exit code 130), SIGTERM
(143) or by anything else, and started again, it goes on where it was.
"""


def add_commands(commands: Any) -> None:
    """Add `join`."""
    add = add_command(commands, "join", run, "take part in a study, by its invitation", _JOIN_END)
    add_fields(add, JoinOptions, "invitation", nargs="?")
    add_fields(add, JoinOptions, "--data", "--held-out", "--data-set", "--max-rows", "--plan")
    add("--once", action="store_true", help="end after one run; otherwise wait for the next")
    add_fields(add, JoinOptions, "--policy", "--adapter", "--yes", "--expect", "--connect")
    add("--confirm", metavar="WORDS", help="say which four words the operator has read to you, and end")
    add_fields(add, JoinOptions, "--folder", "--budget", "--threads", "--log-format")
    text = "take part in nothing; say how the node of this folder is, with an exit code for each state to alarm on"
    add("--status", metavar="FOLDER", help=text)
    add("--console", **SITE_CONSOLE)
    add_shared(add, "--json")


def run(arguments: argparse.Namespace) -> None:
    """Agree, enrol, have the words compared, and take part."""
    if arguments.status is not None:
        show_status(arguments)
        return
    if arguments.invitation is None:
        raise UsageError("usage-missing", missing="An INVITATION, or --status FOLDER,")
    from hedgerow.app.join import confirm, join
    from hedgerow.study import read_invitation
    from hedgerow.transport.identities import Role

    invitation = read_invitation(Path(arguments.invitation))
    options = read_options(JoinOptions, arguments)
    if arguments.confirm is not None:
        confirm(invitation, options.party_folder(invitation), arguments.confirm)
        return
    is_site = invitation.role is Role.SITE
    where: AbstractContextManager[SitePage | None] = nullcontext()
    if arguments.console is not None and is_site:
        # An extra: only who wants the page needs it. A monitor's is that of the run, and begins with it.
        from hedgerow.app.page import SitePage

        where = SitePage(arguments.console, invitation.party, invitation.study)
    with where as page:
        party = join(options, invitation, page)
        # What takes part in runs needs numba, and who confirms words does not.
        if not is_site:
            from hedgerow.app.monitor import watch

            watch(
                party.roster, party.identity, party.connect, console=arguments.console, as_json=arguments.json,
                follows=not arguments.once,
            )  # fmt: skip
            return
        from hedgerow.app.node import stay
        from hedgerow.cli.node import print_result

        def report(done: NodeResult) -> None:
            print_result(done, as_json=arguments.json)

        stay(party, report, page, is_once=arguments.once, has_met=True)
        if page is not None:
            page.wait()


def show_status(arguments: argparse.Namespace) -> None:
    """Print how a site's node is; ends with the exit code of the gravest state."""
    from hedgerow.app.life import EXIT_CODES, describe_node

    if arguments.invitation is not None:
        raise UsageError("usage-beside", option="INVITATION", other="--status")
    found = describe_node(Path(arguments.status), None if arguments.budget is None else Path(arguments.budget))
    states = found["states"]
    if arguments.json:
        print_json(found)
    else:
        from hedgerow.app.owner import format_budget

        run, budget, question = found["last_run"], found["budget"], found["question"]
        print_facts(
            [
                ("state", ", ".join(states) or "well"),
                ("last sign", found["last_sign"] or "none"),
                ("last contact", found["last_contact"] or "none"),
                ("last run", f"{run['status']}, {run['plan']}, begun {run['begun']} UTC" if run else "none"),
                (
                    "budget",
                    f"{budget['data_set']}: {format_budget(budget['spent'], budget['max_epsilon'], budget['delta'])}"
                    if budget
                    else "no book yet",
                ),
                ("question", f"{question['kind']}, asked {question['asked']} UTC" if question else "none"),
            ]
        )
    if states:
        raise SystemExit(EXIT_CODES[states[0]])
