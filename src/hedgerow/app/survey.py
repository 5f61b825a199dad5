# SPDX-License-Identifier: Apache-2.0
"""Run a survey over tables on this machine or over nodes, and write its findings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hedgerow.app.accounts import AccountOptions, open_account
from hedgerow.app.inputs import adapt_sites, ask_to_go_on, join_names, new_file, read_text
from hedgerow.app.options import CoordinatorOptions
from hedgerow.app.output import json_text, note, warn
from hedgerow.app.progress import list_contributors, status
from hedgerow.app.schema import write_beside
from hedgerow.app.statistics import draw_curves, render_page
from hedgerow.data.cells import describe_text_columns
from hedgerow.data.drafts import read_codebook
from hedgerow.data.fit import explain_lines
from hedgerow.data.omop import locate_query
from hedgerow.data.raw_cells import read_raw
from hedgerow.data.sources import Location, column_names
from hedgerow.data.units import MAX_LEFT_OUT
from hedgerow.errors import NothingFoundError, UsageError
from hedgerow.local import survey
from hedgerow.local.accounts import process_account
from hedgerow.methods.tasks import SurveyTask
from hedgerow.models.model import write_atomically
from hedgerow.plan.names import is_identifier
from hedgerow.plan.plan import Feature, Plan, read_table
from hedgerow.privacy.noise import make_noise
from hedgerow.privacy.rounding import format_up
from hedgerow.privacy.statement import NETWORK, PROCESS
from hedgerow.server.coordinator import RunSession
from hedgerow.server.release import Outcome
from hedgerow.survey.curves import SurvivalCurves
from hedgerow.survey.requests import OpenTable
from hedgerow.survey.statistics import TableStatistics

PLAN = "plan.toml"


@dataclass(frozen=True, kw_only=True)
class SurveyOptions:
    """Options of a survey: what it asks for, and its price.

    Attributes:
        epsilon, delta: of all of them together.
        noise: who adds it over nodes; None for the sites.
        label: the column whose classes are asked for by bin of each other, and that a drafted plan predicts; "": none.
        schema, codebook: files that say what is public of columns.
        survival, by: a plan's file whose label's survival curves are asked for in place of statistics, and of which
            column's categories.
        without: columns that are left out.
        unit, max_rows_per_unit: whom it protects, and rows of one that are used (1); None for single rows.
        sites_per_unit: at how many sites one may have rows.
        adapters: how sites write their tables, as for `adapt_sites`.
        train_epsilon: what the drafted plan promises; None for `usual_epsilon`.
        seed: draws the noise from a seed, for experiments.
        quiet: make no remarks.
    """

    epsilon: float
    delta: float = 1e-6
    noise: str | None = None
    label: str = ""
    schema: str | None = None
    codebook: str | None = None
    survival: str | None = None
    by: str | None = None
    without: Sequence[str] = ()
    unit: str | None = None
    max_rows_per_unit: int | None = None
    sites_per_unit: int = 1
    adapters: Sequence[str] = ()
    train_epsilon: float | None = None
    seed: int | None = None
    quiet: bool = False


@dataclass(frozen=True)
class Survey:
    """Result of a survey.

    Attributes:
        found: the statistics, and their report.
        sites: whose rows are in them.
        plan: that is drafted of them, if they make one.
        text: of its file, or of that of a plan which waits for its classes; "" for neither.
    """

    found: survey.TableSurvey
    sites: Sequence[str]
    plan: Plan | None
    text: str

    def to_dict(self) -> dict[str, object]:
        """Return the statistics and releases as JSON values; hidden statistics are null."""
        found = {"sites": list(self.sites), **self.found.statistics.to_dict(), "report": self.found.report.to_dict()}
        return {**found, "prepared": survey.write_prepared(self.found)}

    def write(self, folder: Path) -> dict[str, Path]:
        """Write the files, replacing older statistics, but never another plan."""
        texts = {
            "report.html": render_page(self.found, self.sites),
            "survey.json": json_text(self.to_dict()) + "\n",
        }
        if isinstance(self.found.statistics, SurvivalCurves):
            texts["curves.svg"] = draw_curves(self.found.statistics, is_file=True)
        if self.text:
            save_plan(folder / PLAN, self.text)
            write_beside(folder / PLAN, "plan")
        for name, text in texts.items():
            write_atomically(folder / name, text.encode())
        return {name: folder / name for name in (*texts, *([PLAN] if self.text else []))}

    def require_plan(self, label: str, kept: Path | None) -> None:
        """Raise NothingFoundError where a plan for a label was wished for and is not finished.

        Args:
            label: "" for no wish.
            kept: the plan that waits for its classes.
        """
        if self.plan is not None or not label:
            return
        spent = format_up(self.found.report.epsilon, 3)
        if len(getattr(self.found.statistics, "classes", ())) < 2:
            missing = f"neither two classes nor a range of the label {label!r} can be seen through the noise"
            said = "" if kept is None else f"Write what it lacks into {kept}: all else there is paid for, and trains. "
            raise NothingFoundError("survey-no-plan", missing=missing, spent=spent, kept=said)
        missing = "no column except the label can be seen through the noise"
        raise NothingFoundError("survey-no-plan", missing=missing, spent=spent, kept="")


def survey_over_tables(
    options: SurveyOptions,
    tables: Mapping[str, str],
    folder: Path | None = None,
    *,
    asks: bool = False,
    account: AccountOptions | None = None,
) -> Survey:
    """Survey tables read on this machine, by site.

    Args:
        folder: where they are to go.
        asks: ask at a terminal whether to go on where many rows are left out.
        account: which book it is charged to; None for the account of this process.

    Raises PolicyRefusal (code "not-agreed").
    """
    options, persons = _ask_for_persons(options)
    label = _read_label(options)
    if folder is not None and options.label:
        # Refuse an existing plan before anything is spent: its account differs, and somebody may have corrected it.
        new_file(str(folder / PLAN))
    places = adapt_sites({site: locate_query(place, persons) for site, place in tables.items()}, options.adapters)
    asked = _read_curves(options, {}) or _ask_for_statistics(options, places, {})
    charged = process_account() if account is None else open_account(account, places.values(), folder and folder / PLAN)
    with status("Reading", quiet=options.quiet):
        unit = asked.schema_plan.privacy.unit
        read = {site: read_raw(place, asked.columns, unit) for site, place in places.items()}
    for site, table in read.items():
        rows, odd = table.rows, table.note_cells(asked.columns)
        is_lost = rows.share_left_out > MAX_LEFT_OUT
        if is_lost or not options.quiet or rows.left_out or odd:
            text = " ".join(filter(None, (rows.text(), odd)))
            (warn if is_lost or odd else note)(f"Private, for the site {site} only: {text}")
        if "data-ragged-row" in rows.left_out:
            _, cause = next(explain_lines(len(column_names(places[site])), rows))
            note(f"Private, for the site {site} only: {cause}.")
    if asks and any(table.rows.share_left_out > MAX_LEFT_OUT for table in read.values()):
        ask_to_go_on()
    with status("Adding up", quiet=options.quiet):
        noise = make_noise(options.seed, os.urandom)
        found = survey.survey_tables(asked, read, noise, charged)
        state = charged.read_state(found.report.unit, found.report.delta)
        found = replace(found, report=found.report.made(PROCESS, len(read)).with_account(state))
        made = _build_survey(options, found, list(read), label, persons)
    texts = set(list_found_texts(found.statistics))
    for site, table in read.items():
        shares = {own.place.column: own.share_with_digits for own in table.columns if own.place.column in texts}
        # What was found to be text is named among the results; the owner alone hears of digits.
        if said := describe_text_columns({name: share for name, share in shares.items() if share}):
            note(f"Private, for the site {site} only: {said}")
    return made


def list_found_texts(statistics: TableStatistics | SurvivalCurves) -> list[str]:
    """Return the names of undeclared columns that the releases show to be text."""
    columns = statistics.columns if isinstance(statistics, TableStatistics) else ()
    return [column.name for column in columns if column.kind == "text" and not column.is_declared]


def survey_over_nodes(
    options: SurveyOptions,
    coordinator: CoordinatorOptions,
    folder: Path,
    header: str | None = None,
    *,
    is_new: bool = False,
) -> Survey:
    """Survey the nodes of a roster as their coordinator, and write the results into the folder.

    Args:
        header: a table whose header names the columns; None for those that are declared.
        is_new: set another run's journal aside.
    """
    # Imported here, because grpc is an extra that only a party that dials or listens needs.
    from hedgerow.app.coordinator import serve

    options, persons = _ask_for_persons(options)
    label, noise = _read_label(options), {"noise": options.noise or "distributed"}
    places = adapt_sites({} if header is None else {"": header}, options.adapters)
    asked = _read_curves(options, noise) or _ask_for_statistics(options, places, noise)
    task = SurveyTask(asked)

    def conclude(outcome: Outcome, session: RunSession) -> Survey:
        statistics = asked.statistics(session.run.releases, session.run.ledger)
        found = survey.table_survey(asked, statistics, outcome.ledger, make_noise(coordinator.seed, os.urandom))
        report = found.report.made(NETWORK, len(session.run.sites))
        found = replace(found, run=session.run.run_id, report=report)
        return _build_survey(options, found, list_contributors(session), label, persons)

    def write(outcome: Outcome, session: RunSession) -> None:
        conclude(outcome, session).write(folder)

    file = SurveyFolder(folder, folder / "survey.journal", write, is_new, options.quiet)
    return conclude(*serve(coordinator, task.plan, file, task))


def _build_survey(
    options: SurveyOptions,
    found: survey.TableSurvey,
    sites: Sequence[str],
    label: dict[str, Any] | None,
    persons: Plan | None,
) -> Survey:
    plan = survey.draft_plan(found, len(sites), options.train_epsilon, label)
    if plan is not None and persons is not None and plan.label == persons.label:
        plan = replace(plan, omop=persons.omop)
    text = survey.open_plan_text(found, len(sites), options.train_epsilon) if plan is None else survey.plan_text(plan)
    return Survey(found, sites, plan, text)


# What is asked for ----------------------------------------------------------------------------------------------------


def _ask_for_persons(options: SurveyOptions) -> tuple[SurveyOptions, Plan | None]:
    """Return the options, set to persons if the schema has [omop], and the plan of the persons' rows."""
    declared = options.schema or options.survival
    table = {} if declared is None else read_table(read_text(declared))
    rows = Plan.from_dict(table) if "omop" in table else None
    if rows is not None and options.unit is None:
        privacy = rows.privacy
        options = replace(
            options,
            unit=privacy.unit,
            max_rows_per_unit=privacy.max_rows_per_unit,
            sites_per_unit=privacy.sites_per_unit,
        )
    return options, rows


