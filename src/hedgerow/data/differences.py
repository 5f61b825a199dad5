# SPDX-License-Identifier: Apache-2.0
"""Find columns that seem to mean something else than at the other sites, by a survey's releases.

The findings are counted from private rows, without noise. They are shown where the rows are, and sent nowhere. A
survey's sums may or may not hold the site's own rows: both cases are judged. A finding is reported only if it exceeds
both the noise of the releases and the chance variation of a site's rows.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.data import columns as encoders
from hedgerow.data.adapters import PLAIN, UNITS, Adapter
from hedgerow.data.fit import explain_texts, find_item, read_cells
from hedgerow.data.omop import locate_query
from hedgerow.data.raw_cells import read_raw
from hedgerow.data.sources import AdaptedLocation, Location, adapt, find_place, open_table
from hedgerow.data.units import rows_within_bounds
from hedgerow.plan.fields import format_day
from hedgerow.plan.names import split_words
from hedgerow.plan.plan import Feature, Plan
from hedgerow.plan.toml import toml_key, toml_value
from hedgerow.survey.statistics import TableStatistics

_CLEAR = 5.0
"""Standard deviations, of noise and rows together, that a difference has to exceed."""
_MIN_SHARE = 0.2
"""Smallest difference of two shares that is reported; half of it for missing cells."""
_MIN_CELLS = 30
_MAX_OF_ALL = 0.9
"""Largest share of the survey's rows that a site may hold: with more there are too few others to compare with."""
_HALF_AT_LEAST = 0.4
"""A half, less an allowance for chance: to each of two sites, an odd third one is half of the others."""
_MAX_EXCESS = math.sqrt(2)
"""Sites' noise is accounted as if at least half of the sites added it, but all of them do."""
_FITS = 0.1
"""Largest difference of shares that may remain after a proposed line."""
_END = 0.03
"""Share of a site's dates that may lie after the end of its period."""
_MIN_CODES = 0.05
"""Smallest share of a site's cells from which a code is reported."""
_RARE = 0.25
"""Largest share that the others may have of the cells that a code would have if they used it as often as this site."""
_CHUNK_ROWS = 65_536
_PLAIN_FACTORS = (10.0, 100.0, 1000.0)


@dataclass(frozen=True)
class Difference:
    """A column that its owner should look at.

    Attributes:
        name: of the column.
        text: the difference in words.
        line: the line of `[data]` that removes the difference (it was tried); "" if there is none.
    """

    name: str
    text: str
    line: str = ""


def compare_surveyed(location: Location, plan: Plan, found: TableStatistics) -> list[Difference]:
    """Compare all columns of a survey that this site has just answered.

    Only what the node knows itself is used.

    Args:
        plan: the plan by which the sums were made.
        found: the statistics that the node computed itself from the releases.

    Raises:
        DataError: the table cannot be read, or lacks a column.
    """
    survey, features = found.to_dict(), []
    for column in survey["columns"]:
        if column["kind"] == "text" and not column["is_hashed"]:
            names = tuple(group["name"] for group in column["groups"][:-1])
            features.append(Feature(name=column["name"], type="categorical", categories=names))
        elif "bounds" in column:
            low, high = column["bounds"]
            kind = "date" if "days_since" in column else "numeric"
            features.append(Feature(name=column["name"], type=kind, min=low, max=high))
    unlabelled = replace(plan, features=tuple(features), label=replace(plan.label, name=""))
    excess = _MAX_EXCESS if plan.privacy.noise == "distributed" else 1.0
    return list_differences(location, unlabelled, survey, excess)


def list_differences(
    location: Location, plan: Plan, survey: Mapping[str, Any], excess: float = 1.0
) -> list[Difference]:
    """Compare the columns that a plan and a survey name, in the survey's order.

    Rows are kept in memory at 8 bytes a cell. As in a survey, at most `max_rows_per_unit` rows of a unit count.

    Args:
        survey: content of `survey.json` (`TableStatistics.to_dict`).
        excess: factor by which the noise may exceed what the survey says.

    Raises:
        DataError: the table cannot be read, or lacks a column.
    """
    own = location.adapter if isinstance(location, AdaptedLocation) else PLAIN
    location = adapt(locate_query(os.fspath(location), plan), own)
    unit, kept, found = plan.privacy.unit, None, list[Difference]()
    if unit != "record":
        table = read_raw(location, (), unit, plan.privacy.line_breaks)
        kept = np.zeros(table.n_rows, dtype=np.bool_)
        if table.unit is not None:
            kept[table.unit[0][rows_within_bounds({"": table.unit[1]}, plan)[""][0]]] = True
    for column in survey["columns"]:
        if (item := find_item(column["name"], plan)) is not None:
            found += _Comparison(location, plan, item, column, survey["n_records"], excess, kept).differences()
    return found


