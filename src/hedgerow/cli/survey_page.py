"""The statistics of a table as one HTML file: pictures are inline SVG, and nothing is asked of another host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from hedgerow.local.statistics import TableSurvey
from hedgerow.models.plots import CLASS_COLOURS
from hedgerow.survey.curves import Curve, SurvivalCurves
from hedgerow.survey.readings import Range
from hedgerow.survey.summaries import BAND, LEAST_RECORDS, Column, Group, Noisy, TableStatistics, short, two_digits

WIDTH, HEIGHT, FOOT = 320, 120, 18
"""Units of a picture, and of the room for its axis."""
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
.bar{fill:var(--fill)}.err{stroke:var(--deep);stroke-width:1.1}.axis{stroke:var(--line)}.dot{fill:var(--deep)}
dl{display:grid;grid-template-columns:auto 1fr;gap:0 .8rem;margin:0;font-size:.85rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.85rem}.wide{overflow-x:auto}
th,td{padding:.15rem .7rem;text-align:right;border-bottom:1px solid var(--line)}th{color:var(--muted);font-weight:500}
dt{color:var(--muted)}dd{margin:0;text-align:right;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);border:1px solid var(--line);border-radius:.6rem;
padding:.8rem;font-size:.8rem}
"""


def page_of(survey: TableSurvey, sites: Sequence[str], subject: str) -> str:
    """The page.

    Args: subject: what the report calls the statistics.
    """
    found, report = survey.statistics, survey.report
    if isinstance(found, SurvivalCurves):
        title, body = "Kaplan-Meier curves", _curves(found)
        reading = "Between ends of intervals curves are drawn straight. They end where too few are left."
    else:
        cards = "\n".join(_card(column) for column in found.columns)
        title, body = "Statistics before training", f'<h2>Columns</h2><div class="cards">{cards}</div>' + _rates(found)
        reading = "Means and quantiles come from the bins."
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>Statistics</title><style>{_STYLE}</style></head><body><main>",
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
    """Areas are counts; a bin that is not shown is left out."""
    if column.range is None:
        return ""
    low, high = column.range.bounds
    if column.range.is_whole:
        low, high = low - 0.5, high + 0.5
    median = next((own.value for own in column.quantiles if own.share == 0.5), None)
    axis = _Axis(low, high, median)
    bars = []
    for group in column.groups[1:-1]:
        left, right = axis(group.low), axis(group.high)
        width = max(right - left, WIDTH / 60)
        if group.count.is_shown:
            bars.append((left, width, group.count, group.name))
    if not bars:
        return '<p class="muted">Too little stands out of the noise.</p>'
    top = max((count.value + BAND * count.deviation) / width for _, width, count, _ in bars)
    parts = [_bar(left, width, count, top, name) for left, width, count, name in bars]
    return _svg("".join(parts) + _ticks(column, axis), HEIGHT + FOOT, f"Histogram of {column.name}", HEIGHT)


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


def _bar(left: float, width: float, count: Noisy, top: float, name: str) -> str:
    height = count.value / width / top * HEIGHT
    reach = BAND * count.deviation / width / top * HEIGHT
    middle, upper = left + width / 2, HEIGHT - height
    title = f"<title>{escape(name)}: {escape(_count(count))}</title>"
    gap = 0.6 if width > 3 else 0.0
    return (
        f'<g>{title}<rect class="bar" x="{left + gap / 2:.1f}" y="{upper:.1f}" width="{max(width - gap, 0.5):.1f}" '
        f'height="{height:.1f}"/><line class="err" x1="{middle:.1f}" x2="{middle:.1f}" '
        f'y1="{max(upper - reach, 0):.1f}" y2="{min(upper + reach, HEIGHT):.1f}"/></g>'
    )


def _bars(column: Column) -> str:
    """Categories by their counts, the largest first."""
    shown = sorted((group for group in column.groups if group.count.is_shown), key=lambda own: -own.count.value)
    if column.is_hashed or not shown:
        return '<p class="muted">No category stands out of the noise.</p>'
    total = max(column.present.value, 1.0)
    rows = [(group.name, group.count.over(total)) for group in shown[:MOST_BARS]]
    picture = _lines(rows, max(share.value + BAND * share.deviation for _, share in rows), f"Shares of {column.name}")
    more = len(shown) - MOST_BARS
    return picture + (f'<p class="muted">and {more} more</p>' if more > 0 else "")


def _lines(rows: Sequence[tuple[str, Noisy]], top: float, title: str) -> str:
    """Horizontal bars of shares, with their names."""
    left, step = 100, 16
    room = WIDTH - left - 34
    parts = []
    for place, (name, share) in enumerate(rows):
        y = place * step
        width = max(share.value, 0.0) / top * room
        reach = BAND * share.deviation / top * room
        text = escape(name if len(name) <= 18 else name[:17] + "…")
        ends = f'x1="{left + max(width - reach, 0):.1f}" x2="{left + min(width + reach, room):.1f}"'
        parts.append(
            f'<text x="{left - 5}" y="{y + 11}" text-anchor="end">{text}<title>{escape(name)}</title></text>'
            f'<rect class="bar" x="{left}" y="{y + 3}" width="{width:.1f}" height="{step - 5}"/>'
            f'<line class="err" {ends} y1="{y + 8.5}" y2="{y + 8.5}"/>'
            f'<text x="{WIDTH}" y="{y + 11}" text-anchor="end">{_percent(share)}</text>'
        )
    return _svg("".join(parts), len(rows) * step, title)


def _svg(content: str, height: int, title: str, axis: int | None = None) -> str:
    line = "" if axis is None else f'<line class="axis" x1="0" x2="{WIDTH}" y1="{axis}" y2="{axis}"/>'
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{line}{content}</svg>'


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
        groups = column.shown_rates
        if len(groups) < 2:
            continue
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


def _curves(found: SurvivalCurves) -> str:
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
