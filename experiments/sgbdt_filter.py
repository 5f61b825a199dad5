"""The individual Renyi filter in regular training, both sides tuned: figure 6 of arXiv 2309.12041v1, on Abalone.

Settings are drawn from one distribution for both sides, of which each has as many: with the filter, a part of the
rounds are extra ones, which cost nothing. Rungs of further runs leave fewer and fewer of them. The last of each side
runs on divisions of the rows that no rung has seen, with noise and trees that none has had; both sides share those.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.experiments.harness import Prepared
from hedgerow.experiments.score_book import ScoreBook
from hedgerow.experiments.sgbdt_grid import FIRST_SEARCH, GRID, as_paper
from hedgerow.experiments.sgbdt_runs import N_FOLDS, Bench, Variant, printed_multiplier, repeated
from hedgerow.privacy.renyi import ORDERS, epsilon_of_curve, sampled_divergence

EPSILONS = (0.17, 0.54)
PRINTED = 0.54
"""With the noise that the paper's conversion as printed asks for at this epsilon."""
PAPER = {0.54: (0.479, 0.457)}
"""Section VIII-E: R2 with the filter, and without."""
LARGEST_PRINTED_RATE = 0.2
N_DRAWN = 100
RUNGS = ((15, 3), (4, 10))
"""How many settings are left, and how many more runs on each fold they have."""
N_DIVISIONS = 20
FIRST_DIVISION, FIRST_SEED = 200, 50_000


@dataclass(frozen=True)
class _Side:
    """The settings of one side; `epsilon` is None for the noise of the printed conversion."""

    is_filtered: bool
    epsilon: float | None

    def epsilon_of(self, variant: Variant) -> float:
        """What a setting keeps."""
        return _as_printed(variant) if self.epsilon is None else self.epsilon

    def settings(self) -> list[Variant]:
        """Those of the usual grid that fit, and drawn ones."""
        known = [v for v in GRID["abalone"] if v.name == "s-gbdt"]
        plain = [v for v in known if not v.section.get("extra_rounds")]
        if self.is_filtered:
            more = [v.with_section(v.name, extra_rounds=int(v.model["n_trees"])) for v in plain]
            known = [v for v in known if v.section.get("extra_rounds")] + more
        else:
            known = [v.with_section(v.name, individual_filter=False) for v in plain]
        random = np.random.default_rng(1)
        found = known + [_drawn(random, self.is_filtered) for _ in range(N_DRAWN)]
        # The printed conversion errs by far the most without samples, and the paper has samples.
        return [v for v in found if self.epsilon is not None or v.section["subsampling_ratio"] <= LARGEST_PRINTED_RATE]


def compare_filter(prepared: Prepared, book: ScoreBook) -> list[str]:
    """The lines of a report: at each epsilon, the best setting with the filter against the best without."""
    lines = [
        "# S-GBDT on Abalone, R2: the individual filter in regular training, each side tuned by test score", "",
        f"{N_DRAWN} drawn settings and the usual grid for each side; the best of each on {N_DIVISIONS} other divisions "
        "into 5 folds, each run with noise of its own: mean ± standard deviation.", "",
        "| epsilon | paper: with, without | with the filter | without | difference ± its standard error |",
        "|---" * 5 + "|",
    ]  # fmt: skip
    chosen = []
    for epsilon in (*EPSILONS, None):
        label = f"{PRINTED:g} as printed" if epsilon is None else f"{epsilon:g}"
        scores = []
        for is_filtered in (True, False):
            side = _Side(is_filtered, epsilon)
            best = _best(Bench(prepared, book=book), side)
            chosen.append(f"- {label}, {'with' if is_filtered else 'without'}: {_text(best, side.epsilon_of(best))}")
            scores.append(_fresh(prepared, book, best, side.epsilon_of(best)))
        difference = scores[0] - scores[1]
        error = difference.std(ddof=1) / math.sqrt(len(difference))
        paper = ", ".join(f"{value:g}" for value in PAPER.get(PRINTED if epsilon is None else epsilon, ()))
        cells = " | ".join(f"{found.mean():.3f} ± {found.std():.3f}" for found in scores)
        lines.append(f"| {label} | {paper} | {cells} | {difference.mean():+.4f} ± {error:.4f} |")
    return [*lines, "", "Chosen:", "", *chosen]


