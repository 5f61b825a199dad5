# SPDX-License-Identifier: Apache-2.0
"""What statistics say, as sheets of rows: the same ones are printed on a terminal and stand on a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hedgerow.app.document import (
    render_document,
    render_figures,
    render_printed,
    render_section,
    render_table,
    render_text,
)
from hedgerow.app.inputs import join_names
from hedgerow.app.output import print_facts
from hedgerow.local.survey import TableSurvey
from hedgerow.models.plots import CLASS_COLOURS
from hedgerow.privacy.rounding import format_up
from hedgerow.survey.curves import Curve, SurvivalCurves
from hedgerow.survey.queries import N_BYTES
from hedgerow.survey.statistics import (
    BAND,
    MIN_RECORDS,
    ColumnStatistics,
    Group,
    Noisy,
    TableStatistics,
    short,
    two_digits,
)

NOT_SHOWN = "-"
_BLOCKS = " ▁▂▃▄▅▆▇█"
_HIDDEN = "░"
_QUANTILES = {0.05: "5 %", 0.25: "25 %", 0.5: "median", 0.75: "75 %", 0.95: "95 %"}
_PICTURES = ("histogram", "by bin")
_MAX_UNBROKEN = 22
_UNBROKEN = ("missing", "text", *_PICTURES)
"""Columns that are never broken over lines. All others are, the widest first: none goes away for another's width."""


