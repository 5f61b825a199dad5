"""The settings of boosted trees: a rule on public quantities only, and the noise.

The rule and the evidence for it are in docs/defaults.md. It may look at epsilon, delta, the declared number of records
and the schema; it never looks at data or at a released number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hedgerow.losses.registry import loss_kind
from hedgerow.losses.tables import Loss
from hedgerow.methods.boosting.ends import (
    BASELINE_SHARE,
    LEAST_CLIP_OF_COUNTS,
    MENDINGS,
    STARTS,
    Mending,
    Start,
)
from hedgerow.methods.hazards import HazardStart
from hedgerow.methods.line import asks_for_line, line_share
from hedgerow.methods.start import WIDEST, LinearStart
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import mu_of
from hedgerow.privacy.events import Event
from hedgerow.training.settings import INTERACTION_SHARE, Settings, calibrated, decided
from hedgerow.trees.leaves import JAMES_STEIN_SHARE

MIN_TREES, MAX_TREES = 100, 300
GREEDY_TREES = 25
"""Where splits are paid for, more trees mean more noise: CCS'22, section 6.2, finds the best results at 25 to 50."""
ADAPTIVE_SUBSET = 3

# Two classes with little signal

LITTLE_SIGNAL, ENOUGH_SIGNAL = 200.0, 500.0
"""Up to the first the rule for little signal holds in full, from the second on not at all; between, it fades out."""
LEVELS_LESS, RIDGE_MORE = 2, 2.5
"""Coarse trees and short steps: 2 levels of 4, and a noise ridge of 4 in place of 1.5."""
FEW_FEATURES, MANY_FEATURES = 3, 7
"""Up to the first all features meet in one subset: interactions, and the levels that they take, are kept."""

# Values that are expected by their spread, see `hedgerow.trees.leaves.ValueSpread`

SIGNAL_OF_SPREAD = {"binary": 1500.0, "regression": 500.0, "count": 500.0}
"""From so much signal on; of less the releases say too little of how far values lie apart."""
MOST_MU_OF_SPREAD = 3.0
"""Of two classes up to this mu, an epsilon of about 15 at a delta of 1e-4: with less noise, values that follow releases
more closely fit what is chance in the records."""
SHAPE_RATES = {"binary": 0.3, "regression": 0.5, "count": 0.5}
MOST_SHAPE_RATE, SIGNAL_OF_SHAPE_RATE = 0.75, 4000.0
"""Of numbers the rate rises as the fourth root of what is missing of this signal, up to the first: functions that jump
from value to value need longer steps where there are few."""
SIGNAL_OF_SUBSETS, SUBSET_RATE, SUBSET_LEVELS = 5000.0, 0.4, 1
"""From so much signal on, of two classes, trees on several features too, which are a level deeper then."""

# Three classes or more

MIN_TREES_OF_CLASSES, MAX_TREES_OF_CLASSES = 50, 300
SIGNAL_OF_CLASSES = 5000.0
"""With so much signal, 100 trees: fewer and larger steps than for two classes, as each has a tree's whole noise."""
CLASS_RATE = 0.5

# A bounded number, in units in which its public range is [-1, 1]

MAX_TREES_OF_NUMBERS = 400
SIGNAL_OF_TURN, TURNS_AND_FEATURES = 4.0, 5000
"""Where two turns for each feature are more trees than the signal asks for: at most signal / 4, or 5,000 / features."""
DEEPER = (800.0, 6000.0)
"""From so much signal on trees have a level more."""
CLIP, HESSIAN_SCALE, NOISE_RIDGE = 0.2, 0.066, 90.0
LEAST_RATE, MOST_RATE = 0.25, 2.2
EXPLORING_SHARE, PARTNER_SHARE = 0.9, 0.7
MEAN_SHARE = 0.05
"""Of mu^2, for the mean and the spread about it, where leaves are not smoothed."""

# A count

