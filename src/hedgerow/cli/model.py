# SPDX-License-Identifier: Apache-2.0
"""What is done with a model file: ``hedgerow report``, ``plot``, ``export`` and ``predict``."""

from __future__ import annotations

import argparse
import csv
import secrets
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hedgerow.app.inputs import adapt_table, check_can_write, picture_file
from hedgerow.app.output import PRIVATE, PRIVATE_MARK, note, number, print_json, today, warn, wrap_text
from hedgerow.cli.options import add_command, add_shared
from hedgerow.errors import UsageError
from hedgerow.models.formats import FORMATS

if TYPE_CHECKING:
    from hedgerow.data.units import Records
    from hedgerow.models.model import Model


def add_commands(commands: Any) -> None:
    """Add `predict`, `report`, `plot` and `export`."""
    add = add_command(commands, "predict", predict, "predict each row of a table")
    command: argparse.ArgumentParser = commands.choices["predict"]
    add("model", metavar="MODEL")
    add("data", metavar="DATA", help="a .csv, .csv.gz or .parquet file; labels are not needed")
    add_shared(add, "--adapter", "--allow-loss")
    kind = command.add_mutually_exclusive_group()
    kind.add_argument("--proba", action="store_true", help="one probability per class instead of the class")
    text = "beside each number the interval that a share C of labels lies within, as 0.9; see docs/reading-a-model.md"
    kind.add_argument("--interval", type=float, metavar="C", help=text)
    add("--out", metavar="FILE", help="CSV file to write (default: print it)")
    add_shared(add, "--json")
    add = add_command(commands, "report", report, "print what a model promises")
    add("model", metavar="MODEL")
    add("--html", metavar="FILE", help="write it as a page, with shapes, bands, importances and calibration")
    add_shared(add, "--evaluation")
    add_shared(add, "--json")
    add = add_command(commands, "plot", plot, "draw how each feature moves a model's prediction")
    add("model", metavar="MODEL")
    text = "picture to write: .png, .svg or .pdf (%(default)s)"
    add("--out", default="shapes.png", metavar="PNG", help=text)
    add_shared(add, "--json")
    add = add_command(commands, "export", export, "write a model for another program")
    add("model", metavar="MODEL")
    text = "; ".join(f"{name}: {form.about}" for name, form in FORMATS.items())
    add("--to", choices=FORMATS, default="xgboost", help=f"{text} (%(default)s)")
    text = ", ".join(f"model.{form.ending}" for form in FORMATS.values())
    add("--out", metavar="FILE", help=f"file to write; XGBoost wants .json (for model.json: {text})")
    add_shared(add, "--json")


def report(arguments: argparse.Namespace) -> None:
    """Print the privacy report of a model's file."""
    from hedgerow.models.model import Model

    model = Model.load(arguments.model, exact=True)
    if arguments.json:
        print_json({"model": arguments.model, **model.report.to_dict(), **model.filing(today())})
        return
    if arguments.evaluation is not None and arguments.html is None:
        raise UsageError("usage-needs", option="--evaluation", other="--html")
    if model.salvaged is not None:
        warn(model.salvaged.text())
    if arguments.html is not None:
        from hedgerow.app.report import read_evaluation, render_report
        from hedgerow.models.model import write_atomically

        out = check_can_write(arguments.html, arguments.model, arguments.evaluation)
        measured = None if arguments.evaluation is None else read_evaluation(Path(arguments.evaluation), model)
        write_atomically(out, render_report(model, today(), measured).encode())
        note(f"Wrote {out}.")
        return
    print(wrap_text(model.report_text(today())))
    if model.bounds_text:
        print("\n" + wrap_text(f"Predicts numbers from {model.bounds_text}.", hanging=0))
    if model.plan.known:
        print("\n" + wrap_text(f"By its plan, at no cost in privacy: {'; '.join(model.plan.known)}."))


def plot(arguments: argparse.Namespace) -> None:
    """Draw the shape functions into one file."""
    from hedgerow.models.model import Model
    from hedgerow.models.plots import plot_shapes

    out = picture_file(arguments.out)
    model = Model.load(arguments.model)
    plot_shapes(model, out)
    if arguments.json:
        print_json({"model": arguments.model, "out": str(out)})
        return
    note(f"Wrote {out}.")


