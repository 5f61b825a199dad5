# SPDX-License-Identifier: Apache-2.0
"""The names that an author of a method needs; they stay for as long as `API_VERSION` does.

    from hedgerow.methods.api import Method, Parts, Query, Run, Schedule, Settings, add_method

A method is rules for its plans (`Method`), settings (`Settings`), and a program: a generator that yields queries and
receives noisy sums. `hedgerow.testing.check_method` tries to exceed what its queries state. docs/research.md builds
one. A change that breaks a plug-in raises `API_VERSION`, and CHANGELOG.md says so.
"""

from __future__ import annotations

from hedgerow.losses.kinds import LossKind as LossKind
from hedgerow.losses.labels import Classes as Classes
from hedgerow.losses.labels import Numbers as Numbers
from hedgerow.losses.named import ResidualLoss as ResidualLoss
from hedgerow.losses.registry import LOSSES as LOSSES
from hedgerow.losses.registry import add_loss as add_loss
from hedgerow.losses.registry import build_loss as build_loss
from hedgerow.losses.registry import loss_kind as loss_kind
from hedgerow.losses.tables import RECORD_NORM as RECORD_NORM
from hedgerow.losses.tables import SCORE_UNIT as SCORE_UNIT
from hedgerow.losses.tables import Loss as Loss
from hedgerow.methods import Method as Method
from hedgerow.methods import Parts as Parts
from hedgerow.methods.line import asks_for_line as asks_for_line
from hedgerow.methods.line import calibrate_by_spread as calibrate_by_spread
from hedgerow.methods.line import divide_line_noise as divide_line_noise
from hedgerow.methods.line import list_line_rounds as list_line_rounds
from hedgerow.methods.registry import add_method as add_method
from hedgerow.methods.residuals import N_CELLS as N_CELLS
from hedgerow.methods.residuals import ResidualCounts as ResidualCounts
from hedgerow.methods.residuals import fit_shift as fit_shift
from hedgerow.plan.fields import boolean as boolean
from hedgerow.plan.fields import define_field as define_field
from hedgerow.plan.fields import integer as integer
from hedgerow.plan.fields import number as number
from hedgerow.plan.fields import one_of as one_of
from hedgerow.plan.fields import refuse as refuse
from hedgerow.plan.plan import Label as Label
from hedgerow.plan.plan import Plan as Plan
from hedgerow.plan.registry import LabelColumn as LabelColumn
from hedgerow.plan.registry import LabelKind as LabelKind
from hedgerow.plan.registry import NamedLoss as NamedLoss
from hedgerow.plan.registry import add_label as add_label
from hedgerow.plan.registry import add_named_loss as add_named_loss
from hedgerow.plan.registry import own_section as own_section
from hedgerow.privacy.calibration import NoiseDemand as NoiseDemand
from hedgerow.privacy.calibration import calibrate_sigmas as calibrate_sigmas
from hedgerow.privacy.events import UnnoisedEvent as UnnoisedEvent
from hedgerow.privacy.schedule import AlikeRounds as AlikeRounds
from hedgerow.privacy.schedule import Schedule as Schedule
from hedgerow.protocol.queries import FittedTrees as FittedTrees
from hedgerow.protocol.queries import IntVector as IntVector
from hedgerow.protocol.queries import Query as Query
from hedgerow.protocol.queries import TreeBatch as TreeBatch
from hedgerow.training.settings import Settings as Settings
from hedgerow.training.settings import calibrate_noise as calibrate_noise
from hedgerow.training.settings import value_or as value_or
from hedgerow.training.steps import Carried as Carried
from hedgerow.training.steps import GrowingModel as GrowingModel
from hedgerow.training.steps import Grown as Grown
from hedgerow.training.steps import NodeTrees as NodeTrees
from hedgerow.training.steps import Program as Program
from hedgerow.training.steps import Run as Run
from hedgerow.training.steps import empty_ensemble as empty_ensemble
from hedgerow.training.steps import grow_by as grow_by
from hedgerow.training.steps import grow_score_bound as grow_score_bound
from hedgerow.training.steps import make_leaf_rule as make_leaf_rule
from hedgerow.trees.ensemble import Ensemble as Ensemble
from hedgerow.trees.leaf_sums import LeafSums as LeafSums
from hedgerow.trees.leaf_sums import TrainingSite as TrainingSite
from hedgerow.trees.leaves import leaf_values as leaf_values
from hedgerow.trees.leaves import leaf_weights as leaf_weights
from hedgerow.trees.plausibility import ReleaseChecks as ReleaseChecks
from hedgerow.trees.plausibility import SumFacts as SumFacts
from hedgerow.trees.random_trees import PublicRandom as PublicRandom
from hedgerow.trees.random_trees import make_trees as make_trees

API_VERSION = 1
