"""The bound on rows per unit: what the noise relies on when the unit is a person."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.app.evaluation import read_own, read_sites
from hedgerow.data import differences
from hedgerow.data.columns import Place, identifiers
from hedgerow.data.fit import table_fit
from hedgerow.data.hashing import Part
from hedgerow.data.raw_cells import bound_tables, read_raw, read_raw_site
from hedgerow.data.site_data import read_part, read_site_data, read_site_rows
from hedgerow.data.units import Records, records_from_columns, rows_within_bound
from hedgerow.local.attacks import group_units
from hedgerow.plan.plan import Feature, Plan
from hedgerow.survey.requests import OpenTable

IDENTIFIERS = st.lists(st.sampled_from(["a", "b", "bb", "person-0007", "é", "", "0"]), max_size=60)


def text(values: list[str]) -> np.ndarray:
    return np.array(values, dtype=np.str_) if values else np.array([], dtype="<U1")


@given(IDENTIFIERS, st.integers(1, 5), st.binary(max_size=8))
def test_every_unit_keeps_the_smaller_of_its_rows_and_the_bound(unit: list[str], bound: int, key: bytes) -> None:
    """No unit exceeds the bound, none loses more than it must, and the report's counts add up."""
    kept, report = rows_within_bound(text(unit), bound, key)
    survivors = [unit[row] for row in kept]
    for identifier in set(unit):
        assert survivors.count(identifier) == min(bound, unit.count(identifier))
    assert list(kept) == sorted(set(kept))
    assert (report.n_rows, report.n_dropped) == (len(unit), len(unit) - len(kept))
    assert report.n_units == len(set(unit))


@given(IDENTIFIERS, st.integers(1, 3), st.sampled_from(["a", "a much longer identifier", "b"]))
def test_one_unit_never_changes_which_rows_of_others_stay(unit: list[str], bound: int, newcomer: str) -> None:
    """Removing all rows of one unit leaves every other unit's choice as it was."""
    mixed = [*unit[:7], newcomer, *unit[7:], newcomer, newcomer]
    with_it = _kept_occurrences(mixed, bound)
    without = _kept_occurrences([name for name in mixed if name != newcomer], bound)
    with_it.pop(newcomer)
    assert with_it == without


def _kept_occurrences(unit: list[str], bound: int) -> dict[str, list[int]]:
    kept, _ = rows_within_bound(text(unit), bound, b"key")
    chosen: dict[str, list[int]] = {}
    for row in kept:
        chosen.setdefault(unit[row], []).append(unit[:row].count(unit[row]))
    return {name: chosen.get(name, []) for name in set(unit)}


def test_the_choice_is_spread_over_a_units_rows() -> None:
    """A table sorted by year must not train on the first year only: each of five rows is kept about equally often."""
    unit = text([f"person {number}" for number in range(4000) for _ in range(5)])
    kept, _ = rows_within_bound(unit, 1, b"key")
    counts = np.bincount(kept % 5, minlength=5)
    # 4000 draws at 1/5: the standard deviation is 25.3, so a fair choice stays within 5 of them.
    assert np.all(np.abs(counts - 800) < 127)


def test_the_key_alone_decides_between_choices() -> None:
    """The same key gives the same rows on every machine, another key other rows."""
    unit = text(["a"] * 50)
    first, _ = rows_within_bound(unit, 10, b"one")
    again, _ = rows_within_bound(unit, 10, b"one")
    other, _ = rows_within_bound(unit, 10, b"two")
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_choice_is_pinned() -> None:
    """A plan's result may not change with a release of this package: one key's choice is written down here."""
    kept, _ = rows_within_bound(text(["a", "b", "a", "a", "b", "a", "b", "b"]), 2, b"hedgerow")
    assert kept.tolist() == [0, 1, 3, 7]


def test_records_stay_aligned() -> None:
    """Feature, label and identifier of a kept record belong together."""
    unit, label = text(["a", "a", "b", "a", "b", "c"]), np.array([0, 1, 0, 1, 0, 1], dtype=np.int32)
    kept, report = rows_within_bound(unit, 1, b"key")
    first = Records((np.arange(6, dtype=np.float32),), label, unit, 6).take(kept)
    assert report.n_dropped == 3 and first.n_records == 3
    assert first.unit is not None and first.label is not None
    assert np.array_equal(first.features[0], kept)
    assert np.array_equal(first.unit, unit[kept]) and np.array_equal(first.label, label[kept])


