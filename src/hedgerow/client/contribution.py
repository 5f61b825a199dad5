"""The unit of privacy: bound how many rows one unit (a patient, a customer) adds within a site.

The noise hides any one unit only if each unit adds at most ``max_rows_per_unit`` rows, so this runs before training.
Which rows stay is decided per unit from nothing but the key, the identifier and the order of that unit's own rows:

- not from the label or a feature, for then the choice would itself depend on what is to be hidden;
- not from absolute row positions or other units, for then one unit's presence would change which rows of *others* stay,
  and its influence would exceed its own rows;
- not simply the first rows in the file, for tables are often sorted by date, and the model would see early years only.

A site bounds its own rows. At how many sites one unit may have rows is declared in the plan (``sites_per_unit``); where
all tables are read in one process, their rows are bounded together as well (`hedgerow.site_data.bounded_sites`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hedgerow.client.records import Records
from hedgerow.protocol.errors import DataError

Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class ContributionReport:
    """Which rows this site left out. These are counts of private rows: for the site's owner, never for a peer.

    Attributes:
        n_units: different identifiers.
        n_units_limited: identifiers that had more rows than the bound.
        n_rows: rows that fit the plan.
        n_dropped: of these, rows left out because their unit had more than the bound.
        unfit: rows left out because they do not fit the plan, by the code of `data_errors` that says why.
    """

    n_units: int
    n_units_limited: int
    n_rows: int
    n_dropped: int
    unfit: Mapping[str, int] = field(default_factory=dict)


def bound_contribution(records: Records, max_rows_per_unit: int, key: bytes) -> tuple[Records, ContributionReport]:
    """Keep at most `max_rows_per_unit` records per unit, in the order of the file; all when the unit is the record.

    Args:
        key: any bytes that do not depend on data, the same at every site, such as the plan's digest.

    Raises:
        ValueError: max_rows_per_unit < 1.
    """
    if records.unit is None:
        if max_rows_per_unit != 1:
            raise DataError(
                "The records carry no identifier, so rows per unit cannot be bounded.",
                remedy="Read them with the column that privacy.unit names.",
                code="data-unit-missing",
            )
        return records, ContributionReport(records.n_records, 0, records.n_records, 0)
    kept, report = rows_within_bound(records.unit, max_rows_per_unit, key)
    return (records.take(kept) if report.n_dropped else records), report


def rows_within_bound(
    unit: NDArray[np.str_], max_rows_per_unit: int, key: bytes
) -> tuple[NDArray[np.intp], ContributionReport]:
    """Choose at most `max_rows_per_unit` rows of each unit, uniformly by a keyed hash.

    Args:
        unit: text [n], one identifier per row.
        max_rows_per_unit: at least 1.
        key: see `bound_contribution`.

    Returns:
        intp [n_kept], ascending row indices, and the report.
    """
    if max_rows_per_unit < 1:
        raise ValueError(f"max_rows_per_unit is {max_rows_per_unit}; expected at least 1")
    n_rows = len(unit)
    codes = np.asarray(pc.dictionary_encode(pa.array(unit, type=pa.string())).indices, dtype=np.int64)
    counts = np.bincount(codes) if n_rows else np.zeros(0, dtype=np.int64)
    report = ContributionReport(
        n_units=len(counts),
        n_units_limited=int(np.count_nonzero(counts > max_rows_per_unit)),
        n_rows=n_rows,
        n_dropped=int(np.maximum(counts - max_rows_per_unit, 0).sum()),
    )
    if not report.n_dropped:
        return np.arange(n_rows, dtype=np.intp), report
    tickets = _tickets(unit, _rank_within_group(np.argsort(codes, kind="stable"), codes, counts), key)
    by_ticket = np.lexsort((tickets, codes))
    rank = _rank_within_group(by_ticket, codes, counts)
    return np.flatnonzero(rank < max_rows_per_unit), report


def _rank_within_group(
    order: NDArray[np.intp], codes: NDArray[np.int64], counts: NDArray[np.intp]
) -> NDArray[np.int64]:
    """int64 [n]: the position of each row among the rows of its group, in `order`, which is sorted by group."""
    first = np.cumsum(counts) - counts
    rank = np.empty(len(codes), dtype=np.int64)
    rank[order] = np.arange(len(codes)) - first[codes[order]]
    return rank


def _tickets(unit: NDArray[np.str_], occurrence: NDArray[np.int64], key: bytes) -> Words:
    """uint64 [n]: a keyed hash of (identifier, how many rows of that unit came before).

    It spreads the choice; nothing secret hangs on it, so a fast mixing function (splitmix64, Steele et al. 2014) does.
    The identifier is hashed character by character and the zero characters that pad shorter text are skipped, so that
    the longest identifier of the table does not matter.
    """
    seed = np.uint64(int.from_bytes(hashlib.sha256(key).digest()[:8], "little"))
    text = np.ascontiguousarray(unit)
    characters = text.view(np.uint32).reshape(len(text), -1)
    state = np.full(len(text), seed, dtype=np.uint64)
    for position in range(characters.shape[1]):
        character = characters[:, position].astype(np.uint64)
        state = np.where(character > 0, _mixed(state ^ character), state)
    return _mixed(state ^ _mixed(occurrence.astype(np.uint64) + seed))


def _mixed(words: Words) -> Words:
    """The output function of splitmix64, modulo 2**64."""
    mixed = words + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
