# SPDX-License-Identifier: Apache-2.0
"""Attack runs of one's own plan over one's own rows, and compare with what the ledger allows.

Every run here is a real one, with real noise, over rows that were chosen by coins. A unit's contribution to each
release is the answer of a node that holds only that unit. The figures are exact and of private rows: for their owner.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import hypergeom

from hedgerow.attacks.inference import Products, infer_from_scores, infer_from_sums, measure_found, reconstruct
from hedgerow.attacks.measures import Bools, Bound, Figure, Floats, Separation, separate
from hedgerow.client.node import Node
from hedgerow.data.binned import Recoded, SiteData
from hedgerow.data.site_data import SiteRows
from hedgerow.data.units import rows_within_bounds
from hedgerow.local.training import without_secure_aggregation
from hedgerow.methods.registry import program_for, resolve
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import noise_of, noise_of_records
from hedgerow.privacy.events import PureEvent
from hedgerow.privacy.ledger import read_prepared_ledger
from hedgerow.privacy.noise import NoiseSource, SystemNoise
from hedgerow.protocol.queries import IntVector, PureQuery, Query, SampledQuery
from hedgerow.server.release import CountedElsewhere, Outcome, Releaser, check_report
from hedgerow.training.steps import play
from hedgerow.trees.binning import build_grid
from hedgerow.trees.leaf_sums import LeafSums, SiteRecords
from hedgerow.trees.leaves import leaf_weights

Unit = NDArray[np.intp]
"""The rows that the plan protects together, by their numbers."""
Progress = Callable[[str], object]

N_SHADOWS, N_TARGETS, N_RUNS = 64, 16, 8
MAX_UNITS, MAX_SIGNALS, MAX_ALTERED = 1_000, 5_000, 12
"""Units that are told members from others, of every two of which a product is needed; units whose signal is measured;
and columns of which a cell is altered. Of more so many are drawn."""
OUTLIERS = 0.05
_FOR_OWNER = CountedElsewhere("nowhere: what an attack finds is for the owner of the rows alone")
EXACT = 1e-3
"""Assumed error of a sum without noise, per unit of its sensitivity."""
N_ERRORS = 5
"""Standard errors by which a figure may differ from the ledger's: many are looked at, and few are chance's."""


@dataclass(frozen=True, eq=False)
class ObservedRelease:
    """A release of a run, with the exact sum behind it.

    Attributes:
        query: what was asked.
        exact: int64 [length], the sum over the rows.
        released: int64, what was released of it.
        unit: of the noise, standard deviation or scale, by which the ledger counts; without noise the sensitivity.
        claimed: the squared sensitivity in that unit: what the release costs in mu², or epsilon² where it is pure.
        sigma: standard deviation of all noise in the release; 0 without.
    """

    query: Query
    exact: IntVector
    released: IntVector
    unit: float
    claimed: float
    sigma: float

    @property
    def is_sum(self) -> bool:
        """True if the released vector is a sum over all records."""
        return not self.query.is_choice and not self.query.is_sampled

    @property
    def rate(self) -> float:
        """A record's chance to be in the sum."""
        query = self.query
        if isinstance(query, SampledQuery):
            return query.sampling_rate
        return query.pure.sampling_rate if isinstance(query, PureQuery) else 1.0

    def measure_spending(self, vectors: Floats) -> Floats:
        """Compute the cost of records with these vectors [n, length], in the unit of `claimed`: [n]."""
        own = vectors / self.unit
        return np.asarray(np.abs(own).sum(axis=1) ** 2 if self.query.is_pure else (own**2).sum(axis=1))


class SampleAll:
    """Sampling that draws every record, to learn what each would add if drawn."""

    seeded = True

    def draw(self, threshold: int, n_records: int, purpose: str) -> Bools:
        """Draw all records: bool [n_records]."""
        return np.ones(n_records, dtype=np.bool_)


