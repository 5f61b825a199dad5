"""Small plans, random rows of them, hand-made trees, and runs of the real protocol in process."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.errors import HedgerowError
from hedgerow.losses.tables import Loss
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.tasks import Task
from hedgerow.models.model import Model
from hedgerow.plan.plan import Feature, FederationSection, Plan, Privacy
from hedgerow.plan.registry import rules_by_method
from hedgerow.privacy.noise import NoiseSource, SeededNoise
from hedgerow.protocol.queries import FittedTrees, IntVector, Purpose, Query, TreeBatch
from hedgerow.server.release import UNCOUNTED, Outcome, PlainAggregation, run_program
from hedgerow.survey.questions import Questions
from hedgerow.trees.binning import N_PLACES, build_grid
from hedgerow.trees.leaf_sums import LeafSums, SiteRecords, leaf_sums

FEATURES: list[dict[str, Any]] = [
    {"name": "age", "type": "numeric", "min": 0, "max": 4, "integer": True},
    {"name": "income", "type": "numeric", "min": 0, "max": 1e6, "spacing": "log"},
    {"name": "region", "type": "categorical", "categories": ["north", "south", "west"]},
    {"name": "change", "type": "numeric", "min": -1, "max": 1},
]
LABELS: dict[str, dict[str, Any]] = {
    "binary": {"name": "y", "type": "binary", "classes": ["no", "yes"]},
    "multiclass": {"name": "y", "type": "multiclass", "classes": ["a", "b", "c", "d"]},
    "regression": {"name": "y", "type": "regression", "min": -3, "max": 5},
    "count": {"name": "y", "type": "count", "max": 12},
    "survival": {"name": "y", "type": "survival", "event": "seen", "intervals": [1, 2, 5, 9]},
}


def coded(word: str) -> Callable[[HedgerowError], bool]:
    """What `pytest.raises(..., check=)` asks of an error: that its code is this word, whatever its sentences say."""
    return lambda fault: fault.code == word


class CountingNoise(SeededNoise):
    """Seeded noise that remembers what it was asked for."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.asked: list[tuple[int, int, str]] = []

    def sample(self, sigma: int, length: int, purpose: str) -> NDArray[np.int64]:
        self.asked.append((sigma, length, purpose))
        return super().sample(sigma, length, purpose)


def bare_plan(label: Mapping[str, Any], features: Sequence[Mapping[str, Any]], **fields: Any) -> Plan:
    """A plan that says of its model what is given and nothing else; epsilon 1, delta 1e-6, 100 records.

    Args:
        label, features: their tables.
        fields: a section's fields by its name, as in `s_gbdt={...}`; or single ones of [privacy], of [federation] or of
            the plan's top by their own name, and of [model] all others.
    """
    table: dict[str, Any] = {"version": 1, "name": "test", "label": label, "features": features}
    privacy: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "n_records": 100}
    federation, model = dict[str, Any](), dict[str, Any]()
    for name, value in fields.items():
        if isinstance(value, Mapping) and name not in ("privacy", "federation", "model"):
            table[name] = value
        elif isinstance(value, Mapping):
            {"privacy": privacy, "federation": federation, "model": model}[name].update(value)
        elif name in ("name", "prepared"):
            table[name] = value
        else:
            section = privacy if name in _PRIVACY else federation if name in _FEDERATION else model
            section[name] = value
    return Plan.from_dict({**table, "privacy": privacy, "federation": federation, "model": model})


_PRIVACY, _FEDERATION = ({field.name for field in dataclasses.fields(kind)} for kind in (Privacy, FederationSection))


def numbers(n: int, low: float = 0.0, high: float = 1.0) -> list[dict[str, Any]]:
    """So many numeric features within these bounds: x0, x1 and so on."""
    return [{"name": f"x{i}", "type": "numeric", "min": low, "max": high} for i in range(n)]


