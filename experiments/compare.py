"""A method of one's own beside the default and XGBoost, on the tasks and splits of `utility`.

`--plugin` names the method's module or file, and `--plan` a plan: its [model], its [loss] and the section of its method
are used with each task's columns and promise. Scores are kept under the digest of these and of the module's sources, so
that a change of either is another run. All other options are those of `utility`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from experiments import utility
from experiments.datasets import Table
from experiments.harness import plan_for
from hedgerow.plan.plan import Plan
from hedgerow.plan.registry import section_name
from hedgerow.plugins import describe_plugin, load_plugin


def plan_of(sections: Mapping[str, Any], table: Table, epsilon: float, n_train: int, seed: int) -> Plan:
    """The plan of a task with these sections."""
    usual = plan_for(table, epsilon, n_train, {}).to_dict()
    model = {**sections["model"], "structure_seed": seed}
    return Plan.from_dict({**usual, **sections, "model": model})


def main(argv: list[str]) -> int:
    """Run what is not in the CSV, and print the tables and the ranks."""
    parser = argparse.ArgumentParser(prog="python -m experiments compare", description=__doc__)
    parser.add_argument("--plugin", required=True, metavar="MODULE")
    parser.add_argument("--plan", required=True, type=Path, metavar="PLAN")
    parser.add_argument("--methods", nargs="+", default=[utility.DEFAULT, utility.XGBOOST], metavar="METHOD")
    options, others = parser.parse_known_args(argv)
    module = load_plugin(options.plugin)
    table = tomllib.loads(options.plan.read_text(encoding="utf-8"))
    algorithm = str(table.get("model", {}).get("algorithm", "boosting"))
    wanted = "model", "loss", section_name(algorithm)
    sections = {"model": {}, **{name: table[name] for name in wanted if name in table}}
    name = f"{algorithm} of {options.plan.name}"
    key = json.dumps(sections, sort_keys=True) + describe_plugin(module)
    utility.METHODS[name] = partial(utility._trained, partial(plan_of, sections))
    utility.KEYS[name] = hashlib.sha256(key.encode()).hexdigest()
    return utility.main([*others, "--methods", *options.methods, name], asks=False)
