"""Make src/hedgerow/data/rand_hie.csv.gz from the copy of the RAND Health Insurance Experiment in statsmodels' wheel.

    python -m experiments make_rand_hie PATH_OF_STATSMODELS

PATH_OF_STATSMODELS is the installed or unpacked package (the folder that holds ``datasets``). The same input gives the
same bytes: the values are copied as text and the gzip header carries no time.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
from pathlib import Path

import pandas as pd

SOURCE = Path("datasets") / "randhie" / "src" / "randhie.csv"
SOURCE_SHA256 = "fe64f3c8e987779daa6052dd756d9ce277e025330f5549126c7c2f6a3c9c5541"
OUT = Path(__file__).resolve().parents[2] / "src" / "hedgerow" / "data" / "rand_hie.csv.gz"

# What is known before the year's outcome: where, who, the insurance drawn by lot, the household, health at the start.
# Left out: expenditures, visits, admissions and time under observation, which are measured with or after the outcome;
# logarithms and indicators that are functions of kept columns; and `black`, which a demonstration does not need.
KEPT = (
    "site", "zper", "plan", "coins", "tookphys", "year", "income", "xage", "female", "educdec", "num", "mhi", "disea",
    "physlm", "ghindx", "mdeoff", "pioff", "child",
)  # fmt: skip


def packed(source: bytes) -> bytes:
    """The gzipped CSV: the kept columns as they stand, 1 for any face-to-face visit to a doctor that year, else 0."""
    frame = pd.read_csv(io.BytesIO(source), dtype=str, keep_default_na=False)
    kept = frame[list(KEPT)].assign(visited=(frame["mdvis"].astype(float) > 0).astype(int))
    return gzip.compress(kept.to_csv(index=False, lineterminator="\n").encode("ascii"), compresslevel=9, mtime=0)


def main(arguments: list[str]) -> int:
    """Write the file and print its SHA-256."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    source = (Path(arguments[0]) / SOURCE).read_bytes()
    found = hashlib.sha256(source).hexdigest()
    if found != SOURCE_SHA256:
        print(f"{SOURCE} has SHA-256 {found}, not {SOURCE_SHA256}: another edition of the data.", file=sys.stderr)
        return 1
    content = packed(source)
    OUT.write_bytes(content)
    print(f"{hashlib.sha256(content).hexdigest()}  {OUT.name}")
    return 0
