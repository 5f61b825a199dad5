"""What one lying site does to the model, with groups of sites and without, and who notices.

The liar is one of 5, 10 or 50 sites of one size, whose rows are dealt at random or by age. Each declares a fifth more
rows than it has, so the checks of releases allow for so many. The sums are added in the clear, for masks change nothing
about them, and the noise is seeded so that the table can be printed again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from experiments.datasets import load
from experiments.harness import Prepared, arguments, plan_for, progress, rows_of, stratified_split
from hedgerow.client.node import Node
from hedgerow.client.node_session import WORSE_TREES
from hedgerow.data.site_data import SiteData
from hedgerow.methods.registry import resolve
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import TrainingTask, checks_of
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.groups import LineUp
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.secagg.guarantees import dealt
from hedgerow.secagg.transitions import Abandoned
from hedgerow.server.release import GroupedChecks, PlainAggregation, Releaser, Summed, require_plausible
from hedgerow.trees.binning import build_grid
from hedgerow.trees.plausibility import PartitionSums

SITES, EPSILONS, GROUPS = (5, 10, 50), (1.0, 0.1), (0, 3)
SLACK = 1.2
"""Rows that a site declares, for each that it has."""
LEAST_OF_GROUP = 300
"""Test records of a public group whose rate is looked at."""
MOST_OF_HONEST, MOST_MOVED, MOST_MOVED_BY_AGE = 0.01, 0.03, 0.05
"""What groups may cost when all are honest, and one site of ten may move AUC by at epsilon 1."""


class Lie(NamedTuple):
    """What one site does.

    Attributes:
        name: as the table has it.
        times: its sums are multiplied by this; 0 for a site that is not there.
        is_flipped: its rows have the opposite labels, and so are made up.
        is_of_gradients: only its gradients are multiplied; its Hessians are true.
        is_aimed: its made-up rows are those of one public group, with the first label.
    """

    name: str
    times: int = 1
    is_flipped: bool = False
    is_of_gradients: bool = False
    is_aimed: bool = False


LIES = (
    Lie("honest"),
    Lie("not there", times=0),
    Lie("-10 times its sums", times=-10),
    Lie("gradients times -3", -3, is_of_gradients=True),
    Lie("gradients times -8", -8, is_of_gradients=True),
    Lie("gradients times -30", -30, is_of_gradients=True),
    Lie("made-up rows, 2 times", 2, is_flipped=True),
    Lie("made-up rows, 6 times", 6, is_flipped=True),
    Lie("aimed rows, 2 times", 2, is_aimed=True),
    Lie("aimed rows, 6 times", 6, is_aimed=True),
)


class Liar:
    """A node whose sums are multiplied, or only their gradients."""

    def __init__(self, node: Node, lie: Lie) -> None:
        self.site, self.node, self._lie = node.site, node, lie

    def answer(self, query: Query) -> IntVector:
        """The node's answer, or what it sends instead."""
        sums = self.node.answer(query)
        if not self._lie.is_of_gradients:
            return sums * self._lie.times
        if not isinstance(query, PartitionSums):
            return sums
        entries = sums.reshape(-1, query.loss_of(self.node.held.loss).n_statistics).copy()
        entries[:, :-1] *= self._lie.times
        return entries.reshape(-1)


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    n_sites: int
    is_by_age: bool
    epsilon: float
    n_groups: int
    lie: Lie
    names: str = "site"


class Result(NamedTuple):
    """One split: AUC, the share called positive in each public group, what stopped the run, how many honest nodes
    object, in how many rounds no records could add up to the sum of the liar's group, and of another, and whether the
    liar's group, and another one, was out of line by the releases of ten rounds.
    """

    auc: float
    rates: NDArray[np.float64]
    stopped: str
    n_objecting: int
    n_named: int
    n_misnamed: int
    is_told: bool
    is_other_told: bool


def sites_of(plan: Plan, data: SiteData, case: Case, aimed: NDArray[np.bool_], seed: int) -> list[Node | Liar]:
    """Sites with as many rows each; the one in the middle lies."""
    random, n_sites = np.random.default_rng(seed), case.n_sites
    order = random.permutation(data.n_records)
    if case.is_by_age:
        age = data.codes[[name.lower() for name in plan.feature_names].index("age")] + random.random(data.n_records)
        order = np.argsort(np.argsort(age))
    owner, settings, lie = order * n_sites // data.n_records, resolve(plan), case.lie
    nodes: list[Node | Liar] = []
    for site in range(n_sites):
        own = np.flatnonzero(owner == site)
        if site != n_sites // 2:
            nodes.append(Node(f"{case.names}-{site:02d}", data.only(own), plan, settings))
            continue
        rows = data.only(own)
        if lie.is_flipped:
            rows = replace(rows, labels=1 - rows.labels)
        if lie.is_aimed:
            rows = data.only(random.choice(np.flatnonzero(aimed), len(own)))
            rows = replace(rows, labels=np.zeros_like(rows.labels))
        node = Node(f"{case.names}-{site:02d}", rows, plan, settings)
        nodes.append(node if lie == LIES[0] else Liar(node, lie))
    return nodes


