# SPDX-License-Identifier: Apache-2.0
"""Describe a column by noisy counts: shares, histograms, quantiles, means, and classes by bin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.plan.fields import FIRST_DAY, LAST_DAY, format_day
from hedgerow.survey.bounds import Counts, Range
from hedgerow.survey.queries import HIGHEST_OCTAVE, LOWEST_OCTAVE, N_OCTAVES, N_ZOOM, ZERO, Bins, NumberBins, TextBins

# What the counts say of a column --------------------------------------------------------------------------------------
# Shares, quantiles, means and rates come with their noise. All of them are post-processing of releases, so they cost
# nothing. Errors cover the noise alone, neither sampling nor the width of bins. A count below `MIN_RECORDS`, or below
# `CLEAR` standard deviations of its noise, is not shown, and neither is anything computed from it.

N_HASHED = 16
"""Bins of a column's texts if no common text was found."""
MAX_BEYOND = 0.05
"""Largest share of a column beyond its bounds for which its mean is shown."""
MIN_RECORDS = 10.0
CLEAR = 3.0
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BAND = 1.96
"""Standard deviations of the noise on either side that a band covers: 95 %."""
N_BINS = 32
"""Bins of a histogram, unless the column has only a few whole numbers."""
MAX_LISTED_VALUES = 40
"""Most whole numbers that have a bin each."""
N_GROUPS = 8
"""Most bins for a label's rates."""
MIN_LISTED = 0.5
"""Smallest share of the cells that a found list must cover. Else a plan hashes the column: the rest would be one
category."""
VAGUE = 0.1
"""Largest standard deviation of the noise for which rates are shown."""
SHARE_IN_RANGE = 0.95
"""Share of a column's cells that a narrower range has to hold."""
_TINY = 2.0**LOWEST_OCTAVE
"""Magnitudes below this count as zero."""


@dataclass(frozen=True)
class Noisy:
    """A number with its noise's standard deviation; not to be shown if it rests on too few records."""

    value: float
    deviation: float
    is_shown: bool = True

    @property
    def limit(self) -> float:
        """The upper 95 % limit of a count that is not shown: the noise may have hidden some of it."""
        return max(MIN_RECORDS, CLEAR * self.deviation) + BAND * self.deviation

    def over(self, whole: float) -> Noisy:
        """Return the share of `whole`, which is taken as exact."""
        return Noisy(self.value / whole, self.deviation / whole, self.is_shown)

    def to_dict(self) -> dict[str, float] | None:
        """Return plain values; None if it is not shown."""
        return {"value": self.value, "deviation": self.deviation} if self.is_shown else None


def show_count(value: float, deviation: float, n_counts: int = 1) -> Noisy:
    """Return a sum of `n_counts` counts, each with this deviation; it is shown if it is large enough."""
    deviation *= math.sqrt(n_counts)
    return Noisy(value, deviation, value >= max(MIN_RECORDS, CLEAR * deviation))