@dataclass(frozen=True)
class Sheet:
    """A titled table: the heads of its columns, and rows of as many cells."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def draw_bars(heights: Iterable[float | None], below: float = 0.0, above: float = 0.0) -> str:
    """Draw a histogram in one line of text.

    Args:
        heights: each 0 to 1; None for one that is not shown.
        below, above: of what lies outside the bounds; 0 for nothing that is shown.
    """
    bars = "".join(_HIDDEN if height is None else _BLOCKS[math.ceil(8 * height)] for height in heights)
    ends = [_BLOCKS[math.ceil(8 * height)] if height else "" for height in (below, above)]
    return f"{ends[0]}{'│' * bool(ends[0])}{bars}{'│' * bool(ends[1])}{ends[1]}"


# What is said ---------------------------------------------------------------------------------------------------------


def build_sheets(found: TableStatistics | SurvivalCurves, *, is_page: bool = False) -> list[Sheet]:
    """Build the sheets of all statistics.

    Args:
        is_page: with room for bounds, bands, finer pictures and every class.
    """
    if isinstance(found, SurvivalCurves):
        return [_make_curve_sheet(found, curve) for curve in found.curves]
    numbers = [column for column in found.columns if column.kind == "number"]
    has_odd = any(column.odd.is_shown for column in numbers)
    plain, dates = ([column for column in numbers if column.is_date == is_date] for is_date in (False, True))
    texts = [column for column in found.columns if column.kind == "text"]
    sheets = [
        _make_number_sheet("Numbers", plain, has_odd=has_odd, has_mean=True, is_page=is_page),
        # On a terminal dates have no mean: they are wide, and the median is enough.
        _make_number_sheet("Dates", dates, has_odd=has_odd, has_mean=is_page, is_page=is_page),
        _make_text_sheet(texts, is_page=is_page),
    ]
    for name in found.classes if is_page and len(found.classes) > 2 else found.classes[-1:]:
        sheets.append(_rate_sheet(found, name, is_page=is_page))
    return [sheet for sheet in sheets if sheet.rows]


def explain_sheets(found: TableStatistics | SurvivalCurves) -> str:
    """Explain how to read the sheets."""
    least = f"not shown, because of fewer than {MIN_RECORDS:.0f} records or too much noise"
    if isinstance(found, SurvivalCurves):
        return f"Brackets: 95 %, by the noise and the sample. {NOT_SHOWN}: {least}."
    return (
        f"± and brackets are 95 % intervals for the noise. {NOT_SHOWN} and {_HIDDEN}: {least}; that is "
        "not zero. Beyond │ are values outside the bounds. Means and quantiles come from the bins."
    )


def _make_number_sheet(
    title: str, columns: list[ColumnStatistics], *, has_odd: bool, has_mean: bool, is_page: bool
) -> Sheet:
    """Make a sheet of numbers, with the share of cells that are no numbers if `has_odd`."""
    shares = list(_QUANTILES) if is_page else [0.05, 0.5, 0.95]
    heads = ["column", "missing", *(["text"] if has_odd else []), *(["bounds"] if is_page else [])]
    heads += [*(["mean"] if has_mean else []), *(_QUANTILES[share] for share in shares), "histogram"]
    n_bars = 24 if is_page else 14 if has_mean and not has_odd else 8
    rows = []
    for column in columns:
        row = [column.name, percent(column.missing)]
        row += [percent(column.odd)] if has_odd else []
        if is_page:
            row.append(" to ".join(map(column.format, column.range.bounds)) if column.range is not None else NOT_SHOWN)
        if has_mean:
            mean = column.mean
            unit = " days" if column.is_date else ""
            said = "" if mean is None else f"{column.format(mean.value)} ±{two_digits(BAND * mean.deviation)}{unit}"
            row.append(said or NOT_SHOWN)
        at = {quantile.share: quantile for quantile in column.quantiles}
        for quantile in map(at.get, shares):
            if quantile is None:
                row.append(NOT_SHOWN)
                continue
            band = f" [{column.format(quantile.low)}, {column.format(quantile.high)}]" if is_page else ""
            row.append(f"{column.format(quantile.value)}{band}")
        rows.append((*row, build_histogram(column, n_bars)))
    return Sheet(title, tuple(heads), tuple(rows))


def build_histogram(column: ColumnStatistics, n_bars: int) -> str:
    """Draw even bins between the bounds, and the shares outside them if they are shown."""
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
    counts = (column.groups[0].count, column.groups[-1].count)
    below, above = (count.value if count.is_shown else 0.0 for count in counts)
    top = max(*heights, below, above)
    if not top > 0:
        return _HIDDEN * n_bars
    # Hide a bar if most of it is hidden, because it would look too low.
    is_hidden = [part > (ends[1] - ends[0]) / 2 for part in hidden]
    shown = (None if covered else height / top for covered, height in zip(is_hidden, heights, strict=True))
    return draw_bars(shown, below / top, above / top)


def _make_text_sheet(columns: list[ColumnStatistics], *, is_page: bool) -> Sheet:
    heads = ("column", "missing", "categories", *(["shares"] if is_page else []))
    rows = []
    for column in columns:
        row = [column.name, percent(column.missing), categories_text(column, 12 if is_page else 6)]
        if is_page:
            # Sort the categories by count, and put hidden ones last.
            shown = [] if column.is_hashed else _by_size(column)
            heights = [group.count.value / shown[0].count.value for group in shown]
            n_hidden = len(column.groups) - len(shown) if shown else 0
            row.append(draw_bars(heights) + _HIDDEN * n_hidden)
        rows.append(tuple(row))
    return Sheet("Text", heads, tuple(rows))


def _by_size(column: ColumnStatistics) -> list[Group]:
    return sorted((group for group in column.groups if group.count.is_shown), key=lambda group: -group.count.value)


def categories_text(column: ColumnStatistics, most: int = 6) -> str:
    """List the largest categories of a column with their shares."""
    if column.is_hashed:
        return f"hashed: no text of up to {N_BYTES} bytes stands out of the noise, and longer ones are not spelt"
    shown, total = _by_size(column), max(column.present.value, 1.0)
    said = [f"{group.name} {percent(group.count.over(total))}" for group in shown[:most]]
    more, n_hidden = len(shown) - most, len(column.groups) - len(shown)
    rest = (f" and {more} more" if more > 0 else "") + (f"; {n_hidden} not shown" if said and n_hidden else "")
    return ", ".join(said) + rest or NOT_SHOWN


def _rate_sheet(found: TableStatistics, name: str, *, is_page: bool) -> Sheet:
    """Make a sheet of the bins with the lowest and highest share of a class, clearest columns first."""
    place = found.classes.index(name)
    rated = [column for column in found.columns if len(column.shown_rates) > 1]
    rated.sort(key=lambda column: -clearness(column))
    rows = list[tuple[str, ...]]()
    for column in rated:
        groups = sorted(column.shown_rates, key=lambda group: group.rates[place].value)
        said = [_rate_text(groups[0], place), _rate_text(groups[-1], place)]
        if is_page:
            said = ["; ".join(_rate_text(group, place) for group in column.shown_rates)]
        rates = [group.rates[place] if group.rates else None for group in column.rates]
        bars = (max(rate.value, 1 / 8) if rate is not None and rate.is_shown else None for rate in rates)
        rows.append((column.name, *said, draw_bars(bars)))
    heads = ("column", "shares", "by bin") if is_page else ("column", "lowest", "highest", "by bin")
    return Sheet(f"Share of {found.label} = {name}", heads, tuple(rows))


def clearness(column: ColumnStatistics) -> float:
    """Return by how many standard deviations of the noise the label's shares in a column's bins differ."""
    shown = [group.rates[-1] for group in column.shown_rates]
    if len(shown) < 2:
        return 0.0
    low, high = min(shown, key=lambda count: count.value), max(shown, key=lambda count: count.value)
    spread = math.hypot(low.deviation, high.deviation)
    return (high.value - low.value) / spread if spread else math.inf


def _rate_text(group: Group, place: int) -> str:
    rate = group.rates[place]
    return f"{percent(rate)} ±{100 * BAND * rate.deviation:.0f} at {group.name}"


def _make_curve_sheet(found: SurvivalCurves, curve: Curve) -> Sheet:
    """Make a sheet of the share without the event at each interval's end, and of the records at risk."""
    rows = []
    for place, end in enumerate(found.ends):
        said, risk = NOT_SHOWN, NOT_SHOWN
        if place < len(curve.survival):
            said = f"{curve.survival[place].value:.1%} [{curve.low[place]:.1%}, {curve.high[place]:.1%}]"
            risk = f"{curve.at_risk[place].value:,.0f}"
        rows.append((short(end), said, risk))
    heads = f"{found.time} to", f"without {found.event}", "at risk"
    return Sheet(f"{found.by}: {curve.group}" if found.by else "All", heads, tuple(rows))