LEVEL_SHARES, SIGNAL_OF_LEVEL = (0.05, 0.15), 30.0
"""Of mu^2, least and most, for the mean it begins with: with so much signal all of it."""
RATE_OF_COUNTS, RIDGE_OF_COUNTS = 0.5, 16.0

# A time to an event

LINEAR_SHARES, SIGNAL_OF_LINEAR = (0.3, 0.85), 350.0
"""Of mu^2, least and most, for a linear model: with so much signal all of it."""
LEAST_TREES_OF_TIMES, RIDGE_OF_TIMES = 20, 6.0

MOST_START, CALIBRATION_SHARE = 0.6, 0.03


@dataclass(frozen=True, kw_only=True)
class BoostingSettings(Settings):
    """Numbers in place of every "auto".

    Attributes:
        start: what the trees begin with: "none", "mean", or "linear", a linear model of the numeric features after it;
            of counts "level", their mean; of times to an event "hazards", the baseline, or "linear hazards", a linear
            model of all features after it.
        start_share, calibration_share: of mu^2, for the start, and for the last release, by which scores are mended.
        calibration: what that release mends: "none", the "line" of numbers, the "slope" of numbers where leaves are not
            smoothed (`hedgerow.methods.line`), the "odds" of two classes, the "hazards" of times to an event, or the
            "rates" of counts.
    """

    start: str = "none"
    calibration: str = "none"
    start_share: float = 0.0
    calibration_share: float = 0.0

    def start_of(self, plan: Plan, noise_multiplier: float | None = None) -> Start:
        """All about what the trees begin with: with the noise of these settings, or with another."""
        whole = self._multiplier(plan, self.start_share, noise_multiplier)
        return STARTS[self.start](plan, self.start_share, whole, self.calibration != "none")

    def mending_of(self, plan: Plan, noise_multiplier: float | None = None) -> Mending:
        """All about the last release, in the same way."""
        whole = self._multiplier(plan, self.calibration_share, noise_multiplier)
        return MENDINGS[self.calibration](plan, whole)

    def _multiplier(self, plan: Plan, share: float, noise_multiplier: float | None) -> float:
        """The noise multiplier of what has this share of mu^2, where a tree has this one; 0 without privacy."""
        own = self.noise_multiplier if noise_multiplier is None else noise_multiplier
        left = 1 - self.start_share - self.calibration_share
        return own * math.sqrt(left / (share * super().weight(plan))) if own and share else 0.0

    def linear_loss(self, plan: Plan) -> Loss:
        model = self.start_of(plan).model
        return model.loss if isinstance(model, LinearStart) else super().linear_loss(plan)

    def largest_length(self, plan: Plan) -> int:
        return max(self.start_of(plan).longest, self.mending_of(plan).length, super().largest_length(plan))

    def n_exchanges(self, plan: Plan) -> int:
        of_trees = super().n_exchanges(plan)
        return self.start_of(plan).n_exchanges + of_trees + (self.mending_of(plan).length > 0)

    def n_released(self, plan: Plan) -> int:
        start = self.start_of(plan)
        return start.n_exchanges * start.longest + super().n_released(plan) + self.mending_of(plan).length

    def n_start_trees(self, plan: Plan) -> int:
        return self.start_of(plan).n_trees + self.mending_of(plan).n_trees

    def weight(self, plan: Plan) -> float:
        return super().weight(plan) / (1 - self.start_share - self.calibration_share)

    def releases_at(self, plan: Plan, noise_multiplier: float) -> list[Event]:
        start, mending = self.start_of(plan, noise_multiplier), self.mending_of(plan, noise_multiplier)
        return [*start.releases, *super().releases_at(plan, noise_multiplier), *mending.releases]


