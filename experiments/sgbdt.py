"""S-GBDT on Abalone and Adult beside its paper's figures: R2 and error against epsilon, ablations, a stream.

As in the paper: 5 folds, the best of a searched grid by test score. That choice is not private; the report says what it
would cost. The paper's numbers are from arXiv 2309.12041v1, section VIII. Its theorem 18, as printed, turns a Renyi
divergence rho into exp(rho - alpha epsilon) = delta, which is not a bound (it is exp((alpha - 1)(rho - epsilon))), and
it names no delta; so the same epsilon stands for less noise there than here, and the report shows how much less.

What is searched stands in `settings/s_gbdt.toml`, what its paper reports in `published/others.csv`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import r2_score

from experiments import harness
from experiments.central import Central, DPBoost, train_dpboost
from experiments.datasets import Table, load
from experiments.harness import Prepared, ScoreBook, algorithm_plan, progress, rows_of, table
from hedgerow.client.node import Node, SeededSampling
from hedgerow.data.binned import SiteData
from hedgerow.errors import PrivacyError
from hedgerow.local.training import ArrivingNode
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.s_gbdt import SGbdt
from hedgerow.methods.s_gbdt.settings import list_start_rounds, resolve_s_gbdt
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import ORDERS, compute_sampled_divergence, epsilon_of_curve, paper_divergence
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.server.release import UNCOUNTED, PlainAggregation, Releaser, run_program
from hedgerow.trees.ensemble import Ensemble
from hedgerow.trees.leaf_sums import LeafSums

Scores = NDArray[np.float64]
N_FOLDS = 5
EPSILONS = {"abalone": (0.17, 0.54, 2.0, 10.0), "adult": (0.15, 0.54, 2.0)}
ABLATED = 0.54
"""The epsilon of ablations and streams."""
DPBOOST_EPSILONS = {"abalone": (0.1, 0.54, 2.0, 10.0), "adult": (0.12,)}
DPBOOST_WAYS = {
    "abalone": ((True, True), (False, True), (True, False), (False, False)),
    "adult": ((True, True), (False, True)),
}
"""Gradient filtering, and geometric leaf clipping."""
DPBOOST_SIZES = tuple(product(((1, 1.0), (5, 0.3), (20, 0.1), (50, 0.1)), ((2, 5.0), (4, 5.0), (4, 100.0)), (0.1, 0.5)))
"""Trees with their learning rate; depth with lambda; the initial score's share of epsilon. Geometric leaf clipping
lowers the noise only where 2 (1 - eta)^t is below 1 / (1 + lambda): in the later of 50 trees."""
N_SEARCHES = {"abalone": 3, "adult": 1}
"""Runs of each setting on each fold that the search looks at."""
FIRST_SEARCH = 10_000
"""Seeds of a search; the chosen setting is run again with others."""
N_DIVISIONS, FIRST_OTHER = 10, 100
"""Of `--starts`: how many other divisions; the number of the first, and the first seed."""


@dataclass(frozen=True)
class Variant:
    """One setting of S-GBDT by its name in tables, with fields of [model] and [s_gbdt].

    `is_static` is static leaf noise in place of dynamic; it needs exact quotients, so it exists centrally only.
    """

    name: str
    model: Mapping[str, Any]
    section: Mapping[str, Any]
    is_static: bool = False

    def with_section(self, name: str, **section: Any) -> Variant:
        """The same with other fields of [s_gbdt]."""
        return replace(self, name=name, section={**self.section, **section})

    def with_model(self, **model: Any) -> Variant:
        """The same with other fields of [model]."""
        return replace(self, model={**self.model, **model})


def _of_role(name: str, role: str) -> tuple[Variant, ...]:
    return tuple(GRID[name][place] for place, entry in enumerate(_SETTINGS[name]) if entry.get("role") == role)


_SETTINGS = harness.settings_of("s_gbdt")
GRID: dict[str, tuple[Variant, ...]] = {
    name: tuple(Variant(entry["name"], entry["model"], entry["section"]) for entry in entries)
    for name, entries in _SETTINGS.items()
}
FILTERED = {name: _of_role(name, "filtered")[0] for name in GRID}
DEEP = _of_role("abalone", "deep")
(MAX_RIDGE,) = _of_role("abalone", "largest-ridge")
STREAMED = {
    "abalone": (FILTERED["abalone"], *(v.with_model(n_trees=int(v.model["n_trees"]) // 2) for v in DEEP)),
    "adult": (FILTERED["adult"],),
}
"""Settings of a stream, with the number of rounds before the later rows come; there are as many after."""


@dataclass
class Bench:
    """A data set divided into folds by the division of this number; each setting has `repeats` runs on each fold."""

    prepared: Prepared
    repeats: int = 1
    n_runs: int = 0
    division: int = 7
    book: ScoreBook = field(default_factory=ScoreBook)
    folds: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        order = np.random.default_rng(self.division).permutation(self.prepared.table.n_records)
        self.folds = np.argsort(order) % N_FOLDS

    @property
    def name(self) -> str:
        return self.prepared.table.name

    def score(
        self, variant: Variant, epsilon: float, fold: int, seed: int, late: NDArray[np.bool_] | None = None
    ) -> float:
        """Test R2 of a regression, or test error in per cent, of one seeded run.

        Rows that are `late`, bool [n], come after the regular rounds, under one filter and one ledger.
        """
        train, key = self.folds != fold, tuple[object, ...]((fold, seed, variant.is_static))
        plan, parts = plan_of(self.prepared.table, variant, epsilon, int(train.sum()), seed), {0: train}
        if late is not None:
            settings = resolve_s_gbdt(plan)
            terms, n_starting = settings.s_gbdt, sum(own.count for own in list_start_rounds(plan, settings.s_gbdt))
            # Without a filter all rounds are regular ones; the rows come after the same number of them.
            n_before = terms.n_regular_rounds // (1 if variant.section["individual_filter"] else 2)
            first = n_before + n_starting
            parts = {0: train & ~late, first: train & late}
            key = (fold, seed, first, hashlib.sha256(late.tobytes()).hexdigest())

        def run() -> float:
            data = {when: rows_of(self.prepared, plan, chosen) for when, chosen in parts.items()}
            ensemble, test = _run(plan, data, seed, variant.is_static), rows_of(self.prepared, plan, ~train)
            labels = test.labels / (SCORE_UNIT if self.prepared.table.is_regression else 1)
            return self.quality(labels, ensemble.scores(test.codes)[0])

        return self.noted((plan.digest, *key), run)

    def quality(self, labels: NDArray[Any], scores: Scores) -> float:
        """R2 of a regression, error in per cent of two classes."""
        if self.prepared.table.is_regression:
            return float(r2_score(labels, np.clip(scores, -1, 1)))
        return float(100 * np.mean((scores > 0) != (labels == 1)))

    def noted(self, key: tuple[object, ...], run: Callable[[], float]) -> float:
        """The score of a run on this division, from the book if it is there."""
        self.n_runs += 1
        return self.book.score((self.name, self.division, *key), run)


def repeated(bench: Bench, variant: Variant, epsilon: float, repeats: int = 0, first: int = 1, **run: Any) -> Scores:
    """Scores of so many runs on each fold, each with noise and samples of its own: float64 [repeats * N_FOLDS].

    Args:
        repeats: 0 for the bench's own number.
        first: the first seed; seeds from 1 on are the reports', those of a search lie far above.
        run: see `Bench.score`.
    """
    steps = progress((repeats or bench.repeats) * N_FOLDS, variant.name)
    return np.array([bench.score(variant, epsilon, i % N_FOLDS, first + i, **run) for i in steps])


def plan_of(table: Table, variant: Variant, epsilon: float, n_train: int, seed: int) -> Plan:
    """A variant as a plan; delta = 1 / n_train, as in the other experiments (the paper names none)."""
    # The paper has no last release.
    own = {**variant.section, "model": {"structure_seed": seed, "calibration": "none", **variant.model}}
    return algorithm_plan(table, epsilon, n_train, "s-gbdt", own)


def _run(plan: Plan, data: Mapping[int, SiteData], seed: int, is_static: bool) -> Ensemble:
    """Train on rows by the exchange that they come in, the first of them 0."""
    settings, noise = resolve(plan), SeededNoise(seed, exact=False)
    sampling = SeededSampling(seed, np.arange(sum(rows.n_records for rows in data.values())))
    arrivals = {when: {"one": rows} for when, rows in data.items() if when}
    node = ArrivingNode(Node("one", data[0], plan, settings, 1, sampling), arrivals)
    program = program_for(plan, settings)
    if is_static:
        return harness.carried_out(program, _static_noise(plan, node, noise, np.random.default_rng(seed)))
    return run_program(plan, program, PlainAggregation([node]), noise, UNCOUNTED).ensemble


def _static_noise(
    plan: Plan, node: ArrivingNode, noise: SeededNoise, random: np.random.Generator
) -> Callable[[Query], IntVector]:
    """Leaf values with noise of one size for all leaves, as before dynamic scaling (arXiv 2309.12041, section VIII-D).

    A leaf's value is sum / (support + lambda), which one record moves by at most g* / (1 + lambda) (Li et al. 2020,
    lemma 2). The noise is the same multiple of that sensitivity as dynamic scaling has of its own. The release is
    written as the pair of sums whose quotient is the noisy value: no records add up to it, and it promises nothing.
    """
    releaser, scales, ridge = Releaser(noise, UNCOUNTED), resolve(plan).loss(plan).scales, plan.model.leaf_ridge

    def release(query: Query) -> IntVector:
        exact = node.answer(query)
        if not isinstance(query, LeafSums):
            return releaser.release(query, exact)
        sums, supports = (exact.reshape(-1, 2) / scales).T
        spread = query.noise_multiplier * SGbdt.of(plan).gradient_clip / (1 + ridge)
        values = sums / np.maximum(supports + ridge, 1e-9) + random.normal(0, spread, len(sums))
        # Twice lambda, so that the quotient is this value whatever the rule does below lambda.
        support = max(2 * ridge, 2.0)
        pairs = np.stack([values * support, np.full(len(values), support)], axis=1)
        return np.asarray(np.rint(pairs * scales), dtype=np.int64).reshape(-1)

    return release


def tuned_epsilon(divergence: Callable[[int], float], orders: Sequence[int], delta: float, n_tried: float) -> float:
    """The epsilon of choosing the best of a random number of runs, `n_tried` on average, when the score is private too.

    Source: Papernot and Steinke 2022 (arXiv 2110.03620), theorem 2, with eta = 0: the number of runs is logarithmic.
    """
    low, high = 1e-12, 1.0 - 1e-12
    for _ in range(200):
        gamma = math.sqrt(low * high)
        mean = (1 / gamma - 1) / math.log(1 / gamma)
        low, high = (gamma, high) if mean > n_tried else (low, gamma)
    curve = [(order, divergence(order)) for order in orders]
    extra = min((1 - 1 / order) * value + math.log(1 / gamma) / order for order, value in curve)
    return min(
        value + extra + math.log(n_tried) / (order - 1)
        + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        for order, value in curve
    )  # fmt: skip


def printed_multiplier(epsilon: float, delta: float, rate: float, n_rounds: int) -> float:
    """The noise that the paper's algorithm 7 gives as printed: exp(rho - alpha epsilon) = delta, orders to 2000."""
    orders = [order for order in ORDERS if order <= 2000]
    low, high = 1e-3, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        spent = min((n_rounds * paper_divergence(order, rate, middle) - math.log(delta)) / order for order in orders)
        low, high = (low, middle) if spent <= epsilon else (middle, high)
    return high


