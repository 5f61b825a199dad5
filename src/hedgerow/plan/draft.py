# SPDX-License-Identifier: Apache-2.0
"""The text of a commented plan, whose gaps wait for a person: what a draft asks, and what it says beside each line."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from hedgerow.plan.fields import escape_for_terminal, format_day
from hedgerow.plan.plan import PLAN_VERSION
from hedgerow.plan.registry import label_kinds
from hedgerow.plan.toml import OPEN_CLASSES, schema_line, toml_value


@dataclass(frozen=True)
class Entry:
    """Knowledge about one column from a code book or from public cells, not from private rows.

    Attributes:
        kind: "numeric", "date", "categorical", "identifier" (also free text), or "" for nothing.
        is_integer: whether all values are whole numbers.
        low, high: bounds, None where it names none.
        categories: codes, numbers by their size; empty where it names none.
        unit: of its values, "" for none.
        labels: what codes mean in words, pairs of code and word.
    """

    kind: str = ""
    is_integer: bool = False
    low: float | None = None
    high: float | None = None
    categories: tuple[str, ...] = ()
    unit: str = ""
    labels: tuple[tuple[str, str], ...] = ()


def draft_text(features: Mapping[str, Entry], label: str, epsilon: float) -> str:
    """Return the text of a draft; `parse_plan` reads it once its gaps are filled in.

    Args:
        features: what is known of each; identifiers are left out.
        label: its table, by `draft_label` or `draft_survival`.
    """
    units = [name for name, entry in features.items() if entry.kind == "identifier"] or ["person_id"]
    privacy = _PRIVACY.format(
        epsilon=_number(epsilon), units="\n".join(f"# unit = {toml_value(unit)}" for unit in units)
    )
    tables = (_feature(name, entry) for name, entry in features.items())
    return "\n\n".join([_TOP, privacy, _MODEL, _FEDERATION, *tables, label])


_TOP = f"""{schema_line('plan')}
# A plan of Hedgerow: the one public file that all parties agree on.
# Each line marked FILL IN waits for a value that only a person can know. Take it from a code book or
# from common knowledge, never from private data: whatever stands in a plan is published.
# Bounds that are too narrow make one value of many, and nothing complains; too wide ones cost little
# from about 10,000 rows at epsilon 1 on. Where you doubt, take the wider ones; `hedgerow check` shows
# how a table fits.
# Remove the [[features]] table of a column that holds names, addresses or days of birth of persons, or
# free text: a model learns nothing general from it, and much about single people. An age may replace a
# day of birth.
version = {PLAN_VERSION}
name = "plan\""""

_PRIVACY = """[privacy]
# The promise limits how well anyone can tell whether one record was there; epsilon and delta set the limit.
# Smaller is safer and less accurate; 1 is a usual choice.
epsilon = {epsilon}
# A small probability that is added to what epsilon allows; well below 1 / n_records.
# delta =       # FILL IN, for example 1e-6
# Training records over all sites, a public or declared number; a rough one will do.
# n_records =   # FILL IN
# Who adds the noise. With "distributed" the sites add it, and the coordinator sees no sum without it. A
# table alone needs "server"; over a network that trusts the coordinator to add it, and with exact sums over
# all sites; they can be one person's values, and every site's owner is asked for this trust in words.
noise = "distributed"
# If one person may have several rows, protect the person: name the column that tells people apart (not rows
# or visits), remove its [[features]] table below, and say how many rows of a person may count at each site,
# and at how many sites a person may have rows.
{units}
# max_rows_per_unit = 5
# sites_per_unit = 1"""

_MODEL = """[model]
# The sites draw the seed of the trees together, so that no one picks them: a run then begins with more than two thirds
# of its roster, whatever min_sites says. A number instead is one that all agree on.
structure_seed = "joint"
# Everything here has a default that follows from public numbers; see docs/defaults.md.
# n_trees = "auto"
# max_depth = "auto"
# learning_rate = "auto\""""

_FEDERATION = """[federation]
# Nothing is aggregated with fewer sites than this.
min_sites = 1
# A site may lie. Where nine or more are expected, sum over three groups of them, each of min_sites at least: one that
# lies spoils one group's sums, and the middle counts. Its noise is twice a sum's: `hedgerow privacy` says what is left.
# From twenty sites on, five groups do so where two lie, with 2.7 times a sum's noise.
# Sites then vote three times, each with noise of its own, whether the model so far predicts their rows badly: the one
# sign that most groups lie. It costs 2 % of mu², so 1 % more noise; only for labels with classes.
# groups = 3
# votes = true"""


