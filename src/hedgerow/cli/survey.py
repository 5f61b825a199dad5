"""``hedgerow survey``: what a table holds, in noisy sums, before anyone trains; `plan init --private` does the same."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from hedgerow.app.inputs import adapted_sites, listed, named_sites, new_file, output_folder, read_text
from hedgerow.app.output import WIDEST, json_text, note, print_facts, print_json, typed, warn, warn_seeded, wrapped
from hedgerow.app.progress import sites_of, status
from hedgerow.app.statistics import count_text, page_of, percent, picture_of, print_statistics
from hedgerow.cli.options import filled
from hedgerow.data.drafts import ask_of_texts, read_codebook
from hedgerow.data.fit import of_lines
from hedgerow.data.sources import column_names
from hedgerow.data.units import MOST_LEFT_OUT
from hedgerow.errors import NothingFoundError, UsageError
from hedgerow.local.survey import (
    TableSurvey,
    columns_of,
    curves_of,
    drafted_plan,
    numeric_label_of,
    open_plan_text,
    plan_text,
    read_named,
    read_site_tables,
    schema_of,
    schema_of_book,
    survey_tables,
    table_survey,
    usual_epsilon,
)
from hedgerow.methods.tasks import SurveyTask
from hedgerow.models.model import write_atomically
from hedgerow.plan.names import is_identifier
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.server.coordinator import RunSession
from hedgerow.server.release import Outcome
from hedgerow.survey.curves import SurvivalCurves
from hedgerow.survey.kinds import number_like
from hedgerow.survey.questions import AskedColumn
from hedgerow.survey.requests import OpenTable
from hedgerow.survey.statistics import Column, TableStatistics, counted

SUBJECT = "these statistics"
_PLAN = "plan.toml"
_FEW_RECORDS = 2000.0
"""Below so many records times epsilon, little stands out of the noise."""


def run(arguments: argparse.Namespace) -> None:
    """Make the statistics; print them, or write them into a folder as well."""
    _check(arguments)
    folder = None if arguments.out is None else output_folder(arguments.out)
    # Before anything is spent: it may be wrong.
    is_declared = bool(arguments.schema and arguments.label)
    label = numeric_label_of(read_text(arguments.schema), arguments.label) if is_declared else None
    found, sites = _over_nodes(arguments, label) if arguments.federated else _over_tables(arguments, folder)
    plan, text = _drafted(arguments, found, sites, label)
    files = {} if folder is None else _write(folder, found, text, sites)
    if arguments.json:
        written = {name: str(path) for name, path in files.items()}
        print_json({**content_of(found, sites), "files": written})
        _require_plan(arguments, found, plan, files.get(_PLAN) if text else None)
        return
    if found.report.seeded:
        warn_seeded()
    console = Console(width=min(WIDEST, Console().width), highlight=False)
    print_statistics(console, found.statistics, sites)
    print(wrapped(found.report.text(SUBJECT)))
    _say_what_next(arguments, found, plan, files)
    if files and plan is not None:
        _say_of_the_label(found, plan)
    _require_plan(arguments, found, plan, files.get(_PLAN) if text else None)


def _drafted(
    arguments: argparse.Namespace, found: TableSurvey, sites: Sequence[str], label: dict[str, Any] | None
) -> tuple[Plan | None, str]:
    """The plan that statistics make, if they make one, and its text, or that of one with gaps."""
    plan = drafted_plan(found, len(sites), arguments.train_epsilon, label)
    text = open_plan_text(found, len(sites), arguments.train_epsilon) if plan is None else plan_text(plan)
    return plan, text


def _check(arguments: argparse.Namespace) -> None:
    """Raises UsageError for options that contradict one another."""
    if arguments.sites and arguments.data is not None:
        raise UsageError("survey-twice", data=arguments.data)
    if arguments.unit is None and arguments.max_rows_per_unit is not None:
        raise UsageError("survey-rows-without-unit")
    if arguments.survival is not None:
        others = [
            name for name in ("label", "schema", "codebook", "without", "train_epsilon") if getattr(arguments, name)
        ]
        if others:
            raise UsageError("survey-curves-alone", option=others[0].replace("_", "-"))
    elif arguments.by is not None:
        raise UsageError("survey-by-alone", column=arguments.by)
    if arguments.train_epsilon is not None and arguments.train_epsilon <= arguments.epsilon:
        raise UsageError("survey-plan-epsilon", epsilon=arguments.train_epsilon, spent=arguments.epsilon)
    if not arguments.federated:
        given = [name for name in ("roster", "identity", "noise", "journal") if getattr(arguments, name) is not None]
        if given or arguments.new_run:
            raise UsageError("survey-only-federated", option=(given or ["new-run"])[0])
        if not arguments.sites and arguments.data is None:
            raise UsageError("survey-no-table")
        return
    if arguments.sites:
        raise UsageError("usage-site-and-roster")
    missing = [name for name in ("roster", "identity", "out") if getattr(arguments, name) is None]
    if missing:
        raise UsageError("usage-survey-missing", missing=f"--{missing[0]}")
    if not (arguments.data or arguments.schema or arguments.codebook or arguments.survival):
        raise UsageError("survey-no-columns-named")


def _require_plan(arguments: argparse.Namespace, found: TableSurvey, plan: Plan | None, kept: Path | None) -> None:
    """Raise NothingFoundError where a plan was wished for and is not finished. Args: kept: what there is of it."""
    if plan is not None or not arguments.label:
        return
    if len(getattr(found.statistics, "classes", ())) < 2:
        raise no_classes(arguments.label, found.report.epsilon, kept)
    missing = "no column stands out of the noise but the label"
    raise NothingFoundError("survey-no-plan", missing=missing, spent=found.report.epsilon, kept="")


def no_classes(label: str, spent: float, kept: Path | None) -> NothingFoundError:
    """That a label's classes were not found. Args: kept: the plan that waits for them."""
    missing = f"fewer than two classes of the label {label!r} stand out of the noise, and it is no quantity"
    said = f"Write the classes into {kept}: all else there is paid for, and trains. " if kept is not None else ""
    return NothingFoundError("survey-no-plan", missing=missing, spent=spent, kept=said)


