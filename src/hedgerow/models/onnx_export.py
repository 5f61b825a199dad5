"""A model as an ONNX graph, for onnxruntime 1.20 or newer. Needs the extra "onnx".

    features of the plan        inputs of the graph
    numbers only                "X", float32 [n, n_features], columns in the plan's order
    categories among them       one per feature, by its name: float32 [n, 1], or strings [n, 1] for categories

NaN is a missing number; "" or a word that a table may have for it ("NA", "nan", "null") a missing category; a text that
is not listed counts as such. Texts match as in a table, but for spaces around them, which a graph cannot cut off.

    label               outputs of the graph
    classes             "label", strings [n] (whole numbers where the caller gives such classes), and "probabilities",
                        float32 [n, n_classes], in the order of the plan's classes
    numbers             "value", float64 [n, 1], in units of the label, within its bounds
    times to an event   "value", float64 [n, 1], the risk; chances to be without the event are not in the graph

Where a feature has an output's name, the output's name ends in "_".

Inside, one TreeEnsemble of ai.onnx.ml 5 adds up leaf values in double precision, in which they are exact. A category is
its code in the grid, also where it is missing or not listed, and nodes ask for sets of codes. What follows is what
`Link` does with a score. So predictions are those of `Model.predict`, and probabilities differ from ours only by the
rounding to single precision.

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

from hedgerow import __version__
from hedgerow.data.columns import MISSING, MISSING_WORDS, UNKNOWN, category_indices
from hedgerow.data.faults import Place
from hedgerow.errors import ModelError, missing_extra
from hedgerow.losses.kinds import Link, Objective
from hedgerow.losses.tables import SCORE_LIMIT, SCORE_UNIT
from hedgerow.models.export import require_listed
from hedgerow.plan.plan import Feature, Label, Plan
from hedgerow.trees.ensemble import Ensemble, Leaf, Node, Split, pruned_tree

OPSET, ML_OPSET, IR_VERSION = 21, 5, 10
"""The first ones that have the TreeEnsemble; newer runtimes read older graphs."""
_LESS, _MEMBER = 1, 6
"""Modes of a node."""
_LEAST_SHARE = 1e-12


def onnx_module() -> ModuleType:
    """The package `onnx`; EnvironmentFault, code "missing-extra", when it is not installed."""
    try:
        import onnx
    except ImportError as fault:
        raise missing_extra("onnx", "Writing ONNX") from fault
    module: ModuleType = onnx
    return module


def to_onnx(plan: Plan, ensemble: Ensemble, classes: Sequence[int] | None = None) -> Any:
    """The model as an `onnx.ModelProto`; see the module's text for its inputs and outputs.

    Args:
        plan: of the model.
        ensemble: its trees.
        classes: whole numbers in place of the plan's classes, in their order.

    Raises:
        ModelError: code "export-unsupported", for a loss whose scores have no graph here, or hashed columns.
        EnvironmentFault: code "missing-extra", when onnx is not installed.
    """
    onnx = onnx_module()
    require_listed(plan, "ONNX")
    outputs = _OUTPUTS.get(ensemble.link.name)
    if outputs is None:
        raise ModelError("export-onnx-link", link=ensemble.link.name)
    graph = _Graph(onnx)
    graph.add_inputs(plan)
    scores = graph.add_trees(ensemble)
    outputs(graph, scores, Meaning(ensemble.link, plan.label), plan.label.classes if classes is None else classes)
    return graph.model(plan)


@dataclass
class _Columns:
    """The attributes of a TreeEnsemble, node after node and leaf after leaf."""

    feature: list[int] = field(default_factory=list)
    split: list[float] = field(default_factory=list)
    mode: list[int] = field(default_factory=list)
    missing_true: list[int] = field(default_factory=list)
    true_child: list[int] = field(default_factory=list)
    true_is_leaf: list[int] = field(default_factory=list)
    false_child: list[int] = field(default_factory=list)
    false_is_leaf: list[int] = field(default_factory=list)
    members: list[float] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    leaf_value: list[float] = field(default_factory=list)
    leaf_output: list[int] = field(default_factory=list)

    def append_tree(self, ensemble: Ensemble, root: Split, output: int) -> None:
        """A tree, its nodes from the root down, left before right."""
        place = len(self.feature)
        self.roots.append(place)
        self._append(ensemble, root, output)
        if self.true_child[place] != self.false_child[place]:
            return
        # A node and a leaf of one number. Runtimes take a root with two such children for a tree of a single leaf
        # (onnxruntime 24679), so the leaf gets another number, and the old one is used by no node.
        leaves = self.true_child if self.true_is_leaf[place] else self.false_child
        self.leaf_value.append(self.leaf_value[leaves[place]])
        self.leaf_output.append(output)
        leaves[place] = len(self.leaf_value) - 1

    def append_constant(self, output: int) -> None:
        """A tree that adds 0 to each record: an ensemble must have one, for the number of records."""
        self.roots.append(len(self.feature))
        self._append_node(0, 0.0, _LESS, 0)
        self.leaf_value.append(0.0)
        self.leaf_output.append(output)
        for children, are_leaves in ((self.true_child, self.true_is_leaf), (self.false_child, self.false_is_leaf)):
            children[-1], are_leaves[-1] = len(self.leaf_value) - 1, 1

    def _append(self, ensemble: Ensemble, node: Node, output: int) -> tuple[int, int]:
        """A node and what is below it: its place, and whether that is one among leaves."""
        if isinstance(node, Leaf):
            self.leaf_value.append(node.units / SCORE_UNIT)
            self.leaf_output.append(output)
            return len(self.leaf_value) - 1, 1
        place = len(self.feature)
        when_true, when_false = node.left, node.right
        if node.right_categories is None:
            self._append_node(node.feature, node.condition, _LESS, int(node.missing_left))
        else:
            missing = ensemble.grid.features[node.feature].missing_code
            right = {*node.right_categories, *(() if node.missing_left else (missing,))}
            left = {*range(missing + 1)} - right
            self._append_node(node.feature, 0.0, _MEMBER, 0)
            # The shorter list: a runtime may go through it one by one.
            self.members.extend([*map(float, sorted(right if len(right) < len(left) else left)), math.nan])
            if len(right) < len(left):
                when_true, when_false = node.right, node.left
        self.true_child[place], self.true_is_leaf[place] = self._append(ensemble, when_true, output)
        self.false_child[place], self.false_is_leaf[place] = self._append(ensemble, when_false, output)
        return place, 0

    def _append_node(self, feature: int, split: float, mode: int, missing_true: int) -> None:
        self.feature.append(feature)
        # The threshold as it is compared: the decimal stands for a number of single precision.
        self.split.append(float(np.float32(split)))
        self.mode.append(mode)
        self.missing_true.append(missing_true)
        for column in (self.true_child, self.true_is_leaf, self.false_child, self.false_is_leaf):
            column.append(0)


class _Graph:
    """A graph while it is written. Names within begin with "hedgerow/", so that no feature's name is one of them."""

    def __init__(self, onnx: ModuleType) -> None:
        self.types = onnx.TensorProto
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._n_names = 0

    def add(self, operator: str, inputs: Sequence[str], domain: str = "", **attributes: Any) -> str:
        """A node with one output; the output's name."""
        name = self._name(operator)
        self._nodes.append(self._onnx.helper.make_node(operator, inputs, [name], name, domain=domain, **attributes))
        return name

    def constant(self, values: NDArray[Any]) -> str:
        """A constant's name."""
        name = self._name("constant")
        self._constants.append(self._onnx.numpy_helper.from_array(values, name))
        return name

    def double(self, value: float) -> str:
        """The name of a number of double precision."""
        return self.constant(np.array(value, dtype=np.float64))

    def add_output(self, value: str, name: str, kind: int, shape: list[int | str]) -> None:
        """Give a value out under a name of its own."""
        taken = {known.name for known in self._inputs}
        while name in taken:
            name += "_"
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name], f"hedgerow/{name}"))
        self._outputs.append(self._onnx.helper.make_tensor_value_info(name, kind, shape))

    def add_inputs(self, plan: Plan) -> None:
        """The inputs, made into one float64 [n, n_features]: numbers, and the indices of categories."""
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
        """The name of the scores, float64 [n, n_outputs]."""
        columns, constants = _Columns(), np.zeros(ensemble.n_outputs)
        for tree, output in itertools.product(range(ensemble.n_trees), range(ensemble.n_outputs)):
            root = pruned_tree(ensemble, tree, output)
            if isinstance(root, Leaf):
                constants[output] += root.units / SCORE_UNIT
            else:
                columns.append_tree(ensemble, root, output)
        if not columns.roots:
            columns.append_constant(0)
        attributes: dict[str, Any] = {
            "n_targets": ensemble.n_outputs,
            "aggregate_function": 1,  # their sum
            "post_transform": 0,  # none
            "tree_roots": columns.roots,
            "nodes_featureids": columns.feature,
            "nodes_modes": self._tensor("nodes_modes", np.array(columns.mode, dtype=np.uint8)),
            "nodes_splits": self._tensor("nodes_splits", np.array(columns.split)),
            "nodes_missing_value_tracks_true": columns.missing_true,
            "nodes_truenodeids": columns.true_child,
            "nodes_trueleafs": columns.true_is_leaf,
            "nodes_falsenodeids": columns.false_child,
            "nodes_falseleafs": columns.false_is_leaf,
            "leaf_targetids": columns.leaf_output,
            "leaf_weights": self._tensor("leaf_weights", np.array(columns.leaf_value)),
        }
        if columns.members:
            attributes["membership_values"] = self._tensor("membership_values", np.array(columns.members))
        sums = self.add("TreeEnsemble", [self._table], "ai.onnx.ml", **attributes)
        return self.add("Add", [sums, self.constant(constants)]) if constants.any() else sums

    def model(self, plan: Plan) -> Any:
        """The whole, checked."""
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
        return f"hedgerow/{what}_{self._n_names}"

    def _tensor(self, name: str, values: NDArray[Any]) -> Any:
        return self._onnx.numpy_helper.from_array(values, name)

    def _add_input(self, name: str, kind: int, width: int) -> None:
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, ["n", width]))

    def _index_of(self, feature: Feature) -> str:
        """A category's code: its index; their number for all that are not listed, and one more where it is missing."""
        texts, codes = _texts_of(feature)
        return self.add(
            "LabelEncoder",
            [feature.name],
            "ai.onnx.ml",
            keys_strings=texts,
            values_floats=codes,
            default_float=float(len(feature.categories)),
        )


