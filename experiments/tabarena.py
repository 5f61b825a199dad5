"""The default and XGBoost on sets of TabArena, beside the scores that TabArena publishes.

A comparison, no entry: TabArena's own splits, which need OpenML, are not used. As there, a third of the rows is tested
on; ours are random splits of that size, labels' shares kept. The published scores are those of its first split
(arXiv 2506.16791; `results_per_split.csv` of autogluon/tabarena at 29bdbf9): XGBoost, the same tuned and as an
ensemble, and a linear model, tuned and as an ensemble. Our XGBoost is made as TabArena's untuned one: depth 6 at rate
0.1, the mean of eight models, each of which stops by the eighth of the training rows that it does not see. Files that
are not in the folder are named, and left out.

Columns and rows that TabArena drops are dropped, and rows with missing values kept. delta = 1 / n_train; bounds and
categories are those of `experiments/schemas`. Text that nobody lists is hashed for the default, to as many buckets as
an estimator takes; XGBoost has all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack
from sklearn.preprocessing import OneHotEncoder

from experiments import harness
from experiments.datasets import Table, load
from experiments.harness import Prepared, ScoreBook, error_of, mean_and_error, published
from experiments.utility import DEFAULT, METHODS
from hedgerow.errors import DataError
from hedgerow.losses.kinds import roc_auc
from hedgerow.plan.plan import FOUND
from hedgerow.privacy.outlook import with_buckets

EPSILONS = (0.5, 1.0, 3.0)
SHARE, N_FOLDS, MAX_TREES, PATIENCE, N_LEVELS = 2 / 3, 8, 5_000, 50, 100
COSTS = {False: "AUC x 100", True: "RMSE, %"}
Floats = NDArray[np.float64]
PUBLISHED = ("XGBoost", "XGBoost, tuned", "linear model, tuned")


def _load(name: str, folder: str | None, listed: bool = False, *, without: tuple[str, ...] = ()) -> Table:
    table = load(name, folder, complete=False, listed=listed)
    own = zip(table.features, table.columns, strict=True)
    kept = [(feature, column) for feature, column in own if feature["name"] not in without]
    return replace(table, features=tuple(feature for feature, _ in kept), columns=tuple(column for _, column in kept))


def _houses(folder: str | None, listed: bool = False) -> Table:
    """The logarithm of a house's value."""
    table = _load("houses", folder, listed)
    bounds = {bound: math.log(table.label_section[bound]) for bound in ("min", "max")}
    return replace(table, label=np.log(table.label), label_section={**table.label_section, **bounds})


SETS: Mapping[str, Callable[..., Table]] = {
    "bank-marketing": partial(_load, "bank", without=("day", "month", "duration")),
    "credit_card_clients_default": partial(_load, "credit2"),
    "GiveMeSomeCredit": partial(_load, "credit1"),
    "HR_Analytics_Job_Change_of_Data_Scientists": partial(_load, "jobs"),
    "online_shoppers_intention": partial(_load, "shoppers"),
    "Bank_Customer_Churn": partial(_load, "customers"),
    "Amazon_employee_access": partial(_load, "access"),
    "Diabetes130US": partial(_load, "readmissions"),
    "E-CommereShippingData": partial(_load, "shipping"),
    "heloc": partial(_load, "heloc"),
    "in_vehicle_coupon_recommendation": partial(_load, "coupons"),
    "jm1": partial(_load, "defects"),
    "diamonds": partial(_load, "diamonds"),
    "physiochemical_protein": partial(_load, "protein"),
    "houses": _houses,
    "miami_housing": partial(_load, "miami"),
    "Food_Delivery_Time": partial(_load, "deliveries"),
}
"""By TabArena's name, from a folder; and whether with lists of what is hashed."""


def in_buckets(table: Table, epsilon: float) -> Table:
    """The table with its hashed text in as many buckets as an estimator takes at this epsilon."""
    plan = harness.plan_for(table, epsilon, round(SHARE * table.n_records), {})
    found = replace(plan, features=tuple(replace(feature, origin=FOUND) for feature in plan.features))
    buckets = {feature.name: feature.buckets for feature in with_buckets(found).features if feature.is_hashed}
    features, columns = [], []
    for feature, column in zip(table.features, table.columns, strict=True):
        fewer = buckets.get(feature["name"])
        features.append({**feature, "buckets": fewer} if fewer else feature)
        # Both numbers are powers of two, so that this is the bucket among the fewer ones.
        columns.append(np.where(column < 0, column, column % fewer) if fewer else column)
    return replace(table, features=tuple(features), columns=tuple(columns))


