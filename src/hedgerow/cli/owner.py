# SPDX-License-Identifier: Apache-2.0
"""For the owner of a site's rows: ``hedgerow check``, how a table fits a plan, and ``hedgerow approve``.

Nothing that `check` prints may leave the site. What `approve` needs is imported there: `check` loads neither numba nor
scipy.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from hedgerow.app.inputs import adapt_table, is_terminal, prompt, read_plan
from hedgerow.app.output import PRIVATE_MARK, note, print_facts, print_json
from hedgerow.app.owner import answer, approval_command, list_facts
from hedgerow.cli.options import add_command, add_shared

_APPROVE_END = """\
A node asks where its policy says ask = "always". An approval holds for one run, by one plan, at one cost.
"""


def add_commands(commands: Any) -> None:
    """Add `check` and `approve`."""
    text = "show how a table fits a plan, column by column: for the owner of its rows, never to be sent"
    add = add_command(commands, "check", check, text)
    add_shared(add, "plan")
    add("data", metavar="DATA", help="a .csv, .csv.gz or .parquet file, or a database's URL with # and a query")
    text = "also compare its columns with what a survey has released of all sites' (survey.json)"
    add("--against", metavar="SURVEY", help=text)
    text = "a code book, as for `plan init`: its words explain codes of the plan in other writings"
    add("--codebook", metavar="CSV", help=text)
    add_shared(add, "--adapter", "--allow-loss", "--json")
    text = "show what a site's node asks its owner; approve it, refuse it, or stop taking part"
    add = add_command(commands, "approve", approve, text, _APPROVE_END)
    add("folder", metavar="FOLDER", help="the node's folder (`--state`), or a party's of a study (STUDY-PARTY)")
    add("question", nargs="?", metavar="QUESTION", help="approve this question, by its 32 digits, without asking")
    ways = commands.choices["approve"].add_mutually_exclusive_group()
    ways.add_argument("--deny", action="store_true", help="deny what is asked, or QUESTION")
    text = "the node leaves its run for good, charged for what it has answered, and ends"
    ways.add_argument("--stop", action="store_true", help=text)
    add("--json", action="store_true", help="print what is asked as one JSON object")


def check(arguments: argparse.Namespace) -> None:
    """Print counts of the rows used, one line a column, and findings for the owner with their remedies.

    Raises LostRowsError if more rows are left out than --allow-loss says. No command that may release anything ends by
    such a count, so scripts ask here first.
    """
    from hedgerow.app.fit import show_differences, show_fit, use_survey
    from hedgerow.data.differences import list_differences
    from hedgerow.data.drafts import read_codebook
    from hedgerow.data.fit import table_fit
    from hedgerow.data.sources import is_url
    from hedgerow.data.units import MAX_LEFT_OUT

    plan = read_plan(arguments.plan)
    place = adapt_table(arguments.data, arguments.adapter)
    book = None if arguments.codebook is None else read_codebook(arguments.codebook)
    compare = partial(list_differences, place, plan)
    if arguments.json:
        found = table_fit(place, plan, book=book)
        differences = None if arguments.against is None else use_survey(arguments.against, compare)
        print_json(
            {
                **PRIVATE_MARK,
                "plan_digest": plan.digest,
                "n_rows": found.rows.n_rows,
                "n_used": found.rows.n_used,
                "left_out": found.rows.left_out,
                "ignored": found.ignored,
                "columns": [{**dataclasses.asdict(column), "findings": column.findings()} for column in found.columns],
                **({} if differences is None else {"differences": [asdict(difference) for difference in differences]}),
            }
        )
    else:
        found = show_fit(plan, place, arguments.data, book)
        if arguments.against is not None:
            show_differences(use_survey(arguments.against, compare))
    name = "The query's result" if is_url(arguments.data) else arguments.data
    found.rows.require(name, MAX_LEFT_OUT if arguments.allow_loss is None else arguments.allow_loss)


# What a node asks its owner -------------------------------------------------------------------------------------------


def approve(arguments: argparse.Namespace) -> None:
    """Show the open question, take the answer, or end the node's part."""
    from hedgerow.client.state import owner_desk

    with owner_desk(Path(arguments.folder)) as desk:
        if arguments.stop:
            desk.stop()
            note("The node leaves its run, charged for what it has answered, and ends: now, or when it is started.")
            return
        question = desk.pending()
        if arguments.question is not None or arguments.deny:
            asked_for = arguments.question or (question.id if question else "")
            note(answer(desk, asked_for, approve=not arguments.deny))
            return
        if arguments.json:
            print_json({"question": None if question is None else {"id": question.id, **asdict(question)}})
            return
        if question is None:
            note("Nothing is asked.")
            if (denied := desk.find_denied_roster()) is not None:
                print_facts(list_facts(denied))
                note(f"It was denied. To approve it after all: {approval_command(denied, arguments.folder)}")
            return
        print_facts(list_facts(question))
        if is_terminal():
            if (said := prompt("Do you approve it? [yes/no]").lower()) in ("yes", "y", "no", "n"):
                note(answer(desk, question.id, approve=said.startswith("y")))
            return
        note(f"To approve it: {approval_command(question, arguments.folder)}")
