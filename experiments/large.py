"""A table that outgrows the memory: codes in mapped files, beside XGBoost's external memory, rows made on the fly.

Ten numbers uniform on [0, 1) and a class, made block by block, so that no table lies on the disk. Each line is a
process of its own (where rows are in actors, the node's): seconds of processor time until the codes are there and for
training, rows a second of both, and the largest memory beyond the page cache (RssAnon: what the system cannot drop),
less what the same process holds for few rows. Last is the model's digest: of as many rows it is one, wherever the codes
are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments.harness import arguments
from hedgerow.app.actors import start_actors
from hedgerow.client.shards import ShardedNode, Shards
from hedgerow.data.binned import SiteData
from hedgerow.data.hashing import Part
from hedgerow.data.mapped import ExternalMemory
from hedgerow.data.site_data import read_bounded, read_part
from hedgerow.data.sources import add_source
from hedgerow.data.units import RowsLeftOut
from hedgerow.local.training import build_aggregation, train
from hedgerow.methods.tasks import TrainingTask
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.release import UNCOUNTED, run_program

N_FEATURES = 10
BLOCK = 1 << 18
FEW = 100_000
N_PARTS = 7
NAMES = [f"x{i}" for i in range(N_FEATURES)]


def _make(number: int, n_rows: int) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """A block's values, float32 [N_FEATURES, n_rows], and classes."""
    random = np.random.default_rng([7, number])
    values = random.random((N_FEATURES, n_rows), dtype=np.float32)
    score = values[0] + values[1] * values[2] - values[3]
    return values, (score + 0.5 * random.random(n_rows, dtype=np.float32) > 0.6).astype(np.int8)


def _blocks(n_rows: int) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int8]]]:
    for number, first in enumerate(range(0, n_rows, BLOCK)):
        yield _make(number, min(BLOCK, n_rows - first))


class MadeTable:
    """A table of so many rows that are made when they are read: made://ROWS; see `hedgerow.data.tables.Table`."""

    source = "The made table"
    first_row = 1

    def __init__(self, location: str) -> None:
        self._n_rows = int(location.partition("://")[2])

    def types(self) -> dict[str, Any]:
        """See `Table.types`."""
        return {**dict.fromkeys(NAMES, pa.float32()), "y": pa.int8()}

    def names(self) -> list[str]:
        """See `Table.names`."""
        return [*NAMES, "y"]

    def batches(self, names: Sequence[str], chunk_rows: int, left_out: RowsLeftOut | None) -> Iterator[tuple[Any, ...]]:
        """See `Table.batches`."""
        for values, classes in _blocks(self._n_rows):
            columns = dict(zip(NAMES, map(pa.array, values), strict=True)) | {"y": pa.array(classes)}
            for first in range(0, len(classes), chunk_rows):
                yield tuple(columns[name].slice(first, chunk_rows) for name in names)


add_source("made", MadeTable)


def _plan(n_rows: int, n_trees: int, interaction: str) -> Plan:
    features = [{"name": name, "type": "numeric", "min": 0.0, "max": 1.0} for name in NAMES]
    size = {"interaction_size": 1} if interaction == "cyclical" else {}
    model = {"n_trees": n_trees, "max_depth": 4, "batch_size": 25, "structure_seed": 1, "interaction": interaction}
    return Plan.from_dict(
        {
            "version": 1, "name": "large", "features": features,
            "label": {"name": "y", "type": "binary", "classes": ["0", "1"]},
            "privacy": {"epsilon": 1.0, "delta": 1e-9, "n_records": n_rows},
            "model": {**model, **size},
        }
    )  # fmt: skip


