"""An ensemble as XGBoost's own JSON model, for versions 2.1 to 3.3.

    label                   objective           Booster.predict gives
    binary                  binary:logistic     the probability of the last class
    multiclass              multi:softprob      the probabilities of all classes
    regression              reg:squarederror    the value in units of the label, before it is clipped to its bounds
    count                   count:poisson       the mean, before it is clipped to its bounds
    survival                reg:squarederror    the risk, what a record adds to the log-odds of the event
    binary, averaging       reg:squarederror    the probability of the last class, before it is clipped to [0, 1]
    multiclass, averaging   refused: its shares are divided by their sum, which no objective of XGBoost does

Where XGBoost does not clip, the bounds stand in the booster's attributes "clip_min" and "clip_max". What the plan says
of directions and groups of features stands there as its parameters "monotone_constraints" and
"interaction_constraints" are written; XGBoost keeps these in no model file, and predicts as well without.

What the booster expects of its input: columns in the plan's order; NaN for missing; for a categorical feature (type
"c") the index in the plan's categories, and K, their number, for every value that is not listed. That is what pandas
gives for ``pd.Categorical(column, categories=[*categories, "anything else"])``.

XGBoost sends a value left iff it is below the node's threshold in single precision, NaN to the default side, and a
category right iff it is in the node's list. Leaf values are multiples of 2**-16: as long as no sum can reach 2**8,
single precision adds them without rounding, so log-odds agree exactly and probabilities to the rounding of one
exponential. Regressions are scaled to the label's units and agree to about 1e-7 of its range per 100 trees.

Nodes through which all records go one way, and splits between equal leaves, are left out. `sum_hessian` holds the
released leaf weights where the model has them (SHAP's path-dependent explainer reads them), else one per leaf; all are
divided by one power of two, so that not all of them are whole numbers. Converters (onnxmltools 1.16) take a booster
whose weights are all whole for a regression, and write one that gives log-odds plus base_score for probabilities. They
also add base_score to the log-odds where the first tree is a single leaf of 0; such a leaf is `ALMOST_ZERO` instead.

Source: XGBoost's JSON schema, doc/model.schema, and src/tree/tree_model.cc, src/common/categorical.h (2.1, 3.2).

An exported file can be checked by loading it with XGBoost and comparing predictions on made-up records.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hedgerow.errors import ModelError, missing_extra
from hedgerow.losses.kinds import Objective
from hedgerow.losses.tables import SCORE_UNIT
from hedgerow.plan.plan import Feature, Plan
from hedgerow.trees.binning import CodeArray, FeatureGrid, Grid
from hedgerow.trees.constraints import groups_of
from hedgerow.trees.ensemble import Ensemble, Leaf, Node, Split, pruned_tree, single_as_decimal

XGBOOST_VERSION = [2, 1, 0]
"""The format that the file follows; newer XGBoosts read older formats."""
NO_PARENT = 2**31 - 1
EXACT_UNITS = 2**24
"""Integers below this are exact in single precision."""
ALMOST_ZERO = 2.0**-100
"""Lost in a sum with any multiple of 2**-16, and by itself a probability of a half."""
FAR_MIDDLE = 4.0
"""A middle of the label's range further from zero than this many half ranges is added last."""
_FORBIDDEN = str.maketrans({"[": "(", "]": ")", "<": "﹤"})


@dataclass
class _Columns:
    """XGBoost's arrays of one tree, node after node."""

    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    feature: list[int] = field(default_factory=list)
    condition: list[float] = field(default_factory=list)
    default_left: list[int] = field(default_factory=list)
    split_type: list[int] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)
    categories: list[int] = field(default_factory=list)
    category_nodes: list[int] = field(default_factory=list)
    category_segments: list[int] = field(default_factory=list)
    category_sizes: list[int] = field(default_factory=list)

    def append_leaf(self, value: float) -> None:
        """A leaf keeps its value where a split keeps its condition."""
        self._append(-1, -1, 0, value, 0, 0)

    def append_split(self, number: int, node: Split, left: int, never: int) -> None:
        """A split, node `number`, whose children will be nodes `left` and `left` + 1; `never` is a code out of use."""
        categories = None if node.right_categories is None else node.right_categories or (never,)
        self._append(left, left + 1, node.feature, node.condition, int(node.missing_left), int(categories is not None))
        if categories is not None:
            self.category_nodes.append(number)
            self.category_segments.append(len(self.categories))
            self.category_sizes.append(len(categories))
            self.categories.extend(categories)

    def _append(self, left: int, right: int, feature: int, condition: float, default_left: int, kind: int) -> None:
        self.left.append(left)
        self.right.append(right)
        self.feature.append(feature)
        self.condition.append(condition)
        self.default_left.append(default_left)
        self.split_type.append(kind)


