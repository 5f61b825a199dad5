"""Another coding at one site, and the `[data]` lines that would mend it: `M` for `male`, 1 and 2 for 0 and 1, age in
days.

For the screen of the owner of the rows, and no other: what is said here follows from private rows, without noise. A
line is suggested only where it is clear what it has to say; a person confirms it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hedgerow.data.adapters import UNITS
from hedgerow.data.known_columns import words_of
from hedgerow.plan.fields import ISO_DATE

_MOST = 0.9
"""The least share of odd cells that one explanation has to fit."""
_FITTING = 0.95
"""The least share of numbers within the bounds, in another unit."""
_LEAST_SPREAD = 0.05
"""The least part of the bounds that such numbers take up: small enough, any number fits."""
_SHOWN_TEXTS = 12
_MEANINGS = (
    "m male man boy herr mann maennlich männlich homme masculin hombre masculino",
    "f w female woman girl frau weiblich femme feminin féminin mujer femenino",
    "1 y yes true t ja j oui o si sí positive pos",
    "0 n no false f nein non negative neg",
)
_MISSING_CODES = {
    ".", "..", "-", "--", "?", "*", "#", "#n/a", "#na", "none", "nil", "missing", "miss", "unknown", "unk", "nd",
    "n.d.", "k.a.", "k. a.", "not available", "not done", "not known", "fehlend", "unbekannt",
}  # fmt: skip
SENTINELS = (-9.0, -99.0, -999.0, -9999.0, 99.0, 999.0, 9999.0, 99999.0)
"""Numbers that many write for "no value"."""
_DATES = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%Y%m%d")
_UNITS_OF = {
    "age": ("days to years", "weeks to years", "months to years"),
    "alter": ("days to years", "weeks to years", "months to years"),
    "height": ("m to cm", "cm to m", "inches to cm"),
    "weight": ("g to kg", "pounds to kg"),
    "temperature": ("fahrenheit to celsius",),
    "temp": ("fahrenheit to celsius",),
}
"""By a word of a column's name, the units of `UNITS` that its numbers may be in."""
_POWERS = (1000.0, 100.0, 10.0, 0.1, 0.01, 0.001)


