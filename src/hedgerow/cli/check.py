"""``hedgerow check``: how a table fits a plan, for the owner of its rows. Nothing that it prints may leave the site.

A node looks at its tables by the same functions, each time that it starts.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path

from hedgerow.cli.inputs import adapted_table, read_plan
from hedgerow.cli.output import note, print_facts, print_json, wrapped
from hedgerow.client.policy import Policy
from hedgerow.data.codings import counted, renames
from hedgerow.data.fit import ColumnFit, TableFit, table_fit
from hedgerow.data.sources import Location, column_names, is_url
from hedgerow.data.units import MANY, needed_columns
from hedgerow.plan.fields import shown
from hedgerow.plan.plan import Plan

_TITLES = ("column", "kind", "missing", "clamped", "not listed", "unreadable")
_WIDEST_NAME = 32
_WORST = 4
"""Columns that a line names for one reason."""
_MOST_LINES = 12
Seen = Callable[[str, TableFit], object]


def run(arguments: argparse.Namespace) -> None:
    """Print one line a column, then what its owner should look at, and what would mend it."""
    plan = read_plan(arguments.plan)
    place = adapted_table(arguments.data, arguments.adapter)
    if not arguments.json:
        _note_renames(place, plan)
    found = table_fit(place, plan)
    if arguments.json:
        print_json(
            {
                "private": True,
                "plan_digest": plan.digest,
                "n_rows": found.n_rows,
                "left_out": found.unfit,
                "ignored": found.ignored,
                "columns": [{**dataclasses.asdict(column), "findings": column.findings()} for column in found.columns],
            }
        )
        return
    table = "The query's result" if is_url(arguments.data) else arguments.data
    print(f"{shown(table)} beside the plan {plan.name!r}. Private: exact counts of its rows, for their owner only.\n")
    print(_table(found))
    findings = [(column.name, "; ".join(column.findings())) for column in found.columns if column.findings()]
    if findings:
        print("\nTo look at")
        print_facts(findings)
    unlisted = [
        (column.name, counted(column.unlisted, column.n_unlisted - sum(column.unlisted.values())))
        for column in found.columns
        if column.unlisted
    ]
    if unlisted:
        print("\nNot listed, and how often")
        print_facts(unlisted)
    mending = [line for column in found.columns for line in column.mending.split("\n") if line]
    if mending:
        print("\nIf that is what these cells mean, it is mended by these lines of this site's own file (docs/data.md)")
        print("\n".join(["  [data]", *(f"  {line}" for line in dict.fromkeys(mending))]))
    print("\n" + wrapped(rest(found), hanging=0))
    if any(column.beyond > MANY for column in found.columns):
        note(
            "Change bounds and lists by what the code book says or anybody knows, not by what stands in these rows: "
            "what the plan says is published. Too narrow bounds spoil a model in silence, too wide ones cost it nearly "
            "nothing."
        )


def look(table: Location, plan: Plan, policy: Policy, tell: Callable[[str], object], seen: Seen | None = None) -> None:
    """Tell a node's owner, and no one else, how its table fits the plan, before anyone is dialled.

    No cell is told: what is said here may stand in a log. `seen` is given the table's name, and all that was found.

    The rows are read apart from this, though one pass could serve both. Of a start with a million rows and 17 columns
    it would save 0.8 of 3.6 seconds of processor time for CSV, 0.1 of 2.2 for Parquet, and nothing where a Flower node
    has kept its rows. But a strict reading, which ends at the first odd row, and kept rows would each need a look
    without a reading besides.

    Raises:
        DataError: the table cannot be read, or lacks a column.
        PolicyRefusal: more cells of a column are clamped, or not listed, than the policy lets pass.
    """
    found = table_fit(table, plan)
    name = "The query's result" if is_url(table) else Path(os.fspath(table)).name
    if seen is not None:
        seen(name, found)
    said = [f"{name}: {found.n_rows:,} rows read"]
    for words, counts in (
        ("clamped", {column.name: column.n_below + column.n_above for column in found.columns}),
        ("not listed", {column.name: column.n_unlisted for column in found.columns}),
        ("missing", {column.name: column.n_missing for column in found.columns}),
    ):
        worst = [each for each in sorted(counts, key=lambda each: -counts[each]) if counts[each]]
        if worst:
            shares = [f"{_share(counts[each], found.n_rows)} of {each!r}" for each in worst[:_WORST]]
            said.append(f"{words} {', '.join(shares)}" + (" and others" if len(worst) > _WORST else ""))
    tell(f"{'; '.join(said)} (private: for this site only)")
    odd = [column for column in found.columns if column.findings()]
    for column in odd[:_MOST_LINES]:
        tell(f"{name}, column {column.name!r}: {'; '.join(column.findings())} (private: for this site only)")
    if odd:
        tell("`hedgerow check` has the whole table, and what would mend it.")
    policy.check_fit(found)


def _note_renames(table: Location, plan: Plan) -> None:
    """Suggest where columns that are not there may be; the error that follows names them."""
    present = column_names(table)
    missing = [name for name in needed_columns(plan) if name not in present]
    line = renames(missing, [name for name in present if name not in needed_columns(plan)])
    if line:
        note("Columns that are missing may be there by other names. If so, this mends it in the site's own file:")
        print(f"  [data]\n  {line}", file=sys.stderr)


def _table(found: TableFit) -> str:
    rows = [_TITLES, *(cells(column) for column in found.columns)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(_TITLES))]
    lines = []
    for row in rows:
        first = f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}"
        lines.append("  ".join([first, *(f"{cell:>{width}}" for cell, width in zip(row[2:], widths[2:], strict=True))]))
    return "\n".join(lines)


def cells(column: ColumnFit) -> tuple[str, ...]:
    """A line of the table about a column: name, kind, shares of its cells."""
    name = shown(column.name)
    name = name if len(name) <= _WIDEST_NAME else name[: _WIDEST_NAME - 3] + "..."
    kind = column.kind if column.role != "label" else f"{column.kind} label"
    n_rows, is_numeric = column.n_rows, column.kind in ("numeric", "date")
    return (
        name,
        kind,
        _share(column.n_missing, n_rows),
        _share(column.n_below + column.n_above, n_rows) if is_numeric else "",
        _share(column.n_unlisted, n_rows) if column.kind == "categorical" else "",
        _share(column.n_unreadable, n_rows),
    )


def _share(count: int, n_rows: int) -> str:
    """A share for a person; not one cell is a dot, so that the eye finds the others."""
    if not count:
        return "."
    share = count / max(n_rows, 1)
    return f"{share:.0%}" if share >= 0.095 else f"{share:.1%}" if share >= 0.001 else "<0.1%"


def rest(found: TableFit) -> str:
    """What there is to say of a table besides its columns."""
    said = [f"{found.n_rows:,} rows."]
    if found.unfit:
        causes = ", ".join(f"{count:,} {code}" for code, count in sorted(found.unfit.items()))
        said.append(f"Besides, rows that are left out: {causes}.")
    if found.ignored:
        names = ", ".join(map(shown, found.ignored[:12]))
        more = f" and {len(found.ignored) - 12} more" if len(found.ignored) > 12 else ""
        said.append(f"Columns that the plan does not name, and nobody reads: {names}{more}.")
    return " ".join(said)
