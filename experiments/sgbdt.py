"""S-GBDT on Abalone and Adult beside its paper's figures: R2 and error against epsilon, ablations, a stream.

As in the paper: 5 folds, the best of a searched grid by test score. That choice is not private; the report says what it
would cost. The paper's numbers are from arXiv 2309.12041v1, section VIII. Its theorem 18, as printed, turns a Renyi
divergence rho into exp(rho - alpha epsilon) = delta, which is not a bound (it is exp((alpha - 1)(rho - epsilon))), and
it names no delta; so the same epsilon stands for less noise there than here, and the report shows how much less.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import r2_score

from hedgerow.experiments.datasets import data_folder, load
from hedgerow.experiments.harness import Prepared, progress
from hedgerow.experiments.sgbdt_dpboost import Central, DPBoost, train_dpboost
from hedgerow.experiments.sgbdt_runs import N_FOLDS, Bench, Variant, plan_of, tuned_epsilon
from hedgerow.privacy.renyi import ORDERS, paper_divergence, sampled_divergence
from hedgerow.protocol.errors import PrivacyError
from hedgerow.training.s_gbdt_rule import resolve_s_gbdt

EPSILONS = {"abalone": (0.17, 0.54, 2.0, 10.0), "adult": (0.15, 0.54, 2.0)}
PAPER = {("abalone", 0.17): 0.44, ("abalone", 0.54): 0.47, ("adult", 0.15): 18.1, ("adult", 0.54): 17.1}
"""Figures of section VIII-C: R2 on Abalone at least, error in per cent on Adult at most."""
DPBOOST = {"abalone": {0.1: 0.25, 10.0: 0.39}, "adult": {0.12: 24.7}}
"""The numbers that the text of the paper gives for its baseline, with data filtering."""
N_DIVISIONS = 10
AS_PAPER = {"leaf_clip": 1e5, "noise_ridge": 0.0}
OURS: dict[str, Any] = {"splits": "cyclical", "leaf_rule": "shrunk", "subsampling_ratio": 1.0}


def _paper(n_trees: int, depth: int, rate: float, ridge: float, **section: Any) -> Variant:
    model = {"n_trees": n_trees, "max_depth": depth, "learning_rate": rate, "leaf_ridge": ridge, **AS_PAPER}
    return Variant("s-gbdt", model, {"individual_filter": True, "subsampling_ratio": 0.1, **section})


def _ours(n_trees: int, depth: int, rate: float, ridges: tuple[float, float] = (20.0, 0.7), **section: Any) -> Variant:
    model = {"n_trees": n_trees, "max_depth": depth, "learning_rate": rate}
    model.update(leaf_ridge=ridges[0], noise_ridge=ridges[1])
    return Variant("s-gbdt+", model, {"individual_filter": True, **OURS, **section})


def _linear(n_trees: int, depth: int, rate: float, ridge: float, **section: Any) -> Variant:
    """The paper's method after a linear start."""
    chosen = _paper(n_trees, depth, rate, ridge, initial_score="linear", **section)
    return replace(chosen, name="s-gbdt+")


