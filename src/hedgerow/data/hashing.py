# SPDX-License-Identifier: Apache-2.0
"""Hashes of rows, which divide a table or order its rows; they spread a choice and keep no secret."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

GOLDEN_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def hash_texts(texts: NDArray[np.str_], seed: np.uint64) -> Words:
    """Hash each text, character by character: uint64 [n].

    The zero characters that pad shorter texts are skipped, so that the longest text of the table does not matter.
    """
    texts = np.ascontiguousarray(texts)
    characters = texts.view(np.uint32).reshape(len(texts), texts.itemsize // 4)
    state = np.full(len(texts), seed, dtype=np.uint64)
    for position in range(characters.shape[1]):
        character = characters[:, position].astype(np.uint64)
        state = np.where(character > 0, mix_words(state ^ character), state)
    return state


def hash_rows(columns: Iterable[NDArray[Any]], n_rows: int) -> Words:
    """Return uint64 [n_rows]: a hash of each row's content in columns of numbers, each [n_rows]."""
    hashes = np.zeros(n_rows, dtype=np.uint64)
    for number, column in enumerate(columns, start=1):
        words = np.ascontiguousarray(column)
        words = words.astype(np.float64).view(np.uint64) if words.dtype.kind == "f" else words.astype(np.uint64)
        hashes = mix_words(hashes * GOLDEN_MULTIPLIER + mix_words(words + np.uint64(number)))
    return hashes


def mix_words(words: Words) -> Words:
    """Apply the output function of splitmix64, modulo 2**64."""
    mixed = words + GOLDEN_MULTIPLIER
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True)
class Part:
    """One of the parts of a table that several processes hold.

    Each row is in exactly one part, and all rows of a person are in the same. Most tables are divided by the content of
    rows and never by their position: a query may return its rows in another order each time, and a row in two parts
    would count twice. The content is the identifier as it is read, of which two spellings are one, or the row's codes
    if there is none.

    Attributes:
        number: 0 to n_parts - 1.
        n_parts: number of parts of the table.
    """

    number: int
    n_parts: int

    def holds_units(self, units: NDArray[np.str_]) -> NDArray[np.bool_]:
        """Return flags of the rows in this part, given their identifiers: bool [n]."""
        return self._holds(hash_texts(units, np.uint64(0)))

    def holds_rows(self, columns: Iterable[NDArray[Any]], n_rows: int) -> NDArray[np.bool_]:
        """Return flags of the rows in this part, given their content: bool [n].

        Arguments are those of `hash_rows`.
        """
        return self._holds(hash_rows(columns, n_rows))

    def _holds(self, hashes: Words) -> NDArray[np.bool_]:
        return np.asarray(mix_words(hashes) % np.uint64(self.n_parts) == np.uint64(self.number))