def _read_label(options: SurveyOptions) -> dict[str, Any] | None:
    """Read the schema's [label] if it is a number; it is checked here before anything is spent."""
    is_declared = options.schema is not None and bool(options.label)
    return survey.read_numeric_label(read_text(str(options.schema)), options.label) if is_declared else None


def _read_curves(options: SurveyOptions, noise: Mapping[str, str]) -> OpenTable | None:
    """Read the request for curves in place of statistics; None if there is none."""
    if options.survival is None:
        return None
    return survey.ask_curves(read_text(options.survival), options.by, _draft_privacy(options, noise))


def _ask_for_statistics(options: SurveyOptions, places: Mapping[str, Location], noise: Mapping[str, str]) -> OpenTable:
    """Build the request for statistics from the headers of tables, or without any from the declarations."""
    schema, without = _read_declarations(options, column_names(next(iter(places.values()))) if places else None)
    if options.unit not in (None, "record"):
        without.append(str(options.unit))
    if places:
        columns, unread = survey.list_asked_columns(places, schema, without)
        _say_unread(unread)
    else:
        columns = tuple(column for name, column in schema.items() if name not in without)
    if not columns:
        raise UsageError("survey-no-columns")
    names = [column.name for column in columns]
    if options.label and options.label not in names:
        raise UsageError(
            "unknown-name", code="survey-column", kind="column", name=options.label, known=join_names(names)
        )
    if options.label and len(names) == 1:
        # Refuse now: a plan needs features, and otherwise this would show only after paying.
        raise UsageError("survey-no-columns")
    return OpenTable.of(columns, options.label or "", _draft_privacy(options, noise))


