"""Times to an event on clinical data sets: concordance of the default, of linear models and of models without privacy.

The data are those of the package SurvSet, which is read here and not shipped; `pip install "hedgerow[survival]"` brings
it. Ends of intervals are declared below; bounds and categories are read off all rows, for every method alike, so the
figures compare methods and promise nothing. Columns that are known after the beginning of follow-up only are left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from experiments import harness
from experiments.datasets import Feature, Table
from experiments.harness import Prepared, ScoreBook, error_of, plan_for, rows_of, stratified_split, trained
from hedgerow.app.statistics import draw_curves
from hedgerow.data.columns import Place
from hedgerow.data.raw_cells import RawColumn
from hedgerow.local.survey import ask_curves, survey_sites
from hedgerow.losses.censored import concordance, integrated_brier_score
from hedgerow.losses.survival import hazards, survival_codes
from hedgerow.privacy.calibration import calibrate_noise_multiplier
from hedgerow.privacy.noise import SeededNoise
from hedgerow.survey.curves import SurvivalCurves
from hedgerow.survey.queries import RawSite

Floats = NDArray[np.float64]
SETS = {
    name: (tuple(own["intervals"]), tuple(own.get("left_out", ())))
    for name, own in harness.settings_of("survival").items()
}
"""By name the ends of the intervals, in units of its times, and the columns that are left out."""
EPSILONS = (0.1, 0.5, 1.0, 3.0)
GATE = 1.0
LINEAR = ("AdaSSP", "noisy descent")
BASELINE_SHARE = 0.05
"""Share of mu**2 with which the linear methods buy the hazards of the intervals."""
N_STEPS, STEP, CLIP = 40, 0.1, 1.0
"""Of the noisy descent: steps, of which length, and the largest norm of one record's gradient."""


@dataclass(frozen=True, eq=False)
class Cohort:
    """A data set.

    Attributes:
        prepared: its table, of which the label is the code of a time.
        times, events: as they were recorded.
        ends: of the intervals.
        matrix: float64 [n, d], numbers within [-1, 1] with 0 where one is missing, and an indicator for each category.
    """

    prepared: Prepared
    times: Floats
    events: NDArray[np.bool_]
    ends: tuple[float, ...]
    matrix: Floats


Predicted = tuple[Floats, Floats]
"""Risks [n], and the chances to be without the event at the ends [n, K]."""
Method = Callable[[Cohort, NDArray[np.bool_], int], Predicted]
"""Fits the rows of the training part with this seed, and predicts the others."""


def main(argv: list[str]) -> int:
    """Print a table of concordances, one of integrated Brier scores, and whether the gate is met."""
    parser = harness.arguments("survival", __doc__, out="single scores", splits=(5, "random 70/30 splits per cell"))
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS), help="data sets")
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS), help="promises")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    book = ScoreBook(options.out / "survival.csv", ("survival.py",))
    private = {"default": _default, "AdaSSP": _adassp, "noisy descent": _descent}
    methods: dict[tuple[str, float], Method] = {
        (name, epsilon): functools.partial(fit, epsilon=epsilon)
        for epsilon in options.epsilons for name, fit in private.items()
    }  # fmt: skip
    methods |= {("Cox", math.inf): _cox, ("XGBoost", math.inf): _xgboost}
    found: dict[str, dict[tuple[str, float], Floats]] = {}
    for name in options.sets:
        cohort = load(name)
        table = cohort.prepared.table
        print(f"\n{name}: {table.n_records:,} rows, {len(table.features)} features, {cohort.events.mean():.0%} events, "
              f"{len(cohort.ends)} intervals", flush=True)  # fmt: skip
        found[name] = {}
        for (method, epsilon), fit in methods.items():
            scores = _over_splits(cohort, fit, (method, epsilon), range(options.splits), book)
            found[name][method, epsilon] = scores
            c, brier = (f"{own.mean():.4f} ±{error_of(own):.4f}" for own in scores.T)
            print(f"  {method:14} {epsilon:>4g}  concordance {c}  integrated Brier {brier}", flush=True)
    if GATE not in options.epsilons:
        return 0
    print(f"\nConcordance at epsilon {GATE:g}, at least half-way from the better linear method to XGBoost")
    n_passed = sum([_passes(name, own) for name, own in found.items()])
    return harness.verdict({f"{n_passed} of {len(found)} sets, wanted 3": n_passed >= 3})


