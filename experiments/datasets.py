"""The papers' data sets by name from a folder, with declared schemas and checked sums, and made-up ones.

Nothing is downloaded: a missing file is an error that says where its publisher has it. Bounds and categories stand in
`schemas/NAME.toml`, as a code book would declare them; none is read off the rows. Files of which no sum is recorded are
read as their publisher distributes them. In a schema an entry with `names` is as many features that are alike, and a
category "V01..V91" is as many codes.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import make_classification

from hedgerow.data.columns import hash_to_bucket
from hedgerow.errors import DataError
from hedgerow.trees.binning import MISSING_CATEGORY

Feature = dict[str, Any]
SCHEMAS = Path(__file__).with_name("schemas")
BINARY_NAMES = ("adult", "bank", "credit2", "credit1")
AUTHORS = "authors"
ABSENT = ("?", "")
RANKED = ("adult", "bank")
"""Data sets of which the authors of CCS'22 replace every column by the ranks of its values."""
BINARY = {"name": "y", "type": "binary", "classes": ["0", "1"]}


def number(name: str, low: float, high: float) -> Feature:
    """A numeric feature."""
    return {"name": name, "type": "numeric", "min": low, "max": high}


def category(name: str, words: str) -> Feature:
    """A categorical feature; categories separated by spaces."""
    return {"name": name, "type": "categorical", "categories": words.split()}


