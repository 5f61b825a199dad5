"""``hedgerow survey``: what a table holds, in noisy sums, before anyone trains; `plan init --private` does the same."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hedgerow.app.inputs import adapted_sites, listed, named_sites, new_file, output_folder, read_text
from hedgerow.app.output import WIDEST, json_text, note, print_facts, print_json, typed, warn, warn_seeded, wrapped
from hedgerow.app.progress import sites_of, status
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
from hedgerow.models.plots import CLASS_COLOURS
from hedgerow.plan.names import is_identifier
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.server.coordinator import RunSession
from hedgerow.survey.curves import Curve, SurvivalCurves
from hedgerow.survey.kinds import number_like
from hedgerow.survey.program import Range
from hedgerow.survey.requests import OpenTable
from hedgerow.survey.statistics import (
    BAND,
    LEAST_RECORDS,
    AskedColumn,
    Column,
    Group,
    Noisy,
    TableStatistics,
    counted,
    short,
    two_digits,
)

SUBJECT = "these statistics"
_PLAN = "plan.toml"
NOT_SHOWN = "-"
_BLOCKS = " ▁▂▃▄▅▆▇█"
_HIDDEN = "░"
_MOST_CATEGORIES = 6
_FEW_RECORDS = 2000.0
"""Below so many records times epsilon, little stands out of the noise."""


def run(arguments: argparse.Namespace) -> None:
    """Make the statistics; print them, or write them into a folder as well."""
    _check(arguments)
    folder = None if arguments.out is None else output_folder(arguments.out)
    # Before anything is spent: it may be wrong.
    is_declared = bool(arguments.schema and arguments.label)
    label = numeric_label_of(read_text(arguments.schema), arguments.label) if is_declared else None
    found, sites = _over_nodes(arguments) if arguments.federated else _over_tables(arguments, folder)
    plan = drafted_plan(found, len(sites), arguments.train_epsilon, label)
    text = open_plan_text(found, len(sites), arguments.train_epsilon) if plan is None else plan_text(plan)
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


def _over_nodes(arguments: argparse.Namespace) -> tuple[TableSurvey, list[str]]:
    """Statistics of what the nodes of a roster hold, asked for as their coordinator."""
    # Extras: only a party that dials or listens needs grpc.
    from hedgerow.app import coordinator

    asked, noise = _curves(arguments) or _asked_of_nodes(arguments), _noise(arguments)
    task, folder = SurveyTask(asked), Path(arguments.out)
    journal = Path(arguments.journal or folder / "survey.journal")
    file = StatisticsFolder(folder, journal, arguments.new_run, arguments.json)
    outcome, session = coordinator.serve(filled(coordinator.CoordinatorOptions, arguments), task.plan, file, task)
    found = asked.statistics(session.run.releases, outcome.ledger)
    return replace(table_survey(asked, found, outcome.ledger, noise), run=session.run.run_id), sites_of(session)


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


# The terminal --------------------------------------------------------------------------------------------------------


def print_statistics(console: Console, found: TableStatistics | SurvivalCurves, names: Sequence[str]) -> None:
    """The statistics for a person."""
    sites = f"{len(names)} {'sites' if len(names) > 1 else 'site'}: {listed(names)}"
    print_facts([("sites", sites), ("records", f"about {count_text(found.n_records)}")])
    console.print()
    if isinstance(found, SurvivalCurves):
        _print_curves(console, found)
        return
    numbers = [column for column in found.columns if column.kind == "number"]
    plain, dates = ([own for own in numbers if own.is_date == is_date] for is_date in (False, True))
    odd = any(column.odd.is_shown for column in numbers)
    for title, table, row, columns in (
        ("Numbers", _numbers("mean", odd=odd), partial(_number_row, odd=odd), plain),
        ("Dates", _numbers(odd=odd), partial(_date_row, odd=odd), dates),
        ("Text", _table("missing", "categories"), _text_row, [own for own in found.columns if own.kind == "text"]),
    ):
        if columns:
            for column in columns:
                table.add_row(*row(column))
            table.title = title
            console.print(table)
    unknown = [column.name for column in found.columns if column.kind == "unknown"]
    if unknown:
        console.print(Text(f"Too little stands out of the noise in, and a drafted plan lacks: {listed(unknown)}\n"))
    if found.classes:
        console.print(_rates_table(found))
    meaning = (
        f"± is the noise (95 %). {NOT_SHOWN} and {_HIDDEN} are not shown, and may be more than none: they would rest "
        f"on fewer than {LEAST_RECORDS:.0f} records, or on noise. Beyond | are values outside the bounds."
    )
    console.print(Text(meaning + "\n", style="dim"))


def _print_curves(console: Console, found: SurvivalCurves) -> None:
    """By end of an interval, who is without the event, and how many were at risk in it: a table for each group."""
    for curve in found.curves:
        # Side by side, three groups would not fit a terminal.
        table = _table(f"without {found.event}", "at risk", first=f"{found.time} to")
        table.title = f"{found.by}: {curve.group}" if found.by else "All"
        for place, end in enumerate(found.ends):
            table.add_row(short(end), *curve_cells(curve, place))
        console.print(table)
    meaning = (
        f"Brackets: 95 %, by the noise and the sample. {NOT_SHOWN} would rest on fewer than {LEAST_RECORDS:.0f} "
        "records, or on noise."
    )
    console.print(Text(meaning + "\n", style="dim"))


_UNBROKEN = ("missing", "text", "histogram", "by bin")
"""Columns that are never broken over lines. All others are, the widest first: none goes away for another's width."""


