# SPDX-License-Identifier: Apache-2.0
"""Public grids of cells, the same at every site.

A grid is fixed by the plan before any data is seen. All split candidates, thresholds and histograms are made of its
cells, so a node bins its rows once and every later question is a table over small integers:

    numeric       x < edges[0] | edges[0] <= x < edges[1] | ... | x >= edges[-1] | missing
    code          0              1                                len(edges)       len(edges) + 1
    categorical   categories[0] | ... | categories[-1] | not listed | missing
    code          0               ...   K - 1            K            K + 1

Edges are single precision, and values are compared as single precision, as XGBoost does. An exported model then sends
every value, down to the last bit, to the same side.

Values become codes in one pass, by one short search each.

Bounds may be far wider than the rows, and then few cells hold all of them. So a cell of a number is divided into at
most 256 places, as public as the grid. A node keeps the place of each value beside its code. A grid whose edges are
some of these (`FeatureGrid.cut_again`) can take the place of the first one while a run goes on. A table says the new
code of each old one with its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numba
import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.losses.registry import loss_kind
from hedgerow.plan.plan import BY_HISTOGRAMS, DEFAULT_ALGORITHM, Feature, Plan

Part = TypeVar("Part")
FloatArray = NDArray[np.float32]
CodeArray = NDArray[np.unsignedinteger[Any]]
"""uint8 when every code fits, else uint16."""
PlaceArray = NDArray[np.uint8]

MAX_BYTE_CODES = 256
UNKNOWN_CATEGORY = -1
"""The index of a category that the plan does not list."""
MISSING_CATEGORY = -2
"""The index of a missing value."""
HALVING_EDGES = 4094
LOG_DECADES = 6.0
"""Log-spaced edges reach down to this many powers of ten below the range: from dollars to millions."""
MIDDLE = 24 * 64
"""Buckets on either side of where a feature's edges crowd: 64 equal steps in each of the 24 last halvings of the way
there. A usual grid then has at most two edges in a bucket."""
DROPPED_BITS = 23 - 6
FIRST_BUCKET = (0x3F800000 >> DROPPED_BITS) - MIDDLE + 1
"""The exponent and the first six bits of the single-precision number 1, less the buckets below it."""
FEW_EDGES = 2
"""With at most this many in every bucket, values are encoded without a branch: 1,000,000 x 28 numbers took .09 s of
processor time for .35 with a search whose length depends on the value."""
N_PLACES = 256
"""Parts of a cell, a byte for each value: half of them uniform, half log-spaced, as the cells of a range."""
ROWS_PER_BLOCK = 128
"""Rows transposed at a time: 28 columns of them stay in the first-level cache."""
VALUES_PER_CHUNK = 1 << 16
"""Values converted to single precision at a time."""
FEW_TO_ENCODE = 1 << 18
"""Up to this many values numpy's search takes .01 s; the kernel may have to be compiled first, in .6 s."""
MIN_RECORDS_PER_THREAD = 20_000
"""Below this, starting a thread takes longer than the work."""