class Target:
    """Runs of a plan over some of a table's units.

    Args:
        plan: whose seed of the trees is known.
        rows: the table; of a unit, as many rows are used as the plan allows.
        noise: of each run.
    """

    def __init__(
        self, plan: Plan, rows: SiteRows, noise: Callable[[], NoiseSource] = lambda: SystemNoise(os.urandom)
    ) -> None:
        self.digest, self.grid = plan.digest, build_grid(plan)
        self.data, self.units = rows.data, group_units(rows, plan)
        self.n_groups = plan.federation.groups
        plan = plan.with_one_sum()
        if plan.privacy.noise == "distributed":
            # At the least, the sites' shares add up to the coordinator's noise; attack this weakest case.
            plan = replace(plan, privacy=replace(plan.privacy, noise="server"))
        self.plan = without_secure_aggregation(replace(plan, federation=replace(plan.federation, min_sites=1)))
        self.settings, self._noise = resolve(self.plan), noise

    def hold(self, rows: SiteData) -> SiteData:
        """Return the rows as a node would hold them; a test overrides this to plant a fault."""
        return rows

    def run(self, chosen: Sequence[Unit]) -> tuple[list[ObservedRelease], Outcome]:
        """Train on these units."""
        rows = self.data.only(np.concatenate(chosen) if chosen else np.zeros(0, dtype=np.intp))
        node, source = Node("attacked", self.hold(rows), self.plan, self.settings), self._noise()
        is_local = self.plan.privacy.noise == "local"
        releaser = Releaser(source, _FOR_OWNER, is_local=is_local, ledger=read_prepared_ledger(self.plan))
        steps = list[ObservedRelease]()

        def answer(query: Query) -> IntVector:
            exact = node.answer(query)
            released = releaser.release(query, exact)
            entry, noise = releaser.ledger.releases[-1], noise_of(query, is_local=is_local)
            unit = entry.sigma or entry.sensitivity
            sigma = float(noise_of_records(noise.record_sigma, rows.n_records)) if is_local else noise.sigma
            if isinstance(entry.event, PureEvent):
                sigma = math.sqrt(2) * entry.sigma
            steps.append(ObservedRelease(query, exact, released, unit, (entry.sensitivity / unit) ** 2, sigma))
            return released

        ensemble = play(program_for(self.plan, self.settings), answer)
        report = check_report(self.plan, releaser.ledger, source)
        return steps, Outcome(self.plan, ensemble, releaser.ledger, report)

    def replay(
        self, steps: Sequence[ObservedRelease], candidates: Sequence[SiteData]
    ) -> Iterator[tuple[ObservedRelease, Floats]]:
        """Yield each release with each candidate's addition if drawn, float64 [n, length]; no choices."""
        held = [self.hold(candidate) for candidate in candidates]
        places = [rows.all_places() for rows in held]
        together = SiteData(
            np.concatenate([rows.codes for rows in held], axis=1),
            np.concatenate([rows.labels for rows in held]),
            None if places[0] is None else np.concatenate([place for place in places if place is not None], axis=1),
        )
        every = Node("candidates", together, self.plan, self.settings, 1, SampleAll()).held
        sites = [replace(every, kept={}) for _ in held]
        sizes = [rows.n_records for rows in held]
        group, ends = np.repeat(np.arange(len(held)), sizes), np.cumsum(sizes)[:-1]
        for step in steps:
            if edges := step.query.new_edges:
                codes = together.codes_in(self.grid, edges, Recoded(every.new_edges, every.records.codes))
                every.records, every.new_edges = every.records._replace(codes=codes), edges
            every.take_in(step.query.update)
            query = replace(step.query, update=None)
            if type(query) is LeafSums:
                # Most releases are of this kind, and computing all candidates at once takes a hundredth of the time.
                yield step, query.answer_each(every, group).astype(np.float64)
                continue
            columns = (np.split(column, ends, axis=-1) for column in every.records)
            for site, own in zip(sites, zip(*columns, strict=True), strict=True):
                site.records = SiteRecords(*map(np.ascontiguousarray, own))
            if query.is_choice:
                for site in sites:
                    query.miss(site)
            else:
                answers = [query.answer(site) for site in sites]
                yield step, np.array(answers, dtype=np.float64).reshape(len(sites), -1)

    def select_rows(self, units: Sequence[Unit]) -> list[SiteData]:
        """Select the rows of each unit."""
        return [self.data.only(unit) for unit in units]


def group_units(rows: SiteRows, plan: Plan) -> list[Unit]:
    """Group the rows used by the plan by unit."""
    if rows.unit is None:
        return [np.array([row]) for row in range(rows.data.n_records)]
    kept, _ = rows_within_bounds({"": rows.unit}, plan)[""]
    _, number = np.unique(rows.unit[kept], return_inverse=True)
    order = np.argsort(number, kind="stable")
    return np.split(kept[order], np.cumsum(np.bincount(number))[:-1])