@dataclass(frozen=True, eq=False)
class Table:
    """A loaded data set.

    Attributes:
        features: declared schema, as a plan holds it.
        columns: per feature float32 [n], NaN where missing, or int16 [n] indices of categories: -1 where not listed, -2
            where missing; or of hashed text its buckets, -2 where missing.
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
    def matrix(self) -> NDArray[np.float64]:
        """All features as numbers, [n, m]."""
        return np.stack([column.astype(float) for column in self.columns], axis=1)

    def frame(self, unlisted: str) -> pd.DataFrame:
        """The features with categories as text, `unlisted` where one is not listed, None where it is missing."""
        found = {own["name"]: column for own, column in zip(self.features, self.columns, strict=True)}
        for own in self.features:
            if own["type"] == "categorical":
                found[own["name"]] = np.array([*own["categories"], None, unlisted], dtype=object)[found[own["name"]]]
        return pd.DataFrame(found)

    @property
    def kind(self) -> str:
        return str(self.label_section["type"])

    @property
    def is_regression(self) -> bool:
        return self.kind == "regression"


def load(
    name: str, folder: str | None = None, preparation: str = "declared", *, complete: bool = True, listed: bool = False
) -> Table:
    """Load a data set.

    Args:
        name: of a file in `schemas/`.
        folder: where the data are; by default HEDGEROW_DATA, else ../shared/data beside the checkout.
        preparation: "declared", by the public schema; or "authors", as the published code of CCS'22 prepares it:
            bounds from the data, categories as numbers, and in Adult and Bank every column, also a numeric one, as
            the ranks of its distinct values. That reads the data without paying for it: for comparison only.
        complete: whether rows with missing values are dropped, as in the papers.
        listed: whether text that the schema hashes has the file's own values for its list instead. Nothing is paid for
            that: for methods without privacy only.

    Raises:
        DataError: when it is unknown, not there, or not the published file.
    """
    known = sorted(path.stem for path in SCHEMAS.glob("*.toml"))
    if name not in known:
        raise DataError(f"There is no data set {name!r}.", remedy=f"Known are: {', '.join(known)}.")
    schema = tomllib.loads((SCHEMAS / f"{name}.toml").read_text(encoding="utf-8"))
    frame = _read(folder_of(folder), schema)
    if "one_row_of" in schema:
        frame = frame.drop_duplicates(schema["one_row_of"])
    features = tuple(feature for entry in schema["features"] for feature in _written_out(entry))
    if listed:
        features = tuple(_listed(feature, frame) for feature in features)
    if "complete_numbers_of" in schema:
        features = _complete_numbers(frame, *schema["complete_numbers_of"])
    needed = [*(feature["name"] for feature in features if complete), schema["label"]]
    frame = frame[~frame[needed].isin(ABSENT).any(axis=1)].reset_index(drop=True)
    columns = tuple(_column(frame[feature["name"]], feature) for feature in features)
    if preparation == AUTHORS:
        columns, features = _as_the_authors(name, frame, features)
    label = frame[schema["label"]]
    if "label_bounds" in schema:
        low, high = schema["label_bounds"]
        section = {"name": schema["label"], "type": "regression", "min": low, "max": high}
        return Table(name, features, columns, label.to_numpy(float), section)
    classes = label.isin(schema["positive"]).to_numpy().astype(np.int64)
    return Table(name, features, columns, classes, {**BINARY, "name": schema["label"]})


def folder_of(named: str | None) -> Path:
    """Where the data are: as named, else HEDGEROW_DATA, else ../shared/data beside the checkout."""
    return Path(named or os.environ.get("HEDGEROW_DATA") or "../shared/data")


def _written_out(entry: Feature) -> Iterator[Feature]:
    """The features that an entry of a schema stands for."""
    own = {key: value for key, value in entry.items() if key != "names"}
    if "categories" in own:
        own["categories"] = [code for word in own["categories"] for code in _codes(word)]
    for name in entry.get("names", [entry.get("name")]):
        yield {**own, "name": name}


def _codes(word: str) -> list[str]:
    """Every code of "V01..V91", in their order; any other word alone."""
    ends = re.fullmatch(r"(.*?)(\d+)\.\.\1(\d+)", word)
    if not ends:
        return [word]
    prefix, first, last = ends.groups()
    return [f"{prefix}{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]


def _listed(feature: Feature, frame: pd.DataFrame) -> Feature:
    if feature["type"] != "hashed":
        return feature
    words = sorted({*frame[feature["name"]]} - {*ABSENT})
    return {"name": feature["name"], "type": "categorical", "categories": words}


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


def _read(folder: Path, schema: Mapping[str, Any]) -> pd.DataFrame:
    path = folder / schema["file"]
    if not path.exists():
        raise DataError(
            f"{path} is not there.",
            cause="Data sets are not part of Hedgerow, and nothing is downloaded.",
            remedy=f"Get it from {schema['publisher']}, and name its folder with --data or HEDGEROW_DATA.",
            code="data-missing",
        )
    if "sha256" in schema and hashlib.sha256(path.read_bytes()).hexdigest() != schema["sha256"]:
        raise DataError(
            f"{path} is not the published file: its SHA-256 differs.",
            remedy=f"Get it again from {schema['publisher']}.",
            code="data-digest",
        )
    if schema.get("header", True):
        return pd.read_csv(path, dtype=str, keep_default_na=False)
    frame = _without_head(path, schema)
    if "columns" in schema:
        return frame.set_axis(schema["columns"], axis=1)
    return frame.set_axis([str(place) for place in frame.columns], axis=1)


def _without_head(path: Path, schema: Mapping[str, Any]) -> pd.DataFrame:
    """The cells below a file's head, as text; of a sampled one so many rows, drawn part by part."""
    wanted = schema.get("sample")
    parts, random = [], np.random.default_rng(0)
    above = _lines_above(path)
    with pd.read_csv(path, header=None, skiprows=above, dtype=str, keep_default_na=False, chunksize=500_000) as reader:
        for part in reader:
            # Rows with the smallest of independent keys are a sample without replacement, and only they are kept.
            keyed = part.assign(key=random.random(len(part)))
            parts.append(keyed)
            if wanted:
                parts = [pd.concat(parts).nsmallest(wanted, "key")]
    return pd.concat(parts).sort_index().drop(columns="key").reset_index(drop=True)


def _lines_above(path: Path) -> int:
    """Lines of an ARFF file up to its "@data"; of others none."""
    if path.suffix != ".arff":
        return 0
    with path.open(encoding="utf-8") as stream:
        return next(number for number, line in enumerate(stream, 1) if line.strip().lower() == "@data")


def _complete_numbers(frame: pd.DataFrame, first: int, last: int) -> tuple[Feature, ...]:
    """Columns from `first` to before `last` in which every cell is a number, as features from 0 to 1."""
    names = [str(place) for place in range(first, last)]
    numbers = [name for name in names if pd.to_numeric(frame[name], errors="coerce").notna().all()]
    return tuple(number(name, 0.0, 1.0) for name in numbers)