def make_plan(
    label: str = "binary",
    model: dict[str, Any] | None = None,
    privacy: dict[str, Any] | None = None,
    features: list[dict[str, Any]] | None = None,
    **fields: Any,
) -> Plan:
    """A plan over two to four small features; `model`, `privacy` and `fields` override single fields (`bare_plan`).

    Of two classes without the last release, so that there is one for each tree. A time to an event has Newton updates
    of random trees without paid candidates, whatever `model` says.
    """
    model = dict(model or {})
    algorithm = model.get("algorithm", fields.get("algorithm", "boosting"))
    known = rules_by_method()[algorithm].model_fields
    small: dict[str, Any] = {"n_trees": 4, "max_depth": 2}
    plain = {name: size for name, size in small.items() if known is None or name in known}
    if label == "binary" and algorithm == "boosting":
        plain["calibration"] = "none"
    if label == "survival":
        only = {"weight_update": "newton", "split_method": "totally_random"}
        only |= {"split_candidates": "uniform"} if "split_candidates" in model else {}
        model |= only
    single = {name: value for name, value in fields.items() if not isinstance(value, Mapping)}
    sections = {name: value for name, value in fields.items() if isinstance(value, Mapping)}
    known_privacy = {"epsilon": 2.0, "delta": 1e-5, **(privacy or {})}
    return bare_plan(
        LABELS[label], features or FEATURES, privacy=known_privacy, model={**plain, **model}, **sections, **single
    )


def gaps(n_columns: int = 0, n_unknown: int = 0, label: str = "", **about: Any) -> Questions:
    """The questions of a fit: of numbers, of columns of any kind, and of a label's "bounds", "counts" or "classes"."""
    types = ["numeric"] * n_columns + [""] * n_unknown + ([""] if label == "classes" else ["numeric"] if label else [])
    columns = [Feature(name="", type=each, integer=label == "counts") for each in types]
    return Questions(
        columns=tuple(columns), label=len(types) - 1 if label else None, **{"epsilon": 1.0, "delta": 1e-6, **about}
    )


def s_gbdt_plan(
    label: str = "binary", model: dict[str, Any] | None = None, privacy: dict[str, Any] | None = None, **section: Any
) -> Plan:
    """A small plan of S-GBDT; `section` goes to [s_gbdt]."""
    return make_plan(label, {"algorithm": "s-gbdt", **(model or {})}, privacy, s_gbdt=section)


@st.composite
def plans(draw: st.DrawFn, min_epsilon: float = 0.05, max_epsilon: float = 20.0) -> Plan:
    """Plans of every combination: label, update, candidates, features per tree, batches, unit, accountant, scales."""
    pick = st.sampled_from
    n_features = draw(st.integers(1, len(FEATURES)))
    n_trees = draw(st.integers(1, 7))
    rows = draw(st.integers(1, 3))
    model = {
        "n_trees": n_trees,
        "max_depth": draw(st.integers(1, 4)),
        "n_candidates": draw(st.integers(1, 40)),
        "weight_update": draw(pick(["newton", "gradient", "averaging"])),
        "split_candidates": draw(pick(["adaptive", "uniform", "log", "iterative_hessian"])),
        "candidate_rounds": draw(st.integers(1, 5)),
        "interaction": draw(pick(["auto", "cyclical", "random", "adaptive"])),
        "interaction_size": draw(pick([1, "all", "auto", min(2, n_features)])),
        "batch_size": draw(st.one_of(st.integers(1, n_trees), st.just("all"))),
        "joint_clip": draw(pick(["auto", "none", 0.2, 0.8, 3.0])),
        "hessian_scale": draw(pick(["auto", 0.3, 1.0, 5.0])),
        "learning_rate": draw(pick(["auto", 0.01, 9.9])),
        "leaf_ridge": draw(pick([0.0, 1.0])),
        "noise_ridge": draw(pick([0.0, 2.0])),
        "leaf_clip": draw(pick([2.0, 1e5])),
        "structure_seed": draw(st.integers(0, 2**63 - 1)),
        "calibration": draw(pick(["auto", "none"])),
    }
    privacy = {
        "epsilon": 10.0 ** draw(st.floats(math.log10(min_epsilon), math.log10(max_epsilon))),
        "delta": draw(pick([1e-3, 1e-5, 1e-9, 1e-12])),
        "accountant": draw(pick(["gdp", "rdp"])),
        "unit": "record" if rows == 1 else "patient",
        "max_rows_per_unit": rows,
    }
    # Drawn from the end as well, so that a lone categorical feature occurs.
    features = draw(st.permutations(FEATURES))[:n_features]
    label = draw(pick(sorted(LABELS)))
    if model["weight_update"] == "newton" and (classes := LABELS[label].get("classes")) and draw(st.booleans()):
        model["class_weights"] = [draw(pick([1e-6, 0.5, 1.0, 3.7, 1e6])) for _ in classes]
    return make_plan(label, model, privacy, features)


