# SPDX-License-Identifier: Apache-2.0
"""Training where all sites are on this machine: ``hedgerow train``, ``simulate`` and ``demo``."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hedgerow.app.inputs import adapt_sites, check_can_write, join_names, parse_sites, read_plan
from hedgerow.app.output import note, number, print_facts, print_json, today, warn, warn_seeded, wrap_text
from hedgerow.cli.options import ADAPTERS, add_command, add_shared, read_account, whole

if TYPE_CHECKING:
    from hedgerow.data.binned import SiteData
    from hedgerow.models.model import Model
    from hedgerow.plan.plan import Plan

_SIMULATE_EXAMPLE = """\
example:
  hedgerow simulate plan.toml --rows 20000 --sites 6
"""
_TRAIN_EXAMPLE = """\
example:
  hedgerow train plan.toml --site north=north.csv --site south=south.csv

A site's name stands before "="; without one it is the file's name. Files are .csv, .csv.gz or .parquet.
A CSV file's separator, decimal mark and encoding follow from its header, or are declared behind its name:
north.csv#separator=semicolon,decimal=comma,encoding=cp1252 (docs/data.md).
"""


def add_commands(commands: Any) -> None:
    """Add `demo`, `simulate` and `train`."""
    add = add_command(commands, "demo", demo, "six sites train a private model on real data")
    text = "folder for the results, without a model; without it: hedgerow-demo, where an earlier model is set aside"
    add("--out", metavar="FOLDER", help=text)
    add_shared(add, "--json")
    text = "rehearse a plan on made-up rows: how well models predict, by epsilon"
    add = add_command(commands, "simulate", simulate, text, _SIMULATE_EXAMPLE)
    add_shared(add, "plan")
    add("--rows", type=whole(20, 10**8), metavar="N", help="made-up rows over all sites (the plan's n_records)")
    add("--sites", type=whole(1, 1000), default=3, metavar="K", help="sites of one size (%(default)s)")
    add("--seed", type=whole(0), default=0, metavar="N", help="of the rows and the trees, not of the noise (0)")
    add_shared(add, "--json")
    text = "train over sites whose tables are all on this machine"
    add = add_command(commands, "train", run, text, _TRAIN_EXAMPLE)
    add_shared(add, "plan")
    text = "one site's table, a file or a URL (a database's with # and a query); repeat"
    add("--site", action="append", required=True, dest="sites", metavar="[NAME=]TABLE", help=text)
    add("--adapter", **ADAPTERS)
    add("--out", metavar="MODEL", help="the model file to write (default: a new model.json)")
    add_shared(add, "--seed")
    text = "keep the codes of the rows in mapped files there, for tables that outgrow the memory (docs/data.md)"
    add("--external-memory", metavar="FOLDER", help=text)
    add_shared(add, "--data-set", "--book", "--no-book", "--yes", "--threads", "--json")


def run(arguments: argparse.Namespace) -> None:
    """Train, write the model, and print its promise."""
    from hedgerow.app.accounts import open_account
    from hedgerow.app.cost import describe_trees
    from hedgerow.app.environments import train_with_progress
    from hedgerow.app.evaluation import read_sites
    from hedgerow.local.training import check_sites
    from hedgerow.methods.registry import resolve
    from hedgerow.models.model import require_room, save_unless_kept
    from hedgerow.privacy.noise import make_noise
    from hedgerow.privacy.outlook import doubt_of

    plan = read_plan(arguments.plan)
    out = check_can_write(arguments.out or "model.json")
    require_room(out)
    files = adapt_sites(parse_sites(arguments.sites), arguments.adapters)
    check_sites(plan, len(files))
    noise = make_noise(arguments.seed, os.urandom)
    account = open_account(read_account(arguments), files.values(), out)
    sites = read_sites(
        files, plan, quiet=arguments.json, asks=not arguments.yes, external_memory=arguments.external_memory
    )
    if not arguments.json and (doubt := doubt_of(plan)):
        warn(f"{doubt}.")
    quiet, seed = arguments.json, arguments.seed
    model = train_with_progress(
        plan, sites, noise, n_threads=arguments.threads, quiet=quiet, account=account, seed=seed
    )
    model = model.with_account(account.read_state(plan.privacy.unit, plan.privacy.delta))
    save_unless_kept(model, out)
    if arguments.json:
        print_json(
            {
                "model": str(out),
                "plan_digest": plan.digest,
                "sites": list(files),
                "settings": dataclasses.asdict(resolve(plan)),
                "report": model.report.to_dict(),
            }
        )
        return
    if noise.seeded:
        warn_seeded()
    bounds = [("bounds", model.bounds_text)] if model.bounds_text else []
    trees = f"{describe_trees(model.plan, model.ensemble)}, written to {out}"
    print_facts([("sites", f"{len(sites)}: {join_names(sites)}"), ("model", trees), *bounds])
    print("\n" + wrap_text(model.report_text(today())))


_BAR = 24
"""Columns of the longest bar."""
_SCORES = {"auc": "AUC", "concordance": "concordance", "r2": "R2", "mae": "MAE"}
"""Scores to show of a model, of which the first available one is taken, with their names."""


def simulate(arguments: argparse.Namespace) -> None:
    """Print how well models of made-up rows predict others, by epsilon."""
    from hedgerow.app.environments import train_with_progress
    from hedgerow.local import simulation
    from hedgerow.local.accounts import Account
    from hedgerow.privacy.noise import SystemNoise

    plan = read_plan(arguments.plan)
    plan = replace(plan, privacy=replace(plan.privacy, n_records=arguments.rows or plan.privacy.n_records))
    seconds: dict[float, float] = {}

    def train(own: Plan, sites: Mapping[str, SiteData]) -> Model:
        start, epsilon = time.monotonic(), own.privacy.epsilon
        title = "Without noise" if math.isinf(epsilon) else f"At epsilon {epsilon:g}"
        noise = SystemNoise(os.urandom)
        # Made-up rows: nothing is charged.
        quiet, account = arguments.json, Account()
        model = train_with_progress(own, sites, noise, quiet=quiet, account=account, title=title)
        seconds[epsilon] = time.monotonic() - start
        return model

    found = simulation.simulate(plan, arguments.sites, arguments.seed, train)
    taken = seconds[plan.privacy.epsilon]
    if arguments.json:
        scores: list[dict[str, Any]] = [{"epsilon": epsilon, **figures} for epsilon, figures in found.items()]
        sizes = {"rows": plan.privacy.n_records, "sites": arguments.sites}
        print_json({"plan": plan.name, **sizes, "seconds": taken, "scores": scores})
        return
    _print(plan, found, taken, arguments.sites)


def _print(plan: Plan, found: dict[float, dict[str, float]], seconds: float, n_sites: int) -> None:
    from hedgerow.app.cost import outlook
    from hedgerow.local.simulation import N_HELD_OUT

    measured = [each for each in next(iter(found.values())) if each != "n_records"]
    name = next((each for each in _SCORES if each in measured), measured[0])
    least = 0.5 if name in ("auc", "concordance") else 0.0
    where = f"{n_sites} site{'s' * (n_sites > 1)}"
    print(f"\n{plan.privacy.n_records:,} made-up rows over {where}, {N_HELD_OUT:,} others held out")
    print(f"\n  {'epsilon':>9}  {_SCORES.get(name, name.replace('_', ' '))}")
    largest = max(scores[name] for scores in found.values())
    for epsilon, scores in found.items():
        bar = "█" * round(_BAR * max(0.0, scores[name] - least) / max(largest - least, 1e-9))
        who = "no noise" if math.isinf(epsilon) else f"{epsilon:g}"
        mark = "  the plan's" if epsilon == plan.privacy.epsilon else ""
        print(f"  {who:>9}  {scores[name]:.4f}  {bar}{mark}")
    print()
    time_taken = f"{number(seconds, 2)} s for the plan's model, all sites on this machine"
    print_facts([*outlook(plan, n_sites), ("time", time_taken)])
    note(
        "These rows are easier than real ones: nothing is missing, features are independent and a third of them "
        "matter. Compare the lines with each other, not with what your own data will give."
    )


def demo(arguments: argparse.Namespace) -> None:
    """Train, test, write the results, and show all of it."""
    from hedgerow.app.demo import demonstrate

    demonstrate(arguments.out, as_json=arguments.json)
