"""The public data sets of the papers, by name from a folder, with declared schemas and checked sums.

Nothing is downloaded: a missing file is an error that says where its publisher has it. Bounds and categories are
declared here as a code book would declare them; none is read off the rows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hedgerow.errors import DataError

Feature = dict[str, Any]


def integer(name: str, low: float, high: float) -> Feature:
    """A numeric feature of whole numbers."""
    return {"name": name, "type": "numeric", "min": low, "max": high, "integer": True}


def number(name: str, low: float, high: float) -> Feature:
    """A numeric feature."""
    return {"name": name, "type": "numeric", "min": low, "max": high}


def category(name: str, words: str) -> Feature:
    """A categorical feature; categories separated by spaces."""
    return {"name": name, "type": "categorical", "categories": words.split()}


@dataclass(frozen=True)
class Source:
    """One data set.

    Attributes:
        files: file names in the data folder, with their SHA-256.
        publisher: where to get it.
        label: column of the label.
        positive: values of the positive class; empty for a regression.
        features: declared schema.
        missing: values that mark a row as incomplete (such rows are dropped, as the papers do).
    """

    files: dict[str, str]
    publisher: str
    label: str
    positive: tuple[str, ...]
    features: tuple[Feature, ...]
    label_bounds: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Table:
    """A loaded data set.

    Attributes:
        name: its name.
        features: declared schema, as a plan holds it.
        columns: per feature float32 [n], or int16 [n] indices of categories.
        label: int64 [n] classes 0 and 1, or float64 [n].
        label_section: the plan's [label].
    """

    name: str
    features: tuple[Feature, ...]
    columns: tuple[NDArray[Any], ...]
    label: NDArray[Any]
    label_section: dict[str, Any]

    @property
    def n_records(self) -> int:
        return len(self.label)

    @property
    def is_regression(self) -> bool:
        return bool(self.label_section["type"] == "regression")


ADULT_FEATURES = (
    integer("age", 16, 100),
    category(
        "workclass", "Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay"
    ),
    integer("fnlwgt", 0, 1_500_000),
    category(
        "education",
        "Preschool 1st-4th 5th-6th 7th-8th 9th 10th 11th 12th HS-grad Some-college Assoc-voc Assoc-acdm Bachelors "
        "Masters Prof-school Doctorate",
    ),
    integer("education-num", 1, 16),
    category(
        "marital-status",
        "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated Widowed",
    ),
    category(
        "occupation",
        "Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners Machine-op-inspct "
        "Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support Transport-moving",
    ),
    category("relationship", "Husband Not-in-family Other-relative Own-child Unmarried Wife"),
    category("race", "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White"),
    category("sex", "Female Male"),
    integer("capital-gain", 0, 100_000),
    integer("capital-loss", 0, 5_000),
    integer("hours-per-week", 1, 99),
    category(
        "native-country",
        "Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France Germany Greece "
        "Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica Japan Laos Mexico "
        "Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico Scotland South Taiwan "
        "Thailand Trinadad&Tobago United-States Vietnam Yugoslavia",
    ),
)
UCI = "the UCI Machine Learning Repository"
SOURCES = {
    "adult": Source(
        {"adult_train.csv.gz": "2ad6f26656334d896732307d90ef712de06e515f2ab98e3c6316fffd36cbdc15"},
        f'{UCI}, data set "Adult" (adult.data)', "income", (">50K",), ADULT_FEATURES,
    ),
    "bank": Source(
        {"bank.csv.gz": "d9a8721a9d80f5005666cc8620a1326e340de29b6defa3f64df2cb5c26717076"},
        f'{UCI}, data set "Bank Marketing" (bank-full.csv)', "y", ("yes",),
        (
            integer("age", 16, 100),
            category(
                "job",
                "admin. blue-collar entrepreneur housemaid management retired self-employed services student "
                "technician unemployed unknown",
            ),
            category("marital", "divorced married single"),
            category("education", "primary secondary tertiary unknown"),
            category("default", "no yes"),
            integer("balance", -10_000, 110_000),
            category("housing", "no yes"),
            category("loan", "no yes"),
            category("contact", "cellular telephone unknown"),
            integer("day", 1, 31),
            category("month", "jan feb mar apr may jun jul aug sep oct nov dec"),
            integer("duration", 0, 5_000),
            integer("campaign", 1, 64),
            integer("pdays", -1, 900),
            integer("previous", 0, 300),
            category("poutcome", "failure other success unknown"),
        ),
    ),
    "credit1": Source(
        {"credit1.csv.gz": "caf77bf5e7d71e852ad6bf42e4ee5b8d860c32c0ea94b561f9b3dfa80af40604"},
        'the Kaggle competition "Give Me Some Credit" (cs-training.csv)', "SeriousDlqin2yrs", ("1",),
        (
            number("RevolvingUtilizationOfUnsecuredLines", 0, 60_000),
            integer("age", 0, 110),
            integer("NumberOfTime30-59DaysPastDueNotWorse", 0, 98),
            number("DebtRatio", 0, 350_000),
            integer("MonthlyIncome", 0, 3_500_000),
            integer("NumberOfOpenCreditLinesAndLoans", 0, 60),
            integer("NumberOfTimes90DaysLate", 0, 98),
            integer("NumberRealEstateLoansOrLines", 0, 60),
            integer("NumberOfTime60-89DaysPastDueNotWorse", 0, 98),
            integer("NumberOfDependents", 0, 20),
        ),
    ),
    "credit2": Source(
        {"credit2.csv.gz": "db768487f23cc5a962cbd117f00d535208279cbc7e7635458adb7959a2379787"},
        f'{UCI}, data set "Default of Credit Card Clients" (UCI_Credit_Card.csv)', "default.payment.next.month", ("1",),
        (
            integer("LIMIT_BAL", 0, 1_000_000),
            category("SEX", "1 2"),
            category("EDUCATION", "0 1 2 3 4 5 6"),
            category("MARRIAGE", "0 1 2 3"),
            integer("AGE", 18, 80),
            *(integer(f"PAY_{month}", -2, 9) for month in (0, 2, 3, 4, 5, 6)),
            *(integer(f"BILL_AMT{month}", -350_000, 1_700_000) for month in range(1, 7)),
            *(integer(f"PAY_AMT{month}", 0, 1_700_000) for month in range(1, 7)),
        ),
    ),
    "abalone": Source(
        {"abalone.csv.gz": "8a0013d045bf59bf5ee731b20170d4def325d1556f0cbeb7ea36bba1dadf41e0"},
        f'{UCI}, data set "Abalone" (abalone.data)', "Rings", (),
        (
            category("Sex", "F I M"),
            number("Length", 0, 1),
            number("Diameter", 0, 1),
            number("Height", 0, 1.2),
            number("Whole_weight", 0, 3),
            number("Shucked_weight", 0, 1.5),
            number("Viscera_weight", 0, 1),
            number("Shell_weight", 0, 1.2),
        ),
        (1.0, 29.0),
    ),
}  # fmt: skip
BINARY_NAMES = ("adult", "bank", "credit2", "credit1")


def data_folder(given: str | None) -> Path:
    """The folder with the data sets: `given`, else HEDGEROW_DATA, else ../shared/data beside the checkout."""
    if given:
        return Path(given)
    if os.environ.get("HEDGEROW_DATA"):
        return Path(os.environ["HEDGEROW_DATA"])
    return Path("../shared/data")


AUTHORS = "authors"
RANKED = ("adult", "bank")
"""Data sets of which the authors of CCS'22 replace every column by the ranks of its values."""


