# SPDX-License-Identifier: Apache-2.0
"""The rule for the settings of boosted trees, on public quantities only, and their noise.

`COLUMNS` has most of the table of docs/defaults.md, where its evidence stands too. After it come the exceptions, the
plan's own settings, and the rule for expected values. The rule may look at epsilon, delta,
the declared number of records and the schema; it never looks at data or at a released number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hedgerow.losses.registry import loss_kind
from hedgerow.methods.boosting.schedule import INTERACTION_SHARE, BoostingSettings, weigh_trees
from hedgerow.methods.boosting.start import BASELINE_SHARE, MIN_CLIP_OF_COUNTS
from hedgerow.methods.hazards import HazardStart
from hedgerow.methods.level import releases_level
from hedgerow.methods.line import asks_for_line, choose_line_share
from hedgerow.methods.linear_start import MAX_LINEAR_START
from hedgerow.methods.residuals import require_residual_loss
from hedgerow.methods.votes import VOTE_SHARE
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import mu_of
from hedgerow.training.settings import calibrate_noise, value_or


@dataclass(frozen=True)
class Power:
    """A setting at a signal s: `at` times (s / `signal`) to a power, from `least` to `most`."""

    at: float
    signal: float
    power: float
    least: float
    most: float

    def __call__(self, signal: float) -> float:
        """Return the setting at a signal.

        It is made by square roots, which are the same on every machine; so powers are quarters.
        """
        ratio = signal / self.signal if self.power > 0 else self.signal / signal
        value, left = self.at, abs(self.power)
        for part in (1, 1 / 2, 1 / 4):
            if left >= part:
                value, left = value * ratio, left - part
            ratio = math.sqrt(ratio)
        return _within(self.least, value, self.most)


def _at(signal: float, value: Any) -> Any:
    return value(signal) if callable(value) else value


def _within(least: float, value: float, most: float) -> float:
    return max(least, min(value, most))


USUAL_TREES = Power(100, 1000, 1 / 4, 100, 300)
COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "binary": {"calibration": "odds", "calibration_share": 0.03},
    # Fewer and larger steps, as each class has a tree's whole noise.
    "multiclass": {"n_trees": Power(100, 5000, 1 / 2, 50, 300), "learning_rate": 0.5},
    "regression": {
        "n_trees": Power(100, 1000, 3 / 4, 100, 400),
        "learning_rate": Power(1.75, 2000, -1 / 4, 0, 2.2),
        "noise_ridge": 90.0,
        "joint_clip": 0.2,
        "hessian_scale": 0.066,
        "shrinkage": 1.0,
        "interaction_share": 0.9,
        "calibration": "means",
        "calibration_share": 0.03,
    },
    "count": {
        "learning_rate": 0.5,
        "noise_ridge": 16.0,
        "calibration": "means",
        "calibration_share": choose_line_share,
    },
    "survival": {
        "noise_ridge": 6.0,
        "shrinkage": 1.0,
        "calibration": "hazards",
        "calibration_share": 0.03,
    },
}
"""Differences from `_decide_usual` by type of label and name of setting: a value, or a function of the signal."""
START_SHARES = {
    # A linear model needs as much whatever the signal.
    "regression": Power(1, 125, -1, 0, 0.6),
    "count": Power(1, 30, -1, 0.05, 0.15),
    "survival": Power(1, 350, -1, 0.3, 0.85),
}
"""Share of mu^2 for the start of the trees; for times to an event, for the linear model after the baseline."""
SHAPE_RATES = {"binary": 0.3, "regression": 0.5, "count": 0.5}
"""The rate of expected values in trees on one feature."""


def resolve_boosting(plan: Plan) -> BoostingSettings:
    """Decide every "auto" of a plan for boosted trees and calibrate its noise.

    Raises:
        PrivacyError: when no noise keeps the promise.
    """
    privacy = plan.privacy
    is_private = not math.isinf(privacy.epsilon)
    signal = privacy.n_records * mu_of(privacy.epsilon, privacy.delta) if is_private else math.inf
    rule = _decide(plan, signal)
    if plan.loss is not None:
        rule = _with_residuals(plan, rule)
    rule = _with_level(plan, signal, rule)
    settings = _with_spread(plan, signal / privacy.rows_per_unit, _as_said(plan, rule))
    if not is_private:
        return replace(settings, start_share=0.0, calibration_share=0.0, level_share=0.0)
    settings = replace(settings, vote_share=VOTE_SHARE if plan.federation.votes else 0.0)
    weight = weigh_trees(plan, settings) / settings.share_of_trees
    return replace(settings, noise_multiplier=calibrate_noise(plan, settings, weight))


# The rule, where a plan says nothing ----------------------------------------------------------------------------------

SIGNAL_OF_CENTRAL_SUBSETS, SIGNAL_OF_SUBSETS = DEEPER = (2000.0, 5000.0)
"""From the first on trees on several features have central splits: with less signal, the large leaves that chance makes
say more than even ones. From the second on those of two classes have expected values and a level more. Trees of numbers
have a level more from each."""
MIN_RATE_OF_NUMBERS = 0.25
SIGNAL_OF_TURN, TURNS_AND_FEATURES = 4.0, 5000
"""Limits if two turns for each feature are more trees than the rule's: at most signal / 4, or 5,000 / features."""
UNCALIBRATED: Mapping[str, Any] = {"calibration": "none", "calibration_share": 0.0}
WITHOUT_LEVEL: Mapping[str, Any] = {"levels": False, "level_share": 0.0}


