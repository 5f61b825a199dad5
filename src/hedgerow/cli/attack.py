# SPDX-License-Identifier: Apache-2.0
"""``hedgerow attack``: what an adversary gets out of runs of one's own plan over one's own rows."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hedgerow.app.inputs import adapt_sites, check_can_write
from hedgerow.app.output import print_json, today
from hedgerow.cli.options import ADAPTERS, add_command, add_shared

_HOW = """\
It trains some 80 models by the model's own plan, with real noise, over rows that are drawn by coins: a minute or two at
epsilon 1. docs/evidence.md says what is attacked, and how to read it.
"""


def add_commands(commands: Any) -> None:
    """Add `attack`."""
    text = "attack runs of a model's plan over one's own rows, beside what its ledger allows"
    add = add_command(commands, "attack", run, text, _HOW)
    add("model", metavar="MODEL")
    add("data", metavar="DATA", nargs="?", help="one's own table with labels; without it, made-up rows")
    add("--adapter", **ADAPTERS)
    add("--out", metavar="PAGE", help="write a page for the browser as well, such as attack.html")
    add_shared(add, "--allow-loss", "--json")


def run(arguments: argparse.Namespace) -> None:
    """Attack the model's plan, and print or write the report."""
    from hedgerow.app.attack import attack_model, describe_attack, print_attack, render_attack
    from hedgerow.data.sources import file_path
    from hedgerow.models.model import Model, write_atomically

    reads = arguments.model, arguments.data and file_path(arguments.data), *arguments.adapters
    page = None if arguments.out is None else check_can_write(arguments.out, *reads)
    own = {} if arguments.data is None else {arguments.data: arguments.data}
    table = next(iter(adapt_sites(own, arguments.adapters).values()), None)
    model = Model.load(arguments.model)
    found = describe_attack(attack_model(model, table, allowed=arguments.allow_loss), is_private=bool(own))
    if page is not None:
        subject = f"{model.plan.name}: {Path(arguments.model).name}, {today()}"
        write_atomically(page, render_attack(found, subject).encode())
    if arguments.json:
        print_json({"model": arguments.model, "data": arguments.data, **found})
        return
    print_attack(found)
