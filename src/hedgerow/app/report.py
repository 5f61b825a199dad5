# SPDX-License-Identifier: Apache-2.0
"""A model's report as a page, for ``hedgerow report --html``; the pack for reviewers holds parts of it."""

from __future__ import annotations

import io
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from hedgerow import elementary
from hedgerow.app.document import (
    render_document,
    render_facts,
    render_figures,
    render_picture,
    render_printed,
    render_section,
    render_table,
    render_text,
)
from hedgerow.app.evaluation import describe_left_out, format_title
from hedgerow.app.output import json_text, number
from hedgerow.errors import UsageError
from hedgerow.evaluation.estimates import CalibrationCurve
from hedgerow.models.model import Model
from hedgerow.models.plots import draw_calibration, plot_shapes
from hedgerow.plan.fields import read_json
from hedgerow.privacy.rounding import format_up
from hedgerow.survey.statistics import BAND
from hedgerow.trees.importances import find_importances

Content = dict[str, Any]
_ENDS = {"auc": (0.0, 1.0), "accuracy": (0.0, 1.0), "concordance": (0.0, 1.0), "r2": (-math.inf, 1.0)}
"""Range of each measure; all others are at least 0."""


_PROMISED = (
    "epsilon spent", "protects", "neighbouring data", "made by", "made in", "outlook", "rows of a person",
    "lines of a CSV", "account", "one run",
)  # fmt: skip


def read_words() -> Content:
    """Read the words of a model's pages from `evidence.toml`."""
    return tomllib.loads(resources.files("hedgerow.app").joinpath("evidence.toml").read_text(encoding="utf-8"))


def read_printed(file: Path, option: str, command: str, check: Callable[[Content], object]) -> Content:
    """Read the JSON object that a command printed into a file.

    Args:
        option, command: for the message.
        check: fails for any other object; it shows what will be shown, for a part is as easily wrong as the whole.

    Raises:
        UsageError: it is no such file.
    """
    data = file.read_bytes()
    try:
        found = read_json(data)
        if not isinstance(found, dict):
            raise TypeError("it is no object")
        check(found)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as fault:
        expected = f"a file with what `{command} --json` printed"
        raise UsageError("argument", code="usage", name=option, value=str(file), expected=expected) from fault
    return found


def read_evaluation(file: Path, model: Model) -> Content:
    """Read the output of `hedgerow evaluate --federated --json` from a file; UsageError for anything else."""

    def check(found: Content) -> None:
        render_performance(found, model, read_words()["notes"])
        if "private" in found or not isinstance(found["cost"]["epsilon"], int | float | str):
            raise ValueError("it is no evaluation with noise")

    return read_printed(file, "--evaluation", "hedgerow evaluate --federated", check)


def _read_curves(evaluation: Content) -> list[CalibrationCurve]:
    """Read an evaluation's curves from JSON; null is nan."""

    def numbers(values: Sequence[Any]) -> Any:
        return np.array(
            [math.inf if value == "infinite" else math.nan if value is None else value for value in values], float
        )

    names = "predicted", "observed", "noise_error", "share"
    return [CalibrationCurve(each["class"], *(numbers(each[name]) for name in names)) for each in evaluation["curves"]]


def render_report(model: Model, date: str, evaluation: Content | None) -> str:
    """Render a model's report as a page: promise, shapes with their bands, importances, calibration."""
    notes = read_words()["notes"]
    content = {"report": model.report.to_dict(), "facts": model.report.facts(sites=model.sites)}
    drawn = io.BytesIO()
    plot_shapes(model, drawn)
    bands = "What each feature adds to the score; pale bands: what the noise alone could have drawn"
    values = find_importances(model.ensemble).values
    # Sort by size, as in the picture.
    order, total = np.argsort(-values, kind="stable"), float(values.sum()) or 1.0
    shares = [(model.plan.feature_names[place], f"{values[place] / total:.1%}") for place in order]
    importances_table = render_table("Importances", ("feature", "share of the importances"), shares)
    body = [
        *render_promise(content),
        render_section("How each feature acts", [render_picture(drawn.getvalue(), bands), importances_table]),
        render_section("How well it predicts", render_performance(evaluation, model, notes)),
        render_section("The report in full", [render_printed(model.report_text(date))]),
    ]
    return render_document(model.plan.name, f"Report of a model of Hedgerow {model.created_with}, {date}", body)


