# SPDX-License-Identifier: Apache-2.0
"""Models as files of other programs: XGBoost's JSON, explainable boosting machines, ONNX.

docs/models.md says what each predicts and how it is read. This is what the code rests on.

**XGBoost** (2.1 to 3.4) sends a value left iff it is below the node's threshold in single precision, NaN to the default
side, and a category right iff it is in the node's list: a category (type "c") is its index in the plan, and K, their
number, is every value that is not listed, as pandas has ``pd.Categorical(column, categories=[*categories, "other"])``.
Leaf values are multiples of 2**-16: as long as no sum can reach 2**8, single precision adds them without rounding. So
log-odds agree exactly and probabilities to the rounding of one exponential. Numbers are scaled to the label's units and
agree to about 1e-7 of its range per 100 trees, or, for bounds far from zero, to single precision.

Nodes through which all records go one way, and splits between equal leaves, are left out. `sum_hessian` holds the
released leaf weights where the model has them (SHAP's path-dependent explainer reads them), else one per leaf. All are
divided by one power of two, so that not all of them are whole numbers. Converters (onnxmltools 1.16) take a booster
whose weights are all whole for a regression, and write one that gives log-odds plus base_score for probabilities. They
also add base_score to the log-odds where the first tree is a single leaf of 0; such a leaf is `ALMOST_ZERO` instead.
XGBoost decodes no escapes of JSON but those of quotation marks, backslashes and line breaks.

Source: XGBoost's JSON schema, doc/model.schema, and src/tree/tree_model.cc, src/common/categorical.h (2.1, 3.2).

**Explainable boosting machines** (interpret 0.7, JSON version 1.0) have one term for each feature, a table of its
grid's cells. Their reader takes NaN (and None for a category) as missing, and a category that is not listed as unknown.
Cuts stand where double precision turns into the next single-precision number, so that numbers of either precision fall
into our cells. Weights of cells follow from released sums; deviations are those of the noise (`models.bands`), where
they are known, else 0.

Source: interpret/glassbox/_ebm/_json.py of interpret-core 0.7.8, `_to_json_inner` and its reverse.

**ONNX** (onnxruntime 1.20 or newer): one TreeEnsemble of ai.onnx.ml 5 adds up leaf values in double precision, in which
they are exact. A category is its code in the grid, also where it is missing or not listed, and nodes ask for sets of
codes. What follows is what `Link` does with a score, so probabilities differ from ours only by the rounding to single
precision. Texts match as in a table, except that a graph cannot cut off spaces around them and idle zeros.

Source: https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsemble.html, of onnx 1.16 and newer.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow import elementary
from hedgerow.data.columns import MISSING_WORDS, Place, category_indices, list_texts
from hedgerow.errors import ModelError, missing_extra
from hedgerow.losses.kinds import Objective
from hedgerow.losses.tables import SCORE_LIMIT, SCORE_UNIT
from hedgerow.plan.plan import Feature, Label, Plan
from hedgerow.trees.binning import MISSING_CATEGORY, UNKNOWN_CATEGORY
from hedgerow.trees.constraints import build_groups
from hedgerow.trees.contributions import contributions
from hedgerow.trees.ensemble import Ensemble, Leaf, Node, Split, prune_tree, single_as_decimal
from hedgerow.trees.importances import Shape, shape_function
from hedgerow.version import __version__

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


def require_listed(plan: Plan, form: str) -> None:
    """Raise ModelError if a plan has a column of hashed text.

    Other programs know no such hash, and would take every text for unlisted. XGBoost's JSON has such columns: there a
    category is its place in the list, which `Model.encode` gives.
    """
    hashed = [feature.name for feature in plan.features if feature.is_hashed]
    if hashed:
        raise ModelError("export-unsupported", form=form, reason=f"the texts of {hashed[0]!r} are hashed into buckets")


def to_xgboost(plan: Plan, ensemble: Ensemble) -> dict[str, Any]:
    """Return the model as the JSON object that `xgboost.Booster.load_model` reads.

    Raises:
        ModelError: code "export-unsupported" (averaged classes, or subnormal thresholds) or "export-inexact".
    """
    objective = ensemble.link.objective(plan.label)
    if not objective.name:
        raise ModelError("export-unsupported", form="XGBoost", reason="none of its objectives averages class shares")
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
        groups = [np.flatnonzero(group).tolist() for group in build_groups(plan)]
        attributes["interaction_constraints"] = json.dumps(groups)
    names = xgboost_names(plan)
    if renamed := {name: allowed for name, allowed in names.items() if name != allowed}:
        attributes["renamed"] = json.dumps(renamed, ensure_ascii=False)
    return {
        "learner": {
            "attributes": attributes,
            "feature_names": list(names.values()),
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
    """Return whether XGBoost's `base_score` can hold the label's middle without losing precision."""
    return objective.base_is_margin and abs(objective.middle) <= FAR_MIDDLE * objective.half


def _check_exactness(ensemble: Ensemble) -> None:
    """Raise ModelError for thresholds or sums that single precision would not reproduce."""
    smallest_normal = np.finfo(np.float32).tiny
    for feature in ensemble.grid.features:
        if np.any((feature.edges != 0) & (np.abs(feature.edges) < smallest_normal)):
            raise ModelError(
                "export-unsupported", form="XGBoost", reason="a threshold is so near zero that it may be read as zero"
            )
    if ensemble.fitted is None:
        return
    largest = int(np.abs(ensemble.fitted.values.astype(np.int64)).max(axis=1).sum(axis=0).max())
    if largest >= EXACT_UNITS:
        raise ModelError("export-inexact", largest=largest / SCORE_UNIT, most=EXACT_UNITS // SCORE_UNIT)


def _all_trees(ensemble: Ensemble, objective: Objective) -> tuple[list[dict[str, Any]], list[int]]:
    trees: list[dict[str, Any]] = []
    tree_info: list[int] = []
    for tree, output in itertools.product(range(ensemble.n_trees), range(ensemble.n_outputs)):
        root = prune_tree(ensemble, tree, output)
        trees.append(_tree_to_dict(ensemble, root, len(trees), objective.half / SCORE_UNIT))
        tree_info.append(output)
    if objective.middle and not _is_in_base(objective):
        # Add the middle last, so that a large middle costs the other sums no digits.
        constant = Leaf(SCORE_UNIT, 1.0)
        trees.append(_tree_to_dict(ensemble, constant, len(trees), objective.middle / SCORE_UNIT))
        tree_info.append(0)
    # Weights become fractions, as the module's text says. One power of two divides all of them, so that the smallest is
    # below a half: their proportions stay what they are, to the last bit.
    smallest = min((weight for tree in trees for weight in tree["sum_hessian"]), default=1.0)
    divisor = 2.0 ** (int(smallest).bit_length() + 1)
    for made in trees:
        made["sum_hessian"] = [weight / divisor for weight in made["sum_hessian"]]
    if objective.name == "binary:logistic" and trees and trees[0]["split_conditions"] == [0.0]:
        trees[0]["split_conditions"] = [single_as_decimal(np.float32(ALMOST_ZERO))]
    return trees, tree_info


def _tree_to_dict(ensemble: Ensemble, root: Node, number: int, unit: float) -> dict[str, Any]:
    """Return a tree as XGBoost's JSON object, with its nodes level by level.

    XGBoost 2.1 takes a right child to stand directly after the left one.
    """
    nodes, parents, children = [root], [NO_PARENT], list[tuple[int, int]]()
    for place, node in enumerate(nodes):
        children.append((-1, -1) if isinstance(node, Leaf) else (len(nodes), len(nodes) + 1))
        if not isinstance(node, Leaf):
            # The list grows while it is read.
            nodes += [node.left, node.right]
            parents += [place, place]
    splits = [None if isinstance(node, Leaf) else node for node in nodes]
    # An empty list XGBoost does not read: when only missing values go right, a code that never occurs stands in.
    lists = {
        place: list(split.right_categories or (ensemble.grid.features[split.feature].n_codes,))
        for place, split in enumerate(splits)
        if split is not None and split.right_categories is not None
    }
    sizes = [len(categories) for categories in lists.values()]
    return {
        "base_weights": [0.0] * len(nodes),
        "categories": [code for categories in lists.values() for code in categories],
        "categories_nodes": list(lists),
        "categories_segments": [0, *itertools.accumulate(sizes)][: len(sizes)],
        "categories_sizes": sizes,
        "default_left": [int(split is not None and split.missing_left) for split in splits],
        "id": number,
        "left_children": [left for left, _ in children],
        "loss_changes": [0.0] * len(nodes),
        "parents": parents,
        "right_children": [right for _, right in children],
        # A leaf has its value where a split has its condition.
        "split_conditions": [
            single_as_decimal(np.float32(node.units * unit)) if isinstance(node, Leaf) else node.condition
            for node in nodes
        ],
        "split_indices": [0 if split is None else split.feature for split in splits],
        "split_type": [int(place in lists) for place in range(len(nodes))],
        "sum_hessian": [node.weight for node in nodes],
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(ensemble.grid.n_features),
            "num_nodes": str(len(nodes)),
            "size_leaf_vector": "1",
        },
    }


def xgboost_names(plan: Plan) -> dict[str, str]:
    """Return the name in XGBoost of each feature, in the plan's order; no two are equal.

    XGBoost forbids brackets and "<" in names: there these are exchanged for signs that look alike. All other names stay
    as they are, so that no column of the user's is taken for one that was renamed.
    """
    names = {name: name.translate(_FORBIDDEN) for name in plan.feature_names}
    taken = {name for name, allowed in names.items() if name == allowed}
    for name, allowed in names.items():
        if name != allowed:
            while allowed in taken:
                allowed += "_"
            names[name] = allowed
            taken.add(allowed)
    return names


JSON_VERSION = "1.0"
HISTOGRAM_BINS = 20
_MACHINE = "An explainable boosting machine"
_LINKS = {"logistic": "logit", "softmax": "mlogit", "identity": "identity", "log": "log"}


def to_ebm(plan: Plan, ensemble: Ensemble, deviations: Sequence[NDArray[np.float64]] | None = None) -> dict[str, Any]:
    """Return the model as the JSON object that InterpretML reads.

    Args:
        deviations: per feature, what the noise alone may have moved its shape by: float64 [n_codes, n_outputs], in
            units of the ensemble's scores; None where that is not known.

    Raises:
        ModelError: code "export-unsupported", when a tree asks for several features, a column is hashed, or no link
                fits.
    """
    require_listed(plan, "InterpretML's JSON")
    link = _LINKS.get(ensemble.link.name)
    if link is None:
        raise ModelError(
            "export-unsupported", form=_MACHINE, reason=f"it has no link for {ensemble.link.name!r} scores"
        )
    for tree, output in itertools.product(range(ensemble.n_trees), range(ensemble.n_outputs)):
        if (count := len(_find_features(prune_tree(ensemble, tree, output)))) > 1:
            raise ModelError(
                "export-unsupported",
                form=_MACHINE,
                reason=f"it has one table per feature, and tree {tree} asks for {count}",
            )
    objective, grids = ensemble.link.objective(plan.label), ensemble.grid.features
    half = objective.half
    # Contributions of each code of each feature.
    codes = np.array([np.minimum(np.arange(ensemble.grid.n_codes), grid.missing_code) for grid in grids])
    found = contributions(ensemble, codes.astype(ensemble.grid.dtype))
    features, terms = [], []
    for number, feature in enumerate(plan.features):
        shape, table = shape_function(ensemble, number), found.values[:, : grids[number].n_codes, number].T
        features.append(_feature(feature, shape))
        spread = np.zeros_like(table) if deviations is None else deviations[number]
        terms.append(_term(feature, half * table, half * spread, shape))
    intercept = (objective.middle + half * found.base).tolist()
    predicted: dict[str, Any] = {"task": "classification", "classes": list(plan.label.classes)}
    if plan.label.kind.is_number:
        low, high = plan.label.bounds
        predicted = {"task": "regression", "min_target": low, "max_target": high}
    return {
        "version": JSON_VERSION,
        "ebm": {
            "outputs": [{**predicted, "link": link, "link_param": "nan"}],
            "intercept": intercept,
            "bagged_intercept": [intercept[0] if len(intercept) == 1 else intercept],
            "bag_weights": [1.0],
            "best_iteration": [[ensemble.n_trees]],
            "implementation": "hedgerow",
            "features": features,
            "terms": terms,
        },
    }


def _find_features(node: Node) -> set[int]:
    return set() if isinstance(node, Leaf) else {node.feature} | _find_features(node.left) | _find_features(node.right)


def _feature(feature: Feature, shape: Shape) -> dict[str, Any]:
    if feature.is_categorical:
        categories = list(feature.categories)
        return {
            "name": feature.name, "type": "nominal", "num_unique_vals": len(categories), "categories": [categories],
        }  # fmt: skip
    low, high = feature.min or 0.0, feature.max or 0.0
    borders = np.concatenate([[low], np.clip(shape.borders, low, high), [high]])
    cumulative = np.concatenate([[0.0], np.cumsum(shape.density[:-1])])
    shares = np.diff(elementary.interpolate(np.linspace(low, high, HISTOGRAM_BINS + 1), borders, cumulative))
    return {
        "name": feature.name,
        "type": "continuous",
        "num_unique_vals": len(shape.density) - 1,
        "cuts": [[_cut(edge) for edge in shape.borders]],
        "min": low,
        "max": high,
        # Shares of the records: missing, bins of equal width over the bounds, and unknown.
        "histogram_weights": [float(shape.density[-1]), *shares.tolist(), 0.0],
    }


def _cut(edge: np.float32) -> float:
    """Return the least double that single precision rounds to `edge` or above it."""
    middle = (float(np.nextafter(edge, np.float32(-np.inf))) + float(edge)) / 2
    return middle if np.float32(middle) == edge else float(np.nextafter(middle, np.inf))


def _term(feature: Feature, table: NDArray[np.float64], spread: NDArray[np.float64], shape: Shape) -> dict[str, Any]:
    """Return one feature's table in InterpretML's order: missing, cells or categories, unknown."""
    missing = len(table) - 1
    # Not a number at all: for us that is an error, so it may as well be missing.
    unknown = missing - 1 if feature.is_categorical else missing
    order = [missing, *range(unknown), unknown] if feature.is_categorical else [missing, *range(missing), missing]
    scores, spread = table[order], spread[order]
    weights = shape.density[order]
    if not feature.is_categorical:
        weights[-1] = 0.0
    # One output is no axis of its own.
    plain, spread = (scores[:, 0], spread[:, 0]) if scores.shape[1] == 1 else (scores, spread)
    return {
        "term_features": [feature.name],
        "scores": plain.tolist(),
        "standard_deviations": spread.tolist(),
        "bagged_scores": [plain.tolist()],
        "bin_weights": weights.tolist(),
    }


OPSET, ML_OPSET, IR_VERSION = 21, 5, 10
"""The first ones that have the TreeEnsemble; newer runtimes read older graphs."""
_LESS, _MEMBER = 1, 6
"""Modes of a node."""
_MIN_SHARE = 1e-12


def onnx_module() -> ModuleType:
    """Return the package `onnx`; EnvironmentFault, code "missing-extra", if it is not installed."""
    try:
        import onnx
    except ImportError as fault:
        raise missing_extra("onnx", "Writing ONNX") from fault
    module: ModuleType = onnx
    return module


def to_onnx(plan: Plan, ensemble: Ensemble, classes: Sequence[int] | None = None) -> Any:
    """Return the model as an `onnx.ModelProto`; docs/models.md has its inputs and outputs.

    Args:
        classes: whole numbers in place of the plan's classes, in their order.

    Raises:
        ModelError: code "export-unsupported", for a loss whose scores have no graph here, or hashed columns.
        EnvironmentFault: code "missing-extra", when onnx is not installed.
    """
    onnx = onnx_module()
    require_listed(plan, "ONNX")
    outputs = _OUTPUTS.get(ensemble.link.name)
    if outputs is None:
        raise ModelError(
            "export-unsupported", form="ONNX", reason=f"no graph is known for {ensemble.link.name!r} scores"
        )
    graph = _Graph(onnx, plan)
    graph.add_inputs(plan)
    scores = graph.add_trees(ensemble)
    names = plan.label.classes if classes is None else classes
    outputs(graph, scores, plan.label, ensemble.link.objective(plan.label), names)
    return graph.model(plan)


@dataclass
class _OnnxTrees:
    """The attributes of a TreeEnsemble: of its nodes, each by their names, and of its leaves."""

    nodes: list[dict[str, Any]] = field(default_factory=list)
    members: list[float] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    leaf_value: list[float] = field(default_factory=list)
    leaf_output: list[int] = field(default_factory=list)

    def append_tree(self, ensemble: Ensemble, root: Split, output: int) -> None:
        """Append a tree, its nodes from the root down, left before right."""
        self.roots.append(len(self.nodes))
        self._append(ensemble, root, output)
        node = self.nodes[self.roots[-1]]
        if node["nodes_truenodeids"] != node["nodes_falsenodeids"]:
            return
        # A node and a leaf of one number. Runtimes take a root with two such children for a tree of a single leaf
        # (onnxruntime 24679). So the leaf gets another number. The old one is used by no node.
        child = "nodes_truenodeids" if node["nodes_trueleafs"] else "nodes_falsenodeids"
        node[child], _ = self._append_leaf(self.leaf_value[node[child]], output)

    def append_constant(self) -> None:
        """Append a tree that adds 0 to the first output.

        An ensemble must have a tree, for the number of records.
        """
        self.roots.append(len(self.nodes))
        leaf = self._append_leaf(0.0, 0)
        self.nodes.append(_describe_node(0, 0.0, _LESS, 0, leaf, leaf))

    def _append(self, ensemble: Ensemble, node: Node, output: int) -> tuple[int, int]:
        """Append a node with those below it; return its place, and whether that is among the leaves."""
        if isinstance(node, Leaf):
            return self._append_leaf(node.units / SCORE_UNIT, output)
        place, made = len(self.nodes), dict[str, Any]()
        self.nodes.append(made)
        when_true, when_false = node.left, node.right
        split, mode, missing_true = node.condition, _LESS, int(node.missing_left)
        if node.right_categories is not None:
            missing = ensemble.grid.features[node.feature].missing_code
            right = {*node.right_categories, *(() if node.missing_left else (missing,))}
            left = {*range(missing + 1)} - right
            split, mode, missing_true = 0.0, _MEMBER, 0
            # The shorter list: a runtime may go through it one by one.
            self.members.extend([*map(float, sorted(right if len(right) < len(left) else left)), math.nan])
            if len(right) < len(left):
                when_true, when_false = node.right, node.left
        children = self._append(ensemble, when_true, output), self._append(ensemble, when_false, output)
        made.update(_describe_node(node.feature, split, mode, missing_true, *children))
        return place, 0

    def _append_leaf(self, value: float, output: int) -> tuple[int, int]:
        self.leaf_value.append(value)
        self.leaf_output.append(output)
        return len(self.leaf_value) - 1, 1


def _describe_node(
    feature: int, split: float, mode: int, missing_true: int, if_true: tuple[int, int], if_false: tuple[int, int]
) -> dict[str, Any]:
    return {
        "nodes_featureids": feature, "nodes_modes": mode, "nodes_missing_value_tracks_true": missing_true,
        # Write the threshold in single precision, in which readers compare it.
        "nodes_splits": float(np.float32(split)),
        "nodes_truenodeids": if_true[0], "nodes_trueleafs": if_true[1],
        "nodes_falsenodeids": if_false[0], "nodes_falseleafs": if_false[1],
    }  # fmt: skip


class _Graph:
    """A graph while it is written.

    Names within begin as no feature's name does: with "hedgerow", and "/" or more.
    """

    def __init__(self, onnx: ModuleType, plan: Plan) -> None:
        self._prefix = "hedgerow/"
        while any(name.startswith(self._prefix) for name in plan.feature_names):
            self._prefix += "/"
        self.types = onnx.TensorProto
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._n_names = 0

    def add(self, operator: str, inputs: Sequence[str], domain: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        name = self._name(operator)
        self._nodes.append(self._onnx.helper.make_node(operator, inputs, [name], name, domain=domain, **attributes))
        return name

    def constant(self, values: NDArray[Any]) -> str:
        """Add a constant, and return its name."""
        name = self._name("constant")
        self._constants.append(self._onnx.numpy_helper.from_array(values, name))
        return name

    def double(self, value: float) -> str:
        """Add a number of double precision, and return its name."""
        return self.constant(np.array(value, dtype=np.float64))

    def add_output(self, value: str, name: str, kind: int, shape: list[int | str]) -> None:
        """Add an output with this value, under a name that no input has."""
        taken = {known.name for known in self._inputs}
        while name in taken:
            name += "_"
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name], f"{self._prefix}{name}"))
        self._outputs.append(self._onnx.helper.make_tensor_value_info(name, kind, shape))

    def add_inputs(self, plan: Plan) -> None:
        """Add the inputs, and join them into one float64 [n, n_features].

        It holds numbers, and the indices of categories.
        """
        if not any(feature.is_categorical for feature in plan.features):
            self._add_input("X", self.types.FLOAT, len(plan.features))
            self._table = self.add("Cast", ["X"], to=self.types.DOUBLE)
            return
        columns = []
        for feature in plan.features:
            self._add_input(feature.name, self.types.STRING if feature.is_categorical else self.types.FLOAT, 1)
            columns.append(self._index_of(feature) if feature.is_categorical else feature.name)
        joined = columns[0] if len(columns) == 1 else self.add("Concat", columns, axis=1)
        self._table = self.add("Cast", [joined], to=self.types.DOUBLE)

    def add_trees(self, ensemble: Ensemble) -> str:
        """Add the trees, and return the name of the scores, float64 [n, n_outputs]."""
        trees, constants = _OnnxTrees(), np.zeros(ensemble.n_outputs)
        for tree, output in itertools.product(range(ensemble.n_trees), range(ensemble.n_outputs)):
            root = prune_tree(ensemble, tree, output)
            if isinstance(root, Leaf):
                constants[output] += root.units / SCORE_UNIT
            else:
                trees.append_tree(ensemble, root, output)
        if not trees.roots:
            trees.append_constant()
        of_nodes = {name: [node[name] for node in trees.nodes] for name in trees.nodes[0]}
        attributes: dict[str, Any] = {
            "n_targets": ensemble.n_outputs,
            "aggregate_function": 1,  # their sum
            "post_transform": 0,  # none
            "tree_roots": trees.roots,
            **of_nodes,
            "nodes_modes": self._tensor("nodes_modes", np.array(of_nodes["nodes_modes"], dtype=np.uint8)),
            "nodes_splits": self._tensor("nodes_splits", np.array(of_nodes["nodes_splits"])),
            "leaf_targetids": trees.leaf_output,
            "leaf_weights": self._tensor("leaf_weights", np.array(trees.leaf_value)),
        }
        if trees.members:
            attributes["membership_values"] = self._tensor("membership_values", np.array(trees.members))
        sums = self.add("TreeEnsemble", [self._table], "ai.onnx.ml", **attributes)
        return self.add("Add", [sums, self.constant(constants)]) if constants.any() else sums

    def model(self, plan: Plan) -> Any:
        """Return the whole model, checked."""
        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, "hedgerow", self._inputs, self._outputs, self._constants)
        versions = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
        model = helper.make_model(
            graph, opset_imports=versions, ir_version=IR_VERSION, producer_name="hedgerow", producer_version=__version__
        )
        features = json.dumps(list(plan.feature_names))
        helper.set_model_props(model, {"label": plan.label.name, "features": features, "plan_digest": plan.digest})
        self._onnx.checker.check_model(model)
        return model

    def _name(self, what: str) -> str:
        self._n_names += 1
        return f"{self._prefix}{what}_{self._n_names}"

    def _tensor(self, name: str, values: NDArray[Any]) -> Any:
        return self._onnx.numpy_helper.from_array(values, name)

    def _add_input(self, name: str, kind: int, width: int) -> None:
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, ["n", width]))

    def _index_of(self, feature: Feature) -> str:
        """Add the encoding of a category, and return the name of the codes.

        A category's code is its index; their number is the code of all that are not listed, and one more that of a
        missing one.
        """
        texts, codes = _list_texts(feature)
        return self.add(
            "LabelEncoder",
            [feature.name],
            "ai.onnx.ml",
            keys_strings=texts,
            values_floats=codes,
            default_float=float(len(feature.categories)),
        )


def _list_texts(feature: Feature) -> tuple[list[str], list[float]]:
    """Return the texts that a column may hold, and their codes, as a table's reader has them."""
    flags = [spelling(word) for word in ("true", "false") for spelling in (str.lower, str.title, str.upper)]
    # Every word for "no value", in every case of its letters.
    missing = [
        "".join(letters)
        for word in MISSING_WORDS
        for letters in itertools.product(*((letter.lower(), letter.upper()) for letter in word))
    ]
    texts = dict.fromkeys([*list_texts(feature.categories), *missing, *flags])
    indices = category_indices(list(texts), feature.categories, Place("", feature.name, 0)).require().tolist()
    known = {text: index for text, index in zip(texts, indices, strict=True) if index != UNKNOWN_CATEGORY}
    missing_code = len(feature.categories) + 1
    return list(known), [float(missing_code if index == MISSING_CATEGORY else index) for index in known.values()]