# The report -----------------------------------------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    """Search, repeat, ablate, report; the exit code is 1 when a figure of the paper is not reached by either method."""
    parser = harness.arguments("sgbdt", __doc__, out="report and picture")
    parser.add_argument("--repeats", type=int, nargs="+", default=[4, 2], help="runs of the best on each fold, by set")
    parser.add_argument("--sets", nargs="+", default=list(EPSILONS), choices=list(EPSILONS))
    parser.add_argument("--starts", action="store_true", help="only the linear starts, on other divisions as well")
    parser.add_argument("--filter", nargs="*", type=float, help="only the filter on Abalone, at these epsilons")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    book = ScoreBook(options.out / "sgbdt_scores.csv", ("sgbdt.py", "central.py"))
    if options.filter is not None:
        abalone = Prepared(load("abalone", options.data))
        print("\n".join(compare_filter(abalone, book, options.filter or (0.54, 0.17))))
        return 0
    sets = [Prepared(load(name, options.data)) for name in options.sets]
    if options.starts:
        print("\n".join(other_divisions(sets, book)))
        return 0
    benches = [Bench(one, repeats, book=book) for one, repeats in zip(sets, cycle(options.repeats), strict=False)]
    lines, curves, reached = ["# S-GBDT: 5 folds, mean ± standard deviation, delta = 1 / n_train", ""], {}, True
    for bench in benches:
        best, scores = search(bench)
        means = {key: float(found.mean()) for key, found in scores.items()}
        (verdicts, is_good), curves[bench.name] = _verdicts(bench.name, means), means
        reached &= is_good
        parts = (
            _searched(bench.name, scores), verdicts, _tuning(bench, best), ablations(bench, best["s-gbdt", ABLATED]),
            linear_starts(bench, best), baseline(bench), streams(bench),
        )  # fmt: skip
        lines += [f"## {bench.name}: {_metric(bench.name)}", "", *(line for part in parts for line in (*part, ""))]
        lines += [f"{bench.n_runs} trainings on {bench.name}.", ""]
    report = "\n".join(lines)
    print(report)
    (options.out / "sgbdt.txt").write_text(report, encoding="utf-8")
    _draw(curves, options.out / "sgbdt.png")
    return 0 if reached else 1


