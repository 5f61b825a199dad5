"""An additive model as the JSON of InterpretML's explainable boosting machines (interpret 0.7, JSON version 1.0).

    label           link        the machine predicts
    binary          logit       our classes and probabilities
    multiclass      mlogit      our classes and probabilities
    regression      identity    our value, before it is held to the label's bounds
    count           log         our mean, before it is held to its bounds
    averaging       refused for classes: no link of theirs reads shares

Additive means that no tree asks for more than one feature, as with ``interaction_size = 1`` or in a linear model; each
feature is then one term, a table of its grid's cells. To read the file:

    machine = interpret.glassbox.ExplainableBoostingClassifier()    (or ...Regressor)
    machine._from_json("model.ebm.json")

That reader is called a beta by its makers. It takes NaN (and None for a category) as missing, and a category that is
not listed as unknown. Cuts stand where double precision turns into the next single-precision number, so that numbers of
either precision fall into our cells. Weights of cells are the shares of the records that follow from released sums and
say nothing that the model file does not. A machine's standard deviations are those of the noise (`models.bands`), where
they are known, else 0.

Source: interpret/glassbox/_ebm/_json.py of interpret-core 0.7.8, `_to_json_inner` and its reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.errors import ModelError
from hedgerow.models.export import require_listed
from hedgerow.plan.plan import Feature, Plan
from hedgerow.trees.contributions import contributions
from hedgerow.trees.ensemble import Ensemble, Leaf, Node, pruned_tree
from hedgerow.trees.importances import Shape, shape_function

JSON_VERSION = "1.0"
HISTOGRAM_BINS = 20
_LINKS = {"logistic": "logit", "softmax": "mlogit", "identity": "identity", "log": "log"}


def to_ebm(plan: Plan, ensemble: Ensemble, deviations: Sequence[NDArray[np.float64]] | None = None) -> dict[str, Any]:
    """The model as the JSON object that InterpretML reads.

    Args:
        deviations: per feature, what the noise alone may have moved its shape by: float64 [n_codes, n_outputs], in
            units of the ensemble's scores; None where that is not known.

    Raises:
        ModelError: code "export-unsupported", when a tree asks for several features, a column is hashed, or no link
                fits.
    """
    require_listed(plan, "InterpretML's JSON")
    link = _LINKS.get(ensemble.link.name)
    if plan.label.is_survival:
        raise ModelError("export-survival")
    if link is None:
        raise ModelError("export-ebm-link")
    _check_additive(ensemble)
    objective = ensemble.link.objective(plan.label)
    half, middle = (1.0, 0.0) if objective is None else (objective.half, objective.middle)
    base, tables = _tables(ensemble)
    features, terms = [], []
    for number, feature in enumerate(plan.features):
        shape = shape_function(ensemble, number)
        features.append(_feature(feature, shape))
        spread = np.zeros_like(tables[number]) if deviations is None else deviations[number]
        terms.append(_term(feature, half * tables[number], half * spread, shape))
    intercept = (middle + half * base).tolist()
    return {
        "version": JSON_VERSION,
        "ebm": {
            "outputs": [_output(plan, link)],
            "intercept": intercept,
            "bagged_intercept": [intercept[0] if len(intercept) == 1 else intercept],
            "bag_weights": [1.0],
            "best_iteration": [[ensemble.n_trees]],
            "implementation": "hedgerow",
            "features": features,
            "terms": terms,
        },
    }


def _check_additive(ensemble: Ensemble) -> None:
    for tree in range(ensemble.n_trees):
        for output in range(ensemble.n_outputs):
            asked = _features_of(pruned_tree(ensemble, tree, output))
            if len(asked) > 1:
                raise ModelError("export-not-additive", tree=tree, count=len(asked))


def _features_of(node: Node) -> set[int]:
    return set() if isinstance(node, Leaf) else {node.feature} | _features_of(node.left) | _features_of(node.right)


def _tables(ensemble: Ensemble) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """The base, and what each code of each feature adds: float64 [n_outputs], and per feature [n_codes, n_outputs]."""
    grids = ensemble.grid.features
    codes = np.array([np.minimum(np.arange(ensemble.grid.n_codes), grid.missing_code) for grid in grids])
    found = contributions(ensemble, codes.astype(ensemble.grid.dtype))
    return found.base, [found.values[:, : grid.n_codes, number].T for number, grid in enumerate(grids)]


def _output(plan: Plan, link: str) -> dict[str, Any]:
    output: dict[str, Any] = {"link": link, "link_param": "nan"}
    if plan.label.is_numeric:
        low, high = plan.label.bounds
        return {"task": "regression", "min_target": low, "max_target": high, **output}
    return {"task": "classification", "classes": list(plan.label.classes), **output}


def _feature(feature: Feature, shape: Shape) -> dict[str, Any]:
    if feature.is_categorical:
        categories = list(feature.categories)
        return {
            "name": feature.name, "type": "nominal", "num_unique_vals": len(categories), "categories": [categories],
        }  # fmt: skip
    low, high = feature.min or 0.0, feature.max or 0.0
    return {
        "name": feature.name,
        "type": "continuous",
        "num_unique_vals": len(shape.density) - 1,
        "cuts": [[_cut(edge) for edge in shape.borders]],
        "min": low,
        "max": high,
        "histogram_weights": _histogram(shape, low, high),
    }


def _cut(edge: np.float32) -> float:
    """The least double that single precision rounds to `edge` or above it."""
    middle = (float(np.nextafter(edge, np.float32(-np.inf))) + float(edge)) / 2
    return middle if np.float32(middle) == edge else float(np.nextafter(middle, np.inf))


def _histogram(shape: Shape, low: float, high: float) -> list[float]:
    """Shares of the records: missing, bins of equal width over the bounds, and unknown."""
    borders = np.concatenate([[low], np.clip(shape.borders, low, high), [high]])
    cumulative = np.concatenate([[0.0], np.cumsum(shape.density[:-1])])
    shares = np.diff(np.interp(np.linspace(low, high, HISTOGRAM_BINS + 1), borders, cumulative))
    return [float(shape.density[-1]), *shares.tolist(), 0.0]


def _term(feature: Feature, table: NDArray[np.float64], spread: NDArray[np.float64], shape: Shape) -> dict[str, Any]:
    """One feature's table in their order: missing, cells or categories, and last what is unknown."""
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