FILTERED = {
    "abalone": _paper(
        20, 5, 0.15, 40.0, gradient_clip=0.8, support_share=0.003, subsampling_ratio=0.2, extra_rounds=40
    ),
    "adult": _paper(150, 6, 0.5, 50.0, gradient_clip=1.0, support_share=0.04, extra_rounds=75),
}
"""Settings that live on the filter: a wide clip, and extra rounds."""
GRID: dict[str, tuple[Variant, ...]] = {
    "abalone": (
        _paper(50, 4, 0.2, 15.0, gradient_clip=0.2, support_share=0.1),
        _paper(50, 4, 0.2, 15.0, gradient_clip=0.2, support_share=0.1, extra_rounds=25),
        _paper(50, 3, 0.2, 15.0, gradient_clip=0.3, support_share=0.1, extra_rounds=25),
        _paper(50, 6, 0.2, 30.0, gradient_clip=0.3, support_share=0.04),
        _paper(25, 4, 0.3, 15.0, gradient_clip=0.2, support_share=0.1),
        _paper(150, 6, 0.1, 15.0, gradient_clip=0.3, support_share=0.04),
        _paper(35, 5, 0.23, 40.0, gradient_clip=0.3, support_share=0.003, subsampling_ratio=0.2),
        _paper(60, 3, 0.27, 40.0, gradient_clip=0.3, support_share=0.003, subsampling_ratio=0.05),
        _paper(35, 3, 0.23, 40.0, gradient_clip=0.8, support_share=0.003, subsampling_ratio=0.05, extra_rounds=70),
        _paper(50, 5, 0.16, 40.0, gradient_clip=0.3, support_share=0.003, initial_score_share=0.0),
        _paper(
            35, 5, 0.23, 40.0, gradient_clip=0.3, support_share=0.003, subsampling_ratio=0.2, initial_score_share=0.0
        ),
        _paper(50, 6, 0.2, 30.0, gradient_clip=0.3, support_share=0.04, initial_score_share=0.0),
        _paper(150, 6, 0.1, 15.0, gradient_clip=0.3, support_share=0.04, initial_score_share=0.0),
        FILTERED["abalone"],
        _ours(16, 3, 0.3, gradient_clip=0.3, support_share=0.01),
        _ours(24, 3, 0.3, gradient_clip=0.3, support_share=0.01),
        _ours(48, 2, 0.15, gradient_clip=0.3, support_share=0.1),
        _ours(60, 3, 0.07, (60.0, 1.5), gradient_clip=0.8, support_share=0.003, extra_rounds=18, splits="uniform"),
        _ours(35, 3, 0.45, (160.0, 1.5), gradient_clip=0.5, support_share=0.01),
        _ours(60, 5, 0.1, (60.0, 1.0), gradient_clip=0.3, support_share=0.003, splits="uniform"),
        _ours(48, 3, 0.3, gradient_clip=0.5, support_share=0.01),
        _ours(100, 3, 0.3, gradient_clip=0.5, support_share=0.01),
        _linear(
            20, 3, 0.1, 200.0, gradient_clip=0.25, support_share=0.01, subsampling_ratio=1.0, initial_score_share=0.9
        ),
        _linear(
            20, 3, 0.2, 100.0, gradient_clip=0.2, support_share=0.01, subsampling_ratio=1.0, initial_score_share=0.8
        ),
        _linear(
            60, 6, 0.1, 30.0, gradient_clip=0.3, support_share=0.04, subsampling_ratio=0.2, initial_score_share=0.3
        ),
    ),
    "adult": (
        _paper(60, 6, 0.5, 50.0, gradient_clip=1.0, support_share=0.04),
        _paper(100, 6, 0.3, 20.0, gradient_clip=1.0, support_share=0.04),
        _paper(100, 8, 0.5, 20.0, gradient_clip=1.0, support_share=0.04),
        FILTERED["adult"],
        _ours(150, 4, 0.3, gradient_clip=1.0, support_share=0.04),
        _ours(150, 4, 0.5, gradient_clip=1.0, support_share=0.04),
        _linear(60, 6, 0.5, 50.0, gradient_clip=1.0, support_share=0.04, initial_score_share=0.2),
        _linear(150, 6, 0.5, 50.0, gradient_clip=1.0, support_share=0.04, initial_score_share=0.2, extra_rounds=75),
    ),
}


def main(argv: list[str]) -> int:
    """Search, repeat, ablate, report; the exit code is 1 when a figure of the paper is not reached by either method."""
    parser = argparse.ArgumentParser(prog="python -m hedgerow.experiments sgbdt", description=__doc__)
    parser.add_argument("--data", help="folder with the data sets")
    parser.add_argument("--repeats", type=int, default=4, help="runs of the best settings on each fold (paper: 20)")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for report and picture")
    parser.add_argument("--sets", nargs="+", default=list(EPSILONS), choices=list(EPSILONS))
    parser.add_argument("--starts", action="store_true", help="only the linear starts, on other divisions as well")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.starts:
        return _starts(options.sets, options.data)
    lines = ["# S-GBDT: 5 folds, mean ± standard deviation, delta = 1 / n_train", ""]
    curves: dict[str, dict[str, list[float]]] = {}
    reached = True
    for name in options.sets:
        bench = Bench(Prepared(load(name, data_folder(options.data))))
        found, best = _searched(bench, name, options.repeats, lines)
        curves[name] = found
        reached &= _verdicts(name, found, lines)
        _tuning(bench, name, best, lines)
        _ablations(bench, name, best["s-gbdt", 0.54], options.repeats, lines)
        _linear_starts(bench, name, best, options.repeats, lines)
        _baseline(bench, name, options.repeats, lines)
        _streams(bench, name, options.repeats, lines)
        lines += [f"{bench.n_runs} trainings on {name}.", ""]
    report = "\n".join(lines)
    print(report)
    (options.out / "sgbdt.md").write_text(report, encoding="utf-8")
    _draw(curves, options.out / "sgbdt.png")
    return 0 if reached else 1


