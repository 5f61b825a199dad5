# SPDX-License-Identifier: Apache-2.0
"""Common parts of label types with classes and of numbers; each type overrides its own parts.

Times to an event stand alone, in `hedgerow.losses.survival`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.errors import DataError, ModelError
from hedgerow.losses.kinds import Floats, Ints
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.plan.fields import refuse
from hedgerow.plan.plan import Label
from hedgerow.plan.registry import LabelColumn, LabelKind

EFFECT = 2.0
"""Standard deviation of effects on made-up labels: of log-odds; of a number's mean in deviations of the rest."""


def no_probabilities(label: str) -> ModelError:
    """Return the refusal of class probabilities for such a label."""
    return ModelError("no-probabilities", label=label)


class Classes(LabelKind):
    """A type of labels with classes, one of several words; nodes keep the word's index.

    Attributes:
        n_classes: the fewest, the most, and the words for both in an error.
    """

    n_classes: ClassVar[tuple[int, int, str]]
    predicts = "probabilities"
    refusals: ClassVar[Mapping[str, Callable[[], Exception]]] = {
        "interval": lambda: ModelError("no-interval-classes"),
        "survival": lambda: ModelError("no-survival"),
    }

    def check(self, label: Label) -> None:
        fewest, most, expected = self.n_classes
        if label.min is not None or label.max is not None:
            raise refuse("label.min", label.min, "no bounds on a label with classes")
        if not fewest <= len(label.classes) <= most:
            raise refuse("label.classes", list(label.classes), expected)

    def n_codes(self, label: Label) -> int:
        return len(label.classes)

    def columns(self, label: Label) -> tuple[LabelColumn, ...]:
        def outside(place: str, value: str) -> DataError:
            return DataError("data-label-outside", place=place, value=value)

        return (LabelColumn(label.name, label.classes, outside=outside),)

    def values(self, cells: Sequence[NDArray[Any]], label: Label) -> NDArray[np.int32]:
        return cells[0].astype(np.int32)

    def has_one_outcome(self, kept: NDArray[np.int32]) -> bool:
        return len(np.unique(kept)) < 2

    def simulate(self, effects: Floats, label: Label, noise: np.random.Generator) -> NDArray[np.int32]:
        return np.asarray(np.argmax(effects + noise.gumbel(size=effects.shape), axis=0), dtype=np.int32)

    def describe(self, label: Label) -> str:
        return f"{len(label.classes)} classes"


def negative(place: str, value: str) -> DataError:
    """Return the error for a negative number in a column from 0 on, see `LabelColumn.outside`."""
    return DataError("data-label-outside", place=place, value=value)


class Numbers(LabelKind):
    """A type of labels of numbers within public bounds; values beyond count as the bound."""

    is_number = True
    predicts = "values"
    refusals: ClassVar[Mapping[str, Callable[[], Exception]]] = {
        "probabilities": lambda: no_probabilities("regression"),
        "probability columns": lambda: no_probabilities("regression"),
        "survival": lambda: ModelError("no-survival"),
    }
    position = "residual"

    def encoded_range(self, label: Label) -> tuple[int, int]:
        return -SCORE_UNIT, SCORE_UNIT

    def columns(self, label: Label) -> tuple[LabelColumn, ...]:
        return (LabelColumn(label.name, bounds=label.bounds),)

    def values(self, cells: Sequence[NDArray[Any]], label: Label) -> Floats:
        return np.asarray(cells[0], dtype=np.float64)

    def encode(self, values: NDArray[Any], label: Label) -> NDArray[np.int32]:
        """Scale values from the label's bounds to [-1, 1], in units of 2**-16, rounded: int32 [n].

        Values beyond the bounds are clamped.
        """
        low, high = label.bounds
        middle, half = (high + low) / 2, (high - low) / 2
        clamped = np.clip(np.asarray(values, dtype=np.float64), low, high)
        return np.rint((clamped - middle) / half * SCORE_UNIT).astype(np.int32)

    def centre(self, kept: NDArray[np.int32]) -> Ints:
        return kept.astype(np.int64)

    def simulate(self, effects: Floats, label: Label, noise: np.random.Generator) -> Floats:
        low, high = label.bounds
        score = (effects[0] + noise.normal(size=effects.shape[1])) / (2 * EFFECT)
        return np.asarray(low + (high - low) / (1 + elementary.exp(-score)))

    def describe(self, label: Label) -> str:
        low, high = label.bounds
        return f"{low:g} to {high:g}"
