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
from sklearn.metrics import d2_tweedie_score, r2_score, roc_auc_score

from experiments import harness
from experiments.datasets import BINARY_NAMES, folder_of, load
from experiments.harness import mean_and_error
from hedgerow import DPGBDTClassifier, DPGBDTRegressor
from hedgerow.data.columns import Place
from hedgerow.data.raw_cells import RawColumn
from hedgerow.errors import DataError
from hedgerow.estimators.base import FewRecordsWarning
from hedgerow.privacy.accountants import epsilon_of_mu, mu_of
from hedgerow.privacy.calibration import calibrate_noise_multiplier
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.release import UNCOUNTED, Releaser
from hedgerow.survey.bounds import read_vote_classes
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


# The range of a number -----------------------------------------------------------------------------------------------

SIZES = ((1279, 0.17), (1250, 0.5), (3000, 1.0), (1000, 3.0), (17_650, 0.17), (20_000, 1.0))
"""Training rows and epsilon: n epsilon is 217 and 625, three times 3,000, and 20,000."""
MIN_LEFT, MAX_LEFT = 300, 8000
Drawn = tuple[pd.DataFrame, NDArray[np.float64]]


def main_ranges(argv: list[str]) -> int:
    """What it costs to find the range of a label: a range found beside one declared twice as wide as all labels.

    R2, of counts the share of deviance explained, on rows that were not trained on; the mean prediction over the mean
    label; and how many fits were refused, as no range stood out of the noise. Differences are over the other fits.
    """
    options = harness.options_of(argv, main_ranges, splits=(5, "random splits per cell"))
    head = ["label", "n", "epsilon", "declared", "found", "found - declared", "least found", "mean / truth", "refused"]
    print("\n".join(harness.table(head, [])), flush=True)
    for name, (is_count, draw) in NUMBERS.items():
        for n, epsilon in SIZES:
            scores, means, n_refused = list[tuple[float, float]](), list[float](), 0
            for seed in range(options.splits):
                rows, label = draw(options.data, seed)
                if len(label) < n + MIN_LEFT:
                    continue
                low, high = float(label.min()), float(label.max())
                bounds = (0.0, 2 * high) if is_count else (low - (high - low) / 2, high + (high - low) / 2)
                declared = _ranged(rows, label, n, is_count, epsilon=epsilon, random_state=seed, label_bounds=bounds)
                found = _ranged(rows, label, n, is_count, epsilon=epsilon, random_state=seed)
                if declared is None or found is None:
                    n_refused += 1
                    continue
                scores.append((declared[0], found[0]))
                means.append(found[1])
            cells = ["-"] * 5
            if scores:
                both = np.array(scores)
                gap = mean_and_error(both[:, 1] - both[:, 0], digits=3, sign="+")
                cells = [*(f"{own:.3f}" for own in both.mean(axis=0)), gap]
                cells += [f"{both[:, 1].min():.3f}", f"{np.mean(means):.2f}"]
            if scores or n_refused:
                print(harness.row([name, f"{n:,}", f"{epsilon:g}", *cells, f"{n_refused}"]), flush=True)
    return 0


def _ranged(
    rows: pd.DataFrame, label: NDArray[np.float64], n: int, is_count: bool, **settings: Any
) -> tuple[float, float] | None:
    """R2 or deviance explained of a model of the first n rows on others, and its mean prediction over their mean."""
    words = {name: sorted(rows[name].unique()) for name in rows if rows[name].dtype.kind not in "iufb"}
    loss = "poisson" if is_count else "squared_error"
    model = DPGBDTRegressor(loss=loss, categories=words, **settings)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(rows[:n], label[:n])
    except DataError as fault:
        if fault.code != "data-range":
            raise
        return None
    truth, predicted = label[n : n + MAX_LEFT], model.predict(rows[n : n + MAX_LEFT])
    score = d2_tweedie_score(truth, predicted, power=1) if is_count else r2_score(truth, predicted)
    return float(score), float(predicted.mean() / truth.mean())


def _table(file: str, label: str, *dropped: str) -> Callable[[str | None, int], Drawn]:
    def draw(folder: str | None, seed: int) -> Drawn:
        rows = pd.read_csv(folder_of(folder) / file).sample(frac=1, random_state=seed, ignore_index=True)
        rows = rows[rows[label].notna()].reset_index(drop=True)
        full = [name for name in rows if name not in (label, *dropped) and rows[name].notna().mean() > 0.9]
        return rows[full], rows[label].to_numpy(np.float64)

    return draw


def _drawn(make: Callable[[Any, Any], Any]) -> Callable[[str | None, int], Drawn]:
    """Eight normal columns, and a label of a smooth effect f of them."""

    def draw(_: str | None, seed: int) -> Drawn:
        noise = np.random.default_rng(seed)
        x = noise.normal(size=(30_000, 8))
        effect = (x[:, 0] + 0.7 * np.sin(2 * x[:, 1]) + 0.5 * x[:, 2] * x[:, 3]) / 1.5
        return pd.DataFrame(x, columns=list("abcdefgh")), np.asarray(make(effect, noise), dtype=np.float64)

    return draw


NUMBERS: dict[str, tuple[bool, Callable[[str | None, int], Drawn]]] = {
    "abalone": (False, _table("abalone.csv.gz", "Rings")),
    "bike": (False, _table("bike.csv.gz", "count", "date", "casual", "registered")),
    "diamonds": (False, _table("diamonds.csv.gz", "price")),
    "nhefs": (False, _table("nhefs.csv.gz", "wt82_71", "wt82", "seqn")),
    "visits": (True, _table("rwm5yr.csv.gz", "docvis", "id", "rownames", "hospvis")),
    "log-normal": (False, _drawn(lambda f, draw: 20 * np.exp(0.8 * f + 0.5 * draw.normal(size=len(f))))),
    "Pareto": (False, _drawn(lambda f, draw: 10 * np.exp(0.5 * f) * (1 + draw.pareto(3.5, len(f))))),
    "years": (False, _drawn(lambda f, draw: np.rint(2005 + 5 * f + 3 * draw.normal(size=len(f))).clip(1990, 2020))),
    "below 0": (False, _drawn(lambda f, draw: -(200 + 60 * f + 40 * draw.normal(size=len(f))).clip(1, None))),
    "both signs": (False, _drawn(lambda f, draw: 1e-4 * (3 * f + 2 * draw.normal(size=len(f)) + 1))),
    "many zeros": (True, _drawn(lambda f, draw: np.where(draw.random(len(f)) < 0.7, 0, draw.poisson(4 * np.exp(f))))),
}
"""Whether it counts, and the rows of a seed in random order."""


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
    votes = in_records(Releaser(SeededNoise(seed), UNCOUNTED).release(query, exact))
    per_column = votes.reshape(len(cells), -1)
    return {
        name: list(read_vote_classes(own, noise_deviation(query))) for name, own in zip(texts, per_column, strict=True)
    }