METHODS = {"s-gbdt": "s-gbdt", "s-gbdt+": "s-gbdt+ (ours)"}
Key = tuple[str, float]
"""A method and an epsilon."""


def search(bench: Bench) -> tuple[dict[Key, Variant], dict[Key, Scores]]:
    """The best setting of each method and epsilon by its mean over the folds, and its scores with other seeds."""
    best, scores = {}, {}
    for epsilon, method in product(EPSILONS[bench.name], METHODS):
        grid = [variant for variant in GRID[bench.name] if variant.name == method]
        best[method, epsilon] = grid[_best(grid, bench, epsilon)]
        scores[method, epsilon] = repeated(bench, best[method, epsilon], epsilon)
    return best, scores


def _searched(name: str, scores: Mapping[Key, Scores]) -> list[str]:
    rows = (
        [f"{epsilon:g}", str(published("s-gbdt", name).get(epsilon, "")), *(_cell(scores[m, epsilon]) for m in METHODS)]
        for epsilon in EPSILONS[name]
    )
    return table(["epsilon", "paper", *METHODS.values()], rows)


def published(what: str, name: str) -> dict[float, float]:
    """R2 on Abalone, at least; error in per cent on Adult, at most; by epsilon."""
    return {float(epsilon): value for epsilon, (value, _) in harness.published(what)[name].items()}