def _starts(sets: list[str], data: str | None) -> int:
    """What `--starts` prints; always 0."""
    lines = ["# S-GBDT's linear start: mean ± standard deviation of 50 runs, each with noise of its own", ""]
    for name in sets:
        _other_divisions(Bench(Prepared(load(name, data_folder(data)))), name, lines)
    print("\n".join(lines))
    return 0


def _sign(name: str) -> float:
    """Larger is better after this sign."""
    return -1.0 if name == "adult" else 1.0


def _searched(
    bench: Bench, name: str, repeats: int, lines: list[str]
) -> tuple[dict[str, list[float]], dict[tuple[str, float], Variant]]:
    """The best setting of each method and epsilon by its mean over the folds, run again with other seeds."""
    metric = "R2" if name == "abalone" else "error in %"
    lines += [f"## {name}: {metric}", "", "| epsilon | paper | s-gbdt | s-gbdt+ (ours) |", "|---|---|---|---|"]
    best: dict[tuple[str, float], Variant] = {}
    found: dict[str, list[float]] = {"s-gbdt": [], "s-gbdt+": []}
    for epsilon in EPSILONS[name]:
        cells = []
        for method, means in found.items():
            grid = [variant for variant in GRID[name] if variant.name == method]
            scores = [np.mean([bench.score(v, epsilon, fold, 0) for fold in range(N_FOLDS)]) for v in grid]
            chosen = grid[int(np.argmax(_sign(name) * np.array(scores)))]
            best[method, epsilon] = chosen
            again = _repeated(bench, chosen, epsilon, repeats)
            means.append(float(again.mean()))
            cells.append(f"{again.mean():.3f} ± {again.std():.3f}")
        lines.append(f"| {epsilon:g} | {PAPER.get((name, epsilon), '')} | " + " | ".join(cells) + " |")
    lines.append("")
    return found, best


def _repeated(bench: Bench, variant: Variant, epsilon: float, repeats: int) -> NDArray[np.float64]:
    pairs = [(fold, 1 + seed) for seed in range(repeats) for fold in range(N_FOLDS)]
    return np.array([bench.score(variant, epsilon, *pairs[i]) for i in progress(len(pairs), variant.name)])


def _verdicts(name: str, found: Mapping[str, list[float]], lines: list[str]) -> bool:
    reached = True
    for (data, epsilon), wanted in PAPER.items():
        if data != name:
            continue
        place = EPSILONS[name].index(epsilon)
        for method, means in found.items():
            holds = _sign(name) * (means[place] - wanted) >= 0
            lines.append(f"- epsilon {epsilon:g}, {method}: {means[place]:.3f} against {wanted:g}: {_word(holds)}")
        reached &= any(_sign(name) * (means[place] - wanted) >= 0 for means in found.values())
    lines.append("")
    return reached


def _word(holds: bool) -> str:
    return "reached" if holds else "not reached"


def printed_multiplier(epsilon: float, delta: float, rate: float, n_rounds: int) -> float:
    """The noise that the paper's algorithm 7 gives as printed: exp(rho - alpha epsilon) = delta, orders to 2000."""

    def spent(noise_multiplier: float) -> float:
        return min(
            (n_rounds * paper_divergence(order, rate, noise_multiplier) - math.log(delta)) / order
            for order in ORDERS
            if order <= 2000
        )

    low, high = 1e-3, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high


def _tuning(bench: Bench, name: str, best: Mapping[tuple[str, float], Variant], lines: list[str]) -> None:
    """What the search would cost if its scores were private too, and what the paper's printed conversion hides."""
    n_grid = sum(variant.name == "s-gbdt" for variant in GRID[name])
    n_train = int((bench.folds != 0).sum())
    for epsilon in PAPER_EPSILONS[name]:
        variant = best["s-gbdt", epsilon]
        settings = resolve_s_gbdt(plan_of(bench.prepared, variant, epsilon, n_train, 0))
        terms, z = settings.s_gbdt, settings.noise_multiplier
        rate, rounds, delta = terms.sampling_rate, terms.n_regular_rounds, 1 / n_train
        z0 = terms.initial_noise_multiplier

        def cost(order: int, z: float = z, rate: float = rate, rounds: int = rounds, z0: float = z0) -> float:
            return rounds * sampled_divergence(order, rate, z) + (order / (2 * z0**2) if z0 else 0.0)

        tuned = tuned_epsilon(cost, ORDERS, delta, n_grid)
        printed = printed_multiplier(epsilon, delta, rate, rounds)
        true = min(
            rounds * sampled_divergence(a, rate, printed)
            + math.log1p(-1 / a)
            - (math.log(delta) + math.log(a)) / (a - 1)
            for a in ORDERS
        )
        lines.append(
            f"- epsilon {epsilon:g}: the best of {n_grid} settings, chosen privately by private scores, would cost "
            f"epsilon {tuned:.2f}. The paper's conversion as printed would let the noise multiplier be {printed:.2f} "
            f"in place of {z:.2f}; that noise keeps epsilon {true:.2f}."
        )
    lines.append("")