def _read_declarations(options: SurveyOptions, names: Sequence[str] | None) -> tuple[dict[str, Feature], list[str]]:
    """Read columns' declarations, the schema before the code book, and the columns to leave out.

    Args:
        names: of the columns that there are; None for those that are declared.
    """
    schema = {} if options.schema is None else survey.read_schema(read_text(options.schema))
    book = {} if options.codebook is None else read_codebook(options.codebook)
    declared = survey.schema_from_book(book)
    if names is None:
        names = list(dict.fromkeys([*book, *schema]))
        declared = {name: declared.get(name, Feature(name=name, type="")) for name in book}
    own = {options.unit, options.label, *schema}
    # A code book may describe a whole study, so ignore its columns that this table does not have.
    identifiers = [name for name in names if is_identifier(name, book) and name not in own]
    if identifiers and not options.quiet:
        hint = "" if options.unit else " If a person may have several rows, --unit COLUMN protects the person."
        note(f"Left out, as identifiers or free text by their names or the code book: {join_names(identifiers)}.{hint}")
    known = {name: column for name, column in declared.items() if name in names and name != options.unit}
    return {**known, **schema}, [*options.without, *identifiers]


def _say_unread(names: Sequence[str]) -> None:
    if names:
        note(
            f"Left out, for their types or for names that two columns have: {join_names(names)}. Convert a type that "
            "is not read, and tell two columns apart by their names in the header, or by #repeated=number behind a CSV "
            "file's name."
        )