def _table(*columns: str, first: str = "column") -> Table:
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold", style="green", min_width=8, max_width=18)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name in _UNBROKEN)
    return table


def _numbers(*means: str, odd: bool) -> Table:
    """Args: odd: whether some column has cells that are no numbers, in so many of them that it is shown."""
    return _table("missing", *(["text"] if odd else []), *means, "5 %", "median", "95 %", "histogram")


def _number_row(column: Column, *, odd: bool) -> list[str | Text]:
    mean = column.mean
    said = NOT_SHOWN if mean is None else f"{short(mean.value)} ±{two_digits(1.96 * mean.deviation)}"
    bars = Text(sparkline(column, 8 if odd else 14), style="green")
    return [column.name, *_absent(column, odd), said, *_quantiles(column), bars]


def _date_row(column: Column, *, odd: bool) -> list[str | Text]:
    """Without a mean: dates are wide, and the median says when."""
    return [column.name, *_absent(column, odd), *_quantiles(column), Text(sparkline(column, 8), style="green")]


def _absent(column: Column, odd: bool) -> list[str]:
    return [percent(column.missing), *([percent(column.odd)] if odd else [])]


def _quantiles(column: Column) -> list[str]:
    at = {own.share: own for own in column.quantiles}
    found = [at.get(share) for share in (0.05, 0.5, 0.95)]
    return [NOT_SHOWN if own is None else column.said(own.value) for own in found]


def sparkline(column: Column, n_bars: int = 14) -> str:
    """A histogram in one line: even bins between the bounds, and what lies outside them where it is shown."""
    if column.range is None:
        return ""
    low, high = column.range.bounds
    if column.range.is_whole:
        n_bars = int(min(n_bars, high - low + 1))
        low, high = low - 0.5, high + 0.5
    ends = [low + (high - low) * place / n_bars for place in range(n_bars + 1)]
    heights, hidden = [0.0] * n_bars, [0.0] * n_bars
    for group in column.groups[1:-1]:
        width = group.high - group.low
        for place in range(n_bars):
            common = max(0.0, min(group.high, ends[place + 1]) - max(group.low, ends[place]))
            if group.count.is_shown:
                heights[place] += group.count.value * common / width
            else:
                hidden[place] += common
    outside = [group.count.value if group.count.is_shown else 0.0 for group in (column.groups[0], column.groups[-1])]
    top = max(*heights, *outside)
    if not top > 0:
        return _HIDDEN * n_bars
    # A bar of which most is not shown would say less than there is.
    is_hidden = [own > (ends[1] - ends[0]) / 2 for own in hidden]
    bars = "".join(
        _HIDDEN if own else _BLOCKS[math.ceil(8 * height / top)] for own, height in zip(is_hidden, heights, strict=True)
    )
    below, above = (_BLOCKS[math.ceil(8 * own / top)] if own else "" for own in outside)
    return (f"{below}|" if below else "") + bars + (f"|{above}" if above else "")


