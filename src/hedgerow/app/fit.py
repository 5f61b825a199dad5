# SPDX-License-Identifier: Apache-2.0
"""How a site's table fits a plan, for its owner and no one else: nothing that is said here may leave the site.

A node looks at its tables by the same functions as `hedgerow check`, each time that it starts. No heavy imports.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hedgerow.app.inputs import read_text, says_yes
from hedgerow.app.output import PRIVATE, alarm, note, print_facts, width, wrap_text
from hedgerow.app.progress import status
from hedgerow.data.cells import MANY
from hedgerow.data.differences import Difference
from hedgerow.data.fit import ColumnFit, TableFit, format_counts, table_fit
from hedgerow.data.sources import Location, column_names, is_url, open_table
from hedgerow.data.units import MAX_LEFT_OUT, list_needed_columns
from hedgerow.errors import HedgerowError, PolicyRefusal, UsageError, mark_private
from hedgerow.plan.draft import Entry
from hedgerow.plan.fields import escape_for_terminal, read_json
from hedgerow.plan.names import looks_like_identifier, usable_columns
from hedgerow.plan.plan import MANY_CATEGORIES, Plan

_TITLES = ("column", "kind", "missing", "clamped", "not listed", "unreadable")
_SAMPLED_ROWS = 65_536
"""In which values that repeat are looked for."""
_MAX_NAME = 32
_WORST = 4
"""Columns that a line names for one reason."""
_MAX_LINES = 12
_EXPLAINED = (
    "Words of the plan, or of the code book, explain every text of these columns, one to one. If that is what the "
    "cells mean, these lines go into this site's own file (docs/data.md)"
)
Seen = Callable[[str, TableFit], object]
Used = TypeVar("Used")
Tell = Callable[..., object]
"""Takes a line for the owner of the site, and no one else; with `level="WARNING"` what must not be passed over."""


def is_mostly_left_out(found: TableFit) -> bool:
    """Return whether no row is used, or more rows are left out than the usual limit."""
    return found.rows.share_left_out > MAX_LEFT_OUT


def show_fit(plan: Plan, place: Location, table: str, book: Mapping[str, Entry] | None = None) -> TableFit:
    """Print the rows used, one line per column, the findings for the owner, and lines that remedy them.

    Args:
        place: where the table is, and how its site writes it.
        table: as its owner calls it.
        book: a code book, if there is one.
    """
    with status("Reading"):
        found = table_fit(place, plan, book=book)
    name = "The query's result" if is_url(table) else table
    about = f"{escape_for_terminal(name)} beside the plan {plan.name!r}. {PRIVATE}"
    print(f"{wrap_text(about, hanging=0)}\n")
    _print_fit(found)
    if plan.privacy.unit == "record":
        others = [name for name in usable_columns(column_names(place)) if name not in list_needed_columns(plan)]
        if question := whose_rows(place, others):
            print("\n" + wrap_text(question, hanging=0))
    return found


def use_survey(path: str, use: Callable[[dict[str, Any]], Used]) -> Used:
    """Read a survey.json and return what `use` makes of it; raise UsageError "usage" for another file."""
    try:
        found = read_json(read_text(path))
        found["n_records"]["deviation"], found["columns"][0]["groups"]
        return use(found)
    except HedgerowError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as fault:
        expected = "the survey.json of `hedgerow survey`"
        raise UsageError("argument", code="usage", name="The survey", value=path, expected=expected) from fault


def show_differences(found: Sequence[Difference]) -> None:
    """Print the columns that seem to mean something else than at the other sites, with their remedies."""
    if not found:
        print("\n" + wrap_text("Beside the survey: no column differs beyond its noise and chance.", hanging=0))
        return
    print("\nBeside the other sites, by the survey, if these rows are in it")
    print_facts([(difference.name, difference.text) for difference in found])
    if lines := [difference.line for difference in found if difference.line]:
        _print_lines("the difference goes away", lines)


def _print_lines(effect: str, lines: Sequence[str]) -> None:
    tried = f"Tried on this table: with these lines of this site's own file (docs/data.md) {effect}."
    print(f"\n{wrap_text(f'{tried} Take them if that is what the cells mean', hanging=0)}")
    print("\n".join(["  [data]", *(f"  {line}" for line in lines)]))


def _print_fit(found: TableFit) -> None:
    (alarm if is_mostly_left_out(found) else print)(wrap_text(found.rows.text(), hanging=0))
    print()
    _print_columns(found)
    if findings := found.findings():
        print("\nTo look at")
        print_facts(findings)
    for title, name in (("Not listed", "unlisted"), ("Not read", "unread")):
        texts = {column.name: (getattr(column, name), column.n_unlisted if name == "unlisted" else column.n_unreadable)
                 for column in found.columns if getattr(column, name)}  # fmt: skip
        if texts:
            print(f"\n{title}, and how often")
            print_facts([(name, format_counts(odd, n - sum(odd.values()))) for name, (odd, n) in texts.items()])
    if found.suggested_lines:
        print(f"\n{wrap_text(_EXPLAINED, hanging=0)}")
        print("\n".join(["  [data]", *(f"  {line}" for line in found.suggested_lines)]))
    if found.ignored:
        print("\n" + wrap_text(describe_unused_columns(found), hanging=0))
    if any(column.beyond > MANY for column in found.columns):
        note(
            "Change bounds and lists by what the code book says or anybody knows, not by what stands in these rows: "
            "what the plan says is published. Too narrow bounds spoil a model in silence, too wide ones cost it "
            "little from about 10,000 rows at epsilon 1 on."
        )


def whose_rows(place: Location, names: Sequence[str]) -> str:
    """Return the question to a table's owner about values that repeat like people's; "" for none."""
    said = [f"{name} ({n_values:,} values, {n_different:,} different)"
            for name, (n_values, n_different) in _find_repeating(place, names).items()]  # fmt: skip
    if not said:
        return ""
    return (
        f"Values repeat in {'; '.join(said)}. If a column tells whose a row is, a promise for single rows is far "
        "weaker for whoever has several: name it as unit, with max_rows_per_unit, under [privacy], and leave it out of "
        "the features."
        + ' Give "record" another name first, for as unit that word means each row.'
        * ("record" in names)
    )


def _find_repeating(place: Location, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Columns that may tell whose a row is, of people who have several: values, and how many different ones.

    They are called as identifiers are, or have hundreds of values most of which occur again. The first rows are read.

    Raises:
        DataError: the table cannot be read, or has no rows.
    """
    # What does not fit is left out: its rows decide nothing here.
    batch: Sequence[Any] = next(iter(open_table(place).batches(names, _SAMPLED_ROWS, {})), ()) if names else ()
    found = {}
    for name, column in zip(names, batch, strict=bool(batch)):
        cells = column if isinstance(column, list) else column.to_pylist()
        counts = Counter(str(cell) for cell in cells if cell not in (None, "", b""))
        again = sum(count > 1 for count in counts.values())
        is_quantity = any(re.search(r"[.,]|^.?.?[0-9]{4}-[0-9]{2}-", cell) for cell in counts)
        repeats_like_ids = len(counts) > MANY_CATEGORIES and 2 * again >= len(counts) and not is_quantity
        if again and (repeats_like_ids or looks_like_identifier(name)):
            found[name] = (counts.total(), len(counts))
    return found