def resolve_boosting(plan: Plan) -> BoostingSettings:
    """Decide every "auto" of a plan for boosted trees and calibrate its noise.

    Raises:
        PrivacyError: when no noise keeps the promise.
    """
    model, privacy, kind = plan.model, plan.privacy, loss_kind(plan)
    m = len(plan.features)
    unlimited = math.isinf(privacy.epsilon)
    signal = math.inf if unlimited else privacy.n_records * mu_of(privacy.epsilon, privacy.delta)
    greedy = model.split_method != "totally_random"
    default_interaction = "cyclical" if greedy else "adaptive"
    interaction = default_interaction if model.interaction == "auto" else model.interaction
    averaging = model.weight_update == "averaging"
    lack = lack_of_subsets = 0.0
    if plan.label.type == "binary" and interaction == "adaptive" and not averaging:
        lack = _part_of_way(ENOUGH_SIGNAL, LITTLE_SIGNAL, signal)
        lack_of_subsets = lack * _part_of_way(FEW_FEATURES, MANY_FEATURES, m)
    default_size = min(m, ADAPTIVE_SUBSET) if interaction == "adaptive" and lack_of_subsets < 1 else 1
    size = {"auto": default_size, "all": m}.get(str(model.interaction_size), model.interaction_size)
    numbers = kind.has_start and interaction == "adaptive"
    times = plan.label.is_survival and interaction == "adaptive" and model.start != "none"
    times = times and HazardStart(plan).has_columns
    classes = len(plan.label.classes) > 2 and interaction == "adaptive" and not averaging
    default_trees = _trees_of_classes(signal, m) if classes else _default_trees(signal, m, numbers)
    default_trees = _trees_of_times(signal) if times else default_trees
    counts = plan.label.type == "count" and interaction == "adaptive" and _mends_rates(plan)
    ridge = NOISE_RIDGE if numbers else RIDGE_OF_TIMES if times else RIDGE_OF_COUNTS if counts else kind.noise_ridge
    if greedy and size != 1 and not unlimited:
        default_trees = GREEDY_TREES
    n_trees = decided(model.n_trees, default_trees)
    batch_size = n_trees if model.batch_size == "all" or averaging else int(model.batch_size)
    settings = BoostingSettings(
        n_trees=n_trees,
        max_depth=decided(model.max_depth, _depth(signal) if numbers else 4 - round(LEVELS_LESS * lack_of_subsets)),
        batch_size=min(batch_size, n_trees),
        learning_rate=0.25,
        interaction=interaction,
        interaction_size=int(size),
        noise_ridge=decided(model.noise_ridge, ridge + RIDGE_MORE * lack),
        joint_clip=_joint_clip(plan, CLIP if numbers else _clip_of(plan)),
        shrinkage=decided(model.shrinkage, 1.0 if numbers or times else JAMES_STEIN_SHARE),
        hessian_scale=_hessian_scale(plan, HESSIAN_SCALE if numbers else kind.clipped_hessian_scale),
        # A plan that names a size of subsets wants them tried.
        interaction_share=INTERACTION_SHARE * (1 - lack_of_subsets if model.interaction_size == "auto" else 1),
        filters_by_features=classes and model.shrinkage == "auto",
    )
    settings = _with_spread(plan, settings, signal)
    settings = _with_start(plan, settings, signal, numbers)
    settings = _with_ends(plan, settings, signal, times)
    if not unlimited:
        settings = replace(settings, noise_multiplier=calibrated(plan, settings))
    rate = CLASS_RATE if classes else RATE_OF_COUNTS if counts else 0.25
    rate = _learning_rate(signal, settings.noise_ridge) if numbers else rate
    return replace(settings, learning_rate=decided(model.learning_rate, rate))


