"""Figure 20 of CCS'22: bytes, rounds and processor time measured over the engine `grpc`, and accuracy by clients.

Every named method of boosting trains over real sockets, TLS and masks on loopback (`experiments.federation`); what the
coordinator's hub counted stands beside the formulas of the paper's Appendix B. Runs are kept in a CSV and taken up
again.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.datasets import make_classification

from experiments import harness
from experiments.datasets import Table, made_up
from experiments.federation import Loopback
from experiments.harness import Line, Lines, Prepared, mean_and_deviation, table
from hedgerow.methods.boosting.schedule import BoostingSettings
from hedgerow.methods.boosting.settings import resolve_boosting
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.training.presets import PRESETS, Preset, build_model_section
from hedgerow.training.settings import pays_for_candidates

TREES = (25, 100, 300)
CLIENTS = (3, 10, 30)
DEPTH, N_FEATURES, N_CANDIDATES = 4, 10, 32
BOUND = 12.0
"""Public bounds of the made-up features, beyond any of their values that matters."""
ACCURACY_FEATURES = 30
RECORDS = (70, 200, 700, 2_000, 7_000, 20_000, 70_000, 200_000)
TESTED = 20_000
LINES: Mapping[str, tuple[str, int]] = {
    **{f"DP-TR Newton, Q = {q}": ("dp-tr-newton", q) for q in (8, 32, 128)},
    **{f"DP-TR Newton IH, Q = {q}": ("dp-tr-newton-ih", q) for q in (8, 32, 128)},
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
        repeats=(3, "trainings per point of the accuracy"), rows=(10_000, "of each client, as in the paper"),
    )  # fmt: skip
    parser.add_argument("--trees", type=int, nargs="+", default=list(TREES), help="numbers of trees")
    parser.add_argument("--clients", type=int, nargs="+", default=list(CLIENTS), help="numbers of clients, >= 3")
    options = parser.parse_args(argv)
    fewest, *others = sorted(options.clients)
    sizes = [*product([fewest], options.trees), *product(others, [min(options.trees)])]
    wanted = [Measurement(name, clients, trees, options.rows) for clients, trees in sizes for name in METHODS]
    with tempfile.TemporaryDirectory() as folder:
        lines = measure_all(wanted, Lines(options.out / "figure20.csv"), Path(folder))
    points = accuracies(list(product(LINES, RECORDS, range(options.repeats))), options.out / "figure20_accuracy.csv")
    report, holds = report_of(lines, points)
    (options.out / "figure20.txt").write_text(report, encoding="utf-8")
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

    @functools.cached_property
    def plan(self) -> Plan:
        """The preset with that many trees (for each feature, if that is how it counts)."""
        preset = PRESETS[self.method]
        model = build_model_section(preset, N_FEATURES) | {
            "n_trees": self.trees * (N_FEATURES if preset.trees_per_feature else 1)
        }
        if model.get("batch_size") == 25:  # a quarter of the trees
            model["batch_size"] = max(1, self.trees // 4)
        # The schema decides, not the records: any few of them have it.
        return plan_of(preset, table_of(10, N_FEATURES, 0), self.clients * self.rows, {**model, "max_depth": DEPTH})


class Formula(NamedTuple):
    """Appendix B of CCS'22 with the constants that its O() leaves out: two sums per leaf or bin, one for Hessians.

    Rounds of communication are in section B.1, the numbers that one client sends in sections B.1 and B.2.
    """

    rounds: int
    numbers: int


def formula_of(plan: Plan, settings: BoostingSettings) -> Formula:
    """Histograms: T d rounds of 2^i Q k on level i (T of Q for k = 1); random trees: T / B of B 2^d; IH: s of Q m."""
    n_trees, depth, q = settings.n_trees, settings.max_depth, plan.model.n_candidates
    n_batches = -(-n_trees // settings.batch_size)
    if plan.model.split_method == "hist":
        n_levels, k = settings.n_levels_asked(plan), settings.interaction_size
        rounds, numbers = n_batches * n_levels, n_trees * sum(2 * 2**level * q * k for level in range(n_levels))
    else:
        rounds, numbers = n_batches, n_trees * 2 * 2**depth
    if pays_for_candidates(plan):
        rounds += plan.model.candidate_rounds
        numbers += plan.model.candidate_rounds * q * len(plan.features)
    return Formula(rounds, numbers)


def table_of(n: int, n_features: int, seed: int) -> Table:
    """Made-up records of two classes that are easy to tell apart, as the paper has them."""
    x, y = make_classification(
        n, n_features, n_informative=n_features // 2, n_redundant=0, class_sep=2.0, flip_y=0.01, random_state=seed
    )
    return made_up("figure20", x, y, BOUND)


def plan_of(preset: Preset, table: Table, n_records: int, model: Mapping[str, Any]) -> Plan:
    """A preset over so many records with this [model], at epsilon 1 unless it is not to be private."""
    privacy = {"delta": 1e-6, "accountant": "rdp", **preset.privacy}
    return harness.plan_for(table, 1.0 if preset.private else float("inf"), n_records, model, **privacy)


def measure_all(wanted: Sequence[Measurement], store: Lines, folder: Path) -> pd.DataFrame:
    """A row for each that is wanted, in its order; what the store does not hold is measured.

    What the engine counted: `rounds`, releases, and `exchanges`, messages to all clients that they answered; `numbers`,
    integers in the vectors of one client; bytes of one client on average, `sent` and `received` from the first round
    on, `set_up` before it (joining, the plan, keys); `cpu_client` and `cpu_server`, processor seconds of one client's
    node and of the coordinator, wire excluded. `formula` is Appendix B's `Formula`. The folder is for journals and the
    nodes' stores, which are not needed afterwards.
    """
    is_warm: set[str] = set()

    @functools.cache
    def loopback(n_clients: int) -> Loopback:
        (folder / f"{n_clients}-clients").mkdir()
        return Loopback(n_clients, folder / f"{n_clients}-clients")

    def measure(each: Measurement) -> Line:
        if each.method not in is_warm:
            # The first run of a method in a process also loads the machine code that it needs.
            _measure(Measurement(each.method, each.clients, 4, 100), loopback(each.clients))
            is_warm.add(each.method)
        return _measure(each, loopback(each.clients))

    fields = {"plan": lambda each: each.plan.digest, "clients": lambda each: str(each.clients)}
    frame = pd.DataFrame(store.fill(wanted, fields, measure, "Figure 20"))
    numeric = frame.columns.difference(["method", "plan"])
    frame[numeric] = frame[numeric].apply(pd.to_numeric)
    return frame.assign(formula=[formula_of(each.plan, resolve_boosting(each.plan)) for each in wanted])


def _measure(what: Measurement, loopback: Loopback) -> Line:
    plan, n = what.plan, what.clients
    rows = Prepared(table_of(n * what.rows, N_FEATURES, seed=0)).rows_for(plan)
    data = {name: rows.only(np.arange(place, n * what.rows, n)) for place, name in enumerate(loopback.names)}
    run = loopback.run(plan, data, SeededNoise(1, exact=False))
    found = {
        **asdict(what), "plan": plan.digest, "rounds": run.n_rounds, "exchanges": run.n_exchanges,
        "numbers": run.numbers, "sent": run.rounds.received / n, "received": run.rounds.sent / n,
        "set_up": (run.set_up.received + run.set_up.sent) / n,
        "cpu_client": run.cpu_node, "cpu_server": run.cpu_coordinator,
    }  # fmt: skip
    return {name: str(value) for name, value in found.items()}


Accuracy = tuple[str, int, int]
"""One training on so many clients of one record each (figure 20b): its line, how many, the seed."""


def accuracies(wanted: Sequence[Accuracy], file: Path) -> pd.DataFrame:
    """Test AUCs by line, number of clients (`records`) and seed; what the file does not hold is trained."""
    names = ("line", "records", "seed")

    def train(each: Accuracy) -> Line:
        return {**dict(zip(names, map(str, each), strict=True)), "auc": f"{_auc(*each):.6f}"}

    fields = {name: lambda each, place=place: str(each[place]) for place, name in enumerate(names)}
    return pd.DataFrame(Lines(file).fill(wanted, fields, train, "Figure 20b")).astype({"records": int, "auc": float})


def _auc(line: str, records: int, seed: int) -> float:
    (name, q), prepared = LINES[line], Prepared(table_of(records + TESTED, ACCURACY_FEATURES, seed))
    preset, train = PRESETS[name], np.arange(records + TESTED) >= TESTED
    preset = replace(preset, privacy={**preset.privacy, "accountant": preset.accountant})
    plan = plan_of(preset, prepared.table, records, {**preset.model, "n_candidates": q, "structure_seed": seed})
    return harness.train_and_score(prepared, plan, train, seed)[0]


def report_of(lines: pd.DataFrame, points: pd.DataFrame) -> tuple[str, bool]:
    """The report in Markdown, and whether all runs had the rounds of Appendix B, of two exchanges each."""
    holds = all(line.rounds == line.formula.rounds == line.exchanges / 2 for line in lines.itertuples())
    text = [
        "# Figure 20: communication, computation, number of clients",
        "",
        f"Measured over the engine `grpc` on loopback, with TLS and masks: depth {DEPTH}, {N_FEATURES} made-up numeric "
        f"features, Q = {N_CANDIDATES}, {lines.rows[0]:,} rows a client, epsilon 1. Bytes are those of frames that the "
        "coordinator's hub counted, from the first round on, for one client; a round is two exchanges, the vector and "
        "the shares that unmask it, while the paper reckons with three. Appendix B is given with the constants that "
        f"its O() leaves out (two sums a leaf or bin, one where only Hessians are asked for) and {WORD} bytes each. "
        "What is beyond them: a bin for missing values, wider numbers where sums need them, and what every message "
        "takes for keys, signatures and shares, which weighs where messages are short.",
        "",
        f"Rounds are {'' if holds else '**not** '}those of Appendix B in every run, and exchanges twice as many.",
    ]
    fewest = lines.clients.min()
    for trees, own in lines[lines.clients == fewest].groupby("trees"):
        text += ["", f"## T = {trees}, {fewest} clients", "", *_costs(own)]
    text += ["", "## By the number of clients", "", *_by_clients(lines[lines.trees == lines.trees.min()])]
    text += ["", "## Accuracy by the number of clients, one record each (figure 20b)", "", *_accuracy(points)]
    return "\n".join([*text, "", "![Figure 20](figure20.png)"]) + "\n", holds


def _costs(lines: pd.DataFrame) -> list[str]:
    head = (
        "method", "rounds: ours", "App. B", "numbers: ours", "App. B", "sent kB", "App. B kB", "ratio", "received kB",
        "set-up kB", "client CPU s", "server CPU s",
    )  # fmt: skip
    rows = []
    for line in lines.itertuples():
        expected = line.formula.numbers * WORD
        counts = line.rounds, line.formula.rounds, line.numbers, line.formula.numbers
        rows.append((
            PRESETS[line.method].title, *(f"{count:,}" for count in counts), f"{line.sent / 1000:,.0f}",
            f"{expected / 1000:,.0f}", f"{line.sent / expected:.2f}", f"{line.received / 1000:,.0f}",
            f"{line.set_up / 1000:,.0f}", f"{line.cpu_client:.2f}", f"{line.cpu_server:.2f}",
        ))  # fmt: skip
    return table(head, rows)


def _by_clients(lines: pd.DataFrame) -> list[str]:
    counts, cells = sorted(set(lines.clients)), {}
    for line in lines.itertuples():
        kilobytes = f"{line.sent / 1000:,.0f}, {line.received / 1000:,.0f}"
        cells[line.method, line.clients] = f"{kilobytes}, {line.cpu_client:.2f}, {line.cpu_server:.2f}"
    rows = ([PRESETS[name].title, *(cells[name, count] for count in counts)] for name in lines.method.unique())
    return [
        f"T = {lines.trees.min()}. kB that one client sends, kB that it receives, its processor seconds, the server's.",
        "", *table(["method", *(f"{count} clients" for count in counts)], rows),
    ]  # fmt: skip


def _accuracy(points: pd.DataFrame) -> list[str]:
    cells = points.groupby(["records", "line"]).auc.agg(lambda values: mean_and_deviation(values.to_numpy()))
    rows = ([f"{records:,}", *(cells[records, line] for line in LINES)] for records in RECORDS)
    head = ["Test AUC, mean ± standard deviation; 30 features, depth 4, epsilon 1.", ""]
    return [*head, *table(["clients", *LINES], rows)]


def draw(lines: pd.DataFrame, points: pd.DataFrame, path: Path) -> None:
    """Write the PNG: five panels of costs, one of accuracy."""
    by_trees, by_clients = lines[lines.clients == lines.clients.min()], lines[lines.trees == lines.trees.min()]
    kilobytes = "kB sent by a client", lambda own: own.sent / 1000
    with harness.picture(path, 2, 3, (17, 9.5), dpi=80) as (figure, axes):
        _panel(axes[0, 0], by_trees, "trees", *kilobytes)
        _panel(axes[0, 1], by_clients, "clients", *kilobytes)
        _panel(axes[0, 2], by_trees, "trees", "rounds", lambda own: own.rounds)
        _panel(axes[1, 0], by_trees, "trees", "processor seconds of a client", lambda own: own.cpu_client)
        _panel(axes[1, 1], by_trees, "trees", "processor seconds of the server", lambda own: own.cpu_server)
        means = points.groupby(["line", "records"]).auc.mean()
        for marker, name in zip("osD^v<>P", LINES, strict=True):
            axes[1, 2].semilogx(RECORDS, means[name].loc[list(RECORDS)], marker=marker, markersize=4, label=name)
        axes[1, 2].set(xlabel="clients of one record each", ylabel="test AUC")
        axes[1, 2].legend(fontsize=7)
        for index, (_, own) in enumerate(by_trees.groupby("method", sort=False)):
            expected = [formula.numbers * WORD / 1000 for formula in own.formula]
            axes[0, 0].plot(own.trees, expected, color=_colour(index), linestyle="--", linewidth=0.8)
        axes[0, 0].set_title("communication (dashed: Appendix B)")
        figure.legend(*axes[0, 2].get_legend_handles_labels(), loc="lower center", ncols=5, fontsize=8)
        figure.tight_layout(rect=(0, 0.08, 1, 1))


def _panel(axis: Any, lines: pd.DataFrame, x: str, label: str, value: Callable[[pd.DataFrame], Any]) -> None:
    for index, (method, own) in enumerate(lines.groupby("method", sort=False)):
        style = {"color": _colour(index), "marker": "osD^v<>PX*phd"[index], "markersize": 4, "linewidth": 1}
        axis.loglog(own[x], value(own), label=PRESETS[method].title, **style)
    harness.mark(axis, sorted(set(lines[x])))
    axis.set(xlabel=x, ylabel=label)
    axis.grid(alpha=0.3)


def _colour(index: int) -> tuple[float, ...]:
    import matplotlib

    # Pairs of a dark and a light shade: the dark ones first.
    return tuple(matplotlib.colormaps["tab20"]((2 * index) % 20 + (index >= 10)))
