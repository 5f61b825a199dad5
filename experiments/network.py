"""Real federations on this machine: seconds to a model, time of an exchange, bytes, and what the wire alone costs.

Ten ``hedgerow node`` processes and a coordinator on loopback, with mutual TLS, masks, journals and stores as in
production; the model is compared byte for byte with the engine `local`.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hedgerow.experiments.datasets import data_folder, load
from hedgerow.experiments.harness import plan_for
from hedgerow.experiments.network_lab import (
    Measured,
    Sites,
    describe,
    local_model,
    make_sites,
    run_federation,
    start_nodes,
    to_json,
)
from hedgerow.protocol.plan import Plan
from hedgerow.transport.grpc_hub import HubAddress

PARTS = ("runs",)
MODEL = {"n_trees": 100, "max_depth": 4}


def main(argv: list[str]) -> int:
    """Run the parts that are asked for; 1 when a model differs from the engine `local`'s."""
    parser = argparse.ArgumentParser(prog="python -m hedgerow.experiments network", description=__doc__)
    parser.add_argument("--data", help="folder with the data sets")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--batch", type=int, nargs="+", default=[25, 1], help="trees per exchange")
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--keep", metavar="FOLDER", help="keep journals, stores and logs there")
    parser.add_argument("--profile", action="store_true", help="profile the coordinator")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(options.keep or name)
        return run_adult(options, folder)


def run_adult(options: argparse.Namespace, folder: Path) -> int:
    table = load("adult", data_folder(options.data))
    sites = make_sites(folder / "sites", table, options.sites)
    is_fine = True
    for batch in options.batch:
        plan = plan_for(table, 1.0, table.n_records, {**MODEL, "batch_size": batch})
        profiled = _profile if options.profile else lambda work: work()
        measured = run_federation(sites, plan, start_nodes, HubAddress(), profiled)
        is_fine &= report(f"Adult, {options.sites} node processes, B={batch}", sites, plan, measured)
    return 0 if is_fine else 1


def report(title: str, sites: Sites, plan: Plan, measured: Measured) -> bool:
    """Print one run; False when its model is not the engine `local`'s."""
    is_same = measured.model == local_model(sites, plan)
    print(title)
    for name, line in describe(measured).items():
        print(f"  {name:30} {line}")
    print(f"  {'model':30} {'byte for byte' if is_same else 'NOT'} the engine local's, {len(measured.model):,} bytes")
    print(to_json(title, measured, is_same=is_same), flush=True)
    return is_same


def _profile(work: Callable[[], Any]) -> Any:
    profile = cProfile.Profile()
    try:
        return profile.runcall(work)
    finally:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(45)
