"""The template's method with the usual last release, by names of `hedgerow.methods.api` alone."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from functools import reduce
from typing import Any

from hedgerow.methods.api import (
    GrowingModel,
    IntVector,
    NodeTrees,
    Parts,
    Plan,
    Program,
    Query,
    Run,
    Schedule,
    add_method,
    asks_for_line,
    calibrate_by_spread,
    calibrate_noise,
    divide_line_noise,
    grow_by,
    grow_score_bound,
    list_line_rounds,
)


def add(template: Any) -> None:
    """Lets plans have the method "lined"."""

    class Lined(template.ObliviousSettings):  # type: ignore[misc]
        """Each of the trees, and the last release, takes the same part of the budget."""

        def schedule(self, plan: Plan) -> Schedule:
            line = list_line_rounds(plan, divide_line_noise(self.noise_multiplier)) if asks_for_line(plan) else []
            return Schedule((*super().schedule(plan).rounds, *line))

    def resolve(plan: Plan) -> Lined:
        settings = Lined(n_trees=3, max_depth=2, learning_rate=0.3)
        if math.isinf(plan.privacy.epsilon):
            return settings
        weight = float(settings.n_trees + asks_for_line(plan))
        return replace(settings, noise_multiplier=calibrate_noise(plan, settings, weight=weight))

    def boost(grown: GrowingModel, settings: Lined) -> Generator[Query, IntVector, None]:
        yield from template.boost(grown, settings)
        if asks_for_line(grown.run.plan):
            bound = reduce(grow_score_bound, grown.batches, 0)
            carried = NodeTrees(settings.n_trees, bound, grown.batches[-1])
            noise = divide_line_noise(settings.noise_multiplier)
            yield from calibrate_by_spread(grown, settings.n_trees, 0, noise, carried)

    def program(plan: Plan, settings: Lined) -> Program:
        return grow_by(Run.from_plan(plan, settings), lambda grown: boost(grown, settings))

    fields = template.METHOD.model_fields | {"calibration"}
    add_method(
        "lined", replace(template.METHOD, section=None, model_fields=fields, parts=lambda: Parts(resolve, program))
    )