def _texts_of(feature: Feature) -> tuple[list[str], list[float]]:
    """Texts that a column of this feature may hold, and the code of each, as a table's reader has it."""
    flags = [spelling(word) for word in ("true", "false") for spelling in (str.lower, str.title, str.upper)]
    texts = dict.fromkeys([*feature.categories, *_spellings_of_missing(), *flags, "0", "1", "0.0", "1.0"])
    texts |= dict.fromkeys(f"{category}.0" for category in feature.categories)
    indices = category_indices(list(texts), feature.categories, Place("", feature.name, 0)).tolist()
    known = {text: index for text, index in zip(texts, indices, strict=True) if index != UNKNOWN}
    missing_code = len(feature.categories) + 1
    return list(known), [float(missing_code if index == MISSING else index) for index in known.values()]


def _spellings_of_missing() -> list[str]:
    """Every word for "no value", in every case of its letters."""
    return [
        "".join(letters)
        for word in MISSING_WORDS
        for letters in itertools.product(*((letter.lower(), letter.upper()) for letter in word))
    ]


@dataclass(frozen=True)
class Meaning:
    """What the scores of a model mean: its link, and its label."""

    link: Link
    label: Label

    @property
    def objective(self) -> Objective:
        """The scale of the margin, for links of numbers."""
        found = self.link.objective(self.label)
        if found is None:
            raise ValueError("a link of numbers has an objective")
        return found


