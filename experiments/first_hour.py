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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from experiments import harness
from experiments.datasets import BINARY_NAMES, folder_of, load
from experiments.harness import mean_and_error
from hedgerow import DPGBDTClassifier
from hedgerow.data.columns import Place
from hedgerow.data.raw_cells import RawColumn
from hedgerow.errors import DataError
from hedgerow.estimators.base import FewRecordsWarning
from hedgerow.privacy.accountants import epsilon_of_mu, mu_of
from hedgerow.privacy.calibration import calibrate_noise_multiplier
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.release import Releaser
from hedgerow.survey.bounds import classes_of_votes
from hedgerow.survey.queries import RawSite, TextVotes, blank, in_records, noise_deviation

EPSILONS = (0.1, 0.5, 1.0)
TEST_SHARE = 0.3
ARMS = ("found", "declared", "read off")


@dataclass(frozen=True, eq=False)
class Frame:
    """A data set as a person has it: numbers and text, a label of two classes, and the code book's categories."""

    rows: pd.DataFrame
    label: NDArray[Any]
    categories: Mapping[str, list[str]]


def main(argv: list[str]) -> int:
    """Print the table, a row at a time."""
    parser = harness.arguments("first_hour", __doc__, splits=(5, "random splits per cell"))
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), help="data sets (default all)")
    options = parser.parse_args(argv)
    print("\n".join(harness.table(["data set", "n", "epsilon", *ARMS, "found - read off"], [])), flush=True)
    for name in options.sets:
        frame = SETS[name](options.data)
        settings: dict[str, dict[str, Any]] = {"found": {}, "read off": {"bounds": "data"}}
        if frame.categories:
            settings["declared"] = {"categories": frame.categories}
        for epsilon in EPSILONS:
            found = {
                arm: np.array([_auc(frame, epsilon, split, own) for split in range(options.splits)])
                for arm, own in settings.items()
            }
            cells = [f"{found[arm].mean():.4f}" if arm in found else "-" for arm in ARMS]
            cells.append(mean_and_error(found["found"] - found["read off"], sign="+"))
            print(harness.row([name, f"{len(frame.label):,}", f"{epsilon:g}", *cells]), flush=True)
    return 0


def _is_test(frame: Frame, split: int) -> NDArray[np.bool_]:
    return np.random.default_rng(split).random(len(frame.label)) < TEST_SHARE


def _auc(frame: Frame, epsilon: float, seed: int, settings: Mapping[str, Any]) -> float:
    """The test AUC on the split of this number."""
    model, is_test = DPGBDTClassifier(epsilon=epsilon, random_state=seed, **settings), _is_test(frame, seed)
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
    categories = {own["name"]: own["categories"] for own in table.features if own["type"] == "categorical"}
    return Frame(table.frame("another"), table.label, categories)


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


# Names of texts -----------------------------------------------------------------------------------------------------

NAME_SHARES = (0.05, 0.2)


def main_names(argv: list[str]) -> int:
    """What names of texts cost: a share of mu**2 for votes on their bits, beside hashed texts, which cost nothing.

    hashed     DPGBDTClassifier(epsilon).fit(X, y): texts in 32 public buckets
    labelled   the same after so much was spent on names: what it costs to call the buckets by them
    named      the names that were found are the categories, and all other texts are one
    spelt      the share of the cells of text whose name was found
    """
    options = harness.options_of(argv, main_names, splits=(5, "random splits per cell"))
    head = ["data set", "epsilon", "share of mu**2", "hashed", "labelled - hashed", "named - hashed", "spelt"]
    print("\n".join(harness.table(head, [])), flush=True)
    for name in ("adult", "bank"):
        frame = SETS[name](options.data)
        for epsilon in EPSILONS[1:]:
            splits = [_named_scores(frame, epsilon, split) for split in range(options.splits)]
            for share in NAME_SHARES:
                found = np.array([split[share] for split in splits])
                hashed, (labelled, named) = found[:, 0], found[:, 1:3].T
                cells = [f"{hashed.mean():.4f}", *(mean_and_error(own - hashed, sign="+") for own in (labelled, named))]
                cells += [f"{found[:, 3].mean():.0%}"]
                print(harness.row([name, f"{epsilon:g}", f"{share:.0%}", *cells]), flush=True)
    return 0


def _named_scores(frame: Frame, epsilon: float, split: int) -> dict[float, list[float]]:
    """By share: test AUC of the three arms on one split, and the share of cells that were spelt."""
    hashed, scores, texts = _auc(frame, epsilon, split, {}), {}, frame.rows[~_is_test(frame, split)]
    for share in NAME_SHARES:
        names = _spelt(texts[list(frame.categories)], epsilon, share, split)
        known = np.mean([frame.rows[name].isin(own).mean() for name, own in names.items()])
        # What the names leave of the promise, as an epsilon of its own.
        left = epsilon_of_mu(mu_of(epsilon, 1e-6) * np.sqrt(1 - share), 1e-6)
        named = {name: own for name, own in names.items() if own}
        arms = [_auc(frame, left, split, settings) for settings in ({}, {"categories": named})]
        scores[share] = [hashed, *arms, float(known)]
    return scores


def _spelt(texts: pd.DataFrame, epsilon: float, share: float, seed: int) -> dict[str, list[str]]:
    """The names that votes on the bits of each column's texts spell."""
    cells = [RawColumn([texts[name].tolist()], Place("a table", name)) for name in texts]
    blank_query = blank(TextVotes, columns=tuple(range(len(cells))))
    query = replace(
        blank_query,
        length=blank_query.expected_length(),
        bound=blank_query.largest_entry(),
        sensitivity_squared=blank_query.norm_squared(),
        noise_multiplier=calibrate_noise_multiplier(epsilon, 1e-6, 1.0) / np.sqrt(share),
    )
    exact = query.answer(RawSite(cells, n_all=len(texts)))
    votes = in_records(Releaser(SeededNoise(seed)).release(query, exact))
    per_column = votes.reshape(len(cells), -1)
    return {
        name: list(classes_of_votes(own, noise_deviation(query))) for name, own in zip(texts, per_column, strict=True)
    }