@dataclass(frozen=True)
class FoundQuantile:
    """The value below which a share of the records lies, and its 95 % bounds under the noise."""

    share: float
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Group:
    """One bin of a column, with its count or with the label's shares.

    Attributes:
        name: a category, a number or a range, in words for a person.
        low, high: the ends of a bin of numbers; -inf and inf if open, and for a text.
        count: records in it.
        rates: by class of the label, in order; empty without a label.
    """

    name: str
    # Use no NaN here: from Python 3.13 on a dataclass that holds one is not equal to itself.
    low: float = -math.inf
    high: float = math.inf
    count: Noisy = Noisy(0.0, 0.0, is_shown=False)
    rates: tuple[Noisy, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; counts and rates that are not shown are None."""
        found: dict[str, Any] = {"name": self.name}
        if (self.low, self.high) != (-math.inf, math.inf):
            found |= {"low": self.low, "high": self.high}
        found["count"] = self.count.to_dict()
        if self.rates:
            found["rates"] = [rate.to_dict() for rate in self.rates]
        return found


@dataclass(frozen=True)
class ColumnStatistics:
    """The findings about one column.

    Attributes:
        name: the column's name.
        missing: share of its cells that are missing.
        kind: "number", "text", or "unknown" where too few cells were seen.
        range: the bounds of numbers, with their doubts.
        present: cells that are counted in the bins.
        groups: the bins of numbers, or the categories.
        mean, quantiles: of numbers, by the bins; quantiles that rest on too few records are left out.
        is_hashed: whether the groups are hashes, because no common text was found.
        rates: the shares of the label's classes by coarser bins; empty without a label.
        odd: share of the cells of a column of numbers that are not numbers.
        is_date: whether its numbers are days since 1970-01-01.
        layout: how its text writes a date; None for ISO 8601.
        is_declared: whether its bounds or categories were declared, not found.
    """

    name: str
    missing: Noisy
    kind: str = "unknown"
    range: Range | None = None
    present: Noisy = Noisy(0.0, 0.0, is_shown=False)
    groups: tuple[Group, ...] = ()
    mean: Noisy | None = None
    quantiles: tuple[FoundQuantile, ...] = ()
    is_hashed: bool = False
    rates: tuple[Group, ...] = ()
    odd: Noisy = Noisy(0.0, 0.0, is_shown=False)
    is_date: bool = False
    layout: str | None = None
    is_declared: bool = False

    def format(self, value: float) -> str:
        """Format one of its numbers for a person."""
        return clamp_to_date(value) if self.is_date else short(value)

    @property
    def categories(self) -> tuple[str, ...]:
        """The texts that were found or declared."""
        return () if self.kind != "text" or self.is_hashed else tuple(group.name for group in self.groups[:-1])

    @property
    def listed_share(self) -> float:
        """The share of counted cells whose text is listed, by noisy counts; 1 if all are declared."""
        if self.kind != "text" or self.is_hashed or self.is_declared:
            return 1.0
        total = max(self.present.value, 1.0)
        return min(max(sum(group.count.value for group in self.groups[:-1]) / total, 0.0), 1.0)

    @property
    def shown_rates(self) -> tuple[Group, ...]:
        """The bins whose rates are shown."""
        return tuple(group for group in self.rates if group.rates and group.rates[0].is_shown)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        found: dict[str, Any] = {"name": self.name, "kind": self.kind, "missing": self.missing.to_dict()}
        if self.range is not None and self.range.doubt:
            found["doubt"] = self.range.doubt
        if self.range is not None and self.kind == "number":
            low, high = self.range.bounds
            found |= {"bounds": [low, high], "is_whole": self.range.is_whole}
            if self.is_date:
                found["days_since"] = "1970-01-01"
        if self.kind == "number":
            found["no_number"] = self.odd.to_dict()
            found["mean"] = None if self.mean is None else self.mean.to_dict()
            found["quantiles"] = [
                {each.name: getattr(quantile, each.name) for each in fields(quantile)} for quantile in self.quantiles
            ]
        if self.kind == "text":
            found["is_hashed"] = self.is_hashed
        found["groups"] = [group.to_dict() for group in self.groups]
        found["rates"] = [group.to_dict() for group in self.rates]
        return found


@dataclass(frozen=True)
class TableStatistics:
    """The findings about a table.

    Attributes:
        n_records: approximate number of records.
        columns: all of them, in order.
        label, classes: the label's name, and its classes if it has few.
        label_range: for a plan, the range of an undeclared numeric label; its column has the range to show.
    """

    n_records: Noisy
    columns: tuple[ColumnStatistics, ...]
    label: str = ""
    classes: tuple[str, ...] = field(default=())
    label_range: Range | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "n_records": self.n_records.to_dict(),
            "label": self.label,
            "classes": list(self.classes),
            "columns": [column.to_dict() for column in self.columns],
        }


# Where values lie, roughly, before the bins are chosen ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Density:
    """Mass between edges, at least 0: float64 [n + 1] edges, [n] masses."""

    edges: NDArray[np.float64]
    mass: Counts


def spread_octaves(counts: Counts, found: Range, deviation: float) -> Density:
    """Return the rough density of values by their octaves, within the range found.

    Counts that noise may have made are left out.

    Args:
        counts: float64 [N_OCTAVES].
    """
    positive = 2.0 ** np.arange(LOWEST_OCTAVE, HIGHEST_OCTAVE + 2)
    edges = np.concatenate([-positive[::-1], positive])
    return _within(edges, counts, found, deviation)


def spread_zoom(before: Range, counts: Counts, found: Range, deviation: float) -> Density:
    """Return the rough density of values by the even bins of a zoom into a range.

    Args:
        counts: float64 [N_ZOOM].
    """
    return _within(np.linspace(before.low, before.high, N_ZOOM + 1), counts, found, deviation)


def holds_most(before: Range, found: Range, counts: Counts, deviation: float, n_cells: float) -> bool:
    """Return whether a narrower range certainly holds nearly all cells of a column.

    In much noise, a zoom only sees peaks.

    Args:
        before: the range that the zoom was into.
        counts: float64 [N_ZOOM], counts of its even bins.
        n_cells: approximate number of the column's cells.
    """
    edges = np.linspace(before.low, before.high, N_ZOOM + 1)
    inside = (edges[:-1] >= found.low) & (edges[1:] <= found.high)
    is_sure = deviation * math.sqrt(int(inside.sum())) <= (1 - SHARE_IN_RANGE) * n_cells
    return is_sure and float(counts[inside].sum()) >= SHARE_IN_RANGE * n_cells


def _within(edges: NDArray[np.float64], counts: Counts, found: Range, deviation: float) -> Density:
    mass = np.where(counts > deviation, counts, 0.0)
    cut = np.clip(edges, found.low, found.high)
    kept = np.diff(cut) > 0
    if len(edges) == N_OCTAVES + 1 and found.low == 0:
        # The bin of zero begins at zero here, so its width is 0; keep it.
        kept[ZERO] = True
    first, last = np.flatnonzero(kept)[[0, -1]]
    return Density(cut[first : last + 2], mass[first : last + 1])


def choose_edges(found: Range, density: Density | None) -> tuple[float, ...]:
    """Return public edges of a column's bins: one per value for few whole numbers, else by equal weight.

    Args:
        density: None for even bins.
    """
    low, high = found.bounds
    if found.is_whole and high - low < MAX_LISTED_VALUES:
        return tuple((np.arange(low, high + 2) - 0.5).tolist())
    if found.is_whole:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, N_BINS + 1)
    if density is not None and density.mass.sum() > 0:
        edges = np.clip(_even_weights(density), low, high)
        edges = np.concatenate([[low], edges, [high]])
    if found.is_whole:
        edges = np.rint(edges - 0.5) + 0.5
    else:
        # A value at the upper bound belongs to the last bin.
        edges[edges == high] = np.nextafter(high, math.inf)
    return tuple(np.unique(edges).tolist())


def _even_weights(density: Density) -> NDArray[np.float64]:
    """Return edges that divide the density into about equal masses.

    A point mass at zero has a bin of its own.
    """
    mass = density.mass / density.mass.sum()
    # Add a little mass everywhere for the records that the noise hid.
    mass = 0.97 * mass + 0.03 / len(mass)
    below = np.concatenate([[0.0], np.cumsum(mass)])
    edges = elementary.interpolate(np.arange(N_BINS + 1) / N_BINS, below / below[-1], density.edges)
    widths = np.diff(density.edges)
    points = np.flatnonzero((widths <= 2 * _TINY) & (mass > 1 / N_BINS))
    inside = np.abs(edges) <= _TINY
    ends = [density.edges[[point, point + 1]] for point in points]
    return np.concatenate([edges[~inside], *ends]) if len(points) else edges


# What the bins say ---------------------------------------------------------------------------------------------------


def describe_numbers(
    name: str, missing: Noisy, found: Range, bins: NumberBins, counts: Counts, deviation: float
) -> ColumnStatistics:
    """Describe a column of numbers by its bins.

    Args:
        counts: float64 [bins.n_bins].
    """
    own = ColumnStatistics(name, missing, "number", found, show_count(float(counts.sum()), deviation, len(counts)))
    own = replace(own, groups=_group_numbers(bins, counts, deviation, found.is_whole))
    if not own.present.is_shown:
        return own
    beyond = sum(group.count.value for group in (own.groups[0], own.groups[-1]) if group.count.is_shown)
    # Values beyond the bounds count as the bounds; many of them would distort the mean.
    mean = None if beyond > MAX_BEYOND * own.present.value else _mean(bins, counts, deviation, found)
    return replace(own, mean=mean, quantiles=_quantiles(bins, counts, deviation, own))


def describe_texts(name: str, missing: Noisy, bins: TextBins, counts: Counts, deviation: float) -> ColumnStatistics:
    """Describe a column of texts by its categories; `counts` as in `describe_numbers`."""
    names = [*bins.categories, *_name_others(bins)]
    groups = tuple(
        Group(group, count=show_count(float(count), deviation)) for group, count in zip(names, counts, strict=True)
    )
    present = show_count(float(counts.sum()), deviation, len(counts))
    return ColumnStatistics(name, missing, "text", present=present, groups=groups, is_hashed=not bins.categories)


def _name_others(bins: TextBins) -> list[str]:
    if bins.categories:
        return ["other"] * bins.n_others
    return [f"bucket {number}" for number in range(bins.n_others)]


def _group_numbers(bins: NumberBins, counts: Counts, deviation: float, is_whole: bool) -> tuple[Group, ...]:
    ends = [-math.inf, *bins.edges, math.inf]
    return tuple(
        Group(name_range(low, high, is_whole), low, high, show_count(float(count), deviation))
        for low, high, count in zip(ends[:-1], ends[1:], counts, strict=True)
    )


def name_by_dates(column: ColumnStatistics, layout: str | None) -> ColumnStatistics:
    """Name the bins of a column of days since 1970-01-01 by their dates."""

    def called(group: Group) -> Group:
        first, last = math.ceil(max(group.low, FIRST_DAY)), math.ceil(min(group.high, LAST_DAY)) - 1
        if group.low == -math.inf:
            return replace(group, name=f"before {clamp_to_date(last + 1)}")
        if group.high == math.inf:
            return replace(group, name=f"from {clamp_to_date(first)}")
        return replace(
            group, name=clamp_to_date(first) if first >= last else f"{clamp_to_date(first)} to {clamp_to_date(last)}"
        )

    if column.kind != "number":
        return column
    groups, rates = (tuple(called(group) for group in listed) for listed in (column.groups, column.rates))
    return replace(column, is_date=True, layout=layout, groups=groups, rates=rates)


def clamp_to_date(days: float) -> str:
    """Return the date of a number of days since 1970-01-01, clamped to dates that have a text."""
    return format_day(math.floor(min(max(days, FIRST_DAY), LAST_DAY)))


def name_range(low: float, high: float, is_whole: bool) -> str:
    """Name a bin for a person."""
    if low == -math.inf:
        return f"below {short(math.ceil(high) if is_whole else high)}"
    if high == math.inf:
        return f"{short(math.ceil(low))} and more" if is_whole else f"from {short(low)}"
    if is_whole:
        first, last = math.ceil(low), math.ceil(high) - 1
        return short(first) if first >= last else f"{short(first)} to {short(last)}"
    return "0" if max(abs(low), abs(high)) <= _TINY else f"{short(low)} to {short(high)}"


def short(value: float) -> str:
    """Format a number in few digits."""
    if abs(value) <= _TINY:
        return "0"
    if abs(value) < 10_000:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.6g}"


def two_digits(value: float) -> str:
    """Format an error in two digits."""
    return short(float(f"{value:.2g}"))


def _mean(bins: NumberBins, counts: Counts, deviation: float, found: Range) -> Noisy:
    """Return the mean by the middles of the bins; values outside count as the bounds."""
    edges = np.clip(bins.edges, found.low, found.high) if not found.is_whole else np.array(bins.edges)
    low, high = found.bounds
    middles = np.concatenate([[low], (edges[1:] + edges[:-1]) / 2, [high]])
    total = float(counts.sum())
    # Use no BLAS product of vectors: its rounding depends on the processor.
    mean = elementary.dot(middles, counts) / total
    spread = deviation * elementary.norm(middles - mean) / total
    return Noisy(min(max(mean, low), high), spread)


def _quantiles(bins: NumberBins, counts: Counts, deviation: float, own: ColumnStatistics) -> tuple[FoundQuantile, ...]:
    """Return the `QUANTILES` with enough records on either side that lie between the outer edges."""
    found, groups = own.range, own.groups
    if found is None:
        return ()
    below = np.cumsum(counts)
    total = float(below[-1])
    # A falling sum is noise: take the mean of the closest rising curves above and below.
    rising = (np.maximum.accumulate(below) + np.minimum.accumulate(below[::-1])[::-1]) / 2
    curve = np.clip(rising / total, 0.0, 1.0)[:-1]
    quantiles = []
    for share in QUANTILES:
        value = _at(share, curve, bins, found)
        # Variance of (sum below) - share * (sum of all), with n_below bins below.
        n_below = int(np.searchsorted(curve, share)) + 1
        weights = n_below * elementary.square(1 - share) + (len(counts) - n_below) * elementary.square(share)
        spread = deviation * math.sqrt(weights)
        tail = min(share, 1 - share) * total
        is_outside = (share <= curve[0] and groups[0].count.is_shown) or (
            share > curve[-1] and groups[-1].count.is_shown
        )
        if is_outside or tail < max(MIN_RECORDS, CLEAR * spread):
            continue
        band = BAND * spread / total
        ends = (_at(share - band, curve, bins, found), _at(share + band, curve, bins, found))
        quantiles.append(FoundQuantile(share, value, *ends))
    return tuple(quantiles)


def _at(share: float, curve: NDArray[np.float64], bins: NumberBins, found: Range) -> float:
    """Return the value below which a share of the records lies.

    It is interpolated linearly between the edges, and whole for whole numbers.
    """
    low, high = found.bounds
    edges = np.array(bins.edges)
    place = int(np.searchsorted(curve, share, side="left"))
    if place == 0:
        value = float(edges[0])
    elif place == len(curve):
        value = float(edges[-1])
    else:
        step = curve[place] - curve[place - 1]
        part = (share - curve[place - 1]) / step if step > 0 else 0.0
        value = float(edges[place - 1] + part * (edges[place] - edges[place - 1]))
    is_zero = abs(value) <= max(_TINY, 1e-6 * (high - low))
    value = round(value) if found.is_whole else 0.0 if is_zero else value
    return float(min(max(value, low), high))


# The label by bin ----------------------------------------------------------------------------------------------------


def merge_bins(bins: NumberBins, column: ColumnStatistics) -> NumberBins:
    """Return coarser bins of about equal weight, by the released counts."""
    if bins.n_bins <= N_GROUPS + 2:
        return bins
    counts = np.array([max(0.0, group.count.value) for group in column.groups])
    below = np.cumsum(counts)[:-1]
    if not below[-1] > 0:
        return NumberBins(bins.edges[:: max(1, len(bins.edges) // N_GROUPS)])
    wanted = np.arange(1, N_GROUPS) / N_GROUPS * float(counts.sum())
    chosen = {int(place) for place in np.searchsorted(below, wanted) if 0 < place < len(below) - 1}
    return NumberBins(tuple(bins.edges[place] for place in sorted({0, *chosen, len(below) - 1})))


def compute_rates(bins: Bins, table: NDArray[np.float64], deviation: float) -> tuple[Group, ...]:
    """Return the shares of the label's classes in each bin.

    Args:
        table: float64 [bins.n_bins, n_classes], noisy counts.
        deviation: standard deviation of each count.
    """
    if isinstance(bins, NumberBins):
        is_whole = all(edge % 1 == 0.5 for edge in bins.edges)
        groups: Sequence[Group] = _group_numbers(bins, table.sum(axis=1), 0.0, is_whole)
    else:
        groups = [Group(name) for name in (*bins.categories, *_name_others(bins))]
    return tuple(_with_rates(group, row, deviation) for group, row in zip(groups, table, strict=True))


def _with_rates(group: Group, counts: Counts, deviation: float) -> Group:
    n_classes = len(counts)
    count = show_count(float(counts.sum()), deviation, n_classes)
    if not count.is_shown:
        return replace(group, count=count, rates=(Noisy(0.0, 0.0, is_shown=False),) * n_classes)
    rates = np.clip(counts / count.value, 0.0, 1.0)
    spreads = deviation / count.value * np.sqrt((1 - rates) ** 2 + (n_classes - 1) * rates**2)
    is_clear = float(spreads.max()) <= VAGUE
    own = tuple(Noisy(float(rate), float(spread), is_clear) for rate, spread in zip(rates, spreads, strict=True))
    return replace(group, count=count, rates=own)