Outputs = Callable[[_Graph, str, Label, Objective, Sequence[Any]], None]


def _two_classes(graph: _Graph, chance: str, is_last: str, classes: Sequence[Any]) -> None:
    """Add the predicted class and the probabilities of two classes to the ONNX graph.

    Args:
        chance: of the last class, float64 [n, 1].
        is_last: whether the last class is predicted.
    """
    other = graph.add("Sub", [graph.double(1.0), chance])
    index = graph.add("Cast", [is_last], to=graph.types.INT64)
    flat = graph.add("Reshape", [index, graph.constant(np.array([-1]))])
    _classes(graph, graph.add("Concat", [other, chance], axis=1), flat, classes)


def _classes(graph: _Graph, probabilities: str, index: str, classes: Sequence[Any]) -> None:
    """Add the outputs for any number of classes.

    Args:
        probabilities: float64 [n, n_classes].
        index: of the predicted class.
    """
    are_numbers = not isinstance(classes[0], str)
    names = np.array(classes, dtype=np.int64 if are_numbers else object)
    kind = graph.types.INT64 if are_numbers else graph.types.STRING
    graph.add_output(graph.add("Gather", [graph.constant(names), index]), "label", kind, ["n"])
    single = graph.add("Cast", [probabilities], to=graph.types.FLOAT)
    graph.add_output(single, "probabilities", graph.types.FLOAT, ["n", len(classes)])