def _decide(plan: Plan, signal: float) -> BoostingSettings:
    model, label = plan.model, plan.label.type
    usual = _decide_usual(plan, signal)
    if label not in COLUMNS or model.weight_update == "averaging":
        return _with_line(plan, signal, usual)
    rule = _with_start(plan, signal, usual)
    if label == "count":
        # The clip's unit is half the largest count; keep the clip at a part of one count at least.
        rule = replace(rule, joint_clip=max(loss_kind(plan).clip, 2 * MIN_CLIP_OF_COUNTS / plan.label.bounds[1]))
    if rule.interaction != "adaptive":
        return _with_line(plan, signal, rule) if rule.start == "mean" else rule
    own = {name: _at(signal, value) for name, value in COLUMNS[label].items()}
    if label == "binary":
        return _with_little_signal(plan, signal, replace(rule, **own))
    if label == "survival":
        # After a linear model short steps, where noise is most of what trees would add.
        release = {name: own[name] for name in ("calibration", "calibration_share")}
        own = own if rule.start == "linear hazards" else release
    if label == "count":
        if model.weight_update != "newton" or "none" in (model.start, model.calibration):
            # Residuals are doubled only where a last release corrects what that cuts off.
            return rule
    if label == "regression":
        # A ridge below the rule's shortens steps less, so shorten the rate in proportion.
        ridge = value_or(model.noise_ridge, own["noise_ridge"]) / own["noise_ridge"]
        own["learning_rate"] = max(MIN_RATE_OF_NUMBERS, own["learning_rate"] * min(1.0, ridge))
        own["max_depth"] = rule.max_depth + sum(signal >= border for border in DEEPER)
        if rule.start == "none":
            own |= UNCALIBRATED
    if "n_trees" in own:
        # Two turns for each feature, but of numbers not where noise wins.
        n_trees, m = int(own["n_trees"]), len(plan.features)
        most = max(signal / SIGNAL_OF_TURN, TURNS_AND_FEATURES / m) if label == "regression" else math.inf
        own["n_trees"] = n_trees if 2 * m <= n_trees else int(min(2 * m, most))
    return replace(rule, **own)


ADAPTIVE_SUBSET = 3


