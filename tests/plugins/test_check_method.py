"""`check_method` finds what a method states falsely, and nothing on the methods and losses that there are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.cli.main import main
from hedgerow.losses.registry import LOSSES
from hedgerow.losses.tables import Loss
from hedgerow.methods import Parts
from hedgerow.methods.registry import METHODS, add_method
from hedgerow.plan.plan import Plan
from hedgerow.plan.registry import rules_by_method
from hedgerow.privacy.schedule import Schedule
from hedgerow.protocol.queries import IntVector
from hedgerow.testing import MethodCheck, check_method
from hedgerow.training.steps import Program
from hedgerow.trees.leaf_sums import LeafSums, TrainingSite
from tests.builders import LABELS, make_plan
from tests.plugins import toy_method
from tests.tiers import all_but


def small(method: str, label: str = "binary") -> Plan:
    """The smallest plan of a method and a type of label."""
    privacy = {"accountant": "pure"} if rules_by_method()[method].is_pure else {}
    return make_plan(label, {"algorithm": method}, privacy)


def require_sound(found: MethodCheck, plan: Plan) -> None:
    assert found.faults == ()
    assert 0 < found.epsilon <= plan.privacy.epsilon
    # One that states far too much is not unsound, and adds noise that nobody needs.
    assert 0.3 < max(found.largest.values()) <= 1


@pytest.mark.parametrize("method", all_but(["dp-xgboost", "boosting"], METHODS))
def test_every_method_keeps_to_what_it_states(method: str) -> None:
    """Each member of the table: no row adds more than its query says, and no run costs more than promised."""
    for label in LABELS:
        if (known := rules_by_method()[method].labels) is None or label in known:
            require_sound(check_method(plan := small(method, label)), plan)


@pytest.mark.parametrize("label", LOSSES)
@pytest.mark.parametrize("update", all_but(["gradient", "averaging"], ["newton", "gradient", "averaging"]))
def test_every_loss_keeps_to_what_it_states(label: str, update: str) -> None:
    """Each member of the table of losses, clipped and not, by each weight update."""
    for clip in ("none", 0.3):
        plan = make_plan(label, {"weight_update": update, "n_trees": 2, "joint_clip": clip})
        require_sound(check_method(plan), plan)


@pytest.mark.parametrize("noise", ["server", "distributed", "local"])
def test_a_unit_of_several_rows_is_counted_with_all_of_them(noise: str) -> None:
    """Where a person has three rows, what is stated is of three; whoever adds the noise."""
    plan = make_plan("regression", {}, {"unit": "patient", "max_rows_per_unit": 3, "noise": noise})
    require_sound(check_method(plan), plan)


@pytest.mark.slow
@pytest.mark.parametrize("model", [
    {"split_method": "hist", "interaction_size": "all"}, {"split_method": "partially_random"},
    {"split_candidates": "iterative_hessian"}, {"batch_size": 3, "interaction_size": 2},
])  # fmt: skip
def test_every_kind_of_split_keeps_to_what_it_states(model: dict[str, Any]) -> None:
    """Histograms, sides of splits, candidates that are paid for, and batches of trees."""
    plan = make_plan("binary", model)
    require_sound(check_method(plan), plan)


# Lies ----------------------------------------------------------------------------------------------------------------


class Lie(toy_method.ClassCounts):
    """The toy's counts, but not as it states them."""


class Threefold(Lie):
    def answer(self, site: TrainingSite) -> IntVector:
        return 3 * super().answer(site)


class Fullest(Lie):
    """Which class is the more frequent one here: no sum over rows."""

    def answer(self, site: TrainingSite) -> IntVector:
        counts = super().answer(site)
        return np.where(counts == counts.max(), counts.max(), 0) if counts.any() else counts


class Halves(Lie):
    def answer(self, site: TrainingSite) -> Any:
        return super().answer(site).astype(np.float64)


