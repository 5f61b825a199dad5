# SPDX-License-Identifier: Apache-2.0
"""``hedgerow check-method``: whether a plan's method, loss and queries keep to what they state."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hedgerow.app.inputs import read_plan
from hedgerow.app.output import note, number, print_facts, print_json
from hedgerow.cli.options import add_command, add_shared, whole
from hedgerow.errors import PrivacyError
from hedgerow.plugins import UNCOVERED, describe_plugin, load_plugin
from hedgerow.privacy.rounding import format_up


def add_commands(commands: Any) -> None:
    """Add `check-method`."""
    text = "play a plan on made-up rows and try to exceed what its method's queries state"
    add = add_command(commands, "check-method", run, text)
    add_shared(add, "plan")
    add("--seed", type=whole(0), default=0, metavar="N", help="of the rows and the noise (0)")
    add_shared(add, "--json")


def run(arguments: argparse.Namespace) -> None:
    """Check the method and print the result; PrivacyError, code "method-unsound", for a fault."""
    from hedgerow.testing import check_method

    plan = read_plan(arguments.plan)
    found = check_method(plan, seed=arguments.seed)
    if found.faults:
        raise PrivacyError("method-unsound", method=plan.model.algorithm, faults="; ".join(found.faults))
    if arguments.json:
        print_json(
            {"method": plan.model.algorithm, "rounds": found.n_rounds, "epsilon": found.epsilon,
             "largest": found.largest, "faults": []}
        )  # fmt: skip
        return
    largest = [(kind, f"{number(share)} of the stated squared norm, at most") for kind, share in found.largest.items()]
    cost = ("cost", f"epsilon {format_up(found.epsilon, 4)} of {number(plan.privacy.epsilon)}")
    print_facts([("method", plan.model.algorithm), ("rounds", f"{found.n_rounds:,}"), cost, *largest])
    if arguments.plugins:
        # As it stands, for policies: a line that is wrapped is no TOML.
        lines = [describe_plugin(load_plugin(name)) for name in arguments.plugins]
        print(f"plugins = {json.dumps(lines)}")
        note(f"That is for a policy: {UNCOVERED}. Whoever agrees to it reads those sources.")
    note("Nothing was found. That is no proof: what bounds each answer belongs in the docstring of its query.")
