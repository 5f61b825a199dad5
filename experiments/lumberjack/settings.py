"""The settings of Lumberjack: the number of trees, the rounds of the search, and the noise of both kinds of release."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from experiments.lumberjack import Lumberjack
from experiments.lumberjack.forest import MAX_ASKED, UNIT, LeafCounts, NodeCounts, look, rounds_of
from hedgerow.methods.line import asks_for_line, choose_line_share, divide_line_share, list_line_rounds
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import mu_of
from hedgerow.privacy.calibration import calibrate_sigmas, multipliers_of
from hedgerow.privacy.ledger import read_prepared_events
from hedgerow.privacy.schedule import AlikeRounds, Schedule
from hedgerow.training.settings import Settings, value_or
from hedgerow.trees.ensemble import MAX_DEPTH

DEFAULT_TREES = 25


@dataclass(frozen=True, kw_only=True)
class LumberjackSettings(Settings):
    """Numbers in place of every "auto"; `noise_multiplier` is that of the leaves.

    Attributes:
        height: layers of a tree that are searched.
        search_multiplier: noise multiplier of each round of the search; 0 when epsilon is infinite.
        calibration_share: of mu², for the last release of numbers; 0 without one.
        line_multipliers: the noise multipliers of its two parts.
    """

    height: int
    search_multiplier: float = 0.0
    calibration_share: float = 0.0
    line_multipliers: tuple[float, float] = (0.0, 0.0)

    shown: ClassVar[tuple[str, ...]] = ("n_trees", "height", "search_multiplier")
    step: ClassVar[str] = "release of leaves"

    @property
    def leaves_of_tree(self) -> int:
        """See `Settings.leaves_of_tree`: the nodes of the first look; of later ones nothing is known beforehand."""
        n_asked: int = 1 << look(self.height, is_first=True)
        return n_asked

    @property
    def has_line(self) -> bool:
        """Whether a last release calibrates the scores of numbers (`hedgerow.methods.line`)."""
        return self.calibration_share > 0

    def schedule(self, plan: Plan) -> Schedule:
        return Schedule(tuple(_alike_rounds(plan, self)))


def n_statistics(plan: Plan) -> int:
    """Of a leaf: a count per class, or the sum of the labels and a count."""
    return 2 if plan.label.kind.is_number else len(plan.label.classes)


def most_leaves(plan: Plan) -> int:
    """Leaves of all trees at most; nodes hold no vectors of more than 2^22 entries."""
    return min(MAX_ASKED, 4 * MAX_ASKED // n_statistics(plan))


def sensitivities_squared(plan: Plan, n_trees: int) -> tuple[int, int]:
    """Squared L2 sensitivities of one round of the search, and of the leaves, in integer units.

    In each tree a record is on one path. A round asks for at most one node of any path (`forest.Search`), and the
    leaves are disjoint, so in each tree a record adds to at most one entry: `UNIT`; of leaves for numbers a label of at
    most `UNIT` besides. Rows of one unit may all fall into the same nodes.
    """
    one = (UNIT * plan.privacy.rows_per_unit) ** 2
    return n_trees * one, n_trees * one * (2 if plan.label.kind.is_number else 1)


def resolve_lumberjack(plan: Plan) -> LumberjackSettings:
    """Decide every "auto" of a plan with `algorithm = "lumberjack"` and calibrate its noise.

    Raises:
        PrivacyError: when no noise keeps the promise.
    """
    n_trees: int = value_or(plan.model.n_trees, DEFAULT_TREES)
    settings = LumberjackSettings(n_trees=n_trees, max_depth=MAX_DEPTH, height=Lumberjack.of(plan).height)
    privacy = plan.privacy
    if math.isinf(privacy.epsilon):
        return settings
    if asks_for_line(plan):
        share = choose_line_share(privacy.n_records * mu_of(privacy.epsilon, privacy.delta))
        settings = replace(settings, calibration_share=share)
    left = 1 - settings.calibration_share
    share, last = Lumberjack.of(plan).search_share * left, divide_line_share(settings.calibration_share)
    weights = share / rounds_of(settings.height), left - share, *(last if settings.has_line else ())
    demands = [alike.demand(weight) for alike, weight in zip(_alike_rounds(plan, settings), weights, strict=True)]
    sigmas = calibrate_sigmas(privacy.epsilon, privacy.delta, demands, privacy.accountant, read_prepared_events(plan))
    search, leaves, *line = multipliers_of(sigmas, demands)
    found = (line[0], line[1]) if line else (0.0, 0.0)
    return replace(settings, search_multiplier=search, noise_multiplier=leaves, line_multipliers=found)


def _alike_rounds(plan: Plan, settings: LumberjackSettings) -> list[AlikeRounds]:
    """The rounds of the search, the statistics of every leaf, and the last release."""
    search, leaves = sensitivities_squared(plan, settings.n_trees)
    n_entries = n_statistics(plan)
    return [
        AlikeRounds.of(
            NodeCounts,
            length=MAX_ASKED,
            bound=UNIT,
            sensitivity_squared=search,
            noise_multiplier=settings.search_multiplier,
            count=rounds_of(settings.height),
        ),
        AlikeRounds.of(
            LeafCounts,
            length=most_leaves(plan) * n_entries,
            grid_length=MAX_ASKED * n_entries,
            bound=UNIT,
            sensitivity_squared=leaves,
            noise_multiplier=settings.noise_multiplier,
        ),
        *(list_line_rounds(plan, settings.line_multipliers) if settings.has_line else []),
    ]
