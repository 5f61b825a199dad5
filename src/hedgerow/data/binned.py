# SPDX-License-Identifier: Apache-2.0
"""A site's rows as its node holds them: codes of the plan's grid, in memory or in unnamed mapped files."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow.errors import DataError, EnvironmentFault
from hedgerow.plan.plan import Plan
from hedgerow.trees.binning import CodeArray, FloatArray, Grid, PlaceArray, build_grid


@contextmanager
def catch_disk_faults(folder: Path) -> Iterator[None]:
    """Turn an error of the disk into EnvironmentFault "disk-full"."""
    try:
        yield
    except OSError as fault:
        raise EnvironmentFault("disk-full", path=folder, fault=fault.strerror or fault) from fault


def reserve_room(file: IO[bytes], n_bytes: int) -> None:
    """Give a file its length and its room on the disk.

    A mapped file that finds no room later would end the process.
    """
    if hasattr(os, "posix_fallocate") and n_bytes:
        os.posix_fallocate(file.fileno(), 0, n_bytes)
    else:
        file.truncate(n_bytes)


def make_zeros(folder: Path | None, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return zeros in memory, or in an unnamed mapped file if there is a folder.

    Raises EnvironmentFault when the disk is full.
    """
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if folder is None or not n_bytes:
        return np.zeros(shape, dtype)
    with catch_disk_faults(folder), tempfile.TemporaryFile(dir=folder) as file:
        reserve_room(file, n_bytes)
        # Return a plain, writable array: numba would compile each kernel again for any other kind.
        return np.asarray(np.memmap(file, dtype, "r+", shape=shape))


class Recoded(NamedTuple):
    """Codes of the rows by new edges of some features.

    Attributes:
        edges: float32 by feature.
        codes: codes as in `SiteData`.
    """

    edges: Mapping[int, FloatArray]
    codes: CodeArray


@dataclass(frozen=True, eq=False)
class HeldValues:
    """Values kept in memory with the rows; their places are computed when a run asks for them.

    Few runs cut a feature again, and finding the places of all values takes longer than binning them.

    Attributes:
        grid: the grid of the codes.
        values: returns all values of a feature, given its number, as `Grid.encode` takes them; the same at every call.
        rows: intp [n], indices of the rows among the values; None for all.
        made: places that were computed already, uint8 [n] by feature.
    """

    grid: Grid
    values: Callable[[int], NDArray[np.generic]]
    rows: NDArray[np.intp] | None = None
    made: dict[int, NDArray[np.uint8]] = field(default_factory=dict)

    def only(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> HeldValues:
        """Return some of the rows, by their numbers or by bool [n]."""
        numbers = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.intp)
        return HeldValues(self.grid, self.values, numbers if self.rows is None else self.rows[numbers])

    def places(self, feature: int, codes: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.uint8]:
        """Return the places of a feature's values within their cells: uint8 [n]."""
        if feature not in self.made:
            values = self.values(feature)
            own = values if self.rows is None else values[self.rows]
            self.made[feature] = self.grid.features[feature].places(own, codes)
        return self.made[feature]


