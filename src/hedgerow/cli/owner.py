"""For the owner of a site's rows: ``hedgerow check``, how a table fits a plan, and ``hedgerow approve``.

Nothing that `check` prints may leave the site. What `approve` needs is imported there: `check` loads neither numba nor
scipy.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hedgerow.app.fit import cells, is_loss, rest
from hedgerow.app.inputs import adapted_table, asked, is_terminal, read_plan
from hedgerow.app.output import PRIVATE, PRIVATE_MARK, alarm, note, print_facts, print_json, width, wrapped
from hedgerow.app.owner import answer, command_of, facts_of
from hedgerow.data.drafts import usable_columns
from hedgerow.data.fit import TableFit, counted, header_advice, table_fit
from hedgerow.data.sources import Location, column_names, is_url, opened
from hedgerow.data.units import MANY, needed_columns
from hedgerow.plan.fields import shown
from hedgerow.plan.names import looks_like_identifier
from hedgerow.plan.plan import MAX_CATEGORIES, Plan

_TITLES = ("column", "kind", "missing", "clamped", "not listed", "unreadable")
_WATCHED_ROWS = 65_536
"""In which values that repeat are looked for."""


def check(arguments: argparse.Namespace) -> TableFit:
    """Print how many rows are used, one line a column, what its owner should look at, and what would mend it."""
    plan = read_plan(arguments.plan)
    place = adapted_table(arguments.data, arguments.adapter)
    if not arguments.json:
        _note_header(place, plan)
    found = table_fit(place, plan)
    if arguments.json:
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
        return found
    table = "The query's result" if is_url(arguments.data) else arguments.data
    about = f"{shown(table)} beside the plan {plan.name!r}. {PRIVATE}"
    print(f"{wrapped(about, hanging=0)}\n")
    _print_fit(found)
    if plan.privacy.unit == "record":
        others = [name for name in usable_columns(column_names(place)) if name not in needed_columns(plan)]
        if question := whose_rows(place, others):
            print("\n" + wrapped(question, hanging=0))
    return found


def _print_fit(found: TableFit) -> None:
    (alarm if is_loss(found) else print)(wrapped(found.rows.text(), hanging=0))
    print()
    _print_columns(found)
    if findings := found.findings():
        print("\nTo look at")
        print_facts(findings)
    for title, name in (("Not listed", "unlisted"), ("Not read", "unread")):
        texts = {own.name: (getattr(own, name), own.n_unlisted if name == "unlisted" else own.n_unreadable)
                 for own in found.columns if getattr(own, name)}  # fmt: skip
        if texts:
            print(f"\n{title}, and how often")
            print_facts([(name, counted(odd, n - sum(odd.values()))) for name, (odd, n) in texts.items()])
    if found.mending:
        title = (
            "Tried on this table: with these lines of this site's own file (docs/data.md) more of its cells are read, "
            "and no other cell changes. Take them if that is what the cells mean"
        )
        print(f"\n{wrapped(title, hanging=0)}")
        print("\n".join(["  [data]", *(f"  {line}" for line in found.mending)]))
    if found.ignored:
        print("\n" + wrapped(rest(found), hanging=0))
    if any(column.beyond > MANY for column in found.columns):
        note(
            "Change bounds and lists by what the code book says or anybody knows, not by what stands in these rows: "
            "what the plan says is published. Too narrow bounds spoil a model in silence, too wide ones cost it nearly "
            "nothing."
        )


def whose_rows(place: Location, names: Sequence[str]) -> str:
    """What a table's owner is asked where values of columns repeat as people's do; "" where none do."""
    said = [f"{name} ({n_values:,} values, {n_different:,} different)"
            for name, (n_values, n_different) in _repeating(place, names).items()]  # fmt: skip
    if not said:
        return ""
    return (
        f"Values repeat in {'; '.join(said)}. If a column tells whose a row is, a promise for single rows is far "
        "weaker for whoever has several: name it as unit, with max_rows_per_unit, under [privacy], and leave it out of "
        "the features."
    )


def _repeating(place: Location, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Columns that may tell whose a row is, of people who have several: values, and how many different ones.

    They are called as identifiers are, or have hundreds of values most of which occur again. The first rows are read.

    Raises:
        DataError: the table cannot be read, or has no rows.
    """
    # What does not fit is left out: its rows decide nothing here.
    batch: Sequence[Any] = next(iter(opened(place).batches(names, _WATCHED_ROWS, {})), ()) if names else ()
    found = {}
    for name, column in zip(names, batch, strict=bool(batch)):
        cells = column if isinstance(column, list) else column.to_pylist()
        counts = Counter(str(cell) for cell in cells if cell not in (None, "", b""))
        again = sum(count > 1 for count in counts.values())
        is_quantity = any(re.search(r"[.,]|^.?.?[0-9]{4}-[0-9]{2}-", cell) for cell in counts)
        is_like_one = len(counts) > MAX_CATEGORIES and 2 * again >= len(counts) and not is_quantity
        if again and (is_like_one or looks_like_identifier(name)):
            found[name] = (counts.total(), len(counts))
    return found


def _note_header(table: Location, plan: Plan) -> None:
    """Say by which lines columns that are not there are found; the error that follows names them."""
    if set(needed_columns(plan)) <= set(column_names(table)):
        return
    if lines := header_advice(table, plan):
        note("Columns that are missing may be there otherwise. If so, this mends it in the site's own file:")
        print("\n".join(["  [data]", *(f"  {line}" for line in lines)]), file=sys.stderr)


def _print_columns(found: TableFit) -> None:
    """One line a column: a table, or, where the terminal has no room for it, what there is to say of each."""
    rows = [_TITLES, *(cells(column) for column in found.columns)]
    table = _table(rows)
    if max(map(len, table.split("\n"))) <= width():
        print(table)
        return
    facts = []
    for name, kind, *shares in rows[1:]:
        said = [f"{title} {share}" for title, share in zip(_TITLES[2:], shares, strict=True) if share not in ("", ".")]
        facts.append((name, ", ".join([kind, *said])))
    print_facts(facts)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[index]) for row in rows) for index in range(len(_TITLES))]
    lines = []
    for row in rows:
        first = f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}"
        lines.append("  ".join([first, *(f"{cell:>{width}}" for cell, width in zip(row[2:], widths[2:], strict=True))]))
    return "\n".join(lines)


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
                print_facts(facts_of(denied))
                note(f"It was denied. To approve it after all: {command_of(denied, arguments.folder)}")
            return
        print_facts(facts_of(question))
        if is_terminal():
            if (said := asked("Do you approve it? [yes/no]").lower()) in ("yes", "y", "no", "n"):
                note(answer(desk, question.id, approve=said.startswith("y")))
            return
        note(f"To approve it: {command_of(question, arguments.folder)}")