def _metric(name: str) -> str:
    return "R2" if name == "abalone" else "error in %"


def _cell(scores: Scores) -> str:
    return f"{scores.mean():.3f} ± {scores.std():.3f}"


def sign_of(name: str) -> float:
    """Larger is better after this sign."""
    return -1.0 if name == "adult" else 1.0


def _chosen(name: str, scores: Iterable[Scores]) -> int:
    """The place of the best mean."""
    return int(np.argmax([sign_of(name) * found.mean() for found in scores]))


def _best(grid: Sequence[Variant], bench: Bench, epsilon: float, **run: Any) -> int:
    """The place of the best of some settings by the search's seeds; `run`: see `Bench.score`."""
    runs = N_SEARCHES[bench.name], FIRST_SEARCH
    return _chosen(bench.name, [repeated(bench, variant, epsilon, *runs, **run) for variant in grid])


def _verdicts(name: str, means: Mapping[Key, float]) -> tuple[list[str], bool]:
    """For each method and epsilon whether it reaches the paper; whether at each epsilon one of them does."""
    lines, is_good = [], True
    for epsilon, wanted in published("s-gbdt", name).items():
        holds = {method: sign_of(name) * (means[method, epsilon] - wanted) >= 0 for method in METHODS}
        is_good &= any(holds.values())
        lines += [
            f"- epsilon {epsilon:g}, {method}: {means[method, epsilon]:.3f} against {wanted:g}: "
            f"{'' if is_reached else 'not '}reached"
            for method, is_reached in holds.items()
        ]
    return lines, is_good


def _tuning(bench: Bench, best: Mapping[Key, Variant]) -> list[str]:
    """What the search would cost if its scores were private too, and what the paper's printed conversion hides."""
    n_grid = sum(variant.name == "s-gbdt" for variant in GRID[bench.name])
    n_train, lines = int((bench.folds != 0).sum()), []
    for epsilon in published("s-gbdt", bench.name):
        settings = resolve_s_gbdt(plan_of(bench.prepared.table, best["s-gbdt", epsilon], epsilon, n_train, 0))
        terms, z = settings.s_gbdt, settings.noise_multiplier
        rate, rounds, delta = terms.sampling_rate, terms.n_regular_rounds, 1 / n_train
        start = 1 / (2 * terms.initial_noise_multiplier**2) if terms.initial_noise_multiplier else 0.0
        cost = {order: rounds * compute_sampled_divergence(order, rate, z) + order * start for order in ORDERS}
        tuned = tuned_epsilon(cost.__getitem__, ORDERS, delta, n_grid)
        printed = printed_multiplier(epsilon, delta, rate, rounds)
        true = epsilon_of_curve(ORDERS, [rounds * compute_sampled_divergence(a, rate, printed) for a in ORDERS], delta)[
            0
        ]
        lines.append(
            f"- epsilon {epsilon:g}: the best of {n_grid} settings, chosen privately by private scores, would cost "
            f"epsilon {tuned:.2f}. The paper's conversion as printed would let the noise multiplier be {printed:.2f} "
            f"in place of {z:.2f}; that noise keeps epsilon {true:.2f}."
        )
    return lines


