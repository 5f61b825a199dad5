# SPDX-License-Identifier: Apache-2.0
"""The methods: each yields queries and receives noisy sums.

A method is rules for its plans, and a program. Each method declares both in its folder's `__init__.py`, and
`registry.py` has the table of methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hedgerow.plan.registry import PlanRules


@dataclass(frozen=True)
class Parts:
    """The parts that carry a method out.

    Attributes:
        resolve: decides every "auto" of a plan and calibrates its noise: the settings.
        program: makes a fresh program of a plan and its settings.
        events: what its releases can cost besides Gaussian noise on whole sums: types of events.
    """

    resolve: Callable[[Any], Any]
    program: Callable[[Any, Any], Any]
    events: tuple[type[Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Method(PlanRules):
    """A method, the value of `model.algorithm`.

    Attributes:
        parts: loads the parts that carry it out; plans are read without them.
        keeps_accounts: whether nodes keep an account for each record, so that rows may come while a run goes on. A
            method whose answers depend on what was answered before, and not on scores alone, has to say so: with other
            rows its nodes go on in no run.
        has_leaves: whether its trees are more than tables of one feature.
    """

    parts: Callable[[], Parts]
    keeps_accounts: bool = False
    has_leaves: bool = True