Outputs = Callable[[_Graph, str, Meaning, Sequence[Any]], None]


def _two_classes(graph: _Graph, chance: str, is_last: str, classes: Sequence[Any]) -> None:
    """The outputs for two classes: the chance of the last one, float64 [n, 1], and whether it is predicted."""
    other = graph.add("Sub", [graph.double(1.0), chance])
    index = graph.add("Cast", [is_last], to=graph.types.INT64)
    flat = graph.add("Reshape", [index, graph.constant(np.array([-1]))])
    _classes(graph, graph.add("Concat", [other, chance], axis=1), flat, classes)


def _classes(graph: _Graph, probabilities: str, index: str, classes: Sequence[Any]) -> None:
    """The outputs of any number of classes: probabilities, float64 [n, n_classes], and the predicted one's index."""
    are_numbers = not isinstance(classes[0], str)
    names = np.array(classes, dtype=np.int64 if are_numbers else object)
    kind = graph.types.INT64 if are_numbers else graph.types.STRING
    graph.add_output(graph.add("Gather", [graph.constant(names), index]), "label", kind, ["n"])
    single = graph.add("Cast", [probabilities], to=graph.types.FLOAT)
    graph.add_output(single, "probabilities", graph.types.FLOAT, ["n", len(classes)])


def _log_odds(graph: _Graph, scores: str, _: Meaning, classes: Sequence[Any]) -> None:
    _two_classes(graph, graph.add("Sigmoid", [scores]), graph.add("Greater", [scores, graph.double(0.0)]), classes)


