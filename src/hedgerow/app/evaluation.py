"""``hedgerow evaluate``: how well a model predicts a table, or, with --federated, what sites hold out and may not show.

An app of Flower evaluates by the same functions.
"""

from __future__ import annotations

import argparse
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.app.inputs import adapted_sites, check_can_write, listed, named_sites, picture_file
from hedgerow.app.output import (
    PRIVATE,
    PRIVATE_MARK,
    note,
    number,
    print_facts,
    print_json,
    today,
    warn,
    warn_seeded,
    wrapped,
)
from hedgerow.app.progress import sites_of, status
from hedgerow.client.node import available_threads, use_threads
from hedgerow.data.site_data import SiteData, bounded_sites, read_site_rows
from hedgerow.data.sources import Location, file_of, is_url, opened, read_records
from hedgerow.data.units import MOST_LEFT_OUT, Records, RowCount, RowsLeftOut
from hedgerow.errors import HedgerowError, UsageError
from hedgerow.evaluation.estimates import Estimate, Evaluation
from hedgerow.local.training import FederatedEvaluation, evaluate_federated, evaluated, plot_calibration
from hedgerow.losses.registry import loss_kind
from hedgerow.losses.survival import doubt_of_times
from hedgerow.methods.tasks import EvaluationTask, ensemble_bytes
from hedgerow.models.model import FEWEST_TO_WARN, Model, no_values_text, require_room, sole_writer
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.server.release import EvaluatedModel, Outcome