def other_divisions(sets: Iterable[Prepared], book: ScoreBook) -> list[str]:
    """What `--starts` prints: linear starts of the grid on the usual folds and on others, each run with its own noise.

    Settings and the start's own shares were found on the usual folds.
    """
    lines = ["# S-GBDT's linear start: mean ± standard deviation of 50 runs, each with noise of its own", ""]
    for prepared in sets:
        name, rows = prepared.table.name, []
        settings = [variant for variant in GRID[name] if variant.section.get("initial_score") == "linear"]
        for variant, epsilon in product(settings, published("s-gbdt", name)):
            usual = repeated(Bench(prepared, book=book), variant, epsilon, N_DIVISIONS, FIRST_OTHER)
            others = _on(prepared, book, (FIRST_OTHER, N_DIVISIONS), FIRST_OTHER, variant, epsilon)
            label = f"{variant.model['n_trees']} trees, share {variant.section['initial_score_share']:g}"
            rows.append([label, f"{epsilon:g}", _cell(usual), _cell(others)])
        head = ("linear start", "epsilon", "usual folds", f"{N_DIVISIONS} other divisions")
        lines += [f"## {name}", "", *table(head, rows), ""]
    return lines


def _draw(curves: Mapping[str, Mapping[Key, float]], path: Path) -> None:
    with harness.picture(path, 1, len(curves), (5.5 * len(curves), 4), dpi=120) as (figure, axes):
        for axis, (name, means) in zip(axes[0], curves.items(), strict=True):
            for method in METHODS:
                axis.plot(EPSILONS[name], [means[method, e] for e in EPSILONS[name]], marker="o", label=method)
            paper = published("s-gbdt", name)
            axis.scatter(list(paper), list(paper.values()), marker="x", color="black", label="paper")
            axis.set(xscale="log", xlabel="epsilon", ylabel=_metric(name), title=name)
            axis.legend()
        figure.tight_layout()


# What parts do, each left out: section VIII of arXiv 2309.12041v1 ----------------------------------------------------


def ablations(bench: Bench, base: Variant) -> list[str]:
    """Each part of the method left out: of the best setting, and for the filter of one made for it."""
    unfiltered = {"individual_filter": False, "extra_rounds": 0}
    plain = base.with_section("no filter, no extra rounds", **unfiltered)
    # Static leaf noise asks for other sizes.
    grid = [v.with_section("static leaf noise, its best setting", **unfiltered) for v in GRID[bench.name]
            if v.name == "s-gbdt"]  # fmt: skip
    static = [replace(variant, is_static=True) for variant in grid]
    # lambda counts records of a sample, so it grows with the sample.
    rate = base.section["subsampling_ratio"]
    other_rate, words = (1.0, "no subsampling") if rate < 1 else (0.1, "samples of 0.1")
    ridge = base.model["leaf_ridge"] * other_rate / rate
    resampled = plain.with_section(f"the same, {words}", subsampling_ratio=other_rate).with_model(leaf_ridge=ridge)
    sampled = plain if rate < 1 else resampled
    has_start = base.section.get("initial_score_share", 0.1)
    start = "the same, no initial score" if has_start else "the same, with an initial score"
    kept, n_extra = FILTERED[bench.name], FILTERED[bench.name].section["extra_rounds"]
    n_trees = int(kept.model["n_trees"])
    as_many = f"the same clip, {n_trees + n_extra} rounds without a filter"
    variants = (
        plain,
        replace(plain, name="the same, static leaf noise", is_static=True),
        static[_best(static, bench, ABLATED)],
        resampled,
        plain.with_section(start, initial_score_share=0.0 if has_start else 0.1),
        sampled.with_section(f"{sampled.name}, general amplification bound", bound="general"),
        replace(kept, name=f"filter: {n_trees} rounds and {n_extra} extra ones"),
        kept.with_section(as_many, **unfiltered).with_model(n_trees=n_trees + n_extra),
    )
    return table([f"ablation at epsilon {ABLATED}", ""], ([each.name, _ablated(bench, each)] for each in variants))