def _drawn(random: np.random.Generator, is_filtered: bool) -> Variant:
    """A setting; both sides draw the same numbers, in the same order."""

    def between(low: float, high: float) -> float:
        return float(np.exp(random.uniform(math.log(low), math.log(high))))

    rate = float(random.choice([0.05, 0.1, 0.2, 1.0]))
    rounds, reach = round(between(30, 400)), between(3.5, 30)
    depth, ridge = int(random.integers(4, 7)), between(60, 600)
    section = {
        "gradient_clip": between(0.15, 1.2),
        "support_share": float(random.choice([0.001, 0.003, 0.01, 0.04])),
        "initial_score_share": float(random.choice([0.0, 0.1])),
    }
    extra_per_regular = float(random.choice([0.1, 0.25, 0.5, 1.0, 2.0, 4.0]))
    regular = max(1, round(rounds / (1 + extra_per_regular))) if is_filtered else rounds
    return as_paper(
        regular, depth, min(1.0, reach / rounds), ridge * rate, subsampling_ratio=rate,
        individual_filter=is_filtered, extra_rounds=rounds - regular, **section,
    )  # fmt: skip


def _as_printed(variant: Variant) -> float:
    """The epsilon that the trees keep under the noise of the printed conversion."""
    n_train = 4177 * 4 // 5
    rate, rounds = float(variant.section["subsampling_ratio"]), int(variant.model["n_trees"])
    noise = printed_multiplier(PRINTED, 1 / n_train, rate, rounds)
    curve = [rounds * sampled_divergence(order, rate, noise) for order in ORDERS]
    return epsilon_of_curve(ORDERS, curve, 1 / n_train)[0]


def _best(bench: Bench, side: _Side) -> Variant:
    settings = side.settings()
    scores = [repeated(bench, v, side.epsilon_of(v), 1, FIRST_SEARCH) for v in settings]
    begin = FIRST_SEARCH + N_FOLDS
    for n_left, n_runs in RUNGS:
        order = np.argsort([-found.mean() for found in scores], kind="stable")[:n_left]
        settings = [settings[i] for i in order]
        more = [repeated(bench, v, side.epsilon_of(v), n_runs, begin) for v in settings]
        scores = [np.concatenate([scores[i], new]) for i, new in zip(order, more, strict=True)]
        begin += n_runs * N_FOLDS
    return settings[int(np.argmax([found.mean() for found in scores]))]


def _fresh(prepared: Prepared, book: ScoreBook, variant: Variant, epsilon: float) -> NDArray[np.float64]:
    benches = [Bench(prepared, division=FIRST_DIVISION + number, book=book) for number in range(N_DIVISIONS)]
    pairs = [(bench, fold) for bench in benches for fold in range(N_FOLDS)]
    return np.array([bench.score(variant, epsilon, fold, FIRST_SEED + i) for i, (bench, fold) in enumerate(pairs)])


def _text(variant: Variant, epsilon: float) -> str:
    model, section = variant.model, variant.section
    return (
        f"epsilon {epsilon:.3g}, {model['n_trees']} rounds and {section.get('extra_rounds', 0)} extra, depth "
        f"{model['max_depth']}, rate {model['learning_rate']:.3g}, lambda {model['leaf_ridge']:.3g}, g* "
        f"{section['gradient_clip']:.3g}, r1 {section['support_share']:g}, samples of "
        f"{section['subsampling_ratio']:g}, {'an' if section.get('initial_score_share', 0.1) else 'no'} initial score"
    )