def result_of(
    prepared: Prepared, case: Case, groups: list[tuple[int, int]], options: argparse.Namespace, seed: int
) -> Result:
    """One split; a run that the checks stop ends with the model of the rounds before, as a real one does."""
    train = stratified_split(prepared.table.label, seed)
    model = {"n_trees": options.trees, "structure_seed": seed}
    plan = plan_for(prepared.table, case.epsilon, int(train.sum()), model)
    plan = replace(plan, federation=replace(plan.federation, groups=case.n_groups))
    data, test = rows_of(prepared, plan, train), rows_of(prepared, plan, ~train)
    feature, code = groups[0]
    nodes = sites_of(plan, data, case, data.codes[feature] == code, seed)
    run, stopped, counts = carried_out(plan, nodes, case, seed)
    if stopped and not run.end_early():
        return Result(np.nan, np.full(len(groups), np.nan), stopped, *counts)
    ensemble = run.ensemble
    scores = ensemble.scores(test.codes_in(build_grid(plan), ensemble.grid.new_edges))[0]
    rates = np.array([float((scores[test.codes[feature] == code] > 0).mean()) for feature, code in groups])
    return Result(float(roc_auc_score(test.labels, scores)), rates, stopped, *counts)


def public_groups(plan: Plan, rows: SiteData) -> list[tuple[int, int]]:
    """The categories that many records have, by feature and code, those of most positive ones first; without any the
    cells of numbers, or the first number's fullest.
    """
    features = [number for number, feature in enumerate(plan.features) if feature.categories]
    found = [
        (number, int(code))
        for number in features or range(len(plan.features))
        for code, count in zip(*np.unique(rows.codes[number], return_counts=True), strict=True)
        if LEAST_OF_GROUP <= count <= rows.n_records // 10
    ]
    found = [(number, code) for number, code in found if not features or code < len(plan.features[number].categories)]
    found = found or [(0, int(np.bincount(rows.codes[0]).argmax()))]
    return sorted(found, key=lambda group: -float(rows.labels[rows.codes[group[0]] == group[1]].mean()))


def name_of(plan: Plan, feature: int, code: int) -> str:
    """Of a public group."""
    own = plan.features[feature]
    return f"{own.name} {own.categories[code] if own.categories else code}"