# What is found --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MembershipFigures:
    """Success of one membership attack: by "scores" or "releases", on "all" units or on "outliers"."""

    attack: str
    targets: str
    n_runs: int
    n_units: int
    found: Separation


@dataclass(frozen=True)
class Reconstruction:
    """Success of reconstructing a table, from "releases" or from the "model file" alone.

    Attributes:
        source: "releases" or "model file".
        n_runs: how many were attacked.
        n_records, n_candidates: means over runs; the candidates hold all records.
        share, unique: of all records, and of those of a kind that is in the table once (nan if a run had none).
        share_error, unique_error: their standard errors.
        chance, unique_chance: who knows the candidates and nothing else.
    """

    source: str
    n_runs: int
    n_records: float
    n_candidates: int
    share: float
    share_error: float
    unique: float
    unique_error: float
    chance: float
    unique_chance: float


@dataclass(frozen=True)
class KindSignal:
    """One unit's contribution to the releases of a kind, as shares of the ledger's charge.

    Attributes:
        kind: of the queries.
        n_releases: how many the ledger has of it.
        charged: the kind's share of the whole mu² (of Laplace noise: of the squared epsilons).
        mean, largest: over the table's units.
        planted: the largest over rows at the corners of the plan.
        noise, noise_error: mean square of the noise in units of the ledger's variance, and its standard error; nan
            where the sum is of a secret sample, or is not noised.
    """

    kind: str
    n_releases: int
    charged: float
    mean: float
    largest: float
    planted: float
    noise: float
    noise_error: float


@dataclass(frozen=True)
class Signal:
    """One unit's contribution to all releases, beside the ledger's charge.

    Attributes:
        n_units: how many were tried.
        mean, largest, planted: shares of the claimed mu² that units really spend, as of `KindSignal`.
        excess: the largest share that one unit spends of one release alone; above 1 the sensitivity is wrong.
        is_additive: whether every exact sum is what its units add one by one; None where samples are secret.
        kinds: one for each kind of query.
    """

    n_units: int
    mean: float
    largest: float
    planted: float
    excess: float
    is_additive: bool | None
    kinds: tuple[KindSignal, ...]


@dataclass(frozen=True)
class Attribute:
    """Which of two values a cell has, for an attacker who knows all else and every other row.

    Attributes:
        column: a feature or the label.
        n_cells: how many were tried.
        right: the share of them that the most powerful test gets right; one half is a coin's.
    """

    column: str
    n_cells: int
    right: Figure