def _log_weights(graph: _Graph, scores: str, _: Meaning, classes: Sequence[Any]) -> None:
    index = graph.add("ArgMax", [scores], axis=1, keepdims=0)
    _classes(graph, graph.add("Softmax", [scores], axis=1), index, classes)


def _shares(graph: _Graph, scores: str, meaning: Meaning, classes: Sequence[Any]) -> None:
    if meaning.label.n_outputs == 1:
        chance = graph.add("Clip", [scores, graph.double(0.0), graph.double(1.0)])
        _two_classes(graph, chance, graph.add("Greater", [chance, graph.double(0.5)]), classes)
        return
    shares = graph.add("Clip", [scores, graph.double(_LEAST_SHARE), graph.double(1.0)])
    total = graph.add("ReduceSum", [shares, graph.constant(np.array([1]))], keepdims=1)
    _classes(graph, graph.add("Div", [shares, total]), graph.add("ArgMax", [shares], axis=1, keepdims=0), classes)


def _number(graph: _Graph, scores: str, meaning: Meaning, _: Sequence[Any]) -> None:
    low, high = meaning.label.bounds
    scaled = graph.add("Mul", [scores, graph.double(meaning.objective.half)])
    value = graph.add("Add", [scaled, graph.double(meaning.objective.middle)])
    _value(graph, graph.add("Clip", [value, graph.double(low), graph.double(high)]))


def _risk(graph: _Graph, scores: str, _: Meaning, __: Sequence[Any]) -> None:
    _value(graph, scores)


def _count(graph: _Graph, scores: str, meaning: Meaning, _: Sequence[Any]) -> None:
    reach = SCORE_LIMIT / SCORE_UNIT
    within = graph.add("Clip", [scores, graph.double(-reach), graph.double(reach)])
    mean = graph.add("Exp", [graph.add("Add", [within, graph.double(meaning.objective.middle)])])
    _value(graph, graph.add("Min", [mean, graph.double(meaning.label.bounds[1])]))


def _value(graph: _Graph, value: str) -> None:
    graph.add_output(value, "value", graph.types.DOUBLE, ["n", 1])


_OUTPUTS: dict[str, Outputs] = {
    "logistic": _log_odds,
    "softmax": _log_weights,
    "probability": _shares,
    "identity": _number,
    "log": _count,
    "hazard": _risk,
}
"""What is done with the scores, by the name of their link."""