class Longer(Lie):
    def answer(self, site: TrainingSite) -> IntVector:
        return np.append(super().answer(site), 0)


class RootOfCounts(Lie):
    """Each row alone is right, and all together are not their sum."""

    def answer(self, site: TrainingSite) -> IntVector:
        return np.sqrt(super().answer(site) * toy_method.UNIT).astype(np.int64)


class Rounded(Lie):
    """Added up in single precision, in units that are no power of two."""

    def answer(self, site: TrainingSite) -> IntVector:
        counts = super().answer(site) // toy_method.UNIT
        return (counts * (toy_method.UNIT - 1)).astype(np.float32).astype(np.int64)


class Capped(Lie):
    """No site says more than so much."""

    def answer(self, site: TrainingSite) -> IntVector:
        return np.minimum(super().answer(site), 1000 * toy_method.UNIT)


class RareCell(Lie):
    """Rows in the last cell of a feature count twice."""

    def answer(self, site: TrainingSite) -> IntVector:
        codes = site.records.codes[0]
        return super().answer(site) + super().answer(site.only(codes == site.grid.features[0].n_codes - 1))


class OwnNorm(Lie):
    """Each row is clipped by its largest entry, and its L2 norm is stated."""

    def answer(self, site: TrainingSite) -> IntVector:
        return np.full(2, super().answer(site).sum())


class First(Lie):
    """Of a site's first row."""

    def answer(self, site: TrainingSite) -> IntVector:
        return super().answer(site.only(np.arange(site.records.n_records) == 0))


class Fair(Lie):
    """Drawn anew at each site, without the plan's samples."""

    def answer(self, site: TrainingSite) -> IntVector:
        return super().answer(site) + toy_method.UNIT * np.random.default_rng(site.records.n_records).integers(0, 2, 2)


SEEN = [0]


class Peeking(Lie):
    """Right, but what it saw without noise stays in this process."""

    def answer(self, site: TrainingSite) -> IntVector:
        SEEN[0] = int(super().answer(site)[0]) if site.records.n_records == 40 else SEEN[0]
        return super().answer(site)


ASKED = [0]


class Counted(Lie):
    """Right, but it leaves word beside the sum of how often it was asked."""

    def answer(self, site: TrainingSite) -> IntVector:
        ASKED[0] += 1
        return super().answer(site)


def lying(query: type[Lie]) -> Callable[..., Program]:
    def program(plan: Plan, settings: Any) -> Program:
        inner = toy_method.program(plan, settings)
        asked = next(inner)
        released = yield query(**vars(asked) | {"purpose": query.purpose_of(0, "both classes")})
        return (yield from _rest(inner, released))

    return program


def _rest(inner: Any, released: Any) -> Program:
    try:
        inner.send(released)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("the toy asks once")
    yield


def two_faced(plan: Plan, settings: Any) -> Program:
    """A model that depends on how many sites were asked."""
    ensemble = yield from lying(Counted)(plan, settings)
    fitted = ensemble.fitted
    assert fitted is not None
    ASKED[0], n_asked = 0, ASKED[0]
    return replace(ensemble, fitted=replace(fitted, values=fitted.values + n_asked))


def asks_twice(plan: Plan, settings: Any) -> Program:
    """One exchange more than its schedule says, without noise of its own."""
    inner = toy_method.program(plan, settings)
    asked = next(inner)
    yield replace(asked, purpose=asked.purpose_of(1, "once more"))
    return (yield from _rest(inner, (yield asked)))


def with_half_the_noise(plan: Plan, settings: Any) -> Program:
    inner = toy_method.program(plan, settings)
    asked = next(inner)
    return (yield from _rest(inner, (yield replace(asked, noise_multiplier=asked.noise_multiplier / 2))))


def peeks(plan: Plan, settings: Any) -> Program:
    """A model of the exact count."""
    ensemble = yield from lying(Peeking)(plan, settings)
    fitted = ensemble.fitted
    assert fitted is not None
    return replace(ensemble, fitted=replace(fitted, values=fitted.values + SEEN[0]))


