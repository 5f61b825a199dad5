# SPDX-License-Identifier: Apache-2.0
"""How well a model predicts a table, or what sites hold out and may not show; and how all sites' tables are read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow import elementary
from hedgerow.app.inputs import ask_to_go_on, join_names
from hedgerow.app.output import note, number, print_facts, today, warn, wrap_text
from hedgerow.app.progress import status
from hedgerow.data.binned import SiteData
from hedgerow.data.cells import add_cells, describe_cells
from hedgerow.data.mapped import ExternalMemory
from hedgerow.data.site_data import find_kept, read_bounded
from hedgerow.data.sources import Location, file_path, is_url, open_table, read_records
from hedgerow.data.units import MAX_LEFT_OUT, Records, RowCount, RowsLeftOut, bound_records
from hedgerow.errors import HedgerowError
from hedgerow.evaluation.estimates import Estimate, Evaluation
from hedgerow.evaluation.sums import names_sites
from hedgerow.local.training import FederatedEvaluation, add_evaluation
from hedgerow.losses.registry import loss_kind
from hedgerow.methods.tasks import EvaluationTask, ensemble_bytes
from hedgerow.models.model import Model
from hedgerow.plan.fields import escape_for_terminal
from hedgerow.plan.plan import Plan
from hedgerow.privacy.rounding import format_cost
from hedgerow.server.release import EvaluatedModel, Outcome

_TITLES = {
    "auc": "AUC", "log_loss": "log-loss", "accuracy": "accuracy", "rmse": "RMSE", "r2": "R²", "mae": "MAE",
    "integrated_brier": "integrated Brier score",
}  # fmt: skip


def read_own(table: Location, plan: Plan, allowed: float | None, *, with_label: bool = True) -> list[Records]:
    """Read and count all records of the user's own table, and tell its owner of odd columns.

    With labels, rows of each unit are bounded, as in every other measurement.

    Raises LostRowsError; DataError.

    Args:
        allowed: the largest share of rows that may be left out; None for the usual one. A row without a place among
            the predictions is an error all the same.
    """
    left_out: RowsLeftOut = {}
    source = open_table(table, plan)
    found = list(read_records(source, plan, with_label=with_label, left_out=left_out))
    rows = RowCount(sum(records.n_records for records in found), left_out, getattr(source, "lines", None))
    name = "The query's result" if is_url(table) else Path(file_path(table)).name
    rows.require(name, MAX_LEFT_OUT if allowed is None else allowed)
    if not with_label and "data-ragged-row" in left_out:
        note(f"Private: {name}: {rows.text()}")
        # Where such a row stands is not known, so that predictions could not be told apart.
        return list(read_records(table, plan, with_label=with_label))
    if with_label:
        found = [replace(bound_records(found, plan), cells=add_cells([records.cells for records in found]))]
        rows = rows.bound(found[0].n_records)
    if rows.has_gaps:
        note(f"Private: {name}: {rows.text()}")
    if odd := describe_cells(add_cells([records.cells for records in found]), plan):
        warn(f"Private: {name}: {odd}")
    return found


def evaluate(model: Model, chunks: Iterable[Records]) -> dict[str, float]:
    """Return the number of records, exact scores of the predictions, and the mean prediction and label.

    The scores are exact, so no guarantee covers them: `evaluate_federated` measures with noise.
    """
    labels, outputs = [], []
    for records in chunks:
        codes = model.ensemble.grid.encode(records.features)
        outputs.append(model.outputs_codes(codes))
        labels.append(records.label)
    truth, output = np.concatenate([label for label in labels if label is not None]), np.concatenate(outputs)
    kind = model.plan.label.kind
    if kind.is_number:
        truth = np.clip(truth, *model.plan.label.bounds)
    scores = loss_kind(model.plan).scores(truth, output, model.plan.label)
    if kind.predicts == "values" or output.shape[1:] == (2,):
        means = (output, truth) if kind.predicts == "values" else (output[:, 1], truth == 1)
        scores |= dict(zip(("predicted", "seen"), map(elementary.mean, means), strict=True))
    return {"n_records": len(truth), **scores}


def format_title(name: str) -> str:
    """Return a score's title for a person."""
    return _TITLES.get(name, name.replace("_", " "))