def _text_row(column: Column) -> list[str]:
    return [column.name, percent(column.missing), categories_text(column)]


def categories_text(column: Column) -> str:
    """The largest categories of a column, with their shares."""
    if column.is_hashed:
        return "no common text was found"
    shown = sorted((group for group in column.groups if group.count.is_shown), key=lambda own: -own.count.value)
    total = max(column.present.value, 1.0)
    said = [f"{group.name} {percent(group.count.over(total))}" for group in shown[:_MOST_CATEGORIES]]
    more, n_hidden = len(shown) - _MOST_CATEGORIES, len(column.groups) - len(shown)
    rest = (f" and {more} more" if more > 0 else "") + (f"; {n_hidden} not shown" if said and n_hidden else "")
    return ", ".join(said) + rest or NOT_SHOWN


def _rates_table(found: TableStatistics) -> Table:
    """By column the bins with the lowest and the highest share of the last class; the clearest columns first."""
    table = _table("lowest", "highest", "by bin")
    table.title = f"Share of {found.label} = {found.classes[-1]}"
    rated = [column for column in found.columns if len(column.shown_rates) > 1]
    for column in sorted(rated, key=lambda own: -clearness(own)):
        groups = sorted(column.shown_rates, key=lambda own: own.rates[-1].value)
        line = Text(_rate_line(column), style="green")
        table.add_row(column.name, _rate_text(groups[0]), _rate_text(groups[-1]), line)
    return table


def clearness(column: Column) -> float:
    """How many standard deviations of the noise the label's shares in a column's bins differ by."""
    shown = [group.rates[-1] for group in column.shown_rates]
    if len(shown) < 2:
        return 0.0
    low, high = min(shown, key=lambda own: own.value), max(shown, key=lambda own: own.value)
    spread = math.hypot(low.deviation, high.deviation)
    return (high.value - low.value) / spread if spread else math.inf


def _rate_text(group: Group) -> str:
    rate = group.rates[-1]
    return f"{percent(rate)} ±{100 * 1.96 * rate.deviation:.0f} at {group.name}"


def _rate_line(column: Column) -> str:
    heights = [group.rates[-1].value if group.rates[-1].is_shown else None for group in column.rates]
    return "".join(_HIDDEN if height is None else _BLOCKS[max(1, math.ceil(8 * height))] for height in heights)


def percent(share: Noisy) -> str:
    """A share for a person."""
    return f"{100 * min(max(share.value, 0.0), 1.0):.0f} %" if share.is_shown else NOT_SHOWN


def count_text(count: Noisy) -> str:
    """A count for a person."""
    return f"{count.value:,.0f} ± {1.96 * count.deviation:,.0f}" if count.is_shown else NOT_SHOWN


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


# The page -------------------------------------------------------------------------------------------------------------
# One HTML file: pictures are inline SVG, and nothing is asked of another host.

