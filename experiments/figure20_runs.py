"""What figure 20 measures: runs over the engine `grpc`, and trainings on more and more clients of one record each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_classification
from sklearn.metrics import roc_auc_score

from experiments.federation import Loopback
from experiments.harness import Lines, progress
from hedgerow.client.node import Node
from hedgerow.data.site_data import SiteData
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.aggregation import PlainAggregation
from hedgerow.server.coordinator import run_program
from hedgerow.training.presets import PRESETS, model_of
from hedgerow.training.settings import Settings, n_levels_asked, pays_for_candidates
from hedgerow.trees.binning import build_grid

TREES = (25, 100, 300)
CLIENTS = (3, 10, 30)
DEPTH, N_FEATURES, N_CANDIDATES = 4, 10, 32
BOUND = 12.0
"""Public bounds of the made-up features, beyond any of their values that matters."""
ACCURACY_FEATURES = 30
RECORDS = (70, 200, 700, 2_000, 7_000, 20_000, 70_000, 200_000)
TESTED = 20_000
LINES: Mapping[str, tuple[str, int]] = {
    "DP-TR Newton, Q = 8": ("dp-tr-newton", 8),
    "DP-TR Newton, Q = 32": ("dp-tr-newton", 32),
    "DP-TR Newton, Q = 128": ("dp-tr-newton", 128),
    "DP-TR Newton IH, Q = 8": ("dp-tr-newton-ih", 8),
    "DP-TR Newton IH, Q = 32": ("dp-tr-newton-ih", 32),
    "DP-TR Newton IH, Q = 128": ("dp-tr-newton-ih", 128),
    "XGBoost-like, no privacy": ("xgboost-like", 64),
    "Hedgerow": ("hedgerow", 32),
}
"""The methods of figure 20b, and ours: the preset and Q."""


@dataclass(frozen=True)
class Measurement:
    """One run over the engine."""

    method: str
    clients: int
    trees: int
    rows: int

    def plan(self) -> Plan:
        """The preset with that many trees (for each feature, if that is how it counts)."""
        preset = PRESETS[self.method]
        model = model_of(preset, N_FEATURES) | {"n_trees": self.trees * (N_FEATURES if preset.trees_per_feature else 1)}
        if model.get("batch_size") == 25:  # a quarter of the trees
            model["batch_size"] = max(1, self.trees // 4)
        records = self.clients * self.rows
        return plan_of(N_FEATURES, records, {**model, "max_depth": DEPTH}, preset.privacy, private=preset.private)


@dataclass(frozen=True)
class Measured:
    """What the engine counted; bytes are of one client, on average, seconds of a processor.

    Attributes:
        plan: digest of the plan.
        rounds, exchanges: releases, and messages to all clients that they answered.
        numbers: integers in the vectors of one client, as the ledger has them.
        sent, received: by one client, from the first round on.
        set_up_sent, set_up_received: before it: joining, the plan, keys.
        cpu_client, cpu_server: of one client's node and of the coordinator, wire excluded.
    """

    method: str
    clients: int
    trees: int
    rows: int
    plan: str
    rounds: int
    exchanges: int
    numbers: int
    sent: float
    received: float
    set_up_sent: float
    set_up_received: float
    cpu_client: float
    cpu_server: float


@dataclass(frozen=True)
class Formula:
    """Appendix B of CCS'22 with the constants that its O() leaves out: two sums per leaf or bin, one for Hessians.

    Attributes:
        rounds: of communication, section B.1.
        numbers: that one client sends, sections B.1 and B.2.
    """

    rounds: int
    numbers: int


def formula_of(plan: Plan, settings: Settings) -> Formula:
    """Histograms: T d rounds of 2^i Q k on level i (T of Q for k = 1); random trees: T / B of B 2^d; IH: s of Q m."""
    n_trees, depth, q = settings.n_trees, settings.max_depth, plan.model.n_candidates
    n_batches = -(-n_trees // settings.batch_size)
    if plan.model.split_method == "hist":
        n_levels, k = n_levels_asked(plan, settings), settings.interaction_size
        rounds, numbers = n_batches * n_levels, n_trees * sum(2 * 2**level * q * k for level in range(n_levels))
    else:
        rounds, numbers = n_batches, n_trees * 2 * 2**depth
    if pays_for_candidates(plan):
        rounds += plan.model.candidate_rounds
        numbers += plan.model.candidate_rounds * q * len(plan.features)
    return Formula(rounds, numbers)


def plan_of(
    n_features: int, n_records: int, model: Mapping[str, Any], privacy: Mapping[str, Any], *, private: bool = True
) -> Plan:
    """A plan over made-up numeric features, at epsilon 1 unless it is not to be private."""
    names = [f"x{number}" for number in range(n_features)]
    return Plan.from_dict(
        {
            "version": 1,
            "name": "figure20",
            "features": [{"name": name, "type": "numeric", "min": -BOUND, "max": BOUND} for name in names],
            "label": {"name": "y", "type": "binary", "classes": ["0", "1"]},
            "model": dict(model),
            "privacy": {
                "epsilon": 1.0 if private else float("inf"), "delta": 1e-6, "n_records": n_records,
                "accountant": "rdp", **privacy,
            },
        }
    )  # fmt: skip


def rows_of(n: int, n_features: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Made-up records of two classes that are easy to tell apart, as the paper has them."""
    x, y = make_classification(
        n, n_features, n_informative=n_features // 2, n_redundant=0, class_sep=2.0, flip_y=0.01, random_state=seed
    )
    return x.astype(np.float32), y.astype(np.int32)


