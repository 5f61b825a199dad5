# SPDX-License-Identifier: Apache-2.0
"""What an author of a method needs, in one place: names that stay for as long as `API_VERSION` does.

    from hedgerow.methods.api import Method, Parts, Query, Run, Schedule, Settings, add_method

A method is rules for its plans (`Method`), settings (`Settings`), and a program: a generator that yields queries and
receives noisy sums. `hedgerow.testing.check_method` tries to exceed what its queries state. docs/research.md builds
one. A change that breaks a plug-in raises `API_VERSION`, and CHANGELOG.md says so.
"""

from __future__ import annotations

from hedgerow.losses.kinds import LossKind
from hedgerow.losses.labels import Classes, Numbers
from hedgerow.losses.named import ResidualLoss
from hedgerow.losses.registry import LOSSES, add_loss, build_loss, loss_kind
from hedgerow.losses.tables import RECORD_NORM, SCORE_UNIT, Loss
from hedgerow.methods import Method, Parts
from hedgerow.methods.line import asks_for_line, calibrate_by_spread, divide_line_noise, list_line_rounds
from hedgerow.methods.registry import add_method
from hedgerow.methods.residuals import N_CELLS, ResidualCounts, fit_shift
from hedgerow.plan.fields import boolean, define_field, integer, number, one_of, refuse
from hedgerow.plan.plan import Label, Plan
from hedgerow.plan.registry import LabelColumn, LabelKind, NamedLoss, add_label, add_named_loss, own_section
from hedgerow.privacy.calibration import NoiseDemand, calibrate_sigmas
from hedgerow.privacy.events import UnnoisedEvent
from hedgerow.privacy.schedule import AlikeRounds, Schedule
from hedgerow.protocol.queries import FittedTrees, IntVector, Query, TreeBatch
from hedgerow.training.settings import Settings, calibrate_noise, value_or
from hedgerow.training.steps import (
    Carried,
    Grown,
    Program,
    Run,
    empty_ensemble,
    grow_by,
    grow_score_bound,
    make_leaf_rule,
)
from hedgerow.trees.ensemble import Ensemble
from hedgerow.trees.leaf_sums import LeafSums, TrainingSite
from hedgerow.trees.leaves import leaf_values, leaf_weights
from hedgerow.trees.plausibility import ReleaseChecks, SumFacts
from hedgerow.trees.random_trees import PublicRandom, make_trees

API_VERSION = 1

__all__ = [
    "API_VERSION",
    "LOSSES",
    "N_CELLS",
    "RECORD_NORM",
    "SCORE_UNIT",
    "AlikeRounds",
    "Carried",
    "Classes",
    "Ensemble",
    "FittedTrees",
    "Grown",
    "IntVector",
    "Label",
    "LabelColumn",
    "LabelKind",
    "LeafSums",
    "Loss",
    "LossKind",
    "Method",
    "NamedLoss",
    "NoiseDemand",
    "Numbers",
    "Parts",
    "Plan",
    "Program",
    "PublicRandom",
    "Query",
    "ReleaseChecks",
    "ResidualCounts",
    "ResidualLoss",
    "Run",
    "Schedule",
    "Settings",
    "SumFacts",
    "TrainingSite",
    "TreeBatch",
    "UnnoisedEvent",
    "add_label",
    "add_loss",
    "add_method",
    "add_named_loss",
    "asks_for_line",
    "boolean",
    "build_loss",
    "calibrate_by_spread",
    "calibrate_noise",
    "calibrate_sigmas",
    "define_field",
    "divide_line_noise",
    "empty_ensemble",
    "fit_shift",
    "grow_by",
    "grow_score_bound",
    "integer",
    "leaf_values",
    "leaf_weights",
    "list_line_rounds",
    "loss_kind",
    "make_leaf_rule",
    "make_trees",
    "number",
    "one_of",
    "own_section",
    "refuse",
    "value_or",
]
