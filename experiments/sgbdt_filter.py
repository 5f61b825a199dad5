"""The individual Renyi filter in regular training, all sides tuned: figure 6 of arXiv 2309.12041v1, on Abalone.

Three ways: no filter; the filter as the paper has it; the filter that keeps every record's share of the closing rounds
back (`s_gbdt.closing_rounds`). Settings are drawn from one distribution for all, of which each way has as many: with a
filter, a part of the rounds are extra ones, which cost nothing. Rungs of further runs leave fewer and fewer of them, on
divisions of the rows into folds that no other rung has; the last of each way runs on yet other divisions, with noise
and trees that none has had, the same for all ways. The filter is better where the mean of the differences is above zero
by more than two standard errors, worse where it is as far below, and else there is no difference that these runs show.
A standard error is that of the mean over divisions, each of which has one difference, of the means over its folds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.harness import Prepared, ScoreBook
from experiments.sgbdt_runs import DEEP, GRID, LARGEST_RIDGE, N_FOLDS, Bench, Variant, as_paper, printed_multiplier
from hedgerow.privacy.rdp import ORDERS, epsilon_of_curve, sampled_divergence

EPSILONS = (0.54, 0.17)
PRINTED = 0.54
"""With the noise that the paper's conversion as printed asks for at this epsilon."""
ROWS: dict[str, float | None] = {**{f"{epsilon:g}": epsilon for epsilon in EPSILONS}, "printed": None}
"""Rows of the report by name; None is the noise of the printed conversion."""
PAPER = {0.54: (0.479, 0.457)}
"""Section VIII-E: R2 with the filter, and without."""
LARGEST_PRINTED_RATE = 0.2
FREE, PLAIN, CLOSING = "no filter", "filter as in the paper", "filter and closing rounds"
WAYS = (CLOSING, PLAIN, FREE)
N_DRAWN = 64
RUNGS = ((None, 1), (10, 2), (3, 4))
"""How many settings are left, and how many divisions they run on."""
N_DIVISIONS = 20
FIRST_DIVISION, FIRST_RUNG, FIRST_SEED, RUNG_SEED = 2000, 2100, 70_000, 60_000