PAPER_EPSILONS = {"abalone": (0.17, 0.54), "adult": (0.15, 0.54)}


def _ablations(bench: Bench, name: str, base: Variant, repeats: int, lines: list[str]) -> None:
    """Each part of the method left out, at epsilon 0.54: of the best setting, and for the filter of one made for it."""
    plain = base.with_section("no filter, no extra rounds", individual_filter=False, extra_rounds=0)
    # lambda counts records of a sample, so it grows with the sample.
    ridge = {"leaf_ridge": base.model["leaf_ridge"] / base.section["subsampling_ratio"]}
    whole_sample = plain.with_section("the same, no subsampling", subsampling_ratio=1.0)
    kept = FILTERED[name]
    n_rounds = int(kept.model["n_trees"]) + kept.section["extra_rounds"]
    as_many = kept.with_section(f"the same clip, {n_rounds} rounds without a filter", individual_filter=False)
    variants = (
        plain,
        replace(plain, name="the same, static leaf noise", is_static=True),
        replace(whole_sample, model={**base.model, **ridge}),
        plain.with_section("the same, no initial score", initial_score_share=0.0)
        if base.section.get("initial_score_share", 0.1)
        else plain.with_section("the same, with an initial score", initial_score_share=0.1),
        plain.with_section("the same, general amplification bound", bound="general"),
        replace(kept, name=f"filter: {kept.model['n_trees']} rounds and {kept.section['extra_rounds']} extra ones"),
        replace(as_many, model={**kept.model, "n_trees": n_rounds}, section={**as_many.section, "extra_rounds": 0}),
    )
    lines += ["| ablation at epsilon 0.54 | |", "|---|---|"]
    for variant in variants:
        try:
            scores = _repeated(bench, variant, 0.54, repeats)
            lines.append(f"| {variant.name} | {scores.mean():.3f} ± {scores.std():.3f} |")
        except PrivacyError as error:
            lines.append(f"| {variant.name} | {error.what} |")
    lines.append("")


def _linear_starts(
    bench: Bench, name: str, best: Mapping[tuple[str, float], Variant], repeats: int, lines: list[str]
) -> None:
    """What the linear start gives by itself, and what its settings give without it."""
    head = ("our linear start", "with the trees", "without trees", "trees with a constant start")
    lines += ["| " + " | ".join(head) + " |", "|---" * 4 + "|"]
    for epsilon in PAPER_EPSILONS[name]:
        whole = best["s-gbdt+", epsilon]
        if whole.section.get("initial_score") != "linear":
            lines.append(f"| epsilon {epsilon:g} | not chosen | | |")
            continue
        bare = replace(whole, model={**whole.model, "learning_rate": 1e-6})
        plain = whole.with_section(whole.name, initial_score="constant", initial_score_share=0.1)
        scores = [_repeated(bench, variant, epsilon, repeats) for variant in (whole, bare, plain)]
        lines.append(f"| epsilon {epsilon:g} | " + " | ".join(f"{s.mean():.3f} ± {s.std():.3f}" for s in scores) + " |")
    lines.append("")