def _passes(name: str, own: dict[tuple[str, float], Floats]) -> bool:
    """Whether the default is at least half-way from the better linear method to XGBoost without privacy."""
    means = {key: float(scores[:, 0].mean()) for key, scores in own.items()}
    linear, plain = max(means[method, GATE] for method in LINEAR), means["XGBoost", math.inf]
    default, wanted = means["default", GATE], (linear + plain) / 2
    print(f"  {name:12} default {default:.4f}, wanted {wanted:.4f}, from {linear:.4f} to {plain:.4f}")
    return default >= wanted


def _over_splits(cohort: Cohort, fit: Method, key: tuple[str, float], seeds: range, book: ScoreBook) -> Floats:
    """Concordance and integrated Brier score of each split: float64 [splits, 2]."""

    @functools.cache
    def both(seed: int) -> tuple[float, float]:
        train = stratified_split(cohort.prepared.table.label, seed)
        risks, survival = fit(cohort, train, seed)
        times, events = cohort.times[~train], cohort.events[~train]
        brier = integrated_brier_score(times, events, survival, np.array(cohort.ends))
        return concordance(times, events, risks), brier

    def score(seed: int, which: int) -> float:
        return book.score((cohort.prepared.table.name, *key, seed, which), lambda: both(seed)[which])

    return np.array([[score(seed, which) for which in (0, 1)] for seed in seeds])


def main_survival_curves(argv: list[str]) -> int:
    """Print how far private Kaplan-Meier curves lie from exact ones, and how often their bands hold them."""
    parser = harness.arguments("survival_curves", main_survival_curves.__doc__, runs=(100, "seeds per epsilon"))
    parser.add_argument("--picture", type=Path, help="an SVG file for curves at epsilon 1")
    options = parser.parse_args(argv)
    ends, _ = SETS["flchain"]
    frame = _frame("flchain")
    columns = [frame["time"].astype(float), frame["event"].astype(int), frame["fac_sex"]]
    cells = [RawColumn([pa.array(own.astype(str))], Place("table", str(own.name))) for own in columns]
    sites = {"one": RawSite(cells, n_all=len(frame))}
    part = (
        f'[label]\nname = "days"\ntype = "survival"\nevent = "died"\nintervals = {list(ends)}\n'
        '[[features]]\nname = "sex"\ntype = "categorical"\ncategories = ["F", "M"]\n'
    )

    def made(epsilon: float, seed: int) -> SurvivalCurves:
        asked = ask_curves(part, "sex", {"epsilon": epsilon, "delta": 1e-6})
        found = survey_sites(asked.questions, sites, SeededNoise(seed, exact=False)).findings
        assert isinstance(found, SurvivalCurves)
        return found

    exact = np.array([[own.value for own in curve.survival] for curve in made(math.inf, 0).curves])
    print(f"{len(frame):,} records of flchain by sex, {len(ends)} ends, {options.runs} runs")
    print("epsilon  mean distance  largest of a run, median  half a band, mean  shown")
    for epsilon in EPSILONS:
        mean, largest, half, shown = [], [], [], 0
        for seed in range(options.runs):
            for curve, truth in zip(made(epsilon, seed).curves, exact, strict=True):
                own = np.array([each.value for each in curve.survival])
                distance = np.abs(own - truth[: len(own)])
                mean.append(distance.mean())
                largest.append(distance.max())
                half.append((np.array(curve.high) - np.array(curve.low)).mean() / 2)
                shown += len(own)
        share = shown / (options.runs * exact.size)
        print(f"{epsilon:>7g}  {np.mean(mean):13.4f}  {np.median(largest):24.4f}  {np.mean(half):17.4f}  {share:5.0%}")
    if options.picture is not None:
        options.picture.write_text(draw_curves(made(1.0, 1), is_file=True), encoding="utf-8")
    return 0


# Data ----------------------------------------------------------------------------------------------------------------


def load(name: str) -> Cohort:
    """A data set by its name in `SETS`."""
    ends, left_out = SETS[name]
    frame = _frame(name)
    names = [own for own in frame.columns if own.startswith(("num_", "fac_")) and own not in left_out]
    features, columns, parts = zip(*(_column(own, frame[own]) for own in names), strict=True)
    times = frame["time"].to_numpy(dtype=np.float64)
    events = frame["event"].to_numpy(dtype=np.float64) == 1
    label = {"name": "time", "type": "survival", "event": "event", "intervals": list(ends)}
    codes = np.asarray(survival_codes(times, events, ends), dtype=np.int64)
    prepared = Prepared(Table(name, features, columns, codes, label))
    return Cohort(prepared, times, events, ends, np.concatenate(parts, axis=1))


