# SPDX-License-Identifier: Apache-2.0
"""Federated evaluation of a model on held-out rows, as a generator of two queries or more.

    yield ScoreHistogram(fine public bins, the model)      ->  roughly where the scores lie
    yield ScoreHistogram(few bins of even shares, by label) ->  AUC, log-loss, accuracy, calibration;
                                                                of times to an event concordance and Brier score
    yield GroupedSums(the same, by a public column)         ->  the same for each of its groups; for each such column
    yield SiteSums(the same, by site)                       ->  the same for each site that allows it
    (numbers: an outline of the errors, then ErrorMoments or DevianceMoments with the clip that it shows; the outline
    itself has the prediction intervals)

All are noised and charged like any other release. The held-out rows may be of the same units that the model was
trained on (a patient with visits in both). So the cost of an evaluation is added to that of the model, although the
rows are different (no parallel composition).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.errors import PrivacyError
from hedgerow.evaluation import estimates
from hedgerow.evaluation.sums import (
    ERROR_EDGES,
    MAX_BINS,
    MAX_ERROR,
    N_OUTLINE,
    Counts,
    DevianceMoments,
    ErrorMoments,
    EvaluationQuery,
    GroupedSums,
    ScoreHistogram,
    SiteSums,
    choose_bin_count,
    count_groups,
    count_label_rows,
    error_clip,
    even_edges,
    in_bins,
    list_groups,
    names_sites,
    outline_scale,
    visible,
)
from hedgerow.losses.censored import mean_over_time
from hedgerow.losses.registry import loss_kind
from hedgerow.losses.survival import survival_curves
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import calibrate_sigmas, integer_sigma
from hedgerow.privacy.ledger import AT_ONE_SITE
from hedgerow.privacy.schedule import AlikeRounds, Schedule
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.trees.ensemble import Ensemble

EvaluationProgram = Generator[Query, IntVector, estimates.Evaluation]
"""Yields queries, receives the noisy sum of each, returns the evaluation."""
_Outlined = Generator[Query, IntVector, tuple[EvaluationQuery, Callable[[Counts, float], estimates.Evaluation]]]
"""Asks for the outline; returns the question about the detail, and what reads its answer in records, with its noise."""

UNIT = RECORD_NORM
"""The units that one record adds to one cell; with so fine units, noise on the integer grid costs next to nothing."""
OUTLINE_SHARE = 0.2
"""Share of mu**2 that places the bins; the others have even shares of the rest."""


@dataclass(frozen=True, eq=False)
class _EvaluationQueries:
    """The queries of one evaluation, with the facts that they share.

    Attributes:
        plan, ensemble: of the model.
        noise_multipliers: of the outline, of the release that is evaluated, of those by a column; 0 without privacy.
        first_round: the round of the outline.
        name: the first words of the subjects of its releases.
    """

    plan: Plan
    ensemble: Ensemble
    noise_multipliers: tuple[float, ...]
    first_round: int
    name: str

    def sensitivity_squared(self, norm_squared: int) -> int:
        rows = self.plan.privacy.rows_per_unit
        return norm_squared * UNIT * UNIT * rows * rows

    def noise(self, stage: int, query: Query) -> float:
        """Return the standard deviation of the noise of a release, in records."""
        multiplier = self.noise_multipliers[stage]
        one = integer_sigma(multiplier, query.sensitivity_squared) / UNIT if multiplier else 0.0
        # In the local model each record has noise of its own, and only the declared number of records is known.
        return one * math.sqrt(self.plan.privacy.n_records) if self.plan.privacy.noise == "local" else one

    def histogram(self, stage: int, position: str, edges: NDArray[np.int64], *, by_label: bool) -> ScoreHistogram:
        with_hits = by_label and len(edges) > 1
        n_rows = count_label_rows(self.plan.label) if by_label else 1
        subject = f"{self.name}, {'detail' if stage else 'outline'}"
        return ScoreHistogram(
            purpose=ScoreHistogram.purpose_of(self.first_round + stage, subject),
            length=len(edges) * n_rows * (edges.shape[1] + 1) + 2 * with_hits,
            bound=UNIT,
            sensitivity_squared=self.sensitivity_squared(len(edges) + with_hits),
            noise_multiplier=self.noise_multipliers[stage],
            update=None if stage else self.ensemble.fitted,
            new_edges={} if stage else self.ensemble.grid.new_edges,
            ensemble_size=self.ensemble.n_trees if stage else 0,
            position=position,
            edges=edges,
            by_label=by_label,
            with_hits=with_hits,
            unit=UNIT,
        )

    def moments(self, clip: int) -> ErrorMoments | DevianceMoments:
        kind = _choose_moments(self.plan)
        return kind(
            purpose=kind.purpose_of(self.first_round + 1, f"{self.name}, detail"),
            length=kind.n_statistics,
            bound=UNIT,
            sensitivity_squared=self.sensitivity_squared(kind.n_statistics),
            noise_multiplier=self.noise_multipliers[1],
            ensemble_size=self.ensemble.n_trees,
            error_clip=clip,
            unit=UNIT,
        )

    def by(
        self, stage: int, one: EvaluationQuery, column: str, sites: tuple[str, ...]
    ) -> tuple[tuple[str, ...], EvaluationQuery]:
        """Return the names of a column's groups, or of the sites, and the question about each of them."""
        number, subject = self.first_round + stage, f"{self.name}, by {column}"
        shared: dict[str, Any] = {
            "one": one, "bound": UNIT, "unit": UNIT, "sensitivity_squared": one.sensitivity_squared,
            "noise_multiplier": self.noise_multipliers[stage], "ensemble_size": self.ensemble.n_trees,
        }  # fmt: skip
        if names_sites(self.plan, column):
            purpose, length = SiteSums.purpose_of(number, subject), len(sites) * one.length
            return sites, SiteSums(purpose=purpose, length=length, sites=sites, **shared)
        place = self.plan.feature_names.index(column)
        names, group_of = list_groups(self.plan.features[place], self.ensemble.grid.features[place])
        purpose, length = GroupedSums.purpose_of(number, subject), len(names) * one.length
        return names, GroupedSums(purpose=purpose, length=length, feature=place, group_of=group_of, **shared)


