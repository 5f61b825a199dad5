"""The counter beside a node's database: one line, overwritten in place, that says what must never be done again."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from hedgerow.errors import EnvironmentFault

_BYTES = 512
"""A sector: what a disk writes at once."""
_LINE = '{"run_id": "%(run_id)s", "attempt": %(attempt)d, "sequence": %(sequence)d, "answered": %(answered)d, ' \
    '"masked": %(masked)d, "key": "%(key)s", "manifest": "%(manifest)s"}'
EVERY_ROUND = 2**31
"""Stands for the last round masked where that is not known, as in a counter that was begun anew."""
_sync = os.fdatasync if hasattr(os, "fdatasync") else os.fsync


@dataclass
class Counter:
    """What the file says.

    Attributes:
        run_id: of the run that it speaks of, in hexadecimal digits as `key` and `manifest`.
        attempt: of the epoch.
        sequence: of the last step in the database.
        answered: the last round whose shares have left, or that was released; -1 for none.
        masked: the last round masked; -1 for none.
        key: of the last step in the database.
        manifest: the hash of the manifest that was answered after that step; empty for none.
    """

    run_id: str = ""
    attempt: int = 0
    sequence: int = 0
    answered: int = -1
    masked: int = -1
    key: str = field(default="", repr=False)
    manifest: str = ""

    @property
    def last_barred(self) -> int:
        """The last round whose sum may have been opened, where no database says in which epoch it was masked."""
        return self.answered if self.masked == EVERY_ROUND else max(self.answered, self.masked)


class CounterFile:
    """The file, open for writing from the first write on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def read(self) -> Counter:
        """What it says, or a new counter where there is no file; raises EnvironmentFault for one that is damaged."""
        try:
            content = json.loads(self._path.read_text(encoding="ascii"))
            attempt, sequence, answered = (int(content[name]) for name in ("attempt", "sequence", "answered"))
            key, manifest = (bytes.fromhex(content[name]).hex() for name in ("key", "manifest"))
            return Counter(str(content["run_id"]), attempt, sequence, answered, int(content["masked"]), key, manifest)
        except FileNotFoundError:
            return Counter()
        except (OSError, ValueError, KeyError, TypeError) as fault:
            raise EnvironmentFault(
                f"{self._path} cannot be read.",
                cause="It was damaged or edited, or an earlier version of Hedgerow wrote it.",
                remedy="Move the whole folder away, but keep the budget book; the node then takes part in new runs.",
                code="database-damaged",
            ) from fault

    def write(self, counter: Counter) -> None:
        """On the disk when this returns; raises EnvironmentFault."""
        # In place and of one length: nothing but its content changes, so the content is all that has to reach the disk.
        line = (_LINE % counter.__dict__).ljust(_BYTES).encode("ascii")
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
            os.pwrite(self._descriptor, line, 0)
            _sync(self._descriptor)
        except OSError as fault:
            raise EnvironmentFault(
                f"{self._path} could not be written: {fault.strerror or fault}.",
                cause="The disk is full, or the folder may not be written to.",
                remedy="Free some space and start again: nothing was lost.",
                code="disk-full",
            ) from fault

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
