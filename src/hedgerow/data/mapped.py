# SPDX-License-Identifier: Apache-2.0
"""External memory: a site's arrays in mapped files, so that the table may be larger than memory.

The system drops mapped pages when it needs memory, and reads them again. A site's codes, labels and places are files
whose names follow from the plan and the table, and are reused until either changes. They are written in one pass,
stretch by stretch into a file until the number of rows is known. Scores, and codes by other edges, belong to one run:
their files have no name, and disappear with the process.

The files hold the rows as the plan reads them, a code for each value, so they are as private as the table. Each table's
folder therefore belongs to the owner only (mode 0700), as the folder around it must, and so does each file (0600).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hedgerow.codec import with_hash, without_hash
from hedgerow.data.binned import catch_disk_faults, reserve_room
from hedgerow.data.cells import CellCounts
from hedgerow.data.lines import LineCounts
from hedgerow.data.sources import Location, stamp_files
from hedgerow.data.units import ContributionReport
from hedgerow.plan.plan import Plan
from hedgerow.storage import require_private
from hedgerow.version import __version__

REPORT = "report.json"
"""File name of the row report and list of arrays of a cached table. The file ends with its own hash."""
_HEAD_BYTES = 128


class Stretches:
    """Columns of one type that arrive in stretches, until their length is known.

    Args:
        folder: folder of the file in which they are collected; None for memory.
    """

    def __init__(self, n_columns: int, dtype: Any, folder: Path | None) -> None:
        self._n_columns, self._dtype, self._folder = n_columns, np.dtype(dtype), folder
        self._parts, self._lengths = [np.empty((n_columns, 0), dtype)], list[int]()

    def __enter__(self) -> Self:
        if self._folder is not None:
            with catch_disk_faults(self._folder):
                self._file = tempfile.TemporaryFile(dir=self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._file.close()

    def add(self, stretch: NDArray[Any]) -> None:
        """Append a stretch [n_columns, m]."""
        if self._folder is None:
            self._parts.append(stretch)
            return
        self._lengths.append(stretch.shape[1])
        with catch_disk_faults(self._folder):
            self._file.write(np.ascontiguousarray(stretch, self._dtype).data)

    def join(self, name: str) -> NDArray[Any]:
        """Return all stretches as [n_columns, n]: in memory, or mapped from the file `name` in the folder."""
        if self._folder is None:
            return np.concatenate(self._parts, axis=1)
        with catch_disk_faults(self._folder):
            found, start = _create(self._folder / name, (self._n_columns, sum(self._lengths)), self._dtype), 0
            self._file.seek(0)
            for length in self._lengths:
                n_bytes = self._n_columns * length * self._dtype.itemsize
                stretch = np.frombuffer(self._file.read(n_bytes), self._dtype)
                found[:, start : start + length] = stretch.reshape(self._n_columns, length)
                start += length
        return found


def _create(path: Path, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Create a mapped array in a new file, in numpy's own format."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as file:
        header = {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
        npy.write_array_header_2_0(file, header)
        file.flush()
        reserve_room(file, file.tell() + int(np.prod(shape)) * np.dtype(dtype).itemsize)
    return _map(path)


def _map(path: Path) -> NDArray[Any]:
    """Map the array in a complete file."""
    return np.asarray(np.load(path, mmap_mode="r+", allow_pickle=False))


def _describe_files(folder: Path) -> dict[str, list[Any]]:
    """Return the size and the head (type and shape) of each array in a folder, by file name."""
    found = dict[str, list[Any]]()
    for path in folder.glob("*.npy"):
        with open(path, "rb") as file:
            found[path.name] = [os.fstat(file.fileno()).st_size, file.read(_HEAD_BYTES).hex()]
    return found


@dataclass(frozen=True)
class ExternalMemory:
    """The folder in which the codes of tables that are read together are kept.

    Attributes:
        folder: a folder of the owner only.
        key: hash of everything that the codes depend on: the plan, and every table's name, size and time.
        stamps: the file stamps of each table, by its name. A database has None, because its rows may change unseen; its
            arrays are not kept beyond the process. Empty if arrays stay valid whatever becomes of the tables.
        tables: the location of each table, by its name.
    """

    folder: Path
    key: str
    stamps: Mapping[str, Sequence[tuple[int, ...]] | None]
    tables: Mapping[str, Location]

    @classmethod
    def open(cls, folder: Path, plan: Plan, tables: Mapping[str, Location], *, holds: bool = False) -> ExternalMemory:
        """Open the external memory of some tables, given by their names; make the folder if needed.

        Args:
            holds: whether arrays that were read once are used until the folder is deleted, for files and databases
                alike.

        Raises:
            EnvironmentFault: the folder cannot be made, or is there and is not this user's alone.
        """
        stamps = {} if holds else {name: stamp_files(place) for name, place in tables.items()}
        own = [(name, os.fspath(place), str(getattr(place, "adapter", ""))) for name, place in tables.items()]
        said = json.dumps([__version__, plan.digest, own, stamps])
        with catch_disk_faults(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            require_private(folder, folder.stat())
        return cls(folder, sha256(said.encode()).hexdigest()[:32], stamps, tables)

    def find(self, name: str) -> tuple[dict[str, NDArray[Any]], ContributionReport] | None:
        """Return a table's kept arrays by their names, and its row report; None if there are none."""
        kept = self.place(name)
        try:
            # Compare sizes and heads first: from a damaged head numpy reads garbage or raises anything, and it extends
            # a cut file.
            report = json.loads(without_hash((kept / REPORT).read_bytes()))
            if report.pop("files") != _describe_files(kept):
                return None
            arrays = {path.stem: _map(path) for path in sorted(kept.glob("*.npy"))}
            if lines := report.pop("lines"):
                fields = {int(number): count for number, count in lines.pop("n_fields").items()}
                report["lines"] = LineCounts(**lines, n_fields=fields)
            report["cells"] = {column: CellCounts(**counts) for column, counts in report["cells"].items()}
            return arrays, ContributionReport(**report)
        except (OSError, ValueError, TypeError, KeyError):
            # Damaged, or written with other fields by another release.
            return None

    def begin(self, name: str) -> Path:
        """Make a new folder for a table's arrays; delete arrays of other plans or earlier contents."""
        part = self.place(name, ".part")
        # The ending ".part" marks an unfinished folder.
        own = re.compile(rf"{re.escape(name)}-[0-9a-f]{{32}}(\.part)?")
        with catch_disk_faults(self.folder):
            for old in [path for path in self.folder.iterdir() if own.fullmatch(path.name)]:
                shutil.rmtree(old, ignore_errors=True)
            part.mkdir(mode=0o700)
        return part

    def keep(self, name: str, changed: Mapping[str, NDArray[Any]], report: ContributionReport) -> None:
        """Keep a table's folder with its report, or delete the folder if the table may have changed.

        Otherwise the folder is deleted.

        Args:
            changed: arrays that replace those in the folder, by their names.
        """
        part = self.place(name, ".part")
        if self.stamps and (self.stamps[name] is None or self.stamps[name] != stamp_files(self.tables[name])):
            # Arrays that are mapped already stay usable as long as the process.
            shutil.rmtree(part, ignore_errors=True)
            return
        with catch_disk_faults(self.folder):
            for array_name, array in changed.items():
                own = part / f"{array_name}.npy"
                own.unlink()
                _create(own, array.shape, array.dtype)[...] = array
            content = json.dumps({**asdict(report), "files": _describe_files(part)}).encode()
            with os.fdopen(os.open(part / REPORT, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.write(with_hash(content))
            for path in part.iterdir():
                # Sync before the rename: a folder with its final name is then complete, even after a power cut.
                with open(path, "rb+") as written:
                    os.fsync(written.fileno())
            part.replace(self.place(name))

    def place(self, name: str, ending: str = "") -> Path:
        """Return the folder of a table's arrays; with an ending, that of unfinished ones."""
        return self.folder / f"{name}-{self.key}{ending}"