def evaluate_ensemble(
    plan: Plan, ensemble: Ensemble, epsilon: float, delta: float, first_round: int = 0, by: Sequence[str] = (),
    sites: Sequence[str] = (), *, is_one_site: bool = False,
) -> EvaluationProgram:  # fmt: skip
    """Run the evaluation of a model at (epsilon, delta), charged on its own.

    Args:
        plan: of the model; its label, unit, rows per unit and accountant count.
        ensemble: the model, which is public.
        epsilon: > 0; infinity for no noise (and no promise).
        first_round: number of the first round: the releases that the model's ledger has so far.
        by: columns of the plan by whose public groups the same is measured, with one more release for each; and
            "site", for each site that allows it.
        sites: all of them, where it is by site.
        is_one_site: whether one site makes it by itself.

    Raises:
        PrivacyError: when no noise keeps (epsilon, delta), or a column has no public groups.
    """
    name = AT_ONE_SITE if is_one_site else "evaluation"
    queries = _EvaluationQueries(plan, ensemble, _noise_multipliers(plan, epsilon, delta, by, sites), first_round, name)
    query, read = yield from _PROGRAMS[plan.label.kind.position](queries)
    found, groups, left_out = read((yield query) / UNIT, queries.noise(1, query)), {}, None
    for stage, column in enumerate(by, 2):
        names, grouped = queries.by(stage, query, column, tuple(sites))
        sums = dict(zip(names, ((yield grouped) / UNIT).reshape(len(names), -1), strict=True))
        if isinstance(grouped, SiteSums):
            # Noise is practically never 0 in all entries, so such a block was left empty.
            left_out = tuple(name for name, block in sums.items() if not block.any())
            sums = {name: block for name, block in sums.items() if name not in left_out}
        noise = queries.noise(stage, grouped)
        groups[column] = {name: replace(read(block, noise), errors=None) for name, block in sums.items()}
    return replace(found, groups=groups, left_out=left_out)


def schedule_of_evaluation(
    plan: Plan, epsilon: float, delta: float, by: Sequence[str] = (), sites: Sequence[str] = ()
) -> Schedule:
    """Return the most that an evaluation asks for, with its cost.

    Raises:
        PrivacyError: when no noise keeps (epsilon, delta).
    """
    return Schedule(_alike_rounds(plan, _noise_multipliers(plan, epsilon, delta, by, sites), by, sites))


def _choose_moments(plan: Plan) -> type[ErrorMoments] | type[DevianceMoments]:
    """Return the kind of the second question about numbers; its length is also its squared norm."""
    return ErrorMoments if loss_kind(plan).deviance is None else DevianceMoments