def _units_of(name: str) -> Iterator[tuple[str, float | str, float, float]]:
    """Yield units that a column may have elsewhere: words, the line's value, factor and summand."""
    words, table = set(split_words(name)), resources.files("hedgerow.data").joinpath("clinical_units.toml")
    for unit in tomllib.loads(table.read_text(encoding="utf-8"))["unit"]:
        if words & set(unit["words"].split()):
            yield f"in {unit['own']} where they have {unit['other']}?", unit["factor"], unit["factor"], 0.0
            inverse = float(f"{1 / unit['factor']:.6g}")
            yield f"in {unit['other']} where they have {unit['own']}?", inverse, inverse, 0.0
    yield from ((f"{unit}?", unit, *UNITS[unit]) for unit in UNITS)
    yield from (("another unit?", times, times, 0.0) for factor in _PLAIN_FACTORS for times in (factor, 1 / factor))


def _subtract_own(share: float, own: float, n_own: float, n_all: float) -> float:
    """Compute the share among the other sites' rows from the overall share and this site's share."""
    return min(max((share * n_all - own * n_own) / (n_all - n_own), 0.0), 1.0)


def _are_these_odd(own: float, others: float) -> bool:
    """Return whether most of the others differ from these rows.

    If half of the others were like these rows, they would have about half the share.
    """
    return others < own * _HALF_AT_LEAST or 1 - others < (1 - own) * _HALF_AT_LEAST


@dataclass(frozen=True)
class _QuantilePoint:
    """A released quantile.

    Attributes:
        at: its value.
        share_of_all: share of all rows below it.
        share_here: share of this site's rows below it.
        noise: the standard deviation of the first share.
    """

    at: float
    share_of_all: float
    share_here: float
    noise: float


