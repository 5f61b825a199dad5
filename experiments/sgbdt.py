"""S-GBDT on Abalone and Adult beside its paper's figures: R2 and error against epsilon, ablations, a stream.

As in the paper: 5 folds, the best of a searched grid by test score. That choice is not private; the report says what it
would cost. The paper's numbers are from arXiv 2309.12041v1, section VIII. Its theorem 18, as printed, turns a Renyi
divergence rho into exp(rho - alpha epsilon) = delta, which is not a bound (it is exp((alpha - 1)(rho - epsilon))), and
it names no delta; so the same epsilon stands for less noise there than here, and the report shows how much less.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import cycle, product
from pathlib import Path

import numpy as np

from experiments.datasets import load
from experiments.harness import Prepared, ScoreBook
from experiments.sgbdt_ablations import ablations, baseline, linear_starts, streams
from experiments.sgbdt_filter import ROWS, compare_filter
from experiments.sgbdt_grid import EPSILONS, FIRST_SEARCH, GRID, N_SEARCHES, PAPER, PAPER_EPSILONS
from experiments.sgbdt_runs import (
    N_FOLDS,
    Bench,
    Variant,
    plan_of,
    printed_multiplier,
    repeated,
    sign_of,
    tuned_epsilon,
)
from hedgerow.methods.s_gbdt.settings import resolve_s_gbdt
from hedgerow.privacy.rdp import ORDERS, epsilon_of_curve, sampled_divergence

N_DIVISIONS = 10


def main(argv: list[str]) -> int:
    """Search, repeat, ablate, report; the exit code is 1 when a figure of the paper is not reached by either method."""
    parser = argparse.ArgumentParser(prog="python -m experiments sgbdt", description=__doc__)
    parser.add_argument("--data", help="folder with the data sets")
    parser.add_argument(
        "--repeats", type=int, nargs="+", default=[4, 2], help="runs of the best on each fold, by set (paper: 20)"
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for report and picture")
    parser.add_argument("--sets", nargs="+", default=list(EPSILONS), choices=list(EPSILONS))
    parser.add_argument("--starts", action="store_true", help="only the linear starts, on other divisions as well")
    parser.add_argument(
        "--filter", nargs="*", choices=list(ROWS), help="only the filter on Abalone, all sides tuned; which rows"
    )
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.starts:
        return _starts(options.sets, options.data)
    book = ScoreBook(options.out / "sgbdt_scores.csv", ("sgbdt_runs.py", "sgbdt_dpboost.py", "sgbdt_ablations.py"))
    if options.filter is not None:
        prepared = Prepared(load("abalone", options.data))
        print("\n".join(compare_filter(prepared, book, options.filter or list(ROWS))))
        return 0
    lines = ["# S-GBDT: 5 folds, mean ± standard deviation, delta = 1 / n_train", ""]
    curves: dict[str, dict[str, list[float]]] = {}
    reached = True
    for name, repeats in zip(options.sets, cycle(options.repeats), strict=False):
        bench = Bench(Prepared(load(name, options.data)), book=book)
        found, best = _searched(bench, name, repeats, lines)
        curves[name] = found
        reached &= _verdicts(name, found, lines)
        _tuning(bench, name, best, lines)
        ablations(bench, name, best["s-gbdt", 0.54], repeats, lines)
        linear_starts(bench, name, best, repeats, lines)
        baseline(bench, name, repeats, lines)
        streams(bench, name, repeats, lines)
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
        _other_divisions(Bench(Prepared(load(name, data))), name, lines)
    print("\n".join(lines))
    return 0


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
            scores = [np.mean(repeated(bench, v, epsilon, N_SEARCHES[name], FIRST_SEARCH)) for v in grid]
            chosen = grid[int(np.argmax(sign_of(name) * np.array(scores)))]
            best[method, epsilon] = chosen
            again = repeated(bench, chosen, epsilon, repeats)
            means.append(float(again.mean()))
            cells.append(f"{again.mean():.3f} ± {again.std():.3f}")
        lines.append(f"| {epsilon:g} | {PAPER.get((name, epsilon), '')} | " + " | ".join(cells) + " |")
    lines.append("")
    return found, best


def _verdicts(name: str, found: Mapping[str, list[float]], lines: list[str]) -> bool:
    reached = True
    for (data, epsilon), wanted in PAPER.items():
        if data != name:
            continue
        place = EPSILONS[name].index(epsilon)
        for method, means in found.items():
            holds = sign_of(name) * (means[place] - wanted) >= 0
            lines.append(f"- epsilon {epsilon:g}, {method}: {means[place]:.3f} against {wanted:g}: {_word(holds)}")
        reached &= any(sign_of(name) * (means[place] - wanted) >= 0 for means in found.values())
    lines.append("")
    return reached


def _word(holds: bool) -> str:
    return "reached" if holds else "not reached"


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
        true = epsilon_of_curve(ORDERS, [rounds * sampled_divergence(a, rate, printed) for a in ORDERS], delta)[0]
        lines.append(
            f"- epsilon {epsilon:g}: the best of {n_grid} settings, chosen privately by private scores, would cost "
            f"epsilon {tuned:.2f}. The paper's conversion as printed would let the noise multiplier be {printed:.2f} "
            f"in place of {z:.2f}; that noise keeps epsilon {true:.2f}."
        )
    lines.append("")


def _other_divisions(bench: Bench, name: str, lines: list[str]) -> None:
    """The linear starts of the grid on the usual folds and on others, every run with noise of its own.

    Settings and the start's own shares were found on the usual folds.
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
