"""What a column's name alone suggests: that it is an identifier, or the usual range of a clinical measurement.

Nothing here looks at a cell, so a draft that uses it follows from the header alone. Each range is public, and a
suggestion for a person to confirm: it is as wide as the measurement can be, for values beyond bounds are lost.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

_IDENTIFIERS = {
    "id", "ids", "identifier", "uuid", "guid", "pid", "eid", "uid", "oid", "mrn", "ssn", "nhs", "nir", "subjid",
    "usubjid", "patid", "patientid", "personid", "recordid", "rowid", "caseid", "visitid", "encounterid", "stayid",
    "hadm", "fallnummer", "patientennummer", "pseudonym", "kennung",
}  # fmt: skip
_NUMBERED = {
    "patient", "person", "subject", "record", "case", "row", "visit", "encounter", "admission", "account", "member",
}  # fmt: skip
_NUMBER = {"no", "nr", "num", "number", "key", "code", "ref", "index"}
_PEOPLE = {"patient", "person", "subject", "participant", "index", "unnamed: 0"}


def words_of(name: str) -> list[str]:
    """The words of a name in small letters: "PatientID_2" is "patient", "id", "2"."""
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    parted = re.sub(r"([A-Za-z])([0-9])", r"\1 \2", parted)
    return [word.lower() for word in re.split(r"[\W_]+", parted) if word]


def looks_like_identifier(name: str) -> bool:
    """Whether a column's name is one that identifiers have."""
    words = words_of(name)
    return (
        name.strip().lower() in _PEOPLE
        or not _IDENTIFIERS.isdisjoint(words)
        or (not _NUMBERED.isdisjoint(words) and not _NUMBER.isdisjoint(words))
    )


@dataclass(frozen=True)
class KnownRange:
    """The range of a measurement.

    Attributes:
        measurement: what it is, for people.
        unit: of both bounds.
        low, high: the bounds.
        source: where they come from.
    """

    measurement: str
    unit: str
    low: float
    high: float
    source: str


def known_range(name: str, unit: str = "") -> KnownRange | None:
    """The range of the measurement that a column's name is one of; None for other names.

    Args: unit: the unit that a code book gives; "" takes the table's first for that name.
    """
    words = " ".join(words_of(name))
    fitting = [known for known_words, known in _table() if _is_named(words, known_words, known.unit)]
    if unit:
        fitting = [known for known in fitting if known.unit.lower() == unit.strip().lower()]
    return fitting[0] if fitting else None


def _is_named(words: str, known: str, unit: str) -> bool:
    """Whether a name is a known one, alone or followed by words that change nothing: a number, its unit, "first"."""
    rest = words.removeprefix(known) if words.startswith(known) else None
    if rest is None or (rest and not rest.startswith(" ")):
        return False
    idle = _IDLE_WORDS.union(words_of(unit), [unit.lower()])
    return all(word.isdigit() or word in idle for word in rest.split())


_IDLE_WORDS = {
    "first", "last", "min", "max", "mean", "baseline", "admission", "value", "at", "in", "on", "years", "year", "yrs",
}  # fmt: skip


@cache
def _table() -> list[tuple[str, KnownRange]]:
    """Every name, as words, with its range; longer names first, so that "heart rate" is not asked for "heart"."""
    text = resources.files("hedgerow.data").joinpath("clinical_ranges.csv").read_text(encoding="utf-8")
    found = []
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        known = KnownRange(row["measurement"], row["unit"], float(row["min"]), float(row["max"]), row["source"])
        found += [(" ".join(words_of(name)), known) for name in row["names"].split("|")]
    return found