WIDTH, HEIGHT, FOOT, END = 320, 120, 18, 14
"""Units of a picture, of the room for its axis, and of a bar for what is outside the bounds."""
SKEWED = 0.12
"""A column whose median lies lower than this share of its bounds gets a logarithmic axis."""
MOST_BARS = 12
_STYLE = """
:root{color-scheme:light dark;--paper:#fbfcfb;--card:#fff;--ink:#1f2a24;--muted:#5f6963;--line:#e2e7e4;--fill:#7fb695;
--deep:#2e7d4f;--warn:#9a5a12}
@media (prefers-color-scheme:dark){:root{--paper:#141a17;--card:#1b231f;--ink:#e4ebe7;--muted:#9aa69f;--line:#2c3832;
--fill:#4d8a66;--deep:#8fd0aa;--warn:#e0a96a}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:72rem;margin:0 auto;padding:1.5rem 1rem 3rem}
h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.15rem;margin:2rem 0 .6rem}
h3{font-size:1rem;margin:0;overflow-wrap:anywhere}
p{margin:.3rem 0}.muted{color:var(--muted)}.void{color:var(--warn);font-weight:600}
.facts{display:flex;flex-wrap:wrap;gap:.5rem 2rem;margin:1rem 0}.facts b{display:block;font-size:1.25rem}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(19rem,100%),1fr));gap:1rem;align-items:start}
.card{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:.8rem;min-width:0}
svg{width:100%;height:auto;display:block;margin:.5rem 0}
svg text{font:9px system-ui,sans-serif;fill:var(--muted)}
.bar{fill:var(--fill)}.end{fill:var(--deep);opacity:.6}.hidden{fill:url(#hidden)}
#hidden path{stroke:var(--muted);stroke-width:1}.swatch{display:inline-block;width:1.6em;height:.8em;margin:0 .2em}
.err{stroke:var(--deep);stroke-width:1.1}.axis{stroke:var(--line)}.dot{fill:var(--deep)}
dl{display:grid;grid-template-columns:auto 1fr;gap:0 .8rem;margin:0;font-size:.85rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.85rem}.wide{overflow-x:auto}
th,td{padding:.15rem .7rem;text-align:right;border-bottom:1px solid var(--line)}th{color:var(--muted);font-weight:500}
dt{color:var(--muted)}dd{margin:0;text-align:right;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);border:1px solid var(--line);border-radius:.6rem;
padding:.8rem;font-size:.8rem}
"""


_HATCHING = (
    '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs><pattern id="hidden" width="5" '
    'height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0V5"/></pattern></defs></svg>'
)
_SWATCH = '<svg class="swatch" viewBox="0 0 24 12"><rect class="hidden" width="24" height="12"/></svg>'


def page_of(survey: TableSurvey, sites: Sequence[str], subject: str) -> str:
    """The page.

    Args: subject: what the report calls the statistics.
    """
    found, report = survey.statistics, survey.report
    if isinstance(found, SurvivalCurves):
        title, body = "Kaplan-Meier curves", _curve_cards(found)
        reading = "Between ends of intervals curves are drawn straight. They end where too few are left."
    else:
        cards = "\n".join(_card(column) for column in found.columns)
        legend = (
            f'<p class="muted">{_SWATCH} is not shown, for it would rest on fewer than {LEAST_RECORDS:.0f} records, or '
            "on noise. It is not nothing, but a count of up to about that height. Dark bars at the ends are values "
            "outside the bounds.</p>"
        )
        title = "Statistics before training"
        body = f'<h2>Columns</h2>{legend}<div class="cards">{cards}</div>' + _rates(found)
        reading = "Means and quantiles come from the bins."
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>Statistics</title><style>{_STYLE}</style></head><body><main>",
        _HATCHING,
        f"<h1>{title}</h1>",
        f'<p class="muted">Noisy sums over {len(sites)} site{"s" if len(sites) > 1 else ""}: '
        f"{escape(', '.join(sites))}</p>",
        _facts(survey),
        body,
        f"<h2>What it cost</h2><pre>{escape(report.text(subject))}</pre>",
        f'<p class="muted">Bars have bands, and numbers brackets or ±, where the noise leaves them with a chance of '
        f"95 %. A dash is for what rests on fewer than {LEAST_RECORDS:.0f} records, or on noise. {reading}</p>",
        "</main></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _facts(survey: TableSurvey) -> str:
    found, report = survey.statistics, survey.report
    records = _count(found.n_records)
    facts = [("records, about", records)]
    facts += [] if isinstance(found, SurvivalCurves) else [("columns", str(len(found.columns)))]
    facts += [("epsilon", short(report.epsilon)), ("delta", f"{report.delta:g}")]
    shown = "".join(f'<div><b>{escape(value)}</b><span class="muted">{name}</span></div>' for name, value in facts)
    voided = "".join(f'<p class="void">Void: {escape(reason)}.</p>' for reason in report.voided_by)
    return f'<div class="facts">{shown}</div>{voided}'


