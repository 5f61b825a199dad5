# SPDX-License-Identifier: Apache-2.0
"""``hedgerow node``: take part in a run with this site's table, within what its owner allows."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.app.inputs import is_terminal
from hedgerow.app.options import NodeOptions
from hedgerow.app.output import begin_log, print_facts, print_json
from hedgerow.cli.options import SITE_CONSOLE, Words, add_command, add_fields, add_shared, read_options
from hedgerow.transport.interface import Address

if TYPE_CHECKING:
    from hedgerow.app.node import NodeResult
    from hedgerow.app.page import SitePage


_NODE_EXAMPLE = """\
example:
  hedgerow node north.csv --plan plan.toml --roster roster.toml \\
      --identity north.private.json --policy policy.toml \\
      --connect hedgerow.example.org:7443
  hedgerow node --held-out north-test.csv --plan plan.toml \\
      --roster roster.toml --identity north.private.json --policy policy.toml \\
      --serve --connect hedgerow.example.org:7443

A node takes part in one run, of training or of evaluation, as the coordinator proposes and the policy allows; with
--serve in one after another, and it keeps the model and the report of each (`hedgerow coordinator --hand-out`).
`hedgerow node backup --help` and `hedgerow node restore --help` tell of backups.
"""


def add_commands(commands: Any) -> None:
    """Add `node`, `warm-up` and `resident-node`."""
    text = "take part in a run with this site's table"
    add = add_command(commands, "node", run, text, _NODE_EXAMPLE)
    add_fields(add, NodeOptions, "data", nargs="?")
    add_fields(add, NodeOptions, "--arrivals", "--held-out", "--model", "--plan", "--roster", "--identity", "--policy")
    add_fields(add, NodeOptions, "--connect", required=True)
    add_fields(add, NodeOptions, "--engine", "--state", "--external-memory", "--shards", "--budget")
    add("--serve", action="store_true", help="stay for the next run and evaluation, and receive each one's model")
    add_fields(add, NodeOptions, "--out", "--leave", "--threads", "--log-format")
    add("--console", **SITE_CONSOLE)
    add_shared(add, "--json")
    words = Words(commands.choices["node"])
    text = "write what may be restored of a site's folder into one file, the budget book with it"
    add = add_command(words, "backup", back_up, text)
    add("folder", metavar="FOLDER", help="a party's folder of a study (STUDY-PARTY); of a state folder, the book alone")
    add("file", metavar="FILE", help="the new file, which holds private keys")
    text = "make a site's folder out of a backup; its budget book waits until its owner has charged what it lacks"
    add = add_command(words, "restore", restore, text)
    add("file", metavar="FILE", help="what `hedgerow node backup` has written")
    add("folder", metavar="FOLDER", help="the folder, which must not be there")
    add("--budget", type=Path, metavar="BOOK", help="where the budget book goes (beside the folder)")
    add("--keep-book", action="store_true", help="keep the budget book that is there, and leave out the backup's")
    text = "compile the inner loops now, so that no run waits for it"
    add = add_command(commands, "warm-up", compile_kernels, text)
    add("--quiet", action="store_true", help="say nothing")
    text = "answer for this site what Flower or NVFlare hands over"
    add = add_command(commands, "resident-node", answer_carriers, text)
    add("site", metavar="SITE", help="the site's TOML file; docs/flower.md has one to begin with")
    add("--socket", required=True, metavar="PATH", help="where the user of the SuperNode or client may knock")
    add_fields(add, NodeOptions, "--leave", "--log-format")


def run(arguments: argparse.Namespace) -> None:
    """Take part in one run, or with --serve in one after another; a page stays beyond that."""
    from hedgerow.app.node import stay, take_part
    from hedgerow.transport.identities import read_private

    options = read_options(NodeOptions, arguments, connect=str(Address.parse(arguments.connect, "--connect")))
    report = partial(print_result, as_json=arguments.json)
    where: AbstractContextManager[SitePage | None] = nullcontext()
    if arguments.console is not None:
        # An extra: only who wants the page needs it.
        from hedgerow.app.page import SitePage

        name = read_private(Path(arguments.identity)).public.name
        begin_log(name, arguments.log_format)
        where = SitePage(arguments.console, name)
    with where as page:
        if arguments.serve:
            stay(options, report, page, asks=is_terminal())
        else:
            report(take_part(options, page, asks=is_terminal()))
        if page is not None:
            page.wait()


def back_up(arguments: argparse.Namespace) -> None:
    """Write a backup of a site's folder."""
    from hedgerow.app.backup import back_up_node

    back_up_node(Path(arguments.folder), Path(arguments.file))


def restore(arguments: argparse.Namespace) -> None:
    """Make a site's folder out of a backup."""
    from hedgerow.app.backup import restore_node

    place = Path(arguments.folder)
    restore_node(Path(arguments.file), place, arguments.budget, keeps_book=arguments.keep_book)


def compile_kernels(arguments: argparse.Namespace) -> None:
    """Have the kernels of a usual run in numba's cache."""
    from hedgerow.app.progress import note_if_slow
    from hedgerow.client.node import warm_up

    with note_if_slow(quiet=arguments.quiet):
        warm_up(None)


def print_result(done: NodeResult, *, as_json: bool) -> None:
    """Print the result of a run, and the cost of this site's data so far."""
    from hedgerow.app.evaluation import score_facts
    from hedgerow.app.owner import format_budget
    from hedgerow.evaluation.estimates import Evaluation
    from hedgerow.survey.curves import SurvivalCurves
    from hedgerow.trees.ensemble import Ensemble

    result, policy, spent = done.result, done.policy, done.spent
    if as_json:
        found: dict[str, Any]
        if isinstance(result, Ensemble):
            found = {"n_trees": result.n_trees}
        elif isinstance(result, Evaluation):
            found = {"evaluation": result.to_dict()}
        else:
            found = {"statistics": result.to_dict()}
        budget = {"data_set": policy.data_set, "spent": spent, "max_epsilon": policy.max_epsilon, "delta": policy.delta}
        print_json({"site": done.site, **found, "budget": budget})
        return
    facts = [("site", done.site)]
    if isinstance(result, Ensemble):
        facts.append(("model", f"{result.n_trees} trees"))
    elif isinstance(result, Evaluation):
        facts += score_facts(result)
    elif isinstance(result, SurvivalCurves):
        facts.append(("curves", f"of {len(result.curves)} groups"))
    else:
        facts.append(("statistics", f"of {len(result.columns)} columns"))
    budget_text = format_budget(spent, policy.max_epsilon, policy.delta)
    print_facts([*facts, ("budget", f"{policy.data_set}: {budget_text}")])


def answer_carriers(arguments: argparse.Namespace) -> None:
    """Answer until interrupted."""
    from hedgerow.carriers.resident import serve_resident

    serve_resident(Path(arguments.site), Path(arguments.socket), arguments.log_format, leaves=arguments.leave)