def export(arguments: argparse.Namespace) -> None:
    """Write a model in another program's format."""
    from hedgerow.models.model import Model

    form = FORMATS[arguments.to]
    name = arguments.out or f"{arguments.model.removesuffix('.json')}.{form.ending}"
    out = check_can_write(name, arguments.model)
    model = Model.load(arguments.model)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.export(out, arguments.to)
    for each in told:
        warn(str(each.message))
    clip = model.ensemble.link.objective(model.plan.label).clip
    if clip is not None and not form.is_clipped:
        low, high = map(number, clip)
        warn(
            f"Hedgerow's predictions end at {low} and {high}, and those of what reads this file go beyond. Cut its "
            "predictions off there (docs/models.md)."
        )
    if arguments.json:
        print_json({"model": arguments.model, "format": arguments.to, "out": str(out)})
        return
    kind = "Regressor" if model.plan.label.kind.is_number else "Classifier"
    note(f"Wrote {out}; load it with {form.reader.format(path=str(out), kind=kind)}.")


Rows = list[list[Any]]


def predict(arguments: argparse.Namespace) -> None:
    """Write one line of predictions for each row.

    A line holds the predicted class or value, the probabilities, a value and its interval, or a risk and the chances to
    be without the event at the end of each interval.
    """
    from hedgerow.app.evaluation import read_own
    from hedgerow.data.sources import file_path
    from hedgerow.models.model import Model

    reads = arguments.model, file_path(arguments.data), arguments.adapter
    out = None if arguments.out is None else check_can_write(arguments.out, *reads)
    model = Model.load(arguments.model)
    header = model.header(chances=arguments.proba, coverage=arguments.interval)
    # Before anything is written: a table that is not there, or does not fit, leaves no header of predictions.
    table = adapt_table(arguments.data, arguments.adapter)
    records = read_own(table, model.plan, arguments.allow_loss, with_label=False)
    chunks = _predict_chunks(model, records, arguments, len(header))
    if arguments.json and out is None:
        rows = [row if len(header) > 1 else row[0] for chunk in chunks for row in chunk]
        print_json({**PRIVATE_MARK, "columns": header, "predictions": rows})
        return
    with _stream(out) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        n_rows = 0
        for chunk in chunks:
            writer.writerows(chunk)
            n_rows += len(chunk)
    if arguments.json:
        print_json({"out": str(out), **PRIVATE_MARK, "n_rows": n_rows, "columns": header})
    elif out is not None:
        note(f"Wrote {out}, a line for each of {n_rows:,} rows. {PRIVATE}")
        if model.level_text:
            note(f"In the rows of the training: {model.level_text}.")


def _predict_chunks(
    model: Model, chunks: Iterable[Records], arguments: argparse.Namespace, n_columns: int
) -> Iterator[Rows]:
    for records in chunks:
        codes = model.ensemble.grid.encode(records.features)
        rows = model.predict_rows(codes, chances=arguments.proba, coverage=arguments.interval)
        if records.fits is not None:
            # A row that is left out has a line of its own, without a prediction: lines go with the table's rows.
            found = iter(rows)
            rows = [next(found) if fits else [None] * n_columns for fits in records.fits.tolist()]
        yield rows


@contextmanager
def _stream(out: Path | None) -> Iterator[TextIO]:
    if out is None:
        yield sys.stdout
        return
    if out.exists() and not out.is_file():
        with open(out, "w", encoding="utf-8", newline="") as device:
            yield device
        return
    # Under its name only when it is whole: a row that does not fit may come late, and half a file looks like all of it.
    part = out.with_name(f".{out.name}.{secrets.token_hex(6)}.part")
    try:
        # A new file: who writes to the folder could have put one of theirs, or a link, by a name that they can foresee.
        with open(part, "x", encoding="utf-8", newline="") as stream:
            yield stream
        part.replace(out)
    except OSError as fault:
        # A disk that is full names no file.
        fault.filename = fault.filename or str(out)
        raise
    finally:
        part.unlink(missing_ok=True)