def measure_all(wanted: Sequence[Measurement], store: Lines, folder: Path) -> list[Measured]:
    """Measure what the store does not hold; the lines of all that is wanted, in its order.

    Args: folder: for journals and the nodes' stores, which nobody needs afterwards.
    """
    known = {(line.plan, line.clients): line for line in map(_measured, store.read())}
    missing = [each for each in wanted if (each.plan().digest, each.clients) not in known]
    loopbacks: dict[int, Loopback] = {}
    is_warm: set[str] = set()
    steps = iter(progress(len(missing), "Figure 20"))
    for each in missing:
        if each.clients not in loopbacks:
            own = folder / f"{each.clients}-clients"
            own.mkdir()
            loopbacks[each.clients] = Loopback(each.clients, own)
        if each.method not in is_warm:
            # The first run of a method in a process also loads the machine code that it needs.
            _measure(Measurement(each.method, each.clients, 4, 100), loopbacks[each.clients])
            is_warm.add(each.method)
        line = _measure(each, loopbacks[each.clients])
        known[line.plan, line.clients] = line
        store.append(asdict(line))
        next(steps, None)
    return [known[each.plan().digest, each.clients] for each in wanted]


def _measure(what: Measurement, loopback: Loopback) -> Measured:
    plan = what.plan()
    x, y = rows_of(what.clients * what.rows, N_FEATURES, seed=0)
    codes = build_grid(plan).encode_matrix(x)
    data = {
        name: SiteData(np.ascontiguousarray(codes[:, number :: what.clients]), y[number :: what.clients])
        for number, name in enumerate(loopback.names)
    }
    run = loopback.run(plan, data, SeededNoise(1, exact=False))
    n = what.clients
    return Measured(
        **asdict(what), plan=plan.digest, rounds=run.n_rounds, exchanges=run.n_exchanges, numbers=run.numbers,
        sent=run.rounds.received / n, received=run.rounds.sent / n, set_up_sent=run.set_up.received / n,
        set_up_received=run.set_up.sent / n, cpu_client=run.cpu_node, cpu_server=run.cpu_coordinator,
    )  # fmt: skip


def _measured(line: Mapping[str, str]) -> Measured:
    kinds: dict[str, Any] = {"str": str, "int": int, "float": float}
    return Measured(**{field.name: kinds[str(field.type)](line[field.name]) for field in fields(Measured)})


@dataclass(frozen=True)
class Accuracy:
    """One training on so many clients of one record each (figure 20b)."""

    line: str
    records: int
    seed: int

    @classmethod
    def all(cls, repeats: int) -> list[Accuracy]:
        """Every line at every number of clients."""
        return [cls(line, records, seed) for records in RECORDS for line in LINES for seed in range(repeats)]


Points = dict[tuple[str, int], list[float]]


def accuracies(wanted: Iterable[Accuracy], store: Lines) -> Points:
    """Test AUCs by line and number of clients; what the store does not hold is trained."""
    known = {(line["line"], int(line["records"]), int(line["seed"])): float(line["auc"]) for line in store.read()}
    wanted = list(wanted)
    missing = [each for each in wanted if (each.line, each.records, each.seed) not in known]
    steps = iter(progress(len(missing), "Figure 20b"))
    for each in missing:
        auc = _auc(each)
        known[each.line, each.records, each.seed] = auc
        store.append({**asdict(each), "auc": f"{auc:.6f}"})
        next(steps, None)
    points: Points = {}
    for each in wanted:
        points.setdefault((each.line, each.records), []).append(known[each.line, each.records, each.seed])
    return points


def _auc(what: Accuracy) -> float:
    name, q = LINES[what.line]
    preset = PRESETS[name]
    model = {**preset.model, "n_candidates": q, "structure_seed": what.seed}
    privacy = {**preset.privacy, "accountant": preset.accountant}
    plan = plan_of(ACCURACY_FEATURES, what.records, model, privacy, private=preset.private)
    x, y = rows_of(what.records + TESTED, ACCURACY_FEATURES, what.seed)
    codes = build_grid(plan).encode_matrix(x)
    settings, noise = resolve(plan), SeededNoise(what.seed, exact=False)
    data = SiteData(np.ascontiguousarray(codes[:, TESTED:]), y[TESTED:])
    sums = PlainAggregation([Node("all", data, plan, settings, noise=noise)])
    outcome = run_program(plan, program_for(plan, settings), sums, noise)
    scores = outcome.ensemble.scores(np.ascontiguousarray(codes[:, :TESTED]))[0]
    return float(roc_auc_score(y[:TESTED], scores))