def carried_out(
    plan: Plan, nodes: Sequence[Node | Liar], case: Case, seed: int
) -> tuple[Replica, str, tuple[int, int, int, bool, bool]]:
    """A run, why it was stopped, how many honest nodes objected, and in how many rounds the liar's group, and another
    one, was out of line.
    """
    task, releaser = TrainingTask(plan), Releaser(SeededNoise(seed, exact=False))
    run, checks, grouped = Replica(task), checks_of(task), GroupedChecks(lambda: checks_of(task))
    lineup, out_of_line = LineUp(case.n_groups), set[int]()
    of = dealt([node.site.encode() for node in nodes], case.n_groups)
    parts = [[node for node, group in zip(nodes, of, strict=True) if group == number] for number in sorted(set(of))]
    sums = {number: PlainAggregation(part) for number, part in enumerate(parts)}
    declared = int(SLACK * plan.privacy.n_records / case.n_sites)
    summed = {number: Summed(None, one.n_nodes, one.sites, (declared,) * one.n_nodes) for number, one in sums.items()}
    liars, named, misnamed, objecting, stopped = of[case.n_sites // 2], 0, 0, set[str](), ""
    while (query := run.query) is not None:
        totals = {number: one.sum_of(query) for number, one in sums.items()}
        try:
            if case.n_groups:
                released, faults = grouped.packed(query, plan, releaser.release_groups(query, totals), summed)
                named += liars in faults
                misnamed += bool(faults.keys() - {liars})
            else:
                released = releaser.release(query, totals[0])
                require_plausible(checks, query, plan, released, summed[0])
        except Abandoned as fault:
            stopped = f"{fault.code}, round {query.purpose.round}"
            break
        run.feed(released)
        out_of_line |= set(lineup.take(released)) if case.n_groups else set()
        objecting |= {node.site for node in nodes if isinstance(node, Node) and node.n_worse >= WORSE_TREES}
    return run, stopped, (len(objecting), named, misnamed, liars in out_of_line, bool(out_of_line - {liars}))


def line_of(found: list[Result], honest: list[Result], names: list[str]) -> tuple[str, float]:
    """The text of a case, and how far its AUC is from that of honest sites without groups."""
    auc = float(np.mean([one.auc for one in found]))
    moved = np.mean([one.rates for one in found], axis=0) - np.mean([one.rates for one in honest], axis=0)
    worst = int(np.abs(moved).argmax()) if np.isfinite(moved).all() else 0
    rate, before = (float(np.mean([one.rates[worst] for one in results])) for results in (found, honest))
    stopped = sorted({one.stopped for one in found} - {""})
    columns = zip(*((one.n_objecting, one.n_named, one.n_misnamed) for one in found), strict=True)
    counts = "  ".join("/".join(map(str, column)) for column in columns)
    text = f"{auc:7.4f} {rate:6.3f} {before:6.3f}  {names[worst]:<28} {counts}  {'; '.join(stopped)}"
    return text, float(np.mean([one.auc for one in honest])) - auc


def alarms(prepared: Prepared, groups: list[tuple[int, int]], options: argparse.Namespace) -> int:
    """Honest runs of twelve sites whose rows differ by age, dealt to three groups otherwise each time; and liars among
    sites that are alike.
    """
    honest = 0
    for lie in (LIES[0], LIES[3], LIES[4], LIES[6], LIES[8]):
        is_honest = lie == LIES[0]
        n_runs = options.alarms if is_honest else max(1, options.alarms // 20)
        cases = [Case(12, is_honest, 1.0, 3, lie, names=f"run-{number}") for number in range(n_runs)]
        found = [result_of(prepared, case, groups, options, number) for number, case in enumerate(cases)]
        right, wrong = sum(one.is_told for one in found), sum(one.is_other_told for one in found)
        if lie == LIES[0]:
            right, wrong = 0, sum(one.is_told or one.is_other_told for one in found)
            honest = wrong
        who = "rows by age" if is_honest else "rows alike"
        print(f"{lie.name:<24} {who}, {n_runs:>3} runs: its group is told in {right}, another in {wrong}", flush=True)
    return 1 if honest else 0


def main(argv: list[str]) -> int:
    """Print the table; the exit code is 1 when honest groups cost more, or one site of ten moves more, than it may."""
    parser = arguments("poisoning", __doc__, trees=(60, "trees of a model"), splits=(2, "random splits per line"))
    parser.add_argument("--dataset", default="adult", help="adult, bank or credit2 (default adult)")
    parser.add_argument("--sites", type=int, nargs="+", default=list(SITES), help="numbers of sites (default 5 10 50)")
    parser.add_argument("--alarms", type=int, default=0, metavar="N", help="only look for false alarms, in N runs")
    options = parser.parse_args(argv)
    prepared = Prepared(load(options.dataset, options.data))
    plan = plan_for(prepared.table, 1.0, 1000, {})
    groups = public_groups(plan, rows_of(prepared, plan, ~stratified_split(prepared.table.label, 0)))
    names = [name_of(plan, *group) for group in groups]
    if options.alarms:
        return alarms(prepared, groups, options)
    ways = list(product(options.sites, (False, True), EPSILONS))
    steps = progress(len(ways) * len(GROUPS) * len(LIES), "poisoning")
    print("AUC; the share called positive, here and where all are honest, in the public group that moved most; which;")
    print("for each split honest nodes that object, rounds in which the liar's group is told, and any other one is.")
    print(f"Lies are aimed at {names[0]}.")
    holds = True
    for n_sites, is_by_age, epsilon in ways:
        honest: list[Result] = []
        print(f"\n{n_sites} sites, rows {'by age' if is_by_age else 'alike'}, epsilon {epsilon:g}")
        for n_groups, lie in product(GROUPS, LIES):
            next(steps, None)
            if n_groups and n_sites < 3 * n_groups:
                continue
            case = Case(n_sites, is_by_age, epsilon, n_groups, lie)
            found = [result_of(prepared, case, groups, options, seed) for seed in range(options.splits)]
            honest = honest or found
            text, lost = line_of(found, honest, names)
            print(f"{n_groups or 'no':>2} groups  {lie.name:<24} {text}".rstrip(), flush=True)
            most = MOST_MOVED_BY_AGE if is_by_age else MOST_MOVED
            if n_groups and n_sites == SITES[1] and epsilon == 1:
                holds &= lost <= (MOST_OF_HONEST if lie == LIES[0] and not is_by_age else most)
            holds &= not any(one.stopped or one.n_misnamed for one in found) or lie != LIES[0]
    verdict = "holds" if holds else "MISSED"
    print(f"\n{prepared.table.name}, {options.trees} trees, mean of {options.splits} splits: {verdict}")
    return 0 if holds else 1
