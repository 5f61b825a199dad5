# SPDX-License-Identifier: Apache-2.0
"""``hedgerow coordinator``: run a plan over the nodes of a roster, say how it is, and write the model."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.app.inputs import check_can_write, join_names, read_plan
from hedgerow.app.options import CoordinatorOptions
from hedgerow.app.output import note, print_facts, print_json, today, warn, warn_seeded, wrap_text
from hedgerow.cli.options import add_command, add_fields, add_listening, add_shared, read_options

if TYPE_CHECKING:
    from hedgerow.app.page import Console
    from hedgerow.models.model import Model
    from hedgerow.server.coordinator import RunSession


_COORDINATOR_EXAMPLE = """\
example:
  hedgerow coordinator plan.toml --roster roster.toml \\
      --identity hub.private.json --listen 0.0.0.0:7443 --out model.json
"""


def add_commands(commands: Any) -> None:
    """Add `coordinator`."""
    text = "run a plan over the nodes of a roster"
    add = add_command(commands, "coordinator", run, text, _COORDINATOR_EXAMPLE)
    add_fields(add, CoordinatorOptions, "plan")
    add_fields(add, CoordinatorOptions, "--roster", "--identity")
    add_fields(add, CoordinatorOptions, "--out", required=True)
    add_listening(add)
    add_fields(add, CoordinatorOptions, "--journal")
    ways = commands.choices["coordinator"].add_mutually_exclusive_group()
    add_shared(ways.add_argument, "--new-run")
    text = "carry nothing out: end the journal's run for good, and tell its sites"
    ways.add_argument("--abort", action="store_true", help=text)
    commands.choices["coordinator"].set_defaults(ended_by="--abort")
    add_shared(add, "--console", "--hand-out", "--seed", "--json")


def run(arguments: argparse.Namespace) -> None:
    """Wait for the sites, run, write the model, print its promise, and hand it out; a page stays open."""
    from hedgerow.app.coordinator import ModelFile, end_run, hand_out, train_over_nodes
    from hedgerow.privacy.outlook import doubt_of

    options = read_options(CoordinatorOptions, arguments)
    plan, out = read_plan(options.plan, is_own=True), check_can_write(options.out)
    file = ModelFile(out, None, Path(options.journal or f"{out}.journal"), arguments.new_run, options.quiet)
    if arguments.abort:
        print_end(*end_run(options, plan, file.journal), as_json=arguments.json)
        return
    if not arguments.json and (doubt := doubt_of(plan)):
        warn(f"{doubt}.")
    where: AbstractContextManager[Console | None] = nullcontext()
    if arguments.console is not None:
        # Imported here, because the page is an extra.
        from hedgerow.app.page import Console

        where = Console(arguments.console, plan)
    with where as page:
        model, session = train_over_nodes(options, plan, file, page)
        print_model(model, session, out, as_json=arguments.json)
        if arguments.hand_out:
            hand_out(options, out, only_late=True)
        if page is not None:
            page.wait()


def print_end(run_id: bytes, reached: list[str], n_sites: int, *, as_json: bool) -> None:
    """Print the run that was ended, and the sites that were told."""
    if as_json:
        print_json({"run_id": run_id.hex(), "told": reached})
        return
    print_facts([("run", f"{run_id.hex()[:12]}, ended"), ("told", join_names(reached) if reached else "no site")])
    if len(reached) < n_sites:
        note("A site that was not told learns of it when it is invited to another run.")


def print_model(model: Model, session: RunSession, out: Path, *, as_json: bool) -> None:
    """Print a run's model and its promise."""
    from hedgerow.app.cost import describe_trees
    from hedgerow.app.progress import list_contributors

    together = list_contributors(session)
    if as_json:
        content = {
            "model": str(out),
            "plan_digest": model.plan.digest,
            "run_id": session.run.run_id.hex(),
            "sites": together,
            "sites_per_round": [len(survivors) for survivors in session.run.survivors],
            "refusals": session.run.sites.refusals,
            "left_out": session.run.sites.left_out,
            "salvaged": None if model.salvaged is None else asdict(model.salvaged),
            "report": model.report.to_dict(),
        }
        print_json(content)
        return
    if model.salvaged is not None:
        warn(f"{model.salvaged.text()}{'' if session.run.fault is None else f' {session.run.fault}'}")
    if model.report.seeded:
        warn_seeded()
    smallest = min(map(len, session.run.survivors), default=0)
    print_facts(
        [
            ("sites", f"{len(together)} of {len(session.run.sites)}: {join_names(together)}"),
            ("rounds", f"{len(session.run.survivors)}, the smallest of {smallest} sites"),
            (
                "model",
                f"{describe_trees(model.plan, model.ensemble, is_whole=model.salvaged is None)}, written to {out}",
            ),
            *([("bounds", model.bounds_text)] if model.bounds_text else []),
        ]
    )
    print("\n" + wrap_text(model.report_text(today())))
