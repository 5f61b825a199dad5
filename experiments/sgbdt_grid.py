"""The settings that `experiments sgbdt` searches, and what its paper reports (arXiv 2309.12041v1, section VIII)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from experiments.sgbdt_runs import Variant

EPSILONS = {"abalone": (0.17, 0.54, 2.0, 10.0), "adult": (0.15, 0.54, 2.0)}
PAPER_EPSILONS = {"abalone": (0.17, 0.54), "adult": (0.15, 0.54)}
PAPER = {("abalone", 0.17): 0.44, ("abalone", 0.54): 0.47, ("adult", 0.15): 18.1, ("adult", 0.54): 17.1}
"""Figures of section VIII-C: R2 on Abalone at least, error in per cent on Adult at most."""
DPBOOST = {"abalone": {0.1: 0.25, 10.0: 0.39}, "adult": {0.12: 24.7}}
"""The numbers that the text of the paper gives for its baseline, with data filtering."""
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
NO_EXTRAS: dict[str, Any] = {
    "support_share": 0.001, "subsampling_ratio": 1.0, "initial_score_share": 0.0, "individual_filter": False
}  # fmt: skip
AS_PAPER = {"leaf_clip": 1e5, "noise_ridge": 0.0}
OURS: dict[str, Any] = {"splits": "cyclical", "leaf_rule": "shrunk", "subsampling_ratio": 1.0}


def as_paper(n_trees: int, depth: int, rate: float, ridge: float, **section: Any) -> Variant:
    """The paper's method: trees, depth, learning rate, lambda, and fields of [s_gbdt]."""
    model = {"n_trees": n_trees, "max_depth": depth, "learning_rate": rate, "leaf_ridge": ridge, **AS_PAPER}
    return Variant("s-gbdt", model, {"individual_filter": True, "subsampling_ratio": 0.1, **section})


def with_extras(
    n_trees: int, depth: int, rate: float, ridges: tuple[float, float] = (20.0, 0.7), **section: Any
) -> Variant:
    """Cyclical splits and shrunk leaves; `ridges` are lambda and the ridge by the noise."""
    model = {"n_trees": n_trees, "max_depth": depth, "learning_rate": rate}
    model.update(leaf_ridge=ridges[0], noise_ridge=ridges[1])
    return Variant("s-gbdt+", model, {"individual_filter": True, **OURS, **section})


def with_linear_start(n_trees: int, depth: int, rate: float, ridge: float, **section: Any) -> Variant:
    """The paper's method after a linear start."""
    chosen = as_paper(n_trees, depth, rate, ridge, initial_score="linear", **section)
    return replace(chosen, name="s-gbdt+")


