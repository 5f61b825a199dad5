"""``hedgerow join``: a site's way from an invitation to a run, and a monitor's."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow.app.join import JoinOptions, confirm, join
from hedgerow.cli.options import read_options
from hedgerow.study import read_invitation
from hedgerow.transport.identities import Role

if TYPE_CHECKING:
    from hedgerow.app.node import NodeResult
    from hedgerow.app.page import SitePage


def run(arguments: argparse.Namespace) -> None:
    """Agree, enrol, have the words compared, and take part."""
    invitation = read_invitation(Path(arguments.invitation))
    options = read_options(JoinOptions, arguments, connect=arguments.connect or "")
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
            from hedgerow.cli.monitor import watch

            watch(party.roster, party.identity, party.address, console=arguments.console, as_json=arguments.json)
            return
        from hedgerow.app.node import stay
        from hedgerow.cli.node import print_result

        def report(done: NodeResult) -> None:
            print_result(done, as_json=arguments.json)

        stay(party, report, page, is_once=arguments.once, has_met=True)
        if page is not None:
            page.wait()