def _with_spread(plan: Plan, settings: BoostingSettings, signal: float) -> BoostingSettings:
    """The settings with the trees whose values are expected by their spread: where a plan leaves values to the rule.

    Only with noise of the coordinator is its size known exactly: sums with noise of the sites hold more of it.
    """
    model, label = plan.model, plan.label.type
    is_own = model.learning_rate == model.noise_ridge == model.shrinkage == "auto" and model.weight_update == "newton"
    if not is_own or settings.interaction != "adaptive" or model.split_method != "totally_random":
        return settings
    own = signal / plan.privacy.rows_per_unit
    if not SIGNAL_OF_SPREAD.get(label, math.inf) <= own < math.inf or plan.privacy.noise != "server":
        return settings
    if label == "binary" and mu_of(plan.privacy.epsilon, plan.privacy.delta) > MOST_MU_OF_SPREAD:
        return settings
    settings = replace(settings, shape_rate=_shape_rate(label, own))
    if label != "binary" or own < SIGNAL_OF_SUBSETS:
        return settings
    levels = SUBSET_LEVELS if model.max_depth == "auto" else 0
    return replace(settings, subset_rate=SUBSET_RATE, subset_levels=levels)


def _shape_rate(label: str, signal: float) -> float:
    rate = SHAPE_RATES[label]
    if label != "regression":
        return rate
    return min(MOST_SHAPE_RATE, max(rate, rate * math.sqrt(math.sqrt(SIGNAL_OF_SHAPE_RATE / signal))))


def _with_start(plan: Plan, settings: BoostingSettings, signal: float, numbers: bool) -> BoostingSettings:
    """The settings with what numbers, and other labels that have a mean, begin with."""
    start, unlimited = plan.model.start, math.isinf(signal)
    if numbers:
        if start == "auto":
            n_numeric = sum(not feature.is_categorical for feature in plan.features)
            start = "linear" if 0 < n_numeric <= WIDEST else "mean"
        return replace(
            settings,
            start=start,
            start_share=0.0 if start == "none" or unlimited else _start_share(signal),
            interaction_share=EXPLORING_SHARE,
            partner_share=PARTNER_SHARE,
        )
    if loss_kind(plan).has_start and start != "none":
        return replace(settings, start="mean", start_share=0.0 if unlimited else MEAN_SHARE)
    if plan.label.type == "count" and plan.model.weight_update != "averaging" and start != "none":
        least, most = LEVEL_SHARES
        share = 0.0 if unlimited else max(least, min(most, SIGNAL_OF_LEVEL / signal))
        return replace(settings, start="level", start_share=share)
    return settings


def _with_ends(plan: Plan, settings: BoostingSettings, signal: float, is_linear: bool) -> BoostingSettings:
    """The settings with what times to an event begin with, and with the last release."""
    unlimited = math.isinf(signal)
    if plan.label.is_survival:
        share = BASELINE_SHARE + (_linear_share(signal) if is_linear else 0.0)
        start = "linear hazards" if is_linear else "hazards"
        settings = replace(settings, start=start, start_share=0.0 if unlimited else share)
    mended = _calibration(plan, settings)
    share = line_share(signal) if mended in ("slope", "rates") else CALIBRATION_SHARE
    return replace(settings, calibration=mended, calibration_share=0.0 if unlimited or mended == "none" else share)


def _calibration(plan: Plan, settings: BoostingSettings) -> str:
    """What a last release mends, see `BoostingSettings`."""
    if plan.model.calibration == "none":
        return "none"
    if settings.interaction != "adaptive" or _averages_numbers(plan):
        has_slope = (settings.start == "mean" or _averages_numbers(plan)) and asks_for_line(plan)
        return "slope" if has_slope else "none"
    if settings.start in ("mean", "linear"):
        return "line"
    if plan.label.is_survival:
        return "hazards"
    if settings.start == "level":
        return "rates" if _mends_rates(plan) else "none"
    has_odds = plan.label.type == "binary" and plan.model.weight_update != "averaging"
    return "odds" if has_odds else "none"


