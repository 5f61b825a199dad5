# SPDX-License-Identifier: Apache-2.0
"""``hedgerow evaluate``: how well a model predicts a table, or, with --federated, what sites hold out."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.app.inputs import adapt_sites, check_can_write, parse_sites, picture_file
from hedgerow.app.options import CoordinatorOptions
from hedgerow.app.output import PRIVATE, PRIVATE_MARK, number, print_facts, print_json, warn_seeded, wrap_text
from hedgerow.cli.options import (
    ADAPTERS,
    above_zero,
    add_command,
    add_fields,
    add_nodes,
    add_shared,
    read_account,
    read_options,
    whole,
)
from hedgerow.errors import UsageError

if TYPE_CHECKING:
    from hedgerow.local.training import FederatedEvaluation


_EVALUATE_EXAMPLE = """\
examples:
  hedgerow evaluate model.json test.csv
  hedgerow evaluate model.json test.csv --epsilon 0.3
  hedgerow evaluate model.json --federated --epsilon 0.1 \\
      --site north=north-test.csv --site south=south-test.csv
  hedgerow evaluate model.json --federated --epsilon 0.1 \\
      --roster roster.toml --identity hub.private.json --listen 0.0.0.0:7443

The first is exact, for the eyes of the rows' owner. All others add noise to sums, and write what that costs into the
model's ledger and report. The last asks nodes that were started with `hedgerow node --held-out`.
"""


def add_commands(commands: Any) -> None:
    """Add `evaluate`."""
    text = "say how well a model predicts a table's labels"
    add = add_command(commands, "evaluate", run, text, _EVALUATE_EXAMPLE)
    command: argparse.ArgumentParser = commands.choices["evaluate"]
    add("model", metavar="MODEL")
    add("data", metavar="DATA", nargs="?", help="a .csv, .csv.gz or .parquet file with labels")
    add("--adapter", **ADAPTERS)
    add_shared(add, "--allow-loss")
    add = command.add_argument_group("with noise, charged to the model's account").add_argument
    add("--epsilon", type=above_zero, metavar="E", help="what this evaluation may cost")
    add("--federated", action="store_true", help="over sites that may not show their rows to each other")
    add("--site", action="append", dest="sites", metavar="[NAME=]TABLE", help="held-out rows; repeat")
    add_fields(add, CoordinatorOptions, "--by")
    add("--out", metavar="MODEL", help="where the model with the new account goes (default: MODEL)")
    add("--plot", metavar="PNG", help="draw the calibration curve: .png, .svg or .pdf")
    add("--seed", type=whole(0), metavar="N", help="noise from a seed: voids the model's guarantee")
    add_shared(add, "--data-set", "--book", "--no-book", "--yes")
    add = command.add_argument_group("over nodes: --federated as the coordinator of a roster").add_argument
    text = "who adds the noise, whichever party added it to the training; sites have to allow it (distributed)"
    add_nodes(add, text)
    add_fields(add, CoordinatorOptions, "--journal")
    add_shared(add, "--hand-out")
    add_shared(command.add_argument, "--json")


def run(arguments: argparse.Namespace) -> None:
    """Print the scores."""
    from hedgerow.app.evaluation import evaluate, format_title, read_own
    from hedgerow.app.progress import status
    from hedgerow.data.cells import add_cells, list_notes
    from hedgerow.methods.recalibration import find_obstacle
    from hedgerow.models.model import Model

    if arguments.federated or arguments.epsilon is not None:
        _run_federated(arguments)
        return
    _refuse_without(arguments, "--federated", "sites", "roster", "identity", "journal")
    names = ("out", "plot", "seed", "by", "data_set", "book", "no_book", "yes")
    _refuse_without(arguments, "--epsilon", *names)
    if arguments.data is None:
        raise UsageError("usage-missing", missing="DATA")
    (table,) = adapt_sites({arguments.data: arguments.data}, arguments.adapters).values()
    model = Model.load(arguments.model)
    with status(f"Predicting {Path(arguments.data).name}", quiet=arguments.json):
        records = read_own(table, model.plan, arguments.allow_loss)
        scores = evaluate(model, records)
    if arguments.json:
        print_json({"model": arguments.model, "data": arguments.data, **PRIVATE_MARK, **scores})
        return
    print(f"{wrap_text(PRIVATE, hanging=0)}\n")
    means = [scores.pop(name) for name in ("predicted", "seen") if name in scores]
    facts = [(format_title(name), number(value)) for name, value in scores.items() if name != "n_records"]
    if means:
        said = f"{number(means[0], 3)} predicted, {number(means[1], 3)} seen"
        # Of numbers about zero a ratio says nothing.
        is_ratio = model.plan.label.type != "regression" and means[1] > 0
        is_off = is_ratio and not 0.9 <= means[0] / means[1] <= 1.1 and not find_obstacle(model.plan, model.ensemble)
        # A new level would hide a wrong unit or coding for good.
        is_odd = bool(list_notes(add_cells([each.cells for each in records]), model.plan))
        advice = "look at the columns named above first" if is_odd else "`hedgerow recalibrate` brings them together"
        facts.append(("mean", said + (f": {advice}" if is_off else "")))
    if "auc" in scores:
        is_binary, title = len(model.plan.label.classes) == 2, format_title("auc")
        remark = "chance 0.5" if is_binary else "mean of each class against the rest"
        remark = "one class only" if math.isnan(scores["auc"]) else remark
        facts = [(name, f"{value} ({remark})" if name == title else value) for name, value in facts]
    print_facts([("records", f"{scores['n_records']:,}"), *facts])


def _refuse_without(arguments: argparse.Namespace, other: str, *names: str) -> None:
    """Raise UsageError for an option that needs another one."""
    for name in names:
        value = getattr(arguments, name)
        # Compare by identity: a given seed of 0 equals False.
        if value is not None and value is not False and value != []:
            option = "--site" if name == "sites" else "--" + name.replace("_", "-")
            raise UsageError("usage-needs", option=option, other=other)


def _run_federated(arguments: argparse.Namespace) -> None:
    """Evaluate, write the model with the cost on its account, and print the scores with their cost."""
    from hedgerow.app.accounts import open_account
    from hedgerow.app.evaluation import journal_file, prepare_evaluation, read_sites
    from hedgerow.app.progress import status
    from hedgerow.client.node import available_threads, use_threads
    from hedgerow.local.training import evaluate_federated
    from hedgerow.models.model import Model, require_room, sole_writer
    from hedgerow.privacy.noise import make_noise
    from hedgerow.privacy.statement import PROCESS

    if arguments.allow_loss is not None:
        raise UsageError("usage-beside", option="--allow-loss", other="--epsilon")
    _check_federated(arguments)
    model = Model.load(arguments.model)
    out = check_can_write(arguments.out or arguments.model)
    if arguments.plot is not None and model.plan.label.kind.predicts != "probabilities":
        raise UsageError("usage-beside", option="--plot", other="a model without classes")
    picture = None if arguments.plot is None else picture_file(arguments.plot)
    if arguments.roster is None:
        require_room(out, model)
        named = parse_sites(arguments.sites) if arguments.federated else {"site": arguments.data}
        tables = adapt_sites(named, arguments.adapters)
        account = open_account(read_account(arguments), tables.values(), out)
        rows = read_sites(tables, model.plan, quiet=arguments.json, asks=not arguments.yes)
        noise = make_noise(arguments.seed, os.urandom)
        with status("Evaluating", quiet=arguments.json), use_threads(available_threads()) as n_threads:
            found = evaluate_federated(
                model, rows, epsilon=arguments.epsilon, noise=noise, n_threads=n_threads,
                by=arguments.by, is_one_site=not arguments.federated, account=account,
            ).with_account(account)  # fmt: skip
        if arguments.federated:
            found = dataclasses.replace(found, model=found.model.evaluated(PROCESS, model))
        # The account goes first: numbers that were seen but not charged would be a leak.
        # Another evaluation of the file may have gone on beside this one.
        with sole_writer(out):
            require_room(out, model)
            found.model.save(out)
        show(found, list(rows), out, picture, is_seeded=noise.seeded, as_json=arguments.json)
        return
    # Extras: only a party that dials or listens needs grpc.
    from hedgerow.app.coordinator import ModelFile, evaluate_over_nodes, hand_out
    from hedgerow.transport.identities import read_roster

    options = read_options(CoordinatorOptions, arguments, noise=arguments.noise or "")
    sites = [site.name for site in read_roster(Path(options.roster)).sites]
    asked = prepare_evaluation(model, options.epsilon, options.delta, options.noise, options.by, sites)
    journal = Path(options.journal or journal_file(out, model))
    file = ModelFile(out, model, journal, is_new=arguments.new_run, quiet=arguments.json)
    found, sites = evaluate_over_nodes(options, asked, model, file)
    show(found, sites, out, picture, is_seeded=options.seed is not None, as_json=arguments.json)
    if arguments.hand_out:
        hand_out(options, out)


def show(
    found: FederatedEvaluation, sites: list[str], out: Path, picture: Path | None, *, is_seeded: bool, as_json: bool
) -> None:
    """Draw the calibration curve if requested, and print the results."""
    from hedgerow.app.evaluation import describe_evaluation, print_evaluation
    from hedgerow.local.training import plot_calibration

    if picture is not None:
        plot_calibration(found, picture)
    if as_json:
        print_json(describe_evaluation(found, sites, out, picture))
        return
    if is_seeded:
        warn_seeded()
    print_evaluation(found, sites, out, picture)


def _check_federated(arguments: argparse.Namespace) -> None:
    if not arguments.federated:
        _refuse_without(arguments, "--federated", "sites", "roster", "identity", "journal")
        if arguments.data is None:
            raise UsageError("usage-missing", missing="DATA")
        return
    over_network = arguments.roster is not None
    if over_network and arguments.sites:
        raise UsageError("usage-beside", option="--site", other="--roster")
    if over_network:
        adapt_sites({}, arguments.adapters)
    elif arguments.hand_out:
        raise UsageError("usage-needs", option="--hand-out", other="--roster")
    if arguments.noise is not None and not over_network:
        raise UsageError("usage-needs", option="--noise", other="--roster")
    missing = "--identity" if over_network and arguments.identity is None else ""
    missing = missing or ("--site or --roster" if not over_network and not arguments.sites else "")
    missing = missing or ("--epsilon" if arguments.epsilon is None else "")
    if missing:
        raise UsageError("usage-missing", missing=missing)
    if arguments.data is not None:
        raise UsageError("usage-beside", option=arguments.data, other="--federated")
