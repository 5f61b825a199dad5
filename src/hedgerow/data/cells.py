# SPDX-License-Identifier: Apache-2.0
"""Count how a plan reads the cells of a table, column by column, and tell the rows' owner what is odd.

The counts are exact and of private rows: for the owner's screen, log and warnings only. `describe_cells` alone decides
what the owner is told about cells. Training, prediction, evaluation, recalibration, surveys, `check` and the estimators
all call it, so that the same cells get the same words everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow.plan.plan import FOUND, READ_OFF, Feature, Plan
from hedgerow.trees.binning import MISSING_CATEGORY, UNKNOWN_CATEGORY

MANY = 0.05
"""Share of a column's cells beyond the plan from which on the owner is told."""
MOST = 0.5
"""From this share on a column is probably of another kind or unit, or was not recorded."""
NEARLY_ALL = 0.9
"""The share for bounds and lists that noise has found or that come from other rows: they leave out many cells."""
MIN_CELLS = 10
"""Number of cells from which on an odd column is no accident."""
_SHOWN_COLUMNS = 6


class CellsWarning(UserWarning):
    """Many cells of a column are missing, beyond the plan, or not read. It has exact counts: for the rows' owner."""


@dataclass(frozen=True)
class CellCounts:
    """How many cells of a column there are, and how a plan reads them.

    Attributes:
        n_cells: all cells.
        n_missing: cells without a value.
        n_below, n_above: numbers and dates beyond the bounds, which count as the bound.
        n_unlisted: texts that the plan does not list.
        n_unread: cells that are no number, date or text that the plan can read, without those of another encoding.
        n_undecodable: cells that are not in the table's encoding.
    """

    n_cells: int = 0
    n_missing: int = 0
    n_below: int = 0
    n_above: int = 0
    n_unlisted: int = 0
    n_unread: int = 0
    n_undecodable: int = 0

    def plus(self, other: CellCounts) -> CellCounts:
        """Return the counts of both parts of a column together."""
        return CellCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


Cells = Mapping[str, CellCounts]
"""The counts of each column, by its name."""


def count_column(values: NDArray[Any], item: Feature, *, n_unread: int = 0, n_undecodable: int = 0) -> CellCounts:
    """Count the cells of a feature, or of a label as a feature (`hedgerow.data.fit.find_item`).

    Args:
        values: as in `Records.features`, in which cells that are not read are missing.
        n_unread, n_undecodable: cells that are not read, apart from those of another encoding, and the latter.
    """
    n_below = n_above = n_unlisted = 0
    if item.is_categorical:
        n_missing = int(np.count_nonzero(values == MISSING_CATEGORY))
        n_unlisted = int(np.count_nonzero(values == UNKNOWN_CATEGORY))
    else:
        n_missing = int(np.count_nonzero(np.isnan(values)))
        # Features are in single precision, as they are binned, and so are their bounds then.
        low, high = (values.dtype.type(bound or 0) for bound in (item.min, item.max))
        n_below, n_above = (int(np.count_nonzero(rows)) for rows in (values < low, values > high))
    n_missing = max(n_missing - n_unread - n_undecodable, 0)
    return CellCounts(len(values), n_missing, n_below, n_above, n_unlisted, n_unread, n_undecodable)


def add_cells(parts: list[Cells]) -> dict[str, CellCounts]:
    """Return the counts of a whole table from those of its parts."""
    found: dict[str, CellCounts] = {}
    for cells in parts:
        for name, counts in cells.items():
            found[name] = found[name].plus(counts) if name in found else counts
    return found


class CellNote(NamedTuple):
    """One finding about a column for the owner of the rows.

    Attributes:
        kind: a key of `_ADVICE`.
        name: of the column.
        n: how many of its cells.
        n_cells: all of them.
    """

    kind: str
    name: str
    n: int
    n_cells: int