def available(names: Iterable[str], folder: str | None = None) -> tuple[str, ...]:
    """Those of these data sets whose file is in the folder."""
    files = {name: tomllib.loads((SCHEMAS / f"{name}.toml").read_text(encoding="utf-8"))["file"] for name in names}
    return tuple(name for name in names if (folder_of(folder) / files[name]).exists())


def _column(values: pd.Series, feature: Feature) -> NDArray[Any]:
    if feature["type"] == "numeric":
        return np.asarray(values.replace(ABSENT, "nan").astype(float).to_numpy(np.float32))
    numbers = dict.fromkeys(ABSENT, MISSING_CATEGORY)
    if feature["type"] == "hashed":
        numbers = {word: hash_to_bucket(word, feature["buckets"]) for word in values.unique()} | numbers
    else:
        numbers |= {word: index for index, word in enumerate(feature["categories"])}
    return np.asarray(values.map(numbers).fillna(-1).to_numpy(np.int16))


Drawn = NDArray[Any]
SYNTHETIC: dict[str, tuple[tuple[int, int], float, Callable[[Drawn], Drawn]]] = {
    "many_records": ((1_000_000, 10), 0, lambda x: (
        x[:, 0] + np.sin(2 * x[:, 1]) + 0.5 * x[:, 2] ** 2 - 1 + x[:, 3] * x[:, 4] + 0.5 * (x[:, 5] > 1)
    )),
    "two_features": ((20_000, 2), 4, lambda x: 3 * np.sin(0.75 * x[:, 0]) + 0.5 * x[:, 1]),
    "product": ((20_000, 3), 0, lambda x: x[:, 0] + x[:, 1] * x[:, 2] - 0.5),
    "fifty_features": ((30_000, 50), 0, lambda x: (
        x[:, :5] @ np.array([1.2, -1, 0.8, 0.6, -0.4]) + 0.7 * (x[:, 5] ** 2 - 1)
    )),
    "xor_of_two": ((100_000, 10), 4, lambda x: 3 * np.sign(x[:, 0] * x[:, 1]) + x[:, 2] / 8),
    "xor_of_three": ((60_000, 4), 4, lambda x: 3 * np.sign(x[:, 0] * x[:, 1] * x[:, 2])),
    "chequers": ((100_000, 3), 4, lambda x: 6.0 * ((np.floor(x[:, 0] / 2) + np.floor(x[:, 1] / 2)) % 2) - 3),
    "mixed": ((50_000, 8), 0, lambda x: x[:, 0] - x[:, 1] + x[:, 2] * x[:, 3] + np.sign(x[:, 4]) * x[:, 5]),
}  # fmt: skip
"""Records and features; the bound of uniform features, 0 for normal ones; log-odds [n] of the features [n, m]."""


def make(name: str) -> Table:
    """A synthetic binary task with numeric features in [-4, 4]."""
    x, log_odds, random = _features_and_log_odds(name)
    return made_up(name, x, (random.random(len(x)) < 1 / (1 + np.exp(-log_odds))).astype(np.int64), 4)


def make_numbers(name: str, most: int = 20_000) -> Table:
    """The log-odds of a synthetic task, with normal noise of deviation 1, as numbers in [-12, 12]; `most` records."""
    x, log_odds, random = _features_and_log_odds(name, most)
    section = {"name": "y", "type": "regression", "min": -12.0, "max": 12.0}
    return made_up(name, x, np.clip(log_odds + random.normal(size=len(x)), -12, 12), 4, section)


def _features_and_log_odds(name: str, most: int = 1_000_000) -> tuple[Drawn, Drawn, np.random.Generator]:
    random = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))
    (n_records, n_features), bound, log_odds = SYNTHETIC[name]
    size = min(n_records, most), n_features
    x = random.uniform(-bound, bound, size=size) if bound else random.normal(size=size)
    return x, log_odds(x), random


