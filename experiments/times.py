"""How long fits and readings of made-up rows take: beside XGBoost, by the number of sites, by a table's source."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet
import xgboost
from numpy.typing import NDArray

from experiments import datasets
from experiments.datasets import category, number
from experiments.harness import arguments, least_seconds, options_of, plan_for
from hedgerow import DPGBDTClassifier
from hedgerow.data.sources import find_place, open_table
from hedgerow.data.tables import Table
from hedgerow.data.units import list_needed_columns, records_from_columns
from hedgerow.plan.toml import plan_toml

# Beside XGBoost -------------------------------------------------------------------------------------------------------

N_FEATURES = 28
AVX2 = "+sse4.2,+avx,+avx2,+fma,+bmi,+bmi2,+lzcnt,+popcnt,+f16c,+movbe,+cx16,+cmov,+mmx,+fxsr,+xsave"
"""What a Haswell has, as numba names it: the processor's name alone leaves those of the host on."""


def main_speed(argv: list[str]) -> int:
    """The time of `fit` beside XGBoost's hist, in one run: ratios on 1,000,000 x 28 floats, and of `hedgerow train`.

    Both start from the same float32 array and end with a model: ours is `DPGBDTClassifier.fit`, with declared bounds,
    classes and number of rows, or with epsilon only. XGBoost's clock includes its own binning (max_bin 32, same number
    of trees and depth). The privacy side draws exact noise from the operating system. Rounds alternate between all of
    them, and the least counts. Memory is what `fit` allocates beyond the input, as the allocator counts it. `hedgerow
    train` is a process of its own, from its start to its end, on the same rows as CSV and as Parquet.
    """
    parser = arguments(
        "speed", main_speed.__doc__, data="unused: the array is made here", rows=(1_000_000, "of the array"),
        trees=(100, "of a model"), rounds=(3, "rounds; the fastest of each counts"),
    )  # fmt: skip
    parser.add_argument("--avx2", action="store_true", help="compile for a processor that has AVX2 and no AVX-512")
    options = parser.parse_args(argv)
    if options.avx2 and os.environ.get("NUMBA_CPU_FEATURES") != AVX2:
        with tempfile.TemporaryDirectory() as folder:
            own = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": AVX2, "NUMBA_CACHE_DIR": folder}
            command = [sys.executable, "-m", "experiments", "speed", *argv]
            return subprocess.run(command, env={**os.environ, **own}, check=True).returncode
    random = np.random.default_rng(0)
    rows = random.normal(size=(options.rows, N_FEATURES)).astype(np.float32)
    log_odds = rows[:, 0] + np.sin(2 * rows[:, 1]) + rows[:, 2] * rows[:, 3]
    labels = (random.random(options.rows) < 1 / (1 + np.exp(-log_odds))).astype(np.int32)
    declared: dict[str, Any] = {"bounds": (-6, 6), "classes": [0, 1], "n_records": options.rows, "delta": 1e-6}
    kinds: dict[str, dict[str, Any]] = {
        "k = 1": {**declared, "interaction": "cyclical", "interaction_size": 1},
        "all features": {**declared, "interaction": "cyclical", "interaction_size": "all"},
        "default": declared,
        "epsilon only": {},
    }  # fmt: skip
    fits: dict[str, Callable[..., object]] = {
        name: partial(_fit, rows, labels, n_trees=options.trees, max_depth=4, **model) for name, model in kinds.items()
    }
    for fit in fits.values():  # compile before the clock starts
        fit()
    acts: dict[str, Callable[..., object]] = {
        "XGBoost hist, max_bin 32": partial(_xgboost, rows, labels, options.trees),
        **fits,
    }
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in acts}
    for _ in range(options.rounds):
        for name, act in acts.items():
            took[name].append(least_seconds(act, 1))
    least = {name: min(own for own, _ in seconds) for name, seconds in took.items()}
    theirs = least["XGBoost hist, max_bin 32"]
    print(f"{options.rows:,} x {N_FEATURES} float32, T={options.trees}, depth 4: fit, one thread, seconds of processor")
    print(f"{options.rounds} rounds, the least of each; load {os.getloadavg()[1]:.1f} on {os.cpu_count()} processors")
    for name, seconds in least.items():
        ratio = "" if name in acts and name not in kinds else f"   {theirs / seconds:>5.1f} times faster"
        print(f"{name:<28} {seconds:>7.2f} s{ratio}")
    for name in ("k = 1", "all features", "default"):
        one = min(clock for _, clock in took[name])
        two = min(least_seconds(partial(fits[name], n_jobs=2), 1)[1] for _ in range(options.rounds))
        print(f"{name + ', two threads':<28} {two:>7.2f} s   {one / two:>5.2f} times one thread, by the clock")
    extra = max(_extra_memory(fit) for fit in list(fits.values())[:3])
    print(f"memory beyond the input: {extra / rows.size:.2f} bytes per value")
    for name, seconds in _train_from_files(rows, labels, options.trees).items():
        print(f"{'hedgerow train, ' + name:<28} {seconds:>7.2f} s")
    return 0


