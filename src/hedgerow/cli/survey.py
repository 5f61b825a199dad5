# SPDX-License-Identifier: Apache-2.0
"""``hedgerow survey``: what a table holds, in noisy sums, before anyone trains."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.app.inputs import join_names, output_folder, parse_sites
from hedgerow.app.options import CoordinatorOptions
from hedgerow.app.output import WIDEST, format_command, note, print_facts, print_json, warn, warn_seeded, wrap_text
from hedgerow.cli.options import (
    ADAPTERS,
    above_zero,
    add_command,
    add_nodes,
    add_shared,
    read_account,
    read_options,
    whole,
)
from hedgerow.errors import UsageError
from hedgerow.plan.plan import Plan
from hedgerow.privacy.rounding import format_up

if TYPE_CHECKING:
    from hedgerow.app.survey import Survey, SurveyOptions
    from hedgerow.local.survey import TableSurvey
    from hedgerow.survey.statistics import ColumnStatistics


_FEW_RECORDS = 2000.0
"""Records times epsilon below which little stands out of the noise."""


_SURVEY_EXAMPLE = """\
examples:
  hedgerow survey north.csv --epsilon 0.3
  hedgerow survey --site north=north.csv --site south=south.csv \\
      --label outcome --epsilon 0.3 --out statistics
  hedgerow survey --site north=north.csv --site south=south.csv \\
      --survival curves.toml --by ward --epsilon 1 --out km