class _Comparison:
    """One column of a table, compared with the releases of a survey."""

    def __init__(
        self,
        location: Location,
        plan: Plan,
        item: Feature,
        column: Mapping[str, Any],
        n_records: Mapping[str, float],
        excess: float,
        kept: NDArray[np.bool_] | None,
    ) -> None:
        self.excess, self.kept = excess, kept
        self.place, self.plan, self.item, self.column, self.n_records = location, plan, item, column, n_records
        self.own = location.adapter if isinstance(location, AdaptedLocation) else PLAIN
        self.groups, self.is_text = column["groups"], item.is_categorical
        # All bins of a column have the same noise. If no bin is shown, the noise is unknown.
        shown = [group["count"]["deviation"] for group in self.groups if group["count"]]
        self.deviation = shown[0] * excess if shown else math.nan
        self.n_rows, self.n_missing, self.values, self.texts = self._read(self.own)
        self.n_own = self.texts.total() if self.is_text else len(self.values)
        missing = column["missing"] or {"value": 0.0}
        self.n_all = n_records["value"] * (1 - missing["value"])

    def _read(self, own: Adapter) -> tuple[int, int, NDArray[np.float64], Counter[str]]:
        """Read the column with an adapter: rows, missing cells, sorted numbers, and counts of texts."""
        table = open_table(adapt(os.fspath(self.place), own), self.plan)
        place, first, n_rows, n_missing = replace(find_place(table), column=self.item.name), 0, 0, 0
        values, texts = [np.empty(0)], Counter[str]()
        for (column,) in table.batches([self.item.name], _CHUNK_ROWS, {}):
            cells = read_cells(column, self.item, place)
            kept = np.ones(len(column), dtype=np.bool_) if self.kept is None else self.kept[first : first + len(column)]
            first += len(column)
            n_rows += int(np.count_nonzero(kept))
            n_missing += int(np.count_nonzero(cells.is_missing & kept))
            is_there = ~cells.is_missing & ~cells.is_unreadable & kept
            if self.is_text:
                there = np.flatnonzero(is_there)
                read = encoders.read_texts(column, place) if len(there) else []
                texts.update(text for index in there.tolist() if (text := read[index]) is not None)
            else:
                values.append(cells.values[is_there].astype(np.float64))
        return n_rows, n_missing, np.sort(np.concatenate(values)), texts

    def differences(self) -> Iterator[Difference]:
        """Yield the differences, that of missing cells first."""
        yield from self._compare_missing()
        is_known = not math.isnan(self.deviation) and _MIN_CELLS <= self.n_own < _MAX_OF_ALL * self.n_all
        # Dates are compared as days. A column of another kind in the survey cannot be compared.
        is_date = "days_since" in self.column
        is_alike = self.is_text == (self.column["kind"] == "text") and is_date == (self.item.type == "date")
        if not is_known or not is_alike or self.column.get("is_hashed"):
            return
        yield from self._compare_codes() if self.is_text else self._compare_numbers()

    @staticmethod
    def _differs(all_of: float, own: float, noise: float, n_own: float, n_all: float, least: float) -> bool:
        """Return whether the site's share certainly differs from that of all rows, by more than `least`.

        `noise` is the standard deviation of the share of all rows.
        """
        middle = min(max(all_of, 0.0), 1.0)
        middle = max(middle * (1 - middle), own * (1 - own))
        spread = math.sqrt(noise * noise + middle * (1 / n_own + 1 / n_all))
        return abs(all_of - own) > _CLEAR * spread and abs(all_of - own) / (1 - n_own / n_all) > least

    def _compare_missing(self) -> Iterator[Difference]:
        found, n_all = self.column["missing"], self.n_records["value"]
        if not _MIN_CELLS <= self.n_rows < _MAX_OF_ALL * n_all:
            return
        # A survey that shows no share of missing cells hides it in its noise: take 0, with that noise.
        deviation = self.n_records["deviation"]
        share, noise = (found["value"], found["deviation"]) if found else (0.0, deviation / n_all)
        noise = (noise + share * deviation / n_all) * self.excess
        own = self.n_missing / self.n_rows
        if self._differs(share, own, noise, self.n_rows, n_all, _MIN_SHARE / 2):
            others = _subtract_own(share, own, self.n_rows, n_all)
            if _are_these_odd(own, others):
                said = f"{own:.0%} of your cells are missing, of the others' about {others:.0%}"
                yield Difference(self.item.name, said)

    # Numbers and dates ------------------------------------------------------------------------------------------------

    def _share_below(self, values: NDArray[np.float64], at: float) -> float:
        """Return the share of values below a number, interpolated as in released quantiles."""
        edges = np.array([group["low"] for group in self.groups[1:]])
        return float(elementary.interpolate(at, edges, np.searchsorted(values, edges) / len(values)))

    def _list_points(self, values: NDArray[np.float64]) -> Iterator[_QuantilePoint]:
        half = 0.5 if self.column["is_whole"] else 0.0
        for quantile in self.column["quantiles"]:
            at, share, n_bins = quantile["value"], quantile["share"], len(self.groups)
            n_below = sum(group["low"] < at for group in self.groups[1:]) + 1
            weights = n_below * elementary.square(1 - share) + (n_bins - n_below) * elementary.square(share)
            noise = self.deviation * math.sqrt(weights) / self.n_all
            # A whole number stands for the interval of half a unit on either side.
            here = min(max(share, self._share_below(values, at - half)), self._share_below(values, at + half))
            yield _QuantilePoint(at, share, here, noise)

    def _compare_numbers(self) -> Iterator[Difference]:
        points = list(self._list_points(self.values))
        is_odd = any(
            self._differs(point.share_of_all, point.share_here, point.noise, self.n_own, self.n_all, _MIN_SHARE)
            for point in points
        )
        # Shares of the others below each value, if the survey holds this site's rows, and if it does not.
        with_own = [_subtract_own(point.share_of_all, point.share_here, self.n_own, self.n_all) for point in points]
        without = [point.share_of_all for point in points]
        if not is_odd or not self._is_alone(points, with_own):
            return
        said, line = "", ""
        if len(points) > 1 and self.item.type == "numeric":
            said, line = self._try_units((with_own, without))
        number = max(range(len(points)), key=lambda index: abs(points[index].share_of_all - points[index].share_here))
        if self.item.type == "date" and points[number].share_here > with_own[number]:
            number = len(points) - 1  # how much earlier they end
        worst, share = points[number], with_own[number]
        mine, is_less = float(np.quantile(self.values, share)), worst.share_here > share
        if self.item.type == "date":
            place, after = "earlier" if is_less else "later", f" ({abs(worst.at - mine):,.0f} days)"
            theirs, yours = (format_day(math.floor(day)) for day in (worst.at, mine))
        else:
            place, after = "lower" if is_less else "higher", ""
            theirs, yours = f"{worst.at:.4g}", f"{mine:.4g}"
        text = f"yours lie {place}: {share:.0%} of the others' below about {theirs}, of yours below {yours}{after}"
        yield Difference(self.item.name, "; ".join(filter(None, (text, said))), line)

    def _is_alone(self, points: Sequence[_QuantilePoint], others: Sequence[float]) -> bool:
        """Return whether this site's rows differ, and not those of a few others.

        If half of the others are like this site, they have about half of its share in each interval. Dates that end
        before the others' are judged by their end.
        """
        own = np.array([0.0, *(point.share_here for point in points), 1.0])
        steps, those = np.diff(own), np.diff([0.0, *others, 1.0])
        ends = [mine >= 1 - _END and mine - other >= _MIN_SHARE for mine, other in zip(own[1:], others, strict=False)]
        is_odd = bool(((steps >= _MIN_SHARE) & (those < steps * _HALF_AT_LEAST)).any())
        return is_odd or (self.item.type == "date" and any(ends))

    def _try_units(self, others: Sequence[Sequence[float]]) -> tuple[str, str]:
        """Return the unit with which these rows match the others, and its line; "" if there is none.

        Each candidate is tried by reading the table with it.
        """
        name = self.item.name
        if name in dict(self.own.scale) or name in dict(self.own.date):
            return "", ""
        best, found = _FITS, ("", "")
        for said, value, factor, added in _units_of(name):
            left = self._measure_rest(np.sort(self.values * factor + added), others)
            if left >= best:
                continue
            trial = replace(self.own, scale=(*self.own.scale, (name, (factor, added))))
            if self._measure_rest(self._read(trial)[2], others) < best:
                size = max(factor, 1 / factor)
                times = f"about {size:.3g} times {'smaller' if factor > 1 else 'larger'} than the others': "
                line = f"scale.{toml_key(name)} = {toml_value(value)}"
                best, found = left, ((times if not added else "") + said, line)
        return found

    def _measure_rest(self, values: NDArray[np.float64], others: Sequence[Sequence[float]]) -> float:
        """Return the largest remaining difference to the others' shares, in the better of both cases."""
        own = [point.share_here for point in self._list_points(values)]
        return min(max(abs(one - other) for one, other in zip(own, case, strict=True)) for case in others)

    # Codes ------------------------------------------------------------------------------------------------------------

    def _compare_codes(self) -> Iterator[Difference]:
        names = self._odd_codes(self.texts)
        if names:
            said = ", ".join(f"{name!r} {self.texts[name] / self.n_own:.0%}" for name in names)
            yield Difference(self.item.name, f"codes that hardly anybody else has: {said}", self._try_codes(names))
            return
        for group in self.groups:
            if group["count"] and group["name"] in self.texts:
                share, own = group["count"]["value"] / self.n_all, self.texts[group["name"]] / self.n_own
                noise = self.deviation / self.n_all
                others = _subtract_own(share, own, self.n_own, self.n_all)
                is_other = self._differs(share, own, noise, self.n_own, self.n_all, _MIN_SHARE)
                if is_other and _are_these_odd(own, others):
                    said = f"{group['name']!r} is {own:.0%} of yours, of the others' about {others:.0%}"
                    yield Difference(self.item.name, f"{said}: do your codes mean the same?")
                    return

    def _most_of(self, name: str) -> float:
        """Return an upper estimate of the others' cells with a code, or with any code that is not listed."""
        listed = {group["name"]: group["count"] for group in self.groups[:-1]}
        count = listed.get(name, self.groups[-1]["count"])
        own = self.texts[name] if name in listed else sum(n for each, n in self.texts.items() if each not in listed)
        most = count["value"] if count else 3 * self.deviation
        return float(max(most - own, 0.0) + 4 * self.deviation)

    def _odd_codes(self, texts: Counter[str]) -> list[str]:
        """List codes of which the others have far fewer than if they used them as often as this site."""
        n_others = self.n_all - self.n_own
        return [
            name for name, count in sorted(texts.items())
            if count >= max(_MIN_CODES * self.n_own, _MIN_CELLS / 2)
            and self._most_of(name) < _RARE * count / self.n_own * n_others
        ]  # fmt: skip

    def _try_codes(self, names: Sequence[str]) -> str:
        """Return the line that maps this site's codes to the others' words; "" if that does not explain all."""
        usual = [
            group["name"] for group in self.groups[:-1]
            if group["count"] and group["count"]["value"] - self.texts[group["name"]] > 4 * self.deviation
        ]  # fmt: skip
        pairs = explain_texts(self.texts.keys(), usual)
        if not pairs:
            return ""
        pairs = dict(dict(self.own.recode).get(self.item.name, ())) | pairs
        recode = dict(self.own.recode) | {self.item.name: tuple(pairs.items())}
        after = self._read(replace(self.own, recode=tuple(recode.items())))[3]
        return "" if self._odd_codes(after) else f"recode.{toml_key(self.item.name)} = {toml_value(pairs)}"
