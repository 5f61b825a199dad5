# SPDX-License-Identifier: Apache-2.0
"""``hedgerow recalibrate``: a model for a site that it was not made at, by a noisy answer or two of its rows."""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from hedgerow.app.inputs import adapt_sites, check_can_write
from hedgerow.app.output import number, print_facts, print_json, today, warn_seeded, wrap_text
from hedgerow.cli.options import ADAPTERS, above_zero, add_command, add_shared, read_account
from hedgerow.privacy.rounding import format_cost

if TYPE_CHECKING:
    from hedgerow.methods.recalibration import Recalibration
    from hedgerow.models.model import Model

_EXAMPLE = """\
example:
  hedgerow evaluate model.json north.csv    # is it off? exact, for you only
  hedgerow recalibrate model.json north.csv --epsilon 0.5 --out north-model.json

The trees stay; level and slope of what they say are fitted to this site's rows, with noise. The new model's account
holds the old one's and this.
"""


def add_commands(commands: Any) -> None:
    """Add `recalibrate`."""
    text = "fit a model's level and slope to another site's rows, with noise"
    add = add_command(commands, "recalibrate", run, text, _EXAMPLE)
    add("model", metavar="MODEL")
    add("data", metavar="DATA", help="the site's rows with labels: a file, or a database's URL with # and a query")
    add("--epsilon", type=above_zero, required=True, metavar="E", help="what this may cost the site's rows")
    add("--adapter", **ADAPTERS)
    add("--out", metavar="MODEL", help="the model file to write (default: a new recalibrated.json)")
    add_shared(add, "--seed", "--data-set", "--book", "--no-book", "--yes", "--json")


def run(arguments: argparse.Namespace) -> None:
    """Recalibrate on a site's rows, write the model, and print the results and the model's promise."""
    from hedgerow.app.accounts import open_account
    from hedgerow.app.evaluation import read_sites
    from hedgerow.client.node import available_threads, use_threads
    from hedgerow.local.training import recalibrate_model
    from hedgerow.methods.recalibration import require_line
    from hedgerow.models.model import Model, require_room, save_unless_kept
    from hedgerow.privacy.noise import make_noise

    model = Model.load(arguments.model)
    require_line(model.plan, model.ensemble)
    out = check_can_write(arguments.out or "recalibrated.json")
    require_room(out)
    tables = adapt_sites({"site": arguments.data}, arguments.adapters)
    account = open_account(read_account(arguments), tables.values(), out)
    (rows,) = read_sites(tables, model.plan, quiet=arguments.json, asks=not arguments.yes).values()
    noise = make_noise(arguments.seed, os.urandom)
    with use_threads(available_threads()) as n_threads:
        changed, found, cost = recalibrate_model(
            model, rows, epsilon=arguments.epsilon, noise=noise, account=account, n_threads=n_threads
        )
    privacy = changed.plan.privacy
    changed = changed.with_account(account.read_state(privacy.unit, privacy.delta))
    save_unless_kept(changed, out)
    if arguments.json:
        fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
        del fields["ensemble"]
        print_json({"model": str(out), **fields, "cost": cost.to_dict(), "report": changed.report.to_dict()})
        return
    if noise.seeded:
        warn_seeded()
    print_facts([*_list_facts(model, found), ("model", f"written to {out}")])
    print(f"\n  This alone cost {format_cost(cost.epsilon, cost.delta)}.")
    print("  The model with all that was released about it:\n")
    print(wrap_text(changed.report_text(today())))


def _list_facts(model: Model, found: Recalibration) -> list[tuple[str, str]]:
    """Describe the results and the transport report: the scores here, and by the model's own releases."""
    label = model.plan.label
    what = {"risk": "events a row", "score": f"chance of {label.classes[-1:] and label.classes[-1]}"}
    ratios = [mean / found.seen if found.seen > 0 else float("nan") for mean in (found.before, found.after)]
    predicted = f"{number(found.before, 3)} before, {number(found.after, 3)} now; seen {number(found.seen, 3)}"
    if label.kind.position != "residual" or label.type == "count":
        predicted += f" (ratios {number(ratios[0], 3)} and {number(ratios[1], 3)})"
    level = "a baseline of its own" if label.kind.position == "risk" else f"{number(found.shift, 3)} in units of scores"
    (here, spread), (usual, width) = found.here, found.usual
    lie = f"mean {number(here, 3)}, spread {number(spread, 3)}; by the model's releases {number(usual, 3)}"
    return [
        ("records", f"about {found.n_records:,.0f} ± {found.noise:,.0f}"),
        (what.get(label.kind.position, f"mean {label.name}"), predicted),
        ("level", level),
        ("slope", number(found.slope, 3)),
        ("scores here", f"{lie} and {number(width, 3)}"),
    ]
