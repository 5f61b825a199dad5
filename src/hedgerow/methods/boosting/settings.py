# SPDX-License-Identifier: Apache-2.0
"""How the settings of boosted trees are decided: a rule on public quantities only, and the noise.

The rule and the evidence for it are in docs/defaults.md. Here stand what is usual, what a plan says itself, where
values are expected, and then for each kind of labels what differs from what is usual. The rule may look at epsilon,
delta, the declared number of records and the schema; it never looks at data or at a released number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from hedgerow.losses.registry import loss_kind
from hedgerow.methods.boosting.schedule import INTERACTION_SHARE, BoostingSettings, weigh_trees
from hedgerow.methods.boosting.start import BASELINE_SHARE, MIN_CLIP_OF_COUNTS
from hedgerow.methods.hazards import HazardStart
from hedgerow.methods.line import asks_for_line, choose_line_share
from hedgerow.methods.linear_start import MAX_LINEAR_START
from hedgerow.methods.residuals import require_residual_loss
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import mu_of
from hedgerow.training.settings import calibrate_noise, value_or


def resolve_boosting(plan: Plan) -> BoostingSettings:
    """Decide every "auto" of a plan for boosted trees and calibrate its noise.

    Raises:
        PrivacyError: when no noise keeps the promise.
    """
    privacy = plan.privacy
    is_private = not math.isinf(privacy.epsilon)
    signal = privacy.n_records * mu_of(privacy.epsilon, privacy.delta) if is_private else math.inf
    usual, rule_of = _usual(plan, signal), _RULES.get(plan.label.type)
    if rule_of is None or plan.model.weight_update == "averaging":
        rule = _with_line(plan, signal, usual)
    else:
        rule = rule_of(plan, signal, usual)
    rule = rule if plan.loss is None else _of_residuals(plan, rule)
    settings = _with_spread(plan, signal / privacy.rows_per_unit, _as_said(plan, rule))
    if not is_private:
        return replace(settings, start_share=0.0, calibration_share=0.0)
    weight = weigh_trees(plan, settings) / (1 - settings.start_share - settings.calibration_share)
    return replace(settings, noise_multiplier=calibrate_noise(plan, settings, weight))


MIN_TREES, MAX_TREES = 100, 300
ADAPTIVE_SUBSET = 3


def _within(least: float, value: float, most: float) -> float:
    return max(least, min(most, value))


def _fourth_root(value: float) -> float:
    """By square roots, which are the same on every machine."""
    return math.sqrt(math.sqrt(value))


def _usual(plan: Plan, signal: float) -> BoostingSettings:
    """What holds wherever a kind of labels says nothing: the column of two classes in docs/defaults.md."""
    model, kind, m = plan.model, loss_kind(plan), len(plan.features)
    order = "adaptive" if model.split_method == "totally_random" else "cyclical"
    interaction = order if model.interaction == "auto" else model.interaction
    return BoostingSettings(
        n_trees=max(2 * m, count_usual_trees(signal)),
        max_depth=4,
        learning_rate=0.25,
        interaction=interaction,
        interaction_size=min(m, ADAPTIVE_SUBSET) if interaction == "adaptive" else 1,
        noise_ridge=kind.noise_ridge,
        joint_clip=kind.clip,
        hessian_scale=kind.clipped_hessian_scale,
    )


def count_usual_trees(signal: float) -> int:
    """How many trees are usual where features are few."""
    return int(_within(MIN_TREES, 100 * _fourth_root(signal / 1000), MAX_TREES))


GREEDY_TREES = 25
"""Where splits are paid for, more trees mean more noise: CCS'22, section 6.2, finds the best results at 25 to 50."""


def _as_said(plan: Plan, rule: BoostingSettings) -> BoostingSettings:
    """What a plan says itself, and in place of its every "auto" the rule."""
    model, m = plan.model, len(plan.features)
    size = {"auto": rule.interaction_size, "all": m}.get(str(model.interaction_size), model.interaction_size)
    pays_for_splits = model.split_method != "totally_random" and size != 1 and not math.isinf(plan.privacy.epsilon)
    n_trees = value_or(model.n_trees, GREEDY_TREES if pays_for_splits else rule.n_trees)
    is_whole = model.batch_size == "all" or model.weight_update == "averaging"
    # Records are clipped only where the kind of loss is, and c is the rule's only under the rule's clip.
    is_clipped = model.weight_update in loss_kind(plan).clipped_updates
    clip = None if model.joint_clip == "none" else value_or(model.joint_clip, rule.joint_clip if is_clipped else None)
    scale = rule.hessian_scale if is_clipped and model.joint_clip == "auto" else None
    is_calibrated = model.calibration != "none"
    return replace(
        rule,
        n_trees=n_trees,
        max_depth=value_or(model.max_depth, rule.max_depth),
        batch_size=n_trees if is_whole else min(int(model.batch_size), n_trees),
        learning_rate=value_or(model.learning_rate, rule.learning_rate),
        interaction_size=int(size),
        noise_ridge=value_or(model.noise_ridge, rule.noise_ridge),
        joint_clip=clip,
        hessian_scale=value_or(model.hessian_scale, scale),
        shrinkage=value_or(model.shrinkage, rule.shrinkage),
        calibration=rule.calibration if is_calibrated else "none",
        calibration_share=rule.calibration_share if is_calibrated else 0.0,
    )


