"""For the owner of a site's rows: ``hedgerow check``, how a table fits a plan, and ``hedgerow approve``.

Nothing that `check` prints may leave the site. What `approve` needs is imported there: `check` loads neither numba nor
scipy.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import asdict
from pathlib import Path

from hedgerow.app.fit import show_fit
from hedgerow.app.inputs import adapt_table, is_terminal, prompt, read_plan
from hedgerow.app.output import PRIVATE_MARK, note, print_facts, print_json
from hedgerow.app.owner import answer, approval_command, list_facts
from hedgerow.data.fit import table_fit


def check(arguments: argparse.Namespace) -> None:
    """Print how many rows are used, one line a column, what its owner should look at, and what would mend it."""
    plan = read_plan(arguments.plan)
    place = adapt_table(arguments.data, arguments.adapter)
    if arguments.json:
        found = table_fit(place, plan)
        print_json(
            {
                **PRIVATE_MARK,
                "plan_digest": plan.digest,
                "n_rows": found.rows.n_rows,
                "n_used": found.rows.n_used,
                "left_out": found.rows.left_out,
                "ignored": found.ignored,
                "columns": [{**dataclasses.asdict(column), "findings": column.findings()} for column in found.columns],
            }
        )
    else:
        show_fit(plan, place, arguments.data)


# What a node asks its owner -------------------------------------------------------------------------------------------

def approve(arguments: argparse.Namespace) -> None:
    """Show what is asked, take the answer, or end the node's part."""
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
            if (denied := desk.denied_roster()) is not None:
                print_facts(list_facts(denied))
                note(f"It was denied. To approve it after all: {approval_command(denied, arguments.folder)}")
            return
        print_facts(list_facts(question))
        if is_terminal():
            if (said := prompt("Do you approve it? [yes/no]").lower()) in ("yes", "y", "no", "n"):
                note(answer(desk, question.id, approve=said.startswith("y")))
            return
        note(f"To approve it: {approval_command(question, arguments.folder)}")
