"""``hedgerow survey``: what a table holds, in noisy sums, before anyone trains; `plan init --private` does the same."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hedgerow.cli.inputs import adapted_sites, listed, named_sites, new_file, output_folder, read_text
from hedgerow.cli.output import WIDEST, json_text, note, print_facts, print_json, typed, warn, warn_seeded, wrapped
from hedgerow.cli.progress import status
from hedgerow.cli.survey_page import curve_cells, page_of, picture_of
from hedgerow.data.codebook import read_codebook
from hedgerow.data.sources import column_names
from hedgerow.errors import UsageError
from hedgerow.local.statistics import (
    TableSurvey,
    columns_of,
    curves_of,
    drafted_plan,
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
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.survey.curves import SurvivalCurves
from hedgerow.survey.open_tables import OpenTable
from hedgerow.survey.statistics import AskedColumn
from hedgerow.survey.summaries import LEAST_RECORDS, Column, Group, Noisy, TableStatistics, short, two_digits

SUBJECT = "these statistics"
_PLAN = "plan.toml"
NOT_SHOWN = "-"
_BLOCKS = " ▁▂▃▄▅▆▇█"
_MOST_CATEGORIES = 6
_FEW_RECORDS = 2000.0
"""Below so many records times epsilon, little stands out of the noise."""


def run(arguments: argparse.Namespace) -> None:
    """Make the statistics; print them, or write them into a folder as well."""
    _check(arguments)
    folder = None if arguments.out is None else output_folder(arguments.out)
    found, sites = _over_nodes(arguments) if arguments.federated else _over_tables(arguments, folder)
    plan = drafted_plan(found, len(sites), arguments.train_epsilon)
    files = {} if folder is None else _write(folder, found, plan, sites)
    if arguments.json:
        written = {name: str(path) for name, path in files.items()}
        print_json({**content_of(found, sites), "files": written})
        return
    if found.report.seeded:
        warn_seeded()
    console = Console(width=min(WIDEST, Console().width), highlight=False)
    print_statistics(console, found.statistics, sites)
    print(wrapped(found.report.text(SUBJECT)))
    _say_what_next(arguments, found, plan, files)


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


def private_draft(arguments: argparse.Namespace) -> str:
    """The text of a plan for ``plan init --private``; raises UsageError where nothing stands out of the noise."""
    declares = arguments.bounds_are_public or arguments.n_records is not None or arguments.codebook
    if arguments.epsilon is None or declares:
        raise UsageError("survey-private-epsilon")
    arguments.sites, arguments.schema, arguments.without, arguments.survival = None, None, [], None
    arguments.adapters = [] if arguments.adapter is None else [arguments.adapter]
    arguments.seed, arguments.json, arguments.unit, arguments.max_rows_per_unit = None, False, None, None
    arguments.delta = 1e-6 if arguments.delta is None else arguments.delta
    found, _ = _over_tables(arguments, None)
    plan = drafted_plan(found, 1)
    if plan is None:
        raise UsageError("survey-no-plan", label=arguments.label)
    return plan_text(plan)


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
    for site, causes in tables.left_out.items():
        said = ", ".join(f"{count:,} {code}" for code, count in sorted(causes.items()))
        note(f"Private, for the site {site} only: rows left out: {said}.")
    _say_unread(tables.unread)
    asked = curves or _open_table(arguments, tables.columns)
    with status("Adding up", quiet=arguments.json):
        return survey_tables(asked, tables.tables, _noise(arguments)), list(tables.tables)


def _over_nodes(arguments: argparse.Namespace) -> tuple[TableSurvey, list[str]]:
    """Statistics of what the nodes of a roster hold, asked for as their coordinator."""
    # Extras: only a party that dials or listens needs grpc.
    from hedgerow.cli.coordinator import serve
    from hedgerow.cli.plan_survey import StatisticsFolder, sites_in

    asked, noise = _curves(arguments) or _asked_of_nodes(arguments), _noise(arguments)
    task, folder = SurveyTask(asked), Path(arguments.out)
    journal = Path(arguments.journal or folder / "survey.journal")
    file = StatisticsFolder(folder, journal, arguments.new_run, arguments.json)
    outcome, session = serve(arguments, task.plan, noise, file, task)
    found = asked.statistics(session.run.releases, outcome.ledger)
    return table_survey(asked, found, outcome.ledger, noise), sites_in(session)


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
    identifiers = [name for name in names if name in book and book[name].kind == "identifier" and name not in own]
    if identifiers:
        note(f"Left out, by the code book identifiers or free text: {listed(identifiers)}.")
    known = {name: column for name, column in declared.items() if name in names and name != arguments.unit}
    return {**known, **schema}, [*arguments.without, *identifiers]


def _say_unread(names: Sequence[str]) -> None:
    if names:
        note(f"Left out, for their types: {listed(names)}.")


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


def _write(folder: Path, found: TableSurvey, plan: Plan | None, sites: Sequence[str]) -> dict[str, Path]:
    """Write the files; statistics that were there before are written over, but for a plan that is another one."""
    texts = {
        "report.html": page_of(found, sites, SUBJECT),
        "survey.json": json_text(content_of(found, sites)) + "\n",
    }
    if isinstance(found.statistics, SurvivalCurves):
        texts["curves.svg"] = picture_of(found.statistics, is_file=True)
    if plan is not None:
        texts[_PLAN] = plan_text(plan)
        kept = folder / _PLAN
        if kept.exists() and kept.read_text(encoding="utf-8") != texts[_PLAN]:
            raise UsageError("plan-exists", path=kept)
    files = {}
    for name, text in texts.items():
        files[name] = folder / name
        files[name].write_text(text, encoding="utf-8")
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
    for title, table, row, columns in (
        ("Numbers", _numbers("mean"), _number_row, [column for column in numbers if not column.is_date]),
        ("Dates", _numbers(), _date_row, [column for column in numbers if column.is_date]),
        ("Text", _table("missing", "categories"), _text_row, [own for own in found.columns if own.kind == "text"]),
    ):
        if columns:
            for column in columns:
                table.add_row(*row(column))
            table.title = title
            console.print(table)
    unknown = [column.name for column in found.columns if column.kind == "unknown"]
    if unknown:
        console.print(Text(f"Too little stands out of the noise in: {listed(unknown)}\n"))
    if found.classes:
        console.print(_rates_table(found))
    meaning = f"± is the noise (95 %). {NOT_SHOWN} would rest on fewer than {LEAST_RECORDS:.0f} records, or on noise."
    console.print(Text(meaning + "\n", style="dim"))


def _print_curves(console: Console, found: SurvivalCurves) -> None:
    """By end of an interval, who is without the event, and how many were at risk in it, of each group."""
    names = [curve.group or "all" for curve in found.curves]
    table = _table(*(each for name in names for each in (name, "at risk")), first=f"{found.time} to")
    table.title = f"Without {found.event}" + (f", by {found.by}" if found.by else "")
    for place, end in enumerate(found.ends):
        table.add_row(short(end), *(cell for curve in found.curves for cell in curve_cells(curve, place)))
    console.print(table)
    meaning = (
        f"Brackets: 95 %, by the noise and the sample. {NOT_SHOWN} would rest on fewer than {LEAST_RECORDS:.0f} "
        "records, or on noise."
    )
    console.print(Text(meaning + "\n", style="dim"))


_WRAPPED = ("categories", "lowest", "highest")


def _table(*columns: str, first: str = "column") -> Table:
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False, padding=(0, 1))
    table.add_column(first, overflow="fold", style="green", max_width=18)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name not in _WRAPPED)
    return table


def _numbers(*means: str) -> Table:
    return _table("missing", *means, "5 %", "median", "95 %", "histogram")


def _number_row(column: Column) -> list[str | Text]:
    mean = column.mean
    said = NOT_SHOWN if mean is None else f"{short(mean.value)} ±{two_digits(1.96 * mean.deviation)}"
    return [column.name, percent(column.missing), said, *_quantiles(column), Text(sparkline(column), style="green")]


def _date_row(column: Column) -> list[str | Text]:
    """Without a mean: dates are wide, and the median says when."""
    return [column.name, percent(column.missing), *_quantiles(column), Text(sparkline(column, 8), style="green")]


def _quantiles(column: Column) -> list[str]:
    at = {own.share: own for own in column.quantiles}
    found = [at.get(share) for share in (0.05, 0.5, 0.95)]
    return [NOT_SHOWN if own is None else column.said(own.value) for own in found]


def sparkline(column: Column, n_bars: int = 14) -> str:
    """A histogram in one line: even bins between the bounds; empty where nothing is shown."""
    if column.range is None:
        return ""
    low, high = column.range.bounds
    if column.range.is_whole:
        n_bars = int(min(n_bars, high - low + 1))
        low, high = low - 0.5, high + 0.5
    ends = [low + (high - low) * place / n_bars for place in range(n_bars + 1)]
    heights = [0.0] * n_bars
    for group in column.groups[1:-1]:
        if not group.count.is_shown:
            continue
        width = group.high - group.low
        for place in range(n_bars):
            common = min(group.high, ends[place + 1]) - max(group.low, ends[place])
            heights[place] += group.count.value * max(0.0, common) / width
    top = max(heights)
    return "".join(_BLOCKS[math.ceil(8 * height / top)] if top > 0 else " " for height in heights)


def _text_row(column: Column) -> list[str]:
    return [column.name, percent(column.missing), categories_text(column)]


def categories_text(column: Column) -> str:
    """The largest categories of a column, with their shares."""
    if column.is_hashed:
        return "no common text was found"
    shown = sorted((group for group in column.groups if group.count.is_shown), key=lambda own: -own.count.value)
    total = max(column.present.value, 1.0)
    said = [f"{group.name} {percent(group.count.over(total))}" for group in shown[:_MOST_CATEGORIES]]
    more = len(shown) - _MOST_CATEGORIES
    return ", ".join(said) + (f" and {more} more" if more > 0 else "") or NOT_SHOWN


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
    return "".join(" " if height is None else _BLOCKS[max(1, math.ceil(8 * height))] for height in heights)


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
    if arguments.label and plan is None:
        warn("No plan was drafted: nothing stands out of the noise for the label, or for any other column.")
    if not files:
        note("Nothing was written: --out FOLDER keeps a report, and with --label a plan. Asked again, it costs again.")
        return
    print_facts([(name, str(path)) for name, path in files.items()])
    if plan is not None:
        parties = [f"--site {shlex.quote(each)}" for each in arguments.sites or [arguments.data]]
        parties += [f"--adapter {shlex.quote(each)}" for each in arguments.adapters]
        command = f"train {files[_PLAN]} {' '.join(parties)}"
        if arguments.federated:
            command = f"coordinator {files[_PLAN]} --roster {arguments.roster} --identity {arguments.identity}"
        epsilon = usual_epsilon(found.report) if arguments.train_epsilon is None else arguments.train_epsilon
        both = f"The plan promises epsilon {epsilon:g} for these statistics and the training together"
        note(f"{both}: {typed(f'hedgerow {command}')}")