def private_draft(arguments: argparse.Namespace, out: Path | None) -> tuple[str, Callable[[], None]]:
    """The text of a plan for ``plan init --private``, and what raises NothingFoundError if it is not finished."""
    declares = arguments.bounds_are_public or arguments.n_records is not None or arguments.codebook
    if arguments.epsilon is None or declares:
        raise UsageError("survey-private-epsilon")
    arguments.sites, arguments.schema, arguments.without, arguments.survival = None, None, [], None
    arguments.adapters = [] if arguments.adapter is None else [arguments.adapter]
    arguments.seed, arguments.json, arguments.unit, arguments.max_rows_per_unit = None, False, None, None
    arguments.delta = 1e-6 if arguments.delta is None else arguments.delta
    found, _ = _over_tables(arguments, None)
    plan = drafted_plan(found, 1)
    text = open_plan_text(found, 1) if plan is None else plan_text(plan)
    return text, partial(_require_plan, arguments, found, plan, out if text else None)


def _over_tables(arguments: argparse.Namespace, folder: Path | None) -> tuple[TableSurvey, list[str]]:
    """Statistics of tables that this machine reads, and the sites that they are of."""
    if folder is not None and arguments.label:
        # Before anything is spent: an earlier plan's account is another one, and somebody may have corrected it.
        new_file(str(folder / _PLAN))
    places = adapted_sites(named_sites(arguments.sites or [arguments.data]), arguments.adapters)
    curves = _curves(arguments)
    if curves is None:
        schema, without = _known(arguments, column_names(next(iter(places.values()))))
    with status("Reading", quiet=arguments.json):
        if curves is None:
            tables = read_site_tables(places, schema, without, arguments.unit or "record")
        else:
            tables = read_named(places, curves)
    for site, rows in tables.rows.items():
        if not arguments.json or rows.left_out:
            note(f"Private, for the site {site} only: {rows.text()}")
        if "data-ragged-row" in rows.left_out:
            _, cause = next(of_lines(len(column_names(places[site])), rows))
            note(f"Private, for the site {site} only: {cause}.")
    for site, rows in tables.rows.items():
        rows.require(site, MOST_LEFT_OUT if arguments.allow_loss is None else arguments.allow_loss)
    _say_unread(tables.unread)
    asked = curves or _open_table(arguments, tables.columns)
    with status("Adding up", quiet=arguments.json):
        found = survey_tables(asked, tables.tables, _noise(arguments))
    hashed = {own.name for own in getattr(found.statistics, "columns", ()) if own.is_hashed}
    read = [own for table in tables.tables.values() for own in table.columns if own.place.column in hashed]
    if question := ask_of_texts({own.place.column for own in read if number_like(own.texts[0])}):
        note(f"Private, for the owners of the tables only: {question}")
    return found, list(tables.tables)