@settings(max_examples=10)
@given(rows=st.lists(st.integers(1, 9), min_size=1, max_size=8), bound=st.integers(1, 4))
def test_every_way_to_read_rows_bounds_them(rows: list[int], bound: int, tmp_path: Path) -> None:
    """Training, exact and noised measurements, recalibration, surveys, attacks, comparisons and checks use as many rows
    of a unit as the plan allows: in none does one person's many rows count more than the promise or the figures say.
    """
    plan = Plan.from_dict(
        {
            "version": 1,
            "features": [{"name": "x", "type": "numeric", "min": 0, "max": 9}],
            "label": {"name": "y", "type": "binary", "classes": ["0", "1"]},
            "privacy": {"epsilon": 1, "delta": 1e-6, "n_records": 100, "unit": "who", "max_rows_per_unit": bound},
        }
    )
    lines = [f"{each},{each % 2},p{person}" for person, n_rows in enumerate(rows) for each in range(n_rows)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["x,y,who", *lines]) + "\n")
    columns = (Feature(name="x", type="numeric", min=0, max=9),)
    privacy = {"epsilon": 1.0, "delta": 1e-6, "unit": "who", "max_rows_per_unit": bound}
    asked = OpenTable.of(columns, "", privacy)
    compared: list[int] = []
    survey = {"n_records": {"value": 0.0, "deviation": 1.0}, "columns": [{"name": "x", "groups": [], "missing": None}]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(differences._Comparison, "differences", lambda self: compared.append(self.n_rows) or ())
        differences.list_differences(table, plan, survey)
    found = {
        "training": read_site_data(table, plan)[0].n_records,
        "a part of a training": read_part(table, plan, Part(0, 1)).n_records,
        "exact": sum(own.n_records for own in read_own(table, plan, None)),
        "noised, recalibration": read_sites({"a": table}, plan, quiet=True)["a"].n_records,
        "check": table_fit(table, plan).rows.n_used,
        "survey of a node": read_raw_site(table, asked).n_records,
        "survey of tables": bound_tables({"a": read_raw(table, columns, "who")}, asked)["a"].n_records,
        "attack": sum(map(len, group_units(read_site_rows(table, plan), plan))),
        "comparison": compared[0],
    }
    assert found == dict.fromkeys(found, sum(min(n_rows, bound) for n_rows in rows))


def test_a_bound_below_one_is_refused() -> None:
    """A bound of zero would train on nothing and call it private."""
    with pytest.raises(ValueError, match="max_rows_per_unit is 0"):
        rows_within_bound(text(["a"]), 0, b"")


WAYS_TO_WRITE = {
    "an integer": lambda value: np.array([value], dtype=np.int64),
    "a float": lambda value: np.array([float(value)]),
    "text": lambda value: pa.array([str(value)]),
    "text with a point": lambda value: pa.array([f"{value}.0"]),
    "text with spaces": lambda value: np.array([f" {value} "], dtype=object),
    "a decimal": lambda value: [Decimal(value)],
    "a decimal with places": lambda value: pa.array([Decimal(f"{value}.00")]),
    "a decimal among texts": lambda value: np.array([Decimal(value), "x"], dtype=object)[:1],
    "a category": lambda value: pa.array([str(value)]).dictionary_encode(),
}


@given(st.integers(-(2**53) + 1, 2**53 - 1), st.data())
def test_one_unit_is_one_however_its_chunks_write_it(value: int, data: st.DataObject) -> None:
    """A database may give a number in one chunk, a float in the next (an empty cell is enough) and text in a third; as
    three units a person would have three times the rows that the noise hides.
    """
    place = Place("table", "patient", 1)
    ways = data.draw(st.lists(st.sampled_from(sorted(WAYS_TO_WRITE)), min_size=2, max_size=5))
    chunks = [identifiers(WAYS_TO_WRITE[way](value), place).require() for way in ways]
    kept, report = rows_within_bound(np.concatenate(chunks), 1, b"key")
    assert report.n_units == 1 and len(kept) == 1, (value, ways, chunks)


@pytest.mark.parametrize("value", [2.0**53, -(2.0**60), 1e300, float("inf")])
def test_a_float_that_stands_for_several_numbers_is_no_identifier(value: float) -> None:
    """From 2^53 on two people's numbers become one float; such a row is left out by itself, and others stay."""
    plan = Plan.from_dict(
        {
            "version": 1,
            "features": [{"name": "c", "type": "categorical", "categories": ["a"]}],
            "label": {"name": "y", "type": "binary", "classes": ["no", "yes"]},
            "privacy": {"epsilon": 1.0, "delta": 1e-5, "n_records": 1000, "unit": "patient"},
        }
    )
    with np.errstate(over="ignore"):
        narrow = np.array([7.0, value], dtype=np.float32), np.array([7.0, value], dtype=np.float16)
    for column in (np.array([7.0, value]), [7.0, value], [7, value, 2**53], pa.array([7.0, value]), *narrow):
        n_records = len(column)
        columns = {"c": ["a"] * n_records, "y": ["no"] * n_records, "patient": column}
        left_out: dict[str, int] = {}
        records = records_from_columns(columns, plan, left_out=left_out)
        assert left_out == {"data-unit-missing": 1}
        assert records.unit is not None and records.unit.tolist() == ["7", str(2**53)][: n_records - 1]


@pytest.mark.parametrize(("kind", "bits"), [(np.float16, 11), (np.float32, 24), (np.float64, 53)])
@pytest.mark.parametrize("as_column", [list, np.array, pa.array, pd.Series])
def test_no_float_is_the_identifier_of_two_people(kind: Any, bits: int, as_column: Any) -> None:
    """Two neighbouring whole numbers are two units or none, however narrow the floats are that hold them."""
    for value in (2**bits - 2, 2**bits - 1, 2**bits):
        cells = as_column(np.array([value, value + 1]).astype(kind))
        read = identifiers(cells, Place("table", "patient", 1))
        assert read.values[~read.is_unfit].tolist() == [str(whole) for whole in (value, value + 1) if whole < 2**bits]


def test_integers_beyond_64_bits_are_units_too() -> None:
    """A hash as an identifier must neither end the program nor be rounded."""
    place = Place("table", "patient", 1)
    numbers = identifiers([2**70, 2**70 + 1], place).require()
    assert list(numbers) == [str(2**70), str(2**70 + 1)]
    assert list(identifiers([Decimal(2**70)], place).require()) == [str(2**70)]