The folder then has report.html, survey.json, and, with --label, plan.toml: `hedgerow train` takes it as it is, and
counts what the statistics have cost. Everything comes from noisy sums (docs/survey.md, which shows it over nodes too).
"""


def add_commands(commands: Any) -> None:
    """Add `survey`."""
    text = "describe tables before anyone trains: private counts, shares, quantiles"
    add = add_command(commands, "survey", run, text, _SURVEY_EXAMPLE)
    command: argparse.ArgumentParser = commands.choices["survey"]
    text = "a .csv, .csv.gz or .parquet file, or a database's URL with a query; with --federated only its header"
    add("data", metavar="DATA", nargs="?", help=text)
    add("--site", action="append", dest="sites", metavar="[NAME=]TABLE", help="one site's table instead; repeat")
    add("--adapter", **ADAPTERS)
    add("--epsilon", type=above_zero, required=True, metavar="E", help="what all these statistics may cost")
    add("--delta", type=float, default=1e-6, metavar="D", help="the chance that the promise fails (%(default)s)")
    text = "show the shares of this column's classes by bin of each other, and draft a plan that predicts it"
    add("--label", default="", metavar="COLUMN", help=text)
    add("--schema", metavar="PLAN", help="a plan, or part of one: what is public of columns and label")
    text = "nothing but Kaplan-Meier curves, for the [label] of this plan or part of one: a time to an event"
    add("--survival", metavar="PLAN", help=text)
    add("--by", metavar="COLUMN", help="a curve for each category of this one of the plan's features")
    text = "a code book, as for `plan init`: types, bounds and categories are public, identifiers are left out"
    add("--codebook", metavar="CSV", help=text)
    add("--without", action="append", default=[], metavar="COLUMN", help="leave this column out; repeat")
    text = "protect whom this column names, who may have several rows, and not single rows"
    add("--unit", metavar="COLUMN", help=text)
    add("--max-rows-per-unit", type=whole(1, 10**6), metavar="N", help="rows of one unit that are used (1)")
    add_shared(add, "--yes")
    text = "what the drafted plan promises, these statistics included (1, or twice E if that is more)"
    add("--train-epsilon", type=above_zero, metavar="T", help=text)
    add("--out", metavar="FOLDER", help="where report.html, survey.json and plan.toml go; without it, none is written")
    add_shared(add, "--seed", "--data-set", "--book", "--no-book")
    add = command.add_argument_group("over nodes: the same, asked of sites that keep their tables").add_argument
    add("--federated", action="store_true", help="as the coordinator of a roster; the answers are noised and charged")
    add_nodes(add, "who adds the noise; sites have to allow it (distributed)")
    add_shared(command.add_argument, "--json")


def run(arguments: argparse.Namespace) -> None:
    """Make the statistics; print them, or write them into a folder as well."""
    from hedgerow.app.survey import SurveyOptions, survey_over_nodes, survey_over_tables

    _check(arguments)
    folder = None if arguments.out is None else output_folder(arguments.out)
    options = read_options(SurveyOptions, arguments)
    if arguments.federated and folder is not None:
        named = {name: getattr(arguments, name) for name in ("roster", "identity", "listen", "engine", "log_format")}
        party = CoordinatorOptions(**named, seed=options.seed, quiet=options.quiet)
        made = survey_over_nodes(options, party, folder, arguments.data, is_new=arguments.new_run)
        parties = {"roster": party.roster, "identity": party.identity, "listen": party.listen}
        asked = " ".join(f"--{name} {shlex.quote(value)}" for name, value in parties.items())
        train = f"coordinator {{plan}} {asked} --out model.json"
    else:
        tables = arguments.sites or [arguments.data]
        account = read_account(arguments)
        made = survey_over_tables(options, parse_sites(tables), folder, asks=not arguments.yes, account=account)
        asked = " ".join(f"--site {shlex.quote(each)}" for each in tables)
        train = f"train {{plan}} {asked}" + "".join(f" --adapter {shlex.quote(each)}" for each in options.adapters)
    show(options, made, folder, train)


def show(options: SurveyOptions, made: Survey, folder: Path | None, train: str) -> None:
    """Print the results, and write them if there is a folder.

    Args:
        train: the command that trains by the drafted plan, "{plan}" for its file.

    Raises:
        NothingFoundError: where a plan was wished for and is not finished.
    """
    from rich.console import Console

    from hedgerow.app.progress import status
    from hedgerow.app.statistics import print_statistics
    from hedgerow.app.survey import PLAN

    found, plan = made.found, made.plan
    with status("Writing", quiet=options.quiet):
        files = {} if folder is None else made.write(folder)
    if options.quiet:
        print_json({**made.to_dict(), "files": {name: str(path) for name, path in files.items()}})
    else:
        if found.report.seeded:
            warn_seeded()
        console = Console(width=min(WIDEST, Console().width), highlight=False)
        print_statistics(console, found.statistics, made.sites)
        print(wrap_text(found.report.text()))
        _say_what_next(options, made, files, train)
        if files and plan is not None:
            _report_label(found, plan)
    made.require_plan(options.label, files.get(PLAN))


def _check(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options that contradict each other."""
    if arguments.sites and arguments.data is not None:
        raise UsageError("usage-beside", option=arguments.data, other="--site")
    if arguments.unit is None and arguments.max_rows_per_unit is not None:
        raise UsageError("usage-needs", option="--max-rows-per-unit", other="--unit")
    if arguments.survival is not None:
        others = [
            name for name in ("label", "schema", "codebook", "without", "train_epsilon") if getattr(arguments, name)
        ]
        if others:
            raise UsageError("usage-beside", option="--" + others[0].replace("_", "-"), other="--survival")
    elif arguments.by is not None:
        raise UsageError("usage-needs", option="--by", other="--survival")
    if arguments.train_epsilon is not None and arguments.train_epsilon <= arguments.epsilon:
        expected = f"more than --epsilon {arguments.epsilon}: the plan's promise counts the statistics as well"
        value = arguments.train_epsilon
        raise UsageError("argument", code="survey-plan-epsilon", name="--train-epsilon", value=value, expected=expected)
    if not arguments.federated:
        given = [name for name in ("roster", "identity", "noise") if getattr(arguments, name) is not None]
        if given or arguments.new_run:
            raise UsageError("usage-needs", option="--" + (given or ["new-run"])[0], other="--federated")
        if not arguments.sites and arguments.data is None:
            raise UsageError("usage-missing", missing="DATA, or --site NAME=TABLE,")
        return
    if arguments.sites:
        raise UsageError("usage-beside", option="--site", other="--roster")
    missing = [name for name in ("roster", "identity", "out") if getattr(arguments, name) is None]
    if missing:
        raise UsageError("usage-missing", missing=f"--{missing[0]}")
    if not (arguments.data or arguments.schema or arguments.codebook or arguments.survival):
        raise UsageError("usage-missing", missing="DATA, --codebook, --schema or --survival, which name columns,")


