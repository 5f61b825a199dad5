"""``hedgerow evaluate --federated``: how well a model predicts rows that sites hold out and may not show."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hedgerow.cli.inputs import check_can_write, listed, named_sites
from hedgerow.cli.output import number, print_facts, print_json, warn, wrapped
from hedgerow.cli.progress import status
from hedgerow.cli.training import Sites, read_sites
from hedgerow.local_evaluation import FederatedEvaluation, evaluate_federated
from hedgerow.model import Model
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.protocol.errors import UsageError
from hedgerow.threads import available_threads, use_threads
from hedgerow.training.evaluation_estimates import Estimate

_TITLES = {"auc": "AUC", "log_loss": "log-loss", "accuracy": "accuracy", "rmse": "RMSE", "r2": "R²"}
_PICTURES = (".png", ".svg", ".pdf")


def run(arguments: argparse.Namespace) -> None:
    """Evaluate, write the model with the cost on its account, print the scores and what they cost."""
    _check(arguments)
    model = Model.load(arguments.model)
    out = check_can_write(arguments.out or arguments.model)
    picture = _picture(arguments.plot, model)
    noise: NoiseSource = SystemNoise(os.urandom) if arguments.seed is None else SeededNoise(arguments.seed)
    sites = read_sites(named_sites(arguments.sites), model.plan, quiet=arguments.json)
    with status("Evaluating", quiet=arguments.json), use_threads(available_threads()) as n_threads:
        found = evaluate_federated(
            model, sites.data, epsilon=arguments.epsilon, delta=arguments.delta, noise=noise, n_threads=n_threads
        )
    # The account goes first: numbers that were seen but not charged would be a leak.
    found.model.save(out)
    if picture is not None:
        from hedgerow.calibration_plot import plot_calibration

        plot_calibration(found, picture)
    if arguments.json:
        print_json(_content(found, sites, out, picture))
        return
    if noise.seeded:
        warn("The noise comes from a seed, so whoever knows it can remove it. For experiments only.")
    _print(found, sites, out, picture)


def _check(arguments: argparse.Namespace) -> None:
    missing = "--site" if not arguments.sites else "--epsilon" if arguments.epsilon is None else ""
    if missing:
        raise UsageError(
            f"{missing} is missing: --federated needs the sites' tables and what they may spend.",
            remedy="See `hedgerow evaluate --help`.",
            code="usage",
        )
    if arguments.data is not None:
        raise UsageError(
            f"{arguments.data} is a table in the clear, which --federated has no use for.",
            remedy="Give it as a site, --site NAME=FILE, or leave out --federated.",
            code="usage",
        )


def _picture(path: str | None, model: Model) -> Path | None:
    if path is None:
        return None
    if model.plan.label.type == "regression":
        raise UsageError("A regression has no calibration curve.", remedy="Leave out --plot.", code="usage")
    picture = check_can_write(path)
    if picture.suffix.lower() not in _PICTURES:
        raise UsageError(
            f"{path}: pictures end in {', '.join(_PICTURES)}.", remedy="Choose one of these.", code="picture-format"
        )
    return picture


def _print(found: FederatedEvaluation, sites: Sites, out: Path, picture: Path | None) -> None:
    evaluation = found.evaluation
    facts = [
        ("sites", f"{len(sites.data)}: {listed(sites.data)}"),
        ("records", f"about {max(evaluation.n_records.value, 0):,.0f} ± {evaluation.n_records.noise_error:,.0f}"),
    ]
    facts += [(_TITLES[name], estimate_text(estimate)) for name, estimate in evaluation.scores.items()]
    if evaluation.error_clip is not None:
        facts.append(("errors", f"beyond {number(evaluation.error_clip)} counted as {number(evaluation.error_clip)}"))
    facts.append(("model", f"written to {out}, with this evaluation on its account"))
    if picture is not None:
        facts.append(("picture", str(picture)))
    print_facts(facts)
    print(f"\n  This evaluation alone cost epsilon {number(found.cost.epsilon, 6)} at delta {found.cost.delta:.3g}.")
    print("  The model with all that was released about it:\n")
    print(wrapped(found.model.report.text()))


def estimate_text(estimate: Estimate) -> str:
    """A number with its errors, for a person."""
    if math.isnan(estimate.value):
        return "not measurable: too few records of a class for so much noise"
    text = f"{number(estimate.value)} ± {number(estimate.noise_error, 2)} from the noise"
    if not math.isnan(estimate.sampling_error):
        text += f", ± {number(estimate.sampling_error, 2)} from the sample"
    return text


def _content(found: FederatedEvaluation, sites: Sites, out: Path, picture: Path | None) -> Mapping[str, Any]:
    return {
        "model": str(out),
        "sites": list(sites.data),
        **found.evaluation.to_dict(),
        "cost": found.cost.to_dict(),
        "report": found.model.report.to_dict(),
        "picture": None if picture is None else str(picture),
    }
