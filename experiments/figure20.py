"""Figure 20 of CCS'22: bytes, rounds and processor time measured over the engine `grpc`, and accuracy by clients.

Every named method of boosting trains over real sockets, TLS and masks on loopback (`experiments.federation`); what the
coordinator's hub counted stands beside the formulas of the paper's Appendix B. Runs are kept in a CSV and taken up
again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_classification
from sklearn.metrics import roc_auc_score

from experiments import harness
from experiments.datasets import BINARY, number
from experiments.federation import Loopback
from experiments.harness import Lines, heading, mean_and_deviation, progress, row
from hedgerow.data.site_data import SiteData
from hedgerow.methods.registry import resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
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
WORD = 4
"""Bytes of a number, where the formulas' numbers are shown as bytes: what a sum of single precision would take."""
METHODS = tuple(name for name, preset in PRESETS.items() if "algorithm" not in preset.model)


def main(argv: list[str]) -> int:
    """Measure what the CSV files do not hold; write Markdown and PNG; 1 if rounds are not as Appendix B has them."""
    parser = harness.arguments(
        "figure20", __doc__, out="CSV and report", data="not used: the records are made up, as in the paper",
        jobs=(1, "not used: processes would disturb each other's times"),
        repeats=(3, "trainings per point of the accuracy"), rows=(10_000, "of each client, as in the paper"),
    )  # fmt: skip
    parser.add_argument("--trees", type=int, nargs="+", default=list(TREES), help="numbers of trees")
    parser.add_argument("--clients", type=int, nargs="+", default=list(CLIENTS), help="numbers of clients, >= 3")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    fewest, *others = sorted(options.clients)
    wanted = [Measurement(name, fewest, trees, options.rows) for trees in options.trees for name in METHODS]
    wanted += [Measurement(name, count, min(options.trees), options.rows) for count in others for name in METHODS]
    with tempfile.TemporaryDirectory() as folder:
        lines = measure_all(wanted, Lines(options.out / "figure20.csv"), Path(folder))
    points = accuracies(Accuracy.all(options.repeats), Lines(options.out / "figure20_accuracy.csv"))
    report, holds = report_of(lines, points)
    (options.out / "figure20.md").write_text(report, encoding="utf-8")
    draw(lines, points, options.out / "figure20.png")
    print(report)
    return 0 if holds else 1


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
    epsilon = 1.0 if private else float("inf")
    return Plan.from_dict(
        {
            "version": 1,
            "name": "figure20",
            "features": [number(f"x{index}", -BOUND, BOUND) for index in range(n_features)],
            "label": BINARY,
            "model": dict(model),
            "privacy": {
                "epsilon": epsilon, "delta": 1e-6, "n_records": n_records, "accountant": "rdp", **privacy,
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

    Args:
        folder: for journals and the nodes' stores, which are not needed afterwards.
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
    noise = SeededNoise(what.seed, exact=False)
    data = SiteData(np.ascontiguousarray(codes[:, TESTED:]), y[TESTED:])
    outcome = harness.run_plainly(plan, data, noise, node_noise=noise)
    scores = outcome.ensemble.scores(np.ascontiguousarray(codes[:, :TESTED]))[0]
    return float(roc_auc_score(y[:TESTED], scores))


def formula_for(line: Measured) -> Formula:
    """Appendix B for a measured run."""
    plan = Measurement(line.method, line.clients, line.trees, line.rows).plan()
    return formula_of(plan, resolve(plan))


def report_of(lines: Sequence[Measured], points: Points) -> tuple[str, bool]:
    """The report in Markdown, and whether all runs had the rounds of Appendix B, of two exchanges each."""
    holds = all(line.rounds == formula_for(line).rounds and line.exchanges == 2 * line.rounds for line in lines)
    text = [
        "# Figure 20: communication, computation, number of clients",
        "",
        f"Measured over the engine `grpc` on loopback, with TLS and masks: depth {DEPTH}, {N_FEATURES} made-up numeric "
        f"features, Q = {N_CANDIDATES}, {lines[0].rows:,} rows a client, epsilon 1. Bytes are those of frames that the "
        "coordinator's hub counted, from the first round on, for one client; a round is two exchanges, the vector and "
        "the shares that unmask it, while the paper reckons with three. Appendix B is given with the constants that "
        f"its O() leaves out (two sums a leaf or bin, one where only Hessians are asked for) and {WORD} bytes each. "
        "What is beyond them: a bin for missing values, wider numbers where sums need them, and what every message "
        "takes for keys, signatures and shares, which weighs where messages are short.",
        "",
        f"Rounds are {'' if holds else '**not** '}those of Appendix B in every run, and exchanges twice as many.",
    ]
    fewest = min(line.clients for line in lines)
    for trees in sorted({line.trees for line in lines if line.clients == fewest}):
        text += ["", f"## T = {trees}, {fewest} clients", "", *_table(lines, trees, fewest)]
    text += ["", "## By the number of clients", "", *_by_clients(lines)]
    text += ["", "## Accuracy by the number of clients, one record each (figure 20b)", "", *_accuracy(points)]
    return "\n".join([*text, "", "![Figure 20](figure20.png)"]) + "\n", holds


def _table(lines: Sequence[Measured], trees: int, clients: int) -> list[str]:
    head = (
        "method", "rounds: ours", "App. B", "numbers: ours", "App. B", "sent kB", "App. B kB", "ratio", "received kB",
        "set-up kB", "client CPU s", "server CPU s",
    )  # fmt: skip
    rows = heading(*head)
    for line in lines:
        if (line.trees, line.clients) != (trees, clients):
            continue
        formula = formula_for(line)
        expected = formula.numbers * WORD
        ratio = f"{line.sent / expected:.2f}"
        cells = (
            PRESETS[line.method].title, f"{line.rounds:,}", f"{formula.rounds:,}", f"{line.numbers:,}",
            f"{formula.numbers:,}", f"{line.sent / 1000:,.0f}", f"{expected / 1000:,.0f}", ratio,
            f"{line.received / 1000:,.0f}", f"{(line.set_up_sent + line.set_up_received) / 1000:,.0f}",
            f"{line.cpu_client:.2f}", f"{line.cpu_server:.2f}",
        )  # fmt: skip
        rows.append(row(cells))
    return rows


def _by_clients(lines: Sequence[Measured]) -> list[str]:
    trees = min(line.trees for line in lines)
    counts = sorted({line.clients for line in lines})
    found = {(line.method, line.clients): line for line in lines if line.trees == trees}
    text = [f"T = {trees}. kB that one client sends, kB that it receives, its processor seconds, the server's.", ""]
    text += heading("method", *(f"{count} clients" for count in counts))
    for method in dict.fromkeys(line.method for line in lines):
        cells = []
        for count in counts:
            line = found[method, count]
            both = f"{line.sent / 1000:,.0f}, {line.received / 1000:,.0f}"
            cells.append(f"{both}, {line.cpu_client:.2f}, {line.cpu_server:.2f}")
        text.append(row([PRESETS[method].title, *cells]))
    return text


def _accuracy(points: Points) -> list[str]:
    text = ["Test AUC, mean ± standard deviation; 30 features, depth 4, epsilon 1.", ""]
    text += heading("clients", *LINES)
    for records in RECORDS:
        text.append(row([f"{records:,}", *(mean_and_deviation(points[line, records]) for line in LINES)]))
    return text


def draw(lines: Sequence[Measured], points: Points, path: Path) -> None:
    """Write the PNG: five panels of costs, one of accuracy."""
    fewest, least = min(line.clients for line in lines), min(line.trees for line in lines)
    by_trees = [line for line in lines if line.clients == fewest]
    by_clients = [line for line in lines if line.trees == least]
    with harness.picture(path, 2, 3, (17, 9.5), dpi=80) as (figure, axes):
        _panel(axes[0, 0], by_trees, "trees", lambda line: line.sent / 1000, "kB sent by a client")
        _dashed(axes[0, 0], by_trees)
        _panel(axes[0, 1], by_clients, "clients", lambda line: line.sent / 1000, "kB sent by a client")
        _panel(axes[0, 2], by_trees, "trees", lambda line: line.rounds, "rounds")
        _panel(axes[1, 0], by_trees, "trees", lambda line: line.cpu_client, "processor seconds of a client")
        _panel(axes[1, 1], by_trees, "trees", lambda line: line.cpu_server, "processor seconds of the server")
        for index, name in enumerate(LINES):
            means = [np.mean(points[name, records]) for records in RECORDS]
            axes[1, 2].semilogx(RECORDS, means, marker="osD^v<>P"[index], markersize=4, label=name)
        axes[1, 2].set(xlabel="clients of one record each", ylabel="test AUC")
        axes[1, 2].legend(fontsize=7)
        axes[0, 0].set_title("communication (dashed: Appendix B)")
        figure.legend(*axes[0, 2].get_legend_handles_labels(), loc="lower center", ncols=5, fontsize=8)
        figure.tight_layout(rect=(0, 0.08, 1, 1))


def _panel(axis: Any, lines: Sequence[Measured], x: str, value: Callable[[Measured], float], label: str) -> None:
    for index, method in enumerate(dict.fromkeys(line.method for line in lines)):
        own = [line for line in lines if line.method == method]
        axis.loglog(
            [getattr(line, x) for line in own], [value(line) for line in own], color=_colour(index), markersize=4,
            marker="osD^v<>PX*phd"[index], linewidth=1, label=PRESETS[method].title,
        )  # fmt: skip
    places = sorted({getattr(line, x) for line in lines})
    axis.set_xticks(places, [str(place) for place in places])
    axis.set_xticks([], minor=True)
    axis.set(xlabel=x, ylabel=label)
    axis.grid(alpha=0.3)


def _colour(index: int) -> tuple[float, float, float, float]:
    import matplotlib

    # Pairs of a dark and a light shade: the dark ones first.
    red, green, blue, alpha = matplotlib.colormaps["tab20"]((2 * index) % 20 + (index >= 10))
    return red, green, blue, alpha


def _dashed(axis: Any, lines: Sequence[Measured]) -> None:
    for index, method in enumerate(dict.fromkeys(line.method for line in lines)):
        own = [line for line in lines if line.method == method]
        numbers = [formula_for(line).numbers * WORD / 1000 for line in own]
        axis.plot([line.trees for line in own], numbers, color=_colour(index), linestyle="--", linewidth=0.8)