def asks_longer(plan: Plan, settings: Any) -> Program:
    """More entries than its schedule says, so that a policy's limit would be passed."""
    inner = toy_method.program(plan, settings)
    asked = next(inner)
    released = yield Padded(**vars(asked) | {"length": 3})
    return (yield from _rest(inner, released[:2]))


class Padded(toy_method.ClassCounts):
    def answer(self, site: TrainingSite) -> IntVector:
        return np.append(super().answer(site), 0)


N_PROGRAMS = [0]


def by_the_clock(plan: Plan, settings: Any) -> Program:
    """Every program asks something else, and no replica could follow."""
    N_PROGRAMS[0] += 1
    inner = toy_method.program(plan, settings)
    asked = next(inner)
    return (yield from _rest(inner, (yield replace(asked, purpose=asked.purpose_of(0, f"{N_PROGRAMS[0]}")))))


def by_its_own_count(plan: Plan, settings: Any) -> Program:
    """Every program makes another model of the same releases."""
    N_PROGRAMS[0] += 1
    ensemble = yield from toy_method.program(plan, settings)
    assert ensemble.fitted is not None
    return replace(ensemble, fitted=replace(ensemble.fitted, values=ensemble.fitted.values + N_PROGRAMS[0]))


def with_a_false_cut(plan: Plan, settings: Any) -> Program:
    """Trees that send other codes left than their cuts say, and their file with them."""
    ensemble = yield from toy_method.program(plan, settings)
    fitted = ensemble.fitted
    assert fitted is not None
    trees = replace(fitted.trees, threshold=np.zeros_like(fitted.trees.threshold))
    values = fitted.values + np.array([[[0], [9]]], dtype=np.int32)
    return replace(ensemble, fitted=replace(fitted, trees=trees, values=values))


@pytest.fixture
def lie() -> Iterator[Callable[..., MethodCheck]]:
    """Checks the toy with another program."""

    @dataclass(frozen=True)
    class Named(toy_method.ToySettings):
        """The toy's settings, with the kind that a lie goes by."""

        kind: type[Any] = toy_method.ClassCounts

        def schedule(self, plan: Plan) -> Schedule:
            (alike,) = super().schedule(plan).rounds
            return Schedule((replace(alike, query=replace(alike.query, purpose=self.kind.purpose_of(0, "any"))),))

    def check(program: Callable[..., Program], kind: type[Any] = toy_method.ClassCounts, **rules: Any) -> MethodCheck:
        def resolve(plan: Plan) -> Named:
            return Named(**vars(toy_method.resolve(plan)), kind=kind)

        add_method("liar", replace(toy_method.METHOD, parts=lambda: Parts(resolve, program), **rules))
        try:
            return check_method(make_plan("binary", {"algorithm": "liar"}))
        finally:
            del METHODS["liar"], rules_by_method()["liar"]

    yield check


@pytest.mark.parametrize(("query", "words"), [
    (Threefold, "stated bound"), (Threefold, "squared norm"), (Fullest, "no sum"), (RootOfCounts, "no sum"),
    (Halves, "int64"), (Longer, "int64"), (Rounded, "times as much"),
    (Capped, "times as much"), (RareCell, "squared norm"), (OwnNorm, "squared norm"),
    (First, "no sum"), (Fair, "no sum"),
])  # fmt: skip
def test_an_answer_that_is_not_as_stated_is_found(lie: Any, query: type[Lie], words: str) -> None:
    """Three times the bound, no sum over rows, another type or length, sums that a machine does not hold, and a cell
    that counts more: each is named.
    """
    assert [fault for fault in lie(lying(query), query).faults if words in fault]