def prepare_evaluation(
    model: Model, epsilon: float, delta: float | None, noise: str, by: Sequence[str], sites: Sequence[str]
) -> EvaluatedModel:
    """Return the input of an evaluation's coordinator; without a delta, the model's own is used.

    Other arguments are those of `EvaluationTask`.

    Args:
        sites: the names of all sites, which are asked by name if `by` contains sites.

    Raises PrivacyError.
    """
    delta = model.plan.privacy.delta if delta is None else delta
    content, number = ensemble_bytes(model.ensemble), model.next_round
    named = tuple(sites) if any(names_sites(model.plan, column) for column in by) else ()
    task = EvaluationTask(model.plan, content, epsilon, delta, number, noise, tuple(by), named)
    return EvaluatedModel(task, model.ledger, model.report)


def journal_file(out: Path | str, model: Model) -> str:
    """Return the path of an evaluation's journal.

    Every evaluation of a model has its own: the ledger is longer each time.
    """
    return f"{out}.evaluation-{len(model.ledger)}.journal"


def conclude_evaluation(outcome: Outcome, model: Model, made_in: str) -> FederatedEvaluation:
    """Return the evaluation of a run over nodes, and the model with that evaluation in its ledger."""
    if outcome.evaluation is None or outcome.cost is None:
        raise HedgerowError("no-result", result="numbers")
    account = add_evaluation(model, outcome.evaluation, outcome.ledger, outcome.report)
    return FederatedEvaluation(outcome.evaluation, outcome.cost, account.evaluated(made_in, model))


def print_evaluation(found: FederatedEvaluation, sites: Sequence[str], out: Path, picture: Path | None) -> None:
    """Print an evaluation over sites, the model's new place, and the cost of all releases."""
    facts = [("sites", f"{len(sites)}: {join_names(sites)}"), *score_facts(found.evaluation)]
    facts.append(("model", f"written to {out}, with this evaluation on its account"))
    if picture is not None:
        facts.append(("picture", str(picture)))
    print_facts(facts)
    for column, groups in found.evaluation.groups.items():
        print(f"\n  By {escape_for_terminal(column)} (± by noise and sample together; -: too few records)\n")
        print_facts([(escape_for_terminal(name), _describe_group(figures)) for name, figures in groups.items()])
    if found.evaluation.left_out:
        print("\n" + wrap_text(f"  {describe_left_out(found.evaluation.left_out)}", hanging=2))
    print(f"\n  This evaluation alone cost {format_cost(found.cost.epsilon, found.cost.delta)}.")
    print("  The model with all that was released about it:\n")
    print(wrap_text(found.model.report_text(today())))


def score_facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return an evaluation's number of records, scores and intervals as facts for a person."""
    facts = [("records", _count_text(evaluation.n_records))]
    facts += [(format_title(name), estimate_text(estimate)) for name, estimate in evaluation.scores.items()]
    if evaluation.error_clip is not None:
        facts.append(("errors", f"beyond {number(evaluation.error_clip)} counted as {number(evaluation.error_clip)}"))
    for coverage, half in evaluation.half_widths.items():
        said = "the label's whole range: too few records for so much noise" if math.isinf(half) else f"± {number(half)}"
        facts.append((f"{coverage:.0%} interval", said))
    return facts


def describe_left_out(names: Sequence[str]) -> str:
    """Describe which sites have no figures by themselves, and why."""
    return (
        f"No figures of {join_names(names)} alone: a site has them only where its policy says "
        "site_figures = true, and where it was in that sum."
    )


def _describe_group(own: Evaluation) -> str:
    """Describe one group's scores in a line."""
    scores = (f"{format_title(name)} {_shorten(each)}" for name, each in own.scores.items())
    return "; ".join([f"records {_count_text(own.n_records)}", *scores])


def _count_text(n_records: Estimate) -> str:
    return f"about {max(n_records.value, 0):,.0f} ± {n_records.noise_error:,.0f}"