def _ablated(bench: Bench, variant: Variant) -> str:
    try:
        return _cell(repeated(bench, variant, ABLATED))
    except PrivacyError as error:
        return error.what


def linear_starts(bench: Bench, best: Mapping[Key, Variant]) -> list[str]:
    """What the linear start gives by itself, and what its settings give without it."""
    rows = []
    for epsilon in published("s-gbdt", bench.name):
        whole, cells = best["s-gbdt+", epsilon], ["not chosen", "", ""]
        if whole.section.get("initial_score") == "linear":
            plain = whole.with_section(whole.name, initial_score="constant", initial_score_share=0.1)
            variants = (whole, whole.with_model(learning_rate=1e-6), plain)
            cells = [_cell(repeated(bench, variant, epsilon)) for variant in variants]
        rows.append([f"epsilon {epsilon:g}", *cells])
    return table(["our linear start", "with the trees", "without trees", "trees with a constant start"], rows)


def streams(bench: Bench) -> list[str]:
    """Rows of another kind come after the regular rounds: with the filter they have a whole budget left."""
    columns, features = bench.prepared.table.columns, [feature["name"] for feature in bench.prepared.table.features]
    key = columns[features.index("Whole_weight" if bench.name == "abalone" else "age")]
    late, rows = np.asarray(key > np.median(key)), []
    kept, free = [], []
    for base in STREAMED[bench.name]:
        n_trees = int(base.model["n_trees"])
        kept.append(base.with_section("stream, with the filter", individual_filter=True, extra_rounds=n_trees))
        # Twice the rounds, all of them regular.
        every = base.with_section("stream, no filter", individual_filter=False, extra_rounds=0)
        free.append(every.with_model(n_trees=2 * n_trees))
    for variants in (kept, free):
        chosen = _best(variants, bench, ABLATED, late=late) if len(variants) > 1 else 0
        scores, model = repeated(bench, variants[chosen], ABLATED, late=late), STREAMED[bench.name][chosen].model
        setting = f"{model['n_trees']} rounds before and after, depth {model['max_depth']}"
        rows.append([variants[chosen].name, _cell(scores), setting])
    return table([f"stream at epsilon {ABLATED}: the larger half comes after the regular rounds", "", ""], rows)


def baseline(bench: Bench) -> list[str]:
    """DPBoost in one place: the best of a few sizes by test score, with and without each of its two techniques.

    GDF is gradient-based data filtering, without which gradients are clipped; GLC is geometric leaf clipping.
    """
    data, name, rows = Central(bench.prepared.table), bench.name, []
    clip = 0.5 if name == "abalone" else 1.0
    for epsilon, least in product(DPBOOST_EPSILONS[name], (1, 50)):
        paper = published("dpboost", name).get(epsilon, "") if least == 1 else ""
        cells = [f"{epsilon:g}{', 50 trees' * (least > 1)}", str(paper)]
        for filters, clips in DPBOOST_WAYS[name]:
            sizes = [
                DPBoost(1, trees, depth, rate, ridge, clip, share, filters, clips)
                for (trees, rate), (depth, ridge), share in DPBOOST_SIZES
                if trees >= least
            ]
            chosen = sizes[_chosen(name, [_dpboost(bench, data, size, epsilon, (1, FIRST_SEARCH)) for size in sizes])]
            scores = _dpboost(bench, data, chosen, epsilon, (bench.repeats, 1))
            cells.append(f"{_cell(scores)} ({chosen.trees_per_ensemble} trees)")
        rows.append(cells)
    names = (
        f"{'GDF' if filters else 'no GDF'}, {'GLC' if clips else 'no GLC'}" for filters, clips in DPBOOST_WAYS[name]
    )
    return table(["DPBoost, central only, pure epsilon", "paper", *names], rows)


