"""A method of one's own beside the default and XGBoost, on the tasks and splits of `utility`.

`--plugin` names the method's module or file, and `--plan` a plan: its [model], its [loss] and the section of its method
are used with each task's columns and promise. Scores are kept under the digest of these and of the module's sources, so
that a change of either is another run. `--sites` spreads the training rows over sites (`experiments.splits`) for all
methods of Hedgerow's; rivals and XGBoost see all rows. All other options are those of `utility`: `--tasks adult`,
`--epsilons 1`, `--splits 5`, `--out FILE`, and what `python -m experiments utility --help` says.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from experiments import harness, splits, utility
from experiments.datasets import Table
from experiments.harness import plan_for
from hedgerow.errors import PlanError
from hedgerow.plan.plan import Plan
from hedgerow.plan.registry import section_name
from hedgerow.plugins import describe_plugin, load_plugin


def plan_of(sections: Mapping[str, Any], table: Table, epsilon: float, n_train: int, seed: int) -> Plan:
    """The plan of a task with these sections."""
    usual = plan_for(table, epsilon, n_train, {}).to_dict()
    return Plan.from_dict({**usual, **sections}).with_structure_seed(seed)


def train_own(sections: Mapping[str, Any], prepared: harness.Prepared, *arguments: Any, **by: Any) -> Any:
    """As a method of `utility`, which leaves out the tasks that a method is not for: of one's own it is said why."""
    try:
        return utility._trained(partial(plan_of, sections), prepared, *arguments, **by)
    except PlanError as fault:
        print(f"No score for {prepared.table.name}: {fault.what} {fault.remedy}", file=sys.stderr)
        raise


def main(argv: list[str]) -> int:
    """Run what is not in the CSV, and print the tables and the ranks."""
    parser = argparse.ArgumentParser(prog="python -m experiments compare", description=__doc__)
    parser.add_argument("--plugin", required=True, metavar="MODULE")
    parser.add_argument("--plan", required=True, type=Path, metavar="PLAN")
    parser.add_argument("--methods", nargs="+", default=[utility.DEFAULT, utility.XGBOOST], metavar="METHOD")
    parser.add_argument("--sites", type=int, metavar="N", help="spread the training rows over N sites")
    parser.add_argument("--label-skew", type=float, metavar="ALPHA", help="Dirichlet over labels; 0.1 is much")
    parser.add_argument("--size-skew", type=float, metavar="ALPHA", help="Dirichlet over the sites' sizes")
    parser.add_argument("--leaving", type=float, default=0.0, metavar="SHARE", help="of sites that leave on the way")
    options, others = parser.parse_known_args(argv)
    split = splits.Split(options.sites or 1, options.label_skew, options.size_skew, options.leaving)
    if options.sites is None and split != splits.Split(1):
        parser.error("skews and sites that leave need --sites N")
    if options.sites is not None and split.n_sites - split.n_leaving < splits.MIN_SITES:
        parser.error(f"{splits.MIN_SITES} sites have to stay to the end")
    if any(alpha is not None and not alpha > 0 for alpha in split[1:3]) or not 0 <= split.leaving < 1:
        parser.error("an ALPHA is above 0, and the SHARE from 0 to below 1")
    module = load_plugin(options.plugin)
    table = tomllib.loads(options.plan.read_text(encoding="utf-8"))
    algorithm = str(table.get("model", {}).get("algorithm", "boosting"))
    wanted = "model", "loss", section_name(algorithm)
    sections = {"model": {}, **{name: table[name] for name in wanted if name in table}}
    name = f"{algorithm} of {options.plan.name}"
    key = json.dumps(sections, sort_keys=True) + describe_plugin(module)
    utility.METHODS[name] = partial(train_own, sections)
    utility.KEYS[name] = hashlib.sha256(key.encode()).hexdigest()
    if options.sites is not None:
        for method in {*utility.OURS, name}:
            trains: Callable[..., Any] = utility.METHODS[method]
            utility.METHODS[method] = partial(trains, by=partial(splits.trained, split))
            utility.KEYS[method] = utility.KEYS.get(method, "") + f"{tuple(split)}{harness.code_digest('splits.py')}"
    return utility.main([*others, "--methods", *options.methods, name], asks=False)
