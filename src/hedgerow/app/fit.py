"""How a site's table fits a plan, for its owner and no one else: nothing that is said here may leave the site.

A node looks at its tables by the same functions as `hedgerow check`, each time that it starts. No heavy imports.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow.app.inputs import says_yes
from hedgerow.data.fit import ColumnFit, TableFit, table_fit
from hedgerow.data.sources import Location, is_url
from hedgerow.data.units import MOST_LEFT_OUT
from hedgerow.errors import PolicyRefusal
from hedgerow.plan.fields import shown
from hedgerow.plan.plan import Plan

if TYPE_CHECKING:
    from hedgerow.client.policy import Policy

_WIDEST_NAME = 32
_WORST = 4
"""Columns that a line names for one reason."""
_MOST_LINES = 12
Seen = Callable[[str, TableFit], object]
Tell = Callable[..., object]
"""Takes a line for the owner of the site, and no one else; with `level="WARNING"` what must not be passed over."""


def is_loss(found: TableFit) -> bool:
    """Whether more rows are left out than anybody should pass over, or no row is used."""
    return found.rows.share_left_out > MOST_LEFT_OUT


def look(table: Location, plan: Plan, policy: Policy, tell: Tell, seen: Seen | None = None) -> None:
    """Tell a node's owner, and no one else, how its table fits the plan, before anyone is dialled.

    No cell is told: what is said here may stand in a log. `seen` is given the table's name, and all that was found.

    The rows are read apart from this, though one pass could serve both. Of a start with a million rows and 17 columns
    it would save 0.8 of 3.6 seconds of processor time for CSV, 0.1 of 2.2 for Parquet, and nothing where a Flower node
    has kept its rows. But a strict reading, which ends at the first odd row, and kept rows would each need a look
    without a reading besides.

    Raises:
        DataError: the table cannot be read, or lacks a column.
        PolicyRefusal: more rows are left out, or cells of a column clamped or not listed, than the policy lets pass.
    """
    found = table_fit(table, plan)
    name = "The query's result" if is_url(table) else Path(os.fspath(table)).name
    rows = f"{name}: {found.rows.text()} (private: for this site only)"
    tell(rows, level="WARNING") if is_loss(found) else tell(rows)
    said = [name]
    for words, counts in (
        ("clamped", {column.name: column.n_below + column.n_above for column in found.columns}),
        ("not listed", {column.name: column.n_unlisted for column in found.columns}),
        ("missing", {column.name: column.n_missing for column in found.columns}),
    ):
        worst = [each for each in sorted(counts, key=lambda each: -counts[each]) if counts[each]]
        if worst:
            n_cells = {column.name: column.n_rows for column in found.columns}
            shares = [f"{_share(counts[each], n_cells[each])} of {each!r}" for each in worst[:_WORST]]
            said.append(f"{words} {', '.join(shares)}" + (" and others" if len(worst) > _WORST else ""))
    if said[1:]:
        tell(f"{said[0]}: {'; '.join(said[1:])} (private: for this site only)")
    odd = found.findings()
    for title, text in odd[:_MOST_LINES]:
        tell(f"{name}, {title!r}: {text} (private: for this site only)")
    if odd:
        tell("`hedgerow check` has the whole table, and what would mend it.")
    if seen is not None:
        seen(name, found)
    policy.check_fit(found)


def ask_of_loss(name: str, found: TableFit) -> None:
    """Where many rows are left out, or none is used, ask whether to take part all the same; a terminal is there.

    Raises PolicyRefusal "not-agreed".
    """
    if is_loss(found) and not says_yes(f"{name}: {found.rows.text()} Take part all the same?", if_empty="no"):
        raise PolicyRefusal("not-agreed")


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
    """What there is to say of a table besides the columns that are read."""
    names = ", ".join(map(shown, found.ignored[:12]))
    more = f" and {len(found.ignored) - 12} more" if len(found.ignored) > 12 else ""
    return f"Columns that the plan does not name, and that are not read: {names}{more}." if found.ignored else ""
