"""What one lying site does to the model, with groups of sites and without, and who notices.

The liar is one of 5, 10 or 50 sites of one size, whose rows are dealt at random or by age. Each declares a fifth more
rows than it has, so the checks of releases allow for so many. The sums are added in the clear, for masks change nothing
about them, and the noise is seeded so that the table can be printed again. Groups are those of the roster, with noise
of the coordinator, or drawn anew, with as much more noise as the sites' shares make.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from experiments.datasets import load
from experiments.harness import Prepared, arguments, plan_for, progress, rows_of, stratified_split
from hedgerow.client.node import Node, cast_vote
from hedgerow.client.node_session import WORSE_TREES
from hedgerow.data.binned import SiteData
from hedgerow.methods.registry import resolve
from hedgerow.methods.replica import Replica
from hedgerow.methods.tasks import TrainingTask, build_checks
from hedgerow.methods.votes import find_power
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.protocol.groups import LineUp, count_drawing_rounds, derive_drawing
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.protocol.votes import MIN_POWER, Tally, Vote
from hedgerow.secagg.guarantees import Wishes, assign_groups, default_colluders, derive
from hedgerow.secagg.transitions import SumAbandoned
from hedgerow.server.release import UNCOUNTED, PlainAggregation, Releaser, RunChecks, SumOrigin
from hedgerow.trees.binning import build_grid
from hedgerow.trees.plausibility import PartitionSums

SITES, EPSILONS = (5, 10, 50), (1.0, 0.1)
WAYS = {"no groups": (0, False), "3 groups": (3, False), "3 drawn": (3, True)}
"""Groups of sites, and whether they are drawn anew."""
WAYS_OF_SEVERAL = {**WAYS, "5 groups": (5, False)}
SLACK = 1.2
"""Rows that a site declares, for each that it has."""
MIN_OF_GROUP = 300
"""Test records of a public group whose rate is looked at."""
MAX_OF_HONEST, MAX_MOVED, MAX_MOVED_BY_AGE = 0.01, 0.03, 0.05
"""What groups may cost when all are honest, and one site of ten may move AUC by at epsilon 1."""


class Lie(NamedTuple):
    """What one site does.

    Attributes:
        name: as the table has it.
        times: its sums are multiplied by this; 0 for a site that is not there.
        is_flipped: its rows have the opposite labels, and so are made up.
        is_of_gradients: only its gradients are multiplied; its Hessians are true.
        is_aimed: its made-up rows are those of one public group, with the first label.
        since: share of the run that has passed when it begins.
        every: it lies in one round of so many.
        own_label: all its rows have this label.
        is_added: its sums are its own and those of the aimed rows, and not of these alone.
        only: of several, when they lie: "" for always, "majority" where they have more than half of the groups, or
            "beside" where a victim, the first site, is in their group.
    """

    name: str
    times: int = 1
    is_flipped: bool = False
    is_of_gradients: bool = False
    is_aimed: bool = False
    since: float = 0.0
    every: int = 1
    own_label: int | None = None
    is_added: bool = False
    only: str = ""


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
    # The bounds were chosen without these.
    Lie("-8 in the second half", -8, is_of_gradients=True, since=0.5),
    Lie("-8 in every third round", -8, is_of_gradients=True, every=3),
    Lie("one label, 3 times", 3, own_label=1),
    Lie("its own and aimed rows", 2, is_aimed=True, is_added=True),
)
LIES_OF_SEVERAL = (
    LIES[4],
    Lie("-8 with a majority", -8, is_of_gradients=True, only="majority"),
    Lie("-8 beside a victim", -8, is_of_gradients=True, only="beside"),
    LIES[6],
)


class Liar:
    """A node whose sums are multiplied, or only their gradients.

    Args: node: of the rows that it lies with; n_rounds: of the run; own: of its own rows, where their sums are added.

    Attributes:
        is_silent: it multiplies nothing in this round.
    """

    def __init__(self, node: Node, lie: Lie, n_rounds: int = 1, own: Node | None = None) -> None:
        self.site, self.node, self._lie, self._own = node.site, node, lie, own
        self._first, self.is_silent = int(lie.since * n_rounds), False

    def answer(self, query: Query) -> IntVector:
        """The node's answer, or what it sends instead."""
        sums, number = self.node.answer(query), query.purpose.round
        if self.is_silent or number < self._first or number % self._lie.every:
            return sums
        if not self._lie.is_of_gradients:
            own = 0 if self._own is None else self._own.answer(query)
            return sums * self._lie.times + own
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
    way: str
    lie: Lie
    names: str = "site"
    n_liars: int = 1

    @property
    def liars(self) -> set[int]:
        """Who lies: the one in the middle and those after it; nobody where all are honest."""
        return set() if self.lie == LIES[0] else set(range(self.n_sites // 2, self.n_sites // 2 + self.n_liars))

    @property
    def n_groups(self) -> int:
        """Groups of sites; 0 for one sum."""
        return WAYS_OF_SEVERAL[self.way][0]

    @property
    def is_drawn(self) -> bool:
        """Whether they are drawn anew, with noise of the sites."""
        return WAYS_OF_SEVERAL[self.way][1]


class Result(NamedTuple):
    """One split: AUC, the share called positive in each public group, what stopped the run, how many honest nodes
    object, in how many rounds no records could add up to the sum of a liar's group, and of another, after how many
    rounds it was first told that groups disagree (0: never), whether neither reading of that was true, and how sites
    voted, liars as suits their lie.
    """

    auc: float
    rates: NDArray[np.float64]
    stopped: str
    n_objecting: int
    n_named: int
    n_misnamed: int
    told_in: int
    is_false: bool
    tallies: tuple[Tally, ...] = ()


def sites_of(plan: Plan, data: SiteData, case: Case, aimed: NDArray[np.bool_], seed: int) -> list[Node | Liar]:
    """Sites with as many rows each, of which `Case.liars` lie."""
    random, n_sites = np.random.default_rng(seed), case.n_sites
    order = random.permutation(data.n_records)
    if case.is_by_age:
        age = data.codes[[name.lower() for name in plan.feature_names].index("age")] + random.random(data.n_records)
        order = np.argsort(np.argsort(age))
    owner, settings, lie = order * n_sites // data.n_records, resolve(plan), case.lie
    nodes: list[Node | Liar] = []
    for site in range(n_sites):
        own = np.flatnonzero(owner == site)
        if site not in case.liars:
            nodes.append(Node(f"{case.names}-{site:02d}", data.only(own), plan, settings))
            continue
        rows = data.only(own)
        if lie.is_flipped:
            rows = replace(rows, labels=1 - rows.labels)
        if lie.is_aimed:
            rows = data.only(random.choice(np.flatnonzero(aimed), len(own)))
            rows = replace(rows, labels=np.zeros_like(rows.labels))
        if lie.own_label is not None:
            rows = replace(rows, labels=np.full_like(rows.labels, lie.own_label))
        name = f"{case.names}-{site:02d}"
        node, beside = Node(name, rows, plan, settings), None
        if lie.is_added:
            beside = Node(name, data.only(own), plan, settings)
        nodes.append(node if lie == LIES[0] else Liar(node, lie, settings.schedule(plan).n_rounds, beside))
    return nodes


def result_of(
    prepared: Prepared, case: Case, groups: list[tuple[int, int]], options: argparse.Namespace, seed: int
) -> Result:
    """One split; a run that the checks stop ends with the model of the rounds before, as a real one does."""
    train = stratified_split(prepared.table.label, seed)
    model = {"n_trees": options.trees, "structure_seed": seed}
    plan = plan_for(prepared.table, case.epsilon, int(train.sum()), model)
    plan = replace(plan, federation=replace(plan.federation, groups=case.n_groups, votes=case.n_groups > 0))
    if case.is_drawn:
        plan = replace(plan, privacy=replace(plan.privacy, noise="distributed"))
    data, test = rows_of(prepared, plan, train), rows_of(prepared, plan, ~train)
    feature, code = groups[0]
    nodes = sites_of(plan, data, case, data.codes[feature] == code, seed)
    run, stopped, counts, tallies = carried_out(plan, nodes, case, seed)
    if stopped and not run.end_early():
        return Result(np.nan, np.full(len(groups), np.nan), stopped, *counts, tallies)
    ensemble = run.ensemble
    scores = ensemble.scores(test.codes_in(build_grid(plan), ensemble.grid.new_edges))[0]
    rates = np.array([float((scores[test.codes[feature] == code] > 0).mean()) for feature, code in groups])
    return Result(float(roc_auc_score(test.labels, scores)), rates, stopped, *counts, tallies)


def public_groups(plan: Plan, rows: SiteData) -> list[tuple[int, int]]:
    """The categories that many records have, by feature and code, those of most positive ones first; without any the
    cells of numbers, or the first number's fullest.
    """
    features = [number for number, feature in enumerate(plan.features) if feature.categories]
    found = [
        (number, int(code))
        for number in features or range(len(plan.features))
        for code, count in zip(*np.unique(rows.codes[number], return_counts=True), strict=True)
        if MIN_OF_GROUP <= count <= rows.n_records // 10
    ]
    found = [(number, code) for number, code in found if not features or code < len(plan.features[number].categories)]
    found = found or [(0, int(np.bincount(rows.codes[0]).argmax()))]
    return sorted(found, key=lambda group: -float(rows.labels[rows.codes[group[0]] == group[1]].mean()))


def name_of(plan: Plan, feature: int, code: int) -> str:
    """Of a public group."""
    own = plan.features[feature]
    return f"{own.name} {own.categories[code] if own.categories else code}"


class SharedNoise(SeededNoise):
    """Noise of the sites of a group: the shares of all are in a sum, of which those of few are counted."""

    def __init__(self, seed: int, size: int) -> None:
        super().__init__(seed, exact=False)
        wishes = Wishes(max(1, default_colluders(size)), has_echo=True)
        self._factor = math.sqrt(size / derive(size, wishes).honest_group)

    def sample(self, sigma: int, length: int, purpose: str) -> IntVector:
        """As many numbers, of the sum's deviation."""
        return super().sample(round(sigma * self._factor), length, purpose)


def carried_out(
    plan: Plan, nodes: Sequence[Node | Liar], case: Case, seed: int
) -> tuple[Replica, str, tuple[int, int, int, int, bool], tuple[Tally, ...]]:
    """A run, why it was stopped, what `Result` counts, and the votes."""
    n_sites, n_groups, task = case.n_sites, case.n_groups, TrainingTask(plan)
    noise = SharedNoise(seed, n_sites // n_groups) if case.is_drawn else SeededNoise(seed, exact=False)
    releaser, run, checks = Releaser(noise, UNCOUNTED), Replica(task, n_sites), RunChecks(lambda: build_checks(task))
    tallies, own_noise = list[Tally](), SeededNoise(seed, exact=False)
    n_rounds = count_drawing_rounds(task.schedule.n_rounds) if case.is_drawn else 0
    lineup, told_in, is_false, liars = LineUp(n_sites, max(1, n_groups), n_rounds), 0, False, case.liars
    keys, declared = [node.site.encode() for node in nodes], int(SLACK * plan.privacy.n_records / n_sites)
    named, misnamed, objecting, stopped = 0, 0, set[str](), ""
    while (query := run.query) is not None:
        of = assign_groups(keys, n_groups, derive_drawing(seed, run.n_releases // n_rounds if n_rounds else 0))
        parts = [[site for site in range(n_sites) if of[site] == group] for group in range(max(1, n_groups))]
        spoilt = {group for group, part in enumerate(parts) if not liars.isdisjoint(part)}
        for site in liars:
            is_silent = case.lie.only == "majority" and 2 * len(spoilt) <= len(parts)
            nodes[site].is_silent = is_silent or (case.lie.only == "beside" and of[site] != of[0])  # type: ignore[union-attr]
        there = [[nodes[site] for site in part] for part in parts]
        totals = {group: PlainAggregation(own).sum_answers(query) for group, own in enumerate(there)}
        summed = {
            group: SumOrigin(None, len(own), tuple(node.site for node in own), (declared,) * len(own))
            for group, own in enumerate(there)
        }
        faults: set[int] = set()
        try:
            noisy = releaser.release_groups(query, totals, n_groups)
            released, found = checks.check(query, plan, noisy, summed)
            faults = set(found)
            named += bool(faults & spoilt)
            misnamed += bool(faults - spoilt)
        except SumAbandoned as fault:
            stopped = f"{fault.code}, round {query.purpose.round}"
            said = {group for group, origin in summed.items() if all(site in fault.what for site in origin.sites or ())}
            misnamed += bool(said - spoilt)
            break
        votes = votes_of(nodes, case, run, own_noise)
        if len(votes):
            tallies.append(Tally.count(votes))
        run.feed(np.concatenate([released, votes]))
        for told in lineup.take(released, parts) if n_groups else ():
            told_in = told_in or run.n_releases
            both = (liars.isdisjoint(told.alone), any(liars.isdisjoint(group) for group in told.others))
            is_false |= not liars or all(both)
        objecting |= {node.site for node in nodes if isinstance(node, Node) and node.n_worse >= WORSE_TREES}
    return run, stopped, (len(objecting), named, misnamed, told_in, is_false), tuple(tallies)


def votes_of(nodes: Sequence[Node | Liar], case: Case, run: Replica, noise: SeededNoise) -> IntVector:
    """What all sites say of the model so far; nothing in most rounds.

    Those who turn the model round say that it is good. Those who frame others say that an honest model is bad.
    """
    asked, lie = run.vote, Vote.OBJECTS if case.lie.only == "beside" else Vote.AGREES
    said = [
        lie if isinstance(node, Liar) else cast_vote(asked, node.sum_rows(asked), node.site, noise)
        for node in (nodes if asked is not None else ())
        if asked is not None
    ]
    return np.array(said, dtype=np.int64)


def line_of(found: list[Result], honest: list[Result], names: list[str]) -> tuple[str, float, float]:
    """The text of a case, how far its AUC and its worst group's rate are from those of honest sites alone."""
    auc = float(np.mean([one.auc for one in found]))
    moved = np.mean([one.rates for one in found], axis=0) - np.mean([one.rates for one in honest], axis=0)
    worst = int(np.abs(moved).argmax()) if np.isfinite(moved).all() else 0
    rate, before = (float(np.mean([one.rates[worst] for one in results])) for results in (found, honest))
    stopped = sorted({one.stopped for one in found} - {""})
    columns = zip(*((one.n_objecting, one.n_named, one.n_misnamed) for one in found), strict=True)
    told = (f"{'FALSE ' * one.is_false}{one.told_in or '-'}" for one in found)
    counts = "  ".join("/".join(map(str, column)) for column in (*columns, told))
    text = f"{auc:7.4f} {rate:6.3f} {before:6.3f}  {names[worst]:<28} {counts}  {'; '.join(stopped)}"
    return text, float(np.mean([one.auc for one in honest])) - auc, abs(float(moved[worst]))


def alarms(prepared: Prepared, groups: list[tuple[int, int]], options: argparse.Namespace) -> int:
    """Honest runs of twelve sites whose rows differ by age, dealt to three groups otherwise each time; and liars.

    A message is false that names the sites of a sum without a liar, or says two readings of which neither is true.
    """
    false = 0
    for way, lie, is_by_age in product(
        list(WAYS)[1:], (LIES[0], *LIES[2:5], LIES[6], LIES[8], *LIES[10:]), (False, True)
    ):
        is_honest = lie == LIES[0]
        if is_honest and not is_by_age:
            continue
        n_runs = options.alarms if is_honest else max(1, options.alarms // 40)
        cases = [Case(12, is_by_age, 1.0, way, lie, names=f"run-{number}") for number in range(n_runs)]
        found = [result_of(prepared, case, groups, options, number) for number, case in enumerate(cases)]
        rounds = sorted(one.told_in for one in found if one.told_in)
        wrong = sum(one.is_false or one.n_misnamed > 0 for one in found)
        false += wrong
        when = f", in round {rounds[len(rounds) // 2]} in the middle" if rounds else ""
        print(
            f"{way:<9} {lie.name:<24} {'by age' if is_by_age else 'alike '} {n_runs:>3} runs: that groups disagree is "
            f"told in {len(rounds)}{when}; false messages in {wrong}",
            flush=True,
        )
    return 1 if false else 0


def several(prepared: Prepared, groups: list[tuple[int, int]], options: argparse.Namespace) -> int:
    """Print what one, two and three sites do that lie together, and what is told."""
    n_false = 0
    print("AUC of each run; how many honest nodes object, each to its owner; after how many rounds all are told that")
    print("groups disagree; in how many runs a message is false: it names sites without a liar, or (of like rows) has")
    print("two readings of which none is true.")
    for n_sites, is_by_age, epsilon in product(options.sites, options.rows, options.epsilon):
        print(f"\n{n_sites} sites, rows {'by age' if is_by_age else 'alike'}, epsilon {epsilon:g}")
        for way, n_liars, lie in product(WAYS_OF_SEVERAL, range(options.liars + 1), LIES_OF_SEVERAL):
            if n_sites < 3 * WAYS_OF_SEVERAL[way][0] or (n_liars < 2 and lie != LIES_OF_SEVERAL[0]):
                continue
            if (lie.only and not WAYS_OF_SEVERAL[way][0]) or (options.lie and lie.name not in options.lie):
                continue
            lying = lie if n_liars else LIES[0]
            cases = [
                Case(n_sites, is_by_age, epsilon, way, lying, names=f"run-{number}", n_liars=n_liars)
                for number in range(options.splits)
            ]
            found = [result_of(prepared, case, groups, options, seed) for seed, case in enumerate(cases)]
            wrong = sum((one.is_false and not is_by_age) or one.n_misnamed > 0 for one in found)
            n_false += wrong
            columns = (
                " ".join(f"{one.auc:.3f}" for one in found),
                "/".join(str(one.n_objecting) for one in found),
                "/".join(str(one.told_in or "-") for one in found),
                f"false {wrong}",
                "; ".join(sorted({one.stopped for one in found} - {""})),
            )
            print(f"{way:<9}  {n_liars} {lying.name:<24} {'  '.join(columns)}".rstrip(), flush=True)
    return 1 if n_false else 0


CELLS = tuple(product((2, 3), (False, True), (LIES[4], LIES_OF_SEVERAL[1], LIES_OF_SEVERAL[2])))
"""Liars, whether rows differ by age, and when they lie: always, only with a majority, or beside a victim."""
MIN_CALLED, MAX_RAISED = 0.9, 0.01
"""Share of the models turned round that votes call spoilt where they have the power, and of honest runs so called."""


def print_power(prepared: Prepared) -> None:
    """The chance that a vote shows a model that is turned round, by sites and epsilon."""
    n_records = int(stratified_split(prepared.table.label, 0).sum())
    print(f"Chance that a vote shows a model that is turned round, {n_records} rows; below {MIN_POWER}: cannot tell.")
    for n_sites, epsilon in product((9, 12, 30), (0.5, 1.0, 3.0)):
        plan = plan_for(prepared.table, epsilon, n_records, {})
        plan = replace(plan, federation=replace(plan.federation, groups=3, votes=True))
        votes = TrainingTask(plan).schedule.votes
        power = 0.0 if votes is None else find_power(plan, votes, [0] * n_sites)
        print(f"{n_sites:>3} sites, epsilon {epsilon:<3g} {power:.2f}")


def votes(prepared: Prepared, groups: list[tuple[int, int]], options: argparse.Namespace) -> int:
    """Print how sites vote on models of two and three liars, of those who frame a site, and of honest sites.

    A model is called spoilt where any of its votes is against it. It is turned round where its AUC is below one half.
    """
    print_power(prepared)
    misses = []
    n_sites, epsilon = options.sites[0], options.epsilon[0]
    print(f"\n{n_sites} sites, epsilon {epsilon:g}, {options.trees} trees, {options.votes} runs with liars.")
    print("Runs; AUC from the lowest to the highest; runs that a check ended, with the model so far or none; models of")
    print(
        "the other runs turned round, and how many of these were called spoilt; others that were; runs in which a false"
    )
    print(
        "sum was said to be of sites without a liar; runs in which all were told that groups disagree, and in how many"
    )
    print("neither reading was of a liar.")
    honest = [(way, 0, is_by_age, LIES[0]) for way, is_by_age in product(("3 groups", "3 drawn"), (False, True))]
    # In groups that stay, liars have the majority always or never.
    lying = [("3 drawn" if lie.only else "3 groups", n_liars, is_by_age, lie) for n_liars, is_by_age, lie in CELLS]
    for way, n_liars, is_by_age, lie in (*lying, *honest):
        n_runs = options.votes if n_liars else options.honest
        if not n_runs:
            continue
        cases = [
            Case(n_sites, is_by_age, epsilon, way, lie, names=f"run-{number}", n_liars=n_liars)
            for number in range(n_runs)
        ]
        found = [result_of(prepared, case, groups, options, seed) for seed, case in enumerate(cases)]
        spoilt = [any(tally.is_against(cases[0].n_groups) for tally in one.tallies) for one in found]
        turned = [one.auc < 0.5 and not one.stopped for one in found]
        aucs = sorted(one.auc for one in found if math.isfinite(one.auc)) or [math.nan]
        n_turned, n_called = sum(turned), sum(map(all, zip(turned, spoilt, strict=True)))
        n_wrong, n_ended = sum(one.n_misnamed > 0 for one in found), sum(one.stopped != "" for one in found)
        n_told, n_false = sum(one.told_in > 0 for one in found), sum(one.is_false for one in found)
        name = f"{way:<9} {n_liars} {lie.name:<22} {'by age' if is_by_age else 'alike '}"
        print(
            f"{name} {n_runs:>3}  {aucs[0]:.3f} to {aucs[-1]:.3f}  ended {n_ended}; turned {n_turned:>2}, called "
            f"{n_called:>2}; others called {sum(spoilt) - n_called}; misnamed {n_wrong}; told {n_told}, of no liar "
            f"{n_false}",
            flush=True,
        )
        if n_called < MIN_CALLED * n_turned:
            misses.append(f"{name}: {n_called} of {n_turned} called")
        if not n_liars and sum(spoilt) > max(1, MAX_RAISED * n_runs):
            misses.append(f"{name}: {sum(spoilt)} honest runs called spoilt")
        if n_wrong or n_false:
            misses.append(f"{name}: sites without a liar were named")
    print(f"\n{prepared.table.name}: {'MISSED: ' + '; '.join(misses) if misses else 'holds'}")
    return 1 if misses else 0


def main(argv: list[str]) -> int:
    """Print the table; the exit code is 1 when honest groups cost more, or one site of ten moves more, than it may."""
    parser = arguments("poisoning", __doc__, trees=(60, "trees of a model"), splits=(2, "random splits per line"))
    parser.add_argument("--dataset", default="adult", help="adult, bank or credit2 (default adult)")
    parser.add_argument("--sites", type=int, nargs="+", default=list(SITES), help="numbers of sites (default 5 10 50)")
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(EPSILONS), help="(default 1 0.1)")
    parser.add_argument("--alarms", type=int, default=0, metavar="N", help="only look for false alarms, in N runs")
    parser.add_argument("--votes", type=int, default=0, metavar="N", help="only how sites vote, in N runs of a cell")
    parser.add_argument("--honest", type=int, default=50, metavar="N", help="with --votes, honest runs of a kind (50)")
    parser.add_argument("--liars", type=int, default=0, metavar="N", help="up to N sites that lie together")
    parser.add_argument("--lie", nargs="+", default=[], metavar="NAME", help="with --liars, only these lies")
    parser.add_argument("--by-age", action="store_const", dest="rows", const=(True,), default=(False,),
                        help="with --liars, rows dealt by age")  # fmt: skip
    options = parser.parse_args(argv)
    prepared = Prepared(load(options.dataset, options.data))
    plan = plan_for(prepared.table, 1.0, 1000, {})
    groups = public_groups(plan, rows_of(prepared, plan, ~stratified_split(prepared.table.label, 0)))
    names = [name_of(plan, *group) for group in groups]
    if options.alarms:
        return alarms(prepared, groups, options)
    if options.votes:
        return votes(prepared, groups, options)
    if options.liars:
        return several(prepared, groups, options)
    ways = list(product(options.sites, (False, True), options.epsilon))
    steps = progress(len(ways) * len(WAYS) * len(LIES), "poisoning")
    print("AUC; the share called positive, here and where all are honest, in the public group that moved most; which;")
    print(
        "for each split honest nodes that object, rounds in which no records add up to the sum of the liar's group, and"
    )
    print("of any other one; and after how many rounds all are told that groups disagree.")
    print(f"Lies are aimed at {names[0]}.")
    misses = []
    for n_sites, is_by_age, epsilon in ways:
        honest: list[Result] = []
        alone = 0.0
        print(f"\n{n_sites} sites, rows {'by age' if is_by_age else 'alike'}, epsilon {epsilon:g}")
        for way, lie in product(WAYS, LIES):
            next(steps, None)
            case = Case(n_sites, is_by_age, epsilon, way, lie)
            if case.n_groups and n_sites < 3 * case.n_groups:
                continue
            found = [result_of(prepared, case, groups, options, seed) for seed in range(options.splits)]
            honest = honest or found
            text, lost, moved = line_of(found, honest, names)
            print(f"{way:<9}  {lie.name:<24} {text}".rstrip(), flush=True)
            if not case.n_groups:
                alone = max(alone, moved if math.isfinite(moved) else 0.0)
            most = MAX_OF_HONEST if lie == LIES[0] else MAX_MOVED_BY_AGE if is_by_age else MAX_MOVED
            if way == "3 groups" and n_sites == SITES[1] and epsilon == 1:
                misses += (
                    [f"{lie.name}, {'by age' if is_by_age else 'alike'}: AUC by {lost:.3f}"] if lost > most else []
                )
                if moved > alone / 2:
                    misses.append(f"{lie.name}, {'by age' if is_by_age else 'alike'}: a group's rate by {moved:.3f}")
            if lie == LIES[0] and any(one.stopped or one.n_misnamed or one.told_in for one in found):
                misses.append(f"{way}: honest sites are told")
    verdict = f"MISSED: {'; '.join(misses)}" if misses else "holds"
    print(f"\n{prepared.table.name}, {options.trees} trees, mean of {options.splits} splits: {verdict}")
    return 1 if misses else 0