def _other_divisions(bench: Bench, name: str, lines: list[str]) -> None:
    """The linear starts of the grid on the usual folds and on others, every run with noise of its own.

    Settings and the start's own shares were found on the usual folds, where the runs of one seed share their noise.
    """
    head = ("linear start", "epsilon", "usual folds", f"{N_DIVISIONS} other divisions")
    lines += [f"## {name}", "", "| " + " | ".join(head) + " |", "|---" * 4 + "|"]
    others = [Bench(bench.prepared, division=100 + number) for number in range(N_DIVISIONS)]
    settings = [variant for variant in GRID[name] if variant.section.get("initial_score") == "linear"]
    for variant, epsilon in product(settings, PAPER_EPSILONS[name]):
        cells = []
        for benches in ([bench] * N_DIVISIONS, others):
            pairs = [(one, fold) for one in benches for fold in range(N_FOLDS)]
            scores = np.array([one.score(variant, epsilon, fold, 100 + i) for i, (one, fold) in enumerate(pairs)])
            cells.append(f"{scores.mean():.3f} ± {scores.std():.3f}")
        label = f"{variant.model['n_trees']} trees, share {variant.section['initial_score_share']:g}"
        lines.append(f"| {label} | {epsilon:g} | " + " | ".join(cells) + " |")
    lines.append("")


def _streams(bench: Bench, name: str, repeats: int, lines: list[str]) -> None:
    """Rows of another kind come after the regular rounds: with the filter they have a whole budget left."""
    columns, features = bench.prepared.table.columns, [feature["name"] for feature in bench.prepared.table.features]
    key = columns[features.index("Whole_weight" if name == "abalone" else "age")]
    late = np.asarray(key > np.median(key))
    base = FILTERED[name]
    n_trees = int(base.model["n_trees"])
    kept = base.with_section("stream, with the filter", individual_filter=True, extra_rounds=n_trees)
    model = {**base.model, "n_trees": 2 * n_trees}
    arrival = n_trees + 1
    free = Variant(
        "stream, no filter", model, {**base.section, "individual_filter": False, "extra_rounds": 0, "arrival": arrival}
    )
    lines += ["| stream at epsilon 0.54: the larger half comes after the regular rounds | |", "|---|---|"]
    for variant in (kept, free):
        pairs = [(fold, 1 + seed) for seed in range(repeats) for fold in range(N_FOLDS)]
        scores = np.array([bench.stream_score(variant, 0.54, late, *pair) for pair in pairs])
        lines.append(f"| {variant.name} | {scores.mean():.3f} ± {scores.std():.3f} |")
    lines.append("")


def _baseline(bench: Bench, name: str, repeats: int, lines: list[str]) -> None:
    """DPBoost in one place, with and without gradient-based data filtering: the best of a few sizes by test score."""
    data = Central(bench.prepared.table)
    sizes = list(product(((1, 1.0), (5, 0.3), (20, 0.1)), ((2, 5.0), (4, 100.0)), (0.1, 0.5)))
    clip = 0.5 if name == "abalone" else 1.0
    lines += ["| DPBoost, central only, pure epsilon | paper, filtering | filtering | clipping |", "|---|---|---|---|"]
    for epsilon, published in DPBOOST[name].items():
        cells = []
        for filters in (True, False):
            means = []
            for (trees, rate), (depth, ridge), share in sizes:
                chosen = DPBoost(1, trees, depth, rate, ridge, clip, share, filters)
                runs = [_central(bench, data, chosen, epsilon, f, s) for f in range(N_FOLDS) for s in range(repeats)]
                means.append((_sign(name) * float(np.mean(runs)), float(np.mean(runs)), float(np.std(runs))))
            _, mean, deviation = max(means)
            cells.append(f"{mean:.3f} ± {deviation:.3f}")
        lines.append(f"| {epsilon:g} | {published:g} | " + " | ".join(cells) + " |")
    lines.append("")


def _central(bench: Bench, data: Central, settings: DPBoost, epsilon: float, fold: int, seed: int) -> float:
    rows, test = np.flatnonzero(bench.folds != fold), bench.folds == fold
    scores = train_dpboost(data, rows, settings, epsilon, np.random.default_rng(seed))[test]
    bench.n_runs += 1
    if data.is_regression:
        return float(r2_score(data.labels[test], np.clip(scores, -1, 1)))
    return float(100 * np.mean((scores > 0) != (data.labels[test] == 1)))


def _draw(curves: Mapping[str, Mapping[str, list[float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(curves), figsize=(5.5 * len(curves), 4), squeeze=False)
    for axis, (name, methods) in zip(axes[0], curves.items(), strict=True):
        for method, means in methods.items():
            axis.plot(EPSILONS[name], means, marker="o", label=method)
        points = [(epsilon, value) for (data, epsilon), value in PAPER.items() if data == name]
        axis.scatter(*zip(*points, strict=True), marker="x", color="black", label="paper")
        axis.set(xscale="log", xlabel="epsilon", ylabel="R2" if name == "abalone" else "error in %", title=name)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
