"""``hedgerow train``: train over sites whose tables are all on this machine. `demo` trains by the same functions."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from hedgerow.cli.inputs import adapted_sites, check_can_write, listed, named_sites, read_plan
from hedgerow.cli.output import note, print_facts, print_json, warn, warn_seeded, wrapped
from hedgerow.cli.progress import TrainingProgress, status
from hedgerow.client.node import seeded_samplings
from hedgerow.data.site_data import SiteData, bounded_sites, read_site_rows
from hedgerow.data.sources import Location, is_url
from hedgerow.local.training import check_sites, train, without_secure_aggregation
from hedgerow.methods.registry import resolve
from hedgerow.models.model import Model, require_room, save_unless_kept
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.threads import available_threads, use_threads

Sites = Mapping[str, SiteData]


def read_sites(tables: Mapping[str, Location], plan: Plan, *, quiet: bool, strict: bool = False) -> Sites:
    """Read and bin every site's table, a file or a URL; rows of one unit are bounded at each site and over all of them.

    What was left out is said on stderr, for the operator's eyes.

    Args:
        strict: refuse a row that does not fit, and a table without rows.

    Raises:
        DataError: a table cannot be read or lacks a column; if strict, also for a row.
    """
    rows = {}
    for name, place in tables.items():
        # A URL may have a password in it.
        with status(f"Reading {name if is_url(place) else Path(place).name}", quiet=quiet):
            rows[name] = read_site_rows(place, plan, strict=strict)
    bounded = bounded_sites(rows, plan)
    for name, (own, report) in bounded.items():
        if report.unfit or report.n_dropped or not own.n_records:
            note(f"Private, for the site {name} only: {report.text()}")
        if report.warning:
            note(f"Private, for the site {name} only: {report.warning}")
    if not any(own.n_records for own, _ in bounded.values()):
        warn(
            "No row of any site fitted, so the model can learn nothing. Compare the plan with the tables: names, "
            "bounds, and the classes of the label, in which upper and lower case differ."
        )
    return {name: own for name, (own, _) in bounded.items()}


def train_with_progress(
    plan: Plan,
    sites: Sites,
    noise: NoiseSource,
    *,
    n_threads: int | None,
    quiet: bool,
    seed: int | None = None,
    title: str = "Training",
) -> Model:
    """Train over the sites with a progress bar; with a seed, samples come from it too, where any are drawn."""
    sizes = {name: sites[name].n_records for name in sorted(sites)}
    sampling = None if seed is None else seeded_samplings(seed, sizes)
    with (
        use_threads(n_threads or available_threads()) as allowed,
        TrainingProgress(plan, len(sites), quiet=quiet, title=title) as progress,
    ):
        return train(plan, sites, noise=noise, n_threads=allowed, progress=progress, sampling=sampling)


def run(arguments: argparse.Namespace) -> None:
    """Train, write the model, print what it promises."""
    plan = read_plan(arguments.plan)
    out = check_can_write(arguments.out or "model.json")
    require_room(out)
    files = adapted_sites(named_sites(arguments.sites), arguments.adapters)
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
        warn_seeded()
    depth = 0 if model.ensemble.fitted is None else model.ensemble.fitted.trees.depth
    trees = f"{model.ensemble.n_trees} trees of depth {depth}, written to {out}"
    print_facts([("sites", f"{len(sites)}: {listed(sites)}"), ("model", trees)])
    print("\n" + wrapped(model.report.text()))