def load(name: str, folder: Path, preparation: str = "declared") -> Table:
    """Load a data set; rows with missing values are dropped, as in the papers.

    Args:
        name: a key of `SOURCES`.
        folder: where the files are.
        preparation: "declared", by the public schema above; or "authors", as the published code of CCS'22 prepares it:
            bounds from the data, categories as numbers, and in Adult and Bank every column, also a numeric one, as
            the ranks of its distinct values. That reads the data without paying for it: for comparison only.

    Raises:
        DataError: when it is unknown, not there, or not the published file.
    """
    if name not in SOURCES:
        raise DataError(f"There is no data set {name!r}.", remedy=f"Known are: {', '.join(SOURCES)}.")
    source = SOURCES[name]
    frames = [_read(folder / file, digest, source) for file, digest in source.files.items()]
    frame = pd.concat(frames, ignore_index=True)
    used = [feature["name"] for feature in source.features]
    complete = ~(frame[used].isin(["?", ""]).any(axis=1))
    frame = frame[complete].reset_index(drop=True)
    columns = tuple(_column(frame[feature["name"]], feature) for feature in source.features)
    features = source.features
    if preparation == AUTHORS:
        columns, features = _as_the_authors(name, frame, features)
    if source.label_bounds:
        low, high = source.label_bounds
        section = {"name": source.label, "type": "regression", "min": low, "max": high}
        return Table(name, features, columns, frame[source.label].to_numpy(float), section)
    label = frame[source.label].isin(source.positive).to_numpy().astype(np.int64)
    section = {"name": source.label, "type": "binary", "classes": ["0", "1"]}
    return Table(name, features, columns, label, section)


