"""What it costs the demonstration to protect a person and not a row, on the shipped split of people."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hedgerow.app.evaluation import evaluate
from hedgerow.data.binned import SiteData
from hedgerow.data.datasets import write_rand_hie
from hedgerow.data.site_data import bound_sites, read_site_rows
from hedgerow.data.sources import read_records
from hedgerow.local.training import train, without_secure_aggregation
from hedgerow.plan.plan import Plan, parse_plan
from hedgerow.privacy.noise import SystemNoise

ROWS = (1, 2, 3, 4, 5)


def protecting(plan: Plan, rows: int, tables: Mapping[str, Path]) -> tuple[Plan, dict[str, SiteData]]:
    """Return the plan with a person of `rows` rows as its unit (a single row for 0), and the rows that it uses.

    The plan declares how many these are, as the demonstration's does: they are public.
    """
    unit = plan.privacy.unit if rows else "record"
    own = replace(plan, privacy=replace(plan.privacy, unit=unit, max_rows_per_unit=max(1, rows)))
    bounded = bound_sites({name: read_site_rows(path, own) for name, path in tables.items()}, own)
    sites = {name: held for name, (held, _) in bounded.items()}
    n_records = sum(held.n_records for held in sites.values())
    return replace(own, privacy=replace(own.privacy, n_records=n_records)), sites


def main(argv: Sequence[str]) -> int:
    """Print the mean AUC, with its standard error over the runs, of each."""
    parser = argparse.ArgumentParser(prog="python -m experiments demo_units")
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="fresh noise and trees so often")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        data = write_rand_hie(folder)
        plan = parse_plan(data.plan.read_text(encoding="utf-8"))
        test = list(read_records(data.test, plan))
        print(f"epsilon {plan.privacy.epsilon:g}, delta {plan.privacy.delta:g}, {asked.runs} runs")
        for rows in (0, *ROWS):
            own, sites = protecting(plan, rows, data.train)
            areas = []
            for run in range(asked.runs):
                # Masks change no tree, and take most of the time.
                seeded = without_secure_aggregation(own.with_joint_structure().with_structure_seed(run))
                areas.append(evaluate(train(seeded, sites, noise=SystemNoise(os.urandom)), test)["auc"])
            used = own.privacy.n_records
            error = np.std(areas, ddof=1) / np.sqrt(len(areas)) if len(areas) > 1 else float("nan")
            what = f"a person with {rows} of their rows" if rows else "a row"
            print(f"  {what:<29} {used:>6,} rows used   AUC {np.mean(areas):.4f} ± {error:.4f}", flush=True)
    return 0