def _dpboost(bench: Bench, data: Central, settings: DPBoost, epsilon: float, runs: tuple[int, int]) -> Scores:
    """As `repeated`; `runs` are how many on each fold, and the first seed. A run's seed decides its fold."""

    def score(seed: int) -> float:
        rows, test = np.flatnonzero(bench.folds != seed % N_FOLDS), bench.folds == seed % N_FOLDS
        scores = train_dpboost(data, rows, settings, epsilon, np.random.default_rng(seed))[test]
        return bench.quality(data.labels[test], scores)

    seeds = range(runs[1], runs[1] + runs[0] * N_FOLDS)
    return np.array([bench.noted(("DPBoost", settings, epsilon, seed), partial(score, seed)) for seed in seeds])


# The individual filter in regular training ------------------------------------------------------------------------
#
# The individual Renyi filter in regular training, all sides tuned: figure 6 of arXiv 2309.12041v1, on Abalone.
# Three ways: no filter; the filter as the paper has it; the filter that keeps every record's share of the closing
# rounds back (`s_gbdt.closing_rounds`). Settings are drawn from one distribution for all, of which each way has as
# many: with a filter, a part of the rounds are extra ones, which cost nothing. Rungs of further runs leave fewer and
# fewer of them, on divisions of the rows into folds that no other rung has; the last of each way runs on yet other
# divisions, with noise and trees that none has had, the same for all ways. The filter is better where the mean of the
# differences is above zero by more than two standard errors, worse where it is as far below, and else there is no
# difference that these runs show. A standard error is that of the mean over divisions, each of which has one
# difference, of the means over its folds.

PAPER = {0.54: (0.479, 0.457)}
"""Section VIII-E: R2 with the filter, and without."""
FREE, PLAIN, CLOSING = "no filter", "filter as in the paper", "filter and closing rounds"
WAYS = (CLOSING, PLAIN, FREE)
N_DRAWN = 64
RUNGS = ((None, 1), (10, 2), (3, 4))
"""How many settings are left, and how many divisions they run on."""
FRESH_DIVISIONS = 20
FIRST_DIVISION, FIRST_RUNG, FIRST_SEED, RUNG_SEED = 2000, 2100, 70_000, 60_000


