"""The central baseline: its splits follow the exponential mechanism, and every record is in one tree of an ensemble."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import central
from experiments.central import Central, DPBoost, _split, leaf, train_dpboost
from experiments.datasets import Table, category, number


def table_of(values: list[float], codes: list[int], label: list[float]) -> Table:
    features = (number("x", 0, 1), category("c", "a b c"))
    section = {"name": "y", "type": "regression", "min": -1, "max": 1}
    columns = (np.array(values, dtype=np.float32), np.array(codes, dtype=np.int16))
    return Table("t", features, columns, np.array(label), section)


def test_splits_are_drawn_in_proportion_to_the_mechanisms_weights() -> None:
    """Bucket by bucket and category by category, against a direct evaluation of algorithm 2."""
    values, codes, gradients = [0.2, 0.5, 0.9], [0, 1, 1], np.array([0.5, -0.5, -0.4])
    data = Central(table_of(values, codes, [0, 0, 0]))
    settings, epsilon = DPBoost(clip=0.5, ridge=1.0), 2.0

    def weight(left: list[int]) -> float:
        inside = gradients[left].sum() if left else 0.0
        gain = inside**2 / (len(left) + 1) + (gradients.sum() - inside) ** 2 / (3 - len(left) + 1)
        return math.exp(epsilon * gain / (2 * 3 * 0.25))

    expected = [0.2 * weight([]), 0.3 * weight([0]), 0.4 * weight([0, 1]), 0.1 * weight([0, 1, 2])]
    expected += [weight([0]), weight([1, 2]), weight([])]
    random, counts = np.random.default_rng(1), np.zeros(7)
    n = 6000
    for _ in range(n):
        node = _split(data, np.arange(3), gradients, [(0.0, 1.0), (0.0, 0.0)], (settings, epsilon), random)
        bucket = int(np.searchsorted(np.array(values, dtype=np.float32), node.threshold))
        place = 4 + int(node.threshold) if node.is_category else bucket
        counts[place] += 1
    chances = np.array(expected) / np.sum(expected)
    assert np.abs(counts / n - chances).max() < 4.5 * np.sqrt(0.25 / n)


@pytest.mark.parametrize("filters", [True, False])
def test_a_record_is_in_one_tree_of_an_ensemble(monkeypatch: pytest.MonkeyPatch, filters: bool) -> None:
    """Parallel composition needs disjoint parts; and no gradient beyond the clip reaches a sum."""
    seen: list[Any] = []
    grown = central._grown

    def watched(data: Any, rows: Any, gradients: Any, *rest: Any) -> Any:
        seen.append(rows)
        assert np.abs(gradients).max(initial=0) <= 0.3
        return grown(data, rows, gradients, *rest)

    monkeypatch.setattr(central, "_grown", watched)
    random = np.random.default_rng(0)
    columns = (list(random.random(200)), list(random.integers(0, 3, 200)), list(random.uniform(-1, 1, 200)))
    data = Central(table_of(*columns))
    settings = DPBoost(n_ensembles=1, trees_per_ensemble=4, clip=0.3, filters_gradients=filters)
    train_dpboost(data, np.arange(150), settings, 1.0, random)
    together = np.concatenate(seen)
    assert len(seen) == 4 and len(set(together.tolist())) == len(together) and together.max() < 150
    assert len(together) == 150 if not filters else len(together) < 150


@given(
    gradients=st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=30),
    ridge=st.floats(0.1, 50),
    number=st.integers(0, 60),
    clips=st.booleans(),
)
def test_no_record_moves_a_leaf_beyond_what_its_noise_is_for(
    gradients: list[float], ridge: float, number: int, clips: bool
) -> None:
    """Every record of any leaf left out, also the largest beside opposite ones; the bound of a clipped leaf falls with
    the number of its tree and is never above that of a free one."""
    settings = DPBoost(clip=0.5, ridge=ridge, learning_rate=0.1, clips_leaves=clips)
    own = np.array(gradients)
    whole, sensitivity = leaf(own, settings, number)
    for place in range(len(own)):
        without, same = leaf(np.delete(own, place), settings, number)
        assert same == sensitivity and abs(whole - without) <= sensitivity * (1 + 1e-9)
    free = leaf(own, replace(settings, clips_leaves=False), number)[1]
    assert sensitivity <= free == 0.5 / (1 + ridge)
    assert not clips or (abs(whole) <= 0.5 * 0.9**number and sensitivity <= 0.9**number)


def test_the_bound_on_a_leaf_is_reached() -> None:
    """A smaller one would promise too much: one record alone, and one that turns a clipped leaf over."""
    settings = DPBoost(clip=0.5, ridge=1.0, learning_rate=0.5, clips_leaves=False)
    assert abs(leaf(np.array([0.5]), settings, 3)[0]) == leaf(np.array([0.5]), settings, 3)[1]
    clipped = replace(settings, ridge=0.01, clips_leaves=True)
    before, after = (leaf(np.array(own), clipped, 3) for own in ([0.4, -0.2], [0.4, -0.2, -0.5]))
    assert math.isclose(abs(after[0] - before[0]), after[1]) and after[1] == 2 * 0.5**4


def test_with_a_large_epsilon_it_learns() -> None:
    """A step in one feature is found, and unused rows are predicted."""
    random = np.random.default_rng(0)
    x = random.random(2000)
    data = Central(table_of(list(x), [0] * 2000, list(np.where(x > 0.6, 0.8, -0.4))))
    settings = DPBoost(trees_per_ensemble=6, clip=1.5, learning_rate=0.4)
    scores = train_dpboost(data, np.arange(1000), settings, 200.0, random)
    error = np.mean((scores[1000:] - data.labels[1000:]) ** 2)
    assert error < 0.3 * data.labels[1000:].var()