def _shorten(estimate: Estimate) -> str:
    sampling = 0.0 if math.isnan(estimate.sampling_error) else estimate.sampling_error
    known = not math.isnan(estimate.value)
    return f"{number(estimate.value)} ± {number(math.hypot(estimate.noise_error, sampling), 2)}" if known else "-"


def estimate_text(estimate: Estimate) -> str:
    """Format a number with its errors for a person."""
    if math.isnan(estimate.value):
        return "not measurable: too few records, or of a class or late in the follow-up too few, for so much noise"
    text = f"{number(estimate.value)} ± {number(estimate.noise_error, 2)} from the noise"
    if not math.isnan(estimate.sampling_error):
        text += f", ± {number(estimate.sampling_error, 2)} from the sample"
    return text


def describe_evaluation(
    found: FederatedEvaluation, sites: Sequence[str], out: Path, picture: Path | None
) -> Mapping[str, Any]:
    """Return an evaluation as the fields of a JSON object."""
    return {
        "model": str(out),
        "sites": list(sites),
        **found.evaluation.to_dict(),
        "cost": found.cost.to_dict(),
        "report": found.model.report.to_dict(),
        "picture": None if picture is None else str(picture),
    }


_COUNTED = 1 << 20
"""Labels that are counted at a time."""
Sites = Mapping[str, SiteData]


def read_sites(
    tables: Mapping[str, Location],
    plan: Plan,
    *,
    quiet: bool,
    asks: bool = False,
    external_memory: str | None = None,
) -> Sites:
    """Read and bin every site's table, a file or a URL; rows of one unit are bounded at each site and over all of them.

    How many rows are used is said on stderr, for the operator's eyes. No count of rows ends the command: the others
    would see its exit code, and whether there are results. The operator may end it.

    Args:
        asks: ask at a terminal whether to go on where many rows are left out.
        external_memory: the folder for their codes, see `hedgerow.data.mapped`; None for memory.

    Raises:
        DataError: a table cannot be read or lacks a column.
        PolicyRefusal: code "not-agreed": who was asked has said no.
    """
    memory = None
    if external_memory is not None:
        memory = ExternalMemory.open(Path(external_memory), plan, tables)
    bounded = None if memory is None else find_kept(memory, plan)
    if bounded is None:
        # A URL may have a password in it.
        places = [name if is_url(place) else Path(place).name for name, place in tables.items()]
        with status(f"Reading {join_names(places)}", quiet=quiet):
            bounded = read_bounded(tables, plan, memory=memory)
    reports = {name: report for name, (_, report) in bounded.items()}
    kind, counts = plan.label.kind, np.zeros(plan.label.n_codes, dtype=np.intp)
    for labels in (rows.labels for rows, _ in bounded.values() if len(counts)):
        for first in range(0, len(labels), _COUNTED):
            counts += np.bincount(labels[first : first + _COUNTED], minlength=len(counts))
    for name, report in reports.items():
        is_lost, odd = report.rows.share_left_out > MAX_LEFT_OUT, describe_cells(report.cells, plan)
        if is_lost or not quiet or report.rows.has_gaps or odd:
            text = " ".join(filter(None, (report.rows.text(), odd)))
            (warn if is_lost or odd else note)(f"Private, for the site {name} only: {text}")
    # One of two codes may be all that is left out, however rare it is.
    is_one_class = any("data-label-outside" in report.unfit for report in reports.values()) and kind.has_one_outcome(
        np.flatnonzero(counts).astype(np.int32)
    )
    if is_one_class:
        said = "rows with labels that the plan does not have are left out, and all others are of one class"
        warn(f"Private, for the owners of the tables only: {said}.")
    if doubt := kind.doubt(counts, plan.label):
        warn(f"Private, for the owners of the tables only: {doubt}.")
    if asks and (is_one_class or any(report.rows.share_left_out > MAX_LEFT_OUT for report in reports.values())):
        ask_to_go_on()
    return {name: rows for name, (rows, _) in bounded.items()}