def _alike_rounds(
    plan: Plan, multipliers: Sequence[float], by: Sequence[str], sites: Sequence[str]
) -> tuple[AlikeRounds, ...]:
    """Return the rounds: an outline, its detail at its longest, and the detail by each column."""
    n_curves, rows = plan.label.n_outputs, plan.privacy.rows_per_unit
    detail: type[Query] = ScoreHistogram
    if plan.label.kind.position == "residual":
        detail, n_moments = _choose_moments(plan), _choose_moments(plan).n_statistics
        outline_norm, norm, outline_length, length = 1, n_moments, len(ERROR_EDGES) + 1, n_moments
    else:
        outline_norm, norm = n_curves, n_curves + (n_curves > 1)
        outline_length, length = n_curves * N_OUTLINE, count_label_rows(plan.label) * n_curves * MAX_BINS + 2
    kinds: list[type[Query]] = [ScoreHistogram, detail]
    kinds += [SiteSums if names_sites(plan, column) else GroupedSums for column in by]
    norms = [outline_norm, norm, *[norm] * len(by)]
    lengths = [outline_length, length, *(count_groups(plan, column, sites) * length for column in by)]
    return tuple(
        AlikeRounds.of(
            kind,
            length=length,
            bound=UNIT,
            sensitivity_squared=norm * UNIT * UNIT * rows * rows,
            noise_multiplier=multiplier,
            is_exact=True,
        )
        for kind, length, norm, multiplier in zip(kinds, lengths, norms, multipliers, strict=True)
    )


def _noise_multipliers(
    plan: Plan, epsilon: float, delta: float, by: Sequence[str], sites: Sequence[str]
) -> tuple[float, ...]:
    none = (0.0,) * (2 + len(by))
    alike = _alike_rounds(plan, none, by, sites)
    if math.isinf(epsilon):
        if any(names_sites(plan, column) for column in by):
            subject, wanted = "The epsilon of an evaluation by site", "finite: nobody may see one site's exact sums"
            raise PrivacyError("out-of-range", name=subject, value=epsilon, wanted=wanted)
        return none
    shares = [OUTLINE_SHARE, *[(1 - OUTLINE_SHARE) / (1 + len(by))] * (1 + len(by))]
    demands = [rounds.demand(share) for rounds, share in zip(alike, shares, strict=True)]
    # Noise here is Gaussian, also where the plan's own releases are of pure differential privacy.
    accountant = "gdp" if plan.privacy.accountant == "pure" else plan.privacy.accountant
    sigmas = calibrate_sigmas(epsilon, delta, demands, accountant)
    return tuple(sigma / math.sqrt(demand.sensitivity_squared) for sigma, demand in zip(sigmas, demands, strict=True))


def _evaluate_numbers(queries: _EvaluationQueries) -> _Outlined:
    low, high = queries.plan.label.bounds
    half_range = (high - low) / 2
    query = queries.histogram(0, "residual", ERROR_EDGES[None, :], by_label=False)
    outline = (yield query) / UNIT
    # Labels are kept to half a unit, so an error is up to a unit more than was counted.
    uppers = (np.append(ERROR_EDGES, MAX_ERROR) + 1) * (half_range / SCORE_UNIT)
    errors = estimates.ErrorHistogram(tuple(uppers.tolist()), tuple(outline.tolist()), queries.noise(0, query))
    clip = error_clip(outline, errors.noise)
    deviance, largest = loss_kind(queries.plan).deviance, clip / SCORE_UNIT * half_range

    def read(moments: Counts, noise: float) -> estimates.Evaluation:
        if deviance is None:
            scores = estimates.regression_estimates(moments, noise, clip / SCORE_UNIT, half_range)
        else:
            scores = estimates.estimate_means(
                moments, noise, {"mae": largest, deviance.name: deviance.per_error * largest}
            )
        return estimates.Evaluation(
            estimates.Estimate(float(moments[0]), noise), scores, error_clip=largest, errors=errors
        )

    return queries.moments(clip), read


def _evaluate_times(queries: _EvaluationQueries) -> _Outlined:
    label, scale = queries.plan.label, outline_scale(queries.ensemble, "risk")
    query = queries.histogram(0, scale.position, scale.edges, by_label=False)
    noisy = (yield query) / UNIT
    outline = visible(noisy, queries.noise(0, query))[None, :]
    # A bin of all codes here corresponds to a bin of two classes.
    noise = queries.noise(1, query) * math.sqrt(label.n_codes / 2)
    edges = even_edges(scale, outline, choose_bin_count(float(noisy.sum()), noise))
    survival = in_bins(scale, 0, outline, edges[0], survival_curves(scale.middles(0), queries.ensemble.baseline))
    real = ~np.isnan(survival[:, 0])
    survival, ends = survival[real], np.array(label.intervals)
    weights = np.array([mean_over_time(row, ends) for row in np.eye(len(ends))])

    def read(counts: Counts, noise: float) -> estimates.Evaluation:
        cells = counts.reshape(label.n_codes, -1)[:, real]
        scores = {
            "concordance": estimates.concordance(cells, noise),
            "integrated_brier": estimates.within(
                estimates.integrated_brier(cells, noise, survival, weights), 0.0, math.inf
            ),
        }
        return estimates.Evaluation(estimates.Estimate(float(cells.sum()), noise * math.sqrt(cells.size)), scores)

    return queries.histogram(1, scale.position, edges, by_label=True), read