def _say_what_next(options: SurveyOptions, made: Survey, files: dict[str, Path], train: str) -> None:
    from hedgerow.app.survey import PLAN, list_found_texts
    from hedgerow.local.survey import usual_epsilon
    from hedgerow.survey.curves import SurvivalCurves

    found = made.found
    if found.statistics.n_records.value * options.epsilon < _FEW_RECORDS:
        warn("There are few records for so small an epsilon, so much is hidden by the noise, or wrong by it.")
    for column in getattr(found.statistics, "columns", ()):
        _report_cells(column)
    if texts := list_found_texts(found.statistics):
        note(
            f"Found to be text: {join_names(texts)}. Texts have no order for a model. If one of these holds numbers, "
            "dates, or times in another writing, convert it or declare how it is written (docs/data.md)."
        )
    if isinstance(found.statistics, SurvivalCurves) and found.statistics.doubt:
        warn(f"{found.statistics.doubt}.")
    if not files:
        note("Nothing was written: --out FOLDER keeps a report, and with --label a plan. Asked again, it costs again.")
        return
    print_facts([(name, str(path)) for name, path in files.items()])
    if made.plan is not None:
        epsilon = usual_epsilon(found.report) if options.train_epsilon is None else options.train_epsilon
        both = f"The plan promises epsilon {format_up(epsilon)} for these statistics and the training together"
        command = train.replace("{plan}", shlex.quote(str(files[PLAN])))
        note(f"{both}: {format_command(f'hedgerow {command}')}")


def _report_cells(column: ColumnStatistics) -> None:
    """Warn of a column that a plan from these releases would misread, with a remedy."""
    from hedgerow.app.statistics import percent
    from hedgerow.survey.queries import N_BYTES
    from hedgerow.survey.statistics import MIN_LISTED

    if column.kind == "number" and column.odd.is_shown:
        kind = "no date" if column.is_date else "not a number"
        warn(
            f"{column.name}: {percent(column.odd)} of the cells are there and {kind}. A training leaves such rows out: "
            f"say what they stand for, with `recode.{column.name}`, `missing` or `date` in a [data] table (--adapter), "
            "or declare the column as categorical (--schema)."
        )
    if column.is_hashed or column.listed_share < MIN_LISTED:
        share = 0.0 if column.is_hashed else column.listed_share
        warn(
            f"{column.name}: texts that were found cover about {share:.0%} of its cells, so a drafted plan hashes the "
            f"column. A survey spells no text of more than {N_BYTES} bytes, and none that is too rare for its epsilon: "
            "a code book (--codebook) or a --schema with the categories costs nothing, and gives each a bin of its "
            "own. If the column names persons or is free text, leave it out (--without)."
        )
    if column.range is not None and column.range.unheld:
        warn(f"{column.name}: {column.range.doubt}.")


def _report_label(found: TableSurvey, plan: Plan) -> None:
    """Warn that further classes may exist, and that whole numbers taken for classes may be counts."""
    from hedgerow.app.statistics import count_text
    from hedgerow.survey.statistics import TableStatistics, show_count

    label, columns = plan.label, found.statistics.columns if isinstance(found.statistics, TableStatistics) else ()
    own = next((column for column in columns if column.name == label.name), None)
    if own is None:
        return
    others = [group.count for group in own.groups if group.name not in label.classes]
    if label.classes and len(own.groups) == len(others) + len(label.classes) and others:
        rest = show_count(sum(each.value for each in others), others[0].deviation, len(others))
        if rest.is_shown:
            warn(
                f"About {count_text(rest)} rows have other values of {label.name} than {join_names(label.classes)}, "
                "each too rare to stand out: a training by this plan leaves them out, unless label.classes has theirs "
                "too."
            )
    if len(label.classes) > 2 and own.kind == "number":
        note(
            f"It predicts which of {len(label.classes)} classes {label.name} is: {join_names(label.classes)}. Where "
            'these are counts or amounts, change its [label]: type = "count" and max, or "regression", min and max, in '
            "place of classes. --schema takes such a [label] too."
        )