# Central splits of trees on several features, and expected values (`hedgerow.trees.leaves.ValueSpread`) --------------

SIGNAL_OF_CENTRAL_SUBSETS = 2000.0
"""From so much signal on; with less, the large leaves that chance makes say more than even ones."""
SIGNAL_OF_SPREAD = 500.0
"""From so much signal on values are expected; of less the releases say too little of how far they lie apart."""
SHAPE_RATES, SIGNAL_OF_SHAPE_RATE = {"binary": (0.3, 0.3), "regression": (0.5, 0.75), "count": (0.5, 0.5)}, 4000.0
"""By the type of the label the least and the most. Between these the rate rises as the fourth root of what is missing
of this signal: functions that jump from value to value need longer steps where there are few."""
SIGNAL_OF_SUBSETS, SUBSET_RATE, SUBSET_LEVELS, MAX_MU_OF_CLASSES = 5000.0, 0.4, 1, 3.0
"""Of two classes, from so much signal on trees on several features have expected values too, and are a level deeper
then. Up to this mu, an epsilon of about 15 at a delta of 1e-4: with less noise, values that follow releases more
closely fit what is chance in the records."""


def _with_spread(plan: Plan, signal: float, settings: BoostingSettings) -> BoostingSettings:
    """The settings with what holds from some signal of a unit on: central splits, and expected values.

    Values are expected where a plan leaves them to the rule, and only with noise of the coordinator: sums with noise of
    the sites hold more of it than is known.
    """
    model, privacy, label = plan.model, plan.privacy, plan.label.type
    is_random = settings.interaction == "adaptive" and model.split_method == "totally_random"
    if not is_random or label not in SHAPE_RATES or math.isinf(signal):
        return settings
    settings = replace(settings, central_subsets=signal >= SIGNAL_OF_CENTRAL_SUBSETS)
    is_own = model.learning_rate == model.noise_ridge == model.shrinkage == "auto" and model.weight_update == "newton"
    if not is_own or signal < SIGNAL_OF_SPREAD or privacy.noise != "server":
        return settings
    is_classes = label == "binary"
    if is_classes and mu_of(privacy.epsilon, privacy.delta) > MAX_MU_OF_CLASSES:
        return settings
    least, most = SHAPE_RATES[label]
    settings = replace(settings, shape_rate=_within(least, least * _fourth_root(SIGNAL_OF_SHAPE_RATE / signal), most))
    if not is_classes or signal < SIGNAL_OF_SUBSETS:
        return settings
    return replace(settings, subset_rate=SUBSET_RATE, subset_levels=SUBSET_LEVELS if model.max_depth == "auto" else 0)


# Two classes ----------------------------------------------------------------------------------------------------------

CALIBRATION_SHARE = 0.03
"""Of mu^2, for the last release of most labels."""
RULE_FADES_FROM, RULE_ENDS_AT = 200.0, 500.0
"""Up to the first the rule for little signal holds in full, from the second on not at all; between, it fades out."""
LEVELS_LESS, RIDGE_MORE = 2, 2.5
"""Coarse trees and short steps: 2 levels of 4, and a noise ridge of 4 in place of 1.5."""
FEW_FEATURES, MANY_FEATURES = 3, 7
"""Up to the first all features meet in one subset: interactions, and the levels that they take, are kept."""