class NoNoise(SeededNoise):
    """Noise of which every draw is 0: what stands under it."""

    def sample(self, sigma: int, length: int, purpose: str) -> NDArray[np.int64]:
        """See `NoiseSource.sample`."""
        return np.zeros(length, dtype=np.int64)


def make_data(plan: Plan, n: int, seed: int) -> SiteData:
    """Random rows: every code of every feature occurs, missing and unlisted ones too."""
    random = np.random.default_rng(seed)
    grid = build_grid(plan)
    codes = np.empty((grid.n_features, n), dtype=grid.dtype)
    for row, feature in enumerate(grid.features):
        codes[row] = random.integers(0, feature.n_codes, n)
    low, high = plan.label.kind.encoded_range(plan.label)
    labels = random.integers(low, high + 1, n)
    places = random.integers(0, N_PLACES, (len(grid.divisible), n)).astype(np.uint8) if grid.divisible else None
    return SiteData(codes, labels.astype(np.int32), places)


def take(data: SiteData, rows: NDArray[np.intp] | NDArray[np.bool_] | Sequence[int] | slice) -> SiteData:
    """Some rows of a site, in the order given."""
    return data.only(np.arange(data.n_records)[rows])


def train(plan: Plan, sites: Sequence[SiteData], noise: NoiseSource | None = None) -> Outcome:
    """A run of the real protocol in process, with seeded noise unless other noise is given."""
    settings = resolve(plan)
    nodes = [Node(f"site {i}", data, plan, settings) for i, data in enumerate(sites)]
    noise = SeededNoise(1) if noise is None else noise
    return run_program(plan, program_for(plan, settings), PlainAggregation(nodes), noise, UNCOUNTED)


def train_model(plan: Plan, seed: int = 0, n: int = 60) -> Model:
    """The model that a run of the plan over random rows makes."""
    outcome = train(plan, [make_data(plan, n, seed)])
    return Model(plan, outcome.ensemble, outcome.ledger, outcome.report)


def with_values(model: Model, values: NDArray[Any]) -> Model:
    """The same structures with other leaf values."""
    fitted = model.ensemble.fitted
    assert fitted is not None
    return replace(model, ensemble=replace(model.ensemble, fitted=FittedTrees(fitted.trees, values.astype(np.int32))))


def random_trees(
    random: np.random.Generator, n_trees: int, depth: int, n_codes: Sequence[int], one_feature: bool = False
) -> TreeBatch:
    """Arbitrary trees: ordered splits with missing values to either side, and sets; `n_codes` of each feature."""
    n_nodes, width = 2**depth - 1, max(n_codes)
    feature = random.integers(0, len(n_codes), (n_trees, n_nodes)).astype(np.int32)
    if one_feature:
        feature[:] = feature[:, :1]
    goes_left = random.integers(0, 2, (n_trees, n_nodes, width)).astype(np.uint8)
    threshold = np.full((n_trees, n_nodes), -1, dtype=np.int32)
    for tree, node in np.ndindex(n_trees, n_nodes):
        own = n_codes[int(feature[tree, node])]
        if random.random() < 0.7:
            cut = int(random.integers(0, own))
            threshold[tree, node] = cut
            goes_left[tree, node] = np.arange(width) <= cut
            goes_left[tree, node, own - 1] = random.integers(0, 2)  # missing values; may even break the interval
        else:
            # A drawn set lists its feature's codes, and all later ones go right; a set may end within them, too.
            goes_left[tree, node, int(random.choice([own, 64, width])) :] = 0
    return TreeBatch(feature, goes_left, threshold)