@dataclass(frozen=True)
class _Side:
    """The settings of one way; `epsilon` is None for the noise of the printed conversion."""

    way: str
    epsilon: float | None

    def epsilon_of(self, variant: Variant) -> float:
        """What a setting keeps."""
        return _as_printed(variant) if self.epsilon is None else self.epsilon

    def settings(self) -> list[Variant]:
        """Those of the usual grid that fit, but for the one that is there for static noise, and drawn ones."""
        known = [v for v in GRID["abalone"] if v.name == "s-gbdt" and v != LARGEST_RIDGE]
        plain = [v for v in known if not v.section.get("extra_rounds")]
        if self.way == FREE:
            known = [v.with_section(v.name, individual_filter=False) for v in plain]
        else:
            known = [v for v in known if v.section.get("extra_rounds")] + [_kept(v) for v in plain]
        if self.way == CLOSING:
            known = [v.with_section(v.name, closing_rounds=int(v.model["n_trees"]) // 5) for v in known]
        random = np.random.default_rng(5)
        found = known + [_drawn(random, self.way) for _ in range(N_DRAWN)]
        # The printed conversion errs by far the most without samples, and the paper has samples.
        return [v for v in found if self.epsilon is not None or v.section["subsampling_ratio"] <= LARGEST_PRINTED_RATE]


def compare_filter(prepared: Prepared, book: ScoreBook, rows: Sequence[str]) -> list[str]:
    """The lines of a report: in each of these rows, the best setting of each way, and both filters' gain.

    Args:
        rows: names in `ROWS`.
    """
    lines = [
        "# S-GBDT on Abalone, R2: the individual filter in regular training, each way tuned by test score", "",
        f"{N_DRAWN} drawn settings and the usual grid for each way; the best of each on {N_DIVISIONS} other divisions "
        f"into {N_FOLDS} folds, each run with noise of its own: mean ± standard deviation of the runs, and the mean "
        "difference to no filter ± its standard error over divisions.", "",
        f"| epsilon | paper: with, without | {' | '.join(WAYS)} | {CLOSING}: gain | {PLAIN}: gain |",
        "|---" * 7 + "|",
    ]  # fmt: skip
    chosen = []
    for epsilon in (ROWS[name] for name in rows):
        label = f"{PRINTED:g} as printed" if epsilon is None else f"{epsilon:g}"
        scores = {}
        for way in WAYS:
            side = _Side(way, epsilon)
            best = _best(prepared, book, side)
            chosen.append(f"- {label}, {way}: {_text(best, side.epsilon_of(best))}")
            scores[way] = _on(prepared, book, (FIRST_DIVISION, N_DIVISIONS), FIRST_SEED, best, side.epsilon_of(best))
        paper = ", ".join(f"{value:g}" for value in PAPER.get(PRINTED if epsilon is None else epsilon, ()))
        cells = " | ".join(f"{scores[way].mean():.3f} ± {scores[way].std():.3f}" for way in WAYS)
        gains = " | ".join(_gain(scores[way] - scores[FREE]) for way in (CLOSING, PLAIN))
        lines.append(f"| {label} | {paper} | {cells} | {gains} |")
    return [*lines, "", "Chosen:", "", *chosen]


def _gain(difference: NDArray[np.float64]) -> str:
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
        "gradient_clip": between(0.06, 0.9),
        "support_share": float(random.choice([0.001, 0.003, 0.01, 0.04])),
        "initial_score_share": float(random.choice([0.0, 0.1])),
    }
    extra_per_regular = float(random.choice([0.1, 0.25, 0.5, 1.0, 2.0, 4.0]))
    closing_per_regular = float(random.choice([0.1, 0.2, 0.4]))
    regular = rounds if way == FREE else max(1, round(rounds / (1 + extra_per_regular)))
    if way == CLOSING:
        section["closing_rounds"] = max(1, round(regular * closing_per_regular))
    return as_paper(
        regular, depth, min(1.0, reach / rounds), ridge * rate, subsampling_ratio=rate,
        individual_filter=way != FREE, extra_rounds=rounds - regular, **section,
    )  # fmt: skip


def _as_printed(variant: Variant) -> float:
    """The epsilon that the trees keep under the noise of the printed conversion."""
    n_train = 4177 * 4 // 5
    rate, rounds = float(variant.section["subsampling_ratio"]), int(variant.model["n_trees"])
    noise = printed_multiplier(PRINTED, 1 / n_train, rate, rounds)
    curve = [rounds * sampled_divergence(order, rate, noise) for order in ORDERS]
    return epsilon_of_curve(ORDERS, curve, 1 / n_train)[0]


def _best(prepared: Prepared, book: ScoreBook, side: _Side) -> Variant:
    """The setting that is left after all rungs, by the mean of all its runs."""
    settings = side.settings()
    scores = [np.empty((0, N_FOLDS))] * len(settings)
    division, seed = FIRST_RUNG, RUNG_SEED
    for n_left, n_divisions in RUNGS:
        if n_left is not None:
            order = np.argsort([-found.mean() for found in scores], kind="stable")[:n_left]
            settings, scores = [settings[i] for i in order], [scores[i] for i in order]
        where = (division, n_divisions)
        more = [_on(prepared, book, where, seed, v, side.epsilon_of(v)) for v in settings]
        scores = [np.concatenate(pair) for pair in zip(scores, more, strict=True)]
        division, seed = division + n_divisions, seed + n_divisions * N_FOLDS
    return settings[int(np.argmax([found.mean() for found in scores]))]


def _on(
    prepared: Prepared, book: ScoreBook, divisions: tuple[int, int], first_seed: int, variant: Variant, epsilon: float
) -> NDArray[np.float64]:
    """Scores on so many divisions from the first one on, with seeds from the first on: [n_divisions, N_FOLDS]."""
    first, n_divisions = divisions
    benches = [Bench(prepared, division=first + number, book=book) for number in range(n_divisions)]
    pairs = [(bench, fold) for bench in benches for fold in range(N_FOLDS)]
    scores = [bench.score(variant, epsilon, fold, first_seed + i) for i, (bench, fold) in enumerate(pairs)]
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