def _log_odds(graph: _Graph, scores: str, _: Label, __: Objective, classes: Sequence[Any]) -> None:
    _two_classes(graph, graph.add("Sigmoid", [scores]), graph.add("Greater", [scores, graph.double(0.0)]), classes)


def _log_weights(graph: _Graph, scores: str, _: Label, __: Objective, classes: Sequence[Any]) -> None:
    index = graph.add("ArgMax", [scores], axis=1, keepdims=0)
    _classes(graph, graph.add("Softmax", [scores], axis=1), index, classes)


def _shares(graph: _Graph, scores: str, _: Label, __: Objective, classes: Sequence[Any]) -> None:
    if len(classes) == 2:
        chance = graph.add("Clip", [scores, graph.double(0.0), graph.double(1.0)])
        _two_classes(graph, chance, graph.add("Greater", [chance, graph.double(0.5)]), classes)
        return
    shares = graph.add("Clip", [scores, graph.double(_MIN_SHARE), graph.double(1.0)])
    total = graph.add("ReduceSum", [shares, graph.constant(np.array([1]))], keepdims=1)
    _classes(graph, graph.add("Div", [shares, total]), graph.add("ArgMax", [shares], axis=1, keepdims=0), classes)


def _number(graph: _Graph, scores: str, label: Label, objective: Objective, _: Sequence[Any]) -> None:
    low, high = label.bounds
    scaled = graph.add("Mul", [scores, graph.double(objective.half)])
    value = graph.add("Add", [scaled, graph.double(objective.middle)])
    _value(graph, graph.add("Clip", [value, graph.double(low), graph.double(high)]))


def _count(graph: _Graph, scores: str, label: Label, objective: Objective, _: Sequence[Any]) -> None:
    reach = SCORE_LIMIT / SCORE_UNIT
    within = graph.add("Clip", [scores, graph.double(-reach), graph.double(reach)])
    mean = graph.add("Exp", [graph.add("Add", [within, graph.double(objective.middle)])])
    _value(graph, graph.add("Min", [mean, graph.double(label.bounds[1])]))


def _value(graph: _Graph, value: str) -> None:
    graph.add_output(value, "value", graph.types.DOUBLE, ["n", 1])


_OUTPUTS: dict[str, Outputs] = {
    "logistic": _log_odds,
    "softmax": _log_weights,
    "probability": _shares,
    "identity": _number,
    "log": _count,
    "hazard": lambda graph, scores, *_: _value(graph, scores),
}
"""The function that adds the outputs of scores, by the name of their link."""