def _decide_usual(plan: Plan, signal: float) -> BoostingSettings:
    """Return the settings that hold unless `COLUMNS` has others for the label."""
    model, kind, m = plan.model, loss_kind(plan), len(plan.features)
    order = "adaptive" if model.split_method == "totally_random" else "cyclical"
    interaction = order if model.interaction == "auto" else model.interaction
    return BoostingSettings(
        n_trees=max(2 * m, int(USUAL_TREES(signal))),
        max_depth=4,
        learning_rate=0.25,
        interaction=interaction,
        interaction_size=min(m, ADAPTIVE_SUBSET) if interaction == "adaptive" else 1,
        noise_ridge=kind.noise_ridge,
        joint_clip=kind.clip,
        hessian_scale=kind.clipped_hessian_scale,
    )


MEAN_SHARE_OF_NUMBERS = 0.05
"""Share of mu^2 for the mean and the spread about it, where leaves are not smoothed."""


def _with_start(plan: Plan, signal: float, rule: BoostingSettings) -> BoostingSettings:
    start, label, is_smoothed = plan.model.start, plan.label.type, rule.interaction == "adaptive"
    if label == "survival":
        if is_smoothed and start != "none" and HazardStart(plan).has_columns:
            return replace(rule, start="linear hazards", start_share=BASELINE_SHARE + START_SHARES[label](signal))
        return replace(rule, start="hazards", start_share=BASELINE_SHARE)
    if label not in START_SHARES or start == "none":
        return rule
    if label == "count":
        return replace(rule, start="level", start_share=START_SHARES[label](signal))
    if not is_smoothed:
        return replace(rule, start="mean", start_share=MEAN_SHARE_OF_NUMBERS)
    n_numeric = sum(not feature.is_categorical for feature in plan.features)
    if start == "auto":
        start = "linear" if 0 < n_numeric <= MAX_LINEAR_START else "mean"
    return replace(rule, start=start, start_share=START_SHARES[label](signal))


def _with_line(plan: Plan, signal: float, rule: BoostingSettings) -> BoostingSettings:
    """Return the rule with the last release of numbers and counts, if the plan asks for it.

    Their scores may be of no use, see `hedgerow.methods.line`.
    """
    if not asks_for_line(plan):
        return rule
    return replace(rule, calibration="line", calibration_share=choose_line_share(signal))


RULE_FADES_FROM, RULE_ENDS_AT = 200.0, 500.0
"""Up to the first the rule for little signal holds in full, from the second on not at all; between, it fades out."""
LEVELS_LESS, RIDGE_MORE = 2, 2.5
"""Coarse trees and short steps: 2 levels of 4, and a noise ridge of 4 in place of 1.5."""
FEW_FEATURES, MANY_FEATURES = 3, 7
"""Up to the first all features meet in one subset: interactions, and the levels that they take, are kept."""


def _with_little_signal(plan: Plan, signal: float, rule: BoostingSettings) -> BoostingSettings:
    """Return the rule of two classes: with little signal few large leaves and short steps."""
    lack = _within(0.0, (RULE_ENDS_AT - signal) / (RULE_ENDS_AT - RULE_FADES_FROM), 1.0)
    of_subsets = lack * _within(0.0, (len(plan.features) - FEW_FEATURES) / (MANY_FEATURES - FEW_FEATURES), 1.0)
    # A plan that names a size of subsets asks for them, so they are tried however little signal there is.
    untried = of_subsets if plan.model.interaction_size == "auto" else 0.0
    return replace(
        rule,
        max_depth=rule.max_depth - round(LEVELS_LESS * of_subsets),
        noise_ridge=rule.noise_ridge + RIDGE_MORE * lack,
        interaction_size=rule.interaction_size if of_subsets < 1 else 1,
        interaction_share=INTERACTION_SHARE * (1 - untried),
    )


RESIDUALS_SHARE = 0.05
"""Share of mu^2 for the last release of a loss that the plan names."""


def _with_residuals(plan: Plan, rule: BoostingSettings) -> BoostingSettings:
    """Return the rule of numbers with the clip of the plan's named loss, and another last release."""
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