def _frame(name: str) -> Any:
    from SurvSet.data import SurvLoader

    return SurvLoader().load_dataset(name)["df"]


def _column(name: str, cells: Any) -> tuple[Feature, NDArray[Any], Floats]:
    """A column as a feature, as a node's table has it, and as numbers for linear models."""
    if name.startswith("num_"):
        values = cells.to_numpy(dtype=np.float64)
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        scaled = np.nan_to_num((values - low) / (high - low) * 2 - 1)
        return {"name": name, "type": "numeric", "min": low, "max": high}, values.astype(np.float32), scaled[:, None]
    texts = cells.astype("string")
    categories = sorted(texts.dropna().unique().tolist())
    places = pd.Categorical(texts, categories=categories).codes.astype(np.int16)
    codes = np.where(places < 0, np.int16(-2), places)
    feature = {"name": name, "type": "categorical", "categories": categories}
    return feature, codes, (codes[:, None] == np.arange(len(categories))).astype(np.float64)


# Methods -------------------------------------------------------------------------------------------------------------


def _default(cohort: Cohort, train: NDArray[np.bool_], seed: int, epsilon: float) -> Predicted:
    table = cohort.prepared.table
    plan = plan_for(table, epsilon, int(train.sum()), {"structure_seed": seed})
    ensemble = trained(cohort.prepared, plan, train, seed).ensemble
    codes = rows_of(cohort.prepared, plan, ~train).codes
    return np.asarray(ensemble.scores(codes)[0], dtype=np.float64), ensemble.survival(codes)


@dataclass(frozen=True, eq=False)
class _Hazards:
    """Codes and rows of a training part, and the log-odds of the intervals that were bought for the linear methods.

    Attributes:
        rows: float64 [n, d + 1], the last column 1.
        codes: int64 [n].
        baseline: in steps of 1/256.
        share: of the records, with an event; by the same counts, and at least 0.05.
        mu: what is left.
        draw: of the noise.
    """

    rows: Floats
    codes: NDArray[np.int64]
    baseline: tuple[int, ...]
    share: float
    mu: float
    draw: np.random.Generator

    def excess(self, scores: Floats) -> Floats:
        """Hazards of the intervals at risk in, less the event: the derivative of each record's loss, [n]."""
        at_risk = (self.codes + 1) // 2
        sums = np.cumsum(hazards(scores, self.baseline), axis=1)
        return np.concatenate([np.zeros((len(sums), 1)), sums], axis=1)[np.arange(len(sums)), at_risk] - self.codes % 2


def _bought(cohort: Cohort, train: NDArray[np.bool_], seed: int, epsilon: float) -> _Hazards:
    mu = 1 / calibrate_noise_multiplier(epsilon, 1 / int(train.sum()), 1.0, "gdp")
    draw = np.random.default_rng([seed, round(1000 * epsilon)])
    codes = cohort.prepared.table.label[train]
    n_codes = 2 * len(cohort.ends) + 1
    counts = np.bincount(codes, minlength=n_codes) + draw.normal(0, 1 / (mu * math.sqrt(BASELINE_SHARE)), n_codes)
    events = counts[1::2]
    at_risk = np.array([counts[2 * place + 1 :].sum() for place in range(len(events))])
    chance = np.clip(events / np.maximum(at_risk, 1), 1e-3, 0.9)
    baseline = tuple(np.rint(256 * np.log(chance / (1 - chance))).astype(int).tolist())
    rows = np.concatenate([cohort.matrix[train], np.ones((len(codes), 1))], axis=1)
    share = max(float(events.sum()) / len(codes), 0.05)
    return _Hazards(rows, codes, baseline, share, mu * math.sqrt(1 - BASELINE_SHARE), draw)


def _linear(cohort: Cohort, train: NDArray[np.bool_], weights: Floats, bought: _Hazards) -> Predicted:
    rows = cohort.matrix[~train]
    scores: Floats = np.clip(rows @ weights[:-1] + weights[-1], -8, 8)
    return scores, np.asarray(np.cumprod(1 - hazards(scores, bought.baseline), axis=1), dtype=np.float64)