def _card(column: Column) -> str:
    title = f"<h3>{escape(column.name)}</h3>"
    facts = [("missing", _percent(column.missing))]
    picture = '<p class="muted">Too little stands out of the noise.</p>'
    if column.kind == "number" and column.range is not None:
        picture = _histogram(column)
        low, high = column.range.bounds
        if column.odd.is_shown:
            facts.append(("no number", _percent(column.odd)))
        facts.append(("bounds", f"{column.said(low)} to {column.said(high)}"))
        ends = zip(("below them", "above them"), (column.groups[0], column.groups[-1]), strict=True)
        facts += [(name, _count(own.count)) for name, own in ends if own.count.is_shown]
        facts.append(("mean", _mean(column)))
        at = {own.share: own for own in column.quantiles}
        for share, name in ((0.05, "5 %"), (0.25, "25 %"), (0.5, "median"), (0.75, "75 %"), (0.95, "95 %")):
            own = at.get(share)
            band = "" if own is None else f"{column.said(own.value)} [{column.said(own.low)}, {column.said(own.high)}]"
            facts.append((name, band or "-"))
    elif column.kind == "text":
        picture = _bars(column)
        if column.is_hashed:
            facts.append(("texts", "no common one was found"))
    rows = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    return f'<section class="card">{title}{picture}<dl>{rows}</dl></section>'


def _mean(column: Column) -> str:
    if column.mean is None:
        return "-"
    unit = " days" if column.is_date else ""
    return f"{column.said(column.mean.value)} ± {two_digits(BAND * column.mean.deviation)}{unit}"


# Pictures ------------------------------------------------------------------------------------------------------------


class _Axis:
    """Places of numbers between two bounds, 0 to WIDTH; logarithmic where most values are near zero."""

    def __init__(self, low: float, high: float, median: float | None) -> None:
        self.low, self.high = low, high
        self.unit = 0.0
        if median is not None and low >= 0 and (median - low) / (high - low) < SKEWED:
            self.unit = max(median - low, (high - low) / 1000)

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if not self.unit:
            return (value - self.low) / (self.high - self.low) * WIDTH
        return math.asinh((value - self.low) / self.unit) / math.asinh((self.high - self.low) / self.unit) * WIDTH

    def ticks(self) -> list[float]:
        """Numbers to be written below."""
        if not self.unit:
            return [self.low + (self.high - self.low) * place / 4 for place in range(5)]
        top = math.asinh((self.high - self.low) / self.unit)
        return [self.low + self.unit * math.sinh(top * place / 4) for place in range(5)]


def _histogram(column: Column) -> str:
    """Areas are counts; a bin that is not shown is hatched up to its limit; at the ends, what is outside the bounds."""
    if column.range is None:
        return ""
    low, high = column.range.bounds
    if column.range.is_whole:
        low, high = low - 0.5, high + 0.5
    median = next((own.value for own in column.quantiles if own.share == 0.5), None)
    axis = _Axis(low, high, median)
    bars = []
    for group in column.groups[1:-1]:
        left = axis(group.low)
        bars.append((left, max(axis(group.high) - left, WIDTH / 60), group, "bar"))
    ends = ((-END - 3, column.groups[0]), (WIDTH + 3, column.groups[-1]))
    bars += [(left, END, group, "end") for left, group in ends if group.count.is_shown]
    shown = [(own.count.value + BAND * own.count.deviation) / width for _, width, own, _ in bars if own.count.is_shown]
    if not shown:
        return '<p class="muted">Too little stands out of the noise.</p>'
    parts = "".join(_bar(left, width, group, max(shown), look) for left, width, group, look in bars)
    return _svg(parts + _ticks(column, axis), HEIGHT + FOOT, f"Histogram of {column.name}", HEIGHT, margin=END + 3)