def require_listed(plan: Plan, form: str) -> None:
    """Raise ModelError for a column of hashed text: programs that know no such hash would take every text for unlisted.

    XGBoost's JSON has such columns: there a category is its place in the list, which `Model.encode` gives.
    """
    hashed = [feature.name for feature in plan.features if feature.is_hashed]
    if hashed:
        raise ModelError("export-hashed", name=hashed[0], form=form)


def to_xgboost(plan: Plan, ensemble: Ensemble) -> dict[str, Any]:
    """The model as the JSON object that `xgboost.Booster.load_model` reads.

    Raises:
        ModelError: code "export-unsupported" (averaged classes, or subnormal thresholds) or "export-inexact".
    """
    objective = ensemble.link.objective(plan.label)
    if objective is None:
        raise ModelError("export-averaging")
    _check_exactness(ensemble)
    trees, tree_info = _all_trees(ensemble, objective)
    base_score = objective.middle if _is_in_base(objective) else objective.base
    n_outputs = ensemble.n_outputs
    rounds = np.arange(0, len(trees) + 1, n_outputs).tolist()
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": rounds,
        "tree_info": tree_info,
        "trees": trees,
    }
    attributes = {"written_by": "hedgerow", "label": plan.label.name}
    if objective.clip is not None:
        attributes |= {"clip_min": repr(objective.clip[0]), "clip_max": repr(objective.clip[1])}
    if any(feature.monotone for feature in plan.features):
        signs = ({"increasing": "1", "decreasing": "-1"}.get(feature.monotone or "", "0") for feature in plan.features)
        attributes["monotone_constraints"] = f"({','.join(signs)})"
    if plan.model.interaction_constraints:
        groups = [np.flatnonzero(group).tolist() for group in groups_of(plan)]
        attributes["interaction_constraints"] = json.dumps(groups)
    return {
        "learner": {
            "attributes": attributes,
            "feature_names": _feature_names(plan),
            "feature_types": ["c" if feature.is_categorical else "float" for feature in plan.features],
            "gradient_booster": {"model": model, "name": "gbtree"},
            "learner_model_param": {
                # 3.x writes a list here but reads the plain number of 2.x as well.
                "base_score": repr(single_as_decimal(np.float32(base_score))),
                "boost_from_average": "0",
                "num_class": str(n_outputs if n_outputs > 1 else 0),
                "num_feature": str(len(plan.features)),
                "num_target": "1",
            },
            "objective": {"name": objective.name, **objective.parameters},
        },
        "version": XGBOOST_VERSION,
    }


def _is_in_base(objective: Objective) -> bool:
    """Whether the middle is so near that `base_score` holds it."""
    return objective.base_is_margin and abs(objective.middle) <= FAR_MIDDLE * objective.half


