"""``hedgerow coordinator``: run a plan over the nodes of a roster, and write the model."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from hedgerow.cli.inputs import check_can_write, listed, read_plan
from hedgerow.cli.output import print_facts, print_json, warn, wrapped
from hedgerow.cli.serving import ModelFile, end_run, serve
from hedgerow.models.model import Model
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.server.session import RunSession
from hedgerow.transport.roster_file import PinnedRoster


def run(arguments: argparse.Namespace) -> None:
    """Wait for the sites, run, write the model, print what it promises."""
    plan = read_plan(arguments.plan)
    out = check_can_write(arguments.out)
    journal = Path(arguments.journal or f"{out}.journal")
    if arguments.abort:
        end_run(arguments, plan, journal)
        return
    noise: NoiseSource = SystemNoise(os.urandom) if arguments.seed is None else SeededNoise(arguments.seed)
    file = ModelFile(out, None, journal)
    outcome, session, pinned = serve(arguments, plan, noise, file, None)
    model = Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report, salvaged=outcome.salvaged)
    file.save(model, quiet=arguments.json)
    _print(model, session, pinned, arguments, out)


def _print(model: Model, session: RunSession, pinned: PinnedRoster, arguments: argparse.Namespace, out: Path) -> None:
    together = sorted({site for survivors in session.survivors for site in survivors})
    if arguments.json:
        content = {
            "model": str(out),
            "plan_digest": model.plan.digest,
            "run_id": session.run_id.hex(),
            "sites": together,
            "sites_per_round": [len(survivors) for survivors in session.survivors],
            "refusals": session.sites.refusals,
            "left_out": session.sites.left_out,
            "salvaged": None if model.salvaged is None else asdict(model.salvaged),
            "report": model.report.to_dict(),
        }
        print_json(content)
        return
    if model.salvaged is not None:
        warn(f"{model.salvaged.text()}{'' if session.setback is None else f' {session.setback}'}")
    if model.report.seeded:
        warn("The noise comes from a seed, so whoever knows it can remove it. For experiments only.")
    print_facts(
        [
            ("sites", f"{len(together)} of {len(pinned.sites)}: {listed(together)}"),
            ("rounds", f"{len(session.survivors)}, the smallest of {_smallest(session)} sites"),
            ("model", f"{model.ensemble.n_trees} trees, written to {out}"),
        ]
    )
    print("\n" + wrapped(model.report.text()))


def _smallest(session: RunSession) -> int:
    return min(map(len, session.survivors), default=0)