def _ticks(column: Column, axis: _Axis) -> str:
    """The numbers or dates below a histogram; of whole numbers each once."""
    said: dict[str, float] = {}
    found = column.range or Range(0.0, 1.0)
    low, high = found.bounds
    for tick in axis.ticks():
        is_rounded = found.is_whole or column.is_date
        value = min(max(round(tick), low), high) if is_rounded else float(f"{tick:.3g}")
        said.setdefault(column.said(value), value)
    places = {text: axis(value) for text, value in said.items()}
    return "".join(
        f'<text x="{min(max(place, 2), WIDTH - 2):.1f}" y="{HEIGHT + 12}" '
        f'text-anchor="{"start" if place < 12 else "end" if place > WIDTH - 12 else "middle"}">{text}</text>'
        for text, place in places.items()
    )


def _bar(left: float, width: float, group: Group, top: float, look: str) -> str:
    count, gap = group.count, 0.6 if width > 3 else 0.0
    if not count.is_shown:
        height = min(max(count.limit / width / top * HEIGHT, 5.0), HEIGHT)
        title = f"<title>{escape(group.name)}: not shown, most likely below {count.limit:,.0f}</title>"
        return (
            f'<g>{title}<rect class="hidden" x="{left + gap / 2:.1f}" y="{HEIGHT - height:.1f}" '
            f'width="{max(width - gap, 0.5):.1f}" height="{height:.1f}"/></g>'
        )
    height = count.value / width / top * HEIGHT
    reach = BAND * count.deviation / width / top * HEIGHT
    middle, upper = left + width / 2, HEIGHT - height
    title = f"<title>{escape(group.name)}: {escape(_count(count))}</title>"
    return (
        f'<g>{title}<rect class="{look}" x="{left + gap / 2:.1f}" y="{upper:.1f}" width="{max(width - gap, 0.5):.1f}" '
        f'height="{height:.1f}"/><line class="err" x1="{middle:.1f}" x2="{middle:.1f}" '
        f'y1="{max(upper - reach, 0):.1f}" y2="{min(upper + reach, HEIGHT):.1f}"/></g>'
    )


def _bars(column: Column) -> str:
    """Categories by their counts, the largest first."""
    shown = sorted((group for group in column.groups if group.count.is_shown), key=lambda own: -own.count.value)
    if column.is_hashed or not shown:
        return '<p class="muted">No category stands out of the noise.</p>'
    total = max(column.present.value, 1.0)
    hidden = [group for group in column.groups if not group.count.is_shown]
    rows = [(group.name, group.count.over(total)) for group in [*shown, *hidden][:MOST_BARS]]
    top = max(group.count.over(total).value + BAND * group.count.over(total).deviation for group in shown)
    picture = _lines(rows, top, f"Shares of {column.name}", [group.count.limit / total for group in hidden])
    more = len(column.groups) - MOST_BARS
    return picture + (f'<p class="muted">and {more} more</p>' if more > 0 else "")