def _as_the_authors(
    name: str, frame: pd.DataFrame, features: tuple[Feature, ...]
) -> tuple[tuple[NDArray[Any], ...], tuple[Feature, ...]]:
    columns, declared = [], []
    for feature in features:
        values = frame[feature["name"]]
        is_text = feature["type"] == "categorical" and not values.str.fullmatch(r"-?\d+").all()
        numbers = values.to_numpy() if is_text else values.astype(float).to_numpy()
        if name in RANKED:
            numbers = np.unique(numbers, return_inverse=True)[1]
        column = numbers.astype(np.float32)
        columns.append(column)
        # Never as integers: the paper's candidates are real numbers, and several between the same two whole values
        # make the random trees cut there more often.
        declared.append(number(feature["name"], float(column.min()), float(column.max())))
    return tuple(columns), tuple(declared)


def _read(path: Path, digest: str, source: Source) -> pd.DataFrame:
    if not path.exists():
        raise DataError(
            f"{path} is not there.",
            cause="Data sets are not part of Hedgerow, and nothing is downloaded.",
            remedy=f"Get it from {source.publisher}, and name its folder with --data or HEDGEROW_DATA.",
            code="data-missing",
        )
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise DataError(
            f"{path} is not the published file: its SHA-256 differs.",
            remedy=f"Get it again from {source.publisher}.",
            code="data-digest",
        )
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def _column(values: pd.Series, feature: Feature) -> NDArray[Any]:
    if feature["type"] == "numeric":
        return np.asarray(values.astype(float).to_numpy(np.float32))
    numbers = {word: index for index, word in enumerate(feature["categories"])}
    return np.asarray(values.map(numbers).fillna(-1).to_numpy(np.int16))


SYNTHETIC: dict[str, Callable[[np.random.Generator], tuple[NDArray[Any], NDArray[Any]]]] = {}


def synthetic(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a maker of (features [n, m] within [-4, 4], log-odds [n])."""

    def register(maker: Callable[..., Any]) -> Callable[..., Any]:
        SYNTHETIC[name] = maker
        return maker

    return register


@synthetic("many_records")
def _many_records(random: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    x = random.normal(size=(1_000_000, 10))
    return x, x[:, 0] + np.sin(2 * x[:, 1]) + 0.5 * x[:, 2] ** 2 - 1 + x[:, 3] * x[:, 4] + 0.5 * (x[:, 5] > 1)


@synthetic("two_features")
def _two_features(random: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    x = random.uniform(-4, 4, size=(20_000, 2))
    return x, 3 * np.sin(0.75 * x[:, 0]) + 0.5 * x[:, 1]


@synthetic("product")
def _product(random: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    x = random.normal(size=(20_000, 3))
    return x, x[:, 0] + x[:, 1] * x[:, 2] - 0.5


@synthetic("fifty_features")
def _fifty_features(random: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    x = random.normal(size=(30_000, 50))
    return x, x[:, :5] @ np.array([1.2, -1, 0.8, 0.6, -0.4]) + 0.7 * (x[:, 5] ** 2 - 1)


@synthetic("xor_of_two")
def _xor_of_two(random: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    x = random.uniform(-4, 4, size=(100_000, 10))
    return x, 3 * np.sign(x[:, 0] * x[:, 1]) + x[:, 2] / 8


@synthetic("xor_of_three")
def _xor_of_three(random: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    x = random.uniform(-4, 4, size=(60_000, 4))
    return x, 3 * np.sign(x[:, 0] * x[:, 1] * x[:, 2])


@synthetic("chequers")
def _chequers(random: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    x = random.uniform(-4, 4, size=(100_000, 3))
    return x, 6.0 * ((np.floor(x[:, 0] / 2) + np.floor(x[:, 1] / 2)) % 2) - 3


@synthetic("mixed")
def _mixed(random: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    x = random.normal(size=(50_000, 8))
    return x, x[:, 0] - x[:, 1] + x[:, 2] * x[:, 3] + np.sign(x[:, 4]) * x[:, 5]


def make(name: str) -> Table:
    """A synthetic binary task with numeric features in [-4, 4]."""
    random = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))
    x, log_odds = SYNTHETIC[name](random)
    label = (random.random(len(x)) < 1 / (1 + np.exp(-log_odds))).astype(np.int64)
    features = tuple(number(f"x{i}", -4, 4) for i in range(x.shape[1]))
    columns = tuple(x.astype(np.float32).T)
    return Table(name, features, columns, label, {"name": "y", "type": "binary", "classes": ["0", "1"]})