@dataclass(frozen=True, eq=False)
class SiteData:
    """A site's rows after binning.

    Attributes:
        codes: uint8 or uint16 [n_features, n], the grid codes.
        labels: int32 [n]: the class index, or a regression's label scaled to [-1, 1] in units of 2**-16.
        places: uint8 [n_divisible, n], positions of values within their cells (`Grid.places`), or the values to compute
            them from; None if the grid has no such features. Without them a run that cuts a feature again fails.
        memory: the folder of external memory for arrays as long as the rows; None for none.
    """

    codes: CodeArray
    labels: NDArray[np.int32]
    places: PlaceArray | HeldValues | None = None
    memory: Path | None = None

    @property
    def n_records(self) -> int:
        return len(self.labels)

    def only(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> SiteData:
        """Return some of the rows, by their numbers or by bool [n]."""
        numbers = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows

        def take(columns: NDArray[Any]) -> NDArray[Any]:
            found = make_zeros(self.memory, (len(columns), len(numbers)), columns.dtype)
            for out, column in zip(found, columns, strict=True):
                np.take(column, numbers, out=out)
            return found

        places = self.places.only(numbers) if isinstance(self.places, HeldValues) else self.places
        within = take(places) if isinstance(places, np.ndarray) else places
        return SiteData(take(self.codes), take(self.labels[None])[0], within, self.memory)

    def list_contents(self) -> list[NDArray[Any]]:
        """Return everything that distinguishes rows, as arrays of numbers of shape [n_records]."""
        places = self.all_places()
        return [*self.codes, self.labels, *(() if places is None else places)]

    def digest(self) -> bytes:
        """Return 32 bytes that differ if the rows differ; they never leave the site."""
        hasher, places = hashlib.sha256(), self.all_places()
        arrays = [self.codes, self.labels] if places is None else [self.codes, self.labels, places]
        own = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]
        for part in (memoryview(str(self.codes.shape).encode()), *own):
            hasher.update(len(part).to_bytes(8, "big"))
            hasher.update(part)
        return hasher.digest()

    def all_places(self) -> PlaceArray | None:
        """Return the places of all features that have any, computed or not: uint8 [n_divisible, n]."""
        if not isinstance(self.places, HeldValues):
            return self.places
        found = [self.places.places(feature, self.codes[feature]) for feature in self.places.grid.divisible]
        return np.array(found) if found else None

    def _find_places(self, feature: int, grid: Grid) -> NDArray[np.uint8]:
        if isinstance(self.places, HeldValues):
            return self.places.places(feature, self.codes[feature])
        if self.places is None:
            raise DataError("data-outside-plan", site="A site", fault="no places of values within their cells")
        return np.asarray(self.places[grid.divisible.index(feature)])

    def codes_in(self, grid: Grid, new_edges: Mapping[int, FloatArray], before: Recoded | None = None) -> CodeArray:
        """Return the codes by new edges of some features, in an array of their own.

        Each code follows from its value's code and place alone, by a public table.

        Args:
            new_edges: float32 by feature, see `FeatureGrid.cut_again`.
            before: codes by earlier edges; they are overwritten. Only one or two features are cut at a time, so a copy
                of all would cost a byte and some time per value.

        Raises:
            DataError: the rows have no places.
        """
        if not new_edges:
            return self.codes
        if before is None or np.may_share_memory(before.codes, self.codes):
            before = Recoded({}, make_zeros(self.memory, self.codes.shape, self.codes.dtype))
            before.codes[:] = self.codes
        # Return a view, a new object on the same memory: caches are keyed by the codes object.
        codes = before.codes.view()
        for feature in before.edges.keys() - new_edges.keys():
            codes[feature] = self.codes[feature]
        for feature, edges in new_edges.items():
            known = before.edges.get(feature)
            if known is not edges and (known is None or not np.array_equal(known, edges)):
                first = grid.features[feature]
                table = first.codes_in(first.cut_again(edges)).astype(codes.dtype)
                codes[feature] = table[self.codes[feature], self._find_places(feature, grid)]
        return codes


def check_data(site: str, data: SiteData, plan: Plan) -> None:
    """Raise DataError for codes or labels outside the plan; `site` is for the message."""
    grid, places = build_grid(plan), data.places
    low, high = plan.label.kind.encoded_range(plan.label)
    fault = ""
    if data.codes.shape != (grid.n_features, data.n_records) or data.codes.dtype != grid.dtype:
        fault = f"{data.codes.dtype} codes of shape {data.codes.shape} for {data.n_records} labels"
    elif data.n_records and not low <= int(data.labels.min()) <= int(data.labels.max()) <= high:
        fault = f"a label beyond {low} to {high}"
    elif isinstance(places, np.ndarray) and (
        places.dtype != np.uint8 or places.shape != (len(grid.divisible), data.n_records)
    ):
        fault = f"{places.dtype} places of shape {places.shape}"
    elif data.n_records:
        beyond = [
            feature.name
            for feature, cells, row in zip(plan.features, grid.features, data.codes, strict=True)
            if int(row.max()) >= cells.n_codes
        ]
        fault = f"a code beyond the grid in {beyond[0]}" if beyond else ""
    if fault:
        raise DataError("data-outside-plan", site=site, fault=fault)