def _over_nodes(arguments: argparse.Namespace, label: dict[str, Any] | None) -> tuple[TableSurvey, list[str]]:
    """Statistics of what the nodes of a roster hold, asked for as their coordinator."""
    # Extras: only a party that dials or listens needs grpc.
    from hedgerow.app import coordinator

    asked, noise = _curves(arguments) or _asked_of_nodes(arguments), _noise(arguments)
    task, folder = SurveyTask(asked), Path(arguments.out)
    journal = Path(arguments.journal or folder / "survey.journal")

    def found_in(outcome: Outcome, session: RunSession) -> tuple[TableSurvey, list[str]]:
        found = asked.statistics(session.run.releases, outcome.ledger)
        return replace(table_survey(asked, found, outcome.ledger, noise), run=session.run.run_id), sites_of(session)

    def write(outcome: Outcome, session: RunSession) -> None:
        found, sites = found_in(outcome, session)
        _write(folder, found, _drafted(arguments, found, sites, label)[1], sites)

    file = StatisticsFolder(folder, journal, write, arguments.new_run, arguments.json)
    outcome, session = coordinator.serve(filled(coordinator.CoordinatorOptions, arguments), task.plan, file, task)
    return found_in(outcome, session)


def _curves(arguments: argparse.Namespace) -> OpenTable | None:
    """The curves that are asked for instead of statistics; None where none are."""
    if arguments.survival is None:
        return None
    return curves_of(read_text(arguments.survival), arguments.by, _privacy(arguments))


def _asked_of_nodes(arguments: argparse.Namespace) -> OpenTable:
    """The statistics that are asked for, by what is declared, or by the header of a table."""
    given = adapted_sites({} if arguments.data is None else {"": arguments.data}, arguments.adapters)
    schema, without = _known(arguments, column_names(given[""]) if given else None)
    if arguments.unit is not None:
        without.append(arguments.unit)
    if given:
        columns, unread = columns_of(given, schema, without)
        _say_unread(unread)
    else:
        columns = tuple(own for name, own in schema.items() if name not in without)
    if not columns:
        raise UsageError("survey-no-columns")
    return _open_table(arguments, columns)


def _known(arguments: argparse.Namespace, names: Sequence[str] | None) -> tuple[dict[str, AskedColumn], list[str]]:
    """What is declared of the columns, by the schema before the code book, and the columns that are left out.

    Args: names: of the columns that there are; None for those that are declared.
    """
    schema = {} if arguments.schema is None else schema_of(read_text(arguments.schema))
    book = {} if arguments.codebook is None else read_codebook(arguments.codebook)
    declared = schema_of_book(book)
    if names is None:
        names = list(dict.fromkeys([*book, *schema]))
        declared = {name: declared.get(name, AskedColumn(name)) for name in book}
    own = {arguments.unit, arguments.label, *schema}
    # A code book is of a whole study: what it says of columns that are not here is for other tables.
    identifiers = [name for name in names if is_identifier(name, book) and name not in own]
    if identifiers and not arguments.json:
        note(f"Left out, by their names or the code book identifiers or free text: {listed(identifiers)}.")
    known = {name: column for name, column in declared.items() if name in names and name != arguments.unit}
    return {**known, **schema}, [*arguments.without, *identifiers]


