"""The published code of CCS'22, run here on the paper's splits, beside the paper's numbers and ours.

It says whether a difference from the paper is one from its code. The code is not part of this project: `--code` names a
checkout of Samuel-Maddock/federated-boosted-dp-trees (d3d9a5e). What it imports and these methods never call is
replaced by empty modules, and its histograms by numpy's.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
from sklearn.metrics import roc_auc_score

from experiments import harness, paper
from experiments.catalogue import EXPERIMENTS, Cell
from experiments.harness import Line, Prepared, error_of, mean_and_error, table

UNUSED = ("statsmodels", "xxhash", "bitarray", "six", "dp_multiq", "autodp", "pathos", "pmlb")
REFINED = {"sketch_type": "adaptive_hessian", "sketch_rounds": 5}
ONE_QUERY = {"gradient_budgets": "vector_mechanism"}
IN_TURN = {"feature_interaction_method": "cyclical", "feature_interaction_k": 1}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "iterative_hessian": REFINED,
    "dp-tr-newton-ih-ebm": {**REFINED, **IN_TURN, **ONE_QUERY},
    "partially_random newton": {"split_method": "partially_random", **ONE_QUERY},
    "dp-ebm": {"weight_update_method": "gbm", "full_ebm": True, **IN_TURN, **ONE_QUERY},
}
"""What the authors' scripts pass for a method, beside trees of depth 4, 32 candidates and epsilon."""
WANTED = (
    ("figure12", 0, "iterative_hessian", (0.1, 0.5, 1.0)),
    ("figure3", 1, "iterative_hessian", (200, 300)),
    *((f"figure{number}", 0, "dp-tr-newton-ih-ebm", (100,)) for number in (5, 16, 17, 18)),
    *((f"figure{number}", 0, "dp-ebm", (25, 100)) for number in (5, 16, 17, 18)),
    *((f"figure{number}", 0, "partially_random newton", (25,)) for number in (2, 6, 7, 8)),
)
"""Figures, panels, methods and places whose numbers differ from the paper's."""


class _EmptyModule(ModuleType):
    def __getattr__(self, name: str) -> MagicMock:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


class _Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the modules of `UNUSED` packages as empty ones, whose every name is a mock."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        is_unused = name.split(".")[0] in UNUSED
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_unused else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is empty."""


def authors_class(folder: Path) -> Any:
    """The published class `PrivateGBDT`."""
    histograms = ModuleType("fast_histogram")
    histograms.histogram1d = lambda x, bins, range, weights: np.histogram(x, bins, range, weights=weights)[0]  # type: ignore[attr-defined]
    sys.modules["fast_histogram"] = histograms
    sys.meta_path.insert(0, _Empty())
    sys.path.append(str(folder))
    return importlib.import_module("federated_gbdt.models.gbdt.private_gbdt").PrivateGBDT


def score_authors(model_class: Any, cell: Cell, seed: int, prepared: Prepared) -> float:
    """The test AUC of one run of the published code, on the rows that our run of the same seed trains on."""
    rows, labels = prepared.table.matrix, prepared.table.label.astype(int)
    train = paper.authors_split(prepared.table.label, seed)
    np.random.seed(seed)
    random.seed(seed)
    per_feature = cell.method.trees_per_feature
    n_trees = per_feature or int(cell.method.model["n_trees"])
    with contextlib.redirect_stdout(io.StringIO()):
        model = model_class(
            hist_bin=32, num_trees=n_trees, max_depth=4, dp_method="gaussian_cdp", epsilon=cell.epsilon,
            track_budget=False, **({"split_method": "totally_random"} | ARGUMENTS[cell.method.name]),
        ).fit(rows[train], labels[train])  # fmt: skip
        scores = np.asarray(model.predict_prob(rows[~train]))
    return float(roc_auc_score(labels[~train], scores if scores.ndim == 1 else scores[:, -1]))


def cells() -> Iterator[tuple[Cell, float]]:
    """Each wanted cell, with the paper's number."""
    for name, number, method, places in WANTED:
        panel = EXPERIMENTS[name].panels[number]
        for cell in panel.cells:
            if cell.method.name == method and cell.x in places:
                yield cell, panel.published[method][cell.x]


def main(argv: Sequence[str]) -> int:
    """Run the published code and ours, and print both beside the paper."""
    parser = harness.arguments("authors", __doc__, repeats=(10, "runs of each code a cell, on 5 splits"))
    parser.add_argument("--code", type=Path, required=True, help="folder of the published code")
    options = parser.parse_args(argv)
    model_class, rows = authors_class(options.code), []
    found = list(cells())
    for done in harness.progress(len(found), "cells"):
        cell, published = found[done]
        prepared = paper._prepared(cell.data, cell.preparation, options.data)
        theirs, ours = np.empty(options.repeats), np.empty(options.repeats)
        for seed in range(options.repeats):
            theirs[seed] = score_authors(model_class, cell, seed, prepared)
            line: Line = paper._run((cell, seed, options.data))
            ours[seed] = float(line["auc"])
        trees = cell.method.trees_per_feature or cell.method.model["n_trees"]
        paired = f"{np.mean(ours - theirs):+.4f} ({np.mean(ours - theirs) / error_of(ours - theirs):+.1f})"
        where = f"{cell.method.name}, {cell.data}, {trees} trees, epsilon {cell.epsilon:g}"
        rows.append([where, f"{published:.4f}", mean_and_error(theirs), mean_and_error(ours), paired])
    print(f"{options.repeats} runs of each code a cell, on the same 5 splits\n")
    head = ["", "the paper", "its published code", "ours", "ours less its code (in standard errors)"]
    print("\n".join(table(head, rows)))
    return 0