class _Memory(threading.Thread):
    """The largest memory of this process beyond the page cache, in bytes, looked at ten times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0

    def run(self) -> None:
        while True:
            lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            self.most = max(self.most, 1024 * int(lines["RssAnon"].split()[0]))
            time.sleep(0.1)


def _hedgerow(n_rows: int, n_trees: int, interaction: str, folder: Path | None) -> tuple[float, float, str]:
    """Seconds of processor time until the codes are there, and until the model is; and the digest of its file."""
    plan, tables, start = _plan(n_rows, n_trees, interaction), {"site": f"made://{n_rows}"}, time.process_time()
    memory = None if folder is None else ExternalMemory.open(folder, plan, tables)
    rows = {name: data for name, (data, _) in read_bounded(tables, plan, memory=memory).items()}
    read = time.process_time()
    model = train(plan, rows, noise=SeededNoise(1))
    return read - start, time.process_time() - read, hashlib.sha256(model.to_bytes()).hexdigest()


def _read_part(offered: Any, part: Part) -> SiteData:
    """A part of the made table, in a worker, which knows such tables once it has imported this module."""
    return read_part(f"made://{offered.privacy.n_records}", offered, part)


def _shards(n_rows: int, n_trees: int, interaction: str) -> tuple[float, float, str]:
    """The same of a node whose rows are in `N_PARTS` actors of Ray; seconds of the node alone."""
    plan, noise, start = _plan(n_rows, n_trees, interaction), SeededNoise(1), time.process_time()
    task, shards = TrainingTask(plan), Shards(start_actors(()), N_PARTS, _read_part, plan)
    read = time.process_time()
    nodes = [ShardedNode("site", shards, task, noise)]
    aggregation = build_aggregation(plan, nodes, task.schedule.n_rounds, noise)
    found = run_program(plan, task.program(), aggregation, noise, UNCOUNTED)
    model = Model(found.plan, found.ensemble, found.ledger, found.report)
    return read - start, time.process_time() - read, hashlib.sha256(model.to_bytes()).hexdigest()


def _xgboost(n_rows: int, n_trees: int, folder: Path) -> tuple[float, float, str]:
    """The same of XGBoost with its pages on the disk."""
    import xgboost

    class Made(xgboost.DataIter):
        def __init__(self) -> None:
            super().__init__(cache_prefix=str(folder / "pages"))
            self._left = _blocks(n_rows)

        def next(self, input_data: Any) -> bool:
            block = next(self._left, None)
            if block is not None:
                input_data(data=np.ascontiguousarray(block[0].T), label=block[1])
            return block is not None

        def reset(self) -> None:
            self._left = _blocks(n_rows)

    start = time.process_time()
    matrix = xgboost.ExtMemQuantileDMatrix(Made(), max_bin=32, nthread=1)
    read = time.process_time()
    settings = {"tree_method": "hist", "max_bin": 32, "max_depth": 4, "objective": "binary:logistic", "nthread": 1}
    booster = xgboost.train(settings, matrix, num_boost_round=n_trees)
    return read - start, time.process_time() - read, hashlib.sha256(booster.save_raw()).hexdigest()


def _alone(kind: str, n_rows: int, options: argparse.Namespace) -> dict[str, Any]:
    """What one process found: seconds of both steps, bytes, digest."""
    command = [sys.executable, "-m", "experiments", "large", "--only", kind, "--rows", str(n_rows)]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        command += ["--trees", str(options.trees), "--interaction", options.interaction, "--folder", folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main(argv: list[str]) -> int:
    """A table that outgrows the memory: codes in mapped files, beside XGBoost's external memory."""
    parser = arguments(
        "large", main.__doc__, data="unused: the rows are made here", rows=(1_000_000_000, "rows in mapped codes"),
        xgboost=(10_000_000, "rows for XGBoost"), equal=(10_000_000, "rows whose models are compared"),
        trees=(100, "of each model"),
    )  # fmt: skip
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="on a disk with room for 60 bytes a row")
    parser.add_argument("--only", default="", help="unused by hand: one process's part")
    text = "the plan's; with cyclical trees of one feature the disk needs 20 bytes a row"
    parser.add_argument("--interaction", default="auto", choices=("auto", "cyclical"), help=text)
    options = parser.parse_args(argv)
    if options.only:
        memory, folder = _Memory(), Path(options.folder)
        memory.start()
        _hedgerow(FEW, options.trees, options.interaction, None)
        before, memory.most = memory.most, 0
        if options.only == "xgboost":
            seconds, training, digest = _xgboost(options.rows, options.trees, folder)
        elif options.only == "shards":
            seconds, training, digest = _shards(options.rows, options.trees, options.interaction)
        else:
            own = folder if options.only == "mapped" else None
            seconds, training, digest = _hedgerow(options.rows, options.trees, options.interaction, own)
        print(json.dumps({"read": seconds, "train": training, "bytes": memory.most - before, "digest": digest}))
        return 0
    print(f"x {N_FEATURES} numbers, {options.trees} trees of depth 4, {options.interaction}, one thread,")
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[1]:.1f}, {size:.0f} GB")
    titles = f"{'rows':>13} {'read s':>7} {'train s':>8} {'rows/s':>11} {'bytes/row':>9} {'beyond the cache':>16}"
    print(f"{'':<28} {titles}")
    for name, kind, n_rows in (
        ("Hedgerow, mapped codes", "mapped", options.rows),
        ("Hedgerow, in memory", "memory", options.equal),
        ("Hedgerow, mapped codes", "mapped", options.equal),
        (f"the node of {N_PARTS} actors of Ray", "shards", options.equal),
        ("XGBoost, external memory", "xgboost", options.xgboost),
    ):
        alone = _alone(kind, n_rows, options)
        speed, each = n_rows / (alone["read"] + alone["train"]), alone["bytes"] / n_rows
        print(
            f"{name:<28} {n_rows:>13,} {alone['read']:>7.1f} {alone['train']:>8.1f} {speed:>11,.0f} {each:>9.2f}"
            f" {alone['bytes'] / 1e6:>13,.0f} MB  {alone['digest'][:16]}",
            flush=True,
        )
    return 0