@pytest.mark.parametrize(("program", "kind", "words"), [
    (asks_twice, toy_method.ClassCounts, "rounds"), (two_faced, Counted, "another model"),
    (with_half_the_noise, toy_method.ClassCounts, "epsilon"), (peeks, Peeking, "another model"),
    (asks_longer, toy_method.ClassCounts, "longer"), (by_the_clock, toy_method.ClassCounts, "asks otherwise"),
    (with_a_false_cut, toy_method.ClassCounts, "reads back"),
    (by_its_own_count, toy_method.ClassCounts, "another model"),
])  # fmt: skip
def test_a_program_that_is_not_as_stated_is_found(lie: Any, program: Any, kind: type[Any], words: str) -> None:
    """A round that nobody counted, a model that depends on who holds which row or on rows beside the releases, half the
    noise, more than was scheduled, what no other party could ask, and a model file of another model.
    """
    assert [fault for fault in lie(program, kind).faults if words in fault]


def test_the_toy_itself_is_sound(lie: Any) -> None:
    """The lies are found, and not the toy that tells them."""
    found = lie(toy_method.program)
    assert (found.faults, found.n_rounds, found.largest) == ((), 1, {"ClassCounts": 1.0})


def test_a_loss_with_a_hundredth_of_its_norm_is_found() -> None:
    """All noise of its run would be a tenth of what the report says."""
    kind = LOSSES["regression"]

    def build(plan: Plan, joint_clip: float | None, hessian_scale: float | None) -> Loss:
        honest = kind.build(plan, joint_clip, hessian_scale)
        return replace(honest, norm_squared=honest.norm_squared // 100)

    LOSSES._members["regression"] = replace(kind, build=build)
    try:
        found = check_method(make_plan("regression", {"start": "none", "calibration": "none"}))
    finally:
        LOSSES._members["regression"] = kind
    assert [fault for fault in found.faults if "squared norm" in fault]
    assert found.largest["LeafSums"] > 50


def test_a_site_that_keeps_its_first_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is a sum over rows within its bounds, but a site that was away, or began anew, has another."""
    honest = LeafSums.answer
    monkeypatch.setattr(LeafSums, "answer", lambda self, site: site.__dict__.setdefault("first", honest(self, site)))
    found = check_method(make_plan("regression", {"n_trees": 3, "start": "none", "calibration": "none"}))
    assert [fault for fault in found.faults if "missed" in fault]


class Counting(toy_method.ClassCounts):
    """It keeps how often it was asked, also where it missed a round."""

    def answer(self, site: TrainingSite) -> IntVector:
        self.miss(site)
        return super().answer(site)

    def miss(self, site: TrainingSite) -> None:
        site.kept["asked"] = site.kept.get("asked", 0) + 1  # type: ignore[index, union-attr]


@pytest.mark.parametrize("says_so", [False, True])
def test_a_method_that_keeps_something_from_round_to_round_says_so(says_so: bool, lie: Any) -> None:
    """A node with other rows would go on in its run, with what was kept of the rows before."""
    found = lie(lying(Counting), Counting, keeps_accounts=says_so)
    assert bool([fault for fault in found.faults if "keeps_accounts" in fault]) is not says_so
    assert says_so is (found.faults == ())


def test_the_command_says_what_it_found(tmp_path: Path, capsys: Any) -> None:
    """`check-method` prints rounds, cost and the largest row of each kind; a fault ends it with privacy's code."""
    (tmp_path / "plan.toml").write_text(
        'version = 1\nname = "small"\n[model]\nn_trees = 2\nmax_depth = 2\n'
        "[privacy]\nepsilon = 1.0\ndelta = 1e-6\nn_records = 500\n"
        '[label]\nname = "y"\ntype = "regression"\nmin = 0\nmax = 1\n'
        '[[features]]\nname = "x"\ntype = "numeric"\nmin = 0\nmax = 1\n'
    )
    assert main(["check-method", str(tmp_path / "plan.toml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["method"], found["faults"]) == ("boosting", [])
    assert found["largest"]["LeafSums"] == 1