_TITLES = {
    "auc": "AUC", "log_loss": "log-loss", "accuracy": "accuracy", "rmse": "RMSE", "r2": "R²", "mae": "MAE",
    "integrated_brier": "integrated Brier score",
}  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Print the scores."""
    if arguments.federated:
        _run_federated(arguments)
        return
    _check_plain(arguments)
    (table,) = adapted_sites({arguments.data: arguments.data}, arguments.adapters).values()
    model = Model.load(arguments.model)
    with status(f"Predicting {Path(arguments.data).name}", quiet=arguments.json):
        scores = evaluate(model, read_own(table, model.plan, arguments.allow_loss))
    if arguments.json:
        print_json({"model": arguments.model, "data": arguments.data, **PRIVATE_MARK, **scores})
        return
    print(f"{wrapped(PRIVATE, hanging=0)}\n")
    print_facts(_facts_of_scores(scores, model))


def _check_plain(arguments: argparse.Namespace) -> None:
    options = ("sites", "epsilon", "delta", "out", "plot", "seed", "roster", "identity", "journal", "metrics")
    only_federated = [name for name in options if getattr(arguments, name) is not None]
    if only_federated:
        option = "site" if only_federated[0] == "sites" else only_federated[0]
        raise UsageError("usage-only-federated", option=option)
    if arguments.data is None:
        raise UsageError("usage-no-data")


def read_own(table: Location, plan: Plan, allowed: float | None, *, with_label: bool = True) -> list[Records]:
    """All records of one's own table, read and counted before anything is done with them.

    Args: allowed: the largest share of rows that may be left out. Without it, none may: one that does not fit is an
        error that names it, and where there are more than the usual share, the error that counts them.

    Raises LostRowsError; DataError.
    """
    left_out: RowsLeftOut = {}
    source = opened(table, plan.privacy.line_breaks)
    found = list(read_records(source, plan, with_label=with_label, with_unit=False, left_out=left_out))
    rows = RowCount(sum(records.n_records for records in found), left_out, getattr(source, "lines", None))
    name = "The query's result" if is_url(table) else Path(file_of(table)).name
    rows.require(name, MOST_LEFT_OUT if allowed is None else allowed)
    is_ragged = not with_label and "data-ragged-row" in left_out
    if left_out and (allowed is None or is_ragged):
        note(f"Private: {name}: {rows.text()}{'' if is_ragged else ' Leave such rows out by --allow-loss SHARE.'}")
        # Where such a row stands is not known, so that predictions could not be told apart.
        return list(read_records(table, plan, with_label=with_label, with_unit=False))
    if rows.has_gaps:
        note(f"Private: {name}: {rows.text()}")
    return found


def evaluate(model: Model, chunks: Iterable[Records]) -> dict[str, float]:
    """The number of records and the scores of a model's predictions for them; a column without any value is told of.

    They are exact, so no guarantee covers them: `evaluate_federated` measures with noise.
    """
    labels, outputs, empty = [], [], set(model.plan.feature_names)
    label = model.plan.label
    predict = model.predict_codes if label.is_numeric else model.predict_proba_codes
    predict = model.predict_survival_codes if label.is_survival else predict
    for records in chunks:
        codes = model.ensemble.grid.encode(records.features)
        empty &= model.without_values(codes)
        outputs.append(predict(codes))
        labels.append(records.label)
    truth, output = np.concatenate([label for label in labels if label is not None]), np.concatenate(outputs)
    if empty and len(truth) >= FEWEST_TO_WARN:
        warn(no_values_text(empty))
    return {"n_records": len(truth), **loss_kind(model.plan).scores(truth, output, model.plan.label)}


def _facts_of_scores(scores: dict[str, float], model: Model) -> list[tuple[str, str]]:
    facts = [("records", f"{scores['n_records']:,}")]
    for name, value in scores.items():
        if name != "n_records":
            facts.append((_title(name), number(value) + _remark(name, value, model)))
    return facts


def _title(name: str) -> str:
    return _TITLES.get(name, name.replace("_", " "))


def _remark(name: str, value: float, model: Model) -> str:
    if name != "auc":
        return ""
    if np.isnan(value):
        return " (one class only)"
    return " (chance 0.5)" if len(model.plan.label.classes) == 2 else " (mean of each class against the rest)"


def _run_federated(arguments: argparse.Namespace) -> None:
    """Evaluate, write the model with the cost on its account, print the scores and what they cost."""
    _check_federated(arguments)
    model = Model.load(arguments.model)
    out = check_can_write(arguments.out or arguments.model)
    picture = _picture(arguments.plot, model)
    noise: NoiseSource = SystemNoise(os.urandom) if arguments.seed is None else SeededNoise(arguments.seed)
    if arguments.roster is None:
        require_room(out, model)
        tables = adapted_sites(named_sites(arguments.sites), arguments.adapters)
        allowed = arguments.allow_loss
        rows = read_sites(tables, model.plan, quiet=arguments.json, strict=arguments.strict, allowed=allowed)
        _warn_of_missing(model, rows)
        with status("Evaluating", quiet=arguments.json), use_threads(available_threads()) as n_threads:
            found = evaluate_federated(
                model, rows, epsilon=arguments.epsilon, delta=arguments.delta, noise=noise, n_threads=n_threads
            )
        sites = list(rows)
        # The account goes first: numbers that were seen but not charged would be a leak.
        # Another evaluation of the file may have gone on beside this one.
        with sole_writer(out):
            require_room(out, model)
            found.model.save(out)
    else:
        found, sites = _over_network(arguments, model, out, noise)
    if picture is not None:
        plot_calibration(found, picture)
    if arguments.json:
        print_json(content_of(found, sites, out, picture))
    else:
        if noise.seeded:
            warn_seeded()
        print_evaluation(found, sites, out, picture)
    if arguments.hand_out:
        # An extra, as in `_over_network`.
        from hedgerow.app.coordinator import hand_out

        hand_out(arguments, out)


def _warn_of_missing(model: Model, sites: Sites) -> None:
    """Tell each site of columns without any value, as `evaluate` does of a table."""
    for name, rows in sites.items():
        if rows.n_records >= FEWEST_TO_WARN and (empty := model.without_values(rows.codes)):
            warn(f"Private, for the site {name} only: {no_values_text(empty)}")


def _over_network(
    arguments: argparse.Namespace, model: Model, out: Path, noise: NoiseSource
) -> tuple[FederatedEvaluation, list[str]]:
    """As the coordinator of a run over the nodes of the roster, which answer over the rows that they hold out."""
    # An extra: only a party that dials or listens needs grpc.
    from hedgerow.app.coordinator import ModelFile, serve

    evaluated = to_be_evaluated(model, arguments.epsilon, arguments.delta, arguments.noise or "")
    journal = Path(arguments.journal or journal_of(out, model))
    file = ModelFile(out, model, journal, is_new=arguments.new_run, quiet=arguments.json)
    outcome, session = serve(arguments, model.plan, noise, file, evaluated)
    found = found_by(outcome, model)
    # The account goes first, as above.
    file.save(found.model)
    return found, sites_of(session)


def to_be_evaluated(model: Model, epsilon: float, delta: float | None, noise: str = "") -> EvaluatedModel:
    """What the coordinator of an evaluation is given; without a delta, the model's own; `noise` as `EvaluationTask`.

    Raises PrivacyError.
    """
    delta = model.plan.privacy.delta if delta is None else delta
    task = EvaluationTask(model.plan, ensemble_bytes(model.ensemble), epsilon, delta, model.next_round, noise)
    return EvaluatedModel(task, model.ledger, model.report)


def journal_of(out: Path | str, model: Model) -> str:
    """Every evaluation of a model has a journal of its own: the ledger is longer each time."""
    return f"{out}.evaluation-{len(model.ledger)}.journal"


def found_by(outcome: Outcome, model: Model) -> FederatedEvaluation:
    """What a run over nodes found, and the model with it on its account."""
    if outcome.evaluation is None or outcome.cost is None:
        raise HedgerowError("no-numbers")
    account = evaluated(model, outcome.evaluation, outcome.ledger, outcome.report)
    return FederatedEvaluation(outcome.evaluation, outcome.cost, account)


def _check_federated(arguments: argparse.Namespace) -> None:
    over_network = arguments.roster is not None
    if over_network and arguments.sites:
        raise UsageError("usage-site-and-roster")
    if over_network:
        adapted_sites({}, arguments.adapters)
    elif arguments.hand_out:
        raise UsageError("usage-hand-out")
    if arguments.noise is not None and not over_network:
        raise UsageError("usage-noise")
    missing = "--identity" if over_network and arguments.identity is None else ""
    missing = missing or ("--site or --roster" if not over_network and not arguments.sites else "")
    missing = missing or ("--epsilon" if arguments.epsilon is None else "")
    if missing:
        raise UsageError("usage-federated-missing", missing=missing)
    if arguments.data is not None:
        raise UsageError("usage-table-in-clear", data=arguments.data)


def _picture(path: str | None, model: Model) -> Path | None:
    if path is None:
        return None
    if model.plan.label.is_numeric or model.plan.label.is_survival:
        raise UsageError("usage-no-curve")
    return picture_file(path)


def print_evaluation(found: FederatedEvaluation, sites: Sequence[str], out: Path, picture: Path | None) -> None:
    """What was found and what it cost, for a person."""
    facts = [("sites", f"{len(sites)}: {listed(sites)}"), *score_facts(found.evaluation)]
    facts.append(("model", f"written to {out}, with this evaluation on its account"))
    if picture is not None:
        facts.append(("picture", str(picture)))
    print_facts(facts)
    print(f"\n  This evaluation alone cost epsilon {number(found.cost.epsilon, 6)} at delta {found.cost.delta:.3g}.")
    print("  The model with all that was released about it:\n")
    print(wrapped(found.model.report_text(today())))


def score_facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    """What was found, for a person."""
    n_records = evaluation.n_records
    facts = [("records", f"about {max(n_records.value, 0):,.0f} ± {n_records.noise_error:,.0f}")]
    facts += [(_title(name), estimate_text(estimate)) for name, estimate in evaluation.scores.items()]
    if evaluation.error_clip is not None:
        facts.append(("errors", f"beyond {number(evaluation.error_clip)} counted as {number(evaluation.error_clip)}"))
    for coverage, half in evaluation.half_widths.items():
        said = "the label's whole range: too few records for so much noise" if math.isinf(half) else f"± {number(half)}"
        facts.append((f"{coverage:.0%} interval", said))
    return facts


def estimate_text(estimate: Estimate) -> str:
    """A number with its errors, for a person."""
    if math.isnan(estimate.value):
        return "not measurable: too few records, or of a class or late in the follow-up too few, for so much noise"
    text = f"{number(estimate.value)} ± {number(estimate.noise_error, 2)} from the noise"
    if not math.isnan(estimate.sampling_error):
        text += f", ± {number(estimate.sampling_error, 2)} from the sample"
    return text


def content_of(found: FederatedEvaluation, sites: Sequence[str], out: Path, picture: Path | None) -> Mapping[str, Any]:
    """The same, for a program."""
    return {
        "model": str(out),
        "sites": list(sites),
        **found.evaluation.to_dict(),
        "cost": found.cost.to_dict(),
        "report": found.model.report.to_dict(),
        "picture": None if picture is None else str(picture),
    }


Sites = Mapping[str, SiteData]


def read_sites(
    tables: Mapping[str, Location], plan: Plan, *, quiet: bool, strict: bool = False, allowed: float | None = None
) -> Sites:
    """Read and bin every site's table, a file or a URL; rows of one unit are bounded at each site and over all of them.

    How many rows are used is said on stderr, for the operator's eyes.

    Args:
        strict: refuse a row that does not fit, and a table without rows.
        allowed: the largest share of a table's rows that may be left out; without it, the usual one.

    Raises:
        DataError: a table cannot be read or lacks a column; if strict, also for a row.
        LostRowsError: of a table more rows are left out; no row is left of all tables, or those of one class only.
    """
    rows = {}
    for name, place in tables.items():
        # A URL may have a password in it.
        with status(f"Reading {name if is_url(place) else Path(place).name}", quiet=quiet):
            rows[name] = read_site_rows(place, plan, strict=strict)
    bounded = bounded_sites(rows, plan)
    reports = {name: report for name, (_, report) in bounded.items()}
    most = MOST_LEFT_OUT if allowed is None else allowed
    for name, report in reports.items():
        if report.n_rows or most < 1:
            report.rows.require(name, most)
    left_out = sum((Counter(report.unfit) for report in reports.values()), Counter[str]())
    every = RowCount(sum(report.n_rows for report in reports.values()), left_out)
    labels = [own.labels for own, _ in bounded.values()]
    if not plan.label.is_numeric and "data-label-outside" in left_out:
        # One of two codes may be all that is left out, however rare it is.
        classes = np.unique(np.concatenate(labels) % 2 if plan.label.is_survival else np.concatenate(labels))
        every.require("All sites, with rows of one class only", allowed or 0.0 if len(classes) < 2 else 1.0)
    every.require("All sites", 1.0)
    if plan.label.is_survival:
        fates = np.bincount(np.concatenate(labels), minlength=plan.label.n_codes)
        if doubt := doubt_of_times(fates, plan.label.intervals, plan.label.name):
            warn(f"Private, for the owners of the tables only: {doubt}.")
    for name, report in reports.items():
        if not quiet or report.rows.has_gaps or report.n_dropped or report.warning:
            note(" ".join(filter(None, (f"Private, for the site {name} only: {report.text()}", report.warning))))
    return {name: own for name, (own, _) in bounded.items()}