def _check_exactness(ensemble: Ensemble) -> None:
    """Refuse what single precision would not reproduce."""
    smallest_normal = np.finfo(np.float32).tiny
    for feature in ensemble.grid.features:
        if np.any((feature.edges != 0) & (np.abs(feature.edges) < smallest_normal)):
            raise ModelError("export-threshold")
    if ensemble.fitted is None:
        return
    largest = int(np.abs(ensemble.fitted.values.astype(np.int64)).max(axis=1).sum(axis=0).max())
    if largest >= EXACT_UNITS:
        raise ModelError("export-inexact", largest=largest / SCORE_UNIT, most=EXACT_UNITS // SCORE_UNIT)


def _all_trees(ensemble: Ensemble, objective: Objective) -> tuple[list[dict[str, Any]], list[int]]:
    trees: list[dict[str, Any]] = []
    tree_info: list[int] = []
    for tree, output in itertools.product(range(ensemble.n_trees), range(ensemble.n_outputs)):
        root = pruned_tree(ensemble, tree, output)
        trees.append(_tree_to_dict(ensemble, root, len(trees), objective.half / SCORE_UNIT))
        tree_info.append(output)
    if objective.middle and not _is_in_base(objective):
        # Added last, a large middle does not cost the digits of the sums before it.
        constant = Leaf(SCORE_UNIT, 1.0)
        trees.append(_tree_to_dict(ensemble, constant, len(trees), objective.middle / SCORE_UNIT))
        tree_info.append(0)
    _make_weights_fractions(trees)
    if objective.name == "binary:logistic" and trees and trees[0]["split_conditions"] == [0.0]:
        trees[0]["split_conditions"] = [single_as_decimal(np.float32(ALMOST_ZERO))]
    return trees, tree_info


def _make_weights_fractions(trees: list[dict[str, Any]]) -> None:
    """Divide the weights of all nodes by one power of two, so that the smallest one is below a half.

    Their proportions stay what they are, to the last bit. See the module's text for what whole numbers are taken for.
    """
    smallest = min((weight for tree in trees for weight in tree["sum_hessian"]), default=1.0)
    divisor = 2.0 ** (int(smallest).bit_length() + 1)
    for tree in trees:
        tree["sum_hessian"] = [weight / divisor for weight in tree["sum_hessian"]]


def _tree_to_dict(ensemble: Ensemble, root: Node, number: int, unit: float) -> dict[str, Any]:
    columns = _columns_of(ensemble, root, unit)
    n_nodes = len(columns.left)
    return {
        "base_weights": [0.0] * n_nodes,
        "categories": columns.categories,
        "categories_nodes": columns.category_nodes,
        "categories_segments": columns.category_segments,
        "categories_sizes": columns.category_sizes,
        "default_left": columns.default_left,
        "id": number,
        "left_children": columns.left,
        "loss_changes": [0.0] * n_nodes,
        "parents": columns.parent,
        "right_children": columns.right,
        "split_conditions": columns.condition,
        "split_indices": columns.feature,
        "split_type": columns.split_type,
        "sum_hessian": columns.weight,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(ensemble.grid.n_features),
            "num_nodes": str(n_nodes),
            "size_leaf_vector": "1",
        },
    }


def _columns_of(ensemble: Ensemble, root: Node, unit: float) -> _Columns:
    """The nodes level by level. XGBoost 2.1 takes a right child to stand directly after the left one."""
    columns = _Columns()
    waiting: deque[tuple[Node, int]] = deque([(root, NO_PARENT)])
    n_placed = 1
    while waiting:
        node, parent = waiting.popleft()
        number = len(columns.left)
        columns.parent.append(parent)
        columns.weight.append(node.weight)
        if isinstance(node, Leaf):
            columns.append_leaf(single_as_decimal(np.float32(node.units * unit)))
            continue
        # An empty list XGBoost does not read: when only missing values go right, a code that never occurs stands in.
        never = ensemble.grid.features[node.feature].n_codes
        columns.append_split(number, node, n_placed, never)
        waiting.extend([(node.left, number), (node.right, number)])
        n_placed += 2
    return columns


def _feature_names(plan: Plan) -> list[str]:
    """The plan's names; XGBoost forbids brackets and "<" in them, so these are exchanged for signs that look alike."""
    names: list[str] = []
    for name in plan.feature_names:
        allowed = name.translate(_FORBIDDEN)
        while allowed in names:
            allowed += "_"
        names.append(allowed)
    return names


TOLERANCE = 1e-6
"""Largest difference of a probability, or of a value relative to the label's range."""
N_RECORDS = 2000