LEVEL_SHARE = Power(1, 150, -1, 0.015, 0.08)
"""Share of mu^2 for the level, larger where records or epsilon are few; of counts it is half of the last release's."""


def _with_level(plan: Plan, signal: float, rule: BoostingSettings) -> BoostingSettings:
    """Return the rule with the release of the level, where predictions are means and trees those of the default."""
    is_own = rule.interaction == "adaptive" and plan.model.weight_update != "averaging"
    if not is_own or plan.loss is not None or not releases_level(loss_kind(plan)):
        return rule
    half, share = rule.calibration_share / 2, LEVEL_SHARE(signal / plan.privacy.rows_per_unit)
    if plan.label.type == "count":
        share = half or choose_line_share(signal) / 2
    return replace(rule, levels=True, level_share=share, calibration_share=half)


# The plan's own settings, and their consequences ----------------------------------------------------------------------

GREEDY_TREES = 25
"""Trees if splits are paid for, when more trees mean more noise: CCS'22, section 6.2, finds 25 to 50 best."""


def _as_said(plan: Plan, rule: BoostingSettings) -> BoostingSettings:
    """Return the plan's own settings, with the rule in place of its every "auto"."""
    model, m = plan.model, len(plan.features)
    size = {"auto": rule.interaction_size, "all": m}.get(str(model.interaction_size), model.interaction_size)
    pays_for_splits = model.split_method != "totally_random" and size != 1 and not math.isinf(plan.privacy.epsilon)
    n_trees = value_or(model.n_trees, GREEDY_TREES if pays_for_splits else rule.n_trees)
    is_whole = model.batch_size == "all" or model.weight_update == "averaging"
    # Records are clipped only where the kind of loss is, and c is the rule's only under the rule's clip.
    is_clipped = model.weight_update in loss_kind(plan).clipped_updates
    clip = None if model.joint_clip == "none" else value_or(model.joint_clip, rule.joint_clip if is_clipped else None)
    scale = rule.hessian_scale if is_clipped and model.joint_clip == "auto" else None
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
        **({**UNCALIBRATED, **WITHOUT_LEVEL} if model.calibration == "none" else {}),
    )


SIGNAL_OF_SPREAD = 500.0
"""Values are expected from this signal on; with less, the releases say too little about their spread."""
SUBSET_RATE, SUBSET_LEVELS, MAX_MU_OF_CLASSES = 0.4, 1, 3.0
"""Rate and further levels of trees of two classes on several features, up to this mu: an epsilon of about 15 at a
delta of 1e-4. With less noise, values that follow releases more closely fit chance in the records."""


def _with_spread(plan: Plan, signal: float, settings: BoostingSettings) -> BoostingSettings:
    """Return the settings with central splits and expected values, where a unit has signal enough.

    Values are expected where a plan leaves them to the rule, and only with noise of the coordinator. Sums with noise of
    the sites hold more of it than is known.
    """
    model, privacy, label = plan.model, plan.privacy, plan.label.type
    if settings.interaction != "adaptive" or label not in SHAPE_RATES or math.isinf(signal):
        return settings
    settings = replace(settings, central_subsets=signal >= SIGNAL_OF_CENTRAL_SUBSETS)
    is_own = model.learning_rate == model.noise_ridge == model.shrinkage == "auto" and model.weight_update == "newton"
    if not is_own or signal < SIGNAL_OF_SPREAD or privacy.noise != "server":
        return settings
    is_classes = label == "binary"
    if is_classes and mu_of(privacy.epsilon, privacy.delta) > MAX_MU_OF_CLASSES:
        return settings
    settings = replace(settings, shape_rate=SHAPE_RATES[label])
    if not is_classes or signal < SIGNAL_OF_SUBSETS:
        return settings
    return replace(settings, subset_rate=SUBSET_RATE, subset_levels=SUBSET_LEVELS if model.max_depth == "auto" else 0)