def _settings(way: str) -> list[Variant]:
    """Those of the usual grid that fit, but for the one that is there for static noise, and drawn ones."""
    known = [v for v in GRID["abalone"] if v.name == "s-gbdt" and v != MAX_RIDGE]
    plain = [v for v in known if not v.section.get("extra_rounds")]
    if way == FREE:
        known = [v.with_section(v.name, individual_filter=False) for v in plain]
    else:
        known = [v for v in known if v.section.get("extra_rounds")] + [_kept(v) for v in plain]
    if way == CLOSING:
        known = [v.with_section(v.name, closing_rounds=int(v.model["n_trees"]) // 5) for v in known]
    random = np.random.default_rng(5)
    return known + [_drawn(random, way) for _ in range(N_DRAWN)]


def compare_filter(prepared: Prepared, book: ScoreBook, epsilons: Iterable[float]) -> list[str]:
    """The lines of a report: at each of these epsilons, the best setting of each way, and both filters' gain."""
    cells, chosen = [], []
    for epsilon in epsilons:
        scores = {}
        for way in WAYS:
            best = _last_left(prepared, book, way, epsilon)
            chosen.append(f"- {epsilon:g}, {way}: {_text(best, epsilon)}")
            scores[way] = _on(prepared, book, (FIRST_DIVISION, FRESH_DIVISIONS), FIRST_SEED, best, epsilon)
        paper = ", ".join(f"{value:g}" for value in PAPER.get(epsilon, ()))
        gains = (_gain(scores[way] - scores[FREE]) for way in (CLOSING, PLAIN))
        cells.append([f"{epsilon:g}", paper, *(_cell(scores[way]) for way in WAYS), *gains])
    head = ["epsilon", "paper: with, without", *WAYS, f"{CLOSING}: gain", f"{PLAIN}: gain"]
    return [
        "# S-GBDT on Abalone, R2: the individual filter in regular training, each way tuned by test score", "",
        f"{N_DRAWN} drawn settings and the usual grid for each way; the best of each on {FRESH_DIVISIONS} other "
        f"divisions into {N_FOLDS} folds, each run with noise of its own: mean ± standard deviation of the runs, and "
        "the mean difference to no filter ± its standard error over divisions.", "",
        *table(head, cells), "", "Chosen:", "", *chosen,
    ]  # fmt: skip


def _gain(difference: Scores) -> str:
    """Mean and standard error over divisions of differences by division and fold, and the word for them."""
    by_division = difference.mean(axis=1)
    mean, error = by_division.mean(), by_division.std(ddof=1) / math.sqrt(len(by_division))
    word = "no difference shown" if abs(mean) <= 2 * error else "better" if mean > 0 else "worse"
    return f"{mean:+.4f} ± {error:.4f}, {word}"


def _kept(variant: Variant) -> Variant:
    """A setting without extra rounds, with the filter and some.

    A quarter as many extra rounds for the many rounds of `DEEP`, as many as regular ones elsewhere: runs beforehand, on
    other divisions, had these numbers ahead.
    """
    n_trees = int(variant.model["n_trees"])
    extra = n_trees // 4 if variant in DEEP else n_trees
    return variant.with_section(variant.name, individual_filter=True, extra_rounds=extra)


def _drawn(random: np.random.Generator, way: str) -> Variant:
    """A setting; all ways draw the same numbers, in the same order."""

    def between(low: float, high: float) -> float:
        return float(np.exp(random.uniform(math.log(low), math.log(high))))

    rate = float(random.choice([0.05, 0.1, 0.2, 1.0]))
    rounds, reach = round(between(50, 1200)), between(6, 160)
    depth, ridge = int(random.integers(3, 9)), between(60, 1600)
    section = {
        "subsampling_ratio": rate,
        "gradient_clip": between(0.06, 0.9),
        "support_share": float(random.choice([0.001, 0.003, 0.01, 0.04])),
        "initial_score_share": float(random.choice([0.0, 0.1])),
    }
    extra_per_regular = float(random.choice([0.1, 0.25, 0.5, 1.0, 2.0, 4.0]))
    closing_per_regular = float(random.choice([0.1, 0.2, 0.4]))
    regular = rounds if way == FREE else max(1, round(rounds / (1 + extra_per_regular)))
    if way == CLOSING:
        section["closing_rounds"] = max(1, round(regular * closing_per_regular))
    section |= {"individual_filter": way != FREE, "extra_rounds": rounds - regular}
    model = {"n_trees": regular, "max_depth": depth, "learning_rate": min(1.0, reach / rounds)}
    model |= {"leaf_ridge": ridge * rate, "leaf_clip": 1e5, "noise_ridge": 0.0}
    return Variant("s-gbdt", model, section)


def _last_left(prepared: Prepared, book: ScoreBook, way: str, epsilon: float) -> Variant:
    """The setting that is left after all rungs, by the mean of all its runs."""
    settings = _settings(way)
    scores = [np.empty((0, N_FOLDS))] * len(settings)
    division, seed = FIRST_RUNG, RUNG_SEED
    for n_left, n_divisions in RUNGS:
        if n_left is not None:
            order = np.argsort([-found.mean() for found in scores], kind="stable")[:n_left]
            settings, scores = [settings[i] for i in order], [scores[i] for i in order]
        more = [_on(prepared, book, (division, n_divisions), seed, variant, epsilon) for variant in settings]
        scores = [np.concatenate(pair) for pair in zip(scores, more, strict=True)]
        division, seed = division + n_divisions, seed + n_divisions * N_FOLDS
    return settings[int(np.argmax([found.mean() for found in scores]))]


def _on(
    prepared: Prepared, book: ScoreBook, divisions: tuple[int, int], first_seed: int, variant: Variant, epsilon: float
) -> Scores:
    """Scores on so many divisions from the first one on, with seeds from the first on: [n_divisions, N_FOLDS]."""
    first, n_divisions = divisions
    benches = [Bench(prepared, division=first + number, book=book) for number in range(n_divisions)]
    pairs = enumerate(product(benches, range(N_FOLDS)))
    scores = [bench.score(variant, epsilon, fold, first_seed + i) for i, (bench, fold) in pairs]
    return np.array(scores).reshape(n_divisions, N_FOLDS)


def _text(variant: Variant, epsilon: float) -> str:
    model, section = variant.model, variant.section
    return (
        f"epsilon {epsilon:.3g}, {model['n_trees']} rounds and {section.get('extra_rounds', 0)} extra, "
        f"{section.get('closing_rounds', 0)} closing, depth {model['max_depth']}, rate {model['learning_rate']:.3g}, "
        f"lambda {model['leaf_ridge']:.3g}, g* {section['gradient_clip']:.3g}, r1 {section['support_share']:g}, "
        f"samples of {section['subsampling_ratio']:g}, "
        f"{'an' if section.get('initial_score_share', 0.1) else 'no'} initial score"
    )
