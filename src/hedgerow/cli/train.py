"""``hedgerow train``: train over sites whose tables are all on this machine."""

from __future__ import annotations

import argparse
import dataclasses
import os

from hedgerow.cli.inputs import listed, named_sites, new_model, read_plan
from hedgerow.cli.output import print_facts, print_json, warn, wrapped
from hedgerow.cli.training import Sites, read_sites, train_with_progress
from hedgerow.local.training import check_sites, without_secure_aggregation
from hedgerow.methods.registry import resolve
from hedgerow.models.model import Model, save_unless_kept
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise


def run(arguments: argparse.Namespace) -> None:
    """Train, write the model, print what it promises."""
    plan = read_plan(arguments.plan)
    out = new_model(arguments.out)
    files = named_sites(arguments.sites)
    check_sites(plan, len(files))
    noise: NoiseSource = SystemNoise(os.urandom) if arguments.seed is None else SeededNoise(arguments.seed)
    sites = read_sites(files, plan, quiet=arguments.json, strict=arguments.strict)
    if arguments.no_secagg:
        # After reading: which rows of a person are used follows from the plan's digest, and is to stay the same.
        plan = without_secure_aggregation(plan)
    quiet, seed = arguments.json, arguments.seed
    model = train_with_progress(plan, sites, noise, n_threads=arguments.threads, quiet=quiet, seed=seed)
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
        warn("The noise comes from a seed, so whoever knows it can remove it. For experiments only.")
    _print(model, sites, str(out))


def _print(model: Model, sites: Sites, out: str) -> None:
    print_facts(
        [
            ("sites", f"{len(sites.data)}: {listed(sites.data)}"),
            ("model", f"{model.ensemble.n_trees} trees of depth {_depth(model)}, written to {out}"),
        ]
    )
    print("\n" + wrapped(model.report.text()))


def _depth(model: Model) -> int:
    return 0 if model.ensemble.fitted is None else model.ensemble.fitted.trees.depth