def with_label(table: Table, name: str, label: str, without: tuple[str, ...] = ()) -> Table:
    """Another task: a feature is the label, of several classes or a number, and the label of two classes a feature.

    Rows whose category is not listed are not in the task, nor are features `without`, since they say the label.
    """
    feature = next(feature for feature in table.features if feature["name"] == label)
    left = [number for number, other in enumerate(table.features) if other["name"] not in (label, *without)]
    column = table.columns[table.features.index(feature)]
    if feature["type"] == "numeric":
        values, known = np.clip(column.astype(float), feature["min"], feature["max"]), np.ones(len(column), dtype=bool)
        section = {"name": label, "type": "regression", "min": feature["min"], "max": feature["max"]}
    else:
        values, known = column.astype(np.int64), column >= 0
        section = {"name": label, "type": "multiclass", "classes": feature["categories"]}
    own = {"name": table.label_section["name"], "type": "categorical", "categories": table.label_section["classes"]}
    features = (*(table.features[number] for number in left), own)
    columns = (*(table.columns[number][known] for number in left), table.label[known].astype(np.int16))
    return Table(name, features, columns, values[known], section)


def few(table: Table, n_records: int) -> Table:
    """So many records of a table, the same ones every time; all of them where it has no more."""
    chosen = np.random.default_rng(0).permutation(table.n_records)[:n_records]
    columns = tuple(column[chosen] for column in table.columns)
    return replace(table, name=f"{table.name}, in part", columns=columns, label=table.label[chosen])


def make_classes(n_classes: int, n_records: int = 20_000) -> Table:
    """A synthetic task with ten numeric features in [-4, 4], of which six count; the last classes are rare."""
    random = np.random.default_rng(n_classes)
    x = random.normal(size=(n_records, 10))
    ways = [x[:, 0], x[:, 1], x[:, 2], x[:, 0] * x[:, 3], np.sin(2 * x[:, 4]), np.abs(x[:, 5])]
    log_weights = np.stack(ways, axis=1) @ random.normal(size=(6, n_classes)) - np.log(np.arange(1, n_classes + 1))
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    shares = (weights / weights.sum(axis=1, keepdims=True)).cumsum(axis=1)
    label = (shares < random.random((n_records, 1))).sum(axis=1).astype(np.int64)
    section = {"name": "y", "type": "multiclass", "classes": [f"class {number}" for number in range(n_classes)]}
    return made_up(f"made, {n_classes} classes", x, np.minimum(label, n_classes - 1), 4, section)


def make_codes(kind: str, n_records: int) -> tuple[Table, list[str]]:
    """Two classes by five numbers and one of 5,000 codes, whose column comes last; and the codes in their list's order.

    Of "few that matter" the k-th code is k times as rare as the first, and 20 of the 60 commonest move the log-odds by
    2. Of "diagnoses" a code is a letter, two digits and one more; letters, tens and the two digits move them.
    """
    random, n_codes = np.random.default_rng(0), 5_000
    letters = "ABCDEFGHIJKLMNOPQRST"
    names = [f"{letter}{block:02d}.{last}" for letter in letters for block in range(50) for last in range(5)]
    if kind == "diagnoses":
        chances = random.dirichlet(np.full(1_000, 0.3)).repeat(5) / 5
        parts = random.normal(0, 0.6, (20, 1, 1)) + random.normal(0, 0.6, (20, 5, 1))
        effects = (parts + random.normal(0, 0.3, (20, 5, 10))).ravel().repeat(5)
    else:
        rank = random.permutation(n_codes)
        chances, effects = 1 / (1 + rank), np.zeros(n_codes)
        effects[random.choice(np.flatnonzero(rank < 60), 20, replace=False)] = random.choice([-2.0, 2.0], 20)
    code = random.choice(n_codes, n_records, p=chances / chances.sum())
    x = random.uniform(-1, 1, (n_records, 5))
    log_odds = effects[code] + x[:, 0] + np.sin(2.5 * x[:, 1] + 2.5) - 1.5
    table = made_up(kind, x, (random.random(n_records) < 1 / (1 + np.exp(-log_odds))).astype(np.int64), 1)
    own = {"name": "code", "type": "categorical", "categories": names}
    return replace(table, features=(*table.features, own), columns=(*table.columns, code.astype(np.int32))), names