@dataclass(frozen=True)
class AttackReport:
    """Results of the attacks on a plan beside the ledger's bound; `findings` lists contradictions."""

    plan_digest: str
    n_units: int
    rows_per_unit: int
    bound: Bound
    membership: tuple[MembershipFigures, ...]
    reconstruction: tuple[Reconstruction, ...]
    signal: Signal
    attributes: tuple[Attribute, ...]
    findings: tuple[str, ...]
    n_groups: int = 0
    """Groups of sites whose sums a run of the plan keeps apart. The attack is on one sum."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        found = asdict(self)
        return found | {"bound": found["bound"] | {"auc": self.bound.auc, "accuracy": self.bound.accuracy}}


# Carrying it out ------------------------------------------------------------------------------------------------------


def run_attacks(
    target: Target,
    random: np.random.Generator,
    progress: Progress = lambda text: None,
    outliers: Sequence[int] | None = None,
    n_models: tuple[int, int, int] = (N_SHADOWS, N_TARGETS, N_RUNS),
    n_corners: int = 40,
    n_altered: int = 60,
) -> AttackReport:
    """Run all attacks on runs of a target's plan over its table.

    Args:
        random: draws members, corners and other values; not the noise.
        progress: is told what is being done.
        outliers: which units are, by their numbers; None takes the twentieth that releases tell best.
        n_models: shadow models, >= 3; targets, >= 2; and of how many of these the releases are looked at, >= 2.
        n_corners: planted units.
        n_altered: cells of a column.
    """
    signal, attributes, bound = _measure_signal(target, random, progress, n_corners, n_altered)
    membership, reconstruction = _tell_members(target, bound, random, progress, outliers, n_models)
    return AttackReport(
        target.digest, len(target.units), target.plan.privacy.rows_per_unit, bound, membership, reconstruction, signal,
        attributes, tuple(_find_contradictions(membership, signal, attributes)), target.n_groups,
    )  # fmt: skip


def _tell_members(
    target: Target,
    bound: Bound,
    random: np.random.Generator,
    progress: Progress,
    given: Sequence[int] | None,
    n_models: tuple[int, int, int],
) -> tuple[tuple[MembershipFigures, ...], tuple[Reconstruction, ...]]:
    """Train on random halves of the table, and attack membership and the table itself.

    A coin decides for each unit. With exactly half drawn, those outside would reveal those inside, and each test would
    be of two units at once.
    """
    drawn = np.sort(random.permutation(len(target.units))[:MAX_UNITS])
    if given is not None:
        drawn = np.union1d(given, drawn)
    pool = [target.units[each] for each in drawn]
    n, of_row = len(pool), np.repeat(np.arange(len(pool)), [len(unit) for unit in pool])
    candidates, rows = target.select_rows(pool), np.concatenate(pool)
    # Candidates with equal cells form one kind.
    every = [own.codes.tobytes() + own.labels.tobytes() for own in candidates]
    if candidates[0].places is not None:
        every = [key + np.asarray(own.all_places()).tobytes() for key, own in zip(every, candidates, strict=True)]
    kinds = np.unique(np.array(every, dtype=object), return_inverse=True)[1]
    n_shadows, n_targets, n_runs = n_models
    present = random.random((n_targets + n_shadows, n)) < 0.5
    signals, told, powers = [], [], []
    shares = defaultdict(list)
    for model, inside in enumerate(present):
        progress(f"Membership: model {model + 1} of {len(present)}")
        steps, outcome = target.run([unit for unit, is_in in zip(pool, inside, strict=True) if is_in])
        codes = target.data.codes_in(target.grid, outcome.ensemble.grid.new_edges)
        signals.append(outcome.ensemble.scores(codes).T[rows])
        if model >= n_runs:
            continue
        has_weights = outcome.ensemble.leaf_weights is not None
        sources = collect_products(target, steps, candidates, has_weights=has_weights)
        ratios, power = infer_from_sums(sources["releases"])
        told.append(ratios)
        powers.append(power)
        for source, products in sources.items():
            shares[source].append(_rebuild(products, kinds, inside))
    shown, members = np.array(signals), present[n_targets:, of_row]
    by_row = infer_from_scores(shown[n_targets:], members, shown[:n_targets])
    scores = np.add.reduceat(by_row, np.flatnonzero(np.diff(of_row, prepend=-1)), axis=1)
    is_outlier = np.zeros(n, dtype=np.bool_)
    is_outlier[np.argsort(-np.mean(powers, axis=0))[: max(1, round(OUTLIERS * n))]] = True
    if given is not None:
        is_outlier = np.isin(drawn, given)
    membership = tuple(
        MembershipFigures(
            name, targets, len(found), int(which.sum()), separate(found[:, which], present[: len(found), which], bound)
        )
        for name, found in (("scores", scores), ("releases", np.array(told)))
        for targets, which in (("all", np.ones(n, dtype=np.bool_)), ("outliers", is_outlier))
    )
    n_records = float(present[:n_runs].sum(axis=1).mean())
    rebuilt = []
    for source, own in shares.items():
        means, errors = np.mean(own, axis=0), np.std(own, axis=0, ddof=1) / math.sqrt(n_runs)
        of_all, of_unique = (means[0], errors[0]), (means[1], errors[1])
        rebuilt.append(Reconstruction(source, n_runs, n_records, n, *of_all, *of_unique, means[2], means[3]))
    return tuple(membership), tuple(rebuilt)


def collect_products(
    target: Target, steps: Sequence[ObservedRelease], candidates: Sequence[SiteData], *, has_weights: bool
) -> dict[str, Products]:
    """Compute the products of candidates' vectors with all releases, and with a model file's leaf weights."""
    sources = {"releases": Products(len(candidates))}
    if has_weights:
        sources["model file"] = Products(len(candidates))
    for step, vectors in target.replay(steps, candidates):
        sigma = step.sigma or EXACT * step.unit
        sources["releases"].add(vectors, step.released.astype(np.float64), sigma, step.rate)
        if has_weights and isinstance(step.query, LeafSums):
            loss, n_trees = target.settings.loss(target.plan), step.query.trees.n_trees
            own = leaf_weights(vectors.astype(np.int64).reshape(-1), loss, len(vectors) * n_trees).astype(np.float64)
            own = own.reshape(len(vectors), -1)
            weights = leaf_weights(step.released, loss, n_trees).reshape(-1).astype(np.float64)
            n_summed = step.query.length / len(weights) - (0 if loss.counts_classes else max(1, loss.n_outputs))
            sources["model file"].add(own, weights, sigma * math.sqrt(n_summed), step.rate)
    return sources


def _rebuild(products: Products, kinds: NDArray[np.intp], inside: Bools) -> tuple[float, float, float, float]:
    """Return the shares of records and of unique records found, then the same shares for random draws."""
    first = np.unique(kinds, return_index=True)[1]
    truth, all_kinds = np.bincount(kinds[inside], minlength=len(first)), np.bincount(kinds)
    distinct = Products(len(first))
    distinct.gram, distinct.matches = products.gram[np.ix_(first, first)], products.matches[first]
    n_records = int(inside.sum())
    share, unique = measure_found(reconstruct(distinct, n_records), truth)
    # Chance to draw more than `count` records of each kind at random; unique records are alone in their kind.
    drawn = [hypergeom.sf(count, len(kinds), all_kinds[truth > count], n_records) for count in range(max(truth))]
    once = hypergeom.sf(0, len(kinds), all_kinds[truth == 1], n_records)
    chance = sum(float(own.sum()) for own in drawn) / max(1, n_records)
    return share, unique, chance, float(once.mean()) if len(once) else math.nan


def _measure_signal(
    target: Target, random: np.random.Generator, progress: Progress, n_corners: int, n_altered: int
) -> tuple[Signal, tuple[Attribute, ...], Bound]:
    """Run once over the whole table to measure its units' signal, the noise, and attribute guesses."""
    units = [target.units[each] for each in np.sort(random.permutation(len(target.units))[:MAX_SIGNALS])]
    progress(f"Training on {len(units):,} units")
    steps, outcome = target.run(units)
    own = target.select_rows(units)
    altered = _alter(target.plan, own, random, n_altered)
    first = np.array([unit for _, unit, _ in altered], dtype=np.intp)
    corners = _build_corners(target.plan, random, n_corners)
    candidates = [*own, *corners, *(data for _, _, data in altered)]
    n, end = len(own), len(own) + n_corners
    is_local = target.plan.privacy.noise == "local"
    by_kind = defaultdict(list)
    excess, is_additive = 0.0, True
    gaps, leans = np.zeros(len(altered)), np.zeros(len(altered))
    for at, (step, vectors) in enumerate(target.replay(steps, candidates)):
        progress(f"Signal of single units: release {at + 1} of {len(steps)}")
        spent, added = step.measure_spending(vectors[:end]), vectors[:n].sum(axis=0)
        excess = max(excess, float(spent.max()) / step.claimed)
        if step.is_sum and not is_local:
            is_additive &= bool((added == step.exact).all())
        noise = step.released - added * step.rate
        seen = noise / step.sigma if step.is_sum and step.sigma else np.zeros(0)
        by_kind[step.query.purpose.kind].append((step.claimed, spent, float((seen**2).sum()), len(seen)))
        sigma = step.sigma or EXACT * step.unit
        apart = (vectors[first] - vectors[end:]) * step.rate / sigma
        gaps += (apart**2).sum(axis=1)
        leans += apart @ (noise / sigma)
    totals = {name: [sum(each) for each in zip(*releases, strict=True)] for name, releases in by_kind.items()}
    claimed = sum(charged for charged, *_ in totals.values())

    def tell(shares: Floats) -> tuple[float, float, float]:
        return float(shares[:n].mean()), float(shares[:n].max()), float(shares[n:].max())

    kinds = []
    for name, (charged, spent, squares, size) in totals.items():
        # The mean square of Gaussian noise has the variance 2 / n, of Laplace noise 5 / n.
        error = math.sqrt((5 if "Pure" in name else 2) / size) if size else math.nan
        noise = squares / size if size else math.nan
        kinds.append(KindSignal(name, len(by_kind[name]), charged / claimed, *tell(spent / charged), noise, error))
    known = None if is_local or not all(step.is_sum for step in steps) else is_additive
    every = tell(sum(spent for _, spent, *_ in totals.values()) / claimed)
    signal = Signal(n, *every, excess, known, tuple(kinds))
    bound = Bound.of_ledger(outcome.ledger.events(), outcome.report.epsilon, target.plan.privacy.delta)
    # The log-likelihood ratio of the true value against the other: <v - v', noise> + |v - v'|² / 2.
    ratios, columns = leans + gaps / 2, np.array([column for column, _, _ in altered])
    right, attributes = np.where(ratios == 0, 0.5, ratios > 0), []
    for column in dict.fromkeys(columns.tolist()):
        share, count = float(right[columns == column].mean()), int((columns == column).sum())
        error = math.sqrt(max(share * (1 - share), 1 / count) / count)
        attributes.append(Attribute(column, count, Figure(share, error, bound.accuracy)))
    return signal, tuple(attributes), bound


