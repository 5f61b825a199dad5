"""What parts of S-GBDT and of its baseline do, each left out: section VIII of arXiv 2309.12041v1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import r2_score

from experiments.sgbdt_dpboost import Central, DPBoost, train_dpboost
from experiments.sgbdt_grid import (
    DPBOOST,
    DPBOOST_EPSILONS,
    DPBOOST_SIZES,
    DPBOOST_WAYS,
    FILTERED,
    FIRST_SEARCH,
    GRID,
    N_SEARCHES,
    PAPER_EPSILONS,
    STREAMED,
)
from experiments.sgbdt_runs import N_FOLDS, Bench, Variant, repeated, sign_of
from hedgerow.errors import PrivacyError


def ablations(bench: Bench, name: str, base: Variant, repeats: int, lines: list[str]) -> None:
    """Each part of the method left out, at epsilon 0.54: of the best setting, and for the filter of one made for it."""
    plain = base.with_section("no filter, no extra rounds", individual_filter=False, extra_rounds=0)
    # lambda counts records of a sample, so it grows with the sample.
    rate = base.section["subsampling_ratio"]
    other_rate, words = (1.0, "no subsampling") if rate < 1 else (0.1, "samples of 0.1")
    ridge = {"leaf_ridge": base.model["leaf_ridge"] * other_rate / rate}
    resampled = replace(
        plain.with_section(f"the same, {words}", subsampling_ratio=other_rate), model={**base.model, **ridge}
    )
    sampled = plain if rate < 1 else resampled
    kept = FILTERED[name]
    n_rounds = int(kept.model["n_trees"]) + kept.section["extra_rounds"]
    as_many = kept.with_section(f"the same clip, {n_rounds} rounds without a filter", individual_filter=False)
    variants = (
        plain,
        replace(plain, name="the same, static leaf noise", is_static=True),
        _best_static(bench, name),
        resampled,
        plain.with_section("the same, no initial score", initial_score_share=0.0)
        if base.section.get("initial_score_share", 0.1)
        else plain.with_section("the same, with an initial score", initial_score_share=0.1),
        sampled.with_section(f"{sampled.name}, general amplification bound", bound="general"),
        replace(kept, name=f"filter: {kept.model['n_trees']} rounds and {kept.section['extra_rounds']} extra ones"),
        replace(as_many, model={**kept.model, "n_trees": n_rounds}, section={**as_many.section, "extra_rounds": 0}),
    )
    lines += ["| ablation at epsilon 0.54 | |", "|---|---|"]
    for variant in variants:
        try:
            scores = repeated(bench, variant, 0.54, repeats)
            lines.append(f"| {variant.name} | {scores.mean():.3f} ± {scores.std():.3f} |")
        except PrivacyError as error:
            lines.append(f"| {variant.name} | {error.what} |")
    lines.append("")


def _best_static(bench: Bench, name: str) -> Variant:
    """The best of the grid under static leaf noise, which asks for other sizes; without filter, as `ablations`."""
    grid = [
        replace(
            v.with_section("static leaf noise, its best setting", individual_filter=False, extra_rounds=0),
            is_static=True,
        )
        for v in GRID[name]
        if v.name == "s-gbdt"
    ]
    means = [repeated(bench, v, 0.54, N_SEARCHES[name], FIRST_SEARCH).mean() for v in grid]
    return grid[int(np.argmax(sign_of(name) * np.array(means)))]


def linear_starts(
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
        scores = [repeated(bench, variant, epsilon, repeats) for variant in (whole, bare, plain)]
        lines.append(f"| epsilon {epsilon:g} | " + " | ".join(f"{s.mean():.3f} ± {s.std():.3f}" for s in scores) + " |")
    lines.append("")


def streams(bench: Bench, name: str, repeats: int, lines: list[str]) -> None:
    """Rows of another kind come after the regular rounds: with the filter they have a whole budget left."""
    columns, features = bench.prepared.table.columns, [feature["name"] for feature in bench.prepared.table.features]
    key = columns[features.index("Whole_weight" if name == "abalone" else "age")]
    late = np.asarray(key > np.median(key))

    def scores_of(variant: Variant, n_runs: int, first: int) -> NDArray[np.float64]:
        runs = range(n_runs * N_FOLDS)
        return np.array([bench.stream_score(variant, 0.54, late, i % N_FOLDS, first + i) for i in runs])

    lines += ["| stream at epsilon 0.54: the larger half comes after the regular rounds | | |", "|---|---|---|"]
    for way in (_kept_stream, _free_stream):
        variants = [way(base) for base in STREAMED[name]]
        chosen = 0
        if len(variants) > 1:
            means = [scores_of(variant, N_SEARCHES[name], FIRST_SEARCH).mean() for variant in variants]
            chosen = int(np.argmax(sign_of(name) * np.array(means)))
        scores, model = scores_of(variants[chosen], repeats, 1), STREAMED[name][chosen].model
        setting = f"{model['n_trees']} rounds before and after, depth {model['max_depth']}"
        lines.append(f"| {variants[chosen].name} | {scores.mean():.3f} ± {scores.std():.3f} | {setting} |")
    lines.append("")


def _kept_stream(base: Variant) -> Variant:
    return base.with_section("stream, with the filter", individual_filter=True, extra_rounds=int(base.model["n_trees"]))


def _free_stream(base: Variant) -> Variant:
    """Twice the rounds, all of them regular."""
    n_trees = int(base.model["n_trees"])
    model = {**base.model, "n_trees": 2 * n_trees}
    # The initial score, where there is one, is an exchange of its own before the first round.
    arrival = n_trees + int(base.section.get("initial_score_share", 0.1) > 0)
    section = {**base.section, "individual_filter": False, "extra_rounds": 0, "arrival": arrival}
    return Variant("stream, no filter", model, section)


def baseline(bench: Bench, name: str, repeats: int, lines: list[str]) -> None:
    """DPBoost in one place: the best of a few sizes by test score, with and without each of its two techniques.

    GDF is gradient-based data filtering, without which gradients are clipped; GLC is geometric leaf clipping.
    """
    data = Central(bench.prepared.table)
    clip = 0.5 if name == "abalone" else 1.0
    ways = DPBOOST_WAYS[name]
    names = (f"{'GDF' if filters else 'no GDF'}, {'GLC' if clips else 'no GLC'}" for filters, clips in ways)
    lines += ["| DPBoost, central only, pure epsilon | paper | " + " | ".join(names) + " |"]
    lines += ["|---" * (2 + len(ways)) + "|"]
    for epsilon, least in product(DPBOOST_EPSILONS[name], (1, 50)):
        cells = []
        for filters, clips in ways:
            sizes = [
                DPBoost(1, trees, depth, rate, ridge, clip, share, filters, clips)
                for (trees, rate), (depth, ridge), share in DPBOOST_SIZES
                if trees >= least
            ]
            means = [_dpboost(bench, data, size, epsilon, (1, FIRST_SEARCH)).mean() for size in sizes]
            chosen = sizes[int(np.argmax(sign_of(name) * np.array(means)))]
            scores = _dpboost(bench, data, chosen, epsilon, (repeats, 1))
            cells.append(f"{scores.mean():.3f} ± {scores.std():.3f} ({chosen.trees_per_ensemble} trees)")
        label, published = f"{epsilon:g}", DPBOOST[name].get(epsilon, "") if least == 1 else ""
        lines.append(f"| {label if least == 1 else label + ', 50 trees'} | {published} | " + " | ".join(cells) + " |")
    lines.append("")


def _dpboost(
    bench: Bench, data: Central, settings: DPBoost, epsilon: float, runs: tuple[int, int]
) -> NDArray[np.float64]:
    """As `repeated`; `runs` are how many on each fold, and the first seed."""
    repeats, first = runs
    return np.array([_central(bench, data, settings, epsilon, first + i) for i in range(repeats * N_FOLDS)])


def _central(bench: Bench, data: Central, settings: DPBoost, epsilon: float, number: int) -> float:
    """The score of one run; `number` is its seed, and decides its fold."""
    rows, test = np.flatnonzero(bench.folds != number % N_FOLDS), bench.folds == number % N_FOLDS

    def run() -> float:
        scores = train_dpboost(data, rows, settings, epsilon, np.random.default_rng(number))[test]
        if data.is_regression:
            return float(r2_score(data.labels[test], np.clip(scores, -1, 1)))
        return float(100 * np.mean((scores > 0) != (data.labels[test] == 1)))

    return bench.noted(("DPBoost", settings, epsilon, number), run)