class Predictor(Protocol):
    """What is compared with XGBoost: a `hedgerow.models.model.Model`."""

    @property
    def plan(self) -> Plan:
        """The plan that it was trained by."""

    @property
    def ensemble(self) -> Ensemble:
        """Its trees."""

    def predict_codes(self, codes: CodeArray) -> NDArray[Any]:
        """Predictions of records in grid codes [n_features, n]."""

    def predict_proba_codes(self, codes: CodeArray) -> NDArray[np.float64]:
        """Probabilities of records in grid codes, float64 [n, n_classes]."""


def check_xgboost_file(model: Predictor, path: Path, seed: int = 0) -> float:
    """The largest difference between our predictions and those of XGBoost for the file at `path`.

    The records are made up from the plan alone: values between, at and just below thresholds, missing values, unlisted
    categories.

    Raises:
        ModelError: code "export-differs", when it is above `TOLERANCE`.
        EnvironmentFault: code "missing-extra", when XGBoost is not installed.
    """
    try:
        import xgboost
    except ImportError as fault:
        raise missing_extra("xgboost", "Checking an export") from fault
    matrix = made_up_records(model.plan, model.ensemble.grid, N_RECORDS, np.random.default_rng(seed))
    booster = xgboost.Booster()
    booster.load_model(path)
    data = xgboost.DMatrix(
        matrix, feature_names=booster.feature_names, feature_types=booster.feature_types, enable_categorical=True
    )
    difference = largest_difference(model, matrix, booster.predict(data))
    if not difference <= TOLERANCE:
        raise ModelError("export-differs", version=xgboost.__version__, difference=difference)
    return difference


def made_up_records(plan: Plan, grid: Grid, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Records as XGBoost takes them, float32 [n, n_features], that try every side of every threshold."""
    columns = [
        _categories(feature_grid, n, rng) if feature.is_categorical else _numbers(feature, feature_grid, n, rng)
        for feature, feature_grid in zip(plan.features, grid.features, strict=True)
    ]
    matrix = np.column_stack(columns).astype(np.float32)
    matrix[rng.random(matrix.shape) < 0.1] = np.nan
    return matrix


def codes_of_matrix(grid: Grid, matrix: NDArray[np.float32]) -> CodeArray:
    """Grid codes [n_features, n] of records in the form that XGBoost takes."""
    columns: list[NDArray[np.generic]] = []
    for feature, column in zip(grid.features, matrix.T, strict=True):
        if not feature.is_categorical:
            columns.append(np.ascontiguousarray(column))
            continue
        indices = np.where(np.isnan(column), -2, column).astype(np.int16)
        columns.append(np.where(indices == feature.n_categories, -1, indices))
    return grid.encode(tuple(columns))


def largest_difference(model: Predictor, matrix: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    """Largest difference in probability, or in value relative to the label's range, after clipping theirs."""
    codes = codes_of_matrix(model.ensemble.grid, matrix)
    label = model.plan.label
    if label.is_survival:
        risks = model.predict_codes(codes)
        return float(np.abs(risks - theirs.astype(np.float64)).max() / max(1.0, np.abs(risks).max()))
    if label.is_numeric:
        low, high = label.bounds
        objective = model.ensemble.link.objective(label)
        kept = (low, high) if objective is None or objective.clip is None else objective.clip
        clipped = np.clip(theirs.astype(np.float64), *kept)
        return float(np.abs(model.predict_codes(codes) - clipped).max() / (high - low))
    ours = model.predict_proba_codes(codes)
    if ours.shape[1] == 2:
        return float(np.abs(ours[:, 1] - np.clip(theirs.astype(np.float64), 0, 1)).max())
    return float(np.abs(ours - theirs).max())


def _numbers(feature: Feature, grid: FeatureGrid, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    low, high = feature.min or 0.0, feature.max or 0.0
    between = rng.uniform(low - 0.05 * (high - low), high + 0.05 * (high - low), n).astype(np.float32)
    at = rng.choice(grid.edges, n)
    below = np.nextafter(at, np.float32(-np.inf))
    return np.choose(rng.integers(0, 3, n), [between, at, below])


def _categories(grid: FeatureGrid, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    return rng.integers(0, grid.n_categories + 1, n).astype(np.float32)