def _adassp(cohort: Cohort, train: NDArray[np.bool_], seed: int, epsilon: float) -> Predicted:
    """One Newton step from no features at all: least squares on how far each record is from the intervals' hazards.

    Source: Wang, UAI 2018, algorithm 2, with Gaussian noise by mu, a third of mu**2 for each of its three releases.
    """
    bought = _bought(cohort, train, seed, epsilon)
    n_features, size = len(cohort.prepared.table.features), bought.rows.shape[1]
    # Every feature has one number within [-1, 1], or one indicator.
    rows = bought.rows / math.sqrt(n_features + 1)
    target = np.clip(-bought.excess(np.zeros(len(rows))), -1, 1)
    sigma = math.sqrt(3) / bought.mu
    noise = np.triu(bought.draw.normal(0, sigma, (size, size)))
    gram = rows.T @ rows + noise + np.triu(noise, 1).T
    cross = rows.T @ target + bought.draw.normal(0, sigma, size)
    least = float(np.linalg.eigvalsh(rows.T @ rows)[0]) + bought.draw.normal(0, sigma)
    least = max(least - sigma * 1.96, 0.0)
    ridge = max(0.0, math.sqrt(size * math.log(2 * size**2 / 0.05)) * sigma - least)
    solved = np.asarray(np.linalg.solve(gram + ridge * np.eye(size), cross), dtype=np.float64)
    # The curvature of the loss: hazards add up to about the share of events.
    return _linear(cohort, train, solved / (math.sqrt(n_features + 1) * bought.share), bought)


def _descent(cohort: Cohort, train: NDArray[np.bool_], seed: int, epsilon: float) -> Predicted:
    """Gradient descent on the likelihood of the intervals, a Cox model in discrete time; Adam on noisy gradients.

    Source: Abadi et al., CCS 2016, without samples; Kingma and Ba 2015 on what is released.
    """
    bought = _bought(cohort, train, seed, epsilon)
    size = bought.rows.shape[1]
    weights, mean, square, average = np.zeros((4, size))
    lengths = np.linalg.norm(bought.rows, axis=1)
    sigma = CLIP * math.sqrt(N_STEPS) / bought.mu
    for step in range(1, N_STEPS + 1):
        slopes = bought.excess(np.clip(bought.rows @ weights, -8, 8))
        slopes *= np.minimum(1, CLIP / np.maximum(np.abs(slopes) * lengths, 1e-12))
        gradient = (bought.rows.T @ slopes + bought.draw.normal(0, sigma, size)) / len(slopes)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        weights = weights - STEP * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-8)
        average += weights / N_STEPS * 2 if step > N_STEPS // 2 else 0.0
    return _linear(cohort, train, np.asarray(average, dtype=np.float64), bought)


def _cox(cohort: Cohort, train: NDArray[np.bool_], seed: int) -> Predicted:
    """Cox's model without privacy, with a ridge that only makes it solvable."""
    from sksurv.linear_model import CoxPHSurvivalAnalysis
    from sksurv.util import Surv

    fitted = CoxPHSurvivalAnalysis(alpha=1.0, ties="breslow")
    fitted.fit(cohort.matrix[train], Surv.from_arrays(cohort.events[train], cohort.times[train]))
    risks = fitted.predict(cohort.matrix[~train])
    return risks, _curves(cohort, train, fitted.predict(cohort.matrix[train]), risks)


def _xgboost(cohort: Cohort, train: NDArray[np.bool_], seed: int) -> Predicted:
    """XGBoost's Cox objective without privacy: depth 3, rate 0.05, trees by 5-fold cross-validation."""
    import xgboost

    label = np.where(cohort.events, 1, -1) * np.maximum(cohort.times, 1e-6)
    parameters = {"objective": "survival:cox", "max_depth": 3, "eta": 0.05, "subsample": 0.8, "seed": seed}
    rows = xgboost.DMatrix(cohort.matrix[train], label[train])
    losses: Any = xgboost.cv(parameters, rows, 600, nfold=5, early_stopping_rounds=20, seed=seed, as_pandas=False)
    rounds = len(losses["test-cox-nloglik-mean"])
    booster = xgboost.train(parameters, rows, rounds)
    every = booster.predict(xgboost.DMatrix(cohort.matrix), output_margin=True).astype(np.float64)
    return every[~train], _curves(cohort, train, every[train], every[~train])


def _curves(cohort: Cohort, train: NDArray[np.bool_], fitted: Floats, risks: Floats) -> Floats:
    """Chances at the ends for proportional hazards, from Breslow's estimate of the baseline."""
    times, events, weights = cohort.times[train], cohort.events[train], np.exp(fitted)
    order = np.argsort(times)
    ordered = times[order]
    exposed = np.cumsum(weights[order][::-1])[::-1][np.searchsorted(ordered, ordered, side="left")]
    steps = np.cumsum(events[order] / exposed)
    found = np.append(0.0, steps)[np.searchsorted(ordered, cohort.ends, side="right")]
    return np.asarray(np.exp(-found[None, :] * np.exp(risks)[:, None]))