def _fit(rows: NDArray[np.float32], labels: NDArray[np.int32], **model: Any) -> None:
    DPGBDTClassifier(**model).fit(rows, labels)


def _xgboost(rows: NDArray[np.float32], labels: NDArray[np.int32], n_trees: int) -> None:
    settings = {"tree_method": "hist", "max_bin": 32, "max_depth": 4, "objective": "binary:logistic", "nthread": 1}
    xgboost.train(settings, xgboost.QuantileDMatrix(rows, labels, max_bin=32, nthread=1), num_boost_round=n_trees)


def _extra_memory(train: Callable[[], object]) -> int:
    """Largest number of bytes that one training run holds at once, beyond its input."""
    tracemalloc.start()
    train()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def _train_from_files(rows: NDArray[np.float32], labels: NDArray[np.int32], n_trees: int) -> dict[str, float]:
    """Seconds of processor time of `hedgerow train` by the kind of file."""
    names = [f"x{i}" for i in range(N_FEATURES)]
    features = tuple(number(name, -6, 6) for name in names)
    label = {"name": "y", "type": "binary", "classes": ["0", "1"]}
    table = datasets.Table("speed", features, (), np.empty(0), label)
    plan = plan_for(table, 1.0, len(rows), {"n_trees": n_trees, "max_depth": 4}, delta=1e-6)
    columns = pa.table({**{name: rows[:, i] for i, name in enumerate(names)}, "y": labels})
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "plan.toml").write_text(plan_toml(plan))
        arrow_csv.write_csv(columns, place / "rows.csv")
        arrow_parquet.write_table(columns, place / "rows.parquet")
        return {
            # The first of two may have to compile.
            name: min(_run([sys.executable, "-m", "hedgerow", "train", "plan.toml", "--site", file, "--threads", "1",
                            "--out", f"{name}-{n}.json", "--json"], place)[0] for n in range(2))
            for name, file in (("CSV", "rows.csv"), ("Parquet", "rows.parquet"))
        }  # fmt: skip