def _lines(rows: Sequence[tuple[str, Noisy]], top: float, title: str, limits: Sequence[float] = ()) -> str:
    """Horizontal bars of shares, with their names.

    Args: limits: below which those may be that are not shown, in their order; without, they may be anything.
    """
    open_ends = iter(limits)
    left, step = 100, 16
    room = WIDTH - left - 34
    parts = []
    for place, (name, share) in enumerate(rows):
        y = place * step
        width = min(max(share.value if share.is_shown else next(open_ends, top), 0.0) / top, 1.0) * room
        reach = BAND * share.deviation / top * room if share.is_shown else 0.0
        text = escape(name if len(name) <= 18 else name[:17] + "…")
        ends = f'x1="{left + max(width - reach, 0):.1f}" x2="{left + min(width + reach, room):.1f}"'
        parts.append(
            f'<text x="{left - 5}" y="{y + 11}" text-anchor="end">{text}<title>{escape(name)}</title></text>'
            f'<rect class="{"bar" if share.is_shown else "hidden"}" x="{left}" y="{y + 3}" width="{width:.1f}" '
            f'height="{step - 5}"/>'
            + (f'<line class="err" {ends} y1="{y + 8.5}" y2="{y + 8.5}"/>' if share.is_shown else "")
            +             f'<text x="{WIDTH}" y="{y + 11}" text-anchor="end">{_percent(share)}</text>'
        )
    return _svg("".join(parts), len(rows) * step, title)


def _svg(content: str, height: int, title: str, axis: int | None = None, margin: int = 0) -> str:
    line = "" if axis is None else f'<line class="axis" x1="0" x2="{WIDTH}" y1="{axis}" y2="{axis}"/>'
    view = f"{-margin} 0 {WIDTH + 2 * margin} {height}"
    return f'<svg viewBox="{view}" role="img" aria-label="{escape(title)}">{line}{content}</svg>'


def _rates(found: TableStatistics) -> str:
    """The label by bin of each column; of several classes, those of each."""
    if not found.classes:
        return ""
    shown = found.classes[-1:] if len(found.classes) == 2 else found.classes
    cards = []
    every = [group.rates[-1] for column in found.columns for group in column.shown_rates]
    # One scale for all pictures of one class.
    top = max((rate.value + BAND * rate.deviation for rate in every), default=1.0) if len(shown) == 1 else None
    for column in found.columns:
        if len(column.shown_rates) < 2:
            continue
        # Beyond the bounds there is mostly nothing.
        groups = [own for own in column.rates if own.rates[0].is_shown or not math.isinf(own.high - own.low)]
        pictures = [_rate_picture(column, groups, name, found.classes.index(name), top) for name in shown]
        cards.append(f'<section class="card"><h3>{escape(column.name)}</h3>{"".join(pictures)}</section>')
    what = f"{escape(found.label)} = {escape(shown[0])}" if len(shown) == 1 else f"each class of {escape(found.label)}"
    return f'<h2>Share of {what}, by bin</h2><div class="cards">{"".join(cards)}</div>' if cards else ""


def _rate_picture(column: Column, groups: Sequence[Group], name: str, place: int, top: float | None) -> str:
    """Args: top: where the scale ends; None for 1, with the name of the class above."""
    rows = [(group.name, group.rates[place]) for group in groups]
    title = f"Share of {name} by {column.name}"
    head = f'<p class="muted">{escape(name)}</p>' if top is None else ""
    return head + _lines(rows, top or 1.0, title)


# Curves --------------------------------------------------------------------------------------------------------------

_PLOT = (44.0, 26.0, 580.0, 280.0)
"""Left, top, width and height of the area of curves."""


def picture_of(found: SurvivalCurves, *, is_file: bool = False) -> str:
    """Curves with their 95 % bands, as SVG within a page, or as a file of its own."""
    left, top, width, height = _PLOT
    muted = 'fill="#7c8781" font-family="system-ui,sans-serif" font-size="11"'
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = top + height * (1 - share)
        parts.append(
            f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#9aa69f" opacity=".35"/>'
        )
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" {muted}>{share:.0%}</text>')
    for place in range(5):
        x, value = left + width * place / 4, found.ends[-1] * place / 4
        parts.append(f'<text x="{x:.1f}" y="{top + height + 16}" text-anchor="middle" {muted}>{short(value)}</text>')
    middle = left + width / 2
    parts.append(f'<text x="{middle}" y="{top + height + 33}" text-anchor="middle" {muted}>{escape(found.time)}</text>')
    names = [curve.group or f"without {found.event}" for curve in found.curves]
    for place, (name, curve) in enumerate(zip(names, found.curves, strict=True)):
        colour = CLASS_COLOURS[place % len(CLASS_COLOURS)]
        parts.append(_curve(curve, found.ends, colour))
        x = left + width * place / len(names)
        text = escape(name if len(name) <= 18 else name[:17] + "…")
        parts.append(f'<rect x="{x:.1f}" y="7" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 19:.1f}" y="13" {muted}>{text}</text>')
    size = f"0 0 {left + width + 16:.0f} {top + height + 42:.0f}"
    title = escape(f"Without {found.event}" + (f", by {found.by}" if found.by else ""))
    namespace = 'xmlns="http://www.w3.org/2000/svg" ' if is_file else ""
    head = f'<svg {namespace}viewBox="{size}" role="img" aria-label="{title}">'
    return head + "".join(parts) + "</svg>\n"