def _evaluate_classes(queries: _EvaluationQueries) -> _Outlined:
    scale = outline_scale(queries.ensemble, queries.plan.label.kind.position)
    query = queries.histogram(0, scale.position, scale.edges, by_label=False)
    noisy = (yield query).reshape(len(scale.edges), N_OUTLINE) / UNIT
    outline = np.array([visible(row, queries.noise(0, query)) for row in noisy])
    n_bins = choose_bin_count(float(noisy[0].sum()), queries.noise(1, query))
    edges = even_edges(scale, outline, n_bins)
    # The mean predicted probability in each bin, by the outline's counts.
    middles = [scale.middles(curve)[:, None] for curve in range(len(edges))]
    chances = [in_bins(scale, curve, outline, row, middles[curve])[:, 0] for curve, row in enumerate(edges)]

    def read(sums: Counts, noise: float) -> estimates.Evaluation:
        cells = sums[: 2 * len(edges) * n_bins].reshape(len(edges), 2, n_bins)
        if len(edges) > 1:
            return _several_classes(queries.plan, cells, sums[-2:], noise, chances)
        return _two_classes(queries.plan, cells[0], noise, chances[0], edges[0] <= (scale.threshold or 0))

    return queries.histogram(1, scale.position, edges, by_label=True), read


def _two_classes(
    plan: Plan, cells: NDArray[np.float64], noise: float, chance: NDArray[np.float64], at_most: NDArray[np.bool_]
) -> estimates.Evaluation:
    """Read an evaluation of two classes from its counts.

    Args:
        at_most: whether each border is at most the decision's threshold.
    """
    real = ~np.isnan(chance)
    cells, chance = cells[:, real], chance[real]
    # A bin predicts the first class when its upper border is at most the threshold.
    is_first = np.append(at_most, False)[real]
    losses = -elementary.log(np.concatenate([1 - chance, chance]))
    hits = np.concatenate([is_first, ~is_first]).astype(np.float64)
    flat = cells.ravel()
    scores = {
        "auc": estimates.auc(cells, noise),
        "log_loss": estimates.within(estimates.estimate_mean(losses, flat, noise), 0.0, math.inf),
        "accuracy": estimates.within(estimates.estimate_mean(hits, flat, noise), 0.0, 1.0),
    }
    count = estimates.Estimate(float(flat.sum()), noise * math.sqrt(len(flat)))
    return estimates.Evaluation(
        count, scores, (estimates.calibration_curve(plan.label.classes[-1], cells, noise, chance),)
    )


def _several_classes(
    plan: Plan,
    cells: NDArray[np.float64],
    hits: NDArray[np.float64],
    noise: float,
    chances: list[NDArray[np.float64]],
) -> estimates.Evaluation:
    areas: list[estimates.Estimate] = []
    curves: list[estimates.CalibrationCurve] = []
    losses: list[NDArray[np.float64]] = []
    for name, table, every in zip(plan.label.classes, cells, chances, strict=True):
        real = ~np.isnan(every)
        areas.append(estimates.auc(table[:, real], noise))
        curves.append(estimates.calibration_curve(name, table[:, real], noise, every[real]))
        losses.append(np.where(real, -elementary.log(np.where(real, every, 1.0)), 0.0))
    # A record's loss is in the curve of its own class only. `hits` counts the records with the least noise.
    ours = np.concatenate([cells[:, 1].ravel(), hits])
    top = np.concatenate([*losses, [0.0, 0.0]])
    bottom = np.concatenate([np.zeros(len(ours) - 2), [1.0, 1.0]])
    scores = {
        "auc": estimates.average_estimates(areas),
        "log_loss": estimates.within(estimates.ratio(top, bottom, ours, noise), 0.0, math.inf),
        "accuracy": estimates.within(estimates.estimate_mean(np.array([0.0, 1.0]), hits, noise), 0.0, 1.0),
    }
    return estimates.Evaluation(estimates.Estimate(float(hits.sum()), noise * math.sqrt(2)), scores, tuple(curves))


_PROGRAMS: Mapping[str, Callable[[_EvaluationQueries], _Outlined]] = {
    "score": _evaluate_classes,
    "probability": _evaluate_classes,
    "risk": _evaluate_times,
    "residual": _evaluate_numbers,
}
"""Programs by `LabelKind.position`: each asks for the outline, and returns the question about the detail."""