def percent(share: Noisy) -> str:
    """Format a share in percent for a person."""
    return f"{100 * min(max(share.value, 0.0), 1.0):.0f} %" if share.is_shown else NOT_SHOWN


def count_text(count: Noisy) -> str:
    """Format a count for a person."""
    return f"{count.value:,.0f} ± {BAND * count.deviation:,.0f}" if count.is_shown else NOT_SHOWN


def _describe_unknown(found: TableStatistics | SurvivalCurves) -> str:
    unknown = [column.name for column in getattr(found, "columns", ()) if column.kind == "unknown"]
    return f"Too little stands out of the noise in, and a drafted plan lacks: {join_names(unknown)}." if unknown else ""


# Where it is said -----------------------------------------------------------------------------------------------------


def print_statistics(console: Console, found: TableStatistics | SurvivalCurves, names: Sequence[str]) -> None:
    """Print the statistics on a terminal."""
    print_facts([("sites", _describe_sites(names)), ("records", f"about {count_text(found.n_records)}")])
    console.print()
    for sheet in build_sheets(found):
        print_sheet(console, sheet)
    if said := _describe_unknown(found):
        console.print(Text(f"{said}\n"))
    console.print(Text(f"{explain_sheets(found)}\n", style="dim"))


def print_sheet(console: Console, sheet: Sheet, *, widest: int = 18) -> None:
    """Print a sheet on a terminal.

    Args:
        widest: columns of the terminal for the first of the sheet.
    """
    table = Table(
        box=box.SIMPLE_HEAD, title=sheet.title, title_justify="left", title_style="bold", pad_edge=False,
        padding=(0, 1, 0, 0),
    )  # fmt: skip
    table.add_column(sheet.heads[0], overflow="fold", style="green", min_width=8, max_width=widest)
    for name in sheet.heads[1:]:
        style = "green" if name in _PICTURES else ""
        table.add_column(name, overflow="fold", no_wrap=name in _UNBROKEN, style=style)
    for row in sheet.rows:
        # Cut cells that are never broken over lines: they would take the room of the first column, which names the row.
        cut = (
            cell if head not in _UNBROKEN or len(cell) <= _MAX_UNBROKEN else cell[: _MAX_UNBROKEN - 1] + "…"
            for head, cell in zip(sheet.heads, row, strict=True)
        )
        table.add_row(*map(Text, cut))
    console.print(table)


