"""The first hour: a fit without any declaration, beside one with bounds, categories and classes read off the data.

    found       DPGBDTClassifier(epsilon).fit(X, y): bounds, classes and n by noisy counts, text hashed
    declared    the same with categories declared, where there is text
    read off    bounds="data": what is not declared is read off the rows; no guarantee

Test AUC over random 70/30 splits, delta = 1e-6, seeded noise. "found - read off" is the mean over the same splits, with
its standard error. Rows of a set below 2,000 / epsilon are where the estimator warns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from experiments import harness
from experiments.datasets import BINARY_NAMES, folder_of, load
from hedgerow import DPGBDTClassifier
from hedgerow.errors import DataError
from hedgerow.estimators.base import FewRecordsWarning

EPSILONS = (0.1, 0.5, 1.0)
TEST_SHARE = 0.3
ARMS = ("found", "declared", "read off")


@dataclass(frozen=True, eq=False)
class Frame:
    """A data set as a person has it: a table of numbers and text, and a label of two classes.

    Attributes:
        categories: of its columns of text, as a code book has them.
    """

    rows: pd.DataFrame
    label: NDArray[Any]
    categories: Mapping[str, list[str]]


def main(argv: list[str]) -> int:
    """Print the table, a row at a time."""
    parser = harness.arguments("first_hour", __doc__, splits=(5, "random splits per cell"))
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), help="data sets (default all)")
    options = parser.parse_args(argv)
    head = ["data set", "n", "epsilon", *ARMS, "found - read off"]
    print("\n".join(harness.table(head, [])), flush=True)
    for name in options.sets:
        frame = SETS[name](options.data)
        for epsilon in EPSILONS:
            scores = [_scores(frame, epsilon, split) for split in range(options.splits)]
            print(
                "| " + " | ".join([name, f"{len(frame.label):,}", f"{epsilon:g}", *_cells(scores)]) + " |", flush=True
            )
    return 0


def _cells(scores: list[dict[str, float]]) -> list[str]:
    """The mean AUC of each arm, and the difference with its standard error; NaN for splits without a model."""
    means = [np.mean([split[arm] for split in scores]) if arm in scores[0] else np.nan for arm in ARMS]
    differences = np.array([split["found"] - split["read off"] for split in scores])
    error = differences.std(ddof=1) / np.sqrt(len(differences)) if len(differences) > 1 else np.nan
    return ["-" if np.isnan(mean) else f"{mean:.4f}" for mean in means] + [f"{differences.mean():+.4f} ± {error:.4f}"]


def _scores(frame: Frame, epsilon: float, split: int) -> dict[str, float]:
    """Test AUC of each arm on one split."""
    is_test = np.random.default_rng(split).random(len(frame.label)) < TEST_SHARE
    settings: dict[str, dict[str, Any]] = {"found": {}, "read off": {"bounds": "data"}}
    if frame.categories:
        settings["declared"] = {"categories": frame.categories}
    return {arm: _auc(frame, is_test, epsilon, split, own) for arm, own in settings.items()}


def _auc(frame: Frame, is_test: NDArray[np.bool_], epsilon: float, seed: int, settings: Mapping[str, Any]) -> float:
    model = DPGBDTClassifier(epsilon=epsilon, random_state=seed, **settings)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewRecordsWarning)
            model.fit(frame.rows[~is_test], frame.label[~is_test])
    except DataError as fault:
        # No two classes stand out of the noise: there is no model, and a constant has this AUC.
        if fault.code != "data-one-class":
            raise
        return 0.5
    positive = int(frame.label.max())
    if list(model.classes_).count(positive) == 0:
        return 0.5
    chances = model.predict_proba(frame.rows[is_test])[:, list(model.classes_).index(positive)]
    return float(roc_auc_score(frame.label[is_test] == positive, chances))


def _declared(name: str, folder: str | None) -> Frame:
    """One of the papers' sets, with its categories as text again."""
    table = load(name, folder)
    columns: dict[str, Any] = {}
    categories = {}
    for feature, column in zip(table.features, table.columns, strict=True):
        if feature["type"] == "categorical":
            words = np.array([*map(str, feature["categories"]), "another"], dtype=object)
            columns[feature["name"]] = words[column]
            categories[feature["name"]] = list(map(str, feature["categories"]))
        else:
            columns[feature["name"]] = column
    return Frame(pd.DataFrame(columns), table.label, categories)


def _file(name: str, label: str, above: float, dropped: tuple[str, ...] = ()) -> Callable[[str | None], Frame]:
    """A set of the folder whose label is whether a number is above a limit."""

    def read(folder: str | None) -> Frame:
        rows = pd.read_csv(folder_of(folder) / name)
        words = [str(column) for column in rows.columns if rows[column].dtype.kind not in "iuf"]
        categories = {column: sorted(rows[column].unique()) for column in words if column not in dropped}
        y = (rows[label].to_numpy() > above).astype(np.int64)
        return Frame(rows.drop(columns=[label, *dropped]), y, categories)

    return read


def _digits(_: str | None) -> Frame:
    """Whether a digit is even: 64 counts of pixels, few rows."""
    pixels, digit = load_digits(return_X_y=True)
    return Frame(pd.DataFrame(pixels).add_prefix("pixel"), (digit % 2 == 0).astype(np.int64), {})


SETS: dict[str, Callable[[str | None], Frame]] = {
    **{name: partial(_declared, name) for name in BINARY_NAMES},
    "diamonds": _file("diamonds.csv.gz", "price", 2400),
    "bike": _file("bike.csv.gz", "count", 142, ("date", "casual", "registered")),
    "abalone": _file("abalone.csv.gz", "Rings", 9),
    "digits": _digits,
}