def _of_two_classes(plan: Plan, signal: float, usual: BoostingSettings) -> BoostingSettings:
    """With little signal few large leaves and short steps; with any, log-odds by a last release."""
    if usual.interaction != "adaptive":
        return usual
    lack = _within(0.0, (RULE_ENDS_AT - signal) / (RULE_ENDS_AT - RULE_FADES_FROM), 1.0)
    of_subsets = lack * _within(0.0, (len(plan.features) - FEW_FEATURES) / (MANY_FEATURES - FEW_FEATURES), 1.0)
    # A plan that names a size of subsets wants them tried.
    untried = of_subsets if plan.model.interaction_size == "auto" else 0.0
    return replace(
        usual,
        max_depth=usual.max_depth - round(LEVELS_LESS * of_subsets),
        noise_ridge=usual.noise_ridge + RIDGE_MORE * lack,
        interaction_size=usual.interaction_size if of_subsets < 1 else 1,
        interaction_share=INTERACTION_SHARE * (1 - untried),
        calibration="odds",
        calibration_share=CALIBRATION_SHARE,
    )


# Three classes or more ------------------------------------------------------------------------------------------------

MIN_TREES_OF_CLASSES, SIGNAL_OF_CLASSES = 50, 5000.0
"""With so much signal, 100 trees: fewer and larger steps than for two classes, as each has a tree's whole noise."""
CLASS_RATE = 0.5


def _of_classes(plan: Plan, signal: float, usual: BoostingSettings) -> BoostingSettings:
    """Fewer and larger steps, which are filtered by what classes have in common."""
    if usual.interaction != "adaptive":
        return usual
    trees = _within(MIN_TREES_OF_CLASSES, 100 * math.sqrt(signal / SIGNAL_OF_CLASSES), MAX_TREES)
    return replace(
        usual,
        n_trees=max(2 * len(plan.features), int(trees)),
        learning_rate=CLASS_RATE,
        filters_by_features=plan.model.shrinkage == "auto",
    )


def filters_classes(plan: Plan, settings: BoostingSettings) -> bool:
    """Whether sums of several classes are filtered by their covariance: where trees are smoothed, and are shrunk."""
    return settings.loss(plan).n_outputs > 1 and settings.interaction == "adaptive" and settings.shrinkage > 0


# A count --------------------------------------------------------------------------------------------------------------

LEVEL_SHARES, SIGNAL_OF_LEVEL = (0.05, 0.15), 30.0
"""Of mu^2, least and most, for the mean it begins with: with so much signal all of it."""
RATE_OF_COUNTS, RIDGE_OF_COUNTS = 0.5, 16.0


def _of_counts(plan: Plan, signal: float, usual: BoostingSettings) -> BoostingSettings:
    """Their mean first, larger steps on doubled residuals, and a last release for what is cut off."""
    model = plan.model
    # Of the clip's unit, half the largest count, no less than a part of one count.
    rule = replace(usual, joint_clip=max(loss_kind(plan).clip, 2 * MIN_CLIP_OF_COUNTS / plan.label.bounds[1]))
    if model.start == "none":
        return rule
    least, most = LEVEL_SHARES
    rule = replace(rule, start="level", start_share=_within(least, SIGNAL_OF_LEVEL / signal, most))
    is_doubled = usual.interaction == "adaptive" and model.weight_update == "newton"
    if not is_doubled or model.split_method != "totally_random" or model.calibration == "none":
        return rule
    return replace(
        rule,
        learning_rate=RATE_OF_COUNTS,
        noise_ridge=RIDGE_OF_COUNTS,
        calibration="means",
        calibration_share=choose_line_share(signal),
    )


# A time to an event ---------------------------------------------------------------------------------------------------

LINEAR_SHARES, SIGNAL_OF_LINEAR = (0.3, 0.85), 350.0
"""Of mu^2, least and most, for a linear model: with so much signal all of it."""
MIN_TREES_OF_TIMES, RIDGE_OF_TIMES = 20, 6.0


def _of_times(plan: Plan, signal: float, usual: BoostingSettings) -> BoostingSettings:
    """A baseline, where columns allow it a linear model and fewer trees, and a last release for both."""
    rule = replace(usual, start="hazards", start_share=BASELINE_SHARE)
    if usual.interaction != "adaptive":
        return rule
    rule = replace(rule, calibration="hazards", calibration_share=CALIBRATION_SHARE)
    if plan.model.start == "none" or not HazardStart(plan).has_columns:
        return rule
    least, most = LINEAR_SHARES
    return replace(
        rule,
        start="linear hazards",
        start_share=BASELINE_SHARE + _within(least, SIGNAL_OF_LINEAR / signal, most),
        # After a linear model few trees, where noise is most of what they would add.
        n_trees=int(_within(MIN_TREES_OF_TIMES, 100 * math.sqrt(signal / 1000), MAX_TREES)),
        noise_ridge=RIDGE_OF_TIMES,
        shrinkage=1.0,
    )