_WAYS = "(`recode`, `missing` and `date` in a [data] table, docs/data.md)"
_ADVICE = {
    "undecodable": (
        "Not in the table's encoding",
        "Most likely the file has another encoding: name it behind the file's name, such as #encoding=cp1252",
    ),
    "unread": (
        "No value of the column's kind",
        f"Most likely they are written in another way, of another type, or codes for missing values: convert them, or "
        f"declare what they stand for {_WAYS}",
    ),
    "mostly clamped": (
        "Beyond the plan's bounds, and counted as a bound",
        "Most likely these columns have another unit than the plan: bring them to the plan's unit (`scale` in a [data] "
        "table, docs/data.md) before anything else",
    ),
    "clamped": (
        "Beyond the plan's bounds, and counted as a bound",
        "Most likely the bounds are too narrow, or some cells have another unit. Too narrow bounds spoil a model in "
        "silence, wide ones cost it little from about 10,000 rows at epsilon 1 on",
    ),
    "unlisted": (
        "Not listed in the plan",
        "Most likely they are written in another coding than the plan's: `recode` in a [data] table (docs/data.md) "
        "says what each stands for",
    ),
    "missing": (
        "Missing",
        "Most likely the column was not recorded here, or its values are elsewhere. If the training had them, "
        "predictions can be far off",
    ),
}
"""Each kind's title, the most likely cause, and what to do."""


def list_notes(cells: Cells, plan: Plan) -> list[CellNote]:
    """List the findings about the cells of each column.

    Args:
        plan: tells which bounds and lists noise has found.
    """
    found = {each.name for each in plan.features if each.origin in (FOUND, READ_OFF)}
    found |= {plan.label.name} if plan.label.origin in (FOUND, READ_OFF) else set()
    return [note for name, counts in cells.items() for note in note_column(name, counts, is_found=name in found)]


def note_column(name: str, counts: CellCounts, *, is_found: bool = False) -> Iterator[CellNote]:
    """Yield the findings about the cells of one column; `is_found`: noise has found its bounds or list."""
    n_cells, n_clamped = counts.n_cells, counts.n_below + counts.n_above
    if n_cells < MIN_CELLS:
        return
    least = (NEARLY_ALL if is_found else MANY) * n_cells
    is_most = n_clamped > MOST * n_cells
    for kind, n, limit in (
        ("undecodable", counts.n_undecodable, 0.0),
        # These cells take their rows out, so the owner hears of the first one.
        ("unread", counts.n_unread, 0.0),
        ("mostly clamped" if is_most else "clamped", n_clamped, least),
        ("unlisted", counts.n_unlisted, least),
        ("missing", counts.n_missing, MOST * n_cells),
    ):
        if n > limit:
            yield CellNote(kind, name, n, n_cells)


def describe_cells(cells: Cells, plan: Plan) -> str:
    """Describe odd cells in words: columns, counts, likely cause and remedy; "" for none.

    Arguments are those of `list_notes`.
    """
    return describe_notes(list_notes(cells, plan))


def describe_notes(notes: Collection[CellNote]) -> str:
    """Describe findings in words, one sentence per kind, the largest share first; "" for none."""
    said = []
    for kind, (title, advice) in _ADVICE.items():
        own = sorted((note for note in notes if note.kind == kind), key=lambda note: -note.n / note.n_cells)
        if not own:
            continue
        shown = [f"{note.n:,} of {note.n_cells:,} cells of {note.name!r}" for note in own[:_SHOWN_COLUMNS]]
        more = f", and of {len(own) - _SHOWN_COLUMNS} more columns" if len(own) > _SHOWN_COLUMNS else ""
        said.append(f"{title}: {', '.join(shown)}{more}. {advice}.")
    return " ".join(said)


def explain_column(name: str, counts: CellCounts, *, is_found: bool = False) -> list[str]:
    """Describe the findings about one column that the caller has named already, one text per kind.

    Args:
        is_found: whether noise has found its bounds or list.
    """
    return [
        f"{_ADVICE[note.kind][0].lower()}: {note.n:,} of {note.n_cells:,} cells. {_ADVICE[note.kind][1]}"
        for note in note_column(name, counts, is_found=is_found)
    ]


class TextColumnsWarning(CellsWarning):
    """Columns were found to be text. It has exact shares: for the rows' owner."""


def describe_text_columns(shares: Mapping[str, float]) -> str:
    """Name all columns that were found to be text, each with its share of digits; "" for none.

    Args:
        shares: column -> share of its cells that begin with a digit.
    """
    if not shares:
        return ""
    order = sorted(shares, key=lambda name: (-shares[name], name))
    # One cell among many is one percent, not none.
    shown = {name: max(share, 0.01) if share else 0.0 for name, share in shares.items()}
    said = ", ".join(f"{name!r} ({shown[name]:.0%} of the cells begin with a digit)" for name in order)
    return (
        f"Read as text: {said}. Texts have no order for a model. If a column holds numbers, dates, or times in another "
        "writing (units, days first, names of months), convert it, or declare how it is written (docs/data.md)."
    )