def _say_unread(names: Sequence[str]) -> None:
    if names:
        note(f"Left out, for their types or for names that two columns have: {listed(names)}.")


def _noise(arguments: argparse.Namespace) -> NoiseSource:
    return SystemNoise(os.urandom) if arguments.seed is None else SeededNoise(arguments.seed)


def _open_table(arguments: argparse.Namespace, columns: Sequence[AskedColumn]) -> OpenTable:
    names = [column.name for column in columns]
    if arguments.label and arguments.label not in names:
        raise UsageError("survey-column", column=arguments.label, columns=listed(names))
    return OpenTable.of(columns, arguments.label or "", _privacy(arguments))


def _privacy(arguments: argparse.Namespace) -> dict[str, object]:
    """The promise, as a plan's [privacy]."""
    privacy: dict[str, object] = {"epsilon": arguments.epsilon, "delta": arguments.delta}
    if arguments.federated:
        privacy["noise"] = arguments.noise or "distributed"
    if arguments.unit is not None:
        privacy |= {"unit": arguments.unit, "max_rows_per_unit": arguments.max_rows_per_unit or 1}
    return privacy


def content_of(found: TableSurvey, sites: Sequence[str]) -> dict[str, object]:
    """The statistics for a program; what is not shown is null."""
    return {"sites": list(sites), **found.statistics.to_dict(), "report": found.report.to_dict()}


def _write(folder: Path, found: TableSurvey, plan: str, sites: Sequence[str]) -> dict[str, Path]:
    """Write the files; statistics that were there before are written over, but for a plan that is another one.

    Args: plan: its text; "" for none.
    """
    texts = {
        "report.html": page_of(found, sites, SUBJECT),
        "survey.json": json_text(content_of(found, sites)) + "\n",
    }
    if isinstance(found.statistics, SurvivalCurves):
        texts["curves.svg"] = picture_of(found.statistics, is_file=True)
    if plan:
        texts[_PLAN] = plan
        kept = folder / _PLAN
        if kept.exists() and kept.read_text(encoding="utf-8") != texts[_PLAN]:
            raise UsageError("plan-exists", path=kept)
    files = {}
    for name, text in texts.items():
        files[name] = folder / name
        write_atomically(files[name], text.encode())
    return files


# What is said beside them -------------------------------------------------------------------------------------------


def _say_what_next(
    arguments: argparse.Namespace, found: TableSurvey, plan: Plan | None, files: dict[str, Path]
) -> None:
    if found.statistics.n_records.value * arguments.epsilon < _FEW_RECORDS:
        warn("There are few records for so small an epsilon, so much is hidden by the noise, or wrong by it.")
    for column in getattr(found.statistics, "columns", ()):
        _say_of_cells(column)
    if isinstance(found.statistics, SurvivalCurves) and found.statistics.doubt:
        warn(f"{found.statistics.doubt}.")
    if not files:
        note("Nothing was written: --out FOLDER keeps a report, and with --label a plan. Asked again, it costs again.")
        return
    print_facts([(name, str(path)) for name, path in files.items()])
    if plan is not None:
        parties = [f"--site {shlex.quote(each)}" for each in arguments.sites or [arguments.data]]
        parties += [f"--adapter {shlex.quote(each)}" for each in arguments.adapters]
        command = f"train {files[_PLAN]} {' '.join(parties)}"
        if arguments.federated:
            given = {"roster": arguments.roster, "identity": arguments.identity, "listen": arguments.listen}
            options = " ".join(f"--{name} {shlex.quote(value)}" for name, value in given.items())
            command = f"coordinator {shlex.quote(str(files[_PLAN]))} {options} --out model.json"
            # What a study's coordinator types in its place.
            command = getattr(arguments, "trained_by", command)
        epsilon = usual_epsilon(found.report) if arguments.train_epsilon is None else arguments.train_epsilon
        both = f"The plan promises epsilon {epsilon:g} for these statistics and the training together"
        note(f"{both}: {typed(f'hedgerow {command}')}")


