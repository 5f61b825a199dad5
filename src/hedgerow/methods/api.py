# SPDX-License-Identifier: Apache-2.0
"""The names that an author of a method needs. They stay for as long as `API_VERSION` does.

    from hedgerow.methods.api import Method, Parts, Query, Run, Schedule, Settings, add_method

A method is rules for its plans (`Method`), settings (`Settings`), and a program: a generator that yields queries and
receives noisy sums. `hedgerow.testing.check_method` tries to exceed what its queries state. docs/research.md builds
one. A change that breaks a plug-in raises `API_VERSION`, and CHANGELOG.md says so. The names:

- `API_VERSION`: the version of this list
- `Method`: rules for a method's plans: its section, fields, labels, version, and where its parts are
- `Parts`: what carries it out: `resolve`, `program`, and what its events can be besides Gaussian
- `add_method`: lets plans name it
- `define_field`: a field of its section, with a check and a default
- `integer`: a check: a whole number within bounds
- `number`: a check: a number within bounds
- `one_of`: a check: one of some words
- `boolean`: a check: true or false
- `refuse`: the error about a field
- `own_section`: the section of a plan's method
- `Plan`: what all parties agreed on
- `Settings`: numbers in place of every "auto": a base, whose `schedule` a method writes
- `value_or`: a plan's value, or yours for its "auto"
- `Schedule`: all rounds of a run: lengths, costs and words follow from it
- `AlikeRounds`: rounds that are alike, as large as any of them may be
- `calibrate_noise`: noise such that a run keeps its promise, where releases share the budget as trees do
- `calibrate_sigmas`: the same for releases of several kinds, each by a `NoiseDemand`
- `NoiseDemand`: sensitivity, length, count and share of a kind of release
- `UnnoisedEvent`: what a release without noise costs
- `Program`: a generator that yields queries, receives noisy sums and returns the model
- `Run`: what stays fixed: plan, settings, grid, loss, seed, and the noise of a release
- `GrowingModel`: the model so far, to which a program adds trees
- `Grown`: the former name of `GrowingModel`
- `grow_by`: the program that adds trees by a generator
- `grow_score_bound`: the public bound on scores after a batch
- `empty_ensemble`: the model before its first tree
- `Ensemble`: the model
- `Query`: one question to every node: what is stated of the answer, and the answer
- `TrainingSite`: what a query's `answer` is given: records and scores of one site
- `IntVector`: an answer, and a release: int64
- `LeafSums`: the query for sums of the loss over the leaves of trees
- `SumFacts`: what is public about a sum, for `Query.faults`
- `ReleaseChecks`: the checks of a run's releases
- `TreeBatch`: structures of trees
- `FittedTrees`: structures with values
- `make_trees`: structures of trees by the feature and the cut of each node
- `PublicRandom`: public randomness from the plan's seed
- `make_leaf_rule`: how sums become values, by the plan
- `leaf_values`: the values of leaves
- `leaf_weights`: the weights of leaves
- `Loss`: what a record adds, in integers, and its largest norm
- `build_loss`: the loss of a plan
- `loss_kind`: its link, measures and defaults
- `NamedLoss`: a loss that `[loss]` names, with its parameters as fields
- `ResidualLoss`: the same for numbers, by a gradient on either side of the label: what boosted trees need
- `add_named_loss`: lets plans name it
- `add_loss`: lets plans have a type of label, with its usual loss
- `add_label`: lets plans have a type of label for which `[loss]` has to name a loss
- `LossKind`: what a loss is made of: its label, link, integers, measures and defaults
- `LOSSES`: the usual loss of each type of label, to begin one's own from
- `Label`: a plan's label
- `LabelKind`: what a type of label says of itself
- `Classes`: such a type, of words
- `Numbers`: such a type, of numbers within bounds
- `LabelColumn`: a column that a label is read from
- `asks_for_line`: whether a run of a method without a last release of its own ends with the usual one
- `list_line_rounds`: the usual last release in a schedule: the spread of labels, and the line of labels on scores
- `divide_line_noise`: the noise of its two questions, which together cost as much as one
- `calibrate_by_spread`: asks them, and puts finished scores on the line
- `NodeTrees`: what nodes know of a run's trees, and what its next query brings them
- `Carried`: the former name of `NodeTrees`
- `ResidualCounts`: the last release for a loss that `[loss]` names: how many labels lie how far from their scores
- `N_CELLS`: its length
- `fit_shift`: the shift of all scores that it tells, by the loss's gradient
- `RECORD_NORM`: integers of one record's norm
- `SCORE_UNIT`: units of a score of 1
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
