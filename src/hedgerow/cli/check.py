"""``hedgerow check``: how a table fits a plan, for the owner of its rows. Nothing that it prints may leave the site."""

from __future__ import annotations

import argparse
import dataclasses

from hedgerow.cli.inputs import read_plan
from hedgerow.cli.output import note, print_facts, print_json, wrapped
from hedgerow.data.adapters import PLAIN, read_adapter
from hedgerow.data.fit import ColumnFit, TableFit, table_fit
from hedgerow.data.sources import adapted, is_url
from hedgerow.data.units import MANY
from hedgerow.plan.fields import shown

_TITLES = ("column", "kind", "missing", "clamped", "not listed", "unreadable")
_WIDEST_NAME = 32


def run(arguments: argparse.Namespace) -> None:
    """Print one line a column, then what its owner should look at."""
    plan = read_plan(arguments.plan)
    own = PLAIN if arguments.adapter is None else read_adapter(arguments.adapter)
    found = table_fit(adapted(arguments.data, own), plan)
    if arguments.json:
        print_json(
            {
                "private": True,
                "plan_digest": plan.digest,
                "n_rows": found.n_rows,
                "left_out": found.unfit,
                "ignored": found.ignored,
                "columns": [
                    {**dataclasses.asdict(column), "findings": column.findings()} for column in found.columns
                ],
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
    print("\n" + wrapped(_rest(found), hanging=0))
    if any(column.beyond > MANY for column in found.columns):
        note(
            "Change bounds and lists by what the code book says or anybody knows, not by what stands in these rows: "
            "what the plan says is published. Too narrow bounds spoil a model in silence, too wide ones cost it nearly "
            "nothing."
        )


def _table(found: TableFit) -> str:
    rows = [_TITLES, *(_cells(column) for column in found.columns)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(_TITLES))]
    lines = []
    for row in rows:
        first = f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}"
        lines.append("  ".join([first, *(f"{cell:>{width}}" for cell, width in zip(row[2:], widths[2:], strict=True))]))
    return "\n".join(lines)


def _cells(column: ColumnFit) -> tuple[str, ...]:
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


def _rest(found: TableFit) -> str:
    said = [f"{found.n_rows:,} rows."]
    if found.unfit:
        causes = ", ".join(f"{count:,} {code}" for code, count in sorted(found.unfit.items()))
        said.append(f"Besides, rows that are left out: {causes}.")
    if found.ignored:
        names = ", ".join(map(shown, found.ignored[:12]))
        more = f" and {len(found.ignored) - 12} more" if len(found.ignored) > 12 else ""
        said.append(f"Columns that the plan does not name, and nobody reads: {names}{more}.")
    return " ".join(said)