def _print_columns(found: TableFit) -> None:
    """Print one line per column: as a table, or as facts if the terminal is too narrow."""
    rows = [_TITLES, *(fit_row(column) for column in found.columns)]
    table = _format_table(rows)
    if max(map(len, table.split("\n"))) <= width():
        print(table)
        return
    facts = []
    for name, kind, *shares in rows[1:]:
        said = [f"{title} {share}" for title, share in zip(_TITLES[2:], shares, strict=True) if share not in ("", ".")]
        facts.append((name, ", ".join([kind, *said])))
    print_facts(facts)


def _format_table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[index]) for row in rows) for index in range(len(_TITLES))]
    lines = []
    for row in rows:
        first = f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}"
        lines.append("  ".join([first, *(f"{cell:>{width}}" for cell, width in zip(row[2:], widths[2:], strict=True))]))
    return "\n".join(lines)


def log_fit(table: Location, plan: Plan, tell: Tell, seen: Seen | None = None) -> None:
    """Log how the table fits the plan: for the site's own log only, and before anything is connected.

    No cell is told: what is said here may stand in a log. `seen` is given the table's name, and all that was found.

    The rows are read apart from this, though one pass could serve both. At a start with a million rows and 17 columns,
    one pass would save 0.8 of 3.6 seconds of processor time for CSV, and 0.1 of 2.2 for Parquet. It would save nothing
    at a carried node that has kept its rows, and that node would still need this look by itself.

    Raises:
        DataError: the table cannot be read, or lacks a column.
    """
    found = table_fit(table, plan)
    name = "The query's result" if is_url(table) else Path(os.fspath(table)).name
    rows = mark_private(f"{name}: {found.rows.text()}")
    tell(rows, level="WARNING") if is_mostly_left_out(found) else tell(rows)
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
        tell(mark_private(f"{said[0]}: {'; '.join(said[1:])}"))
    odd = found.findings()
    for title, text in odd[:_MAX_LINES]:
        tell(mark_private(f"{name}, {title!r}: {text}"))
    if odd:
        tell("`hedgerow check` has the whole table, and what would mend it.")
    if seen is not None:
        seen(name, found)


def ask_about_left_out_rows(name: str, found: TableFit) -> None:
    """Ask on the terminal whether to take part if many rows are left out, or none is used.

    Raises PolicyRefusal "not-agreed".
    """
    if is_mostly_left_out(found) and not says_yes(
        f"{name}: {found.rows.text()} Take part all the same?", if_empty="no"
    ):
        raise PolicyRefusal("not-agreed")


def fit_row(column: ColumnFit) -> tuple[str, ...]:
    """Return a column's line of the table: name, kind, shares of its cells."""
    name = escape_for_terminal(column.name)
    name = name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 3] + "..."
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
    """Format a share for a person; a dot means no cell, so that the eye finds the others."""
    if not count:
        return "."
    share = count / max(n_rows, 1)
    return f"{share:.0%}" if share >= 0.095 else f"{share:.1%}" if share >= 0.001 else "<0.1%"


def describe_unused_columns(found: TableFit) -> str:
    """Describe the columns of a table that are not read; "" for none."""
    names = ", ".join(map(escape_for_terminal, found.ignored[:12]))
    more = f" and {len(found.ignored) - 12} more" if len(found.ignored) > 12 else ""
    return f"Columns that the plan does not name, and that are not read: {names}{more}." if found.ignored else ""