def render_promise(content: Content) -> list[str]:
    """Render the guarantee, with what voids or qualifies it.

    Args:
        content: of a model: `report`, and its `facts`; and in a pack what the `promise` depends on.
    """
    report = content["report"]
    guarantee = (
        "depends on its author's word" if report.get("authors") and not report["voided_by"] else report["guarantee"]
    )
    figures = [("guarantee", "holds, on conditions" if guarantee == "holds" else guarantee)]
    if not report["voided_by"]:
        whom = "one row" if report["unit"] == "record" else f"all rows of one {report['unit']}"
        epsilon = dict(content["facts"])["epsilon spent"].split(" ")[0]
        figures += [("epsilon", epsilon), ("delta", format_up(report['delta'], 3)), ("protects", whom)]
    return [
        render_figures(figures),
        *(render_text(f"Void: {reason}.", "void") for reason in report["voided_by"]),
        *(render_text(f"Warning: {warning}.", "void") for warning in report["warnings"]),
        # The part for everybody comes first.
        render_facts(map(tuple, content.get("promise", []))),
        render_facts([*pick_facts(content["facts"], "in words", "guesses"), *pick_facts(content["facts"], *_PROMISED)]),
    ]


def pick_facts(facts: Iterable[Sequence[str]], *names: str) -> list[tuple[str, str]]:
    """Select facts by name, with the lines that continue them."""
    found, is_picked = list[tuple[str, str]](), False
    for name, text in facts:
        is_picked = name in names if name else is_picked
        if is_picked:
            found.append((name, text))
    return found


def render_performance(evaluation: Content | None, model: Model, notes: Mapping[str, str]) -> list[str]:
    """Scores with their intervals and curves of calibration, or where to get them."""
    if evaluation is None:
        return [render_text(notes["no_evaluation"])]
    heads = ("measure", "value", "from", "to")
    parts = [render_text(notes["evaluation"]), render_table("Scores", heads, list_scores(evaluation))]
    # The evaluation is of another model, or of this one before or after a further evaluation.
    if evaluation["report"] != json.loads(json_text(model.report.to_dict())):
        parts.insert(0, render_text(notes["evaluation_other"], "void"))
    if curves := _read_curves(evaluation):
        drawn = io.BytesIO()
        title = "Calibration"
        draw_calibration(curves, model.plan.label.name, "bars: 95 % of the privacy noise", drawn)
        parts.append(
            render_picture(
                drawn.getvalue(), f"{title}: predicted chance against what happened; the table has the numbers"
            )
        )
        curve_heads = ("class", "predicted", "observed", "from", "to", "share of records")
        parts.append(render_table(title, curve_heads, _list_calibration(curves)))
        if len(curves) == 1 and "accuracy" in evaluation["scores"]:
            share, seen = curves[0].share, np.isfinite(curves[0].noise_error)
            total = elementary.add_up(share[seen])
            rate = elementary.dot(curves[0].observed[seen], share[seen]) / total if total > 0 else 0.5
            parts.append(render_text(Template(notes["guess"]).substitute(share=f"{100 * max(rate, 1 - rate):.0f}")))
    for column, groups in evaluation.get("groups", {}).items():
        lines = [(group, list_scores(figures)) for group, figures in groups.items()]
        rows = [
            (group, *(f"{value} [{low}, {high}]" if low else value for _, value, low, high in scores))
            for group, scores in lines
        ]
        names = [name for name, *_ in lines[0][1]] if lines else []
        parts.append(render_table(f"By {column}", (f"by {column}", *names), rows))
    left_out = evaluation.get("sites_left_out")
    note = notes["no_site_figures"] if left_out is None else notes["site_figures"]
    return [*parts, render_text(f"{note} {describe_left_out(left_out) if left_out else ''}", "muted")]


def list_scores(evaluation: Content) -> list[tuple[str, str, str, str]]:
    """Name, value and interval of each score; the number of records first."""
    found = {"records": evaluation["n_records"], **evaluation["scores"]}
    ends = {name: _ENDS.get(name, (0.0, math.inf)) for name in found}
    return [(format_title(name), *_format_interval(each, ends[name])) for name, each in found.items()]


def _format_interval(estimate: Mapping[str, Any], ends: tuple[float, float]) -> tuple[str, str, str]:
    """Format an estimate and its 95 % interval from noise and sampling, cut off at `ends`."""
    value, noise, sampling = (estimate[name] for name in ("value", "noise_error", "sampling_error"))
    if value is None or not isinstance(noise, int | float):
        return "not measurable", "", ""
    reach = BAND * math.hypot(noise, sampling or 0.0)
    low, high = (min(max(end, ends[0]), ends[1]) for end in (value - reach, value + reach))
    return number(min(max(value, ends[0]), ends[1])), number(low), number(high)


def _list_calibration(curves: Iterable[CalibrationCurve]) -> list[tuple[str, ...]]:
    """List the points with finite noise as lines under `curve_heads`."""
    rows: list[tuple[str, ...]] = []
    for curve in curves:
        for predicted, observed, error, share in zip(
            curve.predicted, curve.observed, curve.noise_error, curve.share, strict=True
        ):
            if math.isfinite(error):
                low, high = max(observed - BAND * error, 0.0), min(observed + BAND * error, 1.0)
                rows.append((curve.label_class, *(f"{value:.3f}" for value in (predicted, observed, low, high, share))))
    return rows
