"""Lumberjack, a method from outside the package: the section [lumberjack] of a plan, and where its parts are.

plug_in()           plans may say `algorithm = "lumberjack"` from then on
"""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow.methods import Method, Parts
from hedgerow.methods.registry import METHODS, add_method
from hedgerow.plan.fields import define_field, integer, number, refuse
from hedgerow.plan.plan import Plan
from hedgerow.plan.registry import own_section
from hedgerow.training.presets import Preset

MAX_TREES = 256


@dataclass(frozen=True, kw_only=True)
class Lumberjack:
    """Random forests by pruning of large random trees (Lebeda, Erb, Cebere & Bellet 2026, arXiv 2605.22756).

    Attributes:
        height: layers of every tree in which heavy nodes are looked for; a heavy node is split.
        search_share: share of mu² that the search takes; counts of the leaves have the rest.
        threshold: a node is heavy from so many standard deviations of its noisy count on.
        least_records: and from so many records on.
    """

    height: int = define_field(integer(1, 64), 24)
    search_share: float = define_field(number(0, 1, exclusive=True), 0.75)
    threshold: float = define_field(number(0, 100), 4.0)
    least_records: int = define_field(integer(1, 10**9), 20)

    @classmethod
    def of(cls, plan: Plan) -> Lumberjack:
        """The section of a plan of this method; ValueError for another's."""
        return own_section(cls, plan)


def check(plan: Plan) -> None:
    """Raise PlanError for a plan that contradicts itself."""
    model = plan.model
    if model.weight_update != "averaging":
        raise refuse("model.weight_update", model.weight_update, '"averaging" with "lumberjack"')
    if not isinstance(model.n_trees, str) and model.n_trees > MAX_TREES:
        raise refuse("model.n_trees", model.n_trees, f'at most {MAX_TREES} with "lumberjack"')


def _parts() -> Parts:
    from experiments.lumberjack.program import lumberjack
    from experiments.lumberjack.settings import resolve_lumberjack

    return Parts(resolve_lumberjack, lumberjack)


METHOD = Method(
    section=Lumberjack,
    model_fields=frozenset({"n_trees", "weight_update", "calibration", "structure_seed"}),
    labels=("binary", "multiclass", "regression"),
    check=check,
    parts=_parts,
    counts_prepared=True,
    is_grouped=True,
)
PRESET = Preset(
    "lumberjack",
    "Lumberjack",
    "Lebeda et al., 2026, arXiv 2605.22756; what is ours stands in the first lines of its program",
    {"algorithm": "lumberjack", "weight_update": "averaging"},
    accountant="gdp",
)


def plug_in() -> None:
    """Let this process's plans have `algorithm = "lumberjack"`; once is enough."""
    if "lumberjack" not in METHODS:
        add_method("lumberjack", METHOD)