def by_xgboost(prepared: Prepared, train: NDArray[np.bool_], _: float, seed: int) -> Floats:
    """What XGBoost predicts of the rows that were not trained on, without privacy: float64 [n]."""
    import xgboost

    table, rows = prepared.table, np.random.default_rng(seed).permutation(np.flatnonzero(train))
    values = with_levels(table, train)
    kind, measure = (xgboost.XGBRegressor, "rmse") if table.is_regression else (xgboost.XGBClassifier, "auc")
    found = []
    for fold in np.array_split(rows, N_FOLDS):
        others = np.setdiff1d(rows, fold)
        model = kind(
            n_estimators=MAX_TREES, max_depth=6, learning_rate=0.1, n_jobs=1, tree_method="hist", random_state=seed,
            early_stopping_rounds=PATIENCE, eval_metric=measure,
        )  # fmt: skip
        model.fit(values[others], table.label[others], eval_set=[(values[fold], table.label[fold])], verbose=False)
        tested = values[~train]
        found.append(model.predict(tested) if table.is_regression else model.predict_proba(tested)[:, 1])
    return np.asarray(np.mean(found, axis=0), dtype=np.float64)


def with_levels(table: Table, train: NDArray[np.bool_]) -> csr_array:
    """The features as TabArena's untuned XGBoost has them: a column for each of a text's 100 commonest levels.

    The rarest levels share one of these columns, and to be missing is a level. All numbers are stored, also zeros, for
    XGBoost takes those that are not as missing.
    """
    are_texts = np.array([feature["type"] == "categorical" for feature in table.features])
    numbers, texts = table.matrix[:, ~are_texts], table.matrix[:, are_texts]
    ends = np.arange(len(numbers) + 1) * numbers.shape[1]
    parts = [csr_array((numbers.ravel(), np.tile(np.arange(numbers.shape[1]), len(numbers)), ends), numbers.shape)]
    if are_texts.any():
        levels = OneHotEncoder(max_categories=N_LEVELS, handle_unknown="infrequent_if_exist").fit(texts[train])
        parts.append(csr_array(levels.transform(texts)))
    return csr_array(hstack(parts, format="csr"))


def measured(table: Table, labels: Floats, found: Floats) -> float:
    """The AUC of two classes; the root of the mean squared error of numbers."""
    return float(np.sqrt(np.mean((labels - found) ** 2))) if table.is_regression else roc_auc(labels, found)


def as_published(table: Table, name: str, method: str) -> float:
    """TabArena's score by the same measure; of two classes it prints 1 - AUC."""
    error, _ = published("tabarena", "tabarena")[name][method]
    return error if table.is_regression else 1 - error


def main(argv: list[str]) -> int:
    """Print scores beside those that are published, and what privacy costs."""
    parser = harness.arguments("tabarena", __doc__, out="the scores of single runs", splits=(3, "splits per cell"))
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS), metavar="SET")
    options = parser.parse_args(argv)
    book = ScoreBook(options.out / "tabarena_scores.csv", ("tabarena.py", "utility.py", "rivals.py"))
    rows, costs = [], []
    seen: dict[bool, list[Floats]] = {False: [], True: []}
    for name in options.sets:
        try:
            table, listed = (SETS[name](options.data, listed=listed) for listed in (False, True))
        except DataError as error:
            print(f"{name} is left out: {error}")
            continue
        private = [(METHODS[DEFAULT], epsilon, Prepared(in_buckets(table, epsilon))) for epsilon in EPSILONS]
        tried = [(by_xgboost, math.inf, Prepared(listed)), *private]
        scores = np.empty((len(tried), options.splits))
        for split in range(options.splits):
            train = harness.stratified_split(table.label, split, SHARE)
            for place, (predict, epsilon, prepared) in enumerate(tried):

                def run(
                    predict: Callable[..., Floats] = predict, epsilon: float = epsilon, own: int = split,
                    train: NDArray[np.bool_] = train, prepared: Prepared = prepared,
                ) -> float:  # fmt: skip
                    found = predict(prepared, train, epsilon, own)
                    return measured(prepared.table, prepared.table.label[~train], found)

                scores[place, split] = book.score((name, epsilon, split), run)
        digits, measure = 4 if scores.max() < 10 else 1, "RMSE" if table.is_regression else "AUC"
        theirs = [f"{as_published(table, name, method):.{digits}f}" for method in PUBLISHED]
        rows.append([name, f"{table.n_records:,}", measure, *theirs, *(mean_and_error(own, digits) for own in scores)])
        # Of an RMSE in percent, of an AUC in hundredths.
        lost = 100 * (scores[1:] / scores[0] - 1 if table.is_regression else scores[0] - scores[1:])
        costs.append([name, COSTS[table.is_regression], *(mean_and_error(own, 2, "+") for own in lost)])
        seen[table.is_regression].append(lost.mean(axis=1))
    labels = [f"default, epsilon {epsilon:g}" for epsilon in EPSILONS]
    head = ["set", "rows", "", *(f"published: {name}" for name in PUBLISHED), "XGBoost here", *labels]
    for is_number, own in seen.items():
        means = (f"{np.mean(each):+.2f} ± {error_of(each):.2f}" for each in np.transpose(own))
        costs += [[f"mean of {len(own)}", COSTS[is_number], *means]] if own else []
    print("\n".join(["", *harness.table(head, rows), "", "What privacy costs beside XGBoost here", ""]))
    print("\n".join([*harness.table(["set", "", *labels], costs), "", f"{options.splits} splits a cell"]))
    return 0