def _run(command: list[str], folder: Path) -> tuple[float, float]:
    """Processor time of a process and those that it started, in seconds, and the memory of the largest, in MB."""
    own = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    process = subprocess.Popen(command, cwd=folder, env=own, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


# The first minute -----------------------------------------------------------------------------------------------------

FIRST_FIT = """\
import numpy as np
from hedgerow import DPGBDTClassifier
X = np.random.default_rng(0).normal(size=(5000, 20))
DPGBDTClassifier(epsilon=1).fit(X, X[:, 0] > 0)
"""


def main_first_minute(argv: list[str]) -> int:
    """What it costs to begin: a fresh environment, the first fit of 5,000 rows in it, and the first demo.

    Seconds of processor time of each whole process, imports and compiling in it. The kernels that the fit has left are
    taken away before the demo, so that both are first ones. The package is installed from this checkout by pip.
    """
    options_of(argv, main_first_minute, data="unused: the rows are made here")
    os.environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = str(folder / "env" / "bin" / "python")
        _run([sys.executable, "-m", "venv", "env"], folder)
        install, _ = _run([python, "-m", "pip", "install", "--quiet", f"{Path(__file__).parents[1]}[sklearn]"], folder)
        sizes = [path.stat().st_size for path in (folder / "env").rglob("*") if path.is_file()]
        print(f"{'install, by pip':<28} {install:>6.1f} s   {sum(sizes) / 1e6:,.0f} MB, pip itself in it")
        for what, command in (
            ("first fit, 5,000 x 20", [python, "-c", FIRST_FIT]),
            ("second fit", [python, "-c", FIRST_FIT]),
            ("first demo", [python, "-m", "hedgerow", "demo", "--out", "demo", "--json"]),
            ("second demo", [python, "-m", "hedgerow", "demo", "--out", "again", "--json"]),
        ):
            if what == "first demo":
                for kernel in (folder / "env").rglob("*.nb[ic]"):
                    kernel.unlink()
            seconds, memory = _run(command, folder)
            print(f"{what:<28} {seconds:>6.1f} s   {memory:,.0f} MB resident", flush=True)
    return 0


# By the number of sites -----------------------------------------------------------------------------------------------


def main_fit_sites(argv: list[str]) -> int:
    """How much longer a fit over sites takes than one without: rows summed at once, and under masks.

    Made-up rows: 20 even features, of which three decide the class. Bounds, classes and the number of rows are
    declared, and all other parameters are the defaults. Seconds are the least of several fits; of masked sums, of one.
    """
    options = options_of(argv, main_fit_sites, fits=(3, "fits of each kind"))
    print(f"{'rows':>6} {'sites':>5}  {'at once s':>9} {'ratio':>5}  {'masked s':>8} {'ratio':>5}")
    for n_rows in (5_000, 50_000):
        X = np.random.default_rng(0).uniform(-1, 1, (n_rows, 20))
        y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
        without = _fit_seconds(X, y, None, False, options.fits)
        print(f"{n_rows:>6,} {'none':>5}  {without:>9.2f}", flush=True)
        for n_sites in (1, 3, 10, 50):
            sites = np.arange(n_rows) % n_sites
            clear = _fit_seconds(X, y, sites, False, options.fits)
            line = f"{n_rows:>6,} {n_sites:>5}  {clear:>9.2f} {clear / without:>5.1f}"
            if n_sites in (3, 10):
                masked = _fit_seconds(X, y, sites, True, 1)
                line += f"  {masked:>8.2f} {masked / without:>5.1f}"
            print(line, flush=True)
    return 0


def _fit_seconds(X: Any, y: Any, sites: Any, is_masked: bool, n_fits: int) -> float:
    model = DPGBDTClassifier(bounds=(-1, 1), classes=[0, 1], n_records=len(y), secure_sums=is_masked)
    model.set_params(n_trees=2).fit(X, y, sites=sites)
    model.set_params(n_trees="auto")
    return least_seconds(lambda: model.fit(X, y, sites=sites), n_fits)[1]


def main_many_sites(argv: list[str]) -> int:
    """How long a federation of thousands of sites takes that is simulated in one process, with masks and without.

    Made-up rows: 100,000 x 8, dealt to the sites; 100 trees of depth 4 in batches of 25. With masks every site has keys
    of its own, enrols, masks its vectors, and opens the sums of three rounds and more with the others.
    """
    options = options_of(
        argv, main_many_sites, data="unused: the rows are made here", sites=(5_000, "sites that are summed at once"),
        masked=(1_000, "sites with masks"),
    )  # fmt: skip
    random = np.random.default_rng(0)
    X = random.uniform(-1, 1, (100_000, 8))
    y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
    print(f"{'sites':>6}  {'masks':<5}  {'processor s':>11}  {'clock s':>7}   load {os.getloadavg()[1]:.1f}")
    for n_sites, is_masked in ((1, False), (100, False), (options.sites, False), (100, True), (options.masked, True)):
        model = DPGBDTClassifier(
            bounds=(-1, 1), classes=[0, 1], n_records=len(y), n_trees=100, max_depth=4, batch_size=25,
            secure_sums=is_masked,
        )  # fmt: skip
        sites = np.arange(len(y)) % n_sites
        DPGBDTClassifier(**{**model.get_params(), "n_trees": 25}).fit(X, y, sites=sites % 3)  # compiles
        seconds, clock = least_seconds(partial(model.fit, X, y, sites=sites), 1)
        print(f"{n_sites:>6,}  {'yes' if is_masked else 'no':<5}  {seconds:>11.2f}  {clock:>7.2f}", flush=True)
    return 0


# By the number of columns ---------------------------------------------------------------------------------------------


def main_wide(argv: list[str]) -> int:
    """How fits and surveys grow with the columns: 20,000 made-up rows that are fitted, and 2,000 that are surveyed.

    Seconds of processor time on one thread: of the fit alone, and of a whole process of `hedgerow survey` on a CSV
    file, imports in it.
    """
    options_of(argv, main_wide, data="unused: the rows are made here")
    random = np.random.default_rng(0)
    print(f"{'columns':>7}  {'fit, s':>7}  {'survey, s':>9}   load {os.getloadavg()[1]:.1f}")
    with tempfile.TemporaryDirectory() as name:
        for n_columns in (100, 1_500, 5_000):
            X = random.normal(size=(20_000, n_columns)).astype(np.float32)
            y, path = (X[:, 0] > 0).astype(int), Path(name, f"{n_columns}.csv")
            model = DPGBDTClassifier(epsilon=1.0, bounds=(-6, 6), classes=[0, 1], n_records=len(y))
            model.fit(X[:, :50], y)  # compiles
            fitted, _ = least_seconds(partial(model.fit, X, y), 1)
            arrow_csv.write_csv(pa.table({f"x{i}": X[:2_000, i] for i in range(n_columns)}), path)
            survey = [sys.executable, "-m", "hedgerow", "survey", str(path), "--epsilon", str(n_columns), "--json"]
            surveyed, _ = _run(survey, path.parent)
            print(f"{n_columns:>7,}  {fitted:>7.2f}  {surveyed:>9.2f}", flush=True)
    return 0


# By the source of a table ---------------------------------------------------------------------------------------------

REGIONS = ("north", "south", "east", "west")
CLASSES = ("no", "yes")
FEATURES = (
    number("age", 0, 100), number("income", 0, 50000), number("change", -3, 3), category("region", " ".join(REGIONS)),
)  # fmt: skip
LABEL = {"name": "y", "type": "binary", "classes": list(CLASSES)}
PLAN = plan_for(datasets.Table("sources", FEATURES, (), np.empty(0), LABEL), 1.0, 10**6, {}, delta=1e-6)
QUERY = "#select * from hedgerow_sources"


def main_sources(argv: list[str]) -> int:
    """How long a million rows take from each source: the cells alone, and until they are codes of a plan.

    Five columns: two numbers that are not whole, one that is, four regions, two classes. Seconds of processor time of
    this process (a server's own are not in it) and, behind the stroke, of the clock; the least of several readings.
    """
    parser = arguments("sources", main_sources.__doc__, rows=(10**6, "rows"), readings=(3, "readings of each source"))
    parser.add_argument("--postgresql", help="a database's URL; the table hedgerow_sources is made there and dropped")
    options = parser.parse_args(argv)
    rows = five_columns(options.rows)
    print(f"{'source':<28} {'cells':>13} {'codes':>13}   (s of processor / s)")
    with tempfile.TemporaryDirectory() as folder:
        for name, open_table in _in_files(rows, Path(folder)):
            _print(name, open_table, options.readings)
    if options.postgresql:
        _in_postgresql(rows, options.postgresql, options.readings)
    return 0


def five_columns(n: int) -> pa.Table:
    """So many rows, made up."""
    draws = np.random.default_rng(1)
    return pa.table({
        "age": draws.normal(50, 10, n).round(1),
        "income": draws.integers(0, 50_000, n),
        "change": draws.normal(size=n),
        "region": pa.array(np.array(REGIONS)[draws.integers(0, 4, n)]),
        "y": pa.array(np.array(CLASSES)[draws.integers(0, 2, n)]),
    })  # fmt: skip


def _in_files(rows: pa.Table, folder: Path) -> Iterator[tuple[str, Callable[[], Table]]]:
    """Each source whose table is a file, and how it is opened."""
    import duckdb

    arrow_csv.write_csv(rows, folder / "t.csv")
    yield "CSV", lambda: open_table(folder / "t.csv")
    arrow_parquet.write_table(rows, folder / "t.parquet")
    yield "Parquet", lambda: open_table(folder / "t.parquet")
    with duckdb.connect(str(folder / "t.duckdb")) as connection:
        connection.register("given", rows)
        connection.execute("create table hedgerow_sources as select * from given")
    yield "DuckDB", lambda: open_table(f"duckdb:///{folder}/t.duckdb{QUERY}")
    with sqlite3.connect(folder / "t.db") as database:
        database.execute("create table hedgerow_sources (age real, income integer, change real, region text, y text)")
        columns = [column.to_pylist() for column in rows.columns]
        database.executemany("insert into hedgerow_sources values (?, ?, ?, ?, ?)", zip(*columns, strict=True))
    database.close()
    yield "SQLite", lambda: open_table(f"sqlite:///{folder}/t.db{QUERY}")


def _in_postgresql(rows: pa.Table, url: str, readings: int) -> None:
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("hedgerow_sources", rows, mode="create")
        try:
            _print("PostgreSQL by ADBC", lambda: open_table(f"{url}{QUERY}"), readings)
            by_rows = url.replace("://", "+psycopg2://", 1)
            _print("PostgreSQL by SQLAlchemy", lambda: open_table(f"{by_rows}{QUERY}"), readings)
        finally:
            cursor.execute("drop table hedgerow_sources")


def _print(name: str, open_table: Callable[[], Table], readings: int) -> None:
    def seconds(read: Callable[[Callable[[], Table]], Iterator[Any]]) -> str:
        least = least_seconds(lambda: deque(read(open_table), maxlen=0), readings)
        return " / ".join(f"{took:.2f}" for took in least)

    print(f"{name:<28} {seconds(_cells):>13} {seconds(_codes):>13}", flush=True)


def _cells(open_table: Callable[[], Table]) -> Iterator[Any]:
    return open_table().batches(list_needed_columns(PLAN), 65536, None)


def _codes(open_table: Callable[[], Table]) -> Iterator[Any]:
    names, place = list_needed_columns(PLAN), find_place(open_table())
    for batch in _cells(open_table):
        yield records_from_columns(dict(zip(names, batch, strict=True)), PLAN, table=place)