def _feature(name: str, entry: Entry) -> str:
    """Write a feature's table, or a comment why the feature is left out."""
    if entry.kind == "identifier":
        return (
            f"# Left out: {toml_value(name)}, by its name or the code book an identifier or free text. It would teach\n"
            "# a model nothing general, and much about single people. If it tells people apart, it may be\n"
            "# privacy.unit; if it is a quantity or a category after all, give it a [[features]] table."
        )
    lines = ["[[features]]", f"name = {toml_value(name)}"]
    if entry.kind:
        return "\n".join([*lines, *_write_known_feature(entry)])
    kinds = '"numeric" or "date", with min and max, or "categorical", with categories'
    whole = "# integer = true   # if all its values are whole numbers"
    return "\n".join([*lines, f"# type =   # FILL IN: {kinds}", whole, *_bounds(entry), _OPEN_CATEGORIES])


_OPEN_CATEGORIES = '# categories =   # FILL IN, a list such as ["a", "b"]; other values share one bin of their own'


def _write_known_feature(entry: Entry) -> list[str]:
    lines = [f"type = {toml_value(entry.kind)}"]
    if entry.kind == "categorical":
        return [*lines, f"categories = {toml_value(entry.categories)}" if entry.categories else _OPEN_CATEGORIES]
    if entry.unit:
        lines.append(f"# In {escape_for_terminal(entry.unit)}.")
    if entry.is_integer:
        lines.append("integer = true")
    if entry.kind == "date":
        lines.append('# format = "%d.%m.%Y"   # if the tables write dates so, and not as 2020-01-31')
    return [*lines, *_bounds(entry)]


def _bounds(entry: Entry) -> list[str]:
    """Write the known bounds, and a gap for each unknown one."""
    lines = []
    for bound, given, word in (("min", entry.low, "lower"), ("max", entry.high, "higher")):
        if given is not None:
            lines.append(f"{bound} = {toml_value(format_day(given)) if entry.kind == 'date' else _number(given)}")
        else:
            lines.append(f"# {bound} =   # FILL IN; {word} values are clamped")
    return lines


def draft_label(name: str, entry: Entry) -> str:
    """Write the table of a label of any kind except survival."""
    lines = ["[label]", f"name = {toml_value(name)}"]
    if len(entry.categories) > 1:
        return "\n".join([*lines, *_classes(entry.categories)])
    if entry.kind == "numeric":
        others = _comment(f"Or {_labels_but('regression')}.") if entry.is_integer else []
        return "\n".join([*lines, *others, 'type = "regression"', *_bounds(entry)])
    if entry.categories:
        return "\n".join([*lines, *_comment(f"Or {_labels_but('binary')}."), 'type = "binary"', OPEN_CLASSES])
    kinds = _comment(f"One of {_labels_but('')}.")
    return "\n".join([*lines, *kinds, "# type =   # FILL IN, one of these", OPEN_CLASSES, *_bounds(entry)])


def draft_survival(label: str, event: str, entry: Entry) -> str:
    """Write the label's table for times to an event.

    Args:
        entry: what is known of the event's column.
    """
    codes = toml_value(entry.categories) if len(entry.categories) == 2 else ""
    return "\n".join(
        [
            "[label]",
            f"name = {toml_value(label)}",
            'type = "survival"',
            f"event = {toml_value(event)}",
            "# What it says of who was lost from sight, and then of whose event was seen: without this line 0, no or",
            "# false, and 1, yes or true; R's package survival has [1, 2]. Rows with anything else are left out.",
            f"event_codes = {codes}" if codes else "# event_codes =   # FILL IN, such as [0, 1] or [1, 2]",
            "# The ends of intervals of time, the first from 0, such as the years of the follow-up; 8 to 16 suit most.",
            "# They are public: take them from what the study is about, never from the rows.",
            "# intervals =   # FILL IN, in the unit of the times, such as [365, 730, 1095, 1461]",
        ]
    )


def _classes(values: tuple[str, ...]) -> list[str]:
    if len(values) > 2:
        return ['type = "multiclass"', f"classes = {toml_value(values)}"]
    return ['type = "binary"', "# The positive class comes last.", f"classes = {toml_value(values)}"]


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 112, initial_indent="# ", subsequent_indent="# ")


def _labels_but(kind: str) -> str:
    """List the other kinds of labels."""
    return ", or ".join(other.hint for name, other in label_kinds().items() if name != kind)


def _number(value: float) -> str:
    # Integral values are written without a decimal point.
    return toml_value(int(value) if float(value).is_integer() and abs(value) < 2**53 else float(value))