def random_fitted(random: np.random.Generator, trees: TreeBatch, n_outputs: int, size: int = 2**16) -> FittedTrees:
    """Trees with random values of at most `size`."""
    shape = (trees.n_trees, trees.n_leaves, n_outputs)
    return FittedTrees(trees, random.integers(-size, size + 1, shape).astype(np.int32))


def query_of(trees: TreeBatch, loss: Loss, update: FittedTrees | None = None) -> LeafSums:
    """A query for the sums of a loss over some trees."""
    return LeafSums(
        purpose=Purpose(0, "LeafSums", "test"),
        length=trees.n_trees * trees.n_leaves * loss.n_statistics,
        bound=loss.bound(),
        sensitivity_squared=loss.norm_squared,
        noise_multiplier=1.0,
        update=update,
        trees=trees,
        score_bound=0,
    )


def separating_tree() -> TreeBatch:
    """A tree of depth 8 whose leaf l holds exactly the records of code l of feature 0."""
    codes = np.arange(256)
    goes_left = np.zeros((1, 255, 256), dtype=np.uint8)
    for node in range(255):
        level = (node + 1).bit_length() - 1
        span = 256 >> level
        goes_left[0, node] = codes < (node + 1 - 2**level) * span + span // 2
    threshold = goes_left.sum(axis=2).astype(np.int32) - 1
    return TreeBatch(np.zeros((1, 255), dtype=np.int32), goes_left, threshold)


def contributions(loss: Loss, labels: NDArray[Any], scores: NDArray[Any]) -> NDArray[np.int64]:
    """What the real kernel adds for each record: int64 [n, n_statistics]; scores int [n_outputs, n]."""
    tree, parts = separating_tree(), []
    for begin in range(0, len(labels), 256):
        n = len(labels[begin : begin + 256])
        records = SiteRecords(
            np.arange(n, dtype=np.uint8)[None, :],
            np.ascontiguousarray(labels[begin : begin + 256], dtype=np.int32),
            np.ascontiguousarray(scores[:, begin : begin + 256], dtype=np.int32),
        )
        parts.append(leaf_sums(records, query_of(tree, loss), loss, 1).reshape(256, -1)[:n])
    return np.concatenate(parts)


def digest_of(content: Any) -> str:
    """SHA-256, shortened, of JSON with nine digits of every float: calibration may end a last digit elsewhere."""

    def rounded(content: Any) -> Any:
        if isinstance(content, dict):
            return {name: rounded(value) for name, value in content.items()}
        if isinstance(content, list):
            return [rounded(value) for value in content]
        return float(f"{content:.9g}") if isinstance(content, float) else content

    return hashlib.sha256(json.dumps(rounded(content), sort_keys=True).encode()).hexdigest()[:24]


def queries_of(task: Task, seed: int = 0, most: int = 0) -> tuple[list[Query], object]:
    """What a run asks when its releases are numbers of up to `most`, or some choice; and what it finds."""
    random, queries = np.random.default_rng(seed), list[Query]()
    program: Generator[Query, IntVector, object] = task.with_structure_seed(seed).program()
    try:
        query = next(program)
        while True:
            queries.append(query)
            low, high = (0, 8 if most else 0) if query.is_choice else (-most, most)
            query = program.send(random.integers(low, high + 1, query.release_length))
    except StopIteration as finished:
        return queries, finished.value