def _say_of_cells(column: Column) -> None:
    """What the releases say of a column that a plan by them would not use as its owner thinks, and what helps."""
    if column.kind == "number" and column.odd.is_shown:
        kind = "no date" if column.is_date else "not a number"
        warn(
            f"{column.name}: {percent(column.odd)} of the cells are there and {kind}. A training leaves such rows out: "
            f"say what they stand for, with `recode.{column.name}`, `missing` or `date` in a [data] table (--adapter), "
            "or declare the column as categorical (--schema)."
        )
    if column.range is not None and column.range.unheld:
        warn(f"{column.name}: {column.range.doubt}.")


def _say_of_the_label(found: TableSurvey, plan: Plan) -> None:
    """Of classes that were found there may be more; and whole numbers that were taken for classes may be counts."""
    label, columns = plan.label, found.statistics.columns if isinstance(found.statistics, TableStatistics) else ()
    own = next((column for column in columns if column.name == label.name), None)
    if own is None:
        return
    others = [group.count for group in own.groups if group.name not in label.classes]
    if label.classes and len(own.groups) == len(others) + len(label.classes) and others:
        rest = counted(sum(each.value for each in others), others[0].deviation, len(others))
        if rest.is_shown:
            warn(
                f"About {count_text(rest)} rows have other values of {label.name} than {listed(label.classes)}, each "
                "too rare to stand out: a training by this plan leaves them out, unless label.classes has theirs too."
            )
    if len(label.classes) > 2 and own.kind == "number":
        note(
            f"It predicts which of {len(label.classes)} classes {label.name} is: {listed(label.classes)}. Where these "
            'are counts or amounts, change its [label]: type = "count" and max, or "regression", min and max, in place '
            "of classes. --schema takes such a [label] too."
        )


# Where it goes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanFile:
    """Where the plan of a survey goes.

    Args:
        path: the file.
        journal: of the survey's run.
        write: writes what was found, unless it is there already.
        is_new: set another run's journal aside.
        quiet: say nothing.
    """

    path: Path
    journal: Path
    write: Callable[[Outcome, RunSession], object]
    is_new: bool = False
    quiet: bool = False

    def require_room(self) -> None:
        """Before a survey begins or goes on; raises UsageError "plan-exists"."""
        if self.path.exists():
            raise UsageError("plan-exists", path=self.path)

    def look(self, session: RunSession) -> None:
        """Say that a survey is over whose journal says so; raises UsageError where there is no room for its plan."""
        if session.made is None:
            self.require_room()
        elif not self.quiet:
            note(f"The survey is over; what it found is written to {self.path}, and sites that missed the end hear it.")

    def keep(self, outcome: Outcome, session: RunSession) -> None:
        """See `RunFile.keep`."""
        self.write(outcome, session)


def save_plan(path: Path, text: str) -> None:
    """Write a survey's plan, unless it is there already; raises UsageError "plan-exists" for another one."""
    if path.exists():
        if path.read_text(encoding="utf-8") != text:
            raise UsageError("plan-exists", path=path)
        return
    write_atomically(path, text.encode())


class StatisticsFolder(PlanFile):
    """Where statistics go, and the plan that is drafted of them; `path` is the folder."""

    def require_room(self) -> None:
        """See `PlanFile.require_room`: statistics may be written over, a plan may not."""
        if (self.path / "plan.toml").exists():
            raise UsageError("plan-exists", path=self.path / "plan.toml")