def _curve(curve: Curve, ends: Sequence[float], colour: str) -> str:
    left, top, width, height = _PLOT

    def points(values: Sequence[float]) -> list[str]:
        places = [0.0, *ends[: len(values)]]
        pairs = zip(places, [1.0, *values], strict=True)
        return [f"{left + width * at / ends[-1]:.1f},{top + height * (1 - value):.1f}" for at, value in pairs]

    band = " ".join([*points(curve.high), *points(curve.low)[::-1]])
    line = " ".join(points([own.value for own in curve.survival]))
    return (
        f'<polygon points="{band}" fill="{colour}" opacity=".16"/>'
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'
    )


def _curve_cards(found: SurvivalCurves) -> str:
    """The picture, and the numbers at the ends of the intervals."""
    names = [curve.group or "all" for curve in found.curves]
    head = "".join(f"<th>{escape(name)}</th><th>at risk</th>" for name in names)
    rows = []
    for place, end in enumerate(found.ends):
        cells = "".join(f"<td>{cell}</td>" for curve in found.curves for cell in curve_cells(curve, place))
        rows.append(f"<tr><th>{short(end)}</th>{cells}</tr>")
    title = escape(f"Without {found.event}" + (f", by {found.by}" if found.by else ""))
    table = f"<table><tr><th>{escape(found.time)} to</th>{head}</tr>{''.join(rows)}</table>"
    return f'<h2>{title}</h2><section class="card">{picture_of(found)}</section><div class="wide">{table}</div>'


def curve_cells(curve: Curve, place: int) -> list[str]:
    """What is said of a curve at the end of an interval: the share with its band, and the records at risk in it."""
    if place >= len(curve.survival):
        return ["-", "-"]
    said = f"{curve.survival[place].value:.1%} [{curve.low[place]:.1%}, {curve.high[place]:.1%}]"
    return [said, f"{curve.at_risk[place].value:,.0f}"]


def _percent(share: Noisy) -> str:
    return f"{100 * min(max(share.value, 0.0), 1.0):.0f} %" if share.is_shown else "-"


def _count(count: Noisy) -> str:
    return f"{count.value:,.0f} ± {BAND * count.deviation:,.0f}" if count.is_shown else "-"


@dataclass(frozen=True)
class PlanFile:
    """Where the plan of a survey goes.

    Args:
        path: the file.
        journal: of the survey's run.
        is_new: set another run's journal aside.
        quiet: say nothing.
    """

    path: Path
    journal: Path
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

    def save(self, text: str) -> None:
        """Write the plan, unless it is there already; raises UsageError "plan-exists" for another one."""
        if self.path.exists():
            if self.path.read_text(encoding="utf-8") != text:
                raise UsageError("plan-exists", path=self.path)
            return
        write_atomically(self.path, text.encode())


class StatisticsFolder(PlanFile):
    """Where statistics go, and the plan that is drafted of them; `path` is the folder."""

    def require_room(self) -> None:
        """See `PlanFile.require_room`: statistics may be written over, a plan may not."""
        if (self.path / "plan.toml").exists():
            raise UsageError("plan-exists", path=self.path / "plan.toml")