def _build_corners(plan: Plan, random: np.random.Generator, n_corners: int) -> list[SiteData]:
    """Build units of the most rows allowed, all rows at one corner of the plan's space or beyond it."""
    grid, (low, high) = build_grid(plan), plan.label.kind.encoded_range(plan.label)
    codes = [random.choice([0, feature.n_codes - 2, feature.n_codes - 1], n_corners) for feature in grid.features]
    labels = np.resize([low, high, (low + high) // 2], n_corners).astype(np.int32)
    places = random.choice([0, 255], (len(grid.divisible), n_corners)).astype(np.uint8) if grid.divisible else None
    rows = SiteData(np.array(codes, dtype=grid.dtype), labels, places)
    return [rows.only(np.full(plan.privacy.rows_per_unit, corner)) for corner in range(n_corners)]


def _alter(
    plan: Plan, own: Sequence[SiteData], random: np.random.Generator, n_altered: int
) -> list[tuple[str, int, SiteData]]:
    """Replace one cell of a unit by another unit's value; return (column, unit, its altered rows)."""
    divisible, names, found = build_grid(plan).divisible, [*plan.feature_names, plan.label.name], []
    columns = [*random.permutation(len(plan.features))[:MAX_ALTERED].tolist(), len(plan.features)]
    for column in sorted(columns):
        for unit in random.permutation(len(own))[:n_altered].tolist():
            given, other = own[unit], own[int(random.integers(len(own)))]
            # Append the label as a further row of codes.
            cells, theirs = (np.vstack([rows.codes.astype(np.int32), rows.labels]) for rows in (given, other))
            if cells[column, 0] == theirs[column, 0]:
                continue
            cells[column, 0] = theirs[column, 0]
            places, others = given.all_places(), other.all_places()
            if places is not None and others is not None and column in divisible:
                places = places.copy()
                places[divisible.index(column), 0] = others[divisible.index(column), 0]
            found.append((names[column], unit, SiteData(cells[:-1].astype(given.codes.dtype), cells[-1], places)))
    return found


def _find_contradictions(
    membership: Sequence[MembershipFigures], signal: Signal, attributes: Sequence[Attribute]
) -> Iterator[str]:
    """Yield each finding that the ledger does not allow."""
    for one in membership:
        if one.found.is_above(N_ERRORS):
            yield f"members are told by {one.attack} ({one.targets}) better than the ledger allows"
    if signal.excess > 1 + 1e-9:
        yield f"one unit adds {signal.excess:.3g} times the squared sensitivity of a release"
    if (most := max(signal.largest, signal.planted)) > 1 + 1e-9:
        yield f"one unit spends {most:.3g} of the claimed mu²"
    if signal.is_additive is False:
        yield "a sum is not what its units add one by one"
    for kind in signal.kinds:
        # Wilson and Hilferty 1931: the cube root of a mean square is nearly Gaussian, even for few entries.
        spread = kind.noise_error**2 / 9
        if abs(kind.noise ** (1 / 3) - 1 + spread) > N_ERRORS * math.sqrt(spread):
            yield f"the noise of {kind.kind} has {kind.noise:.3g} times the ledger's variance"
    for column in attributes:
        if column.right.is_above(N_ERRORS):
            yield f"values of {column.column!r} are told better than the ledger allows"