def _draft_privacy(options: SurveyOptions, noise: Mapping[str, str]) -> dict[str, object]:
    """Return the promise as a plan's [privacy]."""
    promise = {"epsilon": options.epsilon, "delta": options.delta, **noise}
    if options.unit is None:
        return promise
    rows = {"max_rows_per_unit": options.max_rows_per_unit or 1, "sites_per_unit": options.sites_per_unit}
    return {**promise, "unit": options.unit, **rows}


# Where it goes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SurveyFolder:
    """Destination of statistics, and of the plan drafted from them; a `RunFile`.

    Attributes:
        path: the folder.
        journal: of the survey's run.
        write: writes what was found; of a plan only one that is not there already.
        is_new: set another run's journal aside.
        quiet: say nothing.
    """

    path: Path
    journal: Path
    write: Callable[[Outcome, RunSession], object]
    is_new: bool = False
    quiet: bool = False

    def agreed(self) -> None:
        """Do nothing: a survey leaves no plan that sites have agreed to."""

    def require_room(self) -> None:
        """Check that no plan is in the way; raise UsageError "plan-exists". Statistics may be overwritten."""
        if (self.path / PLAN).exists():
            raise UsageError("exists", code="plan-exists", path=self.path / PLAN)

    def look(self, session: RunSession) -> None:
        """Announce a survey that is over by its journal; raise UsageError if there is no room for its plan."""
        if session.run.outcome is None:
            self.require_room()
        elif not self.quiet:
            note(f"The survey is over; what it found is written to {self.path}, and sites that missed the end hear it.")

    def keep(self, outcome: Outcome, session: RunSession) -> None:
        """Write the statistics."""
        self.write(outcome, session)


def save_plan(path: Path, text: str) -> None:
    """Write a survey's plan, unless it is there already; raises UsageError "plan-exists" for another one."""
    if path.exists():
        if path.read_text(encoding="utf-8") != text:
            raise UsageError("exists", code="plan-exists", path=path)
        return
    write_atomically(path, text.encode())
