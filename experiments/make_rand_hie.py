"""Make src/hedgerow/data/rand_hie.csv.gz from the copy of the RAND Health Insurance Experiment in statsmodels' wheel.

    python experiments/make_rand_hie.py PATH_OF_STATSMODELS [OUT]

PATH_OF_STATSMODELS is the installed or unpacked package (the folder that holds ``datasets``). The same input gives the
same bytes: the values are copied as text and the gzip header carries no time.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path("datasets") / "randhie" / "src" / "randhie.csv"
SOURCE_SHA256 = "fe64f3c8e987779daa6052dd756d9ce277e025330f5549126c7c2f6a3c9c5541"
OUT = Path(__file__).resolve().parent.parent / "src" / "hedgerow" / "data" / "rand_hie.csv.gz"

# What is known before the year's outcome: where, who, the insurance drawn by lot, the household, health at the start.
# Left out: expenditures, visits, admissions and time under observation, which are measured with or after the outcome;
# logarithms and indicators that are functions of kept columns; and `black`, which a demonstration does not need.
KEPT = (
    "site",
    "zper",
    "plan",
    "coins",
    "tookphys",
    "year",
    "income",
    "xage",
    "female",
    "educdec",
    "num",
    "mhi",
    "disea",
    "physlm",
    "ghindx",
    "mdeoff",
    "pioff",
    "child",
)
LABEL = "visited"


def kept_rows(source_rows: Iterable[dict[str, str]]) -> Iterator[list[str]]:
    """The kept columns as they stand, and 1 for any face-to-face visit to a doctor in that year, else 0."""
    for row in source_rows:
        yield [*(row[name] for name in KEPT), str(int(float(row["mdvis"]) > 0))]


def packed(source: bytes) -> bytes:
    """The gzipped CSV."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*KEPT, LABEL])
    writer.writerows(kept_rows(csv.DictReader(io.StringIO(source.decode("ascii"), newline=""))))
    return gzip.compress(text.getvalue().encode("ascii"), compresslevel=9, mtime=0)


def main(arguments: list[str]) -> int:
    """Write the file and print its SHA-256."""
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    source = (Path(arguments[0]) / SOURCE).read_bytes()
    found = hashlib.sha256(source).hexdigest()
    if found != SOURCE_SHA256:
        print(f"{SOURCE} has SHA-256 {found}, not {SOURCE_SHA256}: another edition of the data.", file=sys.stderr)
        return 1
    content = packed(source)
    out = Path(arguments[1]) if len(arguments) == 2 else OUT
    out.write_bytes(content)
    print(f"{hashlib.sha256(content).hexdigest()}  {out.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