@dataclass(frozen=True, eq=False)
class FeatureGrid:
    """The cells of one feature.

    Attributes:
        edges: float32 [n_edges], ascending and distinct; empty for a categorical feature.
        n_categories: number of listed categories; 0 for a numeric feature.
        within: the feature, if values have places within its cells; else None.
        is_new: whether its edges are not those of the plan's grid.
    """

    edges: FloatArray
    n_categories: int = 0
    within: Feature | None = None
    is_new: bool = False

    @property
    def is_categorical(self) -> bool:
        return self.n_categories > 0

    @cached_property
    def n_cells(self) -> int:
        """The number of codes for values, without the code for missing ones.

        A numeric feature has one for each cell, a categorical one for each category and one for "not listed".
        """
        return self.n_categories + 1 if self.is_categorical else len(self.edges) + 1

    @property
    def missing_code(self) -> int:
        return self.n_cells

    @property
    def n_codes(self) -> int:
        return self.n_cells + 1

    def encode(self, values: NDArray[np.generic]) -> NDArray[np.uint16]:
        """Return the codes of one column.

        Args:
            values: float32 [n] with NaN for missing; for a categorical feature integers [n], -1 for a value that is
                not listed and -2 for missing.

        Returns:
            uint16 [n].
        """
        if self.is_categorical:
            indices = values.astype(np.int64)
            codes = np.where(indices == UNKNOWN_CATEGORY, self.n_categories, indices)
            return np.where(indices == MISSING_CATEGORY, self.missing_code, codes).astype(np.uint16)
        with np.errstate(over="ignore"):  # beyond single precision: an infinity, which has a cell like any value
            single = values.astype(np.float32)
        codes = np.searchsorted(self.edges, single, side="right").astype(np.uint16)
        codes[np.isnan(single)] = self.missing_code
        return codes

    @cached_property
    def inner_edges(self) -> FloatArray:
        """Edges dividing each cell into places: float32 [n_cells, 255], ascending, then infinity.

        Raises:
            ValueError: values have no places within these cells.
        """
        if self.within is None or self.within.min is None or self.within.max is None:
            raise ValueError("only cells of a range have places")
        lower = np.append(self.within.min, self.edges.astype(np.float64))
        upper = np.append(self.edges.astype(np.float64), self.within.max)
        span, n_even = np.maximum(upper - lower, 0.0)[:, None], (N_PLACES - 1) // 2
        # As shares of a range: half uniform, half log-spaced.
        even, log = np.arange(1, n_even + 1) / (n_even + 1), _log_edges(0.0, 1.0, N_PLACES - 1 - n_even)
        parts = np.sort(np.append(even, log))
        inner = np.where((upper > 0)[:, None], lower[:, None] + span * parts, upper[:, None] - span * parts[::-1])
        for cell in np.flatnonzero((lower < 0) & (upper > 0)).tolist():
            low, high = float(lower[cell]), float(upper[cell])
            uniform = low + (high - low) * np.arange(1, N_PLACES // 2) / (N_PLACES // 2)
            inner[cell] = np.sort(np.append(uniform, _log_edges(low, high, N_PLACES // 2)))
        rounded = (np.floor(inner) + 0.5 if self.within.integer else inner).astype(np.float32)
        before = np.append(np.float32(-np.inf), self.edges)[:, None]
        is_new = rounded > np.hstack([before, rounded[:, :-1]])
        is_within = (rounded > before) & (rounded < np.append(self.edges, np.float32(np.inf))[:, None])
        return np.asarray(np.sort(np.where(is_new & is_within, rounded, np.float32(np.inf)), axis=1), dtype=np.float32)

    def places(self, values: NDArray[np.generic], codes: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.uint8]:
        """Return the place of each value within its cell: uint8 [n], 0 for missing values.

        Args:
            codes: the codes of `values`.
        """
        found = np.empty(len(values), dtype=np.uint8)
        with np.errstate(over="ignore"):
            _place(values.astype(np.float32), codes, self.inner_edges, found)
        return found

    def cut_again(self, edges: FloatArray) -> FeatureGrid:
        """Return the grid of this feature with new edges.

        Args:
            edges: float32, ascending, as many as before; each is an edge or an inner edge of this grid.

        Raises:
            ValueError: the edges are others, or do not ascend.
        """
        # Search each edge in its own cell only: all cells have 64,000, and a wide table is cut thousands of times.
        within = self.inner_edges[np.searchsorted(self.edges, edges, side="right")] == edges[:, None]
        is_known = (within.any(axis=1) & np.isfinite(edges)) | np.isin(edges, self.edges)
        if self.within is None or edges.shape != self.edges.shape or not is_known.all():
            raise ValueError("a feature is cut again at as many edges, of its cells and within them")
        if not (np.diff(edges) > 0).all():
            raise ValueError("edges have to ascend")
        return FeatureGrid(edges, is_new=True)

    def codes_in(self, other: FeatureGrid) -> NDArray[np.uint16]:
        """Return the code in `other` of each code and place of this grid: uint16 [n_codes, 256].

        Args:
            other: this grid, cut again.
        """
        starts = np.column_stack([np.append(np.float32(-np.inf), self.edges), self.inner_edges])
        found = np.searchsorted(other.edges, starts, side="right")
        return np.vstack([found, np.full((1, N_PLACES), other.missing_code)]).astype(np.uint16)

    @property
    def acceleration(self) -> tuple[FloatArray, np.float32, np.float32, NDArray[np.uint16], np.int64]:
        """Search tables: edges and a NaN, offset, scale, edges before each bucket, and most in a bucket.

        A bucket number is a monotone function of the value, computed alike for edges and values. So an edge in an
        earlier bucket is never above the value, and one in a later bucket never at or below it.
        """
        low, high = self.edges[[0, -1]] if len(self.edges) else np.zeros(2, dtype=np.float32)
        # Half of the edges crowd there, see `_log_edges`.
        middle = np.float32(0) if low < 0 < high else high if high <= 0 else low
        with np.errstate(all="ignore"):
            reach = max(abs(low - middle), abs(high - middle))
            scale = min(np.float32(1) / reach, np.finfo(np.float32).max) if reach > 0 else np.float32(1)
            counts = np.bincount(_find_buckets(self.edges, middle, scale), minlength=2 * MIDDLE + 1)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint16)
        return np.append(self.edges, np.float32(np.nan)), middle, scale, starts, np.int64(counts.max())


def _find_buckets(values: FloatArray, middle: np.float32, scale: np.float32) -> NDArray[np.int32]:
    """Return the bucket of each value as `_encode` numbers them: int32 [n], 0 to 2 * MIDDLE."""
    bits = np.asarray((values - middle) * scale, dtype=np.float32).view(np.int32)
    away = np.clip(((bits & 0x7FFFFFFF) >> DROPPED_BITS) - FIRST_BUCKET, 0, MIDDLE)
    return np.asarray(MIDDLE + np.where(bits < 0, -away, away), dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Grid:
    """The grids of all features, in the plan's order."""

    features: tuple[FeatureGrid, ...]

    @property
    def n_features(self) -> int:
        return len(self.features)

    @cached_property
    def n_codes(self) -> int:
        """The largest number of codes of a feature, the width of tables by code."""
        return max(feature.n_codes for feature in self.features)

    @cached_property
    def codes_of_features(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The number of codes of each feature, and whether it is categorical: int64 and bool [n_features]."""
        return (
            np.array([feature.n_codes for feature in self.features], dtype=np.int64),
            np.array([feature.is_categorical for feature in self.features], dtype=np.bool_),
        )

    @property
    def dtype(self) -> type[np.uint8] | type[np.uint16]:
        """The integer type of codes: one byte per value if every code fits, else two."""
        return np.uint8 if self.n_codes <= MAX_BYTE_CODES else np.uint16

    def encode(self, columns: tuple[NDArray[np.generic], ...]) -> CodeArray:
        """Return the codes of a chunk of columns: [n_features, n].

        Features are in rows, because each tree reads few features.
        """
        codes: CodeArray = np.empty((self.n_features, len(columns[0])), dtype=self.dtype)
        for row, (feature, values) in enumerate(zip(self.features, columns, strict=True)):
            if feature.is_categorical or codes.size <= FEW_TO_ENCODE:
                codes[row] = feature.encode(values)
            else:
                with np.errstate(over="ignore"):
                    single = _read_only(values.astype(np.float32)[:, None])
                _encode_rows(single, _pack_edges([feature]), _NO_BOUNDS, codes[row : row + 1], 0)
        return codes

    @cached_property
    def divisible(self) -> tuple[int, ...]:
        """Numbers of the features with places within their cells."""
        return tuple(number for number, feature in enumerate(self.features) if feature.within is not None)

    def places(self, columns: tuple[NDArray[np.generic], ...], codes: CodeArray) -> PlaceArray:
        """Return the places of a chunk's values within their cells: uint8 [len(divisible), n].

        Args:
            codes: [n_features, n], the codes of the values.
        """
        found = np.empty((len(self.divisible), codes.shape[1]), dtype=np.uint8)
        for row, number in enumerate(self.divisible):
            found[row] = self.features[number].places(columns[number], codes[number])
        return found

    @property
    def new_edges(self) -> dict[int, FloatArray]:
        """Edges by feature, for the features that were cut again."""
        return {number: feature.edges for number, feature in enumerate(self.features) if feature.is_new}

    def cut_again(self, edges: Mapping[int, FloatArray], others: Grid | None = None) -> Grid:
        """Return this grid with new edges of some features.

        Args:
            edges: float32 by feature; see `FeatureGrid.cut_again`.
            others: where the other features are taken from, this grid cut again before; None for this one.

        Raises:
            ValueError: see `FeatureGrid.cut_again`.
        """
        features = list((others or self).features)
        for number, new in edges.items():
            features[number] = self.features[number].cut_again(new)
        return Grid(tuple(features))

    def encode_and_count(
        self, matrix: NDArray[np.floating[Any]], bounds: FloatArray, n_threads: int = 1
    ) -> tuple[CodeArray, NDArray[np.int64]]:
        """Encode an all-numeric matrix in one pass, and count each column's values outside its bounds.

        Args:
            matrix: float32 or float64 [n, n_features], NaN for missing.
            bounds: float32 [2, n_features], the lower and the upper ones.

        Returns:
            [n_features, n], and int64 [n_features].
        """
        codes: CodeArray = np.empty((self.n_features, len(matrix)), dtype=self.dtype)
        if matrix.size <= FEW_TO_ENCODE:
            with np.errstate(over="ignore"):
                rows = matrix.astype(np.float32)
            for number, feature in enumerate(self.features):
                codes[number] = feature.encode(rows[:, number])
            return codes, np.count_nonzero((rows < bounds[0]) | (rows > bounds[1]), axis=0)
        packed, limits = _pack_edges(self.features), np.ascontiguousarray(bounds, dtype=np.float32)

        def encode_stretch(first: int, last: int) -> NDArray[np.int64]:
            beyond = np.zeros(self.n_features, dtype=np.int64)
            for begin in range(first, last, step):
                with np.errstate(over="ignore"):
                    rows = np.ascontiguousarray(matrix[begin : min(begin + step, last)], dtype=np.float32)
                beyond += _encode_rows(_read_only(rows), packed, limits, codes, begin)
            return beyond

        step = max(ROWS_PER_BLOCK, VALUES_PER_CHUNK // self.n_features)
        return codes, np.sum(in_threads(len(matrix), n_threads, encode_stretch), axis=0, dtype=np.int64)


_NO_BOUNDS = np.array([[-np.inf], [np.inf]], dtype=np.float32)


def _read_only(rows: FloatArray) -> FloatArray:
    """Return a read-only view of rows.

    Rows mapped from a file are read-only, and numba would compile the kernels once more for writable rows.
    """
    view = rows.view()
    view.flags.writeable = False
    return view


def _pack_edges(features: Sequence[FeatureGrid]) -> tuple[NDArray[Any], ...]:
    """Return all edges, their offsets, and the other `acceleration` tables, as `_encode_rows` takes them."""
    edges, middles, scales, starts, most = zip(*[feature.acceleration for feature in features], strict=True)
    offsets = np.concatenate([[0], np.cumsum([len(cuts) for cuts in edges])]).astype(np.int64)
    return np.concatenate(edges), offsets, np.array(middles), np.array(scales), np.stack(starts), np.array(most)


@numba.njit(cache=True, nogil=True)
def _encode(values, edges, middle, scale, starts, most, codes):  # type: ignore[no-untyped-def]
    """Write the code of each value: the number of edges <= value; for NaN, one past the last cell.

    See `FeatureGrid.acceleration` for the arguments.
    """
    for i in range(len(values)):
        value = values[i]
        # The leading bits of positive numbers stand in the numbers' order.
        bits = np.float32((value - middle) * scale).view(np.int32)
        away = ((bits & np.int32(0x7FFFFFFF)) >> np.int32(DROPPED_BITS)) - np.int32(FIRST_BUCKET)
        away = min(max(away, np.int32(0)), np.int32(MIDDLE))
        bucket = np.uint32(np.int32(MIDDLE) - away if bits < np.int32(0) else np.int32(MIDDLE) + away)
        left = np.uint32(starts[bucket])
        if most <= FEW_EDGES:
            # Two looks are enough: no value reaches the NaN behind the last edge, or an edge of a later bucket.
            left += np.uint32(edges[left] <= value)
            left += np.uint32(edges[left] <= value)
        else:
            end = np.uint32(starts[bucket + np.uint32(1)])
            while left < end:
                half = (left + end) >> np.uint32(1)
                if edges[half] <= value:
                    left = half + np.uint32(1)
                else:
                    end = half
        codes[i] = left if value == value else np.uint32(len(edges))


@numba.njit(cache=True, nogil=True)
def _place(values, codes, inner, places):  # type: ignore[no-untyped-def]
    """Write each value's place: the number of inner edges <= value in its cell; 0 for other codes."""
    for i in range(len(values)):
        place = np.uint32(0)
        if codes[i] < len(inner):
            # Without a branch that follows the value; of N_PLACES - 1 edges, halves have whole lengths to the end.
            row, step = inner[codes[i]], np.uint32(N_PLACES >> 1)
            while step:
                place += step * np.uint32(row[place + step - np.uint32(1)] <= values[i])
                step >>= np.uint32(1)
        places[i] = place


@numba.njit(cache=True, nogil=True)
def _encode_rows(rows, packed, bounds, codes, first):  # type: ignore[no-untyped-def]
    """Write the codes of a C-ordered matrix, transposed, from column `first` of `codes` on.

    A block of rows stays in the cache.

    Args:
        rows: float32 [n, n_features].
        packed: the result of `_pack_edges` for their features.
        bounds: float32 [2, n_features].
        codes: uint8 or uint16 [n_features, at least first + n].

    Returns:
        int64 [n_features], the number of each feature's values outside its bounds.
    """
    edges, offsets, middles, scales, starts, most = packed
    n_rows, n_features = rows.shape
    beyond = np.zeros(n_features, dtype=np.int64)
    block = np.empty((n_features, ROWS_PER_BLOCK), dtype=np.float32)
    for begin in range(0, n_rows, ROWS_PER_BLOCK):
        size = min(ROWS_PER_BLOCK, n_rows - begin)
        for row in range(size):
            for feature in range(n_features):
                block[feature, row] = rows[begin + row, feature]
        for feature in range(n_features):
            values, low, high = block[feature, :size], bounds[0, feature], bounds[1, feature]
            n_beyond = np.int32(0)
            for row in range(size):
                n_beyond += np.int32(values[row] < low) | np.int32(values[row] > high)
            beyond[feature] += n_beyond
            own, at = edges[offsets[feature] : offsets[feature + 1]], first + begin
            _encode(
                values, own, middles[feature], scales[feature], starts[feature],
                most[feature], codes[feature, at : at + size],
            )  # fmt: skip
    return beyond


def in_threads(n_records: int, n_threads: int, part: Callable[[int, int], Part]) -> list[Part]:
    """Call `part` for stretches of records in up to n_threads threads, and return its results in order.

    Args:
        n_threads: at most; a single one where the records are few.
        part: takes the first record of a stretch and its end; mostly a kernel that releases the interpreter's lock. The
            stretches have even lengths and are all records together.
    """
    if n_threads == 1 or n_records < MIN_RECORDS_PER_THREAD * n_threads:
        return [part(0, n_records)]
    borders = [n_records * number // n_threads for number in range(n_threads + 1)]
    with ThreadPoolExecutor(n_threads - 1) as others:
        # This thread has a part as well: to start one takes as long as to sum thousands of records.
        parts = others.map(part, borders[1:-1], borders[2:])
        return [part(0, borders[1]), *parts]


def build_grid(plan: Plan) -> Grid:
    """Return the grid of a plan.

    With ``log`` the edges are exactly the Q candidates, with ``uniform`` all candidates except the upper bound.
    ``adaptive`` chooses among 253 edges, a byte per value. ``iterative_hessian`` halves intervals again and again and
    moves each midpoint to the nearest of 4094 edges; ``quantile`` finds its quantiles among these 4094.
    """
    is_cut_again = cuts_again(plan)
    return Grid(tuple(_feature_grid(feature, plan, is_cut_again) for feature in plan.features))


def cuts_again(plan: Plan) -> bool:
    """Return whether a run of the plan may cut features again.

    It is the default for two and more classes. Linear starts of numbers use all edges that a feature has, and plans
    after a paper keep its grid.
    """
    model = plan.model
    is_adaptive = model.split_candidates == "adaptive" and model.interaction in ("auto", "adaptive")
    is_random = model.algorithm == DEFAULT_ALGORITHM and model.split_method == "totally_random"
    return is_adaptive and is_random and loss_kind(plan).cuts_again


_in_use: WeakValueDictionary[tuple[object, ...], FeatureGrid] = WeakValueDictionary()
"""The cells of all grids that there are: the parties of one process share them, and so do features of one range.

The edges within the cells of one feature take 260 kB.
"""


def _feature_grid(feature: Feature, plan: Plan, is_cut_again: bool) -> FeatureGrid:
    if feature.is_categorical:
        return FeatureGrid(np.empty(0, dtype=np.float32), n_categories=len(feature.categories))
    if feature.min is None or feature.max is None:  # a validated plan has both
        raise ValueError(f"feature {feature.name} has no bounds")
    low, high = feature.min, feature.max
    method, n_candidates = plan.model.split_candidates, plan.model.n_candidates
    key = (low, high, feature.integer, feature.spacing, method, n_candidates, is_cut_again)
    found = _in_use.get(key)
    if found is None:
        within = None
        if method == "adaptive":
            has_places = is_cut_again and not (feature.integer and high - low <= MAX_BYTE_CODES - 3)
            edges, within = _mix_edges(low, high, feature, MAX_BYTE_CODES - 3), feature if has_places else None
        elif method in (*BY_HISTOGRAMS, "quantile"):
            edges = _mix_edges(low, high, feature, HALVING_EDGES)
        else:
            edges = _edges_above(low, high - low, n_candidates, logarithmic=method == "log")
        found = _in_use.setdefault(key, FeatureGrid(edges, within=within))
    return found


def _edges_above(low: float, span: float, n_candidates: int, logarithmic: bool) -> FloatArray:
    """Return edges right above candidates s_q, q = 0 .., for splits "x <= s_q" (CCS'22, section 4.5.1).

    Uniform ones are low + q span / (Q - 1). Log ones are uniform in log(1 + x - low), as in the published code. The
    first candidate is the lower bound itself: where most records lie on it, as counts of rare things do, it is the most
    useful one of all. The upper bound is not an edge: it divides nothing.
    """
    if logarithmic:
        candidates = low + elementary.expm1(elementary.log1p(span) * np.arange(n_candidates) / n_candidates)
    else:
        steps = max(1, n_candidates - 1)
        candidates = low + span * np.arange(steps) / steps
    # The next number after zero is denormal, which not every machine tells from zero; a billionth of a step is not.
    following = np.nextafter(candidates.astype(np.float32), np.float32(np.inf))
    return _distinct(np.maximum(following, candidates + span * 1e-12).astype(np.float32))


def _mix_edges(low: float, high: float, feature: Feature, n_edges: int) -> FloatArray:
    """Return uniform and log-spaced edges, half of each unless the feature's spacing names one kind.

    An integer feature within reach of n_edges has one edge between every two neighbours.
    """
    if feature.integer and high - low <= n_edges:
        return _distinct(np.arange(np.floor(low), np.ceil(high)) + 0.5)
    n_uniform = {"uniform": n_edges, "log": 0}.get(feature.spacing, n_edges // 2)
    uniform = low + (high - low) * np.arange(1, n_uniform + 1) / (n_uniform + 1)
    log = _log_edges(low, high, n_edges - n_uniform) if n_uniform < n_edges else np.empty(0)
    edges = np.concatenate([uniform, log])
    # Between two neighbouring integers one edge is enough.
    return _distinct(np.floor(edges) + 0.5 if feature.integer else edges)


def _log_edges(low: float, high: float, n_edges: int) -> NDArray[np.float64]:
    """Return log-spaced edges of a range.

    The distance from the point of the range that is nearest to zero grows by a constant factor.
    """
    if low < 0 < high:
        n_below = max(1, min(n_edges - 1, round(n_edges * -low / (high - low))))
        below = -_log_edges(0.0, -low, n_below)
        return np.concatenate([below, _log_edges(0.0, high, n_edges - n_below)])
    reach = (high - low) * _space_evenly_in_log(n_edges)
    return np.asarray(high - reach if high <= 0 else low + reach)


@lru_cache(maxsize=256)
def _space_evenly_in_log(n_edges: int) -> NDArray[np.float64]:
    """Return n numbers between 0 and 1 that grow by a constant factor; the schedule asks for a plan's grid often."""
    found = elementary.powers(10.0, -LOG_DECADES * (1 - np.arange(1, n_edges + 1) / (n_edges + 1)))
    found.setflags(write=False)
    return found


def _distinct(edges: NDArray[np.floating[Any]]) -> FloatArray:
    """Return ascending single-precision edges, merging those that single precision cannot tell apart."""
    return np.unique(edges.astype(np.float32))