def _mends_rates(plan: Plan) -> bool:
    """Whether residuals of counts are zoomed in on, and what that clips is mended by a last release."""
    model = plan.model
    is_newton = model.weight_update == "newton" and model.split_method == "totally_random"
    return is_newton and model.start != "none" and model.calibration != "none"


def _averages_numbers(plan: Plan) -> bool:
    return plan.label.is_numeric and plan.model.weight_update == "averaging"


def _default_trees(signal: float, n_features: int, numbers: bool) -> int:
    """More trees where there is more signal, and two turns per feature."""
    if numbers:
        root = math.sqrt(math.sqrt(min(signal, 1e9) / 500))
        trees = max(MIN_TREES, min(MAX_TREES_OF_NUMBERS, int(130 * root * math.sqrt(root))))
        if 2 * n_features <= trees:
            return trees
        # Every tree adds noise, so of many features and little signal not each has two turns.
        return int(min(2 * n_features, max(signal / SIGNAL_OF_TURN, TURNS_AND_FEATURES / n_features)))
    trees = MAX_TREES if math.isinf(signal) else int(100 * math.sqrt(math.sqrt(signal / 1000)))
    return max(2 * n_features, MIN_TREES, min(MAX_TREES, trees))


def _trees_of_times(signal: float) -> int:
    """After a linear model: few where noise is most of what trees would add."""
    return max(LEAST_TREES_OF_TIMES, min(MAX_TREES, int(100 * math.sqrt(min(signal, 1e9) / 1000))))


def _linear_share(signal: float) -> float:
    """Of mu^2, for the linear model of times to an event."""
    least, most = LINEAR_SHARES
    return max(least, min(most, SIGNAL_OF_LINEAR / signal))


def _part_of_way(start: float, end: float, place: float) -> float:
    """How far a place is from the start to the end: 0 before the start, 1 beyond the end."""
    return min(max((place - start) / (end - start), 0.0), 1.0)


def _trees_of_classes(signal: float, n_features: int) -> int:
    """As `_default_trees`, for three classes or more."""
    trees = int(100 * math.sqrt(min(signal, 1e9) / SIGNAL_OF_CLASSES))
    return max(2 * n_features, MIN_TREES_OF_CLASSES, min(MAX_TREES_OF_CLASSES, trees))


def filters_classes(plan: Plan, settings: Settings) -> bool:
    """Whether sums of several classes are filtered by their covariance: where trees are smoothed, and are shrunk."""
    classes = settings.loss(plan).kind == "softmax"
    return classes and settings.interaction == "adaptive" and settings.shrinkage > 0


def _depth(signal: float) -> int:
    return 4 + sum(signal >= border for border in DEEPER)


def _start_share(signal: float) -> float:
    """Of mu^2: a linear model needs so much noise less, whatever the signal."""
    return min(MOST_START, 125 / signal)


def _learning_rate(signal: float, ridge: float) -> float:
    """Steps are short where the noise ridge shortens them little, whether signal or the plan makes it so."""
    rate = min(MOST_RATE, 1.75 * math.sqrt(math.sqrt(2000 / signal)))
    return max(LEAST_RATE, rate * min(1.0, ridge / NOISE_RIDGE))


def _joint_clip(plan: Plan, default: float) -> float | None:
    choice = plan.model.joint_clip
    if choice == "none":
        return None
    return decided(choice, default if plan.model.weight_update in loss_kind(plan).clipped_updates else None)


def _clip_of(plan: Plan) -> float:
    """The clip of a plan's kind of labels; of counts in units of half the largest, and no less than a part of one."""
    clip = loss_kind(plan).clip
    return max(clip, 2 * LEAST_CLIP_OF_COUNTS / plan.label.bounds[1]) if plan.label.type == "count" else clip


def _hessian_scale(plan: Plan, default: float | None) -> float | None:
    is_clipped = plan.model.joint_clip == "auto" and _joint_clip(plan, 1.0) is not None
    return decided(plan.model.hessian_scale, default if is_clipped else None)
