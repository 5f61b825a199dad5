# SPDX-License-Identifier: Apache-2.0
"""``hedgerow privacy``: what a plan costs, before anyone runs it."""

from __future__ import annotations

import argparse
import dataclasses
import math
from typing import TYPE_CHECKING, Any

from hedgerow.app.inputs import read_plan
from hedgerow.app.output import print_json
from hedgerow.cli.options import add_command, add_shared, whole
from hedgerow.plan.plan import Plan

if TYPE_CHECKING:
    from hedgerow.local.forecast import Forecast


def add_commands(commands: Any) -> None:
    """Add `privacy`."""
    add = add_command(commands, "privacy", run, "say what a plan costs before anyone runs it")
    add_shared(add, "plan")
    text = "what noise of the sites costs at so many (the plan's least)"
    add("--sites", type=whole(2, 4096), metavar="N", help=text)
    add_shared(add, "--json")


def run(arguments: argparse.Namespace) -> None:
    """Print the cost of a plan."""
    from hedgerow.app.cost import show_cost
    from hedgerow.local.forecast import forecast
    from hedgerow.secagg.guarantees import MIN_COHORT

    plan = read_plan(arguments.plan)
    expected = forecast(plan)
    n_sites = arguments.sites or max(MIN_COHORT, plan.federation.min_sites)
    if arguments.json:
        print_json(_describe_cost(plan, expected, n_sites))
        return
    show_cost(plan, expected, n_sites)


def _describe_cost(plan: Plan, expected: Forecast, n_sites: int) -> dict[str, Any]:
    from hedgerow.app.cost import compare_distributed_noise, expect_noise_factor, model_facts, warnings
    from hedgerow.codec import format_spoken
    from hedgerow.local.forecast import expect_singles
    from hedgerow.methods.registry import find_method
    from hedgerow.privacy.outlook import outlook_of

    is_private = not math.isinf(plan.privacy.epsilon)
    can_share = plan.privacy.noise != "local" and not find_method(plan).is_pure
    return {
        "plan": plan.name,
        "digest": plan.digest,
        "fingerprint": format_spoken(bytes.fromhex(plan.digest)),
        "epsilon": plan.privacy.epsilon,
        "delta": plan.privacy.delta,
        "epsilon_gdp": expected.epsilon_gdp,
        "epsilon_rdp": expected.epsilon_rdp,
        "warnings": list(warnings(plan)),
        "outlook": dataclasses.asdict(outlook_of(plan, noise_factor=expect_noise_factor(plan, n_sites)))
        if is_private
        else None,
        "settings": dataclasses.asdict(expected.settings),
        "model": dict(model_facts(plan, expected.settings)),
        "rounds": expected.n_rounds,
        "queries": [{"kind": kind, "count": count, "length": length} for kind, count, length in expected.queries],
        "numbers_per_node": expected.numbers_per_node,
        "bits_per_number": expected.bits_per_number,
        "bytes_per_node": expected.bytes_per_node,
        "single_record_leaves": expect_singles(plan, expected.settings),
        "distributed_noise": compare_distributed_noise(plan, n_sites) if is_private and can_share else None,
    }