FILTERED = {
    "abalone": as_paper(
        20, 5, 0.15, 40.0, gradient_clip=0.8, support_share=0.003, subsampling_ratio=0.2, extra_rounds=40
    ),
    "adult": as_paper(150, 6, 0.5, 50.0, gradient_clip=1.0, support_share=0.04, extra_rounds=75),
}
"""Settings that live on the filter: a wide clip, and extra rounds."""
DEEP = (
    as_paper(555, 8, 0.185, 1169.0, gradient_clip=0.219, **NO_EXTRAS),
    as_paper(379, 7, 0.315, 769.0, gradient_clip=0.119, **NO_EXTRAS),
    as_paper(323, 8, 0.24, 64.6, gradient_clip=0.0815, **{**NO_EXTRAS, "subsampling_ratio": 0.1}),
    as_paper(430, 8, 0.275, 772.0, gradient_clip=0.287, **NO_EXTRAS),
    as_paper(795, 8, 0.183, 47.4, gradient_clip=0.283, **{**NO_EXTRAS, "subsampling_ratio": 0.1}),
    as_paper(286, 7, 0.528, 148.0, gradient_clip=0.215, **NO_EXTRAS),
    as_paper(208, 8, 0.0619, 392.0, gradient_clip=0.235, **{**NO_EXTRAS, "initial_score_share": 0.05}),
)
"""Many deep trees with a lambda beyond most leaves' support, so that a value is -(rate / lambda) times a noisy sum of
gradients, whatever the support. They are the best of random searches at epsilon 0.17, 0.54, 2 and 10 with a sketch of
the method in floating point, on divisions that no report has; the searches with the filter found nothing better. The
last was added for epsilon 0.17, where an initial score matters, when the filter's search at 0.54 had been run."""
LARGEST_RIDGE = as_paper(555, 8, 1.0, 6320.0, gradient_clip=0.219, **NO_EXTRAS)
"""The first of `DEEP` with the same rate / lambda at a lambda far beyond every support, where a leaf that is divided by
support and lambda, as under static noise, has nearly the same value."""
DEEP_FILTERED = as_paper(
    303, 7, 0.315, 769.0, gradient_clip=0.119, extra_rounds=76, **{**NO_EXTRAS, "individual_filter": True}
)
"""The best that such a search found with the filter and extra rounds in the paper's order, at epsilon 0.54 and 0.17."""
STREAMED = {
    "abalone": (
        FILTERED["abalone"],
        *(replace(v, model={**v.model, "n_trees": int(v.model["n_trees"]) // 2}) for v in DEEP),
    ),
    "adult": (FILTERED["adult"],),
}
"""Settings of a stream, with the number of rounds before the later rows come; there are as many after."""
GRID: dict[str, tuple[Variant, ...]] = {
    "abalone": (
        as_paper(50, 4, 0.2, 15.0, gradient_clip=0.2, support_share=0.1),
        as_paper(50, 4, 0.2, 15.0, gradient_clip=0.2, support_share=0.1, extra_rounds=25),
        as_paper(50, 3, 0.2, 15.0, gradient_clip=0.3, support_share=0.1, extra_rounds=25),
        as_paper(50, 6, 0.2, 30.0, gradient_clip=0.3, support_share=0.04),
        as_paper(25, 4, 0.3, 15.0, gradient_clip=0.2, support_share=0.1),
        as_paper(150, 6, 0.1, 15.0, gradient_clip=0.3, support_share=0.04),
        as_paper(35, 5, 0.23, 40.0, gradient_clip=0.3, support_share=0.003, subsampling_ratio=0.2),
        as_paper(60, 3, 0.27, 40.0, gradient_clip=0.3, support_share=0.003, subsampling_ratio=0.05),
        as_paper(35, 3, 0.23, 40.0, gradient_clip=0.8, support_share=0.003, subsampling_ratio=0.05, extra_rounds=70),
        as_paper(50, 5, 0.16, 40.0, gradient_clip=0.3, support_share=0.003, initial_score_share=0.0),
        as_paper(
            35, 5, 0.23, 40.0, gradient_clip=0.3, support_share=0.003, subsampling_ratio=0.2, initial_score_share=0.0
        ),
        as_paper(50, 6, 0.2, 30.0, gradient_clip=0.3, support_share=0.04, initial_score_share=0.0),
        as_paper(150, 6, 0.1, 15.0, gradient_clip=0.3, support_share=0.04, initial_score_share=0.0),
        as_paper(200, 6, 0.1, 47.0, gradient_clip=0.26, support_share=0.003),
        as_paper(365, 6, 0.023, 21.0, gradient_clip=0.19, support_share=0.003, subsampling_ratio=0.05),
        as_paper(300, 6, 0.05, 15.0, gradient_clip=0.3, support_share=0.04, initial_score_share=0.0),
        as_paper(300, 6, 0.1, 15.0, gradient_clip=0.4, support_share=0.01, initial_score_share=0.0),
        as_paper(600, 6, 0.1, 15.0, gradient_clip=0.3, support_share=0.04, initial_score_share=0.0),
        as_paper(
            400, 6, 0.15, 150.0, gradient_clip=0.4, support_share=0.01, subsampling_ratio=1.0, initial_score_share=0.0
        ),
        FILTERED["abalone"],
        *DEEP,
        LARGEST_RIDGE,
        DEEP_FILTERED,
        with_extras(16, 3, 0.3, gradient_clip=0.3, support_share=0.01),
        with_extras(24, 3, 0.3, gradient_clip=0.3, support_share=0.01),
        with_extras(48, 2, 0.15, gradient_clip=0.3, support_share=0.1),
        with_extras(
            60, 3, 0.07, (60.0, 1.5), gradient_clip=0.8, support_share=0.003, extra_rounds=18, splits="uniform"
        ),
        with_extras(35, 3, 0.45, (160.0, 1.5), gradient_clip=0.5, support_share=0.01),
        with_extras(60, 5, 0.1, (60.0, 1.0), gradient_clip=0.3, support_share=0.003, splits="uniform"),
        with_extras(48, 3, 0.3, gradient_clip=0.5, support_share=0.01),
        with_extras(100, 3, 0.3, gradient_clip=0.5, support_share=0.01),
        with_linear_start(
            20, 3, 0.1, 200.0, gradient_clip=0.25, support_share=0.01, subsampling_ratio=1.0, initial_score_share=0.9
        ),
        with_linear_start(
            20, 3, 0.2, 100.0, gradient_clip=0.2, support_share=0.01, subsampling_ratio=1.0, initial_score_share=0.8
        ),
        with_linear_start(
            60, 6, 0.1, 30.0, gradient_clip=0.3, support_share=0.04, subsampling_ratio=0.2, initial_score_share=0.3
        ),
    ),
    "adult": (
        as_paper(60, 6, 0.5, 50.0, gradient_clip=1.0, support_share=0.04),
        as_paper(100, 6, 0.3, 20.0, gradient_clip=1.0, support_share=0.04),
        as_paper(100, 8, 0.5, 20.0, gradient_clip=1.0, support_share=0.04),
        FILTERED["adult"],
        as_paper(300, 8, 0.5, 571.0, gradient_clip=0.5, **NO_EXTRAS),
        with_extras(150, 4, 0.3, gradient_clip=1.0, support_share=0.04),
        with_extras(150, 4, 0.5, gradient_clip=1.0, support_share=0.04),
        with_linear_start(60, 6, 0.5, 50.0, gradient_clip=1.0, support_share=0.04, initial_score_share=0.2),
        with_linear_start(
            150, 6, 0.5, 50.0, gradient_clip=1.0, support_share=0.04, initial_score_share=0.2, extra_rounds=75
        ),
    ),
}
