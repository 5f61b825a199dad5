"""What experiments share: splits, plans, seeded runs in process, scores, tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import r2_score, roc_auc_score

from experiments.datasets import Table
from hedgerow.client.node import Node
from hedgerow.client.sampling import SeededSampling
from hedgerow.data.site_data import SiteData
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.aggregation import PlainAggregation
from hedgerow.server.coordinator import Outcome, run_program
from hedgerow.trees.binning import CodeArray, build_grid

CCS22_RECIPE: dict[str, Any] = {
    "split_candidates": "iterative_hessian",
    "candidate_rounds": 5,
    "n_trees": 100,
    "max_depth": 4,
    "n_candidates": 32,
    "interaction": "cyclical",
    "interaction_size": 1,
    "batch_size": 1,
    "learning_rate": 0.3,
    "leaf_ridge": 1.0,
    "noise_ridge": 0.0,
    "leaf_clip": 2.0,
    "joint_clip": "none",
    "hessian_scale": 1.0,
}
"""TR Newton IH EBM of Maddock et al., CCS'22, as a plan of ours (accountant "rdp")."""


@dataclass
class Prepared:
    """A data set whose rows have been binned once for each kind of grid."""

    table: Table
    codes: dict[str, CodeArray] = field(default_factory=dict)

    def codes_for(self, plan: Plan) -> CodeArray:
        """Grid codes of all rows: [n_features, n]."""
        key = f"{plan.model.split_candidates}/{plan.model.n_candidates}/{plan.model.candidate_rounds}"
        if key not in self.codes:
            self.codes[key] = build_grid(plan).encode(self.table.columns)
        return self.codes[key]


def stratified_split(label: NDArray[Any], seed: int, share: float = 0.7) -> NDArray[np.bool_]:
    """True for the rows of the training part; class shares are kept (plain random for a regression)."""
    random = np.random.default_rng(1000 + seed)
    chosen = np.zeros(len(label), dtype=bool)
    groups = [np.arange(len(label))]
    if label.dtype.kind == "i":
        groups = [np.flatnonzero(label == value) for value in np.unique(label)]
    for rows in groups:
        chosen[random.permutation(rows)[: round(share * len(rows))]] = True
    return chosen


def plan_for(table: Table, promised: float, n_train: int, model: Mapping[str, Any], **privacy: Any) -> Plan:
    """A plan over a table's schema, for the promised epsilon; delta = 1 / n_train, as the papers have it."""
    section = {"epsilon": promised, "delta": 1 / n_train, "n_records": n_train, **privacy}
    return Plan.from_dict(
        {
            "version": 1,
            "name": table.name,
            "privacy": section,
            "label": table.label_section,
            "features": list(table.features),
            "model": dict(model),
        }
    )


def algorithm_plan(
    table: Table, epsilon: float, n_train: int, algorithm: str, own: Mapping[str, Any], **privacy: Any
) -> Plan:
    """As `plan_for`, for another algorithm than boosted trees; `own` is its section, `own["model"]` more of [model]."""
    section = {name: value for name, value in own.items() if name != "model"}
    content = plan_for(table, epsilon, n_train, {}).to_dict()
    model = {"algorithm": algorithm, **own.get("model", {})}
    promise = {**content["privacy"], **privacy}
    return Plan.from_dict({**content, "privacy": promise, "model": model, algorithm.replace("-", "_"): section})


def labels_of(table: Table) -> NDArray[np.int32]:
    """Labels as nodes hold them."""
    if not table.is_regression:
        return np.asarray(table.label, dtype=np.int32)
    low, high = table.label_section["min"], table.label_section["max"]
    scaled = np.clip((table.label - low) / (high - low) * 2 - 1, -1, 1)
    return np.asarray(np.rint(scaled * SCORE_UNIT), dtype=np.int32)


def train_and_score(prepared: Prepared, plan: Plan, train: NDArray[np.bool_], seed: int) -> tuple[float, Outcome]:
    """One seeded run on one split: the test AUC (R2 for a regression), and the run's outcome."""
    labels, scores, outcome = held_out_scores(prepared, plan, train, seed)
    measure = r2_score if prepared.table.is_regression else roc_auc_score
    return float(measure(labels, scores)), outcome


def held_out_scores(
    prepared: Prepared, plan: Plan, train: NDArray[np.bool_], seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], Outcome]:
    """One seeded run on one split: the test part's labels (in a regression scaled to [-1, 1]), scores, the outcome."""
    settings = resolve(plan)
    codes, labels = prepared.codes_for(plan), labels_of(prepared.table)
    data = SiteData(np.ascontiguousarray(codes[:, train]), labels[train])
    noise = SeededNoise(seed, exact=False)
    # Samples from the operating system would make every run of an experiment another one.
    sampling = SeededSampling(seed, np.arange(data.n_records))
    aggregation = PlainAggregation([Node("one", data, plan, settings, sampling=sampling, noise=noise)])
    outcome = run_program(plan, program_for(plan, settings), aggregation, noise)
    scores = outcome.ensemble.scores(np.ascontiguousarray(codes[:, ~train]))[0]
    return labels[~train] / (SCORE_UNIT if prepared.table.is_regression else 1), scores, outcome


def scores_over_splits(
    prepared: Prepared, epsilon: float, model: Mapping[str, Any], seeds: range, **privacy: Any
) -> NDArray[np.float64]:
    """Test scores over random 70/30 splits: float64 [len(seeds)]."""
    scores = []
    for seed in seeds:
        train = stratified_split(prepared.table.label, seed)
        plan = plan_for(prepared.table, epsilon, int(train.sum()), {**model, "structure_seed": seed}, **privacy)
        scores.append(train_and_score(prepared, plan, train, seed)[0])
    return np.array(scores)


def progress(total: int, what: str) -> Iterator[int]:
    """Count to `total`, with a bar on a terminal."""
    if not sys.stderr.isatty():
        yield from range(total)
        return
    from rich.progress import track

    yield from track(range(total), description=what)
