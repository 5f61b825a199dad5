# SPDX-License-Identifier: Apache-2.0
"""What columns' names alone suggest: they are public, as a table's header is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hedgerow.plan.draft import Entry
from hedgerow.plan.fields import escape_for_terminal

_IDENTIFIERS = {
    "id", "ids", "identifier", "uuid", "guid", "pid", "eid", "uid", "oid", "mrn", "ssn", "nhs", "nir", "subjid",
    "usubjid", "patid", "patientid", "personid", "recordid", "rowid", "caseid", "visitid", "encounterid", "stayid",
    "hadm", "fallnummer", "patientennummer", "pseudonym", "kennung", "rownames", "unnamed",
}  # fmt: skip
_NUMBERED = {
    "patient", "person", "subject", "record", "case", "row", "visit", "encounter", "admission", "account", "member",
}  # fmt: skip
_NUMBER = {"no", "nr", "nbr", "num", "number", "key", "code", "ref", "index", "names"}
_PEOPLE = {"patient", "person", "subject", "participant", "index"}


def split_words(name: str) -> list[str]:
    """Split a name into words in small letters: "PatientID_2" is "patient", "id", "2"."""
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    parted = re.sub(r"([A-Za-z])([0-9])", r"\1 \2", parted)
    return [word.lower() for word in re.split(r"[\W_]+", parted) if word]


def is_identifier(name: str, book: Mapping[str, Entry]) -> bool:
    """Return whether a column identifies people, by the code book, else by its name.

    A column's cells are not read.
    """
    kind = book.get(name, Entry()).kind
    return kind == "identifier" or (not kind and looks_like_identifier(name))


def looks_like_identifier(name: str) -> bool:
    """Return whether a column's name is typical of identifiers."""
    words = split_words(name)
    return (
        name.strip().lower() in _PEOPLE
        or not _IDENTIFIERS.isdisjoint(words)
        or (not _NUMBERED.isdisjoint(words) and not _NUMBER.isdisjoint(words))
    )


def usable_columns(names: Sequence[str]) -> list[str]:
    """Return the columns whose names can stand in a plan."""
    return [name for name in names if name.strip() and escape_for_terminal(name) == name and names.count(name) == 1]