def _describe_sites(names: Sequence[str]) -> str:
    return f"{len(names)} {'sites' if len(names) > 1 else 'site'}: {join_names(names)}"


def render_page(survey: TableSurvey, sites: Sequence[str]) -> str:
    """Render the statistics as a page."""
    found, report = survey.statistics, survey.report
    is_curves = isinstance(found, SurvivalCurves)
    figures = [("records, about", count_text(found.n_records)), ("epsilon", format_up(report.epsilon, 4))]
    figures.append(("delta", format_up(report.delta)))
    sheets = build_sheets(found, is_page=True)
    body = [
        render_figures(figures),
        *(render_text(f"Void: {reason}.", "void") for reason in report.voided_by),
        draw_curves(found) if isinstance(found, SurvivalCurves) else "",
        *(render_section(sheet.title, [render_sheet(sheet)]) for sheet in sheets),
        render_text(" ".join(filter(None, (_describe_unknown(found), explain_sheets(found)))), "muted"),
        render_section("What it cost", [render_printed(report.text())]),
    ]
    title = "Survival curves" if is_curves else "Statistics before training"
    return render_document(title, f"Noisy sums over {_describe_sites(sites)}", body)


def render_sheet(sheet: Sheet) -> str:
    """Render a sheet on a page."""
    return render_table(sheet.title, sheet.heads, sheet.rows)


# The picture of curves ------------------------------------------------------------------------------------------------

_PLOT = (44.0, 26.0, 580.0, 280.0)
"""Left, top, width and height of the area of curves."""


def draw_curves(found: SurvivalCurves, *, is_file: bool = False) -> str:
    """Draw curves with 95 % bands as SVG, for a page or as a file; lines are straight within intervals."""
    left, top, width, height = _PLOT
    muted = 'fill="#7c8781" font-family="system-ui,sans-serif" font-size="11"'
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y, x = top + height * (1 - share), left + width * share
        parts += [
            f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#9aa69f" opacity=".35"/>',
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" {muted}>{share:.0%}</text>',
            f'<text x="{x:.1f}" y="{top + height + 16}" text-anchor="middle" {muted}>'
            f"{short(found.ends[-1] * share)}</text>",
        ]
    middle = left + width / 2
    parts.append(f'<text x="{middle}" y="{top + height + 33}" text-anchor="middle" {muted}>{escape(found.time)}</text>')
    for place, curve in enumerate(found.curves):
        name, colour = curve.group or f"without {found.event}", CLASS_COLOURS[place % len(CLASS_COLOURS)]
        x = left + width * place / len(found.curves)
        text = escape(name if len(name) <= 18 else name[:17] + "…")
        parts += [
            _draw_curve(curve, found.ends, colour),
            f'<rect x="{x:.1f}" y="7" width="14" height="4" fill="{colour}"/>',
            f'<text x="{x + 19:.1f}" y="13" {muted}>{text}</text>',
        ]
    size = f"0 0 {left + width + 16:.0f} {top + height + 42:.0f}"
    title = escape(f"Without {found.event}" + (f", by {found.by}" if found.by else ""))
    namespace = 'xmlns="http://www.w3.org/2000/svg" ' if is_file else ""
    head = f'<svg class="curves" {namespace}viewBox="{size}" role="img" aria-label="{title}">'
    return head + "".join(parts) + "</svg>\n"


def _draw_curve(curve: Curve, ends: Sequence[float], colour: str) -> str:
    left, top, width, height = _PLOT

    def points(values: Sequence[float]) -> list[str]:
        pairs = zip([0.0, *ends[: len(values)]], [1.0, *values], strict=True)
        return [f"{left + width * at / ends[-1]:.1f},{top + height * (1 - value):.1f}" for at, value in pairs]

    band = " ".join([*points(curve.high), *points(curve.low)[::-1]])
    line = " ".join(points([point.value for point in curve.survival]))
    return (
        f'<polygon points="{band}" fill="{colour}" opacity=".16"/>'
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'
    )
