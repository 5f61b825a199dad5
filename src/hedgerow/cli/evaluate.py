"""``hedgerow evaluate``: how well a model predicts a table, or, with --federated, what sites hold out."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from hedgerow.app.evaluation import (
    content_of,
    evaluate,
    format_title,
    journal_file,
    print_evaluation,
    read_own,
    read_sites,
    to_be_evaluated,
)
from hedgerow.app.inputs import adapt_sites, check_can_write, parse_sites, picture_file
from hedgerow.app.output import PRIVATE, PRIVATE_MARK, number, print_facts, print_json, warn, warn_seeded, wrap_text
from hedgerow.app.progress import status
from hedgerow.cli.options import read_options
from hedgerow.client.node import available_threads, use_threads
from hedgerow.errors import UsageError
from hedgerow.local.training import FederatedEvaluation, evaluate_federated, plot_calibration
from hedgerow.models.model import FEWEST_TO_WARN, Model, no_values_text, require_room, sole_writer
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise


def run(arguments: argparse.Namespace) -> None:
    """Print the scores."""
    if arguments.federated:
        _run_federated(arguments)
        return
    _check_plain(arguments)
    (table,) = adapt_sites({arguments.data: arguments.data}, arguments.adapters).values()
    model = Model.load(arguments.model)
    with status(f"Predicting {Path(arguments.data).name}", quiet=arguments.json):
        scores = evaluate(model, read_own(table, model.plan, arguments.allow_loss))
    if arguments.json:
        print_json({"model": arguments.model, "data": arguments.data, **PRIVATE_MARK, **scores})
        return
    print(f"{wrap_text(PRIVATE, hanging=0)}\n")
    facts = [(format_title(name), number(value)) for name, value in scores.items() if name != "n_records"]
    if "auc" in scores:
        is_binary, title = len(model.plan.label.classes) == 2, format_title("auc")
        remark = "chance 0.5" if is_binary else "mean of each class against the rest"
        remark = "one class only" if math.isnan(scores["auc"]) else remark
        facts = [(name, f"{value} ({remark})" if name == title else value) for name, value in facts]
    print_facts([("records", f"{scores['n_records']:,}"), *facts])


def _check_plain(arguments: argparse.Namespace) -> None:
    options = ("sites", "epsilon", "delta", "out", "plot", "seed", "roster", "identity", "journal")
    only_federated = [name for name in options if getattr(arguments, name) is not None]
    if only_federated:
        option = "site" if only_federated[0] == "sites" else only_federated[0]
        raise UsageError("usage-needs", option=f"--{option}", other="--federated")
    if arguments.data is None:
        raise UsageError("usage-no-data")


def _run_federated(arguments: argparse.Namespace) -> None:
    """Evaluate, write the model with the cost on its account, print the scores and what they cost."""
    _check_federated(arguments)
    model = Model.load(arguments.model)
    out = check_can_write(arguments.out or arguments.model)
    picture = _picture(arguments.plot, model)
    if arguments.roster is None:
        require_room(out, model)
        tables = adapt_sites(parse_sites(arguments.sites), arguments.adapters)
        allowed = arguments.allow_loss
        rows = read_sites(tables, model.plan, quiet=arguments.json, strict=arguments.strict, allowed=allowed)
        for name, own in rows.items():
            if own.n_records >= FEWEST_TO_WARN and (empty := model.without_values(own.codes)):
                warn(f"Private, for the site {name} only: {no_values_text(empty)}")
        noise: NoiseSource = SystemNoise(os.urandom) if arguments.seed is None else SeededNoise(arguments.seed)
        with status("Evaluating", quiet=arguments.json), use_threads(available_threads()) as n_threads:
            found = evaluate_federated(
                model, rows, epsilon=arguments.epsilon, delta=arguments.delta, noise=noise, n_threads=n_threads
            )
        # The account goes first: numbers that were seen but not charged would be a leak.
        # Another evaluation of the file may have gone on beside this one.
        with sole_writer(out):
            require_room(out, model)
            found.model.save(out)
        show(found, list(rows), out, picture, is_seeded=noise.seeded, as_json=arguments.json)
        return
    # Extras: only a party that dials or listens needs grpc.
    from hedgerow.app.coordinator import CoordinatorOptions, ModelFile, evaluate_over_nodes, hand_out

    options = read_options(CoordinatorOptions, arguments)
    asked = to_be_evaluated(model, arguments.epsilon, arguments.delta, arguments.noise or "")
    journal = Path(arguments.journal or journal_file(out, model))
    file = ModelFile(out, model, journal, is_new=arguments.new_run, quiet=arguments.json)
    found, sites = evaluate_over_nodes(options, asked, model, file)
    show(found, sites, out, picture, is_seeded=options.noise.seeded, as_json=arguments.json)
    if arguments.hand_out:
        hand_out(options, out)


def show(
    found: FederatedEvaluation, sites: list[str], out: Path, picture: Path | None, *, is_seeded: bool, as_json: bool
) -> None:
    """Draw the calibration curve, if it is wanted, and print what was found."""
    if picture is not None:
        plot_calibration(found, picture)
    if as_json:
        print_json(content_of(found, sites, out, picture))
        return
    if is_seeded:
        warn_seeded()
    print_evaluation(found, sites, out, picture)


def _check_federated(arguments: argparse.Namespace) -> None:
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
        raise UsageError("usage-federated-missing", missing=missing)
    if arguments.data is not None:
        raise UsageError("usage-beside", option=arguments.data, other="--federated")


def _picture(path: str | None, model: Model) -> Path | None:
    if path is None:
        return None
    if model.plan.label.kind.predicts != "probabilities":
        raise UsageError("usage-no-curve")
    return picture_file(path)