SKEWED = (
    "two classes, 3 %", "two classes, persons of 4 rows", "three classes, the last 3 %", "six classes",
    "counts", "costs", "numbers with tails", "times",
)  # fmt: skip
"""Tables of `make_skewed`: rare classes, and labels most of which are far below the ends of their range."""


def make_skewed(kind: str, n_records: int, seed: int) -> Table:
    """One of `SKEWED`, with four normal features of which two count."""
    random = np.random.default_rng([SKEWED.index(kind), seed])
    n_rows_of_person = 4 if "persons" in kind else 1
    x = np.repeat(random.normal(size=(-(-n_records // n_rows_of_person), 4)), n_rows_of_person, axis=0)[:n_records]
    effect = x[:, 0] + 0.5 * np.sin(2 * x[:, 1])
    latent = effect + random.logistic(size=n_records)
    if kind.startswith("two"):
        return made_up(kind, x, (latent > 4.2).astype(np.int64), 4)
    if "classes" in kind:
        steps = (0.0, 4.2) if kind.startswith("three") else (-1.5, -0.5, 0.5, 1.5, 3.0)
        section = {"name": "y", "type": "multiclass", "classes": [f"class {place}" for place in range(len(steps) + 1)]}
        return made_up(kind, x, np.searchsorted(steps, latent).astype(np.int64), 4, section)
    if kind == "counts":
        counts = random.poisson(random.exponential(0.2, n_records) * np.exp(0.6 * effect))
        return made_up(kind, x, np.minimum(counts, 20).astype(np.int64), 4, {"name": "y", "type": "count", "max": 20})
    if kind == "times":
        event, end = random.exponential(20 * np.exp(-0.7 * effect)), random.uniform(2, 12, n_records)
        interval = (np.minimum(event, end) // 2).astype(np.int64)
        times: Feature = {"name": "y", "type": "survival", "event": "dead", "intervals": [2, 4, 6, 8, 10, 12]}
        return made_up(kind, x, 2 * interval + (event <= end), 4, times)
    label, low, high = np.exp(7 + 0.7 * effect + random.normal(size=n_records)), 0.0, 200_000.0
    if kind == "numbers with tails":
        label, low, high = 20 + 8 * effect + 4 * random.standard_t(2.2, n_records), -500.0, 500.0
    return made_up(kind, x, np.clip(label, low, high), 4, {"name": "y", "type": "regression", "min": low, "max": high})


def skewed_numbers(n_records: int = 10_000) -> Table:
    """Fares within bounds that only a few reach: the label's spread is a thirtieth of its range."""
    random = np.random.default_rng(7)
    distance = random.gamma(1.5, 2.0, n_records)
    others = [random.uniform(0, 24, n_records), random.integers(1, 6, n_records), random.normal(size=n_records)]
    fare = 3 + 2.5 * distance + 1.5 * random.normal(size=n_records)
    fare += (random.random(n_records) < 0.003) * random.uniform(20, 140, n_records)
    bounds = ("distance", 0, 40), ("hour", 0, 24), ("passengers", 1, 6), ("other", -4, 4)
    columns = tuple(column.astype(np.float32) for column in (distance, *others))
    section = {"name": "fare", "type": "regression", "min": 0.0, "max": 250.0}
    label = np.clip(fare, 0, 250).astype(np.float64)
    return Table("fares", tuple(number(*bound) for bound in bounds), columns, label, section)


def generated_classes(n_records: int = 50_000) -> Table:
    """A task of scikit-learn's generator: two classes, 30 % positive, 20 features of which 8 inform."""
    x, y = make_classification(n_records, 20, n_informative=8, n_redundant=4, weights=[0.7], random_state=0)
    return made_up("generated classes", x, y.astype(np.int64), 10.0)


def made_up(name: str, x: Drawn, label: Drawn, bound: float, section: dict[str, Any] = BINARY) -> Table:
    """A table of features x0, x1 and so on, each within +-bound."""
    features = tuple(number(f"x{index}", -bound, bound) for index in range(x.shape[1]))
    return Table(name, features, tuple(x.astype(np.float32).T), label, section)
