# SPDX-License-Identifier: Apache-2.0
"""The data that the package ships: the RAND Health Insurance Experiment, as columns or as the files of six sites.

Where the data come from and what the columns mean stands in ``hedgerow/data/README.md``.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]
ALL_SITES = (1, 2, 3, 4, 5, 6)
"""Numbers of the study's sites."""


@dataclass(frozen=True)
class SiteFiles:
    """The files that `write_rand_hie` has written.

    Attributes:
        plan: the demonstration's plan, TOML.
        train: the training table of each site, by the site's name, "site-1" to "site-6".
        test: the held-out rows of all sites.
    """

    plan: Path
    train: Mapping[str, Path]
    test: Path


def load_rand_hie() -> Columns:
    """Load all 20,190 rows as columns of one length: int64, or float64 if fractional or missing (NaN)."""
    table = _read_table()
    return {name: table.column(name).to_numpy() for name in table.column_names}


def rand_hie_plan_text(sites: Collection[int] = ALL_SITES, *, seed: int = 0) -> str:
    """Return the demonstration's plan for some of its sites, as TOML with a comment on each choice.

    Args:
        sites: numbers of study sites, 1 to 6. The plan asks for all of them and declares the rows that they use.
        seed: as for `write_rand_hie`, which chooses who trains.
    """
    text = resources.files("hedgerow").joinpath("data", "rand_hie.toml").read_text(encoding="utf-8")
    if set(sites) == set(ALL_SITES) and seed == 0:
        return text
    values = {"n_records": _count_used_rows(sites, seed, int(_read_number(text, "max_rows_per_unit")))}
    for name, value in (values | {"min_sites": len(set(sites))}).items():
        text = text.replace(f"\n{name} = {_read_number(text, name)}\n", f"\n{name} = {value}\n")
    return text


def _read_number(text: str, name: str) -> str:
    return str(re.findall(rf"(?m)^{name} = (\d+)$", text)[0])


def _count_used_rows(sites: Collection[int], seed: int, max_rows: int) -> int:
    """Count the training rows of these sites, at most `max_rows` of a person at each site.

    The table is public.
    """
    columns = load_rand_hie()
    is_used = np.isin(columns["site"], list(sites)) & ~split_by_unit(columns["zper"], seed=seed)
    held = np.stack([columns["site"], columns["zper"]])[:, is_used]
    return int(np.minimum(np.unique(held, axis=1, return_counts=True)[1], max_rows).sum())


def split_by_unit(unit: NDArray[Any], *, test_fraction: float = 0.3, seed: int = 0) -> NDArray[np.bool_]:
    """Choose the rows to test on, whole units at a time.

    No person is on both sides.

    Args:
        unit: [n], the identifier of each row.
        test_fraction: the fraction of units to test on, between 0 and 1; of rows it is about the same.

    Returns:
        bool [n], True for the rows to test on. The same seed gives the same rows.
    """
    if not 0 <= test_fraction <= 1:
        raise ValueError(f"test_fraction is {test_fraction}; expected a number from 0 to 1")
    distinct, codes = np.unique(unit, return_inverse=True)
    n_test = round(test_fraction * len(distinct))
    is_test = np.zeros(len(distinct), dtype=np.bool_)
    is_test[np.random.default_rng(seed).permutation(len(distinct))[:n_test]] = True
    chosen: NDArray[np.bool_] = is_test[codes]
    return chosen


def write_rand_hie(folder: str | os.PathLike[str], *, seed: int = 0, n_sites: int = len(ALL_SITES)) -> SiteFiles:
    """Write plan.toml, one site-N.csv per study site and test.csv into `folder`.

    The folder is made if it does not exist. README.md is written too, unless there is one: the plan refers to it for
    the origin of the data and the meaning of each column.

    Args:
        seed: chooses the persons to test on.
        n_sites: how many sites, from the first on, the plan is for. The tables of all six are written.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    table = _read_table()
    site = table.column("site").to_numpy()
    is_test = split_by_unit(table.column("zper").to_numpy(), seed=seed)
    train = {}
    for number in np.unique(site).tolist():
        path = target / f"site-{number}.csv"
        arrow_csv.write_csv(table.filter(pa.array((site == number) & ~is_test)), path)
        train[f"site-{number}"] = path
    files = SiteFiles(plan=target / "plan.toml", train=train, test=target / "test.csv")
    arrow_csv.write_csv(table.filter(pa.array(is_test)), files.test)
    files.plan.write_text(rand_hie_plan_text(ALL_SITES[:n_sites], seed=seed), encoding="utf-8")
    origin = resources.files("hedgerow").joinpath("data", "README.md").read_text(encoding="utf-8")
    if not (target / "README.md").exists():  # It may be somebody's own.
        (target / "README.md").write_text(origin, encoding="utf-8")
    return files


def _read_table() -> Any:
    packed = resources.files("hedgerow").joinpath("data", "rand_hie.csv.gz").read_bytes()
    return arrow_csv.read_csv(pa.CompressedInputStream(io.BytesIO(packed), "gzip"))