# A bounded number, in units in which its public range is [-1, 1] ------------------------------------------------------

MAX_TREES_OF_NUMBERS = 400
SIGNAL_OF_TURN, TURNS_AND_FEATURES = 4.0, 5000
"""Where two turns for each feature are more trees than the signal asks for: at most signal / 4, or 5,000 / features."""
DEEPER = (800.0, 6000.0)
"""From so much signal on trees have a level more."""
CLIP_OF_NUMBERS, HESSIAN_SCALE, USUAL_RIDGE = 0.2, 0.066, 90.0
MIN_RATE, MAX_RATE = 0.25, 2.2
EXPLORING_SHARE = 0.9
MAX_START, SIGNAL_OF_START = 0.6, 125.0
"""Of mu^2, for the start: 125 / s, for a linear model needs as much whatever the signal, and no more than the first."""
MEAN_SHARE_OF_NUMBERS = 0.05
"""Of mu^2, for the mean and the spread about it, where leaves are not smoothed."""


def _of_numbers(plan: Plan, signal: float, usual: BoostingSettings) -> BoostingSettings:
    """Mean and linear model, trees that follow the signal closely, and a last release for what clipping cuts off."""
    model, m = plan.model, len(plan.features)
    if usual.interaction != "adaptive":
        if model.start == "none":
            return usual
        return _with_line(plan, signal, replace(usual, start="mean", start_share=MEAN_SHARE_OF_NUMBERS))
    # Steps are short where the noise ridge shortens them little, whether signal or the plan makes it so.
    rate = min(MAX_RATE, 1.75 * _fourth_root(2000 / signal))
    rule = replace(
        usual,
        n_trees=_trees_of_numbers(signal, m),
        max_depth=4 + sum(signal >= border for border in DEEPER),
        learning_rate=max(MIN_RATE, rate * min(1.0, value_or(model.noise_ridge, USUAL_RIDGE) / USUAL_RIDGE)),
        noise_ridge=USUAL_RIDGE,
        joint_clip=CLIP_OF_NUMBERS,
        hessian_scale=HESSIAN_SCALE,
        shrinkage=1.0,
        interaction_share=EXPLORING_SHARE,
    )
    if model.start == "none":
        return rule
    n_numeric = sum(not feature.is_categorical for feature in plan.features)
    start = ("linear" if 0 < n_numeric <= MAX_LINEAR_START else "mean") if model.start == "auto" else model.start
    share = min(MAX_START, SIGNAL_OF_START / signal)
    return replace(rule, start=start, start_share=share, calibration="means", calibration_share=CALIBRATION_SHARE)


def _with_line(plan: Plan, signal: float, rule: BoostingSettings) -> BoostingSettings:
    """The rule with the last release of numbers and counts whose scores may be of no use (`hedgerow.methods.line`)."""
    if not asks_for_line(plan):
        return rule
    return replace(rule, calibration="line", calibration_share=choose_line_share(signal))


def _trees_of_numbers(signal: float, n_features: int) -> int:
    """More trees where there is more signal, and two turns for each feature."""
    root = _fourth_root(signal / 500)
    trees = int(_within(MIN_TREES, 130 * root * math.sqrt(root), MAX_TREES_OF_NUMBERS))
    if 2 * n_features <= trees:
        return trees
    # Every tree adds noise, so of many features and little signal not each has two turns.
    return int(min(2 * n_features, max(signal / SIGNAL_OF_TURN, TURNS_AND_FEATURES / n_features)))


# A number by a loss that the plan names ------------------------------------------------------------------------------

RESIDUALS_SHARE = 0.05
"""Of mu^2, for the last release, by which scores fit best by the loss."""


def _of_residuals(plan: Plan, rule: BoostingSettings) -> BoostingSettings:
    """The rule of numbers with the clip of its loss, and another last release."""
    kind = loss_kind(plan)
    return replace(
        rule,
        joint_clip=kind.clip,
        hessian_scale=kind.clipped_hessian_scale,
        learning_rate=rule.learning_rate * require_residual_loss(plan).pace,
        start=rule.start if kind.doubles or rule.start == "none" else "mean",
        calibration="residuals",
        calibration_share=RESIDUALS_SHARE,
    )


_RULES: Mapping[str, Callable[[Plan, float, BoostingSettings], BoostingSettings]] = {
    "binary": _of_two_classes,
    "multiclass": _of_classes,
    "count": _of_counts,
    "survival": _of_times,
    "regression": _of_numbers,
}
"""By the type of the label: what a plan and its signal, in standard deviations of noise, change of what is usual."""