def key(name: str) -> str:
    """A name as TOML has it."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def counted(counts: Mapping[str, int], n_others: int = 0) -> str:
    """Texts and how often each is there, the most frequent first."""
    often = sorted(counts, key=lambda text: (-counts[text], text))
    said = ", ".join(f"{text!r} {counts[text]:,}" for text in often[:_SHOWN_TEXTS])
    n_rest = sum(counts[text] for text in often[_SHOWN_TEXTS:]) + n_others
    return said + (f" and {n_rest:,} cells of other texts" if n_rest else "")


def of_categories(name: str, unlisted: Mapping[str, int], listed: Sequence[str], used: set[str]) -> tuple[str, str]:
    """What texts that a plan does not list may mean: a finding and a line, "" for neither.

    Args:
        unlisted: the texts, and how often each is there.
        listed: the plan's categories or classes; used: those of them that are there.
    """
    if not unlisted:
        return "", ""
    if (shifted := _shifted(unlisted, listed, used)) is not None:
        old, new = ", ".join(shifted), ", ".join(shifted.values())
        line = f"recode.{key(name)} = {_inline(shifted)}"
        return f"coded {old} where the plan has {new}? If they mean these in this order: {line}", ""
    if _share(unlisted, lambda text: bool(_layouts(text))) >= _MOST:
        return "dates, where the plan lists texts", ""
    meant = {text: own for text in sorted(unlisted) if (own := _meant(text, listed)) is not None}
    codes = [text for text in unlisted if text not in meant and text.casefold() in _MISSING_CODES]
    lines = ([f"recode.{key(name)} = {_inline(meant)}"] if meant else []) + _missing_line(name, codes)
    return ("another coding at this site?" if meant else ""), "\n".join(lines)


def of_unreadable(name: str, texts: Mapping[str, int], is_date: bool) -> tuple[str, str]:
    """What cells that are no number, or no date, may mean: a finding and a line, "" for neither."""
    codes = [text for text in texts if text.casefold() in _MISSING_CODES]
    lines = _missing_line(name, codes)
    others = {text: count for text, count in texts.items() if text not in codes}
    said = "codes for missing values?" if codes else ""
    if others and is_date:
        layouts = {text: _layouts(text) for text in others}
        fitting = [each for each in _DATES if _share(others, partial(_is_in, each, layouts)) >= _MOST]
        if len(fitting) == 1:
            lines.append(f'date.{key(name)} = "{fitting[0]}"')
        if fitting:
            said = "dates in another format: " + " or ".join(fitting)
    elif others and _share(others, lambda text: bool(_layouts(text))) >= _MOST:
        said = 'dates, where the plan has numbers: it could say type = "date"'
    elif others and _share(others, lambda text: re.fullmatch(r"[+-]?[0-9]*,[0-9]+", text) is not None) >= _MOST:
        said = "decimal commas?"
        lines.append('decimal = "comma"')
    return said, "\n".join(lines)


def of_numbers(
    name: str, sample: NDArray[np.float64], bounds: tuple[float, float], sentinels: Mapping[float, int]
) -> tuple[str, str]:
    """What numbers beyond the bounds may mean: a finding and a line, "" for neither.

    Args:
        sample: float64 [n], numbers of the column, all finite.
        sentinels: numbers beyond the bounds that many write for "no value", and how often each is there.
    """
    codes = [value for value, count in sentinels.items() if count > 1]
    lines = [f"missing.{key(name)} = [{', '.join(f'{value:g}' for value in codes)}]"] if codes else []
    own = sample[~np.isin(sample, codes)]
    said = "codes for missing values?" if codes else ""
    low, high = bounds
    if len(own) and np.mean((own < low) | (own > high)) > 0.5:
        named = [unit for word in words_of(name) for unit in _UNITS_OF.get(word, ())]
        units = [f'"{unit}"' for unit in dict.fromkeys(named) if _fits(own * UNITS[unit][0] + UNITS[unit][1], bounds)]
        units = units or [f"{power:g}" for power in _POWERS if _fits(own * power, bounds)]
        if len(units) == 1:
            lines.append(f"scale.{key(name)} = {units[0]}")
        said = "in another unit?" if units else said
    return said, "\n".join(lines)


def renames(missing: Iterable[str], present: Sequence[str]) -> str:
    """The line for columns that a table has under another name, "" where none is clear."""
    found: dict[str, str] = {}
    for name in missing:
        words, others = set(words_of(name)), [other for other in present if other not in found]
        alike = [other for other in others if _plain(other) == _plain(name)]
        alike = alike or [other for other in others if words and words <= set(words_of(other))]
        if len(alike) == 1:
            found[alike[0]] = name
    return f"rename = {_inline(found)}" if found else ""


def _inline(pairs: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{key(old)} = {json.dumps(new, ensure_ascii=False)}" for old, new in pairs.items()) + "}"


def _missing_line(name: str, codes: Sequence[str]) -> list[str]:
    listed = ", ".join(json.dumps(code, ensure_ascii=False) for code in sorted(codes))
    return [f"missing.{key(name)} = [{listed}]"] if codes else []


def _share(counts: Mapping[str, int], fits: Callable[[str], bool]) -> float:
    """The share of the cells whose text fits."""
    return sum(count for text, count in counts.items() if fits(text)) / max(sum(counts.values()), 1)


def _is_in(layout: str, layouts: Mapping[str, Sequence[str]], text: str) -> bool:
    return layout in layouts[text]


def _plain(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold())


def _meant(text: str, listed: Sequence[str]) -> str | None:
    """The one listed text that another one clearly stands for."""
    own = _plain(text)
    if not own:
        return None
    groups = [set(group.split()) for group in _MEANINGS if own in group.split()]
    for fitting in (
        [each for each in listed if _plain(each) == own],
        [each for each in listed if any(_plain(each) in group for group in groups)],
        [each for each in listed if own.isalpha() and _plain(each).startswith(own)],
    ):
        if fitting:
            return fitting[0] if len(fitting) == 1 else None
    return None


def _shifted(unlisted: Mapping[str, int], listed: Sequence[str], used: set[str]) -> dict[str, str] | None:
    """1, 2, ... for 0, 1, ...: the table's text and the plan's."""
    plan = [str(number) for number in range(len(listed))]
    site = [str(number) for number in range(1, len(listed) + 1)]
    is_shifted = set(listed) == set(plan) and set(unlisted) == {site[-1]} and "0" not in used
    return dict(zip(site, plan, strict=True)) if is_shifted else None


def _layouts(text: str) -> list[str]:
    """The formats that a text is a date in."""
    found = ["%Y-%m-%d"] if re.fullmatch(ISO_DATE, text) else []
    for layout in _DATES:
        pattern = re.escape(layout)
        for part, digits in (("Y", "(?:19|20)[0-9]{2}"), ("m", "[0-9]{1,2}"), ("d", "[0-9]{1,2}")):
            pattern = pattern.replace(f"%{part}", f"(?P<{part}>{digits})")
        read = re.fullmatch(pattern, text)
        if read is not None and 1 <= int(read["m"]) <= 12 and 1 <= int(read["d"]) <= 31:
            found.append(layout)
    return found


def _fits(numbers: NDArray[np.float64], bounds: tuple[float, float]) -> bool:
    low, high = bounds
    inside = np.mean((numbers >= low) & (numbers <= high)) >= _FITTING
    first, last = np.quantile(numbers, [0.05, 0.95])
    return bool(inside and last - first >= _LEAST_SPREAD * (high - low))
