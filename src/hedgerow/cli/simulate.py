"""``hedgerow simulate``: a plan's run on made-up rows, from the sites' tables to a score, before anyone shows a row."""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import replace
from typing import Any

from hedgerow.cli.evaluate import evaluate
from hedgerow.cli.inputs import read_plan
from hedgerow.cli.output import note, number, print_facts, print_json
from hedgerow.cli.privacy import outlook
from hedgerow.cli.train import train_with_progress
from hedgerow.data.site_data import site_data_from_records
from hedgerow.local.simulation import made_records, split_evenly
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SystemNoise

FACTORS = (0.1, 0.3, 1.0, 3.0)
"""Of the plan's epsilon, at which a model is made; without noise as well."""
N_HELD_OUT = 20_000
_BAR = 24


def run(arguments: argparse.Namespace) -> None:
    """Print how well models of made-up rows predict others, by epsilon."""
    plan = read_plan(arguments.plan)
    n_rows = arguments.rows or plan.privacy.n_records
    plan = replace(
        plan,
        privacy=replace(plan.privacy, n_records=n_rows, unit="record", max_rows_per_unit=1, sites_per_unit=1),
        federation=replace(plan.federation, min_sites=min(plan.federation.min_sites, arguments.sites)),
    ).with_structure_seed(arguments.seed)
    rows = made_records(plan, n_rows, arguments.seed)
    tables = split_evenly(rows, arguments.sites)
    sites = {name: site_data_from_records([table], plan)[0] for name, table in tables.items()}
    together = {"all": site_data_from_records([rows], plan)[0]}
    held_out = made_records(plan, N_HELD_OUT, arguments.seed, part=1)
    found: dict[float, dict[str, float]] = {}
    seconds = 0.0
    for epsilon in _epsilons(plan):
        own = replace(plan, privacy=replace(plan.privacy, epsilon=epsilon))
        is_plans = epsilon == plan.privacy.epsilon
        if not is_plans:
            # What was released before is a share of the plan's own epsilon, and may be more than all of a smaller one.
            own = replace(own, prepared=())
        start = time.monotonic()
        # Sums are the same however the rows are spread, so masks are shown once.
        model = train_with_progress(
            own if is_plans else replace(own, federation=replace(own.federation, min_sites=1)),
            sites if is_plans else together,
            SystemNoise(os.urandom),
            n_threads=arguments.threads,
            quiet=arguments.json,
            title="Without noise" if math.isinf(epsilon) else f"At epsilon {epsilon:g}",
        )
        seconds = time.monotonic() - start if is_plans else seconds
        found[epsilon] = evaluate(model, [held_out])
    if arguments.json:
        scores: list[dict[str, Any]] = [{"epsilon": epsilon, **own} for epsilon, own in found.items()]
        print_json({"plan": plan.name, "rows": n_rows, "sites": arguments.sites, "seconds": seconds, "scores": scores})
        return
    _print(plan, found, seconds, arguments.sites)


def _epsilons(plan: Plan) -> list[float]:
    """The plan's and others around it, the smallest first; without noise at the end."""
    promised = plan.privacy.epsilon
    if math.isinf(promised):
        return [math.inf]
    return [promised if factor == 1 else float(f"{factor * promised:.3g}") for factor in FACTORS] + [math.inf]


def _print(plan: Plan, found: dict[float, dict[str, float]], seconds: float, n_sites: int) -> None:
    name = next(each for each in ("auc", "concordance", "r2", "mae") if each in next(iter(found.values())))
    least = 0.5 if name in ("auc", "concordance") else 0.0
    where = f"{n_sites} site{'s' * (n_sites > 1)}"
    print(f"\n{plan.privacy.n_records:,} made-up rows over {where}, {N_HELD_OUT:,} others held out")
    print(f"\n  {'epsilon':>9}  {name.upper()}")
    largest = max(scores[name] for scores in found.values())
    for epsilon, scores in found.items():
        bar = "█" * round(_BAR * max(0.0, scores[name] - least) / max(largest - least, 1e-9))
        who = "no noise" if math.isinf(epsilon) else f"{epsilon:g}"
        mark = "  the plan's" if epsilon == plan.privacy.epsilon else ""
        print(f"  {who:>9}  {scores[name]:.4f}  {bar}{mark}")
    print()
    time_taken = f"{number(seconds, 2)} s for the plan's model, all sites on this machine"
    print_facts([*outlook(plan), ("time", time_taken)])
    note(
        "These rows are easier than real ones: nothing is missing, features are independent and a third of them "
        "matter. Compare the lines with each other, not with what your own data will give."
    )
